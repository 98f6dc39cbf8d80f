//! File operations: the one vocabulary between every front-end and every volume.
//!
//! A [`Request`] travels in the write header (WH) of an nvme-fs command, its payload (file data, a
//! link target, an attribute value) behind it. The answer is a [`Reply`]: a number in the
//! completion's result, and for a few operations a reply header (RH). Reads return their payload in
//! the read buffer. An error is an errno in the completion's status, never a reply.
//!
//! ```text
//! request header          bytes
//!   0  op            u16    which operation
//!   2  flags         u16    CHECKED, REPLAY, DELEGABLE
//!   4  uid           u32  \
//!   8  gid           u32   > who asks (believed as far as the attachment's socket peer allows)
//!  12  pid           u32  /
//!  16  session       u64    which attachment, across losses of the DPU side
//!  24  sequence      u64    names this request; 0: it changes nothing
//!  32  ino           u64    the inode it is about (the parent, for operations on names)
//!  40  fh            u64    open file, 0: none
//!  48  lane          u16    reused only once its earlier request is answered
//!  50  groups        u16    supplementary groups that follow
//!  52  name length   u16
//!  54  second name   u16
//!  56  reserved      u64    zero
//!  64  arguments     8 x u64, meaning by operation
//! 128  groups        u32 each
//!  ..  name, second name (bytes, no terminator)
//! ```
//!
//! **Replay.** A request that changes something carries (session, sequence, lane). The volume
//! records its reply under (session, lane) in the same atomic batch as its effect; a newer sequence
//! in a lane is the host's acknowledgement of the older one and overwrites its record. After a loss
//! of the DPU side the host sends what is unanswered again with [`Flags::REPLAY`], and a recorded
//! reply is answered instead of repeated.

mod attr;
mod dirent;
mod op;
mod reply;
mod request;

pub use attr::{Attr, FileKind, Statfs, mode};
pub use dirent::{Dirent, Dirents, DirentsWriter};
pub use op::{Direction, Op};
pub use reply::Reply;
pub use request::{
    Flags, HEADER_LEN, Header, HeldLock, Lock, LockKind, LockStyle, Request, Setattr, SetattrTime,
    open_flags, rename_flags, seek, write_flags, xattr_flags,
};
