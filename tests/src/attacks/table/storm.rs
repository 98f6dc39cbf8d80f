//! Attacks in any number, drawn: each row that [`Row::is_for_storms`].

use std::collections::BTreeMap;
use std::time::Duration;

use outboard_fabric::Key;
use outboard_wire::roce::Packet;
use outboard_wire::shared::Answer;
use serde_json::Value;

use super::network::remade;
use super::{
    Ask, Call, End, LIMIT, Peer, Reason, Reply, Result, Row, Seen, Siege, WRITE, Who, fate, number,
    object, spoilt,
};

/// Attacks that are under way at a time.
const BATCH: u64 = 16;
/// One write in so many has several packets.
const LONG: u64 = 8;
/// Bytes of a message of which the first packet has none behind.
const FIRST: u64 = 9000;

/// What became of attacks, and how often.
type Counts = BTreeMap<String, u64>;

impl Siege {
    /// So many attacks, drawn; what became of them, which is for each what has to be. Not a byte
    /// was written.
    ///
    /// # Errors
    /// Something else became of one, or bytes were written.
    pub fn storm(&mut self, tries: u64) -> Result<Counts> {
        let rows: Vec<Row> =
            Row::ALL.map(|row| row.0).into_iter().filter(|r| r.is_for_storms(self.trust)).collect();
        let mut node = self.end_of(Peer::Node(2))?;
        let (media, refused) = (self.media()?, self.refused()?);
        let (mut counts, mut imitated, mut left) = (Counts::new(), 0, tries);
        while left > 0 {
            let (mut under_way, mut imitators, mut between) = (Vec::new(), Vec::new(), 0);
            for _ in 0..left.min(BATCH) {
                let at = usize::try_from(self.rng.below(rows.len() as u64)).unwrap_or(0);
                match rows.get(at).copied().unwrap_or(Row::Mac) {
                    Row::Imitated => imitators.push(self.imitator()?),
                    Row::Between => between += 1,
                    row => {
                        let ask = self.drawn(row)?;
                        under_way.push((row, ask.heads.head.request));
                        let message = spoilt(row, ask, &mut self.rng);
                        let end = if row == Row::ByNode { &mut node } else { &mut self.client };
                        end.say(&message)?;
                    }
                }
            }
            left = left.saturating_sub(BATCH);
            // Who has not much to say acknowledges nevertheless, or is given up.
            node.due().iter().for_each(|datagram| node.put(datagram));
            for (row, request) in under_way {
                let end = if row == Row::ByNode { &mut node } else { &mut self.client };
                let answer = end.answer(request, LIMIT);
                self.came(row, answer, &mut counts)?;
            }
            for _ in 0..between {
                let answer = self.between()?;
                self.came(Row::Between, answer, &mut counts)?;
            }
            imitated += imitators.len() as u64;
            imitators.into_iter().try_for_each(stays_out)?;
        }
        let refused = self.refused()? - refused;
        self.client.go_on(Duration::from_millis(3));
        node.go_on(Duration::from_millis(3));
        if refused < imitated {
            return Err(format!("{refused} of {imitated} openings are counted as refused"));
        }
        counts.insert(Seen::NotOpened.to_string(), imitated);
        if self.media()? == media { Ok(counts) } else { Err("bytes got to a medium".to_owned()) }
    }

    /// A request to be made wrong: of one packet, or of several.
    fn drawn(&mut self, row: Row) -> Result<Ask> {
        let is_long = self.rng.below(LONG) == 0;
        let bytes = 2 + if is_long { FIRST + self.rng.below(FIRST) } else { self.rng.below(300) };
        match row {
            Row::Replayed => self.right(row, 1, WRITE),
            Row::Older => self.older(bytes),
            _ => self.right(row, 7, bytes),
        }
    }

    /// An old version with new bytes, which is whole.
    fn older(&mut self, bytes: u64) -> Result<Ask> {
        let mut data = vec![0; usize::try_from(bytes).unwrap_or(0)];
        self.rng.fill(&mut data);
        self.request += 2;
        let who = Who { client: number(0), volume: self.volume };
        Ask::write(who, object(Row::Older), 1, data, self.request)
    }

