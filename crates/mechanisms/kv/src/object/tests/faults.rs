//! The full volume, the failing device, the flipped bit, the caller who walks away.

use super::*;
use outboard_base::task::join_all;
use outboard_base::task::poll_once;

fn small(seed: u64) -> Rig {
    let kv = Arc::new(MemKv::new(seed));
    let medium = Arc::new(MemMedium::new(seed));
    let options = Options { capacity: 2 << 20, reserve: 128 << 10, ..options() };
    let (store, _) = run(Objects::open(kv.clone(), medium.clone(), options)).unwrap();
    Rig { kv, medium, store, options }
}

fn write(rig: &Rig, id: u64, offset: u64, data: &[u8]) -> Result<i64, KvError> {
    run(apply(rig, ObjectId(id), &Op::Write { offset, data: data.to_vec() }))
}

/// Grows objects until there is no space; how many blocks they got.
fn fill(rig: &Rig) -> u64 {
    (0..).find(|at| write(rig, 1, at * BLOCK, &[7; LEN]).is_err()).unwrap()
}

#[test]
fn a_full_volume_overwrites_deletes_and_works_again() {
    let rig = small(1);
    let got = fill(&rig);
    // All but the header and the reserve.
    assert_eq!(got, (2 << 20) / BLOCK - 1 - (128 << 10) / BLOCK);
    assert_eq!(rig.store.space().free, 0);
    assert_eq!(write(&rig, 2, 0, b"x"), Err(KvError::NoSpace));
    // Overwriting takes a block before it gives one back: that is what the reserve is for, over and
    // over, the syncs that free the old ones coming by themselves.
    for round in 0..200u8 {
        assert_eq!(write(&rig, 1, u64::from(round) % got * BLOCK, &[round; LEN]), Ok(0));
    }
    assert_eq!(write(&rig, 1, 100, &[9; 20]), Ok(0), "parts of blocks too");
    assert_eq!(run(apply(&rig, ObjectId(1), &Op::Punch { from: 50, to: BLOCK - 50 })), Ok(0));
    let deleted = run(apply(&rig, ObjectId(1), &Op::Punch { from: BLOCK, to: u64::MAX }));
    assert_eq!(deleted, Ok(1 - i64::try_from(got).unwrap()));
    assert_eq!(write(&rig, 2, 0, &[1; 4 * LEN]), Ok(4), "the freed is there at once");
    run(rig.store.tidy()).unwrap();
    rig.check("after all that");
    assert_eq!(rig.store.space().used, 5 * BLOCK);
}

/// A volume that was full stayed so until it was opened with another size.
#[test]
fn a_full_volume_that_may_grow_goes_on() {
    let rig = small(3);
    let got = fill(&rig);
    let (old, new) = (2 << 20, 6 << 20);
    assert_eq!(rig.store.raise_capacity(1 << 20), (old, old), "it never becomes smaller");
    assert_eq!(write(&rig, 2, 0, b"x"), Err(KvError::NoSpace));
    assert_eq!(rig.store.raise_capacity(new), (old, new));
    assert_eq!(rig.store.space().free, new - old);
    assert_eq!(write(&rig, 1, got * BLOCK, &[8; LEN]), Ok(1));
    let more = (1..).find(|n| write(&rig, 1, (got + n) * BLOCK, &[7; LEN]).is_err()).unwrap();
    assert_eq!(more, (new - old) / BLOCK);
    rig.check("grown");
}

#[test]
fn a_disk_that_cannot_grow_is_a_full_volume() {
    let rig = small(2);
    let limit = medium_mem::Faults { len_max: 1 << 20, ..Default::default() };
    rig.medium.set_faults(limit);
    let got = fill(&rig);
    assert_eq!(got, (1 << 20) / BLOCK - 1);
    assert_eq!(write(&rig, 2, 0, b"x"), Err(KvError::NoSpace));
    rig.medium.set_faults(medium_mem::Faults::default());
    run(rig.store.tidy()).unwrap();
    assert_eq!(write(&rig, 2, 0, b"x"), Ok(1), "the disk has room again, and tidying finds out");
    rig.check("grown");
}

