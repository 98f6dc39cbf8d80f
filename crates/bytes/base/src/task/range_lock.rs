//! Range locks: many at once may read the same bytes, one at a time may change them.
//!
//! First come, first served: nobody passes one who waits for an overlapping range, so neither
//! readers nor writers starve, and a release does bounded work. [`RangeQueue`] is the queue of one
//! object, for who keeps it beside other state under a mutex of his own; [`RangeLocks`] are the
//! locks of all inodes, with futures that wait.
//!
//! A range lock is held across awaits; the mutex inside never is. Dropping a future that waits
//! gives its place up; dropping a [`RangeGuard`] passes the range on, in a panic too.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::Ino;
use crate::limits::BLOCK;

/// Inodes are spread over this many mutexes.
const SHARDS: usize = 16;
/// Most who wait for one object and are looked at when a lock is released: bounds the work. The
/// first of all is always among them, so somebody goes on.
const LOOKED_AT: usize = 64;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// First unit of the range; what a unit is, is the owner's.
    pub start: u64,
    /// Behind its last.
    pub end: u64,
    /// Whether nobody else may hold any of it.
    pub exclusive: bool,
    /// Whose it is, for [`RangeQueue::release_all`].
    pub owner: u32,
}

impl RangeRequest {
    /// Whether the two may not be held at once.
    #[must_use]
    pub fn conflicts(&self, other: &RangeRequest) -> bool {
        (self.exclusive || other.exclusive) && self.start < other.end && other.start < self.end
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    request: RangeRequest,
}

/// The range locks of one object: held, and waited for in the order they were asked for. `W` is how
/// one who waits is told.
#[derive(Debug)]
pub struct RangeQueue<W> {
    /// Those held, and those granted to somebody who does not know it yet.
    held: Vec<Entry>,
    waiting: VecDeque<(Entry, W)>,
    next_id: u64,
    /// Most who wait and are looked at when a lock is released.
    looked_at: usize,
}

impl<W> Default for RangeQueue<W> {
    fn default() -> RangeQueue<W> {
        RangeQueue { held: Vec::new(), waiting: VecDeque::new(), next_id: 0, looked_at: LOOKED_AT }
    }
}

impl<W> RangeQueue<W> {
    /// A queue in which a release looks at everybody who waits: for objects on which few wait, and
    /// where one who waits for other units must not wait for those before him.
    #[must_use]
    pub fn looking_at_all() -> RangeQueue<W> {
        RangeQueue { looked_at: usize::MAX, ..RangeQueue::default() }
    }

    /// Asks for a lock; its id, and whether it is held now. If not, a later release gives the `W`
    /// that `told` makes.
    pub fn ask(&mut self, request: RangeRequest, told: impl FnOnce() -> W) -> (u64, bool) {
        let id = self.next_id;
        self.next_id += 1;
        let entry = Entry { id, request };
        let granted = self.allows(&request, usize::MAX);
        if granted {
            self.held.push(entry);
        } else {
            self.waiting.push_back((entry, told()));
        }
        (id, granted)
    }

    /// Whether the lock of this id is held.
    #[must_use]
    pub fn holds(&self, id: u64) -> bool {
        self.held.iter().any(|entry| entry.id == id)
    }

    /// How the one who waits for this id is told; nothing if nobody does.
    pub fn waiter(&mut self, id: u64) -> Option<&mut W> {
        self.waiting.iter_mut().find(|(entry, _)| entry.id == id).map(|(_, told)| told)
    }

    /// Ends a lock, or the wait for it; `granted` is given those whose locks are held now. An id
    /// that has ended already is passed over.
    pub fn release(&mut self, id: u64, granted: impl FnMut(W)) {
        if let Some(at) = self.held.iter().position(|entry| entry.id == id) {
            self.held.swap_remove(at);
        } else {
            self.waiting.retain(|(entry, _)| entry.id != id);
        }
        self.grant(granted);
    }

    /// Ends all locks and waits of `owner`, who never comes back.
    pub fn release_all(&mut self, owner: u32, granted: impl FnMut(W)) {
        self.held.retain(|entry| entry.request.owner != owner);
        self.waiting.retain(|(entry, _)| entry.request.owner != owner);
        self.grant(granted);
    }

    /// The object is gone: all who wait for it.
    pub fn into_waiting(self) -> impl Iterator<Item = W> {
        self.waiting.into_iter().map(|(_, told)| told)
    }

    /// Whether nobody holds or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// Whether `request` may be granted when `ahead` of those who wait came before it.
    fn allows(&self, request: &RangeRequest, ahead: usize) -> bool {
        let waiting = self.waiting.iter().take(ahead).map(|(entry, _)| entry);
        !self.held.iter().chain(waiting).any(|other| other.request.conflicts(request))
    }

