//! The port every case speaks through: one request, one answer.

use std::time::Duration;

use outboard_base::{Cred, Result};
use outboard_wire::file::{Reply, Request};

pub mod directory;
pub mod in_process;
pub mod link;
mod memory;

/// What a front can show, so that a case asks no more of it and says why it skipped.
#[derive(Clone, Debug)]
pub struct Features {
    /// Name in reports.
    pub name: String,
    /// Longest name it carries, bytes.
    pub name_max: usize,
    /// Whether [`outboard_wire::file::Attr::change`] arrives (a system call has no such field).
    pub change_counter: bool,
    /// Whether the kernel stands between: it refuses some requests before the volume sees them, and
    /// owns the checks that need descriptors.
    pub kernel: bool,
    /// Whether lock owners are known to the volume by number (else by open file: no deadlock
    /// detection, no pid in `Getlk`).
    pub lock_owners: bool,
    /// Whether a wait for a lock can be given up.
    pub cancel_lock: bool,
    /// Whether requests are made as the credentials given (a process of a plain user can only be
    /// itself).
    pub any_cred: bool,
    /// Whether POSIX ACLs are stored and enforced.
    pub acl: bool,
    /// Whether what answers lives on between calls. If not, the close of what is not open may be
    /// taken for one whose answer was lost.
    pub steady: bool,
    /// Whether every read reaches who keeps access times. What a hybrid cache answers, or a node of
    /// a shared volume, does not.
    pub reads_seen: bool,
    /// Whether every write reaches the volume before it is answered. A kernel that collects them
    /// also knows of no hole.
    pub writes_seen: bool,
    /// Whether the volume is Outboard's (else a local file system that serves as the reference).
    pub outboard: bool,
}

/// One way to a volume. Requests go one at a time; a front that needs a session keeps it itself.
pub trait Front {
    /// What this front can show.
    fn features(&self) -> &Features;

    /// Answers `request` as the user `cred`. `payload` is what travels with it (data written, a
    /// target, a value); what comes back with the reply replaces the contents of `out`.
    fn call(
        &mut self,
        cred: &Cred,
        request: &Request<'_>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply>;

    /// Waits, at most `patience`, for the lock behind `ticket`: whether it was granted. An error is
    /// what the wait ended with.
    fn granted(&mut self, ticket: u64, patience: Duration) -> Result<bool>;

    /// Forgets every inode and handle learned since the last call, as an unmount would.
    fn settle(&mut self) -> Result<()>;

    /// Whether the volume is whole; what is wrong if not. A front that cannot look says nothing.
    fn verify(&mut self) -> std::result::Result<(), String> {
        Ok(())
    }
}
