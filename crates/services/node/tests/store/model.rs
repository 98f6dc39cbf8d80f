//! A simple reference of the store: for each strip all that it was since the last flush.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use outboard_base::Rng;
use outboard_base::task::{poll_once, run};
use outboard_medium::mem::{Faults, Kept, MemMedium};
use outboard_node::{Change, Copies, Store, StoreOptions, Version};
use outboard_wire::shared::call::Decided;
use outboard_wire::shared::{Brings, Reason, Share};

pub(crate) const GRAIN: u64 = 8192;
pub(crate) const STRIP: u32 = 16384;
const STRIPS: u64 = 3;
const OBJECTS: u64 = 4;
/// The one that other nodes have copies of.
const COPIED: u64 = 4;

pub(crate) type Media = (Arc<MemMedium>, Arc<MemMedium>);
pub(crate) type TestStore = Store<Arc<MemMedium>>;

pub(crate) fn options() -> StoreOptions {
    StoreOptions {
        node: 3,
        cluster: 9,
        capacity: 64 * GRAIN,
        segment: 4 * GRAIN,
        checkpoint_bytes: 16 << 10,
    }
}

/// What a strip may be.
#[derive(Clone, Default, PartialEq)]
struct Was {
    version: Version,
    bytes: Option<Arc<Vec<u8>>>,
    end: u32,
    /// Written, and not cut away: of one that is, only the version is known.
    is_here: bool,
    /// It may have held nothing when a write came, so nobody was told which version it had.
    is_vague: bool,
    /// What is seen of it, if a write is pending.
    pending: Option<Box<Was>>,
}

impl Was {
    fn bytes(&self) -> Vec<u8> {
        self.bytes.as_ref().map_or_else(|| vec![0; STRIP as usize], |bytes| bytes.to_vec())
    }

    fn is(&self, bytes: &[u8]) -> bool {
        match &self.bytes {
            Some(mine) => mine[..] == *bytes,
            None => bytes.iter().all(|byte| *byte == 0),
        }
    }

    /// Whether a member may say this of it. Of a strip that holds nothing it says nothing.
    fn claims(&self, said: Option<Versions>) -> bool {
        let pending = self.pending.as_ref().map(|pending| pending.version);
        match said {
            Some((_, said)) if self.is_vague => said == pending,
            Some(said) => self.is_here && said == (self.version, pending),
            None => self.may_be_empty(),
        }
    }

    /// Whether it may hold nothing: then nobody is told which version it has.
    fn may_be_empty(&self) -> bool {
        let is_zeros = || self.bytes.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0));
        self.pending.is_none() && is_zeros()
    }

    /// With a write over it.
    fn pends(self, over: Was) -> Was {
        let is_vague = self.may_be_empty();
        Was { pending: Some(Box::new(over)), is_here: true, is_vague, ..self }
    }

    fn seen(&self) -> &Was {
        self.pending.as_deref().unwrap_or(self)
    }

    /// What it becomes if `version` was decided; nothing if it lacks that.
    fn settled(&self, version: Version) -> Option<Was> {
        let pending = self.pending.as_deref().filter(|pending| pending.version == version);
        let stable = (self.version == version).then(|| Was { pending: None, ..self.clone() });
        pending.cloned().or(stable)
    }
}

/// The versions of a strip, stable and pending.
type Versions = (Version, Option<Version>);

/// Those that are told.
fn versions(store: &TestStore, at: (u64, u64)) -> Option<Versions> {
    let claims = run(store.claims(at.0, at.1, 1));
    let claim = claims.first().filter(|claim| claim.strip == at.1)?;
    Some((claim.stable, claim.pending.map(|pending| pending.version)))
}

struct Strip {
    /// In the order of the log.
    all: Vec<Was>,
    /// Which it is now, and the last that is durable for sure.
    now: usize,
    flushed: usize,
}

