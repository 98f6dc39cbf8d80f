//! The operations of a worker: drawn by seed, done by system calls.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use outboard_base::Rng;

/// Names a directory may hold; few, so that operations meet.
const NAMES: u64 = 12;
/// Longest piece written at once: over the boundary between small and big files, and several
/// blocks.
const PIECE_MAX: u64 = 40_000;
/// Longest file.
const LENGTH_MAX: u64 = 300_000;

/// One operation on names of one directory.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Operation {
    /// `O_CREAT | O_EXCL`: a second application finds the first.
    Create {
        name: String,
    },
    /// `O_APPEND`: a second application is seen in the content.
    Append {
        name: String,
        bytes: Vec<u8>,
    },
    Write {
        name: String,
        offset: u64,
        bytes: Vec<u8>,
    },
    Truncate {
        name: String,
        length: u64,
    },
    Sync {
        name: String,
    },
    Unlink {
        name: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Symlink {
        target: String,
        name: String,
    },
    MakeDirectory {
        name: String,
    },
    RemoveDirectory {
        name: String,
    },
}

impl Operation {
    /// Draws an operation; with `syncs`, one in four is a sync.
    pub(crate) fn draw(rng: &mut Rng, syncs: bool) -> Self {
        let name = |rng: &mut Rng| format!("n{:02}", rng.below(NAMES));
        if syncs && rng.chance(1, 4) {
            return Self::Sync { name: name(rng) };
        }
        match rng.below(20) {
            0..=3 => Self::Create { name: name(rng) },
            4..=7 => Self::Append { name: name(rng), bytes: piece(rng) },
            8..=10 => {
                let offset = rng.below(LENGTH_MAX - PIECE_MAX);
                // Half of the writes stay near the boundary between small and big files.
                let offset = if rng.chance(1, 2) { offset % 16_384 } else { offset };
                Self::Write { name: name(rng), offset, bytes: piece(rng) }
            }
            11 => Self::Truncate { name: name(rng), length: rng.below(LENGTH_MAX) },
            12 | 13 => Self::Unlink { name: name(rng) },
            14 | 15 => Self::Rename { from: name(rng), to: name(rng) },
            16 => Self::Link { from: name(rng), to: name(rng) },
            17 => Self::Symlink { target: format!("target-{}", rng.below(1000)), name: name(rng) },
            18 => Self::MakeDirectory { name: name(rng) },
            _ => Self::RemoveDirectory { name: name(rng) },
        }
    }

    /// Does it in a directory.
    pub(crate) fn perform(&self, dir: &Path) -> io::Result<()> {
        match self {
            Self::Create { name } => {
                OpenOptions::new().write(true).create_new(true).open(dir.join(name)).map(drop)
            }
            Self::Append { name, bytes } => {
                let mut file = OpenOptions::new().append(true).open(dir.join(name))?;
                whole(file.write(bytes)?, bytes)
            }
            Self::Write { name, offset, bytes } => {
                let file = OpenOptions::new().write(true).open(dir.join(name))?;
                whole(file.write_at(bytes, *offset)?, bytes)
            }
            Self::Truncate { name, length } => {
                OpenOptions::new().write(true).open(dir.join(name))?.set_len(*length)
            }
            Self::Sync { name } => File::open(dir.join(name))?.sync_all(),
            Self::Unlink { name } => fs::remove_file(dir.join(name)),
            Self::Rename { from, to } => fs::rename(dir.join(from), dir.join(to)),
            Self::Link { from, to } => fs::hard_link(dir.join(from), dir.join(to)),
            Self::Symlink { target, name } => symlink(target, dir.join(name)),
            Self::MakeDirectory { name } => fs::create_dir(dir.join(name)),
            Self::RemoveDirectory { name } => fs::remove_dir(dir.join(name)),
        }
    }
}

/// Bytes that tell their place: a piece written twice or torn is seen.
fn piece(rng: &mut Rng) -> Vec<u8> {
    let length = if rng.chance(1, 2) { rng.below(600) } else { rng.below(PIECE_MAX) };
    let mut bytes = vec![0; usize::try_from(1 + length).unwrap_or(1)];
    rng.fill(&mut bytes);
    bytes
}

/// A write that takes less than all is allowed by POSIX, but not on a disk with space.
fn whole(written: usize, bytes: &[u8]) -> io::Result<()> {
    if written == bytes.len() {
        return Ok(());
    }
    Err(io::Error::other(format!("wrote {written} of {} bytes", bytes.len())))
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { name } => write!(f, "create {name}"),
            Self::Append { name, bytes } => write!(f, "append {name} {} bytes", bytes.len()),
            Self::Write { name, offset, bytes } => {
                write!(f, "write {name} at {offset} {} bytes", bytes.len())
            }
            Self::Truncate { name, length } => write!(f, "truncate {name} to {length}"),
            Self::Sync { name } => write!(f, "sync {name}"),
            Self::Unlink { name } => write!(f, "unlink {name}"),
            Self::Rename { from, to } => write!(f, "rename {from} to {to}"),
            Self::Link { from, to } => write!(f, "link {from} as {to}"),
            Self::Symlink { target, name } => write!(f, "symlink {name} to {target}"),
            Self::MakeDirectory { name } => write!(f, "mkdir {name}"),
            Self::RemoveDirectory { name } => write!(f, "rmdir {name}"),
        }
    }
}
