//! The store against a simple model: in peace, under faults, and across crashes at any poll.

use outboard_base::task::{poll_for, run};
use std::collections::BTreeMap;

use outboard_base::{Errno, Rng};
use outboard_sim::seeds;

use super::*;
use crate::mem::{self as kv_mem, MemKv};
use crate::{Batch, Durability, KvError};
use outboard_medium::mem::{self as medium_mem, MemMedium};

mod asking;
mod faults;
mod held;
mod packed;

type Store = Objects<MemKv, Arc<MemMedium>>;

const LEN: usize = BLOCK as usize;
/// File blocks the tests play with: more than two pages of index.
const FILE: u64 = 80;

fn options() -> Options {
    Options {
        capacity: 16 << 20,
        segment: 1 << 20,
        identity: 7,
        reserve: 256 << 10,
        pending_blocks_max: 400,
        compression: Compression::None,
    }
}

/// Every other seed packs.
fn options_of(seed: u64) -> Options {
    let packs = seed % 2 == 1;
    Options { compression: if packs { Compression::Lz4 } else { Compression::None }, ..options() }
}

struct Rig {
    kv: Arc<MemKv>,
    medium: Arc<MemMedium>,
    store: Store,
    options: Options,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let kv = Arc::new(MemKv::new(seed));
        let medium = Arc::new(MemMedium::new(seed));
        let options = options_of(seed);
        let (store, _) = run(Objects::open(kv.clone(), medium.clone(), options)).unwrap();
        Rig { kv, medium, store, options }
    }

    fn reopen(&mut self) -> Recovered {
        let opened = Objects::open(self.kv.clone(), self.medium.clone(), self.options);
        let (store, recovered) = run(opened).unwrap();
        self.store = store;
        recovered
    }

    fn check(&self, why: &str) {
        let report = run(self.store.check(true, |_| ())).unwrap();
        assert_eq!(report.faults, [], "{why}");
        assert_eq!(self.store.space().used, report.blocks * BLOCK, "{why}");
    }
}

/// One change to one object.
#[derive(Clone, Debug)]
enum Op {
    Write { offset: u64, data: Vec<u8> },
    Punch { from: u64, to: u64 },
    Zero { from: u64, to: u64 },
    Allocate { from: u64, to: u64 },
}

fn op(rng: &mut Rng) -> Op {
    let span = FILE * BLOCK;
    let mut at = |max: u64| {
        let at = rng.below(max + 1);
        if rng.chance(1, 2) { at / BLOCK * BLOCK } else { at }
    };
    let (a, b) = (at(span), at(span));
    let (from, to) = (a.min(b), a.max(b));
    match rng.below(8) {
        0 => Op::Punch { from, to: if rng.chance(1, 3) { u64::MAX } else { to } },
        1 => Op::Zero { from, to },
        2 => Op::Allocate { from, to },
        _ => {
            let most = if rng.chance(1, 4) { 300 << 10 } else { 20_000 };
            let len = rng.below(most.min(span - from + 1));
            let mut data = vec![0; usize::try_from(len).unwrap()];
            rng.fill(&mut data);
            if rng.chance(2, 3) {
                // Some of each block compresses, more or less.
                for block in data.chunks_mut(LEN) {
                    let noisy = 16 + usize::try_from(rng.below(9000)).unwrap();
                    let byte = block.first().copied().unwrap_or(0);
                    block.iter_mut().skip(noisy).for_each(|b| *b = byte);
                }
            }
            Op::Write { offset: from, data }
        }
    }
}

/// Does one change through the protocol; conflicts are tried again.
async fn apply(rig: &Rig, id: ObjectId, op: &Op) -> Result<i64, KvError> {
    let mut delta = 0;
    let mut resume = None;
    loop {
        let mut batch = Batch::new();
        let (staged, progress) = match op {
            Op::Write { offset, data } => {
                (rig.store.write(id, *offset, data, &mut batch).await?, Progress::Done)
            }
            Op::Punch { from, to } => {
                batch.essential();
                rig.store.punch(id, resume.unwrap_or(*from), *to, &mut batch).await?
            }
            Op::Zero { from, to } => {
                rig.store.zero(id, resume.unwrap_or(*from), *to, &mut batch).await?
            }
            Op::Allocate { from, to } => {
                rig.store.allocate(id, resume.unwrap_or(*from), *to, &mut batch).await?
            }
        };
        let blocks = staged.blocks();
        batch.absent(b"never there");
        match rig.kv.commit(batch, Durability::Answered).await {
            Ok(()) => staged.committed(),
            Err(KvError::Conflict) => {
                staged.abort();
                continue;
            }
            Err(error) => return Err(error),
        }
        delta += blocks;
        match progress {
            Progress::Done => return Ok(delta),
            Progress::More { from } => resume = Some(from),
        }
    }
}

