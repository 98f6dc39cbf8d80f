//! The pool port over librados.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use outboard_base::Errno;
use outboard_kv::{Key, Value};
use outboard_medium::Buf;
use outboard_pool::{Guard, Op, Pool, PoolError, PoolUsage, Scan, Step};

use crate::Location;
use crate::aside::aside;
use crate::keys::{decode, encode, encode_c};
use crate::meter::{Figures, Meter};
use crate::sys::{Call, Cluster, Code, Handle, Out, WriteOp};
use crate::tracker::{Ending, Tracker};

/// How long a fenced client stays on the block list, seconds: longer than any process is paused.
const FENCED_SECONDS: u32 = 365 * 24 * 3600;

/// Why a pool could not be opened.
#[derive(Debug)]
pub struct ConnectError {
    location: Location,
    doing: Doing,
    code: Code,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    ReadingConf,
    Setting,
    Connecting,
    OpeningPool,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Location { pool, conf, user, .. } = &self.location;
        let errno = errno(self.code);
        match self.doing {
            Doing::ReadingConf => write!(
                f,
                "cannot read the cluster's configuration {conf}: {errno}; name it with \
                 rados://{pool}?conf=PATH"
            ),
            Doing::Setting => {
                write!(f, "librados refuses a setting: {errno}; Ceph 15 or later is needed")
            }
            Doing::Connecting if denied(self.code) => write!(
                f,
                "the cluster of {conf} does not let {user} in: {errno}; name another with \
                 &user=client.NAME and see that its keyring is in {conf}"
            ),
            Doing::Connecting => write!(
                f,
                "cannot connect to the cluster of {conf}: {errno}; see that its monitors run and \
                 can be reached"
            ),
            Doing::OpeningPool if errno == Errno::ENOENT => write!(
                f,
                "the cluster of {conf} has no pool `{pool}`; make it with `ceph osd pool create \
                 {pool}` or name another"
            ),
            Doing::OpeningPool => write!(f, "cannot open the pool `{pool}`: {errno}"),
        }
    }
}

impl std::error::Error for ConnectError {}

/// A pool of a Ceph cluster, open.
pub struct Rados {
    pool: Arc<Handle>,
    cluster: Arc<Cluster>,
    tracker: Arc<Tracker>,
    meter: Meter,
    location: Location,
    address: String,
    fsid: String,
}

impl fmt::Debug for Rados {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rados").field("location", &self.location).finish_non_exhaustive()
    }
}

impl Rados {
    /// Connects to the cluster and opens the pool; blocks, within the location's time limit.
    pub fn connect(location: &Location) -> Result<Rados, ConnectError> {
        let during = |doing| move |code| ConnectError { location: location.clone(), doing, code };
        let cluster = Cluster::new(&location.user).map_err(during(Doing::Setting))?;
        cluster.read_conf(&location.conf).map_err(during(Doing::ReadingConf))?;
        let seconds = location.timeout.as_secs().to_string();
        for option in ["rados_osd_op_timeout", "rados_mon_op_timeout", "client_mount_timeout"] {
            cluster.set(option, &seconds).map_err(during(Doing::Setting))?;
        }
        cluster.connect().map_err(during(Doing::Connecting))?;
        let cluster = Arc::new(cluster);
        let pool = cluster
            .pool(&location.pool, &location.namespace)
            .map_err(during(Doing::OpeningPool))?;
        let address = cluster.address().map_err(during(Doing::Connecting))?;
        let fsid = cluster.fsid().map_err(during(Doing::Connecting))?;
        Ok(Rados {
            pool: Arc::new(pool),
            cluster,
            tracker: Arc::default(),
            meter: Meter::default(),
            location: location.clone(),
            address,
            fsid,
        })
    }

