//! One suite for every ring of requests: the progress ring and its rivals; then what the progress
//! ring and the ring of responses do beyond it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outboard_base::Rng;
use outboard_base::ledger::{Kind, Ledger};
use outboard_link::Region;
use outboard_link::dma::{Counted, Direct, Dma};
use outboard_link::ring::{
    Consume, Fault, Place, Produce, PushError, Recovery, farm, lanes, locked, progress, response,
};
use outboard_wire::dds::{FRAME_HEAD, REQUEST_HEAD, frames};

const BYTES: u64 = 4096;

struct Rig {
    producers: Vec<Box<dyn Produce>>,
    consumer: Box<dyn Consume>,
    ledger: Arc<Ledger>,
}

fn dma(region: &Arc<Region>) -> (Arc<dyn Dma>, Arc<Ledger>) {
    let ledger = Arc::new(Ledger::new());
    let direct = Direct::new(Arc::clone(region));
    (Arc::new(Counted::new(direct, Arc::clone(&ledger))), ledger)
}

fn place() -> Place {
    Place::new(4096, BYTES).unwrap()
}

fn progress_rig(producers: u64) -> Rig {
    let region = Region::anonymous(place().end());
    let (dma, ledger) = dma(&region);
    let ring = progress::Ring::new(region, place(), BYTES).unwrap();
    let producers =
        (1..=producers).map(|who| Box::new(ring.producer(who).unwrap()) as Box<dyn Produce>);
    let consumer = Box::new(progress::Consumer::new(dma, place()).unwrap());
    Rig { producers: producers.collect(), consumer, ledger }
}

fn locked_rig(producers: u64) -> Rig {
    let region = Region::anonymous(place().end());
    let (dma, ledger) = dma(&region);
    let producer = locked::Producer::new(region, place()).unwrap();
    let producers = (0..producers).map(|_| Box::new(producer.clone()) as Box<dyn Produce>);
    let consumer = Box::new(locked::Consumer::new(dma, place()).unwrap());
    Rig { producers: producers.collect(), consumer, ledger }
}

fn farm_rig(producers: u64) -> Rig {
    let region = Region::anonymous(place().end());
    let (dma, ledger) = dma(&region);
    let producer = farm::Producer::new(region, place()).unwrap();
    let producers = (0..producers).map(|_| Box::new(producer.clone()) as Box<dyn Produce>);
    let consumer = Box::new(farm::Consumer::new(dma, place(), 16).unwrap());
    Rig { producers: producers.collect(), consumer, ledger }
}

fn lanes_rig(producers: u64) -> Rig {
    let lanes = lanes::Lanes::new(4096, BYTES, producers).unwrap();
    let region = Region::anonymous(lanes.end());
    let (dma, ledger) = dma(&region);
    let producers = (0..producers).map(|lane| {
        let region = Arc::clone(&region);
        Box::new(lanes::Producer::new(region, lanes, lane).unwrap()) as Box<dyn Produce>
    });
    let producers = producers.collect();
    Rig { producers, consumer: Box::new(lanes::Consumer::new(dma, lanes).unwrap()), ledger }
}

/// Makes a ring with so many producers.
type Make = fn(u64) -> Rig;

const RIGS: [(&str, Make); 4] =
    [("progress", progress_rig), ("locked", locked_rig), ("farm", farm_rig), ("lanes", lanes_rig)];

fn take(rig: &mut Rig) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let taken = rig.consumer.take(&mut |message| out.push(message.to_vec())).unwrap();
    assert_eq!(taken, out.len());
    out
}

#[test]
fn messages_come_out_as_they_went_in_and_together() {
    for (name, make) in RIGS {
        let mut rig = make(1);
        assert!(take(&mut rig).is_empty(), "{name}: nothing in, nothing out");
        for lap in 0..500u64 {
            let one = lap.to_le_bytes();
            let messages: [&[u8]; 3] = [&one, b"", &one[..5]];
            rig.producers[0].push(&messages).unwrap();
            assert_eq!(take(&mut rig), messages, "{name}");
        }
        rig.producers[0].push(&[]).unwrap();
        assert!(take(&mut rig).is_empty(), "{name}: a batch of nothing");
        let too_long = vec![1; 4096];
        assert_eq!(rig.producers[0].push(&[&too_long]), Err(PushError::TooLong), "{name}");
        let too_many = vec![&[1u8; 48][..]; 100];
        assert_eq!(rig.producers[0].push(&too_many), Err(PushError::TooLong), "{name}");
        rig.producers[0].push(&[b"on"]).unwrap();
        assert_eq!(take(&mut rig), [b"on"], "{name}");
    }
}

