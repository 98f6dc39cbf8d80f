//! How a conversation is opened.
//!
//! ```text
//!  greater                      lesser (by role and number)
//!     | ------- OPEN, asks --------> |   only if the greater wishes it
//!     | <-- OPEN: queue, nonce ----- |   opens
//!     | -- OPENED: queue, nonce ---> |   lives here, and the one before has ended
//!     | <-- OPENED, the proof ------ |   lives there, and the one before has ended
//! ```
//!
//! Each step has the MAC of the key that the two share. The lesser always opens, so two that wish
//! it at once have one conversation. The proof is over the queue and number of the answer, which
//! are random: who replays an OPEN cannot make it. It goes before packets until something is heard.

use core::net::SocketAddrV4;
use std::time::Duration;

use outboard_codec::mac;
use outboard_wire::roce::Psn;
use outboard_wire::shared::{HEADS_MAX, MAC_LEN, Opening, Peer, Step};

use super::seal::{SEAL_LEN, Seal};
use super::state::{Attempt, Event, Pending, State};
use super::talk::{Doubt, Talk, Terms};
use crate::planted::{self, Fault};
use crate::{Gone, Settings};

/// How long it is tried, not much longer than a flow is: who asks one that is gone is told as soon,
/// whether they have spoken before or not. How long between two datagrams: first and at most.
const OPEN_FOR: Duration = Duration::from_millis(1500);
const OPEN_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// Refusals of as many of them that are believed, when the next would be sent.
const REFUSALS: u32 = 3;
/// How long an answer waits for its proof, and how many of one peer do.
const PENDING_FOR: Duration = Duration::from_secs(4);
const PENDING_MAX: usize = 4;

impl State {
    /// A datagram that may be an opening.
    pub(super) fn opening(&mut self, address: SocketAddrV4, bytes: &[u8]) {
        let Ok(opening) = Opening::parse(bytes) else {
            self.counts.bad += 1;
            return;
        };
        if opening.step == Step::Refused {
            return self.was_refused(address, &opening);
        }
        let is_meant = opening.cluster == self.config.cluster
            && opening.to == self.config.me
            && opening.from != self.config.me;
        let key = self.config.keys.of(opening.from).filter(|_| is_meant);
        let Some(key) = key.filter(|_| payload_of(&opening, &self.config.settings, true).is_some())
        else {
            return self.refuse(address, &opening);
        };
        match (opening.step, opening.from < self.config.me) {
            (Step::Opened, true) => self.proved(address, &opening, &key),
            _ if !opening.is_signed_by(&key) && !planted::is(Fault::AnyMac) => {
                self.refuse(address, &opening);
            }
            (Step::Open, true) => self.offered(address, opening, &key),
            (Step::Open, false) => self.asked(address, opening.from),
            _ => self.answered(address, &opening, &key),
        }
    }

    /// An opening of ours, or an answer to one.
    fn said(&self, step: Step, to: Peer, here: Option<(u32, Psn)>, nonce: u64) -> Opening {
        let (queue, first) = here.unwrap_or((0, Psn::new(0)));
        let payload = u16::try_from(self.config.settings.payload).unwrap_or(u16::MAX);
        Opening {
            step,
            cluster: self.config.cluster,
            from: self.config.me,
            to,
            life: self.config.life,
            life_seen: self.links.get(&to).and_then(|link| link.life).unwrap_or(0),
            queue,
            first,
            payload,
            sealed: self.config.sealed,
            nonce,
            mac: [0; MAC_LEN],
        }
    }

    /// Tells who opens that it may not, unless that was told often enough.
    fn refuse(&mut self, address: SocketAddrV4, opening: &Opening) {
        self.counts.refused += 1;
        if opening.step != Step::Open || !self.may_hint() {
            return;
        }
        let refusal = self.said(Step::Refused, opening.from, None, opening.nonce);
        self.put(address, &Opening { from: opening.to, ..refusal });
    }

    /// Tells who sends to a queue that nobody has. It is believed by nobody, and makes who gets it
    /// look whether the other end is there.
    pub(super) fn hint(&mut self, address: SocketAddrV4, queue: u32) {
        if self.may_hint() {
            let hint = self.said(Step::Refused, self.config.me, None, 0);
            self.put(address, &Opening { queue, ..hint });
        }
    }

