//! A slot in ordinary memory.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use outboard_base::{Errno, Result, limits};
use outboard_volume::backend::Slot;

/// A slot in ordinary memory, for what answers in the same process.
#[derive(Debug)]
pub struct HeapSlot(Box<[AtomicU8]>);

impl Default for HeapSlot {
    fn default() -> Self {
        let zeros = Box::into_raw(vec![0u8; limits::IO_MAX].into_boxed_slice());
        // SAFETY: an `AtomicU8` has the layout of a `u8`, and the box is owned by nobody else.
        HeapSlot(unsafe { Box::from_raw(zeros as *mut [AtomicU8]) })
    }
}

impl HeapSlot {
    /// The payload, for the one who owns the slot.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let (bytes, len) = (self.0.as_mut_ptr(), self.0.len());
        // SAFETY: the exclusive borrow of the slot is one of the atomics it owns, `len` in a row,
        // which have the layout of bytes.
        unsafe { std::slice::from_raw_parts_mut(bytes.cast::<u8>(), len) }
    }
}

impl Slot for HeapSlot {
    fn payload(&self) -> &[AtomicU8] {
        &self.0
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        let end = at.checked_add(bytes.len()).ok_or(Errno::EINVAL)?;
        let into = self.payload_mut().get_mut(at..end).ok_or(Errno::EINVAL)?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let end = at.checked_add(out.len()).ok_or(Errno::EINVAL)?;
        let from = self.0.get(at..end).ok_or(Errno::EINVAL)?;
        out.iter_mut().zip(from).for_each(|(out, byte)| *out = byte.load(Relaxed));
        Ok(())
    }
}
