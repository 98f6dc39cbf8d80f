//! Signatures of the namespace side that are still to be filled.
#![expect(clippy::unused_async, reason = "signatures first")]

use outboard_base::{Errno, Fh, Ino, Result};
use outboard_kv::Kv;
use outboard_kv::medium::Medium;
use outboard_wire::file::{Reply, Setattr};

use crate::context::Context;
use crate::{Answer, Kvfs};

macro_rules! pending {
    ($($name:ident($($arg:ty),*) -> $reply:ty;)*) => {
        impl<K: Kv, M: Medium> Kvfs<K, M> {
            $(pub(crate) async fn $name(&self, _: &Context<'_>, $(_: $arg),*) -> Result<$reply> {
                Err(Errno::ENOSYS)
            })*
        }
    };
}

pending! {
    lookup(Ino, &[u8]) -> Reply;
    forget(Ino) -> Reply;
    getattr(Ino) -> Reply;
    setattr(Ino, Fh, &Setattr) -> Reply;
    readlink(Ino) -> Answer;
    symlink(Ino, &[u8], &[u8]) -> Reply;
    mknod(Ino, &[u8], u32, u32, u32) -> Reply;
    mkdir(Ino, &[u8], u32, u32) -> Reply;
    unlink(Ino, &[u8]) -> Reply;
    rmdir(Ino, &[u8]) -> Reply;
    rename((Ino, &[u8]), (Ino, &[u8]), u32) -> Reply;
    link(Ino, Ino, &[u8]) -> Reply;
    open_file(Ino, u32) -> Reply;
    create(Ino, &[u8], u32, u32, u32) -> Reply;
    tmpfile(Ino, u32, u32, u32) -> Reply;
    release(Ino, Fh, u64) -> Reply;
    opendir(Ino) -> Reply;
    readdir(Ino, Fh, u64, u32, bool) -> Answer;
    releasedir(Ino, Fh) -> Reply;
    getxattr(Ino, &[u8], u32) -> Answer;
    setxattr(Ino, &[u8], &[u8], u32) -> Reply;
    listxattr(Ino, u32) -> Answer;
    removexattr(Ino, &[u8]) -> Reply;
    access(Ino, u32) -> Reply;
    reclaim(Ino, Fh, u32, bool) -> Reply;
}
