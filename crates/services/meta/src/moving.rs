//! Files that are moved to the nodes that there are now.
//!
//! A file whose nodes by the newest map are others than those it lies on is taken from everybody,
//! the new ones are given what it has, it is said durably that it lies there, and the others forget
//! it. A file with copies is given a slice at a time, and others have it in between; of one copy
//! what moves is given at once. When no file is left, what nodes still have of files that lie
//! elsewhere goes, and clients have what they wrote to nodes that leave made durable; then these
//! nodes may go.

use std::collections::BTreeSet;
use std::time::Duration;

use outboard_base::task::{join_all, try_join_abreast};
use outboard_base::{Errno, Ino, Result};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::spread::Spread;
use outboard_medium::Medium;
use outboard_wire::shared::call::{Call, Grant, Mode, Reply};
use outboard_wire::shared::{Coordinate, DATA_MAX, Peer};

use crate::Meta;
use crate::copies::{SLICE, STRIP, has_copies};
use crate::delegations::Held;
use crate::grants::NOBODY;
use crate::nodes::{PATIENCE, QUICK};
use crate::placement::Placement;

/// Inodes looked at at a time.
const LOOK: usize = 1024;
/// Strips of a file that are moved at a time.
const ABREAST: usize = 16;
/// How long others have a file between two slices of it.
pub(crate) const GIVE_WAY: Duration = Duration::from_millis(100);

/// How it goes on, since this life of the server began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moving {
    /// Bytes a second that are moved at most; 0: as many as can be.
    rate: u64,
    /// Files that were moved.
    files: u64,
    /// What they take.
    bytes: u64,
    /// Files that were not, the last time all were looked at.
    left: u64,
    /// Why, of one of them.
    why: Option<String>,
}

impl Moving {
    /// Nothing yet; so many bytes a second.
    pub(crate) fn new(rate: u64) -> Moving {
        Moving { rate, ..Moving::default() }
    }

    /// Bytes a second that are moved at most.
    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }

    /// So many from now on.
    pub(crate) fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }

    /// As JSON, without the braces.
    pub(crate) fn text(&self, is_moving: bool) -> String {
        let why = self.why.as_deref().filter(|_| is_moving);
        let why = why.map_or_else(|| "null".to_owned(), |why| format!("\"{why}\""));
        format!(
            "\"moving\":{is_moving},\"files\":{},\"bytes\":{},\"left\":{},\"waits\":{why}",
            self.files, self.bytes, self.left
        )
    }
}

/// Nodes of one list that are not in another, by their numbers.
fn without(of: &[Coordinate], others: &[Coordinate]) -> Vec<Coordinate> {
    let is_there = |node: &&Coordinate| others.iter().any(|other| other.node == node.node);
    of.iter().filter(|node| !is_there(node)).copied().collect()
}

fn numbers(of: &[Coordinate]) -> Vec<u16> {
    of.iter().map(|node| node.node).collect()
}