impl Default for Strip {
    fn default() -> Strip {
        Strip { all: vec![Was::default()], now: 0, flushed: 0 }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write {
        at: (u64, u64),
        version: Version,
        copies: Option<Copies>,
        from: u32,
        brings: Brings,
        /// What it brings; of nothing, as many.
        bytes: Vec<u8>,
    },
    /// What was decided of the strips that other nodes have copies of, and which of these are not
    /// as it says.
    Resolve {
        fence: u64,
        decided: Vec<Decided>,
        lacking: Vec<u64>,
    },
    /// Of the object with copies what was acknowledged before it, up to a version, is stable first.
    Hole {
        object: u64,
        version: Version,
        range: Range<u64>,
        settled: Option<Version>,
    },
    /// Space put aside: it changes no byte, and no end.
    Reserve {
        object: u64,
        version: Version,
        range: Range<u64>,
        share: Share,
    },
    /// What was acknowledged of the object with copies, all of it.
    Settle {
        up_to: Version,
    },
    Purge {
        object: u64,
    },
    Seal {
        object: u64,
        fence: u64,
    },
    Flush,
    Tidy,
}

impl Op {
    fn object(&self) -> Option<u64> {
        match self {
            Op::Write { at, .. } => Some(at.0),
            Op::Hole { object, .. }
            | Op::Reserve { object, .. }
            | Op::Purge { object }
            | Op::Seal { object, .. } => Some(*object),
            Op::Resolve { .. } | Op::Settle { .. } => Some(COPIED),
            Op::Flush | Op::Tidy => None,
        }
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Op::Write { at, version, copies, from, brings, bytes } => {
                write!(f, "write {at:?} {version:?} {copies:?} {from}+{} {brings:?}", bytes.len())
            }
            other => write!(f, "{other:?}"),
        }
    }
}

type Running<'s> = Pin<Box<dyn Future<Output = Result<(), Reason>> + 's>>;

fn begin<'s>(store: &'s TestStore, op: &'s Op) -> Running<'s> {
    match op {
        Op::Write { at, version, copies, from, brings, bytes } => {
            let offset = at.1 * u64::from(STRIP) + u64::from(*from);
            let change = Change::of(*brings, bytes.len(), bytes);
            match copies {
                None => Box::pin(store.write(at.0, STRIP, *version, None, offset, bytes)),
                Some(copies) => {
                    Box::pin(store.change_copy(at.0, STRIP, *version, *copies, offset, change))
                }
            }
        }
        Op::Resolve { fence, decided, lacking } => Box::pin(async move {
            let lacks = store.resolve(COPIED, *fence, decided).await?;
            assert!(lacks.iter().map(|claim| claim.strip).eq(lacking.iter().copied()));
            Ok(())
        }),
        Op::Hole { object, version, range, settled } => Box::pin(async move {
            if let Some(settled) = settled {
                store.settle(*object, range.clone(), *settled).await?;
            }
            store.hole(*object, *version, range.clone()).await
        }),
        Op::Reserve { object, version, range, share } => {
            Box::pin(store.reserve(*object, STRIP, *version, range.clone(), *share))
        }
        Op::Settle { up_to } => Box::pin(store.settle(COPIED, 0..u64::MAX, *up_to)),
        Op::Purge { object } => Box::pin(store.purge(*object)),
        Op::Seal { object, fence } => Box::pin(async move {
            let sealed = store.seal(*object, *fence).await?;
            assert!(sealed.fence >= *fence);
            Ok(())
        }),
        Op::Flush => Box::pin(store.flush()),
        Op::Tidy => Box::pin(store.tidy()),
    }
}

pub(crate) struct Walk {
    seed: u64,
    rng: Rng,
    media: Media,
    strips: BTreeMap<(u64, u64), Strip>,
    /// Durably sealed: fences that must stand until the object is purged.
    sealed: BTreeMap<u64, u64>,
    fences: BTreeMap<u64, u64>,
    sequence: u32,
    faults: Faults,
    /// At the last crash; if not, the process died alone.
    loses_power: bool,
    /// What was met, so that a walk that does nothing is noticed.
    pub(crate) crashes: u64,
    pub(crate) full: u64,
    pub(crate) failed: u64,
    pub(crate) dropped: u64,
}

impl Walk {
    pub(crate) fn new(seed: u64) -> Walk {
        let mut rng = Rng::new(seed);
        let media = || Arc::new(MemMedium::new(seed));
        let delay_polls = rng.below(4);
        let write_fails = if rng.chance(1, 4) { 25 } else { 0 };
        let faults = Faults { delay_polls, write_fails, ..Faults::default() };
        let media = (media(), media());
        let strips = BTreeMap::new();
        let (sealed, fences) = Default::default();
        let (crashes, full, failed, dropped) = (0, 0, 0, 0);
        let sequence = 0;
        Walk {
            seed,
            rng,
            media,
            strips,
            sealed,
            fences,
            sequence,
            faults,
            loses_power: true,
            crashes,
            full,
            failed,
            dropped,
        }
    }

