//! The data plane against a control plane of a few lines, which keeps to the protocol, and against
//! one that does not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use outboard_base::Rng;
use outboard_link::Region;
use outboard_wire::cache::{
    CacheMode, Dirtied, ENTRY_LEN, Entry, Grant, GrantWord, Lock, NEXT_NONE, RECORD_LEN, Record,
    Status, Word, entry_at, record_at,
};

use super::{Place, Plane, Sink, Source};
use crate::geometry::{Area, Geometry};

const PAGE: usize = 4096;
const PAGE_SIZE: u32 = 4096;
const FILE: u64 = 9;
const NOW: i64 = 1_700_000_000_000_000_000;

fn byte(at: usize) -> u8 {
    (at % 251).to_le_bytes()[0]
}

struct Rig {
    region: Arc<Region>,
    plane: Plane,
    /// What the volume holds of the file.
    volume: Vec<u8>,
}

impl Rig {
    fn new(pages: u64) -> Rig {
        let len = Geometry::len_for(pages, PAGE_SIZE, 4, 8);
        let region = Region::anonymous(8192 + len);
        let area = Area { at: 8192, len };
        let geometry = Geometry::fit(area, PAGE_SIZE, 4, 8, CacheMode::Write).unwrap();
        let plane = Plane::format(Arc::clone(&region), geometry).unwrap();
        Rig { region, plane, volume: Vec::new() }
    }

    fn geometry(&self) -> Geometry {
        *self.plane.geometry()
    }

    fn record_at(&self) -> u64 {
        self.geometry().record_at(self.geometry().record_set(FILE).start + 1)
    }

    fn record(&self) -> Record {
        let mut bytes = [0; RECORD_LEN];
        self.region.read_into(self.record_at(), &mut bytes).unwrap();
        Record::parse(&bytes).unwrap()
    }

    fn grant(&self, grant: Grant, credit: u64) {
        let word = self.record().word.next(grant);
        let size = self.volume.len() as u64;
        let (dirtied, chain) = (Dirtied { tag: Dirtied::tag_of(word.epoch), pages: 0 }, NEXT_NONE);
        let record = Record { word, ino: FILE, size, mtime: 0, credit, dirtied, chain };
        self.region.write_from(self.record_at(), &record.emit()).unwrap();
    }

    fn set_grant(&self, grant: Grant) {
        let word = self.record().word.next(grant).emit();
        self.region.store_u64(self.record_at() + record_at::WORD, word, SeqCst).unwrap();
    }

    fn entry(&self, index: u64) -> Entry {
        let mut bytes = [0; ENTRY_LEN];
        self.region.read_into(self.geometry().entry_at(index), &mut bytes).unwrap();
        Entry::parse(&bytes).unwrap()
    }

    fn set_word(&self, index: u64, word: Word) {
        let at = self.geometry().entry_at(index) + entry_at::WORD;
        self.region.store_u64(at, word.emit(), SeqCst).unwrap();
    }

    fn entries(&self) -> Vec<(u64, Entry)> {
        (0..self.geometry().total()).map(|index| (index, self.entry(index))).collect()
    }

    /// Puts a page of the volume into the cache; false if there is no room, or it is there.
    fn fill(&self, lpn: u64) -> bool {
        let bucket = self.geometry().bucket(FILE, lpn);
        let here = |entry: &Entry| entry.ino == FILE && entry.lpn == lpn && !entry.word.is_free();
        if bucket.clone().any(|index| here(&self.entry(index))) {
            return false;
        }
        let Some(index) = bucket.clone().find(|index| self.entry(*index).word.is_free()) else {
            return false;
        };
        let start = usize::try_from(lpn).unwrap() * PAGE;
        let mut page = vec![0; PAGE];
        let held = self.volume.get(start..).unwrap_or_default();
        let held = &held[..held.len().min(PAGE)];
        page[..held.len()].copy_from_slice(held);
        self.region.write_from(self.geometry().page_at(index), &page).unwrap();
        let at = self.geometry().entry_at(index);
        self.region.store_u64(at + entry_at::LPN, lpn, SeqCst).unwrap();
        self.region.store_u64(at + entry_at::INO, FILE, SeqCst).unwrap();
        let locked = self.entry(index).word.lock(true).unwrap();
        self.set_word(index, locked.unlock(Status::Clean, true));
        true
    }

