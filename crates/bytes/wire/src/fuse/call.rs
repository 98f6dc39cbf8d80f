//! The bodies of kernel messages: one variant an opcode, fields and names borrowed from the
//! message.

use outboard_base::{Errno, Result};

use super::header::Opcode;
use crate::cursor::{bytes, u32_at, u64_at};

/// Which attributes a SETATTR changes.
#[expect(missing_docs, reason = "each is the kernel's FATTR flag of that name")]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of GETATTR and STATX.
pub mod getattr_flags {
    /// The file handle is given.
    pub const FH: u32 = 1;
}

/// Flags beside those of `open(2)` in OPEN and CREATE.
pub mod open_in_flags {
    /// Truncation by a caller without CAP_FSETID: clear set-id bits.
    pub const KILL_SUIDGID: u32 = 1;
}

/// Flags of WRITE.
pub mod write_in_flags {
    /// Write-back of cached pages; the file handle is any open one.
    pub const CACHE: u32 = 1;
    /// Clear set-id bits.
    pub const KILL_SUIDGID: u32 = 4;
}

/// Flags of the lock calls.
pub mod lock_flags {
    /// `flock(2)`, not `fcntl(2)`.
    pub const FLOCK: u32 = 1;
}

/// Flags beside those of `setxattr(2)`.
pub mod setxattr_flags {
    /// Clear the set-group-id bit with an access ACL.
    pub const ACL_KILL_SGID: u32 = 1;
}

/// What the handshake decided about the shape of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Dialect {
    /// SETXATTR has its long form.
    pub setxattr_ext: bool,
}

