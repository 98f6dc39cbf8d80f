//! Split virtqueues (virtio 1.2, 2.7) carrying FUSE messages, as a virtio-fs device has them: the
//! rival of nvme-fs (DPC 2.3, Figure 2; row C4).
//!
//! ```text
//! descriptor, 16 bytes          avail ring (the driver's)      used ring (the device's)
//!  0 address  u64               0 flags u16                    0 flags u16
//!  8 length   u32               2 idx   u16  free-running      2 idx   u16  free-running
//! 12 flags    u16               4 ring[size] u16: heads        4 ring[size]: 8 bytes each
//! 14 next     u16                                                0 id u32   4 length u32
//! ```
//!
//! A request is a chain of descriptors: what the device reads, then what it writes. Its first bytes
//! are a FUSE in header, the first bytes written back a FUSE out header ([`message`]). Addresses
//! are offsets in the region the host registered, as in [`crate::nvmefs`].
//!
//! Everything here is what the other side wrote: [`Chain`] bounds its walk, so that a loop ends,
//! and lets nothing outside the region through.

mod chain;
mod descriptor;
pub mod message;

pub use chain::{CHAIN_MAX, Chain, InvalidChain};
pub use descriptor::{DESC_LEN, Descriptor, InvalidDescriptor, USED_LEN, Used};

/// Most descriptors of a queue.
pub const SIZE_MAX: u16 = 1 << 15;
/// Bytes of an entry of the avail ring.
pub const AVAIL_LEN: usize = 2;

const PAGE: u64 = 4096;
const LINE: u64 = 64;

/// Where the three parts of one virtqueue lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Virtqueue {
    at: u64,
    size: u16,
}

impl Virtqueue {
    /// A queue of `size` descriptors at `at`; `None` unless the size is a power of two of at most
    /// [`SIZE_MAX`] and the address begins a page.
    #[must_use]
    pub fn new(at: u64, size: u16) -> Option<Virtqueue> {
        let ok = size.is_power_of_two() && size <= SIZE_MAX && at.is_multiple_of(PAGE);
        ok.then_some(Virtqueue { at, size })
    }

    /// Descriptors; entries of each ring.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// A descriptor's address.
    #[must_use]
    pub fn descriptor_at(&self, index: u16) -> u64 {
        self.at + u64::from(index % self.size) * DESC_LEN as u64
    }

    /// The avail ring: flags and idx are one word here, idx in its upper half.
    #[must_use]
    pub fn avail_at(&self) -> u64 {
        self.at + u64::from(self.size) * DESC_LEN as u64
    }

    /// The avail ring's entry for a free-running index.
    #[must_use]
    pub fn avail_entry_at(&self, index: u16) -> u64 {
        self.avail_at() + 4 + u64::from(index % self.size) * AVAIL_LEN as u64
    }

    /// The used ring: flags and idx are one word here, idx in its upper half.
    #[must_use]
    pub fn used_at(&self) -> u64 {
        (self.avail_entry_at(self.size - 1) + AVAIL_LEN as u64).next_multiple_of(LINE)
    }

    /// The used ring's entry for a free-running index.
    #[must_use]
    pub fn used_entry_at(&self, index: u16) -> u64 {
        self.used_at() + 4 + u64::from(index % self.size) * USED_LEN as u64
    }

    /// The address behind the queue, in whole pages.
    #[must_use]
    pub fn end(&self) -> u64 {
        (self.used_entry_at(self.size - 1) + USED_LEN as u64).next_multiple_of(PAGE)
    }
}

/// The word of flags and idx at the head of a ring.
#[must_use]
pub fn ring_word(index: u16) -> u32 {
    u32::from(index) << 16
}

/// The idx in the word at the head of a ring; the flags, which this version leaves zero, are not
/// looked at.
#[must_use]
pub fn ring_index(word: u32) -> u16 {
    u16::try_from(word >> 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout is a contract with every virtio driver: this test is its golden copy.
    #[test]
    fn golden_places() {
        let queue = Virtqueue::new(0x10000, 512).unwrap();
        assert_eq!((queue.descriptor_at(0), queue.descriptor_at(511)), (0x10000, 0x11FF0));
        assert_eq!(queue.avail_at(), 0x12000);
        assert_eq!((queue.avail_entry_at(0), queue.avail_entry_at(511)), (0x12004, 0x12402));
        assert_eq!(queue.avail_entry_at(512), queue.avail_entry_at(0), "a ring");
        assert_eq!(queue.used_at(), 0x12440);
        assert_eq!((queue.used_entry_at(0), queue.used_entry_at(1)), (0x12444, 0x1244C));
        assert_eq!(queue.end(), 0x14000);
        assert_eq!(ring_word(0xABCD).to_le_bytes(), [0, 0, 0xCD, 0xAB], "flags, then idx");
        assert_eq!(ring_index(0xABCD_0001), 0xABCD);
        for (at, size) in [(0x10000, 0), (0x10000, 3), (0x10000, 65_535), (0x10010, 8)] {
            assert_eq!(Virtqueue::new(at, size), None);
        }
    }

    #[test]
    fn parts_lie_side_by_side_at_every_size() {
        for shift in 0..16 {
            let queue = Virtqueue::new(4096, 1 << shift).unwrap();
            let last = queue.size() - 1;
            assert_eq!(queue.descriptor_at(last) + 16, queue.avail_at());
            assert!(queue.avail_entry_at(last) + 2 <= queue.used_at());
            assert!(queue.avail_at().is_multiple_of(4) && queue.used_at().is_multiple_of(4));
            assert!(queue.used_entry_at(last) + 8 <= queue.end());
        }
    }
}
