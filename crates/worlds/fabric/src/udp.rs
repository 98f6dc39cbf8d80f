//! A UDP socket that never blocks and moves many datagrams with one system call.
//!
//! Datagrams to one receiver that follow each other and have one length (the last may be shorter)
//! go to the kernel as one, which cuts it (`UDP_SEGMENT`); what came so is given by the kernel as
//! one and is cut here (`UDP_GRO`). Where a device cannot, they go one by one.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::UdpGroSegment;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
};
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force,
};

/// The largest datagram there is, and the most that one call moves.
const LARGEST: usize = 65_507;
/// Datagrams the kernel cuts one call into, at most.
const SEGMENTS: usize = 64;
/// Bytes that wait for room in the kernel; what is beyond is lost, as on a network.
const WAITING_MAX: usize = 4 << 20;
/// What the kernel may hold of either direction: a burst of every peer's window.
const BUFFER: usize = 4 << 20;

/// What a socket has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Datagrams given to the kernel.
    pub sent: u64,
    /// Datagrams received.
    pub received: u64,
    /// System calls that moved them.
    pub calls: u64,
    /// Datagrams that were not sent: no room, or no way there.
    pub unsent: u64,
}

/// Datagrams that go with one call.
struct Run {
    to: SocketAddrV4,
    /// Bytes of each but the last.
    size: usize,
    bytes: Vec<u8>,
    /// A shorter one was the last.
    is_closed: bool,
}

impl Run {
    fn takes(&self, to: SocketAddrV4, len: usize) -> bool {
        !self.is_closed
            && self.to == to
            && len <= self.size
            && self.bytes.len() + len <= LARGEST
            && self.bytes.len() / self.size.max(1) < SEGMENTS
    }

    fn datagrams(&self) -> u64 {
        self.bytes.len().div_ceil(self.size.max(1)).max(1) as u64
    }
}

/// A socket at an address of its own.
pub struct Socket {
    socket: UdpSocket,
    local: SocketAddrV4,
    waiting: std::collections::VecDeque<Run>,
    waiting_bytes: usize,
    /// Buffers of runs that went.
    spare: Vec<Vec<u8>>,
    buffer: Vec<u8>,
    control: Vec<u8>,
    cuts: bool,
    figures: Figures,
}

/// The address from which this machine reaches `to`.
///
/// # Errors
/// There is no way there.
pub fn source_for(to: SocketAddrV4) -> io::Result<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    Ok(*v4(socket.local_addr()?)?.ip())
}

