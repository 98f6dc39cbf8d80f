use std::time::Duration;

use outboard_base::task::run;
use outboard_base::{Errno, Result, Rng, Time};

use super::memory::{Memory, Way};
use super::{Claim, Coordinator, Entry, Refusal, Registrar, Step, Table, conformance};

const TERM: Duration = Duration::from_secs(6);
const SECOND: Duration = Duration::from_secs(1);

fn claim(name: &str, place: &str, life: u64) -> Claim {
    Claim { name: name.into(), cluster: 7, place: place.into(), life, takes_over: false }
}

fn registrar(memory: &Memory, name: &str, place: &str, life: u64) -> Registrar<Way> {
    Registrar::new(memory.way(), claim(name, place, life))
}

/// One step; whether the part is there.
fn step(part: &Registrar<Way>) -> Result<Option<Refusal>> {
    Ok(match run(part.step())? {
        Step::There(_) => None,
        Step::Refused(refusal) => Some(refusal),
    })
}

/// Who has a name now.
fn at(memory: &Memory, name: &str) -> Option<String> {
    let all = run(memory.way().list(name)).unwrap();
    all.into_iter().find(|entry| entry.name == name).map(|entry| entry.value)
}

#[test]
fn the_one_in_memory_passes() {
    let memory = Memory::new(TERM, 1);
    let (one, other) = (memory.way(), memory.way());
    run(conformance::rules(&one, &other, async || {
        for _ in 0..7 {
            memory.passes(SECOND);
            assert_eq!(one.beat().await, Ok(()));
        }
    }));
    assert_eq!(run(other.beat()), Err(Errno::ENOTCONN));
    assert_eq!(run(other.put("x", "1", None, false)), Err(Errno::ENOTCONN));
    assert_eq!(run(other.beat()), Ok(()), "another session begins");
}

#[test]
fn what_was_kept_is_there_with_its_sessions_for_a_term() {
    let mut table = Table::new(TERM);
    let session = table.beat(0, Time(1)).unwrap();
    table.put("a", "1", None, session, Time(1)).unwrap();
    let version = table.put("b", "2", None, 0, Time(1)).unwrap();
    let (last, all) = table.to_keep();
    let all: Vec<_> = all.map(|(name, kept)| (name.clone(), kept.clone())).collect();
    let later = Time(1).after(TERM * 9);
    let mut again = Table::kept(TERM, last, all, later);
    assert_eq!(again.list(""), table.list(""));
    assert_eq!(again.beat(session, later.after(TERM - SECOND)), Ok(session));
    assert!(again.put("c", "3", None, 0, later).unwrap() > version, "versions go up");
    assert!(again.expire(later.after(TERM * 3)));
    assert_eq!(again.list("").len(), 2);
    assert_eq!(again.beat(session, later.after(TERM * 3)), Err(Errno::ENOTCONN));
}

#[test]
fn there_are_bounds() {
    let mut table = Table::new(TERM);
    for number in 0..1024 {
        table.beat(0, Time(1)).unwrap();
        table.put(&format!("{number}"), "", None, 0, Time(1)).unwrap();
    }
    assert_eq!(table.beat(0, Time(1)), Err(Errno::ENOSPC));
    assert_eq!(table.put("more", "", None, 0, Time(1)), Err(Errno::ENOSPC));
}

/// Two servers on one volume: the second is told where the first is, and has its name once that
/// one is over. The first, cut off meanwhile, hears it from its next step.
#[test]
fn a_name_is_one_part_s_at_a_time() {
    let memory = Memory::new(TERM, 2);
    let first = registrar(&memory, "server", "10.0.0.1:1", 1);
    let second = registrar(&memory, "server", "10.0.0.2:1", 2);
    assert_eq!(step(&first), Ok(None));
    for _ in 0..10 {
        memory.passes(SECOND);
        assert_eq!(step(&first), Ok(None));
        assert_eq!(step(&second), Ok(Some(Refusal::Taken("10.0.0.1:1".into()))));
    }
    memory.passes(TERM);
    assert_eq!(step(&second), Ok(None));
    assert_eq!(step(&first), Ok(Some(Refusal::Taken("10.0.0.2:1".into()))));
    assert_eq!(step(&second), Ok(None));
    run(second.leave()).unwrap();
    assert_eq!(step(&first), Ok(None), "who leaves in order is not waited for");
}

/// A standby has the store's claim: it does not wait for the session of who had it, and who had it
/// does not take the name back, as it would if it took over whenever it finds another there.
#[test]
fn a_name_is_taken_over_once() {
    let memory = Memory::new(TERM, 2);
    let server = |place: &str, life| {
        let claim = Claim { takes_over: true, ..claim("server", place, life) };
        Registrar::new(memory.way(), claim)
    };
    let (first, second) = (server("10.0.0.1:1", 1), server("10.0.0.2:1", 2));
    assert_eq!(step(&first), Ok(None));
    assert_eq!(step(&second), Ok(None), "at once");
    for _ in 0..3 {
        assert_eq!(step(&first), Ok(Some(Refusal::Taken("10.0.0.2:1".into()))));
        assert_eq!(step(&second), Ok(None));
        memory.passes(SECOND);
    }
    assert_eq!(step(&server("10.0.0.1:1", 3)), Ok(None), "in another life it may");
    assert_eq!(step(&second), Ok(Some(Refusal::Taken("10.0.0.1:1".into()))));
}

