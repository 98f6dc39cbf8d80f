//! What is remembered of spread files beside their inodes: which are being written to, and which
//! are gone here and not yet at the nodes.

use std::sync::atomic::Ordering;

use outboard_base::{Errno, Ino, Result};
use outboard_kv::{Kv, KvError};
use outboard_medium::Medium;

use outboard_wire::shared::call::Layout;

use super::spread_inode;
use crate::Kvfs;
use crate::layout::key::{self, Counter, Tag};
use crate::layout::{DataKind, Inode, decode_counter, encode_counter, marks};
use crate::txn::Tried;

/// Most numbers in one answer.
const MOST: usize = 4096;
/// Numbers looked at in one batch of an opening.
const AT_ONCE: u64 = 256;

/// Of a file that is written to.
///
/// ```text
/// 1, if the writer tells before it answers u8 | writer u64, 0: nobody knows | cut u64, if a hole
/// is due
/// ```
///
/// One of before there were writers is empty, or has the cut alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Writing {
    /// Its writer tells before it answers.
    pub(super) tells: bool,
    /// Who writes.
    pub(super) writer: u64,
    /// The size that it was cut to, if a hole is due.
    pub(super) cut: Option<u64>,
}

impl Writing {
    pub(super) fn decode(record: &[u8]) -> Writing {
        let word = |at: usize| record.get(at..)?.first_chunk().map(|raw| u64::from_le_bytes(*raw));
        match record.len() {
            0..9 => Writing { cut: word(0), ..Writing::default() },
            _ => Writing {
                tells: record.first() == Some(&1),
                writer: word(1).unwrap_or(0),
                cut: word(9),
            },
        }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let mut record = vec![u8::from(self.tells)];
        record.extend(self.writer.to_le_bytes());
        record.extend(self.cut.into_iter().flat_map(u64::to_le_bytes));
        record
    }
}

