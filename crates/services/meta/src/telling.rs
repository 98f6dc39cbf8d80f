//! Writers that tell what makes a file longer before they answer it: what lies behind the size that
//! is known is nobody's then, and goes when the file is resolved. So an append is done once, and at
//! one place, whoever dies in it: the volume has the size it made and what it was answered, in one
//! commit, or neither.

use outboard_base::planted::{Fault, is_planted};
use outboard_base::{Errno, Ino, Result};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::spread::Record;
use outboard_medium::Medium;
use outboard_wire::file::{Header, Op, Reply as FileReply, Request};
use outboard_wire::shared::call::{Asker, Told};

use crate::Meta;
use crate::clients::Who;
use crate::files::caller;

/// The file that a session writes, of the bytes of its request.
fn written(asker: &Asker, request: &[u8]) -> Result<(Header, Ino)> {
    let (header, request) = Request::decode(request)?;
    match request {
        Request::Write { ino, .. } if header.session == asker.session => Ok((header, ino)),
        Request::Write { .. } => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// From now on a writer tells what makes a file longer before it answers it; `ESTALE` if it is
    /// none under this fence.
    pub(crate) async fn tells(&self, client: u64, ino: Ino, fence: u64, told: Told) -> Result<()> {
        let _change = self.changes().exclusive(ino).await;
        if !self.delegations().writes(ino, client, fence) {
            return Err(Errno::ESTALE);
        }
        let session = self.clients().sessions_of(client).next();
        self.tell_volume(session, ino, told, None).await?;
        if is_planted(Fault::Mark) {
            return Ok(());
        }
        match self.volume().begin_writing(ino, client, true).await {
            // The file is gone, and nobody can see its size.
            Err(Errno::ESTALE) => Ok(()),
            done => done,
        }
    }

    /// A writer tells what it is about to answer; `ESTALE` if it is none under this fence, unless
    /// it has told that before.
    pub(crate) async fn wrote(
        &self,
        who: Who,
        asker: &Asker,
        request: &[u8],
        (fence, told, count): (u64, Told, u32),
    ) -> Result<()> {
        let (header, ino) = written(asker, request)?;
        let _busy = self.speak_for(who, asker.session).await?;
        let caller = caller(asker);
        let _change = self.changes().exclusive(ino).await;
        if !self.delegations().writes(ino, who.client, fence) {
            let answered = self.volume().answered(&caller, &header, Op::Write).await?;
            return answered.map(drop).ok_or(Errno::ESTALE);
        }
        let record = Record::of(&caller, &header, Op::Write, &FileReply::Written(count))?;
        self.tell_volume(Some(asker.session), ino, told, record).await
    }

    /// How much a write wrote that is sent again, if that was told.
    pub(crate) async fn answered(
        &self,
        who: Who,
        asker: &Asker,
        request: &[u8],
    ) -> Result<Option<u32>> {
        let (header, _) = written(asker, request)?;
        let _busy = self.speak_for(who, asker.session).await?;
        match self.volume().answered(&caller(asker), &header, Op::Write).await? {
            Some(FileReply::Written(count)) => Ok(Some(count)),
            Some(_) => Err(Errno::EPROTO),
            None => Ok(None),
        }
    }
}
