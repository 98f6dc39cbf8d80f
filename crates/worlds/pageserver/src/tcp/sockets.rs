//! Streams without blocking, under one epoll descriptor, edge-triggered.
//!
//! Room to write is asked for only while there is none: a Unix socket tells of it at every read of
//! the other side, which woke the writer for nothing each time.
//!
//! A socket is known to be readable or writable until a call says otherwise, so that a stream in
//! use costs one `read` and one `writev` a round and no change of interest.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use outboard_os::wakeup::Wakeup;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Events of one look.
const EVENTS: usize = 256;
/// Pieces of one gathering write.
pub const PIECES: usize = 64;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A socket on this computer, by its path.
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

fn flags() -> SocketFlags {
    SocketFlags::NONBLOCK | SocketFlags::CLOEXEC
}

fn family(address: &Address) -> AddressFamily {
    match address {
        Address::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
        Address::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    }
}

fn clear_stale(path: &Path) -> io::Result<()> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// A listening socket. One on a path is removed with it.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    address: Address,
}

impl Listener {
    /// Listens at `address`; a socket left behind on its path is replaced. Port 0 takes a free one.
    pub fn bind(address: &Address) -> io::Result<Listener> {
        let fd = net::socket_with(family(address), SocketType::STREAM, flags(), None)?;
        let address = match address {
            Address::Tcp(tcp) => {
                sockopt::set_socket_reuseaddr(&fd, true)?;
                net::bind(&fd, tcp)?;
                Address::Tcp(net::getsockname(&fd)?.try_into()?)
            }
            Address::Unix(path) => {
                clear_stale(path)?;
                net::bind(&fd, &SocketAddrUnix::new(path)?)?;
                address.clone()
            }
        };
        net::listen(&fd, BACKLOG)?;
        Ok(Listener { fd, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether somebody wants to connect now.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut fds, Some(&Default::default())).is_ok_and(|ready| ready > 0)
    }

    /// The next connection; `None` if there is none.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        loop {
            match net::acceptfrom_with(&self.fd, flags()) {
                Ok((fd, client)) => {
                    let tcp = matches!(self.address, Address::Tcp(_));
                    if tcp {
                        sockopt::set_tcp_nodelay(&fd, true)?;
                    }
                    let client = client.and_then(|client| SocketAddr::try_from(client).ok());
                    let server = if tcp { net::getsockname(&fd)?.try_into().ok() } else { None };
                    return Ok(Some(Stream { fd, ends: client.zip(server) }));
                }
                Err(Errno::AGAIN) => return Ok(None),
                // The client went away meanwhile.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            // Who came after us may have replaced it: then it is not ours to remove, but then it
            // also does not answer here any more, and nobody loses by its name.
            let _gone_already = std::fs::remove_file(path);
        }
    }
}

/// A connection that is not yet under an epoll descriptor.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    /// Client and server, of a TCP connection.
    pub ends: Option<(SocketAddr, SocketAddr)>,
}

impl Stream {
    /// Begins to connect; what it cannot, the first write tells.
    pub fn connect(address: &Address) -> io::Result<Stream> {
        let fd = net::socket_with(family(address), SocketType::STREAM, flags(), None)?;
        let begun = match address {
            Address::Tcp(tcp) => {
                sockopt::set_tcp_nodelay(&fd, true)?;
                net::connect(&fd, tcp)
            }
            Address::Unix(path) => net::connect(&fd, &SocketAddrUnix::new(path)?),
        };
        match begun {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Stream { fd, ends: None }),
            Err(error) => Err(error.into()),
        }
    }
}

impl Stream {
    /// Tells a client why it is not served, if it can hear that at once, and that no more comes.
    pub fn refuse(&self, why: &[u8]) {
        let _unheard = net::send(&self.fd, why, net::SendFlags::NOSIGNAL);
        let _gone = net::shutdown(&self.fd, net::Shutdown::Write);
    }
}

/// Names a connection of one [`Sockets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(super) at: u32,
    pub(super) generation: u32,
}

impl ConnId {
    fn word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.at)
    }

    /// A small number, for tables; used again after the connection was closed.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.at).unwrap_or(usize::MAX)
    }
}

struct Conn {
    fd: OwnedFd,
    generation: u32,
    readable: bool,
    writable: bool,
    /// Whether epoll tells when it is writable.
    waits_for_room: bool,
    /// The other side ended; there is an end to be read.
    ending: bool,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A connection can be read or written.
    Conn(ConnId),
    /// Somebody wants to connect.
    Listener,
    /// Somebody notified.
    Wakeup,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Blocked,
    /// The other side sends no more.
    Ended,
    /// The connection is gone.
    Reset,
}

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// So many bytes were taken.
    Bytes(usize),
    /// None can be.
    Blocked,
    /// The connection is gone.
    Reset,
}

const LISTENER: u64 = u64::MAX;
const WAKEUP: u64 = u64::MAX - 1;

