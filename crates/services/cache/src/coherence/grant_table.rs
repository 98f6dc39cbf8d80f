//! Who may cache what: the grant table, of which the records in host memory are a copy.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::dpu::{Control, Slot};
use crate::policy::{Flush, Prefetch};
use outboard_base::{Errno, Fh, Ino, SessionId, Time, Timestamp};
use outboard_volume::Caller;
use outboard_wire::cache::Grant;

/// What a world brings with a cache.
pub struct CacheSetup {
    /// The DPU side's control of it.
    pub control: Control,
    /// Whether the process whose memory it is, is gone for good.
    pub is_dead: Box<dyn Fn() -> bool + Send + Sync>,
    /// The world's clock.
    pub clock: fn() -> Time,
    /// Its calendar.
    pub wall: fn() -> Timestamp,
}

/// The cache of one session.
pub struct Cache {
    pub(super) caller: Caller,
    pub(super) control: Control,
    pub(super) flush: Box<dyn Flush>,
    pub(super) is_dead: Box<dyn Fn() -> bool + Send + Sync>,
    pub(super) clock: fn() -> Time,
    pub(super) wall: fn() -> Timestamp,
    /// Pages the host may still make dirty or has, over all inodes: space is put aside for them.
    pub(super) promised: AtomicU64,
    /// Reads and writes that went through although their inode may be cached.
    pub(super) through: AtomicU64,
}

impl Cache {
    pub(super) fn new(caller: Caller, setup: CacheSetup) -> Cache {
        let CacheSetup { control, is_dead, clock, wall } = setup;
        let policies = control.policies();
        Cache {
            caller,
            control,
            flush: policies.flush.build(policies.dirty),
            is_dead,
            clock,
            wall,
            promised: AtomicU64::new(0),
            through: AtomicU64::new(0),
        }
    }

    pub(super) fn session(&self) -> SessionId {
        self.caller.attachment
    }

    pub(super) fn page_size(&self) -> u64 {
        u64::from(self.control.geometry().page_size())
    }

    /// Most pages that may be dirty at a time.
    pub(super) fn dirty_max(&self) -> u64 {
        (self.control.geometry().total() * u64::from(self.control.policies().dirty) / 100).max(1)
    }

    /// Whether so many pages more are too many to be promised.
    pub(super) fn lacks_room(&self, pages: u64) -> bool {
        self.promised.load(Ordering::SeqCst).saturating_add(pages) > self.dirty_max()
    }

    pub(super) fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

/// A session's grant, as those who act on it need it.
#[derive(Clone)]
pub(super) struct HeldGrant {
    pub(super) cache: Arc<Cache>,
    pub(super) slot: Slot,
    pub(super) grant: Grant,
    /// It was granted to write, and what it wrote was not all fetched since.
    written: bool,
    /// Which grant it is, once it is noted.
    serial: u64,
}

impl HeldGrant {
    pub(super) fn new(cache: &Arc<Cache>, slot: Slot, grant: Grant) -> HeldGrant {
        let written = grant == Grant::Write;
        HeldGrant { cache: Arc::clone(cache), slot, grant, written, serial: 0 }
    }

    /// Whether there may be dirty pages. A grant to read that is frozen has none: what its host
    /// marks dirty it was never allowed to write.
    pub(super) fn writes(&self) -> bool {
        self.written
    }

    /// Notes another grant; one that is frozen may have the dirty pages it had.
    pub(super) fn set(&mut self, grant: Grant) {
        self.grant = grant;
        match grant {
            Grant::Frozen => {}
            Grant::Write => self.written = true,
            Grant::Free | Grant::Read | Grant::None => self.written = false,
        }
    }
}

/// A session that may cache an inode.
pub(super) struct Holder {
    pub(super) held: HeldGrant,
    /// Pages the host may make dirty, since the grant.
    pub(super) credit: u64,
    /// Of the pages it made dirty, so many are known to be in the volume.
    pub(super) settled: u64,
    /// Since when there is something to flush.
    pub(super) dirty_since: Option<Time>,
    /// Its handles that are open for writing.
    pub(super) writers: Vec<Fh>,
    pub(super) stream: Box<dyn Prefetch>,
}

/// An inode that somebody may cache.
pub(super) struct CachedInode {
    /// Differs between two times that an inode was known.
    pub(super) serial: u64,
    /// Counts beginnings and ends of changes in the volume.
    pub(super) changes: u64,
    pub(super) holders: Vec<Holder>,
}

impl CachedInode {
    pub(super) fn holder(&mut self, session: SessionId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.held.cache.session() == session)
    }
}

