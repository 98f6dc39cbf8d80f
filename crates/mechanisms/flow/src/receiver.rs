//! The end that gives messages to what is above it.
//!
//! It keeps no payload: a packet is given as it comes, or dropped and sent again. So a packet whose
//! message's first packet has not come is dropped (`Early`), and the sender, which knows what that
//! first packet was, sends them all again. What it keeps is a descriptor for each live message, and
//! a bit for each packet of the window.

use std::time::Duration;

use outboard_base::Time;
use outboard_wire::roce::{Extension, Opcode, Packet, Psn};

use crate::{
    Identity, Settings, Syndrome,
    planted::{self, Fault},
    window::{Numbers, WINDOW_MAX},
};

/// A packet this far behind a missing one says that it is lost, and not late.
const REORDER: i32 = 3;
/// How long a sender waits that was refused.
const NOT_READY: Duration = Duration::from_micros(640);

/// What the first packet says of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// A write's address and key, if it is no SEND.
    pub write: Option<(u64, u32)>,
    /// Bytes of the message.
    pub bytes: u32,
}

/// What a packet brings. Above, the header is handled first, then the payload, then the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given<'a> {
    /// Which live message: the number of its first packet.
    pub message: Psn,
    /// If it is the first packet.
    pub header: Option<Header>,
    /// Where in the message the payload begins.
    pub offset: u32,
    /// The bytes, still in the datagram.
    pub payload: &'a [u8],
    /// Nothing of the message is missing any more.
    pub completes: bool,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// It is new.
    Given(Given<'a>),
    /// It was given before; it is acknowledged again.
    Duplicate,
    /// It came before its message's first packet.
    Early,
    /// It begins a message that there is no room for; the sender is told.
    NotReady,
    /// It is beyond the window, or of another flow or life.
    Stray,
    /// It is against the rules; the flow is dead, and the sender is told.
    Invalid,
    /// The flow was given up before; the sender is told.
    Closed,
}

/// A live message.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    first: Psn,
    packets: u32,
    got: u32,
    bytes: u32,
}

/// Bytes one live message costs.
#[cfg(test)]
pub(crate) const DESCRIPTOR: usize = size_of::<Descriptor>();

/// The receiving end of a flow.
#[derive(Debug)]
pub struct Receiver {
    settings: Settings,
    identity: Identity,
    /// The first packet that is missing.
    expected: Psn,
    /// Packets behind it that are here.
    here: Numbers,
    live: Vec<Descriptor>,
    /// Messages completed, 24 bits.
    completed: Psn,
    /// What is to be said, once asked.
    due: Option<Syndrome>,
    /// It must not wait for something that it could go with.
    is_urgent: bool,
    /// New packets since something was said.
    unsaid: u32,
    over: Option<Syndrome>,
    heard: Time,
}

impl Receiver {
    /// A receiver of packets that begin with `identity.first`; all it will ever allocate is
    /// allocated here.
    #[must_use]
    pub fn new(settings: Settings, identity: Identity, now: Time) -> Receiver {
        let settings = Settings { window: settings.window.clamp(1, WINDOW_MAX), ..settings };
        Receiver {
            live: Vec::with_capacity(settings.messages as usize),
            settings,
            identity,
            expected: identity.first,
            here: Numbers::default(),
            completed: Psn::new(0),
            due: None,
            is_urgent: false,
            unsaid: 0,
            over: None,
            heard: now,
        }
    }

