//! Whether what clients saw of a key is what a register shows (Wing and Gong's search, with the
//! states seen remembered). A write that was not answered may have happened at any later time, or
//! never.
//!
//! Deleting a key writes nothing, 0, into its register; FLUSHALL does so to every key: each has it
//! in its own history, with the same times. That all keys lose their values at one moment is not
//! searched for: only that each does so between call and answer.

use std::collections::HashSet;

/// The key of an operation on all keys.
pub(crate) const ALL: u64 = u64::MAX;

/// One operation on one key, or on all. Times count events of all clients; `u64::MAX` was never
/// answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) key: u64,
    /// What was written, or read; 0 is nothing.
    pub(crate) value: u64,
    pub(crate) writes: bool,
    pub(crate) called: u64,
    pub(crate) answered: u64,
}

/// What happened to one key.
pub(crate) fn of_key(history: &[Op], key: u64) -> Vec<Op> {
    history.iter().filter(|op| op.key == key || op.key == ALL).copied().collect()
}

/// Writes that were not answered: one that nobody read may be taken for one that never happened,
/// since each is unique; one that was read happened before the first of those reads was answered.
/// Deletions are not unique: see [`may_be`].
fn without_unanswered(ops: &[Op]) -> Vec<Op> {
    let first_read = |value| {
        let reads = ops.iter().filter(move |op| !op.writes && op.value == value);
        reads.map(|op| op.answered).min()
    };
    let settled = |op: &Op| {
        let is_open = op.answered == u64::MAX && op.value > 0;
        let answered = if is_open { first_read(op.value)? } else { op.answered };
        Some(Op { answered, ..*op })
    };
    ops.iter().filter_map(settled).collect()
}

fn may_be(op: &Op) -> bool {
    op.value == 0 && op.writes && op.answered == u64::MAX
}

/// Whether there is an order of `ops`, all of one key, that a register allows. Of deletions that
/// were not answered any number happens, the one that was called first first: they are all alike.
pub(crate) fn is_linearizable(ops: &[Op]) -> bool {
    let (deletions, mut ops): (Vec<Op>, Vec<Op>) =
        without_unanswered(ops).into_iter().partition(may_be);
    ops.sort_by_key(|op| op.called);
    // What is done is a prefix of the calls and a few beyond it.
    let mut seen = HashSet::new();
    let mut stack = vec![(Vec::<usize>::new(), 0usize, 0u64, 0usize)];
    while let Some((beyond, first, value, deleted)) = stack.pop() {
        if !seen.insert((beyond.clone(), first, value, deleted)) {
            continue;
        }
        let open = (first..ops.len()).filter(|at| !beyond.contains(at));
        // Of the first few: there are only so many clients at once.
        let end = open.clone().take(64).map(|at| ops[at].answered).min().unwrap_or(u64::MAX);
        if first == ops.len() {
            return true;
        }
        let called = deletions.iter().filter(|op| op.called <= end).count();
        if value != 0 && deleted < called {
            stack.push((beyond.clone(), first, 0, deleted + 1));
        }
        for at in open.take_while(|at| ops[*at].called <= end) {
            let op = ops[at];
            if !op.writes && op.value != value {
                continue;
            }
            let (mut beyond, mut first) = (beyond.clone(), first);
            beyond.push(at);
            beyond.sort_unstable();
            while beyond.first() == Some(&first) {
                beyond.remove(0);
                first += 1;
            }
            stack.push((beyond, first, if op.writes { op.value } else { value }, deleted));
        }
    }
    false
}

fn op(value: u64, writes: bool, called: u64, answered: u64) -> Op {
    Op { key: 0, value, writes, called, answered }
}

#[test]
fn the_checker_knows_registers() {
    let write = |value, called, answered| op(value, true, called, answered);
    let read = |value, called, answered| op(value, false, called, answered);
    assert!(is_linearizable(&[write(1, 1, 2), read(1, 3, 4), write(2, 5, 6), read(2, 7, 8)]));
    assert!(!is_linearizable(&[write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)]), "stale");
    assert!(!is_linearizable(&[write(1, 1, 2), read(0, 3, 4)]), "lost");
    assert!(is_linearizable(&[write(1, 1, 9), read(0, 2, 3), read(1, 4, 5), read(1, 6, 7)]));
    assert!(!is_linearizable(&[write(1, 1, 9), read(1, 2, 3), read(0, 4, 5)]), "back again");
    assert!(is_linearizable(&[write(1, 1, u64::MAX), read(0, 2, 3), read(1, 4, 5)]));
    assert!(!is_linearizable(&[write(1, 1, u64::MAX), read(1, 2, 3), read(0, 4, 5)]));
    assert!(is_linearizable(&[write(1, 1, 5), write(2, 2, 6), read(2, 7, 8)]));
    assert!(is_linearizable(&[write(1, 1, 5), write(2, 2, 6), read(1, 7, 8)]));
    let never = u64::MAX;
    assert!(is_linearizable(&[write(1, 1, 2), write(0, 3, 4), read(0, 5, 6)]), "deleted");
    assert!(!is_linearizable(&[write(1, 1, 2), write(0, 3, 4), read(1, 5, 6)]), "come back");
    assert!(is_linearizable(&[write(1, 1, 2), write(0, 3, never), read(1, 4, 5), read(0, 6, 7)]));
    assert!(is_linearizable(&[write(1, 1, 2), write(0, 3, never), read(1, 4, 5), read(1, 6, 7)]));
    let both = [write(1, 1, 2), write(0, 3, never), read(0, 4, 5), read(1, 6, 7)];
    assert!(!is_linearizable(&both), "deleted, and there again");
    let twice = [write(1, 1, 2), write(0, 3, never), read(0, 4, 5), write(2, 6, 7), read(0, 8, 9)];
    assert!(!is_linearizable(&twice), "one deletion deletes once");
    let flushed =
        [Op { key: ALL, ..write(0, 3, 4) }, Op { key: 1, ..write(5, 1, 2) }, read(1, 1, 2)];
    assert_eq!((of_key(&flushed, 1).len(), of_key(&flushed, 2).len()), (2, 1));
}
