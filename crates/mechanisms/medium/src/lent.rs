//! Buffers that go back to whoever lent them.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::Buf;

/// Keeps buffers for reuse.
pub trait Lender: Send + Sync {
    /// Takes a buffer back that nobody uses any more.
    fn take_back(&self, buf: Buf);
}

/// A buffer lent to whoever reads; dropped, it goes back. It costs no allocation of its own.
pub struct Lent {
    buf: Option<Buf>,
    len: usize,
    lender: Arc<dyn Lender>,
}

impl Lent {
    /// The first `len` bytes of `buf`, on loan from `lender`.
    #[must_use]
    pub fn new(buf: Buf, len: usize, lender: Arc<dyn Lender>) -> Lent {
        Lent { buf: Some(buf), len, lender }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes)", self.len)
    }
}

impl Deref for Lent {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buf.as_ref().and_then(|buf| buf.get(..self.len)).unwrap_or_default()
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buf.as_mut().and_then(|buf| buf.get_mut(..self.len)).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.lender.take_back(buf);
        }
    }
}
