//! The hybrid cache: the bytes both sides work on at once (DPC 3.3, rows C8, C9 and C11).
//!
//! ```text
//! header   4096 bytes         | magic 0 | version 4 | page size 8 | mode 12 | total 16 | free 24 |
//!                             | ways 32 | records 36 | 0 u64 40 | wishes 48 | 0 ...              |
//!                             | tallies 512: 8 x 64 bytes | 0 ...                                |
//! records  records x 64       sets of 4 by the inode's hash
//! entries  total x 32         buckets of `ways` entries
//! pages    total x page size  from the next multiple of 4096; entry i is of page i
//!
//! record   0 word | 8 inode | 16 size | 24 mtime | 32 credit | 40 dirtied | 48 chain | 52 0
//! entry    0 word | 8 next u32 | 12 0 u32 | 16 lpn | 24 inode
//! wishes   0 replace u8 | 1 prefetch u8 | 2 flush u8 | 3 dirty u8 | 4 0 u32
//! tally    0 hits | 8 misses | 16 writes | 24 through | 32 0 ...
//! ```
//!
//! Little-endian. A word says at once who uses a page and what became of it; see [`Word`] for the
//! steps both sides may take on one. What protocol they follow is drawn in
//! `docs/internals/cache.md`; where things lie for a length is `outboard_cache::geometry`.

mod entry;
mod header;
mod record;

pub use entry::{Entry, Lock, Status, Word};
pub use header::{CacheMode, Header, Tallied, Wishes};
pub use record::{Dirtied, Grant, GrantWord, Record};

use outboard_base::limits::{FILE_SIZE_MAX, PAGE};

/// First word of a cache: "OBHC".
pub const MAGIC: u32 = 0x4348_424F;
/// Version of this layout.
pub const VERSION: u32 = 3;
/// The version before it: `next` says nothing, and neither `chain` nor the tag of `dirtied` is
/// kept. A cache of it is managed without them.
pub const VERSION_UNCHAINED: u32 = 2;

/// Bytes before the records.
pub const HEADER_LEN: u64 = PAGE as u64;
/// Bytes of a record.
pub const RECORD_LEN: usize = 64;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 32;

/// Smallest page, bytes.
pub const PAGE_SIZE_MIN: u32 = 4 << 10;
/// Largest page, bytes.
pub const PAGE_SIZE_MAX: u32 = 64 << 10;
/// Page size unless told otherwise: a block of a kv volume, so that a flush never has to read.
pub const PAGE_SIZE_DEFAULT: u32 = 8 << 10;
/// Entries of a bucket unless told otherwise.
pub const WAYS_DEFAULT: u32 = 8;
/// Most entries of a bucket: it is read in one piece of at most 512 bytes.
pub const WAYS_MAX: u32 = 16;
/// Records of a set: an inode's record lies in one of so many places.
pub const RECORD_WAYS: u32 = 4;
/// Records unless told otherwise.
pub const RECORDS_DEFAULT: u32 = 1024;
/// Most records.
pub const RECORDS_MAX: u32 = 1 << 16;
/// Most pages of one cache: what `next` can name.
pub const TOTAL_MAX: u64 = 1 << 31;
/// Counters of requests, so many times: so cores do not fight for them.
pub const TALLIES: usize = 8;
/// Bytes of a tally.
pub const TALLY_LEN: usize = 64;
/// `next` at the end of a chain, and `chain` of a record whose host made no page.
pub const NEXT_NONE: u32 = u32::MAX;

/// Offsets in the header of the fields that change.
pub mod header_at {
    /// Free pages: a hint, kept by fetch-add.
    pub const FREE: u64 = 24;
    /// Until when the host may use what is cached, by its own clock, nanoseconds; 0: always. The
    /// DPU side's alone.
    pub const LEASE: u64 = 40;
    /// The host's clock, as it was lately. The host's alone.
    pub const CLOCK: u64 = 56;
    /// What the host counted, for people: nothing is decided by it. The host's alone.
    pub const TALLIES: u64 = 512;
}

