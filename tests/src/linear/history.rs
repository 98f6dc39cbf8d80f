//! Whether what was answered of one object has an order that its promise allows: the search is Wing
//! and Gong's with Lowe's memory of states, as the crate `todc-utils` has it.
//!
//! An operation that was not answered may have happened at any later time, or never: it is searched
//! for as if it had been answered after everything else, since what happens last is seen by nobody.
//! The search is bounded: beyond that a history is [`Verdict::Undecided`].

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::rc::Rc;

use todc_utils::{Action, History, Specification, WGLChecker};

/// What a read found that no write wrote: bytes of several.
pub(super) const TORN: u64 = u64::MAX;

/// Steps of a search; each remembers some hundred bytes.
const STEPS: u64 = 100_000;
/// Operations of a history that is told.
const TOLD: usize = 24;

/// What was done with an object. Values that are written or appended are written once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A register.
    Write(u64),
    /// What it was; of a counter, too. Whoever has begun and not ended does not know yet.
    Read(u64),
    /// A list.
    Append(u64),
    /// All that was in it.
    List(Vec<u64>),
    /// A counter goes one up; what it was before, if somebody was told.
    Add(Option<u64>),
    /// A name that was not there is made.
    Take { is_sure: bool },
    /// A name that was there is removed.
    Free { is_sure: bool },
}

impl Op {
    /// What it is if nobody was answered: nothing, if it changes nothing.
    pub(super) fn unanswered(&self) -> Option<Op> {
        match self {
            Op::Read(_) | Op::List(_) => None,
            Op::Write(_) | Op::Append(_) => Some(self.clone()),
            Op::Add(_) => Some(Op::Add(None)),
            Op::Take { .. } => Some(Op::Take { is_sure: false }),
            Op::Free { .. } => Some(Op::Free { is_sure: false }),
        }
    }

    fn written(&self) -> Option<u64> {
        match self {
            Op::Write(value) | Op::Append(value) => Some(*value),
            _ => None,
        }
    }
}

/// One operation, with times of one clock.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// Who did it: a host and a thread of it.
    pub(super) who: (usize, usize),
    pub(super) op: Op,
    pub(super) called: u64,
    /// None: it was not.
    pub(super) answered: Option<u64>,
}

impl Event {
    fn is_answered_by(&self, time: u64) -> bool {
        self.answered.is_some_and(|answered| answered <= time)
    }
}

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// There is an order.
    Right,
    /// There is none.
    Wrong,
    /// The search took too long.
    Undecided,
}

thread_local! {
    /// Steps that are left to the search of this thread.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// An object: a word, a list, or a name that is there (not empty). All begin as nothing, which is 0
/// of a word.
struct Object;

/// An operation, and what the whole history says of when it can have been: in every order that is
/// right, so that the search need not look at others.
#[derive(Clone, Debug)]
struct Step {
    op: Op,
    /// How long the list was that this was appended to: as the longest one that was read says, or
    /// longer.
    len: RangeInclusive<usize>,
    /// Numbers that others were told they counted on from: nobody else did.
    counted: Rc<BTreeSet<u64>>,
}

impl Specification for Object {
    type State = Vec<u64>;
    type Operation = Step;

    fn init() -> Vec<u64> {
        Vec::new()
    }

    fn apply(Step { op, len, counted }: &Step, state: &Vec<u64>) -> (bool, Vec<u64>) {
        let left = LEFT.get();
        LEFT.set(left.saturating_sub(1));
        if left == 0 {
            // Nothing is possible any more, so that it ends.
            return (false, Vec::new());
        }
        let word = state.first().copied().unwrap_or(0);
        match op {
            Op::Write(value) => (true, vec![*value]),
            Op::Read(value) => (*value == word, state.clone()),
            Op::Append(value) => {
                let longer = state.iter().copied().chain([*value]).collect();
                (len.contains(&state.len()), longer)
            }
            Op::List(all) => (all == state, state.clone()),
            Op::Add(None) => (!counted.contains(&word), vec![word + 1]),
            Op::Add(Some(found)) => (*found == word, vec![word + 1]),
            Op::Take { is_sure } => (!is_sure || state.is_empty(), vec![1]),
            Op::Free { is_sure } => (!is_sure || !state.is_empty(), Vec::new()),
        }
    }
}

/// What a history says of its operations.
#[derive(Default)]
struct Known<'a> {
    /// All that was read.
    read: BTreeSet<u64>,
    longest: &'a [u64],
    counted: Rc<BTreeSet<u64>>,
}

