//! Sleeping and waking by the words of an attachment (`dds::wakeups`): the host sleeps on a group's
//! interrupt word, as a futex, or on its wake socket; the DPU side wakes whoever asked for it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use outboard_dds::wakeups::{Armed, WakeupWords};
use outboard_link::Region;

use outboard_os::futex;

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

/// The words of one attachment, and who sleeps on them.
#[derive(Clone, Debug)]
pub struct Wakeups(WakeupWords);

impl Wakeups {
    /// Over pages of at least [`WakeupWords::len`] bytes.
    #[must_use]
    pub fn new(pages: Arc<Region>) -> Wakeups {
        Wakeups(WakeupWords::new(pages))
    }

    /// Host, after it put something into a ring: whether the DPU side is to be woken, by this
    /// caller.
    #[must_use]
    pub fn must_wake(&self) -> bool {
        self.0.must_wake()
    }

    /// Host: sleeps until group `group` is interrupted or `timeout`, unless `ready` says that there
    /// is something already.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sleep(&self, group: u16, timeout: Duration, ready: &dyn Fn() -> bool) -> io::Result<()> {
        let (at, seen) = self.0.arm_word(group);
        if ready() {
            return Ok(());
        }
        futex::wait(self.0.region(), at, seen, timeout).map(drop)
    }

    /// Host: from now on the next response to group `group` brings a byte on the wake socket. Look
    /// for responses once more before sleeping.
    pub fn arm(&self, group: u16) {
        self.0.arm_socket(group);
    }

    /// Host: it is awake; nobody needs to wake it.
    pub fn disarm(&self, group: u16) {
        self.0.disarm(group);
    }

    /// DPU: it goes to sleep, or is awake again.
    pub fn set_asleep(&self, asleep: bool) {
        self.0.set_asleep(asleep);
    }

    /// DPU, after it delivered responses to a group: wakes who waits for them on the word; what
    /// was asked for.
    ///
    /// # Errors
    /// The kernel's.
    pub fn interrupt(&self, group: u16) -> io::Result<Asked> {
        match self.0.take_armed(group) {
            Armed::Not => Ok(Asked::Nothing),
            Armed::Socket => Ok(Asked::Byte),
            Armed::Word => self.interrupt_anyway(group).map(|()| Asked::Woken),
        }
    }

    /// Wakes whoever sleeps on a group.
    ///
    /// # Errors
    /// The kernel's.
    pub fn interrupt_anyway(&self, group: u16) -> io::Result<()> {
        let at = self.0.count_interrupt(group);
        futex::wake(self.0.region(), at, u32::MAX).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A million hand-overs without a lost wake-up: each would cost a minute.
    #[test]
    fn no_wake_up_is_lost() {
        let wakeups = Wakeups::new(Region::anonymous(WakeupWords::len(2)));
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
        let wakeups = Wakeups::new(Region::anonymous(WakeupWords::len(2)));
        assert_eq!(wakeups.interrupt(1).unwrap(), Asked::Nothing);
        wakeups.arm(1);
        assert_eq!(wakeups.interrupt(0).unwrap(), Asked::Nothing, "another group's");
        assert_eq!(wakeups.interrupt(1).unwrap(), Asked::Byte);
        assert_eq!(wakeups.interrupt(1).unwrap(), Asked::Nothing);
        wakeups.arm(1);
        wakeups.disarm(1);
        assert_eq!(wakeups.interrupt(1).unwrap(), Asked::Nothing);
    }
}