    fn options(&self) -> StoreOptions {
        // Every third has hardly more space than the objects take.
        let capacity = if self.seed.is_multiple_of(3) { 30 } else { 64 };
        StoreOptions { capacity: capacity * GRAIN, ..options() }
    }

    fn all() -> impl Iterator<Item = (u64, u64)> {
        (1..=OBJECTS).flat_map(|object| (0..STRIPS).map(move |strip| (object, strip)))
    }

    /// Opens the store; now and then power fails in the midst of that.
    fn open(&mut self) -> TestStore {
        self.media.0.set_faults(Faults { write_fails: 0, ..self.faults });
        self.media.1.set_faults(Faults { write_fails: 0, ..self.faults });
        while self.rng.chance(1, 4) {
            let mut opening =
                Box::pin(Store::open(self.media.0.clone(), self.media.1.clone(), self.options()));
            for _ in 0..self.rng.below(30) {
                if poll_once(opening.as_mut()).is_ready() {
                    break;
                }
            }
            drop(opening);
            if self.loses_power {
                self.power_fails();
            }
        }
        let (log, data) = self.media.clone();
        let store = run(Store::open(log, data, self.options()));
        let store = store.unwrap_or_else(|e| panic!("OUTBOARD_SEED={}: {e}", self.seed));
        self.media.0.set_faults(self.faults);
        self.media.1.set_faults(self.faults);
        store
    }

    /// Each medium keeps of what was not flushed what it likes.
    fn power_fails(&mut self) {
        for medium in [Arc::clone(&self.media.0), Arc::clone(&self.media.1)] {
            let at = usize::try_from(self.rng.below(Kept::ALL.len() as u64)).unwrap();
            medium.crash_keeping(Kept::ALL[at]);
        }
    }

    pub(crate) fn run(&mut self) {
        for _ in 0..3 {
            let store = self.open();
            self.look(&store, true);
            let steps = 5 + self.rng.below(25);
            for _ in 0..steps {
                self.step(&store, false);
            }
            // The last step is left in its midst.
            self.step(&store, true);
            drop(store);
            self.crashes += 1;
            self.loses_power = self.rng.chance(2, 3);
            if self.loses_power {
                self.power_fails();
            } else {
                // The process died: what was answered is there.
                self.strips.values_mut().for_each(|strip| strip.flushed = strip.now);
            }
        }
        let store = self.open();
        self.look(&store, true);
        self.dropped += store.figures().iter().find(|f| f.0 == "dropped_changes").unwrap().1;
    }

    fn draw(&mut self) -> Op {
        let object = 1 + self.rng.below(OBJECTS);
        self.sequence += 1;
        let fence = self.fences.get(&object).copied().unwrap_or(1);
        let version = Version { fence: fence + self.rng.below(2), sequence: self.sequence };
        let kind = self.rng.below(22);
        match kind {
            12 | 13 if object == COPIED => {
                let strip = self.rng.below(STRIPS);
                let newest = self.now((COPIED, strip)).seen().version;
                if self.rng.chance(1, 2) {
                    let start = self.rng.below(STRIPS * u64::from(STRIP));
                    let range = start..start + 1 + self.rng.below(40000);
                    let settled = Some(Version { sequence: version.sequence - 1, ..version });
                    return Op::Hole { object, version, range, settled };
                }
                Op::Settle { up_to: Version { fence, sequence: newest.sequence } }
            }
            19 | 20 if object == COPIED => self.draw_resolve(fence),
            0..12 => {
                let at = (object, self.rng.below(STRIPS));
                let copies = (object == COPIED).then(|| self.copies(at, version));
                let from = if self.rng.chance(1, 2) { 0 } else { self.rng.below(16000) };
                let room = u64::from(STRIP) - from;
                let len = if self.rng.chance(1, 2) { room } else { 1 + self.rng.below(room) };
                let all = [Brings::Bytes, Brings::Delta, Brings::Nothing];
                let which = usize::try_from(self.rng.below(3)).unwrap();
                let brings = if copies.is_some() { all[which] } else { Brings::Bytes };
                let (from, len) = match brings {
                    Brings::Bytes => (from, len),
                    // Of whole grains.
                    _ => (from / GRAIN * GRAIN, (from % GRAIN + len) / GRAIN * GRAIN),
                };
                let (from, len) = if len == 0 { (0, GRAIN) } else { (from, len) };
                let mut bytes = vec![0; usize::try_from(len).unwrap()];
                self.rng.fill(&mut bytes);
                let from = u32::try_from(from).unwrap();
                Op::Write { at, version, copies, from, brings, bytes }
            }
            12..14 => {
                let start = self.rng.below(STRIPS * u64::from(STRIP));
                let start = if self.rng.chance(1, 3) { start / GRAIN * GRAIN } else { start };
                let end = start + 1 + self.rng.below(40000);
                let end = if self.rng.chance(1, 2) { u64::MAX } else { end };
                Op::Hole { object, version, range: start..end, settled: None }
            }
            14 => Op::Purge { object },
            15 => Op::Seal { object, fence: fence + self.rng.below(3) },
            16..19 => Op::Flush,
            19..21 => {
                let start = self.rng.below(STRIPS * u64::from(STRIP));
                let range = start..start + 1 + self.rng.below(40000);
                let count = u8::from(self.rng.chance(1, 2)) + 1;
                let place = u8::from(count == 2 && self.rng.chance(1, 2));
                let version = Version { fence, ..version };
                Op::Reserve { object, version, range, share: Share { count, place, strip: STRIP } }
            }
            _ => Op::Tidy,
        }
    }

