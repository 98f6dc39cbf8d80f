//! `/dev/fuse`: one open file is one way in and out of a mount's connection.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use outboard_volume::backend::Slot;

const PATH: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE`: this open file joins the connection of another.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;

/// An open file of the FUSE device.
#[derive(Debug)]
pub(crate) struct Device(File);

impl Device {
    /// Opens the device; it belongs to no connection yet.
    pub(crate) fn open() -> io::Result<Device> {
        Ok(Device(OpenOptions::new().read(true).write(true).open(PATH)?))
    }

    /// What `fusermount3` handed over.
    pub(crate) fn from_fd(fd: OwnedFd) -> Device {
        Device(File::from(fd))
    }

    /// To hand it over.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The number a mount's options name.
    pub(crate) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Another way into the same connection, with its own queue of requests under way. Where the
    /// kernel or the permissions of the device do not allow it, the same way once more.
    pub(crate) fn another(&self) -> io::Result<Device> {
        let Ok(other) = Device::open() else { return Ok(Device(self.0.try_clone()?)) };
        let number = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: the request takes a pointer to a descriptor number, which lives across the call.
        let result = unsafe { libc::ioctl(other.0.as_raw_fd(), CLONE, &raw const number) };
        if result == 0 { Ok(other) } else { Ok(Device(self.0.try_clone()?)) }
    }

    /// Reads one message: its start into `head`, the rest into the slot's pages. Blocks.
    pub(crate) fn read(&self, head: &mut [u8], slot: &impl Slot) -> io::Result<usize> {
        let pages = slot.payload();
        let parts = [
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
            libc::iovec { iov_base: pages.as_ptr().cast_mut().cast(), iov_len: pages.len() },
        ];
        // SAFETY: `head` is borrowed exclusively; the slot's pages are borrowed as atomics, which
        // others may write to, and so may the kernel.
        let read = unsafe { libc::readv(self.0.as_raw_fd(), parts.as_ptr(), 2) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Writes one message: a header and a body.
    pub(crate) fn write(&self, head: &[u8], body: &[u8]) -> io::Result<()> {
        let parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: body.as_ptr().cast_mut().cast(), iov_len: body.len() },
        ];
        // SAFETY: both parts are borrowed across the call, and `writev` only reads them.
        let written = unsafe { libc::writev(self.0.as_raw_fd(), parts.as_ptr(), 2) };
        whole(written, head.len() + body.len())
    }

    /// Writes the head of a `STORE` of one byte that there is not: the kernel lets the file grow,
    /// and then fails to fetch the byte, so that its pages stay as they are.
    pub(crate) fn write_no_byte(&self, head: &[u8]) -> io::Result<()> {
        let parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 },
        ];
        // SAFETY: `head` is borrowed across the call, and `writev` only reads it; at the other
        // address nothing is mapped, which the kernel finds out.
        let written = unsafe { libc::writev(self.0.as_raw_fd(), parts.as_ptr(), 2) };
        whole(written, head.len() + 1)
    }

    /// Writes one message: a header and the first `len` bytes of the slot's pages.
    pub(crate) fn write_pages(&self, head: &[u8], slot: &impl Slot, len: usize) -> io::Result<()> {
        let pages = slot.payload();
        let len = len.min(pages.len());
        let parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: pages.as_ptr().cast_mut().cast(), iov_len: len },
        ];
        // SAFETY: `head` is borrowed across the call; so are the slot's pages, `len`
        // bytes or more, and `writev` only reads them.
        let written = unsafe { libc::writev(self.0.as_raw_fd(), parts.as_ptr(), 2) };
        whole(written, head.len() + len)
    }
}

/// Maps all of the slot's pages into this process, as far as there is memory.
pub(crate) fn map_pages(slot: &impl Slot) -> io::Result<()> {
    let pages = slot.payload();
    let at = pages.as_ptr().cast_mut().cast();
    // SAFETY: the pages are mapped memory that lives across the call, and it changes no byte.
    let outcome = unsafe { libc::madvise(at, pages.len(), libc::MADV_POPULATE_WRITE) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The device takes a message whole or not at all.
fn whole(written: isize, len: usize) -> io::Result<()> {
    match usize::try_from(written) {
        Ok(written) if written == len => Ok(()),
        Ok(_) => Err(io::Error::from(io::ErrorKind::WriteZero)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
