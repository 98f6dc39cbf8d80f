//! File operations: those that are the server's go to it unchanged, and what it says of files that
//! are written here is put right.

use std::time::Duration;

use outboard_base::task::join2;
use outboard_base::{Errno, Fh, Ino, Result, Timestamp, limits};
use outboard_flow::Net;
use outboard_volume::{Answer, Caller, Payload};
use outboard_wire::file::{
    Attr, Dirents, DirentsWriter, Flags, Header, Reply, Request, Statfs, open_flags,
};
use outboard_wire::shared::call::{Asker, Call, Reply as CallReply};

use crate::handles::Handle;
use crate::{Inner, Mode, locked};

/// How long figures are waited for before old ones are answered: who unmounts asks for them.
const STATFS: Duration = Duration::from_secs(2);
const BLOCK_SIZE: u64 = 4096;
/// How often the server is asked for attributes that may be older than what was written here.
const LOOKS: u32 = 4;

/// A request and who asks it.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) header: &'a Header,
    pub(crate) request: &'a Request<'a>,
    pub(crate) payload: &'a [u8],
    pub(crate) now: Timestamp,
}

impl Asked<'_> {
    /// When a write happens, unless whoever asks keeps times itself.
    pub(crate) fn mtime(&self) -> Option<Timestamp> {
        let keeps = self.caller.trusted && self.caller.keeps_times;
        (!keeps).then_some(self.now)
    }

    /// Whether permissions were checked: then a write takes no set-id bits away unasked.
    pub(crate) fn passes(&self) -> bool {
        let checked = self.caller.trusted && self.header.flags.has(Flags::CHECKED);
        let cred = if self.caller.trusted { &self.header.cred } else { &self.caller.peer };
        checked || cred.is_root()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header.flags.has(Flags::REPLAY)
    }

    /// Its header, of the session that asks.
    pub(crate) fn own_header(&self) -> Header {
        Header { session: self.caller.attachment, ..self.header.clone() }
    }

    /// Its bytes under a header.
    pub(crate) fn encoded(&self, header: &Header) -> Result<Vec<u8>> {
        let mut bytes = vec![0; limits::REQUEST_HEADER_MAX];
        let len = self.request.encode(header, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }
}

pub(crate) fn asker(caller: &Caller) -> Asker {
    Asker {
        session: caller.attachment,
        trusted: caller.trusted,
        keeps_times: caller.keeps_times,
        peer: caller.peer.clone(),
    }
}

impl<N: Net> Inner<N> {
    /// Answers one request.
    pub(crate) async fn handle(&self, asked: Asked<'_>) -> Result<Answer> {
        let session = asked.caller.attachment;
        if asked.header.sequence != 0 && asked.header.session != session {
            return Err(Errno::EPROTO);
        }
        self.is_there(session).await;
        self.handles.seen(session);
        let ended = self.table.ended();
        let mut answer = match self.options.mode {
            Mode::Standard => self.answer_of_server(asked).await?,
            Mode::Direct => self.answer_without(asked).await?,
        };
        self.note(asked, &answer.reply);
        if self.options.mode == Mode::Direct {
            self.put_right(asked, ended, &mut answer).await?;
        }
        Ok(answer)
    }

    /// The answer, with nothing kept for the next that is to be done without.
    async fn answer_without(&self, asked: Asked<'_>) -> Result<Answer> {
        let (Request::Read { ino, .. } | Request::Write { ino, .. }) = *asked.request else {
            return self.answer(asked).await;
        };
        if self.without.view {
            self.table.is_stale(ino, None);
        }
        let answer = self.answer(asked).await;
        if self.without.delegations {
            self.give_back(ino).await;
        }
        answer
    }

