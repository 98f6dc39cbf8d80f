//! POSIX error numbers as a value (Linux numbering; the wire carries the number).

use std::fmt;

/// A POSIX error number. The only error type that crosses the bus.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(u16);

/// Result of anything that answers with an errno.
pub type Result<T> = std::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = concat!($text, ".")] pub const $name: Errno = Errno($number);)*

            /// The symbolic name, as in `errno(3)`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self.0 { $($number => stringify!($name),)* _ => "E?" }
            }

            fn text(self) -> &'static str {
                match self.0 { $($number => $text,)* _ => "unknown error" }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "resource temporarily unavailable";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "cross-device link";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in system";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "inappropriate ioctl for device";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    ESPIPE = 29, "illegal seek";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    ERANGE = 34, "result too large";
    EDEADLK = 35, "resource deadlock would occur";
    ENAMETOOLONG = 36, "file name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "function not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many symbolic links";
    ENODATA = 61, "no data available";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    EUCLEAN = 117, "structure needs cleaning";
    EOPNOTSUPP = 95, "operation not supported";
    ENOTCONN = 107, "not connected";
    EINPROGRESS = 115, "operation now in progress";
    ETIMEDOUT = 110, "timed out";
    ESTALE = 116, "stale file handle";
    EDQUOT = 122, "disk quota exceeded";
    ECANCELED = 125, "operation cancelled";
}

impl Errno {
    /// From a raw number. Zero and numbers beyond Linux's 1..=4095 become `EIO`, so that nothing
    /// the other side writes can be mistaken for success.
    #[must_use]
    pub fn from_raw(number: u32) -> Errno {
        match u16::try_from(number) {
            Ok(n @ 1..=4095) => Errno(n),
            _ => Errno::EIO,
        }
    }

    /// The number, 1..=4095.
    #[must_use]
    pub fn raw(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.name())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(i32::from(errno.0))
    }
}

impl From<&std::io::Error> for Errno {
    /// The errno an I/O error carries, or `EIO` when it carries none.
    fn from(error: &std::io::Error) -> Self {
        error.raw_os_error().and_then(|n| u32::try_from(n).ok()).map_or(Errno::EIO, Errno::from_raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_reads_as_success() {
        assert_eq!(Errno::from_raw(0), Errno::EIO);
        assert_eq!(Errno::from_raw(4096), Errno::EIO);
        assert_eq!(Errno::from_raw(u32::MAX), Errno::EIO);
        assert_eq!(Errno::from_raw(2), Errno::ENOENT);
        assert_eq!(Errno::from_raw(2).to_string(), "no such file or directory (ENOENT)");
    }
}
