//! Single promises of the store: who it belongs to, full disks, bits that rot, what is asked twice.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use outboard_base::task::run;
use outboard_medium::mem::{Faults, MemMedium};
use outboard_medium::{Buf, Medium};
use outboard_node::{OpenError, Scrubbed, Store, StoreOptions, Version};
use outboard_wire::shared::{Reason, Share};

use super::model::{GRAIN, Media, STRIP, TestStore, options};

fn media() -> Media {
    (Arc::new(MemMedium::new(1)), Arc::new(MemMedium::new(2)))
}

fn opened(media: &Media) -> TestStore {
    run(Store::open(media.0.clone(), media.1.clone(), options())).unwrap()
}

fn version(sequence: u32) -> Version {
    Version { fence: 1 << 32, sequence }
}

fn write(
    store: &TestStore,
    sequence: u32,
    offset: u64,
    byte: u8,
    len: usize,
) -> Result<(), Reason> {
    run(store.write(7, STRIP, version(sequence), None, offset, &vec![byte; len]))
}

fn figure(store: &TestStore, name: &str) -> u64 {
    store.figures().into_iter().find(|figure| figure.0 == name).unwrap().1
}

#[test]
fn a_store_opens_for_whom_it_belongs_to_alone() {
    let media = media();
    drop(opened(&media));
    let open = |options| run(Store::open(media.0.clone(), media.1.clone(), options)).err();
    assert_eq!(open(StoreOptions { node: 4, ..options() }), Some(OpenError::Node(3)));
    assert_eq!(open(StoreOptions { cluster: 8, ..options() }), Some(OpenError::Cluster(9)));
    assert!(OpenError::Node(3).to_string().contains("another node"));
    assert!(matches!(open(StoreOptions { capacity: 0, ..options() }), Some(OpenError::Options(_))));
    assert_eq!(open(options()), None);
}

#[test]
fn a_log_that_is_gone_is_not_taken_for_a_new_store() {
    let (log, data) = media();
    let store = opened(&(log, data.clone()));
    write(&store, 1, 0, 1, 9).unwrap();
    let opened = run(Store::open(Arc::new(MemMedium::new(3)), data, options()));
    assert!(matches!(opened.err(), Some(OpenError::Damaged(_))));
}

#[test]
fn what_is_asked_twice_is_done_once() {
    let media = media();
    let store = opened(&media);
    write(&store, 1, 100, 5, 50).unwrap();
    let writes = media.1.counts().writes;
    write(&store, 1, 100, 5, 50).unwrap();
    assert_eq!(media.1.counts().writes, writes, "it is only acknowledged again");
    assert_eq!(write(&store, 1, 100, 6, 50), Err(Reason::Order), "other bytes");
    assert_eq!(write(&store, 1, 101, 5, 50), Err(Reason::Order), "another place");
    assert_eq!(write(&store, 0, 100, 5, 50), Err(Reason::Order), "an older one");
    write(&store, 1, u64::from(STRIP), 5, 50).unwrap();
    drop(store);
    let store = opened(&media);
    write(&store, 1, 100, 5, 50).unwrap();
    assert_eq!(write(&store, 1, 100, 6, 50), Err(Reason::Order));
    run(store.hole(7, version(2), 0..u64::MAX)).unwrap();
    assert_eq!(write(&store, 1, 100, 5, 50), Err(Reason::Order), "late, behind the cut");
    write(&store, 3, 100, 5, 50).unwrap();
    assert_eq!(run(store.hole(7, version(2), 0..u64::MAX)), Err(Reason::Order), "a late cut");
    assert_eq!(run(store.read(7, 99, 3)), Ok(vec![0, 5, 5]));
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let store = opened(&media());
    for (strip, offset, len) in [
        (STRIP, u64::from(STRIP) - 1, 2),
        (STRIP, 0, 0),
        (STRIP, u64::MAX, 1),
        (STRIP, 1 << 62, 1),
        (0, 0, 1),
        (4096, 0, 1),
        (STRIP + 1, 0, 1),
        (2 << 20, 0, 1),
    ] {
        let refused = run(store.write(1, strip, version(1), None, offset, &vec![1; len]));
        assert_eq!(refused, Err(Reason::Invalid), "{strip} {offset} {len}");
    }
    assert_eq!(
        run(store.write(1, STRIP, version(1), Some(version(1)), 0, b"a")),
        Err(Reason::Invalid)
    );
    assert_eq!(run(store.read(1, u64::MAX, 1)), Err(Reason::Invalid));
    assert_eq!(run(store.read(1, 0, (1 << 20) + 1)), Err(Reason::Invalid));
    assert_eq!(run(store.hole(1, version(1), 5..5)), Err(Reason::Invalid));
    assert_eq!((store.objects(0, 9), figure(&store, "used_bytes")), (Vec::new(), 0));
    assert_eq!(run(store.read(1, (1 << 62) - 7, 14)), Ok(vec![0; 14]));
    run(store.write(1, STRIP, version(1), None, 0, b"a")).unwrap();
    assert_eq!(run(store.write(1, 2 * STRIP, version(2), None, 0, b"a")), Err(Reason::Invalid));
}

