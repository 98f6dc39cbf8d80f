//! The heads of a request: what is asked, and how.

use super::call::STRIP_MIN;
use super::{
    DATA_MAX, FAN_MAX, InvalidMessage, MEMBERS_MAX, PARITY_MAX, Role, Strategy, VERSION, range,
    zeros,
};
use crate::cursor::{bytes, u16_at, u32_at, u64_at};

/// Bytes of the first head.
pub const HEAD_LEN: usize = 32;
/// Bytes of a write's head before its coordinates.
pub const WRITE_LEN: usize = 56;
/// Bytes of a coordinate.
pub const COORDINATE_LEN: usize = 16;
/// Bytes of a read's head.
pub const READ_LEN: usize = 32;
/// Bytes of a hole's head.
pub const HOLE_LEN: usize = 48;
/// Bytes of a run in the answer to a read of the map.
pub const RUN_LEN: usize = 16;
/// Most bytes of an object that one request puts space aside for.
pub const RESERVE_MAX: u64 = 1 << 28;

pub(super) const MAGIC: [u8; 2] = *b"OD";
pub(super) const WRITE: u8 = 1;
pub(super) const READ: u8 = 2;
pub(super) const HOLE: u8 = 3;

/// What every request begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which request; never used again by its client.
    pub request: u64,
    /// Bytes of data that follow the heads, in all packets: at most [`DATA_MAX`].
    pub data: u32,
    /// The group's epoch its sender knows.
    pub epoch: u32,
    /// Up to which sequence of the strip everything is settled.
    pub settled: u32,
    /// How many nodes it came by.
    pub hop: u32,
}

impl Head {
    /// The head, its operation and the bytes of all heads.
    pub(super) fn parse(from: &[u8]) -> Result<(Head, u8, usize), InvalidMessage> {
        let whole = from.first_chunk::<HEAD_LEN>().ok_or(InvalidMessage::Length)?;
        let &[m0, m1, version, operation, ..] = whole;
        if [m0, m1] != MAGIC || version != VERSION {
            return Err(InvalidMessage::Version);
        }
        zeros(bytes(whole, 4, 2)?)?;
        let head = Head {
            request: u64_at(whole, 8)?,
            data: u32_at(whole, 16)?,
            epoch: u32_at(whole, 20)?,
            settled: u32_at(whole, 24)?,
            hop: u32_at(whole, 28)?,
        };
        if head.data > DATA_MAX {
            return Err(InvalidMessage::Field);
        }
        Ok((head, operation, usize::from(u16_at(whole, 6)?)))
    }

    pub(super) fn emit(&self, operation: u8, heads: u16, into: &mut Vec<u8>) {
        into.extend_from_slice(&MAGIC);
        into.extend_from_slice(&[VERSION, operation, 0, 0]);
        into.extend_from_slice(&heads.to_le_bytes());
        into.extend_from_slice(&self.request.to_le_bytes());
        for field in [self.data, self.epoch, self.settled, self.hop] {
            into.extend_from_slice(&field.to_le_bytes());
        }
    }
}

/// Where a node is, and what it holds of the strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinate {
    /// Its address, IPv4.
    pub address: [u8; 4],
    /// Its port.
    pub port: u16,
    /// Which node it is.
    pub node: u16,
    /// Which unit it holds.
    pub unit: u8,
    /// What that is.
    pub role: Role,
}

impl Coordinate {
    const NOBODY: Coordinate =
        Coordinate { address: [0; 4], port: 0, node: 0, unit: 0, role: Role::Data };

    pub(super) fn parse(raw: &[u8; COORDINATE_LEN]) -> Result<Coordinate, InvalidMessage> {
        let &[a0, a1, a2, a3, p0, p1, n0, n1, unit, role, ref zero @ ..] = raw;
        zeros(zero)?;
        let port = u16::from_le_bytes([p0, p1]);
        if port == 0 {
            return Err(InvalidMessage::Field);
        }
        let node = u16::from_le_bytes([n0, n1]);
        Ok(Coordinate { address: [a0, a1, a2, a3], port, node, unit, role: Role::parse(role)? })
    }

    pub(super) fn emit(&self) -> [u8; COORDINATE_LEN] {
        let ([a0, a1, a2, a3], [p0, p1]) = (self.address, self.port.to_le_bytes());
        let [n0, n1] = self.node.to_le_bytes();
        [a0, a1, a2, a3, p0, p1, n0, n1, self.unit, self.role as u8, 0, 0, 0, 0, 0, 0]
    }
}

