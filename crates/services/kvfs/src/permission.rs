//! Who may do what: `path_resolution(7)`, `acl(5)`, `capabilities(7)` with root holding them all.

use outboard_base::{Errno, Ino, Result, Timestamp};
use outboard_kv::{Kv, KvError};
use outboard_medium::Medium;
use outboard_wire::file::{mode, open_flags};

use crate::acl::{self, Acl};
use crate::context::Context;
use crate::layout::{Inode, decode_xattr, key, marks};
use crate::txn::Tried;
use crate::{Kvfs, VolumeEvent};

/// May read.
pub(crate) const READ: u32 = 4;
/// May write.
pub(crate) const WRITE: u32 = 2;
/// May execute, or search.
pub(crate) const EXECUTE: u32 = 1;

/// relatime: an access time older than this moves even if nothing changed since.
const ATIME_AGE_SEC: i64 = 24 * 60 * 60;

impl Context<'_> {
    /// Whether the asker passes every permission check: root, or already checked.
    pub(crate) fn passes(&self) -> bool {
        self.checked || self.cred.is_root()
    }

    /// Whether the asker may do what only the owner may.
    pub(crate) fn owns(&self, inode: &Inode) -> bool {
        self.passes() || self.cred.uid == inode.attr.uid
    }

    /// `EPERM` when `dir` is sticky and the asker owns neither it nor `inode` in it.
    pub(crate) fn sticky(&self, dir: &Inode, inode: &Inode) -> Result<()> {
        let sticky = dir.attr.mode & mode::S_ISVTX != 0;
        if sticky && !self.owns(dir) && !self.owns(inode) { Err(Errno::EPERM) } else { Ok(()) }
    }
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// `EACCES` unless the asker may do all of `mask` to `inode`: mode bits, ACL, root's rules.
    /// Always passes for requests checked by the front-end.
    pub(crate) async fn permit(&self, cx: &Context<'_>, inode: &Inode, mask: u32) -> Result<()> {
        if cx.checked || self.permits(cx, inode, mask).await? { Ok(()) } else { Err(Errno::EACCES) }
    }

    async fn permits(&self, cx: &Context<'_>, inode: &Inode, mask: u32) -> Result<bool> {
        let (cred, bits) = (&*cx.cred, inode.attr.mode);
        let allowed = if cred.is_root() {
            // Root reads and writes all, searches all, and executes what anybody may execute.
            let runs = inode.is_directory() || bits & 0o111 != 0;
            if runs { 7 } else { 6 }
        } else if cred.uid == inode.attr.uid {
            bits >> 6
        } else if let Some(acl) = self.access_acl(inode).await? {
            return Ok(acl.permits(cred, inode.attr.gid, mask));
        } else if cred.in_group(inode.attr.gid) {
            bits >> 3
        } else {
            bits
        };
        Ok(allowed & mask == mask)
    }

    async fn access_acl(&self, inode: &Inode) -> Result<Option<Acl>> {
        if !inode.has(marks::ACL) {
            return Ok(None);
        }
        let key = key::xattr(inode.ino(), acl::ACCESS);
        let Some(stored) = self.kv.get(&key).await.map_err(KvError::errno)? else {
            return Ok(None);
        };
        let value = decode_xattr(inode.ino(), acl::ACCESS, &stored)?;
        Acl::decode(value).map_err(|_| Errno::EUCLEAN)
    }

    /// The inode's data was read through a handle opened with `flags`: moves its access time by the
    /// rules of relatime. Best effort: a full or failing store does not fail the read.
    pub(crate) async fn accessed(&self, cx: &Context<'_>, ino: Ino, flags: u32) {
        if flags & open_flags::NOATIME != 0 {
            return;
        }
        let moved = self.transact(async |txn| -> Tried<()> {
            let mut inode = txn.inode(ino).await?;
            if atime_is_due(&inode, cx.now) {
                inode.attr.atime = cx.now;
                txn.put_inode(&inode)?;
            }
            Ok(())
        });
        if let Err(errno) = moved.await {
            tracing::debug!(%ino, %errno, "access time not moved");
        }
    }

    /// Attachments other than the asker's with an interest in `ino` hear that it changed.
    pub(crate) fn changed(&self, cx: &Context<'_>, ino: Ino) {
        let others = self.handles.others_interested(cx.attachment, ino);
        self.push_events(
            others.into_iter().map(|attachment| VolumeEvent::StaleInode { attachment, ino }),
        );
    }

    /// Attachments other than the asker's with an interest in `parent` hear that `name` changed.
    pub(crate) fn renamed(&self, cx: &Context<'_>, parent: Ino, name: &[u8]) {
        let others = self.handles.others_interested(cx.attachment, parent);
        let entry =
            |attachment| VolumeEvent::StaleEntry { attachment, parent, name: name.to_vec() };
        self.push_events(others.into_iter().map(entry));
    }
}

/// Whether a read at `now` moves the access time: it is not after the last change, or a day old.
pub(crate) fn atime_is_due(inode: &Inode, now: Timestamp) -> bool {
    let attr = &inode.attr;
    attr.atime <= attr.mtime
        || attr.atime <= attr.ctime
        || now.sec.saturating_sub(attr.atime.sec) >= ATIME_AGE_SEC
}
