//! A seeded simulation: clients whose every answer is known, a DPU side that is lost at any step.
//!
//! Each client runs a script of its own (names, blocks, appends, locks), several calls are in
//! flight at once, and the seed chooses who moves next and when the DPU side dies: in the middle of
//! a commit, between a commit and its answer, while files are handed in. The store keeps what was
//! committed, as it does when only processes die. In the end every answer was the one expected, and
//! the volume holds it.

use std::fmt::Debug;
use std::sync::Arc;

pub(crate) use outboard_base::task::run as finish;
use outboard_base::{Cred, Fh, Ino, Result, Rng, Timestamp};
use outboard_kv::mem::{Faults, MemKv};
use outboard_kvfs::{Kvfs, Options, check};
use outboard_medium::mem::MemMedium;
use outboard_sim::loopback::Loopback;
use outboard_sim::seeds;
use outboard_wire::file::{
    Lock, LockKind, LockStyle, Reply, Request, Setattr, open_flags, rename_flags, write_flags,
};

pub(crate) type Files = Kvfs<Arc<MemKv>, Arc<MemMedium>>;
pub(crate) type Volume = Arc<Files>;

const BLOCK: usize = 8192;
const BLOCKS: u64 = 6;
const QUEUES: u16 = 2;
const DEPTH: u16 = 8;
const CLIENTS: u64 = 5;

pub(crate) fn open(kv: &Arc<MemKv>, medium: &Arc<MemMedium>) -> Volume {
    let options = Options { capacity: 64 << 20, segment: 1 << 20, id: 1, ..Options::default() };
    let now = Timestamp { sec: 1, nsec: 0 };
    let volume = Kvfs::open(Arc::clone(kv), Arc::clone(medium), options, now);
    Arc::new(finish(volume).unwrap())
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Create,
    CreateLog,
    UnlinkLog,
    Write { block: u64, seed: u64 },
    Append,
    Mkdir,
    Rename,
    Rmdir,
    Lock,
    Unlock,
    Reopen,
    Close { fh: Fh },
}

struct Client {
    number: u64,
    rng: Rng,
    doing: Doing,
    started: bool,
    file: Option<(Ino, Fh)>,
    log: Option<(Ino, Fh)>,
    /// Already without a name.
    unlinked: bool,
    blocks: Vec<Option<u64>>,
    appends: u64,
    locked: bool,
    steps: u64,
}

impl Client {
    fn new(number: u64, seed: u64) -> Client {
        Client {
            number,
            rng: Rng::new(seed ^ (number << 32)),
            doing: Doing::Nothing,
            started: false,
            file: None,
            log: None,
            unlinked: false,
            blocks: vec![None; BLOCKS as usize],
            appends: 0,
            locked: false,
            steps: 0,
        }
    }

    fn choose(&mut self) -> Doing {
        match (self.file, self.log, self.unlinked) {
            (None, _, _) => return Doing::Create,
            (_, None, _) => return Doing::CreateLog,
            (_, _, false) => return Doing::UnlinkLog,
            _ => {}
        }
        match self.doing {
            Doing::Mkdir => return Doing::Rename,
            Doing::Rename => return Doing::Rmdir,
            _ => {}
        }
        match self.rng.below(10) {
            0..=3 => Doing::Write { block: self.rng.below(BLOCKS), seed: self.rng.next_u64() },
            4 | 5 => Doing::Append,
            6 | 7 => Doing::Mkdir,
            8 if self.locked => Doing::Unlock,
            8 => Doing::Lock,
            _ => Doing::Reopen,
        }
    }

    fn names(&self) -> [String; 4] {
        ["file", "log", "a", "b"].map(|kind| format!("{kind}-{}", self.number))
    }

