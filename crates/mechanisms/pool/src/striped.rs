//! A medium over the objects of a pool: 4 MiB each, many under way at once.
//!
//! ```text
//! medium  "a"  a stamp
//!         "l"  the medium's length (8)                                             big-endian
//! data.N       bytes N * 4 MiB to (N + 1) * 4 MiB; what was never written reads zero
//! ```
//!
//! What a pool has answered is durable, so a flush has nothing to do but to wait for writes whose
//! futures were dropped. A write in doubt may land at any time, on a block that has long been given
//! to another: after one every flush fails, no block is given away any more, and only a new life,
//! whose fence shuts the late write out, goes on.

mod ahead;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outboard_base::Errno;

use super::claim::Claim;
use super::port::{Op, Pool, PoolError, Step};
use super::root::set;
use super::stamped::{Owner, Refused, Stamped};
use ahead::Ahead;
use outboard_base::task::{self, join_all};
use outboard_medium::{ALIGN, Buf, Medium};

/// Bytes of an object.
const STRIPE: u64 = 4 << 20;
const OBJECT: &str = "medium";
const LEN: &[u8] = b"l";

/// The medium. See the module.
pub struct Striped<P> {
    pool: Arc<P>,
    owner: Owner,
    map: Stamped,
    growing: task::Mutex,
    len: AtomicU64,
    /// How many writes were dropped on their way so far, and how many of them are over.
    dropped: AtomicU64,
    settled: AtomicU64,
    settling: task::Mutex,
    failed: AtomicBool,
    ahead: Ahead,
}

/// A part of a range that lies in one object.
struct Part {
    object: String,
    within: u64,
    start: usize,
    len: usize,
}

fn parts(offset: u64, len: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = at % STRIPE;
        let rest = usize::try_from(STRIPE - within).unwrap_or(usize::MAX);
        let part = rest.min(len - done);
        let object = format!("data.{:012}", at / STRIPE);
        parts.push(Part { object, within, start: done, len: part });
        done += part;
    }
    parts
}

/// Bytes of a part.
enum Read {
    Ahead(Arc<Buf>, Range<usize>),
    Now(Vec<u8>),
}

impl Read {
    fn bytes(&self) -> &[u8] {
        match self {
            Read::Ahead(whole, range) => whole.get(range.clone()).unwrap_or_default(),
            Read::Now(bytes) => bytes,
        }
    }
}

fn errno(error: PoolError) -> Errno {
    match error {
        PoolError::NoSpace => Errno::ENOSPC,
        PoolError::Io(errno) => errno,
        _ => Errno::EIO,
    }
}

/// What is not there was never written, and reads as nothing.
fn found<T: Default>(read: Result<T, PoolError>) -> Result<T, Errno> {
    match read {
        Err(PoolError::NotFound) => Ok(T::default()),
        read => read.map_err(errno),
    }
}

fn refused(refused: Refused) -> Errno {
    match refused {
        Refused::Pool(error) => errno(error),
        Refused::Lost | Refused::Corrupt | Refused::Exists => Errno::EIO,
    }
}

/// A write under way: what was read ahead of its bytes is gone, and if it is dropped that counts.
struct Writing<'a> {
    dropped: &'a AtomicU64,
    ahead: &'a Ahead,
    bytes: Range<u64>,
    over: bool,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if !self.over {
            let number = self.dropped.fetch_add(1, Ordering::AcqRel) + 1;
            self.ahead.drop_write(&self.bytes, number);
        }
    }
}

impl<P: Pool> Striped<P> {
    /// Opens the volume's medium under the claim, making it if there is none. May be tried again.
    ///
    /// # Errors
    ///
    /// The pool failed, or the object that names its length is damaged.
    pub fn open(
        pool: Arc<P>,
        claim: &Claim,
    ) -> impl Future<Output = Result<Striped<P>, Errno>> + use<P> {
        // The claim is renewed meanwhile.
        Striped::open_as(pool, claim.owner())
    }

    async fn open_as(pool: Arc<P>, owner: Owner) -> Result<Striped<P>, Errno> {
        let medium = Striped {
            pool,
            owner,
            map: Stamped::new(OBJECT.into()),
            growing: task::Mutex::default(),
            len: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            settling: task::Mutex::default(),
            failed: AtomicBool::new(false),
            ahead: Ahead::default(),
        };
        medium.find().await.map_err(refused)?;
        Ok(medium)
    }

    async fn find(&self) -> Result<(), Refused> {
        match self.pool.stat(OBJECT).await {
            Ok(_) => {}
            Err(PoolError::NotFound) => {
                match self.map.make(&*self.pool, &self.owner, vec![set(LEN, 0)]).await {
                    Ok(()) | Err(Refused::Exists) => {}
                    Err(refused) => return Err(refused),
                }
            }
            Err(error) => return Err(error.into()),
        }
        // Nothing that was in doubt lands after this.
        self.map.change(&*self.pool, &self.owner, Vec::new(), |p, b| (p, b)).await?;
        let found = self.pool.map_get(OBJECT, &[LEN.into()]).await?;
        let len = found.into_iter().next().flatten().ok_or(Refused::Corrupt)?;
        let len = len[..].try_into().map_err(|_| Refused::Corrupt)?;
        self.len.store(u64::from_be_bytes(len), Ordering::Release);
        Ok(())
    }

