use super::*;
use crate::mem::{Faults, MemCluster, MemPool};
use outboard_base::Rng;
use outboard_base::task::run;

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

fn taking(name: &str, place: u64, wanted: Wanted) -> Taking {
    Taking::new(Me { name: name.into(), place }, wanted, Terms::default())
}

fn mine(taken: Result<Taken, ClaimError>) -> Claim {
    match taken {
        Ok(Taken::Mine(claim)) => claim,
        other => panic!("not ours: {other:?}"),
    }
}

fn wait(taken: Result<Taken, ClaimError>) -> Time {
    match taken {
        Ok(Taken::Wait(until)) => until,
        other => panic!("not a wait: {other:?}"),
    }
}

#[test]
fn a_second_is_refused_by_name_and_gets_what_is_released() {
    let cluster = MemCluster::new(1);
    let (a, b) = (cluster.client(), cluster.client());
    let mut first = mine(run(taking("host a", 0, Wanted::OrNew(7)).step(&a, at(0))));
    assert_eq!((first.volume(), first.epoch()), (7, 1));
    let mut second = taking("host b", 0, Wanted::Only(7));
    assert_eq!(wait(run(second.step(&b, at(1)))), at(1));
    assert_eq!(wait(run(second.step(&b, at(1)))), at(4));
    run(first.renew(&a, at(3))).unwrap();
    let refused = run(second.step(&b, at(4))).unwrap_err();
    assert_eq!(refused, ClaimError::Held("host a".into()));
    assert!(refused.to_string().contains("host a"));
    run(first.release(&a)).unwrap();
    let second = mine(run(taking("host b", 0, Wanted::Any).step(&b, at(5))));
    assert_eq!((second.volume(), second.epoch()), (7, 2));
    // Nobody was fenced.
    assert!(run(a.stat(HEAD)).is_ok());
}

#[test]
fn what_has_expired_is_taken_over_after_a_fence() {
    let cluster = MemCluster::new(1);
    let (a, b) = (cluster.client(), cluster.client());
    let mut first = mine(run(taking("host a", 0, Wanted::OrNew(7)).step(&a, at(0))));
    let mut second = taking("host b", 0, Wanted::Any);
    for now in 100..121 {
        wait(run(second.step(&b, at(now))));
    }
    assert!(first.serves_until() < at(100));
    let second = mine(run(second.step(&b, at(121))));
    assert_eq!(second.epoch(), 2);
    assert_eq!(run(first.renew(&a, at(122))), Err(ClaimError::Pool(PoolError::Fenced)));
}

#[test]
fn a_dead_one_of_our_own_place_is_not_waited_for() {
    let cluster = MemCluster::new(1);
    let (a, b) = (cluster.client(), cluster.client());
    mine(run(taking("one", 5, Wanted::OrNew(7)).step(&a, at(0))));
    wait(run(taking("two", 6, Wanted::Any).step(&b, at(1))));
    assert_eq!(mine(run(taking("three", 5, Wanted::Any).step(&b, at(1)))).epoch(), 2);
    assert!(run(a.stat(HEAD)).is_err(), "and fenced all the same");
}

#[test]
fn what_is_not_ours_is_refused() {
    let cluster = MemCluster::new(1);
    let pool = cluster.client();
    let refused = |wanted| run(taking("a", 0, wanted).step(&pool, at(0))).unwrap_err();
    assert_eq!(refused(Wanted::Any), ClaimError::Missing);
    run(pool.apply("theirs", Op::new().then(Step::Create))).unwrap();
    assert_eq!(refused(Wanted::OrNew(1)), ClaimError::Foreign);
    run(pool.apply(HEAD, Op::new().then(Step::Replace(b"hello".into())))).unwrap();
    assert_eq!(refused(Wanted::OrNew(1)), ClaimError::Foreign);
    let head = Head {
        volume: 3,
        claim_epoch: 1,
        beat: 1,
        place: 0,
        held: false,
        expiry: 0,
        instance: "i".into(),
        name: "n".into(),
    };
    let mut bytes = head.encode().to_vec();
    run(pool.apply(HEAD, Op::new().then(Step::Replace(bytes.clone().into())))).unwrap();
    assert_eq!(refused(Wanted::Only(4)), ClaimError::OtherVolume(3));
    bytes[8] = 2;
    run(pool.apply(HEAD, Op::new().then(Step::Replace(bytes.into())))).unwrap();
    let format = refused(Wanted::Any);
    assert_eq!(format, ClaimError::Format(2));
    assert!(format.to_string().contains("format 2"));
    cluster.set_faults(Faults { gone: true, ..Faults::default() });
    assert_eq!(refused(Wanted::Any), ClaimError::Pool(PoolError::TimedOut));
}

#[test]
fn a_pause_is_survived_and_a_doubtful_renewal_is_found() {
    let cluster = MemCluster::new(1);
    let pool = cluster.client();
    let mut claim = mine(run(taking("a", 0, Wanted::OrNew(1)).step(&pool, at(0))));
    cluster.set_faults(Faults { gone: true, ..Faults::default() });
    for now in 3..30 {
        assert_eq!(run(claim.renew(&pool, at(now))), Err(ClaimError::Pool(PoolError::TimedOut)));
    }
    assert!(claim.serves_until() < at(30));
    cluster.set_faults(Faults { time_outs: 2, repeats: 3, ..Faults::default() });
    let mut confirmed = 0;
    for now in 30..300 {
        confirmed += u32::from(run(claim.renew(&pool, at(now))).is_ok());
    }
    assert!(confirmed > 50);
    cluster.set_faults(Faults::default());
    run(claim.renew(&pool, at(300))).unwrap();
    assert_eq!(claim.serves_until(), at(317));
}

