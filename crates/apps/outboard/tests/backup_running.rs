//! `outboard backup` of mounted volumes while programs write to them: what is restored is of one
//! instant, holds what was synced before, and mounts; and whoever is killed amid a copy, nothing is
//! kept for it for ever.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod serving;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use serving::{OUTBOARD, json, text};

const LIMIT: Duration = Duration::from_secs(120);

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited for {what}");
        sleep(Duration::from_millis(1));
    }
}

fn signal(name: &str, pid: u64) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

/// `outboard run`, told to end when dropped.
struct Mounted {
    child: Child,
    data: PathBuf,
    mnt: PathBuf,
}

impl Mounted {
    /// Mounts what is in `data` at `mnt`.
    fn start(data: &Path, mnt: &Path, flags: &[&str]) -> Mounted {
        std::fs::create_dir_all(mnt).unwrap();
        let mut command = Command::new(OUTBOARD);
        command.args(["run", "--memory=128M", "--data"]).arg(data).args(flags).arg(mnt);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mounted = Mounted { child, data: data.to_owned(), mnt: mnt.to_owned() };
        let at = format!(" {} ", mnt.display());
        until("the mount", || {
            let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
            (mounts.contains(&at) && std::fs::metadata(mnt).is_ok()).then_some(())
        });
        mounted
    }

    fn pid(&self) -> u64 {
        json(&["status"], &self.data)["dpu"]["pid"].as_u64().unwrap()
    }

    fn used(&self) -> u64 {
        let status = json(&["status"], &self.data);
        let of = |what: &str| status["dpu"]["volume"][what].as_u64().unwrap();
        (of("blocks") - of("blocks_free")) * of("block_size")
    }

    fn stop(mut self) {
        signal("-TERM", self.child.id().into());
        let ended = until("the end of the mount", || self.child.try_wait().unwrap());
        assert!(ended.success(), "{ended}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _told = Command::new("kill").arg(self.child.id().to_string()).status();
            let end = Instant::now() + Duration::from_secs(20);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
                sleep(Duration::from_millis(10));
            }
            let _ended_already = self.child.kill();
            let _reaped = self.child.wait();
            let _unmounted = Command::new("umount").arg("-l").arg(&self.mnt).status();
        }
    }
}

fn run(args: &[&str], paths: &[&Path]) -> Output {
    Command::new(OUTBOARD).args(args).args(paths).output().unwrap()
}

