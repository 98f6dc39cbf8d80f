//! Flags among a request's arguments, with Linux's numbers where Linux has them.

/// `open(2)` flags that travel, with Linux's numbers (x86-64 and asm-generic agree on these).
pub mod open_flags {
    /// Mask of the access mode: 0 read, 1 write, 2 both.
    pub const ACCMODE: u32 = 3;
    /// Write only.
    pub const WRONLY: u32 = 1;
    /// Read and write.
    pub const RDWR: u32 = 2;
    /// Fail if the name exists.
    pub const EXCL: u32 = 0o200;
    /// Truncate.
    pub const TRUNC: u32 = 0o1000;
    /// Every write goes to the end.
    pub const APPEND: u32 = 0o2000;
    /// Each write is durable with the metadata needed to read it back.
    pub const DSYNC: u32 = 0o10000;
    /// Bypass caches.
    pub const DIRECT: u32 = 0o40000;
    /// Reads do not change the access time.
    pub const NOATIME: u32 = 0o1_000_000;
    /// Each write is durable with all metadata (includes DSYNC).
    pub const SYNC: u32 = 0o4_010_000;
    /// Opened for execution.
    pub const EXEC: u32 = 0o40;
}

/// Flags of one write.
pub mod write_flags {
    /// At the end of the file, whatever the offset says.
    pub const APPEND: u32 = 1;
    /// Clear set-id bits (the writer is not privileged).
    pub const KILL_SUIDGID: u32 = 2;
    /// Durable before the answer.
    pub const DSYNC: u32 = 4;
    /// Write-back of pages stored to through a mapping: permissions were checked at open, and what
    /// may be executed with privileges stays so. Times move, as with any write.
    pub const WRITEBACK: u32 = 8;
    /// With [`DSYNC`]: its times, too.
    pub const SYNC: u32 = 16;
}

/// Flags of `renameat2(2)`.
pub mod rename_flags {
    /// Fail if the new name exists.
    pub const NOREPLACE: u32 = 1;
    /// Swap the two names.
    pub const EXCHANGE: u32 = 2;
    /// Leave a whiteout (refused with EINVAL: only overlays ask for it).
    pub const WHITEOUT: u32 = 4;
}

/// Flags of `setxattr(2)`.
pub mod xattr_flags {
    /// Fail if the attribute exists.
    pub const CREATE: u32 = 1;
    /// Fail if it does not.
    pub const REPLACE: u32 = 2;
    /// Clear the set-group-id bit with an access ACL set by someone outside the group.
    pub const KILL_SGID: u32 = 0x100;
}

/// `whence` of `lseek(2)` where the file system must answer.
pub mod seek {
    /// Next data.
    pub const DATA: u32 = 3;
    /// Next hole.
    pub const HOLE: u32 = 4;
}
