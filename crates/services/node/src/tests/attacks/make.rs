//! The attacks: what each is, what has to become of it, and how it is made of a request that is
//! right.

use outboard_wire::shared::Reason;

use super::*;

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Attack {
    /// Nothing.
    None,
    /// A bit of the MAC.
    Mac,
    /// Signed with a key that is nobody's, under the number of one.
    Signer,
    /// The number of a key that there is not.
    UnknownKey,
    /// A key whose time is over.
    RetiredKey,
    /// A right, a range, a time or a fence was added after signing.
    Widened,
    /// An object, after signing.
    Object,
    /// A capability whose time is over.
    Expired,
    /// One of another volume.
    Volume,
    /// One of another client, as it was signed.
    Stolen,
    /// One of another client, with the name changed.
    Renamed,
    /// By a node, in a client's name.
    ByNode,
    /// It does not allow that.
    Rights,
    /// Beyond its range.
    Range,
    /// A range that goes round the end of numbers.
    Overflow,
    /// Under a fence that a seal has raised.
    Fence,
    /// For another epoch.
    Epoch,
    /// Spread in a way this group does not.
    Strategy,
    /// What was done before, once more.
    Replayed,
    /// An old version, with new bytes.
    Older,
    /// Packets do not bring what the CRC is of.
    Data,
    /// More, or less, than the heads say.
    Length,
    /// A bit of the heads, wherever.
    Bit,
    /// A packet of a message that was never begun.
    Injected,
    /// What is no request at all.
    Garbage,
    /// A message whose rest never comes.
    Unfinished,
    /// A conversation without MACs.
    Unsealed,
}

impl Attack {
    pub(super) const ALL: [Attack; 27] = [
        Attack::None,
        Attack::Mac,
        Attack::Signer,
        Attack::UnknownKey,
        Attack::RetiredKey,
        Attack::Widened,
        Attack::Object,
        Attack::Expired,
        Attack::Volume,
        Attack::Stolen,
        Attack::Renamed,
        Attack::ByNode,
        Attack::Rights,
        Attack::Range,
        Attack::Overflow,
        Attack::Fence,
        Attack::Epoch,
        Attack::Strategy,
        Attack::Replayed,
        Attack::Older,
        Attack::Data,
        Attack::Length,
        Attack::Bit,
        Attack::Injected,
        Attack::Garbage,
        Attack::Unfinished,
        Attack::Unsealed,
    ];
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Done.
    Done,
    /// Acknowledged; it was done before.
    Known,
    /// Refused so.
    Refused(Reason),
    /// It depends on the bit: refused, or allowed as it is.
    Somehow,
    /// Not done, not answered.
    Silence,
}

/// What has to become of a request: the table of this test.
pub(super) fn fate(threat: Threat, attack: Attack) -> Fate {
    let forged = match threat {
        // A plain ticket is a secret that everybody keeps: who has one can write another.
        Threat::Ticket => Fate::Done,
        Threat::Signed | Threat::EveryPacket => Fate::Refused(Reason::Forged),
    };
    match attack {
        Attack::None => Fate::Done,
        Attack::Mac | Attack::Signer | Attack::UnknownKey | Attack::Widened | Attack::Object => {
            forged
        }
        Attack::RetiredKey if threat == Threat::Ticket => Fate::Done,
        Attack::RetiredKey | Attack::Expired => Fate::Refused(Reason::Expired),
        Attack::Renamed if threat != Threat::Ticket => forged,
        // Nothing that a ticket could be refused for is wrong with a ticket in one's own name.
        Attack::Renamed => Fate::Done,
        Attack::Volume | Attack::Stolen | Attack::ByNode | Attack::Strategy => {
            Fate::Refused(Reason::Other)
        }
        Attack::Rights => Fate::Refused(Reason::Rights),
        Attack::Range => Fate::Refused(Reason::Range),
        Attack::Overflow | Attack::Data | Attack::Length => Fate::Refused(Reason::Invalid),
        Attack::Fence => Fate::Refused(Reason::Fence),
        Attack::Epoch => Fate::Refused(Reason::Epoch),
        Attack::Replayed => Fate::Known,
        Attack::Older => Fate::Refused(Reason::Order),
        Attack::Bit => Fate::Somehow,
        Attack::Injected | Attack::Garbage | Attack::Unfinished => Fate::Silence,
        Attack::Unsealed if threat == Threat::EveryPacket => Fate::Refused(Reason::Forged),
        Attack::Unsealed => Fate::Done,
    }
}

