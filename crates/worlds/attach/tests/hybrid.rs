//! Hybrid caches over a real link: several sessions with caches, one without, and many threads work
//! on a few files; the DPU side and a host are killed meanwhile. Each cell of a file has one lock
//! here, held while it is written or read, so that every read has exactly one right answer; cells
//! lie across pages and share them, so that neighbours are written at the same time.
//!
//! The DPU side is this same program run again: `dpu_process` does nothing unless its directory is
//! named in the environment.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outboard_attach::dpu::{Dpu, DpuOptions, Wish};
use outboard_attach::host::{Host, HostOptions, Shape};
use outboard_attach::link::control;
use outboard_base::limits::IO_MAX;
use outboard_base::{Cred, Errno, Fh, Ino, Result, Rng};
use outboard_dpc::host::{Call, Completion, Front, LossPolicy, QueuePort, QueueSlot, Told};
use outboard_fjall::{Engine, EngineOptions};
use outboard_kvfs::{Kvfs, Options};
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_store::directory::DataDirectory;
use outboard_wire::event::Event;
use outboard_wire::file::{Reply, Request, open_flags};
use serde_json::Value;

const DIR: &str = "OUTBOARD_HYBRID_DIR";
const PATIENCE: Duration = Duration::from_secs(60);
const FILES: usize = 3;
const CELLS: usize = 40;
/// No multiple of a page, so that a page holds several cells and some lie in two.
const CELL: usize = 3000;

/// Not a test by itself: the DPU side of the others.
#[test]
#[ignore = "the child of the tests below"]
fn dpu_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = PathBuf::from(dir);
    let directory = DataDirectory::open(&dir.join("data")).unwrap();
    let engine = Engine::open(&directory.kv(), EngineOptions::default()).unwrap();
    let medium = FileMedium::open(&directory.blocks(), MediumOptions::default()).unwrap();
    let options = Options { capacity: 256 << 20, segment: 4 << 20, id: 7, ..Options::default() };
    let volume = block_on(Kvfs::open(engine, medium, options, clock::wall())).unwrap();
    let wakeup = Arc::new(Wakeup::new().unwrap());
    let runtime = Rc::new(Poller::new(Arc::clone(&wakeup), Reactor::install(64).ok()));
    let options = DpuOptions {
        grace: Duration::from_secs(10),
        beat_limit: Duration::from_secs(2),
        ..DpuOptions::new(dir.join("socket"), dir.join("sessions"))
    };
    let mut dpu = Dpu::new(Arc::new(volume), runtime, wakeup, options).unwrap();
    dpu.run(&|| Wish::GoOn).unwrap();
}

struct Volume {
    dir: tempfile::TempDir,
    dpu: Mutex<Option<Child>>,
}

impl Volume {
    fn new() -> Volume {
        let volume = Volume { dir: tempfile::tempdir().unwrap(), dpu: Mutex::new(None) };
        volume.start();
        volume
    }

