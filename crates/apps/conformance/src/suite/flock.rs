//! `flock(2)`: locks of whole files, which belong to open files.

use std::time::Duration;

use outboard_base::Errno;
use outboard_wire::file::LockKind::{Read, Unlock, Write};
use outboard_wire::file::open_flags;

use crate::actor::Actor;
use crate::case::{Case, case, check, refused, same};

const PATIENCE: Duration = Duration::from_secs(10);

pub(super) const CASES: &[Case] = &[
    case("flock/shared by readers, alone for a writer", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.lock(ino, fh, Actor::whole(1, Read))?;
        t.lock(ino, fh, Actor::whole(2, Read))?;
        refused("writer", t.lock(ino, fh, Actor::whole(3, Write)), Errno::EAGAIN)?;
        t.lock(ino, fh, Actor::whole(1, Unlock))?;
        t.lock(ino, fh, Actor::whole(2, Unlock))?;
        t.lock(ino, fh, Actor::whole(3, Write))?;
        refused("reader", t.lock(ino, fh, Actor::whole(1, Read)), Errno::EAGAIN)?;
        t.lock(ino, fh, Actor::whole(3, Unlock))?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("flock/changes its kind when nobody minds", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.lock(ino, fh, Actor::whole(1, Write))?;
        t.lock(ino, fh, Actor::whole(1, Read))?;
        t.lock(ino, fh, Actor::whole(2, Read))?;
        refused("up", t.lock(ino, fh, Actor::whole(1, Write)), Errno::EAGAIN)?;
        t.lock(ino, fh, Actor::whole(1, Unlock))?;
        t.lock(ino, fh, Actor::whole(2, Write))?;
        t.lock(ino, fh, Actor::whole(2, Unlock))?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("flock/is dropped by the release of its open file", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        let other = t.open(ino, open_flags::RDWR)?;
        t.lock(ino, fh, Actor::whole(1, Write))?;
        t.flush(ino, fh, 1)?;
        refused("still held", t.lock(ino, other, Actor::whole(2, Write)), Errno::EAGAIN)?;
        t.release(ino, fh, 1)?;
        t.lock(ino, other, Actor::whole(2, Write))?;
        t.release(ino, other, 2)?;
        Ok(())
    }),
    case("flock/does not see byte ranges, nor they it", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.lock(ino, fh, Actor::whole(1, Write))?;
        t.lock(ino, fh, Actor::range(2, Write, 0, u64::MAX))?;
        refused("flock", t.lock(ino, fh, Actor::whole(2, Read)), Errno::EAGAIN)?;
        refused("range", t.lock(ino, fh, Actor::range(1, Read, 0, 0)), Errno::EAGAIN)?;
        t.flush(ino, fh, 2)?;
        t.lock(ino, fh, Actor::whole(1, Unlock))?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("flock/waits until the way is free", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.lock(ino, fh, Actor::whole(1, Write))?;
        let ticket = t.lock_wait(ino, fh, Actor::whole(2, Write))?.ok_or(Errno::EPROTO)?;
        check(!t.granted(ticket, Duration::from_millis(60))?, "not yet")?;
        t.lock(ino, fh, Actor::whole(1, Unlock))?;
        check(t.granted(ticket, PATIENCE)?, "granted")?;
        t.lock(ino, fh, Actor::whole(2, Unlock))?;
        same("at once", t.lock_wait(ino, fh, Actor::whole(1, Write))?, None)?;
        t.lock(ino, fh, Actor::whole(1, Unlock))?;
        t.close(ino, fh)?;
        Ok(())
    }),
    case("flock/unlocking what is not locked is fine", |t| {
        let (ino, fh) = t.create(t.dir, "f", 0o644)?;
        t.lock(ino, fh, Actor::whole(1, Unlock))?;
        t.close(ino, fh)?;
        Ok(())
    }),
];
