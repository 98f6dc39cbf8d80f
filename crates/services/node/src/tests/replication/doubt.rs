//! A member loses power, and an acknowledged write with it; who resolves asks what each member
//! doubts, decides, and has all of them hold the same again.

use outboard_cluster::{Answer as Heard, Claim as Claimed, Entry, Role as Part, verdict};
use outboard_wire::shared::call::{self, Decided, Reply};

use super::left::{ask_member, claims, of_model};
use super::*;

const NODES: [u16; 3] = [1, 2, 3];

/// Power fails at these; each sector that was not flushed is kept or not.
fn power_fails(world: &mut World, nodes: &[u16]) {
    for node in nodes {
        let member = &mut world.members[usize::from(*node) - 1];
        member.rig.log.crash();
        member.rig.data.crash();
        member.options.boot += 1;
        world.restart(*node);
    }
    // Conversations begin anew.
    world.steps(50_000);
}

/// Asks until conversations are there again.
fn ask(world: &mut World, to: u16, ask: &Ask) -> (Answer, Vec<u8>) {
    for _ in 0..20 {
        let mut asking = world.begin(to, ask);
        match world.end(&mut asking) {
            Ok((answer, _)) if answer.outcome == Err(Reason::Unreached) => world.steps(10_000),
            Ok(said) => return said,
            Err(_) => {}
        }
    }
    panic!("nobody answers");
}

fn doubts(world: &World, node: u16, object: u64) -> bool {
    match ask_member(world, node, Call::Doubts { object }) {
        Reply::Number(boot) => boot == 1,
        other => other != Reply::Done,
    }
}

/// What is decided of the first strip: who doubts has no say, unless all do.
fn decide(world: &World) -> (call::Version, u16) {
    let is_all = NODES.iter().all(|node| doubts(world, *node, 1));
    let answers = NODES.map(|node| {
        let claim = claims(world, node, 0).first().copied();
        let stable = claim.map(|claim| of_model(claim.stable)).unwrap_or_default();
        let pending = claim.and_then(|claim| claim.pending);
        let pending = pending.map(|taken| (of_model(taken.version), taken.epoch));
        let is_filling = doubts(world, node, 1) && !is_all;
        let (role, joined) = if is_filling { (Part::Filling, 9) } else { (Part::Active, 1) };
        let member = Entry { node, life: 1, role, joined };
        Heard { member, claim: Claimed { stable: Some(stable), pending } }
    });
    let decided = verdict(&answers).unwrap();
    let outboard_cluster::Version { fence, seq } = decided.version;
    (call::Version { fence, sequence: seq }, decided.source)
}

/// Resolves the first strip under a fence: seal, claims, verdict. Where a member lacks it, nothing
/// of it is there any more, and it is written to all of them anew. Which version it was.
fn resolve(world: &mut World, strategy: Strategy, fence: u64) -> call::Version {
    for node in NODES {
        let sealed = ask_member(world, node, Call::Seal { object: 1, fence });
        assert!(matches!(sealed, Reply::Object(_)));
    }
    let (version, source) = decide(world);
    let mut is_lacking = false;
    for node in NODES {
        let decided = vec![Decided { strip: 0, version }];
        let resolve = Call::Resolve { object: 1, fence, epoch: 1, decided };
        if ask_member(world, node, resolve) != Reply::Claims(Vec::new()) {
            let hole = spread(Ask::hole(1, (fence, 1), 0..1 << 16), strategy, &NODES);
            assert_eq!(ask(world, node, &hole).0.outcome, Ok(()));
            is_lacking = true;
        }
    }
    if is_lacking {
        let read = spread(Ask::read(1, fence, 0, 60_000), strategy, &NODES);
        let (_, data) = ask(world, source, &read);
        let write = spread(Ask::write(1, (fence, 2), 0, data), strategy, &NODES);
        assert_eq!(ask(world, 1, &settled(write, 1)).0.outcome, Ok(()));
    }
    for node in NODES {
        ask_member(world, node, Call::FLUSH);
        if doubts(world, node, 1) {
            let trust = Call::Trust { object: 1, boot: 1 };
            assert_eq!(ask_member(world, node, trust), Reply::Done);
        }
    }
    version
}

