//! The suite every [`Kv`] passes. The caller brings an empty store and something that polls;
//! a failure panics, naming the seed where there is one.

use std::collections::BTreeMap;

use outboard_base::Rng;

use crate::{Batch, Condition, Durability, Key, Kv, KvError, Value};

const ANSWERED: Durability = Durability::Answered;

fn batch(fill: impl FnOnce(&mut Batch)) -> Batch {
    let mut batch = Batch::new();
    fill(&mut batch);
    batch
}

/// Every rule of the port, one after the other, on one store that is empty at first.
pub async fn rules<K: Kv>(kv: &K) {
    writes_and_reads(kv).await;
    conditions(kv).await;
    versions(kv).await;
    scans(kv).await;
    limits(kv).await;
}

async fn writes_and_reads<K: Kv>(kv: &K) {
    assert_eq!(kv.get(b"w/a").await, Ok(None));
    let b = batch(|b| {
        b.put(b"w/a", b"1");
        b.put(b"w/a", b"2");
        b.put(b"w/b", b"");
        b.put(b"w/c", b"x");
        b.delete(b"w/c");
        b.delete(b"w/never");
    });
    assert_eq!(b.staged(b"w/a"), Some(Some(&Value::from(b"2"))));
    assert_eq!(b.staged(b"w/c"), Some(None));
    assert_eq!(b.staged(b"w/d"), None);
    assert_eq!(kv.commit(b, ANSWERED).await, Ok(()));
    assert_eq!(kv.get(b"w/a").await, Ok(Some(b"2".into())), "the last write wins");
    assert_eq!(kv.get(b"w/b").await, Ok(Some(b"".into())), "empty is not absent");
    assert_eq!(kv.get(b"w/c").await, Ok(None));
    let many = [Key::from(b"w/b"), Key::from(b"w/x"), Key::from(b"w/a")];
    let found = kv.get_many(&many).await;
    assert_eq!(found, Ok(vec![Some(b"".into()), None, Some(b"2".into())]));
    let durable = batch(|b| b.delete(b"w/a"));
    assert_eq!(kv.commit(durable, Durability::Durable).await, Ok(()));
    assert_eq!(kv.get(b"w/a").await, Ok(None));
    assert_eq!(kv.sync().await, Ok(()));
    assert_eq!(kv.commit(Batch::new(), ANSWERED).await, Ok(()), "an empty batch is one");
}

async fn conditions<K: Kv>(kv: &K) {
    let setup = batch(|b| b.put(b"c/here", b"v"));
    assert_eq!(kv.commit(setup, ANSWERED).await, Ok(()));
    type Require = fn(&mut Batch);
    let cases: [(Require, bool); 7] = [
        (|b| b.absent(b"c/none"), true),
        (|b| b.absent(b"c/here"), false),
        (|b| b.exists(b"c/here"), true),
        (|b| b.exists(b"c/none"), false),
        (|b| b.equals(b"c/here", b"v"), true),
        (|b| b.equals(b"c/here", b"w"), false),
        (|b| b.equals(b"c/none", b""), false),
    ];
    for (at, (require, holds)) in (0u8..).zip(cases) {
        let b = batch(|b| {
            b.exists(b"c/here");
            require(b);
            b.put([b'c', b'/', at], b"done");
        });
        let expected = if holds { Ok(()) } else { Err(KvError::Conflict) };
        assert_eq!(kv.commit(b, ANSWERED).await, expected, "case {at}");
        let applied = kv.get(&[b'c', b'/', at]).await.map(|v| v.is_some());
        assert_eq!(applied, Ok(holds), "case {at}: all or nothing");
    }
    let judged_before = batch(|b| {
        b.absent(b"c/new");
        b.put(b"c/new", b"1");
    });
    assert_eq!(kv.commit(judged_before.clone(), ANSWERED).await, Ok(()));
    assert_eq!(kv.commit(judged_before, ANSWERED).await, Err(KvError::Conflict));
}

async fn versions<K: Kv>(kv: &K) {
    let version = kv.version();
    assert_eq!(kv.get(b"v/k").await, Ok(None));
    let mut mine = Batch::at(version);
    mine.absent(b"v/k");
    mine.put(b"v/k", b"mine");
    let theirs = batch(|b| b.put(b"v/k", b"theirs"));
    assert_eq!(kv.commit(theirs, ANSWERED).await, Ok(()));
    assert_eq!(kv.commit(mine, ANSWERED).await, Err(KvError::Conflict), "seen, then overtaken");
    let version = kv.version();
    let seen = kv.get(b"v/k").await;
    assert_eq!(seen, Ok(Some(b"theirs".into())));
    let mut again = Batch::at(version);
    again.equals(b"v/k", b"theirs");
    again.delete(b"v/k");
    assert_eq!(kv.commit(again, ANSWERED).await, Ok(()));
}

