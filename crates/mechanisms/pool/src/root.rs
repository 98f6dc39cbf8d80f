//! The root object: where the pairs and the journal are.
//!
//! ```text
//! root  "a"       a stamp
//!       "j"       the first journal object that counts (8)
//!       "n"       the next shard's number (8)
//!       "s" key   the shard of the keys from here to the next such key (8); the first has key ""
//!       "t"       a shard that nobody reads: being filled, or to be removed (8), if there is one
//!       "d"       | shard (8) | key |  a shard with remains from this key on, if there is one
//! map.N "a"       a stamp
//!       "p" key   a pair                                                            big-endian
//! ```

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::port::{Pool, Step};
use super::stamped::{Refused, Stamped};
use outboard_kv::{Key, Value};

/// The name of the root object.
pub(crate) const ROOT: &str = "root";
/// Entries read at once.
const CHUNK: usize = 1000;

/// One range of pairs.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) id: u64,
    pub(crate) map: Stamped,
    /// Keys removed from it since it was counted, or since this owner knows it.
    pub(crate) removed: AtomicU64,
    /// Whether this owner has counted it.
    pub(crate) counted: AtomicBool,
}

/// The name of a shard's object.
pub(crate) fn shard_name(id: u64) -> String {
    format!("map.{id:012}")
}

impl Shard {
    pub(crate) fn new(id: u64) -> Arc<Shard> {
        let map = Stamped::new(shard_name(id));
        Arc::new(Shard { id, map, removed: AtomicU64::new(0), counted: AtomicBool::new(false) })
    }
}

/// The key of a pair in its shard.
pub(crate) fn pair_key(key: &[u8]) -> Key {
    [b"p", key].concat().into()
}

/// The key behind [`pair_key`].
pub(crate) fn plain_key(key: &[u8]) -> Option<Key> {
    key.strip_prefix(b"p").map(Key::from)
}

/// What the root object says.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    /// By first key. There is always one at the empty key.
    pub(crate) shards: BTreeMap<Key, Arc<Shard>>,
    pub(crate) journal: u64,
    pub(crate) next: u64,
    pub(crate) tentative: Option<u64>,
    pub(crate) remains: Option<(u64, Key)>,
}

fn number(value: &[u8]) -> Result<u64, Refused> {
    value.try_into().map(u64::from_be_bytes).map_err(|_| Refused::Corrupt)
}

/// A step that sets a number.
pub(crate) fn set(key: &[u8], number: u64) -> Step {
    Step::MapSet(key.into(), number.to_be_bytes().into())
}

/// The key of the shard that begins here.
pub(crate) fn start_key(start: &[u8]) -> Key {
    [b"s", start].concat().into()
}

/// The value of "d".
pub(crate) fn remains(shard: u64, from: &[u8]) -> Value {
    [&shard.to_be_bytes(), from].concat().into()
}

impl Root {
    /// A volume with nothing in it.
    pub(crate) fn new() -> Root {
        let shards = BTreeMap::from([(Key::default(), Shard::new(1))]);
        Root { shards, journal: 1, next: 2, tentative: None, remains: None }
    }

    /// The steps that make [`Root::new`].
    pub(crate) fn steps() -> Vec<Step> {
        let start = Step::MapSet(start_key(b""), 1_u64.to_be_bytes().into());
        vec![set(b"j", 1), set(b"n", 2), start]
    }

    /// Reads it. Shards of before keep what is known of them.
    pub(crate) async fn load<P: Pool>(pool: &P, before: Option<&Root>) -> Result<Root, Refused> {
        let mut known: BTreeMap<u64, Arc<Shard>> = BTreeMap::new();
        for shard in before.into_iter().flat_map(|root| root.shards.values()) {
            known.insert(shard.id, Arc::clone(shard));
        }
        let mut root = Root { shards: BTreeMap::new(), ..Root::new() };
        let (mut journal, mut next) = (None, None);
        let mut after: Option<Key> = None;
        loop {
            let scan = pool.map_scan(ROOT, b"", after.as_deref(), CHUNK).await?;
            after = scan.pairs.last().map(|(key, _)| key.clone());
            for (key, value) in scan.pairs {
                match key.split_first() {
                    Some((b'a', [])) => {}
                    Some((b'j', [])) => journal = Some(number(&value)?),
                    Some((b'n', [])) => next = Some(number(&value)?),
                    Some((b't', [])) => root.tentative = Some(number(&value)?),
                    Some((b'd', [])) => {
                        let (id, from) = value.split_first_chunk::<8>().ok_or(Refused::Corrupt)?;
                        root.remains = Some((u64::from_be_bytes(*id), from.into()));
                    }
                    Some((b's', start)) => {
                        let id = number(&value)?;
                        let shard = known.remove(&id).unwrap_or_else(|| Shard::new(id));
                        root.shards.insert(start.into(), shard);
                    }
                    _ => return Err(Refused::Corrupt),
                }
            }
            if !scan.more {
                break;
            }
            if after.is_none() {
                return Err(Refused::Corrupt);
            }
        }
        let whole = journal.zip(next).filter(|_| root.shards.contains_key(&Key::default()));
        (root.journal, root.next) = whole.ok_or(Refused::Corrupt)?;
        Ok(root)
    }

    /// The shard of a key, and where the next begins.
    pub(crate) fn locate(&self, key: &[u8]) -> Option<(Arc<Shard>, Option<Key>)> {
        let (_, shard) =
            self.shards.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
        let next = self.shards.range::<[u8], _>((Bound::Excluded(key), Bound::Unbounded)).next();
        Some((Arc::clone(shard), next.map(|(start, _)| start.clone())))
    }
}
