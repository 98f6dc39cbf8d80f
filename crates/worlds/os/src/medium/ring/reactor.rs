//! One thread's io_uring: operations go out in batches, completions wake the futures that wait.
//!
//! A thread that also serves sockets waits for both in the ring ([`Reactor::wait`]): one system
//! call hands over, sleeps and takes in.
//!
//! Buffers that are used again and again may be registered with the kernel ([`fixed`]), which then
//! need not find and hold their pages for each operation.

use std::cell::RefCell;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::{Builder, IoUring, opcode, squeue, types};
use outboard_base::Errno;
use outboard_medium::Buf;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno as Kernel;

use super::super::ALLOCATE;
use super::super::orphans::Orphans;
use super::fixed::{self, Registry};
use crate::writing::WAIT;

/// One thing to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::medium) enum Action {
    Read {
        offset: u64,
    },
    Write {
        offset: u64,
    },
    Allocate {
        offset: u64,
        len: u64,
    },
    /// Wait for what passes through the page cache.
    HandOver {
        offset: u64,
        len: u64,
    },
    SyncData,
    SyncAll,
}

impl Action {
    pub(in crate::medium) fn writes(self) -> bool {
        matches!(self, Action::Write { .. })
    }
}

/// What the kernel may still use, kept until it says it is done.
struct Held {
    buf: Option<Buf>,
    _file: Arc<File>,
    orphans: Option<Arc<Orphans>>,
}

enum Slot {
    Free,
    Running {
        held: Held,
        waker: Waker,
    },
    /// Running, its future gone.
    Orphan {
        held: Held,
    },
    Done {
        held: Held,
        result: i32,
    },
}

struct Inner {
    ring: IoUring,
    slots: Vec<Slot>,
    free: Vec<usize>,
    in_flight: usize,
    /// Pushed, not yet told to the kernel.
    unsubmitted: usize,
    /// Who found no free slot.
    waiting: Vec<Waker>,
    woken: Vec<Waker>,
    /// Of registered buffers, if there are to be any.
    registry: Option<Registry>,
    /// The kernel leaves ended operations until it is asked for them.
    defers: bool,
    /// Whether this thread can wait for a wakeup in the ring itself.
    waits: bool,
    /// The wakeup is watched by the ring.
    watched: bool,
    /// The wakeup was readable when it was watched.
    notified: bool,
}

/// What an operation is called that watches the wakeup; slots are few.
const WAKEUP: u64 = u64::MAX;

thread_local! {
    static CURRENT: RefCell<Option<Rc<RefCell<Inner>>>> = const { RefCell::new(None) };
}

/// This thread's ring, until dropped. Not to be sent elsewhere.
pub struct Reactor(Rc<RefCell<Inner>>);

impl Reactor {
    /// Makes a ring for `depth` operations at once (rounded up to a power of two) and installs it
    /// for this thread. Fails where the kernel has no io_uring or forbids it, and if there is one
    /// already.
    pub fn install(depth: u32) -> io::Result<Reactor> {
        if Self::is_installed() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Self::install_ring(depth, |builder, depth| builder.build(depth))
    }

    fn install_ring(
        depth: u32,
        build: impl FnOnce(&mut Builder, u32) -> io::Result<IoUring>,
    ) -> io::Result<Reactor> {
        let depth = depth.clamp(1, 4096).next_power_of_two();
        let ring = build(IoUring::builder().setup_clamp(), depth)?;
        let slots = usize::try_from(depth).unwrap_or(1);
        let inner = Inner {
            ring,
            slots: (0..slots).map(|_| Slot::Free).collect(),
            free: (0..slots).rev().collect(),
            in_flight: 0,
            unsubmitted: 0,
            waiting: Vec::new(),
            woken: Vec::new(),
            registry: None,
            defers: false,
            waits: false,
            watched: false,
            notified: false,
        };
        let inner = Rc::new(RefCell::new(inner));
        CURRENT.with(|current| *current.borrow_mut() = Some(Rc::clone(&inner)));
        Ok(Reactor(inner))
    }

