//! Every interleaving and every legal reordering of two host threads and the DPU side on one
//! bucket, up to a number of preemptions. The host's half is the real one; the DPU side takes the
//! same steps on the same words as `dpu::Control`, but moves two words of a page instead of all of
//! it, written alike, so that a torn page shows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p outboard-cache --test loom`
#![allow(unexpected_cfgs, reason = "`--cfg loom` is set by hand")]
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use loom::thread;
use outboard_base::ledger::Kind;
use outboard_cache::geometry::{Area, Geometry};
use outboard_cache::host::{Place, Plane, Sink, Source};
use outboard_link::Region;
use outboard_link::dma::{Direct, Dma};
use outboard_wire::cache::{
    CacheMode, Grant, GrantWord, Lock, Record, Status, Word, entry_at, header_at, record_at,
};

const FILE: u64 = 3;
const WAYS: u32 = 2;
const PAGE: u32 = 4096;

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 50_000;
    builder.check(model);
}

/// Two equal words: half of one and half of another would be a torn page.
fn twice(value: u64) -> [u8; 16] {
    [value.to_le_bytes(), value.to_le_bytes()].concat().try_into().unwrap()
}

fn once(bytes: &[u8]) -> u64 {
    let (a, b) = bytes.split_at(8);
    assert_eq!(a, b, "torn");
    u64::from_le_bytes(a.try_into().unwrap())
}

/// One bucket, one record, one page of interest.
#[derive(Clone)]
struct Rig {
    region: Arc<Region>,
    plane: Arc<Plane>,
    dma: Arc<Direct>,
    geometry: Geometry,
}

impl Rig {
    /// `held` is what entry 0 has of page 0, if anything; the file is `size` bytes long.
    fn new(size: u64, held: Option<(u64, Status)>) -> Rig {
        let len = Geometry::len_for(u64::from(WAYS), PAGE, WAYS, 4);
        let region = Region::anonymous(len);
        let area = Area { at: 0, len };
        let geometry = Geometry::fit(area, PAGE, WAYS, 4, CacheMode::Write).unwrap();
        assert_eq!(geometry.total(), u64::from(WAYS));
        region.touch_wide(geometry.header_at(0), 64);
        region.touch_wide(geometry.record_at(0), 4 * 64);
        region.touch_wide(geometry.entry_at(0), u64::from(WAYS) * 32);
        (0..u64::from(WAYS)).for_each(|page| region.touch_wide(geometry.page_at(page), 32));
        let plane = Arc::new(Plane::format(Arc::clone(&region), geometry).unwrap());
        let dma = Arc::new(Direct::new(Arc::clone(&region)));
        let rig = Rig { region, plane, dma, geometry };
        let word = GrantWord { grant: Grant::Write, epoch: 1 };
        let record = Record { word, ino: FILE, size, mtime: 0, credit: 9, dirtied: 0 };
        rig.region.write_from(rig.record_at(), &record.emit()).unwrap();
        if let Some((value, status)) = held {
            rig.region.write_from(geometry.page_at(0), &twice(value)).unwrap();
            rig.region.store_u64(geometry.entry_at(0) + entry_at::INO, FILE, SeqCst).unwrap();
            let word = Word { status, ..Word::FREE };
            rig.region.store_u64(geometry.entry_at(0), word.emit(), SeqCst).unwrap();
        }
        rig
    }

    fn record_at(&self) -> u64 {
        self.geometry.record_at(self.geometry.record_set(FILE).start)
    }

    // The host.

    fn write(&self, value: u64) -> bool {
        let bytes = twice(value);
        self.plane.write(FILE, Place::At(0), Source::Memory(&bytes), 1).is_some()
    }

    fn read(&self) -> Option<u64> {
        let mut bytes = [0; 16];
        let len = self.plane.read(FILE, 0, Sink::Memory(&mut bytes))?;
        (len == 16).then(|| once(&bytes))
    }

    // The DPU side: steps on words, and two words of bytes where it would move a page.

    fn entries(&self) -> std::ops::Range<u64> {
        0..u64::from(WAYS)
    }

    fn word(&self, entry: u64) -> Word {
        let mut raw = [0; 8];
        self.dma.read(Kind::Cache, self.geometry.entry_at(entry), &mut raw).unwrap();
        Word::parse(u64::from_le_bytes(raw)).unwrap()
    }

    /// A step, tried once: the word before it.
    fn step(&self, entry: u64, step: impl Fn(Word) -> Option<Word>) -> Option<Word> {
        let word = self.word(entry);
        let (at, next) = (self.geometry.entry_at(entry), step(word)?);
        (self.dma.compare_and_swap(at, word.emit(), next.emit()) == Ok(word.emit())).then_some(word)
    }

