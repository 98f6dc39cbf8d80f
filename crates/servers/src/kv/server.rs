//! The host side's server: one thread, its connections and its store.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use outboard_drivers::dds::tcp::sockets::{
    Address, ConnId, Listener, PIECES, Read, Ready, Sockets, Wrote,
};
use outboard_drivers::executor::{Executor, Started};
use outboard_drivers::link::Bell;

use super::commands::{self, Answers, Cold, Command, Info, SoFar, Then};
use super::record::Record;
use super::store::{Event, Reader, Store, StoreError, StoreSetup, Work, read_cold};
use crate::device::Device;
use crate::resp::{self, Parsed};

/// Bytes of one read from a connection.
const CHUNK: usize = 64 << 10;
/// Bytes of one command.
const INPUT_MAX: usize = 16 << 20;
/// Bytes of answers that wait for a client; beyond, its commands wait.
const OUT_MAX: usize = 1 << 20;
/// Answers of one client that wait for the file.
const WAITING_MAX: usize = 256;
/// Reads and writes of the file under way.
const WORK_MAX: usize = 4096;
/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// From one tick of the store to the next.
const TICK: Duration = Duration::from_secs(1);
/// Longest sleep before there is a server.
const NAP: Duration = Duration::from_millis(10);

/// Told to end from outside.
#[derive(Debug)]
pub struct Stop {
    flag: AtomicBool,
    bell: Bell,
}

impl Stop {
    /// Nobody was told yet.
    pub fn new() -> io::Result<Arc<Stop>> {
        Ok(Arc::new(Stop { flag: AtomicBool::new(false), bell: Bell::new()? }))
    }

    /// Ends the server.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Release);
        self.bell.ring();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Rung when it is told.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }
}

/// Why a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Told,
    /// The other side of its device is gone, or does not confirm: it must be opened again.
    DeviceLost,
    /// Its journal cannot be written: there is no space, or no disk.
    JournalFailed,
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where it listens.
    pub listen: Address,
    /// Its store.
    pub store: StoreSetup,
    /// What it says of itself: `plain` or `offload`.
    pub form: &'static str,
    /// And of its port, if clients do not connect to it but to the DPU side.
    pub port: Option<u16>,
}

enum Chunk {
    Bytes(Vec<u8>),
    Waiting(u64),
}

struct Conn {
    id: ConnId,
    input: Vec<u8>,
    start: usize,
    /// No command before there are so many bytes.
    needs: usize,
    out: VecDeque<Chunk>,
    out_len: usize,
    /// Bytes of the first chunk that were sent.
    sent: usize,
    waiting: usize,
    next_token: u64,
    /// What its answers must wait for.
    gate: u64,
    /// Waits for a record that its command needs.
    bringing: bool,
    so_far: SoFar,
    ended: bool,
    closing: bool,
    queued: bool,
}

impl Conn {
    fn new(id: ConnId) -> Conn {
        Conn {
            id,
            input: Vec::new(),
            start: 0,
            needs: 0,
            out: VecDeque::new(),
            out_len: 0,
            sent: 0,
            waiting: 0,
            next_token: 0,
            gate: 0,
            bringing: false,
            so_far: SoFar::default(),
            ended: false,
            closing: false,
            queued: false,
        }
    }

    fn input(&self) -> &[u8] {
        self.input.get(self.start..).unwrap_or_default()
    }

    fn take(&mut self, n: usize) {
        self.start += n;
        if self.start >= self.input.len() {
            self.input.clear();
            self.start = 0;
        }
    }

    fn has_room(&self) -> bool {
        !self.bringing && !self.closing && self.out_len < OUT_MAX && self.waiting < WAITING_MAX
    }

    /// The end of what is known.
    fn tail(&mut self) -> &mut Vec<u8> {
        if !matches!(self.out.back(), Some(Chunk::Bytes(_))) {
            self.out.push_back(Chunk::Bytes(Vec::new()));
        }
        match self.out.back_mut() {
            Some(Chunk::Bytes(bytes)) => bytes,
            // Just made sure of.
            _ => &mut self.input,
        }
    }
}

