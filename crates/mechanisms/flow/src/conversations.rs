//! All conversations of one process, over one UDP port.
//!
//! A [`Conversations`] opens a conversation when something is asked, answers who opens one, gives
//! requests to a [`Target`] and calls to who takes them, and ends each call: with its reply, or with
//! why there is none. It has no socket, clock or thread: datagrams and time come in as arguments,
//! and [`Conversations::pump`] says what is to be sent.
//!
//! What always holds:
//! - a conversation is between one life of each end, and each of them has proved its role;
//! - what is sent is given at most once, and only by and to whom it was sent;
//! - a call ends with the reply to it and to no other, or with [`Gone`];
//! - what is replayed or invented by others changes nothing that lives.
//!
//! How, and why so: `docs/internals/conversations.md`.

use std::future::Future;
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::Time;
use outboard_wire::roce::Psn;
use outboard_wire::shared::{Answer, Heads, Peer};

use crate::{Given, Gone, Net, Settings};

/// Who an end is, and how it speaks.
pub struct Config {
    /// Its role.
    pub me: Peer,
    /// Where it is, as others see it: the checksum of a packet is over it.
    pub address: SocketAddrV4,
    /// Its life: chosen anew by each process that has this role.
    pub life: u64,
    /// Of which cluster it is.
    pub cluster: u64,
    /// How its flows are.
    pub settings: Settings,
    /// Which keys prove who others are.
    pub keys: Box<dyn Keys>,
    /// Where random numbers begin; another one for each life.
    pub seed: u64,
    /// Asks for packets that carry a MAC.
    pub sealed: bool,
    /// While something is awaited and nothing was heard for so long, the other end is probed.
    pub answer_within: Duration,
}

/// Keys of openings: which key proves that a peer is who it says.
pub trait Keys: Send + Sync {
    /// The key that this end and `peer` share.
    fn of(&self, peer: Peer) -> Option<[u8; 32]>;
}

/// Takes requests packet by packet: a node. It is called with its lock held, so it calls neither
/// [`Conversations::datagram`], [`Conversations::pump`] nor [`Conversations::with_target`].
pub trait Target: Send + 'static {
    /// A conversation was opened, or began anew; whether its packets carry MACs. Before the first
    /// request of it.
    fn opened(&mut self, _from: Peer, _sealed: bool) {}
    /// Whether it would take one more request.
    fn has_room(&mut self, from: Peer) -> bool;
    /// A packet of one: the header first, the completion last.
    fn given(&mut self, from: Peer, given: &Given<'_>, now: Time);
    /// A request that will never complete.
    fn cleanup(&mut self, from: Peer, message: Psn);
    /// The conversation ended; what it began is cleaned up.
    fn ended(&mut self, from: Peer);
}

/// Takes no requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTarget;

impl Target for NoTarget {
    fn has_room(&mut self, _: Peer) -> bool {
        false
    }
    fn given(&mut self, _: Peer, _: &Given<'_>, _: Time) {}
    fn cleanup(&mut self, _: Peer, _: Psn) {}
    fn ended(&mut self, _: Peer) {}
}

/// To which call a reply belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    to: Peer,
    conversation: u64,
    call: u64,
}

/// A call that somebody made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Who.
    pub from: Peer,
    /// Its bytes ([`outboard_wire::shared::call`]).
    pub call: Vec<u8>,
    /// What [`Conversations::reply`] is told.
    pub token: Token,
}

/// All conversations of a process. Clones are the same ones.
pub struct Conversations<T = NoTarget>(Arc<Shared<T>>);

struct Shared<T> {
    /// Locked before the state where both are.
    target: Mutex<T>,
    state: Mutex<State>,
}

struct State {
    now: Time,
    wall_ms: u64,
}

impl<T> Clone for Conversations<T> {
    fn clone(&self) -> Self {
        Conversations(Arc::clone(&self.0))
    }
}

impl<T: Target> Conversations<T> {
    /// None yet.
    #[must_use]
    pub fn new(config: Config, target: T) -> Self {
        let _ = config;
        let state = State { now: Time(0), wall_ms: 0 };
        Conversations(Arc::new(Shared { target: Mutex::new(target), state: Mutex::new(state) }))
    }

    /// A datagram came.
    pub fn datagram(&self, from: SocketAddrV4, bytes: &[u8], now: Time, wall_ms: u64) {
        let _ = (from, bytes, now, wall_ms);
    }

    /// Sends all that is due, and wakes who waited for a time that has come; says how much it did.
    /// `send` is called with a lock held, and calls nothing here.
    pub fn pump(
        &self,
        now: Time,
        wall_ms: u64,
        send: &mut dyn FnMut(SocketAddrV4, &[u8]),
    ) -> usize {
        let _ = send;
        let mut state = self.state();
        (state.now, state.wall_ms) = (now, wall_ms);
        0
    }

    /// When [`Conversations::pump`] has something to do, if nothing comes before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// Whether [`Conversations::pump`] has something to do at once.
    #[must_use]
    pub fn has_work(&self) -> bool {
        false
    }

    /// The next call that somebody made.
    #[must_use]
    pub fn take_call(&self) -> Option<Incoming> {
        None
    }

    /// Replies to a call. If its conversation has ended nobody waits for it.
    pub fn reply(&self, token: Token, reply: Vec<u8>) {
        let _ = (token, reply);
    }

    /// Sends a message that has no reply, in the conversation there is; false if there is none.
    #[must_use]
    pub fn send(&self, to: Peer, message: Vec<u8>) -> bool {
        let _ = (to, message);
        false
    }

    /// Asks the target something.
    pub fn with_target<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.target.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The life of a peer, as its last opening said.
    #[must_use]
    pub fn life_of(&self, peer: Peer) -> Option<u64> {
        let _ = peer;
        None
    }

    /// Figures, by their names.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Target> Net for Conversations<T> {
    fn know(&self, peer: Peer, address: SocketAddrV4) {
        let _ = (peer, address);
    }

    fn call(&self, to: Peer, call: Vec<u8>) -> impl Future<Output = Result<Vec<u8>, Gone>> {
        let _ = (to, call);
        std::future::ready(Err(Gone::Unanswered))
    }

    fn request(
        &self,
        to: Peer,
        heads: &Heads,
        data: &[u8],
    ) -> impl Future<Output = Result<(Answer, Vec<u8>), Gone>> {
        let _ = (to, heads, data);
        std::future::ready(Err(Gone::Unanswered))
    }

    fn now(&self) -> Time {
        self.state().now
    }

    fn wall_ms(&self) -> u64 {
        self.state().wall_ms
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> {
        let _ = time;
        std::future::ready(())
    }
}
