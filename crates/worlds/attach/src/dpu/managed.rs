//! A volume the DPU side serves, and its housekeeping: what is done for it beside answering.
//!
//! ```text
//! at the start        its caches' hosts are waited for, until the grace period ends
//! soon after work     tidying, by deadlines: never while nothing happens
//! nothing to do       idle; a checkpoint before sleeping, if one is due
//! every heartbeat     recalls that nobody answered end
//! a cache is there    a thread maintains the caches (`cache.rs`)
//! at the end          caches flushed, everything durable
//! ```
//!
//! There is one [`Managed`] for each value of bit 10. That of [`outboard_volume::NoVolume`] does
//! nothing and has no deadline.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::task::Spawn;
use outboard_base::{Deadline, Result, SessionId, Time};
use outboard_cache::coherence::Coherence;
use outboard_dpc::dpu::Served;
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_os::wakeup::Wakeup;
use outboard_volume::Housekeeping;

use super::cache::Maintainer;

/// Pause between two steps while there is more to do: other work goes first.
const PAUSE: Duration = Duration::from_millis(5);
/// Pause after a failure.
const FAILED: Duration = Duration::from_secs(10);

/// A volume with its housekeeping.
pub(super) struct Managed<V> {
    pub(super) volume: Arc<V>,
    pub(super) coherence: Arc<Coherence>,
    tidying: Tidying,
    maintainer: Maintainer,
}

/// How the last flush of a volume went; `None` until it has ended.
pub(super) type Closing = Rc<Cell<Option<Result<()>>>>;

impl<V: Housekeeping> Managed<V> {
    pub(super) fn new(served: &Served<V>, now: Time) -> Managed<V> {
        Managed {
            volume: Arc::clone(&served.volume),
            coherence: Arc::clone(&served.coherence),
            tidying: Tidying::new(V::EXISTS.then(|| now.after(PAUSE))),
            maintainer: Maintainer::default(),
        }
    }

    /// Those who brought caches before the start may hold what the volume does not.
    pub(super) fn expect(&self, sessions: Vec<SessionId>) {
        self.coherence.expect(sessions);
    }

    /// Everybody who held something before the start is back, or had the time to come.
    pub(super) fn end_grace(&self, spawn: &dyn Spawn) {
        if !V::EXISTS {
            return;
        }
        self.coherence.expect_nobody();
        let (volume, coherence) = (Arc::clone(&self.volume), Arc::clone(&self.coherence));
        spawn.spawn(Box::pin(async move {
            // What hosts had not written back is handed in, too.
            coherence.recovered().await;
            match volume.end_grace().await {
                Ok(()) => tracing::debug!("the grace period is over"),
                Err(errno) => tracing::error!(
                    %errno,
                    "what nobody holds any more could not be looked up: space is given back at the \
                     next start"
                ),
            }
        }));
    }

    /// What writes back whatever is dirty in caches of its files, for another thread.
    pub(super) fn flusher(&self) -> impl FnOnce() -> Result<()> + Send + use<V> {
        let (volume, coherence) = (Arc::clone(&self.volume), Arc::clone(&self.coherence));
        move || block_on(coherence.flush_all(&*volume))
    }

    /// When it is tidied next.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.tidying.next.get()
    }

    /// Something happened that leaves work behind.
    pub(super) fn tidy_soon(&self, now: Time) {
        if V::EXISTS && !self.tidying.under_way.get() {
            self.tidying.next.set(Some(now.after(PAUSE)));
        }
    }

    /// Begins a step of tidying if it is time: so long after operations were answered (`answered`
    /// in all), or when the last step said so.
    pub(super) fn tidy(&mut self, now: Time, answered: u64, every: Duration, spawn: &dyn Spawn) {
        let tidying = &mut self.tidying;
        if !V::EXISTS || tidying.under_way.get() {
            return;
        }
        if tidying.next.get().is_none() && answered != tidying.answered {
            tidying.next.set(Some(now.after(every)));
        }
        if tidying.next.get().is_none_or(|next| now < next) {
            return;
        }
        tidying.answered = answered;
        tidying.next.set(None);
        tidying.under_way.set(true);
        let (next, under_way) = (Rc::clone(&tidying.next), Rc::clone(&tidying.under_way));
        let volume = Arc::clone(&self.volume);
        spawn.spawn(Box::pin(async move {
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
        }));
    }

    /// Begins a checkpoint if one is due; whether it was.
    pub(super) fn begin_checkpoint(&self, spawn: &dyn Spawn) -> bool {
        let is_due = self.volume.wants_checkpoint();
        if is_due {
            let volume = Arc::clone(&self.volume);
            spawn.spawn(Box::pin(async move {
                if let Err(errno) = volume.checkpoint().await {
                    tracing::error!(%errno, "cannot note down what is durable");
                }
            }));
        }
        is_due
    }

    /// A host has brought a cache: there is a thread that maintains it from now on.
    pub(super) fn maintain_caches(&mut self, wakeup: &Arc<Wakeup>) -> io::Result<()> {
        self.maintainer.has_come(&self.volume, &self.coherence, wakeup)
    }

    /// CPU seconds of that thread.
    pub(super) fn cache_cpu_seconds(&self) -> f64 {
        self.maintainer.cpu_seconds()
    }

    /// The end: caches are flushed, and what was answered is made durable.
    pub(super) fn begin_close(&mut self, spawn: &dyn Spawn) -> Closing {
        if !V::EXISTS {
            return Rc::new(Cell::new(Some(Ok(()))));
        }
        self.maintainer.end();
        let closing = Closing::default();
        let (volume, coherence) = (Arc::clone(&self.volume), Arc::clone(&self.coherence));
        let outcome = Rc::clone(&closing);
        spawn.spawn(Box::pin(async move {
            let flushed = coherence.flush_all(&*volume).await;
            outcome.set(Some(volume.sync().await.and(flushed)));
        }));
        closing
    }
}

/// When a volume is tidied next.
struct Tidying {
    /// `None`: a step is under way, or nothing was done since the last.
    next: Rc<Cell<Option<Time>>>,
    under_way: Rc<Cell<bool>>,
    /// Operations answered when the last step began.
    answered: u64,
}

impl Tidying {
    fn new(first: Option<Time>) -> Tidying {
        Tidying { next: Rc::new(Cell::new(first)), under_way: Rc::default(), answered: 0 }
    }
}
