//! Requests that are passed on to successors, and what became of them there (NetDFS V and VI).
//!
//! Each successor of a request is a *branch*. Pieces wait here until whoever sends takes them; a
//! request is answered once its own copy is stored and all its branches have ended. What always
//! holds: a branch gets nothing before its request was accepted here, every byte at most once, and
//! after its end nothing; a request that ends without an answer has its branches cut.
//!
//! Copies go on as they came. What is passed on of a data unit is multiplied for each parity, and
//! its last piece is kept until the data is known to be what its checksum is of: a parity, which
//! cannot tell, takes only what is whole.

use std::collections::{BTreeMap, VecDeque};

use outboard_codec::erasure::{Code, Field};
use outboard_wire::shared::{Answer, Coordinate, HEADS_MAX, Heads, PARITY_MAX, Peer, Reason};
use outboard_wire::shared::{SUCCESSORS_MAX, Strategy, Target, WriteHead};

use super::Nic;
use super::ledger::Cost;
use super::sched::{Handler, PacketAt};

/// Pieces that may be under way to one successor: with the answers to what it asks, less than a
/// conversation lets wait.
const PIECES_MAX: u32 = 2048;

/// A request on its way to one successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Branch(u64);

/// What goes to successors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A request, with what there is of its data.
    Begin {
        /// Which.
        branch: Branch,
        /// To which node.
        to: u16,
        /// Its heads, as that is to read them.
        heads: Box<Heads>,
        /// These, and its first bytes.
        message: Vec<u8>,
        /// Nothing of it is missing then.
        is_last: bool,
    },
    /// More of it.
    Piece {
        /// Of which.
        branch: Branch,
        /// To which node.
        to: u16,
        /// Where in the request.
        offset: u32,
        /// What.
        bytes: Vec<u8>,
        /// Nothing of it is missing then.
        is_last: bool,
    },
    /// The rest will not come.
    Cut {
        /// Of which.
        branch: Branch,
    },
}

/// Whom a request goes on to.
pub(crate) fn next_of(heads: &Heads) -> Successors {
    match &heads.target {
        Target::Write(write) => write.successors(),
        Target::Read(_) | Target::Hole(_) => [None; SUCCESSORS_MAX],
    }
}

/// To whom a request is passed on.
pub(crate) type Successors = [Option<(u8, Coordinate)>; SUCCESSORS_MAX];

struct Child {
    branch: Branch,
    rank: u8,
    to: u16,
    is_open: bool,
    /// Pieces that it is counted with, until all have gone.
    pieces: u32,
}

/// What a data unit is multiplied by for each parity, and how.
#[derive(Clone, Copy)]
struct Coder {
    field: Field,
    coefficients: [u8; PARITY_MAX],
}

impl Coder {
    /// Of a write that is passed on to parities.
    fn of(write: &WriteHead) -> Option<Coder> {
        if write.strategy != Strategy::Parity || write.is_part() {
            return None;
        }
        let (field, k) = (Field::fastest(), usize::from(write.k));
        let m = write.coordinates.as_slice().len().saturating_sub(k);
        let code = Code::new(field, k, m).ok()?;
        let mut coefficients = [0; PARITY_MAX];
        let of_unit = code.coefficients(usize::from(write.unit)).ok()?;
        coefficients.iter_mut().zip(of_unit).for_each(|(to, from)| *to = *from);
        Some(Coder { field, coefficients })
    }

    /// The parts of some bytes, one for each of `count` parities.
    fn parts(&self, bytes: &[u8], count: usize) -> Vec<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = (0..count).map(|_| vec![0; bytes.len()]).collect();
        let mut outs = parts.iter_mut().map(Vec::as_mut_slice);
        let mut places: [&mut [u8]; PARITY_MAX] =
            std::array::from_fn(|_| outs.next().unwrap_or_default());
        let coefficients = self.coefficients.get(..count).unwrap_or_default();
        let places = places.get_mut(..count).unwrap_or_default();
        // There are as many as parities, and of one length.
        let _ = self.field.multiply(coefficients, bytes, places);
        parts
    }
}

/// What each of `count` successors gets of some bytes.
fn shares(coder: Option<&Coder>, bytes: &[u8], count: usize) -> Vec<Vec<u8>> {
    match coder {
        Some(coder) => coder.parts(bytes, count),
        None => vec![bytes.to_vec(); count],
    }
}

struct Family {
    /// Whose it is.
    client: u64,
    strategy: Strategy,
    k: u8,
    epoch: u32,
    coder: Option<Coder>,
    /// The last piece of each child, if there is a coder, until the data is known to be right.
    kept: Vec<Outgoing>,
    children: Vec<Child>,
    /// The lowest rank that failed, and why.
    failed: Option<(u8, Reason)>,
    /// The member's own answer, which waits for those of its children.
    own: Option<Vec<u8>>,
}

