//! Authentication of requests as handlers (NetDFS IV, listing 1; checklist rows N4, N5, N7, N18).
//!
//! The header handler parses the heads, decides by whom the message is handled, and holds them
//! against the rules. The payload handler copies data to where the store takes it from. The
//! completion handler hands the request on; its answer comes from the store, so what is
//! acknowledged was written. A message that is steered goes to the CPU side as it came, and is
//! held against the same rules there, before anything else is done with it. Parts of a parity come
//! together with others', so they are held against the rules here on either path.

use std::sync::{Arc, Mutex, PoisonError};

use outboard_wire::shared::{
    Answer, Heads, Peer, Reason, Request, Rights, Strategy, Target, WriteHead,
};

use super::{Baseline, Rules, Steer};
use crate::nic::context::{Hand, Notice, Path, Policy};
use crate::nic::sched::PacketAt;
use crate::nic::sums::Part;
use crate::nic::table::state;

/// Instructions of parsing heads and looking at their fields.
const INSTR_PARSE: u64 = 220;
/// Instructions of a MAC of 64 bytes.
const INSTR_MAC: u64 = 1200;
/// Instructions of the checks, and of an answer.
const INSTR_CHECK: u64 = 90;
/// Instructions of starting a copy.
const INSTR_PUT: u64 = 40;
/// Instructions of sending a packet on, once.
const INSTR_PASS: u64 = 50;
/// Instructions of multiplying a byte for `m` parities by a table, as the paper counts them.
const fn instr_code(m: u64) -> u64 {
    2 * m + 1
}
/// Instructions of adding a word of eight bytes to a sum.
const INSTR_ADD: u64 = 3;
/// Instructions of ending a request.
const INSTR_END: u64 = 30;

/// The policy.
pub(crate) struct Auth {
    pub(crate) rules: Arc<Mutex<Rules>>,
    pub(crate) steer: Steer,
    pub(crate) baseline: Option<Baseline>,
    /// What else a capability allows is refused.
    pub(crate) most: Rights,
}

impl Auth {
    /// Bytes that a context of one client takes.
    pub(crate) const MEMORY: usize = 128;
}

