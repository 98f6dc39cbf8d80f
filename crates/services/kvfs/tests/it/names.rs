//! Names and what they lead to: create, mknod, symlink, link, remove.

use outboard_base::{Errno, Fh, Ino, limits};
use outboard_wire::file::{Request, Setattr, SetattrTime, open_flags};

use crate::world::{Disk, User, assert_clean, errno};

#[test]
fn a_directory_counts_its_subdirectories() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let root = user.stat(Ino::ROOT).unwrap();
    assert_eq!((root.nlink, root.mode), (2, 0o040_777));
    let dir = user.mkdir(Ino::ROOT, "d").unwrap();
    assert_eq!(user.stat(Ino::ROOT).unwrap().nlink, 3);
    assert_eq!(errno(user.mkdir(Ino::ROOT, "d")), Errno::EEXIST);
    assert_eq!(errno(user.unlink(Ino::ROOT, "d")), Errno::EISDIR);
    user.file(dir.ino, "f").unwrap();
    assert_eq!(errno(user.rmdir(Ino::ROOT, "d")), Errno::ENOTEMPTY);
    assert_eq!(errno(user.rmdir(dir.ino, "f")), Errno::ENOTDIR);
    user.unlink(dir.ino, "f").unwrap();
    user.rmdir(Ino::ROOT, "d").unwrap();
    let root = user.stat(Ino::ROOT).unwrap();
    assert_eq!(root.nlink, 2);
    assert_eq!(root.mtime, root.ctime);
    assert_eq!(errno(user.rmdir(Ino::ROOT, "d")), Errno::ENOENT);
    assert_clean(&volume);
}

#[test]
fn names_are_bytes_up_to_a_kilobyte() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let long = "n".repeat(limits::NAME_MAX);
    let file = user.file(Ino::ROOT, &long).unwrap();
    assert_eq!(user.lookup(Ino::ROOT, &long).unwrap().ino, file.ino);
    for name in [&b"\xff\xfe"[..], b" ", b"a\nb", b"..."] {
        let request = Request::Mkdir { parent: Ino::ROOT, name, mode: 0o700, umask: 0 };
        user.ask(request, &[]).unwrap();
        user.ask(Request::Lookup { parent: Ino::ROOT, name }, &[]).unwrap();
    }
    // A name that starts another one is another name, and a prefix scan knows its directory's end.
    let a = user.mkdir(Ino::ROOT, "a").unwrap().ino;
    user.file(a, "x").unwrap();
    assert_eq!(user.names(a), ["x"]);
    assert_clean(&volume);
}

#[test]
fn nodes_of_every_kind() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    for (name, mode, rdev) in [
        ("fifo", 0o010_644, 0),
        ("char", 0o020_644, 0x103),
        ("block", 0o060_644, 0x103),
        ("socket", 0o140_644, 0),
        ("regular", 0o100_644, 0),
    ] {
        let attr = user.mknod(Ino::ROOT, name, mode).unwrap();
        assert_eq!((attr.mode, attr.rdev, attr.nlink, attr.size), (mode, rdev, 1, 0));
        if name != "regular" {
            assert_eq!(errno(user.open(attr.ino, 0)), Errno::ENXIO);
        }
    }
    assert_eq!(user.mknod(Ino::ROOT, "none", 0o600).unwrap().mode, 0o100_600);
    assert_eq!(errno(user.mknod(Ino::ROOT, "d", 0o040_700)), Errno::EPERM);
    assert_eq!(errno(user.mknod(Ino::ROOT, "l", 0o120_700)), Errno::EINVAL);
    assert_eq!(errno(user.mknod(Ino::ROOT, "?", 0o170_700)), Errno::EINVAL);
    let plain = user.by(10, 10);
    assert_eq!(errno(plain.mknod(Ino::ROOT, "char2", 0o020_644)), Errno::EPERM);
    plain.mknod(Ino::ROOT, "fifo2", 0o010_644).unwrap();
    assert_clean(&volume);
}

#[test]
fn symbolic_links_hold_any_target() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let longest = "t".repeat(limits::SYMLINK_MAX);
    for target in ["x", "../../y", &longest] {
        let attr = user.symlink(Ino::ROOT, &target[..1], target).unwrap();
        assert_eq!((attr.mode, attr.size), (0o120_777, target.len() as u64));
        let (_, read) = user.ask(Request::Readlink { ino: attr.ino }, &[]).unwrap();
        assert_eq!(read, target.as_bytes());
        assert_eq!(errno(user.open(attr.ino, 0)), Errno::ELOOP);
        user.forget(attr.ino);
        user.unlink(Ino::ROOT, &target[..1]).unwrap();
    }
    assert_eq!(errno(user.symlink(Ino::ROOT, "l", "")), Errno::ENOENT);
    assert_eq!(errno(user.symlink(Ino::ROOT, "l", &format!("{longest}t"))), Errno::ENAMETOOLONG);
    let ino = user.file(Ino::ROOT, "f").unwrap().ino;
    assert_eq!(errno(user.ask(Request::Readlink { ino }, &[])), Errno::EINVAL);
    assert_clean(&volume);
}

