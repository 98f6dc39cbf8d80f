//! `outboard run` and `outboard mount`: the host side of a mounted volume, in this process.
//!
//! `run` also looks after the DPU side: starts or adopts it, starts it again when it dies, and
//! shuts it down at the end, unless another process is still attached to it.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_attach::host::{Host, HostOptions};
use outboard_dpc::host::{LossPolicy, Settings as Session};
use outboard_fuse::{Cache, Connection, MountError, MountFront, MountOptions};
use outboard_store::StoreName;
use outboard_store::directory::DataDirectory;

use super::status::{Dpu, Line, Status};
use super::umount;
use crate::dpu_process::{DpuProcess, Found};
use crate::exit::{Code, Failure};
use crate::log;
use crate::mount_process::Kept;
use crate::settings::{CacheMode, OnDpuLoss, Settings};
use crate::watch::{Happened, Watch};

/// Time for the DPU side to flush and end.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(60);
/// Time for a DPU side that was killed to be gone, before its silence is taken for something else.
const DYING_LIMIT: Duration = Duration::from_secs(10);
/// Time to wait at the end for programs that still use the mount, before it is detached lazily.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
/// How often it is looked at the end whether there is a DPU side.
const END_LOOK: Duration = Duration::from_millis(20);
/// How far the kernel reads ahead in a volume whose data lies in a pool: four requests of the
/// longest side by side. One at a time, each waited for the way there and back.
const READ_AHEAD_FAR: usize = 4 << 20;

