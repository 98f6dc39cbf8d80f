//! Entries: one of each cache page, and the word that locks it.

use super::{CacheError, ENTRY_LEN};
use crate::nvmefs::{put, u32_at, u64_at};

/// Who may touch a page (DPC 3.3; its fourth value, "invalid", is never written and refused).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Nobody holds it.
    None,
    /// One holder, who may change inode, page number and bytes.
    Write,
    /// One or more holders, who may read the bytes.
    Read,
}

/// What a page holds (DPC 3.3; its fourth value, "invalid", is never written and refused).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing.
    Free,
    /// What the volume holds.
    Clean,
    /// What the volume does not hold yet.
    Dirty,
}

/// The first word of an entry: lock, status and version in one, so that "unlock and mark dirty" is
/// one store and no lock is ever seen without its status.
///
/// ```text
/// bits  0-1 lock | 2-3 status | 4 by DPU | 5 referenced | 6-7 0 | 8-23 readers | 24-31 0 |
///      32-63 version, + 1 with each change of bytes, inode or page number
/// ```
///
/// The methods are the only steps either side takes; each gives the word to swap in by
/// compare-and-swap, or `None` where the step is not to be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Who may touch the page.
    pub lock: Lock,
    /// What the page holds.
    pub status: Status,
    /// The DPU side holds the write lock, or is one of the readers (at most one at a time).
    pub by_dpu: bool,
    /// The host used the page since the DPU side last looked.
    pub referenced: bool,
    /// How many hold the read lock.
    pub readers: u16,
    /// Counts changes, wrapping.
    pub version: u32,
}

const BY_DPU: u64 = 1 << 4;
const REFERENCED: u64 = 1 << 5;
const UNUSED: u64 = 0xC0 | 0xFF << 24;

impl Word {
    /// The word of a page nobody used yet: all zero.
    pub const FREE: Word = Word {
        lock: Lock::None,
        status: Status::Free,
        by_dpu: false,
        referenced: false,
        readers: 0,
        version: 0,
    };

    /// Reads a word; what no step leads to is refused.
    ///
    /// # Errors
    /// [`CacheError::Word`].
    #[inline]
    pub fn parse(raw: u64) -> Result<Word, CacheError> {
        let [_, low, high, _, v @ ..] = raw.to_le_bytes();
        let readers = u16::from_le_bytes([low, high]);
        let by_dpu = raw & BY_DPU != 0;
        let (lock, fits) = match raw & 3 {
            0 => (Lock::None, readers == 0 && !by_dpu),
            1 => (Lock::Write, readers == 0),
            2 => (Lock::Read, readers > 0),
            _ => return Err(CacheError::Word),
        };
        let status = match raw >> 2 & 3 {
            0 => Status::Free,
            1 => Status::Clean,
            2 => Status::Dirty,
            _ => return Err(CacheError::Word),
        };
        if !fits || raw & UNUSED != 0 || (lock == Lock::Read && status == Status::Free) {
            return Err(CacheError::Word);
        }
        let referenced = raw & REFERENCED != 0;
        Ok(Word { lock, status, by_dpu, referenced, readers, version: u32::from_le_bytes(v) })
    }

    /// The word's bits.
    #[inline]
    #[must_use]
    pub fn emit(self) -> u64 {
        let lock = match self.lock {
            Lock::None => 0,
            Lock::Write => 1,
            Lock::Read => 2,
        };
        let status = match self.status {
            Status::Free => 0,
            Status::Clean => 1,
            Status::Dirty => 2,
        };
        let flags = u64::from(self.by_dpu) << 4 | u64::from(self.referenced) << 5;
        lock | status << 2 | flags | u64::from(self.readers) << 8 | u64::from(self.version) << 32
    }

    /// One more reader, on the host: not while written or free.
    #[inline]
    #[must_use]
    pub fn share(self) -> Option<Word> {
        if self.lock == Lock::Write || self.status == Status::Free {
            return None;
        }
        let readers = self.readers.checked_add(1)?;
        Some(Word { lock: Lock::Read, readers, referenced: true, ..self })
    }

