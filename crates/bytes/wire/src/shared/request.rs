//! A request's first packet: all heads, then data.

use std::ops::Range;

use super::heads::{HOLE, READ, WRITE};
use super::{CAPABILITY_LEN, Capability, HEAD_LEN, HEADS_MAX, Head, InvalidMessage};
use super::{HOLE_LEN, HoleHead, READ_LEN, ReadHead, Rights, WriteHead};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The data goes there.
    Write(WriteHead),
    /// The bytes there are answered.
    Read(ReadHead),
    /// The bytes there are zero from now on.
    Hole(HoleHead),
}

/// All heads of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// What every request has.
    pub head: Head,
    /// What allows it.
    pub capability: Capability,
    /// What it is.
    pub target: Target,
}

/// The first packet of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its heads.
    pub heads: Heads,
    /// The data that has room in this packet.
    pub data: &'a [u8],
}

impl<'a> Request<'a> {
    /// Reads the payload of a first packet.
    ///
    /// # Errors
    /// [`InvalidMessage`], by the first thing that is wrong.
    pub fn parse(payload: &'a [u8]) -> Result<Request<'a>, InvalidMessage> {
        let (heads, data) = Heads::parse(payload)?;
        if data.len() > heads.head.data as usize {
            return Err(InvalidMessage::Length);
        }
        Ok(Request { heads, data })
    }
}

impl Heads {
    /// Reads heads; they, and what stands behind them.
    ///
    /// # Errors
    /// [`InvalidMessage`], by the first thing that is wrong.
    pub fn parse(from: &[u8]) -> Result<(Heads, &[u8]), InvalidMessage> {
        let (head, operation, length) = Head::parse(from)?;
        let (heads, behind) = from.split_at_checked(length).ok_or(InvalidMessage::Length)?;
        let rest = heads.get(HEAD_LEN..).ok_or(InvalidMessage::Length)?;
        let (capability, rest) =
            rest.split_at_checked(CAPABILITY_LEN).ok_or(InvalidMessage::Length)?;
        if length > HEADS_MAX {
            return Err(InvalidMessage::Length);
        }
        let capability = Capability::parse(capability)?;
        let target = match operation {
            WRITE => Target::Write(WriteHead::parse(rest)?),
            READ => Target::Read(ReadHead::parse(rest)?),
            HOLE => Target::Hole(HoleHead::parse(rest)?),
            _ => return Err(InvalidMessage::Operation),
        };
        let heads = Heads { head, capability, target };
        heads.check()?;
        Ok((heads, behind))
    }

    /// What the capability has to allow.
    #[must_use]
    pub fn rights_needed(&self) -> Rights {
        match &self.target {
            Target::Write(_) | Target::Hole(_) => Rights::WRITE,
            Target::Read(_) => Rights::READ,
        }
    }

    /// The bytes of the object they are about, which the capability has to cover.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let (offset, bytes) = match &self.target {
            Target::Write(write) => (write.offset, write.bytes),
            Target::Read(read) => (read.offset, read.bytes),
            Target::Hole(hole) => return hole.range(),
        };
        // Heads that were parsed, or can be written, end where numbers do at the latest.
        offset..offset.saturating_add(u64::from(bytes))
    }

    /// What heads say together: a write brings what it says, others bring nothing.
    fn check(&self) -> Result<(), InvalidMessage> {
        let data = match &self.target {
            Target::Write(write) => write.data(),
            Target::Read(_) | Target::Hole(_) => 0,
        };
        if self.head.data == data { Ok(()) } else { Err(InvalidMessage::Length) }
    }

    /// Writes them behind what `into` holds; data follows.
    ///
    /// # Errors
    /// What [`Request::parse`] would say of them; then nothing is written.
    pub fn emit(&self, into: &mut Vec<u8>) -> Result<(), InvalidMessage> {
        self.check()?;
        let (operation, len) = match &self.target {
            Target::Write(write) => (WRITE, write.len()),
            Target::Read(_) => (READ, READ_LEN),
            Target::Hole(_) => (HOLE, HOLE_LEN),
        };
        let heads = u16::try_from(HEAD_LEN + CAPABILITY_LEN + len);
        let heads = heads.map_err(|_| InvalidMessage::Length)?;
        match &self.target {
            Target::Write(write) => write.check()?,
            Target::Read(read) => read.range().map(|_| ())?,
            Target::Hole(hole) => hole.check()?,
        }
        self.head.emit(operation, heads, into);
        into.extend_from_slice(&self.capability.emit());
        match &self.target {
            Target::Write(write) => write.emit(into),
            Target::Read(read) => read.emit(into),
            Target::Hole(hole) => hole.emit(into),
        }
        Ok(())
    }
}
