//! Space of a disk that is left alone.

use std::io;
use std::path::Path;

/// Space of the disk under a data directory that only deleting, compacting and logging may use.
#[derive(Clone, Copy, Debug)]
pub struct Reserve {
    /// At most this many bytes.
    pub most: u64,
    /// This part of the disk: one in so many.
    pub one_in: u64,
}

impl Default for Reserve {
    fn default() -> Reserve {
        Reserve { most: 256 << 20, one_in: 16 }
    }
}

/// Bytes free under `dir` for us, and bytes to keep back of them.
pub fn disk_room(dir: &Path, reserve: Reserve) -> io::Result<(u64, u64)> {
    let fs = rustix::fs::statvfs(dir)?;
    let total = fs.f_blocks.saturating_mul(fs.f_frsize);
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    Ok((free, (total / reserve.one_in.max(1)).min(reserve.most)))
}
