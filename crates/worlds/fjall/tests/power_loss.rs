//! Power loss on the real drivers: what they wrote and flushed is recorded, legal subsets of it are
//! replayed onto fresh files, and the store is opened from those. Nothing synced may be lost, no
//! block may be a mixture, no batch may be torn, and the check must find nothing.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests say so when they fail")]

use outboard_base::task::poll_once;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use outboard_base::Rng;
use outboard_fjall::recorder::{JournalWatch, Recorder};
use outboard_fjall::{Engine, EngineOptions};
use outboard_kv::object::{Compression, ObjectId, Objects, Options};
use outboard_kv::{Batch, Cached, Durability, Kv};
use outboard_medium::Medium;
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};

type Watched = Cached<JournalWatch<Engine>>;
type Recorded = Objects<Watched, Arc<Recorder<FileMedium>>>;

const BLOCK: usize = 8192;
/// Blocks of file played with.
const FILE: usize = 40;
const ID: ObjectId = ObjectId(5);

/// One seed in three packs blocks.
fn options(seed: u64) -> Options {
    let compression = if seed % 3 == 1 { Compression::Lz4 } else { Compression::None };
    let (capacity, reserve) = (8 << 20, 256 << 10);
    Options { capacity, segment: 1 << 20, reserve, compression, ..Options::default() }
}

/// What each block was at the last sync and since, newest last; and the numbers of the batches.
struct History {
    blocks: Vec<Vec<Vec<u8>>>,
    batch: u64,
    synced: u64,
}

impl History {
    fn new() -> History {
        History { blocks: vec![vec![vec![0; BLOCK]]; FILE], batch: 0, synced: 0 }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        self.batch += 1;
        for (at, versions) in self.blocks.iter_mut().enumerate() {
            let mut block = versions.last().unwrap().clone();
            let start = (at * BLOCK).max(offset);
            let end = ((at + 1) * BLOCK).min(offset + data.len());
            if start < end {
                block[start - at * BLOCK..end - at * BLOCK]
                    .copy_from_slice(&data[start - offset..end - offset]);
                versions.push(block);
            }
        }
    }

    fn sync(&mut self) {
        self.synced = self.batch;
        for versions in &mut self.blocks {
            versions.drain(..versions.len() - 1);
        }
    }
}

/// One write, with the number of its batch under a key of its own, as an inode would be.
async fn write(store: &Recorded, kv: &Watched, number: u64, offset: usize, data: &[u8]) {
    let mut batch = Batch::at(kv.version());
    let staged = store.write(ID, offset as u64, data, &mut batch).await.unwrap();
    batch.put(b"number", number.to_be_bytes());
    batch.put([&b"log"[..], &number.to_be_bytes()].concat(), b"");
    kv.commit(batch, Durability::Answered).await.unwrap();
    staged.committed();
}

/// Opens the store from replayed files and compares it with what may be there.
fn examine(dir: &Path, history: &History, in_flight: Option<(usize, &[u8])>, why: &str) {
    let engine = Engine::open(&dir.join("kv"), EngineOptions::default())
        .unwrap_or_else(|error| panic!("{why}: {error}"));
    let kv = Arc::new(Cached::new(engine, 1 << 20));
    let medium = FileMedium::open(&dir.join("blocks"), MediumOptions::default()).unwrap();
    let (store, recovered) = block_on(Objects::open(kv.clone(), medium, options(0)))
        .unwrap_or_else(|error| panic!("{why}: {error}"));
    assert_eq!(recovered.lost, 0, "{why}");
    let report = block_on(store.check(true, |_| ())).unwrap();
    assert_eq!(report.faults, [], "{why}");

    let mut may = History { blocks: history.blocks.clone(), ..*history };
    if let Some((offset, data)) = in_flight {
        may.write(offset, data);
    }
    let mut found = vec![0; FILE * BLOCK];
    block_on(store.read(ID, 0, &mut found)).unwrap();
    for (at, (block, versions)) in found.chunks(BLOCK).zip(&may.blocks).enumerate() {
        let legal = versions.iter().any(|version| version == block);
        assert!(legal, "{why}: block {at} is nothing it was since the last sync");
    }
    let number = block_on(kv.get(b"number")).unwrap();
    let number = number.map_or(0, |v| u64::from_be_bytes(v[..].try_into().unwrap()));
    assert!((history.synced..=may.batch).contains(&number), "{why}: batch {number}");
    let log = block_on(kv.scan(b"log", None, 10_000)).unwrap();
    assert_eq!(log.len() as u64, number, "{why}: whole batches, in order, none missing");
}

