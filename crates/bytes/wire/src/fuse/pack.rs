//! Fixed-size records, field after field.

/// Fills `N` bytes with fields in order. Its users know `N`, and their tests pin the bytes.
pub(super) struct Pack<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Pack<N> {
    pub(super) fn new() -> Self {
        Pack { bytes: [0; N], at: 0 }
    }

    pub(super) fn put(&mut self, field: &[u8]) -> &mut Self {
        let end = self.at + field.len();
        debug_assert!(end <= N, "a record of {N} bytes overflows");
        if let Some(place) = self.bytes.get_mut(self.at..end) {
            place.copy_from_slice(field);
        }
        self.at = end;
        self
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Leaves zeros.
    pub(super) fn skip(&mut self, len: usize) -> &mut Self {
        self.at += len;
        self
    }

    pub(super) fn finish(&self) -> [u8; N] {
        debug_assert_eq!(self.at, N, "a record is not filled");
        self.bytes
    }
}
