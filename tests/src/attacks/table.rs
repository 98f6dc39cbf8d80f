//! Each attack in a model of trust, against a node that runs: what was seen, and what has to be.

use std::fs;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_fabric::{Key, client_id};
use outboard_flow::Gone;
use outboard_wire::shared::call::{Call, Key as Told, Reply};
use outboard_wire::shared::{Peer, Reason};

use super::end::{End, wall_ms};
use super::make::{Ask, FENCE, KEYS, Who, sender, spoilt};
use super::{Trust, make};
use crate::cluster::Cluster;
use crate::{Result, context};

mod network;
mod storm;

/// Bytes of a write: three packets.
pub(super) const WRITE: u64 = 20_000;
/// Objects that are nobody's.
const OBJECTS: u64 = 1 << 40;
/// How long an answer is waited for that may not come.
pub(super) const SOON: Duration = Duration::from_millis(60);
const LIMIT: Duration = Duration::from_secs(10);

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each has a name in words")]
pub enum Row {
    Mac,
    Signer,
    UnknownKey,
    RetiredKey,
    Widened,
    Object,
    Renamed,
    Expired,
    Volume,
    Stolen,
    ByNode,
    Rights,
    Range,
    Overflow,
    Revoked,
    Strategy,
    Epoch,
    Length,
    Data,
    Replayed,
    Older,
    Garbage,
    Unfinished,
    Imitated,
    OpeningAgain,
    PacketAgain,
    Changed,
    Between,
    Rewritten,
    PutIn,
}

impl Row {
    /// All of them, and their names.
    pub const ALL: [(Row, &'static str); 30] = [
        (Row::Mac, "a MAC that is wrong in one bit"),
        (Row::Signer, "signed with a key that is nobody's"),
        (Row::UnknownKey, "a key's number that is nobody's"),
        (Row::RetiredKey, "a key whose time is over"),
        (Row::Widened, "right, range, time or fence widened after signing"),
        (Row::Object, "another object put in after signing"),
        (Row::Renamed, "another client's, the name replaced"),
        (Row::Expired, "a capability whose time is over"),
        (Row::Volume, "a capability of another volume"),
        (Row::Stolen, "another client's capability"),
        (Row::ByNode, "a node in a client's place"),
        (Row::Rights, "a write with the right to read"),
        (Row::Range, "beyond the range"),
        (Row::Overflow, "a range round the end of numbers"),
        (Row::Revoked, "revoked by a seal"),
        (Row::Strategy, "another strategy than the group's"),
        (Row::Epoch, "another epoch than the group's"),
        (Row::Length, "more than the heads say"),
        (Row::Data, "data that is not what its CRC is of"),
        (Row::Replayed, "a request sent once more"),
        (Row::Older, "an old version with new bytes"),
        (Row::Garbage, "what is no request"),
        (Row::Unfinished, "a message whose rest never comes"),
        (Row::Imitated, "an opening as somebody whose key is not known"),
        (Row::OpeningAgain, "an opening sent once more"),
        (Row::PacketAgain, "a packet sent once more"),
        (Row::Changed, "a packet changed on the way"),
        (Row::Between, "a packet put into the middle of a message"),
        (Row::Rewritten, "a packet and the CRC of its data changed on the way"),
        (Row::PutIn, "a message put into another's conversation"),
    ];

    /// Whether it is among those that are drawn in this model: it is told what becomes of each, and
    /// nothing is done.
    fn is_for_storms(self, trust: Trust) -> bool {
        let is_told = self < Row::Garbage || matches!(self, Row::Imitated | Row::Between);
        is_told && fate(trust, self) != Seen::Done
    }
}

/// What became of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Refused when its first packet had come.
    First(Reason),
    /// Refused when this packet had come.
    At(usize, Reason),
    /// Acknowledged; nothing was done that had not been before.
    Known,
    /// Neither done nor answered.
    Dropped,
    /// Nobody speaks with who does it.
    NotOpened,
    /// Done: bytes were written.
    Done,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Seen::First(reason) => format!("packet 1: {reason:?}").to_lowercase(),
            Seen::At(packet, reason) => format!("packet {packet}: {reason:?}").to_lowercase(),
            Seen::Known => "not done again".to_owned(),
            Seen::Dropped => "dropped".to_owned(),
            Seen::NotOpened => "not opened".to_owned(),
            Seen::Done => "NOT REFUSED".to_owned(),
        };
        f.pad(&text)
    }
}

