//! From a fetched entry to a command: locating header and data by PRP.

use std::sync::Arc;

use outboard_wire::nvmefs::{Extent, QueueError, Sqe, prp};

use crate::dma::{Dma, DmaError};
use crate::queue::{Cid, Command, CommandId, Parts, each_range};
use outboard_base::ledger::Kind;

/// Ranges closer than this are fetched together: the padding that aligns a list before its header.
const GAP: u64 = 8;
/// Most ranges of one locate: header, write list, read list.
const RANGES: usize = 3;

/// Fetches header and lists of a checked entry and resolves its streams.
///
/// # Errors
/// What the completion must say.
pub(super) fn admit(
    dma: &Arc<dyn Dma>,
    sqe: &Sqe,
    mut parts: Parts,
    scratch: &mut Vec<u8>,
) -> Result<Command, QueueError> {
    let region_len = dma.region_len();
    let wh_len = u32::from(sqe.wh_len);
    let write_list = prp::list_of(sqe.write, sqe.write_len, region_len)?;
    let read_list = prp::list_of(sqe.read, sqe.read_len, region_len)?;
    let header = prp::first_extent(sqe.write, wh_len, region_len)?;
    let wanted = [header, write_list, read_list];
    let at = fetch(dma.as_ref(), wanted, scratch).map_err(|_| QueueError::TransferFailed)?;
    let bytes_of = |i: usize| -> &[u8] {
        let start = at.get(i).copied().unwrap_or(0);
        let len =
            wanted.get(i).copied().flatten().map_or(0, |e| usize::try_from(e.len).unwrap_or(0));
        scratch.get(start..start + len).unwrap_or_default()
    };
    prp::walk(sqe.write, sqe.write_len, bytes_of(1), region_len, &mut parts.write)?;
    prp::walk(sqe.read, sqe.read_len, bytes_of(2), region_len, &mut parts.read)?;
    parts.header.extend_from_slice(bytes_of(0));
    fetch_rest_of_header(dma.as_ref(), &mut parts, usize::from(sqe.wh_len))
        .map_err(|_| QueueError::TransferFailed)?;
    Ok(Command {
        id: CommandId { cid: Cid(sqe.cid), tag: sqe.tag },
        dispatch: sqe.dispatch,
        parts,
        header_len: wh_len,
        write_len: sqe.write_data_len(),
        answer_len: 0,
        reply_room: sqe.rh_len,
        read_len: sqe.read_data_len(),
        dma: Arc::clone(dma),
    })
}

/// Fetches up to three ranges with as few DMAs as there are contiguous runs. Returns where each
/// range's bytes begin in `scratch`.
fn fetch(
    dma: &dyn Dma,
    wanted: [Option<Extent>; RANGES],
    scratch: &mut Vec<u8>,
) -> Result<[usize; RANGES], DmaError> {
    let mut order = [0, 1, 2];
    let start_of = |i: usize| wanted.get(i).copied().flatten().map_or(u64::MAX, |extent| extent.at);
    order.sort_unstable_by_key(|i| start_of(*i));
    let mut at = [0; RANGES];
    scratch.clear();
    let mut run: Option<Extent> = None;
    for i in order {
        let Some(extent) = wanted.get(i).copied().flatten() else { continue };
        run = match run {
            Some(open) if extent.at < open.end() + GAP => {
                put_at(&mut at, i, scratch.len() + usize_of(extent.at - open.at));
                let end = open.end().max(extent.end());
                Some(Extent { at: open.at, len: u32::try_from(end - open.at).unwrap_or(open.len) })
            }
            _ => {
                fetch_run(dma, run, scratch)?;
                put_at(&mut at, i, scratch.len());
                Some(extent)
            }
        };
    }
    fetch_run(dma, run, scratch)?;
    Ok(at)
}

fn put_at(at: &mut [usize; RANGES], i: usize, value: usize) {
    if let Some(place) = at.get_mut(i) {
        *place = value;
    }
}

fn usize_of(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn fetch_run(dma: &dyn Dma, run: Option<Extent>, scratch: &mut Vec<u8>) -> Result<(), DmaError> {
    let Some(run) = run else { return Ok(()) };
    let from = scratch.len();
    scratch.resize(from + usize_of(u64::from(run.len)), 0);
    dma.read(Kind::Locate, run.at, scratch.get_mut(from..).unwrap_or_default())
}

/// A header that does not end in its first page goes on in the pages of the stream.
fn fetch_rest_of_header(dma: &dyn Dma, parts: &mut Parts, len: usize) -> Result<(), DmaError> {
    let have = parts.header.len();
    if have >= len {
        return Ok(());
    }
    parts.header.resize(len, 0);
    let mut rest = parts.header.get_mut(have..).unwrap_or_default();
    each_range(&parts.write, have as u64, len - have, |at, part| {
        let (now, behind) =
            std::mem::take(&mut rest).split_at_mut_checked(part).unwrap_or_default();
        rest = behind;
        dma.read(Kind::Locate, at, now)
    })
}