    /// Writes what is dirty to the volume; pages stay, clean.
    fn flush(&mut self) {
        let record = self.record();
        let size = usize::try_from(record.size).unwrap();
        if self.volume.len() < size {
            self.volume.resize(size, 0);
        }
        for (index, entry) in self.entries() {
            assert_eq!(entry.word.lock, Lock::None, "entry {index} was left locked");
            if entry.word.status != Status::Dirty {
                continue;
            }
            let start = usize::try_from(entry.lpn).unwrap() * PAGE;
            let mut page = vec![0; PAGE];
            self.region.read_into(self.geometry().page_at(index), &mut page).unwrap();
            let end = size.min(start + PAGE);
            self.volume[start..end].copy_from_slice(&page[..end - start]);
            assert!(page[end - start..].iter().all(|byte| *byte == 0), "zero beyond the end");
            self.set_word(index, entry.word.clean(entry.word.version).unwrap());
        }
    }

    fn evict(&self, index: u64) {
        let entry = self.entry(index);
        if entry.word.status == Status::Clean {
            self.set_word(index, entry.word.lock(true).unwrap().unlock(Status::Free, true));
        }
    }

    fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut out = vec![0xEE; len];
        let got = self.plane.read(FILE, offset, Sink::Memory(&mut out))?;
        out.truncate(got as usize);
        Some(out)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Option<u32> {
        self.plane.write(FILE, Place::At(offset), Source::Memory(bytes), NOW)
    }

    fn dirty(&self) -> usize {
        self.entries().iter().filter(|(_, entry)| entry.word.status == Status::Dirty).count()
    }

    fn unlocked(&self) -> bool {
        self.entries().iter().all(|(_, entry)| entry.word.lock == Lock::None)
    }
}

#[test]
fn a_fresh_cache_is_free_and_chains_nothing() {
    let rig = Rig::new(16);
    assert!(rig.geometry().total() >= 16);
    for (_, entry) in rig.entries() {
        assert_eq!((entry.next, entry.word), (NEXT_NONE, Word::FREE));
    }
    assert_eq!((rig.read(0, 10), rig.write(0, &[1; PAGE])), (None, None));
    assert_eq!(
        rig.plane.counts(),
        outboard_wire::cache::Tallied::default(),
        "nothing may be cached: no figures"
    );
}

/// Pages of the chain, in its order; it ends.
fn chained(rig: &Rig) -> Vec<u64> {
    let mut at = rig.record().chain;
    let mut pages = Vec::new();
    while at != NEXT_NONE {
        let entry = rig.entry(at.into());
        assert_eq!((entry.ino, entry.word.status), (FILE, Status::Dirty));
        pages.push(entry.lpn);
        at = entry.next;
    }
    pages
}

#[test]
fn pages_that_are_made_are_chained_and_no_others() {
    let mut rig = Rig::new(16);
    rig.volume = vec![7; PAGE];
    rig.grant(Grant::Write, 100);
    assert!(rig.fill(0));
    assert!(rig.write(5, &[1; 10]).is_some(), "it was there");
    assert_eq!(chained(&rig), []);
    assert!(rig.write(PAGE as u64, &[2; 2 * PAGE]).is_some());
    assert!(rig.write(3 * PAGE as u64, &[3; 10]).is_some());
    assert!(rig.write(PAGE as u64, &[4; PAGE]).is_some(), "it is chained already");
    assert_eq!(chained(&rig), [3, 2, 1]);
    // What could not be paid for was given back, and is in no chain.
    rig.grant(Grant::Write, 1);
    assert_eq!(rig.write(8 * PAGE as u64, &[5; 2 * PAGE]), None);
    assert_eq!(chained(&rig), []);
}

/// The DPU side took the grant back between the look at the record and the payment: nobody would
/// have looked for the page.
#[test]
fn who_pays_in_another_grant_pays_nothing() {
    let mut rig = Rig::new(16);
    rig.volume = vec![7; PAGE];
    rig.grant(Grant::Write, 100);
    let found = rig.plane.record(FILE).unwrap();
    let tag = found.tag(&rig.region).unwrap();
    assert!(found.spend(&rig.region, tag, 2));
    rig.grant(Grant::Write, 100);
    assert!(!found.spend(&rig.region, tag, 2));
    assert_eq!(rig.record().dirtied.pages, 0);
}

