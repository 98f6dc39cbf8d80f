//! The port of an engine with single-object atomicity.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use outboard_base::Errno;

use outboard_kv::{Bytes, Key, Value};
use outboard_medium::Buf;

/// Why the pool did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// The object does not exist; nothing was done.
    NotFound,
    /// A guard did not hold; nothing was done.
    Guard,
    /// The pool, or its quota, is full; nothing was done.
    NoSpace,
    /// No answer within the time limit. The operation is *in doubt*: it has been done, or will be
    /// done once or several times at any later moment, or never.
    TimedOut,
    /// This instance was fenced: the engine refuses it from now on. Only what was begun before is
    /// in doubt.
    Fenced,
    /// We may not do that; nothing was done.
    Denied,
    /// The engine failed. A change is in doubt, as after [`PoolError::TimedOut`].
    Io(Errno),
}

impl PoolError {
    /// Whether a change that ended so may have been done, or may yet be.
    #[must_use]
    pub fn in_doubt(self) -> bool {
        matches!(self, PoolError::TimedOut | PoolError::Fenced | PoolError::Io(_))
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::NotFound => f.write_str("no such object in the pool"),
            PoolError::Guard => f.write_str("the object is not as expected"),
            PoolError::NoSpace => f.write_str("the pool or its quota is full"),
            PoolError::TimedOut => f.write_str("the pool did not answer in time"),
            PoolError::Fenced => f.write_str("this client was fenced off the pool"),
            PoolError::Denied => f.write_str("the pool denies access"),
            PoolError::Io(errno) => write!(f, "the pool failed: {errno}"),
        }
    }
}

impl std::error::Error for PoolError {}

/// What must hold of the object just before the steps are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// It exists; else the operation ends with [`PoolError::NotFound`].
    Exists,
    /// It does not exist; the steps make it.
    Absent,
    /// It exists and its map has this value under the key. A key without a value counts as an
    /// empty value.
    MapEquals(Key, Value),
    /// It exists and has these bytes, from its start.
    Starts(Bytes),
}

/// One change of an object. Every step but [`Step::Remove`] makes the object if it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes it exist.
    Create,
    /// Removes it, map and all; with no other step. [`PoolError::NotFound`] if there is none.
    Remove,
    /// Writes the bytes at the offset; what lies between the end and the offset reads zero.
    Write(u64, Bytes),
    /// Makes these all its bytes; the map stays.
    Replace(Bytes),
    /// Sets a key of its map.
    MapSet(Key, Value),
    /// Removes a key of its map, which need not be there.
    MapRemove(Key),
}

/// Changes of one object, done together if all guards hold, else not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Op {
    /// All must hold.
    pub guards: Vec<Guard>,
    /// Done in this order, as one.
    pub steps: Vec<Step>,
    /// Be done even if the pool counts as full, as far as the engine lets us: it frees space, or
    /// must not fail for want of it.
    pub essential: bool,
}

impl Op {
    /// An operation that does nothing yet.
    #[must_use]
    pub fn new() -> Op {
        Op::default()
    }

    /// Adds a guard.
    #[must_use]
    pub fn when(mut self, guard: Guard) -> Op {
        self.guards.push(guard);
        self
    }

    /// Adds a step.
    #[must_use]
    pub fn then(mut self, step: Step) -> Op {
        self.steps.push(step);
        self
    }

    /// Marks it as [`Op::essential`].
    #[must_use]
    pub fn essential(mut self) -> Op {
        self.essential = true;
        self
    }

    /// Bytes of keys, values and data its steps carry.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let step = |step: &Step| match step {
            Step::Create | Step::Remove => 0,
            Step::Write(_, bytes) | Step::Replace(bytes) => bytes.len(),
            Step::MapSet(key, value) => key.len() + value.len(),
            Step::MapRemove(key) => key.len(),
        };
        self.steps.iter().map(step).sum()
    }
}

/// A part of an object's map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Pairs in the order of keys.
    pub pairs: Vec<(Key, Value)>,
    /// Whether there are more than these.
    pub more: bool,
}

/// Space of the pool, bytes as a user of it counts them (not times the copies kept).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// What may be stored altogether; `u64::MAX` if unknown.
    pub capacity: u64,
    /// What is stored now, by everybody who uses the pool.
    pub used: u64,
}