    /// An opening of ours is refused, or packets of ours come to nobody.
    fn was_refused(&mut self, address: SocketAddrV4, refusal: &Opening) {
        let (peer, now) = (refusal.from, self.now);
        let Some(link) = self.links.get_mut(&peer) else { return };
        // Anybody on the way may say so, or change our datagram so that it is refused: it is
        // tried some more before it is believed.
        let attempt = link.attempt.as_mut().filter(|attempt| attempt.nonce == refusal.nonce);
        if let Some(attempt) = attempt {
            let here = attempt.places.iter_mut().filter(|(place, _)| *place == address);
            here.for_each(|(_, refusals)| *refusals += 1);
            return;
        }
        if let Some(talk) = &mut link.talk
            && talk.terms.address == address
            && talk.terms.there.0 == refusal.queue
        {
            talk.doubts(None, now);
            self.ready.insert(peer);
        }
    }

    /// Begins to open a conversation with `peer` wherever it may be: where it was found last, where
    /// it was told to be, and from where it wished one. If nobody knows, what is asked ends.
    pub(super) fn attempt(&mut self, peer: Peer, wished: Option<SocketAddrV4>) {
        let link = self.links.get(&peer);
        let told = link.map_or(&[][..], |link| &link.places).iter().copied();
        let found = link.and_then(|link| link.address).into_iter();
        let mut places: Vec<(SocketAddrV4, u32)> = Vec::new();
        for place in found.chain(told).chain(wished) {
            if places.iter().all(|(known, _)| *known != place) {
                places.push((place, 0));
            }
        }
        if places.is_empty() {
            return self.give_up(peer, Gone::Unanswered);
        }
        if self.config.keys.of(peer).is_none() {
            return self.give_up(peer, Gone::Refused);
        }
        // The greater one has nothing to offer: it asks for an offer.
        let here = if self.config.me < peer { self.queue(peer) } else { None };
        if here.is_none() && self.config.me < peer {
            return self.give_up(peer, Gone::Unanswered);
        }
        let (nonce, now) = (self.nonce(), self.now);
        let (until, wait) = (now.after(OPEN_FOR), OPEN_AGAIN.0);
        let attempt = Attempt { nonce, here, places, until, next: now, wait };
        self.link(peer).attempt = Some(attempt);
        self.ready.insert(peer);
    }

    /// Not 0, which is a hint's.
    fn nonce(&mut self) -> u64 {
        self.rng.next_u64().max(1)
    }

    /// Sends the opening of an attempt to `address`.
    fn offer(&mut self, peer: Peer, address: SocketAddrV4) {
        let attempt = self.links.get(&peer).and_then(|link| link.attempt.as_ref());
        let Some((here, nonce)) = attempt.map(|attempt| (attempt.here, attempt.nonce)) else {
            return;
        };
        if let Some(key) = self.config.keys.of(peer) {
            let opening = self.said(Step::Open, peer, here, nonce).sign(&key);
            self.put(address, &opening);
        }
    }

    /// Goes on with what is being opened.
    pub(super) fn open(&mut self, peer: Peer) {
        let now = self.now;
        let Some(link) = self.links.get_mut(&peer) else { return };
        let (over, rest) = std::mem::take(&mut link.pending)
            .into_iter()
            .partition::<Vec<_>, _>(|pending| pending.until <= now);
        link.pending = rest;
        for pending in over {
            self.queues.remove(&pending.here.0);
        }
        let Some(attempt) = &mut link.attempt else { return };
        let refuses = |(_, refusals): &(SocketAddrV4, u32)| *refusals >= REFUSALS;
        if attempt.until <= now {
            // The others are silent, as servers are that stand by.
            let is_refused = link.places.len() > 1 && attempt.places.iter().any(refuses);
            self.close_attempt(peer);
            let why = if is_refused { Gone::Refused } else { Gone::Unanswered };
            return self.give_up(peer, why);
        }
        let is_refused = attempt.places.iter().all(refuses);
        if attempt.next <= now && is_refused {
            self.close_attempt(peer);
            return self.give_up(peer, Gone::Refused);
        }
        if attempt.next <= now {
            attempt.next = now.after(attempt.wait);
            attempt.wait = (attempt.wait * 2).min(OPEN_AGAIN.1);
            for (place, _) in attempt.places.clone() {
                self.offer(peer, place);
            }
        }
    }

