//! The reference: a file system in a few maps.

use std::collections::BTreeMap;

use outboard_base::{Cred, Errno};
use outboard_wire::file::{FileKind, mode, rename_flags};

use super::refusals::{EXECUTE, READ, Refusals, WRITE};

/// An inode. Numbers are given once.
pub(super) type Id = usize;
/// An open file. Numbers are given once.
pub(super) type HandleId = usize;
/// The directory everything happens in.
pub(super) const ROOT: Id = 0;

/// `fallocate(2)` modes.
pub(super) const KEEP_SIZE: u32 = 1;
/// With `KEEP_SIZE`: zeros without space.
pub(super) const PUNCH_HOLE: u32 = 2;
/// Zeros with space.
pub(super) const ZERO_RANGE: u32 = 16;

/// What is done, names and numbers found.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Stat { node: Id },
    Lookup { dir: Id, name: String },
    List { dir: Id },
    Create { dir: Id, name: String, mode: u32, excl: bool },
    Mkdir { dir: Id, name: String, mode: u32 },
    Symlink { dir: Id, name: String, target: String },
    Fifo { dir: Id, name: String, mode: u32 },
    Tmpfile { dir: Id, mode: u32 },
    Link { node: Id, dir: Id, name: String },
    Unlink { dir: Id, name: String },
    Rmdir { dir: Id, name: String },
    Rename { from: (Id, String), to: (Id, String), flags: u32 },
    Open { node: Id, reads: bool, writes: bool, truncate: bool, append: bool },
    Close { handle: HandleId },
    Write { handle: HandleId, at: u64, data: Bytes },
    Read { handle: HandleId, at: u64, len: u32 },
    Truncate { node: Id, size: u64 },
    Ftruncate { handle: HandleId, size: u64 },
    Fallocate { handle: HandleId, mode: u32, at: u64, len: u64 },
    Copy { from: (HandleId, u64), to: (HandleId, u64), len: u64 },
    Chmod { node: Id, mode: u32 },
    Chown { node: Id, uid: Option<u32>, gid: Option<u32> },
    Setxattr { node: Id, name: String, value: Bytes, flags: u32 },
    Removexattr { node: Id, name: String },
    Sync,
}

/// Bytes that tell their length when printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// What an inode shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Which.
    pub(super) id: Id,
    /// Kind and permissions.
    pub(super) mode: u32,
    /// Owner and group.
    pub(super) owner: (u32, u32),
    /// Names.
    pub(super) nlink: u32,
    /// Bytes; 0 for what is neither file nor link.
    pub(super) size: u64,
}

/// What an action shows when it works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// That it worked.
    Done,
    /// An inode.
    Node(Facts),
    /// An inode, open.
    Opened(HandleId, Facts),
    /// Bytes, or how many were taken.
    Data(Bytes),
    /// How many bytes were taken.
    Count(u64),
    /// Names, kinds, inodes.
    Names(Vec<(String, u8, Id)>),
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    File(Vec<u8>),
    Dir { entries: BTreeMap<String, Id>, parent: Id },
    Symlink(String),
    Fifo,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) body: Body,
    /// Permissions.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Directory entries that lead here.
    pub(super) names: u32,
    /// Without a name, but may get one.
    pub(super) linkable: bool,
    pub(super) xattrs: BTreeMap<String, Vec<u8>>,
}

impl Node {
    pub(super) fn kind(&self) -> FileKind {
        match self.body {
            Body::File(_) => FileKind::Regular,
            Body::Dir { .. } => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Fifo => FileKind::Fifo,
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir { .. })
    }

    /// What a change of data or owner by `who` does to set-id bits.
    fn drop_set_id(&mut self) {
        self.mode &= !mode::S_ISUID;
        if self.mode & 0o010 != 0 {
            self.mode &= !mode::S_ISGID;
        }
    }
}

/// An open file.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    pub(super) node: Id,
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) append: bool,
}

/// The file system.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    pub(super) nodes: Vec<Node>,
    pub(super) handles: BTreeMap<HandleId, Handle>,
    last_handle: HandleId,
}

/// What must be seen, or any of these errors.
pub(super) type Verdict = Result<Seen, Vec<Errno>>;

