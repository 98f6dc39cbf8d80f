//! Opening a kv volume: lock, engine and data file of its data directory or claim and pool, KVFS
//! over them.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_fjall::{Engine, EngineOptions};
use outboard_kv::object::{Compression, Recovered};
use outboard_kvfs::{Kvfs, OpenError, Options};
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};
use outboard_os::room::{Reserve, disk_room};
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_redb::RedbEngine;
use outboard_wire::shared::call::Layout;
use serde_json::Value;

use crate::directory::{DataDirectory, DirectoryError};
use crate::engine::{self, StoreKv, StoreMedium};
use crate::error::StoreError;
use crate::migrate::copy;
use crate::name::StoreName;
#[cfg(feature = "rados")]
use crate::pooled;

/// Operations of storage under way at once, at most.
pub const RING_DEPTH: u32 = 1024;

/// What is asked of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The volume's data directory.
    pub data: PathBuf,
    /// The store by name, where one is asked for; see [`StoreName::of`].
    pub store: Option<String>,
    /// Size of the volume, bytes, now and from now on; without one as it was last given, or
    /// whatever there is room for.
    pub size: Option<u64>,
    /// Bytes of memory, about, for the engine and for what is cached of its pairs.
    pub memory: u64,
    /// How blocks of big files are kept that are written from now on.
    pub compression: Compression,
    /// How much longer each read of the data file takes, as if it lay far away.
    pub read_delay: Duration,
    /// The bytes of files lie on storage nodes, so, and not in the store: of a metadata server.
    pub spread: Option<Layout>,
}

/// A volume in whichever store.
pub type KvVolume = Arc<Kvfs<StoreKv, StoreMedium>>;

/// An open volume with the thread's runtime, which must drive it.
pub struct OpenVolume {
    /// The volume.
    pub volume: KvVolume,
    /// The thread's runtime.
    pub runtime: Rc<Poller>,
    /// What wakes it.
    pub wakeup: Arc<Wakeup>,
    /// To be dropped after the volume: then it may become another host's.
    pub hold: Hold,
    /// The volume's data directory, locked.
    pub directory: DataDirectory,
}

/// An open volume, on a thread whose [`Driver`] drives it.
pub struct Opened {
    /// The volume.
    pub volume: KvVolume,
    /// To be dropped after the volume: then it may become another host's.
    pub hold: Hold,
    /// The volume's data directory, locked.
    pub directory: DataDirectory,
}

/// What keeps a volume ours, beside the lock of the data directory.
pub struct Hold(Held);

enum Held {
    /// Nothing more.
    Directory,
    /// The second engine, which ends the process rather than have it go on without a store.
    Redb(Arc<RedbEngine>),
    /// A claim in the pool, and who keeps it.
    #[cfg(feature = "rados")]
    Pool(pooled::Claimed),
}

impl Hold {
    /// What is to be asked before every answer: it ends the process if the volume may be another's,
    /// or the store cannot say what became of a commit.
    #[must_use]
    pub fn check(&self) -> Option<Box<dyn Fn()>> {
        match &self.0 {
            Held::Directory => None,
            Held::Redb(engine) => {
                let engine = Arc::clone(engine);
                Some(Box::new(move || {
                    if engine.is_poisoned() {
                        engine::end(engine::IN_DOUBT);
                    }
                }))
            }
            #[cfg(feature = "rados")]
            Held::Pool(claimed) => Some(Box::new(claimed.check())),
        }
    }

    /// The volume's number in its pool, if it is in one.
    #[must_use]
    pub fn volume(&self) -> Option<u64> {
        match &self.0 {
            Held::Directory | Held::Redb(_) => None,
            #[cfg(feature = "rados")]
            Held::Pool(claimed) => Some(claimed.volume()),
        }
    }

    /// What is to be told of it.
    #[must_use]
    pub fn figures(&self) -> Box<dyn Fn() -> Value> {
        match &self.0 {
            Held::Directory | Held::Redb(_) => Box::new(|| Value::Null),
            #[cfg(feature = "rados")]
            Held::Pool(claimed) => Box::new(claimed.figures()),
        }
    }

    /// Lets the volume go, after it was closed.
    pub fn release(self) {
        match self.0 {
            Held::Directory | Held::Redb(_) => {}
            #[cfg(feature = "rados")]
            Held::Pool(claimed) => drop(claimed),
        }
    }
}

/// How a server claims its volume that others claim, too.
pub struct Standby<'a> {
    /// Who has it may be silent for so long; then it has it no more.
    pub takeover: Duration,
    /// Whether it is still to be waited for.
    pub goes_on: &'a dyn Fn() -> bool,
}

/// A volume's store that is ours, and not open yet.
pub struct Owned {
    directory: DataDirectory,
    parts: Parts,
}

