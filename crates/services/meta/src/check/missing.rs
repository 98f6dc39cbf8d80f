//! What files had, and no node has any more.
//!
//! Inodes and what each node lists come in the order of their numbers, so both are read once, side
//! by side, however many there are.
//!
//! A file that takes something is known to a node at least; one of one copy without holes, to each
//! node that has a strip of it, also where all of that was punched since. How much it takes is not
//! known to the byte: a writer whose node did not answer in time tells what it knew before, and
//! what a write replaced is counted with copies for a while.

use std::collections::{BTreeMap, VecDeque};

use outboard_base::{Errno, Ino, Result};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::spread::Spread;
use outboard_medium::Medium;
use outboard_volume::Report;
use outboard_wire::shared::call::Object;

use super::PAGE;
use crate::Meta;

/// What a node has, read on as it is asked for.
struct Listing {
    page: VecDeque<Object>,
    /// Where the next page begins, if there is one.
    from: Option<u64>,
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Finds files of which nodes had more. Those of nodes that do not answer are not judged.
    pub(super) async fn look_for_missing(&self, report: &mut Report) -> Result<()> {
        let mut nodes = BTreeMap::new();
        self.each_node(|node| {
            nodes.insert(node, Listing { page: VecDeque::new(), from: Some(0) });
        });
        let mut after = Some(Ino(0));
        while let Some(from) = after {
            let (files, last) = self.volume().laid_out(from, PAGE).await?;
            for file in files.iter().filter(|file| file.is_file) {
                if let Some(fault) = self.missing_of(file.ino, &mut nodes).await? {
                    report.find(format!("file {}: {fault}", file.ino.0));
                }
            }
            after = last;
        }
        Ok(())
    }

    /// What is missing of a file, if it is so still.
    async fn missing_of(
        &self,
        ino: Ino,
        nodes: &mut BTreeMap<u16, Listing>,
    ) -> Result<Option<String>> {
        let Some(spread) = self.at_rest(ino).await? else { return Ok(None) };
        let members = self.nodes_of(&spread);
        let mut known = Vec::new();
        for member in &members {
            match self.listed(nodes, member.node, ino).await {
                Some(is_known) => known.push((member.node, is_known)),
                None => return Ok(None),
            }
        }
        if fault_of(&spread, &known).is_none() {
            return Ok(None);
        }
        // It may have been written or moved since its nodes were listed.
        for (node, is_known) in &mut known {
            match self.is_at(*node, ino.0).await {
                Ok(now) => *is_known = now,
                Err(_) => return Ok(None),
            }
        }
        let again = self.at_rest(ino).await?;
        let is_as_it_was = again
            .is_some_and(|again| again.attr == spread.attr && self.nodes_of(&again) == members);
        Ok(fault_of(&spread, &known).filter(|_| is_as_it_was))
    }

    /// A file that nobody writes and of which all is told.
    async fn at_rest(&self, ino: Ino) -> Result<Option<Spread>> {
        match self.volume().spread(ino).await {
            Ok(spread) => Ok(Some(spread).filter(|spread| !spread.writing)),
            // It is gone.
            Err(Errno::ESTALE | Errno::EINVAL) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether a node knows a file; `None` if it does not say.
    async fn listed(
        &self,
        nodes: &mut BTreeMap<u16, Listing>,
        node: u16,
        ino: Ino,
    ) -> Option<bool> {
        let listing = nodes.get_mut(&node)?;
        loop {
            while listing.page.front().is_some_and(|object| object.object < ino.0) {
                listing.page.pop_front();
            }
            let Some(from) = listing.from.filter(|_| listing.page.is_empty()) else { break };
            let Ok(page) = self.objects_at(node, from.max(ino.0)).await else {
                nodes.remove(&node);
                return None;
            };
            listing.from = page.last().and_then(|last| last.object.checked_add(1));
            listing.page = page.into();
        }
        Some(listing.page.front().is_some_and(|object| object.object == ino.0))
    }
}

/// What is missing of a file at rest, by which of its members know it.
fn fault_of(spread: &Spread, known: &[(u16, bool)]) -> Option<String> {
    let (takes, size) = (spread.attr.blocks.saturating_mul(512), spread.attr.size);
    if takes == 0 {
        return None;
    }
    if known.iter().all(|(_, is_known)| !is_known) {
        return Some(format!("none of its nodes knows it, of which it takes {takes} bytes"));
    }
    if spread.layout.is_redundant() || takes < size {
        return None;
    }
    let strip = u64::from(spread.layout.strip);
    let begins = (0..).map(|rank: u64| rank.saturating_mul(strip));
    let has_part = known.iter().zip(begins).filter(|(_, begins)| *begins < size);
    let (node, _) = has_part.map(|(known, _)| known).find(|(_, is_known)| !is_known)?;
    Some(format!("node {node} does not know it, and has strips of it"))
}
