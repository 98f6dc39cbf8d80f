//! The journal being written: found, followed when the engine begins another, and prepared.
//!
//! The engine makes a journal 64 MiB of holes and writes it from the start. A write into a hole
//! makes the file system allocate, and the sync after it commit the file system's own journal:
//! twice the device's work. So zeros are written ahead of the engine, 512 KiB at a time. They never
//! land on what the engine wrote, because
//! - they are written with the lock held that every commit passes, so the engine is not writing;
//!   and
//! - only where the file has a hole up to its end: where anybody wrote, it has none.
//!
//! A journal that was there when the engine opened is written by appending, and must not be longer
//! than what is in it. After its first commit the engine's descriptor stands at its end; then the
//! append flag is taken off it, and it is a journal like any other.
//!
//! Whether the engine began another journal is a question to the file system, and not asked while
//! the answer is known: the engine goes on to another only beyond its limit, and what it wrote is
//! counted here. Besides the system calls that saves a device write: where times are kept finely
//! (since Linux 6.13), who looks at a file's times makes the next write change them, and the sync
//! after it write the inode.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{OFlags, SeekFrom, fcntl_getfl, fcntl_setfl, seek};
use rustix::io::Errno;
use tracing::debug;

use super::journals;
use outboard_os::sys::descriptors;
use outboard_os::writing;

/// Bytes of zeros written at a time.
const STEP: u64 = 512 << 10;
/// They are written when fewer are left than this.
const LOW: u64 = 128 << 10;
/// The engine does not change journals while they are shorter than this (its limit is 64,000,000).
const SHORT: u64 = 60_000_000;

/// How the engine writes a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// At its end, wherever that is.
    Appending,
    /// From where it left off.
    InPlace,
    /// Unknown, or nothing is to be gained: it is left alone.
    LeftAlone,
}

/// The journal being written.
pub(super) struct Current {
    dir: PathBuf,
    number: u64,
    file: Arc<File>,
    /// The one before, while nothing is in `file`: should the engine fail between making a journal
    /// and using it, what is committed until it has noticed goes there.
    before: Option<Arc<File>>,
    written: Written,
    /// About where the engine writes next; never taken for more than a hint.
    position: u64,
    /// Up to here the file is not holes.
    prepared: u64,
    /// What was committed to this journal, bytes, at most.
    most: u64,
    /// What of it was committed since there was surely no newer journal.
    unlooked: u64,
}

/// What is to be synced.
pub(super) struct Files {
    before: Option<Arc<File>>,
    file: Arc<File>,
}

impl Files {
    pub(super) fn sync(&self) -> io::Result<()> {
        if let Some(before) = &self.before {
            before.sync_data()?;
        }
        self.file.sync_data()
    }
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number}.jnl"))
}

fn open(path: &Path) -> io::Result<Arc<File>> {
    Ok(Arc::new(File::options().read(true).write(true).open(path)?))
}

impl Current {
    /// The last journal in `dir`; `before` is the last there was before the engine opened.
    pub(super) fn find(dir: &Path, before: Option<u64>) -> io::Result<Current> {
        let (number, path) = journals(dir)?.pop().ok_or(io::ErrorKind::NotFound)?;
        let file = open(&path)?;
        let appending = before.is_some_and(|before| number <= before);
        let position = if appending { file.metadata()?.len() } else { 0 };
        let written = if appending { Written::Appending } else { Written::InPlace };
        let dir = dir.to_path_buf();
        let (prepared, most, unlooked) = (0, position, 0);
        let before = None;
        Ok(Current { dir, number, file, before, written, position, prepared, most, unlooked })
    }

    #[cfg(test)]
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The files whose sync makes all durable that was committed before this call: one, since the
    /// engine has synced a journal when it begins another, or two while the other is empty.
    pub(super) fn files(&mut self) -> io::Result<Files> {
        self.follow()?;
        let mut first = [0];
        // A batch begins with a tag that is not zero.
        if self.before.is_some() && self.file.read_at(&mut first, 0)? > 0 && first != [0] {
            self.before = None;
        }
        Ok(Files { before: self.before.clone(), file: Arc::clone(&self.file) })
    }

