//! Requests as they are made: right ones, and what is done to them.

use outboard_base::Rng;
use outboard_wire::shared::{
    Brings, Capability, Coordinates, Head, Heads, MAC_LEN, Peer, Rights, Role, Strategy, Target,
    WriteHead,
};

use super::end::wall_ms;
use super::table::Row;
use crate::{Result, context};

/// Keys of capabilities that the node is told beside the server's: one in force, and one whose
/// time is over.
pub(super) const KEYS: [(u8, [u8; 32]); 2] = [(201, [3; 32]), (202, [4; 32])];
/// The fence of right requests.
pub(super) const FENCE: u64 = 50;
/// An hour.
const HOUR_MS: u64 = 3_600_000;
/// Where the capability stands in a message, and the write's head.
const CAPABILITY_AT: usize = 32;
const WRITE_AT: usize = CAPABILITY_AT + 80;

/// A write as it is made.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) heads: Heads,
    pub(super) data: Vec<u8>,
}

/// Whose requests they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) client: u64,
    pub(super) volume: u32,
}

impl Ask {
    /// A right one of `who`: the `sequence`th of its object, at the beginning.
    pub(super) fn write(
        who: Who,
        object: u64,
        sequence: u32,
        data: Vec<u8>,
        request: u64,
    ) -> Result<Ask> {
        let bytes = u32::try_from(data.len()).unwrap_or(0);
        let capability = Capability {
            key: 201,
            rights: Rights::READ_WRITE,
            volume: who.volume,
            object,
            first: 0,
            end: 1 << 20,
            client: who.client,
            fence: FENCE,
            group: 0,
            strategy: Strategy::Single,
            k: 1,
            m: 0,
            expires: wall_ms() + HOUR_MS,
            mac: [0; MAC_LEN],
        };
        let write = WriteHead {
            strategy: Strategy::Single,
            rank: 0,
            k: 1,
            unit: 0,
            role: Role::Data,
            brings: Brings::Bytes,
            offset: 0,
            bytes,
            sequence,
            previous: 0,
            crc: outboard_codec::crc32c(&data),
            session: 0,
            number: 0,
            lane: 0,
            coordinates: context(Coordinates::new(&[]), || "no coordinates".to_owned())?,
        };
        let head = Head { request, data: bytes, epoch: 1, settled: 0, hop: 0 };
        let heads = Heads { head, capability, target: Target::Write(write) };
        Ok(Ask { heads, data }.signed())
    }

    fn signed(mut self) -> Ask {
        let capability = self.heads.capability;
        let key = KEYS.iter().find(|(id, _)| *id == capability.key).map_or([9; 32], |key| key.1);
        self.heads.capability = capability.sign(&key);
        self
    }

    /// Its bytes.
    pub(super) fn message(&self) -> Vec<u8> {
        let mut message = Vec::new();
        // Heads that are right have a form.
        let _written = self.heads.emit(&mut message);
        message.extend_from_slice(&self.data);
        message
    }
}

/// The message of an attack, made of what is right.
pub(super) fn spoilt(row: Row, right: Ask, rng: &mut Rng) -> Vec<u8> {
    let mut ask = right;
    let end = ask.data.len() as u64;
    let capability = &mut ask.heads.capability;
    match row {
        Row::Mac => capability.mac[usize::try_from(rng.below(16)).unwrap_or(0)] ^= 1,
        Row::Signer => *capability = capability.sign(&[50; 32]),
        Row::Widened => widen(&mut ask, rng),
        Row::Object => {
            let meant = capability.object;
            capability.object = meant + (1 << 20);
            ask = ask.signed();
            ask.heads.capability.object = meant;
        }
        Row::Renamed => {
            let me = capability.client;
            capability.client = me + 1;
            ask = ask.signed();
            ask.heads.capability.client = me;
        }
        Row::UnknownKey => capability.key = 240,
        Row::RetiredKey => capability.key = 202,
        // Just now: an idle node once looked at the clock only behind its handlers, so that all of
        // such a request came before it was refused.
        Row::Expired => capability.expires = wall_ms() - 1,
        Row::Volume => capability.volume ^= 1,
        Row::Stolen => capability.client += 1,
        Row::Rights => capability.rights = Rights::READ,
        Row::Range => capability.end = end - 1,
        Row::Revoked => capability.fence = FENCE - 1,
        Row::Strategy => capability.strategy = Strategy::Ring,
        Row::Epoch => ask.heads.head.epoch = 2,
        _ => {}
    }
    let is_signed_so = [
        Row::UnknownKey,
        Row::RetiredKey,
        Row::Expired,
        Row::Volume,
        Row::Stolen,
        Row::Rights,
        Row::Range,
        Row::Revoked,
        Row::Strategy,
    ];
    if is_signed_so.contains(&row) {
        ask = ask.signed();
    }
    let mut message = ask.message();
    match row {
        Row::Overflow => {
            let offset = (u64::MAX - 1).to_le_bytes();
            patch(&mut message, WRITE_AT + 8, &offset);
        }
        Row::Length => message.push(0),
        Row::Data => message.last_mut().into_iter().for_each(|last| *last ^= 1),
        Row::Garbage => patch(&mut message, 0, b"XX"),
        _ => {}
    }
    message
}

