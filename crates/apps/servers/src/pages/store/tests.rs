//! The store of pages over a device that forgets what was not flushed.
//!
//! Goal: power may fail at any moment (amid writes, between them, amid a flush); then every page is
//! a version it had, no older than the last sync answered; who asks for more is told `Older`; and
//! the log since that sync makes every page new again. The same where writes fail, tear and come
//! late, where a block goes bad, and where the device is full. Method: a script by a seed;
//! operations of the device end when and in the order the seed says; at each step power fails in
//! several ways ([`crate::device::sim`]).

use outboard_base::task::poll_once;
use std::collections::{BTreeMap, BTreeSet};
use std::task::Poll;

use outboard_base::Rng;

use super::super::places::{Layout, PAIR64, SLOTS, entries};
use super::super::wire::{PAGE_HEAD, lsn_of, parse_answer};
use super::*;
use crate::device::sim::{Sim, index, put};

const PAGES: u64 = 150;

/// A log record, and who sent it.
struct Record {
    page: u64,
    lsn: u64,
    at: usize,
    data: Vec<u8>,
    conn: u64,
    /// It need not be kept.
    synced: bool,
}

impl Record {
    fn request(&self) -> Request<'_> {
        Request::Apply { page: self.page, lsn: self.lsn, at: self.at, data: &self.data }
    }
}

/// The database: its log, and every state of every page.
#[derive(Default)]
struct Database {
    log: Vec<Record>,
    states: BTreeMap<u64, Vec<(u64, Vec<u8>)>>,
    /// Pages of which the device may have lost a version for good.
    hurt: BTreeSet<u64>,
}

/// Numbers of pages lie as far from one another as they can.
const APART: u64 = wire::PAGE_MAX / PAGES;

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

    /// One that can be had.
    fn any_page(&self, rng: &mut Rng) -> u64 {
        let any = (0..).map(|_| rng.below(PAGES) * APART);
        any.into_iter().find(|page| !self.hurt.contains(page)).unwrap()
    }

    fn write(&mut self, page: u64, rng: &mut Rng) -> &Record {
        let lsn = self.log.len() as u64 + 1;
        let mut data = vec![0; index(rng.below(3000)) + 1];
        rng.fill(&mut data);
        let at = index(rng.below((CONTENTS - data.len()) as u64));
        let mut contents = self.contents(page, self.newest(page));
        contents[at..at + data.len()].copy_from_slice(&data);
        self.states.entry(page).or_default().push((lsn, contents));
        self.log.push(Record { page, lsn, at, data, conn: rng.below(3), synced: false });
        self.log.last().unwrap()
    }

    fn unwrite(&mut self) {
        let record = self.log.pop().unwrap();
        self.states.get_mut(&record.page).unwrap().pop();
    }

    /// LSN each page has at least, whatever happens.
    fn least(&self, page: u64) -> u64 {
        let synced = self.log.iter().rev().filter(|record| record.synced);
        synced.into_iter().find(|record| record.page == page).map_or(0, |record| record.lsn)
    }
}

/// A connection that is gone when something ends.
const GONE: u64 = 99;

/// A store at work.
struct Life {
    sim: Rc<Sim>,
    store: Store<Sim, u64>,
    works: Vec<Work<Event>>,
    /// Who asks.
    conn: u64,
    tokens: u64,
    answers: BTreeMap<u64, Vec<u8>>,
}

impl Life {
    fn open(image: Vec<u8>, rng: &mut Rng) -> io::Result<Life> {
        Life::with_memory(0, Sim::of(image), rng)
    }

    fn with_memory(memory: usize, sim: Rc<Sim>, rng: &mut Rng) -> io::Result<Life> {
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
        Ok(Life { sim, store, works, conn: 0, tokens: 0, answers })
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
        for event in events {
            self.store.on(event, &mut |conn| conn != GONE, &mut self.works);
        }
        self.store.make_room(rng.below(8) == 0, &mut self.works);
        self.store.go_on(&mut self.works);
        self.answers.extend(self.store.take_answers().into_iter().map(|(who, out)| (who.1, out)));
    }

