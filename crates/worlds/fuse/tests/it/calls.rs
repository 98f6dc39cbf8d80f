//! Each operation once, by the system call that causes it. The goal is that nothing is lost in
//! translation; what the operations mean is the volume's matter.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use outboard_fuse::MountOptions;
use outboard_wire::file::Op;
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom as Seeking, XattrFlags,
};

use crate::harness::{
    Mount, can_mount, each, each_of_both, eventually, kvfs_mount, note_skip, spawn, toy_mount,
};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn errno(error: &std::io::Error) -> Option<rustix::io::Errno> {
    rustix::io::Errno::from_io_error(error)
}

#[test]
fn names_come_and_go() {
    each("names_come_and_go", |mount| {
        let dir = &mount.dir;
        fs::create_dir(dir.join("d")).unwrap();
        fs::write(dir.join("d/f"), b"hello").unwrap();
        fs::hard_link(dir.join("d/f"), dir.join("g")).unwrap();
        assert_eq!(fs::metadata(dir.join("g")).unwrap().nlink(), 2);
        symlink("d/f", dir.join("s")).unwrap();
        assert_eq!(fs::read_link(dir.join("s")).unwrap(), Path::new("d/f"));
        assert_eq!(fs::read(dir.join("s")).unwrap(), b"hello");
        assert_eq!(names(dir), ["d", "g", "s"]);
        fs::rename(dir.join("g"), dir.join("d/h")).unwrap();
        assert_eq!(names(&dir.join("d")), ["f", "h"]);
        fs::remove_file(dir.join("d/f")).unwrap();
        let error = fs::remove_dir(dir.join("d")).unwrap_err();
        assert_eq!(errno(&error), Some(rustix::io::Errno::NOTEMPTY));
        fs::remove_file(dir.join("d/h")).unwrap();
        fs::remove_dir(dir.join("d")).unwrap();
        fs::remove_file(dir.join("s")).unwrap();
        assert!(names(dir).is_empty());
        // Everything is gone on the other side too, once the kernel forgot it.
        eventually("the volume holds the root alone", || {
            fs::metadata(dir).unwrap();
            let _ = fs::metadata(dir.join("nothing"));
            mount.backend.toy.inodes() == 1
        });
    });
}

#[test]
fn rename_with_its_flags() {
    each("rename_with_its_flags", |mount| {
        let dir = File::open(&mount.dir).unwrap();
        fs::write(mount.dir.join("a"), b"a").unwrap();
        fs::write(mount.dir.join("b"), b"b").unwrap();
        let rename = |flags| rustix::fs::renameat_with(&dir, "a", &dir, "b", flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(mount.dir.join("a")).unwrap(), b"b");
        fs::rename(mount.dir.join("a"), mount.dir.join("b")).unwrap();
        assert_eq!(fs::read(mount.dir.join("b")).unwrap(), b"b");
        assert_eq!(names(&mount.dir), ["b"]);
    });
}

#[test]
fn dot_dot_names_the_directory_above_also_after_a_move() {
    each("dot_dot", |mount| {
        let dir = &mount.dir;
        for name in ["one", "two", "one/moved"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        fs::rename(dir.join("one/moved"), dir.join("two/moved")).unwrap();
        eventually("`..` is the new directory", || {
            above(&dir.join("two/moved")) == fs::metadata(dir.join("two")).unwrap().ino()
        });
    });
}

/// What the listing of a directory says is above it.
fn above(dir: &Path) -> u64 {
    let mut listing = rustix::fs::Dir::read_from(File::open(dir).unwrap()).unwrap();
    let found = listing
        .find(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name().to_bytes() == b".."));
    found.unwrap().unwrap().ino()
}