/// Starts or adopts the DPU side, mounts, and stays until told to end.
pub(crate) fn run(settings: Settings, mountpoint: &Path) -> Result<ExitCode, Failure> {
    log::start(&settings)?;
    let data = settings.data();
    // What can be refused is refused before anything is made.
    settings.of_the_dpu_side()?;
    settings.policies()?;
    settings.die_at()?;
    settings.mount_outlives()?;
    StoreName::of(&data, settings.store.as_deref())?;
    let is_there = data.exists();
    if is_there {
        DataDirectory::check(&data).map_err(|error| Failure::new(Code::Data, error.to_string()))?;
    }
    if clear_stale(mountpoint)? {
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
    let outcome = if settings.mount_outlives()? {
        keep(&settings, mountpoint, watch, &mut process)
    } else {
        serve(&settings, mountpoint, watch, Some(&mut process))
    };
    let ended = shut_down(&settings, &mut process);
    outcome.and_then(|code| ended.map(|()| code))
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
pub(crate) fn mount(settings: Settings, mountpoint: &Path) -> Result<ExitCode, Failure> {
    log::start(&settings)?;
    let outlives = settings.mount_outlives()?;
    if settings.cache() == CacheMode::WriteBack {
        return Err(Failure::usage(
            "--cache write-back needs somebody who outlives the mount's process: take `outboard \
             run`, or another cache",
        ));
    }
    Dpu::of(&settings).status()?;
    clear_stale(mountpoint)?;
    if outlives {
        tracing::warn!("--on-mount-loss is not in force: nobody outlives this process");
    }
    serve(&settings, mountpoint, Watch::new()?, None)
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
    let host =
        Host::connect(host_options(settings)?, Arc::clone(&front) as _).map_err(|error| {
            Failure::internal(format!("cannot attach to {}: {error}", settings.socket().display()))
        })?;
    let mounted = outboard_fuse::mount(mountpoint, front, Arc::clone(host.session()));
    let mounted = mounted.map_err(|error| umount::failure(&error))?;
    greet(settings, mounted.mountpoint());
    stay(settings, &|| mounted.is_served(), watch, process.as_deref_mut())?;
    with_a_dpu_side(process, || {
        finish(&|lazy| mounted.unmount(lazy))?;
        mounted.join().map_err(|error| umount::failure(&error))?;
        host.detach(Duration::from_secs(5))
            .map_err(|error| Failure::internal(format!("the DPU side did not let go: {error}")))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The same with a process of its own that serves the mount, and another after each that dies.
fn keep(
    settings: &Settings,
    mountpoint: &Path,
    watch: Watch,
    process: &mut DpuProcess,
) -> Result<ExitCode, Failure> {
    let writes_back = settings.cache() == CacheMode::WriteBack;
    if writes_back {
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
            "--on-mount-loss restart is not in force: this kernel does not send requests again \
             (Linux 6.9 does); if this process dies the mount is gone"
        );
        return serve(settings, mountpoint, watch, Some(process));
    }
    let kept = Kept::new(settings.clone(), &host_options(settings)?, connection);
    let kept =
        kept.map_err(|error| Failure::internal(format!("no memory for a mount: {error}")))?;
    let served = kept.serve()?;
    greet(settings, &place);
    stay(settings, &|| !served.is_finished(), watch, Some(process))?;
    with_a_dpu_side(Some(process), || {
        finish(&|lazy| outboard_fuse::unmount(&place, lazy))?;
        let panicked = "the thread of the mount's process panicked";
        served.join().map_err(|_| Failure::internal(panicked.to_owned()))?
    })?;
    Ok(ExitCode::SUCCESS)
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
        die_at: settings.die_at()?,
        ..MountOptions::default()
    };
    if let Ok(StoreName::Pool(_)) = StoreName::of(&settings.data(), settings.store.as_deref()) {
        options.read_ahead = READ_AHEAD_FAR;
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
    options.alone = settings.cache() == CacheMode::WriteBack;
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
    println!("mounted the volume in {data} at {at}");
    println!("try:  cp -r /usr/share/doc {at}/  ;  du -sh {at}  ;  {program} status --data {data}");
    println!("end:  Ctrl-C here, or `{program} umount {at}`");
}

/// Until unmounted or told to end; a DPU side that dies is started again.
fn stay(
    settings: &Settings,
    is_served: &dyn Fn() -> bool,
    mut watch: Watch,
    mut process: Option<&mut DpuProcess>,
) -> Result<(), Failure> {
    let mut line = std::io::stdout().is_terminal().then(Line::default);
    let dpu = Dpu::of(settings);
    let mut followed = false;
    loop {
        if process.is_some() && !followed {
            followed = dpu.status().is_ok_and(|status| watch.follow(status.dpu_pid).is_ok());
        }
        match watch.next(Duration::from_secs(1))? {
            Happened::Told => return Ok(()),
            Happened::ProcessEnded => {
                followed = false;
                if let Some(process) = process.as_deref_mut()
                    && let Err(failure) = process.ensure()
                {
                    tracing::error!(%failure, "the DPU side does not start; trying again");
                }
            }
            Happened::Nothing if !is_served() => return Ok(()),
            Happened::Nothing => {
                if let Some(process) = process.as_deref_mut()
                    && !followed
                    && let Err(failure) = process.ensure()
                {
                    tracing::error!(%failure, "the DPU side does not start; trying again");
                }
                if let (Some(line), Ok(status)) = (&mut line, dpu.status()) {
                    line.print(&status);
                }
            }
        }
    }
}

/// Does `end`, and meanwhile starts a DPU side that dies again: what the kernel or a cache still
/// has is written at the end, and made durable.
fn with_a_dpu_side<T: Send>(
    mut process: Option<&mut DpuProcess>,
    end: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let ending = scope.spawn(end);
        while !ending.is_finished() {
            std::thread::sleep(END_LOOK);
            if let Some(process) = process.as_deref_mut()
                && !ending.is_finished()
                && let Err(failure) = process.ensure()
            {
                tracing::error!(%failure, "the DPU side does not start; trying again");
            }
        }
        ending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Unmounts, waiting for programs that still use the mount.
fn finish(unmount: &dyn Fn(bool) -> Result<(), MountError>) -> Result<(), Failure> {
    if std::io::stdout().is_terminal() {
        println!();
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
    if !status.attachments.is_empty() {
        tracing::info!(others = status.attachments.len(), "others use the volume: it goes on");
        return Ok(());
    }
    dpu.shut_down()?;
    if process.wait_for_end(SHUTDOWN_LIMIT) {
        return Ok(());
    }
    let log: PathBuf = settings.data().join("dpu.log");
    Err(Failure::internal(format!(
        "the DPU side (pid {}) did not end in {} s; see {}",
        status.dpu_pid,
        SHUTDOWN_LIMIT.as_secs(),
        log.display()
    )))
}
