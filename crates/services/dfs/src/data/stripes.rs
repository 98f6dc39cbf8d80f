//! Files with parities: stripes that are encoded and repaired here (DPC 4.3; the page is
//! `docs/internals/erasure.md`).
//!
//! Chunk `c` of a file, 64 KiB, is strip `c / k` of the member that has unit `c mod k`. A write
//! touches the same *rows* of all units of a stripe, under one version: what it does not bring of
//! them is read before, or, where it is small, stays as it is. So a strip has the same version at
//! all members, and each row is a stripe of its own.
//!
//! A loss of power of all members may leave some with an older version than others. What is
//! pending at any of them lies over what is durable at all, so `k` have one or the other: a stripe
//! is written again only once it is durable (R4).

mod deltas;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::{try_join_abreast, try_join_all};
use outboard_base::{Ino, Time};
use outboard_codec::crc32c;
use outboard_codec::erasure::{Code, Error, Field};
use outboard_flow::Net;
use outboard_wire::shared::call::{Call, Grant, Layout, Mode, Reply, STRIP_MIN};
use outboard_wire::shared::{
    Answer, Brings, Coordinate, Coordinates, HoleHead, MEMBERS_MAX, ReadHead, Reason, Role,
    Strategy, Target, WriteHead,
};

use self::deltas::{Rows, deltas};
use super::durable::Patience;
use super::{ABREAST, Data, DataError, PAUSE, bears, fenced, heads, places};

/// Bytes of a unit.
pub(super) const UNIT: u64 = STRIP_MIN as u64;
/// The same, in memory.
const UNIT_LEN: usize = STRIP_MIN as usize;
/// Bytes that a node writes at once. Of units whole ones are written: then a damaged one is mended
/// by what goes over it.
const GRAIN: u64 = 8 << 10;
/// Chunks of zeros that are written at a time.
const ZEROED: usize = 64;
/// What zeros are written from.
static ZEROS: [u8; UNIT_LEN] = [0; UNIT_LEN];

/// Whether a file lies as stripes.
pub(crate) fn is_coded(grant: &Grant) -> bool {
    grant.capability.strategy == Strategy::Parity
}

/// Bytes of a file in a stripe.
pub(super) fn stripe_len(grant: &Grant) -> u64 {
    grant.layout.data_units() * UNIT
}

/// Where what a member has of a redundant file of so many bytes ends at most.
#[must_use]
pub fn member_end(layout: &Layout, size: u64) -> u64 {
    match layout.strategy {
        Strategy::Parity => size.div_ceil(layout.data_units() * UNIT).saturating_mul(UNIT),
        _ => size,
    }
}

/// Whether a grant's nodes can be those of a file with parities: each has a unit of it, and enough
/// are there.
pub(crate) fn is_stripe(grant: &Grant) -> bool {
    let (k, m) = (grant.capability.k, grant.capability.m);
    let role = |unit: u8| if unit < k { Role::Data } else { Role::Parity };
    let is_unit = |member: &Coordinate| {
        u16::from(member.unit) < u16::from(k) + u16::from(m) && member.role == role(member.unit)
    };
    let units: BTreeSet<u8> = grant.nodes.iter().map(|member| member.unit).collect();
    code(grant).is_ok()
        && (grant.layout.strategy, grant.layout.k, grant.layout.m) == (Strategy::Parity, k, m)
        && units.len() >= usize::from(k)
        && grant.nodes.len() <= MEMBERS_MAX
        && grant.nodes.iter().all(is_unit)
}

fn code(grant: &Grant) -> Result<Code, DataError> {
    let (k, m) = (grant.capability.k.into(), grant.capability.m.into());
    Code::new(Field::fastest(), k, m).map_err(invalid)
}

fn invalid(_: Error) -> DataError {
    DataError::Refused(Reason::Invalid)
}

/// A part of a range of a file that lies in one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chunk {
    stripe: u64,
    unit: u8,
    /// From where on in the unit.
    rows: Range<u64>,
    /// Its first byte in the file.
    at: u64,
}

