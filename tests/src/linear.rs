//! What two hosts are answered of files of one shared volume has an order, while its parts die.
//!
//! Rounds: each has objects of its own (`hand::Kind`: registers, a list, counters under locks, a
//! name made with `O_EXCL`), on which threads of both hosts work, and somebody who is killed or
//! stopped meanwhile. When all is quiet both hosts read everything once more, and each object's
//! history is searched for an order (`history`). That the search finds what is wrong is shown
//! each time: a round whose hands cache and do not lock must be refused for each kind of object,
//! and so must a copy of each history in which one answer is changed.

mod hand;
mod history;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use rustix::process::{Signal, kill_process};

use crate::cluster::Cluster;
use crate::command::wait_until;
use crate::copies::{Away, spread};
use crate::{Result, Side, Volume, context};
use hand::{Hand, KINDS, Kind, Round, Seen};
use history::{Event, Verdict, planted, told, verdict};

/// Threads at each host.
const HANDS: usize = 4;
/// Of a round in which nobody stands still.
const WINDOW: Duration = Duration::from_millis(1500);
/// How long a DPU side stands still: longer than its lease, 11 s.
const STOPPED: Duration = Duration::from_secs(13);
/// How long a node does: longer than others wait for it.
const AWAY: Duration = Duration::from_secs(8);
/// Whoever waits longer than this waits for ever.
const LIMIT: Duration = Duration::from_secs(180);
/// Rounds that a planted fault may hide from.
const TRIES: u64 = 40;
/// Operations of a round, in the middle, on however slow a machine; half are its last look.
const LEAST: u64 = 24;
/// Parts that stand still for seconds take a run of at least so many.
const LENGTHY: u64 = 60;

/// Of what a run is.
pub struct Wanted<'a> {
    /// How long it begins new rounds.
    pub seconds: u64,
    /// Draws what is done, and who dies when.
    pub seed: u64,
    /// Mounts have pages of their own.
    pub is_cached: bool,
    /// The client is a process beside the mount's.
    pub has_dpu: bool,
    /// Where a history goes that has no order.
    pub dir: &'a Path,
}

/// What befalls a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Nobody,
    Node,
    Server,
    Coordinator,
    Cluster,
    /// The DPU side of a host.
    Dpu,
    /// The process that serves a host's mount, beside `run`: the mount stays.
    Mount,
    /// `outboard run` at a host: the mount is gone, and mounted again.
    Run,
    /// That and the DPU side of the host.
    Host,
    /// The DPU side of a host stands still for longer than its lease.
    Stopped,
    /// A node stands still.
    Away,
}

impl Victim {
    /// A client may die, so that a long write is half done until it is done again.
    fn tears(self) -> bool {
        !matches!(
            self,
            Victim::Nobody | Victim::Node | Victim::Coordinator | Victim::Mount | Victim::Away
        )
    }

    fn window(self) -> Duration {
        match self {
            Victim::Stopped => STOPPED + WINDOW,
            Victim::Away => AWAY + WINDOW,
            _ => WINDOW,
        }
    }
}

/// Those of a run, each once, in an order that is drawn.
fn victims(wanted: &Wanted<'_>, rng: &mut Rng) -> Vec<Victim> {
    use Victim::{
        Away, Cluster, Coordinator, Dpu, Host, Mount, Nobody, Node, Run, Server, Stopped,
    };
    let mut all = vec![Nobody, Node, Server, Coordinator, Cluster, Run];
    if wanted.has_dpu {
        all.push(Dpu);
        // With a hybrid cache `run` serves its mount itself, and what lies in it goes with both.
        if !wanted.is_cached {
            all.extend([Mount, Host]);
        }
    }
    if wanted.seconds >= LENGTHY {
        all.push(Away);
        // What lies dirty in a cache when the lease ends is lost, as is said.
        if wanted.has_dpu && !wanted.is_cached {
            all.push(Stopped);
        }
    }
    for at in (1..all.len()).rev() {
        let other = usize::try_from(rng.below(at as u64 + 1)).unwrap_or(0);
        all.swap(at, other);
    }
    all
}

/// Rounds of two hosts.
///
/// # Errors
/// What has no order, or no end.
pub fn run(cluster: &Cluster, hosts: &mut [Volume; 2], wanted: &Wanted<'_>) -> Result<()> {
    let mut rng = Rng::new(wanted.seed);
    canary(hosts, wanted)?;
    let (begun, mut told) = (Instant::now(), Told::default());
    let mut next = Vec::new();
    while begun.elapsed() < Duration::from_secs(wanted.seconds) || told.rounds == 0 {
        if next.is_empty() {
            next = victims(wanted, &mut rng);
        }
        let victim = next.pop().unwrap_or(Victim::Nobody);
        let (number, seed) = (told.rounds, wanted.seed.wrapping_add(told.rounds));
        let shown = round(cluster, hosts, &format!("round-{number}"), victim, seed);
        let judged = shown.and_then(|seen| told.judge(wanted, seen));
        judged.map_err(|error| {
            let logs = hosts.each_ref().map(Volume::log_tail).join("\n");
            format!(
                "round {number} ({victim:?}), seed {seed}: {error}\n{logs}\n{}",
                cluster.log_tail()
            )
        })?;
        told.rounds += 1;
        *told.victims.entry(format!("{victim:?}")).or_default() += 1;
    }
    told.show()
}

