//! A kernel that collects writes (`--cache write-back --shares`), and programs past it beside it:
//! one file system. What either was answered is what the other has from then on: bytes, sizes,
//! times; appended records are whole, registers linearizable; when either side dies, too.
//!
//! `OUTBOARD_SEED` chooses what is done.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../../servers/tests/it/history.rs"]
mod history;
mod running;
#[path = "../../../worlds/os/tests/skips/mod.rs"]
mod skips;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use outboard_attach::host::{Connect, Host};
use outboard_base::Rng;
use outboard_client::{Errno, OpenOptions as Opened, Setattr, SetattrTime, Timestamp, Volume};
use rustix::process::Signal;

use history::{Op, is_linearizable, of_key};
use running::Running;

const SHARES: &[&str] = &["--cache=write-back", "--shares"];

/// A program past the kernel.
type Program = Volume<Host>;

fn beside(mount: &Running) -> Program {
    let connect = Connect::new(mount.data().join("dpu.sock"));
    Volume::attach(|front| connect.attach(front)).unwrap()
}

fn seed() -> u64 {
    let seed = std::env::var("OUTBOARD_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("OUTBOARD_SEED={seed}");
    seed
}

fn below(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(bound as u64)).unwrap()
}

/// A file that both have open, and what it holds.
struct Both<'a> {
    path: std::path::PathBuf,
    here: File,
    appends_here: File,
    there: outboard_client::File<Host>,
    appends_there: outboard_client::File<Host>,
    program: &'a Program,
    model: Vec<u8>,
}

const MOST: usize = 60_000;

