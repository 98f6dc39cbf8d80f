//! The data directory of a kv volume: one writer, one format.
//!
//! ```text
//! DIR/lock      held while in use; the holder's process id inside, for people
//! DIR/format    "outboard kv volume, format 1"
//! DIR/kv/       the key-value engine's files
//! DIR/blocks    the block store's medium
//! ```

use std::fmt;
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outboard_os::lock::{LOCK_PATIENCE, lock_within};

/// What the format file says.
const FORMAT: &str = "outboard kv volume, format 1\n";
/// How the format file of any version starts.
const FORMAT_START: &str = "outboard kv volume, format ";

/// Why a data directory cannot be used.
#[derive(Debug)]
pub enum DirectoryError {
    /// Another process has it.
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The process, if it said.
        pid: Option<u32>,
    },
    /// Made by another version.
    OtherFormat {
        /// The directory.
        dir: PathBuf,
        /// What its format file says.
        found: String,
    },
    /// It holds something, but no volume of ours.
    NotOurs {
        /// The directory.
        dir: PathBuf,
    },
    /// The operating system said no.
    Io {
        /// The directory.
        dir: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { dir, pid: Some(pid) } => write!(
                f,
                "{} is in use by process {pid}: stop that process, or choose another data \
                 directory",
                dir.display()
            ),
            Self::InUse { dir, pid: None } => write!(
                f,
                "{} is in use by another process: stop it, or choose another data directory",
                dir.display()
            ),
            Self::OtherFormat { dir, found } => write!(
                f,
                "{} was made by another version of outboard (it says {found:?}, this one reads \
                 {:?}): use that version, or choose another data directory",
                dir.display(),
                FORMAT.trim_end()
            ),
            Self::NotOurs { dir } => write!(
                f,
                "{} is neither empty nor an outboard volume: choose an empty or a new directory",
                dir.display()
            ),
            Self::Io { dir, cause } => {
                write!(f, "cannot use {} as data directory: {cause}", dir.display())
            }
        }
    }
}

impl std::error::Error for DirectoryError {}

/// A data directory held by this process until dropped.
#[derive(Debug)]
pub struct DataDirectory {
    dir: PathBuf,
    _lock: File,
}

impl DataDirectory {
    /// Takes the directory, making it if it does not exist, and checks that it is one of ours.
    pub fn open(dir: &Path) -> Result<DataDirectory, DirectoryError> {
        Self::open_within(dir, LOCK_PATIENCE)
    }

    /// As [`DataDirectory::open`], waiting at most `patience` for another holder to go.
    pub fn open_within(dir: &Path, patience: Duration) -> Result<DataDirectory, DirectoryError> {
        let failed = |cause| DirectoryError::Io { dir: dir.to_path_buf(), cause };
        std::fs::create_dir_all(dir).map_err(failed)?;
        Self::check(dir)?;
        let format = dir.join("format");
        let lock = take_lock(dir, patience)?;
        match std::fs::read_to_string(&format) {
            Ok(found) if found == FORMAT => {}
            Ok(found) if found.starts_with(FORMAT_START) => {
                let found = found.trim_end().to_string();
                return Err(DirectoryError::OtherFormat { dir: dir.to_path_buf(), found });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_format(dir, &format).map_err(failed)?;
            }
            Ok(_) => return Err(DirectoryError::NotOurs { dir: dir.to_path_buf() }),
            Err(error) => return Err(failed(error)),
        }
        keep_private(dir);
        Ok(DataDirectory { dir: dir.to_path_buf(), _lock: lock })
    }