/// The connections of one thread.
pub struct Sockets {
    epoll: OwnedFd,
    conns: Vec<Option<Conn>>,
    free: Vec<u32>,
    generation: u32,
}

impl Sockets {
    /// None yet.
    pub fn new() -> io::Result<Sockets> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Sockets { epoll, conns: Vec::new(), free: Vec::new(), generation: 0 })
    }

    /// Tells when somebody wants to connect.
    pub fn watch_listener(&self, listener: &Listener) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?)
    }

    /// Tells it no more: nobody can be accepted for a while, and it would be told again and again.
    pub fn forget_listener(&self, listener: &Listener) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, listener)?)
    }

    /// Tells when `wakeup` is notified.
    pub fn watch_wakeup(&self, wakeup: &Wakeup) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, wakeup.fd(), EventData::new_u64(WAKEUP), EventFlags::IN)?)
    }

    /// Readable when there is something for [`Sockets::look`].
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Takes a connection.
    pub fn add(&mut self, stream: Stream) -> io::Result<ConnId> {
        let at = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            u32::try_from(self.conns.len() - 1).unwrap_or(u32::MAX)
        });
        self.generation = self.generation.wrapping_add(1) & 0x7FFF_FFFF;
        let id = ConnId { at, generation: self.generation };
        // Whether it is connected yet, the first room tells.
        if let Err(error) =
            epoll::add(&self.epoll, &stream.fd, EventData::new_u64(id.word()), interest(true))
        {
            self.free.push(at);
            return Err(error.into());
        }
        let (fd, generation) = (stream.fd, id.generation);
        let [readable, writable, ending] = [false; 3];
        let waits_for_room = true;
        let conn = Conn { fd, generation, readable, writable, waits_for_room, ending };
        if let Some(place) = self.conns.get_mut(id.index()) {
            *place = Some(conn);
        }
        Ok(id)
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(id.index())?.as_mut()?;
        (conn.generation == id.generation).then_some(conn)
    }

    /// Connections there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.conns.len() - self.free.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for news at most `timeout` (for ever without one) and adds them to `ready`.
    pub fn look(&mut self, timeout: Option<Duration>, ready: &mut Vec<Ready>) -> io::Result<()> {
        let timeout =
            timeout.map(rustix::time::Timespec::try_from).transpose().map_err(io::Error::other)?;
        let mut room = [MaybeUninit::uninit(); EVENTS];
        let events = match epoll::wait(&self.epoll, room.as_mut_slice(), timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for event in events {
            let (word, flags) = (event.data.u64(), event.flags);
            if word == LISTENER || word == WAKEUP {
                ready.push(if word == WAKEUP { Ready::Wakeup } else { Ready::Listener });
                continue;
            }
            let at = u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX);
            let id = ConnId { at, generation: u32::try_from(word >> 32).unwrap_or(0) };
            let conn = self.conns.get_mut(id.index()).and_then(Option::as_mut);
            if let Some(conn) = conn.filter(|conn| conn.generation == id.generation) {
                let gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
                conn.ending |= gone || flags.contains(EventFlags::RDHUP);
                conn.readable |= conn.ending || flags.contains(EventFlags::IN);
                if gone || flags.contains(EventFlags::OUT) {
                    conn.writable = true;
                    conn.wait_for_room(&self.epoll, id, false)?;
                }
                ready.push(Ready::Conn(id));
            }
        }
        Ok(())
    }

    /// Whether a read may bring something.
    #[must_use]
    pub fn is_readable(&mut self, id: ConnId) -> bool {
        self.conn(id).is_some_and(|conn| conn.readable)
    }

    /// Reads what there is.
    pub fn read(&mut self, id: ConnId, buf: &mut [u8]) -> Read {
        let Some(conn) = self.conn(id) else { return Read::Reset };
        if !conn.readable {
            return Read::Blocked;
        }
        loop {
            return match rustix::io::read(&conn.fd, &mut *buf) {
                Ok(0) => {
                    conn.readable = false;
                    Read::Ended
                }
                Ok(n) => {
                    // All there was, unless there is an end behind it: a new edge tells of more.
                    conn.readable = n == buf.len() || conn.ending;
                    Read::Bytes(n)
                }
                Err(Errno::AGAIN) => {
                    conn.readable = false;
                    Read::Blocked
                }
                Err(Errno::INTR) => continue,
                Err(_) => Read::Reset,
            };
        }
    }

    /// Writes what is taken of `pieces`.
    pub fn write(&mut self, id: ConnId, pieces: &[IoSlice<'_>]) -> Wrote {
        let conn = self.conns.get_mut(id.index()).and_then(Option::as_mut);
        let Some(conn) = conn.filter(|conn| conn.generation == id.generation) else {
            return Wrote::Reset;
        };
        if !conn.writable {
            return Wrote::Blocked;
        }
        let wrote = match pieces {
            [one] => conn.send_one(one),
            pieces => conn.send(pieces),
        };
        if !conn.writable && conn.wait_for_room(&self.epoll, id, true).is_err() {
            return Wrote::Reset;
        }
        wrote
    }

    /// Tells the other side that no more comes.
    pub fn shutdown(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            // It may be gone already; then a read says so.
            let _gone = net::shutdown(&conn.fd, net::Shutdown::Write);
        }
    }

    /// Closes it; with `reset`, without waiting for what was sent to arrive.
    pub fn close(&mut self, id: ConnId, reset: bool) {
        let Some(conn) = self.conn(id) else { return };
        if reset {
            let _only_tcp = sockopt::set_socket_linger(&conn.fd, Some(Duration::ZERO));
        }
        if let Some(place) = self.conns.get_mut(id.index()) {
            *place = None;
            self.free.push(id.at);
        }
    }
}