    fn grant(&mut self, mut granted: impl FnMut(W)) {
        let mut at = 0;
        while let Some((entry, _)) = self.waiting.get(at).filter(|_| at < self.looked_at) {
            let entry = *entry;
            if self.allows(&entry.request, at) {
                self.held.push(entry);
                self.waiting.remove(at).into_iter().for_each(|(_, told)| granted(told));
            } else {
                at += 1;
            }
        }
    }
}

/// The range locks of inodes, by whole blocks of [`BLOCK`] bytes.
#[derive(Debug, Default)]
pub struct RangeLocks {
    shards: [Mutex<Shard>; SHARDS],
}

/// Inodes nobody holds or waits for are not in it.
type Shard = HashMap<Ino, RangeQueue<Waker>>;

/// A range of one inode is locked until this is dropped.
#[derive(Debug)]
#[must_use = "a range lock is released when its guard is dropped"]
pub struct RangeGuard<'l> {
    locks: &'l RangeLocks,
    ino: Ino,
    id: u64,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.locks.release(self.ino, self.id);
    }
}

/// All bytes of a file, and what is said of it as a whole.
const ALL: Range<u64> = 0..u64::MAX;

impl RangeLocks {
    /// Waits for the whole inode beside other readers.
    pub fn shared(&self, ino: Ino) -> impl Future<Output = RangeGuard<'_>> {
        self.wait(ino, ALL, false)
    }

    /// Waits for the whole inode alone.
    pub fn exclusive(&self, ino: Ino) -> impl Future<Output = RangeGuard<'_>> {
        self.wait(ino, ALL, true)
    }

    /// Waits for the blocks that `bytes` touch, beside other readers.
    pub fn shared_on(&self, ino: Ino, bytes: Range<u64>) -> impl Future<Output = RangeGuard<'_>> {
        self.wait(ino, bytes, false)
    }

    /// Waits for the blocks that `bytes` touch, alone.
    pub fn exclusive_on(
        &self,
        ino: Ino,
        bytes: Range<u64>,
    ) -> impl Future<Output = RangeGuard<'_>> {
        self.wait(ino, bytes, true)
    }

    /// Waits for two whole inodes alone (one lock if they are the same), always in one order, so
    /// that two who want the same pair never wait for each other.
    pub async fn exclusive_both(&self, a: Ino, b: Ino) -> (RangeGuard<'_>, Option<RangeGuard<'_>>) {
        let first = self.exclusive(a.min(b)).await;
        let second = if a == b { None } else { Some(self.exclusive(a.max(b)).await) };
        (first, second)
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(ino.0 % SHARDS as u64).unwrap_or(0);
        // The remainder is within the array; nothing here panics with the mutex held.
        let [first, ..] = &self.shards;
        self.shards.get(index).unwrap_or(first).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a lock or a wait, then wakes outside the mutex.
    fn release(&self, ino: Ino, id: u64) {
        let mut woken = Vec::new();
        let mut shard = self.shard(ino);
        if let Some(queue) = shard.get_mut(&ino) {
            queue.release(id, |waker| woken.push(waker));
            if queue.is_idle() {
                shard.remove(&ino);
            }
        }
        drop(shard);
        woken.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self, ino: Ino, bytes: Range<u64>, exclusive: bool) -> RangeGuard<'_> {
        let block = BLOCK as u64;
        let (start, end) = (bytes.start / block, bytes.end.div_ceil(block));
        let request = RangeRequest { start, end, exclusive, owner: 0 };
        let mut place = Place { locks: self, ino, request, id: None };
        let id = poll_fn(|cx| place.poll(cx)).await;
        RangeGuard { locks: self, ino, id }
    }
}

/// A place in the queue of an inode, from its first poll to its lock.
struct Place<'l> {
    locks: &'l RangeLocks,
    ino: Ino,
    request: RangeRequest,
    id: Option<u64>,
}

impl Place<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<u64> {
        let mut shard = self.locks.shard(self.ino);
        let queue = shard.entry(self.ino).or_default();
        let Some(id) = self.id else {
            let (id, granted) = queue.ask(self.request, || cx.waker().clone());
            if granted {
                return Poll::Ready(id);
            }
            self.id = Some(id);
            return Poll::Pending;
        };
        match queue.waiter(id) {
            Some(waker) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            None => {
                self.id = None;
                Poll::Ready(id)
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.locks.release(self.ino, id);
        }
    }
}

#[cfg(test)]
mod tests;
