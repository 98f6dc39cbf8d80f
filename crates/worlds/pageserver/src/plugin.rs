//! A plug-in: an application of the director in C, in a process of its own.
//!
//! ```text
//!  a thread of the DPU side                            a process of its own
//!   batch of questions ---- memory both have ----> off_pred, off_func, cache, invalidate
//!   answers, checked   <---- one batch at a time --  of a shared object (outboard_offload.h)
//! ```
//!
//! Each thread that asks has a process of its own, so a plug-in is never called by two threads, and
//! what one does wrong costs what that thread had asked. While a batch is out the next one
//! gathers: the busier it is, the more messages share a crossing.
//!
//! What holds, whatever a plug-in does:
//! * nothing it says is followed that is not within its bounds (`plugin::exchange` of `dds`);
//! * a batch that is not answered in [`PluginOptions::limit`], a process that ended, an answer that
//!   cannot be one: the process is killed, what was asked is the host's, and so is everything until
//!   a new process is ready. That is started after a pause, which doubles up to half a minute;
//! * a process sees no descriptor, no variable and no memory of the DPU side's but its own area,
//!   may make few system calls once it is loaded (`confine`), and dies with the thread that started
//!   it.
//!
//! What does not hold: a plug-in that is wrong without failing gives wrong answers; what it does
//! while it is loaded (constructors, `outboard_offload`) is as the user it runs as.

mod area;
mod asking;
mod channel;
mod maintainer;
mod sys;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outboard_dds::dpu::offload::plugin::{Declared, Frames};
use serde_json::{Value, json};

pub use asking::Asking;
pub use maintainer::PluginMaintainer;
pub use sys::child::host;

/// A plug-in that can be loaded, and what it says of itself.
#[derive(Clone, Debug)]
pub struct Plugin {
    options: PluginOptions,
    profile: Profile,
}

impl Plugin {
    /// Loads it once, to see.
    ///
    /// # Errors
    /// Why it cannot be used, for whoever named it.
    pub fn probe(options: PluginOptions) -> Result<Plugin, String> {
        let profile = channel::probe(&options)?;
        Ok(Plugin { options, profile })
    }

    /// What it says of itself.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What happened so far, of all its processes.
    #[must_use]
    pub fn counts(&self) -> &PluginCounts {
        &self.options.counts
    }

    /// The same for a status, whenever it is asked for.
    pub fn figures(&self) -> impl Fn() -> Value + Send + use<> {
        let counts = Arc::clone(&self.options.counts);
        move || {
            let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
            json!({
                "starts": of(&counts.starts),
                "faults": of(&counts.faults),
                "batches": of(&counts.batches),
                "questions": of(&counts.questions),
            })
        }
    }

    /// The application as far as it is declared.
    #[must_use]
    pub fn declared(&self) -> Declared {
        Declared { messages: self.profile.messages, answers: self.profile.answers }
    }
}

/// What a plug-in says of itself when it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name, for people.
    pub name: String,
    /// How messages of clients are told apart.
    pub messages: Frames,
    /// And answers of the host.
    pub answers: Frames,
    /// Whether it wants to be told of writes.
    pub caches: bool,
    /// And of reads.
    pub invalidates: bool,
}

/// How a plug-in is run.
#[derive(Clone, Debug)]
pub struct PluginOptions {
    /// The program that loads it: one that calls [`host`].
    pub program: PathBuf,
    /// What that is told before the shared object's path.
    pub args: Vec<OsString>,
    /// The shared object.
    pub object: PathBuf,
    /// Longest a batch may take, of the wall's clock.
    pub limit: Duration,
    /// What happened, of all its processes.
    pub counts: Arc<PluginCounts>,
}

impl PluginOptions {
    /// The defaults, for this object, loaded by `program` with `args`.
    #[must_use]
    pub fn new(program: PathBuf, args: Vec<OsString>, object: PathBuf) -> PluginOptions {
        let limit = Duration::from_secs(1);
        PluginOptions { program, args, object, limit, counts: Arc::default() }
    }
}

/// What happened.
#[derive(Debug, Default)]
pub struct PluginCounts {
    /// Processes started.
    pub starts: AtomicU64,
    /// Processes killed or lost.
    pub faults: AtomicU64,
    /// Batches answered.
    pub batches: AtomicU64,
    /// Questions in them.
    pub questions: AtomicU64,
}
