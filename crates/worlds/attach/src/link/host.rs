//! The host side of an attachment.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboard_base::ledger::{Count, Ledger};
use outboard_base::{Deadline, SessionId};
use outboard_cache::geometry::{Area, Geometry, Shape};
use outboard_cache::host::Plane;
use outboard_link::Region;
use outboard_link::events::Receiver;
use outboard_link::layout::Layout;
use outboard_link::pace::Pace;
use outboard_link::queue::nvmefs::{Initiator, NoSuchQueue};
use outboard_link::queue::{Completion, HostQueue};
use outboard_link::registers::Registers;
use outboard_wire::attach::{
    AttachError, Company, Hello, Message, QueuesHello, QueuesWelcome, Reason, Welcome,
};
use outboard_wire::nvmefs::Dispatch;

use super::{Peer, Received, connect};
use outboard_os::clock;
use outboard_os::event_loop::rest;
use outboard_os::futex;
use outboard_os::shm::{NotShareable, Shared};
use outboard_os::wakeup::Notifier;

/// A host's region: made once, handed to each DPU it attaches to, one after the other.
#[derive(Debug)]
pub struct HostMemory {
    session: SessionId,
    layout: Layout,
    cache: Option<Geometry>,
    shared: Shared,
    company: Company,
    outlives: bool,
}

impl HostMemory {
    /// Memory for `queues` queue pairs of `depth` entries.
    ///
    /// # Errors
    /// `InvalidInput` when the grid is out of range.
    pub fn create(session: SessionId, queues: u16, depth: u16) -> io::Result<HostMemory> {
        HostMemory::create_with(session, queues, depth, None, false)
    }

    /// The same, with room for a hybrid cache behind the slots; its pages are taken from the
    /// kernel when they are first used. `large`: the DPU side will take huge pages from here.
    ///
    /// # Errors
    /// `InvalidInput` when the grid is out of range, or the cache cannot have that shape.
    pub fn create_with(
        session: SessionId,
        queues: u16,
        depth: u16,
        cache: Option<&Shape>,
        large: bool,
    ) -> io::Result<HostMemory> {
        let layout = Layout::new(queues, depth).ok_or(io::ErrorKind::InvalidInput)?;
        let at = layout.region_len();
        let cache = cache.map(|shape| shape.at(at)).transpose();
        let cache = cache.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let len = cache.map_or(at, |geometry| at + geometry.area().len);
        let create = if large { Shared::create_large } else { Shared::create };
        let shared = create("outboard-host", len)?;
        Ok(HostMemory {
            session,
            layout,
            cache,
            shared,
            company: Company::default(),
            outlives: false,
        })
    }

    /// The memory of a predecessor, laid out for `queues` queue pairs of `depth` entries and no
    /// hybrid cache.
    ///
    /// # Errors
    /// `InvalidInput` when it is not memory of that grid.
    pub fn inherit(
        session: SessionId,
        (queues, depth): (u16, u16),
        fd: OwnedFd,
    ) -> io::Result<HostMemory> {
        let layout = Layout::new(queues, depth).ok_or(io::ErrorKind::InvalidInput)?;
        let shared = Shared::open_of_trusted(fd, layout.region_len())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(HostMemory {
            session,
            layout,
            cache: None,
            shared,
            company: Company::default(),
            outlives: false,
        })
    }

    /// Of a host that may be attached beside `company`; that outlives its process, or not.
    #[must_use]
    pub fn wishing(self, company: Company, outlives: bool) -> HostMemory {
        HostMemory { company, outlives, ..self }
    }

    /// The descriptor of the memory.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }

    /// Lays the hybrid cache out, empty: once, before the first attachment.
    ///
    /// # Errors
    /// None that a region of the right length meets.
    pub fn format_cache(&self) -> io::Result<Option<Plane>> {
        let plane = |geometry| Plane::format(Arc::clone(self.region()), geometry);
        self.cache.map(plane).transpose().map_err(io::Error::other)
    }

    /// Where the hybrid cache lies, if there is one.
    #[must_use]
    pub fn cache(&self) -> Option<Geometry> {
        self.cache
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.shared.region()
    }

    /// The grid.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }
}

/// Why a host is not attached.
#[derive(Debug)]
pub enum AttachFailure {
    /// The DPU said no.
    Refused(Reason, String),
    /// The DPU grants less than this host's memory is laid out for.
    Smaller(QueuesWelcome),
    /// What came is not an answer to a Hello.
    Protocol(String),
    /// Nobody listens, the time ran out, or the kernel refused.
    Io(io::Error),
}

impl std::fmt::Display for AttachFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AttachFailure::Refused(reason, text) => {
                write!(f, "the DPU side refused the attachment ({reason:?}): {text}")
            }
            AttachFailure::Smaller(welcome) => write!(
                f,
                "the DPU side grants only {} queues of depth {}: ask for no more",
                welcome.queues, welcome.depth
            ),
            AttachFailure::Protocol(text) => write!(f, "the DPU side answered nonsense: {text}"),
            AttachFailure::Io(error) => write!(f, "no attachment: {error}"),
        }
    }
}

impl std::error::Error for AttachFailure {}

