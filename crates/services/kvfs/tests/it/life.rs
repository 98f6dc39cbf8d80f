//! Inodes without a name: who holds them, and when they go.

use outboard_base::{Errno, Fh, Ino, SessionId};
use outboard_volume::VolumeEvent;
use outboard_wire::file::{Attr, Reply, Request, open_flags};

use crate::world::{Disk, User, Volume, assert_clean, block_on, errno, tidy};

const BIG: &[u8] = &[7; 100_000];

/// Sizes of what is to be deleted: none, a pair, an object.
const SIZES: [usize; 3] = [0, 100, 100_000];

fn orphans(volume: &Volume) -> u64 {
    block_on(volume.check(Default::default())).unwrap().counts.orphans
}

#[test]
fn an_open_file_outlives_its_name() {
    for size in SIZES {
        let disk = Disk::new(2);
        let volume = disk.open_settled();
        let user = User::root(&volume);
        let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
        let ino = attr.ino;
        user.write(ino, fh, 0, &BIG[..size]).unwrap();
        assert_eq!(user.unlink(Ino::ROOT, "f"), Ok(Some(ino)));
        assert_eq!(errno(user.lookup(Ino::ROOT, "f")), Errno::ENOENT);
        assert_eq!(user.stat(ino).unwrap().nlink, 0);
        assert_eq!(user.read(ino, fh, 0, 1 << 20).unwrap(), &BIG[..size]);
        user.write(ino, fh, size as u64, b"more").unwrap();
        assert_eq!(errno(user.link(ino, Ino::ROOT, "again")), Errno::ENOENT);
        user.forget(ino);
        assert_eq!(user.stat(ino).unwrap().nlink, 0, "the handle holds it");
        assert_clean(&volume);
        user.close(ino, fh).unwrap();
        assert_eq!(errno(user.stat(ino)), Errno::ESTALE);
        assert_clean(&volume);
        assert_eq!(orphans(&volume), 0);
    }
}

#[test]
fn who_was_told_holds_it_until_they_forget() {
    let disk = Disk::new(2);
    let volume = disk.open_settled();
    let (user, other) = (User::attached(&volume, 1), User::attached(&volume, 2));
    let ino = user.file(Ino::ROOT, "f").unwrap().ino;
    other.lookup(Ino::ROOT, "f").unwrap();
    assert_eq!(user.unlink(Ino::ROOT, "f"), Ok(Some(ino)));
    user.forget(ino);
    assert_eq!(other.stat(ino).unwrap().nlink, 0);
    volume.detach(other.caller.attachment);
    tidy(&volume);
    assert_eq!(errno(user.stat(ino)), Errno::ESTALE);

    // Forgotten before: gone with the batch that takes the name.
    let ino = user.file(Ino::ROOT, "g").unwrap().ino;
    user.forget(ino);
    assert_eq!(user.unlink(Ino::ROOT, "g"), Ok(None));
    assert_eq!(errno(user.stat(ino)), Errno::ESTALE);
    assert_clean(&volume);
}

/// Unlinks `name`; the attributes that come back if the inode is gone for the asker.
fn gone(user: &User<'_>, name: &str) -> Option<Attr> {
    let request = Request::Unlink { parent: Ino::ROOT, name: name.as_bytes() };
    match user.ask(request, &[]).unwrap().0 {
        Reply::Gone { last, parent } => {
            let now = user.stat(Ino::ROOT).unwrap();
            assert_eq!(parent, Some(now.into()), "how the directory is");
            Some(last)
        }
        Reply::Removed(_) => None,
        reply => panic!("{reply:?}"),
    }
}

