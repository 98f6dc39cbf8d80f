//! A driver that writes what it likes into its virtqueue: what can be answered is refused, what
//! cannot ends the queue, and nothing is followed beyond the region or without bound.

use outboard_base::Rng;
use outboard_base::ledger::Count;
use outboard_link::queue::{Arrival, DpuQueue, Fault, HostQueue, Span, Submission};
use outboard_wire::fuse::{InHeader, Opcode};
use outboard_wire::nvmefs::{QueueError, Status};
use outboard_wire::virtio::message::{Answer, unique};
use outboard_wire::virtio::{CHAIN_MAX, Descriptor, Used, ring_word};

use crate::rig::{VirtioRig, arrivals, commands, completions, ring, submission};

/// A driver by hand: descriptors, heads and messages of its own making.
struct Hand<const TUNED: bool> {
    rig: VirtioRig<TUNED>,
    tail: u16,
    seen: u16,
}

impl<const TUNED: bool> Hand<TUNED> {
    fn new() -> Self {
        Hand { rig: VirtioRig::new(8), tail: 0, seen: 0 }
    }

    fn write(&self, at: u64, data: &[u8]) {
        self.rig.region.write_from(at, data).unwrap();
    }

    fn table(&self, descriptors: &[Descriptor]) {
        let queue = self.rig.rings.virtqueue(0).unwrap();
        for (i, descriptor) in (0u16..).zip(descriptors) {
            self.write(queue.descriptor_at(i), &descriptor.emit());
        }
    }

    fn show(&mut self, head: u16) {
        let queue = self.rig.rings.virtqueue(0).unwrap();
        self.write(queue.avail_entry_at(self.tail), &head.to_le_bytes());
        self.tail = self.tail.wrapping_add(1);
        self.write(queue.avail_at(), &ring_word(self.tail).to_le_bytes());
        self.doorbell(u32::from(self.tail));
    }

    fn doorbell(&self, value: u32) {
        self.rig.registers.queue(0).unwrap().set_tail(value);
    }

    /// Header page, buffer and reply page of slot 0.
    fn places(&self) -> (u64, u64, u64) {
        let slot = self.rig.rings.layout().slot(0, 0);
        (slot.header, slot.buffer, slot.reply)
    }

    fn call(&self) -> InHeader {
        InHeader {
            len: 80 + 4096,
            opcode: Opcode::Write as u32,
            unique: unique(0, 1),
            ..InHeader::default()
        }
    }

    /// A good 4 KiB write.
    fn good(&self) -> [Descriptor; 3] {
        let (header, buffer, reply) = self.places();
        self.write(header, &self.call().emit());
        [
            Descriptor { at: header, len: 80, writable: false, next: Some(1) },
            Descriptor { at: buffer, len: 4096, writable: false, next: Some(2) },
            Descriptor { at: reply, len: 24, writable: true, next: None },
        ]
    }

    /// The next used element and the out header of slot 0.
    fn used(&mut self) -> (Used, Answer) {
        let queue = self.rig.rings.virtqueue(0).unwrap();
        let (mut element, mut out) = ([0; 8], [0; 16]);
        self.rig.region.read_into(queue.used_entry_at(self.seen), &mut element).unwrap();
        self.rig.region.read_into(self.places().2, &mut out).unwrap();
        self.seen = self.seen.wrapping_add(1);
        (Used::parse(&element), Answer::parse(&out))
    }
}

fn a_good_request_by_hand_is_served<const TUNED: bool>() {
    let mut hand = Hand::<TUNED>::new();
    hand.table(&hand.good());
    hand.show(0);
    let command = commands(&mut hand.rig.dpu).pop().unwrap();
    hand.rig.dpu.complete(command, Status::Ok, 0, &[1; 8]);
    let _interrupt = hand.rig.dpu.flush();
    let (used, answer) = hand.used();
    assert_eq!((used, answer.len), (Used { id: 0, len: 24 }, 24));
    assert_eq!((answer.status, answer.unique), (Status::Ok, unique(0, 1)));
}

/// The message does not add up, but there is room to say so.
fn messages_that_do_not_add_up_are_refused_and_the_queue_lives<const TUNED: bool>() {
    let mut hand = Hand::<TUNED>::new();
    let good = hand.call();
    let bad = [
        (InHeader { len: 80, ..good }, QueueError::InvalidLength),
        (InHeader { len: u32::MAX, ..good }, QueueError::InvalidLength),
        (InHeader { opcode: 9999, ..good }, QueueError::InvalidOpcode),
        (InHeader { opcode: Opcode::Forget as u32, ..good }, QueueError::InvalidOpcode),
        (InHeader { unique: 0, ..good }, QueueError::InvalidCid),
        (InHeader { unique: u64::MAX, ..good }, QueueError::InvalidCid),
        (InHeader { unique: unique(8, 1), ..good }, QueueError::InvalidCid),
    ];
    for (header, error) in bad {
        hand.table(&hand.good());
        hand.write(hand.places().0, &header.emit());
        hand.show(0);
        assert!(arrivals(&mut hand.rig.dpu).is_empty(), "never seen by a volume");
        let _interrupt = hand.rig.dpu.flush();
        let (used, answer) = hand.used();
        assert_eq!(used, Used { id: 0, len: 16 });
        assert_eq!((answer.status, answer.unique), (Status::Queue(error), header.unique));
    }
    assert_eq!(hand.rig.ledger.snapshot().count(Count::Refused), 7);
    assert_eq!(hand.rig.dpu.fault(), None);
}

