//! What a node does beside answering: for whoever has its thread, and the same in every world.

use std::time::Duration;

use outboard_base::Time;
use outboard_base::task::{Recurring, Spawn};
use outboard_flow::{Conversations, Net, Target};
use outboard_medium::Medium;

use crate::Node;

/// How often it tidies while it is used, and scrubs.
const EVERY: Duration = Duration::from_secs(1);

/// A node that is tended. The owner hands it calls, tends it after each pass of its conversations,
/// and sleeps until [`Tending::deadline`] at most.
pub struct Tending<M: Medium> {
    node: Node<M>,
    tidying: Recurring,
    scrubbing: Recurring,
}

impl<M: Medium + 'static> Tending<M> {
    /// Of `node`, from now on.
    #[must_use]
    pub fn new(node: Node<M>, now: Time) -> Tending<M> {
        let (tidying, scrubbing) = (Recurring::default(), Recurring::default());
        scrubbing.begin(now, EVERY);
        Tending { node, tidying, scrubbing }
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Node<M> {
        &self.node
    }

    /// A call has come.
    pub fn called(&self, now: Time) {
        self.tidying.begin(now, EVERY);
        // What was written as it found nothing to scrub is found then.
        self.scrubbing.begin(now, EVERY);
    }

    /// Does what there is to do, without waiting; how much that was.
    pub fn tend<T: Target + 'static>(
        &self,
        net: &Conversations<T>,
        now: Time,
        spawn: &dyn Spawn,
    ) -> usize {
        if self.node.has_work() {
            self.tidying.begin(now, EVERY);
            self.scrubbing.begin(now, EVERY);
        }
        let mut done = self.node.tend(net, spawn);
        done += usize::from(self.tidying.step(now, spawn, || {
            let (node, net) = (self.node.clone(), net.clone());
            async move {
                node.tidy(net.wall_ms()).await;
                None
            }
        }));
        done += usize::from(self.scrubbing.step(now, spawn, || {
            let (node, net) = (self.node.clone(), net.clone());
            // One that holds nothing waits for work.
            async move { node.scrub().await.then(|| net.now().after(EVERY)) }
        }));
        done
    }

    /// When it is to be tended though nothing came.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let all = [self.tidying.deadline(), self.scrubbing.deadline()];
        all.into_iter().flatten().min()
    }
}