/// A look at the head takes time, too: who counted the expiry from before it took the claim of an
/// owner whose last beat was as young as the answer, and which still served.
#[test]
fn what_is_watched_is_not_older_than_the_look() {
    let cluster = MemCluster::new(1);
    let (a, b) = (cluster.client(), cluster.client());
    let mut first = mine(run(taking("host a", 0, Wanted::OrNew(7)).step(&a, at(0))));
    let mut second = taking("host b", 0, Wanted::Any);
    // Its look begins in second 0 and arrives in second 15.
    run(first.renew(&a, at(15))).unwrap();
    assert_eq!(wait(run(second.step(&b, at(0)))), at(0));
    let taken = (16..100).find(|&now| matches!(run(second.step(&b, at(now))), Ok(Taken::Mine(_))));
    assert_eq!(taken, Some(36));
    assert!(first.serves_until() < at(36));
}

/// Whoever has short time limits took over from an owner with long ones while it still served.
#[test]
fn the_owner_says_how_long_it_takes_to_expire() {
    let cluster = MemCluster::new(1);
    let (a, b) = (cluster.client(), cluster.client());
    let patient = Terms { expiry: Duration::from_secs(300), ..Terms::default() };
    let me = Me { name: "host a".into(), place: 0 };
    let first = mine(run(Taking::new(me, Wanted::OrNew(7), patient).step(&a, at(0))));
    let mut second = taking("host b", 0, Wanted::Any);
    let taken = (0..400).find(|&now| matches!(run(second.step(&b, at(now))), Ok(Taken::Mine(_))));
    assert_eq!(taken, Some(301));
    assert!(first.serves_until() < at(301));
}

/// One of those who want it: it steps at moments of its own, by a clock of its own.
struct Contender {
    pool: MemPool,
    skew: u64,
    taking: Option<Taking>,
    claim: Option<Claim>,
    /// When its next step arrives at the pool, and when its last one did.
    at: u64,
    last: u64,
}

impl Contender {
    fn new(cluster: &MemCluster, rng: &mut Rng, at: u64) -> Contender {
        let me = Me { name: "somebody".into(), place: 0 };
        let expiry = Duration::from_secs(10 + rng.below(30));
        let terms = Terms { expiry, ..Terms::default() };
        Contender {
            pool: cluster.client(),
            skew: rng.below(1_000_000),
            taking: Some(Taking::new(me, Wanted::OrNew(rng.next_u64()), terms)),
            claim: None,
            at,
            last: at,
        }
    }

    /// Steps, renews, or stalls; a loser comes again as a new client.
    fn act(&mut self, cluster: &MemCluster, rng: &mut Rng) {
        // It looked at its clock before it asked, which takes its time.
        let way = rng.below((self.at - self.last).min(15) + 1);
        let now = Time((self.at - way + self.skew) * 1_000_000_000);
        self.last = self.at;
        self.at += 1 + rng.below(4) + if rng.chance(1, 12) { rng.below(60) } else { 0 };
        let lost = if let Some(taking) = &mut self.taking {
            match run(taking.step(&self.pool, now)) {
                Ok(Taken::Mine(claim)) => {
                    self.claim = Some(claim);
                    self.taking = None;
                    false
                }
                Ok(Taken::Wait(_)) => false,
                Err(error) => !matches!(error, ClaimError::Pool(PoolError::TimedOut)),
            }
        } else if let Some(claim) = &mut self.claim {
            match run(claim.renew(&self.pool, now)) {
                Ok(()) => false,
                Err(error) => !matches!(error, ClaimError::Pool(PoolError::TimedOut)),
            }
        } else {
            true
        };
        if lost {
            *self = Contender::new(cluster, rng, self.at);
        }
    }

    fn serves(&self, now: u64) -> bool {
        let now = Time((now + self.skew) * 1_000_000_000);
        self.claim.as_ref().is_some_and(|claim| now < claim.serves_until())
    }
}

/// Four hosts that stall for longer than the claim lasts, each by its own terms, whose operations
/// take their time, are lost, late and repeated: never do two think that they may serve, and each
/// claim epoch has one owner.
///
/// Who found its own swap or renewal of long ago in the head used to count it from then on, though
/// others had watched that same head nearly for as long as it takes to expire: two served.
#[test]
fn two_never_serve_at_once() {
    let mut owners = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let cluster = MemCluster::new(seed);
        let faults = Faults {
            delay_polls: 2,
            time_outs: 8,
            repeats: 6,
            read_time_outs: 20,
            ..Faults::default()
        };
        cluster.set_faults(faults);
        let mut hosts: Vec<Contender> =
            (0..4).map(|_| Contender::new(&cluster, &mut rng, 0)).collect();
        let mut epochs = std::collections::BTreeMap::new();
        for now in 0..1500 {
            for host in &mut hosts {
                if host.at <= now {
                    host.at = now;
                    host.act(&cluster, &mut rng);
                }
            }
            for host in &hosts {
                let Some(claim) = &host.claim else { continue };
                let owner = epochs.entry(claim.epoch()).or_insert_with(|| host.pool.instance());
                assert_eq!(*owner, host.pool.instance(), "seed {seed}, second {now}");
            }
            let serving = hosts.iter().filter(|host| host.serves(now)).count();
            assert!(serving <= 1, "seed {seed}: {serving} serve in second {now}");
        }
        owners += epochs.len();
    }
    assert!(owners > 600, "the claim changed hands {owners} times only");
}
