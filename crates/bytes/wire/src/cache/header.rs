//! The header: what the host laid out, read once by the DPU side at attach.

use super::{
    CacheError, HEADER_LEN, MAGIC, PAGE_SIZE_MAX, PAGE_SIZE_MIN, RECORD_WAYS, RECORDS_MAX, TALLIES,
    TALLY_LEN, TOTAL_MAX, VERSION, VERSION_UNCHAINED, WAYS_MAX, header_at, tally_at,
};
use crate::nvmefs::{put, u32_at, u64_at};

/// What a cache is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CacheMode {
    /// Pages are read only; every write goes through.
    Read = 0,
    /// Pages are read and written.
    Write = 1,
}

/// How its host wants a cache managed: numbers of `outboard_cache::policy`'s catalogues. 0 leaves
/// the choice to the DPU side, and so does a number it does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Which page makes room.
    pub replace: u8,
    /// What is read ahead.
    pub prefetch: u8,
    /// What is written back before somebody asks.
    pub flush: u8,
    /// Pages that may be dirty, of 100.
    pub dirty: u8,
}

/// What a host counted, all tallies together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    /// Reads answered from the cache.
    pub hits: u64,
    /// Reads of files that may be cached, sent on.
    pub misses: u64,
    /// Writes taken by the cache.
    pub writes: u64,
    /// Writes to files that may be cached, sent on.
    pub through: u64,
}

impl Tallied {
    /// Adds the tallies up. Any bytes are some counts: nothing is decided by them.
    #[must_use]
    pub fn parse(bytes: &[u8; TALLIES * TALLY_LEN]) -> Tallied {
        let mut sum = Tallied::default();
        for tally in bytes.as_chunks::<TALLY_LEN>().0 {
            let at = |field: u64| u64_at(tally, usize::try_from(field).unwrap_or(0));
            sum.hits = sum.hits.wrapping_add(at(tally_at::HITS));
            sum.misses = sum.misses.wrapping_add(at(tally_at::MISSES));
            sum.writes = sum.writes.wrapping_add(at(tally_at::WRITES));
            sum.through = sum.through.wrapping_add(at(tally_at::THROUGH));
        }
        sum
    }
}

/// The header's fixed fields. `free` and `hand` are words of their own
/// ([`header_at`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether its host chains the pages it makes: not in [`VERSION_UNCHAINED`].
    pub chained: bool,
    /// Bytes of a page.
    pub page_size: u32,
    /// What the cache is for.
    pub mode: CacheMode,
    /// Pages.
    pub total: u64,
    /// Entries of a bucket.
    pub ways: u32,
    /// Records.
    pub records: u32,
    /// How it is to be managed.
    pub wishes: Wishes,
}

impl Header {
    /// Bytes of the fields: behind them come the tallies.
    pub const LEN: usize = 56;

    /// Reads and checks the fields. Whether the cache lies within its area is the geometry's to
    /// say.
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn parse(bytes: &[u8; Header::LEN]) -> Result<Header, CacheError> {
        let chained = match (u32_at(bytes, 0), u32_at(bytes, 4)) {
            (MAGIC, VERSION) => true,
            (MAGIC, VERSION_UNCHAINED) => false,
            _ => return Err(CacheError::Magic),
        };
        let mode = match u32_at(bytes, 12) {
            0 => CacheMode::Read,
            1 => CacheMode::Write,
            _ => return Err(CacheError::Shape),
        };
        let [replace, prefetch, flush, dirty] = u32_at(bytes, 48).to_le_bytes();
        let header = Header {
            chained,
            page_size: u32_at(bytes, 8),
            mode,
            total: u64_at(bytes, 16),
            ways: u32_at(bytes, 32),
            records: u32_at(bytes, 36),
            wishes: Wishes { replace, prefetch, flush, dirty },
        };
        header.check().map(|()| header)
    }

    /// Whether every field is in its range.
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn check(&self) -> Result<(), CacheError> {
        if !self.page_size.is_power_of_two()
            || !(PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&self.page_size)
        {
            return Err(CacheError::PageSize);
        }
        let ways = (1..=WAYS_MAX).contains(&self.ways);
        let records = (RECORD_WAYS..=RECORDS_MAX).contains(&self.records)
            && self.records.is_multiple_of(RECORD_WAYS);
        let total = ways
            && (1..=TOTAL_MAX).contains(&self.total)
            && self.total.is_multiple_of(u64::from(self.ways));
        if records && total { Ok(()) } else { Err(CacheError::Shape) }
    }

    /// The fields' bytes; all pages are free and the hand is at the first.
    #[must_use]
    pub fn emit(&self) -> [u8; Header::LEN] {
        let mut out = [0; Header::LEN];
        put(&mut out, 0, &MAGIC.to_le_bytes());
        let version = if self.chained { VERSION } else { VERSION_UNCHAINED };
        put(&mut out, 4, &version.to_le_bytes());
        put(&mut out, 8, &self.page_size.to_le_bytes());
        put(&mut out, 12, &(self.mode as u32).to_le_bytes());
        put(&mut out, 16, &self.total.to_le_bytes());
        put(&mut out, 24, &self.total.to_le_bytes());
        put(&mut out, 32, &self.ways.to_le_bytes());
        put(&mut out, 36, &self.records.to_le_bytes());
        let Wishes { replace, prefetch, flush, dirty } = self.wishes;
        put(&mut out, 48, &[replace, prefetch, flush, dirty]);
        out
    }
}

const _: () = {
    let tallies_end = header_at::TALLIES + (TALLIES * TALLY_LEN) as u64;
    assert!(Header::LEN as u64 <= header_at::TALLIES && tallies_end <= HEADER_LEN);
};