#[test]
fn a_read_is_answered_when_every_page_is_there_and_ends_with_the_file() {
    let mut rig = Rig::new(16);
    rig.volume = (0..PAGE * 2 + 100).map(byte).collect();
    rig.grant(Grant::Read, 0);
    assert_eq!(rig.read(0, 10), None, "a miss");
    assert!(rig.fill(0) && rig.fill(1));
    assert_eq!(rig.read(PAGE as u64 - 5, 10).unwrap(), rig.volume[PAGE - 5..PAGE + 5]);
    assert_eq!(rig.read(PAGE as u64, 2 * PAGE), None, "half a hit is a miss");
    assert!(rig.fill(2));
    assert_eq!(rig.read(PAGE as u64, 9 * PAGE).unwrap(), rig.volume[PAGE..]);
    assert_eq!(rig.read(rig.volume.len() as u64, 10).unwrap(), []);
    assert_eq!(rig.read(u64::MAX - 3, 10).unwrap(), []);
    assert_eq!(rig.write(0, &[1; 10]), None, "granted to read");
    let counts = rig.plane.counts();
    assert_eq!((counts.hits, counts.misses, counts.writes), (4, 2, 0));
    assert!(rig.unlocked() && rig.entry(rig.geometry().bucket(FILE, 0).start).word.referenced);
}

#[test]
fn a_write_makes_pages_only_where_it_needs_nothing_of_the_volume() {
    let mut rig = Rig::new(16);
    rig.volume = vec![7; PAGE + 100];
    rig.grant(Grant::Write, 100);
    assert_eq!(rig.write(10, &[1; 10]), None, "the rest of the page is the volume's");
    assert_eq!(rig.write(PAGE as u64 + 50, &[1; 50]), None, "bytes before it are the volume's");
    assert_eq!(rig.write(PAGE as u64, &[1; 100]), Some(100), "all there is of the page");
    assert_eq!(rig.write(0, &[2; PAGE]), Some(PAGE_SIZE));
    assert_eq!(rig.write(4 * PAGE as u64 + 8, &[3; 4]), Some(4), "beyond the end");
    assert_eq!(rig.record().size, 4 * PAGE as u64 + 12);
    assert_eq!((rig.record().mtime, rig.record().dirtied.pages, rig.dirty()), (NOW, 3, 3));
    assert_eq!(rig.read(4 * PAGE as u64, 100).unwrap(), [0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3]);
    assert_eq!(rig.read(3 * PAGE as u64, 8), None, "a hole is the volume's to answer");
    assert_eq!(rig.write(10, &[4; 10]), Some(10));
    assert_eq!(rig.record().dirtied.pages, 3, "it was dirty already");
    rig.flush();
    assert_eq!(rig.write(10, &[5; 10]), Some(10));
    assert_eq!(rig.record().dirtied.pages, 4, "it was clean");
}

#[test]
fn without_credit_a_write_goes_through_and_leaves_nothing() {
    let rig = Rig::new(16);
    rig.grant(Grant::Write, 2);
    assert_eq!(rig.write(0, &[1; 3 * PAGE]), None);
    assert_eq!((rig.dirty(), rig.record().dirtied.pages, rig.record().size), (0, 0, 0));
    assert!(rig.entries().iter().all(|(_, entry)| entry.word.is_free()));
    assert_eq!(rig.write(0, &[1; 2 * PAGE]), Some(2 * PAGE_SIZE));
    assert_eq!(rig.write(2 * PAGE as u64, &[1; 1]), None);
    assert_eq!(rig.plane.counts().through, 2);
}

#[test]
fn appends_go_to_the_end_and_pages_full_of_others_go_through() {
    let rig = Rig::new(4);
    assert_eq!(rig.geometry().buckets(), 1);
    rig.grant(Grant::Write, 100);
    for part in 0..4u8 {
        let source = Source::Memory(&[part; PAGE]);
        assert_eq!(rig.plane.write(FILE, Place::End, source, NOW), Some(PAGE_SIZE));
    }
    assert_eq!(rig.record().size, 4 * PAGE as u64);
    let source = Source::Memory(&[9; 1]);
    assert_eq!(rig.plane.write(FILE, Place::End, source, NOW), None, "the bucket is full");
    assert!(rig.unlocked());
    assert_eq!(rig.read(3 * PAGE as u64 - 1, 2).unwrap(), [2, 3]);
}

#[test]
fn a_change_on_its_way_through_takes_all_writes_with_it() {
    let rig = Rig::new(16);
    rig.grant(Grant::Write, 100);
    assert_eq!(rig.write(0, &[1; PAGE]), Some(PAGE_SIZE));
    rig.plane.begin_change(FILE);
    rig.plane.begin_change(FILE);
    assert_eq!(rig.write(PAGE as u64, &[1; PAGE]), None);
    assert_eq!(rig.write(5, &[2; 9]), None, "it must not be older when the other is sent again");
    assert!(rig.plane.is_for_writing(FILE) && !rig.plane.is_for_writing(FILE + 1));
    assert_eq!(rig.read(0, 4).unwrap(), [1; 4]);
    rig.plane.end_change(FILE);
    assert_eq!(rig.write(PAGE as u64, &[1; PAGE]), None);
    rig.plane.end_change(FILE);
    assert_eq!(rig.write(PAGE as u64, &[1; PAGE]), Some(PAGE_SIZE));
}

