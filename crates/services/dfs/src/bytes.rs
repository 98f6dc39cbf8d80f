//! Bytes of files: reading, writing, holes, copies; under a delegation, and with the range of the
//! file locked here.

use std::ops::Range;
use std::sync::Arc;

use outboard_base::limits::{FILE_SIZE_MAX, IO_MAX};
use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::RangeGuard;
use outboard_base::{Errno, Fh, Ino, Result, Timestamp};
use outboard_flow::Net;
use outboard_volume::{Answer, Fill, Payload};
use outboard_wire::file::{Reply, open_flags, seek, write_flags};
use outboard_wire::shared::call::{Call, Grant, Mode, Reply as CallReply};

use crate::Inner;
use crate::data::{DataError, is_coded, is_redundant};
use crate::forward::{Asked, asker};
use crate::table::{Pages, Untold, Use};

/// A write, as far as its effect is concerned.
struct Write<'a> {
    ino: Ino,
    /// Where, or at the end.
    place: Option<u64>,
    data: &'a [u8],
    /// It takes set-id bits away.
    strips: bool,
}

impl<'a> Write<'a> {
    /// The part of the data that fits a file at `offset`; `EFBIG` if none does.
    fn clipped(&self, offset: u64) -> Result<&'a [u8]> {
        let room = FILE_SIZE_MAX.checked_sub(offset).filter(|room| *room > 0);
        let room = usize::try_from(room.ok_or(Errno::EFBIG)?).unwrap_or(usize::MAX);
        Ok(self.data.get(..room).unwrap_or(self.data))
    }
}

impl<N: Net> Inner<N> {
    pub(crate) async fn read(
        &self,
        asked: Asked<'_>,
        (ino, fh): (Ino, Fh),
        offset: u64,
        len: u32,
    ) -> Result<Answer> {
        let len = usize::try_from(len).ok().filter(|len| *len <= IO_MAX).ok_or(Errno::EINVAL)?;
        self.handles.readable(asked.caller.attachment, ino, fh)?;
        let bytes = self.read_bytes(ino, offset, len).await?;
        let count = u32::try_from(bytes.len()).map_err(|_| Errno::EIO)?;
        let payload = if count == 0 { Payload::None } else { Payload::Bytes(bytes) };
        Ok(Answer { reply: Reply::Data(count), payload })
    }

    async fn read_bytes(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut tries = 0;
        loop {
            let entered = self.enter(ino, Mode::Read).await?;
            let range = offset..offset.saturating_add(len as u64);
            let _range = self.ranges.shared_on(ino, range).await;
            match self.read_in(&entered, offset, len).await? {
                Some(Ok(bytes)) => return Ok(bytes),
                Some(Err(error)) => self.after(&entered, error, &mut tries).await?,
                None => self.pause(&mut tries).await?,
            }
        }
    }

    /// Reads within a use, the range locked; `None` if it does not count (R8).
    async fn read_in(
        &self,
        entered: &Use<'_>,
        offset: u64,
        len: usize,
    ) -> Result<Option<std::result::Result<Vec<u8>, DataError>>> {
        let lapse = self.lease.lapses();
        let Some(size) = self.table.size(entered) else { return Ok(None) };
        let left = size.saturating_sub(offset);
        let len = usize::try_from(left).map_or(len, |left| left.min(len));
        if len == 0 {
            return Ok(Some(Ok(Vec::new())));
        }
        let work = async |grant: &Grant| self.data.read(grant, offset, len).await;
        let read = self.at_nodes(entered, work).await;
        let is_in_time = self.is_alive() && self.lease.lapses() == lapse;
        let counts = is_in_time || is_planted(Fault::Late) || is_planted(Fault::Unfenced);
        Ok((counts && self.table.size(entered).is_some() || read.is_err()).then_some(read))
    }

