//! The completion entry and its status.
//!
//! ```text
//! dword  bits    field
//!  0-1           result: a number whose meaning the operation defines
//!   2    0-15    submission queue head: entries before it have been fetched
//!        16-31   submission queue id
//!   3    0-15    command id
//!        16      phase tag: flips each time the completion queue wraps; the first pass writes 1
//!        17-28   status value
//!        29-31   status kind: 0 success, 1 errno of the file operation, 2 queue error
//! ```

use outboard_base::Errno;

use super::{CQE_LEN, put, u16_at, u64_at};

/// What is wrong with a command as seen by the queue, before any volume saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QueueError {
    /// Not 0xA3.
    InvalidOpcode = 1,
    /// PSDT bits ask for something other than PRP.
    InvalidPsdt = 2,
    /// A PRP entry or list is misaligned or outside the region.
    InvalidPrp = 3,
    /// Header longer than its stream, or a length beyond the limits.
    InvalidLength = 4,
    /// A reserved field is set.
    InvalidField = 5,
    /// The command id is beyond the queue's depth or already in flight.
    InvalidCid = 6,
    /// No volume is served behind this value of the dispatch bit.
    BadDispatch = 7,
    /// Aborted on request, or because the queue was deleted.
    Aborted = 8,
    /// A DMA for this command failed.
    TransferFailed = 9,
    /// The request header does not decode.
    InvalidHeader = 10,
    /// The other side broke the protocol in its answer (never sent; the reader's own verdict).
    Protocol = 11,
}

impl QueueError {
    /// All of them, for tables and tests.
    pub const ALL: [QueueError; 11] = [
        QueueError::InvalidOpcode,
        QueueError::InvalidPsdt,
        QueueError::InvalidPrp,
        QueueError::InvalidLength,
        QueueError::InvalidField,
        QueueError::InvalidCid,
        QueueError::BadDispatch,
        QueueError::Aborted,
        QueueError::TransferFailed,
        QueueError::InvalidHeader,
        QueueError::Protocol,
    ];

    /// What a front-end tells its caller.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            QueueError::Aborted => Errno::EINTR,
            QueueError::TransferFailed => Errno::EIO,
            _ => Errno::EPROTO,
        }
    }

    fn from_raw(raw: u16) -> QueueError {
        QueueError::ALL
            .into_iter()
            .find(|error| u16::from(*error as u8) == raw)
            .unwrap_or(QueueError::Protocol)
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// The file operation was refused with this errno.
    Errno(Errno),
    /// The queue refused the command.
    Queue(QueueError),
}

impl Status {
    /// The 15 bits behind the phase tag.
    fn raw(self) -> u16 {
        match self {
            Status::Ok => 0,
            Status::Errno(errno) => (1 << 12) | (errno.raw() & 0xFFF),
            Status::Queue(error) => (2 << 12) | u16::from(error as u8),
        }
    }

    /// Whatever the bits are, they mean something: what is not known is a protocol error, never
    /// success.
    fn from_raw(raw: u16) -> Status {
        match (raw >> 12, raw & 0xFFF) {
            (0, 0) => Status::Ok,
            (1, number) => Status::Errno(Errno::from_raw(u32::from(number))),
            (2, number) => Status::Queue(QueueError::from_raw(number)),
            _ => Status::Queue(QueueError::Protocol),
        }
    }

    /// `Ok`, or the errno a front-end reports.
    ///
    /// # Errors
    /// The operation's errno, or the one a queue error stands for.
    pub fn to_result(self) -> outboard_base::Result<()> {
        match self {
            Status::Ok => Ok(()),
            Status::Errno(errno) => Err(errno),
            Status::Queue(error) => Err(error.errno()),
        }
    }
}

/// What a completion entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// A number whose meaning the operation defines.
    pub result: u64,
    /// How far the DPU has fetched the submission queue.
    pub sq_head: u16,
    /// The queue pair.
    pub queue: u16,
    /// The command this answers.
    pub cid: u16,
    /// Phase tag.
    pub phase: bool,
    /// How it ended.
    pub status: Status,
}

impl Cqe {
    /// The phase tag alone, from the entry's second half: what a poller looks at.
    #[must_use]
    pub fn phase_of(second_half: u64) -> bool {
        second_half & (1 << 48) != 0
    }

    /// Reads an entry. Any bytes mean something; whether it is to be believed depends on the queue.
    #[must_use]
    pub fn parse(bytes: &[u8; CQE_LEN]) -> Cqe {
        let tail = u16_at(bytes, 14);
        Cqe {
            result: u64_at(bytes, 0),
            sq_head: u16_at(bytes, 8),
            queue: u16_at(bytes, 10),
            cid: u16_at(bytes, 12),
            phase: tail & 1 != 0,
            status: Status::from_raw(tail >> 1),
        }
    }

    /// The entry's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; CQE_LEN] {
        let mut out = [0; CQE_LEN];
        put(&mut out, 0, &self.result.to_le_bytes());
        put(&mut out, 8, &self.sq_head.to_le_bytes());
        put(&mut out, 10, &self.queue.to_le_bytes());
        put(&mut out, 12, &self.cid.to_le_bytes());
        put(&mut out, 14, &((self.status.raw() << 1) | u16::from(self.phase)).to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let cqe = Cqe {
            result: 0x0807_0605_0403_0201,
            sq_head: 0x0A09,
            queue: 0x0C0B,
            cid: 0x0E0D,
            phase: true,
            status: Status::Errno(Errno::ENOSPC),
        };
        let golden = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0x39, 0x20];
        assert_eq!(cqe.emit(), golden);
        assert_eq!(Cqe::parse(&golden), cqe);
        assert!(Cqe::phase_of(u64::from_le_bytes(golden[8..].try_into().unwrap())));
    }

    #[test]
    fn every_status_survives() {
        let errnos = (1..=4095).map(|n| Status::Errno(Errno::from_raw(n)));
        let errors = QueueError::ALL.into_iter().map(Status::Queue);
        for status in errnos.chain(errors).chain([Status::Ok]) {
            assert_eq!(Status::from_raw(status.raw()), status);
            assert_eq!(status.to_result().is_ok(), status == Status::Ok);
        }
    }

    #[test]
    fn unknown_bits_are_never_success() {
        for raw in 1..1 << 15 {
            assert_ne!(Status::from_raw(raw), Status::Ok, "{raw:#x}");
        }
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(
            result: u64, sq_head: u16, queue: u16, cid: u16, phase: bool,
            errno in 1u32..4096,
        ) {
            let status = Status::Errno(Errno::from_raw(errno));
            let cqe = Cqe { result, sq_head, queue, cid, phase, status };
            prop_assert_eq!(Cqe::parse(&cqe.emit()), cqe);
        }
    }
}