    /// How its operations do.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.meter.figures()
    }

    /// Where it is.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Hands an operation over and waits for its end.
    async fn submit(
        &self,
        object: &str,
        essential: bool,
        build: impl FnOnce() -> WriteOp,
    ) -> Result<(), PoolError> {
        let timing = self.meter.begin(object, true);
        let (awaiting, ending) = self.tracker.begin();
        // Built and handed over before the first wait: what is built may not leave the thread.
        let call = {
            let built = build();
            self.pool.apply(object, &built, essential, Told(ending))
        };
        let result = match call {
            Ok(call) => call.then(|_| ()).await,
            Err(code) => Err(code),
        };
        awaiting.done();
        timing.end(result.map_err(failed))
    }

    /// Whether this user could shut out another client, found out by a command that changes
    /// nothing: it lets in again who was never shut out.
    ///
    /// # Errors
    ///
    /// [`PoolError::Denied`] if not; another if the cluster did not say.
    pub async fn may_fence(&self) -> Result<(), PoolError> {
        self.blocking(|cluster, _| match cluster.command(LET_IN) {
            // A cluster of before the command had this name has the right, or is asked in vain.
            Err(code) if failed(code) == PoolError::Denied => Err(PoolError::Denied),
            Err(code) if failed(code) == PoolError::TimedOut => Err(PoolError::TimedOut),
            _ => Ok(()),
        })
        .await
    }

    /// Runs a call that may block, on another thread, with the pool.
    async fn blocking<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Cluster, &Handle) -> Result<T, PoolError> + Send + 'static,
    ) -> Result<T, PoolError> {
        let (cluster, pool) = (Arc::clone(&self.cluster), Arc::clone(&self.pool));
        aside(move || job(&cluster, &pool)).await
    }
}

/// The operation's end, told to who may not wait for it any more.
struct Told(Ending);

impl Out for Told {
    fn ended(&mut self, result: Result<i32, Code>) {
        self.0.over(result.map(drop).map_err(failed));
    }
}

/// The operation as librados wants it: guards, then steps.
fn build(op: &Op) -> WriteOp {
    let mut built = WriteOp::new();
    let mut may_make = true;
    for guard in &op.guards {
        match guard {
            Guard::Exists => built.assert_exists(),
            Guard::Absent => {
                built.create(true);
                may_make = false;
            }
            Guard::MapEquals(key, value) => {
                built.assert_exists();
                built.assert_pair(&encode(key), value);
            }
            Guard::Starts(bytes) => {
                built.assert_exists();
                built.assert_start(bytes);
            }
        }
    }
    let removes = op.steps.contains(&Step::Remove);
    if may_make && !removes && !op.steps.is_empty() {
        built.create(false);
    }
    // Neighbours of one kind travel as one.
    let (mut sets, mut removals) = (Vec::new(), Vec::new());
    for step in &op.steps {
        if !matches!(step, Step::MapSet(..)) {
            flush_sets(&mut built, &mut sets);
        }
        if !matches!(step, Step::MapRemove(_)) {
            flush_removals(&mut built, &mut removals);
        }
        match step {
            Step::Create => {}
            Step::Remove => built.remove(),
            Step::Write(offset, bytes) => built.write(*offset, bytes),
            Step::Replace(bytes) => built.replace(bytes),
            Step::MapSet(key, value) => sets.push((encode(key), value.to_vec())),
            Step::MapRemove(key) => removals.push(encode(key)),
        }
    }
    flush_sets(&mut built, &mut sets);
    flush_removals(&mut built, &mut removals);
    built
}

fn flush_sets(built: &mut WriteOp, sets: &mut Vec<(Vec<u8>, Vec<u8>)>) {
    if !sets.is_empty() {
        // librados makes a map of them, in which the first of two equal keys would stay.
        let last: HashMap<_, _> = sets.drain(..).collect();
        built.set_pairs(&last.into_iter().collect::<Vec<_>>());
    }
}