    pub(crate) async fn write(
        &self,
        asked: Asked<'_>,
        (ino, fh, offset): (Ino, Fh, u64),
        flags: u32,
    ) -> Result<Reply> {
        if asked.payload.len() > IO_MAX {
            return Err(Errno::EINVAL);
        }
        let handle = self.handles.writable(asked.caller.attachment, ino, fh)?;
        let cached = flags & write_flags::WRITEBACK != 0;
        let appends =
            flags & write_flags::APPEND != 0 || (!cached && handle.flags & open_flags::APPEND != 0);
        let write = Write {
            ino,
            place: (!appends).then_some(offset),
            data: asked.payload,
            strips: flags & write_flags::KILL_SUIDGID != 0 || (!cached && !asked.passes()),
        };
        let recorded = self.replays.recorded(asked.header);
        let reply = match recorded {
            Some(reply) => reply,
            None => {
                let taken = self.write_bytes(asked, &write).await?;
                let reply = Reply::Written(u32::try_from(taken).map_err(|_| Errno::EIO)?);
                self.replays.record(asked.header, &reply);
                reply
            }
        };
        if flags & write_flags::DSYNC != 0 || handle.flags & open_flags::DSYNC != 0 {
            let all = handle.flags & open_flags::SYNC == open_flags::SYNC;
            let data_only = !all && flags & write_flags::SYNC == 0;
            self.sync_written(asked, (ino, fh), data_only).await?;
        }
        Ok(reply)
    }

    /// What was written becomes durable before it is answered.
    async fn sync_written(
        &self,
        asked: Asked<'_>,
        (ino, fh): (Ino, Fh),
        data_only: bool,
    ) -> Result<()> {
        use outboard_wire::file::{Flags, Header, Request};
        let flags = asked.header.flags.without(Flags::REPLAY);
        let header = Header { sequence: 0, flags, ..asked.header.clone() };
        let request = Request::Fsync { ino, fh, data_only };
        let sync = Asked { header: &header, request: &request, payload: &[], ..asked };
        self.sync(sync, (ino, fh), data_only).await.map(drop)
    }

    async fn write_bytes(&self, asked: Asked<'_>, write: &Write<'_>) -> Result<usize> {
        let ino = write.ino;
        let appends = write.place.is_none();
        if appends
            && asked.is_replay()
            && let Some(count) = self.answered(asked).await?
        {
            return Ok(count);
        }
        let mut tries = 0;
        loop {
            let entered = self.enter(ino, Mode::Write).await?;
            if write.data.is_empty() {
                return Ok(0);
            }
            let Some((_range, size)) = self.lock_to_write(&entered, write).await else {
                self.pause(&mut tries).await?;
                continue;
            };
            let offset = write.place.unwrap_or(size);
            let data = write.clipped(offset)?;
            if appends && !self.tells_first(&entered).await? {
                self.pause(&mut tries).await?;
                continue;
            }
            if write.strips && self.table.strips(ino) {
                self.strip(asked, ino).await?;
            }
            let append = appends.then_some(asked);
            let place = (offset, data, size);
            if self.put(&entered, place, asked.mtime(), append, &mut tries).await? {
                return Ok(data.len());
            }
        }
    }

    /// Writes bytes at a place of a file of so many, its range locked; of an append with what it is
    /// answered. False if that was not done, and is to be tried again.
    async fn put(
        &self,
        of: &Use<'_>,
        (at, data, size): (u64, &[u8], u64),
        mtime: Option<Timestamp>,
        append: Option<Asked<'_>>,
        tries: &mut u32,
    ) -> Result<bool> {
        let end = at + data.len() as u64;
        if !self.tells_of_stripes(of).await? {
            self.pause(tries).await?;
            return Ok(false);
        }
        let tells = self.table.tells(of);
        let work = async |grant: &Grant| self.data.write(grant, at, data).await;
        if let Err(error) = self.at_nodes(of, work).await {
            self.take_back(of, error, size.max(at)..end).await;
            self.after(of, error, tries).await?;
            return Ok(false);
        }
        self.wrote(of, end, mtime);
        let is_done = match append {
            Some(asked) => self.tell_append(asked, of, data.len()).await?,
            // Lost meanwhile or not: nodes had it before they were sealed, so it is found, unless
            // it was to be told.
            None => !tells || self.tell_end(of, end).await?,
        };
        if !is_done {
            self.pause(tries).await?;
        }
        Ok(is_done)
    }

