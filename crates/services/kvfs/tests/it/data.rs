//! A file's bytes against the simplest model there is: a vector.
//!
//! Random operations on two files at the sizes where forms change (8,192 bytes: pair or object; 8
//! KiB: block; 256 KiB: index page), with engines that delay, report conflicts and, in another run,
//! fail. After each operation the size and one read must agree, now and then everything. A failing
//! seed is printed.

use outboard_base::{Errno, Fh, Ino, Rng, Timestamp};
use outboard_kv::mem;
use outboard_kv::object::ObjectId;
use outboard_kvfs::check;
use outboard_medium as medium;
use outboard_wire::file::{Reply, Request, Setattr, SetattrTime, open_flags, seek, write_flags};

use crate::world::{Disk, User, Volume, block_on, errno, tidy};

/// Sizes and offsets at which something changes.
const EDGES: [u64; 12] =
    [0, 1, 4096, 8191, 8192, 8193, 16_384, 65_536, 262_143, 262_144, 262_145, 524_288];
const KEEP_SIZE: u32 = 1;
const PUNCH: u32 = 2 | KEEP_SIZE;
const ZERO: u32 = 16;

struct File {
    ino: Ino,
    fh: Fh,
    bytes: Vec<u8>,
}

fn place(rng: &mut Rng) -> u64 {
    let edge = EDGES[rng.below(EDGES.len() as u64) as usize];
    match rng.below(4) {
        0 => rng.below(530_000),
        1 => (edge + rng.below(200)).saturating_sub(100),
        _ => edge,
    }
}

fn length(rng: &mut Rng) -> u64 {
    match rng.below(4) {
        0 => 1 + rng.below(10),
        1 => 8192 * (1 + rng.below(4)),
        2 => 1 + rng.below(20_000),
        _ => place(rng).clamp(1, 300_000),
    }
}

fn random_bytes(rng: &mut Rng, len: u64) -> Vec<u8> {
    // Never zero: a lost byte must not look like a hole.
    (0..len).map(|_| 1 + (rng.next_u64() % 255) as u8).collect()
}

fn grow(bytes: &mut Vec<u8>, len: u64) {
    if bytes.len() < len as usize {
        bytes.resize(len as usize, 0);
    }
}

fn put(bytes: &mut Vec<u8>, at: u64, data: &[u8]) {
    grow(bytes, at + data.len() as u64);
    bytes[at as usize..at as usize + data.len()].copy_from_slice(data);
}

fn fallocate(user: &User<'_>, file: &File, mode: u32, offset: u64, len: u64) -> Result<(), Errno> {
    user.done(Request::Fallocate { ino: file.ino, fh: file.fh, offset, len, mode }, &[])
}

/// One operation on the volume; what it makes of the model, if it succeeds.
fn operate(
    rng: &mut Rng,
    user: &User<'_>,
    files: &[File; 2],
    nth: usize,
) -> Result<Vec<u8>, Errno> {
    let file = &files[nth];
    let (ino, fh, mut bytes) = (file.ino, file.fh, file.bytes.clone());
    let (at, len) = (place(rng), length(rng));
    match rng.below(11) {
        0..=2 => {
            let data = random_bytes(rng, len);
            assert_eq!(user.write(ino, fh, at, &data)?, data.len());
            put(&mut bytes, at, &data);
        }
        3 => {
            let data = random_bytes(rng, len.min(20_000));
            let request = Request::Write { ino, fh, offset: at, flags: write_flags::APPEND };
            user.ask(request, &data)?;
            bytes.extend_from_slice(&data);
        }
        4 | 5 => {
            let size = if rng.chance(1, 4) { 0 } else { at };
            user.set(ino, Setattr { size: Some(size), ..Setattr::default() })?;
            bytes.resize(size as usize, 0);
        }
        6 => {
            let keep = rng.chance(1, 2);
            fallocate(user, file, u32::from(keep), at, len)?;
            if !keep {
                grow(&mut bytes, at + len);
            }
        }
        7 => {
            fallocate(user, file, PUNCH, at, len)?;
            let end = bytes.len().min((at + len) as usize);
            bytes.get_mut(at as usize..end).into_iter().for_each(|hole| hole.fill(0));
        }
        8 => {
            let keep = rng.chance(1, 2);
            fallocate(user, file, ZERO | u32::from(keep), at, len)?;
            if !keep {
                grow(&mut bytes, at + len);
            }
            let end = bytes.len().min((at + len) as usize);
            bytes.get_mut(at as usize..end).into_iter().for_each(|hole| hole.fill(0));
        }
        9 => copy(rng, user, files, nth, (at, len), &mut bytes)?,
        _ => user.done(Request::Fsync { ino, fh, data_only: rng.chance(1, 2) }, &[])?,
    }
    Ok(bytes)
}

