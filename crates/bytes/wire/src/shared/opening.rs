//! Who is who: names of the parts of a cluster, and the messages that open a conversation.

/// A part of a cluster, by its role and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// The metadata server of a slice.
    Server(u16),
    /// A storage node.
    Node(u16),
    /// A client: a DPU side, a process of its own, or somebody who looks. Chosen at random.
    Client(u64),
}
