//! The store against a map: in peace, with everything in doubt, and across owners that die or are
//! thought dead.

use outboard_base::task::poll_once;
pub(super) use outboard_base::task::run;
use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use outboard_base::{Rng, Time};

use super::super::claim::{Me, Taken, Taking, Terms, Wanted};
use super::super::mem::{Faults, MemCluster, MemPool};
use super::*;
use outboard_base::task::join2;
use outboard_kv::{Batch, Durability, Key, conformance};
use outboard_sim::seeds;

mod simulation;

pub(super) type Store = PooledKv<MemPool>;

/// Small enough for everything to happen often.
pub(super) const SMALL: Options = Options {
    sweep_at: 1000,
    journal_max: 4000,
    journal_object: 400,
    split_pairs: 24,
    split_bytes: 2000,
};

/// Takes the claim, whoever has it, waiting as long as it takes.
pub(super) async fn take(pool: &MemPool) -> super::super::Claim {
    let me = Me { name: pool.instance(), place: 0 };
    let mut taking = Taking::new(me, Wanted::OrNew(1), Terms::default());
    for second in 0..10_000 {
        if let Ok(Taken::Mine(claim)) = taking.step(pool, Time(second * 1_000_000_000)).await {
            return claim;
        }
    }
    panic!("the claim cannot be had");
}

/// Opens the store, again and again where the pool fails.
pub(super) async fn open(pool: &Arc<MemPool>, options: Options) -> Store {
    let claim = take(pool).await;
    for _ in 0..10_000 {
        match PooledKv::open(Arc::clone(pool), &claim, options).await {
            Ok(store) => return store,
            Err(error) => assert_eq!(error, KvError::Io(Errno::EIO)),
        }
    }
    panic!("it does not open");
}

fn new_store(cluster: &MemCluster, options: Options) -> Store {
    run(open(&Arc::new(cluster.client()), options))
}

pub(super) fn everything(store: &Store) -> BTreeMap<Key, Value> {
    run(store.scan(b"", None, usize::MAX)).unwrap().into_iter().collect()
}

#[test]
fn the_suite() {
    for (seed, options) in [(1, Options::default()), (2, SMALL)] {
        run(conformance::rules(&new_store(&MemCluster::new(seed), options)));
    }
    seeds::run(0..12, |seed| {
        let cluster = MemCluster::new(seed);
        let options = if seed % 4 == 0 { Options::default() } else { SMALL };
        let store = new_store(&cluster, options);
        cluster.set_faults(Faults { delay_polls: seed % 3, repeats: 5, ..Faults::default() });
        run(conformance::agrees_with_a_map(&store, seed, 1500));
        let counts = store.counts();
        assert!(options != SMALL || counts.splits > 0, "seed {seed}: {counts:?}");
    });
}

fn put(key: &[u8], value: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.put(key, value);
    batch
}

/// What an owner thought dead meets even where fences do nothing: the seal of its journal, in the
/// object it appends to as in the one it would make.
#[test]
fn a_late_owner_meets_the_seal() {
    for appended in [false, true] {
        let cluster = MemCluster::new(1);
        cluster.set_faults(Faults { void_fences: true, ..Faults::default() });
        let old = new_store(&cluster, Options::default());
        if appended {
            run(old.commit(put(b"k", b"old"), Durability::Answered)).unwrap();
        }
        let new = new_store(&cluster, Options::default());
        let late = run(old.commit(put(b"k", b"late"), Durability::Answered));
        assert_eq!(late, Err(KvError::Io(Errno::EIO)));
        assert!(old.is_poisoned() && run(old.sync()).is_err());
        let expected = appended.then(|| Value::from(b"old"));
        assert_eq!(run(new.get(b"k")), Ok(expected), "appended {appended}");
        run(new.commit(put(b"k", b"new"), Durability::Answered)).unwrap();
        // Nor does its worker change what is the other's now.
        assert!(run(old.work()).is_err());
        drop(new);
        let next = new_store(&cluster, Options::default());
        assert_eq!(run(next.get(b"k")), Ok(Some(b"new".into())));
    }
}

