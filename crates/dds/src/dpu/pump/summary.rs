//! What the file service tells the cache table: cache-on-write and invalidate-on-read (section 6.1;
//! row D22), and what the host changes itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::Errno;

use crate::dpu::files::ReadOp;
use crate::dpu::offload::plugin::Keeper;
use crate::dpu::offload::{self, Application, WriteOp};
use crate::table::{Changes, Item, Key, Writer};

/// The writer of the cache table, and the application that says what belongs there. One for all
/// pumps of a host; nobody else writes the table.
pub struct Summary {
    shared: Arc<Shared>,
    /// The host is gone. Set while the writer is held.
    gone: AtomicBool,
}

struct Shared {
    keeper: Option<Arc<dyn Keeper>>,
    writer: Mutex<Writer>,
}

/// An application in this process.
struct Here(Arc<dyn Application>);

impl Keeper for Here {
    fn cache(&self, write: WriteOp<'_>, items: &mut Vec<(Key, Item)>) -> bool {
        self.0.cache(write, items);
        true
    }

    fn invalidate(&self, read: offload::ReadOp, keys: &mut Vec<Key>) -> bool {
        self.0.invalidate(read, keys);
        true
    }
}

impl Summary {
    /// Keeps the table as `application` says; without one only as the host says.
    #[must_use]
    pub fn new(application: Option<Arc<dyn Application>>, writer: Writer) -> Summary {
        let here = |application| Arc::new(Here(application)) as Arc<dyn Keeper>;
        Summary::kept(application.map(here), writer)
    }

    /// Keeps the table as `keeper` says.
    #[must_use]
    pub fn kept(keeper: Option<Arc<dyn Keeper>>, writer: Writer) -> Summary {
        let shared = Arc::new(Shared { keeper, writer: Mutex::new(writer) });
        Summary { shared, gone: AtomicBool::new(false) }
    }

    /// The same table, for another host.
    #[must_use]
    pub fn for_another(&self) -> Summary {
        Summary { shared: Arc::clone(&self.shared), gone: AtomicBool::new(false) }
    }

    /// `None` if the host is gone.
    fn writer(&self) -> Option<MutexGuard<'_, Writer>> {
        let writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        (!self.gone.load(Ordering::Relaxed)).then_some(writer)
    }

    /// The host has written, and is not answered yet.
    pub fn wrote(&self, file: u32, offset: u64, bytes: &[u8]) {
        let Some(keeper) = &self.shared.keeper else { return };
        let mut items = Vec::new();
        let op = WriteOp { file, offset, bytes };
        if !self.contained(|| keeper.cache(op, &mut items)) {
            return;
        }
        let Some(mut writer) = self.writer() else { return };
        for (key, item) in items {
            // One that finds no room is not there under an older value either: the host answers.
            let _full = writer.insert(key, item);
        }
    }

    /// The host is about to read.
    pub fn will_read(&self, op: ReadOp) {
        let Some(keeper) = &self.shared.keeper else { return };
        let mut keys = Vec::new();
        let ReadOp { file, offset, bytes } = op;
        let read = offload::ReadOp { file: file.0, offset, bytes };
        if self.contained(|| keeper.invalidate(read, &mut keys))
            && !keys.is_empty()
            && let Some(mut writer) = self.writer()
        {
            for key in keys {
                writer.remove(key);
            }
        }
    }

    /// The host changes the table itself; who looks after this finds what it said.
    ///
    /// # Errors
    /// `EINVAL`, if the bytes are no [`Changes`]; `EIO`, if the host is gone.
    pub fn change(&self, changes: &[u8]) -> Result<u64, Errno> {
        let changes = Changes::parse(changes).map_err(|_| Errno::EINVAL)?;
        let full = changes.apply(&mut *self.writer().ok_or(Errno::EIO)?);
        Ok(full as u64)
    }

    /// The host is gone: nobody tells the table any more what becomes wrong. What it had begun and
    /// ends later is not heard: by then another host may rely on what it told the table itself.
    pub fn leave(&self) {
        if let Some(mut writer) = self.writer() {
            self.gone.store(true, Ordering::Relaxed);
            writer.clear();
        }
    }

    /// Calls user code; if it panics, or could not say, the table may lack what it would have said,
    /// so that nothing of it is to be believed.
    fn contained(&self, call: impl FnOnce() -> bool) -> bool {
        let told = catch_unwind(AssertUnwindSafe(call));
        if told.is_err() {
            tracing::warn!(
                "the application panicked: the cache table is emptied, the host answers"
            );
        }
        let is_well = told.unwrap_or(false);
        if !is_well && let Some(mut writer) = self.writer() {
            writer.clear();
        }
        is_well
    }
}

#[cfg(test)]
mod tests {
    use outboard_wire::dds::FileId;

    use super::*;
    use crate::dpu::offload::{Answer, Division, Framing, Lookup};
    use crate::table::{Item, Key, Reader, with_capacity};

    /// Every 8 bytes of a file are an object, its number the key. Bytes of 0xFF make it panic.
    struct Words;

    impl Application for Words {
        fn frame(&self, _: &[u8]) -> Framing {
            Framing::Foreign
        }

