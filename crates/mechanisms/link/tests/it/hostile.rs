//! The other side writes what it likes: every invalid entry is answered with the right error, and
//! nothing it does reaches beyond its own queue.

use outboard_base::Rng;
use outboard_base::ledger::{Count, Kind};
use outboard_link::dma::{Direct, Dma, DmaError};
use outboard_link::queue::{Arrival, DpuQueue, Fault, HostQueue, Span, Submission};
use outboard_link::region::Region;
use outboard_wire::nvmefs::{Cqe, Dispatch, Prp, QueueError, SQE_LEN, Sqe, Status};
use std::sync::Arc;

use crate::rig::{Rig, arrivals, commands, completions, ring, submission};

/// A host that writes its rings by hand.
struct Hand {
    rig: Rig,
    tail: u16,
    head: u16,
    phase: bool,
}

impl Hand {
    fn new(depth: u16) -> Hand {
        Hand { rig: Rig::new(depth), tail: 0, head: 0, phase: true }
    }

    fn sqe(&self, cid: u16) -> Sqe {
        let slot = self.rig.layout.slot(0, 0);
        Sqe {
            cid,
            tag: 1,
            dispatch: Dispatch::Kv,
            write: Prp { first: slot.header, second: 0 },
            read: Prp::default(),
            write_len: 64,
            read_len: 0,
            rh_len: 0,
            wh_len: 64,
        }
    }

    fn post(&mut self, entry: &[u8; SQE_LEN]) {
        self.rig.region.write_from(self.rig.layout.sqe_at(0, self.tail), entry).unwrap();
        self.tail = (self.tail + 1) % self.rig.layout.depth();
        self.rig.registers.queue(0).unwrap().set_tail(u32::from(self.tail));
    }

    fn completion(&mut self) -> Option<Cqe> {
        let mut raw = [0; 16];
        self.rig.region.read_into(self.rig.layout.cqe_at(0, self.head), &mut raw).unwrap();
        let cqe = Cqe::parse(&raw);
        if cqe.phase != self.phase {
            return None;
        }
        self.head = (self.head + 1) % self.rig.layout.depth();
        self.phase ^= self.head == 0;
        Some(cqe)
    }

    fn acknowledge(&self) {
        self.rig.registers.queue(0).unwrap().set_head(u32::from(self.head));
    }