    /// Members of stripes end alike, wherever in the last rows the file does: so how long it is
    /// must be told. False if the delegation is lost.
    async fn tells_of_stripes(&self, of: &Use<'_>) -> Result<bool> {
        let is_to_tell = is_coded(&of.grant) && !is_planted(Fault::Untold);
        if is_to_tell { self.tells_first(of).await } else { Ok(true) }
    }

    /// Notes what a write, or what is like one, has done.
    fn wrote(&self, of: &Use<'_>, end: u64, mtime: Option<Timestamp>) {
        self.table.wrote(of, end, mtime, self.now());
        self.takes(of.ino);
    }

    /// A write failed for good: what was taken of it behind the end of the file must not show when
    /// that grows.
    async fn take_back(&self, entered: &Use<'_>, error: DataError, range: Range<u64>) {
        let grant = match self.table.grant(entered.ino) {
            // Some may have it: that is decided before anybody hears that it failed.
            Some(grant) if is_redundant(&grant) => self.under_another(entered, &grant).await,
            _ if matches!(error, DataError::Fenced | DataError::Expired) => None,
            _ => Some(Arc::clone(&entered.grant)),
        };
        if let Some(grant) = grant.filter(|_| range.start < range.end)
            && let Err(error) = self.data.hole(&grant, range).await
        {
            tracing::warn!(ino = %entered.ino, ?error, "bytes of a failed write stay at nodes");
        }
        // Writes of other bytes may be under way beside that hole.
        self.data.forget_held(entered.ino.0);
    }

    /// The lock of the bytes a write touches, and the size since then. Who appends has all from the
    /// end on. `None` if the delegation is lost.
    async fn lock_to_write(
        &self,
        entered: &Use<'_>,
        write: &Write<'_>,
    ) -> Option<(RangeGuard<'_>, u64)> {
        let mut range = match write.place {
            Some(offset) => offset..offset.saturating_add(write.data.len() as u64),
            None => self.table.size(entered)?..u64::MAX,
        };
        loop {
            let guard = self.ranges.exclusive_on(write.ino, range.clone()).await;
            let size = self.table.size(entered)?;
            if write.place.is_some() || range.start <= size {
                return Some((guard, size));
            }
            // It was cut meanwhile.
            range.start = size;
        }
    }

    /// An append is told before it is answered, with what it is answered; false if the delegation
    /// was lost before: then it is to be done again.
    async fn tell_append(&self, asked: Asked<'_>, of: &Use<'_>, count: usize) -> Result<bool> {
        let count = u32::try_from(count).map_err(|_| Errno::EIO)?;
        let (asker, request) = (asker(asked.caller), asked.encoded(&asked.own_header())?);
        let _alone = self.telling.exclusive(of.ino).await;
        let call = |Untold { fence, told, .. }| Call::Wrote { asker, request, count, fence, told };
        self.tell_all_as(of, call).await
    }