/// Eight threads wrote one file: once one write went through, there was always another on its way,
/// and none was taken by the cache again.
#[test]
fn who_waits_for_changes_on_their_way_is_woken_by_the_last() {
    let rig = Rig::new(16);
    rig.grant(Grant::Write, 100);
    assert!(!rig.plane.await_changes(FILE, None), "there are none");
    rig.plane.begin_change(FILE);
    rig.plane.begin_change(FILE);
    assert!(!rig.plane.await_changes(FILE, Some(std::time::Duration::from_millis(1))));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    rig.plane.await_changes(FILE, None);
                    rig.write(0, &[1; PAGE]).is_some()
                })
            })
            .collect();
        rig.plane.end_change(FILE);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        rig.plane.end_change(FILE);
        assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap()));
    });
}

#[test]
fn what_is_being_taken_back_or_locked_goes_through_and_is_left_as_it_was() {
    let mut rig = Rig::new(16);
    rig.volume = vec![7; 2 * PAGE];
    rig.grant(Grant::Write, 100);
    assert!(rig.fill(0) && rig.fill(1));
    for grant in [Grant::Frozen, Grant::None, Grant::Free] {
        rig.set_grant(grant);
        assert_eq!((rig.read(0, 1), rig.write(0, &[1])), (None, None));
    }
    rig.set_grant(Grant::Write);
    let (index, entry) =
        rig.entries().into_iter().find(|(_, e)| e.lpn == 1 && !e.word.is_free()).unwrap();
    rig.set_word(index, entry.word.lock(true).unwrap());
    assert_eq!(rig.read(0, 2 * PAGE), None, "the DPU side holds it too long");
    assert_eq!(rig.write(0, &[1; 2 * PAGE]), None);
    rig.set_word(index, entry.word.share_by_dpu().unwrap());
    assert_eq!(rig.read(0, 2 * PAGE).unwrap(), rig.volume, "readers share");
    assert_eq!(rig.write(0, &[1; 2 * PAGE]), None);
    assert_eq!(rig.entry(index).word.readers, 1);
    rig.set_word(index, entry.word);
    assert!(rig.unlocked() && rig.dirty() == 0);
    assert_eq!(rig.read(0, 2 * PAGE).unwrap(), rig.volume);
}

#[test]
fn slots_of_the_same_region_need_no_copy_between() {
    let rig = Rig::new(16);
    rig.grant(Grant::Write, 100);
    rig.region.write_from(4096, b"from a slot").unwrap();
    let source = Source::Region { at: 4096, len: 11 };
    assert_eq!(rig.plane.write(FILE, Place::At(0), source, NOW), Some(11));
    let beyond = Source::Region { at: rig.region.len() - 1, len: 11 };
    assert_eq!(rig.plane.write(FILE, Place::At(0), beyond, NOW), None);
    let got = rig.plane.read(FILE, 5, Sink::Region { at: 0, len: 100 });
    assert_eq!(got, Some(6));
    let mut out = [0; 6];
    rig.region.read_into(0, &mut out).unwrap();
    assert_eq!(&out, b"a slot");
}