/// A process that was killed and starts again does not wait for its own session to end; and its
/// entry lives with the new session, not with the old.
#[test]
fn the_next_life_of_a_part_takes_over_at_once() {
    let memory = Memory::new(TERM, 3);
    assert_eq!(step(&registrar(&memory, "node.1", "10.0.0.3:1", 1)), Ok(None));
    memory.passes(SECOND);
    let next = registrar(&memory, "node.1", "10.0.0.3:1", 2);
    assert_eq!(step(&next), Ok(None));
    for _ in 0..9 {
        memory.passes(SECOND);
        assert_eq!(step(&next), Ok(None));
    }
    assert_eq!(at(&memory, "node.1").as_deref(), Some("10.0.0.3:1 0000000000000002"));
}

/// A part's way to a coordinator from which nothing may be taken away.
struct Steady(Way);

impl Coordinator for Steady {
    async fn beat(&self) -> Result<()> {
        self.0.beat().await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        self.0.list(prefix).await
    }
    async fn put(&self, name: &str, value: &str, version: Option<u64>, stays: bool) -> Result<()> {
        self.0.put(name, value, version, stays).await
    }
    async fn remove(&self, name: &str, _: u64) -> Result<()> {
        panic!("{name} would be free for a moment")
    }
}

/// The next life took its entry away, and put it anew: another part that waited for the name at
/// another place came in between, and had it. (Found by a walk of a simulated cluster.)
#[test]
fn a_name_that_is_taken_over_is_free_for_nobody_meanwhile() {
    let memory = Memory::new(TERM, 5);
    assert_eq!(step(&registrar(&memory, "node.1", "10.0.0.3:1", 1)), Ok(None));
    let next = Registrar::new(Steady(memory.way()), claim("node.1", "10.0.0.3:1", 2));
    assert!(matches!(run(next.step()), Ok(Step::There(_))));
    assert_eq!(at(&memory, "node.1").as_deref(), Some("10.0.0.3:1 0000000000000002"));
}

#[test]
fn a_part_of_another_cluster_is_refused() {
    let memory = Memory::new(TERM, 4);
    assert_eq!(step(&registrar(&memory, "node.1", "10.0.0.3:1", 1)), Ok(None));
    let other = Claim { cluster: 8, ..claim("node.2", "10.0.0.4:1", 1) };
    let other = Registrar::new(memory.way(), other);
    assert_eq!(step(&other), Ok(Some(Refusal::Cluster(7))));
    assert_eq!(at(&memory, "node.2"), None, "it is not there");
}

/// Whatever is lost, and whenever the coordinator is away or starts again: a name is one part's at
/// a time, and once all answers come whoever beats is there.
#[test]
fn walks_with_lost_answers_and_sessions_end_with_everybody_there() {
    let seeds = std::env::var("OUTBOARD_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(200_u64) {
        let mut rng = Rng::new(seed);
        let memory = Memory::new(TERM, seed ^ 0xABCD);
        memory.fails(3);
        let mut parts: Vec<(usize, Registrar<Way>)> = Vec::new();
        for life in 0..40_u64 {
            let which = usize::try_from(rng.below(3)).unwrap();
            let place = format!("10.0.0.{which}:1");
            match rng.below(5) {
                0 => {
                    // A part dies, and its next life begins.
                    parts.retain(|(other, _)| *other != which);
                    let name = format!("node.{which}");
                    parts.push((which, registrar(&memory, &name, &place, life)));
                }
                1 => memory.passes(Duration::from_secs(rng.below(9))),
                2 => memory.restarts(TERM),
                3 => memory.is_away(rng.chance(1, 3)),
                _ => {}
            }
            for (which, part) in &parts {
                let refused = step(part);
                let lost = matches!(
                    refused,
                    Err(Errno::EIO
                        | Errno::EAGAIN
                        | Errno::ENOENT
                        | Errno::ESTALE
                        | Errno::ENOTCONN)
                );
                assert!(refused == Ok(None) || lost, "seed {seed}: {which} {refused:?}");
            }
        }
        memory.is_away(false);
        memory.fails(0);
        for _ in 0..3 {
            memory.passes(SECOND);
            for (_, part) in &parts {
                let _tries_again = step(part);
            }
        }
        for (which, part) in &parts {
            assert_eq!(step(part), Ok(None), "seed {seed}: {which}");
            assert!(at(&memory, &format!("node.{which}")).is_some(), "seed {seed}: {which}");
        }
    }
}
