//! What a node answers.

use super::{DATA_MAX, InvalidMessage, VERSION, zeros};
use crate::cursor::{u16_at, u32_at, u64_at};

/// Bytes of an answer, before the data of a read.
pub const ANSWER_LEN: usize = 56;
pub(super) const MAGIC: [u8; 2] = *b"OA";

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Reason {
    /// Its bytes are no request.
    Invalid = 1,
    /// The MAC of the capability is not that of its key.
    Forged = 2,
    /// The capability's time is over.
    Expired = 3,
    /// The capability does not allow this.
    Rights = 4,
    /// The bytes are not in the capability's range.
    Range = 5,
    /// The capability is for something else: another volume, object, client or group.
    Other = 6,
    /// A higher fence is in force.
    Fence = 7,
    /// The group has another epoch; the answer says which.
    Epoch = 8,
    /// A write before it is not stable.
    Order = 9,
    /// No room for it now: again, after a back-off.
    Busy = 10,
    /// The node has no space left.
    Full = 11,
    /// The medium failed.
    Medium = 12,
    /// The node holds no whole copy yet.
    Filling = 13,
    /// The client's key was revoked.
    Revoked = 14,
    /// This member of a group could not be reached, or ended before it answered: it may have it.
    Unreached = 15,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 15] = [
        Reason::Invalid,
        Reason::Forged,
        Reason::Expired,
        Reason::Rights,
        Reason::Range,
        Reason::Other,
        Reason::Fence,
        Reason::Epoch,
        Reason::Order,
        Reason::Busy,
        Reason::Full,
        Reason::Medium,
        Reason::Filling,
        Reason::Revoked,
        Reason::Unreached,
    ];
}

/// An answer: a message of its own, with the bytes of a read behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Bytes of data that follow: none of a refusal, at most [`DATA_MAX`].
    pub data: u32,
    /// To which request.
    pub request: u64,
    /// Who answers, by its place in the write; of a refusal, who refuses.
    pub rank: u8,
    /// Whether it was done.
    pub outcome: Result<(), Reason>,
    /// The sequence this is about.
    pub sequence: u32,
    /// The node's epoch of the group.
    pub epoch: u32,
    /// Requests the client may have under way.
    pub credit: u32,
    /// The fence of the strip.
    pub fence: u64,
    /// Bytes that the object takes at the node, once this is done.
    pub held: u64,
    /// The node's boot: in another one it may have lost what was not flushed in this.
    pub boot: u64,
}

impl Answer {
    /// Reads one, without the data.
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn parse(from: &[u8]) -> Result<Answer, InvalidMessage> {
        let whole: &[u8; ANSWER_LEN] = from.try_into().map_err(|_| InvalidMessage::Length)?;
        let &[m0, m1, version, zero, _, _, _, _, _, _, _, _, _, _, _, _, rank, status, ..] = whole;
        if [m0, m1] != MAGIC || version != VERSION {
            return Err(InvalidMessage::Version);
        }
        zeros(&[zero])?;
        let (data, reason) = (u32_at(whole, 4)?, u16_at(whole, 18)?);
        let outcome = match status {
            0 => zeros(&reason.to_le_bytes()).map(Ok)?,
            1 => {
                let mut all = Reason::ALL.into_iter();
                let known = all.find(|known| *known as u16 == reason);
                Err(known.ok_or(InvalidMessage::Field)?)
            }
            _ => return Err(InvalidMessage::Field),
        };
        if data > DATA_MAX || (outcome.is_err() && data != 0) {
            return Err(InvalidMessage::Field);
        }
        Ok(Answer {
            data,
            request: u64_at(whole, 8)?,
            rank,
            outcome,
            sequence: u32_at(whole, 20)?,
            epoch: u32_at(whole, 24)?,
            credit: u32_at(whole, 28)?,
            fence: u64_at(whole, 32)?,
            held: u64_at(whole, 40)?,
            boot: u64_at(whole, 48)?,
        })
    }

    /// Reads a whole message: one, and the data behind it.
    ///
    /// # Errors
    /// As of [`Answer::parse`]; and [`InvalidMessage::Length`] if it is not all its data.
    pub fn split(message: &[u8]) -> Result<(Answer, &[u8]), InvalidMessage> {
        let parts = message.split_at_checked(ANSWER_LEN).ok_or(InvalidMessage::Length)?;
        let (answer, data) = (Answer::parse(parts.0)?, parts.1);
        if data.len() == answer.data as usize {
            Ok((answer, data))
        } else {
            Err(InvalidMessage::Length)
        }
    }

    /// Its bytes; the data follows.
    #[must_use]
    pub fn emit(&self) -> [u8; ANSWER_LEN] {
        let (status, reason) = match self.outcome {
            Ok(()) => (0, 0),
            Err(reason) => (1, reason as u16),
        };
        let ([m0, m1], [r0, r1]) = (MAGIC, reason.to_le_bytes());
        let fields: [&[u8]; 10] = [
            &[m0, m1, VERSION, 0],
            &self.data.to_le_bytes(),
            &self.request.to_le_bytes(),
            &[self.rank, status, r0, r1],
            &self.sequence.to_le_bytes(),
            &self.epoch.to_le_bytes(),
            &self.credit.to_le_bytes(),
            &self.fence.to_le_bytes(),
            &self.held.to_le_bytes(),
            &self.boot.to_le_bytes(),
        ];
        let mut out = [0; ANSWER_LEN];
        for (to, from) in out.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        out
    }
}
