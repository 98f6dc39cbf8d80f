//! What the environment asks for, and where the process stands.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use outboard_attach::host::{Choice, LossPolicy};
use outboard_client::walk::below;

/// `OUTBOARD_PREFIX`, `OUTBOARD_SOCKET`, `OUTBOARD_ON_LOSS`, `OUTBOARD_CACHE`.
pub(crate) struct Config {
    /// The prefix as given, without a slash at its end.
    given: Vec<u8>,
    /// The same as the kernel names it.
    pub(crate) prefix: Vec<u8>,
    pub(crate) socket: PathBuf,
    pub(crate) on_loss: LossPolicy,
    /// Bytes of cached pages; 0: none.
    pub(crate) cache: u64,
    /// How they are managed.
    pub(crate) choice: Choice,
    device: OnceLock<Option<u64>>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();
/// How the working directory lies to the prefix: see [`Standing`].
static STANDING: AtomicU8 = AtomicU8::new(0);
static UMASK: AtomicU32 = AtomicU32::new(0o022);

/// How the working directory lies to the prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Standing {
    Apart = 0,
    /// The prefix lies below it.
    Above = 1,
    /// In the volume.
    Inside = 2,
}

/// Reads the environment; false if it asks for nothing, or for what cannot be.
pub(crate) fn read() -> bool {
    let prefix = std::env::var_os("OUTBOARD_PREFIX");
    let socket = std::env::var_os("OUTBOARD_SOCKET");
    let (prefix, socket) = match (prefix, socket) {
        (None, None) => return false,
        (Some(prefix), Some(socket)) => (prefix.into_vec(), PathBuf::from(socket)),
        _ => {
            crate::say("both OUTBOARD_PREFIX and OUTBOARD_SOCKET are needed; nothing is served");
            return false;
        }
    };
    let end = prefix.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let given = prefix.get(..end).unwrap_or_default().to_vec();
    if !given.starts_with(b"/") {
        crate::say("OUTBOARD_PREFIX must be an absolute path other than /; nothing is served");
        return false;
    }
    let on_loss = match std::env::var("OUTBOARD_ON_LOSS").as_deref() {
        Err(_) | Ok("wait") => LossPolicy::default(),
        Ok("fail") => LossPolicy::Fail { after: Duration::ZERO },
        Ok(seconds) => match seconds.parse() {
            Ok(seconds) => LossPolicy::within(Duration::from_secs(seconds)),
            Err(_) => {
                crate::say("OUTBOARD_ON_LOSS is `wait`, `fail` or a number of seconds; it waits");
                LossPolicy::default()
            }
        },
    };
    let asked = std::env::var("OUTBOARD_CACHE").unwrap_or_default();
    let (cache, choice) = cached(&asked).unwrap_or_else(|| {
        crate::say(
            "OUTBOARD_CACHE is a number of MiB, or 64,replace=lru,prefetch=none and the like; \
             nothing is cached",
        );
        (0, Choice::default())
    });
    let prefix = canonical(&given);
    let config = Config { given, prefix, socket, on_loss, cache, choice, device: OnceLock::new() };
    CONFIG.set(config).is_ok()
}

/// Bytes of a cache, and how it is managed.
fn cached(text: &str) -> Option<(u64, Choice)> {
    if text.is_empty() {
        return Some((0, Choice::default()));
    }
    let (mebibytes, choice) = text.split_once(',').unwrap_or((text, ""));
    let bytes = u64::from(mebibytes.parse::<u32>().ok()?) << 20;
    Some((bytes, Choice::parse(choice)?))
}

/// The prefix with the links before its last name followed. Its own attributes are not asked for:
/// a mount whose server is gone would not answer.
fn canonical(given: &[u8]) -> Vec<u8> {
    let path = Path::new(std::ffi::OsStr::from_bytes(given));
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return given.to_vec();
    };
    let parent = std::fs::canonicalize(parent).unwrap_or_else(|_| parent.to_path_buf());
    parent.join(name).into_os_string().into_vec()
}

/// The configuration, once there is one.
pub(crate) fn get() -> Option<&'static Config> {
    CONFIG.get()
}

impl Config {
    /// What follows the prefix in an absolute path, if it begins with it.
    pub(crate) fn inside<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        below(path, &self.given).or_else(|| below(path, &self.prefix))
    }

    /// The device number of the mount at the prefix, if there is one.
    pub(crate) fn device(&self) -> Option<u64> {
        *self.device.get_or_init(|| {
            let table = std::fs::read("/proc/self/mountinfo").ok()?;
            mounted(&table, &self.prefix)
        })
    }

    /// A path of the volume as the kernel names it.
    pub(crate) fn outward(&self, path: &[u8]) -> Vec<u8> {
        [self.prefix.as_slice(), path].concat()
    }
}

/// The device of the last `fuse.outboard` file system mounted at `prefix`.
fn mounted(table: &[u8], prefix: &[u8]) -> Option<u64> {
    let line = table.split(|byte| *byte == b'\n').rfind(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        words.nth(4).is_some_and(|at| unescaped(at) == prefix)
    })?;
    let mut words = line.split(|byte| *byte == b' ');
    let device = std::str::from_utf8(words.nth(2)?).ok()?;
    let kind = words.skip_while(|word| *word != b"-").nth(1)?;
    if kind != b"fuse.outboard" {
        return None;
    }
    let (major, minor) = device.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// A field of the mount table with its `\040` and the like undone.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(code) if byte == b'\\' => {
                plain.push(code);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

/// The working directory has changed, or may have.
pub(crate) fn moved() {
    let Some(config) = get() else { return };
    let cwd = cwd();
    let standing = if below(&cwd, &config.prefix).is_some() {
        Standing::Inside
    } else if below(&config.prefix, &cwd).is_some() || cwd == b"/" {
        Standing::Above
    } else {
        Standing::Apart
    };
    STANDING.store(standing as u8, Ordering::Relaxed);
}

/// The working directory; empty if it cannot be named.
pub(crate) fn cwd() -> Vec<u8> {
    rustix::process::getcwd(Vec::new()).map(|path| path.into_bytes()).unwrap_or_default()
}

/// An absolute path for one that begins at the working directory, if it may lead to the volume.
pub(crate) fn absolute(path: &[u8]) -> Option<Vec<u8>> {
    if STANDING.load(Ordering::Relaxed) == Standing::Apart as u8 {
        return None;
    }
    let mut whole = cwd();
    if !whole.ends_with(b"/") {
        whole.push(b'/');
    }
    whole.extend_from_slice(path);
    Some(whole)
}

/// The umask.
pub(crate) fn umask() -> u32 {
    UMASK.load(Ordering::Relaxed)
}

/// The umask is this.
pub(crate) fn set_umask(umask: u32) {
    UMASK.store(umask & 0o777, Ordering::Relaxed);
}
