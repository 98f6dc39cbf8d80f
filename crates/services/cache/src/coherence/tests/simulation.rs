//! Many actors on several hosts, one file: whatever is interleaved and whoever dies, each reads
//! what it wrote.
//!
//! Goal: no lost write, no torn read, no stale page. Method: each actor owns stripes of the file
//! that lie side by side in the same pages, so all of them share every page and none its bytes. It
//! writes and reads its stripes in its host's cache where that lets it, through [`Coherence`] where
//! not, and knows what must come back. A seed chooses who moves: an idle actor, a request under
//! way, the maintenance; between any two DMAs other actors may read and write in their caches.
//! Hosts die (some holding locks), the DPU side dies with everything under way. A write that was
//! under way then may have happened or not; all others must have.
//!
//! `OUTBOARD_SEED=n` runs one seed alone, `OUTBOARD_SEEDS=n` so many.

use crate::policy::{DIRTY_MAX, flush, replace};
use outboard_base::Rng;
use outboard_kv::mem::Faults;
use outboard_kvfs::check;

use super::*;

const STRIPE: usize = 700;
const ACTORS: usize = 5;
const STRIPES: usize = 10;

/// What a stripe may hold.
#[derive(Clone, Default)]
struct Stripe(Vec<Vec<u8>>);

#[derive(Clone)]
enum Doing {
    Open,
    Write(usize, Vec<u8>),
    Read(usize),
    Stat,
    Sync,
    Close,
}

struct Actor {
    number: usize,
    host: usize,
    fh: Option<Fh>,
    stripes: Vec<Stripe>,
    doing: Option<(Doing, Asked)>,
    done: u64,
}

impl Actor {
    fn offset(&self, stripe: usize) -> u64 {
        ((stripe * ACTORS + self.number) * STRIPE) as u64
    }

    /// The bytes must be what some write left; from now on they are nothing else.
    fn check(&mut self, stripe: usize, found: &[u8], how: &str) {
        let number = self.number;
        let Some(stripe_now) = self.stripes.get_mut(stripe) else { return };
        if stripe_now.0.is_empty() {
            return;
        }
        let known = stripe_now.0.iter().find(|bytes| bytes.as_slice() == found).cloned();
        let Some(known) = known else {
            panic!(
                "actor {number}, stripe {stripe}, {how}: {} bytes nobody wrote ({:?} for {:?})",
                found.len(),
                found.get(..4),
                stripe_now.0.iter().map(|b| b.get(..4)).collect::<Vec<_>>()
            )
        };
        stripe_now.0 = vec![known];
    }
}

struct World {
    kv: Arc<MemKv>,
    medium: Arc<MemMedium>,
    volume: Volume,
    coherence: Arc<Coherence>,
    hosts: Vec<Host>,
    ino: Ino,
    actors: Vec<Actor>,
    /// Pages of each cache: fewer than the file has, or more.
    pages: u64,
    rng: Rng,
    policies: Policies,
    next_session: u64,
    /// Whether a round of the maintainer is asked for, if somebody maintains.
    maintained: Option<Arc<AtomicBool>>,
    /// The maintainer's round and other work of the DPU side's own.
    works: Vec<Pin<Box<dyn Future<Output = ()>>>>,
    hits: u64,
    /// Hosts whose caches are still being written back after their death.
    parting: Rc<Cell<usize>>,
}

