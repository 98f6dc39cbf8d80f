//! A strip of the store and the checked model of the protocol, driven with the same steps: what
//! they answer, what they hold and what they tell who resolves is the same.
//!
//! They differ in one thing: what is older than the stable version the model acknowledges again,
//! the store says `Order`. Nobody waits for such an answer, as what came after it was acknowledged.

use std::sync::Arc;

use outboard_base::Rng;
use outboard_base::task::run;
use outboard_cluster::{Reason as Said, Resolved, Role, Strip, Write};
use outboard_medium::mem::MemMedium;
use outboard_node::{Copies, Store, Version};
use outboard_wire::shared::Reason;
use outboard_wire::shared::call::Decided;

use super::model::{GRAIN, Media, STRIP, TestStore, options};
use super::seeds;

const OBJECT: u64 = 1;

/// A version in the words of the model.
fn of_model(version: outboard_cluster::Version) -> Version {
    Version { fence: version.fence, sequence: version.seq }
}

struct Twins {
    seed: u64,
    rng: Rng,
    media: Media,
    store: TestStore,
    /// A grain is a byte that all of it is.
    model: Strip<u8>,
    /// All writes that were ever tried.
    writes: Vec<Write<u8>>,
    fence: u64,
    epoch: u32,
    /// Writes taken, refused; strips resolved forward, back, not; what was acknowledged told.
    counts: [u64; 6],
}

impl Twins {
    fn new(seed: u64) -> Twins {
        let media = (Arc::new(MemMedium::new(seed)), Arc::new(MemMedium::new(seed + 1)));
        let store = run(Store::open(media.0.clone(), media.1.clone(), options())).unwrap();
        let (rng, model, writes) = (Rng::new(seed), Strip::new(vec![0, 0]), Vec::new());
        Twins { seed, rng, media, store, model, writes, fence: 1, epoch: 1, counts: [0; 6] }
    }

    /// The newest, the stable or any version.
    fn any(&mut self) -> outboard_cluster::Version {
        let claim = self.model.clone().seal(u64::MAX).unwrap();
        let stable = claim.stable.unwrap_or_default();
        let some = (!self.writes.is_empty()).then(|| {
            let at = usize::try_from(self.rng.below(self.writes.len() as u64)).unwrap();
            self.writes[at].version
        });
        match self.rng.below(9) {
            0 => some.unwrap_or_default(),
            1 | 2 => stable,
            _ => claim.pending.map_or(stable, |(version, _)| version),
        }
    }

    fn write(&mut self, write: &Write<u8>) {
        let model = self.model.write(write.clone(), Role::Active, self.epoch);
        let first = write.grains[0].0 as u64;
        let bytes: Vec<u8> = write.grains.iter().flat_map(|(_, byte)| [*byte; 8192]).collect();
        let version = of_model(write.version);
        let copies = Copies { previous: Some(of_model(write.prev)), settled: 0, epoch: self.epoch };
        let at = first * GRAIN;
        let said = run(self.store.write_copy(OBJECT, STRIP, version, copies, at, &bytes));
        let is_old = self.model.stable().is_some_and(|stable| write.version < stable.version);
        let expected = match model {
            Ok(()) if is_old => Err(Reason::Order),
            Ok(()) => Ok(()),
            Err(Said::Fenced) => Err(Reason::Fence),
            Err(_) => Err(Reason::Order),
        };
        self.counts[usize::from(said.is_err())] += 1;
        assert_eq!(said, expected, "OUTBOARD_SEED={}: {write:?}, {model:?}", self.seed);
    }

    fn resolve(&mut self) {
        let (version, fence) = (self.any(), self.fence + self.rng.below(4) / 3);
        let before = self.model.stable().unwrap().version;
        let model = self.model.resolve(version, fence, Role::Active);
        let decided = [Decided { strip: 0, version: of_model(version) }];
        let said = run(self.store.resolve(OBJECT, fence, &decided));
        match model {
            Ok(Resolved::Done) => assert_eq!(said, Ok(Vec::new()), "OUTBOARD_SEED={}", self.seed),
            Ok(Resolved::Lacks) => {
                assert_eq!(said.unwrap().len(), 1, "OUTBOARD_SEED={}", self.seed);
            }
            Err(_) => assert_eq!(said, Err(Reason::Fence), "OUTBOARD_SEED={}", self.seed),
        }
        let kind = match model {
            Ok(Resolved::Done) if before < version => 2,
            Ok(Resolved::Done) => 3,
            _ => 4,
        };
        self.counts[kind] += 1;
    }

