//! A volume in memory, simple enough to be right by looking: one lock, maps, whole-file buffers. It
//! checks no permissions (the kernel does) and counts what it is asked.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use outboard_base::{Cred, Errno, Fh, Ino, Result, Timestamp};
use outboard_wire::file::{
    Attr, Dirent, DirentsWriter, FileKind, Lock, LockKind, Op, Reply, Request, Setattr,
    SetattrTime, Statfs, open_flags, rename_flags, seek, write_flags, xattr_flags,
};

#[derive(Default)]
struct Inode {
    attr: Attr,
    data: Vec<u8>,
    entries: BTreeMap<u64, (Vec<u8>, Ino)>,
    names: HashMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    locks: Vec<Lock>,
    opens: u64,
}

#[derive(Default)]
struct State {
    inodes: BTreeMap<Ino, Inode>,
    handles: HashMap<Fh, Ino>,
    next_ino: u64,
    next_fh: u64,
    next_cookie: u64,
    clock: i64,
    asked: HashMap<Op, u64>,
}

/// The volume.
pub(crate) struct Toy(Mutex<State>);

impl Toy {
    pub(crate) fn new() -> Toy {
        let mut state = State { next_ino: 2, next_fh: 1, next_cookie: 3, ..State::default() };
        let attr = Attr { mode: 0o40755, nlink: 2, blksize: 4096, ..Attr::default() };
        state.inodes.insert(Ino::ROOT, Inode { attr, ..Inode::default() });
        Toy(Mutex::new(state))
    }

    /// How often an operation was asked for.
    pub(crate) fn asked(&self, op: Op) -> u64 {
        self.0.lock().unwrap().asked.get(&op).copied().unwrap_or(0)
    }

    /// Inodes alive.
    pub(crate) fn inodes(&self) -> usize {
        self.0.lock().unwrap().inodes.len()
    }

    /// Answers a request; `payload` holds what came with it and takes what goes back. A lock that
    /// must wait is `Waiting`.
    pub(crate) fn answer(
        &self,
        cred: &Cred,
        request: &Request<'_>,
        payload: &mut [u8],
        payload_len: usize,
    ) -> Result<Reply> {
        let mut state = self.0.lock().unwrap();
        *state.asked.entry(request.op()).or_default() += 1;
        state.answer(cred, request, payload, payload_len)
    }
}