impl From<io::Error> for AttachFailure {
    fn from(error: io::Error) -> AttachFailure {
        AttachFailure::Io(error)
    }
}

impl From<AttachError> for AttachFailure {
    fn from(error: AttachError) -> AttachFailure {
        AttachFailure::Protocol(error.to_string())
    }
}

impl From<NotShareable> for AttachFailure {
    fn from(error: NotShareable) -> AttachFailure {
        AttachFailure::Protocol(error.to_string())
    }
}

/// One life of an attachment: from Welcome to Detach or loss. Shared by all threads of the host.
#[derive(Debug)]
pub struct HostLink {
    peer: Peer,
    welcome: QueuesWelcome,
    registers: Registers,
    wakeup: Notifier,
    lost: AtomicBool,
}

impl HostLink {
    /// Attaches to the DPU listening at `path`, waiting at most `timeout`.
    pub fn attach(
        path: &Path,
        memory: &HostMemory,
        timeout: Duration,
    ) -> Result<HostLink, AttachFailure> {
        HostLink::attach_over(connect(path)?, memory, timeout)
    }

    /// The same over a connection that is there: who made it is who the DPU side takes for the
    /// host, and as long as that process lives the session may be taken up again.
    pub fn attach_over(
        peer: Peer,
        memory: &HostMemory,
        timeout: Duration,
    ) -> Result<HostLink, AttachFailure> {
        let deadline = clock::now().after(timeout);
        Receiver::clear(memory.region(), memory.layout).map_err(io::Error::other)?;
        let area = memory.cache.map_or(Area { at: 0, len: 0 }, |geometry| geometry.area());
        let hello = QueuesHello {
            session: memory.session,
            region_len: memory.region().len(),
            queues: memory.layout.queues(),
            depth: memory.layout.depth(),
            cache_at: area.at,
            cache_len: area.len,
            company: memory.company,
            outlives: memory.outlives,
        };
        peer.send(&Message::Hello(Hello::Queues(hello)), &[memory.shared.fd()])?;
        match peer.receive_by(deadline)? {
            Received::Message(Message::Welcome(Welcome::Queues(welcome)), fds) => {
                HostLink::welcomed(peer, welcome, fds, memory.layout)
            }
            Received::Message(Message::Refused { reason, text }, _) => {
                Err(AttachFailure::Refused(reason, text))
            }
            Received::Message(other, _) => Err(AttachFailure::Protocol(format!("{other:?}"))),
            Received::Garbage(error) => Err(error.into()),
            Received::Closed | Received::Nothing => {
                Err(AttachFailure::Io(io::ErrorKind::ConnectionReset.into()))
            }
        }
    }

    fn welcomed(
        peer: Peer,
        welcome: QueuesWelcome,
        fds: Vec<OwnedFd>,
        layout: Layout,
    ) -> Result<HostLink, AttachFailure> {
        if (welcome.queues, welcome.depth) != (layout.queues(), layout.depth()) {
            return Err(AttachFailure::Smaller(welcome));
        }
        let Ok([pages, wakeup]) = <[OwnedFd; 2]>::try_from(fds) else {
            let text = "a Welcome brings registers and a wake event";
            return Err(AttachFailure::Protocol(text.to_owned()));
        };
        let pages = Shared::open(pages, welcome.registers_len)?;
        let registers = Registers::open(Arc::clone(pages.region()), layout)
            .map_err(|_| AttachFailure::Protocol("registers of another version".to_owned()))?;
        let wakeup = Notifier::from_fd(wakeup);
        Ok(HostLink { peer, welcome, registers, wakeup, lost: AtomicBool::new(false) })
    }

    /// Which life of the DPU side this is.
    #[must_use]
    pub fn instance(&self) -> u64 {
        self.welcome.instance
    }

    /// Most payload bytes of one command in one direction.
    #[must_use]
    pub fn io_max(&self) -> u32 {
        self.welcome.io_max
    }

    /// Which volume commands are to name.
    #[must_use]
    pub fn volume(&self) -> Dispatch {
        self.welcome.volume
    }

    /// The registers, for `Initiator::reattach` and heartbeats.
    #[must_use]
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// Fresh initiators of all queues: at the first attachment. Later ones call
    /// `Initiator::reattach`.
    pub fn initiators(
        &self,
        memory: &HostMemory,
        ledger: &Arc<Ledger>,
    ) -> Result<Vec<Initiator>, NoSuchQueue> {
        (0..memory.layout.queues())
            .map(|queue| {
                let region = Arc::clone(memory.region());
                Initiator::new(region, &self.registers, queue, Arc::clone(ledger))
            })
            .collect()
    }

    /// The host end of the event ring of this life.
    pub fn receiver(&self, memory: &HostMemory) -> io::Result<Receiver> {
        Receiver::new(Arc::clone(memory.region()), self.registers.clone()).map_err(io::Error::other)
    }

    /// Wakes the DPU; when `ring` or `abort` said so.
    pub fn notify(&self) {
        self.wakeup.notify();
    }

