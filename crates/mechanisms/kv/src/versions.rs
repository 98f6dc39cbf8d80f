//! Which keys were committed to since a version: lets an engine skip looking conditions up.

use crate::hash::KeyHash;
use crate::{Batch, Version};

/// For each of a fixed number of buckets of keys, the version that last wrote one of them.
///
/// Two keys of one bucket cost a needless look-up, never a wrong answer.
pub struct KeyVersions {
    buckets: Vec<u64>,
    hash: KeyHash,
    now: u64,
}

impl KeyVersions {
    /// 8 bytes each; at a few thousand commits in flight a false share is rare.
    const BUCKETS: usize = 1 << 15;

    /// No commit yet.
    #[must_use]
    pub fn new() -> KeyVersions {
        KeyVersions { buckets: vec![0; Self::BUCKETS], hash: KeyHash::new(), now: 0 }
    }

    fn bucket(&self, key: &[u8]) -> usize {
        usize::try_from(self.hash.of(key) % Self::BUCKETS as u64).unwrap_or(0)
    }

    /// The version of the last commit.
    #[must_use]
    pub fn now(&self) -> Version {
        Version(self.now)
    }

    /// Whether `key` may have been written after `since`.
    #[must_use]
    pub fn written_since(&self, key: &[u8], since: Version) -> bool {
        self.buckets.get(self.bucket(key)).is_none_or(|&at| at > since.0)
    }

    /// Records a commit; call under the lock that orders commits, once its writes can be read: who
    /// sees the version must see the writes.
    pub fn record(&mut self, batch: &Batch) -> Version {
        self.now += 1;
        for write in batch.writes() {
            let bucket = self.bucket(&write.key);
            if let Some(at) = self.buckets.get_mut(bucket) {
                *at = self.now;
            }
        }
        Version(self.now)
    }
}

impl Default for KeyVersions {
    fn default() -> Self {
        Self::new()
    }
}
