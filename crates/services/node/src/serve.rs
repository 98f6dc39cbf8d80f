//! What becomes of a request that is whole: it goes through the store, and is answered.
//!
//! There is one such function for both paths. What handlers have checked comes with its heads; what
//! was steered comes as it was sent, and is parsed and checked here first, by the same rules.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outboard_medium::Medium;
use outboard_wire::shared::call::STRIP_MIN;
use outboard_wire::shared::{ANSWER_LEN, Answer, Brings, HoleHead, RUN_LEN, ReadHead};
use outboard_wire::shared::{Heads, Peer, Reason, Request, Strategy, Target, WriteHead};

use crate::nic::Nic;
use crate::nic::context::{Landing, Path};
use crate::policy::{Baseline, Rules};
use crate::{Change, Copies, Store, Version};

/// Bytes of the pieces in which the CPU side passes a request on.
const CHUNK: usize = 64 << 10;

/// Everything serving needs beside the request.
pub(crate) struct Serving<'a, M> {
    pub(crate) store: &'a Store<M>,
    pub(crate) rules: &'a Mutex<Rules>,
    pub(crate) nic: &'a Mutex<Nic>,
    /// The request's descriptor, and its generation.
    pub(crate) place: (u32, u8),
    pub(crate) baseline: Option<Baseline>,
}

