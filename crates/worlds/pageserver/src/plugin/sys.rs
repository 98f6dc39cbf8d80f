//! The part of plug-ins that is C: its structures, the process that loads an object, and what that
//! process may do. Unsafe code stands in this folder and in the packet sockets' only.

pub(super) mod abi;
pub(super) mod child;
pub(super) mod confine;
