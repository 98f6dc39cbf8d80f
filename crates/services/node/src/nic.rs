//! The runtime of handlers: a NIC that runs an application's code on packets (NetDFS II B, III B
//! and C), as a machine without clock, thread or socket.
//!
//! A packet is matched to an execution [`context`], its message gets a descriptor in the request
//! [`table`], the scheduler [`sched`] says which handler runs next, and what a handler asks for is
//! carried out before it counts as over. Production runs all of it inline, for each packet, while
//! that still lies in its datagram ([`Nic::inline`]); a test draws processing units, keeps the
//! packets and lets effects end late, by the same four steps.
//!
//! What always holds:
//! - a message that was refused, or got no descriptor, has one answer, and nothing more of it is
//!   looked at: its later packets find no descriptor;
//! - no memory is taken that was not accounted: descriptors, landings by peer, notices, packets;
//! - nobody ever takes more of the landings' memory than is still free for the others, by itself
//!   and by nodes that pass on what it writes; nor of that for sums.

mod account;
pub mod context;
pub mod ledger;
pub mod passing;
pub mod sched;
pub mod sums;
pub mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use outboard_base::{Time, place};
use outboard_flow::Given;
use outboard_wire::roce::Psn;
use outboard_wire::shared::{Answer, Peer, Reason};

use account::Accounts;
use context::{Effect, Hand, Landing, Load, Matching, Notice, Path, Policy};
use ledger::{Cost, HandlerLedger};
use passing::Passing;
use sched::{Handler, PacketAt, Sched, Task};
use sums::Sums;
use table::{Descriptor, Table, state};

/// Notices that wait for the CPU side at most.
const NOTICES_MAX: usize = 1024;
/// Of so many runs of a handler one is timed, and of so many requests one: a clock that is read
/// each time would cost as much as a handler. A prime, or they were always a message's first.
const TIMED: u64 = 61;
/// Bytes that the state of all policies may take: what NetDFS III B leaves beside the table.
pub const STATE_BYTES: usize = 2 << 20;

/// How much of everything there is.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the request table.
    pub table_bytes: usize,
    /// Bytes of landings of each path.
    pub landing_bytes: usize,
    /// Bytes of sums.
    pub sum_bytes: usize,
    /// Processing units.
    pub units: usize,
    /// Packets that wait for their handlers.
    pub packets: usize,
}

/// Why a context was not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotInstalled {
    /// Messages that it wants are another's.
    Taken,
    /// Its memory is not there.
    Memory,
}

/// A message that is whole, on its way through the store. Its descriptor is in use until
/// [`Nic::release`].
#[derive(Debug)]
pub struct Whole {
    /// Its descriptor,
    pub slot: u32,
    /// in this generation.
    pub generation: u8,
    /// Who sent it.
    pub peer: Peer,
    /// Its packets carried MACs.
    pub is_sealed: bool,
    /// What came.
    pub landing: Landing,
}

/// What a handler asked for, and whether it accepts the message.
#[derive(Debug)]
pub struct Run {
    /// Of a header handler.
    pub accepts: bool,
    /// To be carried out, in this order, by [`Nic::perform`].
    pub effects: Vec<Effect>,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that began.
    pub messages: u64,
    /// Packets that were handled.
    pub packets: u64,
    /// Packets of messages that nobody accepted.
    pub dropped: u64,
    /// Messages that no context wants.
    pub strange: u64,
    /// Requests refused.
    pub refused: u64,
    /// Those of them for which there was no descriptor or no room.
    pub busy: u64,
    /// Requests that never became whole.
    pub cleaned: u64,
    /// Requests steered to the CPU side.
    pub steered: u64,
    /// Notices for which there was no room.
    pub notices_lost: u64,
    /// Requests whose time with a descriptor was taken, and nanoseconds of all of these.
    pub timed: (u64, u64),
}

/// Reads a clock.
pub(crate) type Clock = Box<dyn Fn() -> Time + Send + Sync>;

struct Context {
    memory: usize,
    policy: Box<dyn Policy>,
}

/// Whose a descriptor is.
#[derive(Clone, Copy, Debug)]
struct Owner {
    peer: Peer,
    /// Who is accounted for it: another, if the peer passes it on.
    payer: Peer,
    psn: u32,
    context: Matching,
    bytes: u32,
    /// Of a message in pieces: bytes that came.
    came: u32,
    is_sealed: bool,
    path: Path,
    /// Bytes of its landing.
    taken: usize,
    /// When it began, if that is timed.
    began: Option<Time>,
}