    /// A step taken in the end.
    fn step_fully(&self, entry: u64, step: impl Fn(Word) -> Option<Word>) -> Word {
        loop {
            if let Some(word) = self.step(entry, &step) {
                return word;
            }
            thread::yield_now();
        }
    }

    fn is_page(&self, entry: u64) -> bool {
        let mut ids = [0; 16];
        self.dma
            .read(Kind::Cache, self.geometry.entry_at(entry) + entry_at::LPN, &mut ids)
            .unwrap();
        ids[..8] == 0u64.to_le_bytes() && ids[8..] == FILE.to_le_bytes()
    }

    fn pull(&self, entry: u64) -> u64 {
        let mut bytes = [0; 16];
        self.dma.read(Kind::Cache, self.geometry.page_at(entry), &mut bytes).unwrap();
        once(&bytes)
    }

    /// Writes a dirty page to the volume, if it is one and not being written.
    fn flush(&self, entry: u64, volume: &mut u64) {
        let dirty = |word: Word| (word.status == Status::Dirty).then_some(word);
        let shared = self.step(entry, |word| dirty(word)?.share_by_dpu());
        let Some(word) = shared else { return };
        let value = self.pull(entry);
        self.step_fully(entry, Word::unshare_by_dpu);
        *volume = value;
        self.step(entry, |now| now.clean(word.version));
    }

    /// Takes the grant back: freezes the record, then flushes and frees every page.
    fn recall(&self, volume: &mut u64) {
        let at = self.record_at() + record_at::WORD;
        let granted = GrantWord { grant: Grant::Write, epoch: 1 };
        let frozen = granted.next(Grant::Frozen).emit();
        assert_eq!(self.dma.compare_and_swap(at, granted.emit(), frozen), Ok(granted.emit()));
        for entry in self.entries() {
            while !self.word(entry).is_free() {
                self.flush(entry, volume);
                let clean = |word: Word| (word.status == Status::Clean).then_some(word);
                if self.step(entry, |word| clean(word)?.lock(true)).is_some() {
                    self.unlock(entry, Status::Free);
                    break;
                }
                thread::yield_now();
            }
        }
    }

    fn unlock(&self, entry: u64, status: Status) {
        let word = self.word(entry).unlock(status, true);
        self.dma
            .write(Kind::Cache, self.geometry.entry_at(entry), &word.emit().to_le_bytes())
            .unwrap();
    }

    /// Puts page 0 as the volume has it into a free entry, unless it is there.
    fn fill(&self, value: u64) {
        let used = |entry: u64| !self.word(entry).is_free() && self.is_page(entry);
        if self.entries().any(used) {
            return;
        }
        let free = |word: Word| word.is_free().then(|| word.lock(true)).flatten();
        let claimed = self.entries().find(|entry| self.step(*entry, free).is_some());
        let Some(entry) = claimed else { return };
        let ids = [0u64.to_le_bytes(), FILE.to_le_bytes()].concat();
        let at = self.geometry.entry_at(entry);
        self.dma.write(Kind::Cache, at + entry_at::LPN, &ids).unwrap();
        self.dma.fetch_add(self.geometry.header_at(header_at::FREE), u64::MAX).unwrap();
        if self.entries().any(|other| other != entry && used(other)) {
            self.unlock(entry, Status::Free);
            return;
        }
        self.dma.write(Kind::Cache, self.geometry.page_at(entry), &twice(value)).unwrap();
        self.unlock(entry, Status::Clean);
    }

    // Afterwards.

    /// The entries of the page, none of them locked: their bytes and status.
    fn held(&self) -> Vec<(u64, Status)> {
        let is_held = |entry: &u64| !self.word(*entry).is_free() && self.is_page(*entry);
        let look = |entry| {
            assert_eq!(self.word(entry).lock, Lock::None);
            (self.pull(entry), self.word(entry).status)
        };
        self.entries().filter(is_held).map(look).collect()
    }

    fn size(&self) -> u64 {
        self.region.load_u64(self.record_at() + record_at::SIZE, Acquire).unwrap()
    }
}

/// With two writers beside it, a bound on preemptions leaves the interleaving out that one writer
/// shows: so both are tried.
fn flushed_while_written(preemptions: usize, values: &'static [u64]) {
    explore(preemptions, move || {
        let rig = Rig::new(16, Some((1, Status::Dirty)));
        let write = |value: &u64| {
            let (rig, value) = (rig.clone(), *value);
            thread::spawn(move || rig.write(value))
        };
        let writers: Vec<_> = values.iter().map(write).collect();
        let mut volume = 0;
        rig.flush(0, &mut volume);
        let written = writers.into_iter().map(|writer| writer.join().unwrap());
        let any = written.fold(false, |any, written| any | written);
        let [(value, status)] = rig.held()[..] else { panic!("one page") };
        assert!(status == Status::Dirty || volume == value, "a write was lost");
        assert_eq!(any, value > 1);
    });
}

