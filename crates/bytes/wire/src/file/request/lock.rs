//! Locks as they travel: four argument words of a request, or a record of what is handed back.

use outboard_base::{Errno, Fh, Result};

use crate::cursor::{pack, unpack};

/// Which family a lock belongs to; the two do not see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockStyle {
    /// `fcntl(2)` byte ranges.
    Posix,
    /// `flock(2)`, the whole file.
    Flock,
}

/// What a lock allows others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None: drops what the range holds.
    Unlock,
}

/// A lock, asked for or found in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Whom it belongs to, as the front-end names owners.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX`: to the end of the file, wherever that will be.
    pub end: u64,
    /// Shared, exclusive or none.
    pub kind: LockKind,
    /// Byte range or whole file.
    pub style: LockStyle,
    /// Process reported by F_GETLK.
    pub pid: u32,
}

impl Lock {
    /// Four argument words.
    pub(crate) fn encode(&self) -> [u64; 4] {
        let kind = match self.kind {
            LockKind::Read => 0,
            LockKind::Write => 1,
            LockKind::Unlock => 2,
        };
        let style = u32::from(self.style == LockStyle::Flock);
        [self.owner, self.start, self.end, pack(kind | style << 8, self.pid)]
    }

    /// The reverse of [`Lock::encode`]; refuses unknown kinds and ranges that end before they
    /// start.
    pub(crate) fn decode(words: [u64; 4]) -> Result<Lock> {
        let [owner, start, end, last] = words;
        let (tags, pid) = unpack(last);
        let kind = match tags & 0xff {
            0 => LockKind::Read,
            1 => LockKind::Write,
            2 => LockKind::Unlock,
            _ => return Err(Errno::EPROTO),
        };
        let style = match tags >> 8 {
            0 => LockStyle::Posix,
            1 => LockStyle::Flock,
            _ => return Err(Errno::EPROTO),
        };
        if end < start {
            return Err(Errno::EINVAL);
        }
        Ok(Lock { owner, start, end, kind, style, pid })
    }
}

/// One lock of those a `ReturnLocks` brings: 40 bytes, little-endian.
///
/// ```text
///   0 handle u64   8 owner u64   16 start u64   24 end u64 (inclusive)
///  32 kind u8 (0 shared, 1 exclusive), style u8 (0 POSIX, 1 flock), zero u16, pid u32
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The handle it was taken through.
    pub fh: Fh,
    /// The lock; never of kind `Unlock`.
    pub lock: Lock,
}

impl HeldLock {
    /// Bytes of one.
    pub const LEN: usize = 40;

    /// Appends the bytes.
    pub fn emit(&self, into: &mut Vec<u8>) {
        into.extend(self.fh.0.to_le_bytes());
        self.lock.encode().iter().for_each(|word| into.extend(word.to_le_bytes()));
    }

    /// Reads a payload; `EPROTO` if it is not whole records, `EPROTO` or `EINVAL` for one that
    /// means nothing.
    pub fn parse(payload: &[u8]) -> Result<Vec<HeldLock>> {
        let (records, rest) = payload.as_chunks::<{ HeldLock::LEN }>();
        if !rest.is_empty() {
            return Err(Errno::EPROTO);
        }
        let record = |bytes: &[u8; HeldLock::LEN]| {
            let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            let mut word = || words.next().ok_or(Errno::EPROTO);
            let fh = Fh(word()?);
            let lock = Lock::decode([word()?, word()?, word()?, word()?])?;
            if lock.kind == LockKind::Unlock {
                return Err(Errno::EPROTO);
            }
            Ok(HeldLock { fh, lock })
        };
        records.iter().map(record).collect()
    }
}
