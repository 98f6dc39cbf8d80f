//! Locks as requests: who waits is notified by an event, and whoever goes leaves nothing behind.

use outboard_base::{Errno, Fh, Ino, Result, SessionId};
use outboard_volume::VolumeEvent;
use outboard_wire::file::{Lock, LockKind, LockStyle, Reply, Request};

use crate::world::{Disk, User, Volume, block_on, errno};

const WHOLE: (u64, u64) = (0, u64::MAX);

fn posix(owner: u64, kind: LockKind, (start, end): (u64, u64)) -> Lock {
    Lock { owner, start, end, kind, style: LockStyle::Posix, pid: 40 + owner as u32 }
}

fn flock(owner: u64, kind: LockKind) -> Lock {
    Lock { style: LockStyle::Flock, ..posix(owner, kind, WHOLE) }
}

/// An open file of one user.
struct Open<'u> {
    user: &'u User<'u>,
    ino: Ino,
    fh: Fh,
}

impl Open<'_> {
    fn ask(&self, lock: Lock, wait: bool, reclaim: bool) -> Result<Reply> {
        let (ino, fh) = (self.ino, self.fh);
        self.user.ask(Request::Setlk { ino, fh, lock, wait, reclaim }, &[]).map(|answer| answer.0)
    }

    fn set(&self, lock: Lock) -> Result<Reply> {
        self.ask(lock, false, false)
    }

    fn wait(&self, lock: Lock) -> u64 {
        match self.ask(lock, true, false).unwrap() {
            Reply::Waiting(ticket) => ticket,
            reply => panic!("{reply:?}"),
        }
    }

    fn test(&self, lock: Lock) -> Lock {
        let (ino, fh) = (self.ino, self.fh);
        match self.user.ask(Request::Getlk { ino, fh, lock }, &[]).unwrap().0 {
            Reply::Lock(found) => found,
            reply => panic!("{reply:?}"),
        }
    }
}

fn settled(volume: &Volume) -> Vec<(u64, u64, Result<()>)> {
    let locks = volume.take_events().into_iter().filter_map(|event| match event {
        VolumeEvent::LockSettled { attachment: SessionId(who), ticket, result } => {
            Some((who, ticket, result))
        }
        _ => None,
    });
    locks.collect()
}

/// Two attachments with the same file open, by the same owner numbers.
fn two<'u>(first: &'u User<'u>, second: &'u User<'u>) -> (Open<'u>, Open<'u>) {
    let (attr, fh) = first.create(Ino::ROOT, "f", 0).unwrap();
    let other = second.open(attr.ino, 2).unwrap();
    let open = |user, fh| Open { user, ino: attr.ino, fh };
    (open(first, fh), open(second, other))
}

#[test]
fn a_wait_ends_with_an_event() {
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let (first, second) = (User::attached(&volume, 1), User::attached(&volume, 2));
    let (a, b) = two(&first, &second);
    assert_eq!(a.set(posix(7, LockKind::Write, (0, 99))), Ok(Reply::Empty));
    // The same number from another attachment is another owner.
    assert_eq!(errno(b.set(posix(7, LockKind::Read, (50, 60)))), Errno::EAGAIN);
    let found = b.test(posix(7, LockKind::Read, (50, 60)));
    assert_eq!((found.kind, found.start, found.end, found.pid), (LockKind::Write, 0, 99, 47));
    assert_eq!(b.test(posix(7, LockKind::Read, (100, 200))).kind, LockKind::Unlock);
    // flock does not see byte ranges.
    assert_eq!(b.set(flock(7, LockKind::Write)), Ok(Reply::Empty));
    let ticket = b.wait(posix(7, LockKind::Read, (50, 60)));
    assert_eq!(settled(&volume), []);
    assert_eq!(a.set(posix(7, LockKind::Unlock, (55, 55))), Ok(Reply::Empty));
    assert_eq!(settled(&volume), [], "a byte is not enough");
    assert_eq!(a.set(posix(7, LockKind::Read, (0, 99))), Ok(Reply::Empty));
    assert_eq!(settled(&volume), [(2, ticket, Ok(()))]);
    // Given up: no event, and only once.
    let ticket = b.wait(posix(7, LockKind::Write, WHOLE));
    assert_eq!(errno(first.done(Request::CancelLock { ticket }, &[])), Errno::ENOENT);
    second.done(Request::CancelLock { ticket }, &[]).unwrap();
    assert_eq!(errno(second.done(Request::CancelLock { ticket }, &[])), Errno::ENOENT);
    assert_eq!(a.set(posix(7, LockKind::Unlock, WHOLE)), Ok(Reply::Empty));
    assert_eq!(settled(&volume), []);
}

