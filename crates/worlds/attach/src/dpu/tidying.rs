//! Housekeeping by deadlines: soon again while there is more to do, never while nothing happens.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::{Deadline, Time};

use super::Dpu;
use outboard_os::clock;
use outboard_os::runtime::Runtime;
use outboard_volume::Housekeeping;

/// Pause between two steps while there is more to do: other work goes first.
const PAUSE: Duration = Duration::from_millis(5);
/// Pause after a failure.
const FAILED: Duration = Duration::from_secs(10);

/// When the volume is tidied next.
pub(super) struct Tidying {
    /// `None`: a step is under way, or nothing was done since the last.
    next: Rc<Cell<Option<Time>>>,
    under_way: Rc<Cell<bool>>,
    /// Operations answered when the last step began.
    answered: u64,
}

impl Tidying {
    pub(super) fn new(now: Time) -> Tidying {
        Tidying {
            next: Rc::new(Cell::new(Some(now.after(PAUSE)))),
            under_way: Rc::default(),
            answered: 0,
        }
    }

    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.next.get()
    }

    /// Something happened that leaves work behind.
    pub(super) fn soon(&mut self, now: Time) {
        if !self.under_way.get() {
            self.next.set(Some(now.after(PAUSE)));
        }
    }
}

impl<V: Housekeeping, R: Runtime> Dpu<V, R> {
    pub(super) fn tidy(&mut self, now: Time) {
        let answered = self.service.stats().total();
        let tidying = &mut self.tidying;
        if tidying.under_way.get() {
            return;
        }
        if tidying.next.get().is_none() && answered != tidying.answered {
            tidying.next.set(Some(now.after(self.options.tidy_every)));
        }
        if tidying.next.get().is_none_or(|next| now < next) {
            return;
        }
        tidying.answered = answered;
        tidying.next.set(None);
        tidying.under_way.set(true);
        let (next, under_way) = (Rc::clone(&tidying.next), Rc::clone(&tidying.under_way));
        let volume = Arc::clone(&self.service.kv().volume);
        self.start(async move {
            let pause = match volume.tidy().await {
                Ok(true) => Some(PAUSE),
                Ok(false) => None,
                Err(errno) => {
                    tracing::error!(%errno, "housekeeping failed: it is tried again in 10 s");
                    Some(FAILED)
                }
            };
            next.set(pause.map(|pause| clock::now().after(pause)));
            under_way.set(false);
        });
    }
}