fn copy(
    rng: &mut Rng,
    user: &User<'_>,
    files: &[File; 2],
    nth: usize,
    (mut at, mut len): (u64, u64),
    bytes: &mut Vec<u8>,
) -> Result<(), Errno> {
    let (source, target) = (&files[rng.below(2) as usize], &files[nth]);
    let mut from_at = place(rng);
    let request = |from_offset, to_offset, len| Request::CopyFileRange {
        from: source.ino,
        from_fh: source.fh,
        from_offset,
        to: target.ino,
        to_fh: target.fh,
        to_offset,
        len,
    };
    if source.ino == target.ino && from_at < at + len && at < from_at + len {
        let refused = user.ask(request(from_at, at, len), &[]);
        assert_eq!(errno(refused), Errno::EINVAL);
        return Ok(());
    }
    // One call copies what one batch can: here the model follows it call by call.
    loop {
        let Reply::Written(copied) = user.ask(request(from_at, at, len), &[])?.0 else { panic!() };
        let copied = u64::from(copied);
        // Copying within a file may move its own end.
        let now = if source.ino == target.ino { bytes.clone() } else { source.bytes.clone() };
        let left = (now.len() as u64).saturating_sub(from_at);
        assert!(copied <= len.min(left));
        assert_eq!(copied == 0, len.min(left) == 0, "no progress before the end");
        if copied == 0 {
            return Ok(());
        }
        put(bytes, at, &now[from_at as usize..(from_at + copied) as usize]);
        (from_at, at, len) = (from_at + copied, at + copied, len - copied);
    }
}

/// Data and holes: never data where it is said there is none.
fn seeks(rng: &mut Rng, user: &User<'_>, file: &File) {
    let (ino, fh, offset) = (file.ino, file.fh, place(rng));
    let ask = |offset, whence| match user.ask(Request::Lseek { ino, fh, offset, whence }, &[]) {
        Ok((Reply::Offset(found), _)) => Ok(found),
        Ok((reply, _)) => panic!("{reply:?}"),
        Err(errno) => Err(errno),
    };
    let size = file.bytes.len() as u64;
    let zeros = |from: u64, to: u64| file.bytes[from as usize..to as usize].iter().all(|b| *b == 0);
    if offset >= size {
        assert_eq!(ask(offset, seek::DATA), Err(Errno::ENXIO));
        assert_eq!(ask(offset, seek::HOLE), Err(Errno::ENXIO));
        return;
    }
    match ask(offset, seek::DATA) {
        Ok(data) => assert!(data >= offset && data < size && zeros(offset, data)),
        Err(errno) => assert!(errno == Errno::ENXIO && zeros(offset, size)),
    }
    let hole = ask(offset, seek::HOLE).unwrap();
    assert!(hole >= offset && hole <= size);
    if hole < size {
        let next = ask(hole, seek::DATA).unwrap_or(size);
        assert!(next > hole && zeros(hole, next), "a hole of no length, or with data in it");
    }
}