#[test]
fn closing_and_detaching_drop_locks() {
    let disk = Disk::new(2);
    let volume = disk.open_settled();
    let (first, second) = (User::attached(&volume, 1), User::attached(&volume, 2));
    let (a, b) = two(&first, &second);
    a.set(posix(1, LockKind::Write, WHOLE)).unwrap();
    a.set(flock(1, LockKind::Write)).unwrap();
    let (ranged, whole) =
        (b.wait(posix(1, LockKind::Write, WHOLE)), b.wait(flock(1, LockKind::Read)));
    // One descriptor closed: the owner's byte ranges go, the flock stays.
    first.done(Request::Flush { ino: a.ino, fh: a.fh, owner: 1 }, &[]).unwrap();
    assert_eq!(settled(&volume), [(2, ranged, Ok(()))]);
    first.done(Request::Release { ino: a.ino, fh: a.fh, owner: 1 }, &[]).unwrap();
    assert_eq!(settled(&volume), [(2, whole, Ok(()))]);
    // Gone: everything it held and waited for.
    let c = Open { user: &first, ino: a.ino, fh: first.open(a.ino, 2).unwrap() };
    let ticket = c.wait(posix(3, LockKind::Read, (5, 5)));
    volume.detach(SessionId(2));
    assert_eq!(settled(&volume), [(1, ticket, Ok(()))]);
    assert_eq!(c.set(flock(3, LockKind::Write)), Ok(Reply::Empty));
}

/// Byte ranges need the access they lock against; flock needs none. A handle must be the file's.
#[test]
fn what_a_lock_needs() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let ino = user.file(Ino::ROOT, "f").unwrap().ino;
    let [reader, writer] = [0, 1].map(|flags| user.open(ino, flags).unwrap());
    let open = |fh| Open { user: &user, ino, fh };
    assert_eq!(errno(open(reader).set(posix(1, LockKind::Write, WHOLE))), Errno::EBADF);
    assert_eq!(errno(open(writer).set(posix(1, LockKind::Read, WHOLE))), Errno::EBADF);
    assert_eq!(open(reader).set(posix(1, LockKind::Read, WHOLE)), Ok(Reply::Empty));
    assert_eq!(open(reader).set(flock(1, LockKind::Write)), Ok(Reply::Empty));
    assert_eq!(errno(open(Fh(999)).set(flock(1, LockKind::Read))), Errno::EBADF);
    let directory = user.opendir(Ino::ROOT).unwrap();
    let open = Open { user: &user, ino: Ino::ROOT, fh: directory };
    assert_eq!(open.set(flock(1, LockKind::Write)), Ok(Reply::Empty), "directories, too");
}