#[test]
fn fallocated_space_is_there_when_the_volume_is_full() {
    let rig = small(3);
    let allocated = run(apply(&rig, ObjectId(9), &Op::Allocate { from: 0, to: 20 * BLOCK }));
    assert_eq!(allocated, Ok(20));
    fill(&rig);
    for at in 0..20 {
        assert_eq!(write(&rig, 9, at * BLOCK, &[3; LEN]), Ok(0));
    }
    let mut out = vec![0; 20 * LEN];
    run(rig.store.read(ObjectId(9), 0, &mut out)).unwrap();
    assert!(out.iter().all(|b| *b == 3));
}

/// What was put aside is there for whom it was promised to, however full others fill the volume;
/// and nobody is promised what is not there.
#[test]
fn reserved_space_is_there_when_the_volume_is_full() {
    let rig = small(31);
    let common = fill(&small(31));
    assert_eq!(run(rig.store.reserve(common + 1)), Err(KvError::NoSpace));
    run(rig.store.reserve(20)).unwrap();
    assert_eq!(fill(&rig), common - 20);
    assert_eq!((rig.store.space().free, run(rig.store.reserve(1))), (0, Err(KvError::NoSpace)));
    let put = |at: u64, room: Room| {
        let written = run(rig.store.write_out(ObjectId(9), at * BLOCK, &[3; LEN], room))?;
        let mut batch = Batch::new();
        let staged = run(rig.store.place(ObjectId(9), vec![written], &mut batch)).unwrap();
        run(rig.kv.commit(batch, Durability::Answered)).unwrap();
        staged.committed();
        Ok(())
    };
    assert_eq!(put(0, Room::Common), Err(KvError::NoSpace));
    (0..20).for_each(|at| put(at, Room::Reserved).unwrap());
    rig.store.unreserve(20);
    assert_eq!(write(&rig, 1, 0, &[9; LEN]), Ok(0), "the reserve of overwrites is untouched");
    // A disk that is full is not promised either.
    let rig = small(32);
    rig.medium.set_faults(medium_mem::Faults { len_max: 1 << 20, ..Default::default() });
    assert_eq!(run(rig.store.reserve((1 << 20) / BLOCK)), Err(KvError::NoSpace));
    run(rig.store.reserve((1 << 20) / BLOCK - 1)).unwrap();
    assert_eq!(write(&rig, 1, 0, b"x"), Err(KvError::NoSpace));
    rig.check("reserved");
}

#[test]
fn a_flipped_bit_is_an_error_and_never_data() {
    let rig = small(4);
    write(&rig, 1, 0, &[5; 8 * LEN]).unwrap();
    run(rig.store.sync()).unwrap();
    // The blocks lie side by side after the header: block 3 of the file is number 4.
    rig.medium.corrupt(4 * BLOCK + 4711);
    let mut block = [0; LEN];
    assert_eq!(run(rig.store.read(ObjectId(1), 3 * BLOCK, &mut block)), Err(KvError::Corrupt));
    let mut all = vec![0; 8 * LEN];
    assert_eq!(run(rig.store.read(ObjectId(1), 0, &mut all)), Err(KvError::Corrupt));
    assert_eq!(run(rig.store.read(ObjectId(1), 4 * BLOCK, &mut block)), Ok(()));
    // Part of a bad block cannot be written without believing the rest; all of it can.
    assert_eq!(write(&rig, 1, 3 * BLOCK + 1, b"x"), Err(KvError::Corrupt));
    let report = run(rig.store.check(true, |_| ())).unwrap();
    assert_eq!(report.faults, [Fault::BadBlock { id: ObjectId(1), offset: 3 * BLOCK }]);
    assert_eq!(run(rig.store.check(false, |_| ())).unwrap().faults, []);
    assert_eq!(write(&rig, 1, 3 * BLOCK, &[6; LEN]), Ok(0));
    assert_eq!(run(rig.store.read(ObjectId(1), 3 * BLOCK, &mut block)), Ok(()));
    run(rig.store.tidy()).unwrap();
    rig.check("healed");
}

