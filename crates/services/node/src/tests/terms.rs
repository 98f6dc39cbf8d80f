//! A server stood still while another took its place, and goes on with what it had begun: late
//! calls of it are refused, whatever befell the node meanwhile.

use std::pin::pin;

use outboard_base::Errno;
use outboard_base::planted::{Fault, plant};
use outboard_base::task::poll_once;
use outboard_medium::mem::Faults;
use outboard_wire::shared::Reason;
use outboard_wire::shared::call::{Call, Key, Reply, Revoked};

use super::*;

const OLD: u32 = 4;
const NEW: u32 = 5;

/// A fence that is granted in a term.
fn fence(term: u32) -> u64 {
    (u64::from(term) << 32) + 7
}

/// What changes something.
fn changes(term: u32) -> [Call; 6] {
    let fence = fence(term) + 1;
    [
        Call::Keys { keys: vec![Key { id: 1, until: NOW + 9, key: KEY }], revoked: Vec::new() },
        Call::Resolve { object: 1, fence, epoch: 1, decided: Vec::new() },
        Call::Trust { object: 1, boot: 0 },
        Call::Trust { object: u64::MAX, boot: 0 },
        Call::Seal { object: 1, fence },
        Call::Purge { object: 1, fence, until: NOW + 9 },
    ]
}

impl Rig {
    fn told_in(&self, term: u32, call: &Call) -> Reply {
        run(self.node.call(SERVER, call.in_term(term)))
    }

    /// A server tells keys, which is the first that it asks to be changed.
    fn hears(&self, term: u32) {
        let number = u32::try_from(CLIENT >> 32).unwrap();
        let keys = vec![Key { id: 1, until: NOW + 1000, key: KEY }];
        let revoked = vec![Revoked { client: number + term }];
        assert_eq!(self.told_in(term, &Call::Keys { keys, revoked }), Reply::Done);
    }

    fn writes_in(&mut self, term: u32, sequence: u32) -> Result<(), Reason> {
        let ask = Ask::write(1, (fence(term), sequence), 0, vec![7; 900]);
        self.ask(ME, &ask.message(), &mut Rng::new(1)).0.outcome.map(|_| ())
    }
}

#[test]
fn late_calls_of_a_server_are_refused() {
    for (restarts, power) in [(false, false), (true, false), (true, true)] {
        let mut rig = Rig::new(NodeOptions::default());
        rig.hears(OLD);
        assert_eq!((rig.writes_in(OLD, 1), rig.writes_in(NEW, 1)), (Ok(()), Ok(())));
        assert_eq!(run(rig.node.call(SERVER, Call::FLUSH)), Reply::Number(0));
        rig.hears(NEW);
        if power {
            rig.log.crash();
            rig.data.crash();
        }
        if restarts {
            rig = rig.restart(NodeOptions::default());
        }
        assert_eq!(rig.figure("term"), u64::from(NEW), "{restarts} {power}");
        rig.hears(NEW);
        let before = rig.writes();
        let calls = changes(OLD);
        for call in &calls {
            assert_eq!(rig.told_in(OLD, call), Reply::Later { term: NEW }, "{call:?}");
            // Nor without a word of it, as servers asked that were before terms.
            let reply = run(rig.node.call(SERVER, call.clone()));
            assert_eq!(reply, Reply::Later { term: NEW }, "{call:?}");
        }
        assert_eq!((rig.figure("late_calls"), rig.writes()), (2 * calls.len() as u64, before));
        let looks = Call::Objects { from: 0 };
        assert_eq!(rig.told_in(OLD, &looks), Reply::Later { term: NEW }, "it is told at once");
        assert!(
            matches!(run(rig.node.call(SERVER, looks)), Reply::Objects(_)),
            "that harms nobody"
        );
        assert_eq!(rig.writes_in(NEW, 2), Ok(()), "neither purged nor sealed, and the key counts");
        for call in changes(NEW) {
            let reply = rig.told_in(NEW, &call);
            assert!(!matches!(reply, Reply::Later { .. } | Reply::Failed(_)), "{call:?} {reply:?}");
        }
    }
}

