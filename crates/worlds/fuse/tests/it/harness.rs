//! The toy volume, or KVFS, as a backend, and mounts of it that clean up after themselves.

#[path = "../../../os/tests/skips/mod.rs"]
mod skips;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_fuse::backend::{Backend, Call, Completion, Front as _, Port, Slot};
use outboard_fuse::{HeapSlot, MountFront, MountOptions, Mounted, mount};
use outboard_wire::file::{Header, Op, Reply, Request};

use crate::kvfs::KvfsOverLink;
use crate::toy::Toy;

/// A lock request that waits, and the file it waits for.
struct Waiter {
    tag: u64,
    ino: Ino,
    request: Vec<u8>,
}

/// A slot that knows what was copied into its pages and out of them by this process: what system
/// calls move there, nobody copied.
pub(crate) struct CountingSlot {
    slot: HeapSlot,
    copied: Arc<AtomicU64>,
}

impl Slot for CountingSlot {
    fn payload(&self) -> &[AtomicU8] {
        self.slot.payload()
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.copied.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.slot.write(at, bytes)
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        self.copied.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.slot.read(at, out)
    }
}

pub(crate) struct ToyBackend {
    pub(crate) toy: Toy,
    /// What answers in place of the toy.
    kvfs: Option<KvfsOverLink>,
    /// Bytes that the adaptor has copied into slots and out of them.
    copied: Arc<AtomicU64>,
    front: OnceLock<Arc<MountFront<CountingSlot>>>,
    waiters: Mutex<Vec<Waiter>>,
    /// Answers by another thread, this much later.
    late: Option<Duration>,
    /// Where each request's answer is held until it is let go.
    held: Mutex<Option<Vec<u64>>>,
    /// So many times from now on no slot is free.
    short: AtomicU32,
    /// A worker gets one slot, and none while it has that.
    scarce: AtomicBool,
}

impl ToyBackend {
    fn front(&self) -> &Arc<MountFront<CountingSlot>> {
        self.front.get().unwrap()
    }

    /// Tries the waiting locks again.
    fn retry_locks(&self, ino: Ino) {
        let mut waiters = self.waiters.lock().unwrap();
        let mut granted = Vec::new();
        waiters.retain(|waiter| {
            if waiter.ino != ino {
                return true;
            }
            let (header, request) = Request::decode(&waiter.request).unwrap();
            match self.toy.answer(&header.cred, &request, &mut [], 0) {
                Ok(Reply::Waiting(_)) => true,
                outcome => {
                    granted.push((waiter.tag, outcome));
                    false
                }
            }
        });
        drop(waiters);
        for (tag, outcome) in granted {
            self.front().complete(ended(tag, Op::Setlk, outcome));
        }
    }

    fn answer(&self, call: &Call<'_>, payload: &mut [u8]) -> Result<Reply> {
        let Some(kvfs) = &self.kvfs else {
            return self.toy.answer(call.cred, call.request, payload, call.payload_len);
        };
        let (outcome, events) = kvfs.answer(call.cred, call.request, payload, call.payload_len);
        events.into_iter().for_each(|event| self.tell(event));
        outcome
    }

    /// How often an operation was asked for.
    pub(crate) fn asked(&self, op: Op) -> u64 {
        self.kvfs.as_ref().map_or_else(|| self.toy.asked(op), |kvfs| kvfs.asked(op))
    }

    /// Bytes that the adaptor has copied into slots and out of them so far.
    pub(crate) fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// The DPU side tells something, and waits until it is acted upon.
    pub(crate) fn tell_and_wait(&self, event: outboard_wire::event::Event) {
        let (done, is_done) = std::sync::mpsc::channel();
        let told = outboard_volume::backend::Told::new(move || done.send(()).unwrap());
        self.front().event(event, told);
        is_done.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
    }

    /// The DPU side tells something.
    pub(crate) fn tell(&self, event: outboard_wire::event::Event) {
        self.front().event(event, outboard_volume::backend::Told::default());
    }

    /// Whether answers come by another thread.
    pub(crate) fn is_late(&self) -> bool {
        self.late.is_some()
    }

