//! What runs the DPU side's futures, on its own thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::task::{Spawn, Work};
use rustix::event::{PollFd, PollFlags};

use crate::executor::Executor;
use crate::medium::Reactor;
use crate::wakeup::Wakeup;

/// Most futures at once: more than the commands a full house of attachments can have under way.
const CAPACITY: usize = 1 << 16;

/// What runs futures and takes in what storage completes.
pub trait Runtime: Spawn {
    /// Polls what was woken and takes in completions of storage; how much.
    fn pass(&self) -> usize;

    /// Announces sleep: from now on wakers notify. False, and no sleep, if something was
    /// woken or completed.
    fn begin_sleep(&self) -> bool;

    /// Sleeps until storage has completed something, `wake` is readable, or `timeout`.
    fn sleep(&self, wake: BorrowedFd<'_>, timeout: Duration) -> io::Result<()>;

    /// Readable when storage has completed something, for who sleeps on more than one descriptor.
    fn completes(&self) -> Option<BorrowedFd<'_>>;

    /// Awake again.
    fn end_sleep(&self);

    /// Futures that wait for something.
    fn waiting(&self) -> usize;

    /// When [`Runtime::pass`] is to be called though nothing woke; `None`: it need not be.
    fn deadline(&self) -> Option<Time> {
        None
    }
}

/// The executor, and the thread's reactor if the kernel gives one.
pub struct Poller {
    executor: RefCell<Executor<Work>>,
    reactor: Option<Reactor>,
    /// What found the executor full.
    later: RefCell<VecDeque<Work>>,
    has_later: Cell<bool>,
}

impl Poller {
    /// An executor that notifies `wakeup`; storage goes through `reactor`, which is this thread's.
    #[must_use]
    pub fn new(wakeup: Arc<Wakeup>, reactor: Option<Reactor>) -> Poller {
        Poller {
            executor: RefCell::new(Executor::new(CAPACITY, move || wakeup.notify())),
            reactor,
            later: RefCell::default(),
            has_later: Cell::new(false),
        }
    }

    /// The reactor.
    #[must_use]
    pub fn reactor(&self) -> Option<&Reactor> {
        self.reactor.as_ref()
    }

    fn start_later(&self) {
        while self.executor.borrow().has_room() {
            let Some(work) = self.later.borrow_mut().pop_front() else {
                return self.has_later.set(false);
            };
            self.spawn(work);
        }
    }
}

impl Spawn for Poller {
    fn spawn(&self, work: Work) {
        // Work does not spawn work, so nobody else holds the executor.
        if let Err(work) = self.executor.borrow_mut().start(work) {
            self.later.borrow_mut().push_back(work);
            self.has_later.set(true);
        }
    }
}

impl Runtime for Poller {
    fn pass(&self) -> usize {
        let completed = match &self.reactor {
            Some(reactor) if reactor.in_flight() > 0 => reactor.poll(),
            _ => 0,
        };
        let polled = self.executor.borrow_mut().poll(|_, ()| ());
        if self.has_later.get() {
            self.start_later();
        }
        completed + polled
    }

    fn begin_sleep(&self) -> bool {
        let quiet = self.reactor.as_ref().is_none_or(Reactor::begin_sleep);
        quiet && self.executor.borrow().begin_sleep()
    }

    fn sleep(&self, wake: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
        if let Some(reactor) = &self.reactor {
            return reactor.sleep(wake, timeout);
        }
        let mut fds = [PollFd::from_borrowed_fd(wake, PollFlags::IN)];
        let timeout = rustix::time::Timespec::try_from(timeout).map_err(io::Error::other)?;
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn completes(&self) -> Option<BorrowedFd<'_>> {
        self.reactor.as_ref().map(Reactor::completes)
    }

    fn end_sleep(&self) {
        self.executor.borrow().end_sleep();
    }

    fn waiting(&self) -> usize {
        self.executor.borrow().running() + self.later.borrow().len()
    }
}
