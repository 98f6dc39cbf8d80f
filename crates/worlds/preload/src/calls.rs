//! What is answered here: the calls of libc in terms of the volume.

pub(crate) mod aim;
pub(crate) mod dirs;
pub(crate) mod files;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod open;
