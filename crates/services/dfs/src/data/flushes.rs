//! A flush is of all that a node has, so who wants one of a node while another is under way waits
//! for the next, which is that of all who wait then (group commit).

use std::collections::BTreeMap;
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
    /// What the next one is to settle, by object.
    settles: BTreeMap<u64, Acknowledged>,
}

impl Group {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the first flush that begins after this, which settles these.
    fn want(&self, settles: &[Acknowledged]) -> u64 {
        let mut state = self.state();
        for of in settles {
            state.settles.insert(of.capability.object, *of);
            if state.settles.len() > OBJECTS {
                state.settles.pop_first();
            }
        }
        state.begun + 1
    }

    /// What was said to a flush that began with this number or later.
    fn said(&self, number: u64) -> Option<Said> {
        let state = self.state();
        let (_, said) = state.ended.as_ref().filter(|(ended, _)| *ended >= number)?;
        Some(said.clone())
    }

    fn begin(&self) -> (u64, Vec<Acknowledged>) {
        let mut state = self.state();
        state.begun += 1;
        (state.begun, state.settles.values().take(SETTLES_MAX).copied().collect())
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
        let number = group.want(settles);
        // Who is given up amid a flush lets the next who waits begin another.
        let _under_way = match group.under_way.lock_unless(|| group.said(number)).await {
            Ok(guard) => guard,
            Err(said) => return said,
        };
        let (number, settles) = group.begin();
        let when = self.unsynced.now();
        let mut call = Vec::new();
        Call::Flush { settles: settles.clone() }.encode(&mut call);
        let said = self.said(peer, call).await;
        if let Ok(Reply::Number(boot)) = said {
            self.unsynced.flushed(peer, when, boot);
        }
        group.end(number, &settles, &said);
        said
    }

    /// What a node says to a call; [`Errno::EPROTO`] if that is none of its replies.
    pub(super) async fn said(&self, peer: Peer, call: Vec<u8>) -> Said {
        let reply = self.net.call(peer, call).await?;
        Ok(Reply::decode(&reply).unwrap_or(Reply::Failed(Errno::EPROTO)))
    }
}
