//! Random operations on names against a file system of a hundred lines, reply by reply.
//!
//! Names and inodes are picked from few, so that operations meet. The volume is opened again now
//! and then, sometimes after a crash of a synced disk. A failure prints its seed: add it to
//! `SEEDS`.

use std::collections::{BTreeMap, BTreeSet};

use outboard_base::{Errno, Fh, Ino, Result, Rng};
use outboard_wire::file::rename_flags::{EXCHANGE, NOREPLACE};
use outboard_wire::file::{Attr, Request, open_flags};

use crate::world::{Disk, User, assert_clean};

/// Seeds that once failed.
const SEEDS: &[u64] = &[];
const NAMES: u64 = 6;

#[derive(Clone, Debug)]
enum Node {
    Dir { entries: BTreeMap<String, Ino>, parent: Ino },
    Other { links: u32 },
}

/// The reference.
#[derive(Default)]
struct Model {
    nodes: BTreeMap<Ino, Node>,
    open: BTreeSet<(Ino, Fh)>,
}

impl Model {
    fn new() -> Model {
        let root = Node::Dir { entries: BTreeMap::new(), parent: Ino::ROOT };
        Model { nodes: [(Ino::ROOT, root)].into(), open: BTreeSet::new() }
    }

    fn dir(&mut self, ino: Ino) -> Result<&mut BTreeMap<String, Ino>> {
        match self.nodes.get_mut(&ino) {
            Some(Node::Dir { entries, .. }) => Ok(entries),
            Some(Node::Other { .. }) => Err(Errno::ENOTDIR),
            None => Err(Errno::ESTALE),
        }
    }

    fn is_dir(&self, ino: Ino) -> bool {
        matches!(self.nodes.get(&ino), Some(Node::Dir { .. }))
    }

    fn is_full(&self, ino: Ino) -> bool {
        matches!(self.nodes.get(&ino), Some(Node::Dir { entries, .. }) if !entries.is_empty())
    }

    fn lookup(&mut self, dir: Ino, name: &str) -> Result<Ino> {
        self.dir(dir)?.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn may_make(&mut self, dir: Ino, name: &str) -> Result<()> {
        if self.dir(dir)?.contains_key(name) { Err(Errno::EEXIST) } else { Ok(()) }
    }

    fn nlink(&self, ino: Ino) -> u32 {
        match &self.nodes[&ino] {
            Node::Other { links } => *links,
            Node::Dir { entries, .. } => {
                2 + u32::try_from(entries.values().filter(|ino| self.is_dir(**ino)).count())
                    .unwrap()
            }
        }
    }

    fn unname(&mut self, ino: Ino) {
        let open = self.open.iter().any(|(open, _)| *open == ino);
        match self.nodes.get_mut(&ino) {
            Some(Node::Other { links }) if *links > 1 || open => *links -= 1,
            _ => drop(self.nodes.remove(&ino)),
        }
    }

    fn remove(&mut self, dir: Ino, name: &str, directory: bool) -> Result<()> {
        let ino = self.lookup(dir, name)?;
        match (directory, self.is_dir(ino)) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if self.is_full(ino) => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.dir(dir)?.remove(name);
        self.unname(ino);
        Ok(())
    }

    fn is_inside(&self, ancestor: Ino, mut dir: Ino) -> bool {
        loop {
            if dir == ancestor {
                return true;
            }
            match self.nodes[&dir] {
                Node::Dir { parent, .. } if dir != Ino::ROOT => dir = parent,
                _ => return false,
            }
        }
    }

    fn rename(&mut self, from: (Ino, &str), to: (Ino, &str), flags: u32) -> Result<()> {
        self.dir(from.0)?;
        self.dir(to.0)?;
        let moved = self.lookup(from.0, from.1)?;
        let there = self.lookup(to.0, to.1).ok();
        match (there, flags) {
            (Some(_), NOREPLACE) => return Err(Errno::EEXIST),
            (None, EXCHANGE) => return Err(Errno::ENOENT),
            (Some(there), _) if there == moved => return Ok(()),
            _ => {}
        }
        if self.is_dir(moved) && from.0 != to.0 && self.is_inside(moved, to.0) {
            return Err(Errno::EINVAL);
        }
        match there {
            Some(there) if flags == EXCHANGE => {
                if self.is_dir(there) && from.0 != to.0 && self.is_inside(there, from.0) {
                    return Err(Errno::EINVAL);
                }
                self.dir(from.0)?.insert(from.1.to_owned(), there);
                self.set_parent(there, from.0);
            }
            Some(there) => {
                match (self.is_dir(moved), self.is_dir(there)) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    (true, true) if self.is_full(there) => return Err(Errno::ENOTEMPTY),
                    _ => {}
                }
                self.dir(from.0)?.remove(from.1);
                self.unname(there);
            }
            None => drop(self.dir(from.0)?.remove(from.1)),
        }
        self.dir(to.0)?.insert(to.1.to_owned(), moved);
        self.set_parent(moved, to.0);
        Ok(())
    }

    fn set_parent(&mut self, ino: Ino, dir: Ino) {
        if let Some(Node::Dir { parent, .. }) = self.nodes.get_mut(&ino) {
            *parent = dir;
        }
    }
}

struct Run<'v> {
    user: User<'v>,
    rng: Rng,
    model: Model,
}

