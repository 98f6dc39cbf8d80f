//! All conversations of one process, over one UDP port.
//!
//! A [`Conversations`] opens a conversation when something is asked, answers who opens one, gives
//! requests to a [`Target`] and calls to who takes them, and ends each call: with its reply, or
//! with why there is none. It has no socket, clock or thread: datagrams and time come in as
//! arguments, and [`Conversations::pump`] says what is to be sent.
//!
//! What always holds:
//! - a conversation is between one life of each end, and each of them has proved its role;
//! - what is sent is given at most once, and only by and to whom it was sent;
//! - a call ends with the reply to it and to no other, or with [`Gone`];
//! - what is replayed or invented by others changes nothing that lives.
//!
//! How, and why so: `docs/internals/conversations.md`.

mod calls;
mod exchange;
mod handshake;
mod seal;
mod state;
mod streams;
mod talk;
#[cfg(test)]
mod tests;

use core::net::SocketAddrV4;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use outboard_base::Time;
use outboard_wire::roce::{Opcode, Packet, Psn, Route};
use outboard_wire::shared::{Answer, Heads, Peer};

use self::calls::Outcome;
use self::state::{Event, Question, State};
pub use self::streams::{Backlog, Part, Stream};
use self::talk::Room;
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

/// Keys of openings: which key proves that a peer is who it says. Asked with a lock held, so it
/// calls nothing of [`Conversations`].
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
    /// Whether a stream has begun: pieces of one that did not wait until it has.
    fn knows(&mut self, _from: Peer, _stream: u32) -> bool {
        true
    }
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
    address: SocketAddrV4,
    /// Locked before the state where both are; never locked by what the state calls.
    target: Mutex<T>,
    state: Mutex<State>,
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
        let address = config.address;
        let (target, state) = (Mutex::new(target), Mutex::new(State::new(config)));
        Conversations(Arc::new(Shared { address, target, state }))
    }

    /// A datagram came.
    pub fn datagram(&self, from: SocketAddrV4, bytes: &[u8], now: Time, wall_ms: u64) {
        // Held to the end, so that the target is given packets in the order they came.
        let mut target = self.target();
        self.state().tick(now, wall_ms);
        // No packet begins so: `O` is no opcode.
        if bytes.first() == Some(&b'O') {
            self.state().opening(from, bytes);
        } else if let Ok(packet) = Packet::parse(bytes, self.route(from)) {
            self.packet(from, &packet, &mut target);
        } else {
            self.state().counts.bad += 1;
        }
        self.settle(target);
    }

    /// Sends all that is due, and wakes who waited for a time that has come; says how much it did.
    /// `send` is called with a lock held, and calls nothing here.
    pub fn pump(
        &self,
        now: Time,
        wall_ms: u64,
        send: &mut dyn FnMut(SocketAddrV4, &[u8]),
    ) -> usize {
        let target = self.target();
        let mut state = self.state();
        state.tick(now, wall_ms);
        let did = state.pump(send);
        drop(state);
        self.settle(target);
        did
    }

    /// When [`Conversations::pump`] has something to do, if nothing comes before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.state().deadline()
    }

    /// Whether [`Conversations::pump`] has something to do at once.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.state().has_work()
    }

    /// The next call that somebody made.
    #[must_use]
    pub fn take_call(&self) -> Option<Incoming> {
        self.state().take_call()
    }

    /// Replies to a call. If its conversation has ended nobody waits for it. A reply that is longer
    /// than a message may be goes as an empty one, which no reply is.
    #[expect(clippy::needless_pass_by_value, reason = "who replies has no more use for it")]
    pub fn reply(&self, token: Token, reply: Vec<u8>) {
        self.state().reply(token, &reply);
    }

    /// Sends a message that has no reply, in the conversation there is; false if there is none.
    #[must_use]
    pub fn send(&self, to: Peer, message: Vec<u8>) -> bool {
        self.state().say(to, message)
    }

    /// Asks the target something.
    pub fn with_target<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.target())
    }

    /// A part is at one of these places from now on: they are all tried at once.
    pub fn know_places(&self, peer: Peer, places: &[SocketAddrV4]) {
        self.state().know(peer, places);
    }

    /// The life of a peer, as its last opening said.
    #[must_use]
    pub fn life_of(&self, peer: Peer) -> Option<u64> {
        self.state().links.get(&state::canonical(peer)).and_then(|link| link.life)
    }

    /// Figures, by their names.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, u64)> {
        self.state().figures()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn target(&self) -> MutexGuard<'_, T> {
        self.0.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which way a datagram of `from` comes.
    fn route(&self, from: SocketAddrV4) -> Route {
        Route {
            source: from.ip().octets(),
            source_port: from.port(),
            destination: self.0.address.ip().octets(),
        }
    }

    /// A packet. The target is called with the state unlocked: it may send.
    fn packet(&self, from: SocketAddrV4, packet: &Packet<'_>, target: &mut T) {
        let mut state = self.state();
        let Some((peer, packet)) = state.admit(from, packet) else { return };
        if packet.opcode == Opcode::Acknowledge {
            return state.acknowledged(peer, &packet);
        }
        let has_room = match state.room_for(peer, &packet) {
            Room::Here(has_room) => has_room,
            Room::Target => {
                drop(state);
                let has_room = target.has_room(peer);
                state = self.state();
                has_room
            }
            Room::Stream(stream) => {
                drop(state);
                let is_known = target.knows(peer, stream);
                state = self.state();
                // What begins it may be missing: as if this were, too. It comes again.
                if !is_known && state.is_early(peer, &packet) {
                    return;
                }
                true
            }
        };
        let (given, now) = (state.received(peer, &packet, has_room), state.now);
        drop(state);
        if let Some(given) = given {
            target.given(peer, &given, now);
        }
    }

    /// Tells the target what happened; then, with nothing locked, wakes whose time has come.
    fn settle(&self, mut target: MutexGuard<'_, T>) {
        let mut state = self.state();
        let events = std::mem::take(&mut state.events);
        let woken = std::mem::take(&mut state.calls.woken);
        drop(state);
        for event in events {
            match event {
                Event::Opened(peer, sealed) => target.opened(peer, sealed),
                Event::Cleanup(peer, message) => target.cleanup(peer, message),
                Event::Ended(peer) => target.ended(peer),
            }
        }
        drop(target);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Asks, and gives what waits for the outcome.
    fn ask(&self, to: Peer, question: Question<'_>) -> Asking<'_, T> {
        let call = self.state().ask(to, question);
        Asking { conversations: self, to, call }
    }
}

/// Waits for what was asked; dropped, nobody does.
struct Asking<'a, T: Target> {
    conversations: &'a Conversations<T>,
    to: Peer,
    call: u64,
}

