//! From a request to the function that answers it.

use outboard_base::{Errno, Ino, Result, Timestamp};
use outboard_kv::Kv;
use outboard_medium::Medium;
use outboard_wire::file::{Header, Reply, Request};

use crate::context::Context;
use crate::{Answer, Caller, Kvfs, Payload};

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Answers one request. `payload` is what travels with it towards the volume.
    ///
    /// A request marked as a replay whose effect is recorded is answered from the record.
    pub async fn handle(
        &self,
        caller: &Caller,
        header: &Header,
        request: Request<'_>,
        payload: Payload,
        now: Timestamp,
    ) -> Result<Answer> {
        let context = Context::new(caller, header, request.op(), now)?;
        self.handle_in(context, request, payload).await
    }

    /// The same of a `Create` whose asker has seen to what it may cut off: `EAGAIN`, and nothing is
    /// done, if the name leads to anything but `leads_to` by now.
    pub async fn create_where(
        &self,
        caller: &Caller,
        header: &Header,
        request: Request<'_>,
        leads_to: Option<Ino>,
        now: Timestamp,
    ) -> Result<Answer> {
        let mut context = Context::new(caller, header, request.op(), now)?;
        context.leads_to = Some(leads_to);
        self.handle_in(context, request, Payload::None).await
    }

    async fn handle_in(
        &self,
        context: Context<'_>,
        request: Request<'_>,
        payload: Payload,
    ) -> Result<Answer> {
        if context.header.sequence != 0 {
            self.sessions.seen(context.attachment);
        }
        if let Some(reply) = self.recorded(&context).await? {
            return self.answer_again(&context, &request, reply).await;
        }
        let about = inodes(&request);
        if !about.into_iter().all(|ino| self.may_name(&context, ino)) {
            return Err(Errno::ESTALE);
        }
        let answer = self.answer(&context, request, payload.bytes()).await;
        if let Err(errno @ (Errno::EIO | Errno::EUCLEAN)) = &answer {
            let [ino, other] = about;
            tracing::error!(
                op = ?context.op,
                %ino,
                %other,
                %errno,
                "bytes are damaged or the disk failed; `outboard fsck` says which"
            );
        }
        answer
    }

    /// Numbers can be guessed: an attachment that is not trusted may only speak of inodes it has
    /// come to by names it may search, or has open.
    pub(crate) fn may_name(&self, context: &Context<'_>, ino: Ino) -> bool {
        context.trusted || self.handles.knows(context.attachment, ino)
    }

    async fn answer(&self, cx: &Context<'_>, request: Request<'_>, data: &[u8]) -> Result<Answer> {
        Ok(match request {
            Request::Noop => Reply::Empty.into(),
            Request::Lookup { parent, name } => self.lookup(cx, parent, name).await?.into(),
            Request::Forget { ino } => self.forget(cx, ino).await?.into(),
            Request::Getattr { ino, fh: _ } => self.getattr(cx, ino).await?.into(),
            Request::Setattr { ino, fh, set } => self.setattr(cx, ino, fh, &set).await?.into(),
            Request::Readlink { ino } => self.readlink(cx, ino).await?,
            Request::Symlink { parent, name } => self.symlink(cx, parent, name, data).await?.into(),
            Request::Mknod { parent, name, mode, umask, rdev } => {
                self.mknod(cx, parent, name, mode, umask, rdev).await?.into()
            }
            Request::Mkdir { parent, name, mode, umask } => {
                self.mkdir(cx, parent, name, mode, umask).await?.into()
            }
            Request::Unlink { parent, name } => self.unlink(cx, parent, name).await?.into(),
            Request::Rmdir { parent, name } => self.rmdir(cx, parent, name).await?.into(),
            Request::Rename { parent, name, to_parent, to_name, flags } => {
                self.rename(cx, (parent, name), (to_parent, to_name), flags).await?.into()
            }
            Request::Link { ino, to_parent, to_name } => {
                self.link(cx, ino, to_parent, to_name).await?.into()
            }
            Request::Open { ino, flags } => self.open_file(cx, ino, flags).await?.into(),
            Request::Create { parent, name, mode, umask, flags } => {
                self.create(cx, parent, name, mode, umask, flags).await?.into()
            }
            Request::Tmpfile { parent, mode, umask, flags } => {
                self.tmpfile(cx, parent, mode, umask, flags).await?.into()
            }
            Request::Release { ino, fh, owner } => self.release(cx, ino, fh, owner).await?.into(),
            Request::Opendir { ino } => self.opendir(cx, ino).await?.into(),
            Request::Readdir { ino, fh, cookie, len, with_attributes } => {
                self.readdir(cx, ino, fh, cookie, len, with_attributes).await?
            }
            Request::Releasedir { ino, fh } => self.releasedir(cx, ino, fh).await?.into(),
            Request::Statfs { .. } => Reply::Statfs(self.statfs()).into(),
            Request::Getxattr { ino, name, len } => self.getxattr(cx, ino, name, len).await?,
            Request::Setxattr { ino, name, flags } => {
                self.setxattr(cx, ino, name, data, flags).await?.into()
            }
            Request::Listxattr { ino, len } => self.listxattr(cx, ino, len).await?,
            Request::Removexattr { ino, name } => self.removexattr(cx, ino, name).await?.into(),
            Request::Access { ino, mask } => self.access(cx, ino, mask).await?.into(),
            Request::Read { .. }
            | Request::Write { .. }
            | Request::Flush { .. }
            | Request::Fsync { .. }
            | Request::Getlk { .. }
            | Request::Setlk { .. }
            | Request::CancelLock { .. }
            | Request::ReturnLocks { .. }
            | Request::Fallocate { .. }
            | Request::Lseek { .. }
            | Request::CopyFileRange { .. }
            | Request::Syncfs
            | Request::Reclaim { .. } => self.answer_data(cx, request, data).await?,
        })
    }

    /// Requests about a file's bytes and locks, helper functions of `data` and `lock`; and handles
    /// that are handed in again.
    async fn answer_data(
        &self,
        cx: &Context<'_>,
        request: Request<'_>,
        data: &[u8],
    ) -> Result<Answer> {
        Ok(match request {
            Request::Read { ino, fh, offset, len, .. } => {
                self.read(cx, ino, fh, offset, len).await?
            }
            Request::Write { ino, fh, offset, flags } => {
                self.write(cx, ino, fh, offset, flags, data).await?.into()
            }
            Request::Flush { ino, fh, owner } => self.flush(cx, ino, fh, owner)?.into(),
            Request::Fsync { ino, fh, data_only } => {
                self.fsync(cx, ino, fh, data_only).await?.into()
            }
            Request::Getlk { ino, fh, lock } => self.getlk(cx, ino, fh, lock).await?.into(),
            Request::Setlk { ino, fh, lock, wait, reclaim } => {
                self.setlk(cx, ino, fh, lock, wait, reclaim)?.into()
            }
            Request::CancelLock { ticket } => self.cancel_lock(cx, ticket)?.into(),
            Request::ReturnLocks { ino } => self.return_locks(cx, ino, data)?.into(),
            Request::Fallocate { ino, fh, offset, len, mode } => {
                self.fallocate(cx, ino, fh, offset, len, mode).await?.into()
            }
            Request::Lseek { ino, fh, offset, whence } => {
                self.lseek(cx, ino, fh, offset, whence).await?.into()
            }
            Request::CopyFileRange { from, from_fh, from_offset, to, to_fh, to_offset, len } => {
                let source = (from, from_fh, from_offset);
                self.copy_file_range(cx, source, (to, to_fh, to_offset), len).await?.into()
            }
            Request::Syncfs => self.syncfs().await?.into(),
            Request::Reclaim { ino, fh, flags, directory } => {
                self.reclaim(cx, ino, fh, flags, directory).await?.into()
            }
            _ => Err(Errno::ENOSYS)?,
        })
    }
}

