//! What tests of conversations share: keys, a target that records and judges, and what is asked.

use std::collections::{BTreeMap, BTreeSet};

use outboard_wire::shared::{
    Capability, Head, Heads, MAC_LEN, ReadHead, Request, Rights, Strategy, Target as Wanted,
};

use super::super::*;

/// What both of a pair share: made of their names.
pub(super) struct Pairs(pub(super) Peer);

impl Keys for Pairs {
    fn of(&self, peer: Peer) -> Option<[u8; 32]> {
        let (one, other) = (self.0.min(peer).encode(), self.0.max(peer).encode());
        let both = [one.to_le_bytes(), other.to_le_bytes()].concat();
        Some(outboard_codec::mac::derive(&[7; 32], "pair", &both))
    }
}

pub(super) fn address(number: u8) -> SocketAddrV4 {
    SocketAddrV4::new([10, 0, 0, number].into(), 4791)
}

/// Keeps requests until they are whole, and says what of a [`Target`]'s promises is broken.
#[derive(Default)]
pub(super) struct Recorder {
    coming: BTreeMap<(Peer, u32), (usize, Vec<u8>)>,
    open: BTreeSet<Peer>,
    pub(super) whole: Vec<(Peer, Vec<u8>)>,
    pub(super) cleaned: usize,
    /// So many requests have no room.
    pub(super) refusals: u64,
    pub(super) wrong: Option<&'static str>,
}

impl Recorder {
    fn holds(&mut self, holds: bool, what: &'static str) {
        if !holds {
            self.wrong.get_or_insert(what);
        }
    }
}

impl Target for Recorder {
    fn opened(&mut self, from: Peer, _: bool) {
        let is_new = self.open.insert(from);
        self.holds(is_new, "opened twice");
    }

    fn has_room(&mut self, from: Peer) -> bool {
        let is_open = self.open.contains(&from);
        self.holds(is_open, "asked for room before it was opened");
        self.refusals = self.refusals.saturating_sub(1);
        self.refusals == 0
    }

    fn given(&mut self, from: Peer, given: &Given<'_>, _: Time) {
        let key = (from, given.message.raw());
        if let Some(header) = given.header {
            let before = self.coming.insert(key, (0, vec![0; header.bytes as usize]));
            self.holds(before.is_none(), "two headers");
        }
        let is_open = self.open.contains(&from);
        self.holds(is_open, "given outside of a conversation");
        let Some((got, bytes)) = self.coming.get_mut(&key) else {
            return self.holds(false, "given before the header, or after the completion");
        };
        let at = given.offset as usize;
        bytes[at..at + given.payload.len()].copy_from_slice(given.payload);
        *got += given.payload.len();
        if given.completes
            && let Some((got, bytes)) = self.coming.remove(&key)
        {
            self.holds(got == bytes.len(), "completed while something is missing");
            self.whole.push((from, bytes));
        }
    }

    fn cleanup(&mut self, from: Peer, message: Psn) {
        let is_live = self.coming.remove(&(from, message.raw())).is_some();
        self.holds(is_live, "cleaned up and not live");
        self.cleaned += 1;
    }

    fn ended(&mut self, from: Peer) {
        let was_open = self.open.remove(&from);
        self.holds(was_open, "ended and not open");
        let is_clean = self.coming.keys().all(|(peer, _)| *peer != from);
        self.holds(is_clean, "ended and not cleaned up");
    }
}

/// An end at `address(number)`.
pub(super) fn end(me: Peer, number: u8, life: u64, sealed: bool) -> Conversations<Recorder> {
    let config = Config {
        me,
        address: address(number),
        life,
        cluster: 5,
        settings: Settings::of_mtu(1500),
        keys: Box::new(Pairs(me)),
        seed: life.wrapping_mul(0x9E37) + u64::from(number),
        sealed,
        answer_within: Duration::from_millis(500),
    };
    Conversations::new(config, Recorder::default())
}

/// The heads of a read of so many bytes of `object`.
pub(super) fn read(object: u64, bytes: u32) -> Heads {
    let capability = Capability {
        key: 1,
        rights: Rights::READ,
        volume: 1,
        object,
        first: 0,
        end: 1 << 30,
        client: 1,
        fence: 1,
        group: 0,
        strategy: Strategy::Single,
        k: 1,
        m: 0,
        expires: 1,
        mac: [0; MAC_LEN],
    };
    let head = Head { request: 0, data: 0, epoch: 0, settled: 0, hop: 0 };
    Heads {
        head,
        capability,
        target: Wanted::Read(ReadHead { offset: 0, bytes, unit: 0, map: false }),
    }
}

/// What an honest node answers to a whole request, with `bytes` of data.
pub(super) fn answer(request: &[u8], bytes: &[u8]) -> Vec<u8> {
    let request = Request::parse(request).expect("a request").heads.head.request;
    let data = u32::try_from(bytes.len()).expect("few bytes");
    let answer = Answer {
        data,
        request,
        rank: 0,
        outcome: Ok(()),
        sequence: 0,
        epoch: 0,
        credit: 0,
        fence: 0,
        held: 0,
        boot: 0,
    };
    [answer.emit().as_slice(), bytes].concat()
}
