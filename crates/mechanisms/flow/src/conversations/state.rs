//! What all conversations share, and what is known of each other end.

use core::net::SocketAddrV4;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::{Poll, Waker};
use std::time::Duration;

use outboard_base::{Rng, Time};
use outboard_wire::roce::Psn;
use outboard_wire::shared::call::CallHead;
use outboard_wire::shared::{Heads, OPENING_LEN, Opening, Peer};

use super::calls::{Asked, Calls, Outcome};
use super::talk::Talk;
use super::{Config, Incoming, Token};
use crate::Gone;

/// Conversations at a time, those that are being opened too.
pub(super) const CONVERSATIONS_MAX: usize = 4096;
/// Other ends that are remembered.
const LINKS_MAX: usize = 8192;
/// Openings that wait to be sent; more are dropped, as the network might.
const OUTGOING_MAX: usize = 4096;
/// Refusals and hints, in so long.
const HINTS_MAX: u32 = 32;
const HINTS_IN: Duration = Duration::from_millis(100);

/// An opening of ours that has no answer yet.
pub(super) struct Attempt {
    pub(super) nonce: u64,
    /// Queue and first number of a conversation; none if the other end is only asked to open one.
    pub(super) here: Option<(u32, Psn)>,
    /// Where the other end may be, and how often somebody said there that it is refused.
    pub(super) places: Vec<(SocketAddrV4, u32)>,
    pub(super) until: Time,
    pub(super) next: Time,
    pub(super) wait: Duration,
}

/// An opening of the other end's that we answered; it has not proved that it has the answer.
pub(super) struct Pending {
    pub(super) theirs: Opening,
    pub(super) here: (u32, Psn),
    pub(super) until: Time,
}

/// A message that goes once there is a conversation.
pub(super) struct Waits {
    pub(super) call: u64,
    /// It asks; if not, it goes on with what did.
    pub(super) asks: bool,
    /// Address and key of a write; a key of 0: whatever fits it.
    pub(super) write: (u64, u32),
    pub(super) message: Vec<u8>,
}

/// Another end.
#[derive(Default)]
pub(super) struct Link {
    /// Where it was found last, or told to be.
    pub(super) address: Option<SocketAddrV4>,
    /// Where it may be, by who is here; empty: nobody said so.
    pub(super) places: Vec<SocketAddrV4>,
    pub(super) life: Option<u64>,
    pub(super) attempt: Option<Attempt>,
    pub(super) pending: Vec<Pending>,
    pub(super) talk: Option<Talk>,
    /// What goes once there is a conversation.
    pub(super) asks: VecDeque<Waits>,
    /// As it stands among the deadlines.
    due: Option<Time>,
}

/// What the target is to hear, once it may be called.
pub(super) enum Event {
    Opened(Peer, bool),
    Cleanup(Peer, Psn),
    Ended(Peer),
}

/// What happened so far.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) packets_in: u64,
    pub(super) packets_out: u64,
    pub(super) resent: u64,
    pub(super) bad: u64,
    pub(super) stray: u64,
    pub(super) dropped: u64,
    pub(super) opened: u64,
    pub(super) ended: u64,
    pub(super) refused: u64,
    pub(super) not_ready: u64,
}

pub(super) struct State {
    pub(super) config: Config,
    pub(super) rng: Rng,
    pub(super) now: Time,
    pub(super) wall_ms: u64,
    pub(super) links: BTreeMap<Peer, Link>,
    /// Whose the queues are that packets may come to.
    pub(super) queues: BTreeMap<u32, Peer>,
    /// Whom there may be something to send to at once.
    pub(super) ready: BTreeSet<Peer>,
    due: BTreeSet<(Time, Peer)>,
    pub(super) calls: Calls,
    inbox: VecDeque<Incoming>,
    sleepers: BTreeMap<(Time, u64), Waker>,
    sleeps: u64,
    pub(super) outgoing: VecDeque<(SocketAddrV4, [u8; OPENING_LEN])>,
    hints: (Time, u32),
    pub(super) events: Vec<Event>,
    pub(super) serial: u64,
    /// Room for a packet, and for what one carries.
    pub(super) scratch: (Vec<u8>, Vec<u8>),
    pub(super) counts: Counts,
}