    /// Nothing is being opened any more.
    pub(super) fn close_attempt(&mut self, peer: Peer) {
        let attempt = self.links.get_mut(&peer).and_then(|link| link.attempt.take());
        if let Some((queue, _)) = attempt.and_then(|attempt| attempt.here) {
            self.queues.remove(&queue);
        }
    }

    /// The greater end wishes a conversation. If there is one it may be an old wish: then it is
    /// seen whether the other end is still in it.
    fn asked(&mut self, address: SocketAddrV4, peer: Peer) {
        let now = self.now;
        let link = self.link(peer);
        if let (Some(talk), None) = (&mut link.talk, &link.attempt)
            && !planted::is(Fault::BelievesWishes)
        {
            talk.doubts(Some(address), now);
            self.ready.insert(peer);
            return;
        }
        if link.attempt.is_none() {
            // The wish may be an old one, sent again from elsewhere: it is tried, too, where the
            // peer was proved or told to be.
            self.attempt(peer, Some(address));
            // Sent at once, below.
            let wait = now.after(OPEN_AGAIN.0);
            let attempt = self.links.get_mut(&peer).and_then(|link| link.attempt.as_mut());
            attempt.into_iter().for_each(|attempt| attempt.next = wait);
        }
        self.offer(peer, address);
        self.ready.insert(peer);
    }

    /// The lesser end opens a conversation.
    fn offered(&mut self, address: SocketAddrV4, theirs: Opening, key: &[u8; 32]) {
        let (peer, until) = (theirs.from, self.now.after(PENDING_FOR));
        let link = self.link(peer);
        let is_live = |talk: &Talk| talk.terms.nonce == theirs.nonce;
        if link.talk.as_ref().is_some_and(is_live) {
            return;
        }
        let known = link.pending.iter().find(|pending| pending.theirs.nonce == theirs.nonce);
        let here = match known {
            Some(pending) => pending.here,
            None => {
                if link.pending.len() >= PENDING_MAX {
                    let oldest = link.pending.remove(0);
                    self.queues.remove(&oldest.here.0);
                }
                let Some(here) = self.queue(peer) else {
                    self.counts.refused += 1;
                    return;
                };
                self.link(peer).pending.push(Pending { theirs, here, until });
                here
            }
        };
        let answer = self.said(Step::Opened, peer, Some(here), theirs.nonce);
        let sealed = answer.sealed || theirs.sealed;
        self.put(address, &Opening { sealed, ..answer }.sign(key));
        self.ready.insert(peer);
        if planted::is(Fault::NoProof) {
            self.begin_offered(address, &theirs, key);
        }
    }

    /// The greater end answered our opening: the conversation lives, and that is proved to it.
    fn answered(&mut self, address: SocketAddrV4, theirs: &Opening, key: &[u8; 32]) {
        let peer = theirs.from;
        let attempt = self.links.get(&peer).and_then(|link| link.attempt.as_ref());
        let is_ours = |attempt: &&Attempt| attempt.nonce == theirs.nonce;
        let Some(here) = attempt.filter(is_ours).and_then(|attempt| attempt.here) else { return };
        // Its queue goes on in the conversation.
        let link = self.link(peer);
        link.attempt = None;
        let proof_key = proof_key(key, theirs.life, (theirs.queue, theirs.first));
        let proof = self.said(Step::Opened, peer, Some(here), theirs.nonce);
        self.begin(address, theirs, here, key, Some(&proof.sign(&proof_key)));
    }

    /// The lesser end has our answer: the conversation lives.
    fn proved(&mut self, address: SocketAddrV4, proof: &Opening, key: &[u8; 32]) {
        let pending = self.links.get(&proof.from).map_or(&[][..], |link| &link.pending);
        let pending = pending.iter().find(|pending| pending.theirs.nonce == proof.nonce);
        let Some((here, theirs)) = pending.map(|pending| (pending.here, pending.theirs)) else {
            return;
        };
        if proof.is_signed_by(&proof_key(key, self.config.life, here)) {
            self.begin_offered(address, &theirs, key);
        } else {
            self.counts.refused += 1;
        }
    }

