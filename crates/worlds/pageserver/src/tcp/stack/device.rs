//! Devices that frames come from and go to, with what the kernel says about each.
//!
//! A frame lies behind a header of the kernel's (`struct virtio_net_hdr`), by which computers save
//! themselves work that the next link might save, too: the checksum may be unfinished, and many
//! segments may be one. A frame that is forwarded keeps its header, so this stays as it was.
//!
//! ```text
//! 0 flags | 1 kind of joined segments | 2 header length u16 | 4 their size u16
//! 6 start of what the checksum covers u16 | 8 its place from there u16 | 10 frame
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use outboard_dds::dpu::director::packet::LINK_MAX;
use rustix::fs::{Mode, OFlags};

use super::sys;

/// Bytes before a frame.
pub const HEADER: usize = 10;
/// The longest frame with its header, bytes: a link's header with tags, and as many joined segments
/// as the kernel ever has in one packet (`GSO_MAX_SIZE`, if it is told so; 64 KiB if not).
pub const FRAME_MAX: usize = HEADER + LINK_MAX + 8 * 65535;
/// Between two looks for a device that was taken away.
const AGAIN: Duration = Duration::from_secs(1);

/// The checksum is unfinished.
const UNFINISHED: u8 = 1;
/// The checksum was looked at and is right.
const CHECKED: u8 = 2;

/// Whether who received a frame has to look at its checksum. A frame that never left this computer
/// has none, and a device may have looked.
#[must_use]
pub fn is_trusted(frame: &[u8]) -> bool {
    frame.first().is_some_and(|flags| flags & (UNFINISHED | CHECKED) != 0)
}

/// Where an unfinished checksum starts, and its place from there.
#[must_use]
pub fn unfinished(frame: &[u8]) -> Option<(usize, usize)> {
    let number = |at: usize| {
        let bytes = frame.get(at..at + 2)?.try_into().ok()?;
        Some(usize::from(u16::from_ne_bytes(bytes)))
    };
    let is = frame.first()? & UNFINISHED != 0;
    if is { number(6).zip(number(8)) } else { None }
}

/// One end of the director. Used by several threads; one of them receives.
pub trait Device: Send + Sync {
    /// Readable when there is a frame.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Bytes of the largest IP packet it sends.
    fn mtu(&self) -> usize;

    /// Receives a frame, header and all; its length, or `None` if there is none. `buf` has room for
    /// [`FRAME_MAX`] bytes.
    ///
    /// # Errors
    /// The device is gone.
    fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends a frame, header and all; false if it is lost, as frames may be.
    fn send(&self, frame: &[u8]) -> bool;

    /// Finds a device again that was taken away and made again. When to look again, if it is away.
    fn tend(&self) -> Option<Duration> {
        None
    }
}

/// A network device that there is, through a packet socket: every frame that comes to it.
///
/// It is known by its name: one of that name that is made when it was taken away takes its place,
/// on the same socket, which stays in the namespace where it was opened.
#[derive(Debug)]
pub struct Packets {
    fd: OwnedFd,
    name: String,
    mtu: AtomicUsize,
    /// It was taken away or switched off.
    away: AtomicBool,
}

impl Packets {
    /// Opens the device of this name in the namespace of the calling thread.
    ///
    /// # Errors
    /// There is none, or the caller may not.
    pub fn open(name: &str) -> io::Result<Packets> {
        let fd = sys::packet_socket(name)?;
        let mtu = AtomicUsize::new(sys::mtu(fd.as_fd(), name)?);
        Ok(Packets { fd, name: name.to_owned(), mtu, away: AtomicBool::new(false) })
    }

    /// It says nothing more; once, until it does again.
    fn miss(&self) {
        if !self.away.swap(true, Ordering::AcqRel) {
            let device = &self.name;
            tracing::warn!(
                device,
                "the network device was taken away or switched off: nothing passes until it is \
                 there and up again"
            );
        }
    }
}

impl Device for Packets {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn mtu(&self) -> usize {
        self.mtu.load(Ordering::Relaxed)
    }

    fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match sys::receive(self.fd.as_fd(), buf) {
            Ok((len, None)) => Ok(Some(len)),
            Ok((len, Some(tag))) => Ok(Some(put_back(buf, len, tag))),
            Err(error) => {
                if error.raw_os_error() == Some(libc::ENETDOWN) {
                    self.miss();
                }
                nothing(error)
            }
        }
    }

    fn send(&self, frame: &[u8]) -> bool {
        rustix::io::write(&self.fd, frame).is_ok()
    }

    fn tend(&self) -> Option<Duration> {
        // Down again while it is looked at: the socket says so, and that is not overwritten.
        if !self.away.load(Ordering::Acquire) || !self.away.swap(false, Ordering::AcqRel) {
            return None;
        }
        let found = sys::find_again(self.fd.as_fd(), &self.name).unwrap_or_else(|error| {
            tracing::debug!(device = self.name, %error, "not there again");
            false
        });
        if !found {
            self.away.store(true, Ordering::Release);
            return Some(AGAIN);
        }
        if let Ok(mtu) = sys::mtu(self.fd.as_fd(), &self.name) {
            self.mtu.store(mtu, Ordering::Relaxed);
        }
        tracing::warn!(device = self.name, "the network device is there again");
        None
    }
}

