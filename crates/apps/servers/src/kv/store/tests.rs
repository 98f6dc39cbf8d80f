//! The store over a device whose writes end when the test says so.

mod power;

use outboard_base::task::poll_once;
use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::task::Poll;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_medium::Buf;

use super::super::log::Found;
use super::super::lots::Head;
use super::*;

/// Bytes in memory. While it is held, writes of pages wait.
#[derive(Default)]
struct Slow {
    bytes: RefCell<Vec<u8>>,
    is_held: Cell<bool>,
    under_way: RefCell<Vec<u64>>,
    /// Pages whose writes were begun.
    begun: RefCell<HashMap<u64, Buf>>,
    /// One flush in so many takes long.
    slow_flushes: Cell<Option<u64>>,
    flushes: Cell<u64>,
}

impl Slow {
    fn put(&self, offset: u64, bytes: &[u8]) {
        let mut there = self.bytes.borrow_mut();
        let at = usize::try_from(offset).unwrap();
        let end = there.len().max(at + bytes.len());
        there.resize(end, 0);
        there[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn dies(&self, rng: &mut Rng) {
        for (offset, buf) in self.begun.borrow_mut().drain() {
            let blocks = u64::try_from(buf.len() / ALIGN).unwrap();
            let upto = [0, rng.below(blocks), blocks][usize::try_from(rng.below(3)).unwrap()];
            self.put(offset, &buf[..usize::try_from(upto).unwrap() * ALIGN]);
        }
        self.under_way.borrow_mut().clear();
        self.is_held.set(false);
        self.slow_flushes.set(None);
    }
}

impl Device for Slow {
    type Bytes = Vec<u8>;

    fn file(&self) -> u32 {
        0
    }

    fn has_table(&self) -> bool {
        false
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let offset = usize::try_from(offset).unwrap();
        let there = self.bytes.borrow();
        let end = there.len().min(offset + len);
        let mut bytes = there.get(offset..end).unwrap_or_default().to_vec();
        bytes.resize(len, 0);
        Ok(bytes)
    }

    async fn write(&self, offset: u64, buf: Buf) -> Result<(), Errno> {
        if buf.len() == PAGE {
            assert!(!self.under_way.borrow().contains(&offset), "two pages in one lot");
            self.under_way.borrow_mut().push(offset);
            self.begun.borrow_mut().insert(offset, buf);
            let ends = || if self.is_held.get() { Poll::Pending } else { Poll::Ready(()) };
            std::future::poll_fn(|_| ends()).await;
            self.under_way.borrow_mut().retain(|other| *other != offset);
            let buf = self.begun.borrow_mut().remove(&offset).ok_or(Errno::EIO)?;
            self.put(offset, &buf);
        } else {
            self.put(offset, &buf);
        }
        Ok(())
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.bytes.borrow().len() as u64)
    }

    async fn grow(&self, _: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    async fn cut(&self, len: u64) -> Result<(), Errno> {
        let beyond = |at: &u64| at + PAGE64 > len;
        assert!(!self.under_way.borrow().iter().any(beyond), "a page is written there");
        let mut bytes = self.bytes.borrow_mut();
        assert!(len <= bytes.len() as u64, "it is longer");
        bytes.truncate(usize::try_from(len).unwrap());
        Ok(())
    }

    async fn flush(&self) -> Result<(), Errno> {
        self.flushes.set(self.flushes.get() + 1);
        let is_slow = self.slow_flushes.get().is_some_and(|n| self.flushes.get().is_multiple_of(n));
        let mut passes = if is_slow { 300 } else { 0 };
        std::future::poll_fn(|_| {
            passes -= i32::from(passes > 0);
            if passes > 0 { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        Ok(())
    }

    async fn update(&self, _: Changes) -> Result<(), Errno> {
        Ok(())
    }

    fn progress(&self) -> usize {
        0
    }

    fn sleep(&self, _: BorrowedFd<'_>, _: Duration) -> io::Result<()> {
        Ok(())
    }

    fn is_lost(&self) -> bool {
        false
    }
}

/// Pages of the log that memory keeps.
const MEMORY_PAGES: u64 = 4;

/// A store, and what it began.
struct Rig {
    store: Store<Slow>,
    works: Vec<Work>,
    dir: tempfile::TempDir,
}

fn now<T>(future: impl Future<Output = T>) -> T {
    let Poll::Ready(done) = poll_once(std::pin::pin!(future)) else { panic!("it waits") };
    done
}

impl Rig {
    fn new(fsync: Fsync) -> Rig {
        Rig::open(Rc::default(), tempfile::tempdir().unwrap(), fsync)
    }

    fn open(device: Rc<Slow>, dir: tempfile::TempDir, fsync: Fsync) -> Rig {
        let pages = usize::try_from(MEMORY_PAGES).unwrap();
        let setup = StoreSetup { dir: dir.path().to_owned(), seed: 1, memory: pages * PAGE, fsync };
        let store = now(Store::open(device, &setup)).unwrap();
        Rig { store, works: Vec::new(), dir }
    }

    /// It dies as it stands: writes under way are done, half done or not begun by `rng`; and it is
    /// opened again.
    fn dies(self, rng: &mut Rng) -> Rig {
        let Rig { store, works, dir } = self;
        let device = Rc::clone(&store.device);
        drop((store, works));
        device.dies(rng);
        // What extracts say need not be there.
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.to_string_lossy().contains("extracts.") && rng.below(8) == 0 {
                let file = std::fs::File::options().write(true).open(path).unwrap();
                file.set_len(rng.below(file.metadata().unwrap().len() + 1)).unwrap();
            }
        }
        let fsync = Fsync::EverySecond;
        Rig::open(device, dir, fsync)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let value = |record: Record<'_>| record.value().to_vec();
        match self.store.log.find(key) {
            Found::Nothing => None,
            Found::Here(record) => Some(value(record)),
            Found::Cold(address) => now(read_cold(self.store.reader(), address, key.to_vec()))
                .unwrap()
                .map(|bytes| value(Record::parse(&bytes).unwrap())),
        }
    }

    /// Goes on for a round, as far as what began has ended.
    fn pass(&mut self) {
        assert!(self.store.end_round(&mut self.works).is_ok());
        for mut work in std::mem::take(&mut self.works) {
            match poll_once(work.as_mut()) {
                Poll::Ready(event) => assert!(self.store.on(event, &mut self.works).is_ok()),
                Poll::Pending => self.works.push(work),
            }
        }
    }

    /// Goes on until something is so: syncs end on a thread of their own.
    fn until(&mut self, mut is_so: impl FnMut(&Store<Slow>) -> bool) {
        let since = Instant::now();
        while !is_so(&self.store) {
            assert!(since.elapsed() < Duration::from_secs(20), "it never is");
            self.pass();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn fill(&mut self, from: u64, pages: u64) {
        for n in from..from + pages * 2 {
            let stored = self.store.put(&n.to_le_bytes(), &[7; PAGE / 2 - 100]);
            assert!(stored.is_ok(), "{n}");
            (0..4).for_each(|_| self.pass());
        }
    }
}

/// FLUSHALL put the first page that counts behind pages that were being written. As soon as the
/// head said so, their lots were free, and others were written there at the same time: whichever
/// ended last was in the file.
#[test]
fn a_lot_is_not_used_again_while_a_page_is_written_there() {
    let mut rig = Rig::new(Fsync::No);
    // From the start, so that no other lot is free; and fewer than may be under way at once, so
    // that others are written beside them. A page goes when there are as many as memory keeps.
    rig.store.device.is_held.set(true);
    rig.fill(0, MEMORY_PAGES + 1);
    let held = rig.store.device.under_way.borrow().len();
    assert_eq!(held, 2, "pages are being written");
    assert!(rig.store.clear().is_ok());
    let is_durable = |at: &Compaction| at.begin() > 0 && at.durable_begin() == at.begin();
    rig.until(|store| is_durable(&store.compaction));
    // The device would refuse a second page in a lot.
    rig.fill(200, 3);
    rig.store.device.is_held.set(false);
    rig.fill(300, 8);
    rig.until(|store| store.compaction.freeing.is_empty());
}

/// What a page holds goes to the cache table when it was written. With memory for few pages, one
/// with the new record of a key could be written before the one with the old record, which was on
/// its way already: the table had the new value first, and then the old one.
#[test]
fn a_page_waits_for_the_one_whose_records_it_replaces() {
    let mut rig = Rig::new(Fsync::No);
    rig.store.device.is_held.set(true);
    rig.fill(0, MEMORY_PAGES - 1);
    assert!(rig.store.put(b"first of the last page", b"").is_ok());
    rig.pass();
    assert_eq!(rig.store.device.under_way.borrow().len(), 1, "page 0 is being written");
    assert!(rig.store.put(&0u64.to_le_bytes(), b"new").is_ok());
    assert_eq!(rig.store.log.tail_page(), MEMORY_PAGES - 1);
    rig.fill(100, MEMORY_PAGES + 1);
    let under_way: Vec<u64> = rig.store.writing.keys().copied().collect();
    assert_eq!(under_way, [0, 1, 2], "page 3 waits for page 0");
    rig.store.device.is_held.set(false);
    rig.until(|store| store.log.first_page() > MEMORY_PAGES);
    assert_eq!(rig.get(&0u64.to_le_bytes()), Some(b"new".to_vec()));
}

/// With `--fsync always` FLUSHALL was answered before it was synced: it had handed its entry over
/// itself, so that nothing seemed to be owed.
#[test]
fn flushall_is_synced_before_it_is_answered_if_all_is() {
    let mut rig = Rig::new(Fsync::Always);
    assert!(rig.store.put(b"a", b"1").is_ok());
    rig.until(|store| store.is_open(store.gate()));
    assert!(rig.store.clear().is_ok());
    let gate = rig.store.gate();
    assert!(!rig.store.is_open(gate), "its answer waits");
    rig.until(|store| store.is_open(gate));
}

/// A store beside a map, which dies at any step: of commands, of writes of pages, of compaction, of
/// heads, journals and extracts.
#[test]
fn what_was_done_is_there_wherever_it_dies() {
    let mut compacted = 0;
    for seed in 0..3 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(Fsync::EverySecond);
        let mut there: HashMap<u64, Vec<u8>> = HashMap::new();
        for life in 0..16 {
            rig.store.device.slow_flushes.set(Some(3 + rng.below(6)));
            for step in 0..rng.below(300) {
                if step % 32 == 0 {
                    for key in 0..KEYS {
                        let (got, at) = (rig.get(&key.to_le_bytes()), (seed, life, step, key));
                        assert!(got.as_ref() == there.get(&key), "seed, life, step, key: {at:?}");
                    }
                }
                rig.any_command(&mut rng, &mut there, step);
                rig.store.device.is_held.set(rng.below(3) == 0);
                (0..=rng.below(3)).for_each(|_| rig.pass());
                // Syncs end on a thread of their own; some lives go on without them.
                if step % 16 == 0 && life % 2 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            if rng.below(2) == 0 {
                rig.until(|store| !store.compaction.is_at_work());
            }
            compacted += rig.store.about().compacted;
            rig = rig.dies(&mut rng);
        }
    }
    assert!(compacted > 0, "pages were gone through");
}

const KEYS: u64 = 50;

impl Rig {
    fn any_command(&mut self, rng: &mut Rng, there: &mut HashMap<u64, Vec<u8>>, step: u64) {
        // Some are written often, some seldom: these are copied.
        let key = if rng.below(4) == 0 { rng.below(KEYS) } else { rng.below(8) };
        let done = match rng.below(2000) {
            0 => {
                there.clear();
                self.store.clear()
            }
            1..100 => {
                there.remove(&key);
                self.store.delete(&key.to_le_bytes())
            }
            _ => {
                let len = usize::try_from(100 + rng.below(100_000)).unwrap();
                let mut value = vec![7; len];
                value[..8].copy_from_slice(&(step << 32 | key).to_le_bytes());
                there.insert(key, value.clone());
                self.store.put(&key.to_le_bytes(), &value)
            }
        };
        // It is choked only as long as the device says so.
        assert!(done.is_ok(), "{done:?}");
        if self.store.is_choked() {
            self.store.device.is_held.set(false);
            self.until(|store| !store.is_choked());
        }
    }
}

/// Journals lag behind the head. A copy that was done again took the place of the record it was
/// copied from, in a page before the first that counts, and was gone when that page was written.
#[test]
fn a_copy_is_not_done_again_where_it_was_copied_from() {
    let mut rig = Rig::new(Fsync::No);
    rig.fill(0, MEMORY_PAGES + 2);
    assert!(rig.store.log.first_page() > 0, "the first page is in the file");
    // As compaction does, of all that lives in the first page.
    for n in 0..2u64 {
        let value = rig.get(&n.to_le_bytes()).unwrap();
        assert!(rig.store.put(&n.to_le_bytes(), &value).is_ok());
    }
    rig.pass();
    let (at, head) = Head { begin: 1, sequence: rig.store.log.life() + 1 }.emit();
    rig.store.device.put(at, &head);
    assert_eq!(Journal::first_page(rig.dir.path()).unwrap(), Some(0), "it lags");
    let mut rig = rig.dies(&mut Rng::new(1));
    rig.fill(100, MEMORY_PAGES + 4);
    for n in 0..2u64 {
        assert!(rig.get(&n.to_le_bytes()).is_some(), "{n}");
    }
}

/// What was written once was the log's for ever, and nobody else's on the volume.
#[test]
fn what_is_free_at_the_end_of_the_file_is_given_back() {
    let mut rig = Rig::new(Fsync::No);
    rig.fill(0, 60);
    let long = rig.store.device.size().unwrap();
    assert!(long > 50 * PAGE64);
    assert!(rig.store.clear().is_ok());
    rig.until(|store| !store.compaction.is_at_work() && !store.cutting);
    let short = rig.store.device.size().unwrap();
    assert!(short < 20 * PAGE64, "{short} of {long}");
    rig.fill(100, 30);
    let mut rig = rig.dies(&mut Rng::new(2));
    rig.fill(200, 30);
    for n in (100..160).chain(200..260u64) {
        assert!(rig.get(&n.to_le_bytes()).is_some(), "{n}");
    }
}
