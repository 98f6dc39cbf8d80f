//! The data path: writes, reads and holes, straight to the nodes (NetDFS III and V; rules R1 to R4
//! for who writes).
//!
//! A write is cut at the borders of strips; strip `i` lies on node `i mod n` of the grant. A piece
//! has a version (the grant's fence, a sequence counted here) and is sent under that version until
//! somebody answers for it: a node takes it once, however often it comes. One write of a strip is
//! unacknowledged at a time, and it carries the last acknowledged sequence of its strip.
//!
//! A file with copies lies whole on each node of its grant, its *members*. A write goes to the
//! first, who passes it on, and is answered when all have it; any member answers a read; a hole is
//! asked of each.
//!
//! A file with parities lies as stripes on its members: `stripes`.
//!
//! A node that does not answer, or has no room now, is asked again, for as long as it takes:
//! programs wait, as with any file system on a network. What ends that is a refusal, and, of a
//! client, that its key is revoked. Where the node is now the client asks meanwhile (`places`). A
//! file with copies can go on without a member that does not answer: who asks is told so, and asks
//! the server.

mod durable;
mod flushes;
mod map;
mod stripes;

use core::net::{Ipv4Addr, SocketAddrV4};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outboard_base::Ino;
use outboard_base::limits::BLOCK;
use outboard_base::task::{RangeLocks, try_join_abreast};
use outboard_codec::crc32c;
use outboard_flow::Net;
use outboard_volume::Fill;
use outboard_wire::shared::call::{Grant, STRIP_MIN};
use outboard_wire::shared::{
    Answer, Brings, Coordinate, Coordinates, DATA_MAX, Head, Heads, HoleHead, Peer, RESERVE_MAX,
    ReadHead, Reason, Role, Share, Strategy, Target, WriteHead,
};

use self::flushes::Flushes;
use self::stripes::Streams;
pub use self::stripes::member_end;
pub(crate) use self::stripes::{is_coded, is_stripe};
use crate::places::Places;
use crate::unsynced::Unsynced;
use crate::versions::Versions;

/// Messages under way at a time, for one call.
const ABREAST: usize = 16;
/// Runs of bytes that are written at a time.
const RUNS: usize = 4;
/// The first pause before a node is asked again, and the longest.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Why data was not written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataError {
    /// A higher fence is in force: somebody else may have the file.
    Fenced,
    /// The capability's time is over.
    Expired,
    /// A node does not speak with this part.
    Gone,
    /// A node refuses it, for another reason than those that stand here.
    Refused(Reason),
    /// A node has no space left.
    Full,
    /// A medium failed, or what came back is not what was asked for.
    Medium,
    /// Who have copies may not have the same, or one of them is away: what they have must be
    /// decided first.
    Undecided,
    /// Nodes cannot do this for such a file.
    Unsupported,
}

impl From<Reason> for DataError {
    fn from(reason: Reason) -> DataError {
        match reason {
            Reason::Fence => DataError::Fenced,
            Reason::Expired => DataError::Expired,
            Reason::Full => DataError::Full,
            Reason::Medium => DataError::Medium,
            Reason::Order | Reason::Filling | Reason::Unreached => DataError::Undecided,
            reason => DataError::Refused(reason),
        }
    }
}

/// The data path alone. Shared by all who write and read.
pub struct Data<N> {
    net: N,
    /// Of an object: strips, by numbers times [`BLOCK`].
    strips: RangeLocks,
    versions: Versions,
    unsynced: Unsynced,
    flushes: Flushes,
    places: Places,
    streams: Streams,
    /// Nodes refuse all this asks, for good.
    revoked: AtomicBool,
}

/// A part of a range that lies in one strip.
struct Piece {
    strip: u64,
    range: Range<u64>,
}

impl<N: Net> Data<N> {
    /// A data path over `net`.
    pub fn new(net: N) -> Data<N> {
        Data::with(net, Streams::default())
    }

    /// The same, that has no nodes compute parities, but does so itself.
    pub fn without_streams(net: N) -> Data<N> {
        Data::with(net, Streams::none())
    }

    fn with(net: N, streams: Streams) -> Data<N> {
        Data {
            net,
            strips: RangeLocks::default(),
            versions: Versions::default(),
            unsynced: Unsynced::default(),
            flushes: Flushes::default(),
            places: Places::default(),
            streams,
            revoked: AtomicBool::new(false),
        }
    }

    /// What it goes over.
    pub fn net(&self) -> &N {
        &self.net
    }

