//! Two attachments write the same blocks, and the DPU side dies again and again.
//!
//! A writer's calls lie in slots and are sent again; a stranger, another attachment, reads a block
//! and writes over it. Each write is a mark of its own. A plain overwrite once carried no replay
//! record: the writer's unanswered write, seen and written over by the stranger before the loss,
//! was done a second time and lay over the newer bytes. What the stranger saw and wrote over must
//! never be seen again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use outboard_base::{Cred, Fh, Ino, Result, Rng, SessionId, Timestamp};
use outboard_kv::mem::{Faults, MemKv};
use outboard_kvfs::check;
use outboard_medium::mem::MemMedium;
use outboard_sim::loopback::Loopback;
use outboard_sim::seeds;
use outboard_volume::{Caller, Payload};
use outboard_wire::file::{Flags, Header, Reply, Request, open_flags};

use crate::simulation::{Files, Volume, assert_repeats, finish, open};

const BLOCK: usize = 8192;
const BLOCKS: u64 = 3;
const STRANGER: SessionId = SessionId(77_777_776);

struct Feud {
    file: (Ino, Fh),
    /// The stranger's handle on it.
    other: Fh,
    rng: Rng,
    marks: u64,
    in_flight: u64,
    stranger: Rc<RefCell<Stranger>>,
}

#[derive(Default)]
struct Stranger {
    busy: bool,
    /// Marks that were written over, after they had been seen or answered, for each block.
    over: Vec<BTreeSet<u64>>,
    own: BTreeSet<u64>,
    /// How often it wrote over what was not its own.
    met: u64,
}

fn block_of(mark: u64) -> Vec<u8> {
    mark.to_le_bytes().repeat(BLOCK / 8)
}

fn mark_of(block: &[u8]) -> u64 {
    let (marks, _) = block.as_chunks::<8>();
    assert!(marks.iter().all(|mark| mark == &marks[0]), "a block of two writes");
    u64::from_le_bytes(marks[0])
}

/// One request of the stranger, to the volume itself.
async fn ask(volume: &Volume, request: Request<'_>, payload: &[u8]) -> Result<(Reply, Vec<u8>)> {
    let caller = Caller::root(STRANGER);
    let (cred, flags, session) = (Cred::root(), Flags::default(), STRANGER);
    let header = Header { cred, flags, session, sequence: 0, lane: 0 };
    let payload = Payload::Bytes(payload.to_vec());
    let now = Timestamp { sec: 3, nsec: 0 };
    let answer = volume.handle(&caller, &header, request, payload, now).await?;
    Ok((answer.reply, answer.payload.bytes().to_vec()))
}

impl Feud {
    fn new(link: &mut Loopback<Files>, volume: &Volume, seed: u64) -> Feud {
        let (name, flags) = (b"feud", open_flags::RDWR);
        let create = Request::Create { parent: Ino::ROOT, name, mode: 0o600, umask: 0, flags };
        let file = match link.call(&Cred::root(), &create, &[]) {
            Ok((Reply::Created(attr, fh), _)) => (attr.ino, fh),
            other => panic!("{other:?}"),
        };
        for block in 0..BLOCKS {
            let offset = block * BLOCK as u64;
            let write = Request::Write { ino: file.0, fh: file.1, offset, flags: 0 };
            link.call(&Cred::root(), &write, &block_of(0)).unwrap();
        }
        let open = Request::Open { ino: file.0, flags };
        let other = match finish(ask(volume, open, &[])) {
            Ok((Reply::Opened(fh), _)) => fh,
            other => panic!("{other:?}"),
        };
        let over = vec![BTreeSet::new(); BLOCKS as usize];
        let stranger = Rc::new(RefCell::new(Stranger { over, ..Stranger::default() }));
        Feud { file, other, rng: Rng::new(seed), marks: 0, in_flight: 0, stranger }
    }

    fn mark(&mut self) -> u64 {
        self.marks += 1;
        self.marks
    }

