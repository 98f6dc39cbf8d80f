//! Where a part of a cluster meets the network: its socket, and what tests and lookers-on put
//! before it.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use outboard_base::Time;
use outboard_os::clock;

use crate::capture::Capture;
use crate::faulty::{self, Faulty};
use crate::udp::{Figures, Socket};

/// How soon it is tried again to send what the kernel had no room for.
const NO_ROOM: Duration = Duration::from_micros(200);
/// Datagrams that are forgotten at a time, and how often.
const DISCARDS: usize = 1 << 10;

/// What is put before a socket.
#[derive(Clone, Debug, Default)]
pub struct PortOptions {
    /// Where datagrams are written down.
    pub capture: Option<PathBuf>,
    /// What goes wrong with them.
    pub faults: Option<faulty::Settings>,
}

/// A socket with what stands before it.
pub struct Port {
    socket: Socket,
    capture: Option<Capture>,
    faulty: Option<Faulty>,
    /// Something was written down and lies in memory.
    is_unsaved: bool,
}

impl Port {
    /// A port at `address` of a part called `name`, which its capture is called, too.
    ///
    /// # Errors
    /// The kernel's: of the socket, or of the capture's file.
    pub fn open(address: SocketAddrV4, name: &str, options: &PortOptions) -> io::Result<Port> {
        let socket = Socket::bind(address)?;
        let capture = options.capture.as_ref();
        let capture = capture.map(|dir| Capture::create(dir, name)).transpose()?;
        let faulty = options.faults.map(|faults| Faulty::new(faults, name));
        Ok(Port { socket, capture, faulty, is_unsaved: false })
    }

    /// Where it is.
    #[must_use]
    pub fn local(&self) -> SocketAddrV4 {
        self.socket.local()
    }

    /// Readable when a datagram is there.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// What its socket has moved.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.socket.figures()
    }

    /// Gives what has come, with at most `calls` system calls; how many datagrams that was.
    ///
    /// # Errors
    /// See [`Socket::receive`].
    pub fn receive(
        &mut self,
        calls: usize,
        give: &mut dyn FnMut(SocketAddrV4, &[u8]),
    ) -> io::Result<usize> {
        let Port { socket, capture, is_unsaved, .. } = self;
        let Some(capture) = capture else { return socket.receive(calls, give) };
        let (local, at) = (socket.local(), clock::wall());
        socket.receive(calls, &mut |from, datagram| {
            capture.record(at, from, local, datagram);
            *is_unsaved = true;
            give(from, datagram);
        })
    }

    /// Has a datagram sent by the next [`Port::flush`].
    pub fn send(&mut self, now: Time, to: SocketAddrV4, datagram: &[u8]) {
        let Port { socket, capture, faulty, is_unsaved } = self;
        let mut go = |to: SocketAddrV4, datagram: &[u8]| {
            if let Some(capture) = capture {
                capture.record(clock::wall(), socket.local(), to, datagram);
                *is_unsaved = true;
            }
            socket.send(to, datagram);
        };
        match faulty {
            Some(faulty) => faulty.send(now, to, datagram, go),
            None => go(to, datagram),
        }
    }

    /// Gives the kernel what is to be sent by now, as far as it has room.
    pub fn flush(&mut self, now: Time) {
        let Port { socket, faulty, .. } = self;
        if let Some(faulty) = faulty {
            faulty.release(now, |to, datagram| socket.send(to, datagram));
        }
        socket.flush();
    }

    /// Forgets what has come so far, as far as there is an end of it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn discard(&mut self) -> std::io::Result<()> {
        for _ in 0..DISCARDS {
            if self.receive(DISCARDS, &mut |_, _| ())? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Nothing is to be done for a while: what was captured is put into its file.
    pub fn rest(&mut self) {
        if let Some(capture) = self.capture.as_mut().filter(|_| self.is_unsaved) {
            capture.flush();
            self.is_unsaved = false;
        }
    }

    /// When [`Port::flush`] has something to do.
    #[must_use]
    pub fn deadline(&self, now: Time) -> Option<Time> {
        let waits = self.socket.is_waiting().then(|| now.after(NO_ROOM));
        let held = self.faulty.as_ref().and_then(Faulty::deadline);
        waits.into_iter().chain(held).min()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// What is lost on the way is not captured; what is held back is sent when its time has come.
    #[test]
    fn a_port_captures_what_the_network_takes() {
        let dir = tempfile::tempdir().unwrap();
        let local = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let faults = faulty::Settings::parse("loss=50,seed=1").unwrap();
        let captured = PortOptions { capture: Some(dir.path().into()), faults: Some(faults) };
        let mut one = Port::open(local, "one", &captured).unwrap();
        let delays = faulty::Settings::parse("delay=100:50").unwrap();
        let late = PortOptions { capture: None, faults: Some(delays) };
        let mut other = Port::open(local, "other", &late).unwrap();
        for _ in 0..100 {
            one.send(Time(0), other.local(), &[7; 50]);
        }
        one.flush(Time(0));
        one.rest();
        let captured = std::fs::metadata(dir.path().join("one.pcap")).unwrap().len();
        let count = usize::try_from((captured - 24) / (16 + 28 + 50)).unwrap();
        assert!((30..70).contains(&count), "{count}");
        assert_eq!(other.receive(200, &mut |_, _| ()).unwrap(), count);
        other.send(Time(0), one.local(), b"late");
        other.flush(Time(0));
        assert_eq!(one.receive(1, &mut |_, _| ()).unwrap(), 0);
        let deadline = other.deadline(Time(0)).unwrap();
        other.flush(deadline);
        let mut heard = Vec::new();
        one.receive(1, &mut |from, bytes| heard.push((from, bytes.to_vec()))).unwrap();
        assert_eq!(heard, [(other.local(), b"late".to_vec())]);
        assert_eq!(other.deadline(deadline), None);
    }
}