    /// The same, and buffers that are kept (`Medium::keep`) are registered, as far as the kernel
    /// allows: it counts them as locked memory of a user without the right to lock what he likes.
    ///
    /// # Errors
    /// As [`Reactor::install`].
    pub fn install_registering(depth: u32) -> io::Result<Reactor> {
        let reactor = Reactor::install(depth)?;
        reactor.0.borrow_mut().registry = Some(Registry::new());
        Ok(reactor)
    }

    /// The same, for a thread that sleeps by [`Reactor::wait`] and nowhere else while anything is
    /// under way: the kernel leaves ended operations until it is asked for them, and does not
    /// interrupt the thread for each. Where the kernel is too old for that, as
    /// [`Reactor::install_registering`].
    ///
    /// # Errors
    /// As [`Reactor::install`].
    pub fn install_waiting(depth: u32) -> io::Result<Reactor> {
        let mut defers = true;
        let reactor = Reactor::install_ring(depth, |builder, depth| {
            let mut deferring = builder.clone();
            deferring.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            deferring.build(depth).or_else(|_| {
                defers = false;
                builder.build(depth)
            })
        })?;
        let mut inner = reactor.0.borrow_mut();
        inner.defers = defers;
        inner.waits = defers && inner.ring.params().is_feature_ext_arg();
        inner.registry = Some(Registry::new());
        drop(inner);
        Ok(reactor)
    }

    /// Registers a buffer, if there is a ring here that does.
    pub(in crate::medium) fn keep(mut buf: Buf) -> Buf {
        if let Some(inner) = CURRENT.with(|current| current.borrow().clone()) {
            let Inner { ring, registry, .. } = &mut *inner.borrow_mut();
            if let Some(registry) = registry {
                registry.register(&ring.submitter(), &mut buf);
            }
        }
        buf
    }

    /// Reads and writes so far with registered buffers.
    #[must_use]
    pub fn fixed(&self) -> u64 {
        self.0.borrow().registry.as_ref().map_or(0, |registry| registry.used)
    }

    /// Whether this thread has one.
    #[must_use]
    pub fn is_installed() -> bool {
        CURRENT.with(|current| current.borrow().is_some())
    }

    /// Operations begun and not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.borrow().in_flight
    }

    /// Hands new operations to the kernel and wakes the futures of ended ones; how many ended. One
    /// system call if there is anything to hand over, else none.
    pub fn poll(&self) -> usize {
        poll(&self.0)
    }

    /// As [`Reactor::poll`], for whatever this thread has; `None` if that is nothing, or nothing is
    /// under way there.
    pub(crate) fn poll_installed() -> Option<usize> {
        let inner = CURRENT.with(|current| current.borrow().clone())?;
        let idle = inner.borrow().in_flight == 0;
        if idle { None } else { Some(poll(&inner)) }
    }

    /// Hands over what was not yet. False if something has ended already: [`Reactor::poll`] takes
    /// it in.
    #[must_use]
    pub fn begin_sleep(&self) -> bool {
        let mut inner = self.0.borrow_mut();
        inner.submit();
        inner.ring.completion().is_empty()
    }

    /// Readable while something that has ended was not taken in.
    #[must_use]
    pub fn completes(&self) -> BorrowedFd<'_> {
        let ring = self.0.borrow().ring.as_raw_fd();
        // SAFETY: the ring, and with it the descriptor, lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(ring) }
    }

    /// Sleeps until an operation ends, `wakeup` is readable or `timeout` is over. Then call
    /// [`Reactor::poll`]; draining the wakeup is the caller's.
    pub fn sleep(&self, wakeup: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
        if !self.begin_sleep() {
            return Ok(());
        }
        let mut fds = [
            PollFd::from_borrowed_fd(self.completes(), PollFlags::IN),
            PollFd::from_borrowed_fd(wakeup, PollFlags::IN),
        ];
        let timeout = rustix::time::Timespec::try_from(timeout).map_err(io::Error::other)?;
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Kernel::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Reactor {
    /// Sleeps as [`Reactor::sleep`], where possible by the very call that hands over what was not
    /// yet. Then call [`Reactor::poll`], and ask [`Reactor::take_notified`].
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&self, wakeup: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        if inner.watch(wakeup) {
            return inner.wait(timeout);
        }
        drop(inner);
        self.sleep(wakeup, timeout)
    }

    /// Has the wakeup of [`Reactor::wait`] told of while this thread is awake, too.
    pub fn watch(&self, wakeup: BorrowedFd<'_>) {
        self.0.borrow_mut().watch(wakeup);
    }

    /// Whether the wakeup was told of, and [`Reactor::take_notified`] not asked since.
    #[must_use]
    pub fn was_notified(&self) -> bool {
        self.0.borrow().notified
    }

    /// False if the wakeup of [`Reactor::wait`] is known to have been silent since this was asked
    /// last.
    #[must_use]
    pub fn take_notified(&self) -> bool {
        let mut inner = self.0.borrow_mut();
        std::mem::take(&mut inner.notified) || !inner.watched
    }
}

