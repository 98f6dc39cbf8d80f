//! Group commit of one inode's writes: of those who are ready at the same time one, the leader,
//! commits for all, in one batch instead of many.
//!
//! Nobody waits for who may come: the leader lets those go first who have been woken already, as
//! far as there are others at work, and takes what is there. Dropping the future of
//! [`Work::commit`], or a [`Leader`], leaves nobody waiting: somebody else leads, and the followers
//! of a commit that was given up in the middle do their work again.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use outboard_base::task::yield_now;
use outboard_base::{Errno, Ino};

/// Most whose work becomes one batch.
const GROUP_MAX: usize = 64;

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
pub(crate) struct GroupCommit<T> {
    inodes: Mutex<HashMap<Ino, Inode<T>>>,
}

impl<T> Default for GroupCommit<T> {
    fn default() -> GroupCommit<T> {
        GroupCommit { inodes: Mutex::default() }
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

impl<T> GroupCommit<T> {
    fn inodes(&self) -> MutexGuard<'_, HashMap<Ino, Inode<T>>> {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody begins work that ends in a commit.
    pub(crate) fn begin(&self, ino: Ino) -> Work<'_, T> {
        self.inodes().entry(ino).or_insert_with(Inode::new).working += 1;
        Work { group: self, ino }
    }
}

/// Somebody is at work; not any more when dropped.
pub(crate) struct Work<'g, T> {
    group: &'g GroupCommit<T>,
    ino: Ino,
}

impl<T> Drop for Work<'_, T> {
    fn drop(&mut self) {
        let mut inodes = self.group.inodes();
        if let Some(inode) = inodes.get_mut(&self.ino) {
            inode.working = inode.working.saturating_sub(1);
            if inode.working == 0 {
                inodes.remove(&self.ino);
            }
        }
    }
}

/// Who commits.
pub(crate) enum Role<'w, T> {
    /// Another did it.
    Follower(Outcome),
    /// This one, for all.
    Leader(Leader<'w, T>),
}

impl<T> Work<'_, T> {
    /// Changes what is known of the inode, which is there as long as somebody is at work.
    fn with<R>(&self, change: impl FnOnce(&mut Inode<T>) -> R) -> R {
        change(self.group.inodes().entry(self.ino).or_insert_with(Inode::new))
    }

    /// The work is ready to be committed, by itself if it is to be `apart`. Waits until somebody
    /// has done it, or this one is to lead.
    pub(crate) async fn commit(&self, work: T, apart: bool) -> Role<'_, T> {
        let number = self.with(|inode| {
            let seat = inode.next_seat;
            inode.next_seat += 1;
            let work = Some(work);
            inode.seats.push(Place { seat, apart, work, outcome: None, waker: None });
            seat
        });
        let seat = Seat { work: self, number };
        if let Some(outcome) = poll_fn(|cx| seat.poll(cx)).await {
            return Role::Follower(outcome);
        }
        let mut leader = Leader::new(self);
        if self.with(|inode| inode.working > inode.seats.len()) {
            // Those go first who have been woken already.
            yield_now().await;
        }
        leader.take(number, apart);
        Role::Leader(leader)
    }
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

/// Commits what the group has ready; another may when this is dropped.
pub(crate) struct Leader<'w, T> {
    work: &'w Work<'w, T>,
    works: Vec<T>,
    followers: Vec<u64>,
    has_ended: bool,
}

