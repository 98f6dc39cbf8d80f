//! Those who have something to commit for one inode at the same time gather, and one of them does
//! it for all: one batch instead of many.
//!
//! Nobody waits for who may come: the leader lets those go first whose time has come already, as
//! far as there are others at work, and takes what is there. Dropping the future of
//! [`Work::commit`], or a [`Lead`], leaves nobody waiting: somebody else leads, and those whose
//! commit was given up in the middle are told to do their work again.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use outboard_base::{Errno, Ino};

/// Most whose work becomes one batch.
const GATHERED_MAX: usize = 64;

/// What became of somebody's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is committed.
    Done,
    /// It is not, and this is why.
    Failed(Errno),
    /// It is not, and must be done again: something changed underneath, or who led was dropped.
    Again,
    /// It is not, and must be done again and committed by itself: of several, one may have spoilt
    /// it for all.
    Apart,
}

/// Who is at work, inode by inode, and what is ready to be committed.
pub(crate) struct Gather<T> {
    inodes: Mutex<HashMap<Ino, Inode<T>>>,
}

impl<T> Default for Gather<T> {
    fn default() -> Gather<T> {
        Gather { inodes: Mutex::default() }
    }
}

/// Who is at work on one inode; removed when nobody is.
struct Inode<T> {
    /// Those at work, ready or not.
    working: usize,
    leads: bool,
    next_seat: u64,
    seats: Vec<Place<T>>,
}

/// One who is ready.
struct Place<T> {
    seat: u64,
    apart: bool,
    /// Until a leader takes it.
    work: Option<T>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl<T> Inode<T> {
    fn new() -> Inode<T> {
        Inode { working: 0, leads: false, next_seat: 0, seats: Vec::new() }
    }

    fn at(&mut self, seat: u64) -> Option<&mut Place<T>> {
        self.seats.iter_mut().find(|place| place.seat == seat)
    }
}

impl<T> Gather<T> {
    fn inodes(&self) -> MutexGuard<'_, HashMap<Ino, Inode<T>>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody begins work that ends in a commit.
    pub(crate) fn begin(&self, ino: Ino) -> Work<'_, T> {
        self.inodes().entry(ino).or_insert_with(Inode::new).working += 1;
        Work { gather: self, ino }
    }
}

/// Somebody is at work; not any more when dropped.
pub(crate) struct Work<'g, T> {
    gather: &'g Gather<T>,
    ino: Ino,
}

impl<T> Drop for Work<'_, T> {
    fn drop(&mut self) {
        let mut inodes = self.gather.inodes();
        if let Some(inode) = inodes.get_mut(&self.ino) {
            inode.working = inode.working.saturating_sub(1);
            if inode.working == 0 {
                inodes.remove(&self.ino);
            }
        }
    }
}

/// Whose turn it is to do what.
pub(crate) enum Turn<'w, T> {
    /// Another did it.
    Told(Outcome),
    /// This one commits for all.
    Lead(Lead<'w, T>),
}

impl<T> Work<'_, T> {
    /// Changes what is known of the inode, which is there as long as somebody is at work.
    fn with<R>(&self, change: impl FnOnce(&mut Inode<T>) -> R) -> R {
        change(self.gather.inodes().entry(self.ino).or_insert_with(Inode::new))
    }

    /// The work is ready to be committed, by itself if it is to be `apart`. Waits until somebody
    /// has done it, or it is this one's turn to lead.
    pub(crate) async fn commit(&self, work: T, apart: bool) -> Turn<'_, T> {
        let number = self.with(|inode| {
            let seat = inode.next_seat;
            inode.next_seat += 1;
            let work = Some(work);
            inode.seats.push(Place { seat, apart, work, outcome: None, waker: None });
            seat
        });
        let seat = Seat { work: self, number };
        if let Some(outcome) = poll_fn(|cx| seat.poll(cx)).await {
            return Turn::Told(outcome);
        }
        let mut lead = Lead::new(self);
        if self.with(|inode| inode.working > inode.seats.len()) {
            others_first().await;
        }
        lead.take(number, apart);
        Turn::Lead(lead)
    }
}

/// Lets those go first who have been woken already.
async fn others_first() {
    let mut gone = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut gone, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Somebody's place among those who are ready.
struct Seat<'w, T> {
    work: &'w Work<'w, T>,
    number: u64,
}

impl<T> Seat<'_, T> {
    /// What another has done, or nothing if this one is to lead.
    fn poll(&self, cx: &Context<'_>) -> Poll<Option<Outcome>> {
        self.work.with(|inode| {
            let leads = inode.leads;
            let Some(place) = inode.at(self.number) else { return Poll::Pending };
            if place.outcome.is_some() {
                return Poll::Ready(place.outcome);
            }
            if leads {
                place.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            inode.leads = true;
            Poll::Ready(None)
        })
    }
}

impl<T> Drop for Seat<'_, T> {
    fn drop(&mut self) {
        let place = self.work.with(|inode| {
            let at = inode.seats.iter().position(|place| place.seat == self.number);
            at.map(|at| inode.seats.remove(at))
        });
        drop(place); // Not with the mutex held.
    }
}

/// Commits what has gathered; another may when this is dropped.
pub(crate) struct Lead<'w, T> {
    work: &'w Work<'w, T>,
    gathered: Vec<T>,
    followers: Vec<u64>,
    has_told: bool,
}

