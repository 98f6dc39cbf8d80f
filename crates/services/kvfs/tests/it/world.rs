//! A volume in memory and somebody who uses it.

pub(crate) use outboard_base::task::run as block_on;
use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outboard_base::{Cred, Errno, Fh, Ino, SessionId, Timestamp};
use outboard_kv::mem::MemKv;
use outboard_kv::object::Compression;
use outboard_kv::{Batch, Durability, Key, Kv, KvError, Usage, Value, Version};
use outboard_kvfs::{Kvfs, Options};
use outboard_medium::mem::MemMedium;
use outboard_volume::{Caller, Payload};
use outboard_wire::file::{Attr, Dirents, Flags, Header, Reply, Request, Setattr, open_flags};

type Result<T, E = Errno> = std::result::Result<T, E>;

/// The engines outlive volumes, as disks do.
pub(crate) type Volume = Kvfs<Arc<Gate>, Arc<MemMedium>>;

/// An engine that dies after so many commits: what was committed is there, nothing more goes in.
pub(crate) struct Gate {
    mem: MemKv,
    left: AtomicU64,
}

impl Gate {
    /// From now on `commits` commits succeed.
    pub(crate) fn dies_after(&self, commits: u64) {
        self.left.store(commits, Ordering::Relaxed);
    }

    /// Commits it would still take.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

/// Faults are the engine's own.
impl Deref for Gate {
    type Target = MemKv;
    fn deref(&self) -> &MemKv {
        &self.mem
    }
}

impl Kv for Gate {
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Value>, KvError>> {
        self.mem.get(key)
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(Key, Value)>, KvError>> {
        self.mem.scan(prefix, after, limit)
    }

    async fn commit(&self, batch: Batch, durability: Durability) -> Result<(), KvError> {
        let left = self.left();
        self.dies_after(left.saturating_sub(1));
        if left == 0 {
            return Err(KvError::Io(Errno::EIO));
        }
        self.mem.commit(batch, durability).await
    }

    fn sync(&self) -> impl Future<Output = Result<(), KvError>> {
        self.mem.sync()
    }

    fn version(&self) -> Version {
        self.mem.version()
    }

    fn usage(&self) -> Usage {
        self.mem.usage()
    }
}

/// A disk: what stays when a volume goes.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) kv: Arc<Gate>,
    pub(crate) medium: Arc<MemMedium>,
    /// Every other seed packs blocks.
    compression: Compression,
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Disk {
        let kv = Gate { mem: MemKv::new(seed), left: AtomicU64::new(u64::MAX) };
        let compression = if seed % 2 == 1 { Compression::Lz4 } else { Compression::None };
        Disk { kv: Arc::new(kv), medium: Arc::new(MemMedium::new(seed)), compression }
    }

    pub(crate) fn open(&self) -> Volume {
        self.open_with(Options::default())
    }

    /// Opens with what `options` say of limits.
    pub(crate) fn open_with(&self, options: Options) -> Volume {
        let options = Options {
            capacity: 64 << 20,
            segment: 1 << 20,
            id: 7,
            mode: 0o777,
            compression: self.compression,
            ..options
        };
        let (kv, medium) = (Arc::clone(&self.kv), Arc::clone(&self.medium));
        block_on(Kvfs::open(kv, medium, options, Timestamp { sec: 1_000_000, nsec: 0 })).unwrap()
    }

    /// Power loss.
    pub(crate) fn crash(&self) {
        self.kv.crash();
        self.medium.crash();
    }

    /// Opens, and lets nobody hand anything in.
    pub(crate) fn open_settled(&self) -> Volume {
        let volume = self.open();
        block_on(volume.end_grace()).unwrap();
        tidy(&volume);
        volume
    }
}

pub(crate) fn tidy(volume: &Volume) {
    for _ in 0..10_000 {
        if !block_on(volume.tidy()).unwrap() {
            return;
        }
    }
    panic!("housekeeping never ends");
}

/// Somebody attached to a volume. Each request gets a sequence of its own, and is a second later.
pub(crate) struct User<'v> {
    pub(crate) volume: &'v Volume,
    pub(crate) caller: Caller,
    pub(crate) cred: Cred,
    pub(crate) flags: Flags,
    pub(crate) sequence: Cell<u64>,
    pub(crate) now: Cell<i64>,
}

