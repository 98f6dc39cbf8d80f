//! The raw pointer behind a region.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use outboard_base::limits::PAGE;

use super::OutOfRegion;

/// Shared memory: page-aligned, of a fixed length, alive as long as the value.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    /// Keeps the mapping; dropped with the region.
    _keep: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory stays mapped while `_keep` lives, and every access goes through raw copies or
// atomics that ask for no exclusive use.
unsafe impl Send for Region {}
// SAFETY: as above; shared references give out no references to the bytes but as atomics.
unsafe impl Sync for Region {}

/// Memory of this process alone, for tests and in-process links.
struct Anonymous {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: only a handle for freeing.
unsafe impl Send for Anonymous {}
// SAFETY: as above.
unsafe impl Sync for Anonymous {}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: allocated in `Region::anonymous` with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

macro_rules! word {
    ($at:ident, $load:ident, $store:ident, $swap:ident, $cas:ident, $add:ident,
     $word:ty, $atomic:ty) => {
        #[inline]
        fn $at(&self, at: u64) -> Result<&$atomic, OutOfRegion> {
            let start = self.check(at, size_of::<$word>())?;
            if !start.is_multiple_of(align_of::<$atomic>()) {
                return Err(OutOfRegion);
            }
            // SAFETY: in bounds by `check`, aligned because the base is page-aligned and the offset
            // was tested, and mapped while `self` lives. Other accesses to these bytes may race
            // with it; the type is atomic, and the other side is another process or uses this same
            // seam.
            Ok(unsafe { &*self.base.as_ptr().add(start).cast::<$atomic>() })
        }

        /// Reads a little-endian word.
        #[inline]
        pub fn $load(&self, at: u64, order: Ordering) -> Result<$word, OutOfRegion> {
            Ok(<$word>::from_le(self.$at(at)?.load(order)))
        }

        /// Writes a little-endian word.
        #[inline]
        pub fn $store(&self, at: u64, value: $word, order: Ordering) -> Result<(), OutOfRegion> {
            self.$at(at)?.store(value.to_le(), order);
            Ok(())
        }

        /// Replaces a word; the old one is returned.
        #[inline]
        pub fn $swap(&self, at: u64, value: $word, order: Ordering) -> Result<$word, OutOfRegion> {
            Ok(<$word>::from_le(self.$at(at)?.swap(value.to_le(), order)))
        }

        /// Writes `new` where `expected` stands; the word found is returned.
        #[inline]
        pub fn $cas(
            &self,
            at: u64,
            expected: $word,
            new: $word,
            order: Ordering,
        ) -> Result<$word, OutOfRegion> {
            let failure = match order {
                Ordering::SeqCst => Ordering::SeqCst,
                Ordering::AcqRel | Ordering::Acquire => Ordering::Acquire,
                _ => Ordering::Relaxed,
            };
            let word = self.$at(at)?;
            let found = word.compare_exchange(expected.to_le(), new.to_le(), order, failure);
            Ok(<$word>::from_le(found.unwrap_or_else(|found| found)))
        }

        /// Adds to a word, wrapping; the old one is returned.
        #[inline]
        pub fn $add(&self, at: u64, by: $word, order: Ordering) -> Result<$word, OutOfRegion> {
            let word = self.$at(at)?;
            if cfg!(target_endian = "little") {
                return Ok(word.fetch_add(by, order));
            }
            let step = |old: $word| Some(<$word>::from_le(old).wrapping_add(by).to_le());
            let old = word.fetch_update(order, Ordering::Relaxed, step).unwrap_or_else(|old| old);
            Ok(<$word>::from_le(old))
        }
    };
}

impl Region {
    /// A region over memory someone else mapped.
    ///
    /// # Safety
    /// `base` is page-aligned and `base..base + len` is readable and writable memory that stays
    /// mapped, backed and of this length until `keep` is dropped. No Rust reference to it exists.
    #[must_use]
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Region {
        debug_assert!(base.as_ptr().addr().is_multiple_of(PAGE));
        Region { base, len, _keep: keep }
    }