    /// Begins to write to the device what was committed.
    pub(super) fn begin_writing(&self) -> io::Result<()> {
        writing::begin(&self.file)
    }

    /// Goes on to the newest journal, if there can be another than this. The one being written is
    /// never deleted; if this one is, the next may be, too.
    ///
    /// A batch is counted after it was written, by who holds the lock of commits. One that is not
    /// counted yet lies here nevertheless: the engine changes journals after what takes it beyond
    /// its limit, and nobody commits to the next before this one is counted.
    fn follow(&mut self) -> io::Result<()> {
        if self.most < SHORT {
            return Ok(());
        }
        loop {
            let mut number = self.number + 1;
            let file = match open(&path(&self.dir, number)) {
                Ok(file) => file,
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Err(_) if self.file.metadata()?.nlink() > 0 => {
                    self.unlooked = 0;
                    return Ok(());
                }
                Err(_) => {
                    let newest = journals(&self.dir)?.pop().ok_or(io::ErrorKind::NotFound)?;
                    number = newest.0;
                    open(&newest.1)?
                }
            };
            self.before = Some(std::mem::replace(&mut self.file, file));
            (self.number, self.written) = (number, Written::InPlace);
            (self.position, self.prepared, self.most) = (0, 0, self.unlooked);
        }
    }

    /// To be called after each commit was flushed to the OS, with the lock of commits held and the
    /// engine healthy; `bytes` is what it takes in the journal.
    pub(super) fn committed(&mut self, bytes: u64) {
        self.position += bytes;
        self.most += bytes;
        self.unlooked += bytes;
        if self.written == Written::LeftAlone || self.position + LOW <= self.prepared {
            return;
        }
        if let Err(error) = self.prepare() {
            // Syncs are slower without, and that is all.
            debug!(%error, journal = self.number, "cannot prepare the journal");
            self.written = Written::LeftAlone;
        }
    }

    fn prepare(&mut self) -> io::Result<()> {
        self.follow()?;
        let len = self.file.metadata()?.len();
        if self.written == Written::Appending {
            self.written = Written::LeftAlone;
            if len < SHORT && stop_appending(&path(&self.dir, self.number), len)? {
                self.written = Written::InPlace;
                (self.position, self.prepared) = (len, len);
            }
        }
        if self.written == Written::InPlace {
            self.write_zeros(len)?;
        }
        Ok(())
    }

    fn write_zeros(&mut self, len: u64) -> io::Result<()> {
        let from = match seek(&self.file, SeekFrom::Hole(self.prepared)) {
            Ok(from) => from,
            Err(Errno::NXIO) => len,
            Err(error) => return Err(error.into()),
        };
        if self.prepared == 0 {
            if from == len {
                // A file system that has no holes has nothing to prepare.
                self.written = Written::LeftAlone;
                return Ok(());
            }
            self.position = from;
        }
        // From there on all is a hole, or beyond the end: nobody ever wrote there.
        if seek(&self.file, SeekFrom::Data(from)) != Err(Errno::NXIO) {
            return Err(io::Error::other("there is data behind a hole"));
        }
        self.file.write_all_at(&ZEROS, from)?;
        self.prepared = from + STEP;
        self.position = self.position.min(self.prepared);
        Ok(())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "512 KiB")]
static ZEROS: [u8; STEP as usize] = [0; STEP as usize];

