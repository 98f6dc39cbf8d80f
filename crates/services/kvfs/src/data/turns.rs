//! Turns on the bytes of inodes: many at once may read, one at a time may change, block by block of
//! file, in the order they came. Turns on other blocks of one inode do not wait for each other.
//!
//! A turn is held across awaits; the mutex inside never is. First come, first served: nobody passes
//! one who waits for the same blocks, so neither readers nor writers starve. Dropping the future of
//! [`Turns::shared`] or [`Turns::alone`] gives its place up; dropping a [`Turn`] passes it on, in a
//! panic too.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use outboard_base::Ino;
use outboard_kv::object::BLOCK;

/// Inodes are spread over this many mutexes.
const SHARDS: usize = 16;
/// Most who wait for one inode and are looked at when a turn ends: bounds the work. The first of
/// all is always among them, so somebody goes on.
const LOOKED_AT: usize = 64;

/// Who has a turn, and who waits, inode by inode.
#[derive(Default)]
pub struct Turns {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    inodes: HashMap<Ino, Inode>,
    next_place: u64,
}

/// What a turn is on, and its number.
#[derive(Clone, Copy)]
struct Claim {
    place: u64,
    /// Blocks of file, the last excluded.
    from: u64,
    to: u64,
    alone: bool,
}

impl Claim {
    /// A claim on `bytes` of the file, by whole blocks; its number is not known yet.
    fn on(bytes: &Range<u64>, alone: bool) -> Claim {
        Claim { place: 0, from: bytes.start / BLOCK, to: bytes.end.div_ceil(BLOCK), alone }
    }

    fn bars(&self, other: &Claim) -> bool {
        (self.alone || other.alone) && self.from < other.to && other.from < self.to
    }
}

/// Turns of one inode; removed when nobody holds or waits.
#[derive(Default)]
struct Inode {
    /// Turns held, and granted to futures that do not know it yet.
    held: Vec<Claim>,
    waiting: VecDeque<(Claim, Waker)>,
}

impl Inode {
    fn holds(&self, place: u64) -> bool {
        self.held.iter().any(|claim| claim.place == place)
    }

    /// Whether `claim` may begin when `ahead` of those who wait came before it.
    fn allows(&self, claim: &Claim, ahead: usize) -> bool {
        let waiting = self.waiting.iter().take(ahead).map(|(claim, _)| claim);
        !self.held.iter().chain(waiting).any(|other| other.bars(claim))
    }

    /// Ends the turn, or the wait, with this number; the wakers of whose turn has come go to
    /// `woken`.
    fn leave(&mut self, place: u64, woken: &mut Vec<Waker>) {
        if let Some(at) = self.held.iter().position(|claim| claim.place == place) {
            self.held.swap_remove(at);
        } else {
            self.waiting.retain(|(claim, _)| claim.place != place);
        }
        let mut at = 0;
        while let Some((claim, _)) = self.waiting.get(at).filter(|_| at < LOOKED_AT) {
            let claim = *claim;
            if self.allows(&claim, at) {
                self.held.push(claim);
                woken.extend(self.waiting.remove(at).map(|(_, waker)| waker));
            } else {
                at += 1;
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }
}

/// A turn on one inode; ends when dropped.
#[must_use = "a turn ends when it is dropped"]
pub struct Turn<'t> {
    turns: &'t Turns,
    ino: Ino,
    place: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.leave(self.ino, self.place);
    }
}

/// All bytes of a file, and what is said of it as a whole.
const ALL: Range<u64> = 0..u64::MAX;

