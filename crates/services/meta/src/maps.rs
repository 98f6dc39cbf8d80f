//! Which nodes there are, as the volume notes it: maps, of which the last one counts.
//!
//! ```text
//! note "map" | number u32, big-endian, from 1    value: node u16 ...
//! note "moved"                                   value: the map that all files lie by u32 | bytes
//!                                                a second that are moved at most u64
//! note "first"                                   the cluster's number u64 | node u16 ...
//! note "identity"                              what names the store, among all there are
//! note "out"                                     nodes that the server has taken out, as they were
//!                                                away for long: node u16 ...
//! ```
//!
//! Little-endian. Map 0 is what the volume was made with, by the note "first". Who
//! manages the cluster asks for a new map ([`Call::Place`]); files are moved after it
//! (`moving`). The page is `docs/internals/healing.md`.
//!
//! [`Call::Place`]: outboard_wire::shared::call::Call::Place

use core::net::{Ipv4Addr, SocketAddrV4};
use std::collections::BTreeSet;

use outboard_base::task::join_all;
use outboard_base::{Errno, Ino, Result};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::Kvfs;
use outboard_medium::Medium;
use outboard_wire::shared::call::{Call, Layout, Reply};
use outboard_wire::shared::{Coordinate, FAN_MAX, Peer};

use crate::nodes::QUICK;
use crate::{Meta, power};

const PREFIX: &[u8] = b"map";
const MOVED: &[u8] = b"moved";
const OUT: &[u8] = b"out";
const FIRST: &[u8] = b"first";
const IDENTITY: &[u8] = b"identity";
/// Of the notes of maps one is written at a time, under this number among the locks of notes.
const LOCK: Ino = Ino(u64::MAX - 1);
/// Inodes looked at at a time.
const LOOK: usize = 1024;

/// What was noted.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    /// By their numbers.
    pub(crate) all: Vec<Vec<u16>>,
    /// The map that all files lie by, or a later one.
    pub(crate) moved: u32,
    /// Bytes a second that are moved at most; 0: as many as can be.
    pub(crate) rate: u64,
    /// Nodes that the server has taken out.
    pub(crate) out: BTreeSet<u16>,
}

/// Reads what was noted. The first map is that of the nodes that the volume was made with.
pub(crate) async fn read_notes<K: Kv, M: Medium>(
    kvfs: &Kvfs<K, M>,
    made_with: &[u16],
) -> Result<Maps> {
    let mut maps = Maps { all: vec![made_with.to_vec()], ..Maps::default() };
    let mut after: Option<Vec<u8>> = None;
    loop {
        let some = kvfs.notes(PREFIX, after.as_deref()).await?;
        let Some((last, _)) = some.last() else { break };
        after = Some(last.clone());
        for (name, value) in &some {
            let number = name.get(PREFIX.len()..).and_then(|raw| raw.try_into().ok());
            let number = number.map(u32::from_be_bytes).ok_or(Errno::EUCLEAN)?;
            let (nodes, rest) = value.as_chunks();
            if usize::try_from(number) != Ok(maps.all.len()) || !rest.is_empty() {
                return Err(Errno::EUCLEAN);
            }
            maps.all.push(nodes.iter().copied().map(u16::from_le_bytes).collect());
        }
    }
    let moved = kvfs.notes(MOVED, None).await?;
    if let Some((_, value)) = moved.first() {
        let (map, rate) = value.split_first_chunk().ok_or(Errno::EUCLEAN)?;
        maps.moved = u32::from_le_bytes(*map);
        maps.rate = rate.first_chunk().map(|raw| u64::from_le_bytes(*raw)).ok_or(Errno::EUCLEAN)?;
    }
    let out = kvfs.notes(OUT, None).await?;
    if let Some((_, value)) = out.first() {
        let (nodes, _) = value.as_chunks();
        maps.out = nodes.iter().copied().map(u16::from_le_bytes).collect();
    }
    Ok(maps)
}

/// What names a store, in the store: made once, of the number that is drawn.
///
/// # Errors
/// What the store says, or who draws; `EUCLEAN` if it is none of a server's.
pub async fn identity<K: Kv, M: Medium>(
    kvfs: &Kvfs<K, M>,
    draw: impl FnOnce() -> Result<u64>,
) -> Result<String> {
    let notes = kvfs.notes(IDENTITY, None).await?;
    if let Some((_, value)) = notes.into_iter().find(|(name, _)| name == IDENTITY) {
        return String::from_utf8(value).map_err(|_| Errno::EUCLEAN);
    }
    let made = format!("{:016x}", draw()?);
    kvfs.note(IDENTITY, Some(made.as_bytes())).await?;
    Ok(made)
}

/// What a volume is of, by its notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// With these nodes.
    With(Vec<u16>),
    /// By another cluster, of this number.
    Elsewhere(u64),
    /// By a server that kept its nodes in a file of its directory.
    Before,
}

