//! The cluster whose volume is measured: started here, ended when dropped.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{NODES, SERVER};

/// How long its parts have to be up, and to end.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// A cluster, each part of it a process.
pub(crate) struct Cluster {
    child: Child,
    dir: PathBuf,
    /// What names its volume to `--store`.
    pub(crate) store: String,
    /// Its parts, as whose CPU time is told apart.
    pub(crate) processes: Vec<(String, u32)>,
}

impl Cluster {
    /// Starts one in `dir`, with these flags, and waits until all answer. `apart`: Ctrl-C is not
    /// for it.
    pub(crate) fn up(
        program: &Path,
        dir: &Path,
        flags: &[&str],
        apart: bool,
    ) -> io::Result<Cluster> {
        let mut command = Command::new(program);
        if apart {
            command.process_group(0);
        }
        command.args(["cluster", "up"]).arg(dir).args(flags);
        command.args(["--port=0"]).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn()?;
        let (store, processes) = Default::default();
        let mut cluster = Cluster { child, dir: dir.to_owned(), store, processes };
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = cluster.child.try_wait()? {
                return Err(io::Error::other(format!("{command:?} ended: {status}")));
            }
            match cluster.ask(program) {
                Ok(()) => return Ok(cluster),
                Err(error) if Instant::now() > end => return Err(error),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    /// Its volume and its processes, as it says itself.
    fn ask(&mut self, program: &Path) -> io::Result<()> {
        let mut command = Command::new(program);
        command.args(["cluster", "status"]).arg(&self.dir).arg("--json").stdin(Stdio::null());
        let output = command.output()?;
        let missing = || io::Error::other("`cluster status --json` does not say what is up");
        if !output.status.success() {
            return Err(missing());
        }
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let store = said.get("store").and_then(Value::as_str).ok_or_else(missing)?;
        let parts = said.get("parts").and_then(Value::as_object).ok_or_else(missing)?;
        let process = |(role, part): (&String, &Value)| {
            let name = if role == "meta" { SERVER } else { NODES };
            let pid = part.get("pid").and_then(Value::as_u64);
            let pid = pid.and_then(|pid| u32::try_from(pid).ok()).ok_or_else(missing)?;
            Ok((name.to_owned(), pid))
        };
        self.processes = parts.iter().map(process).collect::<io::Result<_>>()?;
        self.store = store.to_owned();
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // One that has already ended is what we want.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let end = Instant::now() + LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                eprintln!("bench: the cluster in {} does not end", self.dir.display());
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}
