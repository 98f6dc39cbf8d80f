//! `outboard mounted`: the process of a mount that outlives it, which `run` starts and nobody else.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outboard_attach::host::{Dial, Host, Inherited};
use outboard_base::SessionId;
use outboard_fuse::{Connection, MountFront, take_over};
use outboard_os::shm::Shared;

use super::run::{host_options, mount_options};
use super::umount;
use crate::exit::Failure;
use crate::handover::End;
use crate::log;
use crate::mount_process::INODES;
use crate::settings::Settings;

/// How often it looks whether the mount is still there.
const LOOK: Duration = Duration::from_millis(200);

/// Serves what `run` hands over, until it is unmounted.
pub(crate) fn mounted(settings: &Settings) -> Result<ExitCode, Failure> {
    log::start(settings)?;
    let cannot =
        |error| Failure::usage(format!("`outboard run` starts this, nobody else: {error}"));
    let end = End::of_input().map_err(cannot)?;
    let (terms, [region, notes, inodes], devices) = end.take().map_err(cannot)?;
    if terms.version != env!("CARGO_PKG_VERSION") {
        return Err(Failure::usage(format!(
            "what `outboard run` of version {} keeps cannot be served by {}",
            terms.version,
            env!("CARGO_PKG_VERSION")
        )));
    }
    end_with_run(end.try_clone().map_err(cannot)?, terms.place.clone())?;
    let front = Arc::new(MountFront::new(mount_options(settings)?));
    let mut options = host_options(settings)?;
    let end = Mutex::new(end);
    options.dial =
        Some(Dial::new(move || end.lock().unwrap_or_else(PoisonError::into_inner).connect()));
    let inherited = Inherited { session: SessionId(terms.session), region, notes };
    let host = Host::inherit(options, inherited, Arc::clone(&front) as _)
        .map_err(|error| Failure::internal(format!("cannot take the session up: {error}")))?;
    let inodes = Shared::open(inodes, INODES)
        .map_err(|error| Failure::internal(format!("cannot read what was left: {error}")))?;
    let failed = |error| umount::failure(&error);
    let connection = Connection::inherit(terms.place, terms.kernel, devices).map_err(failed)?;
    let notes = Arc::clone(inodes.region());
    let mounted =
        take_over(connection, front, Arc::clone(host.session()), notes).map_err(failed)?;
    while mounted.is_served() {
        std::thread::sleep(LOOK);
    }
    mounted.join().map_err(failed)?;
    host.detach(Duration::from_secs(5))
        .map_err(|error| Failure::internal(format!("the DPU side did not let go: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

/// Without `run` nobody holds the mount but this process: it ends, and the mount with it.
fn end_with_run(end: End, place: PathBuf) -> Result<(), Failure> {
    let watch = move || {
        end.until_closed();
        tracing::error!("`outboard run` is gone: the mount ends with it");
        // A thread that waits in the kernel for a request would keep this process, and with it
        // the connection, for ever.
        if let Err(error) = outboard_fuse::abort(&place) {
            tracing::warn!(%error, "the mount could not be ended");
        }
        std::process::exit(1);
    };
    let thread = std::thread::Builder::new().name("with-run".to_owned()).spawn(watch);
    thread.map(drop).map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))
}
