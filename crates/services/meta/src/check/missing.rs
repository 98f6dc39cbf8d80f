//! What files had, and no node has any more.
//!
//! Inodes and what each node lists come in the order of their numbers, so both are read once, side
//! by side, however many there are.
//!
//! Of a file that nobody writes the volume knows how much it takes ([`blocks_of`]). One copy takes
//! that to the byte, so what is less is missing. Of copies and parities the check tells whether
//! they differ; what a write replaced is counted with them for a while, so of these only such are
//! missed that no member knows.

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
use crate::copies::blocks_of;

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
        let mut found = Vec::new();
        for member in &members {
            match self.listed(nodes, member.node, ino).await {
                Some(object) => found.extend(object),
                None => return Ok(None),
            }
        }
        if fault_of(&spread, &found).is_none() {
            return Ok(None);
        }
        // It may have been written or moved since its nodes were listed.
        found.clear();
        for member in &members {
            let Ok(now) = self.objects_at(member.node, ino.0).await else { return Ok(None) };
            found.extend(now.into_iter().find(|object| object.object == ino.0));
        }
        let again = self.at_rest(ino).await?;
        let is_as_it_was = again
            .is_some_and(|again| again.attr == spread.attr && self.nodes_of(&again) == members);
        Ok(fault_of(&spread, &found).filter(|_| is_as_it_was))
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

    /// What a node has of a file; `None` if it does not say.
    async fn listed(
        &self,
        nodes: &mut BTreeMap<u16, Listing>,
        node: u16,
        ino: Ino,
    ) -> Option<Option<Object>> {
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
        Some(listing.page.front().filter(|object| object.object == ino.0).copied())
    }
}

/// What is missing of a file at rest, by what its members have.
fn fault_of(spread: &Spread, found: &[Object]) -> Option<String> {
    let (had, has) = (spread.attr.blocks, blocks_of(&spread.layout, found));
    if spread.layout.is_redundant() {
        let is_known = had == 0 || !found.is_empty();
        return (!is_known).then(|| "none of its members knows it any more".to_owned());
    }
    let missing = had.saturating_sub(has).saturating_mul(512);
    (missing > 0).then(|| format!("{missing} of the bytes that it takes are missing at its nodes"))
}