    /// Zeroed memory of this process, rounded up to whole pages; touched lazily.
    #[must_use]
    pub fn anonymous(len: u64) -> Arc<Region> {
        let len = usize::try_from(len).unwrap_or(usize::MAX).max(1).div_ceil(PAGE) * PAGE;
        let layout = Layout::from_size_align(len, PAGE)
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<u8>()));
        // SAFETY: the layout has a size above zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })
            .unwrap_or_else(|| handle_alloc_error(layout));
        let keep = Box::new(Anonymous { base, layout });
        // SAFETY: freshly allocated with page alignment, freed when `keep` drops.
        Arc::new(unsafe { Region::from_raw(base, len, keep) })
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn check(&self, at: u64, len: usize) -> Result<usize, OutOfRegion> {
        let start = usize::try_from(at).map_err(|_| OutOfRegion)?;
        let end = start.checked_add(len).ok_or(OutOfRegion)?;
        if end <= self.len { Ok(start) } else { Err(OutOfRegion) }
    }

    /// Copies bytes out, once. What is copied may be torn if the other side writes meanwhile.
    pub fn read_into(&self, at: u64, out: &mut [u8]) -> Result<(), OutOfRegion> {
        let start = self.check(at, out.len())?;
        // SAFETY: the source is in bounds and mapped; `out` is a Rust slice, which never lies in a
        // region, so they do not overlap. A racing writer can only change which bytes are copied.
        unsafe {
            self.base.as_ptr().add(start).copy_to_nonoverlapping(out.as_mut_ptr(), out.len());
        }
        Ok(())
    }

    /// Copies bytes in. No order is promised between them.
    #[inline]
    pub fn write_from(&self, at: u64, data: &[u8]) -> Result<(), OutOfRegion> {
        let start = self.check(at, data.len())?;
        // SAFETY: the target is in bounds, mapped and writable; `data` never lies in a region. The
        // other side copies what it reads and checks it, so a torn read there is its normal case.
        unsafe {
            self.base.as_ptr().add(start).copy_from_nonoverlapping(data.as_ptr(), data.len());
        }
        Ok(())
    }

    /// Copies bytes from one place to another, also where they overlap. Torn as any copy may be.
    pub fn copy(&self, from: u64, to: u64, len: usize) -> Result<(), OutOfRegion> {
        let (from, to) = (self.check(from, len)?, self.check(to, len)?);
        // SAFETY: both ranges are in bounds of one mapping that is readable and writable; an
        // overlap is what `copy_to` allows.
        unsafe { self.base.as_ptr().add(from).copy_to(self.base.as_ptr().add(to), len) };
        Ok(())
    }

    /// Copies an 8-byte-aligned entry of whole words in ascending order, the last word with
    /// release: who reads that word with acquire sees the others. How a card's small posted write
    /// becomes visible.
    pub fn publish(&self, at: u64, entry: &[u8]) -> Result<(), OutOfRegion> {
        let (words, odd) = entry.as_chunks::<8>();
        if !odd.is_empty() {
            return Err(OutOfRegion);
        }
        self.check(at, entry.len())?;
        let last = words.len().saturating_sub(1);
        for (i, word) in words.iter().enumerate() {
            let order = if i == last { Ordering::Release } else { Ordering::Relaxed };
            self.store_u64(at + 8 * i as u64, u64::from_le_bytes(*word), order)?;
        }
        Ok(())
    }

    /// Fills a range with zeroes.
    pub fn zero(&self, at: u64, len: usize) -> Result<(), OutOfRegion> {
        let start = self.check(at, len)?;
        // SAFETY: in bounds, mapped and writable.
        unsafe { self.base.as_ptr().add(start).write_bytes(0, len) };
        Ok(())
    }

