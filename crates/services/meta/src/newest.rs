//! What nodes know of later openings of the volume: of a server whose metadata were restored from a
//! backup, or beside which another has begun.
//!
//! A fence that is given again lets an old writer in, and a file that gets a number again has the
//! bytes of another. So a server that starts asks the nodes for their highest, and counts on from
//! there. Each call to a node says its opening, the server's *term*, and before it grants anything
//! it tells each node keys so. It goes on looking, the more often while the coordinator does not
//! say that it is the only one. Where a node knows of a later opening, and says so or refuses a
//! call, another server has begun, by the pool's claim or with a copy of the store, or this one's
//! is from a backup: it answers nobody and asks no node any more, and ends.

use core::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use outboard_base::Result;
use outboard_base::task::join_all;
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::Kvfs;
use outboard_medium::Medium;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Object, Reply};

use crate::nodes::{QUICK, first_of};
use crate::{Meta, MetaOptions};

/// The object that a volume is at its nodes: no file's. Its fence is that of the last opening.
pub(crate) const VOLUME: u64 = 0;
/// How long nodes are given at a start: one that is away is looked at later.
const PATIENCE: Duration = Duration::from_millis(500);

/// Before [`Meta::open`]: numbers of this volume go on above those that nodes know. True if they
/// would not have: it was restored from a backup.
///
/// # Errors
/// What the volume's store says.
pub async fn count_beyond_nodes<K: Kv, M: Medium, N: Net>(
    kvfs: &Kvfs<K, M>,
    net: &N,
    options: &MetaOptions,
) -> Result<bool> {
    let asked = options.nodes.iter().map(|node| async move {
        let address = SocketAddrV4::new(Ipv4Addr::from(node.address), node.port);
        net.know(Peer::Node(node.node), address);
        let mut call = Vec::new();
        Call::Newest.encode(&mut call);
        let answer = std::pin::pin!(net.call(Peer::Node(node.node), call));
        let over = std::pin::pin!(net.sleep(PATIENCE));
        match Reply::decode(&first_of(answer, over).await?.ok()?) {
            Ok(Reply::Object(found)) => Some(found),
            _ => None,
        }
    });
    let found: Vec<Object> = join_all(asked.collect()).await.into_iter().flatten().collect();
    let opening = found.iter().map(|found| found.fence >> 32).max().unwrap_or(0);
    let object = found.iter().map(|found| found.object).max().unwrap_or(0);
    let restored = kvfs.count_on(opening, object).await?;
    if restored {
        kvfs.doubt_writers().await?;
        tracing::warn!(
            opening,
            object,
            "the nodes know of later files than this server: its metadata are from a backup. \
             Numbers go on above theirs; what was made since is on nodes and in no directory, \
             which a check shows; hosts are to mount the volume anew"
        );
    }
    Ok(restored)
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// The number of this opening of the volume, which each call to a node says.
    pub(crate) fn term(&self) -> u32 {
        u32::try_from(self.volume().opening()).unwrap_or(u32::MAX)
    }

    /// Whether a node may be told keys: it knew of no opening of the volume after this.
    pub(crate) async fn is_of_this_opening(&self, node: u16) -> bool {
        if self.chores().is_looked_at(node) {
            return true;
        }
        let knows_none = self.knows_none_later(node).await;
        if knows_none {
            self.chores().looked_at(node);
        }
        knows_none
    }

    /// Looks whether another server has begun.
    pub(crate) async fn look_for_later(&self) {
        let placement = self.placement();
        let nodes = placement.all().iter().map(|node| self.knows_none_later(node.node));
        let _each_says_so_by_itself = join_all(nodes.collect()).await;
    }

    /// Whether a node answers, and knows of no later opening.
    async fn knows_none_later(&self, node: u16) -> bool {
        let asked = self.ask(Peer::Node(node), &Call::Newest, QUICK).await;
        let Ok(Reply::Object(found)) = asked else { return false };
        let opening = found.fence >> 32;
        let is_later = opening > self.volume().opening();
        if is_later {
            self.is_followed(Peer::Node(node), opening);
        }
        !is_later
    }

    /// A node knows of a later opening.
    pub(crate) fn is_followed(&self, node: Peer, opening: u64) {
        if self.chores().is_superseded() {
            tracing::error!(
                ?node,
                opening,
                own = self.volume().opening(),
                "a node knows of a later opening of this volume: another server has begun, or \
                 these metadata are from a backup. This server answers nobody any more"
            );
        }
    }
}
