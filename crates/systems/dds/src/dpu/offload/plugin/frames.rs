//! Messages of a stream, told apart by declaration: no code of the plug-in runs for that.

use super::super::{Cursor, Framing};
use super::MESSAGE_MAX;

/// How a message says where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// All have so many bytes.
    Fixed(u32),
    /// A header has the length.
    Counted(Counted),
    /// With this byte. A message longer than [`MESSAGE_MAX`] is none.
    Ended(u8),
}

/// Messages whose header has their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Bytes of the header: no message is shorter.
    pub header: u32,
    /// Where in it the number lies.
    pub at: u32,
    /// Bytes of the number: 1, 2, 4 or 8.
    pub width: u32,
    /// Whether the most significant byte is first.
    pub big_endian: bool,
    /// A message has so many bytes more than the number says.
    pub beyond: u32,
}

/// Largest header.
const HEADER_MAX: u32 = 256;

impl Frames {
    /// The same, if it makes sense.
    #[must_use]
    pub fn checked(self) -> Option<Frames> {
        let sound = match self {
            Frames::Fixed(bytes) => bytes > 0,
            Frames::Counted(counted) => {
                matches!(counted.width, 1 | 2 | 4 | 8)
                    && (1..=HEADER_MAX).contains(&counted.header)
                    && counted.at.saturating_add(counted.width) <= counted.header
            }
            Frames::Ended(_) => true,
        };
        sound.then_some(self)
    }

    /// Where the first message ends, of which `stream` shows what the cursor has not passed.
    pub fn frame(&self, stream: &[u8], cursor: &mut Cursor) -> Framing {
        let there = cursor.passed + stream.len();
        let len = match self {
            Frames::Fixed(bytes) => Some(u64::from(*bytes)),
            Frames::Counted(counted) => match counted.length(stream) {
                Ok(length) => length,
                Err(needs) => return Framing::More(needs),
            },
            Frames::Ended(by) => match stream.iter().position(|byte| byte == by) {
                Some(at) => Some((cursor.passed + at) as u64 + 1),
                None if there >= MESSAGE_MAX => None,
                None => {
                    cursor.passed = there;
                    return Framing::More(there + 1);
                }
            },
        };
        match len.and_then(|len| usize::try_from(len).ok()) {
            Some(len) if len > there => Framing::More(len),
            Some(len) => Framing::Whole(len),
            None => Framing::Foreign,
        }
    }
}

impl Counted {
    /// Bytes of the message; none if it says less than its header has. An error is how many bytes
    /// it takes to know.
    fn length(&self, stream: &[u8]) -> Result<Option<u64>, usize> {
        let header = usize::try_from(self.header).unwrap_or(usize::MAX);
        let at = usize::try_from(self.at).unwrap_or(usize::MAX);
        let number = stream.get(..header).ok_or(header)?.iter().skip(at);
        let number = number.take(usize::try_from(self.width).unwrap_or(0));
        let join = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        let number = match self.big_endian {
            true => number.fold(0, join),
            false => number.rev().fold(0, join),
        };
        let len = number.checked_add(u64::from(self.beyond));
        Ok(len.filter(|len| *len >= u64::from(self.header)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(big_endian: bool, beyond: u32) -> Frames {
        let counted = Counted { header: 8, at: 2, width: 2, big_endian, beyond };
        Frames::Counted(counted).checked().unwrap()
    }

    #[test]
    fn messages_end_where_they_say() {
        assert_eq!(Frames::Fixed(4).frame(b"abcde", &mut Cursor::default()), Framing::Whole(4));
        assert_eq!(Frames::Fixed(4).frame(b"abc", &mut Cursor::default()), Framing::More(4));
        let bytes = [0, 0, 10, 0, 0, 0, 0, 0, 1, 2, 3];
        assert_eq!(counted(false, 0).frame(&bytes, &mut Cursor::default()), Framing::Whole(10));
        assert_eq!(counted(false, 0).frame(&bytes[..9], &mut Cursor::default()), Framing::More(10));
        assert_eq!(counted(false, 0).frame(&bytes[..3], &mut Cursor::default()), Framing::More(8));
        assert_eq!(
            counted(true, 8).frame(&bytes, &mut Cursor::default()),
            Framing::More(10 * 256 + 8)
        );
        assert_eq!(
            counted(false, 0).frame(&[0; 8], &mut Cursor::default()),
            Framing::Foreign,
            "shorter than its header"
        );
        let all = Counted { header: 8, at: 0, width: 8, big_endian: true, beyond: 1 };
        assert_eq!(
            Frames::Counted(all).frame(&[0xFF; 8], &mut Cursor::default()),
            Framing::Foreign,
            "no such length"
        );
        assert_eq!(
            Frames::Ended(b'\n').frame(b"ab\ncd", &mut Cursor::default()),
            Framing::Whole(3)
        );
        assert_eq!(Frames::Ended(b'\n').frame(b"ab", &mut Cursor::default()), Framing::More(3));
        assert_eq!(
            Frames::Ended(b'\n').frame(&[b'a'; MESSAGE_MAX], &mut Cursor::default()),
            Framing::Foreign
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let counted = Counted { header: 8, at: 0, width: 4, big_endian: false, beyond: 0 };
        assert!(Frames::Counted(counted).checked().is_some());
        for bad in [
            Frames::Fixed(0),
            Frames::Counted(Counted { width: 3, ..counted }),
            Frames::Counted(Counted { at: 5, ..counted }),
            Frames::Counted(Counted { at: u32::MAX, ..counted }),
            Frames::Counted(Counted { header: 0, ..counted }),
            Frames::Counted(Counted { header: 257, ..counted }),
        ] {
            assert_eq!(bad.checked(), None, "{bad:?}");
        }
    }
}
