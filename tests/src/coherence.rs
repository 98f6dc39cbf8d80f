//! Many processes on the same files, by every way there is to a volume, and what each must see.
//!
//! Files are rows of blocks of 4 KiB. Each block is written by one worker alone, but two blocks of
//! different workers share each page of a cache, so grants wander; everybody reads everything. A
//! block holds a [`record`]: who wrote it, for which time, and a checksum of all of it. A
//! [`table`] outside the volume says of each block what was begun, answered and synced. So every
//! read can be judged at once: what it finds was begun, is not older than what was answered before
//! the read began, and is whole.
//!
//! A worker that is killed is *doomed* first: its write under way may be torn, no other. Where the
//! DPU side dies with a worker whose cache it kept, what was not synced may be lost: the worker's
//! blocks are *loose* until somebody has looked.

pub mod record;
pub mod table;
pub mod worker;

pub use table::Table;
pub use worker::{Kind, Worker};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Files.
pub const FILES: u64 = 3;
/// Blocks of each.
pub const BLOCKS: u64 = 96;

/// Who writes a block, of so many workers.
pub fn owner(file: u64, block: u64, workers: u64) -> u64 {
    (file + block) % workers.max(1)
}

/// A file's name below the mount point.
pub fn name(file: u64) -> String {
    format!("shared-{file}")
}