/// An object as it should read, and which blocks it should have.
#[derive(Clone)]
struct Model {
    bytes: Vec<u8>,
    /// 0 hole, 1 unwritten, 2 data.
    blocks: Vec<u8>,
}

impl Model {
    fn new() -> Model {
        Model { bytes: vec![0; FILE as usize * LEN], blocks: vec![0; FILE as usize] }
    }

    fn apply(&mut self, op: &Op) {
        let whole = |from: u64, to: u64| {
            from.div_ceil(BLOCK) as usize..(to / BLOCK).max(from.div_ceil(BLOCK)) as usize
        };
        let touched = |from: u64, to: u64| (from / BLOCK) as usize..to.div_ceil(BLOCK) as usize;
        match op {
            Op::Write { offset, data } => {
                let at = *offset as usize;
                self.bytes[at..at + data.len()].copy_from_slice(data);
                if !data.is_empty() {
                    self.blocks[touched(*offset, offset + data.len() as u64)].fill(2);
                }
            }
            Op::Punch { from, to } => {
                let to = (*to).min(FILE * BLOCK);
                self.bytes[*from as usize..to as usize].fill(0);
                self.blocks[whole(*from, to)].fill(0);
            }
            Op::Zero { from, to } if from < to => {
                self.bytes[*from as usize..*to as usize].fill(0);
                self.blocks[whole(*from, *to)].fill(1);
                self.blocks[touched(*from, *to)].iter_mut().for_each(|b| *b = (*b).max(1));
            }
            Op::Allocate { from, to } if from < to => {
                self.blocks[touched(*from, *to)].iter_mut().for_each(|b| *b = (*b).max(1));
            }
            _ => {}
        }
    }

    fn seek(&self, from: u64, data: bool) -> Option<u64> {
        (from / BLOCK..FILE)
            .find(|b| (self.blocks[*b as usize] == 2) == data)
            .map(|b| from.max(b * BLOCK))
    }
}

#[test]
fn it_agrees_with_a_model() {
    seeds::run(0..20, |seed| {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(seed);
        rig.kv.set_faults(kv_mem::Faults {
            commit_conflicts: 10,
            delay_polls: seed % 3,
            ..kv_mem::Faults::default()
        });
        rig.medium.set_faults(medium_mem::Faults {
            delay_polls: seed % 4,
            ..medium_mem::Faults::default()
        });
        let mut models = [Model::new(), Model::new(), Model::new()];
        for step in 0..120 {
            let why = format!("seed {seed} step {step}");
            let which = rng.below(3);
            let (id, model) = (ObjectId(which), &mut models[which as usize]);
            let op = op(&mut rng);
            let before = model.blocks.iter().filter(|b| **b != 0).count() as i64;
            model.apply(&op);
            let after = model.blocks.iter().filter(|b| **b != 0).count() as i64;
            assert_eq!(run(apply(&rig, id, &op)), Ok(after - before), "{why} {op:?}");
            let from = rng.below(FILE * BLOCK);
            let len = rng.below((FILE * BLOCK - from).min(1 << 20)) as usize;
            let mut out = vec![0xEE; len];
            run(rig.store.read(id, from, &mut out)).unwrap();
            assert!(out == model.bytes[from as usize..][..len], "{why} {op:?}");
            let size = FILE * BLOCK;
            assert_eq!(
                run(rig.store.seek_data(id, from, size)),
                Ok(model.seek(from, true)),
                "{why}"
            );
            let hole = model.seek(from, false).unwrap_or(size);
            assert_eq!(run(rig.store.seek_hole(id, from, size)), Ok(hole), "{why}");
            match rng.below(20) {
                0 => run(rig.store.sync()).unwrap(),
                1 => run(rig.store.tidy()).unwrap(),
                2 => {
                    // Killed, not crashed: nothing answered is lost. The next life may pack or not.
                    rig.options = options_of(rng.below(2));
                    let recovered = rig.reopen();
                    assert_eq!((recovered.restored, recovered.lost), (0, 0), "{why}");
                    rig.check(&why);
                }
                _ => {}
            }
        }
        run(rig.store.tidy()).unwrap();
        rig.check(&format!("seed {seed} end"));
        for id in 0..3 {
            run(apply(&rig, ObjectId(id), &Op::Punch { from: 0, to: u64::MAX })).unwrap();
        }
        run(rig.store.tidy()).unwrap();
        assert_eq!(rig.store.space().used, 0, "seed {seed}: everything deleted is free");
        rig.check(&format!("seed {seed} empty"));
    });
}

