//! Opening the file: what it is, and which pages have which slots.

use std::collections::BTreeMap;
use std::io;

use outboard_base::Errno;
use outboard_medium::Buf;

use super::super::places::{self, BLOCK, HEADS, Headed, LOST, Layout, Newest, PAIR};
use super::super::slots::Slots;
use super::super::wire::PAGE;
use crate::device::Device;

/// Slots that are looked at in one go.
const LOOK: u32 = 32;

/// Reads `len` bytes, by parts if they cannot be read at once: what is lost of them is
/// [`LOST`].
pub(super) async fn read_apart<D: Device>(
    device: &D,
    offset: u64,
    len: usize,
    part: usize,
) -> Result<Vec<u8>, Errno> {
    let error = match device.read(offset, len).await {
        Ok(bytes) => return Ok(bytes.to_vec()),
        Err(error) => error,
    };
    let mut all = Vec::with_capacity(len);
    let mut is_any = false;
    while all.len() < len {
        match device.read(offset + all.len() as u64, part).await {
            Ok(bytes) => {
                all.extend_from_slice(&bytes);
                is_any = true;
            }
            Err(_) => all.resize(all.len() + part, LOST),
        }
    }
    if is_any { Ok(all) } else { Err(error) }
}

/// A buffer of these bytes, as the device takes it.
pub(super) fn buf(bytes: &[u8]) -> Buf {
    let mut buf = Buf::zeroed(bytes.len());
    if let Some(to) = buf.get_mut(..bytes.len()) {
        to.copy_from_slice(bytes);
    }
    buf
}

/// What the slots of the file hold; it begins a file where there is none, and goes on with one of
/// the release before.
pub(super) async fn open<D: Device>(device: &D) -> io::Result<Slots> {
    let failed = |errno: Errno| io::Error::other(format!("the file of pages: {errno}"));
    let layout = opened_head(device).await?;
    let (mut slots, free) = find(device, layout).await.map_err(failed)?;
    slots.release(free);
    // From here on every version that can be read is one that stays.
    device.flush().await.map_err(failed)?;
    Ok(slots)
}

/// Which pages have which slots, and those that nobody has. Nothing is written.
pub(super) async fn find<D: Device>(
    device: &D,
    layout: Layout,
) -> Result<(Slots, Vec<u32>), Errno> {
    let mut slots = Slots::new(layout, device.size()?);
    let mut found = Found::default();
    for group in 0..slots.groups() {
        found.look(device, &mut slots, group).await?;
    }
    found.choose(device, &mut slots).await;
    Ok((slots, found.free))
}

async fn opened_head<D: Device>(device: &D) -> io::Result<Layout> {
    let failed = |errno: Errno| io::Error::other(format!("the file of pages: {errno}"));
    let blocks = read_apart(device, 0, HEADS, BLOCK).await.map_err(failed)?;
    let headed = places::headed(&blocks);
    let layout = match headed {
        Headed::Pages(layout) => layout,
        Headed::Nothing => Layout::NEW,
        Headed::Dense => Layout::behind(device.size().map_err(failed)?),
        Headed::Foreign => {
            let why = "the file holds something else than pages, or pages in the format of \
                       another release; name another data directory";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    };
    let head = places::head(layout);
    // The first decides what the file is, so it comes last.
    for (at, own) in [(BLOCK as u64, blocks.get(BLOCK..)), (0, blocks.get(..BLOCK))] {
        if own.is_some_and(|own| own == head) {
            continue;
        }
        match (device.write(at, buf(&head)).await, &headed) {
            (Ok(()), _) => {}
            (Err(error), Headed::Pages(_)) => {
                tracing::warn!(%error, at, "one of the two heads of the file is lost");
            }
            (Err(error), _) => return Err(failed(error)),
        }
    }
    // Groups are written where it says.
    if !matches!(headed, Headed::Pages(_)) {
        device.flush().await.map_err(failed)?;
    }
    Ok(layout)
}

/// What was found so far.
#[derive(Default)]
struct Found {
    free: Vec<u32>,
    /// Pages that were found in several slots, or that have a dense pair too.
    twice: BTreeMap<u32, Vec<u32>>,
}

impl Found {
    fn note(&mut self, slots: &mut Slots, slot: u32, page: u32, is_listed: bool) {
        let other = slots.found(slot, page, is_listed);
        if other.is_some() || slots.layout().is_dense(u64::from(page)) {
            let all = self.twice.entry(page).or_default();
            all.extend(other.filter(|other| !all.contains(other)));
            all.push(slot);
        }
    }

    /// Looks at a group: at its directory, and at the slots that are not named there.
    async fn look<D: Device>(
        &mut self,
        device: &D,
        slots: &mut Slots,
        group: u32,
    ) -> Result<(), Errno> {
        let (at, own) = (slots.layout().directory(group), slots.of_group(group));
        let read = device.read(at, BLOCK).await;
        let mut unnamed = Vec::new();
        match &read {
            Ok(block) => {
                // What it names beyond the end of the file was never flushed.
                for (slot, page) in places::entries(group, block) {
                    match page {
                        _ if !own.contains(&slot) => {}
                        Some(page) => self.note(slots, slot, page, true),
                        None => unnamed.push(slot),
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, group, "a directory is lost; its pages are looked for");
                unnamed.extend(own);
            }
        }
        for some in unnamed.chunk_by(|a, b| a / LOOK == b / LOOK) {
            self.look_at(device, slots, some, read.is_ok()).await?;
        }
        Ok(())
    }

    /// Looks at what lies in some neighbouring slots.
    async fn look_at<D: Device>(
        &mut self,
        device: &D,
        slots: &mut Slots,
        some: &[u32],
        is_listed: bool,
    ) -> Result<(), Errno> {
        let (Some(&first), Some(&last)) = (some.first(), some.last()) else { return Ok(()) };
        let at = slots.layout().slot(first);
        let len = (usize::try_from(last - first).unwrap_or(0) + 1) * PAIR;
        let bytes = read_apart(device, at, len, PAGE).await?;
        for (slot, pair) in (first..=last).zip(bytes.chunks_exact(PAIR)) {
            if !some.contains(&slot) {
                continue;
            }
            match places::owner(pair) {
                Some(page) => self.note(slots, slot, page, false),
                // What cannot be read today may be somebody's tomorrow.
                None if is_listed && !places::is_lost(pair) => self.free.push(slot),
                None => tracing::warn!(slot, "a slot cannot be read, and is left alone"),
            }
        }
        Ok(())
    }

    /// Of the slots of one page that with the newest version counts.
    async fn choose<D: Device>(&self, device: &D, slots: &mut Slots) {
        let layout = slots.layout();
        for (page, all) in &self.twice {
            let number = u64::from(*page);
            let mut newest = (None, None);
            let dense = layout.is_dense(number).then_some(None);
            for slot in dense.into_iter().chain(all.iter().copied().map(Some)) {
                let at = slot.map_or_else(|| Layout::dense(number), |slot| layout.slot(slot));
                let pair = read_apart(device, at, PAIR, PAGE).await.unwrap_or_default();
                let lsn = match places::newest(&pair, number).0 {
                    Newest::Whole(_, lsn) => Some(lsn),
                    Newest::None | Newest::Damaged => None,
                };
                if lsn >= newest.0 {
                    newest = (lsn, slot);
                }
            }
            slots.prefer(*page, newest.1);
        }
    }
}
