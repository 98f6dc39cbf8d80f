//! The attribute KV: 256 bytes that describe an inode.

use outboard_base::{Errno, Ino, Result, Timestamp};
use outboard_wire::file::{Attr, FileKind};
use outboard_wire::shared::call::Layout;

use super::bytes::{array, put, sum, u16_at, u32_at, u64_at};
use super::entry::FIRST_COOKIE;
use super::spread;

/// Where an inode's data rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum DataKind {
    /// Nowhere: it reads as zeros up to its size.
    #[default]
    None = 0,
    /// In its small file KV; what it is shorter than the size reads as zeros.
    Small = 1,
    /// In its file object.
    Big = 2,
    /// On storage nodes, as its layout says.
    Spread = 3,
}

/// What else an inode has, so that nobody looks for it in vain.
pub mod marks {
    /// An access ACL beyond the mode.
    pub const ACL: u32 = 1;
    /// A default ACL (directories).
    pub const DEFAULT_ACL: u32 = 2;
    /// Extended attributes (ACLs apart), now or once.
    pub const XATTRS: u32 = 4;
    /// The object may hold blocks beyond the file's end, still to be given back.
    pub const TRIMMING: u32 = 8;
    /// Never had a name, and may be given one (`O_TMPFILE` without `O_EXCL`).
    pub const LINKABLE: u32 = 16;
    /// A client may be writing to the spread file, and its size is what the nodes say until that
    /// has ended.
    pub const WRITING: u32 = 32;
    /// Some who have copies of the spread file lack what was written since.
    pub const LACKING: u32 = 64;
    /// All of them.
    pub(crate) const KNOWN: u32 = 127;
}

/// An inode as it rests.
///
/// ```text
///   0 version u16 = 1   2 data kind u8   3 zero   4 crc u32 (ino, all other bytes)
///   8 attributes, as on the wire (128 bytes; `ino` included)
/// 136 parent u64    144 next cookie u64    152 entries u64     (directories; else zero)
/// 160 marks u32     164 layout (64 bytes; zero: none)    228 zero, to 256
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// What front-ends see.
    pub attr: Attr,
    /// Of a directory: the directory it is in (the root: itself).
    pub parent: Ino,
    /// Of a directory: the cookie its next entry gets; never goes back.
    pub next_cookie: u64,
    /// Of a directory: how many names it holds.
    pub entries: u64,
    /// Where its data rests.
    pub data: DataKind,
    /// See [`marks`].
    pub marks: u32,
    /// Of a spread file: how its bytes lie. Of a directory: how those of files made in it do, if it
    /// says so.
    pub layout: Option<Layout>,
    /// The nodes that its bytes lie on, in their order, once they were moved; else there are none.
    pub members: Vec<u16>,
}

/// What a change does to a file's times.
#[derive(Clone, Copy)]
pub(crate) enum Dates {
    /// Nothing: whoever made it sends times by themselves.
    Stay,
    /// It is made now.
    Now(Timestamp),
    /// It was made then, of which the file may have heard already.
    Then(Timestamp),
}

impl Inode {
    /// Encoded length, bytes (DPC 3.4).
    pub const LEN: usize = 256;
    const VERSION: u16 = 1;
    const ATTR: usize = 8;
    const LAYOUT: usize = 164;

    /// A new inode with no data, no entries and one name (a directory: two).
    #[must_use]
    pub fn new(ino: Ino, parent: Ino, mode: u32, now: Timestamp) -> Inode {
        let directory = FileKind::from_mode(mode) == Ok(FileKind::Directory);
        let attr = Attr {
            ino,
            mode,
            nlink: if directory { 2 } else { 1 },
            change: 1,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            blksize: 8192,
            // What directories of local file systems show; entries are counted elsewhere.
            size: if directory { 4096 } else { 0 },
            blocks: if directory { 8 } else { 0 },
            ..Attr::default()
        };
        Inode {
            attr,
            parent: if directory { parent } else { Ino::ROOT },
            next_cookie: if directory { FIRST_COOKIE } else { 0 },
            entries: 0,
            data: DataKind::None,
            marks: 0,
            layout: None,
            members: Vec::new(),
        }
    }