/// The coordinates of a write: at most [`MEMBERS_MAX`], of nodes that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    all: [Coordinate; MEMBERS_MAX],
    count: u8,
}

impl Coordinates {
    /// These.
    ///
    /// # Errors
    /// [`InvalidMessage::Field`] if they are too many, [`InvalidMessage::Loop`] if one node stands
    /// there twice.
    pub fn new(of: &[Coordinate]) -> Result<Coordinates, InvalidMessage> {
        let mut all = [Coordinate::NOBODY; MEMBERS_MAX];
        let count = u8::try_from(of.len()).map_err(|_| InvalidMessage::Field)?;
        let places = all.get_mut(..of.len()).ok_or(InvalidMessage::Field)?;
        places.copy_from_slice(of);
        let mut before = of;
        while let Some((last, rest)) = before.split_last() {
            if rest.iter().any(|other| other.node == last.node) {
                return Err(InvalidMessage::Loop);
            }
            before = rest;
        }
        Ok(Coordinates { all, count })
    }

    fn parse(raw: &[[u8; COORDINATE_LEN]]) -> Result<Coordinates, InvalidMessage> {
        let mut all = [Coordinate::NOBODY; MEMBERS_MAX];
        let places = all.get_mut(..raw.len()).ok_or(InvalidMessage::Field)?;
        for (place, raw) in places.iter_mut().zip(raw) {
            *place = Coordinate::parse(raw)?;
        }
        Coordinates::new(places)
    }

    /// In their order.
    #[must_use]
    pub fn as_slice(&self) -> &[Coordinate] {
        self.all.get(..usize::from(self.count)).unwrap_or_default()
    }
}

/// What a write brings of the bytes that it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Brings {
    /// All of them.
    #[default]
    Bytes = 0,
    /// What they differ by from those that are there, bit by bit: what a parity adds to itself.
    Delta = 1,
    /// Nothing: those that are there are of its version, too.
    Nothing = 2,
}

impl Brings {
    fn parse(from: u8) -> Result<Brings, InvalidMessage> {
        match from {
            0 => Ok(Brings::Bytes),
            1 => Ok(Brings::Delta),
            2 => Ok(Brings::Nothing),
            _ => Err(InvalidMessage::Field),
        }
    }
}

/// What a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHead {
    /// How it spreads.
    pub strategy: Strategy,
    /// The place of its receiver among the coordinates.
    pub rank: u8,
    /// Copies, or data units.
    pub k: u8,
    /// Of a stripe: the data unit whose bytes it brings, or parts of a parity made of them.
    pub unit: u8,
    /// What its receiver holds.
    pub role: Role,
    /// What it brings of its bytes. Another than they itself only by nobody else.
    pub brings: Brings,
    /// Its first byte in the object.
    pub offset: u64,
    /// How many; the data, unless it brings nothing, or a node forwards something else of it.
    pub bytes: u32,
    /// The sequence of its version: more than [`previous`](Self::previous).
    pub sequence: u32,
    /// The last acknowledged one of this strip.
    pub previous: u32,
    /// CRC-32C of all its data; of parts, that of the data they were made of.
    pub crc: u32,
    /// The attachment it is for.
    pub session: u64,
    /// That attachment's number of it.
    pub number: u64,
    /// In which of its replay lanes.
    pub lane: u16,
    /// Whom it concerns.
    pub coordinates: Coordinates,
}

impl WriteHead {
    pub(super) fn parse(from: &[u8]) -> Result<WriteHead, InvalidMessage> {
        let (whole, rest) = from.split_at_checked(WRITE_LEN).ok_or(InvalidMessage::Length)?;
        let &[strategy, rank, count, k, unit, role, brings, ..] = whole else {
            return Err(InvalidMessage::Length);
        };
        zeros(bytes(whole, 7, 1)?)?;
        zeros(bytes(whole, 50, 6)?)?;
        let (raw, behind) = rest.as_chunks::<COORDINATE_LEN>();
        if raw.len() != usize::from(count) || !behind.is_empty() {
            return Err(InvalidMessage::Length);
        }
        let write = WriteHead {
            strategy: Strategy::parse(strategy)?,
            rank,
            k,
            unit,
            role: Role::parse(role)?,
            brings: Brings::parse(brings)?,
            offset: u64_at(whole, 8)?,
            bytes: u32_at(whole, 16)?,
            sequence: u32_at(whole, 20)?,
            previous: u32_at(whole, 24)?,
            crc: u32_at(whole, 28)?,
            session: u64_at(whole, 32)?,
            number: u64_at(whole, 40)?,
            lane: u16_at(whole, 48)?,
            coordinates: Coordinates::parse(raw)?,
        };
        write.check()?;
        Ok(write)
    }

