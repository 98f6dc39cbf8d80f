//! What every engine is put to that a volume can lie in: one set of tests for all.
//!
//! An engine is a key-value store and a medium behind the ports ([`Engine`]). Each is held to the
//! rules of the key-value port, to a map, and to the suite of file operations
//! ([`every_engine!`](crate::every_engine) makes the tests); and the model's random work is done on
//! several at once, which must answer as each other and as the reference ([`answer_alike`]). Who
//! adds an engine adds a line, here or where its driver is. Seeds are printed; `MODEL_SEQUENCES`,
//! `MODEL_STEPS` and `MODEL_SEED` make the model long or repeat it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outboard_base::{Cred, Result, Timestamp};
use outboard_kv::{Kv, conformance};
use outboard_kvfs::{Kvfs, Options};
use outboard_medium::Medium;
use outboard_wire::file::{Attr, Op, Reply, Request};

use crate::front::in_process::InProcessFront;
use crate::front::{Features, Front};
use crate::model::{self, Effort};
use crate::runner;

/// Cases the suite has at least: fewer are not all of it.
const CASES_LEAST: usize = 250;
/// Room of a volume here, bytes: less than any engine under test has.
const CAPACITY: u64 = 512 << 20;

/// What a volume lies in, for as long as this lives.
pub trait Engine: Sized {
    /// Keeps its pairs.
    type Kv: Kv;
    /// Keeps its blocks.
    type Medium: Medium;
    /// Name in reports.
    const NAME: &'static str;

    /// A new one, empty; `None` where there is none to be had, which it says itself.
    fn new(seed: u64) -> Option<Self>;

    /// Its two halves.
    fn parts(&self) -> (Arc<Self::Kv>, Arc<Self::Medium>);

    /// Whether a case of the suite is for it: one that takes minutes may not be.
    fn takes(_case: &str) -> bool {
        true
    }

    /// Looks back at what was done with it: whether what was to be tested has happened.
    fn look_back(&self) {}

    /// It is no longer needed.
    fn end(self) {}
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future to its end.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    for polls in 0_u32.. {
        if let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return out;
        }
        // Engines in memory need no waking, others may do without.
        if polls > 64 {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
    panic!("a future does not end")
}

/// A volume in an engine.
pub fn volume<E: Engine>(engine: &E, replays: bool) -> InProcessFront<Arc<E::Kv>, Arc<E::Medium>> {
    let (kv, medium) = engine.parts();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp { sec: since.as_secs().cast_signed(), nsec: since.subsec_nanos() };
    let options =
        Options { mode: 0o777, segment: 4 << 20, id: 7, capacity: CAPACITY, ..Options::default() };
    let volume = run(Kvfs::open(kv, medium, options, now)).unwrap();
    InProcessFront::of(volume, E::NAME, replays).unwrap()
}

/// The rules of the key-value port, one by one.
pub fn keeps_the_rules<E: Engine>() {
    let Some(engine) = E::new(1) else { return };
    run(conformance::rules(&*engine.parts().0));
    engine.end();
}

/// Random batches, gets and scans against a map.
pub fn agrees_with_a_map<E: Engine>() {
    for seed in 1..=3 {
        let Some(engine) = E::new(seed) else { return };
        println!("seed {seed}");
        let (kv, _) = engine.parts();
        let model = run(conformance::agrees_with_a_map(&*kv, seed, 300));
        let found = run(kv.scan(b"m", None, usize::MAX >> 1)).unwrap();
        let found: BTreeMap<Vec<u8>, Vec<u8>> =
            found.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert_eq!(found, model, "seed {seed}");
        drop(kv);
        engine.end();
    }
}

/// The suite of file operations on a volume in it; the check of the volume afterwards.
pub fn passes_the_suite<E: Engine>() {
    let Some(engine) = E::new(1) else { return };
    let (mut front, mut told) = (volume(&engine, false), Vec::new());
    let report = runner::run_chosen(&mut front, E::takes, false, &mut told).unwrap();
    let told = String::from_utf8_lossy(&told);
    assert!(report.failed.is_empty(), "{told}");
    assert!(report.passed >= CASES_LEAST, "the suite has lost its cases: {told}");
    drop(front);
    engine.look_back();
    engine.end();
}

/// The same random work on all of these at once: each answers as the others and the reference do.
pub fn answer_alike(fronts: Vec<Box<dyn Front>>) {
    let effort = effort();
    println!("{effort:?}");
    model::run(&mut Together::new(fronts), effort).unwrap();
}

fn effort() -> Effort {
    fn given<T: std::str::FromStr>(name: &str, default: T) -> T {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    }
    let small = Effort::default();
    Effort {
        sequences: given("MODEL_SEQUENCES", small.sequences),
        steps: given("MODEL_STEPS", small.steps),
        seed: given("MODEL_SEED", small.seed),
    }
}

/// The tests of engines: `every_engine! { name: Engine; .. }` in a test program makes a module of
/// each name.
#[macro_export]
macro_rules! every_engine {
    ($($name:ident: $engine:ty;)*) => {
        $(mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[test]
            fn an_engine_keeps_the_rules_of_the_port() {
                $crate::engines::keeps_the_rules::<$engine>();
            }

            #[test]
            fn an_engine_agrees_with_a_map() {
                $crate::engines::agrees_with_a_map::<$engine>();
            }

            #[test]
            fn a_volume_in_an_engine_passes_the_suite() {
                $crate::engines::passes_the_suite::<$engine>();
            }
        })*
    };
}

