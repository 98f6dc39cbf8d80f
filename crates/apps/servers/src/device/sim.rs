//! A device for tests that forgets what no flush covers, fails and tears.
//!
//! Operations are numbered and end when they are told to, in any order. What can go wrong:
//!
//! * power fails: of the writes that no flush covers each is there, is not, or by sectors; and the
//!   file may be as short as it was when it was last flushed;
//! * an operation fails: of a write any sectors are there, and any others come *late*, over what
//!   was written since, until a flush has ended;
//! * a block is bad: what touches it cannot be read, and fails when it is written;
//! * there is no room.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use outboard_base::{Errno, Rng};
use outboard_dds::table::Changes;
use outboard_medium::Buf;

use super::Device;

const SECTOR: usize = 512;
const BLOCK: usize = 4096;

pub(crate) struct Write {
    number: u64,
    pub(crate) offset: usize,
    pub(crate) bytes: Vec<u8>,
    /// The sectors that are there.
    sectors: Vec<bool>,
    /// So many flushes had begun when it ended.
    ended: Option<u64>,
}

/// The device: what is certainly there, and what was written since.
pub(crate) struct Sim {
    pub(crate) flushed: RefCell<Vec<u8>>,
    pub(crate) writes: RefCell<Vec<Write>>,
    /// Parts of writes that failed, to come or not.
    late: RefCell<Vec<Write>>,
    pub(crate) flushes: Cell<u64>,
    begun: Cell<u64>,
    pending: RefCell<Vec<u64>>,
    /// Everything ends at once.
    pub(crate) is_prompt: Cell<bool>,
    /// Everything fails.
    pub(crate) fails: Cell<bool>,
    /// One write in so many fails.
    pub(crate) faulty: Cell<Option<u64>>,
    /// Blocks of the file that are bad.
    pub(crate) bad: RefCell<BTreeSet<usize>>,
    pub(crate) capacity: Cell<u64>,
    len: Cell<usize>,
    rng: RefCell<Rng>,
}

