//! What the threads of a mount share, and what a link's completions and events come to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use outboard_base::Ino;
use outboard_volume::backend::{self, Completion, Told};
use outboard_wire::event::Event;
use outboard_wire::fuse::SetattrIn;
use outboard_wire::fuse::answer::{Valid, fopen};
use outboard_wire::fuse::init::{InitOut, flags};

use crate::collected::{Asked, Marked, Mended};
use crate::directories::Directories;
use crate::inodes::InodeTable;
use crate::job::Chore;
use crate::notifier::{self, Notice};
use crate::options::{Cache, KillPoint, MountOptions};
use crate::pending::Pending;
use crate::recalls::Recall;
use crate::releases::Releases;
use crate::sys::Device;
use crate::table::{Table, lock};
use crate::written::Written;

/// Notices that wait for the notifier; beyond, everything the kernel caches is dropped.
const NOTICES: usize = 1024;
/// A kernel older than 7.44 cannot drop every name of a directory: it asks again this often.
const VALID_WITHOUT_EPOCHS: Duration = Duration::from_secs(1);

/// So many looks in a row must find no request under way before a process leaves its mount, and so
/// long is between two of them.
const QUIET_LOOKS: u32 = 5;
const LOOK: Duration = Duration::from_millis(1);

/// What the handshake agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    /// Minor version the kernel speaks.
    pub(crate) minor: u32,
    pub(crate) init: InitOut,
}

impl Agreed {
    /// Whether the kernel can drop every cached name at once.
    pub(crate) fn has_epochs(&self) -> bool {
        self.minor >= 44
    }

    /// Whether creations name the group that matters.
    pub(crate) fn names_groups(&self) -> bool {
        self.init.has(flags::CREATE_SUPP_GROUP)
    }
}

/// What others ask of a kernel that collects writes, and files they have changed.
pub(crate) type Collected = (Receiver<Option<Asked>>, Receiver<Option<Mended>>);

/// The mount's end of a link: completions and events come in here, from any thread. Made before the
/// session it serves, used by the mount afterwards.
#[derive(Debug)]
pub struct MountFront<S> {
    pub(crate) options: MountOptions,
    pub(crate) inodes: InodeTable,
    pub(crate) directories: Directories,
    pub(crate) pending: Pending,
    pub(crate) releases: Releases,
    /// Threads that wait for an answer themselves, by tag.
    pub(crate) waiting: Table<SyncSender<Completion<S>>>,
    devices: OnceLock<Vec<Device>>,
    agreed: OnceLock<Agreed>,
    chores: Mutex<Vec<Chore>>,
    has_chores: AtomicBool,
    /// What others ask of a kernel that collects writes, and files they have changed. As many at a
    /// time as others make requests.
    asked: Sender<Option<Asked>>,
    mended: Sender<Option<Mended>>,
    collected_out: Mutex<Option<Collected>>,
    marked: Mutex<Option<Marked>>,
    recalls: SyncSender<Recall>,
    recalls_out: Mutex<Option<Receiver<Recall>>>,
    notices: SyncSender<Notice>,
    notices_out: Mutex<Option<Receiver<Notice>>>,
    /// Notices were lost.
    pub(crate) overflow: AtomicBool,
    /// What a kernel that collects writes has written of files.
    pub(crate) written: Written,
    /// How often the kill point was reached.
    reached: AtomicU64,
    /// What the kernel asks from now on is for a successor.
    leaves: AtomicBool,
}

impl<S: backend::Slot> backend::Front<S> for MountFront<S> {
    fn complete(&self, completion: Completion<S>) {
        if let Some(waits) = self.waiting.shard(completion.tag).remove(&completion.tag) {
            // Who waited may have given up.
            let _ = waits.send(completion);
            return;
        }
        match self.pending.take(completion.tag) {
            Some(job) => self.finish(job, completion),
            None => tracing::warn!(tag = completion.tag, "an answer to no request was dropped"),
        }
    }

    fn event(&self, event: Event, told: Told) {
        self.directories.forget();
        if let Event::Collected { ino, mark, wanted } = event {
            // Without a mount there is nothing to give back.
            if self.shares() {
                let _nobody = self.asked.send(Some(Asked { ino, mark, wanted, told }));
            }
            return;
        }
        // Before the mount is there the kernel keeps nothing. One that collects writes and has the
        // volume for itself knows better.
        if self.agreed().is_none() || self.collects() && !self.shares() {
            return;
        }
        if let Err(TrySendError::Full(Recall::Event(event, told))) =
            self.recalls.try_send(Recall::Event(event, told))
        {
            notifier::let_go(self, &event);
            drop(told);
            self.overflow.store(true, Ordering::Release);
        }
    }

    fn keeps(&self) -> bool {
        true
    }
}

impl<S: backend::Slot> MountFront<S> {
    /// The shared part of a mount yet to come.
    #[must_use]
    pub fn new(options: MountOptions) -> MountFront<S> {
        let (notices, notices_out) = sync_channel(NOTICES);
        let (recalls, recalls_out) = sync_channel(NOTICES);
        let (asked, asked_out) = channel();
        let (mended, mended_out) = channel();
        MountFront {
            releases: Releases::new(options.workers.max(1)),
            options,
            inodes: InodeTable::default(),
            directories: Directories::default(),
            pending: Pending::default(),
            waiting: Table::default(),
            devices: OnceLock::new(),
            agreed: OnceLock::new(),
            chores: Mutex::default(),
            has_chores: AtomicBool::new(false),
            asked,
            mended,
            collected_out: Mutex::new(Some((asked_out, mended_out))),
            marked: Mutex::default(),
            recalls,
            recalls_out: Mutex::new(Some(recalls_out)),
            notices,
            notices_out: Mutex::new(Some(notices_out)),
            overflow: AtomicBool::new(false),
            written: Written::default(),
            reached: AtomicU64::new(0),
            leaves: AtomicBool::new(false),
        }
    }

