//! Volumes in a pool of a Ceph cluster: daemons killed, paused and gone, two hosts that want one
//! volume, pools that are wrong or full, and the way from store to store.
//!
//! Needs a cluster of `scripts/cluster` and two variables: `OUTBOARD_STORE`, the pool (with a time
//! limit of a few seconds, `&timeout=5`), and `OUTBOARD_CLUSTER`, the cluster's directory.

#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::{Signal, kill_process};

use outboard_tests::{Ended, Result, Side, Volume, context, program, run_limited};

/// Time for anything that should succeed once the cluster is well.
const PATIENCE: Duration = Duration::from_secs(180);

struct Cluster {
    dir: PathBuf,
    store: String,
    base: PathBuf,
}

type Case = (&'static str, fn(&Cluster) -> Result<()>);

const CASES: &[Case] = &[
    ("refused", refused),
    ("rights", rights),
    ("one-writer", one_writer),
    ("stopped", stopped),
    ("migrate", migrate),
    ("daemon-killed", daemon_killed),
    ("paused", paused),
    ("gone", gone),
    ("full", full),
];

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rados: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool> {
    let only: Vec<String> =
        env::args().skip(1).filter_map(|arg| Some(arg.strip_prefix("--only=")?.into())).collect();
    let named = |name: &str| env::var(name).map_err(|_| format!("{name} is not set"));
    let base = env::temp_dir().join(format!("outboard-rados-{}", std::process::id()));
    let store = named("OUTBOARD_STORE")?;
    let cluster = Cluster { dir: named("OUTBOARD_CLUSTER")?.into(), store, base };
    let mut failed = 0;
    for (name, case) in CASES {
        if !only.is_empty() && !only.iter().any(|wanted| wanted == name) {
            continue;
        }
        let start = Instant::now();
        let outcome = case(&cluster);
        // Whatever was done to the daemons is undone for the next.
        let healed = cluster.heal();
        let seconds = start.elapsed().as_secs_f64();
        match outcome.and(healed) {
            Ok(()) => println!("pass  {name:<14} {seconds:>6.1} s"),
            Err(reason) => {
                println!("FAIL  {name:<14} {seconds:>6.1} s  {reason}");
                failed += 1;
            }
        }
    }
    if failed == 0 {
        _ = fs::remove_dir_all(&cluster.base);
    } else {
        println!("data and logs are in {}", cluster.base.display());
    }
    Ok(failed == 0)
}

impl Cluster {
    /// `scripts/cluster VERB DIR REST..`.
    fn script(&self, verb: &str, rest: &[&str]) -> Result<()> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/cluster");
        let mut command = Command::new(script);
        command.arg(verb).arg(&self.dir).args(rest);
        self.must(command, &format!("cluster {verb} {}", rest.join(" "))).map(drop)
    }

    /// A command of Ceph's own.
    fn ceph(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.dir.join("ceph.conf")).args(args);
        self.must(command, &format!("{program} {}", args.join(" ")))
    }

    fn must(&self, command: Command, what: &str) -> Result<String> {
        context(fs::create_dir_all(&self.base), || "no directory for logs".to_owned())?;
        let ended = run_limited(command, Duration::from_secs(400), &self.base.join("cluster.log"))?;
        if ended.code() == Some(0) {
            return Ok(ended.output);
        }
        Err(format!("{what} failed: {}", ended.tail(5)))
    }

    /// Whether its storage daemons find their data again when they are killed.
    fn is_on_disk(&self) -> Result<bool> {
        let conf = self.dir.join("ceph.conf");
        let conf = context(fs::read_to_string(&conf), || format!("no {}", conf.display()))?;
        Ok(conf.lines().any(|line| line == "osd objectstore = bluestore"))
    }

    fn heal(&self) -> Result<()> {
        self.script("revive", &["all"])
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.base.join(name);
        context(fs::create_dir_all(&path), || format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// A volume of its own, mounted.
    fn volume(&self, name: &str) -> Result<Volume> {
        let mut volume = Volume::new(&self.folder(name)?, &[])?;
        volume.start()?;
        Ok(volume)
    }

    /// The same, with a time limit that a machine at its limit meets, too: it may need longer than
    /// the few seconds of the other cases to catch up with what was done to its daemons.
    fn patient_volume(&self, name: &str) -> Result<Volume> {
        let store = format!("{}&namespace={name}-{}&timeout=60", self.store, std::process::id());
        let mut volume = Volume::with(&self.folder(name)?, &[&format!("--store={store}")])?;
        volume.start()?;
        Ok(volume)
    }

    /// Runs the program to its end.
    fn outboard(&self, args: &[&OsStr]) -> Result<Ended> {
        let mut command = Command::new(program()?);
        command.args(args);
        run_limited(command, PATIENCE, &self.base.join("outboard.log"))
    }

    /// `outboard run` with a data directory of its own, which must be refused; what it says.
    fn refusal(&self, name: &str, store: &str) -> Result<String> {
        let base = self.folder(name)?;
        let (data, mount) = (base.join("data"), base.join("mnt"));
        context(fs::create_dir_all(&mount), || "no mount point".to_owned())?;
        let store = format!("--store={store}");
        let words = [OsStr::new("run"), OsStr::new(&store), OsStr::new("--data"), data.as_ref()];
        let ended = self.outboard(&[&words[..], &[mount.as_ref()]].concat())?;
        match ended.code() {
            Some(2 | 4) => Ok(ended.output),
            code => Err(format!("{name}: ended with {code:?}, not refused:\n{}", ended.tail(5))),
        }
    }
}

fn expect(said: &str, words: &[&str]) -> Result<()> {
    match words.iter().find(|word| !said.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("it does not say `{word}` but: {said}")),
    }
}

