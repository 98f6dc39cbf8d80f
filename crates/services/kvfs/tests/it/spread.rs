//! Files whose bytes lie on nodes: who gets which layout, what requests do to such files, what a
//! metadata server asks beside, and what the check says of them.

use std::sync::Arc;

use outboard_base::limits::FILE_SIZE_MAX;
use outboard_base::{Cred, Errno, Fh, Ino, SessionId, Timestamp};
use outboard_kv::{Batch, Durability, Kv};
use outboard_kvfs::Options;
use outboard_kvfs::check::{self, What};
use outboard_kvfs::layout::{DataKind, Inode, Tag, marks};
use outboard_kvfs::spread::{Record, layout_text, parse_layout};
use outboard_volume::{Caller, VolumeEvent};
use outboard_wire::file::{
    Flags, Header, Op, Reply, Request, Setattr, open_flags, seek, xattr_flags,
};
use outboard_wire::shared::Strategy;
use outboard_wire::shared::call::{Layout, Told};

use crate::world::{Disk, User, Volume, assert_clean, block_on, errno, tidy};

const NAME: &str = "user.outboard.layout";

fn layout(width: u8) -> Layout {
    Layout { width, ..Layout::default() }
}

fn spread() -> Options {
    Options { spread: Some(layout(3)), ..Options::default() }
}

/// Opens for a server whose nodes hold files over three of them in turn.
pub(crate) fn open(disk: &Disk) -> Volume {
    let volume = disk.open_with(spread());
    block_on(volume.end_grace()).unwrap();
    tidy(&volume);
    volume
}

fn told(size: u64, mtime: Option<i64>) -> Told {
    Told {
        size,
        mtime: mtime.map(|sec| Timestamp { sec, nsec: 0 }),
        blocks: Some(size.div_ceil(512)),
    }
}

fn size(size: u64) -> Setattr {
    Setattr { size: Some(size), ..Setattr::default() }
}

fn layout_of(volume: &Volume, ino: Ino) -> Option<Layout> {
    block_on(volume.layout(ino)).unwrap()
}

fn in_group(width: u8, ino: Ino) -> Layout {
    Layout { group: (ino.0 % 64) as u32, ..layout(width) }
}

fn header(user: &User<'_>) -> Header {
    Header { cred: user.cred.clone(), ..Header::default() }
}

fn set_layout(user: &User<'_>, ino: Ino, layout: Layout) -> Result<(), Errno> {
    block_on(user.volume.set_layout(&user.caller, &header(user), ino, layout))
}

#[test]
fn files_get_the_layout_of_their_directory_or_the_volume() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let user = User::root(&volume);
    let dir = user.mkdir(Ino::ROOT, "dir").unwrap().ino;
    assert_eq!(layout_of(&volume, dir), Some(layout(3)), "what files made in it get");
    let (plain, _) = user.create(dir, "plain", 0).unwrap();
    set_layout(&user, dir, Layout { group: 9, ..layout(5) }).unwrap();
    let inner = user.mkdir(dir, "inner").unwrap().ino;
    assert_eq!(layout_of(&volume, inner), Some(layout(5)), "directories have no group");
    let made = [
        user.create(inner, "created", 0).unwrap().0,
        user.file(inner, "made").unwrap(),
        user.tmpfile(inner, 0).unwrap().0,
    ];
    for attr in made {
        let found = block_on(volume.spread(attr.ino)).unwrap();
        assert_eq!(found.layout, in_group(5, attr.ino));
        assert_eq!((found.attr, found.strips, found.writing), (attr, false, false));
    }
    // The directory's change is not the file's, and what it is moved into is not, either.
    user.rename((dir, "plain"), (inner, "moved"), 0).unwrap();
    assert_eq!(layout_of(&volume, plain.ino), Some(in_group(3, plain.ino)));
    let link = user.symlink(dir, "link", "x").unwrap().ino;
    let fifo = user.mknod(dir, "fifo", 0o010_644).unwrap().ino;
    for ino in [link, fifo] {
        assert_eq!(layout_of(&volume, ino), None);
        assert_eq!(block_on(volume.spread(ino)), Err(Errno::EINVAL));
        assert_eq!(set_layout(&user, ino, layout(1)), Err(Errno::EINVAL));
    }
    assert_eq!(block_on(volume.spread(dir)), Err(Errno::EINVAL));
    assert_eq!(block_on(volume.spread(Ino(999))), Err(Errno::ESTALE));
    assert_clean(&volume);
    drop(volume);
    // Without nodes: what is spread stays so, what is made is not.
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let (attr, fh) = user.create(inner, "local", 0).unwrap();
    user.write(attr.ino, fh, 0, b"here").unwrap();
    assert_eq!(layout_of(&volume, inner), None);
    assert_eq!(layout_of(&volume, attr.ino), None);
    assert_eq!(layout_of(&volume, plain.ino), Some(in_group(3, plain.ino)));
    assert_eq!(set_layout(&user, inner, layout(1)), Err(Errno::EOPNOTSUPP));
    assert_clean(&volume);
    drop(volume);
    // Both kinds beside each other.
    let volume = open(&disk);
    let user = User::root(&volume);
    let fh = user.open(attr.ino, 0).unwrap();
    assert_eq!(user.read(attr.ino, fh, 0, 9).unwrap(), b"here");
    assert_eq!(block_on(volume.spread(attr.ino)), Err(Errno::EINVAL));
    assert_eq!(user.getxattr(attr.ino, NAME), Err(Errno::ENODATA));
    assert_eq!(set_layout(&user, attr.ino, layout(1)), Err(Errno::ENOTEMPTY));
    user.set(attr.ino, size(0)).unwrap();
    set_layout(&user, attr.ino, layout(2)).unwrap();
    assert_eq!(layout_of(&volume, attr.ino), Some(in_group(2, attr.ino)));
    assert_clean(&volume);
}

