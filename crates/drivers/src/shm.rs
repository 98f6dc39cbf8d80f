//! Memory two processes share: sealed memfds.
//!
//! The receiver of a descriptor maps it only when nothing its sender does later can make an access
//! fail: it must be a memfd of the small-page kind (so that a punched hole reads as zeroes instead
//! of failing for want of a huge page), sealed against shrinking, and long enough. Huge pages come
//! from the kernel's transparent ones, asked for by advice and used when it has them.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use outboard_link::Region;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// `f_type` of the file system memfds of ordinary pages live in.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A shared region and the descriptor to hand it over with.
#[derive(Debug)]
pub struct Shared {
    fd: OwnedFd,
    region: Arc<Region>,
}

/// Why a received descriptor is not mapped.
#[derive(Debug)]
pub enum NotShareable {
    /// Not a memfd of ordinary pages.
    Kind,
    /// Not sealed against shrinking.
    Unsealed,
    /// Shorter than was said.
    Short,
    /// The kernel refused.
    Io(io::Error),
}

impl std::fmt::Display for NotShareable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotShareable::Kind => f.write_str("the region is not a memfd of ordinary pages"),
            NotShareable::Unsealed => f.write_str("the region is not sealed against shrinking"),
            NotShareable::Short => f.write_str("the region is shorter than announced"),
            NotShareable::Io(error) => write!(f, "the region cannot be mapped: {error}"),
        }
    }
}

impl std::error::Error for NotShareable {}

impl From<rustix::io::Errno> for NotShareable {
    fn from(errno: rustix::io::Errno) -> NotShareable {
        NotShareable::Io(errno.into())
    }
}

/// A mapping, unmapped on drop.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: only a handle for unmapping.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this base and length; the region that used it is gone,
        // because it owns this value. Failure would leave the mapping, which harms nobody.
        let _unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Arc<Region>> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of this
    // program.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0)? };
    let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    let keep = Box::new(Mapping { base, len });
    // SAFETY: just mapped with this length. Advice changes no contents; without huge pages it
    // fails.
    let _advised = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
    // SAFETY: page-aligned by mmap; backed for all of `len` because the callers checked the file's
    // length and its seal against shrinking; unmapped when `keep` drops.
    Ok(Arc::new(unsafe { Region::from_raw(base, len, keep) }))
}

impl Shared {
    /// Fresh zeroed memory of a fixed length, sealed, mapped here. Pages are taken when touched.
    pub fn create(name: &str, len: u64) -> io::Result<Shared> {
        let name = CString::new(name).map_err(io::Error::other)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Never executable; kernels before 6.3 do not know the flag.
        let fd = rustix::fs::memfd_create(&name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(&name, flags))?;
        let fd = crate::fds::lift(fd)?;
        rustix::fs::ftruncate(&fd, len)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let region = map(fd.as_fd(), usize::try_from(len).map_err(io::Error::other)?)?;
        Ok(Shared { fd, region })
    }

    /// Maps memory another process made, after checking that it cannot be taken away.
    pub fn open(fd: OwnedFd, len: u64) -> Result<Shared, NotShareable> {
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| NotShareable::Kind)?;
        if rustix::fs::fstatfs(&fd)?.f_type != TMPFS_MAGIC {
            return Err(NotShareable::Kind);
        }
        if !seals.contains(SealFlags::SHRINK) {
            return Err(NotShareable::Unsealed);
        }
        let size = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        if size < len || len == 0 {
            return Err(NotShareable::Short);
        }
        let len = usize::try_from(len).map_err(|_| NotShareable::Short)?;
        let region = map(fd.as_fd(), len).map_err(NotShareable::Io)?;
        Ok(Shared { fd, region })
    }

    /// The descriptor to hand over.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let here = Shared::create("test", 8192).unwrap();
        let there = Shared::open(here.fd().try_clone_to_owned().unwrap(), 8192).unwrap();
        here.region().store_u64(4096, 42, Ordering::Release).unwrap();
        assert_eq!(there.region().load_u64(4096, Ordering::Acquire), Ok(42));
    }

    /// A region its sender could shrink, or whose pages it could take away, would kill the receiver
    /// with SIGBUS at the next access.
    #[test]
    fn what_could_be_taken_away_is_not_mapped() {
        let unsealed = rustix::fs::memfd_create(c"u", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 8192).unwrap();
        assert!(matches!(Shared::open(unsealed, 8192), Err(NotShareable::Unsealed)));
        let short = Shared::create("s", 4096).unwrap();
        let fd = short.fd().try_clone_to_owned().unwrap();
        assert!(matches!(Shared::open(fd, 8192), Err(NotShareable::Short)));
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        assert!(matches!(
            Shared::open(file.into(), 8192),
            Err(NotShareable::Kind | NotShareable::Unsealed)
        ));
        if let Ok(huge) =
            rustix::fs::memfd_create(c"h", MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING)
        {
            rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
            rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
            assert!(matches!(Shared::open(huge, 4096), Err(NotShareable::Kind)));
        }
        let here = Shared::create("x", 4096).unwrap();
        assert!(rustix::fs::ftruncate(here.fd(), 0).is_err(), "the seal holds");
    }
}
