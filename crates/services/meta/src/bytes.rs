//! Bytes of files for clients that leave everything to the server (the mode `standard`).
//!
//! The server is then a client of the nodes itself: under the number [`NOBODY`], which no client
//! may have, it takes a delegation, and keeps it until another wants the file or nobody asked for
//! its bytes for [`IDLE`]. Whoever uses it holds the file's turn, with others who do; whoever takes
//! it away holds the turn alone. So there is nobody to recall it from, and as each write is told to
//! the volume before it is answered, nothing to write back.

use std::collections::BTreeMap;
use std::time::Duration;

use outboard_base::{Errno, Ino, Result, SessionId, Time, Timestamp, limits};
use outboard_dfs::{DataError, strip_len};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::spread::Record;
use outboard_medium::Medium;
use outboard_volume::{Answer, Caller, Fill, Payload};
use outboard_wire::file::{Flags, Header, Op, Reply as FileReply, Request, seek, write_flags};
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Grant, Mode, Told};

use crate::Meta;
use crate::clients::Who;
use crate::delegations::Held;
use crate::grants::NOBODY;
use crate::nodes::PATIENCE;

/// How often something is tried under a new capability, or under a new delegation.
const TRIES: usize = 8;
/// How long the server keeps a file that nobody asks it about: giving it back and taking it again
/// costs a sync.
const IDLE: Duration = Duration::from_secs(5);
/// Files that it keeps at most.
const OWN_MAX: usize = 1024;

/// Files that the server has itself, and when it was asked last for what is in them.
#[derive(Debug, Default)]
pub(crate) struct Own(BTreeMap<Ino, Time>);

impl Own {
    /// A file is used now; one to be given back, if there are too many.
    fn used(&mut self, ino: Ino, now: Time) -> Option<Ino> {
        self.0.insert(ino, now);
        if self.0.len() <= OWN_MAX {
            return None;
        }
        let oldest = self.0.iter().min_by_key(|(_, used)| **used).map(|(ino, _)| *ino)?;
        self.0.remove(&oldest);
        Some(oldest)
    }

    /// Files that nobody used for a while: to be given back.
    pub(crate) fn take_idle(&mut self, now: Time) -> Vec<Ino> {
        let idle = self.0.extract_if(.., |_, used| now.since(*used) >= IDLE);
        idle.map(|(ino, _)| ino).collect()
    }

    /// Whether a file was used since it was to be given back.
    pub(crate) fn is_used(&self, ino: Ino) -> bool {
        self.0.contains_key(&ino)
    }

    /// It is given back.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.0.remove(&ino);
    }
}

/// Beside whom an operation on a file may be done.
#[derive(Clone, Copy)]
pub(crate) enum Beside {
    /// Others that may be, too.
    Others,
    /// The same, if these bytes (from, count) are of one strip, which a node writes as a whole: of
    /// a longer write others are to see all or nothing.
    IfOneStrip(u64, u64),
    Nobody,
}

impl Beside {
    fn others(self, strip: u64) -> bool {
        match self {
            Beside::Others => true,
            Beside::IfOneStrip(from, count) => {
                let of = |at: u64| at / strip.max(1);
                of(from) == of(from.saturating_add(count.saturating_sub(1)))
            }
            Beside::Nobody => false,
        }
    }
}

/// What an operation has written.
pub(crate) struct Wrote {
    /// Behind its last byte.
    end: u64,
    mtime: Option<Timestamp>,
    /// Whose it is: others hear that the file has changed.
    session: Option<SessionId>,
    /// What it is answered, also if it is sent again.
    record: Option<Record>,
}

pub(crate) fn errno(error: DataError) -> Errno {
    match error {
        DataError::Full => Errno::ENOSPC,
        DataError::Fenced | DataError::Undecided => Errno::EAGAIN,
        DataError::Unsupported => Errno::EOPNOTSUPP,
        DataError::Expired | DataError::Gone | DataError::Medium | DataError::Refused(_) => {
            Errno::EIO
        }
    }
}

/// A file operation with what stands beside it.
pub(crate) struct Operation<'o> {
    pub(crate) caller: &'o Caller,
    pub(crate) header: &'o Header,
    pub(crate) wall: Timestamp,
    /// Of a `Create` that truncates: what its name leads to, whose turn it is.
    pub(crate) leads_to: Option<Option<Ino>>,
}

