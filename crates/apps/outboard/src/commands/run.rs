//! `outboard run` and `outboard mount`: hold the mount of a volume, and have it served by a process
//! that may die (or, where that cannot be, serve it here).
//!
//! `run` also looks after the DPU side: starts or adopts it, starts it again when it dies, and
//! shuts it down at the end, unless another process is still attached to it.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use outboard_attach::host::{ConnectError, Host, HostOptions};
use outboard_attach::link::AttachFailure;
use outboard_dpc::host::{LossPolicy, Settings as Session};
use outboard_fuse::{Cache, Connected, Connection, MountError, MountFront, MountOptions};
use outboard_store::StoreName;
use outboard_store::directory::DataDirectory;
use outboard_wire::attach::{Company, Reason};
use rustix::process::{Pid, WaitOptions};

use super::status::{Dpu, Line, Status};
use super::umount;
use crate::dpu_process::{DpuProcess, Found};
use crate::exit::{Code, Failure};
use crate::handover::End;
use crate::log;
use crate::mount_process::{Kept, Served, end_of};
use crate::program;
use crate::say::say;
use crate::service;
use crate::settings::{CacheMode, OnDpuLoss, Settings, sixteenth_of_memory};
use crate::successor::{self, Asked, Invocation, rehearsed};
use crate::watch::{Happened, Watch};

/// Time for the DPU side to flush and end.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(60);
/// Time for a DPU side that was killed to be gone, before its silence is taken for something else.
const DYING_LIMIT: Duration = Duration::from_secs(10);
/// Time to wait at the end for programs that still use the mount, before it is detached lazily.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// So long the end may take before it is said what it waits for.
const PATIENCE: Duration = Duration::from_secs(15);
/// What is told within this is what was told before: a key pressed twice, a manager's two signals.
const SAME: Duration = Duration::from_secs(2);
/// So long a DPU side has to say who else uses it, before it is killed.
const AT_ONCE_LIMIT: Duration = Duration::from_secs(1);
/// So long a DPU side has to say what it does, beside hearing of signals: one that stands still
/// must not hold up who is told to end.
const ASIDE_LIMIT: Duration = Duration::from_millis(100);
/// How often it is looked at the beginning and at the end whether there is a DPU side.
const LOOK: Duration = Duration::from_millis(20);
/// How far the kernel reads ahead in a volume whose data lies in a pool: four requests of the
/// longest side by side. One at a time, each waited for the way there and back.
const READ_AHEAD_FAR: usize = 4 << 20;
/// How long the kernel believes names of a shared volume.
const VALID_SHARED: Duration = Duration::from_secs(1);
/// What a kernel may collect of writes on a small machine.
const COLLECTED_LEAST: u64 = 8 << 20;

/// How a process comes to a mount that another program holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TakeOver {
    /// It says whether it could.
    Rehearse,
    /// It does: its input is the mount.
    Now,
}

/// Starts or adopts the DPU side, mounts, and stays until told to end.
pub(crate) fn run(
    settings: Settings,
    mountpoint: &Path,
    take_over: Option<TakeOver>,
) -> Result<ExitCode, Failure> {
    let data = settings.data();
    // What can be refused is refused before anything is made.
    settings.of_the_dpu_side()?;
    settings.policies()?;
    settings.without()?;
    if settings.shared()?.is_none() {
        StoreName::of(&data, settings.store.as_deref())?;
    }
    let line =
        Invocation { command: "run", settings: settings.clone(), place: mountpoint.to_owned() };
    if let Some(step) = take_over {
        return taken(line, step, Some(DpuProcess::new(settings)));
    }
    settings.die_at()?;
    settings.mount_outlives()?;
    log::start(&settings)?;
    if settings.client_here().is_some() {
        program::is_behind_pages();
    }
    let is_there = data.exists();
    if is_there {
        DataDirectory::check(&data).map_err(|error| Failure::new(Code::Data, error.to_string()))?;
    }
    // A mount that is kept was made with the path as it is below.
    let whole = data.canonicalize().unwrap_or_else(|_| data.clone());
    let kept = kept_by_the_manager(&Settings { data: Some(whole), ..settings.clone() })?;
    // One that is kept and not served answers nobody.
    if kept.is_none() && clear_stale(mountpoint)? {
        let mountpoint = mountpoint.display();
        tracing::warn!(%mountpoint, "cleared the mount an earlier process left");
    }
    if !is_there {
        outboard_fuse::look(mountpoint).map_err(|error| umount::failure(&error))?;
    }
    std::fs::create_dir_all(&data).map_err(|error| {
        Failure::new(
            Code::Data,
            format!("cannot make the data directory {}: {error}", data.display()),
        )
    })?;
    // A child process and a daemon-like life want a path that does not depend on the working
    // directory.
    let data = data.canonicalize().map_err(|error| {
        Failure::new(
            Code::Data,
            format!("cannot use the data directory {}: {error}", data.display()),
        )
    })?;
    let settings = Settings { data: Some(data), ..settings };
    let watch = Watch::new()?;
    let mut process = DpuProcess::new(settings.clone());
    adopt_or_start(&settings, &mut process)?;
    let line =
        Invocation { command: "run", settings: settings.clone(), place: mountpoint.to_owned() };
    let outcome = if let Some(kept) = kept {
        let line = Invocation { place: kept.place().to_owned(), ..line };
        hold(line, kept, watch, Some(&mut process), None)
    } else if settings.mount_outlives()? {
        keep(line, watch, Some(&mut process))
    } else {
        serve(&settings, mountpoint, watch, Some(&mut process))
    };
    let ended = shut_down(&settings, &mut process);
    outcome.and_then(|code| ended.map(|()| code))
}

