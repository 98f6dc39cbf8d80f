//! What the parts of a cluster ask each other beside data, and the replies.
//!
//! ```text
//! message  0 "OR" | 2 version u8 | 3 kind u8 (1 asked, 2 replied) | 4 0 | 8 call u64 | 16 call or
//!          reply
//! ```
//!
//! Who asks chooses the call's number, and finds it in the reply. The bytes of calls and replies
//! are those of `fields`. Everything is bounded, so a message has at most [`MESSAGE_MAX`] bytes.

#[cfg(test)]
pub(crate) mod examples;
mod fields;
#[cfg(test)]
mod tests;

use outboard_base::{Cred, Errno, Fh, Ino, SessionId, Timestamp, limits};

use self::fields::{Field, Reader};
use super::capability::check_spread;
use super::{Capability, Coordinate, DATA_MAX, FAN_MAX, InvalidMessage, Strategy, VERSION, zeros};
use crate::cursor::{bytes, u32_at, u64_at};
use crate::file::Attr;

/// Bytes before a call or a reply.
pub const CALL_HEAD_LEN: usize = 16;
/// Bytes of a layout.
pub const LAYOUT_LEN: usize = 64;
/// Smallest strip.
pub const STRIP_MIN: u32 = 64 << 10;
/// Most events of one call.
pub const EVENTS_MAX: usize = 256;
/// Most objects of one reply.
pub const OBJECTS_MAX: usize = 4096;
/// Most strips of which one call or reply says what they are.
pub const CLAIMS_MAX: usize = 4096;
/// Objects of which a flush says what was acknowledged, at most.
pub const SETTLES_MAX: usize = 64;
/// Most keys in use.
pub const KEYS_MAX: usize = 16;
/// Most clients whose keys are revoked.
pub const REVOKED_MAX: usize = 4096;
/// Most entries of one reply of a coordinator.
pub const ENTRIES_MAX: usize = 1024;
/// Longest value of an entry, bytes.
pub const ENTRY_VALUE_MAX: usize = 1024;
/// Longest text, bytes.
pub const TEXT_MAX: usize = 4 << 20;
/// Most bytes of a message with a call or a reply: a text is the longest.
pub const MESSAGE_MAX: usize = CALL_HEAD_LEN + 1 + 4 + TEXT_MAX;

pub(super) const MAGIC: [u8; 2] = *b"OR";

/// What a call or a reply is told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHead {
    /// Which call; never used again by who asks.
    pub call: u64,
    /// A reply follows, else a call.
    pub is_reply: bool,
}

impl CallHead {
    /// Reads a message: the head, and the bytes of the call or reply.
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn parse(message: &[u8]) -> Result<(CallHead, &[u8]), InvalidMessage> {
        if message.len() > MESSAGE_MAX {
            return Err(InvalidMessage::Length);
        }
        let parts = message.split_first_chunk::<CALL_HEAD_LEN>().ok_or(InvalidMessage::Length)?;
        let (&[m0, m1, version, kind, ref zero @ .., _, _, _, _, _, _, _, _], rest) = parts;
        if [m0, m1] != MAGIC || version != VERSION {
            return Err(InvalidMessage::Version);
        }
        zeros(zero)?;
        let is_reply = match kind {
            1 => false,
            2 => true,
            _ => return Err(InvalidMessage::Operation),
        };
        Ok((CallHead { call: u64_at(parts.0, 8)?, is_reply }, rest))
    }

    /// Its bytes; the call or reply follows.
    #[must_use]
    pub fn emit(&self) -> [u8; CALL_HEAD_LEN] {
        let ([m0, m1], [c0, c1, c2, c3, c4, c5, c6, c7]) = (MAGIC, self.call.to_le_bytes());
        let kind = if self.is_reply { 2 } else { 1 };
        [m0, m1, VERSION, kind, 0, 0, 0, 0, c0, c1, c2, c3, c4, c5, c6, c7]
    }
}

