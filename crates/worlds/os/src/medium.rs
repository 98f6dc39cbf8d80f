//! The block store's medium in a file: io_uring and O_DIRECT where they can be had.
//!
//! | this thread has | the file system allows O_DIRECT | then |
//! |---|---|---|
//! | a [`Reactor`] | yes / no | io_uring, past / through the page cache |
//! | none, but the medium has threads | either | `pread`, `pwrite` on those threads |
//! | none, and no threads | either | the same, here and now (tools, tests) |
//!
//! A small write that is alone on its thread goes through the page cache all the same (`passing`),
//! where the kernel can do that without keeping it.
//!
//! Of a medium that is to lie in the page cache small writes are done here and now: each is a copy.
//! io_uring hands a write like that to a thread of the kernel's where the file system cannot say
//! that it would wait (ext4), which cost 13 us of CPU a write, and some to wake it.
//!
//! On ext4, a sync of any file ends in a flush of the device, and it has nothing to write for this
//! file but its bytes: its blocks are allocated and written before they are used. So where the
//! key-value store's files lie on the same file system, a sync of theirs is the flush of this one
//! ([`FileMedium::beside`]).
//!
//! The file is locked through the very descriptor its I/O uses: after kill -9 the kernel may still
//! be finishing writes, which hold that descriptor open, and the next process gets the lock only
//! when they are done. So no write of a dead process lands on a block the next one has given to
//! somebody else.

mod late;
mod orphans;
mod passing;
mod ring;
#[cfg(test)]
mod tests;
mod threads;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outboard_base::Errno;
use outboard_base::task;
use outboard_medium::{ALIGN, Buf, Medium};
use rustix::fs::{AtFlags, FallocateFlags, SeekFrom, StatxFlags};

use crate::alone;
use crate::lock::{LOCK_PATIENCE, lock_within};
use crate::room::{Reserve, disk_room};
use crate::writing;
use late::Late;
use orphans::Orphans;
use passing::Passing;
pub use ring::Reactor;
use ring::{Action, Operation};
use threads::Threads;

/// How space is allocated: the file's length stays what it is.
const ALLOCATE: FallocateFlags = FallocateFlags::KEEP_SIZE;

/// How the medium is opened.
#[derive(Clone, Copy, Debug)]
pub struct MediumOptions {
    /// Go past the page cache if the file system allows.
    pub direct: bool,
    /// Threads that do the I/O of threads without a [`Reactor`]; 0 does it on the caller's.
    pub threads: usize,
    /// Space of the disk that growth leaves free.
    pub reserve: Reserve,
    /// Every read takes this much longer; for measuring.
    pub read_delay: Duration,
}

impl Default for MediumOptions {
    fn default() -> MediumOptions {
        let (reserve, read_delay) = (Reserve::default(), Duration::ZERO);
        MediumOptions { direct: true, threads: 0, reserve, read_delay }
    }
}

/// A medium in a file.
pub struct FileMedium {
    file: Arc<File>,
    path: PathBuf,
    direct: bool,
    /// It is to lie in the page cache.
    cached: bool,
    /// The way through the page cache, if the other is direct.
    passing: Option<Passing>,
    flushed_by_store: bool,
    len: AtomicU64,
    reserve: Reserve,
    threads: Option<Threads>,
    /// What makes reads late, if they are to be.
    late: Option<Late>,
    /// One growth at a time: it writes zeros where nobody may have written yet.
    growing: task::Mutex,
    /// Writes under way whose futures were dropped.
    orphans: Arc<Orphans>,
    failed: AtomicBool,
}

/// Bytes of zeros written at a time when growing, past the page cache and through it. What is
/// written there at once may lie in one folio, of which each later write looks at all blocks: of
/// 1 MiB that was nine tenths of what a block of a node's log cost.
const ZEROS: usize = 1 << 20;
const ZEROS_CACHED: usize = 16 << 10;
/// Bytes of a write that is copied into the page cache by who asks for it, at most.
const COPY_MAX: usize = 64 << 10;