/// Engine and medium, before there is a volume over them.
pub(crate) struct Parts {
    pub(crate) kv: StoreKv,
    pub(crate) blocks: StoreMedium,
    pub(crate) hold: Hold,
    /// The number a new volume gets.
    pub(crate) id: u64,
    /// Bytes the medium may grow to.
    pub(crate) capacity: u64,
}

/// What a volume is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be used: one that is there.
    Use,
    /// To be used: one that is there, or a new one.
    UseOrMake,
    /// To become the copy of another. It is noted down as the store's only when it is one.
    Fill,
}

/// The data directory of the options, locked, and what its volume is kept in.
pub(crate) fn parts(
    options: &StoreOptions,
    purpose: Purpose,
) -> Result<(DataDirectory, Parts), StoreError> {
    let owned = owned(options, purpose, None)?;
    owned.map(|owned| (owned.directory, owned.parts)).ok_or_else(|| StoreError::data("not claimed"))
}

/// Waits until the volume of the options is ours, with others that do; `None`: it is not to be
/// waited for any more.
pub fn stand_by(
    options: &StoreOptions,
    standby: &Standby<'_>,
) -> Result<Option<Owned>, StoreError> {
    owned(options, Purpose::UseOrMake, Some(standby))
}

fn owned(
    options: &StoreOptions,
    purpose: Purpose,
    standby: Option<&Standby<'_>>,
) -> Result<Option<Owned>, StoreError> {
    let data = &options.data;
    let given = options.store.as_deref();
    let store = StoreName::of(data, given)?;
    let here = !matches!(store, StoreName::Pool(_));
    // What was made for a copy that never began holds a format, and nothing.
    let holds_some = data.join("format").is_file() && data.join("kv").exists();
    if purpose == Purpose::Use && here && !holds_some {
        return Err(StoreError::data(format!(
            "{} holds no volume; name another with --data",
            data.display()
        )));
    }
    let directory = DataDirectory::open(data).map_err(|error| directory_failure(&error))?;
    // Somebody may have had it in between.
    let store = StoreName::of(data, given)?;
    let noted = purpose == Purpose::Fill && store.begin_copy(directory.path())?;
    let opened = match &store {
        StoreName::Pool(url) => in_pool(options, &directory, url, (purpose, standby)),
        here => in_directory(options, &directory, here, purpose).map(Some),
    };
    // What an earlier try noted stays: half of a copy may be there, in a pool that is out of reach.
    if opened.is_err() && noted && !data.join("kv").exists() {
        StoreName::give_up_copy(directory.path())?;
    }
    Ok(opened?.map(|parts| Owned { directory, parts }))
}

