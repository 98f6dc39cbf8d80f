//! The format of a backup: files and directories as one stream, written and read front to back.
//!
//! ```text
//! header      0 magic "OBBACKUP" | 8 version u32 | 12 kind u8 | 13 0 | 16 made u64, seconds of
//!             Unix time | 24 id, 16 bytes, or 0 | 40 bytes to come u64, about, or 0 | 48 0 |
//!             60 check u32
//! record      0 kind u8 | 1 0 | 4 length u32 | 8 number u64 | 16 check of the body u32 |
//!             20 check of 0..20 u32 | 24 body, `length` bytes
//! directory 1 body: its name
//! file      2 body: its name
//! bytes     3 number: where in the file; body: they
//! file end  4 number: the file's length
//! end       5 number: records before it; body: bytes of files and pairs u64 | chain u32
//! pairs     6 body: pairs, at least one
//! pair      key's length u16 | value's length u32 | key, not empty | value
//! ```
//!
//! Version 1 knows no pairs; what holds some ([`Kind::Pairs`]) is of version 2, and so is refused
//! by who does not know them.
//!
//! What always holds: numbers are little endian; a name is relative and plain ([`Name`]); the bytes
//! of a file come in order and do not overlap, and what no record names is a hole; a check is a
//! CRC-32C. The chain is the CRC over the chain before it and the first 20 bytes of each record's
//! head: so it is over everything, bodies by their checks. A stream without its end is cut.
//!
//! Who reads it trusts nothing: it copies [`Reader::wants`] bytes, at most [`MOST_BODY`], and they
//! are checked before they are used. Nothing here allocates by what a stream says.

mod name;
mod pairs;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use name::{MOST_NAME, Name};
pub use pairs::{Pairs, append_pair};
pub use reader::{Event, Reader};
pub use writer::{Disorder, Writer};

use std::fmt;

/// How a backup begins.
pub const MAGIC: [u8; 8] = *b"OBBACKUP";
/// The version without pairs, and the one with them.
const VERSIONS: [u32; 2] = [1, 2];
/// Bytes of the header.
pub const HEADER_LEN: usize = 64;
/// Bytes of a record before its body.
pub const HEAD_LEN: usize = 24;
/// The longest body.
pub const MOST_BODY: usize = 1 << 20;
/// The body of the end.
const END_LEN: usize = 12;

/// What was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The data directory of a volume.
    Volume = 1,
    /// What `outboard serve kv` keeps.
    ServedKv = 2,
    /// What `outboard serve pages` keeps.
    ServedPages = 3,
    /// What `outboard serve plugin` keeps.
    ServedPlugin = 4,
    /// A volume, as files and the pairs of its engine.
    Pairs = 5,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 5] =
        [Kind::Volume, Kind::ServedKv, Kind::ServedPages, Kind::ServedPlugin, Kind::Pairs];

    /// The version of a backup that holds it.
    fn version(self) -> u32 {
        let [plain, with_pairs] = VERSIONS;
        if self == Kind::Pairs { with_pairs } else { plain }
    }

    fn of(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Volume | Kind::Pairs => "a volume",
            Kind::ServedKv => "a served directory (kv)",
            Kind::ServedPages => "a served directory (pages)",
            Kind::ServedPlugin => "a served directory (plugin)",
        })
    }
}

/// What stands at the front of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What was copied.
    pub kind: Kind,
    /// When, in seconds of Unix time.
    pub made: u64,
    /// Which one, if what was copied has an id; else zeros.
    pub id: [u8; 16],
    /// About how many bytes of files follow, for who shows progress; 0 if nobody knows.
    pub bytes: u64,
}

/// What a whole backup held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records before the end.
    pub records: u64,
    /// Bytes of files, holes are none, and of pairs.
    pub bytes: u64,
}

/// Why a stream is not read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It begins otherwise.
    NotABackup,
    /// Its format has another version.
    Version(u32),
    /// It contradicts its checks or itself; how.
    Damaged(&'static str),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::NotABackup => f.write_str("it is no backup"),
            Wrong::Version(found) => {
                let [plain, with_pairs] = VERSIONS;
                let known = format!("{plain} and {with_pairs}");
                write!(f, "it is a backup of version {found}, and this program reads {known}")
            }
            Wrong::Damaged(how) => write!(f, "it is damaged: {how}"),
        }
    }
}

impl std::error::Error for Wrong {}

/// The kinds of records.
mod record {
    pub(super) const DIRECTORY: u8 = 1;
    pub(super) const FILE: u8 = 2;
    pub(super) const BYTES: u8 = 3;
    pub(super) const FILE_END: u8 = 4;
    pub(super) const END: u8 = 5;
    pub(super) const PAIRS: u8 = 6;
}

/// The check over everything, one record further. A head's own check is left out: a CRC over bytes
/// and their CRC is the same for all bytes, and would say nothing of them.
fn chained(chain: u32, head: &[u8; HEAD_LEN]) -> u32 {
    let mut both = [0; HEAD_LEN];
    let (before, now) = both.split_at_mut(4);
    before.copy_from_slice(&chain.to_le_bytes());
    let (checked, _check) = head.split_at(HEAD_LEN - 4);
    now.copy_from_slice(checked);
    crate::crc32c(&both)
}

/// The body of the fuzz target `archive`: bytes from anywhere are read as a backup; what is taken
/// of them comes out the same when it is written again.
#[cfg(any(test, feature = "fuzz"))]
pub fn fuzz(data: &[u8]) {
    let mut again = Vec::new();
    let mut writer: Option<Writer> = None;
    let (mut reader, mut rest) = (Reader::new(), data);
    loop {
        let Some((piece, after)) = rest.split_at_checked(reader.wants()) else { return };
        rest = after;
        let Ok(event) = reader.take(piece) else { return };
        let written = match (event, writer.as_mut()) {
            (Event::More, _) => continue,
            (Event::Header(header), None) => {
                writer = Some(Writer::new(&header, &mut again));
                Ok(())
            }
            (Event::Directory(name), Some(writer)) => writer.directory(&name, &mut again),
            (Event::File(name), Some(writer)) => writer.file(&name, &mut again),
            (Event::Bytes { at, bytes }, Some(writer)) => writer.bytes(at, bytes, &mut again),
            (Event::FileEnd { len }, Some(writer)) => writer.file_end(len, &mut again),
            (Event::Pairs(pairs), Some(writer)) => {
                let mut body = Vec::new();
                for (key, value) in pairs {
                    assert!(append_pair(key, value, &mut body), "what is read fits");
                }
                writer.pairs(&body, &mut again)
            }
            (Event::End(totals), Some(writer)) => {
                assert_eq!(writer.end(&mut again), Ok(totals));
                assert_eq!(again, data[..data.len() - rest.len()], "a backup is written one way");
                return;
            }
            // The header came again, or something before it.
            _ => Err(Disorder),
        };
        assert_eq!(written, Ok(()), "what is read may be written");
    }
}