impl Reference {
    /// An empty directory of root's, for everyone.
    pub(super) fn new() -> Reference {
        let body = Body::Dir { entries: BTreeMap::new(), parent: ROOT };
        let root = Node {
            body,
            mode: 0o777,
            uid: 0,
            gid: 0,
            names: 1,
            linkable: false,
            xattrs: BTreeMap::new(),
        };
        Reference { nodes: vec![root], handles: BTreeMap::new(), last_handle: 0 }
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        self.nodes.get(id).expect("ids come from here")
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(id).expect("ids come from here")
    }

    pub(super) fn handle(&self, id: HandleId) -> &Handle {
        self.handles.get(&id).expect("handles come from here")
    }

    fn entries(&mut self, dir: Id) -> &mut BTreeMap<String, Id> {
        match &mut self.node_mut(dir).body {
            Body::Dir { entries, .. } => entries,
            _ => unreachable!("checked to be a directory"),
        }
    }

    pub(super) fn entry(&self, dir: Id, name: &str) -> Option<Id> {
        match &self.node(dir).body {
            Body::Dir { entries, .. } => entries.get(name).copied(),
            _ => None,
        }
    }

    /// What `id` shows.
    pub(super) fn facts(&self, id: Id) -> Facts {
        let node = self.node(id);
        let (nlink, size) = match &node.body {
            Body::File(bytes) => (node.names, bytes.len() as u64),
            Body::Symlink(target) => (node.names, target.len() as u64),
            Body::Fifo => (node.names, 0),
            Body::Dir { .. } if node.names == 0 => (0, 0),
            Body::Dir { entries, .. } => {
                let below = entries.values().filter(|&&child| self.node(child).is_dir()).count();
                (2 + below as u32, 0)
            }
        };
        let mode = node.kind().mode_bits() | node.mode;
        Facts { id, mode, owner: (node.uid, node.gid), nlink, size }
    }

    /// Does `action` as `who`, or tells every error that applies and does nothing.
    pub(super) fn apply(&mut self, who: &Cred, action: &Action) -> Verdict {
        Refusals::of(self, who, action).verdict()?;
        Ok(match action {
            Action::Stat { node } => Seen::Node(self.facts(*node)),
            Action::Lookup { dir, name } => {
                Seen::Node(self.facts(self.entry(*dir, name).expect("checked")))
            }
            Action::List { dir } => self.list(*dir),
            Action::Create { dir, name, mode, .. } => {
                let id = match self.entry(*dir, name) {
                    Some(id) => id,
                    None => self.make(who, *dir, name, *mode, Body::File(Vec::new())),
                };
                self.open(id, true, true, false)
            }
            Action::Mkdir { dir, name, mode } => {
                let body = Body::Dir { entries: BTreeMap::new(), parent: *dir };
                let id = self.make(who, *dir, name, *mode, body);
                Seen::Node(self.facts(id))
            }
            Action::Symlink { dir, name, target } => {
                let id = self.make(who, *dir, name, 0o777, Body::Symlink(target.clone()));
                Seen::Node(self.facts(id))
            }
            Action::Fifo { dir, name, mode } => {
                let id = self.make(who, *dir, name, *mode, Body::Fifo);
                Seen::Node(self.facts(id))
            }
            Action::Tmpfile { dir, mode } => {
                let id = self.born(who, *dir, *mode, Body::File(Vec::new()));
                self.node_mut(id).linkable = true;
                self.open(id, true, true, false)
            }
            Action::Link { node, dir, name } => {
                self.entries(*dir).insert(name.clone(), *node);
                let linked = self.node_mut(*node);
                (linked.names, linked.linkable) = (linked.names + 1, false);
                Seen::Node(self.facts(*node))
            }
            Action::Unlink { dir, name } | Action::Rmdir { dir, name } => {
                self.remove(*dir, name);
                Seen::Done
            }
            Action::Rename { from, to, flags } => {
                self.rename(from, to, *flags);
                Seen::Done
            }
            Action::Setxattr { node, name, value, .. } => {
                self.node_mut(*node).xattrs.insert(name.clone(), value.0.clone());
                Seen::Done
            }
            Action::Removexattr { node, name } => {
                self.node_mut(*node).xattrs.remove(name);
                Seen::Done
            }
            Action::Sync => Seen::Done,
            _ => self.apply_to_file(who, action),
        })
    }

