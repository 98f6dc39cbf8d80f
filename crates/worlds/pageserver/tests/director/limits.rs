//! What clients may hold: connections, time, descriptors, memory. Whoever wants more is told so,
//! and others go on.

use std::io::{BufRead, BufReader, ErrorKind};
use std::process::{Command, Stdio};

use super::*;

fn world(way: Way, limits: Limits) -> Option<World> {
    World::within(way, Arc::new(Lines), &Arc::default(), limits)
}

fn ask(stream: &mut TcpStream, text: &str) {
    stream.write_all(format!("H {text}\n").as_bytes()).unwrap();
    let mut got = vec![0; text.len() + 3];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, format!("h {text}\n").into_bytes());
}

/// There was no bound but descriptors, and these were everybody's.
#[test]
fn one_client_too_many_is_refused_in_words_and_room_is_used_again() {
    let limits = Limits { max_clients: 3, ..Limits::default() };
    for world in WAYS.into_iter().filter_map(|way| world(way, limits)) {
        let mut held: Vec<TcpStream> = (0..3).map(|_| world.connect()).collect();
        held.iter_mut().for_each(|stream| ask(stream, "there"));
        for n in 1..=5 {
            let mut late = world.connect();
            let (got, _) = read_to_end(&mut late);
            assert_eq!(got, b"full\n");
            assert_eq!(world.front.tally().turned_away.load(Ordering::Relaxed), n);
        }
        held.iter_mut().for_each(|stream| ask(stream, "still there"));
        drop(held.pop());
        until("the room is free", || world.front.tally().clients.load(Ordering::Relaxed) == 2);
        held.push(world.connect());
        held.iter_mut().for_each(|stream| ask(stream, "with another"));
        drop(held);
        until("all go", || world.front.tally().clients.load(Ordering::Relaxed) == 0);
    }
}

/// Clients that are there and say nothing keep room from others for ever.
#[test]
fn an_idle_client_is_closed_and_one_that_waits_is_not() {
    // Much longer than the busy client's pauses: on a loaded machine a sleep of 100 ms took 200.
    let timeout = Duration::from_secs(1);
    let limits = Limits { idle_timeout: Some(timeout), ..Limits::default() };
    for world in WAYS.into_iter().filter_map(|way| world(way, limits)) {
        let [mut silent, mut half, mut busy, mut waits] = [(); 4].map(|()| world.connect());
        ask(&mut silent, "once");
        half.write_all(b"H no e").unwrap();
        let lazy = world.host.lazy();
        waits.write_all(b"H late\n").unwrap();
        let begun = Instant::now();
        for _ in 0..12 {
            std::thread::sleep(timeout / 8);
            busy.write_all(b"G 7 5\n").unwrap();
            let mut got = vec![0; piece(7, 5).len()];
            busy.read_exact(&mut got).unwrap();
        }
        drop(lazy);
        let mut got = [0; 7];
        waits.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"h late\n");
        for stream in [&mut silent, &mut half] {
            assert_eq!(read_to_end(stream).0, b"");
        }
        assert!(begun.elapsed() >= timeout);
        assert_eq!(world.front.tally().idle.load(Ordering::Relaxed), 2);
        assert_eq!(world.front.tally().clients.load(Ordering::Relaxed), 2);
        // They are idle now.
        assert_eq!(read_to_end(&mut busy).0, b"");
    }
}

const CHILD: &str = "OUTBOARD_DIRECTOR_SHORT_OF_DESCRIPTORS";

