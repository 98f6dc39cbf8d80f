//! `fcntl(2)` byte-range locks: conflicts, splitting and merging, waiting, deadlock.

use std::time::Duration;

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_wire::file::LockKind::{Read, Unlock, Write};
use outboard_wire::file::{LockKind, open_flags};

use crate::actor::Actor;
use crate::case::{Case, Outcome, case, check, needs, refused, same};

const END: u64 = u64::MAX;
/// Long enough for any wake-up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Long enough to see that nothing comes.
const BRIEFLY: Duration = Duration::from_millis(60);

/// A file to lock, open.
struct Locked {
    ino: Ino,
    fh: Fh,
}

impl Locked {
    fn new(t: &mut Actor<'_>, name: &str) -> Result<Locked> {
        let (ino, fh) = t.create(t.dir, name, 0o644)?;
        Ok(Locked { ino, fh })
    }

    fn set(&self, t: &mut Actor<'_>, by: u64, kind: LockKind, at: (u64, u64)) -> Result<()> {
        t.lock(self.ino, self.fh, Actor::range(by, kind, at.0, at.1))
    }

    fn wait(
        &self,
        t: &mut Actor<'_>,
        by: u64,
        kind: LockKind,
        at: (u64, u64),
    ) -> Result<Option<u64>> {
        t.lock_wait(self.ino, self.fh, Actor::range(by, kind, at.0, at.1))
    }

    /// What stands in the way of `by`: kind and range.
    fn test(
        &self,
        t: &mut Actor<'_>,
        by: u64,
        kind: LockKind,
        at: (u64, u64),
    ) -> Result<Option<(LockKind, u64, u64)>> {
        let found = t.lock_test(self.ino, self.fh, Actor::range(by, kind, at.0, at.1))?;
        Ok(found.map(|lock| (lock.kind, lock.start, lock.end)))
    }

    /// The ranges of 0..100 that owner 1 holds, found by asking as owner 99.
    fn held(&self, t: &mut Actor<'_>) -> Result<Vec<(LockKind, u64, u64)>> {
        let (mut at, mut all) = (0, Vec::new());
        while at < 100 {
            let Some(found) = self.test(t, 99, Write, (at, 99))? else { break };
            at = found.2.saturating_add(1);
            all.push(found);
        }
        Ok(all)
    }

    fn done(self, t: &mut Actor<'_>) -> Outcome {
        for owner in [1, 2, 3, 99] {
            t.flush(self.ino, self.fh, owner)?;
        }
        t.close(self.ino, self.fh)?;
        Ok(())
    }
}

