//! Where there is no volume.

use outboard_base::{Errno, Fh, Ino, Result, SessionId, Timestamp};
use outboard_wire::file::{Attr, Header, Request};

use crate::{Answer, Caller, Figures, Housekeeping, Payload, Report, Volume, VolumeEvent};

/// Stands where a DPU side could serve a volume and does not. Dispatch refuses its commands before
/// they reach it; whatever reaches it is answered `EOPNOTSUPP`, and it has nothing to keep in
/// order.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoVolume;

impl Volume for NoVolume {
    const EXISTS: bool = false;

    async fn handle(
        &self,
        _: &Caller,
        _: &Header,
        _: Request<'_>,
        _: Payload,
        _: Timestamp,
    ) -> Result<Answer> {
        Err(Errno::EOPNOTSUPP)
    }

    fn detach(&self, _: SessionId) {}

    fn is_back(&self, _: SessionId) {}

    fn take_events(&self) -> Vec<VolumeEvent> {
        Vec::new()
    }

    async fn cacheable(&self, _: Ino) -> Result<(Attr, bool)> {
        Err(Errno::EOPNOTSUPP)
    }

    async fn may_write(&self, _: &Caller, _: Ino) -> Result<bool> {
        Err(Errno::EOPNOTSUPP)
    }

    async fn write_back(
        &self,
        _: SessionId,
        _: Ino,
        _: &[(u64, &[u8])],
        _: Option<Timestamp>,
    ) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn opened(&self, _: SessionId, _: Ino, _: Fh) -> Option<u32> {
        None
    }

    async fn truncate(&self, _: Ino, _: Timestamp) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn notify_changed(&self, _: SessionId, _: Ino) {}

    async fn reserve(&self, _: u64, _: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn unreserve(&self, _: u64, _: u64) {}
}

impl Housekeeping for NoVolume {
    async fn end_grace(&self) -> Result<()> {
        Ok(())
    }

    async fn tidy(&self) -> Result<bool> {
        Ok(false)
    }

    fn expire_recalls(&self) {}

    fn idle(&self) {}

    fn wants_checkpoint(&self) -> bool {
        false
    }

    async fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    async fn check(&self, _: bool) -> Result<Report> {
        Ok(Report::default())
    }

    fn figures(&self) -> Figures {
        Figures::new()
    }
}
