//! A flush is of all that a node has, so who wants one of a node while another is under way waits
//! for the next, which is that of all who wait then (group commit).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::Errno;
use outboard_base::task;
use outboard_flow::{Gone, Net};
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Acknowledged, Call, Reply, SETTLES_MAX};

use super::Data;

/// Objects of a node that are yet to be settled, at most: of others it keeps longer what was
/// replaced.
const OBJECTS: usize = 4096;

/// Those of each node.
#[derive(Debug, Default)]
pub(super) struct Flushes(Mutex<BTreeMap<Peer, Arc<Group>>>);

impl Flushes {
    fn of(&self, peer: Peer) -> Arc<Group> {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(groups.entry(peer).or_default())
    }
}

/// What a node says to a flush.
type Said = Result<Reply, Gone>;

#[derive(Debug, Default)]
struct Group {
    /// Held while a flush is under way.
    under_way: task::Mutex,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Flushes that have begun.
    begun: u64,
    /// The last that has ended, and what was said.
    ended: Option<(u64, Said)>,
    /// What is to be settled, by object; and of which the last one did it last.
    settles: BTreeMap<u64, Acknowledged>,
    settled: u64,
}

/// Which flush somebody wants: the first that begins after he came. Of one that was under way then
/// he takes that the node did not answer.
#[derive(Clone, Copy)]
struct Wanted {
    number: u64,
    under_way: Option<u64>,
}

impl Group {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody wants a flush, and these settled by it, or by one after.
    fn want(&self, settles: &[Acknowledged]) -> Wanted {
        let mut state = self.state();
        for of in settles {
            if state.settles.len() < OBJECTS {
                state.settles.insert(of.capability.object, *of);
            }
        }
        let begun = state.begun;
        let is_over = state.ended.as_ref().is_some_and(|(ended, _)| *ended == begun);
        Wanted { number: begun + 1, under_way: (!is_over).then_some(begun) }
    }

    /// What was said to it, or to a later one.
    fn said(&self, wanted: Wanted) -> Option<Said> {
        let state = self.state();
        let (ended, said) = state.ended.as_ref()?;
        let is_silent = said.is_err() && Some(*ended) == wanted.under_way;
        (*ended >= wanted.number || is_silent).then(|| said.clone())
    }

    /// One begins; what it settles, each object in its turn.
    fn begin(&self) -> (u64, Vec<Acknowledged>) {
        let mut state = self.state();
        state.begun += 1;
        let (before, behind) =
            (..=state.settled, (Bound::Excluded(state.settled), Bound::Unbounded));
        let all = state.settles.range(behind).chain(state.settles.range(before));
        let settles: Vec<Acknowledged> = all.map(|(_, of)| *of).take(SETTLES_MAX).collect();
        state.settled = settles.last().map_or(0, |of| of.capability.object);
        (state.begun, settles)
    }

    fn end(&self, number: u64, settled: &[Acknowledged], said: &Said) {
        let mut state = self.state();
        state.ended = Some((number, said.clone()));
        if said.is_ok() {
            for of in settled {
                let object = of.capability.object;
                // What was wanted since is the next one's.
                if state.settles.get(&object) == Some(of) {
                    state.settles.remove(&object);
                }
            }
        }
    }
}

impl<N: Net> Data<N> {
    /// What a node has answered by now becomes durable, with what others want of it.
    pub(super) async fn flush_with_others(&self, peer: Peer, settles: &[Acknowledged]) -> Said {
        let group = self.flushes.of(peer);
        let wanted = group.want(settles);
        // Who is given up amid a flush lets the next who waits begin another.
        let _under_way = match group.under_way.lock_unless(|| group.said(wanted)).await {
            Ok(guard) => guard,
            Err(said) => return said,
        };
        let (number, settles) = group.begin();
        let when = self.unsynced.now();
        let said = self.said(peer, &Call::Flush { settles: settles.clone() }).await;
        if let Ok(Reply::Number(boot)) = said {
            self.unsynced.flushed(peer, when, boot);
        }
        group.end(number, &settles, &said);
        said
    }

    /// What a node says to a call; [`Errno::EPROTO`] if that is none of its replies.
    pub(super) async fn said(&self, peer: Peer, call: &Call) -> Said {
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        let reply = self.net.call(peer, bytes).await?;
        Ok(Reply::decode(&reply).unwrap_or(Reply::Failed(Errno::EPROTO)))
    }
}