    /// What a writer says that knows what was acknowledged.
    fn copies(&mut self, at: (u64, u64), version: Version) -> Copies {
        let newest = self.now(at).seen().version;
        let is_first = newest == Version::default() || newest.fence < version.fence;
        let previous = (!is_first || self.rng.chance(1, 2)).then_some(newest);
        // Now and then it does not remember the strip: all that this has was acknowledged.
        let forgets = newest.fence == version.fence && version.sequence.is_multiple_of(3);
        if forgets || self.now(at).may_be_empty() {
            return Copies { previous: None, settled: version.sequence - 1, epoch: 7 };
        }
        Copies { previous, settled: 0, epoch: 7 }
    }

    /// Decided are: what is pending, what is stable, or what is not here.
    fn draw_resolve(&mut self, fence: u64) -> Op {
        let (mut decided, mut lacking) = (Vec::new(), Vec::new());
        for strip in (0..STRIPS).filter(|_| self.rng.chance(1, 2)).collect::<Vec<_>>() {
            let was = self.now((COPIED, strip));
            let version = match self.rng.below(5) {
                0..2 if !was.may_be_empty() => was.seen().version,
                2..4 if !was.may_be_empty() && !was.is_vague => was.version,
                _ => {
                    lacking.push(strip);
                    Version { fence: fence + 9, sequence: 0 }
                }
            };
            decided.push(Decided { strip, version });
        }
        Op::Resolve { fence: fence + self.rng.below(2), decided, lacking }
    }

    /// Some operations side by side, of objects that they do not share but for writes.
    fn step(&mut self, store: &TestStore, leave: bool) {
        let mut ops: Vec<Op> = Vec::new();
        for _ in 0..=self.rng.below(4) {
            let op = self.draw();
            let clashes = ops.iter().any(|other| match (&op, other) {
                (Op::Write { at, version, .. }, Op::Write { at: its, version: of, .. }) => {
                    at == its || at.0 == its.0 && version.fence != of.fence
                }
                _ => op.object().is_some() && op.object() == other.object(),
            });
            if !clashes {
                ops.push(op);
            }
        }
        let flushed: Vec<_> = self.strips.iter().map(|(at, strip)| (*at, strip.now)).collect();
        let effects: Vec<_> = ops.iter().map(|op| self.effects(op)).collect();
        let ends = self.drive(store, &ops, leave);
        for ((op, effects), end) in ops.iter().zip(effects).zip(ends) {
            let trace = format!("OUTBOARD_SEED={}: {op} gave {end:?}", self.seed);
            if std::env::var("OUTBOARD_TRACE").is_ok() {
                println!("{trace}");
            }
            match end {
                Some(Ok(())) => self.done(op, effects, &flushed),
                Some(Err(Reason::Full)) => self.full += 1,
                Some(Err(Reason::Medium | Reason::Filling)) | None => {
                    self.failed += 1;
                    self.perhaps(store, op, effects, leave);
                }
                other => panic!("{trace}, {other:?}"),
            }
        }
        if !leave {
            self.look(store, false);
            self.refusals(store);
        }
    }

