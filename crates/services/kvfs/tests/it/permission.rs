//! Who may do what: modes, set-id bits, sticky directories, extended attributes, ACLs.

use outboard_base::{Cred, Errno, Fh, Ino, Result, Timestamp};
use outboard_volume::Caller;
use outboard_wire::file::{Flags, Request, Setattr, SetattrTime, open_flags, xattr_flags};

use crate::world::{Disk, User, block_on, errno};

fn access(user: &User<'_>, ino: Ino, mask: u32) -> Result<()> {
    user.done(Request::Access { ino, mask }, &[])
}

#[test]
fn the_three_groups_of_bits() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let ino = root.file(Ino::ROOT, "f").unwrap().ino;
    root.chown(ino, 10, 20).unwrap();
    root.chmod(ino, 0o641).unwrap();
    let owner = root.by(10, 20);
    let mut member = root.by(11, 99);
    member.cred.groups = vec![5, 20];
    let other = root.by(12, 99);
    for mask in 0..8 {
        let may = |bits: u32| if bits & mask == mask { Ok(()) } else { Err(Errno::EACCES) };
        assert_eq!(access(&owner, ino, mask), may(6));
        assert_eq!(access(&member, ino, mask), may(4));
        assert_eq!(access(&other, ino, mask), may(1));
        assert_eq!(access(&root, ino, mask), Ok(()));
    }
    root.chmod(ino, 0o600).unwrap();
    assert_eq!(access(&root, ino, 1), Err(Errno::EACCES));
    assert_eq!(access(&root, ino, 8), Err(Errno::EINVAL));
    assert_eq!(errno(other.open(ino, 0)), Errno::EACCES);
    assert_eq!(errno(owner.open(ino, open_flags::EXEC)), Errno::EACCES);
    assert_eq!(errno(owner.open(ino, 3)), Errno::EINVAL);
    root.chmod(ino, 0o444).unwrap();
    assert_eq!(errno(owner.open(ino, open_flags::TRUNC)), Errno::EACCES);
    assert_eq!(errno(other.open(ino, open_flags::NOATIME)), Errno::EPERM);
    owner.open(ino, open_flags::NOATIME).unwrap();
    // What the front-end has checked is believed.
    let mut kernel = root.by(12, 99);
    kernel.flags = Flags::CHECKED;
    kernel.open(ino, open_flags::RDWR).unwrap();
}

#[test]
fn an_attachment_that_is_not_trusted_speaks_for_itself() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let ino = root.file(Ino::ROOT, "secret").unwrap().ino;
    root.chmod(ino, 0o600).unwrap();
    let peer = Cred { groups: vec![30], ..Cred::user(10, 20) };
    let mut user = User::attached(&volume, 9);
    user.caller = Caller { trusted: false, peer, ..user.caller };
    assert_eq!(errno(user.open(ino, 0)), Errno::EPERM, "claims to be root");
    user.cred = Cred::user(10, 20);
    user.lookup(Ino::ROOT, "secret").unwrap();
    user.cred = Cred::user(10, 40);
    assert_eq!(errno(user.open(ino, 0)), Errno::EPERM, "claims a group");
    user.cred = Cred { groups: vec![30], ..Cred::user(10, 30) };
    user.flags = Flags::CHECKED;
    assert_eq!(errno(user.open(ino, 0)), Errno::EACCES, "its word on checks is not taken");
    assert_eq!(user.file(Ino::ROOT, "own").unwrap().gid, 30);
    // Handing in a handle it never had gives it nothing.
    let fh = Fh(12);
    let reclaim = |fh| Request::Reclaim { ino, fh, flags: open_flags::RDWR, directory: false };
    assert_eq!(errno(user.done(reclaim(fh), &[])), Errno::EPERM);
    assert_eq!(errno(user.done(reclaim(Fh::NONE), &[])), Errno::EPERM);
    assert_eq!(errno(user.read(ino, fh, 0, 1)), Errno::EBADF);
    // Nor does guessing the number of what lies in a directory it may not search.
    let hidden = root.mkdir_mode(Ino::ROOT, "hidden", 0o700).unwrap().ino;
    let open_to_all = root.file(hidden, "f").unwrap().ino;
    assert_eq!(errno(user.stat(open_to_all)), Errno::ESTALE);
    assert_eq!(errno(user.open(open_to_all, 0)), Errno::ESTALE);
    assert_eq!(errno(user.link(open_to_all, Ino::ROOT, "mine")), Errno::ESTALE);
    user.lookup(Ino::ROOT, "hidden").unwrap();
    assert_eq!(errno(user.lookup(hidden, "f")), Errno::EACCES);
    root.chmod(hidden, 0o711).unwrap();
    user.lookup(hidden, "f").unwrap();
    let (fh, ino) = (user.open(open_to_all, 0).unwrap(), open_to_all);
    user.forget(ino);
    assert_eq!(user.read(ino, fh, 0, 1), Ok(vec![]), "it has it open");
    user.close(ino, fh).unwrap();
    assert_eq!(errno(user.stat(ino)), Errno::ESTALE);
    // Nor does speaking under another's session.
    let mut header = user.header();
    header.session = root.caller.attachment;
    let now = Timestamp::default();
    let answer =
        volume.handle(&user.caller, &header, Request::Noop, outboard_volume::Payload::None, now);
    assert_eq!(block_on(answer).unwrap_err(), Errno::EPROTO);
}