/// An attachment that hung up and came back asked anew for what it waited for, and its old wait
/// stayed in the queue: the lock was granted to it when nobody wanted it any more, for good.
#[test]
fn who_comes_back_waits_only_for_what_it_asks_anew() {
    let disk = Disk::new(5);
    let volume = disk.open_settled();
    let (first, second) = (User::attached(&volume, 1), User::attached(&volume, 2));
    let (a, b) = two(&first, &second);
    a.set(flock(1, LockKind::Write)).unwrap();
    b.wait(flock(2, LockKind::Write));
    b.wait(flock(3, LockKind::Write));
    volume.is_back(SessionId(2));
    let again = b.wait(flock(3, LockKind::Write));
    a.set(flock(1, LockKind::Unlock)).unwrap();
    assert_eq!(settled(&volume), [(2, again, Ok(()))]);
    b.set(flock(3, LockKind::Unlock)).unwrap();
    assert_eq!(settled(&volume), []);
    assert_eq!(a.set(flock(1, LockKind::Write)), Ok(Reply::Empty));
}

/// After a new start locks are handed in again before others may have any; what waited asks again.
#[test]
fn locks_are_handed_in_after_a_loss() {
    let disk = Disk::new(4);
    let (ino, fh, old) = {
        let volume = disk.open_settled();
        let user = User::root(&volume);
        let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
        let open = Open { user: &user, ino: attr.ino, fh };
        open.set(posix(1, LockKind::Write, (0, 9))).unwrap();
        (attr.ino, fh, open.wait(posix(2, LockKind::Write, (5, 5))))
    };
    let volume = disk.open();
    let user = User::root(&volume);
    let reclaim = Request::Reclaim { ino, fh, flags: 2, directory: false };
    user.done(reclaim, &[]).unwrap();
    let open = Open { user: &user, ino, fh };
    // Somebody quicker than the holder waits, whatever is free now; who would not wait hears of it
    // at the end of grace. It was EAGAIN at once, which a program takes for somebody else's lock.
    let ticket = |reply| match reply {
        Ok(Reply::Waiting(ticket)) => ticket,
        other => panic!("{other:?}"),
    };
    let hasty = ticket(open.ask(posix(2, LockKind::Write, (5, 5)), false, false));
    let lucky = ticket(open.ask(posix(3, LockKind::Write, (50, 50)), false, false));
    let new = open.wait(posix(2, LockKind::Write, (5, 5)));
    assert_ne!(old, new, "tickets of two instances differ");
    assert_eq!(errno(user.done(Request::CancelLock { ticket: old }, &[])), Errno::ENOENT);
    assert_eq!(open.ask(posix(1, LockKind::Write, (0, 9)), false, true), Ok(Reply::Empty));
    block_on(volume.end_grace()).unwrap();
    let ended = [(1, lucky, Ok(())), (1, hasty, Err(Errno::EAGAIN))];
    assert_eq!(settled(&volume), ended, "the patient one waits for the holder now");
    open.set(posix(1, LockKind::Unlock, WHOLE)).unwrap();
    assert_eq!(settled(&volume), [(1, new, Ok(()))]);
}

/// The event of a grant was lost. Who cancels, is answered that nothing waits, and asks again,
/// has the lock at once; a wait that still stands is cancelled and waits anew.
#[test]
fn a_lost_event_is_made_up_for() {
    let disk = Disk::new(5);
    let volume = disk.open_settled();
    let (first, second) = (User::attached(&volume, 1), User::attached(&volume, 2));
    let (a, b) = two(&first, &second);
    a.set(posix(1, LockKind::Write, (0, 9))).unwrap();
    let wanted = posix(1, LockKind::Write, (5, 20));
    let lost = b.wait(wanted);
    let standing = b.wait(posix(2, LockKind::Write, (0, 30)));
    a.set(posix(1, LockKind::Unlock, (5, 9))).unwrap();
    assert_eq!(settled(&volume), [(2, lost, Ok(()))], "dropped here, as by a full ring");
    let cancel = |ticket| second.done(Request::CancelLock { ticket }, &[]);
    assert_eq!(errno(cancel(lost)), Errno::ENOENT);
    assert_eq!(b.ask(wanted, true, false), Ok(Reply::Empty));
    cancel(standing).unwrap();
    assert_ne!(b.wait(posix(2, LockKind::Write, (0, 30))), standing);
}