/// A range of a file with `k` data units, chunk by chunk.
fn chunks(k: u64, range: Range<u64>) -> impl Iterator<Item = Chunk> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let number = at / UNIT;
        let end = number.saturating_add(1).saturating_mul(UNIT).min(range.end);
        if at >= end {
            return None;
        }
        let rows = at % UNIT..at % UNIT + (end - at);
        let unit = u8::try_from(number.checked_rem(k)?).ok()?;
        let chunk = Chunk { stripe: number.checked_div(k)?, unit, rows, at };
        at = end;
        Some(chunk)
    })
}

/// What is written of a stripe: the rows that it touches, and bytes of units from some row on.
#[derive(Debug)]
struct Part<'a> {
    rows: Range<u64>,
    pieces: Vec<(u8, u64, &'a [u8])>,
}

/// Bytes at places of a file, stripe by stripe.
fn parts<'a>(k: u64, runs: &[(u64, &'a [u8])]) -> Result<BTreeMap<u64, Part<'a>>, DataError> {
    let mut parts: BTreeMap<u64, Part<'a>> = BTreeMap::new();
    for (start, bytes) in runs {
        let end = start.checked_add(bytes.len() as u64).ok_or(DataError::Refused(Reason::Range))?;
        for chunk in chunks(k, *start..end) {
            let from = usize::try_from(chunk.at - start).unwrap_or(usize::MAX);
            let to = from.saturating_add(len_of(&chunk.rows));
            let piece = bytes.get(from..to).unwrap_or_default();
            let rows = chunk.rows.start / GRAIN * GRAIN..chunk.rows.end.next_multiple_of(GRAIN);
            let fresh = || Part { rows: rows.clone(), pieces: Vec::new() };
            let part = parts.entry(chunk.stripe).or_insert_with(fresh);
            let (start, end) = (part.rows.start, part.rows.end);
            part.rows = start.min(rows.start)..end.max(rows.end);
            part.pieces.push((chunk.unit, chunk.rows.start, piece));
        }
    }
    Ok(parts)
}

impl Part<'_> {
    /// Whether it brings all rows of a unit.
    fn is_whole(&self, unit: u8) -> bool {
        let own = self.pieces.iter().filter(|(of, _, _)| *of == unit);
        let mut own: Vec<_> = own.map(|(_, at, bytes)| *at..at + bytes.len() as u64).collect();
        own.sort_unstable_by_key(|rows| rows.start);
        let reaches = |to: u64, rows: &Range<u64>| {
            if rows.start <= to { to.max(rows.end) } else { to }
        };
        own.iter().fold(self.rows.start, reaches) >= self.rows.end
    }

    fn touches(&self, unit: u8) -> bool {
        self.pieces.iter().any(|(of, _, _)| *of == unit)
    }

    /// Whether it touches so few units that to read them, and send them and deltas, is no more than
    /// to read the others and send all data.
    fn is_small(&self, k: u8, m: u8) -> bool {
        let touched = (0..k).filter(|unit| self.touches(*unit)).count();
        3 * touched + usize::from(m) <= 2 * usize::from(k)
    }

    /// Lays its bytes over those that were there.
    fn lay_over(&self, units: &mut [Vec<u8>]) -> Result<(), DataError> {
        for (unit, at, bytes) in &self.pieces {
            let from = usize::try_from(at - self.rows.start).unwrap_or(usize::MAX);
            let place = units.get_mut(usize::from(*unit));
            let place = place.and_then(|unit| unit.get_mut(from..from.checked_add(bytes.len())?));
            place.ok_or(DataError::Refused(Reason::Invalid))?.copy_from_slice(bytes);
        }
        Ok(())
    }
}

fn len_of(rows: &Range<u64>) -> usize {
    usize::try_from(rows.end.saturating_sub(rows.start)).unwrap_or(usize::MAX)
}

