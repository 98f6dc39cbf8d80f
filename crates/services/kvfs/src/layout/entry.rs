//! Directory entries: each is two pairs, by name and by cookie.

use outboard_base::{Errno, Ino, Result};
use outboard_wire::file::FileKind;

use super::bytes::{array, put, sum, u32_at, u64_at};

/// The value of an inode KV: what a name leads to.
///
/// ```text
///  0 ino u64   8 cookie u64   16 kind u8   17 zero   20 crc u32 (directory, these bytes, name)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode named.
    pub ino: Ino,
    /// Its place in the directory's order.
    pub cookie: u64,
    /// What it is.
    pub kind: FileKind,
}

/// The kind; bits a mode would drop are damage, too.
fn kind_of(raw: u8) -> Result<FileKind> {
    let kind = FileKind::from_mode(u32::from(raw) << 12).map_err(|_| Errno::EUCLEAN)?;
    if kind as u8 == raw { Ok(kind) } else { Err(Errno::EUCLEAN) }
}

impl Entry {
    /// Encoded length, bytes.
    pub const LEN: usize = 24;

    fn body(&self) -> [u8; 20] {
        let mut body = [0; 20];
        let (ino, rest) = body.split_at_mut(8);
        ino.copy_from_slice(&self.ino.0.to_le_bytes());
        let (cookie, rest) = rest.split_at_mut(8);
        cookie.copy_from_slice(&self.cookie.to_le_bytes());
        if let [kind, ..] = rest {
            *kind = self.kind as u8;
        }
        body
    }

    /// The value of this entry under (`parent`, `name`).
    #[must_use]
    pub fn encode(&self, parent: Ino, name: &[u8]) -> [u8; Self::LEN] {
        let body = self.body();
        let mut value = [0; Self::LEN];
        let (head, crc) = value.split_at_mut(20);
        head.copy_from_slice(&body);
        crc.copy_from_slice(&entry_sum(parent, &body, name).to_le_bytes());
        value
    }

    /// The reverse; `EUCLEAN` for anything that was not written under this key.
    pub fn decode(parent: Ino, name: &[u8], value: &[u8]) -> Result<Entry> {
        let body: [u8; 20] = array(value, 0)?;
        if value.len() != Self::LEN || u32_at(value, 20)? != entry_sum(parent, &body, name) {
            return Err(Errno::EUCLEAN);
        }
        let [kind, zeros @ ..] = array::<4>(value, 16)?;
        let entry =
            Entry { ino: Ino(u64_at(value, 0)?), cookie: u64_at(value, 8)?, kind: kind_of(kind)? };
        if zeros != [0; 3] || entry.cookie < FIRST_COOKIE || entry.ino == Ino::ROOT {
            return Err(Errno::EUCLEAN);
        }
        Ok(entry)
    }
}

/// Cookies 0, 1 and 2 mean "from the start", "after `.`" and "after `..`".
pub(crate) const FIRST_COOKIE: u64 = 3;

fn entry_sum(parent: Ino, body: &[u8], name: &[u8]) -> u32 {
    sum(parent.0, body) ^ sum(name.len() as u64, name).rotate_left(13)
}

/// The value under a cookie: the same entry, with its name.
///
/// ```text
///  0 ino u64   8 kind u8   9 zero   12 crc u32 (directory, cookie, these bytes, name)   16 name
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The inode named.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Its name.
    pub name: &'a [u8],
}

impl<'a> Listed<'a> {
    const NAME: usize = 16;

    fn sum(&self, parent: Ino, cookie: u64) -> u32 {
        let entry = Entry { ino: self.ino, cookie, kind: self.kind };
        entry_sum(parent, &entry.body(), self.name)
    }

    /// The value of this entry under (`parent`, `cookie`).
    pub fn encode(&self, parent: Ino, cookie: u64) -> Result<Vec<u8>> {
        let mut value = vec![0; Self::NAME + self.name.len()];
        put(&mut value, 0, &self.ino.0.to_le_bytes())?;
        put(&mut value, 8, &[self.kind as u8])?;
        put(&mut value, 12, &self.sum(parent, cookie).to_le_bytes())?;
        put(&mut value, Self::NAME, self.name)?;
        Ok(value)
    }

    /// The reverse; `EUCLEAN` for anything that was not written under this key.
    pub fn decode(parent: Ino, cookie: u64, value: &'a [u8]) -> Result<Listed<'a>> {
        let [kind, zeros @ ..] = array::<4>(value, 8)?;
        let listed = Listed {
            ino: Ino(u64_at(value, 0)?),
            kind: kind_of(kind)?,
            name: value.get(Self::NAME..).ok_or(Errno::EUCLEAN)?,
        };
        let right = u32_at(value, 12)? == listed.sum(parent, cookie);
        if !right || zeros != [0; 3] || listed.name.is_empty() {
            return Err(Errno::EUCLEAN);
        }
        Ok(listed)
    }
}
