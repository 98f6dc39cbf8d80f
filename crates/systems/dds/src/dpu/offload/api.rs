//! Table 1 as a trait, and the values it speaks of.

use crate::table::{Item, Key, Reader};
use std::ops::Range;

/// The cache table, as user code sees it.
pub trait Lookup: Send + Sync {
    /// The item of `key`, whole: never a mixture of two.
    fn get(&self, key: Key) -> Option<Item>;
}

impl Lookup for Reader {
    fn get(&self, key: Key) -> Option<Item> {
        Reader::get(self, key)
    }
}

/// One read of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOp {
    /// Number of the file.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u32,
}

/// One write of a file by the host, done.
#[derive(Clone, Copy, Debug)]
pub struct WriteOp<'a> {
    /// Number of the file.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// What was written.
    pub bytes: &'a [u8],
}

/// How far a message is known of which not all bytes have come. It is kept with the message and
/// given back when there are more bytes, so that nothing is looked at twice. An application that
/// leaves it alone is shown the message from its start each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Bytes at the start of the message that are not shown again. Set by the application, never
    /// beyond what it was shown, nor beyond the message's end.
    pub passed: usize,
    /// What it has to remember of them; zeros at the start of a message.
    pub state: [u64; Cursor::WORDS],
}

impl Cursor {
    /// Words of [`Cursor::state`].
    pub const WORDS: usize = 12;

    /// Of the bytes of a message that are there, those to be shown.
    #[must_use]
    pub fn shown(self, message: &[u8]) -> &[u8] {
        message.get(self.passed..).unwrap_or_default()
    }
}

/// Where a message ends in the bytes of a stream. All numbers count from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The first so many bytes are one message; at least one.
    Whole(usize),
    /// Nothing can be said before there are at least so many bytes in all.
    More(usize),
    /// These are no messages of the application: the rest of the stream is forwarded untouched.
    Foreign,
}

/// Which objects a request of the host reads or changes. Until it is answered, requests of the same
/// connection for them go to the host too, so that a client sees its own writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touches {
    /// None.
    Nothing,
    /// One.
    One(Key),
    /// Perhaps all.
    Everything,
}

impl Touches {
    /// Whether `key` may be among them.
    #[must_use]
    pub fn include(self, key: Key) -> bool {
        match self {
            Touches::Nothing => false,
            Touches::One(own) => own == key,
            Touches::Everything => true,
        }
    }
}

/// Bytes of a part: a range of the message, or made by the predicate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// Of the message.
    Message(Range<usize>),
    /// Of what the predicate made.
    Made(Range<usize>),
}

impl Span {
    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Span::Message(range) | Span::Made(range) => range.len(),
        }
    }

    /// Whether it is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One part of a divided message, in the order in which the client expects the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes of the answer that need nobody.
    Literal(Span),
    /// A request of the host (`HostReqs`): one valid message, answered by one message.
    Host {
        /// The request.
        request: Span,
        /// What it reads or changes.
        touches: Touches,
    },
    /// A request of the offload engine (`DPUReqs`); it changes nothing, and is a valid message for
    /// the host if it cannot be answered here.
    Dpu {
        /// The request.
        request: Span,
        /// The object it reads.
        key: Key,
    },
}

/// What a predicate makes of one message: its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Division {
    parts: Vec<Part>,
    made: Vec<u8>,
}

impl Division {
    /// Empties it for the next message.
    pub fn clear(&mut self) {
        self.parts.clear();
        self.made.clear();
    }

    /// The parts so far.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What was made so far.
    #[must_use]
    pub fn made(&self) -> &[u8] {
        &self.made
    }

    /// The bytes of `span`; none where it is out of bounds.
    #[must_use]
    pub fn bytes<'a>(&'a self, span: &Span, message: &'a [u8]) -> &'a [u8] {
        match span {
            Span::Message(range) => message.get(range.clone()),
            Span::Made(range) => self.made.get(range.clone()),
        }
        .unwrap_or_default()
    }

    /// Makes bytes that are not in the message.
    pub fn make(&mut self, bytes: &[&[u8]]) -> Span {
        let start = self.made.len();
        bytes.iter().for_each(|bytes| self.made.extend_from_slice(bytes));
        Span::Made(start..self.made.len())
    }

    /// A part of the answer that is known.
    pub fn literal(&mut self, span: Span) {
        self.parts.push(Part::Literal(span));
    }

    /// A request of the host.
    pub fn host(&mut self, request: Span, touches: Touches) {
        self.parts.push(Part::Host { request, touches });
    }

    /// A request of the offload engine.
    pub fn dpu(&mut self, request: Span, key: Key) {
        self.parts.push(Part::Dpu { request, key });
    }
}

/// Bytes that stand before a payload, kept in place: a protocol's header of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; Head::MAX],
    len: u8,
}

impl Head {
    /// Most bytes.
    pub const MAX: usize = 32;

    /// A copy of `bytes`; `None` if they are too many.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Head> {
        let mut head = Head { bytes: [0; Head::MAX], len: u8::try_from(bytes.len()).ok()? };
        head.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(head)
    }
}

impl std::ops::Deref for Head {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// The answer to an offloaded request: what stands before, and a range of the bytes read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Sent first.
    pub head: Head,
    /// Of the bytes read; sent from where they lie.
    pub payload: Range<usize>,
}

/// One application: the functions of Table 1, and the framing that a stream needs.
///
/// All are called on the DPU side's threads, several at once. They do not block, allocate little,
/// and may be given any bytes: a client sent them. One that panics or takes too long loses the
/// request to the host; one that does not return is left behind, and nothing is asked until it has
/// ([`super::contained`], [`super::health`]).
pub trait Application: Send + Sync {
    /// Where the first message of what a client sent ends. `stream` begins
    /// [`Cursor::passed`] bytes behind the start of that message.
    fn frame(&self, stream: &[u8], cursor: &mut Cursor) -> Framing;

    /// Where the first answer of what the host sent ends; the same. What of an answer is passed may
    /// be on its way to the client before the rest has come.
    fn frame_answer(&self, stream: &[u8], cursor: &mut Cursor) -> Framing;

    /// What a client is told that finds no room, before its connection is closed.
    fn refusal(&self) -> &'static [u8] {
        b""
    }

    /// `OffPred`: divides one whole message. The parts, in order, are the answer's; a message that
    /// is left without parts goes to the host whole.
    fn off_pred(&self, message: &[u8], table: &dyn Lookup, division: &mut Division);

    /// `OffFunc`: the file read that answers `request`; `None` sends it to the host.
    fn off_func(&self, request: &[u8], table: &dyn Lookup) -> Option<ReadOp>;

    /// What of the bytes read answers `request`; `None` sends it to the host, as when they are not
    /// what the table promised. `bytes` begins where the read began and may be shorter.
    fn answer(&self, request: &[u8], read: ReadOp, bytes: &[u8]) -> Option<Answer>;

    /// `Cache`: what the table shall keep of a write by the host. Called when the write is done,
    /// before it is answered.
    fn cache(&self, write: WriteOp<'_>, items: &mut Vec<(Key, Item)>);

    /// `Invalidate`: the keys to forget because the host reads. Called before the read is begun.
    fn invalidate(&self, read: ReadOp, keys: &mut Vec<Key>);

    /// Whether [`Application::invalidate`] ever says anything. If not, reads of the host do not
    /// wait for it.
    fn invalidates(&self) -> bool {
        true
    }
}
