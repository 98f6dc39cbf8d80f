//! Memory that another process may read and write at any moment.
//!
//! A [`Region`] hands out no reference to its bytes but as atomics, for system calls: they are
//! copied out once and checked, or copied in. Words that both sides use at once go through the
//! atomics here, the one seam for all of them. Every access is bounds-checked; an access that does
//! not fit is an [`OutOfRegion`] and touches nothing.

#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod raw;

#[cfg(loom)]
pub use model::Region;
#[cfg(not(loom))]
pub use raw::Region;

/// Orders every access before it against every access after it, for all threads and both sides:
/// what a sleeper puts between "I sleep" and its last look, and its waker between the work and
/// "does it sleep".
pub fn fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// The range does not lie within the region, or a word is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRegion;

impl std::fmt::Display for OutOfRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("address outside the shared memory region")
    }
}

impl std::error::Error for OutOfRegion {}
