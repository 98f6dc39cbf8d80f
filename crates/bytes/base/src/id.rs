//! Ids that cross floors. Each is a newtype, so that none is taken for another.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

id! {
    /// Inode number. 0 is the root directory (DPC 3.4); 1 is never given out, because FUSE calls
    /// the root 1 and the mount swaps the two. A number is never given out twice in a volume's
    /// life.
    Ino
}
id! {
    /// An open file or directory, as the answering side named it at open.
    Fh
}
id! {
    /// One attachment of one host-side process across losses of the DPU side: chosen at random by
    /// the host at its first attach and kept for its life.
    SessionId
}

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(0);
    /// The first number given out.
    pub const FIRST: Ino = Ino(2);
}

impl Fh {
    /// "No handle": the operation names the inode only.
    pub const NONE: Fh = Fh(0);
}
