//! Doing the same to both, and comparing.

use std::collections::BTreeMap;

use outboard_base::{Cred, Errno, Fh, Ino};
use outboard_wire::file::{
    Attr, FileKind, Setattr, open_flags, rename_flags, write_flags, xattr_flags,
};

use super::generator::{Step, Verb};
use super::reference::{
    Action, Body, Bytes, Facts, HandleId, Id, KEEP_SIZE, PUNCH_HOLE, ROOT, Reference, Seen,
    ZERO_RANGE,
};
use crate::actor::Actor;
use crate::front::Front;

/// Steps between two looks at the whole tree.
const LOOK_EVERY: usize = 40;
const NAMES: u8 = 7;
const MODES: &[u32] = &[
    0o777, 0o755, 0o644, 0o666, 0o700, 0o600, 0o444, 0o000, 0o070, 0o111, 0o1777, 0o2775, 0o4755,
    0o6777,
];
/// Where things happen: around small files, blocks, pages.
const EDGES: &[u64] = &[0, 1, 100, 4096, 8000, 8190, 8192, 12_288, 16_384, 40_000, 131_072];

/// A front and the reference, side by side.
struct Pair<'f> {
    actor: Actor<'f>,
    reference: Reference,
    inos: BTreeMap<Id, Ino>,
    handles: BTreeMap<HandleId, (Ino, Fh)>,
    users: bool,
    log: Vec<String>,
}

/// Plays `steps` in a fresh directory of `front` called `name`; the first difference, with all that
/// led to it. What was played well is removed again, and the volume looked at.
pub(super) fn play(front: &mut dyn Front, name: &str, steps: &[Step]) -> Result<(), String> {
    let dir = Actor::new(front, Ino::ROOT).mkdir(Ino::ROOT, name, 0o777);
    let dir = dir.map_err(|errno| format!("{name} cannot be made: {errno}"))?;
    let users = front.features().any_cred;
    let mut pair = Pair {
        actor: Actor::new(front, dir),
        reference: Reference::new(),
        inos: BTreeMap::from([(ROOT, dir)]),
        handles: BTreeMap::new(),
        users,
        log: Vec::new(),
    };
    let played = pair.play(steps).map_err(|why| format!("{}\n{why}", pair.log.join("\n")));
    let removed = Actor::new(front, Ino::ROOT).rmdir(Ino::ROOT, name);
    let settled = front.settle().map_err(|errno| format!("cannot settle: {errno}"));
    played?;
    removed.map_err(|errno| format!("{name} cannot be removed at the end: {errno}"))?;
    settled?;
    front.verify().map_err(|why| format!("the volume is left: {why}"))
}

fn pick<T: Copy>(from: &[T], by: impl Into<usize>) -> Option<T> {
    let by: usize = by.into();
    from.get(by.checked_rem(from.len())?).copied()
}

/// An offset near an edge.
fn edge(number: u16) -> u64 {
    let near = pick(EDGES, number & 0xff).unwrap_or(0);
    (near + u64::from(number >> 8) % 5).saturating_sub(2)
}

