//! One conversation: two flows, the messages that come in pieces, and what waits to go.

use core::net::SocketAddrV4;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use outboard_base::{Time, place};
use outboard_wire::roce::{Extension, Opcode, Packet, Psn, Route};
use outboard_wire::shared::call::{CALL_HEAD_LEN, CallHead};
use outboard_wire::shared::{ANSWER_LEN, Answer, MessageKind, OPENING_LEN, Peer};

use super::calls::{Asked, Calls, Outcome};
use super::seal::Seal;
use super::state::Waits;
use super::streams::{self, Part};
use crate::planted::{self, Fault};
use crate::receiver::carries;
use crate::{Given, Identity, Kind, Receiver, Refused, Sender, Settings};

/// Messages a sender holds; more wait outside.
const ROOM: usize = 64;
/// Messages that wait outside before the other end may ask nothing more.
const BACKLOG_MAX: usize = 4096;
/// Calls of one peer that came and have no reply. Beyond that its flow stops, replies too, so no
/// honest end gets there.
const OWED_MAX: usize = 4096;
/// Calls of one peer that nobody took, and bytes of them and of those that come.
const UNTAKEN_MAX: usize = 256;
const UNTAKEN_BYTES_MAX: usize = 16 << 20;
/// How long an acknowledgement waits for something to go with: an answer, most often. Less than a
/// sender's timer.
const ALONG: Duration = Duration::from_millis(1);
/// With nothing said for so long a conversation ends.
const IDLE: Duration = Duration::from_secs(60);

/// A message that comes in pieces.
enum Coming {
    /// Of the target.
    Request,
    /// Kept until it is whole: its head, and the bytes behind it.
    Kept { head: Head, skip: usize, bytes: Vec<u8>, len: usize },
    /// Nobody wants it.
    Dropped,
}

#[derive(Clone, Copy)]
enum Head {
    Call(u64),
    Reply(u64),
    Answer(Answer),
}

/// What a packet was for.
pub(super) enum Came {
    /// Nothing is to be done.
    Nothing,
    /// For the target.
    Target,
    /// It ended a message that nobody can read or wants.
    Dropped,
    /// It ended a call: its number, its bytes.
    Call(u64, Vec<u8>),
}

/// Whose room a packet needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The target is to be asked.
    Target,
    /// Whoever took the request that this goes on with.
    Stream(u32),
    Here(bool),
}

/// Why an end doubts that the other still has the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    /// When something was first sent that would be acknowledged, and how often since.
    pub(super) since: Option<Time>,
    pub(super) tries: u32,
    /// From where the other end wished a new one, and proved that it is who it says.
    pub(super) wished: Option<SocketAddrV4>,
}

/// What both ends know of a conversation.
pub(super) struct Terms {
    pub(super) serial: u64,
    pub(super) peer: Peer,
    pub(super) address: SocketAddrV4,
    /// Of the opening.
    pub(super) nonce: u64,
    /// Queues and first numbers, of this end and the other.
    pub(super) here: (u32, Psn),
    pub(super) there: (u32, Psn),
    pub(super) settings: Settings,
    pub(super) seal: Option<Seal>,
    /// What proves to the other end that this one has its answer; sent until something is heard.
    pub(super) proof: Option<[u8; OPENING_LEN]>,
}

pub(super) struct Talk {
    pub(super) terms: Terms,
    pub(super) sender: Sender<Vec<u8>>,
    pub(super) receiver: Receiver,
    waiting: VecDeque<((u64, u32), Vec<u8>)>,
    /// Messages that were said, and of those that have been acknowledged, which are the first.
    pub(super) said: u64,
    pub(super) gone: u64,
    coming: BTreeMap<u32, Coming>,
    /// Bytes of calls that come, or came and were not taken; and how many of these.
    kept: usize,
    untaken: usize,
    /// Calls that came and have no reply.
    owed: BTreeSet<u64>,
    /// What this end asked.
    awaits: BTreeSet<u64>,
    heard: Time,
    used: Time,
    pub(super) doubt: Option<Doubt>,
    /// Until when an acknowledgement waits.
    waits: Option<Time>,
}