/// What a write has in common that data nodes pass on, or nobody does.
fn head_of(grant: &Grant, passes_on: bool) -> Result<WriteHead, DataError> {
    let (strategy, k, members) = match passes_on {
        true => (Strategy::Parity, grant.capability.k, &grant.nodes[..]),
        false => (Strategy::Single, 1, &[][..]),
    };
    Ok(WriteHead {
        strategy,
        rank: 0,
        k,
        unit: 0,
        role: Role::Data,
        brings: Brings::Bytes,
        offset: 0,
        bytes: 0,
        sequence: 0,
        previous: 0,
        crc: 0,
        session: 0,
        number: 0,
        lane: 0,
        coordinates: Coordinates::new(members).map_err(|_| DataError::Refused(Reason::Invalid))?,
    })
}

/// The parities of these data units behind them.
fn encoded(grant: &Grant, mut units: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, DataError> {
    let len = units.first().map_or(0, Vec::len);
    let mut parities = vec![vec![0; len]; usize::from(grant.capability.m)];
    let data: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
    let mut places: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
    code(grant)?.encode(&data, &mut places).map_err(invalid)?;
    units.append(&mut parities);
    Ok(units)
}

/// Stripes that a client has data nodes multiply at a time: half of what each gives it credit for.
const STREAMS: usize = 32;

/// How long none is begun, and no delta sent, after one that failed: nodes do not reach each other,
/// or have no room, or damage.
const REST: Duration = Duration::from_secs(20);

/// Stripes that data nodes multiply (NetDFS VI). Of others the parities are computed here: where a
/// member is away, or one joins, or nodes have enough to do.
#[derive(Debug)]
pub(super) struct Streams {
    most: usize,
    under_way: AtomicUsize,
    /// None is begun before.
    rests: AtomicU64,
}

impl Default for Streams {
    fn default() -> Streams {
        let (under_way, rests) = (AtomicUsize::new(0), AtomicU64::new(0));
        Streams { most: STREAMS, under_way, rests }
    }
}

impl Streams {
    /// All parities are computed here.
    pub(super) fn none() -> Streams {
        Streams { most: 0, ..Streams::default() }
    }

    fn begin(&self, grant: &Grant, now: Time) -> Option<Stream<'_>> {
        let units = (0..u8::MAX).zip(&grant.nodes);
        let is_whole = grant.nodes.len() == grant.layout.nodes()
            && units.into_iter().all(|(unit, member)| unit == member.unit);
        let stream = Stream(&self.under_way);
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        (is_whole && before < self.most && !self.rest(now)).then_some(stream)
    }

    /// Whether all members are to be brought whole rows: that goes over what one of them has
    /// damaged, too.
    fn rest(&self, now: Time) -> bool {
        now.0 < self.rests.load(Ordering::Relaxed)
    }

    fn failed(&self, now: Time) {
        self.rests.store(now.after(REST).0, Ordering::Relaxed);
    }
}

/// A stripe under way.
struct Stream<'s>(&'s AtomicUsize);

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a member said of rows of its unit.
enum Said {
    Bytes(Vec<u8>),
    /// Another may have what it has not.
    Lacks(DataError),
    /// It does not answer, or not now.
    Nothing,
}

impl<N: Net> Data<N> {
    /// Writes bytes at places that do not overlap, each stripe once.
    pub(super) async fn write_stripes(
        &self,
        grant: &Grant,
        runs: &[(u64, &[u8])],
    ) -> Result<(), DataError> {
        let parts = parts(grant.layout.data_units(), runs)?;
        let each = parts.iter().map(|(stripe, part)| self.write_part(grant, *stripe, part));
        try_join_abreast(ABREAST, each).await.map(drop)
    }

