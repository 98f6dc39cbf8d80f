//! The file service: files on segments of a medium, known to the DPU side alone (section 4.3; rows
//! D8-D10, D23).
//!
//! The medium is divided into segments of one length. Segment 0 holds the metadata; each other is
//! free or belongs to one file. Directories are flat. All metadata is in memory, the file mapping
//! too, so that a read costs one look-up and one I/O (one for each run of neighbouring segments).
//!
//! What holds:
//!
//! * A change of metadata is written before it is answered, and is there whole or not at all after
//!   a crash at any point: a checkpoint in one half of segment 0, a log of changes behind it,
//!   and the other half for the next checkpoint.
//! * A file's new size and segments are on record before the write that needed them is answered.
//!   A segment handed to a file reads as zeros where the file wrote nothing: one that was used
//!   before is cleaned, and that is flushed, first.
//! * A read sees an overlapping write whole or not at all, and every write answered before it
//!   began.
//! * [`FileService::flush`] makes what was answered survive power loss; a failure of it is final,
//!   as the medium's is.
//!
//! Its futures run on any thread, and must be polled to their ends: one dropped amid a write gives
//! its lock away while the medium may still be writing.

mod check;
mod format;
mod grow;
mod io;
mod log;
mod state;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_base::Errno;
use outboard_base::task;
use outboard_medium::Medium;
use outboard_wire::dds::{DirectoryId, FileId, NAME_MAX};

use format::{BLOCK, Record, Superblock};
pub use io::Data;
use log::Log;
use state::State;

/// A read of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOp {
    /// The file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// How many.
    pub bytes: u32,
}

/// How a medium is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a segment: a power of two, [`SEGMENT_MIN`] to [`SEGMENT_MAX`].
    pub segment: u64,
    /// Segments, that of the metadata among them: at least 2.
    pub segments: u32,
}

/// Shortest segment, bytes: room for two checkpoints and their logs.
pub const SEGMENT_MIN: u64 = 256 << 10;
/// Longest segment, bytes.
pub const SEGMENT_MAX: u64 = 1 << 30;
/// Longest file, bytes.
pub const FILE_MAX: u64 = 1 << 50;

impl Layout {
    /// The layout for `capacity` bytes: segments of a length that lets the metadata of as many fit
    /// segment 0.
    #[must_use]
    pub fn for_capacity(capacity: u64) -> Layout {
        let segment = (capacity / 16_384).next_power_of_two().clamp(1 << 20, SEGMENT_MAX);
        let segments = u32::try_from(capacity / segment).unwrap_or(u32::MAX).max(2);
        Layout { segment, segments }
    }

    fn is_valid(segment: u64, segments: u32) -> bool {
        (SEGMENT_MIN..=SEGMENT_MAX).contains(&segment) && segment.is_power_of_two() && segments >= 2
    }
}

/// Why a medium was not opened or formatted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Nothing is there: format it.
    Empty,
    /// Something is there that is not a volume of this file service.
    OtherFormat,
    /// A volume of another version.
    Version(u32),
    /// No checkpoint is whole, or what is recorded cannot be.
    Damaged(&'static str),
    /// A layout that cannot be.
    Layout,
    /// The volume has more bytes than it is to have.
    Smaller {
        /// So many.
        has: u64,
    },
    /// The volume's metadata would not fit.
    TooLarge {
        /// Bytes it can have at most.
        most: u64,
    },
    /// The medium refused.
    Io(Errno),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Empty => f.write_str("the device is empty: format it first"),
            OpenError::OtherFormat => f.write_str(
                "the device holds something else than a volume of the page server: name another, \
                 or clear its first 2 MiB if nothing on it is wanted",
            ),
            OpenError::Version(version) => write!(
                f,
                "the device holds a volume of version {version}, which this program does not know: \
                 use the program that wrote it"
            ),
            OpenError::Damaged(what) => {
                write!(f, "the volume's metadata is damaged ({what}): restore it from a copy")
            }
            OpenError::Layout => write!(
                f,
                "segments are a power of two from {SEGMENT_MIN} to {SEGMENT_MAX} bytes, and two or \
                 more"
            ),
            OpenError::Smaller { has } => write!(
                f,
                "the volume has {has} bytes and does not become smaller: ask for at least as many, \
                 or for none"
            ),
            OpenError::TooLarge { most } => {
                write!(f, "the volume was made for less: it grows to {most} bytes at most")
            }
            OpenError::Io(errno) => write!(f, "the device cannot be read or written: {errno}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> OpenError {
        OpenError::Io(errno)
    }
}

/// Why an operation was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileError {
    /// There is no such file.
    NoFile,
    /// There is no such directory.
    NoDirectory,
    /// The name is taken.
    Exists,
    /// The directory holds files.
    NotEmpty,
    /// A name of no bytes, or of too many.
    Name,
    /// Beyond the longest file.
    Range,
    /// No segment is free, or the metadata segment is full.
    Full,
    /// The medium failed.
    Io(Errno),
}