    /// Writes bytes at `at`. Ends when nodes have acknowledged all of them; with copies, when all
    /// members have.
    ///
    /// # Errors
    /// [`DataError`]; then it is not known which strips were written.
    pub async fn write(&self, grant: &Grant, at: u64, bytes: &[u8]) -> Result<(), DataError> {
        if is_coded(grant) {
            return Box::pin(self.write_stripes(grant, &[(at, bytes)])).await;
        }
        let end = at.checked_add(bytes.len() as u64).ok_or(DataError::Refused(Reason::Range))?;
        let each = pieces(grant, at..end).map(|piece| async move {
            let from = usize::try_from(piece.range.start - at).unwrap_or(usize::MAX);
            let to = usize::try_from(piece.range.end - at).unwrap_or(usize::MAX);
            self.write_piece(grant, &piece, bytes.get(from..to).unwrap_or_default()).await
        });
        try_join_abreast(ABREAST, each).await.map(drop)
    }

    /// The same, of bytes at several places that do not overlap.
    ///
    /// # Errors
    /// As of [`Data::write`].
    pub async fn write_runs(&self, grant: &Grant, runs: &[(u64, &[u8])]) -> Result<(), DataError> {
        if is_coded(grant) {
            return Box::pin(self.write_stripes(grant, runs)).await;
        }
        let each = runs.iter().map(|(at, bytes)| self.write(grant, *at, bytes));
        try_join_abreast(RUNS, each).await.map(drop)
    }

    async fn write_piece(
        &self,
        grant: &Grant,
        piece: &Piece,
        bytes: &[u8],
    ) -> Result<(), DataError> {
        let object = grant.capability.object;
        let first = self.writes_to(grant, piece.strip)?;
        // Of one copy there is nobody behind the first.
        let members = match is_redundant(grant) {
            true => self.nodes(grant),
            false => vec![first],
        };
        let behind = members.get(1..).unwrap_or_default();
        self.can_remember(object, &members).await?;
        let strips = piece.strip..piece.strip + 1;
        let _alone = self.strips.exclusive_on(Ino(object), places(strips.clone())).await;
        let begun = self.versions.begin_write(object, grant.capability.fence, piece.strip)?;
        // As they are now: those behind the first do not say.
        let boots: Vec<_> = behind.iter().map(|peer| self.unsynced.boot(*peer)).collect();
        let coordinates = if is_redundant(grant) { &grant.nodes[..] } else { &[] };
        let write = WriteHead {
            strategy: grant.capability.strategy,
            rank: 0,
            k: grant.capability.k,
            unit: 0,
            role: Role::Data,
            brings: Brings::Bytes,
            offset: piece.range.start,
            bytes: u32::try_from(bytes.len()).map_err(|_| DataError::Refused(Reason::Range))?,
            sequence: begun.sequence,
            previous: begun.previous,
            crc: crc32c(bytes),
            session: 0,
            number: 0,
            lane: 0,
            coordinates: Coordinates::new(coordinates)
                .map_err(|_| DataError::Refused(Reason::Invalid))?,
        };
        let heads = heads(grant, write.bytes, begun.settled, Target::Write(write));
        let (answer, _) = self.ask(first, &heads, bytes).await?;
        self.unsynced.wrote(first, fenced(grant), answer.boot, bears(grant));
        for (peer, boot) in behind.iter().zip(boots) {
            self.unsynced.wrote(*peer, fenced(grant), boot.unwrap_or_default(), bears(grant));
        }
        begun.done();
        self.takes(grant, first, &answer, false);
        Ok(())
    }

    /// What is written to these from now on is remembered until they have flushed it: who must be
    /// flushed before is. Of several the boots must be known, as one answers for all.
    async fn can_remember(&self, object: u64, members: &[Peer]) -> Result<(), DataError> {
        if let [first] = members {
            let must = self.unsynced.is_crowded(*first);
            return if must { self.flush(std::iter::once(*first)).await } else { Ok(()) };
        }
        let must =
            |peer: &Peer| self.unsynced.is_crowded(*peer) || self.unsynced.boot(*peer).is_none();
        let flushed: Vec<Peer> = members.iter().copied().filter(must).collect();
        if flushed.is_empty() {
            return Ok(());
        }
        self.flush_members(object, flushed.into_iter()).await
    }