/// The inodes a request speaks of, the root where it speaks of fewer than two. `Reclaim` has rules
/// of its own.
fn inodes(request: &Request<'_>) -> [Ino; 2] {
    match *request {
        Request::Noop | Request::Syncfs | Request::CancelLock { .. } | Request::Reclaim { .. } => {
            [Ino::ROOT; 2]
        }
        Request::Lookup { parent, .. }
        | Request::Symlink { parent, .. }
        | Request::Mknod { parent, .. }
        | Request::Mkdir { parent, .. }
        | Request::Unlink { parent, .. }
        | Request::Rmdir { parent, .. }
        | Request::Create { parent, .. }
        | Request::Tmpfile { parent, .. } => [parent, Ino::ROOT],
        Request::Rename { parent, to_parent, .. } => [parent, to_parent],
        Request::Link { ino, to_parent, .. } => [ino, to_parent],
        Request::CopyFileRange { from, to, .. } => [from, to],
        Request::Forget { ino }
        | Request::Getattr { ino, .. }
        | Request::Setattr { ino, .. }
        | Request::Readlink { ino }
        | Request::Open { ino, .. }
        | Request::Read { ino, .. }
        | Request::Write { ino, .. }
        | Request::Flush { ino, .. }
        | Request::Release { ino, .. }
        | Request::Fsync { ino, .. }
        | Request::Opendir { ino }
        | Request::Readdir { ino, .. }
        | Request::Releasedir { ino, .. }
        | Request::Statfs { ino }
        | Request::Getxattr { ino, .. }
        | Request::Setxattr { ino, .. }
        | Request::Listxattr { ino, .. }
        | Request::Removexattr { ino, .. }
        | Request::Access { ino, .. }
        | Request::Getlk { ino, .. }
        | Request::Setlk { ino, .. }
        | Request::ReturnLocks { ino }
        | Request::Fallocate { ino, .. }
        | Request::Lseek { ino, .. } => [ino, Ino::ROOT],
    }
}
