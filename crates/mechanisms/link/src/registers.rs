//! Doorbells, interrupt words and heartbeats, as both sides see them (`outboard_wire::regs`).
//!
//! The pages belong to the DPU side and are mapped by the host side. Whatever the DPU reads here
//! the host may have written at any moment: an index out of range is the reader's to notice.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use outboard_wire::regs::{self, attachment, queue};

use crate::Region;
use crate::layout::Layout;

/// The registers of one attachment.
#[derive(Clone, Debug)]
pub struct Registers {
    region: Arc<Region>,
    layout: Layout,
}

/// The pages are not registers of this version and grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRegisters;

// Every offset below is inside the pages because both constructors check their length against the
// grid and queue numbers against the queues; an access that failed all the same would read as zero.
impl Registers {
    /// The DPU side: writes the identification into fresh, zeroed pages.
    pub fn create(
        region: Arc<Region>,
        layout: Layout,
        instance: u64,
    ) -> Result<Registers, InvalidRegisters> {
        let registers = Registers::over(region, layout)?;
        registers.set(attachment::QUEUES, u32::from(layout.queues()));
        registers.set(attachment::DEPTH, u32::from(layout.depth()));
        registers.set_wide(attachment::INSTANCE, instance);
        registers.set(attachment::VERSION_AT, regs::VERSION);
        registers.set(attachment::MAGIC_AT, regs::MAGIC);
        Ok(registers)
    }

    /// The host side: checks that the pages are what the Welcome said.
    pub fn open(region: Arc<Region>, layout: Layout) -> Result<Registers, InvalidRegisters> {
        let registers = Registers::over(region, layout)?;
        let found = [
            registers.get(attachment::MAGIC_AT),
            registers.get(attachment::VERSION_AT),
            registers.get(attachment::QUEUES),
            registers.get(attachment::DEPTH),
        ];
        let wanted =
            [regs::MAGIC, regs::VERSION, u32::from(layout.queues()), u32::from(layout.depth())];
        if found == wanted { Ok(registers) } else { Err(InvalidRegisters) }
    }

    fn over(region: Arc<Region>, layout: Layout) -> Result<Registers, InvalidRegisters> {
        if region.len() < regs::registers_len(layout.queues(), layout.depth()) {
            return Err(InvalidRegisters);
        }
        Ok(Registers { region, layout })
    }

    /// The grid these registers are for.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The pages, for futex calls.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The block of one queue; `None` when there is no such queue.
    #[must_use]
    pub fn queue(&self, queue: u16) -> Option<QueueRegisters> {
        (queue < self.layout.queues()).then(|| QueueRegisters {
            region: Arc::clone(&self.region),
            base: regs::queue_at(queue, self.layout.depth()),
            depth: self.layout.depth(),
        })
    }

    /// Which life of the DPU side this is.
    #[must_use]
    pub fn instance(&self) -> u64 {
        self.get_wide(attachment::INSTANCE)
    }

    /// The host is alive.
    pub fn beat_host(&self) {
        self.set_wide(attachment::HOST_BEAT, self.host_beat().wrapping_add(1));
    }

    /// The host's heartbeat.
    #[must_use]
    pub fn host_beat(&self) -> u64 {
        self.get_wide(attachment::HOST_BEAT)
    }

    /// The DPU is alive.
    pub fn beat_dpu(&self) {
        self.set_wide(attachment::DPU_BEAT, self.dpu_beat().wrapping_add(1));
    }

    /// The DPU's heartbeat.
    #[must_use]
    pub fn dpu_beat(&self) -> u64 {
        self.get_wide(attachment::DPU_BEAT)
    }

    /// Where the event interrupt word lies.
    #[must_use]
    pub fn event_interrupt_at(&self) -> u64 {
        attachment::EVENT_INTERRUPT
    }

    pub(crate) fn event_interrupt(&self) -> u32 {
        self.get(attachment::EVENT_INTERRUPT)
    }

    pub(crate) fn raise_event_interrupt(&self) {
        self.set(attachment::EVENT_INTERRUPT, self.event_interrupt().wrapping_add(1));
    }

    pub(crate) fn event_head(&self) -> u64 {
        self.get_wide(attachment::EVENT_HEAD)
    }

    pub(crate) fn set_event_head(&self, head: u64) {
        self.set_wide(attachment::EVENT_HEAD, head);
    }

    /// How many events the host has acted upon; `None` if it does not say.
    pub(crate) fn events_acted(&self) -> Option<u64> {
        self.get_wide(attachment::EVENT_ACTED).checked_sub(1)
    }

