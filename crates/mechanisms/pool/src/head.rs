//! The bytes of the head object: whose volume this is, and who has it now.
//!
//! ```text
//! head | "OUTBPOOL" | format (4) | volume (8) | claim epoch (8) | beat (8) | place (8) |
//!      | held (1) | expiry, ms (4) | len (1) | instance | len (1) | name | crc32c (4) |
//!                                                                                 little-endian
//! ```

use outboard_codec::crc32c;

use super::claim::ClaimError;
use outboard_kv::Bytes;

/// The object it lies in.
pub(crate) const HEAD: &str = "head";
const MAGIC: &[u8; 8] = b"OUTBPOOL";
/// The format of everything in the pool.
pub(crate) const FORMAT: u32 = 1;
/// More than the longest head.
pub(crate) const HEAD_MAX: usize = 1024;
/// Longest name or instance, bytes.
const TEXT_MAX: usize = 255;

/// What the head says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The volume's number, drawn when it was made.
    pub(crate) volume: u64,
    /// Rises with every owner.
    pub(crate) claim_epoch: u64,
    /// Rises with every renewal.
    pub(crate) beat: u64,
    /// The owner's place.
    pub(crate) place: u64,
    /// Whether there is an owner now.
    pub(crate) held: bool,
    /// After how long without a beat the owner answers nothing more, milliseconds.
    pub(crate) expiry: u32,
    /// What the engine knows the owner by.
    pub(crate) instance: String,
    /// What to call the owner.
    pub(crate) name: String,
}

/// The longest start of `text` that fits.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ClaimError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(ClaimError::Corrupt)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], ClaimError> {
        self.take(N)?.try_into().map_err(|_| ClaimError::Corrupt)
    }

    fn text(&mut self) -> Result<String, ClaimError> {
        let [len] = self.number()?;
        String::from_utf8(self.take(len.into())?.to_vec()).map_err(|_| ClaimError::Corrupt)
    }
}

impl Head {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEAD_MAX);
        out.extend(MAGIC);
        out.extend(FORMAT.to_le_bytes());
        for number in [self.volume, self.claim_epoch, self.beat, self.place] {
            out.extend(number.to_le_bytes());
        }
        out.push(self.held.into());
        out.extend(self.expiry.to_le_bytes());
        for text in [&self.instance, &self.name] {
            let text = cut(text);
            out.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
            out.extend(text.bytes());
        }
        out.extend(crc32c(&out).to_le_bytes());
        out.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Head, ClaimError> {
        let mut reader = Reader(bytes);
        if reader.take(MAGIC.len()).ok() != Some(MAGIC) {
            return Err(ClaimError::Foreign);
        }
        let format = u32::from_le_bytes(reader.number()?);
        if format != FORMAT {
            return Err(ClaimError::Format(format));
        }
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(ClaimError::Corrupt)?;
        if crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(ClaimError::Corrupt);
        }
        let mut number = || reader.number().map(u64::from_le_bytes);
        let (volume, claim_epoch, beat, place) = (number()?, number()?, number()?, number()?);
        let [held] = reader.number()?;
        let expiry = u32::from_le_bytes(reader.number()?);
        let (instance, name) = (reader.text()?, reader.text()?);
        let held = match held {
            0 => false,
            1 => true,
            _ => return Err(ClaimError::Corrupt),
        };
        Ok(Head { volume, claim_epoch, beat, place, held, expiry, instance, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(numbers: [u64; 4], held: bool, instance: String, name: String) -> Head {
        let [volume, claim_epoch, beat, place] = numbers;
        Head { volume, claim_epoch, beat, place, held, expiry: 5, instance, name }
    }

    proptest! {
        #[test]
        fn it_comes_back(n: [u64; 4], held: bool, instance in ".{0,60}", name in ".{0,60}") {
            let head = head(n, held, instance, name);
            prop_assert_eq!(Head::decode(&head.encode()), Ok(head));
        }

        #[test]
        fn anything_else_is_refused(mut bytes: Vec<u8>, magic: bool, at: usize, bit in 0..8u8) {
            prop_assert!(Head::decode(&bytes).is_err());
            if magic {
                bytes.splice(..0, MAGIC.iter().copied().chain(FORMAT.to_le_bytes()));
                prop_assert!(Head::decode(&bytes).is_err());
            }
            let mut whole = head([1, 2, 3, 4], true, "i".into(), "n".into()).encode().to_vec();
            let at = at % whole.len();
            whole[at] ^= 1 << bit;
            prop_assert!(Head::decode(&whole).is_err());
        }
    }

    #[test]
    fn the_bytes_are_pinned() {
        let bytes = head([1, 2, 3, 4], true, "i".into(), "n".into()).encode();
        let expected = b"OUTBPOOL\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\
            \x04\0\0\0\0\0\0\0\x01\x05\0\0\0\x01i\x01n";
        assert_eq!(bytes[..bytes.len() - 4], expected[..]);
        let long = head([0; 4], false, "ä".repeat(200), String::new());
        let cut = Head::decode(&long.encode()).unwrap();
        assert_eq!(cut.instance, "ä".repeat(127));
    }
}
