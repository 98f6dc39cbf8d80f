//! RDMA-HyperLoop: members pass on what a client prepared at each of them, when it is whole, and
//! nothing else; who lies takes nothing of others.

use super::*;
use crate::policy::{Baseline, QUEUE};

fn options() -> NodeOptions {
    NodeOptions { baseline: Some(Baseline::HyperLoop), ..NodeOptions::default() }
}

fn write_of(ask: &mut Ask) -> &mut WriteHead {
    match &mut ask.heads.target {
        Target::Write(write) => write,
        _ => panic!("it is a write"),
    }
}

/// A post of heads as they are.
fn posted(asks: &[Ask]) -> Ask {
    let mut data = Vec::new();
    asks.iter().for_each(|ask| ask.heads.emit(&mut data).unwrap());
    Ask::write(QUEUE, (1, 1), 0, data)
}

/// What a client posts at the member at `rank`, for these writes.
fn post(rank: u8, asks: &[Ask]) -> Ask {
    let mut asks = asks.to_vec();
    asks.iter_mut().for_each(|ask| write_of(ask).rank = rank);
    posted(&asks)
}

impl World {
    fn looped(seed: u64, k: u16, bad: u64) -> World {
        World::new(seed, k, bad, |_| options())
    }

    /// Posts at these ranks; what each member says, if it does.
    fn post(&mut self, nodes: &[u16], ranks: &[u8], asks: &[Ask]) -> Vec<Option<Reason>> {
        let begin = |rank: &u8| self.begin(nodes[usize::from(*rank)], &post(*rank, asks));
        let mut all: Vec<Asking> = ranks.iter().map(begin).collect();
        let mut end = |one: &mut Asking| match self.end(one) {
            Ok((answer, _)) => answer.outcome.err(),
            Err(_) => Some(Reason::Unreached),
        };
        all.iter_mut().map(&mut end).collect()
    }

    /// Posts at all members, then writes; who did not do it, and why.
    fn post_and_write(&mut self, nodes: &[u16], ask: &Ask) -> Result<(), Reason> {
        let ranks: Vec<u8> = (0..).take(nodes.len()).collect();
        let said = self.post(nodes, &ranks, std::slice::from_ref(ask));
        if let Some(reason) = said.into_iter().flatten().next() {
            return Err(reason);
        }
        let mut asking = self.begin(nodes[0], ask);
        self.end(&mut asking).map_or(Err(Reason::Unreached), |(answer, _)| answer.outcome)
    }

    /// All members hold these bytes.
    fn all_hold(&mut self, nodes: &[u16], object: u64, data: &[u8]) {
        let read = Ask::read(object, 5, 0, u32::try_from(data.len()).unwrap());
        let read = spread(read, Strategy::Ring, nodes);
        for node in nodes {
            let got = loop {
                // What was spoken in an earlier life of the node has ended.
                let mut asking = self.begin(*node, &read);
                if let Ok((answer, got)) = self.end(&mut asking) {
                    assert_eq!(answer.outcome, Ok(()));
                    break got;
                }
            };
            assert!(got == data, "node {node}");
        }
    }
}

fn ring(object: u64, sequence: u32, data: Vec<u8>, nodes: &[u16]) -> Ask {
    let ask = after(Ask::write(object, (5, sequence), 0, data), sequence - 1);
    spread(ask, Strategy::Ring, nodes)
}

/// Three chunks at a time, of all sizes: each member has all of them then, once.
fn all_hold_what_was_prepared(seed: u64, k: u16, bad: u64) {
    let mut rng = Rng::new(seed);
    let mut world = World::looped(seed, k, bad);
    let nodes = order(k, &mut rng);
    let ranks: Vec<u8> = (0..).take(nodes.len()).collect();
    let mut last = vec![Vec::new(); 3];
    for sequence in 1..4 {
        let size = 1 + rng.below(if sequence == 1 { 900 } else { 60_000 });
        last.iter_mut().for_each(|data| *data = bytes(&mut rng, size));
        let all = (1..).zip(&last);
        let asks = all.map(|(object, data)| ring(object, sequence, data.clone(), &nodes));
        let asks: Vec<Ask> = asks.collect();
        assert_eq!(world.post(&nodes, &ranks, &asks), vec![None; nodes.len()], "seed {seed}");
        let mut all: Vec<Asking> = asks.iter().map(|ask| world.begin(nodes[0], ask)).collect();
        for asking in &mut all {
            let (answer, _) = world.end(asking).unwrap();
            assert_eq!((answer.rank, answer.outcome), (0, Ok(())), "seed {seed}");
        }
    }
    for (object, data) in (1..).zip(&last) {
        world.all_hold(&nodes, object, data);
    }
    world.steps(20_000);
    assert!(world.is_quiet(), "seed {seed}");
    let none = vec![0; nodes.len()];
    assert_eq!((world.figures("refused"), world.figures("steered")), (none.clone(), none));
}

