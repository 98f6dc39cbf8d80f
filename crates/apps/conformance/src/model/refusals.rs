//! Why an action is refused: every error that applies.

use outboard_base::{Cred, Errno};
use outboard_wire::file::{mode, rename_flags, xattr_flags};

use super::reference::{Action, Body, HandleId, Id, Reference};

/// May read.
pub(super) const READ: u32 = 4;
/// May write.
pub(super) const WRITE: u32 = 2;
/// May execute, or search.
pub(super) const EXECUTE: u32 = 1;

/// Errors found so far.
pub(super) struct Refusals<'r> {
    fs: &'r Reference,
    who: &'r Cred,
    found: Vec<Errno>,
}

impl<'r> Refusals<'r> {
    /// Everything that speaks against `action`.
    pub(super) fn of(fs: &'r Reference, who: &'r Cred, action: &Action) -> Refusals<'r> {
        let mut refusals = Refusals { fs, who, found: Vec::new() };
        refusals.judge(action);
        refusals
    }

    /// No error, or all of them.
    pub(super) fn verdict(self) -> Result<(), Vec<Errno>> {
        if self.found.is_empty() { Ok(()) } else { Err(self.found) }
    }

    fn when(&mut self, applies: bool, errno: Errno) {
        if applies {
            self.found.push(errno);
        }
    }

    fn judge(&mut self, action: &Action) {
        match action {
            Action::Stat { .. } | Action::Close { .. } | Action::Sync => {}
            Action::Lookup { dir, name } => {
                self.search(*dir);
                let missing = self.fs.entry(*dir, name).is_none();
                self.when(missing && self.fs.node(*dir).is_dir(), Errno::ENOENT);
            }
            Action::List { dir } => {
                self.when(!self.fs.node(*dir).is_dir(), Errno::ENOTDIR);
                self.permission(*dir, READ);
            }
            Action::Create { dir, name, excl, .. } => self.create(*dir, name, *excl),
            Action::Mkdir { dir, name, .. }
            | Action::Symlink { dir, name, .. }
            | Action::Fifo { dir, name, .. } => self.make(*dir, name),
            Action::Tmpfile { dir, .. } => {
                self.search(*dir);
                self.permission(*dir, WRITE);
            }
            Action::Link { node, dir, name } => {
                self.make(*dir, name);
                let linked = self.fs.node(*node);
                self.when(linked.is_dir(), Errno::EPERM);
                self.when(linked.names == 0 && !linked.linkable, Errno::ENOENT);
            }
            Action::Unlink { dir, name } => self.remove(*dir, name, false),
            Action::Rmdir { dir, name } => self.remove(*dir, name, true),
            Action::Rename { from, to, flags } => {
                self.rename((from.0, &from.1), (to.0, &to.1), *flags);
            }
            Action::Open { node, reads, writes, truncate, .. } => {
                let read = if *reads { READ } else { 0 };
                let write = if *writes || *truncate { WRITE } else { 0 };
                self.permission(*node, read | write);
                self.when(self.fs.node(*node).is_dir(), Errno::EISDIR);
            }
            Action::Write { handle, .. }
            | Action::Ftruncate { handle, .. }
            | Action::Fallocate { handle, .. } => self.writable(*handle, action),
            Action::Read { handle, .. } => {
                let unreadable = !self.fs.handle(*handle).reads;
                self.when(unreadable, Errno::EBADF);
            }
            Action::Truncate { node, .. } => self.truncate(*node),
            Action::Copy { from, to, len } => self.copy(*from, *to, *len),
            Action::Chmod { node, .. } => {
                self.when(!self.owns(*node), Errno::EPERM);
            }
            Action::Chown { node, uid, gid } => self.chown(*node, *uid, *gid),
            Action::Setxattr { node, name, flags, .. } => self.setxattr(*node, name, *flags),
            Action::Removexattr { node, name } => {
                self.user_xattr(*node);
                self.when(!self.fs.node(*node).xattrs.contains_key(name), Errno::ENODATA);
            }
        }
    }

    fn owns(&self, id: Id) -> bool {
        self.who.is_root() || self.who.uid == self.fs.node(id).uid
    }

    fn permission(&mut self, id: Id, wanted: u32) {
        let denied = !self.fs.permits(self.who, id, wanted);
        self.when(denied, Errno::EACCES);
    }

    /// `dir` must be a directory one may search.
    fn search(&mut self, dir: Id) {
        self.when(!self.fs.node(dir).is_dir(), Errno::ENOTDIR);
        self.permission(dir, EXECUTE);
    }

    fn truncate(&mut self, id: Id) {
        self.permission(id, WRITE);
        let body = &self.fs.node(id).body;
        self.when(matches!(body, Body::Dir { .. }), Errno::EISDIR);
        self.when(matches!(body, Body::Symlink(_) | Body::Fifo), Errno::EINVAL);
    }

    fn setxattr(&mut self, id: Id, name: &str, flags: u32) {
        self.user_xattr(id);
        let exists = self.fs.node(id).xattrs.contains_key(name);
        self.when(exists && flags & xattr_flags::CREATE != 0, Errno::EEXIST);
        self.when(!exists && flags & xattr_flags::REPLACE != 0, Errno::ENODATA);
    }

    fn create(&mut self, dir: Id, name: &str, excl: bool) {
        let Some(found) = self.fs.entry(dir, name) else { return self.make(dir, name) };
        self.search(dir);
        self.when(excl, Errno::EEXIST);
        self.permission(found, READ | WRITE);
        let body = &self.fs.node(found).body;
        self.when(matches!(body, Body::Dir { .. }), Errno::EISDIR);
        if matches!(body, Body::Symlink(_)) {
            self.found.extend([Errno::ELOOP, Errno::EEXIST]);
            // In a sticky directory Linux opens nobody else's.
            let sticky = self.fs.node(dir).mode & mode::S_ISVTX != 0;
            self.when(sticky, Errno::EACCES);
        }
    }

    fn make(&mut self, dir: Id, name: &str) {
        self.search(dir);
        self.permission(dir, WRITE);
        self.when(self.fs.entry(dir, name).is_some(), Errno::EEXIST);
    }

    /// Taking `name` out of `dir`, whatever it is.
    fn take(&mut self, dir: Id, name: &str) -> Option<Id> {
        self.search(dir);
        let Some(found) = self.fs.entry(dir, name) else {
            let is_dir = self.fs.node(dir).is_dir();
            self.when(is_dir, Errno::ENOENT);
            return None;
        };
        self.permission(dir, WRITE);
        let sticky = self.fs.node(dir).mode & mode::S_ISVTX != 0;
        let kept = sticky && !self.owns(dir) && !self.owns(found);
        self.when(kept, Errno::EPERM);
        Some(found)
    }

    fn is_full(&self, id: Id) -> bool {
        matches!(&self.fs.node(id).body, Body::Dir { entries, .. } if !entries.is_empty())
    }

    fn remove(&mut self, dir: Id, name: &str, directory: bool) {
        let Some(found) = self.take(dir, name) else { return };
        let is_dir = self.fs.node(found).is_dir();
        self.when(directory && !is_dir, Errno::ENOTDIR);
        self.when(!directory && is_dir, Errno::EISDIR);
        self.when(directory && self.is_full(found), Errno::ENOTEMPTY);
    }

    fn rename(&mut self, from: (Id, &str), to: (Id, &str), flags: u32) {
        let exchange = flags & rename_flags::EXCHANGE != 0;
        let target = self.fs.entry(to.0, to.1);
        // Two names of one file: nothing is done, so little can be refused.
        if let (Some(source), Some(target)) = (self.fs.entry(from.0, from.1), target)
            && source == target
        {
            self.search(from.0);
            self.search(to.0);
            self.when(flags & rename_flags::NOREPLACE != 0, Errno::EEXIST);
            return;
        }
        let source = self.take(from.0, from.1);
        match target {
            Some(_) => drop(self.take(to.0, to.1)),
            None => {
                self.search(to.0);
                self.permission(to.0, WRITE);
                self.when(exchange, Errno::ENOENT);
            }
        }
        self.when(target.is_some() && flags & rename_flags::NOREPLACE != 0, Errno::EEXIST);
        let Some(source) = source else { return };
        self.moves(source, from.0, to.0);
        if let Some(target) = target {
            self.replaces(source, target, (from.0, to.0), exchange);
        }
    }

    /// `source` goes from one directory to another, maybe.
    fn moves(&mut self, source: Id, from: Id, to: Id) {
        if self.fs.node(source).is_dir() {
            self.when(self.fs.is_inside(to, source), Errno::EINVAL);
            if from != to {
                self.permission(source, WRITE);
            }
        }
    }

    fn replaces(&mut self, source: Id, target: Id, (from, to): (Id, Id), exchange: bool) {
        let ancestor = self.fs.node(target).is_dir() && self.fs.is_inside(from, target);
        if exchange {
            self.when(ancestor, Errno::EINVAL);
            self.moves(target, to, from);
            return;
        }
        self.when(ancestor || self.is_full(target), Errno::ENOTEMPTY);
        let kinds = (self.fs.node(source).is_dir(), self.fs.node(target).is_dir());
        self.when(kinds == (false, true), Errno::EISDIR);
        self.when(kinds == (true, false), Errno::ENOTDIR);
    }

    fn writable(&mut self, handle: HandleId, action: &Action) {
        if !self.fs.handle(handle).writes {
            self.found.push(Errno::EBADF);
            // ftruncate(2) says this one.
            self.when(matches!(action, Action::Ftruncate { .. }), Errno::EINVAL);
        }
    }

    fn copy(&mut self, from: (HandleId, u64), to: (HandleId, u64), len: u64) {
        let (source, target) = (self.fs.handle(from.0), self.fs.handle(to.0));
        self.when(!source.reads || !target.writes || target.append, Errno::EBADF);
        let apart = len == 0 || from.1 + len <= to.1 || to.1 + len <= from.1;
        self.when(source.node == target.node && !apart, Errno::EINVAL);
    }

    fn chown(&mut self, id: Id, uid: Option<u32>, gid: Option<u32>) {
        if self.who.is_root() {
            return;
        }
        let node = self.fs.node(id);
        let owner = self.who.uid == node.uid;
        let keeps = uid.is_none_or(|uid| uid == node.uid);
        let own_group = gid.is_none_or(|gid| gid == node.gid || self.who.in_group(gid));
        self.when(!owner || !keeps || !own_group, Errno::EPERM);
    }

    fn user_xattr(&mut self, id: Id) {
        let node = self.fs.node(id);
        let holds = matches!(node.body, Body::File(_) | Body::Dir { .. });
        self.when(!holds, Errno::EPERM);
        let sticky = node.is_dir() && node.mode & mode::S_ISVTX != 0;
        self.when(sticky && !self.owns(id), Errno::EPERM);
        self.permission(id, WRITE);
    }
}
