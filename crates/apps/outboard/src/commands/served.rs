//! A data directory of `outboard serve`, seen by the commands that look at it from outside.
//!
//! ```text
//! application   "kv over-dpu", "pages --plain" ...: what serves it, and where its files are
//! host.lock     locked while a host serves; its process, address and form inside
//! dpu.sock      the DPU side, which may outlive its host
//! control.sock  the host of the plain form, for who wants a copy
//! volume        the DPU side's device; `log` is the plain form's file
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outboard_os::lock::lock_within;
use serde_json::{Value, json};

use crate::exit::{Code, Failure};

/// Where a host without a DPU side listens.
pub(crate) const CONTROL: &str = "control.sock";

/// Who looks holds the lock for a moment.
const PATIENCE: Duration = Duration::from_millis(500);

/// What a directory is served as.
#[derive(Debug)]
pub(crate) struct ServedDir {
    data: PathBuf,
    /// `kv`, `pages` or `plugin`.
    pub(crate) application: String,
    /// Without a DPU side.
    pub(crate) is_plain: bool,
}

impl ServedDir {
    /// What lies in `data`; `None` if nobody ever served it.
    pub(crate) fn at(data: &Path) -> Result<Option<ServedDir>, Failure> {
        let path = data.join("application");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let text = format!("cannot read {}: {error}", path.display());
                return Err(Failure::new(Code::Data, text));
            }
        };
        let (application, place) = text.trim().split_once(' ').unwrap_or_else(|| (text.trim(), ""));
        let (application, is_plain) = (application.to_owned(), place == "--plain");
        Ok(Some(ServedDir { data: data.to_owned(), application, is_plain }))
    }

    /// The directory.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// Where its DPU side listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.data.join("dpu.sock")
    }

    /// Where who has its device is asked for a copy.
    pub(crate) fn copies(&self) -> PathBuf {
        if self.is_plain { self.data.join(CONTROL) } else { self.socket() }
    }

    /// The DPU side's device.
    pub(crate) fn device(&self) -> PathBuf {
        self.data.join("volume")
    }

    /// Its host, if one serves: its process, form and address.
    pub(crate) fn host(&self) -> Option<Value> {
        let path = self.data.join("host.lock");
        let file = File::open(&path).ok()?;
        // Shared, and let go of at once: several may look.
        if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
            return None;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut words = text.split_whitespace();
        let mut word = || words.next().map(str::to_owned);
        let (pid, form, listen) = (word(), word(), word());
        let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
        Some(json!({ "pid": pid, "form": form, "listen": listen }))
    }

    /// Keeps hosts out as long as the file is held; `None` if one serves.
    pub(crate) fn hold(&self) -> Result<Option<File>, Failure> {
        claim(&self.data)
    }
}

/// Takes the lock of a host; `None` if another has it.
pub(crate) fn claim(data: &Path) -> Result<Option<File>, Failure> {
    let path = data.join("host.lock");
    let cannot = |error: io::Error| {
        Failure::internal(format!("cannot open and lock {}: {error}", path.display()))
    };
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let lock = lock.map_err(cannot)?;
    match lock_within(&lock, PATIENCE) {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(cannot(error)),
    }
}

/// Notes in the lock who holds it, for [`ServedDir::host`].
pub(crate) fn note(mut lock: &File, form: &str, listen: SocketAddr) -> Result<(), Failure> {
    let text = format!("{} {form} {listen}\n", std::process::id());
    let noted = lock.set_len(0).and_then(|()| lock.write_all(text.as_bytes()));
    noted.map_err(|error| Failure::internal(format!("cannot note who serves: {error}")))
}