impl<'a> Both<'a> {
    fn open(mount: &Running, program: &'a Program, name: &str) -> Both<'a> {
        let path = mount.at(name);
        let options = || {
            let mut options = OpenOptions::new();
            options.read(true).create(true);
            options
        };
        let here = options().write(true).open(&path).unwrap();
        let appends_here = options().append(true).open(&path).unwrap();
        let open = |options: Opened| program.open(format!("/{name}"), options).unwrap();
        let there = open(Opened::new().read().write());
        let appends_there = open(Opened::new().append());
        let model = Vec::new();
        Both { path, here, appends_here, there, appends_there, program, model }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[at..end].copy_from_slice(bytes);
    }

    /// One change, on either side; what is said for a failure.
    fn change(&mut self, rng: &mut Rng) -> String {
        let (at, len) = (below(rng, MOST), 1 + below(rng, 9000));
        let bytes = vec![u8::try_from(1 + rng.below(255)).unwrap(); len];
        let what = rng.below(8);
        match what {
            0 | 1 => {
                self.here.write_all_at(&bytes, at as u64).unwrap();
                self.put(at, &bytes);
            }
            2 | 3 => {
                assert_eq!(self.there.write_at(&bytes, at as u64).unwrap(), len);
                self.put(at, &bytes);
            }
            4 => {
                self.appends_here.write_all(&bytes).unwrap();
                self.put(self.model.len(), &bytes);
            }
            5 => {
                assert_eq!(self.appends_there.write_at(&bytes, 0).unwrap(), len);
                self.put(self.model.len(), &bytes);
            }
            6 => {
                self.here.set_len(at as u64).unwrap();
                self.model.resize(at, 0);
            }
            _ => {
                self.there.truncate(at as u64).unwrap();
                self.model.resize(at, 0);
            }
        }
        format!("change {what} at {at}, {len} bytes")
    }

    fn check(&self, what: &str) {
        let size = self.model.len() as u64;
        assert_eq!(self.here.metadata().unwrap().len(), size, "the mount's size after {what}");
        assert_eq!(self.there.attr().unwrap().size, size, "the program's size after {what}");
        let named = self.program.stat(format!("/{}", self.name())).unwrap();
        assert_eq!(named.size, size, "the program's size by name after {what}");
        let mut here = vec![0; self.model.len()];
        self.here.read_exact_at(&mut here, 0).unwrap();
        assert!(here == self.model, "the mount's bytes after {what}: {}", self.first(&here));
        let mut there = vec![0; self.model.len()];
        let read = self.there.read_at(&mut there, 0).unwrap();
        assert_eq!(read, there.len(), "the program's length after {what}");
        assert!(there == self.model, "the program's bytes after {what}: {}", self.first(&there));
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap().to_string_lossy().into_owned()
    }

    fn first(&self, found: &[u8]) -> String {
        let at = found.iter().zip(&self.model).position(|(found, model)| found != model);
        format!("the first other one at {at:?} of {}", self.model.len())
    }
}

/// The kernel believes itself for size and bytes: a program's write was not seen at all where the
/// mount had the file open.
#[test]
fn what_either_writes_both_have() {
    let Some(mount) = Running::start("what_either_writes_both_have", SHARES) else { return };
    let program = beside(&mount);
    let mut rng = Rng::new(seed());
    let mut both = Both::open(&mount, &program, "file");
    for round in 0..150 {
        let what = both.change(&mut rng);
        // Now and then one side alone changes something several times.
        if rng.below(3) > 0 {
            both.check(&format!("round {round}: {what}"));
        }
    }
    both.check("all");
    let model = both.model.clone();
    drop(both);
    drop(program);
    let again = Running::on(mount.end(), &[]);
    assert!(std::fs::read(again.at("file")).unwrap() == model, "what the volume has");
    drop(again.end());
}

/// Not open on the mount any more, but known to its kernel; and emptied as it is opened.
#[test]
fn a_file_that_was_closed_is_what_others_made_of_it() {
    let Some(mount) = Running::start("a_file_that_was_closed", SHARES) else { return };
    let program = beside(&mount);
    for round in 0..30_usize {
        let (name, text) = (format!("f{}", round % 3), vec![7; 5000 + round]);
        std::fs::write(mount.at(&name), &text).unwrap();
        let options = Opened::new().write().create(0o600);
        let options = if round % 2 == 0 { options.truncate() } else { options };
        let file = program.open(format!("/{name}"), options).unwrap();
        assert_eq!(file.write_at(b"other", 10).unwrap(), 5);
        let mut model = if round % 2 == 0 { Vec::new() } else { text };
        model.resize(model.len().max(15), 0);
        model[10..15].copy_from_slice(b"other");
        assert!(std::fs::read(mount.at(&name)).unwrap() == model, "round {round}");
        assert_eq!(std::fs::metadata(mount.at(&name)).unwrap().len(), model.len() as u64);
    }
    drop(program);
    drop(mount.end());
}

/// Each shows the mtime that the other does, whoever moved it.
#[test]
fn times_are_the_same_on_both_sides() {
    let Some(mount) = Running::start("times_are_the_same", SHARES) else { return };
    let program = beside(&mount);
    let (path, name) = (mount.at("file"), "/file");
    let here = File::create(&path).unwrap();
    let there = program.open(name, Opened::new().read().write()).unwrap();
    let mut before = (0, 0);
    for round in 0..40_i64 {
        match round % 4 {
            0 => here.write_all_at(b"here", 0).unwrap(),
            1 => drop(there.write_at(b"there", 0).unwrap()),
            2 => there.truncate(u64::try_from(round).unwrap() * 10).unwrap(),
            _ => {
                let at = Timestamp::new(1_000_000 + round, 5).unwrap();
                let mtime = Some(SetattrTime::At(at));
                let _attr = there.set_attr(Setattr { mtime, ..Setattr::default() }).unwrap();
            }
        }
        let shown = std::fs::metadata(&path).unwrap();
        let attr = program.stat(name).unwrap();
        let mtime = (shown.mtime(), shown.mtime_nsec());
        assert_eq!(mtime, (attr.mtime.sec, attr.mtime.nsec.into()), "round {round}");
        assert_ne!(mtime, before, "round {round}");
        before = mtime;
        thread::sleep(Duration::from_millis(12));
    }
    drop((here, there, program));
    drop(mount.end());
}

fn record(hand: usize, number: usize) -> String {
    format!("{:<60}\n", format!("{hand} {number} ").repeat(4))
}

/// Records that both append at one moment are whole, and all there.
#[test]
fn records_of_both_are_whole() {
    let Some(mount) = Running::start("records_of_both_are_whole", SHARES) else { return };
    let program = beside(&mount);
    File::create(mount.at("log")).unwrap();
    let rounds = 150;
    thread::scope(|scope| {
        for hand in 0..2 {
            let path = mount.at("log");
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                for number in 0..rounds {
                    file.write_all(record(hand, number).as_bytes()).unwrap();
                }
            });
        }
        for hand in 2..4 {
            let volume = &program;
            scope.spawn(move || {
                let file = volume.open("/log", Opened::new().append()).unwrap();
                for number in 0..rounds {
                    let record = record(hand, number);
                    assert_eq!(file.write_at(record.as_bytes(), 0).unwrap(), record.len());
                }
            });
        }
    });
    let text = std::fs::read_to_string(mount.at("log")).unwrap();
    let mut found: Vec<&str> = text.split_inclusive('\n').collect();
    found.sort_unstable();
    let mut all: Vec<String> =
        (0..4).flat_map(|hand| (0..rounds).map(move |number| record(hand, number))).collect();
    all.sort_unstable();
    assert!(found.iter().copied().eq(all.iter().map(String::as_str)), "{} records", found.len());
    drop(program);
    drop(mount.end());
}

const REGISTERS: u64 = 16;

/// What clients did, by a clock of them all.
#[derive(Default)]
struct Histories {
    clock: AtomicU64,
    next: AtomicU64,
    all: Mutex<Vec<Op>>,
}