/// Of several things to ask the volume, those behind the first were lost when no slot was free for
/// that one: a directory kept a wrong `..`, a nameless inode was never forgotten.
#[test]
fn nothing_to_ask_is_lost_for_want_of_a_slot() {
    if !can_mount("chores") {
        return;
    }
    let mount = toy_mount(MountOptions { workers: 1, ..MountOptions::default() }, None);
    let dir = &mount.dir;
    for name in ["one", "two", "one/a", "two/b"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    let (one, two) = (dir.join("one"), dir.join("two"));
    let ino = |dir: &Path| fs::metadata(dir).unwrap().ino();
    let (from, to) = (File::open(&one).unwrap(), File::open(&two).unwrap());
    // All known to the kernel: the rename is one message, for which the worker holds a slot.
    assert!([&one, &two, &one.join("a"), &two.join("b")].into_iter().all(|dir| ino(dir) > 1));
    std::thread::sleep(std::time::Duration::from_millis(50));
    mount.backend.run_short(1);
    rustix::fs::renameat_with(&from, "a", &to, "b", RenameFlags::EXCHANGE).unwrap();
    eventually("`..` is right on both sides", || {
        above(&one.join("a")) == ino(&one) && above(&two.join("b")) == ino(&two)
    });
}

#[test]
fn attributes_change_and_are_seen() {
    each("attributes", |mount| {
        let path = mount.dir.join("f");
        fs::write(&path, b"12345678").unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
        std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
        file.set_len(3).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1234, 567);
        file.set_times(fs::FileTimes::new().set_modified(time).set_accessed(time)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.len()), (12, 34, 3));
        // The change of owner took the set-user-id bit.
        assert_eq!(meta.mode(), 0o100_751);
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (1234, 567));
        assert_eq!(fs::metadata(&mount.dir).unwrap().ino(), 1);
        assert!(meta.created().is_ok(), "statx tells the creation time");
    });
}

#[test]
fn the_umask_is_the_volumes_matter() {
    each("umask", |mount| {
        // Threads share a umask: take what there is.
        let umask = rustix::process::umask(Mode::empty());
        rustix::process::umask(umask);
        let path = mount.dir.join("f");
        OpenOptions::new().create_new(true).write(true).mode(0o666).open(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o666 & !umask.as_raw_mode());
    });
}

#[test]
fn large_and_small_data_come_back() {
    each("data", |mount| {
        let path = mount.dir.join("f");
        let data: Vec<u8> = (0..5_000_123u32).map(|i| (i * 7 + i / 4096) as u8).collect();
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        file.write_all(&data).unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut back = Vec::new();
        file.read_to_end(&mut back).unwrap();
        assert!(back == data);
        for (at, len) in [(0, 1), (1, 4095), (4095, 3), (999_999, 300_000), (5_000_120, 3)] {
            let mut part = vec![0; len];
            file.read_exact_at(&mut part, at as u64).unwrap();
            assert!(part == data[at..at + len], "{len} bytes at {at}");
        }
        file.write_all_at(b"in the middle", 1_000_000).unwrap();
        drop(file);
        let mut data = data;
        data[1_000_000..1_000_013].copy_from_slice(b"in the middle");
        assert!(fs::read(&path).unwrap() == data);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"behind").unwrap();
        data.extend_from_slice(b"behind");
        assert!(fs::read(&path).unwrap() == data);
        // Truncated at open.
        File::create(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    });
}

#[test]
fn direct_io_comes_back() {
    each("direct", |mount| {
        let path = mount.dir.join("f");
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .custom_flags(direct)
            .open(&path)
            .unwrap();
        let data: Vec<u8> = (0..2u32 << 20).map(|i| (i / 512) as u8).collect();
        file.write_all_at(&data, 0).unwrap();
        let mut back = vec![0; data.len()];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == data);
    });
}

/// Goal: the kernel's pages never hide what went past them, nor the other way round.
#[test]
fn direct_and_cached_views_of_a_file_agree() {
    each_of_both("direct_and_cached", |mount| {
        let path = mount.dir.join("f");
        fs::write(&path, vec![b'.'; 64 << 10]).unwrap();
        let open = |flags: OFlags| {
            let flags = flags.bits().cast_signed();
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap()
        };
        let (cached, direct) = (open(OFlags::empty()), open(OFlags::DIRECT));
        let mut back = vec![0; 64 << 10];
        for round in 0..20u8 {
            cached.read_exact_at(&mut back, 0).unwrap();
            direct.write_all_at(&[round; 8192], 8192).unwrap();
            cached.read_exact_at(&mut back, 0).unwrap();
            assert!(back[8192..16384] == [round; 8192], "round {round}: direct, then cached");
            cached.write_all_at(&[round | 128; 100], 20_000).unwrap();
            direct.read_exact_at(&mut back, 0).unwrap();
            assert!(back[20_000..20_100] == [round | 128; 100], "round {round}: the other way");
        }
    });
}

