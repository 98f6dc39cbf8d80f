use std::sync::atomic::Ordering;

use outboard_base::ledger::Ledger;
use outboard_base::{Ino, Rng};
use outboard_link::Region;
use outboard_link::dma::{Counted, Direct};
use outboard_wire::cache::{Entry, Grant, Lock, NEXT_NONE, Status, Word, record_at};

use super::*;
use crate::policy::replace;

const PAGE: usize = 4096;

/// A cache of 4 buckets of 4 pages and 8 records, with a ledger.
struct Rig {
    region: Arc<Region>,
    ledger: Arc<Ledger>,
    control: Control,
}

fn area(region: &Region) -> Area {
    Area { at: 4096, len: region.len() - 4096 }
}

fn formatted() -> Arc<Region> {
    let len = Geometry::len_for(16, PAGE as u32, 4, 8);
    let region = Region::anonymous(len + 4096);
    let fit = Geometry::fit(area(&region), PAGE as u32, 4, 8, CacheMode::Write).unwrap();
    assert_eq!(fit.total(), 16);
    region.write_from(fit.header_at(0), &fit.header().emit()).unwrap();
    for index in 0..fit.total() {
        let entry = Entry { word: Word::FREE, next: NEXT_NONE, lpn: 0, ino: 0 };
        region.write_from(fit.entry_at(index), &entry.emit()).unwrap();
    }
    region
}

impl Rig {
    fn over(region: Arc<Region>) -> Rig {
        let ledger = Arc::new(Ledger::new());
        let dma = Counted::new(Direct::new(Arc::clone(&region)), Arc::clone(&ledger));
        let policies = Policies { replace: replace::Name::Clock, ..Policies::default() };
        let control = Control::attach(Arc::new(dma), area(&region), policies).unwrap();
        Rig { region, ledger, control }
    }

    fn new() -> Rig {
        Rig::over(formatted())
    }

    fn word(&self, index: u64) -> Word {
        let at = self.control.geometry().entry_at(index);
        Word::parse(self.region.load_u64(at, Ordering::Relaxed).unwrap()).unwrap()
    }

    fn set_word(&self, index: u64, word: Word) {
        let at = self.control.geometry().entry_at(index);
        self.region.store_u64(at, word.emit(), Ordering::Relaxed).unwrap();
    }

    fn fill(&self, ino: u64, page: u64) -> Filled {
        let bytes = [page as u8; PAGE];
        let filled = self.control.fill(Ino(ino), page, &bytes, |_| false, || true).unwrap();
        let [filled] = filled[..] else { panic!("one page, {filled:?}") };
        filled
    }

    fn find(&self, ino: u64) -> Vec<Found> {
        self.control.find(Ino(ino), 0..1 << 20).unwrap()
    }

    /// As the host: writes a page that is there.
    fn write(&self, found: &Found, byte: u8) {
        let at = self.control.geometry().page_at(found.index);
        self.region.write_from(at, &[byte; PAGE]).unwrap();
        self.set_word(found.index, self.word(found.index).unlock(Status::Dirty, true));
    }

    fn dmas(&self, what: impl FnOnce()) -> u64 {
        let before = self.ledger.snapshot().total().ops;
        what();
        self.ledger.snapshot().total().ops - before
    }
}

#[test]
fn a_page_is_filled_found_pulled_and_taken_out() {
    let rig = Rig::new();
    assert_eq!(rig.fill(7, 3), Filled::Done);
    assert_eq!(rig.fill(7, 3), Filled::Present);
    assert_eq!(rig.fill(7, 4), Filled::Done);
    let found = rig.find(7);
    assert_eq!(found.iter().map(|f| f.entry.lpn).collect::<Vec<_>>(), [3, 4]);
    assert!(rig.find(8).is_empty());
    assert!(rig.control.find(Ino(7), 0..3).unwrap().is_empty());
    let mut out = vec![0; PAGE];
    let pulled = rig.control.pull(&found[0], &mut out).unwrap();
    assert!(matches!(pulled, Pulled::Bytes { dirty: false, .. }) && out == [3; PAGE]);
    assert_eq!(rig.control.take_out(&found[0], false), Ok(TakenOut::Free));
    assert_eq!(rig.find(7).len(), 1);
    assert_eq!(rig.control.pull(&found[0], &mut out), Ok(Pulled::Gone));
    let free = rig.region.load_u64(rig.control.geometry().header_at(24), Ordering::Relaxed);
    assert_eq!(free, Ok(15));
}