    /// Reads `len` bytes at `at`; what was never written is zero.
    ///
    /// # Errors
    /// [`DataError`].
    pub async fn read(&self, grant: &Grant, at: u64, len: usize) -> Result<Vec<u8>, DataError> {
        if is_coded(grant) {
            return Box::pin(self.read_chunks(grant, at, len)).await;
        }
        let end = at.checked_add(len as u64).ok_or(DataError::Refused(Reason::Range))?;
        let each = pieces(grant, at..end).map(|piece| async move {
            let bytes = u32::try_from(piece.range.end - piece.range.start)
                .map_err(|_| DataError::Refused(Reason::Range))?;
            let read = ReadHead { offset: piece.range.start, bytes, unit: 0, map: false };
            let (_, _, data) = self.ask_any(grant, piece.strip, read).await?;
            if data.len() == bytes as usize { Ok((piece, data)) } else { Err(DataError::Medium) }
        });
        let read = try_join_abreast(ABREAST, each).await?;
        let mut all = vec![0; len];
        for (piece, data) in read {
            let from = usize::try_from(piece.range.start - at).unwrap_or(usize::MAX);
            let place = all.get_mut(from..from.saturating_add(data.len()));
            place.ok_or(DataError::Medium)?.copy_from_slice(&data);
        }
        Ok(all)
    }

    /// The bytes of `range` are zero from now on; one that ends at [`u64::MAX`] is all there is.
    ///
    /// # Errors
    /// [`DataError`]; then it is not known where they are.
    pub async fn hole(&self, grant: &Grant, range: Range<u64>) -> Result<(), DataError> {
        if is_coded(grant) {
            return Box::pin(self.cut_stripes(grant, range)).await;
        }
        self.change(grant, range, false).await
    }

    /// Space is put aside for the bytes of `range` that are not there. The caller has the file
    /// alone.
    ///
    /// # Errors
    /// [`DataError`]; then it is not known for which of them it is.
    async fn reserve(&self, grant: &Grant, range: Range<u64>) -> Result<(), DataError> {
        let strip = strip_len(grant);
        let most = RESERVE_MAX / strip * strip;
        let mut at = range.start;
        while at < range.end {
            let end = (at / strip * strip).saturating_add(most).min(range.end);
            self.change(grant, at..end, true).await?;
            at = end;
        }
        Ok(())
    }

    /// Makes zeros, or puts space aside: for all of it, or [`DataError::Full`] before anything. The
    /// caller has the file alone.
    ///
    /// # Errors
    /// [`DataError::Unsupported`] where space cannot be put aside. [`DataError`]; unless it is full
    /// it is not known for which bytes it is done.
    pub async fn fill(
        &self,
        grant: &Grant,
        fill: Fill,
        range: Range<u64>,
    ) -> Result<(), DataError> {
        if fill != Fill::Punch && is_coded(grant) {
            return Err(DataError::Unsupported);
        }
        if fill != Fill::Punch {
            let wanted = (range.end - range.start).saturating_sub(self.count(grant).await?);
            if wanted > self.free(grant).await? {
                return Err(DataError::Full);
            }
        }
        if fill != Fill::Allocate {
            self.hole(grant, range.clone()).await?;
        }
        if fill != Fill::Punch {
            self.reserve(grant, range).await?;
        }
        Ok(())
    }

    /// A hole, or space put aside.
    async fn change(&self, grant: &Grant, range: Range<u64>, aside: bool) -> Result<(), DataError> {
        if range.is_empty() {
            return Ok(());
        }
        let (object, strip) = (grant.capability.object, strip_len(grant));
        let strips = range.start / strip..range.end.div_ceil(strip);
        let _alone = self.strips.exclusive_on(Ino(object), places(strips.clone())).await;
        let begun = self.versions.begin(object, grant.capability.fence, strips.clone())?;
        let hole = HoleHead {
            offset: range.start,
            end: range.end,
            sequence: begun.sequence,
            previous: begun.previous,
            session: 0,
            number: 0,
            lane: 0,
            share: None,
        };
        // Of a hole the node of a strip passes over what is not in its own.
        let count = match is_redundant(grant) {
            true => grant.nodes.len() as u64,
            false => (strips.end - strips.start).min(grant.nodes.len() as u64),
        };
        let settled = begun.settled;
        let each = (strips.start..strips.start.saturating_add(count)).map(|place| async move {
            let share = if aside { Some(share(grant, place)?) } else { None };
            let heads = heads(grant, 0, settled, Target::Hole(HoleHead { share, ..hole }));
            let peer = self.node(grant, place)?;
            let (answer, _) = self.ask(peer, &heads, &[]).await?;
            self.takes(grant, peer, &answer, true);
            Ok::<_, DataError>((peer, answer.boot))
        });
        for (peer, boot) in try_join_abreast(ABREAST, each).await? {
            self.unsynced.wrote(peer, fenced(grant), boot, bears(grant));
        }
        begun.done();
        Ok(())
    }