async fn scans<K: Kv>(kv: &K) {
    let keys: [&[u8]; 9] = [
        b"s",
        b"s\x00",
        b"s\x00\x00",
        b"s\x01",
        b"s\xFE",
        b"s\xFF",
        b"s\xFF\xFF",
        b"s\xFF\xFFz",
        b"t",
    ];
    let fill = batch(|b| keys.iter().for_each(|key| b.put(*key, *key)));
    assert_eq!(kv.commit(fill, ANSWERED).await, Ok(()));
    let scan = async |prefix: &[u8], after: Option<&[u8]>, limit: usize| {
        let found = kv.scan(prefix, after, limit).await;
        found.map(|pairs| pairs.into_iter().map(|(key, _)| key.to_vec()).collect::<Vec<_>>())
    };
    let all = |range: std::ops::Range<usize>| -> Result<Vec<Vec<u8>>, KvError> {
        Ok(keys.iter().skip(range.start).take(range.len()).map(|key| key.to_vec()).collect())
    };
    assert_eq!(scan(b"s", None, 100).await, all(0..8));
    assert_eq!(scan(b"s", None, 3).await, all(0..3));
    assert_eq!(scan(b"s", None, 0).await, all(0..0));
    assert_eq!(scan(b"s", Some(b"s"), 100).await, all(1..8), "strictly after");
    assert_eq!(scan(b"s", Some(b"s\x00\x01"), 2).await, all(3..5), "after what is not there");
    assert_eq!(scan(b"s\xFF", None, 100).await, all(5..8), "a prefix of all ones");
    assert_eq!(scan(b"s\xFF", Some(b"s\xFF\xFFz"), 100).await, all(0..0));
    assert_eq!(scan(b"s\xFF", Some(b"a"), 100).await, all(5..8), "after something before");
    assert_eq!(scan(b"s", Some(b"t"), 100).await, all(0..0), "after something past");
    assert_eq!(scan(b"sx", None, 100).await, all(0..0));
    let gone = batch(|b| keys.iter().for_each(|key| b.delete(*key)));
    assert_eq!(kv.commit(gone, ANSWERED).await, Ok(()));
    assert_eq!(scan(b"s", None, 100).await, all(0..0), "the deleted are not seen");
}

async fn limits<K: Kv>(kv: &K) {
    let refused = Err(KvError::TooLarge);
    let long = vec![b'l'; K::KEY_MAX];
    let big = vec![b'x'; K::VALUE_MAX];
    let most = batch(|b| b.put(long.clone(), big.clone()));
    assert_eq!(kv.commit(most, ANSWERED).await, Ok(()));
    assert_eq!(kv.get(&long).await, Ok(Some(big.clone().into())));
    assert_eq!(kv.commit(batch(|b| b.put(b"", b"")), ANSWERED).await, refused, "the empty key");
    let over = batch(|b| b.put([&long[..], b"l"].concat(), b""));
    assert_eq!(kv.commit(over, ANSWERED).await, refused);
    let over = batch(|b| b.put(b"l", [&big[..], b"x"].concat()));
    assert_eq!(kv.commit(over, ANSWERED).await, refused);
    let many = batch(|b| {
        for i in 0..K::BATCH_MAX / K::VALUE_MAX {
            b.put(i.to_be_bytes(), big.clone());
        }
    });
    assert_eq!(kv.commit(many, ANSWERED).await, refused);
    assert_eq!(kv.get(&0usize.to_be_bytes()).await, Ok(None), "refused whole");
    assert_eq!(kv.commit(batch(|b| b.delete(long)), ANSWERED).await, Ok(()));
}

/// `steps` random batches, gets and scans against a map, on keys that start with `m`. Returns the
/// map, so that the caller can crash the store and look again.
pub async fn agrees_with_a_map<K: Kv>(kv: &K, seed: u64, steps: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut rng = Rng::new(seed);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (key, value) in kv.scan(b"m", None, usize::MAX >> 1).await.unwrap_or_default() {
        model.insert(key.to_vec(), value.to_vec());
    }
    for step in 0..steps {
        let why = format!("seed {seed} step {step}");
        match rng.below(4) {
            0 => {
                let key = key(&mut rng);
                let found = kv.get(&key).await.map(|v| v.map(|v| v.to_vec()));
                assert_eq!(found, Ok(model.get(&key).cloned()), "{why}");
            }
            1 => check_scan(kv, &model, &mut rng, &why).await,
            _ => step_commit(kv, &mut model, &mut rng, &why).await,
        }
    }
    model
}

