//! A change is answered when those who were told of the old state have let go of it
//! (`docs/internals/coherence.md`).
//!
//! The volume says whom a change concerns; they hear of it by events, and hosts that keep what an
//! event ends say how far they have acted upon them. A change that found somebody *behind* (not yet
//! there) when its work was done waits in a [`Barrier`] for what was posted by then.
//!
//! # Invariants
//!
//! 1. A barrier's needs are set after every event of its change was posted, so that none is missed
//!    whoever took it from the volume.
//! 2. Nobody is waited for who was not told, keeps nothing, is gone, or made no progress for
//!    [`PATIENCE`]; who is given up on is waited for again once it has moved.
//! 3. Nothing a host does here takes a slot, so that no change can keep another's acts from coming.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use outboard_base::Time;
use outboard_volume::VolumeEvent;

use super::service::AttachmentId;

/// How long a host that makes no progress is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How far one host has acted, and when it was first seen there by somebody who waited.
#[derive(Default)]
pub(super) struct Progress {
    seen: Cell<Option<(u64, Time)>>,
    given_up: Cell<bool>,
}

impl Progress {
    /// A host that has acted upon `acted` events is waited for: false once it was for too long.
    pub(super) fn is_awaited(&self, acted: u64, now: Time) -> bool {
        match self.seen.get() {
            Some((there, since)) if there == acted => {
                let awaited = now.since(since) < PATIENCE;
                if !awaited && !self.given_up.replace(true) {
                    tracing::warn!(
                        acted,
                        "a host does not let go of what is stale: not waited for"
                    );
                }
                awaited
            }
            _ => {
                self.seen.set(Some((acted, now)));
                self.given_up.set(false);
                true
            }
        }
    }
}