/// What a run came to.
#[derive(Default)]
struct Told {
    rounds: u64,
    victims: BTreeMap<String, u64>,
    histories: u64,
    operations: u64,
    unanswered: u64,
    /// Copies with one answer changed that were refused.
    refused: u64,
    undecided: u64,
}

impl Told {
    fn judge(&mut self, wanted: &Wanted<'_>, seen: Seen) -> Result<()> {
        for (kind, events) in by_kind(seen) {
            match verdict(&events) {
                Verdict::Right => {}
                Verdict::Undecided => self.undecided += 1,
                Verdict::Wrong => {
                    let path = wanted.dir.join(format!("history-{}-{kind:?}", self.rounds));
                    let all: String = events.iter().map(|event| format!("{event:?}\n")).collect();
                    context(fs::write(&path, all), || format!("cannot write {}", path.display()))?;
                    let (whole, told) = (path.display(), told(&events));
                    return Err(format!("{kind:?} has no order; all of it is in {whole}\n{told}"));
                }
            }
            match planted(&events).map(|wrong| verdict(&wrong)) {
                Some(Verdict::Right) => {
                    return Err(format!("a changed answer of {kind:?} is not found"));
                }
                Some(Verdict::Wrong) => self.refused += 1,
                Some(Verdict::Undecided) | None => {}
            }
            self.histories += 1;
            self.operations += events.len() as u64;
            let open = events.iter().filter(|event| event.answered.is_none());
            self.unanswered += open.count() as u64;
        }
        Ok(())
    }

    fn show(&self) -> Result<()> {
        let Told { rounds, histories, operations, unanswered, refused, undecided, .. } = self;
        let victims: Vec<String> =
            self.victims.iter().map(|(victim, count)| format!("{victim} {count}")).collect();
        println!("  {rounds} rounds: {}", victims.join(", "));
        println!(
            "  {histories} histories of {operations} operations, {unanswered} of them unanswered, \
             have an order; {refused} changed copies have none; {undecided} too long to tell"
        );
        if *operations < rounds * LEAST {
            return Err("too little was done to show anything".to_owned());
        }
        if undecided * 10 > *histories {
            return Err("too many histories are too long to tell".to_owned());
        }
        Ok(())
    }
}

fn by_kind(seen: Seen) -> BTreeMap<Kind, Vec<Event>> {
    let mut all: BTreeMap<Kind, Vec<Event>> = BTreeMap::new();
    for (kind, event) in seen {
        all.entry(kind).or_default().push(event);
    }
    all
}

/// Hands that cache what they read and lock nothing are found out, by each kind of object.
fn canary(hosts: &[Volume; 2], wanted: &Wanted<'_>) -> Result<()> {
    let mut missed = vec![Kind::Kept, Kind::Direct, Kind::Records, Kind::OpenFile, Kind::Name];
    let all = missed.len();
    for number in 0..TRIES {
        let mounts = hosts.each_ref().map(Volume::mountpoint);
        let round = Round::at(&format!("planted-{number}"), WINDOW, false, true);
        let seed = wanted.seed.wrapping_add(number);
        let hands = begin(&round, &mounts, (None, false), seed)?;
        thread::sleep(WINDOW);
        let seen = by_kind(end(&round, hands, &mounts, seed)?);
        missed.retain(|kind| seen.get(kind).is_none_or(|events| verdict(events) != Verdict::Wrong));
        if missed.is_empty() {
            println!("  planted faults are found in all {all} kinds, after {} rounds", number + 1);
            return Ok(());
        }
    }
    Err(format!("caches and races were planted, and not found with {missed:?}"))
}

impl Round {
    fn at(name: &str, window: Duration, may_tear: bool, is_planted: bool) -> Arc<Round> {
        Arc::new(Round {
            name: name.to_owned(),
            begun: Instant::now(),
            window,
            stop: AtomicBool::new(false),
            values: AtomicU64::new(0),
            done: Default::default(),
            may_tear,
            is_planted,
            doing: Mutex::default(),
        })
    }
}

type Hands = Vec<JoinHandle<Result<Seen>>>;

