//! What is committed and not in its shard yet, in memory: reads look here first.
//!
//! A write is *pending* until its group is in the journal, then *visible*; *applied* once its shard
//! has it. It stays a little longer, until no scan is left that may have read the shard before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use outboard_kv::{Key, Value, Write};

/// One write of a key: its commit's number and what it did.
#[derive(Clone, Debug)]
struct Put {
    seq: u64,
    value: Option<Value>,
    applied: bool,
}

#[derive(Debug, Default)]
struct Entry {
    visible: Option<Put>,
    pending: Option<Put>,
}

/// The overlay.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    entries: BTreeMap<Key, Entry>,
    /// Applied writes and the last scan begun before they were, oldest first.
    applied: VecDeque<(u64, Key, u64)>,
    /// Scans under way, by number; the last number given.
    scans: BTreeSet<u64>,
    tickets: u64,
    unapplied: usize,
}

/// Writes to be applied: keys, commit numbers, what they do.
pub(crate) type Portion = Vec<(Key, u64, Option<Value>)>;

/// The value of an entry as seen: `None` says that the overlay knows nothing of the key.
pub(crate) type Known = Option<Option<Value>>;

impl Overlay {
    /// Adds a write that is not in the journal yet.
    pub(crate) fn enqueue(&mut self, seq: u64, write: &Write) {
        let entry = self.entries.entry(write.key.clone()).or_default();
        entry.pending = Some(Put { seq, value: write.value.clone(), applied: false });
    }

    /// The write is in the journal.
    pub(crate) fn publish(&mut self, seq: u64, write: &Write) {
        let entry = self.entries.entry(write.key.clone()).or_default();
        if entry.pending.as_ref().is_some_and(|pending| pending.seq == seq) {
            entry.pending = None;
        }
        let put = Put { seq, value: write.value.clone(), applied: false };
        if entry.visible.replace(put).is_none_or(|before| before.applied) {
            self.unapplied += 1;
        }
    }

    /// The write will never be.
    pub(crate) fn refuse(&mut self, seq: u64, write: &Write) {
        let Some(entry) = self.entries.get_mut(&write.key) else { return };
        if entry.pending.as_ref().is_some_and(|pending| pending.seq == seq) {
            entry.pending = None;
        }
        if entry.visible.is_none() && entry.pending.is_none() {
            self.entries.remove(&write.key);
        }
    }

    /// What a read sees.
    pub(crate) fn visible(&self, key: &[u8]) -> Known {
        self.entries.get(key)?.visible.as_ref().map(|put| put.value.clone())
    }

    /// What the next commit will find.
    pub(crate) fn newest(&self, key: &[u8]) -> Known {
        let entry = self.entries.get(key)?;
        entry.pending.as_ref().or(entry.visible.as_ref()).map(|put| put.value.clone())
    }

    /// The commit that has last written the key and is pending.
    pub(crate) fn pending(&self, key: &[u8]) -> Option<u64> {
        self.entries.get(key)?.pending.as_ref().map(|put| put.seq)
    }

    /// Visible writes of keys that start with `prefix`, from a bound on, in order.
    pub(crate) fn range(
        &self,
        prefix: &[u8],
        from: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&Key, &Option<Value>)> {
        self.entries
            .range::<[u8], _>((from, Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .filter_map(|(key, entry)| entry.visible.as_ref().map(|put| (key, &put.value)))
    }

    /// Whether a pending commit writes a key that starts with `prefix`.
    pub(crate) fn pends(&self, prefix: &[u8]) -> bool {
        self.entries
            .range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .any(|(_, entry)| entry.pending.is_some())
    }

    /// The first key from a bound on that waits to be applied.
    pub(crate) fn next(&self, from: Bound<&[u8]>) -> Option<Key> {
        let mut entries = self.entries.range::<[u8], _>((from, Bound::Unbounded));
        entries.find(|(_, entry)| waits(entry)).map(|(key, _)| key.clone())
    }

    /// Writes that wait to be applied, from a key on, below another, so many and so long together.
    pub(crate) fn portion(
        &self,
        from: &Key,
        below: Option<&Key>,
        pairs: usize,
        bytes: usize,
    ) -> Portion {
        let mut left = bytes;
        let mut portion = Vec::new();
        for (key, entry) in
            self.entries.range::<[u8], _>((Bound::Included(&from[..]), Bound::Unbounded))
        {
            if below.is_some_and(|below| key >= below) || portion.len() == pairs || left == 0 {
                break;
            }
            if let Some(put) = entry.visible.as_ref().filter(|put| !put.applied) {
                left = left.saturating_sub(key.len() + put.value.as_ref().map_or(0, |v| v.len()));
                portion.push((key.clone(), put.seq, put.value.clone()));
            }
        }
        portion
    }

    /// These are in their shard now.
    pub(crate) fn applied(&mut self, portion: Portion) {
        for (key, seq, _) in portion {
            let put = self.entries.get_mut(&key).and_then(|entry| entry.visible.as_mut());
            if let Some(put) = put.filter(|put| put.seq == seq && !put.applied) {
                put.applied = true;
                self.unapplied -= 1;
                self.applied.push_back((self.tickets, key, seq));
            }
        }
        self.reap();
    }

    /// Forgets what is applied and may be read in the shards by everybody.
    fn reap(&mut self) {
        let oldest = self.scans.first().copied().unwrap_or(u64::MAX);
        while self.applied.front().is_some_and(|(last, ..)| *last < oldest) {
            let Some((_, key, seq)) = self.applied.pop_front() else { return };
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            if entry.visible.as_ref().is_some_and(|put| put.seq == seq && put.applied) {
                entry.visible = None;
                if entry.pending.is_none() {
                    self.entries.remove(&key);
                }
            }
        }
    }

    /// A scan begins; its number.
    pub(crate) fn begin_scan(&mut self) -> u64 {
        self.tickets += 1;
        self.scans.insert(self.tickets);
        self.tickets
    }

    /// A scan is over.
    pub(crate) fn end_scan(&mut self, ticket: u64) {
        self.scans.remove(&ticket);
        self.reap();
    }

    /// How many writes wait to be applied.
    pub(crate) fn unapplied(&self) -> usize {
        self.unapplied
    }
}

fn waits(entry: &Entry) -> bool {
    entry.visible.as_ref().is_some_and(|put| !put.applied)
}
