//! The page server's world: sockets of the traffic director, and what serves files.

pub mod tcp;
