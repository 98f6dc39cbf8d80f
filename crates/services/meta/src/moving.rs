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
use outboard_base::{Errno, Ino, Result, Time};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::spread::{LaidOut, Spread};
use outboard_medium::Medium;
use outboard_wire::shared::call::{Call, Grant, Mode, Reply};
use outboard_wire::shared::{Coordinate, DATA_MAX, Peer};

use crate::Meta;
use crate::copies::{SLICE, STRIP};
use crate::delegations::Held;
use crate::grants::NOBODY;
use crate::newest::VOLUME;
use crate::nodes::{PATIENCE, QUICK};
use crate::placement::Placement;
use crate::stripes::is_coded;

/// Inodes looked at at a time.
const LOOK: usize = 1024;
/// Strips of a file that are moved at a time.
const ABREAST: usize = 16;
/// Bytes of a file for which capabilities are signed once.
const PART: u64 = 256 << 20;
/// How long it is before a file is tried again that could not be moved.
const AGAIN: Duration = Duration::from_secs(10);
/// The longest between two looks at all files.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How often the rate is looked at.
const RATE_LOOK: Duration = Duration::from_secs(1);
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
    /// How long it is before all files are looked at again.
    pause: Duration,
    /// All files lay by this map the last time.
    clean: Option<u32>,
}

impl Moving {
    /// Nothing yet; so many bytes a second.
    pub(crate) fn new(rate: u64) -> Moving {
        Moving { rate, ..Moving::default() }
    }

    /// Files are to lie elsewhere.
    pub(crate) fn begin(&mut self) {
        (self.pause, self.why) = (Duration::ZERO, None);
    }

    /// How long it is before all files are looked at again: much longer than that takes.
    pub(crate) fn pause(&self) -> Duration {
        self.pause
    }