    fn start(&self) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "dpu_process", "--nocapture"])
            .env(DIR, self.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        *self.dpu.lock().unwrap() = Some(child);
    }

    fn kill(&self) {
        let mut child = self.dpu.lock().unwrap().take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn host(&self, cache: Option<Shape>) -> Host {
        let mut options = HostOptions::new(self.dir.path().join("socket"));
        (options.on_loss, options.cache) = (LossPolicy::Wait, cache);
        Host::connect(options, Arc::new(Quiet)).unwrap()
    }

    fn check(&self) {
        let request = r#"{"command":"check","contents":true}"#;
        let text = control(&self.dir.path().join("socket"), request, PATIENCE).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["clean"], true, "{report:#}");
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Some(mut child) = self.dpu.lock().unwrap().take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

struct Quiet;

impl Front<QueueSlot> for Quiet {
    fn complete(&self, _: Completion) {}
    fn event(&self, _: Event, _: Told) {}
}

fn call(
    port: &mut QueuePort,
    request: &Request<'_>,
    payload: &[u8],
    out: &mut [u8],
) -> Result<Reply> {
    let mut slot = port.acquire_by(clock::now().after(PATIENCE)).unwrap();
    slot.write(0, payload).unwrap();
    let cred = Cred::root();
    let call = Call { request, cred: &cred, checked: true, payload_len: payload.len() };
    let completion = port.call(slot, &call);
    if let Ok(Reply::Data(len)) = completion.outcome {
        completion.slot.as_ref().unwrap().read(0, &mut out[..len as usize]).unwrap();
    }
    completion.outcome
}

fn open(port: &mut QueuePort, name: &str, flags: u32) -> (Ino, Fh) {
    let flags = flags | open_flags::RDWR;
    let name = name.as_bytes();
    let request = Request::Create { parent: Ino::ROOT, name, mode: 0o644, umask: 0, flags };
    match call(port, &request, &[], &mut []) {
        Ok(Reply::Created(attr, fh)) => (attr.ino, fh),
        other => panic!("open: {other:?}"),
    }
}

fn close(port: &mut QueuePort, (ino, fh): (Ino, Fh)) {
    let request = Request::Release { ino, fh, owner: 0 };
    assert_eq!(call(port, &request, &[], &mut []), Ok(Reply::Empty));
}

/// What every cell holds, under its lock: the number it was written with.
type Cells = Vec<Vec<Mutex<u64>>>;

fn content(number: u64) -> [u8; CELL] {
    let mut bytes = [0; CELL];
    if number > 0 {
        Rng::new(number).fill(&mut bytes);
    }
    bytes
}

fn write(port: &mut QueuePort, (ino, fh): (Ino, Fh), cell: usize, number: u64) {
    let request = Request::Write { ino, fh, offset: (cell * CELL) as u64, flags: 0 };
    let done = call(port, &request, &content(number), &mut []);
    assert_eq!(done, Ok(Reply::Written(CELL as u32)));
}

/// A cell as it is read; what lies beyond the end is zero.
fn read(port: &mut QueuePort, (ino, fh): (Ino, Fh), cell: usize) -> [u8; CELL] {
    let mut out = [0; CELL];
    let offset = (cell * CELL) as u64;
    let request = Request::Read { ino, fh, offset, len: CELL as u32, flags: 0 };
    match call(port, &request, &[], &mut out) {
        Ok(Reply::Data(_)) => out,
        other => panic!("read: {other:?}"),
    }
}

struct Work<'a> {
    cells: &'a Cells,
    numbers: &'a AtomicU64,
    over: &'a AtomicBool,
    visits: u64,
}

impl Work<'_> {
    /// One thread's share: visits to files, mostly to one of its own host, each of some reads,
    /// writes and syncs through a handle of its own.
    fn run(&self, mut port: QueuePort, own: usize, seed: u64) {
        let mut rng = Rng::new(seed);
        let mut below = |n: usize| rng.below(n as u64) as usize;
        for visit in 0..self.visits {
            let f = if below(6) == 0 { below(FILES) } else { own };
            let flags = if below(8) == 0 { open_flags::DIRECT } else { 0 };
            let file = open(&mut port, &format!("f{f}"), flags);
            for _ in 0..1 + below(30) {
                let c = below(CELLS);
                let mut held = self.cells[f][c].lock().unwrap();
                if below(20) == 0 {
                    let request = Request::Fsync { ino: file.0, fh: file.1, data_only: false };
                    assert_eq!(call(&mut port, &request, &[], &mut []), Ok(Reply::Empty));
                } else if below(2) == 0 {
                    *held = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
                    write(&mut port, file, c, *held);
                } else {
                    let found = read(&mut port, file, c);
                    assert!(found == content(*held), "seed {seed} visit {visit}: f{f} cell {c}");
                }
            }
            close(&mut port, file);
        }
        self.over.store(true, Ordering::Release);
    }
}

