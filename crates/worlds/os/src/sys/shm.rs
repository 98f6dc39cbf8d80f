//! Memory two processes share: sealed memfds.
//!
//! The receiver of a descriptor maps it only when nothing its sender does later can make an access
//! fail: it must be a memfd of the small-page kind (so that a punched hole reads as zeroes instead
//! of failing for want of a huge page), sealed against shrinking, and long enough.
//!
//! Huge pages come from those the computer has put aside, if there are enough for all of a region,
//! else from the kernel's transparent ones, asked for by advice and used when it has them. A memfd
//! of the former kind is taken only from a sender who could end the receiver anyway (decision
//! 0017). Its pages are put aside for it when it is mapped, so that no access wants one in vain.

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
/// And of that of huge pages.
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
/// Sizes of huge pages there are, bytes.
const HUGE: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;

/// A shared region and the descriptor to hand it over with.
#[derive(Debug)]
pub struct Shared {
    fd: OwnedFd,
    region: Arc<Region>,
}

/// Why a received descriptor is not mapped.
#[derive(Debug)]
pub enum NotShareable {
    /// Not a memfd of ordinary pages, or of huge ones from somebody who may.
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
            NotShareable::Kind => {
                f.write_str("the region is not a memfd of pages that are taken from this process")
            }
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

/// The pages of a memfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    Ordinary,
    /// Of so many bytes.
    Huge(u64),
}

impl Pages {
    /// `None` for what is no memfd.
    fn of(fd: BorrowedFd<'_>) -> io::Result<Option<Pages>> {
        let found = rustix::fs::fstatfs(fd)?;
        let size = u64::try_from(found.f_bsize).unwrap_or(0);
        Ok(match found.f_type {
            TMPFS_MAGIC => Some(Pages::Ordinary),
            HUGETLBFS_MAGIC if HUGE.contains(&size) && size.is_power_of_two() => {
                Some(Pages::Huge(size))
            }
            _ => None,
        })
    }
}

fn map(fd: BorrowedFd<'_>, len: usize, pages: Pages) -> io::Result<Arc<Region>> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let (flags, mapped) = match pages {
        Pages::Ordinary => (MapFlags::SHARED | MapFlags::NORESERVE, Some(len)),
        // Put aside now, or refused now.
        Pages::Huge(size) => {
            let size = usize::try_from(size).map_err(io::Error::other)?;
            (MapFlags::SHARED, len.checked_next_multiple_of(size))
        }
    };
    let mapped = mapped.ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of this
    // program.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), mapped, prot, flags, fd, 0)? };
    let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    let keep = Box::new(Mapping { base, len: mapped });
    // SAFETY: just mapped with this length. Advice changes no contents; without huge pages it
    // fails.
    let _advised = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
    // SAFETY: page-aligned by mmap; backed for all of `len` because the callers checked the file's
    // length, its seal against shrinking, and whether its sender may use pages that can be wanting;
    // unmapped when `keep` drops.
    Ok(Arc::new(unsafe { Region::from_raw(base, len, keep) }))
}

impl Shared {
    /// Fresh zeroed memory of a fixed length, sealed, mapped here. Pages are taken when touched.
    pub fn create(name: &str, len: u64) -> io::Result<Shared> {
        Shared::create_of(name, len, Pages::Ordinary)
    }

    /// The same, of huge pages where this computer has enough of them put aside, of the default
    /// size. For whom [`Shared::open_of_trusted`] opens it.
    pub fn create_large(name: &str, len: u64) -> io::Result<Shared> {
        match Shared::create_huge(name, len) {
            Ok(shared) => Ok(shared),
            Err(error) => {
                tracing::debug!(name, len, %error, "no huge pages: ordinary ones");
                Shared::create(name, len)
            }
        }
    }

    fn create_huge(name: &str, len: u64) -> io::Result<Shared> {
        // The size is the kernel's choice, and known once there is one.
        let probe = rustix::fs::memfd_create(c"outboard-probe", MemfdFlags::HUGETLB)?;
        match Pages::of(probe.as_fd())? {
            // Of less than one page, most would be lost.
            Some(pages @ Pages::Huge(size)) if len >= size => Shared::create_of(name, len, pages),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn create_of(name: &str, len: u64, pages: Pages) -> io::Result<Shared> {
        let name = CString::new(name).map_err(io::Error::other)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let (flags, length) = match pages {
            Pages::Ordinary => (flags, Some(len)),
            Pages::Huge(size) => (flags | MemfdFlags::HUGETLB, len.checked_next_multiple_of(size)),
        };
        // Never executable; kernels before 6.3 do not know the flag.
        let fd = rustix::fs::memfd_create(&name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(&name, flags))?;
        let fd = crate::fds::lift(fd)?;
        rustix::fs::ftruncate(&fd, length.ok_or(io::ErrorKind::OutOfMemory)?)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let region = map(fd.as_fd(), usize::try_from(len).map_err(io::Error::other)?, pages)?;
        Ok(Shared { fd, region })
    }

    /// Maps memory another process made, after checking that it cannot be taken away.
    pub fn open(fd: OwnedFd, len: u64) -> Result<Shared, NotShareable> {
        Shared::open_if(fd, len, |pages| pages == Pages::Ordinary)
    }

    /// The same from a sender who could end this process anyway, and so may use huge pages: one
    /// taken out again (a hole punched) can be wanting.
    pub fn open_of_trusted(fd: OwnedFd, len: u64) -> Result<Shared, NotShareable> {
        Shared::open_if(fd, len, |_| true)
    }

    fn open_if(
        fd: OwnedFd,
        len: u64,
        may: impl FnOnce(Pages) -> bool,
    ) -> Result<Shared, NotShareable> {
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| NotShareable::Kind)?;
        let pages = Pages::of(fd.as_fd()).map_err(NotShareable::Io)?.ok_or(NotShareable::Kind)?;
        if !may(pages) {
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
        let region = map(fd.as_fd(), len, pages).map_err(NotShareable::Io)?;
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
