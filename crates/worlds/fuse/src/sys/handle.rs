//! Inodes of a mount by their handles, without a name and without opening them.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};

/// `FILEID_INO64_GEN` of FUSE: a node's number, high half first, and its generation.
const KIND: libc::c_int = 0x81;
const LEN: libc::c_uint = 12;
/// `FUSE_SUPER_MAGIC`
const FUSE: i64 = 0x6573_5546;

#[repr(C)]
struct Handle {
    len: libc::c_uint,
    kind: libc::c_int,
    words: [u32; 3],
}

/// The root of a mount, open: nobody can unmount it meanwhile.
pub(crate) struct Mountpoint(OwnedFd);

impl Mountpoint {
    /// Opens what is mounted at `place`.
    pub(crate) fn open(place: &Path) -> io::Result<Mountpoint> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, place, flags, Mode::empty())?;
        let kind = rustix::fs::fstatfs(&root)?.f_type;
        if kind == FUSE { Ok(Mountpoint(root)) } else { Err(io::ErrorKind::NotConnected.into()) }
    }

    /// The inode of a node that the kernel knows.
    pub(crate) fn inode(&self, node: u64) -> io::Result<OwnedFd> {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
        // The generation is 0, as it is told.
        let words = [half(node >> 32), half(node), 0];
        let mut handle = Handle { len: LEN, kind: KIND, words };
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        // SAFETY: the kernel reads a `file_handle`, which is two integers and as many bytes as the
        // first says, all of them in `handle`; what it gives is a descriptor of our own.
        unsafe {
            let fd = libc::syscall(
                libc::SYS_open_by_handle_at,
                self.0.as_raw_fd(),
                &raw mut handle,
                flags,
            );
            let fd = libc::c_int::try_from(fd).unwrap_or(-1);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
        }
    }
}

/// Sets access time, and modification time if it is given.
pub(crate) fn set_times(
    file: &impl AsFd,
    atime: (i64, u32),
    mtime: Option<(i64, u32)>,
) -> io::Result<()> {
    let time = |(sec, nsec): (i64, u32)| Timespec { tv_sec: sec, tv_nsec: nsec.into() };
    let omitted = Timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    let last_modification = mtime.map_or(omitted, time);
    let times = Timestamps { last_access: time(atime), last_modification };
    Ok(rustix::fs::utimensat(file, c"", &times, AtFlags::EMPTY_PATH)?)
}

/// Makes a file this long.
pub(crate) fn truncate(file: &OwnedFd, size: u64) -> io::Result<()> {
    let size = libc::off_t::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    // SAFETY: the path ends with a zero and lives across the call.
    let outcome = unsafe { libc::truncate(path.as_ptr(), size) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