/// What each block may read after a crash: the bytes at the last sync, and all it was since.
struct History {
    now: Model,
    may: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl History {
    fn new() -> History {
        History { now: Model::new(), may: BTreeMap::new() }
    }

    fn block(&self, block: u64) -> &[u8] {
        &self.now.bytes[block as usize * LEN..][..LEN]
    }

    fn apply(&mut self, op: &Op) {
        let before = self.now.clone();
        self.now.apply(op);
        for block in 0..FILE {
            let old = &before.bytes[block as usize * LEN..][..LEN];
            if old != self.block(block) {
                self.may.entry(block).or_insert_with(|| vec![old.to_vec()]);
                let new = self.block(block).to_vec();
                self.may.get_mut(&block).unwrap().push(new);
            }
        }
    }

    /// Checks what was found after a crash, and takes it for the truth from now on.
    fn survive(&mut self, found: &[u8], killed: bool, why: &str) {
        for block in 0..FILE {
            let got = &found[block as usize * LEN..][..LEN];
            let legal = got == self.block(block)
                || !killed && self.may.get(&block).is_some_and(|m| m.iter().any(|b| b == got));
            assert!(legal, "{why}: block {block} reads what it never was since the last sync");
        }
        self.now.bytes.copy_from_slice(found);
        // Death of a process makes nothing durable; what power loss left, is.
        if !killed {
            self.may.clear();
        }
    }

    /// The same after an operation that was interrupted, and may be found done.
    fn survive_with(&mut self, interrupted: Option<&Op>, found: &[u8], killed: bool, why: &str) {
        let Some(op) = interrupted else { return self.survive(found, killed, why) };
        let mut done = History { now: self.now.clone(), may: self.may.clone() };
        done.apply(op);
        if !killed || found != self.now.bytes {
            done.survive(found, killed, why);
            *self = done;
        }
    }
}

fn read_all(rig: &Rig, id: ObjectId, why: &str) -> Vec<u8> {
    let mut bytes = vec![0; FILE as usize * LEN];
    run(rig.store.read(id, 0, &mut bytes)).unwrap_or_else(|e| panic!("{why}: {e}"));
    bytes
}

fn slow(rig: &Rig, polls: u64) {
    rig.kv.set_faults(kv_mem::Faults { delay_polls: polls, ..Default::default() });
    rig.medium.set_faults(medium_mem::Faults { delay_polls: polls, ..Default::default() });
}

/// Power loss and kill -9 between and amid operations, amid syncs, amid recovery.
#[test]
fn nothing_synced_is_lost_and_no_block_is_mixed() {
    seeds::run(0..100, |seed| {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(seed);
        let mut histories = [History::new(), History::new()];
        slow(&rig, seed % 5);
        for step in 0..60 {
            let why = format!("seed {seed} step {step}");
            let which = rng.below(2);
            let (id, history) = (ObjectId(which), &mut histories[which as usize]);
            let op = op(&mut rng);
            if !rng.chance(1, 12) {
                run(apply(&rig, id, &op)).unwrap_or_else(|e| panic!("{why}: {e}"));
                history.apply(&op);
                if rng.chance(1, 5) {
                    run(rig.store.sync()).unwrap();
                    histories.iter_mut().for_each(|h| h.may.clear());
                }
                if rng.chance(1, 15) {
                    run(rig.store.tidy()).unwrap();
                    histories.iter_mut().for_each(|h| h.may.clear());
                }
                continue;
            }
            // The end comes amid an operation or a sync.
            let polls = rng.below(12);
            let amid_sync = rng.chance(1, 3);
            if amid_sync {
                poll_for(polls, rig.store.sync());
            } else if poll_for(polls, apply(&rig, id, &op)).is_some() {
                history.apply(&op);
            }
            let killed = rng.chance(1, 3);
            let end = |rig: &Rig| {
                if !killed {
                    rig.kv.crash();
                    rig.medium.crash();
                }
                slow(rig, seed % 5);
            };
            end(&rig);
            // Recovery is interrupted too, some times.
            for _ in 0..rng.below(3) {
                let opened = Objects::open(rig.kv.clone(), rig.medium.clone(), rig.options);
                poll_for(rng.below(40), opened);
                if rng.chance(1, 2) && !killed {
                    end(&rig);
                }
            }
            let recovered = rig.reopen();
            assert_eq!(recovered.lost, 0, "{why}");
            rig.check(&why);
            for (id, history) in (0..).map(ObjectId).zip(&mut histories) {
                let found = read_all(&rig, id, &why);
                let interrupted = !amid_sync && id.0 == which;
                history.survive_with(interrupted.then_some(&op), &found, killed, &why);
            }
        }
    });
}
