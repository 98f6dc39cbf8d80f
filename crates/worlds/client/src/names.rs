//! What is done to names and to what they lead to.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use outboard_base::{Errno, Ino, Result, limits};
use outboard_volume::backend::{Backend, Slot};
use outboard_wire::file::{Attr, FileKind, Reply, Request, Setattr};

use crate::volume::{Volume, cred};
use crate::walk::Spot;

/// An extended attribute's value, or how long it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Xattr {
    /// Nobody asked for more than the length.
    Len(usize),
    /// The value.
    Value(Vec<u8>),
}

impl Spot {
    /// The name to make: `EEXIST` if something has it, or if the path has none.
    fn new_name(&self) -> Result<&[u8]> {
        match (&self.name, &self.found) {
            (Some(name), None) => Ok(name),
            _ => Err(Errno::EEXIST),
        }
    }

    /// The same for what is no directory: `ENOENT` behind a slash, as Linux has it.
    fn new_file_name(&self) -> Result<&[u8]> {
        let name = self.new_name()?;
        if self.slash { Err(Errno::ENOENT) } else { Ok(name) }
    }

    /// The name and what it leads to, `none` if the path has no name.
    fn old_name(&self, none: Errno) -> Result<(&[u8], &Attr)> {
        let name = self.name.as_deref().ok_or(none)?;
        let found = self.found.as_ref().ok_or(Errno::ENOENT)?;
        if self.slash && found.kind() != Ok(FileKind::Directory) {
            return Err(Errno::ENOTDIR);
        }
        Ok((name, found))
    }

    /// What it leads to.
    pub fn ino(&self) -> Result<Ino> {
        match (&self.name, &self.found) {
            (None, _) => Ok(self.dir.ino()),
            (Some(_), None) => Err(Errno::ENOENT),
            (Some(_), Some(attr)) if self.slash && attr.kind() != Ok(FileKind::Directory) => {
                Err(Errno::ENOTDIR)
            }
            (Some(_), Some(attr)) => Ok(attr.ino),
        }
    }
}

impl<B: Backend> Volume<B> {
    fn ask(&self, request: &Request<'_>) -> Result<Reply> {
        self.link.reply(&cred(), request)
    }

    fn ask_with(&self, request: &Request<'_>, payload: &[u8]) -> Result<Reply> {
        self.link.ask(&cred(), request, payload, |reply, _| Ok(reply))
    }

    /// This side refers to what was made or removed no more than it has it open.
    fn let_go(&self, reply: &Reply) {
        match reply {
            Reply::Entry(attr) => self.link.add_interest(&cred(), attr.ino),
            Reply::Removed(Some(ino)) => self.link.forget(&cred(), *ino),
            _ => {}
        }
    }

    // By place.

    /// The attributes of what `spot` leads to.
    pub fn attr_at(&self, spot: &Spot) -> Result<Attr> {
        let ino = spot.ino()?;
        spot.found.clone().map_or_else(|| self.attr(ino), Ok)
    }

    /// Makes a directory.
    pub fn mkdir_at(&self, spot: &Spot, mode: u32, umask: u32) -> Result<()> {
        let (parent, name) = (spot.dir.ino(), spot.new_name()?);
        let reply = self.ask(&Request::Mkdir { parent, name, mode, umask })?;
        self.let_go(&reply);
        Ok(())
    }

    /// Makes a file, fifo, socket or device node; the kind is in `mode`.
    pub fn mknod_at(&self, spot: &Spot, mode: u32, umask: u32, rdev: u32) -> Result<()> {
        let (parent, name) = (spot.dir.ino(), spot.new_file_name()?);
        let reply = self.ask(&Request::Mknod { parent, name, mode, umask, rdev })?;
        self.let_go(&reply);
        Ok(())
    }

