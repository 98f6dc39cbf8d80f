//! The operations: each is one or two system calls on the source.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{self, AtFlags, Dir, Mode, OFlags, StatxFlags, Timestamps};

use super::Options;
use super::buffer;
use super::inodes::{Handles, Inodes};

/// Longest request, bytes; what the volume's mount asks for too.
const REQUEST_MAX: u32 = 1 << 20;

/// An open directory: its stream, and where it stands.
struct Stream {
    dir: Dir,
    at: u64,
    /// Read from the stream, but did not fit the last answer.
    left: Option<(u64, u64, fs::FileType, OsString)>,
}

/// An open file of the source.
struct Open {
    fd: OwnedFd,
    /// It was opened with O_DIRECT: memory must be aligned.
    direct: bool,
}

/// The file system.
pub(super) struct Passthrough {
    options: Options,
    root: Arc<OwnedFd>,
    inodes: Inodes,
    files: Handles<Open>,
    dirs: Handles<Mutex<Stream>>,
}

type Done<T> = Result<T, Errno>;

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

fn time(at: fs::StatxTimestamp) -> SystemTime {
    let nanoseconds = Duration::from_nanos(at.tv_nsec.into());
    match u64::try_from(at.tv_sec) {
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds) + nanoseconds,
        Err(_) => UNIX_EPOCH - Duration::from_secs(at.tv_sec.unsigned_abs()) + nanoseconds,
    }
}

