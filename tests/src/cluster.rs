//! A cluster of a shared volume, started as a user starts it, with `outboard cluster`.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::net::SocketAddrV4;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::command::{Ended, run_limited, wait_limited, wait_until};
use crate::{Result, context, program};

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// How many hosts mount a volume that has a cluster of its own: one, or as `OUTBOARD_HOSTS` says.
pub(crate) fn hosts() -> Result<usize> {
    let Ok(text) = env::var("OUTBOARD_HOSTS") else { return Ok(1) };
    let hosts = text.parse().ok().filter(|hosts| (1..=2).contains(hosts));
    hosts.ok_or_else(|| format!("OUTBOARD_HOSTS is 1 or 2, not `{text}`"))
}

/// The processes of a cluster, with all they keep in one directory; ended when it is dropped.
pub struct Cluster {
    program: PathBuf,
    dir: PathBuf,
    child: Option<Child>,
}

impl Cluster {
    /// Starts one with so many nodes in `dir`, on free ports of the loopback; `packed`: all of its
    /// parts in one process.
    pub fn up(dir: &Path, nodes: usize, packed: bool) -> Result<Self> {
        let flags = if packed { &["--packed"][..] } else { &[] };
        Cluster::with(dir, nodes, flags)
    }

    /// One for a volume of its own, whose parts are in one process; or, where `OUTBOARD_CLUSTER` is
    /// `processes`, in one each, or `netns`, each in a network namespace of its own, too. Where
    /// `OUTBOARD_HOSTS` says so, these have so many hosts.
    pub fn wanted(dir: &Path) -> Result<Self> {
        let hosts = format!("--hosts={}", hosts()?);
        let flags: &[&str] = match env::var("OUTBOARD_CLUSTER").as_deref() {
            Err(_) | Ok("packed") => &["--packed"],
            Ok("processes") => &[],
            Ok("netns") => &["--netns", &hosts],
            Ok(other) => return Err(format!("no OUTBOARD_CLUSTER is `{other}`")),
        };
        Cluster::with(dir, 2, flags)
    }

    /// One with so many nodes, with these flags. Where `OUTBOARD_LAYOUT` says so, its files lie
    /// like that, where `OUTBOARD_NODES` does, it has so many nodes at least, and where
    /// `OUTBOARD_MTU` does, frames have so many bytes at most.
    pub fn with(dir: &Path, nodes: usize, flags: &[&str]) -> Result<Self> {
        let wanted = env::var("OUTBOARD_NODES").ok().and_then(|nodes| nodes.parse().ok());
        let nodes = nodes.max(wanted.unwrap_or(0));
        let nodes = format!("--nodes={nodes}");
        let layout = env::var("OUTBOARD_LAYOUT").map(|layout| format!("--layout={layout}"));
        let layout = layout.as_deref().ok();
        let own: Vec<&str> = [nodes.as_str(), "--port=0"].into_iter().chain(layout).collect();
        let cluster = Self::up_with(dir, &[&own, flags].concat())?;
        match env::var("OUTBOARD_MTU") {
            Ok(mtu) => cluster.in_frames_of(&mtu),
            Err(_) => Ok(cluster),
        }
    }

    /// The same again, with frames of so many bytes at most: its description is changed.
    fn in_frames_of(self, mtu: &str) -> Result<Self> {
        let (dir, file) = (self.dir.clone(), self.dir.join("cluster.toml"));
        self.down()?;
        let text = context(fs::read_to_string(&file), || format!("no {}", file.display()))?;
        let others = text.lines().filter(|line| !line.starts_with("mtu ="));
        let mtu = format!("mtu = {mtu}");
        let lines: Vec<&str> = std::iter::once(mtu.as_str()).chain(others).collect();
        context(fs::write(&file, lines.join("\n")), || format!("cannot write {}", file.display()))?;
        let cluster = Self::up_with(&dir, &[])?;
        let wanted = mtu.replace(' ', "");
        let store = cluster.store()?;
        if store.contains(&wanted) { Ok(cluster) } else { Err(format!("{store} is not {wanted}")) }
    }

    /// Starts one in `dir`, with these flags of `outboard cluster up`.
    pub fn up_with(dir: &Path, flags: &[&str]) -> Result<Self> {
        context(fs::create_dir_all(dir), || format!("cannot make {}", dir.display()))?;
        let dir = context(fs::canonicalize(dir), || format!("no folder {}", dir.display()))?;
        let mut cluster = Self { program: program()?, dir, child: None };
        cluster.start(flags)?;
        Ok(cluster)
    }

