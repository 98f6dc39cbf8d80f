//! What was asked and has not ended: a table of outcomes and of who waits for them.

use std::collections::BTreeMap;
use std::task::{Poll, Waker};

use outboard_wire::shared::Answer;

use crate::Gone;

/// What ends what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Of a call.
    Replied(Vec<u8>),
    /// Of a request, with the data of a read.
    Answered(Answer, Vec<u8>),
    /// Neither.
    Gone(Gone),
}

/// Which of both was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Call,
    Request,
}

struct Entry {
    asked: Asked,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// All of them, by the number that travels.
pub(super) struct Calls {
    next: u64,
    all: BTreeMap<u64, Entry>,
    /// To be woken once nothing is locked.
    pub(super) woken: Vec<Waker>,
}

impl Calls {
    /// The first number is `next`: random, so that numbers of an earlier life are none of this one.
    pub(super) fn new(next: u64) -> Calls {
        Calls { next, all: BTreeMap::new(), woken: Vec::new() }
    }

    pub(super) fn begin(&mut self, asked: Asked) -> u64 {
        let call = self.next;
        self.next = self.next.wrapping_add(1);
        self.all.insert(call, Entry { asked, outcome: None, waker: None });
        call
    }

    /// Whether `call` waits for this kind of outcome.
    pub(super) fn waits(&self, call: u64, asked: Asked) -> bool {
        self.all.get(&call).is_some_and(|entry| entry.asked == asked && entry.outcome.is_none())
    }

    pub(super) fn end(&mut self, call: u64, outcome: Outcome) {
        let Some(entry) = self.all.get_mut(&call).filter(|entry| entry.outcome.is_none()) else {
            return;
        };
        entry.outcome = Some(outcome);
        self.woken.extend(entry.waker.take());
    }

    /// The outcome, or who is woken once there is one.
    pub(super) fn poll(&mut self, call: u64, waker: &Waker) -> Poll<Outcome> {
        let Some(entry) = self.all.get_mut(&call) else {
            return Poll::Ready(Outcome::Gone(Gone::Ended));
        };
        match entry.outcome.take() {
            Some(outcome) => {
                self.all.remove(&call);
                Poll::Ready(outcome)
            }
            None => {
                if entry.waker.as_ref().is_none_or(|known| !known.will_wake(waker)) {
                    // What is dropped under a lock must be nobody's last hold on a task.
                    self.woken.extend(entry.waker.replace(waker.clone()));
                }
                Poll::Pending
            }
        }
    }

    /// Nobody waits any more. Who did is to be dropped with nothing locked.
    pub(super) fn forget(&mut self, call: u64) -> Option<Waker> {
        self.all.remove(&call)?.waker
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