/// One slot asked twice: the second is refused, the first goes on.
fn a_slot_in_flight_is_not_given_out_again<const TUNED: bool>() {
    let mut hand = Hand::<TUNED>::new();
    hand.table(&hand.good());
    hand.show(0);
    hand.show(0);
    let mut work = commands(&mut hand.rig.dpu);
    assert_eq!((work.len(), hand.rig.dpu.in_flight()), (1, 1));
    let _interrupt = hand.rig.dpu.flush();
    assert_eq!(hand.used().1.status, Status::Queue(QueueError::InvalidCid));
    hand.rig.dpu.complete(work.pop().unwrap(), Status::Ok, 0, &[]);
    let _interrupt = hand.rig.dpu.flush();
    assert_eq!(hand.used().1.status, Status::Ok);
}

/// Bends a good descriptor, knowing where the region ends.
type Bend = fn(&mut Descriptor, u64);

/// Chains that loop, leave the table or the region, or leave no room for an answer.
fn chains_that_cannot_be_followed_end_the_queue<const TUNED: bool>() {
    let end = VirtioRig::<TUNED>::new(8).region.len();
    let bent: [(usize, Bend); 14] = [
        (0, |d, _| d.next = Some(0)),
        (1, |d, _| d.next = Some(0)),
        (2, |d, _| d.next = Some(2)),
        (1, |d, _| d.next = Some(u16::MAX)),
        (0, |d, _| d.at = 0),
        (0, |d, _| d.at = 4095),
        (1, |d, end| d.at = end),
        (1, |d, end| d.at = end - 4095),
        (1, |d, _| d.at = u64::MAX),
        (1, |d, _| d.len = u32::MAX),
        (1, |d, _| d.len = 0),
        (0, |d, _| d.writable = true),
        (2, |d, _| d.writable = false),
        (2, |d, _| d.len = 15),
    ];
    for (i, (which, bend)) in bent.into_iter().enumerate() {
        let mut hand = Hand::<TUNED>::new();
        let mut table = hand.good();
        bend(&mut table[which], end);
        hand.table(&table);
        hand.show(0);
        assert!(arrivals(&mut hand.rig.dpu).is_empty());
        assert_eq!(hand.rig.dpu.fault(), Some(Fault::Chain), "case {i}");
        hand.show(0);
        assert!(arrivals(&mut hand.rig.dpu).is_empty(), "nothing more is served");
        let spent = hand.rig.ledger.snapshot().total();
        assert!(spent.ops <= 3 + CHAIN_MAX as u64, "bounded: {spent:?}");
    }
}

fn an_indirect_table_was_not_agreed_on<const TUNED: bool>() {
    let mut hand = Hand::<TUNED>::new();
    hand.table(&hand.good());
    let flags = hand.rig.rings.virtqueue(0).unwrap().descriptor_at(0) + 12;
    hand.write(flags, &5u16.to_le_bytes());
    hand.show(0);
    assert!(arrivals(&mut hand.rig.dpu).is_empty());
    assert_eq!(hand.rig.dpu.fault(), Some(Fault::Chain));
}

fn heads_and_doorbells_out_of_range_end_the_queue<const TUNED: bool>() {
    let size = VirtioRig::<TUNED>::new(8).rings.virtqueue(0).unwrap().size();
    for head in [size, u16::MAX] {
        let mut hand = Hand::<TUNED>::new();
        hand.show(head);
        assert!(arrivals(&mut hand.rig.dpu).is_empty());
        assert_eq!(hand.rig.dpu.fault(), Some(Fault::Chain));
    }
    for doorbell in [u32::from(size) + 1, 0xFFFF, 0x1_0000, u32::MAX] {
        let mut hand = Hand::<TUNED>::new();
        hand.doorbell(doorbell);
        assert!(arrivals(&mut hand.rig.dpu).is_empty());
        assert_eq!(hand.rig.dpu.fault(), Some(Fault::Doorbell), "{doorbell:#x}");
    }
}

/// The idx in memory: behind the doorbell, or more than a ring ahead of what was taken.
#[test]
fn an_avail_idx_that_jumps_ends_the_queue() {
    for idx in [0u16, 40_000] {
        let mut hand = Hand::<false>::new();
        hand.table(&hand.good());
        hand.show(0);
        let at = hand.rig.rings.virtqueue(0).unwrap().avail_at();
        hand.write(at, &ring_word(idx).to_le_bytes());
        assert!(arrivals(&mut hand.rig.dpu).is_empty());
        assert_eq!(hand.rig.dpu.fault(), Some(Fault::Doorbell), "idx {idx}");
    }
}