/// The runtime.
pub struct Nic {
    contexts: BTreeMap<Matching, Context>,
    state_left: usize,
    table: Table,
    sched: Sched,
    ledger: HandlerLedger,
    counts: Counts,
    /// The descriptor of each live message, by its peer and the number of its first packet.
    live: BTreeMap<(Peer, u32), u32>,
    owners: BTreeMap<u32, Owner>,
    landings: BTreeMap<u32, Landing>,
    accounts: Accounts,
    passing: Passing,
    sums: Sums,
    sealed: BTreeMap<Peer, bool>,
    whole: VecDeque<Whole>,
    answers: VecDeque<(Peer, Vec<u8>)>,
    notices: VecDeque<Notice>,
    /// Room for what a handler asks for, used by all in turn: no packet allocates.
    effects: Vec<Effect>,
    clock: Option<Clock>,
}

impl Nic {
    /// One without contexts.
    #[must_use]
    pub fn new(limits: Limits) -> Nic {
        Nic {
            contexts: BTreeMap::new(),
            state_left: STATE_BYTES,
            table: Table::new(limits.table_bytes),
            sched: Sched::new(limits.units, limits.packets),
            ledger: HandlerLedger::default(),
            counts: Counts::default(),
            live: BTreeMap::new(),
            owners: BTreeMap::new(),
            landings: BTreeMap::new(),
            accounts: Accounts::new(limits.landing_bytes),
            passing: Passing::default(),
            sums: Sums::new(limits.sum_bytes),
            sealed: BTreeMap::new(),
            whole: VecDeque::new(),
            answers: VecDeque::new(),
            notices: VecDeque::new(),
            effects: Vec::new(),
            clock: None,
        }
    }

    /// Handlers and requests are timed by this clock from now on: one in many.
    pub(crate) fn set_clock(&mut self, clock: Clock) {
        self.clock = Some(clock);
    }

    /// What the clock says, if this is one of those that are timed.
    fn time(&self, count: u64) -> Option<Time> {
        let clock = self.clock.as_ref().filter(|_| count.is_multiple_of(TIMED))?;
        Some(clock())
    }

