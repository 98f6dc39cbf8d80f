//! Requests that go on piece by piece, as their pieces come: what a node forwards.
//!
//! Each piece is a message of its own, so that one that is late keeps nothing else waiting: a WRITE
//! whose key names the stream, 30 bits of the request's number. The first one has the heads, and
//! as its address the bytes of the whole request; each further one its offset in it; one without
//! bytes, behind all requests, says that the rest will not come. Only nodes send and take them.

use std::future::Future;

use outboard_wire::roce::{Extension, Packet};
use outboard_wire::shared::{Answer, Heads, Peer};

use super::calls::{Asked, Outcome};
use super::state::{State, Waits, canonical};
use super::{Asking, Conversations, Target};
use crate::{Gone, Header};

/// A key that begins a stream, and one of what follows.
const FIRST: u32 = 1 << 30;
const FURTHER: u32 = 1 << 31;
const NUMBER: u32 = FIRST - 1;
/// The address that says that the rest will not come.
const CUT: u64 = u64::MAX;

/// A request that goes piece by piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    to: Peer,
    call: u64,
}

/// What was said in a conversation, and has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Which conversation; another one with that end has another number.
    pub conversation: u64,
    /// Messages of this end, pieces of streams too.
    pub said: u64,
    /// The first so many have been acknowledged: nothing of them is kept.
    pub gone: u64,
}

/// What a message is to a stream, as its first packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A request of its own.
    None,
    /// Its first piece.
    First {
        /// Which.
        stream: u32,
        /// Bytes of the request.
        bytes: u32,
    },
    /// Another one.
    Further {
        /// Which stream.
        stream: u32,
        /// Where in the request the piece begins.
        offset: u32,
    },
    /// The rest will not come.
    Cut {
        /// Of which stream.
        stream: u32,
    },
}

impl Part {
    /// What `header` says, of a message that `from` sent.
    #[must_use]
    pub fn of(from: Peer, header: &Header) -> Part {
        let key = header.write.filter(|_| matches!(from, Peer::Node(_)));
        let Some((address, key)) = key.filter(|(_, key)| key & (FIRST | FURTHER) != 0) else {
            return Part::None;
        };
        let (stream, at) = (key & NUMBER, u32::try_from(address));
        match at {
            Ok(bytes) if key & FIRST != 0 => Part::First { stream, bytes },
            Ok(offset) => Part::Further { stream, offset },
            // No request is so long.
            Err(_) => Part::Cut { stream },
        }
    }
}

/// The stream that `packet` goes on with, if it does.
pub(super) fn goes_on(from: Peer, packet: &Packet<'_>) -> Option<u32> {
    let Extension::Write { address, key, bytes } = packet.extension else { return None };
    match Part::of(from, &Header { write: Some((address, key)), bytes }) {
        Part::Further { stream, .. } | Part::Cut { stream } => Some(stream),
        Part::None | Part::First { .. } => None,
    }
}

fn number(call: u64) -> u32 {
    u32::try_from(call & u64::from(NUMBER)).unwrap_or(0)
}

impl State {
    fn begin_stream(&mut self, to: Peer, heads: &Heads, mut message: Vec<u8>) -> u64 {
        let call = self.calls.begin(Asked::Request);
        let (mut heads, mut numbered) = (*heads, Vec::new());
        heads.head.request = call;
        let is_whole = heads.emit(&mut numbered).is_ok();
        let bytes = numbered.len() as u64 + u64::from(heads.head.data);
        message.iter_mut().zip(&numbered).for_each(|(to, byte)| *to = *byte);
        let is_long = message.len() as u64 > bytes;
        let fits = is_whole && message.len() >= numbered.len() && !is_long;
        if !fits || bytes > self.config.settings.message_bytes as u64 || to == self.config.me {
            self.calls.end(call, Outcome::Gone(Gone::Refused));
            return call;
        }
        let write = (bytes, FIRST | number(call));
        self.go_to(to, Waits { call, asks: true, write, message });
        call
    }

    /// A piece of a stream whose answer is still awaited; else nobody wants it.
    fn piece(&mut self, to: Peer, call: u64, address: u64, message: Vec<u8>) {
        let Some(link) = self.links.get_mut(&to) else { return };
        let is_wanted = match &link.talk {
            Some(talk) => talk.awaits(call),
            None => link.asks.iter().any(|waits| waits.call == call),
        };
        if is_wanted {
            let write = (address, FURTHER | number(call));
            self.go_to(to, Waits { call, asks: false, write, message });
        }
    }
}

impl<T: Target> Conversations<T> {
    /// Begins a request of which only the first bytes are there: `message` is its heads, which are
    /// given their number here, and what there is of its data.
    #[must_use]
    pub fn begin(&self, to: Peer, heads: &Heads, message: Vec<u8>) -> Stream {
        let to = canonical(to);
        let call = self.state().begin_stream(to, heads, message);
        Stream { to, call }
    }

    /// Goes on with it: `bytes` that stand at `offset` of the request, heads counted.
    pub fn go_on(&self, stream: Stream, offset: u32, bytes: Vec<u8>) {
        self.state().piece(stream.to, stream.call, offset.into(), bytes);
    }

    /// What was said to a peer, if there is a conversation.
    #[must_use]
    pub fn backlog(&self, to: Peer) -> Option<Backlog> {
        let state = self.state();
        let talk = state.links.get(&canonical(to))?.talk.as_ref()?;
        Some(Backlog { conversation: talk.terms.serial, said: talk.said, gone: talk.gone })
    }

    /// The rest of it will not come: it ends.
    pub fn cut(&self, stream: Stream) {
        let mut state = self.state();
        state.piece(stream.to, stream.call, CUT, Vec::new());
        // Nobody answers it.
        state.calls.end(stream.call, Outcome::Gone(Gone::Ended));
    }

    /// Waits for its answer; dropped, nobody does, and it does not go on.
    pub fn answered(&self, stream: Stream) -> impl Future<Output = Result<Answer, Gone>> + use<T> {
        let conversations = self.clone();
        async move {
            let Stream { to, call } = stream;
            match (Asking { conversations: &conversations, to, call }).await {
                Outcome::Answered(answer, _) => Ok(answer),
                Outcome::Gone(gone) => Err(gone),
                Outcome::Replied(_) => Err(Gone::Refused),
            }
        }
    }
}