/// The body of SETATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "as in the kernel's record")]
pub struct SetattrIn {
    pub valid: u32,
    pub fh: u64,
    pub size: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub atime_nsec: u32,
    pub mtime_nsec: u32,
    pub ctime_nsec: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The body of the lock calls. `kind` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK` (0, 1, 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in the kernel's record")]
pub struct LockIn {
    pub fh: u64,
    pub owner: u64,
    pub start: u64,
    pub end: u64,
    pub kind: u32,
    pub pid: u32,
    pub flags: u32,
}

/// The pairs (node, references dropped) of a BATCH_FORGET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let pair = (u64_at(self.0, 0).ok()?, u64_at(self.0, 8).ok()?);
        self.0 = self.0.get(16..).unwrap_or_default();
        Some(pair)
    }
}

/// What the kernel asks, without its header. The data of a WRITE travels beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the kernel's records")]
pub enum Call<'a> {
    Lookup { name: &'a [u8] },
    Forget { count: u64 },
    BatchForget(Forgets<'a>),
    Getattr { fh: Option<u64> },
    Statx { fh: Option<u64> },
    Setattr(SetattrIn),
    Readlink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    Mknod { name: &'a [u8], mode: u32, rdev: u32, umask: u32 },
    Mkdir { name: &'a [u8], mode: u32, umask: u32 },
    Unlink { name: &'a [u8] },
    Rmdir { name: &'a [u8] },
    Rename { name: &'a [u8], to_node: u64, to_name: &'a [u8], flags: u32 },
    Link { node: u64, name: &'a [u8] },
    Open { flags: u32, open_flags: u32 },
    Create { name: &'a [u8], flags: u32, mode: u32, umask: u32, open_flags: u32 },
    Tmpfile { flags: u32, mode: u32, umask: u32, open_flags: u32 },
    Read { fh: u64, offset: u64, len: u32, flags: u32 },
    Write { fh: u64, offset: u64, len: u32, write_flags: u32, flags: u32 },
    Statfs,
    Release { fh: u64, release_flags: u32 },
    Flush { fh: u64, owner: u64 },
    Fsync { fh: u64, data_only: bool },
    Setxattr { name: &'a [u8], value: &'a [u8], flags: u32, setxattr_flags: u32 },
    Getxattr { name: &'a [u8], len: u32 },
    Listxattr { len: u32 },
    Removexattr { name: &'a [u8] },
    Init,
    Opendir { flags: u32 },
    Readdir { fh: u64, offset: u64, len: u32 },
    Readdirplus { fh: u64, offset: u64, len: u32 },
    Releasedir { fh: u64 },
    Fsyncdir { fh: u64, data_only: bool },
    Getlk(LockIn),
    Setlk(LockIn),
    Setlkw(LockIn),
    Access { mask: u32 },
    Interrupt { unique: u64 },
    Fallocate { fh: u64, offset: u64, len: u64, mode: u32 },
    Lseek { fh: u64, offset: u64, whence: u32 },
    CopyFileRange { fh: u64, offset: u64, to_node: u64, to_fh: u64, to_offset: u64, len: u64 },
    CopyFileRange64 { fh: u64, offset: u64, to_node: u64, to_fh: u64, to_offset: u64, len: u64 },
    Syncfs,
    Destroy,
    Bmap,
    Ioctl,
    Poll,
    NotifyReply,
    Mapping,
}

/// A cursor over a body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    /// The next `len` bytes.
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = bytes(self.0, 0, len)?;
        self.0 = self.0.get(len..).unwrap_or_default();
        Ok(taken)
    }

    /// The next zero-terminated string.
    fn name(&mut self) -> Result<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Errno::EPROTO)?;
        let name = self.take(end)?;
        self.take(1)?;
        Ok(name)
    }
}

impl<'a> Call<'a> {
    /// Decodes a body (without header and extensions). `EPROTO` when it ends too early.
    pub fn parse(opcode: Opcode, body: &'a [u8], dialect: Dialect) -> Result<Call<'a>> {
        let mut rest = Body(body);
        Ok(match opcode {
            Opcode::Lookup => Call::Lookup { name: rest.name()? },
            Opcode::Forget => Call::Forget { count: u64_at(body, 0)? },
            Opcode::BatchForget => Call::BatchForget(forgets(rest)?),
            Opcode::Getattr => Call::Getattr { fh: optional_fh(body)? },
            Opcode::Statx => Call::Statx { fh: optional_fh(body)? },
            Opcode::Setattr => Call::Setattr(setattr(rest.take(88)?)?),
            Opcode::Readlink => Call::Readlink,
            Opcode::Symlink => Call::Symlink { name: rest.name()?, target: rest.name()? },
            Opcode::Mknod => mknod(rest)?,
            Opcode::Mkdir => mkdir(rest)?,
            Opcode::Unlink => Call::Unlink { name: rest.name()? },
            Opcode::Rmdir => Call::Rmdir { name: rest.name()? },
            Opcode::Rename => rename(rest)?,
            Opcode::Rename2 => rename2(rest)?,
            Opcode::Link => Call::Link { node: u64_at(rest.take(8)?, 0)?, name: rest.name()? },
            Opcode::Open => Call::Open { flags: u32_at(body, 0)?, open_flags: u32_at(body, 4)? },
            Opcode::Opendir => Call::Opendir { flags: u32_at(body, 0)? },
            Opcode::Create => create(rest)?,
            Opcode::Tmpfile => tmpfile(body)?,
            Opcode::Read => read(body)?,
            Opcode::Write => write(body)?,
            Opcode::Statfs => Call::Statfs,
            Opcode::Release => release(body)?,
            Opcode::Releasedir => Call::Releasedir { fh: u64_at(body, 0)? },
            Opcode::Flush => Call::Flush { fh: u64_at(body, 0)?, owner: u64_at(body, 16)? },
            Opcode::Fsync => fsync(body)?,
            Opcode::Fsyncdir => fsyncdir(body)?,
            Opcode::Setxattr => setxattr(rest, dialect)?,
            Opcode::Getxattr => getxattr(rest)?,
            Opcode::Listxattr => Call::Listxattr { len: u32_at(body, 0)? },
            Opcode::Removexattr => Call::Removexattr { name: rest.name()? },
            Opcode::Init => Call::Init,
            Opcode::Readdir => readdir(body)?,
            Opcode::Readdirplus => readdirplus(body)?,
            Opcode::Getlk => Call::Getlk(lock(body)?),
            Opcode::Setlk => Call::Setlk(lock(body)?),
            Opcode::Setlkw => Call::Setlkw(lock(body)?),
            Opcode::Access => Call::Access { mask: u32_at(body, 0)? },
            Opcode::Interrupt => Call::Interrupt { unique: u64_at(body, 0)? },
            Opcode::Fallocate => fallocate(body)?,
            Opcode::Lseek => lseek(body)?,
            Opcode::CopyFileRange => copy_file_range(body)?,
            Opcode::CopyFileRange64 => copy_file_range_64(body)?,
            Opcode::Syncfs => Call::Syncfs,
            Opcode::Destroy => Call::Destroy,
            Opcode::Bmap => Call::Bmap,
            Opcode::Ioctl => Call::Ioctl,
            Opcode::Poll => Call::Poll,
            Opcode::NotifyReply => Call::NotifyReply,
            Opcode::SetupMapping | Opcode::RemoveMapping => Call::Mapping,
        })
    }
}

fn forgets(mut rest: Body<'_>) -> Result<Forgets<'_>> {
    let count = u32_at(rest.take(8)?, 0)? as usize;
    let len = count.checked_mul(16).ok_or(Errno::EPROTO)?;
    Ok(Forgets(rest.take(len)?))
}

fn mknod(mut rest: Body<'_>) -> Result<Call<'_>> {
    let fixed = rest.take(16)?;
    Ok(Call::Mknod {
        name: rest.name()?,
        mode: u32_at(fixed, 0)?,
        rdev: u32_at(fixed, 4)?,
        umask: u32_at(fixed, 8)?,
    })
}

fn mkdir(mut rest: Body<'_>) -> Result<Call<'_>> {
    let fixed = rest.take(8)?;
    Ok(Call::Mkdir { name: rest.name()?, mode: u32_at(fixed, 0)?, umask: u32_at(fixed, 4)? })
}

fn rename(mut rest: Body<'_>) -> Result<Call<'_>> {
    let to_node = u64_at(rest.take(8)?, 0)?;
    Ok(Call::Rename { to_node, flags: 0, name: rest.name()?, to_name: rest.name()? })
}

fn rename2(mut rest: Body<'_>) -> Result<Call<'_>> {
    let fixed = rest.take(16)?;
    let (to_node, flags) = (u64_at(fixed, 0)?, u32_at(fixed, 8)?);
    Ok(Call::Rename { to_node, flags, name: rest.name()?, to_name: rest.name()? })
}

fn create(mut rest: Body<'_>) -> Result<Call<'_>> {
    let fixed = rest.take(16)?;
    Ok(Call::Create {
        name: rest.name()?,
        flags: u32_at(fixed, 0)?,
        mode: u32_at(fixed, 4)?,
        umask: u32_at(fixed, 8)?,
        open_flags: u32_at(fixed, 12)?,
    })
}

fn tmpfile(body: &[u8]) -> Result<Call<'_>> {
    Ok(Call::Tmpfile {
        flags: u32_at(body, 0)?,
        mode: u32_at(body, 4)?,
        umask: u32_at(body, 8)?,
        open_flags: u32_at(body, 12)?,
    })
}

/// Handle, offset and length of READ, READDIR and READDIRPLUS.
fn part(body: &[u8]) -> Result<(u64, u64, u32)> {
    bytes(body, 0, 40)?;
    Ok((u64_at(body, 0)?, u64_at(body, 8)?, u32_at(body, 16)?))
}

fn read(body: &[u8]) -> Result<Call<'_>> {
    let (fh, offset, len) = part(body)?;
    Ok(Call::Read { fh, offset, len, flags: u32_at(body, 32)? })
}

fn readdir(body: &[u8]) -> Result<Call<'_>> {
    let (fh, offset, len) = part(body)?;
    Ok(Call::Readdir { fh, offset, len })
}

fn readdirplus(body: &[u8]) -> Result<Call<'_>> {
    let (fh, offset, len) = part(body)?;
    Ok(Call::Readdirplus { fh, offset, len })
}

fn write(body: &[u8]) -> Result<Call<'_>> {
    Ok(Call::Write {
        fh: u64_at(body, 0)?,
        offset: u64_at(body, 8)?,
        len: u32_at(body, 16)?,
        write_flags: u32_at(body, 20)?,
        flags: u32_at(body, 32)?,
    })
}

fn release(body: &[u8]) -> Result<Call<'_>> {
    Ok(Call::Release { fh: u64_at(body, 0)?, release_flags: u32_at(body, 12)? })
}

fn fsync(body: &[u8]) -> Result<Call<'_>> {
    Ok(Call::Fsync { fh: u64_at(body, 0)?, data_only: data_only(body)? })
}

fn fsyncdir(body: &[u8]) -> Result<Call<'_>> {
    Ok(Call::Fsyncdir { fh: u64_at(body, 0)?, data_only: data_only(body)? })
}

fn getxattr(mut rest: Body<'_>) -> Result<Call<'_>> {
    let len = u32_at(rest.take(8)?, 0)?;
    Ok(Call::Getxattr { name: rest.name()?, len })
}

fn fallocate(body: &[u8]) -> Result<Call<'_>> {
    Ok(Call::Fallocate {
        fh: u64_at(body, 0)?,
        offset: u64_at(body, 8)?,
        len: u64_at(body, 16)?,
        mode: u32_at(body, 24)?,
    })
}

fn lseek(body: &[u8]) -> Result<Call<'_>> {
    Ok(Call::Lseek { fh: u64_at(body, 0)?, offset: u64_at(body, 8)?, whence: u32_at(body, 16)? })
}

fn copy_file_range(body: &[u8]) -> Result<Call<'_>> {
    let [fh, offset, to_node, to_fh, to_offset, len] = copy(body)?;
    Ok(Call::CopyFileRange { fh, offset, to_node, to_fh, to_offset, len })
}

fn copy_file_range_64(body: &[u8]) -> Result<Call<'_>> {
    let [fh, offset, to_node, to_fh, to_offset, len] = copy(body)?;
    Ok(Call::CopyFileRange64 { fh, offset, to_node, to_fh, to_offset, len })
}

fn optional_fh(body: &[u8]) -> Result<Option<u64>> {
    let fh = u64_at(body, 8)?;
    Ok((u32_at(body, 0)? & getattr_flags::FH != 0).then_some(fh))
}

fn data_only(body: &[u8]) -> Result<bool> {
    Ok(u32_at(body, 8)? & 1 != 0)
}

fn copy(body: &[u8]) -> Result<[u64; 6]> {
    let mut words = [0; 6];
    for (i, word) in words.iter_mut().enumerate() {
        *word = u64_at(body, 8 * i)?;
    }
    Ok(words)
}

fn lock(body: &[u8]) -> Result<LockIn> {
    Ok(LockIn {
        fh: u64_at(body, 0)?,
        owner: u64_at(body, 8)?,
        start: u64_at(body, 16)?,
        end: u64_at(body, 24)?,
        kind: u32_at(body, 32)?,
        pid: u32_at(body, 36)?,
        flags: u32_at(body, 40)?,
    })
}

fn setattr(body: &[u8]) -> Result<SetattrIn> {
    Ok(SetattrIn {
        valid: u32_at(body, 0)?,
        fh: u64_at(body, 8)?,
        size: u64_at(body, 16)?,
        atime: u64_at(body, 32)?,
        mtime: u64_at(body, 40)?,
        ctime: u64_at(body, 48)?,
        atime_nsec: u32_at(body, 56)?,
        mtime_nsec: u32_at(body, 60)?,
        ctime_nsec: u32_at(body, 64)?,
        mode: u32_at(body, 68)?,
        uid: u32_at(body, 76)?,
        gid: u32_at(body, 80)?,
    })
}

fn setxattr<'a>(mut rest: Body<'a>, dialect: Dialect) -> Result<Call<'a>> {
    let fixed = rest.take(if dialect.setxattr_ext { 16 } else { 8 })?;
    let setxattr_flags = if dialect.setxattr_ext { u32_at(fixed, 8)? } else { 0 };
    let name = rest.name()?;
    let value = rest.take(u32_at(fixed, 0)? as usize)?;
    Ok(Call::Setxattr { name, value, flags: u32_at(fixed, 4)?, setxattr_flags })
}
