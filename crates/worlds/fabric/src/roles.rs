//! What the parts of a cluster do on their threads, in the world of sockets and clocks: a node, the
//! metadata server, a client. How they keep house is their own affair (`Tending` of each).

use std::net::SocketAddrV4;
use std::rc::Rc;
use std::sync::Arc;

use outboard_base::Time;
use outboard_base::task::Spawn;
use outboard_dfs::Dfs;
use outboard_flow::{Conversations, Net};
use outboard_kv::Kv;
use outboard_medium::Medium;
use outboard_meta::Meta;
use outboard_node::{Node, NodeTarget};
use outboard_os::clock;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::Call;

use crate::net::Asking;
use crate::runtime::{Replying, Role};

/// A storage node.
pub struct NodeRole<M: Medium> {
    tending: outboard_node::Tending<M>,
    conversations: Conversations<NodeTarget<M>>,
}

impl<M: Medium + 'static> NodeRole<M> {
    /// Of `node`, whose target `conversations` have.
    #[must_use]
    pub fn new(node: Node<M>, conversations: Conversations<NodeTarget<M>>) -> NodeRole<M> {
        node.set_clock(Box::new(clock::now));
        NodeRole { tending: outboard_node::Tending::new(node, clock::now()), conversations }
    }

    /// Where another node is, to which this one passes writes on.
    pub fn know(&self, node: u16, address: SocketAddrV4) {
        self.tending.node().know(node, address);
        self.conversations.know(Peer::Node(node), address);
    }
}

impl<M: Medium + 'static> Role for NodeRole<M> {
    /// The handlers' clock: a node that was idle must not take what ended meanwhile.
    fn wakes(&self, wall_ms: u64) {
        self.tending.node().set_wall(wall_ms);
    }

    fn call(&self, from: Peer, call: Call) -> Replying {
        self.tending.called(clock::now());
        let node = self.tending.node().clone();
        Box::pin(async move { node.call(from, call).await })
    }

    fn tend(&self, now: Time, spawn: &dyn Spawn) -> usize {
        self.tending.tend(&self.conversations, now, spawn)
    }

    fn deadline(&self) -> Option<Time> {
        self.tending.deadline()
    }
}

/// The metadata server.
pub struct ServerRole<K, M> {
    tending: outboard_meta::Tending<K, M, Asking>,
    check: Rc<dyn Fn()>,
    conversations: Conversations,
}

impl<K: Kv + 'static, M: Medium + 'static> ServerRole<K, M> {
    /// Of `meta`. `check` is asked before every reply, and ends the process if the volume may be
    /// another's.
    #[must_use]
    pub fn new(
        meta: Meta<K, M, Asking>,
        check: Option<Box<dyn Fn()>>,
        conversations: Conversations,
    ) -> ServerRole<K, M> {
        let check: Rc<dyn Fn()> = check.map_or_else(|| Rc::new(|| ()) as _, Rc::from);
        let tending = outboard_meta::Tending::new(meta, clock::now());
        ServerRole { tending, check, conversations }
    }
}

impl<K: Kv + 'static, M: Medium + 'static> Role for ServerRole<K, M> {
    fn call(&self, from: Peer, call: Call) -> Replying {
        let (meta, check) = (self.tending.meta().clone(), Rc::clone(&self.check));
        Box::pin(async move {
            let reply = meta.call(from, call, clock::now(), clock::wall()).await;
            check();
            reply
        })
    }

    fn tend(&self, now: Time, spawn: &dyn Spawn) -> usize {
        // Before anything is sent, as before each reply.
        (self.check)();
        self.tending.tend(&self.conversations, now, spawn)
    }

    fn rest(&self, spawn: &dyn Spawn) -> bool {
        self.tending.rest(spawn)
    }

    fn deadline(&self) -> Option<Time> {
        self.tending.deadline()
    }
}

/// A client: the DPU side of a host.
pub struct ClientRole<N>(Rc<outboard_dfs::Tending<N>>);

impl<N: Net> ClientRole<N> {
    /// Of `dfs`.
    #[must_use]
    pub fn new(dfs: Arc<Dfs<N>>) -> ClientRole<N> {
        ClientRole(Rc::new(outboard_dfs::Tending::new(dfs, clock::now())))
    }
}

impl<N: Net> Role for ClientRole<N> {
    fn call(&self, _: Peer, call: Call) -> Replying {
        let tending = Rc::clone(&self.0);
        Box::pin(async move {
            let reply = tending.dfs().incoming(call).await;
            tending.has_answered();
            reply
        })
    }

    fn tend(&self, now: Time, spawn: &dyn Spawn) -> usize {
        self.0.tend(now, spawn)
    }

    fn deadline(&self) -> Option<Time> {
        Some(self.0.deadline())
    }
}