/// A point in an inode's life: while it is the same, nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InodeVersion {
    serial: u64,
    pub(super) changes: u64,
}

/// How an inode stands to a session.
#[derive(Default)]
pub(super) struct View {
    /// Its own grant.
    pub(super) mine: Option<HeldGrant>,
    /// Whether others have one.
    pub(super) others: bool,
    /// Whether one of those may have dirty pages.
    pub(super) other_writes: bool,
}

/// Of which inodes a request must know what caches held before a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concern {
    Nothing,
    /// These, which may be one.
    Inodes(Ino, Ino),
    Anything,
}

/// A cache that is being emptied of what an earlier life of the DPU side left.
#[derive(Default)]
struct Recovery {
    /// Everybody waits for that, not its own session alone.
    all: bool,
    /// Inodes of which it may have pages; `None` until that was looked up.
    left: Option<BTreeSet<Ino>>,
}

impl Recovery {
    fn holds(&self, concern: Concern) -> bool {
        match (&self.left, concern) {
            (_, Concern::Nothing) => false,
            (None, _) | (_, Concern::Anything) => true,
            (Some(left), Concern::Inodes(one, other)) => {
                left.contains(&one) || left.contains(&other)
            }
        }
    }
}

/// Caches, grants, and what is owed to whom.
#[derive(Default)]
pub(super) struct GrantTable {
    caches: BTreeMap<SessionId, Arc<Cache>>,
    inodes: HashMap<Ino, CachedInode>,
    /// Sessions that may hold dirty pages nobody looked at since the start.
    expected: BTreeSet<SessionId>,
    /// After a start, until whoever is missing is given up.
    returning: bool,
    /// Sessions whose caches are being emptied.
    recovering: BTreeMap<SessionId, Recovery>,
    /// What could not be written back, and who has not heard of it yet (`None`: who asks first).
    failed: BTreeMap<(Ino, Option<SessionId>), Errno>,
    /// Inodes that sessions had in their caches in an earlier life of the DPU side, and may have
    /// open still; and whether one was cached again to be read.
    before: BTreeMap<(SessionId, Ino), bool>,
    serial: u64,
}

impl GrantTable {
    pub(super) fn concerns(&self) -> usize {
        self.caches.len() + self.expected.len() + self.recovering.len() + self.failed.len()
    }

    /// Whether the volume holds all that `session` may have to see of what concerns it.
    pub(super) fn is_complete(&self, session: SessionId, concern: Concern) -> bool {
        let waits = |(other, recovery): (&SessionId, &Recovery)| {
            (recovery.all || *other == session) && recovery.holds(concern)
        };
        concern == Concern::Nothing
            || (self.expected.is_empty() && !self.recovering.iter().any(waits))
    }

    pub(super) fn expect(&mut self, session: SessionId) {
        self.expected.insert(session);
        self.returning = true;
    }

    /// Nothing is to be expected of `session` (of nobody: `None`) any more.
    pub(super) fn is_back(&mut self, session: Option<SessionId>) {
        match session {
            Some(session) => _ = self.expected.remove(&session),
            None => {
                self.expected.clear();
                self.returning = false;
            }
        }
    }

    /// The cache of `session` is being emptied. After a start others may have to read what is in
    /// it; later, who comes with a cache makes nobody wait but itself.
    pub(super) fn recovers(&mut self, session: SessionId) {
        self.expected.remove(&session);
        self.recovering.insert(session, Recovery { all: self.returning, left: None });
    }

