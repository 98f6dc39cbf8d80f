//! The checker finds what it says it looks for.
//!
//! Each kind of damage is planted into the stored pairs or blocks of a small volume that has
//! something of everything, and must be reported as what it is. The volume caches nothing, so that
//! damage planted beneath it is seen at once.

use outboard_base::task::poll_once;
use std::sync::Arc;

use outboard_base::{Ino, Timestamp};
use outboard_codec::crc32c;
use outboard_kv::{Batch, Durability, Kv, mem::MemKv};
use outboard_kvfs::check::{self, Severity, What};
use outboard_kvfs::layout::{Entry, Inode, Listed, Tag, marks};
use outboard_kvfs::{Kvfs, Options};
use outboard_medium::mem::MemMedium;
use outboard_wire::file::{FileKind, Setattr};

use crate::world::{Disk, User, Volume, block_on, tidy};

/// A volume with something of everything.
struct Sample {
    disk: Disk,
    volume: Volume,
    dir: Ino,
    inner: Ino,
    small: Ino,
    big: Ino,
    link: Ino,
    /// Unlinked, still open.
    orphan: Ino,
}

fn open(disk: &Disk) -> Volume {
    let options = Options {
        capacity: 64 << 20,
        segment: 1 << 20,
        cache_bytes: 0,
        id: 7,
        ..Options::default()
    };
    let (kv, medium) = (Arc::clone(&disk.kv), Arc::clone(&disk.medium));
    block_on(Kvfs::open(kv, medium, options, Timestamp { sec: 1, nsec: 0 })).unwrap()
}

fn sample() -> Sample {
    let disk = Disk::new(1);
    let volume = open(&disk);
    block_on(volume.end_grace()).unwrap();
    let user = User::root(&volume);
    let dir = user.mkdir(Ino::ROOT, "dir").unwrap().ino;
    let inner = user.mkdir(dir, "inner").unwrap().ino;
    let (attr, fh) = user.create(dir, "small", 0).unwrap();
    user.write(attr.ino, fh, 0, b"a few bytes").unwrap();
    user.link(attr.ino, Ino::ROOT, "again").unwrap();
    user.setxattr(attr.ino, "user.color", b"blue", 0).unwrap();
    let small = attr.ino;
    let (attr, fh) = user.create(dir, "big", 0).unwrap();
    user.write(attr.ino, fh, 0, &[7; 50_000]).unwrap();
    let big = attr.ino;
    let link = user.symlink(inner, "link", "../small").unwrap().ino;
    let (attr, fh) = user.create(dir, "gone", 0).unwrap();
    user.write(attr.ino, fh, 0, &[7; 20_000]).unwrap();
    user.unlink(dir, "gone").unwrap();
    user.sync().unwrap();
    tidy(&volume);
    Sample { disk, dir, inner, small, big, link, orphan: attr.ino, volume }
}

fn pair_key(tag: Tag, ino: Ino, rest: &[u8]) -> Vec<u8> {
    [&[tag as u8][..], &ino.0.to_be_bytes(), rest].concat()
}

fn page_key(ino: Ino, page: u32) -> Vec<u8> {
    [&[0xF0][..], &ino.0.to_be_bytes(), &page.to_be_bytes()].concat()
}

/// The value of an index page with one entry after `holes` holes.
fn page(ino: Ino, holes: usize, block: u64, crc: u32) -> Vec<u8> {
    let mut entries = vec![0; 12 * holes];
    entries.extend_from_slice(&block.to_le_bytes()[..6]);
    entries.extend_from_slice(&[0, 0]);
    entries.extend_from_slice(&crc.to_le_bytes());
    let covered = [&ino.0.to_be_bytes()[..], &0_u32.to_be_bytes(), &entries].concat();
    entries.extend_from_slice(&crc32c(&covered).to_le_bytes());
    entries
}

impl Sample {
    fn kv(&self) -> &MemKv {
        &self.disk.kv
    }

    fn medium(&self) -> &MemMedium {
        &self.disk.medium
    }

    fn get(&self, key: &[u8]) -> Vec<u8> {
        block_on(self.kv().get(key)).unwrap().unwrap().to_vec()
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        let mut batch = Batch::new();
        batch.put(key, value);
        block_on(self.kv().commit(batch, Durability::Answered)).unwrap();
    }

