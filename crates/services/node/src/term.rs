//! Terms of the volume's servers. A server that stood still while another took its place can still
//! send what it had begun: it is refused.
//!
//! A server's term is the number of the opening of the volume that it serves, which only goes up
//! and is durable before the server asks anybody. Each of its calls says it. What always holds:
//!
//! - The highest term that was heard is durable here before a call of it that changes anything is
//!   done: it is the fence of the volume's own object, in the high half.
//! - What is done of a lower one was begun before, and has ended before the first of the higher one
//!   begins.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_base::Ino;
use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::{RangeGuard, RangeLocks};
use outboard_medium::Medium;
use outboard_wire::shared::Reason;
use outboard_wire::shared::call::Call;

use crate::Store;

/// The object that the volume is: no file's. Its fence is of the last opening.
const VOLUME: u64 = 0;

/// What is known of terms.
#[derive(Debug)]
pub(crate) struct Terms {
    heard: Mutex<Heard>,
    /// Calls that change something hold it together, who notes a higher term alone.
    changes: RangeLocks,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    /// The highest.
    term: u32,
    /// The highest that is durable.
    noted: u32,
    /// Calls that were refused.
    late: u64,
}

impl Terms {
    /// Those that a store knows.
    pub(crate) fn of<M: Medium>(store: &Store<M>) -> Terms {
        let term = u32::try_from(store.fence(VOLUME) >> 32).unwrap_or(u32::MAX);
        let heard = Mutex::new(Heard { term, noted: term, late: 0 });
        Terms { heard, changes: RangeLocks::default() }
    }

    /// The highest, and how many calls were refused.
    pub(crate) fn figures(&self) -> [(&'static str, u64); 2] {
        let Heard { term, late, .. } = *self.heard();
        [("term", term.into()), ("late_calls", late)]
    }

    /// Calls that were refused.
    pub(crate) fn late(&self) -> u64 {
        self.heard().late
    }

    /// A call may be done from now on, until what is returned is dropped. One that says no term is
    /// of the lowest, if it changes anything.
    ///
    /// # Errors
    /// The reply: a later one was heard, or this one cannot be noted, which what is durable needs.
    pub(crate) async fn enter<M: Medium>(
        &self,
        store: &Store<M>,
        term: Option<u32>,
        call: &Call,
    ) -> Result<Option<RangeGuard<'_>>, Refused> {
        let changes = changes(call);
        if term.is_none() && !changes {
            return Ok(None);
        }
        let term = term.unwrap_or(0);
        let noted = self.note(store, term).await;
        let beside = if changes { Some(self.changes.shared(Ino(VOLUME)).await) } else { None };
        let mut heard = self.heard();
        if term < heard.term && !is_planted(Fault::Term) && !is_planted(Fault::Buried) {
            heard.late += 1;
            return Err(Refused::Later(heard.term));
        }
        // Where there is no room, or nothing durable any more, keys are taken all the same: what is
        // there is read.
        if changes && !matches!(call, Call::Keys { .. }) {
            noted.map_err(Refused::Unnoted)?;
        }
        Ok(beside)
    }

    /// A term is heard, and durable if it is the highest.
    async fn note<M: Medium>(&self, store: &Store<M>, term: u32) -> Result<(), Reason> {
        if term <= self.heard().noted {
            return Ok(());
        }
        let _alone = self.changes.exclusive(Ino(VOLUME)).await;
        let is_highest = {
            let mut heard = self.heard();
            heard.term = heard.term.max(term);
            term == heard.term && term > heard.noted
        };
        if is_highest {
            store.seal(VOLUME, u64::from(term) << 32).await?;
            self.heard().noted = term;
        }
        Ok(())
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a call is not done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refused {
    /// A server of this term was heard.
    Later(u32),
    /// Its term cannot be made durable.
    Unnoted(Reason),
}

/// Whether a call changes what the node does from then on. What only looks may take long, and holds
/// no later server up.
fn changes(call: &Call) -> bool {
    let is_change = matches!(call, Call::Seal { .. } | Call::Purge { .. } | Call::Keys { .. });
    is_change || matches!(call, Call::Resolve { .. } | Call::Trust { .. })
}

/// A call, and the term in which it is asked, if it says. Nothing, if it cannot be read.
pub(crate) fn unwrap(call: Call) -> Option<(Option<u32>, Call)> {
    let Call::InTerm { term, call } = call else { return Some((None, call)) };
    let call = Call::decode(&call).ok()?;
    let is_nested = matches!(call, Call::InTerm { .. });
    (!is_nested).then_some((Some(term), call))
}