/// More than was signed: a right, a range, a time, a fence.
fn widen(ask: &mut Ask, rng: &mut Rng) {
    let sent = ask.heads.capability;
    let capability = &mut ask.heads.capability;
    match rng.below(4) {
        0 => capability.rights = Rights::READ,
        1 => capability.end = 1,
        2 => capability.expires = 1,
        _ => capability.fence = FENCE - 1,
    }
    let mac = capability.sign(&KEYS[0].1).mac;
    ask.heads.capability = Capability { mac, ..sent };
}

/// Other data, under the checksum that is its.
pub(super) fn with_other_data(message: &mut [u8], heads: usize) {
    let Some((_, data)) = message.split_at_mut_checked(heads) else { return };
    data.iter_mut().for_each(|byte| *byte = !*byte);
    let crc = outboard_codec::crc32c(data).to_le_bytes();
    patch(message, WRITE_AT + 28, &crc);
}

/// Under another number, as another version.
pub(super) fn as_another(message: &mut [u8], request: u64, sequence: u32) {
    patch(message, 8, &request.to_le_bytes());
    patch(message, WRITE_AT + 20, &sequence.to_le_bytes());
}

fn patch(message: &mut [u8], at: usize, bytes: &[u8]) {
    let place = message.get_mut(at..at + bytes.len());
    place.into_iter().for_each(|place| place.copy_from_slice(bytes));
}

/// Requests whose fields cannot be: signed, so that nothing else is wrong with them.
pub(super) fn lies(right: &Ask) -> Vec<(&'static str, Vec<u8>)> {
    let message = right.message();
    let with = |at: usize, bytes: &[u8]| {
        let mut message = message.clone();
        patch(&mut message, at, bytes);
        message
    };
    let signed = |change: fn(&mut Capability)| {
        let mut capability = right.heads.capability;
        change(&mut capability);
        with(CAPABILITY_AT, &capability.sign(&KEYS[0].1).emit())
    };
    let coordinate = |node: u16| {
        let ([n0, n1], mut bytes) = (node.to_le_bytes(), [0; 16]);
        bytes[..8].copy_from_slice(&[127, 0, 0, 2, 1, 1, n0, n1]);
        bytes
    };
    // Two coordinates behind the write's head: heads are longer, and it is a ring of two.
    let ring = |nodes: [u16; 2]| {
        let heads = WRITE_AT + 56;
        let mut long = message.clone();
        long.splice(heads..heads, nodes.iter().flat_map(|node| coordinate(*node)));
        let len = u16::try_from(heads + 32).unwrap_or(0).to_le_bytes();
        patch(&mut long, 6, &len);
        patch(&mut long, WRITE_AT, &[Strategy::Ring as u8, 0, 2, 2]);
        let ring = Capability { strategy: Strategy::Ring, k: 2, ..right.heads.capability };
        patch(&mut long, CAPABILITY_AT, &ring.sign(&KEYS[0].1).emit());
        long
    };
    vec![
        ("k of zero, in the capability", signed(|capability| capability.k = 0)),
        ("more than there can be of m", signed(|capability| capability.m = 255)),
        ("k of zero, in the write", with(WRITE_AT + 3, &[0])),
        ("coordinates that are not there", with(WRITE_AT + 2, &[9])),
        ("coordinates that come back to a node", ring([1, 1])),
        ("coordinates of nodes that nobody knows", ring([7777, 7778])),
        ("heads longer than the packet", with(6, &[0xFF, 0xFF])),
        ("heads shorter than the head", with(6, &[3, 0])),
        ("more data than comes", with(16, &[0xFF, 0xFF, 0x0F, 0])),
        ("less data than comes", with(16, &[1, 0, 0, 0])),
        ("more data than may be", with(16, &[0xFF; 4])),
        ("no bytes", with(WRITE_AT + 16, &[0; 4])),
        ("an operation that there is not", with(3, &[77])),
        ("another version", with(2, &[99])),
    ]
}

/// Who sends it, if that is not the client.
pub(super) fn sender(row: Row) -> Option<Peer> {
    (row == Row::ByNode).then_some(Peer::Node(2))
}