/// Not a test by itself: a DPU side whose descriptors somebody else has used up.
#[test]
#[ignore = "the child of the test below"]
fn short_of_descriptors() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let few = rustix::process::Rlimit { current: Some(128), maximum: Some(128) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let world = world(Way::Kernel, Limits::default()).unwrap();
    let mut taken = Vec::new();
    let lines = BufReader::new(std::io::stdin()).lines();
    println!("at {}", world.server);
    for line in lines {
        match line.unwrap().as_str() {
            // Threads of the world still close what they had: those, too.
            "take" => {
                for _ in 0..10 {
                    while let Ok(file) = std::fs::File::open("/dev/null") {
                        taken.push(file);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            _ => taken.clear(),
        }
        println!("done");
    }
}

/// Accepting paused for 20 ms again and again, a warning each time, and whoever connected waited
/// without a word.
#[test]
fn clients_are_refused_while_descriptors_are_short_and_served_after() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "limits::short_of_descriptors", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let at = said.by_ref().find_map(|line| Some(line.split_once("at ")?.1.to_owned())).unwrap();
    let mut tell = |what: &str| {
        input.write_all(format!("{what}\n").as_bytes()).unwrap();
        assert!(said.by_ref().any(|line| line == "done"));
    };
    let connect = || {
        let stream = TcpStream::connect(&at).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let mut before = connect();
    ask(&mut before, "before");
    tell("take");
    for _ in 0..20 {
        assert_eq!(read_to_end(&mut connect()).0, b"full\n");
    }
    ask(&mut before, "amid it");
    tell("give");
    let mut after = connect();
    ask(&mut after, "after");
    drop(input);
    child.wait().unwrap();
}

const STARTS: &str = "OUTBOARD_DIRECTOR_STARTS_SHORT_OF_DESCRIPTORS";

fn said_to_one(server: SocketAddr) -> Vec<u8> {
    let mut client = TcpStream::connect(server).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    client.write_all(b"H one of the workers\n").unwrap();
    let mut said = String::new();
    BufReader::new(client).read_line(&mut said).unwrap();
    said.into_bytes()
}

/// Not a test by itself: descriptors are those of a process.
#[test]
#[ignore = "the child of the test below"]
fn starts_short_of_descriptors() {
    if std::env::var_os(STARTS).is_none() {
        return;
    }
    let world = world(Way::Kernel, Limits::default()).unwrap();
    let host = Address::Tcp(world.server);
    let few = rustix::process::Rlimit { current: Some(128), maximum: Some(128) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    for room in 0.. {
        let clients = Listener::bind(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let mut taken: Vec<_> =
            std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        taken.truncate(taken.len() - room);
        let setup = setup(host.clone(), Arc::new(Lines), &Arc::default());
        match Front::start(clients, 2, &setup) {
            Ok(front) => {
                assert!(room > 0 && front.is_serving());
                drop(taken);
                let Address::Tcp(server) = *front.address() else { panic!("TCP") };
                let answers: Vec<Vec<u8>> = (0..20).map(|_| said_to_one(server)).collect();
                let is_answer = |said: &Vec<u8>| said == b"h one of the workers\n";
                assert!(answers.iter().all(|said| is_answer(said) || said == b"full\n"));
                assert!(answers.iter().any(is_answer));
                return println!("starts with {room}");
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}"),
        }
    }
}

/// Workers made what they need after the director had started: one that found no descriptor ended,
/// and every client that came to it waited for ever.
#[test]
fn a_director_that_starts_has_all_its_workers() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "limits::starts_short_of_descriptors", "--ignored", "--nocapture"])
        .env(STARTS, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    println!("{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && said.contains("starts with"));
}

const MEMORY: &str = "OUTBOARD_DIRECTOR_MEMORY";
/// Clients, of whom each sends so much of one message,
const HALVES: usize = 64;
const HALF: usize = 1 << 20;
/// and what they may hold together.
const MEMORY_MAX: usize = 8 << 20;

/// Bytes of memory this process has.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

/// Sends half a message over each, until nothing more is taken; how much each took.
fn send_halves(streams: &mut [TcpStream]) -> Vec<usize> {
    let (chunk, mut sent) = (vec![b'Y'; 64 << 10], vec![0; streams.len()]);
    let mut still = 0;
    while still < 20 {
        still += 1;
        for (stream, sent) in streams.iter_mut().zip(&mut sent) {
            match stream.write(&chunk[..chunk.len().min(HALF - *sent)]) {
                Ok(0) => {}
                Ok(n) => (*sent, still) = (*sent + n, 0),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    sent
}

fn halves_share_the_memory(way: Way) {
    let limits = Limits { memory: MEMORY_MAX, max_clients: 100, ..Limits::default() };
    let Some(world) = world(way, limits) else { return };
    let mut streams: Vec<TcpStream> = (0..HALVES).map(|_| world.connect()).collect();
    streams.iter_mut().for_each(|stream| ask(stream, "warm"));
    let lazy = world.host.lazy();
    let before = resident();
    for stream in &mut streams {
        stream.write_all(b"H ").unwrap();
        stream.set_nonblocking(true).unwrap();
    }
    let sent = send_halves(&mut streams);
    let grown = resident().saturating_sub(before);
    println!("{way:?}: {grown} bytes more, {} sent", sent.iter().sum::<usize>());
    assert!(grown < 2 * MEMORY_MAX, "{grown}");
    assert!(world.front.tally().without_memory.load(Ordering::Relaxed) > 0);
    // Amid it, somebody who needs little.
    let mut little = world.connect();
    little.write_all(b"G 7 5\n").unwrap();
    let mut got = vec![0; piece(7, 5).len()];
    little.read_exact(&mut got).unwrap();
    assert_eq!(got, piece(7, 5));
    drop(lazy);
    for (mut stream, sent) in streams.into_iter().zip(sent) {
        stream.set_nonblocking(false).unwrap();
        stream.write_all(b"\n").unwrap();
        let mut got = vec![0; sent + 3];
        stream.read_exact(&mut got).unwrap();
        assert!(got.starts_with(b"h ") && got.ends_with(b"\n"));
        assert_eq!(got.iter().filter(|byte| **byte == b'y').count(), sent);
    }
}

/// Not a test by itself: memory is that of a process.
#[test]
#[ignore = "the child of the test below"]
fn half_messages() {
    if std::env::var_os(MEMORY).is_some() {
        WAYS.into_iter().for_each(halves_share_the_memory);
    }
}

/// Each client could have the DPU side keep 2 MiB of a message that it did not end, and
/// `--client-memory` was the host's alone.
#[test]
fn half_messages_of_all_clients_take_no_more_memory_than_they_may() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "limits::half_messages", "--ignored", "--nocapture"])
        .env(MEMORY, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    println!("{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && said.contains("bytes more"));
}