#[cfg(not(feature = "rados"))]
fn in_pool(
    _: &StoreOptions,
    _: &DataDirectory,
    store: &str,
    _: (Purpose, Option<&Standby<'_>>),
) -> Result<Option<Parts>, StoreError> {
    Err(no_rados(store))
}

/// What a build without librados says of a pool.
#[cfg(not(feature = "rados"))]
fn no_rados(store: &str) -> StoreError {
    StoreError::usage(format!(
        "this build cannot use the store {store}; build one that can with `cargo build --release \
         --features rados --bin outboard` (Debian: librados-dev)"
    ))
}

#[cfg(feature = "rados")]
fn in_pool(
    options: &StoreOptions,
    directory: &DataDirectory,
    store: &str,
    (purpose, standby): (Purpose, Option<&Standby<'_>>),
) -> Result<Option<Parts>, StoreError> {
    let location = pooled::location(store)?;
    let create = purpose != Purpose::Use;
    let claimed = pooled::claim(&location, directory.path(), create, standby)?;
    let Some(claimed) = claimed else { return Ok(None) };
    let given = size(options, directory)?;
    let (kv, blocks) = claimed.parts();
    if purpose != Purpose::Fill {
        StoreName::Pool(store.to_owned()).remember(directory.path(), Some(claimed.volume()))?;
    }
    Ok(Some(Parts {
        kv: StoreKv::Pool(kv),
        blocks: StoreMedium::Pool(blocks),
        id: claimed.volume(),
        capacity: match given {
            Some(size) => size,
            None => claimed.capacity()?.max(MIN_SIZE),
        },
        hold: Hold(Held::Pool(claimed)),
    }))
}

fn in_directory(
    options: &StoreOptions,
    directory: &DataDirectory,
    store: &StoreName,
    purpose: Purpose,
) -> Result<Parts, StoreError> {
    let failed = |what, error: &dyn std::fmt::Display| failed(directory.path(), what, error);
    let threads = if Reactor::is_installed() { 0 } else { 8 };
    if purpose != Purpose::Fill {
        store.remember(directory.path(), None)?;
    }
    let cache = options.memory / 8;
    let engine = engine(directory, store, cache);
    let (kv, hold) = engine.map_err(|error| failed("engine", &error))?;
    let read_delay = options.read_delay;
    let medium = MediumOptions { threads, read_delay, ..MediumOptions::default() };
    let medium = FileMedium::open(&directory.blocks(), medium);
    // Syncs of the first engine are flushes of the device; the second one's have nothing to do.
    let medium = match &kv {
        StoreKv::Fjall(_) => medium.and_then(|medium| medium.beside(&directory.kv())),
        _ => medium,
    };
    let medium = medium.map_err(|error| failed("data file", &error))?;
    if !medium.is_direct() {
        tracing::info!("the file system refuses O_DIRECT: the data file is buffered");
    }
    Ok(Parts {
        kv,
        blocks: StoreMedium::Directory(Box::new(medium)),
        hold,
        id: random_id().map_err(|error| failed("source of random numbers", &error))?,
        capacity: match size(options, directory)? {
            Some(size) => size,
            None => room(directory).map_err(|error| failed("disk", &error))?,
        },
    })
}

/// The engine of a data directory, with so many bytes of memory.
pub(crate) fn engine(
    directory: &DataDirectory,
    store: &StoreName,
    cache: u64,
) -> std::io::Result<(StoreKv, Hold)> {
    if *store == StoreName::Redb {
        let options = outboard_redb::Options {
            cache: usize::try_from(cache).unwrap_or(usize::MAX),
            ..outboard_redb::Options::default()
        };
        let engine = Arc::new(RedbEngine::open(&directory.kv(), options)?);
        return Ok((StoreKv::Redb(Arc::clone(&engine)), Hold(Held::Redb(engine))));
    }
    let engine =
        Engine::open(&directory.kv(), EngineOptions { cache, ..EngineOptions::default() })?;
    Ok((StoreKv::Fjall(Box::new(engine)), Hold(Held::Directory)))
}

fn failed(data: &Path, what: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::data(format!("cannot open the {what} in {}: {error}", data.display()))
}

/// What drives the storage I/O of a thread.
pub struct Driver {
    /// The thread's runtime.
    pub runtime: Rc<Poller>,
    /// What wakes it.
    pub wakeup: Arc<Wakeup>,
}

impl Driver {
    /// Of this thread.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> std::io::Result<Driver> {
        let wakeup = Arc::new(Wakeup::new()?);
        let reactor = Reactor::install(RING_DEPTH)
            .inspect_err(|error| {
                tracing::warn!(%error, "no io_uring here: storage I/O uses threads");
            })
            .ok();
        Ok(Driver { runtime: Rc::new(Poller::new(Arc::clone(&wakeup), reactor)), wakeup })
    }
}

/// Opens the volume of the options' data directory, or makes one if that is the purpose.
pub fn open(options: &StoreOptions, purpose: Purpose) -> Result<OpenVolume, StoreError> {
    let driver = Driver::new();
    let driver = driver.map_err(|error| failed(&options.data, "wake event", &error))?;
    let Opened { volume, hold, directory } = block_on(open_here(options, purpose))?;
    let Driver { runtime, wakeup } = driver;
    Ok(OpenVolume { volume, runtime, wakeup, hold, directory })
}

/// The same on a thread that has a [`Driver`], which does other things meanwhile: nothing of the
/// store is touched before this is polled.
pub async fn open_here(options: &StoreOptions, purpose: Purpose) -> Result<Opened, StoreError> {
    let (directory, parts) = parts(options, purpose)?;
    open_owned(options, Owned { directory, parts }).await
}

/// Opens what is ours.
pub async fn open_owned(options: &StoreOptions, owned: Owned) -> Result<Opened, StoreError> {
    let data = &options.data;
    let Owned { directory, parts } = owned;
    if copy::is_unfinished(&parts.kv).await.map_err(|e| failed(data, "volume", &e))? {
        return Err(StoreError::data(format!(
            "{} holds an unfinished copy of a volume: finish it with `outboard migrate`",
            data.display()
        )));
    }
    let kvfs = Options {
        capacity: parts.capacity,
        cache_bytes: usize::try_from(options.memory / 4 * 3).unwrap_or(usize::MAX),
        id: parts.id,
        compression: options.compression,
        spread: options.spread,
        owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        ..Options::default()
    };
    let opening = Kvfs::open(parts.kv, parts.blocks, kvfs, clock::wall());
    let volume = opening.await.map_err(|error| match error {
        OpenError::Store(error) => failed(data, "volume", &error),
        error => StoreError::data(format!("{}: {error}", data.display())),
    })?;
    report(volume.recovered());
    Ok(Opened { volume: Arc::new(volume), hold: parts.hold, directory })
}

/// Says what a crash had left behind.
fn report(recovered: &Recovered) {
    let Recovered { records, kept, restored, lost, .. } = *recovered;
    if restored > 0 {
        tracing::warn!(restored, "writes that were not synced never reached the disk: undone");
    }
    if lost > 0 {
        tracing::error!(lost, "blocks are damaged; reads of them fail: run `outboard fsck`");
    }
    if records > 0 {
        tracing::info!(records, kept, "finished what a crash had left half done");
    }
}

fn directory_failure(error: &DirectoryError) -> StoreError {
    StoreError::data(error.to_string())
}

/// The size that `--size` asks for, now or when it was last given: the directory remembers it.
fn size(options: &StoreOptions, directory: &DataDirectory) -> Result<Option<u64>, StoreError> {
    let path = directory.path().join("size");
    let io =
        |error: std::io::Error| StoreError::data(format!("cannot use {}: {error}", path.display()));
    if let Some(size) = options.size {
        if size < MIN_SIZE {
            return Err(StoreError::usage(format!(
                "--size {size} is too small for a volume; the least is 128M"
            )));
        }
        remember_size(directory.path(), size).map_err(io)?;
        return Ok(Some(size));
    }
    remembered_size(directory.path())
}

/// The size that was last given.
fn remembered_size(data: &Path) -> Result<Option<u64>, StoreError> {
    let path = data.join("size");
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| {
            StoreError::data(format!("{} holds no number; give --size", path.display()))
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(data, "size", &error)),
    }
}