    async fn answer(&self, asked: Asked<'_>) -> Result<Answer> {
        match *asked.request {
            Request::Read { ino, fh, offset, len, .. } => {
                self.read(asked, (ino, fh), offset, len).await
            }
            Request::Write { ino, fh, offset, flags } => {
                self.write(asked, (ino, fh, offset), flags).await.map(Answer::from)
            }
            Request::Fallocate { ino, fh, offset, len, mode } => {
                self.fallocate(asked, (ino, fh), (offset, len), mode).await.map(Answer::from)
            }
            Request::Lseek { ino, fh, offset, whence } => {
                self.lseek(asked, (ino, fh), offset, whence).await.map(Answer::from)
            }
            Request::CopyFileRange { from, from_fh, from_offset, to, to_fh, to_offset, len } => {
                let source = (from, from_fh, from_offset);
                self.copy(asked, source, (to, to_fh, to_offset), len).await.map(Answer::from)
            }
            Request::Setattr { ino, ref set, .. } => self.setattr(asked, ino, set).await,
            Request::Open { ino, flags } if flags & open_flags::TRUNC != 0 => {
                self.resize(asked, ino, 0).await
            }
            Request::Create { flags, .. } => self.create(asked, flags).await,
            Request::Getattr { ino, .. } => {
                self.count(ino).await;
                self.forward(asked).await
            }
            Request::Flush { ino, .. } => {
                // Neither waits for the other: whoever opens the file next has it told first.
                let closed = join2(self.tell_for_close(ino), self.forward(asked)).await;
                let answer = closed.1?;
                closed.0?;
                self.say_failure(ino)?;
                Ok(answer)
            }
            Request::Release { ino, .. } => {
                // Whether or not it can be told now: it is closed.
                let closed = join2(self.tell_for_close(ino), self.forward(asked)).await;
                let answer = closed.1?;
                closed.0.map(|()| answer)
            }
            Request::Fsync { ino, fh, data_only } => self.sync(asked, (ino, fh), data_only).await,
            Request::Syncfs => {
                self.flush_all().await?;
                self.forward(asked).await
            }
            _ => self.answer_of_server(asked).await,
        }
    }

    /// What is the server's to answer, whatever this client does itself.
    async fn answer_of_server(&self, asked: Asked<'_>) -> Result<Answer> {
        match asked.request {
            Request::Statfs { .. } => Ok(Reply::Statfs(self.statfs(asked).await).into()),
            _ => self.forward(asked).await,
        }
    }

