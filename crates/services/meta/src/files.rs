//! File operations of hosts: decoded, checked against who uses the files' bytes, carried out by the
//! volume, and encoded.

use std::sync::atomic::{AtomicBool, Ordering};

use outboard_base::task::RangeGuard;
use outboard_base::{Errno, Fh, Ino, Result, SessionId, Timestamp, limits};
use outboard_flow::Net;
use outboard_kv::{Kv, KvError};
use outboard_medium::Medium;
use outboard_volume::{Answer, Caller, Payload};
use outboard_wire::file::Reply as FileReply;
use outboard_wire::file::{Flags, Header, Request, Statfs, open_flags, write_flags};
use outboard_wire::shared::call::{Asker, Layout, Mode, Reply};

use crate::Meta;
use crate::bytes::Operation;
use crate::clients::{Admission, Who};
use crate::grants::NOBODY;
use crate::power::Synced;
use crate::stripes::is_coded;

/// How often a name may lead to another file while a file is waited for.
const NAMES: usize = 64;
/// What locks of ranges lock.
const BLOCK: u64 = limits::BLOCK as u64;

/// A request of a session under way; others may take the session over once it is dropped, or while
/// it stands [aside](Busy::aside).
pub(crate) struct Busy<'m, K, M, N> {
    meta: &'m Meta<K, M, N>,
    who: Who,
    session: SessionId,
    turn: u64,
    holds: AtomicBool,
}

impl<K, M, N> Busy<'_, K, M, N> {
    /// What comes of `work` that waits for others, and does nothing that is the session's. Who
    /// takes the session over does not wait for it, as that may be for a node that is away; then
    /// nothing more is done here: what is to be done is asked again.
    ///
    /// # Errors
    /// `ESTALE` if the session was taken over.
    pub(crate) async fn aside<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.lets_go();
        let done = work.await;
        let goes_on = self.meta.clients().goes_on(self.session, self.turn);
        self.holds.store(goes_on, Ordering::SeqCst);
        if goes_on { done } else { Err(Errno::ESTALE) }
    }

    fn lets_go(&self) {
        if self.holds.swap(false, Ordering::SeqCst) {
            self.meta.clients().done(self.session, self.turn);
            self.meta.sessions_changed().notify();
        }
    }
}

impl<K, M, N> Drop for Busy<'_, K, M, N> {
    fn drop(&mut self) {
        self.lets_go();
    }
}

pub(crate) fn caller(asker: &Asker) -> Caller {
    Caller {
        attachment: asker.session,
        trusted: asker.trusted,
        peer: asker.peer.clone(),
        keeps_times: asker.keeps_times,
    }
}

/// What an operation has to do with the bytes of a file.
#[derive(Clone, Copy)]
enum Concern {
    /// It reads its size.
    Look,
    /// It gives it a size.
    Cut,
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Answers one file operation.
    pub(crate) async fn file(
        &self,
        who: Who,
        asker: &Asker,
        request: &[u8],
        payload: Vec<u8>,
        wall: Timestamp,
    ) -> Result<Reply> {
        let (header, request) = Request::decode(request)?;
        if header.session != asker.session {
            return Err(Errno::EPERM);
        }
        let busy = &self.speak_for(who, asker.session).await?;
        let _lane = busy.aside(self.lane_of(&header)).await?;
        match request {
            Request::Reclaim { .. } => self.losses().hands_in(asker.session),
            _ => self.losses().came(asker.session, header.flags.has(Flags::REPLAY)),
        }
        let caller = caller(asker);
        let of = Operation { caller: &caller, header: &header, wall, leads_to: None };
        match request {
            Request::Create { parent, name, flags, .. } => {
                let cuts = flags & open_flags::TRUNC != 0;
                let answer = if cuts {
                    self.create_and_cut(busy, &of, &request, (parent, name)).await?
                } else {
                    self.carry_out(busy, &of, &request, payload).await?
                };
                encode(&busy.aside(self.with_its_size(who.client, answer)).await?)
            }
            _ => encode(&self.concerning(busy, &of, concern(&request), &request, payload).await?),
        }
    }

