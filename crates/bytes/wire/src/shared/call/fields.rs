//! The bytes of calls and replies: how each kind of field is written and read.
//!
//! ```text
//! call, reply, event   its number u8 | its fields, in the order of their declaration
//! number, id           u8, u16, u32 or u64, little-endian; a condition: u8, 0 or 1
//! what may be missing  0, or 1 | it
//! list, bytes, text    how many u32 | they
//! errno                u16, 1 to 4095; mode: u8, 1 read, 2 write
//! attributes 128 | layout 64 | capability 80 | coordinate 16, as elsewhere; time: i64 | u32
//! ```
//!
//! There is one way to write each value. A list grows only as its entries are found, so a number
//! that lies makes nobody allocate.

use outboard_base::{Cred, Errno, Fh, Ino, SessionId, Timestamp, limits};

use super::{
    Acknowledged, Asker, Call, Claim, Decided, Entry, Event, Grant, Key, LAYOUT_LEN, Layout, Mode,
    Object, Policy, Reply, Revoked, Taken, Told, Version,
};
use super::{CLAIMS_MAX, ENTRIES_MAX, EVENTS_MAX, KEYS_MAX, OBJECTS_MAX, REVOKED_MAX};
use super::{SETTLES_MAX, TEXT_MAX};
use crate::file::Attr;
use crate::shared::{CAPABILITY_LEN, COORDINATE_LEN, Capability, Coordinate, FAN_MAX};
use crate::shared::{InvalidMessage, zeros};

type Result<T> = std::result::Result<T, InvalidMessage>;

/// What is left to read.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(InvalidMessage::Length)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(InvalidMessage::Length)?;
        self.0 = rest;
        Ok(taken)
    }

    /// How many follow, at most `most`.
    fn count(&mut self, most: usize) -> Result<usize> {
        let count = usize::try_from(u32::take(self)?).map_err(|_| InvalidMessage::Field)?;
        if count <= most { Ok(count) } else { Err(InvalidMessage::Field) }
    }
}

/// A value that can be written and read.
pub(super) trait Field: Sized {
    /// Most of them in a list.
    const MOST: usize = 0;

    fn put(&self, into: &mut Vec<u8>);
    fn take(from: &mut Reader<'_>) -> Result<Self>;

    fn put_all(all: &[Self], into: &mut Vec<u8>) {
        all.iter().for_each(|one| one.put(into));
    }

    fn take_all(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>> {
        (0..count).map(|_| Self::take(from)).collect()
    }
}

/// What is longer than can be said is refused by who reads it.
fn put_count(count: usize, into: &mut Vec<u8>) {
    u32::try_from(count).unwrap_or(u32::MAX).put(into);
}

impl Field for u8 {
    const MOST: usize = limits::IO_MAX;

    fn put(&self, into: &mut Vec<u8>) {
        into.push(*self);
    }

    fn take(from: &mut Reader<'_>) -> Result<u8> {
        from.array().map(|&[byte]| byte)
    }

    fn put_all(all: &[u8], into: &mut Vec<u8>) {
        into.extend_from_slice(all);
    }

    fn take_all(count: usize, from: &mut Reader<'_>) -> Result<Vec<u8>> {
        from.bytes(count).map(<[u8]>::to_vec)
    }
}

macro_rules! numbers {
    ($($number:ty, $most:expr;)*) => {
        $(impl Field for $number {
            const MOST: usize = $most;

            fn put(&self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }

            fn take(from: &mut Reader<'_>) -> Result<$number> {
                from.array().map(|raw| <$number>::from_le_bytes(*raw))
            }
        })*
    };
}

numbers! { u16, FAN_MAX; u32, limits::GROUPS_MAX; u64, 0; i64, 0; }

macro_rules! ids {
    ($($id:ident)*) => {
        $(impl Field for $id {
            fn put(&self, into: &mut Vec<u8>) {
                self.0.put(into);
            }

            fn take(from: &mut Reader<'_>) -> Result<$id> {
                u64::take(from).map($id)
            }
        })*
    };
}

ids! { SessionId Ino Fh }

impl Field for bool {
    fn put(&self, into: &mut Vec<u8>) {
        into.push(u8::from(*self));
    }

    fn take(from: &mut Reader<'_>) -> Result<bool> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(InvalidMessage::Field),
        }
    }
}

impl Field for Mode {
    fn put(&self, into: &mut Vec<u8>) {
        into.push(match self {
            Mode::Read => 1,
            Mode::Write => 2,
        });
    }

