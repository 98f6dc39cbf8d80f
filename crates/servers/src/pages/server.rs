//! The host side: one thread, its connections, and the pages it keeps.

mod ending;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::Errno;
use outboard_drivers::dds::tcp::sockets::{Address, ConnId, Listener, Read, Ready, Sockets, Wrote};
use outboard_drivers::executor::{Executor, Started};
use outboard_kv::medium::Buf;

use super::wire::{self, CONTENTS, Framed, PAGE, PAGE_HEAD, Request, Status};
use crate::device::Device;
use crate::kv::{Ended, Stop};

/// Bytes of one read from a connection.
const CHUNK: usize = 64 << 10;
/// Bytes of answers that wait for a client; beyond, its requests wait.
const OUT_MAX: usize = 1 << 20;
/// Reads and writes of the file under way.
const WORK_MAX: usize = 512;
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Pages written at once, and those that may be changed before the oldest are.
const WRITES_MAX: usize = 32;
const PAGE64: u64 = PAGE as u64;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where it listens.
    pub listen: Address,
    /// Bytes of memory for pages.
    pub memory: usize,
}

/// A page in memory.
struct Frame {
    bytes: Vec<u8>,
    lsn: u64,
    /// Newer than the file.
    changed: bool,
    /// Being written as it was at this LSN.
    writing: Option<u64>,
}

/// What ended in the background.
enum Event {
    Read(u64, Result<Vec<u8>, Errno>),
    Written(u64, u64, Result<(), Errno>),
    Flushed(Result<(), Errno>),
}

type Work = Pin<Box<dyn Future<Output = Event>>>;

struct Conn {
    id: ConnId,
    input: Vec<u8>,
    out: Vec<u8>,
    /// Its first request waits for this page.
    waits: Option<u64>,
    /// The page it waited for could not be read.
    failed: Option<u64>,
    ended: bool,
    closing: bool,
    queued: bool,
}

/// The server.
pub struct PageServer<D: Device> {
    device: Rc<D>,
    sockets: Sockets,
    listener: Listener,
    stop: Arc<Stop>,
    executor: Executor<Work>,
    conns: Vec<Option<Conn>>,
    queue: VecDeque<ConnId>,
    frames: HashMap<u64, Frame>,
    /// Pages in memory, in the order in which they were last taken in or looked at for eviction.
    order: VecDeque<u64>,
    budget: usize,
    writes: usize,
    /// Pages being read, and who waits for them.
    reading: HashMap<u64, Vec<ConnId>>,
    /// Who waits until there is memory for another page.
    crowded: Vec<ConnId>,
    write_failed: bool,
    begin: Vec<Work>,
    chunk: Vec<u8>,
}

