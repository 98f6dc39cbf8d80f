//! What handlers cost (checklist row N22).
//!
//! Instructions are an estimate that each handler gives of itself, by what a handler compiled for a
//! small core would execute: loads and compares of the fields it looks at, 1,200 for a MAC, a copy
//! in words of 32 bytes by the DMA engine at no instruction but its start. They are for comparing
//! and for the model of hardware, not for this computer; nanoseconds are this computer's.

use super::sched::Handler;

/// What the runs of one handler cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Runs.
    pub runs: u64,
    /// Instructions, estimated.
    pub instructions: u64,
    /// Bytes of payload looked at.
    pub bytes: u64,
    /// Messages sent.
    pub sends: u64,
    /// Copies to the host's memory.
    pub dma: u64,
    /// Bytes of those.
    pub dma_bytes: u64,
    /// Packets passed on to successors: one for each,
    pub passed: u64,
    /// and bytes of those.
    pub passed_bytes: u64,
    /// Runs that were timed, where the world has a clock,
    pub timed: u64,
    /// and nanoseconds of those.
    pub ns: u64,
}

/// What all handlers cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerLedger {
    all: [Cost; Handler::ALL.len()],
}

impl HandlerLedger {
    /// What `handler` cost.
    #[must_use]
    pub fn of(&self, handler: Handler) -> Cost {
        self.all.get(handler as usize).copied().unwrap_or_default()
    }

    /// A run of `handler` that was timed took so long.
    pub(super) fn charge(&mut self, handler: Handler, ns: u64) {
        self.add(handler, &Cost { timed: 1, ns, ..Cost::default() });
    }

    pub(super) fn add(&mut self, handler: Handler, cost: &Cost) {
        let Some(sum) = self.all.get_mut(handler as usize) else { return };
        sum.runs += cost.runs;
        sum.instructions += cost.instructions;
        sum.bytes += cost.bytes;
        sum.sends += cost.sends;
        sum.dma += cost.dma;
        sum.dma_bytes += cost.dma_bytes;
        sum.passed += cost.passed;
        sum.passed_bytes += cost.passed_bytes;
        sum.timed += cost.timed;
        sum.ns += cost.ns;
    }
}