#[test]
fn requests_change_attributes_and_refuse_bytes() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let user = User::root(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "file", 0).unwrap();
    let ino = attr.ino;
    assert_eq!((attr.size, attr.blocks), (0, 0));
    let grown = user.set(ino, size(100_001)).unwrap();
    assert_eq!((grown.size, grown.blocks), (100_001, 0), "a hole");
    assert!(grown.mtime > attr.mtime && grown.change > attr.change);
    let same = user.set(ino, size(100_001)).unwrap();
    assert_eq!((same.size, same.mtime), (100_001, grown.mtime));
    let cut = user.set(ino, size(7)).unwrap();
    assert_eq!((cut.size, cut.blocks), (7, 0));
    assert_eq!(user.set(ino, size(FILE_SIZE_MAX)).unwrap().size, FILE_SIZE_MAX);
    assert_eq!(user.set(ino, size(FILE_SIZE_MAX + 1)), Err(Errno::EFBIG));
    let (other, other_fh) = user.create(Ino::ROOT, "other", 0).unwrap();
    let to = (other.ino, other_fh);
    let refused = [
        Request::Read { ino, fh, offset: 0, len: 10, flags: 0 },
        Request::Lseek { ino, fh, offset: 0, whence: seek::DATA },
        copy((ino, fh), to),
        copy(to, (ino, fh)),
    ];
    let allocated = [0, 1, 3, 16, 17];
    let allocated =
        allocated.map(|mode| Request::Fallocate { ino, fh, offset: 0, len: 1 << 40, mode });
    for request in refused.into_iter().chain(allocated) {
        assert_eq!(errno(user.ask(request.clone(), &[])), Errno::EOPNOTSUPP, "{request:?}");
    }
    assert_eq!(user.write(ino, fh, 0, b"bytes"), Err(Errno::EOPNOTSUPP));
    assert_eq!(user.write(ino, fh, 0, b""), Ok(0));
    let back = volume.write_back(user.caller.attachment, ino, &[(0, b"page")], None);
    assert_eq!(block_on(back), Err(Errno::EOPNOTSUPP));
    user.done(Request::Fsync { ino, fh, data_only: false }, &[]).unwrap();
    user.sync().unwrap();
    let before = user.stat(ino).unwrap();
    assert_eq!(before.size, FILE_SIZE_MAX);
    let truncating = user.open(ino, open_flags::RDWR | open_flags::TRUNC).unwrap();
    let after = user.stat(ino).unwrap();
    assert_eq!((after.size, after.blocks), (0, 0));
    assert!(after.mtime > before.mtime);
    assert_eq!(volume.opened(user.caller.attachment, ino, truncating), Some(0o1002));
    user.set(ino, size(50)).unwrap();
    block_on(volume.truncate(ino, Timestamp { sec: 9_000_000, nsec: 0 })).unwrap();
    let (cached, may) = block_on(volume.cacheable(ino)).unwrap();
    assert_eq!((cached.size, cached.mtime.sec, may), (0, 9_000_000, true));
    assert_eq!(block_on(volume.may_write(&user.caller, ino)), Ok(true));
    assert_clean(&volume);
}

fn copy((from, from_fh): (Ino, Fh), (to, to_fh): (Ino, Fh)) -> Request<'static> {
    Request::CopyFileRange { from, from_fh, from_offset: 0, to, to_fh, to_offset: 0, len: 100 }
}

#[test]
fn who_may_truncate_is_as_for_any_file_and_set_id_bits_go() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let root = User::root(&volume);
    let ino = root.file(Ino::ROOT, "file").unwrap().ino;
    root.chown(ino, 5, 5).unwrap();
    root.chmod(ino, 0o6775).unwrap();
    assert!(block_on(volume.spread(ino)).unwrap().strips);
    let stranger = root.by(6, 6);
    assert_eq!(stranger.set(ino, size(9)), Err(Errno::EACCES));
    assert_eq!(root.set(ino, size(9)).unwrap().mode & 0o7777, 0o6775);
    let owner = root.by(5, 5);
    let cut = owner.set(ino, size(8)).unwrap();
    assert_eq!((cut.size, cut.mode & 0o7777), (8, 0o775));
    assert!(!block_on(volume.spread(ino)).unwrap().strips);
}

