//! The port for a volume's life, and what it says of itself in numbers nobody else interprets.

use std::future::Future;

use outboard_base::Result;

use crate::Volume;

/// Names and numbers, for people who look; the names are keys of the program's JSON.
pub type Figures = Vec<(&'static str, u64)>;

/// The outcome of a file system check.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Report {
    /// The first faults, a sentence each.
    pub findings: Vec<String>,
    /// How many there are in all.
    pub total: u64,
    /// Faults left out because others changed what they are about meanwhile.
    pub unsure: u64,
    /// What there is.
    pub counts: Figures,
}

impl Report {
    /// Adds a fault. The first of them are told, the rest counted.
    pub fn find(&mut self, what: String) {
        const TOLD: usize = 100;
        self.total += 1;
        if self.findings.len() < TOLD {
            self.findings.push(what);
        }
    }

    /// Takes in what another found: `of` says where.
    pub fn add(&mut self, of: &str, other: Report) {
        let findings = other.findings.into_iter();
        self.findings.extend(findings.map(|finding| format!("{of}: {finding}")));
        self.total += other.total;
        self.unsure += other.unsure;
        self.counts.extend(other.counts);
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.total == 0
    }
}

/// A volume with a life of its own. It is shared with the threads of a check and of its caches.
pub trait Housekeeping: Volume + Send + Sync {
    /// Everybody who held something before the start is back, or had the time to come.
    fn end_grace(&self) -> impl Future<Output = Result<()>>;

    /// One step of housekeeping; true if there is more to do at once.
    fn tidy(&self) -> impl Future<Output = Result<bool>>;

    /// Lock delegations that were recalled some seconds ago and did not come back end.
    fn expire_recalls(&self);

    /// Nobody asks for anything right now: called often, and does not wait.
    fn idle(&self);

    /// Whether a checkpoint is due: something to note down once nobody asks for anything.
    fn wants_checkpoint(&self) -> bool;

    /// Writes it.
    fn checkpoint(&self) -> impl Future<Output = Result<()>>;

    /// Makes everything answered durable: before an orderly end.
    fn sync(&self) -> impl Future<Output = Result<()>>;

    /// The file system check, beside other work.
    fn check(&self, contents: bool) -> impl Future<Output = Result<Report>>;

    /// Space, inodes, and what was written since the opening.
    fn figures(&self) -> Figures;
}