/// Writes a file that tells its own name, durably.
fn put(path: &Path, kib: usize) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&content(path, kib))?;
    file.sync_all()
}

fn content(path: &Path, kib: usize) -> Vec<u8> {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name.iter().copied().cycle().take(kib << 10).collect()
}

fn check(path: &Path, kib: usize) -> Result<()> {
    let found = context(fs::read(path), || format!("cannot read {}", path.display()))?;
    if found == content(path, kib) {
        return Ok(());
    }
    Err(format!("{} is not what was written ({} bytes)", path.display(), found.len()))
}

/// Tries again until it succeeds.
fn at_last<T>(what: &str, mut attempt: impl FnMut() -> io::Result<T>) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(error) if Instant::now() > end => return Err(format!("{what}: {error}")),
            Err(_) => sleep(Duration::from_millis(200)),
        }
    }
}

fn refused(cluster: &Cluster) -> Result<()> {
    let store = &cluster.store;
    let (pool, query) = store.split_once('?').unwrap_or((store, ""));
    let said = cluster.refusal("wrong-pool", &format!("{pool}-not-there?{query}"))?;
    expect(&said, &["has no pool", "ceph osd pool create"])?;
    let said = cluster.refusal("wrong-conf", &format!("{pool}?conf=/nowhere/ceph.conf"))?;
    expect(&said, &["/nowhere/ceph.conf", "conf=PATH"])?;
    let said = cluster.refusal("wrong-option", &format!("{store}&colour=red"))?;
    expect(&said, &["`colour` is not known"])?;
    let space = format!("foreign-{}", std::process::id());
    let pool = pool.trim_start_matches("rados://");
    cluster.ceph("rados", &["-p", pool, "-N", &space, "put", "thesis", "/etc/hostname"])?;
    let said = cluster.refusal("foreign", &format!("{store}&namespace={space}"))?;
    expect(&said, &["no volume of ours"])?;
    cluster.ceph("rados", &["-p", pool, "-N", &space, "stat", "thesis"])?;
    // The head of a volume that a later program made.
    let (space, head) = (format!("later-{}", std::process::id()), cluster.base.join("head"));
    let bytes = [&b"OUTBPOOL"[..], &99_u32.to_le_bytes(), &[0; 64]].concat();
    context(fs::write(&head, &bytes), || "writing a head".to_owned())?;
    let head = head.to_string_lossy();
    cluster.ceph("rados", &["-p", pool, "-N", &space, "put", "head", &head])?;
    let said = cluster.refusal("later", &format!("{store}&namespace={space}"))?;
    expect(&said, &["format 99", "version"])?;
    let left = cluster.ceph("rados", &["-p", pool, "-N", &space, "stat", "head"])?;
    expect(&left, &[&format!("size {}", bytes.len())])
}