impl<'w, T> Lead<'w, T> {
    fn new(work: &'w Work<'w, T>) -> Lead<'w, T> {
        Lead { work, gathered: Vec::new(), followers: Vec::new(), has_told: false }
    }

    /// Takes its own work, and that of others unless it is to be apart.
    fn take(&mut self, own: u64, apart: bool) {
        let Lead { work, gathered, followers, .. } = self;
        work.with(|inode| {
            gathered.extend(inode.at(own).and_then(|place| place.work.take()));
            let others = inode.seats.iter_mut().filter(|place| !apart && !place.apart);
            for place in others.take(GATHERED_MAX) {
                if let Some(work) = place.work.take() {
                    gathered.push(work);
                    followers.push(place.seat);
                }
            }
        });
    }

    /// What is to be committed, once; its own is the first.
    pub(crate) fn gathered(&mut self) -> Vec<T> {
        std::mem::take(&mut self.gathered)
    }

    /// Whether others' work is among it.
    pub(crate) fn has_followers(&self) -> bool {
        !self.followers.is_empty()
    }

    /// Tells the others what became of theirs.
    pub(crate) fn tell(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        self.has_told = true;
        let wakers: Vec<Waker> = self.work.with(|inode| {
            inode.leads = false;
            for follower in self.followers.drain(..) {
                if let Some(place) = inode.at(follower) {
                    place.outcome = Some(outcome);
                }
            }
            // Who was not told may lead.
            inode.seats.iter_mut().filter_map(|place| place.waker.take()).collect()
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<T> Drop for Lead<'_, T> {
    fn drop(&mut self) {
        // Once it has told, another may lead.
        if !self.has_told {
            self.end(Outcome::Again);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use super::*;

    const INO: Ino = Ino(3);

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(out) => Some(out),
            Poll::Pending => None,
        }
    }

    fn lead<'w>(turn: Option<Turn<'w, u32>>) -> Lead<'w, u32> {
        match turn {
            Some(Turn::Lead(lead)) => lead,
            Some(Turn::Told(outcome)) => panic!("told {outcome:?}"),
            None => panic!("it waits"),
        }
    }

    fn told(turn: Option<Turn<'_, u32>>) -> Option<Outcome> {
        match turn {
            Some(Turn::Told(outcome)) => Some(outcome),
            Some(Turn::Lead(_)) => panic!("it leads"),
            None => None,
        }
    }

    #[test]
    fn one_alone_does_not_wait() {
        let gather = Gather::default();
        let work = gather.begin(INO);
        let mut first = lead(poll(pin!(work.commit(1, false))));
        assert_eq!(first.gathered(), [1]);
        first.tell(Outcome::Done);
        drop(work);
        assert!(gather.inodes().is_empty());
    }

    #[test]
    fn one_commits_for_all_who_are_ready() {
        let gather = Gather::default();
        let work = [(); 4].map(|()| gather.begin(INO));
        let mut first = pin!(work[0].commit(0, false));
        let mut second = pin!(work[1].commit(1, false));
        assert!(poll(first.as_mut()).is_none(), "it lets the others go first");
        assert_eq!(told(poll(second.as_mut())), None);
        let mut leader = lead(poll(first.as_mut()));
        assert_eq!((leader.gathered(), leader.has_followers()), (vec![0, 1], true));
        // Who comes now, leads the next.
        let mut third = pin!(work[2].commit(2, false));
        assert_eq!(told(poll(third.as_mut())), None);
        leader.tell(Outcome::Failed(Errno::EIO));
        assert_eq!(told(poll(second.as_mut())), Some(Outcome::Failed(Errno::EIO)));
        assert!(poll(third.as_mut()).is_none());
        assert_eq!(lead(poll(third.as_mut())).gathered(), [2]);
    }

    #[test]
    fn who_is_apart_is_committed_alone() {
        let gather = Gather::default();
        let work = [(); 3].map(|()| gather.begin(INO));
        let mut apart = pin!(work[0].commit(0, true));
        let mut other = pin!(work[1].commit(1, false));
        let mut third = pin!(work[2].commit(2, false));
        assert!(poll(apart.as_mut()).is_none());
        assert_eq!(told(poll(other.as_mut())), None);
        assert_eq!(told(poll(third.as_mut())), None);
        let mut leader = lead(poll(apart.as_mut()));
        assert_eq!((leader.gathered(), leader.has_followers()), (vec![0], false));
        let mut again = pin!(work[0].commit(9, true));
        assert_eq!(told(poll(again.as_mut())), None);
        leader.tell(Outcome::Done);
        assert_eq!(lead(poll(third.as_mut())).gathered(), [2, 1]);
    }

    #[test]
    fn a_leader_given_up_leaves_nobody_waiting() {
        let gather = Gather::default();
        let work = [(); 3].map(|()| gather.begin(INO));
        let mut follower = pin!(work[1].commit(1, false));
        {
            let mut early = Box::pin(work[0].commit(0, false));
            assert!(poll(early.as_mut()).is_none());
            assert_eq!(told(poll(follower.as_mut())), None);
            // Given up before it took anything: its own work goes with it.
        }
        let mut late = pin!(work[2].commit(2, false));
        assert!(poll(follower.as_mut()).is_none());
        assert_eq!(told(poll(late.as_mut())), None);
        let mut leader = lead(poll(follower.as_mut()));
        assert_eq!(leader.gathered(), [1, 2]);
        drop(leader);
        assert_eq!(told(poll(late.as_mut())), Some(Outcome::Again));
    }
}
