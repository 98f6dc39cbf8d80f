//! An application that runs elsewhere: a plug-in in a process of its own (Table 1 in C).
//!
//! What a plug-in cannot do there is hurt: a call that never returns, a wild write or a crash cost
//! its offloading and nothing else. So nothing here calls it. The director asks ([`Ask`]) and goes
//! on; what comes back, a [`Verdict`] or that there is none, is taken up when it comes. Messages
//! are told apart here, by what the plug-in declared ([`Frames`]), and what was read is checked
//! here, by what it declared ([`Expect`]): a message crosses once, with others, and data never.
//!
//! ```text
//!  director -- Ask --> batch --(memory both sides have)--> plug-in: off_pred, off_func
//!     ^                                                       |
//!     +------ Verdict <-- checked <-- keys it looks for, or parts and reads
//! ```
//!
//! The cache table stays here. A plug-in that looks for a key is told what the table has and called
//! again; what it was told is looked at once more before its verdict is followed
//! ([`Verdict::relies`]), so that a key that was retired meanwhile is retired for it too.
//!
//! * [`frames`]: messages of a stream, by declaration;
//! * [`area`]: the memory in which they cross;
//! * [`exchange`]: the bytes that cross, and their checks.

pub mod area;
pub mod exchange;
pub mod frames;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use outboard_medium::Buf;

use super::{
    Answer, Application, Cursor, Division, Framing, Head, Item, Key, Lookup, ReadOp, WriteOp,
};
use crate::dpu::director::FlowId;
pub use frames::{Counted, Frames};

/// The part of an application that a plug-in declares: where messages and answers end. By itself it
/// leaves everything to the host.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// Messages of clients.
    pub messages: Frames,
    /// Answers of the host.
    pub answers: Frames,
}

impl Application for Declared {
    fn frame(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        self.messages.frame(stream, cursor)
    }

    fn frame_answer(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        self.answers.frame(stream, cursor)
    }

    fn off_pred(&self, _: &[u8], _: &dyn Lookup, _: &mut Division) {}

    fn off_func(&self, _: &[u8], _: &dyn Lookup) -> Option<ReadOp> {
        None
    }

    fn answer(&self, _: &[u8], _: ReadOp, _: &[u8]) -> Option<Answer> {
        None
    }

    fn cache(&self, _: WriteOp<'_>, _: &mut Vec<(Key, Item)>) {}

    fn invalidate(&self, _: ReadOp, _: &mut Vec<Key>) {}
}

/// Largest message a plug-in is asked about, bytes; a larger one is the host's.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Messages of one flow that are asked about at once.
pub const AHEAD_MAX: usize = 64;

/// A message to be divided elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Whose.
    pub flow: FlowId,
    /// Which of its messages.
    pub number: u64,
    /// All of it.
    pub message: Vec<u8>,
}

/// A key, and what the table had under it.
pub type Known = (Key, Option<Item>);

/// What became of one message: its parts, and for each part of the DPU side, in order, how it is
/// answered.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The parts.
    pub division: Division,
    /// Of its `Part::Dpu`s.
    pub plans: Vec<Plan>,
    /// What the plug-in was told of the table: it decided by that, so it must still be so.
    pub relies: Vec<Known>,
}

/// How one request is answered: `OffFunc`'s read, and what of it is the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What is read.
    pub read: ReadOp,
    /// What is sent, if it is what was expected.
    pub answering: Answering,
}

/// The answer in the bytes of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answering {
    /// Sent first.
    pub head: Head,
    /// Of the bytes read; those at the end may be missing only if the host is to answer.
    pub payload: Range<usize>,
    /// What must be so.
    pub expect: Vec<Expect>,
}

/// Most of a plan.
pub const EXPECT_MAX: usize = 4;

/// Something that must be so of bytes that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// These bytes stand there.
    Equal {
        /// Where, in the bytes read.
        at: usize,
        /// Which: as many as a head has at most, twice.
        bytes: Vec<u8>,
    },
    /// A number of 8 bytes, least significant first, is this or greater: a version, an LSN.
    AtLeast {
        /// Where.
        at: usize,
        /// The least.
        least: u64,
    },
}

impl Expect {
    /// Most bytes of one that are compared.
    pub const BYTES_MAX: usize = 64;

    fn holds(&self, read: &[u8]) -> bool {
        let there = |at: usize, len: usize| read.get(at..at.checked_add(len)?);
        match self {
            Expect::Equal { at, bytes } => there(*at, bytes.len()) == Some(bytes),
            Expect::AtLeast { at, least } => there(*at, 8)
                .and_then(|number| number.try_into().ok())
                .is_some_and(|number| u64::from_le_bytes(number) >= *least),
        }
    }
}

impl Answering {
    /// The answer, if it is there and all is as expected.
    #[must_use]
    pub fn answer(&self, read: &[u8]) -> Option<Answer> {
        let is_there = read.get(self.payload.clone()).is_some();
        let is_so = is_there && self.expect.iter().all(|expect| expect.holds(read));
        is_so.then(|| Answer { head: self.head, payload: self.payload.clone() })
    }
}

/// A write by the host, done, for as long as somebody looks at it.
#[derive(Clone, Debug)]
pub struct Written {
    /// Number of the file.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// What the bytes lie in.
    pub batch: Arc<Buf>,
    /// Where.
    pub range: Range<usize>,
}

impl Written {
    /// As the application sees it.
    #[must_use]
    pub fn op(&self) -> WriteOp<'_> {
        let bytes = self.batch.get(self.range.clone()).unwrap_or_default();
        WriteOp { file: self.file, offset: self.offset, bytes }
    }
}

/// What a [`Maintainer`] says, some time; `None`: it cannot say.
pub type Saying<T> = Pin<Box<dyn Future<Output = Option<T>>>>;

/// Who says what the table keeps of the host's writes and forgets because it reads (`Cache` and
/// `Invalidate`), wherever that runs. One that cannot say leaves nobody sure of what it said
/// before. It always answers: somebody waits.
pub trait Maintainer: Send + Sync {
    /// As [`super::Application::cache`].
    fn cache(&self, written: Written) -> Saying<Vec<(Key, Item)>>;
    /// As [`super::Application::invalidate`].
    fn invalidate(&self, read: ReadOp) -> Saying<Vec<Key>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_what_was_expected_and_there() {
        let mut read = vec![0u8; 64];
        read[..8].copy_from_slice(&7u64.to_le_bytes());
        read[8..16].copy_from_slice(&100u64.to_le_bytes());
        let equal = Expect::Equal { at: 0, bytes: 7u64.to_le_bytes().to_vec() };
        let head = Head::new(b"head").unwrap();
        let with = |payload: Range<usize>, expect: Vec<Expect>| {
            Answering { head, payload, expect }.answer(&read)
        };
        let least = |least| Expect::AtLeast { at: 8, least };
        assert_eq!(
            with(16..64, vec![equal.clone(), least(100)]),
            Some(Answer { head, payload: 16..64 })
        );
        assert_eq!(with(16..64, vec![equal, least(101)]), None, "older");
        let other = Expect::Equal { at: 0, bytes: vec![8] };
        assert_eq!(with(16..64, vec![other]), None, "another object");
        assert_eq!(with(16..65, vec![]), None, "the file ends before");
        for at in [57, 64, usize::MAX] {
            assert_eq!(with(0..1, vec![Expect::AtLeast { at, least: 0 }]), None);
            assert_eq!(with(0..1, vec![Expect::Equal { at, bytes: vec![0; 8] }]), None);
        }
    }
}