#[test]
fn what_is_written_during_a_flush_stays_dirty() {
    flushed_while_written(3, &[2]);
}

#[test]
fn two_write_during_a_flush() {
    flushed_while_written(2, &[2, 3]);
}

#[test]
fn a_recall_meets_every_write_or_its_maker_sees_it() {
    explore(2, || {
        let rig = Rig::new(16, Some((1, Status::Clean)));
        let [writer, reader] = [rig.clone(), rig.clone()];
        let writer = thread::spawn(move || writer.write(2));
        let reader = thread::spawn(move || reader.read());
        let mut volume = 1;
        rig.recall(&mut volume);
        let written = writer.join().unwrap();
        assert!(reader.join().unwrap().is_none_or(|value| value == 1 || value == 2));
        assert_eq!(rig.held(), [], "pages go with the grant");
        assert_eq!(volume, if written { 2 } else { 1 });
    });
}

#[test]
fn a_recall_meets_the_page_a_write_makes() {
    explore(3, || {
        let rig = Rig::new(16, None);
        let writer = rig.clone();
        let writer = thread::spawn(move || writer.write(2));
        let mut volume = 1;
        rig.recall(&mut volume);
        let written = writer.join().unwrap();
        assert_eq!(rig.held(), []);
        assert_eq!(volume, if written { 2 } else { 1 });
    });
}

#[test]
fn a_page_is_never_there_twice() {
    explore(2, || {
        let rig = Rig::new(16, None);
        let [writer, reader] = [rig.clone(), rig.clone()];
        let writer = thread::spawn(move || writer.write(2));
        let reader = thread::spawn(move || reader.read());
        rig.fill(1);
        let written = writer.join().unwrap();
        assert!(reader.join().unwrap().is_none_or(|value| value == 1 || value == 2));
        match rig.held()[..] {
            [] => assert!(!written),
            [(2, Status::Dirty)] => assert!(written),
            [(1, Status::Clean)] => assert!(!written),
            ref held => panic!("written {written}: {held:?}"),
        }
    });
}

#[test]
fn an_entry_used_again_is_not_taken_for_the_old_page() {
    explore(2, || {
        let rig = Rig::new(16, Some((1, Status::Clean)));
        let [writer, reader] = [rig.clone(), rig.clone()];
        let writer = thread::spawn(move || writer.write(2));
        let reader = thread::spawn(move || reader.read());
        let clean = |word: Word| (word.status == Status::Clean).then_some(word);
        if rig.step(0, |word| clean(word)?.lock(true)).is_some() {
            let ids = [1u64.to_le_bytes(), FILE.to_le_bytes()].concat();
            let at = rig.geometry.entry_at(0) + entry_at::LPN;
            rig.dma.write(Kind::Cache, at, &ids).unwrap();
            rig.dma.write(Kind::Cache, rig.geometry.page_at(0), &twice(9)).unwrap();
            rig.unlock(0, Status::Clean);
        }
        writer.join().unwrap();
        assert!(reader.join().unwrap().is_none_or(|value| value == 1 || value == 2));
        let reused = !rig.is_page(0);
        assert!(!reused || (rig.pull(0), rig.word(0).status) == (9, Status::Clean));
    });
}

#[test]
fn appends_follow_one_another_and_a_reader_sees_them_whole() {
    explore(2, || {
        let rig = Rig::new(0, None);
        let [first, second] = [1, 2].map(|value| {
            let rig = rig.clone();
            thread::spawn(move || {
                let bytes = twice(value);
                rig.plane.write(FILE, Place::End, Source::Memory(&bytes), 1).is_some()
            })
        });
        let mut bytes = [0; 32];
        let got = rig.plane.read(FILE, 0, Sink::Memory(&mut bytes)).unwrap_or(0);
        assert!(got % 16 == 0);
        bytes[..got as usize].chunks(16).for_each(|part| assert!(once(part) > 0));
        assert!(first.join().unwrap() && second.join().unwrap());
        assert_eq!(rig.size(), 32);
        let page = rig.entries().find(|entry| !rig.word(*entry).is_free()).unwrap();
        rig.region.read_into(rig.geometry.page_at(page), &mut bytes).unwrap();
        assert_eq!(once(&bytes[..16]) + once(&bytes[16..]), 3);
    });
}
