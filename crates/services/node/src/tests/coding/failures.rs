//! Members that refuse, are full, slow or dead: the client hears which and why, parities keep
//! nothing of a stripe that is not whole, and the same version may be sent again.

use super::*;

fn refusing(world: &World, group: &Group, rank: usize, object: u64) {
    let node = world.members[usize::from(group.nodes[rank]) - 1].rig.node.clone();
    run(node.call(SERVER, Call::Seal { object, fence: 6 }));
}

/// The member at each rank refuses in its header handler: it is named. Where it has data, no parity
/// stores anything, as a part is missing; the others have it once.
#[test]
fn who_refuses_is_named_and_no_parity_takes_half_a_stripe() {
    for rank in 0..5 {
        let group = Group::new(3, 2, &mut Rng::new(rank as u64));
        let mut world = World::of(rank as u64, &group, 0, |_| NodeOptions::default());
        refusing(&world, &group, rank, 1);
        let asks = group.drawn(1, (5, 1), 30_000);
        let who = u8::try_from(rank).unwrap();
        for _ in 0..2 {
            let said = world.stripe(&group, &asks);
            if rank < 3 {
                // Parities tell the others whose part they lack.
                let mut expected = vec![(who, Err(Reason::Unreached)); 3];
                expected[rank].1 = Err(Reason::Fence);
                assert_eq!(said, expected);
            } else {
                assert_eq!(said, [(who, Err(Reason::Fence)); 3]);
            }
            let data_refuses = rank < 3;
            let stored: Vec<u64> =
                (0..5).map(|one| u64::from(one != rank && !(data_refuses && one >= 3))).collect();
            assert_eq!(world.of_ranks(&group, "writes"), stored, "rank {rank}");
        }
        let asks = group.drawn(1, (7, 1), 30_000);
        assert_eq!(world.stripe(&group, &asks), done(&group));
        assert!(world.is_at_rest());
        for (rank, unit) in asks.iter().enumerate() {
            let read = group.ask(Ask::read(1, 7, 0, 30_000), rank);
            assert!(world.ask(group.nodes[rank], &read).1 == unit.data);
        }
    }
}

/// A data node is busy for a moment: only that one is asked again, while the others wait for what
/// their parities say.
#[test]
fn who_was_busy_is_asked_again_alone() {
    let group = Group::plain(3, 2);
    let mut world = World::of(1, &group, 0, |number| NodeOptions {
        credit: if number == 2 { 0 } else { 64 },
        ..NodeOptions::default()
    });
    let asks = group.drawn(1, (5, 1), 30_000);
    let mut asking = world.begin_stripe(&group, &asks);
    let (busy, _) = world.end(&mut asking[1]).unwrap();
    assert_eq!((busy.rank, busy.outcome), (1, Err(Reason::Busy)));
    world.restart_as(2, NodeOptions { node: 2, ..NodeOptions::default() });
    let said = loop {
        // What was spoken with its former life has ended.
        let mut again = world.begin(2, &asks[1]);
        if let Ok((answer, _)) = world.end(&mut again) {
            break answer.outcome;
        }
    };
    assert_eq!(said, Ok(()));
    for rank in [0, 2] {
        assert_eq!(world.end(&mut asking[rank]).unwrap().0.outcome, Ok(()), "{rank}");
    }
    world.check_asked(&group, &asks, "3+2");
    assert!(world.is_at_rest());
    assert_eq!(world.figures("sums_lost"), [0; 5]);
}

/// Some data nodes are asked alone: their parts wait for those of the others for a while, then
/// they hear who is missing. Asked again all together, all have it once.
#[test]
fn parts_wait_for_the_others_and_not_for_ever() {
    let group = Group::plain(4, 2);
    let mut world = World::of(1, &group, 0, |_| NodeOptions::default());
    let asks = group.drawn(1, (5, 1), 3000);
    let begun = world.now;
    let mut some: Vec<Asking> =
        [0, 3].map(|rank| world.begin(group.nodes[rank], &asks[rank])).into();
    assert_eq!(world.end_stripe(&mut some), [(1, Err(Reason::Unreached)); 2]);
    let took = world.now - begun;
    assert!((1_900_000_000..4_500_000_000).contains(&took), "{took}");
    assert_eq!(world.of_ranks(&group, "writes"), [1, 0, 0, 1, 0, 0]);
    assert!(world.is_at_rest());
    assert_eq!(world.of_ranks(&group, "sums_lost"), [0, 0, 0, 0, 1, 1]);
    assert_eq!(world.stripe(&group, &asks), done(&group));
    assert_eq!(world.figures("writes"), [1; 6]);
    world.check_asked(&group, &asks, "4+2");
}

