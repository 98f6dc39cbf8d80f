//! A full volume, and blocks that went bad.

use std::sync::Arc;

use outboard_base::{Errno, Fh, Ino, Timestamp};
use outboard_kv::Kv;
use outboard_kv::mem;
use outboard_kvfs::{Kvfs, Options};
use outboard_medium as medium;
use outboard_wire::file::{Reply, Request, Setattr};

use crate::data::clean;
use crate::world::{Disk, User, Volume, block_on, errno, tidy};

/// A volume of `capacity` bytes of blocks.
fn open(disk: &Disk, capacity: u64) -> Volume {
    let options = Options { capacity, segment: 1 << 20, id: 7, ..Options::default() };
    let (kv, medium) = (Arc::clone(&disk.kv), Arc::clone(&disk.medium));
    let volume = block_on(Kvfs::open(kv, medium, options, Timestamp { sec: 1, nsec: 0 })).unwrap();
    block_on(volume.end_grace()).unwrap();
    volume
}

fn size(size: u64) -> Setattr {
    Setattr { size: Some(size), ..Setattr::default() }
}

/// Writes 64 KiB at a time until nothing more fits; how much did.
fn fill(user: &User<'_>, ino: Ino, fh: Fh) -> u64 {
    let data = vec![5; 65_536];
    for n in 0..100_000 {
        match user.write(ino, fh, n * 65_536, &data) {
            Ok(taken) => assert_eq!(taken, data.len()),
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                return n * 65_536;
            }
        }
    }
    panic!("it never fills");
}

/// Full of blocks: overwriting, truncating and deleting still work, and then there is room again,
/// as much as before, over and over.
#[test]
fn a_volume_full_of_blocks_works_again_once_space_is_freed() {
    let disk = Disk::new(1);
    let volume = open(&disk, 24 << 20);
    let user = User::root(&volume);
    let (kept, kept_fh) = user.create(Ino::ROOT, "kept", 0).unwrap();
    user.write(kept.ino, kept_fh, 0, &[9; 100_000]).unwrap();
    let mut first = None;
    for round in 0..5 {
        let name = format!("filler {round}");
        let (attr, fh) = user.create(Ino::ROOT, &name, 0).unwrap();
        let filled = fill(&user, attr.ino, fh);
        assert!(filled > 10 << 20, "only {filled} bytes fit");
        let full = statfs(&user);
        assert!(full.0 < 64, "{full:?}");
        user.write(kept.ino, kept_fh, 8192, &[round; 8192]).unwrap();
        user.write(attr.ino, fh, 0, &[round; 65_536]).unwrap();
        assert_eq!(errno(fallocate(&user, kept.ino, kept_fh, 1 << 20, 1 << 20)), Errno::ENOSPC);
        match round % 3 {
            0 => drop(user.set(attr.ino, size(0)).unwrap()),
            1 => drop(user.set(attr.ino, size(12_345)).unwrap()),
            _ => {}
        }
        user.unlink(Ino::ROOT, &name).unwrap();
        user.close(attr.ino, fh).unwrap();
        user.forget(attr.ino);
        tidy(&volume);
        clean(&volume);
        let again = *first.get_or_insert(filled);
        assert!(filled >= again, "{filled} bytes fit after {again}");
    }
    let found = user.read(kept.ino, kept_fh, 0, 200_000).unwrap();
    assert!(found.len() == 100_000 && found[8192] == 4 && found[0] == 9);
}

fn fallocate(user: &User<'_>, ino: Ino, fh: Fh, offset: u64, len: u64) -> Result<(), Errno> {
    user.done(Request::Fallocate { ino, fh, offset, len, mode: 0 }, &[])
}

