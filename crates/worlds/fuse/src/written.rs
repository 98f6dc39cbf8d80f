//! Files that a kernel which collects writes is writing: when their attributes are to be asked for.
//!
//! Such a kernel believes itself for size and times, and keeps what it was told of the space a file
//! takes: of a new file, none. It is told to ask again when a file is closed that was written, and
//! when one is synced that grew. Not at each `fsync`: that would be a request more for each commit
//! of a database.

use std::collections::HashMap;
use std::sync::Mutex;

use outboard_base::Ino;

use crate::table::lock;

/// What was written of files that are not closed yet.
#[derive(Debug, Default)]
pub(crate) struct Written(Mutex<HashMap<Ino, Extent>>);

#[derive(Debug, Default)]
struct Extent {
    /// The furthest end of a write.
    end: u64,
    /// It is further than at the last `fsync`.
    grew: bool,
}

impl Written {
    /// A write that ends at `end`.
    pub(crate) fn wrote(&self, ino: Ino, end: u64) {
        let mut all = lock(&self.0);
        let extent = all.entry(ino).or_default();
        if end > extent.end {
            *extent = Extent { end, grew: true };
        }
    }

    /// Whether it grew since the last time.
    pub(crate) fn synced(&self, ino: Ino) -> bool {
        lock(&self.0).get_mut(&ino).is_some_and(|extent| std::mem::take(&mut extent.grew))
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
    fn growth_is_told_once_and_a_close_ends_it() {
        let (written, ino) = (Written::default(), Ino(7));
        assert!(!written.synced(ino) && !written.closed(ino));
        written.wrote(ino, 100);
        assert!(written.synced(ino) && !written.synced(ino));
        written.wrote(ino, 100);
        assert!(!written.synced(ino), "in place");
        written.wrote(ino, 101);
        assert!(written.synced(ino) && written.closed(ino) && !written.closed(ino));
    }
}
