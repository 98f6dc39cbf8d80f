//! The requests under way, by the kernel's number.

use std::sync::atomic::{AtomicU64, Ordering};

use outboard_volume::backend::OWN;

use crate::job::{Job, Shape};
use crate::table::Table;

/// Who asked for a request under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asker {
    pub(crate) pid: u32,
    pub(crate) waits_for_lock: bool,
}

/// Jobs by tag. A job is taken out by the one thread that answers it.
#[derive(Debug)]
pub(crate) struct Pending {
    jobs: Table<Job>,
    next_own: AtomicU64,
}

impl Default for Pending {
    fn default() -> Self {
        Pending { jobs: Table::default(), next_own: AtomicU64::new(OWN) }
    }
}

impl Pending {
    /// A tag for a request of our own.
    pub(crate) fn own_tag(&self) -> u64 {
        // Two apart: the table does not look at the lowest bit.
        self.next_own.fetch_add(2, Ordering::Relaxed)
    }

    pub(crate) fn insert(&self, tag: u64, job: Job) {
        self.jobs.shard(tag).insert(tag, job);
    }

    pub(crate) fn take(&self, tag: u64) -> Option<Job> {
        self.jobs.shard(tag).remove(&tag)
    }

    /// Whether nothing is under way but waits for locks, which end when others let go.
    pub(crate) fn is_quiet(&self) -> bool {
        self.jobs.shards().all(|shard| shard.values().all(|job| job.waits_for_lock))
    }

    /// Requests whose answers may tell the kernel of a file it does not know.
    pub(crate) fn telling(&self) -> Vec<u64> {
        let tells = |job: &Job| {
            matches!(
                job.shape,
                Shape::Lookup { .. }
                    | Shape::Entry { .. }
                    | Shape::Created { .. }
                    | Shape::Listing { .. }
            )
        };
        let mut tags = Vec::new();
        for shard in self.jobs.shards() {
            tags.extend(shard.iter().filter(|(_, job)| tells(job)).map(|(tag, _)| *tag));
        }
        tags
    }

    pub(crate) fn asker(&self, tag: u64) -> Option<Asker> {
        let shard = self.jobs.shard(tag);
        shard.get(&tag).map(|job| Asker { pid: job.pid, waits_for_lock: job.waits_for_lock })
    }
}