/// Where a command's answer goes: the connection, and the reads it has to wait for.
struct To<'a> {
    conn: &'a mut Conn,
    begin: &'a mut Vec<Work>,
}

impl Answers for To<'_> {
    fn out(&mut self) -> &mut Vec<u8> {
        self.conn.tail()
    }

    fn so_far(&mut self) -> &mut SoFar {
        &mut self.conn.so_far
    }

    fn wait_for<D: Device>(&mut self, reader: Reader<D>, key: &[u8], address: u64) {
        let (conn, token) = (self.conn.id, self.conn.next_token);
        self.conn.next_token += 1;
        self.conn.waiting += 1;
        self.conn.out.push_back(Chunk::Waiting(token));
        let key = key.to_vec();
        self.begin.push(Box::pin(async move {
            Event::Read { conn, token, record: read_cold(reader, address, key).await }
        }));
    }
}

/// The server.
pub struct KvServer<D: Device> {
    device: Rc<D>,
    store: Store<D>,
    sockets: Sockets,
    listener: Listener,
    stop: Arc<Stop>,
    executor: Executor<Work>,
    wake: Rc<RefCell<Vec<Work>>>,
    conns: Vec<Option<Conn>>,
    queue: VecDeque<ConnId>,
    begin: Vec<Work>,
    args: Vec<Range<usize>>,
    chunk: Vec<u8>,
    info: Info,
    started: Instant,
    ticked: Instant,
    /// Connections whose answers are held back.
    held: Vec<ConnId>,
}

impl<D: Device> KvServer<D> {
    /// Opens the store and listens.
    pub fn open(setup: &Setup, device: D, stop: Arc<Stop>) -> io::Result<KvServer<D>> {
        let device = Rc::new(device);
        let store = {
            let opening = Store::open(Rc::clone(&device), &setup.store);
            run_alone(&*device, opening)?
        };
        let listener = Listener::bind(&setup.listen)?;
        let sockets = Sockets::new()?;
        sockets.watch_listener(&listener)?;
        sockets.watch_bell(&stop.bell)?;
        let ringer = stop.bell.ringer()?;
        let port = match listener.address() {
            Address::Tcp(address) => address.port(),
            Address::Unix(_) => setup.port.unwrap_or(0),
        };
        Ok(KvServer {
            device,
            store,
            sockets,
            listener,
            stop,
            executor: Executor::new(WORK_MAX, move || ringer.ring()),
            wake: Rc::default(),
            conns: Vec::new(),
            queue: VecDeque::new(),
            begin: Vec::new(),
            args: Vec::new(),
            chunk: vec![0; CHUNK],
            info: Info { port, form: setup.form, ..Info::default() },
            started: Instant::now(),
            ticked: Instant::now(),
            held: Vec::new(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Serves until told to stop.
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
                        self.stop.bell.drain()?;
                    }
                }
            }
            let round: Vec<ConnId> = self.queue.drain(..).collect();
            round.iter().for_each(|id| self.serve(*id));
            match self.end_round() {
                Err(StoreError::Journal) => return Ok(Ended::JournalFailed),
                Err(_) => return Ok(Ended::DeviceLost),
                Ok(()) if self.device.is_lost() => return Ok(Ended::DeviceLost),
                Ok(()) => {}
            }
            round.iter().for_each(|id| self.send(*id));
        }
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
                    if let Some(place) = self.conns.get_mut(id.index()) {
                        *place = Some(Conn::new(id));
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

    fn lift(&mut self, id: ConnId) -> Option<Conn> {
        self.conns.get_mut(id.index())?.take_if(|conn| conn.id == id)
    }

    fn lower(&mut self, conn: Conn) {
        if let Some(place) = self.conns.get_mut(conn.id.index()) {
            *place = Some(conn);
        }
    }

    fn enqueue(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id)
            && !std::mem::replace(&mut conn.queued, true)
        {
            self.queue.push_back(id);
        }
    }

