//! Commands with a time limit.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::{Result, context};

const POLL: Duration = Duration::from_millis(10);

/// How a command ended, with all it printed.
pub struct Ended {
    /// `None` when it was killed at its limit.
    pub status: Option<ExitStatus>,
    /// Standard output and standard error as they came.
    pub output: String,
}

impl Ended {
    /// The exit code; `None` when a signal or the limit ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// The last `count` lines printed.
    pub fn tail(&self, count: usize) -> String {
        let lines: Vec<&str> = self.output.lines().collect();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}

/// Runs a command to its end, or ends its whole process group at the limit. What it prints goes
/// through `log`, which is left there.
pub fn run_limited(mut command: Command, limit: Duration, log: &Path) -> Result<Ended> {
    let output = context(File::create(log), || format!("cannot write {}", log.display()))?;
    let errors = context(output.try_clone(), || "cannot share the log".to_owned())?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    let mut child = context(command.spawn(), || format!("cannot start {command:?}"))?;
    let status = wait_limited(&mut child, limit)?;
    if status.is_none() {
        kill_group(&child);
        // A group that is killed ends, unless the kernel holds it; that is a finding too.
        wait_limited(&mut child, Duration::from_secs(20))?;
    }
    let output = fs::read(log).unwrap_or_default();
    Ok(Ended { status, output: String::from_utf8_lossy(&output).into_owned() })
}

/// Waits for a child up to a limit.
pub(crate) fn wait_limited(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        let status = context(child.try_wait(), || "cannot wait for a child".to_owned())?;
        if status.is_some() || Instant::now() >= end {
            return Ok(status);
        }
        sleep(POLL);
    }
}

fn kill_group(child: &Child) {
    // Gone already is as good as killed.
    _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// Calls `done` until it is true; false when the limit passes first.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if done() {
            return true;
        }
        sleep(POLL);
    }
    done()
}
