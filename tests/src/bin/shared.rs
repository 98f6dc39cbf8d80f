//! A shared volume as its users have it: a cluster started by `outboard cluster up`, mounted from
//! two hosts (each with a DPU side of its own), its parts killed under load (NetDFS; DPC 4.3).
//!
//! - `hosts`: what one host wrote the other reads; counters under a lock, appended records, names;
//! - `clients`: one host for each kind of client (`--client`): each alone, each against another,
//!   files of one read by the others, and a server that begins another life under handles and
//!   locks;
//! - `killed`: kill -9 of a node, the server, all of the cluster, the DPU side and the mount in
//!   turn, under workers whose every answered operation is known: nothing answered is lost, nothing
//!   is done twice, and the check of metadata against nodes is clean. So is the coordinator; or,
//!   with an ensemble in its place, one of its three servers, and its leader;
//! - `copies`: files with three copies while two of their nodes are stopped, and while nodes
//!   are killed: writes go on, what was answered is read from whoever is left, and in the end all
//!   have all;
//! - `stripes`: the same of files of three units of data and two parities on five nodes, of which
//!   two are stopped;
//! - `nodes`: nodes come and go under writers, also while parts are killed, and one is away for so
//!   long that its copies are made elsewhere;
//! - `linear`: what threads of two hosts are answered of registers, lists, counters under locks and
//!   exclusive names has an order, whoever is killed meanwhile, as a checker of histories finds;
//! - `standby` (only if it is named, with a pool): of two metadata servers the one that serves is
//!   stopped, ended and killed under two hosts: the other takes over;
//! - `revoked`: a host whose key is revoked is refused, another goes on with what it had written;
//! - `rotated`: the keys that capabilities are signed with are changed again and again under
//!   writers of two hosts: no write fails;
//! - `cut`: the network between a host and the server, and a node's cable, are cut and mended (only
//!   when asked for: it takes root, and most of a minute);
//! - `stopped` (only if it is named): a DPU side is stopped for longer than its lease while the
//!   other host writes: its host reads nothing old from then on, and what was written when it goes
//!   on;
//! - `soak` (only if it is named): for `--minutes`, six nodes and two hosts under programs and
//!   checkers of what was answered, and kill -9 of whatever there is, nodes away for seconds: no
//!   write waits for long, and in the end all members are equal.

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_tests::clients::{alone, another_life};
use outboard_tests::cluster::Cluster;
use outboard_tests::copies::{Away, Writer, filled, holds, lay_out, mended};
use outboard_tests::crash::{Mode, Worker};
use outboard_tests::ensemble::ensemble;
use outboard_tests::linear::{self, Wanted};
use outboard_tests::nodes::{HEAL_AFTER, come_and_go};
use outboard_tests::twins::Pair;
use outboard_tests::{Result, Side, Volume, context, cut, note_skip, soak, standby};
use rustix::process::{Signal, kill_process};

const USAGE: &str = "\
shared [--only=hosts|clients|killed|copies|stripes|nodes|linear|standby|revoked|rotated|cut
              |stopped|soak]...
       [--cache=none|hybrid]...
       [--client=dpu|host|standard] [--rounds=N] [--seconds=N] [--minutes=N] [--seed=N]
       [--with=cuts|disks]... [--ensemble=DIRECTORY] [--pool=LOCATION] [--base=DIRECTORY]

  --only    just these cases [default: all but standby, cut, stopped and soak]
  --cache   the cache of the mounts [default: each]
  --client  who is the client in `killed`, `linear`; host and standard have no cache [default: dpu]
  --rounds  kills; changes of servers in `standby`, of keys in `rotated` [default: 6]
  --seconds how long `linear` begins new rounds [default: 3]
  --minutes how long `soak` kills [default: 1]
  --with    what there is in `soak` beside kills: cables that are cut (each part and host in a
            network namespace, which takes root); bytes that rot, and nodes that are full
  --seed    repeats the kills of a run [default: from the clock]
  --ensemble  of `scripts/zookeeper`, running: it is the coordinator, and its servers are killed
  --pool    where `standby`, `killed` and `soak` keep names and inodes, with a server that
            stands by: rados://POOL?conf=FILE
  --base    where cluster, volumes and journals go [default: a new folder in /tmp]