/// All of them.
#[derive(Default)]
pub(super) struct Passing {
    next: u64,
    families: BTreeMap<u32, Family>,
    branches: BTreeMap<Branch, u32>,
    /// Pieces, by successor and whose they are.
    under_way: BTreeMap<(u16, u64), u32>,
    outgoing: VecDeque<Outgoing>,
}

impl Passing {
    /// Whether all successors of a request may be sent so many pieces more. Its client leaves as
    /// many for others as it has itself; what has nothing under way may be of any length.
    pub(super) fn has_room(&self, heads: &Heads, pieces: u32) -> bool {
        let client = heads.capability.client;
        next_of(heads).iter().flatten().all(|(_, to)| {
            let of_all = self.under_way.range((to.node, 0)..=(to.node, u64::MAX));
            let used = of_all.fold(0_u32, |sum, (_, count)| sum.saturating_add(*count));
            let own = self.under_way.get(&(to.node, client)).copied().unwrap_or(0);
            used == 0 || used.saturating_add(own).saturating_add(pieces) <= PIECES_MAX
        })
    }

    /// A request that was accepted goes on, with its first bytes; how many branches it has.
    pub(super) fn begin(&mut self, slot: u32, heads: &Heads, data: &[u8], pieces: u32) -> u64 {
        let Target::Write(write) = &heads.target else { return 0 };
        let next: Vec<(u8, Coordinate)> = write.successors().into_iter().flatten().collect();
        if next.is_empty() {
            return 0;
        }
        let (coder, client) = (Coder::of(write), heads.capability.client);
        let parts = coder.as_ref().map(|coder| coder.parts(data, next.len())).unwrap_or_default();
        let is_last = data.len() >= heads.head.data as usize;
        let (mut children, mut begun) = (Vec::new(), Vec::new());
        for (place, (rank, at)) in next.into_iter().enumerate() {
            let branch = Branch(self.next);
            self.next += 1;
            let mut heads = *heads;
            heads.head.hop = heads.head.hop.saturating_add(1);
            heads.target = Target::Write(write.to(rank, &at));
            let mut message = Vec::with_capacity(HEADS_MAX + data.len());
            // Who sends refuses what has none.
            let _ = heads.emit(&mut message);
            message.extend_from_slice(parts.get(place).map_or(data, Vec::as_slice));
            let (heads, to) = (Box::new(heads), at.node);
            begun.push(Outgoing::Begin { branch, to, heads, message, is_last });
            *self.under_way.entry((to, client)).or_default() += pieces;
            self.branches.insert(branch, slot);
            children.push(Child { branch, rank, to, is_open: true, pieces });
        }
        let count = children.len() as u64;
        let kept = self.send_or_keep(begun, coder.is_some() && is_last);
        let (strategy, k, epoch) = (write.strategy, write.k, heads.head.epoch);
        let (failed, own) = (None, None);
        let family = Family { client, strategy, k, epoch, coder, kept, children, failed, own };
        self.families.insert(slot, family);
        count
    }

    /// More of it came, or the last of it; to how many branches it goes.
    pub(super) fn pass(&mut self, slot: u32, offset: u32, bytes: &[u8], is_last: bool) -> u64 {
        let Some(family) = self.families.get(&slot) else { return 0 };
        if family.children.iter().all(|child| !child.is_open) {
            return 0;
        }
        let shares = shares(family.coder.as_ref(), bytes, family.children.len());
        let all = family.children.iter().zip(shares);
        let open = all.filter(|(child, _)| child.is_open);
        let pieces = open.map(|(Child { branch, to, .. }, bytes)| {
            let (branch, to) = (*branch, *to);
            Outgoing::Piece { branch, to, offset, bytes, is_last }
        });
        let pieces: Vec<Outgoing> = pieces.collect();
        let (count, keeps) = (pieces.len() as u64, family.coder.is_some() && is_last);
        let kept = self.send_or_keep(pieces, keeps);
        if let Some(family) = self.families.get_mut(&slot).filter(|_| keeps) {
            family.kept = kept;
        }
        count
    }

    /// Sends, or gives back what is to be kept.
    fn send_or_keep(&mut self, all: Vec<Outgoing>, keeps: bool) -> Vec<Outgoing> {
        if keeps {
            return all;
        }
        self.outgoing.extend(all);
        Vec::new()
    }

