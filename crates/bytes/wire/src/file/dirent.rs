//! Directory entries as they travel in the payload of `Readdir`.
//!
//! ```text
//!  0 ino u64   8 cookie u64   16 kind u8   17 has attributes u8
//! 18 name length u16   20 length u32
//! 24 attributes (128 bytes, if asked for)   ..  name   ..  zeros to a multiple of 8
//! ```

use outboard_base::{Errno, Ino, Result, limits};

use super::attr::{Attr, FileKind};
use crate::cursor::{bytes, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

const FIXED: usize = 24;

/// One directory entry. `.` and `..` are never among them: front-ends add them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    /// The inode named.
    pub ino: Ino,
    /// Where to go on after this entry; stable while the directory changes. Never 0, 1 or 2.
    pub cookie: u64,
    /// What it is.
    pub kind: FileKind,
    /// Its name.
    pub name: &'a [u8],
    /// Its attributes, when they were asked for.
    pub attr: Option<Attr>,
}

impl Dirent<'_> {
    /// Encoded length, bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let attr = if self.attr.is_some() { Attr::LEN } else { 0 };
        (FIXED + attr + self.name.len()).next_multiple_of(8)
    }
}

/// Fills a buffer with directory entries.
#[derive(Debug)]
pub struct DirentsWriter<'b> {
    buffer: &'b mut [u8],
    used: usize,
}

impl<'b> DirentsWriter<'b> {
    /// A writer over an empty buffer.
    pub fn new(buffer: &'b mut [u8]) -> Self {
        DirentsWriter { buffer, used: 0 }
    }

    /// Adds an entry; `false` when it does not fit, and then nothing is written.
    pub fn push(&mut self, entry: &Dirent<'_>) -> Result<bool> {
        let len = entry.encoded_len();
        let Some(out) = self.buffer.get_mut(self.used..self.used.saturating_add(len)) else {
            return Ok(false);
        };
        out.fill(0);
        put_u64(out, 0, entry.ino.0)?;
        put_u64(out, 8, entry.cookie)?;
        put_u16(out, 16, u16::from(entry.kind as u8) | u16::from(entry.attr.is_some()) << 8)?;
        put_u16(out, 18, u16::try_from(entry.name.len()).map_err(|_| Errno::ENAMETOOLONG)?)?;
        put_u32(out, 20, u32::try_from(len).map_err(|_| Errno::EOVERFLOW)?)?;
        let mut at = FIXED;
        if let Some(attr) = &entry.attr {
            attr.encode(out.get_mut(at..).ok_or(Errno::EPROTO)?)?;
            at += Attr::LEN;
        }
        out.get_mut(at..at + entry.name.len()).ok_or(Errno::EPROTO)?.copy_from_slice(entry.name);
        self.used += len;
        Ok(true)
    }

    /// Bytes written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

/// Reads the entries of a buffer; ends at its end or at the first malformed entry, which is an
/// error.
#[derive(Clone, Debug)]
pub struct Dirents<'a>(&'a [u8]);

impl<'a> Dirents<'a> {
    /// The entries in `payload`.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Self {
        Dirents(payload)
    }

    fn decode(&mut self) -> Result<Dirent<'a>> {
        let from = self.0;
        let len = u32_at(from, 20)? as usize;
        let own = bytes(from, 0, len)?;
        let kind_and_attr = u16_at(own, 16)?;
        let kind = FileKind::from_mode(u32::from(kind_and_attr & 0xff) << 12)
            .map_err(|_| Errno::EPROTO)?;
        let name_len = usize::from(u16_at(own, 18)?);
        let (attr, at) = match kind_and_attr >> 8 {
            0 => (None, FIXED),
            1 => (Some(Attr::decode(bytes(own, FIXED, Attr::LEN)?)?), FIXED + Attr::LEN),
            _ => return Err(Errno::EPROTO),
        };
        let name = bytes(own, at, name_len)?;
        let bad_name = name.is_empty()
            || name_len > limits::NAME_MAX
            || name.contains(&b'/')
            || name.contains(&0)
            || matches!(name, b"." | b"..");
        if bad_name || len != (at + name_len).next_multiple_of(8) {
            return Err(Errno::EPROTO);
        }
        self.0 = from.get(len..).unwrap_or_default();
        Ok(Dirent { ino: Ino(u64_at(own, 0)?), cookie: u64_at(own, 8)?, kind, name, attr })
    }
}

impl<'a> Iterator for Dirents<'a> {
    type Item = Result<Dirent<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.decode();
        if entry.is_err() {
            self.0 = &[];
        }
        Some(entry)
    }
}
