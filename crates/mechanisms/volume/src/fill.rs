//! What `fallocate(2)` asks of any volume.

use outboard_base::{Errno, Result};

const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// What is done to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Space for the holes.
    Allocate,
    /// A hole.
    Punch,
    /// Zeros, with space.
    Zero,
}

impl Fill {
    /// What a mode asks for, and whether the size stays.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for what is not offered (collapsing, inserting, unsharing).
    pub fn of(mode: u32) -> Result<(Fill, bool)> {
        const PUNCH_AND_KEEP: u32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_AND_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
        Ok(match mode {
            0 => (Fill::Allocate, false),
            KEEP_SIZE => (Fill::Allocate, true),
            PUNCH_AND_KEEP => (Fill::Punch, true),
            ZERO_RANGE => (Fill::Zero, false),
            ZERO_AND_KEEP => (Fill::Zero, true),
            _ => return Err(Errno::EOPNOTSUPP),
        })
    }
}
