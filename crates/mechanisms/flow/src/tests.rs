//! The simulated wire and its oracles are in `world`, what a faulty other end may say in `hostile`.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use std::{collections::HashSet, time::Duration};

use outboard_base::Time;
use outboard_wire::roce::{Extension, Opcode, Packet, Psn};
use proptest::prelude::*;

use super::*;
use crate::window::Numbers;

mod hostile;
mod world;

proptest! {
    #[test]
    fn numbers_are_a_set(
        from in 0u32..1 << 24,
        steps in prop::collection::vec((0u32..WINDOW_MAX, any::<bool>()), 0..200),
    ) {
        let from = Psn::new(from);
        let (mut numbers, mut set) = (Numbers::default(), HashSet::new());
        for (ahead, is_in) in steps {
            if is_in {
                numbers.insert(from.plus(ahead));
                set.insert(ahead);
            } else {
                numbers.remove(from.plus(ahead));
                set.remove(&ahead);
            }
            prop_assert_eq!(numbers.is_empty(), set.is_empty());
            let first = set.iter().min().map(|ahead| from.plus(*ahead));
            prop_assert_eq!(numbers.first(from, WINDOW_MAX), first);
        }
    }
}

#[test]
fn a_syndrome_is_read_as_it_was_written() {
    let mut known = 0;
    for raw in 0..=u8::MAX {
        if let Some(syndrome) = Syndrome::parse(raw) {
            assert_eq!(syndrome.raw(), raw, "{syndrome:?}");
            known += 1;
        }
    }
    assert_eq!(known, 31 + 30 + 3);
    let credits = |raw| match Syndrome::parse(raw) {
        Some(Syndrome::Acknowledged { credits }) => credits,
        other => panic!("{other:?}"),
    };
    let first: Vec<u32> = (0..12).map(credits).collect();
    assert_eq!(first, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]);
    assert_eq!(credits(30), 32768);
    assert_eq!(Syndrome::Acknowledged { credits: 5 }.raw(), 4, "rounded down");
    let wait = |micros| Syndrome::NotReady { wait: Duration::from_micros(micros) }.raw();
    assert_eq!([wait(0), wait(10), wait(11), wait(640)], [0x21, 0x21, 0x22, 0x2C]);
}

#[test]
fn a_flow_costs_what_the_page_says() {
    // The page names these: a flow's fixed part, and what a live message adds.
    let fixed = size_of::<Receiver>();
    assert!(fixed <= 240, "{fixed}");
    assert!(size_of::<Sender<Vec<u8>>>() <= 480, "{}", size_of::<Sender<Vec<u8>>>());
    assert_eq!(receiver::DESCRIPTOR, 16);
}

const IDENTITY: Identity = Identity { here: 7, there: 9, first: Psn::new(0x00FF_FFFE) };

fn mirror(identity: Identity) -> Identity {
    Identity { here: identity.there, there: identity.here, ..identity }
}

/// What is asked of a message that comes in the worst of orders: its last packet first.
#[test]
fn the_first_packet_opens_a_message_and_the_missing_one_ends_it() {
    let settings = Settings { payload: 4, ..Settings::of_mtu(1500) };
    let now = Time(0);
    let mut sender = Sender::new(settings, IDENTITY, 4);
    let mut receiver = Receiver::new(settings, mirror(IDENTITY), now);
    let kind = Kind::Write { address: 5, key: 6 };
    assert_eq!(sender.push(kind, b"0123456789".to_vec()), Ok(0));
    let mut packets = Vec::new();
    while let Some(Packet { opcode, asks, psn, extension, payload, .. }) = sender.poll(now) {
        packets.push((opcode, asks, psn, extension, payload.to_vec()));
    }
    let opcodes: Vec<Opcode> = packets.iter().map(|packet| packet.0).collect();
    assert_eq!(opcodes, [Opcode::WriteFirst, Opcode::WriteMiddle, Opcode::WriteLast]);
    let packet = |at: usize| {
        let (opcode, asks, psn, extension, payload) = &packets[at];
        let (opcode, asks, psn, extension) = (*opcode, *asks, *psn, *extension);
        Packet { opcode, solicited: false, asks, queue: 9, psn, extension, payload }
    };
    assert_eq!(receiver.receive(&packet(2), now, true), Received::Early);
    let first = receiver.receive(&packet(0), now, true);
    let header = Some(Header { write: Some((5, 6)), bytes: 10 });
    let message = IDENTITY.first;
    let payload = &b"0123"[..];
    let given = Given { message, header, offset: 0, payload, completes: false };
    assert_eq!(first, Received::Given(given));
    let last = receiver.receive(&packet(2), now, true);
    let given = Given { header: None, offset: 8, payload: b"89", ..given };
    assert_eq!(last, Received::Given(given));
    assert_eq!(receiver.receive(&packet(2), now, true), Received::Duplicate);
    assert_eq!(receiver.live(), 1);
    let middle = receiver.receive(&packet(1), now, true);
    let given = Given { offset: 4, payload: b"4567", completes: true, ..given };
    assert_eq!(middle, Received::Given(given));
    assert_eq!(receiver.live(), 0);
}

