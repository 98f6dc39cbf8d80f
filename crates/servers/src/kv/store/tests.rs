//! The store over a device whose writes end when the test says so.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use outboard_kv::medium::Buf;

use super::*;

/// Bytes in memory. While it is held, writes of pages wait.
#[derive(Default)]
struct Slow {
    bytes: RefCell<Vec<u8>>,
    is_held: Cell<bool>,
    under_way: RefCell<Vec<u64>>,
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
        let mut bytes = self.bytes.borrow().get(offset..).unwrap_or_default().to_vec();
        bytes.resize(len, 0);
        Ok(bytes)
    }

    async fn write(&self, offset: u64, buf: Buf) -> Result<(), Errno> {
        let at = usize::try_from(offset).unwrap();
        if buf.len() == PAGE {
            assert!(!self.under_way.borrow().contains(&offset), "two pages in one lot");
            self.under_way.borrow_mut().push(offset);
            let ends = || if self.is_held.get() { Poll::Pending } else { Poll::Ready(()) };
            std::future::poll_fn(|_| ends()).await;
            self.under_way.borrow_mut().retain(|other| *other != offset);
        }
        let mut bytes = self.bytes.borrow_mut();
        let end = at + buf.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[at..end].copy_from_slice(&buf);
        Ok(())
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.bytes.borrow().len() as u64)
    }

    async fn flush(&self) -> Result<(), Errno> {
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
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new(fsync: Fsync) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let pages = usize::try_from(MEMORY_PAGES).unwrap();
        let setup = StoreSetup { dir: dir.path().to_owned(), seed: 1, memory: pages * PAGE, fsync };
        let mut opening = Box::pin(async { Store::open(Rc::default(), &setup).await.ok() });
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(store)) = opening.as_mut().poll(&mut cx) else { panic!("it opens") };
        drop(opening);
        Rig { store, works: Vec::new(), _dir: dir }
    }

    /// Goes on for a round, as far as what began has ended.
    fn turn(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(self.store.end_round(&mut self.works).is_ok());
        for mut work in std::mem::take(&mut self.works) {
            match work.as_mut().poll(&mut cx) {
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
            self.turn();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn fill(&mut self, from: u64, pages: u64) {
        for n in from..from + pages * 2 {
            let stored = self.store.put(&n.to_le_bytes(), &[7; PAGE / 2 - 100]);
            assert!(stored.is_ok(), "{n}");
            (0..4).for_each(|_| self.turn());
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
