//! The superblock, the counters and the replay records.

use outboard_base::{Errno, Result, Timestamp};
use outboard_wire::file::{Op, Reply};

use super::bytes::{array, put, sum, u16_at, u32_at, u64_at};

/// What the volume says about itself.
///
/// ```text
///  0 magic "OUTBKVFS"   8 format u32   12 zero u32   16 id u64   24 created s i64
/// 32 created ns u32   36 crc u32 (all before)   40
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the layout.
    pub format: u32,
    /// Names the volume, at random.
    pub id: u64,
    /// When it was made.
    pub created: Timestamp,
}

impl Superblock {
    /// Encoded length, bytes.
    pub const LEN: usize = 40;
    /// The layout this code reads and writes.
    pub const FORMAT: u32 = 1;
    const MAGIC: [u8; 8] = *b"OUTBKVFS";

    /// The value.
    pub fn encode(&self) -> Result<[u8; Self::LEN]> {
        let mut value = [0; Self::LEN];
        put(&mut value, 0, &Self::MAGIC)?;
        put(&mut value, 8, &self.format.to_le_bytes())?;
        put(&mut value, 16, &self.id.to_le_bytes())?;
        put(&mut value, 24, &self.created.sec.to_le_bytes())?;
        put(&mut value, 32, &self.created.nsec.to_le_bytes())?;
        let crc = sum(0, value.get(..36).ok_or(Errno::EIO)?);
        put(&mut value, 36, &crc.to_le_bytes())?;
        Ok(value)
    }

    /// The reverse; `EUCLEAN` if it is none. The format is for the caller to judge.
    pub fn decode(value: &[u8]) -> Result<Superblock> {
        let bare = value.get(..36).ok_or(Errno::EUCLEAN)?;
        let right = array::<8>(value, 0)? == Self::MAGIC && u32_at(value, 36)? == sum(0, bare);
        if !right || value.len() != Self::LEN {
            return Err(Errno::EUCLEAN);
        }
        let created = Timestamp::new(u64_at(value, 24)?.cast_signed(), u32_at(value, 32)?);
        Ok(Superblock {
            format: u32_at(value, 8)?,
            id: u64_at(value, 16)?,
            created: created.ok_or(Errno::EUCLEAN)?,
        })
    }
}

/// A counter: `0 value u64   8 crc u32   12`.
pub(crate) fn encode_counter(value: u64) -> Result<[u8; 12]> {
    let mut bytes = [0; 12];
    put(&mut bytes, 0, &value.to_le_bytes())?;
    put(&mut bytes, 8, &sum(value, &[]).to_le_bytes())?;
    Ok(bytes)
}

/// The reverse; `EUCLEAN` if it is none.
pub(crate) fn decode_counter(bytes: &[u8]) -> Result<u64> {
    let value = u64_at(bytes, 0)?;
    if bytes.len() != 12 || u32_at(bytes, 8)? != sum(value, &[]) {
        return Err(Errno::EUCLEAN);
    }
    Ok(value)
}

/// The answer to a request that must not be done twice, kept under (session, lane).
///
/// ```text
///  0 sequence u64   8 result u64   16 op u16   18 zero u16
/// 20 crc u32 (sequence, all other bytes)   24 reply header
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayRecord {
    /// Which request of the lane.
    pub sequence: u64,
    /// Which operation it was.
    pub op: Op,
    /// What it answered.
    pub reply: Reply,
}

impl ReplayRecord {
    const HEADER: usize = 24;

    /// The value.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut value = vec![0; Self::HEADER + 256];
        let header = value.get_mut(Self::HEADER..).ok_or(Errno::EIO)?;
        let (result, len) = self.reply.encode(header)?;
        value.truncate(Self::HEADER + len);
        put(&mut value, 0, &self.sequence.to_le_bytes())?;
        put(&mut value, 8, &result.to_le_bytes())?;
        put(&mut value, 16, &(self.op as u16).to_le_bytes())?;
        let crc = sum(self.sequence, &value);
        put(&mut value, 20, &crc.to_le_bytes())?;
        Ok(value)
    }

    /// The reverse; `EUCLEAN` if it is none.
    pub fn decode(value: &[u8]) -> Result<ReplayRecord> {
        let sequence = u64_at(value, 0)?;
        let mut bare = value.to_vec();
        put(&mut bare, 20, &[0; 4]).map_err(|_| Errno::EUCLEAN)?;
        if u32_at(value, 20)? != sum(sequence, &bare) {
            return Err(Errno::EUCLEAN);
        }
        let op = Op::from_raw(u16_at(value, 16)?).map_err(|_| Errno::EUCLEAN)?;
        let header = value.get(Self::HEADER..).unwrap_or_default();
        let reply = Reply::decode(op, u64_at(value, 8)?, header).map_err(|_| Errno::EUCLEAN)?;
        Ok(ReplayRecord { sequence, op, reply })
    }
}