    async fn write_part(
        &self,
        grant: &Grant,
        stripe: u64,
        part: &Part<'_>,
    ) -> Result<(), DataError> {
        let object = grant.capability.object;
        self.can_remember(object, &self.nodes(grant)).await?;
        let _alone = self.strips.exclusive_on(Ino(object), places(stripe..stripe + 1)).await;
        let begun = self.net.now();
        let k = grant.capability.k;
        // What a write that failed left at some of them is no base of deltas.
        let is_sound = !self.versions.has_failed(object, grant.capability.fence);
        let is_small =
            part.is_small(k, grant.capability.m) && is_sound && !self.streams.rest(begun);
        let is_needed = |unit: &u8| match is_small {
            true => part.touches(*unit),
            false => !part.is_whole(*unit),
        };
        let read = (0..k).filter(|unit| is_needed(unit) && !is_planted(Fault::Unread));
        let read = read.map(|unit| async move {
            let rows = part.rows.clone();
            self.rows_of(grant, (stripe, unit), rows).await.map(|bytes| (unit, bytes))
        });
        let mut units = vec![vec![0; len_of(&part.rows)]; usize::from(k)];
        for (unit, bytes) in try_join_abreast(ABREAST, read).await? {
            units.get_mut(usize::from(unit)).into_iter().for_each(|place| place.clone_from(&bytes));
        }
        self.has_all_since(grant, begun)?;
        let old = if is_small { units.clone() } else { Vec::new() };
        part.lay_over(&mut units)?;
        let rows = if is_small { deltas(grant, part, &old, units)? } else { Rows::All(units) };
        self.put_rows(grant, stripe, &part.rows, rows).await
    }

    /// Who was silent since some time would not take a write either, and to find that out takes as
    /// long again: a member that was is said to be unreached at once.
    fn has_all_since(&self, grant: &Grant, time: Time) -> Result<(), DataError> {
        let is_silent =
            |member: &&Coordinate| self.places.is_silent_since(self.know(grant, member), time);
        let Some(silent) = grant.nodes.iter().find(is_silent) else { return Ok(()) };
        self.places.is_unreached(grant.capability.object, silent.node, self.net.now());
        Err(DataError::Undecided)
    }

    /// Rows of all data units become those, and of the parities what belongs to them, under a
    /// version of their own. The caller has the stripe alone.
    async fn put_rows(
        &self,
        grant: &Grant,
        stripe: u64,
        rows: &Range<u64>,
        changes: Rows,
    ) -> Result<(), DataError> {
        let (object, fence) = (grant.capability.object, grant.capability.fence);
        if !self.versions.is_durable(object, fence, stripe) {
            self.flush_stripes(grant).await?;
        }
        let begun = self.versions.begin_write(object, fence, stripe)?;
        let offset = stripe.checked_mul(UNIT).and_then(|start| start.checked_add(rows.start));
        let offset = offset.ok_or(DataError::Refused(Reason::Range))?;
        let bytes = u32::try_from(len_of(rows)).map_err(|_| DataError::Refused(Reason::Range))?;
        let (stream, units) = match changes {
            Rows::Some(units) => (None, units),
            Rows::All(data) => {
                let stream = self.streams.begin(grant, self.net.now());
                let units = if stream.is_some() { data } else { encoded(grant, data)? };
                (stream, units.into_iter().map(|unit| (Brings::Bytes, unit)).collect())
            }
        };
        let parities = if stream.is_some() { self.parities(grant) } else { Vec::new() };
        let brings = |member: &&Coordinate| stream.is_none() || member.role == Role::Data;
        let head = WriteHead {
            offset,
            bytes,
            sequence: begun.sequence,
            previous: begun.previous,
            ..head_of(grant, stream.is_some())?
        };
        let (head, units, settled) = (&head, &units, begun.durable);
        let each = grant.nodes.iter().filter(brings).map(|member| async move {
            let unit = units.get(usize::from(member.unit));
            let (brings, bytes) = unit.ok_or(DataError::Refused(Reason::Invalid))?;
            let write = WriteHead {
                rank: if head.strategy == Strategy::Parity { member.unit } else { 0 },
                unit: member.unit,
                role: member.role,
                brings: *brings,
                crc: crc32c(bytes),
                ..*head
            };
            let heads = heads(grant, write.data(), settled, Target::Write(write));
            let peer = self.know(grant, member);
            let (answer, _) = self.ask(peer, &heads, bytes).await?;
            self.takes(grant, peer, &answer, false);
            self.has_written(grant, member, answer.boot)
        });
        // Once one did not take it others wait, for its part of the parities: for longer than to
        // find out that it is gone. What they have is decided, whatever they would say.
        if let Err(error) = try_join_all(each).await {
            if stream.is_some() || error == DataError::Undecided {
                self.streams.failed(self.net.now());
            }
            return Err(error);
        }
        for (member, boot) in parities {
            self.has_written(grant, &member, boot)?;
        }
        begun.done();
        Ok(())
    }

