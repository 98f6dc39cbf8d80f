//! The event ring overflows while locks are waited for.
//!
//! The grant of a waiting lock is told by an event alone. A session that heard of an overflow told
//! its front-end and nobody else, so that a `SETLKW` whose grant was among the lost waited for
//! ever.

use std::sync::Arc;

use outboard_base::{Cred, Errno, Fh, Ino, Result};
use outboard_kv::mem::MemKv;
use outboard_medium::mem::MemMedium;
use outboard_sim::loopback::Loopback;
use outboard_wire::file::{Lock, LockKind, LockStyle, Reply, Request, open_flags};

use crate::simulation::{Files, open};

const DEPTH: u16 = 4;

struct World {
    link: Loopback<Files>,
    file: (Ino, Fh),
    answered: Vec<(u64, Result<Reply>)>,
}

impl World {
    fn new(seed: u64) -> World {
        let volume = open(&Arc::new(MemKv::new(seed)), &Arc::new(MemMedium::new(seed)));
        let grace = Arc::clone(&volume);
        let mut link = Loopback::new(volume, 2, DEPTH, seed).unwrap();
        link.spawn(Box::pin(async move { grace.end_grace().await.unwrap() }));
        let request = Request::Create {
            parent: Ino::ROOT,
            name: b"f",
            mode: 0o600,
            umask: 0,
            flags: open_flags::RDWR,
        };
        let (reply, _) = link.call(&Cred::root(), &request, &[]).unwrap();
        let Reply::Created(attr, fh) = reply else { panic!("{reply:?}") };
        World { link, file: (attr.ino, fh), answered: Vec::new() }
    }

    /// Asks, under the owner's number as the tag; the owners' ranges are all one.
    fn ask(&mut self, owner: u64, kind: LockKind) {
        let (ino, fh) = self.file;
        let lock = Lock { owner, start: 0, end: 9, kind, style: LockStyle::Posix, pid: 0 };
        let request = Request::Setlk { ino, fh, lock, wait: true, reclaim: false };
        while !self.link.start(&Cred::root(), &request, &[], owner) {
            self.step();
        }
    }

    fn step(&mut self) {
        self.link.step();
        self.answered.extend(self.link.take_answered().into_iter().map(|(tag, out, _)| (tag, out)));
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    /// Steps until `owner` is answered, once.
    fn answer(&mut self, owner: u64) -> Result<Reply> {
        for _ in 0..100_000 {
            if let Some(at) = self.answered.iter().position(|(tag, _)| *tag == owner) {
                return self.answered.swap_remove(at).1;
            }
            self.step();
        }
        panic!("owner {owner} waits for ever");
    }
}

#[test]
fn a_grant_that_is_lost_is_asked_for_again() {
    for seed in 1..30 {
        let mut world = World::new(seed);
        world.ask(1, LockKind::Write);
        assert_eq!(world.answer(1), Ok(Reply::Empty));
        // More waiters than the session's own queue has slots.
        let waiters = 2..=u64::from(DEPTH) * 4;
        for owner in waiters.clone() {
            world.ask(owner, LockKind::Write);
        }
        world.steps(500);
        assert!(world.answered.is_empty(), "seed {seed}: {:?}", world.answered);
        // The lock goes from hand to hand, and most of what is told of it is lost.
        world.ask(1, LockKind::Unlock);
        assert_eq!(world.answer(1), Ok(Reply::Empty));
        for left in (0..waiters.clone().count()).rev() {
            world.link.lose_events();
            let mut tries = 0..100_000;
            while world.answered.is_empty() {
                assert!(tries.next().is_some(), "seed {seed}: nobody of {left} is granted it");
                world.step();
            }
            let (owner, outcome) = world.answered.swap_remove(0);
            assert_eq!(outcome, Ok(Reply::Empty), "seed {seed}");
            assert!(world.answered.is_empty(), "seed {seed}: one holds it, and was told once");
            world.ask(owner, LockKind::Unlock);
            assert_eq!(world.answer(owner), Ok(Reply::Empty));
        }
        world.steps(500);
        assert!(world.answered.is_empty(), "seed {seed}: nothing is answered twice");
        assert_eq!(world.link.session().counts().locks, 0);
    }
}

#[test]
fn who_gives_up_while_a_wait_is_in_doubt_is_told_so_once() {
    for seed in 1..100 {
        let mut world = World::new(seed);
        world.ask(1, LockKind::Write);
        assert_eq!(world.answer(1), Ok(Reply::Empty));
        world.ask(2, LockKind::Write);
        world.steps(500);
        world.link.lose_events();
        world.steps(usize::try_from(seed % 40).unwrap());
        let mut tries = 0..10_000;
        while !world.link.session().abort(2) {
            assert!(tries.next().is_some(), "seed {seed}: nobody knows the call");
            world.step();
        }
        assert_eq!(world.answer(2), Err(Errno::EINTR), "seed {seed}");
        world.ask(1, LockKind::Unlock);
        assert_eq!(world.answer(1), Ok(Reply::Empty));
        world.steps(500);
        assert!(world.answered.is_empty(), "seed {seed}: {:?}", world.answered);
        world.ask(3, LockKind::Write);
        assert_eq!(world.answer(3), Ok(Reply::Empty), "seed {seed}: it did not take the lock");
    }
}

/// With the DPU side given up, a close and an unlock were refused and forgotten: when the side came
/// back, the session handed in a handle and a lock that nobody had any more, for as long as it
/// lived.
#[test]
fn what_is_closed_while_nobody_is_there_is_not_handed_in() {
    let mut world = World::new(7);
    world.ask(1, LockKind::Write);
    assert_eq!(world.answer(1), Ok(Reply::Empty));
    world.link.crash();
    world.link.give_up();
    world.ask(1, LockKind::Unlock);
    assert_eq!(world.answer(1), Err(Errno::ENOTCONN));
    let (ino, fh) = world.file;
    let release = Request::Release { ino, fh, owner: 0 };
    assert!(world.link.start(&Cred::root(), &release, &[], 2));
    assert_eq!(world.answer(2), Err(Errno::ENOTCONN));
    let counts = world.link.session().counts();
    assert_eq!((counts.handles, counts.locks), (0, 0));
}