    fn take(from: &mut Reader<'_>) -> Result<Mode> {
        match u8::take(from)? {
            1 => Ok(Mode::Read),
            2 => Ok(Mode::Write),
            _ => Err(InvalidMessage::Field),
        }
    }
}

impl Field for Errno {
    fn put(&self, into: &mut Vec<u8>) {
        self.raw().put(into);
    }

    fn take(from: &mut Reader<'_>) -> Result<Errno> {
        let raw = u16::take(from)?;
        let errno = Errno::from_raw(u32::from(raw));
        // A number that is none reads as EIO.
        if errno.raw() == raw { Ok(errno) } else { Err(InvalidMessage::Field) }
    }
}

impl Field for Timestamp {
    fn put(&self, into: &mut Vec<u8>) {
        self.sec.put(into);
        self.nsec.put(into);
    }

    fn take(from: &mut Reader<'_>) -> Result<Timestamp> {
        let (sec, nsec) = (i64::take(from)?, u32::take(from)?);
        Timestamp::new(sec, nsec).ok_or(InvalidMessage::Field)
    }
}

impl Field for String {
    fn put(&self, into: &mut Vec<u8>) {
        put_count(self.len(), into);
        into.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Result<String> {
        let count = from.count(TEXT_MAX)?;
        let text = std::str::from_utf8(from.bytes(count)?);
        text.map(str::to_owned).map_err(|_| InvalidMessage::Field)
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, into: &mut Vec<u8>) {
        put_count(self.len(), into);
        T::put_all(self, into);
    }

    fn take(from: &mut Reader<'_>) -> Result<Vec<T>> {
        let count = from.count(T::MOST)?;
        T::take_all(count, from)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, into: &mut Vec<u8>) {
        self.is_some().put(into);
        if let Some(value) = self {
            value.put(into);
        }
    }

    fn take(from: &mut Reader<'_>) -> Result<Option<T>> {
        if bool::take(from)? { T::take(from).map(Some) } else { Ok(None) }
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, into: &mut Vec<u8>) {
        T::put(self, into);
    }

    fn take(from: &mut Reader<'_>) -> Result<Box<T>> {
        T::take(from).map(Box::new)
    }
}

impl Field for [u8; 32] {
    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self);
    }

    fn take(from: &mut Reader<'_>) -> Result<[u8; 32]> {
        from.array().copied()
    }
}

impl Field for Attr {
    fn put(&self, into: &mut Vec<u8>) {
        let mut raw = [0; Attr::LEN];
        // It fails of too little room only.
        let _ = self.encode(&mut raw);
        into.extend_from_slice(&raw);
    }

    fn take(from: &mut Reader<'_>) -> Result<Attr> {
        let raw = from.array::<{ Attr::LEN }>()?;
        zeros(raw.get(ATTR_USED..).unwrap_or_default())?;
        Attr::decode(raw).map_err(|_| InvalidMessage::Field)
    }
}

/// Bytes of attributes that have a meaning.
const ATTR_USED: usize = 108;

impl Field for Layout {
    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.encode());
    }

    fn take(from: &mut Reader<'_>) -> Result<Layout> {
        Layout::decode(from.array::<LAYOUT_LEN>()?)
    }
}

impl Field for Capability {
    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.emit());
    }

    fn take(from: &mut Reader<'_>) -> Result<Capability> {
        Capability::parse(from.array::<CAPABILITY_LEN>()?)
    }
}

impl Field for Coordinate {
    const MOST: usize = FAN_MAX;

    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.emit());
    }

    fn take(from: &mut Reader<'_>) -> Result<Coordinate> {
        Coordinate::parse(from.array::<COORDINATE_LEN>()?)
    }
}

macro_rules! records {
    ($($record:ident [$most:expr] { $($field:ident),* })*) => {
        $(impl Field for $record {
            const MOST: usize = $most;

            fn put(&self, into: &mut Vec<u8>) {
                $(self.$field.put(into);)*
            }

            fn take(from: &mut Reader<'_>) -> Result<$record> {
                Ok($record { $($field: Field::take(from)?),* })
            }
        })*
    };
}