/// Several volumes that are asked the same, one after the other, and must answer the same: the
/// first one's answer, where all agree. Times are their own, and what depends on the room they
/// have.
pub struct Together {
    features: Features,
    fronts: Vec<Box<dyn Front>>,
}

impl Together {
    /// Of volumes that are as empty as each other.
    #[must_use]
    pub fn new(fronts: Vec<Box<dyn Front>>) -> Together {
        let first = fronts.first().unwrap();
        Together {
            features: Features { name: "together".into(), ..first.features().clone() },
            fronts,
        }
    }

    /// The one answer that all give to `ask`.
    fn agree<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: &str,
        mut ask: impl FnMut(&mut dyn Front) -> T,
    ) -> T {
        let mut answers = self.fronts.iter_mut().map(|front| {
            let name = front.features().name.clone();
            (ask(&mut **front), name)
        });
        let (first, name) = answers.next().unwrap();
        for (answer, other) in answers {
            assert!(answer == first, "{what}: {name} says {first:?}, {other} says {answer:?}");
        }
        first
    }
}

/// A reply without what may differ.
fn comparable(reply: Reply) -> Reply {
    let timeless = |attr: Attr| {
        let none = Timestamp::default();
        Attr { atime: none, mtime: none, ctime: none, crtime: none, ..attr }
    };
    match reply {
        Reply::Entry(attr) => Reply::Entry(timeless(attr)),
        Reply::Attr(attr) => Reply::Attr(timeless(attr)),
        Reply::Created(attr, fh) => Reply::Created(timeless(attr), fh),
        Reply::Gone { last, parent } => Reply::Gone {
            last: timeless(last),
            parent: parent.map(|parent| Box::new(timeless(*parent))),
        },
        other => other,
    }
}

impl Front for Together {
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
        let op = request.op();
        let mut reply = None;
        let agreed = self.agree(&format!("{request:?} by {cred:?}"), |front| {
            let answer = front.call(cred, request, payload, out);
            reply.get_or_insert_with(|| answer.clone());
            // An entry of a directory tells times, too.
            let data = if op == Op::Readdir { Vec::new() } else { out.clone() };
            (
                if op == Op::Statfs {
                    answer.map(|_| Reply::Empty)
                } else {
                    answer.map(comparable)
                },
                data,
            )
        });
        drop(agreed);
        reply.unwrap()
    }

    fn granted(&mut self, ticket: u64, patience: Duration) -> Result<bool> {
        self.agree("a lock waited for", |front| front.granted(ticket, patience))
    }

    fn settle(&mut self) -> Result<()> {
        self.agree("forgetting", |front| front.settle())
    }

    fn verify(&mut self) -> std::result::Result<(), String> {
        self.agree("the check", |front| front.verify())
    }
}