/// What only the asker has an interest in, and nobody has open, goes with its name: in one batch,
/// if it is no very big file.
#[test]
fn a_file_only_its_remover_knew_of_goes_with_its_name() {
    for size in SIZES {
        let disk = Disk::new(2);
        let volume = disk.open_settled();
        let (user, other) = (User::attached(&volume, 1), User::attached(&volume, 2));
        let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
        let ino = attr.ino;
        user.write(ino, fh, 0, &BIG[..size]).unwrap();
        user.setxattr(ino, "user.note", b"text", 0).unwrap();
        user.close(ino, fh).unwrap();
        disk.kv.dies_after(1);
        let last = gone(&user, "f").unwrap();
        assert_eq!(disk.kv.left(), 0, "one batch");
        disk.kv.dies_after(u64::MAX);
        assert_eq!((last.ino, last.nlink, last.size), (ino, 0, size as u64));
        for user in [&user, &other] {
            assert_eq!(errno(user.stat(ino)), Errno::ESTALE);
            assert_eq!(errno(user.open(ino, 0)), Errno::ESTALE);
        }
        user.forget(ino);
        assert_clean(&volume);
        assert_eq!(orphans(&volume), 0);
        // Replaced by rename is removed, too.
        let old = user.file(Ino::ROOT, "old").unwrap().ino;
        user.file(Ino::ROOT, "new").unwrap();
        assert_eq!(user.rename((Ino::ROOT, "new"), (Ino::ROOT, "old"), 0), Ok(None));
        assert_eq!(errno(user.stat(old)), Errno::ESTALE);
        assert_clean(&volume);
    }
}

/// More than one batch can give back: the name goes at once, and for good; the rest follows, after
/// a crash too.
#[test]
fn the_rest_of_a_very_big_file_follows_its_name() {
    const PAGES: u64 = 20 * 128;
    const PAGE_SPAN: u64 = 256 << 10;
    for crashes in [false, true] {
        let disk = Disk::new(2);
        let volume = disk.open_settled();
        let user = User::root(&volume);
        let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
        for page in 0..PAGES {
            user.write(attr.ino, fh, page * PAGE_SPAN, b"here and there").unwrap();
        }
        user.close(attr.ino, fh).unwrap();
        disk.kv.dies_after(if crashes { 2 } else { u64::MAX });
        assert_eq!(gone(&user, "f").unwrap().size, (PAGES - 1) * PAGE_SPAN + 14);
        assert_eq!(errno(user.open(attr.ino, 0)), Errno::ESTALE);
        disk.kv.dies_after(u64::MAX);
        let volume = if crashes { disk.open_settled() } else { volume };
        let user = User::root(&volume);
        assert_eq!(errno(user.lookup(Ino::ROOT, "f")), Errno::ENOENT);
        tidy(&volume);
        assert_eq!(errno(user.stat(attr.ino)), Errno::ESTALE);
        assert_clean(&volume);
        assert_eq!(orphans(&volume), 0);
    }
}

/// What may be in use without the volume knowing (a fifo, a working directory) waits to be
/// forgotten.
#[test]
fn what_is_no_regular_file_waits_to_be_forgotten() {
    let disk = Disk::new(2);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let fifo = user.mknod(Ino::ROOT, "fifo", 0o010_600).unwrap().ino;
    let dir = user.mkdir(Ino::ROOT, "dir").unwrap().ino;
    assert_eq!(user.unlink(Ino::ROOT, "fifo"), Ok(Some(fifo)));
    assert_eq!(user.rmdir(Ino::ROOT, "dir"), Ok(Some(dir)));
    for ino in [fifo, dir] {
        assert_eq!(user.stat(ino).unwrap().nlink, 0);
        user.forget(ino);
        assert_eq!(errno(user.stat(ino)), Errno::ESTALE);
    }
    assert_clean(&volume);
}

#[test]
fn a_removed_directory_that_is_held_takes_nothing_in() {
    let disk = Disk::new(2);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let dir = user.mkdir(Ino::ROOT, "d").unwrap().ino;
    let fh = user.opendir(dir).unwrap();
    assert_eq!(user.rmdir(Ino::ROOT, "d"), Ok(Some(dir)));
    assert_eq!(errno(user.file(dir, "x")), Errno::ENOENT);
    assert_eq!(errno(user.tmpfile(dir, 0)), Errno::ENOENT);
    let file = user.file(Ino::ROOT, "f").unwrap().ino;
    assert_eq!(errno(user.rename((Ino::ROOT, "f"), (dir, "f"), 0)), Errno::ENOENT);
    assert_eq!(errno(user.link(file, dir, "f")), Errno::ENOENT);
    assert_eq!(user.page(dir, fh, 0, 4096), Ok(vec![]));
    assert_eq!(errno(user.lookup(dir, "x")), Errno::ENOENT);
    user.forget(dir);
    user.done(Request::Releasedir { ino: dir, fh }, &[]).unwrap();
    assert_eq!(errno(user.stat(dir)), Errno::ESTALE);
    assert_clean(&volume);
}

