//! A call that never returns: another thread goes on with the director, and everything is the
//! host's.

use super::*;

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
