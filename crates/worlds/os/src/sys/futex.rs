//! Sleeping on a word of shared memory, and waking who sleeps there.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use outboard_base::Deadline;
use outboard_link::Region;
use rustix::thread::futex;

/// Why a sleeper is up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Someone woke it, or a signal did, or the word had another value already.
    Up,
    /// The time ran out.
    TimedOut,
}

fn word(region: &Region, at: u64) -> io::Result<&AtomicU32> {
    let pointer = region.pointer(at, 4).map_err(io::Error::other)?.cast::<u32>();
    if !pointer.is_aligned() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: in bounds and aligned as just checked, mapped while `region` lives, which the
    // returned reference borrows; every access to the word, here and in `Region`, is atomic.
    Ok(unsafe { AtomicU32::from_ptr(pointer) })
}

/// Sleeps while the word at `at` is `expected`, at most for `timeout`. The word may belong to
/// another process too.
pub fn wait(region: &Region, at: u64, expected: u32, timeout: Duration) -> io::Result<Woken> {
    let timeout = futex::Timespec::try_from(timeout).map_err(io::Error::other)?;
    match futex::wait(word(region, at)?, futex::Flags::empty(), expected, Some(&timeout)) {
        Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(Woken::Up),
        Err(rustix::io::Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(error) => Err(error.into()),
    }
}

/// Most words [`wait_any`] takes (`FUTEX_WAITV_MAX`).
pub const WORDS_MAX: usize = 128;

/// Sleeps while each word at `at` is what it is expected to be, until `until`. Words beyond
/// [`WORDS_MAX`] are not watched.
pub fn wait_any(region: &Region, words: &[(u64, u32)], until: Deadline) -> io::Result<Woken> {
    let mut waits = Vec::with_capacity(words.len());
    for &(at, expected) in words.iter().take(WORDS_MAX) {
        let mut wait = futex::Wait::new();
        wait.val = u64::from(expected);
        wait.uaddr = futex::WaitPtr::new(word(region, at)?.as_ptr().cast());
        wait.flags = futex::WaitFlags::SIZE_U32;
        waits.push(wait);
    }
    let nanos = Duration::from_nanos(until.0);
    let until = futex::Timespec::try_from(nanos).map_err(io::Error::other)?;
    let flags = futex::WaitvFlags::empty();
    match futex::waitv(&waits, flags, Some(&until), futex::ClockId::Monotonic) {
        Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(Woken::Up),
        Err(rustix::io::Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(error) => Err(error.into()),
    }
}

/// Wakes at most `count` sleepers of the word at `at`; how many there were.
pub fn wake(region: &Region, at: u64, count: u32) -> io::Result<usize> {
    Ok(futex::wake(word(region, at)?, futex::Flags::empty(), count)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_sleeper_on_several_words_wakes_by_any_of_them() {
        let region = Region::anonymous(4096);
        let words = [(0, 0), (64, 7)];
        let soon = || crate::clock::now().after(Duration::from_millis(5));
        let late = || crate::clock::now().after(Duration::from_secs(60));
        assert_eq!(wait_any(&region, &words, late()).unwrap(), Woken::Up, "64 is not 7");
        region.store_u32(64, 7, Ordering::Release).unwrap();
        assert_eq!(wait_any(&region, &words, soon()).unwrap(), Woken::TimedOut);
        let other = Arc::clone(&region);
        let sleeper = std::thread::spawn(move || {
            while other.load_u32(64, Ordering::Acquire) == Ok(7) {
                wait_any(&other, &words, late()).unwrap();
            }
        });
        region.store_u32(64, 8, Ordering::Release).unwrap();
        wake(&region, 64, u32::MAX).unwrap();
        sleeper.join().unwrap();
    }

    #[test]
    fn a_sleeper_wakes_by_call_by_value_and_by_time() {
        let region = Region::anonymous(4096);
        let short = Duration::from_millis(5);
        assert_eq!(wait(&region, 8, 0, short).unwrap(), Woken::TimedOut);
        assert_eq!(wait(&region, 8, 1, Duration::from_secs(60)).unwrap(), Woken::Up);
        assert!(wait(&region, 4096, 0, short).is_err());
        assert!(wait(&region, 2, 0, short).is_err());
        let other = Arc::clone(&region);
        let sleeper = std::thread::spawn(move || {
            while other.load_u32(8, Ordering::Acquire) == Ok(0) {
                wait(&other, 8, 0, Duration::from_secs(60)).unwrap();
            }
        });
        region.store_u32(8, 1, Ordering::Release).unwrap();
        wake(&region, 8, u32::MAX).unwrap();
        sleeper.join().unwrap();
    }
}