#[test]
fn space_calls_reach_the_volume() {
    each("space", |mount| {
        let path = mount.dir.join("f");
        fs::write(&path, vec![b'x'; 20_000]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 30_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 30_000);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 4096, 4096).unwrap();
        let data = fs::read(&path).unwrap();
        assert!(data[4096..8192].iter().all(|&byte| byte == 0) && data[4095] == b'x');
        assert_eq!(rustix::fs::seek(&file, Seeking::Hole(5)), Ok(30_000));
        assert_eq!(rustix::fs::seek(&file, Seeking::Data(5)), Ok(5));
        let copy = File::create_new(mount.dir.join("copy")).unwrap();
        let mut offset = 100;
        let copied =
            rustix::fs::copy_file_range(&file, Some(&mut offset), &copy, None, 5000).unwrap();
        assert_eq!(copied, 5000);
        assert!(fs::read(mount.dir.join("copy")).unwrap() == data[100..5100]);
        assert!(mount.backend.toy.asked(Op::CopyFileRange) > 0);
        let figures = rustix::fs::statvfs(&mount.dir).unwrap();
        assert_eq!((figures.f_blocks, figures.f_bavail, figures.f_ffree), (1000, 800, 60));
        assert_eq!((figures.f_bsize, figures.f_namemax), (4096, 255));
    });
}

#[test]
fn extended_attributes_come_back() {
    each("xattrs", |mount| {
        let path = mount.dir.join("f");
        fs::write(&path, b"").unwrap();
        let set = |name, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
        let long = vec![7; 60_000];
        set("user.a", b"one", XattrFlags::empty()).unwrap();
        set("user.long", &long, XattrFlags::CREATE).unwrap();
        assert_eq!(set("user.a", b"", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
        let mut value = vec![0; 65_536];
        assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut value), Ok(3));
        assert_eq!(rustix::fs::getxattr(&path, "user.long", &mut value), Ok(60_000));
        assert!(value[..60_000] == long);
        assert_eq!(rustix::fs::getxattr_query(&path, "user.a"), Ok(3));
        let len = rustix::fs::listxattr(&path, &mut value).unwrap();
        assert_eq!(&value[..len], b"user.a\0user.long\0");
        rustix::fs::removexattr(&path, "user.a").unwrap();
        let gone = rustix::fs::getxattr(&path, "user.a", &mut value);
        assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    });
}

#[test]
fn nodes_of_every_kind() {
    each("nodes", |mount| {
        use rustix::fs::{FileType, makedev, mknodat};
        let dir = File::open(&mount.dir).unwrap();
        let mode = Mode::from_raw_mode(0o644);
        mknodat(&dir, "fifo", FileType::Fifo, mode, 0).unwrap();
        mknodat(&dir, "socket", FileType::Socket, mode, 0).unwrap();
        mknodat(&dir, "null", FileType::CharacterDevice, mode, makedev(1, 3)).unwrap();
        mknodat(&dir, "disk", FileType::BlockDevice, mode, makedev(300, 70_000)).unwrap();
        let disk = fs::metadata(mount.dir.join("disk")).unwrap();
        assert_eq!(disk.rdev(), makedev(300, 70_000));
        let statx = rustix::fs::statx(&dir, "disk", AtFlags::empty(), rustix::fs::StatxFlags::ALL);
        let statx = statx.unwrap();
        assert_eq!((statx.stx_rdev_major, statx.stx_rdev_minor), (300, 70_000));
        // A device node works: this is /dev/null.
        OpenOptions::new()
            .write(true)
            .open(mount.dir.join("null"))
            .unwrap()
            .write_all(b"x")
            .unwrap();
    });
}

#[test]
fn a_nameless_file_lives_as_long_as_it_is_open() {
    each("tmpfile", |mount| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let open = || rustix::fs::open(&mount.dir, flags, Mode::from_raw_mode(0o600)).unwrap();
        let file = File::from(open());
        file.write_all_at(b"nameless", 0).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        rustix::fs::linkat(
            rustix::fs::CWD,
            link,
            rustix::fs::CWD,
            mount.dir.join("named"),
            AtFlags::SYMLINK_FOLLOW,
        )
        .unwrap();
        drop(file);
        assert_eq!(fs::read(mount.dir.join("named")).unwrap(), b"nameless");
        drop(open());
        fs::remove_file(mount.dir.join("named")).unwrap();
        eventually("both are gone", || {
            let _ = fs::metadata(mount.dir.join("nothing"));
            mount.backend.toy.inodes() == 1
        });
    });
}

