//! The client of shared volumes, as a volume (NetDFS II; DPC 2.1, 4.3): metadata by calls of the
//! server, data straight to the nodes.
//!
//! [`Dfs`] is what a DPU side serves: file operations are the server's, whose request they are
//! unchanged, but for those about a file's bytes. These are done here, under a delegation of the
//! file. [`Data`] is the path to the nodes alone, which a server uses for standard clients, too.
//!
//! # Invariants
//!
//! 1. Bytes are used only under a delegation, a delegation only under the lease, the lease only in
//!    one life of the server.
//! 2. A delegation is given back when no use of it is under way, no host has pages that it must
//!    not have then, and the server was told what changed; or it is lost, and then nothing that
//!    was done under it is done again without looking.
//! 3. No version of a strip is given to two writes (`versions`).
//!
//! # Order of waiting
//!
//! A delegation (of two files: the lower number first), then the range lock of a file here, then
//! the lock to tell of it, then a strip. Whoever waits for a delegation holds none of the others;
//! a recall waits for uses, never for who wants to begin one.
//!
//! The page is `docs/internals/dfs.md`.

#![forbid(unsafe_code)]

mod bytes;
mod data;
mod delegate;
mod forward;
mod handles;
mod lease;
mod places;
mod port;
mod replays;
mod server;
mod size;
mod table;
mod tell;
mod tending;
mod unsynced;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outboard_base::task::{RangeLocks, WaitList, Work};
use outboard_base::{Errno, Ino, Result, SessionId};
use outboard_flow::Net;
use outboard_volume::VolumeEvent;
use outboard_wire::file::Statfs;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Event, Reply};

pub use data::{Data, DataError, member_end, strip_len};
pub use tending::Tending;

use handles::Handles;
use lease::Lease;
use replays::Replays;
use table::Table;

/// How a client works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It reads and writes the nodes itself.
    Direct,
    /// Every operation is the server's.
    Standard,
}

/// Of what a client is one.
#[derive(Clone, Copy, Debug)]
pub struct DfsOptions {
    /// The metadata server.
    pub server: Peer,
    /// Its own number: the same in each of its lives, of which there is one at a time.
    pub client: u64,
    /// Names this life of it: at random.
    pub nonce: u64,
    /// The volume's number, in capabilities.
    pub volume: u32,
    /// How it works.
    pub mode: Mode,
}

/// What a client does without, so that what it gains by it can be measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// Where a file's bytes lie, and the capability, are not kept: asked for before each use.
    pub view: bool,
    /// A delegation is not kept: given back after each use.
    pub delegations: bool,
    /// Nodes do not compute parities: the client does, and brings each its unit.
    pub streams: bool,
}

/// How long a change is kept before it is told unasked.
const TELL_AFTER: Duration = Duration::from_millis(500);
/// How long a delegation that nobody uses is kept, and how many are given back in one go.
const IDLE: Duration = Duration::from_secs(30);
const IDLE_AT_ONCE: usize = 1024;
/// How long before its end a lease is good for nothing new: until the next beat it may be over.
const AHEAD: Duration = Duration::from_secs(1);
/// Beats under way at a time.
const BEATS: usize = 4;
/// How long a first renewal is tried.
const CONNECT: Duration = Duration::from_secs(10);

struct Inner<N> {
    options: DfsOptions,
    without: Without,
    data: Data<N>,
    lease: Lease,
    table: Table,
    handles: Handles,
    replays: Replays,
    /// Bytes of files, between the operations here.
    ranges: RangeLocks,
    /// What is told of a file, one after the other.
    telling: RangeLocks,
    /// Recalls of a file, one after the other.
    recalls: RangeLocks,
    events: Mutex<Vec<VolumeEvent>>,
    /// Files of which somebody tells unasked.
    tellers: Mutex<BTreeSet<Ino>>,
    /// Beats under way.
    beats: AtomicUsize,
    /// Calls that nobody waits for, in their order, and whether somebody makes them.
    errands: Mutex<Vec<Call>>,
    running: AtomicBool,
    /// It is being asked where nodes are that do not answer.
    seeks: AtomicBool,
    /// The server knows that this life has begun.
    begun: AtomicBool,
    /// Sessions of which the server has not heard yet that they are back; their requests wait.
    returning: Mutex<BTreeMap<SessionId, usize>>,
    returned: WaitList,
    /// Files were told to be given up since the lease was last good.
    froze: AtomicBool,
    statfs: Mutex<Option<Statfs>>,
}

