//! The contents of one instant, read while they are overwritten: for backups of what runs.
//!
//! ```text
//! hold   new writes wait until those under way have ended: the instant; then they go on
//! write  of a chunk that is not copied yet: what it holds is put aside, once, before
//! next   the chunks in their order, each from the medium or from aside; then it may be overwritten
//! ```
//!
//! What holds:
//!
//! * What is read is what the medium held at the instant, and nothing else: every write answered
//!   before, no write begun after, none in half.
//! * A writer waits for the writes under way at the instant, and for its own chunks to be put
//!   aside; never for who reads.
//! * Putting aside that fails ends the copy, never a write.
//! * What cannot be put aside, as the end of a medium that is cut, is refused meanwhile.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::Errno;
use outboard_base::task::WaitList;

use super::{Buf, Medium};

/// What is put aside as one, bytes.
const CHUNK: u64 = 64 << 10;
/// Most that is read at once.
const PIECE: u64 = 1 << 20;

/// Where chunks are put until they are copied. Called by writers: it must not wait for anybody.
pub trait Aside: Send + Sync + 'static {
    /// Keeps bytes at a place of its own.
    ///
    /// # Errors
    /// There is no room: the copy is given up.
    fn put(&self, at: u64, bytes: &[u8]) -> Result<(), Errno>;

    /// Gives them back.
    ///
    /// # Errors
    /// They cannot be read: the copy is given up.
    fn get(&self, at: u64, into: &mut [u8]) -> Result<(), Errno>;
}

/// A medium of which an instant can be held.
pub struct Holding<M> {
    medium: M,
    state: Mutex<State>,
    changed: WaitList,
}

#[derive(Default)]
struct State {
    /// Writes.
    under_way: usize,
    /// Whether an instant is waited for: no write begins.
    is_stopped: bool,
    held: Option<Held>,
}

struct Held {
    aside: Arc<dyn Aside>,
    len: u64,
    /// Up to here it is copied, and may be overwritten.
    copied: u64,
    /// Those behind that were overwritten since, or are about to be.
    chunks: BTreeMap<u64, Chunk>,
    /// The next free place aside.
    place: u64,
    failed: Option<Errno>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    /// On its way there.
    Saving,
    Zeros,
    At(u64),
}

fn chunks(range: &Range<u64>) -> Range<u64> {
    range.start / CHUNK..range.end.div_ceil(CHUNK)
}

fn bytes(from: u64, to: u64) -> usize {
    usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX)
}

impl Held {
    fn is_saving(&self, range: &Range<u64>) -> bool {
        self.chunks.range(chunks(range)).any(|(_, chunk)| *chunk == Chunk::Saving)
    }

    fn fail(&mut self, error: Errno) {
        self.failed.get_or_insert(error);
        self.chunks.clear();
    }
}

impl<M: Medium> Holding<M> {
    /// Nothing is held yet.
    pub fn new(medium: M) -> Holding<M> {
        Holding { medium, state: Mutex::default(), changed: WaitList::default() }
    }