/// What has to be.
fn fate(trust: Trust, row: Row) -> Seen {
    let is_plain = trust == Trust::Plain;
    // A plain ticket is a secret that everybody keeps: who has one can write another.
    let of_tickets = |reason| if is_plain { Seen::Done } else { Seen::First(reason) };
    match row {
        Row::Mac | Row::Signer | Row::UnknownKey | Row::Widened | Row::Object | Row::Renamed => {
            of_tickets(Reason::Forged)
        }
        Row::RetiredKey => of_tickets(Reason::Expired),
        Row::Expired => Seen::First(Reason::Expired),
        Row::Volume | Row::Stolen | Row::ByNode | Row::Strategy => Seen::First(Reason::Other),
        Row::Rights => Seen::First(Reason::Rights),
        Row::Range => Seen::First(Reason::Range),
        Row::Overflow | Row::Length => Seen::First(Reason::Invalid),
        Row::Revoked => Seen::First(Reason::Fence),
        Row::Epoch => Seen::First(Reason::Epoch),
        Row::Data => Seen::At(3, Reason::Invalid),
        Row::Replayed => Seen::Known,
        Row::Older => Seen::At(3, Reason::Order),
        Row::Garbage | Row::Unfinished | Row::OpeningAgain | Row::PacketAgain => Seen::Dropped,
        Row::Imitated => Seen::NotOpened,
        // Who trusts the network takes what comes over it; only the data has a checksum.
        Row::Changed | Row::Between | Row::Rewritten | Row::PutIn if trust == Trust::Sealed => {
            Seen::Dropped
        }
        Row::Changed | Row::Between => Seen::At(3, Reason::Invalid),
        Row::Rewritten | Row::PutIn => Seen::Done,
    }
}

/// Bytes of files.
pub(super) type Media = Vec<Vec<u8>>;

/// A node of a cluster, and who attacks it.
pub struct Siege {
    trust: Trust,
    own: Key,
    pub(super) at: SocketAddrV4,
    media: [PathBuf; 2],
    volume: u32,
    server: End,
    client: End,
    rng: Rng,
    request: u64,
    /// What the media held when a client had done what it may.
    quiet: Option<Media>,
}

impl Siege {
    /// Of node 1 of `cluster`, which was started so. Its keys are told beside the server's, and the
    /// objects of the rows are sealed and hold something.
    ///
    /// # Errors
    /// Whatever is not as it should be.
    pub fn new(cluster: &Cluster, own: &Key, trust: Trust, seed: u64) -> Result<Siege> {
        let (dir, own) = (cluster.dir(), own.clone());
        let (_, at) = cluster.address("node.1")?;
        let (node, is_sealed) = ((Peer::Node(1), at), trust == Trust::Sealed);
        let media = ["log", "blocks"].map(|name| dir.join("node.1").join(name));
        let volume = outboard_codec::crc32c(b"main");
        let server = End::new(&own, Peer::Server(9), node, is_sealed)?;
        let client = client_of(&own, 0, node, is_sealed)?;
        let (rng, request, quiet) = (Rng::new(seed), 1, None);
        let mut siege =
            Siege { trust, own, at, media, volume, server, client, rng, request, quiet };
        siege.prepare()?;
        Ok(siege)
    }

    /// Tells the node keys. It forgets one whose time is over when the server tells it others.
    fn tell_keys(&mut self) -> Result<()> {
        let far = wall_ms() + 3_600_000;
        let keys = KEYS.iter().map(|(id, key)| {
            let until = if *id == KEYS[0].0 { far } else { 1 };
            Told { id: *id, until, key: *key }
        });
        match self.server.command(&Call::Keys { keys: keys.collect(), revoked: Vec::new() }) {
            Ok(Reply::Done) => Ok(()),
            reply => Err(format!("the node takes no keys of a server: {reply:?}")),
        }
    }

