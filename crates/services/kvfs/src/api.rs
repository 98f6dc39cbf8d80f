//! What callers hand in and get back.

use std::fmt;

use outboard_base::{Cred, Errno, Ino, SessionId};
use outboard_kv::KvError;
use outboard_kv::object::{Compression, Lent};
use outboard_wire::file::Reply;

/// Who is calling. The caller of [`crate::Kvfs::handle`] vouches for every field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Names the link. Handles, holds, locks and replay records belong to it; two links never
    /// share one.
    pub attachment: SessionId,
    /// Its socket peer is root or the volume's owner: it may speak for others and use
    /// [`outboard_wire::file::Flags::CHECKED`].
    pub trusted: bool,
    /// Who its socket peer is. The limit of what an attachment that is not trusted may claim.
    pub peer: Cred,
}

/// Bytes beside a request or a reply.
#[derive(Debug, Default)]
pub enum Payload {
    /// None.
    #[default]
    None,
    /// In a buffer of the block store, which goes back to it when the payload is dropped.
    Lent(Lent),
    /// In a vector.
    Bytes(Vec<u8>),
}

impl Payload {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::None => &[],
            Payload::Lent(lent) => lent,
            Payload::Bytes(bytes) => bytes,
        }
    }
}

/// What an operation answers.
#[derive(Debug)]
pub struct Answer {
    /// The reply.
    pub reply: Reply,
    /// The bytes of a [`Reply::Data`].
    pub payload: Payload,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Answer {
        Answer { reply, payload: Payload::None }
    }
}

/// Something an attachment must be told; see [`crate::Kvfs::take_events`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The wait for a lock is over.
    LockSettled {
        /// Who waited.
        attachment: SessionId,
        /// For what.
        ticket: u64,
        /// The lock is held, or why it never will be.
        result: Result<(), Errno>,
    },
    /// The locks of a file, which this attachment decides, are asked back.
    RecallLocks {
        /// Who decides them.
        attachment: SessionId,
        /// Of which file.
        ino: Ino,
    },
    /// Another attachment changed an inode this one was told of.
    StaleInode {
        /// Who may have it cached.
        attachment: SessionId,
        /// The inode.
        ino: Ino,
    },
    /// Another attachment changed what a name leads to, in a directory this one was told of.
    StaleEntry {
        /// Who may have it cached.
        attachment: SessionId,
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
    },
}

/// How a volume is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of the volume, bytes; `u64::MAX`: whatever the medium and the store can take.
    pub capacity: u64,
    /// Bytes of keys and values cached.
    pub cache_bytes: usize,
    /// The medium grows by this many bytes at a time; a multiple of 1 MiB.
    pub segment: u64,
    /// How blocks of big files are kept that are written from now on.
    pub compression: Compression,
    /// Most open files and directories of the volume; beyond it `ENFILE`.
    pub handles_max: usize,
    /// A number that differs between volumes: names a new volume. At random.
    pub id: u64,
    /// Owner of a new volume's root directory.
    pub owner: (u32, u32),
    /// Permissions of a new volume's root directory.
    pub mode: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            capacity: u64::MAX,
            cache_bytes: 64 << 20,
            segment: 64 << 20,
            compression: Compression::None,
            handles_max: 1 << 20,
            id: 0,
            owner: (0, 0),
            mode: 0o755,
        }
    }
}

/// Why a volume does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The store holds something, but no volume.
    NotAVolume,
    /// The volume has another layout than this code knows.
    Format {
        /// The volume's.
        found: u32,
        /// This code's.
        known: u32,
    },
    /// The superblock, a counter or the root directory is damaged.
    Damaged,
    /// The store failed.
    Store(KvError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotAVolume => {
                f.write_str("the store holds data, but no volume: give an empty data directory")
            }
            OpenError::Format { found, known } => write!(
                f,
                "the volume has format {found}, this version knows format {known}: \
                 open it with the version that made it"
            ),
            OpenError::Damaged => {
                f.write_str("the volume's superblock or root is damaged: run `outboard fsck`")
            }
            OpenError::Store(error) => write!(f, "the volume's store cannot be read: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<KvError> for OpenError {
    fn from(error: KvError) -> OpenError {
        OpenError::Store(error)
    }
}

impl From<Errno> for OpenError {
    /// Errnos of opening come from decoding what the store holds, or from the store itself.
    fn from(errno: Errno) -> OpenError {
        if errno == Errno::EUCLEAN || errno == Errno::ESTALE {
            OpenError::Damaged
        } else {
            OpenError::Store(KvError::from(errno))
        }
    }
}
