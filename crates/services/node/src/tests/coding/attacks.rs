//! Who forges units, roles, places and widths, poses as a data node, or wants nodes to send more
//! than they are sent.

use super::*;

fn good(group: &Group, object: u64) -> Vec<Ask> {
    group.drawn(object, (5, 1), 3000)
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

/// Other nodes, in roles that fit.
fn others(ask: &mut Ask, nodes: &[u16], k: usize) {
    let all = Group { k, nodes: nodes.to_vec() }.coordinates();
    let write = write_of(ask);
    (write.k, write.coordinates) = (u8::try_from(k).unwrap(), Coordinates::new(&all).unwrap());
}

/// A client that has a capability names other nodes, units or widths than it was given: the data
/// node refuses, and no parity hears of it.
#[test]
fn forged_stripes_go_nowhere() {
    let forgeries: [Forgery; 11] = [
        ("another order of parities", |ask| others(ask, &[1, 2, 3, 5, 4], 3)),
        ("another order of data nodes", |ask| others(ask, &[1, 3, 2, 4, 5], 3)),
        ("another parity", |ask| others(ask, &[1, 2, 3, 4, 6], 3)),
        ("another width", |ask| others(ask, &[1, 2, 3, 4, 5], 2)),
        ("fewer parities", |ask| others(ask, &[1, 2, 3, 4], 3)),
        ("more parities", |ask| others(ask, &[1, 2, 3, 4, 5, 6], 3)),
        ("another unit than its own", |ask| {
            let write = write_of(ask);
            (write.rank, write.unit) = (1, 1);
        }),
        ("a part, by a client", |ask| {
            let write = write_of(ask);
            (write.rank, write.role) = (3, Role::Parity);
        }),
        ("another place of a parity", |ask| {
            let mut all = Group::plain(3, 2).coordinates();
            (all[4].address, all[4].port) = ([10, 0, 0, 1], 53);
            write_of(ask).coordinates = Coordinates::new(&all).unwrap();
        }),
        ("on its way", |ask| ask.heads.head.hop = 1),
        ("copies where there are parities", |ask| {
            let write = write_of(ask);
            (write.strategy, write.k) = (Strategy::Ring, 5);
        }),
    ];
    let group = Group::plain(3, 2);
    let mut world = World::of(1, &group, 0, |_| NodeOptions::default());
    for (what, forge) in forgeries {
        let mut ask = good(&group, 1).remove(0);
        forge(&mut ask);
        assert_eq!(world.ask(1, &ask).0.outcome, Err(Reason::Other), "{what}");
    }
    for (k, m) in [(2, 2), (3, 1), (4, 1)] {
        let mut ask = good(&group, 1).remove(0);
        (ask.heads.capability.k, ask.heads.capability.m) = (k, m);
        assert_eq!(world.ask(1, &ask).0.outcome, Err(Reason::Forged), "{k}+{m}, not signed");
        assert_eq!(world.ask(1, &ask.signed()).0.outcome, Err(Reason::Other), "{k}+{m}");
    }
    let asks = good(&group, 1);
    // To a data node whose it is not, and to a parity.
    assert_eq!(world.ask(2, &asks[0]).0.outcome, Err(Reason::Other));
    assert_eq!(world.ask(4, &asks[0]).0.outcome, Err(Reason::Other));
    assert_eq!(between(&world), 0);
    assert_eq!(world.figures("accepted"), [0; 5]);
    assert_eq!(world.stripe(&group, &asks), done(&group));
}

/// Numbers of units that cannot be, and stripes that contradict themselves, are no request.
#[test]
fn stripes_that_cannot_be_are_no_request() {
    let mut rig = Rig::new(NodeOptions::default());
    let mut rng = Rng::new(1);
    let message = good(&Group::plain(3, 2), 1)[0].message();
    let write = 32 + 80;
    let coordinate = write + 56;
    // Of the head: rank, count, k, unit, role; of the capability k and m; of coordinates a unit, a
    // role, and a node that stands there twice.
    for (at, byte) in [
        (write + 1, 5),
        (write + 1, 1),
        (write + 2, 4),
        (write + 3, 0),
        (write + 3, 17),
        (write + 3, 5),
        (write + 4, 1),
        (write + 5, 1),
        (32 + 53, 0),
        (32 + 53, 17),
        (32 + 54, 0),
        (32 + 54, 5),
        (coordinate + 8, 1),
        (coordinate + 9, 1),
        (coordinate + 3 * 16 + 9, 0),
        (coordinate + 4 * 16 + 6, 1),
    ] {
        let mut bad = message.clone();
        assert_ne!(bad[at], byte);
        bad[at] = byte;
        assert_eq!(rig.ask(ME, &bad, &mut rng).0.outcome, Err(Reason::Invalid), "{at} {byte}");
    }
}

/// A node that has the key of parts, and sends what it should not: a parity looks for itself.
#[test]
fn a_data_node_is_believed_nothing_but_its_own_unit() {
    let mut rig = Rig::new(NodeOptions::default());
    for peer in [3, 4] {
        rig.node.know(peer, address(peer));
        rig.target.opened(Peer::Node(peer), true);
    }
    let mut rng = Rng::new(1);
    // This node, 1, has the parity of rank 2.
    let group = Group { k: 2, nodes: vec![2, 3, 1, 4] };
    let part = |object, unit: u8| {
        let mut ask = good(&group, object).remove(0);
        ask.heads.head.hop = 1;
        let write = write_of(&mut ask);
        (write.rank, write.role, write.unit) = (2, Role::Parity, unit);
        ask
    };
    let before = rig.writes();
    let mut refused = |what: &str, from, ask: &Ask, reason| {
        let (answer, _) = rig.ask(from, &ask.message(), &mut rng);
        assert_eq!(answer.outcome, Err(reason), "{what}");
    };
    let (two, three, four) = (Peer::Node(2), Peer::Node(3), Peer::Node(4));
    refused("a part of another's unit", two, &part(1, 1), Reason::Other);
    refused("the same", three, &part(1, 0), Reason::Other);
    refused("another parity", four, &part(1, 0), Reason::Other);
    refused("a client", ME, &part(1, 0), Reason::Other);
    refused("a server", SERVER, &part(1, 0), Reason::Other);
    for hop in [0, 2, u32::MAX] {
        let mut ask = part(1, 0);
        ask.heads.head.hop = hop;
        refused("another hop", two, &ask, Reason::Other);
    }
    let mut ask = part(1, 0);
    write_of(&mut ask).rank = 3;
    refused("the other parity's", two, &ask, Reason::Other);
    refused("data, to a parity", two, &good(&group, 1)[0], Reason::Other);
    let mut ask = part(1, 0);
    ask.heads.capability.end = 1 << 30;
    refused("a wider capability", two, &ask, Reason::Forged);
    let mut ask = part(1, 0);
    ask.heads.capability.rights = Rights::READ;
    refused("without the right", two, &ask.signed(), Reason::Rights);
    let mut ask = part(1, 0);
    ask.heads.capability.expires = NOW;
    refused("too late", two, &ask.signed(), Reason::Expired);
    assert_eq!(rig.figure("sums"), 0);
    assert_eq!(rig.writes(), before, "media are as they were");
    assert!(rig.node.nic().take_outgoing().is_empty(), "nothing goes on");
}

/// A part of the same unit with other bytes says so by its checksum, and is refused while the
/// first one waits; one of another client's capability, too.
#[test]
fn a_part_with_other_bytes_or_of_another_client_is_not_added() {
    for steer in [Steer::Never, Steer::Always] {
        let mut rig = Rig::new(NodeOptions { steer, ..NodeOptions::default() });
        rig.node.know(3, address(3));
        rig.target.opened(Peer::Node(3), true);
        let mut rng = Rng::new(1);
        let group = Group { k: 2, nodes: vec![2, 3, 1] };
        let asks = good(&group, 1);
        let code = Code::new(Field::Tables, 2, 1).unwrap();
        let part = |unit: u8, ask: &Ask| {
            let mut ask = ask.clone();
            ask.heads.head.hop = 1;
            ask.heads.head.request = 100 + u64::from(unit);
            let coefficients = code.coefficients(unit.into()).unwrap();
            let mut out = vec![0; ask.data.len()];
            Field::Tables.multiply(coefficients, &ask.data, &mut [&mut out]).unwrap();
            ask.data = out;
            let write = write_of(&mut ask);
            (write.rank, write.role, write.unit) = (2, Role::Parity, unit);
            ask
        };
        let (first, second) = (part(0, &asks[0]), part(1, &asks[1]));
        rig.give(Peer::Node(2), &first.message(), usize::MAX, &mut rng);
        assert!(rig.answers().is_empty(), "it waits");
        let mut other = first.clone();
        write_of(&mut other).crc ^= 1;
        let (answer, _) = rig.ask(Peer::Node(2), &other.message(), &mut rng);
        assert_eq!(answer.outcome, Err(Reason::Order));
        let mut other = second.clone();
        other.heads.capability.client = CLIENT + 1;
        let (answer, _) = rig.ask(Peer::Node(3), &other.signed().message(), &mut rng);
        assert_eq!(answer.outcome, Err(Reason::Other));
        let writes = rig.writes();
        rig.give(Peer::Node(3), &second.message(), usize::MAX, &mut rng);
        let mut answers = rig.answers();
        answers.sort_by_key(|(peer, _, _)| *peer);
        let told: Vec<_> =
            answers.iter().map(|(peer, one, _)| (*peer, one.request, one.outcome)).collect();
        let expected = [(Peer::Node(2), 100, Ok(())), (Peer::Node(3), 101, Ok(()))];
        assert_eq!(told, expected, "{steer:?}");
        assert!(rig.writes() > writes);
        let units: Vec<Vec<u8>> = asks.iter().map(|ask| ask.data.clone()).collect();
        let read = group.ask(Ask::read(1, 5, 0, 3000), 2);
        let (_, got) = rig.ask(ME, &read.message(), &mut rng);
        assert!(got == group.encode(&units)[0], "{steer:?}");
    }
}

/// A client begins a large write and sends one packet of it: a data node sends no more than a part
/// of that to each of its parities.
#[test]
fn data_nodes_do_not_amplify() {
    let group = Group::plain(3, 4);
    let mut world = World::of(1, &group, 0, |_| NodeOptions::default());
    assert_eq!(world.stripe(&group, &group.drawn(9, (5, 1), 1)), done(&group));
    world.sent.clear();
    let ask = group.drawn(1, (5, 1), 1 << 20).remove(0);
    let _asking = world.begin(1, &ask);
    let mut packets = Vec::new();
    let mut send = |_, bytes: &[u8]| packets.push(bytes.to_vec());
    world.client.pump(outboard_base::Time(world.now), NOW, &mut send);
    let first = packets.iter().find(|packet| packet.len() > 1000).unwrap();
    let now = outboard_base::Time(world.now);
    world.members[0].conversations.datagram(address(FAR), first, now, NOW);
    world.dead.insert(FAR);
    world.steps(20);
    assert_eq!(world.of_ranks(&group, "descriptors"), [1, 0, 0, 1, 1, 1, 1]);
    assert!(between(&world) <= 4 * (first.len() + 100), "{}", between(&world));
    assert!(world.is_at_rest());
    assert_eq!(world.figures("writes"), [1; 7]);
}
