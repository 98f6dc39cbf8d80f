//! The applications of the page server (DDS, the paper's section 9): a key-value server in the
//! manner of FASTER that speaks RESP2, and a page server for a log-structured database.
//!
//! Each has a host side, which is a whole server of its own over a file ([`device`]), and an
//! `Application` object that the DPU side's director runs, so that reads of what lies in files are
//! answered without the host. Without the DPU side the same host side serves alone (the plain
//! form).

#![forbid(unsafe_code)]

mod connections;
pub mod device;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod kv;
pub mod pages;
pub mod resp;