    /// Whom a write of a strip is sent to.
    fn writes_to(&self, grant: &Grant, strip: u64) -> Result<Peer, DataError> {
        self.node(grant, if is_redundant(grant) { 0 } else { strip })
    }

    /// The node that a strip lies on, or one of those that have it; known from now on.
    fn node(&self, grant: &Grant, strip: u64) -> Result<Peer, DataError> {
        let count = grant.nodes.len() as u64;
        let at = strip.checked_rem(count).and_then(|at| usize::try_from(at).ok());
        let coordinate = at.and_then(|at| grant.nodes.get(at));
        let coordinate = coordinate.ok_or(DataError::Refused(Reason::Invalid))?;
        Ok(self.know(grant, coordinate))
    }

    /// All nodes of a grant, known from now on.
    pub(crate) fn nodes(&self, grant: &Grant) -> Vec<Peer> {
        grant.nodes.iter().map(|coordinate| self.know(grant, coordinate)).collect()
    }

    fn know(&self, grant: &Grant, coordinate: &Coordinate) -> Peer {
        let peer = Peer::Node(coordinate.node);
        let said = SocketAddrV4::new(Ipv4Addr::from(coordinate.address), coordinate.port);
        self.net.know(peer, self.places.of(peer, said, grant.capability.expires));
        peer
    }

    /// Nodes that did not answer since this was asked.
    pub(crate) fn take_silent(&self) -> BTreeSet<Peer> {
        self.places.take_silent()
    }

    /// Nodes take this part's key no more: who waits for one hears so.
    pub(crate) fn is_revoked(&self) {
        self.revoked.store(true, Ordering::Relaxed);
    }

    /// Whether it makes sense to ask a node.
    fn may_ask(&self) -> Result<(), DataError> {
        let is_revoked = self.revoked.load(Ordering::Relaxed);
        if is_revoked { Err(DataError::Refused(Reason::Revoked)) } else { Ok(()) }
    }

    /// Reads at any node that has a strip, or a share: who was silent of late comes last. Who
    /// asked, the answer, its data.
    async fn ask_any(
        &self,
        grant: &Grant,
        place: u64,
        read: ReadHead,
    ) -> Result<(Peer, Answer, Vec<u8>), DataError> {
        let heads = heads(grant, 0, 0, Target::Read(read));
        if !is_redundant(grant) {
            let peer = self.node(grant, place)?;
            return self.ask(peer, &heads, &[]).await.map(|(answer, data)| (peer, answer, data));
        }
        let count = grant.nodes.len() as u64;
        let mut members = (place..place.saturating_add(count))
            .map(|place| self.node(grant, place))
            .collect::<Result<Vec<Peer>, DataError>>()?;
        let mut pause = PAUSE;
        loop {
            self.may_ask()?;
            let now = self.net.now();
            members.sort_by_key(|peer| self.places.was_silent(*peer, now));
            let mut refused = None;
            for peer in &members {
                match self.net.request(*peer, &heads, &[]).await {
                    Ok((Answer { outcome: Err(Reason::Busy), .. }, _)) => {}
                    // Another may have it whole.
                    Ok((Answer { outcome: Err(reason @ Reason::Filling), .. }, _)) => {
                        refused = Some(reason.into());
                    }
                    Ok((Answer { outcome: Err(reason @ Reason::Medium), .. }, _)) => {
                        refused = Some(reason.into());
                    }
                    Ok((Answer { outcome: Err(reason), .. }, _)) => return Err(reason.into()),
                    Ok((answer, data)) => return Ok((*peer, answer, data)),
                    Err(outboard_flow::Gone::Refused) => return Err(DataError::Gone),
                    Err(_) => self.places.is_silent(*peer, self.net.now()),
                }
            }
            if let Some(reason) = refused {
                return Err(reason);
            }
            self.pause(&mut pause).await;
        }
    }

