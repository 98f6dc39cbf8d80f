//! What a session writes down where a successor of its process finds it: in memory that outlives
//! the process and that the DPU side never sees (`docs/internals/outlive.md`).
//!
//! ```text
//! page 0 | magic | grid | generation |
//! lanes  | generation 0: a line for each slot | ... | generation 7 |    line: tag, lane, sequence
//! held   | records: open handles, held locks                       |
//! ```
//!
//! Before a call that changes something is sent, its line says under which lane and sequence. Who
//! asks again under the same tag in a later generation is sent under these, as a replay, and so
//! gets the first answer. Each generation has lanes of its own: what it sends for the first time
//! takes no lane whose request may come again. Lines are not taken back: a tag that was answered
//! never comes again.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use outboard_base::{Fh, Ino};
use outboard_link::Region;
use outboard_link::layout::Layout;
use outboard_link::records::{Place, Records, Unusable};
use outboard_link::region::OutOfRegion;
use outboard_volume::backend::{AGAIN, OWN};
use outboard_wire::file::{Lock, LockKind, LockStyle};

use super::Lane;
use super::held::{Handle, HeldState};

/// Format and version.
pub const MAGIC: u64 = 0x6f62_6e6f_7465_0001;
const GRID: u64 = 8;
const GENERATION: u64 = 16;
const LANES: u64 = 4096;
/// Bytes of a line.
const LINE: u64 = 24;
/// Generations whose lines are kept. A request that as many processes in a row die with, none of
/// them having taken it, may be done again.
const KEPT: u64 = 8;
/// Sequences of a generation: none is used twice.
const SEQUENCES: u32 = 40;
/// Room for open handles and held locks; taken as it is used.
const HELD: u64 = 64 << 20;
const HANDLE: u64 = 1;
const LOCK: u64 = 2;

/// Why there are no notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoNotes {
    /// They are of another version, or of another grid of queues.
    Version,
    /// The records in them cannot be used.
    Records(Unusable),
    /// The grid has more slots than lanes can tell apart.
    Grid,
}

impl std::fmt::Display for NoNotes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoNotes::Version => f.write_str("a predecessor's notes are of another version"),
            NoNotes::Records(why) => write!(f, "a predecessor's notes cannot be used: {why}"),
            NoNotes::Grid => f.write_str("so many queues of that depth leave no room for lanes"),
        }
    }
}

impl std::error::Error for NoNotes {}

/// The notes of one process of a session.
#[derive(Debug)]
pub struct Notes {
    region: Arc<Region>,
    /// Slots of the grid, the session queue's included.
    slots: u64,
    generation: u64,
    /// What earlier generations sent, by tag.
    sent: Mutex<HashMap<u64, (u16, u64)>>,
    left: AtomicUsize,
    held: Option<(Records, HeldState)>,
}

fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

fn slots(layout: Layout) -> u64 {
    u64::from(layout.queues()) * u64::from(layout.depth())
}

impl Notes {
    /// Bytes they take, for queues laid out so; `None` when the lanes do not suffice.
    #[must_use]
    pub fn room(layout: Layout) -> Option<u64> {
        let slots = slots(layout);
        let fits = slots * KEPT <= u64::from(u16::MAX);
        fits.then(|| LANES + pages(slots * KEPT * LINE) + HELD)
    }

    /// Begins a generation over `region`: the first in memory nobody has used.
    ///
    /// # Errors
    /// See [`NoNotes`].
    pub fn begin(region: Arc<Region>, layout: Layout) -> Result<Notes, NoNotes> {
        let slots = slots(layout);
        let room = Notes::room(layout).ok_or(NoNotes::Grid)?;
        let short = |_: OutOfRegion| NoNotes::Version;
        let grid = u64::from(layout.queues()) << 32 | u64::from(layout.depth());
        let found = region.load_u64(0, Acquire).map_err(short)?;
        if found == 0 {
            region.store_u64(GRID, grid, Relaxed).map_err(short)?;
            region.store_u64(0, MAGIC, Release).map_err(short)?;
        } else if found != MAGIC || region.load_u64(GRID, Acquire) != Ok(grid) {
            return Err(NoNotes::Version);
        }
        if region.len() < room {
            return Err(NoNotes::Version);
        }
        let sent = earlier(&region, slots).map_err(short)?;
        let generation = region.load_u64(GENERATION, Acquire).map_err(short)? + 1;
        let at = LANES + pages(slots * KEPT * LINE);
        let (records, found) = Records::open(Arc::clone(&region), at).map_err(NoNotes::Records)?;
        let mut held = HeldState::default();
        for (place, (kind, words)) in found {
            match (kind, held_of(words)) {
                (HANDLE, (ino, fh, ..)) => {
                    let [_, _, flags, directory, ..] = words;
                    let flags = u32::try_from(flags).unwrap_or(0);
                    held.handle_found(fh, Handle { ino, flags, directory: directory != 0 }, place);
                }
                (LOCK, (ino, fh, lock)) => held.lock_found(ino, fh, lock, place),
                _ => return Err(NoNotes::Version),
            }
        }
        region.store_u64(GENERATION, generation, Release).map_err(short)?;
        let left = AtomicUsize::new(sent.len());
        let held = Some((records, held));
        Ok(Notes { region, slots, generation, sent: Mutex::new(sent), left, held })
    }

