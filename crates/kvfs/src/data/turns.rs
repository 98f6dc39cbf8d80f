//! Turns on inodes: many at once may read a file's data, one at a time may change it, in the order
//! they came.
//!
//! A turn is held across awaits; the mutex inside never is. First come, first served: a reader does
//! not pass a writer who waits, so neither starves. Dropping the future of [`Turns::shared`] or
//! [`Turns::alone`] gives its place up; dropping a [`Turn`] passes it on, in a panic too.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use outboard_base::Ino;

/// Inodes are spread over this many mutexes.
const SHARDS: usize = 16;

/// Who has a turn, and who waits, inode by inode.
#[derive(Default)]
pub(crate) struct Turns {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    inodes: HashMap<Ino, Inode>,
    next_place: u64,
}

/// Turns of one inode; removed when nobody holds or waits.
#[derive(Default)]
struct Inode {
    readers: usize,
    alone: bool,
    waiting: VecDeque<Waiting>,
    /// Places whose turn has come and whose futures do not know it yet.
    granted: Vec<u64>,
}

struct Waiting {
    place: u64,
    alone: bool,
    waker: Waker,
}

impl Inode {
    fn takes(&mut self, alone: bool) -> bool {
        let free = !self.alone && (!alone || self.readers == 0);
        if free {
            self.alone = alone;
            self.readers += usize::from(!alone);
        }
        free
    }

    /// Hands turns to those at the head of the queue; their wakers go to `woken`.
    fn advance(&mut self, woken: &mut Vec<Waker>) {
        while let Some(next) = self.waiting.pop_front() {
            if !self.takes(next.alone) {
                self.waiting.push_front(next);
                break;
            }
            self.granted.push(next.place);
            woken.push(next.waker);
        }
    }

    fn leave(&mut self, alone: bool, woken: &mut Vec<Waker>) {
        if alone {
            self.alone = false;
        } else {
            self.readers = self.readers.saturating_sub(1);
        }
        self.advance(woken);
    }

    fn is_idle(&self) -> bool {
        !self.alone && self.readers == 0 && self.waiting.is_empty()
    }
}

/// A turn on one inode; ends when dropped.
#[must_use = "a turn ends when it is dropped"]
pub(crate) struct Turn<'t> {
    turns: &'t Turns,
    ino: Ino,
    alone: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.change(self.ino, |inode, woken| inode.leave(self.alone, woken));
    }
}

impl Turns {
    /// A turn beside other readers.
    pub(crate) fn shared(&self, ino: Ino) -> impl Future<Output = Turn<'_>> {
        self.wait(ino, false)
    }

    /// A turn alone.
    pub(crate) fn alone(&self, ino: Ino) -> impl Future<Output = Turn<'_>> {
        self.wait(ino, true)
    }

    /// Turns alone on two inodes (one turn if they are the same), always taken in one order, so
    /// that two who want the same pair never wait for each other.
    pub(crate) async fn alone_on_both(&self, a: Ino, b: Ino) -> (Turn<'_>, Option<Turn<'_>>) {
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

    /// Changes the turns of `ino`, then wakes outside the mutex.
    fn change(&self, ino: Ino, change: impl FnOnce(&mut Inode, &mut Vec<Waker>)) {
        let mut woken = Vec::new();
        let mut shard = self.shard(ino);
        if let Some(inode) = shard.inodes.get_mut(&ino) {
            change(inode, &mut woken);
            if inode.is_idle() {
                shard.inodes.remove(&ino);
            }
        }
        drop(shard);
        woken.into_iter().for_each(Waker::wake);
    }

    async fn wait(&self, ino: Ino, alone: bool) -> Turn<'_> {
        let mut place = Place { turns: self, ino, alone, number: None };
        poll_fn(|cx| place.poll(cx)).await;
        Turn { turns: self, ino, alone }
    }
}

/// A place in the queue of an inode, from its first poll to its turn.
struct Place<'t> {
    turns: &'t Turns,
    ino: Ino,
    alone: bool,
    number: Option<u64>,
}

impl Place<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut shard = self.turns.shard(self.ino);
        let Shard { inodes, next_place } = &mut *shard;
        let inode = inodes.entry(self.ino).or_default();
        let Some(number) = self.number else {
            if inode.waiting.is_empty() && inode.takes(self.alone) {
                return Poll::Ready(());
            }
            let waker = cx.waker().clone();
            inode.waiting.push_back(Waiting { place: *next_place, alone: self.alone, waker });
            self.number = Some(*next_place);
            *next_place += 1;
            return Poll::Pending;
        };
        if let Some(at) = inode.granted.iter().position(|&granted| granted == number) {
            inode.granted.swap_remove(at);
            self.number = None;
            return Poll::Ready(());
        }
        if let Some(waiting) = inode.waiting.iter_mut().find(|w| w.place == number) {
            waiting.waker.clone_from(cx.waker());
        }
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let alone = self.alone;
        self.turns.change(self.ino, |inode, woken| {
            if let Some(at) = inode.granted.iter().position(|&granted| granted == number) {
                inode.granted.swap_remove(at);
                inode.leave(alone, woken);
            } else {
                inode.waiting.retain(|w| w.place != number);
                inode.advance(woken); // Who stood behind may go now.
            }
        });
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

    fn poll<F: Future>(future: Pin<&mut F>, wakes: &Arc<Count>) -> Option<F::Output> {
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
}
