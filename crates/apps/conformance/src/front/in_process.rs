//! KVFS in this process, over engines in memory or any others.
//!
//! Requests and replies go through their bytes on the way, so that what is tested is what can
//! travel. Optionally every change that was answered is asked for a second time, marked as a
//! replay: the second answer, which the volume must find instead of doing the work twice, is the
//! one that counts.

use std::collections::HashMap;
use std::time::Duration;

use outboard_base::{Cred, Errno, Result, SessionId, limits};
use outboard_kv::Kv;
use outboard_kv::mem::MemKv;
use outboard_kv::object::{Compression, Packing};
use outboard_kvfs::Kvfs;
use outboard_medium::Medium;
use outboard_medium::mem::MemMedium;
use outboard_volume::{Answer, Caller, Payload, VolumeEvent};
use outboard_wire::file::{Attr, Flags, Header, Op, Reply, Request};

use super::memory::{self, block_on};
use super::{Features, Front};

/// A volume that answers requests.
pub struct InProcessFront<K = MemKv, M = MemMedium> {
    features: Features,
    volume: Kvfs<K, M>,
    caller: Caller,
    sequence: u64,
    replays: bool,
    settled: HashMap<u64, Result<()>>,
}

/// Whether an answer to `op` can be in the store. Locks and handles are in memory, and are handed
/// in again after a loss; an `Open` that truncates does so twice without harm.
fn is_recorded(op: Op) -> bool {
    let in_memory = matches!(
        op,
        Op::Open
            | Op::Opendir
            | Op::Release
            | Op::Releasedir
            | Op::Flush
            | Op::Setlk
            | Op::CancelLock
    );
    op.changes() && !in_memory
}

impl InProcessFront {
    /// An empty volume in memory. `replays`: every change is asked for twice.
    pub fn new(replays: bool) -> std::result::Result<InProcessFront, String> {
        Self::over(MemKv::new(1), MemMedium::new(2), replays)
    }

    /// An empty volume in memory that packs blocks of file.
    pub fn packed() -> std::result::Result<InProcessFront, String> {
        Self::named("packed", MemKv::new(1), MemMedium::new(2), false, Compression::Lz4)
    }

    /// What was written so far, and what it took.
    pub fn packing(&self) -> Packing {
        self.volume.objects().packing()
    }
}

impl<K: Kv, M: Medium> InProcessFront<K, M> {
    /// The volume in two engines, which are empty or hold one.
    pub fn over(
        kv: K,
        medium: M,
        replays: bool,
    ) -> std::result::Result<InProcessFront<K, M>, String> {
        let name = if replays { "replay" } else { "inprocess" };
        Self::named(name, kv, medium, replays, Compression::None)
    }

    fn named(
        name: &str,
        kv: K,
        medium: M,
        replays: bool,
        compression: Compression,
    ) -> std::result::Result<InProcessFront<K, M>, String> {
        let volume = memory::open(kv, medium, compression)?;
        block_on(volume.end_grace())
            .and_then(|end| end)
            .map_err(|errno| format!("the grace period does not end: {errno}"))?;
        let features = memory::features(name);
        let caller = Caller::root(SessionId(1));
        let settled = HashMap::new();
        Ok(InProcessFront { features, volume, caller, sequence: 0, replays, settled })
    }

    /// Through the bytes of the request to the volume, and through the bytes of the reply back.
    fn send(&mut self, header: &Header, request: &Request<'_>, payload: &[u8]) -> Result<Answer> {
        let mut bytes = vec![0; limits::REQUEST_HEADER_MAX];
        let len = request.encode(header, &mut bytes)?;
        let (header, arrived) = Request::decode(bytes.get(..len).ok_or(Errno::EPROTO)?)?;
        let payload = Payload::Bytes(payload.to_vec());
        let answer =
            block_on(self.volume.handle(&self.caller, &header, arrived, payload, memory::now()))?;
        self.collect();
        let answer = answer?;
        let mut bytes = [0; limits::REPLY_HEADER_MAX];
        let (result, len) = answer.reply.encode(&mut bytes)?;
        let header = bytes.get(..len).ok_or(Errno::EPROTO)?;
        let reply = Reply::decode(request.op(), result, header)?;
        if reply == answer.reply { Ok(answer) } else { Err(Errno::EPROTO) }
    }

    /// A handle does not outlive the instance that gave it: closes what a first answer opened.
    fn lose_handle(&mut self, cred: &Cred, reply: &Reply) -> Result<()> {
        let Reply::Created(Attr { ino, .. }, fh) = *reply else { return Ok(()) };
        let header = Header { cred: cred.clone(), ..Header::default() };
        self.send(&header, &Request::Release { ino, fh, owner: 0 }, &[]).map(drop)
    }

    /// A volume that is open already, under a name for reports.
    pub fn of(
        volume: Kvfs<K, M>,
        name: &str,
        replays: bool,
    ) -> std::result::Result<InProcessFront<K, M>, String> {
        block_on(volume.end_grace())
            .and_then(|end| end)
            .map_err(|errno| format!("the grace period does not end: {errno}"))?;
        let features = memory::features(name);
        let caller = Caller::root(SessionId(1));
        let settled = HashMap::new();
        Ok(InProcessFront { features, volume, caller, sequence: 0, replays, settled })
    }

    /// Remembers how waits for locks ended.
    fn collect(&mut self) {
        for event in self.volume.take_events() {
            if let VolumeEvent::LockSettled { ticket, result, .. } = event {
                self.settled.insert(ticket, result);
            }
        }
    }
}

impl<K: Kv, M: Medium> Front for InProcessFront<K, M> {
    fn features(&self) -> &Features {
        &self.features
    }

    fn call(
        &mut self,
        cred: &Cred,
        request: &Request<'_>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply> {
        out.clear();
        let changes = request.op().changes();
        let mut header = Header { cred: cred.clone(), ..Header::default() };
        if changes {
            self.sequence += 1;
            (header.session, header.sequence) = (self.caller.attachment, self.sequence);
        }
        let mut answer = self.send(&header, request, payload)?;
        if self.replays && is_recorded(request.op()) {
            header.flags = Flags::REPLAY;
            let first = std::mem::replace(&mut answer, self.send(&header, request, payload)?);
            self.lose_handle(cred, &first.reply)?;
        }
        if let Reply::Data(len) = answer.reply {
            let len = len as usize;
            out.extend_from_slice(answer.payload.bytes().get(..len).ok_or(Errno::EPROTO)?);
        }
        Ok(answer.reply)
    }

    fn granted(&mut self, ticket: u64, _patience: Duration) -> Result<bool> {
        self.collect();
        self.settled.remove(&ticket).map_or(Ok(false), |end| end.map(|()| true))
    }

    fn settle(&mut self) -> Result<()> {
        self.volume.detach(self.caller.attachment);
        self.caller.attachment.0 += 1;
        self.settled.clear();
        memory::tidy(&self.volume)
    }

    fn verify(&mut self) -> std::result::Result<(), String> {
        memory::verify(&self.volume)
    }
}