impl Histories {
    /// `access` reads (0) or writes a register; what it read.
    fn does(&self, rng: &mut Rng, access: impl FnOnce(u64, u64) -> u64) {
        let key = rng.below(REGISTERS);
        let writes = rng.below(2) == 0;
        let value = if writes { self.next.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        let called = self.clock.fetch_add(1, Ordering::SeqCst);
        let read = access(key, value);
        let answered = self.clock.fetch_add(1, Ordering::SeqCst);
        let value = if writes { value } else { read };
        self.all.lock().unwrap().push(Op { key, value, writes, called, answered });
    }

    fn judge(&self) {
        let all = self.all.lock().unwrap();
        for key in 0..REGISTERS {
            assert!(is_linearizable(&of_key(&all, key)), "register {key}: {:?}", of_key(&all, key));
        }
    }
}

fn work_on_registers(mount: &Running, program: &Program, rounds: usize, seed: u64) {
    let histories = Histories::default();
    std::fs::write(mount.at("registers"), vec![0; 8192]).unwrap();
    let place = |key: u64| key * 500;
    thread::scope(|scope| {
        for hand in 0..4 {
            let (histories, path) = (&histories, mount.at("registers"));
            let mut rng = Rng::new(seed * 100 + hand);
            scope.spawn(move || {
                let mut options = OpenOptions::new();
                let here = options.read(true).write(true).open(path).unwrap();
                let there = Opened::new().read().write();
                let there = program.open("/registers", there).unwrap();
                for _ in 0..rounds {
                    histories.does(&mut rng, |key, value| {
                        let mut bytes = value.to_le_bytes();
                        match (hand % 2, value) {
                            (0, 0) => here.read_exact_at(&mut bytes, place(key)).unwrap(),
                            (0, _) => here.write_all_at(&bytes, place(key)).unwrap(),
                            (_, 0) => assert_eq!(there.read_at(&mut bytes, place(key)), Ok(8)),
                            _ => assert_eq!(there.write_at(&bytes, place(key)), Ok(8)),
                        }
                        u64::from_le_bytes(bytes)
                    });
                }
            });
        }
    });
    histories.judge();
}

/// Registers that both sides write and read at one moment, many in one page.
#[test]
fn registers_of_both_are_linearizable() {
    let Some(mount) = Running::start("registers_of_both", SHARES) else { return };
    let program = beside(&mount);
    work_on_registers(&mount, &program, 200, seed());
    drop(program);
    drop(mount.end());
}

/// The mount's process, the DPU side and both die under them.
#[test]
fn registers_are_linearizable_when_either_side_dies() {
    let Some(mount) = Running::start("registers_when_either_side_dies", SHARES) else { return };
    let program = beside(&mount);
    let seed = seed();
    for round in 0..3 {
        thread::scope(|scope| {
            let (mount, program) = (&mount, &program);
            let work = scope.spawn(move || work_on_registers(mount, program, 120, seed + round));
            thread::sleep(Duration::from_millis(30));
            match round {
                0 => mount.replace(),
                1 => mount.kill_one("dpu"),
                _ => ["dpu", "mounted"].into_iter().for_each(|role| mount.kill_one(role)),
            }
            work.join().unwrap();
        });
    }
    // And what nobody had open then.
    let mut both = Both::open(&mount, &program, "file");
    let mut rng = Rng::new(seed);
    for round in 0..20 {
        let what = both.change(&mut rng);
        both.check(&format!("round {round} after the deaths: {what}"));
    }
    drop(both);
    drop(program);
    drop(mount.end());
}

/// Who waits for a mount whose process stands still is refused in the end; what that has collected
/// is not given up for it.
#[test]
#[ignore = "it waits for half a minute"]
fn a_mount_that_stands_still_loses_nothing() {
    let Some(mount) = Running::start("a_mount_that_stands_still", SHARES) else { return };
    let program = beside(&mount);
    let file = File::create_new(mount.at("file")).unwrap();
    file.write_all_at(b"only the kernel has it", 0).unwrap();
    let there = program.open("/file", Opened::new().read().write());
    let there = there.unwrap();
    assert!(mount.signal("mounted", Signal::STOP));
    let begun = Instant::now();
    let mut bytes = [0; 22];
    assert_eq!(there.read_at(&mut bytes, 0), Err(Errno::ETIMEDOUT));
    assert!(begun.elapsed() >= Duration::from_secs(20));
    assert!(mount.signal("mounted", Signal::CONT));
    assert_eq!(there.read_at(&mut bytes, 0), Ok(22));
    assert_eq!(&bytes, b"only the kernel has it");
    drop((file, there, program));
    drop(mount.end());
}

/// Who keeps something of files is refused beside a kernel that collects writes, in words; so is
/// the flag where it means nothing.
#[test]
fn who_keeps_something_is_refused() {
    let Some(mount) = Running::start("who_keeps_something_is_refused", SHARES) else { return };
    let other = tempfile::tempdir().unwrap();
    let outboard = |words: &[&str], data: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
        let data = format!("--data={}", data.display());
        let output = command.args(words).arg(data).arg(other.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for cache in ["--cache=kernel", "--cache=hybrid", "--cache=write-back"] {
        let (code, said) = outboard(&["mount", cache], &mount.data());
        assert_eq!(code, Some(4), "{cache}: {said}");
    }
    let (code, said) = outboard(&["mount", "--cache=none", "--shares"], &mount.data());
    assert_eq!(code, Some(2), "{said}");
    let connect = Connect::new(mount.data().join("dpu.sock")).cache(4 << 20);
    let refused = Volume::attach(|front| connect.attach(front));
    let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("keeps nothing"), "{refused}");
    drop(mount.end());
}