/// An inode that has a layout.
#[derive(Clone, Debug)]
pub struct LaidOut {
    /// Its number.
    pub ino: Ino,
    /// Of a file how its bytes lie; of a directory, how those of files made in it will.
    pub layout: Layout,
    /// On which nodes, in their order, once they were moved.
    pub members: Vec<u16>,
    /// Its bytes lie on nodes.
    pub is_file: bool,
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Which opening of the volume this is: no two have the same number, whatever was lost between
    /// them, if the volume is opened with [`crate::Options::spread`].
    pub fn opening(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Inodes below it are marked durably; just after an opening, all that there are.
    pub fn marked_below(&self) -> u64 {
        self.marked.load(Ordering::SeqCst)
    }

    /// Somebody is about to write to the nodes: marks the file, durably, or so that a loss of power
    /// that takes the mark leaves it among the last, which count as marked. Who `tells` says what
    /// it wrote ([`Kvfs::publish`]) before it answers. It is the only one, and all that was written
    /// before is known.
    pub async fn begin_writing(&self, ino: Ino, writer: u64, tells: bool) -> Result<()> {
        {
            let _guard = self.range_locks.exclusive(ino).await;
            self.transact(async |txn| -> Tried<()> {
                let mut inode = spread_inode(txn, ino).await?;
                let key = key::of(Tag::Writing, ino);
                let known = txn.get(&key).await?.map(|value| Writing::decode(&value));
                let begun = Writing { writer, tells, ..known.unwrap_or_default() };
                if known != Some(begun) {
                    inode.mark(marks::WRITING, true);
                    txn.put_inode(&inode)?;
                    txn.put(key, begun.encode());
                }
                Ok(())
            })
            .await?;
        }
        if ino.0 >= self.marked.load(Ordering::SeqCst) {
            return Ok(());
        }
        // Also if the mark was there: whoever put it may not have come this far.
        self.sync().await
    }

    /// The nodes hold nothing behind the size that a file was cut to.
    pub async fn holed(&self, ino: Ino) -> Result<()> {
        let _guard = self.range_locks.exclusive(ino).await;
        self.transact(async |txn| -> Tried<()> {
            txn.essential();
            let key = key::of(Tag::Writing, ino);
            let known = txn.get(&key).await?.map(|value| Writing::decode(&value));
            if let Some(known) = known.filter(|known| known.cut.is_some()) {
                txn.put(key, Writing { cut: None, ..known }.encode());
            }
            Ok(())
        })
        .await
    }

    /// Files that were made up to now are marked durably from now on. What is marked already is in
    /// the store before this is, and a loss of power takes the last commits first; who marks later
    /// finds the number raised.
    pub(crate) async fn raise_marked(&self) -> Result<()> {
        let Some(next) = self.numbers.next().filter(|_| self.spread.is_some()) else {
            return Ok(());
        };
        if self.marked.fetch_max(next, Ordering::SeqCst) >= next {
            return Ok(());
        }
        self.put_marked(next).await
    }

    pub(crate) async fn put_marked(&self, next: u64) -> Result<()> {
        let value = encode_counter(next)?;
        self.transact(async |txn| -> Tried<()> {
            txn.essential();
            txn.put(key::counter(Counter::Marked), value);
            Ok(())
        })
        .await
    }

    /// Of an opening: the last files that were made may have been written to, although a loss of
    /// power took their marks, or themselves. Marks what is there, and has the nodes purge what is
    /// not.
    pub(crate) async fn mark_the_last(&self) -> Result<()> {
        let counter = async |which: Counter| {
            let value = self.kv.get(&key::counter(which)).await.map_err(KvError::errno)?;
            value.map(|value| decode_counter(&value)).transpose()
        };
        let end = counter(Counter::Ino).await?.ok_or(Errno::EUCLEAN)?;
        let known = counter(Counter::Marked).await?;
        // In a volume from before there was such a counter each mark is durable.
        let mut from = known.unwrap_or(end);
        while from < end {
            let to = end.min(from + AT_ONCE);
            self.transact(async |txn| -> Tried<()> {
                txn.essential();
                for ino in (from..to).map(Ino) {
                    let Some(value) = txn.get(&key::inode(ino)).await? else {
                        txn.put(key::of(Tag::Purge, ino), []);
                        continue;
                    };
                    let mut inode = Inode::decode(ino, &value)?;
                    if inode.data == DataKind::Spread && !inode.has(marks::WRITING) {
                        inode.mark(marks::WRITING, true);
                        txn.put_inode(&inode)?;
                        txn.put(key::of(Tag::Writing, ino), []);
                    }
                }
                Ok(())
            })
            .await?;
            from = to;
        }
        self.marked.store(end, Ordering::SeqCst);
        if known == Some(end) {
            return Ok(());
        }
        self.put_marked(end).await?;
        self.sync().await
    }

    pub(super) async fn writing_of(&self, ino: Ino) -> Result<Writing> {
        let value = self.kv.get(&key::of(Tag::Writing, ino)).await.map_err(KvError::errno)?;
        Ok(value.map(|value| Writing::decode(&value)).unwrap_or_default())
    }

    /// Whoever wrote has told all and writes no more. A file that is gone is nobody's any more. The
    /// mark stays, and false is returned, if the file was cut and not [`Kvfs::holed`].
    pub async fn end_writing(&self, ino: Ino) -> Result<bool> {
        let _guard = self.range_locks.exclusive(ino).await;
        self.transact(async |txn| {
            txn.essential();
            let Some(value) = txn.get(&key::inode(ino)).await? else { return Ok(true) };
            let mut inode = Inode::decode(ino, &value)?;
            if inode.has(marks::WRITING) {
                let key = key::of(Tag::Writing, ino);
                let known = txn.get(&key).await?.map(|value| Writing::decode(&value));
                if known.is_some_and(|known| known.cut.is_some()) {
                    return Ok(false);
                }
                inode.mark(marks::WRITING, false);
                txn.put_inode(&inode)?;
                txn.delete(key);
            }
            Ok(true)
        })
        .await
    }

    /// The last commits may be lost, and with them what writers told: of none it is believed that
    /// it told all it has answered.
    pub async fn doubt_writers(&self) -> Result<()> {
        let mut after = Ino(0);
        loop {
            let some = self.writing(after, MOST).await?;
            let Some(last) = some.last() else { return Ok(()) };
            after = *last;
            self.transact(async |txn| -> Tried<()> {
                txn.essential();
                for ino in &some {
                    let key = key::of(Tag::Writing, *ino);
                    let known = txn.get(&key).await?.map(|value| Writing::decode(&value));
                    if let Some(known) = known.filter(|known| known.tells) {
                        txn.put(key, Writing { tells: false, ..known }.encode());
                    }
                }
                Ok(())
            })
            .await?;
        }
    }

    /// Those who have copies of a file with these ranks, a bit for each, lack what is written from
    /// now on, or was written since they were left out; none: all have all. Durable before it
    /// returns. `ESTALE` if the file is gone.
    pub async fn set_lacking(&self, ino: Ino, ranks: u16) -> Result<()> {
        self.lies(ino, None, ranks).await
    }

    /// The bytes of a file, which lay so, lie on these nodes from now on, of which these ranks lack
    /// something. Durable before it returns. `ESTALE` if the file is gone, `EAGAIN` if it lies
    /// otherwise by now.
    pub async fn moved(&self, lay: &LaidOut, members: &[u16], lacking: u16) -> Result<()> {
        self.lies(lay.ino, Some((lay, members)), lacking).await
    }

    async fn lies(&self, ino: Ino, moved: Option<(&LaidOut, &[u16])>, ranks: u16) -> Result<()> {
        {
            let _guard = self.range_locks.exclusive(ino).await;
            self.transact(async |txn| -> Tried<()> {
                txn.essential();
                let mut inode = spread_inode(txn, ino).await?;
                inode.mark(marks::LACKING, ranks != 0);
                if let Some((lay, members)) = moved {
                    if (inode.layout, &inode.members) != (Some(lay.layout), &lay.members) {
                        return Err(Errno::EAGAIN.into());
                    }
                    members.clone_into(&mut inode.members);
                }
                txn.put_inode(&inode)?;
                let key = key::of(Tag::Lacking, ino);
                match ranks {
                    0 => txn.delete(key),
                    _ => txn.put(key, ranks.to_le_bytes()),
                }
                Ok(())
            })
            .await?;
        }
        self.sync().await
    }

    /// Files with numbers above `after` of which copies lack something, at most `most` of them, in
    /// order; none: there are no more.
    pub async fn lacking(&self, after: Ino, most: usize) -> Result<Vec<Ino>> {
        Ok(self.numbers(Tag::Lacking, after.0, most).await?.into_iter().map(Ino).collect())
    }

    pub(super) async fn lacking_of(&self, ino: Ino) -> Result<u16> {
        let value = self.kv.get(&key::of(Tag::Lacking, ino)).await.map_err(KvError::errno)?;
        let ranks = value.and_then(|value| value.first_chunk().map(|raw| u16::from_le_bytes(*raw)));
        ranks.ok_or(Errno::EUCLEAN)
    }

    /// Inodes with numbers above `after` that have a layout, files and directories, with it; and up
    /// to where that is all, none: to the end. So many inodes are looked at.
    pub async fn laid_out(&self, after: Ino, look: usize) -> Result<(Vec<LaidOut>, Option<Ino>)> {
        let (first, look) = (key::inode(after), look.min(MOST));
        let found = self.kv.scan(&[Tag::Inode as u8], Some(&first), look).await;
        let (mut some, mut last) = (Vec::new(), None);
        for (pair, value) in found.map_err(KvError::errno)? {
            let ino = Ino(key::number(&pair).ok_or(Errno::EUCLEAN)?);
            last = Some(ino);
            let inode = Inode::decode(ino, &value)?;
            if let Some(layout) = inode.layout {
                let is_file = inode.data == DataKind::Spread;
                some.push(LaidOut { ino, layout, members: inode.members, is_file });
            }
        }
        Ok((some, last))
    }

    /// Inodes of all kinds with numbers above `after`, at most `most` of them, in order, also those
    /// whose record is damaged; none: there are no more.
    pub async fn inodes(&self, after: Ino, most: usize) -> Result<Vec<Ino>> {
        Ok(self.numbers(Tag::Inode, after.0, most).await?.into_iter().map(Ino).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_put_also_by_the_version_before() {
        for tells in [false, true] {
            for cut in [None, Some(0), Some(u64::MAX)] {
                let record = Writing { tells, writer: 3 << 32 | 7, cut };
                assert_eq!(Writing::decode(&record.encode()), record);
            }
        }
        assert_eq!(Writing::decode(&[]), Writing::default());
        let cut = Writing { cut: Some(258), ..Writing::default() };
        assert_eq!(Writing::decode(&258u64.to_le_bytes()), cut);
        let whole = Writing { tells: true, writer: 7, cut: Some(8) }.encode();
        // Whatever is there is read as something.
        (0..whole.len()).for_each(|at| _ = Writing::decode(&whole[..at]));
    }
}
