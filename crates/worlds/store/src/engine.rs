//! Where a volume is kept: in its data directory, by one of two embedded engines, or in a pool of a
//! distributed engine.
//!
//! The choice is an enum behind the two ports, so that everything above is written and compiled
//! once. A pool's volume has a data directory too, with what is this host's own: lock, socket,
//! sessions, log.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use outboard_base::Errno;
use outboard_fjall::Engine;
use outboard_kv::{Batch, Durability, Key, Kv, KvError, Snapshot, Usage, Value, Version};
use outboard_medium::{Buf, Medium};
use outboard_os::medium::FileMedium;
use outboard_redb::RedbEngine;

#[cfg(feature = "rados")]
use crate::pooled::{PoolKv, PoolMedium};

/// Why a process ends whose store cannot say what became of a commit.
pub(crate) const IN_DOUBT: &str =
    "the store failed amid a commit; what was answered is safe, and the next start goes on";

/// Ends the process without another word to the store: nothing it still has to say may count.
pub(crate) fn end(why: &str) -> ! {
    // As every failure of the program is said; the log may be gone, and that is no matter now.
    let _ = writeln!(std::io::stderr(), "outboard: {why}");
    std::process::abort();
}

/// The key-value store of a volume.
pub enum StoreKv {
    /// In the data directory, by fjall.
    Fjall(Box<Engine>),
    /// In the data directory, by redb.
    Redb(Arc<RedbEngine>),
    /// In a pool.
    #[cfg(feature = "rados")]
    Pool(PoolKv),
}

impl StoreKv {
    /// What keeps the pairs, in a word.
    pub(crate) fn engine(&self) -> &'static str {
        match self {
            Self::Fjall(_) => "fjall",
            Self::Redb(_) => "redb",
            #[cfg(feature = "rados")]
            Self::Pool(_) => "rados",
        }
    }
}

/// One call on whichever store it is. Futures are boxed but the first engine's: those that wait for
/// a flush or for the network anyway must not make its own, which are made for each request,
/// larger.
macro_rules! on {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Fjall($store) => $call.await,
            Self::Redb($store) => Box::pin($call).await,
            #[cfg(feature = "rados")]
            Self::Pool($store) => Box::pin($call).await,
        }
    };
}

/// As `on`, for what does not wait.
macro_rules! ask {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Fjall($store) => $call,
            Self::Redb($store) => $call,
            #[cfg(feature = "rados")]
            Self::Pool($store) => $call,
        }
    };
}

impl Kv for StoreKv {
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        on!(self, kv => kv.get(key))
    }

    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, KvError> {
        on!(self, kv => kv.get_many(keys))
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Key, Value)>, KvError> {
        on!(self, kv => kv.scan(prefix, after, limit))
    }

    async fn commit(&self, batch: Batch, durability: Durability) -> Result<(), KvError> {
        on!(self, kv => kv.commit(batch, durability))
    }

    async fn sync(&self) -> Result<(), KvError> {
        on!(self, kv => kv.sync())
    }

    fn is_synced(&self) -> bool {
        ask!(self, kv => kv.is_synced())
    }

    fn idle(&self) {
        ask!(self, kv => kv.idle());
    }

    fn version(&self) -> Version {
        ask!(self, kv => kv.version())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, KvError> {
        ask!(self, kv => kv.snapshot())
    }

    fn usage(&self) -> Usage {
        ask!(self, kv => kv.usage())
    }
}

/// The medium beside it.
pub enum StoreMedium {
    /// The data directory's file.
    Directory(Box<FileMedium>),
    /// Objects of a pool.
    #[cfg(feature = "rados")]
    Pool(PoolMedium),
}

/// One call on whichever medium it is; a pool's futures are boxed.
macro_rules! on_medium {
    ($self:ident, $medium:ident => $call:expr) => {
        match $self {
            Self::Directory($medium) => $call.await,
            #[cfg(feature = "rados")]
            Self::Pool($medium) => Box::pin($call).await,
        }
    };
}

/// As `on_medium`, for what does not wait.
macro_rules! ask_medium {
    ($self:ident, $medium:ident => $call:expr) => {
        match $self {
            Self::Directory($medium) => $call,
            #[cfg(feature = "rados")]
            Self::Pool($medium) => $call,
        }
    };
}

impl Medium for StoreMedium {
    fn ahead(&self) -> u64 {
        ask_medium!(self, medium => medium.ahead())
    }

    fn expect(&self, bytes: Range<u64>) {
        ask_medium!(self, medium => medium.expect(bytes));
    }

    #[cfg_attr(not(feature = "rados"), expect(unused_variables, reason = "of pools alone"))]
    async fn expected(&self, bytes: Range<u64>) -> Option<Buf> {
        match self {
            // Nothing is: this way a read nearby asks nobody.
            Self::Directory(_) => None,
            #[cfg(feature = "rados")]
            Self::Pool(medium) => Box::pin(medium.expected(bytes)).await,
        }
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        on_medium!(self, medium => medium.read(offset, buf))
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        on_medium!(self, medium => medium.write(offset, buf))
    }

    async fn flush(&self) -> Result<(), Errno> {
        on_medium!(self, medium => medium.flush())
    }

    fn is_flushed_by_store(&self) -> bool {
        ask_medium!(self, medium => medium.is_flushed_by_store())
    }

    async fn hand_over(&self) -> Result<(), Errno> {
        on_medium!(self, medium => medium.hand_over())
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        on_medium!(self, medium => medium.grow(len))
    }

    fn len(&self) -> u64 {
        ask_medium!(self, medium => medium.len())
    }
}