#[test]
fn a_file_made_without_a_name_can_be_given_one() {
    let disk = Disk::new(2);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let (attr, fh) = user.tmpfile(Ino::ROOT, 0).unwrap();
    assert_eq!(attr.nlink, 0);
    user.write(attr.ino, fh, 0, b"kept").unwrap();
    assert_eq!(user.link(attr.ino, Ino::ROOT, "named").unwrap().nlink, 1);
    let (secret, secret_fh) = user.tmpfile(Ino::ROOT, open_flags::EXCL).unwrap();
    assert_eq!(errno(user.link(secret.ino, Ino::ROOT, "other")), Errno::ENOENT);
    for (ino, fh) in [(attr.ino, fh), (secret.ino, secret_fh)] {
        user.close(ino, fh).unwrap();
        user.forget(ino);
    }
    assert_eq!(user.stat(attr.ino).unwrap().size, 4);
    assert_eq!(errno(user.stat(secret.ino)), Errno::ESTALE);
    // A name once lost is not given again.
    let fh = user.open(attr.ino, 0).unwrap();
    user.unlink(Ino::ROOT, "named").unwrap();
    assert_eq!(errno(user.link(attr.ino, Ino::ROOT, "again")), Errno::ENOENT);
    user.close(attr.ino, fh).unwrap();
    assert_clean(&volume);
}

#[test]
fn after_a_restart_orphans_wait_for_those_who_held_them() {
    for size in SIZES {
        let disk = Disk::new(2);
        let (ino, lost, fh);
        {
            let volume = disk.open_settled();
            let user = User::root(&volume);
            let (attr, open) = user.create(Ino::ROOT, "f", 0).unwrap();
            (ino, fh) = (attr.ino, open);
            user.write(ino, fh, 0, &BIG[..size]).unwrap();
            user.unlink(Ino::ROOT, "f").unwrap();
            let (attr, other) = user.create(Ino::ROOT, "g", 0).unwrap();
            lost = attr.ino;
            user.write(lost, other, 0, &BIG[..size]).unwrap();
            user.unlink(Ino::ROOT, "g").unwrap();
        }
        let volume = disk.open();
        let user = User::root(&volume);
        tidy(&volume);
        let reclaim = |ino, fh| {
            user.done(Request::Reclaim { ino, fh, flags: open_flags::RDWR, directory: false }, &[])
        };
        reclaim(ino, fh).unwrap();
        reclaim(ino, fh).unwrap();
        assert_eq!(errno(reclaim(ino, Fh(u64::MAX))), Errno::EBADF);
        assert_eq!(errno(reclaim(Ino(99_999), Fh(77))), Errno::ESTALE);
        block_on(volume.end_grace()).unwrap();
        tidy(&volume);
        assert_eq!(errno(user.stat(lost)), Errno::ESTALE);
        assert_eq!(user.read(ino, fh, 0, 1 << 20).unwrap(), &BIG[..size]);
        let new = user.open(Ino(ino.0), 0).unwrap();
        assert_ne!(new, fh, "numbers of instances stay apart");
        for fh in [fh, new] {
            user.close(ino, fh).unwrap();
        }
        user.forget(ino);
        assert_eq!(errno(user.stat(ino)), Errno::ESTALE);
        assert_clean(&volume);
        assert_eq!(orphans(&volume), 0);
    }
}

#[test]
fn what_is_unlinked_in_grace_waits_for_those_who_may_hold_it() {
    let disk = Disk::new(2);
    let (ino, fh);
    {
        let volume = disk.open_settled();
        let user = User::root(&volume);
        let (attr, open) = user.create(Ino::ROOT, "f", 0).unwrap();
        (ino, fh) = (attr.ino, open);
    }
    let volume = disk.open();
    let (early, late) = (User::attached(&volume, 5), User::attached(&volume, 1));
    early.unlink(Ino::ROOT, "f").unwrap();
    late.done(Request::Reclaim { ino, fh, flags: 0, directory: false }, &[]).unwrap();
    block_on(volume.end_grace()).unwrap();
    tidy(&volume);
    assert_eq!(late.stat(ino).unwrap().nlink, 0);
    late.close(ino, fh).unwrap();
    late.forget(ino);
    assert_eq!(errno(late.stat(ino)), Errno::ESTALE);
    assert_clean(&volume);
}

