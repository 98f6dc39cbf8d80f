//! Capabilities: what a client may do to a range of an object, for so long, under such a fence.

use outboard_codec::mac;

use super::{FAN_MAX, InvalidMessage, PARITY_MAX, Strategy, VERSION, zeros};
use crate::cursor::{bytes, u16_at, u32_at, u64_at};

/// Bytes of a capability.
pub const CAPABILITY_LEN: usize = 80;
/// Bytes of its MAC.
pub const MAC_LEN: usize = 16;
const SIGNED_LEN: usize = CAPABILITY_LEN - MAC_LEN;

/// What may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights(u16);

impl Rights {
    /// Bytes may be read.
    pub const READ: Rights = Rights(1);
    /// Bytes may be written.
    pub const WRITE: Rights = Rights(2);
    /// Both.
    pub const READ_WRITE: Rights = Rights(3);

    /// Whether all of `wanted` is among these.
    #[must_use]
    pub fn allow(self, wanted: Rights) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    fn parse(raw: u16) -> Result<Rights, InvalidMessage> {
        if (1..=3).contains(&raw) { Ok(Rights(raw)) } else { Err(InvalidMessage::Field) }
    }
}

/// A capability as it travels. Whether its MAC is right and its time is not over is checked by who
/// has the key and a clock: the key of its number, [`Capability::is_signed_by`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Which of the keys that are in use it was made with.
    pub key: u8,
    /// What may be done.
    pub rights: Rights,
    /// Of which volume.
    pub volume: u32,
    /// To which object.
    pub object: u64,
    /// The first byte.
    pub first: u64,
    /// One behind the last byte.
    pub end: u64,
    /// Who may.
    pub client: u64,
    /// Under which fence.
    pub fence: u64,
    /// The placement group of the object.
    pub group: u32,
    /// How the object spreads.
    pub strategy: Strategy,
    /// Copies, or data units: 1 to [`FAN_MAX`].
    pub k: u8,
    /// Parity units: with [`Strategy::Parity`] 1 to [`PARITY_MAX`], else 0.
    pub m: u8,
    /// When it is over, milliseconds of Unix time.
    pub expires: u64,
    /// Over all of the above.
    pub mac: [u8; MAC_LEN],
}

impl Capability {
    /// Reads one.
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn parse(from: &[u8]) -> Result<Capability, InvalidMessage> {
        let whole = from.first_chunk::<CAPABILITY_LEN>().ok_or(InvalidMessage::Length)?;
        let &[version, key, ..] = whole;
        let (spread, tail) = (bytes(whole, 52, 4)?, bytes(whole, SIGNED_LEN, MAC_LEN)?);
        let &[strategy, k, m, zero] = spread else { return Err(InvalidMessage::Length) };
        if version != VERSION {
            return Err(InvalidMessage::Version);
        }
        zeros(&[zero])?;
        let strategy = Strategy::parse(strategy)?;
        let (first, end) = (u64_at(whole, 16)?, u64_at(whole, 24)?);
        if first >= end {
            return Err(InvalidMessage::Range);
        }
        check_spread(strategy, k, m)?;
        Ok(Capability {
            key,
            rights: Rights::parse(u16_at(whole, 2)?)?,
            volume: u32_at(whole, 4)?,
            object: u64_at(whole, 8)?,
            first,
            end,
            client: u64_at(whole, 32)?,
            fence: u64_at(whole, 40)?,
            group: u32_at(whole, 48)?,
            strategy,
            k,
            m,
            expires: u64_at(whole, 56)?,
            mac: tail.try_into().map_err(|_| InvalidMessage::Length)?,
        })
    }

    /// The bytes its MAC is over.
    #[must_use]
    pub fn signed(&self) -> [u8; SIGNED_LEN] {
        let mut out = [0; SIGNED_LEN];
        let Rights(rights) = self.rights;
        let [r0, r1] = rights.to_le_bytes();
        let fields: [&[u8]; 10] = [
            &[VERSION, self.key, r0, r1],
            &self.volume.to_le_bytes(),
            &self.object.to_le_bytes(),
            &self.first.to_le_bytes(),
            &self.end.to_le_bytes(),
            &self.client.to_le_bytes(),
            &self.fence.to_le_bytes(),
            &self.group.to_le_bytes(),
            &[self.strategy as u8, self.k, self.m, 0],
            &self.expires.to_le_bytes(),
        ];
        for (to, from) in out.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        out
    }

    /// The same, with the MAC of `key`.
    #[must_use]
    pub fn sign(self, key: &[u8; 32]) -> Capability {
        Capability { mac: mac::tag(key, &[&self.signed()]), ..self }
    }

    /// Whether its MAC is that of `key`.
    #[must_use]
    pub fn is_signed_by(&self, key: &[u8; 32]) -> bool {
        mac::is_tag(key, &[&self.signed()], &self.mac)
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; CAPABILITY_LEN] {
        let mut out = [0; CAPABILITY_LEN];
        let all = self.signed().into_iter().chain(self.mac);
        out.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        out
    }

    /// Whether all of `range` is in its own.
    #[must_use]
    pub fn covers(&self, range: &std::ops::Range<u64>) -> bool {
        self.first <= range.start && range.start <= range.end && range.end <= self.end
    }
}

/// Refuses numbers of units that no object has.
pub(super) fn check_spread(strategy: Strategy, k: u8, m: u8) -> Result<(), InvalidMessage> {
    let units = (1..=FAN_MAX).contains(&usize::from(k));
    let is_fit = match strategy {
        Strategy::Single => k == 1 && m == 0,
        Strategy::Ring | Strategy::BinaryTree => units && m == 0,
        Strategy::Parity => units && (1..=PARITY_MAX).contains(&usize::from(m)),
    };
    if is_fit { Ok(()) } else { Err(InvalidMessage::Field) }
}
