//! Faults that tests plant, to see that they are found. Outside of tests there are none.

/// A fault of one of the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The receiver gives what it has given already.
    GivenTwice,
    /// It completes a message with its last packet, whatever is missing.
    CompletedEarly,
    /// It gives payload before the header.
    HeaderLate,
    /// Numbers are compared as if they did not go round.
    NoWrap,
    /// Completed messages are not counted, so credits run out.
    CreditLeak,
    /// The sender never sends a packet again.
    NotAgain,
    /// The sender does not look at its window.
    NoWindow,
    /// The receiver believes packets of another life.
    AnyLife,
    /// The receiver takes each message, whether there is room or not.
    NoRefusal,
    /// An opening is believed whoever signed it.
    AnyMac,
    /// An offer is a conversation before the other end has proved that it has the answer.
    NoProof,
    /// A wish for a new conversation is granted while the old one lives.
    BelievesWishes,
    /// A packet of a sealed conversation is believed without its MAC.
    AnySeal,
    /// A reply ends a call that was made to another, or in an earlier conversation.
    AnyReply,
    /// A call may be replied to more than once.
    ReplyTwice,
}

#[cfg(test)]
thread_local! {
    pub(crate) static PLANTED: std::cell::Cell<Option<Fault>> =
        const { std::cell::Cell::new(None) };
}

/// Whether `fault` is planted.
#[cfg(test)]
pub(crate) fn is(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

#[cfg(not(test))]
pub(crate) const fn is(_: Fault) -> bool {
    false
}
