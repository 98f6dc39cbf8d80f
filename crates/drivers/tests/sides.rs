//! Two sides, whole: a host session and a DPU side with a volume on disk, each killed under work.
//!
//! The DPU side of these tests is this same program run again: `dpu_process` below does nothing unless
//! its directory is named in the environment.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outboard_base::{Cred, Errno, Fh, Ino, Result, Rng, Time};
use outboard_dpc::host::{Call, Done, Front, LossPolicy, Port, Settings, Started};
use outboard_drivers::dpu::{Dpu, DpuOptions, Poller};
use outboard_drivers::engine::directory::DataDirectory;
use outboard_drivers::engine::{Engine, EngineOptions};
use outboard_drivers::executor::block_on;
use outboard_drivers::host::{Host, HostOptions};
use outboard_drivers::link::{Bell, control};
use outboard_drivers::medium::{FileMedium, MediumOptions, Reactor};
use outboard_drivers::clock;
use outboard_kvfs::{Kvfs, Options};
use outboard_wire::event::Event;
use outboard_wire::file::{Lock, LockKind, LockStyle, Op, Reply, Request, open_flags};
use serde_json::Value;

const DIR: &str = "OUTBOARD_SIDES_DIR";
const PATIENCE: Duration = Duration::from_secs(30);

// The DPU side.

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
    let volume = block_on(None, Kvfs::open(engine, medium, options, clock::wall())).unwrap();
    let bell = Arc::new(Bell::new().unwrap());
    let runtime = Rc::new(Poller::new(Arc::clone(&bell), Reactor::install(64).ok()));
    let options = DpuOptions {
        grace: Duration::from_secs(5),
        ..DpuOptions::new(dir.join("socket"), dir.join("sessions"))
    };
    let mut dpu = Dpu::new(Arc::new(volume), runtime, bell, options).unwrap();
    dpu.run(&|| false).unwrap();
}

struct Volume {
    dir: tempfile::TempDir,
    dpu: Option<Child>,
}

impl Volume {
    fn new() -> Volume {
        let mut volume = Volume { dir: tempfile::tempdir().unwrap(), dpu: None };
        volume.start();
        volume
    }

