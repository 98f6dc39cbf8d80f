//! The shape of a conversation, and the bounded [`Outbox`] its effects go to.
//!
//! A protocol that talks to somebody (a flow, a lease, a replication chain, a reconnect) is a state
//! machine: it owns no clock, socket or thread, consumes one input at a time, and says what is to
//! be done. Its world feeds inputs, carries effects out and sleeps until the next deadline:
//!
//! ```text
//!            input, now                     effects
//!  world ───────────────▶ machine.handle ───────────▶ Outbox ──▶ world carries them out
//!    ▲                                                             │ what comes of it is an input
//!    └──────────── sleeps until machine.next_deadline() ◀──────────┘
//! ```
//!
//! Each machine has these two methods, in its own nouns. It is a convention and not a trait:
//! nothing is generic over machines, and an enum of its own tells more than an associated type.
//!
//! ```
//! use std::time::Duration;
//! use outboard_base::machine::Outbox;
//! use outboard_base::{Deadline, Time};
//!
//! enum Input { Asked, Answered, Deadline }
//! #[derive(Debug, PartialEq)]
//! enum Effect { Send, GiveUp }
//!
//! /// Asks once more, a second later; then no more.
//! #[derive(Default)]
//! struct Question { again: Option<Time>, asked: u32 }
//!
//! impl Question {
//!     /// Most effects of one call of [`Question::handle`].
//!     const EFFECTS_MAX: usize = 1;
//!
//!     /// Consumes one input. Pushes at most [`Question::EFFECTS_MAX`] effects.
//!     fn handle(&mut self, now: Time, input: Input, out: &mut Outbox<Effect>) {
//!         let is_due = self.again.is_some_and(|at| at <= now);
//!         match input {
//!             Input::Answered => self.again = None,
//!             Input::Deadline if is_due && self.asked == 2 => {
//!                 self.again = None;
//!                 out.push(Effect::GiveUp);
//!             }
//!             Input::Asked | Input::Deadline if self.again.is_none() || is_due => {
//!                 self.again = Some(now.after(Duration::from_secs(1)));
//!                 self.asked += 1;
//!                 out.push(Effect::Send);
//!             }
//!             Input::Asked | Input::Deadline => {}
//!         }
//!     }
//!
//!     /// When to come back with [`Input::Deadline`] if nothing else arrives first.
//!     fn next_deadline(&self) -> Option<Deadline> {
//!         self.again
//!     }
//! }
//!
//! let (mut question, mut out) = (Question::default(), Outbox::new(Question::EFFECTS_MAX));
//! question.handle(Time(0), Input::Asked, &mut out);
//! assert_eq!(out.pop(), Some(Effect::Send));
//! question.handle(Time(5), Input::Answered, &mut out);
//! assert!(out.pop().is_none() && question.next_deadline().is_none());
//! ```
//!
//! # The convention
//!
//! 1. **Each call says how much it may do**: the work of one `handle` is bounded, and so is the
//!    number of its effects, by a constant the machine names (`EFFECTS_MAX`).
//! 2. **Time is an argument.** `now` never runs backwards from one call to the next; a machine
//!    reads no clock and takes an early or late `Deadline` input for what it is: it compares `now`
//!    with what it waits for.
//! 3. **Effects are concrete enums**, carried out in the order they were pushed. Whatever may be
//!    delayed or lost is an effect; what is immediate (bytes of a region, random numbers, counters)
//!    is a small trait or an argument.
//! 4. **Inputs may come late, twice, or not at all.** One that no longer fits the state is nothing.
//! 5. **The world empties the outbox before the next input**, or asks [`Outbox::room`] whether the
//!    next one's effects fit. So a machine with a fixed number of effects never finds it full.
//!    One that has more to do than fits (packets of a burst) uses [`Outbox::try_push`], keeps what
//!    was refused, and has `next_deadline` say "at once".

use std::collections::VecDeque;

/// What a machine wants done, oldest first, and no more of it than its capacity.
///
/// # When it is full
///
/// [`Outbox::try_push`] refuses and gives the effect back; nothing is lost and nothing grows.
/// [`Outbox::push`] is for a machine whose `EFFECTS_MAX` is within the room its world left it: to
/// push beyond the capacity is then a fault of the program. Where assertions are on it is a panic;
/// where they are off the effect is kept all the same, as an effect that is dropped is a message
/// that was never sent, and one too many is only memory.
#[derive(Clone, Debug)]
pub struct Outbox<E> {
    effects: VecDeque<E>,
    capacity: usize,
}

impl<E> Outbox<E> {
    /// An empty outbox for `capacity` effects. It allocates here and, within its capacity, never
    /// again.
    #[must_use]
    pub fn new(capacity: usize) -> Outbox<E> {
        Outbox { effects: VecDeque::with_capacity(capacity), capacity }
    }

    /// One more effect, of a machine that keeps to its bound; see [`Outbox`] for when it does not.
    pub fn push(&mut self, effect: E) {
        debug_assert!(self.room() > 0, "more effects than the {} there is room for", self.capacity);
        self.effects.push_back(effect);
    }

    /// One more effect, or the effect back if there is no room.
    pub fn try_push(&mut self, effect: E) -> Result<(), E> {
        if self.room() == 0 {
            return Err(effect);
        }
        self.effects.push_back(effect);
        Ok(())
    }

    /// The oldest effect, to be carried out now.
    pub fn pop(&mut self) -> Option<E> {
        self.effects.pop_front()
    }

    /// How many effects fit still.
    #[must_use]
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.effects.len())
    }

    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_come_out_in_the_order_they_went_in() {
        let mut out = Outbox::new(3);
        out.push('a');
        out.push('b');
        assert_eq!((out.pop(), out.room()), (Some('a'), 2));
        out.push('c');
        assert_eq!([out.pop(), out.pop(), out.pop()], [Some('b'), Some('c'), None]);
        assert!(out.is_empty());
    }

    #[test]
    fn a_full_outbox_gives_back_what_does_not_fit() {
        let mut out = Outbox::new(2);
        assert_eq!([out.try_push(1), out.try_push(2), out.try_push(3)], [Ok(()), Ok(()), Err(3)]);
        assert_eq!((out.room(), out.pop()), (0, Some(1)));
        assert_eq!(out.try_push(3), Ok(()), "there is room again");
        assert_eq!([out.pop(), out.pop(), out.pop()], [Some(2), Some(3), None]);
        assert_eq!(Outbox::new(0).try_push(1), Err(1));
    }

    /// A machine that breaks its word is found where assertions are on, and loses nothing where
    /// they are off.
    #[test]
    fn a_push_beyond_the_capacity_is_a_fault_and_loses_nothing() {
        let beyond = || {
            let mut out = Outbox::new(1);
            out.push(1);
            out.push(2);
            (out.pop(), out.pop())
        };
        let outcome = std::panic::catch_unwind(beyond).ok();
        let kept = (!cfg!(debug_assertions)).then_some((Some(1), Some(2)));
        assert_eq!(outcome, kept);
    }

    #[test]
    fn within_its_capacity_it_allocates_once() {
        let mut out = Outbox::new(4);
        let room = out.effects.capacity();
        for round in 0..1_000 {
            (0..4).for_each(|effect| out.push(round + effect));
            while out.pop().is_some() {}
        }
        assert_eq!(out.effects.capacity(), room);
    }
}
