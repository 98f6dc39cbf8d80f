//! Replay: every operation that changes something, asked again with the replay flag, by the same
//! instance or by the next one, answers the same and changes nothing.

use outboard_base::{Cred, Errno, Fh, Ino, Timestamp};
use outboard_volume::Caller;
use outboard_wire::file::{
    Flags, Reply, Request, Setattr, SetattrTime, open_flags, rename_flags, write_flags,
};

use crate::world::{Disk, User, Volume, assert_clean, block_on, errno, picture, tidy};

const DIR: Ino = Ino(2);
const FILE: Ino = Ino(3);

/// A directory with a file, a symbolic link, an empty directory and a file with attributes.
fn furnish(user: &User<'_>) {
    let dir = user.mkdir(Ino::ROOT, "dir").unwrap().ino;
    let (file, fh) = user.create(dir, "file", 0).unwrap();
    assert_eq!((dir, file.ino), (DIR, FILE));
    user.write(FILE, fh, 0, &[5; 9000]).unwrap();
    user.close(FILE, fh).unwrap();
    user.symlink(dir, "link", "file").unwrap();
    user.mkdir(dir, "empty").unwrap();
    user.file(dir, "other").unwrap();
    user.setxattr(FILE, "user.old", b"value", 0).unwrap();
}

/// Every change, with the payload that goes with it.
fn changes() -> Vec<(Request<'static>, &'static [u8])> {
    let at = SetattrTime::At(Timestamp { sec: 9, nsec: 9 });
    let set = Setattr { mode: Some(0o600), mtime: Some(at), ..Setattr::default() };
    let cut = Setattr { size: Some(10), ..Setattr::default() };
    let truncating = open_flags::RDWR | open_flags::TRUNC;
    let of_files = [
        (Request::Setattr { ino: FILE, fh: Fh::NONE, set }, &b""[..]),
        (Request::Setattr { ino: FILE, fh: Fh::NONE, set: cut }, b""),
        (Request::Open { ino: FILE, flags: truncating }, b""),
        (create(b"file", truncating), b""),
        (Request::Setxattr { ino: FILE, name: b"user.new", flags: 1 }, b"value"),
        (Request::Removexattr { ino: FILE, name: b"user.old" }, b""),
    ];
    changes_of_names().into_iter().chain(of_files).collect()
}