/// What a delegation lets a client do with a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Read them, and keep what it read.
    Read,
    /// Write them, too, and keep what it wrote; nobody else has a delegation then.
    Write,
}

/// Who asks, in the words of `volume::Caller`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The host's session.
    pub session: SessionId,
    /// It may speak for others.
    pub trusted: bool,
    /// It keeps times itself.
    pub keeps_times: bool,
    /// Who its peer is.
    pub peer: Cred,
}

/// How the bytes of files lie on nodes: of a directory, of those made in it.
///
/// ```text
/// 64 bytes, in the attribute pair of an inode (164..228): 0 version u8 = 1 | 1 strategy u8 |
/// 2 k u8 | 3 m u8 | 4 width u8 | 5 0 | 8 strip u32 | 12 group u32 | 16 0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How a write spreads.
    pub strategy: Strategy,
    /// Copies, or data units.
    pub k: u8,
    /// Parity units.
    pub m: u8,
    /// Over how many nodes of its group the strips of a file go in turn: 1 to 16.
    pub width: u8,
    /// Bytes of a strip: a power of two, 64 KiB to 1 MiB.
    pub strip: u32,
    /// Its placement group.
    pub group: u32,
}

impl Default for Layout {
    /// One copy of each strip of 64 KiB, in turn over four nodes of the first group.
    fn default() -> Layout {
        Layout { strategy: Strategy::Single, k: 1, m: 0, width: 4, strip: STRIP_MIN, group: 0 }
    }
}

impl Layout {
    /// On how many nodes a file lies, if there are as many.
    #[must_use]
    pub fn nodes(&self) -> usize {
        match self.strategy {
            Strategy::Single => self.width.into(),
            _ => usize::from(self.k) + usize::from(self.m),
        }
    }

    /// Whether a file is to be had without one of its nodes.
    #[must_use]
    pub fn is_redundant(&self) -> bool {
        self.strategy != Strategy::Single
    }

    /// In how many parts a file's bytes are dealt out to nodes that have parities beside them; else
    /// 1.
    #[must_use]
    pub fn data_units(&self) -> u64 {
        if self.strategy == Strategy::Parity { u64::from(self.k).max(1) } else { 1 }
    }

    /// How many of a file's nodes suffice for all of it, where it is redundant.
    #[must_use]
    pub fn suffice(&self) -> usize {
        if self.strategy == Strategy::Parity { self.k.into() } else { 1 }
    }

    /// Reads its 64 bytes. Where there is none, zeros, it is of another version.
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn decode(from: &[u8]) -> Result<Layout, InvalidMessage> {
        let whole: &[u8; LAYOUT_LEN] = from.try_into().map_err(|_| InvalidMessage::Length)?;
        let &[version, strategy, k, m, width, ..] = whole;
        if version != VERSION {
            return Err(InvalidMessage::Version);
        }
        zeros(bytes(whole, 5, 3)?)?;
        zeros(bytes(whole, 16, 48)?)?;
        let (strategy, strip) = (Strategy::parse(strategy)?, u32_at(whole, 8)?);
        check_spread(strategy, k, m)?;
        let is_fit = strip.is_power_of_two() && (STRIP_MIN..=DATA_MAX).contains(&strip);
        if !is_fit || !(1..=FAN_MAX).contains(&usize::from(width)) {
            return Err(InvalidMessage::Field);
        }
        Ok(Layout { strategy, k, m, width, strip, group: u32_at(whole, 12)? })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; LAYOUT_LEN] {
        let mut out = [0; LAYOUT_LEN];
        let fields: [&[u8]; 3] = [
            &[VERSION, self.strategy as u8, self.k, self.m, self.width, 0, 0, 0],
            &self.strip.to_le_bytes(),
            &self.group.to_le_bytes(),
        ];
        for (to, from) in out.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        out
    }
}

