//! The port over a user-space TCP stack: a bump in the wire.
//!
//! Two devices, and everything that comes to one leaves through the other as it came, header, tags
//! and padding, but for segments of flows that the signature names. Those are ended here: a
//! connection with the client, in the server's name, and one with the server, in the client's. So
//! neither learns that the other is not there: the host sees its clients' addresses, and ARP,
//! neighbours and routes are the two sides' own affair.
//!
//! ```text
//!  clients ── device ──┬── not ours: as it came ──┬── device ── host
//!                      └─ leg ── director ── leg ─┘
//!                     server's name      client's name
//! ```
//!
//! * [`device`]: packet sockets on devices there are, and TAP devices of our own;
//! * `leg`: one connection and its TCP stack, smoltcp;
//! * [`capture`], [`faults`]: devices around devices, that write down and that lose;
//! * [`network`]: what devices are asked for, and opening them.
//!
//! The first worker receives. It forwards, keeps the flows that the symmetric hash gives it, and
//! hands the frames of the others to theirs. Both directions of both legs hash alike, so a flow is
//! one worker's, and nothing of it is shared.
//!
//! Checksums are looked at here and not in the legs: a frame that never left this computer has none
//! that is finished, and says so.

pub mod capture;
pub mod device;
pub mod faults;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod leg;
pub mod network;
mod sys;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outboard_dds::dpu::director::packet::{Segment, Side, Verdict, classify, long};
use outboard_dds::dpu::director::{Flow5, Signature, symmetric_hash};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use serde_json::{Value, json};
use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;

use self::device::{Device, FRAME_MAX, HEADER, is_trusted};
use self::leg::{Leg, Link, Way};
use super::admission::{Admission, Place};
use super::port::{Inbox, News, Port};
use super::sockets::{ConnId, Read, Wrote};
use outboard_os::wakeup::Wakeup;

/// A frame longer than this, which has no tags, may be one of more joined segments than IP can say.
const LONG: usize = 14 + 65535;
/// Frames of one look at one device.
const FRAMES: usize = 256;
/// Frames that wait for another worker.
const HANDED_MAX: usize = 4096;
/// Connections of one worker, of both kinds; half are for clients, of whom those beyond are not
/// heard.
const LEGS_MAX: usize = 16 << 10;
/// A new leg's buffers take at most one of so many parts of the memory that is left, each way,
const SHARE: usize = 512;
/// and at least this: else there is no room for it.
const BUFFER_MIN: usize = 4 << 10;
/// Legs whose client has not answered yet; beyond, or if no memory is left, the one that waits
/// longest makes room: a flood of clients that are not there keeps nobody out.
const OPENING_MAX: usize = 1024;
/// Legs that are closed and wait for the other side to know.
const CLOSED_MAX: usize = 4096;
/// And for how long.
const CLOSING: Duration = Duration::from_secs(30);

/// Names of what is waited for.
const CLIENT: u64 = 0;
const HOST: u64 = 1;
const WAKEUP: u64 = 2;

/// What became of frames; of all workers.
#[derive(Debug, Default)]
pub struct Frames {
    /// Left as they came.
    pub forwarded: AtomicU64,
    /// Segments of flows that are ended here.
    pub taken: AtomicU64,
    /// Of more joined segments than IP can say, and divided.
    pub divided: AtomicU64,
    /// Not taken by a device.
    pub lost: AtomicU64,
    /// Segments with a wrong checksum.
    pub damaged: AtomicU64,
    /// Segments of no connection, answered with a reset.
    pub refused: AtomicU64,
}

impl Frames {
    pub(super) fn json(&self) -> Value {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        json!({
            "forwarded": of(&self.forwarded),
            "taken": of(&self.taken),
            "divided": of(&self.divided),
            "lost": of(&self.lost),
            "damaged": of(&self.damaged),
            "refused": of(&self.refused),
        })
    }
}