fn key(rng: &mut Rng) -> Vec<u8> {
    let mut key = vec![b'm'];
    for _ in 0..rng.below(4) {
        key.push([0, 1, 0x7F, 0xFF][usize::try_from(rng.below(4)).unwrap_or(0)]);
    }
    key
}

async fn check_scan<K: Kv>(kv: &K, model: &BTreeMap<Vec<u8>, Vec<u8>>, rng: &mut Rng, why: &str) {
    let (prefix, after) = (key(rng), key(rng));
    let after = rng.chance(1, 2).then_some(&after[..]);
    let limit = usize::try_from(rng.below(20)).unwrap_or(0);
    let found = kv.scan(&prefix, after, limit).await;
    let found: Result<Vec<_>, _> =
        found.map(|pairs| pairs.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect());
    let expected = model
        .iter()
        .filter(|(k, _)| k.starts_with(&prefix) && after.is_none_or(|after| &k[..] > after));
    let expected: Vec<_> = expected.take(limit).map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(found, Ok(expected), "{why}: scan {prefix:?} after {after:?} limit {limit}");
}

async fn step_commit<K: Kv>(
    kv: &K,
    model: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    rng: &mut Rng,
    why: &str,
) {
    let version = kv.version();
    let mut batch = if rng.chance(1, 2) { Batch::at(version) } else { Batch::new() };
    let promised = batch.version().is_some();
    for _ in 0..rng.below(4) {
        let key = key(rng);
        let value = model.get(&key).cloned();
        // A batch at a version carries only conditions that were seen to hold.
        match (value, promised || rng.chance(2, 3)) {
            (Some(value), true) => batch.equals(key, value),
            (None, true) => batch.absent(key),
            (Some(_), false) => batch.absent(key),
            (None, false) => batch.exists(key),
        }
    }
    for _ in 0..rng.below(6) {
        let key = key(rng);
        if rng.chance(1, 3) {
            batch.delete(key);
        } else {
            let len = if rng.chance(1, 50) { rng.below(9000) } else { rng.below(40) };
            let mut value = vec![0; usize::try_from(len).unwrap_or(0)];
            rng.fill(&mut value);
            batch.put(key, value);
        }
    }
    let holds = |c: &Condition| c.holds(model.get(&c.key()[..]).map(|v| &v[..]));
    let expected =
        if batch.conditions().iter().all(holds) { Ok(()) } else { Err(KvError::Conflict) };
    if expected.is_ok() {
        for write in batch.writes() {
            match &write.value {
                Some(value) => model.insert(write.key.to_vec(), value.to_vec()),
                None => model.remove(&write.key[..]),
            };
        }
    }
    let durability = if rng.chance(1, 30) { Durability::Durable } else { ANSWERED };
    assert_eq!(kv.commit(batch, durability).await, expected, "{why}");
}

/// Snapshots taken amid `rounds` of random batches are what the map was then, whatever came later.
/// For engines that have them.
pub async fn snapshots<K: Kv>(kv: &K, seed: u64, rounds: u64) {
    let mut kept = Vec::new();
    for round in 0..rounds {
        let why = format!("seed {seed} round {round}");
        let model = agrees_with_a_map(kv, seed.wrapping_mul(1000).wrapping_add(round), 60).await;
        let snapshot = kv.snapshot();
        assert_eq!(snapshot.as_ref().err(), None, "{why}");
        kept.extend(snapshot.ok().map(|snapshot| (snapshot, model, why)));
    }
    for (snapshot, model, why) in &kept {
        let (mut found, mut after) = (BTreeMap::new(), None::<Key>);
        loop {
            let pairs = snapshot.scan(after.as_deref(), 7);
            assert_eq!(pairs.as_ref().err(), None, "{why}");
            let pairs = pairs.unwrap_or_default();
            let ended = pairs.len() < 7;
            after = pairs.last().map(|(key, _)| key.clone());
            found.extend(pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
            if ended {
                break;
            }
        }
        found.retain(|key, _| key.starts_with(b"m"));
        assert!(found == *model, "{why}: the snapshot is not what the store was");
    }
}