impl State {
    fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp { sec: 1_700_000_000 + self.clock, nsec: 7 }
    }

    fn get(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    fn child(&mut self, parent: Ino, name: &[u8]) -> Result<Ino> {
        let dir = self.get(parent)?;
        let cookie = dir.names.get(name).ok_or(Errno::ENOENT)?;
        Ok(dir.entries[cookie].1)
    }

    fn enter(&mut self, parent: Ino, name: &[u8], ino: Ino) -> Result<()> {
        let (cookie, now) = (self.next_cookie, self.now());
        self.next_cookie += 1;
        let is_dir = self.get(ino)?.attr.kind()? == FileKind::Directory;
        let dir = self.get(parent)?;
        dir.names.insert(name.to_vec(), cookie);
        dir.entries.insert(cookie, (name.to_vec(), ino));
        dir.attr.mtime = now;
        dir.attr.ctime = now;
        dir.attr.nlink += u32::from(is_dir);
        Ok(())
    }

    fn leave(&mut self, parent: Ino, name: &[u8]) -> Result<Ino> {
        let now = self.now();
        let dir = self.get(parent)?;
        let cookie = dir.names.remove(name).ok_or(Errno::ENOENT)?;
        let (_, ino) = dir.entries.remove(&cookie).unwrap();
        dir.attr.mtime = now;
        dir.attr.ctime = now;
        if self.get(ino)?.attr.kind()? == FileKind::Directory {
            self.get(parent)?.attr.nlink -= 1;
        }
        Ok(ino)
    }

    fn make(&mut self, cred: &Cred, mode: u32, umask: u32) -> Ino {
        let (ino, now) = (Ino(self.next_ino), self.now());
        self.next_ino += 1;
        let attr = Attr {
            ino,
            mode: mode & !umask,
            nlink: 1 + u32::from(mode & 0o170_000 == 0o40000),
            uid: cred.uid,
            gid: cred.gid,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            blksize: 4096,
            ..Attr::default()
        };
        self.inodes.insert(ino, Inode { attr, ..Inode::default() });
        ino
    }

    fn open(&mut self, ino: Ino) -> Result<Fh> {
        self.get(ino)?.opens += 1;
        let fh = Fh(self.next_fh);
        self.next_fh += 1;
        self.handles.insert(fh, ino);
        Ok(fh)
    }

    fn close(&mut self, fh: Fh) -> Result<()> {
        let ino = self.handles.remove(&fh).ok_or(Errno::EBADF)?;
        self.get(ino)?.opens -= 1;
        Ok(())
    }

    /// One name fewer; the reply's orphan.
    fn drop_name(&mut self, ino: Ino) -> Result<Option<Ino>> {
        let now = self.now();
        let inode = self.get(ino)?;
        let is_dir = inode.attr.kind()? == FileKind::Directory;
        inode.attr.nlink = if is_dir { 0 } else { inode.attr.nlink - 1 };
        inode.attr.ctime = now;
        Ok((inode.attr.nlink == 0).then_some(ino))
    }

    fn attr(&mut self, ino: Ino) -> Result<Attr> {
        let inode = self.get(ino)?;
        inode.attr.size = inode.attr.size.max(inode.data.len() as u64);
        inode.attr.blocks = inode.attr.size.div_ceil(512);
        Ok(inode.attr.clone())
    }

    fn resize(&mut self, ino: Ino, size: u64) -> Result<()> {
        let now = self.now();
        let inode = self.get(ino)?;
        inode.data.resize(usize::try_from(size).map_err(|_| Errno::EFBIG)?, 0);
        inode.attr.size = size;
        inode.attr.mtime = now;
        inode.attr.ctime = now;
        Ok(())
    }

    #[expect(clippy::too_many_lines, reason = "one arm an operation")]
    fn answer(
        &mut self,
        cred: &Cred,
        request: &Request<'_>,
        payload: &mut [u8],
        payload_len: usize,
    ) -> Result<Reply> {
        Ok(match *request {
            Request::Noop | Request::Syncfs => Reply::Empty,
            Request::Lookup { parent, name } => {
                let ino = self.child(parent, name)?;
                Reply::Entry(self.attr(ino)?)
            }
            Request::Forget { ino } => {
                let inode = self.get(ino)?;
                assert_eq!(inode.opens, 0, "forgotten while open");
                if inode.attr.nlink == 0 {
                    self.inodes.remove(&ino);
                }
                Reply::Empty
            }
            Request::Getattr { ino, .. } => Reply::Attr(self.attr(ino)?),
            Request::Setattr { ino, ref set, .. } => Reply::Attr(self.setattr(ino, set)?),
            Request::Readlink { ino } => put(payload, &self.get(ino)?.data),
            Request::Symlink { parent, name } => {
                self.absent(parent, name)?;
                let ino = self.make(cred, 0o120_777, 0);
                self.get(ino)?.data = payload[..payload_len].to_vec();
                self.enter(parent, name, ino)?;
                Reply::Entry(self.attr(ino)?)
            }
            Request::Mknod { parent, name, mode, umask, rdev } => {
                self.absent(parent, name)?;
                let ino = self.make(cred, mode, umask);
                self.get(ino)?.attr.rdev = rdev;
                self.enter(parent, name, ino)?;
                Reply::Entry(self.attr(ino)?)
            }
            Request::Mkdir { parent, name, mode, umask } => {
                self.absent(parent, name)?;
                let ino = self.make(cred, mode & 0o7777 | 0o40000, umask);
                self.enter(parent, name, ino)?;
                Reply::Entry(self.attr(ino)?)
            }
            Request::Unlink { parent, name } => {
                let ino = self.leave(parent, name)?;
                let orphan = self.drop_name(ino)?;
                let open = self.handles.values().any(|opened| *opened == ino);
                let last = self.attr(ino)?;
                if orphan.is_some() && !open && last.kind()? == FileKind::Regular {
                    self.inodes.remove(&ino);
                    let parent = Some(self.attr(parent)?.into());
                    return Ok(Reply::Gone { last, parent });
                }
                Reply::Removed(orphan)
            }
            Request::Rmdir { parent, name } => {
                let ino = self.child(parent, name)?;
                if !self.get(ino)?.entries.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                self.leave(parent, name)?;
                Reply::Removed(self.drop_name(ino)?)
            }
            Request::Rename { parent, name, to_parent, to_name, flags } => {
                let target = self.child(to_parent, to_name).ok();
                if flags & rename_flags::NOREPLACE != 0 && target.is_some() {
                    return Err(Errno::EEXIST);
                }
                let moved = self.leave(parent, name)?;
                let mut orphan = None;
                if let Some(target) = target {
                    self.leave(to_parent, to_name)?;
                    if flags & rename_flags::EXCHANGE != 0 {
                        self.enter(parent, name, target)?;
                    } else {
                        orphan = self.drop_name(target)?;
                    }
                }
                self.enter(to_parent, to_name, moved)?;
                Reply::Removed(orphan)
            }
            Request::Link { ino, to_parent, to_name } => {
                self.absent(to_parent, to_name)?;
                self.enter(to_parent, to_name, ino)?;
                self.get(ino)?.attr.nlink += 1;
                Reply::Entry(self.attr(ino)?)
            }
            Request::Open { ino, flags } => {
                if flags & open_flags::TRUNC != 0 {
                    self.resize(ino, 0)?;
                }
                Reply::Opened(self.open(ino)?)
            }
            Request::Opendir { ino } => Reply::Opened(self.open(ino)?),
            Request::Create { parent, name, mode, umask, flags } => {
                let ino = match self.child(parent, name) {
                    Ok(_) if flags & open_flags::EXCL != 0 => return Err(Errno::EEXIST),
                    Ok(ino) => ino,
                    Err(_) => {
                        let ino = self.make(cred, mode, umask);
                        self.enter(parent, name, ino)?;
                        ino
                    }
                };
                Reply::Created(self.attr(ino)?, self.open(ino)?)
            }
            Request::Tmpfile { mode, umask, .. } => {
                let ino = self.make(cred, mode, umask);
                self.get(ino)?.attr.nlink = 0;
                Reply::Created(self.attr(ino)?, self.open(ino)?)
            }
            Request::Read { ino, offset, len, .. } => {
                let data = &self.get(ino)?.data;
                let start = usize::try_from(offset).unwrap().min(data.len());
                let end = (start + len as usize).min(data.len());
                put(payload, &data[start..end])
            }
            Request::Write { ino, offset, flags, .. } => {
                self.write(ino, offset, flags, &payload[..payload_len])?
            }
            Request::Flush { ino, owner, .. } => {
                self.get(ino)?.locks.retain(|lock| lock.owner != owner);
                Reply::Empty
            }
            Request::Release { ino, fh, owner } => {
                self.get(ino)?.locks.retain(|lock| owner == 0 || lock.owner != owner);
                self.close(fh)?;
                Reply::Empty
            }
            Request::Releasedir { fh, .. } => {
                self.close(fh)?;
                Reply::Empty
            }
            Request::Fsync { ino, .. } => {
                self.get(ino)?;
                Reply::Empty
            }
            Request::Readdir { ino, cookie, len, with_attributes, .. } => {
                self.readdir(ino, cookie, &mut payload[..len as usize], with_attributes)?
            }
            Request::Statfs { .. } => Reply::Statfs(Statfs {
                block_size: 4096,
                blocks: 1000,
                blocks_free: 900,
                blocks_available: 800,
                files: 70,
                files_free: 60,
                name_max: 255,
                id: 1,
            }),
            Request::Getxattr { ino, name, len } => {
                let value = self.get(ino)?.xattrs.get(name).ok_or(Errno::ENODATA)?;
                sized(payload, value, len)?
            }
            Request::Setxattr { ino, name, flags } => {
                let xattrs = &mut self.get(ino)?.xattrs;
                match xattrs.contains_key(name) {
                    true if flags & xattr_flags::CREATE != 0 => return Err(Errno::EEXIST),
                    false if flags & xattr_flags::REPLACE != 0 => return Err(Errno::ENODATA),
                    _ => {}
                }
                xattrs.insert(name.to_vec(), payload[..payload_len].to_vec());
                Reply::Empty
            }
            Request::Listxattr { ino, len } => {
                let names = &self.get(ino)?.xattrs;
                let list: Vec<u8> =
                    names.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
                sized(payload, &list, len)?
            }
            Request::Removexattr { ino, name } => {
                self.get(ino)?.xattrs.remove(name).ok_or(Errno::ENODATA)?;
                Reply::Empty
            }
            Request::Access { .. }
            | Request::CancelLock { .. }
            | Request::Reclaim { .. }
            | Request::ReturnLocks { .. } => Reply::Empty,
            Request::Getlk { ino, lock, .. } => {
                let free = Lock { kind: LockKind::Unlock, ..lock };
                let locks = &self.get(ino)?.locks;
                Reply::Lock(*locks.iter().find(|held| clash(held, &lock)).unwrap_or(&free))
            }
            Request::Setlk { ino, lock, wait, .. } => {
                let locks = &mut self.get(ino)?.locks;
                if locks.iter().any(|held| clash(held, &lock)) {
                    return if wait { Ok(Reply::Waiting(1)) } else { Err(Errno::EAGAIN) };
                }
                // Whole-range locks are all the tests take.
                locks.retain(|held| held.owner != lock.owner || held.style != lock.style);
                if lock.kind != LockKind::Unlock {
                    locks.push(lock);
                }
                Reply::Empty
            }
            Request::Fallocate { ino, offset, len, mode, .. } => {
                let end = usize::try_from(offset + len).unwrap();
                match mode {
                    0 => {
                        let size = self.attr(ino)?.size.max(end as u64);
                        self.resize(ino, size)?;
                    }
                    // Keep size, punch.
                    3 => {
                        let data = &mut self.get(ino)?.data;
                        let end = end.min(data.len());
                        data[usize::try_from(offset).unwrap()..end].fill(0);
                    }
                    _ => return Err(Errno::EOPNOTSUPP),
                }
                Reply::Empty
            }
            Request::Lseek { ino, offset, whence, .. } => {
                let size = self.attr(ino)?.size;
                match whence {
                    _ if offset >= size => return Err(Errno::ENXIO),
                    seek::DATA => Reply::Offset(offset),
                    _ => Reply::Offset(size),
                }
            }
            Request::CopyFileRange { from, from_offset, to, to_offset, len, .. } => {
                let data = &self.get(from)?.data;
                let start = usize::try_from(from_offset).unwrap().min(data.len());
                let end = (start + usize::try_from(len).unwrap()).min(data.len());
                let copied = data[start..end].to_vec();
                self.write(to, to_offset, 0, &copied)?
            }
        })
    }

    fn absent(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        if self.child(parent, name).is_ok() { Err(Errno::EEXIST) } else { Ok(()) }
    }

    fn setattr(&mut self, ino: Ino, set: &Setattr) -> Result<Attr> {
        let now = self.now();
        if let Some(size) = set.size {
            self.resize(ino, size)?;
        }
        let attr = &mut self.get(ino)?.attr;
        attr.mode = set.mode.map_or(attr.mode, |mode| attr.mode & 0o170_000 | mode);
        if set.kill_suidgid {
            attr.mode &= !0o6000;
        }
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        let time = |time: SetattrTime| match time {
            SetattrTime::Now => now,
            SetattrTime::At(at) => at,
        };
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = now;
        self.attr(ino)
    }

    fn write(&mut self, ino: Ino, offset: u64, flags: u32, data: &[u8]) -> Result<Reply> {
        let now = self.now();
        let inode = self.get(ino)?;
        let start = if flags & write_flags::APPEND != 0 {
            inode.data.len()
        } else {
            usize::try_from(offset).unwrap()
        };
        let end = start + data.len();
        if inode.data.len() < end {
            inode.data.resize(end, 0);
        }
        inode.data[start..end].copy_from_slice(data);
        inode.attr.size = inode.data.len() as u64;
        inode.attr.mtime = now;
        inode.attr.ctime = now;
        if flags & write_flags::KILL_SUIDGID != 0 {
            inode.attr.mode &= !0o6000;
        }
        Ok(Reply::Written(u32::try_from(data.len()).unwrap()))
    }

    fn readdir(&mut self, ino: Ino, cookie: u64, into: &mut [u8], with: bool) -> Result<Reply> {
        let entries: Vec<(u64, Vec<u8>, Ino)> = self
            .get(ino)?
            .entries
            .range(cookie + 1..)
            .take(into.len() / 24 + 1)
            .map(|(&cookie, (name, ino))| (cookie, name.clone(), *ino))
            .collect();
        let mut writer = DirentsWriter::new(into);
        for (cookie, name, ino) in entries {
            let attr = self.attr(ino)?;
            let kind = attr.kind()?;
            let attr = with.then_some(attr);
            if !writer.push(&Dirent { ino, cookie, kind, name: &name, attr })? {
                break;
            }
        }
        Ok(Reply::Data(u32::try_from(writer.len()).unwrap()))
    }
}

fn clash(held: &Lock, asked: &Lock) -> bool {
    held.style == asked.style
        && held.owner != asked.owner
        && asked.kind != LockKind::Unlock
        && (held.kind == LockKind::Write || asked.kind == LockKind::Write)
        && held.start <= asked.end
        && asked.start <= held.end
}

fn put(payload: &mut [u8], data: &[u8]) -> Reply {
    payload[..data.len()].copy_from_slice(data);
    Reply::Data(u32::try_from(data.len()).unwrap())
}

fn sized(payload: &mut [u8], data: &[u8], len: u32) -> Result<Reply> {
    let size = u32::try_from(data.len()).unwrap();
    match len {
        0 => Ok(Reply::Size(size)),
        len if size > len => Err(Errno::ERANGE),
        _ => Ok(put(payload, data)),
    }
}
