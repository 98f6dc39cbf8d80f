//! One worker: a directory, its model, its journal.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outboard_base::Rng;
use rustix::io::Errno;

use super::model::Model;
use super::operation::Operation;
use crate::{Result, context};

/// What a worker may meet while it runs.
#[derive(Debug, Clone, Copy)]
pub struct Mode {
    /// One in four operations is a sync.
    pub syncs: bool,
    /// The mount may die under it, which ends its run. Otherwise every answer must be right.
    pub mount_may_die: bool,
}

/// A worker and everything it knows to be answered.
pub struct Worker {
    dir: PathBuf,
    rng: Rng,
    model: Model,
    /// Started and not answered when the mount died.
    open: Option<Operation>,
    journal: BufWriter<File>,
    /// Operations answered so far.
    pub answered: u64,
}

impl Worker {
    /// A worker on an empty directory that it makes itself.
    pub fn new(dir: &Path, journal: &Path, seed: u64) -> Result<Self> {
        context(fs::create_dir(dir), || format!("cannot make {}", dir.display()))?;
        let file = File::create(journal);
        let file = context(file, || format!("cannot write {}", journal.display()))?;
        Ok(Self {
            dir: dir.to_path_buf(),
            rng: Rng::new(seed),
            model: Model::default(),
            open: None,
            journal: BufWriter::new(file),
            answered: 0,
        })
    }

    /// Does operations until `stop`, or until the mount dies where it may.
    pub fn run(&mut self, mode: Mode, stop: &Arc<AtomicBool>) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let operation = Operation::draw(&mut self.rng, mode.syncs);
            self.note(&format!("{} start {operation:?}", self.answered))?;
            let answer = operation.perform(&self.dir);
            let errno = answer.as_ref().err().and_then(Errno::from_io_error);
            // A write that crosses pages may end short when the mount dies: no errno then.
            let lost = answer.is_err() && errno.is_none_or(is_loss);
            if mode.mount_may_die && lost {
                self.note("open")?;
                self.open = Some(operation);
                return Ok(());
            }
            let expected = self.model.apply(&operation);
            let right = match (&answer, expected) {
                (Ok(()), Ok(())) => true,
                (Err(_), Err(expected)) => errno == Some(expected),
                _ => false,
            };
            if !right {
                return Err(format!(
                    "{}: `{operation:?}` answered {answer:?}, expected {expected:?}",
                    self.dir.display()
                ));
            }
            self.note(&format!("{} answered {errno:?}", self.answered))?;
            self.answered += 1;
        }
        Ok(())
    }

    /// Whether the mount died under it: an operation was begun and not answered.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.open.is_some()
    }

    /// Compares the directory with what was answered; what is there is the truth from then on.
    pub fn verify(&mut self) -> Result<()> {
        let found = Model::observe(&self.dir)?;
        let verdict = match &self.open {
            Some(operation) => self
                .model
                .compare_open(operation, &found)
                .map_err(|error| format!("with `{operation:?}` in flight: {error}")),
            None => self.model.compare(&found),
        };
        verdict.map_err(|error| format!("{}: {error}", self.dir.display()))?;
        self.model = found;
        self.open = None;
        self.note("verified")
    }

    fn note(&mut self, line: &str) -> Result<()> {
        // Flushed by the line: the journal is read when something hangs.
        let written = writeln!(self.journal, "{line}").and_then(|()| self.journal.flush());
        context(written, || "cannot write the journal".to_owned())
    }
}

/// What system calls answer when the process behind a mount is gone, or all space is taken.
fn is_loss(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOTCONN
            | Errno::CONNABORTED
            | Errno::IO
            | Errno::NODEV
            | Errno::TIMEDOUT
            | Errno::NOSPC
    )
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The control: on a plain directory every answer is right by the model, or the model is wrong.
    #[test]
    fn the_model_agrees_with_a_plain_directory() {
        let base = std::env::temp_dir().join(format!("outboard-worker-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        for seed in 0..8 {
            let dir = base.join(format!("dir-{seed}"));
            let mut worker = Worker::new(&dir, &base.join("journal"), seed).unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let timer = Arc::clone(&stop);
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(150));
                timer.store(true, Ordering::Relaxed);
            });
            let mode = Mode { syncs: false, mount_may_die: false };
            worker.run(mode, &stop).unwrap();
            worker.verify().unwrap();
            assert!(worker.answered > 0, "seed {seed} did nothing");
        }
        fs::remove_dir_all(&base).unwrap();
    }
}