    /// Starts what it is doing; false if there was no slot.
    fn start(&self, link: &mut Loopback<Files>) -> bool {
        let [file, log, a, b] = self.names();
        let (file, log) = (file.as_bytes(), log.as_bytes());
        let (a, b, parent) = (a.as_bytes(), b.as_bytes(), Ino::ROOT);
        let create = |name, flags| Request::Create { parent, name, mode: 0o644, umask: 0, flags };
        let mut payload = Vec::new();
        let (ino, fh) = self.file.unwrap_or_default();
        let request = match self.doing {
            Doing::Nothing => return true,
            Doing::Create => create(file, open_flags::RDWR | open_flags::EXCL),
            Doing::CreateLog => {
                create(log, open_flags::RDWR | open_flags::EXCL | open_flags::APPEND)
            }
            Doing::UnlinkLog => Request::Unlink { parent, name: log },
            Doing::Write { block, seed } => {
                payload = pattern(seed, BLOCK);
                Request::Write { ino, fh, offset: block * BLOCK as u64, flags: 0 }
            }
            Doing::Append => {
                payload = self.appends.to_le_bytes().to_vec();
                let (ino, fh) = self.log.unwrap();
                Request::Write { ino, fh, offset: 0, flags: write_flags::APPEND }
            }
            Doing::Mkdir => Request::Mkdir { parent, name: a, mode: 0o755, umask: 0 },
            Doing::Rename => {
                let flags = rename_flags::NOREPLACE;
                Request::Rename { parent, name: a, to_parent: parent, to_name: b, flags }
            }
            Doing::Rmdir => Request::Rmdir { parent, name: b },
            Doing::Lock => self.lock(LockKind::Write),
            Doing::Unlock => self.lock(LockKind::Unlock),
            Doing::Reopen => Request::Open { ino, flags: open_flags::RDWR },
            Doing::Close { fh } => Request::Release { ino, fh, owner: 0 },
        };
        link.start(&Cred::root(), &request, &payload, self.number)
    }

    /// Ranges of different clients touch and never overlap: all of one file would wait for each
    /// other.
    fn lock(&self, kind: LockKind) -> Request<'static> {
        let (ino, fh) = self.file.unwrap_or_default();
        let lock = Lock {
            owner: self.number + 1,
            start: self.number * 10,
            end: self.number * 10 + 9,
            kind,
            style: LockStyle::Posix,
            pid: 0,
        };
        Request::Setlk { ino, fh, lock, wait: true, reclaim: false }
    }

    /// The one answer each step can have, and what it means.
    fn answered(&mut self, outcome: Result<Reply>) {
        self.steps += 1;
        let next = match (self.doing, outcome) {
            (Doing::Create, Ok(Reply::Created(attr, fh))) => {
                self.file = Some((attr.ino, fh));
                Doing::Nothing
            }
            (Doing::CreateLog, Ok(Reply::Created(attr, fh))) => {
                self.log = Some((attr.ino, fh));
                Doing::Nothing
            }
            (Doing::UnlinkLog, Ok(Reply::Removed(Some(ino)))) => {
                assert_eq!(Some(ino), self.log.map(|(ino, _)| ino));
                self.unlinked = true;
                Doing::Nothing
            }
            (Doing::Write { block, seed }, Ok(Reply::Written(len))) => {
                assert_eq!(len as usize, BLOCK);
                self.blocks[block as usize] = Some(seed);
                Doing::Nothing
            }
            (Doing::Append, Ok(Reply::Written(8))) => {
                self.appends += 1;
                Doing::Nothing
            }
            (Doing::Mkdir, Ok(Reply::Entry(_))) => Doing::Mkdir,
            (Doing::Rename, Ok(Reply::Removed(None))) => Doing::Rename,
            (Doing::Rmdir, Ok(Reply::Removed(_))) => Doing::Nothing,
            (Doing::Lock, Ok(Reply::Empty)) => {
                self.locked = true;
                Doing::Nothing
            }
            (Doing::Unlock, Ok(Reply::Empty)) => {
                self.locked = false;
                Doing::Nothing
            }
            (Doing::Reopen, Ok(Reply::Opened(fh))) => {
                // The new handle takes over; the old one is closed.
                let (ino, old) = self.file.unwrap();
                self.file = Some((ino, fh));
                self.doing = Doing::Close { fh: old };
                self.started = false;
                return;
            }
            (Doing::Close { .. }, Ok(Reply::Empty)) => Doing::Nothing,
            (doing, outcome) => panic!("client {}: {doing:?} -> {outcome:?}", self.number),
        };
        self.doing = next;
        self.doing = self.choose();
        self.started = false;
    }

    fn verify(&self, link: &mut Loopback<Files>) {
        let mut read = |(ino, fh): (Ino, Fh), offset, len| {
            let request = Request::Read { ino, fh, offset, len, flags: 0 };
            link.call(&Cred::root(), &request, &[]).unwrap().1
        };
        for (block, seed) in (0u64..).zip(&self.blocks) {
            let Some(seed) = seed else { continue };
            let found = read(self.file.unwrap(), block * BLOCK as u64, BLOCK as u32);
            assert!(found == pattern(*seed, BLOCK), "client {} block {block}", self.number);
        }
        let mut expected = Vec::new();
        (0..self.appends).for_each(|number| expected.extend(number.to_le_bytes()));
        if let Some(log) = self.log {
            assert!(read(log, 0, 1 << 20) == expected, "client {}: appends", self.number);
        }
    }
}

