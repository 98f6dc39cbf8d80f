//! Files that a node is to know, and does not.
//!
//! Inodes and what each node lists come in the order of their numbers, so both are read once, side
//! by side, however many there are.
//!
//! A file that takes something is known to a node at least; one of one copy without holes, to each
//! node that has a strip of it, also where all of that was punched since. How much it takes is not
//! known to the byte: a writer whose node did not answer in time tells what it knew before, and
//! what a write replaced is counted with copies for a while.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outboard_base::{Errno, Ino, Result};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::spread::Spread;
use outboard_medium::Medium;
use outboard_volume::Report;
use outboard_wire::shared::call::Object;

use super::PAGE;
use crate::Meta;
use crate::copies::blocks_of;

/// What a node has, read on as it is asked for.
struct Listing {
    page: VecDeque<Object>,
    /// Where the next page begins, if there is one.
    from: Option<u64>,
}

/// A node that has ceased to answer.
struct Away(u16, Errno);

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Finds files of which nodes have nothing any more, at the nodes that answer.
    pub(super) async fn look_for_missing(
        &self,
        nodes: BTreeSet<u16>,
        report: &mut Report,
    ) -> Result<()> {
        let begin = |node| (node, Listing { page: VecDeque::new(), from: Some(0) });
        let mut nodes: BTreeMap<u16, Listing> = nodes.into_iter().map(begin).collect();
        let mut after = Ino(0);
        loop {
            let some = self.volume().inodes(after, PAGE).await?;
            let Some(last) = some.last() else { return Ok(()) };
            after = *last;
            for ino in some {
                match self.missing_of(ino, &mut nodes).await {
                    Ok(None) => {}
                    Ok(Some(fault)) => report.find(format!("file {ino}: {fault}")),
                    Err(Away(node, errno)) => {
                        nodes.remove(&node);
                        report.find(format!(
                            "node {node}: {errno}; files that it may have lost, from inode {ino} \
                             on, were not looked for"
                        ));
                    }
                }
            }
        }
    }

    /// What is missing of a file, if it is so still.
    async fn missing_of(
        &self,
        ino: Ino,
        nodes: &mut BTreeMap<u16, Listing>,
    ) -> std::result::Result<Option<String>, Away> {
        let Some(spread) = self.at_rest(ino).await else { return Ok(None) };
        let members = self.nodes_of(&spread);
        let mut known = Vec::new();
        for member in &members {
            // One that is not listed did not answer before.
            let Some(listing) = nodes.get_mut(&member.node) else { return Ok(None) };
            known.push((member.node, self.is_listed(member.node, listing, ino).await?));
        }
        if fault_of(&spread, &known).is_none() {
            return Ok(None);
        }
        // It may have been written or moved since its nodes were listed.
        let mut found = Vec::new();
        for (node, is_known) in &mut known {
            let now = self.objects_at(*node, ino.0).await.map_err(|errno| Away(*node, errno))?;
            let now = now.into_iter().find(|object| object.object == ino.0);
            *is_known = now.is_some();
            found.extend(now);
        }
        let is_as_it_was = self
            .at_rest(ino)
            .await
            .is_some_and(|again| again.attr == spread.attr && self.nodes_of(&again) == members);
        // Space that is put aside behind its end may make up for holes.
        let has_less = blocks_of(&spread.layout, &found) < spread.attr.blocks;
        Ok(fault_of(&spread, &known).filter(|_| is_as_it_was && has_less))
    }

    /// A file that nobody writes and of which all is told. What is wrong with an inode the volume's
    /// own check has told.
    async fn at_rest(&self, ino: Ino) -> Option<Spread> {
        self.volume().spread(ino).await.ok().filter(|spread| !spread.writing)
    }

    /// Whether a node knows a file.
    async fn is_listed(
        &self,
        node: u16,
        listing: &mut Listing,
        ino: Ino,
    ) -> std::result::Result<bool, Away> {
        loop {
            while listing.page.front().is_some_and(|object| object.object < ino.0) {
                listing.page.pop_front();
            }
            let Some(from) = listing.from.filter(|_| listing.page.is_empty()) else { break };
            let page = self.objects_at(node, from.max(ino.0)).await;
            let page = page.map_err(|errno| Away(node, errno))?;
            listing.from = page.last().and_then(|last| last.object.checked_add(1));
            listing.page = page.into();
        }
        Ok(listing.page.front().is_some_and(|object| object.object == ino.0))
    }
}

/// What is missing of a file at rest, by which of its members know it.
fn fault_of(spread: &Spread, known: &[(u16, bool)]) -> Option<String> {
    let (takes, size) = (spread.attr.blocks.saturating_mul(512), spread.attr.size);
    if takes == 0 || size == 0 {
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