fn same(rng: &mut Rng, volume: &Volume, user: &User<'_>, file: &File, all: bool) {
    let attr = user.stat(file.ino).unwrap();
    assert_eq!(attr.size, file.bytes.len() as u64);
    let blocks = block_on(volume.objects().count(ObjectId(file.ino.0))).unwrap();
    if blocks > 0 {
        assert_eq!(attr.blocks, blocks * 16);
    }
    let (from, len) = if all { (0, 1 << 20) } else { (place(rng), length(rng)) };
    let read = user.read(file.ino, file.fh, from, len as u32).unwrap();
    let start = file.bytes.len().min(from as usize);
    let end = file.bytes.len().min((from + len) as usize);
    assert!(read == file.bytes[start..end], "bytes from {from} differ");
}

fn make(user: &User<'_>, name: &str) -> File {
    let (attr, fh) = user.create(Ino::ROOT, name, 0).unwrap();
    File { ino: attr.ino, fh, bytes: Vec::new() }
}

/// Runs `steps` operations; those that `faults` make fail must change nothing.
fn run(seed: u64, steps: usize, commit_fails: u64, read_fails: u64) {
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let disk = Disk::new(seed);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let mut files = [make(&user, "a"), make(&user, "b")];
    let slow = mem::Faults { delay_polls: 3, commit_conflicts: 9, ..mem::Faults::default() };
    for step in 0..steps {
        disk.kv.set_faults(mem::Faults { commit_fails, ..slow });
        disk.medium.set_faults(medium::mem::Faults {
            delay_polls: 2,
            read_fails,
            write_fails: read_fails,
            ..medium::mem::Faults::default()
        });
        let nth = rng.below(2) as usize;
        let outcome = operate(&mut rng, &user, &files, nth);
        disk.kv.set_faults(slow);
        disk.medium.set_faults(medium::mem::Faults::default());
        match outcome {
            Ok(bytes) => files[nth].bytes = bytes,
            Err(errno) => {
                assert!(errno == Errno::EIO && commit_fails + read_fails > 0, "{errno}");
                // A copy of several calls may have been done in part: look, and believe only that
                // the size is one the file can have.
                let size = user.stat(files[nth].ino).unwrap().size;
                files[nth].bytes = read_all(&user, &files[nth], size);
            }
        }
        same(&mut rng, &volume, &user, &files[nth], step % 8 == 0);
        seeks(&mut rng, &user, &files[nth]);
    }
    for file in &files {
        same(&mut rng, &volume, &user, file, true);
    }
    tidy(&volume);
    clean(&volume);
}

fn read_all(user: &User<'_>, file: &File, size: u64) -> Vec<u8> {
    user.read(file.ino, file.fh, 0, u32::try_from(size).unwrap()).unwrap()
}

