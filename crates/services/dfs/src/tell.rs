//! Telling the server what changed, and making it durable.

use std::time::Duration;

use outboard_base::task::try_join_abreast;
use outboard_base::{Errno, Fh, Ino, Result};
use outboard_flow::{Gone, Net};
use outboard_volume::Answer;
use outboard_wire::file;
use outboard_wire::shared::call::{Call, Mode, Reply};

use crate::delegate::LATE;
use crate::forward::Asked;
use crate::port::ABREAST;
use crate::table::{Untold, Use};
use crate::{DataError, Inner};

/// How long nodes are waited for that have not said what a file takes.
const COUNT: Duration = Duration::from_secs(1);

impl<N: Net> Inner<N> {
    /// Tells the server what it does not know of a file yet.
    ///
    /// # Errors
    /// `ESTALE` if the delegation was lost; what the server says otherwise.
    pub(crate) async fn tell(&self, ino: Ino) -> Result<()> {
        let _alone = self.telling.exclusive(ino).await;
        self.tell_alone(ino).await
    }

    /// The same, the lock held.
    pub(crate) async fn tell_alone(&self, ino: Ino) -> Result<()> {
        self.count(ino).await;
        let Some(untold) = self.table.untold(ino) else { return Ok(()) };
        let Untold { fence, told, .. } = untold;
        let reply = self.ask(Call::Publish { ino, fence, told }).await?;
        self.take_told(&untold, reply)
    }

    /// From now on what makes a file longer is told before it is answered, and what lies behind the
    /// end that the server knows is nobody's: whoever resolves the file takes it away. False if the
    /// delegation is lost.
    pub(crate) async fn tells_first(&self, of: &Use<'_>) -> Result<bool> {
        if self.table.tells(of) {
            return Ok(true);
        }
        let _alone = self.telling.exclusive(of.ino).await;
        let call = |Untold { ino, fence, told, .. }| Call::Tells { ino, fence, told };
        let is_told = self.tell_all_as(of, call).await?;
        if is_told {
            self.table.tells_from_now(of);
        }
        Ok(is_told)
    }

    /// A file is so long, which is told before it is answered; false if the delegation was lost
    /// before: then it is not.
    pub(crate) async fn tell_end(&self, of: &Use<'_>, end: u64) -> Result<bool> {
        if self.table.is_known(of, end) {
            return Ok(true);
        }
        let _alone = self.telling.exclusive(of.ino).await;
        self.tell_end_alone(of, end).await
    }

    /// The same, the lock held.
    pub(crate) async fn tell_end_alone(&self, of: &Use<'_>, end: u64) -> Result<bool> {
        if self.table.is_known(of, end) {
            return Ok(true);
        }
        let call = |Untold { ino, fence, told, .. }| Call::Publish { ino, fence, told };
        self.tell_all_as(of, call).await
    }