/// What of a file a client knows better than the server, while it may write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Bytes.
    pub size: u64,
    /// When it was written last, if it was and the writer keeps no times itself.
    pub mtime: Option<Timestamp>,
    /// Units of 512 bytes that it takes at the nodes, if that is known.
    pub blocks: Option<u64>,
}

/// A delegation of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What it allows.
    pub mode: Mode,
    /// Attributes as of now.
    pub attr: Attr,
    /// A write has to take set-id bits or capabilities away: [`Call::Strip`] before it.
    pub strips: bool,
    /// Nobody else had it since this client had it to write, be it in the life before.
    pub kept: bool,
    /// How its bytes lie.
    pub layout: Layout,
    /// What is shown to nodes. Its fence is the delegation's.
    pub capability: Capability,
    /// The nodes of its strips, 1 to [`FAN_MAX`]: strip `i` lies on number `i mod` their count.
    pub nodes: Vec<Coordinate>,
}

/// What a node knows of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its number: the inode's.
    pub object: u64,
    /// One behind its last byte that was written.
    pub end: u64,
    /// The highest fence that it has seen.
    pub fence: u64,
    /// Bytes it takes.
    pub bytes: u64,
}

/// Tells the writes of a strip apart, and which is later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Of the delegation.
    pub fence: u64,
    /// Counted under it.
    pub sequence: u32,
}

/// A write that a node has taken, and that is not known to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub version: Version,
    /// The epoch of the group in which it was first taken.
    pub epoch: u32,
}

/// What a node has of a strip that others have copies of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which strip of the object, counted in [`STRIP_MIN`].
    pub strip: u64,
    /// The newest version that is known to have been done, or decided.
    pub stable: Version,
    /// The one over it.
    pub pending: Option<Taken>,
}

/// What was decided of a strip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Which strip of the object, counted in [`STRIP_MIN`].
    pub strip: u64,
    /// What it has at all members from now on, with nothing newer.
    pub version: Version,
}

/// All writes of an object that the capability's client made under its fence, up to this sequence,
/// were acknowledged by all who have copies, as was what came before them: they are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Whose writes, and of which object.
    pub capability: Capability,
    /// The last of them.
    pub sequence: u32,
}

/// An event for one session of a client, in the words of `volume::VolumeEvent`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of volume::VolumeEvent")]
pub enum Event {
    LockSettled { session: SessionId, ticket: u64, errno: Option<Errno> },
    RecallLocks { session: SessionId, ino: Ino },
    StaleInode { session: SessionId, ino: Ino },
    StaleEntry { session: SessionId, parent: Ino, name: Vec<u8> },
}

/// A key that capabilities are signed with.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// By which number capabilities name it.
    pub id: u8,
    /// Until when it counts, milliseconds of Unix time.
    pub until: u64,
    /// The key.
    pub key: [u8; 32],
}

impl std::fmt::Debug for Key {
    /// Not the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("id", &self.id).field("until", &self.until).finish()
    }
}

/// What a node does with the requests of a client that asks for it, beside what it does with all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// Nothing.
    Common,
    /// Refuses all but reads.
    ReadOnly,
    /// Has the CPU side handle them.
    Steered,
    /// Never has.
    Unsteered,
}

/// A client whose key counts no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// The number of its key, of 24 bits.
    pub client: u32,
}

/// What a coordinator keeps under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Changes with each change of the value.
    pub version: u64,
    /// It goes with this session; 0: it stays.
    pub session: u64,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named after what they hold")]