    /// What it is around.
    pub fn inner(&self) -> &M {
        &self.medium
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.lock())
    }

    fn has_failed(&self, error: Errno) {
        self.with(|state| state.held.as_mut().map(|held| held.fail(error)));
        self.changed.notify();
    }

    /// Holds what is there once the writes under way have ended; others wait so long. `None`: an
    /// instant is held already.
    pub async fn hold(self: &Arc<Holding<M>>, aside: Arc<dyn Aside>) -> Option<Instant<M>> {
        let is_free = self.with(|state| {
            let is_free = !state.is_stopped && state.held.is_none();
            state.is_stopped |= is_free;
            is_free
        });
        if !is_free {
            return None;
        }
        let stopped = Stopped(self);
        let new = |state: &mut State| {
            let (len, chunks) = (self.medium.len(), BTreeMap::new());
            let aside = Arc::clone(&aside);
            state.held = Some(Held { aside, len, copied: 0, chunks, place: 0, failed: None });
        };
        let ended = || self.with(|state| (state.under_way == 0).then(|| new(state)));
        self.changed.until(ended).await;
        drop(stopped);
        Some(Instant { of: Arc::clone(self) })
    }

    /// Changes the medium in a way of which nothing can be put aside, such as cutting it.
    ///
    /// # Errors
    /// `EBUSY` while an instant is held or waited for, then nothing is done; or what `act` says.
    pub async fn alter<T>(&self, act: impl Future<Output = Result<T, Errno>>) -> Result<T, Errno> {
        let is_free = self.with(|state| {
            let is_free = !state.is_stopped && state.held.is_none();
            state.under_way += usize::from(is_free);
            is_free
        });
        if !is_free {
            return Err(Errno::EBUSY);
        }
        let _under_way = UnderWay(self);
        act.await
    }

    /// What this write has to put aside: runs of chunks nobody else does.
    fn claim(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        self.with(|state| {
            let Some(held) = state.held.as_mut().filter(|held| held.failed.is_none()) else {
                return;
            };
            for chunk in chunks(range) {
                let (from, to) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(held.len));
                if from < held.copied || from >= held.len || held.chunks.contains_key(&chunk) {
                    continue;
                }
                held.chunks.insert(chunk, Chunk::Saving);
                match runs.last_mut() {
                    Some(run) if run.end == from && to - run.start <= PIECE => run.end = to,
                    _ => runs.push(from..to),
                }
            }
        });
        runs
    }

    /// Puts aside what is about to be overwritten, or waits for who does.
    async fn put_aside(&self, range: Range<u64>) {
        let mut claim = Claim { of: self, runs: self.claim(&range) };
        while let Some(run) = claim.runs.last().cloned() {
            let (read, buf) =
                self.medium.read(run.start, Buf::zeroed(bytes(run.start, run.end))).await;
            if let Err(error) = read.and_then(|()| self.save(&run, &buf)) {
                self.has_failed(error);
            }
            claim.runs.pop();
        }
        let is_saved = || {
            let is_saving = |held: &Held| held.is_saving(&range);
            self.with(|state| (!state.held.as_ref().is_some_and(is_saving)).then_some(()))
        };
        self.changed.until(is_saved).await;
    }

    fn save(&self, run: &Range<u64>, buf: &Buf) -> Result<(), Errno> {
        let len = usize::try_from(CHUNK).unwrap_or(usize::MAX);
        for (chunk, bytes) in chunks(run).zip(buf.chunks(len)) {
            let is_zeros = bytes.iter().all(|byte| *byte == 0);
            let place = self.with(|state| {
                let held = state.held.as_mut().filter(|held| held.failed.is_none())?;
                let at = held.place;
                held.place += if is_zeros { 0 } else { CHUNK };
                Some((Arc::clone(&held.aside), at))
            });
            // Nobody wants it any more.
            let Some((aside, at)) = place else { return Ok(()) };
            if !is_zeros {
                aside.put(at, bytes)?;
            }
            let saved = if is_zeros { Chunk::Zeros } else { Chunk::At(at) };
            self.with(|state| {
                let held = state.held.as_mut().filter(|held| held.failed.is_none());
                held.map(|held| held.chunks.insert(chunk, saved))
            });
            self.changed.notify();
        }
        Ok(())
    }
}

/// No write begins meanwhile.
struct Stopped<'a, M: Medium>(&'a Holding<M>);

impl<M: Medium> Drop for Stopped<'_, M> {
    fn drop(&mut self) {
        self.0.with(|state| state.is_stopped = false);
        self.0.changed.notify();
    }
}

/// A write is under way.
struct UnderWay<'a, M: Medium>(&'a Holding<M>);