    /// The data of a request is what its checksum is of: all of it may go on.
    fn confirm(&mut self, slot: u32) {
        if let Some(family) = self.families.get_mut(&slot) {
            self.outgoing.extend(family.kept.drain(..));
        }
    }

    /// A branch has ended: with an answer, or nobody is there. The request that can be answered
    /// now, and its answer.
    pub(super) fn heard(
        &mut self,
        branch: Branch,
        answer: Option<&Answer>,
    ) -> Option<(u32, Vec<u8>)> {
        let slot = self.branches.remove(&branch)?;
        let family = self.families.get_mut(&slot)?;
        let child = family.children.iter_mut().find(|child| child.branch == branch)?;
        child.is_open = false;
        let behind = |rank: u8| match family.strategy {
            // A parity says whose part it lacks.
            Strategy::Parity => rank == child.rank || rank < family.k,
            other => other.comes_by(rank, child.rank),
        };
        let failed = match answer.map(|answer| (answer.rank, answer.outcome, answer.epoch)) {
            None => Some((child.rank, Reason::Unreached)),
            // It is done if all have it under one epoch.
            Some((_, Ok(()), epoch)) if epoch == family.epoch => None,
            Some((_, Ok(()), _)) => Some((child.rank, Reason::Epoch)),
            // Nobody speaks for those that are not behind it.
            Some((rank, Err(reason), _)) if behind(rank) => Some((rank, reason)),
            Some((_, Err(reason), _)) => Some((child.rank, reason)),
        };
        family.failed = match (family.failed, failed) {
            (Some(known), Some(new)) if known.0 < new.0 => Some(known),
            (known, new) => new.or(known),
        };
        if family.children.iter().any(|child| child.is_open) {
            return None;
        }
        let own = family.own.take()?;
        Some((slot, self.judge(slot, own)))
    }

    /// The member's own answer: what is answered now, unless that waits.
    pub(super) fn own(&mut self, slot: u32, answer: Vec<u8>) -> Option<Vec<u8>> {
        // What was kept goes nowhere any more: it was not right.
        let waits = |family: &&mut Family| {
            family.children.iter().any(|child| child.is_open) && family.kept.is_empty()
        };
        if let Some(family) = self.families.get_mut(&slot).filter(waits) {
            family.own = Some(answer);
            return None;
        }
        Some(self.judge(slot, answer))
    }

    /// The answer for this member and all behind it.
    fn judge(&self, slot: u32, own: Vec<u8>) -> Vec<u8> {
        let failed = self.families.get(&slot).and_then(|family| family.failed);
        let (Some((rank, reason)), Ok(answer)) = (failed, Answer::parse(&own)) else { return own };
        match answer.outcome {
            Ok(()) => Answer { rank, outcome: Err(reason), ..answer }.emit().to_vec(),
            Err(_) => own,
        }
    }

    /// A request is over: what has not ended of it is cut.
    pub(super) fn end(&mut self, slot: u32) {
        let Some(family) = self.families.remove(&slot) else { return };
        for Child { branch, to, is_open, pieces, .. } in family.children {
            self.is_counted_less((to, family.client), pieces);
            if is_open {
                self.branches.remove(&branch);
                self.outgoing.push_back(Outgoing::Cut { branch });
            }
        }
    }

    fn is_counted_less(&mut self, key: (u16, u64), pieces: u32) {
        if let Some(used) = self.under_way.get_mut(&key) {
            *used = used.saturating_sub(pieces);
            if *used == 0 {
                self.under_way.remove(&key);
            }
        }
    }

    /// All pieces of a branch have gone; whose it is.
    fn has_gone(&mut self, branch: Branch) -> Option<u32> {
        let slot = *self.branches.get(&branch)?;
        let family = self.families.get_mut(&slot)?;
        let child = family.children.iter_mut().find(|child| child.branch == branch)?;
        let (to, pieces) = (child.to, std::mem::take(&mut child.pieces));
        let client = family.client;
        self.is_counted_less((to, client), pieces);
        Some(slot)
    }

    /// Of a request that is passed on: whether its own copy is stored, and to how many successors
    /// something has not gone.
    fn keeps(&self, slot: u32) -> Option<(bool, usize)> {
        let family = self.families.get(&slot)?;
        let left = family.children.iter().filter(|child| child.pieces > 0).count();
        Some((family.own.is_some(), left))
    }

    /// What is to be sent, in its order.
    pub(super) fn take(&mut self) -> Vec<Outgoing> {
        self.outgoing.drain(..).collect()
    }

    /// Requests that are passed on.
    pub(super) fn len(&self) -> usize {
        self.families.len()
    }
}