/// A coherence of small batches, so that a flush has several under way.
fn coherence(maintained: Option<&Arc<AtomicBool>>) -> Arc<Coherence> {
    let coherence = Coherence { batch: 2 * PAGE as usize, ..Coherence::default() };
    if let Some(asked) = maintained.cloned() {
        coherence.set_maintainer(move || asked.store(true, Ordering::SeqCst));
    }
    Arc::new(coherence)
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let (kv, medium) = (Arc::new(MemKv::new(seed)), Arc::new(MemMedium::new(seed)));
        kv.set_faults(Faults { delay_polls: rng.below(4), ..Faults::default() });
        let volume = open(&kv, &medium);
        let pick = |rng: &mut Rng, of: usize| rng.below(of as u64) as usize;
        let policies = Policies {
            replace: replace::Name::ALL[pick(&mut rng, replace::Name::ALL.len())],
            prefetch: prefetch::Name::ALL[pick(&mut rng, prefetch::Name::ALL.len())],
            flush: flush::Name::ALL[pick(&mut rng, flush::Name::ALL.len())],
            dirty: 1 + rng.below(u64::from(DIRTY_MAX)) as u8,
        };
        let maintained = rng.chance(1, 2).then(Arc::default);
        let coherence = coherence(maintained.as_ref());
        let (many, pages) = (1 + rng.below(2), if rng.chance(1, 2) { 8 } else { 64 });
        let hosts = (1..=many).map(|session| Host::new(session, pages)).collect();
        let actor = |number| Actor {
            number,
            host: number % many as usize,
            fh: None,
            stripes: vec![Stripe::default(); STRIPES],
            doing: None,
            done: 0,
        };
        let mut world = World {
            kv,
            medium,
            volume,
            coherence,
            hosts,
            ino: Ino::ROOT,
            actors: (0..ACTORS).map(actor).collect(),
            pages,
            rng,
            policies,
            next_session: many + 1,
            maintained,
            works: Vec::new(),
            hits: 0,
            parting: Rc::default(),
        };
        let maker = Caller::root(SessionId(99));
        let (parent, name) = (Ino::ROOT, b"f".as_slice());
        let create = Request::Create { parent, name, mode: 0o644, umask: 0, flags: RDWR };
        match finish(ask(&world.coherence, &world.volume, &maker, create, Vec::new())) {
            Ok((Reply::Created(attr, _), _)) => world.ino = attr.ino,
            other => panic!("{other:?}"),
        }
        (0..world.hosts.len()).for_each(|host| world.attach(host));
        world.settle();
        world
    }

    fn attach(&mut self, host: usize) {
        let Some(host) = self.hosts.get(host) else { return };
        let cache = self.coherence.attach(host.caller.clone(), host.setup(self.policies));
        let (coherence, volume) = (Arc::clone(&self.coherence), Arc::clone(&self.volume));
        self.works.push(Box::pin(async move { coherence.recover(&*volume, cache).await }));
    }

    /// Begins a round of the maintainer, if one was asked for.
    fn tend_if_asked(&mut self) -> bool {
        let asked =
            self.maintained.as_ref().is_some_and(|asked| asked.swap(false, Ordering::SeqCst));
        if asked {
            let (coherence, volume) = (Arc::clone(&self.coherence), Arc::clone(&self.volume));
            self.works.push(Box::pin(async move { _ = coherence.maintain(&*volume).await }));
        }
        asked
    }

    /// Everything under way comes to its end.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.works.is_empty() {
                self.tend_if_asked();
            }
            let mut works = std::mem::take(&mut self.works);
            works.retain_mut(|work| poll(work).is_none());
            self.works = works;
            for at in 0..ACTORS {
                let Some((doing, mut asked)) = self.actors[at].doing.take() else { continue };
                match poll(&mut asked) {
                    Some(outcome) => self.answered(at, doing, outcome),
                    None => self.actors[at].doing = Some((doing, asked)),
                }
            }
            if self.works.is_empty() && self.actors.iter().all(|actor| actor.doing.is_none()) {
                return;
            }
        }
        panic!("something never ends");
    }

    /// An idle actor does something, in its cache alone if it must not wait.
    fn begin(&mut self, at: usize, cached_only: bool) {
        let ino = self.ino;
        let World { actors, hosts, rng, .. } = self;
        let Some(actor) = actors.get_mut(at).filter(|actor| actor.doing.is_none()) else { return };
        let Some(host) = hosts.get(actor.host) else { return };
        let stripe = rng.below(STRIPES as u64) as usize;
        let offset = actor.offset(stripe);
        let Some(fh) = actor.fh else {
            if !cached_only {
                let flags = if rng.chance(1, 5) { 0 } else { RDWR };
                self.ask(at, Doing::Open, Request::Open { ino, flags }, Vec::new());
            }
            return;
        };
        match rng.below(100) {
            0..40 => {
                let mut bytes = vec![0; STRIPE];
                rng.fill(&mut bytes);
                if host.write(ino, Place::At(offset), &bytes) {
                    actor.stripes[stripe] = Stripe(vec![bytes]);
                    actor.done += 1;
                    self.hits += 1;
                } else if !cached_only {
                    host.plane.begin_change(ino.0);
                    let write = Request::Write { ino, fh, offset, flags: 0 };
                    self.ask(at, Doing::Write(stripe, bytes.clone()), write, bytes);
                }
            }
            40..85 => match host.read(ino, offset, STRIPE) {
                Some(found) => {
                    actor.check(stripe, &found, "cached");
                    actor.done += 1;
                    self.hits += 1;
                }
                None if cached_only => {}
                None => {
                    let read = Request::Read { ino, fh, offset, len: STRIPE as u32, flags: 0 };
                    self.ask(at, Doing::Read(stripe), read, Vec::new());
                }
            },
            _ if cached_only => {}
            85..90 => self.ask(at, Doing::Stat, Request::Getattr { ino, fh }, Vec::new()),
            90..94 => {
                let sync = Request::Fsync { ino, fh, data_only: false };
                self.ask(at, Doing::Sync, sync, Vec::new());
            }
            _ => self.ask(at, Doing::Close, Request::Release { ino, fh, owner: 0 }, Vec::new()),
        }
    }

    fn ask(&mut self, at: usize, doing: Doing, request: Request<'static>, payload: Vec<u8>) {
        let caller = &self.hosts[self.actors[at].host].caller;
        let asked = ask(&self.coherence, &self.volume, caller, request, payload);
        self.actors[at].doing = Some((doing, asked));
    }

    fn answered(&mut self, at: usize, doing: Doing, outcome: Result<(Reply, Vec<u8>)>) {
        let ino = self.ino;
        let actor = &mut self.actors[at];
        actor.done += 1;
        match (doing, outcome) {
            (Doing::Open, Ok((Reply::Opened(fh), _))) => actor.fh = Some(fh),
            (Doing::Write(stripe, bytes), Ok((Reply::Written(len), _))) => {
                assert_eq!(len as usize, STRIPE);
                actor.stripes[stripe] = Stripe(vec![bytes]);
                self.hosts[actor.host].plane.end_change(ino.0);
            }
            // A handle that only reads.
            (Doing::Write(..), Err(Errno::EBADF)) => {
                self.hosts[actor.host].plane.end_change(ino.0);
            }
            (Doing::Read(stripe), Ok((Reply::Data(_), found))) => {
                actor.check(stripe, &found, "through");
            }
            (Doing::Stat, Ok((Reply::Attr(attr), _))) => {
                let last = (0..STRIPES).rev().find(|at| !actor.stripes[*at].0.is_empty());
                let end = last.map_or(0, |last| actor.offset(last) + STRIPE as u64);
                assert!(attr.size >= end, "actor {at}: size {} below {end}", attr.size);
            }
            (Doing::Sync, Ok(_)) => {}
            (Doing::Close, Ok(_)) => actor.fh = None,
            (_, outcome) => panic!("actor {at}: {outcome:?}"),
        }
    }

    /// Whatever an actor had under way is gone: it may have happened.
    fn abandon(&mut self, at: usize) {
        let actor = &mut self.actors[at];
        if let Some((Doing::Write(stripe, bytes), _)) = actor.doing.take() {
            let stripe = &mut actor.stripes[stripe];
            if stripe.0.is_empty() {
                // It may not be there at all.
                return;
            }
            stripe.0.push(bytes);
        }
        actor.fh = None;
    }

    /// A host dies, perhaps while it copies; another takes its place.
    fn host_dies(&mut self) {
        let at = self.rng.below(self.hosts.len() as u64) as usize;
        // What changes the volume runs to its end, as in the service.
        self.settle();
        for actor in self.actors.iter_mut().filter(|actor| actor.host == at) {
            actor.fh = None;
        }
        let session = self.next_session;
        self.next_session += 1;
        let dead = std::mem::replace(&mut self.hosts[at], Host::new(session, self.pages));
        let geometry = dead.plane.geometry();
        for index in 0..geometry.total() {
            let at = geometry.entry_at(index);
            let word = dead.region.load_u64(at, Ordering::SeqCst).unwrap();
            let locked = Word::parse(word).unwrap().lock(false);
            // The bytes are not touched here: a torn write would be of whoever was under way.
            if let Some(locked) = locked.filter(|w| w.status != Status::Free)
                && self.rng.chance(1, 8)
            {
                dead.region.store_u64(at, locked.emit(), Ordering::SeqCst).unwrap();
            }
        }
        dead.dead.store(true, Ordering::SeqCst);
        let (coherence, volume) = (Arc::clone(&self.coherence), Arc::clone(&self.volume));
        let parting = Rc::clone(&self.parting);
        parting.set(parting.get() + 1);
        self.works.push(Box::pin(async move {
            coherence.detach(&*volume, dead.caller.attachment).await;
            volume.detach(dead.caller.attachment);
            parting.set(parting.get() - 1);
        }));
        self.attach(at);
    }

    /// The DPU side dies, and with it everything under way; hosts go on in their caches meanwhile.
    /// Not while it writes back what a dead host left: then both would have died.
    fn dpu_dies(&mut self) {
        if self.parting.get() > 0 {
            return;
        }
        self.works.clear();
        for at in 0..ACTORS {
            if matches!(self.actors[at].doing, Some((Doing::Write(..), _))) {
                self.hosts[self.actors[at].host].plane.end_change(self.ino.0);
            }
            let fh = self.actors[at].fh;
            self.abandon(at);
            self.actors[at].fh = fh;
        }
        for _ in 0..self.rng.below(20) {
            let at = self.rng.below(ACTORS as u64) as usize;
            self.begin(at, true);
        }
        self.volume = open(&self.kv, &self.medium);
        self.coherence = coherence(self.maintained.as_ref());
        self.coherence.expect(self.hosts.iter().map(|host| host.caller.attachment));
        (0..ACTORS).for_each(|at| self.actors[at].fh = None);
        (0..self.hosts.len()).for_each(|host| self.attach(host));
    }
}

