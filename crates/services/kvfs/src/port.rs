//! KVFS as a volume among others.

use std::future::Future;

use outboard_base::{Fh, Ino, Result, SessionId, Timestamp};
use outboard_kv::object::BLOCK;
use outboard_kv::{Kv, KvError};
use outboard_medium::Medium;
use outboard_volume::{
    Answer, Caller, Figures, Housekeeping, Payload, Report, Volume, VolumeEvent,
};
use outboard_wire::file::{Attr, Header, Request};

use crate::{Kvfs, check};

impl<K: Kv, M: Medium> Volume for Kvfs<K, M> {
    fn handle(
        &self,
        caller: &Caller,
        header: &Header,
        request: Request<'_>,
        payload: Payload,
        now: Timestamp,
    ) -> impl Future<Output = Result<Answer>> {
        Kvfs::handle(self, caller, header, request, payload, now)
    }

    fn detach(&self, session: SessionId) {
        Kvfs::detach(self, session);
    }

    fn is_back(&self, session: SessionId) {
        Kvfs::is_back(self, session);
    }

    fn take_events(&self) -> Vec<VolumeEvent> {
        Kvfs::take_events(self)
    }

    fn cacheable(&self, ino: Ino) -> impl Future<Output = Result<(Attr, bool)>> {
        Kvfs::cacheable(self, ino)
    }

    fn may_write(&self, caller: &Caller, ino: Ino) -> impl Future<Output = Result<bool>> {
        Kvfs::may_write(self, caller, ino)
    }

    fn write_back(
        &self,
        session: SessionId,
        ino: Ino,
        runs: &[(u64, &[u8])],
        mtime: Option<Timestamp>,
    ) -> impl Future<Output = Result<()>> {
        Kvfs::write_back(self, session, ino, runs, mtime)
    }

    fn is_known(&self, session: SessionId, ino: Ino) -> bool {
        Kvfs::is_known(self, session, ino)
    }

    fn is_open_to_write(&self, session: SessionId, ino: Ino) -> bool {
        Kvfs::is_open_to_write(self, session, ino)
    }

    fn opened(&self, session: SessionId, ino: Ino, fh: Fh) -> Option<u32> {
        Kvfs::opened(self, session, ino, fh)
    }

    fn truncate(&self, ino: Ino, now: Timestamp) -> impl Future<Output = Result<()>> {
        Kvfs::truncate(self, ino, now)
    }

    fn notify_changed(&self, session: SessionId, ino: Ino) {
        Kvfs::notify_changed(self, session, ino);
    }

    async fn reserve(&self, pages: u64, page_size: u64) -> Result<()> {
        self.objects().reserve(blocks(pages, page_size)).await.map_err(KvError::errno)
    }

    fn unreserve(&self, pages: u64, page_size: u64) {
        self.objects().unreserve(blocks(pages, page_size));
    }
}

/// Blocks that so many pages may take, wherever in the file they lie.
fn blocks(pages: u64, page_size: u64) -> u64 {
    pages.saturating_mul(page_size.div_ceil(BLOCK))
}

impl<K: Kv, M: Medium> Housekeeping for Kvfs<K, M> {
    fn end_grace(&self) -> impl Future<Output = Result<()>> {
        Kvfs::end_grace(self)
    }

    fn tidy(&self) -> impl Future<Output = Result<bool>> {
        Kvfs::tidy(self)
    }

    fn expire_recalls(&self) {
        Kvfs::expire_recalls(self);
    }

    fn idle(&self) {
        self.objects().kv().idle();
    }

    fn wants_checkpoint(&self) -> bool {
        self.objects().is_unmarked()
    }

    async fn checkpoint(&self) -> Result<()> {
        self.objects().mark().await.map_err(KvError::errno)
    }

    async fn sync(&self) -> Result<()> {
        // Retires the log of moves first: after an orderly end a block that fails its checksum has
        // gone bad, and is never taken for one that did not reach the medium.
        Kvfs::tidy(self).await?;
        self.objects().sync().await.map_err(KvError::errno)
    }

    async fn check(&self, contents: bool) -> Result<Report> {
        let options = check::Options { contents, repair: false };
        Kvfs::check(self, options).await.map(|report| report.to_volume())
    }

    fn figures(&self) -> Figures {
        let (space, packing) = (self.statfs(), self.objects().packing());
        let (open, open_by_one_user, open_refused) = self.handles.figures();
        vec![
            ("id", space.id),
            ("block_size", space.block_size),
            ("blocks", space.blocks),
            ("blocks_free", space.blocks_free),
            ("blocks_available", space.blocks_available),
            ("files", space.files),
            ("files_free", space.files_free),
            ("written", packing.plain),
            ("written_taken", packing.taken),
            ("written_sent", packing.sent),
            ("open", open),
            ("open_by_one_user", open_by_one_user),
            ("open_refused", open_refused),
        ]
    }
}
