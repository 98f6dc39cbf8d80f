//! Both paths do the same, and neither takes more than it may.

use outboard_wire::shared::Reason;

use super::doubt::copied;
use super::*;
use crate::policy::{Baseline, Steer};

/// A random request, sometimes one that is refused.
fn draw(rng: &mut Rng, sequences: &mut [u32; 4]) -> Vec<u8> {
    let object = rng.below(4);
    let offset = rng.below(60_000);
    let size = 1 + rng.below(4000.min(65_536 - offset));
    let sequence = &mut sequences[usize::try_from(object).unwrap()];
    let mut ask = match rng.below(4) {
        0 => Ask::read(object + 1, 5, offset, u32::try_from(size).unwrap()),
        1 => {
            *sequence += 1;
            Ask::hole(object + 1, (5, *sequence), offset..offset + size)
        }
        _ => {
            *sequence += 1;
            Ask::write(object + 1, (5, *sequence), offset, bytes(rng, size))
        }
    };
    // One of the objects has copies.
    if object == 3 {
        ask = copied(ask);
        ask.heads.head.settled = sequence.saturating_sub(u32::try_from(rng.below(3)).unwrap());
    }
    match rng.below(8) {
        0 => ask.heads.capability.mac[0] ^= 1,
        1 => {
            ask.heads.capability.expires = NOW;
            ask = ask.signed();
        }
        2 => ask.heads.head.epoch = 2,
        3 => {
            if let Target::Write(write) = &mut ask.heads.target {
                write.crc ^= 1;
            }
        }
        _ => {}
    }
    let mut message = ask.message();
    if rng.chance(1, 20) {
        message.pop();
    }
    message
}

/// The same requests to a node whose handlers do all, to one that steers all, to one that steers
/// some: the same answers, the same bytes.
#[test]
fn steered_messages_mean_the_same() {
    for seed in seeds(6) {
        let of = |steer, message_bytes| {
            Rig::new(NodeOptions { steer, message_bytes, ..NodeOptions::default() })
        };
        let mut rigs =
            [of(Steer::Never, 1 << 20), of(Steer::Always, 1 << 20), of(Steer::Overload, 6000)];
        let (mut rng, mut sequences) = (Rng::new(seed), [0; 4]);
        // What lies half landed leaves the third node too little memory for some.
        let half = Ask::write(9, (5, 1), 0, vec![1; 2500]).message();
        rigs[2].give(Peer::Client(CLIENT), &half, 2, &mut rng);
        for number in 0..150 {
            let message = draw(&mut rng, &mut sequences);
            let order = rng.next_u64();
            let all = rigs.each_mut().map(|rig| rig.ask(ME, &message, &mut Rng::new(order)));
            assert!(all.iter().all(|one| *one == all[0]), "seed {seed} {number}: {all:?}");
        }
        let contents = rigs.each_mut().map(|rig| {
            let read = |at: u64| {
                let ask = Ask::read(1 + at / 32, 5, at % 32 * 2048, 2048).message();
                rig.ask(SERVER, &ask, &mut Rng::new(1))
            };
            (0..128).map(read).collect::<Vec<_>>()
        });
        assert!(contents[0] == contents[1] && contents[1] == contents[2], "seed {seed}");
        assert!(contents[0].iter().any(|one| one.1.iter().any(|byte| *byte != 0)));
        let steered = rigs.each_ref().map(|rig| rig.figure("steered"));
        assert!(steered[0] == 0 && steered[2] > 0 && steered[2] < steered[1], "{steered:?}");
    }
}

#[test]
fn a_peer_has_as_many_requests_under_way_as_it_has_credit() {
    let options = NodeOptions { credit: 3, ..NodeOptions::default() };
    let mut rig = Rig::new(options);
    let mut rng = Rng::new(1);
    let ask = |object| Ask::write(object, (5, 1), 0, vec![7; 900]).message();
    let halves: Vec<Psn> = (1..4).map(|object| rig.give(ME, &ask(object), 1, &mut rng)).collect();
    let (answer, _) = rig.ask(ME, &ask(9), &mut rng);
    assert_eq!((answer.outcome, answer.credit), (Err(Reason::Busy), 3));
    let other = Ask::write(9, (5, 1), 0, vec![7; 900]).message();
    assert_eq!(rig.ask(SERVER, &other, &mut rng).0.outcome, Ok(()), "others go on");
    rig.target.cleanup(ME, halves[0]);
    let (answer, _) = rig.ask(ME, &ask(8), &mut rng);
    assert_eq!(answer.outcome, Ok(()));
    rig.target.ended(ME);
    assert_eq!((rig.figure("cleaned"), rig.figure("descriptors")), (3, 0));
    assert_eq!((rig.figure("landed_nic"), rig.figure("waiting")), (0, 0));
}

