//! What the CPU side has heard from handlers, added up.

use outboard_wire::shared::Reason;

use crate::nic::context::Notice;

/// Sums of notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Requests accepted.
    pub(crate) accepted: u64,
    /// Bytes they bring.
    pub(crate) bytes: u64,
    /// Requests refused, in the order of [`Reason::ALL`].
    pub(crate) refused: [u64; Reason::ALL.len()],
    /// Bytes that came of requests that never became whole.
    pub(crate) cut: u64,
    /// Notices of policies that applications installed.
    pub(crate) own: u64,
}

impl Heard {
    /// One more.
    pub(crate) fn hear(&mut self, notice: &Notice) {
        match *notice {
            Notice::Accepted { bytes, .. } => {
                self.accepted += 1;
                self.bytes += u64::from(bytes);
            }
            Notice::Refused { reason, .. } => {
                let all = Reason::ALL.iter().zip(&mut self.refused);
                all.filter(|(one, _)| **one == reason).for_each(|(_, count)| *count += 1);
            }
            Notice::Cleaned { got, .. } => self.cut += u64::from(got),
            Notice::Own { .. } => self.own += 1,
        }
    }
}