#[test]
fn all_members_hold_what_was_prepared_over_a_good_wire() {
    (1..=8).for_each(|k| all_hold_what_was_prepared(u64::from(k), k, 0));
}

#[test]
fn all_members_hold_what_was_prepared_over_a_bad_wire() {
    for seed in seeds(8) {
        all_hold_what_was_prepared(seed, u16::try_from(seed % 5 + 2).unwrap(), 3 + seed);
    }
}

/// A NIC that waits for the end of a message sends nothing of it before.
#[test]
fn nothing_goes_on_before_it_is_whole() {
    let (mut world, nodes) = (World::looped(1, 3, 0), [1, 2, 3]);
    assert_eq!(world.post_and_write(&nodes, &ring(9, 1, vec![1; 10], &nodes)), Ok(()));
    let ask = ring(1, 1, vec![7; 1 << 20], &nodes);
    assert_eq!(world.post(&nodes, &[0, 1, 2], std::slice::from_ref(&ask)), [None; 3]);
    let mut asking = world.begin(1, &ask);
    while world.figures("packets")[0] < 300 {
        world.step();
    }
    assert!(world.figures("landed_nic")[0] > 0);
    assert_eq!(world.figures("landed_nic")[1..], [0, 0]);
    assert_eq!(world.end(&mut asking).unwrap().0.outcome, Ok(()));
    world.all_hold(&nodes, 1, &vec![7; 1 << 20]);
}

/// A member without a work request, at any rank: it is named, and nothing goes past it.
#[test]
fn who_has_no_work_request_refuses() {
    let nodes = [1, 2, 3, 4];
    for rank in 0..4 {
        let mut world = World::looped(u64::from(rank), 4, 0);
        let ask = ring(1, 1, vec![7; 30_000], &nodes);
        let others: Vec<u8> = (0..4).filter(|other| *other != rank).collect();
        assert_eq!(world.post(&nodes, &others, std::slice::from_ref(&ask)), [None; 3]);
        assert_eq!(world.write(&nodes, &ask), (rank, Err(Reason::Order)));
        let stored: Vec<u64> = (0..4).map(|one| u64::from(one < rank)).collect();
        assert_eq!(world.figures("writes"), stored);
        assert_eq!(world.post_and_write(&nodes, &ask), Ok(()));
        assert_eq!(world.write(&nodes, &ask), (0, Err(Reason::Order)), "it is used up");
        world.all_hold(&nodes, 1, &[7; 30_000]);
        assert_eq!(world.figures("writes"), [1; 4], "done once");
        world.steps(20_000);
        assert!(world.is_quiet());
    }
}

/// Members die and come back between a post and its write, and in the midst of both: who posts
/// again at all of them and writes again gets it done.
#[test]
fn writes_get_done_though_members_lose_what_was_prepared() {
    for seed in seeds(6) {
        let mut rng = Rng::new(seed);
        let k = u16::try_from(2 + rng.below(4)).unwrap();
        let mut world = World::looped(seed, k, rng.below(4));
        let nodes = order(k, &mut rng);
        let ranks: Vec<u8> = (0..).take(nodes.len()).collect();
        for object in 1..4 {
            let size = 1 + rng.below(200_000);
            let data = bytes(&mut rng, size);
            let ask = ring(object, 1, data.clone(), &nodes);
            world.post(&nodes, &ranks, std::slice::from_ref(&ask));
            let mut asking = rng.chance(1, 2).then(|| world.begin(nodes[0], &ask));
            world.steps(rng.below(60));
            let dies = u16::try_from(1 + rng.below(u64::from(k))).unwrap();
            world.dead.insert(dies);
            world.steps(rng.below(500));
            world.restart(dies);
            if let Some(asking) = &mut asking {
                // Whether it was done is not known.
                let _ = world.end(asking);
            }
            let done = (0..50).any(|_| match world.post_and_write(&nodes, &ask) {
                Ok(()) => true,
                Err(Reason::Unreached | Reason::Busy | Reason::Order) => {
                    world.steps(100);
                    false
                }
                Err(reason) => panic!("seed {seed}: {reason:?}"),
            });
            assert!(done, "seed {seed}");
            world.all_hold(&nodes, object, &data);
        }
    }
}

