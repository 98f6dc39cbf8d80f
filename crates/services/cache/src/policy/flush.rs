//! Which dirty pages are written back before somebody asks for it.
//!
//! What is dirty beyond a limit ([`Policies::dirty`](super::Policies::dirty)) throttles writers,
//! whatever the policy: the control plane gives no more credit, so their writes go through, at the
//! volume's pace.

use std::time::Duration;

/// Share of the cache that may be dirty, of 100, unless the mount or the DPU side chose another.
pub const LIMIT: u8 = 40;
/// Of what may be dirty, so much (1 in so many) starts writing back what is young, too.
pub const WATERMARK: u64 = 4;

/// A catalogue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Name {
    /// Everything at every round.
    Eager = 1,
    /// What has been dirty for a while, and what is above the watermark.
    #[default]
    Aged = 2,
}

impl Name {
    /// All of them.
    pub const ALL: [Name; 2] = [Name::Eager, Name::Aged];

    /// As settings and figures say it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Name::Eager => "eager",
            Name::Aged => "aged",
        }
    }

    /// Its number in a cache's header, which outlives a DPU side: it never changes. 0 is none's.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The algorithm of this name, if there is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Name> {
        Name::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// The algorithm, for a cache of which `limit` (of 100) may be dirty.
    #[must_use]
    pub fn build(self, limit: u8) -> Box<dyn Flush> {
        match self {
            Name::Eager => Box::new(Eager),
            Name::Aged => Box::new(Aged { watermark: (u64::from(limit) / WATERMARK).max(1) }),
        }
    }
}

/// What is known of the dirty pages of one inode at a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirty {
    /// Dirty pages of the whole cache, in shares of 100.
    pub share: u64,
    /// How long the inode has had dirty pages.
    pub age: Duration,
}

/// Decides about one inode at a round.
pub trait Flush: Send + Sync {
    /// Whether its dirty pages are written back now.
    fn now(&self, dirty: Dirty) -> bool;
}

struct Eager;

impl Flush for Eager {
    fn now(&self, _: Dirty) -> bool {
        true
    }
}

/// What was written may soon be written again, or removed: it waits this long.
const AGE: Duration = Duration::from_secs(5);

struct Aged {
    /// Of 100 pages.
    watermark: u64,
}

impl Flush for Aged {
    fn now(&self, dirty: Dirty) -> bool {
        dirty.age >= AGE || dirty.share >= self.watermark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_pages_wait_unless_there_are_many() {
        let (eager, aged) = (Name::Eager.build(LIMIT), Name::Aged.build(LIMIT));
        let young = Dirty { share: 1, age: Duration::from_secs(1) };
        let old = Dirty { age: Duration::from_secs(9), ..young };
        let many = Dirty { share: 10, ..young };
        assert!(!aged.now(young) && aged.now(old) && aged.now(many));
        assert!([young, old, many].into_iter().all(|dirty| eager.now(dirty)));
        for name in Name::ALL {
            assert_eq!(Name::parse(name.as_str()), Some(name));
        }
        assert!(!Name::Aged.build(80).now(many) && Name::Aged.build(1).now(young));
    }
}
