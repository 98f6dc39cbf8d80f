//! The page server's processes: the sockets and the user-space stack of the traffic director, the
//! threads that serve files and connections, the children in which plug-ins run, and the file
//! library of a host.

pub mod backup;
pub mod host;
pub mod library;
mod maintainer;
pub mod plain;
pub mod plugin;
pub mod server;
pub mod tcp;
pub mod wakeups;
mod watchdog;
