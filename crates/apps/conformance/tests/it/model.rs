//! Random work against the reference. `MODEL_SEQUENCES`, `MODEL_STEPS` and `MODEL_SEED` make it
//! long or repeat it; a failure tells its seed.

use std::str::FromStr;

use outboard_conformance::Front;
use outboard_conformance::front::directory::DirectoryFront;
use outboard_conformance::front::in_process::InProcessFront;
use outboard_conformance::front::link::LinkFront;
use outboard_conformance::model::{self, Effort};

use crate::skips::note_skip;

fn from_environment<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn agrees(front: &mut dyn Front) {
    let small = Effort::default();
    let effort = Effort {
        sequences: from_environment("MODEL_SEQUENCES", small.sequences),
        steps: from_environment("MODEL_STEPS", small.steps),
        seed: from_environment("MODEL_SEED", small.seed),
    };
    println!("{effort:?}");
    if let Err(why) = model::run(front, effort) {
        panic!("{why}");
    }
}

#[test]
fn kvfs_in_process_agrees_with_the_reference() {
    agrees(&mut InProcessFront::new(false).unwrap());
}

#[test]
fn kvfs_with_every_change_replayed_agrees_with_the_reference() {
    agrees(&mut InProcessFront::new(true).unwrap());
}

#[test]
fn kvfs_over_a_link_agrees_with_the_reference() {
    agrees(&mut LinkFront::new(false).unwrap());
}

#[test]
fn kvfs_over_a_link_whose_dpu_side_dies_agrees_with_the_reference() {
    agrees(&mut LinkFront::new(true).unwrap());
}

#[test]
fn kvfs_over_a_link_with_a_hybrid_cache_agrees_with_the_reference() {
    agrees(&mut LinkFront::cached(false).unwrap());
}

#[test]
fn kvfs_with_a_hybrid_cache_whose_dpu_side_dies_agrees_with_the_reference() {
    agrees(&mut LinkFront::cached(true).unwrap());
}

#[test]
fn kvfs_that_packs_agrees_with_the_reference() {
    let mut front = InProcessFront::packed().unwrap();
    agrees(&mut front);
    let packing = front.packing();
    assert!(packing.taken < packing.plain, "{packing:?}");
}

#[test]
fn kvfs_that_packs_with_a_hybrid_cache_whose_dpu_side_dies_agrees_with_the_reference() {
    agrees(&mut LinkFront::packed().unwrap());
}

/// The reference itself is right if a local file system agrees with it.
#[test]
fn the_local_file_system_agrees_with_the_reference() {
    let directory = tempfile::tempdir().unwrap();
    let found = rustix::fs::statfs(directory.path()).unwrap();
    if found.f_type != 0xEF53 {
        let reason = "needs ext4 under the temporary directory";
        note_skip("the_local_file_system_agrees_with_the_reference", reason);
        return;
    }
    agrees(&mut DirectoryFront::new(directory.path(), false).unwrap());
}
