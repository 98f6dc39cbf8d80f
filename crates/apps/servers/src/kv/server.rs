//! The host side's server: commands of RESP2, run against the store, as a
//! [`Service`].

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_base::Errno;
use outboard_pageserver::tcp::sockets::{Address, ConnId, Listener};
use outboard_pageserver::tcp::worker::Limits;

use super::app::REFUSAL;
use super::commands::{self, Answers, Cold, Command, Info, SLICE, SoFar, Then};
use super::log::Found;
use super::record::Record;
use super::store::{Event, Reader, Store, StoreError, StoreSetup, Work, read_cold};
use crate::connections::{Conn, Conns, Crowd, Ended, Service, Serving, Stop, run_alone};
use crate::device::Device;
use crate::resp::{self, Parsed, Parser};

/// Bytes of one command.
const INPUT_MAX: usize = 16 << 20;
/// From one tick of the store to the next.
const TICK: Duration = Duration::from_secs(1);
const UNREADABLE: &str = "ERR the value cannot be read; see the server's log";

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its store.
    pub store: StoreSetup,
    /// What it says of itself: `plain` or `offload`.
    pub form: &'static str,
    /// And of its port, if clients do not connect to it but to the DPU side.
    pub port: Option<u16>,
    /// What clients may take of it.
    pub limits: Limits,
}

/// What is kept for a connection: how far its command came, and how far it was done.
#[derive(Default)]
struct State {
    parser: Parser,
    so_far: SoFar,
    /// Records that are being read for it, and why one could not be.
    reading: usize,
    failed: Option<&'static str>,
}

type Client = Conn<State>;

/// Where a command's answer goes: the connection, and the reads it has to wait for.
struct To<'a> {
    conn: &'a mut Client,
    begin: &'a mut Vec<Work>,
}

impl Answers for To<'_> {
    fn out(&mut self) -> &mut Vec<u8> {
        self.conn.answers.tail()
    }

    fn so_far(&mut self) -> &mut SoFar {
        &mut self.conn.state.so_far
    }

    fn has_room(&self) -> bool {
        self.conn.has_room()
    }

    fn wait_for<D: Device>(&mut self, reader: Reader<D>, key: &[u8], address: u64) {
        let (conn, token) = (self.conn.id(), self.conn.answers.wait());
        let key = key.to_vec();
        self.begin.push(Box::pin(async move {
            Event::Read { conn, token, record: read_cold(reader, address, key).await }
        }));
    }
}

/// The server.
pub struct KvServer<D: Device>(Serving<Kv<D>, D>);

impl<D: Device> KvServer<D> {
    /// Opens the store; who connected to `listener` meanwhile is served then.
    pub fn open(
        setup: &Setup,
        listener: Listener,
        device: D,
        stop: Arc<Stop>,
    ) -> io::Result<KvServer<D>> {
        let device = Rc::new(device);
        let store = run_alone(&*device, Store::open(Rc::clone(&device), &setup.store))?;
        let port = match listener.address() {
            Address::Tcp(address) => address.port(),
            Address::Unix(_) => setup.port.unwrap_or(0),
        };
        let info = Info { port, form: setup.form, ..Info::default() };
        let (started, ticked) = (Instant::now(), Instant::now());
        let kv = Kv { store, info, started, ticked };
        Ok(KvServer(Serving::new(kv, device, listener, stop, setup.limits)?))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.0.address()
    }

    /// Serves until told to stop.
    pub fn run(&mut self) -> io::Result<Ended> {
        self.0.run()
    }
}

/// The service.
struct Kv<D: Device> {
    store: Store<D>,
    info: Info,
    started: Instant,
    ticked: Instant,
}

/// Why a server whose store says this ends.
fn ended(error: StoreError) -> Ended {
    match error {
        StoreError::Journal => Ended::JournalFailed,
        StoreError::Full | StoreError::Table => Ended::DeviceLost,
    }
}

impl<D: Device> Service for Kv<D> {
    type Event = Event;
    type State = State;
    const INPUT_MAX: usize = INPUT_MAX;
    const REFUSAL: &'static [u8] = REFUSAL;

    fn requests(&mut self, conn: &mut Client, crowd: &Crowd, begin: &mut Vec<Work>) {
        self.info.crowd = *crowd;
        let mut slice = SLICE;
        while conn.has_room() && conn.may_have_request() && !self.store.is_choked() {
            // What it has come to is looked at once: see what a parser keeps.
            let mut parser = std::mem::take(&mut conn.state.parser);
            let parsed = parser.parse(conn.input());
            let then = match parsed {
                Parsed::Command(len) => self.command(conn, len, parser.args(), begin),
                Parsed::More(needs) => {
                    conn.need(needs);
                    if needs > INPUT_MAX {
                        refuse(conn, "Protocol error: too big mbulk count string");
                    }
                    Goes::Stays
                }
                Parsed::Invalid(text) => {
                    refuse(conn, text);
                    Goes::Stays
                }
            };
            slice = slice.saturating_sub(1);
            if then == Goes::On {
                parser.reset();
            }
            conn.state.parser = parser;
            conn.yields = then == Goes::Later || slice == 0;
            if conn.yields {
                return;
            }
        }
    }

    fn answer_max(&self) -> usize {
        self.store.log.longest()
    }

    fn held(state: &State) -> usize {
        state.parser.held()
    }

    fn too_slow(conn: &mut Client) {
        conn.state = State::default();
        let text = "ERR the memory of clients is full, and this one is too slow; closed";
        resp::put_error(conn.answers.tail(), text);
    }