    /// Reads once from a connection and runs the commands that are there.
    fn serve(&mut self, id: ConnId) {
        let Some(mut conn) = self.lift(id) else { return };
        conn.queued = false;
        if conn.has_room() && conn.input().len() < INPUT_MAX {
            match self.sockets.read(id, &mut self.chunk) {
                Read::Bytes(n) => {
                    if conn.start > 0 {
                        conn.input.drain(..conn.start);
                        conn.start = 0;
                    }
                    conn.input.extend_from_slice(self.chunk.get(..n).unwrap_or_default());
                }
                Read::Ended => conn.ended = true,
                Read::Reset => return self.close(id),
                Read::Blocked => {}
            }
        }
        self.commands(&mut conn);
        let again = conn.has_room() && self.store.is_open(conn.gate);
        self.lower(conn);
        if again && self.sockets.is_readable(id) {
            self.enqueue(id);
        }
    }

    fn commands(&mut self, conn: &mut Conn) {
        // Who waits for the table's word goes on after it: nobody is held for ever by newer rounds.
        while conn.has_room()
            && conn.input().len() >= conn.needs.max(1)
            && (self.store.is_open(conn.gate) || conn.gate == self.store.gate())
            && !self.store.is_choked()
        {
            let mut args = std::mem::take(&mut self.args);
            let parsed = resp::parse(conn.input(), &mut args);
            match parsed {
                Parsed::Command(len) => {
                    conn.needs = 0;
                    self.command(conn, len, &args);
                }
                Parsed::More(needs) => {
                    conn.needs = needs;
                    if needs > INPUT_MAX {
                        refuse(conn, "Protocol error: too big mbulk count string");
                    }
                }
                Parsed::Invalid(text) => refuse(conn, text),
            }
            self.args = args;
        }
    }

    fn command(&mut self, conn: &mut Conn, len: usize, args: &[Range<usize>]) {
        self.info.commands += 1;
        if !args.is_empty() {
            let input = std::mem::take(&mut conn.input);
            let bytes = input.get(conn.start..).unwrap_or_default();
            let before = conn.out_len_now();
            if args.first().is_some_and(|name| is_info(bytes.get(name.clone()))) {
                self.info.uptime = self.started.elapsed().as_secs();
                self.info.clients = self.sockets.len();
            }
            let mut to = To { conn, begin: &mut self.begin };
            let then = commands::run(&mut self.store, Command { bytes, args }, &mut to, &self.info);
            conn.input = input;
            match then {
                Then::Next => {}
                // Nobody's commands go on before.
                Then::Wait => return,
                Then::Close => conn.closing = true,
                Then::Bring(cold) => {
                    conn.bringing = true;
                    let (reader, conn) = (self.store.reader(), conn.id);
                    self.begin.push(Box::pin(async move {
                        let record = read_cold(reader, cold.address, cold.key.clone()).await;
                        Event::Brought { conn, cold, record }
                    }));
                    return;
                }
            }
            conn.out_len += conn.out_len_now().saturating_sub(before);
            conn.gate = self.store.gate();
        }
        conn.take(len);
    }

    /// Hands over what was done, and takes in what ended.
    fn end_round(&mut self) -> Result<(), StoreError> {
        if self.ticked.elapsed() >= TICK {
            self.ticked = Instant::now();
            self.store.tick(&mut self.begin)?;
        }
        self.store.end_round(&mut self.begin)?;
        let mut ended = Vec::new();
        loop {
            for work in std::mem::take(&mut self.begin) {
                match self.executor.start(work) {
                    Ok(Started::Done(event)) => ended.push(event),
                    Ok(Started::Running(_)) => {}
                    Err(work) => self.wake.borrow_mut().push(work),
                }
            }
            if self.executor.running() > 0 {
                self.device.progress();
                self.executor.poll(|_, event| ended.push(event));
            }
            if self.executor.has_room() {
                self.begin.append(&mut self.wake.borrow_mut());
            }
            if ended.is_empty() {
                break;
            }
            for event in std::mem::take(&mut ended) {
                self.on(event)?;
            }
            self.store.end_round(&mut self.begin)?;
        }
        for id in std::mem::take(&mut self.held) {
            self.send(id);
        }
        Ok(())
    }

