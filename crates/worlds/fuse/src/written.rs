//! Files that a kernel which collects writes is writing: when their attributes are to be asked for.
//!
//! Such a kernel believes itself for size and times, and keeps what it was told of the space a file
//! takes: of a new file, none. It is told to ask again when a file is closed that was written, and
//! when one is synced that grew by much. Not at each `fsync`: that would be two requests more for
//! each commit of a database, whose log grows a little each time.

use std::collections::HashMap;
use std::sync::Mutex;

use outboard_base::Ino;

use crate::table::lock;

/// Growth, bytes, of which a file's space is told late: when it is closed.
const MUCH: u64 = 64 << 10;

/// What was written of files that are not closed yet.
#[derive(Debug, Default)]
pub(crate) struct Written(Mutex<HashMap<Ino, Extent>>);

#[derive(Debug, Default)]
struct Extent {
    /// The furthest end of a write.
    end: u64,
    /// What it was when the kernel was last told.
    told: Option<u64>,
}

impl Written {
    /// A write that ends at `end`.
    pub(crate) fn wrote(&self, ino: Ino, end: u64) {
        let mut all = lock(&self.0);
        let extent = all.entry(ino).or_default();
        extent.end = extent.end.max(end);
    }

    /// Whether it grew by much since the last time: an eighth, and [`MUCH`].
    pub(crate) fn synced(&self, ino: Ino) -> bool {
        let mut all = lock(&self.0);
        let Some(extent) = all.get_mut(&ino) else { return false };
        let much = |told: u64| extent.end > told.saturating_add(MUCH.max(told / 8));
        let grew = extent.told.is_none_or(much);
        if grew {
            extent.told = Some(extent.end);
        }
        grew
    }

    /// Whether anything was written.
    pub(crate) fn closed(&self, ino: Ino) -> bool {
        lock(&self.0).remove(&ino).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_growth_is_told_once_and_a_close_ends_it() {
        let (written, ino) = (Written::default(), Ino(7));
        assert!(!written.synced(ino) && !written.closed(ino));
        written.wrote(ino, 100);
        assert!(written.synced(ino) && !written.synced(ino));
        written.wrote(ino, 100 + MUCH);
        assert!(!written.synced(ino), "a little");
        written.wrote(ino, 100 + MUCH + 1);
        assert!(written.synced(ino) && !written.synced(ino));
        written.wrote(ino, 100 * MUCH);
        assert!(written.synced(ino));
        written.wrote(ino, 112 * MUCH);
        assert!(!written.synced(ino), "less than an eighth");
        assert!(written.closed(ino) && !written.closed(ino));
    }
}