#[test]
fn an_unlinked_open_file_still_reads_and_writes() {
    each("unlinked", |mount| {
        let path = mount.dir.join("f");
        fs::write(&path, b"still here").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all_at(b"S", 0).unwrap();
        let mut back = [0; 10];
        file.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(&back, b"Still here");
        assert_eq!(mount.backend.toy.inodes(), 2);
        drop(file);
        eventually("it is gone", || {
            let _ = fs::metadata(mount.dir.join("nothing"));
            mount.backend.toy.inodes() == 1
        });
    });
}

/// A volume that keeps nothing of a file nobody has open: whoever still refers to it, by a
/// descriptor that opens nothing, sees its last attributes, and the volume is not asked again.
#[test]
fn a_file_that_is_gone_is_remembered_as_long_as_somebody_refers_to_it() {
    each("gone", |mount| {
        let path = mount.dir.join("f");
        fs::write(&path, b"12345").unwrap();
        let place = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
        eventually("nobody has it open", || mount.backend.toy.asked(Op::Release) == 1);
        fs::remove_file(&path).unwrap();
        assert_eq!(mount.backend.toy.inodes(), 1, "gone at once");
        let stat = rustix::fs::fstat(&place).unwrap();
        assert_eq!((stat.st_nlink, stat.st_size), (0, 5));
        assert_eq!(rustix::fs::fstat(&place).unwrap().st_nlink, 0);
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place));
        let error = File::open(link).unwrap_err();
        use rustix::io::Errno;
        assert!(matches!(errno(&error), Some(Errno::STALE | Errno::NOENT)), "{error}");
        drop(place);
        // Another file under the name is another file.
        fs::write(&path, b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().nlink(), 1);
        fs::remove_file(&path).unwrap();
        let _ = fs::metadata(mount.dir.join("nothing"));
        assert_eq!(mount.backend.toy.asked(Op::Forget), 0, "there is nothing to forget");
    });
}

#[test]
fn a_directory_of_ten_thousand_is_listed_whole() {
    each("ten_thousand", |mount| {
        let wanted: Vec<String> = (0..10_000).map(|i| format!("file-{i:05}")).collect();
        let count = if mount.backend.is_late() { 500 } else { wanted.len() };
        for name in &wanted[..count] {
            File::create(mount.dir.join(name)).unwrap();
        }
        assert_eq!(names(&mount.dir), wanted[..count]);
        // With attributes, which the listing may bring along.
        let total: u64 =
            fs::read_dir(&mount.dir).unwrap().map(|e| e.unwrap().metadata().unwrap().nlink()).sum();
        assert_eq!(total, count as u64);
        assert!(mount.backend.toy.asked(Op::Readdir) > 0);
    });
}

#[test]
fn names_beyond_the_limit_are_refused() {
    each("long_names", |mount| {
        let fits = mount.dir.join("n".repeat(255));
        File::create(&fits).unwrap();
        fs::metadata(&fits).unwrap();
        let error = File::create(mount.dir.join("n".repeat(256))).unwrap_err();
        assert_eq!(errno(&error), Some(rustix::io::Errno::NAMETOOLONG));
        let error = fs::metadata(mount.dir.join("n".repeat(256))).unwrap_err();
        assert_eq!(errno(&error), Some(rustix::io::Errno::NAMETOOLONG));
    });
}

#[test]
fn what_has_no_meaning_is_refused_cleanly() {
    each("no_meaning", |mount| {
        let path = mount.dir.join("f");
        fs::write(&path, b"x").unwrap();
        let file = File::open(&path).unwrap();
        // Not a terminal: TCGETS is an ioctl nobody here answers.
        assert_eq!(rustix::termios::tcgetattr(&file).unwrap_err(), rustix::io::Errno::NOTTY);
        let mut polled =
            [rustix::event::PollFd::from_borrowed_fd(file.as_fd(), rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut polled, None), Ok(1));
        rustix::fs::syncfs(&file).unwrap();
        File::open(&mount.dir).unwrap().sync_all().unwrap();
    });
}

#[test]
fn shared_mappings_write_through() {
    each("mmap", |mount| {
        // The store and the load are done by a program, as Rust calls mapping unsafe.
        let path = mount.dir.join("f");
        fs::write(&path, vec![b'.'; 8192]).unwrap();
        let script = format!(
            "import mmap\nf = open({path:?}, 'r+b')\nm = mmap.mmap(f.fileno(), 0)\n\
             m[5000:5005] = b'hello'\nm.flush()\nm.close()"
        );
        let Ok(status) = spawn(std::process::Command::new("python3").arg("-c").arg(script))
            .and_then(|mut child| child.wait())
        else {
            note_skip("mmap", "there is no python3");
            return;
        };
        assert!(status.success());
        assert_eq!(&fs::read(&path).unwrap()[4999..5006], b".hello.");
    });
}

