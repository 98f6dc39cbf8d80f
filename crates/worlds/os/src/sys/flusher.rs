//! Processes that others' memory waits for.

use std::io;

/// `PR_SET_IO_FLUSHER` of `prctl`.
const SET_IO_FLUSHER: libc::c_int = 57;

/// From now on this thread, and threads and processes it starts, never wait for what they do
/// themselves: where memory is short the kernel writes dirty pages out to make room, and pages of a
/// mount are written by the processes behind it. It also lets these dirty pages of their own while
/// others wait.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_RESOURCE`; `InvalidInput` before Linux 5.6.
pub fn writes_pages_out() -> io::Result<()> {
    let [set, none]: [libc::c_ulong; 2] = [1, 0];
    // SAFETY: the call takes numbers only, and changes how the kernel finds memory for this thread.
    if unsafe { libc::prctl(SET_IO_FLUSHER, set, none, none, none) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET_IO_FLUSHER: libc::c_int = 58;

    #[test]
    fn it_is_so_for_threads_that_are_started_later() {
        let is_set = || {
            let none: libc::c_ulong = 0;
            // SAFETY: as above.
            unsafe { libc::prctl(GET_IO_FLUSHER, none, none, none, none) }
        };
        let began = std::thread::spawn(move || {
            let told = writes_pages_out();
            (told, std::thread::spawn(is_set).join().unwrap())
        });
        match began.join().unwrap() {
            (Ok(()), set) => assert_eq!(set, 1),
            (Err(error), _) => assert_ne!(error.raw_os_error(), Some(libc::EFAULT)),
        }
    }
}