    /// The address of a range in this process, for system calls that read or write it (`readv`,
    /// io_uring, futex). The caller keeps the region alive and makes no reference from it.
    pub fn pointer(&self, at: u64, len: usize) -> Result<*mut u8, OutOfRegion> {
        let start = self.check(at, len)?;
        // SAFETY: in bounds of one mapping.
        Ok(unsafe { self.base.as_ptr().add(start) })
    }

    /// A range as what it is, memory somebody else may write at any moment: for system calls that
    /// read or write it, by who must not outlive the region.
    pub fn bytes(&self, at: u64, len: usize) -> Result<&[AtomicU8], OutOfRegion> {
        let pointer = self.pointer(at, len)?;
        // SAFETY: in bounds of one mapping, which lives as long as the region that is borrowed; a
        // byte is always initialised, and an `AtomicU8` lets others change it.
        Ok(unsafe { std::slice::from_raw_parts(pointer.cast::<AtomicU8>(), len) })
    }

    word!(word_u32, load_u32, store_u32, swap_u32, cas_u32, add_u32, u32, AtomicU32);
    word!(word_u64, load_u64, store_u64, swap_u64, cas_u64, add_u64, u64, AtomicU64);
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_beyond_the_end_or_askew_is_touched() {
        let region = Region::anonymous(4096);
        let mut one = [0];
        for (at, len) in [(4096, 1), (4095, 2), (u64::MAX, 1), (u64::MAX - 1, 4), (0, 4097)] {
            assert!(region.read_into(at, &mut vec![0; len]).is_err());
            assert!(region.write_from(at, &vec![0; len]).is_err());
            assert!(region.zero(at, len).is_err());
            assert!(region.pointer(at, len).is_err());
            assert!(region.copy(at, 0, len).is_err() && region.copy(0, at, len).is_err());
        }
        assert!(region.read_into(4095, &mut one).is_ok());
        assert!(region.read_into(4096, &mut []).is_ok());
        for at in [1, 2, 4094, 4096, u64::MAX - 3] {
            assert!(region.load_u32(at, Ordering::Relaxed).is_err());
        }
        for at in [4, 4092, 4096] {
            assert!(region.load_u64(at, Ordering::Relaxed).is_err());
        }
        assert!(region.publish(4088, &[0; 16]).is_err());
        assert!(region.publish(0, &[0; 12]).is_err());
    }

    #[test]
    fn bytes_are_copied_within() {
        let region = Region::anonymous(4096);
        region.write_from(10, b"abcdef").unwrap();
        region.copy(10, 12, 6).unwrap();
        let mut out = [0; 8];
        region.read_into(10, &mut out).unwrap();
        assert_eq!(&out, b"ababcdef");
    }

    #[test]
    fn bytes_handed_out_are_those_of_the_range() {
        let region = Region::anonymous(4096);
        region.write_from(10, b"abc").unwrap();
        let bytes = region.bytes(10, 3).unwrap();
        bytes[1].store(b'B', Ordering::Relaxed);
        let mut out = [0; 3];
        region.read_into(10, &mut out).unwrap();
        assert_eq!(&out, b"aBc");
        assert!(region.bytes(4095, 2).is_err());
    }

    #[test]
    fn words_are_little_endian_and_atomic() {
        let region = Region::anonymous(1);
        region.write_from(8, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!(region.load_u32(8, Ordering::Acquire), Ok(0x0403_0201));
        assert_eq!(region.add_u64(8, 1, Ordering::AcqRel), Ok(0x0807_0605_0403_0201));
        assert_eq!(region.cas_u64(8, 0, 9, Ordering::AcqRel), Ok(0x0807_0605_0403_0202));
        assert_eq!(
            region.cas_u64(8, 0x0807_0605_0403_0202, 9, Ordering::SeqCst),
            region.load_u64(8, Ordering::Relaxed).map(|_| 0x0807_0605_0403_0202)
        );
        assert_eq!(region.swap_u32(8, 1, Ordering::AcqRel), Ok(9));
        region.publish(16, &[1; 16]).unwrap();
        assert_eq!(region.load_u64(24, Ordering::Acquire), Ok(0x0101_0101_0101_0101));
    }
}
