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
use outboard_link::Region;
use outboard_link::dma::{Direct, Dma, Ledger};
use outboard_link::events::{Receiver, Sender};
use outboard_link::layout::Layout;
use outboard_link::queue::nvmefs::{Initiator, Target};
use outboard_link::queue::{Arrival, DpuQueue, HostQueue, Span, Submission};
use outboard_link::registers::Registers;
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
fn serve(mut target: Target, count: usize, bell: &Notify, interrupt: &Notify) {
    let (mut served, mut arrivals) = (0, Vec::new());
    while served < count {
        if target.poll(4, &mut arrivals) == 0 {
            if target.may_sleep() {
                bell.wait();
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

fn ask(initiator: &mut Initiator, bell: &Notify, interrupt: &Notify) {
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
        bell.notify();
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
    let (bell, interrupt) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (bell_there, interrupt_there) = (Arc::clone(&bell), Arc::clone(&interrupt));
    let dpu = thread::spawn(move || serve(target, count, &bell_there, &interrupt_there));
    (0..count).for_each(|_| ask(&mut initiator, &bell, &interrupt));
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
            sender.post(&Event::CachePressure { pages: 3 });
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
        assert_eq!(events, [Event::CachePressure { pages: 3 }]);
        dpu.join().unwrap();
    });
}
