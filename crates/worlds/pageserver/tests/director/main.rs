//! The traffic director between clients and a host that are the kernel's own TCP, over both ports:
//! kernel sockets, and the user-space stack between network namespaces, on good days and on bad.
//!
//! Goal: what a client gets, and how its connection ends, is what the host alone would have given
//! it; what is not the application's passes untouched. Method: a protocol of lines whose answers
//! say what they must be, a host that answers some of them and misbehaves when asked to, a device
//! that loses, doubles, swaps and damages frames by a seed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may panic")]

mod limits;
mod lost;
#[path = "../networks/mod.rs"]
mod networks;
#[path = "../../../os/tests/skips/mod.rs"]
mod skips;
mod untouched;
mod whose;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use networks::{CLIENT, HOST, Networks};
use outboard_base::Rng;
use outboard_dds::dpu::director::Signature;
use outboard_dds::dpu::offload::engine::Filled;
use outboard_dds::dpu::offload::health::Health;
use outboard_dds::dpu::offload::{
    Answer, Application, Cursor, Division, Framing, Head, Item, Key, Lookup, ReadOp, Span, Touches,
    WriteOp,
};
use outboard_medium::Buf;
use outboard_pageserver::tcp::front::Front;
use outboard_pageserver::tcp::sockets::{Address, Listener};
use outboard_pageserver::tcp::stack::Frames;
use outboard_pageserver::tcp::stack::device::Device;
use outboard_pageserver::tcp::stack::faults::{Faulty, Rates};
use outboard_pageserver::tcp::stack::network::{Ends, Network};
use outboard_pageserver::tcp::worker::{Files, Limits, Setup};

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 7000;

/// `G offset bytes`: of the file; `H text`: of the host; `B bytes`: many bytes of the host;
/// `C`: the host closes, `R`: it resets. Answers are lines; that of G says how many bytes follow.
struct Lines;

fn line(stream: &[u8]) -> Framing {
    match stream.iter().position(|byte| *byte == b'\n') {
        Some(at) => Framing::Whole(at + 1),
        None => Framing::More(stream.len() + 1),
    }
}

fn numbers(message: &[u8]) -> Vec<u32> {
    let text = String::from_utf8_lossy(message);
    text.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect()
}

impl Application for Lines {
    fn frame(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        line(stream)
    }

    fn frame_answer(&self, stream: &[u8], _: &mut Cursor) -> Framing {
        match line(stream) {
            Framing::Whole(len) if stream[0].is_ascii_digit() => {
                let bytes: usize = String::from_utf8_lossy(&stream[..len - 1]).parse().unwrap();
                let all = len + bytes;
                if stream.len() < all { Framing::More(all) } else { Framing::Whole(all) }
            }
            other => other,
        }
    }

    fn off_pred(&self, message: &[u8], _: &dyn Lookup, division: &mut Division) {
        let all = Span::Message(0..message.len());
        match message.first() {
            Some(b'G') => division.dpu(all, 1),
            _ => division.host(all, Touches::Nothing),
        }
    }

    fn off_func(&self, request: &[u8], _: &dyn Lookup) -> Option<ReadOp> {
        let [offset, bytes] = numbers(request)[..] else { return None };
        Some(ReadOp { file: 1, offset: offset.into(), bytes })
    }

    fn answer(&self, _: &[u8], _: ReadOp, bytes: &[u8]) -> Option<Answer> {
        let head = Head::new(format!("{}\n", bytes.len()).as_bytes())?;
        Some(Answer { head, payload: 0..bytes.len() })
    }

    fn cache(&self, _: WriteOp<'_>, _: &mut Vec<(Key, Item)>) {}

    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}

    fn refusal(&self) -> &'static [u8] {
        b"full\n"
    }
}

struct Nothing;

impl Lookup for Nothing {
    fn get(&self, _: Key) -> Option<Item> {
        None
    }
}

/// A file of which every byte is known.
struct Pattern;

fn pattern(at: u64) -> u8 {
    u8::try_from(at * 31 % 251).unwrap()
}

