//! Everything at once, for long: six nodes, two hosts, programs and checkers of what was answered,
//! and kill -9 of whatever there is, in an order that a seed draws. Nothing answered is lost while
//! no more nodes are away than the layouts bear, writes go on, and in the end all members are
//! equal (NetDFS; DPC 4.3). Where it is wished cables are cut, too, bytes of nodes rot, and nodes
//! are full.
//!
//! At each host a program of each kind goes on in turns, in directories of one copy, of three, and
//! of stripes: fio with its own verification, read again at the other host; sqlite3; git. Beside
//! them a [`Pulse`] for each layout, and a [`Worker`]. Who runs into the end of its mount begins
//! again under the next, and finds all that it was answered.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::cluster::Cluster;
use crate::command::{run_limited, wait_until};
use crate::copies::{Away, lay_out};
use crate::crash::{Mode, Worker};
use crate::ensemble::ensemble;
use crate::pulse::{Beats, Pulse};
use crate::standby::one_serves;
use crate::{Result, Side, Volume, context};

/// Nodes of the cluster.
pub const NODES: usize = 6;
/// What a node takes where nodes become full, beside what who works needs.
pub const CAPACITY: &str = "--capacity=384M";
/// Directories and how files lie in them. Those of one copy wait for a node that is away.
const LAYOUTS: [(&str, &str); 3] = [
    ("one", "strategy=single,width=2"),
    ("ring", "strategy=ring,k=3"),
    ("parity", "strategy=parity,k=3,m=2"),
];
const ONE: usize = 0;
/// Where bytes rot: nobody else has what is damaged of a file of one copy.
const TREE: (&str, &str) = ("tree", "strategy=tree,k=3");
/// Where a file lies that takes all space there is.
const FILL: (&str, &str) = ("fill", "strategy=single,width=6");
/// Grains of a node that rot at a time: a sixth of all there are, of which most are free.
const ROTS: usize = 8192;
const GRAIN: u64 = 8192;
/// How much of each is zero then.
const ROTTEN: u64 = 4096;
/// Nodes that may be away at a time: what the others bear.
const BEARS: u64 = 2;
const PROGRAMS: [&str; 3] = ["fio", "sqlite", "git"];
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/helpers/soak.bash");
/// How long a turn of a program may take, and a write.
const TURN: Duration = Duration::from_secs(600);
const STALL: Duration = Duration::from_secs(60);
/// How long all that nodes lack may take to be given to them, under load.
const HEALED: Duration = Duration::from_secs(600);
/// What a write may take where a node is lost.
const ASKED: Duration = Duration::from_secs(3);

/// What a soak is to be.
pub struct Wanted<'a> {
    /// How long.
    pub time: Duration,
    /// Repeats the order of kills.
    pub seed: u64,
    /// Of `scripts/zookeeper`: it is the coordinator, and its servers are killed.
    pub ensemble: Option<&'a Path>,
    /// The network of each part and host is a namespace of its own: cables are cut, too.
    pub cuts: bool,
    /// Nodes have [`CAPACITY`]: they are filled, too, and what they have rots.
    pub disks: bool,
    /// Where journals go.
    pub dir: &'a Path,
}

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// Some nodes, which are started again at once.
    Nodes,
    /// Some nodes are gone for seconds.
    Away,
    /// A metadata server, of as many as there are.
    Server,
    Coordinator,
    /// The cable of a node, or what goes between it and another.
    Cable,
    /// What goes between a host and the server.
    Host,
    /// Bytes of a node.
    Bytes,
    /// All space that the nodes have is taken for a while.
    Space,
    /// A server of the ensemble, or the one that leads it.
    One,
    Leader,
    Dpu,
    Mount,
}

impl Victim {
    /// Whether nodes lack something afterwards.
    fn is_node(self) -> bool {
        matches!(self, Victim::Nodes | Victim::Away | Victim::Cable | Victim::Bytes)
    }
}

/// A host, as who works there sees it.
struct Host {
    mount: PathBuf,
    /// Odd while its mount is dead, or nodes are full.
    life: AtomicU64,
}

impl Host {
    /// Another life begins, or ends.
    fn turns(&self) {
        self.life.fetch_add(1, Ordering::SeqCst);
    }
}

