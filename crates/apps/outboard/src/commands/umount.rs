//! `outboard umount`.

use std::path::Path;
use std::process::ExitCode;

use outboard_fuse::MountError;

use crate::exit::{Code, Failure};
use crate::say::say;

/// Unmounts; a mount point whose server died is cleared.
pub(crate) fn umount(mountpoint: &Path, lazy: bool) -> Result<ExitCode, Failure> {
    if outboard_fuse::clear_stale(mountpoint).map_err(|error| failure(&error))? {
        say!("cleared the mount that a crash left at {}", mountpoint.display());
        return Ok(ExitCode::SUCCESS);
    }
    outboard_fuse::unmount(mountpoint, lazy).map_err(|error| failure(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// A mount error with the exit code it deserves.
pub(crate) fn failure(error: &MountError) -> Failure {
    let code = match error {
        MountError::Missing { .. }
        | MountError::NotDirectory { .. }
        | MountError::Look { .. }
        | MountError::Busy { .. }
        | MountError::InUse { .. }
        | MountError::NotMounted { .. } => Code::MountPoint,
        _ => Code::Failed,
    };
    Failure::new(code, error.to_string())
}
