//! What nodes have answered becomes durable, or it is known that it is lost.

use outboard_base::Errno;
use outboard_base::task::try_join_abreast;
use outboard_flow::Net;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Acknowledged, Call, Grant, Reply};

use super::{ABREAST, Data, DataError, PAUSE, is_coded, is_redundant};

/// How long one is asked who does not answer.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    /// As long as it takes.
    ForEver,
    /// Once.
    Once,
    /// Once; who does not answer was not reached, of the members of this object.
    OnceFor(u64),
}

/// A file with copies goes on without who does not answer.
fn patience(grant: &Grant) -> Patience {
    if is_redundant(grant) { Patience::OnceFor(grant.capability.object) } else { Patience::ForEver }
}

impl<N: Net> Data<N> {
    /// What these nodes have answered becomes durable, unless it is lost: see
    /// [`Data::take_lost`].
    ///
    /// # Errors
    /// [`DataError::Medium`] if one cannot say so, [`DataError::Gone`] if it does not speak with
    /// us.
    pub async fn flush(&self, nodes: impl Iterator<Item = Peer>) -> Result<(), DataError> {
        self.flush_or_give_up(nodes, Vec::new(), Patience::ForEver).await
    }

    /// What these members of an object have answered becomes durable.
    ///
    /// # Errors
    /// [`DataError::Undecided`] if one does not answer, or its medium fails: it is named
    /// ([`Data::take_unreached`]).
    pub async fn flush_members(
        &self,
        object: u64,
        members: impl Iterator<Item = Peer>,
    ) -> Result<(), DataError> {
        self.flush_or_give_up(members, Vec::new(), Patience::OnceFor(object)).await
    }

    async fn flush_or_give_up(
        &self,
        nodes: impl Iterator<Item = Peer>,
        settles: Vec<Acknowledged>,
        patience: Patience,
    ) -> Result<(), DataError> {
        let replies = self.call(nodes, Call::Flush { settles }, patience).await?;
        let all_done = replies.iter().all(|reply| matches!(reply, Reply::Number(_)));
        if all_done { Ok(()) } else { Err(DataError::Medium) }
    }

    /// What all who have a file have acknowledged of it, so that they need not keep what that
    /// replaced (R4): the flush after they hear it gives that back.
    fn acknowledged(&self, grant: &Grant) -> Option<Acknowledged> {
        let (object, fence) = (grant.capability.object, grant.capability.fence);
        // Of stripes no more than what none of those who have them can lose.
        let sequence = match is_coded(grant) {
            true => self.versions.durable(object, fence),
            false => self.versions.settled(object, fence),
        };
        let is_news = is_redundant(grant) && sequence > 0;
        is_news.then_some(Acknowledged { capability: grant.capability, sequence })
    }

    /// Whether some who have copies may have something that was not acknowledged.
    pub(crate) fn is_undone(&self, grant: &Grant) -> bool {
        let (object, fence) = (grant.capability.object, grant.capability.fence);
        is_redundant(grant) && self.versions.is_undone(object, fence)
    }

    /// Bytes that the nodes of a file can still take.
    pub(super) async fn free(&self, grant: &Grant) -> Result<u64, DataError> {
        let nodes = self.nodes(grant).into_iter();
        let spaces = self.call(nodes, Call::Space, patience(grant)).await?;
        let free = spaces.into_iter().map(|reply| match reply {
            Reply::Space { free, .. } => Ok(free),
            _ => Err(DataError::Medium),
        });
        if is_redundant(grant) {
            let each: Result<Vec<u64>, DataError> = free.collect();
            return Ok(each?
                .into_iter()
                .min()
                .unwrap_or(0)
                .saturating_mul(grant.layout.data_units()));
        }
        free.sum()
    }