    /// Actions on data, handles and attributes, which nothing refuses any more.
    fn apply_to_file(&mut self, who: &Cred, action: &Action) -> Seen {
        match action {
            Action::Open { node, reads, writes, truncate, append } => {
                if *truncate {
                    self.resize(*node, 0);
                    self.data_changed(who, *node);
                }
                self.open(*node, *reads, *writes, *append)
            }
            Action::Close { handle } => {
                self.handles.remove(handle);
                Seen::Done
            }
            Action::Write { handle, at, data } => {
                let Handle { node, append, .. } = self.handle(*handle).clone();
                let file = self.file(node);
                let at = if append { file.len() } else { *at as usize };
                put(file, at, &data.0);
                self.data_changed(who, node);
                Seen::Count(data.0.len() as u64)
            }
            Action::Read { handle, at, len } => {
                let node = self.handle(*handle).node;
                let file = self.file(node);
                let (from, to) = (*at as usize, *at as usize + *len as usize);
                Seen::Data(Bytes(slice(file, from, to).to_vec()))
            }
            Action::Truncate { node, size } => {
                self.resize(*node, *size as usize);
                self.data_changed(who, *node);
                Seen::Node(self.facts(*node))
            }
            Action::Ftruncate { handle, size } => {
                let node = self.handle(*handle).node;
                self.resize(node, *size as usize);
                Seen::Node(self.facts(node))
            }
            Action::Fallocate { handle, mode, at, len } => {
                let node = self.handle(*handle).node;
                self.allocate(node, *mode, *at as usize, *len as usize);
                Seen::Done
            }
            Action::Copy { from, to, len } => self.copy(*from, *to, *len as usize),
            Action::Chmod { node, mode } => self.chmod(who, *node, *mode),
            Action::Chown { node, uid, gid } => {
                let changed = self.node_mut(*node);
                changed.uid = uid.unwrap_or(changed.uid);
                changed.gid = gid.unwrap_or(changed.gid);
                if !changed.is_dir() {
                    changed.drop_set_id();
                }
                Seen::Node(self.facts(*node))
            }
            other => unreachable!("{other:?} is not about a file"),
        }
    }

    fn copy(&mut self, from: (HandleId, u64), to: (HandleId, u64), len: usize) -> Seen {
        let source = self.handle(from.0).node;
        let start = from.1 as usize;
        let bytes = slice(self.file(source), start, start + len).to_vec();
        let target = self.handle(to.0).node;
        if !bytes.is_empty() {
            put(self.file(target), to.1 as usize, &bytes);
        }
        Seen::Count(bytes.len() as u64)
    }

    fn chmod(&mut self, who: &Cred, id: Id, mode: u32) -> Seen {
        let stranger = !who.is_root() && !who.in_group(self.node(id).gid);
        let lost = if stranger { mode::S_ISGID } else { 0 };
        self.node_mut(id).mode = mode & !lost;
        Seen::Node(self.facts(id))
    }

    fn list(&self, dir: Id) -> Seen {
        let Body::Dir { entries, .. } = &self.node(dir).body else {
            unreachable!("checked to be a directory")
        };
        let row =
            |(name, &id): (&String, &Id)| (name.clone(), self.node(id).kind().dirent_type(), id);
        Seen::Names(entries.iter().map(row).collect())
    }

