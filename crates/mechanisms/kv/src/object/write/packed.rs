//! Writing blocks packed, part by part: what lies in one index page.

use std::ops::Range;
use std::sync::atomic::Ordering;

use outboard_codec::lz4::Packer;

use super::Fresh;
use crate::object::Objects;
use crate::object::index::{Entry, SLOTS};
use crate::object::ledger::{Asks, Room, Taken};
use crate::object::pack::{Packed, Rest};
use crate::object::pool::Pool;
use crate::object::read::BLOCK_LEN;
use crate::{Kv, KvError};
use outboard_base::task::{join_all, yield_now};
use outboard_medium::{Buf, Medium};

/// Blocks of file of one index page that are written alike.
pub(super) struct Part {
    blocks: Range<u64>,
    /// Whether they have blocks of the medium to themselves, and give them back.
    whole: bool,
    /// `None` if they are not packed.
    packed: Option<Packed>,
}

/// `blocks`, cut where index pages end, and between those that have a block of the medium to
/// themselves and others.
fn cut(blocks: Range<u64>, is_whole: impl Fn(u64) -> bool) -> Vec<Part> {
    let kind = |at: u64| (at / SLOTS as u64, is_whole(at));
    let mut parts: Vec<Part> = Vec::new();
    for at in blocks {
        match parts.last_mut().filter(|part| kind(part.blocks.start) == kind(at)) {
            Some(part) => part.blocks.end = at + 1,
            None => parts.push(Part { blocks: at..at + 1, whole: is_whole(at), packed: None }),
        }
    }
    parts
}

impl Fresh<'_> {
    /// Packs the blocks, part by part; `None` if no part is worth it. A block that has one of the
    /// medium to itself stays so: it was promised it (`fallocate`), or was not worth packing
    /// before. Others get a turn between two parts: each takes up to a millisecond.
    pub(super) async fn pack(
        &self,
        pool: &Pool,
        is_whole: impl Fn(u64) -> bool,
    ) -> Option<Vec<Part>> {
        let mut parts = cut(self.blocks(), is_whole);
        let mut packer = Packer::default();
        let mut tried = false;
        for part in &mut parts {
            let count = part.blocks.end - part.blocks.start;
            if part.whole || count < 2 {
                continue;
            }
            if std::mem::replace(&mut tried, true) {
                yield_now().await;
            }
            let mut plain = pool.take(count);
            for (at, bytes) in part.blocks.clone().zip(plain.chunks_mut(BLOCK_LEN)) {
                self.fill(at, bytes);
            }
            let packed = Packed::new(&mut packer, &plain);
            pool.give(plain);
            part.packed = Some(packed).filter(Packed::is_worth_it);
        }
        parts.iter().any(|part| part.packed.is_some()).then_some(parts)
    }
}

impl<K: Kv, M: Medium> Objects<K, M> {
    /// Writes parts, packed or not, side by side.
    pub(super) async fn write_parts(
        &self,
        fresh: &Fresh<'_>,
        parts: &[Part],
        room: Room,
    ) -> Result<(Vec<Entry>, Taken), KvError> {
        let writes = parts.iter().map(|part| async move {
            match &part.packed {
                Some(packed) => self.write_packed(fresh, part, packed.rest(), room).await,
                None => self.write_blocks(fresh, part.blocks.clone(), !part.whole, room).await,
            }
        });
        let mut entries = Vec::new();
        let mut all: Option<Taken> = None;
        for written in join_all(writes.collect()).await {
            let (named, taken) = written?;
            entries.extend(named);
            all = Some(match all {
                Some(all) => all.and(taken),
                None => taken,
            });
        }
        all.map(|taken| (entries, taken)).ok_or(KvError::NoSpace)
    }

    /// Writes a packed part.
    async fn write_packed(
        &self,
        fresh: &Fresh<'_>,
        part: &Part,
        mut rest: Rest<'_>,
        room: Room,
    ) -> Result<(Vec<Entry>, Taken), KvError> {
        let mut entries = Vec::new();
        let mut bufs = Vec::new();
        let mut taken = self.take(rest.blocks(), Asks::Growth, room).await?;
        let mut runs = taken.runs.clone();
        // Once, unless space is in so many runs that what their ends leave free is missed.
        loop {
            for run in runs {
                let (laid, bytes) = rest.lay(run);
                entries.extend(laid);
                bufs.push((run, self.filled(bytes)));
            }
            if rest.blocks() == 0 {
                break;
            }
            let more = self.take(rest.blocks(), Asks::Growth, room).await?;
            runs = more.runs.clone();
            taken = taken.and(more);
        }
        let plain = entries.len() as u64 * super::BLOCK;
        self.packing.plain.fetch_add(plain, Ordering::Relaxed);
        let writes = bufs.into_iter().map(|(run, buf)| async move {
            let (result, buf) = self.put_run(run, buf).await;
            self.pool.give(buf);
            result
        });
        join_all(writes.collect()).await.into_iter().collect::<Result<(), KvError>>()?;
        for (at, entry) in part.blocks.clone().zip(&entries) {
            if !fresh.is_whole(at) {
                let mut bytes = self.pool.take(1);
                fresh.fill(at, &mut bytes);
                self.keep(*entry, bytes);
            }
        }
        Ok((entries, taken))
    }

    /// A buffer with `bytes`, and zeros to its end.
    fn filled(&self, bytes: &[u8]) -> Buf {
        let mut buf = self.pool.take(bytes.len().div_ceil(BLOCK_LEN) as u64);
        buf.resize(bytes.len());
        let (head, tail) = buf.split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        tail.fill(0);
        buf
    }
}