    fn start(&mut self) {
        let child = Process::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "dpu_process", "--nocapture"])
            .env(DIR, self.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.dpu = Some(child);
    }

    fn kill(&mut self) {
        let mut child = self.dpu.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn pid(&self) -> u32 {
        self.dpu.as_ref().unwrap().id()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn status(&self) -> Value {
        ask(&self.socket(), r#"{"command":"status"}"#)
    }

    fn assert_clean(&self) {
        let report = ask(&self.socket(), r#"{"command":"check","contents":true}"#);
        assert_eq!(report["clean"], true, "{report:#}");
    }
}

fn ask(socket: &Path, request: &str) -> Value {
    let text = control(socket, request, PATIENCE).unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["ok"], true, "{answer:#}");
    answer
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Some(mut child) = self.dpu.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

// The host side.

#[derive(Default)]
struct Completed(Mutex<Vec<(u64, Result<Reply>)>>);

impl Front for Completed {
    fn complete(&self, done: Done) {
        self.0.lock().unwrap().push((done.tag, done.outcome));
    }

    fn event(&self, _: Event) {}
}

impl Completed {
    fn wait_for(&self, tag: u64) -> Result<Reply> {
        let deadline = clock::now().after(PATIENCE);
        loop {
            let mut all = self.0.lock().unwrap();
            if let Some(at) = all.iter().position(|(other, _)| *other == tag) {
                return all.swap_remove(at).1;
            }
            drop(all);
            assert!(clock::now() < deadline, "call {tag} is never answered");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn connect(volume: &Volume, on_loss: LossPolicy) -> (Host, Arc<Completed>) {
    let front = Arc::new(Completed::default());
    let options = HostOptions { on_loss, ..HostOptions::new(volume.socket()) };
    let host = Host::connect(options, Arc::clone(&front) as Arc<dyn Front>).unwrap();
    (host, front)
}

fn later() -> Time {
    clock::now().after(PATIENCE)
}

/// One call, waited for.
fn call(port: &mut Port, request: &Request<'_>, payload: &[u8]) -> Result<Reply> {
    call_reading(port, request, payload, &mut [])
}

fn call_reading(
    port: &mut Port,
    request: &Request<'_>,
    payload: &[u8],
    out: &mut [u8],
) -> Result<Reply> {
    let mut slot = port.acquire(later()).unwrap();
    slot.write(0, payload).unwrap();
    let cred = Cred::root();
    let call = Call { request, cred: &cred, checked: true, payload_len: payload.len() };
    let done = port.call(slot, &call);
    if let Ok(Reply::Data(len)) = done.outcome {
        let len = out.len().min(len as usize);
        done.slot.as_ref().unwrap().read(0, &mut out[..len]).unwrap();
    }
    done.outcome
}

fn create(port: &mut Port, name: &str, flags: u32) -> (Ino, Fh) {
    let request = Request::Create {
        parent: Ino::ROOT,
        name: name.as_bytes(),
        mode: 0o644,
        umask: 0o22,
        flags: flags | open_flags::RDWR,
    };
    match call(port, &request, &[]) {
        Ok(Reply::Created(attr, fh)) => (attr.ino, fh),
        other => panic!("create {name}: {other:?}"),
    }
}

fn write(port: &mut Port, (ino, fh): (Ino, Fh), offset: u64, data: &[u8]) {
    let request = Request::Write { ino, fh, offset, flags: 0 };
    assert_eq!(call(port, &request, data), Ok(Reply::Written(data.len() as u32)));
}

fn read(port: &mut Port, (ino, fh): (Ino, Fh), offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let request = Request::Read { ino, fh, offset, len: len as u32, flags: 0 };
    match call_reading(port, &request, &[], &mut out) {
        Ok(Reply::Data(got)) => out.truncate(got as usize),
        other => panic!("read: {other:?}"),
    }
    out
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn files_travel_over_the_link() {
    let volume = Volume::new();
    let (host, _) = connect(&volume, LossPolicy::Wait);
    let mut port = host.session().calling_port(0).unwrap();
    assert!(host.session().calling_port(0).is_none(), "each queue has one port");
    assert_eq!(call(&mut port, &Request::Noop, &[]), Ok(Reply::Empty));
    let file = create(&mut port, "file", 0);
    for (number, len) in [1, 4095, 8192, 8193, 100_000, 1 << 20].into_iter().enumerate() {
        let data = pattern(number as u64, len);
        write(&mut port, file, 0, &data);
        assert!(read(&mut port, file, 0, len) == data, "{len} bytes");
    }
    let fsync = Request::Fsync { ino: file.0, fh: file.1, data_only: false };
    assert_eq!(call(&mut port, &fsync, &[]), Ok(Reply::Empty));
    let missing = Request::Lookup { parent: Ino::ROOT, name: b"missing" };
    assert_eq!(call(&mut port, &missing, &[]), Err(Errno::ENOENT));
    let status = volume.status();
    assert_eq!(status["pid"], volume.pid());
    assert_eq!(status["attachments"][0]["pid"], std::process::id());
    assert!(status["ops"]["write"]["count"].as_u64().unwrap() >= 6, "{status:#}");
    volume.assert_clean();
    drop(port);
    host.detach(PATIENCE).unwrap();
    assert_eq!(volume.status()["attachments"].as_array().unwrap().len(), 0);
}

#[test]
fn an_aligned_8_kib_write_costs_four_dmas() {
    let volume = Volume::new();
    let (host, _) = connect(&volume, LossPolicy::Wait);
    let mut port = host.session().calling_port(0).unwrap();
    let file = create(&mut port, "file", 0);
    write(&mut port, file, 0, &pattern(1, 8192));
    let total = |status: &Value| -> u64 {
        let dma = status["ledger"]["dma"].as_object().unwrap();
        dma.values().map(|kind| kind["operations"].as_u64().unwrap()).sum()
    };
    let before = total(&volume.status());
    for number in 0..10 {
        write(&mut port, file, 0, &pattern(number, 8192));
    }
    assert_eq!(total(&volume.status()) - before, 40);
}