pub enum Call {
    // A client asks the server.
    /// A file operation: the bytes of its request (`file::Request`), and those beside it.
    /// Reply: `File`.
    File { asker: Asker, request: Vec<u8>, payload: Vec<u8> },
    /// A session is gone for good. Reply: `Done`.
    Detach { session: SessionId },
    /// A session is there again. Reply: `Done`.
    Back { session: SessionId },
    /// The life and lease of a client, which all its delegations live by. Reply: `Lease`.
    Renew,
    /// A client's life begins: whatever a client of this number had before is over. The life chose
    /// the nonce, and says the same each time it asks. Reply: `Done`.
    Begin { nonce: u64 },
    /// All hosts of this life have handed in what they held, or had the time to. Reply: `Done`.
    HandedIn,
    /// A delegation. The server takes back what is in the way. Reply: `Grant`.
    Delegate { ino: Ino, mode: Mode },
    /// A delegation again, under another fence: some who have copies of the file did not take what
    /// was written, or asked for, under this one. What was is decided first. Said again, a node
    /// that was not reached is left out, though the server reaches it. Reply: `Grant`.
    Regrant { ino: Ino, fence: u64, unreached: Option<u16> },
    /// Under a write delegation of a file with copies: some of its members may have something that
    /// was not acknowledged. It must be decided before another has the file. Reply: `Done`;
    /// `ESTALE` as of `Publish`.
    Undone { ino: Ino, fence: u64 },
    /// What changed under a write delegation. Reply: `Done`; `ESTALE` if the fence is not the
    /// file's any more.
    Publish { ino: Ino, fence: u64, told: Told },
    /// Under a write delegation: nothing lies behind the size that the server cut the file to any
    /// more. Reply: `Done`; `ESTALE` as of `Publish`.
    Holed { ino: Ino, fence: u64 },
    /// Under a write delegation: from now on this writer tells what makes the file longer before it
    /// answers it, so what lies behind the size is nobody's. Reply: `Done`; `ESTALE` as of
    /// `Publish`.
    Tells { ino: Ino, fence: u64, told: Told },
    /// The same as `Publish`, with the write that is about to be answered: the bytes of its
    /// request, and how many it wrote. Reply: `Done`; `ESTALE` as of `Publish`.
    Wrote { asker: Asker, request: Vec<u8>, count: u32, fence: u64, told: Told },
    /// How much a write wrote that is sent again. Reply: `Number`; `ENOENT` if nothing says so.
    Answered { asker: Asker, request: Vec<u8> },
    /// Gives a delegation back, down to `keep`. Reply: `Done`.
    Release { ino: Ino, fence: u64, told: Option<Told>, keep: Option<Mode> },
    /// A write is coming that takes set-id bits away. Reply: `Attr`.
    Strip { asker: Asker, ino: Ino },
    /// Whether the peer may write to a file now. Reply: `Flag`.
    MayWrite { asker: Asker, ino: Ino },
    /// Flags that a handle was opened with. Reply: `Number`, all bits set where there is none.
    Opened { session: SessionId, ino: Ino, fh: Fh },
    /// How the bytes of a file, or of those made in a directory, lie. Reply: `Layout`.
    Layout { ino: Ino },
    /// Changes that; of an empty file or a directory. Reply: `Done`.
    SetLayout { asker: Asker, ino: Ino, layout: Layout },
    // Of whoever has the cluster's own key.
    /// A client of this name may have a key. Reply: `Number`, of the key.
    AddKey { name: String },
    /// The clients that were named. Reply: `Text`, JSON.
    ListKeys,
    /// A client's key counts no more, at the server and at all nodes. Reply: `Text`, JSON: how many
    /// nodes know.
    RevokeKey { name: String },
    /// Capabilities are signed with a new key from now on. Reply: `Text`, JSON.
    RotateKey,
    /// Files are to lie on these nodes, too, and not on those any more: which ones there are, in a
    /// map of its own. They are moved while they are used, so many bytes a second at most, if that
    /// is not 0. Reply: `Text`, JSON: the map's number, or why not.
    Place { joins: Vec<Coordinate>, leaves: Vec<u16>, rate: u64 },
    /// The file system check, and whether the nodes hold what it says. Reply: `Text`, JSON.
    Check { contents: bool },