    /// Lock requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.lock().unwrap().len()
    }

    /// From now on Getattr requests hang until they are aborted.
    pub(crate) fn hold(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }

    /// So many times from now on no slot is free.
    pub(crate) fn run_short(&self, times: u32) {
        self.short.store(times, Ordering::Relaxed);
    }

    /// From now on a worker that has a slot gets no other.
    pub(crate) fn be_scarce(&self) {
        self.scarce.store(true, Ordering::Relaxed);
    }

    /// How many requests hang.
    pub(crate) fn hanging(&self) -> usize {
        self.held.lock().unwrap().as_ref().map_or(0, Vec::len)
    }

    /// Answers what hangs, and hangs no more.
    pub(crate) fn let_go(&self) {
        for tag in self.held.lock().unwrap().take().unwrap_or_default() {
            self.front().complete(ended(tag, Op::Getattr, Err(Errno::EIO)));
        }
    }
}

/// The end of a call that holds no slot any more.
fn ended(tag: u64, op: Op, outcome: Result<Reply>) -> Completion<CountingSlot> {
    Completion { tag, op, outcome, slot: None }
}

pub(crate) struct ToyPort {
    backend: Arc<ToyBackend>,
    /// The last slot asked for was given.
    gave: bool,
}

impl Backend for ToyBackend {
    type Slot = CountingSlot;
    type Port = ToyPort;

    fn port(self: &Arc<ToyBackend>, _: u16) -> Option<ToyPort> {
        Some(ToyPort { backend: Arc::clone(self), gave: false })
    }

    fn calling_port(self: &Arc<ToyBackend>, index: u16) -> Option<ToyPort> {
        self.port(index)
    }

    fn read_cached(&self, _: Ino, _: Fh, _: u64, _: &mut [u8]) -> Option<usize> {
        None
    }

    fn write_cached(&self, _: Ino, _: Fh, _: u64, _: &[u8]) -> bool {
        false
    }

    fn abort(self: &Arc<ToyBackend>, tag: u64) -> bool {
        let aborted = |op| ended(tag, op, Err(Errno::EINTR));
        let mut waiters = self.waiters.lock().unwrap();
        if let Some(at) = waiters.iter().position(|waiter| waiter.tag == tag) {
            waiters.remove(at);
            drop(waiters);
            self.front().complete(aborted(Op::Setlk));
            return true;
        }
        let mut held = self.held.lock().unwrap();
        if let Some(at) = held.as_ref().and_then(|held| held.iter().position(|t| *t == tag)) {
            held.as_mut().unwrap().remove(at);
            drop(held);
            self.front().complete(aborted(Op::Getattr));
            return true;
        }
        false
    }
}

impl Port for ToyPort {
    type Slot = CountingSlot;

    fn acquire(&mut self) -> Result<CountingSlot> {
        // The worker asks once for each message: twice in a row is asking while it has one.
        self.gave = !self.gave || !self.backend.scarce.load(Ordering::Relaxed);
        if !self.gave {
            return Err(Errno::EAGAIN);
        }
        let short = &self.backend.short;
        match short.try_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) {
            Ok(_) => Err(Errno::EAGAIN),
            Err(_) => {
                let copied = Arc::clone(&self.backend.copied);
                Ok(CountingSlot { slot: HeapSlot::default(), copied })
            }
        }
    }

    fn start(
        &mut self,
        mut slot: CountingSlot,
        call: &Call<'_>,
        tag: u64,
    ) -> Poll<Completion<CountingSlot>> {
        assert!(call.checked);
        if let (Request::Getattr { .. }, Some(held)) =
            (call.request, self.backend.held.lock().unwrap().as_mut())
        {
            held.push(tag);
            return Poll::Pending;
        }
        let outcome = self.backend.answer(call, slot.slot.payload_mut());
        if let (Ok(Reply::Waiting(_)), Request::Setlk { ino, .. }) = (&outcome, call.request) {
            let header = Header { cred: call.cred.clone(), ..Header::default() };
            let mut bytes = vec![0; call.request.encoded_len(&header)];
            call.request.encode(&header, &mut bytes).unwrap();
            self.backend.waiters.lock().unwrap().push(Waiter { tag, ino: *ino, request: bytes });
            return Poll::Pending;
        }
        let op = call.request.op();
        let unlocks = match call.request {
            Request::Setlk { ino, .. }
            | Request::Flush { ino, .. }
            | Request::Release { ino, .. } => Some(*ino),
            _ => None,
        };
        let started = match self.backend.late {
            None => Poll::Ready(Completion { tag, op, outcome, slot: Some(slot) }),
            Some(late) => {
                let front = Arc::clone(self.backend.front());
                std::thread::spawn(move || {
                    std::thread::sleep(late);
                    front.complete(Completion { tag, op, outcome, slot: Some(slot) });
                });
                Poll::Pending
            }
        };
        if let Some(ino) = unlocks {
            self.backend.retry_locks(ino);
        }
        started
    }

    fn call(&mut self, slot: CountingSlot, call: &Call<'_>) -> Completion<CountingSlot> {
        match self.start(slot, call, 0) {
            Poll::Ready(completion) => completion,
            Poll::Pending => panic!("a mount waits for its answers itself"),
        }
    }
}

