//! An ensemble of ZooKeeper servers, of `scripts/zookeeper`.

use std::path::Path;
use std::process::Command;

use crate::{Result, context};

/// Has the script do something with an ensemble; what it says.
///
/// # Errors
/// What the script says.
pub fn ensemble(verb: &str, dir: &Path, which: &str) -> Result<String> {
    let mut command = Command::new("scripts/zookeeper");
    let output = command.arg(verb).arg(dir).args(Some(which).filter(|which| !which.is_empty()));
    let output = context(output.output(), || "scripts/zookeeper".to_owned())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("zookeeper {verb} {which}: {}", String::from_utf8_lossy(&output.stderr)))
}