/// The nodes that a volume was made with, and that it is a cluster's. It keeps both: `known`, where
/// it was kept beside the volume, and else `described`, for one that is new.
///
/// # Errors
/// What the store says; `EUCLEAN` if it is none of a server's.
pub async fn made_with<K: Kv, M: Medium>(
    kvfs: &Kvfs<K, M>,
    cluster: u64,
    known: Option<Vec<u16>>,
    described: Vec<u16>,
) -> Result<Made> {
    if let Some((_, value)) = kvfs.notes(FIRST, None).await?.first() {
        let (of, nodes) = value.split_first_chunk().ok_or(Errno::EUCLEAN)?;
        let (of, (nodes, rest)) = (u64::from_le_bytes(*of), nodes.as_chunks());
        return match (of == cluster, rest.is_empty()) {
            (false, _) => Ok(Made::Elsewhere(of)),
            (true, false) => Err(Errno::EUCLEAN),
            (true, true) => Ok(Made::With(nodes.iter().copied().map(u16::from_le_bytes).collect())),
        };
    }
    let nodes = match known {
        Some(known) => known,
        None if power::was_served(kvfs).await? => return Ok(Made::Before),
        None => described,
    };
    let value = nodes.iter().flat_map(|node| node.to_le_bytes());
    let value: Vec<u8> = cluster.to_le_bytes().into_iter().chain(value).collect();
    kvfs.note(FIRST, Some(&value)).await?;
    Ok(Made::With(nodes))
}

/// The nodes on which files of a volume may lie, which was made with these.
///
/// # Errors
/// What the store says; `EUCLEAN` if it is none of a server's.
pub async fn nodes_in_use<K: Kv, M: Medium>(
    kvfs: &Kvfs<K, M>,
    made_with: &[u16],
) -> Result<BTreeSet<u16>> {
    let maps = read_notes(kvfs, made_with).await?;
    let from = usize::try_from(maps.moved).map_err(|_| Errno::EUCLEAN)?;
    let used = maps.all.get(from..).ok_or(Errno::EUCLEAN)?;
    Ok(used.iter().flatten().copied().collect())
}

/// On how many nodes a file of a layout lies, if there are enough.
fn count_of(layout: &Layout) -> usize {
    if layout.is_redundant() { layout.nodes() } else { 1 }
}

/// Why nodes cannot come or go, in words; or a failure.
#[derive(Debug)]
enum Refused {
    Because(String),
    Failed(Errno),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        Refused::Failed(errno)
    }
}

impl From<String> for Refused {
    fn from(why: String) -> Refused {
        Refused::Because(why)
    }
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Nodes come and go: the map's number, or why not, as JSON.
    pub(crate) async fn place(
        &self,
        joins: &[Coordinate],
        leaves: &[u16],
        rate: u64,
    ) -> Result<String> {
        let _one = self.notes().exclusive(LOCK).await;
        let (said, is_done) = self.place_alone(joins, leaves, rate).await?;
        if is_done {
            // Whoever asks says what becomes of a node that was taken out.
            let named = joins.iter().map(|node| node.node).chain(leaves.iter().copied());
            let mut out = self.chores().out().clone();
            named.for_each(|node| _ = out.remove(&node));
            self.note_out(out).await?;
        }
        Ok(said)
    }

    /// A node that was away for long has no files any more, and is put in again once it is back:
    /// that is noted first.
    pub(crate) async fn take_out(&self, node: u16) -> Result<String> {
        let _one = self.notes().exclusive(LOCK).await;
        let mut out = self.chores().out().clone();
        out.insert(node);
        self.note_out(out.clone()).await?;
        let (said, is_done) = self.place_alone(&[], &[node], 0).await?;
        if !is_done {
            out.remove(&node);
            self.note_out(out).await?;
        }
        Ok(said)
    }

    /// Under the lock of maps: what is said, and whether it is done.
    async fn place_alone(
        &self,
        joins: &[Coordinate],
        leaves: &[u16],
        rate: u64,
    ) -> Result<(String, bool)> {
        let placed = self.try_to_place(joins, leaves, rate).await;
        let placement = self.placement();
        self.volume().lies_on(placement.current().len(), placement.newest());
        match placed {
            Ok(map) => Ok((format!("{{\"map\":{map}}}"), true)),
            Err(Refused::Because(why)) => Ok((format!("{{\"refused\":\"{why}\"}}"), false)),
            Err(Refused::Failed(errno)) => Err(errno),
        }
    }

    /// All files lie by a map: if it is the newest still, no other is looked for.
    pub(crate) async fn all_are_moved(&self, map: u32) -> Result<()> {
        let _one = self.notes().exclusive(LOCK).await;
        if self.placement().newest() != map {
            return Err(Errno::EAGAIN);
        }
        self.note_moved(map, 0).await?;
        self.change_placement(|placement| placement.all_moved())
    }

    async fn note_out(&self, out: BTreeSet<u16>) -> Result<()> {
        if out == *self.chores().out() {
            return Ok(());
        }
        let value: Vec<u8> = out.iter().flat_map(|node| node.to_le_bytes()).collect();
        self.volume().note(OUT, Some(&value)).await?;
        *self.chores().out() = out;
        Ok(())
    }

