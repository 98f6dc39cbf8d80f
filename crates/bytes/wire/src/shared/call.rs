//! What the parts of a cluster ask each other beside data, and the replies.

use outboard_base::{Cred, Errno, Fh, Ino, SessionId, Timestamp};

use super::{Capability, Coordinate};
use crate::file::Attr;

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
/// 2 k u8 | 3 m u8 | 4 width u8 | 5 0 | 8 stripe u32 | 12 group u32 | 16 0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How a write spreads.
    pub strategy: super::Strategy,
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

/// What of a file a client knows better than the server, while it may write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Bytes.
    pub size: u64,
    /// When it was written last, if it was and the writer keeps no times itself.
    pub mtime: Option<Timestamp>,
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
    /// How its bytes lie.
    pub layout: Layout,
    /// What is shown to nodes. Its fence is the delegation's.
    pub capability: Capability,
    /// The nodes of its strips: strip `i` lies on number `i mod` their count.
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
    /// A delegation. The server takes back what is in the way. Reply: `Grant`.
    Delegate { ino: Ino, mode: Mode },
    /// What changed under a write delegation. Reply: `Done`; `ESTALE` if the fence is not the
    /// file's any more.
    Publish { ino: Ino, fence: u64, told: Told },
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
    /// The file system check, and whether the nodes hold what it says. Reply: `Text`, JSON.
    Check { contents: bool },

    // The server asks a client.
    /// Give a delegation back, down to `keep`. Reply: `Done`, when all is written and told.
    Recall { ino: Ino, keep: Option<Mode> },
    /// Events for its sessions, in their order. Reply: `Done`, once they are acted upon.
    Events { events: Vec<Event> },

    // Asked of a node: by the server, but for `Flush`.
    /// Nothing below this fence is taken any more, durably. Reply: `Object`.
    Seal { object: u64, fence: u64 },
    /// The object goes. Reply: `Done`.
    Purge { object: u64 },
    /// Objects from this number on, some of them, in order. Reply: `Objects`; empty: no more.
    Objects { from: u64 },
    /// Reads all grains of an object against their checksums. Reply: `Number`, of damaged ones.
    Verify { object: u64 },
    /// The keys in use from now on. Reply: `Done`.
    Keys { keys: Vec<Key> },
    /// Everything answered becomes durable. Reply: `Done`.
    Flush,

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
    File { result: u64, header: Vec<u8>, payload: Vec<u8> },
    /// The server's life, how long a lease counts from the sending of the call, milliseconds; and
    /// bytes of data that nodes can still take, and could take if empty.
    Lease { life: u64, term_ms: u32, free: u64, capacity: u64 },
    Grant(Box<Grant>),
    Attr(Box<Attr>),
    Flag(bool),
    Number(u64),
    Layout(Layout),
    Object(Object),
    Objects(Vec<Object>),
    Text(String),
}
