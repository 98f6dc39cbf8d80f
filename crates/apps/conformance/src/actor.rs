//! A user at work: the verbs cases are written in, each one request.

use std::time::Duration;

use outboard_base::{Cred, Errno, Fh, Ino, Result, Timestamp};
use outboard_wire::file::{
    Attr, Dirents, FileKind, Lock, LockKind, LockStyle, Reply, Request, Setattr, SetattrTime,
    Statfs, open_flags,
};

use crate::front::{Features, Front};

/// Somebody with credentials, a umask, and a directory of their own to try things in.
pub struct Actor<'f> {
    front: &'f mut dyn Front,
    /// The case's own directory, empty at its start, mode 0777, of root.
    pub dir: Ino,
    /// Who asks.
    pub cred: Cred,
    /// What `Create` and its kin send as umask.
    pub umask: u32,
}

/// A directory entry as a case sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Name.
    pub name: Vec<u8>,
    /// Inode.
    pub ino: Ino,
    /// Its `d_type`.
    pub kind: u8,
    /// Where to go on.
    pub cookie: u64,
}

/// How much one `Readdir` asks for.
const READDIR_LEN: u32 = 4096;
/// No directory of the suite needs more calls than this; a cookie that goes round in circles does.
const READDIR_CALLS_MAX: usize = 100_000;

impl<'f> Actor<'f> {
    /// Root in `dir`.
    pub fn new(front: &'f mut dyn Front, dir: Ino) -> Actor<'f> {
        Actor { front, dir, cred: Cred::root(), umask: 0 }
    }

    /// What the front can show.
    #[must_use]
    pub fn features(&self) -> &Features {
        self.front.features()
    }

    /// Does `work` as `cred`, then is who they were.
    pub fn by<T>(&mut self, cred: &Cred, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.cred, cred.clone());
        let result = work(self);
        self.cred = before;
        result
    }

    /// One request, as it is; the bytes that came with the reply.
    pub fn ask(&mut self, request: &Request<'_>, payload: &[u8]) -> Result<(Reply, Vec<u8>)> {
        let mut out = Vec::new();
        let reply = self.front.call(&self.cred, request, payload, &mut out)?;
        Ok((reply, out))
    }

    fn entry(&mut self, request: &Request<'_>, payload: &[u8]) -> Result<Attr> {
        match self.ask(request, payload)?.0 {
            Reply::Entry(attr) => Ok(attr),
            _ => Err(Errno::EPROTO),
        }
    }

    fn attr(&mut self, request: &Request<'_>) -> Result<Attr> {
        match self.ask(request, &[])?.0 {
            Reply::Attr(attr) => Ok(attr),
            _ => Err(Errno::EPROTO),
        }
    }

    fn done(&mut self, request: &Request<'_>, payload: &[u8]) -> Result<()> {
        match self.ask(request, payload)?.0 {
            Reply::Empty => Ok(()),
            _ => Err(Errno::EPROTO),
        }
    }

    fn removed(&mut self, request: &Request<'_>) -> Result<Option<Ino>> {
        match self.ask(request, &[])?.0 {
            Reply::Removed(orphan) => Ok(orphan),
            Reply::Gone { last, .. } => Ok(Some(last.ino)),
            _ => Err(Errno::EPROTO),
        }
    }

    fn bytes(&mut self, request: &Request<'_>) -> Result<Vec<u8>> {
        match self.ask(request, &[])? {
            (Reply::Data(len), out) if out.len() == len as usize => Ok(out),
            _ => Err(Errno::EPROTO),
        }
    }
}

