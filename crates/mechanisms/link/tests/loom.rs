//! Every interleaving and every legal reordering of both ends of a queue, up to a number of
//! preemptions. A lost wake-up shows as a deadlock, a torn or early read as a wrong byte.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p outboard-link --test loom`
#![allow(unexpected_cfgs, reason = "`--cfg loom` is set by hand")]
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::sync::Arc;

use loom::sync::Notify;
use loom::thread;
use outboard_base::ledger::Ledger;
use outboard_link::Region;
use outboard_link::dma::{Direct, Dma};
use outboard_link::events::{Receiver, Sender};
use outboard_link::layout::Layout;
use outboard_link::queue::nvmefs::{Initiator, Target};
use outboard_link::queue::{Arrival, DpuQueue, HostQueue, Span, Submission};
use outboard_link::registers::Registers;
use outboard_link::ring::{Consume, Place, Produce, PushError, Recovery, progress, response};
use outboard_wire::event::Event;
use outboard_wire::nvmefs::{Dispatch, Status};
use outboard_wire::regs::{attachment, registers_len};

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

struct Ends {
    region: Arc<Region>,
    registers: Registers,
    dma: Arc<dyn Dma>,
    ledger: Arc<Ledger>,
}

fn ends(depth: u16) -> Ends {
    let layout = Layout::new(1, depth).unwrap();
    let region = Region::anonymous(layout.region_len());
    let pages = Region::anonymous(registers_len(1, depth));
    pages.touch_wide(attachment::INSTANCE, 8);
    pages.touch_wide(attachment::EVENT_HEAD, 8);
    pages.touch_pairs(0, 0x140);
    pages.touch_pairs(4096, 0x140 + 4 * u64::from(depth));
    region.touch_wide(layout.sqe_at(0, 0), u64::from(depth) * 80);
    region.touch_wide(layout.event_at(1), 128);
    for cid in 0..layout.slots() {
        let slot = layout.slot(0, cid);
        region.touch_wide(slot.header + 4088, 8);
        region.touch_wide(slot.buffer, 8);
    }
    let registers = Registers::create(pages, layout, 1).unwrap();
    let dma: Arc<dyn Dma> = Arc::new(Direct::new(Arc::clone(&region)));
    Ends { region, registers, dma, ledger: Arc::new(Ledger::new()) }
}

/// Serves `count` commands, asleep whenever there is nothing to do.
fn serve(mut target: Target, count: usize, wakeup: &Notify, interrupt: &Notify) {
    let (mut served, mut arrivals) = (0, Vec::new());
    while served < count {
        if target.poll(4, &mut arrivals) == 0 {
            if target.may_sleep() {
                wakeup.wait();
                target.awake();
            }
            continue;
        }
        for arrival in arrivals.drain(..) {
            let Arrival::Command(command) = arrival else { panic!("no aborts here") };
            let mut data = [0; 4];
            command.read_data(0, &mut data).unwrap();
            assert_eq!((command.header(), data), (&[7, 7, 7, 7][..], [9; 4]));
            target.complete(command, Status::Ok, 5, &[]);
            served += 1;
        }
        if target.flush() {
            interrupt.notify();
        }
    }
}

fn ask(initiator: &mut Initiator, wakeup: &Notify, interrupt: &Notify) {
    let cid = initiator.acquire().unwrap();
    initiator.write_buffer(cid, 0, &[9; 4]).unwrap();
    let submission = Submission {
        dispatch: Dispatch::Kv,
        header: &[7; 4],
        write: Span::first(4),
        read: Span::NONE,
        reply_header: 0,
    };
    initiator.submit(cid, &submission).unwrap();
    if initiator.ring() {
        wakeup.notify();
    }
    let mut done = Vec::new();
    while initiator.poll(4, &mut done) == 0 {
        if initiator.may_sleep().is_some() {
            interrupt.wait();
            initiator.awake();
        }
    }
    assert_eq!((done[0].cid, done[0].status, done[0].result), (cid, Status::Ok, 5));
    initiator.release(cid).unwrap();
}