    /// Which generation of its session this process is, counted from 1.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What predecessors held, from here on written down as it changes; once.
    pub(super) fn take_held(&mut self) -> HeldState {
        let (records, mut held) = match self.held.take() {
            Some(found) => found,
            None => return HeldState::default(),
        };
        held.write_down(records);
        held
    }

    /// The first sequence of this generation.
    pub(super) fn first_sequence(&self) -> u64 {
        self.generation << SEQUENCES
    }

    /// Under which lane and sequence a call that changes something is sent, by the slot it lies in;
    /// true if an earlier generation sent it. It is written down before this returns.
    pub(super) fn send(&self, slot: Lane, tag: u64, sequence: u64) -> (u16, u64, bool) {
        let block = self.generation % KEPT;
        let number = block * self.slots + u64::from(slot.0);
        let own = u16::try_from(number).unwrap_or(u16::MAX);
        if tag & OWN != 0 {
            return (own, sequence, false);
        }
        let name = tag & !AGAIN;
        let earlier = if tag & AGAIN != 0 { self.earlier(name) } else { None };
        let (lane, sequence, again) = match earlier {
            Some((lane, sequence)) => (lane, sequence, true),
            None => (own, sequence, false),
        };
        let at = LANES + number * LINE;
        let line = [(at, 0), (at + 8, u64::from(lane)), (at + 16, sequence), (at, name)];
        for (at, word) in line {
            // In bounds: as many lines as slots.
            let _in_bounds = self.region.store_u64(at, word, Release);
        }
        (lane, sequence, again)
    }

    fn earlier(&self, name: u64) -> Option<(u16, u64)> {
        if self.left.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let found = sent.remove(&name);
        self.left.store(sent.len(), Ordering::Relaxed);
        found
    }
}

/// The lines of all generations that are kept.
fn earlier(region: &Region, slots: u64) -> Result<HashMap<u64, (u16, u64)>, OutOfRegion> {
    let mut sent: HashMap<u64, (u16, u64)> = HashMap::new();
    for at in (0..slots * KEPT).map(|line| LANES + line * LINE) {
        let tag = region.load_u64(at, Acquire)?;
        let lane = u16::try_from(region.load_u64(at + 8, Relaxed)?).unwrap_or(u16::MAX);
        let sequence = region.load_u64(at + 16, Relaxed)?;
        // Sent by several generations, it had the same lane and sequence in each.
        if tag != 0 {
            sent.insert(tag, (lane, sequence));
        }
    }
    Ok(sent)
}

/// A handle as a record.
pub(super) fn of_handle(fh: Fh, handle: Handle) -> (u64, [u64; 7]) {
    let (flags, directory) = (u64::from(handle.flags), u64::from(handle.directory));
    (HANDLE, [handle.ino.0, fh.0, flags, directory, 0, 0, 0])
}

/// A lock as a record.
pub(super) fn of_lock(ino: Ino, fh: Fh, lock: Lock) -> (u64, [u64; 7]) {
    let kind = match lock.kind {
        LockKind::Read => 0,
        LockKind::Write => 1,
        LockKind::Unlock => 2,
    };
    let what = kind | u64::from(lock.style == LockStyle::Flock) << 8 | u64::from(lock.pid) << 32;
    (LOCK, [ino.0, fh.0, lock.owner, lock.start, lock.end, what, 0])
}

fn held_of([ino, fh, owner, start, end, what, _]: [u64; 7]) -> (Ino, Fh, Lock) {
    let kind = match what & 0xff {
        0 => LockKind::Read,
        1 => LockKind::Write,
        _ => LockKind::Unlock,
    };
    let style = if what & 0x100 == 0 { LockStyle::Posix } else { LockStyle::Flock };
    let pid = u32::try_from(what >> 32).unwrap_or(0);
    (Ino(ino), Fh(fh), Lock { owner, start, end, kind, style, pid })
}

/// What a session holds, as it stands in the notes.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) records: Option<Records>,
    handles: HashMap<Fh, Place>,
    locks: HashMap<(Ino, LockStyle), Vec<Place>>,
}

impl Written {
    pub(super) fn handle_found(&mut self, fh: Fh, place: Place) {
        self.handles.insert(fh, place);
    }

    pub(super) fn lock_found(&mut self, ino: Ino, style: LockStyle, place: Place) {
        self.locks.entry((ino, style)).or_default().push(place);
    }

    pub(super) fn opened(&mut self, fh: Fh, handle: Handle) {
        let Some(records) = &self.records else { return };
        let place = records.put(of_handle(fh, handle));
        let before = match place {
            Some(place) => self.handles.insert(fh, place),
            None => self.handles.remove(&fh),
        };
        before.into_iter().for_each(|place| records.remove(place));
    }