    /// Says of the big file what its inode does not.
    fn list(&self, tag: Tag) {
        self.put(&pair_key(tag, self.big, &[]), &[]);
    }

    fn delete(&self, key: &[u8]) {
        self.get(key);
        let mut batch = Batch::new();
        batch.delete(key);
        block_on(self.kv().commit(batch, Durability::Answered)).unwrap();
    }

    fn edit(&self, ino: Ino, edit: impl FnOnce(&mut Inode)) {
        let key = pair_key(Tag::Inode, ino, &[]);
        let mut inode = Inode::decode(ino, &self.get(&key)).unwrap();
        edit(&mut inode);
        self.put(&key, &inode.encode().unwrap());
    }

    fn edit_entry(&self, parent: Ino, name: &[u8], edit: impl FnOnce(&mut Entry)) {
        let key = pair_key(Tag::Entry, parent, name);
        let mut entry = Entry::decode(parent, name, &self.get(&key)).unwrap();
        edit(&mut entry);
        self.put(&key, &entry.encode(parent, name));
    }

    fn cookie(&self, parent: Ino, name: &[u8]) -> u64 {
        let value = self.get(&pair_key(Tag::Entry, parent, name));
        Entry::decode(parent, name, &value).unwrap().cookie
    }

    /// Block number of the first entry of the big file's index.
    fn first_block(&self) -> u64 {
        let value = self.get(&page_key(self.big, 0));
        let [b0, b1, b2, b3, b4, b5, ..] = value[..] else { panic!() };
        u64::from_le_bytes([b0, b1, b2, b3, b4, b5, 0, 0])
    }

    fn check(&self) -> check::Report {
        let options = check::Options { contents: true, repair: false };
        block_on(self.volume.check(options)).unwrap()
    }

    /// Moves `inner` out of the tree: it and a new directory in it become each other's parents.
    fn knot(&self) {
        let user = User::root(&self.volume);
        let deep = user.mkdir(self.inner, "deep").unwrap().ino;
        let mut batch = Batch::new();
        let cookie = self.cookie(self.dir, b"inner");
        batch.delete(pair_key(Tag::Entry, self.dir, b"inner"));
        batch.delete(pair_key(Tag::Listed, self.dir, &cookie.to_be_bytes()));
        block_on(self.kv().commit(batch, Durability::Answered)).unwrap();
        self.edit(self.dir, |dir| (dir.entries, dir.attr.nlink) = (dir.entries - 1, 2));
        let entry = Entry { ino: self.inner, cookie: 3, kind: FileKind::Directory };
        self.put(&pair_key(Tag::Entry, deep, b"up"), &entry.encode(deep, b"up"));
        let listed = Listed { ino: self.inner, kind: FileKind::Directory, name: b"up" };
        let value = listed.encode(deep, 3).unwrap();
        self.put(&pair_key(Tag::Listed, deep, &3_u64.to_be_bytes()), &value);
        self.edit(deep, |d| (d.entries, d.attr.nlink, d.next_cookie) = (1, 3, 4));
        self.edit(self.inner, |inner| inner.parent = deep);
    }
}

