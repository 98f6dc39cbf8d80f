//! A small world for the protocol: two clients, four nodes, one manager, and a network that does
//! what it likes. See `walk` for how it is driven and `oracle` for what is judged.

mod canaries;
mod client;
mod coded;
mod directed;
mod manager;
mod oracle;
mod walk;
mod world;
