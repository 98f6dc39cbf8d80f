//! Sums of parts, which become parities (NetDFS VI B 3; rows N14 and N16).
//!
//! All parts of one write come together in one *sum*, whichever comes first and in whatever order:
//! its buffer is of the write's length, so pieces need not be cut alike. Handlers add what comes
//! to sums in memory of the NIC; if that has no room when the first part of a write comes, all
//! parts of this write go to the CPU side, which adds them when they are whole. What always holds:
//! - of each data unit the bytes of one message are added, and no other's, however many come;
//! - a sum goes to the store once all of its units are in it, wholly, and at no other time;
//! - each message of a sum has one answer, when that is stored, or lost: with a message of which
//!   something was added and the rest will not come, or when nothing comes for so long.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use outboard_codec::erasure;
use outboard_wire::shared::{Answer, Heads, Reason, Target, WriteHead};

use super::Nic;
use super::context::{Landing, Path};

/// What a sum is of: object, fence, sequence.
type Key = (u64, u64, u32);

/// Bits of units: as many as a stripe has data.
type Units = u16;

/// A part that comes for a sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its heads.
    pub heads: Box<Heads>,
    /// Bytes of them.
    pub begins: u32,
    /// Who adds it.
    pub path: Path,
    /// What is answered if the sum is lost; the rank is then that of the unit that it lacks.
    pub lost: Answer,
}

/// The write that heads ask for, if they come with a part.
fn part_of(heads: &Heads) -> Option<(Key, &WriteHead)> {
    match &heads.target {
        Target::Write(write) if write.is_part() => {
            let capability = &heads.capability;
            Some(((capability.object, capability.fence, write.sequence), write))
        }
        _ => None,
    }
}

/// A message of a sum.
struct Member {
    slot: u32,
    unit: u8,
    begins: u32,
    /// Its bytes are added; else those of another message of the same unit are, or were.
    adds: bool,
    is_whole: bool,
    lost: Answer,
}

struct Sum {
    /// Of whose first part came.
    heads: Box<Heads>,
    path: Path,
    /// What is added up; of the CPU side, from the first whole part on.
    data: Vec<u8>,
    /// Units of which a message adds, or has added; and that are wholly in it.
    claimed: Units,
    has: Units,
    /// Checksums of the data of those that are claimed.
    crcs: BTreeMap<u8, u32>,
    members: Vec<Member>,
    /// Something came since it was looked at last.
    is_touched: bool,
    /// The message with which it goes to the store.
    stored_by: Option<u32>,
}

fn bit(unit: u8) -> Units {
    1_u16.checked_shl(unit.into()).unwrap_or(0)
}

impl Sum {
    /// Whether a part is of this write: a version has one range and one writer, and the bytes of a
    /// unit do not change.
    fn takes(&self, heads: &Heads, write: &WriteHead) -> Result<(), Reason> {
        let (own, other) = (&self.heads.capability, &heads.capability);
        if (own.client, own.group, own.k, own.m) != (other.client, other.group, other.k, other.m) {
            return Err(Reason::Other);
        }
        let is_write = |(_, own): (Key, &WriteHead)| {
            let of = |write: &WriteHead| (write.offset, write.bytes, write.previous);
            of(own) == of(write)
        };
        let is_same = part_of(&self.heads).is_some_and(is_write)
            && self.crcs.get(&write.unit).is_none_or(|crc| *crc == write.crc);
        if is_same { Ok(()) } else { Err(Reason::Order) }
    }

    /// A message of a unit is there as a whole. Once all units are, the sum, for the store.
    fn whole(&mut self, slot: u32) -> Option<Landing> {
        self.is_touched = true;
        let member = self.members.iter_mut().find(|member| member.slot == slot)?;
        member.is_whole = true;
        if member.adds {
            self.has |= bit(member.unit);
        }
        let all = bit(self.heads.capability.k).wrapping_sub(1);
        if self.has != all || self.stored_by.is_some() {
            return None;
        }
        self.stored_by = Some(slot);
        let (heads, data) = (Some(self.heads.clone()), std::mem::take(&mut self.data));
        let bytes = data.len();
        Some(Landing { path: self.path, heads, begins: 0, data, bytes, later: 0, is_paid: true })
    }

    /// What all of its messages are told if it is lost for want of a unit.
    fn lost(self, unit: u8) -> Vec<(u32, Answer)> {
        let tell = |member: Member| {
            (member.slot, Answer { rank: unit, outcome: Err(Reason::Unreached), ..member.lost })
        };
        self.members.into_iter().map(tell).collect()
    }