fn conversation(depth: u16, count: usize) {
    let Ends { region, registers, dma, ledger } = ends(depth);
    let mut initiator = Initiator::new(region, &registers, 0, Arc::clone(&ledger)).unwrap();
    let target = Target::new(dma, &registers, 0, ledger).unwrap();
    let (wakeup, interrupt) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (wakeup_there, interrupt_there) = (Arc::clone(&wakeup), Arc::clone(&interrupt));
    let dpu = thread::spawn(move || serve(target, count, &wakeup_there, &interrupt_there));
    (0..count).for_each(|_| ask(&mut initiator, &wakeup, &interrupt));
    dpu.join().unwrap();
}

#[test]
fn one_command_is_answered_and_nobody_sleeps_for_ever() {
    explore(3, || conversation(2, 1));
}

#[test]
fn slots_and_ring_entries_are_used_again_in_order() {
    explore(2, || conversation(2, 3));
}

#[test]
fn an_event_reaches_a_sleeping_host() {
    explore(3, || {
        let Ends { region, registers, dma, ledger } = ends(2);
        let mut receiver = Receiver::new(region, registers.clone()).unwrap();
        let mut sender = Sender::new(dma, registers, ledger);
        let interrupt = Arc::new(Notify::new());
        let there = Arc::clone(&interrupt);
        let dpu = thread::spawn(move || {
            sender.post(&Event::LockGranted { ticket: 3, errno: None });
            if sender.flush() {
                there.notify();
            }
        });
        let mut events = Vec::new();
        while receiver.poll(4, &mut events) == 0 {
            if receiver.may_sleep().is_some() {
                interrupt.wait();
                receiver.awake();
            }
        }
        assert_eq!(events, [Event::LockGranted { ticket: 3, errno: None }]);
        dpu.join().unwrap();
    });
}

// Rings. Only the words a model uses are made, before its threads begin.

const RING_AT: u64 = 4096;
const MESSAGES_AT: u64 = RING_AT + 8192;

fn ring_region(frames: u64) -> (Arc<Region>, Place, Arc<dyn Dma>) {
    let place = Place::new(RING_AT, 4096).unwrap();
    let region = Region::anonymous(place.end());
    region.touch_wide(RING_AT, 192);
    region.touch_wide(RING_AT + 256, 4 * 64);
    region.touch_wide(MESSAGES_AT, frames * 16);
    let dma: Arc<dyn Dma> = Arc::new(Direct::new(Arc::clone(&region)));
    (region, place, dma)
}

fn push_all(producer: &mut progress::Producer, messages: &[u64]) {
    for message in messages {
        while let Err(error) = producer.push(&[&message.to_le_bytes()]) {
            assert_eq!(error, PushError::Retry);
            thread::yield_now();
        }
    }
}

/// Takes so many messages of 8 bytes, in whatever order producers came.
fn take_all(consumer: &mut progress::Consumer, count: usize) -> Vec<u64> {
    let mut out = Vec::new();
    while out.len() < count {
        let mut each = |message: &[u8]| {
            out.push(u64::from_le_bytes(message.try_into().unwrap()));
        };
        if consumer.take(&mut each).unwrap() == 0 {
            thread::yield_now();
        }
    }
    out
}