/// A block was written and synced, the process was killed, the block rotted; the next opening took
/// it for a write that never reached the disk, put a hole in its place and found nothing wrong.
#[test]
fn a_synced_block_that_rots_after_a_kill_is_not_taken_back() {
    let mut rig = small(41);
    write(&rig, 1, 0, &[5; 8 * LEN]).unwrap();
    run(rig.store.sync()).unwrap();
    run(rig.store.mark()).unwrap();
    rig.medium.corrupt(4 * BLOCK + 4711);
    assert_eq!(rig.reopen().restored, 0);
    let mut block = [0; LEN];
    assert_eq!(run(rig.store.read(ObjectId(1), 3 * BLOCK, &mut block)), Err(KvError::Corrupt));
    let report = run(rig.store.check(true, |_| ())).unwrap();
    assert_eq!(report.faults, [Fault::BadBlock { id: ObjectId(1), offset: 3 * BLOCK }]);
}

/// Each write between two syncs has a record that says what the sync before proved, and a mark that
/// said the same was written beside it. It is written where no record says so, and only there.
#[test]
fn a_mark_is_written_where_no_record_says_the_same() {
    let mut rig = small(43);
    let mark = index::number_key(index::TAG_MOVES, moves::MARK);
    let marked = |rig: &Rig| run(rig.kv.get(&mark)).unwrap().is_some();
    write(&rig, 1, 0, &[5; 8 * LEN]).unwrap();
    run(rig.store.sync()).unwrap();
    write(&rig, 2, 0, &[6; LEN]).unwrap();
    assert!(rig.store.is_unmarked());
    run(rig.store.mark()).unwrap();
    assert!(!rig.store.is_unmarked() && !marked(&rig), "the second record vouches for the first");
    rig.medium.corrupt(4 * BLOCK + 4711);
    // What vouched is flushed now, and may be retired: its own blocks have no word for them.
    run(rig.store.sync()).unwrap();
    assert!(rig.store.is_unmarked());
    run(rig.store.mark()).unwrap();
    assert!(marked(&rig));
    assert_eq!(rig.reopen().restored, 0);

    let mut rig = small(44);
    write(&rig, 1, 0, &[5; 8 * LEN]).unwrap();
    run(rig.store.sync()).unwrap();
    write(&rig, 2, 0, &[6; LEN]).unwrap();
    run(rig.store.mark()).unwrap();
    rig.medium.corrupt(4 * BLOCK + 4711);
    assert_eq!(rig.reopen().restored, 0, "a kill, the second write not synced");
    let mut block = [0; LEN];
    assert_eq!(run(rig.store.read(ObjectId(1), 3 * BLOCK, &mut block)), Err(KvError::Corrupt));
}

/// What one life says is flushed must not vouch for the records of the next, whose numbers start
/// again: a write of the second life that was never synced is still taken back.
#[test]
fn the_mark_of_one_life_says_nothing_of_the_next() {
    let mut rig = small(42);
    for round in 0..4 {
        write(&rig, 1, round * 8 * BLOCK, &[5; 8 * LEN]).unwrap();
        run(rig.store.sync()).unwrap();
        run(rig.store.mark()).unwrap();
    }
    rig.reopen();
    run(rig.store.tidy()).unwrap();
    assert_eq!(rig.reopen(), Recovered::default());
    write(&rig, 1, 0, &[6; LEN]).unwrap();
    let entry = run(rig.kv.get(&index::page_key(ObjectId(1), 0))).unwrap().unwrap();
    let page = index::Page::decode(ObjectId(1), 0, &entry).unwrap();
    rig.medium.corrupt(page.get(0).block * BLOCK);
    assert_eq!(rig.reopen().restored, 1);
    let mut block = [0; LEN];
    run(rig.store.read(ObjectId(1), 0, &mut block)).unwrap();
    assert_eq!(block, [5; LEN]);
}

