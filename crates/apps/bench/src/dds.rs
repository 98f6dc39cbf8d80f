//! The page server's figures (DDS, section 8).
//!
//! * [`ring`]: figure 17, rings of messages between host and DPU by the number of producers;
//! * [`servers`]: figures 14, 15, 24, 25 and 26, the two servers in their forms, under clients;
//! * [`director`]: figures 19, 21 and 23, the traffic director by itself, on processes of [`part`];
//! * [`net`]: network namespaces, for figure 19 between two devices;
//! * [`files`]: figure 18, file requests through the rings, with and without copies;
//! * [`table`]: figure 22, the cache table;
//! * [`targets`]: what is asked of them, and how it stands.

pub mod director;
pub mod files;
pub mod net;
pub mod part;
pub mod ring;
pub mod sample;
pub mod servers;
pub mod table;
pub mod targets;

mod client;
pub(crate) mod process;
mod requests;
