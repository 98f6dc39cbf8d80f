//! Attacks of who sees, changes and makes datagrams of others.

use std::time::Duration;

use outboard_fabric::Key;
use outboard_wire::roce::Packet;
use outboard_wire::shared::Reason;
use outboard_wire::shared::call::Policy;

use super::{
    Call, End, Gone, LIMIT, Peer, Reply, Result, Row, SOON, Seen, Siege, WRITE, client_of, fate,
    heard, make, sent,
};

/// Bytes of a write of one packet.
const SMALL: u64 = 1000;

impl Siege {
    /// Does an attack of the network on a client of its own. When that has written what it may, the
    /// media are looked at anew.
    pub(super) fn on_the_way(&mut self, row: Row) -> Result<Seen> {
        let place = 1 + row as u32;
        let node = (Peer::Node(1), self.at);
        if row == Row::Imitated {
            return self.imitated(place);
        }
        let mut victim = client_of(&self.own, place, node, self.is_sealed())?;
        victim.ask(&Call::Status).map_err(|gone| format!("{row:?}: {gone:?}"))?;
        victim.go_on(Duration::from_millis(3));
        match row {
            Row::Unfinished => {
                let ask = self.right_of(place, row, 3, WRITE)?;
                victim.say(&ask.message())?;
                victim.due().first().into_iter().for_each(|first| victim.put(first));
                let outcome = heard(&mut victim, ask.heads.head.request, SOON);
                Ok(outcome.map_or(Seen::Dropped, |_| Seen::Done))
            }
            Row::OpeningAgain => {
                let openings = std::mem::take(&mut victim.openings);
                if openings.is_empty() {
                    return Err("a conversation without an opening".to_owned());
                }
                openings.iter().for_each(|opening| victim.put(opening));
                victim.go_on(5 * SOON);
                // The conversation is the one it was.
                self.write(&mut victim, place, row)?;
                Ok(Seen::Dropped)
            }
            Row::PacketAgain => {
                let packets = self.write(&mut victim, place, row)?;
                for packet in packets.iter().cycle().take(20) {
                    victim.put(packet);
                }
                victim.go_on(SOON);
                Ok(Seen::Dropped)
            }
            Row::Changed | Row::Between => self.changed(&mut victim, (place, row)),
            Row::Rewritten => self.rewritten(&mut victim, place),
            _ => self.put_in(&mut victim, place),
        }
    }

    /// A client that is nobody special installs a policy at the node: it holds for its requests,
    /// and for nobody else's.
    ///
    /// # Errors
    /// It is not so.
    pub fn own_policy(&mut self) -> Result<()> {
        let node = (Peer::Node(1), self.at);
        let mut one = client_of(&self.own, 105, node, self.is_sealed())?;
        let reply = one.ask(&Call::Install { policy: Policy::ReadOnly });
        if reply != Ok(Reply::Done) {
            return Err(format!("a client installs no policy: {reply:?}"));
        }
        let ask = self.right_of(105, Row::Rights, 3, WRITE)?;
        let should = Seen::First(Reason::Rights);
        let seen = sent(&mut one, &ask.message(), ask.heads.head.request, should)?;
        if seen != should {
            return Err(format!("a write against its client's own policy: {seen}"));
        }
        let mut other = client_of(&self.own, 106, node, self.is_sealed())?;
        other.ask(&Call::Status).map_err(|gone| format!("another client: {gone:?}"))?;
        self.write(&mut other, 106, Row::Rights).map(drop)
    }

    /// Somebody without the key says that it is a client, or a node.
    fn imitated(&mut self, place: u32) -> Result<Seen> {
        let known = self.own.of_client(0x00AB_CDEF).ok_or("no key")?;
        let wrong = Key { secret: [7; 32], ..known };
        let node = (Peer::Node(1), self.at);
        for me in [Peer::Client(super::number(place)), Peer::Node(2), Peer::Server(0)] {
            let mut end = End::new(&wrong, me, node, self.is_sealed())?;
            match end.ask(&Call::Status) {
                Err(Gone::Refused | Gone::Unanswered) => {}
                other => return Err(format!("{me:?} without its key: {other:?}")),
            }
        }
        Ok(Seen::NotOpened)
    }

    /// How long an answer is waited for: long, if there has to be one.
    fn patience(&self, row: Row) -> Duration {
        if fate(self.trust, row) == Seen::Dropped { SOON } else { LIMIT }
    }

