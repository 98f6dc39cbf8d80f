//! The context ring of Figure 13: reads that are under way, for all clients of a worker.
//!
//! A context is freed at the head of the ring, in the order in which reads were begun. What a read
//! brought is handed out as soon as it is there: the order that a client expects is kept by the
//! slots of its own flow, so that nobody waits for the read of somebody else.

use std::collections::VecDeque;
use std::ops::Range;

use outboard_medium::Buf;

use super::ReadOp;
use super::pool::Pool;

/// Names a read under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// What the file service left of a read.
#[derive(Debug)]
pub struct Filled {
    /// The buffer it was given.
    pub buffer: Buf,
    /// Where in it the bytes asked for lie, fewer than asked for at the end of a file; `None` if
    /// the read failed.
    pub bytes: Option<Range<usize>>,
}

/// Why a request was not begun: the host gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Every context is in use.
    RingFull,
    /// No buffer of that size is left.
    PoolEmpty,
}

struct Context<C> {
    client: C,
    read: ReadOp,
}

/// A read that ended.
#[derive(Debug)]
pub struct Ended<C> {
    /// Who asked.
    pub client: C,
    /// What was asked.
    pub read: ReadOp,
    /// What was read.
    pub filled: Filled,
}

/// The ring and its pool. `C` is what the caller needs to find the request again.
pub struct Engine<C> {
    /// `None` where the read has ended, and one before it has not.
    contexts: VecDeque<Option<Context<C>>>,
    /// Number of the context at the head; contexts are numbered in the order they were begun.
    head: u64,
    capacity: usize,
    /// Where buffers come from and return to.
    pub pool: Pool,
}

impl<C> Engine<C> {
    /// A ring of `capacity` contexts over `pool`.
    #[must_use]
    pub fn new(capacity: usize, pool: Pool) -> Engine<C> {
        Engine { contexts: VecDeque::with_capacity(capacity), head: 0, capacity, pool }
    }

    /// Lines 5 and 8 to 13: takes a buffer of `space` bytes and a context. Nothing is begun if
    /// either is missing.
    pub fn begin(
        &mut self,
        client: C,
        read: ReadOp,
        space: usize,
    ) -> Result<(Ticket, Buf), Refusal> {
        if self.contexts.len() >= self.capacity {
            return Err(Refusal::RingFull);
        }
        let buffer = self.pool.take(space).ok_or(Refusal::PoolEmpty)?;
        let ticket = Ticket(self.head + self.contexts.len() as u64);
        self.contexts.push_back(Some(Context { client, read }));
        Ok((ticket, buffer))
    }

    /// Lines 19 to 26: the file service ended a read. A ticket that is not under way is of no
    /// effect.
    pub fn complete(&mut self, ticket: Ticket, filled: Filled) -> Option<Ended<C>> {
        let at = ticket.0.checked_sub(self.head).and_then(|at| usize::try_from(at).ok());
        let context = at.and_then(|at| self.contexts.get_mut(at)).and_then(Option::take);
        let Some(Context { client, read }) = context else {
            self.pool.give(filled.buffer);
            return None;
        };
        while self.contexts.pop_front_if(|context| context.is_none()).is_some() {
            self.head += 1;
        }
        Some(Ended { client, read, filled })
    }

    /// Contexts in use: from the oldest read under way to the youngest.
    #[must_use]
    pub fn len(&self) -> usize {
        self.contexts.len()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.contexts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: ReadOp = ReadOp { file: 1, offset: 0, bytes: 10 };

    fn filled(buffer: Buf) -> Filled {
        Filled { buffer, bytes: Some(0..10) }
    }

    #[test]
    fn reads_are_handed_out_as_they_end_and_contexts_are_freed_in_order() {
        let mut engine = Engine::new(3, Pool::new(1 << 20));
        let begun: Vec<_> = (0..3).map(|i| engine.begin(i, READ, 10).unwrap()).collect();
        assert_eq!(engine.begin(3, READ, 10).unwrap_err(), Refusal::RingFull);
        let mut begun = begun.into_iter();
        let (first, first_buf) = begun.next().unwrap();
        for (client, (ticket, buf)) in (1..).zip(begun) {
            let ended = engine.complete(ticket, filled(buf)).unwrap();
            assert_eq!((ended.client, ended.filled.bytes), (client, Some(0..10)));
            assert!(engine.complete(ticket, filled(Buf::zeroed(1))).is_none(), "ended already");
        }
        assert_eq!(engine.begin(3, READ, 10).unwrap_err(), Refusal::RingFull, "behind the head");
        let ended = engine.complete(first, Filled { buffer: first_buf, bytes: None }).unwrap();
        assert!(ended.client == 0 && ended.filled.bytes.is_none());
        assert!(engine.is_empty());
        // Late: of no effect.
        assert!(engine.complete(first, filled(Buf::zeroed(1))).is_none());
        assert!(engine.begin(4, READ, 10).is_ok());
    }

    #[test]
    fn an_empty_pool_refuses_before_anything_is_begun() {
        let mut engine = Engine::new(3, Pool::new(4096));
        let _held = engine.begin(0, READ, 10).unwrap();
        assert_eq!(engine.begin(1, READ, 10).unwrap_err(), Refusal::PoolEmpty);
        assert_eq!(engine.len(), 1);
    }
}
