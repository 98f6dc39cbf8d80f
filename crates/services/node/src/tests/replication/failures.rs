//! Members that refuse, are full, slow or dead: the client hears which and why, and the same
//! version may be sent again.

use super::*;

fn of_size(strategy: Strategy, sequence: u32, nodes: &[u16], len: usize) -> Ask {
    let ask = after(Ask::write(1, (5, sequence), 0, vec![7; len]), sequence - 1);
    spread(ask, strategy, nodes)
}

/// Ranks that have the write of `sequence` stored, by what they did.
fn stored(world: &World, nodes: &[u16], before: &[u64]) -> Vec<usize> {
    let now = world.figures("writes");
    let has = |rank: &usize| {
        let at = usize::from(nodes[*rank]) - 1;
        now[at] > before[at]
    };
    (0..nodes.len()).filter(has).collect()
}

/// The member at each rank of rings and trees refuses in its header handler: it is named, those
/// behind it got nothing, the others have it; once it takes it, all have it, each once.
#[test]
fn who_refuses_is_named_and_nothing_goes_past_it() {
    for (strategy, rank) in STRATEGIES.into_iter().flat_map(|one| (0..6u8).map(move |at| (one, at)))
    {
        let mut world = World::plain(u64::from(rank), 6, 0);
        let nodes = order(6, &mut Rng::new(u64::from(rank) + 9));
        let refuses = usize::from(nodes[usize::from(rank)]) - 1;
        let node = world.members[refuses].rig.node.clone();
        run(node.call(SERVER, Call::Seal { object: 1, fence: 6 }));
        let ask = of_size(strategy, 1, &nodes, 30_000);
        let before = world.figures("writes");
        for _ in 0..2 {
            assert_eq!(world.write(&nodes, &ask), (rank, Err(Reason::Fence)), "{strategy:?}");
            let others = (0..6).filter(|other| !strategy.comes_by(*other, rank));
            let others: Vec<usize> = others.map(usize::from).collect();
            assert_eq!(stored(&world, &nodes, &before), others, "{strategy:?} {rank}");
        }
        let once: u64 = world.figures("writes").iter().sum();
        assert_eq!(once, stored(&world, &nodes, &before).len() as u64, "done once");
        // The writer is granted a higher fence.
        let again = spread(Ask::write(1, (7, 1), 0, vec![8; 30_000]), strategy, &nodes);
        assert_eq!(world.write(&nodes, &again), (0, Ok(())));
        world.steps(20_000);
        assert!(world.is_quiet());
    }
}

#[test]
fn another_epoch_is_told() {
    let epoch = |number| if number == 3 { 2 } else { 1 };
    let mut world = World::new(1, 4, 0, |number| NodeOptions {
        epoch: epoch(number),
        ..NodeOptions::default()
    });
    for strategy in STRATEGIES {
        let nodes = [1, 2, 3, 4];
        let said = world.write(&nodes, &of_size(strategy, 1, &nodes, 9000));
        assert_eq!(said, (2, Err(Reason::Epoch)), "{strategy:?}");
    }
}

/// A member without room refuses as busy.
#[test]
fn a_busy_member_is_named() {
    for strategy in STRATEGIES {
        let mut world = World::new(2, 4, 0, |number| NodeOptions {
            message_bytes: if number == 2 { 20_000 } else { 64 << 20 },
            steer: Steer::Never,
            ..NodeOptions::default()
        });
        let nodes = [1, 2, 3, 4];
        let said = world.write(&nodes, &of_size(strategy, 1, &nodes, 30_000));
        assert_eq!(said, (1, Err(Reason::Busy)), "{strategy:?}");
        let other = [1, 3, 4];
        let ask = spread(Ask::write(2, (5, 1), 0, vec![7; 30_000]), strategy, &other);
        assert_eq!(world.write(&other, &ask), (0, Ok(())), "who is asked past it is served");
    }
}

