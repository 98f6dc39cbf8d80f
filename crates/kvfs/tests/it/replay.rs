//! Replay: every operation that changes something, asked again with the replay flag, by the same
//! instance or by the next one, answers the same and changes nothing.

use outboard_base::{Cred, Errno, Fh, Ino, Timestamp};
use outboard_kvfs::Caller;
use outboard_wire::file::{Flags, Reply, Request, Setattr, SetattrTime, open_flags, rename_flags};

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
    let (parent, umask) = (DIR, 0);
    let flags = open_flags::RDWR;
    let at = SetattrTime::At(Timestamp { sec: 9, nsec: 9 });
    let set = Setattr { mode: Some(0o600), mtime: Some(at), ..Setattr::default() };
    let cut = Setattr { size: Some(10), ..Setattr::default() };
    let rename = |name, to_name, flags| Request::Rename {
        parent,
        name,
        to_parent: Ino::ROOT,
        to_name,
        flags,
    };
    vec![
        (Request::Mkdir { parent, name: b"new", mode: 0o755, umask }, b""),
        (Request::Mknod { parent, name: b"new", mode: 0o010_600, umask, rdev: 0 }, b""),
        (Request::Symlink { parent, name: b"new" }, b"target"),
        (Request::Create { parent, name: b"new", mode: 0o600, umask, flags }, b""),
        (
            Request::Create {
                parent,
                name: b"new",
                mode: 0o600,
                umask,
                flags: flags | open_flags::EXCL,
            },
            b"",
        ),
        (Request::Tmpfile { parent, mode: 0o600, umask, flags }, b""),
        (Request::Link { ino: FILE, to_parent: Ino::ROOT, to_name: b"hard" }, b""),
        (Request::Unlink { parent, name: b"file" }, b""),
        (Request::Unlink { parent, name: b"link" }, b""),
        (Request::Rmdir { parent, name: b"empty" }, b""),
        (rename(b"file", b"moved", 0), b""),
        (rename(b"empty", b"moved", rename_flags::NOREPLACE), b""),
        (
            Request::Rename {
                parent,
                name: b"empty",
                to_parent: parent,
                to_name: b"other",
                flags: rename_flags::EXCHANGE,
            },
            b"",
        ),
        (
            Request::Rename {
                parent,
                name: b"other",
                to_parent: parent,
                to_name: b"file",
                flags: 0,
            },
            b"",
        ),
        (Request::Setattr { ino: FILE, fh: Fh::NONE, set }, b""),
        (Request::Setattr { ino: FILE, fh: Fh::NONE, set: cut }, b""),
        (Request::Open { ino: FILE, flags: flags | open_flags::TRUNC }, b""),
        (
            Request::Create {
                parent,
                name: b"file",
                mode: 0o600,
                umask,
                flags: flags | open_flags::TRUNC,
            },
            b"",
        ),
        (Request::Setxattr { ino: FILE, name: b"user.new", flags: 1 }, b"value"),
        (Request::Removexattr { ino: FILE, name: b"user.old" }, b""),
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