/// A truncation that was answered and lost, and is asked again after others have written, is
/// answered as it was and cuts nothing.
#[test]
fn a_truncation_asked_again_is_not_done_again() {
    for restart in [false, true] {
        let disk = Disk::new(2);
        let volume = open(&disk);
        let mut user = User::root(&volume);
        let ino = user.file(Ino::ROOT, "file").unwrap().ino;
        user.set(ino, size(900)).unwrap();
        let request = Request::Setattr { ino, fh: Fh::NONE, set: size(100) };
        let first = user.ask(request.clone(), &[]).unwrap();
        block_on(volume.publish(None, ino, told(5000, Some(3_000_000)), None)).unwrap();
        user.flags = Flags::REPLAY;
        let (sequence, now) = (user.sequence.clone(), user.now.clone());
        if !restart {
            assert_eq!(user.again(request, &[]).unwrap(), first);
            assert_eq!(block_on(volume.spread(ino)).unwrap().attr.size, 5000);
            continue;
        }
        drop(volume);
        // Still in grace: records of who has not come back yet are kept.
        let volume = disk.open_with(spread());
        let mut user = User::root(&volume);
        (user.flags, user.sequence, user.now) = (Flags::REPLAY, sequence, now);
        assert_eq!(user.again(request, &[]).unwrap(), first);
        assert_eq!(block_on(volume.spread(ino)).unwrap().attr.size, 5000);
        // The attribute that is a layout is recorded, too.
        let dir = Ino::ROOT;
        user.flags = Flags::default();
        user.setxattr(dir, NAME, b"width=2", 0).unwrap();
        set_layout(&user, dir, layout(7)).unwrap();
        user.flags = Flags::REPLAY;
        let request = Request::Setxattr { ino: dir, name: NAME.as_bytes(), flags: 0 };
        assert_eq!(user.again(request, b"width=2").unwrap().0, Reply::Empty);
        assert_eq!(layout_of(&volume, dir), Some(layout(7)));
    }
}

#[test]
fn a_layout_is_set_by_owners_before_there_are_bytes() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let root = User::root(&volume);
    let (attr, _) = root.create(Ino::ROOT, "file", 0).unwrap();
    let ino = attr.ino;
    root.chown(ino, 5, 5).unwrap();
    let (owner, stranger) = (root.by(5, 5), root.by(6, 6));
    assert_eq!(set_layout(&stranger, ino, layout(2)), Err(Errno::EPERM));
    let mut checked = root.by(6, 6);
    checked.flags = Flags::CHECKED;
    // What the kernel checks is whether it may be written to: not enough.
    assert_eq!(checked.setxattr(ino, NAME, b"width=2", 0), Err(Errno::EPERM));
    set_layout(&owner, ino, Layout { group: 63, ..layout(2) }).unwrap();
    assert_eq!(layout_of(&volume, ino), Some(in_group(2, ino)));
    for strange in [
        Layout { width: 0, ..layout(1) },
        Layout { strip: 3 << 16, ..layout(1) },
        Layout { k: 2, ..layout(1) },
    ] {
        assert_eq!(set_layout(&owner, ino, strange), Err(Errno::EINVAL), "{strange:?}");
    }
    let ring = Layout { strategy: Strategy::Ring, k: 3, ..layout(1) };
    assert_eq!(set_layout(&owner, ino, ring), Err(Errno::EINVAL), "there are not so many nodes");
    volume.lies_on(2, 0);
    assert_eq!(set_layout(&owner, ino, ring), Err(Errno::EINVAL), "nor now");
    set_layout(&owner, ino, Layout { k: 2, ..ring }).unwrap();
    let parity = Layout { strategy: Strategy::Parity, k: 2, m: 1, ..layout(1) };
    assert_eq!(set_layout(&owner, ino, parity), Err(Errno::EINVAL), "it takes three nodes");
    volume.lies_on(3, 0);
    set_layout(&owner, ino, parity).unwrap();
    assert_eq!(layout_of(&volume, ino).map(|layout| (layout.k, layout.m)), Some((2, 1)));
    set_layout(&owner, ino, Layout { group: 63, ..layout(2) }).unwrap();
    block_on(volume.begin_writing(ino, 7, false)).unwrap();
    assert_eq!(set_layout(&owner, ino, layout(1)), Err(Errno::EBUSY), "bytes may be there");
    block_on(volume.publish(None, ino, told(1, None), None)).unwrap();
    assert_eq!(set_layout(&owner, ino, layout(1)), Err(Errno::ENOTEMPTY));
    block_on(volume.end_writing(ino)).unwrap();
    assert_eq!(set_layout(&owner, ino, layout(1)), Err(Errno::ENOTEMPTY));
    assert_eq!(set_layout(&owner, Ino(999), layout(1)), Err(Errno::ESTALE));
    // A host whose word is not taken may only name what it has come to by names.
    let caller = Caller { trusted: false, peer: Cred::user(5, 5), ..Caller::root(SessionId(9)) };
    let asks = header(&owner);
    let set = volume.set_layout(&caller, &asks, ino, layout(1));
    assert_eq!(block_on(set), Err(Errno::ESTALE));
    assert_eq!(block_on(volume.strip(&caller, ino, Timestamp::default())), Err(Errno::ESTALE));
    assert_clean(&volume);
}