    /// So many from now on.
    pub(crate) fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }

    /// So many strips were given.
    fn gave(&mut self, strips: usize) {
        self.bytes = self.bytes.saturating_add(STRIP.saturating_mul(strips as u64));
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
    /// Nodes that are away for long are taken out, if that is wished.
    pub(crate) async fn heal_by_itself(&self) {
        if let Some(time) = self.options().heal_after
            && let Err(errno) = self.heal_elsewhere(time).await
        {
            tracing::debug!(%errno, "nodes that are away for long");
        }
    }

    /// Moves what is to be moved: who lacks a copy first. One round over all files. A file that is
    /// being made as a map comes may be missed, so two rounds find nothing before it ends.
    pub(crate) async fn move_files(&self) {
        let placement = self.placement();
        if !placement.is_moving() {
            return;
        }
        let map = placement.newest();
        let begun = self.net().now();
        let ended = match self.move_round(&placement).await {
            Ok(0) if self.chores().moving().clean.replace(map) == Some(map) => {
                self.end_moving(&placement).await
            }
            Ok(0) => return,
            Ok(left) => {
                tracing::info!(left, "files that are not moved yet");
                Err(Errno::EAGAIN)
            }
            Err(errno) => Err(errno),
        };
        let took = self.net().now().since(begun);
        let mut chores = self.chores();
        let moving = chores.moving();
        moving.pause = (took * 10).min(PAUSE_MAX);
        match ended {
            Ok(()) => {
                (moving.why, moving.clean) = (None, None);
                tracing::info!(map, "all files are moved");
            }
            Err(errno) if moving.left == 0 => {
                tracing::info!(%errno, "files are moved; what they left is not gone yet");
            }
            Err(_) => {}
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
                    let (now, target) = (placement.of(&one), placement.target(&one));
                    if !now.is_empty() && are_same(&now, &target) {
                        continue;
                    }
                    let is_in_danger = one.layout.is_redundant() && self.are_away(&now);
                    if is_in_danger || !in_danger {
                        left += u64::from(!self.moves(&one, &now, &target).await);
                    }
                }
                let Some(last) = last else { break };
                after = last;
            }
            self.chores().moving().left = left;
        }
        Ok(left)
    }

    /// Whether one of some nodes does not answer.
    fn are_away(&self, nodes: &[Coordinate]) -> bool {
        let (chores, now) = (self.chores(), self.net().now());
        nodes.iter().any(|node| chores.is_away(node.node, now))
    }

    /// Whether a file is where it is to be, or gone.
    async fn moves(&self, file: &LaidOut, now: &[Coordinate], target: &[Coordinate]) -> bool {
        let ino = file.ino;
        if !self.chores().is_due_again(ino, self.net().now()) {
            return false;
        }
        // Nobody is kept from it for nothing.
        let needs_all = !file.layout.is_redundant() && self.are_away(now);
        if needs_all || self.are_away(&without(target, now)) {
            let why = format!("inode {ino}: one of its nodes is away");
            self.chores().moving().why = Some(why);
            return false;
        }
        let begun = self.net().now();
        let before = self.chores().moving().bytes;
        let mut slice = SLICE;
        let moved = loop {
            match self.move_file(ino, slice).await {
                Err(Errno::EINPROGRESS) => {
                    self.chores().moving().gave(slice);
                    slice = slice.saturating_mul(2);
                    self.net().sleep(GIVE_WAY).await;
                    self.keep_to_rate(before, begun).await;
                }
                moved => break moved,
            }
        };
        self.delegations().let_go(ino);
        if moved == Ok(true)
            && file.layout.is_redundant()
            && let Ok(spread) = self.volume().spread(ino).await
        {
            // Slices were counted as whole ones; this is what came of them.
            let joiners = without(target, now).len() as u64;
            let bytes = joiners.saturating_mul(spread.attr.blocks).saturating_mul(512);
            self.chores().moving().bytes = before.saturating_add(bytes);
        }
        self.keep_to_rate(before, begun).await;
        match moved {
            Ok(true) => self.chores().moving().files += 1,
            Ok(false) => self.cannot_move(ino, "fewer nodes would have all of it"),
            Err(Errno::ESTALE) => return true,
            // Somebody else was at it.
            Err(Errno::EAGAIN) => return false,
            Err(errno) => {
                tracing::warn!(%ino, %errno, "a file cannot be moved; tried again");
                self.cannot_move(ino, errno.name());
            }
        }
        moved.unwrap_or(false)
    }

    /// It is tried again later.
    fn cannot_move(&self, ino: Ino, why: &str) {
        let now = self.net().now();
        let mut chores = self.chores();
        chores.try_later(ino, now, AGAIN);
        chores.moving().why = Some(format!("inode {ino}: {why}"));
    }

    /// Waits until what was moved since took as long as it is to take, by the rate as it is then.
    async fn keep_to_rate(&self, before: u64, begun: Time) {
        loop {
            let moving = self.chores().moving().clone();
            let moved = moving.bytes.saturating_sub(before);
            let Some(millis) = moved.saturating_mul(1000).checked_div(moving.rate) else { return };
            let left = begun.after(Duration::from_millis(millis)).since(self.net().now());
            if left.is_zero() {
                return;
            }
            self.net().sleep(left.min(RATE_LOOK)).await;
        }
    }

    async fn move_file(&self, ino: Ino, slice: usize) -> Result<bool> {
        let spread = self.volume().spread(ino).await?;
        if spread.layout.is_redundant() {
            self.refill(ino, slice).await?;
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
            if self.are_away(std::slice::from_ref(&node)) {
                continue;
            }
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
        // Who joins stripes has nothing of another place's.
        let may_lack =
            |node: &Coordinate| have_all.contains(&node.node) || !is_coded(&filled.layout);
        let all_may = without(&target, &now).iter().all(may_lack);
        if !all_may
            || are_same(&now, &target)
            || count(&target) < count(&now).max(filled.layout.suffice())
        {
            self.volume().set_lacking(ino, filled.lacking).await?;
            return Ok(Vec::new());
        }
        let lacks = |(rank, node): (usize, &Coordinate)| {
            if have_all.contains(&node.node) { 0 } else { 1_u16 << rank }
        };
        let lacking = target.iter().enumerate().map(lacks).fold(0, |all, rank| all | rank);
        self.volume().moved(&filled.laid_out(), &numbers(&target), lacking).await?;
        Ok(without(&now, &target))
    }

    /// Nodes forget a file that they have no part of any more; those that do not answer do later.
    /// Under a fence above its last seal: one that comes again is not to make it anew.
    pub(crate) async fn forget_at(&self, nodes: &[Coordinate], ino: Ino) {
        let Ok(fence) = self.delegations().raise(ino) else { return };
        let there = nodes.iter().filter(|node| !self.are_away(std::slice::from_ref(*node)));
        let asked = there.map(|node| self.purge_at(node.node, ino.0, fence));
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
        if are_same(&now, &target) {
            return Ok(true);
        }
        if spread.layout.is_redundant() {
            return Err(Errno::EAGAIN);
        }
        let (joiners, leavers) = (without(&target, &now), without(&now, &target));
        let fence = self.delegations().raise(ino)?;
        let all: Vec<Coordinate> = now.iter().chain(&joiners).copied().collect();
        self.tell_keys(&all).await;
        self.seal_at(&joiners, ino.0, fence).await?;
        let found = self.seal_at(&now, ino.0, fence).await?;
        let end = found.iter().map(|object| object.end).max().unwrap_or(0);
        let boots = self.boots_of(&joiners).await?;
        let held = Held { mode: Mode::Write, fence };
        // They may have some of it from before, or of another time.
        let fresh = self.grant_at(NOBODY, &spread, held, joiners.clone()).await?;
        self.in_time(self.data().hole(&fresh, 0..u64::MAX)).await?;
        let moved = self.copy_shares(&spread, held, (&now, &target), end).await?;
        // What was acknowledged before is durable where it is, or was lost there before: who wrote
        // it hears so there.
        self.boots_of(&now).await?;
        if self.boots_of(&joiners).await? != boots {
            return Err(Errno::EIO);
        }
        let change = self.changes().exclusive(ino).await;
        if !self.delegations().is_last(ino, fence) {
            return Err(Errno::EAGAIN);
        }
        self.volume().moved(&spread.laid_out(), &numbers(&target), 0).await?;
        // What was put aside behind the end is not there any more: it is counted again.
        self.delegations().must_resolve(ino);
        drop(change);
        self.chores().moving().bytes += moved;
        self.forget_at(&leavers, ino).await;
        let _resolved_later = self.try_to_resolve(ino).await;
        Ok(true)
    }

    /// What nodes have answered is durable; in which boots they are.
    async fn boots_of(&self, nodes: &[Coordinate]) -> Result<Vec<u64>> {
        let flush = Call::FLUSH;
        let asked = nodes.iter().map(|node| self.ask_node(node.node, &flush)).collect();
        let answers = join_all(asked).await.into_iter().map(|answer| match answer? {
            Reply::Number(boot) => Ok(boot),
            _ => Err(Errno::EPROTO),
        });
        answers.collect()
    }

    /// Copies the strips whose nodes differ, of a file with so many bytes, which need not end where
    /// a run of data does; how many bytes. Capabilities are signed anew for each part of it.
    async fn copy_shares(
        &self,
        spread: &Spread,
        held: Held,
        (now, target): (&[Coordinate], &[Coordinate]),
        end: u64,
    ) -> Result<u64> {
        let strip = u64::from(spread.layout.strip.clamp(1, DATA_MAX));
        let moves: Vec<bool> =
            now.iter().zip(target).map(|(was, is)| was.node != is.node).collect();
        let is_moved = |at: u64| {
            let share = (at / strip).checked_rem(moves.len() as u64);
            share
                .and_then(|share| moves.get(usize::try_from(share).ok()?))
                .copied()
                .unwrap_or(false)
        };
        let (mut at, mut moved) = (0, 0);
        while at < end {
            let from = &self.grant_at(NOBODY, spread, held, now.to_vec()).await?;
            let to = &Grant { nodes: target.to_vec(), ..from.clone() };
            let (runs, known) = self.in_time(self.data().runs(from, at)).await?;
            let known = known.min(at.saturating_add(PART)).min(end);
            let runs = runs.into_iter().map(|run| run.start.max(at)..run.end.min(known));
            let pieces = runs.flat_map(|run| {
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
                Ok(()) => self.ask_node(node.node, &Call::FLUSH).await.map(drop),
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
            let own = self.data().leaves(Peer::Node(node.node));
            let _or_lost = self.within(PATIENCE, own).await;
            self.flushed_by_all(node.node).await?;
        }
        self.all_are_moved(placement.newest()).await?;
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
            let to_purge = self.to_purge().await?;
            for object in found.into_iter().filter(|object| object.object != VOLUME) {
                let ino = Ino(object.object);
                if to_purge.contains(&ino.0) || self.lies_at(placement, node, ino).await? {
                    continue;
                }
                let _turn = self.cleared(ino, NOBODY, Mode::Write).await?;
                self.give_up(ino, None).await?;
                // In its turn it is looked at again: nothing but that counts.
                if !self.lies_at(placement, node, ino).await? {
                    let fence = self.delegations().raise(ino)?;
                    self.purge_at(node, ino.0, fence).await?;
                }
                self.delegations().let_go(ino);
            }
        }
        Ok(())
    }

    /// Whether a node is to have an object. `EAGAIN` if there is another map by now.
    async fn lies_at(&self, placement: &Placement, node: u16, ino: Ino) -> Result<bool> {
        if self.placement().newest() != placement.newest() {
            return Err(Errno::EAGAIN);
        }
        match self.volume().spread(ino).await {
            // Of a file that is gone, and was purged while this node was no part of it.
            Err(Errno::ESTALE) => Ok(false),
            Err(Errno::EINVAL) => Ok(true),
            spread => {
                let lies = placement.of(&spread?.laid_out());
                Ok(lies.is_empty() || lies.iter().any(|member| member.node == node))
            }
        }
    }

    /// Clients have had what a node acknowledged to them made durable there, or know that it may
    /// be lost. Who has no lease has lost what it had of files.
    async fn flushed_by_all(&self, node: u16) -> Result<()> {
        let now = self.net().now();
        let clients: Vec<u64> = {
            let table = self.clients();
            table.numbers().filter(|client| table.has_lease(*client, now)).collect()
        };
        let call = &Call::Leaves { node };
        let asked = clients.into_iter().map(|client| async move {
            let answer = self.ask(Peer::Client(client), call, PATIENCE).await;
            (client, answer)
        });
        for (client, answer) in join_all(asked.collect()).await {
            let is_silent = answer == Err(Errno::EIO);
            if is_silent && self.clients().has_lease(client, self.net().now()) {
                return Err(Errno::EAGAIN);
            }
        }
        Ok(())
    }
}