fn poll(inner: &RefCell<Inner>) -> usize {
    let (ended, mut woken) = {
        let mut inner = inner.borrow_mut();
        inner.submit();
        let ended = inner.reap();
        (ended, std::mem::take(&mut inner.woken))
    };
    woken.drain(..).for_each(Waker::wake);
    let mut inner = inner.borrow_mut();
    if inner.woken.is_empty() {
        inner.woken = woken;
    }
    ended
}

impl Drop for Reactor {
    /// Waits for the kernel to be done with every buffer.
    fn drop(&mut self) {
        CURRENT.with(|current| current.borrow_mut().take());
        let mut inner = self.0.borrow_mut();
        while inner.in_flight > 0 {
            inner.unsubmitted = 0;
            if inner.ring.submit_and_wait(1).is_err() {
                // Buffers the kernel may still write to must not be reused: they are leaked.
                std::mem::forget(std::mem::take(&mut inner.slots));
                return;
            }
            inner.reap();
        }
    }
}

impl Inner {
    fn submit(&mut self) {
        // On failure (a signal, a busy kernel) they stay in the queue for the next call.
        let is_left = self.defers && self.ring.submission().taskrun();
        if (self.unsubmitted > 0 || is_left) && self.ring.submit().is_ok() {
            self.unsubmitted = 0;
        }
    }

    /// Has the ring tell when the wakeup is readable, once; false if it cannot.
    fn watch(&mut self, wakeup: BorrowedFd<'_>) -> bool {
        if !self.waits || self.watched {
            return self.waits;
        }
        let events = u32::from(PollFlags::IN.bits());
        let entry = opcode::PollAdd::new(types::Fd(wakeup.as_raw_fd()), events).build();
        // SAFETY: the entry names no memory. The descriptor is the caller's; if it were another's
        // by the time the kernel sees it, that would wake this thread for nothing.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(WAKEUP)) };
        self.watched = pushed.is_ok();
        self.unsubmitted += usize::from(self.watched);
        self.watched
    }