    fn on(
        &mut self,
        event: Event,
        conns: &mut Conns<State>,
        begin: &mut Vec<Work>,
    ) -> Result<(), Ended> {
        match event {
            Event::Read { conn: id, token, record } => {
                if let Some(conn) = conns.get(id) {
                    conn.answers.fill(token, answer_of(&record));
                    conns.wake(id);
                }
            }
            Event::Brought { conn, cold, record } => self.brought(conns, conn, &cold, &record),
            event => {
                let choked = self.store.is_choked();
                let confirmed = matches!(event, Event::Retired(..));
                self.store.on(event, begin).map_err(ended)?;
                if confirmed || choked {
                    // Any of them may wait for it.
                    conns.wake_all();
                }
            }
        }
        Ok(())
    }

    fn end_round(&mut self, _: &mut Conns<State>, begin: &mut Vec<Work>) -> Result<(), Ended> {
        if self.ticked.elapsed() >= TICK {
            self.ticked = Instant::now();
            self.store.tick(begin).map_err(ended)?;
        }
        self.store.end_round(begin).map_err(ended)
    }

    fn go_on(&mut self, _: &mut Conns<State>, begin: &mut Vec<Work>) -> Result<(), Ended> {
        self.store.end_round(begin).map_err(ended)
    }

    fn is_open(&self, gate: u64) -> bool {
        self.store.is_open(gate)
    }

    fn takes_requests(&self) -> bool {
        !self.store.is_choked()
    }

    fn has_stopped(&mut self, _: &mut Vec<Work>) -> bool {
        true
    }
}

/// What becomes of a connection's next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goes {
    /// It is over, and the next can be taken.
    On,
    /// It has not come whole, or waits.
    Stays,
    /// It goes on after others.
    Later,
}

impl<D: Device> Kv<D> {
    /// Runs the command of the first `len` bytes, or goes on with it.
    fn command(
        &mut self,
        conn: &mut Client,
        len: usize,
        args: &[Range<usize>],
        begin: &mut Vec<Work>,
    ) -> Goes {
        if args.is_empty() {
            self.info.commands += 1;
            conn.take(len);
            return Goes::On;
        }
        if args.len() > SLICE && !std::mem::replace(&mut conn.state.so_far.has_begun, true) {
            return Goes::Later;
        }
        let (lent, mark) = (conn.lend(), conn.answers.mark());
        let bytes = lent.bytes();
        if args.first().is_some_and(|name| is_info(bytes.get(name.clone()))) {
            self.info.uptime = self.started.elapsed().as_secs();
        }
        let mut to = To { conn, begin };
        let then = commands::run(&mut self.store, Command { bytes, args }, &mut to, &self.info);
        conn.give_back(lent);
        match then {
            Then::Next | Then::Yield => {}
            // Nobody's commands go on before.
            Then::Wait => return Goes::Stays,
            Then::Close => conn.closing = true,
            Then::Bring(cold) => {
                conn.paused = true;
                conn.state.reading = cold.len();
                for cold in cold {
                    let (reader, conn) = (self.store.reader(), conn.id());
                    begin.push(Box::pin(async move {
                        let record = read_cold(reader, cold.address, cold.key.clone()).await;
                        Event::Brought { conn, cold, record }
                    }));
                }
                return Goes::Stays;
            }
        }
        let gate = self.store.gate();
        if !self.store.is_open(gate) {
            conn.answers.hold(mark, gate);
        }
        if then == Then::Yield {
            return Goes::Later;
        }
        self.info.commands += 1;
        conn.take(len);
        Goes::On
    }

    /// A command's record was read: into the tail with it, or its length noted; and the command
    /// again when all were that it waits for.
    fn brought(
        &mut self,
        conns: &mut Conns<State>,
        id: ConnId,
        cold: &Cold,
        record: &Result<Option<Vec<u8>>, Errno>,
    ) {
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
        if let Some(conn) = conns.get(id) {
            let state = &mut conn.state;
            state.reading = state.reading.saturating_sub(1);
            if let Some(looked) = looked {
                state.so_far.looked.insert((key.clone(), cold.address), looked);
            }
            state.failed = state.failed.or_else(|| brought.err());
            if state.reading > 0 {
                return;
            }
            conn.paused = false;
            if let Some(text) = conn.state.failed {
                let mut state = std::mem::take(&mut conn.state);
                if let Parsed::Command(len) = state.parser.parse(conn.input()) {
                    conn.take(len);
                }
                resp::put_error(conn.answers.tail(), text);
            }
            conns.wake(id);
        }
    }

    /// Whether the record of `key` is still where it was read.
    fn is_still(&self, key: &[u8], address: u64) -> bool {
        matches!(self.store.log.find(key), Found::Cold(now) if now == address)
    }
}

fn is_info(name: Option<&[u8]>) -> bool {
    name.is_some_and(|name| name.eq_ignore_ascii_case(b"info"))
}

fn refuse(conn: &mut Client, text: &str) {
    resp::put_error(conn.answers.tail(), &format!("ERR {text}"));
    conn.closing = true;
}

/// The answer to who waited for a record of the file.
fn answer_of(record: &Result<Option<Vec<u8>>, Errno>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match record.as_ref().map(|bytes| bytes.as_deref().map(Record::parse)) {
        Ok(Some(Some(record))) => bytes.extend_from_slice(record.bulk()),
        Ok(None) => resp::put_nil(&mut bytes),
        _ => resp::put_error(&mut bytes, UNREADABLE),
    }
    bytes
}