impl Talk {
    pub(super) fn new(terms: Terms, now: Time) -> Talk {
        let ((here, ours), (there, theirs)) = (terms.here, terms.there);
        let sends = Identity { here, there, first: ours };
        let receives = Identity { here, there, first: theirs };
        Talk {
            sender: Sender::new(terms.settings, sends, ROOM),
            receiver: Receiver::new(terms.settings, receives, now),
            terms,
            waiting: VecDeque::new(),
            said: 0,
            gone: 0,
            coming: BTreeMap::new(),
            kept: 0,
            untaken: 0,
            owed: BTreeSet::new(),
            awaits: BTreeSet::new(),
            heard: now,
            used: now,
            doubt: None,
            waits: None,
        }
    }

    /// The acknowledgement that is due, if it is to go now: as it must not wait, or has waited, of
    /// which half is enough where something `goes` anyway.
    pub(super) fn acknowledgement(&mut self, goes: bool, now: Time) -> Option<Packet<'static>> {
        if self.receiver.may_wait() {
            let until = *self.waits.get_or_insert_with(|| now.after(ALONG));
            let enough = if goes { now.after(ALONG / 2) } else { now };
            if enough < until {
                return None;
            }
        }
        self.waits = None;
        self.receiver.poll()
    }

    /// Sends a message, in its turn.
    pub(super) fn say(&mut self, message: Vec<u8>, now: Time) {
        self.say_as((0, 0), message, now);
    }

    fn say_as(&mut self, write: (u64, u32), message: Vec<u8>, now: Time) {
        // A probe is empty, and no use.
        if !message.is_empty() {
            self.used = now;
        }
        self.waiting.push_back((write, message));
        self.said += 1;
        self.fill();
    }

    /// Asks something, and the call ends if the conversation does; or goes on with what it asked.
    pub(super) fn go(&mut self, waits: Waits, now: Time) {
        if waits.asks {
            self.awaits.insert(waits.call);
        }
        self.say_as(waits.write, waits.message, now);
    }

    /// Whether that is awaited.
    pub(super) fn awaits(&self, call: u64) -> bool {
        self.awaits.contains(&call)
    }

    /// A call has a reply; false if it had one, or never was.
    pub(super) fn reply(&mut self, call: u64, reply: &[u8], now: Time) -> bool {
        if !self.owed.remove(&call) && !planted::is(Fault::ReplyTwice) {
            return false;
        }
        let mut message = CallHead { call, is_reply: true }.emit().to_vec();
        // Who asked finds that an empty one is none, instead of waiting for ever.
        if message.len() + reply.len() <= self.terms.settings.message_bytes {
            message.extend_from_slice(reply);
        }
        self.say(message, now);
        true
    }

    /// Nobody waits for `call` any more.
    pub(super) fn forget(&mut self, call: u64) {
        self.awaits.remove(&call);
    }

    /// A call was taken by who answers it.
    pub(super) fn taken(&mut self, bytes: usize) {
        self.untaken = self.untaken.saturating_sub(1);
        self.kept = self.kept.saturating_sub(bytes);
    }

    /// The sender takes what it has room for.
    fn fill(&mut self) {
        while let Some((write, message)) = self.waiting.pop_front() {
            let is_short = message.len() <= self.terms.settings.payload;
            let kind = match write {
                (_, 0) if is_short => Kind::Send,
                (address, key) => Kind::Write { address, key },
            };
            match self.sender.push(kind, message) {
                Ok(_) => {}
                Err(Refused::Full(message) | Refused::Dead(message)) => {
                    return self.waiting.push_front((write, message));
                }
                // Not longer than a message may be: who asks and replies looked.
                Err(Refused::TooLong(_)) => {}
            }
        }
    }

    /// Something of this conversation came.
    pub(super) fn hears(&mut self, now: Time) {
        self.heard = now;
        self.doubt = None;
        self.terms.proof = None;
    }

    /// Packets of it went.
    pub(super) fn went(&mut self, now: Time) {
        if let Some(doubt) = &mut self.doubt {
            doubt.since.get_or_insert(now);
            doubt.tries += 1;
        }
    }

    /// An acknowledgement.
    pub(super) fn acknowledged(&mut self, packet: &Packet<'_>, now: Time) {
        self.sender.receive(packet, now);
        while self.sender.ended().is_some() {
            self.gone += 1;
        }
        self.fill();
    }

    /// Whose room the message needs that `packet` begins.
    pub(super) fn room_for(&self, packet: &Packet<'_>, calls: &Calls) -> Room {
        if !packet.opcode.is_first() || self.coming.contains_key(&packet.psn.raw()) {
            return Room::Here(true);
        }
        if let Some(stream) = streams::goes_on(self.terms.peer, packet) {
            return Room::Stream(stream);
        }
        let is_behind = self.waiting.len() >= BACKLOG_MAX;
        match MessageKind::of(packet.payload) {
            Some(MessageKind::Request) if !is_behind => Room::Target,
            Some(MessageKind::Request) => Room::Here(false),
            Some(MessageKind::Call) if !self.is_reply(packet, calls) => {
                let bytes = match packet.extension {
                    Extension::Write { bytes, .. } => bytes as usize,
                    _ => packet.payload.len(),
                };
                let is_full = self.untaken >= UNTAKEN_MAX
                    || self.owed.len() >= OWED_MAX
                    || self.kept > 0 && self.kept + bytes > UNTAKEN_BYTES_MAX;
                Room::Here(!is_full && !is_behind)
            }
            _ => Room::Here(true),
        }
    }

    fn is_reply(&self, packet: &Packet<'_>, calls: &Calls) -> bool {
        matches!(self.head_of(packet.payload, calls), Some((Head::Reply(_), _)))
    }

    /// The head of a message that is kept, and its length; none if nobody wants it.
    fn head_of(&self, first: &[u8], calls: &Calls) -> Option<(Head, usize)> {
        let wanted = |call: u64, asked| {
            let is_ours = self.awaits.contains(&call) || planted::is(Fault::AnyReply);
            is_ours && calls.waits(call, asked)
        };
        match MessageKind::of(first)? {
            MessageKind::Request => None,
            MessageKind::Answer => {
                let answer = Answer::parse(first.get(..ANSWER_LEN)?).ok()?;
                let is_wanted = wanted(answer.request, Asked::Request);
                is_wanted.then_some((Head::Answer(answer), ANSWER_LEN))
            }
            MessageKind::Call => {
                let (head, _) = CallHead::parse(first.get(..CALL_HEAD_LEN)?).ok()?;
                let head = match head.is_reply {
                    true => Head::Reply(head.call),
                    false => Head::Call(head.call),
                };
                let is_wanted = match head {
                    Head::Reply(call) => wanted(call, Asked::Call),
                    Head::Call(call) => !self.owed.contains(&call),
                    Head::Answer(_) => false,
                };
                is_wanted.then_some((head, CALL_HEAD_LEN))
            }
        }
    }

    /// A packet of a message.
    pub(super) fn given(&mut self, given: &Given<'_>, calls: &mut Calls, now: Time) -> Came {
        let name = given.message.raw();
        if let Some(header) = given.header {
            let len = header.bytes as usize;
            let is_part = Part::of(self.terms.peer, &header) != Part::None;
            let coming = match (MessageKind::of(given.payload), self.head_of(given.payload, calls))
            {
                _ if is_part => Coming::Request,
                (Some(MessageKind::Request), _) => Coming::Request,
                (_, Some((head, skip))) => {
                    // What was asked for has its place at once; what a call says of its length
                    // makes nobody allocate.
                    let expected = if matches!(head, Head::Call(_)) { 0 } else { len };
                    let bytes = Vec::with_capacity(expected);
                    Coming::Kept { head, skip, bytes, len }
                }
                _ => Coming::Dropped,
            };
            if let Coming::Kept { head: Head::Call(call), .. } = coming {
                self.kept += len;
                self.owed.insert(call);
            }
            self.coming.insert(name, coming);
            if len > 0 {
                self.used = now;
            }
        }
        match self.coming.get_mut(&name) {
            Some(Coming::Request) => {
                if given.completes {
                    self.coming.remove(&name);
                }
                return Came::Target;
            }
            Some(Coming::Kept { skip, bytes, .. }) => {
                let at = given.offset as usize;
                if let Some(payload) = given.payload.get(skip.saturating_sub(at)..) {
                    place(bytes, at.saturating_sub(*skip), payload);
                }
            }
            Some(Coming::Dropped) | None => {}
        }
        if !given.completes {
            return Came::Nothing;
        }
        match self.coming.remove(&name) {
            Some(Coming::Kept { head, skip, bytes, len }) if bytes.len() + skip == len => {
                self.whole(head, bytes, calls)
            }
            Some(Coming::Dropped) if given.offset == 0 && given.payload.is_empty() => Came::Nothing,
            _ => Came::Dropped,
        }
    }

    /// A message that was kept is whole.
    fn whole(&mut self, head: Head, bytes: Vec<u8>, calls: &mut Calls) -> Came {
        let (call, outcome) = match head {
            Head::Call(call) => {
                self.untaken += 1;
                // The head was counted, too, until now.
                self.kept = self.kept.saturating_sub(CALL_HEAD_LEN);
                return Came::Call(call, bytes);
            }
            Head::Reply(call) => (call, Outcome::Replied(bytes)),
            Head::Answer(answer) if answer.data as usize == bytes.len() => {
                (answer.request, Outcome::Answered(answer, bytes))
            }
            Head::Answer(_) => return Came::Dropped,
        };
        if !self.awaits.remove(&call) && !planted::is(Fault::AnyReply) {
            return Came::Dropped;
        }
        calls.end(call, outcome);
        Came::Nothing
    }

    /// Whether nothing is under way in it.
    pub(super) fn is_quiet(&self) -> bool {
        self.awaits.is_empty() && self.owed.is_empty() && self.coming.is_empty() && self.is_said()
    }

    /// Whether all that was to be said was acknowledged.
    fn is_said(&self) -> bool {
        self.waiting.is_empty() && self.sender.is_empty()
    }

    /// Whether it is so long ago that it was of use.
    pub(super) fn is_idle(&self, now: Time) -> bool {
        self.is_quiet() && now >= self.used.after(IDLE)
    }

    pub(super) fn awaits_something(&self) -> bool {
        !self.awaits.is_empty()
    }

    /// Asks for a sign of life, unless something that flies does.
    pub(super) fn probe(&mut self, now: Time) {
        if self.is_said() {
            self.say(Vec::new(), now);
        }
    }

    /// Probes if something is awaited, and nothing was heard for so long.
    pub(super) fn probe_if_silent(&mut self, within: Duration, now: Time) {
        if self.awaits_something() && now >= self.heard.after(within) {
            self.probe(now);
        }
    }

    /// When it has something to do, if nothing comes before.
    pub(super) fn deadline(&self, within: Duration) -> Option<Time> {
        let is_silent = self.awaits_something() && self.is_said();
        [
            self.sender.deadline(),
            self.receiver.deadline(),
            self.waits,
            is_silent.then(|| self.heard.after(within)),
            self.is_quiet().then(|| self.used.after(IDLE)),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// It ends: the calls it awaited, and the requests that never complete.
    pub(super) fn end(self) -> (BTreeSet<u64>, Vec<Psn>) {
        let requests = self.coming.into_iter();
        let requests = requests.filter(|(_, coming)| matches!(coming, Coming::Request));
        (self.awaits, requests.map(|(name, _)| Psn::new(name)).collect())
    }

    /// Which way its packets go, from `ours`.
    pub(super) fn route_from(&self, ours: SocketAddrV4) -> Route {
        Route {
            source: ours.ip().octets(),
            source_port: ours.port(),
            destination: self.terms.address.ip().octets(),
        }
    }
}

/// Whether a packet of a flow may have `opcode`.
pub(super) fn is_of_flow(opcode: Opcode) -> bool {
    opcode == Opcode::Acknowledge || carries(opcode)
}
