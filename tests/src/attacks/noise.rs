//! What is no packet, no message, or lies, sent to the processes of a cluster: all of it is dropped
//! or refused with a reason, and counted; nobody ends, and no byte is written.

use std::net::SocketAddrV4;
use std::time::Duration;

use outboard_base::{Cred, Errno, Ino, Rng, SessionId};
use outboard_fabric::Key;
use outboard_flow::Gone;
use outboard_wire::roce::{Extension, Opcode, Packet};
use outboard_wire::shared::call::{Asker, Call, Layout, Reply};
use outboard_wire::shared::{Peer, Reason, Strategy};
use serde_json::Value;

use super::end::End;
use super::make::lies;
use super::table::{Row, Siege, client_of};
use crate::Result;
use crate::cluster::Cluster;

/// Datagrams that are drawn, for each part.
const DRAWN: u32 = 20_000;
/// After so many datagrams the kernel's queue has time to be emptied.
const PACE: usize = 64;

/// Sends all of it to the parts of `cluster`, of which `siege` is at node 1.
///
/// # Errors
/// A part ended, answered what it must not, or did not count what it dropped.
pub fn noise(cluster: &Cluster, siege: &mut Siege, own: &Key, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let before = cluster.status()?;
    for (part, peer, place) in [("node.1", Peer::Node(1), 101), ("meta", Peer::Server(0), 102)] {
        let (_, at) = cluster.address(part)?;
        let mut end = client_of(own, place, (peer, at), siege.is_sealed())?;
        end.ask(&Call::Status).map_err(|gone| format!("{part}: {gone:?}"))?;
        let mut seen = std::mem::take(&mut end.openings);
        let ask = siege.right_of(place, Row::Garbage, 9, super::table::WRITE)?;
        end.say(&ask.message())?;
        seen.extend(end.due());
        let sent = cut(&end, &seen) + lied(&end, &seen) + drawn(&end, &seen, &mut rng);
        stranger(own, (peer, at))?;
        println!("  {part}: {sent} datagrams that are cut, lie or are drawn");
    }
    let lies = siege.lies()?;
    println!("  node.1: {lies} requests whose fields cannot be");
    no_layouts(cluster, siege, own)?;
    let after = cluster.status()?;
    for part in ["node.1", "meta"] {
        let of = |status: &Value, field: &str| status["parts"][part][field].clone();
        if of(&before, "life") != of(&after, "life") {
            return Err(format!("{part} ended"));
        }
        // Where packets are sealed, one that nobody could send is bad before anybody looks whose.
        let stray = (!siege.is_sealed()).then_some("packets stray");
        for figure in ["packets bad", "openings refused"].into_iter().chain(stray) {
            let count = |status| of(status, "network")[figure].as_u64().unwrap_or(0);
            let (was, is) = (count(&before), count(&after));
            if is <= was {
                return Err(format!("{part} has not counted: {figure} {is}"));
            }
            println!("  {part}: {figure} {}", is - was);
        }
    }
    Ok(())
}

