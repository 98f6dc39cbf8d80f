//! The page server: GetPage@LSN for a log-structured database (the paper's section 9.1).
//!
//! The host applies log records to pages it keeps in memory and writes them back; the file holds a
//! whole, older state of each page, and a page says itself how new it is. So whoever answers, host
//! or DPU side, a page is never older than asked: what is not new enough yet is said to be so.
//!
//! Log records are durable at whoever sends them, until a `Sync` is answered: then what was
//! answered before it survives power loss here. A host that dies loses what it had not written; it
//! then says `Older`, and is sent the records again. Power loss amid the write of a page leaves the
//! version before it (`places`).

mod app;
pub mod client;
mod places;
mod server;
mod slots;
mod store;
pub mod wire;

pub use app::PagesApplication;
pub use server::{PageServer, Setup};
pub use store::check;
