//! The mount adaptor (the paper's fs-adaptor, DPC 3.1; C6, C21, C23): the kernel's FUSE messages
//! in, file operations out. It knows requests and replies and nothing of any volume: what answers
//! is a [`Backend`].
//!
//! ```text
//! application ── kernel ──▶ /dev/fuse ──▶ worker ──▶ Port::start ──▶ ... ──▶ the volume
//!                              ▲                         │ answered while it spun: the worker
//!                              └──────── writev ◀────────┤ answers the kernel
//!                                                        └ later: Front::complete, any thread
//! ```
//!
//! - Each worker thread has a clone of `/dev/fuse` and a port of it (a queue pair) of its own. It
//!   takes a slot *before* it reads, and reads with `readv` into a small header buffer and the
//!   slot's pages: the data of a write lands where the DPU side takes it. The data of a read goes
//!   to the kernel by `writev` from the slot's pages. The adaptor copies no file data.
//! - The kernel checks permissions (`default_permissions`), so requests carry
//!   [`Flags::CHECKED`](outboard_wire::file::Flags::CHECKED).
//! - Inode numbers are the volume's, but for the root: 0 there, 1 in the kernel.
//! - What the kernel refers to is counted here; the volume hears of a forgotten inode only if that
//!   inode has no name left.
//! - Every message of the kernel is answered exactly once, whatever comes back or does not.
//!
//! `unsafe` lives in [`mod@sys`] alone.

#![deny(unsafe_code)]

mod collected;
mod directories;
mod front;
mod inodes;
mod job;
mod mountpoint;
mod notifier;
mod options;
mod orphan;
mod pending;
mod recalls;
mod releases;
mod reply;
mod session;
#[allow(unsafe_code, reason = "system calls on memory the DPU side shares")]
pub mod sys;
mod table;
mod worker;
mod written;

pub use front::MountFront;
pub use mountpoint::{Connected, MountError, clear_stale, connection, look, unmount};
pub use options::{Cache, FOREVER, KillPoint, MountOptions, UnknownOption};
pub use orphan::is_dead;
pub use outboard_volume::backend::{self, Backend};
pub use session::{Connection, Mounted, mount, take_over};
pub use sys::HeapSlot;
