//! kill -9 of those who use a ring, by real signals at any moment.
//!
//! Goal: a producer that was killed between reserving and publishing is found out, its place is
//! passed over, and every message of the others arrives once and in order; a host process that was
//! killed amid requests takes its own group with it and nothing else.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests say so when they fail")]

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_dds::groups::Shape;
use outboard_dds::host::Completion;
use outboard_link::dma::Direct;
use outboard_link::ring::progress::{self, Consumer, Ring};
use outboard_link::ring::{Consume, Place, PushError, Recovery};
use outboard_os::room::Reserve;
use outboard_os::shm::Shared;
use outboard_pageserver::host::Attachment;
use outboard_pageserver::library::{FileLibrary, file_library};
use outboard_pageserver::server::{Server, ServerOptions};

const MEMORY: &str = "OUTBOARD_RING_TEST_MEMORY";
const DIR: &str = "OUTBOARD_RING_TEST_DIR";
const LIMIT: Duration = Duration::from_secs(300);
/// As long as a ring may stand still before the dead are looked for, here.
const STUCK: Duration = Duration::from_millis(5);
const BYTES: u64 = 16 << 10;
/// Processes that push.
const PRODUCERS: usize = 3;
/// Deaths within a reservation that a run must have seen.
const DEATHS: u32 = 8;

fn place() -> Place {
    Place::new(0, BYTES).unwrap()
}

