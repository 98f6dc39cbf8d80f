//! The header: what the host laid out, read once by the DPU side at attach.

use super::{
    CacheError, HEADER_LEN, MAGIC, PAGE_SIZE_MAX, PAGE_SIZE_MIN, RECORD_WAYS, RECORDS_MAX,
    TOTAL_MAX, VERSION, WAYS_MAX,
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

/// The header's fixed fields. `free` and `hand` are words of their own
/// ([`header_at`](super::header_at)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
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
}

impl Header {
    /// Bytes of the fields: the rest of the header is zero.
    pub const LEN: usize = 48;

    /// Reads and checks the fields. Whether the cache lies within its area is the geometry's to
    /// say.
    ///
    /// # Errors
    /// See [`CacheError`].
    pub fn parse(bytes: &[u8; Header::LEN]) -> Result<Header, CacheError> {
        if u32_at(bytes, 0) != MAGIC || u32_at(bytes, 4) != VERSION {
            return Err(CacheError::Magic);
        }
        let mode = match u32_at(bytes, 12) {
            0 => CacheMode::Read,
            1 => CacheMode::Write,
            _ => return Err(CacheError::Shape),
        };
        let header = Header {
            page_size: u32_at(bytes, 8),
            mode,
            total: u64_at(bytes, 16),
            ways: u32_at(bytes, 32),
            records: u32_at(bytes, 36),
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
        put(&mut out, 4, &VERSION.to_le_bytes());
        put(&mut out, 8, &self.page_size.to_le_bytes());
        put(&mut out, 12, &(self.mode as u32).to_le_bytes());
        put(&mut out, 16, &self.total.to_le_bytes());
        put(&mut out, 24, &self.total.to_le_bytes());
        put(&mut out, 32, &self.ways.to_le_bytes());
        put(&mut out, 36, &self.records.to_le_bytes());
        out
    }
}

const _: () = assert!((Header::LEN as u64) < HEADER_LEN);
