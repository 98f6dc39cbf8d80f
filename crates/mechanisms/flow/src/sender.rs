//! The end that cuts messages into packets, and sends each until it was acknowledged.
//!
//! Numbers are given out when a message is taken, so the packet of a number is known without a
//! table. Which packets are to be sent again is a bit each: all of them when the timer ends, one
//! when the receiver says that it is missing, and all of its message when that one was the first,
//! as the receiver has dropped the others.

use std::{collections::VecDeque, time::Duration};

use outboard_base::Time;
use outboard_wire::roce::{Extension, Opcode, Packet, Psn};

use crate::{
    Dead, Identity, Settings, Syndrome,
    planted::{self, Fault},
    syndrome,
    window::{Numbers, WINDOW_MAX},
};

/// Every so many packets one asks to be acknowledged, if none does for another reason.
const ASK_EVERY: u32 = 16;
/// Packets of messages that were taken, at most: half of what two numbers can be apart.
const PACKETS_MAX: u32 = 1 << 22;

/// How a message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As a SEND, which says nothing of its length: one packet.
    Send,
    /// As a WRITE: of any length, with what its header says beside.
    Write {
        /// As the receiver counts.
        address: u64,
        /// For which of its regions.
        key: u32,
    },
}

/// A message that was not taken, with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused<B> {
    /// As many wait as may; some end first.
    Full(B),
    /// It is longer than its kind, or any message, may be.
    TooLong(B),
    /// The flow is dead.
    Dead(B),
}

/// A message that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended<B> {
    /// What [`Sender::push`] called it.
    pub message: u64,
    /// Its bytes, given back.
    pub bytes: B,
    /// Whether all of it was acknowledged; if not, nobody knows how much came.
    pub result: Result<(), Dead>,
}

#[derive(Debug)]
struct Message<B> {
    name: u64,
    first: Psn,
    packets: u32,
    kind: Kind,
    bytes: B,
}

/// The sending end of a flow.
#[derive(Debug)]
pub struct Sender<B> {
    settings: Settings,
    identity: Identity,
    /// Messages not ended, in order; its room is what it was made with.
    messages: VecDeque<Message<B>>,
    taken: u64,
    /// The first number not acknowledged, the next to be sent, the next to be given out.
    acknowledged: Psn,
    next: Psn,
    tail: Psn,
    flying_bytes: usize,
    again: Numbers,
    /// Messages begun, and how many may; 24 bits.
    begun: Psn,
    limit: Psn,
    /// What the receiver said last of how many may begin beyond those completed.
    credits: u32,
    expires: Option<Time>,
    /// No packet before then: the receiver has no room.
    paused: Option<Time>,
    /// The packet whose acknowledgement is timed.
    timed: Option<(Psn, Time)>,
    /// Smoothed round trip and its variance.
    trip: Option<(Duration, Duration)>,
    rto: Duration,
    tries: u32,
    refusals: u32,
    /// What was said to be missing last, and when.
    missing: Option<(Psn, Time)>,
    dead: Option<Dead>,
    resent: u64,
}

impl<B: AsRef<[u8]>> Sender<B> {
    /// A sender that takes `room` messages at a time.
    #[must_use]
    pub fn new(settings: Settings, identity: Identity, room: usize) -> Sender<B> {
        let window = settings.window.clamp(1, WINDOW_MAX);
        Sender {
            settings: Settings { window, ..settings },
            identity,
            messages: VecDeque::with_capacity(room),
            taken: 0,
            acknowledged: identity.first,
            next: identity.first,
            tail: identity.first,
            flying_bytes: 0,
            again: Numbers::default(),
            begun: Psn::new(0),
            limit: Psn::new(syndrome::said(settings.messages)),
            credits: syndrome::said(settings.messages),
            expires: None,
            paused: None,
            timed: None,
            trip: None,
            rto: settings.timer.0,
            tries: 0,
            refusals: 0,
            missing: None,
            dead: None,
            resent: 0,
        }
    }

    /// Takes a message to send, and says what it is called.
    ///
    /// # Errors
    /// [`Refused`], with its bytes.
    pub fn push(&mut self, kind: Kind, bytes: B) -> Result<u64, Refused<B>> {
        let len = bytes.as_ref().len();
        let packets = self.settings.packets(len);
        let is_long = len > self.settings.message_bytes || u32::try_from(len).is_err();
        if is_long || kind == Kind::Send && packets > 1 {
            return Err(Refused::TooLong(bytes));
        }
        if self.dead.is_some() {
            return Err(Refused::Dead(bytes));
        }
        let waiting = self.tail.ahead_of(self.acknowledged).cast_unsigned();
        let is_full = self.messages.len() >= self.messages.capacity();
        if is_full || waiting.saturating_add(packets) > PACKETS_MAX {
            return Err(Refused::Full(bytes));
        }
        let name = self.taken;
        self.taken += 1;
        self.messages.push_back(Message { name, first: self.tail, packets, kind, bytes });
        self.tail = self.tail.plus(packets);
        Ok(name)
    }

