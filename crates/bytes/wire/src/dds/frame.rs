//! Frames: how messages lie in the bytes of a ring.

use super::InvalidMessage;

/// Bytes before a frame's message.
pub const FRAME_HEAD: usize = 8;
/// The bit of a stamp that says: there is no message here, go on behind it.
const NOTHING: u32 = 1 << 31;
/// The bit of every stamp: memory nobody wrote is no frame.
const WRITTEN: u32 = 1;

/// Bytes of a frame whose message has `message` bytes.
#[inline]
#[must_use]
pub fn frame_len(message: usize) -> usize {
    (FRAME_HEAD + message).next_multiple_of(8)
}

/// For which position of its ring a frame was written, and whether it holds a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Position of the frame's first byte, since the ring began: a multiple of 8, of which the
    /// stamp keeps 33 bits.
    pub position: u64,
    /// Whether there is no message.
    pub is_nothing: bool,
}

impl Stamp {
    #[expect(clippy::cast_possible_truncation, reason = "the low bits are what is kept")]
    #[inline]
    fn raw(self) -> u32 {
        let place = (self.position >> 2) as u32 & !NOTHING | WRITTEN;
        if self.is_nothing { place | NOTHING } else { place }
    }

    /// The head of a frame at this stamp, its message `message` bytes long.
    #[inline]
    #[must_use]
    pub fn head(self, message: u32) -> u64 {
        u64::from(message) | u64::from(self.raw()) << 32
    }
}

/// A frame as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes of the message.
    pub message: u32,
    /// Whether it is to be passed over.
    pub is_nothing: bool,
}

impl Frame {
    /// Reads the head of the frame at `position`, which has `room` bytes at most.
    ///
    /// # Errors
    /// [`InvalidMessage::Stamp`], and [`InvalidMessage::Length`] if it does not fit.
    #[expect(clippy::cast_possible_truncation, reason = "halves of a word")]
    #[inline]
    pub fn parse(head: u64, position: u64, room: u64) -> Result<Frame, InvalidMessage> {
        let (message, stamp) = (head as u32, (head >> 32) as u32);
        let is_nothing = stamp & NOTHING != 0;
        if stamp != (Stamp { position, is_nothing }).raw() {
            return Err(InvalidMessage::Stamp);
        }
        let frame = Frame { message, is_nothing };
        if frame.bytes() > room { Err(InvalidMessage::Length) } else { Ok(frame) }
    }

    /// Bytes it takes of the ring.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> u64 {
        (FRAME_HEAD as u64 + u64::from(self.message)).next_multiple_of(8)
    }
}

/// The messages in a run of frames that begins at `position` of its ring; each with its own
/// position (of the message, not the frame). Ends at the first frame that is none, with the error.
pub fn frames(
    bytes: &[u8],
    position: u64,
) -> impl Iterator<Item = Result<(u64, &[u8]), InvalidMessage>> {
    let mut at = 0usize;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let place = position + at as u64;
            let rest = bytes.get(at..).unwrap_or_default();
            let frame = rest
                .first_chunk()
                .ok_or(InvalidMessage::Length)
                .and_then(|head| Frame::parse(u64::from_le_bytes(*head), place, rest.len() as u64));
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => {
                    at = bytes.len();
                    return Some(Err(error));
                }
            };
            at += frame_len(frame.message as usize);
            if !frame.is_nothing {
                let message = rest.get(FRAME_HEAD..FRAME_HEAD + frame.message as usize);
                return Some(
                    message
                        .map(|message| (place + FRAME_HEAD as u64, message))
                        .ok_or(InvalidMessage::Length),
                );
            }
        }
        None
    })
}
