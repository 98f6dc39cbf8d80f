//! A buffer for each thread, aligned as O_DIRECT asks.

use std::cell::RefCell;

/// What every disk takes as the alignment of memory.
const ALIGNMENT: usize = 4096;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `body` with `len` aligned bytes of any content. Not to be nested.
pub(super) fn with<T>(len: usize, body: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len + ALIGNMENT {
            buffer.resize(len + ALIGNMENT, 0);
        }
        let at = buffer.as_ptr().align_offset(ALIGNMENT);
        body(buffer.get_mut(at..at + len).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_aligned() {
        for len in [1, 8192, 0, 1 << 20, 512] {
            with(len, |buffer| {
                assert_eq!(buffer.len(), len);
                assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT));
            });
        }
    }
}
