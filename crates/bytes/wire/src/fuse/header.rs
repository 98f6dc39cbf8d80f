//! The header of a kernel message, and its opcode.

use outboard_base::{Cred, Errno, Result, limits};

use crate::cursor::{bytes, u16_at, u32_at, u64_at};

/// Length of [`InHeader`], bytes.
pub const IN_HEADER_LEN: usize = 40;
/// Length of the header and fixed body of a WRITE: its data begins behind, bytes.
pub const WRITE_HEAD_LEN: usize = IN_HEADER_LEN + 40;

/// What every message of the kernel says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InHeader {
    /// Length of the whole message, bytes.
    pub len: u32,
    /// What is asked; see [`Opcode::from_raw`].
    pub opcode: u32,
    /// Names the request; the answer repeats it.
    pub unique: u64,
    /// The inode it is about, as the kernel numbers them.
    pub node: u64,
    /// File system user of the caller.
    pub uid: u32,
    /// File system group of the caller.
    pub gid: u32,
    /// Thread of the caller, 0 when the kernel asks for itself.
    pub pid: u32,
    /// Length of the extensions, units of 8 bytes.
    pub extensions: u16,
}

impl InHeader {
    /// Decodes; `EPROTO` when the message is shorter than a header.
    pub fn parse(from: &[u8]) -> Result<InHeader> {
        let from = bytes(from, 0, IN_HEADER_LEN)?;
        Ok(InHeader {
            len: u32_at(from, 0)?,
            opcode: u32_at(from, 4)?,
            unique: u64_at(from, 8)?,
            node: u64_at(from, 16)?,
            uid: u32_at(from, 24)?,
            gid: u32_at(from, 28)?,
            pid: u32_at(from, 32)?,
            extensions: u16_at(from, 36)?,
        })
    }

    /// Encodes, as a kernel does; for tests and for transports that carry FUSE.
    #[must_use]
    pub fn emit(&self) -> [u8; IN_HEADER_LEN] {
        let mut out = super::pack::Pack::<IN_HEADER_LEN>::new();
        out.u32(self.len).u32(self.opcode).u64(self.unique).u64(self.node);
        out.u32(self.uid).u32(self.gid).u32(self.pid).u16(self.extensions).u16(0);
        out.finish()
    }

    /// Splits what follows the header into body and extensions; `EPROTO` when they do not fit.
    pub fn split<'a>(&self, rest: &'a [u8]) -> Result<(&'a [u8], &'a [u8])> {
        let extensions = usize::from(self.extensions) * 8;
        let body = rest.len().checked_sub(extensions).ok_or(Errno::EPROTO)?;
        Ok((bytes(rest, 0, body)?, bytes(rest, body, extensions)?))
    }

    /// Who asks, with the supplementary groups the extensions name (at most
    /// [`limits::GROUPS_MAX`]).
    pub fn cred(&self, extensions: &[u8]) -> Result<Cred> {
        let groups = groups_in(extensions)?;
        Ok(Cred { uid: self.uid, gid: self.gid, pid: self.pid, groups })
    }
}

/// Extension that lists supplementary groups.
const EXT_GROUPS: u32 = 32;

/// The groups among extensions: each extension is `size u32, type u32, ...`, padded to 8 bytes.
fn groups_in(mut extensions: &[u8]) -> Result<Vec<u32>> {
    let mut groups = Vec::new();
    while !extensions.is_empty() {
        let (size, kind) = (u32_at(extensions, 0)? as usize, u32_at(extensions, 4)?);
        let own = bytes(extensions, 0, size)?;
        if size < 8 {
            return Err(Errno::EPROTO);
        }
        if kind == EXT_GROUPS {
            let count = u32_at(own, 8)? as usize;
            if count > limits::GROUPS_MAX {
                return Err(Errno::EPROTO);
            }
            for i in 0..count {
                groups.push(u32_at(own, 12 + 4 * i)?);
            }
        }
        extensions = extensions.get(size.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(groups)
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        /// What the kernel asks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode { $($(#[$doc])* $name = $number,)* }

        impl Opcode {
            /// Every opcode, in the order of its number.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];

            /// From the number; `ENOSYS` for one this version does not know.
            pub fn from_raw(raw: u32) -> Result<Opcode> {
                match raw { $($number => Ok(Opcode::$name),)* _ => Err(Errno::ENOSYS) }
            }

            /// Its name in logs.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Opcode::$name => stringify!($name),)* }
            }
        }
    };
}

opcodes! {
    /// Name to node.
    Lookup = 1;
    /// References dropped; never answered.
    Forget = 2;
    /// Attributes.
    Getattr = 3;
    /// Changes attributes.
    Setattr = 4;
    /// Target of a symbolic link.
    Readlink = 5;
    /// Makes a symbolic link.
    Symlink = 6;
    /// Makes a node.
    Mknod = 8;
    /// Makes a directory.
    Mkdir = 9;
    /// Removes a name.
    Unlink = 10;
    /// Removes a directory.
    Rmdir = 11;
    /// Moves a name.
    Rename = 12;
    /// Makes a hard link.
    Link = 13;
    /// Opens a file.
    Open = 14;
    /// Reads.
    Read = 15;
    /// Writes.
    Write = 16;
    /// Figures of the file system.
    Statfs = 17;
    /// Last close.
    Release = 18;
    /// Makes a file durable.
    Fsync = 20;
    /// Sets an extended attribute.
    Setxattr = 21;
    /// Reads an extended attribute.
    Getxattr = 22;
    /// Lists extended attributes.
    Listxattr = 23;
    /// Removes an extended attribute.
    Removexattr = 24;
    /// One close.
    Flush = 25;
    /// The handshake.
    Init = 26;
    /// Opens a directory.
    Opendir = 27;
    /// Reads a directory.
    Readdir = 28;
    /// Closes a directory.
    Releasedir = 29;
    /// Makes a directory durable.
    Fsyncdir = 30;
    /// Which lock is in the way?
    Getlk = 31;
    /// Takes a lock or fails.
    Setlk = 32;
    /// Takes a lock, waiting.
    Setlkw = 33;
    /// Asks for permission.
    Access = 34;
    /// Makes and opens a file.
    Create = 35;
    /// The caller of another request got a signal.
    Interrupt = 36;
    /// Block of a file on its device.
    Bmap = 37;
    /// The file system is being unmounted.
    Destroy = 38;
    /// Device control.
    Ioctl = 39;
    /// Readiness.
    Poll = 40;
    /// Answer to a notification that asked for data.
    NotifyReply = 41;
    /// Many references dropped; never answered.
    BatchForget = 42;
    /// Allocates or punches.
    Fallocate = 43;
    /// Reads a directory with attributes.
    Readdirplus = 44;
    /// Moves a name, with flags.
    Rename2 = 45;
    /// Next data or hole.
    Lseek = 46;
    /// Copies a range between files.
    CopyFileRange = 47;
    /// Maps a range of a file into a shared window (virtio-fs).
    SetupMapping = 48;
    /// Unmaps.
    RemoveMapping = 49;
    /// Makes the file system durable.
    Syncfs = 50;
    /// Makes and opens a nameless file.
    Tmpfile = 51;
    /// Extended attributes of an inode (`statx(2)`).
    Statx = 52;
    /// Copies a range; the answer has 64 bits.
    CopyFileRange64 = 53;
}
