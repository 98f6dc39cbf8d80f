//! Unmodified programs on a kv volume, past the kernel: `liboutboard_preload.so`.
//!
//! ```text
//! export OUTBOARD_PREFIX=/mnt/volume OUTBOARD_SOCKET=data/dpu.sock
//! LD_PRELOAD=liboutboard_preload.so cp a /mnt/volume/
//! ```
//!
//! The functions of libc that take a path or a descriptor are stood in for (`sys`). What lies
//! below the prefix goes straight into queue pairs of this process (`attach`, the crate
//! `outboard-client`); everything else goes to libc untouched. The same library holds the C
//! interface of `include/outboard.h`.
//!
//! # Invariants
//!
//! 1. A descriptor number of the volume is a real one: a *placeholder* keeps it from being given to
//!    anything else and holds the file offset, so that `dup`, `fork` and `exec` share it as always.
//!    Any call that is not stood in for fails on a placeholder with `EBADF` or `EPERM`; it never
//!    reads or writes anything else.
//! 2. Where the volume is mounted at the prefix, a placeholder can be replaced by the mount's own
//!    descriptor of the same inode (it *becomes real*): before a fork, an exec, an `mmap`, a lock,
//!    or use as a standard stream. From then on calls that are not stood in for work, too.
//! 3. A process that was forked off never touches its parent's queues. It attaches for itself when
//!    it first needs to, and opens again what it inherited.
//! 4. The library calls libc itself while a call of the program is inside; such a call, or one by a
//!    signal handler that interrupted it, is never taken for the program's.
//!
//! The page is `docs/internals/preload.md`.

#![deny(unsafe_code)]

mod attach;
mod calls;
mod config;
mod shadow;
#[allow(unsafe_code, unreachable_pub, reason = "C programs call it, and hand in pointers")]
mod sys;
mod table;

use std::sync::atomic::{AtomicU64, Ordering};

/// Tells the user something, on standard error.
fn say(text: &str) {
    let line = format!("outboard: {text}\n");
    if let Some(stderr) = sys::signals::borrowed(2) {
        // Nobody can be told that telling failed.
        let _said = rustix::io::write(stderr, line.as_bytes());
    }
}

/// The same, once for each text in a process.
fn say_once(text: &str) {
    static SAID: AtomicU64 = AtomicU64::new(0);
    let sum = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let bit = 1 << (sum >> 58);
    if SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        say(text);
    }
}
