//! The suite through each front.

use outboard_conformance::front::directory::DirectoryFront;
use outboard_conformance::front::in_process::InProcessFront;
use outboard_conformance::front::link::LinkFront;
use outboard_conformance::{Front, runner};

use crate::skips::note_skip;

/// Runs every case; what failed is told by the panic.
fn passes(front: &mut dyn Front, skips: usize) {
    let mut told = Vec::new();
    let report = runner::run(front, "", false, &mut told).unwrap();
    let told = String::from_utf8_lossy(&told);
    assert!(report.failed.is_empty(), "{told}");
    assert!(report.passed > 250, "the suite has lost its cases: {told}");
    assert!(report.skipped.len() <= skips, "more is skipped than has a reason: {told}");
}

#[test]
fn kvfs_in_process() {
    passes(&mut InProcessFront::new(false).unwrap(), 1);
}

#[test]
fn kvfs_in_process_with_every_change_replayed() {
    passes(&mut InProcessFront::new(true).unwrap(), 1);
}

#[test]
fn kvfs_over_a_link() {
    passes(&mut LinkFront::new(false).unwrap(), 1);
}

#[test]
fn kvfs_over_a_link_whose_dpu_side_dies() {
    passes(&mut LinkFront::new(true).unwrap(), 1);
}

#[test]
fn kvfs_over_a_link_with_a_hybrid_cache() {
    passes(&mut LinkFront::cached(false).unwrap(), 2);
}

#[test]
fn kvfs_over_a_link_with_a_hybrid_cache_whose_dpu_side_dies() {
    passes(&mut LinkFront::cached(true).unwrap(), 2);
}

#[test]
fn kvfs_in_process_that_packs() {
    let mut front = InProcessFront::packed().unwrap();
    passes(&mut front, 1);
    let packing = front.packing();
    assert!(packing.taken < packing.plain, "{packing:?}");
}

#[test]
fn kvfs_that_packs_with_a_hybrid_cache_whose_dpu_side_dies() {
    passes(&mut LinkFront::packed().unwrap(), 2);
}

/// The suite itself is right if a local file system passes it. A plain user cannot be others, and
/// other file systems differ (tmpfs has no user attributes), so that this needs root and ext4.
#[test]
fn the_local_file_system_agrees_with_the_suite() {
    let directory = tempfile::tempdir().unwrap();
    let found = rustix::fs::statfs(directory.path()).unwrap();
    if found.f_type != 0xEF53 || !rustix::process::geteuid().is_root() {
        let reason = "needs root and ext4 under the temporary directory";
        note_skip("the_local_file_system_agrees_with_the_suite", reason);
        return;
    }
    passes(&mut DirectoryFront::new(directory.path(), false).unwrap(), 21);
}
