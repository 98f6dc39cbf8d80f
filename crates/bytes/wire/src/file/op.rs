//! Operation numbers. Numbers are never reused; gaps are free.

use outboard_base::{Errno, Result};

/// Which way payload (not headers) may travel with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No payload.
    None,
    /// Host to DPU: data written, a link target, an attribute value.
    ToDpu,
    /// DPU to host: data read, directory entries, a link target, attribute values.
    ToHost,
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $direction:ident, $changes:literal;)*) => {
        /// A file operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Op { $($(#[$doc])* $name = $number,)* }

        impl Op {
            /// Every operation, in the order of its number.
            pub const ALL: &[Op] = &[$(Op::$name),*];

            /// From the number on the wire; `ENOSYS` for one this version does not know.
            pub fn from_raw(raw: u16) -> Result<Op> {
                match raw { $($number => Ok(Op::$name),)* _ => Err(Errno::ENOSYS) }
            }

            /// Which way its payload travels.
            #[must_use]
            pub fn direction(self) -> Direction {
                match self { $(Op::$name => Direction::$direction,)* }
            }

            /// Whether it changes the volume, and so carries a sequence.
            #[must_use]
            pub fn changes(self) -> bool {
                match self { $(Op::$name => $changes,)* }
            }

            /// Its name in logs and tables.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => stringify!($name),)* }
            }
        }
    };
}

ops! {
    /// Nothing; measures the link.
    Noop = 0, None, false;
    /// Name to inode.
    Lookup = 1, None, false;
    /// The front-end no longer refers to an inode it was told of.
    Forget = 2, None, false;
    /// Attributes of an inode.
    Getattr = 3, None, false;
    /// Changes mode, owner, size or times.
    Setattr = 4, None, true;
    /// Target of a symbolic link.
    Readlink = 5, ToHost, false;
    /// Makes a symbolic link.
    Symlink = 6, ToDpu, true;
    /// Makes a file, device node, fifo or socket.
    Mknod = 7, None, true;
    /// Makes a directory.
    Mkdir = 8, None, true;
    /// Removes a name of a file.
    Unlink = 9, None, true;
    /// Removes an empty directory.
    Rmdir = 10, None, true;
    /// Moves, replaces or exchanges names.
    Rename = 11, None, true;
    /// Makes a hard link.
    Link = 12, None, true;
    /// Opens a file.
    Open = 13, None, true;
    /// Makes and opens a file.
    Create = 14, None, true;
    /// Makes and opens a file without a name.
    Tmpfile = 15, None, true;
    /// Reads data.
    Read = 16, ToHost, false;
    /// Writes data.
    Write = 17, ToDpu, true;
    /// One descriptor of an open file is being closed.
    Flush = 18, None, true;
    /// The last descriptor of an open file is closed.
    Release = 19, None, true;
    /// Makes a file (or directory) durable.
    Fsync = 20, None, false;
    /// Opens a directory.
    Opendir = 21, None, true;
    /// Reads directory entries.
    Readdir = 22, ToHost, false;
    /// Closes a directory.
    Releasedir = 23, None, true;
    /// Space and inodes of the volume.
    Statfs = 24, None, false;
    /// Reads an extended attribute.
    Getxattr = 25, ToHost, false;
    /// Writes an extended attribute.
    Setxattr = 26, ToDpu, true;
    /// Names of extended attributes.
    Listxattr = 27, ToHost, false;
    /// Removes an extended attribute.
    Removexattr = 28, None, true;
    /// May the caller read, write, execute?
    Access = 29, None, false;
    /// Which lock stands in the way?
    Getlk = 30, None, false;
    /// Takes or drops a lock.
    Setlk = 31, None, true;
    /// Gives up waiting for a lock.
    CancelLock = 32, None, true;
    /// Allocates, punches or zeroes a range.
    Fallocate = 33, None, true;
    /// Next data or hole.
    Lseek = 34, None, false;
    /// Copies a range between files inside the volume.
    CopyFileRange = 35, None, true;
    /// Makes the whole volume durable.
    Syncfs = 36, None, false;
    /// Hands in an open file again after a loss of the DPU side.
    Reclaim = 37, None, true;
    /// Hands the locks of a file back, which were the attachment's to decide.
    ReturnLocks = 38, ToDpu, false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_unknown_ones_are_refused() {
        for &op in Op::ALL {
            assert_eq!(Op::from_raw(op as u16), Ok(op));
        }
        assert_eq!(Op::from_raw(999), Err(Errno::ENOSYS));
    }
}
