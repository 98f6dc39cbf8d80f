//! What is asked of descriptors: who is at the other end, and a second one for the same file.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Supplementary groups of who is at the other end of a Unix socket (`SO_PEERGROUPS`), as the
/// kernel saw them when it connected.
pub fn peer_groups(fd: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let room = groups.len() * size_of::<u32>();
        let mut len = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
        // SAFETY: the buffer is `room` bytes long and `len` says so; the kernel writes no more than
        // that and puts the length it used or needs into `len`.
        let rc = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let used = usize::try_from(len).unwrap_or(0) / size_of::<u32>();
        if rc == 0 {
            groups.truncate(used);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || used <= groups.len() {
            return Err(error);
        }
        groups.resize(used, 0);
    }
}

/// A descriptor of the caller's own for the open file behind a number, whoever in this process has
/// it: its flags and its position are that one's.
///
/// # Errors
/// `EBADF` if the number is none by now.
pub fn second_of(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers. A number that is not open is an error of it.
    let fd = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// First descriptor that a service manager hands to a program (`sd_listen_fds(3)`).
const LISTEN_FDS_START: RawFd = 3;
const LISTEN_FDS_MAX: usize = 1024;

/// What a service manager handed to this process, each with its name (`LISTEN_PID`, `LISTEN_FDS`,
/// `LISTEN_FDNAMES`; `sd_listen_fds(3)`): none the second time, and no process it starts gets them.
#[must_use]
pub fn handed_over() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let said = |name| std::env::var(name).ok();
    let pid = said("LISTEN_PID").and_then(|text| text.parse::<u32>().ok());
    let count = said("LISTEN_FDS").and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    if pid != Some(std::process::id()) || TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    let names = said("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
    let taken = (LISTEN_FDS_START..).zip(names).take(count.min(LISTEN_FDS_MAX));
    taken.filter_map(|(number, name)| own(number).map(|fd| (name, fd))).collect()
}

/// One that is open since before this program began.
fn own(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: a system call without pointers. A number that is not open is an error of it.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return None;
    }
    // SAFETY: it is open, and was when the program began, as who started it said to this process by
    // its number; so nothing here has opened it, and `handed_over` takes it once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    use super::*;

    /// Flags that are changed through the second are changed for the first: it is one open file.
    #[test]
    fn a_second_descriptor_is_the_same_open_file() {
        let file = tempfile::tempfile().unwrap();
        let second = second_of(file.as_raw_fd()).unwrap();
        fcntl_setfl(&second, fcntl_getfl(&second).unwrap() | OFlags::APPEND).unwrap();
        assert!(fcntl_getfl(&file).unwrap().contains(OFlags::APPEND));
        assert_eq!(second_of(-1).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
