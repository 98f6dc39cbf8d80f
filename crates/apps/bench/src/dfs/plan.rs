//! Who is compared, and at what.

use std::io;
use std::path::PathBuf;

use outboard_base::Rng;

use super::Figure9;
use super::cluster::Cluster;
use crate::fs::reach::Reach;
use crate::fs::subject::{Ask, DPU, HOST, Subject};

/// Bytes of an operation.
pub(super) const SMALL: usize = 8192;

/// What is measured together.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// Random blocks of a file, direct; or seeks behind the end, which ask nobody.
    Bytes { write: bool, seeks: bool },
    /// Empty files made, looked at, and removed.
    Names,
}

impl Job {
    /// All, in their order.
    pub(super) const ALL: &[Job] = &[
        Job::Bytes { write: false, seeks: false },
        Job::Bytes { write: true, seeks: false },
        Job::Names,
        Job::Bytes { write: false, seeks: true },
    ];

    /// What its measurements are called.
    pub(super) fn operations(self) -> &'static [&'static str] {
        match self {
            Job::Bytes { seeks: true, .. } => &["seek"],
            Job::Bytes { write: false, .. } => &["random read"],
            Job::Bytes { write: true, .. } => &["random write"],
            Job::Names => &["create", "stat", "unlink"],
        }
    }
}

/// Offsets of random blocks within `span` bytes, the same of each thread each time.
pub(super) fn blocks(thread: u64, span: u64) -> impl FnMut() -> u64 + Send {
    let (mut rng, all) = (Rng::new(thread), (span / SMALL as u64).max(1));
    move || rng.below(all) * SMALL as u64
}

/// One client of the volume, and the way to it. The way goes before what serves it.
pub(super) struct Contestant {
    pub(super) name: &'static str,
    /// The measuring process has the host's side in it.
    pub(super) past_kernel: bool,
    pub(super) reach: Reach,
    pub(super) subject: Subject,
    /// Where others attach to it.
    data: Option<PathBuf>,
}

/// All clients, and the cluster.
pub(super) struct Field {
    pub(super) contestants: Vec<Contestant>,
    cluster: Cluster,
}

impl Drop for Field {
    /// Backwards: who uses a client goes before who serves it.
    fn drop(&mut self) {
        while self.contestants.pop().is_some() {}
    }
}

impl Field {
    /// Starts the cluster and all clients, each with its file made.
    pub(super) fn new(figure: &Figure9, mut progress: impl FnMut(&str)) -> io::Result<Field> {
        progress("starting a cluster");
        let nodes = format!("--nodes={}", figure.nodes);
        let cluster = Cluster::up(&figure.program, &figure.dir.join("cluster"), &[&nodes], false)?;
        let mut field = Field { contestants: Vec::new(), cluster };
        for name in ["standard", "host", "dpu"] {
            field.mounted(figure, name)?;
        }
        field.past_the_kernel("host", "host library", "host-library")?;
        field.past_the_kernel("dpu", "dpu library", "dpu-library")?;
        for contestant in &field.contestants {
            progress(&format!("making the file of {}", contestant.name));
            contestant.reach.make(figure.file_len)?;
        }
        Ok(field)
    }

    fn mounted(&mut self, figure: &Figure9, name: &'static str) -> io::Result<()> {
        let store = format!("--store={}", self.cluster.store);
        let ask =
            Ask { dir: &figure.dir, program: &figure.program, flags: &[&store], apart: false };
        let client = format!("--client={name}");
        // A client in the mount's process ends with it: so that the mounts are alike, all do.
        let mut flags = vec![client.as_str(), "--cache=none", "--on-mount-loss=end"];
        let without = figure.without.as_ref().map(|list| format!("--without={list}"));
        flags.extend(without.as_deref().filter(|_| name != "standard"));
        let mut subject = Subject::outboard(&ask, name, &flags)?;
        if name != "dpu" {
            // The client is in the mount's process: there is no DPU side.
            subject.processes.retain(|(whose, _)| whose != DPU);
        }
        subject.processes.extend(self.cluster.processes.iter().cloned());
        // DMAs are no figure of this.
        let data = subject.data.take();
        let reach = Reach::kernel(&subject.dir, None, name);
        self.contestants.push(Contestant { name, past_kernel: false, reach, subject, data });
        Ok(())
    }

    /// The same volume through the client of `of`, from this process.
    fn past_the_kernel(
        &mut self,
        of: &str,
        name: &'static str,
        file: &'static str,
    ) -> io::Result<()> {
        let none = || io::Error::other("there is no client to attach to");
        let of = self.contestants.iter().find(|one| one.name == of).ok_or_else(none)?;
        let mut subject = Subject::client(&of.subject, name);
        if of.name == "host" {
            // The mount's process is where the client is.
            let its = of.subject.processes.iter().filter(|(whose, _)| whose == HOST);
            subject.processes.extend(its.cloned());
        }
        let reach = Reach::client(of.data.as_deref().ok_or_else(none)?, 0, file)?;
        let data = None;
        self.contestants.push(Contestant { name, past_kernel: true, reach, subject, data });
        Ok(())
    }
}
