//! The page server's figures (DDS, section 8).
//!
//! * [`ring`]: figure 17, rings of messages between host and DPU by the number of producers;
//! * [`servers`]: figures 14, 15, 25 and 26, the key-value server in its forms, under clients;
//! * [`files`]: figure 18, file requests through the rings, with and without copies;
//! * [`table`]: figure 22, the cache table.

pub mod files;
pub mod ring;
pub mod servers;
pub mod table;
