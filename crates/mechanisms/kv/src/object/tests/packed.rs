//! Blocks of file packed into fewer of the medium: what is saved, who holds what is shared, and
//! what is promised to those who were given blocks of their own.

use super::*;

fn packing() -> Rig {
    let rig = Rig::new(1);
    assert_eq!(rig.options.compression, Compression::Lz4);
    rig
}

fn write(rig: &Rig, id: u64, offset: u64, data: &[u8]) -> Result<i64, KvError> {
    run(apply(rig, ObjectId(id), &Op::Write { offset, data: data.to_vec() }))
}

/// `blocks` blocks a third of which is noise.
fn text(seed: u64, blocks: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = vec![0; blocks * LEN];
    bytes.chunks_mut(LEN).for_each(|block| rng.fill(&mut block[..LEN / 3]));
    bytes
}

fn read(rig: &Rig, id: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0xEE; len];
    run(rig.store.read(ObjectId(id), offset, &mut out)).unwrap();
    out
}

fn page(rig: &Rig, id: u64) -> index::Page {
    let value = run(rig.kv.get(&index::page_key(ObjectId(id), 0))).unwrap().unwrap();
    index::Page::decode(ObjectId(id), 0, &value).unwrap()
}

#[test]
fn text_takes_less_space_and_fewer_operations() {
    let rig = packing();
    let data = text(7, 64);
    let before = rig.medium.counts();
    assert_eq!(write(&rig, 1, 0, &data), Ok(64), "blocks of file are counted as ever");
    assert_eq!(rig.medium.counts().writes - before.writes, 2, "one for each index page");
    let Packing { plain, taken, sent } = rig.store.packing();
    assert_eq!(plain, data.len() as u64);
    assert!(taken * 2 < plain && sent <= taken, "{plain} {taken} {sent}");
    assert_eq!(rig.store.space().used, taken);
    let before = rig.medium.counts();
    assert!(read(&rig, 1, 0, data.len()) == data);
    assert_eq!(rig.medium.counts().reads - before.reads, 1, "the pieces lie side by side");
    for at in [0, 5 * LEN + 17, 31 * LEN + 8000, 63 * LEN] {
        assert!(read(&rig, 1, at as u64, 192) == data[at..at + 192]);
    }
    assert!(*run(rig.store.read_lent(ObjectId(1), BLOCK, 3 * LEN)).unwrap() == data[LEN..4 * LEN]);
    rig.check("text");
    let report = run(rig.store.check(true, |found| assert_eq!(found.blocks, 64))).unwrap();
    assert_eq!((report.blocks * BLOCK, report.filled), (taken, 64));
}

/// What does not shrink lies as it would in a store that does not pack, byte for byte.
#[test]
fn noise_is_stored_plain() {
    let (packs, plain) = (packing(), Rig::new(2));
    let mut noise = vec![0; 64 * LEN];
    Rng::new(9).fill(&mut noise);
    for rig in [&packs, &plain] {
        assert_eq!(write(rig, 1, 0, &noise), Ok(64));
        assert_eq!(rig.store.packing().sent, 64 * BLOCK);
    }
    assert_eq!(page(&packs, 1), page(&plain, 1));
    let (one, other) = (packs.medium.counts(), plain.medium.counts());
    assert_eq!((one.reads, one.writes), (other.reads, other.writes));
    // A block by itself saves none.
    assert_eq!(write(&packs, 2, 0, &[1; LEN]), Ok(1));
    assert!(page(&packs, 2).get(0).is_whole());
}

#[test]
fn a_shared_block_is_free_when_the_last_has_left() {
    let mut rig = packing();
    assert_eq!(write(&rig, 1, 0, &text(7, 8)), Ok(8));
    run(rig.store.tidy()).unwrap();
    let packed = rig.store.space().used / BLOCK;
    assert!(packed <= 4, "{packed}");
    for at in 0..8 {
        // One by one: each takes a block of its own, and the shared ones stay meanwhile.
        assert_eq!(write(&rig, 1, at * BLOCK, &[at as u8; LEN]), Ok(0));
        run(rig.store.tidy()).unwrap();
        rig.check("overwritten");
        if at == 3 {
            // The books are the same when read anew.
            rig.reopen();
            rig.check("reopened");
        }
    }
    assert_eq!(rig.store.space().used, 8 * BLOCK);
    // The same by a hole, with the record of the change read by the next life.
    assert_eq!(write(&rig, 2, 0, &text(8, 8)), Ok(8));
    let punched = run(apply(&rig, ObjectId(2), &Op::Punch { from: 0, to: 3 * BLOCK }));
    assert_eq!(punched, Ok(-3));
    rig.reopen();
    rig.check("punched");
    assert!(read(&rig, 2, 3 * BLOCK, 5 * LEN) == text(8, 8)[3 * LEN..]);
    run(apply(&rig, ObjectId(2), &Op::Punch { from: 0, to: u64::MAX })).unwrap();
    run(rig.store.tidy()).unwrap();
    assert_eq!(rig.store.space().used, 8 * BLOCK);
}

