//! Who spreads a write over nodes, as one table, and a client that writes so (NetDFS V B, VI C).
//!
//! | protocol | the client sends | nodes |
//! |---|---|---|
//! | ring, tree | once | handlers check, and pass packets on |
//! | cpu-ring, cpu-tree | once, in chunks | CPU sides get whole chunks, check and pass them on |
//! | flat | to each node | nothing is checked |
//! | hyperloop | work requests to all, then once, in chunks | the same; NICs pass chunks on |
//! | triec | a k-th to each data node | handlers check, send parts to parities, and add them |
//! | cpu-triec | the same, in chunks | CPU sides get whole chunks, check, send and add parts |
//! | inec | the same, in chunks | nothing is checked; handlers send parts of whole chunks |
//! | client | its unit to each node | handlers check; the client has computed parities |

use std::borrow::Cow;
use std::cell::Cell;
use std::io;

use outboard_base::task::join_all;
use outboard_codec::crc32c;
use outboard_codec::erasure::{Code, Field};
use outboard_fabric::Asking;
use outboard_flow::{Net, Settings};
use outboard_node::policy::QUEUE;
use outboard_wire::shared::{
    Brings, Capability, Coordinate, Coordinates, HEADS_MAX, Head, Heads, MAC_LEN, Peer, Reason,
    Rights, Role, Strategy, Target, WriteHead,
};

use super::Policy;
use super::load::{BUSY, DEPTH, KEY, TRIES, VOLUME};
use crate::workload::MEGABYTE;

/// Stripes of one write that are under way at once: of all writes, as many as a node lets in.
const STRIPES: usize = 64 / DEPTH;

/// What a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    /// All to the first node.
    Once,
    /// The same, behind work requests to all nodes.
    Posted,
    /// All to each node.
    Each,
    /// Its unit to each data node.
    Units,
    /// Its unit to each node, also to those of parities.
    Encoded,
}

/// Who spreads a write, and how.
#[derive(Debug)]
pub(super) struct Protocol {
    /// How tables say it.
    pub(super) name: &'static str,
    /// What nodes do with requests.
    pub(super) policy: Policy,
    /// How the write's object lies on nodes.
    pub(super) strategy: Strategy,
    sends: Sends,
    /// What a node passes on has to be whole: the client sends chunks.
    pub(super) in_chunks: bool,
}

impl Protocol {
    const fn new(
        name: &'static str,
        policy: Policy,
        strategy: Strategy,
        sends: Sends,
        in_chunks: bool,
    ) -> Protocol {
        Protocol { name, policy, strategy, sends, in_chunks }
    }
}

/// All of them, in the order of tables.
pub(super) static PROTOCOLS: [Protocol; 10] = [
    Protocol::new("ring", Policy::Capability, Strategy::Ring, Sends::Once, false),
    Protocol::new("tree", Policy::Capability, Strategy::BinaryTree, Sends::Once, false),
    Protocol::new("cpu-ring", Policy::Steered, Strategy::Ring, Sends::Once, true),
    Protocol::new("cpu-tree", Policy::Steered, Strategy::BinaryTree, Sends::Once, true),
    Protocol::new("flat", Policy::Raw, Strategy::Single, Sends::Each, false),
    Protocol::new("hyperloop", Policy::HyperLoop, Strategy::Ring, Sends::Posted, true),
    Protocol::new("triec", Policy::Capability, Strategy::Parity, Sends::Units, false),
    Protocol::new("cpu-triec", Policy::Steered, Strategy::Parity, Sends::Units, true),
    Protocol::new("inec", Policy::Inec, Strategy::Parity, Sends::Units, true),
    Protocol::new("client", Policy::Capability, Strategy::Parity, Sends::Encoded, false),
];

/// A protocol, and over how many it spreads.
#[derive(Clone, Copy, Debug)]
pub(super) struct What {
    pub(super) protocol: &'static Protocol,
    /// Copies, or data units.
    pub(super) k: u16,
    /// Parities.
    pub(super) m: u16,
}

impl What {
    /// Whom the client sends to.
    fn firsts(self) -> usize {
        match self.protocol.sends {
            Sends::Once | Sends::Posted => 1,
            Sends::Each | Sends::Units => self.k.into(),
            Sends::Encoded => self.nodes(),
        }
    }

    pub(super) fn nodes(self) -> usize {
        usize::from(self.k + self.m)
    }
}

/// What one node is sent.
struct Piece<'a> {
    to: u16,
    heads: Heads,
    data: Cow<'a, [u8]>,
}