    /// Polls all in turn. They are dropped in their midst if they are to be left, or by chance.
    fn drive(
        &mut self,
        store: &TestStore,
        ops: &[Op],
        leave: bool,
    ) -> Vec<Option<Result<(), Reason>>> {
        let mut running: Vec<_> = ops.iter().map(|op| Some(begin(store, op))).collect();
        let mut ends: Vec<Option<Result<(), Reason>>> = vec![None; ops.len()];
        let last = if leave { self.rng.below(25) } else { 100_000 };
        let one_is_dropped = self.rng.chance(1, 8).then(|| self.rng.below(12));
        for round in 0..last {
            if Some(round) == one_is_dropped {
                running[0] = None;
            }
            for (future, end) in running.iter_mut().zip(&mut ends) {
                if let Some(polled) = future
                    && let Poll::Ready(result) = poll_once(polled.as_mut())
                {
                    (*end, *future) = (Some(result), None);
                }
            }
            if running.iter().all(Option::is_none) {
                return ends;
            }
        }
        assert!(leave, "OUTBOARD_SEED={}: it never ends", self.seed);
        ends
    }

    fn now(&self, at: (u64, u64)) -> Was {
        self.strips.get(&at).map_or_else(Was::default, |strip| strip.all[strip.now].clone())
    }

    fn end(&self, object: u64) -> u64 {
        let ends = (0..STRIPS).map(|strip| (strip, self.now((object, strip)).seen().end));
        let ends = ends.filter(|(_, end)| *end > 0);
        ends.map(|(strip, end)| strip * u64::from(STRIP) + u64::from(end)).max().unwrap_or(0)
    }

    /// What an operation makes of strips.
    fn effects(&self, op: &Op) -> Vec<((u64, u64), Was)> {
        match op {
            Op::Write { at, version, copies, from, brings, bytes } => {
                let was = self.now(*at).seen().clone();
                let mut all = was.bytes();
                let end = *from as usize + bytes.len();
                for (to, byte) in all[*from as usize..end].iter_mut().zip(bytes) {
                    *to = match brings {
                        Brings::Bytes => *byte,
                        Brings::Delta => *to ^ byte,
                        Brings::Nothing => *to,
                    };
                }
                let end = was.end.max(u32::try_from(end).unwrap());
                let (version, bytes) = (*version, Some(Arc::new(all)));
                let is_vague = false;
                let over = Was { version, bytes, end, is_here: true, is_vague, pending: None };
                let becomes = match copies {
                    None => over,
                    Some(_) => was.pends(over),
                };
                vec![(*at, becomes)]
            }
            Op::Settle { up_to } => {
                let strips = (0..STRIPS).map(|strip| (COPIED, strip));
                let pending = strips.filter_map(|at| Some((at, *self.now(at).pending?)));
                pending.filter(|(_, pending)| pending.version <= *up_to).collect()
            }
            Op::Resolve { decided, .. } => {
                let settled = |one: &Decided| {
                    let at = (COPIED, one.strip);
                    self.now(at).settled(one.version).map(|was| (at, was))
                };
                decided.iter().filter_map(settled).collect()
            }
            Op::Hole { object, version, range, settled } => {
                let strips = (0..STRIPS).map(|strip| (*object, strip));
                let is_cut = range.end == u64::MAX && self.end(*object) > range.start;
                let each = strips.flat_map(|at| {
                    let (mut was, mut all) = (self.now(at), Vec::new());
                    let size = u64::from(STRIP);
                    let touched = range.start / size..range.end.div_ceil(size);
                    if settled.is_some() && touched.contains(&at.1) && was.pending.is_some() {
                        was = was.seen().clone();
                        all.push((at, was.clone()));
                    }
                    all.push((at, Walk::holed(at, was, *version, range, is_cut)));
                    all
                });
                each.collect()
            }
            Op::Purge { object } => {
                (0..STRIPS).map(|strip| ((*object, strip), Was::default())).collect()
            }
            Op::Reserve { .. } | Op::Seal { .. } | Op::Flush | Op::Tidy => Vec::new(),
        }
    }

