//! Waiting for several futures at once, without a runtime.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

/// Runs both to their ends and returns both outcomes.
pub async fn join2<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut out_a, mut out_b) = (None, None);
    poll_fn(move |cx| {
        if out_a.is_none()
            && let Poll::Ready(out) = a.as_mut().poll(cx)
        {
            out_a = Some(out);
        }
        if out_b.is_none()
            && let Poll::Ready(out) = b.as_mut().poll(cx)
        {
            out_b = Some(out);
        }
        match (out_a.take(), out_b.take()) {
            (Some(x), Some(y)) => Poll::Ready((x, y)),
            (x, y) => {
                (out_a, out_b) = (x, y);
                Poll::Pending
            }
        }
    })
    .await
}

enum Slot<F: Future> {
    Running(Pin<Box<F>>),
    Done(Option<F::Output>),
}

/// Runs all to their ends; outcomes in the order given.
pub async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output>
where
    F::Output: Unpin,
{
    let mut slots: Vec<Slot<F>> = futures.into_iter().map(|f| Slot::Running(Box::pin(f))).collect();
    poll_fn(move |cx| {
        let mut pending = false;
        for slot in &mut slots {
            if let Slot::Running(future) = slot {
                match future.as_mut().poll(cx) {
                    Poll::Ready(out) => *slot = Slot::Done(Some(out)),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            return Poll::Pending;
        }
        Poll::Ready(
            slots
                .iter_mut()
                .filter_map(|slot| match slot {
                    Slot::Done(out) => out.take(),
                    Slot::Running(_) => None,
                })
                .collect(),
        )
    })
    .await
}

/// Runs futures side by side, at most `most` at a time, begun in their order; returns what they
/// came to, in the order of their ends. After a failure none is begun any more, and those under
/// way run to their ends: then the first failure is returned.
pub async fn try_join_abreast<F, T, E>(
    most: usize,
    futures: impl IntoIterator<Item = F>,
) -> Result<Vec<T>, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut todo = futures.into_iter();
    let mut running: Vec<Pin<Box<F>>> = Vec::new();
    let (mut done, mut failure) = (Vec::new(), None);
    loop {
        while failure.is_none() && running.len() < most.max(1) {
            let Some(next) = todo.next() else { break };
            running.push(Box::pin(next));
        }
        if running.is_empty() {
            return failure.map_or(Ok(done), Err);
        }
        let outcomes = poll_fn(|cx| {
            let mut outcomes = Vec::new();
            running.retain_mut(|future| match future.as_mut().poll(cx) {
                Poll::Ready(outcome) => {
                    outcomes.push(outcome);
                    false
                }
                Poll::Pending => true,
            });
            if outcomes.is_empty() { Poll::Pending } else { Poll::Ready(outcomes) }
        })
        .await;
        for outcome in outcomes {
            match outcome {
                Ok(outcome) => done.push(outcome),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
    }
}

/// Runs futures side by side; returns what they came to, in the order of their ends. After a
/// failure those under way are dropped.
pub async fn try_join_all<F, T, E>(futures: impl IntoIterator<Item = F>) -> Result<Vec<T>, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done = Vec::new();
    poll_fn(move |cx| {
        let mut failure = None;
        running.retain_mut(|future| match future.as_mut().poll(cx) {
            Poll::Ready(Ok(outcome)) => {
                done.push(outcome);
                false
            }
            Poll::Ready(Err(error)) => {
                failure.get_or_insert(error);
                false
            }
            Poll::Pending => true,
        });
        match (failure, running.is_empty()) {
            (Some(error), _) => Poll::Ready(Err(error)),
            (None, true) => Poll::Ready(Ok(std::mem::take(&mut done))),
            (None, false) => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::super::poll_once;
    use super::*;

    #[test]
    fn abreast_begins_no_more_than_it_may_and_none_after_a_failure() {
        for (fails, begun_in_all) in [(usize::MAX, 7), (1, 4)] {
            let (begun, ended) = (Cell::new(0), RefCell::new([false; 7]));
            let each = (0..7).map(|nth| {
                begun.set(begun.get() + 1);
                let ended = &ended;
                poll_fn(move |_| match ended.borrow()[nth] {
                    true if nth == fails => Poll::Ready(Err(nth)),
                    true => Poll::Ready(Ok(nth)),
                    false => Poll::Pending,
                })
            });
            let mut all = pin!(try_join_abreast(3, each));
            let mut poll = || poll_once(all.as_mut());
            assert!(poll().is_pending());
            assert_eq!(begun.get(), 3);
            ended.borrow_mut()[2] = true;
            assert!(poll().is_pending());
            assert_eq!(begun.get(), 4, "one has ended, another begins");
            ended.borrow_mut()[1] = true;
            assert!(poll().is_pending(), "those under way run to their ends");
            ended.borrow_mut().fill(true);
            let outcome = poll();
            assert_eq!(begun.get(), begun_in_all);
            match outcome {
                Poll::Ready(Ok(mut done)) => {
                    done.sort_unstable();
                    assert_eq!((done, fails), ((0..7).collect(), usize::MAX));
                }
                Poll::Ready(Err(nth)) => assert_eq!(nth, fails),
                Poll::Pending => panic!("it has ended"),
            }
        }
    }

    #[test]
    fn after_a_failure_others_are_not_waited_for() {
        let ended = RefCell::new([None; 3]);
        let each = |nth: usize| {
            let ended = &ended;
            poll_fn(move |_| ended.borrow()[nth].map_or(Poll::Pending, Poll::Ready))
        };
        let mut all = pin!(try_join_all((0..3).map(each)));
        assert!(poll_once(all.as_mut()).is_pending());
        ended.borrow_mut()[1] = Some(Ok(1));
        assert!(poll_once(all.as_mut()).is_pending());
        ended.borrow_mut()[2] = Some(Err(2));
        assert_eq!(poll_once(all.as_mut()), Poll::Ready(Err(2)));
        *ended.borrow_mut() = [0, 1, 2].map(|nth| Some(Ok(nth)));
        let mut all = pin!(try_join_all((0..3).map(each)));
        assert_eq!(poll_once(all.as_mut()), Poll::Ready(Ok(vec![0, 1, 2])));
    }
}