impl<M: Medium> Drop for UnderWay<'_, M> {
    fn drop(&mut self) {
        let is_last = self.0.with(|state| {
            state.under_way -= 1;
            state.is_stopped && state.under_way == 0
        });
        if is_last {
            self.0.changed.notify();
        }
    }
}

/// Runs a write has to put aside. One that was dropped meanwhile ends the copy.
struct Claim<'a, M: Medium> {
    of: &'a Holding<M>,
    runs: Vec<Range<u64>>,
}

impl<M: Medium> Drop for Claim<'_, M> {
    fn drop(&mut self) {
        if !self.runs.is_empty() {
            self.of.has_failed(Errno::EIO);
        }
    }
}

/// What a medium held at an instant, read front to back. Dropped, it holds nothing any more.
pub struct Instant<M: Medium> {
    of: Arc<Holding<M>>,
}

impl<M: Medium> Instant<M> {
    /// Bytes there were.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.of.with(|state| state.held.as_ref().map_or(0, |held| held.len))
    }

    /// Whether there was nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next piece and where it lies; `None` at the end.
    ///
    /// # Errors
    /// The medium cannot be read, or something could not be put aside; then the copy is lost.
    pub async fn next(&mut self) -> Result<Option<(u64, Buf)>, Errno> {
        let place = |held: &Held| (held.copied, held.len, Arc::clone(&held.aside));
        let place = self.of.with(|state| state.held.as_ref().map(place));
        let (from, len, aside) = place.ok_or(Errno::EIO)?;
        if from >= len {
            return Ok(None);
        }
        let range = from..(from + PIECE).min(len);
        let (read, mut buf) = self.of.medium.read(from, Buf::zeroed(bytes(from, range.end))).await;
        read?;
        // A write that began before this says so says what was there; one after it changes nothing.
        let copied = |held: &mut Held| {
            if let Some(error) = held.failed {
                return Some(Err(error));
            }
            if held.is_saving(&range) {
                return None;
            }
            let saved = held.chunks.range(chunks(&range));
            let saved: Vec<(u64, Chunk)> = saved.map(|(at, chunk)| (*at, *chunk)).collect();
            held.chunks = held.chunks.split_off(&chunks(&range).end);
            held.copied = range.end;
            Some(Ok(saved))
        };
        let look =
            || self.of.with(|state| state.held.as_mut().map_or(Some(Err(Errno::EIO)), copied));
        let saved = self.of.changed.until(look).await?;
        for (chunk, saved) in saved {
            let start = bytes(from, chunk * CHUNK);
            let end = bytes(from, ((chunk + 1) * CHUNK).min(range.end));
            let into = buf.get_mut(start..end).ok_or(Errno::EIO)?;
            match saved {
                Chunk::At(at) => aside.get(at, into)?,
                Chunk::Zeros | Chunk::Saving => into.fill(0),
            }
        }
        Ok(Some((from, buf)))
    }
}

impl<M: Medium> Drop for Instant<M> {
    fn drop(&mut self) {
        self.of.with(|state| state.held = None);
        self.of.changed.notify();
    }
}

impl<M: Medium> Medium for Holding<M> {
    fn keep(&self, buf: Buf) -> Buf {
        self.medium.keep(buf)
    }

    fn ahead(&self) -> u64 {
        self.medium.ahead()
    }

    fn expect(&self, bytes: Range<u64>) {
        self.medium.expect(bytes);
    }

    fn expected(&self, bytes: Range<u64>) -> impl Future<Output = Option<Buf>> {
        self.medium.expected(bytes)
    }

    fn read(&self, offset: u64, buf: Buf) -> impl Future<Output = (Result<(), Errno>, Buf)> {
        self.medium.read(offset, buf)
    }