#[test]
fn what_is_written_again_stays_dirty() {
    let rig = Rig::new();
    rig.fill(7, 3);
    rig.write(&rig.find(7)[0], 9);
    let found = rig.find(7)[0];
    assert!(found.is_dirty());
    assert_eq!(rig.control.take_out(&found, false), Ok(TakenOut::Dirty));
    let mut out = vec![0; PAGE];
    let Pulled::Bytes { version, dirty: true } = rig.control.pull(&found, &mut out).unwrap() else {
        panic!("it is there")
    };
    rig.write(&found, 10);
    assert_eq!(rig.control.cleaned(&found, version), Ok(false));
    let Pulled::Bytes { version, .. } = rig.control.pull(&found, &mut out).unwrap() else {
        panic!("it is there")
    };
    assert!(out == [10; PAGE]);
    assert_eq!(rig.control.cleaned(&found, version), Ok(true));
    assert!(!rig.find(7)[0].is_dirty());
    assert_eq!(rig.control.counts().dirty_again, 1);
}

#[test]
fn a_full_bucket_makes_room_by_clean_pages_only() {
    let rig = Rig::new();
    // Four buckets: every fourth page falls into one.
    (0..4).for_each(|nth| assert_eq!(rig.fill(7, nth * 4), Filled::Done));
    rig.write(&rig.find(7)[0], 1);
    for nth in 4..40 {
        assert_eq!(rig.fill(7, nth * 4), Filled::Done);
        let pages: Vec<u64> = rig.find(7).iter().map(|f| f.entry.lpn).collect();
        assert!(pages.len() == 4 && pages[0] == 0 && pages.contains(&(nth * 4)), "{pages:?}");
    }
    for found in rig.find(7) {
        rig.write(&found, 1);
    }
    assert_eq!(rig.fill(7, 400), Filled::Full);
    assert_eq!(rig.control.make_room_for(Ino(7), 400), Ok(false));
    assert_eq!(rig.control.make_room_for(Ino(7), 401), Ok(true));
}

/// Runs of pages, longer than the table too, against pages filled one by one: what is there is the
/// same, and a page that ends with the file is zero beyond.
#[test]
fn a_run_is_filled_as_its_pages_would_be() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let (all, single) = (Rig::new(), Rig::new());
        for _ in 0..3 {
            let (ino, first) = (7 + rng.below(2), rng.below(6));
            let len = 1 + rng.below(6 * PAGE as u64) as usize;
            let mut bytes = vec![0; len];
            rng.fill(&mut bytes);
            let mut run =
                all.control.fill(Ino(ino), first, &bytes, |_| false, || true).unwrap().into_iter();
            for (page, bytes) in (first..).zip(bytes.chunks(PAGE)) {
                let one = single.control.fill(Ino(ino), page, bytes, |_| false, || true).unwrap();
                assert_eq!(one, [run.next().unwrap()], "seed {seed}, page {page}");
                if one == [Filled::Done] {
                    let found = all.find(ino).into_iter().find(|f| f.entry.lpn == page);
                    // Later pages of a long run may have taken its place.
                    let Some(found) = found else { continue };
                    let mut out = vec![1; PAGE];
                    all.control.pull(&found, &mut out).unwrap();
                    let (bytes, zeros) = (bytes, &out[bytes.len()..]);
                    assert!(out.starts_with(bytes) && zeros.iter().all(|byte| *byte == 0));
                }
            }
            assert!(run.next().is_none());
        }
        let free = |rig: &Rig| {
            rig.region.load_u64(rig.control.geometry().header_at(24), Ordering::Relaxed)
        };
        assert_eq!(free(&all), free(&single), "seed {seed}");
        let pages = |rig: &Rig| {
            let found = rig.control.find_all().unwrap();
            found.iter().map(|f| (f.index, f.entry.ino, f.entry.lpn)).collect::<Vec<_>>()
        };
        assert_eq!(pages(&all), pages(&single), "seed {seed}");
    }
}