/// What `G offset bytes` is answered with.
fn piece(offset: u32, bytes: u32) -> Vec<u8> {
    let range = u64::from(offset)..u64::from(offset) + u64::from(bytes);
    format!("{bytes}\n").into_bytes().into_iter().chain(range.map(pattern)).collect()
}

impl Files for Pattern {
    async fn read(&self, _: u32, read: ReadOp, mut buffer: Buf) -> Filled {
        let (from, start) = outboard_dds::dpu::director::ToRead::window(&read);
        buffer.iter_mut().zip(from..).for_each(|(byte, at)| *byte = pattern(at));
        let bytes: Range<usize> = start..start + usize::try_from(read.bytes).unwrap();
        Filled { buffer, bytes: Some(bytes) }
    }

    fn forsake(&self, _: u32) {}
}

/// The host: what it saw, and what it was told to do.
#[derive(Default)]
struct Host {
    clients: Mutex<Vec<SocketAddr>>,
    /// Bytes of B that were given to the kernel.
    sent: AtomicUsize,
    /// Bytes it read.
    read: AtomicUsize,
    /// Connections that ended in order, and that broke.
    ended: AtomicU64,
    broken: AtomicU64,
    /// While it holds this it reads nothing.
    lazy: Mutex<()>,
}

impl Host {
    fn lazy(&self) -> MutexGuard<'_, ()> {
        self.lazy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        let mut input = Vec::new();
        let mut chunk = vec![0; 1 << 16];
        loop {
            drop(self.lazy());
            match stream.read(&mut chunk) {
                Ok(0) => {
                    self.ended.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                Ok(n) => {
                    self.read.fetch_add(n, Ordering::SeqCst);
                    input.extend_from_slice(&chunk[..n]);
                }
                Err(_) => {
                    self.broken.fetch_add(1, Ordering::SeqCst);
                    return;
                }
            }
            while let Some(end) = input.iter().position(|byte| *byte == b'\n') {
                let message: Vec<u8> = input.drain(..=end).collect();
                if !self.answer(&mut stream, &message) {
                    return;
                }
            }
        }
    }

    fn answer(&self, stream: &mut TcpStream, message: &[u8]) -> bool {
        let sent = match message[0] {
            b'C' => return false,
            b'R' => {
                rustix::net::sockopt::set_socket_linger(&*stream, Some(Duration::ZERO)).unwrap();
                return false;
            }
            b'B' => {
                let mut left = usize::try_from(numbers(message)[0]).unwrap();
                let chunk = vec![b'b'; 1 << 16];
                while left > 1 {
                    let n = chunk.len().min(left - 1);
                    if stream.write_all(&chunk[..n]).is_err() {
                        return false;
                    }
                    self.sent.fetch_add(n, Ordering::SeqCst);
                    left -= n;
                }
                stream.write_all(b"\n")
            }
            // One that was refused on the DPU side.
            b'G' => stream.write_all(&piece(numbers(message)[0], numbers(message)[1])),
            _ => stream.write_all(&message.to_ascii_lowercase()),
        };
        sent.is_ok()
    }
}

/// What the director's connections are ended by.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Kernel,
    Stack,
    /// The stack, over devices with faults, by this seed.
    Faulty(u64),
}

struct World {
    /// Ends before the devices do.
    front: Front,
    frames: Option<Arc<Frames>>,
    host: Arc<Host>,
    networks: Option<Networks>,
    server: SocketAddr,
}

/// Listens as the host, for ever: the threads go with the process.
fn host(listener: TcpListener) -> Arc<Host> {
    let host = Arc::new(Host::default());
    let serving = Arc::clone(&host);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Of tests that use up all descriptors: there are some again in a moment.
            let Ok(stream) = stream else {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            let host = Arc::clone(&serving);
            host.clients.lock().unwrap().push(stream.peer_addr().unwrap());
            std::thread::spawn(move || host.serve(stream));
        }
    });
    host
}

fn setup(host: Address, app: Arc<dyn Application>, health: &Arc<Health>) -> Setup<Pattern> {
    Setup {
        app,
        health: Arc::clone(health),
        table: Arc::new(Nothing),
        files: Arc::new(Pattern),
        signature: None,
        host,
        contexts: 64,
        pool: 16 << 20,
        limits: Limits::default(),
    }
}