#[test]
fn what_the_kernel_keeps_is_not_asked_again() {
    if !can_mount("what_the_kernel_keeps_is_not_asked_again") {
        return;
    }
    asked_once(&toy_mount(MountOptions::default(), None));
    asked_once(&kvfs_mount(MountOptions::default(), None));
}

fn asked_once(mount: &Mount) {
    let path = mount.dir.join("f");
    fs::write(&path, vec![1; 100_000]).unwrap();
    fs::read(&path).unwrap();
    let volume = &mount.backend;
    fs::metadata(&path).unwrap();
    assert!(fs::metadata(mount.dir.join("absent")).is_err());
    let before = [Op::Read, Op::Lookup, Op::Getattr, Op::Flush].map(|op| volume.asked(op));
    for _ in 0..10 {
        assert!(fs::read(&path).unwrap() == vec![1; 100_000]);
        fs::metadata(&path).unwrap();
        assert!(fs::metadata(mount.dir.join("absent")).is_err());
    }
    let after = [Op::Read, Op::Lookup, Op::Getattr, Op::Flush].map(|op| volume.asked(op));
    // A read may make the access time stale, once each: attributes are asked for again.
    assert_eq!((before[0], before[1], before[3]), (after[0], after[1], after[3]));
    assert!(after[2] - before[2] <= 20);
    assert_eq!(after[3], 0, "no lock was taken, so no close is told");
}

/// What was answered last through the mount is what the next look sees, though the kernel keeps
/// what it was told: whatever changed it, a name, attributes, data, by any call.
#[test]
fn what_the_kernel_keeps_is_as_new_as_the_last_answer() {
    each_of_both("as_new_as_the_last_answer", |mount| {
        let dir = &mount.dir;
        let (one, two) = (dir.join("one"), dir.join("two"));
        for round in 0..10u8 {
            assert!(
                fs::metadata(&one).is_err(),
                "round {round}: it is not there, and that is kept"
            );
            fs::write(&one, vec![round; 5000]).unwrap();
            assert_eq!(fs::metadata(&one).unwrap().len(), 5000);
            assert_eq!(fs::read(&one).unwrap(), vec![round; 5000]);
            fs::hard_link(&one, &two).unwrap();
            assert_eq!(fs::metadata(&one).unwrap().nlink(), 2);
            let file = OpenOptions::new().read(true).write(true).open(&two).unwrap();
            file.set_len(100).unwrap();
            assert_eq!(
                (fs::metadata(&one).unwrap().len(), fs::read(&one).unwrap().len()),
                (100, 100)
            );
            file.write_all_at(&[round | 128; 50], 50).unwrap();
            let back = fs::read(&one).unwrap();
            assert!(back[..50] == [round; 50] && back[50..] == [round | 128; 50], "round {round}");
            fs::set_permissions(&two, fs::Permissions::from_mode(0o600 | u32::from(round)))
                .unwrap();
            assert_eq!(fs::metadata(&one).unwrap().mode() & 0o777, 0o600 | u32::from(round));
            fs::rename(&two, dir.join("three")).unwrap();
            assert!(fs::metadata(&two).is_err());
            assert_eq!(names(dir), ["one", "three"]);
            fs::remove_file(&one).unwrap();
            assert_eq!(file.metadata().unwrap().nlink(), 1);
            fs::remove_file(dir.join("three")).unwrap();
            assert!(names(dir).is_empty());
        }
    });
}

/// The adaptor was said to copy no file data, and nothing counted. What the kernel moves between
/// its pages and the slot's is not ours to count.
#[test]
fn the_adaptor_copies_no_file_data() {
    each_of_both("copies", |mount| {
        let path = mount.dir.join("f");
        fs::write(&path, b"").unwrap();
        let open = |flags: OFlags| {
            let flags = flags.bits().cast_signed();
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap()
        };
        for file in [open(OFlags::empty()), open(OFlags::DIRECT)] {
            let data: Vec<u8> = (0..1u32 << 20).map(|at| (at / 7) as u8).collect();
            let asked = || [Op::Write, Op::Read].map(|op| mount.backend.asked(op));
            let (before, copied) = (asked(), mount.backend.copied());
            for at in (0..data.len()).step_by(8192) {
                file.write_all_at(&data[at..at + 8192], at as u64).unwrap();
            }
            file.write_all_at(&data, 0).unwrap();
            // From the volume, not from what the kernel has kept of the writes.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut back = vec![0; data.len()];
            file.read_exact_at(&mut back, 0).unwrap();
            assert!(back == data);
            let after = asked();
            assert!(after[0] >= before[0] + 129 && after[1] > before[1], "{before:?} {after:?}");
            assert_eq!(mount.backend.copied(), copied);
        }
        // It is counted: a name of a link goes through the slot's pages by a copy.
        let copied = mount.backend.copied();
        symlink("twelve bytes", mount.dir.join("s")).unwrap();
        assert_eq!(mount.backend.copied(), copied + 12);
    });
}

