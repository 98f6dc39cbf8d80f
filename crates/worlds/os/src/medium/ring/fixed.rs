//! Buffers registered with a ring: the kernel holds their pages, and is told a number.
//!
//! A place of the kernel's table is a buffer's as long as the buffer's memory is: a mark on the
//! memory ([`Mark`]) has the number, and gives it back when it ends. So no address is ever taken
//! for a registered one that is another buffer's by now. The kernel keeps the pages of a place that
//! was given back until it is used anew.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use io_uring::Submitter;
use outboard_medium::{Buf, Mark};

/// Places of a ring's table.
const PLACES: u16 = 512;
/// Bytes of all buffers at most: a quarter of what a pool of the offload engine has.
const BYTES: usize = 16 << 20;

/// Rings are told apart by number: a descriptor's may come again.
static RINGS: AtomicU64 = AtomicU64::new(0);

/// What is free again: places, and bytes.
type Free = Mutex<Vec<(u16, usize)>>;

/// The mark of a registered buffer.
struct Registered {
    ring: u64,
    place: u16,
    bytes: usize,
    free: Weak<Free>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(free) = self.free.upgrade() {
            free.lock().unwrap_or_else(PoisonError::into_inner).push((self.place, self.bytes));
        }
    }
}

fn registered(buf: &Buf) -> Option<&Registered> {
    buf.mark()?.downcast_ref()
}

/// Whether it is registered, with some ring.
pub(super) fn is_marked(buf: &Buf) -> bool {
    registered(buf).is_some()
}

/// The table of one ring.
pub(super) struct Registry {
    ring: u64,
    free: Arc<Free>,
    /// Places never used.
    next: u16,
    bytes: usize,
    /// The kernel has a table for this ring.
    is_begun: bool,
    /// It takes no more.
    is_refused: bool,
    /// Operations that named a place.
    pub(super) used: u64,
}

impl Registry {
    pub(super) fn new() -> Registry {
        Registry {
            ring: RINGS.fetch_add(1, Ordering::Relaxed),
            free: Arc::default(),
            next: 0,
            bytes: 0,
            is_begun: false,
            is_refused: false,
            used: 0,
        }
    }

    /// The place of a buffer that is registered here.
    pub(super) fn place_of(&mut self, buf: Option<&Buf>) -> Option<u16> {
        let place = registered(buf?).filter(|own| own.ring == self.ring)?.place;
        self.used += 1;
        Some(place)
    }

    /// Registers a buffer that is not yet, if there is room. Without that nothing is lost but time.
    pub(super) fn register(&mut self, ring: &Submitter<'_>, buf: &mut Buf) {
        let is_done = registered(buf).is_some_and(|own| own.ring == self.ring);
        if is_done || self.is_refused || buf.capacity() == 0 {
            return;
        }
        let Some(place) = self.take_place(buf.capacity()) else { return };
        let bytes = buf.capacity();
        let free = Arc::downgrade(&self.free);
        let mark: Mark = Arc::new(Registered { ring: self.ring, place, bytes, free });
        // The mark is first: a place whose buffer cannot have it is given back.
        if buf.set_mark(mark)
            && let Err(error) = self.tell(ring, place, buf)
        {
            self.is_refused = true;
            // It names nothing: plain operations from here on.
            let _unmarked = buf.set_mark(Arc::new(()));
            tracing::debug!(%error, registered = self.bytes, "no more buffers are registered");
        }
    }

    fn take_place(&mut self, bytes: usize) -> Option<u16> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((place, was)) = free.pop() {
            self.bytes = self.bytes.saturating_sub(was);
            if self.bytes + bytes > BYTES {
                free.push((place, 0));
                return None;
            }
            self.bytes += bytes;
            return Some(place);
        }
        if self.next >= PLACES || self.bytes + bytes > BYTES {
            return None;
        }
        self.bytes += bytes;
        self.next += 1;
        Some(self.next - 1)
    }

    fn tell(&mut self, ring: &Submitter<'_>, place: u16, buf: &mut Buf) -> io::Result<()> {
        if !self.is_begun {
            ring.register_buffers_sparse(PLACES.into())?;
            self.is_begun = true;
        }
        let base = buf.as_mut_ptr().cast();
        let all = libc::iovec { iov_base: base, iov_len: buf.capacity() };
        // SAFETY: the memory is the buffer's, from its start for all of its capacity, and does not
        // move. The kernel writes there only for operations that name the place, which are made for
        // buffers with the mark alone: and the mark ends with the memory, after the operation,
        // which holds the buffer.
        unsafe { ring.register_buffers_update(place.into(), &[all], None) }
    }
}
