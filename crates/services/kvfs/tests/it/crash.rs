//! The store dies at every commit of a day's work. Afterwards the volume is whole, and holds what
//! was done up to some moment: after the death of a process every answered request, after power
//! loss all that was synced.

use outboard_base::{Ino, Result};
use outboard_wire::file::{Request, open_flags, rename_flags};

use crate::world::{Disk, User, assert_clean, picture};

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