/// What `status` says of the store while it is used by this process.
fn status(volume: &Volume, owner: &str) -> Result<()> {
    let store = volume.status()?["dpu"]["store"].clone();
    let counted = |path: &str| store.pointer(path).and_then(serde_json::Value::as_u64);
    let named = |path: &str, part: &str| {
        store.pointer(path).and_then(serde_json::Value::as_str).is_some_and(|it| it.contains(part))
    };
    let told = named("/engine", "rados")
        && named("/claim/owner", &format!("process {owner} "))
        && counted("/claim/seconds_left").is_some_and(|left| left > 0)
        && ["/journal/commits", "/journal/groups", "/shards", "/bytes", "/capacity"]
            .into_iter()
            .chain(["/operations/journal write/count", "/operations/pairs read/count"])
            .all(|path| counted(path).is_some_and(|count| count > 0))
        && ["/in_flight", "/timed_out", "/lost", "/found_again", "/journal/unapplied"]
            .into_iter()
            .all(|path| counted(path).is_some());
    if told { Ok(()) } else { Err(format!("status says of the store: {store}")) }
}

/// Users that may not do what an owner must; and one that may do that and nothing more.
fn rights(cluster: &Cluster) -> Result<()> {
    let pool = cluster.store.trim_start_matches("rados://").split('?').next().unwrap_or_default();
    let space = format!("rights-{}", std::process::id());
    let store = |user: &str| format!("{}&namespace={space}&user=client.{user}", cluster.store);
    let (read, all) = (format!("allow r pool={pool}"), format!("allow rw pool={pool}"));
    let fences = "allow r, allow command \"osd blocklist\"";
    cluster.script("user", &["outsider", "allow r", "allow rw pool=elsewhere"])?;
    cluster.script("user", &["reader", "allow r", &read])?;
    cluster.script("user", &["owner", fences, &all])?;
    cluster.script("user", &["mild", "allow r", &all])?;
    let said = cluster.refusal("unknown", &store("stranger"))?;
    expect(&said, &["does not let client.stranger in", "user=client.NAME"])?;
    // The last may do everything until an owner that is gone is in its way.
    for user in ["outsider", "reader", "mild"] {
        let said = cluster.refusal(user, &store(user))?;
        expect(&said, &["the pool denies access", &format!("ceph auth caps client.{user}")])?;
    }
    let made = cluster.ceph("rados", &["-p", pool, "-N", &space, "ls"])?;
    if !made.trim().is_empty() {
        return Err(format!("who was refused has made {made}"));
    }
    // The remedy suffices, also to shut out an owner that died.
    let base = cluster.folder("rights")?;
    let mut volume = Volume::with(&base, &[&format!("--store={}", store("owner"))])?;
    volume.start()?;
    context(put(&volume.mountpoint().join("one"), 64), || "writing".to_owned())?;
    volume.kill(&[Side::Host, Side::Dpu])?;
    volume.start()?;
    check(&volume.mountpoint().join("one"), 64)?;
    // A volume that is there is not damaged by who may only read it.
    volume.stop()?;
    let said = cluster.refusal("reader-again", &store("reader"))?;
    expect(&said, &["the pool denies access"])?;
    volume.check()
}

fn one_writer(cluster: &Cluster) -> Result<()> {
    let mut first = cluster.volume("first")?;
    let store = context(fs::read_to_string(first.data().join("store")), || "store".to_owned())?;
    let store = store.lines().next().unwrap_or_default().to_owned();
    let file = |volume: &Volume, name: &str| volume.mountpoint().join(name);
    context(put(&file(&first, "one"), 64), || "writing".to_owned())?;
    let said = cluster.refusal("second", &store)?;
    let owner = first.pid(Side::Dpu)?.as_raw_nonzero().to_string();
    expect(&said, &["in use by", &format!("process {owner} ")])?;
    status(&first, &owner)?;
    first.kill(&[Side::Host, Side::Dpu])?;
    // The same host's next process does not wait: its directory's lock says that the owner is dead.
    let start = Instant::now();
    first.start()?;
    if start.elapsed() > Duration::from_secs(15) {
        return Err(format!("it waited {:?} for its own dead owner", start.elapsed()));
    }
    check(&file(&first, "one"), 64)?;
    first.kill(&[Side::Host, Side::Dpu])?;
    // Another host's waits until the claim has expired.
    let base = cluster.folder("second")?;
    let mut second = Volume::with(&base, &[&format!("--store={store}")])?;
    second.start()?;
    check(&file(&second, "one"), 64)?;
    context(put(&file(&second, "two"), 64), || "writing".to_owned())?;
    second.check()?;
    second.stop()?;
    // Given up in order: nobody waits.
    first.start()?;
    check(&file(&first, "two"), 64)?;
    first.stop()?;
    first.check()
}