/// What a failed read says: that there is no frame, or that there will be none.
fn nothing(error: io::Error) -> io::Result<Option<usize>> {
    match error.raw_os_error() {
        // Switched off, which it may be for a while.
        Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN) => Ok(None),
        // Segments joined in a way the header has no word for (SCTP's are): the kernel drops them.
        Some(libc::EINVAL) => Ok(None),
        _ => Err(error),
    }
}

/// Puts the tag of a virtual network back where it was; the kernel keeps it beside the frame.
fn put_back(buf: &mut [u8], len: usize, (protocol, tag): sys::Tag) -> usize {
    let at = HEADER + 12;
    if len < at || len + 4 > buf.len() {
        return len;
    }
    buf.copy_within(at..len, at + 4);
    for (place, number) in [(at, protocol), (at + 2, tag)] {
        if let Some(place) = buf.get_mut(place..place + 2) {
            place.copy_from_slice(&number.to_be_bytes());
        }
    }
    // The length of the header, and where the checksum starts, if they are said.
    for place in [2, 6] {
        let Some(field) = buf.get_mut(place..place + 2) else { continue };
        let said = <[u8; 2]>::try_from(&*field).map_or(0, u16::from_ne_bytes);
        if said > 0 {
            field.copy_from_slice(&said.saturating_add(4).to_ne_bytes());
        }
    }
    len + 4
}

/// A device of our own, which the kernel has the other end of. It goes when it is dropped.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    mtu: usize,
}

impl Tap {
    /// Makes a device of this name in the namespace of the calling thread, and switches it on.
    ///
    /// # Errors
    /// There is one, or the caller may not.
    pub fn make(name: &str) -> io::Result<Tap> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
        sys::make_tap(fd.as_fd(), name)?;
        let (domain, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM);
        let socket =
            rustix::net::socket_with(domain, kind, rustix::net::SocketFlags::CLOEXEC, None)?;
        sys::switch_on(socket.as_fd(), name)?;
        let mtu = sys::mtu(socket.as_fd(), name)?;
        Ok(Tap { fd, mtu })
    }
}

impl Device for Tap {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        rustix::io::read(&self.fd, buf).map_or_else(|error| nothing(error.into()), |n| Ok(Some(n)))
    }

    fn send(&self, frame: &[u8]) -> bool {
        rustix::io::write(&self.fd, frame).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel answers EINVAL to who receives a frame of joined SCTP segments with its header,
    /// and has dropped it. That ended the first worker, and with it all forwarding: by a frame that
    /// anybody may send.
    #[test]
    fn a_frame_that_has_no_header_is_lost_and_the_device_stays() {
        for passing in [libc::EINVAL, libc::ENETDOWN, libc::EAGAIN] {
            assert!(matches!(nothing(io::Error::from_raw_os_error(passing)), Ok(None)));
        }
        assert!(nothing(io::Error::from_raw_os_error(libc::EBADFD)).is_err());
    }

    #[test]
    fn a_tag_goes_back_and_the_offsets_behind_it_move() {
        let mut buf = vec![0; 64];
        let header = [1, 1, 54, 0, 0, 5, 34, 0, 16, 0];
        buf[..HEADER].copy_from_slice(&header);
        (0u8..20).for_each(|n| buf[HEADER + usize::from(n)] = n);
        let len = put_back(&mut buf, HEADER + 20, (0x88A8, 7));
        assert_eq!(len, HEADER + 24);
        assert_eq!(buf[HEADER..HEADER + 12], (0u8..12).collect::<Vec<_>>());
        assert_eq!(buf[HEADER + 12..HEADER + 18], [0x88, 0xA8, 0, 7, 12, 13]);
        assert_eq!(buf[len - 1], 19);
        assert_eq!(unfinished(&buf), Some((38, 16)));
        assert!(is_trusted(&buf));
        assert_eq!(put_back(&mut buf, 5, (0x8100, 7)), 5, "too short for one");
        assert!(!is_trusted(&[]) && unfinished(&[1, 0]).is_none());
        buf[..HEADER].fill(0);
        assert_eq!(unfinished(&buf), None);
    }
}