/// A change that waits for its answer.
struct Barrier {
    /// Who changes something: it acts upon the changes of others while its own wait.
    asker: AttachmentId,
    /// Up to which event who must have acted; `None` until the events are posted.
    needs: RefCell<Option<Vec<(AttachmentId, u64)>>>,
    over: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Barrier {
    fn of(asker: AttachmentId) -> Barrier {
        let (needs, over, waker) = (RefCell::default(), Cell::new(false), RefCell::default());
        Barrier { asker, needs, over, waker }
    }
}

/// What the attachments of a service wait for of each other.
#[derive(Default)]
pub(super) struct LettingGo {
    /// Events of changes whose work is done, not posted yet.
    untold: RefCell<Vec<VolumeEvent>>,
    barriers: RefCell<Vec<Rc<Barrier>>>,
    /// Somebody may be behind.
    behind: Cell<bool>,
}

impl LettingGo {
    /// The work of a change is done, and `events` are what the volume has to say since: ends when
    /// nobody relies on what was before. Where nobody is concerned it ends at once.
    pub(super) async fn after(&self, events: Vec<VolumeEvent>, asker: AttachmentId) {
        let tells = events.iter().any(VolumeEvent::is_stale);
        if !events.is_empty() {
            self.untold.borrow_mut().extend(events);
        }
        if !tells && !self.behind.get() {
            return;
        }
        let barrier = Rc::new(Barrier::of(asker));
        self.barriers.borrow_mut().push(Rc::clone(&barrier));
        std::future::poll_fn(|context| {
            if barrier.over.get() {
                return Poll::Ready(());
            }
            barrier.waker.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Events to post.
    pub(super) fn take_untold(&self) -> Vec<VolumeEvent> {
        self.untold.take()
    }

    /// A host that keeps what events end was sent one.
    pub(super) fn told(&self) {
        self.behind.set(true);
    }

    /// Whether a change waits.
    pub(super) fn is_awaited(&self) -> bool {
        !self.barriers.borrow().is_empty()
    }

    /// After everything was posted: ends barriers. `behind` says who has not acted upon its last
    /// event, and which that is; `is_behind` whether one still has not acted upon this one.
    pub(super) fn settle(
        &self,
        behind: impl Fn() -> Vec<(AttachmentId, u64)>,
        is_behind: impl Fn(AttachmentId, u64) -> bool,
    ) {
        if !self.behind.get() && !self.is_awaited() {
            return;
        }
        let last = behind();
        self.behind.set(!last.is_empty());
        self.barriers.borrow_mut().retain(|barrier| {
            let mut needs = barrier.needs.borrow_mut();
            let others = || last.iter().filter(|(id, _)| *id != barrier.asker).copied().collect();
            let needs = needs.get_or_insert_with(others);
            needs.retain(|(id, number)| is_behind(*id, *number));
            if !needs.is_empty() {
                return true;
            }
            barrier.over.set(true);
            if let Some(waker) = barrier.waker.take() {
                waker.wake();
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::Context;

    use outboard_base::{Ino, SessionId};

    use super::*;

    const ME: AttachmentId = AttachmentId(99);

    fn stale() -> Vec<VolumeEvent> {
        vec![VolumeEvent::StaleInode { attachment: SessionId(2), ino: Ino(7) }]
    }

    fn is_over(change: &mut Pin<&mut impl Future<Output = ()>>) -> bool {
        change.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// One pass of a service with hosts that were sent `posted` events and acted upon `acted`.
    fn pass(all: &LettingGo, hosts: &[(u64, u64)]) {
        let host = |id: AttachmentId| usize::try_from(id.0).ok().and_then(|id| hosts.get(id));
        if !all.take_untold().is_empty() {
            all.told();
        }
        let behind = || {
            let hosts = (0..).map(AttachmentId).zip(hosts);
            hosts
                .filter(|(_, (posted, acted))| acted < posted)
                .map(|(id, (posted, _))| (id, *posted))
                .collect()
        };
        let is_behind = |id, number| host(id).is_some_and(|(_, acted)| *acted < number);
        all.settle(behind, is_behind);
    }

    #[test]
    fn who_concerns_nobody_waits_for_nothing() {
        let all = LettingGo::default();
        assert!(is_over(&mut pin!(all.after(Vec::new(), ME))));
        assert!(!all.is_awaited());
    }

    /// Each of those who were told must have acted, upon what was posted by the end of the work;
    /// not upon what came later, and who is gone is not waited for.
    #[test]
    fn a_change_is_answered_when_all_who_were_told_have_acted() {
        let all = LettingGo::default();
        let mut change = pin!(all.after(stale(), ME));
        assert!(!is_over(&mut change), "its events are not even posted");
        pass(&all, &[(3, 2), (5, 4)]);
        assert!(!is_over(&mut change));
        pass(&all, &[(9, 3), (5, 4)]);
        assert!(!is_over(&mut change), "the second has not");
        pass(&all, &[(9, 3), (6, 5)]);
        assert!(is_over(&mut change));
        assert!(!all.is_awaited());

        let mut change = pin!(all.after(stale(), ME));
        assert!(!is_over(&mut change));
        pass(&all, &[(9, 9), (7, 6)]);
        assert!(!is_over(&mut change));
        pass(&all, &[(9, 9)]);
        assert!(is_over(&mut change), "the second is gone");
    }

    /// The kernel of who changes a file holds its lock until that is answered: an event that needs
    /// the lock, too, was waited for until it was given up.
    #[test]
    fn a_change_does_not_wait_for_its_own_asker() {
        let all = LettingGo::default();
        let mut change = pin!(all.after(stale(), AttachmentId(0)));
        assert!(!is_over(&mut change));
        pass(&all, &[(3, 2), (5, 4)]);
        assert!(!is_over(&mut change), "the other has not");
        pass(&all, &[(3, 2), (5, 5)]);
        assert!(is_over(&mut change));
    }

    /// What another's pass took from the volume is waited for all the same.
    #[test]
    fn events_that_others_took_count() {
        let all = LettingGo::default();
        let mut first = pin!(all.after(stale(), ME));
        assert!(!is_over(&mut first));
        pass(&all, &[(1, 0)]);
        let mut second = pin!(all.after(Vec::new(), ME));
        assert!(!is_over(&mut second));
        pass(&all, &[(1, 0)]);
        assert!(!is_over(&mut first) && !is_over(&mut second));
        pass(&all, &[(1, 1)]);
        assert!(is_over(&mut first) && is_over(&mut second));
        assert!(is_over(&mut pin!(all.after(Vec::new(), ME))), "nobody is behind any more");
    }

    #[test]
    fn who_makes_no_progress_is_given_up_until_it_moves() {
        let progress = Progress::default();
        let at = |seconds| Time(0).after(Duration::from_secs(seconds));
        assert!(progress.is_awaited(4, at(100)), "it may have been idle for long");
        assert!(progress.is_awaited(4, at(104)));
        assert!(progress.is_awaited(5, at(104)), "it moved");
        assert!(progress.is_awaited(5, at(108)));
        assert!(!progress.is_awaited(5, at(109)));
        assert!(!progress.is_awaited(5, at(200)));
        assert!(progress.is_awaited(6, at(201)));
    }
}