/// Takes the append flag off this process's descriptor that appends to `path`, if there is one and
/// it stands at `len`, the end of the file. Nobody may write there meanwhile.
fn stop_appending(path: &Path, len: u64) -> io::Result<bool> {
    let path = path.canonicalize()?;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // Descriptors come and go while they are listed.
        if !std::fs::read_link(entry.path()).is_ok_and(|target| target == path) {
            continue;
        }
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<RawFd>().ok()) else {
            continue;
        };
        // Besides ours, which stays open, that is the engine's, which it closes only when it
        // changes journals: not while this one is short, which the caller made sure of.
        let fd = descriptors::second_of(number)?;
        if stop_one(fd.as_fd(), len)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn stop_one(fd: BorrowedFd<'_>, len: u64) -> io::Result<bool> {
    let flags = fcntl_getfl(fd)?;
    if !flags.contains(OFlags::APPEND) || seek(fd, SeekFrom::Current(0))? != len {
        return Ok(false);
    }
    fcntl_setfl(fd, flags - OFlags::APPEND)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The engine made a journal and failed before it used it. What was committed until it had
    /// noticed went to the journal before; syncs went to the new one, and said that all is durable.
    #[test]
    fn until_a_journal_is_used_the_one_before_is_synced_too() {
        let dir = tempfile::tempdir().unwrap();
        let make = |number: u64, bytes: &[u8]| std::fs::write(path(dir.path(), number), bytes);
        make(3, b"batches").unwrap();
        let mut current = Current::find(dir.path(), None).unwrap();
        let synced = |current: &mut Current| {
            current.committed(SHORT);
            let files = current.files().unwrap();
            files.sync().unwrap();
            let inode = |file: &File| file.metadata().unwrap().ino();
            (files.before.as_deref().map(inode), inode(&files.file))
        };
        let third = std::fs::metadata(path(dir.path(), 3)).unwrap().ino();
        assert_eq!(synced(&mut current), (None, third));
        // As the engine makes one: nothing at first, then zeros, then batches.
        for zeros in [0, 4096] {
            make(4, &vec![0; zeros]).unwrap();
            let fourth = std::fs::metadata(path(dir.path(), 4)).unwrap().ino();
            assert_eq!(synced(&mut current), (Some(third), fourth));
        }
        make(4, b"\x01batches").unwrap();
        assert_eq!(synced(&mut current).0, None);
        assert_eq!(synced(&mut current).0, None);
    }

    /// Each sync asked the file system for the next journal, and looked at this one's times. It
    /// asks when so much was committed that there may be one: to the old one, or, since the last
    /// time that there was none, to one it does not know of.
    #[test]
    fn another_journal_is_looked_for_when_there_can_be_one() {
        let dir = tempfile::tempdir().unwrap();
        let write = |number: u64| std::fs::write(path(dir.path(), number), "batches").unwrap();
        let number = |current: &mut Current| {
            current.files().unwrap();
            current.number
        };
        write(3);
        let mut current = Current::find(dir.path(), None).unwrap();
        write(4);
        assert_eq!(number(&mut current), 3, "it did not ask");
        current.committed(SHORT - 1);
        assert_eq!(number(&mut current), 3);
        current.committed(1);
        assert_eq!(number(&mut current), 4);
        // All of it may have been committed to the new one already.
        assert_eq!(current.most, SHORT);
        write(5);
        assert_eq!(number(&mut current), 5);
        assert_eq!(current.most, 0, "nothing was since it was last not there");
        write(6);
        current.committed(SHORT - 1);
        assert_eq!(number(&mut current), 5);
        current.committed(1);
        assert_eq!(number(&mut current), 6);
        current.committed(1);
        assert_eq!(number(&mut current), 6);
        current.committed(100);
        write(7);
        assert_eq!(number(&mut current), 7);
        assert_eq!(current.most, 100, "what was committed since it was last not there");
    }

    /// The engine may begin two journals and delete the first between two syncs. The next number
    /// was then missing for ever, and every later sync was one of a file that was gone.
    #[test]
    fn a_journal_missed_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let write = |number: u64| std::fs::write(path(dir.path(), number), "batches").unwrap();
        write(3);
        let mut current = Current::find(dir.path(), None).unwrap();
        let number = |current: &mut Current| {
            current.committed(SHORT);
            current.files().unwrap();
            current.number
        };
        assert_eq!(number(&mut current), 3);
        write(4);
        write(5);
        assert_eq!(number(&mut current), 5);
        for number in [3, 4] {
            std::fs::remove_file(path(dir.path(), number)).unwrap();
        }
        assert_eq!(number(&mut current), 5);
        write(7);
        std::fs::remove_file(path(dir.path(), 5)).unwrap();
        assert_eq!(number(&mut current), 7);
    }
}
