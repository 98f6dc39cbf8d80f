//! A session decides the locks of its files itself, another attachment asks for them, events are
//! lost, and the DPU side dies at any step.
//!
//! What each owner holds is known from what it was answered: from the answer that grants a lock to
//! the moment its unlocking is asked for. No two locks that exclude each other are ever held
//! together, whoever decided them, and everybody who asks is answered.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use outboard_base::{Cred, Errno, Fh, Ino, Result, Rng, SessionId, Timestamp};
use outboard_kv::mem::{Faults, MemKv};
use outboard_medium::mem::MemMedium;
use outboard_sim::loopback::Loopback;
use outboard_sim::seeds;
use outboard_volume::{Caller, Payload};
use outboard_wire::file::{Flags, Header, Lock, LockKind, LockStyle, Reply, Request, open_flags};

use crate::simulation::{Files, Volume, assert_repeats, finish, open};

const STRANGER: SessionId = SessionId(77_777_776);
const OWNERS: usize = 4;
const BYTES: u64 = 6;

/// A lock somebody was told it holds, and since which step.
#[derive(Clone, Copy, Debug)]
struct Held {
    lock: Lock,
    since: u64,
}

/// Who holds what: the session's owners by number, the stranger behind them.
struct Oracle {
    held: [Option<Held>; OWNERS + 1],
    step: u64,
}

impl Oracle {
    fn granted(&mut self, who: usize, lock: Lock) {
        for (other, held) in self.held.iter().enumerate().filter(|(other, _)| *other != who) {
            let Some(Held { lock: held, .. }) = held else { continue };
            let meet = held.style == lock.style && held.start <= lock.end && lock.start <= held.end;
            let exclude = held.kind == LockKind::Write || lock.kind == LockKind::Write;
            assert!(!(meet && exclude), "{who} was granted {lock:?}, {other} has {held:?}");
        }
        self.held[who] = Some(Held { lock, since: self.step });
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Nothing,
    Locking(Lock),
    Unlocking,
    Testing { lock: Lock, since: u64 },
}

struct World {
    file: (Ino, Fh),
    /// The stranger's handle.
    other: Fh,
    rng: Rng,
    doing: [Doing; OWNERS],
    oracle: Rc<RefCell<Oracle>>,
    /// The stranger has a request under way.
    busy: Rc<RefCell<bool>>,
    granted: u64,
    refused: u64,
}

fn lock_of(rng: &mut Rng, owner: u64) -> Lock {
    let start = rng.below(BYTES);
    let end = start + rng.below(BYTES - start);
    let kind = if rng.chance(1, 3) { LockKind::Read } else { LockKind::Write };
    let style = if rng.chance(1, 8) { LockStyle::Flock } else { LockStyle::Posix };
    let (start, end) = if style == LockStyle::Flock { (0, u64::MAX) } else { (start, end) };
    Lock { owner, start, end, kind, style, pid: 7 }
}

/// One request of the stranger, to the volume itself.
pub(crate) async fn ask(volume: &Volume, request: Request<'_>) -> Result<Reply> {
    let caller = Caller::root(STRANGER);
    let (cred, flags, session) = (Cred::root(), Flags::default(), STRANGER);
    let header = Header { cred, flags, session, sequence: 0, lane: 0 };
    let now = Timestamp { sec: 3, nsec: 0 };
    Ok(volume.handle(&caller, &header, request, Payload::None, now).await?.reply)
}

impl World {
    fn new(link: &mut Loopback<Files>, volume: &Volume, seed: u64) -> World {
        let (name, flags) = (b"locked", open_flags::RDWR);
        let create = Request::Create { parent: Ino::ROOT, name, mode: 0o600, umask: 0, flags };
        let file = match link.call(&Cred::root(), &create, &[]) {
            Ok((Reply::Created(attr, fh), _)) => (attr.ino, fh),
            other => panic!("{other:?}"),
        };
        let other = match finish(ask(volume, Request::Open { ino: file.0, flags })) {
            Ok(Reply::Opened(fh)) => fh,
            other => panic!("{other:?}"),
        };
        World {
            file,
            other,
            rng: Rng::new(seed),
            doing: [Doing::Nothing; OWNERS],
            oracle: Rc::new(RefCell::new(Oracle { held: [None; OWNERS + 1], step: 0 })),
            busy: Rc::default(),
            granted: 0,
            refused: 0,
        }
    }