/// A block lost its place in a shared one to a write that never reached the medium. The others
/// there were taken for its new owners, so that its bytes were given up.
#[test]
fn a_lost_overwrite_goes_back_to_where_others_still_lie() {
    let mut rig = packing();
    let data = text(7, 8);
    write(&rig, 1, 0, &data).unwrap();
    run(rig.store.tidy()).unwrap();
    write(&rig, 1, 2 * BLOCK, &[9; LEN]).unwrap();
    let fresh = page(&rig, 1).get(2);
    assert!(fresh.is_whole());
    rig.medium.corrupt(fresh.block * BLOCK);
    let recovered = rig.reopen();
    assert_eq!((recovered.restored, recovered.lost), (1, 0));
    assert!(read(&rig, 1, 0, data.len()) == data);
    rig.check("restored");
}

/// `fallocate` promises space to every later write, so a block given by it is never shared, and
/// overwriting it goes on being possible on a full volume.
#[test]
fn blocks_promised_stay_whole() {
    let rig = packing();
    let allocate = Op::Allocate { from: 0, to: 16 * BLOCK };
    assert_eq!(run(apply(&rig, ObjectId(9), &allocate)), Ok(16));
    assert_eq!(write(&rig, 9, 0, &text(1, 16)), Ok(0));
    assert!(page(&rig, 9).entries.iter().take(16).all(|entry| entry.is_whole()));
    let mut noise = vec![0; LEN];
    Rng::new(5).fill(&mut noise);
    let full = (0..).find(|at| write(&rig, 1, at * BLOCK, &noise).is_err()).unwrap();
    assert!(full > 100);
    for seed in 2..30 {
        assert_eq!(write(&rig, 9, 0, &text(seed, 16)), Ok(0));
    }
    assert!(read(&rig, 9, 0, 16 * LEN) == text(29, 16));
    run(rig.store.tidy()).unwrap();
    rig.check("full");
}

/// Overwriting what is packed takes more than it gives, so it may not use up what is kept for those
/// who give a block for a block; and a full volume can be emptied.
#[test]
fn overwriting_packed_blocks_leaves_the_reserve_alone() {
    let rig = packing();
    let (data, mut noise) = (text(3, 64), vec![0; LEN]);
    Rng::new(5).fill(&mut noise);
    let objects = (0..).find(|id| write(&rig, *id, 0, &data).is_err()).unwrap();
    assert!(objects > 2 * (16 << 20) / data.len() as u64, "{objects} are more than fit unpacked");
    while write(&rig, 1000, rig.store.space().used, &noise).is_ok() {}
    let spare = (0..64).filter(|at| write(&rig, 1, at * BLOCK, &noise).is_ok()).count();
    assert_eq!(spare, 0);
    run(apply(&rig, ObjectId(2), &Op::Punch { from: 100, to: u64::MAX })).unwrap();
    run(rig.store.tidy()).unwrap();
    assert!(read(&rig, 2, 0, 100) == data[..100]);
    assert_eq!(write(&rig, 1, 0, &noise), Ok(0));
    rig.check("emptied");
}

/// A program appended 128 KiB less a page each time. What did not shrink once made the block where
/// it ended whole, so that the next write, which began in that block, stayed plain, and the next.
#[test]
fn a_write_that_begins_in_a_whole_block_is_packed_behind_it() {
    let rig = packing();
    let mut noise = vec![0; 15 * LEN + LEN / 2];
    Rng::new(5).fill(&mut noise);
    write(&rig, 1, 0, &noise).unwrap();
    let edge = page(&rig, 1).get(15);
    assert!(edge.is_whole());
    let data = text(4, 12);
    assert_eq!(write(&rig, 1, noise.len() as u64, &data), Ok(12));
    let after = page(&rig, 1);
    assert!(after.get(15).is_whole() && after.get(15) != edge);
    assert!(after.entries.iter().skip(16).take(12).all(|entry| !entry.is_whole()));
    assert!(read(&rig, 1, 0, noise.len() + data.len()) == [noise, data].concat());
    run(rig.store.tidy()).unwrap();
    rig.check("appended");
}