#[test]
fn a_full_pool_refuses_what_grows_and_still_deletes() {
    let cluster = MemCluster::new(1);
    cluster.set_faults(Faults { capacity: 200 << 10, ..Faults::default() });
    let store = new_store(&cluster, SMALL);
    let fill = |i: u32| run(store.commit(put(&i.to_be_bytes(), &[7; 1000]), Durability::Answered));
    let full = (0..1000).find(|i| fill(*i).is_err()).expect("it fills");
    assert_eq!(fill(full), Err(KvError::NoSpace));
    assert!(full > 100 && !store.is_poisoned(), "{full} fit");
    for i in 0..full {
        let mut delete = Batch::new();
        delete.essential();
        delete.delete(i.to_be_bytes());
        assert_eq!(run(store.commit(delete, Durability::Answered)), Ok(()));
    }
    run(store.drain()).unwrap();
    assert_eq!(fill(full), Ok(()));
    assert_eq!(everything(&store).len(), 1);
}

/// A delete that waited while an ordinary commit was on its way to a full pool was refused with it,
/// although the pool takes what is essential: nothing could be deleted while others wrote.
#[test]
fn what_is_essential_is_tried_though_what_was_before_it_is_refused() {
    seeds::run(0..12, |seed| {
        let cluster = MemCluster::new(seed);
        let store = new_store(&cluster, Options::default());
        run(store.commit(put(b"old", b"v"), Durability::Answered)).unwrap();
        cluster.set_faults(Faults { capacity: 1, delay_polls: 20, ..Faults::default() });
        let grows = store.commit(put(b"new", b"v"), Durability::Answered);
        let mut delete = Batch::new();
        delete.essential();
        delete.delete(b"old");
        let deletes = store.commit(delete, Durability::Answered);
        let mut neither = put(b"later", b"v");
        neither.absent(b"old");
        let later = store.commit(neither, Durability::Answered);
        let outcomes = run(join2(grows, join2(deletes, later)));
        let full = Err(KvError::NoSpace);
        assert_eq!(outcomes, (full, (Ok(()), full)), "seed {seed}");
        assert_eq!(run(store.get(b"old")), Ok(None), "seed {seed}");
    });
}

#[test]
fn a_pool_that_is_gone_fails_commits_for_good_and_reads_for_a_while() {
    let cluster = MemCluster::new(1);
    let store = new_store(&cluster, Options::default());
    run(store.commit(put(b"k", b"v"), Durability::Answered)).unwrap();
    run(store.drain()).unwrap();
    let gone = Faults { gone: true, ..Faults::default() };
    cluster.set_faults(gone);
    assert_eq!(run(store.get(b"k")), Err(KvError::Io(Errno::EIO)));
    cluster.set_faults(Faults::default());
    assert_eq!(run(store.get(b"k")), Ok(Some(b"v".into())), "a read leaves nothing in doubt");
    cluster.set_faults(gone);
    let lost = run(store.commit(put(b"k", b"w"), Durability::Answered));
    assert_eq!(lost, Err(KvError::Io(Errno::EIO)));
    cluster.set_faults(Faults::default());
    assert!(run(store.sync()).is_err() && !store.is_synced());
    assert_eq!(run(store.get(b"k")), Err(KvError::Io(Errno::EIO)), "it may be either");
    let next = new_store(&cluster, Options::default());
    assert_eq!(run(next.get(b"k")), Ok(Some(b"v".into())));
    assert_eq!(run(next.sync()), Ok(()));
}

#[test]
fn damage_is_found_at_opening() {
    let cluster = MemCluster::new(1);
    let store = new_store(&cluster, Options::default());
    run(store.commit(put(b"k", b"v"), Durability::Answered)).unwrap();
    let journal = cluster.objects().into_iter().rfind(|name| name.starts_with("journal")).unwrap();
    cluster.corrupt(&journal, 30);
    let pool = Arc::new(cluster.client());
    let claim = run(take(&pool));
    let opened = run(PooledKv::open(pool, &claim, Options::default()));
    assert_eq!(opened.err(), Some(KvError::Corrupt));
}