/// A message whose sender went silent is cleaned up, once, and whoever comes back is told.
#[test]
fn a_message_that_never_completes_is_cleaned_up() {
    let settings = Settings::of_mtu(1500);
    let mut sender = Sender::new(settings, IDENTITY, 4);
    let mut receiver = Receiver::new(settings, mirror(IDENTITY), Time(0));
    let _ = sender.push(Kind::Write { address: 0, key: 0 }, vec![1; 5000]);
    let first = sender.poll(Time(0)).expect("a packet");
    assert!(matches!(receiver.receive(&first, Time(10), true), Received::Given(_)));
    let deadline = receiver.deadline().expect("a message is live");
    assert_eq!(deadline, Time(10).after(settings.silence));
    assert_eq!(receiver.cleanup(Time(deadline.0 - 1)), None);
    assert_eq!(receiver.cleanup(deadline), Some(IDENTITY.first));
    assert_eq!(receiver.cleanup(deadline), None);
    let _ = receiver.poll();
    let second = sender.poll(Time(0)).expect("a packet");
    assert_eq!(receiver.receive(&second, deadline, true), Received::Closed);
    let answer = receiver.poll().expect("it is told");
    sender.receive(&answer, deadline);
    assert_eq!(sender.dead(), Some(Dead::Closed));
    assert_eq!(sender.ended().map(|ended| ended.result), Some(Err(Dead::Closed)));
    assert_eq!(sender.push(Kind::Send, Vec::new()), Err(Refused::Dead(Vec::new())));
}

#[test]
fn what_is_not_taken_is_given_back() {
    let settings = Settings { message_bytes: 4000, ..Settings::of_mtu(1500) };
    let mut sender = Sender::new(settings, IDENTITY, 1);
    let long = vec![0; 4001];
    let write = Kind::Write { address: 0, key: 0 };
    assert_eq!(sender.push(write, long.clone()), Err(Refused::TooLong(long)));
    let two = vec![0; settings.payload + 1];
    assert_eq!(sender.push(Kind::Send, two.clone()), Err(Refused::TooLong(two)));
    assert_eq!(sender.push(Kind::Send, vec![1]), Ok(0));
    assert_eq!(sender.push(Kind::Send, vec![2]), Err(Refused::Full(vec![2])));
}

/// A gap that was filled in the batch in which it was seen was reported with a number behind all
/// that had been sent. The sender took the number and not the completions, so it had no credits,
/// and nothing to wait for.
#[test]
fn an_answer_that_names_a_gap_gives_credits_too() {
    let settings = Settings { payload: 4, messages: 1, ..Settings::of_mtu(1500) };
    let now = Time(0);
    let mut sender = Sender::new(settings, IDENTITY, 4);
    let mut receiver = Receiver::new(settings, mirror(IDENTITY), now);
    let kind = Kind::Write { address: 5, key: 6 };
    assert_eq!(sender.push(kind, b"01234567".to_vec()), Ok(0));
    assert_eq!(sender.push(Kind::Send, b"next".to_vec()), Ok(1));
    let mut datagrams = Vec::new();
    while let Some(packet) = sender.poll(now) {
        let mut datagram = Vec::new();
        packet.emit(world::ROUTE, &mut datagram).unwrap();
        datagrams.push(datagram);
    }
    assert_eq!(datagrams.len(), 2, "there are credits for one message");
    for at in [1, 0, 1] {
        let packet = Packet::parse(&datagrams[at], world::ROUTE).unwrap();
        let _ = receiver.receive(&packet, now, true);
    }
    sender.receive(&receiver.poll().expect("an answer"), now);
    assert_eq!(sender.ended().map(|ended| ended.message), Some(0));
    assert_eq!(sender.poll(now).map(|packet| packet.opcode), Some(Opcode::SendOnly));
}

/// A message whose first packet was wrong was cleaned up, though nobody above had heard of it.
#[test]
fn a_message_that_was_never_given_is_not_cleaned_up() {
    let mut receiver = Receiver::new(Settings::of_mtu(1500), mirror(IDENTITY), Time(0));
    let extension = Extension::Write { address: 0, key: 0, bytes: 5 };
    let packet = Packet {
        opcode: Opcode::WriteOnly,
        solicited: false,
        asks: true,
        queue: 9,
        psn: IDENTITY.first,
        extension,
        payload: b"four",
    };
    assert_eq!(receiver.receive(&packet, Time(0), true), Received::Invalid);
    assert_eq!(receiver.cleanup(Time(0)), None);
}
