//! A call that never returns: another thread goes on with the director, and everything is the
//! host's.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::dpu::offload::health;

/// Wherever a call gets stuck, clients get what the plain server would have sent; only where the
/// answers of the host are told apart may a flow be reset instead.
#[test]
fn clients_get_everything_from_the_host_after_a_call_that_never_returned() {
    let (mut over, mut reset) = (0, 0);
    for seed in 400..520 {
        println!("seed {seed}");
        let mut world = World::new(seed, 16, 1 << 20, 2, false);
        world.failing = seed % 3 == 0;
        world.director.stuck = Some(world.rng.below(60));
        world.director.late = (seed % 2 == 0).then(|| Rng::new(seed));
        let mut steps = 0;
        let broken = |world: &World, client: &Client| {
            world.director.flow(client.id).is_some_and(Flow::is_broken)
        };
        while !world.clients.iter().all(|client| client.done || broken(&world, client)) {
            world.step();
            steps += 1;
            assert!(steps < 400_000, "the connections did not come to their ends");
        }
        over += u32::from(world.director.stuck.is_none());
        let lost = world.director.calls.health().lost();
        for client in &world.clients {
            let expected = plain(&client.script);
            if broken(&world, client) {
                reset += 1;
                assert_eq!(lost.first().map(|lost| lost.call), Some(Call::FrameAnswer));
                assert!(expected.starts_with(&client.got), "what came before");
            } else {
                assert_eq!(client.got, expected);
            }
        }
    }
    assert_eq!(over, 120);
    assert!(reset < 120, "of 240 flows: {reset}");
}

/// A read that had ended and input to be divided were asked about together, and meanwhile another
/// worker lost its thread. What came of the read forwarded the input, and what was said of the
/// input was followed all the same: the host was asked twice.
#[test]
fn what_is_forwarded_is_not_divided_too() {
    let mut gathered = 0;
    for seed in 600..720 {
        println!("seed {seed}");
        let mut world = World::new(seed, 16, 1 << 20, 2, false);
        world.failing = seed % 3 == 0;
        world.director.late = Some(Rng::new(seed));
        world.director.elsewhere = Some(world.rng.below(90));
        let counts = compare_in(world);
        gathered += u32::from(counts.offloaded > 0);
    }
    assert!(gathered > 60, "{gathered} of 120 offloaded before");
}

/// Offloading was over for good, for every flow there was and that came later; and those there were
/// were forwarded, so they could not have come back.
#[test]
fn after_a_pause_the_same_flows_are_offloaded_again() {
    let shared = Arc::new(Shared::default());
    shared.table.lock().unwrap().insert(key_of(b"a"), [1, 0, 4, 0]);
    let mut director = Local::new(shared, 8, Pool::new(1 << 20));
    let (time, health) = (Arc::new(AtomicU64::new(1)), Arc::clone(director.calls.health()));
    let clock = Arc::clone(&time);
    director.calls = Contained::new(Box::new(move || clock.load(Ordering::Relaxed)), health);
    let id = director.open(true);
    let offloads = |director: &mut Local| {
        director.client_bytes(id, b"G a\n");
        let read = director.next_read();
        let offloads = read.is_some();
        if let Some(ToRead { ticket, buffer, .. }) = read {
            director.read_ended(ticket, Filled { buffer, bytes: None });
        }
        offloads
    };
    assert!(offloads(&mut director));
    for pause in [health::PAUSE_FIRST, 2 * health::PAUSE_FIRST] {
        for _ in 0..health::FAULTS_MAX {
            director.calls.begin();
            let panics = || -> u32 { std::panic::resume_unwind(Box::new("user code")) };
            assert_eq!(director.calls.call(Call::OffFunc, panics), None);
        }
        assert!(!offloads(&mut director), "paused");
        // What the host is asked is answered, so that it keeps nothing from being read.
        let asked = director.flow(id).unwrap().asked.len();
        director.host_bytes(id, &b"x\n".repeat(asked));
        time.fetch_add(u64::try_from(pause.as_nanos()).unwrap(), Ordering::Relaxed);
        assert!(offloads(&mut director), "and on again");
        director.host_bytes(id, b"x\n");
    }
}

/// A worker whose thread was lost, and came back: flows that come now are offloaded again, over a
/// ring and a pool that are new.
#[test]
fn flows_that_come_after_a_lost_call_has_returned_are_offloaded() {
    let shared = Arc::new(Shared::default());
    shared.table.lock().unwrap().insert(key_of(b"a"), [1, 0, 4, 0]);
    let mut director = Local::new(shared, 8, Pool::new(1 << 20));
    let time = Arc::new(AtomicU64::new(1));
    let (clock, health) = (Arc::clone(&time), Arc::clone(director.calls.health()));
    director.calls =
        Contained::new(Box::new(move || clock.load(Ordering::Relaxed)), Arc::clone(&health));
    director.stuck = Some(0);
    let before = director.open(true);
    director.client_bytes(before, b"G a\n");
    assert!(health.is_off() && director.next_read().is_none());
    health.came_back(1, Time(1));
    director.director.revive(8, Pool::new(1 << 20));
    let pause = u64::try_from(health::PAUSE_FIRST.as_nanos()).unwrap();
    for (waited, offloads) in [(0, false), (pause, true)] {
        time.fetch_add(waited, Ordering::Relaxed);
        let after = director.open(true);
        director.client_bytes(after, b"G a\n");
        assert_eq!(director.next_read().is_some(), offloads);
    }
    director.client_bytes(before, b"G a\n");
    assert!(director.next_read().is_none(), "nobody knows where its messages begin");
}

/// Answers that came in their order need nobody to tell them apart.
#[test]
fn a_flow_without_reads_outlives_the_framing_of_its_answers() {
    let mut director = director();
    let id = director.open(true);
    director.client_bytes(id, b"G a\nG b\nG");
    director.host_took(id, 8);
    director.stuck = Some(0);
    director.host_bytes(id, b"1");
    director.host_bytes(id, b"\n2\n");
    assert!(!director.flow(id).unwrap().is_broken());
    assert_eq!(taken(&mut director, id), b"1\n2\n");
    assert_eq!(director.flow(id).unwrap().to_host(), b"G");
    director.client_bytes(id, b" c\n");
    director.host_bytes(id, b"3\n");
    assert_eq!(director.flow(id).unwrap().to_host(), b"G c\n");
    assert_eq!(taken(&mut director, id), b"3\n");
    // Whoever comes later is forwarded from the start.
    let id = director.open(true);
    director.client_bytes(id, b"G a\n");
    assert!(!director.has_jobs());
    assert_eq!(director.flow(id).unwrap().to_host(), b"G a\n");
}

/// What the host had said before it ended is sent, whoever looks at it.
#[test]
fn the_last_words_of_a_host_are_heard_after_a_call_that_never_returned() {
    for stuck in [None, Some(0)] {
        let mut director = director();
        let id = director.open(true);
        director.client_bytes(id, b"G a\nG b\n");
        director.host_took(id, 8);
        director.stuck = stuck;
        director.director.host_bytes(id, b"1\n2");
        director.host_ended(id);
        assert_eq!(taken(&mut director, id), b"1\n2");
        assert!(director.flow(id).unwrap().ends_client());
    }
}