impl<'v> User<'v> {
    /// Root, on attachment 1.
    pub(crate) fn root(volume: &'v Volume) -> User<'v> {
        User::attached(volume, 1)
    }

    /// Root, on an attachment of their own.
    pub(crate) fn attached(volume: &'v Volume, attachment: u64) -> User<'v> {
        let caller = Caller::root(SessionId(attachment));
        User {
            volume,
            caller,
            cred: Cred::root(),
            flags: Flags::default(),
            sequence: Cell::new(1),
            now: Cell::new(2_000_000),
        }
    }

    /// The same attachment, as somebody else.
    pub(crate) fn by(&self, uid: u32, gid: u32) -> User<'v> {
        User {
            volume: self.volume,
            caller: self.caller.clone(),
            cred: Cred::user(uid, gid),
            flags: self.flags,
            sequence: Cell::new(self.sequence.get() + 1_000_000),
            now: self.now.clone(),
        }
    }

    pub(crate) fn header(&self) -> Header {
        Header {
            cred: self.cred.clone(),
            flags: self.flags,
            session: self.caller.attachment,
            sequence: self.sequence.get(),
            lane: 0,
        }
    }

    /// The request as it is.
    pub(crate) fn ask(&self, request: Request<'_>, payload: &[u8]) -> Result<(Reply, Vec<u8>)> {
        self.sequence.set(self.sequence.get() + 1);
        self.again(request, payload)
    }

    /// The request, under the sequence of the one before.
    pub(crate) fn again(&self, request: Request<'_>, payload: &[u8]) -> Result<(Reply, Vec<u8>)> {
        self.now.set(self.now.get() + 1);
        let now = Timestamp { sec: self.now.get(), nsec: 5 };
        let (header, payload) = (self.header(), Payload::Bytes(payload.to_vec()));
        let answer = self.volume.handle(&self.caller, &header, request, payload, now);
        let answer = block_on(answer)?;
        Ok((answer.reply, answer.payload.bytes().to_vec()))
    }

    fn attr(&self, request: Request<'_>, payload: &[u8]) -> Result<Attr> {
        match self.ask(request, payload)?.0 {
            Reply::Entry(attr) | Reply::Attr(attr) => Ok(attr),
            reply => panic!("{reply:?}"),
        }
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &str) -> Result<Attr> {
        self.attr(Request::Lookup { parent, name: name.as_bytes() }, &[])
    }

    pub(crate) fn stat(&self, ino: Ino) -> Result<Attr> {
        self.attr(Request::Getattr { ino, fh: Fh::NONE }, &[])
    }

    pub(crate) fn set(&self, ino: Ino, set: Setattr) -> Result<Attr> {
        self.attr(Request::Setattr { ino, fh: Fh::NONE, set }, &[])
    }

    pub(crate) fn chmod(&self, ino: Ino, mode: u32) -> Result<Attr> {
        self.set(ino, Setattr { mode: Some(mode), ..Setattr::default() })
    }

    pub(crate) fn chown(&self, ino: Ino, uid: u32, gid: u32) -> Result<Attr> {
        self.set(ino, Setattr { uid: Some(uid), gid: Some(gid), ..Setattr::default() })
    }

    pub(crate) fn mkdir(&self, parent: Ino, name: &str) -> Result<Attr> {
        self.mkdir_mode(parent, name, 0o777)
    }

    pub(crate) fn mkdir_mode(&self, parent: Ino, name: &str, mode: u32) -> Result<Attr> {
        self.attr(Request::Mkdir { parent, name: name.as_bytes(), mode, umask: 0 }, &[])
    }

    pub(crate) fn mknod(&self, parent: Ino, name: &str, mode: u32) -> Result<Attr> {
        let name = name.as_bytes();
        self.attr(Request::Mknod { parent, name, mode, umask: 0, rdev: 0x103 }, &[])
    }

    /// A regular file, not open.
    pub(crate) fn file(&self, parent: Ino, name: &str) -> Result<Attr> {
        self.mknod(parent, name, 0o100_666)
    }

    pub(crate) fn symlink(&self, parent: Ino, name: &str, target: &str) -> Result<Attr> {
        self.attr(Request::Symlink { parent, name: name.as_bytes() }, target.as_bytes())
    }

    pub(crate) fn link(&self, ino: Ino, to_parent: Ino, name: &str) -> Result<Attr> {
        self.attr(Request::Link { ino, to_parent, to_name: name.as_bytes() }, &[])
    }

    fn removed(&self, request: Request<'_>) -> Result<Option<Ino>> {
        match self.ask(request, &[])?.0 {
            Reply::Removed(orphan) => Ok(orphan),
            Reply::Gone { last, .. } => {
                assert_eq!(last.nlink, 0);
                Ok(None)
            }
            reply => panic!("{reply:?}"),
        }
    }

    pub(crate) fn unlink(&self, parent: Ino, name: &str) -> Result<Option<Ino>> {
        self.removed(Request::Unlink { parent, name: name.as_bytes() })
    }

    pub(crate) fn rmdir(&self, parent: Ino, name: &str) -> Result<Option<Ino>> {
        self.removed(Request::Rmdir { parent, name: name.as_bytes() })
    }

    pub(crate) fn rename(
        &self,
        (parent, name): (Ino, &str),
        (to_parent, to_name): (Ino, &str),
        flags: u32,
    ) -> Result<Option<Ino>> {
        let (name, to_name) = (name.as_bytes(), to_name.as_bytes());
        self.removed(Request::Rename { parent, name, to_parent, to_name, flags })
    }

    pub(crate) fn create(&self, parent: Ino, name: &str, flags: u32) -> Result<(Attr, Fh)> {
        let name = name.as_bytes();
        let flags = flags | open_flags::RDWR;
        match self.ask(Request::Create { parent, name, mode: 0o666, umask: 0, flags }, &[])?.0 {
            Reply::Created(attr, fh) => Ok((attr, fh)),
            reply => panic!("{reply:?}"),
        }
    }

    pub(crate) fn tmpfile(&self, parent: Ino, flags: u32) -> Result<(Attr, Fh)> {
        let flags = flags | open_flags::RDWR;
        match self.ask(Request::Tmpfile { parent, mode: 0o600, umask: 0, flags }, &[])?.0 {
            Reply::Created(attr, fh) => Ok((attr, fh)),
            reply => panic!("{reply:?}"),
        }
    }

    pub(crate) fn open(&self, ino: Ino, flags: u32) -> Result<Fh> {
        match self.ask(Request::Open { ino, flags }, &[])?.0 {
            Reply::Opened(fh) => Ok(fh),
            reply => panic!("{reply:?}"),
        }
    }

    pub(crate) fn opendir(&self, ino: Ino) -> Result<Fh> {
        match self.ask(Request::Opendir { ino }, &[])?.0 {
            Reply::Opened(fh) => Ok(fh),
            reply => panic!("{reply:?}"),
        }
    }

    pub(crate) fn done(&self, request: Request<'_>, payload: &[u8]) -> Result<()> {
        match self.ask(request, payload)?.0 {
            Reply::Empty => Ok(()),
            reply => panic!("{reply:?}"),
        }
    }

    pub(crate) fn close(&self, ino: Ino, fh: Fh) -> Result<()> {
        self.done(Request::Release { ino, fh, owner: 1 }, &[])
    }

    pub(crate) fn forget(&self, ino: Ino) {
        self.done(Request::Forget { ino }, &[]).unwrap();
    }

    pub(crate) fn write(&self, ino: Ino, fh: Fh, offset: u64, data: &[u8]) -> Result<usize> {
        match self.ask(Request::Write { ino, fh, offset, flags: 0 }, data)?.0 {
            Reply::Written(len) => Ok(len as usize),
            reply => panic!("{reply:?}"),
        }
    }

    pub(crate) fn read(&self, ino: Ino, fh: Fh, offset: u64, len: u32) -> Result<Vec<u8>> {
        self.ask(Request::Read { ino, fh, offset, len, flags: 0 }, &[]).map(|(_, data)| data)
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.done(Request::Syncfs, &[])
    }

    pub(crate) fn setxattr(&self, ino: Ino, name: &str, value: &[u8], flags: u32) -> Result<()> {
        self.done(Request::Setxattr { ino, name: name.as_bytes(), flags }, value)
    }

    pub(crate) fn getxattr(&self, ino: Ino, name: &str) -> Result<Vec<u8>> {
        let request = Request::Getxattr { ino, name: name.as_bytes(), len: 65_536 };
        self.ask(request, &[]).map(|(_, data)| data)
    }

    pub(crate) fn listxattr(&self, ino: Ino) -> Result<Vec<String>> {
        let (_, data) = self.ask(Request::Listxattr { ino, len: 65_536 }, &[])?;
        let names = data.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// One page of a directory: cookies, inodes and names.
    pub(crate) fn page(
        &self,
        ino: Ino,
        fh: Fh,
        cookie: u64,
        len: u32,
    ) -> Result<Vec<(u64, Ino, String)>> {
        let request = Request::Readdir { ino, fh, cookie, len, with_attributes: false };
        let (_, data) = self.ask(request, &[])?;
        let entries = Dirents::new(&data).map(|entry| {
            let entry = entry.unwrap();
            (entry.cookie, entry.ino, String::from_utf8_lossy(entry.name).into_owned())
        });
        Ok(entries.collect())
    }

    /// The names in a directory, sorted.
    pub(crate) fn names(&self, ino: Ino) -> Vec<String> {
        let fh = self.opendir(ino).unwrap();
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.page(ino, fh, cookie, 400).unwrap();
            let Some((last, ..)) = page.last() else { break };
            cookie = *last;
            names.extend(page.into_iter().map(|(_, _, name)| name));
        }
        self.done(Request::Releasedir { ino, fh }, &[]).unwrap();
        names.sort();
        names
    }
}

/// The errno of something that must fail.
pub(crate) fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
    result.unwrap_err()
}

