//! RDMA-HyperLoop, which NetDFS V B compares with: a client prepares at each member of a ring what
//! its NIC side is to do with the writes that will come, and sends these to the first one.
//!
//! What is prepared, a *work request*, is the heads of a write as this member is to read them. It
//! waits for that write, says where it is stored and who is next, and is used up by it. No right is
//! looked at. What a lie could take from others is: whose a work request is, how many there are,
//! who brings the write, and that the next member is a known one. `docs/internals/replication.md`.

use std::collections::BTreeMap;

use outboard_codec::crc32c;
use outboard_wire::shared::{Answer, Heads, Peer, Reason, Strategy, Target, WriteHead};

use super::Auth;
use crate::nic::context::{Hand, Policy};
use crate::nic::sched::PacketAt;

/// The object whose writes are work requests.
pub const QUEUE: u64 = u64::MAX;
/// Work requests at a time.
const MOST: usize = 1024;
/// Instructions of looking one up, or of putting one down.
const INSTR_QUEUE: u64 = 60;

/// Which write a work request waits for: its object, fence and sequence.
type Awaited = (u64, u64, u32);

/// The policy: what is not of work requests is the other's.
pub(crate) struct HyperLoop {
    auth: Auth,
    /// By client.
    queues: BTreeMap<u64, BTreeMap<Awaited, Heads>>,
}

fn awaited(heads: &Heads, write: &WriteHead) -> Awaited {
    (heads.capability.object, heads.capability.fence, write.sequence)
}

impl HyperLoop {
    /// Bytes that work requests take.
    pub(crate) const MEMORY: usize = MOST * size_of::<(u64, Awaited, Heads)>();

    /// With no work requests.
    pub(crate) fn new(auth: Auth) -> HyperLoop {
        HyperLoop { auth, queues: BTreeMap::new() }
    }

    /// Takes work requests in, all of a post or none.
    fn post(&mut self, from: Peer, post: &WriteHead, data: &[u8]) -> Result<usize, Reason> {
        // A post that goes on in another packet is not whole here.
        if data.len() != post.bytes as usize || crc32c(data) != post.crc {
            return Err(Reason::Invalid);
        }
        let Peer::Client(client) = from else { return Err(Reason::Other) };
        let (mut new, mut rest) = (BTreeMap::new(), data);
        while !rest.is_empty() {
            let (heads, behind) = Heads::parse(rest).map_err(|_| Reason::Invalid)?;
            let Target::Write(write) = &heads.target else { return Err(Reason::Invalid) };
            if write.strategy != Strategy::Ring {
                return Err(Reason::Invalid);
            }
            let is_its = heads.capability.client == client;
            if !is_its || !self.auth.with(|rules| rules.is_spread(&heads)) {
                return Err(Reason::Other);
            }
            new.insert(awaited(&heads, write), heads);
            rest = behind;
        }
        let all: usize = self.queues.values().map(BTreeMap::len).sum();
        let queue = self.queues.get(&client);
        let own = queue.map_or(0, BTreeMap::len);
        let is_new = |key: &&Awaited| queue.is_none_or(|queue| !queue.contains_key(*key));
        let more = new.keys().filter(is_new).count();
        // A client leaves as many for others as it has.
        if all + own + 2 * more > MOST {
            return Err(Reason::Busy);
        }
        let count = new.len();
        self.queues.entry(client).or_default().extend(new);
        Ok(count)
    }

    /// The work request that waits for a write.
    fn find(&self, from: Peer, heads: &Heads, write: &WriteHead) -> Result<Heads, Reason> {
        let queue = self.queues.get(&heads.capability.client);
        let posted = queue.and_then(|queue| queue.get(&awaited(heads, write)));
        let posted = posted.ok_or(Reason::Order)?;
        let Target::Write(own) = &posted.target else { return Err(Reason::Order) };
        let before = own.predecessor().and_then(|rank| {
            let before = own.coordinates.as_slice().get(usize::from(rank))?;
            Some(Peer::Node(before.node))
        });
        let sender = before.unwrap_or(Peer::Client(posted.capability.client));
        if from != sender || posted.range() != heads.range() {
            return Err(Reason::Other);
        }
        let mut posted = *posted;
        posted.head.request = heads.head.request;
        Ok(posted)
    }

    /// A work request is used up.
    fn take(&mut self, heads: &Heads, write: &WriteHead) {
        if let Some(queue) = self.queues.get_mut(&heads.capability.client) {
            queue.remove(&awaited(heads, write));
        }
    }
}

impl Policy for HyperLoop {
    fn header(&mut self, hand: &mut Hand<'_>, payload: &[u8]) -> bool {
        let Some((heads, begins)) = self.auth.read(hand, payload) else { return false };
        let first = (begins, payload.len());
        let Target::Write(write) = &heads.target else {
            return self.auth.decide(hand, &heads, first);
        };
        if heads.capability.object == QUEUE {
            let data = payload.get(begins as usize..).unwrap_or_default();
            match self.post(hand.peer, write, data) {
                Ok(count) => {
                    hand.instr(INSTR_QUEUE * count as u64);
                    hand.answer(self.auth.with(|rules| rules.answer(&heads, Ok(0))));
                    // It is done: nothing of it lands.
                    return false;
                }
                Err(reason) => return self.auth.refuses(hand, &heads, reason),
            }
        }
        hand.instr(INSTR_QUEUE);
        let is_accepted = match self.find(hand.peer, &heads, write) {
            Ok(posted) => self.auth.decide(hand, &posted, first),
            Err(reason) => self.auth.refuses(hand, &heads, reason),
        };
        if is_accepted {
            self.take(&heads, write);
        }
        is_accepted
    }

    fn payload(&mut self, hand: &mut Hand<'_>, packet: &PacketAt, payload: &[u8]) {
        self.auth.payload(hand, packet, payload);
    }

    fn completion(&mut self, hand: &mut Hand<'_>) {
        self.auth.completion(hand);
    }

    fn cleanup(&mut self, hand: &mut Hand<'_>) {
        self.auth.cleanup(hand);
    }

    fn busy(&mut self, peer: Peer, payload: &[u8]) -> Option<Answer> {
        self.auth.busy(peer, payload)
    }

    fn ended(&mut self, peer: Peer) {
        if let Peer::Client(client) = peer {
            self.queues.remove(&client);
        }
    }
}