fn plant(s: &Sample, what: What) {
    let inode = |ino| pair_key(Tag::Inode, ino, &[]);
    let next = Ino(s.orphan.0 + 10); // Below the counter, never given out.
    match what {
        What::BadSuperblock => s.kv().corrupt(&[Tag::Superblock as u8]),
        What::BadCounter => s.kv().corrupt(&[Tag::Counter as u8, 1]),
        What::StrangeKey => s.put(&[0x77, 1, 2], b"who wrote this?"),
        What::BadReplayRecord => s.kv().corrupt(&pair_key(Tag::Replay, Ino(1), &[0, 0])),
        What::BadInode => s.kv().corrupt(&inode(s.small)),
        What::NumberNotGivenOut => {
            let ino = Ino(1 << 50);
            let mut file = Inode::new(ino, Ino::ROOT, 0o100_644, Timestamp::default());
            file.attr.nlink = 0;
            s.put(&inode(ino), &file.encode().unwrap());
            s.put(&pair_key(Tag::Orphan, ino, &[]), &[]);
        }
        What::MissingRoot => s.delete(&inode(Ino::ROOT)),
        What::BadShape => s.edit(s.small, |file| file.attr.size = 5),
        What::BadSmallFile => s.kv().corrupt(&pair_key(Tag::Small, s.small, &[])),
        What::WrongBlockCount => s.edit(s.big, |file| file.attr.blocks += 16),
        What::StaleTail => s.edit(s.big, |file| file.attr.size -= 10),
        What::OwnerlessPair => s.put(&pair_key(Tag::Small, next, &[]), b"whose?"),
        What::OwnerlessObject => {
            s.delete(&inode(s.orphan));
            s.delete(&pair_key(Tag::Orphan, s.orphan, &[]));
        }
        What::BadXattr => s.kv().corrupt(&pair_key(Tag::Xattr, s.small, b"user.color")),
        What::UnmarkedXattr => s.edit(s.small, |file| file.marks &= !marks::XATTRS),
        What::WrongOrphan => s.delete(&pair_key(Tag::Orphan, s.orphan, &[])),
        What::WrongTrim => s.list(Tag::Trim),
        What::WrongWriting => s.list(Tag::Writing),
        What::WrongLacking => s.list(Tag::Lacking),
        What::PurgeOfFile => s.list(Tag::Purge),
        What::BadEntry => s.kv().corrupt(&pair_key(Tag::Entry, s.dir, b"small")),
        What::EntryUnlisted => {
            s.delete(&{ pair_key(Tag::Listed, s.dir, &s.cookie(s.dir, b"small").to_be_bytes()) })
        }
        What::ListedUnnamed => s.delete(&pair_key(Tag::Entry, s.dir, b"small")),
        What::WrongEntryCount => s.edit(s.dir, |dir| dir.entries += 1),
        What::CookieNotGivenOut => s.edit(s.dir, |dir| dir.next_cookie = 3),
        What::EntriesOfNoDirectory => {
            let entry = Entry { ino: s.big, cookie: 3, kind: FileKind::Regular };
            s.put(&pair_key(Tag::Entry, s.small, b"x"), &entry.encode(s.small, b"x"));
        }
        What::DanglingName => s.edit_entry(s.dir, b"big", |entry| entry.ino = next),
        What::WrongKind => s.edit_entry(s.dir, b"big", |entry| entry.kind = FileKind::Fifo),
        What::WrongParent => s.edit(s.inner, |inner| inner.parent = Ino::ROOT),
        What::WrongLinkCount => s.edit(s.small, |file| file.attr.nlink = 1),
        What::Detached => s.knot(),
        What::BadIndex => s.kv().corrupt(&page_key(s.big, 0)),
        What::BlockUsedTwice => {
            let first = s.get(&page_key(s.big, 0));
            let crc = u32::from_le_bytes(first[8..12].try_into().unwrap());
            s.put(&page_key(s.orphan, 0), &page(s.orphan, 0, s.first_block(), crc));
        }
        What::BlockNotAllocated => {
            s.put(&page_key(s.orphan, 0), &page(s.orphan, 0, 120, 5));
        }
        What::BlockLeaked => s.delete(&page_key(s.orphan, 0)),
        What::BadBlock => s.medium().corrupt(s.first_block() * 8192 + 77),
    }
}

#[test]
fn a_sound_volume_has_no_finding_and_everything_is_counted() {
    let s = sample();
    let report = s.check();
    assert!(report.is_clean(), "{:#?}", report.findings);
    let counts = report.counts;
    // Root, dir, inner, small, big, link, orphan.
    assert_eq!((counts.inodes, counts.directories, counts.orphans), (7, 3, 1));
    assert_eq!((counts.names, counts.small_files, counts.xattrs), (6, 2, 1));
    assert_eq!((counts.objects, counts.blocks), (2, 7 + 3));
    assert!(counts.replay_records >= 1);
    assert_ne!(s.link, s.small);
}

