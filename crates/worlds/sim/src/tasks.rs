//! An executor that polls one future a step, chosen by a seed.
//!
//! Work on a store is `async fn` without a runtime, so the orders in which it can run are the
//! orders of polls. Whoever is ready and whoever waits is polled alike: a future that waits for
//! itself (an engine that delays by polls) comes on, one that waits for another says so again.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::Poll;

use outboard_base::task::{Spawn, Work, poll_once};

use crate::Chooser;

/// Futures under way.
pub struct Tasks<'a, T = ()>(RefCell<Vec<Task<'a, T>>>);

type Task<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

impl<T> Default for Tasks<'_, T> {
    fn default() -> Self {
        Tasks(RefCell::default())
    }
}

impl<'a, T> Tasks<'a, T> {
    /// Takes `task` over, and does not poll it yet.
    pub fn add(&self, task: impl Future<Output = T> + 'a) {
        self.0.borrow_mut().push(Box::pin(task));
    }

    /// Polls the task of the seed's choice, which may add others: what it came to, if it ended.
    pub fn step(&self, chooser: &mut Chooser) -> Option<T> {
        self.poll(chooser.one_of(self.len())?)
    }

    /// Polls one of them, by its place in `0..len`, which it loses.
    pub fn poll(&self, at: usize) -> Option<T> {
        if at >= self.len() {
            return None;
        }
        // Out of the list while it is polled: it may come back here.
        let mut task = self.0.borrow_mut().swap_remove(at);
        match poll_once(task.as_mut()) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => {
                self.0.borrow_mut().push(task);
                None
            }
        }
    }

    /// How many are under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Whether none is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Drops them all, as death does.
    pub fn clear(&self) {
        let dropped = std::mem::take(&mut *self.0.borrow_mut());
        drop(dropped);
    }
}

impl Spawn for Tasks<'static> {
    fn spawn(&self, mut work: Work) {
        if poll_once(work.as_mut()).is_pending() {
            self.0.borrow_mut().push(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Waits for `polls` polls.
    async fn after(polls: u64) {
        let mut left = polls;
        std::future::poll_fn(move |_| {
            let is_over = left == 0;
            left = left.saturating_sub(1);
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn order(seed: u64) -> Vec<u32> {
        let tasks = Tasks::default();
        for number in 0..5 {
            tasks.add(async move {
                after(3).await;
                number
            });
        }
        let mut chooser = Chooser::new(seed);
        let mut ended = Vec::new();
        while !tasks.is_empty() {
            ended.extend(tasks.step(&mut chooser));
        }
        ended
    }

    #[test]
    fn a_seed_chooses_the_order_and_repeats_it() {
        assert_eq!(order(1), order(1));
        let orders: std::collections::BTreeSet<Vec<u32>> = (0..50).map(order).collect();
        assert!(orders.len() > 20, "{} orders of 50 seeds", orders.len());
        assert!(orders.iter().all(|order| order.len() == 5));
    }

    #[test]
    fn a_task_may_add_tasks_and_all_can_be_dropped() {
        let tasks = Rc::new(Tasks::default());
        let ran = Rc::new(Cell::new(0));
        let (own, counted) = (Rc::clone(&tasks), Rc::clone(&ran));
        tasks.spawn(Box::pin(async move {
            let again = Rc::clone(&counted);
            own.spawn(Box::pin(async move {
                again.set(again.get() + 1);
                after(9).await;
            }));
            counted.set(counted.get() + 1);
            after(9).await;
        }));
        assert_eq!((ran.get(), tasks.len()), (2, 2));
        tasks.clear();
        assert!(tasks.is_empty() && tasks.step(&mut Chooser::new(1)).is_none());
    }
}
