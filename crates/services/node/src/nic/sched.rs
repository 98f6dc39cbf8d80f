//! Which handler runs next, and where: the scheduler of NetDFS section II B, without a clock and
//! without packets, which whoever calls keeps by their tokens.
//!
//! What always holds (checklist rows N2, N3, N9):
//! - a message's header handler runs first, and is over, its effects too, before any other begins;
//! - its payload handlers run in any order and at once, one for each packet;
//! - its completion handler runs once, when all packets came and all payload handlers and their
//!   effects are over; or its cleanup handler does, once, when nothing of it runs any more;
//! - peers take turns: one with many packets does not keep those of another waiting.

use std::collections::{BTreeMap, VecDeque};

use outboard_wire::shared::Peer;

/// The four handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Handler {
    /// Once for each message, before all others.
    Header,
    /// For each packet.
    Payload,
    /// Once for each message that came whole.
    Completion,
    /// Once for each other message that was not refused.
    Cleanup,
}

impl Handler {
    /// All of them.
    pub const ALL: [Handler; 4] =
        [Handler::Header, Handler::Payload, Handler::Completion, Handler::Cleanup];

    /// A name for figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Handler::Header => "header",
            Handler::Payload => "payload",
            Handler::Completion => "completion",
            Handler::Cleanup => "cleanup",
        }
    }
}

/// A packet, as the scheduler knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketAt {
    /// Where in its message it begins.
    pub offset: u32,
    /// By what its bytes are found.
    pub token: u32,
    /// Nothing of the message is missing any more.
    pub completes: bool,
}

/// A handler to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// For which message: its descriptor.
    pub slot: u32,
    /// Which.
    pub handler: Handler,
    /// On which packet; of a cleanup, none.
    pub packet: PacketAt,
}

/// Empty queues that are kept.
const SPARE: usize = 16;

/// The scheduler has no room for another packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

#[derive(Debug)]
struct Live {
    peer: Peer,
    /// The header handler has said yes.
    is_accepted: bool,
    /// Packets that came before it did.
    held: Vec<PacketAt>,
    /// Tasks that are ready or run.
    open: u32,
    /// Tasks that run, or whose effects do.
    running: u32,
    /// The packet with which everything was there.
    whole: Option<PacketAt>,
    is_doomed: bool,
}

/// The scheduler.
#[derive(Debug)]
pub struct Sched {
    /// By the number of the processing unit, what it runs.
    units: Vec<Option<Task>>,
    live: BTreeMap<u32, Live>,
    ready: BTreeMap<Peer, VecDeque<Task>>,
    turns: VecDeque<Peer>,
    /// Queues of peers that have nothing ready, to be used again: no packet allocates.
    spare: Vec<VecDeque<Task>>,
    waiting: usize,
    most: usize,
    deepest: usize,
}

impl Sched {
    /// For so many processing units, and so many packets that wait at a time.
    #[must_use]
    pub fn new(units: usize, most: usize) -> Sched {
        Sched {
            units: vec![None; units.max(1)],
            live: BTreeMap::new(),
            ready: BTreeMap::new(),
            turns: VecDeque::new(),
            spare: Vec::new(),
            waiting: 0,
            most,
            deepest: 0,
        }
    }

    /// The first packet of a message, whose descriptor is `slot`.
    ///
    /// # Errors
    /// [`Full`]; then nothing is known of the message.
    pub fn begin(&mut self, slot: u32, peer: Peer, packet: PacketAt) -> Result<(), Full> {
        self.room()?;
        let whole = packet.completes.then_some(packet);
        let held = vec![packet];
        self.waiting += 1;
        let live =
            Live { peer, is_accepted: false, held, open: 0, running: 0, whole, is_doomed: false };
        self.live.insert(slot, live);
        self.push(Task { slot, handler: Handler::Header, packet });
        Ok(())
    }

    /// Another packet of a message. One of a message that is not known, or refused, is dropped.
    ///
    /// # Errors
    /// [`Full`]; the message can only be cleaned up then.
    pub fn arrive(&mut self, slot: u32, packet: PacketAt) -> Result<(), Full> {
        let room = self.room();
        let Some(live) = self.live.get_mut(&slot).filter(|live| !live.is_doomed) else {
            return Ok(());
        };
        room?;
        self.waiting += 1;
        if packet.completes {
            live.whole = Some(packet);
        }
        if live.is_accepted {
            self.push(Task { slot, handler: Handler::Payload, packet });
        } else {
            live.held.push(packet);
        }
        Ok(())
    }

