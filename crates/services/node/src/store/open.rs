//! Opening a store: what counts of what a crash has left.
//!
//! The newest header names the checkpoint; the log behind it counts up to its first block that is
//! not there. A loss of power may take that block, and others, only if no flush followed it: if a
//! later block says that one did, the store is damaged. Of what was not flushed the data may be
//! missing, too. So the strips that the last records touch are taken as the newest of these records
//! left them whose grains are all there. (What a record replaced may lie under other data already,
//! if a flush came between. That is no loss, as the flush made the record durable; so a strip is
//! looked at as a whole, newest first, and not record by record.)

use std::collections::BTreeMap;

use outboard_base::Errno;
use outboard_base::planted::{Fault, is_planted};
use outboard_codec::crc32c;
use outboard_medium::{Buf, Medium};
use outboard_wire::shared::Reason;

use super::format::{self, BLOCK, Bad, CHUNK, HEADERS, Header, LogHead, TRUSTED};
use super::index::{Entry, GRAIN, Grain, Index, Strip};
use super::log::Log;
use super::record::Record;
use super::space::{SLOTS_MIN, Space};
use super::{GRAIN_LEN, OpenError, Shared, State, Store, StoreOptions};

/// The header that counts.
struct Found {
    header: Header,
    crc: u32,
    /// Whether the other copy says something else.
    is_doubtful: bool,
}

/// What the log says.
struct Tail {
    /// The records of each block.
    blocks: Vec<Vec<Record>>,
    /// Blocks of these that a flush has made durable, at least.
    durable: usize,
    /// Whether nothing of this epoch was written.
    is_new: bool,
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> OpenError {
        OpenError::Io(errno)
    }
}

fn io(reason: Reason) -> OpenError {
    OpenError::Io(if reason == Reason::Full { Errno::ENOSPC } else { Errno::EIO })
}

async fn read<M: Medium>(medium: &M, at: u64, len: usize) -> Result<Buf, Errno> {
    let (result, buf) = medium.read(at, Buf::zeroed(len)).await;
    result.map(|()| buf)
}

impl<M: Medium> Store<M> {
    /// Opens a store, or makes one where both media are new.
    ///
    /// # Errors
    /// It belongs to somebody else, is damaged, or a medium failed.
    pub async fn open(log: M, data: M, options: StoreOptions) -> Result<Store<M>, OpenError> {
        if options.capacity / GRAIN < SLOTS_MIN || options.capacity / GRAIN > u64::from(u32::MAX) {
            return Err(OpenError::Options("a capacity of 128 KiB to 32 TiB"));
        }
        if options.checkpoint_bytes > 1 << 40 {
            return Err(OpenError::Options("a checkpoint after at most 1 TiB of log"));
        }
        let Some(found) = found(&log).await? else {
            if !data.is_empty() {
                return Err(OpenError::Damaged("there is data, and no log"));
            }
            let state = State {
                log: Log { half: 1, broken: true, ..Log::default() },
                space: Space::new(options.capacity),
                ..State::default()
            };
            return Store::opened(log, data, options, state, true).await;
        };
        if found.header.cluster != options.cluster {
            return Err(OpenError::Cluster(found.header.cluster));
        }
        if found.header.node != options.node {
            return Err(OpenError::Node(found.header.node));
        }
        let index = checkpoint(&log, &found.header).await?;
        let tail = tail(&log, &found).await?;
        let has_news = found.is_doubtful || !tail.is_new;
        let mut state = State {
            log: begun(&found),
            header: found.header,
            format: found.header.format,
            trusted: (found.header.format >= TRUSTED).then_some(found.header.trusted),
            doubtful: found.is_doubtful,
            index,
            ..State::default()
        };
        state.counts.dropped = replay(&mut state.index, &data, tail).await?;
        state.space = space(&state.index, options.capacity)?;
        Store::opened(log, data, options, state, has_news).await
    }