    /// Whether a write is in doubt, or a flush has failed: every flush fails from now on.
    pub fn is_poisoned(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    fn within(&self, offset: u64, len: usize) -> bool {
        offset.is_multiple_of(ALIGN as u64)
            && offset.checked_add(len as u64).is_some_and(|end| end <= self.len())
    }

    async fn read_all(&self, offset: u64, mut buf: Buf) -> (Result<(), Errno>, Buf) {
        let parts = parts(offset, buf.len());
        if let [part] = &parts[..]
            && self.ahead.find(offset, part).is_none()
        {
            // Nearly always: where it lies is where it goes.
            let (read, mut buf) = self.pool.read_into(&part.object, part.within, buf).await;
            let outcome = found(read);
            if let Some(rest) = outcome.ok().and_then(|read| buf.get_mut(read..)) {
                rest.fill(0);
            }
            return (outcome.map(drop), buf);
        }
        let asked = parts.iter().map(|part| self.read_part(offset, part)).collect();
        for (part, answer) in parts.iter().zip(join_all(asked).await) {
            let read = match answer {
                Ok(read) => read,
                Err(errno) => return (Err(errno), buf),
            };
            let bytes = read.bytes();
            let Some(to) = buf.get_mut(part.start..part.start + part.len) else {
                return (Err(Errno::EIO), buf);
            };
            let (read, zeros) = to.split_at_mut(bytes.len().min(part.len));
            read.copy_from_slice(bytes.get(..read.len()).unwrap_or_default());
            zeros.fill(0);
        }
        (Ok(()), buf)
    }

    async fn read_part(&self, offset: u64, part: &Part) -> Result<Read, Errno> {
        if let Some((whole, range)) = self.take(offset, part).await {
            return Ok(Read::Ahead(whole, range));
        }
        found(self.pool.read(&part.object, part.within, part.len).await).map(Read::Now)
    }

    /// The memory of a part that was read ahead.
    async fn take(&self, offset: u64, part: &Part) -> Option<(Arc<Buf>, Range<usize>)> {
        let piece = self.ahead.find(offset, part)?;
        let taken = piece.take(offset, part).await;
        self.ahead.read(&piece, taken.is_some());
        taken
    }

    async fn write_all(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        let parts = parts(offset, buf.len());
        // Growing has asked for the space.
        let (outcomes, buf) = if let [part] = &parts[..] {
            let (outcome, buf) = self.pool.write_from(&part.object, part.within, buf).await;
            (vec![outcome], buf)
        } else {
            let write = async |part: &Part| {
                let bytes = buf.get(part.start..part.start + part.len).unwrap_or_default();
                let op = Op::new().then(Step::Write(part.within, bytes.into())).essential();
                self.pool.apply(&part.object, op).await
            };
            (join_all(parts.iter().map(write).collect()).await, buf)
        };
        if outcomes.iter().any(|outcome| outcome.is_err_and(PoolError::in_doubt)) {
            self.failed.store(true, Ordering::Release);
        }
        (outcomes.into_iter().collect::<Result<(), _>>().map_err(errno), buf)
    }

    async fn grow_to(&self, len: u64) -> Result<(), Errno> {
        let usage = self.pool.usage().await.map_err(errno)?;
        if usage.capacity.saturating_sub(usage.used) < len.saturating_sub(self.len()) {
            return Err(Errno::ENOSPC);
        }
        let steps = vec![set(LEN, len)];
        let change = self.map.change(&*self.pool, &self.owner, steps, |p, b| (p, b));
        change.await.map_err(refused)?;
        self.len.store(len, Ordering::Release);
        Ok(())
    }
}

impl<P: Pool> Medium for Striped<P> {
    fn ahead(&self) -> u64 {
        ahead::AHEAD
    }

    fn expect(&self, bytes: Range<u64>) {
        if bytes.end <= self.len() {
            self.ahead.expect(&self.pool, bytes);
        }
    }

    async fn expected(&self, bytes: Range<u64>) -> Option<Buf> {
        let len = usize::try_from(bytes.end.checked_sub(bytes.start)?).ok()?;
        let parts = parts(bytes.start, len);
        let [part] = &parts[..] else { return None };
        let (whole, range) = self.take(bytes.start, part).await?;
        Buf::part(&whole, range)
    }

    async fn read(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        if !self.within(offset, buf.len()) {
            return (Err(Errno::EIO), buf);
        }
        self.read_all(offset, buf).await
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        if !self.within(offset, buf.len()) {
            return (Err(Errno::EIO), buf);
        }
        let bytes = offset..offset + buf.len() as u64;
        self.ahead.begin_write(bytes.clone());
        let (dropped, ahead) = (&self.dropped, &self.ahead);
        let mut writing = Writing { dropped, ahead, bytes, over: false };
        let outcome = self.write_all(offset, buf).await;
        writing.over = true;
        // One in doubt may land at any time, as long as this life lasts.
        if !self.is_poisoned() {
            self.ahead.end_write(&writing.bytes);
        }
        outcome
    }

    async fn flush(&self) -> Result<(), Errno> {
        let dropped = self.dropped.load(Ordering::Acquire);
        let over = || (self.settled.load(Ordering::Acquire) >= dropped).then_some(());
        // One at a time: the pool reports a write that failed to one only.
        if let Ok(_guard) = self.settling.lock_unless(over).await {
            if self.pool.settle().await.is_err() {
                self.failed.store(true, Ordering::Release);
            }
            self.settled.fetch_max(dropped, Ordering::AcqRel);
            self.ahead.settled(dropped);
        }
        if self.is_poisoned() { Err(Errno::EIO) } else { Ok(()) }
    }

    async fn grow(&self, len: u64) -> Result<(), Errno> {
        let long_enough = || (self.len() >= len).then_some(());
        match self.growing.lock_unless(long_enough).await {
            Err(()) => Ok(()),
            Ok(_guard) => self.grow_to(len).await,
        }
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests;