#[test]
fn only_owners_change_modes_and_only_root_gives_away() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let owner = root.by(10, 20);
    let other = root.by(11, 20);
    let ino = owner.file(Ino::ROOT, "f").unwrap().ino;
    assert_eq!(errno(other.chmod(ino, 0o777)), Errno::EPERM);
    assert_eq!(errno(owner.chown(ino, 11, 20)), Errno::EPERM);
    assert_eq!(errno(owner.chown(ino, 10, 21)), Errno::EPERM);
    owner.chown(ino, 10, 20).unwrap();
    let set = |user: &User<'_>, atime, mtime| {
        user.set(ino, Setattr { atime, mtime, ..Setattr::default() }).map(drop)
    };
    let now = Some(SetattrTime::Now);
    let then = Some(SetattrTime::At(Timestamp::default()));
    assert_eq!(set(&other, now, now), Ok(()), "whoever may write may touch");
    assert_eq!(set(&other, now, None), Err(Errno::EPERM));
    assert_eq!(set(&other, then, then), Err(Errno::EPERM));
    root.chmod(ino, 0o644).unwrap();
    assert_eq!(set(&other, now, now), Err(Errno::EACCES));
    assert_eq!(set(&owner, then, now), Ok(()));
    let size = |user: &User<'_>, size| {
        user.set(ino, Setattr { size: Some(size), ..Setattr::default() }).map(|attr| attr.size)
    };
    assert_eq!(size(&other, 5), Err(Errno::EACCES));
    assert_eq!(size(&owner, 5), Ok(5));
    let dir = root.mkdir(Ino::ROOT, "d").unwrap().ino;
    let resize = Setattr { size: Some(1), ..Setattr::default() };
    assert_eq!(errno(root.set(dir, resize)), Errno::EISDIR);
}

#[test]
fn set_id_bits_go_when_somebody_changes_the_file() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let (owner, other) = (root.by(10, 20), root.by(11, 21));
    let ino = owner.file(Ino::ROOT, "f").unwrap().ino;
    let mode = |mode: u32| {
        root.chmod(ino, mode).unwrap();
    };
    let bits = || root.stat(ino).unwrap().mode & 0o7777;
    mode(0o6777);
    root.chown(ino, 10, 20).unwrap();
    assert_eq!(bits(), 0o777);
    mode(0o6767);
    root.chown(ino, 10, 20).unwrap();
    assert_eq!(bits(), 0o2767, "without group execution it is not set-group-id");
    mode(0o6777);
    let fh = other.open(ino, open_flags::RDWR).unwrap();
    other.write(ino, fh, 0, b"x").unwrap();
    assert_eq!(bits(), 0o777);
    mode(0o6777);
    other.set(ino, Setattr { size: Some(0), ..Setattr::default() }).unwrap();
    assert_eq!(bits(), 0o777);
    mode(0o6777);
    root.set(ino, Setattr { size: Some(3), ..Setattr::default() }).unwrap();
    assert_eq!(bits(), 0o6777);
    // An owner outside the file's group cannot make it set-group-id.
    root.chown(ino, 10, 99).unwrap();
    assert_eq!(owner.chmod(ino, 0o2755).unwrap().mode & 0o7777, 0o755);
    let kill = Setattr { kill_suidgid: true, ..Setattr::default() };
    mode(0o6777);
    root.set(ino, kill).unwrap();
    assert_eq!(bits(), 0o777);
}

#[test]
fn a_set_group_id_directory_hands_its_group_on() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let dir = root.mkdir(Ino::ROOT, "d").unwrap().ino;
    root.chown(dir, 0, 50).unwrap();
    root.chmod(dir, 0o2777).unwrap();
    let user = root.by(10, 20);
    let file = user.mknod(dir, "f", 0o102_775).unwrap();
    assert_eq!((file.gid, file.mode), (50, 0o100_775));
    let sub = user.mkdir_mode(dir, "s", 0o6700).unwrap();
    assert_eq!((sub.gid, sub.mode), (50, 0o042_700));
}