fn step(world: &Rc<RefCell<World>>) {
    let mut w = world.borrow_mut();
    if w.works.is_empty() && !w.tend_if_asked() && w.rng.chance(1, 10) {
        let (coherence, volume) = (Arc::clone(&w.coherence), Arc::clone(&w.volume));
        w.works.push(Box::pin(async move { _ = coherence.maintain(&*volume).await }));
    }
    let busy: Vec<usize> = (0..ACTORS).filter(|at| w.actors[*at].doing.is_some()).collect();
    match w.rng.below(3) {
        0 => {
            let at = w.rng.below(ACTORS as u64) as usize;
            w.begin(at, false);
        }
        1 if !w.works.is_empty() => {
            let works = w.works.len() as u64;
            let at = w.rng.below(works) as usize;
            let mut work = w.works.swap_remove(at);
            drop(w);
            if poll(&mut work).is_none() {
                world.borrow_mut().works.push(work);
            }
        }
        _ if !busy.is_empty() => {
            let at = busy[w.rng.below(busy.len() as u64) as usize];
            let Some((doing, mut asked)) = w.actors[at].doing.take() else { return };
            // Nobody begins for it while it is being polled.
            w.actors[at].doing = Some((Doing::Sync, Box::pin(std::future::pending())));
            drop(w);
            let outcome = poll(&mut asked);
            let mut w = world.borrow_mut();
            w.actors[at].doing = None;
            match outcome {
                Some(outcome) => w.answered(at, doing, outcome),
                None => w.actors[at].doing = Some((doing, asked)),
            }
        }
        _ => {}
    }
}