/// All of a store is promised to somebody: the member says so, and those behind it have the write.
#[test]
fn a_full_member_is_named() {
    for strategy in STRATEGIES {
        let mut world = World::plain(2, 4, 0);
        let nodes = [1, 2, 3, 4];
        let mut ask = Ask::hole(50, (5, 1), 0..63 << 20);
        ask.heads.capability.end = 1 << 30;
        if let Target::Hole(hole) = &mut ask.heads.target {
            hole.share = Some(Share { count: 1, place: 0, strip: 1 << 16 });
        }
        let full = &mut world.members[1].rig;
        let (answer, _) = full.ask(ME, &ask.signed().message(), &mut Rng::new(1));
        assert_eq!(answer.outcome, Ok(()));
        let ask = of_size(strategy, 1, &nodes, 900_000);
        let before = world.figures("writes");
        assert_eq!(world.write(&nodes, &ask), (1, Err(Reason::Full)), "{strategy:?}");
        let had = stored(&world, &nodes, &before);
        assert!([0, 2, 3].iter().all(|rank| had.contains(rank)), "{strategy:?}: {had:?}");
        let writes = world.figures("writes");
        assert_eq!(world.write(&nodes, &ask), (1, Err(Reason::Full)));
        assert_eq!(world.figures("writes"), writes, "nothing is done twice");
    }
}

/// A member that is dead is named once its predecessor has given it up; when it is back, the same
/// version is done by those that lack it, and by nobody twice.
#[test]
fn a_dead_member_is_named_and_the_write_comes_again() {
    for (strategy, rank, seed) in [
        (Strategy::Ring, 1, 1),
        (Strategy::Ring, 3, 2),
        (Strategy::BinaryTree, 1, 3),
        (Strategy::BinaryTree, 2, 4),
    ] {
        let mut world = World::plain(seed, 4, 0);
        let nodes = order(4, &mut Rng::new(seed));
        assert_eq!(world.write(&nodes, &of_size(strategy, 1, &nodes, 500)), (0, Ok(())));
        let dead = nodes[rank];
        world.dead.insert(dead);
        let before = world.figures("writes");
        let ask = of_size(strategy, 2, &nodes, 50_000);
        let rank = u8::try_from(rank).unwrap();
        let begun = world.now;
        assert_eq!(world.write(&nodes, &ask), (rank, Err(Reason::Unreached)), "{strategy:?}");
        assert!(world.now - begun < 8_000_000_000, "within eight seconds");
        let had = stored(&world, &nodes, &before).len();
        world.restart(dead);
        let came = stored(&world, &nodes, &before).len();
        assert_eq!(world.write(&nodes, &ask), (0, Ok(())));
        assert!(had < 4 && came <= 4);
        for node in &nodes {
            let read = spread(Ask::read(1, 5, 0, 50_000), strategy, &nodes);
            assert!(world.ask(*node, &read).1 == vec![7; 50_000], "node {node}");
        }
        let writes = world.figures("writes");
        assert_eq!(world.write(&nodes, &ask), (0, Ok(())));
        assert_eq!(world.figures("writes"), writes, "nothing is done twice");
    }
}

/// Two members are cut off from each other, and the client from neither.
#[test]
fn a_cut_between_members_is_told_by_the_first_of_them() {
    let mut world = World::plain(3, 3, 0);
    let nodes = [1, 2, 3];
    world.cut.insert((2, 3));
    let ask = of_size(Strategy::Ring, 1, &nodes, 20_000);
    assert_eq!(world.write(&nodes, &ask), (2, Err(Reason::Unreached)));
    world.cut.clear();
    assert_eq!(world.write(&nodes, &ask), (0, Ok(())));
    assert_eq!(world.figures("writes"), [1, 1, 1]);
}

