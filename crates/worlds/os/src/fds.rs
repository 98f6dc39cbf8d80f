//! Where a link's descriptors lie in the table of their process.
//!
//! A library inside somebody else's program must keep its descriptors out of the way: a shell puts
//! files on low numbers of its own choosing. So they can be kept above a floor, and named to who
//! guards them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Numbers above the floor that are remembered.
const SPAN: usize = 64;

static FLOOR: AtomicI32 = AtomicI32::new(0);
/// Bit n: `FLOOR + n` was given to a link.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// Descriptors of links made from now on are at `floor` or above. For a whole process, once.
pub fn keep_above(floor: RawFd) {
    FLOOR.store(floor, Ordering::Release);
}

/// Whether `fd` is a link's, or was.
#[must_use]
pub fn is_ours(fd: RawFd) -> bool {
    bit(fd).is_some_and(|bit| GIVEN.load(Ordering::Acquire) & bit != 0)
}

/// The descriptors that are a link's, or were, in order.
#[must_use]
pub fn ours() -> Vec<RawFd> {
    named(GIVEN.load(Ordering::Acquire))
}

/// Forgets which descriptors are a link's, and names them: for a process that was forked off and
/// has copies of them.
#[must_use]
pub fn take_ours() -> Vec<RawFd> {
    named(GIVEN.swap(0, Ordering::AcqRel))
}

fn named(given: u64) -> Vec<RawFd> {
    let floor = FLOOR.load(Ordering::Acquire);
    (floor..).take(SPAN).filter(|fd| bit(*fd).is_some_and(|bit| given & bit != 0)).collect()
}

fn bit(fd: RawFd) -> Option<u64> {
    let floor = FLOOR.load(Ordering::Acquire);
    let place = u32::try_from(fd.checked_sub(floor)?).ok()?;
    (floor > 0 && (place as usize) < SPAN).then(|| 1 << place)
}

/// Moves a link's descriptor above the floor.
pub fn lift(fd: OwnedFd) -> io::Result<OwnedFd> {
    let floor = FLOOR.load(Ordering::Acquire);
    if floor <= 0 || fd.as_raw_fd() >= floor {
        return Ok(fd);
    }
    let lifted = rustix::io::fcntl_dupfd_cloexec(&fd, floor)?;
    if let Some(bit) = bit(lifted.as_raw_fd()) {
        GIVEN.fetch_or(bit, Ordering::AcqRel);
    }
    Ok(lifted)
}
