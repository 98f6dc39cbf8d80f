//! A volume in a pool of a Ceph cluster: connecting, claiming, and keeping the claim.
//!
//! While the volume is open three threads look after it: one works on what the pool's key-value
//! store does behind commits, one renews the claim, and one watches the clock, since a renewal may
//! take as long as the pool takes to answer. When the claim is lost, or was not renewed before
//! others may take it, the process ends there and then: the engine lets none of its late writes
//! land, hosts wait as for any DPU side that died, and `run` starts another, which is told who owns
//! the volume or takes it up again. The clock is looked at before every answer, too: who was
//! stopped for longer than the claim lasts does not answer from memory when it goes on.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_base::Time;
use outboard_kv::KvError;
use outboard_medium::Medium;
use outboard_os::clock;
use outboard_os::executor::block_on;
use outboard_pool::{
    Claim, ClaimError, Me, Options, Pool, PoolError, PooledKv, Striped, Taken, Taking, Terms,
    Wanted,
};
use outboard_rados::{Location, Rados, Subject};
use serde_json::{Map, Value, json};

use crate::engine::{IN_DOUBT, end};
use crate::error::StoreError;
use crate::name::remembered_volume;
use crate::open::{Standby, random_id};

/// The key-value store of a volume in a pool.
pub(crate) type PoolKv = Arc<PooledKv<Rados>>;
/// Its medium.
pub(crate) type PoolMedium = Arc<Striped<Rados>>;

/// Between two looks of the claim's threads whether they are to end.
const NAP: Duration = Duration::from_millis(100);
/// Before work behind the commits that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// An owner expires this long after an operation of its own would have failed.
const MARGIN: Duration = Duration::from_secs(15);
/// So often an owner with standbys renews its claim before they may take it.
const RENEWALS: u32 = 6;

/// A volume in a pool that is ours until this is dropped.
pub(crate) struct Claimed {
    parts: Parts,
    volume: u64,
    claim_epoch: u64,
    owner: String,
    threads: ClaimThreads,
}

/// Everything that lies in the pool.
#[derive(Clone)]
struct Parts {
    pool: Arc<Rados>,
    kv: PoolKv,
    medium: PoolMedium,
}

/// What is to be told of the store in the pool.
pub(crate) fn figures(kv: &PoolKv) -> Value {
    let (counts, pool) = (kv.counts(), kv.pool());
    let done = pool.figures();
    let mut operations = Map::new();
    for (verb, tallies) in [("write", done.writes), ("read", done.reads)] {
        for (subject, tally) in Subject::ALL.into_iter().zip(tallies) {
            let told = json!({
                "count": tally.ended,
                "failed": tally.failed,
                "p50_us_below": micros(tally.p50),
                "p99_us_below": micros(tally.p99),
            });
            operations.insert(format!("{} {verb}", subject.name()), told);
        }
    }
    json!({
        "store": pool.location().to_string(),
        "pool": pool.identity(),
        "pairs": counts.pairs,
        "pair_bytes": counts.pair_bytes,
        "shards": counts.shards,
        "shards_known": counts.known,
        "splits": counts.splits,
        "journal": {
            "objects": counts.journal_objects,
            "bytes": counts.journal_bytes,
            "unapplied": counts.unapplied,
            "commits": counts.commits,
            "groups": counts.appends,
        },
        "operations": operations,
        "in_flight": done.in_flight,
        "timed_out": done.timed_out,
        "lost": done.lost,
        "found_again": done.found_again,
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The location that a `--store` names.
pub(crate) fn location(store: &str) -> Result<Location, StoreError> {
    store.parse().map_err(|error| StoreError::usage(format!("--store {error}")))
}

fn refused(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::data(error.to_string())
}

/// Connects, and takes the volume there, or makes one if `create`. `data` is the data directory,
/// whose lock is held. `None`: who stands by waits no more.
pub(crate) fn claim(
    location: &Location,
    data: &Path,
    create: bool,
    standby: Option<&Standby<'_>>,
) -> Result<Option<Claimed>, StoreError> {
    let pool = Arc::new(Rados::connect(location).map_err(|error| refused(&error))?);
    may_fence(&pool)?;
    let Some(mut claim) = take(&pool, data, create, standby)? else { return Ok(None) };
    let (volume, claim_epoch) = (claim.volume(), claim.epoch());
    let kv = PooledKv::open(Arc::clone(&pool), &claim, Options::default());
    let medium = Striped::open(Arc::clone(&pool), &claim);
    let (kv, medium) = renewing(&pool, &mut claim, || (block_on(kv), block_on(medium)));
    let kv = Arc::new(kv.map_err(|error| refused(&error))?);
    let medium = Arc::new(medium.map_err(|error| refused(&error))?);
    block_on(claim.renew(&*pool, clock::awake_or_not())).map_err(|error| refused(&error))?;
    let parts = Parts { pool, kv, medium };
    let threads = ClaimThreads::start(parts.clone(), claim)?;
    Ok(Some(Claimed { parts, volume, claim_epoch, owner: me(data), threads }))
}

/// Does some work and renews the claim meanwhile: opening may take longer than it lasts, with a
/// long journal, or in a pool that is slow to answer.
fn renewing<R>(pool: &Rados, claim: &mut Claim, work: impl FnOnce() -> R) -> R {
    /// Says that the work is over, also if it panicked.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                std::thread::sleep(NAP);
                let now = clock::awake_or_not();
                // Whether it was lost the last renewal says.
                if now >= claim.renew_at()
                    && let Err(error) = block_on(claim.renew(pool, now))
                {
                    tracing::debug!(%error, "the claim is not renewed while the volume is opened");
                }
            }
        });
        let _over = Over(&over);
        work()
    })
}

