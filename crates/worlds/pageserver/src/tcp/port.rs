//! What a worker of the director asks of whoever ends its TCP connections.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::sockets::{ConnId, Read, Wrote};
use outboard_os::wakeup::Wakeup;

/// What a port found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A client's connection is there.
    Came(ConnId),
    /// A connection can be read or written.
    Moved(ConnId),
    /// Somebody notified.
    Wakeup,
}

/// Connections of one worker, and so of one thread at a time. All that it does with them, it does
/// through this.
pub trait Port: Send + 'static {
    /// What another thread hands over: a stream that was accepted, or a frame.
    type Item: Send + 'static;

    /// Tells when `wakeup` is notified.
    fn watch_wakeup(&mut self, wakeup: &Wakeup) -> io::Result<()>;

    /// Takes what another thread handed over.
    fn take(&mut self, item: Self::Item, news: &mut Vec<News>);

    /// Waits for news at most `timeout` and adds to `news`.
    fn look(&mut self, timeout: Duration, news: &mut Vec<News>) -> io::Result<()>;

    /// Sends what was written and is held back to be sent together. To be called before a sleep on
    /// [`Port::fd`].
    fn flush(&mut self, news: &mut Vec<News>);

    /// The longest sleep on [`Port::fd`]: then something has to be sent again.
    fn patience(&self) -> Duration;

    /// Readable when there is something for [`Port::look`].
    fn fd(&self) -> BorrowedFd<'_>;

    /// Client and server of a client's connection, where they are known.
    fn ends(&self, id: ConnId) -> Option<(SocketAddr, SocketAddr)>;

    /// Begins the host's leg of a client's connection; what cannot be, the first write tells.
    fn connect(&mut self, client: ConnId) -> io::Result<ConnId>;

    /// Whether a read may bring something.
    fn is_readable(&mut self, id: ConnId) -> bool;

    /// Reads what there is.
    fn read(&mut self, id: ConnId, buf: &mut [u8]) -> Read;

    /// Writes what is taken of `pieces`.
    fn write(&mut self, id: ConnId, pieces: &[IoSlice<'_>]) -> Wrote;

    /// Tells the other side that no more comes.
    fn shutdown(&mut self, id: ConnId);

    /// Closes it; with `reset`, without waiting for what was sent to arrive.
    fn close(&mut self, id: ConnId, reset: bool);
}

/// Wakes a worker, and tells it to end.
pub(super) struct Call {
    pub(super) wakeup: Wakeup,
    stop: AtomicBool,
}

impl Call {
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wakeup.notify();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// A worker's inbox: what other threads hand it.
pub(super) struct Inbox<T> {
    items: Mutex<Vec<T>>,
    pub(super) call: Arc<Call>,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> io::Result<Inbox<T>> {
        let call = Call { wakeup: Wakeup::new()?, stop: AtomicBool::new(false) };
        Ok(Inbox { items: Mutex::default(), call: Arc::new(call) })
    }

    /// Hands something over, unless `most` wait already.
    pub(super) fn push(&self, item: T, most: usize) -> bool {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, room) = (items.is_empty(), items.len() < most);
        if room {
            items.push(item);
        }
        drop(items);
        if first {
            self.call.wakeup.notify();
        }
        room
    }

    pub(super) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