    /// Members to whom data nodes bring what they multiply, and in which boots they are: their
    /// answers come by those, and do not say.
    fn parities(&self, grant: &Grant) -> Vec<(Coordinate, u64)> {
        let parities = grant.nodes.iter().filter(|member| member.role == Role::Parity);
        let boot = |peer| self.unsynced.boot(peer).unwrap_or_default();
        parities.map(|member| (*member, boot(self.know(grant, member)))).collect()
    }

    fn has_written(&self, grant: &Grant, member: &Coordinate, boot: u64) -> Result<(), DataError> {
        let peer = self.know(grant, member);
        self.unsynced.wrote(peer, fenced(grant), boot, bears(grant));
        self.is_in_boot(grant, member.node, boot)
    }

    /// A member is in the boot in which it acknowledged all else: else it may have lost that, and
    /// it is to be decided what there is.
    fn is_in_boot(&self, grant: &Grant, node: u16, boot: u64) -> Result<(), DataError> {
        let (object, fence) = (grant.capability.object, grant.capability.fence);
        let is_it = self.versions.is_in_boot(object, fence, node, boot);
        if is_it { Ok(()) } else { Err(DataError::Undecided) }
    }

    pub(super) async fn read_chunks(
        &self,
        grant: &Grant,
        at: u64,
        len: usize,
    ) -> Result<Vec<u8>, DataError> {
        let end = at.checked_add(len as u64).ok_or(DataError::Refused(Reason::Range))?;
        let each = chunks(grant.layout.data_units(), at..end).map(|chunk| async move {
            let Chunk { stripe, unit, rows, .. } = chunk.clone();
            let bytes = match self.ask_own(grant, (stripe, unit), &rows, true).await? {
                Said::Bytes(bytes) => bytes,
                _ => {
                    let object = Ino(grant.capability.object);
                    let place = places(stripe..stripe + 1);
                    let _unchanged = self.strips.shared_on(object, place).await;
                    self.rows_of(grant, (stripe, unit), rows).await?
                }
            };
            Ok::<_, DataError>((chunk.at, bytes))
        });
        let mut all = vec![0; len];
        for (start, bytes) in try_join_abreast(ABREAST, each).await? {
            let from = usize::try_from(start - at).unwrap_or(usize::MAX);
            let place = all.get_mut(from..from.saturating_add(bytes.len()));
            place.ok_or(DataError::Medium)?.copy_from_slice(&bytes);
        }
        Ok(all)
    }

    /// Rows of a unit of a stripe, which nobody writes meanwhile: its member's, or computed of
    /// those of others.
    async fn rows_of(
        &self,
        grant: &Grant,
        (stripe, unit): (u64, u8),
        rows: Range<u64>,
    ) -> Result<Vec<u8>, DataError> {
        let mut pause = PAUSE;
        let mut is_first = true;
        loop {
            self.may_ask()?;
            let own = self.ask_own(grant, (stripe, unit), &rows, is_first).await?;
            if let Said::Bytes(bytes) = own {
                return Ok(bytes);
            }
            match (self.computed(grant, (stripe, unit), &rows).await?, own) {
                (Said::Bytes(bytes), _) => return Ok(bytes),
                // Its own member was not asked, as it was silent.
                (_, Said::Nothing) if is_first => {}
                (Said::Lacks(why), _) | (_, Said::Lacks(why)) => return Err(why),
                _ => {}
            }
            is_first = false;
            self.pause(&mut pause).await;
        }
    }