/// Every life that ends early leaves a journal object. They were swept for their bytes only, so
/// lives that wrote little left ever more for the next to seal; and of what an interrupted trim
/// left behind, 64 were removed and the rest never.
#[test]
fn lives_without_end_leave_a_bounded_journal() {
    let cluster = MemCluster::new(1);
    let journals = || cluster.objects().iter().filter(|name| name.starts_with("journal")).count();
    for _ in 0..100 {
        drop(new_store(&cluster, Options::default()));
    }
    assert!(journals() >= 100);
    let owner = Arc::new(cluster.client());
    let dying = run(open(&owner, Options::default()));
    owner.die_after(8);
    let mut work = Box::pin(dying.work());
    for _ in 0..1000 {
        assert!(poll_once(work.as_mut()).is_pending());
    }
    assert!(owner.is_dead() && (90..100).contains(&journals()), "{} are left", journals());
    let next = new_store(&cluster, Options::default());
    assert!(journals() < 5, "{} are left", journals());
    run(next.commit(put(b"k", b"v"), Durability::Answered)).unwrap();
    assert_eq!(everything(&new_store(&cluster, SMALL)).len(), 1);
}

/// A DPU side hung for ever, found by kill -9 on a cluster: one request asked for numbers while
/// another's were on their way into the journal. It read the counter as it was before, lost against
/// the one in the queue, and tried again at once, in one poll without end; the journal was to be
/// written by the same thread.
#[test]
fn who_loses_against_a_commit_on_its_way_waits_for_it() {
    let cluster = MemCluster::new(1);
    let store = new_store(&cluster, Options::default());
    run(store.commit(put(b"k", b"1"), Durability::Answered)).unwrap();
    cluster.set_faults(Faults { delay_polls: 50, ..Faults::default() });
    let mut late = Batch::new();
    late.equals(*b"k", *b"1");
    late.put(*b"k", *b"3");
    let second = async {
        let outcome = store.commit(late, Durability::Answered).await;
        (outcome, store.get(b"k").await.unwrap())
    };
    let both = join2(store.commit(put(b"k", b"2"), Durability::Answered), second);
    let (first, (second, read)) = run(both);
    assert_eq!((first, second), (Ok(()), Err(KvError::Conflict)));
    assert_eq!(read.as_deref(), Some(&b"2"[..]), "who tries again reads what it lost against");
}

/// Fills a store, so that it has shards, then deletes nearly everything, so that they are thin.
fn fill_and_thin(store: &Store) -> BTreeMap<Key, Value> {
    let mut pairs = BTreeMap::new();
    let key = |i: u32| Key::from(format!("k{i:04}").into_bytes());
    for i in 0..400 {
        run(store.commit(put(&key(i), &[7; 20]), Durability::Answered)).unwrap();
        pairs.insert(key(i), Value::from(vec![7; 20]));
    }
    run(store.drain()).unwrap();
    for i in (0..400).filter(|i| i % 40 != 3) {
        let mut delete = Batch::new();
        delete.delete(key(i));
        // Not swept before the owner is watched: the last ones stay in the journal.
        run(store.submit(delete)).unwrap();
        pairs.remove(&key(i));
    }
    pairs
}

/// Shards never went: a volume that had held much kept an empty object for every 50,000 pairs it
/// once had, and each opening asked all of them for their stamp.
#[test]
fn what_has_shrunk_has_few_shards() {
    let cluster = MemCluster::new(1);
    let store = new_store(&cluster, SMALL);
    let maps = || cluster.objects().iter().filter(|name| name.starts_with("map")).count();
    let pairs = fill_and_thin(&store);
    run(store.drain()).unwrap();
    let counts = store.counts();
    assert!(counts.splits > 15, "{counts:?}");
    assert!(counts.merges > 10 && counts.shards < 6, "{counts:?}");
    assert_eq!(maps() as u64, counts.shards, "what was merged away is gone");
    assert_eq!(everything(&store), pairs);
    run(store.commit(put(b"k0500", b"v"), Durability::Answered)).unwrap();
    run(store.drain()).unwrap();
    let next = new_store(&cluster, SMALL);
    assert_eq!(next.counts().shards, counts.shards);
    assert_eq!(everything(&next).len(), pairs.len() + 1);
}

