//! What this client has of each file: its delegation, what it knows better than the server, and
//! whether hosts have pages of it. A table without I/O; who waits for a change of it is woken.
//!
//! ```text
//!  nothing --ask--> Read or Write --(a use begins and ends, many at a time)--
//!     ^                |   \--refused by a fence, ESTALE: lost; what was not told is forgotten
//!     '----told--------'-- leaving: no use begins; those under way end, what changed is told
//! ```
//!
//! # Invariants
//!
//! 1. A use begins only under a delegation that allows it, in the lapse of the lease that it was
//!    last confirmed in, and not while it is leaving.
//! 2. A grant that was asked for before a recall was answered is void: it may be what was recalled.
//!    So is one that was asked for later, if it is what was given back: the server may not have
//!    heard of that yet.
//! 3. Pages that hosts wrote go to the nodes only under the fence they were granted under.

mod file;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::task::WaitList;
use outboard_base::{Ino, Time, Timestamp};
use outboard_wire::file::{Attr, mode};
use outboard_wire::shared::call::{Grant, Mode};

pub(crate) use file::{Known, Untold};

use file::{Cached, File, Held};

/// Looks for what is idle, one a beat, after which the server has heard what was given back.
const LOOKS: u8 = 60;

#[derive(Debug, Default)]
pub(crate) struct Table {
    files: Mutex<BTreeMap<Ino, File>>,
    /// How many delegations to write have ended.
    ended: AtomicU64,
    changed: WaitList,
}

/// What somebody who wants to use a file does next.
pub(crate) enum Step<'t> {
    In(Use<'t>),
    /// Wait until it is neither asked for nor leaving, nor on its way back.
    Wait,
    Ask(Asking<'t>),
}

/// What somebody does next who needs another fence for what he uses.
pub(crate) enum Renewal<'t> {
    /// It is had.
    Is(Arc<Grant>),
    /// Wait until nobody asks.
    Wait,
    Ask(Asking<'t>),
}

/// A use of a file under its delegation, which stays until this is dropped, unless it is lost.
pub(crate) struct Use<'t> {
    table: &'t Table,
    pub(crate) ino: Ino,
    pub(crate) grant: Arc<Grant>,
}

impl Use<'_> {
    pub(crate) fn fence(&self) -> u64 {
        self.grant.capability.fence
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.table.change(self.ino, |file| file.uses = file.uses.saturating_sub(1));
    }
}

/// A delegation is being asked for; nobody else does meanwhile.
pub(crate) struct Asking<'t> {
    table: &'t Table,
    ino: Ino,
    pub(crate) mode: Mode,
    voids: u64,
    /// Not all who have copies take what is asked under this fence, under which it is held: it is
    /// to be had under another.
    pub(crate) continues: Option<u64>,
}

/// What became of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    Ours,
    /// The same, and what hosts cached under what was held before must go: it may have been
    /// another's meanwhile.
    Anew,
    /// It is what is held to write, and is being recalled: that gives it back, once all is told. To
    /// be asked for again until then.
    Again,
    /// It is not used. The server is to hear that this fence is given back, down to what is kept.
    Void {
        fence: u64,
        keep: Option<Mode>,
    },
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.table.change(self.ino, |file| file.asking = false);
    }
}

impl Asking<'_> {
    /// It was granted; `lapse` is the lease's when it was asked for.
    pub(crate) fn granted(self, grant: Grant, lapse: u64) -> Granted {
        let (voids, continues) = (self.voids, self.continues);
        self.table.change(self.ino, |file| {
            let fence = grant.capability.fence;
            // What is being recalled goes on until it is given back.
            let continues = continues.filter(|before| file.fence() == Some(*before));
            if continues.is_none() && (file.voids != voids || file.gave_back(&grant)) {
                if file.writes() == Some(fence) {
                    return Granted::Again;
                }
                let keep = (file.fence() == Some(fence)).then_some(Mode::Read);
                if file.gone.is_none_or(|gone| gone.fence < fence || keep.is_none()) {
                    file.is_gone(fence, false);
                }
                return Granted::Void { fence, keep };
            }
            match file.install(grant, lapse, continues) {
                true => Granted::Ours,
                false => Granted::Anew,
            }
        })
    }
}

