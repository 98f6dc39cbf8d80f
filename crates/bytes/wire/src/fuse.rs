//! The FUSE kernel interface, version 7: what the kernel asks, what it is answered.
//!
//! A message of the kernel is a 40-byte header ([`InHeader`]), a body whose shape the opcode tells
//! ([`Call`]), and perhaps extensions. An answer is a 16-byte header ([`out_header`]) and a body
//! ([`answer`]). Everything is in the byte order of the host, which for the machines Outboard runs
//! on is little-endian. [`init`] holds the handshake, [`translate`] turns calls into the file
//! operations of [`crate::file`]. The same formats serve `/dev/fuse` and a virtio-fs queue.
//!
//! ```text
//! in header                  out header
//!  0 length      u32          0 length  u32
//!  4 opcode      u32          4 error   i32   0 or -errno
//!  8 unique      u64          8 unique  u64   0: a notification, its code in `error`
//! 16 node id     u64
//! 24 uid         u32
//! 28 gid         u32
//! 32 pid         u32
//! 36 extensions  u16   length in units of 8 bytes, at the end of the message
//! 38 padding     u16
//! ```
//!
//! The kernel is trusted with the machine but not with our memory: lengths and terminators are
//! checked all the same, and a message that does not parse is answered with an errno.

pub mod answer;
mod call;
mod header;
pub mod init;
mod notify;
mod pack;
pub mod translate;

#[cfg(test)]
mod tests;

pub use call::{
    Call, Dialect, Forgets, LockIn, SetattrIn, fattr, getattr_flags, lock_flags, open_in_flags,
    setxattr_flags, write_in_flags,
};
pub use header::{IN_HEADER_LEN, InHeader, Opcode, WRITE_HEAD_LEN};
pub use notify::{inc_epoch, inval_entry, inval_inode, resend, store};

/// The node id of the root directory.
pub const ROOT_ID: u64 = 1;
/// Set in the `unique` of an INTERRUPT message.
pub const INTERRUPT_BIT: u64 = 1;
/// Set in the `unique` of a request that comes again; its answer has it, too.
pub const RESEND_BIT: u64 = 1 << 63;

pub use answer::{OUT_HEADER_LEN, out_header};

const _: () = assert!(cfg!(target_endian = "little"), "the cursor reads little-endian");