/// Whoever starts the same server again has a later term, without anything being between.
#[test]
fn a_server_that_starts_again_is_heard() {
    let rig = Rig::new(NodeOptions::default());
    for term in [1, 2, 3, 9] {
        rig.hears(term);
        assert_eq!(rig.figure("term"), u64::from(term));
    }
    assert_eq!(rig.figure("late_calls"), 0);
    let newest = run(rig.node.call(SERVER, Call::Newest));
    let Reply::Object(newest) = newest else { panic!("{newest:?}") };
    assert_eq!(newest.fence >> 32, 9, "who begins counts on from there");
}

/// Nobody but who proved to be a server says a term.
#[test]
fn only_a_server_says_a_term() {
    let rig = Rig::new(NodeOptions::default());
    for from in [ME, Peer::Node(2), Peer::Coordinator(0)] {
        for call in changes(NEW).into_iter().chain([Call::FLUSH, Call::Objects { from: 0 }]) {
            let reply = run(rig.node.call(from, call.in_term(u32::MAX)));
            assert_eq!(reply, Reply::Failed(Errno::EPERM), "{from:?} {call:?}");
        }
    }
    let twice = Call::FLUSH.in_term(NEW).in_term(NEW);
    let none = Call::InTerm { term: NEW, call: vec![0xFF] };
    for call in [twice, none] {
        assert_eq!(run(rig.node.call(SERVER, call)), Reply::Failed(Errno::EPROTO));
    }
    assert_eq!((rig.figure("term"), rig.figure("late_calls")), (0, 0));
}

/// A call of the server before is under way when one of its successor comes: that waits for it, and
/// what comes of the first behind it is refused.
#[test]
fn what_is_under_way_ends_before_the_next_server_is_heard() {
    for polls in 0..40 {
        let mut rig = Rig::new(NodeOptions::default());
        rig.hears(OLD);
        assert_eq!(rig.writes_in(OLD, 1), Ok(()));
        let faults = Faults { delay_polls: 3, ..Faults::default() };
        [&rig.log, &rig.data].iter().for_each(|medium| medium.set_faults(faults));
        let purge = Call::Purge { object: 1, fence: fence(OLD) + 1, until: NOW + 9 };
        let mut first = pin!(rig.node.call(SERVER, purge.in_term(OLD)));
        let is_done = (0..polls).any(|_| poll_once(first.as_mut()).is_ready());
        let seal = Call::Seal { object: 1, fence: fence(NEW) };
        let mut next = pin!(rig.node.call(SERVER, seal.in_term(NEW)));
        let mut outcomes = (None, None);
        for _ in 0..1000 {
            if outcomes.1.is_none()
                && let std::task::Poll::Ready(reply) = poll_once(next.as_mut())
            {
                let is_decided = is_done || polls == 0 || outcomes.0.is_some();
                assert!(is_decided, "{polls}: the next is answered while the first goes on");
                outcomes.1 = Some(reply);
            }
            if !is_done
                && outcomes.0.is_none()
                && let std::task::Poll::Ready(reply) = poll_once(first.as_mut())
            {
                outcomes.0 = Some(reply);
            }
        }
        assert!(matches!(outcomes.1, Some(Reply::Object(_))), "{polls} {outcomes:?}");
        let expected = if polls == 0 { Reply::Later { term: NEW } } else { Reply::Done };
        assert!(is_done || outcomes.0 == Some(expected), "{polls} {outcomes:?}");
        let again = run(rig.node.call(SERVER, purge.in_term(OLD)));
        assert_eq!(again, Reply::Later { term: NEW });
    }
}