    /// Asks the member that has a unit; not one that was silent of late, if others can be asked.
    async fn ask_own(
        &self,
        grant: &Grant,
        (stripe, unit): (u64, u8),
        rows: &Range<u64>,
        others_can: bool,
    ) -> Result<Said, DataError> {
        let own = grant.nodes.iter().find(|member| member.unit == unit);
        let is_silent = |member| self.places.was_silent(self.know(grant, member), self.net.now());
        match own.filter(|member| !others_can || !is_silent(member)) {
            Some(member) => self.ask_rows(grant, member, stripe, rows).await,
            None => Ok(Said::Nothing),
        }
    }

    /// Rows of a unit, of the same rows of `k` others. Where a write has failed these may be of two
    /// versions: what they are is decided before.
    async fn computed(
        &self,
        grant: &Grant,
        (stripe, unit): (u64, u8),
        rows: &Range<u64>,
    ) -> Result<Said, DataError> {
        let (object, fence) = (grant.capability.object, grant.capability.fence);
        if grant.mode == Mode::Write && self.versions.has_failed(object, fence) {
            return Err(DataError::Undecided);
        }
        let now = self.net.now();
        let mut others: BTreeMap<u8, &Coordinate> = BTreeMap::new();
        for member in grant.nodes.iter().filter(|member| member.unit != unit) {
            others.entry(member.unit).or_insert(member);
        }
        let mut others: Vec<&Coordinate> = others.into_values().collect();
        others.sort_by_key(|member| self.places.was_silent(self.know(grant, member), now));
        let needed = usize::from(grant.capability.k);
        let (mut others, mut found, mut lacks) = (others.into_iter(), Vec::new(), None);
        while found.len() < needed {
            let some: Vec<_> = others.by_ref().take(needed - found.len()).collect();
            if some.is_empty() {
                return Ok(lacks.map_or(Said::Nothing, Said::Lacks));
            }
            let asked = some.into_iter().map(|member| async move {
                let said = self.ask_rows(grant, member, stripe, rows).await?;
                Ok::<_, DataError>((usize::from(member.unit), said))
            });
            for (unit, said) in try_join_abreast(needed, asked).await? {
                match said {
                    Said::Bytes(bytes) => found.push((unit, bytes)),
                    Said::Lacks(why) => lacks = Some(why),
                    Said::Nothing => {}
                }
            }
        }
        let present: Vec<usize> = found.iter().map(|(unit, _)| *unit).collect();
        let bytes: Vec<&[u8]> = found.iter().map(|(_, bytes)| bytes.as_slice()).collect();
        let mut lost = vec![0; len_of(rows)];
        let repair = code(grant)?.repair(&present, &[unit.into()]).map_err(invalid)?;
        repair.run(&bytes, &mut [&mut lost]).map_err(invalid)?;
        Ok(Said::Bytes(lost))
    }

    /// Asks a member once for rows of the unit that it has.
    async fn ask_rows(
        &self,
        grant: &Grant,
        member: &Coordinate,
        stripe: u64,
        rows: &Range<u64>,
    ) -> Result<Said, DataError> {
        let offset = stripe.checked_mul(UNIT).and_then(|start| start.checked_add(rows.start));
        let offset = offset.ok_or(DataError::Refused(Reason::Range))?;
        let len = len_of(rows);
        let bytes = u32::try_from(len).map_err(|_| DataError::Refused(Reason::Range))?;
        let read = ReadHead { offset, bytes, unit: member.unit.into(), map: false };
        let peer = self.know(grant, member);
        match self.net.request(peer, &heads(grant, 0, 0, Target::Read(read)), &[]).await {
            Ok((Answer { outcome: Err(Reason::Busy), .. }, _)) => Ok(Said::Nothing),
            Ok((Answer { outcome: Err(reason @ (Reason::Filling | Reason::Medium)), .. }, _)) => {
                Ok(Said::Lacks(reason.into()))
            }
            Ok((Answer { outcome: Err(reason), .. }, _)) => Err(reason.into()),
            Ok((_, data)) if data.len() == len => Ok(Said::Bytes(data)),
            Ok(_) => Err(DataError::Medium),
            Err(outboard_flow::Gone::Refused) => Err(DataError::Gone),
            Err(_) => {
                self.places.is_silent(peer, self.net.now());
                Ok(Said::Nothing)
            }
        }
    }
}

