//! From a path to a place: component by component, as `path_resolution(7)` says.

use std::collections::VecDeque;

use outboard_base::{Cred, Errno, Ino, Result, limits};
use outboard_volume::backend::Backend;
use outboard_wire::file::{Attr, FileKind, Reply, Request};

use crate::link::Link;

/// Symbolic links followed in one path, as Linux has it.
pub const LINKS_MAX: usize = 40;
/// Longest path, bytes, without its terminator (`PATH_MAX`).
pub const PATH_MAX: usize = 4095;

/// A directory and how it was come to, so that `..` leads back.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Place {
    steps: Vec<(Vec<u8>, Ino)>,
}

impl Place {
    /// The root directory of the volume.
    #[must_use]
    pub fn root() -> Place {
        Place::default()
    }

    /// The inode.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.steps.last().map_or(Ino::ROOT, |(_, ino)| *ino)
    }

    /// The inodes from below the root down to it.
    pub(crate) fn inos(&self) -> impl Iterator<Item = Ino> {
        self.steps.iter().map(|(_, ino)| *ino)
    }

    /// The directory above it; the root is above itself.
    #[must_use]
    pub fn parent(&self) -> Ino {
        let above = self.steps.len().checked_sub(2).and_then(|at| self.steps.get(at));
        above.map_or(Ino::ROOT, |(_, ino)| *ino)
    }

    /// Whether it is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.steps.is_empty()
    }

    /// The path from the root: empty, or a slash before each name.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        self.steps.iter().flat_map(|(name, _)| [b"/", name.as_slice()].concat()).collect()
    }

    /// One step down.
    pub fn push(&mut self, name: Vec<u8>, ino: Ino) {
        self.steps.push((name, ino));
    }

    /// One step up; false at the root.
    fn up(&mut self) -> bool {
        self.steps.pop().is_some()
    }
}

/// Where a path leads.
#[derive(Clone, Debug)]
pub struct Spot {
    /// The directory of the last name, or what the path leads to if it has none (`/`, `a/..`).
    pub dir: Place,
    /// The last name.
    pub name: Option<Vec<u8>>,
    /// What the last name leads to, if it exists.
    pub found: Option<Attr>,
    /// The path ends with a slash, or with a name that can only be a directory.
    pub slash: bool,
}

impl Spot {
    /// The path from the root.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        let mut path = self.dir.path();
        if let Some(name) = &self.name {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        path
    }
}

/// Where a path leads, if it stays in the volume.
#[derive(Clone, Debug)]
pub enum Walked {
    /// It does.
    Inside(Spot),
    /// It does not: the absolute path it goes on with.
    Outside(Vec<u8>),
}

/// What is still to be walked.
struct Rest {
    names: VecDeque<Vec<u8>>,
    slash: bool,
    /// It ends with `.`: the last name is walked through, and what it leads to has no name.
    dot: bool,
}

impl Rest {
    fn of(path: &[u8]) -> Result<Rest> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() > PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let (slash, dot) = (ends_as_directory(path), ends_with_dot(path));
        Ok(Rest { names: names(path), slash, dot })
    }

    /// Goes on with a link's target before the rest.
    fn prepend(&mut self, target: &[u8]) -> Result<()> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if self.names.is_empty() {
            self.slash |= ends_as_directory(target);
            self.dot |= ends_with_dot(target);
        }
        let mut all = names(target);
        all.append(&mut self.names);
        self.names = all;
        if self.names.iter().map(Vec::len).sum::<usize>() > LINKS_MAX * PATH_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(())
    }

    /// The rest as a path.
    fn path(&self) -> Vec<u8> {
        let mut path: Vec<u8> =
            self.names.iter().flat_map(|name| [b"/", name.as_slice()].concat()).collect();
        if self.slash {
            path.push(b'/');
        }
        path
    }
}

fn names(path: &[u8]) -> VecDeque<Vec<u8>> {
    let all = path.split(|byte| *byte == b'/');
    all.filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec).collect()
}

fn ends_as_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || matches!(path.rsplit(|byte| *byte == b'/').next(), Some(b"." | b".."))
}

fn ends_with_dot(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty()) == Some(b".")
}

/// What follows the prefix, if `path` begins with it: nothing, or a path with a slash before it.
#[must_use]
pub fn below<'p>(path: &'p [u8], prefix: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

/// Walks from place to place.
pub(crate) struct Walker<'a, B: Backend> {
    pub(crate) link: &'a Link<B>,
    pub(crate) cred: &'a Cred,
    pub(crate) prefix: Option<&'a [u8]>,
}

