//! Every rule that is taken away is missed: a walk notices.
//!
//! The search begins at a seed that notices, so it is one walk until the walks change, and then
//! goes on for as long as it has to. Rules that chance does not show have a plan (`directed`).

use super::walk::walk;
use super::world::Slow;
use crate::fault::Fault;

/// Seeds until a fault counts as not noticed.
const WITHIN: u64 = 600_000;

fn is_noticed(fault: Fault, from: u64) {
    let failure = walk(Some(fault), |_| Slow::None, from..from + WITHIN);
    let failure = failure.unwrap_or_else(|| panic!("{fault:?} is not noticed"));
    assert!(!failure.trace.is_empty());
    println!("{fault:?}: seed {}, {} steps: {}", failure.seed, failure.trace.len(), failure.what);
}

macro_rules! canaries {
    ($($name:ident: $fault:ident from $seed:literal,)*) => {
        $(#[test]
        fn $name() {
            is_noticed(Fault::$fault, $seed);
        })*
    };
}

canaries! {
    mixed_epochs: MixedEpochs from 1074,
    no_order: NoOrder from 254,
    taken_again: TakenAgain from 1496,
    no_seal: NoSeal from 701,
    restart_drops: RestartDrops from 1,
    equal_fences: EqualFences from 3096,
    old_epoch_granted: OldEpochGranted from 8064,
    naive_all_members: NaiveAllMembers from 1,
    old_claims: OldClaims from 8977,
    silent_of_gone: SilentOfGone from 18015,
    no_resolve: NoResolve from 0,
    holes_forward: HolesForward from 85896,
    skipped_equal: SkippedEqual from 1572,
    filling_reads: FillingReads from 99,
    flush_not_durable: FlushNotDurable from 136,
    filled_not_durable: FilledNotDurable from 7073,
    power_ignored: PowerIgnored from 10,
}