    /// The first unit that it lacks.
    fn lacks(&self) -> u8 {
        u8::try_from(self.has.trailing_ones()).unwrap_or(0)
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Sums {
    /// Bytes of the memory for them,
    most: usize,
    /// and those in use, by whose they are.
    used: BTreeMap<u64, usize>,
    all: BTreeMap<Key, Sum>,
    of_slots: BTreeMap<u32, Key>,
    /// Somebody looks at them from time to time.
    is_watched: bool,
    lost: u64,
}

impl Sums {
    /// With so many bytes of memory.
    pub(super) fn new(most: usize) -> Sums {
        Sums { most, ..Sums::default() }
    }

    /// Who adds the parts of a write, if one has come before; nobody knows, if none has.
    ///
    /// # Errors
    /// Why this one is not added to those: [`Reason::Other`], [`Reason::Order`].
    pub(super) fn path(&self, heads: &Heads) -> Result<Option<Path>, Reason> {
        let (key, write) = part_of(heads).ok_or(Reason::Other)?;
        let Some(sum) = self.all.get(&key) else { return Ok(None) };
        sum.takes(heads, write).map(|()| Some(sum.path))
    }

    /// Whether the bytes of a part's unit are added by another message already; nobody knows, if no
    /// part of that write came before.
    pub(super) fn is_claimed(&self, heads: &Heads) -> Option<bool> {
        let (key, write) = part_of(heads)?;
        self.all.get(&key).map(|sum| sum.claimed & bit(write.unit) != 0)
    }

    /// Whether there is room for another sum of so many bytes: a client leaves as much for
    /// others as it has itself.
    pub(super) fn has_room(&self, client: u64, bytes: usize) -> bool {
        let own = self.used.get(&client).copied().unwrap_or(0);
        let free = self.most.saturating_sub(self.used.values().sum());
        bytes <= free.saturating_sub(own)
    }

    /// A message has been accepted as a part.
    pub(super) fn join(&mut self, slot: u32, part: &Part) {
        let Some((key, write)) = part_of(&part.heads) else { return };
        let (sum, path) = (self.all.get_mut(&key), part.path);
        let bytes = if path == Path::Nic { write.bytes as usize } else { 0 };
        let sum = match sum {
            Some(sum) => sum,
            None => {
                *self.used.entry(part.heads.capability.client).or_default() += bytes;
                self.all.entry(key).or_insert_with(|| Sum {
                    heads: part.heads.clone(),
                    path,
                    data: vec![0; bytes],
                    claimed: 0,
                    has: 0,
                    crcs: BTreeMap::new(),
                    members: Vec::new(),
                    is_touched: true,
                    stored_by: None,
                })
            }
        };
        let settled = part.heads.head.settled;
        sum.heads.head.settled = sum.heads.head.settled.max(settled);
        let (unit, begins, lost) = (write.unit, part.begins, part.lost);
        let adds = sum.claimed & bit(unit) == 0;
        sum.claimed |= bit(unit);
        sum.crcs.insert(unit, write.crc);
        sum.is_touched = true;
        sum.members.push(Member { slot, unit, begins, adds, is_whole: false, lost });
        self.of_slots.insert(slot, key);
    }

    fn of(&mut self, slot: u32) -> Option<&mut Sum> {
        self.all.get_mut(self.of_slots.get(&slot)?)
    }

    /// Whether a message is of a sum.
    pub(super) fn knows(&self, slot: u32) -> bool {
        self.of_slots.contains_key(&slot)
    }

    /// Adds the bytes that stand at `offset` of a message; how many that were.
    pub(super) fn add(&mut self, slot: u32, offset: u32, payload: &[u8]) -> Option<usize> {
        let sum = self.of(slot)?;
        sum.is_touched = true;
        let member = sum.members.iter().find(|member| member.slot == slot)?;
        let skip = member.begins.saturating_sub(offset) as usize;
        let at = offset.saturating_sub(member.begins) as usize;
        let bytes = payload.get(skip..).filter(|_| member.adds)?;
        let place = sum.data.get_mut(at..at.checked_add(bytes.len())?)?;
        erasure::add(bytes, place).ok()?;
        Some(bytes.len())
    }

    /// A message whose packets were added has come as a whole. Once all units are there, the sum.
    pub(super) fn whole(&mut self, slot: u32) -> Option<Landing> {
        self.of(slot)?.whole(slot)
    }

    /// Adds a whole message at the CPU side. Once all units are there, the sum.
    pub(super) fn add_whole(&mut self, slot: u32, data: Vec<u8>) -> Option<Landing> {
        let sum = self.of(slot)?;
        let member = sum.members.iter().find(|member| member.slot == slot)?;
        if member.adds && sum.data.is_empty() {
            sum.data = data;
        } else if member.adds {
            // Heads of other lengths were refused.
            erasure::add(&data, &mut sum.data).ok()?;
        }
        sum.whole(slot)
    }

    fn remove(&mut self, key: Key) -> Option<Sum> {
        let sum = self.all.remove(&key)?;
        for member in &sum.members {
            self.of_slots.remove(&member.slot);
        }
        let bytes = if sum.path == Path::Nic { sum.heads.head.data as usize } else { 0 };
        let client = sum.heads.capability.client;
        if let Some(used) = self.used.get_mut(&client) {
            *used = used.saturating_sub(bytes);
            if *used == 0 {
                self.used.remove(&client);
            }
        }
        Some(sum)
    }

    /// The store has answered a message: if that went there with a sum, all whose sum it is, and
    /// what stands for them in an answer.
    pub(super) fn end(&mut self, slot: u32) -> Vec<(u32, Answer)> {
        let key = self.of_slots.get(&slot).copied();
        let is_its = |key: &Key| self.all.get(key).is_some_and(|sum| sum.stored_by == Some(slot));
        let sum = key.filter(is_its).and_then(|key| self.remove(key));
        let members = sum.map(|sum| sum.members).unwrap_or_default();
        members.into_iter().map(|member| (member.slot, member.lost)).collect()
    }

    /// A message is over. If something of it was to be added, or was, the others of its sum are
    /// told that this is lost.
    pub(super) fn leave(&mut self, slot: u32) -> Vec<(u32, Answer)> {
        let Some(key) = self.of_slots.remove(&slot) else { return Vec::new() };
        let Some(sum) = self.all.get_mut(&key) else { return Vec::new() };
        let at = sum.members.iter().position(|member| member.slot == slot);
        let Some(member) = at.map(|at| sum.members.swap_remove(at)) else { return Vec::new() };
        if !member.adds {
            return Vec::new();
        }
        self.lost += 1;
        self.remove(key).map(|sum| sum.lost(member.unit)).unwrap_or_default()
    }

    /// Whether somebody is to begin to look at them: [`Sums::look`].
    fn watch(&mut self) -> bool {
        let begins = !self.all.is_empty() && !self.is_watched;
        self.is_watched |= begins;
        begins
    }

    /// Those for which nothing came since the last look are lost: who is told so.
    fn look(&mut self) -> Vec<(u32, Answer)> {
        let is_over = |sum: &Sum| !sum.is_touched && sum.stored_by.is_none();
        let over = self.all.iter().filter(|(_, sum)| is_over(sum)).map(|(key, _)| *key);
        let over: Vec<Key> = over.collect();
        self.lost += over.len() as u64;
        let lost: Vec<Sum> = over.into_iter().filter_map(|key| self.remove(key)).collect();
        self.all.values_mut().for_each(|sum| sum.is_touched = false);
        self.is_watched = !self.all.is_empty();
        let tell = |sum: Sum| {
            let unit = sum.lacks();
            sum.lost(unit)
        };
        lost.into_iter().flat_map(tell).collect()
    }

    /// How many there are, the bytes that they take, and how many were lost.
    pub(super) fn figures(&self) -> (usize, usize, u64) {
        (self.all.len(), self.used.values().sum(), self.lost)
    }
}

impl Nic {
    /// A part that is whole, and with the CPU side, is added to its sum; once all are, that.
    pub(crate) fn add_whole(&mut self, place: (u32, u8), data: Vec<u8>) -> Option<Landing> {
        if self.is_served(place) { self.sums.add_whole(place.0, data) } else { None }
    }

    /// Whether somebody is to begin to call [`Nic::look_at_sums`] from time to time.
    pub(crate) fn watch_sums(&mut self) -> bool {
        self.sums.watch()
    }

    /// Sums for which nothing came since the last look are lost; whether there are others.
    pub(crate) fn look_at_sums(&mut self) -> bool {
        let lost = self.sums.look();
        self.lose(lost);
        self.sums.is_watched
    }

    /// Tells messages that their sum is lost.
    pub(super) fn lose(&mut self, lost: Vec<(u32, Answer)>) {
        for (slot, answer) in lost {
            self.answer_one(slot, answer.emit().to_vec());
        }
    }

    /// Sums that there are, bytes that they take, and how many were lost.
    #[must_use]
    pub fn sums(&self) -> (usize, usize, u64) {
        self.sums.figures()
    }
}