impl Turns {
    /// A turn on the whole inode beside other readers.
    pub fn shared(&self, ino: Ino) -> impl Future<Output = Turn<'_>> {
        self.wait(ino, Claim::on(&ALL, false))
    }

    /// A turn on the whole inode alone.
    pub fn alone(&self, ino: Ino) -> impl Future<Output = Turn<'_>> {
        self.wait(ino, Claim::on(&ALL, true))
    }

    /// A turn beside other readers on the blocks that `bytes` touch.
    pub(crate) fn shared_on(&self, ino: Ino, bytes: Range<u64>) -> impl Future<Output = Turn<'_>> {
        self.wait(ino, Claim::on(&bytes, false))
    }

    /// A turn alone on the blocks that `bytes` touch.
    pub fn alone_on(&self, ino: Ino, bytes: Range<u64>) -> impl Future<Output = Turn<'_>> {
        self.wait(ino, Claim::on(&bytes, true))
    }

    /// Turns alone on two inodes (one turn if they are the same), always taken in one order, so
    /// that two who want the same pair never wait for each other.
    pub async fn alone_on_both(&self, a: Ino, b: Ino) -> (Turn<'_>, Option<Turn<'_>>) {
        let first = self.alone(a.min(b)).await;
        let second = if a == b { None } else { Some(self.alone(a.max(b)).await) };
        (first, second)
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(ino.0 % SHARDS as u64).unwrap_or(0);
        // The remainder is within the array; nothing here panics with the mutex held.
        let [first, ..] = &self.shards;
        self.shards.get(index).unwrap_or(first).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a turn or a wait, then wakes outside the mutex.
    fn leave(&self, ino: Ino, place: u64) {
        let mut woken = Vec::new();
        let mut shard = self.shard(ino);
        if let Some(inode) = shard.inodes.get_mut(&ino) {
            inode.leave(place, &mut woken);
            if inode.is_idle() {
                shard.inodes.remove(&ino);
            }
        }
        drop(shard);
        woken.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self, ino: Ino, claim: Claim) -> Turn<'_> {
        let mut place = Place { turns: self, ino, claim, number: None };
        let number = poll_fn(|cx| place.poll(cx)).await;
        Turn { turns: self, ino, place: number }
    }
}

/// A place in the queue of an inode, from its first poll to its turn.
struct Place<'t> {
    turns: &'t Turns,
    ino: Ino,
    claim: Claim,
    number: Option<u64>,
}