    fn step(&mut self, link: &mut Loopback<Files>, volume: &Volume) {
        if self.in_flight < 4 && self.rng.chance(1, 8) {
            let ((ino, fh), offset) = (self.file, self.rng.below(BLOCKS) * BLOCK as u64);
            let mark = self.mark();
            let write = Request::Write { ino, fh, offset, flags: 0 };
            self.in_flight += u64::from(link.start(&Cred::root(), &write, &block_of(mark), mark));
        }
        let busy = self.stranger.borrow().busy;
        if !busy && self.rng.chance(1, 8) {
            let (block, mark) = (self.rng.below(BLOCKS), self.mark());
            let (ino, fh, stranger) = (self.file.0, self.other, Rc::clone(&self.stranger));
            let volume = Arc::clone(volume);
            self.stranger.borrow_mut().busy = true;
            link.spawn(Box::pin(async move {
                let offset = block * BLOCK as u64;
                let len = BLOCK as u32;
                let read = Request::Read { ino, fh, offset, len, flags: 0 };
                let seen = mark_of(&ask(&volume, read, &[]).await.unwrap().1);
                assert!(
                    !stranger.borrow().over[block as usize].contains(&seen),
                    "write {seen} of block {block} was written over, and is back"
                );
                let write = Request::Write { ino, fh, offset, flags: 0 };
                ask(&volume, write, &block_of(mark)).await.unwrap();
                let mut stranger = stranger.borrow_mut();
                stranger.over[block as usize].insert(seen);
                stranger.own.insert(mark);
                stranger.met += u64::from(!stranger.own.contains(&seen));
                stranger.busy = false;
            }));
        }
        self.settle(link);
    }

    /// One step of the two sides.
    fn settle(&mut self, link: &mut Loopback<Files>) {
        link.step();
        for (mark, outcome, _) in link.take_answered() {
            assert_eq!(outcome, Ok(Reply::Written(BLOCK as u32)), "write {mark}");
            self.in_flight -= 1;
        }
    }

    /// The next life of the DPU side: what the stranger did in the last one ended with it.
    fn hand_in(&self, volume: &Volume) {
        let ((ino, _), fh) = (self.file, self.other);
        let reclaim = Request::Reclaim { ino, fh, flags: open_flags::RDWR, directory: false };
        finish(ask(volume, reclaim, &[])).unwrap();
        self.stranger.borrow_mut().busy = false;
    }

    fn verify(&self, link: &mut Loopback<Files>) {
        let (ino, fh) = self.file;
        let stranger = self.stranger.borrow();
        for (block, over) in (0u64..).zip(&stranger.over) {
            let offset = block * BLOCK as u64;
            let read = Request::Read { ino, fh, offset, len: BLOCK as u32, flags: 0 };
            let mark = mark_of(&link.call(&Cred::root(), &read, &[]).unwrap().1);
            assert!(!over.contains(&mark), "write {mark} of block {block} is back");
        }
    }
}

/// Calls that were replayed, writes the stranger wrote over, and the trace.
fn simulate(seed: u64) -> (u64, u64, u64) {
    let mut rng = Rng::new(seed);
    let kv = Arc::new(MemKv::new(seed));
    let medium = Arc::new(MemMedium::new(seed));
    kv.set_faults(Faults { delay_polls: rng.below(4), ..Faults::default() });
    let mut volume = open(&kv, &medium);
    let mut link = Loopback::new(Arc::clone(&volume), 2, 8, seed).unwrap();
    let mut feud = Feud::new(&mut link, &volume, seed);
    let crash_one_in = 20 + rng.below(200);
    for _ in 0..3_000 {
        feud.step(&mut link, &volume);
        if rng.chance(1, crash_one_in) {
            link.crash();
            volume = open(&kv, &medium);
            feud.hand_in(&volume);
            link.restart(Arc::clone(&volume)).unwrap().unwrap();
            // Half the time it lives only while things are handed in.
            if rng.chance(1, 2) {
                let volume = Arc::clone(&volume);
                link.spawn(Box::pin(async move { volume.end_grace().await.unwrap() }));
            }
        }
    }
    for _ in 0..1_000_000 {
        if feud.in_flight == 0 && !feud.stranger.borrow().busy {
            break;
        }
        feud.settle(&mut link);
    }
    assert_eq!(feud.in_flight, 0, "the writer hangs");
    feud.verify(&mut link);
    let met = feud.stranger.borrow().met;
    let counted = (link.session().counts().replayed, met, link.trace());
    while !link.is_quiet() {
        link.step();
    }
    drop((link, volume));
    let report = finish(open(&kv, &medium).check(check::Options::default())).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    counted
}

#[test]
fn what_another_attachment_wrote_over_never_comes_back() {
    let runs = seeds::run(0..30, simulate);
    let replayed: u64 = runs.outcomes.iter().map(|(replayed, ..)| replayed).sum();
    let met: u64 = runs.outcomes.iter().map(|(_, met, _)| met).sum();
    let is_enough = replayed > 50 && met > 50;
    assert!(runs.is_alone || is_enough, "{replayed} replays, met {met} times");
}

#[test]
fn equal_seeds_give_equal_traces() {
    seeds::run(0..3, |seed| assert_repeats(seed, simulate));
}
