//! A medium in memory that fails, tears, delays and forgets on command, by seed.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use outboard_base::{Errno, Rng};

use super::{Buf, Medium};

/// Smallest unit a device writes whole, bytes.
const SECTOR: usize = 512;

/// What goes wrong from now on. All off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// One read in this many fails with `EIO`; 0 for none.
    pub read_fails: u64,
    /// One write in this many fails with `EIO`, having written a random part; 0 for none.
    pub write_fails: u64,
    /// The next flush fails, and with it every later one.
    pub flush_fails: bool,
    /// Each operation is pending for up to this many polls.
    pub delay_polls: u64,
    /// The medium refuses to grow beyond this many bytes; 0 for no limit.
    pub len_max: u64,
}

/// Which of the writes since the last flush a loss of power keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Each sector, or not.
    Sectors,
    /// Each write, or not, whatever came first; one is torn.
    Writes,
    /// The first ones; the one after them is torn.
    First,
}

impl Kept {
    /// All of them.
    pub const ALL: [Kept; 3] = [Kept::Sectors, Kept::Writes, Kept::First];
}

/// The medium.
pub struct MemMedium {
    state: Mutex<State>,
}

struct State {
    /// Everything written, by 4 KiB page; absent pages are zeros.
    pages: BTreeMap<u64, Box<[u8]>>,
    len: u64,
    /// Sectors written since the last flush, with what was there before, and the last write of
    /// each.
    unflushed: BTreeMap<u64, ([u8; SECTOR], u64)>,
    faults: Faults,
    rng: Rng,
    flush_failed: bool,
    counts: Counts,
}

/// How often each operation was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
}

const PAGE: u64 = super::ALIGN as u64;

impl State {
    fn sector(&self, sector: u64) -> [u8; SECTOR] {
        let mut out = [0; SECTOR];
        let at = sector * SECTOR as u64;
        let within = usize::try_from(at % PAGE).unwrap_or(0);
        if let Some(bytes) =
            self.pages.get(&(at / PAGE)).and_then(|p| p.get(within..within + SECTOR))
        {
            out.copy_from_slice(bytes);
        }
        out
    }

    fn set_sector(&mut self, sector: u64, bytes: &[u8]) {
        let at = sector * SECTOR as u64;
        let within = usize::try_from(at % PAGE).unwrap_or(0);
        let page =
            self.pages.entry(at / PAGE).or_insert_with(|| vec![0; super::ALIGN].into_boxed_slice());
        if let Some(to) = page.get_mut(within..within + SECTOR) {
            to.copy_from_slice(bytes);
        }
    }

    fn fails(&mut self, one_in: u64) -> bool {
        one_in != 0 && self.rng.chance(1, one_in)
    }

    fn within(&self, offset: u64, len: usize) -> bool {
        offset.is_multiple_of(PAGE)
            && offset.checked_add(len as u64).is_some_and(|end| end <= self.len)
    }

    fn read(&mut self, offset: u64, buf: &mut Buf) -> Result<(), Errno> {
        self.counts.reads += 1;
        let one_in = self.faults.read_fails;
        if !self.within(offset, buf.len()) || self.fails(one_in) {
            return Err(Errno::EIO);
        }
        for (to, page) in buf.chunks_mut(super::ALIGN).zip(offset / PAGE..) {
            match self.pages.get(&page) {
                Some(bytes) => to.copy_from_slice(bytes),
                None => to.fill(0),
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, buf: &Buf) -> Result<(), Errno> {
        self.counts.writes += 1;
        if !self.within(offset, buf.len()) {
            return Err(Errno::EIO);
        }
        let one_in = self.faults.write_fails;
        let torn = self.fails(one_in);
        for (bytes, sector) in buf.chunks(SECTOR).zip(offset / SECTOR as u64..) {
            if torn && self.rng.chance(1, 2) {
                continue;
            }
            let (before, write) = (self.sector(sector), self.counts.writes);
            self.unflushed.entry(sector).or_insert((before, write)).1 = write;
            self.set_sector(sector, bytes);
        }
        if torn { Err(Errno::EIO) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Errno> {
        self.counts.flushes += 1;
        if self.faults.flush_fails || self.flush_failed {
            self.flush_failed = true;
            return Err(Errno::EIO);
        }
        self.unflushed.clear();
        Ok(())
    }
}

impl MemMedium {
    /// An empty medium whose faults follow `seed`.
    #[must_use]
    pub fn new(seed: u64) -> MemMedium {
        MemMedium {
            state: Mutex::new(State {
                pages: BTreeMap::new(),
                len: 0,
                unflushed: BTreeMap::new(),
                faults: Faults::default(),
                rng: Rng::new(seed),
                flush_failed: false,
                counts: Counts::default(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Power loss: of the sectors written since the last flush a random subset is kept. Faults and
    /// a failed flush are forgotten.
    pub fn crash(&self) {
        self.crash_keeping(Kept::Sectors);
    }

    /// The same, of another subset. Of many sectors that are kept or not each by itself, hardly
    /// ever all of a long write are.
    pub fn crash_keeping(&self, kept: Kept) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let unflushed = std::mem::take(&mut state.unflushed);
        let writes: BTreeSet<u64> = unflushed.values().map(|(_, write)| *write).collect();
        let whole: BTreeSet<u64> = match kept {
            Kept::Sectors => BTreeSet::new(),
            Kept::Writes => writes.iter().copied().filter(|_| state.rng.chance(1, 2)).collect(),
            Kept::First => {
                let count = state.rng.below(writes.len() as u64 + 1);
                writes.iter().copied().take(usize::try_from(count).unwrap_or(0)).collect()
            }
        };
        // The first of those that are not kept is torn.
        let torn = writes.iter().copied().find(|write| !whole.contains(write));
        for (sector, (before, write)) in unflushed {
            let by_itself = kept == Kept::Sectors || Some(write) == torn;
            let stays = whole.contains(&write) || (by_itself && state.rng.chance(1, 2));
            if !stays {
                state.set_sector(sector, &before);
            }
        }
        state.faults = Faults::default();
        state.flush_failed = false;
    }

    /// Flips one bit of what is stored at `offset`.
    pub fn corrupt(&self, offset: u64) {
        let mut state = self.lock();
        let mut sector = state.sector(offset / SECTOR as u64);
        if let Some(byte) = sector.get_mut(usize::try_from(offset % SECTOR as u64).unwrap_or(0)) {
            *byte ^= 1;
        }
        state.set_sector(offset / SECTOR as u64, &sector);
    }

    /// How often each operation was done.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    async fn delay(&self) {
        let mut polls = {
            let mut state = self.lock();
            let max = state.faults.delay_polls;
            if max == 0 { 0 } else { state.rng.below(max + 1) }
        };
        poll_fn(move |cx| {
            if polls == 0 {
                return Poll::Ready(());
            }
            polls -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl Medium for MemMedium {
    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<(), Errno>, Buf) {
        self.delay().await;
        let result = self.lock().read(offset, &mut buf);
        (result, buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        self.delay().await;
        let result = self.lock().write(offset, &buf);
        (result, buf)
    }

    async fn flush(&self) -> Result<(), Errno> {
        self.delay().await;
        self.lock().flush()
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        self.delay().await;
        let mut state = self.lock();
        if state.faults.len_max != 0 && len > state.faults.len_max {
            return Err(Errno::ENOSPC);
        }
        state.len = state.len.max(len);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.lock().len
    }
}
