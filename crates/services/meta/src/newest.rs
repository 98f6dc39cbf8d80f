//! A server whose metadata were restored from a backup: nodes have seen fences and numbers of files
//! that it would give again.
//!
//! A fence that is given again lets an old writer in, and a file that gets a number again has the
//! bytes of another. So a server that starts asks the nodes for their highest, and counts on from
//! there; and a node that could not be asked then is told no keys if it knows of later openings.

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
    /// Whether a node may be told keys: it knows of no opening of the volume after this.
    pub(crate) async fn is_of_this_opening(&self, node: u16) -> bool {
        if self.chores().is_looked_at(node) {
            return true;
        }
        let Ok(Reply::Object(found)) = self.ask(Peer::Node(node), &Call::Newest, QUICK).await
        else {
            return false;
        };
        let (opening, own) = (found.fence >> 32, self.volume().opening());
        if opening > own {
            tracing::error!(
                node,
                opening,
                own,
                "a node knows of later openings of this volume: the metadata are from a backup. \
                 It is used once the server is started again while the node is there"
            );
            return false;
        }
        self.chores().looked_at(node);
        true
    }
}