    /// Carries out an operation once others have what they may have of the file that it concerns.
    async fn concerning(
        &self,
        busy: &Busy<'_, K, M, N>,
        of: &Operation<'_>,
        concern: Option<(Ino, Concern)>,
        request: &Request<'_>,
        payload: Vec<u8>,
    ) -> Result<Answer> {
        let mode = match concern {
            Some((ino, Concern::Cut)) if !self.writes_itself(busy.who, ino) => {
                return self.cut_for_another(busy, of, ino, (request, payload)).await;
            }
            Some((_, Concern::Cut)) => Mode::Write,
            Some((_, Concern::Look)) | None => Mode::Read,
        };
        if let Some((ino, _)) = concern {
            busy.aside(self.settle(ino, busy.who.client, mode)).await?;
        }
        // What its client said of the file before that, and may not wait for, goes first.
        if let Some((ino, Concern::Cut)) = concern {
            let change = self.changes().exclusive(ino).await;
            if !self.writes_itself(busy.who, ino) {
                // It was given back meanwhile, so its nodes' part is nobody's.
                drop(change);
                return self.cut_for_another(busy, of, ino, (request, payload)).await;
            }
            let answer = self.carry_out(busy, of, request, payload).await?;
            return self.cut_is_known(ino).await.map(|()| answer);
        }
        self.carry_out(busy, of, request, payload).await
    }

    /// A `Create` that truncates what it finds. Its name may lead to another file by the time that
    /// nobody else has the first: then that one's turn comes. So what is opened is what is cut.
    async fn create_and_cut(
        &self,
        busy: &Busy<'_, K, M, N>,
        of: &Operation<'_>,
        request: &Request<'_>,
        (parent, name): (Ino, &[u8]),
    ) -> Result<Answer> {
        for _ in 0..NAMES {
            let found = self.look_up(of, parent, name).await?;
            let of = Operation { leads_to: Some(found), ..*of };
            let cut = found.map(|ino| (ino, Concern::Cut));
            match self.concerning(busy, &of, cut, request, Vec::new()).await {
                Err(Errno::EAGAIN) => {}
                done => return done,
            }
        }
        Err(Errno::EBUSY)
    }