    /// One reader less, on the host.
    #[inline]
    #[must_use]
    pub fn unshare(self) -> Option<Word> {
        if self.lock != Lock::Read || self.readers <= u16::from(self.by_dpu) {
            return None;
        }
        let readers = self.readers - 1;
        let lock = if readers == 0 { Lock::None } else { Lock::Read };
        Some(Word { lock, readers, ..self })
    }

    /// The DPU side's reader: one at a time.
    #[must_use]
    pub fn share_by_dpu(self) -> Option<Word> {
        if self.by_dpu {
            return None;
        }
        let word = self.share()?;
        Some(Word { by_dpu: true, referenced: self.referenced, ..word })
    }

    /// The DPU side's reader goes.
    #[must_use]
    pub fn unshare_by_dpu(self) -> Option<Word> {
        if self.lock != Lock::Read || !self.by_dpu {
            return None;
        }
        Word { by_dpu: false, ..self }.unshare()
    }

    /// Takes the write lock of a page that holds something, or of a free one.
    #[inline]
    #[must_use]
    pub fn lock(self, by_dpu: bool) -> Option<Word> {
        let referenced = self.referenced || !by_dpu;
        let locked = Word { lock: Lock::Write, by_dpu, referenced, ..self };
        (self.lock == Lock::None).then_some(locked)
    }

    /// Nobody uses it, and it holds nothing.
    #[inline]
    #[must_use]
    pub fn is_free(self) -> bool {
        self.lock == Lock::None && self.status == Status::Free
    }

    /// Lets the write lock go, with the bytes (or whose they are) changed or not.
    #[inline]
    #[must_use]
    pub fn unlock(self, status: Status, changed: bool) -> Word {
        let version = self.version.wrapping_add(u32::from(changed));
        let referenced = self.referenced && status != Status::Free;
        Word { lock: Lock::None, status, by_dpu: false, readers: 0, version, referenced }
    }

    /// Dirty becomes clean after a flush, if nothing was changed since `version` was flushed.
    #[must_use]
    pub fn clean(self, version: u32) -> Option<Word> {
        let same = self.status == Status::Dirty && self.version == version;
        (same && self.lock != Lock::Write).then_some(Word { status: Status::Clean, ..self })
    }

    /// The word once every lock of one side is void, because that side is proved dead. A write
    /// lock's page keeps its status; its version moves on, for its bytes may be torn.
    #[must_use]
    pub fn void(self, of_dpu: bool) -> Word {
        match self.lock {
            Lock::None => self,
            Lock::Write if self.by_dpu == of_dpu => self.unlock(self.status, true),
            Lock::Write => self,
            Lock::Read => {
                let dpu = u16::from(self.by_dpu);
                let (readers, by_dpu) =
                    if of_dpu { (self.readers - dpu, false) } else { (dpu, self.by_dpu) };
                let lock = if readers == 0 { Lock::None } else { Lock::Read };
                Word { lock, readers, by_dpu, ..self }
            }
        }
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Lock, status, version.
    pub word: Word,
    /// The entry its host made before it for the same inode, or [`NEXT_NONE`](super::NEXT_NONE).
    /// Says nothing once the DPU side took the chain it was linked in.
    pub next: u32,
    /// Which page of the file.
    pub lpn: u64,
    /// The inode.
    pub ino: u64,
}

impl Entry {
    /// Reads an entry. Inode, page and `next` are anything: the reader checks them against what it
    /// knows.
    ///
    /// # Errors
    /// [`CacheError::Word`].
    pub fn parse(bytes: &[u8; ENTRY_LEN]) -> Result<Entry, CacheError> {
        let word = Word::parse(u64_at(bytes, 0))?;
        let (next, lpn, ino) = (u32_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 24));
        Ok(Entry { word, next, lpn, ino })
    }

    /// The entry's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; ENTRY_LEN] {
        let mut out = [0; ENTRY_LEN];
        put(&mut out, 0, &self.word.emit().to_le_bytes());
        put(&mut out, 8, &self.next.to_le_bytes());
        put(&mut out, 16, &self.lpn.to_le_bytes());
        put(&mut out, 24, &self.ino.to_le_bytes());
        out
    }
}