fn create(name: &'static [u8], flags: u32) -> Request<'static> {
    Request::Create { parent: DIR, name, mode: 0o600, umask: 0, flags }
}

fn changes_of_names() -> Vec<(Request<'static>, &'static [u8])> {
    let (parent, umask) = (DIR, 0);
    let flags = open_flags::RDWR;
    let rename = |name, to_parent, to_name, flags| Request::Rename {
        parent,
        name,
        to_parent,
        to_name,
        flags,
    };
    vec![
        (Request::Mkdir { parent, name: b"new", mode: 0o755, umask }, b""),
        (Request::Mknod { parent, name: b"new", mode: 0o010_600, umask, rdev: 0 }, b""),
        (Request::Symlink { parent, name: b"new" }, b"target"),
        (create(b"new", flags), b""),
        (create(b"new", flags | open_flags::EXCL), b""),
        (Request::Tmpfile { parent, mode: 0o600, umask, flags }, b""),
        (Request::Link { ino: FILE, to_parent: Ino::ROOT, to_name: b"hard" }, b""),
        (Request::Unlink { parent, name: b"file" }, b""),
        (Request::Unlink { parent, name: b"link" }, b""),
        (Request::Rmdir { parent, name: b"empty" }, b""),
        (rename(b"file", Ino::ROOT, b"moved", 0), b""),
        (rename(b"empty", Ino::ROOT, b"moved", rename_flags::NOREPLACE), b""),
        (rename(b"empty", parent, b"other", rename_flags::EXCHANGE), b""),
        (rename(b"other", parent, b"file", 0), b""),
    ]
}

/// Handles are an instance's own; all else must be the same.
fn without_handle(reply: Reply) -> Reply {
    match reply {
        Reply::Created(attr, _) => Reply::Created(attr, Fh::NONE),
        Reply::Opened(_) => Reply::Opened(Fh::NONE),
        reply => reply,
    }
}

#[test]
fn the_same_answer_and_nothing_changes() {
    for (request, payload) in changes() {
        for restart in [false, true] {
            let disk = Disk::new(5);
            let volume = disk.open_settled();
            let mut user = User::root(&volume);
            furnish(&user);
            for ino in 2..20 {
                user.forget(Ino(ino));
            }
            let first = user.ask(request.clone(), payload).unwrap().0;
            let before = picture(&volume);
            user.flags = Flags::REPLAY;
            let (sequence, now) = (user.sequence.get(), user.now.get());
            if !restart {
                let again = user.again(request.clone(), payload).unwrap().0;
                assert_eq!(without_handle(again), without_handle(first), "{request:?}");
                assert_eq!(picture(&volume), before, "{request:?}");
                continue;
            }
            drop(volume);
            let volume = disk.open();
            let mut user = User::root(&volume);
            (user.flags, user.sequence, user.now) = (Flags::REPLAY, sequence.into(), now.into());
            let again = user.again(request.clone(), payload).unwrap().0;
            assert_eq!(without_handle(again.clone()), without_handle(first), "{request:?}");
            block_on(volume.end_grace()).unwrap();
            tidy(&volume);
            assert_eq!(picture(&volume), before, "{request:?}");
            if let Reply::Created(attr, fh) = again {
                assert_eq!(user.write(attr.ino, fh, 0, b"usable"), Ok(6));
            }
            assert_clean(&volume);
        }
    }
}

#[test]
fn a_request_that_was_never_done_is_done() {
    for (request, payload) in changes() {
        let disk = Disk::new(5);
        let volume = disk.open_settled();
        let mut user = User::root(&volume);
        furnish(&user);
        let before = picture(&volume);
        user.flags = Flags::REPLAY;
        user.ask(request.clone(), payload).unwrap();
        let nameless = matches!(request, Request::Tmpfile { .. });
        assert!(nameless || picture(&volume) != before, "{request:?}");
    }
}

#[test]
fn a_lane_keeps_its_last_reply_and_a_session_its_own_lanes() {
    let disk = Disk::new(5);
    let volume = disk.open_settled();
    let mut user = User::root(&volume);
    let mut other = User::attached(&volume, 2);
    user.mkdir(Ino::ROOT, "a").unwrap();
    let sequence = user.sequence.get();
    other.sequence.set(sequence);
    other.flags = Flags::REPLAY;
    let request = |name| Request::Mkdir { parent: Ino::ROOT, name, mode: 0o777, umask: 0 };
    assert_eq!(errno(other.again(request(b"a"), &[])), Errno::EEXIST);
    user.mkdir(Ino::ROOT, "b").unwrap();
    user.flags = Flags::REPLAY;
    user.sequence.set(sequence);
    assert_eq!(errno(user.again(request(b"a"), &[])), Errno::EEXIST, "acknowledged and forgotten");
    // A replay of something else under a recorded sequence is no replay.
    user.sequence.set(sequence + 1);
    let other = Request::Rmdir { parent: Ino::ROOT, name: b"a" };
    assert_eq!(errno(user.again(other, &[])), Errno::EPROTO);
}

#[test]
fn records_go_with_their_session() {
    let records =
        |volume: &Volume| block_on(volume.check(Default::default())).unwrap().counts.replay_records;
    let disk = Disk::new(5);
    let volume = disk.open_settled();
    let (user, other) = (User::attached(&volume, 1), User::attached(&volume, 2));
    user.mkdir(Ino::ROOT, "a").unwrap();
    other.mkdir(Ino::ROOT, "b").unwrap();
    assert_eq!(records(&volume), 2);
    volume.detach(other.caller.attachment);
    tidy(&volume);
    assert_eq!(records(&volume), 1);
    other.mkdir(Ino::ROOT, "c").unwrap();
    drop(volume);
    let volume = disk.open();
    User::attached(&volume, 2).mkdir(Ino::ROOT, "d").unwrap();
    block_on(volume.end_grace()).unwrap();
    tidy(&volume);
    assert_eq!(records(&volume), 1, "attachment 1 did not come back");
}

#[test]
fn a_replayed_close_of_a_handle_nobody_knows_is_done() {
    let disk = Disk::new(5);
    let volume = disk.open_settled();
    let mut user = User::root(&volume);
    let ino = user.file(Ino::ROOT, "f").unwrap().ino;
    assert_eq!(errno(user.close(ino, Fh(3))), Errno::EBADF);
    user.flags = Flags::REPLAY;
    user.close(ino, Fh(3)).unwrap();
}

/// A record of a truncating open does not say of which file. Asked again about another one, under
/// the same sequence, it was taken for leave to open that.
#[test]
fn a_record_is_no_leave_to_open_something_else() {
    let disk = Disk::new(5);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let secret = root.file(Ino::ROOT, "secret").unwrap().ino;
    root.chmod(secret, 0o600).unwrap();
    let mut user = User::attached(&volume, 9);
    user.cred = Cred::user(10, 10);
    user.caller = Caller { trusted: false, peer: Cred::user(10, 10), ..user.caller };
    let own = user.file(Ino::ROOT, "own").unwrap().ino;
    user.open(own, open_flags::RDWR | open_flags::TRUNC).unwrap();
    user.flags = Flags::REPLAY;
    let open = |ino| Request::Open { ino, flags: open_flags::RDWR | open_flags::TRUNC };
    assert_eq!(errno(user.again(open(secret), &[])), Errno::ESTALE);
    user.lookup(Ino::ROOT, "secret").unwrap();
    user.sequence.set(user.sequence.get() - 1);
    assert_eq!(errno(user.again(open(secret), &[])), Errno::EACCES);
    assert!(user.again(open(own), &[]).is_ok());
}

/// Attachment 1 overwrites a block, and the DPU side dies before it answers. By then attachment 2
/// had seen those bytes and written over them. The replay of the first write carried no record, was
/// done again, and lay over the newer bytes. In a small file as in a big one, and whether the
/// instance is still there (a host that hung up) or the next one.
#[test]
fn a_write_sent_again_does_not_come_over_a_newer_one() {
    for (size, restart) in [(9000, false), (9000, true), (100, false), (100, true)] {
        let disk = Disk::new(5);
        let volume = disk.open_settled();
        let (mut one, two) = (User::attached(&volume, 1), User::attached(&volume, 2));
        let (file, fh) = one.create(Ino::ROOT, "file", 0).unwrap();
        one.write(file.ino, fh, 0, &vec![b'0'; size]).unwrap();
        two.lookup(Ino::ROOT, "file").unwrap();
        let other = two.open(file.ino, open_flags::RDWR).unwrap();
        assert_eq!(one.write(file.ino, fh, 10, b"older"), Ok(5));
        assert_eq!(two.read(file.ino, other, 10, 5).unwrap(), b"older");
        assert_eq!(two.write(file.ino, other, 10, b"newer"), Ok(5));
        let again = Request::Write { ino: file.ino, fh, offset: 10, flags: 0 };
        one.flags = Flags::REPLAY;
        if !restart {
            assert_eq!(one.again(again, b"older").unwrap().0, Reply::Written(5));
            assert_eq!(two.read(file.ino, other, 10, 5).unwrap(), b"newer");
            continue;
        }
        let sequence = one.sequence.get();
        drop(volume);
        let volume = disk.open();
        let mut one = User::attached(&volume, 1);
        let flags = open_flags::RDWR;
        one.done(Request::Reclaim { ino: file.ino, fh, flags, directory: false }, &[]).unwrap();
        (one.flags, one.sequence) = (Flags::REPLAY, sequence.into());
        assert_eq!(one.again(again, b"older").unwrap().0, Reply::Written(5));
        assert_eq!(one.read(file.ino, fh, 10, 5).unwrap(), b"newer", "size {size}");
        assert_clean(&volume);
    }
}

/// An `O_DSYNC` write was committed and recorded, and the DPU side died before the sync that was to
/// follow. Its replay was answered from the record at once, so that a power loss then took what its
/// program was told is durable.
#[test]
fn a_durable_write_answered_from_its_record_is_durable() {
    for seed in 0..20 {
        let disk = Disk::new(seed);
        let volume = disk.open_settled();
        let one = User::root(&volume);
        let (file, fh) = one.create(Ino::ROOT, "file", 0).unwrap();
        one.write(file.ino, fh, 0, &[b'0'; 9000]).unwrap();
        one.sync().unwrap();
        one.write(file.ino, fh, 0, &[b'1'; 8192]).unwrap();
        let sequence = one.sequence.get();
        drop(volume);
        let volume = disk.open();
        let mut one = User::root(&volume);
        let flags = open_flags::RDWR;
        one.done(Request::Reclaim { ino: file.ino, fh, flags, directory: false }, &[]).unwrap();
        (one.flags, one.sequence) = (Flags::REPLAY, sequence.into());
        let again = Request::Write { ino: file.ino, fh, offset: 0, flags: write_flags::DSYNC };
        assert_eq!(one.again(again, &[b'1'; 8192]).unwrap().0, Reply::Written(8192));
        drop(volume);
        disk.crash();
        let volume = disk.open_settled();
        let one = User::root(&volume);
        let fh = one.open(file.ino, open_flags::RDWR).unwrap();
        let found = one.read(file.ino, fh, 0, 8192).unwrap();
        assert!(found == [b'1'; 8192], "seed {seed}: a durable write is lost");
    }
}

/// A user on an attachment that is not trusted.
fn plain(volume: &Volume, attachment: u64, uid: u32) -> User<'_> {
    let mut user = User::attached(volume, attachment);
    user.cred = Cred::user(uid, uid);
    user.caller = Caller { trusted: false, peer: Cred::user(uid, uid), ..user.caller };
    user
}

