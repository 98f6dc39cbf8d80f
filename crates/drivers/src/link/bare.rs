//! What the link is measured against: two processes and one word of shared memory, without a
//! protocol.
//!
//! Each side calls the same function on its mapping, one with [`Side::Ping`], the other with
//! [`Side::Pong`]; the pinging side takes the time. The words lie on cache lines of their own.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use outboard_link::Region;

use crate::futex;

/// Who begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Sends first, and takes the time.
    Ping,
    /// Answers.
    Pong,
}

const PING_AT: u64 = 0;
const PONG_AT: u64 = 128;
/// A partner that is silent for this long is gone.
const SILENCE: Duration = Duration::from_secs(10);

impl Side {
    fn words(self) -> (u64, u64) {
        match self {
            Side::Ping => (PING_AT, PONG_AT),
            Side::Pong => (PONG_AT, PING_AT),
        }
    }
}

/// Bounces a number `rounds` times, each side spinning for the other. The first number is `from +
/// 1`, so that one region serves several runs.
///
/// # Errors
/// `TimedOut` when the partner is silent.
pub fn spin(region: &Region, side: Side, from: u32, rounds: u32) -> io::Result<()> {
    bounce(
        region,
        side,
        from,
        rounds,
        |_| Ok(()),
        |theirs, wanted| {
            let limit = crate::clock::now().after(SILENCE);
            let mut looks = 0u32;
            while region.load_u32(theirs, Acquire).map_err(io::Error::other)? != wanted {
                std::hint::spin_loop();
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(1 << 16) && crate::clock::now() >= limit {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Ok(())
        },
    )
}

/// The same with both sides asleep on a futex while they wait.
///
/// # Errors
/// `TimedOut` when the partner is silent.
pub fn futex(region: &Region, side: Side, from: u32, rounds: u32) -> io::Result<()> {
    let wake = |mine| futex::wake(region, mine, 1).map(drop);
    bounce(region, side, from, rounds, wake, |theirs, wanted| {
        loop {
            let seen = region.load_u32(theirs, Acquire).map_err(io::Error::other)?;
            if seen == wanted {
                return Ok(());
            }
            if futex::wait(region, theirs, seen, SILENCE)? == futex::Woken::TimedOut {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    })
}

fn bounce(
    region: &Region,
    side: Side,
    from: u32,
    rounds: u32,
    wake: impl Fn(u64) -> io::Result<()>,
    mut wait: impl FnMut(u64, u32) -> io::Result<()>,
) -> io::Result<()> {
    let (mine, theirs) = side.words();
    for round in 1..=rounds {
        let number = from.wrapping_add(round);
        if side == Side::Pong {
            wait(theirs, number)?;
        }
        region.store_u32(mine, number, Release).map_err(io::Error::other)?;
        wake(mine)?;
        if side == Side::Ping {
            wait(theirs, number)?;
        }
    }
    Ok(())
}
