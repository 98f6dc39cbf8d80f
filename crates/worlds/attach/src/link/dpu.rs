//! The DPU side of an attachment.

use std::io;
use std::sync::Arc;

use outboard_base::ledger::Ledger;
use outboard_base::limits::IO_MAX;
use outboard_link::Region;
use outboard_link::dma::Dma;
use outboard_link::events::Sender;
use outboard_link::layout::Layout;
use outboard_link::queue::nvmefs::Target;
use outboard_link::registers::Registers;
use outboard_wire::attach::{Message, QueuesHello, QueuesWelcome, Reason, Welcome};
use outboard_wire::nvmefs::Dispatch;
use outboard_wire::regs::registers_len;
use std::os::fd::OwnedFd;

use super::Peer;
use outboard_os::futex;
use outboard_os::shm::Shared;
use outboard_os::wakeup::Wakeup;

/// What a DPU side agrees to, for each attachment.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Which life of the DPU side this is.
    pub instance: u64,
    /// Most queue pairs of one attachment.
    pub queues_max: u16,
    /// Largest depth.
    pub depth_max: u16,
    /// Largest region, bytes.
    pub region_max: u64,
    /// Which volume hosts are to name in their commands.
    pub volume: Dispatch,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            instance: 0,
            queues_max: 16,
            depth_max: 256,
            region_max: 16 << 30,
            volume: Dispatch::Kv,
        }
    }
}

/// One host, attached.
#[derive(Debug)]
pub struct DpuAttachment {
    hello: QueuesHello,
    region: Arc<Region>,
    registers: Registers,
}

impl DpuAttachment {
    /// Checks a Hello and its region, makes the registers and sends the Welcome; or says no, to the
    /// host and to the caller. A host gets what it asked for or a smaller depth and fewer queues;
    /// its region must have room for the rings of what is granted.
    pub fn admit(
        peer: &Peer,
        hello: &QueuesHello,
        fds: Vec<OwnedFd>,
        terms: &Terms,
        wakeup: &Wakeup,
    ) -> Result<DpuAttachment, (Reason, String)> {
        match prepare(peer, hello, fds, terms) {
            Ok((attachment, pages)) => {
                attachment.welcome(peer, &pages, terms, wakeup).map_err(|error| {
                    (Reason::Closing, format!("the Welcome could not be sent: {error}"))
                })?;
                Ok(attachment)
            }
            Err((reason, text)) => {
                refuse(peer, reason, &text);
                Err((reason, text))
            }
        }
    }

    fn welcome(
        &self,
        peer: &Peer,
        pages: &Shared,
        terms: &Terms,
        wakeup: &Wakeup,
    ) -> io::Result<()> {
        let layout = self.registers.layout();
        let welcome = QueuesWelcome {
            instance: terms.instance,
            registers_len: self.registers.region().len(),
            queues: layout.queues(),
            depth: layout.depth(),
            io_max: u32::try_from(IO_MAX).unwrap_or(u32::MAX),
            volume: terms.volume,
        };
        let notifier = wakeup.notifier()?;
        peer.send(&Message::Welcome(Welcome::Queues(welcome)), &[pages.fd(), notifier.fd()])
    }

    /// What the host said of itself. Its session is its word; its credentials are the socket's.
    #[must_use]
    pub fn hello(&self) -> &QueuesHello {
        &self.hello
    }

    /// The host's memory, to build a DMA engine over. Nothing else may touch it.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The registers.
    #[must_use]
    pub fn registers(&self) -> &Registers {
        &self.registers
    }

    /// The DPU ends of all queue pairs, over one engine.
    #[must_use]
    pub fn targets(&self, dma: &Arc<dyn Dma>, ledger: &Arc<Ledger>) -> Vec<Target> {
        (0..self.registers.layout().queues())
            .filter_map(|queue| {
                Target::new(Arc::clone(dma), &self.registers, queue, Arc::clone(ledger)).ok()
            })
            .collect()
    }

    /// The DPU end of the event ring.
    #[must_use]
    pub fn sender(&self, dma: &Arc<dyn Dma>, ledger: &Arc<Ledger>) -> Sender {
        Sender::new(Arc::clone(dma), self.registers.clone(), Arc::clone(ledger))
    }

    /// Wakes who sleeps on a queue's interrupt word; after `flush` of that queue said so.
    pub fn interrupt(&self, queue: u16) -> io::Result<()> {
        match self.registers.queue(queue) {
            Some(block) => {
                futex::wake(self.registers.region(), block.interrupt_at(), u32::MAX).map(drop)
            }
            None => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Wakes who sleeps on the event interrupt word; after `flush` of the event ring said so.
    pub fn interrupt_events(&self) -> io::Result<()> {
        let at = self.registers.event_interrupt_at();
        futex::wake(self.registers.region(), at, u32::MAX).map(drop)
    }
}

/// Says no. A host that does not listen learns it from the closed socket.
pub(crate) fn refuse(peer: &Peer, reason: Reason, text: &str) {
    let _unheard = peer.send(&Message::Refused { reason, text: text.to_owned() }, &[]);
}

/// Whether the peer is root, or the user this process runs as.
fn could_end_us(peer: &Peer) -> bool {
    let own = rustix::process::geteuid().as_raw();
    peer.cred().is_ok_and(|cred| cred.uid == 0 || cred.uid == own)
}

fn prepare(
    peer: &Peer,
    hello: &QueuesHello,
    mut fds: Vec<OwnedFd>,
    terms: &Terms,
) -> Result<(DpuAttachment, Shared), (Reason, String)> {
    let (queues, depth) = (hello.queues.min(terms.queues_max), hello.depth.min(terms.depth_max));
    let layout = Layout::new(queues, depth)
        .ok_or_else(|| (Reason::Malformed, "queues or depth out of range".to_owned()))?;
    let (Some(fd), true) = (fds.pop(), fds.is_empty()) else {
        return Err((Reason::Malformed, "a Hello brings exactly one region".to_owned()));
    };
    if hello.region_len < layout.rings_len() || hello.region_len > terms.region_max {
        let text = format!("a region of {} bytes is too small or too large", hello.region_len);
        return Err((Reason::Region, text));
    }
    let open = if could_end_us(peer) { Shared::open_of_trusted } else { Shared::open };
    let shared = open(fd, hello.region_len).map_err(|error| (Reason::Region, error.to_string()))?;
    let no_room = |text: String| (Reason::Full, text);
    let pages = Shared::create("outboard-registers", registers_len(queues, depth))
        .map_err(|error| no_room(format!("no memory for registers: {error}")))?;
    let registers = Registers::create(Arc::clone(pages.region()), layout, terms.instance)
        .map_err(|_| no_room("registers do not fit their pages".to_owned()))?;
    let region = Arc::clone(shared.region());
    Ok((DpuAttachment { hello: *hello, region, registers }, pages))
}
