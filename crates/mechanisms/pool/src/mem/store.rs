//! The objects of the pool in memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::super::port::{Guard, Op, PoolError, Scan, Step};
use outboard_kv::{Key, Value};

#[derive(Clone, Default)]
struct Object {
    bytes: Vec<u8>,
    map: BTreeMap<Key, Value>,
    /// Bytes of its map.
    pairs: u64,
}

impl Object {
    fn size(&self) -> u64 {
        self.bytes.len() as u64 + self.pairs
    }

    fn set(&mut self, key: &Key, value: Option<&Value>) {
        let cost = |value: &Value| (key.len() + value.len()) as u64;
        self.pairs += value.map_or(0, cost);
        let before = match value {
            Some(value) => self.map.insert(key.clone(), value.clone()),
            None => self.map.remove(key),
        };
        self.pairs -= before.as_ref().map_or(0, cost);
    }
}

/// Objects by name.
#[derive(Default)]
pub(super) struct Store {
    objects: BTreeMap<String, Object>,
    bytes: u64,
}

fn valid(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'.' || b == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}

impl Store {
    fn object(&self, name: &str) -> Result<&Object, PoolError> {
        self.objects.get(name).ok_or(PoolError::NotFound)
    }

    fn judge(&self, name: &str, guard: &Guard) -> Result<(), PoolError> {
        let holds = match guard {
            Guard::Exists => self.object(name).map(|_| true)?,
            Guard::Absent => !self.objects.contains_key(name),
            Guard::MapEquals(key, value) => {
                let map = &self.object(name)?.map;
                map.get(key).map_or(&[][..], |found| &found[..]) == &value[..]
            }
            Guard::Starts(bytes) => self.object(name)?.bytes.starts_with(bytes),
        };
        if holds { Ok(()) } else { Err(PoolError::Guard) }
    }

    pub(super) fn apply(&mut self, name: &str, op: &Op, capacity: u64) -> Result<(), PoolError> {
        assert!(valid(name), "a name no engine takes: {name:?}");
        for guard in &op.guards {
            self.judge(name, guard)?;
        }
        if op.steps.contains(&Step::Remove) {
            assert_eq!(op.steps.len(), 1, "Remove stands alone");
            let gone = self.objects.remove(name).ok_or(PoolError::NotFound)?;
            self.bytes -= gone.size();
            return Ok(());
        }
        let full = capacity != 0 && self.bytes.saturating_add(op.bytes() as u64) > capacity;
        if full && !op.essential {
            return Err(PoolError::NoSpace);
        }
        if op.steps.is_empty() {
            return Ok(());
        }
        let object = self.objects.entry(name.into()).or_default();
        let before = object.size();
        for step in &op.steps {
            step_on(object, step);
        }
        self.bytes = self.bytes + object.size() - before;
        Ok(())
    }

    pub(super) fn read(&self, name: &str, offset: u64, len: usize) -> Result<Vec<u8>, PoolError> {
        let bytes = &self.object(name)?.bytes;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = start.saturating_add(len).min(bytes.len());
        Ok(bytes.get(start..end).unwrap_or_default().to_vec())
    }

    pub(super) fn map_get(
        &self,
        name: &str,
        keys: &[Key],
    ) -> Result<Vec<Option<Value>>, PoolError> {
        let map = &self.object(name)?.map;
        Ok(keys.iter().map(|key| map.get(key).cloned()).collect())
    }

    pub(super) fn map_scan(
        &self,
        name: &str,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Scan, PoolError> {
        let map = &self.object(name)?.map;
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut found = map
            .range::<[u8], _>((start, Bound::Unbounded))
            .skip_while(|(key, _)| &key[..] < prefix)
            .take_while(|(key, _)| key.starts_with(prefix));
        let pairs = found.by_ref().take(limit).map(|(k, v)| (k.clone(), v.clone())).collect();
        Ok(Scan { pairs, more: found.next().is_some() })
    }

    pub(super) fn stat(&self, name: &str) -> Result<u64, PoolError> {
        Ok(self.object(name)?.bytes.len() as u64)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().map(String::as_str)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn map_len(&self, name: &str) -> usize {
        self.objects.get(name).map_or(0, |object| object.map.len())
    }

    pub(super) fn corrupt(&mut self, name: &str, offset: usize) {
        let bytes = self.objects.get_mut(name).map(|object| &mut object.bytes);
        if let Some(byte) = bytes.and_then(|bytes| bytes.get_mut(offset)) {
            *byte ^= 1;
        }
    }
}

fn step_on(object: &mut Object, step: &Step) {
    match step {
        Step::Create | Step::Remove => {}
        Step::Write(offset, bytes) => {
            let start = usize::try_from(*offset).unwrap_or(usize::MAX);
            let end = start.saturating_add(bytes.len());
            if object.bytes.len() < end {
                object.bytes.resize(end, 0);
            }
            if let Some(to) = object.bytes.get_mut(start..end) {
                to.copy_from_slice(bytes);
            }
        }
        Step::Replace(bytes) => object.bytes = bytes.to_vec(),
        Step::MapSet(key, value) => {
            assert!(!key.is_empty() && key.len() <= 2100 && value.len() <= 128 << 10);
            object.set(key, Some(value));
        }
        Step::MapRemove(key) => object.set(key, None),
    }
}
