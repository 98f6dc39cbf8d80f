//! Delegations: asking for them, giving them back, and what the server recalls.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::Work;
use outboard_base::{Errno, Ino, Result};
use outboard_flow::Net;
use outboard_volume::VolumeEvent;
use outboard_wire::shared::call::{Call, Grant, Mode, Reply};
use outboard_wire::shared::{DATA_MAX, Peer, Strategy};

use crate::data::{DataError, is_redundant, is_stripe};
use crate::table::{Granted, Leaving, Renewal, Step, Use};
use crate::{AHEAD, Inner, locked};

/// How long who asks has to hear, before a recall takes what it hears for void. A grant and the
/// recall of it may come in one packet.
const HEAR: Duration = Duration::from_millis(20);
/// How often it is looked whether the lease is over.
const LOOK: Duration = Duration::from_millis(100);
/// How long hosts have to give pages up once the lease is over: the server waits to hear.
pub(crate) const LATE: Duration = Duration::from_secs(1);
/// The first pause before something is asked for again, and how often that is done.
const PAUSE: Duration = Duration::from_millis(5);
const TRIES: u32 = 64;

impl<N: Net> Inner<N> {
    /// Begins a use of a file's bytes: asks for its delegation, if need be. Waits for the lease.
    pub(crate) async fn enter(&self, ino: Ino, mode: Mode) -> Result<Use<'_>> {
        self.enter_as(ino, (mode, true)).await
    }

    /// The same, for who does not look at what is there.
    pub(crate) async fn enter_blind(&self, ino: Ino, mode: Mode) -> Result<Use<'_>> {
        self.enter_as(ino, (mode, false)).await
    }

    async fn enter_as(&self, ino: Ino, as_what: (Mode, bool)) -> Result<Use<'_>> {
        loop {
            self.lease.alive(|| self.now()).await?;
            let lapse = self.lease.lapses();
            let asking = match self.table.step(ino, as_what, lapse, self.now()) {
                Step::In(entered) => return Ok(entered),
                Step::Wait => {
                    self.table.settled(ino).await;
                    continue;
                }
                Step::Ask(asking) => asking,
            };
            let granted = self.delegate(ino, asking.mode, asking.continues).await;
            if let Ok(grant) = &granted {
                self.data.goes_on(grant);
                if asking.continues.is_some_and(|before| grant.capability.fence > before) {
                    self.data.begins_anew(ino.0, grant.capability.fence);
                }
            }
            match granted {
                Ok(grant) => match asking.granted(grant, lapse) {
                    Granted::Ours | Granted::Again => {}
                    Granted::Anew => self.recall_pages(ino, false),
                    Granted::Void { fence, keep } => {
                        // Whatever the server says: it has heard of it then, and grants anew.
                        self.ask(Call::Release { ino, fence, told: None, keep }).await?;
                    }
                },
                Err(errno) => {
                    drop(asking);
                    if errno == Errno::ESTALE {
                        self.lose(ino, None);
                    }
                    return Err(errno);
                }
            }
        }
    }

    /// Uses of two files, which may be one: the lower number first, as everybody does.
    pub(crate) async fn enter_both(
        &self,
        (read, write): (Ino, Ino),
    ) -> Result<(Option<Use<'_>>, Use<'_>)> {
        if read == write {
            return Ok((None, self.enter(write, Mode::Write).await?));
        }
        if read < write {
            let source = self.enter(read, Mode::Read).await?;
            return Ok((Some(source), self.enter(write, Mode::Write).await?));
        }
        let target = self.enter(write, Mode::Write).await?;
        Ok((Some(self.enter(read, Mode::Read).await?), target))
    }

    /// Asks for what is held under a fence under another one; `None` if it is not held any more, or
    /// less is. Waits for nobody else's delegation: a use goes on meanwhile.
    async fn regrant(&self, ino: Ino, mode: Mode, fence: u64) -> Option<Grant> {
        let mut pause = PAUSE;
        loop {
            let unreached = self.data.take_unreached(ino.0);
            match self.ask(Call::Regrant { ino, fence, unreached }).await.ok()? {
                Reply::Grant(grant) if grant.mode >= mode => {
                    return self.check(ino, mode, *grant).ok();
                }
                Reply::Failed(Errno::EAGAIN | Errno::EBUSY | Errno::EIO) => {
                    self.net().sleep(pause).await;
                    pause = (pause * 2).min(LATE);
                }
                _ => return None,
            }
        }
    }

    /// Asks for a delegation, or for what is held under `continues` under another fence.
    pub(crate) async fn delegate(
        &self,
        ino: Ino,
        mode: Mode,
        mut continues: Option<u64>,
    ) -> Result<Grant> {
        let mut confirmed = false;
        let mut pause = PAUSE;
        loop {
            let call = match continues {
                Some(fence) => {
                    let unreached = self.data.take_unreached(ino.0);
                    Call::Regrant { ino, fence, unreached }
                }
                None => Call::Delegate { ino, mode },
            };
            match self.ask(call).await? {
                // It was recalled meanwhile, down to this.
                Reply::Grant(grant) if continues.is_some() && grant.mode < mode => continues = None,
                Reply::Grant(grant) => return self.check(ino, mode, *grant),
                Reply::Failed(Errno::ESTALE) if continues.is_some() => {
                    self.lose(ino, continues.take());
                }
                // Some who have copies cannot be asked now: as long as it takes, as with any node.
                Reply::Failed(Errno::EIO) if continues.is_some() => {
                    self.net().sleep(pause).await;
                    pause = (pause * 2).min(LATE);
                }
                // The file is gone, or the lease was not good: it is confirmed by now.
                Reply::Failed(Errno::ESTALE) if !confirmed => confirmed = true,
                Reply::Failed(Errno::EAGAIN | Errno::EBUSY) => {
                    self.net().sleep(pause).await;
                    pause = (pause * 2).min(LATE);
                }
                Reply::Failed(errno) => return Err(errno),
                _ => return Err(Errno::EPROTO),
            }
        }
    }

    /// Whether a grant is one that can be worked with.
    fn check(&self, ino: Ino, mode: Mode, grant: Grant) -> Result<Grant> {
        let (layout, capability) = (&grant.layout, &grant.capability);
        let strip_fits = layout.strip.is_power_of_two() && layout.strip <= DATA_MAX;
        let is_ours = capability.object == ino.0
            && capability.client == self.options.client
            && capability.volume == self.options.volume
            && capability.strategy == layout.strategy
            && grant.attr.ino == ino;
        if grant.mode < mode || !strip_fits || !is_ours || grant.nodes.is_empty() {
            return Err(Errno::EPROTO);
        }
        match capability.strategy {
            Strategy::Single => Ok(grant),
            Strategy::Ring | Strategy::BinaryTree
                if grant.nodes.len() == usize::from(capability.k) =>
            {
                Ok(grant)
            }
            Strategy::Parity if is_stripe(&grant) => Ok(grant),
            Strategy::Ring | Strategy::BinaryTree | Strategy::Parity => Err(Errno::EPROTO),
        }
    }

    /// Does something at a file's nodes, within a use. Where not all who have copies take it the
    /// file is had under another fence, and it is done again under that: the use goes on meanwhile,
    /// so nobody else gets the file between two tries, and sees what only one of them did.
    pub(crate) async fn at_nodes<T>(
        &self,
        of: &Use<'_>,
        work: impl AsyncFn(&Grant) -> std::result::Result<T, DataError>,
    ) -> std::result::Result<T, DataError> {
        let mut grant = Arc::clone(&of.grant);
        let mut tries = 0;
        loop {
            let error = match work(&grant).await {
                Err(error @ (DataError::Fenced | DataError::Undecided)) => error,
                done => return done,
            };
            if !is_redundant(&grant) || self.pause(&mut tries).await.is_err() {
                return Err(error);
            }
            grant = self.under_another(of, &grant).await.ok_or(error)?;
        }
    }

    /// What a use is under, under another fence than this; `None` if it is lost.
    pub(crate) async fn under_another(&self, of: &Use<'_>, grant: &Grant) -> Option<Arc<Grant>> {
        let (ino, fence) = (of.ino, grant.capability.fence);
        self.table.is_troubled(ino, fence);
        loop {
            let lapse = self.lease.lapses();
            let asking = match self.table.renew(of, fence)? {
                Renewal::Is(grant) => return Some(grant),
                Renewal::Wait => {
                    self.table.not_asking(ino).await;
                    continue;
                }
                Renewal::Ask(asking) => asking,
            };
            let grant = self.regrant(ino, asking.mode, fence).await?;
            self.data.goes_on(&grant);
            self.data.begins_anew(ino.0, grant.capability.fence);
            asking.granted(grant, lapse);
        }
    }

    /// A use was refused: sees to it that the next begins under something better; or why it makes
    /// no sense to try again.
    pub(crate) async fn after(
        &self,
        of: &Use<'_>,
        error: DataError,
        tries: &mut u32,
    ) -> Result<()> {
        use outboard_wire::shared::Reason;
        match error {
            DataError::Fenced | DataError::Undecided if is_redundant(&of.grant) => {
                self.table.is_troubled(of.ino, of.fence());
            }
            DataError::Fenced => self.lose(of.ino, Some(of.fence())),
            // A node that does not know the key, yet: who asks again has it told. Or one that is
            // not where another thinks it is.
            DataError::Expired | DataError::Refused(Reason::Forged | Reason::Other) => {
                self.table.is_stale(of.ino, Some(of.fence()));
            }
            DataError::Full => return Err(Errno::ENOSPC),
            DataError::Unsupported => return Err(Errno::EOPNOTSUPP),
            DataError::Refused(Reason::Revoked) => return Err(Errno::EACCES),
            DataError::Gone | DataError::Medium | DataError::Undecided | DataError::Refused(_) => {
                return Err(Errno::EIO);
            }
        }
        self.pause(tries).await
    }

    /// Waits before something is tried again; `EIO` if that was done too often.
    pub(crate) async fn pause(&self, tries: &mut u32) -> Result<()> {
        *tries += 1;
        if *tries > TRIES {
            return Err(Errno::EIO);
        }
        if *tries > 1 {
            self.net().sleep((PAUSE * *tries).min(LATE)).await;
        }
        Ok(())
    }

    /// A delegation is lost. What was not told is forgotten; hosts give up what they have.
    pub(crate) fn lose(&self, ino: Ino, fence: Option<u64>) {
        if self.table.lose(ino, fence) {
            self.recall_pages(ino, false);
        }
    }

    fn recall_pages(&self, ino: Ino, keep_read: bool) {
        locked(&self.events).push(VolumeEvent::RecallPages { ino, keep_read });
    }

    /// Before the lease is over: what hosts have cached could be another's to change then, so they
    /// give it up, and ask.
    pub(crate) fn freeze_ahead(&self) {
        let ahead = self.now().after(AHEAD);
        if self.lease.lapses() == 0
            || self.lease.is_alive(ahead)
            || self.froze.swap(true, Ordering::SeqCst)
        {
            return;
        }
        self.freeze();
    }

    /// Hosts give up what they have cached.
    pub(crate) fn freeze(&self) {
        for ino in self.table.cached() {
            self.recall_pages(ino, false);
        }
    }

    /// How long hosts may use what they have cached: not at all while one has something from before
    /// a lapse, which others may have had since.
    pub(crate) fn cached_for(&self) -> Duration {
        let left = self.lease.left(self.now());
        if self.table.has_cached_before(self.lease.lapses()) { Duration::ZERO } else { left }
    }

    /// What comes of `work`, unless the lease is over before, and a while longer.
    async fn while_alive<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut late = Duration::ZERO;
        loop {
            let polled = std::future::poll_fn(|cx| work.as_mut().poll(cx));
            if let Some(out) = self.within(LOOK, polled).await {
                return Some(out);
            }
            late = if self.is_alive() { Duration::ZERO } else { late + LOOK };
            if late >= LATE {
                return None;
            }
        }
    }

    /// The server recalls a delegation.
    pub(crate) async fn recalled_by_server(&self, ino: Ino, keep: Option<Mode>) -> Reply {
        if keep == Some(Mode::Write) || self.lease.has_changed() {
            return Reply::Done;
        }
        let keep_read = keep.is_some();
        let _alone = self.recalls.exclusive(ino).await;
        let _ = self.within(HEAR, self.table.not_asking(ino)).await;
        let leaving = self.table.recall(ino, keep_read);
        if leaving.waits_for_hosts() {
            match is_planted(Fault::Recall) {
                true => self.table.recalled(ino, keep_read),
                false => self.recall_pages(ino, keep_read),
            }
        }
        let told = self.while_alive(async {
            leaving.idle().await;
            self.flush_to_leave(ino).await;
            self.say_undone(ino).await?;
            self.tell(ino).await
        });
        match told.await {
            Some(Ok(()) | Err(Errno::ESTALE)) => {
                leaving.left();
                Reply::Done
            }
            Some(Err(errno)) => Reply::Failed(errno),
            None => self.late(ino, leaving).await,
        }
    }

    /// The same when the lease is over, and nothing here may be waited for: the server may be
    /// waiting for this before it renews. If it has taken the file it says so.
    async fn late(&self, ino: Ino, leaving: Leaving<'_>) -> Reply {
        let Some((mode, fence)) = self.table.held(ino) else { return Reply::Done };
        if mode == Mode::Read {
            self.lose(ino, Some(fence));
            return Reply::Done;
        }
        if self.table.grant(ino).is_some_and(|grant| self.data.is_undone(&grant)) {
            match self.within(LATE, self.ask_once(&Call::Undone { ino, fence })).await {
                Some(Ok(Reply::Done)) => {}
                Some(Ok(Reply::Failed(Errno::ESTALE))) => {
                    self.lose(ino, Some(fence));
                    return Reply::Done;
                }
                _ => return Reply::Failed(Errno::EAGAIN),
            }
        }
        let Some(untold) = self.table.all_told(ino) else { return Reply::Done };
        match self.within(LATE, self.tell_once(&untold)).await {
            Some(Err(Errno::ESTALE)) => {
                self.lose(ino, Some(fence));
                Reply::Done
            }
            // It has not. What hosts or uses have under way is waited for when it asks again.
            Some(Ok(())) => match self.within(LOOK, leaving.idle()).await {
                Some(()) if self.table.untold(ino).is_none() => {
                    leaving.left();
                    Reply::Done
                }
                _ => Reply::Failed(Errno::EAGAIN),
            },
            _ => Reply::Failed(Errno::EAGAIN),
        }
    }

    /// Asks where nodes are that do not answer: of each for one of its files, whose fresh grant
    /// says so. Who waits for such a node goes on by that.
    pub(crate) fn seek_silent(self: &Arc<Self>) -> Option<Work> {
        if self.seeks.swap(true, Ordering::SeqCst) {
            return None;
        }
        let silent = self.data.take_silent();
        let grants = if silent.is_empty() { Vec::new() } else { self.table.grants() };
        let lies_on =
            |grant: &Grant, peer| grant.nodes.iter().any(|node| Peer::Node(node.node) == peer);
        let files = silent.into_iter().filter_map(|peer| {
            let grant = grants.iter().find(|grant| lies_on(grant, peer))?;
            Some((Ino(grant.capability.object), grant.capability.fence))
        });
        let files: BTreeMap<Ino, u64> = files.collect();
        if files.is_empty() {
            self.seeks.store(false, Ordering::SeqCst);
            return None;
        }
        let inner = Arc::clone(self);
        Some(Box::pin(async move {
            for (ino, fence) in files {
                inner.table.is_stale(ino, Some(fence));
                match inner.enter_blind(ino, Mode::Read).await {
                    Ok(used) => drop(inner.data.nodes(&used.grant)),
                    Err(errno) => tracing::debug!(%ino, %errno, "not said where its nodes are"),
                }
            }
            inner.seeks.store(false, Ordering::SeqCst);
        }))
    }

    /// Gives back what nobody uses.
    pub(crate) async fn give_back(&self, ino: Ino) {
        let alone = self.recalls.exclusive(ino).await;
        let leaving = self.table.recall(ino, false);
        if self.within(LOOK, leaving.idle()).await.is_none() {
            return;
        }
        self.flush_to_leave(ino).await;
        if self.say_undone(ino).await.is_err() || self.tell(ino).await.is_err() {
            return;
        }
        let Some((_, fence)) = self.table.held(ino) else { return };
        // It is not used any more, whenever the server hears of that. A recall of the same file
        // finds nothing, and does not wait for this: the server may wait for it before it answers.
        let _returning = leaving.returns();
        drop(alone);
        if let Err(errno) = self.ask(Call::Release { ino, fence, told: None, keep: None }).await {
            tracing::debug!(%ino, %errno, "a delegation that nobody uses is not given back");
        }
    }
}