#[test]
fn a_layout_can_be_seen_and_set_as_an_attribute() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let user = User::root(&volume);
    let dir = user.mkdir(Ino::ROOT, "dir").unwrap().ino;
    let text = |ino| String::from_utf8(user.getxattr(ino, NAME).unwrap()).unwrap();
    assert_eq!(text(dir), "strategy=single,width=3,strip=64K");
    let before = user.stat(dir).unwrap();
    user.setxattr(dir, NAME, b"width=5,strip=128K", 0).unwrap();
    let after = user.stat(dir).unwrap();
    assert!(after.ctime > before.ctime && after.change > before.change);
    let file = user.file(dir, "file").unwrap().ino;
    assert_eq!(text(file), "strategy=single,width=5,strip=128K");
    assert_eq!(parse_layout(&text(file)).map(|l| layout_text(&l)), Ok(text(file)));
    assert!(user.listxattr(file).unwrap().is_empty() && user.listxattr(dir).unwrap().is_empty());
    let set = |ino, text: &[u8], flags| user.setxattr(ino, NAME, text, flags);
    assert_eq!(set(dir, b"width=1", xattr_flags::CREATE), Err(Errno::EEXIST));
    assert_eq!(set(dir, b"width=99", 0), Err(Errno::EINVAL));
    assert_eq!(set(dir, b"\xff", 0), Err(Errno::EINVAL));
    set(dir, b"width=6", xattr_flags::REPLACE).unwrap();
    set(file, b"width=7", 0).unwrap();
    assert_eq!(layout_of(&volume, file), Some(in_group(7, file)));
    let remove = |ino| user.done(Request::Removexattr { ino, name: NAME.as_bytes() }, &[]);
    assert_eq!(remove(file), Err(Errno::EOPNOTSUPP), "a file lies somewhere");
    remove(dir).unwrap();
    assert_eq!(remove(dir), Err(Errno::ENODATA));
    assert_eq!(set(dir, b"width=6", xattr_flags::REPLACE), Err(Errno::ENODATA));
    assert_eq!(layout_of(&volume, dir), Some(layout(3)));
    let link = user.symlink(dir, "link", "x").unwrap().ino;
    assert_eq!(user.getxattr(link, NAME), Err(Errno::ENODATA));
    assert_clean(&volume);
    drop(volume);
    // Elsewhere it is a name like any other.
    let volume = disk.open_settled();
    let user = User::root(&volume);
    user.setxattr(dir, NAME, b"whatever", 0).unwrap();
    assert_eq!(user.getxattr(dir, NAME).unwrap(), b"whatever");
    assert_clean(&volume);
}

#[test]
fn what_a_writer_tells_is_what_others_see() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let (writer, reader) = (User::root(&volume), User::attached(&volume, 2));
    let (attr, _) = writer.create(Ino::ROOT, "file", 0).unwrap();
    let (ino, session) = (attr.ino, Some(writer.caller.attachment));
    reader.lookup(Ino::ROOT, "file").unwrap();
    volume.take_events();
    let publish = |session, told| block_on(volume.publish(session, ino, told, None));
    let stale = |session: u64| VolumeEvent::StaleInode { attachment: SessionId(session), ino };
    let later = attr.mtime.sec + 10;
    let first = publish(session, told(1025, Some(later))).unwrap();
    assert_eq!((first.size, first.blocks), (1025, 3));
    assert_eq!((first.mtime.sec, first.ctime), (later, first.mtime));
    assert!(first.change > attr.change);
    assert_eq!(volume.take_events(), [stale(2)]);
    // Told again, it is known.
    assert_eq!(publish(session, told(1025, Some(later))).unwrap(), first);
    assert_eq!(publish(session, told(1025, None)).unwrap(), first);
    assert_eq!(volume.take_events(), []);
    // A cut; whoever keeps its times sends them by itself.
    let cut = publish(session, told(5, None)).unwrap();
    assert_eq!((cut.size, cut.blocks, cut.mtime, cut.ctime), (5, 1, first.mtime, first.ctime));
    assert!(cut.change > first.change);
    assert_eq!(volume.take_events(), [stale(2)]);
    // Times do not go back.
    let earlier = publish(None, told(5, Some(1))).unwrap();
    assert_eq!((earlier.mtime, earlier.ctime), (first.mtime, first.ctime));
    assert!(earlier.change > cut.change, "its bytes may be others");
    assert_eq!(volume.take_events(), [stale(1), stale(2)], "nobody knew");
    assert_eq!(publish(session, told(FILE_SIZE_MAX + 1, None)), Err(Errno::EFBIG));
    assert_eq!(writer.stat(ino).unwrap(), earlier);
    let dir = writer.mkdir(Ino::ROOT, "dir").unwrap().ino;
    assert_eq!(block_on(volume.publish(None, dir, told(1, None), None)), Err(Errno::EINVAL));
    assert_eq!(block_on(volume.publish(None, Ino(999), told(1, None), None)), Err(Errno::ESTALE));
    assert_clean(&volume);
}