    fn on(&mut self, event: Event) -> Result<(), StoreError> {
        match event {
            Event::Read { conn, token, record } => {
                if let Some(conn) = self.conn(conn) {
                    conn.fill(token, record.as_ref().map(Option::as_deref));
                    let id = conn.id;
                    self.held.push(id);
                    self.enqueue(id);
                }
                Ok(())
            }
            Event::Brought { conn, cold, record } => {
                self.brought(conn, &cold, record);
                Ok(())
            }
            event => {
                let choked = self.store.is_choked();
                let confirmed = matches!(event, Event::Retired(..));
                self.store.on(event, &mut self.begin)?;
                if confirmed || choked {
                    // Any of them may wait for it.
                    let all: Vec<ConnId> = self.conns.iter().flatten().map(|c| c.id).collect();
                    all.iter().for_each(|id| self.enqueue(*id));
                    self.held.extend(all);
                }
                Ok(())
            }
        }
    }

    /// A command's record was read: into the tail with it, or its length noted, and the command
    /// again.
    fn brought(
        &mut self,
        id: ConnId,
        cold: &Cold,
        record: Result<Option<Vec<u8>>, outboard_base::Errno>,
    ) {
        const UNREADABLE: &str = "ERR the value cannot be read; see the server's log";
        let stored = |done: Result<(), StoreError>| done.map_err(StoreError::text);
        let key = &cold.key;
        let mut looked = None;
        let brought = match record.as_ref().map(|bytes| bytes.as_deref().map(Record::parse)) {
            // Somebody else wrote it meanwhile.
            _ if !self.is_still(key, cold.address) => Ok(()),
            Err(_) | Ok(Some(None)) => Err(UNREADABLE),
            Ok(record) if cold.only_looked_at => {
                looked = Some(record.flatten().map(|record| record.value().len()));
                Ok(())
            }
            // It is asked for again when there is room.
            _ if self.store.is_choked() => Ok(()),
            Ok(Some(Some(record))) => stored(self.store.put_bulk(key, record.bulk())),
            Ok(None) => stored(self.store.delete(key)),
        };
        if let Some(conn) = self.conn(id) {
            conn.bringing = false;
            conn.so_far.looked = looked;
            if let Err(text) = brought {
                let mut args = Vec::new();
                if let Parsed::Command(len) = resp::parse(conn.input(), &mut args) {
                    conn.take(len);
                }
                conn.so_far = SoFar::default();
                resp::put_error(conn.tail(), text);
                self.held.push(id);
            }
            self.enqueue(id);
        }
    }

    /// Whether the record of `key` is still where it was read.
    fn is_still(&self, key: &[u8], address: u64) -> bool {
        matches!(self.store.log.find(key), super::log::Found::Cold(now) if now == address)
    }

    /// Sends what may leave.
    fn send(&mut self, id: ConnId) {
        let Some(mut conn) = self.lift(id) else { return };
        let open = self.store.is_open(conn.gate);
        while open && conn.out_len_now() > 0 {
            let pieces: Vec<IoSlice<'_>> = conn.pieces().take(PIECES).map(IoSlice::new).collect();
            if pieces.is_empty() {
                break;
            }
            match self.sockets.write(id, &pieces) {
                Wrote::Bytes(n) => conn.took(n),
                Wrote::Blocked => break,
                Wrote::Reset => {
                    self.lower(conn);
                    return self.close(id);
                }
            }
        }
        let empty = conn.out.is_empty();
        let over = empty && !conn.bringing && (conn.closing || (conn.ended && !conn.can_go_on()));
        let again = conn.has_room() && conn.can_go_on() && open;
        self.lower(conn);
        if over {
            self.close(id);
        } else if again && !self.store.is_choked() {
            self.enqueue(id);
        }
    }