/// An owner that was stopped while another had the volume answered from memory when it went on,
/// until the thread that renews its claim looked at the clock.
fn stopped(cluster: &Cluster) -> Result<()> {
    // With this time limit it is taken over before its hosts give it up, at 20 s without a beat.
    let store = format!("{}&namespace=stopped-{}&timeout=2", cluster.store, std::process::id());
    let base = cluster.folder("stopped")?;
    let mut first = Volume::with(&base, &[&format!("--store={store}")])?;
    first.start()?;
    let file = first.mountpoint().join("one");
    context(put(&file, 64), || "writing".to_owned())?;
    let owner = first.pid(Side::Dpu)?;
    let signal = |signal| context(kill_process(owner, signal), || format!("{signal:?}"));
    signal(Signal::STOP)?;
    let taken_over = || -> Result<()> {
        let base = cluster.folder("taker")?;
        let mut second = Volume::with(&base, &[&format!("--store={store}")])?;
        second.start()?;
        context(put(&second.mountpoint().join("one"), 128), || "writing".to_owned())?;
        second.stop()
    };
    let taken_over = taken_over();
    // Asked while the owner still stands, and answered by whoever serves then.
    let asked = file.clone();
    let asked = thread::spawn(move || {
        let (now, mask) = (AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        statx(CWD, &asked, now, mask).map(|stat| stat.stx_size)
    });
    sleep(Duration::from_millis(200));
    signal(Signal::CONT)?;
    taken_over?;
    let size = asked.join().map_err(|_| "the thread that asks panicked".to_owned())?;
    if !matches!(size, Ok(0x2_0000)) {
        return Err(format!("the file of 128 KiB is said to have {size:?} bytes"));
    }
    if first.pid(Side::Dpu)? == owner {
        return Err("the owner that was stopped serves again".to_owned());
    }
    first.stop()?;
    first.check()
}

fn migrate(cluster: &Cluster) -> Result<()> {
    let mut far = cluster.volume("far")?;
    let dir = far.mountpoint().join("dir");
    let fill = || -> io::Result<()> {
        fs::create_dir(&dir)?;
        for number in 0..200 {
            put(&dir.join(format!("file-{number}")), number % 40)?;
        }
        put(&far.mountpoint().join("big"), 20 << 10)
    };
    context(fill(), || "filling".to_owned())?;
    far.stop()?;
    let near = cluster.folder("near")?;
    let go = |from: &Path, to: &Path, more: &[&str]| {
        let mut words: Vec<&OsStr> = vec![OsStr::new("migrate"), from.as_ref(), to.as_ref()];
        words.extend(more.iter().map(|word| OsStr::new(*word)));
        let ended = cluster.outboard(&words)?;
        match ended.code() {
            Some(0) => Ok(()),
            code => Err(format!("migrate ended with {code:?}: {}", ended.tail(5))),
        }
    };
    go(&far.data(), &near.join("data"), &[])?;
    // Nothing is copied to where a volume is, and who was refused is not bound to it.
    let other = cluster.folder("other")?.join("data");
    let far_store = context(fs::read_to_string(far.data().join("store")), || "store".to_owned())?;
    let far_store = far_store.lines().next().unwrap_or_default();
    match go(&near.join("data"), &other, &["--store", far_store]) {
        Err(said) if said.contains("a volume already") => {}
        outcome => return Err(format!("a copy onto a volume: {outcome:?}")),
    }
    if other.join("store").exists() || other.join("store.copy").exists() {
        return Err("a copy that was refused is remembered".to_owned());
    }
    go(&near.join("data"), &other, &["--store", "redb"])?;
    let back = cluster.folder("back")?;
    let store = format!("{}&namespace=back-{}", cluster.store, std::process::id());
    go(&near.join("data"), &back.join("data"), &["--store", &store])?;
    // A directory knows its volume, not only the place where it was.
    let (ours, theirs) = (back.join("data/store"), far.data().join("store"));
    let swap = || -> io::Result<String> {
        let was = fs::read_to_string(&ours)?;
        let elsewhere = fs::read_to_string(&theirs)?;
        let number = was.lines().nth(1).unwrap_or_default();
        fs::write(&ours, format!("{}\n{number}\n", elsewhere.lines().next().unwrap_or_default()))?;
        Ok(was)
    };
    let was = context(swap(), || "the file `store`".to_owned())?;
    let fsck = ["fsck", "--data"].map(OsStr::new);
    let said = cluster.outboard(&[&fsck[..], &[back.join("data").as_ref()]].concat())?.output;
    expect(&said, &["another volume", "name the right pool"])?;
    context(fs::write(&ours, was), || "the file `store`".to_owned())?;
    for base in [near, back] {
        let mut volume = Volume::with(&base, &[])?;
        volume.start()?;
        for number in 0..200 {
            check(&volume.mountpoint().join(format!("dir/file-{number}")), number % 40)?;
        }
        check(&volume.mountpoint().join("big"), 20 << 10)?;
        volume.stop()?;
        volume.check()?;
    }
    Ok(())
}

/// Threads that write files durably; how many each has acknowledged.
struct Load {
    stop: Arc<AtomicBool>,
    written: Arc<[AtomicU64; 4]>,
    threads: Vec<thread::JoinHandle<io::Result<()>>>,
}

const LOAD_KIB: usize = 48;

impl Load {
    fn start(dir: &Path) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let written: Arc<[AtomicU64; 4]> = Arc::default();
        let threads = (0..4)
            .map(|thread| {
                let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
                let dir = dir.to_owned();
                thread::spawn(move || {
                    for number in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        put(&name(&dir, thread, number), LOAD_KIB)?;
                        written[thread].fetch_add(1, Ordering::Relaxed);
                        // All are read again, and a quick cluster would have taken thousands.
                        sleep(Duration::from_millis(20));
                    }
                    Ok(())
                })
            })
            .collect();
        Load { stop, written, threads }
    }

    fn total(&self) -> u64 {
        self.written.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Waits for `more` files than there are.
    fn goes_on(&self, more: u64) -> Result<()> {
        let wanted = self.total() + more;
        at_last("the load stands still", || {
            if self.total() >= wanted { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
        })
    }

    /// Ends it, and looks for all that was acknowledged: at once, and again through a mount made
    /// anew, since this one's caches would hide what the pool has lost.
    fn end(self, volume: &mut Volume) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let ended = thread.join().map_err(|_| "a writer panicked".to_owned())?;
            context(ended, || "a writer failed".to_owned())?;
        }
        let all_there = |dir: &Path| {
            for (thread, written) in self.written.iter().enumerate() {
                for number in 0..written.load(Ordering::Relaxed) {
                    check(&name(dir, thread, number), LOAD_KIB)?;
                }
            }
            Ok(())
        };
        all_there(&volume.mountpoint())?;
        volume.stop()?;
        volume.start()?;
        all_there(&volume.mountpoint())
    }
}