/// A client of a shared volume.
pub struct Dfs<N>(Arc<Inner<N>>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<N: Net> Dfs<N> {
    /// A client that has asked nobody yet: [`Dfs::connect`] comes first.
    pub fn new(net: N, options: DfsOptions) -> Dfs<N> {
        Dfs::new_without(net, options, Without::default())
    }

    /// The same, for measuring.
    pub fn new_without(net: N, options: DfsOptions, without: Without) -> Dfs<N> {
        Dfs(Arc::new(Inner {
            options,
            without,
            data: if without.streams { Data::without_streams(net) } else { Data::new(net) },
            lease: Lease::default(),
            table: Table::default(),
            handles: Handles::default(),
            replays: Replays::default(),
            ranges: RangeLocks::default(),
            telling: RangeLocks::default(),
            recalls: RangeLocks::default(),
            events: Mutex::default(),
            tellers: Mutex::default(),
            beats: AtomicUsize::new(0),
            errands: Mutex::default(),
            running: AtomicBool::new(false),
            seeks: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            returning: Mutex::default(),
            returned: WaitList::default(),
            froze: AtomicBool::new(false),
            statfs: Mutex::default(),
        }))
    }

    /// The first renewal: the lease begins, and the server's life is known.
    ///
    /// # Errors
    /// `EPERM` if the server does not speak with us, `ETIMEDOUT` if it does not answer, what it
    /// says otherwise.
    pub async fn connect(&self) -> Result<()> {
        self.0.connect().await
    }

    /// One renewal. The owner calls it every second, each time on its own: one may wait for long.
    pub async fn beat(&self) {
        self.0.freeze_ahead();
        let _one = match self.0.begin_beat() {
            Some(one) => one,
            None => return,
        };
        // What did not come is asked for at the next beat.
        let _ = self.0.renew().await;
    }

    /// Whether the server's life is another than at the first renewal, or the server wants this
    /// client to end. Operations wait from then on, and the next life of this side answers them.
    #[must_use]
    pub fn server_changed(&self) -> bool {
        self.0.lease.has_changed()
    }

    /// Work to be spawned: what changed is told, what is not used is given back. To be asked for
    /// at every beat, and when there are events.
    pub fn take_work(&self) -> Vec<Work> {
        let inner = &self.0;
        if inner.lease.has_changed() {
            return Vec::new();
        }
        let now = inner.now();
        let mut works: Vec<Work> = Vec::new();
        for ino in inner.table.all_untold(ago(now, TELL_AFTER)) {
            // One at a time: the server may be away for long.
            if !locked(&inner.tellers).insert(ino) {
                continue;
            }
            let inner = Arc::clone(inner);
            works.push(Box::pin(async move {
                if let Err(errno) = inner.tell(ino).await {
                    tracing::debug!(%ino, %errno, "what was written could not be told");
                }
                locked(&inner.tellers).remove(&ino);
            }));
        }
        if inner.lease.is_alive(now) {
            for ino in inner.table.idle(ago(now, IDLE), IDLE_AT_ONCE) {
                let inner = Arc::clone(inner);
                works.push(Box::pin(async move { inner.give_back(ino).await }));
            }
        }
        works.extend(inner.seek_silent());
        works.extend(self.take_errands());
        works
    }

    /// Work to be spawned, at once: the server is told something for which a session may wait. None
    /// if there is nothing, or somebody is at it.
    pub fn take_errands(&self) -> Option<Work> {
        let inner = &self.0;
        let has_errands = !locked(&inner.errands).is_empty() && !inner.lease.has_changed();
        if !has_errands || inner.running.swap(true, Ordering::SeqCst) {
            return None;
        }
        let inner = Arc::clone(inner);
        Some(Box::pin(async move { inner.run_errands().await }))
    }

    /// Answers what the server asks: recalls and events. It may wait for hosts.
    pub async fn incoming(&self, call: Call) -> Reply {
        match call {
            // It may be of what a life before this had, of which not all is told.
            Call::Recall { .. } if !self.0.begun.load(Ordering::SeqCst) => {
                Reply::Failed(Errno::EAGAIN)
            }
            Call::Recall { ino, keep } => self.0.recalled_by_server(ino, keep).await,
            Call::Events { events } => {
                self.0.hear(events);
                Reply::Done
            }
            Call::Leaves { node } => {
                self.0.data.leaves(Peer::Node(node)).await;
                Reply::Done
            }
            Call::Status => Reply::Text(String::from("{}")),
            _ => Reply::Failed(Errno::ENOSYS),
        }
    }
}

/// A beat under way.
struct Beat<'a>(&'a AtomicUsize);

impl Drop for Beat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<N: Net> Inner<N> {
    /// None if enough are under way.
    fn begin_beat(&self) -> Option<Beat<'_>> {
        let beat = Beat(&self.beats);
        (self.beats.fetch_add(1, Ordering::SeqCst) < BEATS).then_some(beat)
    }

    fn hear(&self, events: Vec<Event>) {
        for event in &events {
            if let Event::StaleInode { ino, .. } = event {
                self.table.is_stale(*ino, None);
            }
        }
        let events = events.into_iter().map(|event| match event {
            Event::LockSettled { session, ticket, errno } => VolumeEvent::LockSettled {
                attachment: session,
                ticket,
                result: errno.map_or(Ok(()), Err),
            },
            Event::RecallLocks { session, ino } => {
                VolumeEvent::RecallLocks { attachment: session, ino }
            }
            Event::StaleInode { session, ino } => {
                VolumeEvent::StaleInode { attachment: session, ino }
            }
            Event::StaleEntry { session, parent, name } => {
                VolumeEvent::StaleEntry { attachment: session, parent, name }
            }
        });
        locked(&self.events).extend(events);
    }
}

/// So long before `now`.
fn ago(now: outboard_base::Time, time: Duration) -> outboard_base::Time {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    outboard_base::Time(now.0.saturating_sub(nanos))
}