#[test]
fn a_corrupt_index_page_is_an_error() {
    let rig = small(5);
    write(&rig, 1, 0, &[5; LEN]).unwrap();
    rig.kv.corrupt(&index::page_key(ObjectId(1), 0));
    let mut block = [0; LEN];
    assert_eq!(run(rig.store.read(ObjectId(1), 0, &mut block)), Err(KvError::Corrupt));
    let report = run(rig.store.check(false, |_| ())).unwrap();
    assert!(report.faults.contains(&Fault::BadPage { id: ObjectId(1), page: 0 }));
}

#[test]
fn a_medium_of_another_store_is_refused() {
    let (one, other) = (small(6), Arc::new(MemMedium::new(0)));
    let options = Options { identity: 8, ..options() };
    run(Objects::open(Arc::new(MemKv::new(0)), other.clone(), options)).unwrap();
    let mixed = run(Objects::open(one.kv.clone(), other, options));
    assert_eq!(mixed.err(), Some(KvError::Corrupt));
}

/// Device errors at random: each is reported, none is turned into wrong data, and once they stop
/// all that was answered is there.
#[test]
fn device_errors_are_errors_and_nothing_else() {
    seeds::run(0..12, |seed| {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(seed);
        let mut model = Model::new();
        rig.medium.set_faults(medium_mem::Faults {
            read_fails: 20,
            write_fails: 10,
            ..Default::default()
        });
        rig.kv.set_faults(kv_mem::Faults { commit_fails: 15, ..Default::default() });
        let mut failed = 0;
        for step in 0..150 {
            let op = op(&mut rng);
            match run(apply(&rig, ObjectId(1), &op)) {
                Ok(_) => model.apply(&op),
                Err(error) => {
                    assert_eq!(error, KvError::Io(outboard_base::Errno::EIO), "seed {seed}");
                    failed += 1;
                }
            }
            let mut out = vec![0; FILE as usize * LEN];
            if run(rig.store.read(ObjectId(1), 0, &mut out)).is_ok() {
                assert!(out == model.bytes, "seed {seed} step {step}");
            }
            if rng.chance(1, 10) {
                // Flushes work; what surrounds them may not.
                let _ = run(rig.store.tidy());
            }
        }
        assert!(failed > 5, "seed {seed}: the faults were there");
        rig.medium.set_faults(medium_mem::Faults::default());
        rig.kv.set_faults(kv_mem::Faults::default());
        run(rig.store.tidy()).unwrap();
        rig.check(&format!("seed {seed}"));
        rig.reopen();
        assert!(read_all(&rig, ObjectId(1), "reopened") == model.bytes, "seed {seed}");
        rig.check(&format!("seed {seed} reopened"));
    });
}

#[test]
fn a_failed_flush_is_final_until_reopened() {
    let mut rig = small(7);
    write(&rig, 1, 0, &[1; LEN]).unwrap();
    rig.medium.set_faults(medium_mem::Faults { flush_fails: true, ..Default::default() });
    assert!(run(rig.store.sync()).is_err());
    rig.medium.set_faults(medium_mem::Faults::default());
    assert!(run(rig.store.sync()).is_err(), "what the failed flush lost, no later one brings back");
    rig.medium.crash();
    rig.kv.crash();
    rig.reopen();
    assert_eq!(run(rig.store.sync()), Ok(()));
    rig.check("reopened");
}

/// The token of a batch whose outcome the caller never told, both ways.
#[test]
fn an_outcome_nobody_told_is_asked_for() {
    let rig = small(8);
    for committed in [true, false] {
        let mut batch = Batch::new();
        let staged = run(rig.store.write(ObjectId(1), 0, &[4; LEN], &mut batch)).unwrap();
        if committed {
            run(rig.kv.commit(batch, Durability::Answered)).unwrap();
        }
        drop(staged);
        run(rig.store.tidy()).unwrap();
        rig.check("resolved");
    }
    assert_eq!(rig.store.space().used, BLOCK);
}