/// A part that comes again while its sum waits is not added again, and both are answered.
#[test]
fn a_part_that_comes_twice_is_added_once() {
    for steer in [Steer::Never, Steer::Always] {
        let group = Group::plain(3, 2);
        let mut world =
            World::of(1, &group, 0, |_| NodeOptions { steer, ..NodeOptions::default() });
        let asks = group.drawn(1, (5, 1), 40_000);
        let mut first = [0, 1].map(|rank| world.begin(group.nodes[rank], &asks[rank]));
        world.steps(300);
        assert!(first.iter_mut().all(|one| poll_once(one.as_mut()).is_pending()));
        // Of the first unit it comes three times in all, of the second twice, of the third once.
        let mut again = [world.begin(group.nodes[0], &asks[0])];
        world.steps(300);
        let mut last = world.begin_stripe(&group, &asks);
        assert_eq!(world.end_stripe(&mut last), done(&group));
        assert_eq!(world.end_stripe(&mut first), [(0, Ok(())), (1, Ok(()))]);
        assert_eq!(world.end_stripe(&mut again), [(0, Ok(()))]);
        assert_eq!(world.figures("writes"), [1; 5], "{steer:?}");
        world.check_asked(&group, &asks, "3+2");
        assert!(world.is_at_rest(), "{steer:?}");
    }
}

/// The first bytes of a unit were not what their checksum is of. Their parts had gone to the
/// parities, and when the right ones came, these were taken for the same part once more.
#[test]
fn data_that_is_not_what_its_checksum_is_of_gets_into_no_parity() {
    for (steer, len) in [(Steer::Never, 10), (Steer::Never, 40_000), (Steer::Always, 200_000)] {
        let group = Group::plain(3, 2);
        let mut world =
            World::of(1, &group, 0, |_| NodeOptions { steer, ..NodeOptions::default() });
        assert_eq!(world.stripe(&group, &group.drawn(9, (5, 1), 10)), done(&group));
        let asks = group.drawn(1, (5, 1), len);
        let mut wrong = asks[0].clone();
        *wrong.data.last_mut().unwrap() ^= 1;
        let (answer, _) = world.ask(1, &wrong);
        assert_eq!((answer.rank, answer.outcome), (0, Err(Reason::Invalid)));
        let mut others = [1, 2].map(|rank| world.begin(group.nodes[rank], &asks[rank]));
        let (answer, _) = world.ask(1, &wrong);
        assert_eq!(answer.outcome, Err(Reason::Invalid), "while others wait");
        let said = world.stripe(&group, &asks);
        let is_fine = said == done(&group) || {
            // What waited was lost with the wrong ones.
            world.stripe(&group, &asks) == done(&group)
        };
        assert!(is_fine, "{said:?}");
        let _ = world.end_stripe(&mut others);
        world.check_asked(&group, &asks, &format!("{steer:?} {len}"));
        assert!(world.is_at_rest());
    }
}

/// Two versions of a stripe at once.
#[test]
fn a_stripe_has_one_version_after_the_other() {
    let group = Group::plain(2, 1);
    let mut world = World::of(1, &group, 0, |_| NodeOptions::default());
    let first = group.drawn(1, (5, 1), 30_000);
    assert_eq!(world.stripe(&group, &first), done(&group));
    let (second, third) = (group.drawn(1, (5, 2), 30_000), group.drawn(1, (5, 3), 30_000));
    // Parts of both are added up side by side; the store has them in their order.
    let mut both = [&second, &third].map(|asks| {
        let asking = world.begin(1, &asks[0]);
        world.steps(200);
        asking
    });
    assert_eq!(world.figures("sums"), [0, 0, 2]);
    assert_eq!(world.ask(2, &second[1]).0.outcome, Ok(()));
    assert_eq!(world.ask(2, &third[1]).0.outcome, Ok(()));
    assert_eq!(world.end_stripe(&mut both), [(0, Ok(())); 2]);
    world.check_asked(&group, &third, "2+1");
}