const RATES: Rates = Rates { lost: 20, doubled: 20, swapped: 20, damaged: 10 };

impl World {
    fn new(way: Way) -> Option<World> {
        World::of(way, Arc::new(Lines), &Arc::default())
    }

    fn of(way: Way, app: Arc<dyn Application>, health: &Arc<Health>) -> Option<World> {
        World::within(way, app, health, Limits::default())
    }

    fn within(
        way: Way,
        app: Arc<dyn Application>,
        health: &Arc<Health>,
        limits: Limits,
    ) -> Option<World> {
        if way == Way::Kernel {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let host_at = Address::Tcp(listener.local_addr().unwrap());
            let setup = Setup { limits, ..setup(host_at, app, health) };
            let clients = Listener::bind(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
            let front = Front::start(clients, 2, &setup).unwrap();
            let Address::Tcp(server) = *front.address() else { panic!("TCP") };
            let (frames, networks) = (None, None);
            return Some(World { front, frames, host: host(listener), networks, server });
        }
        let Some(networks) = Networks::new() else {
            skips::note_skip("director", "network namespaces take root");
            return None;
        };
        let server: SocketAddr = format!("{HOST}:{PORT}").parse().unwrap();
        let listener = networks.host.within(|| TcpListener::bind(("::", PORT)).unwrap());
        let network: Network = networks.veth().parse().unwrap();
        let mut ends = network.open().unwrap();
        if let Way::Faulty(seed) = way {
            println!("seed {seed}");
            ends = Ends::new(
                Arc::new(Faulty::new(ends.client, RATES, seed)),
                Arc::new(Faulty::new(ends.host, RATES, seed + 1)),
            );
        }
        let address = Address::Tcp(server);
        let signature: Signature = format!("[* : *, * : {PORT}, TCP]").parse().unwrap();
        let setup = Setup { limits, ..setup(address.clone(), app, health) };
        let (front, frames) = Front::between(ends, signature, address, 2, &setup).unwrap();
        let (host, frames) = (host(listener), Some(frames));
        Some(World { front, frames, host, networks: Some(networks), server })
    }

    fn connect(&self) -> TcpStream {
        let connect = || TcpStream::connect_timeout(&self.server, LIMIT).unwrap();
        let stream = match &self.networks {
            Some(networks) => networks.clients.within(connect),
            None => connect(),
        };
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}: it did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A script, and all that it is answered with.
fn script(rng: &mut Rng, messages: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut script, mut answers) = (Vec::new(), Vec::new());
    for n in 0..messages {
        match rng.below(10) {
            0..6 => {
                let offset = u32::try_from(rng.below(100_000)).unwrap();
                let bytes = u32::try_from(1 + rng.below(20_000)).unwrap();
                script.extend(format!("G {offset} {bytes}\n").bytes());
                answers.extend(piece(offset, bytes));
            }
            6..9 => {
                script.extend(format!("H {n}\n").bytes());
                answers.extend(format!("h {n}\n").bytes());
            }
            _ => {
                let bytes = usize::try_from(2 + rng.below(50_000)).unwrap();
                script.extend(format!("B {bytes}\n").bytes());
                answers.extend(vec![b'b'; bytes - 1]);
                answers.push(b'\n');
            }
        }
    }
    (script, answers)
}

/// Sends a script cut anyhow, half-closes, and reads to the end.
fn converse(stream: TcpStream, script: Vec<u8>, seed: u64) -> Vec<u8> {
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let (mut rng, mut rest) = (Rng::new(seed), &script[..]);
        while !rest.is_empty() {
            let n = usize::try_from(1 + rng.below(300)).unwrap().min(rest.len());
            writer.write_all(&rest[..n]).unwrap();
            rest = &rest[n..];
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let (mut stream, mut got) = (stream, Vec::new());
    stream.read_to_end(&mut got).unwrap();
    writing.join().unwrap();
    got
}

/// Pipelined requests of several clients, each of whom half-closes and reads to the end.
fn every_client_gets_what_it_asked_for(way: Way, clients: u64, messages: usize) {
    let Some(world) = World::new(way) else { return };
    let conversations: Vec<_> = (0..clients)
        .map(|n| {
            let (script, expected) = script(&mut Rng::new(n), messages);
            let stream = world.connect();
            std::thread::spawn(move || {
                let got = converse(stream, script, n);
                let same = got.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                assert_eq!((same, got.len()), (expected.len(), expected.len()));
            })
        })
        .collect();
    conversations.into_iter().for_each(|thread| thread.join().unwrap());
    let tally = world.front.tally();
    assert!(tally.offloaded.load(Ordering::Relaxed) > clients * 10, "{tally:?}");
    until("the host hears the ends", || world.host.ended.load(Ordering::SeqCst) == clients);
    until("flows go", || tally.flows.load(Ordering::Relaxed) == 0);
    if let Some(frames) = &world.frames {
        let damaged = frames.damaged.load(Ordering::Relaxed);
        assert_eq!(damaged > 0, matches!(way, Way::Faulty(_)), "{frames:?}");
        let seen = world.host.clients.lock().unwrap();
        assert!(seen.iter().all(|end| end.ip().to_canonical().to_string() == CLIENT), "{seen:?}");
    }
}

#[test]
fn kernel_sockets_give_every_client_what_it_asked_for() {
    every_client_gets_what_it_asked_for(Way::Kernel, 8, 200);
}

#[test]
fn the_stack_gives_every_client_what_it_asked_for() {
    every_client_gets_what_it_asked_for(Way::Stack, 8, 200);
}

/// Every tenth frame of both devices meets with a mishap.
#[test]
fn lost_doubled_swapped_and_damaged_frames_change_nothing() {
    every_client_gets_what_it_asked_for(Way::Faulty(1), 3, 25);
}

const WAYS: [Way; 2] = [Way::Kernel, Way::Stack];

fn read_to_end(stream: &mut TcpStream) -> (Vec<u8>, std::io::Result<usize>) {
    let mut got = Vec::new();
    let ended = stream.read_to_end(&mut got);
    (got, ended)
}

#[test]
fn a_host_that_closes_ends_its_client_after_what_it_answered() {
    for world in WAYS.into_iter().filter_map(World::new) {
        let mut stream = world.connect();
        stream.write_all(b"H one\nG 7 5\nC\nG 7 5\n").unwrap();
        let (got, ended) = read_to_end(&mut stream);
        assert_eq!(got, [&b"h one\n"[..], &piece(7, 5)].concat());
        assert!(ended.is_ok(), "{ended:?}");
    }
}

#[test]
fn a_reset_of_either_side_is_one_of_the_other() {
    for world in WAYS.into_iter().filter_map(World::new) {
        let mut stream = world.connect();
        stream.write_all(b"H one\n").unwrap();
        let mut line = [0; 6];
        stream.read_exact(&mut line).unwrap();
        stream.write_all(b"R\n").unwrap();
        let (got, ended) = read_to_end(&mut stream);
        assert!(got.is_empty() && ended.is_err(), "{got:?} {ended:?}");

        let mut stream = world.connect();
        stream.write_all(b"H one\n").unwrap();
        stream.read_exact(&mut line).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        drop(stream);
        until("the host hears the reset", || world.host.broken.load(Ordering::SeqCst) == 1);
        until("flows go", || world.front.tally().flows.load(Ordering::Relaxed) == 0);
    }
}

#[test]
fn without_a_host_what_needs_none_is_answered() {
    let Some(networks) = Networks::new() else {
        return skips::note_skip("director", "network namespaces take root");
    };
    let network: Network = networks.veth().parse().unwrap();
    let server: SocketAddr = format!("{HOST}:{PORT}").parse().unwrap();
    let (address, setup) =
        (Address::Tcp(server), setup(Address::Tcp(server), Arc::new(Lines), &Arc::default()));
    let ends = network.open().unwrap();
    let (front, frames) =
        Front::between(ends, Signature::of_server(server), address, 1, &setup).unwrap();
    let mut stream = networks.clients.within(|| TcpStream::connect(server).unwrap());
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"G 1 100\nH nobody\n").unwrap();
    let (got, ended) = read_to_end(&mut stream);
    assert_eq!(got, piece(1, 100));
    assert!(ended.is_ok(), "{ended:?}");
    // The next life of the DPU side knows nothing of connections of this one.
    let mut stream = networks.clients.within(|| TcpStream::connect(server).unwrap());
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    drop(front);
    assert_eq!(frames.refused.load(Ordering::Relaxed), 0);
    let ends = network.open().unwrap();
    let (_front, frames) =
        Front::between(ends, Signature::of_server(server), Address::Tcp(server), 1, &setup)
            .unwrap();
    stream.write_all(b"G 1 100\n").unwrap();
    let (got, ended) = read_to_end(&mut stream);
    assert!(got.is_empty() && ended.is_err(), "{ended:?}");
    assert!(frames.refused.load(Ordering::Relaxed) > 0);
}

/// A device that was taken away.
struct Gone(OwnedFd);

impl Device for Gone {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn receive(&self, _: &mut [u8]) -> std::io::Result<Option<usize>> {
        Err(std::io::Error::other("taken away"))
    }

