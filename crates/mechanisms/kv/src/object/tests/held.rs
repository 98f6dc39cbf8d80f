//! Copies made while the store is written, against what it was when they were begun.

use std::pin::pin;
use std::task::Poll;

use super::*;
use crate::Key;
use outboard_base::task::poll_once;
use outboard_medium::Buf;

/// A copy being made, and what it must become.
struct Copying {
    held: Held,
    after: Option<Key>,
    pairs_done: bool,
    at: u64,
    kv: Arc<MemKv>,
    medium: Arc<MemMedium>,
    models: [Model; 3],
}

impl Copying {
    fn begin(rig: &Rig, models: &[Model; 3]) -> Copying {
        let held = rig.store.hold().unwrap();
        let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(1)));
        run(medium.grow(held.medium_len())).unwrap();
        let models = models.clone();
        Copying { held, after: None, pairs_done: false, at: 0, kv, medium, models }
    }

    /// A little more of it; whether that was all. An error if it was given up.
    fn step(&mut self, rig: &Rig, rng: &mut Rng) -> Result<bool, GivenUp> {
        if !self.pairs_done && rng.chance(1, 2) {
            let pairs = self.held.pairs().unwrap().scan(self.after.as_deref(), 5).unwrap();
            self.pairs_done = pairs.len() < 5;
            let mut batch = Batch::new();
            for (key, value) in pairs {
                self.after = Some(key.clone());
                batch.put(key, value);
            }
            run(self.kv.commit(batch, Durability::Answered)).unwrap();
        }
        let Some(bytes) = self.held.next_run(self.at, (1 + rng.below(9)) * BLOCK)? else {
            return Ok(self.pairs_done);
        };
        let len = usize::try_from(bytes.end - bytes.start).unwrap();
        let (read, buf) = run(rig.medium.read(bytes.start, Buf::zeroed(len)));
        read.unwrap();
        run(self.medium.write(bytes.start, buf)).0.unwrap();
        self.at = bytes.end;
        Ok(false)
    }

    /// The finished copy is a store, and the one of its instant.
    fn check(self, options: Options, why: &str) {
        let Copying { kv, medium, models, .. } = self;
        let opened = run(Objects::open(kv.clone(), medium.clone(), options));
        let (store, recovered) = opened.unwrap_or_else(|error| panic!("{why}: {error}"));
        assert_eq!((recovered.restored, recovered.lost), (0, 0), "{why}");
        let copy = Rig { kv, medium, store, options };
        copy.check(why);
        for (id, model) in (0..).map(ObjectId).zip(&models) {
            assert!(read_all(&copy, id, why) == model.bytes, "{why}: object {}", id.0);
        }
    }
}

#[test]
fn a_copy_is_the_store_of_one_instant() {
    let mut finished = 0;
    seeds::run(0..24, |seed| {
        let mut rng = Rng::new(seed);
        let rig = Rig::new(seed);
        slow(&rig, seed % 4);
        let mut models = [Model::new(), Model::new(), Model::new()];
        let mut copying: Option<Copying> = None;
        for step in 0..200 {
            let why = format!("seed {seed} step {step}");
            let which = rng.below(3);
            let op = op(&mut rng);
            run(apply(&rig, ObjectId(which), &op)).unwrap_or_else(|e| panic!("{why}: {e}"));
            models[which as usize].apply(&op);
            match rng.below(8) {
                0 => run(rig.store.sync()).unwrap(),
                1 => run(rig.store.tidy()).unwrap(),
                2 if copying.is_none() => copying = Some(Copying::begin(&rig, &models)),
                3 if rng.chance(1, 10) => copying = None,
                4 if rng.chance(1, 4) => {
                    let report = run(rig.store.check(true, |_| ())).unwrap();
                    assert_eq!(report.faults, [], "{why}: kept blocks are nobody's fault");
                }
                _ => {}
            }
            let Some(copy) = &mut copying else { continue };
            assert!(rig.store.hold().is_err_and(|e| e == KvError::Io(Errno::EBUSY)), "{why}");
            match copy.step(&rig, &mut rng) {
                Ok(false) => {}
                Ok(true) => {
                    finished += 1;
                    copying.take().unwrap().check(rig.options, &format!("{why}, the copy"));
                }
                Err(GivenUp) => panic!("{why}: there is room"),
            }
        }
        drop(copying);
        run(rig.store.tidy()).unwrap();
        rig.check(&format!("seed {seed} end: nothing is kept"));
    });
    // A seed that is repeated alone need not finish one.
    assert!(finished != 0 || std::env::var_os("OUTBOARD_SEED").is_some(), "no copy was finished");
}

