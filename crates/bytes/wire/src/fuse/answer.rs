//! What the kernel is answered: the out header and the bodies, each of a fixed length but directory
//! entries.

use std::time::Duration;

use outboard_base::limits::NAME_MAX_KERNEL;
use outboard_base::{Errno, Ino, Result};

use super::pack::Pack;
use super::translate::node_of;
use crate::file::{Attr, Dirents, FileKind, Lock, LockKind, Statfs};

/// Length of an answer's header, bytes.
pub const OUT_HEADER_LEN: usize = 16;
/// Length of an entry, bytes.
pub const ENTRY_LEN: usize = 128;
const ATTR_LEN: usize = 88;

/// Flags of an opened file.
#[expect(missing_docs, reason = "each is the kernel's FOPEN flag of that name")]
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// How long the kernel may believe a name and attributes without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Valid {
    /// The name.
    pub entry: Duration,
    /// The attributes.
    pub attr: Duration,
}

/// The header of an answer of `len` bytes of body: an errno, or none for success.
#[must_use]
pub fn out_header(unique: u64, error: Option<Errno>, len: usize) -> [u8; OUT_HEADER_LEN] {
    header(unique, error.map_or(0, |errno| -i32::from(errno.raw())), len)
}

fn header(unique: u64, error: i32, len: usize) -> [u8; OUT_HEADER_LEN] {
    let mut out = Pack::<OUT_HEADER_LEN>::new();
    out.u32(u32::try_from(OUT_HEADER_LEN + len).unwrap_or(u32::MAX));
    out.u32(error.cast_unsigned()).u64(unique);
    out.finish()
}

/// A whole message of several parts.
pub(super) fn message(unique: u64, error: i32, parts: &[&[u8]]) -> Vec<u8> {
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut message = Vec::with_capacity(OUT_HEADER_LEN + len);
    message.extend_from_slice(&header(unique, error, len));
    parts.iter().for_each(|part| message.extend_from_slice(part));
    message
}

fn put_attr<const N: usize>(out: &mut Pack<N>, attr: &Attr) {
    out.u64(node_of(attr.ino)).u64(attr.size).u64(attr.blocks);
    for time in [attr.atime, attr.mtime, attr.ctime] {
        out.u64(time.sec.cast_unsigned());
    }
    for time in [attr.atime, attr.mtime, attr.ctime] {
        out.u32(time.nsec);
    }
    out.u32(attr.mode).u32(attr.nlink).u32(attr.uid).u32(attr.gid);
    out.u32(attr.rdev).u32(attr.blksize).u32(0);
}

fn put_entry<const N: usize>(out: &mut Pack<N>, attr: &Attr, valid: Valid) {
    // The generation stays 0: an inode number is never given out twice.
    out.u64(node_of(attr.ino)).u64(0);
    out.u64(valid.entry.as_secs()).u64(valid.attr.as_secs());
    out.u32(valid.entry.subsec_nanos()).u32(valid.attr.subsec_nanos());
    put_attr(out, attr);
}

/// Answers LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
#[must_use]
pub fn entry(attr: &Attr, valid: Valid) -> [u8; ENTRY_LEN] {
    let mut out = Pack::new();
    put_entry(&mut out, attr, valid);
    out.finish()
}

/// Answers LOOKUP of a name that does not exist, and may be remembered as such.
#[must_use]
pub fn negative_entry(valid: Duration) -> [u8; ENTRY_LEN] {
    let mut out = Pack::new();
    out.u64(0).u64(0).u64(valid.as_secs()).u64(0).u32(valid.subsec_nanos()).u32(0).skip(ATTR_LEN);
    out.finish()
}

/// Answers GETATTR and SETATTR.
#[must_use]
pub fn attr(attr: &Attr, valid: Duration) -> [u8; 104] {
    let mut out = Pack::new();
    out.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0);
    put_attr(&mut out, attr);
    out.finish()
}

/// Mask of `STATX_BASIC_STATS`, without and with the creation time.
const STATX_BASIC: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;

/// Answers STATX.
#[must_use]
pub fn statx(attr: &Attr, valid: Duration) -> [u8; 288] {
    let mut out = Pack::new();
    out.u64(valid.as_secs()).u32(valid.subsec_nanos()).u32(0).skip(16);
    out.u32(STATX_BASIC | STATX_BTIME).u32(attr.blksize).u64(0);
    out.u32(attr.nlink).u32(attr.uid).u32(attr.gid);
    out.u16(u16::try_from(attr.mode & 0xffff).unwrap_or(0)).u16(0);
    out.u64(node_of(attr.ino)).u64(attr.size).u64(attr.blocks).u64(0);
    for time in [attr.atime, attr.crtime, attr.ctime, attr.mtime] {
        out.u64(time.sec.cast_unsigned()).u32(time.nsec).u32(0);
    }
    let (major, minor) = device(attr.rdev);
    out.u32(major).u32(minor).skip(8 + 14 * 8);
    out.finish()
}

