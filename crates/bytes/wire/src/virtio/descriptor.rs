//! Descriptors and used elements.

use crate::nvmefs::{put, u16_at, u32_at, u64_at};

/// Bytes of a descriptor.
pub const DESC_LEN: usize = 16;
/// Bytes of a used element.
pub const USED_LEN: usize = 8;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A flag that was not negotiated: an indirect table, or one virtio does not define.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDescriptor;

/// One buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Bus address: offset in the region.
    pub at: u64,
    /// Bytes.
    pub len: u32,
    /// The device writes it; else it reads it.
    pub writable: bool,
    /// The chain goes on here.
    pub next: Option<u16>,
}

impl Descriptor {
    /// Decodes; whether the place is any good is [`super::Chain`]'s to say.
    ///
    /// # Errors
    /// A flag beside NEXT and WRITE is set.
    pub fn parse(from: &[u8; DESC_LEN]) -> Result<Descriptor, InvalidDescriptor> {
        let flags = u16_at(from, 12);
        if flags & !(NEXT | WRITE) != 0 {
            return Err(InvalidDescriptor);
        }
        Ok(Descriptor {
            at: u64_at(from, 0),
            len: u32_at(from, 8),
            writable: flags & WRITE != 0,
            next: (flags & NEXT != 0).then(|| u16_at(from, 14)),
        })
    }

    /// Encodes.
    #[must_use]
    pub fn emit(&self) -> [u8; DESC_LEN] {
        let mut out = [0; DESC_LEN];
        let next = if self.next.is_some() { NEXT } else { 0 };
        let write = if self.writable { WRITE } else { 0 };
        put(&mut out, 0, &self.at.to_le_bytes());
        put(&mut out, 8, &self.len.to_le_bytes());
        put(&mut out, 12, &(next | write).to_le_bytes());
        put(&mut out, 14, &self.next.unwrap_or(0).to_le_bytes());
        out
    }
}

/// What the device gives back: a chain by its head, and how much it wrote there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// First descriptor of the chain.
    pub id: u32,
    /// Bytes written.
    pub len: u32,
}

impl Used {
    /// Decodes.
    #[must_use]
    pub fn parse(from: &[u8; USED_LEN]) -> Used {
        Used { id: u32_at(from, 0), len: u32_at(from, 4) }
    }

    /// Encodes.
    #[must_use]
    pub fn emit(&self) -> [u8; USED_LEN] {
        let mut out = [0; USED_LEN];
        put(&mut out, 0, &self.id.to_le_bytes());
        put(&mut out, 4, &self.len.to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let last = Descriptor { at: 0x1122_3344_5566, len: 0x2000, writable: true, next: None };
        assert_eq!(
            last.emit(),
            [0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0x20, 0, 0, 2, 0, 0, 0]
        );
        let first = Descriptor { writable: false, next: Some(0x0203), ..last };
        assert_eq!(first.emit()[12..], [1, 0, 3, 2]);
        assert_eq!(Used { id: 7, len: 24 }.emit(), [7, 0, 0, 0, 24, 0, 0, 0]);
    }

    #[test]
    fn flags_nobody_asked_for_are_refused() {
        let good = Descriptor { at: 4096, len: 1, writable: false, next: None }.emit();
        for bit in 2..16u16 {
            let mut bad = good;
            bad[12..14].copy_from_slice(&(1u16 << bit).to_le_bytes());
            assert_eq!(Descriptor::parse(&bad), Err(InvalidDescriptor), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(at: u64, len: u32, writable: bool, next: Option<u16>, id: u32) {
            let descriptor = Descriptor { at, len, writable, next };
            prop_assert_eq!(Descriptor::parse(&descriptor.emit()), Ok(descriptor));
            let used = Used { id, len };
            prop_assert_eq!(Used::parse(&used.emit()), used);
        }
    }
}