    fn prepare(&mut self) -> Result<()> {
        self.tell_keys()?;
        let opened = self.client.ask(&Call::Status);
        opened.map_err(|gone| format!("the node does not speak with a client: {gone:?}"))?;
        for (row, _) in Row::ALL {
            let seal = Call::Seal { object: object(row), fence: FENCE };
            let sealed = self.server.command(&seal);
            if !matches!(sealed, Ok(Reply::Object(_))) {
                return Err(format!("an object is not sealed: {sealed:?}"));
            }
            let last = if row == Row::Older { 2 } else { 1 };
            for sequence in 1..=last {
                let ask = self.right(row, sequence, WRITE)?;
                self.client.say(&ask.message())?;
                let answer = self.client.answer(ask.heads.head.request, LIMIT);
                if answer.is_none_or(|answer| answer.outcome.is_err()) {
                    return Err(format!("a right write is not done: {answer:?}"));
                }
            }
        }
        self.server.ask(&Call::FLUSH).map_err(|gone| format!("no flush: {gone:?}"))?;
        // What was answered is acknowledged, or the node gives the conversation up.
        self.server.go_on(Duration::from_millis(3));
        self.client.go_on(Duration::from_millis(3));
        Ok(())
    }

    /// A right write of the attacker to the object of a row.
    pub(super) fn right(&mut self, row: Row, sequence: u32, bytes: u64) -> Result<Ask> {
        self.right_of(0, row, sequence, bytes)
    }

    /// One of the client in the place `place`.
    pub(super) fn right_of(
        &mut self,
        place: u32,
        row: Row,
        sequence: u32,
        bytes: u64,
    ) -> Result<Ask> {
        // Of one row and version, always the same bytes.
        let mut data = vec![0; usize::try_from(bytes).unwrap_or(0)];
        Rng::new(object(row) ^ u64::from(sequence)).fill(&mut data);
        self.request += 2;
        let who = Who { client: number(place), volume: self.volume };
        Ask::write(who, object(row), sequence, data, self.request)
    }

    /// Whether packets carry MACs.
    pub(super) fn is_sealed(&self) -> bool {
        self.trust == Trust::Sealed
    }

    /// Who sends what is wrong.
    pub(super) fn client(&mut self) -> &mut End {
        &mut self.client
    }

    /// All that the node's media hold.
    pub(super) fn media(&self) -> Result<Media> {
        let read = |path: &PathBuf| context(fs::read(path), || format!("{}", path.display()));
        self.media.iter().map(read).collect()
    }

    /// Does every attack once; what became of each, which is what has to be.
    ///
    /// # Errors
    /// What became of one is something else, or a byte was written that must not be.
    pub fn all(&mut self) -> Result<Vec<Seen>> {
        let mut all = Vec::new();
        for (row, name) in Row::ALL {
            let before = self.media()?;
            let is_request = row < Row::Unfinished;
            let seen = if is_request { self.request_of(row)? } else { self.on_the_way(row)? };
            let before = self.quiet.take().unwrap_or(before);
            let has_written = self.media()? != before;
            let seen = if seen == Seen::Done && !has_written { Seen::Known } else { seen };
            if seen != fate(self.trust, row) {
                let (trust, should) = (self.trust.name(), fate(self.trust, row));
                return Err(format!("{name} ({trust}): {seen}, and should be: {should}"));
            }
            if has_written != (seen == Seen::Done) {
                return Err(format!("{name} ({}): bytes got to a medium", self.trust.name()));
            }
            all.push(seen);
        }
        Ok(all)
    }