/// Who could not shut out an owner that is gone would learn so when there is one: then nobody has
/// the volume.
fn may_fence(pool: &Rados) -> Result<(), StoreError> {
    block_on(pool.may_fence()).map_err(|error| {
        let remedy = match error {
            PoolError::Denied => rights(pool.location()),
            _ => String::new(),
        };
        refused(&format!(
            "{}: {error}: an owner that is gone could not be shut out{remedy}",
            pool.identity()
        ))
    })
}

/// What others may rely on: an owner whose operations would long have failed is a dead one; with
/// standbys, one that is silent for so long as they wait.
fn terms(location: &Location, standby: Option<&Standby<'_>>) -> Terms {
    match standby {
        None => Terms { renew: Duration::from_secs(5), expiry: location.timeout + MARGIN },
        Some(Standby { takeover, .. }) => Terms { renew: *takeover / RENEWALS, expiry: *takeover },
    }
}

/// Takes the claim; waits while another's may have expired, and who stands by for as long as it
/// is another's.
fn take(
    pool: &Arc<Rados>,
    data: &Path,
    create: bool,
    standby: Option<&Standby<'_>>,
) -> Result<Option<Claim>, StoreError> {
    let terms = terms(pool.location(), standby);
    let random = || random_id().map_err(|error| refused(&error));
    let wanted = match remembered_volume(data) {
        Some(volume) => Wanted::Only(volume),
        None if create => Wanted::OrNew(random()?),
        None => Wanted::Any,
    };
    let me = Me { name: me(data), place: place(data)? };
    let mut taking = Taking::new(me.clone(), wanted, terms);
    let mut told = Told::Nothing;
    loop {
        match block_on(taking.step(&**pool, clock::awake_or_not())) {
            Ok(Taken::Mine(claim)) => return Ok(Some(claim)),
            Ok(Taken::Wait(until)) => {
                let wait = until.since(clock::awake_or_not());
                if standby.is_none() && wait > NAP {
                    told.say(Told::Waits, || {
                        tracing::info!(
                            expiry = ?terms.expiry,
                            "the volume has an owner: waiting whether it still renews its claim"
                        );
                    });
                }
                if !nap(wait, standby) {
                    return Ok(None);
                }
            }
            Err(ClaimError::Held(name)) if standby.is_some() => {
                told.say(Told::StandsBy, || tracing::info!(%name, "stands by: it is served"));
                taking = Taking::new(me.clone(), wanted, terms);
            }
            Err(ClaimError::Pool(error @ (PoolError::TimedOut | PoolError::Io(_))))
                if standby.is_some() =>
            {
                told.say(Told::Failed, || {
                    tracing::warn!(%error, "stands by, and does not reach the pool: trying again");
                });
                if !nap(RETRY, standby) {
                    return Ok(None);
                }
            }
            Err(error) => {
                let remedy = match error {
                    ClaimError::Missing | ClaimError::OtherVolume(_) => format!(
                        "; or remove {} to let go of the volume that was there",
                        data.join("store").display()
                    ),
                    ClaimError::Pool(PoolError::Denied) => rights(pool.location()),
                    _ => String::new(),
                };
                return Err(refused(&format!("{}: {error}{remedy}", pool.identity())));
            }
        }
    }
}

/// What was said last of why the claim is not ours: it is said once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Waits,
    StandsBy,
    Failed,
}