    pub(super) fn closed(&mut self, fh: Fh) {
        let Some(records) = &self.records else { return };
        self.handles.remove(&fh).into_iter().for_each(|place| records.remove(place));
    }

    /// The locks of one style on `ino` are these now. The new ones first: what is written down
    /// twice at a kill is held once.
    pub(super) fn locked(
        &mut self,
        key @ (ino, _): (Ino, LockStyle),
        locks: impl Iterator<Item = (Fh, Lock)>,
    ) {
        let Some(records) = &self.records else { return };
        let now: Vec<Place> =
            locks.filter_map(|(fh, lock)| records.put(of_lock(ino, fh, lock))).collect();
        let before =
            if now.is_empty() { self.locks.remove(&key) } else { self.locks.insert(key, now) };
        before.into_iter().flatten().for_each(|place| records.remove(place));
    }
}

#[cfg(test)]
mod tests {
    use outboard_wire::file::Request;

    use super::*;

    fn layout() -> Layout {
        Layout::new(3, 4).unwrap()
    }

    fn memory() -> Arc<Region> {
        Region::anonymous(Notes::room(layout()).unwrap())
    }

    fn begin(region: &Arc<Region>) -> Notes {
        Notes::begin(Arc::clone(region), layout()).unwrap()
    }

    /// The second process sends what the first had sent under the first's lane and sequence, once;
    /// what is new under lanes the first never used.
    #[test]
    fn what_was_sent_is_sent_under_the_same_name() {
        let region = memory();
        let first = begin(&region);
        let (lane, sequence, again) = first.send(Lane(5), 100, first.first_sequence() + 1);
        assert!(!again);
        first.send(Lane(6), OWN | 7, first.first_sequence() + 2);
        let second = begin(&region);
        assert_eq!(second.generation(), first.generation() + 1);
        assert!(second.first_sequence() > sequence);
        let (other, _, again) = second.send(Lane(5), 100, second.first_sequence() + 1);
        assert!(!again && other != lane, "the kernel did not mark it: another request");
        let third = begin(&region);
        assert!(third.send(Lane(1), AGAIN | 100, 9).2);
        let fourth = begin(&region);
        let replay = fourth.send(Lane(9), AGAIN | 100, 9);
        assert!(replay.2, "it was sent, and not answered, by the third");
        assert!(!fourth.send(Lane(9), AGAIN | 102, 9).2, "it was read and not sent");
    }

    /// A request that is sent again by each successor keeps the name it was first sent under for
    /// any number of deaths.
    #[test]
    fn a_name_outlives_any_number_of_deaths() {
        let region = memory();
        let first = begin(&region);
        let (lane, sequence, _) = first.send(Lane(3), 100, first.first_sequence() + 1);
        for death in 0..30u16 {
            let next = begin(&region);
            let slot = Lane(death % 12);
            assert_eq!(next.send(slot, AGAIN | 100, 1), (lane, sequence, true), "{death}");
            next.send(Lane((death + 1) % 12), 1000 + 2 * u64::from(death), 2);
        }
    }

    #[test]
    fn handles_and_locks_are_found() {
        let region = memory();
        let mut held = begin(&region).take_held();
        let handle = |ino| Handle { ino: Ino(ino), flags: 2, directory: ino == 9 };
        held.opened(Fh(1), handle(2));
        held.opened(Fh(2), handle(9));
        held.opened(Fh(3), handle(2));
        let lock = |owner, kind, style| Lock { owner, start: 0, end: 9, kind, style, pid: 77 };
        held.locked(Ino(2), Fh(1), lock(5, LockKind::Write, LockStyle::Posix));
        held.locked(Ino(2), Fh(3), lock(6, LockKind::Read, LockStyle::Flock));
        held.closing(Ino(2), Fh(3), 6);
        let requests = |held: &HeldState| -> Vec<String> {
            let all: Vec<Request<'_>> = held.reclaims();
            all.iter().map(|request| format!("{request:?}")).collect()
        };
        let mut successor = begin(&region).take_held();
        assert_eq!(requests(&successor), requests(&held));
        assert_eq!(successor.counts(), (2, 1));
        successor.locked(Ino(2), Fh(1), lock(5, LockKind::Unlock, LockStyle::Posix));
        successor.closing(Ino(9), Fh(2), 0);
        let third = begin(&region).take_held();
        assert_eq!(requests(&third), requests(&successor));
        assert_eq!(third.counts(), (1, 0));
    }

    #[test]
    fn notes_of_others_are_refused() {
        let region = memory();
        begin(&region);
        let other = Layout::new(2, 4).unwrap();
        assert_eq!(Notes::begin(Arc::clone(&region), other).err(), Some(NoNotes::Version));
        region.store_u64(0, 7, Release).unwrap();
        assert_eq!(Notes::begin(region, layout()).err(), Some(NoNotes::Version));
        assert_eq!(Notes::room(Layout::new(60, 256).unwrap()), None);
    }
}
