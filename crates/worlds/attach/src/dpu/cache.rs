//! Hosts' caches in the real world: taken in at attach, maintained by a thread of their own.
//!
//! What a request needs (a recall, an fsync) is flushed where the request is served. What nobody
//! waits for (writing back in time, room, credit) is the work of the thread `outboard-cache`. It
//! sleeps while nobody brought a cache, and looks once a second while somebody did.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use outboard_cache::coherence::{CacheSetup, Coherence, Figures};
use outboard_cache::dpu::{CacheAttachError, Control};
use outboard_cache::geometry::Area;
use outboard_cache::policy::Policies;
use outboard_link::dma::Dma;
use outboard_wire::attach::QueuesHello;
use serde_json::{Value, json};

use super::peers::has_ended;
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_os::wakeup::Wakeup;
use outboard_volume::Housekeeping;

/// Takes a host's cache in, managed by `policies` where the host chooses nothing. `process` is the
/// host's, if it can be watched.
pub(super) fn take_in(
    hello: &QueuesHello,
    dma: Arc<dyn Dma>,
    process: Option<OwnedFd>,
    policies: Policies,
) -> Result<CacheSetup, CacheAttachError> {
    let area = Area { at: hello.cache_at, len: hello.cache_len };
    let control = Control::attach(dma, area, policies)?;
    let is_dead = Box::new(move || process.as_ref().is_none_or(has_ended));
    Ok(CacheSetup { control, is_dead, clock: clock::now, wall: clock::wall })
}

/// The thread that maintains the caches of one volume's files, once there are any.
#[derive(Default)]
pub(super) struct Maintainer {
    running: Option<Running>,
    /// Nanoseconds of CPU it has used.
    cpu_ns: Arc<AtomicU64>,
}

struct Running {
    /// Wakes the thread for a round; dropped when the side ends.
    news: mpsc::Sender<()>,
    stop: Arc<AtomicBool>,
    coherence: Arc<Coherence>,
    thread: JoinHandle<()>,
}

impl Maintainer {
    /// A cache has come.
    pub(super) fn has_come<V: Housekeeping>(
        &mut self,
        volume: &Arc<V>,
        coherence: &Arc<Coherence>,
        wakeup: &Arc<Wakeup>,
    ) -> io::Result<()> {
        if self.running.is_none() {
            let (sender, news) = mpsc::channel();
            let wake = sender.clone();
            coherence.set_maintainer(move || {
                // A thread that has ended said in the log why.
                let _ended = wake.send(());
            });
            let stop = Arc::new(AtomicBool::new(false));
            let round = Round {
                volume: Arc::clone(volume),
                coherence: Arc::clone(coherence),
                wakeup: Arc::clone(wakeup),
                stop: Arc::clone(&stop),
                cpu_ns: Arc::clone(&self.cpu_ns),
            };
            let thread = std::thread::Builder::new()
                .name("outboard-cache".into())
                .spawn(move || round.run(&news))?;
            let coherence = Arc::clone(coherence);
            self.running = Some(Running { news: sender, stop, coherence, thread });
        }
        if let Some(running) = &self.running {
            // A thread that has ended said in the log why.
            let _ended = running.news.send(());
        }
        Ok(())
    }

    /// CPU seconds of the thread.
    pub(super) fn cpu_seconds(&self) -> f64 {
        std::time::Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// Ends the thread; a round under way is finished.
    pub(super) fn end(&mut self) {
        let Some(Running { news, stop, coherence, thread }) = self.running.take() else { return };
        stop.store(true, Ordering::Relaxed);
        // Both senders gone, the thread waits for no more news.
        coherence.clear_maintainer();
        drop(news);
        if thread.join().is_err() {
            tracing::error!("the thread that maintains caches panicked");
        }
    }
}

impl Drop for Maintainer {
    fn drop(&mut self) {
        self.end();
    }
}

struct Round<V> {
    volume: Arc<V>,
    coherence: Arc<Coherence>,
    wakeup: Arc<Wakeup>,
    stop: Arc<AtomicBool>,
    cpu_ns: Arc<AtomicU64>,
}

impl<V> Drop for Round<V> {
    /// However the thread ends: nobody waits for its rounds.
    fn drop(&mut self) {
        self.coherence.clear_maintainer();
    }
}

impl<V: Housekeeping> Round<V> {
    fn run(&self, news: &mpsc::Receiver<()>) {
        while news.recv().is_ok() {
            while self.coherence.has_caches() && !self.stop.load(Ordering::Relaxed) {
                // Asked for, or in time: either is one round.
                if let Err(mpsc::RecvTimeoutError::Disconnected) =
                    news.recv_timeout(Coherence::MAINTAIN_EVERY)
                {
                    return;
                }
                while news.try_recv().is_ok() {}
                if block_on(self.coherence.maintain(&*self.volume)) {
                    // Hosts may have to be notified that files changed.
                    self.wakeup.notify();
                }
                self.count();
            }
        }
    }

    fn count(&self) {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let used = std::time::Duration::try_from(used).unwrap_or_default();
        self.cpu_ns.store(u64::try_from(used.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Figures of one cache for `status`.
pub(super) fn json(figures: &Figures) -> Value {
    let Figures { counts, policies, tallied, .. } = figures;
    json!({
        "session": format!("{:x}", figures.session.0),
        "page_size": figures.page_size,
        "pages": figures.total,
        "free": figures.free,
        "dirty": figures.dirty,
        "inodes": figures.inodes,
        "promised": figures.promised,
        "through": figures.through,
        "hits": tallied.hits,
        "misses": tallied.misses,
        "written_in_cache": tallied.writes,
        "written_through": tallied.through,
        "read_ahead": counts.ahead,
        "read_ahead_used": counts.ahead_used,
        "filled": counts.filled,
        "written_back": counts.pulled,
        "dirty_again": counts.dirty_again,
        "replaced": counts.replaced,
        "taken_out": counts.taken_out,
        "repaired": counts.repaired,
        "searched": counts.searched,
        "replace": policies.replace.as_str(),
        "prefetch": policies.prefetch.as_str(),
        "flush": policies.flush.as_str(),
        "dirty_limit": policies.dirty,
    })
}