impl FileMedium {
    /// Opens the file at `path`, making it if there is none, and locks it.
    pub fn open(path: &Path, options: MediumOptions) -> io::Result<FileMedium> {
        let (file, direct) = open_file(path, options.direct)?;
        lock_within(&file, LOCK_PATIENCE).map_err(|error| match error {
            std::fs::TryLockError::Error(error) => error,
            std::fs::TryLockError::WouldBlock => io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{} is in use by another process", path.display()),
            ),
        })?;
        // A crash amid a growth leaves a part that is not whole pages; what the last process did to
        // the file's size and blocks may not be on the device yet.
        let len = len_of(&file)? / ALIGN as u64 * ALIGN as u64;
        if len > 0 {
            file.sync_all()?;
        }
        let passing = direct.then(|| OpenOptions::new().read(true).write(true).open(path));
        Ok(FileMedium {
            file: Arc::new(file),
            path: path.to_path_buf(),
            direct,
            cached: !options.direct,
            passing: passing.transpose()?.map(Passing::new),
            flushed_by_store: false,
            len: AtomicU64::new(len),
            reserve: options.reserve,
            threads: (options.threads > 0).then(|| Threads::start(options.threads)).transpose()?,
            late: (!options.read_delay.is_zero())
                .then(|| Late::start(options.read_delay))
                .transpose()?,
            growing: task::Mutex::default(),
            orphans: Arc::new(Orphans::default()),
            failed: AtomicBool::new(false),
        })
    }

    /// Tells it that the key-value store's files lie in `dir`: if on the same file system, and of
    /// a kind known to allow it, their syncs are its flushes. Not if it has holes (a copy that left
    /// zeros out): a block's first write is then more than its bytes.
    pub fn beside(mut self, dir: &Path) -> io::Result<FileMedium> {
        self.flushed_by_store =
            self.direct && shares_flush(&self.file, dir)? && is_written(&self.file, self.len())?;
        Ok(self)
    }

    /// Whether it goes past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether it is a block device, as long as it is.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.file.metadata().is_ok_and(|about| about.file_type().is_block_device())
    }

    /// Gives up what lies from `len` on, a multiple of [`ALIGN`], where nobody reads or writes any
    /// more.
    ///
    /// # Errors
    /// The file system's; then it is as long as before.
    pub async fn cut(&self, len: u64) -> Result<(), Errno> {
        let _guard = self.growing.lock().await;
        if len < self.len() {
            self.file.set_len(len).map_err(|error| Errno::from(&error))?;
            self.len.store(len, Ordering::Release);
        }
        Ok(())
    }

    /// Does one thing, wherever this thread's I/O is done.
    async fn act(&self, action: Action, buf: Option<Buf>) -> (Result<usize, Errno>, Option<Buf>) {
        self.act_on(&self.file, action, buf).await
    }

    async fn act_on(
        &self,
        file: &Arc<File>,
        action: Action,
        buf: Option<Buf>,
    ) -> (Result<usize, Errno>, Option<Buf>) {
        if Reactor::is_installed() {
            let orphans = action.writes().then(|| Arc::clone(&self.orphans));
            return Operation::new(Arc::clone(file), action, buf, orphans).await;
        }
        match &self.threads {
            Some(threads) => {
                let orphans = action.writes().then(|| Arc::clone(&self.orphans));
                threads.act(Arc::clone(file), action, buf, orphans).await
            }
            None => act_here(file, action, buf),
        }
    }

    /// Does what makes writes safe: a failure is final. Here, if nobody else is to be served.
    async fn finally(&self, action: Action, file: &Arc<File>) -> Result<(), Errno> {
        if self.failed.load(Ordering::Acquire) {
            return Err(Errno::EIO);
        }
        self.orphans.none().await;
        let (outcome, _) = if alone::may_wait() {
            alone::wait(|| act_here(file, action, None))
        } else {
            self.act_on(file, action, None).await
        };
        if outcome.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        outcome.map(|_| ())
    }

    /// Reads or writes a whole buffer.
    async fn transfer(&self, action: Action, buf: Buf) -> (Result<(), Errno>, Buf) {
        let len = buf.len();
        let (result, buf) = self.act(action, Some(buf)).await;
        // The buffer comes back from every path; an empty one could only fail its caller's checks.
        let buf = buf.unwrap_or_else(|| Buf::zeroed(0));
        let whole = result.and_then(|done| if done == len { Ok(()) } else { Err(Errno::EIO) });
        (whole, buf)
    }

    fn within(&self, offset: u64, buf: &Buf) -> bool {
        offset.is_multiple_of(ALIGN as u64)
            && offset.checked_add(buf.len() as u64).is_some_and(|end| end <= self.len())
    }

    /// Makes the file longer by allocated, written zeros: a block's first write then costs no more
    /// than a later one, and its flush needs no journal commit of the file system. The zeros make
    /// it longer, not the allocation: a crash leaves it as long as it is written.
    async fn extend(&self, from: u64, to: u64) -> Result<(), Errno> {
        let (free, kept) = disk_room(self.path.parent().unwrap_or(&self.path), self.reserve)
            .map_err(|e| Errno::from(&e))?;
        if free < (to - from).saturating_add(kept) {
            return Err(Errno::ENOSPC);
        }
        // Zeros of a growth given up half way must not land on what comes after this one.
        self.orphans.none().await;
        self.act(Action::Allocate { offset: from, len: to - from }, None).await.0?;
        let zeros = if self.direct { ZEROS } else { ZEROS_CACHED };
        let mut buf = Buf::zeroed(zeros);
        let mut at = from;
        while at < to {
            buf.resize(usize::try_from(to - at).unwrap_or(zeros).min(zeros));
            let len = buf.len() as u64;
            let (result, back) = self.transfer(Action::Write { offset: at }, buf).await;
            result?;
            buf = back;
            at += len;
        }
        let synced = self.act(Action::SyncAll, None).await.0;
        if synced.is_err() {
            // Others' writes may be among what failed, and the kernel says so once.
            self.failed.store(true, Ordering::Release);
        }
        synced.map(|_| ())
    }
}