    /// What is wrong with the request itself.
    fn request_of(&mut self, row: Row) -> Result<Seen> {
        if row == Row::RetiredKey {
            self.tell_keys()?;
        }
        let sequence = if matches!(row, Row::Replayed | Row::Older) { 1 } else { 3 };
        let mut ask = self.right(row, sequence, WRITE)?;
        if row == Row::Older {
            let other = self.right(row, 4, WRITE)?.data;
            let who = Who { client: number(0), volume: self.volume };
            ask = Ask::write(who, object(row), 1, other, self.request)?;
        }
        let (request, should) = (ask.heads.head.request, fate(self.trust, row));
        let message = spoilt(row, ask, &mut self.rng);
        let Some(me) = sender(row) else {
            return sent(&mut self.client, &message, request, should);
        };
        let node = (Peer::Node(1), self.at);
        let mut end = End::new(&self.own, me, node, self.is_sealed())?;
        end.ask(&Call::Status).map_err(|gone| format!("{row:?}: {gone:?}"))?;
        sent(&mut end, &message, request, should)
    }

    /// Takes away what it made.
    ///
    /// # Errors
    /// The node does not.
    pub fn end(mut self) -> Result<()> {
        for (row, _) in Row::ALL {
            match self.server.command(&Call::Purge {
                object: object(row),
                fence: u64::MAX,
                until: u64::MAX,
            }) {
                Ok(Reply::Done) => {}
                other => return Err(format!("an object is not purged: {other:?}")),
            }
        }
        Ok(())
    }
}

/// The object of a row.
pub(super) fn object(row: Row) -> u64 {
    OBJECTS + row as u64
}

/// The number of the client in the place `place`.
fn number(place: u32) -> u64 {
    client_id(0x00AB_CDEF, place)
}

/// A client of the cluster.
pub(super) fn client_of(
    own: &Key,
    place: u32,
    part: (Peer, SocketAddrV4),
    is_sealed: bool,
) -> Result<End> {
    let key = own.of_client(0x00AB_CDEF).ok_or("the key is not the cluster's")?;
    End::new(&key, Peer::Client(number(place)), part, is_sealed)
}

/// Sends a message of several packets, the first alone at first; what became of it. On a busy
/// machine what has to be answered may take its time.
pub(super) fn sent(end: &mut End, message: &[u8], request: u64, should: Seen) -> Result<Seen> {
    let (early, late) = match should {
        Seen::First(_) => (LIMIT, SOON),
        Seen::Dropped => (SOON, SOON),
        _ => (SOON, LIMIT),
    };
    end.go_on(Duration::from_millis(3));
    end.say(message)?;
    let packets = end.due();
    let (first, rest) = packets.split_first().ok_or("nothing is sent")?;
    end.put(first);
    let early = heard(end, request, early);
    rest.iter().for_each(|packet| end.put(packet));
    if let Some(outcome) = early {
        end.go_on(Duration::from_millis(3));
        return Ok(outcome.map_or_else(Seen::First, |()| Seen::Done));
    }
    let late = end.answer(request, late).map(|answer| answer.outcome);
    end.go_on(Duration::from_millis(3));
    Ok(match late {
        Some(Ok(())) => Seen::Done,
        Some(Err(reason)) => Seen::At(packets.len(), reason),
        None => Seen::Dropped,
    })
}

/// The answer that comes within `limit`, while nothing more is sent.
fn heard(end: &mut End, request: u64, limit: Duration) -> Option<std::result::Result<(), Reason>> {
    let until = Instant::now() + limit;
    loop {
        if let Some(answer) = end.answers.iter().find(|one| one.request == request) {
            return Some(answer.outcome);
        }
        if Instant::now() > until {
            return None;
        }
        end.hear(SOON.min(limit));
    }
}

/// Prints the table: what was seen in each model.
pub fn print(seen: &[(Trust, Vec<Seen>)]) {
    let line = |name: &str, cells: Vec<String>| {
        let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:<19}")).collect();
        println!("{name:<52} {}", cells.join(" ").trim_end());
    };
    line("attack", seen.iter().map(|(trust, _)| trust.name().to_owned()).collect());
    for (at, (_, name)) in Row::ALL.iter().enumerate() {
        let cells = seen.iter().filter_map(|(_, seen)| seen.get(at));
        line(name, cells.map(Seen::to_string).collect());
    }
}