    /// What the nodes of a file have answered becomes durable; [`DataError::Undecided`] if one of
    /// several who have it does not answer.
    ///
    /// # Errors
    /// [`DataError`].
    pub async fn flush_file(&self, grant: &Grant) -> Result<(), DataError> {
        if is_coded(grant) {
            self.flush_stripes(grant).await?;
            let Some(of) = self.acknowledged(grant) else { return Ok(()) };
            // Who refuses it keeps it longer.
            let members = self.nodes(grant).into_iter();
            return self.call(members, Call::Settle { of }, patience(grant)).await.map(drop);
        }
        let mut nodes = self.nodes(grant);
        if !is_redundant(grant) {
            // Where it lay when it was written, too: nobody else knows whether that was lost.
            nodes.extend(self.unsynced.of(grant.capability.object));
            nodes.sort_unstable();
            nodes.dedup();
        }
        let settles = self.acknowledged(grant).into_iter().collect();
        self.flush_or_give_up(nodes.into_iter(), settles, patience(grant)).await
    }

    /// Asks nodes until they reply, or give them up.
    pub(super) async fn call(
        &self,
        nodes: impl Iterator<Item = Peer>,
        call: Call,
        patience: Patience,
    ) -> Result<Vec<Reply>, DataError> {
        let call = &call;
        let each = nodes.map(|peer| async move {
            let mut pause = PAUSE;
            loop {
                self.may_ask()?;
                let said = match call {
                    Call::Flush { settles } => self.flush_with_others(peer, settles).await,
                    call => self.said(peer, call).await,
                };
                match said {
                    Ok(reply) => {
                        if let (Patience::OnceFor(object), Peer::Node(node)) = (patience, peer)
                            && reply == Reply::Failed(Errno::EIO)
                        {
                            // Its medium fails; others have the same.
                            self.places.is_unreached(object, node, self.net.now());
                            return Err(DataError::Undecided);
                        }
                        return Ok(reply);
                    }
                    Err(outboard_flow::Gone::Refused) => return Err(DataError::Gone),
                    Err(_) => self.places.is_silent(peer, self.net.now()),
                }
                match (patience, peer) {
                    (Patience::ForEver, _) => {}
                    (Patience::OnceFor(object), Peer::Node(node)) => {
                        self.places.is_unreached(object, node, self.net.now());
                        return Err(DataError::Undecided);
                    }
                    _ => return Err(DataError::Undecided),
                }
                self.pause(&mut pause).await;
            }
        });
        try_join_abreast(ABREAST, each).await
    }

    /// An object is had under another fence than before, and what became of what failed was, or is
    /// to be, decided.
    pub fn begins_anew(&self, object: u64, fence: u64) {
        self.versions.begins_anew(object, fence);
    }

    /// A file goes on with these members: what others acknowledged of it they may never flush.
    pub fn goes_on(&self, grant: &Grant) {
        if is_redundant(grant) {
            self.unsynced.goes_on(grant.capability.object, &self.nodes(grant));
        }
    }

    /// Nodes that may have acknowledged something of an object that they have not flushed.
    pub fn unsynced(&self, object: u64) -> Vec<Peer> {
        self.unsynced.of(object)
    }

    /// Everything that nodes have acknowledged becomes durable, unless it is lost. Of copies who
    /// does not answer is not waited for: that is lost there.
    ///
    /// # Errors
    /// As of [`Data::flush`].
    pub async fn flush_all(&self) -> Result<(), DataError> {
        let (alone, others) = self.unsynced.nodes();
        self.flush(alone.into_iter()).await?;
        for peer in others {
            if self.call(std::iter::once(peer), Call::FLUSH, Patience::Once).await.is_err() {
                self.unsynced.is_away(peer);
            }
        }
        Ok(())
    }

    /// A node is about to go: what it has acknowledged becomes durable, or counts as lost.
    pub async fn leaves(&self, node: Peer) {
        let (alone, others) = self.unsynced.nodes();
        let is_there = alone.contains(&node) || others.contains(&node);
        if is_there
            && self
                .flush_or_give_up(std::iter::once(node), Vec::new(), Patience::Once)
                .await
                .is_err()
        {
            self.unsynced.is_gone(node);
        }
    }

    /// Whether something of an object that was acknowledged is lost: a node lost power before it
    /// was flushed. Said once.
    pub fn take_lost(&self, object: u64) -> bool {
        self.unsynced.take_lost(object)
    }

    /// The same, of all objects. What is said here is still said of each.
    pub fn take_any_lost(&self) -> bool {
        self.unsynced.take_any_lost()
    }

    /// An object is gone: nobody will ask what became of it.
    pub fn forget(&self, object: u64) {
        self.unsynced.forget(object);
    }
}
