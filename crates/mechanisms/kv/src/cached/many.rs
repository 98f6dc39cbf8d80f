//! Many gets at once.
//!
//! A few that the cache does not have are asked of the store as they are, in one call. Where many
//! are missing and lie close together (the inodes of a directory's files, made one after another),
//! one scan passes over them at a fraction of the cost of a get each.

use super::{Cached, Use};
use crate::{Key, Kv, KvError, Value};

/// So few are asked for by their names, at once: as many index pages as 4 MiB of a file have.
const FEW: usize = 18;
/// Pairs a scan may pass over for each one that is missing.
const SPREAD: usize = 2;

/// A key the cache has no value of, and the ticket to fill it with.
struct Missing {
    at: usize,
    ticket: Option<u64>,
}

impl<K: Kv> Cached<K> {
    pub(super) async fn look_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, KvError> {
        let mut values = Vec::with_capacity(keys.len());
        let mut missing = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            values.push(self.look(key, Use::Passing).unwrap_or_else(|ticket| {
                missing.push(Missing { at, ticket });
                None
            }));
        }
        self.count((keys.len() - missing.len()) as u64, missing.len() as u64);
        let key = |missing: &Missing| keys.get(missing.at).map_or(&[][..], |key| key);
        missing.sort_unstable_by(|a, b| key(a).cmp(key(b)));
        let mut left = &missing[..];
        let mut dense = true;
        while let Some((first, rest)) = left.split_first() {
            if !dense || rest.len() < FEW {
                let keys: Vec<Key> = left.iter().map(|missing| key(missing).into()).collect();
                let found = self.inner.get_many(&keys).await?;
                for (missing, value) in left.iter().zip(found) {
                    self.found(key(missing), missing, value, &mut values);
                }
                break;
            }
            let value = self.inner.get(key(first)).await?;
            self.found(key(first), first, value, &mut values);
            left = rest;
            // One key asked for twice is fetched twice: a scan begins after it.
            let twice = rest.first().is_some_and(|next| key(next) == key(first));
            if twice {
                continue;
            }
            let passed = self.pass(key(first), rest, &key, &mut values).await?;
            // Too thinly sown: one by one, then.
            dense = passed >= rest.len() / SPREAD;
            left = rest.get(passed..).unwrap_or(&[]);
        }
        Ok(values)
    }

    /// Scans on from `after` over the `missing`, which follow it in order; how many it passed.
    async fn pass<'k>(
        &self,
        after: &'k [u8],
        missing: &[Missing],
        key: &impl Fn(&Missing) -> &'k [u8],
        values: &mut [Option<Value>],
    ) -> Result<usize, KvError> {
        let last = missing.last().map_or(after, key);
        let common = after.iter().zip(last).take_while(|(a, b)| a == b).count();
        let prefix = after.get(..common).unwrap_or(&[]);
        let limit = missing.len() * SPREAD;
        let pairs = self.inner.scan(prefix, Some(after), limit).await?;
        // Where it ended by itself it has passed everything there is.
        let end = if pairs.len() < limit { None } else { pairs.last().map(|(key, _)| key.clone()) };
        let mut pairs = pairs.into_iter().peekable();
        let mut passed = 0;
        for missing in missing {
            let key = key(missing);
            if end.as_ref().is_some_and(|end| key > &end[..]) {
                break;
            }
            while pairs.next_if(|(found, _)| &found[..] < key).is_some() {}
            let value = pairs.peek().filter(|(found, _)| &found[..] == key);
            self.found(key, missing, value.map(|(_, value)| value.clone()), values);
            passed += 1;
        }
        Ok(passed)
    }

    fn found(
        &self,
        key: &[u8],
        missing: &Missing,
        value: Option<Value>,
        values: &mut [Option<Value>],
    ) {
        self.keep(key, missing.ticket, &value);
        if let Some(place) = values.get_mut(missing.at) {
            *place = value;
        }
    }
}