/// What makes writes.
pub(super) struct Asker {
    pub(super) net: Asking,
    pub(super) client: u64,
    pub(super) all: Vec<Coordinate>,
    pub(super) fence: Cell<u64>,
    pub(super) data: Vec<u8>,
    /// Bytes of a frame.
    pub(super) frame: usize,
}

impl Asker {
    /// One write of `bytes`, in chunks, by the stream of this number.
    pub(super) async fn write(
        &self,
        what: What,
        number: u64,
        bytes: usize,
        chunk: usize,
    ) -> io::Result<()> {
        let mut all = Vec::new();
        // Each chunk is an object of its own: within one, writes of a strip would be in order.
        for (object, begins) in (number * 1000..).zip((0..bytes).step_by(chunk)) {
            self.pieces(what, object, (begins, chunk.min(bytes - begins)), &mut all)?;
        }
        if what.protocol.sends == Sends::Posted {
            self.post(what, &all).await?;
        }
        // Stripes of which each node lets in other ones would wait for each other.
        let most = if what.m > 0 { STRIPES * what.firsts() } else { all.len().max(1) };
        for some in all.chunks(most) {
            let each = some.iter().map(|piece| self.done(what, piece));
            join_all(each.collect()).await.into_iter().collect::<io::Result<()>>()?;
        }
        Ok(())
    }

    /// What is sent of the bytes from `begins` on.
    fn pieces<'a>(
        &'a self,
        what: What,
        object: u64,
        (begins, bytes): (usize, usize),
        into: &mut Vec<Piece<'a>>,
    ) -> io::Result<()> {
        // Each as if it were the first of a delegation: all before it was done.
        self.fence.set(self.fence.get() + 1);
        let (capability, coordinates) = self.capability(what, object)?;
        let Protocol { strategy, sends, .. } = *what.protocol;
        // Of a stripe the last unit may be filled up, with what stands behind.
        let units = if what.m > 0 { usize::from(what.k) } else { 1 };
        let share = bytes.div_ceil(units);
        let unit =
            |at: usize| self.data.get(begins + share * at..).and_then(|data| data.get(..share));
        // Whoever has a copy is sent the one unit there is.
        let data = (0..what.firsts().min(what.k.into())).map(|at| unit(at % units));
        let mut all: Vec<Cow<'_, [u8]>> =
            data.map(|data| data.unwrap_or_default().into()).collect();
        if sends == Sends::Encoded {
            let parities = parities(what, &all)?;
            all.extend(parities.into_iter().map(Cow::from));
        }
        let distinct = if what.m > 0 { all.len() } else { 1 };
        let sums: Vec<u32> = all.iter().take(distinct).map(|data| crc32c(data)).collect();
        for (to, (data, crc)) in (0..).zip(all.into_iter().zip(sums.into_iter().cycle())) {
            let spread = match sends {
                Sends::Each | Sends::Encoded => None,
                Sends::Once | Sends::Posted | Sends::Units => Some((strategy, what.k, coordinates)),
            };
            let heads = heads(capability, spread, to, (data.len(), crc))?;
            into.push(Piece { to, heads, data });
        }
        Ok(())
    }

    /// What allows a write of an object, and the nodes that this lies on.
    fn capability(&self, what: What, object: u64) -> io::Result<(Capability, Coordinates)> {
        let strategy = what.protocol.strategy;
        let count = if strategy == Strategy::Single { 0 } else { what.nodes() };
        let mut nodes: Vec<Coordinate> = self.all.iter().take(count).copied().collect();
        for (unit, one) in (0..).zip(&mut nodes).filter(|_| what.m > 0) {
            one.unit = unit;
            one.role = if u16::from(unit) < what.k { Role::Data } else { Role::Parity };
        }
        let coordinates = Coordinates::new(&nodes).map_err(io::Error::other)?;
        let capability = Capability {
            key: KEY.0,
            rights: Rights::READ_WRITE,
            volume: VOLUME,
            object,
            first: 0,
            end: MEGABYTE as u64,
            client: self.client,
            fence: self.fence.get(),
            group: coordinates.group(),
            strategy,
            k: if count == 0 { 1 } else { byte(what.k)? },
            m: byte(what.m)?,
            expires: u64::MAX,
            mac: [0; MAC_LEN],
        };
        Ok((capability.sign(&KEY.1), coordinates))
    }

    /// Prepares writes at all nodes: as many with one message as a packet takes.
    async fn post(&self, what: What, pieces: &[Piece<'_>]) -> io::Result<()> {
        let room = Settings::of_mtu(self.frame).payload.saturating_sub(HEADS_MAX);
        let mut posts = Vec::new();
        for (to, some) in (0..what.k)
            .flat_map(|to| pieces.chunks((room / HEADS_MAX).max(1)).map(move |some| (to, some)))
        {
            let mut data = Vec::new();
            for piece in some {
                let mut heads = piece.heads;
                if let Target::Write(write) = &mut heads.target {
                    write.rank = byte(to)?;
                }
                heads.emit(&mut data).map_err(io::Error::other)?;
            }
            let capability = some.first().map(|piece| piece.heads.capability);
            let Some(capability) = capability else { continue };
            // Nobody looks at its MAC.
            let capability = Capability { object: QUEUE, ..capability };
            let heads = heads(capability, None, 0, (data.len(), crc32c(&data)))?;
            posts.push(Piece { to, heads, data: data.into() });
        }
        for said in join_all(posts.iter().map(|post| self.ask(post)).collect()).await {
            said?.map_err(|reason| io::Error::other(format!("a post was refused: {reason:?}")))?;
        }
        Ok(())
    }

    /// Asks until it is done; what went with a conversation, or with the try before, is prepared
    /// again.
    async fn done(&self, what: What, piece: &Piece<'_>) -> io::Result<()> {
        let is_posted = what.protocol.sends == Sends::Posted;
        let mut said = self.ask(piece).await?;
        for _ in 0..TRIES {
            match said {
                Err(Reason::Order) if is_posted => {}
                Err(Reason::Unreached) => {}
                _ => break,
            }
            if is_posted {
                self.post(what, std::slice::from_ref(piece)).await?;
            }
            said = self.ask(piece).await?;
        }
        said.map_err(|reason| io::Error::other(format!("a write was refused: {reason:?}")))
    }

    /// Asks until somebody answers who is not busy.
    async fn ask(&self, piece: &Piece<'_>) -> io::Result<Result<(), Reason>> {
        let to = self.all.get(usize::from(piece.to)).map_or(0, |one| one.node);
        let mut tries = 0;
        loop {
            let answer = self.net.request(Peer::Node(to), &piece.heads, &piece.data).await;
            match answer.map(|(answer, _)| answer.outcome) {
                Ok(Err(Reason::Busy)) => self.net.sleep(BUSY).await,
                Ok(outcome) => return Ok(outcome),
                Err(_) if tries < TRIES => tries += 1,
                Err(gone) => return Err(io::Error::other(format!("nobody answers: {gone:?}"))),
            }
        }
    }
}