    fn begin(&mut self, link: &mut Loopback<Files>, who: usize) {
        let ((ino, fh), owner) = (self.file, who as u64 + 1);
        let held = self.oracle.borrow().held[who];
        let (doing, request) = match held {
            Some(Held { lock, .. }) if self.rng.chance(1, 2) => {
                let flush = lock.style == LockStyle::Posix && self.rng.chance(1, 4);
                let lock = Lock { kind: LockKind::Unlock, ..lock };
                let unlock = Request::Setlk { ino, fh, lock, wait: false, reclaim: false };
                let flush = flush.then_some(Request::Flush { ino, fh, owner });
                (Doing::Unlocking, flush.unwrap_or(unlock))
            }
            None if self.rng.chance(1, 2) => {
                let lock = lock_of(&mut self.rng, owner);
                let wait = self.rng.chance(1, 4);
                (Doing::Locking(lock), Request::Setlk { ino, fh, lock, wait, reclaim: false })
            }
            _ => {
                let lock = lock_of(&mut self.rng, owner);
                let since = self.oracle.borrow().step;
                (Doing::Testing { lock, since }, Request::Getlk { ino, fh, lock })
            }
        };
        // What is unlocked is not relied upon from here on.
        if doing == Doing::Unlocking {
            self.oracle.borrow_mut().held[who] = None;
        }
        match link.start(&Cred::root(), &request, &[], who as u64) {
            true => self.doing[who] = doing,
            false => self.oracle.borrow_mut().held[who] = held,
        }
    }

    fn step(&mut self, link: &mut Loopback<Files>, volume: &Volume, more: bool) {
        self.oracle.borrow_mut().step += 1;
        for who in 0..OWNERS {
            let idle = self.doing[who] == Doing::Nothing;
            let holds = self.oracle.borrow().held[who].is_some();
            if idle && (more || holds) && self.rng.chance(1, 4) {
                self.begin(link, who);
            }
        }
        let holds = self.oracle.borrow().held[OWNERS].is_some();
        if !*self.busy.borrow() && (more || holds) && self.rng.chance(1, 100) {
            self.stranger(link, volume);
        }
        link.step();
        for (tag, outcome, _) in link.take_answered() {
            self.answered(tag as usize, outcome);
        }
    }

    /// Takes a lock if it can have it, tests for one, or drops what it has.
    fn stranger(&mut self, link: &mut Loopback<Files>, volume: &Volume) {
        let (oracle, busy) = (Rc::clone(&self.oracle), Rc::clone(&self.busy));
        let (volume, ino, fh) = (Arc::clone(volume), self.file.0, self.other);
        let lock = lock_of(&mut self.rng, 1);
        let test = self.rng.chance(1, 4);
        *busy.borrow_mut() = true;
        link.spawn(Box::pin(async move {
            let set = |lock| Request::Setlk { ino, fh, lock, wait: false, reclaim: false };
            let held = oracle.borrow_mut().held[OWNERS].take();
            if let Some(Held { lock, .. }) = held {
                let unlock = Lock { kind: LockKind::Unlock, ..lock };
                assert_eq!(ask(&volume, set(unlock)).await, Ok(Reply::Empty));
            } else if test {
                assert!(matches!(
                    ask(&volume, Request::Getlk { ino, fh, lock }).await,
                    Ok(Reply::Lock(_))
                ));
            } else {
                let mut outcome = ask(&volume, set(lock)).await;
                // It hears no events: it looks whether the wait is over, and what came of it.
                while let Ok(Reply::Waiting(ticket)) = outcome {
                    for _ in 0..8 {
                        pause().await;
                    }
                    outcome = match ask(&volume, Request::CancelLock { ticket }).await {
                        Err(Errno::ENOENT) => ask(&volume, set(lock)).await,
                        _ => Err(Errno::EAGAIN),
                    };
                }
                match outcome {
                    Ok(Reply::Empty) => oracle.borrow_mut().granted(OWNERS, lock),
                    other => assert_eq!(other, Err(Errno::EAGAIN)),
                }
            }
            *busy.borrow_mut() = false;
        }));
    }