#[test]
fn answers_that_nobody_takes_stop_new_requests() {
    let memory_bytes = 3 * crate::nic::table::DESCRIPTOR_LEN;
    let mut rig = Rig::new(NodeOptions { memory_bytes, ..NodeOptions::default() });
    let ask = Ask::read(1, 4, 0, 10).message();
    for _ in 0..4 {
        assert!(rig.target.has_room(ME));
        rig.give(Peer::Node(2), &ask, 9, &mut Rng::new(1));
    }
    assert!(!rig.target.has_room(ME));
    assert_eq!(rig.answers().len(), 4);
    assert!(rig.target.has_room(ME));
}

/// Raw does whatever it is told; the others check, later than the handlers would.
#[test]
fn baselines_differ_in_what_they_check() {
    for baseline in [Baseline::Raw, Baseline::Rpc, Baseline::RpcRdma] {
        let options = NodeOptions { baseline: Some(baseline), ..NodeOptions::default() };
        let mut rig = Rig::new(options);
        let mut rng = Rng::new(1);
        let good = Ask::write(1, (5, 1), 0, vec![7; 900]);
        assert_eq!(rig.ask(ME, &good.message(), &mut rng).0.outcome, Ok(()));
        let mut forged = Ask::write(1, (5, 2), 0, vec![8; 900]);
        forged.heads.capability.mac[3] ^= 1;
        let outcome = rig.ask(ME, &forged.message(), &mut rng).0.outcome;
        let is_raw = baseline == Baseline::Raw;
        assert_eq!(outcome, if is_raw { Ok(()) } else { Err(Reason::Forged) }, "{baseline:?}");
        assert_eq!(rig.figure("steered") > 0, baseline == Baseline::Rpc);
        assert_eq!(rig.figure("dma_bytes"), 0, "of the header handler");
        let (_, data) = rig.ask(ME, &Ask::read(1, 5, 0, 900).message(), &mut rng);
        assert_eq!(data, vec![if is_raw { 8 } else { 7 }; 900]);
    }
}

/// A delta, or a version alone, is for stripes, of whole grains, and without data that it does not
/// say: by handlers and by the CPU side, of anything else not a byte is taken.
#[test]
fn deltas_and_versions_alone_are_for_stripes() {
    use outboard_wire::shared::Brings;
    for steer in [Steer::Never, Steer::Always] {
        let mut rng = Rng::new(1);
        let mut rig = Rig::new(NodeOptions { steer, ..NodeOptions::default() });
        let mut sent = |brings, strategy, len: u64| {
            let mut ask = Ask::write(1, (5, 1), 0, bytes(&mut rng, len));
            let capability = &mut ask.heads.capability;
            (capability.strategy, capability.k, capability.m) = match strategy {
                Strategy::Single => (strategy, 1, 0),
                Strategy::Ring | Strategy::BinaryTree => (strategy, 2, 0),
                Strategy::Parity => (strategy, 2, 1),
            };
            let Target::Write(write) = &mut ask.heads.target else { panic!("it is a write") };
            write.brings = brings;
            if brings == Brings::Nothing {
                write.crc = outboard_codec::crc32c(&[]);
                (ask.heads.head.data, ask.data) = (0, Vec::new());
            }
            rig.ask(ME, &ask.signed().message(), &mut rng).0.outcome
        };
        for brings in [Brings::Delta, Brings::Nothing] {
            for strategy in [Strategy::Single, Strategy::Ring, Strategy::BinaryTree] {
                assert_eq!(sent(brings, strategy, 8192), Err(Reason::Other), "{strategy:?}");
            }
            assert_eq!(sent(brings, Strategy::Parity, 100), Err(Reason::Invalid));
        }
        assert_eq!(sent(Brings::Nothing, Strategy::Parity, 8192), Ok(()));
        assert_eq!(sent(Brings::Nothing, Strategy::Parity, 8192), Ok(()), "it comes again");
        assert_eq!(rig.figure("writes"), 1);
    }
}