fn kind(mode: u16) -> FileType {
    match fs::FileType::from_raw_mode(mode.into()) {
        fs::FileType::Directory => FileType::Directory,
        fs::FileType::Symlink => FileType::Symlink,
        fs::FileType::Fifo => FileType::NamedPipe,
        fs::FileType::CharacterDevice => FileType::CharDevice,
        fs::FileType::BlockDevice => FileType::BlockDevice,
        fs::FileType::Socket => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

/// What `/proc` calls a descriptor: a path for calls that take no `AT_EMPTY_PATH`.
fn proc_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

impl Passthrough {
    /// Hands everything to `source`.
    pub(super) fn new(source: &Path, options: Options) -> io::Result<Passthrough> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = Arc::new(fs::open(source, flags, Mode::empty())?);
        Ok(Passthrough {
            options,
            root,
            inodes: Inodes::default(),
            files: Handles::default(),
            dirs: Handles::default(),
        })
    }

    fn inode(&self, ino: INodeNo) -> Done<Arc<OwnedFd>> {
        if ino == INodeNo::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        self.inodes.get(ino.0).ok_or(Errno::ESTALE)
    }

    fn file(&self, handle: FileHandle) -> Done<Arc<Open>> {
        self.files.get(handle.0).ok_or(Errno::EBADF)
    }

    fn attr_at(at: impl AsFd, name: &OsStr) -> Done<FileAttr> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        let found = fs::statx(at, name, flags, StatxFlags::BASIC_STATS).map_err(errno)?;
        Ok(FileAttr {
            ino: INodeNo(found.stx_ino),
            size: found.stx_size,
            blocks: found.stx_blocks,
            atime: time(found.stx_atime),
            mtime: time(found.stx_mtime),
            ctime: time(found.stx_ctime),
            crtime: UNIX_EPOCH,
            kind: kind(found.stx_mode),
            perm: found.stx_mode & 0o7777,
            nlink: found.stx_nlink,
            uid: found.stx_uid,
            gid: found.stx_gid,
            rdev: u32::try_from(fs::makedev(found.stx_rdev_major, found.stx_rdev_minor))
                .unwrap_or(0),
            blksize: found.stx_blksize,
            flags: 0,
        })
    }

    fn attr(&self, ino: INodeNo) -> Done<FileAttr> {
        let mut attr = Self::attr_at(&*self.inode(ino)?, OsStr::new(""))?;
        attr.ino = ino;
        Ok(attr)
    }

    /// Tells the kernel of a name.
    fn find(&self, parent: &OwnedFd, name: &OsStr) -> Done<FileAttr> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(parent, name, flags, Mode::empty()).map_err(errno)?;
        let attr = Self::attr_at(&fd, OsStr::new(""))?;
        self.inodes.seen(attr.ino.0, fd);
        Ok(attr)
    }

    /// What root made belongs to the caller.
    fn give(parent: &OwnedFd, name: &OsStr, request: &Request) -> Done<()> {
        if request.uid() == 0 && request.gid() == 0 {
            return Ok(());
        }
        let (uid, gid) = (fs::Uid::from_raw(request.uid()), fs::Gid::from_raw(request.gid()));
        fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(errno)
    }

    /// Makes a name by `make`, and tells the kernel of it.
    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        make: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
    ) -> Done<FileAttr> {
        let parent = self.inode(parent)?;
        make(&parent).map_err(errno)?;
        Self::give(&parent, name, request)?;
        self.find(&parent, name)
    }

    /// A file opened with `O_DIRECT` gets the kernel's direct path: there writes run in parallel.
    fn fopen_flags(&self, flags: i32) -> FopenFlags {
        let direct = OFlags::from_bits_retain(flags.cast_unsigned()).contains(OFlags::DIRECT);
        let direct = direct || self.options.direct_io;
        let mut flags = FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        flags.set(FopenFlags::FOPEN_DIRECT_IO, direct);
        flags.set(FopenFlags::FOPEN_KEEP_CACHE, self.options.keep_cache && !direct);
        flags
    }

    /// What the source is opened with: what the application asked, O_DIRECT and O_APPEND included,
    /// so that both pay for the same disk. With write-back the kernel reads pages that are written
    /// in part, and says where appended bytes go: the source is open for both, and not to append.
    fn open_flags(&self, flags: i32) -> OFlags {
        let mut flags = OFlags::from_bits_retain(flags.cast_unsigned());
        if self.options.write_back {
            flags -= OFlags::APPEND;
            if flags & OFlags::RWMODE == OFlags::WRONLY {
                flags = (flags - OFlags::WRONLY) | OFlags::RDWR;
            }
        }
        (flags - (OFlags::NOFOLLOW | OFlags::EXCL | OFlags::CREATE)) | OFlags::CLOEXEC
    }

    fn opened(&self, fd: OwnedFd, flags: i32) -> FileHandle {
        let direct = self.open_flags(flags).contains(OFlags::DIRECT);
        FileHandle(self.files.open(Open { fd, direct }))
    }

    fn reopen(&self, ino: INodeNo, flags: i32) -> Done<OwnedFd> {
        let inode = self.inode(ino)?;
        fs::open(proc_path(&inode), self.open_flags(flags), Mode::empty()).map_err(errno)
    }

    fn set(
        &self,
        ino: INodeNo,
        handle: Option<FileHandle>,
        mode: Option<u32>,
        owner: (Option<u32>, Option<u32>),
        size: Option<u64>,
        times: (Option<TimeOrNow>, Option<TimeOrNow>),
    ) -> Done<FileAttr> {
        let inode = self.inode(ino)?;
        let path = proc_path(&inode);
        if let Some(mode) = mode {
            fs::chmod(&path, Mode::from_raw_mode(mode)).map_err(errno)?;
        }
        if owner.0.is_some() || owner.1.is_some() {
            let (uid, gid) = (owner.0.map(fs::Uid::from_raw), owner.1.map(fs::Gid::from_raw));
            fs::chownat(&*inode, "", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        if let Some(size) = size {
            match handle {
                Some(handle) => fs::ftruncate(&self.file(handle)?.fd, size),
                None => {
                    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                    fs::open(&path, flags, Mode::empty()).and_then(|fd| fs::ftruncate(fd, size))
                }
            }
            .map_err(errno)?;
        }
        if times.0.is_some() || times.1.is_some() {
            let times =
                Timestamps { last_access: timespec(times.0), last_modification: timespec(times.1) };
            fs::utimensat(fs::CWD, &path, &times, AtFlags::empty()).map_err(errno)?;
        }
        self.attr(ino)
    }

    /// Feeds the entries behind `offset` to `add` until it says that it is full.
    fn list(
        &self,
        handle: FileHandle,
        offset: u64,
        mut add: impl FnMut(u64, u64, fs::FileType, &OsStr) -> bool,
    ) -> Done<()> {
        let stream = self.dirs.get(handle.0).ok_or(Errno::EBADF)?;
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.at != offset {
            stream.left = None;
            let to = i64::try_from(offset).map_err(|_| Errno::EINVAL)?;
            if to == 0 {
                stream.dir.rewind();
            } else {
                stream.dir.seek(to).map_err(errno)?;
            }
            stream.at = offset;
        }
        loop {
            let (ino, next, kind, name) = match stream.left.take() {
                Some(left) => left,
                None => match stream.dir.read() {
                    None => return Ok(()),
                    Some(Err(error)) => return Err(errno(error)),
                    Some(Ok(entry)) => {
                        let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
                        let next = entry.offset().cast_unsigned();
                        (entry.ino(), next, entry.file_type(), name)
                    }
                },
            };
            if add(ino, next, kind, &name) {
                stream.left = Some((ino, next, kind, name));
                return Ok(());
            }
            stream.at = next;
        }
    }
}

fn timespec(time: Option<TimeOrNow>) -> fs::Timespec {
    let (tv_sec, tv_nsec) = match time {
        None => (0, fs::UTIME_OMIT),
        Some(TimeOrNow::Now) => (0, fs::UTIME_NOW),
        Some(TimeOrNow::SpecificTime(at)) => {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos().into())
        }
    };
    fs::Timespec { tv_sec, tv_nsec }
}