/// Parts of one version that are not of the same rows, or go over another write.
#[test]
fn a_version_has_its_rows() {
    let group = Group::plain(2, 1);
    let mut world = World::of(1, &group, 0, |_| NodeOptions::default());
    let (longer, elsewhere, other) = (10, 11, 12);
    for object in [longer, elsewhere, other] {
        assert_eq!(world.stripe(&group, &group.drawn(object, (5, 1), 9000)), done(&group));
        let base = group.drawn(object, (5, 2), 9000);
        let units: Vec<Vec<u8>> = base.iter().map(|ask| ask.data.clone()).collect();
        let (bad, who) = match object {
            10 => (group.drawn(object, (5, 2), 9001).remove(1), 2),
            11 => (group.write(object, (5, 2), 1, &units).remove(1), 2),
            _ => (group.ask(after(base[1].clone(), 0), 1), 1),
        };
        let mut waits = world.begin(1, &base[0]);
        world.steps(100);
        let (answer, _) = world.ask(2, &bad);
        assert_eq!((answer.rank, answer.outcome), (who, Err(Reason::Order)), "{object}");
        assert!(poll_once(waits.as_mut()).is_pending(), "the first one goes on waiting");
        assert_eq!(world.end_stripe(&mut [waits]), [(1, Err(Reason::Unreached))]);
        assert!(world.is_at_rest());
    }
}

/// A data node is dead: the client finds that itself, the others hear it from the parities, which
/// have nothing. A parity is dead: all data nodes name it.
#[test]
fn a_dead_member_is_named_and_the_stripe_comes_again() {
    for rank in [0, 2, 3, 4] {
        let group = Group::new(3, 2, &mut Rng::new(rank as u64 + 9));
        let mut world = World::of(rank as u64, &group, 0, |_| NodeOptions::default());
        assert_eq!(world.stripe(&group, &group.drawn(1, (5, 1), 500)), done(&group));
        let dead = group.nodes[rank];
        world.dead.insert(dead);
        let asks = group.drawn(1, (5, 2), 50_000);
        let begun = world.now;
        let mut asking = world.begin_stripe(&group, &asks);
        for (at, one) in asking.iter_mut().enumerate() {
            let said = world.end(one).map(|(answer, _)| (answer.rank, answer.outcome));
            let unreached = Ok((u8::try_from(rank).unwrap(), Err(Reason::Unreached)));
            assert!(said == unreached || at == rank && said.is_err(), "{at}: {said:?}");
        }
        assert!(world.now - begun < 8_000_000_000, "within eight seconds");
        world.restart(dead);
        world.steps(100);
        for _ in 0..5 {
            let mut asking = world.begin_stripe(&group, &asks);
            let said: Vec<_> = asking.iter_mut().map(|one| world.end(one)).collect();
            if said.iter().all(|one| one.as_ref().is_ok_and(|(one, _)| one.outcome.is_ok())) {
                break;
            }
        }
        let writes = world.figures("writes");
        assert_eq!(world.stripe(&group, &asks), done(&group));
        assert_eq!(world.figures("writes"), writes, "nothing is done twice");
        world.check_asked(&group, &asks, &format!("rank {rank}"));
    }
}

/// A data node and a parity are cut off from each other, and the client from neither.
#[test]
fn a_cut_between_members_is_told_by_both_sides() {
    let group = Group::plain(3, 2);
    let mut world = World::of(3, &group, 0, |_| NodeOptions::default());
    world.cut.insert((2, 5));
    let asks = group.drawn(1, (5, 1), 20_000);
    let said = world.stripe(&group, &asks);
    let unreached = Err(Reason::Unreached);
    assert_eq!(said, [(1, unreached), (4, unreached), (1, unreached)]);
    assert_eq!(world.figures("writes"), [1, 1, 1, 1, 0]);
    world.cut.clear();
    assert_eq!(world.stripe(&group, &asks), done(&group));
    assert_eq!(world.figures("writes"), [1; 5]);
    world.check_asked(&group, &asks, "3+2");
}

