//! Execution contexts: what an application installs, without privileges (NetDFS II B, III C).
//!
//! A context is a policy, the memory that policy keeps (the policy itself, and what it was said to
//! need), and which messages it gets: those that begin with certain bytes, of one peer or of all.
//! What is one peer's goes before what is everybody's, so each message has one context, and a
//! policy never sees what is another's.

use outboard_wire::shared::{Answer, Heads, Peer, Reason};

use super::account::Accounts;
use super::ledger::Cost;
use super::passing::{Passing, next_of};
use super::sched::PacketAt;
use super::sums::{Part, Sums};
use super::table::{Descriptor, Hop};

/// Whose messages a context gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// Of all that have none of their own.
    All,
    /// One peer's.
    Only(Peer),
}

/// Which messages a context gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Matching {
    /// What they begin with.
    pub magic: [u8; 2],
    /// Whose.
    pub from: Whose,
}

impl Matching {
    /// What may take a message, first what goes first.
    pub(super) fn of(from: Peer, payload: &[u8]) -> Option<[Matching; 2]> {
        let magic = *payload.first_chunk()?;
        Some([Whose::Only(from), Whose::All].map(|from| Matching { magic, from }))
    }
}

/// Where the packets of an accepted message go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Its data, by handlers, to where the store takes it from.
    Nic,
    /// All of it, as it came, to the CPU side.
    Cpu,
}

/// A message's place in the host's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landing {
    /// By whom it is handled.
    pub path: Path,
    /// Its heads, if handlers have parsed them.
    pub heads: Option<Box<Heads>>,
    /// Which byte of the message lies first here.
    pub begins: u32,
    /// Its bytes from there on, as far as they came; what is missing between them is zeros.
    pub data: Vec<u8>,
    /// How many there will be.
    pub bytes: usize,
    /// Bytes that its answer will take beside.
    pub later: usize,
    /// They are accounted with another message.
    pub is_paid: bool,
}

/// What goes from handlers to the CPU side; for figures and logs, nothing waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are named after what they hold")]
pub enum Notice {
    /// A request was accepted.
    Accepted { peer: Peer, object: u64, offset: u64, bytes: u32 },
    /// A request was refused.
    Refused { peer: Peer, object: u64, reason: Reason },
    /// An accepted request never became whole: so much of it had come. The store has none of it.
    Cleaned { peer: Peer, object: u64, offset: u64, bytes: u32, got: u32 },
    /// What a policy has to say.
    Own { peer: Peer, word: u64 },
}

/// What a handler asks for, in the order it asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A place in the host's memory.
    Open(Landing),
    /// Copies this packet there.
    Put(PacketAt),
    /// Begins to pass the message on, with this packet, whose data is behind `begins` bytes.
    Begin {
        /// Its heads.
        heads: Box<Heads>,
        /// Bytes of them.
        begins: u32,
        /// In how many pieces it goes.
        pieces: u32,
    },
    /// Passes this packet on.
    Pass(PacketAt),
    /// Passes the whole message on, as it landed.
    Forward,
    /// Takes the message in as a part of a sum.
    Join(Box<Part>),
    /// Adds this packet to its sum.
    Add(PacketAt),
    /// The only answer.
    Answer(Answer),
    /// It is whole: the CPU side or the store goes on with it.
    Serve,
    /// Tells the CPU side.
    Notice(Notice),
}

/// What of the node's memory is in use, as a header handler sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests under way, this one too; and how many there can be.
    pub requests: (u32, u32),
    /// Those of this peer.
    pub of_peer: u32,
    /// Those that it has under way for whom this one is: [`Hand::bill`].
    pub of_payer: u32,
    /// Bytes that landings of handlers may still take for whom it is.
    pub nic_room: usize,
    /// Bytes that landings of the CPU side may still take for whom it is.
    pub cpu_room: usize,
}