    fn since(&self, from: Time) -> u64 {
        let took = self.clock.as_ref().map_or_else(Default::default, |clock| clock().since(from));
        u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Installs a context that keeps `memory` bytes.
    ///
    /// # Errors
    /// [`NotInstalled`].
    pub fn install(
        &mut self,
        matching: Matching,
        memory: usize,
        policy: Box<dyn Policy>,
    ) -> Result<(), NotInstalled> {
        if self.contexts.contains_key(&matching) {
            return Err(NotInstalled::Taken);
        }
        let left = self.state_left.checked_sub(memory).ok_or(NotInstalled::Memory)?;
        self.state_left = left;
        self.contexts.insert(matching, Context { memory, policy });
        Ok(())
    }

    /// Takes a context away. What is under way of it is handled no more, and cleaned up in time.
    pub fn uninstall(&mut self, matching: &Matching) {
        let gone = self.contexts.remove(matching);
        self.state_left += gone.map_or(0, |context| context.memory);
    }

    /// How many contexts there are.
    #[must_use]
    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// A conversation with a peer began.
    pub fn opened(&mut self, from: Peer, is_sealed: bool) {
        self.sealed.insert(from, is_sealed);
    }

    /// Whether the packets of that peer carry MACs.
    #[must_use]
    pub fn is_sealed(&self, from: Peer) -> bool {
        self.sealed.get(&from).copied().unwrap_or(false)
    }

    /// Takes a packet, whose bytes will be found by `token`.
    pub fn arrive(&mut self, from: Peer, given: &Given<'_>, token: u32) {
        let packet = PacketAt { offset: given.offset, token, completes: given.completes };
        if let Some(header) = given.header {
            let message = given.message.raw();
            self.begin(from, message, header.bytes, packet, given.payload);
            return;
        }
        self.further((from, given.message.raw()), packet);
    }

    fn further(&mut self, key: (Peer, u32), packet: PacketAt) {
        let Some(slot) = self.live.get(&key).copied() else {
            self.counts.dropped += 1;
            return;
        };
        if packet.completes {
            self.live.remove(&key);
        }
        if self.sched.arrive(slot, packet).is_err() {
            // It cannot become whole any more.
            self.live.remove(&key);
            self.counts.dropped += 1;
            self.sched.cleanup(slot);
        }
    }

    fn begin(&mut self, from: Peer, message: u32, bytes: u32, packet: PacketAt, payload: &[u8]) {
        // One of the same number can only be left over; its rest will never come.
        self.cut(from, message);
        let all = Matching::of(from, payload).into_iter().flatten();
        let Some(context) = all.into_iter().find(|one| self.contexts.contains_key(one)) else {
            self.counts.strange += 1;
            return;
        };
        let began = self.time(self.counts.messages);
        self.counts.messages += 1;
        let slot = self.table.take().filter(|slot| {
            let is_room = self.sched.begin(*slot, from, packet).is_ok();
            if !is_room {
                self.table.give_back(*slot);
            }
            is_room
        });
        let Some(slot) = slot else {
            self.counts.refused += 1;
            self.counts.busy += 1;
            let context = self.contexts.get_mut(&context);
            let answer = context.and_then(|context| context.policy.busy(from, payload));
            self.answers.extend(answer.map(|answer| (from, answer.emit().to_vec())));
            self.tell(Notice::Refused { peer: from, object: 0, reason: Reason::Busy });
            return;
        };
        let is_sealed = self.is_sealed(from);
        let (psn, path) = (message, Path::Nic);
        let (came, taken) = (0, 0);
        let (peer, payer) = (from, from);
        let owner = Owner { peer, payer, psn, context, bytes, came, is_sealed, path, taken, began };
        self.owners.insert(slot, owner);
        if !packet.completes {
            self.live.insert((from, psn), slot);
        }
        self.accounts.begin(from);
    }

    /// The rest of a message will not come.
    pub fn cleanup(&mut self, from: Peer, message: Psn) {
        self.cut(from, message.raw());
    }

    /// The same, by its number.
    pub(crate) fn cut(&mut self, from: Peer, message: u32) {
        if let Some(slot) = self.live.remove(&(from, message)) {
            self.sched.cleanup(slot);
        }
    }

    /// The conversation with a peer is over: so are its messages that are not whole.
    pub fn ended(&mut self, from: Peer) {
        self.sealed.remove(&from);
        self.contexts.values_mut().for_each(|context| context.policy.ended(from));
        let of_it = self.live.range((from, 0)..=(from, u32::MAX));
        let all: Vec<((Peer, u32), u32)> = of_it.map(|(key, slot)| (*key, *slot)).collect();
        for (key, slot) in all {
            self.live.remove(&key);
            self.sched.cleanup(slot);
        }
    }

    /// What the processing unit `unit` does next.
    pub fn next(&mut self, unit: usize) -> Option<Task> {
        self.sched.next(unit)
    }

    /// Runs a handler on the bytes of its packet.
    pub fn run(&mut self, task: &Task, payload: &[u8]) -> Run {
        let nothing = Run { accepts: false, effects: Vec::new() };
        let Some(owner) = self.owners.get(&task.slot).copied() else { return nothing };
        let load = self.load(owner.peer);
        let header = task.handler == Handler::Header;
        let Some(descriptor) = self.table.get_mut(task.slot) else { return nothing };
        let Some(context) = self.contexts.get_mut(&owner.context) else { return nothing };
        let mut hand = Hand {
            descriptor,
            peer: owner.peer,
            is_sealed: owner.is_sealed,
            bytes: owner.bytes,
            load,
            payer: owner.payer,
            accounts: &self.accounts,
            passing: &self.passing,
            sums: &self.sums,
            may_open: header,
            effects: std::mem::take(&mut self.effects),
            cost: Cost { runs: 1, ..Cost::default() },
        };
        let accepts = match task.handler {
            Handler::Header => context.policy.header(&mut hand, payload),
            Handler::Payload => {
                hand.cost.bytes = payload.len() as u64;
                context.policy.payload(&mut hand, &task.packet, payload);
                true
            }
            Handler::Completion => {
                context.policy.completion(&mut hand);
                true
            }
            Handler::Cleanup => {
                context.policy.cleanup(&mut hand);
                true
            }
        };
        let Hand { effects, cost, payer, .. } = hand;
        if header && payer != owner.peer {
            self.accounts.passes(owner.peer, payer);
            self.owners.entry(task.slot).and_modify(|owner| owner.payer = payer);
        }
        self.ledger.add(task.handler, &cost);
        if task.handler == Handler::Payload {
            self.counts.packets += 1;
        }
        for effect in &effects {
            self.reserve(task.slot, effect);
        }
        Run { accepts, effects }
    }

    /// The handler on `unit` has returned.
    pub fn returned(&mut self, unit: usize) {
        self.sched.returned(unit);
    }

    /// Carries out one thing that a handler asked for, with the bytes of its packet.
    pub fn perform(&mut self, task: &Task, effect: Effect, payload: &[u8]) {
        let Some(owner) = self.owners.get(&task.slot).copied() else { return };
        match effect {
            Effect::Open(landing) => {
                self.landings.insert(task.slot, landing);
            }
            Effect::Put(packet) => self.put(task, &packet, payload),
            Effect::Begin { heads, begins, pieces } => {
                let data = payload.get(begins as usize..).unwrap_or_default();
                let count = self.passing.begin(task.slot, &heads, data, pieces);
                self.has_passed(task.handler, count, payload.len());
            }
            Effect::Pass(packet) => {
                let count = self.passing.pass(task.slot, packet.offset, payload, packet.completes);
                self.has_passed(task.handler, count, payload.len());
            }
            Effect::Forward => {
                let Some(landing) = self.landings.get(&task.slot) else { return };
                let Some(heads) = landing.heads.as_deref() else { return };
                let count = self.passing.begin(task.slot, heads, &landing.data, 1);
                let len = landing.data.len();
                self.has_passed(task.handler, count, len);
            }
            // It was taken in when the handler returned: who comes next finds its sum.
            Effect::Join(_) => {}
            Effect::Add(packet) => {
                let added = self.sums.add(task.slot, packet.offset, payload);
                self.has_landed(task, added.unwrap_or(0));
            }
            Effect::Answer(answer) => {
                self.answers.push_back((owner.peer, answer.emit().to_vec()));
            }
            Effect::Serve => {
                if let Some(descriptor) = self.table.get_mut(task.slot) {
                    descriptor.state = state::SERVED;
                }
            }
            Effect::Notice(notice) => self.tell(notice),
        }
    }

    /// A handler is over, with all that it asked for.
    pub fn done(&mut self, task: &Task, accepts: bool) {
        self.sched.done(task, accepts);
        match task.handler {
            Handler::Header if !accepts => {
                if let Some(owner) = self.owners.get(&task.slot) {
                    self.live.remove(&(owner.peer, owner.psn));
                }
                self.free(task.slot);
            }
            Handler::Cleanup => {
                self.counts.cleaned += 1;
                self.free(task.slot);
            }
            Handler::Completion => self.hand_on(task.slot),
            _ => {}
        }
    }

    /// Runs everything that is ready, on the bytes of the packet that just arrived.
    pub fn inline(&mut self, payload: &[u8]) {
        while let Some(task) = self.sched.next(0) {
            let from = self.time(self.ledger.of(task.handler).runs);
            let Run { accepts, mut effects } = self.run(&task, payload);
            for effect in effects.drain(..) {
                self.perform(&task, effect, payload);
            }
            self.effects = effects;
            self.sched.returned(0);
            self.done(&task, accepts);
            if let Some(from) = from {
                self.ledger.charge(task.handler, self.since(from));
            }
        }
    }

    /// A message that is whole, for the store.
    pub fn take_whole(&mut self) -> Option<Whole> {
        self.whole.pop_front()
    }

    /// Whether there is one.
    #[must_use]
    pub fn has_whole(&self) -> bool {
        !self.whole.is_empty()
    }

    /// A message has been through the store: its answer, and its descriptor is free.
    pub fn release(&mut self, slot: u32, generation: u8, answer: Vec<u8>) {
        if !self.is_served((slot, generation)) {
            return;
        }
        match self.passing.own(slot, answer) {
            Some(answer) => self.answer(slot, answer),
            None => self.give_back(slot),
        }
    }

    /// Whether a message is whole and not answered, in that generation of its descriptor.
    fn is_served(&self, (slot, generation): (u32, u8)) -> bool {
        let same = |one: &Descriptor| one.generation == generation && one.state == state::SERVED;
        self.table.get(slot).is_some_and(same)
    }

    /// Answers a message; if a sum was stored with it, all whose sum that is.
    fn answer(&mut self, slot: u32, answer: Vec<u8>) {
        let (sum, said) = (self.sums.end(slot), Answer::parse(&answer).ok());
        if sum.is_empty() {
            self.answer_one(slot, answer);
        }
        for (slot, own) in sum {
            let answer = said.map_or(own, |said| Answer { request: own.request, ..said });
            self.answer_one(slot, answer.emit().to_vec());
        }
    }

    /// Answers a message, of which more may come: that is dropped.
    fn answer_one(&mut self, slot: u32, answer: Vec<u8>) {
        let Some(owner) = self.owners.get(&slot).copied() else { return self.free(slot) };
        self.answers.push_back((owner.peer, answer));
        if self.table.get(slot).is_some_and(|one| one.state == state::SERVED) {
            return self.free(slot);
        }
        self.live.remove(&(owner.peer, owner.psn));
        self.sched.cleanup(slot);
    }

    /// Answers to send, in their order.
    pub fn take_answers(&mut self) -> Vec<(Peer, Vec<u8>)> {
        self.answers.drain(..).collect()
    }

    /// Whether one more message may begin: its answer will have a place.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.answers.len() <= self.table.most() as usize
    }

