//! What the server asks nodes and clients, within bounds.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use outboard_base::task::join_all;
use outboard_base::{Errno, Result};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_medium::Medium;
use outboard_wire::shared::call::{Call, Object, Reply};
use outboard_wire::shared::{Coordinate, Peer};

use crate::Meta;

/// How long a node is given for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long it is given to take keys, or to say what room it has.
pub(crate) const QUICK: Duration = Duration::from_secs(1);
/// How long it is before somebody is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// By how much clocks of nodes may differ from the server's.
const CLOCKS: Duration = Duration::from_secs(60);

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Asks somebody, a node in this server's term; `EIO` if there is no answer in time, or another
    /// server has begun, `EPROTO` if it is none.
    pub(crate) async fn ask(&self, peer: Peer, call: &Call, patience: Duration) -> Result<Reply> {
        let mut bytes = Vec::new();
        match peer {
            Peer::Node(_) if self.is_superseded() => return Err(Errno::EIO),
            Peer::Node(_) if *call != Call::Newest => call.in_term(self.term()).encode(&mut bytes),
            _ => call.encode(&mut bytes),
        }
        let answer = self.within(patience, self.net().call(peer, bytes)).await;
        let answer = answer.ok_or(Errno::EIO)?.map_err(|_| Errno::EIO)?;
        match Reply::decode(&answer).map_err(|_| Errno::EPROTO)? {
            Reply::Failed(errno) => Err(errno),
            // Of others it is no reply: nobody but a node knows of terms.
            Reply::Later { term } if matches!(peer, Peer::Node(_)) && term > self.term() => {
                self.is_followed(peer, term.into());
                Err(Errno::EIO)
            }
            Reply::Later { .. } => Err(Errno::EPROTO),
            reply => Ok(reply),
        }
    }

    /// The same, asked again as long as there is time: a node that is started again is back soon.
    pub(crate) async fn ask_for(
        &self,
        peer: Peer,
        call: &Call,
        patience: Duration,
    ) -> Result<Reply> {
        let asked = async {
            loop {
                match self.ask(peer, call, patience).await {
                    Err(Errno::EIO) => self.net().sleep(AGAIN).await,
                    answer => return answer,
                }
            }
        };
        self.within(patience, asked).await.unwrap_or(Err(Errno::EIO))
    }

    /// The outcome of work, if it ends in time; else it is dropped.
    pub(crate) async fn within<T>(
        &self,
        time: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let (mut work, mut over) = (pin!(work), pin!(self.net().sleep(time)));
        first_of(work.as_mut(), over.as_mut()).await
    }

    /// Asks one node.
    pub(crate) async fn ask_node(&self, node: u16, call: &Call) -> Result<Reply> {
        self.ask(Peer::Node(node), call, PATIENCE).await
    }

    /// Nodes take nothing of an object below a fence any more; what they hold of it.
    pub(crate) async fn seal_at(
        &self,
        nodes: &[Coordinate],
        object: u64,
        fence: u64,
    ) -> Result<Vec<Object>> {
        let call = Call::Seal { object, fence };
        let answers = nodes.iter().map(|node| self.ask_node(node.node, &call)).collect();
        let answers = join_all(answers).await.into_iter().map(|answer| match answer? {
            Reply::Object(found) if found.object == object => Ok(found),
            _ => Err(Errno::EPROTO),
        });
        answers.collect()
    }

    /// An object goes at all nodes: it may lie at any, whatever its layout was.
    pub(crate) async fn purge_everywhere(&self, object: u64, fence: u64) -> Result<()> {
        let placement = self.placement();
        let nodes = placement.all().iter();
        let purged = nodes.map(|node| self.purge_at(node.node, object, fence)).collect();
        join_all(purged).await.into_iter().collect()
    }

    /// An object goes at a node.
    pub(crate) async fn purge_at(&self, node: u16, object: u64, fence: u64) -> Result<()> {
        let counts = self.options().capability + CLOCKS;
        let counts = u64::try_from(counts.as_millis()).unwrap_or(u64::MAX);
        let until = self.net().wall_ms().saturating_add(counts);
        match self.ask_node(node, &Call::Purge { object, fence, until }).await? {
            Reply::Done => Ok(()),
            _ => Err(Errno::EPROTO),
        }
    }

    /// What all nodes have answered becomes durable.
    pub(crate) async fn flush_everywhere(&self) -> Result<()> {
        let placement = self.placement();
        let nodes = placement.all().iter();
        let flush = Call::FLUSH;
        let answers = nodes.map(|node| self.ask_node(node.node, &flush)).collect();
        let answers = join_all(answers).await.into_iter().map(|answer| match answer? {
            Reply::Number(_) => Ok(()),
            _ => Err(Errno::EPROTO),
        });
        answers.collect()
    }

    /// Tells some nodes the keys in use; how many of them took them.
    pub(crate) async fn tell_keys(&self, nodes: &[Coordinate]) -> (usize, u64) {
        let (keys, last) = self.keys().to_tell(self.net().wall_ms());
        let call = Call::Keys { keys, revoked: self.users().revoked() };
        let answers = nodes.iter().map(|node| async {
            self.is_of_this_opening(node.node).await
                && self.ask(Peer::Node(node.node), &call, QUICK).await == Ok(Reply::Done)
        });
        let took = join_all(answers.collect()).await;
        (took.into_iter().filter(|took| *took).count(), last)
    }
}

/// The outcome of `work`, unless `other` ends before it.
/// What `other` comes to. Others may wait for `work`, so it goes on meanwhile; what it comes to is
/// put into `ended`.
pub(crate) async fn meanwhile<T, O>(
    mut work: Pin<&mut impl Future<Output = T>>,
    ended: &mut Option<T>,
    other: impl Future<Output = O>,
) -> O {
    let mut other = pin!(other);
    poll_fn(|cx| {
        if ended.is_none()
            && let Poll::Ready(out) = work.as_mut().poll(cx)
        {
            *ended = Some(out);
        }
        other.as_mut().poll(cx)
    })
    .await
}

pub(crate) async fn first_of<T>(
    mut work: Pin<&mut impl Future<Output = T>>,
    mut other: Pin<&mut impl Future<Output = ()>>,
) -> Option<T> {
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(out) => Poll::Ready(Some(out)),
        Poll::Pending => other.as_mut().poll(cx).map(|()| None),
    })
    .await
}
