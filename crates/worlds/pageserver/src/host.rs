//! The host side of an attachment to a page server's DPU side.
//!
//! The host makes the memory its rings lie in, hands it over with its Hello, and gets back with the
//! Welcome the pages of the wake-up words and an event to notify the DPU side with:
//!
//! ```text
//! host ▶ Hello: rings, so many groups of such rings              + region, wake socket
//! DPU  ▶ Welcome: instance, bytes of pages                       + wake-up words, event
//!        or Refused: why
//! ```
//!
//! The wake socket is one end of a pair: a byte comes there when a response does, if the host armed
//! that ([`super::wakeups`]). A host may not make the DPU side wait, and a send that must not block
//! never does, whatever the other end is or does; a write to an event descriptor may.
//!
//! The socket stays open for as long as the attachment lives: who closes it is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboard_dds::groups::Shape;
use outboard_dds::wakeups::WakeupWords;
use outboard_link::Region;
use outboard_wire::attach::{Hello, Message, Welcome};
use rustix::event::{PollFd, PollFlags};

use super::wakeups::Wakeups;
use outboard_attach::link::{Peer, Received, connect};
use outboard_os::clock;
use outboard_os::shm::Shared;
use outboard_os::wakeup::Notifier;

/// A sleeper looks this often whether the DPU side is still there: it learns of its death within
/// this time.
pub const LOSS_NOTICED: Duration = Duration::from_millis(100);

/// One life of an attachment, shared by all threads of the host.
#[derive(Debug)]
pub struct Attachment {
    peer: Peer,
    shape: Shape,
    memory: Shared,
    wakeups: Wakeups,
    notifier: Notifier,
    wake: UnixDatagram,
    instance: u64,
    lost: AtomicBool,
}

fn protocol(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

impl Attachment {
    /// Attaches to the DPU side that listens at `path`, with fresh memory for rings of this shape,
    /// waiting at most `timeout`.
    ///
    /// # Errors
    /// Nobody listens, it refuses (the reason is the error's text), or the time runs out.
    pub fn attach(path: &Path, shape: Shape, timeout: Duration) -> io::Result<Attachment> {
        let deadline = clock::now().after(timeout);
        let peer = connect(path)?;
        let memory = Shared::create("outboard-rings", shape.region_len())?;
        let hello = Message::Hello(Hello::Rings(shape.hello()));
        let (wake, theirs) = UnixDatagram::pair()?;
        wake.set_nonblocking(true)?;
        peer.send(&hello, &[memory.fd(), theirs.as_fd()])?;
        let (welcome, fds) = match peer.receive_by(deadline)? {
            Received::Message(Message::Welcome(Welcome::Rings(welcome)), fds) => (welcome, fds),
            Received::Message(Message::Refused { text, .. }, _) => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            Received::Closed => return Err(io::ErrorKind::ConnectionReset.into()),
            other => return Err(protocol(format!("the DPU side answered {other:?}"))),
        };
        let Ok([pages, event]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(protocol("a Welcome brings wake-up words and an event"));
        };
        if welcome.wakeups_len < WakeupWords::len(shape.groups()) {
            return Err(protocol("the wake-up words are too few"));
        }
        let pages = Shared::open(pages, welcome.wakeups_len).map_err(io::Error::other)?;
        Ok(Attachment {
            peer,
            shape,
            memory,
            wakeups: Wakeups::new(Arc::clone(pages.region())),
            notifier: Notifier::from_fd(event),
            wake,
            instance: welcome.instance,
            lost: AtomicBool::new(false),
        })
    }

    /// The memory of the rings.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.memory.region()
    }

    /// Where they lie in it.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Which life of the DPU side this is.
    #[must_use]
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// After requests were put into a ring: wakes the DPU side, if it sleeps. One system call then,
    /// none if it does not.
    pub fn notify(&self) {
        if self.wakeups.must_wake() {
            self.notifier.notify();
        }
    }

    /// Sleeps until the DPU side has delivered something to `group`, at most `timeout`, unless
    /// `ready` says that there is something. False: the DPU side is gone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sleep(
        &self,
        group: u16,
        timeout: Duration,
        ready: &dyn Fn() -> bool,
    ) -> io::Result<bool> {
        let until = clock::now().after(timeout);
        loop {
            if ready() {
                return Ok(true);
            }
            if self.look() {
                return Ok(false);
            }
            let left = until.since(clock::now());
            if left.is_zero() {
                return Ok(true);
            }
            self.wakeups.sleep(group, left.min(LOSS_NOTICED), ready)?;
        }
    }

    /// Sleeps until the DPU side has delivered something to `group`, `other` is readable, the DPU
    /// side is gone or `timeout` is over, unless `ready` says that there is something. For a thread
    /// that is the only one to sleep for this group.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sleep_beside(
        &self,
        group: u16,
        other: BorrowedFd<'_>,
        timeout: Duration,
        ready: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        self.wakeups.arm(group);
        let slept = if ready() { Ok(()) } else { self.wait_for_any(other, timeout) };
        self.wakeups.disarm(group);
        slept
    }

    fn wait_for_any(&self, other: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
        let timeout = rustix::time::Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut fds = [
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::from_borrowed_fd(other, PollFlags::IN),
            PollFd::from_borrowed_fd(self.peer.fd(), PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [woken, _, said] = &fds;
        if woken.revents().contains(PollFlags::IN) {
            // One byte an arming; one left over by a wake-up that came late is a short sleep.
            while self.wake.recv(&mut [0; 8]).is_ok() {}
        }
        if !said.revents().is_empty() {
            self.look();
        }
        Ok(())
    }

    /// Whether the DPU side is known to be gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Looks at the socket: whether the DPU side is gone. Wakes all sleepers when it learns that.
    pub fn look(&self) -> bool {
        if self.is_lost() {
            return true;
        }
        // Nothing is said on the socket after the answer, so whatever comes is the end.
        let gone = !matches!(self.peer.receive(), Ok(Received::Nothing));
        if gone {
            self.lost.store(true, Ordering::Release);
            for group in 0..self.shape.groups() {
                // A sleeper that is missed looks again soon by itself.
                let _woken = self.wakeups.interrupt_anyway(group);
            }
        }
        gone
    }
}