/// An owner that dies at any operation of its merging; and one whose scan is under way beside it.
/// (Delays grew with the seed: from some seed on no merging was over within the polls it is given.)
#[test]
fn merging_may_end_anywhere() {
    let (mut merged, mut most) = (0, 0);
    seeds::run(0..2, |seed| {
        for dies in (0..).step_by(if seed == 0 { 1 } else { 3 }) {
            let cluster = MemCluster::new(seed);
            let owner = Arc::new(cluster.client());
            let store = run(open(&owner, SMALL));
            let pairs = fill_and_thin(&store);
            cluster.set_faults(Faults { delay_polls: 2 * (seed % 4), ..Faults::default() });
            owner.die_after(dies);
            let mut work = Box::pin(store.drain());
            let mut scan = Box::pin(store.scan(b"", None, 1000));
            let mut over = false;
            for _ in 0..20_000 {
                if owner.is_dead() || over {
                    break;
                }
                over = poll_once(work.as_mut()).is_ready();
                if let Poll::Ready(found) = poll_once(scan.as_mut()) {
                    let found: BTreeMap<_, _> = found.unwrap().into_iter().collect();
                    assert_eq!(found, pairs, "seed {seed}, {dies} operations");
                    scan = Box::pin(store.scan(b"", None, 1000));
                }
            }
            assert!(over || owner.is_dead(), "it stands still");
            merged += store.counts().merges;
            drop((work, scan));
            cluster.set_faults(Faults::default());
            let next = new_store(&cluster, SMALL);
            assert_eq!(everything(&next), pairs, "seed {seed}, {dies} operations");
            run(next.drain()).unwrap();
            assert_eq!(everything(&next), pairs, "seed {seed}, {dies} operations, swept");
            let maps = cluster.objects().iter().filter(|name| name.starts_with("map")).count();
            assert_eq!(maps as u64, next.counts().shards, "seed {seed}, {dies} operations");
            if over {
                most = dies;
                break;
            }
        }
    });
    assert!(merged > 100 && most > 30, "{merged} merges, at most {most} operations");
}

/// Batches whose futures are dropped at any poll: whole or not at all, and decided as soon as a
/// read has been answered.
#[test]
fn a_dropped_commit_is_decided() {
    let mut dropped = 0;
    seeds::run(0..40, |seed| {
        let mut rng = Rng::new(seed);
        let cluster = MemCluster::new(seed);
        let store = new_store(&cluster, SMALL);
        cluster.set_faults(Faults { delay_polls: 4, repeats: 9, ..Faults::default() });
        for i in 0..60u8 {
            let mut batch = put(b"one", &[i]);
            batch.put(b"two", [i]);
            {
                let mut commit = pin!(store.commit(batch, Durability::Answered));
                let polls = rng.below(12);
                dropped += u32::from(!(0..polls).any(|_| poll_once(commit.as_mut()).is_ready()));
            }
            let seen = run(store.get(b"one")).unwrap();
            if rng.chance(1, 2) {
                run(store.commit(put(b"other", &[i]), Durability::Answered)).unwrap();
            }
            let pairs = everything(&store);
            assert_eq!(pairs.get(&b"one"[..]), seen.as_ref(), "seed {seed}, batch {i}");
            assert_eq!(pairs.get(&b"two"[..]), seen.as_ref(), "seed {seed}, batch {i}");
        }
    });
    assert!(dropped > 500, "{dropped} were dropped");
}

/// Who waits for another's work on the shards was not told that the store had failed: it slept
/// until that work ended, which on a pool that is gone is a long time.
#[test]
fn who_waits_for_work_is_told_when_the_store_fails() {
    #[derive(Default)]
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let store = new_store(&MemCluster::new(1), SMALL);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let _working = run(store.working.lock());
    let mut waits = pin!(store.survey());
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    store.stop();
    assert!(woken.0.load(Ordering::Relaxed), "nobody wakes it");
    assert_eq!(run(waits), Err(KvError::Io(Errno::EIO)));
}
