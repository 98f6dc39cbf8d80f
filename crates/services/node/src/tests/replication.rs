//! Writes that members forward to each other, over wires that lose, double and delay: all of them
//! hold the same; who could not is named; asked again, nothing is done twice.

mod attacks;
mod doubt;
mod failures;
mod holes;
mod hyperloop;
mod left;

use outboard_base::Time;
use outboard_base::task::poll_once;
use outboard_flow::{Conversations, Gone, Net as _, NoTarget};
use outboard_wire::shared::call::Call;
use outboard_wire::shared::{Reason, Share};

use super::world::*;
use super::*;
use crate::policy::Steer;

/// A write or a read of an object that has copies on `nodes`.
fn spread(mut ask: Ask, strategy: Strategy, nodes: &[u16]) -> Ask {
    let all = Coordinates::new(&coordinates(nodes)).unwrap();
    let k = u8::try_from(nodes.len()).unwrap();
    let capability = &mut ask.heads.capability;
    (capability.strategy, capability.k, capability.group) = (strategy, k, all.group());
    if let Target::Write(write) = &mut ask.heads.target {
        (write.strategy, write.k, write.coordinates) = (strategy, k, all);
    }
    ask.signed()
}

/// Where a write may lie: in strips whose last write is the same one. Which that is.
fn place(last: &[u32], size: u64, rng: &mut Rng) -> (u64, std::ops::Range<usize>, u32) {
    loop {
        let offset = rng.below(200_000 - size);
        let strip = |at: u64| usize::try_from(at >> 16).unwrap();
        let strips = strip(offset)..strip(offset + size - 1) + 1;
        let previous = last[strips.start];
        if last[strips.clone()].iter().all(|one| *one == previous) {
            return (offset, strips, previous);
        }
    }
}

const STRATEGIES: [Strategy; 2] = [Strategy::Ring, Strategy::BinaryTree];

/// Writes of all sizes, under each strategy, handled by handlers, by the CPU side or by whom it
/// comes; each member has all of them then, once.
fn all_hold_the_same(seed: u64, k: u16, strategy: Strategy, bad: u64) {
    let mut rng = Rng::new(seed);
    let steers = [Steer::Never, Steer::Always, Steer::Overload];
    let steers: Vec<Steer> =
        (0..k).map(|_| steers[usize::try_from(rng.below(3)).unwrap()]).collect();
    let mut world = World::new(seed, k, bad, |number| NodeOptions {
        steer: steers[usize::from(number) - 1],
        ..NodeOptions::default()
    });
    let nodes = order(k, &mut rng);
    let mut contents = vec![0; 200_000];
    let mut last = [0; 4];
    for sequence in 1..4 {
        let size = 1 + rng.below(if sequence == 1 { 900 } else { 60_000 });
        let (offset, strips, previous) = place(&last, size, &mut rng);
        last[strips].fill(sequence);
        let data = bytes(&mut rng, size);
        let at = usize::try_from(offset).unwrap();
        contents[at..at + data.len()].copy_from_slice(&data);
        let ask = after(Ask::write(1, (5, sequence), offset, data), previous);
        let ask = spread(ask, strategy, &nodes);
        assert_eq!(world.write(&nodes, &ask), (0, Ok(())), "{seed} {k} {strategy:?}");
        let before = world.figures("writes");
        assert_eq!(world.write(&nodes, &ask), (0, Ok(())), "once more");
        assert_eq!(world.figures("writes"), before, "{seed}: done once");
    }
    let end = contents.iter().rposition(|byte| *byte != 0).unwrap();
    for node in &nodes {
        let read = spread(Ask::read(1, 5, 0, 200_000), strategy, &nodes);
        let (answer, data) = world.ask(*node, &read);
        assert_eq!(answer.outcome, Ok(()));
        assert!(data[..=end] == contents[..=end], "{seed} {k} {strategy:?} node {node}");
    }
    world.steps(20_000);
    assert!(world.is_quiet(), "{seed} {k} {strategy:?}");
    assert_eq!(world.figures("refused"), vec![0; usize::from(k)]);
}

#[test]
fn all_members_hold_the_same_over_a_good_wire() {
    for k in 1..=8 {
        for strategy in STRATEGIES {
            all_hold_the_same(u64::from(k), k, strategy, 0);
        }
    }
}

#[test]
fn all_members_hold_the_same_over_a_bad_wire() {
    for seed in seeds(8) {
        let k = u16::try_from(seed % 5 + 2).unwrap();
        all_hold_the_same(seed, k, STRATEGIES[usize::try_from(seed % 2).unwrap()], 3 + seed);
    }
}

/// A packet goes on as soon as it came: the last member has bytes of a write whose last ones the
/// client has not sent.
#[test]
fn packets_go_on_as_they_come() {
    for strategy in STRATEGIES {
        let mut world = World::plain(1, 4, 0);
        let nodes = [1, 2, 3, 4];
        // Everybody speaks with everybody.
        let hello = spread(Ask::write(9, (5, 1), 0, vec![1; 10]), strategy, &nodes);
        assert_eq!(world.write(&nodes, &hello), (0, Ok(())));
        let ask = spread(Ask::write(1, (5, 2), 0, vec![7; 1 << 20]), strategy, &nodes);
        let mut asking = world.begin(1, &ask);
        for _ in 0..1000 {
            world.step();
            if world.members[3].rig.figure("landed_nic") > 0 {
                break;
            }
        }
        assert_eq!(world.figures("landed_nic").iter().filter(|bytes| **bytes > 0).count(), 4);
        assert!(poll_once(asking.as_mut()).is_pending());
        assert!(world.members.iter().all(|member| member.rig.figure("accepted") < 3));
        assert_eq!(world.end(&mut asking).unwrap().0.outcome, Ok(()));
        let passed = world.members[0].rig.figure("passed_bytes");
        assert!(passed > 0, "the ledger has it");
    }
}