impl<N: Net> Data<N> {
    /// The bytes of a range are zero from now on. Behind its last stripe it goes at all members;
    /// the rest is written with zeros where there are rows: so all of a stripe is there, or none.
    /// The caller has the file alone.
    pub(super) async fn cut_stripes(
        &self,
        grant: &Grant,
        range: Range<u64>,
    ) -> Result<(), DataError> {
        let whole = range.start.div_ceil(stripe_len(grant));
        let is_cut = range.end == u64::MAX;
        let written = if is_cut { whole.saturating_mul(stripe_len(grant)) } else { range.end };
        if is_cut {
            // First: zeros may take what that gives back.
            self.hole_at_members(grant, whole.saturating_mul(UNIT)..u64::MAX).await?;
        }
        self.zero(grant, range.start..written).await?;
        let (object, fence) = (grant.capability.object, grant.capability.fence);
        let is_durable = self.versions.is_all_durable(object, fence);
        if is_cut && range.start < written && !is_durable {
            // What goes at members is gone for good; so are zeros, before the cut is answered.
            self.flush_stripes(grant).await?;
        }
        Ok(())
    }

    async fn zero(&self, grant: &Grant, range: Range<u64>) -> Result<(), DataError> {
        let (mut at, k) = (range.start, grant.layout.data_units());
        while at < range.end {
            let (runs, known) = self.runs(grant, at).await?;
            let within = runs.into_iter().map(|run| run.start.max(at)..run.end.min(range.end));
            for run in within.filter(|run| run.start < run.end) {
                let mut pieces: Vec<(u64, &[u8])> = Vec::new();
                for chunk in chunks(k, run) {
                    let zeros = ZEROS.get(..len_of(&chunk.rows)).unwrap_or_default();
                    // What is zero need not be written.
                    if self.read_chunks(grant, chunk.at, zeros.len()).await? != zeros {
                        pieces.push((chunk.at, zeros));
                    }
                    if pieces.len() >= ZEROED {
                        self.write_stripes(grant, &pieces).await?;
                        pieces.clear();
                    }
                }
                self.write_stripes(grant, &pieces).await?;
            }
            if known <= at {
                return Err(DataError::Medium);
            }
            at = known;
        }
        Ok(())
    }

    /// A range of what each member of a redundant file has goes. The caller has the file alone.
    ///
    /// # Errors
    /// [`DataError`]; then it is not known where it is.
    pub async fn hole_at_members(&self, grant: &Grant, range: Range<u64>) -> Result<(), DataError> {
        if !is_coded(grant) {
            return self.change(grant, range, false).await;
        }
        let (object, fence) = (grant.capability.object, grant.capability.fence);
        let strips = range.start / UNIT..range.end.div_ceil(UNIT);
        let _alone = self.strips.exclusive_on(Ino(object), places(strips.clone())).await;
        if !self.versions.is_all_durable(object, fence) {
            self.flush_stripes(grant).await?;
        }
        let begun = self.versions.begin(object, fence, strips)?;
        let hole = HoleHead {
            offset: range.start,
            end: range.end,
            sequence: begun.sequence,
            previous: 0,
            session: 0,
            number: 0,
            lane: 0,
            share: None,
        };
        let heads = heads(grant, 0, begun.durable, Target::Hole(hole));
        let each = grant.nodes.iter().map(|member| async {
            let peer = self.know(grant, member);
            let (answer, _) = self.ask(peer, &heads, &[]).await?;
            self.takes(grant, peer, &answer, true);
            self.unsynced.wrote(peer, fenced(grant), answer.boot, bears(grant));
            Ok::<(), DataError>(())
        });
        try_join_abreast(MEMBERS_MAX, each).await?;
        begun.done();
        Ok(())
    }

