//! A storage node that is measured: a process of its own, with its store in memory, so that what is
//! compared is the way there.
//!
//! ```text
//! one thread:   socket, flows, handlers            NIC side
//!               futures on whole requests, store   CPU side, timed by the thread's own clock
//! ```
//!
//! `Status` says beside all else what the CPU side has run, and, if it was started so, how many
//! descriptors were in use whenever another thread looked.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use outboard_base::task::{Spawn, Work};
use outboard_base::{Errno, Rng, Time};
use outboard_fabric::port::{Port, PortOptions};
use outboard_fabric::runtime::{FabricRuntime, Identity, Replying, Role};
use outboard_fabric::{Key, NodeRole, Part, random};
use outboard_link::pace;
use outboard_medium::{Buf, Medium};
use outboard_node::{Node, Store, StoreOptions};
use outboard_os::executor::block_on;
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};
use rustix::time::{ClockId, clock_gettime};

use super::Policy;

/// Bytes of data that a store takes, and by how many it grows.
const CAPACITY: u64 = 128 << 20;
const SEGMENT: u64 = 16 << 20;
/// Bytes of its log behind which it writes a checkpoint.
const CHECKPOINT: u64 = 16 << 20;
/// About how long it is between two looks at the descriptors.
const LOOK: Duration = Duration::from_micros(200);

/// A node to run.
#[derive(Clone, Debug)]
pub struct NodePart {
    /// What it does with requests.
    pub policy: Policy,
    /// Its number.
    pub number: u16,
    /// The file of the cluster's key.
    pub key: PathBuf,
    /// Bytes of a frame.
    pub mtu: usize,
    /// Whether it counts descriptors in use.
    pub looks: bool,
    /// Where it is.
    pub at: SocketAddrV4,
    /// Other nodes, to which it passes writes on.
    pub peers: Vec<(u16, SocketAddrV4)>,
}

/// Serves until the process is ended; says first where.
///
/// # Errors
/// The kernel's; a key that is none.
pub fn serve(part: &NodePart) -> io::Result<()> {
    let key = Key::parse(&std::fs::read_to_string(&part.key)?).map_err(io::Error::other)?;
    let wakeup = Arc::new(Wakeup::new()?);
    let poller = Rc::new(Poller::new(Arc::clone(&wakeup), None));
    let options = StoreOptions {
        node: part.number,
        cluster: key.cluster,
        capacity: CAPACITY,
        segment: SEGMENT,
        checkpoint_bytes: CHECKPOINT,
    };
    let store = block_on(Store::open(Memory::default(), Memory::default(), options));
    let node = Node::new(store.map_err(io::Error::other)?, part.policy.options(part.number));
    let looked = Arc::<Looked>::default();
    if part.looks {
        look(node.clone(), Arc::clone(&looked))?;
    }
    let port = Port::open(part.at, "node", &PortOptions::default())?;
    let identity = Identity {
        me: Peer::Node(part.number),
        life: random()? | 1,
        key,
        mtu: part.mtu,
        sealed: part.policy.seals(),
        about: format!("\"policy\":\"{}\"", part.policy.name()),
    };
    let runtime = FabricRuntime::new(poller, Arc::clone(&wakeup), port, identity, node.target())?;
    let runtime = Rc::new(runtime);
    let inner = NodeRole::new(node, runtime.conversations().clone());
    part.peers.iter().for_each(|(number, at)| inner.know(*number, *at));
    runtime.set_role(Rc::new(Watched { inner, cpu: Rc::default(), looked }));
    let mut out = io::stdout();
    writeln!(out, "{}", runtime.local())?;
    out.flush()?;
    Part::new(runtime, wakeup)?.serve(pace::Config::default(), &|| false)
}

/// Looks that were made, and descriptors in use at all of them.
#[derive(Default)]
struct Looked {
    looks: AtomicU64,
    descriptors: AtomicU64,
}

/// A thread that looks how many descriptors are in use, at moments that nothing else chooses.
fn look<M: Medium>(node: Node<M>, looked: Arc<Looked>) -> io::Result<()> {
    let mut rng = Rng::new(random()?);
    let looks = move || loop {
        std::thread::sleep(LOOK / 2 + Duration::from_nanos(rng.below(100_000)));
        let descriptors = node.descriptors();
        looked.descriptors.fetch_add(descriptors.into(), Relaxed);
        looked.looks.fetch_add(1, Relaxed);
    };
    std::thread::Builder::new().name("looks".into()).spawn(looks).map(drop)
}

/// A node's role, whose futures are timed.
struct Watched<R> {
    inner: R,
    cpu: Rc<Cell<Duration>>,
    looked: Arc<Looked>,
}

impl<R: Role> Role for Watched<R> {
    fn call(&self, from: Peer, call: Call) -> Replying {
        let is_status = matches!(call, Call::Status);
        let replying = self.inner.call(from, call);
        let (cpu, looked) = (Rc::clone(&self.cpu), Arc::clone(&self.looked));
        Box::pin(async move {
            let mut reply = replying.await;
            if let (true, Reply::Text(text)) = (is_status, &mut reply) {
                let (looks, used) = (looked.looks.load(Relaxed), looked.descriptors.load(Relaxed));
                let cpu = cpu.get().as_nanos();
                *text = format!(
                    "{{\"cpu_ns\":{cpu},\"looks\":{looks},\"descriptors_seen\":{used},\
                     \"own\":{text}}}"
                );
            }
            reply
        })
    }

    fn tend(&self, now: Time, spawn: &dyn Spawn) -> usize {
        self.inner.tend(now, &Timing { spawn, cpu: &self.cpu })
    }

    fn deadline(&self) -> Option<Time> {
        self.inner.deadline()
    }
}

/// Has what it starts timed.
struct Timing<'a> {
    spawn: &'a dyn Spawn,
    cpu: &'a Rc<Cell<Duration>>,
}

impl Spawn for Timing<'_> {
    fn spawn(&self, work: Work) {
        self.spawn.spawn(Box::pin(Timed { work, cpu: Rc::clone(self.cpu) }));
    }
}

/// Work whose CPU time is summed up.
struct Timed {
    work: Work,
    cpu: Rc<Cell<Duration>>,
}

impl Future for Timed {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let before = thread_cpu();
        let polled = self.work.as_mut().poll(cx);
        self.cpu.set(self.cpu.get() + thread_cpu().saturating_sub(before));
        polled
    }
}

/// CPU time of this thread so far.
pub(super) fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// A medium in memory, as fast as that is.
#[derive(Default)]
struct Memory(RwLock<Vec<u8>>);

fn range(offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len)?)
}

impl Medium for Memory {
    async fn read(&self, offset: u64, mut buf: Buf) -> (Result<(), Errno>, Buf) {
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let from = range(offset, buf.len()).and_then(|range| bytes.get(range));
        let read = from.map(|from| buf.copy_from_slice(from)).ok_or(Errno::EIO);
        (read, buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let to = range(offset, buf.len()).and_then(|range| bytes.get_mut(range));
        let written = to.map(|to| to.copy_from_slice(&buf)).ok_or(Errno::EIO);
        drop(bytes);
        (written, buf)
    }

    async fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::ENOSPC)?;
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}