/// A flipped bit anywhere in a packed block's sectors is an error, and the others' bytes are right.
#[test]
fn a_flipped_bit_is_found() {
    let rig = packing();
    let data = text(7, 8);
    write(&rig, 1, 0, &data).unwrap();
    run(rig.store.sync()).unwrap();
    let sectors = page(&rig, 1).get(3).sectors();
    rig.medium.corrupt(sectors.start * 512 + 100);
    let mut block = [0; LEN];
    assert_eq!(run(rig.store.read(ObjectId(1), 3 * BLOCK, &mut block)), Err(KvError::Corrupt));
    for at in [0, 2, 4, 7] {
        assert!(read(&rig, 1, at * BLOCK, LEN) == data[at as usize * LEN..][..LEN]);
    }
    let report = run(rig.store.check(true, |_| ())).unwrap();
    assert_eq!(report.faults, [Fault::BadBlock { id: ObjectId(1), offset: 3 * BLOCK }]);
}

/// Entries of one page may share a block but no sector; those of two pages not even that.
#[test]
fn the_check_knows_what_may_be_shared() {
    let rig = packing();
    write(&rig, 1, 0, &text(7, 8)).unwrap();
    write(&rig, 2, 0, &text(8, 8)).unwrap();
    run(rig.store.tidy()).unwrap();
    let sound = page(&rig, 1);
    let put = |id: u64, page: &index::Page| {
        let mut batch = Batch::new();
        page.stage(ObjectId(id), 0, &mut batch);
        run(rig.kv.commit(batch, Durability::Answered)).unwrap();
        run(rig.store.check(false, |_| ())).unwrap().faults
    };
    let mut overlapping = sound.clone();
    let second = sound.get(1);
    overlapping.set(1, index::Entry { at: second.at - 1, saved: second.saved, ..second });
    let faults = put(1, &overlapping);
    assert_eq!(faults, [Fault::UsedTwice { block: second.block, id: ObjectId(1) }]);
    assert_eq!(put(1, &sound), []);
    let mut foreign = page(&rig, 2);
    foreign.set(20, sound.get(1));
    let faults = put(2, &foreign);
    assert!(faults.iter().all(|f| matches!(f, Fault::UsedTwice { id: ObjectId(2), .. })));
    assert!(!faults.is_empty());
}

/// A store that packs is of another format, from before its first packed block on, for good; one
/// that does not is readable by who knows nothing of it.
#[test]
fn the_format_says_whether_blocks_may_be_packed() {
    let format =
        |rig: &Rig| run(rig.kv.get(&index::number_key(index::TAG_HEAD, 0))).unwrap().unwrap()[8];
    let mut rig = Rig::new(2);
    assert_eq!(format(&rig), 1);
    write(&rig, 1, 0, &text(1, 8)).unwrap();
    rig.options = options_of(1);
    rig.reopen();
    assert_eq!(format(&rig), 2);
    write(&rig, 2, 0, &text(2, 8)).unwrap();
    rig.options = options_of(2);
    rig.reopen();
    assert_eq!(format(&rig), 2);
    assert!(read(&rig, 1, 0, 8 * LEN) == text(1, 8) && read(&rig, 2, 0, 8 * LEN) == text(2, 8));
    assert_eq!(format(&packing()), 2);
    rig.check("turned on and off");
}

/// Files of two blocks packed into one were cut in the middle of the second, which then took a
/// block and gave none back. On a full volume that used up the reserve, and blocks given by
/// `fallocate` could not be written any more.
#[test]
fn cutting_packed_blocks_leaves_room_for_what_was_promised() {
    let rig = packing();
    let allocate = Op::Allocate { from: 0, to: BLOCK };
    assert_eq!(run(apply(&rig, ObjectId(9999), &allocate)), Ok(1));
    let files = rig.options.reserve / BLOCK + 2;
    for id in 1..=files {
        assert_eq!(write(&rig, id, 0, &text(id, 2)), Ok(2));
        assert!(!page(&rig, id).get(1).is_whole());
    }
    let mut noise = vec![0; LEN];
    Rng::new(5).fill(&mut noise);
    (0..).find(|at| write(&rig, 10_000, at * BLOCK, &noise).is_err()).unwrap();
    let cut = |id: &u64| {
        let to_middle = Op::Punch { from: BLOCK + 100, to: u64::MAX };
        run(apply(&rig, ObjectId(*id), &to_middle))
    };
    let refused: Vec<_> = (1..=files).filter_map(|id| cut(&id).err()).collect();
    assert!(refused.iter().all(|error| *error == KvError::NoSpace));
    assert!((refused.len() as u64) < files, "some of the reserve is theirs");
    for _ in 0..3 {
        assert_eq!(write(&rig, 9999, 0, &noise), Ok(0), "{} were refused", refused.len());
    }
    // Whole blocks go as ever, and with them there is room again.
    for id in 1..=files {
        run(apply(&rig, ObjectId(id), &Op::Punch { from: BLOCK, to: u64::MAX })).unwrap();
    }
    run(apply(&rig, ObjectId(10_000), &Op::Punch { from: 0, to: u64::MAX })).unwrap();
    run(rig.store.tidy()).unwrap();
    rig.check("cut");
}
