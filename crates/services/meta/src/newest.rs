//! What nodes know of later openings of the volume: of a server whose metadata were restored from a
//! backup, or beside which another has begun.
//!
//! A fence that is given again lets an old writer in, and a file that gets a number again has the
//! bytes of another. So a server that starts asks the nodes for their highest, and counts on from
//! there. Before it grants anything it tells each node its opening, and it goes on looking, the
//! more often while the coordinator does not say that it is the only one. Where a node knows of a
//! later opening another server has begun, with a copy of the store, or this one's is from a
//! backup: it answers nobody any more, and ends.

use core::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use outboard_base::task::join_all;
use outboard_base::{Errno, Result};
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
    /// Whether a node may be told keys: it knows of no opening of the volume after this, and of
    /// this.
    pub(crate) async fn is_of_this_opening(&self, node: u16) -> bool {
        if self.chores().is_looked_at(node) {
            return true;
        }
        if !self.knows_none_later(node).await {
            return false;
        }
        let (peer, fence) = (Peer::Node(node), self.volume().opening() << 32);
        let told = self.ask(peer, &Call::Seal { object: VOLUME, fence }, QUICK).await;
        // One that has no room for it is read all the same.
        let is_told = told != Err(Errno::EIO);
        if is_told {
            self.chores().looked_at(node);
        }
        is_told
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
        let (opening, own) = (found.fence >> 32, self.volume().opening());
        if opening <= own {
            return true;
        }
        if self.chores().is_superseded() {
            tracing::error!(
                node,
                opening,
                own,
                "a node knows of a later opening of this volume: another server has begun, or \
                 these metadata are from a backup. This server answers nobody any more"
            );
        }
        false
    }
}
