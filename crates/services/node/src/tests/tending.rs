//! What a node does unasked, and at which rate.

use std::sync::Arc;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::task::{Spawn, Work, run};
use outboard_flow::Conversations;
use outboard_medium::mem::MemMedium;
use outboard_wire::shared::Peer;

use super::world::config;
use super::{NOW, Rig, store};
use crate::{NodeOptions, Tending, Version};

const STRIP: u32 = 64 << 10;
const TICK: Duration = Duration::from_millis(100);

/// Everything is run to its end where it is begun.
struct Here;

impl Spawn for Here {
    fn spawn(&self, work: Work) {
        run(work);
    }
}

/// Tends a node with so much in it that scrubs so many bytes a second, each 100 ms for a while;
/// what it had scrubbed each time, and whether it would go on by itself.
fn scrubs(strips: u64, scrub: u64, ticks: u32) -> (Vec<u64>, bool) {
    let media = [1, 2].map(|seed| Arc::new(MemMedium::new(seed)));
    let [log, data] = &media;
    let before = store(log, data);
    for strip in 0..strips {
        let (at, bytes) = (strip * u64::from(STRIP), vec![7; STRIP as usize]);
        let version = Version { fence: 1, sequence: 1 };
        run(before.write(9, STRIP, version, None, at, &bytes)).unwrap();
    }
    drop(before);
    let [log, data] = media;
    let rig = Rig::on(log, data, NodeOptions { node: 1, scrub, ..NodeOptions::default() });
    let net = Conversations::new(config(Peer::Node(1), 1, 3, true), rig.node.target());
    let mut now = Time::default();
    let tending = Tending::new(rig.node.clone(), now);
    let each = (0..ticks).map(|_| {
        now = now.after(TICK);
        net.pump(now, NOW, &mut |_, _| ());
        tending.tend(&net, now, &Here);
        rig.figure("scrubbed_bytes")
    });
    (each.collect(), tending.deadline().is_some())
}

/// The rate was what calls and idle nodes made of it, six hundred times as much in one case as in
/// the other, and could not be said.
#[test]
fn a_node_scrubs_at_the_rate_it_is_told_whether_or_not_it_is_asked_anything() {
    let rate = 2 * u64::from(STRIP);
    let (each, goes_on) = scrubs(8, rate, 100);
    let told: Vec<u64> = (1..=100).map(|tick| rate * (tick / 10)).collect();
    assert_eq!((each, goes_on), (told, true), "and around");
}

#[test]
fn a_node_that_holds_nothing_or_is_to_scrub_nothing_sleeps() {
    for (strips, scrub) in [(0, 1 << 20), (4, 0)] {
        assert_eq!(scrubs(strips, scrub, 20), (vec![0; 20], false));
    }
}