fn poll_some<F: Future>(reactor: &Reactor, future: Pin<&mut F>, polls: u64) -> Poll<F::Output> {
    let mut future = future;
    for _ in 0..polls {
        if let Poll::Ready(output) = poll_once(future.as_mut()) {
            return Poll::Ready(output);
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
        reactor.poll();
    }
    Poll::Pending
}

/// A store over recorded drivers.
struct Rig {
    store: Recorded,
    reactor: Reactor,
    kv: Arc<Watched>,
    recorder: Arc<Recorder<FileMedium>>,
}

impl Rig {
    fn open(dir: &Path, seed: u64) -> Rig {
        let kv_dir = dir.join("kv");
        // With a tiny memtable the engine sorts its writes into files all the time.
        let memtable = if seed.is_multiple_of(2) { 32 << 20 } else { 8 << 10 };
        let engine =
            Engine::open(&kv_dir, EngineOptions { memtable, ..EngineOptions::default() }).unwrap();
        block_on(engine.sync()).unwrap();
        let mut watch = JournalWatch::new(engine, &kv_dir).unwrap();
        let mut file = FileMedium::open(&dir.join("blocks"), MediumOptions::default()).unwrap();
        // Where the file system allows, the journal's sync is the medium's flush, in half of the
        // seeds.
        let shared = (seed / 2).is_multiple_of(2);
        if shared {
            file = file.beside(&kv_dir).unwrap();
        }
        let recorder = Arc::new(Recorder::new(file));
        if recorder.is_flushed_by_store() {
            watch = watch.flushing(recorder.clone());
        }
        let kv = Arc::new(Cached::new(watch, 1 << 20));
        let reactor = Reactor::install(64).unwrap();
        let opened = Objects::open(kv.clone(), recorder.clone(), options(seed));
        let (store, _) = block_on(opened).unwrap();
        Rig { kv, recorder, reactor, store }
    }

    /// What power loss may leave now, twice, is examined.
    fn lose_power(
        &self,
        history: &History,
        in_flight: Option<(usize, &[u8])>,
        rng: &mut Rng,
        why: &str,
    ) {
        for variant in 0..2 {
            let copy = tempfile::tempdir().unwrap();
            self.kv.inner().replay(&copy.path().join("kv"), rng).unwrap();
            self.recorder.replay(&copy.path().join("blocks"), rng).unwrap();
            examine(copy.path(), history, in_flight, &format!("{why} variant {variant}"));
        }
    }
}

/// Bytes for somewhere in the file.
fn draw(rng: &mut Rng, packs: bool) -> (usize, Vec<u8>) {
    let at = |rng: &mut Rng, max: usize| usize::try_from(rng.below(max as u64)).unwrap();
    let offset = at(rng, (FILE - 1) * BLOCK);
    let len = 1 + at(rng, (FILE * BLOCK - offset).min(60_000));
    let mut data = vec![0; len];
    rng.fill(&mut data);
    if packs {
        // Half of each block shrinks to nothing.
        data.chunks_mut(BLOCK)
            .for_each(|block| block.iter_mut().skip(BLOCK / 2).for_each(|b| *b = 7));
    }
    (offset, data)
}

fn scenario(seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(dir.path(), seed);
    let Rig { kv, reactor, store, .. } = &rig;
    let packs = options(seed).compression != Compression::None;
    let mut rng = Rng::new(seed);
    let mut history = History::new();
    for step in 0..50 {
        let why = format!("seed {seed} step {step}");
        let (offset, data) = draw(&mut rng, packs);
        let cut = rng.chance(1, 6);
        let polls = if cut { 1 + rng.below(4) } else { 0 };
        {
            let mut op = pin!(write(store, kv, history.batch + 1, offset, &data));
            let early = poll_some(reactor, op.as_mut(), polls);
            if cut {
                rig.lose_power(&history, Some((offset, &data)), &mut rng, &why);
            }
            if early.is_pending() {
                block_on(op);
            }
        }
        history.write(offset, &data);
        match rng.below(8) {
            0 => {
                let mut op = pin!(store.sync());
                let early = poll_some(reactor, op.as_mut(), polls);
                rig.lose_power(&history, None, &mut rng, &why);
                match early {
                    Poll::Ready(outcome) => outcome.unwrap(),
                    Poll::Pending => block_on(op).unwrap(),
                }
                history.sync();
            }
            1 => {
                block_on(store.sync()).unwrap();
                history.sync();
            }
            2 => {
                block_on(store.tidy()).unwrap();
                history.sync();
                rig.lose_power(&history, None, &mut rng, &why);
            }
            _ => {}
        }
    }
}

#[test]
fn nothing_synced_is_lost() {
    let seeds = std::env::var("OUTBOARD_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    for seed in 0..seeds {
        std::thread::spawn(move || scenario(seed)).join().unwrap();
    }
}