impl<B: Backend> Walker<'_, B> {
    /// Walks `path` from `start` (from the root if it begins with a slash). A symbolic link at its
    /// end is followed if `follow` says so, or if the path ends with a slash.
    pub(crate) fn walk(&self, start: &Place, path: &[u8], follow: bool) -> Result<Walked> {
        let mut rest = Rest::of(path)?;
        let mut at = if path.starts_with(b"/") { Place::root() } else { start.clone() };
        let mut links = 0;
        while let Some(name) = rest.names.pop_front() {
            if name == b".." {
                if !at.up()
                    && let Some(prefix) = self.prefix
                {
                    return Ok(Walked::Outside([parent_of(prefix), &rest.path()].concat()));
                }
                continue;
            }
            let last = rest.names.is_empty() && !rest.dot;
            let found = match self.lookup(at.ino(), &name) {
                Ok(attr) => attr,
                Err(Errno::ENOENT) if last => {
                    let spot = Spot { dir: at, name: Some(name), found: None, slash: rest.slash };
                    return Ok(Walked::Inside(spot));
                }
                Err(errno) => return Err(errno),
            };
            let kind = found.kind().map_err(|_| Errno::EPROTO)?;
            if kind == FileKind::Symlink && (!last || follow || rest.slash) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                let target = self.readlink(found.ino)?;
                match self.lead(&target) {
                    Lead::Here => {}
                    Lead::Root(skip) => {
                        at = Place::root();
                        let inside = target.get(skip..).unwrap_or_default();
                        // The prefix itself.
                        rest.prepend(if inside.is_empty() { b"/" } else { inside })?;
                        continue;
                    }
                    Lead::Away => {
                        return Ok(Walked::Outside([target, rest.path()].concat()));
                    }
                }
                rest.prepend(&target)?;
            } else if last {
                let spot =
                    Spot { dir: at, name: Some(name), found: Some(found), slash: rest.slash };
                return Ok(Walked::Inside(spot));
            } else if kind == FileKind::Directory {
                at.push(name, found.ino);
            } else {
                return Err(Errno::ENOTDIR);
            }
        }
        Ok(Walked::Inside(Spot { dir: at, name: None, found: None, slash: true }))
    }

    fn lead(&self, target: &[u8]) -> Lead {
        if !target.starts_with(b"/") {
            return Lead::Here;
        }
        match self.prefix {
            None => Lead::Root(0),
            Some(prefix) if below(target, prefix).is_some() => Lead::Root(prefix.len()),
            Some(_) => Lead::Away,
        }
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        if name.len() > limits::NAME_MAX_KERNEL {
            return Err(Errno::ENAMETOOLONG);
        }
        match self.link.reply(self.cred, &Request::Lookup { parent, name })? {
            Reply::Entry(attr) => {
                self.link.add_interest(self.cred, attr.ino);
                Ok(attr)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// The target of a symbolic link.
    pub(crate) fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut target = vec![0; limits::SYMLINK_MAX];
        let len = self.link.read(self.cred, &Request::Readlink { ino }, &mut target)?;
        target.truncate(len);
        Ok(target)
    }
}

/// Where a symbolic link leads.
enum Lead {
    /// On from where it lies.
    Here,
    /// To the volume's root, the target behind so many bytes.
    Root(usize),
    /// Out of the volume.
    Away,
}

fn parent_of(prefix: &[u8]) -> &[u8] {
    let slash = prefix.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    prefix.get(..slash).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_at_a_slash() {
        assert_eq!(below(b"/ob/x", b"/ob"), Some(b"/x".as_slice()));
        assert_eq!(below(b"/ob", b"/ob"), Some(b"".as_slice()));
        assert_eq!(below(b"/obx", b"/ob"), None);
        assert_eq!(below(b"/o", b"/ob"), None);
    }

    #[test]
    fn a_target_goes_before_the_rest() {
        let mut rest = Rest::of(b"b/./c").unwrap();
        assert_eq!(rest.names.pop_front().unwrap(), b"b");
        rest.prepend(b"../x//y/").unwrap();
        assert_eq!(rest.path(), b"/../x/y/c");
        assert!(!rest.slash, "the slash was the link's, and more follows it");
        let mut rest = Rest::of(b"b").unwrap();
        rest.names.clear();
        rest.prepend(b"d/").unwrap();
        assert!(rest.slash);
    }

    #[test]
    fn places_know_their_way_back() {
        let mut place = Place::root();
        place.push(b"a".to_vec(), Ino(5));
        place.push(b"b".to_vec(), Ino(6));
        assert_eq!((place.path(), place.ino()), (b"/a/b".to_vec(), Ino(6)));
        assert_eq!((place.parent(), Place::root().parent()), (Ino(5), Ino::ROOT));
        assert!(place.up() && place.ino() == Ino(5) && place.up() && !place.up());
        assert_eq!((place.path(), place.ino()), (Vec::new(), Ino::ROOT));
        assert_eq!(parent_of(b"/a/b"), b"/a");
        assert_eq!(parent_of(b"/a"), b"");
    }
}