    /// A truncation by who does not have the file to write (who has does the nodes' part itself).
    /// All of it is in the file's turn: what another writes behind the new end comes after it.
    async fn cut_for_another(
        &self,
        busy: &Busy<'_, K, M, N>,
        of: &Operation<'_>,
        ino: Ino,
        (request, payload): (&Request<'_>, Vec<u8>),
    ) -> Result<Answer> {
        if !self.clients().lives(busy.who) {
            // The next life asks for the same, and would have to give up what it does so with.
            return Err(Errno::ESTALE);
        }
        let _turn = busy.aside(self.cleared(ino, NOBODY, Mode::Write)).await?;
        let answer = self.carry_out(busy, of, request, payload).await?;
        let cut = async {
            self.cut_is_known(ino).await?;
            self.cut_in_turn(ino).await.map_err(|errno| {
                self.delegations().must_resolve(ino);
                // It is done here: not to be tried again.
                if errno == Errno::EAGAIN { Errno::EIO } else { errno }
            })
        };
        busy.aside(cut).await.map(|()| answer)
    }

    /// Of a file with parities it is durable that it was cut before any of its members is: were the
    /// power of all lost in between, too few would have what by its size is there.
    async fn cut_is_known(&self, ino: Ino) -> Result<()> {
        let spread = self.volume().spread(ino).await?;
        if is_coded(&spread.layout) && spread.cut.is_some() {
            self.volume().objects().sync().await.map_err(KvError::errno)?;
        }
        Ok(())
    }

    fn writes_itself(&self, who: Who, ino: Ino) -> bool {
        let held = self.delegations().held(ino, who.client);
        held.is_some_and(|held| held.mode == Mode::Write) && self.clients().lives(who)
    }

    /// By the volume, or, if it is about bytes that it does not have, by the nodes.
    async fn carry_out(
        &self,
        busy: &Busy<'_, K, M, N>,
        of: &Operation<'_>,
        request: &Request<'_>,
        payload: Vec<u8>,
    ) -> Result<Answer> {
        if let Request::Fsync { .. } | Request::Syncfs = request {
            busy.aside(self.before_sync(busy.who, of, request)).await?;
        }
        if let Request::Statfs { .. } = *request {
            self.ask_for_space().await;
        }
        let bytes =
            if payload.is_empty() { Payload::None } else { Payload::Bytes(payload.clone()) };
        let (caller, header) = (of.caller, of.header);
        let (volume, asked) = (self.volume(), request.clone());
        let answer = match of.leads_to {
            Some(found) => volume.create_where(caller, header, asked, found, of.wall).await,
            None => volume.handle(caller, header, asked, bytes, of.wall).await,
        };
        let mut answer = match answer {
            Err(Errno::EOPNOTSUPP) if matches!(request, Request::Read { .. }) => {
                busy.aside(self.bytes(of, request, &payload)).await?
            }
            Err(Errno::EOPNOTSUPP) => self.bytes(of, request, &payload).await?,
            answer => answer?,
        };
        match (&mut answer.reply, request) {
            (FileReply::Statfs(figures), _) => *figures = self.with_space(*figures),
            (FileReply::Written(_), Request::Write { ino, flags, .. })
                if flags & write_flags::DSYNC != 0 =>
            {
                busy.aside(self.sync_written(of, *ino)).await?;
            }
            _ => {}
        }
        Ok(answer)
    }

    /// Bytes of a file become durable, or it is said that something was lost.
    async fn before_sync(&self, who: Who, of: &Operation<'_>, request: &Request<'_>) -> Result<()> {
        let synced = match *request {
            Request::Fsync { ino, .. } if self.is_flushed_by(who, ino) => {
                if self.data().take_lost(ino.0) {
                    return Err(Errno::EIO);
                }
                Synced::File(ino)
            }
            Request::Fsync { ino, .. } => match self.flush_nodes(ino).await {
                Ok(()) => Synced::File(ino),
                // Or anything else that has no bytes there.
                Err(Errno::EINVAL | Errno::ESTALE) => Synced::Directory(ino),
                Err(errno) => return Err(errno),
            },
            _ => {
                // What the server wrote itself, for clients that leave that to it.
                self.data().flush_all().await.map_err(|_| Errno::EIO)?;
                if self.data().take_any_lost() {
                    return Err(Errno::EIO);
                }
                Synced::Volume
            }
        };
        if self.losses().says(of.header, synced) { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Whether a client has a file: then it has flushed the nodes of it before it asked. This
    /// server may have written what is not flushed itself.
    fn is_flushed_by(&self, who: Who, ino: Ino) -> bool {
        let (delegations, lives) = (self.delegations(), self.clients().lives(who));
        let has = delegations.held(ino, who.client).is_some() && !delegations.is_inherited(ino);
        has && lives && self.data().unsynced(ino.0).is_empty()
    }

    /// Room for bytes is what nodes say.
    fn with_space(&self, figures: Statfs) -> Statfs {
        let (free, capacity) = self.chores().space();
        let block = figures.block_size.max(1);
        let (free, blocks) = (free / block, capacity / block);
        if capacity == 0 {
            return figures;
        }
        Statfs { blocks, blocks_free: free, blocks_available: free, ..figures }
    }

    /// What a name leads to, if the asker may know.
    async fn look_up(&self, of: &Operation<'_>, parent: Ino, name: &[u8]) -> Result<Option<Ino>> {
        let flags = of.header.flags.without(Flags::REPLAY);
        let header = Header { sequence: 0, flags, ..of.header.clone() };
        let request = Request::Lookup { parent, name };
        match self.volume().handle(of.caller, &header, request, Payload::None, of.wall).await {
            Ok(Answer { reply: FileReply::Entry(attr), .. }) => Ok(Some(attr.ino)),
            Ok(_) => Err(Errno::EPROTO),
            // What is the matter is for the operation itself to say.
            Err(_) => Ok(None),
        }
    }

    /// A file that was found, not made, may be written by another client: its attributes as they
    /// are once that is over.
    async fn with_its_size(&self, client: u64, answer: Answer) -> Result<Answer> {
        let FileReply::Created(attr, fh) = &answer.reply else { return Ok(answer) };
        let (ino, fh): (Ino, Fh) = (attr.ino, *fh);
        if self.settle(ino, client, Mode::Read).await.is_err() {
            // It is open; who reads or writes it hears what is the matter.
            return Ok(answer);
        }
        match self.volume().spread(ino).await {
            Ok(spread) => Ok(FileReply::Created(spread.attr, fh).into()),
            Err(_) => Ok(answer),
        }
    }

    /// A client speaks for a session from here on: what another asked for it has ended, and is
    /// refused from now on.
    pub(crate) async fn speak_for(
        &self,
        who: Who,
        session: SessionId,
    ) -> Result<Busy<'_, K, M, N>> {
        let admitted = self.sessions_changed().until(|| {
            let mut clients = self.clients();
            match clients.admit(who, session, self.net().now()) {
                Ok(Admission::Wait) => None,
                Ok(Admission::Taken(turn)) => Some(Ok(turn)),
                Ok(Admission::Moved(turn)) => {
                    // What it missed it is told again, and what it waits for it asks again: before
                    // anything else of it, which may be that.
                    self.volume().is_back(session);
                    Some(Ok(turn))
                }
                Err(errno) => Some(Err(errno)),
            }
        });
        let turn = admitted.await?;
        if self.chores().is_grace() {
            self.losses().came(session, true);
        }
        Ok(Busy { meta: self, who, session, turn, holds: AtomicBool::new(true) })
    }

    /// What is sent again waits for the end of what was sent before, which may be under way.
    async fn lane_of(&self, header: &Header) -> Result<Option<RangeGuard<'_>>> {
        if header.sequence == 0 {
            return Ok(None);
        }
        let lane = u64::from(header.lane) * BLOCK;
        Ok(Some(self.lanes().exclusive_on(Ino(header.session.0), lane..lane + 1).await))
    }

    /// A session is gone for good.
    pub(crate) fn detach(&self, who: Who, session: SessionId) -> Result<Reply> {
        if self.clients().owns(who, session) {
            self.volume().detach(session);
            self.clients().forget_session(session);
            self.losses().forget(session);
        }
        Ok(Reply::Done)
    }

    /// A session is there again.
    pub(crate) async fn back(&self, who: Who, session: SessionId) -> Result<Reply> {
        let _busy = self.speak_for(who, session).await?;
        if self.clients().is_back(session) {
            self.volume().is_back(session);
        }
        Ok(Reply::Done)
    }

    /// Sets the layout of an empty file or a directory.
    pub(crate) async fn set_layout(
        &self,
        who: Who,
        asker: &Asker,
        ino: Ino,
        layout: Layout,
    ) -> Result<Reply> {
        let busy = self.speak_for(who, asker.session).await?;
        // Who has a delegation knows the layout.
        busy.aside(self.free(ino)).await?;
        let header =
            Header { cred: asker.peer.clone(), session: asker.session, ..Header::default() };
        self.volume().set_layout(&caller(asker), &header, ino, layout).await?;
        Ok(Reply::Done)
    }

    /// A write that takes set-id bits away is coming.
    pub(crate) async fn strip(
        &self,
        who: Who,
        asker: &Asker,
        ino: Ino,
        wall: Timestamp,
    ) -> Result<Reply> {
        let _busy = self.speak_for(who, asker.session).await?;
        let attr = self.volume().strip(&caller(asker), ino, wall).await?;
        Ok(Reply::Attr(Box::new(attr)))
    }

    /// Whether a peer may write now.
    pub(crate) async fn may_write(&self, who: Who, asker: &Asker, ino: Ino) -> Result<Reply> {
        let _busy = self.speak_for(who, asker.session).await?;
        Ok(Reply::Flag(self.volume().may_write(&caller(asker), ino).await?))
    }

    /// Flags of a handle.
    pub(crate) fn opened(&self, who: Who, session: SessionId, ino: Ino, fh: Fh) -> Result<Reply> {
        if !self.clients().owns(who, session) {
            return Err(Errno::ESTALE);
        }
        let flags = self.volume().opened(session, ino, fh);
        Ok(Reply::Number(flags.map_or(u64::MAX, u64::from)))
    }
}

/// Which file's size an operation reads, or what it does to its bytes.
fn concern(request: &Request<'_>) -> Option<(Ino, Concern)> {
    match *request {
        Request::Open { ino, flags } if flags & open_flags::TRUNC != 0 => Some((ino, Concern::Cut)),
        Request::Setattr { ino, ref set, .. } if set.size.is_some() => Some((ino, Concern::Cut)),
        Request::Open { ino, .. }
        | Request::Getattr { ino, .. }
        | Request::Setattr { ino, .. }
        | Request::Lseek { ino, .. } => Some((ino, Concern::Look)),
        _ => None,
    }
}

fn encode(answer: &Answer) -> Result<Reply> {
    let mut header = vec![0; limits::REPLY_HEADER_MAX];
    let (result, len) = answer.reply.encode(&mut header)?;
    header.truncate(len);
    Ok(Reply::File { result, header, payload: answer.payload.bytes().to_vec() })
}