/// Many tasks on objects of their own, interleaved poll by poll with syncs, tidying and a check
/// that runs beside them.
#[test]
fn objects_change_side_by_side() {
    seeds::run(0..10, |seed| {
        let mut rng = Rng::new(seed);
        let rig = Rig::new(seed);
        rig.kv.set_faults(kv_mem::Faults { delay_polls: 3, ..Default::default() });
        rig.medium.set_faults(medium_mem::Faults { delay_polls: 5, ..Default::default() });
        let plans: Vec<Vec<Op>> = (0..5).map(|_| (0..12).map(|_| op(&mut rng)).collect()).collect();
        let mut tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        for (id, plan) in (0..).zip(&plans) {
            let rig = &rig;
            tasks.push(Box::pin(async move {
                let mut model = Model::new();
                for op in plan {
                    apply(rig, ObjectId(id), op).await.unwrap();
                    model.apply(op);
                    let mut out = vec![0; FILE as usize * LEN];
                    rig.store.read(ObjectId(id), 0, &mut out).await.unwrap();
                    assert!(out == model.bytes, "seed {seed} object {id} {op:?}");
                }
            }));
        }
        tasks.push(Box::pin(async {
            for _ in 0..10 {
                rig.store.sync().await.unwrap();
                rig.store.tidy().await.unwrap();
            }
        }));
        tasks.push(Box::pin(async {
            for _ in 0..3 {
                let report = rig.store.check(true, |_| ()).await.unwrap();
                assert_eq!(report.faults, [], "seed {seed}: a check beside the work");
            }
        }));
        while !tasks.is_empty() {
            let at = usize::try_from(rng.below(tasks.len() as u64)).unwrap();
            if poll_once(tasks[at].as_mut()).is_ready() {
                drop(tasks.swap_remove(at));
            }
        }
        drop(tasks);
        run(rig.store.tidy()).unwrap();
        rig.check(&format!("seed {seed}"));
    });
}

/// Writes of one object that go out side by side and are placed together, under one record, are as
/// safe as one by one: through aborts, syncs and power loss.
#[test]
fn writes_placed_together_are_as_safe_as_one_by_one() {
    seeds::run(0..30, |seed| {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(seed);
        let (id, mut history) = (ObjectId(1), History::new());
        for step in 0..40 {
            let why = format!("seed {seed} step {step}");
            let slow = medium_mem::Faults { delay_polls: 4, ..Default::default() };
            rig.medium.set_faults(slow);
            let mut writes = Vec::new();
            let mut block = rng.below(8);
            while block < FILE - 3 {
                let offset = block * BLOCK + rng.below(2) * rng.below(BLOCK);
                let mut data = vec![0; 1 + rng.below(2 * BLOCK) as usize];
                rng.fill(&mut data);
                writes.push((offset, data));
                block += 3 + rng.below(20);
            }
            // The order in which they are ready is nobody's.
            if rng.chance(1, 2) {
                writes.reverse();
            }
            let out =
                writes.iter().map(|(at, data)| rig.store.write_out(id, *at, data, Room::Common));
            let written: Result<Vec<_>, _> = run(join_all(out.collect())).into_iter().collect();
            let mut batch = Batch::new();
            let staged = run(rig.store.place(id, written.unwrap(), &mut batch)).unwrap();
            if rng.chance(1, 8) {
                staged.abort();
                continue;
            }
            run(rig.kv.commit(batch, Durability::Answered)).unwrap();
            staged.committed();
            for (offset, data) in writes {
                history.apply(&Op::Write { offset, data });
            }
            if rng.chance(1, 5) {
                run(rig.store.sync()).unwrap();
                history.may.clear();
            }
            if rng.chance(1, 6) {
                rig.kv.crash();
                rig.medium.crash();
                assert_eq!(rig.reopen().lost, 0, "{why}");
                rig.check(&why);
                history.survive(&read_all(&rig, id, &why), false, &why);
            }
            assert!(read_all(&rig, id, &why) == history.now.bytes, "{why}");
        }
        run(rig.store.tidy()).unwrap();
        rig.check(&format!("seed {seed}"));
    });
}