pub(crate) fn index(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

pub(crate) fn put(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    image.resize(image.len().max(offset + bytes.len()), 0);
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl Write {
    fn put(&self, image: &mut Vec<u8>) {
        let sectors = self.bytes.chunks(SECTOR).zip(&self.sectors).enumerate();
        for (n, (sector, _)) in sectors.filter(|(_, (_, there))| **there) {
            put(image, self.offset + n * SECTOR, sector);
        }
    }
}

impl Sim {
    pub(crate) fn of(image: Vec<u8>) -> Rc<Sim> {
        let seed = image.len() as u64;
        Rc::new(Sim {
            len: Cell::new(image.len()),
            flushed: RefCell::new(image),
            writes: RefCell::default(),
            late: RefCell::default(),
            flushes: Cell::new(0),
            begun: Cell::new(0),
            pending: RefCell::default(),
            is_prompt: Cell::new(false),
            fails: Cell::new(false),
            faulty: Cell::new(None),
            bad: RefCell::default(),
            capacity: Cell::new(1 << 40),
            rng: RefCell::new(Rng::new(seed)),
        })
    }

    fn begin(&self) -> u64 {
        let number = self.begun.get();
        self.begun.set(number + 1);
        self.pending.borrow_mut().push(number);
        number
    }

    /// Until it is told to end.
    async fn end_of(&self, number: u64) {
        let ended = || self.is_prompt.get() || !self.pending.borrow().contains(&number);
        poll_fn(|_| if ended() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Ends one, if there is one; and what is late may come.
    pub(crate) fn end_one(&self, rng: &mut Rng) {
        let mut pending = self.pending.borrow_mut();
        if !pending.is_empty() {
            let n = rng.below(pending.len() as u64);
            pending.swap_remove(index(n));
        }
        let mut late = self.late.borrow_mut();
        if !late.is_empty() && rng.below(4) == 0 {
            self.writes.borrow_mut().push(late.swap_remove(0));
        }
    }

    /// Who began what is under way is gone: it ends, and nobody hears of it.
    pub(crate) fn forget(&self) {
        self.pending.borrow_mut().clear();
        for write in &mut *self.writes.borrow_mut() {
            write.ended.get_or_insert_with(|| self.flushes.get());
        }
    }

    /// What power loss leaves now: of what no flush covers all but one part, nothing but one part,
    /// any whole writes, or anything.
    pub(crate) fn after_loss(&self, rng: &mut Rng) -> Vec<u8> {
        let mut image = self.flushed.borrow().clone();
        let flushed = image.len();
        let (writes, late) = (self.writes.borrow(), self.late.borrow());
        let (kind, torn) = (rng.below(4), rng.below(writes.len().max(1) as u64));
        for (n, write) in writes.iter().chain(&*late).enumerate() {
            let one = n as u64 == torn;
            let (there, cut) = match kind {
                0 => (true, one),
                1 => (one, true),
                2 => (rng.below(2) == 0, false),
                _ => (rng.below(2) == 0, rng.below(2) == 0),
            };
            let mut sector = |was: &bool| *was && there && (!cut || rng.below(2) == 0);
            let sectors = write.sectors.iter().map(&mut sector).collect();
            let bytes = write.bytes.clone();
            Write { bytes, sectors, ..*write }.put(&mut image);
        }
        image.resize(if rng.below(3) == 0 { flushed } else { self.len.get() }, 0);
        image
    }

    /// What is there now.
    pub(crate) fn now(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        let flushed = self.flushed.borrow();
        let end = range.end.min(flushed.len());
        let there = flushed.get(range.start..end).unwrap_or_default();
        bytes[..there.len()].copy_from_slice(there);
        for write in &*self.writes.borrow() {
            let sectors = (write.offset..).step_by(SECTOR).zip(write.bytes.chunks(SECTOR));
            for ((at, sector), _) in sectors.zip(&write.sectors).filter(|(_, there)| **there) {
                if range.contains(&at) {
                    put(&mut bytes, at - range.start, sector);
                }
            }
        }
        bytes
    }

    fn is_bad(&self, offset: usize, len: usize) -> bool {
        self.bad.borrow().range(offset / BLOCK..(offset + len).div_ceil(BLOCK)).next().is_some()
    }

    /// Whether the write of this number fails; then parts of it are there, others come late.
    fn tears(&self, number: u64) -> bool {
        let mut writes = self.writes.borrow_mut();
        let write = writes.iter_mut().find(|write| write.number == number).unwrap();
        write.ended = Some(self.flushes.get());
        let mut rng = self.rng.borrow_mut();
        let by_chance = self.faulty.get().is_some_and(|n| rng.below(n) == 0);
        if !self.fails.get() && !by_chance && !self.is_bad(write.offset, write.bytes.len()) {
            return false;
        }
        // Nothing is there and all comes late, all is there already, or anything.
        let kind = rng.below(3);
        let mut some = |all: u64, none: u64| -> Vec<bool> {
            let mut one = || kind == all || (kind != none && rng.below(2) == 0);
            write.sectors.iter().map(|_| one()).collect()
        };
        let (there, late) = (some(1, 0), some(0, 3));
        let late = Write { sectors: late, bytes: write.bytes.clone(), ..*write };
        write.sectors = there;
        self.late.borrow_mut().push(late);
        true
    }
}

impl Device for Sim {
    type Bytes = Vec<u8>;

    fn file(&self) -> u32 {
        0
    }

    fn has_table(&self) -> bool {
        false
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        self.end_of(self.begin()).await;
        let (from, to) = (index(offset), index(offset) + len);
        if self.is_bad(from, len) {
            return Err(Errno::EIO);
        }
        Ok(self.now(from..to))
    }

    async fn write(&self, offset: u64, buf: Buf) -> Result<(), Errno> {
        let (number, end) = (self.begin(), index(offset) + buf.len());
        if end as u64 > self.capacity.get() {
            self.end_of(number).await;
            return Err(Errno::ENOSPC);
        }
        self.len.set(self.len.get().max(end));
        let sectors = vec![true; buf.len().div_ceil(SECTOR)];
        let bytes = buf.to_vec();
        let write = Write { number, offset: index(offset), bytes, sectors, ended: None };
        self.writes.borrow_mut().push(write);
        self.end_of(number).await;
        if self.tears(number) { Err(Errno::EIO) } else { Ok(()) }
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.len.get() as u64)
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        self.end_of(self.begin()).await;
        assert!(len > self.len.get() as u64, "it is as long");
        if len > self.capacity.get() {
            return Err(Errno::ENOSPC);
        }
        self.len.set(index(len));
        Ok(())
    }

    async fn cut(&self, len: u64) -> Result<(), Errno> {
        self.end_of(self.begin()).await;
        self.len.set(self.len.get().min(index(len)));
        let mut image = self.flushed.borrow_mut();
        let left = image.len().min(index(len));
        image.truncate(left);
        Ok(())
    }

    async fn flush(&self) -> Result<(), Errno> {
        let (number, len) = (self.flushes.get(), self.len.get());
        self.flushes.set(number + 1);
        self.end_of(self.begin()).await;
        if self.fails.get() {
            return Err(Errno::EIO);
        }
        // What had ended when it began is there for good.
        let mut image = self.flushed.borrow_mut();
        let is_covered = |write: &Write| write.ended.is_some_and(|ended| ended <= number);
        let (mut writes, mut late) = (self.writes.borrow_mut(), self.late.borrow_mut());
        writes.iter().filter(|write| is_covered(write)).for_each(|write| write.put(&mut image));
        writes.retain(|write| !is_covered(write));
        // What was late has come, or never does.
        let comes = |_: &&Write| self.rng.borrow_mut().below(2) == 0;
        late.iter().filter(|late| is_covered(late)).filter(comes).for_each(|w| w.put(&mut image));
        late.retain(|write| !is_covered(write));
        let len = image.len().max(len.min(self.len.get()));
        image.resize(len, 0);
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