#[test]
fn a_full_ring_says_retry_and_loses_nothing() {
    for (name, make) in RIGS {
        let mut rig = make(1);
        let (mut sent, mut taken) = (0u64, 0u64);
        for _ in 0..10 {
            while rig.producers[0].push(&[&sent.to_le_bytes()]).is_ok() {
                sent += 1;
            }
            assert_eq!(rig.producers[0].push(&[&[0; 8]]), Err(PushError::Retry), "{name}");
            for message in take(&mut rig) {
                assert_eq!(message, taken.to_le_bytes(), "{name}");
                taken += 1;
            }
        }
        assert!(taken >= 160 && sent - taken <= 256, "{name}: {sent} {taken}");
    }
}

/// Model: every producer's messages arrive in its order, each once, whatever the sizes and however
/// pushes and takes mix.
#[test]
fn any_mix_of_pushes_and_takes_keeps_each_producers_order() {
    for (name, make) in RIGS {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut rig = make(3);
            let (mut sent, mut seen) = ([0u32; 3], [0u32; 3]);
            for _ in 0..400 {
                let who = usize::try_from(rng.below(3)).unwrap();
                let batch: Vec<Vec<u8>> = (0..rng.below(4))
                    .map(|i| {
                        let mut message = vec![who as u8];
                        message.extend((sent[who] + i as u32).to_le_bytes());
                        message.resize(5 + rng.below(51) as usize, 7);
                        message
                    })
                    .collect();
                let parts: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
                if rig.producers[who].push(&parts).is_ok() {
                    sent[who] += parts.len() as u32;
                }
                for _ in 0..rng.below(3) {
                    for message in take(&mut rig) {
                        let who = usize::from(message[0]);
                        let number = u32::from_le_bytes(message[1..5].try_into().unwrap());
                        assert_eq!(number, seen[who], "{name}: seed {seed}");
                        assert!(message[5..].iter().all(|byte| *byte == 7));
                        seen[who] += 1;
                    }
                }
            }
            while !take(&mut rig).is_empty() {}
            assert!(seen.iter().sum::<u32>() > 100, "{name}: seed {seed}");
        }
    }
}

/// Says that nobody takes messages any more, however that came about.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A producer that had taken a slot lost its core before it wrote there. The others went around the
/// ring, found the slot's flag as empty as that of a free one, and took it once more: of two
/// messages in one slot one was lost, and the test below waited for it for ever.
#[test]
fn a_slot_that_is_taken_and_not_written_yet_is_nobody_else_s() {
    let region = Region::anonymous(place().end());
    let (dma, _) = dma(&region);
    let mut producer = farm::Producer::new(Arc::clone(&region), place()).unwrap();
    let mut consumer = farm::Consumer::new(dma, place(), 16).unwrap();
    // Somebody takes the first slot: the tail, which is the first word, moves on.
    let slot = 64;
    assert_eq!(region.cas_u64(place().at(), 0, slot, Ordering::AcqRel).unwrap(), 0);
    for _ in 1..BYTES / slot {
        producer.push(&[&[1; 8]]).unwrap();
    }
    assert_eq!(producer.push(&[&[1; 8]]), Err(PushError::Retry), "the ring is full");
    assert_eq!(consumer.take(&mut |_| ()), Ok(0), "the first message is not there");
}

