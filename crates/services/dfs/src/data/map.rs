//! Where data lies at the nodes, and how much of it.

use std::ops::Range;

use outboard_base::task::try_join_abreast;
use outboard_flow::Net;
use outboard_wire::shared::call::Grant;
use outboard_wire::shared::{Answer, Peer, RUN_LEN, ReadHead};

use super::stripes::{UNIT, runs_of_file, stripe_len};
use super::{ABREAST, Data, DataError, is_coded, is_redundant, shares};

/// Runs of data that a node is asked for at a time.
const RUNS: usize = 4096;
/// Most of them that lie in one strip of a unit.
const RUNS_OF_STRIP: usize = 4;
/// Stripes of which it is told at a time where data lies.
const STRIPES: usize = 1024;

impl<N: Net> Data<N> {
    pub(super) fn takes(&self, grant: &Grant, peer: Peer, answer: &Answer, alone: bool) {
        let (object, fence) = (grant.capability.object, grant.capability.fence);
        if let Peer::Node(node) = peer {
            self.versions.takes(object, fence, node, answer.held, alone);
        }
    }

    /// Bytes that a file takes at its nodes, if all of them have said so under this grant; one that
    /// took nothing when it was granted takes what those say who did.
    pub fn held(&self, grant: &Grant) -> Option<u64> {
        let (object, fence) = (grant.capability.object, grant.capability.fence);
        let fresh = (grant.attr.blocks == 0 && self.versions.knows_all(fence)).then_some(0);
        let each = grant.nodes.iter().map(|node| self.versions.held(object, fence, node.node));
        if is_redundant(grant) {
            // What it took under the fence before this one nobody has said under this one.
            return each.flatten().max().map(|held| held.saturating_mul(grant.layout.data_units()));
        }
        each.map(|held| held.or(fresh)).sum()
    }

    /// The same; nodes that have not said so are asked.
    ///
    /// # Errors
    /// [`DataError`].
    pub async fn count(&self, grant: &Grant) -> Result<u64, DataError> {
        if let Some(held) = self.held(grant) {
            return Ok(held);
        }
        let each = (0..shares(grant)).map(|place| async move {
            let (peer, answer, _) = self.ask_map(grant, place, 0, 1).await?;
            self.takes(grant, peer, &answer, false);
            Ok::<_, DataError>(answer.held.saturating_mul(grant.layout.data_units()))
        });
        Ok(try_join_abreast(ABREAST, each).await?.into_iter().sum())
    }

    /// What a file takes is not known any more.
    pub(crate) fn forget_held(&self, object: u64) {
        self.versions.forget_held(object);
    }

    /// Runs of data that end behind `from` in one share of the file, so many at most.
    async fn ask_map(
        &self,
        grant: &Grant,
        place: u64,
        from: u64,
        most: usize,
    ) -> Result<(Peer, Answer, Vec<Range<u64>>), DataError> {
        let bytes = u32::try_from(most * RUN_LEN).map_err(|_| DataError::Medium)?;
        let read = ReadHead { offset: from, bytes, unit: 0, map: true };
        let (peer, answer, data) = self.ask_any(grant, place, read).await?;
        let (words, rest) = data.as_chunks::<8>();
        let (pairs, odd) = words.as_chunks::<2>();
        let runs: Vec<Range<u64>> = pairs
            .iter()
            .map(|[start, end]| u64::from_le_bytes(*start)..u64::from_le_bytes(*end))
            .collect();
        let in_order = runs.iter().all(|run| run.start < run.end && run.end > from)
            && runs.is_sorted_by(|one, next| one.end < next.start);
        let is_whole = rest.is_empty() && odd.is_empty() && runs.len() <= most;
        if in_order && is_whole { Ok((peer, answer, runs)) } else { Err(DataError::Medium) }
    }

    /// Runs of data that end behind `from`, in order, some of them, and up to where they are all.
    ///
    /// # Errors
    /// [`DataError`].
    pub async fn runs(
        &self,
        grant: &Grant,
        from: u64,
    ) -> Result<(Vec<Range<u64>>, u64), DataError> {
        self.map(grant, from, RUNS).await
    }

    async fn map(
        &self,
        grant: &Grant,
        from: u64,
        most: usize,
    ) -> Result<(Vec<Range<u64>>, u64), DataError> {
        if is_coded(grant) {
            return self.map_of_stripes(grant, from, most).await;
        }
        let each = (0..shares(grant)).map(|place| async move {
            let (_, _, runs) = self.ask_map(grant, place, from, most).await?;
            let is_all = runs.len() < most;
            let end = runs.last().filter(|_| !is_all).map_or(u64::MAX, |last| last.end);
            Ok::<_, DataError>((runs, end))
        });
        let each = try_join_abreast(ABREAST, each).await?;
        let end = each.iter().map(|(_, end)| *end).min().unwrap_or(u64::MAX);
        let mut all: Vec<Range<u64>> = each.into_iter().flat_map(|(runs, _)| runs).collect();
        all.sort_unstable_by_key(|run| run.start);
        Ok((all, end))
    }

    /// The same of stripes, of which all members have the same rows: any of them says which.
    async fn map_of_stripes(
        &self,
        grant: &Grant,
        from: u64,
        most: usize,
    ) -> Result<(Vec<Range<u64>>, u64), DataError> {
        let first = from / stripe_len(grant);
        let rows_from = first.saturating_mul(UNIT);
        let (_, _, rows) = self.ask_map(grant, first, rows_from, most).await?;
        let is_all = rows.len() < most;
        // Of the last one that was told not all rows are known.
        let end = rows.last().filter(|_| !is_all).map_or(u64::MAX, |last| last.end / UNIT);
        let base = rows.first().map_or(first, |row| first.max(row.start / UNIT));
        let end = end.min(base.saturating_add(STRIPES as u64));
        let is_end = is_all && rows.last().is_none_or(|last| last.end <= end.saturating_mul(UNIT));
        let known = if is_end { u64::MAX } else { end.saturating_mul(stripe_len(grant)) };
        let last = end.saturating_mul(UNIT);
        let rows = rows.into_iter().map(|run| run.start.max(rows_from)..run.end.min(last));
        let rows: Vec<Range<u64>> = rows.filter(|run| run.start < run.end).collect();
        Ok((runs_of_file(grant.layout.data_units(), &rows, from), known))
    }

    /// The first byte of data at or behind `from`, if there is any.
    ///
    /// # Errors
    /// [`DataError`].
    pub async fn next_data(&self, grant: &Grant, from: u64) -> Result<Option<u64>, DataError> {
        let mut at = from;
        loop {
            let most = if is_coded(grant) { RUNS_OF_STRIP + 1 } else { 1 };
            let (runs, known) = self.map(grant, at, most).await?;
            if let Some(run) = runs.first() {
                return Ok(Some(run.start.max(from)));
            }
            // Of stripes those may all lie before it, or behind those that were looked at.
            if known <= at || known == u64::MAX {
                return Ok(None);
            }
            at = known;
        }
    }

    /// The first byte at or behind `from` that is no data; `end` if there is none before.
    ///
    /// # Errors
    /// [`DataError`].
    pub async fn next_hole(&self, grant: &Grant, from: u64, end: u64) -> Result<u64, DataError> {
        let mut at = from;
        loop {
            let (runs, known) = self.runs(grant, at).await?;
            let begun = at;
            for run in runs {
                if run.start > at || run.start >= known {
                    break;
                }
                at = at.max(run.end.min(known));
            }
            if at >= end {
                return Ok(end);
            }
            if at < known || at == begun {
                return Ok(at);
            }
        }
    }
}
