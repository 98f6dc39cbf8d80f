//! The registers of one attachment: what a card would show in a BAR, here pages the DPU side owns
//! and the host side maps. Little-endian words; each is written by one side, and words that
//! different sides write lie on different cache lines. The DPU reads its own registers for nothing
//! (no DMA); the host's stores to them are the doorbells.
//!
//! ```text
//! attachment block, 4096 bytes
//! 0x000  u32 magic        0x004 u32 version   0x008 u32 queues   0x00C u32 depth   DPU, at attach
//! 0x010  u64 instance     which life of the DPU side this is                        DPU, at attach
//! 0x040  u64 host beat    heartbeat of the host                            host
//! 0x080  u64 DPU beat     heartbeat of the DPU                             DPU
//! 0x0C0  u64 event head   events consumed                                  host
//! 0x0C8  u32 event arm    1: interrupt me for the next event               host; DPU clears
//! 0x0D0  u64 event acted  events acted upon, and 1; 0: nobody acts here    host
//! 0x100  u32 event interrupt   counts interrupts; the host sleeps on it    DPU
//!
//! queue block q, at 4096 + q * stride(depth)
//! 0x000  u32 tail         submission doorbell                              host
//! 0x004  u32 abort doorbell   changes when an abort word changed               host
//! 0x008  u32 control      0 run, 1 delete the queue                        host
//! 0x040  u32 head         completion doorbell: completions consumed             host
//! 0x080  u32 arm          1: interrupt me for the next completion          host; DPU clears
//! 0x0C0  u32 asleep       1: the DPU does not look: wake it                DPU; host clears
//! 0x0C4  u32 state        0 running, 1 deleted                             DPU
//! 0x100  u32 interrupt    counts interrupts; the host sleeps on it         DPU
//! 0x140  u32 abort[depth] the tag of the command to abort, by command id   host
//! ```

/// First word of the registers: "OBRG".
pub const MAGIC: u32 = 0x4752_424F;
/// Version of this layout.
pub const VERSION: u32 = 1;

/// Bytes of the attachment block.
pub const ATTACHMENT_LEN: u64 = 4096;

/// Offsets in the attachment block.
pub mod attachment {
    /// [`super::MAGIC`].
    pub const MAGIC_AT: u64 = 0x000;
    /// [`super::VERSION`].
    pub const VERSION_AT: u64 = 0x004;
    /// Queue pairs granted.
    pub const QUEUES: u64 = 0x008;
    /// Depth granted.
    pub const DEPTH: u64 = 0x00C;
    /// Which life of the DPU side this is.
    pub const INSTANCE: u64 = 0x010;
    /// Heartbeat of the host.
    pub const HOST_BEAT: u64 = 0x040;
    /// Heartbeat of the DPU.
    pub const DPU_BEAT: u64 = 0x080;
    /// Events the host consumed.
    pub const EVENT_HEAD: u64 = 0x0C0;
    /// 1: interrupt the host for the next event.
    pub const EVENT_ARM: u64 = 0x0C8;
    /// 1 and the events acted upon: what they say is stale is forgotten. 0: this host keeps nothing
    /// that an event ends, or is of before this register; nobody waits for it.
    pub const EVENT_ACTED: u64 = 0x0D0;
    /// Counts event interrupts.
    pub const EVENT_INTERRUPT: u64 = 0x100;
}

/// Offsets in a queue block.
pub mod queue {
    /// Submission doorbell.
    pub const TAIL: u64 = 0x000;
    /// Changes when an abort word changed.
    pub const ABORT_DOORBELL: u64 = 0x004;
    /// [`RUN`] or [`DELETE`].
    pub const CONTROL: u64 = 0x008;
    /// Completion doorbell.
    pub const HEAD: u64 = 0x040;
    /// 1: interrupt the host for the next completion.
    pub const ARM: u64 = 0x080;
    /// 1: the DPU sleeps.
    pub const ASLEEP: u64 = 0x0C0;
    /// [`RUNNING`] or [`DELETED`].
    pub const STATE: u64 = 0x0C4;
    /// Counts completion interrupts.
    pub const INTERRUPT: u64 = 0x100;
    /// First abort word.
    pub const ABORT: u64 = 0x140;

    /// Control: the queue is to run.
    pub const RUN: u32 = 0;
    /// Control: the queue is to be deleted, its commands aborted.
    pub const DELETE: u32 = 1;
    /// State: the queue runs.
    pub const RUNNING: u32 = 0;
    /// State: the queue is deleted and nothing of it is in flight.
    pub const DELETED: u32 = 1;
}

/// Bytes from one queue block to the next: whole cache lines.
#[must_use]
pub const fn stride(depth: u16) -> u64 {
    (queue::ABORT + 4 * depth as u64).next_multiple_of(64)
}

/// Where the block of queue pair `queue` begins.
#[must_use]
pub const fn queue_at(queue: u16, depth: u16) -> u64 {
    ATTACHMENT_LEN + queue as u64 * stride(depth)
}

/// Bytes of all registers, in whole pages.
#[must_use]
pub const fn registers_len(queues: u16, depth: u16) -> u64 {
    queue_at(queues, depth).next_multiple_of(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout is a contract between two programs: this test is its golden copy.
    #[test]
    fn golden_offsets() {
        assert_eq!(MAGIC.to_le_bytes(), *b"OBRG");
        assert_eq!((queue_at(0, 128), queue_at(1, 128), queue_at(3, 2)), (4096, 4928, 5248));
        assert_eq!(registers_len(4, 128), 8192);
        assert_eq!(registers_len(64, 1024), 4096 + 64 * 4416);
        let queue = [
            (queue::TAIL, 0),
            (queue::ABORT_DOORBELL, 4),
            (queue::CONTROL, 8),
            (queue::HEAD, 64),
            (queue::ARM, 128),
            (queue::ASLEEP, 192),
            (queue::STATE, 196),
            (queue::INTERRUPT, 256),
            (queue::ABORT, 320),
        ];
        assert!(queue.iter().all(|(offset, golden)| offset == golden));
        let attachment = [
            (attachment::HOST_BEAT, 0x40),
            (attachment::DPU_BEAT, 0x80),
            (attachment::EVENT_HEAD, 0xC0),
            (attachment::EVENT_ARM, 0xC8),
            (attachment::EVENT_ACTED, 0xD0),
            (attachment::EVENT_INTERRUPT, 0x100),
        ];
        assert!(attachment.iter().all(|(offset, golden)| offset == golden));
    }
}
