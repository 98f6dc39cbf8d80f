//! Events from the DPU to the host: 64-byte entries of a ring in host memory, written by DMA.
//!
//! ```text
//! byte   field
//!   0    kind: 1 invalidate inode, 2 invalidate entry, 3 lock granted, 4 recall,
//!              6 overflow, 7 collected; 5 was never sent and means nothing
//!   1    name length (kind 2), at most 31; what is asked (kind 7): 0 write back, 1 hold,
//!              2 hold and set a time, 3 truncate
//!  2-3   errno (kind 3), 0 = granted
//!  4-7   zero
//!  8-15  inode, parent inode, or ticket
//! 16-23  first byte (kinds 1, 4); mark (kind 7)
//! 24-31  bytes from there, u64::MAX = to the end (kinds 1, 4); seconds, or size (kind 7)
//! 32-35  nanoseconds (kind 7)
//! 24-54  the name (kind 2)
//! 56-63  sequence number, from 1: the entry's phase
//! ```
//!
//! The sequence number is written last and is a phase tag that never repeats: an entry is new
//! exactly when it holds the number its reader waits for. A name too long for an entry is sent as
//! "every entry of this directory" (empty name). When the ring is full, events are dropped and
//! [`Event::Overflow`] follows as soon as there is room: the host then assumes that everything
//! changed.

use outboard_base::{Errno, Ino, Timestamp};

use crate::nvmefs::{put, u32_at, u64_at};

/// Bytes of an event entry.
pub const EVENT_LEN: usize = 64;
/// Entries of the event ring.
pub const EVENTS: u64 = 256;
/// Longest name an entry holds.
pub const EVENT_NAME_MAX: usize = 31;
/// Offset of the sequence number.
pub const SEQUENCE_AT: u64 = 56;

const NAME_AT: usize = 24;

/// Something the host side must know without having asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Cached attributes and bytes of a file are stale.
    InvalidateInode {
        /// The file.
        ino: Ino,
        /// First stale byte.
        offset: u64,
        /// Stale bytes; `u64::MAX` reaches to the end.
        len: u64,
    },
    /// A cached name is stale; an empty name means every name of the directory.
    InvalidateEntry {
        /// The directory.
        parent: Ino,
        /// The name, at most [`EVENT_NAME_MAX`] bytes.
        name: Vec<u8>,
    },
    /// A waiting lock request is decided.
    LockGranted {
        /// What the request was given when it began to wait.
        ticket: u64,
        /// `None`: granted. Otherwise why not.
        errno: Option<Errno>,
    },
    /// Give back what is held of this file (delegation, lease).
    Recall {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes; `u64::MAX` reaches to the end.
        len: u64,
    },
    /// Others ask for a file of which this host's kernel, which collects writes, may have some, or
    /// of which it says size and times. The host does what is asked before it has acted upon this.
    Collected {
        /// The file.
        ino: Ino,
        /// The access time, nanoseconds since 1970, by which the request is known that the kernel
        /// makes of a [`Wanted::Hold`]; never twice the same.
        mark: u64,
        /// What is asked.
        wanted: Wanted,
    },
    /// Events were lost: assume that everything changed.
    Overflow,
}

/// What is asked of a kernel that collects writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// That it writes what it has.
    WriteBack,
    /// That it writes what it has, and then keeps the file as it is: a `Setattr` with the mark
    /// comes, and until that is answered nobody writes to the file there.
    Hold {
        /// The file's mtime then; `None`: it stays.
        mtime: Option<Timestamp>,
    },
    /// That it takes the file for this long.
    Truncate {
        /// The size.
        size: u64,
    },
}

impl Wanted {
    fn raw(self) -> (u8, u64, u32) {
        match self {
            Wanted::WriteBack => (0, 0, 0),
            Wanted::Hold { mtime: None } => (1, 0, 0),
            Wanted::Hold { mtime: Some(at) } => (2, at.sec.cast_unsigned(), at.nsec),
            Wanted::Truncate { size } => (3, size, 0),
        }
    }

    fn from_raw(kind: u8, word: u64, nsec: u32) -> Result<Wanted, InvalidEvent> {
        match kind {
            0 => Ok(Wanted::WriteBack),
            1 => Ok(Wanted::Hold { mtime: None }),
            2 => {
                let mtime = Timestamp::new(word.cast_signed(), nsec).ok_or(InvalidEvent)?;
                Ok(Wanted::Hold { mtime: Some(mtime) })
            }
            3 => Ok(Wanted::Truncate { size: word }),
            _ => Err(InvalidEvent),
        }
    }
}

/// The entry's kind or fields mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidEvent;

impl Event {
    /// An entry invalidation; a name too long for the ring becomes "every entry of the directory".
    #[must_use]
    pub fn invalidate_entry(parent: Ino, name: &[u8]) -> Event {
        let name = if name.len() > EVENT_NAME_MAX { &[] } else { name };
        Event::InvalidateEntry { parent, name: name.to_vec() }
    }