impl<'a> Known<'a> {
    fn of(events: &'a [Event]) -> Known<'a> {
        let (mut known, mut counted) = (Known::default(), BTreeSet::new());
        for event in events {
            match &event.op {
                Op::Read(value) => _ = known.read.insert(*value),
                Op::List(all) => {
                    known.read.extend(all);
                    known.longest =
                        if all.len() > known.longest.len() { all } else { known.longest };
                }
                Op::Add(found) => counted.extend(found),
                _ => {}
            }
        }
        Known { counted: Rc::new(counted), ..known }
    }

    /// What nobody was answered and nobody read need not have happened.
    fn counts(&self, event: &Event) -> bool {
        let is_read = |value| self.read.contains(&value);
        event.answered.is_some() || event.op.written().is_none_or(is_read)
    }

    fn step(&self, op: &Op) -> Step {
        let place = match op {
            Op::Append(value) => self.longest.iter().position(|one| one == value),
            _ => None,
        };
        let len = place.map_or(self.longest.len()..=usize::MAX, |place| place..=place);
        Step { op: op.clone(), len, counted: Rc::clone(&self.counted) }
    }
}

/// Whether there is an order of these operations on one object that is as it is promised.
pub(super) fn verdict(events: &[Event]) -> Verdict {
    let known = Known::of(events);
    let events: Vec<&Event> = events.iter().filter(|event| known.counts(event)).collect();
    let mut points: Vec<(u64, bool, usize)> = Vec::new();
    for (nth, event) in events.iter().enumerate() {
        points.push((event.called, false, nth));
        points.push((event.answered.unwrap_or(u64::MAX), true, nth));
    }
    if points.is_empty() {
        return Verdict::Right;
    }
    // Of one moment, calls come first: they are at one time with what is answered then.
    points.sort_unstable_by_key(|(time, is_answer, _)| (*time, *is_answer));
    let action = |(_, is_answer, nth): (u64, bool, usize)| {
        let step = known.step(&events.get(nth)?.op);
        Some((nth, if is_answer { Action::Response(step) } else { Action::Call(step) }))
    };
    let actions = points.into_iter().filter_map(action).collect();
    LEFT.set(STEPS);
    let is_right = WGLChecker::<Object>::is_linearizable(History::from_actions(actions));
    match (is_right, LEFT.get()) {
        (true, _) => Verdict::Right,
        (false, 0) => Verdict::Undecided,
        (false, _) => Verdict::Wrong,
    }
}

/// What was known at a time: what was under way then has no answer.
fn known_at(events: &[Event], time: u64) -> Vec<Event> {
    let known = |event: &Event| {
        if event.is_answered_by(time) {
            return Some(event.clone());
        }
        let op = (event.called <= time).then(|| event.op.unanswered())??;
        Some(Event { op, answered: None, ..*event })
    };
    events.iter().filter_map(known).collect()
}

/// The operations that led to the first answer that no order explains.
pub(super) fn told(events: &[Event]) -> String {
    let mut times: Vec<u64> = events.iter().filter_map(|event| event.answered).collect();
    times.sort_unstable();
    let is_wrong = |time: &&u64| verdict(&known_at(events, **time)) == Verdict::Wrong;
    let end = times.iter().find(is_wrong).copied().unwrap_or(u64::MAX);
    let mut shown: Vec<&Event> = events.iter().filter(|event| event.called <= end).collect();
    shown.sort_unstable_by_key(|event| (event.answered.unwrap_or(u64::MAX), event.called));
    let open = shown.iter().filter(|event| !event.is_answered_by(end)).count();
    let mut text = String::new();
    for event in shown.iter().skip(shown.len().saturating_sub(TOLD + open)) {
        let Event { who: (host, hand), op, called, answered } = event;
        let ms = |time: u64| format!("{:.3}", time as f64 / 1e6);
        let until = answered.map_or("never".to_owned(), ms);
        let mark = if *answered == Some(end) { "  <- no order explains this" } else { "" };
        // A string takes all.
        _ = writeln!(text, "  host {host}.{hand}  {} .. {until} ms  {op:?}{mark}", ms(*called));
    }
    text
}

/// A copy with a fault that no order explains: a read of what was written over, a list without its
/// beginning, a number given twice, a name taken twice. None, if the history has no place for one.
pub(super) fn planted(events: &[Event]) -> Option<Vec<Event>> {
    let with = |nth: usize, op: Op| {
        let mut copy = events.to_vec();
        copy.get_mut(nth)?.op = op;
        Some(copy)
    };
    let ended = |event: &Event, before: &Event| {
        before.called.checked_sub(1).is_some_and(|time| event.is_answered_by(time))
    };
    for (nth, event) in events.iter().enumerate().rev() {
        match &event.op {
            Op::Read(_) => {
                let later = |one: &&Event| matches!(one.op, Op::Write(_)) && ended(one, event);
                let Some(last) = events.iter().filter(later).max_by_key(|one| one.called) else {
                    continue;
                };
                let old = events.iter().find_map(|one| match one.op {
                    Op::Write(value) if ended(one, last) => Some(value),
                    _ => None,
                });
                if let Some(old) = old {
                    return with(nth, Op::Read(old));
                }
            }
            Op::List(all) => {
                let first = all.first()?;
                let is_known = |one: &Event| one.op == Op::Append(*first) && ended(one, event);
                if events.iter().any(is_known) {
                    return with(nth, Op::List(all.iter().skip(1).copied().collect()));
                }
            }
            Op::Add(Some(_)) => {
                let other = events.iter().enumerate().find_map(|(at, one)| match one.op {
                    Op::Add(Some(found)) if at != nth => Some(found),
                    _ => None,
                })?;
                return with(nth, Op::Add(Some(other)));
            }
            Op::Take { is_sure: true } => {
                let beside = |one: &Event| {
                    let is_over = ended(one, event);
                    let is_before = event.answered.is_some_and(|answered| answered < one.called);
                    matches!(one.op, Op::Free { .. }) && !is_over && !is_before
                };
                if !events.iter().any(beside) {
                    return Some(events.iter().chain([event]).cloned().collect());
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use outboard_base::Rng;

    use super::*;

    fn event(op: Op, called: u64, answered: u64) -> Event {
        let answered = (answered != u64::MAX).then_some(answered);
        Event { who: (0, 0), op, called, answered }
    }

    const NEVER: u64 = u64::MAX;

    #[test]
    fn the_checker_knows_registers() {
        let write = |value, called, answered| event(Op::Write(value), called, answered);
        let read = |value, called, answered| event(Op::Read(value), called, answered);
        for right in [
            vec![],
            vec![read(0, 1, 2), write(1, 3, 4), read(1, 5, 6)],
            vec![write(1, 1, 9), read(0, 2, 3), read(1, 4, 5), read(1, 6, 7)],
            vec![write(1, 1, NEVER), read(0, 2, 3), read(1, 4, 5)],
            vec![write(1, 1, NEVER), read(0, 2, 3)],
            vec![write(1, 1, 5), write(2, 2, 6), read(1, 7, 8)],
            vec![write(1, 1, 3), read(1, 3, 4), read(0, 2, 3)],
        ] {
            assert_eq!(verdict(&right), Verdict::Right, "{right:?}");
        }
        for wrong in [
            vec![write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)],
            vec![write(1, 1, 2), read(0, 3, 4)],
            vec![write(1, 1, 9), read(1, 2, 3), read(0, 4, 5)],
            vec![write(1, 1, NEVER), read(1, 2, 3), read(0, 4, 5)],
            vec![write(1, 3, NEVER), read(1, 1, 2)],
            vec![write(1, 1, 2), read(TORN, 3, 4)],
        ] {
            assert_eq!(verdict(&wrong), Verdict::Wrong, "{wrong:?}");
            assert!(told(&wrong).contains("<- no order"), "{wrong:?}");
        }
    }

    #[test]
    fn the_checker_knows_lists_counters_and_names() {
        let append = |value, called, answered| event(Op::Append(value), called, answered);
        let list = |all: &[u64], called, answered| event(Op::List(all.to_vec()), called, answered);
        let add = |found, called, answered| event(Op::Add(found), called, answered);
        let take = |is_sure, called, answered| event(Op::Take { is_sure }, called, answered);
        let free = |is_sure, called, answered| event(Op::Free { is_sure }, called, answered);
        for right in [
            vec![append(1, 1, 5), append(2, 2, 6), list(&[2, 1], 7, 8)],
            vec![append(1, 1, NEVER), list(&[], 2, 3), list(&[1], 4, 5)],
            vec![add(Some(1), 1, 4), add(Some(0), 2, 3), event(Op::Read(2), 5, 6)],
            vec![add(Some(0), 1, 2), add(None, 3, NEVER), add(Some(2), 4, 5)],
            vec![add(Some(0), 1, 2), add(None, 3, NEVER), add(Some(1), 4, 5)],
            vec![take(true, 1, 2), free(true, 3, 4), take(true, 3, 5)],
            vec![take(false, 1, NEVER), free(true, 3, 4)],
        ] {
            assert_eq!(verdict(&right), Verdict::Right, "{right:?}");
        }
        for wrong in [
            vec![append(1, 1, 2), list(&[], 3, 4)],
            vec![append(1, 1, 2), list(&[1, 1], 3, 4)],
            vec![append(1, 1, NEVER), list(&[1], 2, 3), list(&[], 4, 5)],
            vec![append(1, 1, 9), append(2, 2, 9), list(&[1, 2], 3, 4), list(&[2, 1], 5, 6)],
            vec![add(Some(0), 1, 4), add(Some(0), 2, 3)],
            vec![add(Some(0), 1, 2), add(Some(2), 3, 4)],
            vec![take(true, 1, 2), take(true, 3, 4)],
            vec![free(true, 1, 2)],
            vec![take(false, 1, NEVER), free(true, 3, 4), free(true, 5, 6)],
        ] {
            assert_eq!(verdict(&wrong), Verdict::Wrong, "{wrong:?}");
        }
    }

    /// Twenty-four appends at one time have more orders than are looked at.
    #[test]
    fn a_search_that_takes_too_long_is_no_verdict() {
        let mut events: Vec<Event> = (1..=24).map(|n| event(Op::Append(n), n, 100)).collect();
        events.push(event(Op::Read(25), 101, 102));
        assert_eq!(verdict(&events), Verdict::Undecided);
    }

    /// What eight threads are shown of an object that does each operation at one moment.
    fn drawn(kind: u64, rng: &mut Rng) -> Vec<Event> {
        let (mut state, mut moments) = (Vec::new(), Vec::new());
        let mut ends = [0u64; 8];
        for value in 1..=120 {
            let hand = usize::try_from(rng.below(8)).unwrap();
            let called = ends[hand] + 1 + rng.below(30);
            let moment = called + rng.below(60);
            let answered = moment + 1 + rng.below(60);
            // One in twenty is never answered.
            ends[hand] = answered;
            let is_open = rng.chance(1, 20);
            let does = rng.chance(3, 5);
            moments.push((moment, value, hand, called, answered, is_open, does));
        }
        moments.sort_unstable();
        let mut events = Vec::new();
        for (_, value, hand, called, answered, is_open, does) in moments {
            let word = || state.first().copied().unwrap_or(0);
            let op = match (kind, does) {
                (0, true) => Op::Write(value),
                (0 | 2, false) => Op::Read(word()),
                (1, true) => Op::Append(value),
                (1, false) => Op::List(state.clone()),
                (2, true) => Op::Add(Some(word())),
                (_, true) if state.is_empty() => Op::Take { is_sure: true },
                (3, false) if !state.is_empty() => Op::Free { is_sure: true },
                _ => continue,
            };
            let op = if is_open { op.unanswered() } else { Some(op) };
            // Of what is not answered half is never done.
            let Some(op) = op else { continue };
            if !is_open || rng.chance(1, 2) {
                LEFT.set(1);
                state = Object::apply(&Known::default().step(&op), &state).1;
            }
            let answered = (!is_open).then_some(answered);
            events.push(Event { who: (hand % 2, hand), op, called, answered });
        }
        events
    }

    #[test]
    fn what_has_an_order_is_right_and_a_planted_fault_is_wrong() {
        let mut refused = 0;
        for seed in 0..16 {
            for kind in 0..4 {
                let events = drawn(kind, &mut Rng::new(seed * 4 + kind));
                assert_eq!(verdict(&events), Verdict::Right, "seed {seed}: {}", told(&events));
                if let Some(wrong) = planted(&events) {
                    assert_eq!(verdict(&wrong), Verdict::Wrong, "seed {seed}, kind {kind}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 48, "{refused} of 64 histories had a place for a fault");
    }
}