#[test]
fn sticky_directories_guard_what_others_own() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let dir = root.mkdir_mode(Ino::ROOT, "tmp", 0o1777).unwrap().ino;
    let (a, b) = (root.by(10, 10), root.by(11, 11));
    a.file(dir, "a").unwrap();
    a.mkdir(dir, "d").unwrap();
    assert_eq!(errno(b.unlink(dir, "a")), Errno::EPERM);
    assert_eq!(errno(b.rmdir(dir, "d")), Errno::EPERM);
    a.unlink(dir, "a").unwrap();
    root.rmdir(dir, "d").unwrap();
    root.chown(dir, 11, 11).unwrap();
    a.file(dir, "a").unwrap();
    b.unlink(dir, "a").unwrap();
    // Search and write permission on the directory come first.
    root.chmod(dir, 0o1766).unwrap();
    assert_eq!(errno(a.lookup(dir, "x")), Errno::EACCES);
    assert_eq!(errno(a.file(dir, "x")), Errno::EACCES);
    root.chmod(dir, 0o1755).unwrap();
    b.file(dir, "x").unwrap();
    assert_eq!(errno(a.file(dir, "x")), Errno::EEXIST);
    assert_eq!(errno(a.file(dir, "y")), Errno::EACCES);
    assert_eq!(errno(a.unlink(dir, "x")), Errno::EACCES);
}

#[test]
fn extended_attributes_obey_their_name_spaces() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let user = root.by(10, 10);
    let ino = user.file(Ino::ROOT, "f").unwrap().ino;
    let before = user.stat(ino).unwrap();
    user.setxattr(ino, "user.a", b"one", 0).unwrap();
    let after = user.stat(ino).unwrap();
    assert!(after.ctime > before.ctime && after.change > before.change);
    assert_eq!(user.getxattr(ino, "user.a").unwrap(), b"one");
    assert_eq!(errno(user.setxattr(ino, "user.a", b"", xattr_flags::CREATE)), Errno::EEXIST);
    assert_eq!(errno(user.setxattr(ino, "user.b", b"", xattr_flags::REPLACE)), Errno::ENODATA);
    assert_eq!(errno(user.setxattr(ino, "user.a", b"", 3)), Errno::EINVAL);
    user.setxattr(ino, "user.a", b"", xattr_flags::REPLACE).unwrap();
    assert_eq!(user.getxattr(ino, "user.a").unwrap(), b"");
    user.setxattr(ino, "user.big", &vec![1; 65_536], 0).unwrap();
    assert_eq!(errno(user.setxattr(ino, "user.big", &vec![1; 65_537], 0)), Errno::E2BIG);
    let ask = |name: &'static [u8], len| user.ask(Request::Getxattr { ino, name, len }, &[]);
    let size = ask(b"user.big", 0).unwrap().0;
    assert_eq!(size, outboard_wire::file::Reply::Size(65_536));
    assert_eq!(errno(ask(b"user.big", 65_535)), Errno::ERANGE);
    assert_eq!(errno(ask(b"user.none", 100)), Errno::ENODATA);
    assert_eq!(errno(ask(b"unknown.x", 100)), Errno::EOPNOTSUPP);
    assert_eq!(errno(ask(b"user.", 100)), Errno::EOPNOTSUPP);
    assert_eq!(errno(user.setxattr(ino, "trusted.x", b"", 0)), Errno::EPERM);
    assert_eq!(errno(user.setxattr(ino, "security.x", b"", 0)), Errno::EPERM);
    root.setxattr(ino, "trusted.x", b"t", 0).unwrap();
    root.setxattr(ino, "security.capability", b"s", 0).unwrap();
    assert_eq!(errno(user.getxattr(ino, "trusted.x")), Errno::ENODATA);
    assert_eq!(user.getxattr(ino, "security.capability").unwrap(), b"s");
    assert_eq!(user.listxattr(ino).unwrap(), ["security.capability", "user.a", "user.big"]);
    assert_eq!(root.listxattr(ino).unwrap().len(), 4);
    assert_eq!(errno(user.ask(Request::Listxattr { ino, len: 3 }, &[])), Errno::ERANGE);
    // File capabilities go with the owner.
    root.chown(ino, 10, 10).unwrap();
    assert_eq!(errno(root.getxattr(ino, "security.capability")), Errno::ENODATA);
    let stranger = root.by(11, 11);
    root.chmod(ino, 0o600).unwrap();
    assert_eq!(errno(stranger.getxattr(ino, "user.a")), Errno::EACCES);
    assert_eq!(errno(stranger.setxattr(ino, "user.a", b"", 0)), Errno::EACCES);
    let link = user.symlink(Ino::ROOT, "l", "f").unwrap().ino;
    assert_eq!(errno(user.setxattr(link, "user.a", b"", 0)), Errno::EPERM);
    assert_eq!(errno(user.getxattr(link, "user.a")), Errno::ENODATA);
    user.done(Request::Removexattr { ino, name: b"user.a" }, &[]).unwrap();
    assert_eq!(
        errno(user.done(Request::Removexattr { ino, name: b"user.a" }, &[])),
        Errno::ENODATA
    );
    user.unlink(Ino::ROOT, "f").unwrap();
    user.forget(ino);
    crate::world::assert_clean(&volume);
}