/// The peer as others name it: not all bits of a client's number travel.
pub(super) fn canonical(peer: Peer) -> Peer {
    Peer::decode(peer.encode()).unwrap_or(peer)
}

impl State {
    pub(super) fn new(config: Config) -> State {
        let mut rng = Rng::new(config.seed ^ config.life.rotate_left(32) ^ config.me.encode());
        // 0 says that no life is known.
        let config = Config { me: canonical(config.me), life: config.life.max(1), ..config };
        State {
            calls: Calls::new(rng.next_u64()),
            config,
            rng,
            now: Time(0),
            wall_ms: 0,
            links: BTreeMap::new(),
            queues: BTreeMap::new(),
            ready: BTreeSet::new(),
            due: BTreeSet::new(),
            inbox: VecDeque::new(),
            sleepers: BTreeMap::new(),
            sleeps: 0,
            outgoing: VecDeque::new(),
            hints: (Time(0), 0),
            events: Vec::new(),
            serial: 0,
            scratch: (Vec::new(), Vec::new()),
            counts: Counts::default(),
        }
    }

    pub(super) fn tick(&mut self, now: Time, wall_ms: u64) {
        self.now = self.now.max(now);
        self.wall_ms = wall_ms;
    }

    /// Asks `to`; the number of what was asked.
    pub(super) fn ask(&mut self, to: Peer, what: Question<'_>) -> u64 {
        let to = canonical(to);
        let asked = if matches!(what, Question::Call(_)) { Asked::Call } else { Asked::Request };
        let call = self.calls.begin(asked);
        let message = what.message(call).filter(|message| {
            to != self.config.me && message.len() <= self.config.settings.message_bytes
        });
        let Some(message) = message else {
            self.calls.end(call, Outcome::Gone(Gone::Refused));
            return call;
        };
        self.go_to(to, Waits { call, asks: true, write: (0, 0), message });
        call
    }

    /// Sends it now, or once there is a conversation.
    pub(super) fn go_to(&mut self, to: Peer, waits: Waits) {
        let now = self.now;
        let link = self.link(to);
        match &mut link.talk {
            Some(talk) => talk.go(waits, now),
            None => link.asks.push_back(waits),
        }
        self.ready.insert(to);
    }

    /// Nobody waits for `call` any more.
    pub(super) fn forget(&mut self, to: Peer, call: u64) -> Option<Waker> {
        if let Some(link) = self.links.get_mut(&canonical(to)) {
            link.asks.retain(|waits| waits.call != call);
            link.talk.iter_mut().for_each(|talk| talk.forget(call));
        }
        self.calls.forget(call)
    }

    pub(super) fn say(&mut self, to: Peer, message: Vec<u8>) -> bool {
        let (to, now) = (canonical(to), self.now);
        let is_short = message.len() <= self.config.settings.message_bytes;
        let talk = self.links.get_mut(&to).and_then(|link| link.talk.as_mut());
        let Some(talk) = talk.filter(|_| is_short) else { return false };
        talk.say(message, now);
        self.ready.insert(to);
        true
    }

    pub(super) fn reply(&mut self, token: Token, reply: &[u8]) {
        let now = self.now;
        if let Some(talk) = self.talk_of(token)
            && talk.reply(token.call, reply, now)
        {
            self.ready.insert(token.to);
        }
    }

    pub(super) fn take_call(&mut self) -> Option<Incoming> {
        let incoming = self.inbox.pop_front()?;
        if let Some(talk) = self.talk_of(incoming.token) {
            talk.taken(incoming.call.len());
        }
        Some(incoming)
    }

    /// A call came.
    pub(super) fn came(&mut self, from: Peer, conversation: u64, call: u64, bytes: Vec<u8>) {
        let token = Token { to: from, conversation, call };
        self.inbox.push_back(Incoming { from, call: bytes, token });
    }