impl<T: Target> Future for Asking<'_, T> {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.conversations.state().calls.poll(self.call, cx.waker())
    }
}

impl<T: Target> Drop for Asking<'_, T> {
    fn drop(&mut self) {
        let waker = self.conversations.state().forget(self.to, self.call);
        drop(waker);
    }
}

/// Waits until a time.
struct Sleep<'a, T: Target> {
    conversations: &'a Conversations<T>,
    until: Time,
    sleeper: u64,
}

impl<T: Target> Future for Sleep<'_, T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.conversations.state().sleep(self.until, self.sleeper, cx.waker())
    }
}

impl<T: Target> Drop for Sleep<'_, T> {
    fn drop(&mut self) {
        let waker = self.conversations.state().wakes(self.until, self.sleeper);
        drop(waker);
    }
}

impl<T: Target> Net for Conversations<T> {
    fn know(&self, peer: Peer, address: SocketAddrV4) {
        self.know_places(peer, &[address]);
    }

    fn call(&self, to: Peer, call: Vec<u8>) -> impl Future<Output = Result<Vec<u8>, Gone>> {
        let asking = self.ask(to, Question::Call(&call));
        async move {
            match asking.await {
                Outcome::Replied(reply) => Ok(reply),
                Outcome::Gone(gone) => Err(gone),
                // Who has it is no part of this cluster: a call waits for a reply.
                Outcome::Answered(..) => Err(Gone::Refused),
            }
        }
    }

    fn request(
        &self,
        to: Peer,
        heads: &Heads,
        data: &[u8],
    ) -> impl Future<Output = Result<(Answer, Vec<u8>), Gone>> {
        let asking = self.ask(to, Question::Request(heads, data));
        async move {
            match asking.await {
                Outcome::Answered(answer, data) => Ok((answer, data)),
                Outcome::Gone(gone) => Err(gone),
                Outcome::Replied(_) => Err(Gone::Refused),
            }
        }
    }

    fn now(&self) -> Time {
        self.state().now
    }

    fn wall_ms(&self) -> u64 {
        self.state().wall_ms
    }

    fn sleep(&self, time: Duration) -> impl Future<Output = ()> {
        let mut state = self.state();
        let (until, sleeper) = (state.now.after(time), state.sleeper());
        Sleep { conversations: self, until, sleeper }
    }
}