pub(crate) fn clean(volume: &Volume) {
    let options = check::Options { contents: true, repair: false };
    let report = block_on(volume.check(options)).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

#[test]
fn random_operations_do_to_a_file_what_they_do_to_a_vector() {
    for seed in 0..30 {
        run(seed, 80, 0, 0);
    }
}

/// Failing commits, reads and writes: the operation fails with EIO, the file is what it was, and no
/// block is lost over it.
#[test]
fn failures_leave_a_whole_file() {
    for seed in 1000..1015 {
        run(seed, 60, 12, 0);
        run(seed, 60, 12, 30);
    }
}

/// The boundary between one pair and an object, byte by byte, from both sides and by every way of
/// growing.
#[test]
fn the_boundary_of_small_files() {
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    for size in [8191_u64, 8192, 8193] {
        for way in 0..4 {
            let mut file = make(&user, &format!("{size} {way}"));
            let data: Vec<u8> = (0..size).map(|i| 1 + (i % 251) as u8).collect();
            match way {
                0 => assert_eq!(user.write(file.ino, file.fh, 0, &data).unwrap(), data.len()),
                1 => {
                    for (at, byte) in data.iter().enumerate().skip(8100) {
                        user.write(file.ino, file.fh, at as u64, &[*byte]).unwrap();
                    }
                    user.write(file.ino, file.fh, 0, &data[..8100]).unwrap();
                }
                2 => {
                    user.write(file.ino, file.fh, 0, &data[..100]).unwrap();
                    let set = Setattr { size: Some(size), ..Setattr::default() };
                    user.set(file.ino, set).unwrap();
                    user.write(file.ino, file.fh, 100, &data[100..]).unwrap();
                }
                _ => {
                    fallocate(&user, &file, 0, 0, size).unwrap();
                    user.write(file.ino, file.fh, 0, &data).unwrap();
                }
            }
            file.bytes = data;
            same(&mut Rng::new(1), &volume, &user, &file, true);
            let blocks = block_on(volume.objects().count(ObjectId(file.ino.0))).unwrap();
            let big = size > 8192 || way == 3;
            assert_eq!(blocks, if big { size.div_ceil(8192) } else { 0 }, "{size} {way}");
        }
    }
    clean(&volume);
}

/// A terabyte of nothing costs nothing; its end can be written, found and cut off.
#[test]
fn sparse_files_are_as_large_as_they_say() {
    let disk = Disk::new(2);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let File { ino, fh, .. } = make(&user, "sparse");
    let size = |size| Setattr { size: Some(size), ..Setattr::default() };
    let attr = user.set(ino, size(1 << 40)).unwrap();
    assert_eq!((attr.size, attr.blocks), (1 << 40, 0));
    assert_eq!(user.write(ino, fh, (1 << 40) - 3, b"tail!").unwrap(), 5);
    let attr = user.stat(ino).unwrap();
    assert_eq!((attr.size, attr.blocks), ((1 << 40) + 2, 32));
    let request = Request::Lseek { ino, fh, offset: 5, whence: seek::DATA };
    assert_eq!(user.ask(request, &[]).unwrap().0, Reply::Offset((1 << 40) - 8192));
    assert_eq!(user.read(ino, fh, (1 << 40) - 5, 100).unwrap(), b"\0\0tail!");
    // The largest file, and a byte too much.
    assert_eq!(user.set(ino, size(16 << 40)).unwrap().size, 16 << 40);
    assert_eq!(errno(user.set(ino, size((16 << 40) + 1))), Errno::EFBIG);
    assert_eq!(errno(user.write(ino, fh, 16 << 40, b"x")), Errno::EFBIG);
    assert_eq!(user.write(ino, fh, (16 << 40) - 1, b"xy").unwrap(), 1, "up to the limit");
    assert_eq!(user.set(ino, size(0)).unwrap().blocks, 0);
    clean(&volume);
}

/// Handles that append do so whatever the offset; each write is at the end of the one before, also
/// when two take turns. Written-back pages keep their places.
#[test]
fn appending() {
    let disk = Disk::new(3);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let file = make(&user, "log");
    let append = user.open(file.ino, open_flags::WRONLY | open_flags::APPEND).unwrap();
    let other = user.open(file.ino, open_flags::RDWR | open_flags::APPEND).unwrap();
    for (fh, text) in [(append, b"one "), (other, b"two "), (append, b"six ")] {
        assert_eq!(user.write(file.ino, fh, 0, text).unwrap(), 4);
    }
    let flags = write_flags::WRITEBACK;
    user.ask(Request::Write { ino: file.ino, fh: append, offset: 0, flags }, b"ONE").unwrap();
    assert_eq!(user.read(file.ino, file.fh, 0, 99).unwrap(), b"ONE two six ");
    assert_eq!(errno(user.read(file.ino, append, 0, 1)), Errno::EBADF);
    let reader = user.open(file.ino, 0).unwrap();
    assert_eq!(errno(user.write(file.ino, reader, 0, b"x")), Errno::EBADF);
    assert_eq!(errno(fallocate(&user, &File { fh: reader, ..file }, 0, 0, 1)), Errno::EBADF);
}

/// What `fallocate(2)` refuses.
#[test]
fn fallocate_refuses() {
    let disk = Disk::new(4);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let file = make(&user, "f");
    assert_eq!(errno(fallocate(&user, &file, 0, 5, 0)), Errno::EINVAL);
    assert_eq!(errno(fallocate(&user, &file, 0, u64::MAX, 2)), Errno::EFBIG);
    assert_eq!(errno(fallocate(&user, &file, 0, (16 << 40) - 1, 2)), Errno::EFBIG);
    // Punching must keep the size; collapsing and inserting are not offered.
    for mode in [2, 8, 32, 64, 2 | 16, 128] {
        assert_eq!(errno(fallocate(&user, &file, mode, 0, 8192)), Errno::EOPNOTSUPP, "{mode}");
    }
}

/// Times and set-id bits as `write(2)` has them. A page that comes from the kernel's page cache was
/// stored to through a mapping: nobody else says so, and its times stood still; set-id bits stay.
#[test]
fn what_a_write_does_to_attributes() {
    let disk = Disk::new(5);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    let file = make(&user, "f");
    user.chown(file.ino, 5, 5).unwrap();
    user.chmod(file.ino, 0o6777).unwrap();
    let before = user.stat(file.ino).unwrap();
    user.write(file.ino, file.fh, 0, b"").unwrap();
    assert_eq!(user.stat(file.ino).unwrap(), before, "a write of nothing changes nothing");
    user.write(file.ino, file.fh, 0, b"root").unwrap();
    let after = user.stat(file.ino).unwrap();
    assert_eq!(after.mode & 0o7777, 0o6777, "root keeps set-id bits");
    assert!(after.mtime > before.mtime && after.ctime == after.mtime);
    assert!(after.change > before.change && after.atime == before.atime);
    let flags = write_flags::WRITEBACK;
    let (ino, fh) = (file.ino, file.fh);
    user.by(9, 9).ask(Request::Write { ino, fh, offset: 0, flags }, b"back").unwrap();
    let back = user.stat(file.ino).unwrap();
    assert_eq!(back.mode, after.mode);
    assert!(back.mtime > after.mtime && back.ctime == back.mtime);
    assert!(back.change > after.change);
    user.by(9, 9).write(file.ino, file.fh, 0, b"user").unwrap();
    assert_eq!(user.stat(file.ino).unwrap().mode & 0o7777, 0o777);
    user.chmod(file.ino, 0o6767).unwrap();
    let flags = write_flags::KILL_SUIDGID;
    user.ask(Request::Write { ino, fh, offset: 0, flags }, b"kill").unwrap();
    // Without group execution set-group-id is not a privilege.
    assert_eq!(user.stat(file.ino).unwrap().mode & 0o7777, 0o2767);
}

/// A kernel that collects writes keeps the times of files. What it wrote a moment later moved them
/// again, to a time that nobody had seen.
#[test]
fn who_keeps_the_times_of_files_has_them_kept() {
    let disk = Disk::new(9);
    let volume = disk.open_settled();
    let mut user = User::root(&volume);
    let file = make(&user, "f");
    let at = |sec| Timestamp { sec, nsec: 5 };
    let times = |user: &User<'_>| {
        let found = user.stat(file.ino).unwrap();
        (found.mtime, found.ctime)
    };
    user.caller.keeps_times = true;
    let set =
        Setattr { mtime: Some(SetattrTime::At(at(7))), ctime: Some(at(8)), ..Setattr::default() };
    user.set(file.ino, set.clone()).unwrap();
    assert_eq!(times(&user), (at(7), at(8)));
    user.write(file.ino, file.fh, 0, &[1; 100]).unwrap();
    user.write(file.ino, file.fh, 100, &[2; 100_000]).unwrap();
    user.write(file.ino, file.fh, 5000, &[3; 9000]).unwrap();
    let (ino, fh) = (file.ino, file.fh);
    let fallocate = Request::Fallocate { ino, fh, offset: 0, len: 1 << 20, mode: 0 };
    user.ask(fallocate, &[]).unwrap();
    assert_eq!(times(&user), (at(7), at(8)));
    // Not the word of just anybody.
    user.caller.trusted = false;
    user.write(file.ino, file.fh, 0, b"moves").unwrap();
    let (mtime, ctime) = times(&user);
    assert!(mtime > at(7) && ctime == mtime);
    user.set(file.ino, set).unwrap();
    assert!(times(&user).1 > at(8), "a change is of the present");
}
