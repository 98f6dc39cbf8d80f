//! The lease that all delegations live by, and the server's life.
//!
//! It counts from the *sending* of the last renewal that was answered, less a tenth: clocks differ
//! in speed. Where it was over and goes on again, the server may have given files away meanwhile:
//! it *lapsed*, and what is held from before is not believed until the server was asked again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::WaitList;
use outboard_base::{Errno, Result, Time};

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The server's life, once it is known.
    life: Option<u64>,
    /// It is another than it was: nothing is asked any more.
    changed: bool,
    /// The server takes this client's key no more.
    revoked: bool,
    until: Time,
    lapses: u64,
    /// Bytes of data that the nodes can take, now and if they were empty.
    free: u64,
    capacity: u64,
    /// Of the free bytes, so many are put aside.
    reserved: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Lease {
    state: Mutex<State>,
    renewed: WaitList,
}

impl Lease {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A renewal that was sent at `sent` is answered now.
    pub(crate) fn renewed(&self, life: u64, term_ms: u32, sent: Time, now: Time) {
        let mut state = self.state();
        if *state.life.get_or_insert(life) != life {
            state.changed = true;
        } else if term_ms > 0 {
            let term = Duration::from_millis(u64::from(term_ms));
            let less = if is_planted(Fault::Margin) { Duration::ZERO } else { term / 10 };
            let until = sent.after(term.saturating_sub(less));
            if now >= state.until {
                state.lapses += 1;
            }
            state.until = state.until.max(until);
        }
        drop(state);
        self.renewed.notify();
    }

    /// What nodes can take.
    pub(crate) fn space_is(&self, free: u64, capacity: u64) {
        let mut state = self.state();
        (state.free, state.capacity) = (free, capacity);
    }

    /// Free bytes, of how many.
    pub(crate) fn space(&self) -> (u64, u64) {
        let state = self.state();
        (state.free, state.capacity)
    }

    /// Puts free bytes aside; false if there are not so many.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let mut state = self.state();
        let reserved = state.reserved.saturating_add(bytes);
        let enough = reserved <= state.free;
        if enough {
            state.reserved = reserved;
        }
        enough
    }

    pub(crate) fn unreserve(&self, bytes: u64) {
        let mut state = self.state();
        state.reserved = state.reserved.saturating_sub(bytes);
    }

    /// Whether what is held may be used.
    pub(crate) fn is_alive(&self, now: Time) -> bool {
        let state = self.state();
        !state.changed && now < state.until
    }

    /// How long what is held may be used.
    pub(crate) fn left(&self, now: Time) -> Duration {
        let state = self.state();
        if state.changed { Duration::ZERO } else { state.until.since(now) }
    }

    /// How often it was over and went on.
    pub(crate) fn lapses(&self) -> u64 {
        self.state().lapses
    }

    /// Whether the server's life is another than it was.
    pub(crate) fn has_changed(&self) -> bool {
        self.state().changed
    }

    /// The server takes this client's key no more; whether that is news.
    pub(crate) fn revoked(&self) -> bool {
        let mut state = self.state();
        state.until = Time(0);
        let is_news = !std::mem::replace(&mut state.revoked, true);
        drop(state);
        self.renewed.notify();
        is_news
    }

    /// Whether it does not.
    pub(crate) fn is_revoked(&self) -> bool {
        self.state().revoked
    }

    /// Waits until it is alive. Who finds the server's life changed waits for ever: another life of
    /// this side asks what is to be asked.
    ///
    /// # Errors
    /// `EACCES` once the client's key is revoked.
    pub(crate) async fn alive(&self, now: impl Fn() -> Time) -> Result<()> {
        let ready = || match self.is_revoked() {
            true => Some(Err(Errno::EACCES)),
            false => self.is_alive(now()).then_some(Ok(())),
        };
        self.renewed.until(ready).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// R8: from the sending, and a tenth less.
    #[test]
    fn a_lease_counts_from_the_sending_of_its_renewal() {
        let lease = Lease::default();
        assert!(!lease.is_alive(at(0)));
        lease.renewed(7, 10_000, at(1), at(5));
        assert!(lease.is_alive(at(9)) && !lease.is_alive(at(10)));
        lease.renewed(7, 10_000, at(3), at(4));
        assert!(lease.is_alive(at(11)) && !lease.is_alive(at(12)));
        lease.renewed(7, 10_000, at(2), at(6));
        assert!(lease.is_alive(at(11)), "an answer that comes late takes nothing away");
        assert_eq!(lease.lapses(), 1);
        assert_eq!(lease.left(at(11)), Duration::from_secs(1));
        assert_eq!(lease.left(at(13)), Duration::ZERO);
        lease.renewed(7, 10_000, at(11), at(12));
        assert_eq!(lease.lapses(), 2, "it was over for a moment");
    }

    #[test]
    fn another_life_ends_it() {
        let lease = Lease::default();
        lease.renewed(7, 10_000, at(1), at(1));
        lease.renewed(8, 0, at(2), at(2));
        assert!(lease.has_changed() && !lease.is_alive(at(3)));
        lease.renewed(7, 10_000, at(3), at(3));
        assert!(!lease.is_alive(at(4)), "what was missed meanwhile is not known");
    }

    #[test]
    fn a_revoked_key_ends_it_for_good_and_nobody_waits() {
        let lease = Lease::default();
        lease.renewed(7, 10_000, at(1), at(1));
        assert!(lease.revoked() && !lease.revoked());
        assert!(!lease.is_alive(at(2)));
        let waited = outboard_base::task::run(lease.alive(|| at(2)));
        assert_eq!(waited, Err(Errno::EACCES));
    }

    #[test]
    fn no_more_is_put_aside_than_there_is() {
        let lease = Lease::default();
        lease.space_is(100, 200);
        assert!(lease.reserve(60) && !lease.reserve(41) && lease.reserve(40));
        lease.unreserve(50);
        assert!(lease.reserve(50) && !lease.reserve(1) && !lease.reserve(u64::MAX));
        assert_eq!(lease.space(), (100, 200));
    }
}