/// Members die and come back in the midst of writes that are asked for until they are done.
#[test]
fn writes_get_done_though_members_die() {
    for seed in seeds(6) {
        let mut rng = Rng::new(seed);
        let strategy = STRATEGIES[usize::try_from(rng.below(2)).unwrap()];
        let k = u16::try_from(2 + rng.below(4)).unwrap();
        let mut world = World::plain(seed, k, rng.below(4));
        let nodes = order(k, &mut rng);
        let size = 1 + rng.below(200_000);
        for sequence in 1..5 {
            let data = bytes(&mut rng, size);
            let ask = after(Ask::write(1, (5, sequence), 0, data.clone()), sequence - 1);
            let ask = spread(ask, strategy, &nodes);
            let mut asking = world.begin(nodes[0], &ask);
            world.steps(rng.below(60));
            let dies = u16::try_from(1 + rng.below(u64::from(k))).unwrap();
            world.dead.insert(dies);
            world.steps(rng.below(500));
            world.restart(dies);
            let mut said = world.end(&mut asking).map(|(answer, _)| answer.outcome);
            for _ in 0..50 {
                match said {
                    Ok(Ok(())) => break,
                    Ok(Err(Reason::Unreached | Reason::Busy)) | Err(_) => {}
                    Ok(Err(reason)) => panic!("{seed}: {reason:?}"),
                }
                world.steps(100);
                let mut asking = world.begin(nodes[0], &ask);
                said = world.end(&mut asking).map(|(answer, _)| answer.outcome);
            }
            assert_eq!(said, Ok(Ok(())), "seed {seed}");
            let len = u32::try_from(data.len()).unwrap();
            for node in &nodes {
                let read = spread(Ask::read(1, 5, 0, len), strategy, &nodes);
                let got = loop {
                    // What was spoken in an earlier life of the node has ended.
                    let mut asking = world.begin(*node, &read);
                    if let Ok((_, got)) = world.end(&mut asking) {
                        break got;
                    }
                };
                assert!(got == data, "seed {seed}, node {node}");
            }
        }
        world.bad = 0;
        // A predecessor that died is forgotten when its conversation is idle for so long.
        world.steps(700_000);
        assert!(world.is_quiet(), "seed {seed}");
    }
}

/// A client dies in the midst of a write: all members forget it, and none has stored it.
#[test]
fn a_client_that_dies_leaves_nothing_at_any_member() {
    for strategy in STRATEGIES {
        let mut world = World::plain(5, 5, 0);
        let nodes = [1, 2, 3, 4, 5];
        assert_eq!(world.write(&nodes, &of_size(strategy, 1, &nodes, 10)), (0, Ok(())));
        let before = world.figures("writes");
        let mut asking = world.begin(1, &of_size(strategy, 2, &nodes, 1 << 20));
        while world.members[4].rig.figure("descriptors") == 0 {
            world.step();
        }
        world.dead.insert(FAR);
        assert!(poll_once(asking.as_mut()).is_pending());
        world.steps(15_000);
        assert_eq!(world.figures("cleaned"), [1; 5], "{strategy:?}");
        assert_eq!(world.figures("writes"), before);
        assert!(world.is_quiet());
    }
}

/// A successor that takes nothing makes its predecessor busy for what goes there, within bounds;
/// what goes elsewhere is served meanwhile.
#[test]
fn a_slow_successor_makes_busy_and_keeps_nobody_else_waiting() {
    let mut world = World::new(6, 3, 0, |_| NodeOptions {
        message_bytes: 4 << 20,
        steer: Steer::Never,
        ..NodeOptions::default()
    });
    let (slow, quick) = ([1, 2], [1, 3]);
    for nodes in [slow, quick] {
        assert_eq!(world.write(&nodes, &of_size(Strategy::Ring, 1, &nodes, 10)), (0, Ok(())));
    }
    world.cut.insert((1, 2));
    let ask =
        |object| spread(Ask::write(object, (5, 2), 0, vec![7; 500_000]), Strategy::Ring, &slow);
    let mut asked: Vec<Asking> = (10..20).map(|object| world.begin(1, &ask(object))).collect();
    world.steps(300);
    let landed = world.members[0].rig.figure("landed_nic");
    assert!(landed <= 4 << 20, "{landed}");
    let nodes = quick;
    let other = spread(Ask::write(9, (5, 2), 0, vec![7; 90_000]), Strategy::Ring, &nodes);
    let (begun, said) = (world.now, world.write(&nodes, &other));
    assert_eq!((said, world.now - begun < 100_000_000), ((0, Ok(())), true));
    world.cut.clear();
    let outcomes: Vec<_> = asked.iter_mut().map(|one| world.end(one).unwrap().0.outcome).collect();
    assert!(outcomes.contains(&Err(Reason::Busy)) && outcomes.contains(&Ok(())), "{outcomes:?}");
}