fn name(dir: &Path, thread: usize, number: u64) -> PathBuf {
    dir.join(format!("file-{thread}-{number}"))
}

/// Every storage daemon in turn, under load; of a cluster that keeps its data on disk then all of
/// them at once. Only one of them was ever killed, of a cluster in memory.
fn daemon_killed(cluster: &Cluster) -> Result<()> {
    let mut volume = cluster.patient_volume("killed")?;
    let dir = volume.mountpoint();
    let load = Load::start(&dir);
    load.goes_on(50)?;
    for daemon in ["0", "1", "2"] {
        cluster.script("kill", &[daemon])?;
        load.goes_on(50)?;
        cluster.script("revive", &[daemon])?;
        load.goes_on(50)?;
    }
    if cluster.is_on_disk()? {
        cluster.script("kill", &["all"])?;
        sleep(Duration::from_secs(2));
        cluster.script("revive", &["all"])?;
        load.goes_on(50)?;
    }
    load.end(&mut volume)?;
    volume.check()?;
    volume.stop()?;
    volume.check()
}

fn paused(cluster: &Cluster) -> Result<()> {
    let mut volume = cluster.patient_volume("paused")?;
    let dir = volume.mountpoint();
    let load = Load::start(&dir);
    load.goes_on(20)?;
    cluster.script("pause", &["all"])?;
    // What was acknowledged before that may be on its way to us for a while.
    let stands = (0..8).any(|_| {
        let before = load.total();
        sleep(Duration::from_secs(2));
        load.total() == before
    });
    cluster.script("resume", &["all"])?;
    if !stands {
        return Err("files were acknowledged by nobody".to_owned());
    }
    load.goes_on(20)?;
    load.end(&mut volume)?;
    volume.stop()?;
    volume.check()
}

