//! Who forges coordinates, poses as a node, or wants nodes to send more than they are sent.

use super::*;

const NODES: [u16; 4] = [1, 2, 3, 4];

fn good(object: u64) -> Ask {
    spread(Ask::write(object, (5, 1), 0, vec![7; 3000]), Strategy::Ring, &NODES)
}

fn write_of(ask: &mut Ask) -> &mut WriteHead {
    match &mut ask.heads.target {
        Target::Write(write) => write,
        _ => panic!("it is a write"),
    }
}

/// What is forged, and how.
type Forgery = (&'static str, fn(&mut Ask));

/// Bytes that nodes sent each other.
fn between(world: &World) -> usize {
    let nodes = world.sent.iter().filter(|(from, to, _)| *from != FAR && *to != FAR);
    nodes.map(|(_, _, bytes)| bytes).sum()
}

/// A client that has a capability names other nodes, places or ways than it was given: the first
/// member refuses, and nobody hears of it.
#[test]
fn forged_coordinates_go_nowhere() {
    let forgeries: [Forgery; 12] = [
        ("another order", |ask| {
            write_of(ask).coordinates = Coordinates::new(&coordinates(&[1, 3, 2, 4])).unwrap();
        }),
        ("another node", |ask| {
            write_of(ask).coordinates = Coordinates::new(&coordinates(&[1, 2, 3, 5])).unwrap();
        }),
        ("another first node", |ask| {
            write_of(ask).coordinates = Coordinates::new(&coordinates(&[2, 1, 3, 4])).unwrap();
        }),
        ("fewer", |ask| {
            let write = write_of(ask);
            (write.k, write.coordinates) = (2, Coordinates::new(&coordinates(&[1, 2])).unwrap());
        }),
        ("another place", |ask| {
            let mut all = coordinates(&NODES);
            (all[1].address, all[1].port) = ([10, 0, 0, 1], 53);
            write_of(ask).coordinates = Coordinates::new(&all).unwrap();
        }),
        ("a place that is another node's", |ask| {
            let mut all = coordinates(&NODES);
            all[1].port = 3;
            write_of(ask).coordinates = Coordinates::new(&all).unwrap();
        }),
        ("a node that nobody knows, signed", |ask| {
            *ask = spread(ask.clone(), Strategy::Ring, &[1, 77, 3, 4]);
        }),
        ("another strategy", |ask| write_of(ask).strategy = Strategy::BinaryTree),
        ("a rank in the midst", |ask| write_of(ask).rank = 1),
        ("a rank that is this node's in another order, signed", |ask| {
            *ask = spread(ask.clone(), Strategy::Ring, &[2, 1, 3, 4]);
            write_of(ask).rank = 1;
        }),
        ("on its way", |ask| ask.heads.head.hop = 1),
        ("one copy where there are four", |ask| {
            let write = write_of(ask);
            (write.strategy, write.k) = (Strategy::Single, 1);
            write.coordinates = Coordinates::new(&[]).unwrap();
        }),
    ];
    let mut world = World::plain(1, 4, 0);
    for (what, forge) in forgeries {
        let mut ask = good(1);
        forge(&mut ask);
        let (answer, _) = world.ask(1, &ask);
        assert_eq!(answer.outcome, Err(Reason::Other), "{what}");
    }
    let mut ask = good(1);
    ask.heads.capability.k = 3;
    assert_eq!(world.ask(1, &ask).0.outcome, Err(Reason::Forged), "a capability made wider");
    assert_eq!(between(&world), 0);
    assert_eq!(world.figures("accepted"), [0; 4]);
    assert_eq!(world.write(&NODES, &good(1)), (0, Ok(())));
}

/// A node stands there twice, or more stand there than may: no request.
#[test]
fn loops_and_too_many_are_no_request() {
    let mut rig = Rig::new(NodeOptions::default());
    let mut rng = Rng::new(1);
    assert!(Coordinates::new(&coordinates(&[1, 2, 1])).is_err());
    assert!(Coordinates::new(&coordinates(&(1..22).collect::<Vec<_>>())).is_err());
    let mut message = good(1).message();
    // The number of the third coordinate becomes that of the first.
    let third = 32 + 80 + 56 + 2 * 16 + 6;
    message[third..third + 2].copy_from_slice(&1u16.to_le_bytes());
    assert_eq!(rig.ask(ME, &message, &mut rng).0.outcome, Err(Reason::Invalid));
    let mut message = good(1).message();
    // Seventeen, with heads as long as that.
    let heads = 32 + 80 + 56 + 4 * 16;
    let more: Vec<u8> = (5..18u16)
        .flat_map(|node| {
            let mut one = [127, 0, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            one[6..8].copy_from_slice(&node.to_le_bytes());
            one
        })
        .collect();
    message.splice(heads..heads, more);
    message[6..8].copy_from_slice(&u16::try_from(heads + 13 * 16).unwrap().to_le_bytes());
    (message[32 + 80 + 2], message[32 + 80 + 3]) = (17, 17);
    assert_eq!(rig.ask(ME, &message, &mut rng).0.outcome, Err(Reason::Invalid));
}

/// A node that has the key of parts, and forwards what it should not: each member looks for
/// itself.
#[test]
fn a_node_is_believed_nothing() {
    let mut rig = Rig::new(NodeOptions::default());
    rig.node.know(3, address(3));
    let mut rng = Rng::new(1);
    let nodes = [2, 1, 3];
    let forwarded = |object| {
        let ask = Ask::write(object, (5, 1), 0, vec![7; 900]);
        let mut ask = spread(ask, Strategy::Ring, &nodes);
        ask.heads.head.hop = 1;
        write_of(&mut ask).rank = 1;
        ask
    };
    let before = rig.writes();
    let mut refused = |what: &str, from, ask: &Ask, reason| {
        let (answer, _) = rig.ask(from, &ask.message(), &mut rng);
        assert_eq!(answer.outcome, Err(reason), "{what}");
    };
    let (two, three) = (Peer::Node(2), Peer::Node(3));
    refused("who is behind this one", three, &forwarded(1), Reason::Other);
    refused("a client", ME, &forwarded(1), Reason::Other);
    refused("a server", SERVER, &forwarded(1), Reason::Other);
    for hop in [0, 2, u32::MAX] {
        let mut ask = forwarded(1);
        ask.heads.head.hop = hop;
        refused("another hop", two, &ask, Reason::Other);
    }
    for rank in [0, 2] {
        let mut ask = forwarded(1);
        write_of(&mut ask).rank = rank;
        refused("another rank", two, &ask, Reason::Other);
    }
    refused("one that was never spread", two, &Ask::write(1, (5, 1), 0, vec![7; 9]), Reason::Other);
    refused("a read", two, &Ask::read(1, 5, 0, 9), Reason::Other);
    refused("a hole", two, &Ask::hole(1, (5, 1), 0..9), Reason::Other);
    let mut ask = forwarded(1);
    ask.heads.capability.end = 1 << 30;
    refused("a wider capability", two, &ask, Reason::Forged);
    let mut ask = forwarded(1);
    ask.heads.capability.rights = Rights::READ;
    refused("without the right", two, &ask.signed(), Reason::Rights);
    let mut ask = forwarded(1);
    ask.heads.capability.expires = NOW;
    refused("too late", two, &ask.signed(), Reason::Expired);
    assert_eq!(rig.writes(), before, "media are as they were");
    assert!(rig.node.nic().take_outgoing().is_empty(), "nothing goes on");
}

/// Who has a client's key alone does not become a node.
#[test]
fn a_client_does_not_become_a_node() {
    let mut world = World::plain(1, 2, 0);
    let fake = Conversations::new(config(Peer::Node(9), FAR, 3, false), NoTarget);
    fake.know(Peer::Node(1), address(1));
    world.client = fake;
    let mut asking = world.begin(1, &good(1));
    assert_eq!(world.end(&mut asking), Err(Gone::Refused));
    assert_eq!(world.figures("messages"), [0, 0]);
}

/// A client begins a large write to sixteen and sends one packet of it: no node sends more than
/// that to each of its successors.
#[test]
fn nodes_do_not_amplify() {
    for strategy in STRATEGIES {
        let nodes: Vec<u16> = (1..=16).collect();
        let mut world = World::plain(1, 16, 0);
        let hello = spread(Ask::write(9, (5, 1), 0, vec![1]), strategy, &nodes);
        assert_eq!(world.write(&nodes, &hello), (0, Ok(())));
        world.sent.clear();
        let ask = spread(Ask::write(1, (5, 2), 0, vec![7; 1 << 20]), strategy, &nodes);
        let _asking = world.begin(1, &ask);
        let mut packets = Vec::new();
        let mut send = |_, bytes: &[u8]| packets.push(bytes.to_vec());
        world.client.pump(Time(world.now), NOW, &mut send);
        let first = packets.iter().find(|packet| packet.len() > 1000).unwrap();
        world.members[0].conversations.datagram(address(FAR), first, Time(world.now), NOW);
        world.dead.insert(FAR);
        world.steps(20);
        let most = world.figures("descriptors").iter().sum::<u64>();
        assert_eq!(most, 16, "it came to all");
        // Each but the last ones to its successors, with what they acknowledge.
        assert!(between(&world) <= 15 * (first.len() + 100), "{}", between(&world));
        world.steps(15_000);
        assert!(world.is_quiet() && world.figures("writes") == [1; 16]);
    }
}