    /// What fields say together.
    pub(super) fn check(&self) -> Result<(), InvalidMessage> {
        let count = self.coordinates.count;
        let is_fit = match self.strategy {
            Strategy::Single => self.k == 1 && self.rank == 0 && count == 0,
            Strategy::Ring | Strategy::BinaryTree => {
                self.k == count && self.rank < count && usize::from(count) <= FAN_MAX
            }
            Strategy::Parity => self.is_of_stripe(),
        };
        let is_spread = self.strategy != Strategy::Single;
        if !is_fit || self.sequence <= self.previous || is_spread && self.brings != Brings::Bytes {
            return Err(InvalidMessage::Field);
        }
        self.range().map(|_| ())
    }

    /// How many bytes of data it has.
    #[must_use]
    pub fn data(&self) -> u32 {
        if self.brings == Brings::Nothing { 0 } else { self.bytes }
    }

    /// Whether it is of a stripe that can be, and says the same of its units in all places.
    fn is_of_stripe(&self) -> bool {
        let (k, all) = (usize::from(self.k), self.coordinates.as_slice());
        let role = |rank: usize| if rank < k { Role::Data } else { Role::Parity };
        let is_its = |(rank, one): (usize, &Coordinate)| {
            usize::from(one.unit) == rank && one.role == role(rank)
        };
        let rank = usize::from(self.rank);
        (1..=FAN_MAX).contains(&k)
            && (k + 1..=k + PARITY_MAX).contains(&all.len())
            && rank < all.len()
            && self.role == role(rank)
            && usize::from(self.unit) < k
            && (self.role == Role::Parity || self.unit == self.rank)
            && all.iter().enumerate().all(is_its)
    }

    /// Whether it brings parts of a parity, which its receiver adds up.
    #[must_use]
    pub fn is_part(&self) -> bool {
        self.strategy == Strategy::Parity && self.role == Role::Parity
    }

    /// The bytes of the object it writes.
    ///
    /// # Errors
    /// [`InvalidMessage::Field`] if they are none or too many, [`InvalidMessage::Range`] if no
    /// object is so long.
    pub fn range(&self) -> Result<std::ops::Range<u64>, InvalidMessage> {
        range(self.offset, self.bytes)
    }

    pub(super) fn emit(&self, into: &mut Vec<u8>) {
        let role = self.role as u8;
        let count = self.coordinates.count;
        let brings = self.brings as u8;
        into.extend([self.strategy as u8, self.rank, count, self.k, self.unit, role, brings, 0]);
        into.extend_from_slice(&self.offset.to_le_bytes());
        for field in [self.bytes, self.sequence, self.previous, self.crc] {
            into.extend_from_slice(&field.to_le_bytes());
        }
        into.extend_from_slice(&self.session.to_le_bytes());
        into.extend_from_slice(&self.number.to_le_bytes());
        into.extend_from_slice(&self.lane.to_le_bytes());
        into.extend_from_slice(&[0; 6]);
        for coordinate in self.coordinates.as_slice() {
            into.extend_from_slice(&coordinate.emit());
        }
    }

    pub(super) fn len(&self) -> usize {
        WRITE_LEN + COORDINATE_LEN * self.coordinates.as_slice().len()
    }
}

/// What a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadHead {
    /// Its first byte in the object.
    pub offset: u64,
    /// How many: 1 to [`DATA_MAX`].
    pub bytes: u32,
    /// Which unit of the stripe.
    pub unit: u16,
    /// Where data lies from there on is asked, in so many bytes of answer: not the bytes.
    pub map: bool,
}

impl ReadHead {
    pub(super) fn parse(from: &[u8]) -> Result<ReadHead, InvalidMessage> {
        let whole: &[u8; READ_LEN] = from.try_into().map_err(|_| InvalidMessage::Length)?;
        zeros(bytes(whole, 16, 16)?)?;
        let map = match u16_at(whole, 14)? {
            0 => false,
            1 => true,
            _ => return Err(InvalidMessage::Field),
        };
        let read = ReadHead {
            offset: u64_at(whole, 0)?,
            bytes: u32_at(whole, 8)?,
            unit: u16_at(whole, 12)?,
            map,
        };
        read.range()?;
        Ok(read)
    }

