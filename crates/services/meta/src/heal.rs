//! Copies that come to have all again: of members that were left out and are back, of nodes that
//! lost power and doubt what they have, and those of which a node found something damaged.

use std::time::Duration;

use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::join_all;
use outboard_base::{Errno, Ino, Result};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::spread::Spread;
use outboard_medium::Medium;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Mode, Reply};

use crate::Meta;
use crate::copies::{Filled, SLICE, is_in, peer};
use crate::grants::NOBODY;
use crate::housekeeping::LATER;
use crate::moving::GIVE_WAY;
use crate::nodes::QUICK;

/// All objects of a node.
const ALL: u64 = u64::MAX;
/// Files that are mended in a round.
const MENDED: usize = 16;
/// Files that are looked at at a time.
const FILES: usize = 1024;
/// How often a member that cannot take what it lacks is named before it is left out.
const NAMED: usize = 2;

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Asks all nodes for a sign of life, and whether they doubt what they have.
    pub(crate) async fn look_for_signs(&self) {
        let (placement, call) = (self.placement(), Call::Doubts { object: ALL });
        let asked = placement
            .all()
            .iter()
            .map(async |node| (node.node, self.ask(peer(node), &call, QUICK).await));
        let answers = join_all(asked.collect()).await;
        let now = self.net().now();
        {
            let mut chores = self.chores();
            for (node, answer) in answers {
                chores.answered(node, answer != Err(Errno::EIO), now);
                let (doubts, damaged) = match answer {
                    Ok(Reply::Number(boot)) => (Some(boot), Vec::new()),
                    Ok(Reply::Objects(objects)) => (None, objects),
                    _ => (None, Vec::new()),
                };
                chores.doubts(node, doubts);
                chores.damaged_at(node, damaged.iter().map(|object| object.object).collect());
            }
        }
    }

    /// Files with copies on a node that has been away for long get others elsewhere; once it is
    /// back it has its share again.
    pub(crate) async fn heal_elsewhere(&self, time: Duration) -> Result<()> {
        let placement = self.placement();
        let out: Vec<u16> = self.chores().out().iter().copied().collect();
        for node in out {
            if !self.chores().may_take_out(node, self.net().now()) {
                continue;
            }
            let back = self.ask(Peer::Node(node), &Call::Doubts { object: ALL }, QUICK).await;
            if let (Ok(_), Some(node)) = (back, placement.coordinate(node)) {
                tracing::info!(node = node.node, "a node is back, and has its share again");
                let said = self.place(&[node], &[], 0).await?;
                if !self.placement().current().contains(&node.node) {
                    tracing::warn!(node = node.node, said, "it cannot; looked at again later");
                    let now = self.net().now();
                    self.chores().cannot_take_out(node.node, now);
                }
            }
        }
        let away = self.chores().away_for(time, self.net().now());
        for node in away {
            let is_due = self.chores().may_take_out(node, self.net().now());
            if is_due && placement.current().contains(&node) && self.is_lacking(node).await? {
                tracing::warn!(node, "a node has been away for long: files get copies elsewhere");
                let said = self.take_out(node).await?;
                if self.placement().current().contains(&node) {
                    tracing::warn!(node, said, "they cannot; looked at again in ten minutes");
                    let now = self.net().now();
                    self.chores().cannot_take_out(node, now);
                }
            }
        }
        Ok(())
    }

    /// Whether files with copies are known to lack one at a node.
    async fn is_lacking(&self, node: u16) -> Result<bool> {
        let mut after = Ino::ROOT;
        loop {
            let some = self.volume().lacking(after, FILES).await?;
            let Some(last) = some.last() else { return Ok(false) };
            after = *last;
            for ino in some {
                let Ok(spread) = self.volume().spread(ino).await else { continue };
                let all = self.placement().of(&spread.laid_out());
                let mut all = all.iter().enumerate();
                if all.any(|(rank, one)| one.node == node && is_in(spread.lacking, rank)) {
                    return Ok(true);
                }
            }
        }
    }

    /// Members that were left out get what they lack. Nodes that lost power do, and trust what they
    /// have.
    pub(crate) async fn heal(&self) {
        if let Err(errno) = self.fill_some().await {
            tracing::debug!(%errno, "copies that lack something");
        }
        self.mend_damage().await;
        let doubting = self.chores().doubting();
        for (node, boot) in doubting {
            match self.end_doubts_of(node).await {
                Ok(0) => {
                    let trust = Call::Trust { object: ALL, boot };
                    let trusts = self.ask_node(node, &trust).await;
                    tracing::info!(node, ?trusts, "a node has all it may have lost");
                }
                left => tracing::debug!(node, ?left, "files that a node doubts"),
            }
        }
    }

    /// Files of which nodes have something damaged get it from the others; without one that cannot
    /// be given it its file goes on.
    async fn mend_damage(&self) {
        let damaged = if is_planted(Fault::Rotten) { Vec::new() } else { self.chores().damaged() };
        let now = self.net().now();
        let due = |(_, ino): &(u16, Ino)| self.chores().may_mend(*ino, now);
        let damaged: Vec<(u16, Ino)> = damaged.into_iter().filter(due).take(MENDED).collect();
        for (node, ino) in damaged {
            match self.mend_damage_at(node, ino).await {
                Ok(true) => {
                    tracing::warn!(%ino, node, "a node has again what others have whole of a file")
                }
                Ok(false) => {}
                Err(errno) => {
                    tracing::warn!(%ino, node, %errno, "what is damaged cannot be mended yet");
                }
            }
            // Damage that all copies have is found again.
            let later = self.net().now().after(LATER);
            self.chores().mend_later(ino, later);
        }
    }

    /// Whether a node doubts a file no more. Of one without copies there is nothing better.
    async fn mend_damage_at(&self, node: u16, ino: Ino) -> Result<bool> {
        let object = ino.0;
        let doubts = Call::Doubts { object };
        let Reply::Number(boot) = self.ask_node(node, &doubts).await? else { return Ok(false) };
        if !self.ends_doubt(node, ino).await? {
            return Err(Errno::EAGAIN);
        }
        let is_mended = self.ask_node(node, &doubts).await? == Reply::Done;
        if !is_mended && !self.is_left_out(node, ino).await {
            // In another boot it doubts all, and this is not believed.
            self.ask_node(node, &Call::Trust { object, boot }).await?;
        }
        Ok(is_mended)
    }

    /// Whether a file goes on without a node, which is given all it lacks once it can take it.
    async fn is_left_out(&self, node: u16, ino: Ino) -> bool {
        let spread = self.volume().spread(ino).await;
        spread.is_ok_and(|spread| {
            spread.lacking != 0 && self.nodes_of(&spread).iter().all(|member| member.node != node)
        })
    }

    async fn fill_some(&self) -> Result<()> {
        let mut after = Ino::ROOT;
        loop {
            let some = self.volume().lacking(after, FILES).await?;
            let Some(last) = some.last() else { return Ok(()) };
            after = *last;
            for ino in some {
                if !self.chores().is_due_again(ino, self.net().now()) {
                    continue;
                }
                match self.refill_all_of(ino).await {
                    Ok(true) => tracing::info!(%ino, "all copies of a file have all again"),
                    // Somebody else was at it, or its members are still away.
                    Ok(false) | Err(Errno::EAGAIN) => {}
                    Err(errno) => {
                        tracing::warn!(%ino, %errno, "a copy cannot be filled; tried again");
                        self.chores().try_later(ino, self.net().now(), LATER);
                    }
                }
            }
        }
    }

    /// The same, slice by slice.
    async fn refill_all_of(&self, ino: Ino) -> Result<bool> {
        let mut slice = SLICE;
        loop {
            match self.refill(ino, slice).await {
                Err(Errno::EINPROGRESS) => {
                    slice = slice.saturating_mul(2);
                    self.net().sleep(GIVE_WAY).await;
                }
                filled => return filled,
            }
        }
    }

    /// Whether all members of a file have all of it; those it is to lie on are given it, too.
    ///
    /// # Errors
    /// `EINPROGRESS` if there is more to give; others may have the file first.
    pub(crate) async fn refill(&self, ino: Ino, slice: usize) -> Result<bool> {
        let (placement, before) = (self.placement(), self.volume().spread(ino).await?);
        let back = self.who_is_back(&before).await;
        let joiners = self.who_joins(&placement, &before).await;
        if back == 0 && joiners.is_empty() {
            return Ok(before.lacking == 0);
        }
        if self.waits_for_heir(ino, NOBODY) {
            return Err(Errno::EAGAIN);
        }
        let _turn = self.cleared(ino, NOBODY, Mode::Write).await?;
        self.give_up(ino, None).await?;
        let _mending = self.mends().exclusive(ino).await;
        let spread = self.volume().spread(ino).await?;
        if (spread.layout, &spread.members) != (before.layout, &before.members) {
            return Err(Errno::EAGAIN);
        }
        let ranks = back & spread.lacking;
        let filled = Spread { lacking: spread.lacking & !ranks, ..spread };
        let fence = self.delegations().raise(ino)?;
        self.empty_joiners(&filled, fence, &joiners).await?;
        let fills = Filled { ranks, joiners: &joiners, slice, without: None };
        let equal = self.make_equal(filled, fence, fills).await;
        if equal.as_ref().is_err_and(|errno| *errno != Errno::EINPROGRESS) {
            // Some may have what was given to all.
            self.delegations().must_resolve(ino);
        }
        let (_, filled) = equal?;
        let change = self.changes().exclusive(ino).await;
        if !self.delegations().is_last(ino, fence) {
            return Err(Errno::EAGAIN);
        }
        let left = self.lies_by(&placement, &filled, &joiners).await?;
        self.chores().forget_joiners(ino);
        drop(change);
        if !left.is_empty() {
            self.forget_at(&left, ino).await;
        }
        Ok(filled.lacking == 0)
    }

    /// Of those that lack something of a file, who answers.
    async fn who_is_back(&self, spread: &Spread) -> u16 {
        let all = self.placement().of(&spread.laid_out());
        let mut back = 0;
        for (rank, member) in all.iter().enumerate().filter(|(r, _)| is_in(spread.lacking, *r)) {
            if self.chores().is_away(member.node, self.net().now()) {
                continue;
            }
            let call = Call::Doubts { object: spread.attr.ino.0 };
            if self.ask(peer(member), &call, QUICK).await.is_ok() {
                self.tell_keys(std::slice::from_ref(member)).await;
                back |= 1 << rank;
            }
        }
        back
    }

    /// How many files it must go on doubting for now.
    async fn end_doubts_of(&self, node: u16) -> Result<u64> {
        let (placement, mut left) = (self.placement(), 0);
        for other in placement.all() {
            let mut from = Some(0);
            while let Some(first) = from {
                let found = self.objects_at(other.node, first).await?;
                from = found.last().and_then(|last| last.object.checked_add(1));
                for object in found {
                    left += u64::from(!self.ends_doubt(node, Ino(object.object)).await?);
                }
            }
        }
        Ok(left)
    }

    /// Whether a node need not doubt a file any more: it is taken from everybody for that.
    async fn ends_doubt(&self, node: u16, ino: Ino) -> Result<bool> {
        let spread = match self.volume().spread(ino).await {
            // It is gone, or no file of bytes.
            Err(Errno::ESTALE | Errno::EINVAL) => return Ok(true),
            spread => spread?,
        };
        let members = self.nodes_of(&spread);
        if !spread.layout.is_redundant() || members.iter().all(|member| member.node != node) {
            return Ok(true);
        }
        if self.ask_node(node, &Call::Doubts { object: ino.0 }).await? == Reply::Done {
            return Ok(true);
        }
        if self.waits_for_heir(ino, NOBODY) {
            return Ok(false);
        }
        // One that cannot be had now does not keep the node from others.
        let Ok(_turn) = self.cleared(ino, NOBODY, Mode::Write).await else { return Ok(false) };
        self.give_up(ino, None).await?;
        let _mending = self.mends().exclusive(ino).await;
        self.delegations().must_resolve(ino);
        let mut resolved = self.try_to_resolve(ino).await;
        for _ in 0..NAMED {
            // Who cannot take what it lacks is left out once it is named again.
            if resolved == Err(Errno::EIO) {
                resolved = self.try_to_resolve(ino).await;
            }
        }
        // One that nobody can decide is no better for being doubted.
        Ok(matches!(resolved, Ok(()) | Err(Errno::EUCLEAN)))
    }
}