    /// Messages that have begun and neither completed nor been cleaned up.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Takes a packet that is no acknowledgement. `has_room` says whether the layer above would
    /// take one more message.
    pub fn receive<'a>(&mut self, packet: &Packet<'a>, now: Time, has_room: bool) -> Received<'a> {
        if packet.queue != self.identity.here && !planted::is(Fault::AnyLife) {
            return Received::Stray;
        }
        if let Some(over) = self.over {
            (self.due, self.is_urgent) = (Some(over), true);
            return Received::Closed;
        }
        let ahead = if planted::is(Fault::NoWrap) {
            packet.psn.raw().cast_signed() - self.expected.raw().cast_signed()
        } else {
            packet.psn.ahead_of(self.expected)
        };
        if ahead >= self.settings.window.cast_signed() {
            return Received::Stray;
        }
        self.heard = now;
        let is_known = ahead < 0 || self.here.has(packet.psn);
        if is_known && !planted::is(Fault::GivenTwice) {
            self.acknowledge(ahead);
            self.is_urgent = true;
            return Received::Duplicate;
        }
        let (received, is_due) = match self.find(packet, has_room) {
            Ok(at) => (self.give(packet, at), packet.asks || ahead >= REORDER),
            Err(received) => (received, true),
        };
        self.unsaid += 1;
        let is_new = matches!(received, Received::Given(_));
        self.is_urgent |= is_due && (!is_new || ahead > 0 || self.unsaid >= self.settings.soon());
        match received {
            Received::NotReady => self.due = Some(Syndrome::NotReady { wait: NOT_READY }),
            Received::Invalid => self.end(Syndrome::Invalid),
            _ if is_due => {
                self.acknowledge(if received == Received::Early { REORDER } else { ahead })
            }
            _ => {}
        }
        received
    }

    /// The acknowledgement that is due, if one is. Asked once for a batch of packets, it answers
    /// them all.
    pub fn poll(&mut self) -> Option<Packet<'static>> {
        let syndrome = self.due.take()?;
        (self.is_urgent, self.unsaid) = (false, 0);
        let psn = match syndrome {
            Syndrome::Acknowledged { .. } => self.expected.plus(u32::MAX),
            _ => self.expected,
        };
        Some(Packet {
            opcode: Opcode::Acknowledge,
            solicited: false,
            asks: false,
            queue: self.identity.there,
            psn,
            extension: Extension::Answer {
                syndrome: syndrome.raw(),
                messages: self.completed.raw(),
            },
            payload: &[],
        })
    }

    /// Whether an acknowledgement is due that may wait for something to go with: a few packets came
    /// in their order.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        self.due.is_some() && !self.is_urgent
    }

    /// Whether something before `psn` is missing.
    #[must_use]
    pub(crate) fn is_ahead(&self, psn: Psn) -> bool {
        psn.ahead_of(self.expected) > 0
    }

    /// Whether the flow was given up, or a rule broken.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// When [`Receiver::cleanup`] has something to do, if nothing comes before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        (!self.live.is_empty()).then(|| self.heard.after(self.settings.silence))
    }

    /// A message that never completes: its sender has been silent for too long, or broke a rule.
    /// To be asked until there is none; the flow is given up then.
    pub fn cleanup(&mut self, now: Time) -> Option<Psn> {
        if self.over.is_none() {
            if self.deadline().is_none_or(|deadline| now < deadline) {
                return None;
            }
            self.end(Syndrome::Closed);
        }
        self.live.pop().map(|message| message.first)
    }

    fn end(&mut self, why: Syndrome) {
        self.over = Some(why);
        (self.due, self.is_urgent) = (Some(why), true);
    }

    /// Says what is here. What is said later includes what was to be said before, but a refusal
    /// stays: it is the only one that stops the sender.
    fn acknowledge(&mut self, ahead: i32) {
        if matches!(self.due, Some(Syndrome::NotReady { .. })) {
            return;
        }
        let is_missing = ahead >= REORDER;
        self.due = Some(match self.due {
            Some(Syndrome::Missing) => Syndrome::Missing,
            _ if is_missing => Syndrome::Missing,
            _ => Syndrome::Acknowledged { credits: self.settings.messages },
        });
    }

    /// The descriptor of the message that `packet` is of, made if it begins one.
    fn find(&mut self, packet: &Packet<'_>, has_room: bool) -> Result<usize, Received<'static>> {
        let of = |message: &Descriptor| {
            u32::try_from(packet.psn.ahead_of(message.first))
                .is_ok_and(|index| index < message.packets)
        };
        if let Some(at) = self.live.iter().position(of) {
            return Ok(at);
        }
        let bytes = match (packet.opcode, packet.extension) {
            (Opcode::WriteFirst | Opcode::WriteOnly, Extension::Write { bytes, .. }) => bytes,
            (Opcode::SendOnly, _) => u32::try_from(packet.payload.len()).unwrap_or(u32::MAX),
            (Opcode::WriteMiddle | Opcode::WriteLast, _) => return Err(Received::Early),
            _ => return Err(Received::Invalid),
        };
        let message = Descriptor {
            first: packet.psn,
            packets: self.settings.packets(bytes as usize),
            got: 0,
            bytes,
        };
        if bytes as usize > self.settings.message_bytes || self.is_taken(&message) {
            return Err(Received::Invalid);
        }
        let is_full = self.live.len() >= self.settings.messages as usize || !has_room;
        if is_full && !planted::is(Fault::NoRefusal) {
            return Err(Received::NotReady);
        }
        self.live.push(message);
        Ok(self.live.len() - 1)
    }

    /// Whether a packet that `message` would have after its first is here, or begins another.
    fn is_taken(&self, message: &Descriptor) -> bool {
        let rest = message.packets - 1;
        let second = message.first.plus(1);
        // Behind the window nothing has come.
        let near = self.expected.plus(self.settings.window).ahead_of(second);
        let near = u32::try_from(near).unwrap_or(0).min(rest);
        self.here.first(second, near).is_some()
    }

    /// Gives a packet of the message `at`, if it is the one that should be there.
    fn give<'a>(&mut self, packet: &Packet<'a>, at: usize) -> Received<'a> {
        let Some(message) = self.live.get_mut(at) else { return Received::Invalid };
        let index = packet.psn.ahead_of(message.first).cast_unsigned();
        let is_last = index + 1 == message.packets;
        let offset = u64::from(index) * self.settings.payload as u64;
        let len = (u64::from(message.bytes) - offset).min(self.settings.payload as u64);
        let is_fit = carries(packet.opcode)
            && packet.opcode.is_first() == (index == 0)
            && packet.opcode.is_last() == is_last
            && packet.payload.len() as u64 == len;
        if !is_fit {
            // Above, nobody knows of a message whose first packet was wrong: there is nothing to
            // clean up.
            if message.got == 0 {
                self.live.swap_remove(at);
            }
            return Received::Invalid;
        }
        let header = (index == 0).then_some(Header {
            write: match packet.extension {
                Extension::Write { address, key, .. } => Some((address, key)),
                _ => None,
            },
            bytes: message.bytes,
        });
        message.got += 1;
        let is_early = planted::is(Fault::CompletedEarly) && is_last;
        let completes = message.got == message.packets || is_early;
        let given = Given {
            message: message.first,
            header: header.filter(|_| !planted::is(Fault::HeaderLate) || completes),
            // It fits: it is below the message's bytes.
            offset: u32::try_from(offset).unwrap_or(u32::MAX),
            payload: packet.payload,
            completes,
        };
        if completes {
            self.live.swap_remove(at);
            if !planted::is(Fault::CreditLeak) {
                self.completed = self.completed.plus(1);
            }
        }
        self.here.insert(packet.psn);
        while self.here.has(self.expected) {
            self.here.remove(self.expected);
            self.expected = self.expected.plus(1);
        }
        Received::Given(given)
    }
}

/// Whether packets of messages have `opcode`.
pub(crate) fn carries(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::SendOnly
            | Opcode::WriteFirst
            | Opcode::WriteMiddle
            | Opcode::WriteLast
            | Opcode::WriteOnly
    )
}