impl Pair<'_> {
    fn play(&mut self, steps: &[Step]) -> Result<(), String> {
        for (number, step) in steps.iter().enumerate() {
            let who = self.user(step.who);
            if let Some((who, action)) = self.resolve(who, step) {
                self.log.push(format!("{number}: uid {}: {action:?}", who.uid));
                self.both(&who, &action)?;
            }
            if number % LOOK_EVERY == LOOK_EVERY - 1 {
                self.look(ROOT)?;
            }
        }
        self.look(ROOT)?;
        for (ino, fh) in std::mem::take(&mut self.handles).into_values() {
            self.actor.close(ino, fh).map_err(|errno| format!("closing at the end: {errno}"))?;
        }
        self.clear(self.ino(ROOT)).map_err(|errno| format!("removing at the end: {errno}"))
    }

    /// Removes everything in `dir`.
    fn clear(&mut self, dir: Ino) -> Result<(), Errno> {
        for entry in self.actor.list(dir)? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            if entry.kind == FileKind::Directory.dirent_type() {
                self.clear(entry.ino)?;
                self.actor.rmdir(dir, &name)?;
            } else {
                self.actor.unlink(dir, &name)?;
            }
        }
        Ok(())
    }

    fn user(&self, who: u8) -> Cred {
        match who {
            1 if self.users => Cred { groups: vec![50], ..Cred::user(1001, 1001) },
            2 if self.users => Cred::user(1002, 1002),
            _ => Cred::root(),
        }
    }

    /// Inodes with a name, in the order they were made.
    fn live(&self, wanted: impl Fn(FileKind) -> bool) -> Vec<Id> {
        let nodes = self.reference.nodes.iter().enumerate();
        nodes.filter(|(_, node)| node.names > 0 && wanted(node.kind())).map(|(id, _)| id).collect()
    }

    /// What `step` means here and now, and who does it; `None`: nothing.
    fn resolve(&self, who: Cred, step: &Step) -> Option<(Cred, Action)> {
        let [first, second] = step.places;
        let dirs = self.live(|kind| kind == FileKind::Directory);
        // Now and then a file where a directory should be.
        let all = self.live(|_| true);
        let directory = |by: u8| pick(if by > 240 { &all } else { &dirs }, by);
        let (dir, other_dir) = (directory(first)?, directory(second)?);
        let name = |by: u8| format!("n{}", by % NAMES);
        let (name, other_name) = (name(step.names[0]), name(step.names[1]));
        let node = pick(&all, first)?;
        let mode = pick(MODES, step.choice)?;
        let action = match step.verb {
            Verb::Stat => Action::Stat { node },
            Verb::Lookup => Action::Lookup { dir, name },
            Verb::List => Action::List { dir },
            Verb::Create => {
                let found = self.reference.entry(dir, &name);
                let fifo = found.is_some_and(|id| self.reference.node(id).kind() == FileKind::Fifo);
                // Opening a fifo is the kernel's business.
                Action::Create { dir, name, mode, excl: fifo || step.names[1] > 200 }
            }
            Verb::Mkdir => Action::Mkdir { dir, name, mode: mode & 0o1777 },
            Verb::Symlink => {
                let target = "t".repeat(usize::from(step.sizes[0] % 200) + 1);
                Action::Symlink { dir, name, target }
            }
            Verb::Fifo => Action::Fifo { dir, name, mode: mode & 0o777 },
            Verb::Tmpfile => Action::Tmpfile { dir: pick(&dirs, first)?, mode },
            Verb::Link => return self.link(who, step, other_dir, name),
            Verb::Unlink => Action::Unlink { dir, name },
            Verb::Rmdir => Action::Rmdir { dir, name },
            Verb::Rename => {
                let flags = match step.choice % 8 {
                    0 => rename_flags::NOREPLACE,
                    1 | 2 => rename_flags::EXCHANGE,
                    _ => 0,
                };
                Action::Rename { from: (dir, name), to: (other_dir, other_name), flags }
            }
            Verb::Truncate => Action::Truncate { node, size: edge(step.sizes[0]) },
            Verb::Chmod => {
                // Linux lets no one change a link's permissions, before it asks.
                let node = pick(&self.live(|kind| kind != FileKind::Symlink), first)?;
                Action::Chmod { node, mode }
            }
            Verb::Chown => {
                let ids = [None, Some(0), Some(1001), Some(1002), Some(50)];
                let (uid, gid) = (pick(&ids, step.names[0])?, pick(&ids, step.names[1])?);
                uid.or(gid)?;
                Action::Chown { node, uid, gid }
            }
            Verb::Setxattr => {
                let flags = pick(&[0, 0, xattr_flags::CREATE, xattr_flags::REPLACE], step.choice)?;
                let value = Bytes(vec![step.choice; usize::from(step.sizes[0] % 200)]);
                Action::Setxattr { node, name: self.xattr(step), value, flags }
            }
            Verb::Removexattr => Action::Removexattr { node, name: self.xattr(step) },
            Verb::Sync => Action::Sync,
            _ => return self.resolve_file(who, step),
        };
        Some((who, action))
    }

    /// The kernel may protect hard links from others than the owner; so the owner makes them.
    fn link(&self, who: Cred, step: &Step, dir: Id, name: String) -> Option<(Cred, Action)> {
        let mut nodes = self.live(|_| true);
        nodes.extend(self.reference.handles.values().map(|handle| handle.node));
        let node = pick(&nodes, step.places[0])?;
        let owner = who.is_root() || self.reference.node(node).uid == who.uid;
        let who = if owner && self.reference.node(node).kind() == FileKind::Regular {
            let mode = self.reference.node(node).mode;
            if mode & 0o600 == 0o600 && mode & 0o6000 == 0 { who } else { Cred::root() }
        } else {
            Cred::root()
        };
        Some((who, Action::Link { node, dir, name }))
    }

    fn xattr(&self, step: &Step) -> String {
        format!("user.x{}", step.names[0] % 3)
    }

    /// Steps about files and handles.
    fn resolve_file(&self, who: Cred, step: &Step) -> Option<(Cred, Action)> {
        let handles: Vec<HandleId> = self.reference.handles.keys().copied().collect();
        let handle = pick(&handles, step.places[0]);
        let (at, len) = (edge(step.sizes[0]), edge(step.sizes[1]));
        Some(match step.verb {
            Verb::Open => {
                let openable = |kind| matches!(kind, FileKind::Regular | FileKind::Directory);
                let node = pick(&self.live(openable), step.places[0])?;
                let how = step.choice % 6;
                let writes = how != 0 || self.reference.node(node).is_dir();
                let (reads, truncate, append) = (how != 1, how == 2, how == 3);
                (who, Action::Open { node, reads, writes, truncate, append })
            }
            Verb::Close => (Cred::root(), Action::Close { handle: handle? }),
            Verb::Write => {
                let (seed, len) = (u64::from(step.sizes[2]), (len as usize).max(1));
                let data = Bytes(crate::suite::pattern(len, seed));
                (who, Action::Write { handle: handle?, at, data })
            }
            Verb::Read => {
                let len = len as u32;
                (Cred::root(), Action::Read { handle: handle?, at, len })
            }
            Verb::Ftruncate => (Cred::root(), Action::Ftruncate { handle: handle?, size: at }),
            Verb::Fallocate => {
                let modes =
                    [0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE];
                let mode = pick(&modes, step.choice)?;
                let len = len.max(1);
                (Cred::root(), Action::Fallocate { handle: handle?, mode, at, len })
            }
            Verb::Copy => {
                let other = pick(&handles, step.places[1])?;
                let to = (other, edge(step.sizes[2]));
                // The kernel refuses appending targets; it stands before not every front.
                if self.reference.handle(other).append {
                    return None;
                }
                let (from, into) = (self.reference.handle(handle?), self.reference.handle(other));
                // Whether ranges that meet beyond the end overlap is nobody's to say.
                let left = self.reference.size(from.node).saturating_sub(at);
                let len = if from.node == into.node { len.min(left) } else { len };
                (Cred::root(), Action::Copy { from: (handle?, at), to, len })
            }
            _ => return None,
        })
    }

    /// Does `action` on both sides and compares.
    fn both(&mut self, who: &Cred, action: &Action) -> Result<(), String> {
        let wanted = self.reference.apply(who, action);
        let cred = who.clone();
        let before = std::mem::replace(&mut self.actor.cred, cred);
        let got = self.perform(action, wanted.as_ref().ok());
        self.actor.cred = before;
        match (&wanted, got) {
            (Ok(wanted), Ok(got)) if *wanted == got => Ok(()),
            (Err(any), Err(errno)) if any.contains(&errno) => Ok(()),
            (Ok(Seen::Data(wanted)), Ok(Seen::Data(got))) => {
                let at = wanted.0.iter().zip(&got.0).position(|(a, b)| a != b);
                Err(format!("wanted {wanted:?}, got {got:?}, different from {at:?}"))
            }
            (_, got) => Err(format!("wanted {wanted:?}, got {got:?}")),
        }
    }

    fn ino(&self, id: Id) -> Ino {
        self.inos.get(&id).copied().unwrap_or(Ino(u64::MAX))
    }

    fn open_file(&self, handle: HandleId) -> (Ino, Fh) {
        self.handles.get(&handle).copied().unwrap_or((Ino(u64::MAX), Fh::NONE))
    }

    /// What `attr` shows, seen as the inode the reference calls `id`. A number not seen before
    /// becomes `id`'s.
    fn facts(&mut self, attr: &Attr, id: Option<Id>) -> Facts {
        let known = self.inos.iter().find(|(_, ino)| **ino == attr.ino).map(|(id, _)| *id);
        let id = match (known, id) {
            (Some(known), _) => known,
            (None, Some(id)) if !self.inos.contains_key(&id) => {
                self.inos.insert(id, attr.ino);
                id
            }
            _ => Id::MAX,
        };
        let sized = matches!(attr.kind(), Ok(FileKind::Regular | FileKind::Symlink));
        let size = if sized { attr.size } else { 0 };
        let owner = (attr.uid, attr.gid);
        Facts { id, mode: attr.mode, owner, nlink: attr.nlink, size }
    }

    /// Sends the requests `action` stands for.
    fn perform(&mut self, action: &Action, wanted: Option<&Seen>) -> Result<Seen, Errno> {
        let id = match wanted {
            Some(Seen::Node(facts) | Seen::Opened(_, facts)) => Some(facts.id),
            _ => None,
        };
        let attr = match action {
            Action::Stat { node } => self.actor.stat(self.ino(*node))?,
            Action::Lookup { dir, name } => self.actor.lookup(self.ino(*dir), name)?,
            Action::Mkdir { dir, name, mode } => {
                let ino = self.actor.mkdir(self.ino(*dir), name, *mode)?;
                self.actor.stat(ino)?
            }
            Action::Symlink { dir, name, target } => {
                self.actor.symlink(self.ino(*dir), name, target)?
            }
            Action::Fifo { dir, name, mode } => {
                self.actor.mknod(self.ino(*dir), name, FileKind::Fifo, *mode, 0)?
            }
            Action::Link { node, dir, name } => {
                self.actor.link(self.ino(*node), self.ino(*dir), name)?
            }
            Action::Truncate { node, size } => {
                let kill_suidgid = !self.actor.cred.is_root();
                let set = Setattr { size: Some(*size), kill_suidgid, ..Setattr::default() };
                self.actor.set(self.ino(*node), Fh::NONE, set)?
            }
            Action::Ftruncate { handle, size } => {
                let (ino, fh) = self.open_file(*handle);
                self.actor.ftruncate(ino, fh, *size)?
            }
            Action::Chmod { node, mode } => self.actor.chmod(self.ino(*node), *mode)?,
            Action::Chown { node, uid, gid } => self.actor.chown(self.ino(*node), *uid, *gid)?,
            _ => return self.perform_other(action, wanted, id),
        };
        Ok(Seen::Node(self.facts(&attr, id)))
    }

    /// Actions that show something other than an inode.
    fn perform_other(
        &mut self,
        action: &Action,
        wanted: Option<&Seen>,
        id: Option<Id>,
    ) -> Result<Seen, Errno> {
        let t = &mut self.actor;
        let inos = &self.inos;
        let ino = |id: &Id| inos.get(id).copied().unwrap_or(Ino(u64::MAX));
        match action {
            Action::Create { .. } | Action::Tmpfile { .. } | Action::Open { .. } => {
                return self.open(action, wanted, id);
            }
            Action::List { dir } => return self.list(*dir),
            Action::Unlink { dir, name } => t.unlink(ino(dir), name).map(drop)?,
            Action::Rmdir { dir, name } => t.rmdir(ino(dir), name).map(drop)?,
            Action::Rename { from, to, flags } => {
                let (from, to) = ((ino(&from.0), from.1.as_str()), (ino(&to.0), to.1.as_str()));
                t.rename_with(from, to, *flags).map(drop)?;
            }
            Action::Setxattr { node, name, value, flags } => {
                t.setxattr(ino(node), name, &value.0, *flags)?;
            }
            Action::Removexattr { node, name } => t.removexattr(ino(node), name)?,
            Action::Sync => t.syncfs()?,
            _ => return self.perform_data(action),
        }
        Ok(Seen::Done)
    }

    fn perform_data(&mut self, action: &Action) -> Result<Seen, Errno> {
        match action {
            Action::Close { handle } => {
                let (ino, fh) = self.handles.remove(handle).ok_or(Errno::EBADF)?;
                self.actor.close(ino, fh)?;
                Ok(Seen::Done)
            }
            Action::Write { handle, at, data } => {
                let file = self.open_file(*handle);
                let kill = if self.actor.cred.is_root() { 0 } else { write_flags::KILL_SUIDGID };
                // As the kernel's front-ends do, each write says that its handle appends.
                let appends = self.reference.handle(*handle).append;
                let append = if appends { write_flags::APPEND } else { 0 };
                let count = self.actor.write_with(file, *at, &data.0, kill | append)?;
                Ok(Seen::Count(count.into()))
            }
            Action::Read { handle, at, len } => {
                let (ino, fh) = self.open_file(*handle);
                Ok(Seen::Data(Bytes(self.actor.read(ino, fh, *at, *len)?)))
            }
            Action::Fallocate { handle, mode, at, len } => {
                self.actor.fallocate(self.open_file(*handle), *mode, *at, *len)?;
                Ok(Seen::Done)
            }
            Action::Copy { from, to, len } => self.copy(*from, *to, *len).map(Seen::Count),
            other => unreachable!("{other:?} is handled before"),
        }
    }

    /// Copies until all is copied or the source ends.
    fn copy(&mut self, from: (HandleId, u64), to: (HandleId, u64), len: u64) -> Result<u64, Errno> {
        let (source, target) = (self.open_file(from.0), self.open_file(to.0));
        let mut done = 0;
        loop {
            let from = (source.0, source.1, from.1 + done);
            let to = (target.0, target.1, to.1 + done);
            let some = self.actor.copy_range(from, to, len - done)?;
            done += u64::from(some);
            if some == 0 || done == len {
                return Ok(done);
            }
        }
    }

    fn open(
        &mut self,
        action: &Action,
        wanted: Option<&Seen>,
        id: Option<Id>,
    ) -> Result<Seen, Errno> {
        let bit = |set: bool, flag: u32| if set { flag } else { 0 };
        let (attr, fh) = match action {
            Action::Create { dir, name, mode, excl } => {
                let flags = open_flags::RDWR | bit(*excl, open_flags::EXCL);
                self.actor.create_with(self.ino(*dir), name, *mode, flags)?
            }
            Action::Tmpfile { dir, mode } => {
                self.actor.tmpfile(self.ino(*dir), *mode, open_flags::RDWR)?
            }
            Action::Open { node, reads, writes, truncate, append } => {
                let access = match (reads, writes) {
                    (true, true) => open_flags::RDWR,
                    (false, true) => open_flags::WRONLY,
                    _ => 0,
                };
                let flags =
                    access | bit(*truncate, open_flags::TRUNC) | bit(*append, open_flags::APPEND);
                // Truncated by an open, the kernel clears set-id bits itself, or asks for it.
                let ino = self.ino(*node);
                let fh = self.actor.open(ino, flags)?;
                (self.actor.stat(ino)?, fh)
            }
            other => unreachable!("{other:?} opens nothing"),
        };
        let Some(Seen::Opened(handle, _)) = wanted else { return Ok(Seen::Done) };
        self.handles.insert(*handle, (attr.ino, fh));
        Ok(Seen::Opened(*handle, self.facts(&attr, id)))
    }

    fn list(&mut self, dir: Id) -> Result<Seen, Errno> {
        let entries = self.actor.list(self.ino(dir))?;
        let mut names = Vec::new();
        for entry in entries {
            let known = self.inos.iter().find(|(_, ino)| **ino == entry.ino).map(|(id, _)| *id);
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            names.push((name, entry.kind, known.unwrap_or(Id::MAX)));
        }
        names.sort();
        Ok(Seen::Names(names))
    }

    /// Compares everything below `dir`, as root.
    fn look(&mut self, dir: Id) -> Result<(), String> {
        let root = Cred::root();
        self.both(&root, &Action::Stat { node: dir })?;
        self.both(&root, &Action::List { dir })?;
        let Body::Dir { entries, .. } = self.reference.node(dir).body.clone() else {
            return Ok(());
        };
        for (name, id) in entries {
            let place = |why: String| format!("looking at {name} (inode {id}): {why}");
            self.both(&root, &Action::Lookup { dir, name: name.clone() }).map_err(place)?;
            self.contents(id).map_err(place)?;
            if self.reference.node(id).is_dir() {
                self.look(id)?;
            }
        }
        Ok(())
    }

    /// Compares what is in `id`: bytes, target, extended attributes.
    fn contents(&mut self, id: Id) -> Result<(), String> {
        let (ino, node) = (self.ino(id), self.reference.node(id).clone());
        let failed = |errno: Errno| format!("it cannot be read: {errno}");
        let got = match &node.body {
            Body::File(_) => self.actor.contents(ino).map_err(failed)?,
            Body::Symlink(_) => self.actor.readlink(ino).map_err(failed)?,
            Body::Dir { .. } | Body::Fifo => Vec::new(),
        };
        let wanted = match &node.body {
            Body::File(bytes) => bytes.as_slice(),
            Body::Symlink(target) => target.as_bytes(),
            Body::Dir { .. } | Body::Fifo => &[],
        };
        if got != wanted {
            let at = got.iter().zip(wanted).position(|(a, b)| a != b);
            let (got, wanted) = (got.len(), wanted.len());
            return Err(format!("wanted {wanted} bytes, got {got}, different from {at:?}"));
        }
        if matches!(node.body, Body::Symlink(_) | Body::Fifo) {
            return Ok(());
        }
        for (name, value) in &node.xattrs {
            let got = self.actor.getxattr(ino, name).map_err(failed)?;
            if got != *value {
                return Err(format!("{name} has another value"));
            }
        }
        let names: Vec<String> = node.xattrs.into_keys().collect();
        let got = self.actor.listxattr(ino).map_err(failed)?;
        if got == names { Ok(()) } else { Err(format!("attributes {got:?}, wanted {names:?}")) }
    }
}
