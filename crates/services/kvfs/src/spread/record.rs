//! What is remembered of spread files beside their inodes: which are being written to, and which
//! are gone here and not yet at the nodes.

use outboard_base::{Errno, Ino, Result};
use outboard_kv::{Kv, KvError};
use outboard_medium::Medium;

use super::spread_inode;
use crate::Kvfs;
use crate::layout::key::{self, Tag};
use crate::layout::{Inode, marks};
use crate::txn::Tried;

/// Most numbers in one answer.
const MOST: usize = 4096;

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Which opening of the volume this is: no two have the same number, whatever was lost between
    /// them, if the volume is opened with [`crate::Options::spread`].
    pub fn opening(&self) -> u64 {
        self.opened
    }

    /// Somebody is about to write to the nodes: marks the file, durably. So nothing is ever at the
    /// nodes under a number that a power loss here may take back and give out again.
    pub async fn begin_writing(&self, ino: Ino) -> Result<()> {
        {
            let _guard = self.range_locks.exclusive(ino).await;
            self.transact(async |txn| -> Tried<()> {
                let mut inode = spread_inode(txn, ino).await?;
                if !inode.has(marks::WRITING) {
                    inode.mark(marks::WRITING, true);
                    txn.put_inode(&inode)?;
                    txn.put(key::of(Tag::Writing, ino), []);
                }
                Ok(())
            })
            .await?;
        }
        // Also if the mark was there: whoever put it may not have come this far.
        self.sync().await
    }

    /// Whoever wrote has told all and writes no more. A file that is gone is nobody's any more.
    pub async fn end_writing(&self, ino: Ino) -> Result<()> {
        let _guard = self.range_locks.exclusive(ino).await;
        self.transact(async |txn| {
            txn.essential();
            let Some(value) = txn.get(&key::inode(ino)).await? else { return Ok(()) };
            let mut inode = Inode::decode(ino, &value)?;
            if inode.has(marks::WRITING) {
                inode.mark(marks::WRITING, false);
                txn.put_inode(&inode)?;
                txn.delete(key::of(Tag::Writing, ino));
            }
            Ok(())
        })
        .await
    }

    /// Files with numbers above `after` that are marked as being written to, at most `most` of
    /// them, in order; none: there are no more.
    pub async fn writing(&self, after: Ino, most: usize) -> Result<Vec<Ino>> {
        Ok(self.numbers(Tag::Writing, after.0, most).await?.into_iter().map(Ino).collect())
    }

    /// Objects with numbers above `after` whose files are gone for good, at most `most` of them, in
    /// order: a power loss does not bring back a file that is told of here.
    pub async fn purges(&self, after: u64, most: usize) -> Result<Vec<u64>> {
        let gone = self.numbers(Tag::Purge, after, most).await?;
        if !gone.is_empty() {
            self.sync().await?;
        }
        Ok(gone)
    }

    /// The nodes hold nothing of an object any more.
    pub async fn purged(&self, object: u64) -> Result<()> {
        self.transact(async |txn| -> Tried<()> {
            txn.essential();
            txn.delete(key::of(Tag::Purge, Ino(object)));
            Ok(())
        })
        .await
    }

    /// Numbers of the keys of a kind.
    async fn numbers(&self, tag: Tag, after: u64, most: usize) -> Result<Vec<u64>> {
        let after = key::of(tag, Ino(after));
        let found = self.kv.scan(&[tag as u8], Some(&after), most.min(MOST)).await;
        let found = found.map_err(KvError::errno)?;
        found.iter().map(|(pair, _)| key::number(pair).ok_or(Errno::EUCLEAN)).collect()
    }
}
