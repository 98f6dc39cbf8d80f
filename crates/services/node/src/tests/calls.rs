//! What the server asks of a node, and what nobody else may.

use outboard_base::Errno;
use outboard_wire::shared::Reason;
use outboard_wire::shared::call::{Call, Reply, Revoked};

use super::*;
use crate::policy::{Steer, Threat};

fn calls() -> Vec<Call> {
    vec![
        Call::Seal { object: 1, fence: u64::MAX },
        Call::Purge { object: 1, fence: 9, until: NOW },
        Call::Objects { from: 0 },
        Call::Verify { object: 1 },
        Call::Claims { object: 1, epoch: 1, from: 0 },
        Call::Resolve { object: 1, fence: u64::MAX, epoch: 1, decided: Vec::new() },
        Call::Doubts { object: 1 },
        Call::Doubts { object: u64::MAX },
        Call::Trust { object: 1, boot: 0 },
        Call::Trust { object: u64::MAX, boot: 0 },
        Call::Keys {
            keys: vec![Key { id: 1, until: u64::MAX, key: [9; 32] }],
            revoked: vec![Revoked { client: 0 }],
        },
    ]
}

/// A client, and a node, that speak like a server are refused, and nothing changes.
#[test]
fn only_a_server_commands_a_node() {
    for threat in [Threat::Ticket, Threat::Signed, Threat::EveryPacket] {
        let mut rig = Rig::new(NodeOptions { threat, ..NodeOptions::default() });
        let mut rng = Rng::new(1);
        let (answer, _) = rig.ask(ME, &Ask::write(1, (5, 1), 0, vec![7; 900]).message(), &mut rng);
        assert_eq!(answer.outcome, Ok(()));
        let before = rig.writes();
        for from in [ME, Peer::Node(1), Peer::Node(2), Peer::Client(0)] {
            for call in calls() {
                let reply = run(rig.node.call(from, call.clone()));
                assert_eq!(reply, Reply::Failed(Errno::EPERM), "{from:?} {call:?}");
            }
        }
        assert_eq!(rig.writes(), before);
        let read = Ask::read(1, 5, 0, 900).message();
        assert_eq!(rig.ask(ME, &read, &mut rng).1, vec![7; 900], "nor fence nor key has changed");
        // Where every packet has to carry a MAC, a server's calls do, too.
        rig.target.opened(SERVER, false);
        let reply = run(rig.node.call(SERVER, Call::Objects { from: 0 }));
        assert_eq!(matches!(reply, Reply::Objects(_)), threat != Threat::EveryPacket);
        let other = Call::Renew;
        rig.target.opened(SERVER, true);
        assert_eq!(run(rig.node.call(SERVER, other)), Reply::Failed(Errno::ENOSYS));
    }
}

/// A client that is nobody special installs a policy: it holds for its requests, on both paths, and
/// for nobody else's, until its conversation ends.
#[test]
fn a_client_installs_a_policy_for_itself() {
    use outboard_wire::shared::call::Policy;
    for steer in [Steer::Never, Steer::Always] {
        let mut rig = Rig::new(NodeOptions { steer, ..NodeOptions::default() });
        let mut rng = Rng::new(1);
        let other = Peer::Client(CLIENT + 1);
        let mut write = |rig: &mut Rig, from, sequence| {
            let mut ask = Ask::write(1, (5, sequence), 0, vec![7; 900]);
            if from == other {
                ask.heads.capability.client = CLIENT + 1;
            }
            rig.ask(from, &ask.signed().message(), &mut rng).0.outcome
        };
        let install = |rig: &Rig, policy| {
            assert_eq!(run(rig.node.call(ME, Call::Install { policy })), Reply::Done);
        };
        assert_eq!(write(&mut rig, ME, 1), Ok(()));
        install(&rig, Policy::ReadOnly);
        assert_eq!(write(&mut rig, ME, 2), Err(Reason::Rights));
        assert_eq!((write(&mut rig, other, 2), write(&mut rig, SERVER, 3)), (Ok(()), Ok(())));
        let before = rig.figure("steered");
        install(&rig, Policy::Steered);
        assert_eq!((write(&mut rig, ME, 4), rig.figure("steered")), (Ok(()), before + 1));
        install(&rig, Policy::Unsteered);
        assert_eq!((write(&mut rig, ME, 5), rig.figure("steered")), (Ok(()), before + 1));
        install(&rig, Policy::ReadOnly);
        assert_eq!(rig.figure("contexts"), 2);
        rig.target.ended(ME);
        rig.target.opened(ME, true);
        assert_eq!((write(&mut rig, ME, 6), rig.figure("contexts")), (Ok(()), 1));
    }
}

