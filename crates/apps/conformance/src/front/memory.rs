//! What the fronts without a kernel share: polling, the calendar, opening a volume.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outboard_base::{Errno, Result, Timestamp, limits};
use outboard_kv::Kv;
use outboard_kv::mem::MemKv;
use outboard_kv::object::Compression;
use outboard_kvfs::check::Options as CheckOptions;
use outboard_kvfs::{Kvfs, Options};
use outboard_medium::Medium;
use outboard_medium::mem::MemMedium;

use super::Features;

/// A future that asks to be polled more often than this hangs.
const POLLS_MAX: usize = 1 << 20;
/// Polls before the thread sleeps for who wakes it: engines in memory need no waking.
const POLLS_BUSY: usize = 64;
/// Its longest sleep between two polls.
const NAP: Duration = Duration::from_millis(1);
/// Rounds of housekeeping after which there must be nothing left to do.
const TIDY_MAX: usize = 1 << 16;

/// A volume over engines that outlive it.
pub(super) type Volume = Kvfs<Arc<MemKv>, Arc<MemMedium>>;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls `future` to its end.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> Result<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    for polls in 0..POLLS_MAX {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Ok(value);
        }
        if polls >= POLLS_BUSY {
            std::thread::park_timeout(NAP);
        }
    }
    Err(Errno::ETIMEDOUT)
}

/// The present.
pub(super) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: since.as_secs().cast_signed(), nsec: since.subsec_nanos() }
}

/// Opens, or makes, the volume in `kv` and `medium`.
pub(super) fn open<K: Kv, M: Medium>(
    kv: K,
    medium: M,
    compression: Compression,
) -> std::result::Result<Kvfs<K, M>, String> {
    let options =
        Options { mode: 0o777, segment: 4 << 20, id: 7, compression, ..Options::default() };
    block_on(Kvfs::open(kv, medium, options, now()))
        .map_err(|errno| format!("the volume does not answer: {errno}"))?
        .map_err(|error| error.to_string())
}

/// Does all the housekeeping there is.
pub(super) fn tidy<K: Kv, M: Medium>(volume: &Kvfs<K, M>) -> Result<()> {
    for _ in 0..TIDY_MAX {
        if !block_on(volume.tidy())?? {
            return Ok(());
        }
    }
    Err(Errno::ETIMEDOUT)
}

/// The file system check, contents included.
pub(super) fn verify<K: Kv, M: Medium>(volume: &Kvfs<K, M>) -> std::result::Result<(), String> {
    let options = CheckOptions { contents: true, repair: false };
    let report = block_on(volume.check(options)).and_then(|report| report);
    let report = report.map_err(|errno| format!("the check cannot be made: {errno}"))?;
    if report.is_clean() {
        return Ok(());
    }
    let found: Vec<String> = report.findings.iter().take(5).map(ToString::to_string).collect();
    Err(format!("{} faults: {}", report.total, found.join("; ")))
}

/// What a front that talks to a volume without a kernel can show.
pub(super) fn features(name: &str) -> Features {
    Features {
        name: name.to_owned(),
        name_max: limits::NAME_MAX,
        change_counter: true,
        kernel: false,
        lock_owners: true,
        cancel_lock: true,
        any_cred: true,
        acl: true,
        steady: true,
        reads_seen: true,
        writes_seen: true,
        outboard: true,
    }
}
