use outboard_base::task::{poll_for, run};

use outboard_base::{Rng, Time};

use super::super::claim::{Me, Taken, Taking, Terms, Wanted};
use super::super::mem::{Faults, MemCluster, MemPool};
use super::*;

fn open(cluster: &MemCluster) -> Striped<MemPool> {
    let pool = Arc::new(cluster.client());
    let me = Me { name: "test".into(), place: 1 };
    let taken = run(Taking::new(me, Wanted::OrNew(1), Terms::default()).step(&pool, Time(0)));
    let Ok(Taken::Mine(claim)) = taken else { panic!("{taken:?}") };
    run(Striped::open(pool, &claim)).unwrap()
}

fn buf(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    buf
}

const PAGE: usize = ALIGN;

/// Writes and reads across objects, side by side, against one array; then as another owner.
#[test]
fn it_agrees_with_an_array() {
    for seed in 0..10 {
        let mut rng = Rng::new(seed);
        let cluster = MemCluster::new(seed);
        cluster.set_faults(Faults { delay_polls: 5, ..Faults::default() });
        let medium = open(&cluster);
        assert!(medium.is_empty());
        let len = 3 * STRIPE;
        run(medium.grow(len)).unwrap();
        let mut model = vec![0; usize::try_from(len).unwrap()];
        let pages = len / PAGE as u64;
        for step in 0..60 {
            // Around the borders of objects.
            let near = (1 + rng.below(2)) * (STRIPE / PAGE as u64);
            let first = (near + rng.below(40)).saturating_sub(20).min(pages - 1);
            let count = 1 + rng.below((pages - first).min(30));
            let (at, size) = (first * PAGE as u64, usize::try_from(count).unwrap() * PAGE);
            let place = usize::try_from(at).unwrap();
            if rng.chance(1, 2) {
                run(medium.write(at, buf(size, step))).0.unwrap();
                model[place..place + size].fill(step);
            } else {
                let (read, buf) = run(medium.read(at, buf(size, 77)));
                read.unwrap();
                assert!(buf[..] == model[place..place + size], "seed {seed}, step {step}");
            }
        }
        assert_eq!(run(medium.flush()), Ok(()));
        let next = open(&cluster);
        assert_eq!(next.len(), len);
        for at in [0, STRIPE - PAGE as u64, STRIPE, len - PAGE as u64] {
            let place = usize::try_from(at).unwrap();
            let (read, buf) = run(next.read(at, buf(PAGE, 77)));
            read.unwrap();
            assert!(buf[..] == model[place..place + PAGE], "seed {seed}, {at} later");
        }
        assert!(run(medium.write(0, buf(PAGE, 1))).0.is_err(), "fenced");
        assert_eq!(run(next.read(len, buf(PAGE, 0))).0, Err(Errno::EIO));
        assert_eq!(run(next.write(len, buf(PAGE, 0))).0, Err(Errno::EIO));
        assert_eq!(run(next.write(1, buf(PAGE, 0))).0, Err(Errno::EIO));
    }
}

#[test]
fn a_write_in_doubt_fails_every_flush() {
    let cluster = MemCluster::new(1);
    let medium = open(&cluster);
    run(medium.grow(STRIPE)).unwrap();
    cluster.set_faults(Faults { gone: true, ..Faults::default() });
    assert_eq!(run(medium.read(0, buf(PAGE, 0))).0, Err(Errno::EIO));
    cluster.set_faults(Faults::default());
    assert_eq!(run(medium.flush()), Ok(()), "a read leaves nothing in doubt");
    cluster.set_faults(Faults { gone: true, ..Faults::default() });
    assert_eq!(run(medium.write(0, buf(PAGE, 1))).0, Err(Errno::EIO));
    cluster.set_faults(Faults::default());
    assert_eq!(run(medium.flush()), Err(Errno::EIO));
    assert_eq!(run(medium.flush()), Err(Errno::EIO), "it is final");
    assert!(medium.is_poisoned());
    assert_eq!(run(open(&cluster).flush()), Ok(()), "until the next life");
}