#[test]
fn a_write_strips_as_any_write_does() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let user = User::root(&volume);
    let reader = User::attached(&volume, 2);
    let ino = user.file(Ino::ROOT, "file").unwrap().ino;
    user.chmod(ino, 0o6755).unwrap();
    user.setxattr(ino, "security.capability", b"all of them", 0).unwrap();
    reader.lookup(Ino::ROOT, "file").unwrap();
    assert!(block_on(volume.spread(ino)).unwrap().strips);
    volume.take_events();
    let now = Timestamp { sec: 4_000_000, nsec: 1 };
    let attr = block_on(volume.strip(&user.caller, ino, now)).unwrap();
    assert_eq!((attr.mode & 0o7777, attr.mtime, attr.ctime), (0o755, now, now));
    assert!(!block_on(volume.spread(ino)).unwrap().strips);
    assert_eq!(user.getxattr(ino, "security.capability"), Err(Errno::ENODATA));
    let stale = VolumeEvent::StaleInode { attachment: SessionId(2), ino };
    assert_eq!(volume.take_events(), [stale]);
    // Capabilities alone are a privilege, and who keeps times keeps these.
    user.setxattr(ino, "security.capability", b"some", 0).unwrap();
    assert!(block_on(volume.spread(ino)).unwrap().strips);
    let keeper = Caller { keeps_times: true, ..user.caller.clone() };
    let later = Timestamp { sec: 5_000_000, nsec: 1 };
    assert_eq!(block_on(volume.strip(&keeper, ino, later)).unwrap().mtime, now);
    assert!(!block_on(volume.spread(ino)).unwrap().strips);
    assert_eq!(block_on(volume.strip(&keeper, Ino(999), later)), Err(Errno::ESTALE));
    assert_clean(&volume);
}

#[test]
fn who_writes_is_remembered_until_the_end() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let user = User::root(&volume);
    let files: Vec<Ino> =
        (0..10).map(|n| user.file(Ino::ROOT, &format!("{n}")).unwrap().ino).collect();
    tidy(&volume);
    for ino in files.iter().rev() {
        block_on(volume.begin_writing(*ino, 7, false)).unwrap();
        block_on(volume.begin_writing(*ino, 7, false)).unwrap();
        assert!(block_on(volume.spread(*ino)).unwrap().writing);
    }
    // Not synced by anybody, and there after power loss all the same.
    drop(volume);
    disk.crash();
    let volume = open(&disk);
    purge_all(&volume);
    assert_eq!(block_on(volume.writing(Ino(0), 100)).unwrap(), files);
    assert_eq!(block_on(volume.writing(Ino(0), 4)).unwrap(), files[..4]);
    assert_eq!(block_on(volume.writing(files[3], 4)).unwrap(), files[4..8]);
    assert_eq!(block_on(volume.writing(files[9], 4)).unwrap(), []);
    block_on(volume.end_writing(files[2])).unwrap();
    block_on(volume.end_writing(files[2])).unwrap();
    assert!(!block_on(volume.spread(files[2])).unwrap().writing);
    // A file that goes takes its mark with it.
    let user = User::root(&volume);
    user.unlink(Ino::ROOT, "3").unwrap();
    block_on(volume.end_writing(files[3])).unwrap();
    assert_eq!(block_on(volume.begin_writing(files[3], 7, false)), Err(Errno::ESTALE));
    let left: Vec<Ino> = [&files[..2], &files[4..]].concat();
    assert_eq!(block_on(volume.writing(Ino(0), 100)).unwrap(), left);
    let dir = user.mkdir(Ino::ROOT, "dir").unwrap().ino;
    assert_eq!(block_on(volume.begin_writing(dir, 7, false)), Err(Errno::EINVAL));
    let counts = block_on(volume.check(check::Options::default())).unwrap().counts;
    assert_eq!((counts.spread_files, counts.writing, counts.purges), (9, 8, 1));
    assert_clean(&volume);
}

