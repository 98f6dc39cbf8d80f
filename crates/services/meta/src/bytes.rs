//! Bytes of files for clients that leave everything to the server (the mode `standard`).
//!
//! The server is then a client of the nodes itself: under the number [`NOBODY`], which no client
//! may have, it takes a delegation for one operation and gives it back, all in the file's turn. So
//! it is never recalled; a delegation that an operation left behind is taken like a late client's.

use outboard_base::{Errno, Ino, Result, Timestamp, limits};
use outboard_dfs::DataError;
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_medium::Medium;
use outboard_volume::{Answer, Caller, Payload};
use outboard_wire::file::{Flags, Header, Reply as FileReply, Request, seek, write_flags};
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Grant, Mode, Told};

use crate::Meta;
use crate::clients::Who;
use crate::grants::NOBODY;

/// How often something is tried under a new capability.
const TRIES: usize = 8;

fn errno(error: DataError) -> Errno {
    match error {
        DataError::Full => Errno::ENOSPC,
        DataError::Fenced => Errno::EAGAIN,
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
}

impl Operation<'_> {
    /// Whether set-id bits survive a write of its.
    fn keeps_set_id(&self) -> bool {
        let checked = self.caller.trusted && self.header.flags.has(Flags::CHECKED);
        let cred = if self.caller.trusted { &self.header.cred } else { &self.caller.peer };
        checked || cred.is_root()
    }

    fn mtime(&self) -> Option<Timestamp> {
        (!(self.caller.trusted && self.caller.keeps_times)).then_some(self.wall)
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
                let written = self.write(of, ino, offset, flags, data).await?;
                if flags & write_flags::DSYNC != 0 {
                    self.flush_nodes(ino).await?;
                    self.sync_volume(of).await?;
                }
                Ok(FileReply::Written(written).into())
            }
            Request::Lseek { ino, offset, whence, .. } => self.seek(ino, offset, whence).await,
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
        let read = self.by_itself(ino, Mode::Read, work).await?;
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
    ) -> Result<u32> {
        let work = async |grant: &Grant| {
            let size = grant.attr.size;
            let at = if flags & write_flags::APPEND != 0 { size } else { offset };
            let room = limits::FILE_SIZE_MAX.saturating_sub(at);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let data = data.get(..data.len().min(room)).unwrap_or_default();
            if data.is_empty() {
                return Err(Errno::EFBIG);
            }
            let kills = flags & write_flags::KILL_SUIDGID != 0;
            if grant.strips && (kills || !of.keeps_set_id()) {
                self.volume().strip(of.caller, ino, of.wall).await?;
            }
            self.data().write(grant, at, data).await.map_err(errno)?;
            let end = size.max(at.saturating_add(data.len() as u64));
            let count = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
            let blocks = Some(self.blocks(grant).await?);
            Ok((count, Some(Told { size: end, mtime: of.mtime(), blocks })))
        };
        self.by_itself(ino, Mode::Write, work).await
    }

    /// What a file takes at its nodes, in units of 512 bytes.
    async fn blocks(&self, grant: &Grant) -> Result<u64> {
        self.data().count(grant).await.map(|bytes| bytes.div_ceil(512)).map_err(errno)
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
        Ok(FileReply::Offset(self.by_itself(ino, Mode::Read, work).await?).into())
    }

    /// Makes a file's bytes durable at its nodes.
    pub(crate) async fn flush_nodes(&self, ino: Ino) -> Result<()> {
        let spread = self.volume().spread(ino).await?;
        let nodes = self.placement().of(&spread.layout, ino.0);
        let nodes = nodes.iter().map(|node| Peer::Node(node.node));
        self.data().flush(nodes).await.map_err(errno)?;
        if self.data().take_lost(ino.0) { Err(Errno::EIO) } else { Ok(()) }
    }

    async fn sync_volume(&self, of: &Operation<'_>) -> Result<()> {
        let flags = of.header.flags.without(Flags::REPLAY);
        let header = Header { sequence: 0, flags, ..of.header.clone() };
        let request = Request::Syncfs;
        self.volume().handle(of.caller, &header, request, Payload::None, of.wall).await?;
        Ok(())
    }

    /// A file that the volume has truncated ends there at its nodes, too.
    pub(crate) async fn cut(&self, ino: Ino) -> Result<()> {
        let work = async |grant: &Grant| {
            // Nothing if it was resolved meanwhile.
            if let Some(cut) = self.volume().spread(ino).await?.cut {
                self.data().hole(grant, cut..u64::MAX).await.map_err(errno)?;
                self.volume().holed(ino).await?;
            }
            let blocks = Some(self.blocks(grant).await?);
            Ok(((), Some(Told { size: grant.attr.size, mtime: None, blocks })))
        };
        self.by_itself(ino, Mode::Write, work).await
    }

    /// Does something with a file's bytes under a delegation of the server's own.
    async fn by_itself<T>(
        &self,
        ino: Ino,
        mode: Mode,
        work: impl AsyncFn(&Grant) -> Result<(T, Option<Told>)>,
    ) -> Result<T> {
        let _turn = self.turns().exclusive(ino).await;
        let mut grant = self.grant_in_turn(Who::NOBODY, ino, mode).await?;
        let mut tries = 0;
        let done = loop {
            match work(&grant).await {
                Err(Errno::EIO) if tries < TRIES => {
                    // It may have been that a node had no keys.
                    tries += 1;
                    self.net().sleep(crate::grants::LOOK).await;
                    grant = self.delegate_again(NOBODY, ino).await?;
                }
                done => break done,
            }
        };
        let fence = grant.capability.fence;
        match done {
            Ok((out, told)) => {
                self.release(NOBODY, ino, fence, told, None).await?;
                Ok(out)
            }
            Err(error) => {
                // What was written is not known: the next who wants it finds out.
                self.take_back(NOBODY, ino).await;
                Err(error)
            }
        }
    }
}