/// Power is lost at any moment of the first call of a term: it is not half there. What was done of
/// it, its term is durable.
#[test]
fn a_term_is_durable_before_anything_is_done_of_it() {
    for polls in 1..60 {
        let mut rig = Rig::new(NodeOptions::default());
        rig.hears(OLD);
        assert_eq!(rig.writes_in(OLD, 1), Ok(()));
        run(rig.node.call(SERVER, Call::FLUSH));
        let faults = Faults { delay_polls: 3, ..Faults::default() };
        [&rig.log, &rig.data].iter().for_each(|medium| medium.set_faults(faults));
        let purge = Call::Purge { object: 1, fence: fence(NEW), until: NOW + 9 };
        let is_done = {
            let mut first = pin!(rig.node.call(SERVER, purge.in_term(NEW)));
            (0..polls).any(|_| poll_once(first.as_mut()).is_ready())
        };
        [&rig.log, &rig.data].iter().for_each(|medium| medium.set_faults(Faults::default()));
        rig.log.crash();
        rig.data.crash();
        rig = rig.restart(NodeOptions::default());
        let term = rig.figure("term");
        let is_there = rig.node.objects(1, 1).first().is_some_and(|object| object.object == 1);
        assert!(is_there || term == u64::from(NEW), "{polls}");
        assert!(!is_done || term == u64::from(NEW), "{polls}");
    }
}

/// A node whose media take nothing is told keys all the same, so that what is there is read. What
/// would be durable is not done, as its term is not.
#[test]
fn without_room_for_a_term_keys_are_taken_and_nothing_is_changed() {
    let mut rig = Rig::new(NodeOptions::default());
    rig.hears(OLD);
    assert_eq!(rig.writes_in(OLD, 1), Ok(()));
    let faults = Faults { write_fails: 1, ..Faults::default() };
    rig.log.set_faults(faults);
    rig.hears(NEW);
    assert_eq!((rig.figure("term"), rig.figure("keys")), (u64::from(NEW), 1));
    let read = Ask::read(1, fence(OLD), 0, 900).message();
    assert_eq!(rig.ask(ME, &read, &mut Rng::new(1)).1, vec![7; 900]);
    for call in changes(NEW).into_iter().skip(1) {
        assert!(matches!(rig.told_in(NEW, &call), Reply::Failed(_)), "{call:?}");
    }
    assert_eq!(rig.told_in(OLD, &changes(OLD)[0]), Reply::Later { term: NEW });
}

/// A node that the next server has not spoken with yet: clients have. A purge below their fences is
/// of what was there before.
#[test]
fn what_was_made_anew_is_not_purged_under_an_old_fence() {
    let mut rig = Rig::new(NodeOptions::default());
    rig.hears(OLD);
    assert_eq!(rig.writes_in(NEW, 1), Ok(()));
    let purge = |fence| Call::Purge { object: 1, fence, until: NOW + 9 };
    let late = rig.told_in(OLD, &purge(fence(OLD)));
    assert_eq!(late, Reply::Failed(Errno::ESTALE));
    let read = Ask::read(1, fence(NEW), 0, 900).message();
    assert_eq!(rig.ask(ME, &read, &mut Rng::new(1)).1, vec![7; 900]);
    assert_eq!(rig.told_in(NEW, &purge(fence(NEW) + 1)), Reply::Done);
}

/// These tests miss the rule where it is taken away.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "nothing is planted in such a build")]
fn without_the_rule_late_calls_are_done() {
    let mut rig = Rig::new(NodeOptions::default());
    rig.hears(OLD);
    assert_eq!(rig.writes_in(OLD, 1), Ok(()));
    rig.hears(NEW);
    plant(Some(Fault::Term));
    let replies = changes(OLD).map(|call| rig.told_in(OLD, &call));
    plant(None);
    assert!(replies.iter().all(|reply| !matches!(reply, Reply::Later { .. } | Reply::Failed(_))));
    assert_eq!(run(rig.node.call(SERVER, Call::Objects { from: 1 })), Reply::Objects(Vec::new()));
}
