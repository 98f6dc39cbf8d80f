//! What an acknowledgement says in its one byte, with InfiniBand's numbers (volume 1, 9.7.5).
//!
//! ```text
//! 000 ccccc   acknowledged; credits: messages that may begin beyond those completed
//! 001 ttttt   no room for a message; ask again after t
//! 011 nnnnn   refused: 0 a packet before this one is missing, 1 invalid, 3 given up
//! ```
//!
//! Credits and waits are of one scale: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ... in messages, and in
//! hundredths of a millisecond. Credits are rounded down, waits up.

use std::time::Duration;

/// The byte's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All before and this packet are here; so many messages may begin beyond those completed.
    Acknowledged {
        /// How many.
        credits: u32,
    },
    /// All before this packet are here; there is no room for a message, ask again later.
    NotReady {
        /// When.
        wait: Duration,
    },
    /// All before this packet are here, it is not, and one behind it came.
    Missing,
    /// A packet was against the rules; the flow is dead.
    Invalid,
    /// The flow was given up.
    Closed,
}

/// The largest step of the scale: 31 means something else in both uses.
const LARGEST: u8 = 30;
const UNIT: Duration = Duration::from_micros(10);

/// 0, 1, 2, 3, 4, 6, 8, 12, ...: each power of two, and the one half above it.
fn scale(step: u8) -> u32 {
    match step {
        0 | 1 => u32::from(step),
        _ if step.is_multiple_of(2) => 1 << (step / 2),
        _ => 3 << (step / 2 - 1),
    }
}

/// As many of `credits` as can be said.
pub(crate) fn said(credits: u32) -> u32 {
    (0..=LARGEST).rev().map(scale).find(|said| *said <= credits).unwrap_or(0)
}

impl Syndrome {
    /// The byte.
    #[must_use]
    pub fn raw(self) -> u8 {
        match self {
            Syndrome::Acknowledged { credits } => {
                (0..=LARGEST).rev().find(|step| scale(*step) <= credits).unwrap_or(0)
            }
            Syndrome::NotReady { wait } => {
                // 0 would be InfiniBand's longest wait.
                let step = (1..=LARGEST).find(|step| UNIT * scale(*step) >= wait);
                0x20 | step.unwrap_or(LARGEST)
            }
            Syndrome::Missing => 0x60,
            Syndrome::Invalid => 0x61,
            Syndrome::Closed => 0x63,
        }
    }

    /// What `raw` says, if it says something a flow uses.
    #[must_use]
    pub fn parse(raw: u8) -> Option<Syndrome> {
        let step = raw & 0x1F;
        match raw >> 5 {
            0 if step <= LARGEST => Some(Syndrome::Acknowledged { credits: scale(step) }),
            1 if step != 0 && step <= LARGEST => {
                Some(Syndrome::NotReady { wait: UNIT * scale(step) })
            }
            3 => match step {
                0 => Some(Syndrome::Missing),
                1 => Some(Syndrome::Invalid),
                3 => Some(Syndrome::Closed),
                _ => None,
            },
            _ => None,
        }
    }
}