/// Whether pages of a host may be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Under the delegation there is.
    Ours,
    /// The delegation they were granted under is lost.
    Lost,
    /// Nobody was granted any in this life.
    Unknown,
}

impl Table {
    fn files(&self) -> MutexGuard<'_, BTreeMap<Ino, File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a file's entry, and wakes who waits.
    fn change<T>(&self, ino: Ino, change: impl FnOnce(&mut File) -> T) -> T {
        let mut files = self.files();
        let file = files.entry(ino).or_default();
        let wrote = file.writes();
        let out = change(file);
        if wrote.is_some() && file.writes() != wrote {
            self.ended.fetch_add(1, Ordering::SeqCst);
        }
        if file.is_empty() {
            files.remove(&ino);
        }
        drop(files);
        self.changed.notify();
        out
    }

    /// Looks at a file's entry, if there is one.
    fn look<T>(&self, ino: Ino, look: impl FnOnce(&mut File) -> T) -> Option<T> {
        self.files().get_mut(&ino).map(look)
    }

    /// Waits until something is so.
    async fn until<T>(&self, ino: Ino, so: impl Fn(&mut File) -> Option<T>) -> T {
        self.changed
            .until(|| {
                let mut files = self.files();
                let file = files.entry(ino).or_default();
                let out = so(file);
                if file.is_empty() {
                    files.remove(&ino);
                }
                out
            })
            .await
    }