    /// The conversation that `token` is of, if it lives.
    fn talk_of(&mut self, token: Token) -> Option<&mut Talk> {
        let talk = self.links.get_mut(&token.to)?.talk.as_mut()?;
        (talk.terms.serial == token.conversation).then_some(talk)
    }

    pub(super) fn know(&mut self, peer: Peer, places: &[SocketAddrV4]) {
        let link = self.link(canonical(peer));
        (link.address, link.places) = (places.first().copied(), places.to_vec());
        link.attempt.iter_mut().for_each(|attempt| {
            attempt.places = places.iter().map(|place| (*place, 0)).collect();
        });
    }

    /// What is known of `peer`. Nothing is forgotten of who was told of or is spoken with.
    pub(super) fn link(&mut self, peer: Peer) -> &mut Link {
        if self.links.len() >= LINKS_MAX && !self.links.contains_key(&peer) {
            let idle = self.links.iter().find(|(_, link)| {
                let is_used = link.talk.is_some() || link.attempt.is_some();
                !is_used
                    && link.places.is_empty()
                    && link.pending.is_empty()
                    && link.asks.is_empty()
            });
            if let Some(idle) = idle.map(|(peer, _)| *peer) {
                self.links.remove(&idle);
                self.due.retain(|(_, peer)| *peer != idle);
            }
        }
        self.links.entry(peer).or_default()
    }

    /// The conversation with `peer` ends, if there is one.
    pub(super) fn end(&mut self, peer: Peer, why: Gone) {
        let Some(talk) = self.links.get_mut(&peer).and_then(|link| link.talk.take()) else {
            return;
        };
        self.queues.remove(&talk.terms.here.0);
        self.counts.resent += talk.sender.resent();
        self.counts.ended += 1;
        let serial = talk.terms.serial;
        let (awaited, requests) = talk.end();
        for call in awaited {
            self.calls.end(call, Outcome::Gone(why));
        }
        let of_it =
            |incoming: &Incoming| incoming.from == peer && incoming.token.conversation == serial;
        self.inbox.retain(|incoming| !of_it(incoming));
        self.events.extend(requests.into_iter().map(|message| Event::Cleanup(peer, message)));
        self.events.push(Event::Ended(peer));
        self.ready.insert(peer);
    }