#[test]
fn numbers_are_never_given_out_twice() {
    let disk = Disk::new(2);
    let mut seen = std::collections::HashSet::new();
    for round in 0..5 {
        let volume = disk.open_settled();
        let user = User::root(&volume);
        for n in 0..700 {
            let ino = user.file(Ino::ROOT, &format!("{round}-{n}")).unwrap().ino;
            assert!(ino.0 >= 2 && seen.insert(ino), "{ino}");
            if n % 2 == 0 {
                user.unlink(Ino::ROOT, &format!("{round}-{n}")).unwrap();
            }
        }
        drop(volume);
        disk.crash();
        // What a crash takes back nobody has seen for sure; what it leaves keeps its number.
        let volume = disk.open_settled();
        let user = User::root(&volume);
        let left = user.names(Ino::ROOT);
        seen = left.iter().map(|name| user.lookup(Ino::ROOT, name).unwrap().ino).collect();
    }
}

#[test]
fn a_handle_belongs_to_its_attachment_and_inode() {
    let disk = Disk::new(2);
    let volume = disk.open_settled();
    let (user, other) = (User::attached(&volume, 1), User::attached(&volume, 2));
    let (file, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
    let dir = user.mkdir(Ino::ROOT, "d").unwrap().ino;
    let dir_fh = user.opendir(dir).unwrap();
    assert_eq!(errno(other.close(file.ino, fh)), Errno::EBADF);
    assert_eq!(errno(other.read(file.ino, fh, 0, 10)), Errno::EBADF);
    assert_eq!(errno(user.close(dir, fh)), Errno::EBADF);
    assert_eq!(errno(user.close(dir, dir_fh)), Errno::EBADF);
    assert_eq!(errno(user.page(dir, fh, 0, 4096)), Errno::EBADF);
    assert_eq!(errno(user.page(file.ino, fh, 0, 4096)), Errno::ENOTDIR);
    user.close(file.ino, fh).unwrap();
    assert_eq!(errno(user.close(file.ino, fh)), Errno::EBADF);
}

/// What the events of one attachment say: inodes, and names in the root.
fn stale(volume: &Volume, who: u64) -> (Vec<Ino>, Vec<String>) {
    let (mut inos, mut names) = (Vec::new(), Vec::new());
    for event in volume.take_events() {
        match event {
            VolumeEvent::StaleInode { attachment, ino } => {
                assert_eq!(attachment.0, who);
                inos.push(ino);
            }
            VolumeEvent::StaleEntry { attachment, parent, name } => {
                assert_eq!((attachment.0, parent), (who, Ino::ROOT));
                names.push(String::from_utf8(name).unwrap());
            }
            VolumeEvent::LockSettled { .. }
            | VolumeEvent::RecallLocks { .. }
            | VolumeEvent::RecallPages { .. } => panic!("nobody locks or recalls"),
        }
    }
    (inos, names)
}

#[test]
fn others_hear_of_changes_to_what_they_were_told_of() {
    let disk = Disk::new(2);
    let volume = disk.open_settled();
    let (user, other) = (User::attached(&volume, 1), User::attached(&volume, 2));
    let ino = user.file(Ino::ROOT, "f").unwrap().ino;
    assert_eq!(stale(&volume, 0), (vec![], vec![]), "nobody else is there");
    assert_eq!(errno(other.lookup(Ino::ROOT, "g")), Errno::ENOENT);
    user.file(Ino::ROOT, "g").unwrap();
    assert_eq!(stale(&volume, 2), (vec![], vec!["g".to_owned()]));
    user.chmod(ino, 0o600).unwrap();
    assert_eq!(stale(&volume, 2), (vec![], vec![]), "it has no interest in it");
    other.lookup(Ino::ROOT, "f").unwrap();
    user.chmod(ino, 0o640).unwrap();
    assert_eq!(stale(&volume, 2), (vec![ino], vec![]));
    other.chmod(ino, 0o600).unwrap();
    assert_eq!(stale(&volume, 1), (vec![ino], vec![]));
    let fh = user.open(ino, open_flags::RDWR).unwrap();
    user.write(ino, fh, 0, b"x").unwrap();
    assert_eq!(stale(&volume, 2), (vec![ino], vec![]));
    user.rename((Ino::ROOT, "f"), (Ino::ROOT, "h"), 0).unwrap();
    assert_eq!(stale(&volume, 2), (vec![ino], vec!["f".to_owned(), "h".to_owned()]));
    user.unlink(Ino::ROOT, "h").unwrap();
    assert_eq!(stale(&volume, 2), (vec![ino], vec!["h".to_owned()]));
}

/// Opens `ino` until that is refused: how many handles that were, and the errno.
fn open_all(user: &User<'_>, ino: Ino) -> (Vec<Fh>, Errno) {
    let mut open = Vec::new();
    loop {
        match user.open(ino, open_flags::RDWR) {
            Ok(fh) => open.push(fh),
            Err(errno) => return (open, errno),
        }
        assert!(open.len() < 1000, "no end");
    }
}

/// Handles were bounded for the volume alone: where others may attach, one user opened a million
/// files, and nobody else any. A user and an attachment have shares, and root and the owner a
/// reserve; what is closed, or goes with its attachment, is there again.
#[test]
fn nobody_takes_all_handles() {
    let disk = Disk::new(2);
    let options = outboard_kvfs::Options {
        handles_max: 64,
        handles_user_max: 20,
        handles_attachment_max: 8,
        ..outboard_kvfs::Options::default()
    };
    let volume = disk.open_with(options);
    block_on(volume.end_grace()).unwrap();
    let root = User::root(&volume);
    let ino = root.file(Ino::ROOT, "f").unwrap().ino;
    let attached = |attachment, uid| {
        let mut user = User::attached(&volume, attachment).by(uid, uid);
        (user.caller.trusted, user.caller.peer) = (false, user.cred.clone());
        user.lookup(Ino::ROOT, "f").unwrap();
        user
    };
    let greedy = [2, 3, 4].map(|attachment| attached(attachment, 10));
    let counts = greedy.each_ref().map(|user| {
        let (open, errno) = open_all(user, ino);
        (open.len(), errno)
    });
    assert_eq!(counts, [(8, Errno::EMFILE), (8, Errno::EMFILE), (4, Errno::ENFILE)]);
    // Through a mount it is the same user.
    assert_eq!(open_all(&root.by(10, 10), ino).1, Errno::ENFILE);
    assert_eq!(errno(greedy[2].opendir(Ino::ROOT)), Errno::ENFILE);

    let (second, refused) = open_all(&root.by(11, 11), ino);
    assert_eq!((second.len(), refused), (20, Errno::ENFILE), "another has a share, too");
    let (third, refused) = open_all(&root.by(12, 12), ino);
    assert_eq!((third.len(), refused), (16, Errno::ENFILE), "the reserve");
    let (reserve, refused) = open_all(&root, ino);
    assert_eq!((reserve.len(), refused), (8, Errno::ENFILE), "there is an end to it");
    reserve.iter().for_each(|&fh| root.close(ino, fh).unwrap());

    volume.detach(greedy[0].caller.attachment);
    assert_eq!(open_all(&root.by(12, 12), ino).0.len(), 4);
    assert_eq!(open_all(&greedy[2], ino).0.len(), 4);
    second.iter().for_each(|&fh| root.by(11, 11).close(ino, fh).unwrap());
    assert_eq!(open_all(&root.by(11, 11), ino).0.len(), 20);
    let figures = outboard_volume::Housekeeping::figures(&volume);
    let figure = |name| figures.iter().find(|(key, _)| *key == name).unwrap().1;
    assert_eq!((figure("open"), figure("open_by_one_user")), (56, 20));
    assert!(figure("open_refused") >= 10);
    for attachment in [1, 3, 4] {
        volume.detach(SessionId(attachment));
    }
    assert_eq!(outboard_volume::Housekeeping::figures(&volume)[10], ("open", 0));
}