    /// Nothing is added to what a crash has left: if anything was, a checkpoint comes first.
    async fn opened(
        log: M,
        data: M,
        options: StoreOptions,
        state: State,
        has_news: bool,
    ) -> Result<Store<M>, OpenError> {
        let buried = |(object, entry): (&u64, &Entry)| Some((entry.buried()?, *object));
        let tombs = state.index.objects.iter().filter_map(buried).collect();
        let shared = Shared::new(State { tombs, ..state });
        let (leader, flusher, growing) = Default::default();
        let locks = outboard_base::task::RangeLocks::default();
        let store = Store { log, data, options, shared, locks, leader, flusher, growing };
        if has_news {
            store.checkpoint().await.map_err(io)?;
        }
        Ok(store)
    }
}

/// The newest header; nothing on a new medium.
async fn found<M: Medium>(log: &M) -> Result<Option<Found>, OpenError> {
    if log.len() < HEADERS {
        return Ok(None);
    }
    let front = read(log, 0, 2 * BLOCK).await?;
    let copies: Vec<_> = front.chunks(BLOCK).map(Header::parse).collect();
    let newest = copies.iter().flatten().max_by_key(|(header, _)| header.epoch);
    let Some((header, crc)) = newest.copied() else {
        if let Some(Err(Bad::Version(version))) = copies.first() {
            return Err(OpenError::Format(*version));
        }
        let is_new = front.iter().all(|byte| *byte == 0);
        return if is_new { Ok(None) } else { Err(OpenError::Damaged("no header is whole")) };
    };
    let first = copies.first();
    if first.is_some_and(Result::is_err) && is_late(log, &header).await? {
        return Err(OpenError::Damaged("the newest header is not whole"));
    }
    let is_doubtful = copies.iter().any(|copy| *copy != Ok((header, crc)));
    Ok(Some(Found { header, crc, is_doubtful }))
}

/// Whether the other half has a later checkpoint than this header names. Its own header came first,
/// then the other copy: where the first cannot be read, that one may be too old.
async fn is_late<M: Medium>(log: &M, header: &Header) -> Result<bool, OpenError> {
    let at = format::place(1 - header.half.min(1), 0);
    if at + BLOCK as u64 > log.len() {
        return Ok(false);
    }
    let block = read(log, at, BLOCK).await?;
    Ok(format::epoch(&block).is_some_and(|epoch| epoch > header.epoch))
}

/// The objects of the checkpoint that a header names.
async fn checkpoint<M: Medium>(log: &M, header: &Header) -> Result<Index, OpenError> {
    let damaged = OpenError::Damaged("its checkpoint is not whole");
    let mut objects = Vec::new();
    for piece in 0..header.pieces {
        let at = format::place(header.half, u64::from(piece) * CHUNK);
        let room = log.len().checked_sub(at).ok_or(damaged)?.min(CHUNK);
        let buf = read(log, at, usize::try_from(room).map_err(|_| damaged)?).await?;
        let bytes = format::parse_piece(&buf, header.epoch, piece).map_err(|_| damaged)?;
        objects.extend_from_slice(bytes);
    }
    if objects.len() as u64 != header.bytes {
        return Err(damaged);
    }
    Index::parse(&objects).map_err(|_| OpenError::Damaged("its checkpoint says what cannot be"))
}

/// The log of a checkpoint to which nothing was added.
fn begun(found: &Found) -> Log {
    let start = found.header.log_at();
    Log {
        half: found.header.half,
        epoch: found.header.epoch,
        format: found.header.format,
        tried: found.header.epoch,
        start,
        end: start + found.header.limit,
        before: found.crc,
        ..Log::default()
    }
}