fn gone(cluster: &Cluster) -> Result<()> {
    let mut volume = cluster.volume("gone")?;
    let dir = volume.mountpoint();
    context(put(&dir.join("before"), 100), || "writing".to_owned())?;
    cluster.script("pause", &["all"])?;
    let start = Instant::now();
    let failed = put(&dir.join("amid"), 100);
    let took = start.elapsed();
    let failed = failed.err().and_then(|error| error.raw_os_error());
    // EIO; what came when the DPU side was already starting anew waits for it, and is told so.
    if failed != Some(5) || took > Duration::from_secs(30) {
        return Err(format!("a write without a cluster: {failed:?} after {took:?}"));
    }
    sleep(Duration::from_secs(10));
    cluster.script("resume", &["all"])?;
    at_last("the mount does not recover", || put(&dir.join("after"), 100))?;
    // Through this mount, and through one whose caches know nothing.
    for _ in 0..2 {
        check(&dir.join("before"), 100)?;
        check(&dir.join("after"), 100)?;
        volume.check()?;
        volume.stop()?;
        volume.start()?;
    }
    volume.stop()?;
    volume.check()
}

fn full(cluster: &Cluster) -> Result<()> {
    let pool = format!("small-{}", std::process::id());
    let ours = cluster.store.trim_start_matches("rados://").split('?').next().unwrap_or_default();
    let base = cluster.folder("full")?;
    let store = cluster.store.replacen(ours, &pool, 1);
    cluster.ceph("ceph", &["osd", "pool", "create", &pool, "4"])?;
    cluster.ceph("ceph", &["osd", "pool", "application", "enable", &pool, "outboard"])?;
    let quota = (96u64 << 20).to_string();
    cluster.ceph("ceph", &["osd", "pool", "set-quota", &pool, "max_bytes", &quota])?;
    let mut volume = Volume::with(&base, &[&format!("--store={store}"), "--size=1G"])?;
    volume.start()?;
    let dir = volume.mountpoint();
    let mut number = 0;
    // The cluster notices seconds late that a quota is used up, and more than the quota may fit: a
    // quiet machine had written 400 MiB by then. Beyond the quota the writing takes its time.
    let refused = loop {
        if number > 400 {
            return Err("400 MiB fitted into a pool of 96".to_owned());
        }
        match put(&dir.join(format!("file-{number}")), 1024) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
        if number > 96 {
            sleep(Duration::from_millis(200));
        }
    };
    if refused.kind() != io::ErrorKind::StorageFull {
        return Err(format!("a full pool is told as {refused}"));
    }
    // What was acknowledged is in the pool, not only in this mount's caches.
    volume.stop()?;
    volume.start()?;
    for file in 0..number {
        check(&dir.join(format!("file-{file}")), 1024)?;
    }
    cluster.ceph("ceph", &["osd", "pool", "set-quota", &pool, "max_bytes", "0"])?;
    at_last("the volume stays full", || put(&dir.join("after"), 1024))?;
    volume.check()?;
    volume.stop()?;
    volume.check()?;
    drop(volume);
    let delete = [&pool, &pool, "--yes-i-really-really-mean-it"];
    cluster.ceph("ceph", &[&["osd", "pool", "delete"][..], &delete[..]].concat()).map(drop)
}