    // The server asks a client.
    /// Give a delegation back, down to `keep`. Reply: `Done`, when all is written and told.
    Recall { ino: Ino, keep: Option<Mode> },
    /// A node has no files any more and may go: what it has acknowledged to this client becomes
    /// durable, if it is not. Reply: `Done`.
    Leaves { node: u16 },
    /// Events for its sessions, in their order. Reply: `Done`, once they are acted upon.
    Events { events: Vec<Event> },

    // Asked of a node: by the server, but for `Flush`, `Settle` and `Install`.
    /// Nothing below this fence is taken any more, durably. Reply: `Object`.
    Seal { object: u64, fence: u64 },
    /// The object goes, and nothing of it below this fence is taken, until no capability from
    /// before counts any more (milliseconds of Unix time). Reply: `Done`.
    Purge { object: u64, fence: u64, until: u64 },
    /// Objects from this number on, some of them, in order. Reply: `Objects`; empty: no more.
    Objects { from: u64 },
    /// The highest number of an object that it has, and the highest fence of any. Reply: `Object`.
    Newest,
    /// Reads all grains of an object against their checksums. Reply: `Number`, of damaged ones.
    Verify { object: u64 },
    /// The keys in use from now on, and all clients whose own are revoked. Reply: `Done`.
    Keys { keys: Vec<Key>, revoked: Vec<Revoked> },
    /// Everything answered becomes durable; before, what is named here is settled where that may
    /// be. Reply: `Number`, the node's boot.
    Flush { settles: Vec<Acknowledged> },
    /// Room for data. Reply: `Space`.
    Space,
    /// What is here of the strips of an object from this number on, some of them, in order, at a
    /// member of this epoch. After a `Seal` it changes no more. Reply: `Claims`; empty: no more.
    Claims { object: u64, epoch: u32, from: u64 },
    /// What was decided of these strips, in their order, under the seal `fence`: what is pending
    /// becomes stable or is forgotten, durably. Reply: `Claims`, of those that lack their version.
    Resolve { object: u64, fence: u64, epoch: u32, decided: Vec<Decided> },
    /// What is named is stable. Its client asks. Reply: `Done`.
    Settle { of: Acknowledged },
    /// Whether it may lack what it has acknowledged of this object, which others have copies of, as
    /// it has lost power since, and was not told to trust it; of any object, if all bits are set.
    /// Those it does not serve, nor those of which it found something damaged. Reply: `Number`, its
    /// boot; `Done` if it does not doubt. Asked of any, and where damage is all that it doubts:
    /// `Objects`, the damaged ones, by their numbers alone.
    Doubts { object: u64 },
    /// Which strips of an object, from this number on, it found damaged, some of them, in order.
    /// Reply: `Claims`.
    Damaged { object: u64, from: u64 },
    /// What it has of this object, if it is still in this boot, is what all who have copies have;
    /// of all objects, if all bits are set. Reply: `Done`.
    Trust { object: u64, boot: u64 },
    /// Anybody asks it for its own requests, until this conversation ends. Reply: `Done`.
    Install { policy: Policy },
    /// A server's call, in its term: the number of the opening of the volume that it serves. Reply:
    /// that of the call; `Later` once a server of a later term was heard.
    InTerm { term: u32, call: Vec<u8> },

    // A part asks a coordinator.
    /// A session goes on; 0: one begins. Reply: `Number`, of the session; `ENOTCONN` if it is over.
    Beat { session: u64 },
    /// What is kept under names that begin so. Reply: `Entries`.
    List { prefix: String },
    /// Makes an entry, or changes the one of this version; it goes with the session, unless that is
    /// 0. Reply: `Number`, the version.
    Put { name: String, value: String, version: Option<u64>, session: u64 },
    /// An entry of this version goes. Reply: `Done`.
    Remove { name: String, version: u64 },

    // Asked of anybody.
    /// Figures. Reply: `Text`, JSON.
    Status,
}

