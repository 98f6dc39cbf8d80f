//! The host side of Figure 6: queues shared by threads that each wait for their own answer.
//!
//! One of a queue's waiting threads leads: it looks, spins and sleeps on the queue's interrupt, and
//! wakes the others as their answers come. When its own has come it passes the lead on. A thread
//! with a queue of its own always leads.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use outboard_base::limits::REQUEST_HEADER_MAX;
use outboard_base::{Fh, Ino};
use outboard_link::pace::Pace;
use outboard_link::queue::virtiofs::FuseCall;
use outboard_link::queue::{Cid, Completion, HostQueue, Span, Submission, nvmefs, virtiofs};
use outboard_os::{clock, event_loop, futex};
use outboard_wire::file::{Header, Request};
use outboard_wire::fuse::{InHeader, Opcode};
use outboard_wire::nvmefs::{Dispatch, Status};

use super::device::Page;

/// No operation takes longer, or the device is given up.
const LIMIT: Duration = Duration::from_secs(10);

/// The host's end of either transport.
pub(super) enum Queue {
    Nvmefs(nvmefs::Initiator),
    Virtiofs(virtiofs::Initiator),
}

impl Queue {
    fn host(&mut self) -> &mut dyn HostQueue {
        match self {
            Queue::Nvmefs(initiator) => initiator,
            Queue::Virtiofs(initiator) => initiator,
        }
    }

    fn interrupt_at(&self) -> u64 {
        match self {
            Queue::Nvmefs(initiator) => initiator.registers().interrupt_at(),
            Queue::Virtiofs(initiator) => initiator.registers().interrupt_at(),
        }
    }
}

/// One operation, ready to be asked again and again.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    write: Span,
    read: Span,
    /// nvme-fs: the request header.
    header: Vec<u8>,
    /// virtio-fs: the FUSE header and body of the same.
    fuse: InHeader,
    body: [u8; 40],
    reply: u16,
}

impl Ask {
    /// A read or a write of `io` bytes.
    pub(super) fn new(write: bool, io: u32) -> io::Result<Ask> {
        let (ino, fh) = (Ino(7), Fh(3));
        let request = if write {
            Request::Write { ino, fh, offset: 0, flags: 0 }
        } else {
            Request::Read { ino, fh, offset: 0, len: io, flags: 0 }
        };
        let mut header = vec![0; REQUEST_HEADER_MAX];
        let len = request.encode(&Header::default(), &mut header)?;
        header.truncate(len);
        // READ and WRITE agree: file handle, offset, size; the rest is flags, zero here.
        let mut body = [0; 40];
        let (front, size) = body.split_at_mut(16);
        front.copy_from_slice(&[3u64.to_le_bytes(), 0u64.to_le_bytes()].concat());
        if let Some(size) = size.first_chunk_mut() {
            *size = io.to_le_bytes();
        }
        let opcode = if write { Opcode::Write } else { Opcode::Read };
        let (span, none) = (Span::first(io), Span::NONE);
        let (write, read, reply) = if write { (span, none, 8) } else { (none, span, 0) };
        let fuse = InHeader { opcode: opcode as u32, node: 7, ..InHeader::default() };
        Ok(Ask { write, read, header, fuse, body, reply })
    }

    fn submit(&self, queue: &mut Queue, cid: Cid) -> io::Result<()> {
        let submitted = match queue {
            Queue::Nvmefs(initiator) => initiator.submit(
                cid,
                &Submission {
                    dispatch: Dispatch::Kv,
                    header: &self.header,
                    write: self.write,
                    read: self.read,
                    reply_header: 0,
                },
            ),
            Queue::Virtiofs(initiator) => initiator.submit_call(
                cid,
                &FuseCall {
                    header: self.fuse,
                    body: &self.body,
                    write: self.write,
                    read: self.read,
                    reply: self.reply,
                },
            ),
        };
        submitted.map(drop).map_err(|error| io::Error::other(format!("cannot submit: {error:?}")))
    }
}

/// A slot whose answer somebody waits for.
#[derive(Default)]
struct Waiting {
    thread: Option<Thread>,
    done: Option<Completion>,
}

