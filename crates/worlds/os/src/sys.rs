//! System calls and shared memory that Rust has no safe words for, each behind a function that any
//! caller may use. Beside this folder unsafe code stands in the reactor's (`medium/ring`) only.

pub mod descriptors;
pub mod flusher;
pub mod futex;
pub mod shm;
pub mod signals;
pub mod writing;
