//! How a volume is opened, and why it may not open.

use std::fmt;

use outboard_base::Errno;
use outboard_kv::KvError;
use outboard_kv::object::Compression;
use outboard_wire::shared::call::Layout;

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
    /// Most open files and directories of the volume; beyond it `ENFILE`. An eighth of them is kept
    /// for root and the volume's owner.
    pub handles_max: usize,
    /// Most of them that are one user's, neither root nor the owner; beyond it `ENFILE`.
    pub handles_user_max: usize,
    /// Most of them of one attachment that speaks for its user alone; beyond it `EMFILE`.
    pub handles_attachment_max: usize,
    /// A number that differs between volumes: names a new volume. At random.
    pub id: u64,
    /// Owner of a new volume's root directory.
    pub owner: (u32, u32),
    /// Permissions of a new volume's root directory.
    pub mode: u32,
    /// The bytes of files made from now on lie on storage nodes: as the directory says in which a
    /// file is made, or like this. `None`: in the volume.
    pub spread: Option<Layout>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            capacity: u64::MAX,
            cache_bytes: 64 << 20,
            segment: 64 << 20,
            compression: Compression::None,
            handles_max: 1 << 20,
            handles_user_max: 1 << 18,
            handles_attachment_max: 1 << 16,
            id: 0,
            owner: (0, 0),
            mode: 0o755,
            spread: None,
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