fn done(args: &[&str], paths: &[&Path]) {
    let output = run(args, paths);
    assert!(output.status.success(), "{args:?} {paths:?}: {}", text(&output.stderr));
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Records of the file that is overwritten in place, and bytes of one.
const RECORDS: usize = 256;
const RECORD: usize = 8192;

/// What writers were told to be durable.
struct Synced {
    /// Numbered files up to this one.
    numbered: AtomicU64,
    /// The generation of each record.
    records: Vec<AtomicU64>,
    /// The longest fsync since this was taken, microseconds.
    slowest: AtomicU64,
    stop: AtomicBool,
}

/// The same at one moment.
struct Promise {
    numbered: u64,
    records: Vec<u64>,
    /// How far one log may be behind the other.
    lag: usize,
}

impl Synced {
    fn now(&self) -> Promise {
        let records = self.records.iter().map(|record| record.load(Ordering::Acquire)).collect();
        Promise { numbered: self.numbered.load(Ordering::Acquire), records, lag: 1 }
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

fn record(index: usize, generation: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD);
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(&(index as u64).to_le_bytes());
    let mut noise = generation.wrapping_mul(0x9E37_79B9).wrapping_add(index as u64) | 1;
    while bytes.len() < RECORD - 8 {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend_from_slice(&noise.to_le_bytes());
    }
    bytes.extend_from_slice(&sum(&bytes).to_le_bytes());
    bytes
}

/// Small ones are pairs, larger ones objects.
fn numbered(number: u64) -> Vec<u8> {
    format!("{number};").repeat(usize::try_from(number * 997 % 4000).unwrap()).into_bytes()
}

fn write_numbered(at: &Path, synced: &Synced) {
    let dir = File::open(at.join("numbered")).unwrap();
    for number in 1.. {
        if synced.stop.load(Ordering::Relaxed) {
            return;
        }
        let mut file = File::create(at.join(format!("numbered/{number}"))).unwrap();
        file.write_all(&numbered(number)).unwrap();
        let start = Instant::now();
        file.sync_all().unwrap();
        let took = u64::try_from(start.elapsed().as_micros()).unwrap();
        synced.slowest.fetch_max(took, Ordering::Relaxed);
        dir.sync_all().unwrap();
        synced.numbered.store(number, Ordering::Release);
        sleep(Duration::from_millis(2));
    }
}

fn rename_pair(at: &Path, synced: &Synced) {
    let (here, there) = (at.join("pair/here"), at.join("pair/there"));
    while !synced.stop.load(Ordering::Relaxed) {
        std::fs::rename(&here, &there).unwrap();
        std::fs::rename(&there, &here).unwrap();
        sleep(Duration::from_millis(1));
    }
}

fn overwrite_records(at: &Path, synced: &Synced) {
    let file = OpenOptions::new().write(true).open(at.join("records")).unwrap();
    let mut written = vec![1; RECORDS];
    for step in 1_u64.. {
        if synced.stop.load(Ordering::Relaxed) {
            return;
        }
        let index = usize::try_from(step.wrapping_mul(0x9E37_79B9) >> 7).unwrap() % RECORDS;
        written[index] = step + 1;
        file.write_all_at(&record(index, step + 1), (index * RECORD) as u64).unwrap();
        if step % 16 == 0 {
            file.sync_data().unwrap();
            for (synced, written) in synced.records.iter().zip(&written) {
                synced.store(*written, Ordering::Release);
            }
            sleep(Duration::from_millis(1));
        }
    }
}

/// First to one, then to the other. With a hybrid cache only what is synced has an order.
fn append(at: &Path, synced: &Synced, syncs: bool) {
    let open = |name| OpenOptions::new().append(true).open(at.join(name)).unwrap();
    let (mut first, mut second) = (open("log/first"), open("log/second"));
    for number in 0_u64.. {
        if synced.stop.load(Ordering::Relaxed) {
            return;
        }
        first.write_all(&number.to_le_bytes()).unwrap();
        if syncs {
            first.sync_data().unwrap();
        }
        second.write_all(&number.to_le_bytes()).unwrap();
        if number % 8 == 0 {
            sleep(Duration::from_millis(1));
        }
    }
}

/// Programs at work.
struct Writers {
    synced: Arc<Synced>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(at: &Path, syncs: bool) -> Writers {
        for dir in ["numbered", "pair", "log"] {
            std::fs::create_dir(at.join(dir)).unwrap();
        }
        std::fs::write(at.join("pair/here"), "the one of two").unwrap();
        let records: Vec<u8> = (0..RECORDS).flat_map(|index| record(index, 1)).collect();
        std::fs::write(at.join("records"), records).unwrap();
        for name in ["log/first", "log/second"] {
            File::create(at.join(name)).unwrap().sync_all().unwrap();
        }
        let synced = Arc::new(Synced {
            numbered: AtomicU64::new(0),
            records: (0..RECORDS).map(|_| AtomicU64::new(0)).collect(),
            slowest: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        type Work = Box<dyn Fn(&Path, &Synced) + Send>;
        let works: [Work; 4] = [
            Box::new(write_numbered),
            Box::new(rename_pair),
            Box::new(overwrite_records),
            Box::new(move |at, synced| append(at, synced, syncs)),
        ];
        let threads = works.into_iter().map(|work| {
            let (at, synced) = (at.to_owned(), Arc::clone(&synced));
            std::thread::spawn(move || work(&at, &synced))
        });
        let threads = threads.collect();
        Writers { synced, threads }
    }

    fn stop(mut self) {
        self.synced.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.synced.stop.store(true, Ordering::Relaxed);
    }
}

fn words(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes.len() % 8, 0, "{}", path.display());
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Whether each record is whole, and of no generation before the one that is promised.
fn judge_records(records: &[u8], promised: &[u64]) -> Result<(), String> {
    for ((index, bytes), synced) in records.chunks(RECORD).enumerate().zip(promised) {
        let generation = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        if bytes != record(index, generation) || generation < *synced {
            return Err(format!("record {index} of generation {generation}, {synced} is synced"));
        }
    }
    Ok(())
}

/// Whether what lies there is of one instant, and not before the promise.
fn judge(at: &Path, promise: &Promise) -> Result<(), String> {
    for number in 1..=promise.numbered {
        match std::fs::read(at.join(format!("numbered/{number}"))) {
            Ok(found) if found == numbered(number) => {}
            other => return Err(format!("file {number}: {:?}", other.map(|bytes| bytes.len()))),
        }
    }
    let pair = names(&at.join("pair"));
    if pair.len() != 1 {
        return Err(format!("of two names there are {pair:?}"));
    }
    if std::fs::read(at.join("pair").join(&pair[0])).unwrap() != b"the one of two" {
        return Err("the one of two holds something else".to_owned());
    }
    let records = std::fs::read(at.join("records")).unwrap();
    if records.len() != RECORDS * RECORD {
        return Err(format!("{} bytes of records", records.len()));
    }
    judge_records(&records, &promise.records)?;
    let (first, second) = (words(&at.join("log/first")), words(&at.join("log/second")));
    if !first.starts_with(&second) || first.len() - second.len() > promise.lag {
        return Err(format!("{} words in one log, {} in the other", first.len(), second.len()));
    }
    match first.iter().zip(0..).all(|(word, number)| *word == number) {
        true => Ok(()),
        false => Err("the logs hold something else".to_owned()),
    }
}

/// Restores it, checks it, mounts it, and looks.
fn try_copy(base: &Path, backup: &Path, promise: &Promise, why: &str) {
    let copy = base.join("copy");
    done(&["restore"], &[backup, &copy]);
    assert_eq!(json(&["fsck"], &copy)["clean"], true, "{why}");
    let mounted = Mounted::start(&copy, &base.join("copy-mnt"), &[]);
    if let Err(error) = judge(&mounted.mnt, promise) {
        panic!("{why}: {error}");
    }
    // It is a volume as any.
    std::fs::write(mounted.mnt.join("more"), "more").unwrap();
    mounted.stop();
    std::fs::remove_dir_all(copy).unwrap();
}

/// Copies while programs write, and what they are of.
fn copies_amid_writers(flags: &[&str], syncs: bool) {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let flags = [&["--size=512M"], flags].concat();
    let mounted = Mounted::start(&base.join("data"), &base.join("mnt"), &flags);
    let writers = Writers::start(&mounted.mnt, syncs);
    sleep(Duration::from_secs(2));
    let alone = writers.synced.slowest.swap(0, Ordering::Relaxed);
    let mut amid = Vec::new();
    for round in 0..4 {
        let (backup, mut promise) = (base.join("backup"), writers.synced.now());
        if syncs {
            // What was appended to a page after pages were written back is not in the copy.
            promise.lag = usize::MAX;
        }
        writers.synced.slowest.store(0, Ordering::Relaxed);
        let start = Instant::now();
        done(&["backup"], &[&mounted.data, &backup]);
        amid.push((start.elapsed(), writers.synced.slowest.load(Ordering::Relaxed)));
        assert!(promise.numbered > 0, "nobody wrote");
        try_copy(&base, &backup, &promise, &format!("{flags:?} round {round}"));
        std::fs::remove_file(backup).unwrap();
    }
    eprintln!("{flags:?}: fsync took at most {alone} us alone in 2 s; copy, fsync: {amid:?}");
    let last = writers.synced.clone();
    writers.stop();
    judge(&mounted.mnt, &last.now()).unwrap();
    let data = mounted.data.clone();
    mounted.stop();
    assert_eq!(json(&["fsck"], &data)["clean"], true);
}

#[test]
fn a_running_volume_is_copied_as_it_is_at_one_instant() {
    copies_amid_writers(&["--store=fjall"], false);
}

#[test]
fn a_running_volume_in_the_second_engine_is_copied_as_it_is_at_one_instant() {
    copies_amid_writers(&["--store=redb"], false);
}

#[test]
fn pages_of_a_hybrid_cache_are_in_the_copy() {
    copies_amid_writers(&["--cache=hybrid", "--cache-size=8M"], true);
}

/// The judge is judged: files copied one after another are no instant, and it says so.
#[test]
fn files_copied_one_by_one_are_known_as_no_instant() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let mounted = Mounted::start(&base.join("data"), &base.join("mnt"), &["--size=512M"]);
    let writers = Writers::start(&mounted.mnt, false);
    let copy = base.join("by-hand");
    std::fs::create_dir_all(copy.join("log")).unwrap();
    until("the logs", || (words(&mounted.mnt.join("log/second")).len() > 9).then_some(()));
    std::fs::copy(mounted.mnt.join("log/first"), copy.join("log/first")).unwrap();
    let copied = words(&copy.join("log/first")).len();
    until("the second log", || {
        (words(&mounted.mnt.join("log/second")).len() > copied).then_some(())
    });
    writers.stop();
    for what in ["numbered", "pair", "records", "log/second"] {
        let (from, to) = (mounted.mnt.join(what), copy.join(what));
        let copied = Command::new("cp").arg("-r").args([from, to]).status().unwrap();
        assert!(copied.success());
    }
    let nothing = Promise { numbered: 0, records: vec![0; RECORDS], lag: 1 };
    judge(&mounted.mnt, &nothing).unwrap();
    assert!(judge(&copy, &nothing).unwrap_err().contains("in one log"));
    // Nor is what is older than the promise.
    let more = Promise { records: vec![u64::MAX; RECORDS], ..nothing };
    assert!(judge(&mounted.mnt, &more).unwrap_err().contains("is synced"));
    let more = Promise { numbered: u64::MAX, records: vec![0; RECORDS], lag: 1 };
    assert!(judge(&mounted.mnt, &more).unwrap_err().starts_with("file "));
    mounted.stop();
}

/// What does not fit into sockets and pipes.
const MUCH: usize = 48 << 20;

fn noise(seed: u64) -> Vec<u8> {
    (0..MUCH / RECORD).flat_map(|index| record(index, seed)).collect()
}

/// A copy whose reader does not read.
fn half_way(data: &Path) -> Child {
    let mut command = Command::new(OUTBOARD);
    let command = command.arg("backup").arg(data).arg("-");
    let mut copier = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It has begun when something comes.
    copier.stdout.as_mut().unwrap().read_exact(&mut [0; 64]).unwrap();
    copier
}

/// What is kept for a copy is free again when the copier has gone, however it went; a second copy
/// waits for that.
#[test]
fn a_copier_that_goes_away_leaves_nothing_held() {
    for store in ["--store=fjall", "--store=redb"] {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let mounted =
            Mounted::start(&base.join("data"), &base.join("mnt"), &["--size=512M", store]);
        let file = mounted.mnt.join("much");
        let write = |seed| {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&file);
            let file = file.unwrap();
            file.write_all_at(&noise(seed), 0).unwrap();
            file.sync_all().unwrap();
        };
        write(1);
        let before = mounted.used();
        for how in ["-KILL", "-INT"] {
            let mut copier = half_way(&mounted.data);
            write(2);
            let held = mounted.used();
            assert!(held > before + MUCH as u64 / 2, "{held} used, {before} before: kept");
            let backup = base.join("backup");
            let second = run(&["backup"], &[&mounted.data, &backup]);
            assert_eq!(second.status.code(), Some(4), "{}", text(&second.stderr));
            assert!(text(&second.stderr).contains("being made already"));
            assert_eq!(names(&base), ["data", "mnt"], "and nothing of it");
            signal(how, copier.id().into());
            drop(copier.stdout.take());
            assert!(!copier.wait().unwrap().success(), "{how}");
            // Freed blocks are proved by a sync.
            until("the room", || {
                write(3);
                (mounted.used() < before + (8 << 20)).then_some(())
            });
            until("another copy", || {
                run(&["backup"], &[&mounted.data, &backup]).status.success().then_some(())
            });
            std::fs::remove_file(backup).unwrap();
        }
        mounted.stop();
    }
}

/// kill -9 of the DPU side amid a copy: programs wait and go on, the copier says so and makes no
/// file, and the next copy is one.
#[test]
fn a_dpu_side_that_is_killed_amid_a_copy_leaves_no_file() {
    for store in ["--store=fjall", "--store=redb"] {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let mounted =
            Mounted::start(&base.join("data"), &base.join("mnt"), &["--size=512M", store]);
        std::fs::write(mounted.mnt.join("much"), noise(1)).unwrap();
        let writers = Writers::start(&mounted.mnt, false);
        let backup = base.join("backup");
        // Caught before its end: one that ended is tried again.
        let mut copier = until("a copy under way", || {
            let mut copier = Command::new(OUTBOARD);
            let copier = copier.arg("backup").args([&mounted.data, &backup]).stderr(Stdio::piped());
            let mut copier = copier.spawn().unwrap();
            until("its draft", || {
                let drafts = std::fs::read_dir(&base).unwrap();
                let mut drafts = drafts.filter_map(|entry| entry.unwrap().metadata().ok());
                let began = drafts.any(|found| found.is_file() && found.len() > 1 << 20);
                began.then_some(())
            });
            signal("-STOP", copier.id().into());
            if !backup.exists() {
                return Some(copier);
            }
            signal("-CONT", copier.id().into());
            assert!(copier.wait().unwrap().success());
            std::fs::remove_file(&backup).unwrap();
            None
        });
        let old = mounted.pid();
        signal("-KILL", old);
        signal("-CONT", copier.id().into());
        let mut said = String::new();
        copier.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(copier.wait().unwrap().code(), Some(1), "{said}");
        assert!(said.contains("nothing was made"), "{said}");
        assert_eq!(names(&base), ["data", "mnt"], "no file, and no half of one");
        until("the next DPU side", || {
            let status = serving::outboard(&["status", "--json"], &mounted.data);
            (status.status.success() && mounted.pid() != old).then_some(())
        });
        let promise = writers.synced.now();
        done(&["backup"], &[&mounted.data, &backup]);
        try_copy(&base, &backup, &promise, "after the kill");
        writers.stop();
        mounted.stop();
    }
}

/// Bytes of each file that fills a volume, and of that volume.
const FILLER: usize = 1 << 20;
const SMALL: usize = 128 << 20;

fn filler(number: u64) -> Vec<u8> {
    (0..FILLER / RECORD).flat_map(|index| record(index, number)).collect()
}

/// Whether it was done; all that may keep it from that is a full volume.
fn unless_full(done: std::io::Result<()>) -> bool {
    match done {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => false,
        Err(error) => panic!("{error}"),
    }
}

fn put_filler(at: &Path, number: u64) -> bool {
    let path = at.join(format!("filler-{number}"));
    unless_full(File::create(path).and_then(|mut file| {
        file.write_all(&filler(number))?;
        file.sync_all()
    }))
}

/// Overwrites records of the second generation in turn until it is stopped; the last generation of
/// each that was written.
fn overwrite_much(path: &Path, stop: &AtomicBool) -> Vec<u64> {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let mut written = vec![2; MUCH / RECORD];
    for step in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (index, generation) = (step % written.len(), (step / written.len() + 3) as u64);
        let at = (index * RECORD) as u64;
        if unless_full(file.write_all_at(&record(index, generation), at)) {
            written[index] = generation;
        }
    }
    written
}

/// Reads to the end, slowly while that is wanted: enough not to be given up for reading nothing,
/// too little to be at the end before. How much there was.
fn read_slowly(stream: &mut impl Read, slowly: &AtomicBool) -> usize {
    let (mut piece, mut read) = (vec![0; 1 << 16], 0);
    loop {
        match stream.read(&mut piece).unwrap() {
            0 => return read,
            more => read += more,
        }
        if slowly.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(500));
        }
    }
}