impl<D: Device> PageServer<D> {
    /// Listens.
    pub fn open(setup: &Setup, device: D, stop: Arc<Stop>) -> io::Result<PageServer<D>> {
        let listener = Listener::bind(&setup.listen)?;
        let sockets = Sockets::new()?;
        sockets.watch_listener(&listener)?;
        sockets.watch_bell(stop.bell())?;
        let ringer = stop.bell().ringer()?;
        Ok(PageServer {
            device: Rc::new(device),
            sockets,
            listener,
            stop,
            executor: Executor::new(WORK_MAX, move || ringer.ring()),
            conns: Vec::new(),
            queue: VecDeque::new(),
            frames: HashMap::new(),
            order: VecDeque::new(),
            budget: (setup.memory / PAGE).max(2 * WRITES_MAX),
            writes: 0,
            reading: HashMap::new(),
            crowded: Vec::new(),
            write_failed: false,
            begin: Vec::new(),
            chunk: vec![0; CHUNK],
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Serves until told to stop; then every page is written, if that does not take too long.
    pub fn run(&mut self) -> io::Result<Ended> {
        let mut ready = Vec::new();
        while !self.stop.is_set() {
            if self.queue.is_empty() {
                self.sleep(&mut ready)?;
            } else {
                self.sockets.look(Some(Duration::ZERO), &mut ready)?;
            }
            for what in ready.drain(..) {
                match what {
                    Ready::Conn(id) => self.enqueue(id),
                    Ready::Listener => self.accept(),
                    Ready::Bell => {
                        self.stop.bell().drain()?;
                    }
                }
            }
            for _ in 0..self.queue.len() {
                if let Some(id) = self.queue.pop_front() {
                    self.serve(id);
                }
            }
            self.make_room();
            if !self.is_full() {
                for id in std::mem::take(&mut self.crowded) {
                    self.enqueue(id);
                }
            }
            self.background();
            if self.device.is_lost() {
                return Ok(Ended::DeviceLost);
            }
        }
        self.end()?;
        Ok(Ended::Told)
    }

    fn sleep(&mut self, ready: &mut Vec<Ready>) -> io::Result<()> {
        if self.executor.running() == 0 {
            return self.sockets.look(Some(SLEEP_MAX), ready);
        }
        if self.executor.begin_sleep() {
            let slept = self.device.sleep(self.sockets.fd(), SLEEP_MAX);
            self.executor.end_sleep();
            slept?;
        }
        self.background();
        self.sockets.look(Some(Duration::ZERO), ready)
    }

    fn accept(&mut self) {
        loop {
            let added = match self.listener.accept() {
                Ok(Some(stream)) => self.sockets.add(stream),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            match added {
                Ok(id) => {
                    if self.conns.len() <= id.index() {
                        self.conns.resize_with(id.index() + 1, || None);
                    }
                    let (input, out) = (Vec::new(), Vec::new());
                    let [ended, closing, queued] = [false; 3];
                    let (waits, failed) = (None, None);
                    let conn = Conn { id, input, out, waits, failed, ended, closing, queued };
                    if let Some(place) = self.conns.get_mut(id.index()) {
                        *place = Some(conn);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a client; raise `ulimit -n`?");
                    return std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.index())?.as_mut().filter(|conn| conn.id == id)
    }

    fn enqueue(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id)
            && !std::mem::replace(&mut conn.queued, true)
        {
            self.queue.push_back(id);
        }
    }

    /// Reads once from a connection, answers what can be, and sends.
    fn serve(&mut self, id: ConnId) {
        let place = self.conns.get_mut(id.index());
        let Some(mut conn) = place.and_then(|place| place.take_if(|conn| conn.id == id)) else {
            return;
        };
        conn.queued = false;
        if conn.has_room() && conn.input.len() < CHUNK {
            match self.sockets.read(id, &mut self.chunk) {
                Read::Bytes(n) => {
                    conn.input.extend_from_slice(self.chunk.get(..n).unwrap_or_default());
                }
                Read::Ended => conn.ended = true,
                Read::Reset => return self.sockets.close(id, false),
                Read::Blocked => {}
            }
        }
        self.requests(&mut conn);
        while !conn.out.is_empty() {
            match self.sockets.write(id, &[IoSlice::new(&conn.out)]) {
                Wrote::Bytes(n) => drop(conn.out.drain(..n)),
                Wrote::Blocked => break,
                Wrote::Reset => return self.sockets.close(id, false),
            }
        }
        let more = matches!(wire::frame(&conn.input), Framed::Whole(_));
        let over = conn.closing || (conn.ended && !more);
        if over && conn.out.is_empty() && conn.waits.is_none() {
            return self.sockets.close(id, false);
        }
        let again = conn.has_room() && (more || self.sockets.is_readable(id));
        if let Some(place) = self.conns.get_mut(id.index()) {
            *place = Some(conn);
        }
        if again {
            self.enqueue(id);
        }
    }

    fn requests(&mut self, conn: &mut Conn) {
        conn.waits = None;
        let input = std::mem::take(&mut conn.input);
        let mut taken = 0;
        while conn.has_room() {
            let rest = input.get(taken..).unwrap_or_default();
            match wire::frame(rest) {
                Framed::Whole(len) => {
                    let message = rest.get(..len).unwrap_or_default();
                    if let Some(page) = self.request(message, conn) {
                        conn.waits = Some(page);
                        self.wait_for(page, conn.id);
                        break;
                    }
                    taken += len;
                }
                Framed::More(_) => break,
                Framed::Invalid => {
                    conn.out.extend(wire::answer_head(Status::Invalid, 0, 0, 0));
                    conn.closing = true;
                }
            }
        }
        conn.input = input;
        conn.input.drain(..taken);
    }

    /// Answers one request; the page it has to wait for, if it has to.
    fn request(&mut self, message: &[u8], conn: &mut Conn) -> Option<u64> {
        let out = &mut conn.out;
        let Some(request) = Request::parse(message) else {
            out.extend(wire::answer_head(Status::Invalid, 0, 0, 0));
            return None;
        };
        let (Request::GetPage { page, .. } | Request::Apply { page, .. }) = request;
        let Some(frame) = self.frames.get_mut(&page) else {
            let is_stuck = self.is_full() && self.write_failed;
            if conn.failed.take() == Some(page) || is_stuck {
                out.extend(wire::answer_head(Status::Failed, page, 0, 0));
                return None;
            }
            return Some(page);
        };
        match request {
            Request::GetPage { lsn, .. } if frame.lsn >= lsn => {
                out.extend(wire::answer_head(Status::Done, page, frame.lsn, PAGE));
                if frame.changed {
                    wire::seal(&mut frame.bytes, page, frame.lsn);
                }
                out.extend_from_slice(&frame.bytes);
            }
            Request::GetPage { .. } => {
                out.extend(wire::answer_head(Status::Older, page, frame.lsn, 0));
            }
            Request::Apply { lsn, .. } if lsn <= frame.lsn => {
                out.extend(wire::answer_head(Status::Applied, page, frame.lsn, 0));
            }
            Request::Apply { lsn, at, data, .. } => {
                let start = PAGE_HEAD + at.min(CONTENTS);
                if let Some(to) = frame.bytes.get_mut(start..start + data.len()) {
                    to.copy_from_slice(data);
                }
                (frame.lsn, frame.changed) = (lsn, true);
                out.extend(wire::answer_head(Status::Done, page, lsn, 0));
            }
        }
        None
    }

    /// Reads a page into memory, for whoever waits.
    fn wait_for(&mut self, page: u64, conn: ConnId) {
        if self.is_full() {
            return self.crowded.push(conn);
        }
        if let Some(waiting) = self.reading.get_mut(&page) {
            return waiting.push(conn);
        }
        self.reading.insert(page, vec![conn]);
        let device = Rc::clone(&self.device);
        self.begin.push(Box::pin(async move {
            let read = device.read(page * PAGE64, PAGE).await;
            Event::Read(page, read.map(|bytes| bytes.to_vec()))
        }));
    }

    /// Whether pages must leave before others come.
    fn is_full(&self) -> bool {
        self.frames.len() + self.reading.len() >= 2 * self.budget
    }

    /// Begins what is to be begun and takes in what ended.
    fn background(&mut self) {
        loop {
            let mut ended = Vec::new();
            for work in std::mem::take(&mut self.begin) {
                match self.executor.start(work) {
                    Ok(Started::Done(event)) => ended.push(event),
                    Ok(Started::Running(_)) => {}
                    Err(work) => self.begin.push(work),
                }
            }
            if self.executor.running() > 0 {
                self.device.progress();
                self.executor.poll(|_, event| ended.push(event));
            }
            if ended.is_empty() {
                return;
            }
            ended.into_iter().for_each(|event| self.on(event));
        }
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Read(page, read) => {
                let waiting = self.reading.remove(&page).unwrap_or_default();
                match read.map(|bytes| frame_of(bytes, page)) {
                    Ok(Some(frame)) => {
                        self.frames.insert(page, frame);
                        self.order.push_back(page);
                    }
                    other => {
                        let error = other.err().unwrap_or(Errno::EIO);
                        tracing::error!(page, %error, "a page cannot be read");
                        for id in &waiting {
                            if let Some(conn) = self.conn(*id) {
                                conn.failed = Some(page);
                            }
                        }
                    }
                }
                waiting.into_iter().for_each(|id| self.enqueue(id));
            }
            Event::Flushed(flushed) => {
                self.writes = self.writes.saturating_sub(1);
                if let Err(error) = flushed {
                    tracing::warn!(%error, "the file could not be flushed");
                }
            }
            Event::Written(page, lsn, written) => {
                self.writes = self.writes.saturating_sub(1);
                self.write_failed = written.is_err();
                for id in std::mem::take(&mut self.crowded) {
                    self.enqueue(id);
                }
                let Some(frame) = self.frames.get_mut(&page) else { return };
                frame.writing = None;
                match written {
                    Ok(()) => frame.changed &= frame.lsn != lsn,
                    Err(error) => {
                        tracing::warn!(page, %error, "a page was not written; it stays in memory");
                    }
                }
            }
        }
    }

    /// Writes changed pages while there are more than the memory allows, and lets clean ones go.
    fn make_room(&mut self) {
        let mut looks = self.order.len().min(4 * WRITES_MAX);
        while self.frames.len() > self.budget && looks > 0 {
            looks -= 1;
            let Some(page) = self.order.pop_front() else { return };
            let Some(frame) = self.frames.get_mut(&page) else { continue };
            if !frame.changed && frame.writing.is_none() {
                self.frames.remove(&page);
                continue;
            }
            self.order.push_back(page);
            if self.writes < WRITES_MAX {
                self.write_back(page);
            }
        }
    }

    /// Begins to write a page as it is now, unless it is being written.
    fn write_back(&mut self, page: u64) {
        let Some(frame) = self.frames.get_mut(&page).filter(|frame| frame.writing.is_none()) else {
            return;
        };
        wire::seal(&mut frame.bytes, page, frame.lsn);
        let mut buf = Buf::zeroed(PAGE);
        buf.copy_from_slice(&frame.bytes);
        frame.writing = Some(frame.lsn);
        self.writes += 1;
        let (device, lsn) = (Rc::clone(&self.device), frame.lsn);
        self.begin.push(Box::pin(async move {
            Event::Written(page, lsn, device.write(page * PAGE64, buf).await)
        }));
    }
}

impl Conn {
    fn has_room(&self) -> bool {
        !self.closing && self.out.len() < OUT_MAX
    }
}

/// A page as it was read; one that was never written is all zeros.
fn frame_of(mut bytes: Vec<u8>, page: u64) -> Option<Frame> {
    let lsn = match wire::lsn_of(&bytes, page) {
        Some(lsn) => lsn,
        None if bytes.iter().all(|byte| *byte == 0) => {
            wire::seal(&mut bytes, page, 0);
            0
        }
        None => return None,
    };
    Some(Frame { bytes, lsn, changed: false, writing: None })
}