fn v4(address: std::net::SocketAddr) -> io::Result<SocketAddrV4> {
    match address {
        std::net::SocketAddr::V4(address) => Ok(address),
        std::net::SocketAddr::V6(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

impl Socket {
    /// A socket at `address`; port 0 is one that is free. The address has to be one of this
    /// machine's, as packets' checksums are over it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn bind(address: SocketAddrV4) -> io::Result<Socket> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let local = v4(socket.local_addr()?)?;
        // Beyond what everybody may have only root may go; what cannot be had is not needed.
        let _smaller = set_socket_recv_buffer_size_force(&socket, BUFFER)
            .or_else(|_| set_socket_recv_buffer_size(&socket, BUFFER));
        let _smaller = set_socket_send_buffer_size_force(&socket, BUFFER)
            .or_else(|_| set_socket_send_buffer_size(&socket, BUFFER));
        let _one_by_one = setsockopt(&socket, UdpGroSegment, &true);
        Ok(Socket {
            socket,
            local,
            waiting: std::collections::VecDeque::new(),
            waiting_bytes: 0,
            spare: Vec::new(),
            buffer: vec![0; 1 << 16],
            control: nix::cmsg_space!(i32),
            cuts: true,
            figures: Figures::default(),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn local(&self) -> SocketAddrV4 {
        self.local
    }

    /// Readable when a datagram is there.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What it has moved.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// Whether something waits for room in the kernel.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Gives what has come, with at most `calls` calls; how many datagrams that was.
    ///
    /// # Errors
    /// The kernel's, of a socket that will never give anything.
    pub fn receive(
        &mut self,
        calls: usize,
        give: &mut dyn FnMut(SocketAddrV4, &[u8]),
    ) -> io::Result<usize> {
        let mut given = 0;
        for _ in 0..calls {
            let Socket { socket, buffer, control, figures, .. } = self;
            let mut into = [IoSliceMut::new(buffer)];
            let (fd, flags) = (socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
            let (len, from, size) = match recvmsg::<SockaddrIn>(fd, &mut into, Some(control), flags)
            {
                Ok(message) => (message.bytes, message.address, size_of(&message)),
                Err(Errno::EAGAIN) => return Ok(given),
                // What somebody unreachable says of an earlier datagram.
                Err(Errno::EINTR | Errno::ECONNREFUSED | Errno::ENOMEM) => continue,
                Err(error) => return Err(error.into()),
            };
            figures.calls += 1;
            let (Some(from), Some(bytes)) = (from, buffer.get(..len)) else { continue };
            let from = SocketAddrV4::new(from.ip(), from.port());
            for datagram in bytes.chunks(size.unwrap_or(len).max(1)) {
                give(from, datagram);
                given += 1;
                figures.received += 1;
            }
        }
        Ok(given)
    }

    /// Has a datagram sent by the next [`Socket::flush`]; or now, without a copy, if it is so long
    /// that none of its length could go with it.
    pub fn send(&mut self, to: SocketAddrV4, datagram: &[u8]) {
        let len = datagram.len();
        if len == 0 || len > LARGEST || self.waiting_bytes + len > WAITING_MAX {
            self.figures.unsent += 1;
            return;
        }
        if len > LARGEST / 2 {
            self.flush();
            if self.waiting.is_empty() && self.give(to, len, datagram).is_ok() {
                self.figures.sent += 1;
                return;
            }
        }
        self.waiting_bytes += len;
        let cuts = self.cuts;
        match self.waiting.back_mut().filter(|run| cuts && run.takes(to, len)) {
            Some(run) => {
                run.bytes.extend_from_slice(datagram);
                run.is_closed = len < run.size;
            }
            None => {
                let mut bytes = self.spare.pop().unwrap_or_default();
                bytes.clear();
                bytes.extend_from_slice(datagram);
                self.waiting.push_back(Run { to, size: len, bytes, is_closed: false });
            }
        }
    }

    /// Gives the kernel what waits, as far as it has room; how many datagrams that was.
    pub fn flush(&mut self) -> usize {
        let before = self.figures.sent;
        while let Some(run) = self.waiting.pop_front() {
            let count = run.datagrams();
            match self.give(run.to, run.size, &run.bytes) {
                Ok(()) => self.figures.sent += count,
                Err(Errno::EAGAIN | Errno::ENOBUFS) => {
                    self.waiting.push_front(run);
                    break;
                }
                Err(Errno::EIO | Errno::EINVAL | Errno::EOPNOTSUPP) if count > 1 && self.cuts => {
                    tracing::debug!("datagrams go one by one: the device does not cut");
                    self.cuts = false;
                    self.come_apart(run);
                    continue;
                }
                Err(Errno::EINTR) => {
                    self.waiting.push_front(run);
                    continue;
                }
                // Nobody listens there, or no way leads there: as if it were lost.
                Err(_) => self.figures.unsent += count,
            }
            self.waiting_bytes = self.waiting_bytes.saturating_sub(run.bytes.len());
            if self.spare.len() < SEGMENTS {
                self.spare.push(run.bytes);
            }
        }
        usize::try_from(self.figures.sent - before).unwrap_or(usize::MAX)
    }

    fn give(&mut self, to: SocketAddrV4, size: usize, bytes: &[u8]) -> nix::Result<()> {
        self.figures.calls += 1;
        let segment = u16::try_from(size).unwrap_or(u16::MAX);
        let cut = [ControlMessage::UdpGsoSegments(&segment)];
        let control = if bytes.len() > size { &cut[..] } else { &[] };
        let (fd, flags) = (self.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        let to = SockaddrIn::from(to);
        sendmsg(fd, &[IoSlice::new(bytes)], control, flags, Some(&to)).map(drop)
    }

    /// The datagrams of a run, each by itself.
    fn come_apart(&mut self, run: Run) {
        for datagram in run.bytes.chunks(run.size.max(1)).rev() {
            let (to, size, bytes) = (run.to, datagram.len(), datagram.to_vec());
            self.waiting.push_front(Run { to, size, bytes, is_closed: true });
        }
    }
}

/// Bytes of each datagram, if the kernel gave several as one.
fn size_of<S>(message: &nix::sys::socket::RecvMsg<'_, '_, S>) -> Option<usize> {
    message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::UdpGroSegments(size) => usize::try_from(size).ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn socket() -> Socket {
        Socket::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    fn hear(socket: &mut Socket, count: usize) -> Vec<(SocketAddrV4, Vec<u8>)> {
        let mut heard = Vec::new();
        let end = Instant::now() + Duration::from_secs(20);
        while heard.len() < count && Instant::now() < end {
            socket.receive(8, &mut |from, bytes| heard.push((from, bytes.to_vec()))).unwrap();
        }
        heard
    }

    /// Lengths in any order, to two receivers by turns: each datagram comes with its borders and
    /// its sender, those of one receiver in order, and with fewer calls than datagrams.
    #[test]
    fn datagrams_keep_their_borders_however_they_go_together() {
        let (mut a, mut b, mut c) = (socket(), socket(), socket());
        let mut sent = [Vec::new(), Vec::new()];
        for round in 0..40u8 {
            for (which, to) in [(0u8, b.local()), (1, c.local())] {
                for len in [900, 900, 900, 17, 900, 1, 1, 5000] {
                    let datagram = vec![round ^ which; len];
                    a.send(to, &datagram);
                    sent[usize::from(which)].push((a.local(), datagram));
                }
            }
            while a.is_waiting() {
                a.flush();
            }
        }
        assert_eq!(hear(&mut b, sent[0].len()), sent[0]);
        assert_eq!(hear(&mut c, sent[1].len()), sent[1]);
        let figures = a.figures();
        assert_eq!((figures.sent, figures.unsent), (640, 0));
        assert!(figures.calls < 640, "{figures:?}");
    }

    /// It is copied nowhere, and passes nothing.
    #[test]
    fn a_long_datagram_goes_at_once_behind_what_waits() {
        let (mut a, mut b) = (socket(), socket());
        let sent = [100, LARGEST, 100, 40_000].map(|len| (a.local(), vec![7; len]));
        sent.iter().for_each(|(_, datagram)| a.send(b.local(), datagram));
        assert_eq!((a.is_waiting(), a.figures().sent), (false, 4));
        assert_eq!(hear(&mut b, sent.len()), sent);
    }

    #[test]
    fn a_device_that_does_not_cut_gets_them_one_by_one() {
        let (mut a, mut b) = (socket(), socket());
        for byte in 0..5 {
            a.send(b.local(), &[byte; 100]);
        }
        let run = a.waiting.pop_front().unwrap();
        a.come_apart(run);
        a.cuts = false;
        a.send(b.local(), &[5; 100]);
        assert_eq!(a.flush(), 6);
        let firsts: Vec<u8> = hear(&mut b, 6).iter().map(|(_, bytes)| bytes[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 3, 4, 5]);
    }

    /// A port where nobody listens any more, and what is no datagram: the socket goes on.
    #[test]
    fn nobody_there_is_as_if_it_were_lost() {
        let (mut a, mut b) = (socket(), socket());
        let gone = socket().local();
        a.send(b.local(), &[]);
        a.send(b.local(), &vec![0; LARGEST + 1]);
        for _ in 0..10 {
            a.send(gone, b"lost");
            a.send(b.local(), b"there");
            a.flush();
        }
        assert_eq!(hear(&mut b, 10).len(), 10);
        assert!(a.figures().unsent >= 2);
        assert_eq!(a.receive(4, &mut |_, _| panic!("nothing came")).unwrap(), 0);
    }

    #[test]
    fn the_source_of_a_way_is_known() {
        let to = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 9), 4791);
        assert!(source_for(to).unwrap().is_loopback());
    }
}