#[test]
fn every_kind_of_damage_is_found() {
    for &what in What::ALL {
        let s = sample();
        plant(&s, what);
        let report = s.check();
        let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        let named = report.findings.iter().any(|finding| finding.what == what);
        assert!(named, "{what:?} planted, found {found:#?}");
        assert!(report.total >= 1 && !report.is_clean());
        // Damage to one thing is not reported as ten.
        assert!(report.total <= 10, "{what:?}: {found:#?}");
    }
}

/// What repair sets right is right afterwards, and nothing else was touched.
#[test]
fn repair_sets_right_what_it_can() {
    let repairable = [What::WrongBlockCount, What::OwnerlessPair, What::OwnerlessObject];
    for what in repairable {
        assert_eq!(what.severity(), Severity::Untidy);
        let s = sample();
        plant(&s, what);
        let options = check::Options { contents: true, repair: true };
        let report = block_on(s.volume.check(options)).unwrap();
        assert!(report.findings.iter().all(|f| f.repaired), "{:#?}", report.findings);
        let again = s.check();
        assert!(again.is_clean(), "{what:?}: {:#?}", again.findings);
        let user = User::root(&s.volume);
        let fh = user.open(s.big, 0).unwrap();
        assert_eq!(user.read(s.big, fh, 0, 60_000).unwrap(), [7; 50_000]);
    }
    let s = sample();
    plant(&s, What::WrongLinkCount);
    let options = check::Options { contents: false, repair: true };
    plant(&s, What::OwnerlessPair);
    let report = block_on(s.volume.check(options)).unwrap();
    assert_eq!(report.total, 2);
    assert!(report.findings.iter().all(|finding| !finding.repaired), "not for it to decide");
}

/// A check beside others' work says nothing about what changes under it, and still finds old
/// damage. The check is polled step by step, and between its steps files come, grow, move and go.
#[test]
fn a_check_beside_other_work_is_not_misled() {
    for damaged in [false, true] {
        let s = sample();
        if damaged {
            plant(&s, What::WrongLinkCount);
        }
        let user = User::attached(&s.volume, 2);
        let options = check::Options::default();
        let mut check = std::pin::pin!(s.volume.check(options));
        let mut turn = 0_u64;
        let report = loop {
            if let std::task::Poll::Ready(report) = poll_once(check.as_mut()) {
                break report.unwrap();
            }
            let name = format!("f{turn}");
            let (attr, fh) = user.create(s.inner, &name, 0).unwrap();
            user.write(attr.ino, fh, 0, &vec![3; (turn % 5) as usize * 5000]).unwrap();
            user.close(attr.ino, fh).unwrap();
            if turn > 1 {
                let old = format!("f{}", turn - 1);
                user.rename((s.inner, &old), (Ino::ROOT, &old), 0).unwrap();
                let set = Setattr { size: Some(turn * 700), ..Setattr::default() };
                user.set(user.lookup(Ino::ROOT, &old).unwrap().ino, set).unwrap();
            }
            if turn > 2 {
                user.unlink(Ino::ROOT, &format!("f{}", turn - 2)).unwrap();
            }
            turn += 1;
        };
        assert!(turn > 5, "nothing happened beside it");
        let kinds: Vec<What> = report.findings.iter().map(|finding| finding.what).collect();
        let expected = if damaged { vec![What::WrongLinkCount] } else { vec![] };
        assert_eq!(kinds, expected, "{:#?}", report.findings);
    }
}

/// Two checks at once would take each other's notes.
#[test]
fn one_check_at_a_time() {
    let s = sample();
    let mut first = std::pin::pin!(s.volume.check(check::Options::default()));
    assert!(poll_once(first.as_mut()).is_pending());
    let second = block_on(s.volume.check(check::Options::default()));
    assert_eq!(second.unwrap_err(), outboard_base::Errno::EBUSY);
    assert!(block_on(first).unwrap().is_clean());
    assert!(s.check().is_clean());
}

/// A finding reads as a sentence that says where.
#[test]
fn findings_in_words() {
    let s = sample();
    plant(&s, What::WrongLinkCount);
    let report = s.check();
    let text = report.findings[0].to_string();
    let expected =
        format!("Wrong: inode {}: the link count is off (2 names, link count 1)", s.small);
    assert_eq!(text, expected);
}