fn open_file(path: &Path, direct: bool) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    if direct {
        let flag = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap_or(0);
        if let Ok(file) = options.clone().custom_flags(flag).open(path) {
            // Some file systems open it so and then refuse the I/O.
            if file.read_at(&mut Buf::zeroed(ALIGN), 0).is_ok() {
                return Ok((file, true));
            }
        }
    }
    Ok((options.open(path)?, false))
}

/// Bytes of a file, or of a block device, which cannot grow.
fn len_of(file: &File) -> io::Result<u64> {
    let about = file.metadata()?;
    if about.file_type().is_block_device() {
        return Ok(rustix::fs::seek(file, SeekFrom::End(0))?);
    }
    Ok(about.len())
}

/// Whether a sync of a file in `dir` flushes the device under `file`, with nothing else to do for
/// writes to it. That is ext4's way: a sync ends in a flush of the device, or in a commit of its
/// journal, which begins with one; and a direct write to blocks that were written before changes
/// nothing but them. Where direct I/O is not what it says (data in ext4's journal), `statx` says
/// so.
fn shares_flush(file: &File, dir: &Path) -> io::Result<bool> {
    const EXT4: u64 = 0xEF53;
    const DIRECT_ALIGNMENT: StatxFlags = StatxFlags::from_bits_retain(0x2000);
    let same = rustix::fs::fstat(file)?.st_dev == rustix::fs::stat(dir)?.st_dev;
    if !same || u64::try_from(rustix::fs::fstatfs(file)?.f_type) != Ok(EXT4) {
        return Ok(false);
    }
    let about = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, DIRECT_ALIGNMENT)?;
    let told = StatxFlags::from_bits_retain(about.stx_mask).contains(DIRECT_ALIGNMENT);
    Ok(told && about.stx_dio_offset_align > 0)
}

/// Whether every block of the first `len` bytes was written: none is a hole, or allocated only.
fn is_written(file: &File, len: u64) -> io::Result<bool> {
    Ok(len == 0 || rustix::fs::seek(file, SeekFrom::Hole(0))? >= len)
}

/// Does one thing on this thread, blocking.
fn act_here(
    file: &File,
    action: Action,
    mut buf: Option<Buf>,
) -> (Result<usize, Errno>, Option<Buf>) {
    let done = match (action, &mut buf) {
        (Action::Read { offset }, Some(buf)) => {
            let len = buf.len();
            file.read_exact_at(buf, offset).map(|()| len)
        }
        (Action::Write { offset }, Some(buf)) => file.write_all_at(buf, offset).map(|()| buf.len()),
        (Action::Allocate { offset, len }, _) => {
            rustix::fs::fallocate(file, ALLOCATE, offset, len).map(|()| 0).map_err(Into::into)
        }
        (Action::HandOver { offset, len }, _) => writing::wait(file, offset, len).map(|()| 0),
        (Action::SyncData, _) => file.sync_data().map(|()| 0),
        (Action::SyncAll, _) => file.sync_all().map(|()| 0),
        (Action::Read { .. } | Action::Write { .. }, None) => {
            Err(io::ErrorKind::InvalidInput.into())
        }
    };
    (done.map_err(|e| Errno::from(&e)), buf)
}

impl Medium for FileMedium {
    fn keep(&self, buf: Buf) -> Buf {
        Reactor::keep(buf)
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        if !self.within(offset, &buf) {
            return (Err(Errno::EIO), buf);
        }
        if let Some(late) = &self.late {
            late.pass().await;
        }
        self.transfer(Action::Read { offset }, buf).await
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        if !self.within(offset, &buf) {
            return (Err(Errno::EIO), buf);
        }
        if let Some(passing) = self.passing.as_ref().filter(|_| alone::is_alone())
            && let Some(outcome) = passing.write(offset, &buf)
        {
            return (outcome, buf);
        }
        if self.cached && buf.len() <= COPY_MAX {
            // One that nobody waits for any more may be to the same place.
            self.orphans.none().await;
            let written = self.file.write_all_at(&buf, offset);
            return (written.map_err(|error| Errno::from(&error)), buf);
        }
        self.transfer(Action::Write { offset }, buf).await
    }

    async fn flush(&self) -> Result<(), Errno> {
        let on_their_way = self.passing.as_ref().and_then(Passing::on_their_way);
        self.finally(Action::SyncData, &self.file).await?;
        if let (Some(passing), Some((_, begun))) = (&self.passing, on_their_way) {
            passing.arrived(begun);
        }
        Ok(())
    }

    fn is_flushed_by_store(&self) -> bool {
        self.flushed_by_store
    }

    async fn hand_over(&self) -> Result<(), Errno> {
        if !self.flushed_by_store {
            return self.flush().await;
        }
        if self.failed.load(Ordering::Acquire) {
            return Err(Errno::EIO);
        }
        self.orphans.none().await;
        if let Some(passing) = &self.passing
            && let Some((range, begun)) = passing.on_their_way()
        {
            let action = Action::HandOver { offset: range.start, len: range.end - range.start };
            self.finally(action, passing.file()).await?;
            passing.arrived(begun);
        }
        Ok(())
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        let _guard = self.growing.lock().await;
        let from = self.len();
        if len <= from {
            return Ok(());
        }
        self.extend(from, len).await?;
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }
}