    /// The next packet to send now, if there is one; its payload is the message's own bytes.
    pub fn poll(&mut self, now: Time) -> Option<Packet<'_>> {
        if self.dead.is_some() || self.paused.is_some_and(|until| now < until) {
            return None;
        }
        if self.paused.take().is_some() {
            self.all_again();
        }
        if self.expires.is_some_and(|expires| expires <= now) && !self.timer_ended() {
            return None;
        }
        let count = self.flying();
        let missed = self.again.first(self.acknowledged, count);
        let psn = if let Some(psn) = missed {
            self.again.remove(psn);
            self.timed = None;
            self.resent += 1;
            psn
        } else {
            self.fresh(now)?
        };
        self.expires.get_or_insert_with(|| now.after(self.rto));
        let is_blocked = self.is_full(self.settings.payload);
        let (index, message) = self.message_of(psn)?;
        let mut packet = cut(message, index, &self.settings);
        packet.queue = self.identity.there;
        packet.asks = packet.opcode.is_last()
            || missed.is_some()
            || is_blocked
            || psn.raw().is_multiple_of(ASK_EVERY);
        Some(packet)
    }

    /// Takes an acknowledgement.
    pub fn receive(&mut self, packet: &Packet<'_>, now: Time) {
        let Extension::Answer { syndrome, messages } = packet.extension else { return };
        let is_ours = packet.opcode == Opcode::Acknowledge && packet.queue == self.identity.here;
        let Some(syndrome) = Syndrome::parse(syndrome).filter(|_| is_ours) else { return };
        let upto = match syndrome {
            Syndrome::Acknowledged { .. } => packet.psn.plus(1),
            _ => packet.psn,
        };
        let moved = upto.ahead_of(self.acknowledged);
        // One that was late says nothing new, one beyond what was sent is not the receiver's.
        if moved < 0 || upto.ahead_of(self.next) > 0 || self.dead.is_some() {
            return;
        }
        self.progress(upto, moved.cast_unsigned(), now);
        if let Syndrome::Acknowledged { credits } = syndrome {
            self.credits = credits;
        }
        // Whatever an answer says else, it may be the only one that says how many completed.
        let limit = Psn::new(messages).plus(self.credits);
        if limit.ahead_of(self.limit) > 0 {
            self.limit = limit;
        }
        match syndrome {
            Syndrome::Acknowledged { .. } => {}
            Syndrome::Missing => self.missing(upto, now),
            Syndrome::NotReady { wait } => self.not_ready(wait, now),
            Syndrome::Invalid => self.dead = Some(Dead::Invalid),
            Syndrome::Closed => self.dead = Some(Dead::Closed),
        }
    }

    /// The next message that ended, in the order they were taken.
    pub fn ended(&mut self) -> Option<Ended<B>> {
        let front = self.messages.front()?;
        let is_done = self.acknowledged.ahead_of(front.first.plus(front.packets)) >= 0;
        let result = if is_done { Ok(()) } else { Err(self.dead?) };
        let Message { name, bytes, .. } = self.messages.pop_front()?;
        Some(Ended { message: name, bytes, result })
    }

    /// When [`Sender::poll`] has something to do, if nothing comes before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.paused.or(self.expires).filter(|_| self.dead.is_none())
    }

    /// Why the flow is dead, if it is.
    #[must_use]
    pub fn dead(&self) -> Option<Dead> {
        self.dead
    }

    /// Whether every message that was taken has ended and was told so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Packets sent and not acknowledged.
    #[must_use]
    pub fn flying(&self) -> u32 {
        self.next.ahead_of(self.acknowledged).cast_unsigned()
    }

    /// Packets that were sent once more, so far.
    #[must_use]
    pub fn resent(&self) -> u64 {
        self.resent
    }

    /// Whether `more` bytes have no place in the window.
    fn is_full(&self, more: usize) -> bool {
        let flying = self.flying();
        let has_bytes = flying == 0 || self.flying_bytes + more <= self.settings.window_bytes;
        (flying >= self.settings.window || !has_bytes)
            && (!planted::is(Fault::NoWindow) || flying >= WINDOW_MAX - 1)
    }

    /// A packet that was not sent before, if windows and credits allow one.
    fn fresh(&mut self, now: Time) -> Option<Psn> {
        let psn = self.next;
        let (index, message) = self.message_of(psn)?;
        let len = cut(message, index, &self.settings).payload.len();
        let may_begin = index != 0 || self.limit.ahead_of(self.begun) > 0;
        if !may_begin || self.is_full(len) {
            return None;
        }
        if index == 0 {
            self.begun = self.begun.plus(1);
        }
        self.flying_bytes += len;
        self.next = psn.plus(1);
        self.timed.get_or_insert((psn, now));
        Some(psn)
    }

    /// The message that `psn` is of, and which of its packets it is.
    fn message_of(&self, psn: Psn) -> Option<(u32, &Message<B>)> {
        let behind = self.messages.partition_point(|message| psn.ahead_of(message.first) >= 0);
        let message = self.messages.get(behind.checked_sub(1)?)?;
        let index = psn.ahead_of(message.first).cast_unsigned();
        (index < message.packets).then_some((index, message))
    }

    /// Marks all that flies to be sent again.
    fn all_again(&mut self) {
        for ahead in 0..self.flying() {
            if !planted::is(Fault::NotAgain) {
                self.again.insert(self.acknowledged.plus(ahead));
            }
        }
    }

    /// Sends all again, more slowly; false if that was tried often enough.
    fn timer_ended(&mut self) -> bool {
        self.tries += 1;
        if self.tries > self.settings.tries {
            self.dead = Some(Dead::Unanswered);
            return false;
        }
        self.rto = (self.rto * 2).min(self.settings.timer.1);
        self.expires = None;
        self.all_again();
        true
    }

    /// All before `upto` are acknowledged, `moved` of them for the first time.
    fn progress(&mut self, upto: Psn, moved: u32, now: Time) {
        if moved == 0 {
            return;
        }
        for ahead in 0..moved {
            let psn = self.acknowledged.plus(ahead);
            self.again.remove(psn);
            let len = self
                .message_of(psn)
                .map_or(0, |(index, message)| cut(message, index, &self.settings).payload.len());
            self.flying_bytes = self.flying_bytes.saturating_sub(len);
        }
        self.acknowledged = upto;
        if let Some((psn, sent)) = self.timed
            && upto.ahead_of(psn) > 0
        {
            self.timed = None;
            self.measured(now.since(sent));
        }
        (self.tries, self.refusals, self.missing) = (0, 0, None);
        self.rto = self.timer();
        self.expires = (self.flying() > 0).then(|| now.after(self.rto));
    }

    /// One more round trip, of a packet that was sent once (Karn; RFC 6298 has the weights).
    fn measured(&mut self, sample: Duration) {
        self.trip = Some(match self.trip {
            None => (sample, sample / 2),
            Some((mean, variance)) => {
                ((mean * 7 + sample) / 8, (variance * 3 + mean.abs_diff(sample)) / 4)
            }
        });
    }

    fn timer(&self) -> Duration {
        let (least, most) = self.settings.timer;
        self.trip.map_or(least, |(mean, variance)| mean + variance * 4).max(least).min(most)
    }

    /// The receiver has packets behind `psn`, but not this one. It says so for each of them; one
    /// in a round trip is enough.
    fn missing(&mut self, psn: Psn, now: Time) {
        let trip = self.trip.map_or(self.rto, |(mean, _)| mean);
        let is_said =
            self.missing.is_some_and(|(said, when)| said == psn && now < when.after(trip));
        if is_said || self.flying() == 0 || planted::is(Fault::NotAgain) {
            return;
        }
        self.missing = Some((psn, now));
        let Some((index, message)) = self.message_of(psn) else { return };
        let dropped = if index == 0 { message.packets } else { 1 };
        for ahead in 0..dropped.min(self.flying()) {
            self.again.insert(psn.plus(ahead));
        }
    }

    /// The receiver has no room: all waits, for longer each time.
    fn not_ready(&mut self, wait: Duration, now: Time) {
        if self.paused.is_some() || self.flying() == 0 {
            return;
        }
        self.refusals += 1;
        if self.refusals > self.settings.refusals {
            self.dead = Some(Dead::NotReady);
            return;
        }
        let wait = (wait * (1 << self.refusals.min(10))).min(self.settings.timer.1);
        self.paused = Some(now.after(wait));
        self.expires = None;
    }
}

/// The packet `index` of `message`, but for whom it is.
fn cut<'a, B: AsRef<[u8]>>(message: &'a Message<B>, index: u32, settings: &Settings) -> Packet<'a> {
    let bytes = message.bytes.as_ref();
    let begin = bytes.len().min(index as usize * settings.payload);
    let end = bytes.len().min(begin + settings.payload);
    let opcode = match (message.kind, index == 0, index + 1 == message.packets) {
        (Kind::Send, ..) => Opcode::SendOnly,
        (Kind::Write { .. }, true, true) => Opcode::WriteOnly,
        (Kind::Write { .. }, true, false) => Opcode::WriteFirst,
        (Kind::Write { .. }, false, false) => Opcode::WriteMiddle,
        (Kind::Write { .. }, false, true) => Opcode::WriteLast,
    };
    let extension = match message.kind {
        Kind::Write { address, key } if index == 0 => {
            Extension::Write { address, key, bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX) }
        }
        _ => Extension::None,
    };
    Packet {
        opcode,
        solicited: false,
        asks: false,
        queue: 0,
        psn: message.first.plus(index),
        extension,
        payload: bytes.get(begin..end).unwrap_or_default(),
    }
}