/// A doorbell a whole ring ahead over an unchanging ring: one poll takes its budget and no more.
fn a_poll_is_bounded_by_its_budget<const TUNED: bool>() {
    let mut hand = Hand::<TUNED>::new();
    let size = hand.rig.rings.virtqueue(0).unwrap().size();
    hand.table(&hand.good());
    let at = hand.rig.rings.virtqueue(0).unwrap().avail_at();
    hand.write(at, &ring_word(size).to_le_bytes());
    hand.doorbell(u32::from(size));
    let mut out = Vec::new();
    assert_eq!(hand.rig.dpu.poll(5, &mut out), 5);
    assert_eq!(out.len(), 1, "the slot is given out once, the rest is refused");
    assert_eq!(hand.rig.ledger.snapshot().count(Count::Refused), 4);
}

/// Elements that answer nothing, answers to something else, an idx that jumps: counted, and the
/// host goes on.
fn the_host_believes_only_what_answers<const TUNED: bool>() {
    let mut rig = VirtioRig::<TUNED>::new(8);
    let queue = rig.rings.virtqueue(0).unwrap();
    let cid = rig.host.acquire().unwrap();
    rig.host.submit(cid, &submission(b"x")).unwrap();
    ring(&mut rig.host);
    let mut word = 0;
    let mut post = |id: u32| {
        rig.region.write_from(queue.used_entry_at(word), &Used { id, len: 0 }.emit()).unwrap();
        word += 1;
        rig.region.write_from(queue.used_at(), &ring_word(word).to_le_bytes()).unwrap();
        completions(&mut rig.host)
    };
    for id in [1, u32::from(rig.rings.head(1)), u32::from(queue.size()), u32::MAX] {
        assert_eq!(post(id), []);
    }
    let done = post(u32::from(rig.rings.head(cid.0)));
    assert_eq!(done[0].status, Status::Queue(QueueError::Protocol), "no out header");
    rig.host.release(cid).unwrap();
    let jumped = word.wrapping_add(queue.size()).wrapping_add(1);
    rig.region.write_from(queue.used_at(), &ring_word(jumped).to_le_bytes()).unwrap();
    assert_eq!(completions(&mut rig.host), []);
    assert_eq!(rig.host_ledger.snapshot().count(Count::Violations), 5);
}

/// Honest traffic with bytes of the rings and headers changed at random: no panic, no more in
/// flight than slots, no access outside the region (the engine would refuse it and the command's
/// transfers with it).
fn seeded_scribbles_cannot_break_the_device<const TUNED: bool>() {
    for seed in 0..150 {
        let run = std::panic::catch_unwind(|| scribble::<TUNED>(seed));
        assert!(run.is_ok(), "seed {seed}");
    }
}

fn scribble<const TUNED: bool>(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut rig = VirtioRig::<TUNED>::new(8);
    let queue = rig.rings.virtqueue(0).unwrap();
    for _ in 0..200 {
        if let Some(cid) = rig.host.acquire() {
            let span = Span { offset: 100, len: u32::try_from(rng.below(20_000)).unwrap() };
            let sub =
                Submission { write: span, read: span, reply_header: 8, ..submission(b"head") };
            rig.host.submit(cid, &sub).unwrap();
            ring(&mut rig.host);
        }
        let slot = rig.rings.layout().slot(0, u16::try_from(rng.below(7)).unwrap());
        let places = [
            queue.descriptor_at(rig.rings.head(u16::try_from(rng.below(7)).unwrap()))
                + rng.below(64),
            queue.avail_at() + rng.below(32),
            slot.header + rng.below(64),
        ];
        if rng.chance(1, 4) {
            let at = places[usize::try_from(rng.below(3)).unwrap()];
            rig.region.write_from(at, &[u8::try_from(rng.below(256)).unwrap()]).unwrap();
        }
        for arrival in arrivals(&mut rig.dpu) {
            let Arrival::Command(command) = arrival else { continue };
            let mut data = vec![0; command.write_len() as usize];
            command.read_data(0, &mut data).expect("admitted ranges are in the region");
            let room = vec![1; command.read_len() as usize];
            command.write_data(0, &room).expect("admitted ranges are in the region");
            rig.dpu.complete(command, Status::Ok, 0, &[]);
        }
        assert!(rig.dpu.in_flight() <= 8);
        let _interrupt = rig.dpu.flush();
        for done in completions(&mut rig.host) {
            rig.host.release(done.cid).unwrap();
        }
    }
}

macro_rules! each_device {
    ($($test:ident)*) => {
        mod dpfs {
            $(#[test] fn $test() { super::$test::<false>(); })*
        }
        mod tuned {
            $(#[test] fn $test() { super::$test::<true>(); })*
        }
    };
}

each_device! {
    a_good_request_by_hand_is_served
    messages_that_do_not_add_up_are_refused_and_the_queue_lives
    a_slot_in_flight_is_not_given_out_again
    chains_that_cannot_be_followed_end_the_queue
    an_indirect_table_was_not_agreed_on
    heads_and_doorbells_out_of_range_end_the_queue
    a_poll_is_bounded_by_its_budget
    the_host_believes_only_what_answers
    seeded_scribbles_cannot_break_the_device
}