/// A request for more than there is leaves what there is to others.
#[test]
fn a_hopeless_allocation_takes_nothing() {
    let disk = Disk::new(6);
    let volume = open(&disk, 64 << 20);
    let user = User::root(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
    let before = statfs(&user);
    assert_eq!(errno(fallocate(&user, attr.ino, fh, 0, 1 << 30)), Errno::ENOSPC);
    assert_eq!((statfs(&user), user.stat(attr.ino).unwrap().blocks), (before, 0));
    // What a deleted file gives back counts, though it waits for a sync.
    fallocate(&user, attr.ino, fh, 0, 40 << 20).unwrap();
    user.set(attr.ino, size(0)).unwrap();
    fallocate(&user, attr.ino, fh, 0, 40 << 20).unwrap();
    clean(&volume);
}

/// Blocks free and available to all.
fn statfs(user: &User<'_>) -> (u64, u64) {
    match user.ask(Request::Statfs { ino: Ino::ROOT }, &[]).unwrap().0 {
        Reply::Statfs(figures) => (figures.blocks_free, figures.blocks_available),
        reply => panic!("{reply:?}"),
    }
}

/// Full of pairs: what frees them still works, by the reserve.
#[test]
fn a_store_full_of_pairs_works_again_once_space_is_freed() {
    let disk = Disk::new(2);
    let volume = open(&disk, 64 << 20);
    let user = User::root(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "big", 0).unwrap();
    user.write(attr.ino, fh, 0, &vec![1; 1 << 20]).unwrap();
    let used = disk.kv.usage().used;
    disk.kv.set_faults(mem::Faults { capacity: used + (1 << 20), ..mem::Faults::default() });
    let mut names = Vec::new();
    let full = loop {
        let name = format!("small {}", names.len());
        let made = user.create(Ino::ROOT, &name, 0).and_then(|(attr, fh)| {
            names.push(name);
            let written = user.write(attr.ino, fh, 0, &[2; 8000]);
            user.close(attr.ino, fh)?;
            user.forget(attr.ino);
            written
        });
        if let Err(errno) = made {
            break errno;
        }
    };
    assert_eq!(full, Errno::ENOSPC);
    assert!(names.len() > 50);
    user.set(attr.ino, size(300_000)).unwrap();
    user.set(attr.ino, size(0)).unwrap();
    for name in names {
        user.unlink(Ino::ROOT, &name).unwrap();
    }
    tidy(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "after", 0).unwrap();
    user.write(attr.ino, fh, 0, &[3; 8000]).unwrap();
    clean(&volume);
}

/// A volume in a Ceph pool whose quota was used up could not be opened any more, so that nothing
/// could be removed from it either: an opening counts itself, and that batch was like any other.
#[test]
fn a_full_volume_is_opened_and_emptied() {
    let disk = Disk::new(3);
    let volume = open(&disk, 64 << 20);
    let user = User::root(&volume);
    for name in 0..10 {
        let (attr, fh) = user.create(Ino::ROOT, &name.to_string(), 0).unwrap();
        user.write(attr.ino, fh, 0, &[2; 8000]).unwrap();
        user.close(attr.ino, fh).unwrap();
    }
    drop(volume);
    // A 16th is kept in reserve: all the rest is used up.
    let capacity = disk.kv.usage().used * 16 / 15;
    disk.kv.set_faults(mem::Faults { capacity, ..mem::Faults::default() });
    let volume = open(&disk, 64 << 20);
    let user = User::root(&volume);
    assert_eq!(user.create(Ino::ROOT, "more", 0).map(drop), Err(Errno::ENOSPC));
    user.unlink(Ino::ROOT, "3").unwrap();
    tidy(&volume);
    user.create(Ino::ROOT, "more", 0).unwrap();
    clean(&volume);
}

/// A bit flips in a block, or in a small file: the read fails with EIO, its neighbours do not.
#[test]
fn damaged_bytes_are_never_data() {
    let disk = Disk::new(3);
    let inos = {
        let volume = open(&disk, 64 << 20);
        let user = User::root(&volume);
        let (big, fh) = user.create(Ino::ROOT, "big", 0).unwrap();
        user.write(big.ino, fh, 0, &[6; 5 * 8192]).unwrap();
        let (small, fh) = user.create(Ino::ROOT, "small", 0).unwrap();
        user.write(small.ino, fh, 0, &[6; 500]).unwrap();
        // Until housekeeping has retired the record of the write, opening takes a bad block for one
        // that the crash kept from the medium.
        tidy(&volume);
        (big.ino, small.ino)
    };
    let key = [&[0x13][..], &inos.1.0.to_be_bytes()].concat();
    disk.kv.corrupt(&key);
    // Blocks were taken in order from the first after the header.
    disk.medium.corrupt(3 * 8192 + 4000);
    let volume = open(&disk, 64 << 20);
    let user = User::root(&volume);
    let fh = user.open(inos.0, 2).unwrap();
    assert_eq!(user.read(inos.0, fh, 0, 40_960).err(), Some(Errno::EIO));
    assert_eq!(errno(user.read(inos.0, fh, 3 * 8192 - 1, 1)), Errno::EIO);
    assert_eq!(user.read(inos.0, fh, 0, 2 * 8192).unwrap(), [6; 2 * 8192]);
    assert_eq!(user.read(inos.0, fh, 3 * 8192, 9999).unwrap(), [6; 9999]);
    // Part of a bad block cannot be replaced, the whole of it can.
    assert_eq!(errno(user.write(inos.0, fh, 2 * 8192 + 1, &[1; 10])), Errno::EIO);
    user.write(inos.0, fh, 2 * 8192, &[6; 8192]).unwrap();
    assert_eq!(user.read(inos.0, fh, 0, 50_000).unwrap(), [6; 40_960]);
    let fh = user.open(inos.1, 2).unwrap();
    assert_eq!(errno(user.read(inos.1, fh, 0, 10)), Errno::EIO);
    user.set(inos.1, size(0)).unwrap();
    user.write(inos.1, fh, 0, &[1; 10]).unwrap();
    assert_eq!(user.read(inos.1, fh, 0, 99).unwrap(), [1; 10]);
    clean(&volume);
}

/// A flush that fails fails every later sync, too, until the volume is opened again: nobody knows
/// what the device has. What was synced before is there.
#[test]
fn a_failed_flush_is_final() {
    let disk = Disk::new(4);
    let volume = open(&disk, 64 << 20);
    let user = User::root(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
    user.write(attr.ino, fh, 0, &[1; 50_000]).unwrap();
    let fsync = Request::Fsync { ino: attr.ino, fh, data_only: false };
    user.done(fsync.clone(), &[]).unwrap();
    user.write(attr.ino, fh, 0, &[2; 50_000]).unwrap();
    let broken = medium::mem::Faults { flush_fails: true, ..medium::mem::Faults::default() };
    disk.medium.set_faults(broken);
    assert_eq!(errno(user.done(fsync.clone(), &[])), Errno::EIO);
    disk.medium.set_faults(medium::mem::Faults::default());
    assert_eq!(errno(user.done(fsync, &[])), Errno::EIO);
    assert_eq!(errno(user.sync()), Errno::EIO);
    drop(volume);
    disk.kv.crash();
    disk.medium.crash();
    let volume = open(&disk, 64 << 20);
    let user = User::root(&volume);
    let fh = user.open(attr.ino, 0).unwrap();
    let found = user.read(attr.ino, fh, 0, 50_000).unwrap();
    assert!(found.len() == 50_000 && found.iter().all(|byte| [1, 2].contains(byte)));
    user.sync().unwrap();
    clean(&volume);
}

/// What the paper's 8 KiB cost here: an aligned overwrite is one write of the medium, an aligned
/// read one read, and a megabyte in sequence a few, not a hundred and twenty-eight.
#[test]
fn what_operations_cost_the_medium() {
    let disk = Disk::new(5);
    let volume = open(&disk, 64 << 20);
    let user = User::root(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
    let megabyte: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
    let cost = |work: &dyn Fn()| {
        let before = disk.medium.counts();
        work();
        let after = disk.medium.counts();
        (after.reads - before.reads, after.writes - before.writes, after.flushes - before.flushes)
    };
    let write = |at: u64, data: &[u8]| {
        assert_eq!(user.write(attr.ino, fh, at, data).unwrap(), data.len());
    };
    let read = |at: u64, len: u32| drop(user.read(attr.ino, fh, at, len).unwrap());
    let (reads, writes, flushes) = cost(&|| write(0, &megabyte));
    assert!(reads == 0 && writes <= 2 && flushes == 0, "{reads} {writes} {flushes}");
    write(1 << 20, &megabyte);
    assert_eq!(cost(&|| write(8192 * 5, &[1; 8192])), (0, 1, 0));
    assert_eq!(cost(&|| read(8192 * 5, 8192)), (1, 0, 0));
    assert_eq!(cost(&|| read(8192 * 9, 8192)), (1, 0, 0));
    let (reads, writes, _) = cost(&|| read(1 << 20, 1 << 20));
    assert!(reads <= 2 && writes == 0, "{reads} {writes}");
    // A small file never touches it.
    let (small, small_fh) = user.create(Ino::ROOT, "small", 0).unwrap();
    let small_write = || {
        user.write(small.ino, small_fh, 0, &[1; 8192]).unwrap();
    };
    assert_eq!(cost(&small_write), (0, 0, 0));
    assert_eq!(cost(&|| drop(user.read(small.ino, small_fh, 0, 8192).unwrap())), (0, 0, 0));
}

/// What a program that writes less than a block costs: a log that grows by lines, a database whose
/// pages are half a block. Each write was a read of the block, before blocks lately written in part
/// were kept.
#[test]
fn what_parts_of_blocks_cost() {
    let disk = Disk::new(6);
    let volume = open(&disk, 64 << 20);
    let user = User::root(&volume);
    let (attr, fh) = user.create(Ino::ROOT, "f", 0).unwrap();
    user.write(attr.ino, fh, 0, &[1; 1 << 20]).unwrap();
    let cost = |work: &dyn Fn()| {
        disk.kv.dies_after(1000);
        let before = disk.medium.counts();
        work();
        let after = disk.medium.counts();
        (after.reads - before.reads, after.writes - before.writes, 1000 - disk.kv.left())
    };
    let write = |at: u64, data: &[u8]| {
        assert_eq!(user.write(attr.ino, fh, at, data).unwrap(), data.len());
    };
    // A write-ahead log: 24 bytes and 4,096, to the end and beyond.
    let mut at = 1 << 20;
    for frame in 0..20 {
        assert_eq!(cost(&|| write(at, &[frame; 24])), (0, 1, 1));
        assert_eq!(cost(&|| write(at + 24, &[frame; 4096])), (0, 1, 1));
        at += 4120;
    }
    // A database: pages of 4 KiB here and there, each block read once.
    assert_eq!(cost(&|| write(5 << 13, &[2; 4096])), (1, 1, 1));
    assert_eq!(cost(&|| write(7 << 13, &[3; 4096])), (1, 1, 1));
    assert_eq!(cost(&|| write((5 << 13) + 4096, &[4; 4096])), (0, 1, 1));
    assert_eq!(cost(&|| write(7 << 13, &[5; 4096])), (0, 1, 1));
    let read = |at: u64, len: u32| user.read(attr.ino, fh, at, len).unwrap();
    read(0, 8192); // Moves the time of access.
    assert_eq!(cost(&|| assert_eq!(read((5 << 13) + 4096, 4096), [4; 4096])), (0, 0, 0));
    // One after the other, as a reader in small steps goes.
    assert_eq!(cost(&|| assert_eq!(read(9 << 13, 4096), [1; 4096])), (1, 0, 0));
    assert_eq!(cost(&|| assert_eq!(read((9 << 13) + 4096, 4096), [1; 4096])), (0, 0, 0));
    // A write of several blocks that begins and ends inside some.
    assert_eq!(cost(&|| write((20 << 13) + 100, &[6; 20_000])), (2, 1, 1));
    assert_eq!(cost(&|| write((20 << 13) + 100, &[7; 20_000])), (0, 1, 1));
    disk.kv.dies_after(u64::MAX);
    clean(&volume);
}
