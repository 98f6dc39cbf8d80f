//! Where a volume is kept: in its data directory, or in a pool of a distributed engine.
//!
//! The choice is an enum behind the two ports, so that everything above is written and compiled
//! once. A pool's volume has a data directory too, with what is this host's own: lock, socket,
//! sessions, log, its place (below), and `store`, the location, so that every command finds it.

#[cfg(feature = "rados")]
mod pooled;

#[cfg(feature = "rados")]
use std::io::Write;
use std::path::Path;

use outboard_base::Errno;
use outboard_drivers::engine::Engine;
use outboard_drivers::medium::FileMedium;
use outboard_kv::medium::{Buf, Medium};
use outboard_kv::{Batch, Durability, Key, Kv, KvError, Usage, Value, Version};

use crate::exit::{Code, Failure};

#[cfg(feature = "rados")]
pub(crate) use pooled::{Claimed, PoolKv, PoolMedium, claim, location};

/// The file of a data directory that names the pool, and in its second line the volume's number.
const REMEMBERED: &str = "store";

/// Which store a data directory belongs to: `given` on the command line, or remembered there.
/// `None`: the directory itself.
pub(crate) fn of(data: &Path, given: Option<&str>) -> Result<Option<String>, Failure> {
    let path = data.join(REMEMBERED);
    let remembered = match std::fs::read_to_string(&path) {
        Ok(text) => text.lines().next().map(str::to_owned),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            let message = format!("cannot read {}: {error}", path.display());
            return Err(Failure::new(Code::Data, message));
        }
    };
    let engine_here = data.join("kv").exists();
    let data = data.display();
    match (remembered, given) {
        (Some(remembered), Some(given)) if remembered != given => Err(Failure::new(
            Code::Data,
            format!(
                "{data} belongs to the store {remembered}, not {given}: leave out --store, or \
                 choose another data directory"
            ),
        )),
        (Some(store), _) => Ok(Some(store)),
        (None, Some(_)) if engine_here => Err(Failure::new(
            Code::Data,
            format!(
                "{data} holds a volume itself: choose another data directory, or copy it with \
                 `outboard migrate`"
            ),
        )),
        (None, given) => Ok(given.map(str::to_owned)),
    }
}

/// Notes down which store a data directory belongs to, and which volume.
#[cfg(feature = "rados")]
pub(crate) fn remember(data: &Path, store: &str, volume: u64) -> Result<(), Failure> {
    let path = data.join(REMEMBERED);
    let cannot =
        |error| Failure::new(Code::Data, format!("cannot write {}: {error}", path.display()));
    let new = data.join("store.new");
    // Whole or not at all: half a number, or none, would name another volume.
    let write = || {
        let mut file = std::fs::File::create(&new)?;
        file.write_all(format!("{store}\n{volume:016x}\n").as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        std::fs::File::open(data)?.sync_all()
    };
    write().map_err(cannot)
}

/// The number of the volume a data directory belongs to, if it was noted down.
#[cfg(feature = "rados")]
pub(crate) fn remembered_volume(data: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(data.join(REMEMBERED)).ok()?;
    u64::from_str_radix(text.lines().nth(1)?, 16).ok()
}

/// The key-value store of a volume.
pub(crate) enum Store {
    /// In the data directory.
    Directory(Box<Engine>),
    /// In a pool.
    #[cfg(feature = "rados")]
    Pool(PoolKv),
}

/// One call on whichever store it is. A pool's futures are boxed: they must not make those of the
/// directory, which are made for each request, larger.
macro_rules! on {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Directory($store) => $call.await,
            #[cfg(feature = "rados")]
            Self::Pool($store) => Box::pin($call).await,
        }
    };
}

/// As `on`, for what does not wait.
macro_rules! ask {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Directory($store) => $call,
            #[cfg(feature = "rados")]
            Self::Pool($store) => $call,
        }
    };
}

impl Kv for Store {
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

    fn usage(&self) -> Usage {
        ask!(self, kv => kv.usage())
    }
}

/// The medium beside it.
pub(crate) enum Blocks {
    /// The data directory's file.
    Directory(Box<FileMedium>),
    /// Objects of a pool.
    #[cfg(feature = "rados")]
    Pool(PoolMedium),
}

impl Medium for Blocks {
    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        on!(self, medium => medium.read(offset, buf))
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        on!(self, medium => medium.write(offset, buf))
    }

    async fn flush(&self) -> Result<(), Errno> {
        on!(self, medium => medium.flush())
    }

    fn is_flushed_by_store(&self) -> bool {
        ask!(self, medium => medium.is_flushed_by_store())
    }

    async fn hand_over(&self) -> Result<(), Errno> {
        on!(self, medium => medium.hand_over())
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        on!(self, medium => medium.grow(len))
    }

    fn len(&self) -> u64 {
        ask!(self, medium => medium.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_belongs_to_one_store() {
        let dir = std::env::temp_dir().join(format!("outboard-store-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let url = "rados://a?conf=/c";
        assert_eq!(of(&dir, None).unwrap(), None);
        assert_eq!(of(&dir, Some(url)).unwrap().as_deref(), Some(url));
        std::fs::write(dir.join(REMEMBERED), format!("{url}\n")).unwrap();
        assert_eq!(of(&dir, None).unwrap().as_deref(), Some(url));
        assert_eq!(of(&dir, Some(url)).unwrap().as_deref(), Some(url));
        let message = of(&dir, Some("rados://b")).unwrap_err().to_string();
        assert!(message.contains("rados://a") && message.contains("rados://b"), "{message}");
        std::fs::remove_file(dir.join(REMEMBERED)).unwrap();
        std::fs::create_dir(dir.join("kv")).unwrap();
        let message = of(&dir, Some(url)).unwrap_err().to_string();
        assert!(message.contains("outboard migrate"), "{message}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