/// A plain user made a file of mode 0444 and held the handle to write that making it gave. After a
/// loss of the DPU side the handle was judged by the mode, refused, and every write failed with
/// `EBADF`. What the mode refuses to others stays refused.
#[test]
fn the_owner_keeps_a_handle_to_write_a_file_nobody_may_write() {
    let disk = Disk::new(5);
    let volume = disk.open_settled();
    let create = Request::Create {
        parent: Ino::ROOT,
        name: b"made",
        mode: 0o444,
        umask: 0,
        flags: open_flags::RDWR,
    };
    let owner = plain(&volume, 9, 10);
    let Reply::Created(attr, fh) = owner.ask(create, &[]).unwrap().0 else { panic!() };
    owner.write(attr.ino, fh, 0, b"before").unwrap();
    let sequence = owner.sequence.get();
    drop(volume);
    let volume = disk.open();
    let reclaim =
        |fh| Request::Reclaim { ino: attr.ino, fh, flags: open_flags::RDWR, directory: false };
    let other = plain(&volume, 10, 11);
    assert_eq!(errno(other.ask(reclaim(fh), &[])), Errno::EACCES);
    let owner = plain(&volume, 9, 10);
    owner.sequence.set(sequence);
    owner.done(reclaim(fh), &[]).unwrap();
    assert_eq!(owner.write(attr.ino, fh, 0, b"after "), Ok(6));
    assert_eq!(owner.read(attr.ino, fh, 0, 6).unwrap(), b"after ");
}