impl FileError {
    /// The errno of a response.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            FileError::NoFile | FileError::NoDirectory => Errno::ENOENT,
            FileError::Exists => Errno::EEXIST,
            FileError::NotEmpty => Errno::ENOTEMPTY,
            FileError::Name => Errno::EINVAL,
            FileError::Range => Errno::EFBIG,
            FileError::Full => Errno::ENOSPC,
            FileError::Io(errno) => errno,
        }
    }
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FileError::NoFile => f.write_str("no such file"),
            FileError::NoDirectory => f.write_str("no such directory"),
            FileError::Exists => f.write_str("the name is taken"),
            FileError::NotEmpty => f.write_str("the directory holds files"),
            FileError::Name => write!(f, "a name has 1 to {NAME_MAX} bytes"),
            FileError::Range => write!(f, "a file ends at {FILE_MAX} bytes"),
            FileError::Full => f.write_str("no segment is free"),
            FileError::Io(errno) => write!(f, "the device failed: {errno}"),
        }
    }
}

impl std::error::Error for FileError {}

impl From<Errno> for FileError {
    fn from(errno: Errno) -> FileError {
        match errno {
            Errno::ENOSPC => FileError::Full,
            errno => FileError::Io(errno),
        }
    }
}

/// Space of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a segment.
    pub segment: u64,
    /// Segments, that of the metadata among them.
    pub segments: u32,
    /// Free ones.
    pub free: u32,
    /// Files.
    pub files: usize,
}

/// The file service of one medium.
pub struct FileService<M> {
    medium: M,
    superblock: Superblock,
    state: Mutex<State>,
    /// Who changes the metadata, one at a time.
    changing: task::Mutex,
    /// Who puts segments aside, one at a time.
    reserving: task::Mutex,
    /// Where the next change is written; of who is in `changing`.
    log: Mutex<Log>,
    /// Bytes of data copied between buffers since last asked.
    copied: AtomicU64,
}

fn checked(name: &[u8]) -> Result<Vec<u8>, FileError> {
    if (1..=NAME_MAX).contains(&name.len()) { Ok(name.to_vec()) } else { Err(FileError::Name) }
}

impl<M: Medium> FileService<M> {
    /// Makes an empty volume on a medium. Refuses one with anything on it unless `force`. `name`
    /// tells this volume from others.
    ///
    /// # Errors
    /// [`OpenError::OtherFormat`]; [`OpenError::Layout`]; the medium's.
    pub async fn format(
        medium: &M,
        layout: Layout,
        name: u64,
        force: bool,
    ) -> Result<(), OpenError> {
        log::format(medium, layout, name, force).await
    }