/// The message of an attack, who sends it, and what it would do if it were let.
pub(super) fn make(attack: Attack, rng: &mut Rng, model: &mut Model) -> (Peer, Vec<u8>, Ask) {
    let object = 1 + rng.below(OBJECTS);
    let mut ask = right(rng, model, object);
    if may_read(attack) && rng.chance(1, 4) {
        let range = ask.heads.range();
        let bytes = u32::try_from(range.end - range.start).unwrap();
        ask = Ask::read(object, FENCE, range.start, bytes);
    }
    let mut from = ME;
    let range = ask.heads.range();
    let capability = &mut ask.heads.capability;
    match attack {
        Attack::Mac => capability.mac[usize::try_from(rng.below(16)).unwrap()] ^= 1,
        Attack::Signer => *capability = capability.sign(&[50 + small(rng, 200); 32]),
        Attack::UnknownKey => capability.key = 3 + small(rng, 250),
        Attack::RetiredKey => capability.key = 2,
        Attack::Widened => widen(&mut ask, rng),
        Attack::Object => {
            // Signed for one that nobody else uses; sent for the one that was meant.
            capability.object = 1000;
            ask = ask.signed();
            ask.heads.capability.object = object;
        }
        Attack::Expired => capability.expires = rng.below(NOW + 1),
        Attack::Volume => capability.volume = VOLUME + 1,
        Attack::Stolen => capability.client = CLIENT + 1,
        Attack::Renamed => {
            capability.client = CLIENT + 1;
            ask = ask.signed();
            ask.heads.capability.client = CLIENT;
        }
        Attack::ByNode => from = Peer::Node(2),
        Attack::Rights => capability.rights = Rights::READ,
        Attack::Range => narrow(capability, &range, rng),
        Attack::Fence => capability.fence = rng.below(FENCE - 1),
        Attack::Epoch => ask.heads.head.epoch = 2,
        Attack::Strategy => capability.strategy = Strategy::Ring,
        Attack::Unsealed => {
            from = Peer::Client(CLIENT + 2);
            capability.client = CLIENT + 2;
        }
        _ => {}
    }
    if is_signed_so(attack) {
        ask = ask.signed();
    }
    let mut message = ask.message();
    spoil(attack, rng, &mut message, &ask);
    (from, message, ask)
}

/// Whether what is wrong is signed: by the server, for somebody or something else.
fn is_signed_so(attack: Attack) -> bool {
    let all = [
        Attack::UnknownKey,
        Attack::RetiredKey,
        Attack::Expired,
        Attack::Volume,
        Attack::Stolen,
        Attack::Rights,
        Attack::Range,
        Attack::Fence,
        Attack::Strategy,
        Attack::Unsealed,
    ];
    all.contains(&attack)
}

/// Whether a read can be wrong in this way, too.
fn may_read(attack: Attack) -> bool {
    let of_writes = [
        Attack::Strategy,
        Attack::Rights,
        Attack::Overflow,
        Attack::Data,
        Attack::Bit,
        Attack::Injected,
        Attack::Unfinished,
    ];
    !of_writes.contains(&attack)
}

fn small(rng: &mut Rng, bound: u64) -> u8 {
    u8::try_from(rng.below(bound)).unwrap()
}

/// A range in which the request's is not.
fn narrow(capability: &mut Capability, range: &std::ops::Range<u64>, rng: &mut Rng) {
    match rng.below(2) {
        0 => capability.end = range.start + 1 + rng.below(range.end - range.start),
        _ => capability.first = range.start + 1,
    }
    capability.end = capability.end.max(capability.first + 1);
    if capability.covers(range) {
        capability.first = range.end;
        capability.end = range.end + 1;
    }
}

/// What was not signed is used: the request is right for the capability as it is sent.
fn widen(ask: &mut Ask, rng: &mut Rng) {
    let range = ask.heads.range();
    let sent = ask.heads.capability;
    let capability = &mut ask.heads.capability;
    match rng.below(4) {
        0 => capability.rights = Rights::READ,
        1 => capability.end = range.end - 1,
        2 => capability.expires = NOW,
        _ => capability.fence = FENCE - 1,
    }
    capability.first = capability.first.min(capability.end - 1);
    let mac = capability.sign(&KEY).mac;
    ask.heads.capability = Capability { mac, ..sent };
}

/// What is done to the bytes of a message.
fn spoil(attack: Attack, rng: &mut Rng, message: &mut Vec<u8>, ask: &Ask) {
    let heads = message.len() - ask.data.len();
    match attack {
        // The write's offset stands behind the head and the capability.
        Attack::Overflow => {
            let offset = u64::MAX - rng.below(ask.data.len() as u64);
            message[112 + 8..112 + 16].copy_from_slice(&offset.to_le_bytes());
        }
        Attack::Data => {
            let at = heads + usize::try_from(rng.below(ask.data.len() as u64)).unwrap();
            message[at] ^= 1 << rng.below(8);
        }
        Attack::Length if rng.chance(1, 2) => message.push(0),
        Attack::Length => {
            message.pop();
        }
        Attack::Bit => {
            // Without the first two bytes it is no request, and not answered.
            let at = 2 + usize::try_from(rng.below(heads as u64 - 2)).unwrap();
            message[at] ^= 1 << rng.below(8);
        }
        Attack::Garbage => {
            rng.fill(message);
            message[0] = b'X';
        }
        _ => {}
    }
}
