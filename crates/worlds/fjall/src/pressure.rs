//! The engine's back-pressure, waited for where the wait can end.
//!
//! With four sealed memtables or thirty runs in its first level the engine holds each commit until
//! its worker has made room, for ever if the worker has died of an I/O error meanwhile: and the
//! DPU side's one poller with it. So commits wait here, a little earlier, others being served in
//! between, and learn what became of the worker.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fjall::Keyspace;
use outboard_base::Errno;
use outboard_base::task::yield_now;
use outboard_kv::KvError;
use tracing::error;

/// Sealed memtables with which no commit begins. One more may be sealed before the next look: each
/// takes far more than is committed between two.
const SEALED: usize = 3;
/// Tables of the first level with which no commit begins.
const TABLES: usize = 25;
/// Bytes committed between two looks: a look takes the engine's locks.
const LOOK_AFTER: usize = 1 << 20;
/// Between two looks while nothing may begin.
const PAUSE: Duration = Duration::from_millis(1);
/// Longest wait: a worker that lives has written three memtables by then on the slowest of disks.
const LIMIT: Duration = Duration::from_mins(2);

/// How much was committed since somebody looked.
#[derive(Default)]
pub(super) struct Pressure(AtomicUsize);

impl Pressure {
    /// So many bytes were handed to the engine.
    pub(super) fn committed(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Waits until the engine would not hold a commit. `works` says whether its worker lives.
    pub(super) async fn subsides(
        &self,
        pairs: &Keyspace,
        works: impl Fn() -> Result<(), KvError>,
    ) -> Result<(), KvError> {
        if self.0.load(Ordering::Relaxed) < LOOK_AFTER {
            return Ok(());
        }
        let high = || pairs.sealed_memtable_count() >= SEALED || pairs.l0_table_count() >= TABLES;
        wait(high, works, LIMIT).await?;
        self.0.store(0, Ordering::Relaxed);
        Ok(())
    }
}

/// Waits while `high`, as long as it `works`, and no longer than `limit`.
async fn wait(
    high: impl Fn() -> bool,
    works: impl Fn() -> Result<(), KvError>,
    limit: Duration,
) -> Result<(), KvError> {
    let begun = Instant::now();
    while high() {
        works()?;
        if begun.elapsed() >= limit {
            error!(
                seconds = limit.as_secs(),
                "the key-value engine makes no room in memory: every later commit is refused"
            );
            return Err(KvError::Io(Errno::EIO));
        }
        std::thread::sleep(PAUSE);
        yield_now().await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use outboard_os::executor::block_on;

    #[test]
    fn a_wait_ends_with_the_pressure_the_worker_or_the_limit() {
        let looks = Cell::new(0);
        let high = || {
            looks.set(looks.get() + 1);
            looks.get() < 5
        };
        assert_eq!(block_on(wait(high, || Ok(()), LIMIT)), Ok(()));
        assert_eq!(looks.get(), 5);
        let tries = Cell::new(0);
        let works = || {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { Ok(()) } else { Err(KvError::Io(Errno::EIO)) }
        };
        let dead = Err(KvError::Io(Errno::EIO));
        assert_eq!(block_on(wait(|| true, works, LIMIT)), dead);
        assert_eq!(tries.get(), 3);
        assert_eq!(block_on(wait(|| true, || Ok(()), Duration::from_millis(20))), dead);
    }
}