fn start(child: &str, name: &str, value: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", child, "--ignored", "--nocapture", "--test-threads=1"])
        .env(name, value)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test by itself: pushes (its process, a number) until it is killed, and is slow about it.
#[test]
#[ignore = "the child of a test below"]
fn producer() {
    let Some(memory) = std::env::var_os(MEMORY) else { return };
    let file = std::fs::File::options().read(true).write(true).open(memory).unwrap();
    let shared = Shared::open(OwnedFd::from(file), place().end()).unwrap();
    let ring = Ring::new(shared.region().clone(), place(), BYTES).unwrap();
    let who = u64::from(std::process::id());
    let mut producer = ring.producer(who).unwrap();
    // Whoever started this is gone, too: nobody will kill it.
    std::thread::spawn(|| {
        let _closed = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let (mut rng, mut number) = (Rng::new(who), 0u64);
    loop {
        let shape =
            progress::Shape { head: 16, data: usize::try_from(rng.below(500)).unwrap(), align: 8 };
        let reserved = match producer.reserve(shape) {
            Ok(reserved) => reserved,
            Err(error) => {
                assert_eq!(error, PushError::Retry);
                std::thread::yield_now();
                continue;
            }
        };
        reserved.write(0, &[who, number].map(u64::to_le_bytes).concat()).unwrap();
        // Preempted here, now and then.
        if rng.chance(1, 4) {
            std::thread::sleep(Duration::from_micros(200));
        }
        reserved.publish().unwrap();
        number += 1;
    }
}

/// The consumer, and what it has seen of whom.
struct Watchdog {
    ring: Ring,
    consumer: Consumer,
    next: HashMap<u64, u64>,
    /// The progress when the ring was last seen to stand still, and since when.
    still: Option<(u64, Instant)>,
    deaths: u32,
}

impl Watchdog {
    fn take(&mut self) -> usize {
        let next = &mut self.next;
        let mut each = |message: &[u8]| {
            let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
            let due = next.entry(word(0)).or_default();
            assert_eq!(word(8), *due, "of {}", word(0));
            *due += 1;
        };
        self.consumer.take(&mut each).unwrap()
    }

    /// Looks for the dead when nothing moves, as the library does.
    fn tend(&mut self, dead: &[u64]) {
        let Some(at) = self.ring.unfinished() else {
            self.still = None;
            return;
        };
        match self.still {
            Some((was, since)) if was == at && since.elapsed() >= STUCK => {}
            Some((was, _)) if was == at => return,
            _ => {
                self.still = Some((at, Instant::now()));
                return;
            }
        }
        let is_dead = |who| dead.contains(&who);
        if !self.ring.has_left(&is_dead).unwrap() {
            return;
        }
        match self.ring.recover(&is_dead).unwrap() {
            Recovery::Waiting => {}
            Recovery::Done { bytes, .. } => self.deaths += u32::from(bytes > 0),
            Recovery::Lost => panic!("it cannot be said what the dead had reserved"),
        }
    }
}

#[test]
fn killed_producers_are_passed_over_and_nobody_else_loses_a_message() {
    let shared = Shared::create("ring", place().end()).unwrap();
    let memory = format!("/proc/{}/fd/{}", std::process::id(), shared.fd().as_raw_fd());
    let dma = std::sync::Arc::new(Direct::new(shared.region().clone()));
    let mut watch = Watchdog {
        ring: Ring::new(shared.region().clone(), place(), BYTES).unwrap(),
        consumer: Consumer::new(dma, place()).unwrap(),
        next: HashMap::new(),
        still: None,
        deaths: 0,
    };
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let (mut rng, begun) = (Rng::new(seed), Instant::now());
    let mut living: Vec<Child> =
        (0..PRODUCERS).map(|_| start("producer", MEMORY, &memory)).collect();
    let mut dead: Vec<u64> = Vec::new();
    let mut kills = 0;
    while watch.deaths < DEATHS {
        // Everybody has come through since the last death.
        let due = |child: &Child| watch.next.get(&u64::from(child.id())).copied().unwrap_or(0);
        let counts: Vec<u64> = living.iter().map(due).collect();
        let more = rng.below(50);
        loop {
            if watch.take() == 0 {
                watch.tend(&dead);
                std::thread::yield_now();
            }
            let due = |child: &Child| watch.next.get(&u64::from(child.id())).copied().unwrap_or(0);
            if living.iter().zip(&counts).all(|(child, count)| due(child) > count + more) {
                break;
            }
            assert!(begun.elapsed() < LIMIT, "{kills} kills, {} in a push", watch.deaths);
        }
        // Anywhere in what they do. Where all have one processor, nobody is amid a push when a
        // message has just been taken.
        std::thread::sleep(Duration::from_micros(rng.below(2000)));
        let mut victim = living.swap_remove(usize::try_from(rng.below(3)).unwrap());
        victim.kill().unwrap();
        victim.wait().unwrap();
        dead.push(u64::from(victim.id()));
        kills += 1;
        living.push(start("producer", MEMORY, &memory));
    }
    println!("{kills} kills, {} of them in a push", watch.deaths);
    for mut child in living {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

const RECORD: usize = 4096;

fn record(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; RECORD];
    Rng::new(number).fill(&mut bytes);
    bytes
}

fn attach(dir: &Path) -> FileLibrary {
    let shape = Shape::new(2, 64 << 10, 64 << 10, 8).unwrap();
    file_library(Attachment::attach(&dir.join("socket"), shape, LIMIT).unwrap()).unwrap()
}

/// Not a test by itself: a host that overwrites one file's records, round and round.
#[test]
#[ignore = "the child of a test below"]
fn host() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let library = attach(Path::new(&dir));
    std::thread::spawn(|| {
        let _closed = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let name = std::process::id().to_le_bytes();
    let directory = library.open_directory(b"hosts").unwrap();
    let file = library.create_file(directory, &name).unwrap();
    let mut done = Vec::new();
    for number in 0u64.. {
        while library.write_file(&file, number % 16 * 4096, &record(number % 16), number).is_err() {
            library.poll_wait(library.default_poll(), &mut done, 64, LIMIT).unwrap();
            done.clear();
        }
    }
}

fn wait(library: &FileLibrary) -> Completion {
    let mut done = Vec::new();
    while done.is_empty() {
        library.poll_wait(library.default_poll(), &mut done, 1, LIMIT).unwrap();
    }
    done.remove(0)
}

/// The files of hosts that were killed hold whole records, whatever was under way.
#[test]
fn a_host_killed_amid_requests_disturbs_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let options = ServerOptions::new(dir.path().join("volume"), dir.path().join("socket"));
    let reserve = Reserve { most: 1 << 20, one_in: 1000 };
    let options = ServerOptions { capacity: Some(1 << 30), items: 100, reserve, ..options };
    let server = Server::start(options).unwrap();
    let library = attach(dir.path());
    let directory = library.create_directory(b"hosts").unwrap();
    let mine = library.create_file(directory, b"mine").unwrap();
    let begun = Instant::now();
    for round in 0..4u64 {
        let mut child = start("host", DIR, dir.path().to_str().unwrap());
        // It has begun to write, and this host goes on beside it.
        let name = child.id().to_le_bytes();
        let theirs = loop {
            library.write_file(&mine, round * 4096, &record(round), round).unwrap();
            assert_eq!(wait(&library).result, Ok(4096));
            let theirs = library.open_file(directory, &name);
            if let Ok(theirs) = theirs
                && library.file_size(&theirs).unwrap() == 16 * 4096
            {
                break theirs;
            }
            assert!(begun.elapsed() < LIMIT, "the other host does not write");
        };
        child.kill().unwrap();
        child.wait().unwrap();
        for number in 0..16 {
            library.read_file(&theirs, number * 4096, vec![0; RECORD], 0).unwrap();
            let read = wait(&library);
            assert_eq!(read.result, Ok(4096));
            assert!(read.buffers[0] == record(number), "record {number} is torn");
        }
        library.delete_file(&theirs).unwrap();
        for number in 0..=round {
            library.read_file(&mine, number * 4096, vec![0; RECORD], 0).unwrap();
            assert!(wait(&library).buffers[0] == record(number));
        }
    }
    assert!(server.is_serving());
    server.stop().unwrap();
}
