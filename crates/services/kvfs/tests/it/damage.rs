//! Bytes in the store that nobody wrote: an errno, never a panic, never an answer made of them.

use outboard_base::{Errno, Ino, Rng, Timestamp};
use outboard_kv::Kv;
use outboard_kvfs::{Kvfs, OpenError, Options};
use outboard_wire::file::Request;

use std::sync::Arc;

use crate::world::{Disk, User, block_on, errno};

fn open_error(disk: &Disk) -> OpenError {
    let (kv, medium) = (Arc::clone(&disk.kv), Arc::clone(&disk.medium));
    let opened = Kvfs::open(kv, medium, Options::default(), Timestamp::default());
    block_on(opened).err().unwrap()
}

fn overwrite(disk: &Disk, key: &[u8], value: &[u8]) {
    let mut batch = outboard_kv::Batch::new();
    batch.put(key, value);
    block_on(disk.kv.commit(batch, outboard_kv::Durability::Answered)).unwrap();
}

fn everything(disk: &Disk) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = block_on(disk.kv.scan(&[], None, 100_000)).unwrap();
    pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

#[test]
fn what_is_no_volume_is_not_opened() {
    let disk = Disk::new(1);
    overwrite(&disk, b"something", b"else");
    assert_eq!(open_error(&disk), OpenError::NotAVolume);
    let disk = Disk::new(1);
    drop(disk.open());
    overwrite(&disk, &[1], b"OUTBKVFS");
    assert_eq!(open_error(&disk), OpenError::Damaged);
    let disk = Disk::new(1);
    drop(disk.open());
    disk.kv.corrupt(&[&[0x10][..], &[0; 8]].concat());
    assert_eq!(open_error(&disk), OpenError::Damaged);
    for error in [OpenError::NotAVolume, OpenError::Format { found: 2, known: 1 }] {
        assert!(error.to_string().contains(": "), "{error} names no remedy");
    }
}

/// Every pair of a small volume is damaged in turn, in several ways; then every kind of request is
/// made. Whatever is answered, it is no panic, and attributes that come are those that were
/// written.
#[test]
fn no_pair_is_believed_when_it_is_damaged() {
    let pristine = Disk::new(1);
    let (file, dir, link);
    {
        let volume = pristine.open_settled();
        let user = User::root(&volume);
        let (attr, fh) = user.create(Ino::ROOT, "file", 0).unwrap();
        file = attr;
        user.write(file.ino, fh, 0, b"contents").unwrap();
        dir = user.mkdir(Ino::ROOT, "dir").unwrap().ino;
        link = user.symlink(dir, "link", "target").unwrap().ino;
        user.setxattr(file.ino, "user.x", b"value", 0).unwrap();
        user.close(file.ino, fh).unwrap();
    }
    let pairs = everything(&pristine);
    let mut rng = Rng::new(1);
    for (at, (victim, _)) in pairs.iter().enumerate() {
        for way in 0..6 {
            let disk = Disk::new(1);
            drop(disk.open_settled());
            for (key, value) in &pairs {
                overwrite(&disk, key, value);
            }
            let mut value = pairs[at].1.clone();
            match way {
                0 => value.clear(),
                1 => value.truncate(value.len() / 2),
                2 => value.push(0),
                3 => rng.fill(&mut value),
                4 => value = pairs[(at + 1) % pairs.len()].1.clone(),
                _ => {
                    let byte = usize::try_from(rng.below(value.len().max(1) as u64)).unwrap();
                    if let Some(byte) = value.get_mut(byte) {
                        *byte ^= 1 << rng.below(8);
                    }
                }
            }
            overwrite(&disk, victim, &value);
            use_it(&disk, file.ino, dir, link);
        }
    }
}

fn use_it(disk: &Disk, file: Ino, dir: Ino, link: Ino) {
    let (kv, medium) = (Arc::clone(&disk.kv), Arc::clone(&disk.medium));
    let opened = block_on(Kvfs::open(kv, medium, Options::default(), Timestamp::default()));
    let Ok(volume) = opened else { return };
    let _ = block_on(volume.end_grace());
    let user = User::root(&volume);
    for ino in [Ino::ROOT, file, dir, link] {
        let _ = user.stat(ino);
        drop(user.opendir(ino).and_then(|fh| user.page(ino, fh, 0, 4096)));
        drop(user.ask(Request::Readlink { ino }, &[]));
        drop(user.getxattr(ino, "user.x"));
        drop(user.listxattr(ino));
        let _ = user.chmod(ino, 0o700);
        let _ = user.setxattr(ino, "user.y", b"v", 0);
    }
    if let Ok(attr) = user.lookup(Ino::ROOT, "file") {
        assert_eq!((attr.ino, attr.size), (file, 8));
    }
    if let Ok(data) = user.open(file, 0).and_then(|fh| user.read(file, fh, 0, 100)) {
        assert_eq!(data, b"contents");
    }
    let _ = user.rename((Ino::ROOT, "file"), (dir, "moved"), 0);
    drop(user.link(file, dir, "hard"));
    drop(user.file(dir, "new"));
    let _ = user.unlink(dir, "link");
    let _ = user.unlink(dir, "moved");
    let _ = user.rmdir(Ino::ROOT, "dir");
    let _ = block_on(volume.tidy());
    drop(block_on(volume.check(Default::default())));
}

#[test]
fn a_full_store_can_still_delete() {
    let disk = Disk::new(1);
    let volume = disk.open_settled();
    let user = User::root(&volume);
    disk.kv.set_faults(outboard_kv::mem::Faults {
        capacity: 400_000,
        ..outboard_kv::mem::Faults::default()
    });
    let mut made = 0;
    let error = loop {
        match user.mkdir(Ino::ROOT, &format!("{made}")) {
            Ok(attr) => user.forget(attr.ino),
            Err(error) => break error,
        }
        made += 1;
    };
    assert_eq!((error, made > 100), (Errno::ENOSPC, true));
    assert_eq!(errno(user.symlink(Ino::ROOT, "l", "x")), Errno::ENOSPC);
    for n in 0..made {
        user.rmdir(Ino::ROOT, &format!("{n}")).unwrap();
    }
    user.mkdir(Ino::ROOT, "room again").unwrap();
    crate::world::assert_clean(&volume);
}
