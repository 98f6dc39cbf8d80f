//! Which descriptor numbers are the volume's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::lock::Lock;
use crate::table::Description;

/// Numbers that can be the volume's; a file opened beyond them is refused with `EMFILE`.
pub(crate) const SLOTS: usize = 4096;

static ALL: [Lock<Option<Arc<Description>>>; SLOTS] = [const { Lock::new(None) }; SLOTS];
static USED: AtomicUsize = AtomicUsize::new(0);

fn slot(fd: i32) -> Option<&'static Lock<Option<Arc<Description>>>> {
    usize::try_from(fd).ok().and_then(|fd| ALL.get(fd))
}

/// What is open at `fd`, if it is the volume's.
pub(crate) fn get(fd: i32) -> Option<Arc<Description>> {
    if USED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    slot(fd)?.with(|slot| slot.clone())
}

/// Puts something at `fd`, and gives back what was there. False if there is no such place.
pub(crate) fn put(fd: i32, new: Option<Arc<Description>>) -> Option<Arc<Description>> {
    let slot = slot(fd)?;
    let adds = usize::from(new.is_some());
    USED.fetch_add(adds, Ordering::Relaxed);
    let old = slot.with(|slot| std::mem::replace(slot, new));
    USED.fetch_sub(usize::from(old.is_some()), Ordering::Relaxed);
    old
}

/// Does something at `fd` if `description` is what is open there. Whoever closes that waits, so the
/// number stays what it is meanwhile. `act` must not look for slots.
pub(crate) fn while_at(fd: i32, description: &Arc<Description>, act: impl FnOnce()) {
    let Some(slot) = slot(fd) else { return };
    slot.with(|slot| {
        if slot.as_ref().is_some_and(|at| Arc::ptr_eq(at, description)) {
            act();
        }
    });
}

/// Whether a descriptor number can be the volume's.
pub(crate) fn fits(fd: i32) -> bool {
    slot(fd).is_some()
}

/// Every number that is the volume's, and what is open there.
pub(crate) fn all() -> Vec<(i32, Arc<Description>)> {
    if USED.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    let found = (0..).zip(&ALL).filter_map(|(fd, slot)| Some((fd, slot.with(|s| s.clone())?)));
    found.collect()
}

/// Frees every lock here.
///
/// # Safety
/// This thread is alone in its process.
pub(crate) unsafe fn free() {
    for slot in &ALL {
        // SAFETY: as the caller promises.
        unsafe { slot.free() };
        slot.with(|slot| {
            if let Some(description) = slot {
                // SAFETY: as the caller promises.
                unsafe {
                    description.open.free();
                    description.place_lock.free();
                }
            }
        });
    }
}