#[test]
fn a_seal_revokes_and_outlives_the_process() {
    let mut rig = Rig::new(NodeOptions::default());
    let mut rng = Rng::new(1);
    let write = Ask::write(1, (5, 1), 0, vec![7; 100]).message();
    assert_eq!(rig.ask(ME, &write, &mut rng).0.outcome, Ok(()));
    let Reply::Object(object) = run(rig.node.call(SERVER, Call::Seal { object: 1, fence: 6 }))
    else {
        panic!("no object");
    };
    assert_eq!((object.object, object.fence, object.end), (1, 6, 100));
    let asks = [
        // First, as a refused write would tell the handlers which fence there is.
        Ask::read(1, 5, 0, 100),
        Ask::write(1, (5, 2), 0, vec![8; 100]),
        Ask::hole(1, (5, 2), 0..50),
    ];
    for restarts in [false, true] {
        if restarts {
            rig = rig.restart(NodeOptions::default());
        }
        for ask in &asks {
            let (answer, _) = rig.ask(ME, &ask.message(), &mut rng);
            assert_eq!(answer.outcome, Err(Reason::Fence), "{restarts} {ask:?}");
            assert_eq!(answer.fence, 6, "it says which");
        }
    }
    let write = Ask::write(1, (6, 1), 50, vec![9; 50]).message();
    assert_eq!(rig.ask(ME, &write, &mut rng).0.outcome, Ok(()));
    let (_, data) = rig.ask(ME, &Ask::read(1, 6, 0, 100).message(), &mut rng);
    assert_eq!(data, [vec![7; 50], vec![9; 50]].concat());
}

const NO_OBJECTS: Reply = Reply::Objects(Vec::new());

#[test]
fn what_is_late_of_a_purged_object_does_not_bring_it_back() {
    let mut rig = Rig::new(NodeOptions::default());
    let mut rng = Rng::new(1);
    let write = Ask::write(1, (5, 1), 0, vec![7; 100]).message();
    assert_eq!(rig.ask(ME, &write, &mut rng).0.outcome, Ok(()));
    let objects =
        |rig: &Rig| assert_eq!(run(rig.node.call(SERVER, Call::Objects { from: 0 })), NO_OBJECTS);
    // Also one that this node had nothing of yet.
    for object in [1, 2] {
        let purge = Call::Purge { object, fence: 6, until: NOW };
        assert_eq!(run(rig.node.call(SERVER, purge)), Reply::Done);
    }
    // A restarted node did not know of it any more, and the object was back, of no file.
    for restarts in [false, true] {
        if restarts {
            rig = rig.restart(NodeOptions::default());
        }
        for object in [1, 2] {
            let late = Ask::write(object, (5, 2), 0, vec![7; 100]).message();
            assert_eq!(rig.ask(ME, &late, &mut rng).0.outcome, Err(Reason::Fence), "{restarts}");
        }
        objects(&rig);
    }
    assert!(rig.node.status().contains("\"tombs\":2"), "{}", rig.node.status());
    // No capability from before counts any more.
    run(rig.node.tidy(NOW));
    assert!(rig.node.status().contains("\"tombs\":0"), "{}", rig.node.status());
    objects(&rig);
    let again = Ask::write(1, (6, 1), 0, vec![8; 100]).message();
    assert_eq!(rig.ask(ME, &again, &mut rng).0.outcome, Ok(()), "its number is used again");
}

/// Whoever's key is revoked writes nothing more, not even under what it was granted before; others
/// do. What the server says next says it again.
#[test]
fn who_is_revoked_is_refused_at_once() {
    let mut rig = Rig::new(NodeOptions::default());
    let mut rng = Rng::new(1);
    let write = |sequence| Ask::write(1, (5, sequence), 0, vec![7; 100]).message();
    assert_eq!(rig.ask(ME, &write(1), &mut rng).0.outcome, Ok(()));
    let tell = |rig: &Rig, client| {
        let keys = vec![Key { id: 1, until: NOW + 1000, key: KEY }];
        let call = Call::Keys { keys, revoked: vec![Revoked { client }] };
        assert_eq!(run(rig.node.call(SERVER, call)), Reply::Done);
    };
    let number = u32::try_from(CLIENT >> 32).unwrap();
    tell(&rig, number + 1);
    assert_eq!(rig.ask(ME, &write(2), &mut rng).0.outcome, Ok(()), "another is");
    tell(&rig, number);
    let before = rig.writes();
    assert_eq!(rig.ask(ME, &write(3), &mut rng).0.outcome, Err(Reason::Revoked));
    let read = Ask::read(1, 5, 0, 100).message();
    assert_eq!(rig.ask(ME, &read, &mut rng).0.outcome, Err(Reason::Revoked));
    assert_eq!(rig.writes(), before, "nothing reached the medium");
}