        fn frame_answer(&self, _: &[u8]) -> Framing {
            Framing::Foreign
        }

        fn off_pred(&self, _: &[u8], _: &dyn Lookup, _: &mut Division) {}

        fn off_func(&self, _: &[u8], _: &dyn Lookup) -> Option<offload::ReadOp> {
            None
        }

        fn answer(&self, _: &[u8], _: offload::ReadOp, _: &[u8]) -> Option<Answer> {
            None
        }

        fn cache(&self, write: WriteOp<'_>, items: &mut Vec<(Key, Item)>) {
            for (bytes, at) in write.bytes.chunks(8).zip(write.offset / 8..) {
                items.push((at, [write.file.into(), at * 8, 8, bytes[0].into()]));
                assert_ne!(bytes[0], 0xFF, "the application's own mistake");
            }
        }

        fn invalidate(&self, read: offload::ReadOp, keys: &mut Vec<Key>) {
            keys.extend(read.offset / 8..(read.offset + u64::from(read.bytes)).div_ceil(8));
        }
    }

    fn summary(items: usize) -> (Summary, Reader) {
        let (writer, reader) = with_capacity(items, 1).unwrap();
        (Summary::new(Some(Arc::new(Words)), writer), reader)
    }

    #[test]
    fn writes_fill_the_table_and_reads_empty_it() {
        let (summary, table) = summary(4);
        summary.wrote(3, 16, &[7; 16]);
        assert_eq!((table.get(2), table.get(3)), (Some([3, 16, 8, 7]), Some([3, 24, 8, 7])));
        summary.wrote(3, 16, &[8; 8]);
        assert_eq!(table.get(2), Some([3, 16, 8, 8]), "the newer one");
        summary.will_read(ReadOp { file: FileId(3), offset: 20, bytes: 5 });
        assert_eq!((table.get(2), table.get(3)), (None, None), "both are touched");
        // Full: what finds no room is not there under an older value.
        summary.wrote(3, 0, &[1; 64]);
        summary.wrote(3, 0, &[2; 64]);
        assert!((0..8).filter_map(|key| table.get(key)).all(|[.., value]| value == 2));
        assert_eq!(table.len(), 4);
        summary.leave();
        assert!(table.is_empty());
    }

    /// A host died while its write was under way; the next had attached and emptied the table when
    /// the write ended. What it said of the file then was believed, and the next host, which had
    /// never told the table of the key, had no reason to take it back.
    #[test]
    fn a_write_that_ends_after_its_host_is_not_heard() {
        let (dead, table) = summary(4);
        let next = dead.for_another();
        let clear = Changes { clear: true, ..Changes::default() }.emit();
        dead.leave();
        assert_eq!(next.change(&clear), Ok(0));
        dead.wrote(3, 16, &[7; 16]);
        let items = vec![(5, [5; 4])];
        let said = Changes { items, ..Changes::default() }.emit();
        assert_eq!(dead.change(&said), Err(Errno::EIO));
        assert!(table.is_empty());
        next.wrote(3, 16, &[8; 8]);
        dead.will_read(ReadOp { file: FileId(3), offset: 16, bytes: 8 });
        dead.leave();
        assert_eq!(table.get(2), Some([3, 16, 8, 8]), "the next one's stays");
    }

    /// What it would have told is lost; so nothing that was told before is believed.
    #[test]
    fn a_panic_of_the_application_empties_the_table() {
        let (summary, table) = summary(4);
        summary.wrote(3, 0, &[1; 16]);
        assert_eq!(table.len(), 2);
        summary.wrote(3, 8, &[0xFF; 8]);
        assert!(table.is_empty());
        summary.wrote(3, 0, &[1; 8]);
        assert_eq!(table.len(), 1, "it goes on");
    }

    /// A plug-in that is away says nothing of a write or a read: what it said before may be wrong.
    #[test]
    fn who_cannot_say_empties_the_table() {
        struct Away(AtomicBool);
        impl Keeper for Away {
            fn cache(&self, write: WriteOp<'_>, items: &mut Vec<(Key, Item)>) -> bool {
                items.push((write.offset, [write.file.into(), 0, 0, 0]));
                !self.0.load(Ordering::Relaxed)
            }

            fn invalidate(&self, _: offload::ReadOp, _: &mut Vec<Key>) -> bool {
                !self.0.load(Ordering::Relaxed)
            }
        }
        let away = Arc::new(Away(AtomicBool::new(false)));
        let (writer, table) = with_capacity(4, 1).unwrap();
        let summary = Summary::kept(Some(Arc::clone(&away) as Arc<dyn Keeper>), writer);
        for of_a_write in [true, false] {
            away.0.store(false, Ordering::Relaxed);
            summary.wrote(3, 5, &[1]);
            summary.will_read(ReadOp { file: FileId(3), offset: 0, bytes: 1 });
            assert_eq!(table.get(5), Some([3, 0, 0, 0]));
            away.0.store(true, Ordering::Relaxed);
            if of_a_write {
                summary.wrote(3, 6, &[1]);
            } else {
                summary.will_read(ReadOp { file: FileId(3), offset: 0, bytes: 1 });
            }
            assert!(table.is_empty());
        }
    }
}