/// A host broke all entries of a bucket. They were not seen, so each page of a run went into the
/// bucket behind its own, where nobody looks for it, and the last had none.
#[test]
fn broken_entries_move_no_page_to_another_bucket() {
    let rig = Rig::new();
    for index in rig.control.geometry().bucket(7, 1) {
        let at = rig.control.geometry().entry_at(index);
        rig.region.store_u64(at, u64::MAX, Ordering::Relaxed).unwrap();
    }
    let bytes: Vec<u8> = (0..3 * PAGE).map(|at| (at / PAGE) as u8).collect();
    let fill = || rig.control.fill(Ino(7), 0, &bytes, |_| false, || true).unwrap();
    assert_eq!(fill(), [Filled::Done, Filled::Full, Filled::Done]);
    assert_eq!(fill(), [Filled::Present, Filled::Done, Filled::Present]);
    for page in 0..3 {
        let [found] = rig.control.find(Ino(7), page..page + 1).unwrap()[..] else { panic!() };
        assert!(rig.control.geometry().bucket(7, page).contains(&found.index));
        let mut out = vec![9; PAGE];
        rig.control.pull(&found, &mut out).unwrap();
        assert_eq!(out, [page as u8; PAGE]);
    }
}

#[test]
fn a_stale_fill_leaves_nothing() {
    let rig = Rig::new();
    let filled = rig.control.fill(Ino(7), 0, &[1; 3 * PAGE], |_| false, || false);
    assert_eq!(filled, Ok(vec![Filled::Stale; 3]));
    assert!(rig.control.find_all().unwrap().is_empty());
}

#[test]
fn locks_of_the_dead_are_void_and_those_of_the_living_are_not() {
    let rig = Rig::new();
    rig.fill(7, 0);
    rig.write(&rig.find(7)[0], 5);
    let found = rig.find(7)[0];
    let host = rig.word(found.index).lock(false).unwrap();
    rig.set_word(found.index, host);
    let mut out = vec![0; PAGE];
    assert_eq!(rig.control.pull(&rig.find(7)[0], &mut out), Ok(Pulled::Busy));
    assert_eq!(rig.control.take_out(&rig.find(7)[0], true), Ok(TakenOut::Busy));
    rig.control.void_locks(true).unwrap();
    assert_eq!(rig.word(found.index), host);
    rig.control.void_locks(false).unwrap();
    assert_eq!(rig.word(found.index).lock, Lock::None);
    assert!(rig.find(7)[0].is_dirty());
    // What this side holds, the next life voids as it attaches.
    rig.set_word(found.index, rig.word(found.index).share_by_dpu().unwrap());
    let next = Rig::over(Arc::clone(&rig.region));
    assert_eq!(next.word(found.index).lock, Lock::None);
}

#[test]
fn records_are_granted_frozen_and_read_back() {
    let rig = Rig::new();
    let slot = rig.control.grant(Ino(9), Grant::Write, 100, 5).unwrap();
    let record = rig.control.record(slot, Ino(9)).unwrap().unwrap();
    assert_eq!((record.word.grant, record.size, record.credit), (Grant::Write, 100, 5));
    rig.control.raise_size(slot, 300).unwrap();
    rig.control.raise_size(slot, 200).unwrap();
    rig.control.set_credit(slot, 8).unwrap();
    rig.control.set(slot, Grant::Frozen).unwrap();
    let frozen = rig.control.record(slot, Ino(9)).unwrap().unwrap();
    assert_eq!((frozen.word.grant, frozen.size, frozen.credit), (Grant::Frozen, 300, 8));
    assert!(frozen.word.epoch > record.word.epoch);
    // A host that writes where it must not is neither believed nor followed.
    let at = rig.control.geometry().record_at(slot.0);
    rig.region.store_u64(at + record_at::SIZE, u64::MAX, Ordering::Relaxed).unwrap();
    assert_eq!(rig.control.record(slot, Ino(9)), Ok(None));
    rig.region.store_u64(at + record_at::WORD, 77, Ordering::Relaxed).unwrap();
    rig.control.set(slot, Grant::Free).unwrap();
    let raw = rig.region.load_u64(at, Ordering::Relaxed).unwrap();
    assert_eq!(raw & 7, 0);
    // The next life knows what this one granted.
    rig.control.grant(Ino(10), Grant::Read, 1, 0).unwrap();
    let next = Rig::over(Arc::clone(&rig.region));
    assert_eq!(next.control.recorded().len(), 1);
    assert_eq!(next.control.recorded()[0].0, Ino(10));
}

