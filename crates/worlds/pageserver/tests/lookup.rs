//! The example of an application in Rust runs, and is answered where it says.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../examples/lookup.rs"]
#[allow(unreachable_pub, reason = "an example")]
mod lookup;

/// 100 gets of what was filed; the host has the writes, the one before, the two after, and the
/// request for the number itself.
#[test]
fn the_example_runs() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(lookup::run(dir.path()).unwrap(), (100, 100 + 1 + 1 + 1 + 2 + 1));
}
