//! One atomic batch: what was read becomes its conditions, what was staged is written if they hold.
//!
//! A body run by [`Kvfs::transact`] reads and stages through a [`Txn`]; if a condition no longer
//! holds at the commit, the body runs again, a bounded number of times. Conflicts are rare:
//! operations that change one directory, or one file's data, hold its range lock
//! ([`RangeLocks`](outboard_base::task::RangeLocks)).

use outboard_base::{Errno, Ino, Result};
use outboard_kv::object::Staged;
use outboard_kv::{Batch, Cached, Durability, Kv, KvError, Value};
use outboard_medium::Medium;

use crate::Kvfs;
use crate::context::Context;
use crate::layout::{Entry, Inode, Listed, key};
use outboard_wire::file::Reply;

/// Why a body gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fail {
    /// Something changed underneath: run again.
    Again,
    /// This is the answer.
    With(Errno),
}

impl Fail {
    /// The errno, where nothing is run again.
    pub(crate) fn errno(self) -> Errno {
        match self {
            Fail::Again => Errno::EAGAIN,
            Fail::With(errno) => errno,
        }
    }
}

/// What a body, or a part of one, comes to.
pub(crate) type Tried<T> = std::result::Result<T, Fail>;

impl From<Errno> for Fail {
    fn from(errno: Errno) -> Fail {
        Fail::With(errno)
    }
}

impl From<KvError> for Fail {
    fn from(error: KvError) -> Fail {
        if error == KvError::Conflict { Fail::Again } else { Fail::With(error.errno()) }
    }
}

/// How often a body runs before the caller hears `EBUSY`. Each round means another commit went
/// through.
pub(crate) const ROUNDS_MAX: usize = 1000;

/// Reads and writes that become one batch.
pub(crate) struct Txn<'k, K> {
    kv: &'k K,
    batch: Batch,
    /// What was read, each with a condition in the batch.
    seen: Vec<(Vec<u8>, Option<Value>)>,
    staged: Vec<Staged>,
}