/// Whether the files are there that were synced before the volume was full.
fn judge_full(at: &Path, fillers: u64, written: &[u64]) -> Result<(), String> {
    for number in 1..=fillers {
        if std::fs::read(at.join(format!("filler-{number}"))).unwrap() != filler(number) {
            return Err(format!("filler {number} is something else"));
        }
    }
    let much = std::fs::read(at.join("much")).unwrap();
    if much.len() != MUCH {
        return Err(format!("{} bytes of records", much.len()));
    }
    judge_records(&much, written)
}

/// A volume that runs full amid a copy: nobody is refused for what is kept for the copy, which is
/// given up and says why. What is full is copied as any.
#[test]
fn a_volume_that_runs_full_amid_a_copy_gives_the_copy_up_and_refuses_nobody_for_it() {
    for store in ["--store=fjall", "--store=redb"] {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let mounted =
            Mounted::start(&base.join("data"), &base.join("mnt"), &["--size=128M", store]);
        let (at, much) = (mounted.mnt.clone(), mounted.mnt.join("much"));
        let write_much = |seed| {
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&much);
            let file = file.unwrap();
            file.write_all_at(&noise(seed), 0).unwrap();
            file.sync_all().unwrap();
        };
        write_much(1);
        let before = mounted.used();
        let mut copier = half_way(&mounted.data);
        let mut stream = copier.stdout.take().unwrap();
        let (slow, stop) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let slowly = Arc::clone(&slow);
        let reader = std::thread::spawn(move || read_slowly(&mut stream, &slowly));
        write_much(2);
        let held = mounted.used();
        assert!(held > before + MUCH as u64 / 2, "{held} used, {before} before: kept");
        let (path, stopped) = (much.clone(), Arc::clone(&stop));
        let overwriter = std::thread::spawn(move || overwrite_much(&path, &stopped));
        let fillers = (1..).take_while(|number| put_filler(&at, *number)).count() as u64;
        stop.store(true, Ordering::Relaxed);
        let written = overwriter.join().unwrap();
        slow.store(false, Ordering::Relaxed);
        let read = reader.join().unwrap();
        let said = copier.wait_with_output().unwrap();
        let (code, said) = (said.status.code(), text(&said.stderr));
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("the volume ran full while it was copied"), "{said}");
        assert!(read < MUCH, "{read} bytes: it was at its end before");
        let live = MUCH + usize::try_from(fillers).unwrap() * FILLER;
        assert!(live + (16 << 20) > SMALL, "full with {live} bytes: refused for the copy");
        judge_full(&mounted.mnt, fillers, &written).unwrap();

        let backup = base.join("backup");
        done(&["backup"], &[&mounted.data, &backup]);
        let copy = base.join("copy");
        done(&["restore"], &[&backup, &copy]);
        assert_eq!(json(&["fsck"], &copy)["clean"], true);
        for mounted in [Mounted::start(&copy, &base.join("copy-mnt"), &[]), mounted] {
            let at = &mounted.mnt;
            judge_full(at, fillers, &written).unwrap();
            // There is room again.
            for number in 1..=fillers {
                std::fs::remove_file(at.join(format!("filler-{number}"))).unwrap();
            }
            for number in 1..fillers {
                assert!(put_filler(at, number), "no room for {number} of {fillers}");
            }
            let data = mounted.data.clone();
            mounted.stop();
            assert_eq!(json(&["fsck"], &data)["clean"], true);
        }
    }
}
