//! The bytes of a request header: written, and read from whoever wrote them.

use outboard_base::{Cred, Errno, Fh, Ino, Result, SessionId, limits};

use super::raw::Raw;
use super::{Flags, Header, Request};
use crate::cursor::{bytes, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::file::Op;

/// Length of the fixed part of a request header, bytes.
pub const HEADER_LEN: usize = 128;
const ARGUMENTS: usize = 64;

/// Which lengths of names an operation takes: (first, second), inclusive ranges.
fn name_limits(op: Op) -> (std::ops::RangeInclusive<usize>, std::ops::RangeInclusive<usize>) {
    let names = 1..=limits::NAME_MAX;
    match op {
        Op::Rename => (names.clone(), names),
        Op::Lookup
        | Op::Symlink
        | Op::Mknod
        | Op::Mkdir
        | Op::Unlink
        | Op::Rmdir
        | Op::Link
        | Op::Create => (names, 0..=0),
        Op::Getxattr | Op::Setxattr | Op::Removexattr => (1..=limits::XATTR_NAME_MAX, 0..=0),
        _ => (0..=0, 0..=0),
    }
}

/// Names of directory entries are bytes without `/` and zero; `.` and `..` are the front-end's.
/// Extended attribute names may hold a slash.
fn check_name(op: Op, name: &[u8]) -> Result<()> {
    let is_xattr = matches!(op, Op::Getxattr | Op::Setxattr | Op::Removexattr);
    let forbidden = name.contains(&0) || (!is_xattr && name.contains(&b'/'));
    if forbidden || name == b"." || name == b".." {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

impl<'a> Request<'a> {
    /// Length of the encoded header, bytes.
    #[must_use]
    pub fn encoded_len(&self, header: &Header) -> usize {
        let raw = Raw::of(self);
        HEADER_LEN + 4 * header.cred.groups.len() + raw.name.len() + raw.second.len()
    }

    /// Encodes into the start of `into` and returns the length. `ENAMETOOLONG` for a name beyond
    /// the limits, `EINVAL` for too many groups, `EPROTO` when `into` is too short.
    pub fn encode(&self, header: &Header, into: &mut [u8]) -> Result<usize> {
        let raw = Raw::of(self);
        let (first, second) = name_limits(self.op());
        if raw.name.len() > *first.end() || raw.second.len() > *second.end() {
            return Err(Errno::ENAMETOOLONG);
        }
        if header.cred.groups.len() > limits::GROUPS_MAX {
            return Err(Errno::EINVAL);
        }
        let short = |len: usize| u16::try_from(len).map_err(|_| Errno::EINVAL);
        put_u16(into, 0, self.op() as u16)?;
        put_u16(into, 2, header.flags.0)?;
        put_u32(into, 4, header.cred.uid)?;
        put_u32(into, 8, header.cred.gid)?;
        put_u32(into, 12, header.cred.pid)?;
        put_u64(into, 16, header.session.0)?;
        put_u64(into, 24, header.sequence)?;
        put_u64(into, 32, raw.ino.0)?;
        put_u64(into, 40, raw.fh.0)?;
        put_u16(into, 48, header.lane)?;
        put_u16(into, 50, short(header.cred.groups.len())?)?;
        put_u16(into, 52, short(raw.name.len())?)?;
        put_u16(into, 54, short(raw.second.len())?)?;
        put_u64(into, 56, 0)?;
        for (i, arg) in raw.args.into_iter().enumerate() {
            put_u64(into, ARGUMENTS + 8 * i, arg)?;
        }
        let mut at = HEADER_LEN;
        for &group in &header.cred.groups {
            put_u32(into, at, group)?;
            at += 4;
        }
        for name in [raw.name, raw.second] {
            into.get_mut(at..at + name.len()).ok_or(Errno::EPROTO)?.copy_from_slice(name);
            at += name.len();
        }
        Ok(at)
    }

    /// Decodes a header that ends with its bytes. Nothing is trusted: `EPROTO` for lengths and
    /// fields that do not add up, `ENOSYS` for an unknown operation, `ENAMETOOLONG` and `EINVAL`
    /// for names.
    pub fn decode(from: &'a [u8]) -> Result<(Header, Request<'a>)> {
        let op = Op::from_raw(u16_at(from, 0)?)?;
        let flags = Flags(u16_at(from, 2)?);
        let groups = usize::from(u16_at(from, 50)?);
        let name_len = usize::from(u16_at(from, 52)?);
        let second_len = usize::from(u16_at(from, 54)?);
        if flags.0 & !Flags::KNOWN != 0 || groups > limits::GROUPS_MAX {
            return Err(Errno::EPROTO);
        }
        let names = HEADER_LEN + 4 * groups;
        if from.len() != names + name_len + second_len {
            return Err(Errno::EPROTO);
        }
        let (first_limits, second_limits) = name_limits(op);
        for (len, limits) in [(name_len, first_limits), (second_len, second_limits)] {
            if len > *limits.end() {
                return Err(Errno::ENAMETOOLONG);
            }
            if len < *limits.start() {
                return Err(Errno::ENOENT);
            }
        }
        let mut raw = Raw {
            ino: Ino(u64_at(from, 32)?),
            fh: Fh(u64_at(from, 40)?),
            args: [0; 8],
            name: bytes(from, names, name_len)?,
            second: bytes(from, names + name_len, second_len)?,
        };
        for name in [raw.name, raw.second] {
            check_name(op, name)?;
        }
        for (i, arg) in raw.args.iter_mut().enumerate() {
            *arg = u64_at(from, ARGUMENTS + 8 * i)?;
        }
        let cred = Cred {
            uid: u32_at(from, 4)?,
            gid: u32_at(from, 8)?,
            pid: u32_at(from, 12)?,
            groups: (0..groups)
                .map(|i| u32_at(from, HEADER_LEN + 4 * i))
                .collect::<Result<Vec<u32>>>()?,
        };
        let header = Header {
            cred,
            flags,
            session: SessionId(u64_at(from, 16)?),
            sequence: u64_at(from, 24)?,
            lane: u16_at(from, 48)?,
        };
        Ok((header, raw.request(op)?))
    }
}