    /// Posts an entry that must be refused, and returns how.
    fn refusal(&mut self, entry: &[u8; SQE_LEN]) -> QueueError {
        self.post(entry);
        assert!(arrivals(&mut self.rig.dpu).is_empty(), "never seen by a volume");
        let cqe = self.completion().expect("never dropped");
        self.acknowledge();
        assert_eq!(cqe.sq_head, self.tail);
        match cqe.status {
            Status::Queue(error) => error,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn c1_c2_invalid_entries_are_answered_never_dropped() {
    let mut hand = Hand::new(8);
    let good = hand.sqe(3);
    let mut psdt = good.emit();
    psdt[1] |= 0x40;
    assert_eq!(hand.refusal(&psdt), QueueError::InvalidPsdt);
    let mut opcode = good.emit();
    opcode[0] = 0x02;
    assert_eq!(hand.refusal(&opcode), QueueError::InvalidOpcode);
    let mut reserved = good.emit();
    reserved[1] |= 0x08;
    assert_eq!(hand.refusal(&reserved), QueueError::InvalidField);
    assert_eq!(hand.refusal(&[0; SQE_LEN]), QueueError::InvalidOpcode);
    for cid in [8, 99, u16::MAX] {
        assert_eq!(hand.refusal(&Sqe { cid, ..good }.emit()), QueueError::InvalidCid);
    }
    for sqe in [
        Sqe { write_len: 63, ..good },
        Sqe { write_len: u32::MAX, ..good },
        Sqe { read_len: u32::MAX, ..good },
        Sqe { rh_len: 1, ..good },
    ] {
        assert_eq!(hand.refusal(&sqe.emit()), QueueError::InvalidLength);
    }
    assert_eq!(hand.rig.ledger.snapshot().count(Count::Refused), 11);
    assert_eq!(hand.rig.ledger.snapshot().count(Count::Commands), 0);
}

#[test]
fn c3_prps_beyond_the_region_are_refused() {
    let mut hand = Hand::new(8);
    let end = hand.rig.region.len();
    let good = hand.sqe(0);
    let buffer = hand.rig.layout.slot(0, 0).buffer;
    let prp = |first, second| Prp { first, second };
    let bad = [
        Sqe { write: prp(0, 0), ..good },
        Sqe { write: prp(4095, 0), ..good },
        Sqe { write: prp(end, 0), ..good },
        Sqe { write: prp(end - 63, 0), ..good },
        Sqe { write: prp(u64::MAX, 0), ..good },
        Sqe { write: prp(u64::MAX - 63, 0), ..good },
        Sqe { write: prp(buffer, end), write_len: 8192, ..good },
        Sqe { write: prp(buffer, buffer + 1), write_len: 8192, ..good },
        Sqe { write: prp(buffer, end), write_len: 16_384, ..good },
        Sqe { write: prp(buffer, 0), write_len: 16_384, ..good },
        Sqe { write: prp(buffer, buffer + 4), write_len: 16_384, ..good },
        Sqe { write: prp(buffer, buffer + 4088), write_len: 16_384, ..good },
        Sqe { read: prp(end, 0), read_len: 1, ..good },
        Sqe { read: prp(buffer, buffer + 8), read_len: 8192, ..good },
        Sqe { read: prp(buffer, u64::MAX - 7), read_len: 16_384, ..good },
    ];
    for sqe in bad {
        assert_eq!(hand.refusal(&sqe.emit()), QueueError::InvalidPrp, "{sqe:?}");
    }
    // A list that points at itself, at page 0, at the end, at half a page.
    for entry in [0, 1, buffer + 8, end, end - 1, u64::MAX, u64::MAX - 4095] {
        let list = [buffer + 4096, entry, buffer].map(u64::to_le_bytes).concat();
        hand.rig.region.write_from(buffer + 64, &list).unwrap();
        let sqe = Sqe { write: prp(buffer, buffer + 64), write_len: 16_384, ..good };
        assert_eq!(hand.refusal(&sqe.emit()), QueueError::InvalidPrp, "{entry:#x}");
    }
    // A list may name its own page as data: nothing loops, the bytes are just read.
    let list = [buffer, buffer, buffer].map(u64::to_le_bytes).concat();
    hand.rig.region.write_from(buffer + 64, &list).unwrap();
    hand.post(&Sqe { write: prp(buffer, buffer + 64), write_len: 16_384, ..good }.emit());
    let command = commands(&mut hand.rig.dpu).pop().unwrap();
    command.read_data(0, &mut vec![0; 16_384 - 64]).unwrap();
}

#[test]
fn a_command_id_in_flight_is_not_used_twice() {
    let mut hand = Hand::new(8);
    let entry = hand.sqe(3).emit();
    hand.post(&entry);
    let command = commands(&mut hand.rig.dpu).pop().unwrap();
    assert_eq!(hand.refusal(&entry), QueueError::InvalidCid);
    hand.rig.dpu.complete(command, Status::Ok, 7, &[]);
    assert_eq!(hand.completion().unwrap().result, 7);
    hand.acknowledge();
    hand.post(&entry);
    assert_eq!(commands(&mut hand.rig.dpu).len(), 1, "free again");
}

#[test]
fn c5_doorbells_out_of_range_end_the_queue() {
    for tail in [8, 9, 0xFFFF, u32::MAX] {
        let mut rig = Rig::new(8);
        rig.registers.queue(0).unwrap().set_tail(tail);
        assert!(arrivals(&mut rig.dpu).is_empty());
        assert_eq!(rig.dpu.fault(), Some(Fault::Doorbell));
        rig.registers.queue(0).unwrap().set_tail(1);
        assert!(arrivals(&mut rig.dpu).is_empty(), "no second chance");
        assert!(rig.dpu.may_sleep(), "and no busy loop");
    }
    let mut hand = Hand::new(2);
    hand.rig.registers.queue(0).unwrap().set_head(77);
    for _ in 0..3 {
        hand.post(&[0; SQE_LEN]);
        arrivals(&mut hand.rig.dpu);
    }
    assert_eq!(hand.rig.dpu.fault(), Some(Fault::Doorbell));
}

/// A host that reads no completions stops being served; what is ready waits, bounded, and comes out
/// in order once there is room.
#[test]
fn c5_a_full_completion_queue_pushes_back() {
    let mut hand = Hand::new(4);
    let mut polled = 0;
    for _ in 0..20 {
        hand.post(&[0; SQE_LEN]);
        polled += usize::from(hand.rig.dpu.poll(100, &mut Vec::new()) > 0);
    }
    assert_eq!(polled, 4, "three fit, one is held, the rest stays where it is");
    assert!(hand.rig.dpu.may_sleep() || hand.tail != 0, "and waiting for room is no work");
    let mut seen = 0;
    for _ in 0..20 {
        while hand.completion().is_some() {
            seen += 1;
        }
        hand.acknowledge();
        hand.rig.dpu.awake();
        hand.rig.dpu.poll(100, &mut Vec::new());
    }
    let rest = u32::from(hand.tail);
    assert_eq!(hand.rig.registers.queue(0).unwrap().tail(), rest);
    assert!(seen >= 4, "{seen}");
    assert!(hand.rig.dpu.fault().is_none());
}

/// Memory that changes between two reads: the header is copied once, extents are resolved once.
#[test]
fn what_was_checked_is_what_is_used() {
    let mut rig = Rig::new(4);
    let cid = rig.host.acquire().unwrap();
    rig.host.write_buffer(cid, 0, &[5; 12_000]).unwrap();
    let sub = Submission { write: Span::first(12_000), ..submission(b"header") };
    rig.host.submit(cid, &sub).unwrap();
    ring(&mut rig.host);
    let command = commands(&mut rig.dpu).pop().unwrap();
    let slot = rig.layout.slot(0, 0);
    // The host rewrites entry, list and header after the DPU looked.
    rig.region.write_from(slot.header, &[0xEE; 4096]).unwrap();
    rig.region.write_from(rig.layout.sqe_at(0, 0), &[0xEE; SQE_LEN]).unwrap();
    assert_eq!(command.header(), b"header");
    let mut data = vec![0; 12_000];
    command.read_data(0, &mut data).unwrap();
    assert_eq!(data, vec![5; 12_000]);
}

/// An engine under which a part of host memory changes after every read.
struct Restless(Direct, Arc<Region>, std::sync::Mutex<Rng>, (u64, u64));

impl Dma for Restless {
    fn region_len(&self) -> u64 {
        self.0.region_len()
    }

    fn read(&self, kind: Kind, at: u64, out: &mut [u8]) -> Result<(), DmaError> {
        let done = self.0.read(kind, at, out);
        let mut rng = self.2.lock().unwrap();
        for _ in 0..4 {
            let (from, len) = self.3;
            let place = from + rng.below(len / 8) * 8;
            let value = if rng.chance(1, 2) { rng.next_u64() } else { rng.below(64) << 12 };
            self.1.write_from(place, &value.to_le_bytes()).unwrap();
        }
        done
    }

    fn write(&self, kind: Kind, at: u64, data: &[u8]) -> Result<(), DmaError> {
        self.0.write(kind, at, data)
    }

    fn compare_and_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64, DmaError> {
        self.0.compare_and_swap(at, expected, new)
    }

    fn fetch_add(&self, at: u64, by: u64) -> Result<u64, DmaError> {
        self.0.fetch_add(at, by)
    }
}

#[test]
fn memory_that_changes_between_reads_harms_only_its_owner() {
    for seed in 0..300 {
        let mut rig = Rig::with(8, |region, _| {
            let slots = (outboard_link::layout::Layout::new(1, 8).unwrap().rings_len(), 64 << 12);
            let rng = std::sync::Mutex::new(Rng::new(seed));
            Arc::new(Restless(Direct::new(Arc::clone(&region)), region, rng, slots))
        });
        let mut rng = Rng::new(seed);
        let (mut sent, mut answered) = (0, 0);
        for _ in 0..40 {
            while let Some(cid) = rig.host.acquire() {
                let len = u32::try_from(rng.below(40_000)).unwrap();
                let span = Span::first(len);
                let sub = Submission {
                    write: span,
                    read: span,
                    reply_header: 64,
                    ..submission(&[1; 300])
                };
                rig.host.submit(cid, &sub).unwrap();
                sent += 1;
            }
            ring(&mut rig.host);
            for command in commands(&mut rig.dpu) {
                let mut data = vec![0; command.write_len() as usize];
                command.read_data(0, &mut data).unwrap();
                command
                    .write_data(0, &data[..data.len().min(command.read_len() as usize)])
                    .unwrap();
                rig.dpu.complete(command, Status::Ok, 0, &[1; 64]);
            }
            for done in completions(&mut rig.host) {
                answered += 1;
                rig.host.release(done.cid).unwrap();
            }
        }
        assert_eq!(sent, answered, "seed {seed}");
        assert_eq!(rig.dpu.fault(), None, "seed {seed}");
    }
}

/// A DPU that writes nonsense into the completion ring: what answers nothing is counted, not
/// believed.
#[test]
fn the_host_believes_only_answers_to_its_questions() {
    let mut rig = Rig::new(4);
    let cid = rig.host.acquire().unwrap();
    rig.host.submit(cid, &submission(b"x")).unwrap();
    ring(&mut rig.host);
    let bogus = [(99, 0), (2, 0), (cid.0, 5)];
    for (i, (cid, queue)) in (0u16..).zip(bogus) {
        let cqe = Cqe { result: 0, sq_head: 9999, queue, cid, phase: true, status: Status::Ok };
        rig.region.write_from(rig.layout.cqe_at(0, i), &cqe.emit()).unwrap();
    }
    assert_eq!(completions(&mut rig.host), []);
    assert_eq!(rig.host_ledger.snapshot().count(Count::Violations), 3);
    assert_eq!(rig.host.in_flight(), 1);
    // All of the ring with the right phase for ever: one poll takes what it was allowed and no
    // more.
    let mut rng = Rng::new(1);
    for _ in 0..1000 {
        let mut raw = [0; 64];
        rng.fill(&mut raw);
        rig.region.write_from(rig.layout.cqe_at(0, 0), &raw).unwrap();
        let mut out = Vec::new();
        rig.host.poll(16, &mut out);
        assert!(out.len() <= 1);
    }
}

/// Abort words for commands that do not run are nobody's business.
#[test]
fn aborts_of_nothing_are_ignored() {
    let mut hand = Hand::new(8);
    let block = hand.rig.registers.queue(0).unwrap();
    for (doorbell, (cid, tag)) in (1u32..).zip([(0, 1), (7, 0), (3, u32::MAX), (0, 0)]) {
        block.set_abort(cid, tag);
        block.set_abort_doorbell(doorbell);
        assert!(arrivals(&mut hand.rig.dpu).is_empty());
    }
    hand.post(&hand.sqe(3).emit());
    assert!(matches!(arrivals(&mut hand.rig.dpu)[..], [Arrival::Command(_)]));
}