/// A mount that a process before this one had, and that did not end with it.
fn kept_by_the_manager(settings: &Settings) -> Result<Option<Kept>, Failure> {
    if settings.mount_outlives()? { Kept::stored(settings) } else { Ok(None) }
}

/// One that was killed still takes connections while the kernel clears it away: only one that
/// answers is adopted.
fn adopt_or_start(settings: &Settings, process: &mut DpuProcess) -> Result<(), Failure> {
    let end = Instant::now() + DYING_LIMIT;
    while process.ensure()? == Found::Adopted {
        match Dpu::of(settings).status() {
            Ok(status) => {
                tracing::info!("adopted the DPU side that was already running");
                say_what_is_not_done(settings, &status);
                return Ok(());
            }
            Err(failure) if Instant::now() > end => {
                tracing::warn!(%failure, "cannot tell how the DPU side was started");
                return Ok(());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    Ok(())
}

/// A DPU side that was adopted goes on as it was started: says which of the settings that concerns.
fn say_what_is_not_done(settings: &Settings, status: &Status) {
    let there = status.all.get("settings").unwrap_or(&serde_json::Value::Null);
    match settings.not_done_by(there) {
        Ok(differ) => {
            for (key, there) in differ {
                tracing::warn!(
                    "--{key} is not in force: the DPU side that was already running goes on as it \
                     was started ({there}); to change it, end this with Ctrl-C and run it again"
                );
            }
        }
        Err(failure) => tracing::warn!(%failure, "cannot tell how the DPU side was started"),
    }
}

/// Mounts the volume of a DPU side that already runs, and stays until unmounted or told to end.
pub(crate) fn mount(
    settings: Settings,
    mountpoint: &Path,
    take_over: Option<TakeOver>,
) -> Result<ExitCode, Failure> {
    if settings.client_here().is_some() {
        // There is no DPU side whose volume it could be.
        return run(settings, mountpoint, take_over);
    }
    let line = Invocation { command: "mount", settings, place: mountpoint.to_owned() };
    if let Some(step) = take_over {
        return taken(line, step, None);
    }
    let settings = &line.settings;
    log::start(settings)?;
    let outlives = settings.mount_outlives()?;
    Dpu::of(settings).status()?;
    if let Some(kept) = kept_by_the_manager(settings)? {
        let line = Invocation { place: kept.place().to_owned(), ..line };
        return hold(line, kept, Watch::new()?, None, None);
    }
    clear_stale(mountpoint)?;
    if outlives {
        keep(line, Watch::new()?, None)
    } else {
        serve(settings, mountpoint, Watch::new()?, None)
    }
}

/// Takes a mount over from the program this process was before, or only says whether it could.
fn taken(
    line: Invocation,
    step: TakeOver,
    mut process: Option<DpuProcess>,
) -> Result<ExitCode, Failure> {
    if !line.settings.mount_outlives()? {
        return Err(Failure::usage("a mount with these settings does not outlive its process"));
    }
    if step == TakeOver::Rehearse {
        say!("{}", rehearsed());
        return Ok(ExitCode::SUCCESS);
    }
    log::start(&line.settings)?;
    let settings = line.settings.clone();
    let cannot = |error| Failure::usage(format!("cannot take a mount over: {error}"));
    let end = End::of_input().map_err(cannot)?;
    let kept = Kept::taken(settings.clone(), &end)?;
    let (id, peer) = end.take_asker().map_err(cannot)?;
    let watch = Watch::new()?;
    if let Some(process) = &mut process {
        renew(&settings, process);
    }
    let asked = Asked::taken(id, peer);
    let outcome = hold(line, kept, watch, process.as_mut(), Some(asked));
    let ended = process.map_or(Ok(()), |mut process| shut_down(&settings, &mut process));
    outcome.and_then(|code| ended.map(|()| code))
}

/// Has the DPU side be this program, too. One that does not start now is started later.
fn renew(settings: &Settings, process: &mut DpuProcess) {
    let dpu = Dpu::of(settings);
    if let Ok(status) = dpu.status() {
        let told = dpu.shut_down();
        if told.is_err() || !process.wait_for_end(SHUTDOWN_LIMIT) {
            tracing::error!(?told, "the DPU side does not end: it goes on as the program it was");
        }
        // A child of the program before, which this process was.
        let pid = i32::try_from(status.dpu_pid).ok().and_then(Pid::from_raw);
        let _not_ours = rustix::process::waitpid(pid, WaitOptions::NOHANG);
    }
    if let Err(failure) = process.ensure() {
        tracing::error!(%failure, "the DPU side does not start; trying again");
    }
}

fn clear_stale(mountpoint: &Path) -> Result<bool, Failure> {
    outboard_fuse::clear_stale(mountpoint).map_err(|error| umount::failure(&error))
}

/// One mount from attaching to detaching.
fn serve(
    settings: &Settings,
    mountpoint: &Path,
    watch: Watch,
    mut process: Option<&mut DpuProcess>,
) -> Result<ExitCode, Failure> {
    let front = Arc::new(MountFront::new(mount_options(settings)?));
    let host = Host::connect(host_options(settings)?, Arc::clone(&front) as _)
        .map_err(|error| attach_failure(settings, &error))?;
    let mounted = outboard_fuse::mount(mountpoint, front, Arc::clone(host.session()));
    let mounted = mounted.map_err(|error| umount::failure(&error))?;
    greet(settings, mounted.mountpoint());
    let mut watch = watch;
    stay(settings, &|| mounted.is_served(), &mut watch, process.as_deref_mut())?;
    let place = mounted.mountpoint().to_owned();
    let ending = Ending { settings, place: &place, serving: None };
    ending.with_a_dpu_side(process, &mut watch, || {
        finish(&|lazy| mounted.unmount(lazy))?;
        mounted.join().map_err(|error| umount::failure(&error))?;
        host.detach(Duration::from_secs(5))
            .map_err(|error| Failure::internal(format!("the DPU side did not let go: {error}")))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The same with a process of its own that serves the mount, and another after each that dies.
fn keep(
    line: Invocation,
    watch: Watch,
    process: Option<&mut DpuProcess>,
) -> Result<ExitCode, Failure> {
    let (settings, mountpoint) = (&line.settings, &line.place);
    let writes_back = settings.cache() == CacheMode::WriteBack;
    if writes_back && settings.shares() && !rustix::process::geteuid().is_root() {
        return Err(Failure::usage(
            "--shares is for root, who may open files by their handles: others reach what the \
             kernel has collected so",
        ));
    }
    if writes_back && !settings.shares() {
        let status = Dpu::of(settings).status()?;
        if let Some(other) = status.attachments.first() {
            return Err(Failure::new(
                Code::Data,
                format!(
                    "--cache write-back wants the volume for itself, and process {other} uses it; \
                     end that, or take another cache"
                ),
            ));
        }
    }
    let connection = Connection::open(mountpoint, &mount_options(settings)?)
        .map_err(|error| umount::failure(&error))?;
    let place = connection.place().to_owned();
    if !connection.is_resent() {
        umount::umount(&place, true)?;
        drop(connection);
        if writes_back {
            return Err(Failure::usage(
                "--cache write-back needs a kernel that sends requests again (Linux 6.9), or what \
                 it had answered would be lost with the mount's process; take another cache",
            ));
        }
        tracing::warn!(
            "this kernel does not send requests again (Linux 6.9 does): if this process dies the \
             mount is gone"
        );
        return serve(settings, mountpoint, watch, process);
    }
    let kept = Kept::new(settings.clone(), &host_options(settings)?, connection);
    let mut kept =
        kept.map_err(|error| Failure::internal(format!("no memory for a mount: {error}")))?;
    kept.store()?;
    hold(Invocation { place, ..line }, kept, watch, process, None)
}

/// Has a mount served, and waits until it is: one that was never served is unmounted if it cannot
/// be, or if this process is told to end before (then there is `None`). One that was is not waited
/// for: its users wait, and the end goes the way of every end.
fn serve_kept(
    kept: &Arc<Kept>,
    watch: &mut Watch,
    mut process: Option<&mut DpuProcess>,
) -> Result<Option<Served>, Failure> {
    let (served, is_ready) = kept.serve()?;
    let unmount = || {
        let unmounted = outboard_fuse::unmount(kept.place(), true);
        unmounted.map_err(|error| umount::failure(&error))
    };
    while !kept.was_served() {
        match is_ready.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Disconnected) if !kept.was_served() => {
                let unmounted = unmount();
                end_of(served)?;
                unmounted?;
                return Err(Failure::internal("the mount was ended before it was served"));
            }
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
        if watch.next(Duration::ZERO)? == Happened::Told {
            kept.leave(served)?;
            return unmount().map(|()| None);
        }
        tend(process.as_deref_mut());
    }
    Ok(Some(served))
}

/// Has a DPU side that has died started again.
fn tend(process: Option<&mut DpuProcess>) {
    if let Some(process) = process
        && let Err(failure) = process.tend()
    {
        tracing::error!(%failure, "the DPU side does not start; trying again");
    }
}

/// Holds a mount until it is unmounted, this process is told to end, or becomes another program.
fn hold(
    line: Invocation,
    kept: Kept,
    mut watch: Watch,
    mut process: Option<&mut DpuProcess>,
    asked: Option<Asked>,
) -> Result<ExitCode, Failure> {
    let settings = &line.settings;
    let kept = Arc::new(kept);
    let _stored = service::Kept::of(kept.devices());
    let served = serve_kept(&kept, &mut watch, process.as_deref_mut())?;
    let Some(mut served) = served else { return Ok(ExitCode::SUCCESS) };
    let door = successor::listen(&settings.data());
    if let Some(door) = &door {
        let cannot = |error| Failure::internal(format!("cannot watch a socket: {error}"));
        watch.listen(door.fd()).map_err(cannot)?;
    }
    match asked {
        Some(asked) => asked.done(),
        None => greet(settings, &line.place),
    }
    service::ready();
    while let (Happened::Asked, Some(door)) =
        (stay(settings, &|| !served.is_finished(), &mut watch, process.as_deref_mut())?, &door)
    {
        if let Some(asked) = Asked::hear(door, &line) {
            kept.leave(served)?;
            if watch.hold() {
                asked.become_it(&kept, &line);
            } else {
                asked.refuse();
            }
            watch.release();
            match serve_kept(&kept, &mut watch, process.as_deref_mut())? {
                Some(again) => served = again,
                None => return Ok(ExitCode::SUCCESS),
            }
        }
    }
    let ending = Ending { settings, place: &line.place, serving: Some(&kept) };
    ending.with_a_dpu_side(process, &mut watch, || {
        finish(&|lazy| outboard_fuse::unmount(&line.place, lazy))?;
        end_of(served)
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn attach_failure(settings: &Settings, error: &ConnectError) -> Failure {
    let code = match error {
        ConnectError::Attach(AttachFailure::Refused(Reason::InUse, _)) => Code::Data,
        _ => Code::Failed,
    };
    Failure::new(code, format!("cannot attach to {}: {error}", settings.socket().display()))
}

pub(crate) fn mount_options(settings: &Settings) -> Result<MountOptions, Failure> {
    let mut options = MountOptions {
        source: settings.data().display().to_string(),
        workers: usize::from(settings.queues()),
        cache: match settings.cache() {
            CacheMode::Kernel => Cache::Kernel,
            CacheMode::WriteBack => Cache::WriteBack,
            CacheMode::Hybrid => Cache::Hybrid,
            CacheMode::None => Cache::None,
        },
        shares: settings.shares(),
        collected_max: sixteenth_of_memory(COLLECTED_LEAST),
        die_at: settings.die_at()?,
        ..MountOptions::default()
    };
    if settings.shared()?.is_some() {
        // Another host's changes are heard of, but who hears nothing must not believe for ever.
        (options.valid, options.negative_valid) = (VALID_SHARED, VALID_SHARED);
        options.attr_valid = Some(Duration::ZERO);
    } else if let Ok(StoreName::Pool(_)) =
        StoreName::of(&settings.data(), settings.store.as_deref())
    {
        options.read_ahead = READ_AHEAD_FAR;
    }
    if settings.cache() == CacheMode::None {
        // Beside a kernel that collects writes nobody hears of each.
        options.attr_valid = Some(Duration::ZERO);
    }
    if let Some(list) = &settings.options {
        options.apply(list).map_err(|error| Failure::usage(error.to_string()))?;
    }
    Ok(options)
}

pub(crate) fn host_options(settings: &Settings) -> Result<HostOptions, Failure> {
    let mut options = HostOptions::new(settings.socket());
    options.settings = Session {
        queues: settings.queues(),
        depth: settings.depth()?,
        spin_max: settings.spin()?.unwrap_or(Duration::MAX),
        ..options.settings
    };
    options.cache = settings.hybrid()?;
    options.company = match settings.cache() {
        CacheMode::WriteBack if settings.shares() => Company::TheModest,
        CacheMode::WriteBack => Company::Nobody,
        CacheMode::None => Company::Modest,
        CacheMode::Kernel | CacheMode::Hybrid => Company::Anybody,
    };
    options.on_loss = match settings.on_dpu_loss() {
        (OnDpuLoss::Fail, _) => LossPolicy::Fail { after: Duration::ZERO },
        (OnDpuLoss::Wait, None) => LossPolicy::default(),
        (OnDpuLoss::Wait, Some(limit)) => LossPolicy::within(limit),
    };
    Ok(options)
}

fn greet(settings: &Settings, mountpoint: &Path) {
    let at = mountpoint.display();
    let data = settings.data();
    let data = data.display();
    // As it can be typed: the program need not be on the path.
    let program = std::env::current_exe().unwrap_or_else(|_| "outboard".into());
    let program = program.display();
    say!("mounted the volume in {data} at {at}");
    say!("try:  cp -r /usr/share/doc {at}/  ;  du -sh {at}  ;  {program} status --data {data}");
    say!("end:  Ctrl-C here, or `{program} umount {at}`");
}

/// Until unmounted, told to end or asked for something; a DPU side that dies is started again.
fn stay(
    settings: &Settings,
    is_served: &dyn Fn() -> bool,
    watch: &mut Watch,
    mut process: Option<&mut DpuProcess>,
) -> Result<Happened, Failure> {
    let mut line = std::io::stdout().is_terminal().then(Line::default);
    let dpu = Dpu::of(settings);
    let mut followed = false;
    loop {
        // A client in this process is looked after each time.
        if process.as_deref().is_some_and(DpuProcess::is_apart) && !followed {
            let status = dpu.status_within(ASIDE_LIMIT);
            followed = status.is_ok_and(|status| watch.follow(status.dpu_pid).is_ok());
        }
        let waits = process.as_deref().is_some_and(|process| !process.serves());
        match watch.next(if waits { LOOK } else { Duration::from_secs(1) })? {
            happened @ (Happened::Told | Happened::Asked) => return Ok(happened),
            Happened::ProcessEnded => {
                followed = false;
                tend(process.as_deref_mut());
            }
            Happened::Nothing if !is_served() => return Ok(Happened::Nothing),
            Happened::Nothing => {
                if !followed {
                    tend(process.as_deref_mut());
                }
                // Nobody is asked for what nobody reads: it would wake both sides.
                if let Some(line) = &mut line
                    && let Ok(status) = dpu.status_within(ASIDE_LIMIT)
                {
                    line.print(&status);
                }
            }
        }
    }
}

/// A mount that is to end.
struct Ending<'a> {
    settings: &'a Settings,
    place: &'a Path,
    /// Who has it served, if that is a process of its own.
    serving: Option<&'a Kept>,
}

impl Ending<'_> {
    /// Does `end`, and meanwhile starts a DPU side that dies again: what the kernel or a cache
    /// still has is written at the end, and made durable. That takes as long as the volume does
    /// not answer: told once more, this process ends at once.
    fn with_a_dpu_side<T: Send>(
        &self,
        mut process: Option<&mut DpuProcess>,
        watch: &mut Watch,
        end: impl FnOnce() -> T + Send,
    ) -> T {
        let connection = outboard_fuse::connection(self.place);
        let begun = Instant::now();
        let mut say_at = Some(begun + PATIENCE);
        std::thread::scope(|scope| {
            let ending = scope.spawn(end);
            while !ending.is_finished() {
                let told = matches!(watch.next(LOOK), Ok(Happened::Told));
                if told && begun.elapsed() > SAME {
                    self.at_once(process, connection);
                }
                if !ending.is_finished() {
                    tend(process.as_deref_mut());
                }
                if say_at.take_if(|at| *at < Instant::now()).is_some() {
                    self.says_why();
                }
            }
            ending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Why it takes so long.
    fn says_why(&self) {
        if outboard_fuse::connection(self.place).is_some() {
            tracing::warn!(
                "the volume has not yet taken and answered all there is; Ctrl-C again ends at \
                 once, and what was not answered or made durable may be lost"
            );
        } else {
            tracing::warn!(
                "the mount is gone from here, and another mount namespace, as of a container, may \
                 still have it: then it ends with that one; Ctrl-C again ends at once"
            );
        }
    }

    /// Ends this process, whatever its threads wait for: first, calls on the mount end with an
    /// error.
    fn at_once(&self, process: Option<&mut DpuProcess>, connection: Option<Connected>) -> ! {
        tracing::warn!("told again: ending at once");
        if let Some(serving) = self.serving {
            serving.kill();
        }
        if let Some(Err(error)) = connection.map(|connection| connection.end()) {
            tracing::warn!(%error, "calls on the mount may wait until this process is gone");
        }
        let status = Dpu::of(self.settings).status_within(AT_ONCE_LIMIT);
        match process {
            Some(_) if status.is_ok_and(|status| status.attachments.len() > 1) => {
                tracing::info!("others use the volume: it goes on");
            }
            Some(process) => process.kill(),
            None => {}
        }
        std::process::exit(i32::from(Code::Failed as u8))
    }
}

/// Unmounts, waiting for programs that still use the mount.
fn finish(unmount: &dyn Fn(bool) -> Result<(), MountError>) -> Result<(), Failure> {
    if std::io::stdout().is_terminal() {
        say!();
    }
    let end = Instant::now() + BUSY_LIMIT;
    let mut told = false;
    loop {
        match unmount(false) {
            Ok(()) | Err(MountError::NotMounted { .. }) => return Ok(()),
            Err(error @ MountError::InUse { .. }) if Instant::now() < end => {
                if !told {
                    tracing::warn!("{error}; waiting {} s", BUSY_LIMIT.as_secs());
                    told = true;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(MountError::InUse { .. }) => {
                tracing::warn!("still in use: detached; it ends when its last user does");
                return unmount(true).map_err(|error| umount::failure(&error));
            }
            Err(error) => return Err(umount::failure(&error)),
        }
    }
}

/// Ends the DPU side unless somebody else is attached to it.
fn shut_down(settings: &Settings, process: &mut DpuProcess) -> Result<(), Failure> {
    let dpu = Dpu::of(settings);
    let Ok(status) = dpu.status() else { return Ok(()) };
    let others = status.attachments.len();
    if others > 0 && process.is_apart() {
        tracing::info!(others, "others use the volume: it goes on");
        return Ok(());
    }
    if others > 0 {
        tracing::warn!(others, "others use the volume through this process: they lose it");
    }
    dpu.shut_down()?;
    if process.wait_for_end(SHUTDOWN_LIMIT) {
        return Ok(());
    }
    let log: PathBuf = settings.data().join("dpu.log");
    Err(Failure::internal(format!(
        "the volume's side (pid {}) did not end in {} s; see {}",
        status.dpu_pid,
        SHUTDOWN_LIMIT.as_secs(),
        log.display()
    )))
}