    fn start(&mut self, flags: &[&str]) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.log());
        let log = context(log, || "cannot open the log".to_owned())?;
        let errors = context(log.try_clone(), || "cannot share the log".to_owned())?;
        let mut command = Command::new(&self.program);
        command.arg("cluster").arg("up").arg(&self.dir).args(flags);
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let child = context(command.spawn(), || format!("cannot start {command:?}"))?;
        self.child = Some(child);
        let is_up = |cluster: &mut Self| cluster.is_running() && cluster.status().is_ok();
        let ready = wait_until(START_LIMIT, || !self.is_running() || is_up(self));
        if ready && self.is_running() {
            return Ok(());
        }
        Err(format!("the cluster is not up:\n{}", self.log_tail()))
    }

    fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// What names the volume to `--store`.
    pub fn store(&self) -> Result<String> {
        let status = self.status()?;
        let store = status["store"].as_str().map(str::to_owned);
        store.ok_or_else(|| format!("`cluster status --json` names no store: {status}"))
    }

    /// What `outboard cluster status --json` says; an error unless every part answers.
    pub fn status(&self) -> Result<Value> {
        let ended = self.command("status", &["--json".as_ref()])?;
        if ended.code() != Some(0) {
            return Err(format!(
                "`cluster status` ended with {:?}: {}",
                ended.code(),
                ended.tail(5)
            ));
        }
        let json = ended.output.find('{').map_or("", |at| &ended.output[at..]);
        context(serde_json::from_str(json), || "`cluster status --json`".to_owned())
    }

    /// Runs `outboard cluster VERB DIR ...` to its end.
    pub fn command(&self, verb: &str, args: &[&OsStr]) -> Result<Ended> {
        let mut command = Command::new(&self.program);
        command.arg("cluster").arg(verb).arg(&self.dir).args(args);
        run_limited(command, COMMAND_LIMIT, &self.dir.join(format!("{verb}.log")))
    }

    /// `outboard cluster key WHAT DIR ...`.
    pub fn key(&self, what: &str, args: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("cluster").arg("key").arg(what).arg(&self.dir).args(args);
        let ended = run_limited(command, COMMAND_LIMIT, &self.dir.join("key.log"))?;
        match ended.code() {
            Some(0) => Ok(()),
            code => Err(format!("`cluster key {what}` ended with {code:?}: {}", ended.tail(5))),
        }
    }

    /// What names the volume to who has this key.
    pub fn store_by(&self, key: &Path) -> Result<String> {
        let own = format!("key={}", self.dir.join("key").display());
        Ok(self.store()?.replace(&own, &format!("key={}", key.display())))
    }

    /// What a part says of itself, whether others answer or not.
    pub fn part(&self, part: &str) -> Result<Value> {
        let ended = self.command("status", &["--json".as_ref()])?;
        // What it complains of comes behind.
        let json = ended.output.find('{').map_or("", |at| &ended.output[at..]);
        let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
        let said = values.next().and_then(std::result::Result::ok).unwrap_or_default();
        Ok(said["parts"][part]["part"].clone())
    }

    /// The process of a part, and where it is.
    pub fn address(&self, part: &str) -> Result<(u64, SocketAddrV4)> {
        let status = self.status()?;
        let said = &status["parts"][part];
        let address = said["address"].as_str().and_then(|text| text.parse().ok());
        let found = said["pid"].as_u64().zip(address);
        found.ok_or_else(|| format!("`cluster status --json` has no address of {part}: {status}"))
    }

    /// How many packets its parts have sent again.
    pub fn sent_again(&self) -> Result<u64> {
        let status = self.status()?;
        let parts = status["parts"].as_object().ok_or("a status without parts")?;
        let counts = parts.values().map(|part| part["network"]["packets sent again"].as_u64());
        Ok(counts.flatten().sum())
    }

    /// The network namespaces of its hosts.
    pub fn hosts(&self) -> Result<Vec<String>> {
        let status = self.status()?;
        let hosts = status["hosts"].as_array().cloned().unwrap_or_default();
        Ok(hosts.iter().filter_map(|host| host.as_str().map(str::to_owned)).collect())
    }

    /// Runs `outboard cluster VERB DIR ...`, which has to succeed.
    pub fn does(&self, verb: &str, args: &[&str]) -> Result<()> {
        let words: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        let ended = self.command(verb, &words)?;
        match ended.code() {
            Some(0) => Ok(()),
            code => {
                Err(format!("`cluster {verb} {args:?}` ended with {code:?}: {}", ended.tail(5)))
            }
        }
    }

    /// kill -9 of a part; `up` starts it again.
    pub fn kill(&self, role: &str) -> Result<()> {
        self.does("kill", &[role])
    }

    /// Waits until every part answers.
    pub fn wait(&self) -> Result<()> {
        let mut last = Ok(());
        let is_whole = wait_until(START_LIMIT, || {
            last = self.status().map(drop);
            last.is_ok()
        });
        if is_whole { Ok(()) } else { last }
    }

    /// `outboard cluster check`, of the contents, too.
    pub fn check(&self) -> Result<()> {
        let ended = self.command("check", &["--contents".as_ref()])?;
        match ended.code() {
            Some(0) => Ok(()),
            Some(code) => Err(format!("cluster check ended with {code}:\n{}", ended.tail(20))),
            None => Err(format!("cluster check did not end:\n{}", ended.tail(20))),
        }
    }

    /// Ends it as Ctrl-C does, and waits for a clean end.
    pub fn down(mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Err("not running".to_owned()) };
        context(kill_process(Pid::from_child(&child), Signal::TERM), || "SIGTERM".to_owned())?;
        match wait_limited(&mut child, STOP_LIMIT)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("it ended with {status}:\n{}", self.log_tail())),
            None => {
                self.child = Some(child);
                Err(format!("not ended {} s after SIGTERM", STOP_LIMIT.as_secs()))
            }
        }
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn log(&self) -> PathBuf {
        self.dir.join("up.log")
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It may have ended by itself; what is left then is ended by `down`.
        if let Some(mut child) = self.child.take() {
            _ = kill_process(Pid::from_child(&child), Signal::TERM);
            if !matches!(wait_limited(&mut child, STOP_LIMIT), Ok(Some(_))) {
                _ = child.kill();
                _ = self.command("down", &[]);
            }
        }
    }
}
