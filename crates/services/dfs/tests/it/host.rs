//! A host of a client: a session that asks as programs do.

use std::sync::Arc;

use outboard_base::{Cred, Fh, Ino, Result, SessionId};
use outboard_volume::{Answer as VolumeAnswer, Caller, Payload, Volume};
use outboard_wire::file::{Attr, Flags, Header, Reply as FileReply, Request, open_flags};
use outboard_wire::shared::Peer;

use crate::world::{Client, Rig, World};

/// A session of a client.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) client: Arc<Client>,
    pub(crate) number: u64,
    pub(crate) session: SessionId,
    pub(crate) world: Arc<World>,
}

impl Host {
    pub(crate) fn new(rig: &mut Rig, number: u64) -> Host {
        let client = rig.client(number);
        let (session, world) = (SessionId(100 + number), Arc::clone(&rig.world));
        Host { client, number, session, world }
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer::Client(self.number)
    }

    pub(crate) fn header(&self, sequence: u64, flags: Flags) -> Header {
        Header { cred: Cred::root(), flags, session: self.session, sequence, lane: 1 }
    }

    pub(crate) async fn ask(
        &self,
        sequence: u64,
        flags: Flags,
        request: Request<'_>,
        payload: Vec<u8>,
    ) -> Result<VolumeAnswer> {
        let caller = Caller::root(self.session);
        let payload = if payload.is_empty() { Payload::None } else { Payload::Bytes(payload) };
        let now = self.world.wall();
        self.client.handle(&caller, &self.header(sequence, flags), request, payload, now).await
    }

    pub(crate) async fn plain(&self, request: Request<'_>) -> Result<VolumeAnswer> {
        self.ask(0, Flags::default(), request, Vec::new()).await
    }

    /// Opens a file of the root, and makes it if it is not there.
    pub(crate) async fn open(&self, name: &[u8], flags: u32) -> Result<(Attr, Fh)> {
        let (mode, umask) = (0o644, 0);
        let flags = flags | open_flags::RDWR;
        let request = Request::Create { parent: Ino::ROOT, name, mode, umask, flags };
        match self.plain(request).await?.reply {
            FileReply::Created(attr, fh) => Ok((attr, fh)),
            other => panic!("{other:?}"),
        }
    }

    /// The same, as one that is asked again if it has to be.
    pub(crate) async fn open_once(&self, name: &[u8], flags: u32) -> Result<VolumeAnswer> {
        let (mode, umask, flags) = (0o644, 0, flags | open_flags::RDWR);
        let request = Request::Create { parent: Ino::ROOT, name, mode, umask, flags };
        self.ask(7, Flags::default(), request, Vec::new()).await
    }

    pub(crate) async fn read(
        &self,
        (ino, fh): (Ino, Fh),
        offset: u64,
        len: u32,
    ) -> Result<Vec<u8>> {
        let answer = self.plain(Request::Read { ino, fh, offset, len, flags: 0 }).await?;
        Ok(answer.payload.bytes().to_vec())
    }

    pub(crate) async fn write(
        &self,
        (ino, fh): (Ino, Fh),
        offset: u64,
        flags: u32,
        data: Vec<u8>,
    ) -> Result<u32> {
        let request = Request::Write { ino, fh, offset, flags };
        match self.ask(0, Flags::default(), request, data).await?.reply {
            FileReply::Written(taken) => Ok(taken),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn size(&self, ino: Ino) -> Result<u64> {
        match self.plain(Request::Getattr { ino, fh: Fh::NONE }).await?.reply {
            FileReply::Attr(attr) => Ok(attr.size),
            other => panic!("{other:?}"),
        }
    }
}
