//! Descriptors of a process: where a link's lie in its table, how many it may have, and what who
//! accepts connections does when they are short.
//!
//! A library inside somebody else's program must keep its descriptors out of the way: a shell puts
//! files on low numbers of its own choosing. So they can be kept above a floor, and named to who
//! guards them.
//!
//! Who listens cannot choose when there are no descriptors left: the connection waits in the
//! kernel, and its listener stays readable. So nobody is accepted for a moment, in which the
//! listener is not watched ([`Shortage`]); all else goes on.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use outboard_base::Time;
use rustix::process::{Resource, getrlimit, setrlimit};

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

/// Raises the soft limit of descriptors to the hard one, as far as that is allowed; the limit.
pub fn raise_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Who may not has what it had.
    let _kept = setrlimit(Resource::Nofile, limit);
    self::limit()
}

/// How many descriptors this process may have.
#[must_use]
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Descriptors that are taken where nobody can say how many there are.
const TAKEN: u64 = 64;

/// How many descriptors this process may open for connections. Some stay in reserve for its files:
/// an eighth of what is allowed, 32 to 256.
#[must_use]
pub fn room() -> u64 {
    let limit = limit();
    let taken = std::fs::read_dir("/proc/self/fd").map_or(TAKEN, |open| open.count() as u64);
    limit.saturating_sub(taken).saturating_sub((limit / 8).clamp(32, 256))
}

/// Who accepts connections found that it cannot: descriptors, or memory, are short.
#[derive(Debug, Default)]
pub struct Shortage {
    until: Option<Time>,
    said: Option<Time>,
}

impl Shortage {
    /// How long nobody is accepted.
    pub const PAUSE: Duration = Duration::from_millis(100);
    /// It is said again after so long.
    const SILENCE: Duration = Duration::from_secs(60);

    /// It begins: the listener is not to be watched until [`Shortage::ends`] says so. The log is
    /// told, once a minute at most, with what helps.
    pub fn begin(&mut self, now: Time, error: &io::Error) {
        self.until = Some(now.after(Shortage::PAUSE));
        if self.said.is_none_or(|said| now.since(said) >= Shortage::SILENCE) {
            self.said = Some(now);
            tracing::warn!(
                %error,
                limit = limit(),
                "cannot accept a connection: those there are go on, others wait; raise \
                 `ulimit -n` (LimitNOFILE of a service)"
            );
        }
    }

    /// When it is to be looked at again.
    #[must_use]
    pub fn until(&self) -> Option<Time> {
        self.until
    }

    /// Whether it is over at `now`; says so once.
    pub fn ends(&mut self, now: Time) -> bool {
        let ends = self.until.is_some_and(|until| now >= until);
        if ends {
            self.until = None;
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_ends_once_and_can_come_again() {
        let mut shortage = Shortage::default();
        let mut now = Time(1);
        assert!(!shortage.ends(now), "there is none");
        for _ in 0..3 {
            shortage.begin(now, &io::Error::other("no more"));
            assert!(!shortage.ends(now));
            let until = shortage.until().unwrap();
            assert!(shortage.ends(until) && !shortage.ends(until));
            now = until;
        }
    }

    #[test]
    fn some_descriptors_stay_in_reserve() {
        assert!(room() + 32 < raise_limit());
    }
}
