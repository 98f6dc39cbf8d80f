//! Lives of a volume, each seeded: owners commit and read while the pool does its worst, are
//! stopped at any operation, by death or by a pause, and the next one takes over.
//!
//! What must hold: what was answered is there, in the order of commits, whole batches only; what
//! was not answered is there or not, but nothing after it without it; and an owner that was only
//! thought dead answers nothing any more that the next does not see. With one seed in four fences
//! do not work: the seal of the journal and the stamps must do.

use outboard_base::task::poll_once;
use std::collections::VecDeque;

use super::*;

type Pairs = BTreeMap<Key, Value>;

fn key(rng: &mut Rng) -> Key {
    format!("{}{:02}", char::from(b'a' + u8::try_from(rng.below(3)).unwrap()), rng.below(40))
        .into_bytes()
        .into()
}

/// `shrinks`: it deletes most of what it touches.
fn random_batch(rng: &mut Rng, number: u64, shrinks: bool) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..=rng.below(5) {
        if rng.chance(if shrinks { 19 } else { 7 }, 20) {
            batch.delete(key(rng));
        } else {
            let mut value = vec![0; usize::try_from(rng.below(60)).unwrap()];
            rng.fill(&mut value);
            batch.put(key(rng), value);
        }
    }
    // The witness: which batches are in.
    batch.put(b"zz-last", number.to_be_bytes());
    batch
}

fn apply(pairs: &mut Pairs, batch: &Batch) {
    for write in batch.writes() {
        match &write.value {
            Some(value) => pairs.insert(write.key.clone(), value.clone()),
            None => pairs.remove(&write.key),
        };
    }
}

/// What is known of the volume: every state it had, and from which one on it may be.
struct History {
    /// After each batch sent; the first is where this life began.
    states: Vec<Pairs>,
    /// The last state that was answered.
    answered: usize,
}

impl History {
    /// Where the volume is now must be one of its states, not before the last answered.
    fn check(&mut self, found: &Pairs, why: &str) {
        let at = (self.answered..self.states.len()).find(|&at| self.states[at] == *found);
        let Some(at) = at else {
            let last = found.get(&b"zz-last"[..]);
            panic!("{why}: no state at or after {} (last {last:?})", self.answered);
        };
        self.states = vec![self.states.swap_remove(at)];
        self.answered = 0;
    }
}

type Work<'a> = Pin<Box<dyn Future<Output = Result<(), KvError>> + 'a>>;
type Scan<'a> = Pin<Box<dyn Future<Output = Result<Vec<(Key, Value)>, KvError>> + 'a>>;

