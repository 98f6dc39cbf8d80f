//! Memory that the kernel fills and empties for us.

use std::cell::UnsafeCell;

use outboard_base::{Errno, Result, limits};

/// A place for one request's payload.
///
/// # Safety
/// [`Slot::payload_ptr`] is valid for reads and writes of [`Slot::payload_max`] bytes as long as
/// the slot lives, and no Rust reference to that memory exists meanwhile: another process may write
/// to it.
pub unsafe trait Slot: Send {
    /// Where the payload lies.
    fn payload_ptr(&self) -> *mut u8;
    /// Most payload bytes: [`limits::IO_MAX`] or more.
    fn payload_max(&self) -> usize;
    /// Copies bytes into the payload at `at`; `EINVAL` beyond its end.
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()>;
    /// Copies bytes of the payload at `at` out; `EINVAL` beyond its end.
    fn read(&self, at: usize, out: &mut [u8]) -> Result<()>;
}

// SAFETY: the pointer is into the region the session keeps mapped while slots live; dpc hands out
// no references into it.
unsafe impl Slot for outboard_dpc::host::Slot {
    fn payload_ptr(&self) -> *mut u8 {
        self.payload_ptr()
    }

    fn payload_max(&self) -> usize {
        self.payload_max()
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.write(at, bytes)
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        self.read(at, out)
    }
}

/// A slot in ordinary memory, for what answers in the same process.
#[derive(Debug)]
pub struct HeapSlot(Box<[UnsafeCell<u8>]>);

impl Default for HeapSlot {
    fn default() -> Self {
        let zeros = Box::into_raw(vec![0u8; limits::IO_MAX].into_boxed_slice());
        // SAFETY: an `UnsafeCell<u8>` has the layout of a `u8`, and the box is owned by nobody
        // else.
        HeapSlot(unsafe { Box::from_raw(zeros as *mut [UnsafeCell<u8>]) })
    }
}

impl HeapSlot {
    /// The payload, for the one who owns the slot.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let len = self.0.len();
        // SAFETY: the exclusive borrow of the slot is one of the cells it owns, `len` in a row.
        unsafe { std::slice::from_raw_parts_mut(self.payload_ptr(), len) }
    }

    fn payload(&self, at: usize, len: usize) -> Result<*mut u8> {
        match at.checked_add(len) {
            Some(end) if end <= self.0.len() => Ok(self.payload_ptr().wrapping_add(at)),
            _ => Err(Errno::EINVAL),
        }
    }
}

// SAFETY: the cells are owned by the slot, and references to them end with the borrow that
// `payload_mut` takes.
unsafe impl Slot for HeapSlot {
    fn payload_ptr(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.0.as_ptr())
    }

    fn payload_max(&self) -> usize {
        self.0.len()
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        let into = self.payload(at, bytes.len())?;
        // SAFETY: `payload` checked that the range lies in the slot, which is borrowed exclusively.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
        Ok(())
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let from = self.payload(at, out.len())?;
        // SAFETY: `payload` checked that the range lies in the slot; nobody writes to ordinary
        // memory while the slot is borrowed.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }
}
