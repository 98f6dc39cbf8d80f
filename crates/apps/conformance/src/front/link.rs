//! KVFS behind a link: nvme-fs queue pairs in memory, both sides in this thread.
//!
//! The session and the service are those of production, run by [`outboard_sim::loopback`]; a seed
//! chooses every order. Optionally the DPU side dies now and then in the middle of a call and comes
//! back over the same store, opened again: no case may notice.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::{Cred, Errno, Result, Rng, SessionId};
use outboard_cache::geometry::Shape;
use outboard_kv::mem::MemKv;
use outboard_kv::object::Compression;
use outboard_medium::mem::MemMedium;
use outboard_sim::loopback::Loopback;
use outboard_wire::file::{Reply, Request};

use super::memory::{self, Volume, block_on};
use super::{Features, Front};

const QUEUES: u16 = 2;
const DEPTH: u16 = 4;
/// A call that takes more steps hangs.
const STEPS_MAX: usize = 10_000_000;
/// After so many steps a lock that was not granted waits; far more than any call takes.
const STEPS_TO_WAIT: usize = 2_000;
/// One call in this many sees the DPU side die, if it may.
const LOSS_ONE_IN: u64 = 20;

/// A volume in memory behind a link.
pub struct LinkFront {
    features: Features,
    kv: Arc<MemKv>,
    medium: Arc<MemMedium>,
    volume: Arc<Volume>,
    link: Loopback<Volume>,
    session: u64,
    last_tag: u64,
    answers: HashMap<u64, (Result<Reply>, Vec<u8>)>,
    rng: Rng,
    losses: bool,
    cache: bool,
    compression: Compression,
}

/// A cache so small that pages, records and buckets are always short.
fn small_cache() -> Shape {
    let mode = outboard_wire::cache::CacheMode::Write;
    Shape { len: 128 << 10, page_size: 8 << 10, ways: 4, records: 8, mode, ..Shape::default() }
}

fn attach(
    volume: &Arc<Volume>,
    session: u64,
    cache: bool,
) -> std::result::Result<Loopback<Volume>, String> {
    let cache = cache.then_some(small_cache());
    // The loopback names its session by its seed, with the lowest bit set.
    let mut link = Loopback::with_cache(Arc::clone(volume), QUEUES, DEPTH, session, cache)
        .map_err(|errno| format!("no link: {errno}"))?;
    link.set_wall(memory::now);
    Ok(link)
}

impl LinkFront {
    /// An empty volume. `losses`: the DPU side dies and returns now and then.
    pub fn new(losses: bool) -> std::result::Result<LinkFront, String> {
        LinkFront::open(losses, false, Compression::None)
    }

    /// The same with a hybrid cache between.
    pub fn cached(losses: bool) -> std::result::Result<LinkFront, String> {
        LinkFront::open(losses, true, Compression::None)
    }

    /// The same, with losses, over a volume that packs blocks of file.
    pub fn packed() -> std::result::Result<LinkFront, String> {
        LinkFront::open(true, true, Compression::Lz4)
    }

    fn open(
        losses: bool,
        cache: bool,
        compression: Compression,
    ) -> std::result::Result<LinkFront, String> {
        let (kv, medium) = (Arc::new(MemKv::new(1)), Arc::new(MemMedium::new(2)));
        let volume = Arc::new(memory::open(Arc::clone(&kv), Arc::clone(&medium), compression)?);
        block_on(volume.end_grace())
            .and_then(|end| end)
            .map_err(|errno| format!("the grace period does not end: {errno}"))?;
        let name = match (losses, cache) {
            _ if compression != Compression::None => "packed-loss",
            (false, false) => "link",
            (true, false) => "loss",
            (false, true) => "cached",
            (true, true) => "cached-loss",
        };
        let features = Features { steady: !losses, reads_seen: !cache, ..memory::features(name) };
        let link = attach(&volume, 1, cache)?;
        Ok(LinkFront {
            features,
            kv,
            medium,
            volume,
            link,
            session: 1,
            last_tag: 0,
            answers: HashMap::new(),
            rng: Rng::new(3),
            losses,
            cache,
            compression,
        })
    }

    fn step(&mut self) {
        self.link.step();
        for (tag, outcome, payload) in self.link.take_answered() {
            self.answers.insert(tag, (outcome, payload));
        }
    }

    /// The DPU side dies, and another comes over the same store.
    fn lose(&mut self) -> Result<()> {
        self.link.crash();
        let (kv, medium) = (Arc::clone(&self.kv), Arc::clone(&self.medium));
        let volume = memory::open(kv, medium, self.compression).map_err(|_| Errno::EIO)?;
        self.volume = Arc::new(volume);
        self.link.restart(Arc::clone(&self.volume))?.map_err(|_| Errno::EIO)?;
        for _ in 0..STEPS_MAX {
            if self.link.take_handed_in() {
                return block_on(self.volume.end_grace())?;
            }
            self.step();
        }
        Err(Errno::ETIMEDOUT)
    }

    /// Starts a call and steps until it is answered: its tag.
    fn ask(&mut self, cred: &Cred, request: &Request<'_>, payload: &[u8]) -> Result<u64> {
        self.last_tag += 1;
        let tag = self.last_tag;
        let waits = matches!(request, Request::Setlk { wait: true, .. });
        let dies = self.losses && self.rng.chance(1, LOSS_ONE_IN);
        let dies_at = self.rng.below(12);
        let mut started = false;
        for number in 0..STEPS_MAX {
            started = started || self.link.start(cred, request, payload, tag);
            if dies && number as u64 == dies_at {
                self.lose()?;
            }
            self.step();
            if self.answers.contains_key(&tag) || (waits && number >= STEPS_TO_WAIT) {
                return Ok(tag);
            }
        }
        Err(Errno::ETIMEDOUT)
    }
}

impl Front for LinkFront {
    fn features(&self) -> &Features {
        &self.features
    }

    fn call(
        &mut self,
        cred: &Cred,
        request: &Request<'_>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply> {
        out.clear();
        if let Request::CancelLock { ticket } = *request {
            let known = self.link.session().abort(ticket);
            (0..STEPS_TO_WAIT).for_each(|_| self.step());
            return match self.answers.remove(&ticket) {
                Some((Err(Errno::EINTR), _)) if known => Ok(Reply::Empty),
                _ => Err(Errno::ENOENT),
            };
        }
        let tag = self.ask(cred, request, payload)?;
        // A lock that waits is answered once it is granted; until then its tag is the ticket.
        let Some((outcome, bytes)) = self.answers.remove(&tag) else {
            return Ok(Reply::Waiting(tag));
        };
        out.extend_from_slice(&bytes);
        outcome
    }

    fn granted(&mut self, ticket: u64, _patience: Duration) -> Result<bool> {
        for _ in 0..STEPS_TO_WAIT {
            if let Some((outcome, _)) = self.answers.remove(&ticket) {
                return outcome.map(|_| true);
            }
            self.step();
        }
        Ok(false)
    }

    fn settle(&mut self) -> Result<()> {
        if self.cache {
            // Both sides go at once below: what only the cache holds would go with them.
            self.link.call(&Cred::root(), &Request::Syncfs, &[])?;
        }
        self.link.crash();
        self.volume.detach(SessionId(self.session));
        self.session += 2;
        self.answers.clear();
        self.link = attach(&self.volume, self.session, self.cache).map_err(|_| Errno::EIO)?;
        memory::tidy(&self.volume)
    }

    fn verify(&mut self) -> std::result::Result<(), String> {
        memory::verify(&self.volume)
    }
}