impl Operation<'_> {
    /// Whether set-id bits survive a write of its.
    fn keeps_set_id(&self) -> bool {
        let checked = self.caller.trusted && self.header.flags.has(Flags::CHECKED);
        let cred = if self.caller.trusted { &self.header.cred } else { &self.caller.peer };
        checked || cred.is_root()
    }

    /// It has written up to `end`, and is answered this.
    fn wrote(&self, end: u64, op: Op, reply: &FileReply) -> Result<Wrote> {
        Ok(Wrote {
            end,
            mtime: (!(self.caller.trusted && self.caller.keeps_times)).then_some(self.wall),
            session: Some(self.caller.attachment),
            record: Record::of(self.caller, self.header, op, reply)?,
        })
    }
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Does what the volume would not, as the bytes are at the nodes, and has found allowed.
    pub(crate) async fn bytes(
        &self,
        of: &Operation<'_>,
        request: &Request<'_>,
        data: &[u8],
    ) -> Result<Answer> {
        match *request {
            Request::Read { ino, offset, len, .. } => self.read(ino, offset, len).await,
            Request::Write { ino, offset, flags, .. } => {
                self.write(of, ino, offset, flags, data).await.map(Answer::from)
            }
            Request::Lseek { ino, offset, whence, .. } => self.seek(ino, offset, whence).await,
            Request::Fallocate { ino, offset, len, mode, .. } => {
                self.fill(of, ino, (offset, len), mode).await
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    async fn read(&self, ino: Ino, offset: u64, len: u32) -> Result<Answer> {
        let work = async |grant: &Grant| {
            let left = grant.attr.size.saturating_sub(offset).min(u64::from(len));
            let left = usize::try_from(left).map_err(|_| Errno::EINVAL)?;
            let read = self.data().read(grant, offset, left).await.map_err(errno)?;
            Ok((read, None))
        };
        let read = self.by_itself(ino, Mode::Read, Beside::Others, work).await?;
        let count = u32::try_from(read.len()).map_err(|_| Errno::EIO)?;
        Ok(Answer { reply: FileReply::Data(count), payload: Payload::Bytes(read) })
    }

    async fn write(
        &self,
        of: &Operation<'_>,
        ino: Ino,
        offset: u64,
        flags: u32,
        data: &[u8],
    ) -> Result<FileReply> {
        // Who appends has the end of the file for itself.
        let alone = flags & write_flags::APPEND != 0;
        let work = async |grant: &Grant| {
            let at = if alone { grant.attr.size } else { offset };
            let room = limits::FILE_SIZE_MAX.saturating_sub(at);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let data = data.get(..data.len().min(room)).unwrap_or_default();
            if data.is_empty() {
                return Err(Errno::EFBIG);
            }
            let end = at.saturating_add(data.len() as u64);
            let count = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
            self.strip_for(of, grant, flags & write_flags::KILL_SUIDGID != 0).await?;
            self.data().write(grant, at, data).await.map_err(errno)?;
            let reply = FileReply::Written(count);
            let wrote = of.wrote(end, Op::Write, &reply)?;
            Ok((reply, Some(wrote)))
        };
        let beside = match alone {
            true => Beside::Nobody,
            false => Beside::IfOneStrip(offset, data.len() as u64),
        };
        self.by_itself(ino, Mode::Write, beside, work).await
    }

    /// Before bytes change: set-id bits go, if they do.
    async fn strip_for(&self, of: &Operation<'_>, grant: &Grant, kills: bool) -> Result<()> {
        if grant.strips && (kills || !of.keeps_set_id()) {
            self.volume().strip(of.caller, grant.attr.ino, of.wall).await?;
        }
        Ok(())
    }

    async fn fill(
        &self,
        of: &Operation<'_>,
        ino: Ino,
        (offset, len): (u64, u64),
        mode: u32,
    ) -> Result<Answer> {
        let (fill, keeps_size) = Fill::of(mode)?;
        let end = offset.checked_add(len).filter(|end| *end <= limits::FILE_SIZE_MAX);
        let end = end.ok_or(Errno::EFBIG)?;
        let work = async |grant: &Grant| {
            self.strip_for(of, grant, false).await?;
            self.data().fill(grant, fill, offset..end).await.map_err(errno)?;
            let end = if keeps_size { 0 } else { end };
            let wrote = of.wrote(end, Op::Fallocate, &FileReply::Empty)?;
            Ok((FileReply::Empty.into(), Some(wrote)))
        };
        self.by_itself(ino, Mode::Write, Beside::Nobody, work).await
    }

    async fn seek(&self, ino: Ino, offset: u64, whence: u32) -> Result<Answer> {
        let work = async |grant: &Grant| {
            let size = grant.attr.size;
            if offset >= size {
                return Err(Errno::ENXIO);
            }
            let found = match whence {
                seek::DATA => self.data().next_data(grant, offset).await.map_err(errno)?,
                seek::HOLE => {
                    Some(self.data().next_hole(grant, offset, size).await.map_err(errno)?)
                }
                _ => return Err(Errno::EINVAL),
            };
            let found = found.filter(|at| *at < size || whence == seek::HOLE);
            Ok((found.ok_or(Errno::ENXIO)?, None))
        };
        Ok(FileReply::Offset(self.by_itself(ino, Mode::Read, Beside::Others, work).await?).into())
    }

    /// Makes a file's bytes durable at its nodes.
    pub(crate) async fn flush_nodes(&self, ino: Ino) -> Result<()> {
        loop {
            let spread = self.volume().spread(ino).await?;
            let nodes = self.nodes_of(&spread);
            let mut nodes: Vec<Peer> = nodes.iter().map(|node| Peer::Node(node.node)).collect();
            if !spread.layout.is_redundant() {
                // Where it lay when it was written, too.
                nodes.extend(self.data().unsynced(ino.0));
                nodes.sort_unstable();
                nodes.dedup();
            }
            let flushed = self.data().flush(nodes.into_iter());
            if !spread.layout.is_redundant() {
                flushed.await.map_err(errno)?;
                break;
            }
            match self.within(PATIENCE, flushed).await {
                Some(Ok(())) => break,
                // It may go on without who does not answer, or whose medium fails.
                Some(Err(DataError::Medium)) | None => {}
                Some(Err(error)) => return Err(errno(error)),
            }
            self.delegations().must_resolve(ino);
            drop(self.cleared(ino, NOBODY, Mode::Write).await?);
        }
        if self.data().take_lost(ino.0) { Err(Errno::EIO) } else { Ok(()) }
    }

    /// A write that is to be durable is: also one that was done before, and is sent again.
    pub(crate) async fn sync_written(&self, of: &Operation<'_>, ino: Ino) -> Result<()> {
        self.flush_nodes(ino).await?;
        let flags = of.header.flags.without(Flags::REPLAY);
        let header = Header { sequence: 0, flags, ..of.header.clone() };
        let request = Request::Syncfs;
        self.volume().handle(of.caller, &header, request, Payload::None, of.wall).await?;
        Ok(())
    }

    /// A file that the volume has truncated ends there at its nodes, too. In its turn, since before
    /// it was truncated: what was written behind the new end in between would go.
    pub(crate) async fn cut_in_turn(&self, ino: Ino) -> Result<()> {
        let work = async |grant: &Grant| {
            // Nothing if it was resolved meanwhile.
            if let Some(cut) = self.volume().spread(ino).await?.cut {
                self.data().hole(grant, cut..u64::MAX).await.map_err(errno)?;
                self.volume().holed(ino).await?;
            }
            Ok(((), Some(Wrote { end: 0, mtime: None, session: None, record: None })))
        };
        self.by_itself_in_turn(ino, Mode::Write, work).await
    }

    /// Does something with a file's bytes under a delegation of the server's own, beside others who
    /// do or alone. It is done again if that delegation was lost in its midst.
    pub(crate) async fn by_itself<T>(
        &self,
        ino: Ino,
        mode: Mode,
        beside: Beside,
        work: impl AsyncFn(&Grant) -> Result<(T, Option<Wrote>)>,
    ) -> Result<T> {
        for _ in 0..TRIES {
            if !matches!(beside, Beside::Nobody) {
                let _turn = self.turns().shared(ino).await;
                let grant = self.own_grant(ino, mode).await?;
                if let Some(grant) = grant.filter(|grant| beside.others(strip_len(grant))) {
                    match self.under(grant, mode, &work).await {
                        Err(Errno::EAGAIN) => continue,
                        done => return done,
                    }
                }
            }
            let _turn = self.turn(ino, NOBODY).await;
            match self.by_itself_in_turn(ino, mode, &work).await {
                Err(Errno::EAGAIN) => {}
                done => return done,
            }
        }
        Err(Errno::EIO)
    }

    /// The same, in the file's turn, alone.
    async fn by_itself_in_turn<T>(
        &self,
        ino: Ino,
        mode: Mode,
        work: impl AsyncFn(&Grant) -> Result<(T, Option<Wrote>)>,
    ) -> Result<T> {
        let grant = match self.own_grant(ino, mode).await? {
            Some(grant) => grant,
            None => self.grant_in_turn(Who::NOBODY, ino, mode).await?,
        };
        self.under(grant, mode, &work).await
    }

    /// What the server has of a file, if that is enough, with its attributes as they are now.
    async fn own_grant(&self, ino: Ino, mode: Mode) -> Result<Option<Grant>> {
        let is_unresolved = self.delegations().is_unresolved(ino);
        let Some(held) = self.has_already(ino, NOBODY, mode).filter(|_| !is_unresolved) else {
            return Ok(None);
        };
        let spread = self.volume().spread(ino).await?;
        self.grant_of(NOBODY, &spread, held).await.map(Some)
    }

    /// Does something under what the server has; `EAGAIN` if that is lost.
    async fn under<T>(
        &self,
        mut grant: Grant,
        mode: Mode,
        work: &impl AsyncFn(&Grant) -> Result<(T, Option<Wrote>)>,
    ) -> Result<T> {
        let ino = grant.attr.ino;
        let fence = grant.capability.fence;
        self.own_is_used(ino);
        let mut tries = 0;
        let done = loop {
            match work(&grant).await {
                Err(Errno::EIO) if tries < TRIES => {
                    // It may have been that a node had no keys.
                    tries += 1;
                    self.net().sleep(crate::grants::LOOK).await;
                    grant = match self.has_already(ino, NOBODY, mode) {
                        Some(held) if held.fence == fence => {
                            self.grant_again(NOBODY, ino, held).await?
                        }
                        _ => return Err(Errno::EAGAIN),
                    };
                }
                // Not all who have copies took it. In the same turn: nobody is to see that some
                // did.
                Err(Errno::EAGAIN) if grant.layout.is_redundant() && tries < TRIES => {
                    tries += 1;
                    let fence = grant.capability.fence;
                    let unreached = self.data().take_unreached(ino.0);
                    match self.regrant(Who::NOBODY, ino, fence, unreached).await {
                        Ok(again) => grant = again,
                        Err(_) => self.net().sleep(crate::grants::LOOK).await,
                    }
                }
                Ok((out, Some(wrote))) => break self.tell_own(&grant, wrote).await.map(|()| out),
                Ok((out, None)) => break Ok(out),
                Err(error) => break Err(error),
            }
        };
        let is_refused = matches!(done, Err(Errno::EAGAIN)) && grant.layout.is_redundant();
        if done.is_err() && (mode == Mode::Write || is_refused) {
            // What was written is not known: the next who wants it finds out.
            self.take(ino, NOBODY, Held { mode: grant.mode, fence }).await;
        }
        if is_refused {
            self.delegations().must_resolve(ino);
        }
        done
    }

    /// What was written is known to the volume from now on. Others may have written meanwhile, to
    /// other places.
    async fn tell_own(&self, grant: &Grant, wrote: Wrote) -> Result<()> {
        let (ino, fence) = (grant.attr.ino, grant.capability.fence);
        let count = self.data().count(grant).await.map_err(errno)?;
        let _change = self.changes().exclusive(ino).await;
        if !self.delegations().writes(ino, NOBODY, fence) {
            return Err(Errno::EAGAIN);
        }
        // What others told meanwhile is not less.
        let count = self.data().held(grant).unwrap_or(count);
        let size = match self.volume().spread(ino).await {
            Ok(spread) => spread.attr.size.max(wrote.end),
            // The file is gone, and nobody can see its size.
            Err(Errno::ESTALE) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let told = Told { size, mtime: wrote.mtime, blocks: Some(count.div_ceil(512)) };
        self.tell_volume(wrote.session, ino, told, wrote.record).await
    }

    fn own_is_used(&self, ino: Ino) {
        let oldest = self.own().used(ino, self.net().now());
        if let Some(oldest) = oldest {
            self.give_back_later(vec![oldest]);
        }
    }

    /// The server gives back files that nobody asks it about.
    pub(crate) async fn give_back_idle(&self, idle: Vec<Ino>) {
        for ino in idle {
            let _turn = self.turns().exclusive(ino).await;
            if !self.own().is_used(ino)
                && let Err(errno) = self.give_up(ino, None).await
            {
                tracing::warn!(%errno, ino = ino.0, "a file is not given back; tried again");
                self.own_is_used(ino);
            }
        }
    }

    /// In a file's turn, which nobody who uses what the server has of it shares: down to `keep`.
    /// All that was written was told.
    pub(crate) async fn give_up(&self, ino: Ino, keep: Option<Mode>) -> Result<()> {
        let _change = self.changes().exclusive(ino).await;
        let held = self.delegations().held(ino, NOBODY);
        if let Some(held) = held {
            self.give_back(NOBODY, ino, held.fence, keep).await?;
        }
        if keep.is_none() {
            self.own().forget(ino);
        }
        Ok(())
    }
}
