//! `outboard mounted`: the process of a mount that outlives it, which `run` starts and nobody else.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outboard_attach::host::{Dial, Host, Inherited};
use outboard_base::SessionId;
use outboard_dpc::host::QueueSlot;
use outboard_fuse::{Connection, MountFront, take_over};
use outboard_os::shm::Shared;

use super::run::{attach_failure, host_options, mount_options};
use super::umount;
use crate::exit::Failure;
use crate::handover::{End, Word};
use crate::log;
use crate::mount_process::{INODES, LEFT};
use crate::program;
use crate::settings::Settings;
use crate::watch::{Happened, Watch};

/// Time for what was read from the kernel to be answered, when this process is told to end.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// Serves what `run` hands over, until it is unmounted. `run` is told whether it does, and why not.
pub(crate) fn mounted(settings: &Settings) -> Result<ExitCode, Failure> {
    log::start(settings)?;
    program::is_behind_pages();
    let teller = End::of_input().map_err(not_started_by_run)?;
    let outcome = serve(settings, &teller);
    match outcome {
        Err(failure) if teller.say(&Word::Fails(failure.clone())).is_ok() => {
            Ok(failure.exit_code())
        }
        outcome => outcome,
    }
}

fn not_started_by_run(error: io::Error) -> Failure {
    Failure::usage(format!("`outboard run` starts this, nobody else: {error}"))
}

fn serve(settings: &Settings, teller: &End) -> Result<ExitCode, Failure> {
    let cannot = not_started_by_run;
    let end = teller.try_clone().map_err(cannot)?;
    let (terms, [region, notes, inodes], devices) = end.take().map_err(cannot)?;
    let watch = Watch::new()?;
    let place = (!terms.stored).then(|| terms.place.clone());
    end_with_run(end.try_clone().map_err(cannot)?, place)?;
    let front = Arc::new(MountFront::new(mount_options(settings)?));
    let mut options = host_options(settings)?;
    options.outlives = terms.stored;
    let end = Mutex::new(end);
    options.dial =
        Some(Dial::new(move || end.lock().unwrap_or_else(PoisonError::into_inner).connect()));
    let inherited = Inherited { session: SessionId(terms.session), region, notes };
    let host = Host::inherit(options, inherited, Arc::clone(&front) as _)
        .map_err(|error| attach_failure(settings, &error))?;
    let inodes = Shared::open(inodes, INODES)
        .map_err(|error| Failure::internal(format!("cannot read what was left: {error}")))?;
    let failed = |error| umount::failure(&error);
    let connection = Connection::inherit(terms.place, terms.kernel, devices).map_err(failed)?;
    let notes = Arc::clone(inodes.region());
    let told = Arc::clone(&front);
    let mut mounted =
        take_over(connection, front, Arc::clone(host.session()), notes).map_err(failed)?;
    leave_when_told(watch, Arc::clone(&told))?;
    teller.say(&Word::Serves).map_err(cannot)?;
    mounted.wait();
    while told.leaves() {
        std::thread::park();
    }
    mounted.join().map_err(failed)?;
    host.detach(Duration::from_secs(5))
        .map_err(|error| Failure::internal(format!("the DPU side did not let go: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the process when it is told to, and not the mount.
fn leave_when_told(mut watch: Watch, front: Arc<MountFront<QueueSlot>>) -> Result<(), Failure> {
    let wait = move || {
        while !matches!(watch.next(Duration::from_secs(3600)), Ok(Happened::Told) | Err(_)) {}
        front.leave(LEAVE_LIMIT);
        tracing::info!("told to end: the mount is for another process");
        std::process::exit(LEFT);
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    thread.map(drop).map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))
}

/// Without `run` this process ends. Nobody else holds the mount then, which ends with it, unless a
/// service manager does.
fn end_with_run(end: End, place: Option<PathBuf>) -> Result<(), Failure> {
    let connection = place.as_deref().and_then(outboard_fuse::connection);
    let watch = move || {
        end.until_closed();
        if place.is_none() {
            tracing::warn!("`outboard run` is gone: the mount waits for the next");
            std::process::exit(1);
        }
        tracing::error!("`outboard run` is gone: the mount ends with it");
        // A thread that waits in the kernel for a request would keep this process, and with it
        // the connection, for ever.
        if let Some(Err(error)) = connection.map(|connection| connection.abort()) {
            tracing::warn!(%error, "the mount could not be ended");
        }
        std::process::exit(1);
    };
    let thread = std::thread::Builder::new().name("with-run".to_owned()).spawn(watch);
    thread.map(drop).map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))
}