/// A full store takes no write, and loses none; seals, holes and purges go on.
#[test]
fn a_full_store_still_seals_cuts_and_purges() {
    let media = media();
    let store = opened(&media);
    let (mut taken, mut sequence) = (0u64, 0);
    loop {
        sequence += 1;
        match write(&store, sequence, taken * GRAIN, 9, 8192) {
            Ok(()) => taken += 1,
            other => break assert_eq!(other, Err(Reason::Full)),
        }
    }
    assert_eq!((taken, store.free()), (60, 0));
    assert_eq!(
        write(&store, sequence + 1, 3, 9, 9),
        Ok(()),
        "over data: it gives back what it takes"
    );
    assert_eq!(write(&store, sequence + 2, 60 * GRAIN, 9, 9), Err(Reason::Full));
    assert_eq!(run(store.read(7, 0, 9)), Ok(vec![9; 9]));
    assert_eq!(run(store.seal(7, 2 << 32)).unwrap().bytes, 60 * GRAIN);
    let version = Version { fence: 2 << 32, sequence: 1 };
    run(store.hole(7, version, 5..GRAIN + 5)).unwrap();
    assert_eq!(run(store.read(7, 0, 9)), Ok(vec![9, 9, 9, 9, 9, 0, 0, 0, 0]));
    let version = Version { fence: 2 << 32, sequence: 2 };
    run(store.hole(7, version, 2 * GRAIN + 1..u64::MAX)).unwrap();
    assert_eq!(store.objects(0, 1)[0].end, 2 * GRAIN + 1);
    // What the cut freed is there again: the store flushes by itself.
    run(store.write(8, STRIP, version, None, 0, &[4; 16384])).unwrap();
    run(store.purge(7)).unwrap();
    run(store.purge(7)).unwrap();
    assert_eq!(store.free(), 58 * GRAIN);
    assert_eq!(run(store.read(7, 0, 9)), Ok(vec![0; 9]));
    // The medium itself has no more.
    let len_max = media.1.len();
    media.1.set_faults(Faults { len_max, ..Faults::default() });
    let refused = (0..70u32).find_map(|strip| {
        let version = Version { fence: 3 << 32, sequence: strip + 1 };
        run(store.write(9, STRIP, version, None, u64::from(strip * STRIP), &[1; 16384])).err()
    });
    assert_eq!(refused, Some(Reason::Full));
}

/// A program that was promised space writes to it on a full disk, and writes it over again; what is
/// not written of it is no data, and is given back with the rest.
#[test]
fn space_put_aside_is_there_when_it_is_written() {
    let media = media();
    let store = opened(&media);
    let share = Share { count: 1, place: 0, strip: STRIP };
    let reserve = |store: &TestStore, sequence, grains: u64| {
        run(store.reserve(7, STRIP, version(sequence), 0..grains * GRAIN, share))
    };
    write(&store, 1, GRAIN, 1, 100).unwrap();
    assert_eq!(reserve(&store, 2, 70), Err(Reason::Full), "and nothing is put aside");
    assert_eq!((store.free(), store.held(7)), (59 * GRAIN, GRAIN));
    reserve(&store, 3, 20).unwrap();
    reserve(&store, 3, 20).unwrap();
    assert_eq!((store.free(), store.held(7)), (40 * GRAIN, 20 * GRAIN));
    assert_eq!(store.objects(7, 1)[0].end, GRAIN + 100);
    let fill = |store: &TestStore| {
        let fill = |grain: u32| {
            let at = u64::from(grain) * GRAIN;
            run(store.write(8, STRIP, version(grain + 1), None, at, &[3; 8192])).err()
        };
        (0..64).find_map(fill)
    };
    assert_eq!(fill(&store), Some(Reason::Full));
    assert_eq!(store.free(), 0);
    drop(store);
    let store = opened(&media);
    assert_eq!((store.free(), store.held(7)), (0, 20 * GRAIN));
    for round in 0..3 {
        for grain in 0..20 {
            let byte = u8::try_from(round).unwrap();
            write(&store, 10 + round * 20 + grain, u64::from(grain) * GRAIN, byte, 8192).unwrap();
        }
    }
    assert_eq!(store.held(7), 20 * GRAIN);
    assert_eq!(figure(&store, "aside_bytes"), 0);
    run(store.hole(7, version(100), 0..u64::MAX)).unwrap();
    reserve(&store, 101, 20).unwrap();
    assert_eq!((store.free(), run(store.map(7, 0, 9))), (0, Vec::new()));
    run(store.purge(7)).unwrap();
    assert_eq!((store.free(), figure(&store, "aside_bytes")), (20 * GRAIN, 0));
}