    /// What members have acknowledged of a file becomes durable; [`DataError::Undecided`] if one
    /// does not answer, or has lost what it had.
    pub(super) async fn flush_stripes(&self, grant: &Grant) -> Result<(), DataError> {
        let (object, fence) = (grant.capability.object, grant.capability.fence);
        let mark = self.versions.mark(object, fence);
        let each = grant.nodes.iter().map(|member| async move {
            let (peer, patience) = (self.know(grant, member), Patience::OnceFor(object));
            let replies = self.call(std::iter::once(peer), Call::FLUSH, patience).await?;
            match replies.first() {
                Some(Reply::Number(boot)) => self.is_in_boot(grant, member.node, *boot),
                _ => Err(DataError::Medium),
            }
        });
        try_join_abreast(MEMBERS_MAX, each).await?;
        self.versions.flushed(object, fence, mark);
        Ok(())
    }
}

impl<N: Net> Data<N> {
    /// The first rows of a stripe as those have them who are in `sources`, written to all of
    /// `grant`: what who decides does with a stripe that some of them lack.
    ///
    /// # Errors
    /// [`DataError`]; then it is not known who has it.
    pub async fn mend(
        &self,
        (sources, grant): (&Grant, &Grant),
        stripe: u64,
        rows: u64,
    ) -> Result<(), DataError> {
        let object = grant.capability.object;
        self.can_remember(object, &self.nodes(grant)).await?;
        let _alone = self.strips.exclusive_on(Ino(object), places(stripe..stripe + 1)).await;
        let rows = rows.next_multiple_of(GRAIN).min(UNIT);
        let mut units = Vec::new();
        for unit in 0..grant.capability.k {
            units.push(self.rows_of(sources, (stripe, unit), 0..rows).await?);
        }
        self.put_rows(grant, stripe, &(0..rows), Rows::All(units)).await
    }

    /// Where the bytes of a file end that are not zero, if its members end within this stripe: of a
    /// file of which nobody knows better how long it is.
    ///
    /// # Errors
    /// [`DataError`].
    pub async fn end_in(&self, grant: &Grant, stripe: u64) -> Result<u64, DataError> {
        let start = stripe.saturating_mul(stripe_len(grant));
        let len = usize::try_from(stripe_len(grant)).map_err(|_| DataError::Medium)?;
        let bytes = self.read_chunks(grant, start, len).await?;
        let last = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Ok(start.saturating_add(last as u64))
    }

    /// Whether the parities of a stripe are those of its data; all its members are asked.
    ///
    /// # Errors
    /// [`DataError`]; of one that lacks it, too.
    pub async fn is_encoded(&self, grant: &Grant, stripe: u64) -> Result<bool, DataError> {
        let mut units = BTreeMap::new();
        for member in &grant.nodes {
            match self.ask_rows(grant, member, stripe, &(0..UNIT)).await? {
                Said::Bytes(bytes) => units.insert(member.unit, bytes),
                Said::Lacks(why) => return Err(why),
                Said::Nothing => return Err(DataError::Undecided),
            };
        }
        let units: Vec<&[u8]> = units.values().map(Vec::as_slice).collect();
        let (data, parities) = units
            .split_at_checked(grant.capability.k.into())
            .ok_or(DataError::Refused(Reason::Invalid))?;
        code(grant)?.is_stripe(data, parities).map_err(invalid)
    }
}

/// Where rows of members are bytes of the file, from one on: rows are the same at all of them.
pub(super) fn runs_of_file(k: u64, rows: &[Range<u64>], from: u64) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for run in rows {
        let mut at = run.start;
        while at < run.end {
            let stripe = at / UNIT;
            let end = run.end.min((stripe + 1).saturating_mul(UNIT));
            for unit in 0..k {
                let chunk = stripe.saturating_mul(k).saturating_add(unit).saturating_mul(UNIT);
                let start = chunk.saturating_add(at % UNIT);
                all.push(start..start.saturating_add(end - at));
            }
            at = end;
        }
    }
    all.sort_unstable_by_key(|run| run.start);
    all.dedup_by(|next, last| {
        let is_next = next.start == last.end;
        last.end = if is_next { next.end } else { last.end };
        is_next
    });
    all.retain(|run| run.end > from);
    all
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
mod tests;
