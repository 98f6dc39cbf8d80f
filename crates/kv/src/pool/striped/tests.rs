use std::pin::pin;
use std::task::{Context, Poll, Waker};

use outboard_base::{Rng, Time};

use super::super::claim::{Me, Taken, Taking, Terms, Wanted};
use super::super::mem::{Faults, MemCluster, MemPool};
use super::*;

fn poll_for<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if let Poll::Ready(out) = future.as_mut().poll(&mut cx) {
            return Some(out);
        }
    }
    None
}

fn run<T>(future: impl Future<Output = T>) -> T {
    poll_for(1_000_000, future).expect("it ends")
}

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