/// A member of which the next ones are known.
fn rig() -> Rig {
    let rig = Rig::new(options());
    (2..=4).for_each(|node| rig.node.know(node, address(node)));
    rig
}

type Forgery = (&'static str, Reason, fn(&mut Ask));

/// Work requests that send elsewhere, are another's, or are none.
#[test]
fn forged_posts_are_refused() {
    let of_heads: [Forgery; 8] = [
        ("another's", Reason::Other, |ask| ask.heads.capability.client += 1),
        ("a rank that is not this node's", Reason::Other, |ask| write_of(ask).rank = 1),
        ("a next one that nobody knows", Reason::Other, |ask| {
            *ask = ring(1, 1, ask.data.clone(), &[1, 77]);
        }),
        ("a next one elsewhere", Reason::Other, |ask| {
            let mut all = coordinates(&[1, 2]);
            all[1].port = 3;
            write_of(ask).coordinates = Coordinates::new(&all).unwrap();
        }),
        ("another group than is signed", Reason::Other, |ask| ask.heads.capability.group ^= 1),
        ("a tree", Reason::Invalid, |ask| {
            *ask = spread(ask.clone(), Strategy::BinaryTree, &[1, 2]);
        }),
        ("of no ring", Reason::Invalid, |ask| *ask = Ask::write(1, (5, 1), 0, vec![7; 300])),
        ("a read", Reason::Invalid, |ask| *ask = Ask::read(1, 5, 0, 300)),
    ];
    let (mut rig, mut rng) = (rig(), Rng::new(1));
    let good = ring(1, 1, vec![7; 300], &[1, 2]);
    let before = rig.writes();
    let mut refused = |rig: &mut Rig, what, from, ask: &Ask, reason| {
        let (answer, _) = rig.ask(from, &ask.message(), &mut rng);
        assert_eq!(answer.outcome, Err(reason), "{what}");
    };
    for (what, reason, forge) in of_heads {
        let mut ask = good.clone();
        forge(&mut ask);
        refused(&mut rig, what, ME, &posted(&[ask]), reason);
    }
    for from in [SERVER, Peer::Node(2), Peer::Client(CLIENT + 1)] {
        refused(
            &mut rig,
            "of whom it is not",
            from,
            &post(0, std::slice::from_ref(&good)),
            Reason::Other,
        );
    }
    refused(&mut rig, "nothing was posted", ME, &good, Reason::Order);
    assert_eq!(rig.writes(), before, "media are as they were");
    assert!(rig.node.nic().take_outgoing().is_empty(), "nothing goes on");
    assert_eq!(rig.figure("descriptors"), 0);
}

/// Posts that end in the midst of heads, or are not what they say.
#[test]
fn posts_that_are_not_whole_are_refused() {
    let of_post: [Forgery; 4] = [
        ("half of one", Reason::Invalid, |post| {
            post.data.pop();
            *post = Ask::write(QUEUE, (1, 1), 0, post.data.clone());
        }),
        ("more behind it", Reason::Invalid, |post| {
            post.data.push(0);
            *post = Ask::write(QUEUE, (1, 1), 0, post.data.clone());
        }),
        ("another checksum", Reason::Invalid, |post| write_of(post).crc ^= 1),
        ("in several packets", Reason::Invalid, |post| {
            *post = Ask::write(QUEUE, (1, 1), 0, post.data.repeat(3));
        }),
    ];
    let (mut rig, mut rng) = (rig(), Rng::new(1));
    let good = ring(1, 1, vec![7; 300], &[1, 2]);
    for (what, reason, forge) in of_post {
        let mut post = post(0, std::slice::from_ref(&good));
        forge(&mut post);
        let (answer, _) = rig.ask(ME, &post.message(), &mut rng);
        assert_eq!(answer.outcome, Err(reason), "{what}");
    }
    let (answer, _) = rig.ask(ME, &good.message(), &mut rng);
    assert_eq!(answer.outcome, Err(Reason::Order), "nothing was posted");
    assert_eq!((rig.figure("descriptors"), rig.figure("packets")), (0, 0));
}

/// A write comes from whom its work request says, and is what that says.
#[test]
fn a_write_is_what_was_prepared() {
    let (mut rig, mut rng) = (rig(), Rng::new(1));
    let nodes = [2, 1, 3];
    let ask = ring(1, 1, vec![7; 300], &nodes);
    let (answer, _) = rig.ask(ME, &post(1, std::slice::from_ref(&ask)).message(), &mut rng);
    assert_eq!(answer.outcome, Ok(()));
    let mut longer = ring(1, 1, vec![7; 301], &nodes);
    let before = rig.writes();
    for (what, from, ask) in [
        ("the client, past the first member", ME, &ask),
        ("another client", Peer::Client(CLIENT + 1), &ask),
        ("a server", SERVER, &ask),
        ("who is behind this one", Peer::Node(3), &ask),
        ("longer", Peer::Node(2), &longer),
    ] {
        let (answer, _) = rig.ask(from, &ask.message(), &mut rng);
        assert_eq!(answer.outcome, Err(Reason::Other), "{what}");
    }
    write_of(&mut longer).sequence = 2;
    let (answer, _) = rig.ask(Peer::Node(2), &longer.message(), &mut rng);
    assert_eq!(answer.outcome, Err(Reason::Order), "of another version");
    assert_eq!(rig.writes(), before, "media are as they were");
    rig.give(Peer::Node(2), &ask.message(), usize::MAX, &mut rng);
    assert!(rig.answers().is_empty(), "it waits for the next one");
    let out = rig.node.nic().take_outgoing();
    let [crate::nic::passing::Outgoing::Begin { to: 3, message, is_last: true, .. }] = &out[..]
    else {
        panic!("{out:?}");
    };
    assert!(message.ends_with(&[7; 300]));
}

/// A client leaves as many work requests for others as it has, and with it they go.
#[test]
fn work_requests_are_bounded() {
    let (mut rig, mut rng) = (rig(), Rng::new(1));
    let other = Peer::Client(CLIENT + 1);
    let mut posted = |rig: &mut Rig, from, object| {
        let mut ask = ring(object, 1, vec![7; 9], &[1]);
        if from == other {
            ask.heads.capability.client += 1;
        }
        let (answer, _) = rig.ask(from, &post(0, &[ask]).message(), &mut rng);
        answer.outcome
    };
    let mut until_busy = |rig: &mut Rig, from| {
        let said = (1..).map(|object| posted(rig, from, object));
        said.take_while(|said| *said != Err(Reason::Busy))
            .inspect(|said| assert!(said.is_ok()))
            .count()
    };
    assert_eq!(until_busy(&mut rig, ME), 512);
    assert_eq!(until_busy(&mut rig, other), 256);
    rig.target.ended(ME);
    rig.target.opened(ME, true);
    assert_eq!(until_busy(&mut rig, ME), 384, "what others left");
    assert_eq!(posted(&mut rig, ME, 1), Ok(()), "the same again takes nothing");
    let (answer, _) = rig.ask(ME, &ring(1, 1, vec![7; 9], &[1]).message(), &mut Rng::new(1));
    assert_eq!(answer.outcome, Ok(()), "the last member of a ring passes nothing on");
    assert_eq!(posted(&mut rig, ME, 900), Ok(()), "one is used up");
}

/// Whatever is posted has one answer, and takes no descriptor.
#[test]
fn changed_posts_are_answered() {
    let (mut rig, mut rng) = (rig(), Rng::new(5));
    let good = post(0, &[ring(1, 1, vec![7; 300], &[1, 2])]);
    for _ in 0..20_000 {
        let mut data = good.data.clone();
        for _ in 0..=rng.below(3) {
            let at = usize::try_from(rng.below(data.len() as u64)).unwrap();
            data[at] ^= 1 << rng.below(8);
        }
        data.truncate(data.len() - usize::try_from(rng.below(3)).unwrap());
        rig.ask(ME, &Ask::write(QUEUE, (1, 1), 0, data).message(), &mut rng);
        assert_eq!(rig.figure("descriptors"), 0);
    }
    assert!(rig.node.nic().take_outgoing().is_empty());
}