impl Auth {
    pub(crate) fn with<R>(&self, f: impl FnOnce(&Rules) -> R) -> R {
        f(&self.rules.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// By whom a request is handled whose data and answer take `bytes`.
    fn path(&self, hand: &Hand<'_>, bytes: usize) -> Path {
        let (used, most) = hand.load.requests;
        let is_short = bytes > hand.load.nic_room || used > most - most / 4;
        match (self.steer, self.baseline) {
            (Steer::Always, _) | (_, Some(Baseline::Rpc)) => Path::Cpu,
            (Steer::Overload, _) if is_short => Path::Cpu,
            _ => Path::Nic,
        }
    }

    /// Accepts a request whose heads have `begins` bytes, and whose first packet `first`; or says
    /// why not.
    fn accept(
        &self,
        hand: &mut Hand<'_>,
        heads: &Heads,
        (begins, first): (u32, usize),
    ) -> Result<(), Reason> {
        let later = match &heads.target {
            Target::Read(read) => read.bytes as usize,
            // What waits to go to successors is counted, too.
            Target::Write(write) => {
                write.successors().iter().flatten().count() * hand.bytes as usize
            }
            Target::Hole(_) => 0,
        };
        if let Peer::Node(_) = hand.peer {
            hand.bill(Peer::Client(heads.capability.client));
        }
        if !self.most.allow(heads.rights_needed()) {
            return Err(Reason::Rights);
        }
        if let Target::Write(write) = &heads.target
            && write.is_part()
        {
            return self.accept_part(hand, heads, begins);
        }
        let data = heads.head.data as usize;
        let path = self.path(hand, data + later);
        if path == Path::Nic && self.baseline != Some(Baseline::RpcRdma) {
            self.check(hand, heads)?;
        }
        self.has_credit(hand)?;
        let has_room = match path {
            Path::Nic => {
                let is_open = hand.open(path, Some(Box::new(*heads)), begins, data, later);
                is_open && self.begin(hand, heads, (begins, first))
            }
            Path::Cpu => hand.open(path, None, 0, hand.bytes as usize, later),
        };
        if has_room { Ok(()) } else { Err(Reason::Busy) }
    }

    /// Begins to pass a request on, or says that it will be; whether there is room.
    fn begin(&self, hand: &mut Hand<'_>, heads: &Heads, (begins, first): (u32, usize)) -> bool {
        if self.baseline.is_some_and(Baseline::waits) {
            return hand.goes_on(heads, 1);
        }
        let multiplies = |write: &WriteHead| write.strategy == Strategy::Parity;
        if matches!(&heads.target, Target::Write(write) if multiplies(write)) {
            let bytes = first.saturating_sub(begins as usize) as u64;
            hand.instr(instr_code(heads.capability.m.into()) * bytes);
        }
        hand.begin(heads, begins, first)
    }

    /// Whether it is allowed.
    fn check(&self, hand: &mut Hand<'_>, heads: &Heads) -> Result<(), Reason> {
        if self.baseline.is_some_and(Baseline::believes) {
            return Ok(());
        }
        hand.instr(INSTR_MAC + INSTR_CHECK);
        self.with(|rules| rules.check(hand.peer, hand.is_sealed, heads))
    }

    /// Of what a node has under way each of its clients leaves as many for others as it has.
    fn has_credit(&self, hand: &Hand<'_>) -> Result<(), Reason> {
        let left = self.with(|rules| rules.credit_of(hand.peer)).checked_sub(hand.load.of_peer);
        if left.is_none_or(|left| hand.load.of_payer > left) {
            return Err(Reason::Busy);
        }
        Ok(())
    }

    /// Accepts a part of a parity. The first of a write decides for all of that write who adds
    /// them; those that are steered land as they come.
    fn accept_part(&self, hand: &mut Hand<'_>, heads: &Heads, begins: u32) -> Result<(), Reason> {
        self.check(hand, heads)?;
        self.has_credit(hand)?;
        let has_room = hand.has_sum_room(heads.capability.client, heads.head.data as usize);
        let (used, most) = hand.load.requests;
        let is_short = !has_room || used > most - most / 4;
        let path = match (hand.sum_path(heads)?, self.steer) {
            (Some(path), _) => path,
            (None, Steer::Always) => Path::Cpu,
            (None, Steer::Overload) if is_short => Path::Cpu,
            (None, _) if has_room => Path::Nic,
            (None, _) => return Err(Reason::Busy),
        };
        if path == Path::Cpu && !hand.open_part(heads) {
            return Err(Reason::Busy);
        }
        let lost = self.with(|rules| rules.answer(heads, Err(Reason::Unreached)));
        hand.join(Part { heads: Box::new(*heads), begins, path, lost });
        Ok(())
    }

    fn describe(hand: &mut Hand<'_>, heads: &Heads, is_steered: bool) {
        let range = heads.range();
        let (head, capability) = (&heads.head, &heads.capability);
        let descriptor = &mut *hand.descriptor;
        descriptor.request = head.request;
        descriptor.client = capability.client;
        descriptor.fence = capability.fence;
        descriptor.epoch = head.epoch;
        descriptor.object = capability.object;
        descriptor.offset = range.start;
        descriptor.len = if is_steered { hand.bytes } else { head.data };
        descriptor.strategy = capability.strategy as u8;
        descriptor.state = if is_steered { state::STEERED } else { state::ACCEPTED };
        if let Target::Write(write) = &heads.target {
            if write.is_part() && !is_steered {
                descriptor.state = state::SUMMED;
            }
            descriptor.sequence = write.sequence;
            descriptor.rank = write.rank;
            descriptor.unit = write.unit;
        }
    }

    fn refuse(hand: &mut Hand<'_>, object: u64, reason: Reason, answer: Option<Answer>) -> bool {
        if let Some(answer) = answer {
            hand.answer(answer);
        }
        hand.tell(Notice::Refused { peer: hand.peer, object, reason });
        false
    }

    /// The heads of a request, and their bytes, from its first packet; or refuses.
    pub(crate) fn read(&self, hand: &mut Hand<'_>, payload: &[u8]) -> Option<(Heads, u32)> {
        hand.instr(INSTR_PARSE);
        let parsed = Request::parse(payload).ok().and_then(|request| {
            let begins = u32::try_from(payload.len() - request.data.len()).ok()?;
            // The message is its heads and its data, and nothing behind them.
            let is_whole = begins.checked_add(request.heads.head.data) == Some(hand.bytes);
            is_whole.then_some((request.heads, begins))
        });
        if parsed.is_none() {
            let answer = self.with(|rules| rules.answer_unread(payload, Reason::Invalid));
            Auth::refuse(hand, 0, Reason::Invalid, answer);
        }
        parsed
    }

    /// Accepts a request, or refuses it.
    pub(crate) fn decide(&self, hand: &mut Hand<'_>, heads: &Heads, first: (u32, usize)) -> bool {
        if let Err(reason) = self.accept(hand, heads, first) {
            return self.refuses(hand, heads, reason);
        }
        let is_steered = hand.is_opened(Path::Cpu);
        Auth::describe(hand, heads, is_steered);
        let (offset, bytes) = (heads.range().start, heads.head.data);
        let object = heads.capability.object;
        hand.tell(Notice::Accepted { peer: hand.peer, object, offset, bytes });
        true
    }

    /// Refuses a request that could be read.
    pub(crate) fn refuses(&self, hand: &mut Hand<'_>, heads: &Heads, reason: Reason) -> bool {
        let answer = self.with(|rules| rules.answer(heads, Err(reason)));
        Auth::refuse(hand, heads.capability.object, reason, Some(answer))
    }
}

impl Policy for Auth {
    fn header(&mut self, hand: &mut Hand<'_>, payload: &[u8]) -> bool {
        let read = self.read(hand, payload);
        read.is_some_and(|(heads, begins)| self.decide(hand, &heads, (begins, payload.len())))
    }

    fn payload(&mut self, hand: &mut Hand<'_>, packet: &PacketAt, payload: &[u8]) {
        let bytes = payload.len() as u64;
        if matches!(hand.descriptor.state, state::ACCEPTED | state::STEERED) {
            hand.instr(INSTR_PUT);
            hand.put(packet);
        }
        if hand.descriptor.state == state::SUMMED {
            hand.instr(INSTR_ADD * bytes.div_ceil(8));
            hand.add(packet);
        }
        if hand.descriptor.state == state::ACCEPTED && !self.baseline.is_some_and(Baseline::waits) {
            let count = hand.pass(packet);
            hand.instr(INSTR_PASS * count);
            if count > 0 && hand.descriptor.strategy == Strategy::Parity as u8 {
                hand.instr(instr_code(count) * bytes);
            }
        }
    }

    fn completion(&mut self, hand: &mut Hand<'_>) {
        hand.instr(INSTR_END);
        if self.baseline.is_some_and(Baseline::waits) {
            let count = hand.forward();
            hand.instr(INSTR_PASS * count);
            if count > 0 && hand.descriptor.strategy == Strategy::Parity as u8 {
                hand.instr(instr_code(count) * u64::from(hand.descriptor.len));
            }
        }
        hand.serve();
    }

    fn cleanup(&mut self, hand: &mut Hand<'_>) {
        hand.instr(INSTR_END);
        let (object, offset) = (hand.descriptor.object, hand.descriptor.offset);
        let (bytes, got) = (hand.descriptor.len, hand.descriptor.got);
        hand.tell(Notice::Cleaned { peer: hand.peer, object, offset, bytes, got });
    }

    fn busy(&mut self, _peer: Peer, payload: &[u8]) -> Option<Answer> {
        self.with(|rules| rules.answer_unread(payload, Reason::Busy))
    }
}