/// A mounted toy volume; unmounted when dropped.
pub(crate) struct Mount {
    pub(crate) dir: PathBuf,
    pub(crate) backend: Arc<ToyBackend>,
    pub(crate) mounted: Option<Mounted<ToyBackend>>,
    _place: tempfile::TempDir,
}

/// Says what cannot be run here, and tells `make test`, which counts it; see docs/TESTING.md.
pub(crate) fn note_skip(test: &str, reason: &str) {
    skips::note_skip(&format!("fuse-{test}"), reason);
}

/// Whether tests can mount here; says so when they cannot.
pub(crate) fn can_mount(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if root && Path::new("/dev/fuse").exists() {
        return true;
    }
    note_skip(test, "mounting needs root and /dev/fuse");
    false
}

pub(crate) fn toy_mount(options: MountOptions, late: Option<Duration>) -> Mount {
    let place = tempfile::tempdir().unwrap();
    mount_at(place, options, late)
}

pub(crate) fn mount_at(
    place: tempfile::TempDir,
    options: MountOptions,
    late: Option<Duration>,
) -> Mount {
    mount_volume(place, None, options, late)
}

/// Mounts KVFS, or the toy where there is none.
fn mount_volume(
    place: tempfile::TempDir,
    kvfs: Option<KvfsOverLink>,
    options: MountOptions,
    late: Option<Duration>,
) -> Mount {
    let backend = Arc::new(ToyBackend {
        toy: Toy::new(),
        kvfs,
        copied: Arc::default(),
        front: OnceLock::new(),
        waiters: Mutex::default(),
        late,
        held: Mutex::default(),
        short: AtomicU32::new(0),
        scarce: AtomicBool::new(false),
    });
    let front = Arc::new(MountFront::new(options));
    assert!(backend.front.set(Arc::clone(&front)).is_ok());
    let mounted = mount(place.path(), front, Arc::clone(&backend)).unwrap();
    Mount { dir: place.path().to_owned(), backend, mounted: Some(mounted), _place: place }
}

/// The ways a mount can behave: what it is called, its options, and how late answers are.
fn ways() -> [(&'static str, MountOptions, Option<Duration>); 3] {
    let none = MountOptions { cache: outboard_fuse::Cache::None, ..MountOptions::default() };
    [
        ("cached", MountOptions::default(), None),
        ("uncached", none, None),
        ("late", MountOptions::default(), Some(Duration::from_millis(1))),
    ]
}

/// Runs a test on each way a mount can behave.
pub(crate) fn each(test: &str, body: impl Fn(&Mount)) {
    if !can_mount(test) {
        return;
    }
    for (way, options, late) in ways() {
        eprintln!("{test}: {way}");
        body(&toy_mount(options, late));
    }
}

/// The same over each volume: the toy, and KVFS beyond a link.
pub(crate) fn each_of_both(test: &str, body: impl Fn(&Mount)) {
    each(test, &body);
    if !can_mount(test) {
        return;
    }
    for (way, options, late) in ways() {
        eprintln!("{test}: kvfs, {way}");
        body(&kvfs_mount(options, late));
    }
}

/// KVFS beyond a link, mounted.
pub(crate) fn kvfs_mount(options: MountOptions, late: Option<Duration>) -> Mount {
    mount_volume(tempfile::tempdir().unwrap(), Some(KvfsOverLink::new()), options, late)
}

/// Held while a process is started. Until it has become its program it has all open files of this
/// one, those of tests that run beside it too.
static SPAWNS: RwLock<()> = RwLock::new(());

/// Starts a program.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    let _spawning = SPAWNS.read().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn();
    // The kernel says that it has become its program a moment before it closes those files.
    std::thread::sleep(Duration::from_millis(50));
    child
}

/// Until it is dropped, what is closed here is open nowhere else.
pub(crate) fn without_spawns() -> RwLockWriteGuard<'static, ()> {
    SPAWNS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for something to become true.
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
