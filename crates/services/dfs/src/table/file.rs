//! What this client has of one file, and what hosts have of it.

use std::sync::Arc;

use outboard_base::{Ino, Time, Timestamp};
use outboard_wire::file::Attr;
use outboard_wire::shared::call::{Grant, Mode, Told};

/// A delegation.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) grant: Arc<Grant>,
    /// The first of the fences under which it was held without a break.
    pub(super) first: u64,
    /// The lapse of the lease in which it was last confirmed.
    pub(super) lapse: u64,
    /// It is to be asked for again: attributes, or the capability, are old.
    pub(super) stale: bool,
    /// Not all who have copies take what is asked under this fence.
    pub(super) troubled: bool,
    /// Nobody has read or written it since the life before of this client could write it, nobody
    /// else and nobody here: what hosts have from then is still the newest there is.
    pub(super) kept: bool,
    /// What makes it longer is told before it is answered: of all else nobody is to hear.
    pub(super) tells: bool,
    pub(super) size: u64,
    /// How long it is by what the server knows,
    pub(super) known: u64,
    /// and by what it has made durable since it is held under this fence, if anything.
    pub(super) synced: Option<u64>,
    /// How often it was given a size since it is held.
    pub(super) resized: u64,
    /// Units of 512 bytes that it takes at the nodes, as far as is known here.
    pub(super) blocks: u64,
    /// When it was written last under this delegation.
    pub(super) mtime: Option<Timestamp>,
    /// Changes made, and of those, told to the server.
    pub(super) changes: u64,
    pub(super) told: u64,
    /// Since when there is something to tell.
    pub(super) since: Option<Time>,
}

/// What hosts may have in their caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Cached {
    #[default]
    Nothing,
    Read,
    /// They may write, granted under this fence.
    Write(u64),
}

/// What was given back last, until something newer is granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    pub(super) fence: u64,
    /// Reading was kept.
    pub(super) reads: bool,
    /// Looks for what is idle since then.
    pub(super) looks: u8,
}

#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) held: Option<Held>,
    pub(super) gone: Option<Gone>,
    pub(super) asking: bool,
    /// Recalls that were answered, or are about to be.
    pub(super) voids: u64,
    pub(super) uses: usize,
    /// It is to be given back, and whether pages may be kept to be read.
    pub(super) recalling: Option<bool>,
    /// It is being given back: no use begins. Set with the last page that a host gives up, so that
    /// none is granted anew before.
    pub(super) leaving: bool,
    /// It was given back, and the server has not said yet that it heard.
    pub(super) returning: bool,
    pub(super) cached: Cached,
    /// The lapse of the lease since which something is.
    pub(super) cached_in: u64,
    /// Something hosts wrote is lost: the next sync says so.
    pub(super) failed: bool,
    pub(super) used: Time,
}

impl File {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_none()
            && self.gone.is_none()
            && !self.asking
            && self.uses == 0
            && self.recalling.is_none()
            && !self.returning
            && self.cached == Cached::Nothing
            && !self.failed
    }

    pub(super) fn leaves_if_it_can(&mut self) {
        self.leaving = self.recalling.is_some_and(|keep_read| self.gives_pages_up(keep_read));
    }

    pub(super) fn fence(&self) -> Option<u64> {
        self.held.as_ref().map(Held::fence)
    }

    /// Its fence, if it may be written.
    pub(super) fn writes(&self) -> Option<u64> {
        self.held.as_ref().filter(|held| held.grant.mode == Mode::Write)?;
        self.fence()
    }

    /// Whether what was held under this fence is what is held, without a break.
    pub(super) fn holds(&self, fence: u64) -> bool {
        let range = |held: &Held| held.first..=held.grant.capability.fence;
        self.held.as_ref().is_some_and(|held| range(held).contains(&fence))
    }

    pub(super) fn writer(&mut self, fence: u64) -> Option<&mut Held> {
        let is_it = self.holds(fence);
        self.held.as_mut().filter(|held| is_it && held.grant.mode == Mode::Write)
    }

    pub(super) fn allows_write_back(&self) -> bool {
        matches!(self.cached, Cached::Write(fence) if self.fence() == Some(fence))
    }
}

impl File {
    /// Whether a grant is what was given back, not a new one: each has a fence of its own.
    pub(super) fn gave_back(&self, grant: &Grant) -> bool {
        self.gone.is_some_and(|gone| {
            grant.capability.fence <= gone.fence && !(gone.reads && grant.mode == Mode::Read)
        })
    }