/// Lets a volume that is open take up to so many bytes from now on, and at the next openings; what
/// it could take before, and can now.
pub fn grow_open(volume: &KvVolume, data: &Path, bytes: u64) -> Result<(u64, u64), StoreError> {
    let objects = volume.objects();
    let (before, _) = objects.raise_capacity(0);
    check_growth(data, before, bytes)?;
    remember_size(data, bytes).map_err(|error| failed(data, "size", &error))?;
    Ok(objects.raise_capacity(bytes))
}

/// The same for a volume that nobody uses; what it was given before, or has taken.
pub fn grow(data: &Path, bytes: u64) -> Result<u64, StoreError> {
    if !data.join("format").is_file() {
        let text = format!("{} holds no volume; name another with --data", data.display());
        return Err(StoreError::data(text));
    }
    let directory = DataDirectory::open(data).map_err(|error| directory_failure(&error))?;
    let taken = std::fs::metadata(directory.blocks()).map_or(0, |file| file.len());
    let before = remembered_size(data)?.unwrap_or(taken);
    check_growth(data, before.max(MIN_SIZE), bytes)?;
    remember_size(data, bytes).map_err(|error| failed(data, "size", &error))?;
    Ok(before)
}

fn check_growth(data: &Path, before: u64, bytes: u64) -> Result<(), StoreError> {
    if bytes >= before {
        return Ok(());
    }
    Err(StoreError::usage(format!(
        "the volume in {} may take {before} bytes and does not become smaller: ask for more",
        data.display()
    )))
}

/// Notes the size that a volume has from now on.
fn remember_size(data: &Path, size: u64) -> std::io::Result<()> {
    let new = data.join("size.new");
    let mut file = std::fs::File::create(&new)?;
    file.write_all(format!("{size}\n").as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, data.join("size"))
}

/// Size of the data file at most: what it has, and what the disk has free.
fn room(directory: &DataDirectory) -> std::io::Result<u64> {
    let (free, reserve) = disk_room(directory.path(), Reserve::default())?;
    let used = std::fs::metadata(directory.blocks()).map_or(0, |file| file.len());
    Ok(used.saturating_add(free.saturating_sub(reserve)).max(MIN_SIZE))
}

/// Two segments: below that nothing of use fits.
const MIN_SIZE: u64 = 128 << 20;

pub(crate) fn random_id() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open(Path::new("/dev/urandom"))?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second try at a copy forgot which pool holds half of it when that was out of reach, and
    /// the third would have begun another copy in the data directory.
    #[test]
    fn what_an_earlier_copy_noted_stays_when_its_pool_is_out_of_reach() {
        let dir = tempfile::tempdir().unwrap();
        let (data, store) = (dir.path().join("copy"), "rados://far?conf=/nowhere");
        let options = StoreOptions {
            data: data.clone(),
            store: Some(store.into()),
            size: None,
            memory: 128 << 20,
            compression: Compression::None,
            read_delay: Duration::ZERO,
            spread: None,
        };
        assert!(parts(&options, Purpose::Fill).is_err());
        assert!(!data.join("store.copy").exists(), "nothing was copied there");
        std::fs::write(data.join("store.copy"), format!("{store}\n")).unwrap();
        assert!(parts(&options, Purpose::Fill).is_err());
        assert!(data.join("store.copy").exists(), "half of a copy may be there");
    }
}
