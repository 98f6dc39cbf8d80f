//! The client as a volume among others.

use std::time::Duration;

use outboard_base::task::try_join_abreast;
use outboard_base::{Errno, Fh, Ino, Result, SessionId, Timestamp};
use outboard_flow::Net;
use outboard_volume::{
    Answer, Caller, Figures, Housekeeping, Payload, Report, Volume, VolumeEvent,
};
use outboard_wire::file::{Attr, Header, Request};
use outboard_wire::shared::call::{Call, Mode as Delegation, Reply};

use crate::forward::{Asked, asker};
use crate::{Dfs, Mode, locked};

/// Delegations given back at a time, at an end.
pub(crate) const ABREAST: usize = 16;
/// How long an end waits for what was written to be told and durable.
const END: Duration = Duration::from_secs(5);
/// And for the server to take back what nobody uses: who wants some of the rest waits once, until
/// the lease of who has ended is over.
const GIVE: Duration = Duration::from_secs(1);

impl<N: Net> Volume for Dfs<N> {
    async fn handle(
        &self,
        caller: &Caller,
        header: &Header,
        request: Request<'_>,
        payload: Payload,
        now: Timestamp,
    ) -> Result<Answer> {
        let asked = Asked { caller, header, request: &request, payload: payload.bytes(), now };
        self.0.handle(asked).await
    }

    fn detach(&self, session: SessionId) {
        self.0.handles.detach(session);
        self.0.replays.detach(session);
        self.0.errand(Call::Detach { session });
    }

    fn is_back(&self, session: SessionId) {
        self.0.comes_back(session);
    }

    fn take_events(&self) -> Vec<VolumeEvent> {
        std::mem::take(&mut locked(&self.0.events))
    }