/// The kernel asks for a directory's attributes before each removal, as the one before made it
/// forget them: the volume need not be asked. Nor is what is answered ever stale.
#[test]
fn a_removal_is_one_request() {
    if !can_mount("a_removal_is_one_request") {
        return;
    }
    let mount = toy_mount(MountOptions::default(), None);
    let toy = &mount.backend.toy;
    for n in 0..50 {
        File::create(mount.dir.join(format!("f{n}"))).unwrap();
    }
    eventually("nobody has one open", || toy.asked(Op::Release) == 50);
    let times = || fs::metadata(&mount.dir).map(|meta| (meta.mtime(), meta.ctime())).unwrap();
    let (mut before, asked) = (times(), toy.asked(Op::Getattr));
    for n in 0..50 {
        fs::remove_file(mount.dir.join(format!("f{n}"))).unwrap();
        assert!(times() > before, "each change shows");
        before = times();
    }
    assert_eq!(toy.asked(Op::Getattr), asked);
    File::create(mount.dir.join("g")).unwrap();
    assert!(times() > before);
    fs::remove_file(mount.dir.join("g")).unwrap();
    fs::set_permissions(&mount.dir, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(fs::metadata(&mount.dir).unwrap().mode() & 0o777, 0o700);
}

/// A mount that lets the kernel keep entries lists directories without opening them; a change is in
/// the next listing.
#[test]
fn directories_are_listed_without_being_opened() {
    if !can_mount("directories_are_listed_without_being_opened") {
        return;
    }
    let none = MountOptions { cache: outboard_fuse::Cache::None, ..MountOptions::default() };
    for (options, kept) in [(MountOptions::default(), true), (none, false)] {
        let mount = toy_mount(options, None);
        let toy = &mount.backend.toy;
        let mut wanted = Vec::new();
        for round in 0..3 {
            let name = format!("file-{round}");
            File::create(mount.dir.join(&name)).unwrap();
            wanted.push(name);
            assert_eq!(names(&mount.dir), wanted);
            let asked = toy.asked(Op::Readdir);
            assert_eq!(names(&mount.dir), wanted);
            assert_eq!(toy.asked(Op::Readdir) == asked, kept, "entries stay in the kernel");
        }
        fs::remove_file(mount.dir.join("file-1")).unwrap();
        assert_eq!(names(&mount.dir), ["file-0", "file-2"]);
        let opened = toy.asked(Op::Opendir) + toy.asked(Op::Releasedir);
        assert_eq!(opened == 0, kept);
    }
}

#[test]
fn options_show_and_hold() {
    if !can_mount("options_show_and_hold") {
        return;
    }
    let mut options = MountOptions::default();
    options.apply("nodev,nosuid,noexec,noatime,dirsync").unwrap();
    let mount = toy_mount(options, None);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(mount.dir.to_str().unwrap())).unwrap();
    for option in
        ["nosuid", "nodev", "noexec", "noatime", "dirsync", "fuse.outboard", "allow_other"]
    {
        assert!(line.contains(option), "{option} is not in {line}");
    }
    let device = line.split(' ').nth(2).unwrap();
    let ahead = fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")).unwrap();
    assert_eq!(ahead.trim(), "1024");
    let before = mount.backend.toy.asked(Op::Syncfs);
    fs::create_dir(mount.dir.join("d")).unwrap();
    assert_eq!(mount.backend.toy.asked(Op::Syncfs), before + 1, "dirsync: durable at the answer");
    drop(mount);
    let mut options = MountOptions::default();
    options.apply("ro").unwrap();
    let mount = toy_mount(options, None);
    let error = fs::create_dir(mount.dir.join("d")).unwrap_err();
    assert_eq!(errno(&error), Some(rustix::io::Errno::ROFS));
}