    /// The bytes of the object it reads.
    ///
    /// # Errors
    /// As of [`WriteHead::range`].
    pub fn range(&self) -> Result<std::ops::Range<u64>, InvalidMessage> {
        range(self.offset, self.bytes)
    }

    pub(super) fn emit(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.offset.to_le_bytes());
        into.extend_from_slice(&self.bytes.to_le_bytes());
        into.extend_from_slice(&self.unit.to_le_bytes());
        into.extend_from_slice(&u16::from(self.map).to_le_bytes());
        into.extend_from_slice(&[0; 16]);
    }
}

/// Which strips of an object are a receiver's: `i`, where `i mod count` is its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// How many take the strips in turn: 1 to [`FAN_MAX`].
    pub count: u8,
    /// The receiver's place among them.
    pub place: u8,
    /// Bytes of a strip.
    pub strip: u32,
}

impl Share {
    fn parse([count, place, power]: [u8; 3]) -> Result<Option<Share>, InvalidMessage> {
        if count == 0 {
            return zeros(&[place, power]).map(|()| None);
        }
        let strip = 1u32.checked_shl(u32::from(power)).ok_or(InvalidMessage::Field)?;
        Ok(Some(Share { count, place, strip }))
    }

    fn check(self) -> Result<(), InvalidMessage> {
        let is_fit = self.strip.is_power_of_two()
            && (STRIP_MIN..=DATA_MAX).contains(&self.strip)
            && (1..=FAN_MAX).contains(&usize::from(self.count))
            && self.place < self.count;
        if is_fit { Ok(()) } else { Err(InvalidMessage::Field) }
    }

    fn emit(self) -> [u8; 3] {
        let power = u8::try_from(self.strip.trailing_zeros()).unwrap_or(u8::MAX);
        [self.count, self.place, power]
    }
}

/// What a hole is: bytes of zero from now on, without any that are sent; or, with a share, space
/// that is put aside where there is no data, which is left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoleHead {
    /// Its first byte in the object.
    pub offset: u64,
    /// One behind its last byte; [`u64::MAX`]: all that the object has.
    pub end: u64,
    /// As of a write: the fence and this are the version of every strip it touches.
    pub sequence: u32,
    /// The last acknowledged sequence of these strips.
    pub previous: u32,
    /// The attachment it is for.
    pub session: u64,
    /// That attachment's number of it.
    pub number: u64,
    /// In which of its replay lanes.
    pub lane: u16,
    /// Space is put aside in these strips; none: it is a hole.
    pub share: Option<Share>,
}

impl HoleHead {
    pub(super) fn parse(from: &[u8]) -> Result<HoleHead, InvalidMessage> {
        let whole: &[u8; HOLE_LEN] = from.try_into().map_err(|_| InvalidMessage::Length)?;
        zeros(bytes(whole, 45, 3)?)?;
        let &[.., count, place, power, _, _, _] = whole;
        let hole = HoleHead {
            offset: u64_at(whole, 0)?,
            end: u64_at(whole, 8)?,
            sequence: u32_at(whole, 16)?,
            previous: u32_at(whole, 20)?,
            session: u64_at(whole, 24)?,
            number: u64_at(whole, 32)?,
            lane: u16_at(whole, 40)?,
            share: Share::parse([count, place, power])?,
        };
        hole.check()?;
        Ok(hole)
    }

    /// What fields say together.
    pub(super) fn check(&self) -> Result<(), InvalidMessage> {
        if self.offset >= self.end {
            return Err(InvalidMessage::Range);
        }
        if let Some(share) = self.share {
            share.check()?;
            if self.end - self.offset > RESERVE_MAX {
                return Err(InvalidMessage::Range);
            }
        }
        if self.sequence <= self.previous { Err(InvalidMessage::Field) } else { Ok(()) }
    }

    /// The bytes of the object that are zero then.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.end
    }

    pub(super) fn emit(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.offset.to_le_bytes());
        into.extend_from_slice(&self.end.to_le_bytes());
        into.extend_from_slice(&self.sequence.to_le_bytes());
        into.extend_from_slice(&self.previous.to_le_bytes());
        into.extend_from_slice(&self.session.to_le_bytes());
        into.extend_from_slice(&self.number.to_le_bytes());
        into.extend_from_slice(&self.lane.to_le_bytes());
        into.extend_from_slice(&self.share.map_or([0; 3], Share::emit));
        into.extend_from_slice(&[0; 3]);
    }
}