    fn holed(
        at: (u64, u64),
        mut was: Was,
        version: Version,
        range: &Range<u64>,
        is_cut: bool,
    ) -> Was {
        let base = at.1 * u64::from(STRIP);
        let within =
            |at: u64| u32::try_from(at.saturating_sub(base).min(u64::from(STRIP))).unwrap();
        let (start, end) = (within(range.start), within(range.end));
        let mut bytes = was.bytes();
        bytes[start as usize..end as usize].fill(0);
        was.bytes = Some(Arc::new(bytes));
        // A strip that is not there takes no version, but when it is cut.
        let is_cut_here = was.version > Version::default() && range.end == u64::MAX;
        if start < end && (was.is_here || is_cut_here) {
            was.version = version;
        }
        if range.end == u64::MAX && base >= range.start {
            was.is_here = false;
        }
        if is_cut {
            // All before the cut that the object reached stays; where nothing lay an end does.
            let last = (range.start.max(1) - 1) / u64::from(STRIP);
            was.end = match at.1 {
                strip if strip == last && range.start > 0 => within(range.start),
                strip if strip > last => 0,
                _ if range.start == 0 => 0,
                _ => was.end,
            };
        }
        was
    }

    fn push(&mut self, effects: Vec<((u64, u64), Was)>) -> Vec<(u64, u64)> {
        let mut pushed = Vec::new();
        for (at, was) in effects {
            self.strips.entry(at).or_default().all.push(was);
            pushed.push(at);
        }
        pushed
    }

    fn done(&mut self, op: &Op, effects: Vec<((u64, u64), Was)>, flushed: &[((u64, u64), usize)]) {
        for at in self.push(effects) {
            let strip = self.strips.get_mut(&at).unwrap();
            strip.now = strip.all.len() - 1;
            if let Op::Resolve { .. } = op {
                strip.flushed = strip.now;
            }
        }
        match op {
            Op::Write { at: (object, _), version, .. } => {
                let fence = self.fences.entry(*object).or_default();
                *fence = version.fence.max(*fence);
            }
            // Where there was nothing to put aside it has no effect.
            Op::Reserve { .. } => {}
            Op::Hole { object, version, .. } => {
                // An object that is not there has no fence afterwards, either.
                let fence = self.fences.entry(*object).or_default();
                *fence = version.fence.max(*fence);
            }
            Op::Seal { fence, .. } | Op::Resolve { fence, .. } => {
                let object = op.object().unwrap();
                let mine = self.fences.entry(object).or_default();
                *mine = (*fence).max(*mine);
                self.sealed.insert(object, *mine);
            }
            Op::Purge { object } => drop(self.sealed.remove(object)),
            Op::Flush => {
                for (at, now) in flushed {
                    let strip = self.strips.get_mut(at).unwrap();
                    strip.flushed = strip.flushed.max(*now);
                }
            }
            Op::Settle { .. } | Op::Tidy => {}
        }
    }

    /// Nobody knows whether it was done. While the store lives it says.
    fn perhaps(
        &mut self,
        store: &TestStore,
        op: &Op,
        effects: Vec<((u64, u64), Was)>,
        leave: bool,
    ) {
        if let Op::Write { at: (object, _), version: Version { fence, .. }, .. }
        | Op::Hole { object, version: Version { fence, .. }, .. }
        | Op::Seal { object, fence } = op
        {
            let mine = self.fences.entry(*object).or_default();
            *mine = (*fence).max(*mine);
        }
        if let Op::Resolve { fence, .. } = op {
            let mine = self.fences.entry(COPIED).or_default();
            *mine = (*fence).max(*mine);
        }
        if let Op::Purge { object } = op {
            self.sealed.remove(object);
        }
        for at in self.push(effects) {
            let strip = self.strips.get_mut(&at).unwrap();
            let last = strip.all.len() - 1;
            if !leave && at.0 == COPIED {
                let is = versions(store, at);
                let newer = (strip.now + 1..=last).rev();
                let found = newer.into_iter().find(|newer| strip.all[*newer].claims(is));
                strip.now = found.unwrap_or(strip.now);
            } else if !leave {
                let read = run(store.read(at.0, at.1 * u64::from(STRIP), STRIP)).unwrap();
                if strip.all[last].is(&read) {
                    // Where it reads as before, nobody knows which it is.
                    let before = &strip.all[strip.now];
                    if before.is(&read) {
                        strip.all[last].version = strip.all[last].version.min(before.version);
                    }
                    strip.now = last;
                }
            }
        }
    }

