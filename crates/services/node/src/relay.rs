//! What a node sends by its conversations: answers, and requests that it passes on.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::task::Spawn;
use outboard_flow::{Conversations, Net as _, Stream, Target};
use outboard_medium::Medium;
use outboard_wire::shared::Peer;

use crate::Node;
use crate::nic::passing::{Branch, Outgoing};

/// A sum for which nothing comes in all the time between two looks is lost; they are so far apart.
const SILENCE: Duration = Duration::from_secs(1);

/// By what streams the branches go that have not ended.
#[derive(Default)]
pub(crate) struct Relay(Mutex<BTreeMap<Branch, Stream>>);

impl Relay {
    fn streams(&self) -> MutexGuard<'_, BTreeMap<Branch, Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Medium + 'static> Node<M> {
    /// Sends what is to be sent, and starts work on what is whole; how much that was.
    pub fn tend<T: Target>(&self, conversations: &Conversations<T>, spawn: &dyn Spawn) -> usize {
        let mut done = 0;
        while let Some(work) = self.take_work() {
            spawn.spawn(work);
            done += 1;
        }
        for (peer, answer) in self.take_answers() {
            // Whose conversation has ended asks again.
            let _ended = conversations.send(peer, answer);
            done += 1;
        }
        if self.nic().watch_sums() {
            self.watch_sums(conversations, spawn);
        }
        let outgoing = self.nic().take_outgoing();
        done += outgoing.len();
        for one in outgoing {
            self.send_on(one, conversations, spawn);
        }
        done
    }

    /// Looks at sums until there are none.
    fn watch_sums<T: Target>(&self, conversations: &Conversations<T>, spawn: &dyn Spawn) {
        let (node, conversations) = (self.clone(), conversations.clone());
        spawn.spawn(Box::pin(async move {
            loop {
                conversations.sleep(SILENCE).await;
                let mut nic = node.nic();
                let are_left = nic.look_at_sums();
                nic.inline(&[]);
                if !are_left {
                    return;
                }
            }
        }));
    }

    fn send_on<T: Target>(
        &self,
        outgoing: Outgoing,
        conversations: &Conversations<T>,
        spawn: &dyn Spawn,
    ) {
        let mut streams = self.0.relay.streams();
        match outgoing {
            Outgoing::Begin { branch, to, heads, data } => {
                let stream = conversations.begin(Peer::Node(to), &heads, &data);
                streams.insert(branch, stream);
                drop(streams);
                let (node, answered) = (self.clone(), conversations.answered(stream));
                spawn.spawn(Box::pin(async move {
                    let answer = answered.await;
                    node.0.relay.streams().remove(&branch);
                    node.nic().heard(branch, answer.as_ref().ok());
                }));
            }
            Outgoing::Piece { branch, offset, bytes } => {
                if let Some(stream) = streams.get(&branch) {
                    conversations.go_on(*stream, offset, bytes);
                }
            }
            Outgoing::Cut { branch } => {
                if let Some(stream) = streams.remove(&branch) {
                    conversations.cut(stream);
                }
            }
        }
    }
}