/// Blocks that a copy keeps are the first to go when there is no other room: overwrites that
/// succeed without a copy succeed beside one, and the copy learns that it is none.
#[test]
fn a_full_store_gives_the_copy_up_and_refuses_nobody() {
    let rig = Rig::new(0);
    let whole = |byte: u8| Op::Write { offset: 0, data: vec![byte; 1 << 20] };
    let mut filled = 0;
    while run(apply(&rig, ObjectId(filled), &whole(1))).is_ok() {
        filled += 1;
    }
    assert!(filled > 8, "a store of {filled} MiB");
    let held = rig.store.hold().unwrap();
    assert!(held.next_run(0, BLOCK).is_ok());
    let used = rig.store.space().used;
    for id in 0..filled {
        let block = Op::Write { offset: 0, data: vec![2; 10 * LEN] };
        assert_eq!(run(apply(&rig, ObjectId(id), &block)), Ok(0), "object {id}");
    }
    assert_eq!(held.next_run(0, BLOCK), Err(GivenUp));
    // Another may be made at once, and the end of the first is not its end.
    let again = rig.store.hold().unwrap();
    drop(held);
    assert!(again.next_run(0, BLOCK).is_ok());
    drop(again);
    run(rig.store.tidy()).unwrap();
    assert_eq!(rig.store.space().used, used);
    rig.check("after copies that were given up");
}

/// A write to a full volume failed beside a copy and a busy program: that one's freed blocks always
/// waited for the next sync, so the store asked for one again and again, never called itself full,
/// and kept for the copy what the write needed.
#[test]
fn a_full_store_gives_the_copy_up_beside_who_frees_blocks_all_the_time() {
    seeds::run(0..8, |seed| {
        let rig = Rig::new(2 * seed);
        let mut filled = 0;
        let mib = Op::Write { offset: 0, data: vec![1; 1 << 20] };
        while run(apply(&rig, ObjectId(filled), &mib)).is_ok() {
            filled += 1;
        }
        let last = |offset| Op::Write { offset, data: vec![1; LEN] };
        let mut blocks = (0..).step_by(LEN).map(last);
        while run(apply(&rig, ObjectId(filled), &blocks.next().unwrap())).is_ok() {}
        run(rig.store.sync()).unwrap();
        let held = rig.store.hold().unwrap();
        let delays = kv_mem::Faults { delay_polls: 20, ..kv_mem::Faults::default() };
        rig.kv.set_faults(delays);
        let few = Op::Write { offset: 0, data: vec![2; 100 * LEN] };
        let mut write = pin!(apply(&rig, ObjectId(0), &few));
        let blocks = (1..filled).flat_map(|id| (0..1 << 20).step_by(LEN).map(move |at| (id, at)));
        let mut outcome = Poll::Pending;
        for (freed, (id, from)) in blocks.enumerate() {
            // One block at a time, so that there is never too much for the next sync.
            run(apply(&rig, ObjectId(id), &Op::Punch { from, to: from + BLOCK })).unwrap();
            outcome = poll_once(write.as_mut());
            if outcome.is_ready() {
                println!("seed {seed}: {freed} blocks were freed meanwhile");
                break;
            }
        }
        assert_eq!(outcome, Poll::Ready(Ok(0)), "seed {seed}");
        assert_eq!(held.next_run(0, BLOCK), Err(GivenUp), "seed {seed}");
    });
}

/// What is kept from use shrinks as the copy goes on, and is gone with it.
#[test]
fn what_was_read_is_free_again() {
    let rig = Rig::new(0);
    let write = |byte: u8| Op::Write { offset: 0, data: vec![byte; 32 * LEN] };
    let used = |rig: &Rig| rig.store.space().used / BLOCK;
    run(apply(&rig, ObjectId(0), &write(1))).unwrap();
    run(rig.store.sync()).unwrap();
    let held = rig.store.hold().unwrap();
    run(apply(&rig, ObjectId(0), &write(2))).unwrap();
    run(rig.store.sync()).unwrap();
    assert_eq!(used(&rig), 64, "the old blocks and the new");
    // Block 0 is the header's: 17 blocks are 16 of the object.
    let first = held.next_run(0, 17 * BLOCK).unwrap().unwrap();
    assert_eq!((first.start, first.end), (0, 17 * BLOCK));
    let second = held.next_run(first.end, 64 * BLOCK).unwrap().unwrap();
    assert_eq!((second.end - second.start) / BLOCK, 16, "what was written later is not in it");
    assert_eq!(used(&rig), 48);
    assert_eq!(held.next_run(second.end, BLOCK), Ok(None));
    assert_eq!(used(&rig), 32);
    drop(held);
    rig.check("at the end");
}