fn are_same(one: &[Coordinate], other: &[Coordinate]) -> bool {
    numbers(one) == numbers(other)
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Moves what is to be moved: who lacks a copy first. One round over all files.
    pub(crate) async fn move_files(&self) {
        let placement = self.placement();
        if !placement.is_moving() {
            return;
        }
        match self.move_round(&placement).await {
            Ok(0) => match self.end_moving(&placement).await {
                Ok(()) => tracing::info!(map = placement.newest(), "all files are moved"),
                Err(errno) => tracing::info!(%errno, "files are moved; what they left is not gone"),
            },
            Ok(left) => tracing::info!(left, "files that are not moved yet"),
            Err(errno) => tracing::warn!(%errno, "files to be moved cannot be looked for"),
        }
    }

    /// How many files are left.
    async fn move_round(&self, placement: &Placement) -> Result<u64> {
        let mut left = 0;
        for in_danger in [true, false] {
            left = 0;
            let mut after = Ino(0);
            loop {
                let (some, last) = self.volume().laid_out(after, LOOK).await?;
                for one in some.into_iter().filter(|one| one.is_file) {
                    let now = placement.of(&one);
                    if are_same(&now, &placement.target(&one)) {
                        continue;
                    }
                    let time = self.net().now();
                    let is_in_danger =
                        now.iter().any(|node| self.chores().is_away(node.node, time));
                    if is_in_danger || !in_danger {
                        left += u64::from(!self.moves(one.ino).await);
                    }
                }
                let Some(last) = last else { break };
                after = last;
            }
            self.chores().moving().left = left;
        }
        Ok(left)
    }

    /// Whether a file is where it is to be, or gone.
    async fn moves(&self, ino: Ino) -> bool {
        if !self.chores().is_due_again(ino, self.net().now()) {
            return false;
        }
        let begun = self.net().now();
        let before = self.chores().moving().bytes;
        let moved = loop {
            match self.move_file(ino).await {
                Err(Errno::EINPROGRESS) => {
                    self.chores().moving().bytes += SLICE as u64 * STRIP;
                    self.net().sleep(GIVE_WAY).await;
                    self.keep_to_rate(before, begun).await;
                }
                moved => break moved,
            }
        };
        self.keep_to_rate(before, begun).await;
        match moved {
            Ok(is_moved) => {
                self.chores().moving().files += u64::from(is_moved);
                is_moved
            }
            Err(Errno::ESTALE) => true,
            // Somebody else was at it.
            Err(Errno::EAGAIN) => false,
            Err(errno) => {
                tracing::warn!(%ino, %errno, "a file cannot be moved; tried again");
                let now = self.net().now();
                let mut chores = self.chores();
                chores.try_later(ino, now);
                chores.moving().why = Some(format!("inode {ino}: {errno}"));
                false
            }
        }
    }

    /// Waits until what was moved since took as long as it is to take.
    async fn keep_to_rate(&self, before: u64, begun: outboard_base::Time) {
        let moving = self.chores().moving().clone();
        if let Some(millis) = (moving.bytes - before).saturating_mul(1000).checked_div(moving.rate)
        {
            let due = begun.after(Duration::from_millis(millis));
            self.net().sleep(due.since(self.net().now())).await;
        }
    }

    async fn move_file(&self, ino: Ino) -> Result<bool> {
        let spread = self.volume().spread(ino).await?;
        if has_copies(&spread.layout) {
            self.refill(ino).await?;
            let spread = self.volume().spread(ino).await?;
            return Ok(self.is_at_target(&spread));
        }
        self.move_shares(&spread).await
    }

    fn is_at_target(&self, spread: &Spread) -> bool {
        let (placement, file) = (self.placement(), spread.laid_out());
        are_same(&placement.of(&file), &placement.target(&file))
    }

    /// The nodes that a file is to lie on beside those it does, if they answer.
    pub(crate) async fn who_joins(
        &self,
        placement: &Placement,
        spread: &Spread,
    ) -> Vec<Coordinate> {
        let object = spread.attr.ino.0;
        let file = spread.laid_out();
        let mut there = Vec::new();
        for node in without(&placement.target(&file), &placement.of(&file)) {
            let call = Call::Doubts { object };
            if self.ask(Peer::Node(node.node), &call, QUICK).await.is_ok() {
                self.tell_keys(std::slice::from_ref(&node)).await;
                there.push(node);
            }
        }
        there
    }

    /// A file with copies lies by a map from now on, if as many have all of it as by the one
    /// before; who was filled and who joined has. In the lock of changes.
    pub(crate) async fn lies_by(
        &self,
        placement: &Placement,
        filled: &Spread,
        joiners: &[Coordinate],
    ) -> Result<Vec<Coordinate>> {
        let ino = filled.attr.ino;
        let now = placement.of(&filled.laid_out());
        let target = placement.target(&filled.laid_out());
        let have_all: BTreeSet<u16> =
            self.nodes_of(filled).iter().chain(joiners).map(|node| node.node).collect();
        let count = |nodes: &[Coordinate]| {
            nodes.iter().filter(|node| have_all.contains(&node.node)).count()
        };
        if are_same(&now, &target) || count(&target) < count(&now).max(1) {
            self.volume().set_lacking(ino, filled.lacking).await?;
            return Ok(Vec::new());
        }
        let lacks = |(rank, node): (usize, &Coordinate)| {
            if have_all.contains(&node.node) { 0 } else { 1_u16 << rank }
        };
        let lacking = target.iter().enumerate().map(lacks).fold(0, |all, rank| all | rank);
        self.volume().moved(ino, &numbers(&target), lacking).await?;
        self.chores().moving().bytes += (joiners.len() as u64 * filled.attr.blocks * 512)
            .checked_rem(SLICE as u64 * STRIP)
            .unwrap_or(0);
        Ok(without(&now, &target))
    }

    /// Nodes forget a file that they have no part of any more; those that do not answer do later.
    /// Under a fence above its last seal: one that comes again is not to make it anew.
    pub(crate) async fn forget_at(&self, nodes: &[Coordinate], ino: Ino) {
        let Ok(fence) = self.delegations().raise(ino) else { return };
        let asked = nodes.iter().map(|node| self.purge_at(node.node, ino.0, fence));
        for forgotten in join_all(asked.collect()).await {
            if let Err(errno) = forgotten {
                tracing::debug!(%ino, %errno, "a node keeps what it has of a file that was moved");
            }
        }
    }

    /// A file of one copy: the strips of nodes that it is not to lie on any more.
    async fn move_shares(&self, before: &Spread) -> Result<bool> {
        let ino = before.attr.ino;
        if self.waits_for_heir(ino, NOBODY) {
            return Err(Errno::EAGAIN);
        }
        let placement = self.placement();
        let _turn = self.cleared(ino, NOBODY, Mode::Write).await?;
        self.give_up(ino, None).await?;
        let spread = self.volume().spread(ino).await?;
        let now = placement.of(&spread.laid_out());
        let target = placement.target(&spread.laid_out());
        if now.len() != target.len() || spread.cut.is_some() {
            return Err(Errno::EAGAIN);
        }
        let (joiners, leavers) = (without(&target, &now), without(&now, &target));
        let fence = self.delegations().raise(ino)?;
        let all: Vec<Coordinate> = now.iter().chain(&joiners).copied().collect();
        self.tell_keys(&all).await;
        let found = self.seal_at(&all, ino.0, fence).await?;
        let end = found.iter().map(|object| object.end).max().unwrap_or(0);
        let held = Held { mode: Mode::Write, fence };
        let from = self.grant_at(NOBODY, &spread, held, now.clone()).await?;
        let to = Grant { nodes: target.clone(), ..from.clone() };
        let moved = self.copy_shares(&from, &to, end).await?;
        let flushed = self.data().flush(joiners.iter().map(|node| Peer::Node(node.node)));
        self.in_time(flushed).await?;
        let change = self.changes().exclusive(ino).await;
        if !self.delegations().is_last(ino, fence) {
            return Err(Errno::EAGAIN);
        }
        self.volume().moved(ino, &numbers(&target), 0).await?;
        // What was put aside behind the end is not there any more: it is counted again.
        self.delegations().must_resolve(ino);
        drop(change);
        self.chores().moving().bytes += moved;
        self.forget_at(&leavers, ino).await;
        let _resolved_later = self.try_to_resolve(ino).await;
        Ok(true)
    }

    /// Copies the strips whose nodes differ, of a file with so many bytes, which need not end where
    /// a run of data does; how many bytes.
    async fn copy_shares(&self, from: &Grant, to: &Grant, end: u64) -> Result<u64> {
        let strip = u64::from(from.layout.strip.clamp(1, DATA_MAX));
        let moves: Vec<bool> =
            from.nodes.iter().zip(&to.nodes).map(|(was, is)| was.node != is.node).collect();
        let is_moved = |at: u64| {
            let share = (at / strip).checked_rem(moves.len() as u64);
            share
                .and_then(|share| moves.get(usize::try_from(share).ok()?))
                .copied()
                .unwrap_or(false)
        };
        let (mut at, mut moved) = (0, 0);
        while at < end {
            let (runs, known) = self.in_time(self.data().runs(from, at)).await?;
            let pieces = runs.into_iter().map(|run| run.start.max(at)..run.end.min(known).min(end));
            let pieces = pieces.flat_map(|run| {
                let first = run.start / strip;
                (first..run.end.div_ceil(strip)).map(move |number| {
                    let start = number.saturating_mul(strip);
                    start.max(run.start)..start.saturating_add(strip).min(run.end)
                })
            });
            let each = pieces.filter(|piece| is_moved(piece.start)).map(|piece| async move {
                let len = usize::try_from(piece.end - piece.start).map_err(|_| Errno::EIO)?;
                let bytes = self.in_time(self.data().read(from, piece.start, len)).await?;
                self.in_time(self.data().write(to, piece.start, &bytes)).await?;
                Ok::<u64, Errno>(piece.end - piece.start)
            });
            moved += try_join_abreast(ABREAST, each).await?.into_iter().sum::<u64>();
            at = known;
        }
        Ok(moved)
    }

    /// No file is left that lies by an older map: nodes forget what lies elsewhere, clients flush
    /// those that leave, and then these may go.
    async fn end_moving(&self, placement: &Placement) -> Result<()> {
        let is_current = |node: &&Coordinate| placement.current().contains(&node.node);
        for node in placement.all() {
            // What is gone is not to come back with a loss of power.
            let swept = match self.sweep(placement, node.node).await {
                Ok(()) => self.ask_node(node.node, &Call::Flush).await.map(drop),
                swept => swept,
            };
            // One that leaves, and does not answer, has nothing that anybody needs.
            if is_current(&node) {
                swept?;
            }
        }
        let leaving: Vec<&Coordinate> =
            placement.all().iter().filter(|node| !is_current(node)).collect();
        for node in &leaving {
            if self.ask_node(node.node, &Call::Flush).await.is_ok() {
                self.in_time(self.data().leaves(Peer::Node(node.node))).await?;
                self.flushed_by_all(node.node).await?;
            }
        }
        let rate = self.rate();
        let next = self.placement();
        if next.newest() != placement.newest() {
            return Err(Errno::EAGAIN);
        }
        self.note_moved(next.newest(), rate).await?;
        self.set_placement(next.all_moved()?);
        self.chores().moving().why = None;
        for node in leaving {
            tracing::info!(node = node.node, "a node has no files any more");
        }
        Ok(())
    }

    /// A node forgets what it has of files that lie elsewhere.
    async fn sweep(&self, placement: &Placement, node: u16) -> Result<()> {
        let mut from = Some(0);
        while let Some(first) = from {
            let found = self.objects_at(node, first).await?;
            from = found.last().and_then(|last| last.object.checked_add(1));
            for object in found {
                let ino = Ino(object.object);
                let spread = match self.volume().spread(ino).await {
                    // It is purged by itself, or nothing of a file.
                    Err(Errno::ESTALE | Errno::EINVAL) => continue,
                    spread => spread?,
                };
                let lies = placement.of(&spread.laid_out());
                if lies.iter().all(|member| member.node != node) {
                    let _turn = self.cleared(ino, NOBODY, Mode::Write).await?;
                    self.give_up(ino, None).await?;
                    let fence = self.delegations().raise(ino)?;
                    self.purge_at(node, ino.0, fence).await?;
                }
            }
        }
        Ok(())
    }

    /// Clients have had what a node acknowledged to them made durable there.
    async fn flushed_by_all(&self, node: u16) -> Result<()> {
        let now = self.net().now();
        let clients: Vec<u64> = {
            let table = self.clients();
            table.numbers().filter(|client| table.has_lease(*client, now)).collect()
        };
        let call = Call::Leaves { node };
        let asked =
            clients.into_iter().map(|client| self.ask(Peer::Client(client), &call, PATIENCE));
        let mut answers = join_all(asked.collect()).await.into_iter();
        answers.try_for_each(|answer| match answer? {
            Reply::Done => Ok(()),
            _ => Err(Errno::EPROTO),
        })
    }
}