    /// How much an append has written that is asked again, if it was done: by this life of the
    /// side or one before, and told.
    async fn answered(&self, asked: Asked<'_>) -> Result<Option<usize>> {
        let (asker, request) = (asker(asked.caller), asked.encoded(&asked.own_header())?);
        match self.ask(Call::Answered { asker, request }).await? {
            CallReply::Number(count) => usize::try_from(count).map(Some).map_err(|_| Errno::EPROTO),
            CallReply::Failed(Errno::ENOENT) => Ok(None),
            CallReply::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }

    async fn strip(&self, asked: Asked<'_>, ino: Ino) -> Result<()> {
        match self.ask(Call::Strip { asker: asker(asked.caller), ino }).await? {
            CallReply::Attr(attr) => {
                self.table.stripped(ino, &attr);
                Ok(())
            }
            CallReply::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }

    pub(crate) async fn fallocate(
        &self,
        asked: Asked<'_>,
        (ino, fh): (Ino, Fh),
        (offset, len): (u64, u64),
        mode: u32,
    ) -> Result<Reply> {
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let (fill, keeps_size) = Fill::of(mode)?;
        self.handles.writable(asked.caller.attachment, ino, fh)?;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX);
        let range = offset..end.ok_or(Errno::EFBIG)?;
        if let Some(reply) = self.replays.recorded(asked.header) {
            return Ok(reply);
        }
        let mut tries = 0;
        loop {
            let entered = self.enter(ino, Mode::Write).await?;
            let _range = self.ranges.exclusive(ino).await;
            let _telling = self.telling.exclusive(ino).await;
            if self.table.size(&entered).is_none() {
                self.pause(&mut tries).await?;
                continue;
            }
            if !asked.passes() && self.table.strips(ino) {
                self.strip(asked, ino).await?;
            }
            let tells = self.table.tells(&entered);
            let work = async |grant: &Grant| self.data.fill(grant, fill, range.clone()).await;
            match self.at_nodes(&entered, work).await {
                Ok(()) => {
                    let end = if keeps_size { 0 } else { range.end };
                    self.wrote(&entered, end, asked.mtime());
                    if tells && !self.tell_end_alone(&entered, end).await? {
                        self.pause(&mut tries).await?;
                        continue;
                    }
                    self.replays.record(asked.header, &Reply::Empty);
                    return Ok(Reply::Empty);
                }
                Err(error) => self.after(&entered, error, &mut tries).await?,
            }
        }
    }

    /// The next data or hole.
    pub(crate) async fn lseek(
        &self,
        asked: Asked<'_>,
        (ino, fh): (Ino, Fh),
        offset: u64,
        whence: u32,
    ) -> Result<Reply> {
        self.handles.get(asked.caller.attachment, ino, fh)?;
        let mut tries = 0;
        loop {
            let entered = self.enter(ino, Mode::Read).await?;
            let _range = self.ranges.shared(ino).await;
            let lapse = self.lease.lapses();
            let Some(size) = self.table.size(&entered) else {
                self.pause(&mut tries).await?;
                continue;
            };
            if offset >= size {
                return Err(Errno::ENXIO);
            }
            let grant = &entered.grant;
            let found = match whence {
                seek::DATA => self.data.next_data(grant, offset).await,
                seek::HOLE => self.data.next_hole(grant, offset, size).await.map(Some),
                _ => return Err(Errno::EINVAL),
            };
            // As a read, it counts only if it came in time (R8).
            let counts = self.is_alive() && self.lease.lapses() == lapse;
            match found {
                Ok(found) if counts && self.table.size(&entered).is_some() => {
                    let found = found.filter(|at| *at < size || whence == seek::HOLE);
                    return found.map(Reply::Offset).ok_or(Errno::ENXIO);
                }
                Ok(_) => self.pause(&mut tries).await?,
                Err(error) => self.after(&entered, error, &mut tries).await?,
            }
        }
    }

    /// Copies at most 1 MiB; the caller asks again for the rest, as `copy_file_range(2)` lets it.
    pub(crate) async fn copy(
        &self,
        asked: Asked<'_>,
        (from, from_fh, from_at): (Ino, Fh, u64),
        (to, to_fh, to_at): (Ino, Fh, u64),
        len: u64,
    ) -> Result<Reply> {
        let session = asked.caller.attachment;
        self.handles.readable(session, from, from_fh)?;
        let target = self.handles.writable(session, to, to_fh)?;
        if target.flags & open_flags::APPEND != 0 {
            return Err(Errno::EBADF);
        }
        let ends = from_at.checked_add(len).zip(to_at.checked_add(len));
        let (from_end, to_end) = ends.ok_or(Errno::EOVERFLOW)?;
        if from == to && from_at < to_end && to_at < from_end {
            return Err(Errno::EINVAL);
        }
        if let Some(reply) = self.replays.recorded(asked.header) {
            return Ok(reply);
        }
        let mut tries = 0;
        loop {
            let (source, target) = self.enter_both((from, to)).await?;
            let _ranges = self.ranges.exclusive_both(from, to).await;
            let source = source.as_ref().unwrap_or(&target);
            let size = self.table.size(source).zip(self.table.size(&target));
            let Some((size, end)) = size else {
                self.pause(&mut tries).await?;
                continue;
            };
            let len = len.min(size.saturating_sub(from_at)).min(IO_MAX as u64);
            let mut copied = Vec::new();
            if len > 0 {
                let room = FILE_SIZE_MAX.checked_sub(to_at).filter(|room| *room > 0);
                let len = usize::try_from(len.min(room.ok_or(Errno::EFBIG)?));
                match self.read_in(source, from_at, len.map_err(|_| Errno::EIO)?).await? {
                    Some(Ok(bytes)) => copied = bytes,
                    Some(Err(error)) => {
                        self.after(source, error, &mut tries).await?;
                        continue;
                    }
                    None => {
                        self.pause(&mut tries).await?;
                        continue;
                    }
                }
                if !asked.passes() && self.table.strips(to) {
                    self.strip(asked, to).await?;
                }
                let place = (to_at, &copied[..], end);
                if !self.put(&target, place, asked.mtime(), None, &mut tries).await? {
                    continue;
                }
            }
            let reply = Reply::Written(u32::try_from(copied.len()).map_err(|_| Errno::EIO)?);
            self.replays.record(asked.header, &reply);
            return Ok(reply);
        }
    }

    /// Writes pages of hosts' caches back. What was granted under a delegation that is lost is not
    /// written, nor what an earlier life granted, if others had the file since: `ESTALE`, so that
    /// the cache drops it, and the next sync of the file says `EIO`.
    pub(crate) async fn write_back(
        &self,
        ino: Ino,
        runs: &[(u64, &[u8])],
        mtime: Option<Timestamp>,
    ) -> Result<()> {
        let mut tries = 0;
        loop {
            let pages = self.table.pages(ino);
            if pages == Pages::Lost {
                return self.lost(ino);
            }
            let entered = self.enter_blind(ino, Mode::Write).await?;
            // It may have been lost, or others had it, while it was waited for.
            if pages == Pages::Ours && self.table.pages(ino) != Pages::Ours {
                return self.lost(ino);
            }
            if pages == Pages::Unknown && !self.table.is_kept(&entered) {
                return self.lost(ino);
            }
            let range = span(runs);
            let _range = self.ranges.exclusive_on(ino, range.clone()).await;
            if !self.tells_of_stripes(&entered).await? {
                self.pause(&mut tries).await?;
                continue;
            }
            let tells = self.table.tells(&entered);
            let work = async |grant: &Grant| self.data.write_runs(grant, runs).await;
            match self.at_nodes(&entered, work).await {
                Ok(()) => {
                    self.wrote(&entered, range.end, mtime);
                    if !tells || self.tell_end(&entered, range.end).await? {
                        return Ok(());
                    }
                    self.pause(&mut tries).await?;
                }
                Err(error) => self.after(&entered, error, &mut tries).await?,
            }
        }
    }

    fn lost(&self, ino: Ino) -> Result<()> {
        tracing::error!(%ino, "what a host wrote in its cache is lost: others had the file since");
        self.table.failed(ino);
        Err(Errno::ESTALE)
    }
}

/// From the first byte of all runs to behind the last.
fn span(runs: &[(u64, &[u8])]) -> Range<u64> {
    let start = runs.iter().map(|(at, _)| *at).min().unwrap_or(0);
    let end = runs.iter().map(|(at, data)| at.saturating_add(data.len() as u64)).max();
    start..end.unwrap_or(0)
}