";

struct Options {
    only: Vec<String>,
    caches: Vec<String>,
    client: String,
    rounds: u64,
    seconds: u64,
    minutes: u64,
    with: Vec<String>,
    seed: u64,
    ensemble: Option<PathBuf>,
    pool: Option<String>,
    base: PathBuf,
}

fn main() -> ExitCode {
    let options = match Options::parse(env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("shared: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => {
            _ = fs::remove_dir_all(&options.base);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("shared: {error}\nlogs are in {}", options.base.display());
            // Not a return: nothing that hangs in a system call may keep this process.
            std::process::exit(1)
        }
    }
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self> {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut options = Self {
            only: Vec::new(),
            caches: Vec::new(),
            client: "dpu".into(),
            rounds: 6,
            seconds: 3,
            minutes: 1,
            with: Vec::new(),
            seed: clock.map_or(1, |now| now.as_secs()),
            ensemble: None,
            pool: None,
            base: env::temp_dir().join(format!("outboard-shared-{}", std::process::id())),
        };
        for arg in args {
            let unknown = || format!("unknown argument `{arg}`\n{USAGE}");
            let (key, value) = arg.split_once('=').ok_or_else(unknown)?;
            match (key, value) {
                ("--only", case) if CASES.iter().any(|(name, _)| *name == case) => {
                    options.only.push(value.into());
                }
                ("--cache", "none" | "hybrid") => options.caches.push(value.into()),
                ("--client", "dpu" | "host" | "standard") => options.client = value.into(),
                ("--rounds", _) => options.rounds = value.parse().map_err(|_| unknown())?,
                ("--seconds", _) => options.seconds = value.parse().map_err(|_| unknown())?,
                ("--minutes", _) => options.minutes = value.parse().map_err(|_| unknown())?,
                ("--with", "cuts" | "disks") => options.with.push(value.into()),
                ("--seed", _) => options.seed = value.parse().map_err(|_| unknown())?,
                ("--ensemble", path) => options.ensemble = Some(path.into()),
                ("--pool", location) => options.pool = Some(location.into()),
                ("--base", path) => options.base = PathBuf::from(path),
                _ => return Err(unknown()),
            }
        }
        if options.caches.is_empty() {
            options.caches = vec!["none".into()];
            if options.client == "dpu" {
                options.caches.push("hybrid".into());
            }
        }
        Ok(options)
    }

    fn wants(&self, case: &str) -> bool {
        let usual = self.only.is_empty() && !["standby", "cut", "stopped", "soak"].contains(&case);
        usual || self.only.iter().any(|only| only == case)
    }
}