/// Two hosts with caches and one without, two threads each.
fn work_together(volume: &Volume, visits: u64, kills: usize, seed: u64) {
    println!("seed {seed}");
    let small = Shape { len: 1 << 20, records: 8, ..Shape::default() };
    let mut hosts = vec![volume.host(Some(small)), volume.host(Some(small)), volume.host(None)];
    let cells: Cells = (0..FILES).map(|_| (0..CELLS).map(|_| Mutex::new(0)).collect()).collect();
    let (numbers, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = Work { cells: &cells, numbers: &numbers, over: &over, visits };
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (h, host) in hosts.iter().enumerate() {
            for queue in 0..2 {
                let port = host.session().calling_port(queue).unwrap();
                let seed = seed * 100 + h as u64 * 10 + u64::from(queue);
                let work = &work;
                threads.push(scope.spawn(move || work.run(port, h, seed)));
            }
        }
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(300));
            if over.load(Ordering::Acquire) {
                break;
            }
            volume.kill();
            volume.start();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let last = hosts.pop().unwrap();
    let counts = hosts.iter().map(|host| host.session().counts().cache).collect::<Vec<_>>();
    println!("{counts:?}");
    assert!(counts.iter().all(|cache| cache.hits > 20 && cache.writes > 20), "{counts:?}");
    assert_eq!(last.session().counts().cache.hits, 0);
    let mut port = last.session().calling_port(2).unwrap();
    for (f, cells) in cells.iter().enumerate() {
        let file = open(&mut port, &format!("f{f}"), 0);
        for (c, cell) in cells.iter().enumerate() {
            let found = read(&mut port, file, c);
            assert!(found == content(*cell.lock().unwrap()), "file {f} cell {c} at the end");
        }
        close(&mut port, file);
    }
    hosts.into_iter().for_each(|host| host.detach(PATIENCE).unwrap());
    volume.check();
}

#[test]
fn sessions_with_caches_and_without_see_one_file() {
    work_together(&Volume::new(), 40, 0, 1);
}

#[test]
fn they_do_while_the_dpu_side_dies_and_returns() {
    work_together(&Volume::new(), 60, 3, 2);
}

/// Alone with a file, a host reads and writes without the link; what it was told is written is
/// written back when another asks.
#[test]
fn a_hit_crosses_no_link() {
    let volume = Volume::new();
    let host = volume.host(Some(Shape::default()));
    let mut port = host.session().calling_port(0).unwrap();
    let file = open(&mut port, "f", 0);
    for cell in 0..CELLS {
        write(&mut port, file, cell, cell as u64 + 1);
    }
    let before = host.session().counts();
    for cell in 0..CELLS {
        assert!(read(&mut port, file, cell) == content(cell as u64 + 1));
        write(&mut port, file, cell, cell as u64 + 2);
    }
    let after = host.session().counts();
    assert_eq!(after.calls, before.calls, "{after:?}");
    assert_eq!(after.cache.hits, before.cache.hits + CELLS as u64);
    assert_eq!(after.cache.writes, before.cache.writes + CELLS as u64);
    // The page size may be larger than a slot's share of a request: nothing beyond the slot is
    // written.
    let len = IO_MAX as u32 + 1;
    let long = Request::Read { ino: file.0, fh: file.1, offset: 0, len, flags: 0 };
    assert_eq!(call(&mut port, &long, &[], &mut []), Err(Errno::EINVAL));
    let other = volume.host(None);
    let mut theirs = other.session().calling_port(0).unwrap();
    let seen = open(&mut theirs, "f", 0);
    for cell in 0..CELLS {
        assert!(read(&mut theirs, seen, cell) == content(cell as u64 + 2), "cell {cell}");
    }
    drop(port);
    host.detach(PATIENCE).unwrap();
    volume.check();
}