/// Starts overlapping writes without waiting: the later one must be what remains, replays or not.
struct Racer {
    file: (Ino, Fh),
    rng: Rng,
    /// What the file must hold when nothing is in flight.
    model: Vec<u8>,
    in_flight: u64,
    next: u64,
}

const RACER: u64 = 1_000;
const RACE: u64 = 4_000;

impl Racer {
    fn new(link: &mut Loopback<Files>, seed: u64) -> Racer {
        let name = b"racer";
        let flags = open_flags::RDWR;
        let create = Request::Create { parent: Ino::ROOT, name, mode: 0o600, umask: 0, flags };
        let file = match link.call(&Cred::root(), &create, &[]) {
            Ok((Reply::Created(attr, fh), _)) => (attr.ino, fh),
            other => panic!("{other:?}"),
        };
        Racer { file, rng: Rng::new(seed), model: Vec::new(), in_flight: 0, next: RACER }
    }

    fn start(&mut self, link: &mut Loopback<Files>) {
        let (ino, fh) = self.file;
        if self.rng.chance(1, 8) {
            let size = self.rng.below(RACE);
            let set = Setattr { size: Some(size), ..Setattr::default() };
            if link.start(&Cred::root(), &Request::Setattr { ino, fh, set }, &[], self.next) {
                self.model.resize(size as usize, 0);
                self.next += 1;
                self.in_flight += 1;
            }
            return;
        }
        let offset = self.rng.below(RACE);
        let data = pattern(self.rng.next_u64(), 1 + self.rng.below(RACE - offset) as usize);
        let request = Request::Write { ino, fh, offset, flags: 0 };
        if link.start(&Cred::root(), &request, &data, self.next) {
            let end = offset as usize + data.len();
            self.model.resize(self.model.len().max(end), 0);
            self.model[offset as usize..end].copy_from_slice(&data);
            self.next += 1;
            self.in_flight += 1;
        }
    }

    fn verify(&self, link: &mut Loopback<Files>) {
        let (ino, fh) = self.file;
        let request = Request::Read { ino, fh, offset: 0, len: 1 << 20, flags: 0 };
        let (_, found) = link.call(&Cred::root(), &request, &[]).unwrap();
        assert!(found == self.model, "an older write lies over a newer one");
    }
}