impl<'w, T> Leader<'w, T> {
    fn new(work: &'w Work<'w, T>) -> Leader<'w, T> {
        Leader { work, works: Vec::new(), followers: Vec::new(), has_ended: false }
    }

    /// Takes its own work, and that of others unless it is to be apart.
    fn take(&mut self, own: u64, apart: bool) {
        let Leader { work, works, followers, .. } = self;
        work.with(|inode| {
            works.extend(inode.at(own).and_then(|place| place.work.take()));
            let others = inode.seats.iter_mut().filter(|place| !apart && !place.apart);
            for place in others.take(GROUP_MAX) {
                if let Some(work) = place.work.take() {
                    works.push(work);
                    followers.push(place.seat);
                }
            }
        });
    }

    /// What is to be committed, once; its own is the first.
    pub(crate) fn take_works(&mut self) -> Vec<T> {
        std::mem::take(&mut self.works)
    }

    /// Whether others' work is among it.
    pub(crate) fn has_followers(&self) -> bool {
        !self.followers.is_empty()
    }

    /// The others hear what became of theirs.
    pub(crate) fn finish(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        self.has_ended = true;
        let wakers: Vec<Waker> = self.work.with(|inode| {
            inode.leads = false;
            for follower in self.followers.drain(..) {
                if let Some(place) = inode.at(follower) {
                    place.outcome = Some(outcome);
                }
            }
            // Who was not among them may lead.
            inode.seats.iter_mut().filter_map(|place| place.waker.take()).collect()
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<T> Drop for Leader<'_, T> {
    fn drop(&mut self) {
        // Once it has ended, another may lead already.
        if !self.has_ended {
            self.end(Outcome::Again);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use outboard_base::task::poll_once;

    use super::*;

    const INO: Ino = Ino(3);

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match poll_once(future) {
            Poll::Ready(out) => Some(out),
            Poll::Pending => None,
        }
    }

    fn lead<'w>(role: Option<Role<'w, u32>>) -> Leader<'w, u32> {
        match role {
            Some(Role::Leader(leader)) => leader,
            Some(Role::Follower(outcome)) => panic!("another did it: {outcome:?}"),
            None => panic!("it waits"),
        }
    }

    fn followed(role: Option<Role<'_, u32>>) -> Option<Outcome> {
        match role {
            Some(Role::Follower(outcome)) => Some(outcome),
            Some(Role::Leader(_)) => panic!("it leads"),
            None => None,
        }
    }

    #[test]
    fn one_alone_does_not_wait() {
        let group = GroupCommit::default();
        let work = group.begin(INO);
        let mut first = lead(poll(pin!(work.commit(1, false))));
        assert_eq!(first.take_works(), [1]);
        first.finish(Outcome::Done);
        drop(work);
        assert!(group.inodes().is_empty());
    }

    #[test]
    fn one_commits_for_all_who_are_ready() {
        let group = GroupCommit::default();
        let work = [(); 4].map(|()| group.begin(INO));
        let mut first = pin!(work[0].commit(0, false));
        let mut second = pin!(work[1].commit(1, false));
        assert!(poll(first.as_mut()).is_none(), "it lets the others go first");
        assert_eq!(followed(poll(second.as_mut())), None);
        let mut leader = lead(poll(first.as_mut()));
        assert_eq!((leader.take_works(), leader.has_followers()), (vec![0, 1], true));
        // Who comes now, leads the next.
        let mut third = pin!(work[2].commit(2, false));
        assert_eq!(followed(poll(third.as_mut())), None);
        leader.finish(Outcome::Failed(Errno::EIO));
        assert_eq!(followed(poll(second.as_mut())), Some(Outcome::Failed(Errno::EIO)));
        assert!(poll(third.as_mut()).is_none());
        assert_eq!(lead(poll(third.as_mut())).take_works(), [2]);
    }

    #[test]
    fn who_is_apart_is_committed_alone() {
        let group = GroupCommit::default();
        let work = [(); 3].map(|()| group.begin(INO));
        let mut apart = pin!(work[0].commit(0, true));
        let mut other = pin!(work[1].commit(1, false));
        let mut third = pin!(work[2].commit(2, false));
        assert!(poll(apart.as_mut()).is_none());
        assert_eq!(followed(poll(other.as_mut())), None);
        assert_eq!(followed(poll(third.as_mut())), None);
        let mut leader = lead(poll(apart.as_mut()));
        assert_eq!((leader.take_works(), leader.has_followers()), (vec![0], false));
        let mut again = pin!(work[0].commit(9, true));
        assert_eq!(followed(poll(again.as_mut())), None);
        leader.finish(Outcome::Done);
        assert_eq!(lead(poll(third.as_mut())).take_works(), [2, 1]);
    }

    #[test]
    fn a_leader_given_up_leaves_nobody_waiting() {
        let group = GroupCommit::default();
        let work = [(); 3].map(|()| group.begin(INO));
        let mut follower = pin!(work[1].commit(1, false));
        {
            let mut early = Box::pin(work[0].commit(0, false));
            assert!(poll(early.as_mut()).is_none());
            assert_eq!(followed(poll(follower.as_mut())), None);
            // Given up before it took anything: its own work goes with it.
        }
        let mut late = pin!(work[2].commit(2, false));
        assert!(poll(follower.as_mut()).is_none());
        assert_eq!(followed(poll(late.as_mut())), None);
        let mut leader = lead(poll(follower.as_mut()));
        assert_eq!(leader.take_works(), [1, 2]);
        drop(leader);
        assert_eq!(followed(poll(late.as_mut())), Some(Outcome::Again));
    }
}