/// Everything the check knows holds.
pub(crate) fn assert_clean(volume: &Volume) {
    let report = block_on(volume.check(outboard_kvfs::check::Options::default())).unwrap();
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{findings:#?}");
}

/// What a volume shows of itself: every name, and what is behind it. Access times left out.
pub(crate) fn picture(volume: &Volume) -> Vec<String> {
    fn visit(user: &User<'_>, dir: Ino, path: &str, out: &mut Vec<String>) {
        for name in user.names(dir) {
            let mut attr = user.lookup(dir, &name).unwrap();
            attr.atime = Timestamp::default();
            let xattrs = user.listxattr(attr.ino).unwrap();
            let mut behind = Vec::new();
            match attr.mode & 0o170_000 {
                0o040_000 => visit(user, attr.ino, &format!("{path}/{name}"), out),
                0o120_000 => behind = user.ask(Request::Readlink { ino: attr.ino }, &[]).unwrap().1,
                0o100_000 => {
                    let fh = user.open(attr.ino, 0).unwrap();
                    behind = user.read(attr.ino, fh, 0, 1 << 20).unwrap();
                    user.close(attr.ino, fh).unwrap();
                }
                _ => {}
            }
            behind.dedup();
            out.push(format!("{path}/{name}: {attr:?} {xattrs:?} {behind:?}"));
        }
    }
    let user = User::attached(volume, 77);
    user.sequence.set(u64::MAX / 2);
    let mut out = Vec::new();
    visit(&user, Ino::ROOT, "", &mut out);
    volume.detach(user.caller.attachment);
    tidy(volume);
    out.sort();
    out
}