fn run(options: &Options) -> Result<()> {
    for cache in &options.caches {
        for (case, body) in CASES {
            // Only a DPU side has a cache.
            let is_again = options.caches.first().is_some_and(|first| first != cache);
            if !options.wants(case)
                || (case == "clients" && cache != "none")
                || (is_again && ["copies", "stripes", "nodes"].contains(&case))
            {
                continue;
            }
            let place = options.base.join(format!("{case}-{cache}"));
            context(fs::create_dir_all(&place), || format!("cannot make {}", place.display()))?;
            let start = Instant::now();
            body(options, &place, cache).map_err(|error| format!("{case} ({cache}): {error}"))?;
            println!("{case:<8}  {cache:<8} {:>6.1} s", start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

type Case = fn(&Options, &Path, &str) -> Result<()>;

const CASES: [(&str, Case); 13] = [
    ("hosts", hosts),
    ("clients", clients),
    ("killed", killed),
    ("copies", copies),
    ("stripes", stripes),
    ("nodes", nodes),
    ("linear", linear),
    ("standby", standby),
    ("revoked", revoked),
    ("rotated", rotated),
    ("cut", cut),
    ("stopped", stopped),
    ("soak", all_at_once),
];

/// A host: a DPU side and a mount of its own.
fn host(cluster: &Cluster, place: &Path, name: &str, cache: &str) -> Result<Volume> {
    host_with(&cluster.store()?, place, name, &[&format!("--cache={cache}")], None)
}

/// The same, by what names the volume, with flags, in a network namespace.
fn host_with(
    store: &str,
    place: &Path,
    name: &str,
    flags: &[&str],
    space: Option<&str>,
) -> Result<Volume> {
    let base = place.join(name);
    context(fs::create_dir_all(&base), || format!("cannot make {}", base.display()))?;
    let store = format!("--store={store}");
    let mut host = Volume::with(&base, &[&[store.as_str()], flags].concat())?;
    if let Some(space) = space {
        host = host.inside(space);
    }
    host.start()?;
    Ok(host)
}

fn clients(_: &Options, place: &Path, _: &str) -> Result<()> {
    const CLIENTS: [&str; 3] = ["dpu", "host", "standard"];
    let cluster = Cluster::up(&place.join("cluster"), 2, false)?;
    let store = cluster.store()?;
    let host =
        |client: &&str| host_with(&store, place, client, &[&format!("--client={client}")], None);
    let mut all = CLIENTS.iter().map(host).collect::<Result<Vec<Volume>>>()?;
    for (client, volume) in CLIENTS.iter().zip(&all) {
        let told = volume.status()?["dpu"]["settings"]["client"].clone();
        if told != **client {
            return Err(format!("a client {client} says that it is {told}"));
        }
        let others: Vec<PathBuf> = all.iter().map(Volume::mountpoint).collect();
        alone(&volume.mountpoint(), client, &others)
            .map_err(|error| format!("{client}: {error}\n{}", volume.log_tail()))?;
    }
    for (one, other) in [(0, 1), (1, 2), (2, 0)] {
        let (one, other) = (all[one].mountpoint(), all[other].mountpoint());
        let name = format!("{}-{}", one.display(), other.display()).replace('/', "-");
        context(fs::create_dir(one.join(&name)), || "a directory".to_owned())?;
        Pair { one: one.join(&name), other: other.join(&name) }.of_two_hosts(8)?;
    }
    another_life(&cluster, &all)
        .map_err(|error| format!("another life of the server: {error}\n{}", all[1].log_tail()))?;
    all.iter_mut().try_for_each(Volume::stop)?;
    cluster.check()?;
    cluster.down()
}

fn hosts(_: &Options, place: &Path, cache: &str) -> Result<()> {
    let cluster = Cluster::up(&place.join("cluster"), 3, false)?;
    let mut one = host(&cluster, place, "one", cache)?;
    let mut other = host(&cluster, place, "other", cache)?;
    let pair = Pair { one: one.mountpoint(), other: other.mountpoint() };
    let shown = pair.of_two_hosts(25);
    shown.map_err(|error| format!("{error}\n{}\n{}", one.log_tail(), cluster.log_tail()))?;
    // Whoever comes later finds it, too.
    one.stop()?;
    let mut late = host(&cluster, place, "late", cache)?;
    for host in [&other, &late] {
        let page = context(fs::read(host.mountpoint().join("page")), || "the page".to_owned())?;
        if page.len() != 400 {
            return Err(format!("a page of {} bytes", page.len()));
        }
    }
    other.stop()?;
    late.stop()?;
    cluster.check()?;
    if env::var_os("OUTBOARD_FAULTS").is_some() {
        match cluster.sent_again()? {
            0 => return Err("nothing was sent again on a network that loses".to_owned()),
            again => println!("  parts sent {again} packets again"),
        }
    }
    cluster.down()
}

fn cut(_: &Options, place: &Path, cache: &str) -> Result<()> {
    if let Some(reason) = cut::missing() {
        println!("skipped: {reason}");
        return note_skip("shared-cut", reason);
    }
    cut::leaves_nothing(&place.join("broken"))?;
    let flags = ["--nodes=2", "--netns", "--hosts=2"];
    let cluster = Cluster::up_with(&place.join("cluster"), &flags)?;
    let spaces = cluster.hosts()?;
    let cache = format!("--cache={cache}");
    let (store, mut hosts) = (cluster.store()?, Vec::new());
    for (space, name) in spaces.iter().zip(["one", "other"]) {
        hosts.push(host_with(&store, place, name, &[&cache], Some(space.as_str()))?);
    }
    let [one, other] = hosts.as_mut_slice() else { return Err("not two hosts".to_owned()) };
    let shown = cut::host(&cluster, one, other).and_then(|()| cut::node(&cluster, other));
    shown.map_err(|error| {
        format!("{error}\n{}\n{}\n{}", one.log_tail(), other.log_tail(), cluster.log_tail())
    })?;
    // A part that was started beside mounts had a mount namespace of its own: it kept them, and
    // these did not end before it did.
    cluster.kill("node.1")?;
    cluster.wait()?;
    one.stop()?;
    other.stop()?;
    cluster.check()?;
    cluster.down()?;
    cut::gone(&spaces)
}

/// Two servers on one pool, each of whose namespaces has one volume.
fn standby(options: &Options, place: &Path, cache: &str) -> Result<()> {
    options.pool.as_ref().ok_or("standby takes --pool=rados://POOL?conf=FILE")?;
    let cluster = coordinated(options, &place.join("cluster"), 3, &[])?;
    let mut one = host(&cluster, place, "one", cache)?;
    let mut other = host(&cluster, place, "other", cache)?;
    let hosts = [&*one.mountpoint(), &*other.mountpoint()];
    standby::taken_over(&cluster, hosts, options.rounds, options.seed).map_err(|error| {
        format!("{error}\n{}\n{}\n{}", one.log_tail(), other.log_tail(), cluster.log_tail())
    })?;
    one.stop()?;
    other.stop()?;
    filled(&cluster)?;
    cluster.down()
}

/// A host whose key is revoked is refused, at once and after it has started anew. What it had
/// synced is there for another host, which goes on.
fn revoked(_: &Options, place: &Path, cache: &str) -> Result<()> {
    let cluster = Cluster::up(&place.join("cluster"), 2, false)?;
    let key = place.join("guest.key");
    cluster.key("add", &["guest", &format!("--file={}", key.display())])?;
    let mut guest =
        host_with(&cluster.store_by(&key)?, place, "guest", &[&format!("--cache={cache}")], None)?;
    let mut other = host(&cluster, place, "other", cache)?;
    let at = |host: &Volume, name: &str| host.mountpoint().join(name);
    let written = "what was synced".repeat(1000);
    let (path, failed) = (at(&guest, "file"), || "a file of the guest's".to_owned());
    let mut file = context(fs::File::create(&path), failed)?;
    context(file.write_all(written.as_bytes()).and_then(|()| file.sync_all()), failed)?;
    cluster.key("revoke", &["guest"])?;
    let refused = |what: &str, done: std::io::Result<()>| match done.map_err(|e| e.kind()) {
        Err(std::io::ErrorKind::PermissionDenied) => Ok(()),
        done => Err(format!("{what} by who is revoked: {done:?}")),
    };
    refused("a file made", fs::write(at(&guest, "more"), "x"))?;
    refused("a list", fs::read_dir(guest.mountpoint()).map(drop))?;
    // With the hybrid cache a write may stay in it: then it is the sync that says so.
    let more = file.write_all(b"more").and_then(|()| file.sync_all());
    if more.is_ok() {
        return Err("what who is revoked wrote was synced".to_owned());
    }
    let found = context(fs::read_to_string(at(&other, "file")), || "another's read".to_owned())?;
    if found != written {
        return Err(format!("another finds {} bytes", found.len()));
    }
    context(fs::write(at(&other, "file"), "changed"), || "another's write".to_owned())?;
    // Its next life is told the same, in words.
    guest.kill(&[Side::Dpu])?;
    let log = guest.data().join("dpu.log");
    let told = || fs::read_to_string(&log).unwrap_or_default().contains("it was revoked");
    if !outboard_tests::wait_until(Duration::from_secs(20), told) {
        return Err(format!("{} does not say why", log.display()));
    }
    drop((file, guest));
    other.stop()?;
    cluster.check()?;
    cluster.down()
}

/// Keys are rotated every second or so: who has files open writes on, under the capabilities that
/// it has, and new ones are found right.
fn rotated(options: &Options, place: &Path, cache: &str) -> Result<()> {
    let cluster = Cluster::up(&place.join("cluster"), 2, false)?;
    let mut hosts = [host(&cluster, place, "one", cache)?, host(&cluster, place, "other", cache)?];
    let [one, other] = hosts.each_ref().map(Volume::mountpoint);
    let path = |mount: &Path| mount.join("written");
    let writers = [(&one, 0), (&other, 1)].map(|(mount, number)| {
        context(fs::create_dir(mount.join(number.to_string())), || "a directory".to_owned())?;
        Writer::begin(&path(&mount.join(number.to_string())), options.seed ^ number)
    });
    let writers = writers.into_iter().collect::<Result<Vec<_>>>()?;
    let pair = Pair { one: one.clone(), other: other.clone() };
    for round in 0..options.rounds {
        let begun = Instant::now();
        cluster.key("rotate", &[])?;
        for writer in &writers {
            writer.goes_on(STALL, "keys are rotated").map_err(|e| format!("{round}: {e}"))?;
        }
        pair.closed_and_synced(4)?;
        thread::sleep(Duration::from_secs(1).saturating_sub(begun.elapsed()));
    }
    let longest = writers.iter().map(Writer::longest).max().unwrap_or_default();
    let ends = writers.into_iter().map(Writer::end).collect::<Result<Vec<_>>>()?;
    let answered: u64 = ends.iter().map(|(_, answered)| answered).sum();
    println!("  {} rotations, {answered} writes, the longest took {longest:.1?}", options.rounds);
    for ((written, _), (mount, number)) in ends.iter().zip([(&other, 0), (&one, 1)]) {
        holds(&path(&mount.join(number.to_string())), written)?;
    }
    hosts.iter_mut().try_for_each(Volume::stop)?;
    cluster.check()?;
    cluster.down()
}

/// How long a DPU side is stopped: a lease is given up for lost 11 s after its last renewal.
const STOPPED: Duration = Duration::from_secs(13);

fn stopped(_: &Options, place: &Path, cache: &str) -> Result<()> {
    let cluster = Cluster::up(&place.join("cluster"), 2, false)?;
    let mut one = host(&cluster, place, "one", cache)?;
    let mut other = host(&cluster, place, "other", cache)?;
    let (mine, theirs) = (one.mountpoint().join("file"), other.mountpoint().join("file"));
    let write =
        |path: &Path, byte| context(fs::write(path, [byte; 70_000]), || "a write".to_owned());
    write(&mine, 1)?;
    let file = context(fs::File::open(&mine), || "open".to_owned())?;
    let read = move || -> Result<u8> {
        let mut bytes = [0; 8192];
        context(file.read_exact_at(&mut bytes, 8192), || "a read".to_owned())?;
        let whole = bytes.iter().all(|byte| *byte == bytes[0]);
        if whole { Ok(bytes[0]) } else { Err("a page of both writes".into()) }
    };
    // It is cached, as far as it can be, and the DPU side has been told what time it is here.
    let warm = Instant::now();
    while warm.elapsed() < Duration::from_secs(3) {
        if read()? != 1 {
            return Err("it does not read what it wrote".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let dpu = one.pid(Side::Dpu)?;
    let signal = |signal| context(kill_process(dpu, signal), || format!("a signal to {dpu:?}"));
    let begun = Instant::now();
    signal(Signal::STOP)?;
    let written = Arc::new(AtomicBool::new(false));
    let is_written = Arc::clone(&written);
    // Reads one after the other; one that began after the write had ended must find it.
    let reader = thread::spawn(move || -> Result<u64> {
        let mut old = 0;
        loop {
            let after = is_written.load(Ordering::Acquire);
            match (read()?, after) {
                (2, _) => return Ok(old),
                (1, false) => old += 1,
                (byte, _) => return Err(format!("{byte} was read after 2 was written")),
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    let wrote = write(&theirs, 2);
    written.store(true, Ordering::Release);
    let took = begun.elapsed();
    thread::sleep(STOPPED.saturating_sub(took));
    signal(Signal::CONT)?;
    wrote?;
    let old = reader.join().map_err(|_| "the reader panicked".to_owned())?;
    let old =
        old.map_err(|error| format!("{error}\n{}\n{}", one.log_tail(), cluster.log_tail()))?;
    println!("  the write took {:.1} s, {old} reads before", took.as_secs_f64());
    write(&mine, 3)?;
    if context(fs::read(&theirs), || "a read".to_owned())? != [3; 70_000] {
        return Err("the stopped host's next write is not read".into());
    }
    one.stop()?;
    other.stop()?;
    cluster.check()?;
    cluster.down()
}

/// Who dies in a round.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Node,
    Server,
    Cluster,
    Dpu,
    Mount,
    Coordinator,
    /// A server of the ensemble that is the coordinator.
    One,
    /// The one that leads it.
    Leader,
}

const VICTIMS: [Victim; 6] = [
    Victim::Node,
    Victim::Server,
    Victim::Cluster,
    Victim::Dpu,
    Victim::Mount,
    Victim::Coordinator,
];
/// Where the coordinator is an ensemble: parts come and go while one of its servers is dead.
const OF_ENSEMBLE: [Victim; 4] = [Victim::One, Victim::Leader, Victim::Node, Victim::Server];

/// A cluster whose coordinator is a process, or the ensemble; with a server that stands by, where
/// there is a pool.
fn coordinated(options: &Options, dir: &Path, nodes: usize, own: &[&str]) -> Result<Cluster> {
    let name = dir.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let name = format!("{name}-{}", std::process::id());
    let mut flags = Vec::new();
    if let Some(servers) = &options.ensemble {
        flags.push(format!("--coordinator={}/{name}", ensemble("start", servers, "")?));
    }
    if let Some(pool) = &options.pool {
        flags.extend([format!("--store={pool}&namespace={name}"), "--standby=1".to_owned()]);
    }
    let flags: Vec<&str> = own.iter().copied().chain(flags.iter().map(String::as_str)).collect();
    Cluster::with(dir, nodes, &flags)
}

fn killed(options: &Options, place: &Path, cache: &str) -> Result<()> {
    let cluster = coordinated(options, &place.join("cluster"), 2, &[])?;
    let flags = [format!("--cache={cache}"), format!("--client={}", options.client)];
    let flags = flags.each_ref().map(String::as_str);
    let mut volume = host_with(&cluster.store()?, place, "host", &flags, None)?;
    let victims = if options.ensemble.is_some() { &OF_ENSEMBLE[..] } else { &VICTIMS };
    let mut workers = (0..2)
        .map(|number| {
            let dir = volume.mountpoint().join(format!("worker-{number}"));
            Worker::new(&dir, &place.join(format!("journal-{number}")), options.seed ^ number)
        })
        .collect::<Result<Vec<_>>>()?;
    for round in 0..options.rounds {
        let seed = options.seed.wrapping_add(round);
        let mut rng = Rng::new(seed);
        let nth = usize::try_from(round).unwrap_or(0);
        let victim = victims.get(nth % victims.len()).copied().unwrap_or(Victim::Node);
        let victim = match victim {
            // It is the mount's process.
            Victim::Dpu if options.client != "dpu" => Victim::Mount,
            victim => victim,
        };
        let start = Instant::now();
        let of = (&cluster, options.ensemble.as_deref());
        workers = kill_one(of, &mut volume, workers, victim, &mut rng).map_err(|error| {
            let (host, up) = (volume.log_tail(), cluster.log_tail());
            format!("round {round} ({victim:?}), seed {seed}: {error}\n{host}\n{up}")
        })?;
        let answered: u64 = workers.iter().map(|worker| worker.answered).sum();
        let seconds = start.elapsed().as_secs_f64();
        println!("  {victim:<8?} seed {seed}  {answered:>7} answered  {seconds:>5.1} s");
    }
    volume.stop()?;
    filled(&cluster)?;
    cluster.down()
}

/// How long a write may take while a node that has a copy is away: it is noticed, and the file goes
/// on without it.
const STALL: Duration = Duration::from_secs(30);

/// Copies of a file on three nodes.
fn copies(options: &Options, place: &Path, cache: &str) -> Result<()> {
    let strategy = if options.seed.is_multiple_of(2) { "ring" } else { "tree" };
    let away = ["node.2", "node.3"];
    let each: [&[&str]; 3] = [&["node.1"], &["node.2"], &["node.3"]];
    away_under_a_writer(
        (options, place, cache),
        3,
        &format!("strategy={strategy},k=3"),
        &away,
        &each,
    )
}

/// Stripes of three units of data and two parities.
fn stripes(options: &Options, place: &Path, cache: &str) -> Result<()> {
    let away = ["node.2", "node.3"];
    let each: [&[&str]; 3] = [&["node.1", "node.2"], &["node.3", "node.4"], &["node.5", "node.1"]];
    away_under_a_writer((options, place, cache), 5, "strategy=parity,k=3,m=2", &away, &each)
}

/// Nodes on which a file lies are stopped, some at a time, and killed under a writer; what it wrote
/// is read while others are stopped.
fn away_under_a_writer(
    (options, place, cache): (&Options, &Path, &str),
    count: usize,
    layout: &str,
    away: &[&str],
    unread: &[&[&str]],
) -> Result<()> {
    let cluster = Cluster::up(&place.join("cluster"), count, false)?;
    let mut volume = host(&cluster, place, "host", cache)?;
    let dir = volume.mountpoint().to_owned();
    lay_out(&dir, layout)?;
    let path = dir.join("file");
    let writer = Writer::begin(&path, options.seed)?;
    writer.goes_on(STALL, "all nodes are there")?;
    let stopped = Away::stop(&cluster, away)?;
    writer.goes_on(STALL, "nodes are stopped")?;
    let (gone, longest) = (away.len(), writer.longest());
    println!("  {gone} of {count} nodes stopped: the longest write took {longest:.1?}");
    drop(stopped);
    // Else who is killed would be waited for, as too few that have all are left.
    filled(&cluster)?;
    for node in 1..=count {
        writer.goes_on(STALL, "nodes come back")?;
        cluster.kill(&format!("node.{node}"))?;
    }
    writer.goes_on(STALL, "nodes were killed")?;
    let (written, answered) = writer.end()?;
    filled(&cluster)?;
    println!("  {answered} writes answered; all nodes have all");
    for nodes in unread {
        let _away = Away::stop(&cluster, nodes)?;
        holds(&path, &written).map_err(|error| format!("while {nodes:?} stop: {error}"))?;
    }
    cluster.wait()?;
    volume.stop()?;
    filled(&cluster)?;
    cluster.down()
}

/// Nodes come and go under writers, and one is away for long.
fn nodes(options: &Options, place: &Path, cache: &str) -> Result<()> {
    let cluster = Cluster::with(&place.join("cluster"), 3, &[HEAL_AFTER])?;
    let mut volume = host(&cluster, place, "host", cache)?;
    come_and_go(&cluster, &volume.mountpoint(), options.seed)
        .map_err(|error| format!("{error}\n{}\n{}", volume.log_tail(), cluster.log_tail()))?;
    volume.stop()?;
    filled(&cluster)?;
    cluster.down()
}

fn linear(options: &Options, place: &Path, cache: &str) -> Result<()> {
    let cluster = Cluster::up(&place.join("cluster"), 3, false)?;
    let flags = [format!("--cache={cache}"), format!("--client={}", options.client)];
    let flags = flags.each_ref().map(String::as_str);
    let store = cluster.store()?;
    let host = |name| host_with(&store, place, name, &flags, None);
    let mut hosts = [host("one")?, host("other")?];
    let wanted = Wanted {
        seconds: options.seconds,
        seed: options.seed,
        is_cached: cache != "none",
        has_dpu: options.client == "dpu",
        dir: place,
    };
    linear::run(&cluster, &mut hosts, &wanted)?;
    hosts.iter_mut().try_for_each(Volume::stop)?;
    filled(&cluster)?;
    cluster.down()
}

/// Everything there is, for as long as is asked for.
fn all_at_once(options: &Options, place: &Path, cache: &str) -> Result<()> {
    let has = |what: &str| options.with.iter().any(|with| with == what);
    let (cuts, disks) = (has("cuts"), has("disks"));
    if let Some(reason) = cut::missing().filter(|_| cuts) {
        println!("skipped: {reason}");
        return note_skip("shared-soak", reason);
    }
    let mut flags = Vec::new();
    if cuts {
        flags.extend(["--netns", "--hosts=2"]);
    }
    if disks {
        flags.push(soak::CAPACITY);
    }
    let cluster = coordinated(options, &place.join("cluster"), soak::NODES, &flags)?;
    let store = cluster.store()?;
    let flags = [format!("--cache={cache}"), format!("--client={}", options.client)];
    let flags = flags.each_ref().map(String::as_str);
    let spaces = cluster.hosts()?;
    let host = |name, at: usize| {
        host_with(&store, place, name, &flags, spaces.get(at).map(String::as_str))
    };
    let mut hosts = [host("one", 0)?, host("other", 1)?];
    let wanted = soak::Wanted {
        time: Duration::from_secs(60 * options.minutes),
        seed: options.seed,
        ensemble: options.ensemble.as_deref(),
        cuts,
        disks,
        dir: place,
    };
    println!("  seed {}", options.seed);
    soak::run(&cluster, &mut hosts, &wanted).map_err(|error| {
        let [one, other] = hosts.each_ref().map(Volume::log_tail);
        format!("seed {}: {error}\n{one}\n{other}\n{}", options.seed, cluster.log_tail())
    })?;
    hosts.iter_mut().try_for_each(Volume::stop)?;
    filled(&cluster)?;
    cluster.down()
}

/// A round: workers at work, somebody dies, and all that was answered is there.
fn kill_one(
    (cluster, servers): (&Cluster, Option<&Path>),
    volume: &mut Volume,
    workers: Vec<Worker>,
    victim: Victim,
    rng: &mut Rng,
) -> Result<Vec<Worker>> {
    let mount_dies = matches!(victim, Victim::Mount);
    let mode = Mode { syncs: rng.chance(1, 2), mount_may_die: mount_dies };
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = workers
        .into_iter()
        .map(|mut worker| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || worker.run(mode, &stop).map(|()| worker))
        })
        .collect();
    thread::sleep(Duration::from_millis(rng.below(1000)));
    match victim {
        Victim::Node => cluster.kill(&format!("node.{}", 1 + rng.below(2)))?,
        Victim::Server => cluster.kill("meta")?,
        Victim::Cluster => {
            ["coordinator", "meta", "node.1", "node.2"].iter().try_for_each(|r| cluster.kill(r))?
        }
        Victim::Dpu => volume.kill(&[Side::Dpu])?,
        Victim::Mount => volume.kill(&[Side::Host])?,
        Victim::Coordinator => cluster.kill("coordinator")?,
        Victim::One | Victim::Leader => {
            let which = match victim {
                Victim::Leader => "leader".to_owned(),
                _ => (1 + rng.below(3)).to_string(),
            };
            let servers = servers.ok_or("no ensemble was given to kill servers of")?;
            ensemble("revive", servers, "all")?;
            ensemble("kill", servers, &which)?;
        }
    }
    thread::sleep(Duration::from_millis(300 + rng.below(1000)));
    stop.store(true, Ordering::Release);
    let mut workers = threads
        .into_iter()
        .map(|thread| thread.join().map_err(|_| "a worker panicked".to_owned())?)
        .collect::<Result<Vec<_>>>()?;
    cluster.wait()?;
    if mount_dies {
        context(volume.start(), || "starting after the kill".to_owned())?;
    }
    workers.iter_mut().try_for_each(Worker::verify)?;
    mended(|| volume.check())?;
    Ok(workers)
}
