//! What a server does beside answering: for whoever has its thread, and the same in every world.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::task::{Recurring, Spawn};
use outboard_flow::{Conversations, Net, Target};
use outboard_kv::Kv;
use outboard_medium::Medium;
use outboard_volume::Housekeeping;
use outboard_wire::shared::Peer;

use crate::Meta;

/// How often it keeps house.
const EVERY: Duration = Duration::from_secs(1);
/// The pause between two steps while there is more to do: other work goes first.
const PAUSE: Duration = Duration::from_millis(5);

/// A server that is tended. The owner tends it after each pass of its conversations, has it
/// [`rest`](Tending::rest) when there is nothing else to do, and sleeps until
/// [`Tending::deadline`] at most.
pub struct Tending<K, M, N> {
    meta: Meta<K, M, N>,
    tidying: Recurring,
    /// The lives of nodes that are known.
    nodes: RefCell<BTreeMap<u16, Option<u64>>>,
}

impl<K: Kv + 'static, M: Medium + 'static, N: Net> Tending<K, M, N> {
    /// Of `meta`, from now on.
    #[must_use]
    pub fn new(meta: Meta<K, M, N>, now: Time) -> Tending<K, M, N> {
        let tidying = Recurring::default();
        tidying.begin(now, PAUSE);
        Tending { meta, tidying, nodes: RefCell::default() }
    }

    /// The server.
    #[must_use]
    pub fn meta(&self) -> &Meta<K, M, N> {
        &self.meta
    }

    /// Whether a node has begun another life since this was asked.
    fn has_come<T: Target>(&self, net: &Conversations<T>) -> bool {
        let (mut known, mut has_come) = (self.nodes.borrow_mut(), false);
        self.meta.each_node(|node| {
            let life = net.life_of(Peer::Node(node));
            has_come |= known.insert(node, life) != Some(life);
        });
        has_come
    }

    /// Does what there is to do, without waiting; how much that was.
    pub fn tend<T: Target>(&self, net: &Conversations<T>, now: Time, spawn: &dyn Spawn) -> usize {
        if self.has_come(net) {
            self.meta.node_came();
            self.tidying.hurry(now);
        }
        self.meta.events();
        let mut done = usize::from(self.tidying.step(now, spawn, || {
            let meta = self.meta.clone();
            async move {
                let pause = if meta.tidy(meta.net().now()).await { PAUSE } else { EVERY };
                Some(meta.net().now().after(pause))
            }
        }));
        for work in self.meta.take_work() {
            spawn.spawn(work);
            done += 1;
        }
        done
    }

    /// Nothing is to be done for a while: whether it began something all the same.
    pub fn rest(&self, spawn: &dyn Spawn) -> bool {
        let volume = Arc::clone(&self.meta.0.kvfs);
        volume.idle();
        let is_due = volume.wants_checkpoint();
        if is_due {
            spawn.spawn(Box::pin(async move {
                if let Err(errno) = volume.checkpoint().await {
                    tracing::error!(%errno, "cannot note down what is durable");
                }
            }));
        }
        is_due
    }

    /// When it is to be tended though nothing came.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.tidying.deadline()
    }
}