impl Place<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        let mut shard = self.turns.shard(self.ino);
        let Shard { inodes, next_place } = &mut *shard;
        let inode = inodes.entry(self.ino).or_default();
        let Some(number) = self.number else {
            let claim = Claim { place: *next_place, ..self.claim };
            *next_place += 1;
            if inode.allows(&claim, usize::MAX) {
                inode.held.push(claim);
                return Poll::Ready(claim.place);
            }
            inode.waiting.push_back((claim, cx.waker().clone()));
            self.number = Some(claim.place);
            return Poll::Pending;
        };
        if inode.holds(number) {
            self.number = None;
            return Poll::Ready(number);
        }
        if let Some((_, waker)) = inode.waiting.iter_mut().find(|(c, _)| c.place == number) {
            waker.clone_from(cx.waker());
        }
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.turns.leave(self.ino, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll<F: Future + ?Sized>(future: Pin<&mut F>, wakes: &Arc<Count>) -> Option<F::Output> {
        let waker = Waker::from(Arc::clone(wakes));
        match future.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(out) => Some(out),
            Poll::Pending => None,
        }
    }

    #[test]
    fn turns_come_in_the_order_of_arrival() {
        let (turns, wakes) = (Turns::default(), Arc::new(Count::default()));
        let reader = poll(pin!(turns.shared(Ino(9))), &wakes).unwrap();
        let (mut writer, mut late) = (pin!(turns.alone(Ino(9))), pin!(turns.shared(Ino(9))));
        assert!(poll(writer.as_mut(), &wakes).is_none());
        assert!(poll(late.as_mut(), &wakes).is_none(), "a reader passed a waiting writer");
        assert!(poll(pin!(turns.alone(Ino(25))), &wakes).is_some(), "another inode of the shard");
        drop(reader);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        let written = poll(writer.as_mut(), &wakes).unwrap();
        assert!(poll(late.as_mut(), &wakes).is_none());
        drop(written);
        drop(poll(late.as_mut(), &wakes).unwrap());
        assert!(turns.shard(Ino(9)).inodes.is_empty());
    }

    #[test]
    fn a_dropped_future_gives_up_its_place_and_its_turn() {
        let (turns, wakes) = (Turns::default(), Arc::new(Count::default()));
        let reader = poll(pin!(turns.shared(Ino(9))), &wakes).unwrap();
        let mut behind = pin!(turns.shared(Ino(9)));
        {
            let mut writer = pin!(turns.alone(Ino(9)));
            assert!(poll(writer.as_mut(), &wakes).is_none());
            assert!(poll(behind.as_mut(), &wakes).is_none());
        }
        drop(poll(behind.as_mut(), &wakes).expect("the writer's place still bars the way"));
        {
            let mut writer = Box::pin(turns.alone(Ino(9)));
            assert!(poll(writer.as_mut(), &wakes).is_none());
            drop(reader); // Granted, but never polled again.
        }
        assert!(poll(pin!(turns.alone(Ino(9))), &wakes).is_some(), "a granted turn was lost");
        assert!(turns.shard(Ino(9)).inodes.is_empty());
    }

    #[test]
    fn two_inodes_are_taken_in_one_order() {
        let (turns, wakes) = (Turns::default(), Arc::new(Count::default()));
        let both = poll(pin!(turns.alone_on_both(Ino(7), Ino(3))), &wakes).unwrap();
        let mut other = pin!(turns.alone_on_both(Ino(3), Ino(7)));
        assert!(poll(other.as_mut(), &wakes).is_none());
        drop(both);
        assert!(poll(other.as_mut(), &wakes).is_some());
        let (_, second) = poll(pin!(turns.alone_on_both(Ino(4), Ino(4))), &wakes).unwrap();
        assert!(second.is_none());
    }

    #[test]
    fn other_blocks_do_not_wait() {
        let (turns, wakes) = (Turns::default(), Arc::new(Count::default()));
        let ino = Ino(1);
        let on = |from: u64, to: u64| from * BLOCK..to * BLOCK;
        let first = poll(pin!(turns.alone_on(ino, on(0, 2))), &wakes).unwrap();
        let other = poll(pin!(turns.alone_on(ino, on(2, 3))), &wakes).unwrap();
        assert!(poll(pin!(turns.alone_on(ino, 2 * BLOCK - 1..2 * BLOCK)), &wakes).is_none());
        let mut whole = pin!(turns.alone(ino));
        assert!(poll(whole.as_mut(), &wakes).is_none());
        let mut late = pin!(turns.shared_on(ino, on(8, 9)));
        assert!(poll(late.as_mut(), &wakes).is_none(), "it passed one who waits for its block");
        drop(first);
        assert!(poll(whole.as_mut(), &wakes).is_none());
        drop(other);
        let all = poll(whole.as_mut(), &wakes).unwrap();
        assert!(poll(late.as_mut(), &wakes).is_none());
        drop(all);
        drop(poll(late.as_mut(), &wakes).unwrap());
        assert!(turns.shard(ino).inodes.is_empty());
    }

    type Waits<'t> = Pin<Box<dyn Future<Output = Turn<'t>> + 't>>;

    fn below(rng: &mut outboard_base::Rng, len: usize) -> usize {
        usize::try_from(rng.below(len as u64)).unwrap()
    }

    /// Random claims in random order: nobody who holds is barred by another who does, nobody passes
    /// one who came before and is barred by it, and all get their turn.
    #[test]
    fn nobody_is_barred_and_nobody_starves() {
        for seed in 0..200 {
            let mut rng = outboard_base::Rng::new(seed);
            let (turns, wakes) = (Turns::default(), Arc::new(Count::default()));
            let mut waiting: Vec<(Claim, Waits<'_>)> = Vec::new();
            let mut held: Vec<(Claim, Turn<'_>)> = Vec::new();
            let (mut begun, mut ended) = (0, 0);
            while ended < 100 {
                match rng.below(4) {
                    0 if begun < 100 => {
                        let from = rng.below(6) * BLOCK;
                        let bytes = if rng.chance(1, 6) { ALL } else { from..from + 2 * BLOCK };
                        let claim = Claim { place: begun, ..Claim::on(&bytes, rng.chance(1, 2)) };
                        let turn = turns.wait(Ino(1), claim);
                        let mut turn: Waits<'_> = Box::pin(turn);
                        begun += 1;
                        match poll(turn.as_mut(), &wakes) {
                            Some(turn) => held.push((claim, turn)),
                            None => waiting.push((claim, turn)),
                        }
                    }
                    1 if !held.is_empty() => {
                        drop(held.swap_remove(below(&mut rng, held.len())));
                        ended += 1;
                    }
                    2 if !waiting.is_empty() && rng.chance(1, 5) => {
                        drop(waiting.remove(below(&mut rng, waiting.len())));
                        ended += 1;
                    }
                    _ => {}
                }
                let mut at = 0;
                while at < waiting.len() {
                    if let Some(turn) = poll(waiting[at].1.as_mut(), &wakes) {
                        held.push((waiting.remove(at).0, turn));
                    } else {
                        at += 1;
                    }
                }
                for (at, (claim, _)) in held.iter().enumerate() {
                    assert!(held[..at].iter().all(|(other, _)| !other.bars(claim)), "seed {seed}");
                    let passed =
                        waiting.iter().find(|(w, _)| w.place < claim.place && w.bars(claim));
                    assert!(passed.is_none(), "seed {seed}");
                }
                for (at, (claim, _)) in waiting.iter().enumerate() {
                    let earlier = waiting[..at].iter().map(|(claim, _)| claim);
                    let mut others = held.iter().map(|(claim, _)| claim).chain(earlier);
                    assert!(
                        others.any(|other| other.bars(claim)),
                        "seed {seed}: it waits for nobody"
                    );
                }
            }
            assert!(turns.shard(Ino(1)).inodes.is_empty());
        }
    }
}