fn interest(room: bool) -> EventFlags {
    let always = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    if room { always | EventFlags::OUT } else { always }
}

impl Conn {
    /// From now on epoll tells of room, or does not. If there is some by now, it tells at once.
    fn wait_for_room(&mut self, epoll: &OwnedFd, id: ConnId, waits: bool) -> io::Result<()> {
        if std::mem::replace(&mut self.waits_for_room, waits) == waits {
            return Ok(());
        }
        Ok(epoll::modify(epoll, &self.fd, EventData::new_u64(id.word()), interest(waits))?)
    }

    fn send_one(&mut self, all: &[u8]) -> Wrote {
        match net::send(&self.fd, all, net::SendFlags::NOSIGNAL) {
            Ok(n) => {
                self.writable = n == all.len();
                Wrote::Bytes(n)
            }
            Err(error) => self.not_written(error),
        }
    }

    fn send(&mut self, pieces: &[IoSlice<'_>]) -> Wrote {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let sent = net::sendmsg(
            &self.fd,
            pieces,
            &mut net::SendAncillaryBuffer::default(),
            net::SendFlags::NOSIGNAL,
        );
        match sent {
            Ok(n) => {
                self.writable = n == len;
                Wrote::Bytes(n)
            }
            Err(error) => self.not_written(error),
        }
    }

    fn not_written(&mut self, error: Errno) -> Wrote {
        match error {
            Errno::AGAIN => {
                self.writable = false;
                Wrote::Blocked
            }
            // Tried again at the next round.
            Errno::INTR => Wrote::Bytes(0),
            _ => Wrote::Reset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(address: &Address) -> (Sockets, ConnId, ConnId) {
        let listener = Listener::bind(address).unwrap();
        let mut sockets = Sockets::new().unwrap();
        let client = Stream::connect(listener.address()).unwrap();
        let client = sockets.add(client).unwrap();
        let server = loop {
            if let Some(stream) = listener.accept().unwrap() {
                break stream;
            }
        };
        let server = sockets.add(server).unwrap();
        (sockets, client, server)
    }

    fn until(sockets: &mut Sockets, mut done: impl FnMut(&mut Sockets) -> bool) {
        let mut ready = Vec::new();
        for _ in 0..1000 {
            sockets.look(Some(Duration::from_millis(10)), &mut ready).unwrap();
            if done(sockets) {
                return;
            }
        }
        panic!("it did not come");
    }

    fn bytes_ends_and_back_pressure(address: &Address) {
        let (mut sockets, client, server) = pair(address);
        let mut sent = 0;
        let chunk = vec![7u8; 1 << 16];
        until(&mut sockets, |sockets| {
            while let Wrote::Bytes(n) =
                sockets.write(client, &[IoSlice::new(&chunk), IoSlice::new(b"x")])
            {
                sent += n;
                assert!(sent < 64 << 20, "it blocks");
            }
            sent > 0
        });
        sockets.shutdown(client);
        let (mut got, mut buf) = (0, vec![0; 1 << 15]);
        until(&mut sockets, |sockets| {
            loop {
                match sockets.read(server, &mut buf) {
                    Read::Bytes(n) => got += n,
                    Read::Blocked => return false,
                    Read::Ended => return true,
                    Read::Reset => panic!("reset"),
                }
            }
        });
        assert_eq!(got, sent);
        sockets.close(server, true);
        assert_eq!(sockets.read(server, &mut buf), Read::Reset);
        until(&mut sockets, |sockets| sockets.read(client, &mut buf) != Read::Blocked);
        assert_eq!(sockets.len(), 1);
    }

    #[test]
    fn tcp_carries_bytes_ends_and_back_pressure() {
        bytes_ends_and_back_pressure(&Address::Tcp("127.0.0.1:0".parse().unwrap()));
    }

    #[test]
    fn unix_carries_bytes_ends_and_back_pressure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        bytes_ends_and_back_pressure(&Address::Unix(path.clone()));
        assert!(!path.exists(), "removed with its listener");
        // One left behind by a process that was killed is replaced.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        bytes_ends_and_back_pressure(&Address::Unix(path));
    }
}
