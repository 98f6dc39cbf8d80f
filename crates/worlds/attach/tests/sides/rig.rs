//! Two sides: a DPU side in a process of its own, with a volume on disk, and calls of hosts.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use outboard_attach::dpu::{Dpu, DpuOptions, Wish};
use outboard_attach::host::{Host, HostOptions};
use outboard_attach::link::control;
use outboard_base::{Cred, Fh, Ino, Result, Rng, Time};
use outboard_dpc::host::{Call, Completion, Front, LossPolicy, QueuePort, QueueSlot, Told};
use outboard_fjall::{Engine, EngineOptions};
use outboard_kvfs::{Kvfs, Options};
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_os::medium::{FileMedium, MediumOptions, Reactor};
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_store::directory::DataDirectory;
use outboard_wire::attach::Message;
use outboard_wire::event::Event;
use outboard_wire::file::{Lock, LockKind, LockStyle, Reply, Request, open_flags};
use serde_json::Value;

pub(crate) const DIR: &str = "OUTBOARD_SIDES_DIR";
pub(crate) const HOST: &str = "OUTBOARD_SIDES_HOST";
/// Set, a host does nothing once it holds what it holds, and hearts beat no faster than they must.
pub(crate) const IDLES: &str = "OUTBOARD_SIDES_IDLE";
/// Set, every user may attach, and few handles are a user's share.
const OPEN: &str = "OUTBOARD_SIDES_OPEN";
/// Handles of all, of a user, and of an attachment, of a volume that is open to every user.
pub(crate) const HANDLES: [usize; 3] = [4096, 96, 40];
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

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
    let is_open = std::env::var_os(OPEN).is_some();
    let mut options =
        Options { capacity: 256 << 20, segment: 4 << 20, id: 7, ..Options::default() };
    if is_open {
        [options.handles_max, options.handles_user_max, options.handles_attachment_max] = HANDLES;
    }
    let volume = block_on(Kvfs::open(engine, medium, options, clock::wall())).unwrap();
    let wakeup = Arc::new(Wakeup::new().unwrap());
    let runtime = Rc::new(Poller::new(Arc::clone(&wakeup), Reactor::install(64).ok()));
    let mut options = DpuOptions {
        grace: Duration::from_secs(5),
        ..DpuOptions::new(dir.join("socket"), dir.join("sessions"))
    };
    if is_open {
        options.socket_mode = 0o666;
    }
    if std::env::var_os(IDLES).is_none() {
        options.beat_limit = Duration::from_secs(1);
    }
    let mut dpu = Dpu::new(Arc::new(volume), runtime, wakeup, options).unwrap();
    dpu.run(&|| Wish::GoOn).unwrap();
}

pub(crate) struct Volume {
    dir: tempfile::TempDir,
    dpu: Option<Child>,
}

impl Volume {
    pub(crate) fn new() -> Volume {
        let mut volume = Volume { dir: tempfile::tempdir().unwrap(), dpu: None };
        volume.start();
        volume
    }

    /// Whose heart beats as often as a DPU side's does by default.
    pub(crate) fn idle() -> Volume {
        let mut volume = Volume { dir: tempfile::tempdir().unwrap(), dpu: None };
        volume.dpu = Some(volume.process().env(IDLES, "1").spawn().unwrap());
        volume
    }

    /// To which every user may attach.
    pub(crate) fn open() -> Volume {
        let mut volume = Volume { dir: tempfile::tempdir().unwrap(), dpu: None };
        let everybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(volume.dir.path(), everybody).unwrap();
        volume.dpu = Some(volume.process().env(OPEN, "1").spawn().unwrap());
        volume
    }

    /// Where its files are.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    fn process(&self) -> Process {
        let mut process = Process::new(std::env::current_exe().unwrap());
        process
            .args(["--ignored", "--exact", "rig::dpu_process", "--nocapture"])
            .env(DIR, self.dir.path())
            .stdout(Stdio::null());
        process
    }

    pub(crate) fn start(&mut self) {
        self.dpu = Some(self.process().spawn().unwrap());
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.dpu.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.dpu.as_ref().unwrap().id()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub(crate) fn status(&self) -> Value {
        ask(&self.socket(), r#"{"command":"status"}"#)
    }

    pub(crate) fn assert_clean(&self) {
        let report = ask(&self.socket(), r#"{"command":"check","contents":true}"#);
        assert_eq!(report["clean"], true, "{report:#}");
    }
}

/// A control request without arguments.
pub(crate) fn said(command: &str) -> String {
    format!(r#"{{"command":"{command}"}}"#)
}

pub(crate) fn ask(socket: &Path, request: &str) -> Value {
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
pub(crate) fn said_to(socket: &Path, bytes: &[u8]) -> Message {
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

// The host side.

#[derive(Default)]
pub(crate) struct Completed(pub(crate) Mutex<Vec<(u64, Result<Reply>)>>);

impl Front<QueueSlot> for Completed {
    fn complete(&self, completion: Completion) {
        self.0.lock().unwrap().push((completion.tag, completion.outcome));
    }

    fn event(&self, _: Event, _: Told) {}
}

impl Completed {
    pub(crate) fn wait_for(&self, tag: u64) -> Result<Reply> {
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

pub(crate) fn connect(volume: &Volume, on_loss: LossPolicy) -> (Host, Arc<Completed>) {
    let front = Arc::new(Completed::default());
    let options = HostOptions { on_loss, ..HostOptions::new(volume.socket()) };
    let host = Host::connect(options, Arc::clone(&front) as Arc<dyn Front<QueueSlot>>).unwrap();
    (host, front)
}

pub(crate) fn later() -> Time {
    clock::now().after(PATIENCE)
}

/// One call, waited for.
pub(crate) fn call(port: &mut QueuePort, request: &Request<'_>, payload: &[u8]) -> Result<Reply> {
    call_reading(port, request, payload, &mut [])
}

pub(crate) fn call_reading(
    port: &mut QueuePort,
    request: &Request<'_>,
    payload: &[u8],
    out: &mut [u8],
) -> Result<Reply> {
    let mut slot = port.acquire_by(later()).unwrap();
    slot.write(0, payload).unwrap();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let cred = Cred { uid, gid, ..Cred::root() };
    let call = Call { request, cred: &cred, checked: true, payload_len: payload.len() };
    let completion = port.call(slot, &call);
    if let Ok(Reply::Data(len)) = completion.outcome {
        let len = out.len().min(len as usize);
        completion.slot.as_ref().unwrap().read(0, &mut out[..len]).unwrap();
    }
    completion.outcome
}

pub(crate) fn create(port: &mut QueuePort, name: &str, flags: u32) -> (Ino, Fh) {
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

pub(crate) fn write(port: &mut QueuePort, (ino, fh): (Ino, Fh), offset: u64, data: &[u8]) {
    let request = Request::Write { ino, fh, offset, flags: 0 };
    assert_eq!(call(port, &request, data), Ok(Reply::Written(data.len() as u32)));
}

pub(crate) fn read(port: &mut QueuePort, (ino, fh): (Ino, Fh), offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let request = Request::Read { ino, fh, offset, len: len as u32, flags: 0 };
    match call_reading(port, &request, &[], &mut out) {
        Ok(Reply::Data(got)) => out.truncate(got as usize),
        other => panic!("read: {other:?}"),
    }
    out
}

pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

pub(crate) fn exclusive((ino, fh): (Ino, Fh), owner: u64, wait: bool) -> Request<'static> {
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

pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = later();
    while !holds() {
        assert!(clock::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sets a lock and waits for what comes of it.
pub(crate) fn set_lock(
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