impl Told {
    fn say(&mut self, what: Told, say: impl FnOnce()) {
        if std::mem::replace(self, what) != what {
            say();
        }
    }
}

/// Sleeps so long; false: who stands by waits no more.
fn nap(time: Duration, standby: Option<&Standby<'_>>) -> bool {
    let end = clock::awake_or_not().after(time);
    let left = || end.since(clock::awake_or_not());
    loop {
        if standby.is_some_and(|standby| !(standby.goes_on)()) {
            return false;
        }
        let left = left();
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(if standby.is_some() { left.min(NAP) } else { left });
    }
}

/// How a user is given all that an owner must be able to do: read, write, and shut out the last.
fn rights(location: &Location) -> String {
    let Location { pool, user, .. } = location;
    format!(
        "; {user} must be able to read and write in it, and to shut out an owner that is gone: \
         `ceph auth caps {user} mon 'allow r, allow command \"osd blocklist\"' osd 'allow \
         rw pool={pool}'`, or name another with &user=client.NAME"
    )
}

/// What another host is told that wants the volume.
fn me(data: &Path) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("process {} of host {host}, data directory {}", std::process::id(), data.display())
}

/// The number of this data directory's lock, by which the next owner here knows that the last one
/// is dead: the lock, which went with the process, is ours. Another kernel, or another file, has
/// another: a copy of the directory says nothing of who has the original's.
fn place(data: &Path) -> Result<u64, StoreError> {
    let lock = data.join("lock");
    let lock = std::fs::metadata(&lock)
        .map_err(|error| refused(&format!("cannot look at {}: {error}", lock.display())))?;
    let kernel = Path::new("/proc/sys/kernel/random/boot_id");
    let kernel = std::fs::read_to_string(kernel)
        .map_err(|error| refused(&format!("cannot read {}: {error}", kernel.display())))?;
    let mut hasher = DefaultHasher::new();
    (kernel, lock.dev(), lock.ino()).hash(&mut hasher);
    // Zero is nobody's.
    Ok(hasher.finish() | 1)
}

impl Claimed {
    /// Store and medium.
    pub(crate) fn parts(&self) -> (PoolKv, PoolMedium) {
        (Arc::clone(&self.parts.kv), Arc::clone(&self.parts.medium))
    }

    /// The volume's number.
    pub(crate) fn volume(&self) -> u64 {
        self.volume
    }

    /// Ends the process if others may have the volume by now.
    pub(crate) fn check(&self) -> impl Fn() + 'static {
        let until = Arc::clone(&self.threads.serves_until);
        move || look_at_the_clock(&until)
    }

    /// What is to be told of the claim.
    pub(crate) fn figures(&self) -> impl Fn() -> Value + 'static {
        let until = Arc::clone(&self.threads.serves_until);
        let (owner, claim_epoch, volume) = (self.owner.clone(), self.claim_epoch, self.volume);
        move || {
            let until = Time(until.load(Ordering::Acquire));
            json!({
                "owner": owner,
                "epoch": claim_epoch,
                "volume": format!("{volume:016x}"),
                "seconds_left": until.since(clock::awake_or_not()).as_secs(),
            })
        }
    }

    /// Empties the journal and waits for writes that nobody waits for. Who gives up the claim is
    /// not fenced: none of its writes may land later, on what is the next owner's then.
    fn end_work(&self) -> Result<(), KvError> {
        let Parts { kv, medium, .. } = &self.parts;
        block_on(kv.drain())?;
        Ok(block_on(medium.flush())?)
    }

    /// What the pool can hold, bytes.
    pub(crate) fn capacity(&self) -> Result<u64, StoreError> {
        block_on(self.parts.pool.usage())
            .map(|usage| usage.capacity)
            .map_err(|error| refused(&error))
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let Parts { pool, kv, .. } = &self.parts;
        let over = self.end_work();
        if let Err(error) = &over {
            tracing::warn!(
                %error,
                "the claim is not given up, as the pool may still have something to do for us: the \
                 next owner has to wait, and shuts that out"
            );
        }
        let Some(claim) = self.threads.end(kv).filter(|_| over.is_ok()) else { return };
        if let Err(error) = block_on(claim.release(&**pool)) {
            tracing::warn!(%error, "the claim could not be given up: the next owner has to wait");
        }
    }
}

/// The threads beside an open volume.
struct ClaimThreads {
    stop: Arc<AtomicBool>,
    claim: Arc<Mutex<Option<Claim>>>,
    /// Nanoseconds of the clock, until when the claim is ours for certain.
    serves_until: Arc<AtomicU64>,
    watching: Option<JoinHandle<()>>,
    renewing: Option<JoinHandle<()>>,
    working: Option<JoinHandle<()>>,
}