    async fn cacheable(&self, ino: Ino) -> Result<(Attr, bool)> {
        if self.0.options.mode == Mode::Standard {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut tries = 0;
        loop {
            let entered = self.0.enter_blind(ino, Delegation::Read).await?;
            if let Some(granted) = self.0.table.cache(&entered) {
                return Ok(granted);
            }
            drop(entered);
            self.0.pause(&mut tries).await?;
        }
    }

    async fn may_write(&self, caller: &Caller, ino: Ino) -> Result<bool> {
        match self.0.ask(Call::MayWrite { asker: asker(caller), ino }).await? {
            Reply::Flag(may) => Ok(may),
            Reply::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }

    async fn write_back(
        &self,
        _: SessionId,
        ino: Ino,
        runs: &[(u64, &[u8])],
        mtime: Option<Timestamp>,
    ) -> Result<()> {
        // Others hear of it from the server, when it is told.
        self.0.write_back(ino, runs, mtime).await
    }

    fn opened(&self, session: SessionId, ino: Ino, fh: Fh) -> Option<u32> {
        self.0.handles.get(session, ino, fh).ok().map(|handle| handle.flags)
    }

    async fn truncate(&self, ino: Ino, now: Timestamp) -> Result<()> {
        match self.0.options.mode {
            Mode::Standard => Ok(()),
            Mode::Direct => self.0.truncate(ino, true, Some(now)).await,
        }
    }

    fn notify_changed(&self, session: SessionId, ino: Ino) {
        // Sessions of other clients hear of it from the server.
        let others = self.0.handles.others(session).into_iter();
        let stale = others.map(|attachment| VolumeEvent::StaleInode { attachment, ino });
        locked(&self.0.events).extend(stale);
    }

    async fn reserve(&self, pages: u64, page_size: u64) -> Result<()> {
        let enough = self.0.lease.reserve(pages.saturating_mul(page_size));
        if enough { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    fn unreserve(&self, pages: u64, page_size: u64) {
        self.0.lease.unreserve(pages.saturating_mul(page_size));
    }

    fn lease_left(&self) -> Option<Duration> {
        (self.0.options.mode == Mode::Direct).then(|| self.0.cached_for())
    }

    fn holds(&self, ino: Ino) -> bool {
        self.0.options.mode == Mode::Standard
            || (self.0.is_alive() && self.0.table.holds(ino, self.0.lease.lapses()))
    }

    async fn hold(&self, ino: Ino) -> Result<()> {
        match self.0.options.mode {
            Mode::Standard => Ok(()),
            Mode::Direct => self.0.enter_blind(ino, Delegation::Write).await.map(drop),
        }
    }

    fn recalled(&self, ino: Ino, keep_read: bool) {
        self.0.table.recalled(ino, keep_read);
    }
}

impl<N: Net> Housekeeping for Dfs<N> {
    /// Hosts have handed in what they held, or had the time to: the server need not wait for them.
    async fn end_grace(&self) -> Result<()> {
        self.0.errand(Call::HandedIn);
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

    /// Everything is told and durable, and what nobody uses is given back. Where the server or its
    /// lease is gone there is nobody to tell: what was acknowledged is found by whoever asks next.
    async fn sync(&self) -> Result<()> {
        let inner = &self.0;
        if inner.lease.has_changed() || inner.lease.is_revoked() {
            return Ok(());
        }
        match inner.within(END, inner.flush_all()).await {
            Some(done) => done?,
            None => return Err(Errno::ETIMEDOUT),
        }
        let idle = inner.table.idle(inner.now(), usize::MAX).into_iter();
        let each = idle.map(|ino| async move {
            inner.give_back(ino).await;
            Ok::<(), Errno>(())
        });
        let _ = inner.within(GIVE, try_join_abreast(ABREAST, each)).await;
        Ok(())
    }

    async fn check(&self, contents: bool) -> Result<Report> {
        match self.0.ask(Call::Check { contents }).await? {
            Reply::Text(text) => report(&text).ok_or(Errno::EPROTO),
            Reply::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }

    fn figures(&self) -> Figures {
        let inner = &self.0;
        let ([reads, writes, cached, untold], (free, capacity)) =
            (inner.table.figures(), inner.lease.space());
        vec![
            ("lease_is_good", u64::from(inner.is_alive())),
            ("lease_lapses", inner.lease.lapses().saturating_sub(1)),
            ("delegations_to_read", reads),
            ("delegations_to_write", writes),
            ("files_cached", cached),
            ("changes_untold", untold),
            ("open", inner.handles.count()),
            ("bytes_free", free),
            ("bytes", capacity),
        ]
    }
}

/// What the server's check found, of its JSON: the sentences, and how many.
fn report(text: &str) -> Option<Report> {
    let mut rest = text.strip_prefix("{\"findings\":[")?;
    let mut findings = Vec::new();
    while let Some(string) = rest.trim_start_matches(',').strip_prefix('"') {
        let (finding, behind) = string_of(string)?;
        findings.push(finding);
        rest = behind;
    }
    let number = |name: &str| {
        let (_, behind) = rest.rsplit_once(name)?;
        let end = behind.find(|char: char| !char.is_ascii_digit()).unwrap_or(behind.len());
        behind.get(..end)?.parse().ok()
    };
    let (total, unsure) = (number("\"total\":")?, number("\"unsure\":")?);
    Some(Report { findings, total, unsure, counts: Figures::new() })
}

/// A string of JSON behind its first quote, and what follows it.
fn string_of(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((out, text.get(at + 1..)?)),
            '\\' => match chars.next()?.1 {
                'u' => {
                    let digits: String = chars.by_ref().take(4).map(|(_, char)| char).collect();
                    out.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
                }
                'n' => out.push('\n'),
                escaped => out.push(escaped),
            },
            other => out.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_the_server_writes_it() {
        let text = "{\"findings\":[\"a \\\"b\\\"\",\"c\\u0009\\\\\"],\"counts\":{\"x\":1},\
                    \"total\":12,\"unsure\":3}";
        let read = report(text).unwrap();
        assert_eq!(read.findings, ["a \"b\"", "c\t\\"]);
        assert_eq!((read.total, read.unsure), (12, 3));
        let clean = report("{\"findings\":[],\"counts\":{},\"total\":0,\"unsure\":0}").unwrap();
        assert!(clean.is_clean());
        for cut in 0..text.len() - 1 {
            // Digits may be missing at the end; else it is no report.
            if let Some(read) = report(&text[..cut]) {
                assert_eq!(read.total, 12, "cut at {cut}");
            }
        }
    }
}
