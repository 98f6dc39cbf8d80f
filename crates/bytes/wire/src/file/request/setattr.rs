//! Which attributes a `Setattr` changes, and the argument words that say so.

use outboard_base::{Errno, Result, Timestamp};

use super::raw::args;
use crate::cursor::{pack, unpack};

/// A new access or modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetattrTime {
    /// The DPU side's present time.
    Now,
    /// This one.
    At(Timestamp),
}

/// Which attributes change, and to what.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Setattr {
    /// Permissions with set-id and sticky bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length, bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetattrTime>,
    /// Modification time.
    pub mtime: Option<SetattrTime>,
    /// Time of the last change, which is the present otherwise. Of a kernel alone, which keeps it.
    pub ctime: Option<Timestamp>,
    /// Clear set-id bits, as a write by an unprivileged process does.
    pub kill_suidgid: bool,
}

const SET_MODE: u32 = 1;
const SET_UID: u32 = 2;
const SET_GID: u32 = 4;
const SET_SIZE: u32 = 8;
const SET_ATIME: u32 = 16;
const SET_ATIME_NOW: u32 = 32;
const SET_MTIME: u32 = 64;
const SET_MTIME_NOW: u32 = 128;
const KILL_SUIDGID: u32 = 256;
const SET_CTIME: u32 = 512;
const SET_KNOWN: u32 = 1023;

pub(super) fn encode_setattr(set: &Setattr) -> [u64; 8] {
    let time = |time: Option<SetattrTime>, given: u32, now: u32| match time {
        None => (0, Timestamp::default()),
        Some(SetattrTime::Now) => (given | now, Timestamp::default()),
        Some(SetattrTime::At(at)) => (given, at),
    };
    let (atime_bits, atime) = time(set.atime, SET_ATIME, SET_ATIME_NOW);
    let (mtime_bits, mtime) = time(set.mtime, SET_MTIME, SET_MTIME_NOW);
    let bit = |given: bool, bit: u32| if given { bit } else { 0 };
    let valid = bit(set.mode.is_some(), SET_MODE)
        | bit(set.uid.is_some(), SET_UID)
        | bit(set.gid.is_some(), SET_GID)
        | bit(set.size.is_some(), SET_SIZE)
        | bit(set.kill_suidgid, KILL_SUIDGID)
        | bit(set.ctime.is_some(), SET_CTIME)
        | atime_bits
        | mtime_bits;
    let ctime = set.ctime.unwrap_or_default();
    args([
        pack(valid, set.mode.unwrap_or_default()),
        pack(set.uid.unwrap_or_default(), set.gid.unwrap_or_default()),
        set.size.unwrap_or_default(),
        atime.sec.cast_unsigned(),
        mtime.sec.cast_unsigned(),
        pack(atime.nsec, mtime.nsec),
        ctime.sec.cast_unsigned(),
        u64::from(ctime.nsec),
    ])
}

pub(super) fn decode_setattr(args: &[u64; 8]) -> Result<Setattr> {
    let [modes, owners, size, atime, mtime, nsecs, ctime, ctime_nsec] = *args;
    let (valid, mode) = unpack(modes);
    let (uid, gid) = unpack(owners);
    let (atime_nsec, mtime_nsec) = unpack(nsecs);
    if valid & !SET_KNOWN != 0 {
        return Err(Errno::EPROTO);
    }
    let has = |bit: u32| valid & bit != 0;
    let time = |given: u32, now: u32, sec: u64, nsec: u32| -> Result<Option<SetattrTime>> {
        Ok(match (has(given), has(now)) {
            (false, _) => None,
            (true, true) => Some(SetattrTime::Now),
            (true, false) => {
                Some(SetattrTime::At(Timestamp::new(sec.cast_signed(), nsec).ok_or(Errno::EINVAL)?))
            }
        })
    };
    let ctime = has(SET_CTIME).then(|| {
        let nsec = u32::try_from(ctime_nsec).ok();
        nsec.and_then(|nsec| Timestamp::new(ctime.cast_signed(), nsec)).ok_or(Errno::EINVAL)
    });
    Ok(Setattr {
        mode: has(SET_MODE).then_some(mode),
        uid: has(SET_UID).then_some(uid),
        gid: has(SET_GID).then_some(gid),
        size: has(SET_SIZE).then_some(size),
        atime: time(SET_ATIME, SET_ATIME_NOW, atime, atime_nsec)?,
        mtime: time(SET_MTIME, SET_MTIME_NOW, mtime, mtime_nsec)?,
        ctime: ctime.transpose()?,
        kill_suidgid: has(KILL_SUIDGID),
    })
}