impl ClaimThreads {
    fn start(parts: Parts, claim: Claim) -> Result<ClaimThreads, StoreError> {
        let stop = Arc::new(AtomicBool::new(false));
        let serves_until = Arc::new(AtomicU64::new(claim.serves_until().0));
        let claim = Arc::new(Mutex::new(Some(claim)));
        let (over, deadline) = (Arc::clone(&stop), Arc::clone(&serves_until));
        let watch = move || {
            while !over.load(Ordering::Acquire) {
                std::thread::sleep(NAP);
                look_at_the_clock(&deadline);
            }
        };
        let until = Arc::clone(&serves_until);
        let (told, held) = (Arc::clone(&stop), Arc::clone(&claim));
        let (ended, kv) = (Arc::clone(&stop), Arc::clone(&parts.kv));
        let renew = move || {
            while !told.load(Ordering::Acquire) {
                std::thread::sleep(NAP);
                look_after(&parts, &held, &until);
            }
        };
        let work = move || {
            if let Err(error) = block_on(kv.survey()) {
                tracing::debug!(%error, "not every shard could be asked how much is in it");
            }
            while let Err(error) = block_on(kv.work()) {
                if ended.load(Ordering::Acquire) || kv.is_poisoned() {
                    return;
                }
                tracing::warn!(%error, "work behind the commits failed: it is tried again");
                std::thread::sleep(RETRY);
            }
        };
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let cannot = |error: std::io::Error| StoreError::failed(format!("no thread: {error}"));
        let watching = Some(named("outboard-watch").spawn(watch).map_err(cannot)?);
        let renewing = Some(named("outboard-claim").spawn(renew).map_err(cannot)?);
        let working = Some(named("outboard-pool").spawn(work).map_err(cannot)?);
        Ok(ClaimThreads { stop, claim, serves_until, watching, renewing, working })
    }

    /// Ends the threads, and the store's life; the claim.
    fn end(&mut self, kv: &PoolKv) -> Option<Claim> {
        self.stop.store(true, Ordering::Release);
        // In this order: a store that was stopped looks to the other thread like one that failed.
        join(self.renewing.take());
        join(self.watching.take());
        kv.stop();
        join(self.working.take());
        self.claim.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    if thread.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("a thread of the store panicked");
    }
}

/// Renews the claim when that is due; ends the process when it is lost.
fn look_after(parts: &Parts, held: &Mutex<Option<Claim>>, serves_until: &AtomicU64) {
    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(claim) = held.as_mut() else { return };
    if parts.kv.is_poisoned() || parts.medium.is_poisoned() {
        end(IN_DOUBT);
    }
    let now = clock::awake_or_not();
    if now < claim.renew_at() {
        return;
    }
    match block_on(claim.renew(&*parts.pool, now)) {
        Ok(()) => serves_until.store(claim.serves_until().0, Ordering::Release),
        Err(ClaimError::Held(name)) => end(&format!("the volume was taken over by {name}")),
        Err(ClaimError::Pool(PoolError::Fenced)) => {
            end("the volume was taken over: the cluster refuses this process");
        }
        Err(error) => tracing::warn!(%error, "the claim on the volume could not be renewed yet"),
    }
}

/// Ends the process if the claim may be another's by now.
fn look_at_the_clock(serves_until: &AtomicU64) {
    if clock::awake_or_not().0 >= serves_until.load(Ordering::Acquire) {
        end("the claim on the volume could not be renewed in time: somebody else may have it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number lay in a file of the directory. A host with a copy of it took the volume from its
    /// living owner at once, and each took it back from the other.
    #[test]
    fn a_copy_of_a_data_directory_is_another_place() {
        let base = std::env::temp_dir().join(format!("outboard-place-{}", std::process::id()));
        let [one, copy] = ["one", "copy"].map(|name| base.join(name));
        for dir in [&one, &copy] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write(one.join("lock"), "1\n").unwrap();
        std::fs::copy(one.join("lock"), copy.join("lock")).unwrap();
        assert_eq!(place(&one).unwrap(), place(&one).unwrap());
        assert_ne!(place(&one).unwrap(), place(&copy).unwrap());
        std::fs::rename(&one, base.join("moved")).unwrap();
        let moved = place(&base.join("moved")).unwrap();
        assert_ne!(moved, place(&copy).unwrap());
        assert!(moved != 0 && place(&one).is_err(), "nothing is there");
        std::fs::remove_dir_all(&base).unwrap();
    }
}