    /// Notices, in their order.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        self.notices.drain(..).collect()
    }

    /// What handlers cost.
    #[must_use]
    pub fn ledger(&self) -> &HandlerLedger {
        &self.ledger
    }

    /// What happened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The request table.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The scheduler.
    #[must_use]
    pub fn sched(&self) -> &Sched {
        &self.sched
    }

    /// Bytes of landings in use: of handlers, and of the CPU side.
    #[must_use]
    pub fn landed(&self) -> (usize, usize) {
        let all = self.accounts.all();
        (all.nic, all.cpu)
    }

    /// What is in use, as a header handler of `peer` sees it.
    fn load(&self, peer: Peer) -> Load {
        Load {
            requests: (self.table.used(), self.table.most()),
            of_peer: self.accounts.of(peer).requests,
            of_payer: 0,
            nic_room: self.accounts.room(peer, Path::Nic),
            cpu_room: self.accounts.room(peer, Path::Cpu),
        }
    }

    /// Accounts for what a effect takes, before it is carried out.
    fn reserve(&mut self, slot: u32, effect: &Effect) {
        let Some(owner) = self.owners.get_mut(&slot) else { return };
        match effect {
            Effect::Open(landing) => {
                let taken = landing.bytes.saturating_add(landing.later);
                let taken = if landing.is_paid { 0 } else { taken };
                owner.taken += taken;
                owner.path = landing.path;
                self.counts.steered += u64::from(landing.path == Path::Cpu);
                self.accounts.take(owner.payer, landing.path, taken);
            }
            Effect::Join(part) => self.sums.join(slot, part),
            Effect::Notice(Notice::Refused { reason, .. }) => {
                self.counts.refused += 1;
                self.counts.busy += u64::from(*reason == Reason::Busy);
            }
            _ => {}
        }
    }

    /// Hands a message to the store whose completion handler is over, if that said so.
    fn hand_on(&mut self, slot: u32) {
        let served = |one: &&Descriptor| one.state == state::SERVED;
        let generation = self.table.get(slot).filter(served).map(|one| one.generation);
        let owner = self.owners.get(&slot).copied();
        let (Some(generation), Some(owner)) = (generation, owner) else { return self.free(slot) };
        let landing = self.landings.remove(&slot).or_else(|| self.sums.whole(slot));
        let Some(landing) = landing else {
            // It waits for the others of its sum; else there is nothing to store.
            if !self.sums.knows(slot) {
                self.free(slot);
            }
            return;
        };
        let (peer, is_sealed) = (owner.peer, owner.is_sealed);
        self.whole.push_back(Whole { slot, generation, peer, is_sealed, landing });
    }

    /// The DMA of a packet's bytes to the message's place.
    fn put(&mut self, task: &Task, packet: &PacketAt, payload: &[u8]) {
        let Some(landing) = self.landings.get_mut(&task.slot) else { return };
        let skip = landing.begins.saturating_sub(packet.offset) as usize;
        let at = packet.offset.saturating_sub(landing.begins) as usize;
        let Some(bytes) = payload.get(skip..).filter(|bytes| !bytes.is_empty()) else { return };
        if at.saturating_add(bytes.len()) > landing.bytes {
            return;
        }
        place(&mut landing.data, at, bytes);
        let len = bytes.len();
        self.has_landed(task, len);
    }

    /// So many bytes of a message have come to where they go.
    fn has_landed(&mut self, task: &Task, len: usize) {
        if len == 0 {
            return;
        }
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if let Some(descriptor) = self.table.get_mut(task.slot) {
            descriptor.got = descriptor.got.saturating_add(len);
        }
        let dma_bytes = u64::from(len);
        self.ledger.add(task.handler, &Cost { dma: 1, dma_bytes, ..Cost::default() });
    }

    fn tell(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        } else {
            self.counts.notices_lost += 1;
        }
    }

    /// Gives back everything a message has.
    fn free(&mut self, slot: u32) {
        self.passing.end(slot);
        self.landings.remove(&slot);
        self.table.give_back(slot);
        if let Some(owner) = self.owners.remove(&slot) {
            if let Some(began) = owner.began {
                let (count, ns) = self.counts.timed;
                self.counts.timed = (count + 1, ns.saturating_add(self.since(began)));
            }
            self.accounts.end(owner.peer, owner.payer, owner.path, owner.taken);
        }
        let lost = self.sums.leave(slot);
        self.lose(lost);
    }
}