#[test]
fn keys_rotate_with_the_old_one_in_force_until_it_says() {
    let mut rig = Rig::new(NodeOptions::default());
    let mut rng = Rng::new(1);
    let key = Key { id: 3, until: NOW + 5000, key: OLD_KEY };
    assert_eq!(
        run(rig.node.call(SERVER, Call::Keys { keys: vec![key], revoked: Vec::new() })),
        Reply::Done
    );
    let ask = |id: u8, key: &[u8; 32], sequence| {
        let mut ask = Ask::write(1, (5, sequence), 0, vec![7; 100]);
        ask.heads.capability.key = id;
        ask.heads.capability.expires = NOW + 9000;
        ask.heads.capability = ask.heads.capability.sign(key);
        ask.message()
    };
    assert_eq!(rig.ask(ME, &ask(1, &KEY, 1), &mut rng).0.outcome, Ok(()), "the old one");
    assert_eq!(rig.ask(ME, &ask(3, &OLD_KEY, 2), &mut rng).0.outcome, Ok(()), "the new one");
    assert_eq!(rig.ask(ME, &ask(3, &KEY, 3), &mut rng).0.outcome, Err(Reason::Forged));
    rig.node.set_wall(NOW + 1000);
    rig.node.set_wall(NOW);
    let outcome = rig.ask(ME, &ask(1, &KEY, 3), &mut rng).0.outcome;
    assert_eq!(outcome, Err(Reason::Expired), "time does not go back");
    assert_eq!(rig.ask(ME, &ask(3, &OLD_KEY, 3), &mut rng).0.outcome, Ok(()));
}

/// A seal, and the end of a capability's time, count until the store has the request.
#[test]
fn what_was_checked_is_checked_again_before_it_is_stored() {
    for steer in [crate::policy::Steer::Never, crate::policy::Steer::Always] {
        let mut rig = Rig::new(NodeOptions { steer, ..NodeOptions::default() });
        let mut rng = Rng::new(1);
        let asks = [
            Ask::write(1, (5, 1), 0, vec![7; 900]),
            Ask::read(1, 5, 0, 10),
            Ask::hole(1, (5, 1), 0..50),
        ];
        for ask in &asks {
            rig.give(ME, &ask.message(), usize::MAX, &mut rng);
        }
        let seal = Call::Seal { object: 1, fence: 6 };
        assert!(matches!(run(rig.node.call(SERVER, seal)), Reply::Object(_)));
        let before = rig.writes();
        let outcomes = |rig: &mut Rig| rig.answers().into_iter().map(|one| one.1.outcome);
        assert!(outcomes(&mut rig).eq([Err(Reason::Fence); 3]));
        for ask in &asks {
            let mut ask = ask.clone();
            ask.heads.capability.fence = 6;
            rig.give(ME, &ask.signed().message(), usize::MAX, &mut rng);
        }
        rig.node.set_wall(NOW + 1);
        assert!(outcomes(&mut rig).eq([Err(Reason::Expired); 3]));
        assert_eq!(rig.writes(), before);
    }
}

/// A layout may have strips of 128 KiB; a node's have 64.
#[test]
fn a_write_may_be_of_several_strips() {
    let mut rig = Rig::new(NodeOptions::default());
    let mut rng = Rng::new(1);
    let data = bytes(&mut rng, 150_000);
    let write = Ask::write(1, (5, 1), 30_000, data.clone()).message();
    assert_eq!(rig.ask(ME, &write, &mut rng).0.outcome, Ok(()));
    let before = rig.writes();
    assert_eq!(rig.ask(ME, &write, &mut rng).0.outcome, Ok(()));
    assert_eq!(rig.writes(), before, "not twice");
    assert!(rig.ask(ME, &Ask::read(1, 5, 30_000, 150_000).message(), &mut rng).1 == data);
}

/// Whoever asks again does not have to know that a node has just started.
#[test]
fn a_node_without_keys_is_busy() {
    let (log, data) = (Medium::new(MemMedium::new(1)), Medium::new(MemMedium::new(2)));
    let node = Node::new(store(&log, &data), NodeOptions::default());
    let mut rig = Rig { target: node.target(), node, log, data, psn: 0 };
    let (answer, _) = rig.ask(ME, &Ask::read(1, 5, 0, 10).message(), &mut Rng::new(1));
    assert_eq!(answer.outcome, Err(Reason::Busy));
}

#[test]
fn status_is_json_with_what_happened() {
    let mut rig = Rig::new(NodeOptions::default());
    let clock = std::sync::atomic::AtomicU64::new(0);
    let tick = move || clock.fetch_add(3, std::sync::atomic::Ordering::Relaxed);
    rig.node.set_clock(move || outboard_base::Time(tick()));
    let mut rng = Rng::new(1);
    rig.ask(ME, &Ask::write(1, (5, 1), 0, vec![7; 900]).message(), &mut rng);
    let Reply::Text(status) = run(rig.node.call(ME, Call::Status)) else { panic!("no text") };
    let count = |c: char| status.chars().filter(|other| *other == c).count();
    assert!(status.starts_with("{\"node\":1,\"runtime\":{") && count('{') == count('}'));
    assert!(!status.contains(",,") && !status.contains(",}") && !status.contains("{,"));
    assert!(status.contains("\"header\":{\"runs\":1,\"instructions\":1510,"), "{status}");
    let timed = "\"dma\":3,\"dma_bytes\":900,\"passed\":0,\"passed_bytes\":0,\"timed\":1,\"ns\":3}";
    assert!(status.contains(timed) && status.contains("\"requests_timed\":1,"), "{status}");
    assert_eq!((rig.figure("packets"), rig.figure("descriptors")), (3, 0));
    assert_eq!(run(rig.node.call(ME, Call::FLUSH)), Reply::Number(0), "the boot");
    run(rig.node.tidy(NOW + 7));
}
