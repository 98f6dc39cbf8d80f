//! The port over kernel sockets: accepted streams come in, the host is asked over one more.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::admission::{Admitted, Place};
use super::port::{News, Port};
use super::sockets::{Address, ConnId, Read, Ready, Sockets, Stream, Wrote};
use outboard_os::wakeup::Wakeup;

/// What is known of a client's connection.
struct Client {
    ends: Option<(SocketAddr, SocketAddr)>,
    _place: Place,
}

/// Streams of one worker.
pub(super) struct KernelPort {
    sockets: Sockets,
    host: Address,
    clients: HashMap<ConnId, Client>,
    ready: Vec<Ready>,
}

impl KernelPort {
    /// None yet; the host serves at `host`.
    pub(super) fn new(host: Address) -> io::Result<KernelPort> {
        let (clients, ready) = (HashMap::new(), Vec::new());
        Ok(KernelPort { sockets: Sockets::new()?, host, clients, ready })
    }
}

impl Port for KernelPort {
    type Item = Admitted;

    fn watch_wakeup(&mut self, wakeup: &Wakeup) -> io::Result<()> {
        self.sockets.watch_wakeup(wakeup)
    }

    fn take(&mut self, Admitted { stream, place }: Admitted, news: &mut Vec<News>) {
        let ends = stream.ends;
        match self.sockets.add(stream) {
            Ok(id) => {
                self.clients.insert(id, Client { ends, _place: place });
                news.push(News::Came(id));
            }
            Err(error) => tracing::warn!(%error, "cannot serve a connection; closed"),
        }
    }

    fn look(&mut self, timeout: Duration, news: &mut Vec<News>) -> io::Result<()> {
        self.sockets.look(Some(timeout), &mut self.ready)?;
        news.extend(self.ready.drain(..).filter_map(|what| match what {
            Ready::Conn(id) => Some(News::Moved(id)),
            Ready::Wakeup => Some(News::Wakeup),
            Ready::Listener => None,
        }));
        Ok(())
    }

    /// The kernel held nothing back.
    fn flush(&mut self, _: &mut Vec<News>) {}

    fn patience(&self) -> Duration {
        Duration::MAX
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.sockets.fd()
    }

    fn ends(&self, id: ConnId) -> Option<(SocketAddr, SocketAddr)> {
        self.clients.get(&id)?.ends
    }

    fn connect(&mut self, _: ConnId) -> io::Result<ConnId> {
        Stream::connect(&self.host).and_then(|stream| self.sockets.add(stream))
    }

    fn is_readable(&mut self, id: ConnId) -> bool {
        self.sockets.is_readable(id)
    }

    fn read(&mut self, id: ConnId, buf: &mut [u8]) -> Read {
        self.sockets.read(id, buf)
    }

    fn write(&mut self, id: ConnId, pieces: &[IoSlice<'_>]) -> Wrote {
        self.sockets.write(id, pieces)
    }

    fn shutdown(&mut self, id: ConnId) {
        self.sockets.shutdown(id);
    }

    fn close(&mut self, id: ConnId, reset: bool) {
        self.clients.remove(&id);
        self.sockets.close(id, reset);
    }
}