    /// Sleeps until something was told.
    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        if self.notified || !self.ring.completion().is_empty() {
            self.submit();
            return Ok(());
        }
        let timeout = types::Timespec::from(timeout);
        let until = types::SubmitArgs::new().timespec(&timeout);
        match self.ring.submitter().submit_with_args(1, &until) {
            Ok(_) => {
                self.unsubmitted = 0;
                Ok(())
            }
            // Nothing came; or the kernel has to be asked again, as in `submit`.
            Err(error) => match Kernel::from_io_error(&error) {
                Some(Kernel::TIME | Kernel::INTR | Kernel::BUSY | Kernel::AGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn reap(&mut self) -> usize {
        let mut ended = 0;
        while let Some(entry) = self.ring.completion().next() {
            if entry.user_data() == WAKEUP {
                (self.watched, self.notified) = (false, true);
                // A descriptor that cannot be watched: it is slept on the other way.
                self.waits &= entry.result() >= 0;
                continue;
            }
            ended += 1;
            let at = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            let Some(slot) = self.slots.get_mut(at) else { continue };
            match std::mem::replace(slot, Slot::Free) {
                Slot::Running { held, waker } => {
                    *slot = Slot::Done { held, result: entry.result() };
                    self.woken.push(waker);
                }
                Slot::Orphan { held } => {
                    if let Some(orphans) = &held.orphans {
                        orphans.remove();
                    }
                    self.free.push(at);
                    self.woken.append(&mut self.waiting);
                }
                other => *slot = other,
            }
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        ended
    }

    /// Begins an operation; gives its parts back if there is no slot for it.
    fn begin(&mut self, action: Action, mut held: Held, waker: &Waker) -> Result<usize, Held> {
        let Some(at) = self.free.pop() else {
            self.waiting.push(waker.clone());
            return Err(held);
        };
        let fixed =
            self.registry.as_mut().and_then(|registry| registry.place_of(held.buf.as_ref()));
        let entry = entry(action, &mut held, fixed).user_data(at as u64);
        // SAFETY: the buffer and the descriptor the entry names are in `held`, which stays in its
        // slot until the kernel's completion arrives, whatever becomes of the future; the buffer's
        // memory does not move with its owner.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // The queue has as many entries as there are slots: it is full of unsubmitted ones.
            self.submit();
            self.free.push(at);
            self.waiting.push(waker.clone());
            return Err(held);
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Slot::Running { held, waker: waker.clone() };
        }
        self.in_flight += 1;
        self.unsubmitted += 1;
        Ok(at)
    }

    /// The outcome, if it is there; else whom to wake.
    fn ended(&mut self, at: usize, waker: &Waker) -> Option<(i32, Held)> {
        let slot = self.slots.get_mut(at)?;
        match std::mem::replace(slot, Slot::Free) {
            Slot::Done { held, result } => {
                self.free.push(at);
                self.woken.append(&mut self.waiting);
                Some((result, held))
            }
            Slot::Running { held, .. } => {
                *slot = Slot::Running { held, waker: waker.clone() };
                None
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    fn abandon(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        match std::mem::replace(slot, Slot::Free) {
            Slot::Running { held, .. } => {
                if let Some(orphans) = &held.orphans {
                    orphans.add();
                }
                *slot = Slot::Orphan { held };
            }
            Slot::Done { .. } => {
                self.free.push(at);
                self.woken.append(&mut self.waiting);
            }
            other => *slot = other,
        }
    }
}

fn entry(action: Action, held: &mut Held, fixed: Option<u16>) -> squeue::Entry {
    let fd = types::Fd(held._file.as_raw_fd());
    let len = held.buf.as_ref().map_or(0, |buf| u32::try_from(buf.len()).unwrap_or(0));
    match action {
        Action::Read { offset } => {
            let into = held.buf.as_mut().map_or(ptr::null_mut(), |buf| buf.as_mut_ptr());
            // A part was copied just now, and is registered no more.
            match fixed.filter(|_| held.buf.as_ref().is_some_and(fixed::is_marked)) {
                Some(place) => opcode::ReadFixed::new(fd, into, len, place).offset(offset).build(),
                None => opcode::Read::new(fd, into, len).offset(offset).build(),
            }
        }
        Action::Write { offset } => {
            // Only read: a part of a buffer others read too stays where it lies.
            let from = held.buf.as_ref().map_or(ptr::null(), |buf| buf.as_ptr());
            match fixed {
                Some(place) => opcode::WriteFixed::new(fd, from, len, place).offset(offset).build(),
                None => opcode::Write::new(fd, from, len).offset(offset).build(),
            }
        }
        Action::Allocate { offset, len } => {
            let mode = ALLOCATE.bits().cast_signed();
            opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
        }
        Action::HandOver { offset, len } => {
            // 0 is as far as the file goes.
            let len = u32::try_from(len).unwrap_or(0);
            opcode::SyncFileRange::new(fd, len).offset(offset).flags(WAIT).build()
        }
        Action::SyncData => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        Action::SyncAll => opcode::Fsync::new(fd).build(),
    }
}

/// An operation as a future: begun at the first poll, on the ring of the thread that polls.
pub(in crate::medium) struct Operation {
    state: State,
}

enum State {
    New { action: Action, held: Option<Held> },
    Begun { ring: Rc<RefCell<Inner>>, at: usize },
    Ended,
}

impl Operation {
    pub(in crate::medium) fn new(
        file: Arc<File>,
        action: Action,
        buf: Option<Buf>,
        orphans: Option<Arc<Orphans>>,
    ) -> Operation {
        let held = Some(Held { buf, _file: file, orphans });
        Operation { state: State::New { action, held } }
    }
}

impl Future for Operation {
    type Output = (Result<usize, Errno>, Option<Buf>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::New { action, held } = &mut self.state {
            let ring = CURRENT.with(|current| current.borrow().clone());
            // The ring is gone, or nothing is left to do: there is nobody to wait for.
            let (Some(ring), Some(parts)) = (ring, held.take()) else {
                return Poll::Ready((Err(Errno::EIO), None));
            };
            let begun = ring.borrow_mut().begin(*action, parts, cx.waker());
            match begun {
                Ok(at) => self.state = State::Begun { ring, at },
                Err(parts) => *held = Some(parts),
            }
            return Poll::Pending;
        }
        let State::Begun { ring, at } = &self.state else {
            return Poll::Ready((Err(Errno::EIO), None));
        };
        let Some((result, held)) = ring.borrow_mut().ended(*at, cx.waker()) else {
            return Poll::Pending;
        };
        self.state = State::Ended;
        let result = usize::try_from(result).map_err(|_| Errno::from_raw(result.unsigned_abs()));
        Poll::Ready((result, held.buf))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let State::Begun { ring, at } = &self.state {
            ring.borrow_mut().abandon(*at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::task::Waker;
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn read(file: &Arc<File>) -> Operation {
        let buf = Reactor::keep(Buf::zeroed(4096));
        Operation::new(Arc::clone(file), Action::Read { offset: 0 }, Some(buf), None)
    }

    /// Sleeps by `wait` until `done`; not for ever.
    fn until(reactor: &Reactor, wakeup: BorrowedFd<'_>, mut done: impl FnMut(&Reactor) -> bool) {
        let from = Instant::now();
        while !done(reactor) {
            assert!(from.elapsed() < LONG, "it was not woken");
            reactor.wait(wakeup, LONG).unwrap();
            reactor.poll();
        }
    }

    #[test]
    fn a_wait_ends_with_an_operation_a_wakeup_or_the_time_and_tells_which() {
        let reactor = Reactor::install_waiting(8).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 4096]).unwrap();
        let file = Arc::new(file);
        let (mut far, mut wakeup) = UnixStream::pair().unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(reactor.take_notified(), "nobody watched it");
        let from = Instant::now();
        reactor.wait(wakeup.as_fd(), Duration::from_millis(20)).unwrap();
        assert!(from.elapsed() >= Duration::from_millis(15), "the time");
        assert_eq!(reactor.poll(), 0);
        let waits = reactor.0.borrow().waits;
        for _ in 0..100 {
            let mut read = std::pin::pin!(read(&file));
            assert!(read.as_mut().poll(&mut cx).is_pending());
            let mut got = None;
            until(&reactor, wakeup.as_fd(), |_| match read.as_mut().poll(&mut cx) {
                Poll::Ready((done, buf)) => {
                    got = Some((done.unwrap(), buf.unwrap()));
                    true
                }
                Poll::Pending => false,
            });
            assert!(got.is_some_and(|(n, buf)| n == 4096 && buf.iter().all(|byte| *byte == 7)));
            assert_eq!(reactor.take_notified(), !waits, "silent, where that can be told");
            far.write_all(b"x").unwrap();
            until(&reactor, wakeup.as_fd(), Reactor::was_notified_or_is_not_told);
            assert!(reactor.take_notified());
            wakeup.read_exact(&mut [0]).unwrap();
        }
        assert!(from.elapsed() < LONG);
    }

    #[test]
    fn a_wakeup_that_cannot_be_watched_is_polled() {
        let reactor = Reactor::install_waiting(8).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let flags = rustix::fs::OFlags::PATH;
        let wakeup = rustix::fs::open(dir.path(), flags, rustix::fs::Mode::empty()).unwrap();
        for _ in 0..4 {
            // Whoever polls a mere place is told at once that it cannot be.
            reactor.wait(wakeup.as_fd(), LONG).unwrap();
            reactor.poll();
            assert!(reactor.take_notified());
        }
        assert!(!reactor.0.borrow().waits);
    }

    impl Reactor {
        fn was_notified_or_is_not_told(&self) -> bool {
            self.was_notified() || !self.0.borrow().waits
        }
    }
}
