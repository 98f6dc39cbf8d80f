//! A lock that can be set free in a child process.
//!
//! A thread that forks leaves the locks of all other threads taken in the child for ever. These
//! are held for short times and can be freed by the one thread the child has.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Looks before a waiter gives its core away.
const LOOKS: u32 = 64;

/// A value one thread at a time may touch.
pub(crate) struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached in `with` alone, by the one thread that took `held`.
unsafe impl<T: Send> Sync for Lock<T> {}

struct Held<'a>(&'a AtomicBool);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Does something with the value, alone. Not to be nested on one lock.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        let _held = self.take();
        // SAFETY: `held` is this thread's until `_held` drops, after the reference is gone.
        act(unsafe { &mut *self.value.get() })
    }

    fn take(&self) -> Held<'_> {
        let mut looks = 0u32;
        while self.held.swap(true, Ordering::Acquire) {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                rustix::thread::sched_yield();
            }
            std::hint::spin_loop();
        }
        Held(&self.held)
    }

    /// Takes the lock and keeps it: before a fork.
    pub(crate) fn hold(&self) {
        std::mem::forget(self.take());
    }

    /// Frees the lock.
    ///
    /// # Safety
    /// This thread holds it by [`Lock::hold`], or is alone in its process.
    pub(crate) unsafe fn free(&self) {
        self.held.store(false, Ordering::Release);
    }
}