struct Shared {
    hosts: Vec<Host>,
    layouts: [(&'static str, &'static str); LAYOUTS.len()],
    stop: AtomicBool,
    /// Workers are to compare what is there.
    verify: Arc<AtomicBool>,
    failed: Mutex<Option<String>>,
    turns: [AtomicU64; PROGRAMS.len()],
    /// Of each host and layout.
    beats: Vec<(usize, usize, Arc<Beats>)>,
}

impl Shared {
    fn lives(&self) -> Vec<u64> {
        self.hosts.iter().map(|host| host.life.load(Ordering::SeqCst)).collect()
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst) || self.failure().is_some()
    }

    fn failure(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does work again and again. It may fail if a mount died meanwhile.
    fn go_on(&self, what: &str, mut work: impl FnMut(&Shared) -> Result<()>) {
        while !self.is_over() {
            let lives = self.lives();
            if lives.iter().any(|life| life % 2 == 1) {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            if let Err(error) = work(self)
                && self.lives() == lives
            {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(format!("{what}: {error}"));
            }
        }
    }
}

/// What one who worked has to show in the end, at the other host.
type Show = Box<dyn FnOnce(&Path) -> Result<()> + Send>;

/// One who works at a host.
struct Hand {
    thread: JoinHandle<Show>,
    /// Below a mount.
    place: PathBuf,
    host: usize,
}

/// Runs under two mounts of a cluster of [`NODES`].
///
/// # Errors
/// Something that was answered is not there, or does not come to an end.
pub fn run(cluster: &Cluster, volumes: &mut [Volume], wanted: &Wanted<'_>) -> Result<()> {
    let mounts: Vec<PathBuf> = volumes.iter().map(Volume::mountpoint).collect();
    let first = mounts.first().ok_or("no host")?;
    let mut layouts = LAYOUTS;
    if wanted.disks {
        layouts[ONE] = TREE;
    }
    let fills = wanted.disks.then_some(FILL);
    for (name, layout) in layouts.into_iter().chain(fills) {
        let dir = first.join(name);
        context(fs::create_dir(&dir), || format!("cannot make {}", dir.display()))?;
        lay_out(&dir, layout)?;
    }
    let places =
        (0..mounts.len()).flat_map(|host| (0..LAYOUTS.len()).map(move |layout| (host, layout)));
    let beats = places.map(|(host, layout)| (host, layout, Arc::default())).collect();
    let hosts = mounts.into_iter().map(|mount| Host { mount, life: AtomicU64::new(0) });
    let shared = Arc::new(Shared {
        hosts: hosts.collect(),
        layouts,
        stop: AtomicBool::new(false),
        verify: Arc::default(),
        failed: Mutex::default(),
        turns: Default::default(),
        beats,
    });
    let hands = begin(&shared, wanted)?;
    let rng = Rng::new(wanted.seed);
    let longest = Default::default();
    Killer { cluster, volumes, shared: &shared, wanted, rng, longest, late: 0, damaged: 0 }
        .run()?;
    shared.stop.store(true, Ordering::SeqCst);
    shared.verify.store(true, Ordering::SeqCst);
    cluster.wait()?;
    for hand in hands {
        let show = hand.thread.join().map_err(|_| "who works panicked".to_owned())?;
        if let Some(failed) = shared.failure() {
            return Err(failed);
        }
        let other = (hand.host + 1) % shared.hosts.len();
        let mount = shared.hosts.get(other).map(|host| host.mount.clone()).unwrap_or_default();
        show(&mount.join(&hand.place)).map_err(|error| format!("in the end: {error}"))?;
    }
    let turns = shared.turns.iter().zip(PROGRAMS);
    for (turns, program) in turns {
        println!("  {} turns of {program}", turns.load(Ordering::Relaxed));
    }
    let answered = shared.beats.iter().map(|(_, _, beats)| beats.answered.load(Ordering::Relaxed));
    println!("  {} writes of checkers answered, and there", answered.sum::<u64>());
    Ok(())
}

/// Who works begins, at all hosts.
fn begin(shared: &Arc<Shared>, wanted: &Wanted<'_>) -> Result<Vec<Hand>> {
    let mut hands = Vec::new();
    for (host, layout, beats) in &shared.beats {
        let name = shared.layouts.get(*layout).map_or("", |(name, _)| *name);
        let place = PathBuf::from(format!("{name}/pulse-{host}"));
        let seed = wanted.seed ^ hands.len() as u64;
        hands.push(pulse(shared, *host, place, Pulse::new(seed, Arc::clone(beats))));
    }
    for (host, at) in shared.hosts.iter().zip(0..) {
        let (name, _) = shared.layouts.get(1 + at % 2).copied().unwrap_or_default();
        let place = PathBuf::from(format!("{name}/worker-{at}"));
        let journal = wanted.dir.join(format!("journal-{at}"));
        let worker = Worker::new(&host.mount.join(&place), &journal, wanted.seed ^ at as u64)?;
        hands.push(works(shared, at, place, worker));
        for (program, verb) in PROGRAMS.into_iter().enumerate() {
            let state = wanted.dir.join(format!("{verb}-{at}"));
            let turns = Turns { shared: Arc::clone(shared), host: at, program, verb, state };
            hands.push(turns.begin());
        }
    }
    Ok(hands)
}

fn mount(shared: &Shared, host: usize) -> PathBuf {
    shared.hosts.get(host).map(|host| host.mount.clone()).unwrap_or_default()
}

fn pulse(shared: &Arc<Shared>, host: usize, place: PathBuf, mut pulse: Pulse) -> Hand {
    let (shared, below) = (Arc::clone(shared), place.clone());
    let thread = thread::spawn(move || {
        let path = mount(&shared, host).join(&below);
        let what = format!("the checker of {}", path.display());
        shared.go_on(&what, |shared| pulse.run(&path, &shared.stop));
        let shows = move |path: &Path| {
            pulse.verify(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        Box::new(shows) as Show
    });
    Hand { thread, place, host }
}

fn works(shared: &Arc<Shared>, host: usize, place: PathBuf, mut worker: Worker) -> Hand {
    let shared = Arc::clone(shared);
    let thread = thread::spawn(move || {
        let mode = Mode { syncs: true, mount_may_die: true };
        shared.go_on("a worker", |shared| {
            if worker.is_cut_off() {
                return worker.verify();
            }
            worker.run(mode, &shared.verify)?;
            if worker.is_cut_off() {
                return Err("an operation failed, and its mount lives".to_owned());
            }
            worker.verify()?;
            while shared.verify.load(Ordering::Relaxed) && !shared.is_over() {
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        let shows = move |_: &Path| worker.verify();
        Box::new(shows) as Show
    });
    Hand { thread, place, host }
}

/// A program that goes on in turns, in the directory of one layout after the other.
struct Turns {
    shared: Arc<Shared>,
    host: usize,
    program: usize,
    verb: &'static str,
    /// Where it is noted what was acknowledged.
    state: PathBuf,
}

impl Turns {
    fn once(&self, layout: usize) -> Result<()> {
        let layouts = self.shared.layouts;
        let (name, _) = layouts.get(layout % layouts.len()).copied().unwrap_or_default();
        let own = format!("{name}/{}-{}", self.verb, self.host);
        let state = self.state.join(name);
        context(fs::create_dir_all(&state), || format!("cannot make {}", state.display()))?;
        let other = (self.host + 1) % self.shared.hosts.len();
        let mut command = Command::new(SCRIPT);
        command.arg(self.verb).arg(mount(&self.shared, self.host).join(&own));
        command.arg(mount(&self.shared, other).join(&own)).arg(&state);
        let ended = run_limited(command, TURN, &state.join("turn.log"))?;
        if ended.code() != Some(0) {
            return Err(format!("in {own} it ended with {:?}: {}", ended.code(), ended.tail(10)));
        }
        if let Some(turns) = self.shared.turns.get(self.program) {
            turns.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn begin(self) -> Hand {
        let host = self.host;
        let thread = thread::spawn(move || {
            let mut turn = host + self.program;
            let shared = Arc::clone(&self.shared);
            shared.go_on(self.verb, |_| {
                self.once(turn)?;
                turn += 1;
                Ok(())
            });
            // The last turn in each directory finds what was answered there.
            let shows = move |_: &Path| (0..LAYOUTS.len()).try_for_each(|layout| self.once(layout));
            Box::new(shows) as Show
        });
        Hand { thread, place: PathBuf::new(), host }
    }
}

/// Who kills, at moments and in an order that a seed draws.
struct Killer<'a> {
    cluster: &'a Cluster,
    volumes: &'a mut [Volume],
    shared: &'a Shared,
    wanted: &'a Wanted<'a>,
    rng: Rng,
    /// The longest writes beside a node that was lost, of each layout.
    longest: [Duration; LAYOUTS.len()],
    /// Rounds of nodes in which a write of a file that bears it took longer than asked.
    late: u64,
    /// Grains that were found damaged.
    damaged: u64,
}

/// What a check counted.
fn counted(output: &str, what: &str) -> u64 {
    let mut words = output.split_whitespace().skip_while(|word| *word != what);
    words.nth(1).and_then(|count| count.parse().ok()).unwrap_or(0)
}

impl Killer<'_> {
    fn run(&mut self) -> Result<()> {
        let begun = Instant::now();
        let mut rounds = 0;
        self.goes_on(&[], "all is there")?;
        while begun.elapsed() < self.wanted.time {
            let pause = self.rng.below(2000);
            self.wait(pause)?;
            let victim = self.draw();
            if victim.is_node() {
                // What was away before lacks something, and counts among those that may be away.
                self.is_healed()?;
            }
            self.shared.beats.iter().for_each(|(_, _, beats)| {
                beats.longest.store(0, Ordering::Relaxed);
            });
            let what = self.strike(victim)?;
            let longest = self.longest();
            let [one, ring, parity] = longest.map(|longest| longest.as_secs_f64());
            let at = begun.elapsed().as_secs_f64();
            println!("  {at:>6.1} s  {what:<40} {one:>5.1} {ring:>5.1} {parity:>5.1} s");
            if victim.is_node() {
                let late = longest.iter().skip(ONE + 1).any(|longest| *longest >= ASKED);
                self.late += u64::from(late);
                for (all, longest) in self.longest.iter_mut().zip(longest) {
                    *all = longest.max(*all);
                }
            }
            rounds += 1;
            self.shared.verify.store(true, Ordering::Relaxed);
            self.wait(300)?;
            self.shared.verify.store(false, Ordering::Relaxed);
        }
        self.is_healed()?;
        let [one, ring, parity] = self.longest.map(|longest| longest.as_secs_f64());
        println!(
            "  {rounds} rounds; the longest writes beside a lost node: {one:.1} s of one copy, \
             {ring:.1} of three, {parity:.1} of stripes; {} rounds over {ASKED:?}; {} grains were \
             found damaged, and mended",
            self.late, self.damaged
        );
        Ok(())
    }

    /// Who dies next.
    fn draw(&mut self) -> Victim {
        let of_coordinator: &[Victim] = match self.wanted.ensemble {
            Some(_) => &[Victim::One, Victim::Leader],
            None => &[Victim::Coordinator],
        };
        let others = [Victim::Server, Victim::Dpu, Victim::Mount];
        let nodes = [Victim::Nodes, Victim::Away, Victim::Nodes, Victim::Away];
        let cables: &[Victim] = &[Victim::Cable, Victim::Cable, Victim::Cable, Victim::Host];
        let disks: &[Victim] = &[Victim::Bytes, Victim::Bytes, Victim::Space];
        let wished = [(self.wanted.cuts, cables), (self.wanted.disks, disks)];
        let wished = wished.iter().filter(|(is_wished, _)| *is_wished).flat_map(|(_, some)| *some);
        let all = nodes.iter().chain(&others).chain(of_coordinator).chain(wished);
        let all: Vec<Victim> = all.copied().collect();
        *self.one_of(&all).unwrap_or(&Victim::Nodes)
    }

    fn one_of<'t, T>(&mut self, all: &'t [T]) -> Option<&'t T> {
        let at = self.rng.below(all.len().max(1) as u64);
        all.get(usize::try_from(at).ok()?)
    }

    /// Parts of the cluster whose names begin so, in an order that is drawn.
    fn parts(&mut self, kind: &str) -> Result<Vec<String>> {
        let status = self.cluster.status()?;
        let parts = status["parts"].as_object().ok_or("`cluster status` names no parts")?;
        let mut left: Vec<String> =
            parts.keys().filter(|part| part.starts_with(kind)).cloned().collect();
        let mut drawn = Vec::new();
        while !left.is_empty() {
            let at = usize::try_from(self.rng.below(left.len() as u64)).unwrap_or(0);
            drawn.push(left.swap_remove(at));
        }
        Ok(drawn)
    }

    /// Has somebody die, and all go on; who it was.
    fn strike(&mut self, victim: Victim) -> Result<String> {
        let what = match victim {
            Victim::Nodes => {
                let nodes = self.nodes()?;
                nodes.iter().try_for_each(|node| self.cluster.kill(node))?;
                format!("killed {}", nodes.join(" "))
            }
            Victim::Away => return self.away(),
            Victim::Cable => return self.cuts_node(),
            Victim::Host => return self.cuts_host(),
            Victim::Bytes => return self.rots(),
            Victim::Space => return self.fills(),
            Victim::Server => {
                let servers = self.parts("meta")?;
                let server = servers.first().ok_or("no server")?;
                if servers.len() > 1 && self.rng.chance(1, 2) {
                    return self.stands_still();
                }
                self.cluster.kill(server)?;
                format!("killed {server}")
            }
            Victim::Coordinator => self.kill("coordinator")?,
            Victim::One | Victim::Leader => {
                let servers = self.wanted.ensemble.ok_or("no ensemble")?;
                let number = (1 + self.rng.below(3)).to_string();
                let which = if victim == Victim::Leader { "leader" } else { number.as_str() };
                ensemble("kill", servers, which)?;
                self.wait(1000)?;
                ensemble("revive", servers, "all")?;
                format!("killed ensemble's {which}")
            }
            Victim::Dpu => self.kill_at_host(Side::Dpu)?,
            Victim::Mount => self.kill_at_host(Side::Host)?,
        };
        self.cluster.wait()?;
        self.goes_on(&[], &what)?;
        Ok(what)
    }

    /// The server that serves stands still, and another takes over.
    fn stands_still(&mut self) -> Result<String> {
        let server = one_serves(self.cluster, None)?;
        let stopped = Away::stop(self.cluster, &[&server])?;
        let other = one_serves(self.cluster, Some(&server))?;
        let what = format!("stopped {server}, {other} took over");
        self.goes_on(&[], &what)?;
        drop(stopped);
        self.cluster.wait()?;
        self.goes_on(&[], &what)?;
        Ok(what)
    }

    fn nodes(&mut self) -> Result<Vec<String>> {
        let mut nodes = self.parts("node.")?;
        nodes.truncate(usize::try_from(1 + self.rng.below(BEARS)).unwrap_or(1));
        Ok(nodes)
    }

    /// Nodes are gone for seconds: files of more than one copy are written to all the same, also if
    /// somebody else dies meanwhile.
    fn away(&mut self) -> Result<String> {
        let nodes = self.nodes()?;
        let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let gone = Away::stop(self.cluster, &names)?;
        let mut what = format!("stopped {}", nodes.join(" "));
        self.goes_on(&[ONE], &what)?;
        let time = self.rng.below(4000);
        self.wait(time)?;
        if self.rng.chance(1, 2) {
            let others = [Victim::Coordinator, Victim::Server, Victim::Dpu];
            let also = match *self.one_of(&others).unwrap_or(&Victim::Coordinator) {
                Victim::Coordinator if self.wanted.ensemble.is_some() => None,
                Victim::Dpu => Some(self.kill_at_host(Side::Dpu)?),
                Victim::Server => Some(self.kill("meta")?),
                _ => Some(self.kill("coordinator")?),
            };
            what = also.map_or_else(|| what.clone(), |also| format!("{what}, {also}"));
            self.goes_on(&[ONE], &what)?;
        }
        drop(gone);
        self.cluster.wait()?;
        self.goes_on(&[], &what)?;
        Ok(what)
    }

    fn kill(&self, part: &str) -> Result<String> {
        self.cluster.kill(part)?;
        Ok(format!("killed {part}"))
    }

    fn kill_at_host(&mut self, side: Side) -> Result<String> {
        let at = usize::try_from(self.rng.below(self.volumes.len() as u64)).unwrap_or(0);
        let volume = self.volumes.get_mut(at).ok_or("no host")?;
        if side == Side::Dpu {
            volume.kill(&[side])?;
            return Ok(format!("killed the DPU side of host {at}"));
        }
        let host = self.shared.hosts.get(at).ok_or("no host")?;
        host.turns();
        volume.kill(&[side])?;
        context(volume.start(), || "starting after the kill".to_owned())?;
        host.turns();
        Ok(format!("killed the mount of host {at}"))
    }

    /// A node is cut off for seconds: from all, or from one that goes on without it.
    fn cuts_node(&mut self) -> Result<String> {
        let nodes = self.parts("node.")?;
        let [node, other, ..] = nodes.as_slice() else { return Err("no two nodes".to_owned()) };
        let from = [None, Some("meta"), Some("host.1"), Some(other.as_str())];
        let from = self.one_of(&from).copied().flatten();
        self.cut(node, from, 4000, |killer, what| killer.goes_on(&[ONE], what))
    }

    /// A host does not hear the server for seconds, in half of the rounds for longer than its
    /// lease: others go on.
    fn cuts_host(&mut self) -> Result<String> {
        let longest = *self.one_of(&[4000, 16_000]).unwrap_or(&4000);
        self.cut("host.1", Some("meta"), longest, |killer, what| killer.goes_on_at(1, &[], what))
    }

    /// Cuts somebody off, looks at who goes on, and heals it.
    fn cut(
        &mut self,
        place: &str,
        from: Option<&str>,
        longest: u64,
        looks: impl Fn(&Self, &str) -> Result<()>,
    ) -> Result<String> {
        let cable = from.map(|from| format!("--from={from}"));
        let cable: Vec<&str> = [place].into_iter().chain(cable.as_deref()).collect();
        let what = format!("cut {place} off {}", from.unwrap_or("all"));
        self.cluster.does("cut", &cable)?;
        looks(self, &what)?;
        let time = self.rng.below(longest);
        self.wait(time)?;
        looks(self, &what)?;
        self.cluster.does("heal", &cable)?;
        self.cluster.wait()?;
        self.goes_on(&[], &what)?;
        Ok(what)
    }

    /// Bytes of a node rot on its disk; in half of the rounds another one is killed before that is
    /// mended.
    fn rots(&mut self) -> Result<String> {
        let nodes = self.parts("node.")?;
        let [node, other, ..] = nodes.as_slice() else { return Err("no two nodes".to_owned()) };
        self.rot(node)?;
        let mut what = format!("{node} rots");
        if self.rng.chance(1, 2) {
            self.cluster.kill(other)?;
            what = format!("{what}, killed {other}");
        }
        self.cluster.wait()?;
        self.goes_on(&[], &what)?;
        Ok(what)
    }

    /// By holes: what is written past the system's cache, as a node does, is left alone by these.
    fn rot(&mut self, node: &str) -> Result<()> {
        let path = self.cluster.dir().join(node).join("blocks");
        let cannot = || format!("cannot damage {}", path.display());
        let blocks = context(OpenOptions::new().write(true).open(&path), cannot)?;
        let grains = context(blocks.metadata(), cannot)?.len() / GRAIN;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for _ in 0..ROTS {
            let at = self.rng.below(grains.max(1)) * GRAIN;
            context(fallocate(&blocks, how, at, ROTTEN), cannot)?;
        }
        Ok(())
    }

    /// A file takes all there is. Who works hears so, or not, and begins again once there is space.
    fn fills(&mut self) -> Result<String> {
        let (name, _) = FILL;
        let path = mount(self.shared, 0).join(name).join("all");
        self.shared.hosts.iter().for_each(Host::turns);
        let cannot = || format!("cannot fill {}", path.display());
        let mut file = context(File::create(&path), cannot)?;
        let piece = vec![b'f'; 1 << 20];
        let mut taken = 0;
        let begun = Instant::now();
        loop {
            match file.write_all(&piece) {
                Ok(()) => taken += 1,
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => return Err(format!("{}: {error}", cannot())),
            }
            if begun.elapsed() > TURN {
                return Err(format!("{} takes more than {TURN:?}", cannot()));
            }
        }
        drop(file);
        let mut what = format!("{taken} MiB fill all nodes");
        let time = self.rng.below(2000);
        self.wait(time)?;
        if self.rng.chance(1, 2) {
            let nodes = self.nodes()?;
            nodes.iter().try_for_each(|node| self.cluster.kill(node))?;
            what = format!("{what}, killed {}", nodes.join(" "));
            self.cluster.wait()?;
        }
        context(fs::remove_file(&path), cannot)?;
        let has_space = || {
            let space = statvfs(mount(self.shared, 0));
            space.is_ok_and(|space| space.f_bavail > space.f_blocks / 4)
        };
        if !wait_until(HEALED, has_space) {
            return Err(format!("what {} had is not free within {HEALED:?}", path.display()));
        }
        self.shared.hosts.iter().for_each(Host::turns);
        self.goes_on(&[], &what)?;
        Ok(what)
    }

    /// Nobody lacks anything any more, and nothing is damaged.
    fn is_healed(&mut self) -> Result<()> {
        let (mut last, mut damaged) = (String::new(), 0);
        let contents: &[&OsStr] = if self.wanted.disks { &["--contents".as_ref()] } else { &[] };
        let is_whole = wait_until(HEALED, || {
            let found = self.cluster.command("check", contents);
            last = found.map_or_else(|error| error, |ended| ended.output);
            damaged = damaged.max(counted(&last, "damaged_grains"));
            let lacks = ["are to be filled", "fail their checksums"];
            self.shared.failure().is_some() || !lacks.iter().any(|lack| last.contains(lack))
        });
        self.damaged += damaged;
        self.wait(0)?;
        if is_whole { Ok(()) } else { Err(format!("not healed within {HEALED:?}: {last}")) }
    }

    /// Some time passes; what those who work found wrong meanwhile.
    fn wait(&self, millis: u64) -> Result<()> {
        thread::sleep(Duration::from_millis(millis));
        self.shared.failure().map_or(Ok(()), Err)
    }

    /// Writes go on at all hosts, but for these layouts.
    fn goes_on(&self, but: &[usize], what: &str) -> Result<()> {
        self.goes_on_at(0, but, what)
    }

    /// The same at the hosts from one on.
    fn goes_on_at(&self, first: usize, but: &[usize], what: &str) -> Result<()> {
        let is_asked =
            |(host, layout, _): &&(usize, usize, _)| *host >= first && !but.contains(layout);
        let beats = self.shared.beats.iter().filter(is_asked);
        let answered = |beats: &Beats| beats.answered.load(Ordering::Relaxed);
        let before: Vec<_> = beats.map(|place| (place, answered(&place.2))).collect();
        let is_stuck = |((_, _, beats), before): &(&(usize, usize, Arc<Beats>), u64)| {
            answered(beats) < before + 10
        };
        let go_on =
            wait_until(STALL, || self.shared.failure().is_some() || !before.iter().any(is_stuck));
        self.wait(0)?;
        if go_on {
            return Ok(());
        }
        let stuck = before.iter().filter(|place| is_stuck(place));
        let stuck: Vec<_> =
            stuck.map(|((host, layout, _), _)| (host, self.shared.layouts.get(*layout))).collect();
        Err(format!("no writes are answered within {STALL:?}, {what}: {stuck:?}"))
    }

    /// The longest writes of each layout since this round began.
    fn longest(&self) -> [Duration; LAYOUTS.len()] {
        let mut all = [Duration::ZERO; LAYOUTS.len()];
        for (_, layout, beats) in &self.shared.beats {
            let longest = Duration::from_micros(beats.longest.load(Ordering::Relaxed));
            if let Some(all) = all.get_mut(*layout) {
                *all = longest.max(*all);
            }
        }
        all
    }
}