    /// Its number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.attr.ino
    }

    /// What it is. (A decoded inode always is something.)
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.attr.kind().unwrap_or(FileKind::Regular)
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Whether `mark` is set.
    #[must_use]
    pub fn has(&self, mark: u32) -> bool {
        self.marks & mark != 0
    }

    /// Sets or clears `mark`.
    pub fn mark(&mut self, mark: u32, set: bool) {
        self.marks = if set { self.marks | mark } else { self.marks & !mark };
    }

    /// Attributes changed: ctime and the change counter.
    pub fn touch(&mut self, now: Timestamp) {
        self.attr.ctime = now;
        self.attr.change = self.attr.change.saturating_add(1);
    }

    /// Data (or entries) changed: mtime, too.
    pub fn modify(&mut self, now: Timestamp) {
        self.attr.mtime = now;
        self.touch(now);
    }

    /// Data changed.
    pub(crate) fn date(&mut self, dates: Dates) {
        match dates {
            Dates::Now(now) => self.modify(now),
            Dates::Then(then) => self.modified(then),
            Dates::Stay => self.attr.change = self.attr.change.saturating_add(1),
        }
    }

    /// Data changed `then`; it may have got later times already, and keeps them.
    pub fn modified(&mut self, then: Timestamp) {
        self.attr.mtime = self.attr.mtime.max(then);
        self.attr.ctime = self.attr.ctime.max(self.attr.mtime);
        self.attr.change = self.attr.change.saturating_add(1);
    }

    /// The value under the key of [`Inode::ino`].
    pub fn encode(&self) -> Result<[u8; Self::LEN]> {
        let mut value = [0; Self::LEN];
        put(&mut value, 0, &Self::VERSION.to_le_bytes())?;
        put(&mut value, 2, &[self.data as u8])?;
        self.attr.encode(value.get_mut(Self::ATTR..).ok_or(Errno::EIO)?)?;
        put(&mut value, 136, &self.parent.0.to_le_bytes())?;
        put(&mut value, 144, &self.next_cookie.to_le_bytes())?;
        put(&mut value, 152, &self.entries.to_le_bytes())?;
        put(&mut value, 160, &self.marks.to_le_bytes())?;
        put(&mut value, Self::LAYOUT, &spread::encode(self.layout.as_ref(), &self.members)?)?;
        let crc = sum(self.attr.ino.0, &value);
        put(&mut value, 4, &crc.to_le_bytes())?;
        Ok(value)
    }

    /// The reverse; `EUCLEAN` for anything that was not written under the key of `ino`.
    pub fn decode(ino: Ino, value: &[u8]) -> Result<Inode> {
        let mut bare: [u8; Self::LEN] = value.try_into().map_err(|_| Errno::EUCLEAN)?;
        let crc = u32_at(&bare, 4)?;
        put(&mut bare, 4, &[0; 4])?;
        if u16_at(&bare, 0)? != Self::VERSION || sum(ino.0, &bare) != crc {
            return Err(Errno::EUCLEAN);
        }
        let [data, zero] = array::<2>(&bare, 2)?;
        let data = match data {
            0 => DataKind::None,
            1 => DataKind::Small,
            2 => DataKind::Big,
            3 => DataKind::Spread,
            _ => return Err(Errno::EUCLEAN),
        };
        let attr = bare.get(Self::ATTR..).ok_or(Errno::EUCLEAN)?;
        let (layout, members) = spread::decode(&array(&bare, Self::LAYOUT)?)?;
        let inode = Inode {
            attr: Attr::decode(attr).map_err(|_| Errno::EUCLEAN)?,
            parent: Ino(u64_at(&bare, 136)?),
            next_cookie: u64_at(&bare, 144)?,
            entries: u64_at(&bare, 152)?,
            data,
            marks: u32_at(&bare, 160)?,
            layout,
            members,
        };
        if zero != 0 || inode.attr.ino != ino || inode.marks & !marks::KNOWN != 0 {
            return Err(Errno::EUCLEAN);
        }
        Ok(inode)
    }
}