impl<M: Medium> Serving<'_, M> {
    /// Does what a request asks for; the answer's message. None: it is a part, and its sum is not
    /// complete.
    pub(crate) async fn serve(
        &self,
        from: Peer,
        is_sealed: bool,
        landing: Landing,
    ) -> Option<Vec<u8>> {
        let Landing { path, heads, data, .. } = landing;
        let (heads, data, allowed) = match (path, heads) {
            (Path::Nic, Some(heads)) if self.baseline == Some(Baseline::RpcRdma) => {
                let allowed = self.with(|rules| rules.check(from, is_sealed, &heads));
                (heads, data, allowed)
            }
            (Path::Nic, Some(heads)) => (heads, data, Ok(())),
            _ => match Request::parse(&data) {
                Ok(Request { heads, data: bytes }) => {
                    let allowed = self.with(|rules| rules.check(from, is_sealed, &heads));
                    let is_whole = bytes.len() == heads.head.data as usize;
                    let allowed = match allowed {
                        Ok(()) if is_whole => self.nic().pass_on(self.place, &heads, &data, CHUNK),
                        Ok(()) => Err(Reason::Invalid),
                        Err(reason) => Err(reason),
                    };
                    if allowed.is_ok() && is_part(&heads) {
                        let sum = self.nic().add_whole(self.place, bytes.to_vec())?;
                        (sum.heads?, sum.data, allowed)
                    } else {
                        (Box::new(heads), bytes.to_vec(), allowed)
                    }
                }
                Err(_) => return Some(self.unread(&data)),
            },
        };
        // What is read goes right behind the answer's place.
        let mut message = vec![0; ANSWER_LEN];
        let outcome = match allowed {
            Ok(()) => self.carry_out(&heads, data, &mut message).await,
            Err(reason) => Err(reason),
        };
        match outcome {
            Err(Reason::Fence) => self.learn(heads.capability.object),
            Err(Reason::Medium | Reason::Filling) if allowed.is_ok() => {
                self.find_damage(&heads).await;
            }
            _ => {}
        }
        let len = u32::try_from(message.len().saturating_sub(ANSWER_LEN));
        let outcome = outcome.and_then(|()| len.map_err(|_| Reason::Invalid));
        if outcome.is_err() {
            message.truncate(ANSWER_LEN);
        }
        let held = if outcome.is_ok() { self.store.held(heads.capability.object) } else { 0 };
        let answer = self.with(|rules| rules.answer(&heads, outcome));
        let answer = Answer { held, ..answer }.emit();
        message.iter_mut().zip(answer).for_each(|(to, byte)| *to = byte);
        Some(message)
    }

    /// The bytes of a read go behind what `message` has; of all else none.
    async fn carry_out(
        &self,
        heads: &Heads,
        data: Vec<u8>,
        message: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let (object, fence) = (heads.capability.object, heads.capability.fence);
        match &heads.target {
            Target::Write(write) => {
                // Nobody has told the checksum of a parity. What it is made of was right.
                let is_right = write.is_part() || outboard_codec::crc32c(&data) == write.crc;
                if data.len() != write.data() as usize || !is_right {
                    return Err(Reason::Invalid);
                }
                if write.strategy == Strategy::Parity {
                    self.nic().confirm(self.place);
                }
                self.write(heads, write, &data).await
            }
            Target::Hole(hole) => {
                self.still(heads)?;
                self.hole(heads, hole).await?;
                self.raise(object, fence);
                // A cut must not be undone by a loss of power: the size of the file is durable
                // before, and what lay behind it would show when the file grows again.
                if hole.end == u64::MAX {
                    self.store.flush().await?;
                }
                Ok(())
            }
            Target::Read(read) => {
                self.learn(object);
                self.still(heads)?;
                self.read(object, read, message).await
            }
        }
    }

    /// Bytes, or where there are any.
    async fn read(
        &self,
        object: u64,
        read: &ReadHead,
        message: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        if !read.map {
            return self.store.read_behind(object, read.offset, read.bytes, message).await;
        }
        let most = read.bytes as usize / RUN_LEN;
        let runs = self.store.map(object, read.offset, most).await;
        let runs = runs.iter().flat_map(|run| [run.start, run.end]);
        message.extend(runs.flat_map(u64::to_le_bytes));
        Ok(())
    }

    async fn hole(&self, heads: &Heads, hole: &HoleHead) -> Result<(), Reason> {
        let (object, fence) = (heads.capability.object, heads.capability.fence);
        let version = Version { fence, sequence: hole.sequence };
        if heads.capability.strategy != Strategy::Single {
            // What was acknowledged by all is stable before; over anything else it does not go.
            let up_to = Version { fence, sequence: heads.head.settled };
            self.store.settle(object, hole.range(), up_to).await?;
        }
        match hole.share {
            None => self.store.hole(object, version, hole.range()).await,
            Some(share) => {
                self.store.reserve(object, STRIP_MIN, version, hole.range(), share).await
            }
        }
    }

    /// Writes, strip by strip. A node's strips are of one size; those of a layout are as long, or
    /// of several. A write that is cut between them was not acknowledged, and comes again whole.
    /// With copies, what a write says was acknowledged before it is the last version of each, or
    /// that is settled.
    async fn write(&self, heads: &Heads, write: &WriteHead, mut data: &[u8]) -> Result<(), Reason> {
        let (object, fence) = (heads.capability.object, heads.capability.fence);
        let version = Version { fence, sequence: write.sequence };
        let previous = (write.previous > 0).then_some(Version { sequence: write.previous, fence });
        let (mut offset, end) = (write.offset, heads.range().end);
        while offset < end {
            let strip = u64::from(STRIP_MIN);
            let len = (strip - offset % strip).min(end - offset);
            let bytes = usize::try_from(len).map_err(|_| Reason::Range)?;
            let (piece, rest) = match write.brings {
                Brings::Nothing => (data, data),
                _ => data.split_at_checked(bytes).ok_or(Reason::Invalid)?,
            };
            self.still(heads)?;
            if heads.capability.strategy == Strategy::Single {
                self.store.write(object, STRIP_MIN, version, previous, offset, piece).await?;
            } else {
                let (settled, epoch) = (heads.head.settled, heads.head.epoch);
                let copies = Copies { previous, settled, epoch };
                let change = Change::of(write.brings, bytes, piece);
                self.store.change_copy(object, STRIP_MIN, version, copies, offset, change).await?;
            }
            data = rest;
            offset = offset.checked_add(len).ok_or(Reason::Range)?;
        }
        self.raise(object, fence);
        Ok(())
    }

    /// Time has passed since the request was checked: a seal, the object's end, the capability's.
    fn still(&self, heads: &Heads) -> Result<(), Reason> {
        if self.baseline.is_some_and(Baseline::believes) {
            return Ok(());
        }
        self.with(|rules| rules.still(&heads.capability))
    }

    /// What it has of an object may be damaged: others that have copies have better.
    async fn find_damage(&self, heads: &Heads) {
        let range = match &heads.target {
            Target::Read(read) => read.offset..read.offset.saturating_add(read.bytes.into()),
            Target::Write(write) => write.offset..write.offset.saturating_add(write.bytes.into()),
            // Of a hole its edges are read; the other one a scrub finds.
            Target::Hole(hole) => hole.offset..hole.offset.saturating_add(1),
        };
        if heads.capability.strategy != Strategy::Single {
            self.store.find_damage(heads.capability.object, range).await;
            let damaged = self.store.damaged();
            let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
            rules.doubt_damage(&damaged);
        }
    }

    fn unread(&self, message: &[u8]) -> Vec<u8> {
        let answer = self.with(|rules| rules.answer_unread(message, Reason::Invalid));
        answer.map(|answer| answer.emit().to_vec()).unwrap_or_default()
    }

    /// Fences from before this process began are known to the store alone.
    fn learn(&self, object: u64) {
        let fence = self.store.fence(object);
        if fence > 0 {
            self.raise(object, fence);
        }
    }

    fn raise(&self, object: u64, fence: u64) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).raise(object, fence);
    }

    fn nic(&self) -> MutexGuard<'_, Nic> {
        self.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, f: impl FnOnce(&Rules) -> R) -> R {
        f(&self.rules.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_part(heads: &Heads) -> bool {
    matches!(&heads.target, Target::Write(write) if write.is_part())
}