fn simulate(seed: u64) -> u64 {
    let world = Rc::new(RefCell::new(World::new(seed)));
    let weak = Rc::downgrade(&world);
    BETWEEN.set(Some(Rc::new(move || {
        let Some(world) = weak.upgrade() else { return };
        let Ok(mut world) = world.try_borrow_mut() else { return };
        if world.rng.chance(1, 3) {
            let at = world.rng.below(ACTORS as u64) as usize;
            world.begin(at, true);
        }
    })));
    let deaths = 200 + world.borrow_mut().rng.below(800);
    for _ in 0..6_000 {
        step(&world);
        let mut w = world.borrow_mut();
        if w.rng.chance(1, deaths) {
            if w.rng.chance(1, 2) { w.host_dies() } else { w.dpu_dies() }
        }
    }
    // Heal: everybody comes to an end, and everything is there, whoever reads it.
    BETWEEN.set(None);
    let mut w = world.borrow_mut();
    w.settle();
    let ino = w.ino;
    for host in 0..w.hosts.len() {
        let caller = w.hosts[host].caller.clone();
        let open =
            ask(&w.coherence, &w.volume, &caller, Request::Open { ino, flags: 0 }, Vec::new());
        let Ok((Reply::Opened(fh), _)) = finish(open) else { panic!("it does not open") };
        for actor in 0..ACTORS {
            for stripe in 0..STRIPES {
                let offset = w.actors[actor].offset(stripe);
                let len = STRIPE as u32;
                let read = Request::Read { ino, fh, offset, len, flags: 0 };
                let read = ask(&w.coherence, &w.volume, &caller, read, Vec::new());
                let (_, found) = finish(read).unwrap();
                w.actors[actor].check(stripe, &found, "at the end");
            }
        }
    }
    let (volume, hits) = (Arc::clone(&w.volume), w.hits);
    finish(volume.end_grace()).unwrap();
    let report = finish(volume.check(check::Options::default())).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    let figures = w.coherence.figures();
    assert!(figures.iter().all(|of| of.promised <= of.total), "promised: {figures:?}");
    assert!(w.actors.iter().all(|actor| actor.done > 20), "somebody starves");
    hits
}

#[test]
fn whoever_dies_everybody_reads_what_it_wrote() {
    let given = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (alone, many) = (given("OUTBOARD_SEED"), 1..given("OUTBOARD_SEEDS").unwrap_or(20));
    let seeds = alone.map_or(many, |seed| seed..seed + 1);
    let mut hits = 0;
    for seed in seeds {
        let run = std::panic::catch_unwind(|| simulate(seed));
        BETWEEN.set(None);
        hits += run.unwrap_or_else(|_| panic!("OUTBOARD_SEED={seed}"));
    }
    assert!(hits > 1_000 || alone.is_some(), "the caches served nothing: {hits}");
}
