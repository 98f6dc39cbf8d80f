//! Attributes, where a host knows newer ones than the volume.
//!
//! Of an inode its own session may write in its cache, size and times are laid over what the volume
//! says. Any other session that asks has the grant taken down to reading: from then on changes
//! reach the volume as they are made, and whoever has an interest in the inode is notified.

use outboard_base::{Ino, Result, SessionId};
use outboard_volume::{Answer, Payload};
use outboard_wire::cache::Grant;
use outboard_wire::file::{Attr, Dirents, DirentsWriter, Reply, Request, open_flags};

use super::flush::stamp;
use super::grant_table::Concern;
use super::grants::nothing_is_cached;
use super::{Coherence, Operation, unreachable};
use outboard_volume::Volume;

impl Coherence {
    pub(super) async fn getattr<V: Volume>(
        &self,
        volume: &V,
        operation: Operation<'_>,
        ino: Ino,
    ) -> Result<Answer> {
        let session = operation.caller.attachment;
        self.seen_by(volume, session, ino).await?;
        let mut answer = operation.run(volume).await?;
        if let Reply::Attr(attr) = &mut answer.reply {
            self.overlay(session, attr)?;
        }
        Ok(answer)
    }

    /// A session is about to learn attributes: nobody else may change them unseen. Whether
    /// somebody could.
    async fn seen_by<V: Volume>(&self, volume: &V, session: SessionId, ino: Ino) -> Result<bool> {
        let hidden = self.view(ino, session).other_writes;
        if hidden {
            let _guard = self.range_locks.exclusive(ino).await;
            self.clear_others(volume, session, ino, Grant::Read).await?;
        }
        Ok(hidden)
    }

    /// Lays what the session's own record says over attributes: one DMA, if it may write.
    fn overlay(&self, session: SessionId, attr: &mut Attr) -> Result<()> {
        let mine = self.view(attr.ino, session).mine;
        let Some(held) = mine.filter(super::grant_table::HeldGrant::writes) else { return Ok(()) };
        let record = held.cache.control.record(held.slot, attr.ino).map_err(unreachable)?;
        let Some(record) = record else { return Ok(()) };
        attr.size = attr.size.max(record.size);
        if let Some(mtime) = stamp(&record, (held.cache.wall)()) {
            attr.mtime = attr.mtime.max(mtime);
            attr.ctime = attr.ctime.max(mtime);
            attr.change = attr.change.saturating_add(record.dirtied.pages);
        }
        Ok(())
    }

    /// Attributes of an inode as `session` is to see them, `attr` being what the volume said.
    async fn seen<V: Volume>(&self, volume: &V, session: SessionId, attr: &mut Attr) -> Result<()> {
        if self.seen_by(volume, session, attr.ino).await? {
            *attr = volume.cacheable(attr.ino).await?.0;
        }
        self.overlay(session, attr)
    }

    /// Whether caches may have something from before a start, and so an answer that comes now may
    /// be older than what they write back.
    fn is_in_doubt(&self, session: SessionId) -> bool {
        !self.table().is_complete(session, Concern::Anything)
    }

    /// Waits until no cache has anything of an inode from before a start. If the volume said `attr`
    /// when that was `in_doubt`, size and times are what it says now; all else its answer knows
    /// best.
    async fn recovered_of<V: Volume>(
        &self,
        volume: &V,
        session: SessionId,
        (attr, in_doubt): (&mut Attr, bool),
    ) {
        self.await_recovery(session, Concern::Inodes(attr.ino, attr.ino)).await;
        // What has no bytes has none in a cache.
        if in_doubt && let Ok((now, _)) = volume.cacheable(attr.ino).await {
            (attr.size, attr.blocks) = (now.size, now.blocks);
            attr.mtime = attr.mtime.max(now.mtime);
            attr.ctime = attr.ctime.max(now.ctime);
            attr.change = attr.change.max(now.change);
        }
    }

    /// A request that answers with the attributes of what a name leads to.
    pub(super) async fn names<V: Volume>(
        &self,
        volume: &V,
        operation: Operation<'_>,
    ) -> Result<Answer> {
        let session = operation.caller.attachment;
        let now = operation.now;
        let opened = match operation.request {
            Request::Create { flags, .. } | Request::Tmpfile { flags, .. } => Some(flags),
            _ => None,
        };
        let in_doubt = self.is_in_doubt(session);
        let mut answer = operation.run(volume).await?;
        if let Reply::Entry(attr) | Reply::Created(attr, _) = &mut answer.reply {
            self.recovered_of(volume, session, (attr, in_doubt)).await;
        }
        if let (Some(flags), Reply::Created(attr, fh)) = (opened, &mut answer.reply) {
            if flags & open_flags::TRUNC != 0 && !self.grants_on(attr.ino).is_empty() {
                self.truncate_found(volume, session, attr, now).await?;
            }
            self.grant(volume, session, (attr.ino, *fh), flags).await;
        }
        match &mut answer.reply {
            Reply::Entry(attr) | Reply::Created(attr, _) => {
                self.seen(volume, session, attr).await?;
            }
            _ => {}
        }
        Ok(answer)
    }

    /// A file found by its name was truncated to nothing. Whoever has it cached has it truncated
    /// now: what they wrote since the volume did counts as written before.
    async fn truncate_found<V: Volume>(
        &self,
        volume: &V,
        session: SessionId,
        attr: &mut Attr,
        now: outboard_base::Timestamp,
    ) -> Result<()> {
        let ino = attr.ino;
        let _guard = self.range_locks.exclusive(ino).await;
        for held in self.grants_on(ino) {
            self.recall(volume, &held, ino, Grant::Free).await?;
        }
        nothing_is_cached(volume, ino);
        volume.truncate(ino, now).await?;
        volume.notify_changed(session, ino);
        *attr = volume.cacheable(ino).await?.0;
        Ok(())
    }

    /// A directory with attributes of what is in it.
    pub(super) async fn listing<V: Volume>(
        &self,
        volume: &V,
        operation: Operation<'_>,
    ) -> Result<Answer> {
        let session = operation.caller.attachment;
        let in_doubt = self.is_in_doubt(session);
        let mut answer = operation.run(volume).await?;
        let about = |ino: Ino| {
            let view = self.view(ino, session);
            in_doubt || view.other_writes || view.mine.is_some_and(|held| held.writes())
        };
        let entries = || Dirents::new(answer.payload.bytes()).flatten();
        if !entries().any(|entry| entry.attr.is_some() && about(entry.ino)) {
            return Ok(answer);
        }
        let mut bytes = vec![0; answer.payload.bytes().len()];
        let mut writer = DirentsWriter::new(&mut bytes);
        for mut entry in Dirents::new(answer.payload.bytes()).flatten() {
            if about(entry.ino)
                && let Some(attr) = &mut entry.attr
            {
                self.recovered_of(volume, session, (attr, in_doubt)).await;
                self.seen(volume, session, attr).await?;
            }
            writer.push(&entry)?;
        }
        answer.payload = Payload::Bytes(bytes);
        Ok(answer)
    }
}