    async fn write(&self, offset: u64, buf: Buf) -> (Result<(), Errno>, Buf) {
        let begins = || {
            self.with(|state| {
                state.under_way += usize::from(!state.is_stopped);
                (!state.is_stopped).then_some(state.held.is_some())
            })
        };
        let is_held = match begins() {
            Some(is_held) => is_held,
            None => self.changed.until(begins).await,
        };
        let _under_way = UnderWay(self);
        if is_held {
            self.put_aside(offset..offset.saturating_add(buf.len() as u64)).await;
        }
        self.medium.write(offset, buf).await
    }

    fn flush(&self) -> impl Future<Output = Result<(), Errno>> {
        self.medium.flush()
    }

    fn is_flushed_by_store(&self) -> bool {
        self.medium.is_flushed_by_store()
    }

    fn hand_over(&self) -> impl Future<Output = Result<(), Errno>> {
        self.medium.hand_over()
    }

    fn grow(&self, len: u64) -> impl Future<Output = Result<(), Errno>> {
        self.medium.grow(len)
    }

    fn len(&self) -> u64 {
        self.medium.len()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::pin::Pin;

    use outboard_base::Rng;
    use outboard_base::task::{poll_once, run};

    use super::*;
    use crate::mem::{Faults, MemMedium};

    const LEN: u64 = 3 * PIECE + 5 * CHUNK + 4096;

    /// Memory, with room for so many chunks.
    struct Shelf(Mutex<BTreeMap<u64, Vec<u8>>>, usize);

    impl Shelf {
        fn new(room: usize) -> Arc<Shelf> {
            Arc::new(Shelf(Mutex::default(), room))
        }
    }

    impl Aside for Shelf {
        fn put(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
            let mut chunks = self.0.lock().unwrap();
            if chunks.len() >= self.1 {
                return Err(Errno::ENOSPC);
            }
            assert!(chunks.insert(at, bytes.to_vec()).is_none(), "a place is of one chunk");
            Ok(())
        }

        fn get(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
            into.copy_from_slice(&self.0.lock().unwrap()[&at]);
            Ok(())
        }
    }

    type Held = Arc<Holding<MemMedium>>;

    fn medium(seed: u64, delay_polls: u64) -> Held {
        let medium = MemMedium::new(seed);
        run(medium.grow(LEN)).unwrap();
        medium.set_faults(Faults { delay_polls, ..Faults::default() });
        Arc::new(Holding::new(medium))
    }

    fn contents(held: &Held, delay_polls: u64) -> Vec<u8> {
        held.inner().set_faults(Faults::default());
        let (read, buf) = run(held.inner().read(0, Buf::zeroed(usize::try_from(LEN).unwrap())));
        read.unwrap();
        held.inner().set_faults(Faults { delay_polls, ..Faults::default() });
        buf.to_vec()
    }

    async fn write_some(held: Held, seed: u64, writes: u64) {
        let mut rng = Rng::new(seed);
        for _ in 0..writes {
            let most = if rng.chance(1, 5) { 300 } else { 20 };
            let pages = 1 + rng.below(most);
            let at = rng.below(LEN / 4096 - pages) * 4096;
            let mut buf = Buf::zeroed(usize::try_from(pages * 4096).unwrap());
            // Zeros, too.
            buf.fill(u8::try_from(rng.below(4)).unwrap());
            held.write(at, buf).await.0.unwrap();
        }
    }

    /// One run: writers and a copier, polled as the seed says. What was copied, what the instant
    /// was, what is there in the end.
    fn one(seed: u64) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let mut rng = Rng::new(seed);
        let delay = rng.below(6);
        let held = medium(seed, delay);
        let (instant, copy) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let begins = rng.below(60);
        let copier = async {
            for _ in 0..begins {
                run_later().await;
            }
            let mut now = held.hold(Shelf::new(usize::MAX)).await.unwrap();
            *instant.borrow_mut() = contents(&held, delay);
            assert!(held.hold(Shelf::new(0)).await.is_none(), "one at a time");
            assert_eq!(now.len(), LEN);
            while let Some((at, piece)) = now.next().await.unwrap() {
                assert_eq!(at, copy.borrow().len() as u64);
                copy.borrow_mut().extend_from_slice(&piece);
            }
        };
        let writers = (0..4).map(|n| {
            Box::pin(write_some(Arc::clone(&held), seed * 10 + n, 40))
                as Pin<Box<dyn Future<Output = ()>>>
        });
        let mut all: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![Box::pin(copier)];
        all.extend(writers);
        while !all.is_empty() {
            let at = usize::try_from(rng.below(all.len() as u64)).unwrap();
            if poll_once(all[at].as_mut()).is_ready() {
                drop(all.swap_remove(at));
            }
        }
        drop(all);
        let left = contents(&held, 0);
        assert!(held.with(|state| state.held.is_none() && state.under_way == 0));
        (copy.into_inner(), instant.into_inner(), left)
    }

