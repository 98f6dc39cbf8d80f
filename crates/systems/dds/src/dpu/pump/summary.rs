//! What the file service tells the cache table: cache-on-write and invalidate-on-read (section 6.1;
//! row D22), and what the host changes itself.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::Errno;

use crate::dpu::files::ReadOp;
use crate::dpu::offload;
use crate::dpu::offload::health::Health;
use crate::dpu::offload::plugin::{Maintainer, Written};
use crate::table::{Changes, Writer};

/// The writer of the cache table, and who says what belongs there. One for all pumps of a host;
/// nobody else writes the table.
pub struct Summary {
    shared: Arc<Shared>,
    /// The host is gone. Set while the writer is held.
    gone: AtomicBool,
}

struct Shared {
    maintainer: Option<Arc<dyn Maintainer>>,
    health: Arc<Health>,
    /// Emptied since so many calls of the application were lost. Set while the writer is held.
    forgot: AtomicU32,
    writer: Mutex<Writer>,
}

impl Summary {
    /// Keeps the table as `maintainer` says, until it is off; without one only as the host says.
    #[must_use]
    pub fn new(
        maintainer: Option<Arc<dyn Maintainer>>,
        health: Arc<Health>,
        writer: Writer,
    ) -> Summary {
        let (forgot, writer) = (AtomicU32::new(0), Mutex::new(writer));
        let shared = Arc::new(Shared { maintainer, health, forgot, writer });
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

    /// Who is to be asked, and after how many losses. When a call is lost, the table is emptied:
    /// what is done from then on nobody is told, until the application is asked again.
    fn maintainer(&self) -> Option<(&dyn Maintainer, u32)> {
        let Shared { maintainer, health, forgot, .. } = &*self.shared;
        let maintainer = maintainer.as_deref()?;
        let losses = health.losses();
        if losses != forgot.load(Ordering::Relaxed) {
            self.forget();
        }
        (!health.is_off()).then_some((maintainer, losses))
    }

    /// Empties the table, since something of it may be wrong, and only the application knows what:
    /// an item may name any place. Of one that is off that is done once.
    fn forget(&self) {
        let Shared { health, forgot, .. } = &*self.shared;
        let (is_off, losses) = (health.is_off(), health.losses());
        if let Some(mut writer) = self.writer()
            && !(forgot.swap(losses, Ordering::Relaxed) == losses && is_off)
        {
            writer.clear();
        }
    }

    /// The host has written, and is not answered before this ends.
    pub async fn wrote(&self, written: Written) {
        let Some((maintainer, losses)) = self.maintainer() else { return };
        let said = maintainer.cache(written).await;
        let Some(items) = said else { return self.forget() };
        let Some(mut writer) = self.writer() else { return };
        if self.shared.health.losses() != losses {
            // It may be on again, but what was written meanwhile it was not told.
            drop(writer);
            return self.forget();
        }
        for (key, item) in items {
            // One that finds no room is not there under an older value either: the host answers.
            let _full = writer.insert(key, item);
        }
    }

    /// The host is about to read, when this has ended.
    pub async fn will_read(&self, op: ReadOp) {
        let Some((maintainer, _)) = self.maintainer() else { return };
        let ReadOp { file, offset, bytes } = op;
        let read = offload::ReadOp { file: file.0, offset, bytes };
        let Some(keys) = maintainer.invalidate(read).await else { return self.forget() };
        if !keys.is_empty()
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
}

#[cfg(test)]
mod tests {
    use outboard_base::task::poll_once;
    use std::future::ready;

    use outboard_medium::Buf;
    use outboard_wire::dds::FileId;

    use super::*;
    use crate::dpu::offload::health::{Call, Lost};
    use crate::dpu::offload::plugin::Saying;
    use crate::table::{Item, Key, Reader, with_capacity};
    use outboard_base::Time;

    /// Every 8 bytes of a file are an object, its number the key. Of bytes of 0xFF it cannot say.
    struct Words;

    impl Maintainer for Words {
        fn cache(&self, written: Written) -> Saying<Vec<(Key, Item)>> {
            let write = written.op();
            let objects = write.bytes.chunks(8).zip(write.offset / 8..);
            let item = |(bytes, at): (&[u8], u64)| {
                (bytes[0] != 0xFF).then(|| (at, [write.file.into(), at * 8, 8, bytes[0].into()]))
            };
            Box::pin(ready(objects.map(item).collect()))
        }

        fn invalidate(&self, read: offload::ReadOp) -> Saying<Vec<Key>> {
            let end = (read.offset + u64::from(read.bytes)).div_ceil(8);
            let keys = (read.offset / 8..end).collect();
            Box::pin(ready((read.file != 0xFF).then_some(keys)))
        }
    }

    fn now<T>(work: impl Future<Output = T>) -> T {
        let work = poll_once(std::pin::pin!(work));
        let std::task::Poll::Ready(done) = work else { panic!("it waits for nobody") };
        done
    }

    impl Summary {
        fn has_written(&self, file: u32, offset: u64, bytes: &[u8]) {
            let mut batch = Buf::zeroed(bytes.len());
            batch[..bytes.len()].copy_from_slice(bytes);
            let range = 0..bytes.len();
            now(self.wrote(Written { file, offset, batch: Arc::new(batch), range }));
        }

        fn reads(&self, file: u32, offset: u64, bytes: u32) {
            now(self.will_read(ReadOp { file: FileId(file), offset, bytes }));
        }
    }

    fn summary(items: usize) -> (Summary, Reader) {
        let (writer, reader) = with_capacity(items, 1).unwrap();
        (Summary::new(Some(Arc::new(Words)), Arc::default(), writer), reader)
    }

    #[test]
    fn writes_fill_the_table_and_reads_empty_it() {
        let (summary, table) = summary(4);
        summary.has_written(3, 16, &[7; 16]);
        assert_eq!((table.get(2), table.get(3)), (Some([3, 16, 8, 7]), Some([3, 24, 8, 7])));
        summary.has_written(3, 16, &[8; 8]);
        assert_eq!(table.get(2), Some([3, 16, 8, 8]), "the newer one");
        summary.reads(3, 20, 5);
        assert_eq!((table.get(2), table.get(3)), (None, None), "both are touched");
        // Full: what finds no room is not there under an older value.
        summary.has_written(3, 0, &[1; 64]);
        summary.has_written(3, 0, &[2; 64]);
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
        dead.has_written(3, 16, &[7; 16]);
        let items = vec![(5, [5; 4])];
        let said = Changes { items, ..Changes::default() }.emit();
        assert_eq!(dead.change(&said), Err(Errno::EIO));
        assert!(table.is_empty());
        next.has_written(3, 16, &[8; 8]);
        dead.reads(3, 16, 8);
        dead.leave();
        assert_eq!(table.get(2), Some([3, 16, 8, 8]), "the next one's stays");
    }

    /// What it would have told is lost; so nothing that was told before is believed.
    #[test]
    fn who_cannot_say_empties_the_table() {
        let (summary, table) = summary(4);
        for of_a_write in [true, false] {
            summary.has_written(3, 0, &[1; 16]);
            assert_eq!(table.len(), 2);
            if of_a_write {
                summary.has_written(3, 8, &[0xFF; 8]);
            } else {
                summary.reads(0xFF, 0, 1);
            }
            assert!(table.is_empty());
        }
        summary.has_written(3, 0, &[1; 8]);
        assert_eq!(table.len(), 1, "it goes on");
    }

    /// It is not told any more what becomes wrong: so there is nothing, before anything does. What
    /// the host says itself, it takes back itself.
    #[test]
    fn the_table_of_an_application_that_is_off_is_empty() {
        let (summary, table) = summary(4);
        summary.has_written(3, 0, &[1; 16]);
        summary.shared.health.lose(Lost { call: Call::OffPred, thread: 1 }, Time(1));
        assert_eq!(table.len(), 2);
        summary.reads(3, 0, 1);
        assert!(table.is_empty());
        summary.has_written(3, 0, &[1; 16]);
        assert!(table.is_empty());
        let said = Changes { items: vec![(5, [5; 4])], ..Changes::default() }.emit();
        assert_eq!(summary.change(&said), Ok(0));
        summary.reads(3, 0, 1);
        assert_eq!(table.get(5), Some([5; 4]));
    }

    /// Loses a call, and gets it back, while it is asked.
    struct Interrupted(Arc<Health>);

    impl Maintainer for Interrupted {
        fn cache(&self, written: Written) -> Saying<Vec<(Key, Item)>> {
            self.0.lose(Lost { call: Call::OffPred, thread: 1 }, Time(1));
            self.0.came_back(1, Time(1));
            Words.cache(written)
        }

        fn invalidate(&self, read: offload::ReadOp) -> Saying<Vec<Key>> {
            Words.invalidate(read)
        }
    }

    /// The application may be on again when a write ends that it was asked about before it was off;
    /// of later ones, which it was not told, that knows nothing.
    #[test]
    fn what_was_asked_before_a_call_was_lost_is_not_believed_after() {
        let (writer, table) = with_capacity(4, 1).unwrap();
        let health = Arc::new(Health::default());
        let maintainer = Arc::new(Interrupted(Arc::clone(&health)));
        let summary = Summary::new(Some(maintainer), Arc::clone(&health), writer);
        summary.has_written(3, 16, &[7; 16]);
        assert!(table.is_empty() && !health.is_off());
    }
}