    /// What is held under this fence, or was granted, is not this client's any more, whatever the
    /// server still says until it has heard of that.
    pub(super) fn is_gone(&mut self, fence: u64, reads: bool) {
        let fence = self.gone.map_or(fence, |gone| gone.fence.max(fence));
        self.gone = Some(Gone { fence, reads, looks: 0 });
    }

    /// A grant is what is held from now on; `continues`: instead of what is held under this fence,
    /// without a break. Whether what hosts have cached may stay.
    pub(super) fn install(&mut self, grant: Grant, lapse: u64, continues: Option<u64>) -> bool {
        let fence = grant.capability.fence;
        self.gone = self.gone.filter(|gone| gone.fence >= fence);
        let before = self.held.take();
        // Nobody else had it since: the same fence, or no moment without a lease.
        let is_same = |before: &Held| {
            let held = before.grant.capability.fence;
            held == fence || continues == Some(held)
        };
        let goes_on =
            before.as_ref().is_some_and(|before| is_same(before) || before.lapse == lapse);
        let is_same = before.as_ref().filter(|before| is_same(before));
        let first = is_same.map_or(fence, |before| before.first);
        let mut held = Held {
            lapse,
            stale: false,
            troubled: false,
            kept: grant.kept && before.as_ref().is_none_or(|before| before.kept),
            tells: false,
            size: grant.attr.size,
            known: grant.attr.size,
            synced: None,
            resized: 0,
            blocks: grant.attr.blocks,
            mtime: None,
            changes: 0,
            told: 0,
            since: None,
            first,
            grant: Arc::new(grant),
        };
        if let Some(before) = before
            && goes_on
            && before.grant.mode == Mode::Write
        {
            let &Held { size, blocks, mtime, changes, told, since, .. } = &before;
            (held.mtime, held.changes, held.told, held.since) = (mtime, changes, told, since);
            (held.size, held.blocks) = (size, blocks);
            held.tells = before.tells && before.first == first;
            if before.fence() == fence {
                (held.synced, held.resized) = (before.synced, before.resized);
            }
            if self.cached == Cached::Write(before.grant.capability.fence) {
                self.cached = Cached::Write(fence);
            }
        }
        self.held = Some(held);
        // What is cached to be read under a delegation that went unsaid is as good as this one.
        goes_on || !matches!(self.cached, Cached::Write(_))
    }

    pub(super) fn may(&self, mode: Mode, lapse: u64) -> bool {
        self.held
            .as_ref()
            .is_some_and(|held| held.grant.mode >= mode && held.lapse == lapse && !held.stale)
    }

    pub(super) fn has_untold(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.changes != held.told)
    }

    pub(super) fn gives_pages_up(&self, keep_read: bool) -> bool {
        match self.cached {
            Cached::Nothing => true,
            Cached::Read => keep_read,
            Cached::Write(_) => false,
        }
    }
}

impl File {
    pub(super) fn untold(&self, ino: Ino) -> Option<Untold> {
        self.held.as_ref().filter(|held| held.changes != held.told).map(|held| held.says(ino))
    }
}

impl Held {
    pub(super) fn fence(&self) -> u64 {
        self.grant.capability.fence
    }

    pub(super) fn known(&self) -> Known {
        Known { fence: self.fence(), resized: self.resized, size: self.known }
    }

    /// It is given a size.
    pub(super) fn resize(&mut self, size: u64) {
        (self.size, self.synced) = (size, None);
        self.resized += 1;
    }

    pub(super) fn says(&self, ino: Ino) -> Untold {
        let told = Told { size: self.size, mtime: self.mtime, blocks: Some(self.blocks) };
        Untold { ino, fence: self.grant.capability.fence, told, changes: self.changes }
    }

    pub(super) fn describe(&mut self, attr: &Attr) {
        let mut grant = Grant::clone(&self.grant);
        grant.attr = attr.clone();
        self.grant = Arc::new(grant);
    }

    pub(super) fn overlay(&self, attr: &mut Attr) {
        (attr.size, attr.blocks) = (self.size, self.blocks);
        if let Some(mtime) = self.mtime {
            // As the server will have it: its own clock may have given it a later one.
            attr.mtime = attr.mtime.max(mtime);
            attr.ctime = attr.ctime.max(attr.mtime);
        }
        attr.change = attr.change.saturating_add(self.changes - self.told);
    }
}

/// How long the server knows a file to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(super) fence: u64,
    pub(super) resized: u64,
    pub(super) size: u64,
}

/// Something to tell the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untold {
    pub(crate) ino: Ino,
    pub(crate) fence: u64,
    pub(crate) told: Told,
    pub(super) changes: u64,
}