    /// Every strip is what it must be; after a crash one of what it may be.
    fn look(&mut self, store: &TestStore, crashed: bool) {
        let some = if crashed { 0 } else { self.rng.below(3) };
        for at in Walk::all() {
            if !crashed && (at.0 + at.1) % 3 != some {
                continue;
            }
            let bytes = run(store.read(at.0, at.1 * u64::from(STRIP), STRIP));
            let trace = format!("OUTBOARD_SEED={}: strip {at:?}, crashed {crashed}", self.seed);
            let bytes = bytes.unwrap_or_else(|e| panic!("{trace}: {e:?}"));
            let strip = self.strips.entry(at).or_default();
            let of_copies = (at.0 == COPIED).then(|| versions(store, at));
            let is =
                |was: &Was| was.seen().is(&bytes) && of_copies.is_none_or(|said| was.claims(said));
            if crashed {
                let may_be = strip.all.iter().enumerate().skip(strip.flushed);
                let found = may_be.rev().find(|(_, was)| is(was));
                let Some((_, found)) = found else {
                    let older = strip.all.iter().position(is);
                    panic!(
                        "{trace}: {} states, flushed {}, is {older:?}",
                        strip.all.len(),
                        strip.flushed
                    );
                };
                let mut found = found.clone();
                if of_copies.is_none() {
                    let alike = strip.all.iter().skip(strip.flushed).filter(|was| is(was));
                    found.version = alike.map(|was| was.version).min().unwrap_or_default();
                }
                *strip = Strip { all: vec![found], ..Strip::default() };
            } else {
                assert!(is(&strip.all[strip.now]), "{trace}");
            }
        }
        for (object, fence) in &self.sealed {
            let found = store.objects(*object, 1);
            let fence_now = found.first().filter(|found| found.object == *object);
            let fence_now = fence_now.map_or(0, |found| found.fence);
            assert!(fence_now >= *fence, "OUTBOARD_SEED={}: {object} unsealed", self.seed);
        }
        if !crashed {
            for found in store.objects(0, 100) {
                // What a crash or a failure left is not exact: equal bytes may have two ends.
                let (is, end) = (found.end, self.end(found.object));
                assert!(
                    self.crashes > 0 || self.failed > 0 || is == end,
                    "OUTBOARD_SEED={}: object {} ends at {is}, not {end}",
                    self.seed,
                    found.object
                );
            }
        }
    }

    /// What must be refused is, and changes nothing.
    fn refusals(&mut self, store: &TestStore) {
        let at = (1 + self.rng.below(OBJECTS), self.rng.below(STRIPS));
        let was = self.now(at);
        if at.0 == COPIED && was.may_be_empty() {
            return;
        }
        let was = was.seen().clone();
        let fence = store.objects(at.0, 1).first().filter(|o| o.object == at.0).map(|o| o.fence);
        let (Some(fence), true) = (fence, was.version > Version::default()) else { return };
        let (mut bytes, offset, seed) = ([0; 9], at.1 * u64::from(STRIP), self.seed);
        self.rng.fill(&mut bytes);
        let refused = |version| run(store.write(at.0, STRIP, version, None, offset, &bytes));
        let follows = |previous, settled| {
            let (version, epoch) = (Version { fence, sequence: u32::MAX }, 7);
            let copies = Copies { previous, settled, epoch };
            run(store.write_copy(at.0, STRIP, version, copies, offset, &bytes))
        };
        if at.0 == COPIED {
            let version = was.version;
            let later = Version { sequence: version.sequence + 1, ..version };
            let refused = |previous, settled, why| {
                let said = follows(previous, settled);
                assert_eq!(said, Err(Reason::Order), "OUTBOARD_SEED={seed} {why}");
            };
            refused(Some(later), u32::MAX, "a gap");
            let before = Version { sequence: version.sequence - 1, ..version };
            refused(Some(before), before.sequence, "not settled");
            if version.fence == fence {
                refused(None, before.sequence, "it names none");
            } else {
                refused(Some(before), u32::MAX, "settled under another fence");
            }
        }
        let expected = if was.version.fence < fence { Reason::Fence } else { Reason::Order };
        assert_eq!(refused(was.version), Err(expected), "OUTBOARD_SEED={seed} {at:?}");
        let older = Version { fence: fence.saturating_sub(1), sequence: u32::MAX };
        let expected = if fence > 0 { Err(Reason::Fence) } else { Err(Reason::Order) };
        assert_eq!(refused(older), expected, "OUTBOARD_SEED={seed} {at:?}");
    }
}