    /// The victim writes what it may; the packets of that.
    fn write(&mut self, victim: &mut End, place: u32, row: Row) -> Result<Vec<Vec<u8>>> {
        let ask = self.right_of(place, row, 3, SMALL)?;
        victim.say(&ask.message())?;
        let packets = victim.due();
        packets.iter().for_each(|packet| victim.put(packet));
        match victim.answer(ask.heads.head.request, Duration::from_secs(5)) {
            Some(answer) if answer.outcome.is_ok() => {}
            answer => return Err(format!("a right write of another client: {answer:?}")),
        }
        victim.go_on(Duration::from_millis(5));
        self.quiet = Some(self.media()?);
        Ok(packets)
    }

    /// The last packet of a write comes with another bit, under a checksum that is right; or such a
    /// one is put before the one in the middle. Whoever drops it gets the right one.
    fn changed(&mut self, victim: &mut End, (place, row): (u32, Row)) -> Result<Seen> {
        let ask = self.right_of(place, row, 3, WRITE)?;
        victim.say(&ask.message())?;
        let mut packets = victim.due();
        let count = packets.len();
        let which = if row == Row::Between { 1 } else { count.saturating_sub(1) };
        let right = packets.get(which).cloned().ok_or("no packet")?;
        let changed = remade(&right, victim, 0, |message| {
            message.last_mut().into_iter().for_each(|byte| *byte ^= 1);
        })?;
        packets.splice(which..=which, std::iter::once(changed));
        if row == Row::Between {
            packets.insert(which + 1, right);
        }
        packets.iter().for_each(|packet| victim.put(packet));
        let request = ask.heads.head.request;
        let limit = if row == Row::Between { LIMIT } else { self.patience(row) };
        match heard(victim, request, limit) {
            Some(Err(why)) => Ok(Seen::At(count, why)),
            Some(Ok(())) if row == Row::Changed => Ok(Seen::Done),
            done => {
                if done.is_none() {
                    let again = victim.answer(request, Duration::from_secs(5));
                    if again.is_none_or(|answer| answer.outcome.is_err()) {
                        return Err(format!("what was dropped is not sent once more: {again:?}"));
                    }
                }
                self.quiet = Some(self.media()?);
                Ok(Seen::Dropped)
            }
        }
    }

    /// All that a client wrote, and its checksum, are replaced on the way.
    fn rewritten(&mut self, victim: &mut End, place: u32) -> Result<Seen> {
        let ask = self.right_of(place, Row::Rewritten, 3, SMALL)?;
        let heads = ask.message().len() - ask.data.len();
        victim.say(&ask.message())?;
        for packet in victim.due() {
            let packet = remade(&packet, victim, 0, |message| {
                make::with_other_data(message, heads);
            })?;
            victim.put(&packet);
        }
        let outcome = heard(victim, ask.heads.head.request, self.patience(Row::Rewritten));
        Ok(outcome
            .map_or(Seen::Dropped, |outcome| outcome.map_or_else(Seen::First, |()| Seen::Done)))
    }

    /// A write that its client never made, with the capability that was seen, behind one that it
    /// did make.
    fn put_in(&mut self, victim: &mut End, place: u32) -> Result<Seen> {
        let heads = {
            let ask = self.right_of(place, Row::PutIn, 3, SMALL)?;
            ask.message().len() - ask.data.len()
        };
        let packets = self.write(victim, place, Row::PutIn)?;
        let request = self.request + 1;
        for packet in packets {
            let packet = remade(&packet, victim, 1, |message| {
                make::as_another(message, request, 4);
                make::with_other_data(message, heads);
            })?;
            victim.put(&packet);
        }
        let outcome = heard(victim, request, self.patience(Row::PutIn));
        Ok(outcome
            .map_or(Seen::Dropped, |outcome| outcome.map_or_else(Seen::First, |()| Seen::Done)))
    }
}

/// A packet with another payload and number, and the network's checksum made anew. The tag behind a
/// sealed payload is left as it was: nobody on the way can make another.
pub(super) fn remade(
    datagram: &[u8],
    victim: &End,
    later: u32,
    change: impl FnMut(&mut [u8]),
) -> Result<Vec<u8>> {
    let route = victim.route();
    let packet = Packet::parse(datagram, route).map_err(|error| format!("a packet: {error:?}"))?;
    let mut payload = packet.payload.to_vec();
    let end = payload.len().saturating_sub(victim.tag());
    payload.get_mut(..end).into_iter().for_each(change);
    let mut out = Vec::new();
    let remade = Packet { payload: &payload, psn: packet.psn.plus(later), ..packet };
    remade.emit(route, &mut out).map_err(|error| format!("a packet: {error:?}"))?;
    Ok(out)
}