/// What is replied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named after what they hold")]
pub enum Reply {
    Done,
    Failed(Errno),
    /// Of a file operation: the number, the reply header, the bytes beside it.
    File {
        result: u64,
        header: Vec<u8>,
        payload: Vec<u8>,
    },
    /// The server's life, how long a lease counts from the sending of the call, milliseconds; and
    /// bytes of data that nodes can still take, and could take if empty.
    Lease {
        life: u64,
        term_ms: u32,
        free: u64,
        capacity: u64,
    },
    Grant(Box<Grant>),
    Attr(Box<Attr>),
    Flag(bool),
    Number(u64),
    Layout(Layout),
    Object(Object),
    Objects(Vec<Object>),
    Text(String),
    /// Bytes of data that a node can still take, and could take if it were empty.
    Space {
        free: u64,
        capacity: u64,
    },
    Entries(Vec<Entry>),
    Claims(Vec<Claim>),
    /// Of a call that was not done: a server of this term was heard, which is later.
    Later {
        term: u32,
    },
}

impl Call {
    /// A flush that settles nothing.
    pub const FLUSH: Call = Call::Flush { settles: Vec::new() };

    /// The same as a server asks it of a node.
    #[must_use]
    pub fn in_term(&self, term: u32) -> Call {
        let mut call = Vec::new();
        self.encode(&mut call);
        Call::InTerm { term, call }
    }

    /// Writes it behind what `into` holds. What is beyond the bounds is refused by who reads it.
    pub fn encode(&self, into: &mut Vec<u8>) {
        self.put(into);
    }

    /// Reads one, which is all of `from`.
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn decode(from: &[u8]) -> Result<Call, InvalidMessage> {
        let call: Call = whole(from)?;
        let is_fit = match &call {
            Call::File { request, .. }
            | Call::Wrote { request, .. }
            | Call::Answered { request, .. } => request.len() <= limits::REQUEST_HEADER_MAX,
            Call::Events { events } => events.iter().all(|event| match event {
                Event::StaleEntry { name, .. } => name.len() <= limits::NAME_MAX,
                _ => true,
            }),
            Call::AddKey { name } | Call::RevokeKey { name } | Call::Remove { name, .. } => {
                name.len() <= limits::NAME_MAX
            }
            Call::List { prefix } => prefix.len() <= limits::NAME_MAX,
            Call::Put { name, value, .. } => is_fit_entry(name, value),
            Call::Resolve { decided, .. } => {
                decided.is_sorted_by(|one, next| one.strip < next.strip)
            }
            _ => true,
        };
        if is_fit { Ok(call) } else { Err(InvalidMessage::Field) }
    }
}

impl Reply {
    /// Writes it behind what `into` holds. What is beyond the bounds is refused by who reads it.
    pub fn encode(&self, into: &mut Vec<u8>) {
        self.put(into);
    }

    /// Reads one, which is all of `from`.
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn decode(from: &[u8]) -> Result<Reply, InvalidMessage> {
        let reply: Reply = whole(from)?;
        let is_fit = match &reply {
            Reply::File { header, .. } => header.len() <= limits::REPLY_HEADER_MAX,
            Reply::Grant(grant) => !grant.nodes.is_empty(),
            Reply::Entries(all) => all.iter().all(|one| is_fit_entry(&one.name, &one.value)),
            // Who asks for more goes on behind the last one.
            Reply::Objects(objects) => objects.is_sorted_by(|one, next| one.object < next.object),
            Reply::Claims(claims) => claims.is_sorted_by(|one, next| one.strip < next.strip),
            _ => true,
        };
        if is_fit { Ok(reply) } else { Err(InvalidMessage::Field) }
    }
}

fn is_fit_entry(name: &str, value: &str) -> bool {
    name.len() <= limits::NAME_MAX && value.len() <= ENTRY_VALUE_MAX
}

/// One value, and nothing behind it.
fn whole<T: Field>(from: &[u8]) -> Result<T, InvalidMessage> {
    let mut reader = Reader(from);
    let value = T::take(&mut reader)?;
    if reader.0.is_empty() { Ok(value) } else { Err(InvalidMessage::Length) }
}