fn flush_removals(built: &mut WriteOp, removals: &mut Vec<Vec<u8>>) {
    if !removals.is_empty() {
        built.remove_keys(removals);
        removals.clear();
    }
}

fn errno(code: Code) -> Errno {
    Errno::from_raw(code.0.unsigned_abs())
}

fn denied(code: Code) -> bool {
    matches!(code.0, EPERM | EACCES)
}

const EPERM: i32 = -1;
const ENOENT: i32 = -2;
const EACCES: i32 = -13;
const EEXIST: i32 = -17;
const ENOSPC: i32 = -28;
/// What librados calls EBLOCKLISTED.
const ESHUTDOWN: i32 = -108;
const ETIMEDOUT: i32 = -110;
const EDQUOT: i32 = -122;
const ECANCELED: i32 = -125;
/// A comparison of bytes that failed: this, less the offset.
const MISMATCH: i32 = -4095;

fn failed(code: Code) -> PoolError {
    match code.0 {
        ENOENT => PoolError::NotFound,
        EEXIST | ECANCELED => PoolError::Guard,
        ENOSPC | EDQUOT => PoolError::NoSpace,
        ESHUTDOWN => PoolError::Fenced,
        ETIMEDOUT => PoolError::TimedOut,
        EPERM | EACCES => PoolError::Denied,
        value if value <= MISMATCH => PoolError::Guard,
        _ => PoolError::Io(errno(code)),
    }
}

/// A pair as it was stored; `None` if no key is stored so.
fn pair((key, value): (Vec<u8>, Vec<u8>)) -> Result<(Key, Value), PoolError> {
    let key = decode(&key).ok_or(PoolError::Io(Errno::EIO))?;
    Ok((key.into(), value.into()))
}

async fn end<T: Out, R>(
    call: Result<Call<T>, Code>,
    take: impl FnOnce(&mut T) -> R,
) -> Result<R, PoolError> {
    call.map_err(failed)?.then(take).await.map_err(failed)
}

impl Pool for Rados {
    async fn apply(&self, object: &str, op: Op) -> Result<(), PoolError> {
        self.submit(object, op.essential, move || build(&op)).await
    }

    async fn write_from(
        &self,
        object: &str,
        offset: u64,
        buf: Buf,
    ) -> (Result<(), PoolError>, Buf) {
        let built = || {
            let mut built = WriteOp::new();
            built.create(false);
            built.write(offset, &buf);
            built
        };
        (self.submit(object, true, built).await, buf)
    }

    async fn read_into(
        &self,
        object: &str,
        offset: u64,
        buf: Buf,
    ) -> (Result<usize, PoolError>, Buf) {
        let timing = self.meter.begin(object, false);
        let wanted = buf.len();
        let call = self.pool.read(object, offset, buf);
        let read = end(call, |filled| {
            let buf = std::mem::replace(&mut filled.buffer, Buf::zeroed(0));
            (filled.len, buf)
        });
        match timing.end(read.await) {
            Ok((read, buf)) => (Ok(read), buf),
            // One that failed may not have let go of its buffer yet: another does.
            Err(error) => (Err(error), Buf::zeroed(wanted)),
        }
    }

    async fn read(&self, object: &str, offset: u64, len: usize) -> Result<Vec<u8>, PoolError> {
        if len == 0 {
            // To librados a length of zero is all there is.
            return self.stat(object).await.map(|_| Vec::new());
        }
        let timing = self.meter.begin(object, false);
        let call = self.pool.read(object, offset, vec![0; len]);
        let read = end(call, |filled| {
            filled.buffer.truncate(filled.len);
            std::mem::take(&mut filled.buffer)
        });
        timing.end(read.await)
    }