#[test]
fn a_full_set_names_who_was_used_longest_ago() {
    let rig = Rig::new();
    let granted = |ino| rig.control.grant(Ino(ino), Grant::Read, 0, 0);
    let first = (1..).find(|ino| granted(*ino).is_err()).unwrap();
    let Err(NoRecord::Full(oldest)) = granted(first) else { panic!("it was full") };
    let (_, slot, _) = *rig.control.recorded().iter().find(|r| r.0 == oldest).unwrap();
    rig.control.set(slot, Grant::Free).unwrap();
    assert!(granted(first).is_ok());
}

/// What each step costs on the bus: the table of `docs/internals/cache.md`.
#[test]
fn each_step_has_its_price() {
    let rig = Rig::new();
    // Bucket, lock, identity, count and fence, bucket, page, unlock.
    assert_eq!(rig.dmas(|| assert_eq!(rig.fill(7, 0), Filled::Done)), 7);
    // Pages in a row share all of that but what is each page's own: lock, identity, page, unlock.
    let four = [7; 3 * PAGE + 10];
    let fill = || rig.control.fill(Ino(8), 0, &four, |page| page > 1, || true).unwrap();
    assert_eq!(rig.dmas(|| assert_eq!(fill(), [Filled::Done; 4])), 3 + 4 * 4);
    assert_eq!(rig.control.counts().ahead, 2);
    assert_eq!(rig.dmas(|| assert_eq!(fill(), [Filled::Present; 4])), 1);
    // Present: the bucket alone.
    assert_eq!(rig.dmas(|| assert_eq!(rig.fill(7, 0), Filled::Present)), 1);
    // What is noted: its entries, and that nothing is chained.
    assert_eq!(rig.dmas(|| assert_eq!(rig.control.known(Ino(7)).unwrap().len(), 1)), 1);
    // A range of any length: 64 KiB of entries at a time.
    assert_eq!(rig.dmas(|| assert_eq!(rig.find(7).len(), 1)), 1);
    rig.write(&rig.find(7)[0], 1);
    let found = rig.find(7)[0];
    let mut out = vec![0; PAGE];
    // Lock, identity, page, unlock; then clean.
    assert_eq!(rig.dmas(|| assert!(rig.control.pull(&found, &mut out).is_ok())), 4);
    let version = found.entry.word.version;
    assert_eq!(rig.dmas(|| assert!(rig.control.cleaned(&found, version).is_ok())), 1);
    // Lock, identity, unlock, count.
    let found = rig.find(7)[0];
    assert_eq!(rig.dmas(|| assert!(rig.control.take_out(&found, false).is_ok())), 4);
    assert_eq!(rig.dmas(|| assert!(rig.control.grant(Ino(7), Grant::Read, 0, 0).is_ok())), 2);
}

