//! What a node sends by its conversations: answers, and requests that it passes on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::task::Spawn;
use outboard_flow::{Backlog, Conversations, Net as _, Stream, Target};
use outboard_medium::Medium;
use outboard_wire::shared::Peer;

use crate::Node;
use crate::nic::passing::{Branch, Outgoing};

/// A sum for which nothing comes in all the time between two looks is lost; they are so far apart.
const SILENCE: Duration = Duration::from_secs(2);

/// The last piece of a branch, on its way.
struct Leaving {
    branch: Branch,
    conversation: u64,
    /// It has gone when so many messages have.
    said: u64,
}

#[derive(Default)]
struct Streams {
    /// By what streams the branches go that have not ended.
    of: BTreeMap<Branch, Stream>,
    /// By node, in their order.
    leaving: BTreeMap<u16, VecDeque<Leaving>>,
}

/// What goes to other nodes.
#[derive(Default)]
pub(crate) struct Relay(Mutex<Streams>);

impl Relay {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Streams {
    /// The last piece of a branch was given to the conversation. If there is none yet, its room is
    /// given back with the answer.
    fn leaves<T: Target>(&mut self, branch: Branch, to: u16, conversations: &Conversations<T>) {
        if let Some(Backlog { conversation, said, .. }) = conversations.backlog(Peer::Node(to)) {
            let one = Leaving { branch, conversation, said };
            self.leaving.entry(to).or_default().push_back(one);
        }
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
        self.see_what_has_gone(conversations);
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

    /// Gives back the room of what has gone to other nodes as a whole.
    fn see_what_has_gone<T: Target>(&self, conversations: &Conversations<T>) {
        let (mut streams, mut gone) = (self.0.relay.streams(), Vec::new());
        for (to, leaving) in &mut streams.leaving {
            let now = conversations.backlog(Peer::Node(*to));
            let has_gone = |one: &mut Leaving| {
                now.is_none_or(|now| now.conversation != one.conversation || now.gone >= one.said)
            };
            while let Some(one) = leaving.pop_front_if(has_gone) {
                gone.push(one.branch);
            }
        }
        streams.leaving.retain(|_, leaving| !leaving.is_empty());
        drop(streams);
        if !gone.is_empty() {
            let mut nic = self.nic();
            gone.into_iter().for_each(|branch| nic.has_gone(branch));
        }
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
            Outgoing::Begin { branch, to, heads, message, is_last } => {
                let stream = conversations.begin(Peer::Node(to), &heads, message);
                streams.of.insert(branch, stream);
                if is_last {
                    streams.leaves(branch, to, conversations);
                }
                drop(streams);
                let (node, answered) = (self.clone(), conversations.answered(stream));
                spawn.spawn(Box::pin(async move {
                    let answer = answered.await;
                    node.0.relay.streams().of.remove(&branch);
                    node.nic().heard(branch, answer.as_ref().ok());
                }));
            }
            Outgoing::Piece { branch, to, offset, bytes, is_last } => {
                if let Some(stream) = streams.of.get(&branch) {
                    conversations.go_on(*stream, offset, bytes);
                    if is_last {
                        streams.leaves(branch, to, conversations);
                    }
                }
            }
            Outgoing::Cut { branch } => {
                if let Some(stream) = streams.of.remove(&branch) {
                    conversations.cut(stream);
                }
            }
        }
    }
}
