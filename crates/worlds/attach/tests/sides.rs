//! Two sides, whole: a host session and a DPU side with a volume on disk, each killed under work.
//!
//! The DPU side of these tests is this same program run again: `dpu_process` below does nothing
//! unless its directory is named in the environment.

#![forbid(unsafe_code)]
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
use std::task::Poll;
use std::time::Duration;

use outboard_attach::dpu::{Dpu, DpuOptions};
use outboard_attach::host::{Host, HostOptions};
use outboard_attach::link::control;
use outboard_base::{Cred, Errno, Fh, Ino, Result, Rng, Time};
use outboard_dpc::host::{Call, Completion, Front, LossPolicy, QueuePort, QueueSlot};
use outboard_fjall::{Engine, EngineOptions};
use outboard_kvfs::{Kvfs, Options};
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_store::directory::DataDirectory;
use outboard_wire::attach::{Hello, Message, Reason, RingsHello, VERSION};
use outboard_wire::event::Event;
use outboard_wire::file::{Lock, LockKind, LockStyle, Reply, Request, open_flags};
use serde_json::Value;

const DIR: &str = "OUTBOARD_SIDES_DIR";
const HOST: &str = "OUTBOARD_SIDES_HOST";
/// Set, a host does nothing once it holds what it holds, and hearts beat no faster than they must.
const IDLES: &str = "OUTBOARD_SIDES_IDLE";
const PATIENCE: Duration = Duration::from_secs(120);

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
    let volume = block_on(Kvfs::open(engine, medium, options, clock::wall())).unwrap();
    let wakeup = Arc::new(Wakeup::new().unwrap());
    let runtime = Rc::new(Poller::new(Arc::clone(&wakeup), Reactor::install(64).ok()));
    let mut options = DpuOptions {
        grace: Duration::from_secs(5),
        ..DpuOptions::new(dir.join("socket"), dir.join("sessions"))
    };
    if std::env::var_os(IDLES).is_none() {
        options.beat_limit = Duration::from_secs(1);
    }
    let mut dpu = Dpu::new(Arc::new(volume), runtime, wakeup, options).unwrap();
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

    /// Whose heart beats as often as a DPU side's does by default.
    fn idle() -> Volume {
        let mut volume = Volume { dir: tempfile::tempdir().unwrap(), dpu: None };
        volume.dpu = Some(volume.process().env(IDLES, "1").spawn().unwrap());
        volume
    }

    fn process(&self) -> Process {
        let mut process = Process::new(std::env::current_exe().unwrap());
        process
            .args(["--ignored", "--exact", "dpu_process", "--nocapture"])
            .env(DIR, self.dir.path())
            .stdout(Stdio::null());
        process
    }

    fn start(&mut self) {
        self.dpu = Some(self.process().spawn().unwrap());
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

/// Sends bytes to the DPU side as some program might; what it answers.
fn said_to(socket: &Path, bytes: &[u8]) -> Message {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send,
        socket as new_socket, sockopt,
    };
    let fd = new_socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
    connect(&fd, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    send(&fd, bytes, SendFlags::empty()).unwrap();
    let mut answer = vec![0; 65_536];
    let (len, _) = recv(&fd, answer.as_mut_slice(), RecvFlags::empty()).unwrap();
    Message::parse(&answer[..len]).unwrap()
}

/// Two programs of different versions must say so, and not that one of them talks nonsense.
#[test]
fn a_host_of_another_version_is_told_so() {
    let volume = Volume::new();
    let (_host, _) = connect(&volume, LossPolicy::Wait);
    let detach = Message::Detach.emit();
    let mut other = detach.clone();
    other[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let Message::Refused { reason, text } = said_to(&volume.socket(), &other) else { panic!() };
    assert_eq!(reason, Reason::Version);
    assert!(text.contains(&format!("version {}", VERSION + 1)), "{text}");
    let mut nonsense = detach;
    nonsense[0] ^= 1;
    let Message::Refused { reason, .. } = said_to(&volume.socket(), &nonsense) else { panic!() };
    assert_eq!(reason, Reason::Malformed);
}

/// What a host asks for in a role this side does not have, or that nobody speaks, is refused, and
/// the reason says which.
#[test]
fn a_role_that_is_not_a_volumes_is_refused_with_a_reason() {
    let volume = Volume::new();
    let (_host, _) = connect(&volume, LossPolicy::Wait);
    let (align, requests, responses) = (512, 4096, 4096);
    let rings = RingsHello { region_len: 1 << 20, groups: 2, align, requests, responses };
    let rings = Message::Hello(Hello::Rings(rings)).emit();
    let with = |at: usize, value: u8| {
        let mut bytes = rings.clone();
        bytes[at] = value;
        bytes
    };
    for (bytes, refused, says) in [
        (rings.clone(), Reason::Role, "serves a volume"),
        (with(12, 3), Reason::Role, "reserved"),
        (with(12, 77), Reason::Role, "unknown role 77"),
        (with(14, 9), Reason::Version, "version 9"),
    ] {
        let Message::Refused { reason, text } = said_to(&volume.socket(), &bytes) else { panic!() };
        assert_eq!(reason, refused, "{text}");
        assert!(text.contains(says), "{text}");
    }
}

// The host side.

#[derive(Default)]
struct Completed(Mutex<Vec<(u64, Result<Reply>)>>);

impl Front<QueueSlot> for Completed {
    fn complete(&self, completion: Completion) {
        self.0.lock().unwrap().push((completion.tag, completion.outcome));
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
    let host = Host::connect(options, Arc::clone(&front) as Arc<dyn Front<QueueSlot>>).unwrap();
    (host, front)
}

fn later() -> Time {
    clock::now().after(PATIENCE)
}

/// One call, waited for.
fn call(port: &mut QueuePort, request: &Request<'_>, payload: &[u8]) -> Result<Reply> {
    call_reading(port, request, payload, &mut [])
}

fn call_reading(
    port: &mut QueuePort,
    request: &Request<'_>,
    payload: &[u8],
    out: &mut [u8],
) -> Result<Reply> {
    let mut slot = port.acquire_by(later()).unwrap();
    slot.write(0, payload).unwrap();
    let cred = Cred::root();
    let call = Call { request, cred: &cred, checked: true, payload_len: payload.len() };
    let completion = port.call(slot, &call);
    if let Ok(Reply::Data(len)) = completion.outcome {
        let len = out.len().min(len as usize);
        completion.slot.as_ref().unwrap().read(0, &mut out[..len]).unwrap();
    }
    completion.outcome
}

fn create(port: &mut QueuePort, name: &str, flags: u32) -> (Ino, Fh) {
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

fn write(port: &mut QueuePort, (ino, fh): (Ino, Fh), offset: u64, data: &[u8]) {
    let request = Request::Write { ino, fh, offset, flags: 0 };
    assert_eq!(call(port, &request, data), Ok(Reply::Written(data.len() as u32)));
}

fn read(port: &mut QueuePort, (ino, fh): (Ino, Fh), offset: u64, len: usize) -> Vec<u8> {
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

/// Work whose every answer is known: names made and removed, blocks written, bytes appended. Each
/// step that returns is remembered; the volume must agree at the end, whatever was killed in
/// between.
struct Worker {
    port: QueuePort,
    rng: Rng,
    name: String,
    file: (Ino, Fh),
    blocks: Vec<Option<u64>>,
    appended: (Ino, Fh),
    appends: u64,
    steps: u64,
}

const BLOCKS: u64 = 16;
const BLOCK: usize = 8192;

impl Worker {
    fn new(mut port: QueuePort, number: u64) -> Worker {
        let name = format!("worker-{number}");
        let file = create(&mut port, &name, 0);
        let appended = create(&mut port, &format!("{name}.log"), open_flags::APPEND);
        // Without a name, it lives on only if its handle is handed in again.
        let log = format!("{name}.log");
        let unlink = Request::Unlink { parent: Ino::ROOT, name: log.as_bytes() };
        assert_eq!(call(&mut port, &unlink, &[]), Ok(Reply::Removed(Some(appended.0))));
        let blocks = vec![None; BLOCKS as usize];
        Worker { port, rng: Rng::new(number), name, file, blocks, appended, appends: 0, steps: 0 }
    }

    fn step(&mut self) {
        self.steps += 1;
        match self.rng.below(4) {
            0 | 1 => {
                let (block, seed) = (self.rng.below(BLOCKS), self.rng.next_u64());
                write(&mut self.port, self.file, block * BLOCK as u64, &pattern(seed, BLOCK));
                self.blocks[block as usize] = Some(seed);
            }
            2 => {
                let (ino, fh) = self.appended;
                let flags = outboard_wire::file::write_flags::APPEND;
                let request = Request::Write { ino, fh, offset: 0, flags };
                let line = self.appends.to_le_bytes();
                assert_eq!(call(&mut self.port, &request, &line), Ok(Reply::Written(8)));
                self.appends += 1;
            }
            _ => self.make_and_remove(),
        }
    }

    /// Each of these fails if it is done twice, or was not done.
    fn make_and_remove(&mut self) {
        let (a, b) = (format!("{}.a", self.name), format!("{}.b", self.name));
        let (a, b) = (a.as_bytes(), b.as_bytes());
        let parent = Ino::ROOT;
        let mkdir = Request::Mkdir { parent, name: a, mode: 0o755, umask: 0 };
        let made = call(&mut self.port, &mkdir, &[]);
        assert!(matches!(made, Ok(Reply::Entry(_))), "{made:?}");
        let flags = outboard_wire::file::rename_flags::NOREPLACE;
        let rename = Request::Rename { parent, name: a, to_parent: parent, to_name: b, flags };
        assert_eq!(call(&mut self.port, &rename, &[]), Ok(Reply::Removed(None)));
        let rmdir = Request::Rmdir { parent, name: b };
        let removed = call(&mut self.port, &rmdir, &[]);
        assert!(matches!(removed, Ok(Reply::Removed(_))), "{removed:?}");
    }

    fn verify(&mut self) {
        for (block, seed) in (0u64..).zip(self.blocks.clone()) {
            let Some(seed) = seed else { continue };
            let found = read(&mut self.port, self.file, block * BLOCK as u64, BLOCK);
            assert!(found == pattern(seed, BLOCK), "{} block {block}", self.name);
        }
        let mut expected = Vec::new();
        (0..self.appends).for_each(|number| expected.extend(number.to_le_bytes()));
        let found = read(&mut self.port, self.appended, 0, 1 << 20);
        assert!(
            found == expected,
            "{}: {} of {} appends",
            self.name,
            found.len() / 8,
            self.appends
        );
    }
}

fn kills_of_the_dpu_side(rounds: u64) {
    let mut volume = Volume::new();
    let (host, _) = connect(&volume, LossPolicy::Wait);
    let stop = Arc::new(AtomicBool::new(false));
    let steps = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..3u16)
        .map(|queue| {
            let port = host.session().calling_port(queue).unwrap();
            let (stop, steps) = (Arc::clone(&stop), Arc::clone(&steps));
            std::thread::spawn(move || {
                let mut worker = Worker::new(port, u64::from(queue));
                while !stop.load(Ordering::Acquire) {
                    worker.step();
                    steps.fetch_add(1, Ordering::AcqRel);
                }
                worker.verify();
                worker.steps
            })
        })
        .collect();
    let mut rng = Rng::new(rounds);
    for _ in 0..rounds {
        let before = steps.load(Ordering::Acquire);
        let enough = before + 1 + rng.below(200);
        let deadline = later();
        while steps.load(Ordering::Acquire) < enough {
            assert!(clock::now() < deadline, "no progress after {before} steps");
            std::thread::sleep(Duration::from_millis(1));
        }
        volume.kill();
        volume.start();
    }
    stop.store(true, Ordering::Release);
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(host.session().counts().losses, rounds);
    volume.assert_clean();
}

/// kill -9 of the DPU side under three workers: nothing answered is lost, nothing is done twice,
/// and files without a name live on. A longer one beside it was ignored, so that no command ran
/// it, while the specification took it for a proof.
#[test]
fn the_dpu_side_dies_and_nobody_notices() {
    let kills = std::env::var("OUTBOARD_KILLS").ok().and_then(|kills| kills.parse().ok());
    kills_of_the_dpu_side(kills.unwrap_or(6));
}

// The host side dies.

/// Not a test by itself: a host that holds files and locks and works until it is killed.
#[test]
#[ignore = "the child of the test below"]
fn host_process() {
    let Some(dir) = std::env::var_os(HOST) else { return };
    let front = Arc::new(Completed::default());
    let options = HostOptions::new(PathBuf::from(dir).join("socket"));
    let host = Host::connect(options, front).unwrap();
    let mut port = host.session().calling_port(0).unwrap();
    let shared = create(&mut port, "shared", 0);
    let mut files = Vec::new();
    for number in 0..20 {
        let name = format!("left-{number}");
        files.push(create(&mut port, &name, 0));
        let unlink = Request::Unlink { parent: Ino::ROOT, name: name.as_bytes() };
        assert!(call(&mut port, &unlink, &[]).is_ok());
    }
    assert_eq!(call(&mut port, &exclusive(shared, 1, false), &[]), Ok(Reply::Empty));
    println!("ready");
    while std::env::var_os(IDLES).is_some() {
        std::thread::park();
    }
    let data = pattern(1, 300_000);
    loop {
        for file in &files {
            write(&mut port, *file, 0, &data);
        }
    }
}

fn exclusive((ino, fh): (Ino, Fh), owner: u64, wait: bool) -> Request<'static> {
    let lock = Lock {
        owner,
        start: 0,
        end: u64::MAX,
        kind: LockKind::Write,
        style: LockStyle::Posix,
        pid: 0,
    };
    Request::Setlk { ino, fh, lock, wait, reclaim: false }
}

/// Descriptors and mappings that a process has of its hosts. The engine's files come and go.
fn held_of_hosts(pid: u32) -> (usize, usize) {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = fds.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let fds = targets.filter(|target| !target.starts_with("/") || target.starts_with("/memfd:"));
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    (fds.count(), maps.lines().filter(|line| line.contains("outboard-")).count())
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = later();
    while !holds() {
        assert!(clock::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A host in a process of its own.
fn host_of(volume: &Volume) -> Process {
    let mut process = Process::new(std::env::current_exe().unwrap());
    process
        .args(["--ignored", "--exact", "host_process", "--nocapture"])
        .env(HOST, volume.dir.path())
        .stdout(Stdio::piped());
    process
}

/// Starts it, and waits until it holds files and locks.
fn start_host(process: &mut Process) -> Child {
    use std::io::BufRead;
    let mut child = process.spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.by_ref().any(|line| line.unwrap().contains("ready")));
    child
}

/// kill -9 of a host, again and again: the DPU side lets go of its files, locks, descriptors and
/// mappings, and another host on the same DPU side goes on.
#[test]
fn hosts_die_and_leave_nothing_behind() {
    let volume = Volume::new();
    let (host, front) = connect(&volume, LossPolicy::Wait);
    let mut port = host.session().calling_port(0).unwrap();
    let mut asking = host.session().port(1).unwrap();
    let mut tag = 0;
    let shared = create(&mut port, "shared", 0);
    let baseline = held_of_hosts(volume.pid());
    for round in 0..8 {
        let mut child = start_host(&mut host_of(&volume));
        let mut ask_for_it = || {
            tag += 1;
            set_lock((&mut asking, &front), &exclusive(shared, 2, false), tag)
        };
        // It holds the lock; ours does not come through.
        assert_eq!(ask_for_it(), Err(Errno::EAGAIN));
        std::thread::sleep(Duration::from_millis(5 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("the lock is free", || ask_for_it() == Ok(Reply::Empty));
        let (ino, fh) = shared;
        assert_eq!(call(&mut port, &Request::Flush { ino, fh, owner: 2 }, &[]), Ok(Reply::Empty));
    }
    wait_until("descriptors and mappings are back", || held_of_hosts(volume.pid()) == baseline);
    wait_until("files without a name are gone", || {
        ask(&volume.socket(), r#"{"command":"check"}"#)["counts"]["orphans"] == 0
    });
    let status = volume.status();
    assert_eq!(status["attachments"].as_array().unwrap().len(), 1, "{status:#}");
    volume.assert_clean();
}

fn start_lock(port: &mut QueuePort, file: (Ino, Fh), owner: u64, tag: u64) {
    let slot = port.acquire_by(later()).unwrap();
    let (cred, request) = (Cred::root(), exclusive(file, owner, true));
    let call = Call { request: &request, cred: &cred, checked: true, payload_len: 0 };
    let started = port.start(slot, &call, tag);
    assert!(matches!(started, Poll::Pending), "{started:?}");
}

/// Waits for locks hold no slot, survive the DPU side, and end once each: granted, or given up.
#[test]
fn waits_for_locks_survive_a_loss_and_can_be_given_up() {
    let mut volume = Volume::new();
    let (host, front) = connect(&volume, LossPolicy::Wait);
    let (holder, _) = connect(&volume, LossPolicy::Wait);
    let mut holding = holder.session().calling_port(0).unwrap();
    let file = create(&mut holding, "file", 0);
    assert_eq!(call(&mut holding, &exclusive(file, 1, false), &[]), Ok(Reply::Empty));

    let mut port = host.session().port(0).unwrap();
    let mut other = host.session().calling_port(1).unwrap();
    let mine = create(&mut other, "file", 0);
    let slots = u64::from(host.session().settings().depth) - 1;
    // More waits than there are slots.
    for owner in 0..slots + 5 {
        start_lock(&mut port, mine, 100 + owner, owner);
    }
    assert!(host.session().abort(3));
    assert_eq!(front.wait_for(3), Err(Errno::EINTR));
    assert!(!host.session().abort(3), "it has ended");

    volume.kill();
    // Given up while there is nobody to ask.
    wait_until("the loss is noticed", || host.session().counts().losses == 1);
    assert!(host.session().abort(4));
    assert_eq!(front.wait_for(4), Err(Errno::EINTR));
    volume.start();
    wait_until("both are back", || {
        let status = || volume.status();
        host.session().counts().replayed + 1 > 0
            && call(&mut other, &Request::Noop, &[]).is_ok()
            && status()["grace"] == false
    });
    assert_eq!(
        call(&mut holding, &Request::Flush { ino: file.0, fh: file.1, owner: 1 }, &[]),
        Ok(Reply::Empty)
    );
    // One after the other gets it.
    for _ in 0..slots + 3 {
        let mut granted = None;
        wait_until("somebody is granted the lock", || {
            granted = front.0.lock().unwrap().pop();
            granted.is_some()
        });
        let (tag, outcome) = granted.unwrap();
        assert_eq!(outcome, Ok(Reply::Empty), "{tag}");
        let unlock = Request::Flush { ino: mine.0, fh: mine.1, owner: 100 + tag };
        assert_eq!(call(&mut other, &unlock, &[]), Ok(Reply::Empty));
    }
    std::thread::sleep(Duration::from_millis(20));
    assert!(front.0.lock().unwrap().is_empty(), "each wait ends once");
}

/// Sets a lock and waits for what comes of it.
fn set_lock(
    (port, front): (&mut QueuePort, &Completed),
    request: &Request<'_>,
    tag: u64,
) -> Result<Reply> {
    let slot = port.acquire_by(later()).unwrap();
    let cred = Cred::root();
    let call = Call { request, cred: &cred, checked: true, payload_len: 0 };
    match port.start(slot, &call, tag) {
        Poll::Ready(completion) => completion.outcome,
        Poll::Pending => front.wait_for(tag),
    }
}

/// Two hosts lock one file, each deciding by itself while the other has no interest in it, and the
/// DPU side is killed meanwhile. Never do both hold the lock.
#[test]
fn a_lock_goes_from_host_to_host() {
    const ROUNDS: u64 = 600;
    let mut volume = Volume::new();
    let (holder, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let hosts = [1, 2].map(|me| (me, connect(&volume, LossPolicy::Wait)));
    std::thread::scope(|scope| {
        for (me, (host, front)) in &hosts {
            let (holder, done) = (&holder, &done);
            scope.spawn(move || {
                let mut port = host.session().port(0).unwrap();
                let mut other = host.session().calling_port(1).unwrap();
                let file = create(&mut other, "file", 0);
                for round in 0..ROUNDS {
                    let wait = (round + me) % 3 == 0;
                    let lock = exclusive(file, 7, wait);
                    match set_lock((&mut port, front), &lock, 2 * round) {
                        Ok(Reply::Empty) => {
                            assert_eq!(holder.swap(*me, Ordering::SeqCst), 0, "the other holds it");
                            std::thread::yield_now();
                            assert_eq!(holder.swap(0, Ordering::SeqCst), *me);
                            let Request::Setlk { ino, fh, lock, .. } = lock else { panic!() };
                            let lock = Lock { kind: LockKind::Unlock, ..lock };
                            let wait = false;
                            let unlock = Request::Setlk { ino, fh, lock, wait, reclaim: false };
                            let outcome = set_lock((&mut port, front), &unlock, 2 * round + 1);
                            assert_eq!(outcome, Ok(Reply::Empty));
                        }
                        outcome => assert_eq!(outcome, Err(Errno::EAGAIN), "wait: {wait}"),
                    }
                    // Each has the file to itself for a while.
                    if (round + me * 50) % 100 == 0 {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(300));
            volume.kill();
            volume.start();
        }
        wait_until("both have had their locks", || done.load(Ordering::SeqCst) == 2);
    });
    let decided: u64 = hosts.iter().map(|(_, (host, _))| host.session().counts().decided).sum();
    assert!(decided > 0, "no lock was decided by a host");
}

/// `fail`: after its time limit calls end with an error; when the DPU side is back they work again.
#[test]
fn calls_fail_in_time_when_that_is_the_policy() {
    let mut volume = Volume::new();
    let limit = Duration::from_secs(3);
    let (host, front) = connect(&volume, LossPolicy::Fail { after: limit });
    let mut port = host.session().calling_port(0).unwrap();
    let mut watched = host.session().port(1).unwrap();
    let file = create(&mut port, "file", 0);
    write(&mut port, file, 0, b"before");
    let since = clock::now();
    volume.kill();
    wait_until("the loss is noticed", || host.session().counts().losses == 1);
    let cred = Cred::root();
    let getattr = Request::Getattr { ino: file.0, fh: file.1 };
    let waits = Call { request: &getattr, cred: &cred, checked: true, payload_len: 0 };
    let slot = watched.acquire_by(later()).unwrap();
    assert!(matches!(watched.start(slot, &waits, 1), Poll::Pending));
    assert_eq!(call(&mut port, &getattr, &[]), Err(Errno::ENOTCONN));
    assert!(clock::now().since(since) >= limit);
    assert_eq!(front.wait_for(1), Err(Errno::ENOTCONN));
    let at_once = clock::now();
    assert_eq!(call(&mut port, &getattr, &[]), Err(Errno::ENOTCONN));
    assert!(clock::now().since(at_once) < limit);
    volume.start();
    wait_until("it works again", || call(&mut port, &getattr, &[]).is_ok());
    assert_eq!(read(&mut port, file, 0, 100), b"before");
}

/// A DPU side that hangs is lost by its heartbeat; when it wakes up again, what it was doing for
/// the old attachment has ended before the new one is served, and everything held is still held.
#[test]
fn a_dpu_side_that_hangs_is_left_and_found_again() {
    let volume = Volume::new();
    let front = Arc::new(Completed::default());
    let options =
        HostOptions { beat_limit: Duration::from_secs(1), ..HostOptions::new(volume.socket()) };
    let host = Host::connect(options, front).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let worker = {
        let (port, stop) = (host.session().calling_port(0).unwrap(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut worker = Worker::new(port, 9);
            while !stop.load(Ordering::Acquire) {
                worker.step();
            }
            worker.verify();
        })
    };
    std::thread::sleep(Duration::from_millis(100));
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(volume.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    // On a busy machine a second may pass without a beat before that, too.
    let losses = host.session().counts().losses;
    signal(rustix::process::Signal::STOP);
    wait_until("the silence is noticed", || host.session().counts().losses > losses);
    signal(rustix::process::Signal::CONT);
    let calls = host.session().counts().calls;
    wait_until("work goes on", || host.session().counts().calls > calls + 50);
    stop.store(true, Ordering::Release);
    worker.join().unwrap();
    let status = volume.status();
    assert_eq!(status["attachments"].as_array().unwrap().len(), 1, "{status:#}");
    volume.assert_clean();
}

/// Nobody asks for anything: both sides sleep. Together they take below 0.1 % of a core. (Only the
/// DPU side was looked at, by ticks of 10 ms.)
#[test]
fn idle_sides_use_no_processor() {
    let volume = Volume::idle();
    let mut host = start_host(host_of(&volume).env(IDLES, "1"));
    // Nanoseconds on a processor, of all threads of both.
    let spent = || -> u64 {
        let threads = [volume.pid(), host.id()]
            .into_iter()
            .flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten());
        let of = |thread: std::fs::DirEntry| {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        };
        threads.filter_map(of).sum()
    };
    // Housekeeping of what was done ends first, and takes its time on a slow disk.
    wait_until("4 s with no more than 4 ms of a core", || {
        let before = spent();
        std::thread::sleep(Duration::from_secs(4));
        spent().saturating_sub(before) <= 4_000_000
    });
    let (other, _) = connect(&volume, LossPolicy::Wait);
    let mut port = other.session().calling_port(0).unwrap();
    assert_eq!(call(&mut port, &Request::Noop, &[]), Ok(Reply::Empty));
    host.kill().unwrap();
    host.wait().unwrap();
}
