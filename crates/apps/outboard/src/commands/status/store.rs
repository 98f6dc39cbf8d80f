//! What a DPU side says of its volume's store, for people.

use std::fmt::Write;

use serde_json::{Map, Value};

fn number(value: &Value, key: &str) -> Option<u64> {
    value.get(key).and_then(Value::as_u64)
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or("?")
}

/// What a DPU side said of its store, for people; nothing if it said nothing.
pub(super) fn describe(store: &Value, human: impl Fn(u64) -> String) -> String {
    let mut out = String::new();
    if store.is_null() {
        return out;
    }
    let size = |value: &Value, key| number(value, key).map_or_else(|| "?".to_owned(), &human);
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "store        {}, {} of {}; {} of file data",
        store.get("pool").and_then(Value::as_str).unwrap_or_else(|| text(store, "engine")),
        size(store, "bytes"),
        size(store, "capacity"),
        size(store, "medium_bytes"),
    );
    if let Some(pairs) = number(store, "pairs") {
        let shards = number(store, "shards");
        let shards = shards.map_or_else(String::new, |n| format!(", at most, in {n} shards"));
        let _ = writeln!(out, "  pairs      {pairs}{shards}");
    }
    if let Some(journal) = store.get("journal").and_then(Value::as_object) {
        let _ = writeln!(out, "  journal    {}", describe_journal(journal, &human));
    }
    if let Some(claim) = store.get("claim").filter(|claim| claim.is_object()) {
        let _ = writeln!(
            out,
            "  claim      {}, for {} s more unless renewed; owner number {}",
            text(claim, "owner"),
            number(claim, "seconds_left").unwrap_or(0),
            number(claim, "epoch").unwrap_or(0),
        );
    }
    if let Some(operations) = store.get("operations").and_then(Value::as_object) {
        let _ = writeln!(
            out,
            "  answers    {} operations in flight, {} timed out; lost {} times, back {} times",
            number(store, "in_flight").unwrap_or(0),
            number(store, "timed_out").unwrap_or(0),
            number(store, "lost").unwrap_or(0),
            number(store, "found_again").unwrap_or(0),
        );
        describe_operations(operations, &mut out);
    }
    out
}

fn describe_journal(journal: &Map<String, Value>, human: impl Fn(u64) -> String) -> String {
    let number = |key: &str| journal.get(key).and_then(Value::as_u64);
    let mut parts = Vec::new();
    if let (Some(objects), Some(bytes)) = (number("objects"), number("bytes")) {
        parts.push(format!("{} in {objects} parts", human(bytes)));
    }
    if let Some(waits) = number("unapplied") {
        parts.push(format!("{waits} writes not carried on yet"));
    }
    if let (Some(commits), Some(groups)) = (number("commits"), number("groups")) {
        parts.push(format!("{commits} commits in {groups} groups"));
    }
    parts.join("; ")
}

fn describe_operations(operations: &Map<String, Value>, out: &mut String) {
    let _ = writeln!(
        out,
        "  {:<14} {:>12} {:>10} {:>10} {:>10}",
        "of the store", "count", "failed", "p50 us <", "p99 us <"
    );
    for (name, figures) in operations {
        let column = |key: &str| number(figures, key).unwrap_or(0);
        let [count, failed, p50, p99] =
            ["count", "failed", "p50_us_below", "p99_us_below"].map(column);
        let _ = writeln!(out, "  {name:<14} {count:>12} {failed:>10} {p50:>10} {p99:>10}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_known_of_a_store_is_shown() {
        let shown = |store: Value| describe(&store, |bytes| format!("{bytes} B"));
        assert_eq!(shown(Value::Null), "");
        let redb = shown(json!({
            "engine": "redb", "bytes": 7, "capacity": 9, "medium_bytes": 5, "pairs": 3,
            "journal": {"commits": 10, "groups": 4}, "in_flight": 0,
        }));
        assert!(redb.starts_with("store        redb, 7 B of 9 B; 5 B of file data\n"), "{redb}");
        assert!(redb.contains("pairs      3\n"), "{redb}");
        assert!(redb.contains("journal    10 commits in 4 groups\n"), "{redb}");
        assert!(!redb.contains("claim") && !redb.contains("in flight"), "{redb}");
        let pool = shown(json!({
            "engine": "rados", "pool": "pool `a`", "bytes": 1, "capacity": 2, "medium_bytes": 3,
            "pairs": 4, "shards": 5,
            "journal": {"objects": 6, "bytes": 7, "unapplied": 8, "commits": 9, "groups": 10},
            "claim": {"owner": "process 11", "epoch": 12, "seconds_left": 13},
            "in_flight": 14, "timed_out": 15, "lost": 16, "found_again": 17,
            "operations": {"journal write": {"count": 18, "failed": 19, "p50_us_below": 20,
                "p99_us_below": 21}},
        }));
        for part in [
            "store        pool `a`, 1 B of 2 B; 3 B of file data",
            "pairs      4, at most, in 5 shards",
            "journal    7 B in 6 parts; 8 writes not carried on yet; 9 commits in 10 groups",
            "claim      process 11, for 13 s more unless renewed; owner number 12",
            "14 operations in flight, 15 timed out; lost 16 times, back 17 times",
        ] {
            assert!(pool.contains(part), "{part}: {pool}");
        }
        let last: Vec<&str> = pool.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["journal", "write", "18", "19", "20", "21"]);
    }
}
