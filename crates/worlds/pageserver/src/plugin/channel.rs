//! One plug-in process, as the thread that asks it sees it: started, asked, killed, started again.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use outboard_dds::dpu::offload::plugin::area::Stage;
use rustix::event::EventfdFlags;

use super::area::SharedArea;
use super::sys::confine;
use super::{Plugin, PluginOptions, Profile};
use outboard_os::wakeup::{Notifier, Wakeup};

/// Time a process has to load its object.
const START_LIMIT: Duration = Duration::from_secs(10);
/// A process that is waited for is looked at this often.
const LOOK: Duration = Duration::from_millis(2);
/// First pause before a process is started again; doubles up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(30);
/// A process that lived this long is not thought to fail at once again.
const STABLE: Duration = Duration::from_secs(60);

/// What a look at a channel finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nobody is there to be asked. What was asked is lost.
    Away,
    /// It can be asked.
    Idle,
    /// It works on what it was asked.
    Busy,
    /// What it said, and it can be asked again.
    Said(Vec<u8>),
}

/// A process.
struct Running {
    process: Child,
    area: SharedArea,
    doorbell: OwnedFd,
    born: Instant,
    is_ready: bool,
    /// Number of the batch that was asked last, and until when it may take, if it is out.
    number: u32,
    out_until: Option<Instant>,
    next_look: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already if it cannot be killed.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// One process after another.
pub(super) struct Channel {
    options: PluginOptions,
    notifier: Notifier,
    running: Option<Running>,
    pause: Duration,
    /// When the next one may be started.
    next_start: Instant,
    faults: u32,
    /// What every process must say of itself.
    profile: Profile,
    waits: bool,
}

impl Channel {
    /// None is started yet. A process that has something to say notifies `wakeup`.
    pub(super) fn new(plugin: Plugin, wakeup: &Wakeup) -> io::Result<Channel> {
        Ok(Channel {
            options: plugin.options,
            notifier: wakeup.notifier()?,
            running: None,
            pause: PAUSE_FIRST,
            next_start: Instant::now(),
            faults: 0,
            profile: plugin.profile,
            waits: false,
        })
    }

    /// Starts a process and waits until it can be asked, or has failed.
    pub(super) fn begin(&mut self) {
        let until = Instant::now() + START_LIMIT;
        while self.look(Instant::now()) == Found::Away
            && self.running.is_some()
            && Instant::now() < until
        {
            std::thread::sleep(LOOK);
        }
    }

    /// What there is; starts a process when it is time.
    pub(super) fn look(&mut self, now: Instant) -> Found {
        let Some(running) = &mut self.running else {
            if now >= self.next_start
                && let Err(error) = self.start(now)
            {
                self.fail(now, &format!("it cannot be started: {error}"));
            }
            return Found::Away;
        };
        match (running.out_until, running.is_ready) {
            (None, true) => Found::Idle,
            (Some(_), _) if running.area.is_said(running.number) => {
                running.out_until = None;
                match running.area.said() {
                    Some(said) => Found::Said(said),
                    None => self.fail(now, "its answer is larger than can be"),
                }
            }
            (until, is_ready) => {
                if now < running.next_look {
                    return if is_ready { Found::Busy } else { Found::Away };
                }
                running.next_look = now + LOOK;
                self.look_closely(now, until)
            }
        }
    }

    /// Whether it lives, and whether it takes too long.
    fn look_closely(&mut self, now: Instant, until: Option<Instant>) -> Found {
        let Some(running) = &mut self.running else { return Found::Away };
        if !running.is_ready {
            return match running.loaded() {
                None => Found::Away,
                Some(Ok(profile)) if profile == self.profile => self.is_back(),
                Some(Ok(_)) => self.fail(now, "it is another than was loaded first: start anew"),
                Some(Err(why)) => self.fail(now, &why),
            };
        }
        if let Some(status) = running.process.try_wait().ok().flatten() {
            return self.fail(now, &format!("its process ended ({status})"));
        }
        if until.is_some_and(|until| now >= until) {
            let limit = self.options.limit.as_millis();
            return self.fail(now, &format!("it did not answer within {limit} ms"));
        }
        Found::Busy
    }

    fn is_back(&mut self) -> Found {
        if let Some(running) = &mut self.running {
            running.is_ready = true;
        }
        if self.faults > 0 {
            tracing::info!(plugin = %self.options.object.display(), "the plug-in is back");
        }
        Found::Idle
    }