/// Of strips in turn a node puts space aside for its own, and says where its data lies.
#[test]
fn a_node_puts_space_aside_for_its_strips_and_knows_where_data_is() {
    let store = opened(&media());
    let strip = u64::from(STRIP);
    let share = Share { count: 3, place: 1, strip: 2 * STRIP };
    run(store.reserve(7, STRIP, version(1), 5..9 * strip, share)).unwrap();
    assert_eq!(store.held(7), 4 * GRAIN + 2 * GRAIN, "strips 2, 3 and 8");
    write(&store, 2, 2 * strip + GRAIN + 9, 1, 9).unwrap();
    write(&store, 3, 3 * strip, 1, 9).unwrap();
    write(&store, 4, 5 * strip, 1, 9).unwrap();
    let runs = [2 * strip + GRAIN..3 * strip + GRAIN, 5 * strip..5 * strip + GRAIN];
    assert_eq!(run(store.map(7, 0, 9)), runs);
    let rest = 3 * strip..3 * strip + GRAIN;
    assert_eq!(run(store.map(7, 3 * strip + 5, 1)).first(), Some(&rest));
    assert_eq!(run(store.map(7, 3 * strip + GRAIN, 1)), runs[1..]);
    assert_eq!(run(store.map(9, 0, 9)), []);
    assert_eq!(store.held(7), 7 * GRAIN);
    let old = Version { fence: 1, sequence: 9 };
    assert_eq!(run(store.reserve(7, STRIP, old, 0..9, share)), Err(Reason::Fence));
    let late = run(store.reserve(7, STRIP, version(1), 0..9 * strip, share));
    assert_eq!(late, Err(Reason::Order));
}

#[test]
fn a_grain_that_rots_is_told_found_and_repaired() {
    let media = media();
    let store = opened(&media);
    write(&store, 1, 0, 1, 16384).unwrap();
    write(&store, 1, u64::from(STRIP), 2, 16384).unwrap();
    run(store.flush()).unwrap();
    let looked = |bytes, damaged| Scrubbed { bytes, damaged };
    assert_eq!((run(store.verify(7)), run(store.scrub(1 << 30))), (Ok(0), looked(4 * GRAIN, 0)));
    media.1.corrupt(GRAIN + 77);
    assert_eq!(run(store.read(7, GRAIN - 5, 5)), Ok(vec![1; 5]), "the grain beside it");
    assert_eq!(run(store.read(7, GRAIN - 5, 6)), Err(Reason::Medium));
    assert_eq!(write(&store, 2, GRAIN + 5, 3, 1), Err(Reason::Medium), "a part of it");
    assert_eq!(run(store.hole(7, version(2), 0..GRAIN + 5)), Err(Reason::Medium));
    assert_eq!((run(store.verify(7)), run(store.verify(8))), (Ok(1), Ok(0)));
    let found: Vec<_> = (0..4).map(|_| run(store.scrub(GRAIN))).collect();
    let [first, second] = [looked(2 * GRAIN, 1), looked(2 * GRAIN, 0)];
    assert_eq!(found, [first, second, first, second], "it goes on, and around");
    assert_eq!((figure(&store, "scrubbed_bytes"), figure(&store, "scrubs")), (12 * GRAIN, 2));
    assert!(figure(&store, "damaged_grains") >= 5);
    drop(store);
    let store = opened(&media);
    assert_eq!(run(store.read(7, GRAIN, 6)), Err(Reason::Medium), "after a restart too");
    write(&store, 2, GRAIN, 3, 8192).unwrap();
    assert_eq!(run(store.read(7, GRAIN - 1, 2)), Ok(vec![1, 3]));
    assert_eq!(run(store.scrub(1 << 30)).damaged, 0);
    media.1.set_faults(Faults { read_fails: 1, ..Faults::default() });
    assert_eq!(run(store.read(7, 0, 1)), Err(Reason::Medium), "EIO");
}

