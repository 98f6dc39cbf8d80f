//! The suite every [`Coordinator`] passes. The caller brings two ways to one that keeps nothing
//! under `rule.*` and `walk.*`, and a way to wait; a failure panics.

use std::collections::BTreeMap;

use outboard_base::{Errno, Rng};

use super::Coordinator;

/// Names of the walk.
const NAMES: [&str; 4] = ["walk.a", "walk.b", "walk.ba", "walk.c"];

/// Every rule, one after the other, between two parts with sessions of their own. `ends` ends the
/// session of the second as a kill would, and returns when what came with it must be gone.
pub async fn rules<C: Coordinator>(one: &C, other: &C, ends: impl AsyncFnOnce()) {
    assert_eq!((one.beat().await, other.beat().await), (Ok(()), Ok(())));
    versions(one, other).await;
    for seed in 0..8 {
        walk(one, other, seed).await;
    }
    sessions(one, other, ends).await;
}

async fn versions<C: Coordinator>(one: &C, other: &C) {
    assert_eq!(one.list("rule.").await, Ok(Vec::new()));
    assert_eq!(one.put("rule.a", "1", Some(1), true).await, Err(Errno::ENOENT));
    assert_eq!(one.put("rule.a", "1", None, true).await, Ok(()));
    assert_eq!(other.put("rule.a", "2", None, true).await, Err(Errno::EEXIST));
    let all = other.list("rule.").await;
    let first = all.ok().and_then(|all| all.first().cloned());
    assert!(first.is_some(), "what one part put the other sees");
    let Some(first) = first else { return };
    assert_eq!((first.name.as_str(), first.value.as_str(), first.passes), ("rule.a", "1", false));
    assert_eq!(other.put("rule.a", "2", Some(first.version), true).await, Ok(()));
    let late = one.put("rule.a", "3", Some(first.version), true).await;
    assert_eq!(late, Err(Errno::ESTALE), "who has not seen the change changes nothing");
    assert_eq!(one.remove("rule.a", first.version).await, Err(Errno::ESTALE));
    let all = one.list("rule.a").await.unwrap_or_default();
    assert_eq!(all.first().map(|entry| entry.value.as_str()), Some("2"));
    for entry in all {
        assert_eq!(one.remove("rule.a", entry.version).await, Ok(()));
    }
    assert_eq!(one.remove("rule.a", first.version).await, Err(Errno::ENOENT));
    assert_eq!(other.list("rule.").await, Ok(Vec::new()));
}

/// Random changes by two parts, against a map.
async fn walk<C: Coordinator>(one: &C, other: &C, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut model: BTreeMap<&str, (String, bool)> = BTreeMap::new();
    for step in 0..40 {
        let who = if rng.chance(1, 2) { one } else { other };
        let at = usize::try_from(rng.below(NAMES.len() as u64)).unwrap_or(0);
        let name = NAMES.get(at).copied().unwrap_or_default();
        let known = who.list(name).await.unwrap_or_default();
        let known = known.into_iter().find(|entry| entry.name == name);
        let (value, stays) = (format!("{seed} {step}"), rng.chance(1, 2));
        match (known, rng.below(3)) {
            (Some(known), 0) => {
                assert_eq!(who.remove(name, known.version).await, Ok(()), "seed {seed}");
                model.remove(name);
            }
            (Some(known), _) => {
                let put = who.put(name, &value, Some(known.version), stays).await;
                assert_eq!(put, Ok(()), "seed {seed}");
                model.insert(name, (value, !stays));
            }
            (None, _) => {
                assert_eq!(who.put(name, &value, None, stays).await, Ok(()), "seed {seed}");
                model.insert(name, (value, !stays));
            }
        }
        let all = one.list("walk.").await.unwrap_or_default();
        let seen =
            all.iter().map(|entry| (entry.name.as_str(), (entry.value.clone(), entry.passes)));
        assert!(seen.eq(model.iter().map(|(name, kept)| (*name, kept.clone()))), "seed {seed}");
    }
    for entry in one.list("walk.").await.unwrap_or_default() {
        assert_eq!(one.remove(&entry.name, entry.version).await, Ok(()));
    }
}

async fn sessions<C: Coordinator>(one: &C, other: &C, ends: impl AsyncFnOnce()) {
    assert_eq!(one.put("rule.one", "1", None, false).await, Ok(()));
    assert_eq!(other.put("rule.other", "2", None, false).await, Ok(()));
    assert_eq!(other.put("rule.stays", "3", None, true).await, Ok(()));
    // What is put in the place of another's goes with who put it.
    assert_eq!(one.put("rule.over", "4", None, false).await, Ok(()));
    let over = one.list("rule.over").await.unwrap_or_default();
    let over = over.first().map(|entry| entry.version);
    assert_eq!(other.put("rule.over", "5", over, false).await, Ok(()));
    ends().await;
    let all = one.list("rule.").await.unwrap_or_default();
    let names: Vec<&str> = all.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["rule.one", "rule.stays"], "what came with a session goes with it");
    for entry in &all {
        assert_eq!(one.remove(&entry.name, entry.version).await, Ok(()));
    }
}