/// How many calls were replayed, and the trace of the run.
fn simulate(seed: u64) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let kv = Arc::new(MemKv::new(seed));
    let medium = Arc::new(MemMedium::new(seed));
    kv.set_faults(Faults { delay_polls: rng.below(4), ..Faults::default() });
    let mut link = Loopback::new(open(&kv, &medium), QUEUES, DEPTH, seed).unwrap();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(number, seed)).collect();
    let mut racer = Racer::new(&mut link, seed);
    for client in &mut clients {
        client.doing = client.choose();
    }
    let crash_one_in = 20 + rng.below(400);
    for _ in 0..4_000 {
        if racer.in_flight < 4 && rng.chance(1, 16) {
            racer.start(&mut link);
        }
        work(&mut link, &mut clients, &mut racer);
        if rng.chance(1, 50) {
            link.lose_events();
        }
        if rng.chance(1, crash_one_in) {
            lose_and_return(&mut link, &mut rng, &kv, &medium, &mut clients, &mut racer);
        }
    }
    // Heal: everybody comes to the end of what it is doing.
    let goal: Vec<u64> = clients.iter().map(|client| client.steps + 1).collect();
    for _ in 0..1_000_000 {
        if clients.iter().zip(&goal).all(|(client, goal)| client.steps >= *goal) {
            break;
        }
        work(&mut link, &mut clients, &mut racer);
    }
    for (client, goal) in clients.iter().zip(goal) {
        assert!(client.steps >= goal, "client {} hangs in {:?}", client.number, client.doing);
    }
    // And to rest.
    for _ in 0..1_000_000 {
        if clients.iter().all(|client| !client.started) && racer.in_flight == 0 {
            break;
        }
        link.step();
        answer(&mut link, &mut clients, &mut racer);
    }
    assert_eq!(racer.in_flight, 0, "the racer hangs");
    racer.verify(&mut link);
    for client in &clients {
        assert!(!client.started, "client {} hangs in {:?}", client.number, client.doing);
    }
    for client in &clients {
        client.verify(&mut link);
    }
    while !link.is_quiet() {
        link.step();
    }
    let outcome = (link.session().counts().replayed, link.trace());
    drop(link);
    let report = finish(open(&kv, &medium).check(check::Options::default())).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    outcome
}

fn work(link: &mut Loopback<Files>, clients: &mut [Client], racer: &mut Racer) {
    for client in clients.iter_mut().filter(|client| !client.started) {
        client.started = client.start(link);
    }
    link.step();
    answer(link, clients, racer);
}

fn answer(link: &mut Loopback<Files>, clients: &mut [Client], racer: &mut Racer) {
    for (tag, outcome, _) in link.take_answered() {
        if tag >= RACER {
            assert!(outcome.is_ok(), "the racer: {outcome:?}");
            racer.in_flight -= 1;
        } else {
            clients[tag as usize].answered(outcome);
        }
    }
}

fn lose_and_return(
    link: &mut Loopback<Files>,
    rng: &mut Rng,
    kv: &Arc<MemKv>,
    medium: &Arc<MemMedium>,
    clients: &mut [Client],
    racer: &mut Racer,
) {
    link.crash();
    // Calls go on being started while nobody is there.
    for _ in 0..rng.below(20) {
        work(link, clients, racer);
    }
    let volume = open(kv, medium);
    link.restart(Arc::clone(&volume)).unwrap().unwrap();
    let mut left = 1_000_000;
    while !link.take_handed_in() {
        if rng.chance(1, 2_000) {
            return lose_and_return(link, rng, kv, medium, clients, racer);
        }
        work(link, clients, racer);
        left -= 1;
        assert!(left > 0, "it is never said that all is handed in");
    }
    link.spawn(Box::pin(async move { volume.end_grace().await.unwrap() }));
}

#[test]
fn whatever_is_lost_each_call_is_answered_once_and_rightly() {
    let runs = seeds::run(0..40, simulate);
    let replayed: u64 = runs.outcomes.iter().map(|(replayed, _)| replayed).sum();
    assert!(replayed > 100 || runs.is_alone, "losses hit nothing: {replayed} replays");
}

/// What a seed comes to, the same twice. Each in a thread of its own: the loopback's time begins
/// with its thread.
pub(crate) fn assert_repeats<T: PartialEq + Debug + Send>(seed: u64, simulate: fn(u64) -> T) {
    let run = || std::thread::scope(|scope| scope.spawn(|| simulate(seed)).join().unwrap());
    assert_eq!(run(), run());
}

#[test]
fn equal_seeds_give_equal_traces() {
    seeds::run(0..6, |seed| assert_repeats(seed, simulate));
    assert_ne!(simulate(1).1, simulate(2).1);
}