    /// What was offered begins; what was offered before it is over.
    fn begin_offered(&mut self, address: SocketAddrV4, theirs: &Opening, key: &[u8; 32]) {
        let link = self.link(theirs.from);
        let is_it = |pending: &Pending| pending.theirs.nonce == theirs.nonce;
        let Some(at) = link.pending.iter().position(is_it) else { return };
        let mut before: Vec<Pending> = link.pending.drain(..=at).collect();
        let Some(pending) = before.pop() else { return };
        for pending in before {
            self.queues.remove(&pending.here.0);
        }
        self.close_attempt(theirs.from);
        self.begin(address, theirs, pending.here, key, None);
    }

    /// A conversation lives, and the one before has ended.
    fn begin(
        &mut self,
        address: SocketAddrV4,
        theirs: &Opening,
        here: (u32, Psn),
        key: &[u8; 32],
        proof: Option<&Opening>,
    ) {
        let (peer, now, there) = (theirs.from, self.now, (theirs.queue, theirs.first));
        self.end(peer, Gone::Ended);
        let sealed = theirs.sealed || self.config.sealed;
        let payload = payload_of(theirs, &self.config.settings, sealed).unwrap_or(HEADS_MAX);
        let is_lesser = self.config.me < peer;
        let seal = sealed.then(|| {
            let ends = [(self.config.life, here), (theirs.life, there)];
            let key = session_key(key, theirs.nonce, ends, is_lesser);
            Seal::new(&key, is_lesser, here.1, there.1)
        });
        self.events.push(Event::Opened(peer, seal.is_some()));
        self.serial += 1;
        let terms = Terms {
            serial: self.serial,
            peer,
            address,
            nonce: theirs.nonce,
            here,
            there,
            settings: Settings { payload, ..self.config.settings },
            seal,
            proof: proof.map(Opening::emit),
        };
        let mut talk = Talk::new(terms, now);
        let link = self.link(peer);
        (link.address, link.life) = (Some(address), Some(theirs.life));
        for waits in std::mem::take(&mut link.asks) {
            talk.go(waits, now);
        }
        // The proof is sent again until something is heard, so something has to be asked.
        if proof.is_some() {
            talk.probe(now);
        }
        link.talk = Some(talk);
        self.counts.opened += 1;
        self.ready.insert(peer);
    }
}

impl Talk {
    /// The other end may not be in it any more. Whatever is heard of it says otherwise.
    fn doubts(&mut self, wished: Option<SocketAddrV4>, now: outboard_base::Time) {
        let doubt = self.doubt.get_or_insert(Doubt { since: None, tries: 0, wished });
        doubt.wished = wished.or(doubt.wished);
        self.probe(now);
    }
}

/// Bytes that a full packet carries for a flow, as both ends can; none if heads do not fit.
fn payload_of(theirs: &Opening, settings: &Settings, sealed: bool) -> Option<usize> {
    let both = settings.payload.min(usize::from(theirs.payload));
    let payload = both.checked_sub(if sealed { SEAL_LEN } else { 0 })? & !3;
    (payload >= HEADS_MAX).then_some(payload)
}

/// The key of the proof that an answer was received.
fn proof_key(key: &[u8; 32], life: u64, (queue, first): (u32, Psn)) -> [u8; 32] {
    let (queue, first) = (queue.to_le_bytes(), first.raw().to_le_bytes());
    mac::derive(key, "outboard proof", &[&life.to_le_bytes()[..], &queue, &first].concat())
}

/// The key of one conversation's packets, from all that is random in its opening.
fn session_key(
    key: &[u8; 32],
    nonce: u64,
    [ours, theirs]: [(u64, (u32, Psn)); 2],
    is_lesser: bool,
) -> [u8; 32] {
    let ends = if is_lesser { [ours, theirs] } else { [theirs, ours] };
    let mut all = nonce.to_le_bytes().to_vec();
    for (life, (queue, first)) in ends {
        all.extend_from_slice(&life.to_le_bytes());
        all.extend_from_slice(&queue.to_le_bytes());
        all.extend_from_slice(&first.raw().to_le_bytes());
    }
    mac::derive(key, "outboard packets", &all)
}
