//! The store dies at every commit of a day's work. Afterwards the volume is whole, and holds what
//! was done up to some moment: after the death of a process every answered request, after power
//! loss all that was synced.

use std::collections::BTreeSet;

use outboard_base::task::poll_for;
use outboard_base::{Fh, Ino, Result, Timestamp};
use outboard_kv::mem;
use outboard_medium as medium;
use outboard_volume::Payload;
use outboard_wire::file::{Op, Request, Setattr, open_flags, rename_flags};

use crate::world::{Disk, User, Volume, assert_clean, block_on, picture};

type Step = fn(&User<'_>) -> Result<()>;

fn at(user: &User<'_>, name: &str) -> Ino {
    user.lookup(Ino::ROOT, name).map_or(Ino(u64::MAX), |attr| attr.ino)
}

/// A day's work, each step one request that changes names or attributes.
const STEPS: &[Step] = &[
    |user| user.mkdir(Ino::ROOT, "a").map(drop),
    |user| user.mkdir(at(user, "a"), "b").map(drop),
    |user| user.create(Ino::ROOT, "small", 0).map(drop),
    |user| {
        let ino = at(user, "small");
        let fh = user.open(ino, open_flags::RDWR)?;
        user.write(ino, fh, 0, b"little").map(drop)
    },
    |user| user.create(Ino::ROOT, "big", 0).map(drop),
    |user| {
        let ino = at(user, "big");
        let fh = user.open(ino, open_flags::RDWR)?;
        user.write(ino, fh, 0, &[9; 300_000]).map(drop)
    },
    |user| user.symlink(at(user, "a"), "link", "../small").map(drop),
    |user| user.link(at(user, "small"), at(user, "a"), "hard").map(drop),
    |user| user.sync(),
    |user| user.setxattr(at(user, "small"), "user.note", b"text", 0),
    |user| user.chmod(at(user, "small"), 0o600).map(drop),
    |user| user.rename((Ino::ROOT, "small"), (at(user, "a"), "moved"), 0).map(drop),
    |user| user.rename((Ino::ROOT, "big"), (at(user, "a"), "hard"), 0).map(drop),
    |user| user.file(Ino::ROOT, "other").map(drop),
    |user| {
        user.rename((at(user, "a"), "b"), (Ino::ROOT, "other"), rename_flags::EXCHANGE).map(drop)
    },
    |user| user.sync(),
    |user| user.tmpfile(Ino::ROOT, 0).map(drop),
    |user| user.done(Request::Removexattr { ino: Ino(4), name: b"user.note" }, &[]),
    |user| user.unlink(at(user, "a"), "moved").map(drop),
    |user| user.unlink(at(user, "a"), "hard").map(drop),
    |user| user.unlink(at(user, "a"), "link").map(drop),
    |user| user.unlink(at(user, "a"), "b").map(drop),
    |user| user.rmdir(Ino::ROOT, "a").map(drop),
];

/// The pictures after none, one, two ... steps.
fn pictures() -> Vec<Vec<String>> {
    (0..=STEPS.len())
        .map(|count| {
            let disk = Disk::new(6);
            let volume = disk.open_settled();
            let (done, _) = work(&User::root(&volume), count);
            assert_eq!(done, count, "a step that cannot be done");
            drop(volume);
            picture(&disk.open_settled())
        })
        .collect()
}

/// Does up to `most` steps until one fails; how many were answered, and how many were before the
/// last sync among them.
fn work(user: &User<'_>, most: usize) -> (usize, usize) {
    let mut synced = 0;
    for (done, step) in STEPS.iter().take(most).enumerate() {
        // Whoever dies in the middle forgets nothing; whoever goes on has closed and forgotten all.
        let before = user.now.get();
        let outcome = step(user);
        user.now.set(before + 100);
        if outcome.is_err() {
            return (done, synced);
        }
        if done == 8 || done == 15 {
            synced = done + 1;
        }
    }
    (most, synced)
}

fn run(power_loss: bool) {
    let pictures = pictures();
    for commits in 0.. {
        let disk = Disk::new(6 + commits);
        let volume = disk.open_settled();
        disk.kv.dies_after(commits);
        let (done, synced) = work(&User::root(&volume), STEPS.len());
        let survived = disk.kv.left() > 0;
        drop(volume);
        disk.kv.dies_after(u64::MAX);
        if power_loss {
            disk.crash();
        }
        let volume = disk.open_settled();
        assert_clean(&volume);
        let found = picture(&volume);
        let last = (done + 1).min(STEPS.len());
        let first = if power_loss { synced } else { done };
        assert!(
            (first..=last).any(|count| pictures[count] == found),
            "dead after {commits} commits, {done} steps done, {synced} synced:\n{found:#?}"
        );
        let user = User::root(&volume);
        user.mkdir(Ino::ROOT, "life goes on").unwrap();
        assert_clean(&volume);
        if survived {
            assert!(commits >= STEPS.len() as u64 - 2, "syncs commit nothing, all else does");
            return;
        }
    }
}

#[test]
fn a_dead_process_loses_nothing_answered() {
    run(false);
}

#[test]
fn power_loss_takes_back_nothing_synced_and_leaves_a_moment_that_was() {
    for _ in 0..4 {
        run(true);
    }
}

/// What [`furnished`] leaves, for operations to be about.
struct Rooms {
    dir: Ino,
    small: Ino,
    big: Ino,
    fh: Fh,
    nameless: Ino,
}

fn furnished(volume: &Volume) -> Rooms {
    let user = User::root(volume);
    let dir = user.mkdir(Ino::ROOT, "dir").unwrap().ino;
    user.mkdir(Ino::ROOT, "empty").unwrap();
    user.symlink(Ino::ROOT, "link", "dir/small").unwrap();
    let (small, fh) = user.create(dir, "small", 0).unwrap();
    user.write(small.ino, fh, 0, b"little").unwrap();
    user.setxattr(small.ino, "user.note", b"text", 0).unwrap();
    user.close(small.ino, fh).unwrap();
    let (big, fh) = user.create(Ino::ROOT, "big", 0).unwrap();
    user.write(big.ino, fh, 0, &[9; 300_000]).unwrap();
    user.close(big.ino, fh).unwrap();
    let (open, fh) = user.create(Ino::ROOT, "open", 0).unwrap();
    user.write(open.ino, fh, 0, &[8; 100_000]).unwrap();
    let (nameless, _) = user.tmpfile(Ino::ROOT, 0).unwrap();
    user.sync().unwrap();
    Rooms { dir, small: small.ino, big: open.ino, fh, nameless: nameless.ino }
}

/// Every operation that changes names, attributes or bytes, more than once where it has ways.
fn operations(rooms: &Rooms) -> Vec<(Request<'static>, &'static [u8])> {
    let &Rooms { dir, small, big, fh, nameless } = rooms;
    let (parent, umask, mode, flags) = (Ino::ROOT, 0, 0o644, open_flags::RDWR);
    let rename =
        |name, to_name, flags| Request::Rename { parent, name, to_parent: dir, to_name, flags };
    let size = |ino, size| {
        let set = Setattr { size: Some(size), ..Setattr::default() };
        Request::Setattr { ino, fh: Fh::NONE, set }
    };
    let set = Setattr { mode: Some(0o600), uid: Some(5), ..Setattr::default() };
    let fallocate = |mode| Request::Fallocate { ino: big, fh, offset: 8000, len: 200_000, mode };
    let plain = [
        Request::Mknod { parent, name: b"new", mode: 0o010_644, umask, rdev: 0 },
        Request::Mkdir { parent: dir, name: b"new", mode, umask },
        Request::Create { parent, name: b"new", mode, umask, flags },
        Request::Create { parent, name: b"big", mode, umask, flags: flags | open_flags::TRUNC },
        Request::Open { ino: small, flags: flags | open_flags::TRUNC },
        Request::Tmpfile { parent, mode, umask, flags },
        Request::Link { ino: small, to_parent: parent, to_name: b"new" },
        Request::Link { ino: nameless, to_parent: dir, to_name: b"new" },
        Request::Unlink { parent: dir, name: b"small" },
        Request::Unlink { parent, name: b"big" },
        Request::Unlink { parent, name: b"open" },
        Request::Unlink { parent, name: b"link" },
        Request::Rmdir { parent, name: b"empty" },
        rename(b"big", b"new", 0),
        rename(b"big", b"small", 0),
        rename(b"empty", b"new", rename_flags::NOREPLACE),
        rename(b"empty", b"small", rename_flags::EXCHANGE),
        Request::Setattr { ino: small, fh: Fh::NONE, set },
        size(small, 2),
        size(small, 50_000),
        size(big, 100),
        size(big, 8192),
        Request::Removexattr { ino: small, name: b"user.note" },
        fallocate(0),
        fallocate(1),
        fallocate(3),
        fallocate(16),
        Request::CopyFileRange {
            from: big,
            from_fh: fh,
            from_offset: 0,
            to: big,
            to_fh: fh,
            to_offset: 200_000,
            len: 60_000,
        },
    ];
    let with = [
        (Request::Symlink { parent, name: b"new" }, b"target".as_slice()),
        (Request::Setxattr { ino: small, name: b"user.note", flags: 0 }, b"other"),
        (Request::Setxattr { ino: dir, name: b"user.new", flags: 0 }, b"value"),
        (Request::Write { ino: big, fh, offset: 5000, flags: 0 }, &[2; 50_000]),
        (Request::Write { ino: big, fh, offset: 99_999, flags: 0 }, &[2; 20_000]),
    ];
    plain.into_iter().map(|request| (request, b"".as_slice())).chain(with).collect()
}

/// What is to be seen after operation `which` was polled so often and the process died, and whether
/// the operation had been answered.
fn cut_off(which: usize, polls: u64) -> (Vec<String>, bool) {
    let disk = Disk::new(2);
    let volume = disk.open_settled();
    let rooms = furnished(&volume);
    let (request, payload) = operations(&rooms).swap_remove(which);
    disk.kv.set_faults(mem::Faults { delay_polls: 2, ..mem::Faults::default() });
    let slow = medium::mem::Faults { delay_polls: 2, ..medium::mem::Faults::default() };
    disk.medium.set_faults(slow);
    let user = User::root(&volume);
    user.sequence.set(10_000);
    let (header, now) = (user.header(), Timestamp { sec: 3_000_000, nsec: 0 });
    let payload = Payload::Bytes(payload.to_vec());
    let answer = poll_for(polls, volume.handle(&user.caller, &header, request, payload, now));
    if let Some(Err(errno)) = answer {
        panic!("operation {which}: {errno}");
    }
    let answered = answer.is_some();
    disk.kv.set_faults(mem::Faults::default());
    disk.medium.set_faults(medium::mem::Faults::default());
    drop(volume);
    let volume = disk.open_settled();
    assert_clean(&volume);
    let found = picture(&volume);
    block_on(volume.tidy()).unwrap();
    assert_clean(&volume);
    (found, answered)
}

/// Each operation there is, its process dead after any number of its steps: what is found is what
/// was before, or what the operation makes, and that if it was answered. Four were tried before.
#[test]
fn every_operation_cut_off_at_any_point_is_done_or_not_done() {
    let disk = Disk::new(2);
    let volume = disk.open_settled();
    let all = operations(&furnished(&volume));
    drop(volume);
    // Handles and locks are in memory: they end with the process, done or not.
    let unstored = [
        Op::Flush,
        Op::Release,
        Op::Opendir,
        Op::Releasedir,
        Op::Setlk,
        Op::CancelLock,
        Op::Reclaim,
    ];
    let tried: BTreeSet<Op> = all.iter().map(|(request, _)| request.op()).collect();
    for op in Op::ALL.iter().filter(|op| op.changes() && !unstored.contains(op)) {
        assert!(tried.contains(op), "{op:?} is not tried");
    }
    for (which, (request, _)) in all.iter().enumerate() {
        let (before, _) = cut_off(which, 0);
        let (after, answered) = cut_off(which, 100_000);
        assert!(answered, "{request:?} does not end");
        for polls in 1.. {
            let (found, answered) = cut_off(which, polls);
            let done = found == after;
            assert!(done || found == before, "{request:?} after {polls}: neither old nor new");
            assert!(done || !answered, "{request:?} after {polls}: answered and lost");
            if answered {
                break;
            }
        }
    }
}