/// Any sector of the log medium rots, after a flush: the store says that it is damaged, or all is
/// there. It never gives other bytes.
#[test]
fn a_log_that_rots_is_never_believed() {
    let build = |checkpoint: bool| {
        let media = media();
        let store = opened(&media);
        for sequence in 1..6 {
            write(&store, sequence, 0, u8::try_from(sequence).unwrap(), 9000).unwrap();
            run(store.seal(8, u64::from(sequence))).unwrap();
        }
        if checkpoint {
            media.0.set_faults(Faults { write_fails: 1, ..Faults::default() });
            assert!(write(&store, 6, 0, 6, 9).is_err());
            media.0.set_faults(Faults::default());
            run(store.tidy()).unwrap();
            run(store.flush()).unwrap();
        }
        // The note that all this was durable is written behind it, and durable a moment later.
        run(media.0.flush()).unwrap();
        media
    };
    let (mut damaged, mut whole) = (0, 0);
    for checkpoint in [false, true] {
        let len = build(checkpoint).0.len();
        // The headers, both halves' fronts, their logs.
        let places = (0..32).map(|sector| sector * 512);
        let halves = [0, 256 << 10].map(|half| (0..100).map(move |at| 8192 + half + at * 512));
        for at in places.chain(halves.into_iter().flatten()).filter(|at| *at < len) {
            let media = build(checkpoint);
            media.0.corrupt(at + 20);
            media.0.crash();
            match run(Store::open(media.0.clone(), media.1.clone(), options())) {
                Ok(store) => {
                    whole += 1;
                    let read = run(store.read(7, 0, 9000));
                    assert_eq!(read, Ok(vec![5; 9000]), "{checkpoint} {at}");
                    assert_eq!(store.objects(8, 1)[0].fence, 5, "{checkpoint} {at}");
                }
                // A header is there twice.
                Err(OpenError::Damaged(_)) if checkpoint || at >= 8192 => damaged += 1,
                Err(other) => panic!("{other} {checkpoint} {at}"),
            }
        }
    }
    assert!(damaged > 10 && whole > 100, "{damaged} {whole}");
}

#[test]
fn a_seal_is_durable_when_it_is_answered_and_a_purge_when_it_is_flushed() {
    for seed in 0..40 {
        let media = (Arc::new(MemMedium::new(seed)), Arc::new(MemMedium::new(seed)));
        let store = opened(&media);
        run(store.seal(5, 77)).unwrap();
        write(&store, 1, 0, 1, 9).unwrap();
        run(store.purge(7)).unwrap();
        run(store.flush()).unwrap();
        drop(store);
        media.0.crash();
        media.1.crash();
        let store = opened(&media);
        let refused = run(store.write(5, STRIP, Version { fence: 76, sequence: 1 }, None, 0, b"a"));
        assert_eq!(refused, Err(Reason::Fence));
        assert_eq!(store.objects(0, 9).len(), 1);
        assert_eq!(run(store.read(7, 0, 9)), Ok(vec![0; 9]));
    }
}

/// Two writes of one grain, a flush whose note is lost, and the next write lies where the first of
/// them lay: its record cannot be proved any more, and need not be, as the second is there.
#[test]
fn what_a_flush_has_freed_is_no_loss() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..200 {
        let media = (Arc::new(MemMedium::new(seed)), Arc::new(MemMedium::new(seed + 1000)));
        let small = StoreOptions { capacity: 16 * GRAIN, ..options() };
        let open = || run(Store::open(media.0.clone(), media.1.clone(), small)).unwrap();
        let store = open();
        write(&store, 1, 0, 1, 8192).unwrap();
        for strip in 1..10 {
            write(&store, 1, strip * u64::from(STRIP), 9, 8192).unwrap();
        }
        run(store.flush()).unwrap();
        write(&store, 2, 0, 2, 8192).unwrap();
        write(&store, 3, 0, 3, 8192).unwrap();
        let flushes = media.1.counts().flushes;
        write(&store, 4, 0, 4, 16384).unwrap();
        assert_eq!(media.1.counts().flushes, flushes + 1, "there was no other space");
        drop(store);
        media.0.crash();
        media.1.crash();
        let read = run(open().read(7, 0, 16384)).unwrap();
        if read == [4; 16384] {
            new += 1;
        } else {
            assert_eq!(read, [[3; 8192], [0; 8192]].concat(), "seed {seed}");
            old += 1;
        }
    }
    // Of 32 sectors of data and 8 of a block all must be there for the new one.
    assert!(old > 100, "{old} {new}");
}

