//! Every interleaving and every legal reordering of host threads and the DPU side on one bucket, up
//! to a number of preemptions. Both halves are the real ones: [`Plane`], [`Control`], and in the
//! last test [`Coherence`]. Only the engine below is cut: it moves 32 bytes of a page instead of
//! all of it, written alike, so that a torn page shows and loom has an end.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p outboard-cache --test loom`;
//! `OUTBOARD_PREEMPTIONS=1` allows one more everywhere, which takes hours.
#![allow(unexpected_cfgs, reason = "`--cfg loom` is set by hand")]
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use loom::thread;
use outboard_base::ledger::Kind;
use outboard_base::task::poll_once;
use outboard_base::{Cred, Fh, Ino, Result, SessionId, Time, Timestamp};
use outboard_cache::coherence::{CacheSetup, Coherence, Operation};
use outboard_cache::dpu::{Control, Filled, Found, Pulled, Slot, TakenOut};
use outboard_cache::geometry::{Area, Geometry};
use outboard_cache::host::{Place, Plane, Sink, Source};
use outboard_cache::policy::Policies;
use outboard_link::Region;
use outboard_link::dma::{Direct, Dma, DmaError};
use outboard_volume::{Answer, Caller, Payload, Volume, VolumeEvent};
use outboard_wire::cache::{CacheMode, Grant, Lock, Status, Word, entry_at, record_at};
use outboard_wire::file::{Attr, Header, Reply, Request, open_flags};

const FILE: u64 = 3;
const WAYS: u32 = 2;
const PAGE: u32 = 4096;

