//! Something done again and again, one step at a time.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use super::Spawn;
use crate::Time;

/// When the next step is due, and whether one is under way. Whoever owns it says what time it is.
#[derive(Default)]
pub struct Recurring {
    next: Rc<Cell<Option<Time>>>,
    under_way: Rc<Cell<bool>>,
}

impl Recurring {
    /// The next step is `after` this, unless one is due before.
    pub fn begin(&self, now: Time, after: Duration) {
        if !self.under_way.get() && self.next.get().is_none() {
            self.next.set(Some(now.after(after)));
        }
    }

    /// The next step is now, unless one is under way.
    pub fn hurry(&self, now: Time) {
        if !self.under_way.get() {
            self.next.set(Some(now));
        }
    }

    /// Starts a step if it is due; when the next one is, it says itself. `None`: when somebody
    /// begins one. Whether it started.
    pub fn step<F>(&self, now: Time, spawn: &dyn Spawn, step: impl FnOnce() -> F) -> bool
    where
        F: Future<Output = Option<Time>> + 'static,
    {
        if self.under_way.get() || self.next.get().is_none_or(|next| now < next) {
            return false;
        }
        self.next.set(None);
        self.under_way.set(true);
        let (next, under_way, step) = (Rc::clone(&self.next), Rc::clone(&self.under_way), step());
        spawn.spawn(Box::pin(async move {
            next.set(step.await);
            under_way.set(false);
        }));
        true
    }

    /// When the next step is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.next.get()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::task::{Work, poll_once};

    const SECOND: Duration = Duration::from_secs(1);

    /// What was begun and waits.
    #[derive(Default)]
    struct Waits(RefCell<Vec<Work>>);

    impl Spawn for Waits {
        fn spawn(&self, work: Work) {
            self.0.borrow_mut().push(work);
        }
    }

    impl Waits {
        fn end(&self) {
            self.0.take().iter_mut().for_each(|work| assert!(poll_once(work.as_mut()).is_ready()));
        }
    }

    #[test]
    fn one_step_is_under_way_and_the_next_is_when_it_said() {
        let (all, waits, at) =
            (Recurring::default(), Waits::default(), |n| Time::default().after(SECOND * n));
        let step =
            |now: u32, next: Option<u32>| all.step(at(now), &waits, || async move { next.map(at) });
        assert!(!step(9, None), "nobody began one");
        all.begin(at(1), SECOND);
        all.begin(at(5), SECOND);
        assert_eq!((all.deadline(), step(1, None)), (Some(at(2)), false));
        assert!(step(2, Some(4)) && !step(2, None), "it is under way");
        all.hurry(at(2));
        all.begin(at(2), SECOND);
        assert_eq!(all.deadline(), None);
        waits.end();
        assert!(!step(3, None) && step(4, None));
        waits.end();
        assert_eq!((all.deadline(), step(9, None)), (None, false), "until somebody begins one");
        all.begin(at(9), SECOND);
        all.hurry(at(9));
        assert!(step(9, None));
    }
}
