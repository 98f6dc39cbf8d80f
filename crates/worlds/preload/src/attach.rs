//! The attachment of this process: made when first needed, left behind by a fork.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use outboard_attach::host::{Connect, Host};
use outboard_client::{Errno, Result};
use outboard_os::fds;

use crate::config;
use crate::sys::{guard, lock::Lock, signals};

/// What a program's calls go to: the DPU side this process attaches to.
pub(crate) type Volume = outboard_client::Volume<Host>;
/// An open file there.
pub(crate) type File = outboard_client::File<Host>;
/// An open directory there.
pub(crate) type Dir = outboard_client::Dir<Host>;
/// Inodes there that are not to be forgotten.
pub(crate) type Held = outboard_client::Held<Host>;

/// How long the first attempt waits for a DPU side, which `outboard run` may be starting again.
const FIRST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long each does after one has failed.
const LATER_TIMEOUT: Duration = Duration::from_millis(200);
/// How long the DPU side may take to let go in order.
const DETACH: Duration = Duration::from_secs(5);
/// Room above the floor of the library's descriptors.
const ABOVE: u64 = 64;
/// Where they lie at the highest.
const FLOOR_MAX: u64 = 4096;

/// An attachment.
pub(crate) struct Attached {
    pub(crate) volume: Volume,
    /// Which of this process and its ancestors' it is.
    pub(crate) life: u32,
}

pub(crate) static CURRENT: Lock<Option<&'static Attached>> = Lock::new(None);
pub(crate) static ATTACHING: Lock<()> = Lock::new(());
static LIFE: AtomicU32 = AtomicU32::new(1);
static FAILED: AtomicBool = AtomicBool::new(false);

/// The attachment, made now if there is none. It is never freed: a thread may be using it.
pub(crate) fn attached() -> Result<&'static Attached> {
    if let Some(attached) = current() {
        return Ok(attached);
    }
    ATTACHING.with(|()| match current() {
        Some(attached) => Ok(attached),
        None => attach(),
    })
}

/// The attachment, if there is one.
pub(crate) fn current() -> Option<&'static Attached> {
    CURRENT.with(|current| *current)
}

/// Which life of the library in this process it is: a fork begins another.
pub(crate) fn life() -> u32 {
    LIFE.load(Ordering::Acquire)
}

fn attach() -> Result<&'static Attached> {
    let config = config::get().ok_or(Errno::ENOTCONN)?;
    fds::keep_above(floor());
    let failed = FAILED.load(Ordering::Relaxed);
    let timeout = if failed { LATER_TIMEOUT } else { FIRST_TIMEOUT };
    let how = Connect::new(&config.socket)
        .on_loss(config.on_loss)
        .timeout(timeout)
        .cache(config.cache)
        .managed(config.choice)
        .on_thread(guard::mine);
    // The program's signals are not for the threads of the library.
    match signals::blocked(|| Volume::attach(|front| how.attach(front))) {
        Ok(volume) => {
            let volume = volume.with_prefix(config.prefix.clone());
            FAILED.store(false, Ordering::Relaxed);
            let attached = Box::leak(Box::new(Attached { volume, life: life() }));
            CURRENT.with(|current| *current = Some(attached));
            Ok(attached)
        }
        Err(error) => {
            FAILED.store(true, Ordering::Relaxed);
            crate::say_once(&format!("no DPU side at {}: {error}", config.socket.display()));
            Err(Errno::ENOTCONN)
        }
    }
}

/// The first number of the library's own descriptors.
fn floor() -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let floor = limit.unwrap_or(FLOOR_MAX).saturating_sub(ABOVE).min(FLOOR_MAX);
    i32::try_from(floor).unwrap_or(0)
}

/// Leaves in order.
pub(crate) fn leave(volume: &Volume) -> std::io::Result<()> {
    volume.backend().detach(DETACH)
}

/// Leaves in order, if attached: what is open is opened again when it is next used.
pub(crate) fn detach() {
    let Some(attached) = CURRENT.with(Option::take) else { return };
    LIFE.fetch_add(1, Ordering::AcqRel);
    // A DPU side that does not answer will find out that this process is gone.
    let _left = leave(&attached.volume);
}

/// In a process that was just forked off, its locks free: the attachment is the parent's, and stays
/// untouched but for the copies of its descriptors, which must not outlive the parent.
pub(crate) fn abandon() {
    LIFE.fetch_add(1, Ordering::AcqRel);
    CURRENT.with(|current| *current = None);
    fds::take_ours().into_iter().for_each(signals::close);
}
