//! The page server's world: sockets of the traffic director, and what serves files.

pub mod bells;
pub mod host;
mod keeper;
pub mod library;
pub mod plugin;
pub mod server;
pub mod tcp;
mod watch;