/// A frame that another worker received.
pub struct Handed {
    from: Side,
    flow: Flow5,
    segment: Segment,
    frame: Vec<u8>,
}

/// What all workers of a front share.
pub(super) struct Wires {
    pub(super) client: Arc<dyn Device>,
    pub(super) host: Arc<dyn Device>,
    /// Bytes of a leg's buffer, either way.
    pub(super) buffer: usize,
    pub(super) signature: Signature,
    pub(super) frames: Arc<Frames>,
    /// By the number of the worker.
    pub(super) inboxes: Vec<Arc<Inbox<Handed>>>,
    pub(super) admission: Admission,
    /// Bytes of buffers of the legs of one worker.
    pub(super) memory: usize,
}

impl Wires {
    fn device(&self, side: Side) -> &dyn Device {
        match side {
            Side::Client => &*self.client,
            Side::Host => &*self.host,
        }
    }
}

/// Which leg a segment is of: that with this side, of this flow.
type Name = (Side, SocketAddr, SocketAddr);

struct Conn {
    leg: Leg,
    name: Name,
    generation: u32,
    /// The worker was told of it.
    told: bool,
    /// The worker wants nothing of it any more.
    closed: bool,
    /// It is to be polled.
    waits: bool,
    timer: Option<Instant>,
    /// Since when it waits for its client to answer, if it does.
    opening: Option<Instant>,
    /// When its time to close is over, once that runs.
    closing: Option<Instant>,
    /// A client's, until it is closed.
    place: Option<Place>,
    /// Bytes of its buffers.
    bytes: usize,
}

/// Connections of one worker.
pub(super) struct StackPort {
    epoll: OwnedFd,
    wires: Arc<Wires>,
    worker: usize,
    conns: Vec<Option<Conn>>,
    free: Vec<u32>,
    generation: u32,
    names: HashMap<Name, u32>,
    timers: BTreeSet<(Instant, u32)>,
    /// To be polled.
    waiting: Vec<u32>,
    /// Those that wait for their client to answer, the oldest first.
    opening: BTreeSet<(Instant, u32)>,
    /// Closed, the oldest first, with the end of their time.
    closing: BTreeSet<(Instant, u32)>,
    seeds: RandomState,
    begun: std::time::Instant,
    /// When to look after a device that is away, if one is.
    tend_at: Option<Instant>,
    /// Legs of clients, and bytes of the buffers of all.
    clients: usize,
    bytes: usize,
    /// Where frames are received, and where they are made.
    received: Vec<u8>,
    made: Vec<u8>,
}

