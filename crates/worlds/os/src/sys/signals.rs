//! Signals that wait.

use std::io;
use std::mem::MaybeUninit;

/// These signals wait from now on, if `blocks`, or no longer, as far as this thread is concerned: a
/// signal to the process goes to any thread that does not have it wait. Who waits keeps waiting
/// when this thread executes another program, which is why this is worth doing.
///
/// # Errors
/// `InvalidInput` for a number that is no signal.
pub fn have_wait(signals: &[i32], blocks: bool) -> io::Result<()> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call fills the set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in signals {
        // SAFETY: the set was filled above, and nobody else has it.
        if unsafe { libc::sigaddset(set.as_mut_ptr(), *signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let how = if blocks { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    // SAFETY: the set was filled above, and the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(how, set.as_ptr(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_comes_once_it_does_not_wait_any_more() {
        let thread = std::thread::spawn(|| {
            have_wait(&[libc::SIGURG], true).unwrap();
            let pending = || {
                let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
                let line = status.lines().find_map(|line| line.strip_prefix("SigPnd:")).unwrap();
                u64::from_str_radix(line.trim(), 16).unwrap() != 0
            };
            assert!(!pending());
            // SAFETY: the call takes a number, and the signal is ignored unless it waits.
            assert_eq!(unsafe { libc::raise(libc::SIGURG) }, 0);
            assert!(pending());
            have_wait(&[libc::SIGURG], false).unwrap();
            assert!(!pending());
        });
        thread.join().unwrap();
        assert!(have_wait(&[-1], true).is_err());
    }
}