    /// The socket: readable or hung up when the DPU has something to say or is gone.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.peer.fd()
    }

    /// The socket's messages.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether this life is over.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Says that the DPU is gone and wakes everyone who waits for it.
    pub fn declare_lost(&self) {
        self.lost.store(true, Ordering::Release);
        let region = self.registers.region();
        let queues = (0..self.registers.layout().queues())
            .filter_map(|queue| self.registers.queue(queue).map(|block| block.interrupt_at()));
        for at in queues.chain([self.registers.event_interrupt_at()]) {
            // Words of a mapping this value holds, so neither call can fail; a sleeper that is
            // missed all the same looks again when its slice of sleep ends.
            let _moved = region.add_u32(at, 1, Ordering::AcqRel);
            let _woken = futex::wake(region, at, u32::MAX);
        }
    }

    /// Sleeps until the next event interrupt, at most `timeout`. `expected` is what the receiver's
    /// `may_sleep` said.
    pub fn sleep_for_event(&self, expected: u32, timeout: Duration) -> io::Result<()> {
        let at = self.registers.event_interrupt_at();
        futex::wait(self.registers.region(), at, expected, timeout).map(drop)
    }

    /// Leaves in order: nothing may be in flight. Waits until the DPU side says that it has
    /// released everything.
    pub fn detach(&self, timeout: Duration) -> io::Result<()> {
        let deadline = clock::now().after(timeout);
        self.peer.send(&Message::Detach, &[])?;
        loop {
            match self.peer.receive_by(deadline)? {
                Received::Message(Message::Detach, _) | Received::Closed => break,
                _ => {}
            }
        }
        self.declare_lost();
        Ok(())
    }
}

/// Longest single sleep: a lost wake-up would cost this, not a hang.
const SLICE: Duration = Duration::from_secs(1);
/// Looks in one pass that spins, so that most of it is not clock reading.
const LOOKS: u32 = 32;

/// Waits for completions of one queue until `deadline`, spinning first and sleeping then. Returns
/// how many were found: none when the time ran out or the link is lost.
pub fn wait(
    initiator: &mut Initiator,
    link: &HostLink,
    pace: &mut Pace,
    ledger: &Ledger,
    deadline: Deadline,
    out: &mut Vec<Completion>,
) -> io::Result<usize> {
    loop {
        for _ in 0..LOOKS {
            let found = initiator.poll(usize::MAX, out);
            if found > 0 {
                if pace.is_idle() {
                    pace.work(clock::now());
                }
                return Ok(found);
            }
            std::hint::spin_loop();
        }
        let now = clock::now();
        if now >= deadline || link.is_lost() {
            return Ok(0);
        }
        if rest(pace, now) {
            let limit = deadline.since(now).min(SLICE);
            sleep(initiator, link, pace, limit)?;
            charge(pace, ledger);
        }
    }
}

fn sleep(
    initiator: &mut Initiator,
    link: &HostLink,
    pace: &mut Pace,
    limit: Duration,
) -> io::Result<()> {
    let Some(expected) = initiator.may_sleep() else { return Ok(()) };
    let from = clock::now();
    let at = initiator.registers().interrupt_at();
    // A loss declared before this look has moved the word or is seen here.
    let slept = if link.is_lost() {
        Ok(futex::Woken::Up)
    } else {
        futex::wait(link.registers().region(), at, expected, limit)
    };
    initiator.awake();
    pace.slept(from, clock::now());
    slept.map(drop)
}

/// Moves what a pace has spent to the ledger.
fn charge(pace: &mut Pace, ledger: &Ledger) {
    let spent = pace.take_spent();
    ledger.count(Count::Spins, spent.spins);
    ledger.count(Count::SpinNs, spent.spin_ns);
    ledger.count(Count::Sleeps, spent.sleeps);
}

/// Asks a DPU something outside the queues, without an attachment.
///
/// # Errors
/// Nobody listens, the time ran out, or the answer is not one.
pub fn control(path: &Path, text: &str, timeout: Duration) -> io::Result<String> {
    Control::ask(path, text)?.answer(timeout).map(|(text, _)| text)
}

/// A control request that was sent.
#[derive(Debug)]
pub struct Control {
    peer: Peer,
}

impl Control {
    /// Sends it.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn ask(path: &Path, text: &str) -> io::Result<Control> {
        let peer = connect(path)?;
        peer.send(&Message::Control { id: 1, text: text.to_owned() }, &[])?;
        Ok(Control { peer })
    }

    /// The next answer, and what came with it: the end of a [`Stream`](super::Stream).
    ///
    /// # Errors
    /// The time ran out (it may be asked for again), or what came is no answer.
    pub fn answer(&self, timeout: Duration) -> io::Result<(String, Option<OwnedFd>)> {
        match self.peer.receive_by(clock::now().after(timeout))? {
            Received::Message(Message::ControlReply { id: 1, text }, fds) => {
                Ok((text, fds.into_iter().next()))
            }
            Received::Message(Message::Refused { text, .. }, _) => Err(io::Error::other(text)),
            Received::Closed | Received::Nothing => Err(io::ErrorKind::ConnectionReset.into()),
            other => Err(io::Error::other(format!("not an answer: {other:?}"))),
        }
    }
}