    fn close(&mut self, id: ConnId) {
        if let Some(place) = self.conns.get_mut(id.index()) {
            *place = None;
        }
        self.sockets.close(id, false);
    }
}

fn is_info(name: Option<&[u8]>) -> bool {
    name.is_some_and(|name| name.eq_ignore_ascii_case(b"info"))
}

fn refuse(conn: &mut Conn, text: &str) {
    resp::put_error(conn.tail(), &format!("ERR {text}"));
    conn.closing = true;
}

impl Conn {
    /// Whether there may be a command in the input.
    fn can_go_on(&self) -> bool {
        !self.input().is_empty() && self.input().len() >= self.needs
    }

    /// Bytes and answers that wait to be sent.
    fn out_len_now(&self) -> usize {
        let len = |chunk: &Chunk| match chunk {
            Chunk::Bytes(bytes) => bytes.len(),
            Chunk::Waiting(_) => 1,
        };
        self.out.iter().map(len).sum::<usize>().saturating_sub(self.sent)
    }

    /// What can be sent: up to the first answer that waits.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.sent;
        self.out.iter().map_while(move |chunk| match chunk {
            Chunk::Bytes(bytes) => {
                let from = std::mem::take(&mut skip);
                Some(bytes.get(from..).unwrap_or_default())
            }
            Chunk::Waiting(_) => None,
        })
    }

    fn took(&mut self, n: usize) {
        self.sent += n;
        self.out_len = self.out_len.saturating_sub(n);
        while let Some(Chunk::Bytes(bytes)) = self.out.front() {
            if self.sent < bytes.len() {
                return;
            }
            self.sent -= bytes.len();
            self.out.pop_front();
        }
    }

    /// The answer that waited for the file.
    fn fill(&mut self, token: u64, record: Result<Option<&[u8]>, &outboard_base::Errno>) {
        let place =
            self.out.iter_mut().find(|chunk| matches!(chunk, Chunk::Waiting(t) if *t == token));
        let Some(place) = place else { return };
        self.waiting = self.waiting.saturating_sub(1);
        let mut bytes = Vec::new();
        match record.map(|bytes| bytes.map(Record::parse)) {
            Ok(Some(Some(record))) => bytes.extend_from_slice(record.bulk()),
            Ok(None) => resp::put_nil(&mut bytes),
            _ => resp::put_error(&mut bytes, "ERR the value cannot be read; see the server's log"),
        }
        // It was counted as one byte while it waited.
        self.out_len = (self.out_len + bytes.len()).saturating_sub(1);
        *place = Chunk::Bytes(bytes);
    }
}

/// Runs a future of this device to its end, before there is a server.
fn run_alone<D: Device, T>(
    device: &D,
    future: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let bell = Bell::new()?;
    let mut future = std::pin::pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut cx) {
            return done;
        }
        if device.progress() == 0 {
            device.sleep(bell.fd(), NAP)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// An answer that waited for the file was counted as one byte, and as all of its bytes when it
    /// came; the first was never taken back. After a million of them a connection seemed to have
    /// an answer of a million bytes to send, and was not served any more.
    #[test]
    fn what_was_sent_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = Listener::bind(&Address::Unix(path.clone())).unwrap();
        let _other = UnixStream::connect(path).unwrap();
        let mut sockets = Sockets::new().unwrap();
        let id = sockets.add(listener.accept().unwrap().unwrap()).unwrap();
        let mut conn = Conn::new(id);
        for token in 0..3 {
            let before = conn.out_len_now();
            conn.out.push_back(Chunk::Waiting(token));
            conn.waiting += 1;
            conn.out_len += conn.out_len_now() - before;
        }
        for token in [1, 0, 2] {
            conn.fill(token, Ok(None));
        }
        assert_eq!(conn.out_len, conn.out_len_now());
        conn.took(conn.out_len_now());
        assert_eq!((conn.out_len, conn.waiting, conn.out.len()), (0, 0, 0));
    }
}
