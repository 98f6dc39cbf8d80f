//! Opening the kv volume of a data directory: lock, engine, data file, KVFS over them.

use std::io::Read;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use outboard_drivers::clock;
use outboard_drivers::dpu::Poller;
use outboard_drivers::engine::directory::{DataDirectory, DirectoryError};
use outboard_drivers::engine::{Engine, EngineOptions, Reserve, disk_room};
use outboard_drivers::executor::block_on;
use outboard_drivers::link::Bell;
use outboard_drivers::medium::{FileMedium, MediumOptions, Reactor};
use outboard_kv::object::Recovered;
use outboard_kvfs::{Kvfs, OpenError, Options};

use crate::exit::{Code, Failure};
use crate::settings::Settings;

/// Operations of storage under way at once, at most.
const RING_DEPTH: u32 = 1024;

/// The volume of the embedded engine.
pub(crate) type Volume = Arc<Kvfs<Engine, FileMedium>>;

/// An open volume with the thread's runtime, which must drive it.
pub(crate) struct Open {
    pub(crate) volume: Volume,
    pub(crate) runtime: Rc<Poller>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) directory: DataDirectory,
}

/// Opens the volume in the settings' data directory, or makes one there if `create`.
pub(crate) fn open(settings: &Settings, create: bool) -> Result<Open, Failure> {
    let data = settings.data();
    if !create && !data.join("format").is_file() {
        return Err(Failure::new(
            Code::Data,
            format!("{} holds no volume; name another with --data", data.display()),
        ));
    }
    let directory = DataDirectory::open(&data).map_err(|error| directory_failure(&error))?;
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(Code::Data, format!("cannot open the {what} in {}: {error}", data.display()))
    };
    let bell = Arc::new(Bell::new().map_err(|error| failed("wake event", &error))?);
    let reactor = Reactor::install(RING_DEPTH)
        .inspect_err(|error| tracing::warn!(%error, "no io_uring here: storage I/O uses threads"))
        .ok();
    let threads = if reactor.is_some() { 0 } else { 8 };
    let runtime = Rc::new(Poller::new(Arc::clone(&bell), reactor));
    let memory = settings.memory()?;
    let engine = EngineOptions { cache: memory / 8, ..EngineOptions::default() };
    let engine = Engine::open(&directory.kv(), engine).map_err(|error| failed("engine", &error))?;
    let read_delay = settings.read_delay();
    let medium = MediumOptions { threads, read_delay, ..MediumOptions::default() };
    let medium = FileMedium::open(&directory.blocks(), medium)
        .and_then(|medium| medium.beside(&directory.kv()))
        .map_err(|error| failed("data file", &error))?;
    if !medium.is_direct() {
        tracing::info!("the file system refuses O_DIRECT: the data file is buffered");
    }
    let options = Options {
        capacity: capacity(settings, &directory)?,
        cache_bytes: usize::try_from(memory / 4 * 3).unwrap_or(usize::MAX),
        id: random_id().map_err(|error| failed("source of random numbers", &error))?,
        owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        ..Options::default()
    };
    let opening = Kvfs::open(engine, medium, options, clock::wall());
    let volume = block_on(opening).map_err(|error| match error {
        OpenError::Store(error) => failed("volume", &error),
        error => Failure::new(Code::Data, format!("{}: {error}", data.display())),
    })?;
    report(volume.recovered());
    Ok(Open { volume: Arc::new(volume), runtime, bell, directory })
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

fn directory_failure(error: &DirectoryError) -> Failure {
    Failure::new(Code::Data, error.to_string())
}

/// Size of the data file at most. `--size` is remembered in the directory; without either, what the
/// disk has free.
fn capacity(settings: &Settings, directory: &DataDirectory) -> Result<u64, Failure> {
    let path = directory.path().join("size");
    let io = |error: std::io::Error| {
        Failure::new(Code::Data, format!("cannot use {}: {error}", path.display()))
    };
    if let Some(size) = settings.size()? {
        if size < MIN_SIZE {
            return Err(Failure::usage(format!(
                "--size {size} is too small for a volume; the least is 128M"
            )));
        }
        std::fs::write(&path, format!("{size}\n")).map_err(io)?;
        return Ok(size);
    }
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| {
            Failure::new(Code::Data, format!("{} holds no number; give --size", path.display()))
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let (free, reserve) = disk_room(directory.path(), Reserve::default()).map_err(io)?;
            let used = std::fs::metadata(directory.blocks()).map_or(0, |file| file.len());
            Ok(used.saturating_add(free.saturating_sub(reserve)).max(MIN_SIZE))
        }
        Err(error) => Err(io(error)),
    }
}

/// Two segments: below that nothing of use fits.
const MIN_SIZE: u64 = 128 << 20;

fn random_id() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    std::fs::File::open(Path::new("/dev/urandom"))?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
