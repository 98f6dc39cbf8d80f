//! The memory for sums: what falls to the CPU side, and stays there; who gets how much.

use std::task::Poll;

use super::*;

/// Where there is no room for a sum when the first part of a write comes, all its parts go to the
/// CPU side; it adds the same.
#[test]
fn without_room_for_a_sum_the_cpu_side_adds() {
    for (room, len, steered) in [(0, 5000, true), (5000, 5000, false), (4999, 5000, true)] {
        let group = Group::plain(4, 2);
        let options = |_| NodeOptions { sum_bytes: room, ..NodeOptions::default() };
        let mut world = World::of(3, &group, 0, options);
        let asks = group.drawn(1, (5, 1), len);
        assert_eq!(world.stripe(&group, &asks), done(&group));
        world.check_asked(&group, &asks, "4+2");
        let count = if steered { 4 } else { 0 };
        assert_eq!(world.of_ranks(&group, "steered"), [0, 0, 0, 0, count, count], "{room}");
        assert!(world.is_at_rest());
    }
}

/// Of several stripes there is room for one sum. Which are steered is decided by the first part,
/// whatever is free when others come.
#[test]
fn who_comes_first_decides_for_all_parts_of_a_write() {
    for seed in seeds(6) {
        let group = Group::new(5, 2, &mut Rng::new(seed));
        let options = |_| NodeOptions { sum_bytes: 40_000, ..NodeOptions::default() };
        let mut world = World::of(seed, &group, seed % 6, options);
        let stripes: Vec<Vec<Ask>> =
            (1..6).map(|object| group.drawn(object, (5, 1), 20_000)).collect();
        let mut asking: Vec<_> =
            stripes.iter().map(|asks| world.begin_stripe(&group, asks)).collect();
        for one in &mut asking {
            assert_eq!(world.end_stripe(one), done(&group), "seed {seed}");
        }
        for asks in &stripes {
            world.check_asked(&group, asks, &format!("seed {seed}"));
        }
        let steered = world.of_ranks(&group, "steered");
        assert!(steered.iter().all(|count| count % 5 == 0), "whole stripes: {steered:?}");
        assert!(steered.iter().sum::<u64>() > 0, "some fell to the CPU side");
        assert!(world.is_at_rest(), "seed {seed}");
    }
}

/// A node that never steers says *busy* instead.
#[test]
fn a_parity_that_never_steers_is_busy() {
    let group = Group::plain(2, 2);
    let mut world = World::of(3, &group, 0, |number| NodeOptions {
        sum_bytes: if number == 4 { 100 } else { 1 << 20 },
        steer: Steer::Never,
        ..NodeOptions::default()
    });
    let said = world.stripe(&group, &group.drawn(1, (5, 1), 5000));
    assert_eq!(said, [(3, Err(Reason::Busy)); 2]);
    assert_eq!(world.stripe(&group, &group.drawn(2, (5, 1), 50)), done(&group));
}

/// A stripe of so many bytes of each unit, of one of two clients.
fn of_client(group: &Group, client: u64, object: u64, len: usize) -> Vec<Ask> {
    let ask = |rank| {
        let mut ask = Ask::write(object, (5, 1), 0, vec![7; len]);
        ask.heads.capability.client = client;
        group.ask(ask, rank)
    };
    (0..group.k).map(ask).collect()
}

/// A client that begins many writes, and ends none, takes no more of the memory than it leaves.
#[test]
fn a_greedy_client_leaves_room_for_the_sums_of_a_modest_one() {
    let group = Group::plain(2, 1);
    let mut world = World::of(3, &group, 0, |_| NodeOptions {
        sum_bytes: 100_000,
        steer: Steer::Never,
        ..NodeOptions::default()
    });
    for (client, object) in [(CLIENT, 30), (CLIENT + 1, 31)] {
        assert_eq!(world.stripe(&group, &of_client(&group, client, object, 10)), done(&group));
    }
    // One unit of each of them.
    let greedy: Vec<Asking> = (1..11)
        .map(|object| world.begin(1, &of_client(&group, CLIENT, object, 10_000)[0]))
        .collect();
    while world.figures("sums")[2] < 5 {
        world.step();
    }
    assert_eq!(world.figures("sum_bytes")[2], 50_000);
    assert_eq!(world.stripe(&group, &of_client(&group, CLIENT + 1, 20, 40_000)), done(&group));
    drop(greedy);
    assert!(world.is_at_rest());
}

/// Many stripes at once, which come to each data node in another order, and for which none has room
/// at a time. Each of these had let in other ones, which waited for those that were kept out at the
/// others: nothing went on before their sums were given up.
#[test]
fn stripes_do_not_keep_each_other_out() {
    let stripes = 16;
    for (steer, len, room) in [(Steer::Never, 150_000, 64 << 20), (Steer::Always, 20_000, 400_000)]
    {
        let group = Group::plain(3, 2);
        let mut world = World::of(3, &group, 0, |number| NodeOptions {
            steer,
            message_bytes: if number > 3 { room } else { 64 << 20 },
            ..NodeOptions::default()
        });
        assert_eq!(world.stripe(&group, &group.drawn(99, (5, 1), 10)), done(&group));
        let all: Vec<Vec<Ask>> =
            (1..=stripes).map(|object| group.drawn(object, (5, 1), len)).collect();
        let order = |rank: usize| (0..all.len()).map(move |at| (rank, (at + 5 * rank) % 16));
        let mut asked: Vec<(usize, usize, Asking)> = (0..3)
            .flat_map(order)
            .map(|(rank, at)| (rank, at, world.begin(group.nodes[rank], &all[at][rank])))
            .collect();
        let begun = world.now;
        while !asked.is_empty() {
            world.step();
            for (rank, at, mut one) in std::mem::take(&mut asked) {
                match poll_once(one.as_mut()) {
                    Poll::Pending => asked.push((rank, at, one)),
                    Poll::Ready(said) => match said.unwrap().0.outcome {
                        Ok(()) => {}
                        Err(Reason::Busy) => {
                            let again = world.begin(group.nodes[rank], &all[at][rank]);
                            asked.push((rank, at, again));
                        }
                        Err(other) => panic!("{steer:?}: {other:?}"),
                    },
                }
            }
            assert!(world.now - begun < 60_000_000_000, "{steer:?}: {} wait", asked.len());
        }
        assert_eq!(world.figures("sums_lost"), [0; 5], "{steer:?}");
        assert!(world.figures("busy").iter().sum::<u64>() > 0, "{steer:?}: there was no room");
        assert!(world.is_at_rest());
    }
}