    /// What the processing unit `unit` does next. Nothing, if it is not idle or nothing is ready.
    pub fn next(&mut self, unit: usize) -> Option<Task> {
        let place = self.units.get_mut(unit).filter(|place| place.is_none())?;
        let peer = self.turns.pop_front()?;
        let queue = self.ready.get_mut(&peer)?;
        let task = queue.pop_front()?;
        if !queue.is_empty() {
            self.turns.push_back(peer);
        } else if let Some(queue) = self.ready.remove(&peer)
            && self.spare.len() < SPARE
        {
            self.spare.push(queue);
        }
        *place = Some(task);
        if task.handler == Handler::Payload {
            self.waiting = self.waiting.saturating_sub(1);
        }
        if let Some(live) = self.live.get_mut(&task.slot) {
            live.running += 1;
        }
        Some(task)
    }

    /// The handler on `unit` has returned; its effects may still be under way.
    pub fn returned(&mut self, unit: usize) {
        if let Some(place) = self.units.get_mut(unit) {
            *place = None;
        }
    }

    /// A handler and all its effects are over. Of a header handler: whether it accepted.
    pub fn done(&mut self, task: &Task, accepts: bool) {
        let slot = task.slot;
        let Some(live) = self.live.get_mut(&slot) else { return };
        live.running = live.running.saturating_sub(1);
        live.open = live.open.saturating_sub(1);
        let is_refused = task.handler == Handler::Header && !accepts;
        if live.is_doomed && task.handler != Handler::Cleanup && !is_refused {
            if live.running == 0 {
                let packet = PacketAt::default();
                self.push(Task { slot, handler: Handler::Cleanup, packet });
            }
            return;
        }
        match task.handler {
            Handler::Header if accepts => {
                live.is_accepted = true;
                for packet in std::mem::take(&mut live.held) {
                    self.push(Task { slot, handler: Handler::Payload, packet });
                }
            }
            Handler::Payload if live.open > 0 => {}
            Handler::Payload => {
                if let Some(packet) = live.whole {
                    self.push(Task { slot, handler: Handler::Completion, packet });
                }
            }
            Handler::Header | Handler::Completion | Handler::Cleanup => {
                self.waiting = self.waiting.saturating_sub(live.held.len());
                self.live.remove(&slot);
            }
        }
    }

    /// The rest of a message will not come: nothing more of it begins but its cleanup handler,
    /// which does once nothing of it runs. A message that is whole completes instead.
    pub fn cleanup(&mut self, slot: u32) {
        let Some(live) = self.live.get_mut(&slot) else { return };
        if live.is_doomed || live.whole.is_some() {
            return;
        }
        live.is_doomed = true;
        self.waiting = self.waiting.saturating_sub(std::mem::take(&mut live.held).len());
        let (peer, is_idle) = (live.peer, live.running == 0);
        live.open = live.running;
        if let Some(queue) = self.ready.get_mut(&peer) {
            let is_payload = |task: &&Task| task.slot == slot && task.handler == Handler::Payload;
            self.waiting = self.waiting.saturating_sub(queue.iter().filter(is_payload).count());
            queue.retain(|task| task.slot != slot);
            if queue.is_empty() {
                self.ready.remove(&peer);
                self.turns.retain(|other| *other != peer);
            }
        }
        if is_idle {
            let packet = PacketAt::default();
            self.push(Task { slot, handler: Handler::Cleanup, packet });
        }
    }

    /// Packets that wait for their handlers.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Packets that waited at a time.
    #[must_use]
    pub fn deepest(&self) -> usize {
        self.deepest
    }

    /// Messages whose handlers are not all over.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    fn room(&self) -> Result<(), Full> {
        if self.waiting < self.most { Ok(()) } else { Err(Full) }
    }

    fn push(&mut self, task: Task) {
        self.deepest = self.deepest.max(self.waiting);
        let Some(live) = self.live.get_mut(&task.slot) else { return };
        live.open += 1;
        let spare = &mut self.spare;
        let queue = self.ready.entry(live.peer).or_insert_with(|| spare.pop().unwrap_or_default());
        if queue.is_empty() {
            self.turns.push_back(live.peer);
        }
        queue.push_back(task);
    }
}