fn reads(world: &mut World, fence: u64, strategy: Strategy) -> [Result<u8, Reason>; 3] {
    let read = spread(Ask::read(1, fence, 0, 60_000), strategy, &NODES);
    NODES.map(|node| {
        let (answer, data) = ask(world, node, &read);
        answer.outcome.map(|_| {
            assert!(data.iter().all(|byte| *byte == data[0]));
            data[0]
        })
    })
}

fn write(strategy: Strategy, version: (u64, u32), byte: u8) -> Ask {
    spread(Ask::write(1, version, 0, vec![byte; 60_000]), strategy, &NODES)
}

/// Three members with a write that all have flushed, and one over it that none has.
fn written(seed: u64, strategy: Strategy) -> World {
    let mut world = World::plain(seed, 3, 0);
    assert_eq!(world.write(&NODES, &write(strategy, (5, 1), 1)), (0, Ok(())));
    for node in NODES {
        ask_member(&world, node, Call::FLUSH);
    }
    let second = settled(write(strategy, (5, 2), 2), 1);
    assert_eq!(world.write(&NODES, &second), (0, Ok(())));
    world
}

/// The write that a member lost is there, though it was never flushed; it stays what all have.
#[test]
fn what_one_member_lost_comes_from_the_others() {
    for (strategy, lost) in STRATEGIES.into_iter().flat_map(|one| [(one, 1), (one, 2), (one, 3)]) {
        let mut world = written(7, strategy);
        power_fails(&mut world, &[lost]);
        let next = settled(write(strategy, (5, 3), 3), 2);
        let said = ask(&mut world, 1, &next).0;
        let rank = u8::try_from(lost - 1).unwrap();
        assert_eq!((said.rank, said.outcome), (rank, Err(Reason::Filling)), "{strategy:?}");
        let said = reads(&mut world, 5, strategy);
        let is_doubted = |node: &u16| said[usize::from(*node) - 1] == Err(Reason::Filling);
        assert!(NODES.iter().all(|node| is_doubted(node) == (*node == lost)), "{said:?}");
        let decided = resolve(&mut world, strategy, 6);
        assert!(decided >= call::Version { fence: 5, sequence: 2 }, "{decided:?} goes back");
        let all = reads(&mut world, 7, strategy);
        assert!(all == [Ok(2); 3] || all == [Ok(3); 3], "{strategy:?} {lost}: {all:?}");
        assert_eq!(ask(&mut world, 1, &next).0.outcome, Err(Reason::Fence), "late");
        let again = write(strategy, (7, 1), 4);
        assert_eq!(ask(&mut world, 1, &again).0.outcome, Ok(()));
        assert_eq!(reads(&mut world, 7, strategy), [Ok(4); 3]);
        assert_eq!(world.figures("doubts").iter().sum::<u64>(), 1, "of other objects");
        assert!(doubts(&world, lost, u64::MAX));
        let all = ask_member(&world, lost, Call::Trust { object: u64::MAX, boot: 1 });
        assert_eq!((all, world.figures("doubts")), (Reply::Done, vec![0; 3]));
    }
}

/// All lose power: what was flushed is at all of them, and what was not is somewhere or not.
#[test]
fn what_was_flushed_is_there_when_all_lost_power() {
    for strategy in STRATEGIES {
        let mut world = written(8, strategy);
        power_fails(&mut world, &NODES);
        assert_eq!(reads(&mut world, 5, strategy), [Err(Reason::Filling); 3]);
        assert_eq!(resolve(&mut world, strategy, 6), call::Version { fence: 5, sequence: 1 });
        assert_eq!(reads(&mut world, 7, strategy), [Ok(1); 3]);
    }
}