impl StackPort {
    /// The port of one worker; the first receives for all.
    pub(super) fn new(wires: Arc<Wires>, worker: usize) -> io::Result<StackPort> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        if worker == 0 {
            for (side, data) in [(Side::Client, CLIENT), (Side::Host, HOST)] {
                let fd = wires.device(side).fd();
                epoll::add(&epoll, fd, EventData::new_u64(data), EventFlags::IN)?;
            }
        }
        Ok(StackPort {
            epoll,
            wires,
            worker,
            conns: Vec::new(),
            free: Vec::new(),
            generation: 0,
            names: HashMap::new(),
            timers: BTreeSet::new(),
            waiting: Vec::new(),
            opening: BTreeSet::new(),
            closing: BTreeSet::new(),
            seeds: RandomState::new(),
            begun: std::time::Instant::now(),
            tend_at: None,
            clients: 0,
            bytes: 0,
            received: vec![0; FRAME_MAX],
            made: Vec::new(),
        })
    }

    fn now(&self) -> Instant {
        Instant::from_micros(i64::try_from(self.begun.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(id.index())?.as_mut()?;
        (conn.generation == id.generation).then_some(conn)
    }

    fn at(&mut self, at: u32) -> Option<&mut Conn> {
        self.conns.get_mut(usize::try_from(at).ok()?)?.as_mut()
    }

    /// Has a leg polled at the next flush.
    fn wait(&mut self, at: u32) {
        if let Some(conn) = self.at(at)
            && !std::mem::replace(&mut conn.waits, true)
        {
            self.waiting.push(at);
        }
    }

    /// Receives what came to one device, and forwards or takes it.
    fn receive(&mut self, from: Side) -> io::Result<()> {
        let wires = Arc::clone(&self.wires);
        let (device, other) = match from {
            Side::Client => (&wires.client, &wires.host),
            Side::Host => (&wires.host, &wires.client),
        };
        let mut buf = std::mem::take(&mut self.received);
        let (mut outcome, mut heard) = (Ok(()), false);
        for _ in 0..FRAMES {
            let frame = match device.receive(&mut buf) {
                Ok(Some(len)) => buf.get(..len).unwrap_or_default(),
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            };
            heard = true;
            let bytes = frame.get(HEADER..).unwrap_or_default();
            match classify(&wires.signature, from, bytes) {
                Verdict::Ours(flow, segment) => self.sort(from, flow, segment, frame),
                Verdict::Forward if bytes.len() > LONG && self.divide(from, frame) => {}
                Verdict::Forward => {
                    count(&wires.frames.forwarded, 1);
                    count(&wires.frames.lost, u64::from(!other.send(frame)));
                }
            }
        }
        self.received = buf;
        // Its descriptor said something: perhaps, behind frames, that it was taken away. The kernel
        // says so once.
        self.tend(!heard || self.tend_at.is_none());
        outcome
    }

    /// Keeps a segment, or hands it to the worker whose flow it is of.
    fn sort(&mut self, from: Side, flow: Flow5, segment: Segment, frame: &[u8]) {
        let workers = self.wires.inboxes.len().max(1) as u64;
        let whose = usize::try_from(symmetric_hash(&flow) % workers).unwrap_or(0);
        match self.wires.inboxes.get(whose).filter(|_| whose != self.worker) {
            None => self.ingest(from, &flow, &segment, frame),
            Some(inbox) => {
                let frame = frame.to_vec();
                let taken = inbox.push(Handed { from, flow, segment, frame }, HANDED_MAX);
                count(&self.wires.frames.lost, u64::from(!taken));
            }
        }
    }

    /// Takes a frame of more joined segments than IP can say, if it is of a flow that is ended
    /// here; false if it is not.
    fn divide(&mut self, from: Side, frame: &[u8]) -> bool {
        let (Some(header), Some(bytes)) = (frame.get(..HEADER), frame.get(HEADER..)) else {
            return false;
        };
        let parts = long::divide(bytes).unwrap_or_default();
        for part in &parts {
            match classify(&self.wires.signature, from, part) {
                Verdict::Ours(flow, segment) => {
                    self.sort(from, flow, segment, &[header, part].concat());
                }
                // All parts are of one flow.
                Verdict::Forward => return false,
            }
        }
        count(&self.wires.frames.divided, u64::from(!parts.is_empty()));
        !parts.is_empty()
    }

    /// Looks after devices that are away; `now` or when that is due.
    fn tend(&mut self, now: bool) {
        let time = self.now();
        if self.worker != 0 || !(now || self.tend_at.is_some_and(|at| at <= time)) {
            return;
        }
        let again = [&self.wires.client, &self.wires.host].map(|device| device.tend());
        self.tend_at = again.into_iter().flatten().min().map(|after| time + after.into());
    }

    /// Gives a segment to its leg.
    fn ingest(&mut self, from: Side, flow: &Flow5, segment: &Segment, frame: &[u8]) {
        count(&self.wires.frames.taken, 1);
        let bytes = frame.get(HEADER..).unwrap_or_default();
        if !is_trusted(frame) && !segment.is_intact(bytes) {
            return count(&self.wires.frames.damaged, 1);
        }
        let header = bytes.get(..segment.packet.start).unwrap_or_default();
        let packet = bytes.get(segment.packet.clone()).unwrap_or_default();
        let name = (from, flow.client, flow.server);
        let opens = segment.opens && from == Side::Client;
        let mut at = self.names.get(&name).copied();
        if let Some(old) = at.filter(|_| opens)
            && self.at(old).is_some_and(|c| c.closed && c.leg.state() == State::TimeWait)
        {
            // The client has all, and takes its port again. Until then it may be an old segment.
            self.remove(old);
            at = None;
        }
        let at = match at {
            Some(at) => at,
            None if opens => match self.accept(name, Link::back(header)) {
                Some(at) => at,
                None => return,
            },
            None if segment.resets => return,
            None => return self.refuse(from, segment, Link::back(header), packet),
        };
        if let Some(conn) = self.at(at) {
            conn.leg.link = Link::back(header);
            conn.leg.arrive(packet);
        }
        self.wait(at);
    }

    fn refuse(&mut self, from: Side, segment: &Segment, link: Link, packet: &[u8]) {
        let (now, mut lost) = (self.now(), 0);
        let device = self.wires.device(from);
        let way = Way { device, frame: &mut self.made, lost: &mut lost };
        count(&self.wires.frames.refused, 1);
        leg::refuse(segment.destination, &link, packet, now, way);
        count(&self.wires.frames.lost, lost);
    }

    /// A leg for a client that wants to connect.
    fn accept(&mut self, name: Name, link: Link) -> Option<u32> {
        if self.clients >= LEGS_MAX / 2 {
            return None;
        }
        if (self.opening.len() >= OPENING_MAX || self.buffer().is_none())
            && let Some((_, oldest)) = self.opening.first().copied()
        {
            self.remove(oldest);
        }
        let buffer = self.buffer()?;
        let (now, seed, mut lost) = (self.now(), self.seed(&name), 0);
        let device = self.wires.device(name.0);
        let way = Way { device, frame: &mut self.made, lost: &mut lost };
        let leg = Leg::accept(name.2, link, buffer, seed, now, way)?;
        let at = self.add(leg, name, buffer, false)?;
        self.opening.insert((now, at));
        self.at(at)?.opening = Some(now);
        Some(at)
    }

    fn is_full(&self) -> bool {
        self.conns.len() - self.free.len() >= LEGS_MAX
    }

    /// How large a new leg's buffers are, each way; `None` if there is no room for them. The more
    /// legs there are, the less is left for the next.
    fn buffer(&self) -> Option<usize> {
        let left = self.wires.memory.saturating_sub(self.bytes);
        let buffer = (left / SHARE).max(BUFFER_MIN).min(self.wires.buffer);
        (2 * buffer <= left).then_some(buffer)
    }

    /// What makes the first sequence number of a leg: known to nobody else.
    fn seed(&mut self, name: &Name) -> u64 {
        self.generation = self.generation.wrapping_add(1);
        self.seeds.hash_one((name, self.generation, self.now().total_micros()))
    }

    fn add(&mut self, leg: Leg, name: Name, buffer: usize, told: bool) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let conn = Conn {
            leg,
            name,
            generation: self.generation,
            told,
            closed: false,
            waits: false,
            timer: None,
            opening: None,
            closing: None,
            place: None,
            bytes: 2 * buffer,
        };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.conns.push(None);
                u32::try_from(self.conns.len() - 1).ok()?
            }
        };
        *self.conns.get_mut(usize::try_from(at).ok()?)? = Some(conn);
        self.names.insert(name, at);
        self.clients += usize::from(name.0 == Side::Client);
        self.bytes += 2 * buffer;
        Some(at)
    }

    fn remove(&mut self, at: u32) {
        let place = usize::try_from(at).ok().and_then(|at| self.conns.get_mut(at));
        let Some(conn) = place.and_then(Option::take) else { return };
        for (set, time) in [
            (&mut self.timers, conn.timer),
            (&mut self.opening, conn.opening),
            (&mut self.closing, conn.closing),
        ] {
            time.map(|time| set.remove(&(time, at)));
        }
        self.names.remove(&conn.name);
        self.clients -= usize::from(conn.name.0 == Side::Client);
        self.bytes -= conn.bytes;
        self.free.push(at);
    }

    /// Polls a leg, and says what came of it.
    fn poll(&mut self, at: u32, now: Instant, news: &mut Vec<News>) {
        let place = usize::try_from(at).ok().and_then(|at| self.conns.get_mut(at));
        let Some(conn) = place.and_then(Option::as_mut) else { return };
        conn.waits = false;
        let before = (conn.leg.state(), conn.leg.is_readable(), conn.leg.room());
        let mut lost = 0;
        let device = self.wires.device(conn.name.0);
        conn.leg.poll(now, Way { device, frame: &mut self.made, lost: &mut lost });
        count(&self.wires.frames.lost, lost);
        if conn.closed {
            conn.leg.waste();
        }
        let state = conn.leg.state();
        let opening = matches!(state, State::Listen | State::SynReceived);
        let over = state == State::Closed || (!conn.told && state == State::Listen);
        if over && (conn.closed || !conn.told) {
            return self.remove(at);
        }
        let id = ConnId { at, generation: conn.generation };
        let moved = before != (state, conn.leg.is_readable(), conn.leg.room());
        if !opening && !std::mem::replace(&mut conn.told, true) {
            conn.opening.take().map(|since| self.opening.remove(&(since, at)));
            conn.place = self.wires.admission.admit();
            match &conn.place {
                Some(_) => news.push(News::Came(id)),
                None => return self.turn_away(id),
            }
        } else if moved && !conn.closed {
            news.push(News::Moved(id));
        }
        let next = conn.leg.next(now);
        let old = std::mem::replace(&mut conn.timer, next);
        if old != next {
            if let Some(old) = old {
                self.timers.remove(&(old, at));
            }
            self.timers.extend(next.map(|next| (next, at)));
        }
    }

    /// Closes a client's leg for which there is no room, with a word.
    fn turn_away(&mut self, id: ConnId) {
        let words = self.wires.admission.refusal;
        if let Some(conn) = self.conn(id) {
            // As far as there is room: the buffers are empty.
            let _taken = conn.leg.write(words);
        }
        self.close(id, false);
    }

    /// Those whose time is over, whatever their other side says.
    fn end_closed(&mut self, now: Instant) {
        while let Some((end, at)) = self.closing.first().copied()
            && (end <= now || self.closing.len() > CLOSED_MAX)
        {
            self.closing.remove(&(end, at));
            if let Some(conn) = self.at(at) {
                conn.closing = None;
                conn.leg.abort();
            }
            self.wait(at);
        }
    }
}

