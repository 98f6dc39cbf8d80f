//! Syncing files without waiting for it.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use super::journal::Taken;

#[derive(Default)]
struct Outcome {
    result: Option<io::Result<()>>,
    waker: Option<Waker>,
}

/// The same at once, before there are clients.
pub(super) fn sync(file: &File) -> io::Result<()> {
    #[cfg(test)]
    model::note(file);
    file.sync_data()
}

/// Makes what was written to `files` survive power loss: on a thread of its own, as it takes
/// milliseconds in which clients want to be served.
pub(super) async fn synced(files: Vec<Taken>) -> io::Result<()> {
    #[cfg(test)]
    if model::is_on() {
        model::dawdle().await;
        return files.iter().try_for_each(|file| {
            file.with(|file| {
                model::note(file);
                Ok(())
            })
        });
    }
    let outcome = Arc::new(Mutex::new(Outcome::default()));
    let there = Arc::clone(&outcome);
    std::thread::Builder::new().name("kv-sync".to_owned()).spawn(move || {
        let result = files.iter().try_for_each(|file| file.with(File::sync_data));
        let mut outcome = there.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.result = Some(result);
        if let Some(waker) = outcome.waker.take() {
            waker.wake();
        }
    })?;
    poll_fn(|cx| {
        let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.waker = Some(cx.waker().clone());
        outcome.result.take().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// What was synced on this thread, for tests that fail its power.
#[cfg(test)]
pub(super) mod model {
    use std::cell::{Cell, RefCell};
    use std::collections::{BTreeMap, HashMap};
    use std::fs::File;
    use std::future::poll_fn;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};
    use std::task::Poll;

    #[derive(Default)]
    struct Synced {
        /// Bytes of each file, by its number.
        lens: HashMap<u64, u64>,
        /// The files of the directory.
        names: BTreeMap<String, u64>,
    }

    thread_local! {
        static SYNCED: RefCell<Option<Synced>> = const { RefCell::new(None) };
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }

    /// From now on syncs of this thread are modelled.
    pub(in crate::kv) fn start() {
        SYNCED.set(Some(Synced::default()));
    }

    pub(super) fn is_on() -> bool {
        SYNCED.with_borrow(Option::is_some)
    }

    /// For some passes, sometimes many.
    pub(super) async fn dawdle() {
        let mut passes = NEXT.get() * 7 % 13;
        NEXT.set(NEXT.get() + 1);
        poll_fn(|_| {
            passes = passes.saturating_sub(1);
            if passes > 0 { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Journals by their names, with their numbers.
    fn journals(dir: &Path) -> BTreeMap<String, u64> {
        let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
        let named = entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().ino()));
        let named = named.map(|(name, number)| (name.into_string().unwrap(), number));
        named.filter(|(name, _)| name.starts_with("journal.")).collect()
    }

    /// Where files stay that have no name any more.
    fn attic(dir: &Path) -> PathBuf {
        let attic = dir.with_extension("attic");
        std::fs::create_dir_all(&attic).unwrap();
        attic
    }

    pub(super) fn note(file: &File) {
        SYNCED.with_borrow_mut(|synced| {
            let Some(synced) = synced else { return };
            let meta = file.metadata().unwrap();
            if meta.is_file() {
                synced.lens.insert(meta.ino(), meta.len());
                return;
            }
            let dir = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
            synced.names = journals(&dir);
            for (name, number) in &synced.names {
                let kept = attic(&dir).join(number.to_string());
                if !kept.exists() {
                    std::fs::hard_link(dir.join(name), kept).unwrap();
                }
            }
        });
    }

    /// Bytes of a file that certainly are there.
    pub(in crate::kv) fn kept(file: &File) -> u64 {
        let meta = file.metadata().unwrap();
        let len = SYNCED.with_borrow(|synced| synced.as_ref()?.lens.get(&meta.ino()).copied());
        len.unwrap_or(0).min(meta.len())
    }

    /// What is there is there for good.
    pub(in crate::kv) fn settle(dir: &Path) {
        for name in journals(dir).keys() {
            note(&File::open(dir.join(name)).unwrap());
        }
        note(&File::open(dir).unwrap());
    }

    /// The directory is as it was when it was synced.
    pub(in crate::kv) fn restore_names(dir: &Path) {
        SYNCED.with_borrow(|synced| {
            for name in journals(dir).keys() {
                std::fs::remove_file(dir.join(name)).unwrap();
            }
            for (name, number) in &synced.as_ref().unwrap().names {
                std::fs::hard_link(attic(dir).join(number.to_string()), dir.join(name)).unwrap();
            }
        });
    }
}