/// A server writes the bytes of files for clients: what it answers goes with what it tells, and of
/// what lies behind the size nothing was answered, until somebody writes who tells later.
#[test]
fn what_is_answered_for_the_nodes_is_recorded_with_what_is_told() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let mut user = User::root(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "file", 0).unwrap();
    let (ino, sequence) = (attr.ino, user.sequence.get());
    let request = Request::Write { ino, fh, offset: 0, flags: 0 };
    assert_eq!(user.ask(request.clone(), b"bytes").map(drop), Err(Errno::EOPNOTSUPP));
    let asked = user.sequence.get();
    assert!(asked > sequence);
    block_on(volume.begin_writing(ino, 7, true)).unwrap();
    let session = user.caller.attachment;
    let header = Header { sequence: asked, session, ..header(&user) };
    let record = Record::of(&user.caller, &header, Op::Write, &Reply::Written(5)).unwrap();
    assert!(record.is_some());
    block_on(volume.publish(Some(session), ino, told(5, None), record)).unwrap();
    user.flags = Flags::REPLAY;
    assert_eq!(user.again(request, b"bytes").unwrap().0, Reply::Written(5));
    let none = Header { sequence: 0, ..header.clone() };
    assert!(Record::of(&user.caller, &none, Op::Write, &Reply::Empty).unwrap().is_none());
    let fallocate = block_on(volume.answered(&user.caller, &header, Op::Fallocate));
    assert_eq!(fallocate, Err(Errno::EPROTO), "it was another request");
    let answered = block_on(volume.answered(&user.caller, &header, Op::Write));
    assert_eq!(answered, Ok(Some(Reply::Written(5))));
    let next = Header { sequence: asked + 1, ..header.clone() };
    assert_eq!(block_on(volume.answered(&user.caller, &next, Op::Write)), Ok(None));
    assert_eq!(block_on(volume.spread(ino)).unwrap().writer, Some(7));
    let tells = || block_on(volume.spread(ino)).map(|spread| (spread.tells, spread.cut)).unwrap();
    assert_eq!(tells(), (true, None));
    user.flags = Flags::default();
    user.set(ino, size(3)).unwrap();
    assert_eq!(tells(), (true, Some(3)));
    block_on(volume.holed(ino)).unwrap();
    assert_eq!(tells(), (true, None));
    block_on(volume.begin_writing(ino, 7, false)).unwrap();
    assert_eq!(tells(), (false, None));
    block_on(volume.begin_writing(ino, 7, true)).unwrap();
    assert_eq!(tells(), (true, None));
    block_on(volume.end_writing(ino)).unwrap();
    assert_eq!(tells(), (false, None));
    assert_clean(&volume);
}

/// The nodes are done with all that is gone.
fn purge_all(volume: &Volume) {
    for object in block_on(volume.purges(0, 4096)).unwrap() {
        block_on(volume.purged(object)).unwrap();
    }
}

/// A mark costs no sync for files that were just made: after a loss of power the last of them count
/// as marked, and what is not there any more is purged at the nodes.
#[test]
fn the_last_files_that_were_made_count_as_written_to() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let user = User::root(&volume);
    let old = user.file(Ino::ROOT, "old").unwrap().ino;
    tidy(&volume);
    let kept = user.file(Ino::ROOT, "kept").unwrap().ino;
    user.sync().unwrap();
    let lost = user.file(Ino::ROOT, "lost").unwrap().ino;
    let faults = outboard_kv::mem::Faults { sync_fails: true, ..Default::default() };
    disk.kv.set_faults(faults);
    block_on(volume.begin_writing(kept, 7, false)).unwrap();
    block_on(volume.begin_writing(lost, 7, false)).unwrap();
    drop(volume);
    disk.kv.set_faults(Default::default());
    disk.crash();
    let volume = open(&disk);
    let writing = block_on(volume.writing(Ino(0), 100)).unwrap();
    assert!(writing.contains(&kept) && !writing.contains(&old), "{writing:?}");
    let purges = block_on(volume.purges(0, 4096)).unwrap();
    assert!(!purges.contains(&old.0) && !purges.contains(&kept.0));
    assert!(purges.contains(&lost.0) || writing.contains(&lost));
    assert_clean(&volume);
    // What an opening has looked at it does not look at again.
    purge_all(&volume);
    for ino in [kept, lost] {
        block_on(volume.end_writing(ino)).unwrap();
    }
    drop(volume);
    let volume = open(&disk);
    assert_eq!(block_on(volume.writing(Ino(0), 100)).unwrap(), []);
    assert_eq!(block_on(volume.purges(0, 100)).unwrap(), []);
}

/// A mark that could not be made durable is none: nobody may write, and the next who asks is told
/// so, too.
#[test]
fn a_mark_that_is_not_durable_lets_nobody_write() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let ino = User::root(&volume).file(Ino::ROOT, "file").unwrap().ino;
    tidy(&volume);
    let faults = outboard_kv::mem::Faults { sync_fails: true, ..Default::default() };
    disk.kv.set_faults(faults);
    assert_eq!(block_on(volume.begin_writing(ino, 7, false)), Err(Errno::EIO));
    assert_eq!(block_on(volume.begin_writing(ino, 7, false)), Err(Errno::EIO));
}