    /// Whether a directory that exists holds a volume, or nothing and may: without touching it.
    pub fn check(dir: &Path) -> Result<(), DirectoryError> {
        let failed = |cause| DirectoryError::Io { dir: dir.to_path_buf(), cause };
        let ours = dir.join("format").exists() || dir.join("lock").exists();
        if ours || is_empty(dir).map_err(failed)? {
            return Ok(());
        }
        Err(DirectoryError::NotOurs { dir: dir.to_path_buf() })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Where the engine's files lie.
    #[must_use]
    pub fn kv(&self) -> PathBuf {
        self.dir.join("kv")
    }

    /// The medium's file.
    #[must_use]
    pub fn blocks(&self) -> PathBuf {
        self.dir.join("blocks")
    }
}

/// What may lie in the directory before the volume does: the program's log and settings.
const BESIDE: &[&str] = &["dpu.log", "outboard.toml"];

fn is_empty(dir: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if !BESIDE.iter().any(|beside| name == *beside) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What the volume's permissions protect must not be read beside it: the directory itself may be
/// searched by those who may attach. New files are made so; this mends those of earlier programs.
fn keep_private(dir: &Path) {
    for (name, mode) in [("kv", 0o700), ("blocks", 0o600)] {
        match std::fs::set_permissions(dir.join(name), Permissions::from_mode(mode)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(dir = %dir.display(), name, %error,
                "cannot keep the volume's files from other users; see their permissions"),
        }
    }
}

/// The format is written whole or not at all, and durable before anything is stored.
fn write_format(dir: &Path, path: &Path) -> io::Result<()> {
    let draft = dir.join("format.new");
    let mut file = File::create(&draft)?;
    file.write_all(FORMAT.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&draft, path)?;
    File::open(dir)?.sync_all()
}

fn take_lock(dir: &Path, patience: Duration) -> Result<File, DirectoryError> {
    let failed = |cause| DirectoryError::Io { dir: dir.to_path_buf(), cause };
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(dir.join("lock")).map_err(failed)?;
    lock_within(&file, patience).map_err(|error| match error {
        TryLockError::WouldBlock => {
            let mut pid = String::new();
            let pid = file.read_to_string(&mut pid).ok().and_then(|_| pid.trim().parse().ok());
            DirectoryError::InUse { dir: dir.to_path_buf(), pid }
        }
        TryLockError::Error(cause) => failed(cause),
    })?;
    let mut sign = || {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    sign().map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use outboard_fjall::{Engine, EngineOptions};
    use outboard_os::medium::{FileMedium, MediumOptions};

    use super::*;

    #[test]
    fn a_second_writer_is_told_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let held = DataDirectory::open(&path).unwrap();
        let refused = DataDirectory::open_within(&path, Duration::ZERO).unwrap_err().to_string();
        assert!(refused.contains(&std::process::id().to_string()), "{refused}");
        assert!(refused.contains("stop that process"), "{refused}");
        drop(held);
        DataDirectory::open(&path).unwrap();
    }

    #[test]
    fn another_version_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDirectory::open(dir.path()).unwrap());
        std::fs::write(dir.path().join("format"), "outboard kv volume, format 99\n").unwrap();
        let refused = DataDirectory::open(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("another version") && refused.contains("format 99"), "{refused}");
        assert!(refused.contains("choose another"), "{refused}");
    }

    #[test]
    fn somebody_elses_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.tex"), "").unwrap();
        let refused = DataDirectory::open(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("neither empty"), "{refused}");
        assert!(!dir.path().join("lock").exists());
    }

    /// The engine's files and the blocks had the modes of any new file: whoever could search the
    /// data directory read what the volume kept from them.
    #[test]
    fn nobody_reads_a_volume_beside_its_permissions() {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let dir = tempfile::tempdir().unwrap();
        for round in 0..2 {
            let held = DataDirectory::open(dir.path()).unwrap();
            drop(Engine::open(&held.kv(), EngineOptions::default()).unwrap());
            drop(FileMedium::open(&held.blocks(), MediumOptions::default()).unwrap());
            assert_eq!((mode(&held.kv()), mode(&held.blocks())), (0o700, 0o600), "round {round}");
            // As an earlier program left them.
            for (path, mode) in [(held.kv(), 0o755), (held.blocks(), 0o644)] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        drop(DataDirectory::open(dir.path()).unwrap());
        assert_eq!(mode(&dir.path().join("kv")), 0o700);
    }
}