impl Run<'_> {
    fn name(&mut self) -> String {
        format!("n{}", self.rng.below(NAMES))
    }

    fn ino(&mut self) -> Ino {
        let count = self.model.nodes.len() as u64;
        let at = usize::try_from(self.rng.below(count)).unwrap();
        *self.model.nodes.keys().nth(at).unwrap()
    }

    fn made(&mut self, dir: Ino, name: &str, real: Result<Attr>) -> Result<()> {
        let expected = self.model.may_make(dir, name);
        assert_eq!(real.as_ref().map(drop).map_err(|errno| *errno), expected);
        let Ok(attr) = real else { return Ok(()) };
        let node = match attr.mode & 0o170_000 {
            0o040_000 => Node::Dir { entries: BTreeMap::new(), parent: dir },
            _ => Node::Other { links: 1 },
        };
        assert!(self.model.nodes.insert(attr.ino, node).is_none(), "a number twice");
        self.model.dir(dir)?.insert(name.to_owned(), attr.ino);
        self.user.forget(attr.ino);
        Ok(())
    }

    fn step(&mut self) {
        let (dir, to_dir, name, to_name) = (self.ino(), self.ino(), self.name(), self.name());
        match self.rng.below(12) {
            0 | 1 => {
                let real = self.user.mkdir(dir, &name);
                self.made(dir, &name, real).unwrap();
            }
            2 => {
                let real = self.user.symlink(dir, &name, "t");
                self.made(dir, &name, real).unwrap();
            }
            3 => {
                let real = self.user.file(dir, &name);
                self.made(dir, &name, real).unwrap();
            }
            4 => {
                let real = self.user.unlink(dir, &name).map(drop);
                assert_eq!(real, self.model.remove(dir, &name, false));
            }
            5 => {
                let real = self.user.rmdir(dir, &name).map(drop);
                assert_eq!(real, self.model.remove(dir, &name, true));
            }
            6..=8 => {
                let flags =
                    [0, 0, NOREPLACE, EXCHANGE][usize::try_from(self.rng.below(4)).unwrap()];
                let real = self.user.rename((dir, &name), (to_dir, &to_name), flags).map(drop);
                assert_eq!(real, self.model.rename((dir, &name), (to_dir, &to_name), flags));
            }
            9 => self.link(to_dir, dir, &name),
            10 => self.open_or_close(dir),
            _ => self.look(dir),
        }
    }

    fn link(&mut self, ino: Ino, dir: Ino, name: &str) {
        let expected =
            self.model.may_make(dir, name).and_then(|()| match self.model.nodes.get_mut(&ino) {
                Some(Node::Dir { .. }) => Err(Errno::EPERM),
                Some(Node::Other { links: 0 }) => Err(Errno::ENOENT),
                Some(Node::Other { links }) => {
                    *links += 1;
                    Ok(())
                }
                None => Err(Errno::ESTALE),
            });
        let real = self.user.link(ino, dir, name).map(drop);
        assert_eq!(real, expected);
        if real.is_ok() {
            self.model.dir(dir).unwrap().insert(name.to_owned(), ino);
            self.user.forget(ino);
        }
    }

    fn open_or_close(&mut self, ino: Ino) {
        if self.rng.chance(1, 2) {
            let Some((ino, fh)) = self.model.open.pop_first() else { return };
            self.user.close(ino, fh).unwrap();
            let last = !self.model.open.iter().any(|(open, _)| *open == ino);
            if last && matches!(self.model.nodes.get(&ino), Some(Node::Other { links: 0 })) {
                self.model.nodes.remove(&ino);
            }
        } else if let Ok(fh) = self.user.open(ino, open_flags::RDWR) {
            assert!(!self.model.is_dir(ino));
            self.model.open.insert((ino, fh));
        }
    }

    fn look(&mut self, ino: Ino) {
        let attr = self.user.stat(ino).unwrap();
        assert_eq!(attr.nlink, self.model.nlink(ino), "{ino}");
        let name = self.name();
        let real = self.user.lookup(ino, &name).map(|attr| attr.ino);
        assert_eq!(real, self.model.lookup(ino, &name));
        if let Ok(found) = real {
            self.user.forget(found);
        }
        if let Ok(entries) = self.model.dir(ino) {
            let names: Vec<String> = entries.keys().cloned().collect();
            assert_eq!(self.user.names(ino), names);
        }
    }
}

/// Runs a few hundred steps, then opens the disk again with the same model.
fn run(seed: u64) {
    let disk = Disk::new(seed);
    let mut rng = Rng::new(seed);
    let mut model = Model::new();
    for life in 0..6 {
        let volume = disk.open();
        let user = User::root(&volume);
        user.sequence.set(life * 1_000_000);
        for &(ino, fh) in &model.open {
            let flags = open_flags::RDWR;
            let request = Request::Reclaim { ino, fh, flags, directory: false };
            user.done(request, &[]).unwrap();
            user.forget(ino);
        }
        crate::world::block_on(volume.end_grace()).unwrap();
        crate::world::tidy(&volume);
        let mut run = Run { user, rng, model };
        for _ in 0..250 {
            run.step();
        }
        let all: Vec<Ino> = run.model.nodes.keys().copied().collect();
        all.into_iter().for_each(|ino| run.look(ino));
        assert_clean(&volume);
        let synced = run.rng.chance(1, 2);
        if synced {
            run.user.sync().unwrap();
        }
        (rng, model) = (run.rng, run.model);
        drop(volume);
        if synced {
            disk.crash();
        }
    }
}

#[test]
fn random_operations_do_what_the_reference_does() {
    for seed in SEEDS.iter().copied().chain(0..25) {
        let outcome = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = outcome {
            eprintln!("model test failed with seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