/// Random bytes anywhere, between steps of every kind: each call ends, none panics, and a cache put
/// in order afterwards works.
#[test]
fn a_hostile_host_is_survived() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let rig = Rig::new();
        let slot = rig.control.grant(Ino(7), Grant::Write, 100, 5).unwrap();
        let meta = rig.control.geometry().page_at(0) - 4096;
        for _ in 0..200 {
            let at = 4096 + rng.below(meta);
            let mut noise = vec![0; 1 + rng.below(16) as usize];
            rng.fill(&mut noise);
            if rng.chance(1, 2) {
                // Nearly right is worse than wrong.
                noise = vec![rng.below(64) as u8];
            }
            rig.region.write_from(at, &noise).unwrap();
            let (ino, page) = (rng.below(9), rng.below(20));
            let mut out = vec![0; PAGE];
            match rng.below(8) {
                0 => _ = rig.fill(ino, page),
                1 => drop(rig.find(ino)),
                2 => rig.control.void_locks(rng.chance(1, 2)).unwrap(),
                3 => _ = rig.control.record(slot, Ino(7)).unwrap(),
                4 => rig.control.raise_size(slot, rng.next_u64()).unwrap(),
                5 => _ = rig.control.make_room_for(Ino(ino), page).unwrap(),
                _ => {
                    for found in rig.control.find_all().unwrap() {
                        rig.control.pull(&found, &mut out).unwrap();
                        rig.control.cleaned(&found, found.entry.word.version).unwrap();
                        rig.control.take_out(&found, rng.chance(1, 2)).unwrap();
                    }
                }
            }
        }
        rig.control.void_locks(true).unwrap();
        rig.control.void_locks(false).unwrap();
        for found in rig.control.find_all().unwrap() {
            rig.control.take_out(&found, true).unwrap();
        }
        assert_eq!(rig.fill(7, 1), Filled::Done, "seed {seed}");
    }
}

#[test]
fn a_cache_that_cannot_be_is_refused() {
    let region = formatted();
    let dma: Arc<dyn Dma> = Arc::new(Direct::new(Arc::clone(&region)));
    let attach = |area| Control::attach(Arc::clone(&dma), area, Policies::default()).map(drop);
    let good = area(&region);
    assert!(attach(good).is_ok());
    let place = Err(CacheAttachError::Geometry(GeometryError::Place));
    assert_eq!(attach(Area { len: good.len + 1, ..good }), place);
    assert_eq!(attach(Area { at: u64::MAX - 4095, ..good }), place);
    let small = attach(Area { len: good.len - 2 * PAGE as u64, ..good });
    assert!(matches!(small, Err(CacheAttachError::Geometry(GeometryError::Small { .. }))));
    region.write_from(good.at, b"nonsense").unwrap();
    assert!(matches!(attach(good), Err(CacheAttachError::Geometry(GeometryError::Header(_)))));
}

/// A DPU side was stopped for longer than its lease, others wrote, and its host went on reading
/// what it had: nobody told it not to.
#[test]
fn a_host_uses_its_cache_until_the_time_that_it_was_told() {
    let rig = Rig::new();
    let geometry = *rig.control.geometry();
    let plane = crate::host::Plane::format(Arc::clone(&rig.region), geometry).unwrap();
    let second = 1_000_000_000;
    let lease = |left: u64| rig.control.lease(|| Some(Duration::from_nanos(left))).unwrap();
    assert!(plane.is_leased(|| panic!("nobody asks for the time")), "a volume of one side");
    lease(9 * second);
    assert!(!plane.is_leased(|| 50 * second), "the DPU side did not know the host's clock");
    lease(9 * second);
    assert!(plane.is_leased(|| 58 * second) && !plane.is_leased(|| 59 * second));
    // It counts from when the clock was told, whatever delays the DPU side.
    lease(second);
    assert!(plane.is_leased(|| 59 * second) && !plane.is_leased(|| 60 * second));
    lease(0);
    assert!(!plane.is_leased(|| 61 * second));
    lease(second);
    assert!(plane.is_leased(|| 61 * second));
    rig.control.lease(|| None).unwrap();
    assert!(plane.is_leased(|| 99 * second));
    let clock = geometry.header_at(header_at::CLOCK);
    rig.region.store_u64(clock, u64::MAX, Ordering::Relaxed).unwrap();
    lease(second);
    assert!(plane.is_leased(|| 99 * second), "a host that lies harms itself");
}