    /// The cache of `session` is being emptied, and nobody waited for it.
    pub(super) fn recovers_late(&self, session: SessionId) -> bool {
        self.recovering.get(&session).is_some_and(|recovery| !recovery.all)
    }

    /// It has pages of these inodes alone.
    pub(super) fn has_left(&mut self, session: SessionId, inodes: BTreeSet<Ino>) {
        if let Some(recovery) = self.recovering.get_mut(&session) {
            recovery.left = Some(inodes);
        }
    }

    /// It has none of this one any more.
    pub(super) fn is_emptied_of(&mut self, session: SessionId, ino: Ino) {
        let recovery = self.recovering.get_mut(&session);
        if let Some(left) = recovery.and_then(|recovery| recovery.left.as_mut()) {
            left.remove(&ino);
        }
    }

    /// A cache is being emptied of what an earlier life of the DPU side left.
    pub(super) fn recovers_any(&self) -> bool {
        !self.recovering.is_empty()
    }

    /// It is empty, and in use if it comes along.
    pub(super) fn recovered(&mut self, session: SessionId, cache: Option<Arc<Cache>>) {
        self.recovering.remove(&session);
        cache.into_iter().for_each(|cache| self.insert(cache));
    }

    /// What was written could not be written back: who syncs next hears it; if it is `session`'s
    /// own affair, when that does.
    pub(super) fn failed(&mut self, ino: Ino, session: Option<SessionId>, errno: Errno) {
        self.failed.insert((ino, session), errno);
    }

    /// What `session` must hear of an inode, once.
    pub(super) fn take_failure(&mut self, ino: Ino, session: Option<SessionId>) -> Option<Errno> {
        let own = session.and_then(|_| self.failed.remove(&(ino, session)));
        self.failed.remove(&(ino, None)).or(own)
    }

    pub(super) fn insert(&mut self, cache: Arc<Cache>) {
        self.caches.insert(cache.session(), cache);
    }

    pub(super) fn remove(&mut self, session: SessionId) {
        self.caches.remove(&session);
        self.failed.retain(|(_, whose), _| *whose != Some(session));
        self.before.retain(|(whose, _), _| *whose != session);
        self.inodes.retain(|_, known| {
            known.holders.retain(|holder| holder.held.cache.session() != session);
            !known.holders.is_empty()
        });
    }

    /// An earlier life of the DPU side had let `session` cache these.
    pub(super) fn had(&mut self, session: SessionId, inodes: impl Iterator<Item = Ino>) {
        self.before.extend(inodes.map(|ino| ((session, ino), false)));
    }

    /// Whether `session` had cached `ino` before a loss of the DPU side.
    pub(super) fn had_cached(&self, session: SessionId, ino: Ino) -> bool {
        self.before.contains_key(&(session, ino))
    }

    /// Whether it is to be cached again for a handle that writes, or does not: once each at most,
    /// and not to be read after it was to be written.
    pub(super) fn caches_again(&mut self, session: SessionId, ino: Ino, writes: bool) -> bool {
        let key = (session, ino);
        if writes {
            return self.before.remove(&key).is_some();
        }
        self.before.get_mut(&key).is_some_and(|read| !std::mem::replace(read, true))
    }

    pub(super) fn cache(&self, session: SessionId) -> Option<Arc<Cache>> {
        self.caches.get(&session).cloned()
    }

    pub(super) fn caches(&self) -> Vec<Arc<Cache>> {
        self.caches.values().cloned().collect()
    }

    pub(super) fn holder(&mut self, ino: Ino, session: SessionId) -> Option<&mut Holder> {
        self.inodes.get_mut(&ino)?.holder(session)
    }

    /// The session behind `held`, unless that grant is over.
    pub(super) fn holder_of(&mut self, ino: Ino, held: &HeldGrant) -> Option<&mut Holder> {
        let holder = self.holder(ino, held.cache.session());
        holder.filter(|holder| holder.held.serial == held.serial)
    }