    /// What came is what has to be.
    fn came(&self, row: Row, answer: Option<Answer>, counts: &mut Counts) -> Result<()> {
        let outcome = answer.map(|answer| answer.outcome);
        let is_right = match (fate(self.trust, row), outcome) {
            // A node forgets a key whose time is over when it is told others.
            (_, Some(Err(Reason::Forged))) if row == Row::RetiredKey => true,
            (_, Some(Err(Reason::Invalid))) if row == Row::Between => true,
            // A message that there was no room for comes once more, and alone.
            (_, Some(Err(Reason::Order))) if row == Row::Between => !self.is_sealed(),
            (Seen::First(should) | Seen::At(_, should), Some(Err(reason))) => reason == should,
            (Seen::Known, Some(Ok(()))) => true,
            _ => false,
        };
        let word = match outcome {
            Some(Err(reason)) if is_right => format!("{reason:?}").to_lowercase(),
            Some(Ok(())) if is_right => Seen::Known.to_string(),
            _ => return Err(format!("{row:?} is drawn: {outcome:?}")),
        };
        *counts.entry(word).or_default() += 1;
        Ok(())
    }

    /// A packet is put into the middle of a client's message, before the client's own. Where
    /// packets are sealed it would mend what is wrong: whoever took it would write. Else it spoils
    /// an old version that is whole, which has another reason to be refused.
    fn between(&mut self) -> Result<Option<Answer>> {
        let bytes = WRITE + self.rng.below(1000);
        let ask = match self.is_sealed() {
            true => self.right(Row::Between, 7, bytes)?,
            false => self.older(bytes)?,
        };
        let (request, mut message) = (ask.heads.head.request, ask.message());
        let len = message.len() as u64;
        let at = usize::try_from(FIRST + self.rng.below(len - FIRST)).unwrap_or(0);
        let flip = |byte: Option<&mut u8>| byte.into_iter().for_each(|byte| *byte ^= 0x10);
        if self.is_sealed() {
            flip(message.get_mut(at));
        }
        self.client.say(&message)?;
        let (mut begin, mut is_put) = (0, false);
        for datagram in self.client.due() {
            let packet = Packet::parse(&datagram, self.client.route());
            let len = packet.map_or(0, |packet| packet.payload.len());
            let end = begin + len.saturating_sub(self.client.tag());
            if (begin..end).contains(&at) {
                let put = remade(&datagram, &self.client, 0, |bytes| {
                    flip(bytes.get_mut(at - begin));
                })?;
                self.client.put(&put);
                is_put = true;
            }
            self.client.put(&datagram);
            begin = end;
        }
        let answer = self.client.answer(request, LIMIT);
        if is_put { Ok(answer) } else { Err(format!("nothing is put in at {at} of {len}")) }
    }

    /// Somebody who opens as a client, a node or a server, with a key that is drawn.
    fn imitator(&mut self) -> Result<End> {
        let known = self.own.of_client(0x00AB_CDEF).ok_or("no key")?;
        let mut wrong = Key { secret: [0; 32], ..known };
        self.rng.fill(&mut wrong.secret);
        let all = [Peer::Client(number(0)), Peer::Node(2), Peer::Server(9)];
        let me = all[usize::try_from(self.rng.below(3)).unwrap_or(0)];
        let mut end = End::new(&wrong, me, (Peer::Node(1), self.at), self.is_sealed())?;
        end.knock();
        Ok(end)
    }

    /// An end of the cluster that has said something.
    fn end_of(&self, me: Peer) -> Result<End> {
        let mut end = End::new(&self.own, me, (Peer::Node(1), self.at), self.is_sealed())?;
        end.ask(&Call::Status).map_err(|gone| format!("{me:?}: {gone:?}"))?;
        Ok(end)
    }

    /// How many openings the node has refused.
    fn refused(&mut self) -> Result<u64> {
        let status = match self.client.ask(&Call::Status) {
            Ok(Reply::Text(text)) => serde_json::from_str(&text).unwrap_or(Value::Null),
            reply => return Err(format!("no status: {reply:?}")),
        };
        let count = status["network"]["openings refused"].as_u64();
        count.ok_or_else(|| format!("no count of refused openings: {status}"))
    }
}

/// Nobody speaks with who imitates another.
fn stays_out(mut end: End) -> Result<()> {
    while end.hear(Duration::ZERO) {}
    if end.is_open() { Err("who has no key has a conversation".to_owned()) } else { Ok(()) }
}