/// Two producers reserve, write and finish in any order; the consumer never takes a message that
/// is not whole, and takes each once.
#[test]
fn equal_pointers_mean_that_everything_is_whole() {
    explore(3, || {
        let (region, place, dma) = ring_region(2);
        let ring = progress::Ring::new(region, place, 4096).unwrap();
        let mut consumer = progress::Consumer::new(dma, place).unwrap();
        let mut producers = [1, 2].map(|who| ring.producer(who));
        let threads = producers.each_mut().map(|producer| {
            let mut producer = producer.take().unwrap();
            thread::spawn(move || push_all(&mut producer, &[7 + (1 << 40)]))
        });
        assert_eq!(take_all(&mut consumer, 2), [7 + (1 << 40); 2]);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// A ring of two frames: the second message must wait for the head.
#[test]
fn the_head_gives_room_back_only_after_the_copy() {
    explore(3, || {
        let (region, place, dma) = ring_region(3);
        let ring = progress::Ring::new(region, place, 32).unwrap();
        let mut consumer = progress::Consumer::new(dma, place).unwrap();
        let mut producer = ring.producer(1).unwrap();
        let thread = thread::spawn(move || push_all(&mut producer, &[1, 2, 3]));
        assert_eq!(take_all(&mut consumer, 3), [1, 2, 3]);
        thread.join().unwrap();
    });
}

/// One producer is dead between reserving and finishing, one is pushing while the ring is held.
#[test]
fn recovery_waits_for_the_living_and_passes_over_the_dead() {
    explore(3, || {
        let (region, place, dma) = ring_region(4);
        let ring = progress::Ring::new(region, place, 4096).unwrap();
        let mut consumer = progress::Consumer::new(dma, place).unwrap();
        let mut dead = ring.producer(13).unwrap();
        let shape = progress::Shape { head: 8, data: 0, align: 8 };
        std::mem::forget(dead.reserve(shape).unwrap());
        std::mem::forget(dead);
        let mut alive = ring.producer(7).unwrap();
        let thread = thread::spawn(move || push_all(&mut alive, &[5]));
        loop {
            match ring.recover(&|who| who == 13).unwrap() {
                Recovery::Waiting => thread::yield_now(),
                done => {
                    assert_eq!(done, Recovery::Done { owners: 1, bytes: 16 });
                    break;
                }
            }
        }
        assert_eq!(take_all(&mut consumer, 1), [5]);
        thread.join().unwrap();
    });
}

/// Frames for messages of 8 bytes, from the ring's beginning on.
fn frames_of(place: Place, messages: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        let laid = response::Producer::lay(place, bytes.len() as u64, 8);
        bytes.extend(laid.head.to_le_bytes());
        bytes.extend(message.to_le_bytes());
    }
    bytes
}

fn take_one(consumer: &mut response::Consumer) -> u64 {
    let mut out = Vec::new();
    while !consumer.take(&mut out).unwrap() {
        thread::yield_now();
    }
    u64::from_le_bytes(out[..].try_into().unwrap())
}

/// Two consumers race for two responses: each is had once. Found here: each could mark its frame
/// and leave it to the other to move the head, and room was lost for good.
#[test]
fn responses_are_claimed_once_and_all_room_comes_back() {
    explore(3, || {
        let (region, place, dma) = ring_region(2);
        let ring = response::Ring::new(region, place).unwrap();
        let mut producer = response::Producer::new(dma, place).unwrap();
        producer.deliver(&[&frames_of(place, &[1, 2])]).unwrap();
        let (mut here, mut there) = (ring.consumer(1).unwrap(), ring.consumer(2).unwrap());
        let thread = thread::spawn(move || take_one(&mut there));
        assert_eq!(take_one(&mut here) + thread.join().unwrap(), 3);
        assert_eq!(producer.room(32, 4097), Ok(4096));
    });
}

/// What a consumer sees of a response is whole.
#[test]
fn a_response_is_there_when_the_tail_says_so() {
    explore(3, || {
        let (region, place, dma) = ring_region(2);
        let ring = response::Ring::new(region, place).unwrap();
        let mut producer = response::Producer::new(dma, place).unwrap();
        let mut consumer = ring.consumer(1).unwrap();
        let dpu = thread::spawn(move || {
            let bytes = frames_of(place, &[1, 2]);
            let (first, second) = bytes.split_at(16);
            producer.deliver(&[first]).unwrap();
            producer.deliver(&[second]).unwrap();
        });
        assert_eq!((take_one(&mut consumer), take_one(&mut consumer)), (1, 2));
        dpu.join().unwrap();
    });
}