    async fn run_later() {
        let mut is_later = false;
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            match std::mem::replace(&mut is_later, true) {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        })
        .await;
    }

    #[test]
    fn what_is_copied_is_of_one_instant_whatever_is_written_meanwhile() {
        let mut others = 0;
        for seed in 0..25 {
            let (copy, instant, left) = one(seed);
            assert!(copy == instant, "seed {seed}");
            others += u32::from(copy != left);
        }
        // A copy that held nothing would have been found out.
        assert!(others > 20, "{others}");
    }

    /// What is cut off cannot be put aside, and the copy would read behind the end.
    #[test]
    fn nothing_is_cut_while_an_instant_is_held() {
        let held = medium(1, 3);
        let cut = |len: u64| async move { Ok(len) };
        assert_eq!(run(held.alter(cut(5))), Ok(5));
        let waits = held.alter(run_later_ok());
        let mut waits = std::pin::pin!(waits);
        assert!(poll_once(waits.as_mut()).is_pending());
        let mut holding = Box::pin(held.hold(Shelf::new(1)));
        assert!(poll_once(holding.as_mut()).is_pending(), "what is under way ends first");
        assert_eq!(run(held.alter(cut(6))), Err(Errno::EBUSY));
        assert_eq!(run(waits), Ok(()));
        let instant = run(holding).unwrap();
        assert_eq!(run(held.alter(cut(7))), Err(Errno::EBUSY));
        drop(instant);
        assert_eq!(run(held.alter(cut(8))), Ok(8));
    }

    async fn run_later_ok() -> Result<(), Errno> {
        run_later().await;
        Ok(())
    }

    #[test]
    fn without_room_the_copy_is_given_up_and_writes_go_on() {
        let held = medium(1, 0);
        run(write_some(Arc::clone(&held), 1, 50));
        let mut instant = run(held.hold(Shelf::new(3))).unwrap();
        run(write_some(Arc::clone(&held), 2, 50));
        assert_eq!(run(instant.next()).unwrap_err(), Errno::ENOSPC);
        drop(instant);
        let mut instant = run(held.hold(Shelf::new(0))).unwrap();
        assert!(run(instant.next()).unwrap().is_some());
    }

    /// A write whose future goes while it puts something aside has not said what was there.
    #[test]
    fn a_write_that_is_dropped_ends_the_copy_and_holds_nobody_up() {
        let held = medium(1, 0);
        run(write_some(Arc::clone(&held), 1, 50));
        let mut instant = run(held.hold(Shelf::new(usize::MAX))).unwrap();
        held.inner().set_faults(Faults { delay_polls: 1000, ..Faults::default() });
        let mut write = Box::pin(held.write(0, Buf::zeroed(4096)));
        assert!(poll_once(write.as_mut()).is_pending());
        drop(write);
        held.inner().set_faults(Faults::default());
        assert_eq!(run(instant.next()).unwrap_err(), Errno::EIO);
        run(write_some(Arc::clone(&held), 2, 5));
        drop(instant);
        assert!(run(held.hold(Shelf::new(0))).is_some());
    }
}
