//! Being built.
#![forbid(unsafe_code)]

pub mod capture;
pub mod faulty;
pub mod udp;