    async fn try_to_place(
        &self,
        joins: &[Coordinate],
        leaves: &[u16],
        rate: u64,
    ) -> std::result::Result<u32, Refused> {
        let placement = self.placement();
        let is_there = |number: &u16| placement.current().contains(number);
        let new: Vec<Coordinate> =
            joins.iter().filter(|node| !is_there(&node.node)).copied().collect();
        let gone: Vec<u16> = leaves.iter().filter(|number| is_there(number)).copied().collect();
        if new.is_empty() && gone.is_empty() {
            // It was asked before, and the answer was lost.
            self.note_moved(placement.moved(), rate).await?;
            return Ok(placement.newest());
        }
        self.must_be_ours(&new).await?;
        let known = placement.all().iter();
        let stay = known.filter(|node| is_there(&node.node) && !gone.contains(&node.node));
        let nodes: Vec<Coordinate> = stay.chain(&new).copied().collect();
        self.must_be_wide_enough(nodes.len()).await?;
        self.must_have_room(&nodes, &gone).await?;
        let next = placement.with_map(&nodes)?;
        let map = next.newest();
        let value: Vec<u8> = next.current().iter().flat_map(|node| node.to_le_bytes()).collect();
        self.chores().moving().begin();
        // Before the map: files that lie by it are looked for as soon as it is there.
        self.note_moved(placement.moved(), rate).await?;
        self.volume().note(&[PREFIX, &map.to_be_bytes()].concat(), Some(&value)).await?;
        tracing::info!(map, nodes = ?next.current(), "other nodes: files are moved");
        // A node may have been found elsewhere meanwhile.
        self.change_placement(|placement| placement.with_map(&nodes))?;
        Ok(map)
    }

    /// Nodes that are to come answer, and are nobody else's.
    async fn must_be_ours(&self, new: &[Coordinate]) -> std::result::Result<(), Refused> {
        for node in new {
            let address = SocketAddrV4::new(Ipv4Addr::from(node.address), node.port);
            self.net().know(Peer::Node(node.node), address);
            let (told, _) = self.tell_keys(std::slice::from_ref(node)).await;
            if told == 0 {
                let number = node.node;
                return Err(Refused::Because(format!(
                    "node {number} at {address} does not answer, or has been another volume's: \
                     see that it runs, with an empty directory"
                )));
            }
        }
        Ok(())
    }

    /// No file may lie on more nodes than there would be.
    async fn must_be_wide_enough(&self, nodes: usize) -> std::result::Result<(), Refused> {
        let placement = self.placement();
        // Nothing wider is made meanwhile.
        self.volume().lies_on(nodes, placement.newest());
        let (mut after, mut files, mut widest) = (Ino(0), 0_u64, 0);
        let default = self.volume().layout(Ino::ROOT).await?;
        if let Some(count) = default.map(|layout| count_of(&layout))
            && count > nodes
        {
            (files, widest) = (1, count);
        }
        loop {
            let (some, last) = self.volume().laid_out(after, LOOK).await?;
            for one in some {
                let count = match one.is_file {
                    true => placement.of(&one).len(),
                    false => count_of(&one.layout),
                };
                if one.is_file && count >= FAN_MAX && one.layout.is_redundant() {
                    return Err(Refused::Because(format!(
                        "inode {} lies on {count} nodes: such a file cannot be moved",
                        one.ino
                    )));
                }
                if count > nodes {
                    files += 1;
                    widest = widest.max(count);
                }
            }
            let Some(last) = last else { break };
            after = last;
        }
        if files == 0 {
            return Ok(());
        }
        Err(Refused::Because(format!(
            "{files} files and directories lie on up to {widest} nodes each, and {nodes} would be \
             left: add nodes before"
        )))
    }

    /// What lies on nodes that are to go fits on the others, as far as they say.
    async fn must_have_room(
        &self,
        nodes: &[Coordinate],
        gone: &[u16],
    ) -> std::result::Result<(), Refused> {
        let of = async |numbers: Vec<u16>| {
            let asked =
                numbers.into_iter().map(|node| self.ask(Peer::Node(node), &Call::Space, QUICK));
            let answers = join_all(asked.collect()).await.into_iter();
            answers.fold((0_u64, 0_u64), |(used, free), answer| match answer {
                Ok(Reply::Space { free: its, capacity }) => {
                    (used.saturating_add(capacity.saturating_sub(its)), free.saturating_add(its))
                }
                _ => (used, free),
            })
        };
        let (used, _) = of(gone.to_vec()).await;
        let (_, free) = of(nodes.iter().map(|node| node.node).collect()).await;
        if used <= free {
            return Ok(());
        }
        Err(Refused::Because(format!(
            "{used} bytes would have to move, and the other nodes have room for {free}: add nodes, \
             or remove files, before"
        )))
    }

    /// All files lie by a map, or a later one.
    pub(crate) async fn note_moved(&self, map: u32, rate: u64) -> Result<()> {
        let value = [&map.to_le_bytes()[..], &rate.to_le_bytes()].concat();
        self.volume().note(MOVED, Some(&value)).await?;
        self.chores().moving().set_rate(rate);
        Ok(())
    }
}
