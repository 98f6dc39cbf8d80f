//! File data: the one place where bytes of files pass between a program and the volume.
//!
//! What the backend holds in this process (a hybrid cache), if it does, is answered from it; the
//! rest goes on to the volume.

use outboard_base::{Cred, Errno, Fh, Ino, Result, limits};
use outboard_volume::backend::Backend;
use outboard_wire::file::{Reply, Request, open_flags, write_flags};

use crate::link::Link;

/// An open file as the DPU side knows it.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Which inode.
    pub ino: Ino,
    /// Its handle.
    pub fh: Fh,
    /// How it was opened (`open_flags`).
    pub flags: u32,
    /// Who opened it; without supplementary groups: nothing asked under it depends on them.
    pub cred: Cred,
}

/// Reads at `offset`; fewer bytes than asked for only at the end of the file.
pub(crate) fn read<B: Backend>(
    link: &Link<B>,
    it: &Handle,
    out: &mut [u8],
    offset: u64,
) -> Result<usize> {
    let mut done = 0;
    for chunk in out.chunks_mut(limits::IO_MAX) {
        let offset = offset.checked_add(done as u64).ok_or(Errno::EINVAL)?;
        if let Some(len) = link.read_cached(it, offset, chunk) {
            done += len;
            if len < chunk.len() {
                break;
            }
            continue;
        }
        let request = Request::Read {
            ino: it.ino,
            fh: it.fh,
            offset,
            len: u32::try_from(chunk.len()).map_err(|_| Errno::EINVAL)?,
            flags: it.flags & open_flags::NOATIME,
        };
        match link.read(&it.cred, &request, chunk) {
            Ok(len) => done += len,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
        if done % limits::IO_MAX != 0 {
            break;
        }
    }
    Ok(done)
}

/// Writes at `offset`, or at the end for a file opened to append. Fewer bytes than given were taken
/// only if the rest could not be.
pub(crate) fn write<B: Backend>(
    link: &Link<B>,
    it: &Handle,
    data: &[u8],
    offset: u64,
) -> Result<usize> {
    let bit = |given: bool, bit: u32| if given { bit } else { 0 };
    let flags = bit(it.flags & open_flags::APPEND != 0, write_flags::APPEND)
        | bit(it.flags & open_flags::DSYNC != 0, write_flags::DSYNC)
        | bit(!it.cred.is_root(), write_flags::KILL_SUIDGID);
    let mut done = 0;
    for chunk in data.chunks(limits::IO_MAX) {
        let offset = offset.checked_add(done as u64).ok_or(Errno::EFBIG)?;
        if link.write_cached(it, offset, chunk) {
            done += chunk.len();
            continue;
        }
        let request = Request::Write { ino: it.ino, fh: it.fh, offset, flags };
        let written = link.ask(&it.cred, &request, chunk, |reply, _| match reply {
            Reply::Written(len) => Ok(len as usize),
            _ => Err(Errno::EPROTO),
        });
        match written {
            Ok(len) if len == chunk.len() => done += len,
            Ok(len) => return Ok(done + len),
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Makes what was written durable.
pub(crate) fn sync<B: Backend>(link: &Link<B>, it: &Handle, data_only: bool) -> Result<()> {
    let request = Request::Fsync { ino: it.ino, fh: it.fh, data_only };
    link.reply(&it.cred, &request).map(drop)
}