/// Sends many, and lets the other end hear them.
fn put_all(end: &End, all: impl Iterator<Item = Vec<u8>>) -> usize {
    let mut sent = 0;
    for datagram in all {
        end.put(&datagram);
        sent += 1;
        if sent % PACE == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
    sent
}

/// Cut at every byte: as they are, and with the network's checksum made anew.
fn cut(end: &End, seen: &[Vec<u8>]) -> usize {
    let cut = seen.iter().flat_map(|whole| (0..whole.len()).map(|len| whole[..len].to_vec()));
    let again = seen.iter().filter_map(|whole| Packet::parse(whole, end.route()).ok());
    let again = again.flat_map(|packet| {
        (0..packet.payload.len()).filter_map(move |len| {
            let mut out = Vec::new();
            let payload = packet.payload.get(..len)?;
            Packet { payload, ..packet }.emit(end.route(), &mut out).ok().map(|()| out)
        })
    });
    put_all(end, cut.chain(again))
}

/// Messages that say another length, and opcodes that do not follow each other.
fn lied(end: &End, seen: &[Vec<u8>]) -> usize {
    let packets = seen.iter().filter_map(|whole| Packet::parse(whole, end.route()).ok());
    let all = packets.flat_map(|packet| {
        let lengths = [0, 1, 111, 0x7FFF_FFFF, u32::MAX].map(move |bytes| {
            let extension = Extension::Write { address: u64::MAX, key: u32::MAX, bytes };
            Packet { opcode: Opcode::WriteFirst, extension, ..packet }
        });
        let opcodes = Opcode::ALL.map(move |opcode| Packet { opcode, ..packet });
        let numbers = [1, 255, 256, 0x7F_FFFF, 0x80_0000]
            .map(move |n| Packet { psn: packet.psn.plus(n), ..packet });
        lengths.into_iter().chain(opcodes).chain(numbers)
    });
    let emitted = all.filter_map(|packet| {
        let mut out = Vec::new();
        packet.emit(end.route(), &mut out).ok().map(|()| out)
    });
    put_all(end, emitted.collect::<Vec<_>>().into_iter())
}

/// Random bytes, and what was seen with some bytes changed.
fn drawn(end: &End, seen: &[Vec<u8>], rng: &mut Rng) -> usize {
    let draw = |_| {
        let at = usize::try_from(rng.below(seen.len() as u64 + 1)).unwrap_or(0);
        let Some(mut bytes) = seen.get(at).cloned() else {
            let mut bytes = vec![0; usize::try_from(rng.below(200)).unwrap_or(0)];
            rng.fill(&mut bytes);
            return bytes;
        };
        for _ in 0..=rng.below(4) {
            let at = usize::try_from(rng.below(bytes.len().min(160) as u64)).unwrap_or(0);
            let byte = u8::try_from(rng.below(256)).unwrap_or(0);
            bytes.get_mut(at).into_iter().for_each(|place| *place = byte);
        }
        bytes
    };
    let all: Vec<Vec<u8>> = (0..DRAWN).map(draw).collect();
    put_all(end, all.into_iter())
}

/// Somebody of another cluster.
fn stranger(own: &Key, part: (Peer, SocketAddrV4)) -> Result<()> {
    let other = Key { cluster: own.cluster ^ 1, ..own.clone() };
    let mut end = client_of(&other, 103, part, false)?;
    match end.ask(&Call::Status) {
        Err(Gone::Refused) => Ok(()),
        reply => Err(format!("somebody of another cluster: {reply:?}")),
    }
}

/// Layouts of the volume's root: one over more nodes than there are is refused as that, and so is
/// who may not change it; a group that is named is not taken; one that is right is.
fn no_layouts(cluster: &Cluster, siege: &Siege, own: &Key) -> Result<()> {
    let (_, at) = cluster.address("meta")?;
    let mut end = client_of(own, 104, (Peer::Server(0), at), siege.is_sealed())?;
    let leased = end.ask(&Call::Renew);
    if !matches!(leased, Ok(Reply::Lease { .. })) {
        return Err(format!("a client has no lease: {leased:?}"));
    }
    let (ino, session) = (Ino::ROOT, SessionId(1));
    let root = Asker { session, trusted: true, keeps_times: false, peer: Cred::default() };
    let user = Asker { peer: Cred { uid: 1000, ..Cred::default() }, ..root.clone() };
    let right = Layout { width: 1, strip: 128 << 10, ..Layout::default() };
    let ring = Layout { strategy: Strategy::Ring, k: 16, ..right };
    let stripes = Layout { strategy: Strategy::Parity, k: 3, m: 2, ..right };
    let mut holds = None;
    // What cannot be at all has no encoding.
    for (asker, layout, should) in [
        (&root, Layout { strip: 256 << 10, ..right }, Reply::Done),
        (&root, ring, Reply::Failed(Errno::EINVAL)),
        (&root, stripes, Reply::Failed(Errno::EINVAL)),
        (&user, right, Reply::Failed(Errno::EPERM)),
        (&root, Layout { group: 7777, strip: 512 << 10, ..right }, Reply::Done),
        (&root, right, Reply::Done),
    ] {
        let reply = end.ask(&Call::SetLayout { asker: asker.clone(), ino, layout });
        if reply.as_ref() != Ok(&should) {
            return Err(format!("{layout:?}: {reply:?}, and should be: {should:?}"));
        }
        if should == Reply::Done {
            holds = Some(Layout { group: 0, ..layout });
        }
        let found = end.ask(&Call::Layout { ino });
        if found != Ok(holds.map_or(Reply::Done, Reply::Layout)) {
            return Err(format!("after {layout:?}: {found:?}, and should be: {holds:?}"));
        }
    }
    Ok(())
}

impl Siege {
    /// Sends requests whose fields cannot be; how many. Each is refused in the first packet.
    fn lies(&mut self) -> Result<usize> {
        let right = self.right(Row::Data, 11, 300)?;
        let all = lies(&right);
        let before = self.media()?;
        for (name, message) in &all {
            let client = self.client();
            client.say(message)?;
            let answer = client.answer(right.heads.head.request, Duration::from_secs(5));
            match answer.map(|answer| answer.outcome) {
                Some(Err(Reason::Invalid | Reason::Other)) => {}
                outcome => return Err(format!("{name}: {outcome:?}")),
            }
        }
        self.client().go_on(Duration::from_millis(3));
        if self.media()? == before { Ok(all.len()) } else { Err("bytes got to a medium".into()) }
    }
}
