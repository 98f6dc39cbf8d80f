//! This process and the program it runs.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use outboard_os::sys::flusher::writes_pages_out;

use crate::service;

/// The running file: what its path names may have been replaced meanwhile.
const RUNNING: &str = "/proc/self/exe";

/// This program as it runs, not as the file of its name is now: its roles must fit together.
///
/// # Errors
/// The kernel does not say which file runs.
pub(crate) fn this() -> io::Result<Command> {
    let mut command = same_file()?;
    service::not_for(&mut command).env_remove(service::NOTIFY_SOCKET);
    Ok(command)
}

fn same_file() -> io::Result<Command> {
    let path = std::env::current_exe()?;
    let file = |path: &str| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    let is_same = path.to_str().is_some_and(
        |path| matches!((file(path), file(RUNNING)), (Ok(named), Ok(running)) if named == running),
    );
    if is_same {
        return Ok(Command::new(path));
    }
    let mut command = Command::new(RUNNING);
    command.arg0(path);
    Ok(command)
}

/// Says that this process, and all its threads to come, write pages of a mount out: before any of
/// these is started.
pub(crate) fn is_behind_pages() {
    if let Err(error) = writes_pages_out() {
        tracing::debug!(%error, "where memory is short, pages may wait for their own writing");
    }
}