fn dirent_kind(kind: fs::FileType) -> FileType {
    match kind {
        fs::FileType::Directory => FileType::Directory,
        fs::FileType::Symlink => FileType::Symlink,
        fs::FileType::Fifo => FileType::NamedPipe,
        fs::FileType::CharacterDevice => FileType::CharDevice,
        fs::FileType::BlockDevice => FileType::BlockDevice,
        fs::FileType::Socket => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

macro_rules! answer {
    ($reply:ident, $outcome:expr, $value:pat => $success:expr) => {
        match $outcome {
            Ok($value) => $success,
            Err(error) => $reply.error(error),
        }
    };
}

impl fuser::Filesystem for Passthrough {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_READDIRPLUS_AUTO;
        wanted.set(InitFlags::FUSE_WRITEBACK_CACHE, self.options.write_back);
        if self.options.write_back
            && !config.capabilities().contains(InitFlags::FUSE_WRITEBACK_CACHE)
        {
            return Err(io::Error::other("this kernel has no write-back cache for FUSE"));
        }
        let wanted = wanted & config.capabilities();
        config.add_capabilities(wanted).map_err(|_| io::Error::other("capabilities changed"))?;
        // The nearest allowed value is as good.
        let _ = config.set_max_write(REQUEST_MAX);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.inode(parent).and_then(|parent| self.find(&parent, name)) {
            Ok(attr) => reply.entry(&self.options.valid, &attr, Generation(0)),
            Err(error)
                if error.code() == Errno::ENOENT.code()
                    && !self.options.negative_valid.is_zero() =>
            {
                // Inode 0: there is nothing, and that may be remembered.
                let nothing = FileAttr {
                    ino: INodeNo(0),
                    size: 0,
                    blocks: 0,
                    atime: UNIX_EPOCH,
                    mtime: UNIX_EPOCH,
                    ctime: UNIX_EPOCH,
                    crtime: UNIX_EPOCH,
                    kind: FileType::RegularFile,
                    perm: 0,
                    nlink: 0,
                    uid: 0,
                    gid: 0,
                    rdev: 0,
                    blksize: 0,
                    flags: 0,
                };
                reply.entry(&self.options.negative_valid, &nothing, Generation(0));
            }
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.inodes.forget(ino.0, count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.attr(ino), attr => reply.attr(&self.options.valid, &attr));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let outcome = self.set(ino, handle, mode, (uid, gid), size, (atime, mtime));
        answer!(reply, outcome, attr => reply.attr(&self.options.valid, &attr));
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self
            .inode(ino)
            .and_then(|inode| fs::readlinkat(&*inode, "", Vec::new()).map_err(errno));
        answer!(reply, target, target => reply.data(target.as_bytes()));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let outcome = self.make(request, parent, name, |parent| {
            let kind = fs::FileType::from_raw_mode(mode);
            fs::mknodat(parent, name, kind, Mode::from_raw_mode(mode), rdev.into())
        });
        answer!(reply, outcome, attr => reply.entry(&self.options.valid, &attr, Generation(0)));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let outcome = self.make(request, parent, name, |parent| {
            fs::mkdirat(parent, name, Mode::from_raw_mode(mode))
        });
        answer!(reply, outcome, attr => reply.entry(&self.options.valid, &attr, Generation(0)));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let outcome = self
            .inode(parent)
            .and_then(|parent| fs::unlinkat(&*parent, name, AtFlags::empty()).map_err(errno));
        answer!(reply, outcome, () => reply.ok());
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let outcome = self
            .inode(parent)
            .and_then(|parent| fs::unlinkat(&*parent, name, AtFlags::REMOVEDIR).map_err(errno));
        answer!(reply, outcome, () => reply.ok());
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let outcome =
            self.make(request, parent, name, |parent| fs::symlinkat(target, parent, name));
        answer!(reply, outcome, attr => reply.entry(&self.options.valid, &attr, Generation(0)));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = fs::RenameFlags::from_bits_retain(flags.bits());
        let outcome = self.inode(parent).and_then(|parent| {
            let to = self.inode(to_parent)?;
            fs::renameat_with(&*parent, name, &*to, to_name, flags).map_err(errno)
        });
        answer!(reply, outcome, () => reply.ok());
    }

    fn link(
        &self,
        _request: &Request,
        ino: INodeNo,
        to_parent: INodeNo,
        to_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let outcome = self.inode(ino).and_then(|inode| {
            let to = self.inode(to_parent)?;
            fs::linkat(&*inode, "", &*to, to_name, AtFlags::EMPTY_PATH).map_err(errno)?;
            self.find(&to, to_name)
        });
        answer!(reply, outcome, attr => reply.entry(&self.options.valid, &attr, Generation(0)));
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        answer!(reply, self.reopen(ino, flags.0), fd => {
            reply.opened(self.opened(fd, flags.0), self.fopen_flags(flags.0));
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let outcome = self.inode(parent).and_then(|parent| {
            let exclusive = OFlags::from_bits_retain(flags.cast_unsigned()) & OFlags::EXCL;
            let flags = self.open_flags(flags) | exclusive | OFlags::CREATE | OFlags::NOFOLLOW;
            let file = fs::openat(&*parent, name, flags, Mode::from_raw_mode(mode & 0o7777))
                .map_err(errno)?;
            Self::give(&parent, name, request)?;
            Ok((self.find(&parent, name)?, file))
        });
        answer!(reply, outcome, (attr, file) => {
            let (handle, flags) = (self.opened(file, flags), self.fopen_flags(flags));
            reply.created(&self.options.valid, &attr, Generation(0), handle, flags);
        });
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        buffer::with(size as usize, |data| {
            let outcome = self
                .file(handle)
                .and_then(|file| rustix::io::pread(&file.fd, &mut *data, offset).map_err(errno));
            answer!(reply, outcome, len => reply.data(data.get(..len).unwrap_or(&[])));
        });
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let outcome = self.file(handle).and_then(|file| {
            // The data lies behind the headers of its message, so not aligned.
            let written = if file.direct {
                buffer::with(data.len(), |aligned| {
                    aligned.copy_from_slice(data);
                    rustix::io::pwrite(&file.fd, aligned, offset)
                })
            } else {
                rustix::io::pwrite(&file.fd, data, offset)
            };
            written.map_err(errno)
        });
        answer!(reply, outcome, len => reply.written(u32::try_from(len).unwrap_or(u32::MAX)));
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // The kernel does not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.close(handle.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let outcome = self.file(handle).and_then(|file| {
            if data_only { fs::fdatasync(&file.fd) } else { fs::fsync(&file.fd) }.map_err(errno)
        });
        answer!(reply, outcome, () => reply.ok());
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let outcome = self
            .inode(ino)
            .and_then(|inode| fs::openat(&*inode, ".", flags, Mode::empty()).map_err(errno))
            .and_then(|fd| Dir::new(fd).map_err(errno));
        answer!(reply, outcome, dir => {
            let stream = Stream { dir, at: 0, left: None };
            let mut flags = FopenFlags::empty();
            flags.set(FopenFlags::FOPEN_KEEP_CACHE, self.options.keep_cache);
            flags.set(FopenFlags::FOPEN_CACHE_DIR, self.options.keep_cache);
            reply.opened(FileHandle(self.dirs.open(Mutex::new(stream))), flags);
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let outcome = self.list(handle, offset, |ino, next, kind, name| {
            reply.add(INodeNo(ino), next, dirent_kind(kind), name)
        });
        answer!(reply, outcome, () => reply.ok());
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let valid = &self.options.valid;
        let outcome = self.inode(ino).and_then(|parent| {
            self.list(handle, offset, |_, next, _, name| {
                let own = name == "." || name == "..";
                let attr = if own { self.attr(ino) } else { self.find(&parent, name) };
                // A name that went meanwhile is left out.
                let Ok(attr) = attr else { return false };
                let found = attr.ino;
                // The kernel takes no reference for `.` and `..`.
                let inode = if own { INodeNo(0) } else { found };
                let full = reply.add(inode, next, name, valid, &attr, Generation(0));
                if full && !own {
                    self.inodes.forget(found.0, 1);
                }
                full
            })
        });
        answer!(reply, outcome, () => reply.ok());
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.dirs.close(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let outcome = self.inode(ino).and_then(|inode| {
            let fd = fs::openat(&*inode, ".", flags, Mode::empty()).map_err(errno)?;
            fs::fsync(fd).map_err(errno)
        });
        answer!(reply, outcome, () => reply.ok());
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match fs::fstatvfs(&*self.root) {
            Ok(found) => reply.statfs(
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
                u32::try_from(found.f_bsize).unwrap_or(4096),
                u32::try_from(found.f_namemax).unwrap_or(255),
                u32::try_from(found.f_frsize).unwrap_or(4096),
            ),
            Err(error) => reply.error(errno(error)),
        }
    }
}