/// Offsets in a tally.
pub mod tally_at {
    /// Reads answered from the cache.
    pub const HITS: u64 = 0;
    /// Reads of files that may be cached, sent on.
    pub const MISSES: u64 = 8;
    /// Writes taken by the cache.
    pub const WRITES: u64 = 16;
    /// Writes to files that may be cached, sent on.
    pub const THROUGH: u64 = 24;
}

/// Offsets in a record.
pub mod record_at {
    /// [`super::GrantWord`], written by the DPU side alone.
    pub const WORD: u64 = 0;
    /// The inode, written by the DPU side alone.
    pub const INO: u64 = 8;
    /// Bytes of the file.
    pub const SIZE: u64 = 16;
    /// Time of the last cached write, nanoseconds since 1970; 0: none since the grant.
    pub const MTIME: u64 = 24;
    /// Pages the host may make dirty.
    pub const CREDIT: u64 = 32;
    /// [`super::Dirtied`]: pages the host made dirty.
    pub const DIRTIED: u64 = 40;
    /// The entry the host made last for the inode and the DPU side has not taken note of.
    pub const CHAIN: u64 = 48;
}

/// Offsets in an entry.
pub mod entry_at {
    /// [`super::Word`].
    pub const WORD: u64 = 0;
    /// The entry the host made before this one for the same inode.
    pub const NEXT: u64 = 8;
    /// Which page of the file.
    pub const LPN: u64 = 16;
    /// The inode.
    pub const INO: u64 = 24;
}

/// Why bytes are not what they should be: what both sides can write is never trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheError {
    /// Not a cache, or another version of it.
    Magic,
    /// The page size is no power of two, too small or too large.
    PageSize,
    /// Ways, records, total or mode are out of range.
    Shape,
    /// A word with a lock, status or count nobody writes.
    Word,
    /// A page beyond the largest file, or a size beyond it.
    Beyond,
}

impl std::fmt::Display for CacheError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CacheError::Magic => "not a hybrid cache of this version",
            CacheError::PageSize => "the page size is no power of two from 4 KiB to 64 KiB",
            CacheError::Shape => "ways, records, pages or mode of the cache are out of range",
            CacheError::Word => "a word of the cache holds a state nobody writes",
            CacheError::Beyond => "a page or size of the cache is beyond the largest file",
        })
    }
}

impl std::error::Error for CacheError {}

/// Spreads an inode's number over buckets and sets (the finisher of splitmix64).
#[inline]
#[must_use]
pub fn spread(ino: u64) -> u64 {
    let z = (ino ^ ino >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// The bucket of a file's page among `buckets` (at least 1). Pages that follow one another lie in
/// buckets that do, so that one file fills a cache evenly.
#[inline]
#[must_use]
pub fn bucket_of(ino: u64, lpn: u64, buckets: u64) -> u64 {
    spread(ino).wrapping_add(lpn) % buckets.max(1)
}

/// The set of records an inode's record lies in, among `records` (a multiple of [`RECORD_WAYS`]).
#[inline]
#[must_use]
pub fn record_set_of(ino: u64, records: u32) -> u32 {
    let sets = u64::from((records / RECORD_WAYS).max(1));
    u32::try_from(spread(ino) % sets).unwrap_or(0)
}

/// Whether a file may have page `lpn` of this size.
#[inline]
#[must_use]
pub fn page_fits(lpn: u64, page_size: u32) -> bool {
    lpn < FILE_SIZE_MAX / u64::from(page_size.max(1))
}

const _: () = assert!(WAYS_DEFAULT <= WAYS_MAX && RECORDS_MAX.is_multiple_of(RECORD_WAYS));
const _: () = assert!(TOTAL_MAX < NEXT_NONE as u64);

#[cfg(test)]
mod tests;