struct State {
    queue: Queue,
    /// Somebody looks for answers.
    led: bool,
    waiting: Vec<Waiting>,
    found: Vec<Completion>,
}

impl State {
    /// Takes what has come and wakes those it is for, but the caller.
    fn take_answers(&mut self, mine: Cid) -> usize {
        let mut found = std::mem::take(&mut self.found);
        let count = self.queue.host().poll(usize::MAX, &mut found);
        for completion in found.drain(..) {
            if let Some(waiting) = self.waiting.get_mut(usize::from(completion.cid.0)) {
                waiting.done = Some(completion);
                if completion.cid != mine
                    && let Some(thread) = waiting.thread.take()
                {
                    thread.unpark();
                }
            }
        }
        self.found = found;
        count
    }

    /// Leaves the lead to somebody who still waits.
    fn pass_on(&mut self) {
        self.led = false;
        let next = self.waiting.iter().find(|one| one.done.is_none() && one.thread.is_some());
        if let Some(thread) = next.and_then(|one| one.thread.as_ref()) {
            thread.unpark();
        }
    }
}

/// One queue and the threads that share it.
pub(super) struct Channel {
    state: Mutex<State>,
    interrupt_at: u64,
    page: Page,
    worker: usize,
    registers: Arc<outboard_link::Region>,
}

impl Channel {
    pub(super) fn new(
        queue: Queue,
        slots: u16,
        page: Page,
        worker: usize,
        registers: Arc<outboard_link::Region>,
    ) -> Channel {
        let interrupt_at = queue.interrupt_at();
        let waiting = (0..slots).map(|_| Waiting::default()).collect();
        let state = Mutex::new(State { queue, led: false, waiting, found: Vec::new() });
        Channel { state, interrupt_at, page, worker, registers }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One operation, from submission to its answer.
    pub(super) fn round_trip(&self, ask: &Ask, pace: &mut Pace) -> io::Result<()> {
        let mut state = self.lock();
        let cid = state
            .queue
            .host()
            .acquire()
            .ok_or_else(|| io::Error::other("more threads than slots"))?;
        ask.submit(&mut state.queue, cid)?;
        if let Some(waiting) = state.waiting.get_mut(usize::from(cid.0)) {
            *waiting = Waiting { thread: Some(std::thread::current()), done: None };
        }
        let asleep = state.queue.host().ring();
        drop(state);
        if asleep {
            self.page.wake(self.worker)?;
        }
        let completion = self.wait(cid, pace)?;
        if completion.status == Status::Ok {
            return Ok(());
        }
        Err(io::Error::other(format!("an operation failed: {:?}", completion.status)))
    }

    fn wait(&self, cid: Cid, pace: &mut Pace) -> io::Result<Completion> {
        let limit = clock::now().after(LIMIT);
        let mut leading = false;
        loop {
            let mut state = self.lock();
            if leading || !state.led {
                (leading, state.led) = (true, true);
                if state.take_answers(cid) > 0 && pace.is_idle() {
                    pace.work(clock::now());
                }
            }
            let slot = state.waiting.get_mut(usize::from(cid.0));
            if let Some(completion) = slot.and_then(|waiting| waiting.done.take()) {
                if let Some(waiting) = state.waiting.get_mut(usize::from(cid.0)) {
                    waiting.thread = None;
                }
                if leading {
                    state.pass_on();
                }
                let released = state.queue.host().release(cid);
                return released.map(|()| completion).map_err(|_| io::ErrorKind::Other.into());
            }
            drop(state);
            let now = clock::now();
            if now >= limit {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the device does not answer"));
            }
            if !leading {
                std::thread::park_timeout(LIMIT);
                continue;
            }
            if event_loop::rest(pace, now) {
                self.sleep(pace)?;
            }
        }
    }

    fn sleep(&self, pace: &mut Pace) -> io::Result<()> {
        let Some(expected) = self.lock().queue.host().may_sleep() else { return Ok(()) };
        let from = clock::now();
        futex::wait(&self.registers, self.interrupt_at, expected, Duration::from_secs(1))?;
        self.lock().queue.host().awake();
        pace.slept(from, clock::now());
        Ok(())
    }
}