    /// Has the server answer a request.
    pub(crate) async fn forward(&self, asked: Asked<'_>) -> Result<Answer> {
        let Asked { caller, request, payload, .. } = asked;
        let header = asked.own_header();
        let call = Call::File {
            asker: asker(caller),
            request: asked.encoded(&header)?,
            payload: payload.to_vec(),
        };
        // Who is closed may have been given anew what it was known by: as a replay a close would
        // take locks that are another's by now. It is asked as it was.
        let closes = matches!(request, Request::Release { .. } | Request::Releasedir { .. });
        let flags = if closes { header.flags } else { header.flags.with(Flags::REPLAY) };
        let replay = asked.encoded(&Header { flags, ..header.clone() })?;
        let reply = self.ask_as(call, |call| match call {
            Call::File { asker, payload, .. } => {
                Call::File { asker, request: replay.clone(), payload }
            }
            call => call,
        });
        match reply.await? {
            CallReply::File { result, header, payload } => {
                let reply = Reply::decode(request.op(), result, &header)?;
                let len = if let Reply::Data(len) = reply { len as usize } else { 0 };
                if payload.len() != len {
                    return Err(Errno::EPROTO);
                }
                let payload = if len == 0 { Payload::None } else { Payload::Bytes(payload) };
                Ok(Answer { reply, payload })
            }
            // It was closed when this was asked first.
            CallReply::Failed(Errno::EBADF) if closes => Ok(Reply::Empty.into()),
            CallReply::Failed(errno) => Err(errno),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Notes handles that come and go.
    fn note(&self, asked: Asked<'_>, reply: &Reply) {
        let session = asked.caller.attachment;
        let file = |ino, flags| Handle { ino, flags, directory: false, synced: false };
        match (asked.request, reply) {
            (Request::Open { ino, flags }, Reply::Opened(fh)) => {
                self.handles.opened(session, *fh, file(*ino, *flags));
            }
            (Request::Opendir { ino }, Reply::Opened(fh)) => {
                self.handles.opened(
                    session,
                    *fh,
                    Handle { ino: *ino, flags: 0, directory: true, synced: false },
                );
            }
            (
                Request::Create { flags, .. } | Request::Tmpfile { flags, .. },
                Reply::Created(attr, fh),
            ) => self.handles.opened(session, *fh, file(attr.ino, *flags)),
            (Request::Reclaim { ino, fh, flags, directory }, _) if *fh != Fh::NONE => {
                let handle =
                    Handle { ino: *ino, flags: *flags, directory: *directory, synced: false };
                self.handles.opened(session, *fh, handle);
            }
            (Request::Release { fh, .. } | Request::Releasedir { fh, .. }, _) => {
                self.handles.closed(session, *fh);
            }
            // It may be a capability, which the next write takes away.
            (Request::Setxattr { ino, .. }, _) => self.table.is_stale(*ino, None),
            (_, Reply::Gone { last, .. }) => {
                if let Some((_, fence)) = self.table.held(last.ino) {
                    self.lose(last.ino, Some(fence));
                    let (ino, keep) = (last.ino, None);
                    self.errand(Call::Release { ino, fence, told: None, keep });
                }
            }
            _ => {}
        }
    }

    /// Lays what is known better here over the attributes of an answer. Where a delegation to write
    /// has `ended` since the server was asked, it may have answered before it was told: its answer
    /// now is better.
    async fn put_right(&self, asked: Asked<'_>, ended: u64, answer: &mut Answer) -> Result<()> {
        if matches!(asked.request, Request::Readdir { with_attributes: true, .. }) {
            return self.put_entries_right(answer);
        }
        let (Reply::Entry(attr) | Reply::Attr(attr) | Reply::Created(attr, _)) = &mut answer.reply
        else {
            return Ok(());
        };
        let mut before = ended;
        for _ in 0..LOOKS {
            let now = self.table.ended();
            if self.table.overlay(attr) || now == before {
                break;
            }
            before = now;
            match self.attr_now(asked, attr.ino).await {
                Some(now) => *attr = now,
                None => break,
            }
        }
        Ok(())
    }

    /// What the server says of a file now.
    async fn attr_now(&self, asked: Asked<'_>, ino: Ino) -> Option<Attr> {
        let flags = asked.header.flags.without(Flags::REPLAY);
        let header = Header { sequence: 0, flags, ..asked.header.clone() };
        let request = Request::Getattr { ino, fh: Fh::NONE };
        let look = Asked { header: &header, request: &request, payload: &[], ..asked };
        match self.forward(look).await.ok()?.reply {
            Reply::Attr(attr) => Some(attr),
            _ => None,
        }
    }

    /// A directory's entries with attributes.
    fn put_entries_right(&self, answer: &mut Answer) -> Result<()> {
        let about = |attr: &Option<Attr>, ino: Ino| attr.is_some() && self.table.overlays(ino);
        let bytes = answer.payload.bytes();
        if !Dirents::new(bytes).flatten().any(|entry| about(&entry.attr, entry.ino)) {
            return Ok(());
        }
        let mut right = vec![0; bytes.len()];
        let mut writer = DirentsWriter::new(&mut right);
        for mut entry in Dirents::new(bytes).flatten() {
            if let Some(attr) = &mut entry.attr {
                self.table.overlay(attr);
            }
            writer.push(&entry)?;
        }
        answer.payload = Payload::Bytes(right);
        Ok(())
    }

    async fn tell_for_close(&self, ino: Ino) -> Result<()> {
        match self.tell(ino).await {
            Ok(()) | Err(Errno::ESTALE) => Ok(()),
            failed => failed,
        }
    }

    pub(crate) fn say_failure(&self, ino: Ino) -> Result<()> {
        if self.table.take_failed(ino) { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Figures: of the server's if it answers, else what is known.
    async fn statfs(&self, asked: Asked<'_>) -> Statfs {
        if self.is_alive()
            && let Some(Ok(answer)) = self.within(STATFS, self.forward(asked)).await
            && let Reply::Statfs(figures) = answer.reply
        {
            *locked(&self.statfs) = Some(figures);
            return figures;
        }
        let known = *locked(&self.statfs);
        let mut figures = known.unwrap_or_else(|| Statfs {
            block_size: BLOCK_SIZE,
            files: 1 << 32,
            files_free: 1 << 32,
            name_max: limits::NAME_MAX as u64,
            id: u64::from(self.options.volume),
            ..Statfs::default()
        });
        let (free, capacity) = self.lease.space();
        if capacity > 0 {
            let block = figures.block_size.max(1);
            figures.blocks = capacity / block;
            (figures.blocks_free, figures.blocks_available) = (free / block, free / block);
        }
        figures
    }
}
