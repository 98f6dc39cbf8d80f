//! Power loss below everything: the volume's files lie on a real file system on a disk that records
//! every write and flush. The disks that power loss could have left, at any operation of the
//! record, are mounted, the volume is opened from them, and nothing synced may be missing.
//!
//! Needs root, /dev/fuse, a loop device and mkfs.ext4; says so and passes where it has not.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests say so when they fail")]

#[path = "../../os/tests/skips/mod.rs"]
mod skips;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use outboard_base::Rng;
use outboard_fjall::recorder::disk::RecordedDisk;
use outboard_fjall::{Engine, EngineOptions};
use outboard_kv::object::{ObjectId, Objects, Options};
use outboard_kv::{Batch, Cached, Durability, Kv};
use outboard_medium::Medium;
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};
use outboard_os::room::Reserve;
use skips::note_skip;

type Store = Objects<Cached<Engine>, FileMedium>;

const BLOCK: u64 = 8192;
const BLOCK_LEN: usize = 8192;
const BLOCKS: u64 = 48;
const ID: ObjectId = ObjectId(3);
const DISK: u64 = 160 << 20;

/// Runs a program; its output if it succeeded.
fn tool(program: &str, args: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_string());
    }
    Err(format!("{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A file mounted through a loop device, until dropped.
struct Mounted {
    device: String,
    dir: PathBuf,
}

impl Mounted {
    fn new(file: &Path, dir: &Path, format: bool) -> Result<Mounted, String> {
        let file = file.to_str().unwrap();
        let device = tool("losetup", &["--find", "--show", "--direct-io=on", file])?;
        let mut mounted = Mounted { device, dir: PathBuf::new() };
        if format {
            let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
            tool("mkfs.ext4", &["-q", "-E", options, &mounted.device])?;
        }
        std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        tool("mount", &["-t", "ext4", &mounted.device, dir.to_str().unwrap()])?;
        mounted.dir = dir.to_path_buf();
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.dir != Path::new("")
            && let Err(error) = tool("umount", &[self.dir.to_str().unwrap()])
        {
            eprintln!("{error}");
        }
        if let Err(error) = tool("losetup", &["--detach", &self.device]) {
            eprintln!("{error}");
        }
    }
}

fn open(dir: &Path) -> Result<(Arc<Cached<Engine>>, Store), String> {
    let reserve = Reserve { most: 4 << 20, one_in: 16 };
    let options = EngineOptions { reserve, memtable: 64 << 10, ..EngineOptions::default() };
    let engine = Engine::open(&dir.join("kv"), options).map_err(|e| e.to_string())?;
    let kv = Arc::new(Cached::new(engine, 1 << 20));
    let options = MediumOptions { reserve, ..MediumOptions::default() };
    let medium = FileMedium::open(&dir.join("blocks"), options)
        .and_then(|medium| medium.beside(&dir.join("kv")))
        .map_err(|e| e.to_string())?;
    // So that it is this what the power loss is tried on.
    if !medium.is_flushed_by_store() {
        return Err("the medium must be flushed on its own".to_string());
    }
    let options = Options { capacity: 8 << 20, segment: 2 << 20, ..Options::default() };
    let (store, recovered) =
        block_on(Objects::open(kv.clone(), medium, options)).map_err(|e| e.to_string())?;
    if recovered.lost > 0 {
        return Err(format!("{recovered:?}"));
    }
    Ok((kv, store))
}

/// The block that batch `number` writes, and its bytes.
fn block_of(number: u64) -> (u64, Vec<u8>) {
    let mut bytes = vec![0; BLOCK_LEN];
    Rng::new(number).fill(&mut bytes);
    (Rng::new(number ^ 0xFFFF).below(BLOCKS), bytes)
}

/// When, in operations of the disk's record, each batch was begun, and each sync answered for how
/// many.
#[derive(Default)]
struct Diary {
    begun: Vec<usize>,
    synced: Vec<(usize, u64)>,
}

fn work(disk: &RecordedDisk, dir: &Path, rng: &mut Rng, batches: u64) -> Diary {
    let (kv, store) = open(dir).unwrap();
    let _reactor = Reactor::install(32).unwrap();
    let mut diary = Diary::default();
    for number in 1..=batches {
        let (block, bytes) = block_of(number);
        diary.begun.push(disk.now());
        block_on(async {
            let mut batch = Batch::at(kv.version());
            let staged = store.write(ID, block * BLOCK, &bytes, &mut batch).await.unwrap();
            batch.put(b"last", number.to_be_bytes());
            batch.put([&b"a"[..], &number.to_be_bytes()].concat(), vec![1; 300]);
            kv.commit(batch, Durability::Answered).await.unwrap();
            staged.committed();
        });
        match rng.below(12) {
            0 | 1 => block_on(store.sync()).unwrap(),
            2 => block_on(store.tidy()).unwrap(),
            _ => continue,
        }
        diary.synced.push((disk.now(), number));
    }
    diary
}

/// Opens what power loss left and compares it with what the diary allows.
fn examine(dir: &Path, diary: &Diary, moment: usize) -> Result<(), String> {
    let synced = diary.synced.iter().filter(|(at, _)| *at <= moment).map(|(_, n)| *n).max();
    let synced = synced.unwrap_or(0);
    let begun = diary.begun.iter().filter(|at| **at <= moment).count() as u64;
    let (kv, store) = open(dir)?;
    let last = block_on(kv.get(b"last")).map_err(|e| e.to_string())?;
    let last = last.map_or(0, |v| u64::from_be_bytes(v[..].try_into().unwrap()));
    if !(synced..=begun).contains(&last) {
        return Err(format!("batch {last} is the last, {synced} was synced, {begun} begun"));
    }
    let whole = block_on(kv.scan(b"a", None, usize::MAX >> 1)).map_err(|e| e.to_string())?;
    if whole.len() as u64 != last {
        return Err(format!("{} batches of {last} are whole", whole.len()));
    }
    for block in 0..BLOCKS {
        let mut found = vec![0; BLOCK_LEN];
        block_on(store.read(ID, block * BLOCK, &mut found)).map_err(|e| e.to_string())?;
        let writers: Vec<u64> = (1..=last).filter(|n| block_of(*n).0 == block).collect();
        let kept = writers.iter().rev().find(|n| block_of(**n).1 == found).copied();
        let must = writers.iter().filter(|n| **n <= synced).max().copied();
        let legal = kept.max(Some(0)) >= must.max(Some(0))
            && (kept.is_some() || found.iter().all(|b| *b == 0));
        if !legal {
            return Err(format!("block {block} is of batch {kept:?}, {must:?} was synced"));
        }
    }
    let report = block_on(store.check(true, |_| ())).map_err(|e| e.to_string())?;
    if report.fault_count > 0 {
        return Err(format!("{:?}", report.faults));
    }
    Ok(())
}

fn scenario(base: &Path, seed: u64, cuts: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let (fuse, dir) = (base.join("fuse"), base.join("volume"));
    std::fs::create_dir_all(&fuse).unwrap();
    let disk = RecordedDisk::start(&fuse, DISK).map_err(|e| format!("/dev/fuse: {e}"))?;
    let mounted = Mounted::new(&disk.file(), &dir, true)?;
    let formatted = disk.now();
    let diary = std::thread::scope(|scope| {
        let rng = &mut rng;
        let (disk, dir) = (&disk, &dir);
        scope.spawn(move || work(disk, dir, rng, 250)).join().unwrap()
    });
    let end = disk.now();
    drop(mounted);
    println!("seed {seed}: {} operations, {} syncs", end - formatted, diary.synced.len());
    for cut in 0..cuts {
        // Not before the volume's first batch: an unfinished mkfs is nobody's promise.
        let first = diary.begun[0];
        let moment = first + usize::try_from(rng.below((end - first) as u64 + 1)).unwrap();
        let image = base.join("image");
        disk.replay(moment, &image, &mut rng).unwrap();
        let mounted = Mounted::new(&image, &base.join("after"), false)
            .unwrap_or_else(|error| panic!("seed {seed} cut {cut} at {moment}: {error}"));
        if let Err(error) = examine(&mounted.dir, &diary, moment) {
            panic!("seed {seed} cut {cut} at {moment}: {error}");
        }
    }
    Ok(())
}

#[test]
fn nothing_synced_is_lost_from_a_real_disk() {
    if !rustix::process::geteuid().is_root() {
        note_skip("power-loss-disk", "a recorded disk needs root");
        return;
    }
    let number = |name, few| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(few);
    for seed in 0..number("OUTBOARD_SEEDS", 1) {
        let base = tempfile::tempdir().unwrap();
        if let Err(error) = scenario(base.path(), seed, number("OUTBOARD_CUTS", 8)) {
            note_skip("power-loss-disk", &format!("no recorded disk here: {error}"));
            return;
        }
    }
}
