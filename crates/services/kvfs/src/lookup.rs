//! From a name to an inode; symbolic links.

use outboard_base::{Errno, Ino, Result};
use outboard_kv::{Kv, KvError};
use outboard_medium::Medium;
use outboard_wire::file::{FileKind, Reply};

use crate::context::Context;
use crate::layout::{Entry, Inode, decode_small, key};
use crate::permission::EXECUTE;
use crate::{Answer, Kvfs, Payload};

/// How often a name may lead to an inode that went meanwhile before something must be wrong.
pub(crate) const TRIES: usize = 100;

impl<K: Kv, M: Medium> Kvfs<K, M> {
    pub(crate) async fn lookup(&self, cx: &Context<'_>, parent: Ino, name: &[u8]) -> Result<Reply> {
        if !cx.checked {
            self.searched(cx, parent).await?;
        }
        let Some(inode) = self.find(parent, name).await? else {
            // That the front-end has checked does not say that it was a directory.
            if cx.checked {
                self.searched(cx, parent).await?;
            }
            // Who was answered that there is nothing is notified once there is.
            self.handles.add_interest(cx.attachment, parent);
            return Err(Errno::ENOENT);
        };
        self.handles.add_interest(cx.attachment, inode.ino());
        Ok(Reply::Entry(inode.attr))
    }

    /// The directory, which the asker may search.
    pub(crate) async fn searched(&self, cx: &Context<'_>, parent: Ino) -> Result<Inode> {
        let dir = self.inode(parent).await?;
        if !dir.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        self.permit(cx, &dir, EXECUTE).await?;
        Ok(dir)
    }

    /// What `name` leads to in `parent`, outside any batch.
    pub(crate) async fn find(&self, parent: Ino, name: &[u8]) -> Result<Option<Inode>> {
        let key = key::entry(parent, name);
        for _ in 0..TRIES {
            let Some(value) = self.kv.get(&key).await.map_err(KvError::errno)? else {
                return Ok(None);
            };
            let entry = Entry::decode(parent, name, &value)?;
            match self.inode(entry.ino).await {
                // Removed between the two reads, or else the name leads nowhere.
                Err(Errno::ESTALE) => {}
                found => return found.map(Some),
            }
        }
        Err(Errno::EUCLEAN)
    }

    /// The front-end no longer refers to `ino`.
    pub(crate) async fn forget(&self, cx: &Context<'_>, ino: Ino) -> Result<Reply> {
        self.handles.forget(cx.attachment, ino);
        self.reclaim_some().await;
        Ok(Reply::Empty)
    }

    pub(crate) async fn readlink(&self, cx: &Context<'_>, ino: Ino) -> Result<Answer> {
        let inode = self.inode(ino).await?;
        if inode.kind() != FileKind::Symlink {
            return Err(Errno::EINVAL);
        }
        let value = self.kv.get(&key::of(key::Tag::Small, ino)).await.map_err(KvError::errno)?;
        // The link may have been removed since its inode was read.
        let value = value.ok_or(Errno::ESTALE)?;
        let target = decode_small(ino, &value)?.to_vec();
        self.accessed(cx, ino, 0).await;
        let len = u32::try_from(target.len()).map_err(|_| Errno::EUCLEAN)?;
        Ok(Answer { reply: Reply::Data(len), payload: Payload::Bytes(target) })
    }
}