records! {
    Cred [0] { uid, gid, pid, groups }
    Asker [0] { session, trusted, keeps_times, peer }
    Told [0] { size, mtime, blocks }
    Grant [0] { mode, attr, strips, kept, layout, capability, nodes }
    Object [OBJECTS_MAX] { object, end, fence, bytes }
    Key [KEYS_MAX] { id, until, key }
    Revoked [REVOKED_MAX] { client }
    Entry [ENTRIES_MAX] { name, value, version, session }
    Version [0] { fence, sequence }
    Taken [0] { version, epoch }
    Claim [CLAIMS_MAX] { strip, stable, pending }
    Decided [CLAIMS_MAX] { strip, version }
    Acknowledged [SETTLES_MAX] { capability, sequence }
}

macro_rules! choices {
    ($choice:ident [$most:expr]
     $($number:literal $variant:ident $({ $($field:ident),* })? $(($inner:ident))?;)*) => {
        impl Field for $choice {
            const MOST: usize = $most;

            fn put(&self, into: &mut Vec<u8>) {
                match self {
                    $($choice::$variant $({ $($field),* })? $(($inner))? => {
                        into.push($number);
                        $($($field.put(into);)*)?
                        $($inner.put(into);)?
                    })*
                }
            }

            fn take(from: &mut Reader<'_>) -> Result<$choice> {
                Ok(match u8::take(from)? {
                    $($number => {
                        $($(let $field = Field::take(from)?;)*)?
                        $(let $inner = Field::take(from)?;)?
                        $choice::$variant $({ $($field),* })? $(($inner))?
                    })*
                    _ => return Err(InvalidMessage::Operation),
                })
            }
        }
    };
}

choices! { Event [EVENTS_MAX]
    1 LockSettled { session, ticket, errno };
    2 RecallLocks { session, ino };
    3 StaleInode { session, ino };
    4 StaleEntry { session, parent, name };
}

choices! { Policy [0]
    0 Common;
    1 ReadOnly;
    2 Steered;
    3 Unsteered;
}

choices! { Call [0]
    1 File { asker, request, payload };
    2 Detach { session };
    3 Back { session };
    4 Renew;
    5 Delegate { ino, mode };
    6 Publish { ino, fence, told };
    7 Release { ino, fence, told, keep };
    8 Strip { asker, ino };
    9 MayWrite { asker, ino };
    10 Opened { session, ino, fh };
    11 Layout { ino };
    12 SetLayout { asker, ino, layout };
    13 Check { contents };
    14 Begin { nonce };
    15 AddKey { name };
    16 ListKeys;
    17 RevokeKey { name };
    18 RotateKey;
    19 Holed { ino, fence };
    20 HandedIn;
    21 Tells { ino, fence, told };
    22 Wrote { asker, request, count, fence, told };
    23 Answered { asker, request };
    24 Regrant { ino, fence, unreached };
    25 Undone { ino, fence };
    26 Place { joins, leaves, rate };
    32 Recall { ino, keep };
    33 Events { events };
    34 Leaves { node };
    64 Seal { object, fence };
    65 Purge { object, fence, until };
    66 Objects { from };
    67 Verify { object };
    68 Keys { keys, revoked };
    69 Flush { settles };
    70 Space;
    71 Install { policy };
    72 Newest;
    73 Claims { object, epoch, from };
    74 Resolve { object, fence, epoch, decided };
    75 Settle { of };
    76 Doubts { object };
    77 Trust { object, boot };
    78 Damaged { object, from };
    79 InTerm { term, call };
    80 Beat { session };
    81 List { prefix };
    82 Put { name, value, version, session };
    83 Remove { name, version };
    96 Status;
}

choices! { Reply [0]
    0 Done;
    1 Failed(errno);
    2 File { result, header, payload };
    3 Lease { life, term_ms, free, capacity };
    4 Grant(grant);
    5 Attr(attr);
    6 Flag(flag);
    7 Number(number);
    8 Layout(layout);
    9 Object(object);
    10 Objects(objects);
    11 Text(text);
    12 Space { free, capacity };
    13 Entries(entries);
    14 Claims(claims);
    15 Later { term };
}