    fn send(&self, _: &[u8]) -> bool {
        false
    }
}

/// A director whose device was gone ended with a line in the log, and its process went on, with
/// nothing forwarded and nobody told.
#[test]
fn a_director_without_its_device_says_that_it_serves_nobody() {
    let gone = || {
        let readable = rustix::event::eventfd(1, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        Arc::new(Gone(readable))
    };
    let server: SocketAddr = format!("{HOST}:{PORT}").parse().unwrap();
    let (address, setup) =
        (Address::Tcp(server), setup(Address::Tcp(server), Arc::new(Lines), &Arc::default()));
    let ends = Ends::new(gone(), gone());
    let front = Front::between(ends, Signature::of_server(server), address, 1, &setup);
    let (front, _) = front.unwrap();
    until("its thread ends", || !front.is_serving());
}

/// What may lie in buffers between the two, of the director and of two kernels.
const BETWEEN: usize = 24 << 20;

#[test]
fn a_client_that_does_not_read_stops_the_host() {
    for world in WAYS.into_iter().filter_map(World::new) {
        let mut stream = world.connect();
        let (each, times) = (128 << 10, 400);
        let request = format!("B {each}\n").repeat(times);
        stream.write_all(request.as_bytes()).unwrap();
        let sent = || world.host.sent.load(Ordering::SeqCst);
        let mut before = usize::MAX;
        until("the host stops", || {
            std::thread::sleep(Duration::from_millis(200));
            std::mem::replace(&mut before, sent()) == sent() && before > 0
        });
        assert!(sent() < BETWEEN, "{} bytes are on their way", sent());
        let mut got = vec![0; each * times];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got.iter().filter(|byte| **byte == b'\n').count(), times);
    }
}

#[test]
fn a_host_that_does_not_read_stops_its_client() {
    for world in WAYS.into_iter().filter_map(World::new) {
        let lazy = world.host.lazy();
        let mut stream = world.connect();
        let message = [&b"H "[..], &vec![b'y'; 1 << 16], b"\n"].concat();
        let total = Arc::new(AtomicUsize::new(0));
        let (mut writer, written, times) = (stream.try_clone().unwrap(), Arc::clone(&total), 1000);
        let text = message.clone();
        let writing = std::thread::spawn(move || {
            for _ in 0..times {
                writer.write_all(&text).unwrap();
                written.fetch_add(text.len(), Ordering::SeqCst);
            }
        });
        let mut before = usize::MAX;
        until("the client stops", || {
            std::thread::sleep(Duration::from_millis(200));
            let now = total.load(Ordering::SeqCst);
            std::mem::replace(&mut before, now) == now && now > 0
        });
        assert!(before < BETWEEN, "{before} bytes are on their way");
        drop(lazy);
        let mut got = vec![0; message.len()];
        for _ in 0..times {
            stream.read_exact(&mut got).unwrap();
            assert!(got.starts_with(b"h y") && got.ends_with(b"y\n"));
        }
        writing.join().unwrap();
        assert_eq!(world.host.read.load(Ordering::SeqCst), times * message.len());
    }
}