#[test]
fn what_is_gone_here_is_to_be_purged_at_the_nodes() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let user = User::root(&volume);
    let purges = |volume: &Volume| block_on(volume.purges(0, 100)).unwrap();
    let name = |n: usize| format!("f{n}");
    let files: Vec<Ino> = (0..6).map(|n| user.file(Ino::ROOT, &name(n)).unwrap().ino).collect();
    let fh = user.open(files[1], open_flags::RDWR).unwrap();
    // More attributes than one step removes: its end takes several batches.
    for n in 0..300 {
        user.setxattr(files[2], &format!("user.{n}"), b"v", 0).unwrap();
    }
    user.link(files[3], Ino::ROOT, "hard").unwrap();
    for n in 0..4 {
        user.unlink(Ino::ROOT, &name(n)).unwrap();
    }
    user.rename((Ino::ROOT, "f5"), (Ino::ROOT, "f4"), 0).unwrap();
    tidy(&volume);
    // One is open, one has another name.
    assert_eq!(purges(&volume), [files[0].0, files[2].0, files[4].0]);
    assert_eq!(block_on(volume.spread(files[1])).unwrap().attr.nlink, 0);
    assert_clean(&volume);
    block_on(volume.purged(files[2].0)).unwrap();
    block_on(volume.purged(files[2].0)).unwrap();
    user.close(files[1], fh).unwrap();
    user.forget(files[1]);
    assert_eq!(purges(&volume), [files[0].0, files[1].0, files[4].0]);
    assert_eq!(block_on(volume.purges(files[0].0, 1)).unwrap(), [files[1].0]);
    assert_eq!(block_on(volume.purges(files[4].0, 1)).unwrap(), []);
    // What was open when the server died goes once nobody comes back for it.
    let (nameless, _) = user.tmpfile(Ino::ROOT, 0).unwrap();
    drop(volume);
    let volume = open(&disk);
    // Behind them numbers that may have been given out.
    assert_eq!(purges(&volume)[..4], [files[0].0, files[1].0, files[4].0, nameless.ino.0]);
    assert_clean(&volume);
}

/// A file whose purge was told of does not come back by a power loss: its bytes are gone. One that
/// nobody was told of may.
#[test]
fn a_purge_is_told_only_of_what_is_gone_for_good() {
    let mut came_back = 0;
    for seed in 0..40 {
        let disk = Disk::new(seed);
        let volume = open(&disk);
        let user = User::root(&volume);
        let ino = user.file(Ino::ROOT, "file").unwrap().ino;
        user.sync().unwrap();
        user.unlink(Ino::ROOT, "file").unwrap();
        let told = seed % 2 == 0;
        if told {
            assert_eq!(block_on(volume.purges(0, 9)).unwrap(), [ino.0]);
        }
        drop(volume);
        disk.crash();
        let volume = open(&disk);
        let lives = block_on(volume.spread(ino)).is_ok();
        assert!(!told || !lives, "seed {seed}: its bytes are purged");
        let first = block_on(volume.purges(0, 1)).unwrap();
        assert_eq!(first == [ino.0], !lives);
        came_back += u32::from(lives);
    }
    assert!(came_back > 0, "power loss takes nothing back here");
}

/// Fences and objects at the nodes are named by these: a power loss must not give one out again.
#[test]
fn numbers_are_given_out_once_whatever_is_lost() {
    let mut last = (0, Ino(0));
    let disk = Disk::new(3);
    for _ in 0..40 {
        let volume = open(&disk);
        let user = User::root(&volume);
        let ino = user.file(Ino::ROOT, &format!("after {}", last.0)).unwrap().ino;
        assert!(volume.opening() > last.0, "{} after {}", volume.opening(), last.0);
        assert!(ino > last.1, "{ino} after {}", last.1);
        last = (volume.opening(), ino);
        drop(volume);
        disk.crash();
    }
}

/// A volume on which the check can be tried: nothing is cached, so that it sees what is planted.
struct Planted {
    disk: Disk,
    volume: Volume,
    file: Ino,
    dir: Ino,
}

impl Planted {
    fn new() -> Planted {
        let disk = Disk::new(2);
        let volume = disk.open_with(Options { cache_bytes: 0, ..spread() });
        block_on(volume.end_grace()).unwrap();
        let user = User::root(&volume);
        let dir = user.mkdir(Ino::ROOT, "dir").unwrap().ino;
        let file = user.file(dir, "file").unwrap().ino;
        let gone = user.file(dir, "gone").unwrap().ino;
        block_on(volume.begin_writing(gone, 7, false)).unwrap();
        user.unlink(dir, "gone").unwrap();
        block_on(volume.begin_writing(file, 7, false)).unwrap();
        block_on(volume.publish(None, file, told(70_000, None), None)).unwrap();
        assert_clean(&volume);
        Planted { disk, volume, file, dir }
    }

