//! The page server's figures (DDS, section 8).
//!
//! * [`ring`]: figure 17, rings of messages between host and DPU by the number of producers;
//! * [`table`]: figure 22, the cache table.

pub mod ring;
pub mod table;