/// Tries every way a model can go, each with an outcome (was the write taken): all that are named
/// must come, or nothing was explored.
fn explore<T: Ord + Debug + Send + 'static>(
    preemptions: usize,
    outcomes: impl IntoIterator<Item = T>,
    model: impl Fn() -> T + Sync + Send + 'static,
) {
    let mut builder = loom::model::Builder::new();
    let more = std::env::var("OUTBOARD_PREEMPTIONS").ok().and_then(|more| more.parse().ok());
    builder.preemption_bound = Some(preemptions + more.unwrap_or(0));
    builder.max_branches = 50_000;
    let seen = Arc::new(Mutex::new((BTreeSet::new(), 0)));
    let note = Arc::clone(&seen);
    builder.check(move || {
        let outcome = model();
        let mut seen = note.lock().unwrap();
        seen.0.insert(outcome);
        seen.1 += 1;
    });
    let (seen, ways) = &*seen.lock().unwrap();
    println!("{ways} ways");
    assert_eq!(*seen, outcomes.into_iter().collect());
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

/// An engine that moves the first bytes of a page.
struct Short(Direct);

/// Bytes that count: two times two words.
const MOVED: usize = 32;

impl Dma for Short {
    fn region_len(&self) -> u64 {
        self.0.region_len()
    }

    fn read(&self, kind: Kind, at: u64, out: &mut [u8]) -> std::result::Result<(), DmaError> {
        let len = if kind == Kind::CacheIn { MOVED } else { out.len() };
        self.0.read(kind, at, &mut out[..len])
    }

    fn write(&self, kind: Kind, at: u64, data: &[u8]) -> std::result::Result<(), DmaError> {
        let len = if kind == Kind::CacheOut { MOVED } else { data.len() };
        self.0.write(kind, at, &data[..len])
    }

    fn compare_and_swap(
        &self,
        at: u64,
        expected: u64,
        new: u64,
    ) -> std::result::Result<u64, DmaError> {
        self.0.compare_and_swap(at, expected, new)
    }

    fn fetch_add(&self, at: u64, by: u64) -> std::result::Result<u64, DmaError> {
        self.0.fetch_add(at, by)
    }
}

/// One bucket, one record, one page of interest.
#[derive(Clone)]
struct Rig {
    region: Arc<Region>,
    plane: Arc<Plane>,
    control: Arc<Control>,
    geometry: Geometry,
    slot: Slot,
}

/// An empty cache of one bucket, every word of it made.
fn formatted() -> (Arc<Region>, Plane, Control) {
    let len = Geometry::len_for(u64::from(WAYS), PAGE, WAYS, 4);
    let region = Region::anonymous(len);
    let area = Area { at: 0, len };
    let geometry = Geometry::fit(area, PAGE, WAYS, 4, CacheMode::Write).unwrap();
    assert_eq!(geometry.total(), u64::from(WAYS));
    region.touch_wide(geometry.header_at(0), 64);
    region.touch_wide(geometry.record_at(0), 4 * 64);
    region.touch_wide(geometry.entry_at(0), u64::from(WAYS) * 32);
    (0..u64::from(WAYS)).for_each(|page| region.touch_wide(geometry.page_at(page), MOVED as u64));
    let plane = Plane::format(Arc::clone(&region), geometry).unwrap();
    let dma = Arc::new(Short(Direct::new(Arc::clone(&region))));
    let control = Control::attach(dma, area, Policies::default()).unwrap();
    (region, plane, control)
}

impl Rig {
    /// `held` is what entry 0 has of page 0, if anything; the file is `size` bytes long.
    fn new(size: u64, held: Option<(u64, Status)>) -> Rig {
        let (region, plane, control) = formatted();
        let (geometry, credit) = (*plane.geometry(), 9);
        let slot = control.grant(Ino(FILE), Grant::Write, size, credit).unwrap();
        let (plane, control) = (Arc::new(plane), Arc::new(control));
        let rig = Rig { region, plane, control, geometry, slot };
        if let Some((value, status)) = held {
            assert_eq!(rig.fill(0, value), Filled::Done);
            assert!(status == Status::Clean || rig.write(value));
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

    // The DPU side, as coherence goes about it.

    fn entries(&self) -> std::ops::Range<u64> {
        0..u64::from(WAYS)
    }

    fn word(&self, entry: u64) -> Word {
        Word::parse(self.region.load_u64(self.geometry.entry_at(entry), Acquire).unwrap()).unwrap()
    }

    fn is_page(&self, entry: u64) -> bool {
        let at = self.geometry.entry_at(entry);
        self.region.load_u64(at + entry_at::LPN, Acquire) == Ok(0)
            && self.region.load_u64(at + entry_at::INO, Acquire) == Ok(FILE)
    }

    fn value(&self, entry: u64) -> u64 {
        let mut bytes = [0; 16];
        self.region.read_into(self.geometry.page_at(entry), &mut bytes).unwrap();
        once(&bytes)
    }

    fn known(&self) -> Vec<Found> {
        self.control.known(Ino(FILE)).unwrap()
    }

    /// Writes a page to the volume if it is dirty, and not being written: whether it is clean now.
    fn flush(&self, mut found: Found, volume: &mut u64) -> bool {
        let mut page = vec![0; PAGE as usize];
        let pulled = self.control.pull(&found, &mut page).unwrap();
        let Pulled::Bytes { version, dirty: true } = pulled else { return false };
        *volume = once(&page[..16]);
        found.entry.word.status = Status::Dirty;
        self.control.cleaned(&found, version).unwrap()
    }

    /// Takes the grant back, of which `settled` pages are in the volume: freezes the record, closes
    /// the count, writes back as many pages as were counted, and frees all that are known. It never
    /// searches: the chain must lead to what the host made.
    fn recall(&self, mut settled: u64, volume: &mut u64) {
        self.control.set(self.slot, Grant::Frozen).unwrap();
        let dirtied = self.control.close(self.slot, settled).unwrap();
        loop {
            let known = self.known();
            let dirty = known.iter().filter(|found| found.is_dirty());
            settled += dirty.filter(|found| self.flush(**found, volume)).count() as u64;
            if settled == dirtied && !known.iter().any(Found::is_being_written) {
                break;
            }
            thread::yield_now();
        }
        loop {
            let out = |found: &Found| self.control.take_out(found, false).unwrap();
            let known = self.known();
            if known.iter().map(out).fold(true, |all, out| all & (out == TakenOut::Free)) {
                assert_eq!(self.control.counts().searched, 0, "a chain was broken");
                return;
            }
            thread::yield_now();
        }
    }

    /// Puts a page as the volume has it into the cache.
    fn fill(&self, page: u64, value: u64) -> Filled {
        let bytes = twice(value).repeat(PAGE as usize / 16);
        self.control.fill(Ino(FILE), page, &bytes, |_| false, || true).unwrap()[0]
    }

    // Afterwards.

    /// The entries of the page, none of them locked: their bytes and status.
    fn held(&self) -> Vec<(u64, Status)> {
        let is_held = |entry: &u64| !self.word(*entry).is_free() && self.is_page(*entry);
        let look = |entry| {
            let word = self.word(entry);
            assert_eq!(word.lock, Lock::None, "{entry}: {word:?}");
            (self.value(entry), self.word(entry).status)
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
    explore(preemptions, [false, true], move || {
        let rig = Rig::new(16, Some((1, Status::Dirty)));
        let write = |value: &u64| {
            let (rig, value) = (rig.clone(), *value);
            thread::spawn(move || rig.write(value))
        };
        let writers: Vec<_> = values.iter().map(write).collect();
        let mut volume = 0;
        rig.known().into_iter().for_each(|found| _ = rig.flush(found, &mut volume));
        let written = writers.into_iter().map(|writer| writer.join().unwrap());
        let any = written.fold(false, |any, written| any | written);
        let [(value, status)] = rig.held()[..] else { panic!("one page") };
        assert!(status == Status::Dirty || volume == value, "a write was lost");
        assert_eq!(any, value > 1);
        any
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
    explore(2, [false, true], || {
        let rig = Rig::new(16, Some((1, Status::Clean)));
        let [writer, reader] = [rig.clone(), rig.clone()];
        let writer = thread::spawn(move || writer.write(2));
        let reader = thread::spawn(move || reader.read());
        let mut volume = 1;
        rig.recall(0, &mut volume);
        let written = writer.join().unwrap();
        assert!(reader.join().unwrap().is_none_or(|value| value == 1 || value == 2));
        assert_eq!(rig.held(), [], "pages go with the grant");
        assert_eq!(volume, if written { 2 } else { 1 });
        written
    });
}

#[test]
fn a_recall_meets_the_page_a_write_makes() {
    explore(3, [false, true], || {
        let rig = Rig::new(16, None);
        let writer = rig.clone();
        let writer = thread::spawn(move || writer.write(2));
        let mut volume = 1;
        rig.recall(0, &mut volume);
        let written = writer.join().unwrap();
        assert_eq!(rig.held(), []);
        assert_eq!(volume, if written { 2 } else { 1 });
        written
    });
}

#[test]
fn a_page_is_never_there_twice() {
    explore(2, [false, true], || {
        let rig = Rig::new(16, None);
        let [writer, reader] = [rig.clone(), rig.clone()];
        let writer = thread::spawn(move || writer.write(2));
        let reader = thread::spawn(move || reader.read());
        rig.fill(0, 1);
        let written = writer.join().unwrap();
        assert!(reader.join().unwrap().is_none_or(|value| value == 1 || value == 2));
        match rig.held()[..] {
            [] => assert!(!written),
            [(2, Status::Dirty)] => assert!(written),
            [(1, Status::Clean)] => assert!(!written),
            ref held => panic!("written {written}: {held:?}"),
        }
        written
    });
}

#[test]
fn an_entry_used_again_is_not_taken_for_the_old_page() {
    explore(2, [false, true], || {
        let rig = Rig::new(16, Some((1, Status::Clean)));
        let full = twice(8).repeat(PAGE as usize / 16);
        let fill = |ino| rig.control.fill(Ino(ino), 5, &full, |_| false, || true).unwrap()[0];
        // The bucket is full: the next fill replaces one of two clean pages.
        assert_eq!(fill(FILE + 1), Filled::Done);
        let [writer, reader] = [rig.clone(), rig.clone()];
        let writer = thread::spawn(move || writer.write(2));
        let reader = thread::spawn(move || reader.read());
        fill(FILE + 2);
        let written = writer.join().unwrap();
        assert!(reader.join().unwrap().is_none_or(|value| value == 1 || value == 2));
        match rig.held()[..] {
            [] => assert!(!written, "a dirty page made room"),
            [(value, status)] => {
                assert_eq!((value == 2, status == Status::Dirty), (written, written));
            }
            ref held => panic!("{held:?}"),
        }
        written
    });
}

/// The threads a DPU side may have at one cache, and a host that writes: one writes back; one fills
/// a page of a bucket that is full, one makes room in it, if they are there.
fn flushed_beside(preemptions: usize, filler: bool, replacer: bool) {
    explore(preemptions, [false, true], move || {
        let rig = Rig::new(16, Some((1, Status::Dirty)));
        let other = twice(8).repeat(PAGE as usize / 16);
        let put = move |rig: &Rig, ino| {
            rig.control.fill(Ino(ino), 5, &other, |_| false, || true).unwrap()[0]
        };
        assert_eq!(put(&rig, FILE + 1), Filled::Done);
        let [host, fills, makes_room] = [rig.clone(), rig.clone(), rig.clone()];
        let writer = thread::spawn(move || host.write(2));
        let filler = filler.then(|| thread::spawn(move || _ = put(&fills, FILE + 2)));
        let room = move || _ = makes_room.control.make_room_for(Ino(FILE), 0).unwrap();
        let replacer = replacer.then(|| thread::spawn(room));
        let mut volume = 0;
        let flushed = rig.known().into_iter().filter(|found| rig.flush(*found, &mut volume));
        let settled = flushed.count() as u64;
        let written = writer.join().unwrap();
        [filler, replacer].into_iter().flatten().for_each(|thread| thread.join().unwrap());
        let last = if written { 2 } else { 1 };
        match rig.held()[..] {
            [] => assert_eq!(volume, last, "a page went before it was in the volume"),
            [(value, Status::Clean)] => assert_eq!((value, volume), (last, last)),
            [(value, _)] => assert_eq!(value, last),
            ref held => panic!("{held:?}"),
        }
        // Whatever was replaced meanwhile, a recall finds what there is.
        rig.recall(settled, &mut volume);
        assert_eq!((rig.held(), volume), (vec![], last));
        written
    });
}

#[test]
fn a_flusher_beside_a_filler_loses_no_write() {
    flushed_beside(2, true, false);
}

#[test]
fn a_flusher_beside_a_replacer_loses_no_write() {
    flushed_beside(2, false, true);
}

#[test]
fn a_flusher_a_filler_and_a_replacer_lose_no_write() {
    flushed_beside(0, true, true);
}

/// Two threads make pages of one file while others of it are freed, found by their place: each is
/// in a chain, and freeing one that still is breaks none.
#[test]
fn no_page_that_is_made_is_missed() {
    explore(2, [[false, false], [false, true], [true, false], [true, true]], || {
        let rig = Rig::new(0, None);
        let page = u64::from(PAGE);
        let [first, second] = [0, 1].map(|nth| {
            let rig = rig.clone();
            thread::spawn(move || {
                let bytes = twice(nth + 1);
                rig.plane.write(FILE, Place::At(nth * page), Source::Memory(&bytes), 1).is_some()
            })
        });
        let mut volume = 0;
        let found = rig.control.find(Ino(FILE), 0..2).unwrap();
        let settled = found.into_iter().filter(|found| {
            let clean = found.is_dirty() && rig.flush(*found, &mut volume);
            // A clean page may be replaced at any time.
            _ = rig.control.take_out(found, false).unwrap();
            clean
        });
        let settled = settled.count() as u64;
        rig.recall(settled, &mut volume);
        let made = [first, second].map(|thread| thread.join().unwrap());
        assert!(rig.entries().all(|entry| rig.word(entry).is_free()), "{made:?}: not found");
        made
    });
}

#[test]
fn appends_follow_one_another_and_a_reader_sees_them_whole() {
    explore(2, [0, 16, 32], || {
        let rig = Rig::new(0, None);
        let [first, second] = [1, 2].map(|value| {
            let rig = rig.clone();
            thread::spawn(move || {
                let bytes = twice(value);
                rig.plane.write(FILE, Place::End, Source::Memory(&bytes), 1).is_some()
            })
        });
        let reader = rig.clone();
        let reader = thread::spawn(move || {
            let mut bytes = [0; 32];
            let got = reader.plane.read(FILE, 0, Sink::Memory(&mut bytes)).unwrap_or(0);
            assert!(got % 16 == 0);
            bytes[..got as usize].chunks(16).for_each(|part| assert!(once(part) > 0));
            got
        });
        // One that meets the reader's lock for too long goes through.
        let done = [first, second].map(|thread| thread.join().unwrap());
        let done = done.into_iter().filter(|done| *done).count();
        assert_eq!(rig.size(), 16 * done as u64);
        let page = rig.entries().find(|entry| !rig.word(*entry).is_free()).unwrap();
        let mut bytes = [0; 32];
        rig.region.read_into(rig.geometry.page_at(page), &mut bytes).unwrap();
        let written = bytes.chunks(16).map(once);
        assert!(done > 0 && written.filter(|value| *value > 0).count() == done);
        reader.join().unwrap()
    });
}

/// A file of one page at most.
#[derive(Default)]
struct Toy(Mutex<(u64, u64)>);

impl Volume for Toy {
    async fn handle(
        &self,
        _: &Caller,
        _: &Header,
        request: Request<'_>,
        _: Payload,
        _: Timestamp,
    ) -> Result<Answer> {
        Ok(if matches!(request, Request::Open { .. }) {
            Reply::Opened(Fh(1))
        } else {
            Reply::Empty
        }
        .into())
    }

    fn detach(&self, _: SessionId) {}

    fn is_back(&self, _: SessionId) {}

    fn take_events(&self) -> Vec<VolumeEvent> {
        Vec::new()
    }

    async fn cacheable(&self, ino: Ino) -> Result<(Attr, bool)> {
        Ok((Attr { ino, size: self.0.lock().unwrap().0, ..Attr::default() }, true))
    }

    async fn may_write(&self, _: &Caller, _: Ino) -> Result<bool> {
        Ok(true)
    }

    async fn write_back(
        &self,
        _: SessionId,
        _: Ino,
        runs: &[(u64, &[u8])],
        _: Option<Timestamp>,
    ) -> Result<()> {
        let [(0, bytes)] = runs else { panic!("{runs:?}") };
        *self.0.lock().unwrap() = (bytes.len() as u64, once(&bytes[..16]));
        Ok(())
    }

    fn opened(&self, _: SessionId, _: Ino, _: Fh) -> Option<u32> {
        Some(open_flags::RDWR)
    }

    async fn truncate(&self, _: Ino, _: Timestamp) -> Result<()> {
        Ok(())
    }

    fn notify_changed(&self, _: SessionId, _: Ino) {}

    async fn reserve(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn unreserve(&self, _: u64, _: u64) {}
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = poll_once(future.as_mut()) {
            return output;
        }
        thread::yield_now();
    }
}

/// The real coherence closes a file while its host makes the first page of it.
#[test]
fn what_was_answered_is_in_the_volume_when_the_file_is_closed() {
    explore(2, [false, true], || {
        let (_region, plane, control) = formatted();
        let (plane, volume) = (Arc::new(plane), Toy::default());
        let coherence = Coherence::default();
        let caller = Caller::root(SessionId(1));
        let (clock, wall) = (|| Time(0), Timestamp::default);
        let setup = CacheSetup { control, is_dead: Box::new(|| false), clock, wall };
        let cache = coherence.attach(caller.clone(), setup);
        run(coherence.recover(&volume, cache));
        let ask = |request| {
            let (header, payload) = (Header::default(), Payload::None);
            let now = Timestamp::default();
            let ask = Operation { caller: &caller, header: &header, request, payload, now };
            run(coherence.handle(&volume, ask)).unwrap()
        };
        ask(Request::Open { ino: Ino(FILE), flags: open_flags::RDWR });
        let host = Arc::clone(&plane);
        let writer = thread::spawn(move || {
            let bytes = twice(2);
            host.write(FILE, Place::At(0), Source::Memory(&bytes), 1).is_some()
        });
        ask(Request::Release { ino: Ino(FILE), fh: Fh(1), owner: 0 });
        let written = writer.join().unwrap();
        let figures = coherence.figures()[0];
        assert_eq!((figures.dirty, figures.promised), (0, 0));
        assert_eq!(*volume.0.lock().unwrap(), if written { (16, 2) } else { (0, 0) });
        written
    });
}