    /// The entry's bytes under a sequence number.
    #[must_use]
    pub fn emit(&self, sequence: u64) -> [u8; EVENT_LEN] {
        let mut out = [0; EVENT_LEN];
        let (kind, a, b, c) = match self {
            Event::InvalidateInode { ino, offset, len } => (1, ino.0, *offset, *len),
            Event::InvalidateEntry { parent, name } => {
                let held = name.get(..name.len().min(EVENT_NAME_MAX)).unwrap_or_default();
                put(&mut out, 1, &[u8::try_from(held.len()).unwrap_or(0)]);
                put(&mut out, NAME_AT, held);
                (2, parent.0, 0, 0)
            }
            Event::LockGranted { ticket, errno } => {
                put(&mut out, 2, &errno.map_or(0, Errno::raw).to_le_bytes());
                (3, *ticket, 0, 0)
            }
            Event::Recall { ino, offset, len } => (4, ino.0, *offset, *len),
            Event::Overflow => (6, 0, 0, 0),
            Event::Collected { ino, mark, wanted } => {
                let (asked, word, nsec) = wanted.raw();
                put(&mut out, 1, &[asked]);
                put(&mut out, 32, &nsec.to_le_bytes());
                (7, ino.0, *mark, word)
            }
        };
        put(&mut out, 0, &[kind]);
        put(&mut out, 8, &a.to_le_bytes());
        put(&mut out, 16, &b.to_le_bytes());
        if kind != 2 {
            put(&mut out, NAME_AT, &c.to_le_bytes());
        }
        put(&mut out, 56, &sequence.to_le_bytes());
        out
    }

    /// The sequence number an entry holds.
    #[must_use]
    pub fn sequence_of(bytes: &[u8; EVENT_LEN]) -> u64 {
        u64_at(bytes, 56)
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// Unknown kind, or a name longer than an entry holds.
    pub fn parse(bytes: &[u8; EVENT_LEN]) -> Result<Event, InvalidEvent> {
        let [kind, name_len, e0, e1, ..] = *bytes;
        let (a, b, c) = (u64_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, NAME_AT));
        Ok(match kind {
            1 => Event::InvalidateInode { ino: Ino(a), offset: b, len: c },
            2 => {
                let end = NAME_AT + usize::from(name_len);
                let name = bytes
                    .get(NAME_AT..end)
                    .filter(|_| usize::from(name_len) <= EVENT_NAME_MAX)
                    .ok_or(InvalidEvent)?;
                Event::InvalidateEntry { parent: Ino(a), name: name.to_vec() }
            }
            3 => {
                let raw = u16::from_le_bytes([e0, e1]);
                let errno = (raw != 0).then(|| Errno::from_raw(u32::from(raw)));
                Event::LockGranted { ticket: a, errno }
            }
            4 => Event::Recall { ino: Ino(a), offset: b, len: c },
            6 => Event::Overflow,
            7 => {
                let wanted = Wanted::from_raw(name_len, c, u32_at(bytes, 32))?;
                Event::Collected { ino: Ino(a), mark: b, wanted }
            }
            _ => return Err(InvalidEvent),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let event = Event::invalidate_entry(Ino(0x0807_0605_0403_0201), b"name");
        let mut golden = [0; EVENT_LEN];
        golden[0] = 2;
        golden[1] = 4;
        golden[8..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        golden[24..28].copy_from_slice(b"name");
        golden[56] = 9;
        assert_eq!(event.emit(9), golden);
        assert_eq!(Event::sequence_of(&golden), 9);
    }

    #[test]
    fn unknown_kinds_and_long_names_are_refused() {
        for kind in [0, 5, 8, 255] {
            let mut bytes = Event::Overflow.emit(1);
            bytes[0] = kind;
            assert_eq!(Event::parse(&bytes), Err(InvalidEvent));
        }
        let mut bytes = Event::invalidate_entry(Ino(1), b"x").emit(1);
        bytes[1] = 32;
        assert_eq!(Event::parse(&bytes), Err(InvalidEvent));
        let (ino, wanted) = (Ino(1), Wanted::WriteBack);
        let mut bytes = Event::Collected { ino, mark: 2, wanted }.emit(1);
        bytes[1] = 4;
        assert_eq!(Event::parse(&bytes), Err(InvalidEvent));
        let long = Event::invalidate_entry(Ino(1), &[b'x'; 32]);
        assert_eq!(long, Event::InvalidateEntry { parent: Ino(1), name: Vec::new() });
    }

    fn events() -> impl Strategy<Value = Event> {
        prop_oneof![
            any::<[u64; 3]>().prop_map(|[i, offset, len]| Event::InvalidateInode {
                ino: Ino(i),
                offset,
                len
            }),
            (any::<u64>(), proptest::collection::vec(any::<u8>(), 0..=31))
                .prop_map(|(i, name)| Event::InvalidateEntry { parent: Ino(i), name }),
            (any::<u64>(), 0u32..4096).prop_map(|(ticket, n)| Event::LockGranted {
                ticket,
                errno: (n != 0).then(|| Errno::from_raw(n))
            }),
            any::<[u64; 3]>().prop_map(|[i, offset, len]| Event::Recall {
                ino: Ino(i),
                offset,
                len
            }),
            (any::<[u64; 3]>(), 0u8..4).prop_map(|([ino, mark, word], kind)| {
                let wanted = Wanted::from_raw(kind, word, 999_999_999).unwrap();
                Event::Collected { ino: Ino(ino), mark, wanted }
            }),
            Just(Event::Overflow),
        ]
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(event in events(), sequence: u64) {
            let bytes = event.emit(sequence);
            prop_assert_eq!(Event::parse(&bytes), Ok(event));
            prop_assert_eq!(Event::sequence_of(&bytes), sequence);
        }
    }
}
