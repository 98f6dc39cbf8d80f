//! The coordinator: where the parts of a cluster agree on which of them there are.
//!
//! It keeps small texts by name, each with a version, and each either for good or for as long as a
//! *session* of who put it there goes on. A session goes on while its owner beats; when it is over
//! all that came with it goes at once. Nobody is called back: who wants to see a change looks.
//!
//! A part needs it to come and to go, never to read or write a file: while no coordinator answers
//! the parts that know each other work on.
//!
//! [`Table`] is the state of one, without I/O: that of the coordinator process, and of the twin in
//! memory. [`Keeper`] is what that process answers, [`Remote`] a part's way to it. [`Registrar`] is
//! how a part uses any, and [`Known`] how it keeps that up.

pub mod conformance;
mod keeper;
mod known;
#[cfg(test)]
mod memory;
mod registrar;
mod remote;
mod table;
#[cfg(test)]
mod tests;

use outboard_base::Result;

pub use keeper::{Keeper, Shelf, TERM};
pub use known::{Known, Standing};
pub use registrar::{Claim, Refusal, Registrar, Step, VOLUME, cluster_of};
pub use remote::{COORDINATOR, Remote};
pub use table::{Entry, Kept, Table};

/// A coordinator, as one part of a cluster reaches it, with the part's session.
///
/// `EIO` is the answer of one that cannot be reached: then it is not known whether what was asked
/// was done.
pub trait Coordinator {
    /// The session goes on, or begins.
    ///
    /// # Errors
    /// `ENOTCONN`, once, if it is over, and all that came with it gone: the next beat begins
    /// another. `EIO`.
    fn beat(&self) -> impl Future<Output = Result<()>>;

    /// What is kept under names that begin so, in the order of the names.
    ///
    /// # Errors
    /// `EIO`.
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<Entry>>>;

    /// Makes an entry where `version` is none, else puts it in the place of that of this version,
    /// at once: nobody finds none there. `stays`: it does not go with the session.
    ///
    /// # Errors
    /// `EEXIST` if there is one, `ENOENT` if there is none, `ESTALE` if its version is another,
    /// `ENOTCONN` if there is no session, `ENOSPC` if there are too many, `EIO`.
    fn put(
        &self,
        name: &str,
        value: &str,
        version: Option<u64>,
        stays: bool,
    ) -> impl Future<Output = Result<()>>;

    /// Takes an entry of this version away.
    ///
    /// # Errors
    /// `ENOENT`, `ESTALE`, `EIO`.
    fn remove(&self, name: &str, version: u64) -> impl Future<Output = Result<()>>;
}