    /// The token of the answer; `None` if there is no memory for it.
    fn ask(&mut self, request: Request<'_>) -> Option<u64> {
        let mut out = Vec::new();
        let asked = self.store.ask(&request, self.conn, &mut out);
        self.tokens += 1;
        let who = (self.conn, self.tokens);
        match asked {
            Asked::Crowded => return None,
            Asked::Waits => self.store.wait(&request, who, &mut self.works),
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

    fn answer_to(&mut self, conn: u64, request: Request<'_>, rng: &mut Rng) -> Status {
        self.conn = conn;
        self.answer(request, rng).0
    }

    /// Every page is what the database allows; then its log is sent, from the last sync on.
    fn check(&mut self, database: &Database, rng: &mut Rng) {
        let hurt = &database.hurt | &self.hurt();
        for page in (0..PAGES).map(|n| n * APART) {
            let (status, lsn, data) = self.answer(Request::GetPage { page, lsn: 0 }, rng);
            let is_hurt = hurt.contains(&page);
            if is_hurt && status == Status::Failed {
                continue;
            }
            assert_eq!(status, Status::Done, "page {page} cannot be had");
            assert_eq!(lsn_of(&data, page), Some(lsn));
            assert!(data[PAGE_HEAD..] == database.contents(page, lsn), "page {page} at {lsn}");
            let least = database.least(page);
            assert!(is_hurt || lsn >= least, "page {page} is at {lsn}, and was synced at {least}");
            let newer = self.answer(Request::GetPage { page, lsn: lsn + 1 }, rng);
            assert_eq!((newer.0, newer.1), (Status::Older, lsn));
        }
        for record in database.log.iter().filter(|record| !record.synced) {
            let (status, ..) = self.answer(record.request(), rng);
            let is_taken = matches!(status, Status::Done | Status::Applied);
            assert!(is_taken || hurt.contains(&record.page), "{status:?}");
        }
        for page in (0..PAGES).map(|n| n * APART) {
            let lsn = database.newest(page);
            let (status, own, data) = self.answer(Request::GetPage { page, lsn }, rng);
            if status != Status::Done && hurt.contains(&page) {
                continue;
            }
            assert_eq!((status, own), (Status::Done, lsn), "page {page}");
            assert!(data[PAGE_HEAD..] == database.contents(page, lsn), "page {page} made new");
        }
    }

    /// A block of the file goes bad: where pages were written, or anywhere.
    fn spoil(&self, rng: &mut Rng) {
        let blocks = self.sim.size().unwrap() / 4096;
        let block = if rng.below(2) == 0 { rng.below(blocks) } else { rng.below(blocks.min(600)) };
        self.sim.bad.borrow_mut().insert(index(block));
    }

    /// Pages in whose slot there is a bad block.
    fn hurt(&self) -> BTreeSet<u64> {
        let is_bad = |page: &u64| {
            let pair = self.store.slots.pair(*page).map(|pair| index(pair) / 4096);
            let blocks = pair.map(|first| first..first + PAIR / 4096).unwrap_or_default();
            self.sim.bad.borrow().range(blocks).next().is_some()
        };
        (0..PAGES).map(|n| n * APART).filter(is_bad).collect()
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
    Sync(u64, usize),
}

/// One in so many writes.
const FAULTY: u64 = 6;

/// What goes wrong beside power.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// One write in some fails; by the seed there is room to move to, or none.
    Writes,
    /// A block goes bad now and then.
    Blocks,
}

/// A life, and what it was asked.
struct Script {
    life: Life,
    database: Database,
    expected: BTreeMap<u64, Expected>,
    fault: Fault,
    syncs: u64,
    failed_syncs: usize,
    lives: u64,
}

impl Script {
    fn begin(&mut self, rng: &mut Rng) {
        let applies = self.expected.values().any(|what| matches!(what, Expected::Applied));
        match rng.below(100) {
            0..45 => {
                let page = self.database.any_page(rng);
                let record = self.database.write(page, rng);
                self.life.conn = record.conn;
                match self.life.ask(record.request()) {
                    Some(token) => drop(self.expected.insert(token, Expected::Applied)),
                    None => self.database.unwrite(),
                }
            }
            45..70 => {
                let page = self.database.any_page(rng);
                let lsn = rng.below(self.database.newest(page) + 1);
                if let Some(token) = self.life.ask(Request::GetPage { page, lsn }) {
                    self.expected.insert(token, Expected::Page(page, lsn));
                }
            }
            70..73 if !applies => {
                self.life.conn = rng.below(3);
                let token = self.life.ask(Request::Sync).unwrap();
                let sync = Expected::Sync(self.life.conn, self.database.log.len());
                self.expected.insert(token, sync);
            }
            _ => {}
        }
    }

    fn take_answers(&mut self) {
        for (token, answer) in std::mem::take(&mut self.life.answers) {
            let (status, lsn, data) = parsed(&answer);
            let expected = self.expected.remove(&token).unwrap();
            if status == Status::Failed && self.fault == Fault::Writes {
                assert!(matches!(expected, Expected::Sync(..)));
                self.failed_syncs += 1;
                continue;
            }
            assert_eq!(status, Status::Done);
            match expected {
                Expected::Applied => {}
                Expected::Page(page, asked) => {
                    assert!(lsn >= asked, "page {page} at {lsn} is older than {asked}");
                    let contents = self.database.contents(page, lsn);
                    assert!(data[PAGE_HEAD..] == contents, "{page} at {lsn}");
                }
                Expected::Sync(conn, upto) => {
                    let all = self.database.log[..upto].iter_mut();
                    let is_spoken_for =
                        |record: &&mut Record| self.fault != Fault::Writes || record.conn == conn;
                    all.filter(is_spoken_for).for_each(|record| record.synced = true);
                    self.syncs += 1;
                }
            }
        }
    }

    /// Power fails; sometimes the life after that is gone on with.
    fn power_fails(&mut self, rng: &mut Rng) {
        let sim = Sim::of(self.life.sim.after_loss(rng));
        *sim.bad.borrow_mut() = self.life.sim.bad.borrow().clone();
        let mut after = Life::with_memory(0, sim, rng).unwrap();
        after.check(&self.database, rng);
        if rng.below(4) == 0 {
            after.sim.capacity.set(self.life.sim.capacity.get());
            self.life = after;
            self.database.hurt.extend(self.life.hurt());
            self.life.sim.faulty.set((self.fault == Fault::Writes).then_some(FAULTY));
            self.lives += 1;
            self.expected.clear();
        }
    }
}

/// How many syncs failed, or pages were hurt.
fn script(seed: u64, steps: u64, fault: Fault) -> usize {
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut life = Life::open(Vec::new(), &mut rng).unwrap();
    let (mut database, expected) = (Database::default(), BTreeMap::new());
    if fault == Fault::Writes && seed.is_multiple_of(2) {
        life.sim.capacity.set(Layout::NEW.bytes(u32::try_from(PAGES).unwrap()));
        for page in (0..PAGES).map(|n| n * APART) {
            let record = database.write(page, &mut rng);
            assert_eq!(life.answer(record.request(), &mut rng).0, Status::Done);
        }
    }
    life.sim.faulty.set((fault == Fault::Writes).then_some(FAULTY));
    let mut script =
        Script { life, database, expected, fault, syncs: 0, failed_syncs: 0, lives: 0 };
    for n in 0..steps {
        script.begin(&mut rng);
        (0..rng.below(4)).for_each(|_| script.life.step(&mut rng));
        script.take_answers();
        if fault == Fault::Blocks && rng.below(400) == 0 {
            script.life.spoil(&mut rng);
            script.database.hurt.extend(script.life.hurt());
        }
        if n % 40 == 0 {
            script.power_fails(&mut rng);
        }
    }
    let Script { database, syncs, failed_syncs, lives, .. } = script;
    let (records, hurt) = (database.log.len(), database.hurt.len());
    println!("{records} records, {syncs} syncs, {failed_syncs} failed, {lives} lives, {hurt} hurt");
    assert!(syncs > 0 && lives > 0);
    failed_syncs + hurt
}

#[test]
fn power_loss_leaves_versions_no_older_than_the_last_sync() {
    for seed in 1..=4 {
        script(seed, 1500, Fault::None);
    }
}

/// The device of this test failed whole or not at all. A write that fails may have torn what was
/// there, and parts of it may come later, over what was written to the same place by a second try:
/// a page that was synced was torn then.
#[test]
fn writes_that_fail_tear_or_come_late_lose_nothing_that_was_synced() {
    let failed: usize = (1..=4).map(|seed| script(seed, 1500, Fault::Writes)).sum();
    assert!(failed > 0, "some syncs must fail");
}

/// A page whose newest version could not be read was taken to be the one before it, without a
/// word, and records were applied to that.
#[test]
fn a_bad_block_hurts_the_page_that_lies_there_and_nobody_else() {
    let hurt: usize = (1..=6).map(|seed| script(seed, 1500, Fault::Blocks)).sum();
    assert!(hurt > 0, "some blocks must be pages'");
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
    let mut life = Life::open(Vec::new(), &mut rng).unwrap();
    let first = Request::Apply { page: 7, lsn: 3, at: 0, data: b"first" };
    assert_eq!(life.answer(first, &mut rng).0, Status::Done);
    assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
    let mut image = life.sim.after_loss(&mut rng);
    put(&mut image, index(Layout::NEW.slot(0)), &[9; PAIR]);
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
    let flushes = life.sim.flushes.get();
    while life.sim.flushes.get() == flushes {
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
    let mut life = Life::with_memory(memory, Sim::of(Vec::new()), &mut rng).unwrap();
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

fn apply(page: u64, lsn: u64) -> Request<'static> {
    Request::Apply { page, lsn, at: 0, data: b"x" }
}

/// One record for page 15500 took 249 MiB: a page lay at its number, and what was before it was
/// put aside. And one for a page far beyond the device was answered, could never be written, and
/// failed the sync of everybody for ever.
#[test]
fn a_page_costs_its_slot_whatever_its_number() {
    let mut rng = Rng::new(1);
    let mut life = Life::open(Vec::new(), &mut rng).unwrap();
    life.sim.capacity.set(Layout::NEW.bytes(3));
    for page in [15_500, 2_000_000_000, wire::PAGE_MAX] {
        assert_eq!(life.answer(apply(page, 1), &mut rng).0, Status::Done);
    }
    assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
    let image = life.sim.after_loss(&mut rng);
    assert_eq!(image.len() as u64, Layout::NEW.bytes(3));
    let mut after = Life::open(image, &mut rng).unwrap();
    for page in [15_500, 2_000_000_000, wire::PAGE_MAX] {
        let (status, lsn, data) = after.answer(Request::GetPage { page, lsn: 1 }, &mut rng);
        assert_eq!((status, lsn, data[PAGE_HEAD]), (Status::Done, 1, b'x'));
    }
    // What was never written costs nothing, to ask for it neither.
    let before = after.sim.size().unwrap();
    for page in 0..500 {
        let (status, lsn, data) = after.answer(Request::GetPage { page, lsn: 0 }, &mut rng);
        assert_eq!((status, lsn, lsn_of(&data, page)), (Status::Done, 0, Some(0)));
        assert_eq!(after.answer(apply(page, 0), &mut rng).0, Status::Applied);
    }
    assert_eq!((after.store.frames.len(), after.sim.size().unwrap()), (3, before));
}

/// A record for which there was no room was answered, and everybody's sync failed from then on.
#[test]
fn a_full_device_refuses_new_pages_and_takes_them_when_there_is_room() {
    let mut rng = Rng::new(1);
    let mut life = Life::open(Vec::new(), &mut rng).unwrap();
    life.sim.capacity.set(Layout::NEW.bytes(40));
    for page in 0..40 {
        assert_eq!(life.answer(apply(page * 77, 1), &mut rng).0, Status::Done);
    }
    // Several at once, and requests behind them.
    let refused = [apply(5000, 1), Request::GetPage { page: 5000, lsn: 0 }, apply(6000, 1)];
    let tokens = refused.map(|request| life.ask(request).unwrap());
    while tokens.iter().any(|token| !life.answers.contains_key(token)) {
        life.step(&mut rng);
    }
    let answers = tokens.map(|token| parsed(&life.answers.remove(&token).unwrap()).0);
    assert_eq!(answers, [Status::Full, Status::Done, Status::Full]);
    assert_eq!(life.answer(apply(77, 5), &mut rng).0, Status::Done, "a page that exists");
    assert_eq!(life.answer_to(9, Request::Sync, &mut rng), Status::Done);
    life.sim.capacity.set(Layout::NEW.bytes(41));
    assert_eq!(life.answer(apply(7000, 1), &mut rng).0, Status::Done, "there is room for one");
    assert_eq!(life.answer(apply(8000, 1), &mut rng).0, Status::Full);
    life.sim.capacity.set(Layout::NEW.bytes(3000));
    for page in 0..2000 {
        assert_eq!(life.answer(apply(page * 77 + 1, 1), &mut rng).0, Status::Done);
    }
    assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
    let mut after = Life::open(life.sim.after_loss(&mut rng), &mut rng).unwrap();
    for page in 0..2000 {
        let page = page * 77 + 1;
        assert_eq!(after.answer(Request::GetPage { page, lsn: 1 }, &mut rng).0, Status::Done);
    }
}

/// A page that could not be written failed the sync of everybody, whoever had written it.
#[test]
fn a_page_that_cannot_be_written_fails_the_sync_of_its_writers_alone() {
    let mut rng = Rng::new(1);
    let mut life = Life::open(Vec::new(), &mut rng).unwrap();
    // No room to move to.
    life.sim.capacity.set(Layout::NEW.bytes(2));
    for (conn, page) in [(1, 7), (2, 8), (3, 7)] {
        assert_eq!(life.answer_to(conn, apply(page, conn), &mut rng), Status::Done);
    }
    life.sim.bad.borrow_mut().insert(index(Layout::NEW.slot(0)) / 4096);
    for _ in 0..3 {
        for (conn, status) in
            [(2, Status::Done), (1, Status::Failed), (4, Status::Done), (3, Status::Failed)]
        {
            life.conn = conn;
            let token = life.ask(Request::Sync).unwrap();
            while !life.answers.contains_key(&token) {
                life.step(&mut rng);
            }
            let answer = parse_answer(&life.answers[&token]).unwrap();
            let page = if status == Status::Failed { (7, 3) } else { (0, 0) };
            assert_eq!(answer, (status, page.0, page.1), "connection {conn}");
        }
    }
    assert_eq!(life.answer_to(GONE, apply(7, 9), &mut rng), Status::Done);
    assert_eq!(life.answer_to(2, Request::Sync, &mut rng), Status::Failed, "who else is told?");
    life.sim.bad.borrow_mut().clear();
    for conn in [2, 1, 3] {
        assert_eq!(life.answer_to(conn, Request::Sync, &mut rng), Status::Done);
    }
}

/// A page that cannot be written where it lies goes elsewhere, and is found there.
#[test]
fn a_page_leaves_a_bad_place() {
    let mut rng = Rng::new(1);
    let mut life = Life::open(Vec::new(), &mut rng).unwrap();
    for lsn in 1..=6 {
        assert_eq!(life.answer(apply(7, lsn), &mut rng).0, Status::Done);
        assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
        if lsn % 2 == 0 {
            // Where it is to be written next: over the older of two versions.
            let pair = index(life.store.slots.pair(7).unwrap());
            life.sim.bad.borrow_mut().insert(pair / 4096);
        }
    }
    let sim = Sim::of(life.sim.after_loss(&mut rng));
    *sim.bad.borrow_mut() = life.sim.bad.borrow().clone();
    let mut after = Life::with_memory(0, sim, &mut rng).unwrap();
    let (status, lsn, _) = after.answer(Request::GetPage { page: 7, lsn: 6 }, &mut rng);
    assert_eq!((status, lsn), (Status::Done, 6));
}

/// A write that failed came late: over what a second try had written to the same place, which was
/// flushed then, and answered.
#[test]
fn a_place_is_not_written_again_before_what_failed_there_is_settled() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut life = Life::open(Vec::new(), &mut rng).unwrap();
        life.sim.capacity.set(Layout::NEW.bytes(1));
        for lsn in 1..=2 {
            assert_eq!(life.answer(apply(7, lsn), &mut rng).0, Status::Done);
            life.sim.faulty.set((lsn == 2).then_some(1));
            let synced = if lsn == 2 { Status::Failed } else { Status::Done };
            assert_eq!(life.answer(Request::Sync, &mut rng).0, synced);
        }
        life.sim.faulty.set(None);
        assert_eq!(life.answer(apply(7, 3), &mut rng).0, Status::Done);
        assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
        (0..rng.below(20)).for_each(|_| life.step(&mut rng));
        let mut after = Life::open(life.sim.after_loss(&mut rng), &mut rng).unwrap();
        let (status, lsn, _) = after.answer(Request::GetPage { page: 7, lsn: 3 }, &mut rng);
        assert_eq!((status, lsn), (Status::Done, 3), "seed {seed}");
    }
}

/// The newest version of a page could not be read any more. The one before it was taken for it, and
/// the next record applied to that: a page was made that never was.
#[test]
fn records_are_not_applied_to_a_version_that_may_be_an_old_one() {
    let mut rng = Rng::new(1);
    for same_life in [false, true] {
        let mut life = Life::open(Vec::new(), &mut rng).unwrap();
        for lsn in 1..=2 {
            let at = usize::try_from(lsn).unwrap();
            let apply = Request::Apply { page: 7, lsn, at, data: b"y" };
            assert_eq!(life.answer(apply, &mut rng).0, Status::Done);
            assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
        }
        if same_life {
            // It leaves memory.
            for page in 100..100 + 4 * WRITES_MAX as u64 {
                assert_eq!(life.answer(apply(page, 1), &mut rng).0, Status::Done);
            }
            while life.store.frames.contains_key(&7) {
                life.step(&mut rng);
            }
        } else {
            life = Life::open(life.sim.after_loss(&mut rng), &mut rng).unwrap();
        }
        let second = index(Layout::NEW.slot(0)) + PAGE;
        life.sim.bad.borrow_mut().insert(second / 4096);
        assert_eq!(life.answer(Request::GetPage { page: 7, lsn: 2 }, &mut rng).0, Status::Older);
        let (status, lsn, _) = life.answer(Request::GetPage { page: 7, lsn: 1 }, &mut rng);
        assert_eq!((status, lsn), (Status::Done, 1));
        assert_eq!(life.answer(apply(7, 1), &mut rng).0, Status::Applied);
        assert_eq!(life.answer(apply(7, 3), &mut rng).0, Status::Failed);
        assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
        let whole = Request::Apply { page: 7, lsn: 3, at: 0, data: &[1; CONTENTS] };
        assert_eq!(life.answer(whole, &mut rng).0, Status::Done);
        assert_eq!(life.answer(apply(7, 4), &mut rng).0, Status::Done);
        assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
    }
}

/// A directory that cannot be read, or could not be written, loses nobody's page, and what was not
/// read of it is given to nobody.
#[test]
fn a_lost_directory_is_made_up_for_by_the_pages() {
    let mut rng = Rng::new(1);
    for is_unreadable in [false, true] {
        let mut life = Life::open(Vec::new(), &mut rng).unwrap();
        let pages = 0..u64::from(SLOTS) + 100;
        for page in pages.clone() {
            assert_eq!(life.answer(apply(page * APART / 9, 1), &mut rng).0, Status::Done);
        }
        assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
        let mut image = life.sim.after_loss(&mut rng);
        let at = index(Layout::NEW.directory(0));
        let named = entries(0, &image[at..at + 4096]).filter(|(_, page)| page.is_some()).count();
        assert_eq!(named, 512);
        if !is_unreadable {
            put(&mut image, at + 1000, &[0; 700]);
        }
        let sim = Sim::of(image);
        sim.bad.borrow_mut().extend(is_unreadable.then_some(at / 4096));
        let mut after = Life::with_memory(0, sim, &mut rng).unwrap();
        for page in pages {
            let (page, lsn) = (page * APART / 9, 1);
            assert_eq!(after.answer(Request::GetPage { page, lsn }, &mut rng).0, Status::Done);
        }
        assert_eq!(after.answer(apply(5, 9), &mut rng).0, Status::Done);
        assert_eq!(after.answer(Request::Sync, &mut rng).0, Status::Done);
    }
}

/// A data directory of the release before, in which a page lay at its number: the file is gone on
/// with, nothing moves, and pages beyond its end find places behind it.
#[test]
fn a_dense_file_of_the_release_before_is_gone_on_with() {
    // Page 0 with two versions, page 2 with one, page 1 never written; 8 KiB pages.
    let mut image = vec![0; 4 * PAIR];
    let head = b"OBPAGES2\x00\x20\x00\x00\x50\xce\xbb\xcf";
    put(&mut image, 0, head);
    for (at, page, lsn) in [(PAIR, 0, 5), (PAIR + PAGE, 0, 6), (3 * PAIR, 2, 7)] {
        let mut bytes = vec![u8::try_from(lsn).unwrap(); PAGE];
        wire::seal(&mut bytes, page, lsn);
        put(&mut image, at, &bytes);
    }
    let mut rng = Rng::new(1);
    for kill in [true, false] {
        let mut life = Life::open(image, &mut rng).unwrap();
        for (page, lsn) in [(0, 6), (1, 0), (2, 7)] {
            let answer = life.answer(Request::GetPage { page, lsn: 0 }, &mut rng);
            assert_eq!(
                (answer.0, answer.1),
                (Status::Done, lsn + 10 * u64::from(!kill && lsn > 0))
            );
        }
        if kill {
            for (page, lsn) in [(0, 16), (2, 17), (1 << 30, 18), (3, 19)] {
                assert_eq!(life.answer(apply(page, lsn), &mut rng).0, Status::Done);
            }
            assert_eq!(life.answer(Request::Sync, &mut rng).0, Status::Done);
        } else {
            for (page, lsn) in [(1 << 30, 18), (3, 19)] {
                let answer = life.answer(Request::GetPage { page, lsn }, &mut rng);
                assert_eq!((answer.0, answer.2[PAGE_HEAD]), (Status::Done, b'x'));
            }
            let end = Layout { base: 4 * PAIR64 }.bytes(SLOTS);
            assert_eq!(life.sim.size().unwrap(), end, "two pages more take two slots");
        }
        image = life.sim.after_loss(&mut rng);
    }
}
