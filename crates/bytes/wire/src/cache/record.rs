//! Records: what pages cannot say about a file (row C8 as the issue extends it).

use outboard_base::limits::FILE_SIZE_MAX;

use super::{CacheError, RECORD_LEN};
use crate::nvmefs::{put, u32_at, u64_at};

/// What the host may do with an inode's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The record is nobody's.
    Free,
    /// Read cached pages.
    Read,
    /// Read and write cached pages.
    Write,
    /// Nothing: the grant is being taken back.
    Frozen,
    /// Nothing: the file is known and not to be cached now.
    None,
}

impl Grant {
    /// Whether cached pages may be read.
    #[inline]
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Grant::Read | Grant::Write)
    }

    /// Whether cached pages may be written.
    #[inline]
    #[must_use]
    pub fn writes(self) -> bool {
        self == Grant::Write
    }
}

/// The first word of a record, written by the DPU side alone.
///
/// ```text
/// bits 0-2 grant: 0 free, 1 read, 2 write, 3 frozen, 4 none | 3-31 0 |
///     32-63 epoch, + 1 with each change of the grant or the inode
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantWord {
    /// What the host may do.
    pub grant: Grant,
    /// Counts changes, wrapping.
    pub epoch: u32,
}

impl GrantWord {
    /// Reads a word.
    ///
    /// # Errors
    /// [`CacheError::Word`].
    #[inline]
    pub fn parse(raw: u64) -> Result<GrantWord, CacheError> {
        let [low @ .., e0, e1, e2, e3] = raw.to_le_bytes();
        let grant = match u32::from_le_bytes(low) {
            0 => Grant::Free,
            1 => Grant::Read,
            2 => Grant::Write,
            3 => Grant::Frozen,
            4 => Grant::None,
            _ => return Err(CacheError::Word),
        };
        Ok(GrantWord { grant, epoch: u32::from_le_bytes([e0, e1, e2, e3]) })
    }

    /// The word's bits.
    #[inline]
    #[must_use]
    pub fn emit(self) -> u64 {
        let grant = match self.grant {
            Grant::Free => 0,
            Grant::Read => 1,
            Grant::Write => 2,
            Grant::Frozen => 3,
            Grant::None => 4,
        };
        grant | u64::from(self.epoch) << 32
    }

    /// The word of the next epoch.
    #[must_use]
    pub fn next(self, grant: Grant) -> GrantWord {
        GrantWord { grant, epoch: self.epoch.wrapping_add(1) }
    }
}

/// How many pages a host made dirty in a grant, and in which: who means another grant, or one that
/// is being taken back, cannot count.
///
/// ```text
/// bits 0-39 pages | 40-63 tag, another one in each grant and after it
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirtied {
    /// The grant's tag: its low 24 bits.
    pub tag: u32,
    /// Pages.
    pub pages: u64,
}

impl Dirtied {
    /// Bits of the count.
    const PAGES: u32 = 40;
    /// Most pages of one grant: 4 PiB of the smallest.
    pub const MAX: u64 = (1 << Dirtied::PAGES) - 1;

    /// The tag of a grant of this epoch.
    #[must_use]
    pub fn tag_of(epoch: u32) -> u32 {
        epoch & 0xFF_FFFF
    }

    /// Reads the word: any is one.
    #[inline]
    #[must_use]
    pub fn parse(raw: u64) -> Dirtied {
        let [.., a, b, c] = raw.to_le_bytes();
        Dirtied { tag: u32::from_le_bytes([a, b, c, 0]), pages: raw & Dirtied::MAX }
    }

    /// The word's bits.
    #[inline]
    #[must_use]
    pub fn emit(self) -> u64 {
        self.pages & Dirtied::MAX | u64::from(self.tag) << Dirtied::PAGES
    }

    /// So many pages more, if that is within `credit`.
    #[inline]
    #[must_use]
    pub fn and(self, pages: u64, credit: u64) -> Option<Dirtied> {
        let pages = self.pages.checked_add(pages)?;
        (pages <= credit.min(Dirtied::MAX)).then_some(Dirtied { pages, ..self })
    }
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The grant.
    pub word: GrantWord,
    /// The inode.
    pub ino: u64,
    /// Bytes of the file as this host sees it.
    pub size: u64,
    /// Time of the last cached write, nanoseconds since 1970; 0: none since the grant.
    pub mtime: i64,
    /// Pages the host may make dirty: each page that becomes dirty, new or clean before, takes one.
    /// Raised by the DPU side, never lowered in a grant.
    pub credit: u64,
    /// Pages the host made dirty. While it stands still there is nothing new to flush.
    pub dirtied: Dirtied,
    /// The entry it made last, or [`NEXT_NONE`](super::NEXT_NONE): the first of a chain.
    pub chain: u32,
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    /// [`CacheError`]; a size beyond the largest file is [`CacheError::Beyond`].
    pub fn parse(bytes: &[u8; RECORD_LEN]) -> Result<Record, CacheError> {
        let record = Record {
            word: GrantWord::parse(u64_at(bytes, 0))?,
            ino: u64_at(bytes, 8),
            size: u64_at(bytes, 16),
            mtime: u64_at(bytes, 24).cast_signed(),
            credit: u64_at(bytes, 32),
            dirtied: Dirtied::parse(u64_at(bytes, 40)),
            chain: u32_at(bytes, 48),
        };
        if record.size > FILE_SIZE_MAX { Err(CacheError::Beyond) } else { Ok(record) }
    }

    /// The record's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; RECORD_LEN] {
        let mut out = [0; RECORD_LEN];
        put(&mut out, 0, &self.word.emit().to_le_bytes());
        put(&mut out, 8, &self.ino.to_le_bytes());
        put(&mut out, 16, &self.size.to_le_bytes());
        put(&mut out, 24, &self.mtime.to_le_bytes());
        put(&mut out, 32, &self.credit.to_le_bytes());
        put(&mut out, 40, &self.dirtied.emit().to_le_bytes());
        put(&mut out, 48, &self.chain.to_le_bytes());
        out
    }
}
