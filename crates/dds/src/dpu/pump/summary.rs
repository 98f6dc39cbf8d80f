//! What the file service tells the cache table: cache-on-write and invalidate-on-read (section 6.1;
//! row D22), and what the host changes itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::Errno;

use crate::dpu::files::ReadOp;
use crate::dpu::offload::{self, Application, WriteOp};
use crate::table::{Changes, Writer};

/// The writer of the cache table, and the application that says what belongs there. One for all
/// pumps of a DPU side; nobody else writes the table.
pub struct Summary {
    application: Option<Arc<dyn Application>>,
    writer: Mutex<Writer>,
}

impl Summary {
    /// Keeps the table as `application` says; without one only as the host says.
    #[must_use]
    pub fn new(application: Option<Arc<dyn Application>>, writer: Writer) -> Summary {
        Summary { application, writer: Mutex::new(writer) }
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host has written, and is not answered yet.
    pub fn wrote(&self, file: u32, offset: u64, bytes: &[u8]) {
        let Some(application) = &self.application else { return };
        let mut items = Vec::new();
        let op = WriteOp { file, offset, bytes };
        if !self.contained(|| application.cache(op, &mut items)) {
            return;
        }
        let mut writer = self.writer();
        for (key, item) in items {
            // One that finds no room is not there under an older value either: the host answers.
            let _full = writer.insert(key, item);
        }
    }

    /// The host is about to read.
    pub fn will_read(&self, op: ReadOp) {
        let Some(application) = &self.application else { return };
        let mut keys = Vec::new();
        let ReadOp { file, offset, bytes } = op;
        let read = offload::ReadOp { file: file.0, offset, bytes };
        if self.contained(|| application.invalidate(read, &mut keys)) && !keys.is_empty() {
            let mut writer = self.writer();
            for key in keys {
                writer.remove(key);
            }
        }
    }

    /// The host changes the table itself; who looks after this finds what it said.
    ///
    /// # Errors
    /// `EINVAL`, if the bytes are no [`Changes`].
    pub fn change(&self, changes: &[u8]) -> Result<u64, Errno> {
        let changes = Changes::parse(changes).map_err(|_| Errno::EINVAL)?;
        let full = changes.apply(&mut self.writer());
        Ok(full as u64)
    }

    /// The host is gone: nobody tells the table any more what becomes wrong.
    pub fn forget(&self) {
        self.writer().clear();
    }

    /// Calls user code; if it panics the table may lack what it would have said, so that nothing of
    /// it is to be believed.
    fn contained(&self, call: impl FnOnce()) -> bool {
        let is_well = catch_unwind(AssertUnwindSafe(call)).is_ok();
        if !is_well {
            tracing::warn!(
                "the application panicked: the cache table is emptied, the host answers"
            );
            self.forget();
        }
        is_well
    }
}