/// A write whose future was dropped is over when the next flush has ended: nothing of it lands on
/// what is written afterwards.
#[test]
fn a_flush_waits_for_dropped_writes() {
    let mut polls = 0;
    for seed in 0..200 {
        let cluster = MemCluster::new(seed);
        let medium = open(&cluster);
        run(medium.grow(STRIPE)).unwrap();
        cluster.set_faults(Faults { delay_polls: 8, ..Faults::default() });
        polls += u32::from(poll_for(2, medium.write(0, buf(PAGE, 1))).is_none());
        run(medium.flush()).unwrap();
        run(medium.write(0, buf(PAGE, 2))).0.unwrap();
        for _ in 0..50 {
            let (read, buf) = run(medium.read(0, buf(PAGE, 0)));
            assert!(read.is_ok() && buf[0] == 2, "seed {seed}");
        }
    }
    assert!(polls > 50, "{polls} were dropped only");
}

/// Two flushes at once both took what was dropped off one count, which then said "none" of the next
/// write that was dropped: a flush did not wait for it, and it landed on what came after.
#[test]
fn flushes_at_once_forget_no_dropped_write() {
    let mut dropped = 0;
    for seed in 0..200 {
        let cluster = MemCluster::new(seed);
        let medium = open(&cluster);
        run(medium.grow(STRIPE)).unwrap();
        cluster.set_faults(Faults { delay_polls: 8, ..Faults::default() });
        for round in 0..4 {
            let cut = poll_for(2, medium.write(0, buf(PAGE, 1))).is_none();
            dropped += u32::from(cut);
            let flushes = join_all(vec![medium.flush(), medium.flush()]);
            assert_eq!(run(flushes), [Ok(()), Ok(())]);
            run(medium.write(0, buf(PAGE, 2))).0.unwrap();
            for _ in 0..30 {
                let (read, buf) = run(medium.read(0, buf(PAGE, 0)));
                assert!(read.is_ok() && buf[0] == 2, "seed {seed}, round {round}");
            }
        }
    }
    assert!(dropped > 200, "{dropped} were dropped only");
}

/// What is expected is read once, and given without another way to the pool; however long it takes,
/// and whoever wants it.
#[test]
fn what_was_expected_is_there() {
    for seed in 7..14 {
        let cluster = MemCluster::new(seed);
        cluster.set_faults(Faults { delay_polls: seed % 6, ..Faults::default() });
        let medium = open(&cluster);
        run(medium.grow(4 * STRIPE)).unwrap();
        let mib = 1 << 20;
        for at in 0..6u8 {
            run(medium.write(u64::from(at) * mib, buf(1 << 20, at + 1))).0.unwrap();
        }
        medium.expect(2 * mib..STRIPE + 4096);
        // The last 4 KiB wait for what follows; what is beyond the medium is not asked for.
        assert!(run(medium.expected(STRIPE..STRIPE + 4096)).is_none());
        medium.expect(STRIPE + 4096..2 * STRIPE);
        medium.expect(4 * STRIPE..5 * STRIPE);
        cluster.set_faults(Faults { delay_polls: seed % 6, gone: seed > 9, ..Faults::default() });
        let wanted: Vec<_> = (2..6u64)
            .flat_map(|at| [at, at])
            .map(|at| medium.expected(at * mib..at * mib + mib / 2))
            .collect();
        for (nth, found) in run(join_all(wanted)).into_iter().enumerate() {
            if seed > 9 && seed % 6 > 0 {
                // It was on its way when the pool went.
                continue;
            }
            let found = found.unwrap_or_else(|| panic!("seed {seed}: {nth} is not there"));
            let byte = u8::try_from(nth / 2 + 3).unwrap();
            assert!(found.is_part() && found.iter().all(|b| *b == byte), "seed {seed}, {nth}");
        }
        cluster.set_faults(Faults::default());
        let zeros = run(medium.expected(2 * STRIPE - mib..2 * STRIPE));
        assert!(zeros.is_none_or(|zeros| zeros.iter().all(|byte| *byte == 0)));
        assert!(run(medium.expected(3 * mib..STRIPE + mib)).is_none(), "of two pieces");
        let (read, both) = run(medium.read(3 * mib, buf(2 << 20, 9)));
        assert!(read.is_ok() && both[..1 << 20].iter().all(|b| *b == 4), "seed {seed}");
        assert!(both[1 << 20..].iter().all(|b| *b == 5), "seed {seed}");
    }
}