/// After a flush failed nobody knows what is there: nothing is taken any more, reads go on.
#[test]
fn a_failed_flush_is_final() {
    let media = media();
    let store = opened(&media);
    write(&store, 1, 0, 1, 9).unwrap();
    media.1.set_faults(Faults { flush_fails: true, ..Faults::default() });
    assert_eq!(run(store.flush()), Err(Reason::Medium));
    media.1.set_faults(Faults::default());
    assert_eq!(write(&store, 2, 0, 1, 9), Err(Reason::Medium));
    assert_eq!(run(store.seal(7, 1 << 40)), Err(Reason::Medium));
    assert_eq!(run(store.flush()), Err(Reason::Medium));
    assert_eq!((run(store.read(7, 0, 1)), figure(&store, "failed")), (Ok(vec![1]), 1));
}

type Work<'a> = Pin<Box<dyn Future<Output = Result<(), Reason>> + 'a>>;

/// Polls only who was woken: a wake-up that is forgotten hangs here.
fn side_by_side(futures: Vec<Work<'_>>) {
    struct Woken(AtomicU64, u32);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut running: BTreeMap<u32, _> = (0..).zip(futures).collect();
    let wakers: Vec<_> = (0..).take(running.len()).map(|n| Arc::new(Woken(1.into(), n))).collect();
    while !running.is_empty() {
        let mut is_anybody_woken = false;
        for woken in &wakers {
            if woken.0.swap(0, Ordering::Relaxed) == 0 {
                continue;
            }
            is_anybody_woken = true;
            let waker = Waker::from(Arc::clone(woken));
            let done = running.get_mut(&woken.1).is_some_and(|future| {
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending() || polled == std::task::Poll::Ready(Ok(())));
                polled.is_ready()
            });
            if done {
                running.remove(&woken.1);
            }
        }
        assert!(is_anybody_woken, "{} wait for nobody", running.len());
    }
}

#[test]
fn writes_side_by_side_share_writes_of_the_log_and_flushes() {
    let media = media();
    let store = &opened(&media);
    let faults = Faults { delay_polls: 3, ..Faults::default() };
    media.0.set_faults(faults);
    media.1.set_faults(faults);
    let before = media.0.counts();
    side_by_side(
        (0..40u32)
            .map(|strip| {
                Box::pin(async move {
                    let at = u64::from(strip % 20 * STRIP);
                    let of = version(1 + strip);
                    store.write(7, STRIP, of, None, at, &[3; 10]).await?;
                    store.flush().await
                }) as Work<'_>
            })
            .collect(),
    );
    let after = media.0.counts();
    let (writes, flushes) = (after.writes - before.writes, after.flushes - before.flushes);
    assert!(writes < 40 && flushes < 30, "{writes} writes of the log, {flushes} flushes");
    assert_eq!(figure(store, "retired_bytes"), 0);
}

/// A checkpoint of several pieces, in halves whose chunks lie in turn; and a log that fills up.
#[test]
fn a_large_index_outlives_checkpoints() {
    let media = media();
    let wide = StoreOptions { capacity: 9000 * GRAIN, segment: 1 << 20, ..options() };
    let open = || run(Store::open(media.0.clone(), media.1.clone(), wide)).unwrap();
    let store = open();
    for number in 0..6000u32 {
        let object = u64::from(number % 7);
        let at = u64::from(number) * GRAIN;
        run(store.write(object, 8192, version(number + 1), None, at, &number.to_le_bytes()))
            .unwrap();
    }
    assert!(figure(&store, "checkpoints") > 20, "the log is bounded");
    assert!(figure(&store, "log_bytes") <= 512 << 10);
    drop(store);
    let store = open();
    assert_eq!(figure(&store, "used_bytes"), 6000 * GRAIN);
    for number in (0..6000u32).step_by(7) {
        let read = run(store.read(u64::from(number % 7), u64::from(number) * GRAIN, 4));
        assert_eq!(read, Ok(number.to_le_bytes().to_vec()));
    }
    run(store.tidy()).unwrap();
    let log = media.0.len();
    run(store.flush()).unwrap();
    drop((store, open()));
    assert_eq!(media.0.len(), log, "halves are used again");
    assert!(run(media.0.read(0, Buf::zeroed(4096))).0.is_ok());
}
