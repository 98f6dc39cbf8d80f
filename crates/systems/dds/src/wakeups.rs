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
//! ring passes a fence and looks whether the other sleeps. What sleeps and wakes, a thread, is of
//! the world above.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outboard_link::Region;
use outboard_link::region::fence;

const ASLEEP: u64 = 0;
const GROUPS_AT: u64 = 64;
const GROUP_LEN: u64 = 128;
const INTERRUPT: u64 = 64;

/// Arm: the host sleeps on the interrupt word.
const WORD: u32 = 1;
/// Arm: the host sleeps on descriptors.
const SOCKET: u32 = 2;

/// How a host asked to be woken when it went to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Not at all: nobody sleeps.
    Not,
    /// Through the interrupt word.
    Word,
    /// With a byte on its wake socket.
    Socket,
}

/// The words of one attachment. An access beyond them reads zero and writes nothing.
#[derive(Clone, Debug)]
pub struct WakeupWords(Arc<Region>);

fn arm_at(group: u16) -> u64 {
    GROUPS_AT + u64::from(group) * GROUP_LEN
}

fn interrupt_at(group: u16) -> u64 {
    arm_at(group) + INTERRUPT
}

impl WakeupWords {
    /// Bytes of the pages for so many groups.
    #[must_use]
    pub fn len(groups: u16) -> u64 {
        (GROUPS_AT + u64::from(groups) * GROUP_LEN).next_multiple_of(4096)
    }

    /// Over pages of at least [`WakeupWords::len`] bytes.
    #[must_use]
    pub fn new(pages: Arc<Region>) -> WakeupWords {
        WakeupWords(pages)
    }

    /// The pages.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.0
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

    /// Host: the next response to `group` is to move its interrupt word. Where that is, and what it
    /// holds. Look for responses once more before sleeping.
    #[must_use]
    pub fn arm_word(&self, group: u16) -> (u64, u32) {
        let at = interrupt_at(group);
        let seen = self.get(at);
        self.set(arm_at(group), WORD);
        fence();
        (at, seen)
    }

    /// Host: from now on the next response to group `group` brings a byte on the wake socket. Look
    /// for responses once more before sleeping.
    pub fn arm_socket(&self, group: u16) {
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

    /// DPU, after it delivered responses to a group: how who waits for them is to be woken, by this
    /// caller. Each arming is taken once; nonsense is nobody's.
    #[must_use]
    pub fn take_armed(&self, group: u16) -> Armed {
        fence();
        if self.take(arm_at(group), SOCKET) {
            Armed::Socket
        } else if self.take(arm_at(group), WORD) {
            Armed::Word
        } else {
            Armed::Not
        }
    }

    /// Moves the interrupt word of a group; where it is, for who wakes its sleepers.
    #[must_use]
    pub fn count_interrupt(&self, group: u16) -> u64 {
        let at = interrupt_at(group);
        let _within = self.0.add_u32(at, 1, Ordering::AcqRel);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_apart_and_within() {
        let len = WakeupWords::len;
        assert_eq!((len(1), len(31), len(32)), (4096, 4096, 8192));
        assert!(interrupt_at(63) + 4 <= len(64));
    }

    #[test]
    fn each_arming_is_taken_once_and_in_its_own_way() {
        let words = WakeupWords::new(Region::anonymous(WakeupWords::len(2)));
        assert_eq!(words.take_armed(1), Armed::Not);
        words.arm_socket(1);
        assert_eq!(words.take_armed(0), Armed::Not, "another group's");
        assert_eq!(words.take_armed(1), Armed::Socket);
        assert_eq!(words.take_armed(1), Armed::Not);
        let (at, seen) = words.arm_word(1);
        assert_eq!(words.take_armed(1), Armed::Word);
        assert_eq!((words.count_interrupt(1), words.get(at)), (at, seen + 1));
        words.arm_socket(1);
        words.disarm(1);
        assert_eq!(words.take_armed(1), Armed::Not);
        words.set(arm_at(1), 77);
        assert_eq!(words.take_armed(1), Armed::Not, "nonsense wakes nobody");
        words.set_asleep(true);
        assert!(words.must_wake() && !words.must_wake());
    }
}