fn count(counter: &AtomicU64, n: u64) {
    if n > 0 {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

impl Port for StackPort {
    type Item = Handed;

    fn watch_wakeup(&mut self, wakeup: &Wakeup) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, wakeup.fd(), EventData::new_u64(WAKEUP), EventFlags::IN)?)
    }

    fn take(&mut self, item: Handed, _: &mut Vec<News>) {
        let Handed { from, flow, segment, frame } = item;
        self.ingest(from, &flow, &segment, &frame);
    }

    fn look(&mut self, timeout: Duration, news: &mut Vec<News>) -> io::Result<()> {
        self.flush(news);
        self.tend(false);
        let wait = if news.is_empty() { timeout.min(self.patience()) } else { Duration::ZERO };
        let wait = rustix::time::Timespec::try_from(wait).map_err(io::Error::other)?;
        let mut events = Vec::<epoll::Event>::with_capacity(4);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            match event.data.u64() {
                WAKEUP => news.push(News::Wakeup),
                CLIENT => self.receive(Side::Client)?,
                _ => self.receive(Side::Host)?,
            }
        }
        self.flush(news);
        Ok(())
    }

    fn flush(&mut self, news: &mut Vec<News>) {
        let now = self.now();
        while let Some((time, at)) = self.timers.first().copied().filter(|(time, _)| *time <= now) {
            self.timers.remove(&(time, at));
            if let Some(conn) = self.at(at) {
                conn.timer = None;
            }
            self.wait(at);
        }
        self.end_closed(now);
        for at in std::mem::take(&mut self.waiting) {
            self.poll(at, now, news);
        }
    }

    fn patience(&self) -> Duration {
        if !self.waiting.is_empty() {
            return Duration::ZERO;
        }
        let timers = self.timers.first().map(|(time, _)| *time);
        let closing = self.closing.first().map(|(time, _)| *time);
        let now = self.now();
        let first = [timers, closing, self.tend_at].into_iter().flatten().min();
        first.map_or(Duration::from_secs(3600), |time| {
            // A microsecond of the clock may be under way.
            Duration::from(if time > now { time - now } else { smoltcp::time::Duration::ZERO })
        })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn ends(&self, id: ConnId) -> Option<(SocketAddr, SocketAddr)> {
        let conn = self.conns.get(id.index())?.as_ref()?;
        (conn.generation == id.generation).then_some((conn.name.1, conn.name.2))
    }

    fn connect(&mut self, client: ConnId) -> io::Result<ConnId> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let conn = self.conn(client).ok_or_else(gone)?;
        let ((_, from, to), link) = (conn.name, conn.leg.link.turned());
        let name = (Side::Host, from, to);
        if let Some(old) = self.names.get(&name).copied() {
            // Of a connection that this client had from the same port; its time is not over.
            self.remove(old);
        }
        let full = || io::Error::from(io::ErrorKind::QuotaExceeded);
        let buffer = self.buffer().ok_or_else(full)?;
        let (now, seed, mut lost) = (self.now(), self.seed(&name), 0);
        let device = self.wires.device(Side::Host);
        let way = Way { device, frame: &mut self.made, lost: &mut lost };
        let leg = Leg::connect((from, to), link, buffer, seed, now, way);
        let leg = leg.ok_or_else(gone)?;
        let generation = self.generation;
        let at = self.add(leg, name, buffer, true).ok_or_else(full)?;
        self.wait(at);
        Ok(ConnId { at, generation })
    }

    fn is_readable(&mut self, id: ConnId) -> bool {
        self.conn(id).is_some_and(|conn| conn.leg.is_readable())
    }

    fn read(&mut self, id: ConnId, buf: &mut [u8]) -> Read {
        let Some(conn) = self.conn(id) else { return Read::Reset };
        let read = conn.leg.read(buf);
        if let Read::Bytes(_) = read {
            // The window may be wider now.
            self.wait(id.at);
        }
        read
    }

    fn write(&mut self, id: ConnId, pieces: &[IoSlice<'_>]) -> Wrote {
        let Some(conn) = self.conn(id) else { return Wrote::Reset };
        let mut taken = 0;
        for piece in pieces {
            match conn.leg.write(piece) {
                Wrote::Bytes(n) => {
                    taken += n;
                    if n < piece.len() {
                        break;
                    }
                }
                other if taken == 0 => return other,
                _ => break,
            }
        }
        self.wait(id.at);
        Wrote::Bytes(taken)
    }

    fn shutdown(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.leg.shutdown();
            self.wait(id.at);
        }
    }

    fn close(&mut self, id: ConnId, reset: bool) {
        let end = self.now() + CLOSING.into();
        let Some(conn) = self.conn(id).filter(|conn| !conn.closed) else { return };
        conn.closed = true;
        conn.place = None;
        if reset {
            conn.leg.abort();
        } else {
            conn.leg.shutdown();
            conn.closing = Some(end);
            self.closing.insert((end, id.at));
        }
        self.wait(id.at);
    }
}