    pub(crate) fn set_events_acted(&self, acted: u64) {
        self.set_wide(attachment::EVENT_ACTED, acted.saturating_add(1));
    }

    pub(crate) fn arm_events(&self, arm: bool) {
        self.set(attachment::EVENT_ARM, u32::from(arm));
    }

    /// Whether the host wants an interrupt for the next event; takes the wish.
    pub(crate) fn take_event_arm(&self) -> bool {
        self.get(attachment::EVENT_ARM) != 0
            && self.region.cas_u32(attachment::EVENT_ARM, 1, 0, AcqRel) == Ok(1)
    }

    fn get(&self, at: u64) -> u32 {
        self.region.load_u32(at, Acquire).unwrap_or(0)
    }

    fn set(&self, at: u64, value: u32) {
        let _in_range = self.region.store_u32(at, value, Release);
    }

    fn get_wide(&self, at: u64) -> u64 {
        self.region.load_u64(at, Acquire).unwrap_or(0)
    }

    fn set_wide(&self, at: u64, value: u64) {
        let _in_range = self.region.store_u64(at, value, Release);
    }
}

/// The registers of one queue pair.
#[derive(Clone, Debug)]
pub struct QueueRegisters {
    region: Arc<Region>,
    base: u64,
    depth: u16,
}

macro_rules! register {
    ($(#[$doc:meta])* $get:ident, $set:ident, $at:expr) => {
        $(#[$doc])*
        #[must_use]
        pub fn $get(&self) -> u32 {
            self.get($at)
        }

        $(#[$doc])*
        pub fn $set(&self, value: u32) {
            self.set($at, value);
        }
    };
}

impl QueueRegisters {
    register!(
        /// Submission doorbell.
        tail, set_tail, queue::TAIL
    );
    register!(
        /// Completion doorbell.
        head, set_head, queue::HEAD
    );
    register!(
        /// Changes when an abort word changed.
        abort_doorbell, set_abort_doorbell, queue::ABORT_DOORBELL
    );
    register!(
        /// Run or delete.
        control, set_control, queue::CONTROL
    );
    register!(
        /// Running or deleted.
        state, set_state, queue::STATE
    );
    register!(
        /// 1: interrupt the host for the next completion.
        arm, set_arm, queue::ARM
    );
    register!(
        /// 1: the DPU does not look.
        asleep, set_asleep, queue::ASLEEP
    );
    register!(
        /// Counts completion interrupts.
        interrupt, set_interrupt, queue::INTERRUPT
    );

    /// The abort word of a command id; zero beyond the depth.
    #[must_use]
    pub fn abort(&self, cid: u16) -> u32 {
        if cid < self.depth { self.get(queue::ABORT + 4 * u64::from(cid)) } else { 0 }
    }

    /// Asks for the abort of a command.
    pub fn set_abort(&self, cid: u16, tag: u32) {
        if cid < self.depth {
            self.set(queue::ABORT + 4 * u64::from(cid), tag);
        }
    }

    /// Entries of each ring.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Where the interrupt word lies in the pages, for futex calls.
    #[must_use]
    pub fn interrupt_at(&self) -> u64 {
        self.base + queue::INTERRUPT
    }

    /// Whether the DPU sleeps and this caller is the one to wake it. To be asked after a fence.
    pub(crate) fn take_asleep(&self) -> bool {
        self.asleep() != 0 && self.region.cas_u32(self.base + queue::ASLEEP, 1, 0, AcqRel) == Ok(1)
    }

    /// Whether the host wants an interrupt for the next completion; takes the wish.
    pub(crate) fn take_arm(&self) -> bool {
        self.arm() != 0 && self.region.cas_u32(self.base + queue::ARM, 1, 0, AcqRel) == Ok(1)
    }

    /// Counts one more interrupt, before the host is woken.
    pub(crate) fn raise_interrupt(&self) {
        let _old = self.region.add_u32(self.base + queue::INTERRUPT, 1, AcqRel);
    }

    /// The submission doorbell without order, for a look that decides nothing yet.
    pub(crate) fn tail_hint(&self) -> u32 {
        self.region.load_u32(self.base + queue::TAIL, Relaxed).unwrap_or(0)
    }

    fn get(&self, at: u64) -> u32 {
        self.region.load_u32(self.base + at, Acquire).unwrap_or(0)
    }

    fn set(&self, at: u64, value: u32) {
        let _in_range = self.region.store_u32(self.base + at, value, Release);
    }
}