    /// What is held of a file, and told like this; false if the delegation is lost.
    pub(crate) async fn tell_all_as(
        &self,
        of: &Use<'_>,
        call: impl FnOnce(Untold) -> Call,
    ) -> Result<bool> {
        self.count(of.ino).await;
        let all = self.table.all_told(of.ino).filter(|_| self.table.holds_still(of));
        let Some(all) = all else { return Ok(false) };
        let reply = self.ask(call(all)).await?;
        match self.take_told(&all, reply) {
            Ok(()) => Ok(true),
            Err(Errno::ESTALE) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// What a changed file takes becomes known, if its nodes say so soon.
    pub(crate) async fn count(&self, ino: Ino) {
        let Some(grant) = self.table.grant(ino).filter(|_| self.table.has_untold(ino)) else {
            return;
        };
        if self.data.held(&grant).is_none() {
            let _ = self.within(COUNT, self.data.count(&grant)).await;
            self.takes(ino);
        }
    }

    /// Notes what a file takes, if its nodes have said so under what is held of it.
    pub(crate) fn takes(&self, ino: Ino) {
        if let Some(grant) = self.table.grant(ino)
            && let Some(bytes) = self.data.held(&grant)
        {
            self.table.takes(&grant, bytes, self.now());
        }
    }

    /// Tells once, whoever else does.
    pub(crate) async fn tell_once(&self, untold: &Untold) -> Result<()> {
        let Untold { ino, fence, told, .. } = *untold;
        let reply = self.ask_once(&Call::Publish { ino, fence, told }).await;
        self.take_told(untold, reply.map_err(|_: Gone| Errno::EAGAIN)?)
    }

    fn take_told(&self, untold: &Untold, reply: Reply) -> Result<()> {
        match reply {
            Reply::Done => {
                self.table.told(untold);
                Ok(())
            }
            Reply::Failed(Errno::ESTALE) => {
                self.lose(untold.ino, Some(untold.fence));
                Err(Errno::ESTALE)
            }
            Reply::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }

    /// `fsync(2)`; with `data_only` what `fdatasync(2)` promises: what is needed to read the file
    /// back. Of that the server is asked only where it has not made it durable before.
    pub(crate) async fn sync(
        &self,
        asked: Asked<'_>,
        (ino, fh): (Ino, Fh),
        data_only: bool,
    ) -> Result<Answer> {
        let session = asked.caller.attachment;
        let handle = self.handles.get(session, ino, fh);
        if handle.as_ref().is_ok_and(|handle| handle.directory) {
            return self.forward(asked).await;
        }
        self.say_failure(ino)?;
        let has_heard = handle.is_ok_and(|handle| handle.synced) && !asked.is_replay();
        let is_enough = || {
            let lapse = self.lease.lapses();
            data_only && has_heard && self.is_alive() && self.table.is_synced(ino, lapse)
        };
        if is_enough() {
            self.flush_bytes(ino).await?;
            // Unless it was lost, or has grown meanwhile.
            if is_enough() {
                return Ok(file::Reply::Empty.into());
            }
        }
        match self.flush_file(ino).await {
            // No regular file, or one that is gone: the server says what is the matter.
            Ok(()) | Err(Errno::EINVAL | Errno::EISDIR | Errno::ESTALE) => {}
            Err(errno) => return Err(errno),
        }
        let known = self.table.known(ino);
        let answer = self.forward(asked).await?;
        self.handles.synced(session, fh);
        known.into_iter().for_each(|known| self.table.synced(ino, known));
        Ok(answer)
    }

    /// Of one file: the server knows what changed, and its nodes have all of it durably.
    async fn flush_file(&self, ino: Ino) -> Result<()> {
        match self.tell(ino).await {
            // What was acknowledged is found by whoever took the file.
            Ok(()) | Err(Errno::ESTALE) => {}
            Err(errno) => return Err(errno),
        }
        self.flush_bytes(ino).await
    }

    /// Its nodes have all of it durably, or it is said that something was lost.
    async fn flush_bytes(&self, ino: Ino) -> Result<()> {
        self.flush_nodes(ino).await?;
        if self.data.take_lost(ino.0) { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Before others get a file: what they see of it is durable, so whoever syncs it says the
    /// truth. A node that is away holds nobody up; this client knows then what is not flushed.
    pub(crate) async fn flush_to_leave(&self, ino: Ino) {
        let nodes = self.data.unsynced(ino.0);
        if nodes.is_empty() {
            return;
        }
        let grant = self.table.grant(ino);
        let flushed = async {
            match grant {
                Some(grant) => self.data.flush_file(&grant).await,
                None => self.data.flush(nodes.into_iter()).await,
            }
        };
        let _in_time = self.within(LATE, flushed).await;
    }

    /// Before others get a file with copies: the server knows if a write of it failed, which some
    /// members may have.
    pub(crate) async fn say_undone(&self, ino: Ino) -> Result<()> {
        let Some(grant) = self.table.grant(ino).filter(|grant| self.data.is_undone(grant)) else {
            return Ok(());
        };
        match self.ask(Call::Undone { ino, fence: grant.capability.fence }).await? {
            Reply::Done => Ok(()),
            Reply::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }

    /// What the nodes of a file have answered becomes durable. One that does not answer is waited
    /// for, unless the file can go on without it.
    async fn flush_nodes(&self, ino: Ino) -> Result<()> {
        loop {
            let grant = match self.table.grant(ino) {
                Some(grant) => grant,
                None => self.enter_blind(ino, Mode::Read).await?.grant.clone(),
            };
            match self.data.flush_file(&grant).await {
                Ok(()) => return Ok(()),
                Err(DataError::Undecided) => {
                    self.table.is_troubled(ino, grant.capability.fence);
                    drop(self.enter_blind(ino, Mode::Read).await?);
                }
                Err(_) => return Err(Errno::EIO),
            }
        }
    }

    /// Tells the server what it does not know yet, of all files.
    pub(crate) async fn tell_of_all(&self) -> Result<()> {
        let told = async |ino| match self.tell(ino).await {
            Err(Errno::ESTALE) => Ok(Ok(())),
            told => Ok::<_, Errno>(told),
        };
        let each = self.table.all_untold(outboard_base::Time(u64::MAX)).into_iter().map(told);
        // All of them, whatever becomes of one.
        try_join_abreast(ABREAST, each).await?.into_iter().collect()
    }

    /// Everything of all files.
    pub(crate) async fn flush_all(&self) -> Result<()> {
        let mut outcome = self.tell_of_all().await;
        for grant in self.table.grants() {
            let ino = Ino(grant.capability.object);
            if !self.data.unsynced(ino.0).is_empty() {
                outcome = outcome.and(self.flush_nodes(ino).await);
            }
        }
        // Files that were given away while a node was.
        let others = self.data.flush_all().await.map_err(|_| Errno::EIO);
        outcome = outcome.and(others);
        if self.data.take_any_lost() { Err(Errno::EIO) } else { outcome }
    }
}
