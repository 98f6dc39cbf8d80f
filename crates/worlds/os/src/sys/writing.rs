//! Seeing bytes of a file from the page cache to the device, without what a sync does beside that:
//! no metadata, no flush.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Begin to write what is not being written, and wait for all of it.
pub const WAIT: u32 = libc::SYNC_FILE_RANGE_WAIT_BEFORE
    | libc::SYNC_FILE_RANGE_WRITE
    | libc::SYNC_FILE_RANGE_WAIT_AFTER;

/// Begins to write all of a file that the page cache has and the device has not.
pub fn begin(file: &File) -> io::Result<()> {
    sync_file_range(file, 0, 0, libc::SYNC_FILE_RANGE_WRITE)
}

/// Waits until what was written in a range is with the device; an error of any write on its way
/// there since the last time is told.
pub fn wait(file: &File, offset: u64, len: u64) -> io::Result<()> {
    sync_file_range(file, offset, len, WAIT)
}

fn sync_file_range(file: &File, offset: u64, len: u64, flags: u32) -> io::Result<()> {
    let offset = i64::try_from(offset).map_err(io::Error::other)?;
    let len = i64::try_from(len).map_err(io::Error::other)?;
    // SAFETY: the call takes no pointers, and the descriptor is open as long as `file`.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
