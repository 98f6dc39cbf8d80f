//! A node as the contract has it: fences, keys, versions, and bytes in a map.

use std::collections::{BTreeMap, BTreeSet};

use outboard_codec::mac;
use outboard_wire::shared::call::{Key, Object, Revoked};
use outboard_wire::shared::{Heads, Reason, Rights, Target};

/// A node: what it holds, and the keys it knows.
#[derive(Default)]
pub(crate) struct Node {
    pub(crate) objects: BTreeMap<u64, Object>,
    pub(crate) keys: Vec<Key>,
    pub(crate) revoked: Vec<Revoked>,
    pub(crate) away: bool,
    /// Calls of a server that another has followed.
    pub(crate) late: usize,
    pub(crate) damaged: BTreeMap<u64, u64>,
    /// Bytes of objects, and the last sequence under their fence.
    pub(crate) bytes: BTreeMap<u64, Vec<u8>>,
    sequences: BTreeMap<(u64, u64), u32>,
    /// Objects that were cut.
    pub(crate) cut: BTreeSet<u64>,
}

impl Node {
    /// A request with data, as a node that checks it.
    pub(crate) fn request(
        &mut self,
        heads: &Heads,
        data: &[u8],
        wall: u64,
    ) -> Result<Vec<u8>, Reason> {
        let Heads { capability, target, .. } = heads;
        if self.revoked.iter().any(|one| u64::from(one.client) == capability.client >> 32) {
            return Err(Reason::Revoked);
        }
        let known = self.keys.iter().find(|key| key.id == capability.key && key.until > wall);
        let known = known.ok_or(Reason::Forged)?;
        if !mac::is_tag(&known.key, &[&capability.signed()], &capability.mac) {
            return Err(Reason::Forged);
        }
        let (object, fence) = (capability.object, capability.fence);
        let held = self.objects.entry(object).or_insert_with(|| nothing(object));
        let bytes = self.bytes.entry(object).or_default();
        if fence < held.fence {
            return Err(Reason::Fence);
        }
        let (sequence, start, end) = match target {
            // One run, of all there is.
            Target::Read(read) if read.map => {
                let end = bytes.len() as u64;
                let run = [0, end].map(u64::to_le_bytes).concat();
                return Ok(if end > read.offset { run } else { Vec::new() });
            }
            Target::Read(read) => {
                let range = read.offset as usize..(read.offset + u64::from(read.bytes)) as usize;
                bytes.resize(bytes.len().max(range.end), 0);
                return Ok(bytes[range].to_vec());
            }
            Target::Write(write) => {
                (write.sequence, write.offset, write.offset + data.len() as u64)
            }
            Target::Hole(hole) => (hole.sequence, hole.offset, hole.end),
        };
        if !capability.rights.allow(Rights::WRITE) {
            return Err(Reason::Rights);
        }
        let last = self.sequences.entry((object, fence)).or_default();
        assert!(sequence > *last, "a version is given once");
        (*last, held.fence) = (sequence, fence);
        if let Target::Write(_) = target {
            held.end = held.end.max(end);
            bytes.resize(bytes.len().max(end as usize), 0);
            bytes[start as usize..end as usize].copy_from_slice(data);
        } else if !matches!(target, Target::Hole(hole) if hole.share.is_some()) {
            if end == u64::MAX {
                held.end = held.end.min(start);
                self.cut.insert(object);
            }
            let end = bytes.len().min(end as usize);
            bytes[(start as usize).min(end)..end].fill(0);
        }
        Ok(Vec::new())
    }
}

pub(crate) fn nothing(object: u64) -> Object {
    Object { object, end: 0, fence: 0, bytes: 0 }
}
