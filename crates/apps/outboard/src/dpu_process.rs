//! The DPU side as a process of its own: started, adopted, and started again when it dies.
//!
//! `run` never assumes that it is the parent: a DPU side that outlived an earlier `run` is adopted.
//! Whether one lives is asked of its socket, not of a pid file.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::exit::{Code, Failure};
use crate::program;
use crate::restarts::Restarts;
use crate::settings::Settings;

/// Time a new DPU side has to open its volume: recovery after a crash reads what was pending.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Starts and restarts the DPU side of one volume.
#[derive(Debug)]
pub(crate) struct DpuProcess {
    settings: Settings,
    socket: PathBuf,
    child: Option<Child>,
    /// One was started or adopted.
    was_there: bool,
    restarts: Restarts,
}

/// How a DPU side came to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It already lived.
    Adopted,
    /// It was started now.
    Started,
}

impl DpuProcess {
    pub(crate) fn new(settings: Settings) -> DpuProcess {
        let socket = settings.socket();
        let restarts = Restarts::default();
        DpuProcess { settings, socket, child: None, was_there: false, restarts }
    }

    /// Makes sure that a DPU side listens: adopts the living one or starts one and waits for it.
    pub(crate) fn ensure(&mut self) -> Result<Found, Failure> {
        if self.listens() {
            self.was_there = true;
            self.restarts.serves();
            return Ok(Found::Adopted);
        }
        let status = self.ended();
        if self.child.is_none() {
            if self.was_there {
                let pause = self.restarts.died();
                tracing::warn!(?status, ?pause, "the DPU side ended; starting it again");
                std::thread::sleep(pause);
            }
            self.spawn()?;
        }
        self.wait_until_it_listens()
    }

    fn listens(&self) -> bool {
        outboard_attach::link::connect(&self.socket).is_ok()
    }

    /// The status of a child that ended, which is then forgotten.
    fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        self.child = None;
        Some(status)
    }

    /// Starts the program again as `outboard dpu`, in a process group of its own, so that Ctrl-C at
    /// the terminal reaches only `run`, which then unmounts before it stops the DPU side.
    fn spawn(&mut self) -> Result<(), Failure> {
        let mut program = program::this()
            .map_err(|error| Failure::internal(format!("cannot find this program: {error}")))?;
        let log = self.settings.data().join("dpu.log");
        let cannot = |what: String| move |error| Failure::internal(format!("{what}: {error}"));
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log)
            .map_err(cannot(format!("cannot write the log {}", log.display())))?;
        let child = program
            .arg("dpu")
            .args(self.settings.to_flags()?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(out)
            .process_group(0)
            .spawn()
            .map_err(cannot("cannot start the DPU side".to_owned()))?;
        tracing::info!(pid = child.id(), log = %log.display(), "started the DPU side");
        self.child = Some(child);
        self.was_there = true;
        Ok(())
    }

    fn wait_until_it_listens(&mut self) -> Result<Found, Failure> {
        let end = Instant::now() + START_LIMIT;
        while Instant::now() < end {
            if self.listens() {
                self.restarts.serves();
                return Ok(Found::Started);
            }
            if let Some(status) = self.ended() {
                let code = match status.code() {
                    Some(2) => Code::Usage,
                    Some(4) => Code::Data,
                    _ => Code::Failed,
                };
                return Err(Failure::new(code, self.last_words(status)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(Failure::internal(format!(
            "the DPU side did not open its volume in {} s; see {}",
            START_LIMIT.as_secs(),
            self.settings.data().join("dpu.log").display()
        )))
    }

    /// Why it ended: its own last message, which names the remedy.
    fn last_words(&self, status: ExitStatus) -> String {
        let log = self.settings.data().join("dpu.log");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().rev().find_map(|line| line.strip_prefix("outboard: ")).map_or_else(
            || format!("the DPU side ended at its start ({status}); see {}", log.display()),
            str::to_owned,
        )
    }

    /// Waits for a DPU side that was told to shut down; `false` if it still runs after `limit`.
    pub(crate) fn wait_for_end(&mut self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while Instant::now() < end {
            let child_ended = self.child.is_none() || self.ended().is_some();
            if child_ended && !self.listens() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}
