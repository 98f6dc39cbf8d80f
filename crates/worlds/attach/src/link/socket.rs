//! The attach socket: whole messages, descriptors, and who sent them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outboard_base::{Deadline, Time};
use outboard_wire::attach::{AttachError, MESSAGE_MAX, Message};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use outboard_os::clock;
use outboard_os::sys::descriptors;

/// Most descriptors one message may bring.
const FDS_MAX: usize = 4;

/// Who is at the other end, as the kernel saw it at connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// Process.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What a look at the socket finds.
#[derive(Debug)]
pub enum Received {
    /// A message and the descriptors that came with it.
    Message(Message, Vec<OwnedFd>),
    /// Something that is not a message: answer, then hang up.
    Garbage(AttachError),
    /// Nothing yet.
    Nothing,
    /// The other side is gone.
    Closed,
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|_| {
        let text = format!("socket path {} is too long: at most 107 bytes", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })
}

/// Connects to a DPU side.
///
/// # Errors
/// `NotFound` or `ConnectionRefused` when none listens there; the caller may try again.
pub fn connect(path: &Path) -> io::Result<Peer> {
    let fd = outboard_os::fds::lift(unix_socket()?)?;
    rustix::net::connect(&fd, &address(path)?)?;
    Ok(Peer { fd })
}

/// The DPU side's socket. The file is removed on drop.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, with file permissions `mode`, for `group` if one is given. A socket file
    /// nobody listens on any more is replaced.
    ///
    /// # Errors
    /// `AddrInUse` when somebody listens there.
    pub fn bind(path: &Path, mode: u32, group: Option<u32>) -> io::Result<Listener> {
        let fd = unix_socket()?;
        let at = address(path)?;
        if let Err(rustix::io::Errno::ADDRINUSE) = rustix::net::bind(&fd, &at) {
            match connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                    rustix::net::bind(&fd, &at)?;
                }
                _ => return Err(io::ErrorKind::AddrInUse.into()),
            }
        }
        // The group before the mode: nobody else's group is let in meanwhile.
        std::os::unix::fs::chown(path, None, group)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        rustix::net::listen(&fd, 64)?;
        Ok(Listener { fd, path: path.to_owned() })
    }

    /// Readable when somebody connects.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes a connection, if there is one.
    pub fn accept(&self) -> io::Result<Option<Peer>> {
        use rustix::io::Errno;
        match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => Ok(Some(Peer { fd })),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Already gone is as good.
        let _removed = std::fs::remove_file(&self.path);
    }
}

/// One end of a connection. Never blocks but in [`Peer::receive_by`].
#[derive(Debug)]
pub struct Peer {
    fd: OwnedFd,
}

impl From<OwnedFd> for Peer {
    fn from(fd: OwnedFd) -> Peer {
        Peer { fd }
    }
}

impl From<Peer> for OwnedFd {
    fn from(peer: Peer) -> OwnedFd {
        peer.fd
    }
}

impl Peer {
    /// Readable when there is a message or the other side is gone.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Who is at the other end.
    pub fn cred(&self) -> io::Result<PeerCred> {
        let cred = rustix::net::sockopt::socket_peercred(&self.fd)?;
        Ok(PeerCred {
            pid: u32::try_from(cred.pid.as_raw_nonzero().get()).unwrap_or(0),
            uid: cred.uid.as_raw(),
            gid: cred.gid.as_raw(),
            groups: descriptors::peer_groups(self.fd.as_fd())?,
        })
    }

    /// Sends a message and descriptors.
    ///
    /// # Errors
    /// `WouldBlock` when the other side reads nothing: it has no right to make us wait.
    pub fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = message.emit();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::sendmsg(&self.fd, &[IoSlice::new(&bytes)], &mut control, flags)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Takes a message if there is one.
    pub fn receive(&self) -> io::Result<Received> {
        use rustix::io::Errno;
        let mut bytes = vec![0; MESSAGE_MAX + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = match rustix::net::recvmsg(&self.fd, &mut into, &mut control, flags) {
            Ok(got) => got.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Received::Closed),
            Err(error) => return Err(error.into()),
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                for fd in rights {
                    fds.push(outboard_os::fds::lift(fd)?);
                }
            }
        }
        if got == 0 {
            return Ok(Received::Closed);
        }
        Ok(match Message::parse(bytes.get(..got).unwrap_or_default()) {
            Ok(message) => Received::Message(message, fds),
            Err(error) => Received::Garbage(error),
        })
    }

    /// Waits for a message until `deadline`.
    ///
    /// # Errors
    /// `TimedOut`.
    pub fn receive_by(&self, deadline: Deadline) -> io::Result<Received> {
        loop {
            match self.receive()? {
                Received::Nothing => self.wait_readable(deadline)?,
                other => return Ok(other),
            }
        }
    }

    fn wait_readable(&self, deadline: Time) -> io::Result<()> {
        let left = deadline.since(clock::now());
        if left == Duration::ZERO {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = rustix::time::Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
