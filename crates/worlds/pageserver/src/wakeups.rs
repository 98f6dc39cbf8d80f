//! The words by which two sides of a group say that they sleep: pages of the DPU side that the host
//! maps, one set for each attachment.
//!
//! ```text
//! 0x000  u32 asleep       1: the DPU side does not look: wake it       DPU; host clears
//! 0x040 + 0x080 g         group g:
//!   +0   u32 arm          1: interrupt me for the next response,        host; DPU clears
//!                         2: with a byte on the attachment's wake socket
//!   +64  u32 interrupt    counts interrupts; the host sleeps on it     DPU
//! ```
//!
//! A host that sleeps on more than responses (on its clients' sockets, too) cannot sleep on a word;
//! it arms with 2 and is woken through a descriptor. All of a group's sleepers do the same.
//!
//! Who goes to sleep says so, passes a fence, and looks once more; who has put something into a
//! ring passes a fence and looks whether the other sleeps.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outboard_link::Region;
use outboard_link::region::fence;

use outboard_os::futex;

const ASLEEP: u64 = 0;
const GROUPS_AT: u64 = 64;
const GROUP_LEN: u64 = 128;
const INTERRUPT: u64 = 64;

/// Arm: the host sleeps on the interrupt word.
const WORD: u32 = 1;
/// Arm: the host sleeps on descriptors.
const SOCKET: u32 = 2;

/// What a host asked for when it went to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing: nobody sleeps.
    Nothing,
    /// To be woken, which was done.
    Woken,
    /// A byte on its wake socket, which is the caller's to send.
    Byte,
}

/// Bytes of the pages for so many groups.
#[must_use]
pub fn wakeups_len(groups: u16) -> u64 {
    (GROUPS_AT + u64::from(groups) * GROUP_LEN).next_multiple_of(4096)
}

fn arm_at(group: u16) -> u64 {
    GROUPS_AT + u64::from(group) * GROUP_LEN
}

fn interrupt_at(group: u16) -> u64 {
    arm_at(group) + INTERRUPT
}

/// The words of one attachment. An access beyond them reads zero and writes nothing.
#[derive(Clone, Debug)]
pub struct Wakeups(Arc<Region>);

impl Wakeups {
    /// Over pages of at least [`wakeups_len`] bytes.
    #[must_use]
    pub fn new(pages: Arc<Region>) -> Wakeups {
        Wakeups(pages)
    }

    fn get(&self, at: u64) -> u32 {
        self.0.load_u32(at, Ordering::Acquire).unwrap_or(0)
    }

    fn take(&self, at: u64, value: u32) -> bool {
        self.get(at) == value && self.0.cas_u32(at, value, 0, Ordering::AcqRel) == Ok(value)
    }

    fn set(&self, at: u64, value: u32) {
        let _within = self.0.store_u32(at, value, Ordering::Release);
    }

    /// Host, after it put something into a ring: whether the DPU side is to be woken, by this
    /// caller.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        fence();
        self.take(ASLEEP, 1)
    }

    /// Host: sleeps until group `group` is interrupted or `timeout`, unless `ready` says that there
    /// is something already.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sleep(&self, group: u16, timeout: Duration, ready: &dyn Fn() -> bool) -> io::Result<()> {
        let at = interrupt_at(group);
        let seen = self.get(at);
        self.set(arm_at(group), WORD);
        fence();
        if ready() {
            return Ok(());
        }
        futex::wait(&self.0, at, seen, timeout).map(drop)
    }

    /// Host: from now on the next response to group `group` brings a byte on the wake socket. Look
    /// for responses once more before sleeping.
    pub fn arm(&self, group: u16) {
        self.set(arm_at(group), SOCKET);
        fence();
    }

    /// Host: it is awake; nobody needs to wake it.
    pub fn disarm(&self, group: u16) {
        self.set(arm_at(group), 0);
    }

    /// DPU: it goes to sleep, or is awake again.
    pub fn set_asleep(&self, asleep: bool) {
        self.set(ASLEEP, u32::from(asleep));
    }

    /// DPU, after it delivered responses to a group: wakes who waits for them on the word; what
    /// was asked for.
    ///
    /// # Errors
    /// The kernel's.
    pub fn interrupt(&self, group: u16) -> io::Result<Asked> {
        fence();
        if self.take(arm_at(group), SOCKET) {
            return Ok(Asked::Byte);
        }
        if !self.take(arm_at(group), WORD) {
            return Ok(Asked::Nothing);
        }
        self.interrupt_anyway(group)?;
        Ok(Asked::Woken)
    }

    /// Wakes whoever sleeps on a group.
    ///
    /// # Errors
    /// The kernel's.
    pub fn interrupt_anyway(&self, group: u16) -> io::Result<()> {
        let at = interrupt_at(group);
        let _within = self.0.add_u32(at, 1, Ordering::AcqRel);
        futex::wake(&self.0, at, u32::MAX).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn places_are_apart_and_within() {
        assert_eq!((wakeups_len(1), wakeups_len(31), wakeups_len(32)), (4096, 4096, 8192));
        assert!(interrupt_at(63) + 4 <= wakeups_len(64));
    }

    /// A million hand-overs without a lost wake-up: each would cost a minute.
    #[test]
    fn no_wake_up_is_lost() {
        let wakeups = Wakeups::new(Region::anonymous(wakeups_len(2)));
        let (sent, rounds) = (Arc::new(AtomicU64::new(0)), 20_000);
        let (other, there) = (wakeups.clone(), Arc::clone(&sent));
        let sleeper = std::thread::spawn(move || {
            for round in 1..=rounds {
                while there.load(Ordering::Relaxed) < round {
                    let ready = || there.load(Ordering::Relaxed) >= round;
                    other.sleep(1, Duration::from_secs(60), &ready).unwrap();
                }
            }
        });
        let from = std::time::Instant::now();
        for round in 1..=rounds {
            sent.store(round, Ordering::Relaxed);
            wakeups.interrupt(1).unwrap();
        }
        sleeper.join().unwrap();
        assert!(from.elapsed() < Duration::from_secs(50));
        wakeups.set_asleep(true);
        assert!(wakeups.must_wake() && !wakeups.must_wake());
    }

    #[test]
    fn each_arming_is_answered_once_and_in_its_own_way() {
        let wakeups = Wakeups::new(Region::anonymous(wakeups_len(2)));
        assert_eq!(wakeups.interrupt(1).unwrap(), Asked::Nothing);
        wakeups.arm(1);
        assert_eq!(wakeups.interrupt(0).unwrap(), Asked::Nothing, "another group's");
        assert_eq!(wakeups.interrupt(1).unwrap(), Asked::Byte);
        assert_eq!(wakeups.interrupt(1).unwrap(), Asked::Nothing);
        wakeups.arm(1);
        wakeups.disarm(1);
        assert_eq!(wakeups.interrupt(1).unwrap(), Asked::Nothing);
        wakeups.set(arm_at(1), 77);
        assert_eq!(wakeups.interrupt(1).unwrap(), Asked::Nothing, "nonsense wakes nobody");
    }
}
