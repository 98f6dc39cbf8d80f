//! Packets in, packets out, and what time does.

use core::net::SocketAddrV4;
use std::time::Duration;

use outboard_base::Time;
use outboard_wire::roce::{Opcode, Packet};
use outboard_wire::shared::Peer;

use super::state::State;
use super::talk::{Came, Room, Talk, is_of_flow};
use crate::planted::{self, Fault};
use crate::{Dead, Given, Gone, Received};

/// Packets of one conversation that go before others have their turn.
const BURST: usize = 512;
/// How long a doubt lasts before the conversation is opened anew, and how often something was sent
/// in this time: a sender that was told to wait, or lost much, sends seldom.
const DOUBT: Duration = Duration::from_millis(100);
const DOUBT_TRIES: u32 = 3;

impl Talk {
    /// When a doubt is one no more.
    pub(super) fn doubted_until(&self) -> Option<Time> {
        let doubt = self.doubt.filter(|doubt| doubt.tries >= DOUBT_TRIES)?;
        doubt.since.map(|since| since.after(DOUBT))
    }
}

impl State {
    /// Whose packet it is, and what it carries; none if it is nobody's.
    pub(super) fn admit<'a>(
        &mut self,
        from: SocketAddrV4,
        packet: &Packet<'a>,
    ) -> Option<(Peer, Packet<'a>)> {
        let now = self.now;
        let Some(peer) = self.queues.get(&packet.queue).copied() else {
            self.counts.stray += 1;
            // Answers to what is over are not answered.
            if !matches!(packet.opcode, Opcode::Acknowledge | Opcode::ReadOnly) {
                self.hint(from, packet.queue);
            }
            return None;
        };
        let talk = self.links.get_mut(&peer).and_then(|link| link.talk.as_mut());
        // Of what is being opened: the proof was lost or is late, and comes again.
        let is_its = |talk: &&mut Talk| talk.terms.here.0 == packet.queue;
        let Some(talk) = talk.filter(is_its).filter(|talk| talk.terms.address == from) else {
            self.counts.stray += 1;
            return None;
        };
        let opened = match &mut talk.terms.seal {
            Some(_) if planted::is(Fault::AnySeal) => Some(*packet),
            Some(seal) => seal.open(packet),
            None => Some(*packet),
        };
        let Some(packet) = opened.filter(|packet| is_of_flow(packet.opcode)) else {
            self.counts.bad += 1;
            return None;
        };
        self.counts.packets_in += 1;
        talk.hears(now);
        self.ready.insert(peer);
        if self.links.get(&peer).is_some_and(|link| link.attempt.is_some()) {
            self.close_attempt(peer);
        }
        Some((peer, packet))
    }

    /// Whose room is needed for it.
    pub(super) fn room_for(&self, peer: Peer, packet: &Packet<'_>) -> Room {
        let talk = self.links.get(&peer).and_then(|link| link.talk.as_ref());
        talk.map_or(Room::Here(false), |talk| talk.room_for(packet, &self.calls))
    }

    /// Whether a packet came before another of its conversation that is missing.
    pub(super) fn is_early(&self, peer: Peer, packet: &Packet<'_>) -> bool {
        let talk = self.links.get(&peer).and_then(|link| link.talk.as_ref());
        talk.is_some_and(|talk| talk.receiver.is_ahead(packet.psn))
    }

    /// An acknowledgement.
    pub(super) fn acknowledged(&mut self, peer: Peer, packet: &Packet<'_>) {
        let now = self.now;
        if let Some(talk) = self.links.get_mut(&peer).and_then(|link| link.talk.as_mut()) {
            talk.acknowledged(packet, now);
        }
    }

    /// A packet of a message; what the target is given of it.
    pub(super) fn received<'a>(
        &mut self,
        peer: Peer,
        packet: &Packet<'a>,
        has_room: bool,
    ) -> Option<Given<'a>> {
        let now = self.now;
        let talk = self.links.get_mut(&peer).and_then(|link| link.talk.as_mut())?;
        let given = match talk.receiver.receive(packet, now, has_room) {
            Received::Given(given) => given,
            Received::NotReady => {
                self.counts.not_ready += 1;
                return None;
            }
            _ => return None,
        };
        let conversation = talk.terms.serial;
        match talk.given(&given, &mut self.calls, now) {
            Came::Target => return Some(given),
            Came::Nothing => {}
            Came::Dropped => self.counts.dropped += 1,
            Came::Call(call, bytes) => self.came(peer, conversation, call, bytes),
        }
        None
    }

    /// Sends all that is due; how much it did.
    pub(super) fn pump(&mut self, send: &mut dyn FnMut(SocketAddrV4, &[u8])) -> usize {
        let mut did = self.wake_sleepers();
        while let Some(peer) = self.take_due() {
            self.ready.insert(peer);
        }
        for peer in std::mem::take(&mut self.ready) {
            did += self.go(peer, send);
            self.schedule(peer);
        }
        while let Some((to, opening)) = self.outgoing.pop_front() {
            send(to, &opening);
            did += 1;
        }
        did
    }

    /// All that is to be done with one other end.
    fn go(&mut self, peer: Peer, send: &mut dyn FnMut(SocketAddrV4, &[u8])) -> usize {
        self.open(peer);
        self.doubt(peer);
        let within = self.config.answer_within;
        let Some(link) = self.links.get_mut(&peer) else { return 0 };
        let Some(talk) = &mut link.talk else {
            if !link.asks.is_empty() && link.attempt.is_none() {
                self.attempt(peer, None);
                self.open(peer);
            }
            return 1;
        };
        if talk.is_idle(self.now) {
            self.end(peer, Gone::Ended);
            return 1;
        }
        talk.probe_if_silent(within, self.now);
        let sent = self.transmit(peer, send);
        if let Some(why) = self.over(peer) {
            self.end(peer, why);
        }
        sent
    }

    /// Why the conversation is over, if its flows say so.
    fn over(&mut self, peer: Peer) -> Option<Gone> {
        let talk = self.links.get_mut(&peer)?.talk.as_mut()?;
        match talk.sender.dead() {
            Some(Dead::Unanswered) => return Some(Gone::Unanswered),
            Some(_) => return Some(Gone::Ended),
            None => {}
        }
        let is_silent = talk.receiver.deadline().is_some_and(|deadline| deadline <= self.now);
        (is_silent || talk.receiver.is_over()).then_some(Gone::Ended)
    }

    /// A conversation that was doubted for long enough is opened anew, if anybody wishes it; the
    /// one there is lives until the other end has answered.
    fn doubt(&mut self, peer: Peer) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&peer) else { return };
        let Some(talk) = link.talk.as_ref().filter(|_| link.attempt.is_none()) else { return };
        if talk.doubted_until().is_none_or(|until| now < until) {
            return;
        }
        let wished = talk.doubt.and_then(|doubt| doubt.wished);
        if wished.is_some() || talk.awaits_something() {
            self.attempt(peer, wished);
            self.open(peer);
        }
        if self.links.get(&peer).is_some_and(|link| link.attempt.is_none()) {
            self.end(peer, Gone::Ended);
        }
    }

    /// Sends the packets of one conversation.
    fn transmit(&mut self, peer: Peer, send: &mut dyn FnMut(SocketAddrV4, &[u8])) -> usize {
        let Some(talk) = self.links.get_mut(&peer).and_then(|link| link.talk.as_mut()) else {
            return 0;
        };
        let (route, to) = (talk.route_from(self.config.address), talk.terms.address);
        let (datagram, carried) = &mut self.scratch;
        let (mut sent, mut is_asking) = (0, false);
        while sent < BURST {
            let packet = match talk.sender.poll(self.now) {
                Some(packet) => packet,
                None => match talk.acknowledgement(sent > 0, self.now) {
                    Some(packet) => packet,
                    None => break,
                },
            };
            is_asking |= packet.opcode != Opcode::Acknowledge;
            if sent == 0 {
                talk.terms.proof.iter().for_each(|proof| send(to, proof));
            }
            datagram.clear();
            let written = match &mut talk.terms.seal {
                Some(seal) => seal.emit(&packet, route, carried, datagram),
                None => packet.emit(route, datagram),
            };
            // What flows make fits.
            if written.is_ok() {
                send(to, datagram);
            }
            sent += 1;
        }
        if is_asking {
            talk.went(self.now);
        }
        self.counts.packets_out += u64::try_from(sent).unwrap_or(0);
        if sent == BURST {
            self.ready.insert(peer);
        }
        sent
    }
}