/// Random reads, writes and appends against a byte array, while pages come, go and are flushed.
/// What goes through is done to the volume as the DPU side would.
#[test]
fn files_read_as_they_were_written() {
    let (mut seen, mut filled) = (BTreeMap::new(), 0);
    for seed in 0..200 {
        let (mut rng, mut rig) = (Rng::new(seed), Rig::new(12));
        let mut file: Vec<u8> = vec![];
        rig.grant(Grant::Write, 1 << 20);
        for step in 0..200 {
            let offset = rng.below(9 * PAGE as u64);
            let len = usize::try_from(1 + rng.below(2 * PAGE as u64)).unwrap();
            let what = rng.below(10);
            match what {
                0..4 => {
                    let start = usize::try_from(offset).unwrap().min(file.len());
                    let want = &file[start..file.len().min(start + len)];
                    if let Some(got) = rig.read(offset, len) {
                        assert!(got == want, "seed {seed} step {step}: read {offset}+{len}");
                        *seen.entry("hit").or_insert(0) += 1;
                    } else {
                        rig.flush();
                        let held = &rig.volume[start..file.len().min(start + len)];
                        assert!(held == want, "seed {seed} step {step}: through {offset}+{len}");
                    }
                }
                4..8 => {
                    let bytes: Vec<u8> =
                        (0..len).map(|_| rng.below(255).to_le_bytes()[0] + 1).collect();
                    let place = if what == 7 { Place::End } else { Place::At(offset) };
                    let start = match place {
                        Place::At(offset) => usize::try_from(offset).unwrap(),
                        Place::End => file.len(),
                    };
                    file.resize(file.len().max(start + len), 0);
                    file[start..start + len].copy_from_slice(&bytes);
                    let done = rig.plane.write(FILE, place, Source::Memory(&bytes), NOW);
                    if done.is_some() {
                        *seen.entry("written").or_insert(0) += 1;
                        continue;
                    }
                    rig.flush();
                    rig.set_grant(Grant::Frozen);
                    (0..rig.geometry().total()).for_each(|index| rig.evict(index));
                    rig.volume.clone_from(&file);
                    rig.grant(Grant::Write, 1 << 20);
                }
                8 => rig.flush(),
                _ => {
                    rig.evict(rng.below(rig.geometry().total()));
                    rig.flush();
                    let pages = rig.volume.len().div_ceil(PAGE) as u64;
                    filled += (0..pages).filter(|lpn| rng.chance(2, 3) && rig.fill(*lpn)).count();
                }
            }
        }
        rig.flush();
        assert!(rig.volume == file, "seed {seed}: what was answered reached the volume");
    }
    assert!(seen.len() == 2 && seen.values().all(|n| *n > 2000), "{seen:?}");
    assert!(filled > 2000, "{filled}");
}

/// Anything at all in the cache: every call ends, nothing panics, and nothing outside is written.
#[test]
fn a_cache_full_of_junk_is_survived() {
    for seed in 0..40 {
        let (mut rng, rig) = (Rng::new(seed), Rig::new(16));
        rig.grant(Grant::Write, 1 << 20);
        rig.region.write_from(0, &[0xAB; 8192]).unwrap();
        for _ in 0..20 {
            for _ in 0..rng.below(30) {
                let from = rig.geometry().record_at(0);
                let at = from + rng.below(rig.geometry().page_at(0) - from) / 8 * 8;
                let word = rng.next_u64() >> rng.below(64);
                rig.region.store_u64(at, word, SeqCst).unwrap();
            }
            if rng.chance(1, 2) {
                rig.set_word_raw(rng.below(16), rng.next_u64() & 0x3F);
            }
            let word = GrantWord { grant: Grant::Write, epoch: 1 };
            rig.region.store_u64(rig.record_at(), word.emit(), SeqCst).unwrap();
            rig.region.store_u64(rig.record_at() + record_at::INO, FILE, SeqCst).unwrap();
            let offset = rng.below(16 * PAGE as u64);
            let _ = rig.read(offset, 3 * PAGE);
            let _ = rig.write(offset, &[1; 2 * PAGE]);
        }
        let mut outside = [0; 8192];
        rig.region.read_into(0, &mut outside).unwrap();
        assert!(outside == [0xAB; 8192], "seed {seed}");
    }
}

impl Rig {
    fn set_word_raw(&self, index: u64, raw: u64) {
        let at = self.geometry().entry_at(index) + entry_at::WORD;
        self.region.store_u64(at, raw, SeqCst).unwrap();
    }
}

/// Many threads on few pages, with a control plane that flushes, evicts and fills meanwhile: each
/// page is all of one write, and what was written last by its only writer is read.
#[test]
fn threads_see_whole_writes() {
    let mut rig = Rig::new(8);
    rig.volume = vec![0; 4 * PAGE];
    rig.grant(Grant::Write, u64::MAX);
    let plane = &rig.plane;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|worker| {
                scope.spawn(move || {
                    let mut rng = Rng::new(worker);
                    let mut hits = 0u64;
                    for round in 0..3000u64 {
                        let lpn = rng.below(4);
                        if rng.chance(1, 3) {
                            let bytes = [round.to_le_bytes()[0]; PAGE];
                            let at = Place::At(lpn * PAGE as u64);
                            plane.write(FILE, at, Source::Memory(&bytes), NOW);
                        } else {
                            let mut out = [0; PAGE];
                            let at = lpn * PAGE as u64;
                            if plane.read(FILE, at, Sink::Memory(&mut out)).is_some() {
                                assert!(out.iter().all(|byte| *byte == out[0]), "torn");
                                hits += 1;
                            }
                        }
                    }
                    hits
                })
            })
            .collect();
        assert!(workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>() > 100);
    });
    rig.flush();
    let entries = rig.entries();
    for lpn in 0..4 {
        let of = entries.iter().filter(|(_, e)| e.lpn == lpn && !e.word.is_free());
        assert!(of.count() <= 1, "page {lpn} is there twice");
    }
}