    async fn map_get(&self, object: &str, keys: &[Key]) -> Result<Vec<Option<Value>>, PoolError> {
        let stored: Vec<_> = keys.iter().map(|key| encode(key)).collect();
        let timing = self.meter.begin(object, false);
        let pairs = timing.end(end(self.pool.pairs(object, &stored), |page| page.take()).await)?;
        let found: HashMap<Vec<u8>, Value> =
            pairs.into_iter().map(|(key, value)| (key, value.into())).collect();
        Ok(stored.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn map_scan(
        &self,
        object: &str,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Scan, PoolError> {
        let (after, prefix) = (encode_c(after.unwrap_or_default()), encode_c(prefix));
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        let timing = self.meter.begin(object, false);
        let call = self.pool.scan(object, &after, &prefix, limit);
        let (pairs, more) = timing.end(end(call, |page| (page.take(), page.has_more())).await)?;
        let pairs = pairs.into_iter().map(pair).collect::<Result<_, _>>()?;
        Ok(Scan { pairs, more })
    }

    async fn stat(&self, object: &str) -> Result<u64, PoolError> {
        let timing = self.meter.begin(object, false);
        timing.end(end(self.pool.stat(object), |size| *size).await)
    }

    async fn list(&self, limit: usize) -> Result<Vec<String>, PoolError> {
        self.blocking(move |_, pool| {
            let names = pool.list().map_err(failed)?;
            names.take(limit).collect::<Result<_, _>>().map_err(failed)
        })
        .await
    }

    async fn usage(&self) -> Result<PoolUsage, PoolError> {
        let name = self.location.pool.clone();
        self.blocking(move |cluster, _| {
            let answer = cluster.command(DF).map_err(failed)?;
            space(&answer, &name).ok_or(PoolError::Io(Errno::EIO))
        })
        .await
    }

    async fn settle(&self) -> Result<(), PoolError> {
        self.tracker.settle().await
    }

    async fn fence(&self, instance: &str) -> Result<(), PoolError> {
        let instance = instance.to_owned();
        self.blocking(move |cluster, _| {
            cluster.blocklist(&instance, FENCED_SECONDS).map_err(failed)
        })
        .await
    }

    fn instance(&self) -> String {
        self.address.clone()
    }

    fn identity(&self) -> String {
        let Location { pool, namespace, .. } = &self.location;
        format!("pool `{pool}`, namespace `{namespace}` of the cluster {}", self.fsid)
    }
}

/// The monitors' command that takes an address off the block list: one that no client has.
const LET_IN: &str = r#"{"prefix": "osd blocklist", "blocklistop": "rm", "addr": "0.0.0.0:0/1"}"#;

/// The monitors' command for the space of every pool.
const DF: &str = r#"{"prefix": "df", "detail": "detail", "format": "json"}"#;

/// The space of one pool in the answer to [`DF`].
fn space(answer: &[u8], pool: &str) -> Option<PoolUsage> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let pools = answer.get("pools")?.as_array()?;
    let stats = pools.iter().find(|entry| entry.get("name").is_some_and(|name| name == pool))?;
    let number = |name: &str| stats.get("stats")?.get(name)?.as_u64();
    let used = number("stored")?;
    let room = used.saturating_add(number("max_avail")?);
    let quota = number("quota_bytes").filter(|&quota| quota > 0).unwrap_or(u64::MAX);
    Some(PoolUsage { capacity: room.min(quota), used })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_what_may_be_stored_within_the_quota() {
        let df = |quota: u64| {
            format!(
                r#"{{"pools": [{{"name": "a", "stats": {{"stored": 1}}}}, {{"name": "b", "stats":
                {{"stored": 10, "max_avail": 90, "quota_bytes": {quota}}}}}]}}"#
            )
        };
        let usage = |quota| space(df(quota).as_bytes(), "b").unwrap();
        assert_eq!(usage(0), PoolUsage { capacity: 100, used: 10 });
        assert_eq!(usage(50), PoolUsage { capacity: 50, used: 10 });
        assert_eq!(space(df(0).as_bytes(), "a"), None);
        assert_eq!(space(b"?", "b"), None);
    }
}