    /// Begins a use, or says what has to be done first. `looks`: it reads or writes bytes, so hosts
    /// have nothing to write back any more that is older than this life.
    pub(crate) fn step(
        &self,
        ino: Ino,
        (mode, looks): (Mode, bool),
        lapse: u64,
        now: Time,
    ) -> Step<'_> {
        let mut files = self.files();
        let file = files.entry(ino).or_default();
        file.used = now;
        if file.leaving || file.returning {
            return Step::Wait;
        }
        if file.may(mode, lapse)
            && let Some(held) = &mut file.held
        {
            held.kept &= !looks;
            file.uses += 1;
            return Step::In(Use { table: self, ino, grant: Arc::clone(&held.grant) });
        }
        if file.asking {
            return Step::Wait;
        }
        file.asking = true;
        let voids = file.voids;
        // What is asked for again must not become less.
        let mode = file.held.as_ref().map_or(mode, |held| held.grant.mode.max(mode));
        let held = file.held.as_ref().filter(|held| held.troubled && held.grant.mode >= mode);
        let continues = held.map(|held| held.grant.capability.fence);
        Step::Ask(Asking { table: self, ino, mode, voids, continues })
    }

    /// Waits until nobody asks, nothing is leaving, and the server has heard what was given back.
    pub(crate) async fn settled(&self, ino: Ino) {
        let is_settled = |file: &mut File| !file.asking && !file.leaving && !file.returning;
        self.until(ino, |file| is_settled(file).then_some(())).await;
    }

    /// Waits until nobody asks.
    pub(crate) async fn not_asking(&self, ino: Ino) {
        self.until(ino, |file| (!file.asking).then_some(())).await;
    }

    /// The size of a file that is being used; `None` if its delegation is lost.
    pub(crate) fn size(&self, of: &Use<'_>) -> Option<u64> {
        let fence = of.fence();
        let held = |file: &mut File| {
            let same = file.holds(fence);
            file.held.as_ref().filter(|_| same).map(|held| held.size)
        };
        self.look(of.ino, held).flatten()
    }

    /// Bytes up to `end` were written at `mtime`; false if the delegation is lost.
    pub(crate) fn wrote(
        &self,
        of: &Use<'_>,
        end: u64,
        mtime: Option<Timestamp>,
        now: Time,
    ) -> bool {
        self.change(of.ino, |file| {
            let Some(held) = file.writer(of.fence()) else { return false };
            if end > held.size || (mtime.is_some() && mtime != held.mtime) {
                held.size = held.size.max(end);
                held.mtime = mtime.or(held.mtime);
                held.changes += 1;
                held.since.get_or_insert(now);
            }
            true
        })
    }

    /// A file that may be written takes so many bytes at its nodes.
    pub(crate) fn takes(&self, grant: &Grant, bytes: u64, now: Time) {
        self.change(Ino(grant.capability.object), |file| {
            let Some(held) = file.writer(grant.capability.fence) else { return };
            let blocks = bytes.div_ceil(512);
            if held.blocks != blocks {
                held.blocks = blocks;
                held.changes += 1;
                held.since.get_or_insert(now);
            }
        });
    }

    /// Whether something that may have changed what a file takes is untold.
    pub(crate) fn has_untold(&self, ino: Ino) -> bool {
        self.look(ino, |file| file.has_untold()).unwrap_or(false)
    }

    /// The server has given a file this size, and says this of it, if it said something.
    pub(crate) fn resized(&self, of: &Use<'_>, size: u64, attr: Option<&Attr>) -> bool {
        self.change(of.ino, |file| {
            let Some(held) = file.writer(of.fence()) else { return false };
            held.resize(size);
            (held.known, held.mtime) = (size, None);
            if size == 0 {
                held.blocks = 0;
            }
            (held.told, held.since) = (held.changes, None);
            match attr {
                Some(attr) => held.describe(attr),
                None => held.stale = true,
            }
            true
        })
    }

    /// What the server says of a file's attributes. Times that were set count from now on.
    pub(crate) fn described(&self, attr: &Attr, sets_times: bool) {
        let mut files = self.files();
        if let Some(held) = files.get_mut(&attr.ino).and_then(|file| file.held.as_mut()) {
            if sets_times {
                held.mtime = None;
            }
            held.describe(attr);
            // The next write has to take these away: the server is asked whether, and says how.
            held.stale |= attr.mode & (mode::S_ISUID | mode::S_ISGID) != 0 && !held.grant.strips;
        }
    }

    /// A write has taken set-id bits away.
    pub(crate) fn stripped(&self, ino: Ino, attr: &Attr) {
        let mut files = self.files();
        if let Some(held) = files.get_mut(&ino).and_then(|file| file.held.as_mut()) {
            held.describe(attr);
            let mut grant = Grant::clone(&held.grant);
            grant.strips = false;
            held.grant = Arc::new(grant);
        }
    }

    /// Whether a write must take set-id bits away first, as far as is known.
    pub(crate) fn strips(&self, ino: Ino) -> bool {
        self.look(ino, |file| file.held.as_ref().is_some_and(|held| held.grant.strips))
            .unwrap_or(false)
    }

    /// Lays what is known better here over attributes the server said.
    /// True if there is something.
    pub(crate) fn overlay(&self, attr: &mut Attr) -> bool {
        let files = self.files();
        let held = files.get(&attr.ino).and_then(|file| file.held.as_ref());
        let held = held.filter(|held| held.grant.mode == Mode::Write);
        held.inspect(|held| held.overlay(attr)).is_some()
    }

    /// How many delegations to write have ended: what the server said before of their files is old.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether an overlay changes anything.
    pub(crate) fn overlays(&self, ino: Ino) -> bool {
        self.look(ino, |file| file.held.as_ref().is_some_and(|held| held.grant.mode == Mode::Write))
            .unwrap_or(false)
    }

    /// What must be told of one file.
    pub(crate) fn untold(&self, ino: Ino) -> Option<Untold> {
        self.look(ino, |file| file.untold(ino)).flatten()
    }

    /// All that could be told of one file that is held to write, whether or not it was.
    pub(crate) fn all_told(&self, ino: Ino) -> Option<Untold> {
        self.look(ino, |file| {
            let held = file.held.as_ref().filter(|held| held.grant.mode == Mode::Write)?;
            Some(held.says(ino))
        })
        .flatten()
    }

    /// A file that is being used has no bytes any more.
    pub(crate) fn cut(&self, of: &Use<'_>, mtime: Option<Timestamp>, now: Time) -> bool {
        self.change(of.ino, |file| {
            let Some(held) = file.writer(of.fence()) else { return false };
            held.resize(0);
            (held.known, held.blocks, held.mtime) = (0, 0, mtime.or(held.mtime));
            held.changes += 1;
            held.since.get_or_insert(now);
            held.stale = true;
            true
        })
    }

    /// Files of which something must be told that changed at `before` at the latest.
    pub(crate) fn all_untold(&self, before: Time) -> Vec<Ino> {
        let files = self.files();
        let since = |file: &File| file.held.as_ref().and_then(|held| held.since);
        let old = files.iter().filter(|(_, file)| {
            file.has_untold() && since(file).is_some_and(|since| since <= before)
        });
        old.map(|(ino, _)| *ino).collect()
    }

    /// It was told.
    pub(crate) fn told(&self, untold: &Untold) {
        self.change(untold.ino, |file| {
            if let Some(held) = file.writer(untold.fence) {
                held.told = held.told.max(untold.changes);
                held.known = untold.told.size;
                if held.told == held.changes {
                    held.since = None;
                }
            }
        });
    }

    /// How long a file is, if the server knows that: it is what it makes durable when it is asked.
    pub(crate) fn known(&self, ino: Ino) -> Option<Known> {
        let is_known = |held: &&Held| held.known == held.size;
        self.look(ino, |file| file.held.as_ref().filter(is_known).map(Held::known)).flatten()
    }

    /// The server has made that durable.
    pub(crate) fn synced(&self, ino: Ino, known: Known) {
        self.change(ino, |file| {
            let of = |held: &Held| (held.fence(), held.resized);
            let held = file.held.as_mut().filter(|held| of(held) == (known.fence, known.resized));
            held.into_iter().for_each(|held| held.synced = Some(known.size));
        });
    }

    /// Whether all that is needed to read a file back is durable at the server, in this lapse of
    /// the lease: since it is held its size is the same.
    pub(crate) fn is_synced(&self, ino: Ino, lapse: u64) -> bool {
        let is_it = |held: &Held| held.lapse == lapse && held.synced == Some(held.size);
        self.look(ino, |file| file.held.as_ref().is_some_and(is_it)).unwrap_or(false)
    }

    /// What makes it longer is told before it is answered, from now on.
    pub(crate) fn tells_from_now(&self, of: &Use<'_>) {
        self.change(of.ino, |file| {
            file.writer(of.fence()).into_iter().for_each(|held| held.tells = true);
        });
    }

    /// Whether it is.
    pub(crate) fn tells(&self, of: &Use<'_>) -> bool {
        let fence = of.fence();
        self.look(of.ino, |file| file.writer(fence).is_some_and(|held| held.tells)).unwrap_or(false)
    }

    /// Whether the server knows that a file is at least so long; false if the delegation is lost.
    pub(crate) fn is_known(&self, of: &Use<'_>, end: u64) -> bool {
        let fence = of.fence();
        let is_known = |file: &mut File| file.writer(fence).is_some_and(|held| end <= held.known);
        self.look(of.ino, is_known).unwrap_or(false)
    }

    /// It is to be asked for again before it is used.
    pub(crate) fn is_stale(&self, ino: Ino, fence: Option<u64>) {
        self.change(ino, |file| {
            if (fence.is_none() || file.fence() == fence)
                && let Some(held) = &mut file.held
            {
                held.stale = true;
            }
        });
    }

    /// Who have copies of a file did not take what was asked under this fence: it is to be granted
    /// under another.
    pub(crate) fn is_troubled(&self, ino: Ino, fence: u64) {
        self.change(ino, |file| {
            if let Some(held) = file.held.as_mut()
                && held.grant.capability.fence == fence
            {
                (held.stale, held.troubled) = (true, true);
            }
        });
    }

    /// What is held instead of what a use began under, if that is under another fence than this;
    /// else what has to be done first. It may be leaving: that waits for the use. `None` if it is
    /// lost.
    pub(crate) fn renew(&self, of: &Use<'_>, fence: u64) -> Option<Renewal<'_>> {
        let mut files = self.files();
        let file = files.get_mut(&of.ino).filter(|file| file.holds(of.fence()))?;
        let held = file.held.as_ref()?;
        if held.grant.capability.fence != fence {
            return Some(Renewal::Is(Arc::clone(&held.grant)));
        }
        if file.asking {
            return Some(Renewal::Wait);
        }
        let (mode, voids) = (held.grant.mode, file.voids);
        file.asking = true;
        let continues = Some(fence);
        Some(Renewal::Ask(Asking { table: self, ino: of.ino, mode, voids, continues }))
    }

    /// Whether what a use began under is still held, without a break.
    pub(crate) fn holds_still(&self, of: &Use<'_>) -> bool {
        let fence = of.fence();
        self.look(of.ino, |file| file.holds(fence)).unwrap_or(false)
    }

    /// A delegation under this fence (or whatever there is) is lost. Whether hosts have pages that
    /// must go.
    pub(crate) fn lose(&self, ino: Ino, fence: Option<u64>) -> bool {
        self.change(ino, |file| {
            let Some(held) = file.fence() else { return false };
            if fence.is_some_and(|fence| !file.holds(fence)) {
                return false;
            }
            file.held = None;
            file.is_gone(held, false);
            file.cached != Cached::Nothing
        })
    }

    /// Hosts may be granted pages: attributes, and whether they may write.
    pub(crate) fn cache(&self, of: &Use<'_>) -> Option<(Attr, bool)> {
        self.change(of.ino, |file| {
            let fence = file.fence().filter(|_| file.holds(of.fence()) && !file.leaving)?;
            let held = file.held.as_ref()?;
            if file.cached == Cached::Nothing {
                file.cached_in = held.lapse;
            }
            let mut attr = held.grant.attr.clone();
            held.overlay(&mut attr);
            attr.size = held.size;
            let may_write = held.grant.mode == Mode::Write && !held.grant.strips;
            // What was written under another fence is still to be given up.
            let old = matches!(file.cached, Cached::Write(other) if other != fence);
            if !old {
                file.cached = match (may_write, file.cached) {
                    (true, _) => Cached::Write(fence),
                    (false, Cached::Nothing) => Cached::Read,
                    (false, cached) => cached,
                };
            }
            Some((attr, may_write && !old))
        })
    }

    /// Whether hosts' pages may be written back.
    pub(crate) fn pages(&self, ino: Ino) -> Pages {
        self.look(ino, |file| match file.cached {
            _ if file.allows_write_back() => Pages::Ours,
            Cached::Write(_) => Pages::Lost,
            _ => Pages::Unknown,
        })
        .unwrap_or(Pages::Unknown)
    }

    /// Whether what hosts have of a file from the life before is still the newest there is.
    pub(crate) fn is_kept(&self, of: &Use<'_>) -> bool {
        let fence = of.fence();
        self.look(of.ino, |file| file.writer(fence).is_some_and(|held| held.kept)).unwrap_or(false)
    }

    /// Whether a use would find a delegation to write, now.
    pub(crate) fn holds(&self, ino: Ino, lapse: u64) -> bool {
        self.look(ino, |file| file.may(Mode::Write, lapse) && !file.leaving).unwrap_or(false)
    }

    /// Hosts have given pages up.
    pub(crate) fn recalled(&self, ino: Ino, keep_read: bool) {
        self.change(ino, |file| {
            file.cached = match file.cached {
                Cached::Read | Cached::Write(_) if keep_read => Cached::Read,
                _ => Cached::Nothing,
            };
            file.leaves_if_it_can();
        });
    }

    /// Files that hosts have pages of.
    pub(crate) fn cached(&self) -> Vec<Ino> {
        let files = self.files();
        let cached = files.iter().filter(|(_, file)| file.cached != Cached::Nothing);
        cached.map(|(ino, _)| *ino).collect()
    }

    /// Whether hosts have pages from before this lapse of the lease.
    pub(crate) fn has_cached_before(&self, lapse: u64) -> bool {
        let files = self.files();
        files.values().any(|file| file.cached != Cached::Nothing && file.cached_in != lapse)
    }

    /// Something hosts wrote is lost.
    pub(crate) fn failed(&self, ino: Ino) {
        self.change(ino, |file| file.failed = true);
    }

    /// Whether something is, which is said once.
    pub(crate) fn take_failed(&self, ino: Ino) -> bool {
        self.look(ino, |file| file.failed).unwrap_or(false)
            && self.change(ino, |file| std::mem::replace(&mut file.failed, false))
    }

    /// What is held of a file is to be given back, down to reading or altogether: what is being
    /// asked for is void. One at a time; what is returned says so until it is dropped.
    pub(crate) fn recall(&self, ino: Ino, keep_read: bool) -> Leaving<'_> {
        self.change(ino, |file| {
            file.voids += 1;
            file.recalling = Some(keep_read);
            file.leaves_if_it_can();
        });
        Leaving { table: self, ino, keep_read }
    }

    /// What can be given back unasked: nobody uses it, no host has pages, nothing is untold, and it
    /// was last used at `before`; so many at most.
    pub(crate) fn idle(&self, before: Time, most: usize) -> Vec<Ino> {
        let mut files = self.files();
        files.retain(|_, file| {
            if let Some(gone) = &mut file.gone {
                gone.looks = gone.looks.saturating_add(1);
                let is_open = file.asking || file.returning;
                file.gone = file.gone.filter(|gone| gone.looks < LOOKS || is_open);
            }
            !file.is_empty()
        });
        let idle = files.iter().filter(|(_, file)| {
            file.held.is_some()
                && file.uses == 0
                && !file.asking
                && file.recalling.is_none()
                && file.cached == Cached::Nothing
                && file.used <= before
        });
        idle.map(|(ino, _)| *ino).take(most).collect()
    }

    /// What is held of a file, for who gives it back.
    pub(crate) fn held(&self, ino: Ino) -> Option<(Mode, u64)> {
        self.look(ino, |file| {
            file.held.as_ref().map(|held| (held.grant.mode, held.grant.capability.fence))
        })
        .flatten()
    }

    /// The grant there is, whether or not it may be used.
    pub(crate) fn grant(&self, ino: Ino) -> Option<Arc<Grant>> {
        self.look(ino, |file| file.held.as_ref().map(|held| Arc::clone(&held.grant))).flatten()
    }

    /// All grants there are.
    pub(crate) fn grants(&self) -> Vec<Arc<Grant>> {
        let files = self.files();
        files.values().filter_map(|file| Some(Arc::clone(&file.held.as_ref()?.grant))).collect()
    }

    /// Delegations to read, to write; files that hosts have pages of; changes to be told.
    pub(crate) fn figures(&self) -> [u64; 4] {
        let files = self.files();
        let count =
            |is: &dyn Fn(&File) -> bool| files.values().filter(|file| is(file)).count() as u64;
        let holds = |file: &File, mode| file.held.as_ref().is_some_and(|it| it.grant.mode == mode);
        [
            count(&|file| holds(file, Mode::Read)),
            count(&|file| holds(file, Mode::Write)),
            count(&|file| file.cached != Cached::Nothing),
            count(&File::has_untold),
        ]
    }
}