    fn put(&self, tag: Tag, ino: Ino, value: Option<&[u8]>) {
        let key = [&[tag as u8][..], &ino.0.to_be_bytes()].concat();
        let mut batch = Batch::new();
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        }
        block_on(self.disk.kv.commit(batch, Durability::Answered)).unwrap();
    }

    fn edit(&self, ino: Ino, edit: impl FnOnce(&mut Inode)) {
        let key = [&[Tag::Inode as u8][..], &ino.0.to_be_bytes()].concat();
        let value = block_on(Arc::clone(&self.disk.kv).get(&key)).unwrap().unwrap();
        let mut inode = Inode::decode(ino, &value).unwrap();
        edit(&mut inode);
        self.put(Tag::Inode, ino, Some(&inode.encode().unwrap()));
    }
}

type Plant = fn(&Planted);

#[test]
fn the_check_says_what_does_not_fit() {
    let plants: &[(What, Plant)] = &[
        (What::WrongWriting, |p| p.put(Tag::Writing, p.file, None)),
        (What::WrongWriting, |p| p.edit(p.file, |inode| inode.marks &= !marks::WRITING)),
        (What::PurgeOfFile, |p| p.put(Tag::Purge, p.file, Some(&[]))),
        (What::PurgeOfFile, |p| p.put(Tag::Purge, p.dir, Some(&[]))),
        (What::NumberNotGivenOut, |p| p.put(Tag::Purge, Ino(1 << 40), Some(&[]))),
        (What::OwnerlessPair, |p| p.put(Tag::Writing, Ino(p.file.0 + 100), Some(&[]))),
        (What::StrangeKey, |p| p.put(Tag::Note, p.file, Some(&[0; 4097]))),
        (What::BadShape, |p| p.edit(p.file, |inode| inode.layout = None)),
        (What::BadShape, |p| {
            p.put(Tag::Writing, p.dir, Some(&[]));
            p.edit(p.dir, |inode| inode.marks |= marks::WRITING);
        }),
        (What::BadShape, |p| p.edit(p.dir, |inode| inode.data = DataKind::Spread)),
        (What::BadShape, |p| {
            p.put(Tag::Trim, p.file, Some(&[]));
            p.edit(p.file, |inode| inode.marks |= marks::TRIMMING);
        }),
        (What::BadShape, |p| {
            // Its marks and its count of blocks would be right.
            p.put(Tag::Writing, p.file, None);
            p.edit(p.file, |inode| {
                (inode.data, inode.attr.blocks) = (DataKind::None, 0);
                inode.marks &= !marks::WRITING;
            });
        }),
        (What::BadShape, |p| p.put(Tag::Small, p.file, Some(b"bytes"))),
        (What::BadInode, |p| p.put(Tag::Inode, p.file, Some(&[1; 256]))),
    ];
    for (which, (what, plant)) in plants.iter().enumerate() {
        let planted = Planted::new();
        plant(&planted);
        let report = block_on(planted.volume.check(check::Options::default())).unwrap();
        let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        let kinds: Vec<What> = report.findings.iter().map(|finding| finding.what).collect();
        assert!(kinds.contains(what), "plant {which}, {what:?}: {found:#?}");
        assert!(kinds.len() <= 2, "plant {which}, {what:?}: {found:#?}");
    }
}

/// A server must know after a loss of power what it had noted.
#[test]
fn notes_are_there_until_they_are_taken_away() {
    let disk = Disk::new(2);
    let volume = open(&disk);
    let notes = |volume: &Volume, prefix, after| block_on(volume.notes(prefix, after)).unwrap();
    for (name, value) in [(&b"ab"[..], &b""[..]), (b"aa", b"old"), (b"b", b"3"), (b"aa", b"new")] {
        block_on(volume.note(name, Some(value))).unwrap();
    }
    let all = [(b"aa".to_vec(), b"new".to_vec()), (b"ab".to_vec(), Vec::new())];
    assert_eq!(notes(&volume, b"a", None), all);
    assert_eq!(notes(&volume, b"a", Some(b"aa")), all[1..]);
    assert_eq!(notes(&volume, b"c", None), []);
    for (name, value) in [(vec![], 0), (vec![1; 256], 0), (vec![1], 4097)] {
        let value = vec![0; value];
        assert_eq!(block_on(volume.note(&name, Some(&value))), Err(Errno::EINVAL));
    }
    block_on(volume.note(&[1; 255], Some(&[0; 4096]))).unwrap();
    assert_clean(&volume);
    drop(volume);
    disk.crash();
    let volume = open(&disk);
    assert_eq!(notes(&volume, b"a", None), all);
    block_on(volume.note(b"ab", None)).unwrap();
    block_on(volume.note(b"ab", None)).unwrap();
    assert_eq!(notes(&volume, b"a", None), all[..1]);
}