/// One owner at work: commits one after the other, several on their way at once.
struct Life<'a> {
    store: &'a Store,
    commits: VecDeque<(usize, Work<'a>)>,
    worker: Option<Work<'a>>,
    /// The last commit waits for room, and is judged later: none must overtake it.
    blocked: bool,
    /// Most of its batches delete.
    shrinks: bool,
    /// A scan of everything, and the state it must not be older than.
    scan: Option<(usize, Scan<'a>)>,
    scans: u64,
}

impl<'a> Life<'a> {
    fn new(store: &'a Store, shrinks: bool) -> Life<'a> {
        let commits = VecDeque::new();
        Life { store, commits, worker: None, blocked: false, shrinks, scan: None, scans: 0 }
    }

    fn commit(&mut self, history: &mut History, rng: &mut Rng, number: u64) {
        let batch = random_batch(rng, number, self.shrinks);
        let mut pairs = history.states.last().unwrap().clone();
        apply(&mut pairs, &batch);
        history.states.push(pairs);
        let at = history.states.len() - 1;
        let mut commit = Box::pin(self.store.commit(batch, Durability::Answered));
        // It is judged, and so has its place, at the first poll, if there is room.
        let before = self.store.lock().versions.now();
        if let Poll::Ready(outcome) = poll_once(commit.as_mut()) {
            note(history, at, outcome, self.store.is_poisoned());
        } else {
            self.commits.push_back((at, commit));
            self.blocked = self.store.lock().versions.now() == before;
        }
    }

    /// Polls everything once.
    fn poll(&mut self, history: &mut History, rng: &mut Rng) {
        let store = self.store;
        let worker = self.worker.get_or_insert_with(|| Box::pin(store.work()));
        if rng.chance(9, 10) && poll_once(worker.as_mut()).is_ready() {
            self.worker = None;
        }
        self.commits.retain_mut(|(at, commit)| match poll_once(commit.as_mut()) {
            Poll::Ready(outcome) => {
                note(history, *at, outcome, store.is_poisoned());
                false
            }
            Poll::Pending => true,
        });
        if rng.chance(1, 60) {
            self.worker = None;
        }
        self.look(history);
    }

    /// A scan sees one state: one that was answered when it began, or a later one.
    fn look(&mut self, history: &History) {
        let store = self.store;
        let (oldest, scan) = self
            .scan
            .get_or_insert_with(|| (history.answered, Box::pin(store.scan(b"", None, 1000))));
        if let Poll::Ready(found) = poll_once(scan.as_mut()) {
            if let Ok(found) = found {
                let found: Pairs = found.into_iter().collect();
                assert!(history.states[*oldest..].contains(&found), "no state from {oldest} on");
                self.scans += 1;
            }
            self.scan = None;
        }
    }
}

fn note(history: &mut History, at: usize, outcome: Result<(), KvError>, poisoned: bool) {
    match outcome {
        Ok(()) => history.answered = history.answered.max(at),
        Err(error) => {
            assert_eq!(error, KvError::Io(Errno::EIO));
            if !poisoned {
                // It came to nothing while it waited for room, alone.
                assert_eq!(at, history.states.len() - 1);
                history.states.pop();
            }
        }
    }
}

fn faults_of(seed: u64, harsh: bool, rng: &mut Rng) -> Faults {
    Faults {
        delay_polls: rng.below(6),
        time_outs: if harsh { 60 } else { 0 },
        repeats: 2 + rng.below(8),
        read_time_outs: if harsh { 80 } else { 0 },
        void_fences: seed % 4 == 3,
        ..Faults::default()
    }
}

fn live(seed: u64) -> (u64, u64, Counts) {
    let mut rng = Rng::new(seed);
    let cluster = MemCluster::new(seed);
    let mut history = History { states: vec![Pairs::new()], answered: 0 };
    let mut number = 0;
    let (mut counts, mut scans) = (Counts::default(), 0);
    let mut owner = Arc::new(cluster.client());
    let mut store = run(open(&owner, SMALL));
    for life in 0..6 {
        let why = format!("seed {seed}, life {life}");
        let harsh = rng.chance(1, 2);
        let faults = faults_of(seed, harsh, &mut rng);
        cluster.set_faults(faults);
        if rng.chance(2, 3) {
            owner.die_after(20 + rng.below(400));
        }
        let mut one = Life::new(&store, rng.chance(2, 5));
        for _ in 0..rng.below(1500) {
            if owner.is_dead() || store.is_poisoned() {
                break;
            }
            if one.commits.is_empty() || (!one.blocked && one.commits.len() < 4) {
                number += 1;
                one.commit(&mut history, &mut rng, number);
            }
            one.poll(&mut history, &mut rng);
        }
        let next_owner = Arc::new(cluster.client());
        let next = take_over(&mut one, &mut history, &mut rng, &cluster, &next_owner);
        let answered = history.answered;
        scans += one.scans;
        // It never answers again, however long it goes on.
        for _ in 0..200 {
            one.poll(&mut history, &mut rng);
        }
        assert_eq!(history.answered, answered, "{why}: answered after it had lost the volume");
        drop(one);
        cluster.set_faults(Faults { time_outs: 0, read_time_outs: 0, ..faults });
        history.check(&everything(&next), &why);
        let before = store.counts();
        counts.splits += before.splits;
        counts.merges += before.merges;
        counts.commits += before.commits;
        (store, owner) = (next, next_owner);
    }
    cluster.set_faults(Faults::default());
    run(store.drain()).unwrap();
    assert_eq!((store.counts().unapplied, store.counts().journal_bytes), (0, 0), "seed {seed}");
    history.check(&everything(&store), "at the end");
    (number, scans, counts)
}

/// The next owner comes while `one` may still be at it.
fn take_over(
    one: &mut Life<'_>,
    history: &mut History,
    rng: &mut Rng,
    cluster: &MemCluster,
    next: &Arc<MemPool>,
) -> Store {
    if rng.chance(1, 3) {
        // The next one, too, dies on its way in, once or twice.
        for _ in 0..=rng.below(2) {
            let weak = Arc::new(cluster.client());
            weak.die_after(rng.below(60));
            step_together(one, history, rng, open(&weak, SMALL), |_| weak.is_dead());
        }
    }
    step_together(one, history, rng, open(next, SMALL), |_| false).unwrap()
}

/// Polls a future beside an owner that does not know yet, until its end or until `stop`.
fn step_together<T>(
    life: &mut Life<'_>,
    history: &mut History,
    rng: &mut Rng,
    future: impl Future<Output = T>,
    stop: impl Fn(u64) -> bool,
) -> Option<T> {
    let mut future = pin!(future);
    for polls in 0..1_000_000 {
        if let Poll::Ready(out) = poll_once(future.as_mut()) {
            return Some(out);
        }
        if stop(polls) {
            return None;
        }
        if rng.chance(1, 4) {
            life.poll(history, rng);
        }
    }
    panic!("it does not end");
}

#[test]
fn nothing_answered_is_lost_and_nothing_is_half_done() {
    let (mut batches, mut scans, mut counts) = (0, 0, Counts::default());
    for (sent, scanned, lived) in seeds::run(0..30, live).outcomes {
        (batches, scans) = (batches + sent, scans + scanned);
        counts.commits += lived.commits;
        counts.splits += lived.splits;
        counts.merges += lived.merges;
    }
    assert!(counts.commits > batches / 4, "{} of {batches} batches were answered", counts.commits);
    assert!(scans > batches / 40, "{scans} scans");
    assert!(counts.splits > 25, "{} splits", counts.splits);
    assert!(counts.merges > 5, "{} merges", counts.merges);
}

#[test]
fn equal_seeds_give_equal_lives() {
    seeds::run(0..3, |seed| assert_eq!(live(seed), live(seed)));
}
