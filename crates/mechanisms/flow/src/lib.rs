//! Reliable messages over datagrams that are lost, doubled, late or changed (NetDFS sections II and
//! IV, checklist rows N2, N3, N9): the two ends of a flow, as machines.
//!
//! A [`Sender`] cuts messages into packets of a reliable connection ([`outboard_wire::roce`]) and
//! sends each until it was acknowledged; a [`Receiver`] gives what is above it every packet's
//! payload once: of a message the header first, then payloads in any order, then the completion.
//!
//! What always holds:
//! - a packet is given at most once, and only as it was sent;
//! - nothing of a message is given before its first packet, nothing after its completion;
//! - never more than [`Settings::window`] packets are unacknowledged, never more than
//!   [`Settings::messages`] messages are live at the receiver, and nothing is allocated per packet;
//! - every message ends: acknowledged, or its sender is told why not ([`Dead`]).
//!
//! No clock, socket or thread is here: time and datagrams come in as arguments. How, and why so:
//! `docs/internals/flow.md`.

#![forbid(unsafe_code)]

mod conversations;
mod net;
mod planted;
mod receiver;
mod sender;
mod syndrome;
#[cfg(test)]
mod tests;
mod window;

use std::time::Duration;

use outboard_wire::roce::{MTU_MAX, OVERHEAD, Psn};
use outboard_wire::shared::call::MESSAGE_MAX;

pub use conversations::Token;
pub use conversations::{Backlog, Config, Conversations, Incoming, Keys, NoTarget, Part};
pub use conversations::{Stream, Target};
pub use net::{Gone, Net};
pub use receiver::{Given, Header, Received, Receiver};
pub use sender::{Ended, Kind, Refused, Sender};
pub use syndrome::Syndrome;
pub use window::WINDOW_MAX;

/// What both ends of a flow have agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of payload in a packet that is not its message's last; a multiple of 4.
    pub payload: usize,
    /// Packets that may be unacknowledged at a time, [`WINDOW_MAX`] at most.
    pub window: u32,
    /// Bytes of payload that may be unacknowledged at a time; one packet always may.
    pub window_bytes: usize,
    /// Messages that may be live at the receiver at a time: its descriptors.
    pub messages: u32,
    /// Bytes of a message at most.
    pub message_bytes: usize,
    /// The retransmission timer's bounds: its first value and its last.
    pub timer: (Duration, Duration),
    /// Timers that end in a row before the flow is dead.
    pub tries: u32,
    /// Refusals in a row before it is: who refuses is there, so it may take longer.
    pub refusals: u32,
    /// How long live messages wait for a packet before they are cleaned up. Longer than the
    /// sender's last try, or a slow sender is cut off.
    pub silence: Duration,
}

impl Settings {
    /// For packets in frames of `mtu` bytes (what IPv4 may send at once: 1280 to 65,535), with all
    /// else as a local network wants it.
    #[must_use]
    pub fn of_mtu(mtu: usize) -> Settings {
        let payload = mtu.min(MTU_MAX + 28).saturating_sub(28 + OVERHEAD).max(4) & !3;
        Settings {
            payload,
            window: 128,
            window_bytes: 1 << 20,
            messages: 32,
            message_bytes: MESSAGE_MAX,
            timer: (Duration::from_millis(2), Duration::from_millis(200)),
            tries: 10,
            refusals: 64,
            silence: Duration::from_secs(5),
        }
    }

    /// After so many packets an acknowledgement waits for nothing: long before their sender does.
    pub(crate) fn soon(&self) -> u32 {
        (self.window.min(self.messages) / 4).clamp(1, 8)
    }

    /// How many packets `bytes` need; one at least.
    pub(crate) fn packets(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(self.payload.max(1))).unwrap_or(u32::MAX).max(1)
    }
}

/// Who a flow is: packets of an earlier life have another queue or number, and are dropped.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// This end, 24 bits chosen anew for each life.
    pub here: u32,
    /// The other end, chosen by it.
    pub there: u32,
    /// The number of the first packet of this direction, chosen by who sends it.
    pub first: Psn,
}

/// Why a flow carries nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dead {
    /// The other end did not acknowledge anything, whatever was tried.
    Unanswered,
    /// It had no room, whenever it was asked.
    NotReady,
    /// It has given the flow up, after silence.
    Closed,
    /// It says that what it got is against the rules.
    Invalid,
}