/// Names.
impl Actor<'_> {
    /// `Lookup`.
    pub fn lookup(&mut self, parent: Ino, name: &str) -> Result<Attr> {
        self.entry(&Request::Lookup { parent, name: name.as_bytes() }, &[])
    }

    /// Whether `name` is there; any error but `ENOENT` stays one.
    pub fn has(&mut self, parent: Ino, name: &str) -> Result<bool> {
        match self.lookup(parent, name) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// `Mkdir`.
    pub fn mkdir(&mut self, parent: Ino, name: &str, mode: u32) -> Result<Ino> {
        let umask = self.umask;
        let request = Request::Mkdir { parent, name: name.as_bytes(), mode, umask };
        self.entry(&request, &[]).map(|attr| attr.ino)
    }

    /// `Mknod` of `kind`.
    pub fn mknod(
        &mut self,
        parent: Ino,
        name: &str,
        kind: FileKind,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let (mode, umask) = (kind.mode_bits() | mode, self.umask);
        self.entry(&Request::Mknod { parent, name: name.as_bytes(), mode, umask, rdev }, &[])
    }

    /// `Symlink` called `name` to `target`.
    pub fn symlink(&mut self, parent: Ino, name: &str, target: &str) -> Result<Attr> {
        self.entry(&Request::Symlink { parent, name: name.as_bytes() }, target.as_bytes())
    }

    /// `Readlink`.
    pub fn readlink(&mut self, ino: Ino) -> Result<Vec<u8>> {
        self.bytes(&Request::Readlink { ino })
    }

    /// `Link`: another name for `ino`.
    pub fn link(&mut self, ino: Ino, to_parent: Ino, to_name: &str) -> Result<Attr> {
        self.entry(&Request::Link { ino, to_parent, to_name: to_name.as_bytes() }, &[])
    }

    /// `Unlink`: the orphan, if this was the last name.
    pub fn unlink(&mut self, parent: Ino, name: &str) -> Result<Option<Ino>> {
        self.removed(&Request::Unlink { parent, name: name.as_bytes() })
    }

    /// `Rmdir`.
    pub fn rmdir(&mut self, parent: Ino, name: &str) -> Result<Option<Ino>> {
        self.removed(&Request::Rmdir { parent, name: name.as_bytes() })
    }

    /// `Rename` with `flags`.
    pub fn rename_with(
        &mut self,
        from: (Ino, &str),
        to: (Ino, &str),
        flags: u32,
    ) -> Result<Option<Ino>> {
        let (parent, name) = (from.0, from.1.as_bytes());
        let (to_parent, to_name) = (to.0, to.1.as_bytes());
        self.removed(&Request::Rename { parent, name, to_parent, to_name, flags })
    }

    /// `Rename` without flags.
    pub fn rename(&mut self, from: (Ino, &str), to: (Ino, &str)) -> Result<Option<Ino>> {
        self.rename_with(from, to, 0)
    }

    /// An empty file of mode 0644, closed.
    pub fn touch(&mut self, parent: Ino, name: &str) -> Result<Ino> {
        self.file(parent, name, b"")
    }

    /// A file of mode 0644 that holds `content`, closed.
    pub fn file(&mut self, parent: Ino, name: &str, content: &[u8]) -> Result<Ino> {
        let (ino, fh) = self.create(parent, name, 0o644)?;
        self.write_all(ino, fh, 0, content)?;
        self.close(ino, fh)?;
        Ok(ino)
    }

    /// What is in the directory `ino` by name, in the order told. Opens and closes it.
    pub fn list(&mut self, ino: Ino) -> Result<Vec<Entry>> {
        let fh = self.opendir(ino)?;
        let mut all = Vec::new();
        let mut cookie = 0;
        for _ in 0..READDIR_CALLS_MAX {
            let some = self.readdir(ino, fh, cookie, READDIR_LEN)?;
            let Some(last) = some.last() else {
                self.closedir(ino, fh)?;
                return Ok(all);
            };
            cookie = last.cookie;
            all.extend(some);
        }
        Err(Errno::ELOOP)
    }

    /// The names in a directory, sorted.
    pub fn names(&mut self, ino: Ino) -> Result<Vec<String>> {
        let mut names: Vec<String> = self
            .list(ino)?
            .into_iter()
            .map(|entry| String::from_utf8_lossy(&entry.name).into_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    /// `Opendir`.
    pub fn opendir(&mut self, ino: Ino) -> Result<Fh> {
        match self.ask(&Request::Opendir { ino }, &[])?.0 {
            Reply::Opened(fh) => Ok(fh),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `Releasedir`.
    pub fn closedir(&mut self, ino: Ino, fh: Fh) -> Result<()> {
        self.done(&Request::Releasedir { ino, fh }, &[])
    }

    /// One `Readdir` without attributes.
    pub fn readdir(&mut self, ino: Ino, fh: Fh, cookie: u64, len: u32) -> Result<Vec<Entry>> {
        let request = Request::Readdir { ino, fh, cookie, len, with_attributes: false };
        let bytes = self.bytes(&request)?;
        Dirents::new(&bytes)
            .map(|entry| {
                let entry = entry?;
                Ok(Entry {
                    name: entry.name.to_vec(),
                    ino: entry.ino,
                    kind: entry.kind.dirent_type(),
                    cookie: entry.cookie,
                })
            })
            .collect()
    }

    /// One `Readdir` with attributes: names and what they lead to.
    pub fn readdir_plus(
        &mut self,
        ino: Ino,
        fh: Fh,
        cookie: u64,
        len: u32,
    ) -> Result<Vec<(Entry, Attr)>> {
        let request = Request::Readdir { ino, fh, cookie, len, with_attributes: true };
        let bytes = self.bytes(&request)?;
        Dirents::new(&bytes)
            .map(|entry| {
                let entry = entry?;
                let attr = entry.attr.ok_or(Errno::EPROTO)?;
                let (name, ino) = (entry.name.to_vec(), entry.ino);
                let kind = entry.kind.dirent_type();
                Ok((Entry { name, ino, kind, cookie: entry.cookie }, attr))
            })
            .collect()
    }
}

/// Files.
impl Actor<'_> {
    /// `Create`, for reading and writing, new or not.
    pub fn create(&mut self, parent: Ino, name: &str, mode: u32) -> Result<(Ino, Fh)> {
        self.create_with(parent, name, mode, open_flags::RDWR).map(|(attr, fh)| (attr.ino, fh))
    }

    /// `Create` with `flags`.
    pub fn create_with(
        &mut self,
        parent: Ino,
        name: &str,
        mode: u32,
        flags: u32,
    ) -> Result<(Attr, Fh)> {
        let (mode, umask) = (FileKind::Regular.mode_bits() | mode, self.umask);
        let request = Request::Create { parent, name: name.as_bytes(), mode, umask, flags };
        match self.ask(&request, &[])?.0 {
            Reply::Created(attr, fh) => Ok((attr, fh)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `Tmpfile` in `parent`.
    pub fn tmpfile(&mut self, parent: Ino, mode: u32, flags: u32) -> Result<(Attr, Fh)> {
        let (mode, umask) = (FileKind::Regular.mode_bits() | mode, self.umask);
        match self.ask(&Request::Tmpfile { parent, mode, umask, flags }, &[])?.0 {
            Reply::Created(attr, fh) => Ok((attr, fh)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `Open`.
    pub fn open(&mut self, ino: Ino, flags: u32) -> Result<Fh> {
        match self.ask(&Request::Open { ino, flags }, &[])?.0 {
            Reply::Opened(fh) => Ok(fh),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `Flush` and `Release`, as `close(2)` of the last descriptor does.
    pub fn close(&mut self, ino: Ino, fh: Fh) -> Result<()> {
        self.flush(ino, fh, 0)?;
        self.release(ino, fh, 0)
    }

    /// `Flush` by `owner`.
    pub fn flush(&mut self, ino: Ino, fh: Fh, owner: u64) -> Result<()> {
        self.done(&Request::Flush { ino, fh, owner }, &[])
    }

    /// `Release` by `owner`.
    pub fn release(&mut self, ino: Ino, fh: Fh, owner: u64) -> Result<()> {
        self.done(&Request::Release { ino, fh, owner }, &[])
    }

    /// `Forget`.
    pub fn forget(&mut self, ino: Ino) -> Result<()> {
        self.done(&Request::Forget { ino }, &[])
    }

    /// `Read` through an open file.
    pub fn read(&mut self, ino: Ino, fh: Fh, offset: u64, len: u32) -> Result<Vec<u8>> {
        self.bytes(&Request::Read { ino, fh, offset, len, flags: 0 })
    }

    /// `Write` with write flags: how many bytes were taken.
    pub fn write_with(
        &mut self,
        (ino, fh): (Ino, Fh),
        offset: u64,
        data: &[u8],
        flags: u32,
    ) -> Result<u32> {
        match self.ask(&Request::Write { ino, fh, offset, flags }, data)?.0 {
            Reply::Written(count) => Ok(count),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `Write`.
    pub fn write(&mut self, ino: Ino, fh: Fh, offset: u64, data: &[u8]) -> Result<u32> {
        self.write_with((ino, fh), offset, data, 0)
    }

    /// Writes until all of `data` is taken; `EIO` when no more is.
    pub fn write_all(&mut self, ino: Ino, fh: Fh, mut offset: u64, data: &[u8]) -> Result<()> {
        let mut left = data;
        while !left.is_empty() {
            let taken = self.write(ino, fh, offset, left.get(..1 << 20).unwrap_or(left))?;
            let rest = left.get(taken as usize..).filter(|_| taken > 0).ok_or(Errno::EIO)?;
            (left, offset) = (rest, offset + u64::from(taken));
        }
        Ok(())
    }

    /// All the bytes of a file, through an open of its own.
    pub fn contents(&mut self, ino: Ino) -> Result<Vec<u8>> {
        let fh = self.open(ino, 0)?;
        let mut all = Vec::new();
        loop {
            let some = self.read(ino, fh, all.len() as u64, 1 << 18)?;
            if some.is_empty() {
                self.close(ino, fh)?;
                return Ok(all);
            }
            all.extend(some);
        }
    }

    /// `Fallocate`.
    pub fn fallocate(&mut self, f: (Ino, Fh), mode: u32, offset: u64, len: u64) -> Result<()> {
        self.done(&Request::Fallocate { ino: f.0, fh: f.1, offset, len, mode }, &[])
    }

    /// `Lseek` to data or a hole.
    pub fn seek(&mut self, ino: Ino, fh: Fh, offset: u64, whence: u32) -> Result<u64> {
        match self.ask(&Request::Lseek { ino, fh, offset, whence }, &[])?.0 {
            Reply::Offset(offset) => Ok(offset),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `CopyFileRange`: how many bytes were copied.
    pub fn copy_range(
        &mut self,
        from: (Ino, Fh, u64),
        to: (Ino, Fh, u64),
        len: u64,
    ) -> Result<u32> {
        let request = Request::CopyFileRange {
            from: from.0,
            from_fh: from.1,
            from_offset: from.2,
            to: to.0,
            to_fh: to.1,
            to_offset: to.2,
            len,
        };
        match self.ask(&request, &[])?.0 {
            Reply::Written(count) => Ok(count),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `Fsync`, or `fdatasync`.
    pub fn fsync(&mut self, ino: Ino, fh: Fh, data_only: bool) -> Result<()> {
        self.done(&Request::Fsync { ino, fh, data_only }, &[])
    }

    /// `Syncfs`.
    pub fn syncfs(&mut self) -> Result<()> {
        self.done(&Request::Syncfs, &[])
    }

    /// `Statfs`.
    pub fn statfs(&mut self, ino: Ino) -> Result<Statfs> {
        match self.ask(&Request::Statfs { ino }, &[])?.0 {
            Reply::Statfs(figures) => Ok(figures),
            _ => Err(Errno::EPROTO),
        }
    }
}

/// Attributes.
impl Actor<'_> {
    /// `Getattr` by inode.
    pub fn stat(&mut self, ino: Ino) -> Result<Attr> {
        self.attr(&Request::Getattr { ino, fh: Fh::NONE })
    }

    /// `Setattr`.
    pub fn set(&mut self, ino: Ino, fh: Fh, set: Setattr) -> Result<Attr> {
        self.attr(&Request::Setattr { ino, fh, set })
    }

    /// `chmod(2)`.
    pub fn chmod(&mut self, ino: Ino, mode: u32) -> Result<Attr> {
        self.set(ino, Fh::NONE, Setattr { mode: Some(mode), ..Setattr::default() })
    }

    /// `chown(2)`; `None` leaves one as it is.
    pub fn chown(&mut self, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<Attr> {
        self.set(ino, Fh::NONE, Setattr { uid, gid, ..Setattr::default() })
    }

    /// `truncate(2)`.
    pub fn truncate(&mut self, ino: Ino, size: u64) -> Result<Attr> {
        self.set(ino, Fh::NONE, Setattr { size: Some(size), ..Setattr::default() })
    }

    /// `ftruncate(2)`.
    pub fn ftruncate(&mut self, ino: Ino, fh: Fh, size: u64) -> Result<Attr> {
        self.set(ino, fh, Setattr { size: Some(size), ..Setattr::default() })
    }

    /// `utimensat(2)`.
    pub fn utimens(
        &mut self,
        ino: Ino,
        atime: Option<SetattrTime>,
        mtime: Option<SetattrTime>,
    ) -> Result<Attr> {
        self.set(ino, Fh::NONE, Setattr { atime, mtime, ..Setattr::default() })
    }

    /// Puts both times far in the past, so that any touch of them shows.
    pub fn age(&mut self, ino: Ino) -> Result<Attr> {
        let past = SetattrTime::At(Timestamp { sec: 1_000_000_000, nsec: 123_456_789 });
        self.utimens(ino, Some(past), Some(past))
    }

    /// `access(2)`: 4 read, 2 write, 1 execute.
    pub fn access(&mut self, ino: Ino, mask: u32) -> Result<()> {
        self.done(&Request::Access { ino, mask }, &[])
    }

    /// `Setxattr`.
    pub fn setxattr(&mut self, ino: Ino, name: &str, value: &[u8], flags: u32) -> Result<()> {
        self.done(&Request::Setxattr { ino, name: name.as_bytes(), flags }, value)
    }

    /// `Getxattr` with room for the largest value.
    pub fn getxattr(&mut self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        self.getxattr_into(ino, name, 65_536)
    }

    /// `Getxattr` with room for `len` bytes.
    pub fn getxattr_into(&mut self, ino: Ino, name: &str, len: u32) -> Result<Vec<u8>> {
        self.bytes(&Request::Getxattr { ino, name: name.as_bytes(), len })
    }

    /// `Getxattr` for the size.
    pub fn xattr_size(&mut self, ino: Ino, name: &str) -> Result<u32> {
        match self.ask(&Request::Getxattr { ino, name: name.as_bytes(), len: 0 }, &[])?.0 {
            Reply::Size(size) => Ok(size),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `Listxattr`: names, sorted, those of the system left out.
    pub fn listxattr(&mut self, ino: Ino) -> Result<Vec<String>> {
        let bytes = self.listxattr_into(ino, 65_536)?;
        let mut names: Vec<String> = bytes
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    /// `Listxattr` with room for `len` bytes.
    pub fn listxattr_into(&mut self, ino: Ino, len: u32) -> Result<Vec<u8>> {
        self.bytes(&Request::Listxattr { ino, len })
    }

    /// `Listxattr` for the size.
    pub fn xattr_list_size(&mut self, ino: Ino) -> Result<u32> {
        match self.ask(&Request::Listxattr { ino, len: 0 }, &[])?.0 {
            Reply::Size(size) => Ok(size),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `Removexattr`.
    pub fn removexattr(&mut self, ino: Ino, name: &str) -> Result<()> {
        self.done(&Request::Removexattr { ino, name: name.as_bytes() }, &[])
    }
}

/// Locks.
impl Actor<'_> {
    /// A byte-range lock of `owner` over `start..=end`.
    #[must_use]
    pub fn range(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
        let pid = u32::try_from(owner).unwrap_or(0);
        Lock { owner, start, end, kind, style: LockStyle::Posix, pid }
    }

    /// A whole-file lock of `owner`.
    #[must_use]
    pub fn whole(owner: u64, kind: LockKind) -> Lock {
        Lock { owner, start: 0, end: u64::MAX, kind, style: LockStyle::Flock, pid: 0 }
    }

    /// `Setlk` that does not wait.
    pub fn lock(&mut self, ino: Ino, fh: Fh, lock: Lock) -> Result<()> {
        self.done(&Request::Setlk { ino, fh, lock, wait: false, reclaim: false }, &[])
    }

    /// `Setlk` that waits: the ticket, or `None` when it was had at once.
    pub fn lock_wait(&mut self, ino: Ino, fh: Fh, lock: Lock) -> Result<Option<u64>> {
        match self.ask(&Request::Setlk { ino, fh, lock, wait: true, reclaim: false }, &[])?.0 {
            Reply::Empty => Ok(None),
            Reply::Waiting(ticket) => Ok(Some(ticket)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `Getlk`: the lock in the way.
    pub fn lock_test(&mut self, ino: Ino, fh: Fh, lock: Lock) -> Result<Option<Lock>> {
        match self.ask(&Request::Getlk { ino, fh, lock }, &[])?.0 {
            Reply::Lock(found) => Ok((found.kind != LockKind::Unlock).then_some(found)),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `CancelLock`.
    pub fn cancel(&mut self, ticket: u64) -> Result<()> {
        self.done(&Request::CancelLock { ticket }, &[])
    }

    /// Whether the lock behind `ticket` is granted within `patience`.
    pub fn granted(&mut self, ticket: u64, patience: Duration) -> Result<bool> {
        self.front.granted(ticket, patience)
    }
}
