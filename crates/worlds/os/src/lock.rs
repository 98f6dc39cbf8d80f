//! Locks on files, by which one process at a time has what lies in them.

use std::fs::{File, TryLockError};
use std::time::{Duration, Instant};

/// How long a holder that is just dying is waited for: the kernel may be finishing its writes.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Locks a file, trying again for a while.
pub fn lock_within(file: &File, patience: Duration) -> Result<(), TryLockError> {
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}