/// An ACL in Linux's form: tag, permissions, id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const NONE: u32 = u32::MAX;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

#[test]
fn an_access_acl_and_the_mode_say_the_same() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let owner = root.by(10, 10);
    let ino = owner.file(Ino::ROOT, "f").unwrap().ino;
    let list = acl(&[(1, 7, NONE), (2, 6, 30), (4, 4, NONE), (16, 6, NONE), (32, 0, NONE)]);
    assert_eq!(errno(root.by(11, 11).setxattr(ino, ACCESS, &list, 0)), Errno::EPERM);
    owner.setxattr(ino, ACCESS, &list, 0).unwrap();
    assert_eq!(owner.stat(ino).unwrap().mode & 0o7777, 0o760);
    assert_eq!(owner.getxattr(ino, ACCESS).unwrap(), list);
    assert_eq!(owner.listxattr(ino).unwrap(), [ACCESS]);
    let named = root.by(30, 31);
    assert_eq!(access(&named, ino, 6), Ok(()));
    assert_eq!(access(&named, ino, 1), Err(Errno::EACCES));
    assert_eq!(access(&root.by(40, 40), ino, 4), Err(Errno::EACCES));
    // chmod speaks to the mask.
    owner.chmod(ino, 0o740).unwrap();
    assert_eq!(access(&named, ino, 2), Err(Errno::EACCES));
    assert_eq!(access(&named, ino, 4), Ok(()));
    let masked = acl(&[(1, 7, NONE), (2, 6, 30), (4, 4, NONE), (16, 4, NONE), (32, 0, NONE)]);
    assert_eq!(owner.getxattr(ino, ACCESS).unwrap(), masked);
    // A list that says no more than a mode is a mode.
    let plain = acl(&[(1, 6, NONE), (4, 4, NONE), (32, 4, NONE)]);
    owner.setxattr(ino, ACCESS, &plain, 0).unwrap();
    assert_eq!(owner.stat(ino).unwrap().mode & 0o7777, 0o644);
    assert_eq!(errno(owner.getxattr(ino, ACCESS)), Errno::ENODATA);
    assert_eq!(errno(owner.setxattr(ino, ACCESS, &[1, 2], 0)), Errno::EINVAL);
    assert_eq!(errno(owner.setxattr(ino, DEFAULT, &plain, 0)), Errno::EACCES);
    crate::world::assert_clean(&volume);
}

#[test]
fn a_default_acl_is_inherited_instead_of_the_umask() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let root = User::root(&volume);
    let dir = root.mkdir(Ino::ROOT, "d").unwrap().ino;
    let list = acl(&[(1, 7, NONE), (2, 7, 30), (4, 5, NONE), (16, 7, NONE), (32, 5, NONE)]);
    root.setxattr(dir, DEFAULT, &list, 0).unwrap();
    assert_eq!(root.stat(dir).unwrap().mode & 0o7777, 0o777, "not for the directory itself");
    let make = |name: &'static [u8], mode| {
        let umask = 0o077;
        let request = Request::Mknod { parent: dir, name, mode, umask, rdev: 0 };
        root.ask(request, &[]).unwrap();
        root.lookup(dir, std::str::from_utf8(name).unwrap()).unwrap()
    };
    let file = make(b"f", 0o100_664);
    assert_eq!(file.mode & 0o7777, 0o664);
    assert_eq!(access(&root.by(30, 99), file.ino, 6), Ok(()));
    assert_eq!(access(&root.by(31, 99), file.ino, 2), Err(Errno::EACCES));
    let sub = root.mkdir(dir, "sub").unwrap();
    assert_eq!(root.getxattr(sub.ino, DEFAULT).unwrap(), list);
    assert_eq!(sub.mode & 0o7777, 0o775);
    // Without it the umask counts again; an empty list removes it.
    root.setxattr(dir, DEFAULT, &acl(&[]), 0).unwrap();
    assert_eq!(errno(root.getxattr(dir, DEFAULT)), Errno::ENODATA);
    assert_eq!(make(b"g", 0o100_664).mode & 0o7777, 0o600);
    crate::world::assert_clean(&volume);
}