    /// Opens the volume on a medium.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(medium: M) -> Result<FileService<M>, OpenError> {
        let (superblock, state, log) = log::recover(&medium).await?;
        let service = FileService::over(medium, superblock, state, log);
        // From here on nothing an earlier life wrote behind the checkpoint can be mistaken for
        // this one's.
        service.checkpoint().await.map_err(|error| OpenError::Io(error.errno()))?;
        Ok(service)
    }

    fn over(medium: M, superblock: Superblock, state: State, log: Log) -> FileService<M> {
        FileService {
            medium,
            superblock,
            state: Mutex::new(state),
            changing: task::Mutex::default(),
            reserving: task::Mutex::default(),
            log: Mutex::new(log),
            copied: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of data it copied from one buffer to another since this was last asked, because they
    /// did not lie as the medium wants them: for the ledger.
    #[must_use]
    pub fn take_copied(&self) -> u64 {
        self.copied.swap(0, Ordering::Relaxed)
    }

    /// What tells this volume from others.
    #[must_use]
    pub fn name(&self) -> u64 {
        self.superblock.name
    }

    /// Its space.
    #[must_use]
    pub fn space(&self) -> Space {
        let state = self.state();
        Space {
            segment: self.superblock.segment,
            segments: self.superblock.segments,
            free: state.bitmap.free(),
            files: state.files.len(),
        }
    }

    /// Bytes the medium has now: it grows as files do.
    #[must_use]
    pub fn device_len(&self) -> u64 {
        self.medium.len()
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`FileError::Exists`], [`FileError::Name`], [`FileError::Full`], the medium's.
    pub async fn create_directory(&self, name: &[u8]) -> Result<DirectoryId, FileError> {
        let name = checked(name)?;
        let _guard = self.changing.lock().await;
        let id = {
            let state = self.state();
            if state.names.contains_key(&name) {
                return Err(FileError::Exists);
            }
            state.next_directory
        };
        self.commit(&[Record::Directory { id, name }]).await?;
        Ok(DirectoryId(id))
    }

    /// The directory of a name.
    ///
    /// # Errors
    /// [`FileError::NoDirectory`].
    pub fn directory(&self, name: &[u8]) -> Result<DirectoryId, FileError> {
        self.state().names.get(name).map(|id| DirectoryId(*id)).ok_or(FileError::NoDirectory)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FileError::NoDirectory`], [`FileError::NotEmpty`], the medium's.
    pub async fn remove_directory(&self, directory: DirectoryId) -> Result<(), FileError> {
        let _guard = self.changing.lock().await;
        {
            let state = self.state();
            let it = state.directories.get(&directory.0).ok_or(FileError::NoDirectory)?;
            if !it.files.is_empty() {
                return Err(FileError::NotEmpty);
            }
        }
        self.commit(&[Record::Gone { id: directory.0 }]).await
    }

    /// Makes an empty file. Ids are never used twice.
    ///
    /// # Errors
    /// [`FileError::NoDirectory`], [`FileError::Exists`], [`FileError::Name`],
    /// [`FileError::Full`], the medium's.
    pub async fn create(&self, directory: DirectoryId, name: &[u8]) -> Result<FileId, FileError> {
        let name = checked(name)?;
        let _guard = self.changing.lock().await;
        let id = {
            let state = self.state();
            let it = state.directories.get(&directory.0).ok_or(FileError::NoDirectory)?;
            if it.files.contains_key(&name) {
                return Err(FileError::Exists);
            }
            state.next_file
        };
        self.commit(&[Record::File { id, directory: directory.0, name }]).await?;
        Ok(FileId(id))
    }

    /// The file of a name.
    ///
    /// # Errors
    /// [`FileError::NoDirectory`], [`FileError::NoFile`].
    pub fn file(&self, directory: DirectoryId, name: &[u8]) -> Result<FileId, FileError> {
        let state = self.state();
        let it = state.directories.get(&directory.0).ok_or(FileError::NoDirectory)?;
        it.files.get(name).map(|id| FileId(*id)).ok_or(FileError::NoFile)
    }

    /// Bytes of a file.
    ///
    /// # Errors
    /// [`FileError::NoFile`].
    pub fn size(&self, file: FileId) -> Result<u64, FileError> {
        self.state().file(file.0).map(|file| file.size)
    }

    /// Deletes a file, once what reads and writes it has ended.
    ///
    /// # Errors
    /// [`FileError::NoFile`], the medium's.
    pub async fn delete(&self, file: FileId) -> Result<(), FileError> {
        let _alone = self.lock(file, 0..u64::MAX, true).await?;
        let _guard = self.changing.lock().await;
        self.state().file(file.0)?;
        self.commit(&[Record::Deleted { id: file.0 }]).await
    }

    /// Makes a file `size` bytes long: cut, or filled with zeros.
    ///
    /// # Errors
    /// [`FileError::NoFile`], [`FileError::Range`], [`FileError::Full`], the medium's.
    pub async fn resize(&self, file: FileId, size: u64) -> Result<(), FileError> {
        if size > FILE_MAX {
            return Err(FileError::Range);
        }
        let _alone = self.lock(file, 0..u64::MAX, true).await?;
        let before = self.size(file)?;
        if size < before {
            let _guard = self.changing.lock().await;
            return self.commit(&[Record::Cut { id: file.0, size }]).await;
        }
        if size > before {
            self.clean(file).await?;
            self.reserve(file, size).await?;
            self.record_growth(file, size).await?;
        }
        Ok(())
    }

    /// What a directory holds, or with [`DirectoryId::ROOT`] the directories, in ascending order of
    /// ids greater than `after`: id, size (of a directory its files) and name, until `each` says
    /// false. Whether it was told everything.
    ///
    /// # Errors
    /// [`FileError::NoDirectory`].
    pub fn list(
        &self,
        directory: DirectoryId,
        after: u32,
        mut each: impl FnMut(u32, u64, &[u8]) -> bool,
    ) -> Result<bool, FileError> {
        let state = self.state();
        let Some(from) = after.checked_add(1) else { return Ok(true) };
        if directory == DirectoryId::ROOT {
            let mut all = state.directories.range(from..);
            return Ok(all.all(|(id, it)| each(*id, it.files.len() as u64, &it.name)));
        }
        state.directories.get(&directory.0).ok_or(FileError::NoDirectory)?;
        let all = state.files.range(from..).filter(|(_, file)| file.directory == directory.0);
        let mut all = all.map(|(id, file)| (*id, file.size, &file.name));
        Ok(all.all(|(id, size, name)| each(id, size, name)))
    }

    /// Makes every write answered before, of every file, survive power loss.
    ///
    /// # Errors
    /// [`FileError::NoFile`]; the medium's, which is final.
    pub async fn flush(&self, file: FileId) -> Result<(), FileError> {
        self.state().file(file.0)?;
        self.medium.flush().await.map_err(FileError::Io)
    }

    /// The same, before an orderly end.
    ///
    /// # Errors
    /// The medium's, which is final.
    pub async fn flush_all(&self) -> Result<(), Errno> {
        self.medium.flush().await
    }
}

/// The blocks that `len` bytes from `offset` touch.
fn blocks(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK as u64..(offset + len).div_ceil(BLOCK as u64)
}