/// A store of named objects, each with bytes and an ordered map of pairs.
///
/// What an engine promises:
/// 1. An operation is atomic within its object, durable once answered, and seen by every read of
///    that object begun after.
/// 2. An answer other than one that is [in doubt](PoolError::in_doubt) is final: the operation has
///    been done once, or never will be.
/// 3. Operations under way at the same time are done in any order. One in doubt, or one whose
///    future was dropped, may be done later than others begun after it: [`Pool::settle`] tells.
/// 4. Once [`Pool::fence`] has returned, nothing of the fenced instance is done to any object any
///    more after this client's first operation on that object.
///
/// Names are ASCII letters, digits, `.` and `-`, at most 64 bytes; keys and values any bytes, keys
/// at most 2,100 and not empty, values at most 128 KiB; an operation carries at most
/// [`Self::OP_MAX`] bytes. Futures start nothing before they are polled.
pub trait Pool: Send + Sync + 'static {
    /// Most bytes one operation carries: a journal record of the largest batch.
    const OP_MAX: usize = 40 << 20;

    /// Does an operation.
    fn apply(&self, object: &str, op: Op) -> impl Future<Output = Result<(), PoolError>>;

    /// The bytes from `offset`, at most `len`; fewer only at the object's end.
    fn read(
        &self,
        object: &str,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<Vec<u8>, PoolError>> + Send;

    /// As [`Pool::read`], into a buffer: how many bytes of it were filled; the rest may hold
    /// anything. An engine that can reads them where they are to lie.
    fn read_into(
        &self,
        object: &str,
        offset: u64,
        mut buf: Buf,
    ) -> impl Future<Output = (Result<usize, PoolError>, Buf)> + Send {
        async move {
            let bytes = match self.read(object, offset, buf.len()).await {
                Ok(bytes) => bytes,
                Err(error) => return (Err(error), buf),
            };
            let len = bytes.len().min(buf.len());
            if let (Some(to), Some(from)) = (buf.get_mut(..len), bytes.get(..len)) {
                to.copy_from_slice(from);
            }
            (Ok(len), buf)
        }
    }

    /// Writes a buffer's bytes at the offset: an [essential](Op::essential) operation of that one
    /// step. An engine that can takes them from where they lie.
    fn write_from(
        &self,
        object: &str,
        offset: u64,
        buf: Buf,
    ) -> impl Future<Output = (Result<(), PoolError>, Buf)> {
        async move {
            let op = Op::new().then(Step::Write(offset, (*buf).into())).essential();
            (self.apply(object, op).await, buf)
        }
    }

    /// The values of some keys of the object's map, in their order.
    fn map_get(
        &self,
        object: &str,
        keys: &[Key],
    ) -> impl Future<Output = Result<Vec<Option<Value>>, PoolError>>;

    /// Pairs of the object's map whose keys start with `prefix` and are greater than `after`, in
    /// the order of keys, as one snapshot: `limit` or, where the engine bounds what it answers at
    /// once, fewer, but at least one if there is one.
    fn map_scan(
        &self,
        object: &str,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> impl Future<Output = Result<Scan, PoolError>>;

    /// The object's length in bytes; [`PoolError::NotFound`] if it does not exist.
    fn stat(&self, object: &str) -> impl Future<Output = Result<u64, PoolError>>;

    /// Names of at most `limit` objects, in no order.
    fn list(&self, limit: usize) -> impl Future<Output = Result<Vec<String>, PoolError>>;

    /// Space used; may lag behind.
    fn usage(&self) -> impl Future<Output = Result<PoolUsage, PoolError>>;

    /// Waits until every operation that was begun and whose future was dropped is over. An error
    /// says that one of them ended in doubt or failed, once for each time that happened.
    fn settle(&self) -> impl Future<Output = Result<(), PoolError>>;

    /// Shuts another instance out for good, and waits until promise 4 holds. Fencing an instance
    /// that is gone succeeds.
    fn fence(&self, instance: &str) -> impl Future<Output = Result<(), PoolError>>;

    /// What the engine knows this client by, for others to fence it: at most 255 bytes, never
    /// used again by another.
    fn instance(&self) -> String;

    /// What this pool is, for messages.
    fn identity(&self) -> String;
}

impl<P: Pool> Pool for Arc<P> {
    const OP_MAX: usize = P::OP_MAX;

    fn apply(&self, object: &str, op: Op) -> impl Future<Output = Result<(), PoolError>> {
        (**self).apply(object, op)
    }

    fn read(
        &self,
        object: &str,
        offset: u64,
        len: usize,
    ) -> impl Future<Output = Result<Vec<u8>, PoolError>> + Send {
        (**self).read(object, offset, len)
    }

    fn read_into(
        &self,
        object: &str,
        offset: u64,
        buf: Buf,
    ) -> impl Future<Output = (Result<usize, PoolError>, Buf)> + Send {
        (**self).read_into(object, offset, buf)
    }

    fn write_from(
        &self,
        object: &str,
        offset: u64,
        buf: Buf,
    ) -> impl Future<Output = (Result<(), PoolError>, Buf)> {
        (**self).write_from(object, offset, buf)
    }

    fn map_get(
        &self,
        object: &str,
        keys: &[Key],
    ) -> impl Future<Output = Result<Vec<Option<Value>>, PoolError>> {
        (**self).map_get(object, keys)
    }

    fn map_scan(
        &self,
        object: &str,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> impl Future<Output = Result<Scan, PoolError>> {
        (**self).map_scan(object, prefix, after, limit)
    }

    fn stat(&self, object: &str) -> impl Future<Output = Result<u64, PoolError>> {
        (**self).stat(object)
    }

    fn list(&self, limit: usize) -> impl Future<Output = Result<Vec<String>, PoolError>> {
        (**self).list(limit)
    }

    fn usage(&self) -> impl Future<Output = Result<PoolUsage, PoolError>> {
        (**self).usage()
    }

    fn settle(&self) -> impl Future<Output = Result<(), PoolError>> {
        (**self).settle()
    }

    fn fence(&self, instance: &str) -> impl Future<Output = Result<(), PoolError>> {
        (**self).fence(instance)
    }

    fn instance(&self) -> String {
        (**self).instance()
    }

    fn identity(&self) -> String {
        (**self).identity()
    }
}
