//! The handshake: the kernel offers a version and capabilities, we answer with those we take.

use std::time::Duration;

use outboard_base::{Errno, Result, limits};

use super::pack::Pack;
use crate::cursor::u32_at;

/// Major version of the interface.
pub const MAJOR: u32 = 7;
/// Newest minor version whose messages are known here.
pub const MINOR: u32 = 45;
/// Oldest minor version that is served (Linux 5.4): MAX_PAGES, COPY_FILE_RANGE and the kill flags.
pub const MINOR_MIN: u32 = 31;

/// Capabilities, by their names in the kernel's header.
#[expect(missing_docs, reason = "each is the kernel's flag of that name")]
pub mod flags {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// What the kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitIn {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Longest read-ahead, bytes.
    pub max_readahead: u32,
    /// Capabilities offered.
    pub flags: u64,
}

impl InitIn {
    /// Decodes the body of INIT.
    pub fn parse(body: &[u8]) -> Result<InitIn> {
        let low = u64::from(u32_at(body, 12)?);
        let high = if low & flags::INIT_EXT == 0 { 0 } else { u64::from(u32_at(body, 16)?) << 32 };
        Ok(InitIn {
            major: u32_at(body, 0)?,
            minor: u32_at(body, 4)?,
            max_readahead: u32_at(body, 8)?,
            flags: low | high,
        })
    }
}

/// What is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitOut {
    /// Longest read-ahead, bytes.
    pub max_readahead: u32,
    /// Capabilities taken; a subset of those offered.
    pub flags: u64,
    /// Most requests nobody waits for (read-ahead, asynchronous direct I/O) under way at once.
    pub max_background: u16,
    /// How many of those make the kernel call the device congested.
    pub congestion_threshold: u16,
    /// Longest write, bytes.
    pub max_write: u32,
    /// Granularity of times, nanoseconds.
    pub time_granularity: u32,
    /// Most pages of one request.
    pub max_pages: u16,
    /// A request unanswered this long aborts the connection; zero: never.
    pub request_timeout: Duration,
}

impl InitOut {
    /// Length of the body, bytes.
    pub const LEN: usize = 64;

    /// Agrees with the kernel: of `wanted` what it offers. `EPROTO` for a kernel of another major
    /// version or older than [`MINOR_MIN`].
    pub fn negotiate(offer: &InitIn, wanted: u64) -> Result<InitOut> {
        if offer.major != MAJOR || offer.minor < MINOR_MIN {
            return Err(Errno::EPROTO);
        }
        let max_write = u32::try_from(limits::IO_MAX).unwrap_or(u32::MAX);
        Ok(InitOut {
            max_readahead: offer.max_readahead.min(max_write),
            flags: offer.flags & (wanted | flags::INIT_EXT),
            max_background: 64,
            congestion_threshold: 48,
            max_write,
            time_granularity: 1,
            max_pages: u16::try_from(limits::IO_MAX / limits::PAGE).unwrap_or(u16::MAX),
            request_timeout: Duration::ZERO,
        })
    }

    /// Whether `flag` was taken.
    #[must_use]
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag == flag
    }

    /// The body of the answer.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let (low, high) = crate::cursor::unpack(self.flags);
        let timeout = u16::try_from(self.request_timeout.as_secs()).unwrap_or(u16::MAX);
        let mut out = Pack::<{ Self::LEN }>::new();
        out.u32(MAJOR).u32(MINOR).u32(self.max_readahead).u32(low);
        out.u16(self.max_background).u16(self.congestion_threshold);
        out.u32(self.max_write).u32(self.time_granularity).u16(self.max_pages).u16(0);
        out.u32(high).u32(0).u16(timeout).skip(22);
        out.finish()
    }
}

/// The answer to a kernel of a larger major version: ours, upon which it asks again.
#[must_use]
pub fn other_major() -> [u8; 8] {
    let mut out = Pack::<8>::new();
    out.u32(MAJOR).u32(MINOR).finish()
}