/// A client dies in the midst of a write: all members forget it, and no parity has stored it.
#[test]
fn a_client_that_dies_leaves_nothing_at_any_parity() {
    for steer in [Steer::Never, Steer::Always] {
        let group = Group::plain(3, 2);
        let mut world =
            World::of(5, &group, 0, |_| NodeOptions { steer, ..NodeOptions::default() });
        assert_eq!(world.stripe(&group, &group.drawn(1, (5, 1), 10)), done(&group));
        let before = world.figures("writes");
        let mut asking = world.begin_stripe(&group, &group.drawn(1, (5, 2), 1 << 20));
        let busy = if steer == Steer::Never { 4 } else { 2 };
        while world.figures("descriptors")[busy] == 0 {
            world.step();
        }
        world.dead.insert(FAR);
        assert!(asking.iter_mut().all(|one| poll_once(one.as_mut()).is_pending()));
        assert!(world.is_at_rest(), "{steer:?}");
        assert_eq!(world.figures("writes"), before);
    }
}

/// All of a parity's store is promised to somebody, or it is of another epoch.
#[test]
fn a_parity_that_cannot_store_is_named() {
    let group = Group::plain(3, 2);
    let mut world = World::of(2, &group, 0, |_| NodeOptions::default());
    let mut ask = Ask::hole(50, (5, 1), 0..63 << 20);
    ask.heads.capability.end = 1 << 30;
    if let Target::Hole(hole) = &mut ask.heads.target {
        hole.share = Some(outboard_wire::shared::Share { count: 1, place: 0, strip: 1 << 16 });
    }
    let (answer, _) = world.members[4].rig.ask(ME, &ask.signed().message(), &mut Rng::new(1));
    assert_eq!(answer.outcome, Ok(()));
    let said = world.stripe(&group, &group.drawn(1, (5, 1), 900_000));
    assert_eq!(said, [(4, Err(Reason::Full)); 3]);
    let writes = world.figures("writes");
    assert_eq!(world.stripe(&group, &group.drawn(1, (5, 1), 900_000)), said);
    assert_eq!(world.figures("writes"), writes, "nothing is done twice");
    let mut world = World::of(2, &group, 0, |number| NodeOptions {
        epoch: if number == 4 { 2 } else { 1 },
        ..NodeOptions::default()
    });
    let said = world.stripe(&group, &group.drawn(1, (5, 1), 9000));
    assert_eq!(said, [(3, Err(Reason::Epoch)); 3]);
}

/// Asks until it is done, whoever dies meanwhile.
fn until_done(world: &mut World, group: &Group, asks: &[Ask], mut asking: Vec<Asking>, what: &str) {
    for _ in 0..60 {
        let said: Vec<_> = asking.iter_mut().map(|one| world.end(one)).collect();
        let mut is_done = true;
        for one in said {
            match one.map(|(answer, _)| answer.outcome) {
                Ok(Ok(())) => {}
                Ok(Err(Reason::Unreached | Reason::Busy)) | Err(_) => is_done = false,
                Ok(Err(reason)) => panic!("{what}: {reason:?}"),
            }
        }
        if is_done {
            return;
        }
        world.steps(100);
        asking = world.begin_stripe(group, asks);
    }
    panic!("{what}: not done");
}

/// Members die and come back in the midst of stripes that are asked for until they are done.
#[test]
fn stripes_get_done_though_members_die() {
    for seed in seeds(6) {
        let mut rng = Rng::new(seed);
        let (k, m) = (1 + rng.below(5), 1 + rng.below(3));
        let group = Group::new(usize::try_from(k).unwrap(), usize::try_from(m).unwrap(), &mut rng);
        let steers = [Steer::Never, Steer::Always, Steer::Overload];
        let steer = steers[usize::try_from(rng.below(3)).unwrap()];
        let options = |_| NodeOptions { steer, ..NodeOptions::default() };
        let mut world = World::of(seed, &group, rng.below(4), options);
        let size = 1 + rng.below(200_000);
        for sequence in 1..5 {
            let what = format!("seed {seed}, {k}+{m}, write {sequence}");
            let asks = group.drawn(1, (5, sequence), size);
            let asking = world.begin_stripe(&group, &asks);
            world.steps(rng.below(60));
            let dies = u16::try_from(1 + rng.below(k + m)).unwrap();
            world.dead.insert(dies);
            world.steps(rng.below(500));
            world.restart(dies);
            until_done(&mut world, &group, &asks, asking, &what);
            world.check_asked(&group, &asks, &what);
        }
        world.bad = 0;
        // What a node that died had begun is forgotten when its conversation is idle for so long.
        world.steps(700_000);
        assert!(world.is_at_rest(), "seed {seed}");
    }
}
