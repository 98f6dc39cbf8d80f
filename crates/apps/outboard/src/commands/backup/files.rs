//! What of a data directory is copied: its files, but for what belongs to the processes that used
//! it.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use outboard_codec::archive::Name;
use outboard_os::lock::lock_within;
use rustix::fs::{SeekFrom, seek};

use super::{PATIENCE, cannot};
use crate::exit::{Code, Failure};

/// Locks, and what processes say. They are made anew where they are needed; the lock of an engine
/// is not, it is one of its files.
const OF_PROCESSES: [&str; 4] = ["lock", "host.lock", "dpu.log", "volume.aside"];

/// A file that is copied; nobody else changes what is copied of it meanwhile.
pub(super) struct Source {
    pub(super) name: Name,
    pub(super) len: u64,
    /// Of those, about how many are data.
    pub(super) bytes: u64,
    file: File,
    path: PathBuf,
}

/// What is copied, directories before what lies in them.
#[derive(Default)]
pub(super) struct Found {
    pub(super) directories: Vec<Name>,
    pub(super) files: Vec<Source>,
}

/// Finds and locks all of it.
pub(super) fn find(dir: &Path) -> Result<Found, Failure> {
    let mut found = Found::default();
    walk(dir, "", &mut found)?;
    Ok(found)
}

/// Finds and opens what lies in a directory that is served, but for the file `without`: others
/// write to the rest, but behind what is there. Files may come and go meanwhile.
pub(super) fn find_running(dir: &Path, without: &str) -> Result<Found, Failure> {
    let mut found = Found::default();
    for entry in std::fs::read_dir(dir).map_err(cannot("list", dir))? {
        let path = entry.map_err(cannot("list", dir))?.path();
        let last = path.file_name().unwrap_or_default().to_str();
        let is_ours = |name: &str| name == without || OF_PROCESSES.contains(&name);
        let what = match std::fs::metadata(&path) {
            Ok(about) => about.file_type(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(cannot("look at", &path)(error)),
        };
        // `seed.new` becomes `seed` in a moment.
        if what.is_socket() || last.is_some_and(|name| is_ours(name) || name == "seed.new") {
            continue;
        }
        let Some(name) = last.and_then(Name::new) else {
            return Err(strange(&path, "has no name that a data directory's files have"));
        };
        if !what.is_file() {
            return Err(strange(&path, "is no file"));
        }
        match File::open(&path) {
            Ok(file) => found.files.push(Source::of(name, path, file)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(cannot("open", &path)(error)),
        }
    }
    Ok(found)
}

fn walk(dir: &Path, above: &str, found: &mut Found) -> Result<(), Failure> {
    let here = dir.join(above);
    let entries = std::fs::read_dir(&here).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut entries = entries.map_err(cannot("list", &here))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let (path, last) = (entry.path(), entry.file_name());
        // Of a symlink what it leads to: a device may be named so.
        let what = std::fs::metadata(&path).map_err(cannot("look at", &path))?.file_type();
        let is_socket = what.is_socket();
        let slash = if above.is_empty() { "" } else { "/" };
        let name = last.to_str().map(|last| format!("{above}{slash}{last}"));
        if is_socket || name.as_deref().is_some_and(|name| OF_PROCESSES.contains(&name)) {
            continue;
        }
        let Some(name) = name.and_then(|name| Name::new(&name)) else {
            return Err(strange(&path, "has no name that a data directory's files have"));
        };
        let is_link = entry.file_type().map_err(cannot("look at", &path))?.is_symlink();
        if what.is_dir() && !is_link {
            let below = name.to_string();
            found.directories.push(name);
            walk(dir, &below, found)?;
        } else if what.is_file() || what.is_block_device() {
            found.files.push(Source::open(name, path)?);
        } else {
            return Err(strange(&path, "is neither a file nor a directory"));
        }
    }
    Ok(())
}

/// Left out, it might be missed; so it is said.
fn strange(path: &Path, how: &str) -> Failure {
    let text = format!("{} {how}; move it away, nothing was copied", path.display());
    Failure::new(Code::Data, text)
}

impl Source {
    fn open(name: Name, path: PathBuf) -> Result<Source, Failure> {
        let file = File::open(&path).map_err(cannot("open", &path))?;
        lock_within(&file, PATIENCE).map_err(|error| match error {
            TryLockError::WouldBlock => {
                let text = "is in use by another process, the DPU side: end it first";
                Failure::new(Code::Data, format!("{} {text}", path.display()))
            }
            TryLockError::Error(error) => cannot("lock", &path)(error),
        })?;
        Source::of(name, path, file)
    }

    fn of(name: Name, path: PathBuf, file: File) -> Result<Source, Failure> {
        // Of a device, too.
        let len = seek(&file, SeekFrom::End(0)).map_err(|e| cannot("measure", &path)(e.into()))?;
        let taken = file.metadata().map_err(cannot("measure", &path))?;
        let taken = taken.blocks().saturating_mul(512);
        let bytes = if taken == 0 { len } else { len.min(taken) };
        Ok(Source { name, len, bytes, file, path })
    }

    /// What the system knows of it.
    pub(super) fn about(&self) -> Result<Metadata, Failure> {
        self.file.metadata().map_err(cannot("measure", &self.path))
    }

    /// The next piece at or behind `at` that is no hole: where it is, and how much of `piece`.
    pub(super) fn next(&self, at: u64, piece: &mut [u8]) -> Result<Option<(u64, usize)>, Failure> {
        if at >= self.len {
            return Ok(None);
        }
        let cannot = |error: io::Error| cannot("read", &self.path)(error);
        let from = match seek(&self.file, SeekFrom::Data(at)) {
            Ok(from) if from >= self.len => return Ok(None),
            Ok(from) => from,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            // A device, or a file system that knows no holes.
            Err(rustix::io::Errno::INVAL) => at,
            Err(error) => return Err(cannot(error.into())),
        };
        let len = usize::try_from(self.len - from).unwrap_or(usize::MAX).min(piece.len());
        let into = piece.get_mut(..len).unwrap_or_default();
        self.file.read_exact_at(into, from).map_err(cannot)?;
        Ok(Some((from, len)))
    }
}
