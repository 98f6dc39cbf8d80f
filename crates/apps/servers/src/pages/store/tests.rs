//! The store of pages over a device that forgets what was not flushed.
//!
//! Goal: power may fail at any moment (amid writes, between them, amid a flush); then every page is
//! a version it had, no older than the last sync answered; who asks for more is told `Older`; and
//! the log since that sync makes every page new again. Method: a script by a seed; operations of
//! the device end when and in the order the seed says; at each step power fails in several ways: of
//! the writes that no flush covers each is there, is not, or is torn at a sector.

use outboard_base::task::poll_once;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::os::fd::BorrowedFd;
use std::task::Poll;
use std::time::Duration;

use outboard_base::Rng;
use outboard_dds::table::Changes;

use super::super::wire::{PAGE_HEAD, lsn_of, parse_answer};
use super::*;

const SECTOR: usize = 512;
const PAGES: u64 = 150;

struct Write {
    number: u64,
    offset: usize,
    bytes: Vec<u8>,
    /// So many flushes had begun when it ended.
    ended: Option<u64>,
}

/// A device: what is certainly there, and what was written since. Operations are numbered, and end
/// when they are told to.
#[derive(Default)]
struct Sim {
    flushed: RefCell<Vec<u8>>,
    writes: RefCell<Vec<Write>>,
    flushes: Cell<u64>,
    begun: Cell<u64>,
    pending: RefCell<Vec<u64>>,
    fails: Cell<bool>,
}

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