    fn born(&mut self, who: &Cred, dir: Id, asked: u32, body: Body) -> Id {
        let parent = self.node(dir);
        let inherits = parent.mode & mode::S_ISGID != 0;
        let gid = if inherits { parent.gid } else { who.gid };
        let mut node = Node {
            body,
            mode: asked,
            uid: who.uid,
            gid,
            names: 0,
            linkable: false,
            xattrs: BTreeMap::new(),
        };
        if inherits && node.is_dir() {
            node.mode |= mode::S_ISGID;
        } else if inherits && node.mode & 0o010 != 0 && !who.is_root() && !who.in_group(gid) {
            node.mode &= !mode::S_ISGID;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn make(&mut self, who: &Cred, dir: Id, name: &str, asked: u32, body: Body) -> Id {
        let id = self.born(who, dir, asked, body);
        self.node_mut(id).names = 1;
        self.entries(dir).insert(name.to_owned(), id);
        id
    }

    fn open(&mut self, node: Id, reads: bool, writes: bool, append: bool) -> Seen {
        self.last_handle += 1;
        self.handles.insert(self.last_handle, Handle { node, reads, writes, append });
        Seen::Opened(self.last_handle, self.facts(node))
    }

    fn remove(&mut self, dir: Id, name: &str) {
        if let Some(id) = self.entries(dir).remove(name) {
            self.node_mut(id).names -= 1;
        }
    }

    fn rename(&mut self, from: &(Id, String), to: &(Id, String), flags: u32) {
        let source = self.entry(from.0, &from.1).expect("checked");
        let target = self.entry(to.0, &to.1);
        if target == Some(source) {
            return;
        }
        self.entries(from.0).remove(&from.1);
        self.entries(to.0).insert(to.1.clone(), source);
        self.moved(source, to.0);
        match target {
            Some(target) if flags & rename_flags::EXCHANGE != 0 => {
                self.entries(from.0).insert(from.1.clone(), target);
                self.moved(target, from.0);
            }
            Some(target) => self.node_mut(target).names -= 1,
            None => {}
        }
    }

    fn moved(&mut self, id: Id, to: Id) {
        if let Body::Dir { parent, .. } = &mut self.node_mut(id).body {
            *parent = to;
        }
    }

    /// How long the file `id` is.
    pub(super) fn size(&self, id: Id) -> u64 {
        match &self.node(id).body {
            Body::File(bytes) => bytes.len() as u64,
            _ => 0,
        }
    }

    fn file(&mut self, id: Id) -> &mut Vec<u8> {
        match &mut self.node_mut(id).body {
            Body::File(bytes) => bytes,
            _ => unreachable!("only files are opened"),
        }
    }

    fn resize(&mut self, id: Id, size: usize) {
        self.file(id).resize(size, 0);
    }

    fn allocate(&mut self, id: Id, mode: u32, at: usize, len: usize) {
        let file = self.file(id);
        if mode & KEEP_SIZE == 0 {
            file.resize(file.len().max(at + len), 0);
        }
        if mode & (PUNCH_HOLE | ZERO_RANGE) != 0 {
            let (from, to) = (at.min(file.len()), (at + len).min(file.len()));
            if let Some(zeroed) = file.get_mut(from..to) {
                zeroed.fill(0);
            }
        }
    }

    fn data_changed(&mut self, who: &Cred, id: Id) {
        if !who.is_root() {
            self.node_mut(id).drop_set_id();
        }
    }

    /// Whether `inner` lies in `outer`, or is it.
    pub(super) fn is_inside(&self, mut inner: Id, outer: Id) -> bool {
        loop {
            if inner == outer {
                return true;
            }
            match &self.node(inner).body {
                Body::Dir { parent, .. } if inner != ROOT => inner = *parent,
                _ => return false,
            }
        }
    }

    /// Whether `who` may do all of `wanted` to `id`.
    pub(super) fn permits(&self, who: &Cred, id: Id, wanted: u32) -> bool {
        let node = self.node(id);
        let allowed = if who.is_root() {
            let runs = node.is_dir() || node.mode & 0o111 != 0;
            READ | WRITE | if runs { EXECUTE } else { 0 }
        } else if who.uid == node.uid {
            node.mode >> 6
        } else if who.in_group(node.gid) {
            node.mode >> 3
        } else {
            node.mode
        };
        allowed & wanted == wanted
    }
}

/// Writes `data` at `at`, zeros before it if need be.
fn put(file: &mut Vec<u8>, at: usize, data: &[u8]) {
    file.resize(file.len().max(at + data.len()), 0);
    if let Some(place) = file.get_mut(at..at + data.len()) {
        place.copy_from_slice(data);
    }
}

fn slice(file: &[u8], from: usize, to: usize) -> &[u8] {
    file.get(from.min(file.len())..to.min(file.len())).unwrap_or_default()
}