impl Nic {
    /// The first piece of a message of `bytes` that comes in pieces.
    pub(crate) fn begin_pieces(&mut self, from: Peer, message: u32, bytes: u32, payload: &[u8]) {
        let completes = payload.len() >= bytes as usize;
        self.begin(from, message, bytes, PacketAt { offset: 0, token: 0, completes }, payload);
        self.has_come((from, message), payload);
    }

    /// Another piece, in whatever order.
    pub(crate) fn piece(&mut self, from: Peer, message: u32, offset: u32, payload: &[u8]) {
        let key = (from, message);
        let (came, bytes) = self.has_come(key, payload).unwrap_or((0, u32::MAX));
        let end = u64::from(offset) + payload.len() as u64;
        if end > u64::from(bytes) {
            return self.cut(from, message);
        }
        self.further(key, PacketAt { offset, token: 0, completes: came >= bytes });
    }

    /// How much of a message in pieces came, and of how much.
    fn has_come(&mut self, key: (Peer, u32), payload: &[u8]) -> Option<(u32, u32)> {
        let owner = self.owners.get_mut(self.live.get(&key)?)?;
        owner.came = owner.came.saturating_add(u32::try_from(payload.len()).unwrap_or(u32::MAX));
        Some((owner.came, owner.bytes))
    }

    /// Whether a message in pieces is live.
    #[must_use]
    pub(crate) fn knows(&self, from: Peer, message: u32) -> bool {
        self.live.contains_key(&(from, message))
    }

    /// A successor has answered; or nobody is there.
    pub fn heard(&mut self, branch: Branch, answer: Option<&Answer>) {
        if let Some((slot, answer)) = self.passing.heard(branch, answer) {
            self.answer(slot, answer);
        }
    }

    /// A request that is whole, and with the CPU side, goes on to its successors in pieces of
    /// `chunk` bytes.
    ///
    /// # Errors
    /// [`Reason::Busy`]: too much is under way to one of them.
    pub(crate) fn pass_on(
        &mut self,
        place: (u32, u8),
        heads: &Heads,
        message: &[u8],
        chunk: usize,
    ) -> Result<(), Reason> {
        if next_of(heads).iter().all(Option::is_none) {
            return Ok(());
        }
        let (slot, chunk) = (place.0, chunk.max(1));
        let pieces = u32::try_from(message.len().div_ceil(chunk)).unwrap_or(u32::MAX);
        if !self.is_served(place) || !self.passing.has_room(heads, pieces) {
            return Err(Reason::Busy);
        }
        let begins = message.len().saturating_sub(heads.head.data as usize);
        let (first, mut rest) = message.split_at(chunk.max(begins).min(message.len()));
        self.passing.begin(slot, heads, first.get(begins..).unwrap_or_default(), pieces);
        let mut offset = first.len();
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(chunk.min(rest.len()));
            let at = u32::try_from(offset).unwrap_or(u32::MAX);
            self.passing.pass(slot, at, piece, more.is_empty());
            offset += piece.len();
            rest = more;
        }
        Ok(())
    }

    /// The data of a request, which is with the CPU side, is what its checksum is of.
    pub(crate) fn confirm(&mut self, place: (u32, u8)) {
        if self.is_served(place) {
            self.passing.confirm(place.0);
        }
    }

    /// All pieces of a branch have gone.
    pub(crate) fn has_gone(&mut self, branch: Branch) {
        if let Some(slot) = self.passing.has_gone(branch) {
            self.give_back(slot);
        }
    }

    /// Of what a request takes that waits for its successors, gives back what it does not need any
    /// more: else requests of which each waits for others could keep these out.
    pub(super) fn give_back(&mut self, slot: u32) {
        let (Some((is_stored, left)), Some(owner)) =
            (self.passing.keeps(slot), self.owners.get_mut(&slot))
        else {
            return;
        };
        let own = self.table.get(slot).filter(|_| !is_stored).map_or(0, |one| one.len as usize);
        let keeps = own.saturating_add(left.saturating_mul(owner.bytes as usize));
        let back = owner.taken.saturating_sub(keeps);
        owner.taken -= back;
        self.accounts.give_back(owner.payer, owner.path, back);
    }

    /// What is to go to successors, in its order.
    pub fn take_outgoing(&mut self) -> Vec<Outgoing> {
        self.passing.take()
    }

    /// Requests that are passed on and not answered.
    #[must_use]
    pub fn passing(&self) -> usize {
        self.passing.len()
    }

    pub(super) fn has_passed(&mut self, handler: Handler, count: u64, len: usize) {
        let passed_bytes = count.saturating_mul(len as u64);
        self.ledger.add(handler, &Cost { passed: count, passed_bytes, ..Cost::default() });
    }
}