/// Major and minor number of a 32-bit device number: `mmm MMM mm`, 12 bits of major in the middle.
fn device(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

/// Answers OPEN and OPENDIR.
#[must_use]
pub fn opened(fh: u64, fopen_flags: u32) -> [u8; 16] {
    let mut out = Pack::new();
    out.u64(fh).u32(fopen_flags).u32(0).finish()
}

/// Answers CREATE and TMPFILE.
#[must_use]
pub fn created(attr: &Attr, valid: Valid, fh: u64, fopen_flags: u32) -> [u8; ENTRY_LEN + 16] {
    let mut out = Pack::new();
    put_entry(&mut out, attr, valid);
    out.u64(fh).u32(fopen_flags).u32(0).finish()
}

/// Answers WRITE and COPY_FILE_RANGE, and the size asked by GETXATTR and LISTXATTR.
#[must_use]
pub fn size(len: u32) -> [u8; 8] {
    let mut out = Pack::new();
    out.u32(len).u32(0).finish()
}

/// Answers LSEEK and COPY_FILE_RANGE_64.
#[must_use]
pub fn offset(offset: u64) -> [u8; 8] {
    offset.to_le_bytes()
}

/// Answers STATFS.
#[must_use]
pub fn statfs(figures: &Statfs) -> [u8; 80] {
    let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let block = word(figures.block_size);
    let mut out = Pack::new();
    out.u64(figures.blocks).u64(figures.blocks_free).u64(figures.blocks_available);
    out.u64(figures.files).u64(figures.files_free);
    // The kernel refuses longer names before it asks, whatever the volume could hold.
    let name_max = figures.name_max.min(NAME_MAX_KERNEL as u64);
    out.u32(block).u32(word(name_max)).u32(block).skip(28);
    out.finish()
}

/// Answers GETLK.
#[must_use]
pub fn lock(lock: &Lock) -> [u8; 24] {
    let kind = match lock.kind {
        LockKind::Read => 0,
        LockKind::Write => 1,
        LockKind::Unlock => 2,
    };
    let mut out = Pack::new();
    // The kernel's files end at the largest signed offset.
    let end = lock.end.min(i64::MAX.cast_unsigned());
    out.u64(lock.start).u64(end).u32(kind).u32(lock.pid).finish()
}

/// What a directory listing is made of.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    /// With attributes (READDIRPLUS)?
    pub plus: bool,
    /// Where the kernel goes on: its offset.
    pub offset: u64,
    /// The directory.
    pub ino: Ino,
    /// The directory above it.
    pub parent: Ino,
    /// How long entries may be believed.
    pub valid: Valid,
}

/// Offsets of a listing's own entries. The volume's cookies are never among them.
const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;

impl Listing {
    /// What the volume's part starts after: its cookie.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        if self.offset <= AFTER_DOT_DOT { 0 } else { self.offset }
    }

    /// Room its own entries `.` and `..` take, bytes. An entry of the volume takes in the kernel's
    /// form exactly what it takes in [`crate::file::Dirent`]'s.
    #[must_use]
    pub fn own_len(&self) -> usize {
        let each = if self.plus { ENTRY_LEN + 32 } else { 32 };
        let entries = AFTER_DOT_DOT.saturating_sub(self.offset);
        each * usize::try_from(entries).unwrap_or(0)
    }

    /// Encodes `.`, `..` and the volume's entries into `out`; `seen` hears of each inode the kernel
    /// gets to know. `EPROTO` for malformed entries.
    pub fn encode(
        &self,
        payload: &[u8],
        out: &mut Vec<u8>,
        mut seen: impl FnMut(&Attr),
    ) -> Result<()> {
        let own = [(AFTER_DOT, &b"."[..], self.ino), (AFTER_DOT_DOT, b"..", self.parent)];
        for (after, name, ino) in own {
            if self.offset < after {
                if self.plus {
                    // Node 0: the kernel takes no reference for these two.
                    out.extend_from_slice(&[0; ENTRY_LEN]);
                }
                push_dirent(out, ino, after, FileKind::Directory, name);
            }
        }
        for found in Dirents::new(payload) {
            let found = found?;
            if self.plus {
                let attr = found.attr.as_ref().ok_or(Errno::EPROTO)?;
                out.extend_from_slice(&entry(attr, self.valid));
                seen(attr);
            }
            push_dirent(out, found.ino, found.cookie, found.kind, found.name);
        }
        Ok(())
    }
}

fn push_dirent(out: &mut Vec<u8>, ino: Ino, after: u64, kind: FileKind, name: &[u8]) {
    let mut fixed = Pack::<24>::new();
    fixed.u64(node_of(ino)).u64(after).u32(u32::try_from(name.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(&fixed.u32(u32::from(kind.dirent_type())).finish());
    out.extend_from_slice(name);
    out.resize(out.len().next_multiple_of(8), 0);
}