    /// Makes a symbolic link.
    pub fn symlink_at(&self, target: &[u8], spot: &Spot) -> Result<()> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() > limits::SYMLINK_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let (parent, name) = (spot.dir.ino(), spot.new_file_name()?);
        let reply = self.ask_with(&Request::Symlink { parent, name }, target)?;
        self.let_go(&reply);
        Ok(())
    }

    /// Makes another name for an inode.
    pub fn link_at(&self, ino: Ino, spot: &Spot) -> Result<()> {
        let (to_parent, to_name) = (spot.dir.ino(), spot.new_file_name()?);
        self.ask(&Request::Link { ino, to_parent, to_name }).map(drop)
    }

    /// Removes a name of a file.
    pub fn unlink_at(&self, spot: &Spot) -> Result<()> {
        let (name, _) = spot.old_name(Errno::EISDIR)?;
        let reply = self.ask(&Request::Unlink { parent: spot.dir.ino(), name })?;
        self.let_go(&reply);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir_at(&self, spot: &Spot) -> Result<()> {
        let none = if spot.dir.is_root() { Errno::EBUSY } else { Errno::EINVAL };
        let (name, _) = spot.old_name(none)?;
        let reply = self.ask(&Request::Rmdir { parent: spot.dir.ino(), name })?;
        self.let_go(&reply);
        Ok(())
    }

    /// Moves, replaces or exchanges names (`rename_flags`).
    pub fn rename_at(&self, from: &Spot, to: &Spot, flags: u32) -> Result<()> {
        let (name, found) = from.old_name(Errno::EBUSY)?;
        let to_name = to.name.as_deref().ok_or(Errno::EBUSY)?;
        if to.slash && found.kind() != Ok(FileKind::Directory) {
            return Err(Errno::ENOTDIR);
        }
        let (parent, to_parent) = (from.dir.ino(), to.dir.ino());
        let reply = self.ask(&Request::Rename { parent, name, to_parent, to_name, flags })?;
        self.let_go(&reply);
        Ok(())
    }

    /// The target of a symbolic link; `EINVAL` for anything else.
    pub fn readlink_at(&self, spot: &Spot) -> Result<Vec<u8>> {
        let attr = self.attr_at(spot)?;
        if attr.kind() != Ok(FileKind::Symlink) {
            return Err(Errno::EINVAL);
        }
        let mut target = vec![0; limits::SYMLINK_MAX];
        let request = Request::Readlink { ino: attr.ino };
        let len = self.link.read(&cred(), &request, &mut target)?;
        target.truncate(len);
        Ok(target)
    }

    /// Whether the process may do all of `mask` (4 read, 2 write, 1 execute; 0: whether it is
    /// there).
    pub fn access_at(&self, spot: &Spot, mask: u32) -> Result<()> {
        let ino = spot.ino()?;
        if mask == 0 {
            return Ok(());
        }
        self.ask(&Request::Access { ino, mask }).map(drop)
    }

    /// Sets the length of the file `spot` leads to.
    pub fn truncate_at(&self, spot: &Spot, size: u64) -> Result<()> {
        let attr = self.attr_at(spot)?;
        match attr.kind() {
            Ok(FileKind::Directory) => return Err(Errno::EISDIR),
            Ok(FileKind::Regular) => {}
            _ => return Err(Errno::EINVAL),
        }
        let set = Setattr { size: Some(size), ..Setattr::default() };
        self.set_attr(attr.ino, set).map(drop)
    }

    /// An extended attribute; `room` 0 asks for its length only. `ERANGE` if it is longer.
    pub fn xattr(&self, ino: Ino, name: &[u8], room: usize) -> Result<Xattr> {
        let len = xattr_room(room);
        self.ask_xattr(&Request::Getxattr { ino, name, len }, room)
    }

    /// The names of all extended attributes, each with a terminating zero.
    pub fn xattr_names(&self, ino: Ino, room: usize) -> Result<Xattr> {
        let len = xattr_room(room);
        self.ask_xattr(&Request::Listxattr { ino, len }, room)
    }

    fn ask_xattr(&self, request: &Request<'_>, room: usize) -> Result<Xattr> {
        let mut value = vec![0; room.min(limits::XATTR_SIZE_MAX)];
        let cred = cred();
        self.link.ask(&cred, request, &[], |reply, slot| match (reply, slot) {
            (Reply::Size(len), _) => Ok(Xattr::Len(len as usize)),
            (Reply::Data(len), Some(slot)) => {
                value.truncate(len as usize);
                slot.read(0, &mut value)?;
                Ok(Xattr::Value(value))
            }
            _ => Err(Errno::EPROTO),
        })
    }

    /// Sets an extended attribute (`xattr_flags`).
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        if value.len() > limits::XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        self.ask_with(&Request::Setxattr { ino, name, flags }, value).map(drop)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.ask(&Request::Removexattr { ino, name }).map(drop)
    }

    // By path from the root.

    /// The attributes of what a path leads to.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.at(path.as_ref(), true, |spot| self.attr_at(spot))
    }

    /// The same of a symbolic link itself.
    pub fn lstat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.at(path.as_ref(), false, |spot| self.attr_at(spot))
    }

    /// Makes a directory.
    pub fn mkdir(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.at(path.as_ref(), false, |spot| self.mkdir_at(spot, mode, self.umask()))
    }

    /// Makes a symbolic link at `path`.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        self.at(path.as_ref(), false, |spot| self.symlink_at(target, spot))
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.at(path.as_ref(), false, |spot| self.readlink_at(spot))
    }

    /// Makes another name for a file; a symbolic link is not followed.
    pub fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let ino = self.at(from.as_ref(), false, Spot::ino)?;
        self.at(to.as_ref(), false, |spot| self.link_at(ino, spot))
    }

    /// Removes a name of a file.
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at(path.as_ref(), false, |spot| self.unlink_at(spot))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at(path.as_ref(), false, |spot| self.rmdir_at(spot))
    }

    /// Moves a name, over another if there is one.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.at(from.as_ref(), false, |from| {
            self.at(to.as_ref(), false, |to| self.rename_at(from, to, 0))
        })
    }

    /// Sets the length of a file.
    pub fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<()> {
        self.at(path.as_ref(), true, |spot| self.truncate_at(spot, size))
    }

    /// Changes permissions, owner, times or length.
    pub fn change(&self, path: impl AsRef<Path>, set: &Setattr) -> Result<Attr> {
        self.at(path.as_ref(), true, |spot| self.set_attr(spot.ino()?, set.clone()))
    }
}

/// Room for an attribute's value, as asked of the volume.
fn xattr_room(room: usize) -> u32 {
    u32::try_from(room.min(limits::XATTR_SIZE_MAX)).unwrap_or(u32::MAX)
}