fn put(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    image.resize(image.len().max(offset + bytes.len()), 0);
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

impl Sim {
    fn of(image: Vec<u8>) -> Rc<Sim> {
        Rc::new(Sim { flushed: RefCell::new(image), ..Sim::default() })
    }

    fn begin(&self) -> u64 {
        let number = self.begun.get();
        self.begun.set(number + 1);
        self.pending.borrow_mut().push(number);
        number
    }

    /// Until it is told to end.
    async fn end_of(&self, number: u64) {
        let ended = || !self.pending.borrow().contains(&number);
        poll_fn(|_| if ended() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Ends one, if there is one.
    fn end_one(&self, rng: &mut Rng) {
        let mut pending = self.pending.borrow_mut();
        if !pending.is_empty() {
            let n = rng.below(pending.len() as u64);
            pending.swap_remove(index(n));
        }
    }

    /// What power loss leaves now: of what no flush covers all but one part, nothing but one part,
    /// any whole writes, or anything.
    fn after_loss(&self, rng: &mut Rng) -> Vec<u8> {
        let mut image = self.flushed.borrow().clone();
        let writes = self.writes.borrow();
        let (kind, torn) = (rng.below(4), rng.below(writes.len().max(1) as u64));
        for (n, write) in writes.iter().enumerate() {
            let one = n as u64 == torn;
            let (there, cut) = match kind {
                0 => (true, one),
                1 => (one, true),
                2 => (rng.below(2) == 0, false),
                _ => (rng.below(2) == 0, rng.below(2) == 0),
            };
            for (n, sector) in write.bytes.chunks(SECTOR).enumerate() {
                if there && (!cut || rng.below(2) == 0) {
                    put(&mut image, write.offset + n * SECTOR, sector);
                }
            }
        }
        image
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
        let mut bytes = vec![0; len];
        let flushed = self.flushed.borrow();
        let there = flushed.get(from..to.min(flushed.len())).unwrap_or_default();
        bytes[..there.len()].copy_from_slice(there);
        for write in &*self.writes.borrow() {
            let both = write.offset.max(from)..(write.offset + write.bytes.len()).min(to);
            if !both.is_empty() {
                let new = &write.bytes[both.start - write.offset..both.end - write.offset];
                bytes[both.start - from..both.end - from].copy_from_slice(new);
            }
        }
        Ok(bytes)
    }

    async fn write(&self, offset: u64, buf: Buf) -> Result<(), Errno> {
        let number = self.begin();
        let write = Write { number, offset: index(offset), bytes: buf.to_vec(), ended: None };
        self.writes.borrow_mut().push(write);
        self.end_of(number).await;
        if self.fails.get() {
            return Err(Errno::EIO);
        }
        let mut writes = self.writes.borrow_mut();
        let mine = writes.iter_mut().find(|write| write.number == number);
        mine.unwrap().ended = Some(self.flushes.get());
        Ok(())
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.flushed.borrow().len() as u64)
    }

    async fn cut(&self, _: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    async fn flush(&self) -> Result<(), Errno> {
        let number = self.flushes.get();
        self.flushes.set(number + 1);
        self.end_of(self.begin()).await;
        if self.fails.get() {
            return Err(Errno::EIO);
        }
        // What had ended when it began is there for good.
        let mut image = self.flushed.borrow_mut();
        self.writes.borrow_mut().retain(|write| {
            let stays = write.ended.is_none_or(|ended| ended > number);
            if !stays {
                put(&mut image, write.offset, &write.bytes);
            }
            stays
        });
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

type Record = (u64, u64, usize, Vec<u8>);

/// The database: its log, how much of it need not be kept, and every state of every page.
#[derive(Default)]
struct Database {
    log: Vec<Record>,
    synced: usize,
    states: BTreeMap<u64, Vec<(u64, Vec<u8>)>>,
}

impl Database {
    fn newest(&self, page: u64) -> u64 {
        self.states.get(&page).and_then(|states| states.last()).map_or(0, |state| state.0)
    }

    fn contents(&self, page: u64, lsn: u64) -> Vec<u8> {
        let states = self.states.get(&page).map(Vec::as_slice).unwrap_or_default();
        let found = states.iter().find(|state| state.0 == lsn).map(|state| state.1.clone());
        found.unwrap_or_else(|| {
            assert_eq!(lsn, 0, "page {page}: an LSN it never had");
            vec![0; CONTENTS]
        })
    }

    fn write(&mut self, rng: &mut Rng) -> Record {
        let (page, lsn) = (rng.below(PAGES), self.log.len() as u64 + 1);
        let mut data = vec![0; index(rng.below(3000)) + 1];
        rng.fill(&mut data);
        let at = index(rng.below((CONTENTS - data.len()) as u64));
        let mut contents = self.contents(page, self.newest(page));
        contents[at..at + data.len()].copy_from_slice(&data);
        self.states.entry(page).or_default().push((lsn, contents));
        self.log.push((page, lsn, at, data.clone()));
        (page, lsn, at, data)
    }

    fn unwrite(&mut self) {
        let (page, ..) = self.log.pop().unwrap();
        self.states.get_mut(&page).unwrap().pop();
    }

    /// LSN each page has at least, whatever happens.
    fn least(&self, page: u64) -> u64 {
        let synced = self.log[..self.synced].iter().rev();
        synced.into_iter().find(|record| record.0 == page).map_or(0, |record| record.1)
    }
}

/// A store at work.
struct Life {
    sim: Rc<Sim>,
    store: Store<Sim, u64>,
    works: Vec<Work<Event>>,
    tokens: u64,
    answers: BTreeMap<u64, Vec<u8>>,
}

impl Life {
    fn open(image: Vec<u8>, rng: &mut Rng) -> io::Result<Life> {
        Life::with_memory(0, image, rng)
    }

    fn with_memory(memory: usize, image: Vec<u8>, rng: &mut Rng) -> io::Result<Life> {
        let sim = Sim::of(image);
        let store = {
            let mut opening = std::pin::pin!(Store::open(Rc::clone(&sim), memory));
            loop {
                match poll_once(opening.as_mut()) {
                    Poll::Ready(store) => break store?,
                    Poll::Pending => sim.end_one(rng),
                }
            }
        };
        let (works, answers) = (Vec::new(), BTreeMap::new());
        Ok(Life { sim, store, works, tokens: 0, answers })
    }

    /// One operation of the device ends.
    fn step(&mut self, rng: &mut Rng) {
        self.sim.end_one(rng);
        let mut events = Vec::new();
        self.works.retain_mut(|work| match poll_once(work.as_mut()) {
            Poll::Ready(event) => {
                events.push(event);
                false
            }
            Poll::Pending => true,
        });
        events.into_iter().for_each(|event| self.store.on(event, &mut self.works));
        self.store.go_on(&mut self.works);
        self.answers.extend(self.store.take_answers());
    }

    /// The token of the answer; `None` if there is no memory for it.
    fn ask(&mut self, request: Request<'_>) -> Option<u64> {
        let mut out = Vec::new();
        let asked = self.store.ask(&request, &mut out);
        self.tokens += 1;
        match asked {
            Asked::Crowded => return None,
            Asked::Waits => self.store.wait(&request, self.tokens, &mut self.works),
            Asked::Answered => drop(self.answers.insert(self.tokens, out)),
        }
        Some(self.tokens)
    }

    /// Asks until there is an answer.
    fn answer(&mut self, request: Request<'_>, rng: &mut Rng) -> (Status, u64, Vec<u8>) {
        for _ in 0..10_000 {
            if let Some(token) = self.ask(request) {
                while !self.answers.contains_key(&token) {
                    self.step(rng);
                }
                return parsed(&self.answers.remove(&token).unwrap());
            }
            self.step(rng);
        }
        panic!("there is never memory for {request:?}");
    }

    /// Every page is what the database allows; then its log is sent, from the last sync on.
    fn check(&mut self, database: &Database, rng: &mut Rng) {
        for page in 0..PAGES {
            let (status, lsn, data) = self.answer(Request::GetPage { page, lsn: 0 }, rng);
            assert_eq!(status, Status::Done, "page {page} cannot be had");
            assert_eq!(lsn_of(&data, page), Some(lsn));
            assert!(data[PAGE_HEAD..] == database.contents(page, lsn), "page {page} at {lsn}");
            let least = database.least(page);
            assert!(lsn >= least, "page {page} is at {lsn}, and was synced at {least}");
            let newer = self.answer(Request::GetPage { page, lsn: lsn + 1 }, rng);
            assert_eq!((newer.0, newer.1), (Status::Older, lsn));
        }
        for (page, lsn, at, data) in &database.log[database.synced..] {
            let apply = Request::Apply { page: *page, lsn: *lsn, at: *at, data };
            let (status, ..) = self.answer(apply, rng);
            assert!(matches!(status, Status::Done | Status::Applied), "{status:?}");
        }
        for page in 0..PAGES {
            let lsn = database.newest(page);
            let (status, own, data) = self.answer(Request::GetPage { page, lsn }, rng);
            assert_eq!((status, own), (Status::Done, lsn));
            assert!(data[PAGE_HEAD..] == database.contents(page, lsn), "page {page} made new");
        }
    }
}

fn parsed(answer: &[u8]) -> (Status, u64, Vec<u8>) {
    let (status, _, lsn) = parse_answer(answer).unwrap();
    (status, lsn, answer[wire::HEAD..].to_vec())
}

/// What a script waits for.
enum Expected {
    Applied,
    Page(u64, u64),
    Sync(usize),
}

fn script(seed: u64, steps: u64) {
    println!("seed {seed}");
    let (mut rng, mut database) = (Rng::new(seed), Database::default());
    let mut life = Life::open(Vec::new(), &mut rng).unwrap();
    let mut expected: BTreeMap<u64, Expected> = BTreeMap::new();
    let (mut syncs, mut lives) = (0, 0);
    for n in 0..steps {
        let applies = expected.values().any(|what| matches!(what, Expected::Applied));
        match rng.below(100) {
            0..45 => {
                let (page, lsn, at, data) = database.write(&mut rng);
                match life.ask(Request::Apply { page, lsn, at, data: &data }) {
                    Some(token) => drop(expected.insert(token, Expected::Applied)),
                    None => database.unwrite(),
                }
            }
            45..70 => {
                let page = rng.below(PAGES);
                let lsn = rng.below(database.newest(page) + 1);
                if let Some(token) = life.ask(Request::GetPage { page, lsn }) {
                    expected.insert(token, Expected::Page(page, lsn));
                }
            }
            70..72 if !applies => {
                let token = life.ask(Request::Sync).unwrap();
                expected.insert(token, Expected::Sync(database.log.len()));
            }
            _ => {}
        }
        (0..rng.below(4)).for_each(|_| life.step(&mut rng));
        for (token, answer) in std::mem::take(&mut life.answers) {
            let (status, lsn, data) = parsed(&answer);
            assert_eq!(status, Status::Done);
            match expected.remove(&token).unwrap() {
                Expected::Applied => {}
                Expected::Page(page, asked) => {
                    assert!(lsn >= asked, "page {page} at {lsn} is older than {asked}");
                    assert!(data[PAGE_HEAD..] == database.contents(page, lsn), "{page} at {lsn}");
                }
                Expected::Sync(upto) => {
                    database.synced = database.synced.max(upto);
                    syncs += 1;
                }
            }
        }
        if n % 40 == 0 {
            let image = life.sim.after_loss(&mut rng);
            let mut after = Life::open(image, &mut rng).unwrap();
            after.check(&database, &mut rng);
            if rng.below(4) == 0 {
                (life, lives) = (after, lives + 1);
                expected.clear();
            }
        }
    }
    println!("{} records, {syncs} syncs, {lives} lives", database.log.len());
    assert!(syncs > 0 && lives > 0);
}

#[test]
fn power_loss_leaves_versions_no_older_than_the_last_sync() {
    (1..=4).for_each(|seed| script(seed, 1500));
}

/// Power loss amid the write of a page used to leave none: two blocks of it were of two versions,
/// its check was wrong, and it was refused for ever, records for it too.
#[test]
fn a_page_torn_by_power_loss_is_the_version_before_it() {
    let mut rng = Rng::new(1);
    let mut life = Life::open(Vec::new(), &mut rng).unwrap();
    for lsn in 1..=2 {
        let apply =
            Request::Apply { page: 7, lsn, at: 0, data: &[u8::try_from(lsn).unwrap(); 8000] };
        assert_eq!(life.answer(apply, &mut rng).0, Status::Done);
        if lsn == 1 {
            assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
        }
    }
    life.ask(Request::Sync).unwrap();
    while life.sim.writes.borrow().is_empty() {
        life.step(&mut rng);
    }
    let mut image = life.sim.flushed.borrow().clone();
    let write = life.sim.writes.borrow_mut().pop().unwrap();
    put(&mut image, write.offset, &write.bytes[..4096]);
    let mut after = Life::open(image, &mut rng).unwrap();
    let (status, lsn, data) = after.answer(Request::GetPage { page: 7, lsn: 0 }, &mut rng);
    assert_eq!((status, lsn, data[PAGE_HEAD]), (Status::Done, 1, 1));
    let apply = Request::Apply { page: 7, lsn: 2, at: 0, data: &[2; 8000] };
    assert_eq!(after.answer(apply, &mut rng).0, Status::Done);
}

/// What no order of writing can save, a medium that loses both versions: a record that sets all of
/// the page makes it anew, and nothing else does.
#[test]
fn a_damaged_page_is_made_anew_by_a_whole_one() {
    let mut rng = Rng::new(1);
    let mut image = vec![9; index(places::pair(8))];
    image[..PAIR].fill(0);
    let mut life = Life::open(image, &mut rng).unwrap();
    let get = Request::GetPage { page: 7, lsn: 0 };
    let part = Request::Apply { page: 7, lsn: 5, at: 1, data: &[1; CONTENTS - 1] };
    let whole = Request::Apply { page: 7, lsn: 5, at: 0, data: &[1; CONTENTS] };
    for request in [get, part, get] {
        assert_eq!(life.answer(request, &mut rng).0, Status::Failed);
    }
    assert_eq!(life.answer(whole, &mut rng).0, Status::Done);
    assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
    let image = life.sim.after_loss(&mut rng);
    let mut after = Life::open(image, &mut rng).unwrap();
    let (status, lsn, data) = after.answer(get, &mut rng);
    assert_eq!((status, lsn, data[PAGE_HEAD]), (Status::Done, 5, 1));
}

/// A sync that could not be is said to have failed, and so are those after a flush that failed;
/// pages are still served.
#[test]
fn failures_are_told_to_who_syncs() {
    let mut rng = Rng::new(1);
    let mut life = Life::open(Vec::new(), &mut rng).unwrap();
    let apply = |lsn| Request::Apply { page: 1, lsn, at: 0, data: b"x" };
    assert_eq!(life.answer(apply(1), &mut rng).0, Status::Done);
    life.sim.fails.set(true);
    assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Failed, "a write");
    life.sim.fails.set(false);
    assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done, "it is tried again");
    assert_eq!(life.answer(apply(2), &mut rng).0, Status::Done);
    let token = life.ask(Request::Sync).unwrap();
    while life.sim.flushes.get() < 3 {
        life.step(&mut rng);
    }
    life.sim.fails.set(true);
    while !life.answers.contains_key(&token) {
        life.step(&mut rng);
    }
    assert_eq!(parsed(&life.answers[&token]).0, Status::Failed, "a flush");
    life.sim.fails.set(false);
    assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Failed, "for good");
    let (status, lsn, _) = life.answer(Request::GetPage { page: 1, lsn: 2 }, &mut rng);
    assert_eq!((status, lsn), (Status::Done, 2));
}

#[test]
fn a_file_of_something_else_is_not_opened() {
    let Err(error) = Life::open(vec![5; 10_000], &mut Rng::new(1)) else { panic!("it opens") };
    assert!(error.to_string().contains("another data directory"), "{error}");
}

/// Pages that were looked at while as many were being written as may be went behind all others, and
/// some of them again and again: after a fill one in fifty was still newer than the file long after
/// it should have left memory, and was asked of the host instead of the DPU side.
#[test]
fn pages_leave_memory_in_their_turn() {
    let mut rng = Rng::new(1);
    // More than are looked at in one go.
    let (budget, pages) = (16 * WRITES_MAX as u64, 4000);
    let memory = index(budget) * PAGE;
    let mut life = Life::with_memory(memory, Vec::new(), &mut rng).unwrap();
    for page in 0..pages {
        let apply = Request::Apply { page, lsn: page + 1, at: 0, data: &[1; CONTENTS] };
        while life.ask(apply).is_none() {
            life.step(&mut rng);
        }
        // Of a read and a write a page one ends in time: as many are written as may be.
        life.step(&mut rng);
    }
    while !life.works.is_empty() {
        life.step(&mut rng);
    }
    let late = |page: &u64| *page < pages - 4 * budget && life.store.frames[page].is_changed();
    let late: Vec<u64> = life.store.frames.keys().copied().filter(late).collect();
    assert_eq!(late, [0; 0], "they are still newer than the file");
}