async fn tail<M: Medium>(log: &M, found: &Found) -> Result<Tail, OpenError> {
    let Log { half, epoch, start, end, mut before, .. } = begun(found);
    let (mut blocks, mut number, mut cut) = (Vec::new(), 0u32, None);
    let (mut at, mut durable, mut is_new) = (start, 0, true);
    while at < end {
        let place = format::place(half, at);
        let len = (CHUNK - at % CHUNK).min(end - at).min(log.len().saturating_sub(place));
        let Some(len) = usize::try_from(len).ok().filter(|len| *len >= BLOCK) else { break };
        let buf = read(log, place, len).await?;
        for block in buf.chunks(BLOCK) {
            let parsed = LogHead::parse(block).ok();
            let ours = parsed.filter(|(head, ..)| (head.epoch, head.index) == (epoch, number));
            if let Some((head, records, crc)) = ours {
                (is_new, durable) = (false, durable.max(head.durable));
                if is_planted(Fault::Chain) || (cut.is_none() && head.before == before) {
                    let records = format::records(records);
                    let bad = OpenError::Damaged("a record says what cannot be");
                    blocks.push(records.map_err(|_| bad)?);
                    before = crc;
                    number += 1;
                    continue;
                }
            }
            cut.get_or_insert(number);
            number += 1;
        }
        at += buf.len() as u64;
    }
    if durable > cut.unwrap_or(number) {
        return Err(OpenError::Damaged("a part of the log is gone that was durable"));
    }
    Ok(Tail { blocks, durable: usize::try_from(durable).unwrap_or(usize::MAX), is_new })
}

/// What a strip was after each of the last records that touched it; before them first.
type Histories = BTreeMap<(u64, u64), Vec<Option<Strip>>>;

/// Does what the log says; how many changes of strips were not believed.
async fn replay<M: Medium>(index: &mut Index, data: &M, tail: Tail) -> Result<u64, OpenError> {
    let mut histories = Histories::new();
    for (number, records) in tail.blocks.iter().enumerate() {
        for record in records {
            let is_sure = number < tail.durable;
            let touched = if is_sure { Vec::new() } else { index.touched(record) };
            for strip in &touched {
                let before = || vec![index.strip(*strip).cloned()];
                histories.entry(*strip).or_insert_with(before);
            }
            let bad = OpenError::Damaged("a record says what cannot be");
            index.apply(record).map_err(|_| bad)?;
            for strip in &touched {
                let after = index.strip(*strip).cloned();
                histories.entry(*strip).or_default().push(after);
            }
        }
    }
    let (mut known, mut dropped) = (BTreeMap::new(), 0);
    for (strip, mut states) in histories {
        let before: Vec<Grain> = states.first().iter().flat_map(|strip| some(strip)).collect();
        while states.len() > 1
            && let Some(last) = states.last()
        {
            if is_planted(Fault::Unchecked)
                || are_there(data, some(last).filter(|grain| !before.contains(grain)), &mut known)
                    .await
            {
                break;
            }
            states.pop();
            dropped += 1;
        }
        index.restore(strip, states.pop().flatten());
    }
    Ok(dropped)
}

fn some(strip: &Option<Strip>) -> impl Iterator<Item = Grain> {
    strip.iter().flat_map(Strip::some)
}

/// Whether all these grains are what their records say. One that cannot be read proves nothing: it
/// is believed, and whoever reads it hears so.
async fn are_there<M: Medium>(
    data: &M,
    grains: impl Iterator<Item = Grain>,
    known: &mut BTreeMap<Grain, bool>,
) -> bool {
    for grain in grains {
        let is_there = match known.get(&grain) {
            Some(is_there) => *is_there,
            None => {
                let at = u64::from(grain.slot) * GRAIN;
                at + GRAIN <= data.len()
                    && read(data, at, GRAIN_LEN).await.map_or(true, |buf| crc32c(&buf) == grain.crc)
            }
        };
        known.insert(grain, is_there);
        if !is_there {
            return false;
        }
    }
    true
}

fn space(index: &Index, capacity: u64) -> Result<Space, OpenError> {
    let mut space = Space::new(capacity);
    let strips = index.objects.values().flat_map(|entry| entry.strips.values());
    for grain in strips.flat_map(Strip::some) {
        if !space.mark(grain.slot) {
            let is_outside = u64::from(grain.slot) * GRAIN + GRAIN > space.capacity();
            return Err(if is_outside {
                OpenError::Options("a capacity that holds what is there")
            } else {
                OpenError::Damaged("two grains lie in one place")
            });
        }
    }
    let aside: u64 = index.objects.values().map(|entry| entry.aside).sum();
    space.promised(i64::try_from(aside).unwrap_or(i64::MAX));
    Ok(space)
}
