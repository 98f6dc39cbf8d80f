//! kill -9 of a process that writes through the real drivers, again and again on one directory:
//! nothing answered is lost, no batch is torn, the check finds nothing.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "tests say so when they fail")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_fjall::{Engine, EngineOptions};
use outboard_kv::object::{ObjectId, Objects, Options};
use outboard_kv::{Batch, Cached, Durability, Kv};
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};
use outboard_store::directory::DataDirectory;

type Store = Objects<Cached<Engine>, FileMedium>;

const DIR: &str = "OUTBOARD_KILL_TEST_DIR";
const BLOCK: usize = 8192;
const BLOCKS: u64 = 64;
const ID: ObjectId = ObjectId(9);

fn open(dir: &Path) -> (DataDirectory, Arc<Cached<Engine>>, Store) {
    let directory = DataDirectory::open(dir).unwrap();
    let engine = Engine::open(&directory.kv(), EngineOptions::default()).unwrap();
    let kv = Arc::new(Cached::new(engine, 1 << 20));
    let medium = FileMedium::open(&directory.blocks(), MediumOptions::default()).unwrap();
    let options = Options { capacity: 16 << 20, segment: 4 << 20, ..Options::default() };
    let (store, recovered) = block_on(Objects::open(kv.clone(), medium, options)).unwrap();
    assert_eq!((recovered.restored, recovered.lost), (0, 0), "a killed process loses nothing");
    (directory, kv, store)
}

/// The block that batch `number` wrote, and its bytes.
fn block_of(number: u64) -> (u64, Vec<u8>) {
    let mut bytes = vec![0; BLOCK];
    Rng::new(number).fill(&mut bytes);
    (Rng::new(number ^ 0xFFFF).below(BLOCKS), bytes)
}

/// Not a test by itself: what the killed process does. It says each batch's number once it is
/// answered.
#[test]
#[ignore = "the child of the test below"]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let (_directory, kv, store) = open(Path::new(&dir));
    let _reactor = Reactor::install(32).unwrap();
    let last = block_on(kv.get(b"last")).unwrap();
    let first = last.map_or(1, |v| u64::from_be_bytes(v[..].try_into().unwrap()) + 1);
    let mut out = std::io::stdout();
    for number in first.. {
        let (block, bytes) = block_of(number);
        let write = async {
            let mut batch = Batch::at(kv.version());
            let staged = store.write(ID, block * BLOCK as u64, &bytes, &mut batch).await.unwrap();
            batch.put(b"last", number.to_be_bytes());
            batch.put([&b"a"[..], &number.to_be_bytes()].concat(), number.to_be_bytes());
            batch.put([&b"b"[..], &number.to_be_bytes()].concat(), number.to_be_bytes());
            kv.commit(batch, Durability::Answered).await.unwrap();
            staged.committed();
            if number.is_multiple_of(97) {
                store.sync().await.unwrap();
            }
            if number.is_multiple_of(501) {
                store.tidy().await.unwrap();
            }
        };
        block_on(write);
        writeln!(out, "answered {number}").unwrap();
        out.flush().unwrap();
    }
}

/// Runs the child for a while and kills it; the last number it said.
fn run_and_kill(dir: &Path, time: Duration) -> Option<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, said) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            // The harness prefixes the first line with the test's name.
            if let Some(number) = line.split("answered ").nth(1).and_then(|n| n.parse().ok()) {
                sender.send(number).unwrap();
            }
        }
    });
    // Its start takes as long as the machine is busy: count from the first answer.
    let mut last = said.recv_timeout(Duration::from_secs(60)).ok();
    let end = Instant::now() + time;
    while Instant::now() < end {
        last = said.recv_timeout(end - Instant::now()).ok().or(last);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    said.try_iter().last().or(last)
}

#[test]
fn nothing_answered_is_lost() {
    let rounds = std::env::var("OUTBOARD_KILLS").ok().and_then(|s| s.parse().ok()).unwrap_or(8);
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(11);
    let mut before = 0;
    for round in 0..rounds {
        let time = Duration::from_millis(20 + rng.below(200));
        let answered = run_and_kill(dir.path(), time).expect("the child got to work");
        assert!(answered > before, "round {round}: it made progress");
        let (_directory, kv, store) = open(dir.path());
        let last = block_on(kv.get(b"last")).unwrap().unwrap();
        let last = u64::from_be_bytes(last[..].try_into().unwrap());
        assert!(last >= answered, "round {round}: {answered} was answered, {last} is there");
        for prefix in [b"a", b"b"] {
            let found = block_on(kv.scan(prefix, None, usize::MAX >> 1)).unwrap();
            let numbers = found.iter().map(|(_, v)| u64::from_be_bytes(v[..].try_into().unwrap()));
            assert!(numbers.eq(1..=last), "round {round}: whole batches, in order, none missing");
        }
        let mut newest = std::collections::BTreeMap::new();
        for number in 1..=last {
            newest.insert(block_of(number).0, number);
        }
        for (block, number) in newest {
            let mut bytes = vec![0; BLOCK];
            block_on(store.read(ID, block * BLOCK as u64, &mut bytes)).unwrap();
            assert!(bytes == block_of(number).1, "round {round}: block {block} of batch {number}");
        }
        let report = block_on(store.check(true, |_| ())).unwrap();
        assert_eq!(report.faults, [], "round {round}");
        before = last;
    }
}