    /// What is pending, or stable, was acknowledged: both have it stable then.
    fn settle(&mut self) {
        let claim = self.model.clone().seal(u64::MAX).unwrap();
        let stable = claim.stable.unwrap_or_default();
        let pending = claim.pending.filter(|_| self.rng.chance(2, 3));
        let version = pending.map_or(stable, |(version, _)| version);
        let model = self.model.flush(version, version.fence, Role::Active);
        let whole = 0..u64::from(STRIP);
        let said = run(self.store.settle(OBJECT, whole, of_model(version)));
        let expected = model.map_err(|_| Reason::Fence);
        assert_eq!(said, expected, "OUTBOARD_SEED={}: {version:?}", self.seed);
        self.counts[5] += u64::from(said.is_ok());
    }

    /// The process ends, or power fails; nothing is lost, as all was flushed before that.
    fn restart(&mut self) {
        let loses_power = self.rng.chance(1, 2);
        if loses_power {
            run(self.store.flush()).unwrap();
            self.media.0.crash();
            self.media.1.crash();
        }
        self.store =
            run(Store::open(self.media.0.clone(), self.media.1.clone(), options())).unwrap();
        self.model.restart();
    }

    fn step(&mut self) {
        match self.rng.below(21) {
            0..9 => {
                let sequence = u32::try_from(self.writes.len()).unwrap() + 1;
                let fence = self.fence + self.rng.below(6) / 5;
                let version = outboard_cluster::Version { fence, seq: sequence };
                let prev = self.any();
                let byte = u8::try_from(sequence % 251).unwrap() + 1;
                let grains = match self.rng.below(3) {
                    0 => vec![(0, byte)],
                    1 => vec![(1, byte)],
                    _ => vec![(0, byte), (1, byte)],
                };
                let write = Write { version, prev, grains };
                if prev < version {
                    self.write(&write);
                    self.writes.push(write);
                }
            }
            9..12 if !self.writes.is_empty() => {
                let back = self.rng.below(3.min(self.writes.len() as u64));
                let at = self.writes.len() - 1 - usize::try_from(back).unwrap();
                self.write(&self.writes[at].clone());
            }
            12 | 13 => {
                let fence = self.fence + self.rng.below(3) - 1;
                let sealed = run(self.store.seal(OBJECT, fence)).unwrap();
                let is_refused = self.model.seal(fence).is_err();
                assert_eq!(sealed.fence > fence, is_refused, "OUTBOARD_SEED={}", self.seed);
            }
            14..17 => self.resolve(),
            17 => self.epoch += 1,
            18 => self.settle(),
            19 => self.restart(),
            _ => run(self.store.tidy()).unwrap(),
        }
        self.fence = self.fence.max(self.model.mark().fence);
    }

    fn compare(&self) {
        let seed = self.seed;
        let read = run(self.store.read(OBJECT, 0, STRIP)).unwrap();
        let whole = self.model.read(u64::MAX).unwrap();
        let bytes: Vec<u8> = whole.grains.iter().flat_map(|byte| [*byte; 8192]).collect();
        assert!(read == bytes, "OUTBOARD_SEED={seed}: {:?}", self.model);
        let claims = run(self.store.claims(OBJECT, 0, 9));
        let claim = claims.first().map(|claim| {
            let pending = claim.pending.map(|taken| (taken.version, taken.epoch));
            (claim.stable, pending)
        });
        let model = self.model.clone().seal(u64::MAX).unwrap();
        let pending = model.pending.map(|(version, epoch)| (of_model(version), epoch));
        let model = (of_model(model.stable.unwrap_or_default()), pending);
        assert_eq!(claim.unwrap_or_default(), model, "OUTBOARD_SEED={seed}");
        assert_eq!(self.store.fence(OBJECT), self.model.mark().fence, "OUTBOARD_SEED={seed}");
    }
}

#[test]
fn a_strip_of_the_store_is_a_strip_of_the_protocol() {
    let seeds = seeds(60);
    let mut counts = [0; 6];
    for seed in seeds.clone() {
        let mut twins = Twins::new(seed);
        for _ in 0..60 {
            twins.step();
            twins.compare();
        }
        counts.iter_mut().zip(twins.counts).for_each(|(all, one)| *all += one);
    }
    println!("taken, refused, resolved forward, back, not, acknowledged: {counts:?}");
    assert!(seeds.end - seeds.start < 60 || counts.iter().all(|count| *count > 20), "{counts:?}");
}
