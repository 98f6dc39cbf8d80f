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
