//! Attributes and file system figures as they travel.

use outboard_base::{Errno, Ino, Result, Timestamp};

use crate::cursor::{bytes, put_u32, put_u64, u32_at, u64_at};

/// Bits of a file's mode, as in `inode(7)`.
pub mod mode {
    /// Mask of the file kind.
    pub const S_IFMT: u32 = 0o170_000;
    /// Set-user-id.
    pub const S_ISUID: u32 = 0o4000;
    /// Set-group-id.
    pub const S_ISGID: u32 = 0o2000;
    /// Sticky.
    pub const S_ISVTX: u32 = 0o1000;
    /// Permissions with set-id and sticky bits.
    pub const PERMISSIONS: u32 = 0o7777;
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Socket.
    Socket = 12,
}

impl FileKind {
    /// From the `S_IFMT` bits of a mode; `EINVAL` if they name no kind.
    pub fn from_mode(mode: u32) -> Result<FileKind> {
        Ok(match (mode & mode::S_IFMT) >> 12 {
            1 => FileKind::Fifo,
            2 => FileKind::CharDevice,
            4 => FileKind::Directory,
            6 => FileKind::BlockDevice,
            8 => FileKind::Regular,
            10 => FileKind::Symlink,
            12 => FileKind::Socket,
            _ => return Err(Errno::EINVAL),
        })
    }

    /// The `S_IFMT` bits.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        u32::from(self as u8) << 12
    }

    /// The `d_type` of `readdir(3)`: the kind's bits, shifted down.
    #[must_use]
    pub fn dirent_type(self) -> u8 {
        self as u8
    }
}

/// Attributes of an inode.
///
/// ```text
///   0 ino u64      8 size u64     16 blocks u64 (512 B)   24 change u64
///  32 atime s i64 40 mtime s     48 ctime s              56 crtime s
///  64 atime ns u32 68 mtime ns   72 ctime ns             76 crtime ns
///  80 mode u32    84 nlink u32   88 uid u32              92 gid u32
///  96 rdev u32   100 blksize u32 104 flags u32          108 reserved, zero, to 128
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes allocated.
    pub blocks: u64,
    /// Grows by at least one with every change of data or attributes.
    pub change: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub crtime: Timestamp,
    /// Kind, permissions, set-id and sticky bits.
    pub mode: u32,
    /// Names (for a directory: 2 plus its subdirectories).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as Linux encodes it in 32 bits.
    pub rdev: u32,
    /// Preferred size of I/O, bytes.
    pub blksize: u32,
    /// Reserved for inode flags; zero today.
    pub flags: u32,
}

impl Attr {
    /// Encoded length, bytes.
    pub const LEN: usize = 128;

    /// What this inode is.
    pub fn kind(&self) -> Result<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// Decodes and checks: the mode names a kind, nanoseconds are in range.
    pub fn decode(from: &[u8]) -> Result<Attr> {
        let from = bytes(from, 0, Self::LEN)?;
        let time = |sec: usize, nsec: usize| -> Result<Timestamp> {
            Timestamp::new(u64_at(from, sec)?.cast_signed(), u32_at(from, nsec)?)
                .ok_or(Errno::EPROTO)
        };
        let attr = Attr {
            ino: Ino(u64_at(from, 0)?),
            size: u64_at(from, 8)?,
            blocks: u64_at(from, 16)?,
            change: u64_at(from, 24)?,
            atime: time(32, 64)?,
            mtime: time(40, 68)?,
            ctime: time(48, 72)?,
            crtime: time(56, 76)?,
            mode: u32_at(from, 80)?,
            nlink: u32_at(from, 84)?,
            uid: u32_at(from, 88)?,
            gid: u32_at(from, 92)?,
            rdev: u32_at(from, 96)?,
            blksize: u32_at(from, 100)?,
            flags: u32_at(from, 104)?,
        };
        attr.kind().map_err(|_| Errno::EPROTO)?;
        Ok(attr)
    }

    /// Encodes into the first [`Attr::LEN`] bytes of `into`.
    pub fn encode(&self, into: &mut [u8]) -> Result<()> {
        into.get_mut(..Self::LEN).ok_or(Errno::EPROTO)?.fill(0);
        put_u64(into, 0, self.ino.0)?;
        put_u64(into, 8, self.size)?;
        put_u64(into, 16, self.blocks)?;
        put_u64(into, 24, self.change)?;
        let times = [self.atime, self.mtime, self.ctime, self.crtime];
        for (i, time) in times.into_iter().enumerate() {
            put_u64(into, 32 + 8 * i, time.sec.cast_unsigned())?;
            put_u32(into, 64 + 4 * i, time.nsec)?;
        }
        let words =
            [self.mode, self.nlink, self.uid, self.gid, self.rdev, self.blksize, self.flags];
        for (i, word) in words.into_iter().enumerate() {
            put_u32(into, 80 + 4 * i, word)?;
        }
        Ok(())
    }
}

/// Figures of a volume, as in `statvfs(3)`; eight u64 on the wire, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statfs {
    /// Size of a block, bytes.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Blocks free to ordinary users (the reserve taken off).
    pub blocks_available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Inodes free.
    pub files_free: u64,
    /// Longest name, bytes.
    pub name_max: u64,
    /// Volume id.
    pub id: u64,
}

impl Statfs {
    /// Encoded length, bytes.
    pub const LEN: usize = 64;

    /// Decodes.
    pub fn decode(from: &[u8]) -> Result<Statfs> {
        Ok(Statfs {
            block_size: u64_at(from, 0)?,
            blocks: u64_at(from, 8)?,
            blocks_free: u64_at(from, 16)?,
            blocks_available: u64_at(from, 24)?,
            files: u64_at(from, 32)?,
            files_free: u64_at(from, 40)?,
            name_max: u64_at(from, 48)?,
            id: u64_at(from, 56)?,
        })
    }

    /// Encodes into the first [`Statfs::LEN`] bytes of `into`.
    pub fn encode(&self, into: &mut [u8]) -> Result<()> {
        let fields = [
            self.block_size,
            self.blocks,
            self.blocks_free,
            self.blocks_available,
            self.files,
            self.files_free,
            self.name_max,
            self.id,
        ];
        fields.into_iter().enumerate().try_for_each(|(i, field)| put_u64(into, 8 * i, field))
    }
}