impl<'k, K: Kv> Txn<'k, K> {
    fn new(kv: &'k K) -> Txn<'k, K> {
        Txn { kv, batch: Batch::at(kv.version()), seen: Vec::new(), staged: Vec::new() }
    }

    /// The value of `key` as this batch will leave it; what was read must still hold at the commit.
    pub(crate) async fn get(&mut self, key: &[u8]) -> Tried<Option<Value>> {
        if let Some(staged) = self.batch.staged(key) {
            return Ok(staged.cloned());
        }
        if let Some((_, value)) = self.seen.iter().find(|(seen, _)| seen == key) {
            return Ok(value.clone());
        }
        let value = self.kv.get(key).await?;
        match &value {
            Some(value) => self.batch.equals(key, value.clone()),
            None => self.batch.absent(key),
        }
        self.seen.push((key.to_vec(), value.clone()));
        Ok(value)
    }

    /// The inode; `ESTALE` if there is none.
    pub(crate) async fn inode(&mut self, ino: Ino) -> Tried<Inode> {
        let value = self.get(&key::inode(ino)).await?.ok_or(Errno::ESTALE)?;
        Ok(Inode::decode(ino, &value)?)
    }

    /// The directory; `ENOTDIR` if it is none.
    pub(crate) async fn directory(&mut self, ino: Ino) -> Tried<Inode> {
        let inode = self.inode(ino).await?;
        if inode.is_directory() { Ok(inode) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// What `name` leads to in `parent`.
    pub(crate) async fn entry(&mut self, parent: Ino, name: &[u8]) -> Tried<Option<Entry>> {
        let value = self.get(&key::entry(parent, name)).await?;
        Ok(value.map(|value| Entry::decode(parent, name, &value)).transpose()?)
    }

    /// Writes the inode.
    pub(crate) fn put_inode(&mut self, inode: &Inode) -> Result<()> {
        self.batch.put(key::inode(inode.ino()), inode.encode()?);
        Ok(())
    }

    /// Writes both pairs of an entry.
    pub(crate) fn put_entry(&mut self, parent: Ino, name: &[u8], entry: &Entry) -> Result<()> {
        self.batch.put(key::entry(parent, name), entry.encode(parent, name));
        let listed = Listed { ino: entry.ino, kind: entry.kind, name };
        self.batch.put(key::listed(parent, entry.cookie), listed.encode(parent, entry.cookie)?);
        Ok(())
    }

    /// Removes both pairs of an entry.
    pub(crate) fn delete_entry(&mut self, parent: Ino, name: &[u8], cookie: u64) {
        self.batch.delete(key::entry(parent, name));
        self.batch.delete(key::listed(parent, cookie));
    }

    /// Writes a pair.
    pub(crate) fn put(&mut self, key: impl AsRef<[u8]>, value: impl Into<Value>) {
        self.batch.put(key.as_ref(), value);
    }

    /// Removes a pair.
    pub(crate) fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.batch.delete(key.as_ref());
    }

    /// What `entry` leads to. Whoever asks holds the lock of the entry's directory, so an entry
    /// that leads nowhere is damage.
    pub(crate) async fn target(&mut self, entry: &Entry) -> Tried<Inode> {
        match self.inode(entry.ino).await {
            Err(Fail::With(Errno::ESTALE)) => Err(Errno::EUCLEAN.into()),
            found => found,
        }
    }

    /// Records `reply`, so that a replay of this request is answered and not repeated.
    pub(crate) fn record(&mut self, context: &Context<'_>, reply: &Reply) -> Result<()> {
        if let Some((key, value)) = context.record(reply)? {
            self.batch.put(key, value);
        }
        Ok(())
    }

    /// The batch, for the object store to stage into.
    pub(crate) fn batch(&mut self) -> &mut Batch {
        &mut self.batch
    }

    /// Keeps what the object store staged, until it is known what became of the batch.
    pub(crate) fn stage(&mut self, staged: Staged) {
        self.staged.push(staged);
    }

    /// Lets the batch use the space kept in reserve: it frees space.
    pub(crate) fn essential(&mut self) {
        self.batch.essential();
    }

    fn abort(self) {
        self.staged.into_iter().for_each(Staged::abort);
    }

    async fn commit(self) -> Tried<()> {
        if self.batch.is_empty() {
            self.abort();
            return Ok(());
        }
        match self.kv.commit(self.batch, Durability::Answered).await {
            Ok(()) => self.staged.into_iter().for_each(Staged::committed),
            Err(error @ (KvError::Conflict | KvError::NoSpace | KvError::TooLarge)) => {
                self.staged.into_iter().for_each(Staged::abort);
                return Err(error.into());
            }
            // Nobody knows whether it was applied: what was staged stays out of use.
            Err(error) => {
                drop(self.staged);
                return Err(error.into());
            }
        }
        Ok(())
    }
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Runs `body` and commits what it staged, again while others' commits come between.
    pub(crate) async fn transact<T>(
        &self,
        mut body: impl AsyncFnMut(&mut Txn<'_, Cached<K>>) -> Tried<T>,
    ) -> Result<T> {
        for _ in 0..ROUNDS_MAX {
            match self.attempt(&mut body).await {
                Ok(value) => return Ok(value),
                Err(Fail::Again) => {}
                Err(Fail::With(errno)) => return Err(errno),
            }
        }
        Err(Errno::EBUSY)
    }

    /// Runs `body` and commits what it staged, once.
    pub(crate) async fn attempt<T>(
        &self,
        body: impl AsyncFnOnce(&mut Txn<'_, Cached<K>>) -> Tried<T>,
    ) -> Tried<T> {
        let mut txn = Txn::new(&*self.kv);
        match body(&mut txn).await {
            Ok(value) => {
                self.touched.note(&txn.batch);
                txn.commit().await.map(|()| value)
            }
            Err(fail) => {
                txn.abort();
                Err(fail)
            }
        }
    }

    /// The inode, outside any batch; `ESTALE` if there is none.
    pub(crate) async fn inode(&self, ino: Ino) -> Result<Inode> {
        let value = self.kv.get(&key::inode(ino)).await.map_err(KvError::errno)?;
        Inode::decode(ino, &value.ok_or(Errno::ESTALE)?)
    }
}