pub(super) const CASES: &[Case] = &[
    case("lock/readers share, a writer does not", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Read, (0, 9))?;
        f.set(t, 2, Read, (0, 9))?;
        refused("writer", f.set(t, 3, Write, (5, 5)), Errno::EAGAIN)?;
        f.set(t, 3, Write, (10, 19))?;
        refused("reader", f.set(t, 1, Read, (19, 30)), Errno::EAGAIN)?;
        f.done(t)
    }),
    case("lock/one's own locks never conflict", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Read, (0, 9))?;
        f.set(t, 1, Write, (0, 9))?;
        f.set(t, 1, Write, (5, 20))?;
        f.set(t, 1, Read, (0, 99))?;
        same("held", f.held(t)?, vec![(Read, 0, 99)])?;
        f.done(t)
    }),
    case("lock/unlocking the middle splits", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Write, (0, 99))?;
        f.set(t, 1, Unlock, (40, 59))?;
        same("held", f.held(t)?, vec![(Write, 0, 39), (Write, 60, 99)])?;
        f.set(t, 2, Write, (40, 59))?;
        refused("left", f.set(t, 2, Write, (39, 39)), Errno::EAGAIN)?;
        refused("right", f.set(t, 2, Write, (60, 60)), Errno::EAGAIN)?;
        f.done(t)
    }),
    case("lock/changing the kind of the middle splits", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Write, (0, 99))?;
        f.set(t, 1, Read, (40, 59))?;
        f.set(t, 2, Read, (40, 59))?;
        refused("left", f.set(t, 2, Read, (0, 40)), Errno::EAGAIN)?;
        refused("right", f.set(t, 2, Read, (59, 70)), Errno::EAGAIN)?;
        f.done(t)
    }),
    case("lock/neighbours of one kind merge", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Write, (0, 9))?;
        f.set(t, 1, Write, (20, 29))?;
        f.set(t, 1, Write, (10, 19))?;
        same("held", f.held(t)?, vec![(Write, 0, 29)])?;
        f.set(t, 1, Unlock, (0, 29))?;
        same("held", f.held(t)?, vec![])?;
        f.done(t)
    }),
    case("lock/unlocking more than is held is fine", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Write, (10, 19))?;
        f.set(t, 1, Unlock, (0, END))?;
        f.set(t, 1, Unlock, (0, END))?;
        same("held", f.held(t)?, vec![])?;
        f.done(t)
    }),
    case("lock/to the end covers what is not written yet", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Write, (100, END))?;
        refused("far", f.set(t, 2, Read, (1 << 50, 1 << 50)), Errno::EAGAIN)?;
        f.set(t, 2, Write, (0, 99))?;
        same("told", f.test(t, 2, Write, (1 << 40, END))?, Some((Write, 100, END)))?;
        f.done(t)
    }),
    case("lock/a test tells what stands in the way", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Read, (10, 19))?;
        same("read", f.test(t, 2, Read, (0, 99))?, None)?;
        same("write", f.test(t, 2, Write, (0, 99))?, Some((Read, 10, 19)))?;
        same("beside", f.test(t, 2, Write, (20, 99))?, None)?;
        same("own", f.test(t, 1, Write, (0, 99))?, None)?;
        let found = t.lock_test(f.ino, f.fh, Actor::range(2, Write, 0, 99))?;
        if t.features().lock_owners {
            same("whose", found.map(|lock| lock.pid), Some(1))?;
        }
        f.done(t)
    }),
    case("lock/a flush by its owner drops all of them", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Write, (0, 9))?;
        f.set(t, 1, Write, (20, 29))?;
        f.set(t, 2, Write, (40, 49))?;
        t.flush(f.ino, f.fh, 1)?;
        f.set(t, 3, Write, (0, 29))?;
        refused("another's stays", f.set(t, 3, Write, (40, 40)), Errno::EAGAIN)?;
        f.done(t)
    }),
    case("lock/files do not share locks", |t| {
        let (f, g) = (Locked::new(t, "f")?, Locked::new(t, "g")?);
        f.set(t, 1, Write, (0, END))?;
        g.set(t, 2, Write, (0, END))?;
        f.done(t)?;
        g.done(t)
    }),
    case("lock/every name of a file is the same file", |t| {
        let f = Locked::new(t, "f")?;
        t.link(f.ino, t.dir, "g")?;
        let ino = t.lookup(t.dir, "g")?.ino;
        let fh = t.open(ino, open_flags::RDWR)?;
        f.set(t, 1, Write, (0, 9))?;
        refused("lock", t.lock(ino, fh, Actor::range(2, Write, 0, 9)), Errno::EAGAIN)?;
        t.close(ino, fh)?;
        f.done(t)
    }),
    case("lock/waits until the way is free", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Write, (0, 9))?;
        let ticket = f.wait(t, 2, Write, (5, 5))?;
        let ticket = ticket.ok_or(Errno::EPROTO)?;
        check(!t.granted(ticket, BRIEFLY)?, "not yet")?;
        f.set(t, 1, Unlock, (0, 9))?;
        check(t.granted(ticket, PATIENCE)?, "granted")?;
        refused("held", f.set(t, 1, Read, (5, 5)), Errno::EAGAIN)?;
        f.done(t)
    }),
    case("lock/what need not wait does not", |t| {
        let f = Locked::new(t, "f")?;
        same("ticket", f.wait(t, 1, Write, (0, 9))?, None)?;
        same("ticket", f.wait(t, 2, Write, (10, 19))?, None)?;
        f.done(t)
    }),
    case("lock/a close in front lets a waiter in", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Write, (0, 9))?;
        let ticket = f.wait(t, 2, Read, (0, 0))?.ok_or(Errno::EPROTO)?;
        t.flush(f.ino, f.fh, 1)?;
        check(t.granted(ticket, PATIENCE)?, "granted")?;
        f.done(t)
    }),
    case("lock/several readers wait and all come in", |t| {
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Write, (0, 9))?;
        let a = f.wait(t, 2, Read, (0, 9))?.ok_or(Errno::EPROTO)?;
        let b = f.wait(t, 3, Read, (0, 9))?.ok_or(Errno::EPROTO)?;
        f.set(t, 1, Unlock, (0, 9))?;
        check(t.granted(a, PATIENCE)? && t.granted(b, PATIENCE)?, "both granted")?;
        f.done(t)
    }),
    case("lock/a wait can be given up", |t| {
        needs(t.features().cancel_lock, "a waiting system call is not given up here")?;
        let f = Locked::new(t, "f")?;
        f.set(t, 1, Write, (0, 9))?;
        let ticket = f.wait(t, 2, Write, (0, 9))?.ok_or(Errno::EPROTO)?;
        t.cancel(ticket)?;
        f.set(t, 1, Unlock, (0, 9))?;
        f.set(t, 3, Write, (0, 9))?;
        refused("twice", t.cancel(ticket), Errno::ENOENT)?;
        f.done(t)
    }),
    case("lock/a circle of waits is EDEADLK", |t| {
        needs(t.features().lock_owners, "locks here belong to open files, which may deadlock")?;
        let (f, g) = (Locked::new(t, "f")?, Locked::new(t, "g")?);
        f.set(t, 1, Write, (0, 9))?;
        g.set(t, 2, Write, (0, 9))?;
        let ticket = g.wait(t, 1, Write, (0, 9))?.ok_or(Errno::EPROTO)?;
        refused("the second", f.wait(t, 2, Write, (5, 5)), Errno::EDEADLK)?;
        g.set(t, 2, Unlock, (0, 9))?;
        check(t.granted(ticket, PATIENCE)?, "the first goes on")?;
        f.done(t)?;
        g.done(t)
    }),
    case("lock/a circle of three is EDEADLK", |t| {
        needs(t.features().lock_owners, "locks here belong to open files, which may deadlock")?;
        let f = Locked::new(t, "f")?;
        for owner in 1..=3 {
            f.set(t, owner, Write, (owner * 10, owner * 10))?;
        }
        let a = f.wait(t, 1, Write, (20, 20))?.ok_or(Errno::EPROTO)?;
        let b = f.wait(t, 2, Write, (30, 30))?.ok_or(Errno::EPROTO)?;
        refused("the third", f.wait(t, 3, Write, (10, 10)), Errno::EDEADLK)?;
        t.flush(f.ino, f.fh, 3)?;
        check(t.granted(b, PATIENCE)?, "the second goes on")?;
        t.flush(f.ino, f.fh, 2)?;
        check(t.granted(a, PATIENCE)?, "the first goes on")?;
        f.done(t)
    }),
    case("lock/a range that ends before it starts is EINVAL", |t| {
        needs(!t.features().kernel, "no system call can say it")?;
        let f = Locked::new(t, "f")?;
        refused("lock", f.set(t, 1, Write, (10, 9)), Errno::EINVAL)?;
        f.done(t)
    }),
    case("lock/a thousand small ones", |t| {
        let f = Locked::new(t, "f")?;
        for n in 0..1000 {
            f.set(t, 1, Write, (n * 2, n * 2))?;
        }
        f.set(t, 2, Write, (1, 1))?;
        refused("held", f.set(t, 2, Write, (1000, 1000)), Errno::EAGAIN)?;
        for n in 0..1000 {
            f.set(t, 1, Unlock, (n * 2, n * 2))?;
        }
        f.set(t, 2, Write, (0, END))?;
        f.done(t)
    }),
];