/// A request waited for its answer with all that it had taken. What a successor has acknowledged is
/// kept for nobody, nor what is stored; what goes to one that takes nothing is.
#[test]
fn what_has_gone_to_a_successor_takes_no_room() {
    for steer in [Steer::Never, Steer::Always] {
        let mut world = World::new(6, 3, 0, |_| NodeOptions { steer, ..NodeOptions::default() });
        let nodes = [1, 2, 3];
        let hello = of_size(Strategy::Ring, 1, &nodes, 300_000);
        assert_eq!(world.write(&nodes, &hello), (0, Ok(())));
        world.cut.insert((2, 3));
        let mut asking = world.begin(1, &of_size(Strategy::Ring, 2, &nodes, 300_000));
        world.steps(500);
        assert!(poll_once(asking.as_mut()).is_pending());
        assert_eq!(world.figures("passing")[..2], [1, 1], "{steer:?}");
        let name = if steer == Steer::Never { "landed_nic" } else { "landed_cpu" };
        let landed = world.figures(name);
        assert_eq!(landed[0], 0, "{steer:?}");
        assert!((300_000..301_000).contains(&landed[1]), "{steer:?}: {landed:?}");
        world.cut.clear();
        assert_eq!(world.end(&mut asking).unwrap().0.outcome, Ok(()));
        world.steps(20_000);
        assert!(world.is_quiet());
    }
}

/// A write of so many bytes of one of two clients.
fn of_client(client: u64, object: u64, nodes: &[u16], len: usize) -> Ask {
    let mut ask = Ask::write(object, (5, 2), 0, vec![7; len]);
    ask.heads.capability.client = client;
    spread(ask, Strategy::Ring, nodes)
}

/// Both clients have written by way of these nodes before.
fn introduce(world: &mut World, nodes: &[u16]) {
    for client in [CLIENT, CLIENT + 1] {
        let hello = of_client(client, 30 + client, nodes, 10);
        assert_eq!(world.write(nodes, &hello), (0, Ok(())));
    }
}

/// What a node passes on was one peer's at its successor: a client that wrote much by way of it,
/// and did not end, left no room there for what others wrote by the same way.
#[test]
fn a_greedy_client_leaves_room_at_a_successor_for_a_modest_one() {
    let mut world = World::new(8, 2, 0, |number| NodeOptions {
        message_bytes: if number == 1 { 64 << 20 } else { 1 << 20 },
        steer: Steer::Never,
        ..NodeOptions::default()
    });
    let nodes = [1, 2];
    introduce(&mut world, &nodes);
    let greedy = world.begin(1, &of_client(CLIENT, 10, &nodes, 600_000));
    let landed = |world: &World| world.members[1].rig.figure("landed_nic");
    while landed(&world) == 0 {
        world.step_to(world.now + TICK);
    }
    // It sends nothing more.
    world.dead.insert(FAR);
    let modest = of_client(CLIENT + 1, 20, &nodes, 100_000);
    assert_eq!(world.write(&nodes, &modest), (0, Ok(())));
    assert_eq!(landed(&world), 600_000, "the greedy one still has its place");
    drop(greedy);
}

/// Nor did it leave any of the pieces that may be under way to one successor.
#[test]
fn a_greedy_client_leaves_pieces_to_a_slow_successor_for_a_modest_one() {
    let mut world = World::new(9, 2, 0, |_| NodeOptions {
        message_bytes: 64 << 20,
        steer: Steer::Never,
        ..NodeOptions::default()
    });
    let nodes = [1, 2];
    introduce(&mut world, &nodes);
    world.cut.insert((1, 2));
    let mut greedy: Vec<Asking> = (10..20)
        .map(|object| world.begin(1, &of_client(CLIENT, object, &nodes, 500_000)))
        .collect();
    world.steps(300);
    let mut modest = world.begin(1, &of_client(CLIENT + 1, 20, &nodes, 500_000));
    world.steps(100);
    assert!(poll_once(modest.as_mut()).is_pending(), "it is not refused");
    world.cut.clear();
    assert_eq!(world.end(&mut modest).unwrap().0.outcome, Ok(()));
    let outcomes: Vec<_> = greedy.iter_mut().map(|one| world.end(one).unwrap().0.outcome).collect();
    assert!(outcomes.contains(&Err(Reason::Busy)) && outcomes.contains(&Ok(())), "{outcomes:?}");
}
