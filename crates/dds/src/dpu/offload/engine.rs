//! The context ring of Figure 13: reads that are under way, completed in the order they were begun.

use std::collections::VecDeque;
use std::ops::Range;

use outboard_kv::medium::Buf;

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

enum Status {
    Pending,
    Complete(Filled),
}

struct Context<C> {
    client: C,
    read: ReadOp,
    status: Status,
}

/// A read that ended, at the head of the ring.
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
    contexts: VecDeque<Context<C>>,
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
        self.contexts.push_back(Context { client, read, status: Status::Pending });
        Ok((ticket, buffer))
    }

    /// The file service ended a read. A ticket that is not under way is of no effect.
    pub fn complete(&mut self, ticket: Ticket, filled: Filled) {
        let at = ticket.0.checked_sub(self.head).and_then(|at| usize::try_from(at).ok());
        let context = at.and_then(|at| self.contexts.get_mut(at));
        match context {
            Some(context) if matches!(context.status, Status::Pending) => {
                context.status = Status::Complete(filled);
            }
            _ => self.pool.give(filled.buffer),
        }
    }

    /// Lines 19 to 26: the read at the head, if it has ended.
    pub fn next_ended(&mut self) -> Option<Ended<C>> {
        let ended = |context: &mut Context<C>| matches!(context.status, Status::Complete(_));
        let Context { client, read, status } = self.contexts.pop_front_if(ended)?;
        self.head += 1;
        match status {
            Status::Complete(filled) => Some(Ended { client, read, filled }),
            Status::Pending => None,
        }
    }

    /// Reads under way or not yet taken by [`Engine::next_ended`].
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
    fn reads_end_in_the_order_they_were_begun() {
        let mut engine = Engine::new(3, Pool::new(1 << 20));
        let begun: Vec<_> = (0..3).map(|i| engine.begin(i, READ, 10).unwrap()).collect();
        assert_eq!(engine.begin(3, READ, 10).unwrap_err(), Refusal::RingFull);
        let mut begun = begun.into_iter();
        let (first, first_buf) = begun.next().unwrap();
        for (ticket, buf) in begun {
            engine.complete(ticket, filled(buf));
        }
        assert!(engine.next_ended().is_none(), "the head is pending");
        engine.complete(first, Filled { buffer: first_buf, bytes: None });
        let ended: Vec<_> = std::iter::from_fn(|| engine.next_ended()).collect();
        assert_eq!(ended.iter().map(|e| e.client).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(ended[0].filled.bytes.is_none() && ended[1].filled.bytes.is_some());
        // Twice, and late: of no effect.
        engine.complete(first, filled(Buf::zeroed(1)));
        assert!(engine.is_empty() && engine.next_ended().is_none());
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