    fn answered(&mut self, who: usize, outcome: Result<Reply>) {
        let doing = std::mem::replace(&mut self.doing[who], Doing::Nothing);
        match (doing, outcome) {
            (Doing::Locking(lock), Ok(Reply::Empty)) => {
                self.granted += 1;
                self.oracle.borrow_mut().granted(who, lock);
            }
            (Doing::Locking(_), Err(Errno::EAGAIN)) => self.refused += 1,
            (Doing::Unlocking, Ok(Reply::Empty)) => {}
            (Doing::Testing { lock, since }, Ok(Reply::Lock(found))) => {
                let oracle = self.oracle.borrow();
                let all_the_time = oracle.held.iter().enumerate().find(|(other, held)| {
                    held.is_some_and(|held| {
                        let whole = lock.style == LockStyle::Flock;
                        let meet = held.lock.start <= lock.end && lock.start <= held.lock.end;
                        let exclude =
                            held.lock.kind == LockKind::Write || lock.kind == LockKind::Write;
                        *other != who
                            && held.since < since
                            && held.lock.style == lock.style
                            && (whole || meet)
                            && exclude
                    })
                });
                let free = found.kind == LockKind::Unlock;
                assert!(
                    !(free && all_the_time.is_some()),
                    "{lock:?} is not free: {all_the_time:?}"
                );
            }
            (doing, outcome) => panic!("{who}: {doing:?} -> {outcome:?}"),
        }
    }

    /// The next life of the DPU side: what the stranger did in the last one ended with it, what it
    /// holds it hands in.
    fn hand_in(&self, volume: &Volume) {
        let ((ino, _), fh) = (self.file, self.other);
        let reclaim = Request::Reclaim { ino, fh, flags: open_flags::RDWR, directory: false };
        finish(ask(volume, reclaim)).unwrap();
        if let Some(Held { lock, .. }) = self.oracle.borrow().held[OWNERS] {
            let again = Request::Setlk { ino, fh, lock, wait: false, reclaim: true };
            assert_eq!(finish(ask(volume, again)), Ok(Reply::Empty), "{lock:?}");
        }
        *self.busy.borrow_mut() = false;
    }
}

/// Lets everybody else move once.
async fn pause() {
    let mut first = true;
    std::future::poll_fn(|_| match std::mem::take(&mut first) {
        true => std::task::Poll::Pending,
        false => std::task::Poll::Ready(()),
    })
    .await;
}

#[derive(Debug, PartialEq)]
struct Counted {
    trace: u64,
    decided: u64,
    granted: u64,
    refused: u64,
    losses: u64,
}

fn simulate(seed: u64) -> Counted {
    let mut rng = Rng::new(seed);
    let kv = Arc::new(MemKv::new(seed));
    let medium = Arc::new(MemMedium::new(seed));
    kv.set_faults(Faults { delay_polls: rng.below(4), ..Faults::default() });
    let mut volume = open(&kv, &medium);
    finish(volume.end_grace()).unwrap();
    let mut link = Loopback::new(Arc::clone(&volume), 2, 8, seed).unwrap();
    let mut world = World::new(&mut link, &volume, seed);
    let crash_one_in = 200 + rng.below(2_000);
    let lose_one_in = 100 + rng.below(1_000);
    for _ in 0..6_000 {
        world.step(&mut link, &volume, true);
        if rng.chance(1, lose_one_in) {
            link.lose_events();
        }
        if rng.chance(1, crash_one_in) {
            link.crash();
            for _ in 0..rng.below(20) {
                world.step(&mut link, &volume, true);
            }
            volume = open(&kv, &medium);
            world.hand_in(&volume);
            link.restart(Arc::clone(&volume)).unwrap().unwrap();
            let grace = Arc::clone(&volume);
            link.spawn(Box::pin(async move { grace.end_grace().await.unwrap() }));
        }
    }
    for _ in 0..1_000_000 {
        let idle = world.doing.iter().all(|doing| *doing == Doing::Nothing);
        let none = world.oracle.borrow().held.iter().all(Option::is_none);
        if idle && none && !*world.busy.borrow() {
            let counts = link.session().counts();
            assert_eq!(counts.locks, 0, "locks nobody holds");
            let (decided, losses) = (counts.decided, counts.losses);
            let (granted, refused) = (world.granted, world.refused);
            let trace = link.trace();
            return Counted { trace, decided, granted, refused, losses };
        }
        world.step(&mut link, &volume, false);
    }
    panic!("somebody waits for ever: {:?}, {:?}", world.doing, world.oracle.borrow().held);
}

#[test]
fn nobody_holds_what_another_holds() {
    let runs = seeds::run(0..30, simulate);
    let sum = |of: fn(&Counted) -> u64| runs.outcomes.iter().map(of).sum::<u64>();
    let (decided, losses) = (sum(|run| run.decided), sum(|run| run.losses));
    let (granted, refused) = (sum(|run| run.granted), sum(|run| run.refused));
    assert!(
        runs.is_alone || (decided > 1_000 && granted > 1_000 && refused > 100 && losses > 20),
        "{decided} decided, {granted} granted, {refused} refused, {losses} losses"
    );
}

#[test]
fn equal_seeds_give_equal_traces() {
    seeds::run(0..3, |seed| assert_repeats(seed, simulate));
}