/// The heads of a write of `bytes` that spreads, as the one at `to` is to read them, or goes to
/// one node alone.
fn heads(
    capability: Capability,
    spread: Option<(Strategy, u16, Coordinates)>,
    to: u16,
    (bytes, crc): (usize, u32),
) -> io::Result<Heads> {
    let bytes = u32::try_from(bytes).map_err(io::Error::other)?;
    let none = Coordinates::new(&[]).map_err(io::Error::other)?;
    let is_alone = spread.is_none();
    let (strategy, k, coordinates) = spread.unwrap_or((Strategy::Single, 1, none));
    let unit = if is_alone { 0 } else { byte(to)? };
    let write = WriteHead {
        strategy,
        rank: unit,
        k: byte(k)?,
        unit,
        role: Role::Data,
        brings: Brings::Bytes,
        offset: 0,
        bytes,
        sequence: 1,
        previous: 0,
        crc,
        session: 0,
        number: 0,
        lane: 0,
        coordinates,
    };
    let head = Head { request: 0, data: bytes, epoch: 1, settled: 0, hop: 0 };
    Ok(Heads { head, capability, target: Target::Write(write) })
}

/// The parities of these units.
fn parities(what: What, units: &[Cow<'_, [u8]>]) -> io::Result<Vec<Vec<u8>>> {
    let code = Code::new(Field::fastest(), what.k.into(), what.m.into());
    let code = code.map_err(io::Error::other)?;
    let data: Vec<&[u8]> = units.iter().map(|unit| &**unit).collect();
    let len = data.first().map_or(0, |unit| unit.len());
    let mut parities = vec![vec![0; len]; what.m.into()];
    let mut outs: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&data, &mut outs).map_err(io::Error::other)?;
    Ok(parities)
}

fn byte(number: u16) -> io::Result<u8> {
    u8::try_from(number).map_err(io::Error::other)
}