    /// Kills the process: it did what it may not. What was asked is lost.
    pub(super) fn fail(&mut self, now: Instant, why: &str) -> Found {
        let lived = self.running.take().map(|running| now.saturating_duration_since(running.born));
        if lived.is_some_and(|lived| lived >= STABLE) {
            self.pause = PAUSE_FIRST;
        }
        self.next_start = now + self.pause;
        self.options.counts.faults.fetch_add(1, Ordering::Relaxed);
        let (plugin, again) = (self.options.object.display(), self.pause.as_millis());
        if self.faults == 0 {
            tracing::warn!(
                %plugin, why, again_ms = again,
                "the plug-in failed; the host answers until it is started again. Mend the plug-in \
                 (its functions must return, and stay within their memory); further failures are \
                 logged as debug"
            );
        } else {
            tracing::debug!(%plugin, why, again_ms = again, "the plug-in failed again");
        }
        self.faults = self.faults.saturating_add(1);
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
        Found::Away
    }

    /// Asks a batch. Only one that is [`Found::Idle`], or has just [`Found::Said`], is asked.
    pub(super) fn ask(&mut self, now: Instant, batch: &[u8], questions: usize) {
        let limit = self.options.limit;
        let Some(running) = &mut self.running else { return };
        running.number = running.number.wrapping_add(1);
        running.out_until = Some(now + limit);
        running.next_look = now + LOOK;
        let counts = &self.options.counts;
        counts.batches.fetch_add(1, Ordering::Relaxed);
        counts.questions.fetch_add(questions as u64, Ordering::Relaxed);
        if running.area.ask(running.number, batch) {
            // A full counter has notified.
            let _notified = rustix::io::write(&running.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Whether there is a process.
    pub(super) fn is_there(&self) -> bool {
        self.running.is_some()
    }

    /// Whether a batch is out.
    pub(super) fn is_busy(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.out_until.is_some())
    }

    /// Whether what was asked is answered: to be taken by [`Channel::look`].
    pub(super) fn has_news(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            running.out_until.is_some() && running.area.is_said(running.number)
        })
    }

    /// Says that the asking thread sleeps, or not: then an answer notifies.
    pub(super) fn set_waits(&mut self, waits: bool) {
        if let Some(running) = self.running.as_ref().filter(|_| waits || self.waits) {
            running.area.set_waits(waits);
        }
        self.waits = waits;
    }

    /// When to look again even if nobody notifies.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        match &self.running {
            None => Some(self.next_start),
            Some(running) if running.is_ready && running.out_until.is_none() => None,
            Some(running) => Some(running.next_look.max(now)),
        }
    }

    fn start(&mut self, now: Instant) -> io::Result<()> {
        self.running = Some(Running::start(&self.options, &self.notifier, now)?);
        Ok(())
    }
}

impl Running {
    fn start(options: &PluginOptions, notifier: &Notifier, born: Instant) -> io::Result<Running> {
        let area = SharedArea::create()?;
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let mut command = Command::new(&options.program);
        command
            .args(&options.args)
            .arg(&options.object)
            .arg(std::process::id().to_string())
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let handed = [area.fd().as_raw_fd(), doorbell.as_raw_fd(), notifier.fd().as_raw_fd()];
        confine::confine(&mut command, handed);
        let process = command.spawn()?;
        options.counts.starts.fetch_add(1, Ordering::Relaxed);
        Ok(Running {
            process,
            area,
            doorbell,
            born,
            is_ready: false,
            number: 0,
            out_until: None,
            next_look: born,
        })
    }

    /// What became of its loading; `None` if that goes on.
    fn loaded(&mut self) -> Option<Result<Profile, String>> {
        let ended = self.process.try_wait().ok().flatten();
        match self.area.stage() {
            Stage::Ready => {
                let why = "it does not describe its messages and answers: see struct ofl_frames";
                Some(self.area.profile().ok_or_else(|| why.to_owned()))
            }
            Stage::Refused => Some(Err(self.area.refusal())),
            Stage::Loading => match ended {
                Some(status) => Some(Err(format!("it ended while it was loaded ({status})"))),
                None if self.born.elapsed() > START_LIMIT => {
                    Some(Err("it could not be loaded in time".to_owned()))
                }
                None => None,
            },
        }
    }
}

/// Loads a plug-in once, to see what it says of itself.
pub(super) fn probe(options: &PluginOptions) -> Result<Profile, String> {
    let said = |error: io::Error| format!("it cannot be started: {error}");
    let notifier = Wakeup::new().and_then(|wakeup| wakeup.notifier()).map_err(said)?;
    let mut running = Running::start(options, &notifier, Instant::now()).map_err(said)?;
    loop {
        if let Some(loaded) = running.loaded() {
            return loaded;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
