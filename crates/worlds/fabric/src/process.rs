//! The loop of a process, or thread, that is a part of a cluster, and its end in order.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::task::Spawn;
use outboard_flow::Target;
use outboard_link::pace;
use outboard_os::clock;
use outboard_os::event_loop::{EventLoop, Pace, Pass, Polled};
use outboard_os::runtime::Runtime;
use outboard_os::wakeup::Wakeup;

use crate::runtime::FabricRuntime;

/// What the wakeup calls datagrams and completions.
const COMES: NonZeroU64 = NonZeroU64::MIN;
/// Longest sleep of a part that waits for nothing.
const LONGEST: Duration = Duration::from_secs(60);

/// A part with what its thread sleeps on.
pub struct Part<T: Target> {
    runtime: Rc<FabricRuntime<T>>,
    wakeup: Arc<Wakeup>,
}

impl<T: Target> Part<T> {
    /// Of `runtime`, which notifies `wakeup`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(runtime: Rc<FabricRuntime<T>>, wakeup: Arc<Wakeup>) -> io::Result<Part<T>> {
        if let Some(comes) = runtime.completes() {
            wakeup.watch(comes, COMES)?;
        }
        Ok(Part { runtime, wakeup })
    }

    /// Serves until `stop` says so; who has it say so notifies the wakeup.
    ///
    /// # Errors
    /// The kernel's.
    pub fn serve(&self, pace: pace::Config, stop: &dyn Fn() -> bool) -> io::Result<()> {
        EventLoop::new(pace).run(&mut Serving { part: self, stop })
    }

    /// Goes on until `work` has ended, at most so long; what it ended with.
    ///
    /// # Errors
    /// The kernel's.
    pub fn finish<O: 'static>(
        &self,
        work: impl Future<Output = O> + 'static,
        limit: Duration,
    ) -> io::Result<Option<O>> {
        let (ended, outcome) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(None)));
        let (says, into) = (Rc::clone(&ended), Rc::clone(&outcome));
        self.runtime.spawn(Box::pin(async move {
            into.set(Some(work.await));
            says.set(true);
        }));
        let end = clock::now().after(limit);
        let stop = move || ended.get() || clock::now() >= end;
        let mut serving = Serving { part: self, stop: &stop };
        while !stop() {
            if self.runtime.pass() > 0 {
                continue;
            }
            if let Some(until) = serving.begin_sleep(clock::now())? {
                serving.wait(until.min(end).since(clock::now()))?;
                serving.end_sleep(clock::now())?;
            }
        }
        Ok(outcome.take())
    }
}

impl<T: Target> Drop for Part<T> {
    /// Another may drive the runtime, and watch it.
    fn drop(&mut self) {
        if let Some(comes) = self.runtime.completes() {
            let _not_watched = self.wakeup.forget(comes);
        }
    }
}

struct Serving<'a, T: Target> {
    part: &'a Part<T>,
    stop: &'a dyn Fn() -> bool,
}

impl<T: Target> Polled for Serving<'_, T> {
    fn pass(&mut self, _: &mut Pace) -> io::Result<Pass> {
        let found = self.part.runtime.pass();
        if (self.stop)() {
            return Ok(Pass::Over);
        }
        Ok(Pass::found(found, clock::now()))
    }

    fn begin_sleep(&mut self, now: Time) -> io::Result<Option<Time>> {
        if !self.part.runtime.begin_sleep() {
            return Ok(None);
        }
        Ok(Some(self.part.runtime.deadline().unwrap_or_else(|| now.after(LONGEST))))
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        self.part.wakeup.listen(limit, |_| ()).map(drop)
    }

    fn end_sleep(&mut self, _: Time) -> io::Result<()> {
        self.part.runtime.end_sleep();
        Ok(())
    }
}