#[test]
fn threads_push_at_once_and_each_message_arrives_once() {
    const EACH: u64 = 3000;
    for (name, make) in RIGS {
        let Rig { producers, mut consumer, .. } = make(4);
        let mut seen = [0u64; 4];
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends_producers = Ends(&over);
            for (who, mut producer) in producers.into_iter().enumerate() {
                let over = &over;
                scope.spawn(move || {
                    for number in 0..EACH {
                        let message = [who as u64, number].map(u64::to_le_bytes).concat();
                        while let Err(error) = producer.push(&[&message]) {
                            assert_eq!(error, PushError::Retry);
                            if over.load(Ordering::Relaxed) {
                                return;
                            }
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut taken = 0;
            while taken < 4 * EACH {
                let mut check = |message: &[u8]| {
                    let word =
                        |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
                    let who = usize::try_from(word(0)).unwrap();
                    assert_eq!(word(8), seen[who], "{name}");
                    seen[who] += 1;
                };
                let now = consumer.take(&mut check).unwrap() as u64;
                taken += now;
                if now == 0 {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(seen, [EACH; 4], "{name}");
    }
}

/// What the paper counts: pointers 1, batch 1 (2 around the end), head 1, whatever the batch holds;
/// FaRM-style 2 a message; a ring each 1 for all tails and 2 for each that has something.
#[test]
fn dmas_are_counted_as_the_paper_counts_them() {
    let spend = |rig: &mut Rig| {
        let before = rig.ledger.snapshot();
        let taken = take(rig).len();
        let spent = rig.ledger.snapshot().since(&before);
        (taken, spent.dma(Kind::RingWords).ops, spent.dma(Kind::RingIn).ops)
    };
    let mut rig = progress_rig(2);
    assert_eq!(spend(&mut rig), (0, 1, 0), "a look costs one");
    for who in [0, 1, 0, 1, 1] {
        rig.producers[who].push(&[&[1; 8]]).unwrap();
    }
    assert_eq!(spend(&mut rig), (5, 2, 1));
    for _ in 0..4 {
        rig.producers[0].push(&[&[1; 1000]]).unwrap();
        rig.producers[1].push(&[&[1; 1000]]).unwrap();
        let (taken, words, batches) = spend(&mut rig);
        assert!((taken, words) == (2, 2) && (1..=2).contains(&batches));
    }
    let mut rig = locked_rig(1);
    rig.producers[0].push(&[&[1; 8][..]; 5]).unwrap();
    assert_eq!(spend(&mut rig), (5, 2, 1));
    let mut rig = farm_rig(1);
    rig.producers[0].push(&[&[1; 8][..]; 5]).unwrap();
    assert_eq!(spend(&mut rig), (5, 5, 6), "and one look in vain");
    let mut rig = lanes_rig(3);
    rig.producers[0].push(&[&[1; 8][..]; 4]).unwrap();
    rig.producers[2].push(&[&[1; 8]]).unwrap();
    assert_eq!(spend(&mut rig), (5, 3, 2));
}

// The progress ring alone.

struct Progress {
    region: Arc<Region>,
    ring: progress::Ring,
    consumer: progress::Consumer,
}

fn progress_ring(max: u64) -> Progress {
    let region = Region::anonymous(place().end());
    let ring = progress::Ring::new(Arc::clone(&region), place(), max).unwrap();
    let consumer = progress::Consumer::new(dma(&region).0, place()).unwrap();
    Progress { region, ring, consumer }
}

fn messages(consumer: &mut progress::Consumer) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    consumer.take(&mut |message| out.push(message.to_vec())).unwrap();
    out
}

fn shape(data: usize, align: usize) -> progress::Shape {
    progress::Shape { head: REQUEST_HEAD, data, align }
}

#[test]
fn nothing_is_taken_while_a_producer_is_between_reserve_and_publish() {
    let Progress { ring, mut consumer, .. } = progress_ring(BYTES);
    let (mut slow, mut quick) = (ring.producer(1).unwrap(), ring.producer(2).unwrap());
    let reservation = slow.reserve(shape(0, 8)).unwrap();
    quick.push(&[b"quick"]).unwrap();
    assert_eq!(consumer.look(), Ok(progress::Seen::Unfinished));
    assert!(messages(&mut consumer).is_empty());
    reservation.write(0, &[3; 32]).unwrap();
    assert!(reservation.write(1, &[3; 32]).is_err(), "not beyond the message");
    reservation.publish().unwrap();
    assert_eq!(messages(&mut consumer), [&[3; 32][..], b"quick"]);
}

#[test]
fn a_dropped_reservation_is_passed_over() {
    let Progress { ring, mut consumer, .. } = progress_ring(BYTES);
    let mut producer = ring.producer(1).unwrap();
    drop(producer.reserve(shape(500, 8)).unwrap());
    producer.push(&[b"next"]).unwrap();
    assert_eq!(messages(&mut consumer), [b"next"]);
}

#[test]
fn data_lies_aligned_wherever_a_message_begins() {
    let Progress { ring, mut consumer, .. } = progress_ring(BYTES);
    let mut producer = ring.producer(1).unwrap();
    let mut mirror = vec![0; BYTES as usize];
    let mut rng = Rng::new(7);
    for _ in 0..200 {
        let align = [8, 64, 512][rng.below(3) as usize];
        let data = vec![9; rng.below(700) as usize];
        producer.push(&[&vec![1; rng.below(100) as usize]]).unwrap();
        let reservation = producer.reserve(shape(data.len(), align)).unwrap();
        let at = reservation.data_at();
        reservation.write(0, &[0; REQUEST_HEAD]).unwrap();
        reservation.write(at, &data).unwrap();
        reservation.publish().unwrap();
        let progress::Seen::Batch { from, to } = consumer.look().unwrap() else { panic!() };
        consumer.fetch_in_place(from, to, &mut mirror).unwrap();
        // The second message, wherever the gap was put.
        let end = usize::try_from(to % BYTES).unwrap();
        let tail = if end == 0 { BYTES as usize } else { end };
        let lies = (0..tail).step_by(8).rev().find(|start| {
            let head = u64::from_le_bytes(mirror[*start..*start + 8].try_into().unwrap());
            let position = to - (tail - start) as u64;
            frames(&mirror[*start..tail], position).next().is_some_and(|m| m.is_ok()) && head != 0
        });
        let data_from = lies.unwrap() + FRAME_HEAD + at;
        assert!(data_from.is_multiple_of(align));
        assert_eq!(&mirror[data_from..data_from + data.len()], &data[..]);
        consumer.release(to).unwrap();
    }
}

#[test]
fn maximum_allowable_progress_bounds_a_batch() {
    let Progress { ring, mut consumer, .. } = progress_ring(256);
    let mut producer = ring.producer(1).unwrap();
    let pushed = (0..100).take_while(|_| producer.push(&[&[1; 8]]).is_ok()).count();
    assert_eq!((pushed, ring.under_way()), (16, 256));
    assert_eq!(messages(&mut consumer).len(), 16);
    assert_eq!(ring.under_way(), 0);
    let most = ring.message_max();
    producer.push(&[&vec![1; most]]).unwrap();
    assert_eq!(producer.reserve(shape(256, 8)).err(), Some(PushError::TooLong));
}

#[test]
fn what_is_fetched_is_free_only_when_it_is_released() {
    let Progress { ring, mut consumer, .. } = progress_ring(BYTES);
    let mut producer = ring.producer(1).unwrap();
    producer.push(&[&[1; 2000]]).unwrap();
    let progress::Seen::Batch { from, to } = consumer.look().unwrap() else { panic!() };
    let mut out = vec![0; usize::try_from(to - from).unwrap()];
    consumer.fetch(from, &mut out).unwrap();
    producer.push(&[&[2; 1000]]).unwrap();
    assert_eq!(producer.push(&[&[3; 1500]]), Err(PushError::Retry), "its bytes are still in use");
    let progress::Seen::Batch { from: second, to: end } = consumer.look().unwrap() else {
        panic!()
    };
    assert_eq!(second, to, "fetched once");
    consumer.release(end).unwrap();
    assert_eq!(ring.under_way(), end - to, "not released before it is fetched");
    producer.push(&[&[3; 1500]]).unwrap();
}

#[test]
fn a_host_that_writes_any_pointers_gets_a_fault_and_no_more() {
    for seed in 0..2000 {
        let Progress { region, ring, mut consumer } = progress_ring(BYTES);
        let mut rng = Rng::new(seed);
        let mut producer = ring.producer(1).unwrap();
        for _ in 0..rng.below(8) {
            producer.push(&[&vec![5; rng.below(900) as usize]]).unwrap_or_default();
            if rng.chance(1, 2) {
                consumer.take(&mut |_| ()).unwrap();
            }
        }
        for _ in 0..1 + rng.below(3) {
            let at = 4096 + [0, 8, 8192 + rng.below(BYTES / 8) * 8][rng.below(3) as usize];
            let value = [rng.next_u64(), rng.below(BYTES), rng.below(BYTES * 3) & !7];
            let value = value[rng.below(3) as usize];
            region.store_u64(at, value, Ordering::Relaxed).unwrap();
            if rng.chance(1, 2) {
                region.store_u64(4096, value, Ordering::Relaxed).unwrap();
                region.store_u64(4096 + 8, value, Ordering::Relaxed).unwrap();
            }
        }
        let mut bytes = 0;
        for _ in 0..4 {
            let _any = consumer.take(&mut |message| bytes += message.len());
        }
        assert!(bytes as u64 <= 4 * BYTES, "seed {seed}");
    }
}

#[test]
fn lengths_that_reach_beyond_the_batch_are_a_fault() {
    let Progress { region, ring, mut consumer } = progress_ring(BYTES);
    ring.producer(1).unwrap().push(&[b"x"]).unwrap();
    region.store_u64(4096 + 8192, 4000, Ordering::Relaxed).unwrap();
    let fault = consumer.take(&mut |_| panic!("no message"));
    assert!(matches!(fault, Err(Fault::Message(_))), "{fault:?}");
}

// Producers that die.

/// As a producer leaves things that reserved and died: the line, the intent and the tail are as
/// they were, and nothing more is written.
fn die_after_reserving(mut producer: progress::Producer, data: usize) {
    std::mem::forget(producer.reserve(shape(data, 8)).unwrap());
    std::mem::forget(producer);
}

#[test]
fn a_dead_producers_reservation_is_passed_over_and_the_ring_goes_on() {
    for laps in 0..12 {
        let Progress { ring, mut consumer, .. } = progress_ring(BYTES);
        let mut alive = ring.producer(7).unwrap();
        for _ in 0..laps {
            alive.push(&[&[1; 376]]).unwrap();
            messages(&mut consumer);
        }
        die_after_reserving(ring.producer(13).unwrap(), 600);
        alive.push(&[b"behind"]).unwrap();
        assert_eq!(consumer.look(), Ok(progress::Seen::Unfinished));
        assert_eq!(ring.recover(&|_| false), Ok(Recovery::Waiting), "nobody is proved dead");
        assert_eq!(alive.push(&[b"held"]), Err(PushError::Retry), "until it is decided");
        let done = ring.recover(&|who| who == 13).unwrap();
        assert!(matches!(done, Recovery::Done { owners: 1, bytes } if bytes >= 640), "{done:?}");
        alive.push(&[b"after"]).unwrap();
        assert_eq!(messages(&mut consumer), [&b"behind"[..], b"after"], "{laps} laps");
        let nothing = Recovery::Done { owners: 0, bytes: 0 };
        assert_eq!(ring.recover(&|_| false), Ok(nothing));
    }
}

#[test]
fn who_lives_is_waited_for_and_keeps_its_message() {
    let Progress { ring, mut consumer, .. } = progress_ring(BYTES);
    let mut alive = ring.producer(7).unwrap();
    die_after_reserving(ring.producer(13).unwrap(), 100);
    let slow = alive.reserve(shape(0, 8)).unwrap();
    slow.write(0, &[4; 32]).unwrap();
    assert_eq!(ring.recover(&|who| who == 13), Ok(Recovery::Waiting));
    slow.publish().unwrap();
    assert!(matches!(ring.recover(&|who| who == 13), Ok(Recovery::Done { owners: 1, .. })));
    assert_eq!(messages(&mut consumer), [[4; 32]]);
}

#[test]
fn a_producer_that_died_elsewhere_only_gives_its_line_back() {
    let Progress { ring, mut consumer, .. } = progress_ring(BYTES);
    let mut producer = ring.producer(13).unwrap();
    producer.push(&[b"whole"]).unwrap();
    std::mem::forget(producer);
    let done = Recovery::Done { owners: 1, bytes: 0 };
    assert_eq!(ring.recover(&|who| who == 13), Ok(done));
    assert_eq!(messages(&mut consumer), [b"whole"]);
}

#[test]
fn a_gap_nobody_accounts_for_is_said_to_be_lost() {
    let Progress { region, ring, .. } = progress_ring(BYTES);
    region.add_u64(4096 + 8, 64, Ordering::AcqRel).unwrap();
    assert_eq!(ring.recover(&|_| true), Ok(Recovery::Lost));
}

#[test]
fn lines_are_given_back_and_their_number_is_bounded() {
    let Progress { ring, .. } = progress_ring(BYTES);
    let all: Vec<_> = (1..).map_while(|who| ring.producer(who)).collect();
    assert!(all.len() >= 64 && ring.producer(999).is_none());
    drop(all);
    assert!(ring.producer(1).is_some() && ring.producer(0).is_none());
}

// Responses.

struct Responses {
    region: Arc<Region>,
    ring: response::Ring,
    producer: response::Producer,
    ledger: Arc<Ledger>,
}

fn responses() -> Responses {
    let region = Region::anonymous(place().end());
    let (dma, ledger) = dma(&region);
    let ring = response::Ring::new(Arc::clone(&region), place()).unwrap();
    Responses { region, ring, producer: response::Producer::new(dma, place()).unwrap(), ledger }
}

/// Delivers messages as one batch, if there is room for all of them.
fn deliver(producer: &mut response::Producer, messages: &[Vec<u8>]) -> bool {
    let (mut bytes, mut position) = (Vec::new(), producer.tail());
    for message in messages {
        let laid = response::Producer::lay(place(), position, message.len());
        if let Some(passed) = laid.passed {
            bytes.extend(passed.to_le_bytes());
            bytes.resize(bytes.len() + laid.gap as usize - FRAME_HEAD, 0);
        }
        bytes.extend(laid.head.to_le_bytes());
        bytes.extend(message);
        bytes.resize((laid.end - producer.tail()) as usize, 0);
        position = laid.end;
    }
    if producer.room(producer.tail(), bytes.len() as u64).unwrap() < bytes.len() as u64 {
        return false;
    }
    let (low, high) = bytes.split_at(bytes.len() / 3);
    producer.deliver(&[low, high]).unwrap();
    true
}

#[test]
fn responses_arrive_in_order_and_space_is_freed() {
    let Responses { ring, mut producer, ledger, .. } = responses();
    let mut consumer = ring.consumer(1).unwrap();
    let mut rng = Rng::new(3);
    let (mut out, mut sent) = (Vec::new(), 0);
    for _ in 0..500 {
        let batch: Vec<Vec<u8>> =
            (0..rng.below(4)).map(|i| vec![i as u8; rng.below(700) as usize]).collect();
        assert!(deliver(&mut producer, &batch), "all before is read");
        sent += batch.iter().map(|message| message.len() as u64).sum::<u64>();
        assert_eq!(ring.is_ready(), !batch.is_empty());
        for message in batch {
            assert!(consumer.take(&mut out).unwrap());
            assert_eq!(out, message);
        }
        assert!(!consumer.take(&mut out).unwrap());
    }
    let words = ledger.snapshot().dma(Kind::RingWords).ops;
    assert!(words <= 500 + sent / 1000, "the head is read when room runs out: {words}");
}

#[test]
fn a_full_ring_of_responses_has_no_room_until_they_are_read() {
    let Responses { ring, mut producer, .. } = responses();
    let mut consumer = ring.consumer(1).unwrap();
    let mut delivered = 0;
    while deliver(&mut producer, &[vec![1; 504]]) {
        delivered += 1;
    }
    assert_eq!(delivered, 8);
    let mut out = Vec::new();
    assert!(consumer.take(&mut out).unwrap());
    assert!(deliver(&mut producer, &[vec![2; 504]]) && !deliver(&mut producer, &[vec![2; 504]]));
}

#[test]
fn racing_consumers_get_each_response_once() {
    const ALL: u64 = 20_000;
    let Responses { ring, mut producer, .. } = responses();
    let (sum, count, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for who in 1..=4 {
            let (mut consumer, sum, count, stop) =
                (ring.consumer(who).unwrap(), &sum, &count, &stop);
            scope.spawn(move || {
                let mut out = Vec::new();
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    if consumer.take(&mut out).unwrap() {
                        let number = u64::from_le_bytes(out[..8].try_into().unwrap());
                        assert!(number > last && out.len() == 8 + (number % 50) as usize);
                        last = number;
                        sum.fetch_add(number, Ordering::Relaxed);
                        count.fetch_add(1, Ordering::Relaxed);
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for number in 1..=ALL {
            let mut message = number.to_le_bytes().to_vec();
            message.resize(8 + (number % 50) as usize, 1);
            while !deliver(&mut producer, std::slice::from_ref(&message)) {
                std::thread::yield_now();
            }
        }
        while count.load(Ordering::Relaxed) < ALL {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(sum.load(Ordering::Relaxed), ALL * (ALL + 1) / 2);
}

#[test]
fn a_dpu_that_writes_anything_gets_no_more_than_a_fault() {
    let mut kinds = BTreeMap::new();
    for seed in 0..2000 {
        let Responses { region, ring, mut producer, .. } = responses();
        let mut consumer = ring.consumer(1).unwrap();
        let mut rng = Rng::new(seed);
        let mut out = Vec::new();
        for _ in 0..rng.below(6) {
            deliver(&mut producer, &[vec![1; rng.below(800) as usize]]);
        }
        for _ in 0..1 + rng.below(4) {
            let at = [0, 64, 128, 8192 + rng.below(BYTES / 8) * 8][rng.below(4) as usize];
            let value = [rng.next_u64(), rng.below(BYTES) & !7, 1 << 63 | rng.next_u64()];
            let value = value[rng.below(3) as usize];
            region.store_u64(4096 + at, value, Ordering::Relaxed).unwrap();
        }
        for _ in 0..20 {
            let taken = consumer.take(&mut out);
            *kinds.entry(format!("{taken:?}")).or_insert(0) += 1;
            assert!(out.len() as u64 <= BYTES, "seed {seed}");
        }
    }
    assert!(kinds.len() >= 3, "{kinds:?}");
}

#[test]
fn a_host_that_lies_about_the_head_is_found_out() {
    let Responses { region, mut producer, .. } = responses();
    region.store_u64(4096, 64, Ordering::Relaxed).unwrap();
    assert_eq!(producer.room(producer.tail(), BYTES + 1), Err(Fault::Pointers));
}

#[test]
fn what_a_dead_consumer_claimed_is_freed() {
    let Responses { ring, mut producer, region, .. } = responses();
    let dead = ring.consumer(13).unwrap();
    let mut alive = ring.consumer(7).unwrap();
    let mut out = Vec::new();
    assert!(deliver(&mut producer, &[vec![1; 1000], vec![2; 1000]]));
    // As one leaves things that claimed the first and died.
    region.store_u64(4096 + 256 + 16, 1008, Ordering::Relaxed).unwrap();
    region.store_u64(4096 + 256 + 8, 1, Ordering::Relaxed).unwrap();
    region.store_u64(4096 + 64, 1008, Ordering::Relaxed).unwrap();
    std::mem::forget(dead);
    assert!(alive.take(&mut out).unwrap() && out == [2; 1000]);
    assert!(!deliver(&mut producer, &[vec![3; 1000], vec![3; 1000], vec![3; 1000]]));
    let done = Recovery::Done { owners: 1, bytes: 2016 };
    assert_eq!(ring.recover(&|who| who == 13), Ok(done));
    assert!(deliver(&mut producer, &[vec![3; 1000], vec![3; 1000]]));
    assert!(alive.take(&mut out).unwrap() && out == [3; 1000]);
}