    /// Whether the kernel collects writes.
    pub(crate) fn collects(&self) -> bool {
        self.options.cache == Cache::WriteBack
    }

    /// Whether it does so with others beside it.
    pub(crate) fn shares(&self) -> bool {
        self.collects() && self.options.shares
    }

    /// Which request of the kernel is the asker's, from now on.
    pub(crate) fn mark(&self, marked: Option<Marked>) {
        *lock(&self.marked) = marked;
    }

    /// Whether a SETATTR is the asker's; if so, whether it holds the file.
    pub(crate) fn is_marked(&self, ino: Ino, set: &SetattrIn) -> Option<bool> {
        let marked = if self.shares() { *lock(&self.marked) } else { None };
        marked.and_then(|marked| marked.is(ino, set.valid, (set.atime, set.atime_nsec)))
    }

    /// The kernel hears what a file that stood still is now.
    pub(crate) fn mended(&self, mended: Mended) {
        // After the end nobody waits for the answer.
        let _nobody = self.mended.send(Some(mended));
    }

    /// The mount is over: others get nothing of the kernel any more.
    pub(crate) fn end_collected(&self) {
        let _gone = (self.asked.send(None), self.mended.send(None));
    }

    /// What others ask, and have changed, once.
    pub(crate) fn take_collected(&self) -> Option<Collected> {
        lock(&self.collected_out).take()
    }

    /// Serves no request that is read from now on, and waits until those before are answered, or
    /// `limit` has passed. Then this process should end: all the rest is for its successor, whom
    /// the kernel sends again what was read meanwhile.
    pub fn leave(&self, limit: Duration) {
        self.leaves.store(true, Ordering::Release);
        let end = Instant::now() + limit;
        let mut looks = 0;
        // A worker that had read before may only now be about to say so.
        while looks < QUIET_LOOKS && Instant::now() < end {
            looks = if self.pending.is_quiet() { looks + 1 } else { 0 };
            std::thread::sleep(LOOK);
        }
    }

    /// Whether it was told to [`MountFront::leave`].
    pub fn leaves(&self) -> bool {
        self.leaves.load(Ordering::Acquire)
    }

    /// This process dies here if it is asked to.
    pub(crate) fn reaches(&self, point: KillPoint) {
        if let Some((at, count)) = self.options.die_at
            && at == point
            && self.reached.fetch_add(1, Ordering::Relaxed) + 1 == count
        {
            let own = rustix::process::getpid();
            let _dead = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        }
    }

    /// Has the notifier do something; false if it will not.
    pub(crate) fn notice(&self, notice: Notice) -> bool {
        let sent = self.notices.try_send(notice);
        if let Err(TrySendError::Full(_)) = &sent {
            self.overflow.store(true, Ordering::Release);
        }
        sent.is_ok()
    }

    /// The mount is over: no event is acted upon any more.
    pub(crate) fn end_recalls(&self) {
        // Who took the other end may be gone.
        let _ = self.recalls.send(Recall::End);
    }

    /// What [`Front::event`] brings, once.
    ///
    /// [`Front::event`]: backend::Front::event
    pub(crate) fn take_recalls(&self) -> Option<Receiver<Recall>> {
        lock(&self.recalls_out).take()
    }

    /// How long the kernel may believe what it is told; short where it could not be told otherwise.
    pub(crate) fn valid(&self) -> Valid {
        let valid = self.limit(self.options.valid);
        let attr = self.options.attr_valid.map_or(valid, |attr| self.limit(attr));
        Valid { entry: valid, attr }
    }

    /// How long the kernel may believe that a name does not exist.
    pub(crate) fn negative_valid(&self) -> Duration {
        self.limit(self.options.negative_valid)
    }

    fn limit(&self, valid: Duration) -> Duration {
        match self.agreed() {
            Some(agreed) if agreed.has_epochs() => valid,
            _ => valid.min(VALID_WITHOUT_EPOCHS),
        }
    }

    /// Whether directories are listed without being opened at the volume. The kernel then keeps
    /// their entries between listings, so that only a mount that lets it can do so.
    pub(crate) fn opens_no_directories(&self) -> bool {
        self.options.fopen_directory() & fopen::CACHE_DIR != 0
            && self.agreed().is_some_and(|agreed| agreed.init.has(flags::NO_OPENDIR_SUPPORT))
    }

    /// The other end of [`MountFront::notice`], once.
    pub(crate) fn take_notices(&self) -> Option<Receiver<Notice>> {
        lock(&self.notices_out).take()
    }

    /// The mount is there. False if this front serves one already.
    pub(crate) fn begin(&self, devices: Vec<Device>, agreed: Agreed) -> bool {
        self.agreed.set(agreed).is_ok() && self.devices.set(devices).is_ok()
    }

    pub(crate) fn device(&self, index: usize) -> Option<&Device> {
        self.devices.get()?.get(index)
    }

    pub(crate) fn devices(&self) -> &[Device] {
        self.devices.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.get()
    }

    /// Something to ask the volume as soon as a worker can.
    pub(crate) fn push_chore(&self, chore: Chore) {
        lock(&self.chores).push(chore);
        self.has_chores.store(true, Ordering::Release);
    }

    /// What there is to ask.
    pub(crate) fn take_chores(&self) -> Vec<Chore> {
        if !self.has_chores.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.chores))
    }

    /// The last name of `ino` is gone.
    pub(crate) fn unnamed(&self, ino: Ino) {
        if self.inodes.unnamed(ino) {
            self.push_chore(Chore::Forget(ino));
        }
    }
}
