//! The DPU side as a process of its own: started, adopted, and started again when it dies. Or what
//! stands for it in the mount's process, the client of a shared volume there (`--client host` and
//! `standard`): a thread, started again when the server's life or its own is over.
//!
//! `run` never assumes that it is the parent: a DPU side that outlived an earlier `run` is adopted.
//! Whether one lives is asked of its socket, not of a pid file. A client here adopts nobody: it has
//! the data directory for itself.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::commands::dpu::shared;
use crate::exit::{Code, Failure};
use crate::program;
use crate::restarts::Restarts;
use crate::settings::Settings;

/// Time a new DPU side has to open its volume: recovery after a crash reads what was pending.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Whoever was killed and still takes connections, as the kernel clears it away, is gone then.
const DYING_LIMIT: Duration = Duration::from_secs(2);

/// What was started.
#[derive(Debug)]
enum Running {
    Process(Child),
    /// In this process.
    Thread(JoinHandle<Result<(), Failure>>),
}

/// How it ended.
#[derive(Debug)]
enum Ended {
    Process(ExitStatus),
    Thread(Result<(), Failure>),
}

impl Running {
    /// How it ended, if it has.
    fn ended(self) -> Result<Ended, Running> {
        match self {
            Running::Process(mut child) => match child.try_wait() {
                Ok(Some(status)) => Ok(Ended::Process(status)),
                _ => Err(Running::Process(child)),
            },
            Running::Thread(thread) if thread.is_finished() => {
                let panicked = |_| Err(Failure::internal("the thread of the client panicked"));
                Ok(Ended::Thread(thread.join().unwrap_or_else(panicked)))
            }
            Running::Thread(thread) => Err(Running::Thread(thread)),
        }
    }
}

/// Starts and restarts the DPU side of one volume.
#[derive(Debug)]
pub(crate) struct DpuProcess {
    settings: Settings,
    socket: PathBuf,
    running: Option<Running>,
    /// It was found to listen, whoever started it.
    serves: bool,
    restarts: Restarts,
    /// When the next may be started.
    not_before: Option<Instant>,
    /// When it is said that the one that was started does not serve yet.
    said_at: Option<Instant>,
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
        let (not_before, said_at) = (None, None);
        DpuProcess { settings, socket, running: None, serves: false, restarts, not_before, said_at }
    }

    /// Whether it is another process than this.
    pub(crate) fn is_apart(&self) -> bool {
        self.settings.client_here().is_none()
    }

    /// Makes sure that a DPU side listens: adopts the living one or starts one and waits for it.
    pub(crate) fn ensure(&mut self) -> Result<Found, Failure> {
        loop {
            if let Some(found) = self.tend()? {
                return Ok(found);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts one if none lives, which may be later if one has just died; how it came to serve, if
    /// it does. Waits for nobody. An error is why one that was started does not, said once; after
    /// one that ended the next call starts another.
    pub(crate) fn tend(&mut self) -> Result<Option<Found>, Failure> {
        let ended = self.ended();
        let here = self.running.is_some();
        // One that was started here listens until it ends; another than that may be found.
        if here && self.serves || (here || self.is_apart()) && self.listens() {
            (self.serves, self.said_at) = (true, None);
            self.restarts.serves();
            return Ok(Some(if here { Found::Started } else { Found::Adopted }));
        }
        if here {
            let is_late = self.said_at.take_if(|at| *at < Instant::now()).is_some();
            return if is_late { Err(self.late()) } else { Ok(None) };
        }
        let served = std::mem::take(&mut self.serves);
        if served || ended.is_some() {
            let pause = self.restarts.died();
            self.not_before = Some(Instant::now() + pause);
            match ended {
                Some(ended) if !served => return Err(self.why(ended)),
                ended => {
                    tracing::warn!(?ended, ?pause, "the {} ended; starting it again", self.name());
                }
            }
        }
        if self.not_before.is_none_or(|at| at <= Instant::now()) {
            self.said_at = Some(Instant::now() + START_LIMIT);
            match if self.is_apart() { self.spawn() } else { self.begin() } {
                Ok(running) => self.running = Some(running),
                Err(failure) => {
                    self.not_before = Some(Instant::now() + self.restarts.died());
                    return Err(failure);
                }
            }
        }
        Ok(None)
    }

    /// Whether it was found to listen when it was last looked after.
    pub(crate) fn serves(&self) -> bool {
        self.serves
    }

    /// Ends the one that was started here as no end in order does: what it answered is there, and
    /// what waits for it is not answered.
    pub(crate) fn kill(&mut self) {
        if let Some(Running::Process(child)) = &mut self.running {
            // One that is gone needs no signal.
            let _gone = child.kill();
        }
    }

    /// What it is called.
    fn name(&self) -> &'static str {
        if self.is_apart() { "DPU side" } else { "client" }
    }

    /// Refused if somebody serves the data directory already.
    fn is_alone(&self) -> Result<(), Failure> {
        let end = Instant::now() + DYING_LIMIT;
        while self.listens() {
            if Instant::now() > end {
                let data = self.settings.data();
                return Err(Failure::new(
                    Code::Data,
                    format!(
                        "{} is served already, by a DPU side or another mount's process: end that, \
                         or choose another data directory with --data",
                        data.display()
                    ),
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Also one that has no time to take who connects.
    fn listens(&self) -> bool {
        let connected = outboard_attach::link::connect(&self.socket);
        connected.map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |_| true)
    }

    /// How it ended, if it has; then it is forgotten.
    fn ended(&mut self) -> Option<Ended> {
        match self.running.take()?.ended() {
            Ok(ended) => Some(ended),
            Err(running) => {
                self.running = Some(running);
                None
            }
        }
    }

    /// Starts a client in this process.
    fn begin(&self) -> Result<Running, Failure> {
        self.is_alone()?;
        let settings = self.settings.clone();
        let thread = std::thread::Builder::new().name("client".to_owned());
        let thread = thread.spawn(move || shared::here(&settings));
        let thread = thread
            .map_err(|error| Failure::internal(format!("cannot start the client: {error}")))?;
        tracing::info!("started the client of the shared volume in this process");
        Ok(Running::Thread(thread))
    }

    /// Starts the program again as `outboard dpu`, in a process group of its own, so that Ctrl-C at
    /// the terminal reaches only `run`, which then unmounts before it stops the DPU side.
    fn spawn(&self) -> Result<Running, Failure> {
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
        Ok(Running::Process(child))
    }

    fn late(&self) -> Failure {
        Failure::internal(format!(
            "the {} did not open its volume in {} s; see {}",
            self.name(),
            START_LIMIT.as_secs(),
            self.settings.data().join("dpu.log").display()
        ))
    }

    /// Why it ended at its start.
    fn why(&self, ended: Ended) -> Failure {
        match ended {
            Ended::Process(status) => {
                let code = match status.code() {
                    Some(2) => Code::Usage,
                    Some(4) => Code::Data,
                    _ => Code::Failed,
                };
                Failure::new(code, self.last_words(status))
            }
            Ended::Thread(outcome) => {
                let early = || Failure::internal("the client ended at its start");
                outcome.err().unwrap_or_else(early)
            }
        }
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
            let has_ended = self.running.is_none() || self.ended().is_some();
            if has_ended && !self.listens() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}