#[test]
fn hard_links_share_an_inode_up_to_the_limit() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let dir = user.mkdir(Ino::ROOT, "d").unwrap().ino;
    let file = user.file(Ino::ROOT, "f").unwrap();
    let linked = user.link(file.ino, dir, "g").unwrap();
    assert_eq!((linked.ino, linked.nlink), (file.ino, 2));
    assert!(linked.ctime > file.ctime && linked.mtime == file.mtime);
    assert_eq!(errno(user.link(file.ino, dir, "g")), Errno::EEXIST);
    assert_eq!(errno(user.link(dir, Ino::ROOT, "e")), Errno::EPERM);
    assert_eq!(errno(user.link(Ino(4242), dir, "h")), Errno::ESTALE);
    assert_eq!(user.unlink(Ino::ROOT, "f"), Ok(None));
    assert_eq!(user.lookup(dir, "g").unwrap().nlink, 1);
    for n in 1..u64::from(limits::LINK_MAX) {
        user.link(file.ino, dir, &n.to_string()).unwrap();
    }
    assert_eq!(errno(user.link(file.ino, dir, "one more")), Errno::EMLINK);
}

#[test]
fn create_opens_what_is_there_unless_it_must_be_new() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let (made, fh) = user.create(Ino::ROOT, "f", open_flags::EXCL).unwrap();
    user.write(made.ino, fh, 0, b"hello").unwrap();
    let (found, again) = user.create(Ino::ROOT, "f", 0).unwrap();
    assert_eq!((found.ino, found.size), (made.ino, 5));
    assert_eq!(user.read(made.ino, again, 0, 10).unwrap(), b"hello");
    assert_eq!(errno(user.create(Ino::ROOT, "f", open_flags::EXCL)), Errno::EEXIST);
    let before = user.stat(made.ino).unwrap();
    let (cut, _) = user.create(Ino::ROOT, "f", open_flags::TRUNC).unwrap();
    assert_eq!((cut.ino, cut.size), (made.ino, 0));
    assert!(cut.mtime > before.mtime && cut.ctime > before.ctime);
    user.mkdir(Ino::ROOT, "d").unwrap();
    assert_eq!(errno(user.create(Ino::ROOT, "d", 0)), Errno::EISDIR);
    user.symlink(Ino::ROOT, "l", "f").unwrap();
    assert_eq!(errno(user.create(Ino::ROOT, "l", 0)), Errno::ELOOP);
    assert_eq!(errno(user.create(made.ino, "x", 0)), Errno::ENOTDIR);
    assert_eq!(errno(user.create(Ino(777), "x", 0)), Errno::ESTALE);
    // Nothing of what failed stays open.
    assert_clean(&volume);
}

#[test]
fn a_new_file_may_be_written_whatever_its_mode() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume).by(10, 10);
    let request = Request::Create {
        parent: Ino::ROOT,
        name: b"f",
        mode: 0o444,
        umask: 0o022,
        flags: open_flags::RDWR,
    };
    let outboard_wire::file::Reply::Created(attr, fh) = user.ask(request, &[]).unwrap().0 else {
        panic!()
    };
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o100_444, 10, 10));
    assert_eq!(user.write(attr.ino, fh, 0, b"x"), Ok(1));
    assert_eq!(errno(user.open(attr.ino, open_flags::WRONLY)), Errno::EACCES);
}

#[test]
fn times_are_what_they_are_set_to_and_move_when_they_should() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let file = user.file(Ino::ROOT, "f").unwrap();
    let at = outboard_base::Timestamp { sec: -5, nsec: 123_456_789 };
    let times = Setattr {
        atime: Some(SetattrTime::At(at)),
        mtime: Some(SetattrTime::At(at)),
        ..Setattr::default()
    };
    let set = user.set(file.ino, times).unwrap();
    assert_eq!((set.atime, set.mtime), (at, at));
    assert!(set.ctime > file.ctime && set.change > file.change && set.crtime == file.crtime);
    // Nothing to set changes nothing.
    assert_eq!(user.set(file.ino, Setattr::default()).unwrap(), set);
    // relatime: a read moves the access time once after a change.
    let fh = user.open(file.ino, open_flags::RDWR).unwrap();
    user.write(file.ino, fh, 0, b"x").unwrap();
    user.read(file.ino, fh, 0, 1).unwrap();
    let first = user.stat(file.ino).unwrap();
    assert!(first.atime > first.mtime);
    user.read(file.ino, fh, 0, 1).unwrap();
    assert_eq!(user.stat(file.ino).unwrap(), first);
    user.now.set(user.now.get() + 100_000);
    user.read(file.ino, fh, 0, 1).unwrap();
    assert!(user.stat(file.ino).unwrap().atime > first.atime);
    user.close(file.ino, fh).unwrap();
    assert_eq!(errno(user.stat(Ino(1))), Errno::ESTALE);
    assert_eq!(errno(user.close(file.ino, Fh::NONE)), Errno::EBADF);
}