    /// What waited for a conversation with `peer` ends.
    pub(super) fn give_up(&mut self, peer: Peer, why: Gone) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        for waits in std::mem::take(&mut link.asks) {
            self.calls.end(waits.call, Outcome::Gone(why));
        }
    }

    /// A queue that no other conversation has.
    pub(super) fn queue(&mut self, peer: Peer) -> Option<(u32, Psn)> {
        if self.queues.len() >= CONVERSATIONS_MAX {
            return None;
        }
        // Of sixteen million at most a few thousand are in use.
        loop {
            let queue = u32::try_from(self.rng.below(1 << 24)).unwrap_or(0);
            if queue != 0 && !self.queues.contains_key(&queue) {
                self.queues.insert(queue, peer);
                return Some((queue, self.psn()));
            }
        }
    }

    fn psn(&mut self) -> Psn {
        Psn::new(u32::try_from(self.rng.below(1 << 24)).unwrap_or(0))
    }

    pub(super) fn put(&mut self, to: SocketAddrV4, opening: &Opening) {
        if self.outgoing.len() < OUTGOING_MAX {
            self.outgoing.push_back((to, opening.emit()));
        }
    }

    /// Whether one more refusal or hint may be told now.
    pub(super) fn may_hint(&mut self) -> bool {
        if self.now.since(self.hints.0) >= HINTS_IN {
            self.hints = (self.now, 0);
        }
        self.hints.1 += 1;
        self.hints.1 <= HINTS_MAX
    }

    /// Puts `peer` among the deadlines.
    pub(super) fn schedule(&mut self, peer: Peer) {
        let within = self.config.answer_within;
        let Some(link) = self.links.get_mut(&peer) else { return };
        let attempt = link.attempt.as_ref().map(|attempt| attempt.next.min(attempt.until));
        let pending = link.pending.iter().map(|pending| pending.until).min();
        let talk = link.talk.as_ref().and_then(|talk| talk.deadline(within));
        // Once an attempt is made it is what is waited for.
        let doubt = link.talk.as_ref().filter(|_| attempt.is_none()).and_then(Talk::doubted_until);
        let due = [attempt, pending, talk, doubt].into_iter().flatten().min();
        if due != link.due {
            link.due.into_iter().for_each(|due| {
                self.due.remove(&(due, peer));
            });
            self.due.extend(due.map(|due| (due, peer)));
            link.due = due;
        }
    }

    /// Whose deadline has come; it stands there no more.
    pub(super) fn take_due(&mut self) -> Option<Peer> {
        let (due, peer) = self.due.pop_first()?;
        if due > self.now {
            self.due.insert((due, peer));
            return None;
        }
        self.links.get_mut(&peer).into_iter().for_each(|link| link.due = None);
        Some(peer)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let due = self.due.first().map(|(due, _)| *due);
        let slept = self.sleepers.first_key_value().map(|((until, _), _)| *until);
        [due, slept].into_iter().flatten().min()
    }

    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.outgoing.is_empty()
    }

    /// A number for who sleeps.
    pub(super) fn sleeper(&mut self) -> u64 {
        self.sleeps += 1;
        self.sleeps
    }

    pub(super) fn sleep(&mut self, until: Time, sleeper: u64, waker: &Waker) -> Poll<()> {
        if self.now >= until {
            return Poll::Ready(());
        }
        let known = self.sleepers.get(&(until, sleeper));
        if known.is_none_or(|known| !known.will_wake(waker)) {
            let before = self.sleepers.insert((until, sleeper), waker.clone());
            self.calls.woken.extend(before);
        }
        Poll::Pending
    }

    /// Nobody sleeps any more; who did is to be dropped with nothing locked.
    pub(super) fn wakes(&mut self, until: Time, sleeper: u64) -> Option<Waker> {
        self.sleepers.remove(&(until, sleeper))
    }

    /// Lets those go on whose time has come; how many.
    pub(super) fn wake_sleepers(&mut self) -> usize {
        let mut count = 0;
        while let Some(first) = self.sleepers.first_entry()
            && first.key().0 <= self.now
        {
            self.calls.woken.push(first.remove());
            count += 1;
        }
        count
    }

    pub(super) fn figures(&self) -> Vec<(&'static str, u64)> {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let talks = || self.links.values().filter_map(|link| link.talk.as_ref());
        let counts = &self.counts;
        let live: u64 = talks().map(|talk| talk.sender.resent()).sum();
        vec![
            ("conversations", number(talks().count())),
            ("conversations opened", counts.opened),
            ("conversations ended", counts.ended),
            ("calls awaited", number(self.calls.len())),
            ("packets sent", counts.packets_out),
            ("packets received", counts.packets_in),
            ("packets sent again", counts.resent + live),
            ("packets bad", counts.bad),
            ("packets stray", counts.stray),
            ("messages dropped", counts.dropped),
            ("messages not ready", counts.not_ready),
            ("openings refused", counts.refused),
        ]
    }
}

/// What is asked.
pub(super) enum Question<'a> {
    Call(&'a [u8]),
    Request(&'a Heads, &'a [u8]),
}

impl Question<'_> {
    /// Its message, as number `call`; none if it is not one.
    fn message(&self, call: u64) -> Option<Vec<u8>> {
        match *self {
            Question::Call(bytes) => {
                let head = CallHead { call, is_reply: false }.emit();
                Some([head.as_slice(), bytes].concat())
            }
            Question::Request(heads, data) => {
                let mut heads = *heads;
                heads.head.request = call;
                let is_whole = heads.head.data as usize == data.len();
                let mut message = Vec::with_capacity(outboard_wire::shared::HEADS_MAX + data.len());
                heads.emit(&mut message).ok().filter(|()| is_whole)?;
                message.extend_from_slice(data);
                Some(message)
            }
        }
    }
}
