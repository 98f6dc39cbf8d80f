//! The other end may send whatever parses. Nothing it says breaks a bound, or what is promised to
//! the layer above.

use outboard_base::Rng;

use super::*;

/// A packet near the window, with fields that fit each other about half the time.
fn any_packet<'a>(rng: &mut Rng, near: Psn, payload: &'a [u8]) -> Packet<'a> {
    let pick = |rng: &mut Rng, bound: u64| u32::try_from(rng.below(bound)).unwrap_or(0);
    let opcode = Opcode::ALL[rng.below(14) as usize];
    let extension = match opcode {
        Opcode::WriteFirst | Opcode::WriteOnly | Opcode::ReadRequest => Extension::Write {
            address: rng.next_u64(),
            key: 0,
            bytes: if rng.chance(1, 8) { u32::MAX } else { pick(rng, 40) },
        },
        Opcode::ReadFirst | Opcode::ReadLast | Opcode::ReadOnly | Opcode::Acknowledge => {
            Extension::Answer { syndrome: rng.below(256) as u8, messages: pick(rng, 1 << 24) }
        }
        _ => Extension::None,
    };
    let psn = near.plus(pick(rng, 40)).plus(0u32.wrapping_sub(8));
    let psn = if rng.chance(1, 16) { Psn::new(pick(rng, 1 << 24)) } else { psn };
    let len = if rng.chance(1, 2) { payload.len() } else { rng.below(5) as usize };
    let len = len.min(payload.len());
    let asks = rng.chance(1, 2);
    Packet { opcode, solicited: false, asks, queue: 9, psn, extension, payload: &payload[..len] }
}

/// A packet of messages of three packets each, ten bytes long, as an honest sender would cut them.
fn honest_packet<'a>(rng: &mut Rng, first: Psn, payload: &'a [u8]) -> Packet<'a> {
    let ahead = u32::try_from(rng.below(30)).unwrap_or(0);
    let (opcode, extension, len) = match ahead % 3 {
        0 => (Opcode::WriteFirst, Extension::Write { address: 0, key: 0, bytes: 10 }, 4),
        1 => (Opcode::WriteMiddle, Extension::None, 4),
        _ => (Opcode::WriteLast, Extension::None, 2),
    };
    let (psn, asks) = (first.plus(ahead), rng.chance(1, 2));
    Packet { opcode, solicited: false, asks, queue: 9, psn, extension, payload: &payload[..len] }
}

#[test]
fn a_hostile_sender_breaks_no_promise() {
    let (mut given, mut completed, mut invalid) = (0, 0, 0);
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let settings = Settings { payload: 4, window: 16, messages: 3, ..Settings::of_mtu(1500) };
        let first = Psn::new(0x00FF_FFF8);
        let mut receiver = Receiver::new(settings, Identity { here: 9, there: 7, first }, Time(0));
        let mut open = HashSet::new();
        let mut seen = HashSet::new();
        for step in 0..60 {
            // Only who is honest for a while gets where a lie could do harm.
            let packet = if rng.chance(1, 30) {
                any_packet(&mut rng, first, b"abcd")
            } else {
                honest_packet(&mut rng, first, b"abcd")
            };
            match receiver.receive(&packet, Time(step), true) {
                Received::Given(what) => {
                    given += 1;
                    assert!(seen.insert(packet.psn), "seed {seed}: given twice");
                    if what.header.is_some() {
                        assert!(open.insert(what.message), "seed {seed}: two headers");
                    }
                    assert!(open.contains(&what.message), "seed {seed}: no header");
                    if what.completes {
                        completed += 1;
                        open.remove(&what.message);
                    }
                }
                Received::Invalid => invalid += 1,
                _ => {}
            }
            assert!(receiver.live() <= 3 && open.len() == receiver.live(), "seed {seed}");
            let _ = receiver.poll();
        }
        while let Some(message) = receiver.cleanup(Time(u64::MAX)) {
            assert!(open.remove(&message), "seed {seed}: cleaned up twice");
        }
        assert!(open.is_empty(), "seed {seed}: never cleaned up");
    }
    // The walk gets somewhere.
    assert!(given > 20_000 && completed > 5000 && invalid > 5000, "{given} {completed} {invalid}");
}

#[test]
fn a_hostile_receiver_breaks_no_bound() {
    let (mut acknowledged, mut died) = (0, 0);
    for seed in 0..5000 {
        let mut rng = Rng::new(seed);
        let settings = Settings { payload: 4, window: 16, ..Settings::of_mtu(1500) };
        let mut sender = Sender::new(settings, Identity { here: 9, ..IDENTITY }, 8);
        let mut now = Time(0);
        for _ in 0..200 {
            let bytes = vec![0; rng.below(40) as usize];
            let _ = sender.push(Kind::Write { address: 0, key: 0 }, bytes);
            for _ in 0..rng.below(20) {
                if sender.poll(now).is_none() {
                    break;
                }
                assert!(sender.flying() <= 16, "seed {seed}");
            }
            let mut packet = any_packet(&mut rng, IDENTITY.first, b"");
            packet.opcode = Opcode::Acknowledge;
            let raw = [0x0F, 0x1E, 0x2C, 0x60, 0x60, 0x61, 0x63][rng.below(64).min(6) as usize];
            let syndrome = if rng.chance(1, 30) { raw } else { 0x0F };
            packet.extension = Extension::Answer { syndrome, messages: rng.below(9) as u32 };
            sender.receive(&packet, now);
            while let Some(ended) = sender.ended() {
                acknowledged += u32::from(ended.result.is_ok());
            }
            now = now.after(Duration::from_micros(rng.below(3000)));
        }
        died += u32::from(sender.dead().is_some());
    }
    assert!(acknowledged > 5000 && died > 500, "{acknowledged} {died}");
}
