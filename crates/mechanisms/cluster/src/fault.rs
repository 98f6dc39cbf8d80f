//! Faults that tests plant: each takes one rule away, and the walks must notice.

/// A rule that is left out, here or in the world of the tests.
#[cfg_attr(not(test), allow(dead_code, reason = "some are planted in the tests' world alone"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// R2: acknowledgements of several epochs are counted together.
    MixedEpochs,
    /// R2: a member takes a write while another is pending, and clients go on after abandoning.
    NoOrder,
    /// R2: a write that is stable is taken again.
    TakenAgain,
    /// R3: SEAL raises no fence.
    NoSeal,
    /// R3: a mere restart drops what is pending.
    RestartDrops,
    /// R1: the fence of a grant is the sealed one.
    EqualFences,
    /// R1: a grant names the group as it was when the strip was first granted.
    OldEpochGranted,
    /// R5: every member has a say, also one that joined later.
    NaiveAllMembers,
    /// R5: what one who joined again had before counts.
    OldClaims,
    /// R5: a filling member says nothing of a version that it took and could not keep.
    SilentOfGone,
    /// R5: nothing is resolved.
    NoResolve,
    /// R5: a member without the version that was decided answers all the same.
    HolesForward,
    /// R5: a version that no ACTIVE member has is decided all the same.
    NoSource,
    /// R7: what is complete between a SEAL and its RESOLVE counts.
    FilledWhileSealed,
    /// R7: what was said before a SEAL counts after it.
    FilledBefore,
    /// R7: copies are taken in any order.
    ReorderedCopies,
    /// R7: a strip is skipped for its version alone.
    SkippedEqual,
    /// R7: FILLING serves reads.
    FillingReads,
    /// R8: a read counts after the lease.
    LateReads,
    /// R4: FLUSH is answered before it is durable.
    FlushNotDurable,
    /// R7: completeness is told before it is durable.
    FilledNotDurable,
    /// R9: a member that lost power goes on as if it had not.
    PowerIgnored,
}

#[cfg(test)]
thread_local! {
    pub(crate) static PLANTED: std::cell::Cell<Option<Fault>> =
        const { std::cell::Cell::new(None) };
}

/// Whether this fault is planted: never outside this crate's tests.
#[cfg(test)]
pub(crate) fn planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Whether this fault is planted: never outside this crate's tests.
#[cfg(not(test))]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}