/// The server may not have heard yet that a delegation was given back, so nobody asks for it anew,
/// nor uses it, until this is dropped.
pub(crate) struct Returning<'t> {
    table: &'t Table,
    ino: Ino,
}

impl Drop for Returning<'_> {
    fn drop(&mut self) {
        self.table.change(self.ino, |file| file.returning = false);
    }
}

/// A delegation is being given back. Once hosts have given up what they must, no use begins.
pub(crate) struct Leaving<'t> {
    table: &'t Table,
    ino: Ino,
    keep_read: bool,
}

impl<'t> Leaving<'t> {
    /// Whether hosts have pages that must go first.
    pub(crate) fn waits_for_hosts(&self) -> bool {
        self.table.look(self.ino, |file| !file.leaving).unwrap_or(false)
    }

    /// Waits until hosts have given up what they must, and no use is under way.
    pub(crate) async fn idle(&self) {
        self.table.until(self.ino, |file| (file.leaving && file.uses == 0).then_some(())).await;
    }

    /// It is given back, all of it, and the server is about to hear of that.
    pub(crate) fn returns(self) -> Returning<'t> {
        let (table, ino) = (self.table, self.ino);
        table.change(ino, |file| file.returning = true);
        self.left();
        Returning { table, ino }
    }

    /// It is given back.
    pub(crate) fn left(self) {
        let keep_read = self.keep_read;
        self.table.change(self.ino, |file| {
            if let Some(fence) = file.fence() {
                file.is_gone(fence, keep_read);
            }
            if !keep_read {
                file.held = None;
            } else if let Some(held) = &mut file.held {
                let mut grant = Grant::clone(&held.grant);
                (grant.attr.size, grant.attr.blocks) = (held.size, held.blocks);
                if let Some(mtime) = held.mtime {
                    grant.attr.mtime = grant.attr.mtime.max(mtime);
                }
                grant.mode = Mode::Read;
                held.grant = Arc::new(grant);
            }
        });
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.table.change(self.ino, |file| (file.recalling, file.leaving) = (None, false));
    }
}