/// What one page may hold: what was written last, or what was dropped on its way since a flush.
#[derive(Default)]
struct May {
    sure: u8,
    doubt: Vec<u8>,
}

/// Reads ahead, writes, writes that are dropped, and flushes: what was read ahead is never older
/// than what a read may give.
#[test]
fn nothing_old_is_kept_ahead() {
    let (mut given, mut dropped) = (0, 0);
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let cluster = MemCluster::new(seed);
        cluster.set_faults(Faults { delay_polls: 6, ..Faults::default() });
        let medium = open(&cluster);
        run(medium.grow(2 * STRIPE)).unwrap();
        // Eight places around the border of two objects; in each, one page that counts.
        let place = |nth: u64| STRIPE - (1 << 20) + nth * (256 << 10);
        let page = |nth: u64| place(nth)..place(nth) + PAGE as u64;
        let mut may: [May; 8] = std::array::from_fn(|_| May::default());
        for step in 1..200u8 {
            let nth = rng.below(8);
            let at = place(nth);
            let here = &mut may[usize::try_from(nth).unwrap()];
            match rng.below(8) {
                0 => medium.expect(place(0)..place(8)),
                1 => medium.expect(at..place(8)),
                2 => {
                    run(medium.write(at, buf(PAGE, step))).0.unwrap();
                    here.sure = step;
                }
                3 => {
                    if poll_for(2, medium.write(at, buf(PAGE, step))).is_some() {
                        here.sure = step;
                    } else {
                        here.doubt.push(step);
                        dropped += 1;
                    }
                }
                4 => {
                    run(medium.flush()).unwrap();
                    for (nth, may) in (0..).zip(&mut may) {
                        let part = &parts(place(nth), 1)[0];
                        let now = run(medium.pool.read(&part.object, part.within, 1));
                        let now = now.ok().and_then(|bytes| bytes.first().copied());
                        (may.sure, may.doubt) = (now.unwrap_or(0), Vec::new());
                        if let Some(ahead) = run(medium.expected(page(nth))) {
                            assert_eq!(ahead[0], may.sure, "seed {seed}, step {step}, {nth}");
                        }
                    }
                }
                _ => {
                    let Some(bytes) = run(medium.expected(page(nth))) else { continue };
                    let found = bytes[0];
                    given += 1;
                    assert!(
                        found == here.sure || here.doubt.contains(&found),
                        "seed {seed}, step {step}: {found}, not {} or of {:?}",
                        here.sure,
                        here.doubt
                    );
                }
            }
        }
    }
    assert!(given > 100 && dropped > 50, "{given} given, {dropped} dropped");
}

#[test]
fn it_does_not_grow_beyond_the_pool() {
    let cluster = MemCluster::new(1);
    let medium = open(&cluster);
    cluster.set_faults(Faults { capacity: 2 * STRIPE, ..Faults::default() });
    assert_eq!(run(medium.grow(STRIPE)), Ok(()));
    assert_eq!(run(medium.grow(4 * STRIPE)), Err(Errno::ENOSPC));
    assert_eq!(medium.len(), STRIPE);
    assert_eq!(run(medium.grow(4)), Ok(()), "it never shrinks");
    assert_eq!(medium.len(), STRIPE);
}