/// Makes the objects of a round, of which both hosts see the names, and sets hands to work: at a
/// host whose mount may die, on files that may have copies.
fn begin(
    round: &Arc<Round>,
    mounts: &[PathBuf; 2],
    (dies, has_copies): (Option<usize>, bool),
    seed: u64,
) -> Result<Hands> {
    let [one, other] = mounts.each_ref().map(|mount| mount.join(&round.name));
    context(fs::create_dir(&one), || format!("cannot make {}", one.display()))?;
    if has_copies && env::var_os("OUTBOARD_LAYOUT").is_none() {
        spread(&one, "ring", 2)?;
    }
    let made = |dir: &Path| KINDS.iter().try_for_each(|kind| kind.make(dir));
    context(made(&one), || format!("objects in {}", one.display()))?;
    if !wait_until(LIMIT, || other.is_dir()) {
        return Err(format!("{} does not show", other.display()));
    }
    let mut hands = Vec::new();
    for (host, mount) in mounts.iter().enumerate() {
        for number in 0..HANDS {
            let own = seed.wrapping_mul(64).wrapping_add((host * HANDS + number) as u64);
            let hand = Hand::new(round, mount, (host, number), dies == Some(host), own);
            hands.push(thread::spawn(move || hand.run()));
        }
    }
    Ok(hands)
}

/// Waits for the hands, and looks at everything once more from both hosts.
fn end(round: &Arc<Round>, hands: Hands, mounts: &[PathBuf; 2], seed: u64) -> Result<Seen> {
    round.stop.store(true, Ordering::Release);
    if !wait_until(LIMIT, || hands.iter().all(JoinHandle::is_finished)) {
        let doing = round.doing.lock().map(|doing| format!("{doing:?}"));
        return Err(format!("hands do not end: {}", doing.unwrap_or_default()));
    }
    let mut seen = Seen::new();
    for hand in hands {
        seen.extend(hand.join().map_err(|_| "a hand panicked".to_owned())??);
    }
    for (host, mount) in mounts.iter().enumerate() {
        let hand = Hand::new(round, mount, (host, HANDS), false, seed);
        seen.extend(hand.last().map_err(|error| format!("at the end: {error}"))?);
    }
    Ok(seen)
}

/// A round: hands at work, somebody dies, and all that was answered.
fn round(
    cluster: &Cluster,
    hosts: &mut [Volume; 2],
    name: &str,
    victim: Victim,
    seed: u64,
) -> Result<Seen> {
    let mut rng = Rng::new(seed);
    let mounts = hosts.each_ref().map(Volume::mountpoint);
    let host = usize::from(rng.chance(1, 2));
    let round = Round::at(name, victim.window(), victim.tears(), false);
    let dies = matches!(victim, Victim::Run | Victim::Host).then_some(host);
    let hands = begin(&round, &mounts, (dies, rng.chance(1, 2)), seed)?;
    thread::sleep(WINDOW.mul_f64(rng.below(500) as f64 / 1000.0));
    strike(cluster, hosts.get_mut(host).ok_or("no host")?, victim, &mut rng)?;
    thread::sleep(round.window.saturating_sub(round.begun.elapsed()));
    let seen = end(&round, hands, &mounts, seed)?;
    cluster.wait()?;
    Ok(seen)
}

fn strike(cluster: &Cluster, host: &mut Volume, victim: Victim, rng: &mut Rng) -> Result<()> {
    let node = format!("node.{}", 1 + rng.below(3));
    match victim {
        Victim::Nobody => Ok(()),
        Victim::Node => cluster.kill(&node),
        Victim::Server => cluster.kill("meta"),
        Victim::Coordinator => cluster.kill("coordinator"),
        Victim::Cluster => {
            let all = ["coordinator", "meta", "node.1", "node.2", "node.3"];
            all.iter().try_for_each(|part| cluster.kill(part))
        }
        Victim::Dpu => host.kill(&[Side::Dpu]),
        Victim::Mount => {
            // One that is just replaced is there soon.
            wait_until(LIMIT, || host.kill_below_run(true, false));
            Ok(())
        }
        Victim::Run | Victim::Host => {
            let sides = [Side::Host, Side::Dpu];
            let count = if victim == Victim::Run { 1 } else { 2 };
            host.kill(sides.get(..count).unwrap_or_default())?;
            thread::sleep(Duration::from_millis(rng.below(300)));
            host.start()
        }
        Victim::Stopped => {
            let pid = host.pid(Side::Dpu)?;
            let signal = |signal| context(kill_process(pid, signal), || format!("no {pid:?}"));
            signal(Signal::STOP)?;
            thread::sleep(STOPPED);
            signal(Signal::CONT)
        }
        Victim::Away => {
            let away = Away::stop(cluster, &[&node])?;
            thread::sleep(AWAY);
            drop(away);
            Ok(())
        }
    }
}