    /// The credit of a session that is neither settled nor given back, which is the caller's now;
    /// `None` if it may not cache `ino`.
    pub(super) fn take_outstanding(&mut self, ino: Ino, session: SessionId) -> Option<u64> {
        let holder = self.holder(ino, session)?;
        let outstanding = holder.credit.saturating_sub(holder.settled);
        holder.settled = holder.settled.max(holder.credit);
        Some(outstanding)
    }

    /// Who may cache `ino`.
    pub(super) fn grants_on(&self, ino: Ino) -> Vec<HeldGrant> {
        let known = self.inodes.get(&ino).map(|known| known.holders.iter());
        known.into_iter().flatten().map(|holder| holder.held.clone()).collect()
    }

    pub(super) fn view(&self, ino: Ino, session: SessionId) -> View {
        let Some(known) = self.inodes.get(&ino) else { return View::default() };
        let mut view = View::default();
        for Holder { held, .. } in &known.holders {
            if held.cache.session() == session {
                view.mine = Some(held.clone());
            } else {
                view.others = true;
                view.other_writes |= held.writes();
            }
        }
        view
    }

    /// Inodes somebody may cache for writing, and those of which something is to be said.
    pub(super) fn written(&self) -> Vec<Ino> {
        let writes = |known: &CachedInode| known.holders.iter().any(|holder| holder.held.writes());
        let written = self.inodes.iter().filter(|(_, known)| writes(known)).map(|(ino, _)| *ino);
        let all: BTreeSet<_> = written.chain(self.failed.keys().map(|(ino, _)| *ino)).collect();
        all.into_iter().collect()
    }

    /// Inodes a session may cache.
    pub(super) fn grants_of(&self, session: SessionId) -> Vec<(Ino, HeldGrant)> {
        let of = |known: &CachedInode| {
            let mut holders = known.holders.iter();
            holders.find(|h| h.held.cache.session() == session).map(|h| h.held.clone())
        };
        self.inodes.iter().filter_map(|(ino, known)| Some((*ino, of(known)?))).collect()
    }

    /// Notes a grant.
    pub(super) fn granted(&mut self, ino: Ino, mut held: HeldGrant, credit: u64) {
        self.serial += 1;
        let serial = self.serial;
        held.serial = serial;
        let known = self.inodes.entry(ino).or_insert_with(|| CachedInode {
            serial,
            changes: 0,
            holders: Vec::new(),
        });
        if let Some(holder) = known.holder(held.cache.session()) {
            (holder.held, holder.credit) = (held, credit);
            (holder.settled, holder.dirty_since) = (0, None);
            return;
        }
        let geometry = held.cache.control.geometry();
        let window = (geometry.total() / 8).clamp(1, READ_AHEAD / held.cache.page_size());
        let stream = held.cache.control.policies().prefetch.build(window);
        known.holders.push(Holder {
            held,
            credit,
            settled: 0,
            dirty_since: None,
            writers: Vec::new(),
            stream,
        });
    }

    /// A grant is over.
    pub(super) fn ended(&mut self, ino: Ino, session: SessionId) -> Option<Holder> {
        let known = self.inodes.get_mut(&ino)?;
        let at = known.holders.iter().position(|h| h.held.cache.session() == session)?;
        let holder = known.holders.swap_remove(at);
        if known.holders.is_empty() {
            self.inodes.remove(&ino);
        }
        Some(holder)
    }

    /// The inode's present version, if anybody may cache it.
    pub(super) fn version(&self, ino: Ino) -> Option<InodeVersion> {
        let known = self.inodes.get(&ino)?;
        Some(InodeVersion { serial: known.serial, changes: known.changes })
    }

    /// A change of the inode in the volume begins or ends.
    pub(super) fn changes(&mut self, ino: Ino) {
        if let Some(known) = self.inodes.get_mut(&ino) {
            known.changes += 1;
        }
    }
}

/// Most bytes read ahead: with what was asked for they are one request of the volume.
const READ_AHEAD: u64 = outboard_base::limits::IO_MAX as u64 / 2;