    /// Asks until there is an answer.
    async fn ask(
        &self,
        peer: Peer,
        heads: &Heads,
        data: &[u8],
    ) -> Result<(Answer, Vec<u8>), DataError> {
        let mut pause = PAUSE;
        let is_alone = heads.capability.strategy == Strategy::Single;
        loop {
            self.may_ask()?;
            match self.net.request(peer, heads, data).await {
                Ok((Answer { outcome: Err(Reason::Busy), .. }, _)) => {}
                // Others take it: whether the file goes on without this one is to be decided.
                Ok((Answer { outcome: Err(Reason::Unreached | Reason::Medium), rank, .. }, _))
                    if !is_alone =>
                {
                    self.cannot_take(heads, peer, rank);
                    return Err(DataError::Undecided);
                }
                Ok((Answer { outcome: Err(reason), .. }, _)) => return Err(reason.into()),
                Ok(answered) => return Ok(answered),
                Err(outboard_flow::Gone::Refused) => return Err(DataError::Gone),
                Err(_) => {
                    self.places.is_silent(peer, self.net.now());
                    if !is_alone {
                        if let Peer::Node(node) = peer {
                            let now = self.net.now();
                            self.places.is_unreached(heads.capability.object, node, now);
                        }
                        return Err(DataError::Undecided);
                    }
                }
            }
            self.pause(&mut pause).await;
        }
    }

    /// A member was not reached by the one that passes writes on to it, or its medium fails. Of a
    /// stream it may be one that had no room for its unit: who brings each its unit finds out.
    fn cannot_take(&self, heads: &Heads, peer: Peer, rank: u8) {
        let node = match (&heads.target, peer) {
            (Target::Write(WriteHead { strategy: Strategy::Parity, .. }), _) => None,
            (Target::Write(write), _) if write.strategy != Strategy::Single => {
                write.coordinates.as_slice().get(usize::from(rank)).map(|member| member.node)
            }
            (_, Peer::Node(node)) => Some(node),
            _ => None,
        };
        if let Some(node) = node {
            self.places.is_unreached(heads.capability.object, node, self.net.now());
        }
    }

    /// Who has a copy of an object and was not reached of late, from here or by another who has
    /// one, or whose medium failed, since this was asked.
    pub fn take_unreached(&self, object: u64) -> Option<u16> {
        self.places.take_unreached(object, self.net.now())
    }

    async fn pause(&self, pause: &mut Duration) {
        self.net.sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSE_MAX);
    }
}

fn heads(grant: &Grant, data: u32, settled: u32, target: Target) -> Heads {
    let settled = if is_redundant(grant) { settled } else { 0 };
    let head = Head { request: 0, data, epoch: 1, settled, hop: 0 };
    Heads { head, capability: grant.capability, target }
}

/// Whether a file is to be had without one of the nodes of its grant.
pub(crate) fn is_redundant(grant: &Grant) -> bool {
    grant.capability.strategy != Strategy::Single
}

/// What is written under a grant is remembered as that object's, under that fence.
fn fenced(grant: &Grant) -> (u64, u64) {
    (grant.capability.object, grant.capability.fence)
}

/// How many of its nodes may lose what they have of a file, and it is still to be had.
fn bears(grant: &Grant) -> usize {
    let needed = if is_coded(grant) { usize::from(grant.capability.k) } else { 1 };
    if is_redundant(grant) { grant.nodes.len().saturating_sub(needed) } else { 0 }
}

/// In how many shares a file lies, each on nodes of its own.
fn shares(grant: &Grant) -> u64 {
    if is_redundant(grant) { 1 } else { grant.nodes.len() as u64 }
}

/// Bytes of what of a file has one version: a write within it is seen whole or not at all. Nodes
/// tell versions of copies by their own strips, whatever the layout says.
#[must_use]
pub fn strip_len(grant: &Grant) -> u64 {
    let strip = if is_redundant(grant) { STRIP_MIN } else { grant.layout.strip };
    u64::from(strip.clamp(1, DATA_MAX))
}

/// Which strips are those of the node that this one lies on.
fn share(grant: &Grant, strip: u64) -> Result<Share, DataError> {
    let count = shares(grant);
    let place = strip.checked_rem(count).and_then(|place| u8::try_from(place).ok());
    let (place, count) = place.zip(u8::try_from(count).ok()).ok_or(DataError::Medium)?;
    let strip = u32::try_from(strip_len(grant)).map_err(|_| DataError::Medium)?;
    Ok(Share { count, place, strip })
}

/// A range of strips, as one of bytes that locks of blocks tell apart.
fn places(strips: Range<u64>) -> Range<u64> {
    strips.start.saturating_mul(BLOCK as u64)..strips.end.saturating_mul(BLOCK as u64)
}

/// A range, cut at the borders of strips.
fn pieces(grant: &Grant, range: Range<u64>) -> impl Iterator<Item = Piece> {
    let strip = strip_len(grant);
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let number = at / strip;
        let end = number.saturating_add(1).saturating_mul(strip).min(range.end);
        let piece = Piece { strip: number, range: at..end };
        at = end;
        Some(piece)
    })
}