/// What a handler works with.
pub struct Hand<'a> {
    /// The request's descriptor.
    pub descriptor: &'a mut Descriptor,
    /// Who sent the message.
    pub peer: Peer,
    /// Its packets carry MACs.
    pub is_sealed: bool,
    /// Bytes of the message.
    pub bytes: u32,
    /// What is in use.
    pub load: Load,
    /// Who is accounted for the message.
    pub(super) payer: Peer,
    pub(super) accounts: &'a Accounts,
    pub(super) passing: &'a Passing,
    pub(super) sums: &'a Sums,
    /// It is a header handler that has opened nothing.
    pub(super) may_open: bool,
    pub(super) effects: Vec<Effect>,
    pub(super) cost: Cost,
}

impl Hand<'_> {
    /// The message is another's, for whom the peer passes it on: that one is accounted for it. In
    /// the header handler, before anything is opened.
    pub fn bill(&mut self, payer: Peer) {
        if self.may_open && payer != self.peer {
            self.payer = payer;
            self.load.of_payer = self.accounts.passed(self.peer, payer);
            self.load.nic_room = self.accounts.room(payer, Path::Nic);
            self.load.cpu_room = self.accounts.room(payer, Path::Cpu);
        }
    }

    /// A place of `bytes` in the host's memory, for the message's bytes from `begins` on, and
    /// `later` more for its answer; whether there is room. Once for a message, in its header
    /// handler.
    #[must_use]
    pub fn open(
        &mut self,
        path: Path,
        heads: Option<Box<Heads>>,
        begins: u32,
        bytes: usize,
        later: usize,
    ) -> bool {
        let room = match path {
            Path::Nic => self.load.nic_room,
            Path::Cpu => self.load.cpu_room,
        };
        let has_room = self.may_open && bytes.saturating_add(later) <= room;
        if has_room {
            self.may_open = false;
            let (data, is_paid) = (Vec::with_capacity(bytes), false);
            let landing = Landing { path, heads, begins, data, bytes, later, is_paid };
            self.effects.push(Effect::Open(landing));
        }
        has_room
    }

    /// A place for a message that is steered as a part of a sum; whether there is room. The first
    /// one takes that of all `k`: who is let in finds the room that the sum needs.
    #[must_use]
    pub fn open_part(&mut self, heads: &Heads) -> bool {
        let bytes = self.bytes as usize;
        let others = usize::from(heads.capability.k).saturating_sub(1);
        match self.sums.is_claimed(heads) {
            None => self.open(Path::Cpu, None, 0, bytes, others.saturating_mul(bytes)),
            Some(true) => self.open(Path::Cpu, None, 0, bytes, 0),
            Some(false) => {
                let is_paid = std::mem::take(&mut self.may_open);
                let (path, heads, begins, later) = (Path::Cpu, None, 0, 0);
                let data = Vec::with_capacity(bytes);
                let landing = Landing { path, heads, begins, data, bytes, later, is_paid };
                self.effects.push(Effect::Open(landing));
                is_paid
            }
        }
    }

    /// Whether this handler opened a place on that path.
    #[must_use]
    pub fn is_opened(&self, path: Path) -> bool {
        let is_it = |effect: &Effect| matches!(effect, Effect::Open(one) if one.path == path);
        self.effects.iter().any(is_it)
    }

    /// Copies the packet to the message's place.
    pub fn put(&mut self, packet: &PacketAt) {
        self.effects.push(Effect::Put(*packet));
    }

    /// Passes the message on to its successors, from this packet on, which is its first; whether
    /// not too much is under way to one of them.
    #[must_use]
    pub fn begin(&mut self, heads: &Heads, begins: u32, payload: usize) -> bool {
        let payload = u32::try_from(payload).unwrap_or(u32::MAX).max(1);
        let pieces = self.bytes.div_ceil(payload);
        let has_room = self.goes_on(heads, pieces);
        if has_room && self.count_next() > 0 {
            self.effects.push(Effect::Begin { heads: Box::new(*heads), begins, pieces });
        }
        has_room
    }

    /// The message goes on to its successors in so many pieces; whether not too much is under way
    /// to one of them.
    #[must_use]
    pub fn goes_on(&mut self, heads: &Heads, pieces: u32) -> bool {
        let next = next_of(heads);
        let has_room = next.iter().all(Option::is_none) || self.passing.has_room(heads, pieces);
        if has_room {
            for (place, (_, to)) in self.descriptor.next.iter_mut().zip(next.into_iter().flatten())
            {
                *place = Hop { port: to.port, node: to.node };
                self.cost.sends += 1;
            }
        }
        has_room
    }

    /// To how many the message goes on.
    fn count_next(&self) -> u64 {
        self.descriptor.next.iter().filter(|hop| hop.port != 0).count() as u64
    }

    /// Passes the whole message on, if it goes on; to how many. In the completion handler.
    pub fn forward(&mut self) -> u64 {
        let count = self.count_next();
        if count > 0 {
            self.effects.push(Effect::Forward);
        }
        count
    }

    /// Passes another packet on, if the message is passed on; to how many.
    pub fn pass(&mut self, packet: &PacketAt) -> u64 {
        let count = self.count_next();
        if count == 0 || packet.offset == 0 {
            return 0;
        }
        self.cost.sends += count;
        self.effects.push(Effect::Pass(*packet));
        count
    }

    /// Who adds the parts of the write that these are of; nobody knows yet, if this is the first.
    ///
    /// # Errors
    /// Why it does not fit the others.
    pub fn sum_path(&self, heads: &Heads) -> Result<Option<Path>, Reason> {
        self.sums.path(heads)
    }

    /// Whether handlers have room for another sum of so many bytes of a client.
    #[must_use]
    pub fn has_sum_room(&self, client: u64, bytes: usize) -> bool {
        self.sums.has_room(client, bytes)
    }

    /// Takes the message in as a part. In the header handler, which has asked for the path.
    pub fn join(&mut self, part: Part) {
        self.may_open = false;
        self.effects.push(Effect::Join(Box::new(part)));
    }

    /// Adds the packet to the message's sum.
    pub fn add(&mut self, packet: &PacketAt) {
        self.effects.push(Effect::Add(*packet));
    }

    /// Answers.
    pub fn answer(&mut self, answer: Answer) {
        self.cost.sends += 1;
        self.effects.push(Effect::Answer(answer));
    }

    /// Hands the message on, which is whole.
    pub fn serve(&mut self) {
        self.effects.push(Effect::Serve);
    }

    /// Tells the CPU side.
    pub fn tell(&mut self, notice: Notice) {
        self.effects.push(Effect::Notice(notice));
    }

    /// So many instructions were executed, estimated ([`super::ledger`]).
    pub fn instr(&mut self, count: u64) {
        self.cost.instructions += count;
    }
}

/// The handlers of a context. They never wait: what takes time is a effect, and a handler counts
/// as over when its effects are.
pub trait Policy: Send {
    /// The first packet of a message: whether the message is accepted. If not, nothing of it is
    /// handled any more, and its descriptor is free.
    fn header(&mut self, hand: &mut Hand<'_>, payload: &[u8]) -> bool;

    /// Each packet of an accepted message, the first and the last, too.
    fn payload(&mut self, hand: &mut Hand<'_>, packet: &PacketAt, payload: &[u8]);

    /// All packets came and were handled.
    fn completion(&mut self, hand: &mut Hand<'_>);

    /// The rest of an accepted message will not come.
    fn cleanup(&mut self, hand: &mut Hand<'_>);

    /// There is no descriptor for the message that begins with `payload`: what is answered.
    fn busy(&mut self, peer: Peer, payload: &[u8]) -> Option<Answer>;

    /// The conversation with a peer is over.
    fn ended(&mut self, _peer: Peer) {}
}
