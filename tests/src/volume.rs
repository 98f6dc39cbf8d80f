//! A mounted volume and the processes behind it.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::cluster::{Cluster, hosts};
use crate::command::{Ended, run_limited, wait_limited, wait_until};
use crate::{Result, context};

const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(120);
const CHECK_LIMIT: Duration = Duration::from_secs(300);
const STATUS_LIMIT: Duration = Duration::from_secs(60);

/// One of the two processes of a mounted volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The process that mounts: `outboard run` itself.
    Host,
    /// The process that owns the volume.
    Dpu,
}

/// The program under test: `$OUTBOARD`, or the one built beside this test program.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = env::var_os("OUTBOARD") {
        return Ok(PathBuf::from(path));
    }
    let here = context(env::current_exe(), || "cannot find this program".to_owned())?;
    let path = here.with_file_name("outboard");
    if path.is_file() {
        return Ok(path);
    }
    Err(format!("no {}; build it, or name the program in OUTBOARD", path.display()))
}

/// A second mount of a volume; unmounted when it is dropped.
pub struct Twin {
    child: Child,
    mountpoint: PathBuf,
}

impl Twin {
    /// Where it is mounted.
    pub fn mountpoint(&self) -> PathBuf {
        self.mountpoint.clone()
    }

    /// How often its threads have slept so far.
    pub fn wakeups(&self) -> Result<u64> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.child.id()));
        let slept = |task: std::io::Result<fs::DirEntry>| -> Option<u64> {
            let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        let tasks = context(fs::read_dir(&tasks), || format!("cannot list {}", tasks.display()))?;
        Ok(tasks.filter_map(slept).sum())
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        // It may have ended by itself; what is left then is killed.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if !matches!(wait_limited(&mut self.child, STOP_LIMIT), Ok(Some(_))) {
            let _ = self.child.kill();
        }
    }
}

/// A volume in `BASE/data`, mounted on `BASE/mnt`, logging to `BASE/run.log`.
pub struct Volume {
    program: PathBuf,
    base: PathBuf,
    flags: Vec<String>,
    child: Option<Child>,
    /// Of a shared volume: the cluster it has for itself.
    cluster: Option<Cluster>,
    /// The network namespace it is in; none: that of this process.
    space: Option<String>,
}

impl Volume {
    /// Makes the folders; nothing runs yet. `flags` go to `outboard run`. Where `OUTBOARD_STORE`
    /// names a store, the volume lies in that; in a pool it has a namespace of its own; `shared` is
    /// a cluster of its own.
    pub fn new(base: &Path, flags: &[&str]) -> Result<Self> {
        let mut volume = Self::with(base, flags)?;
        let store = env::var("OUTBOARD_STORE").ok();
        if store.as_deref() == Some("shared") {
            let cluster = Cluster::wanted(&volume.base.join("cluster"))?;
            volume.space = cluster.hosts()?.into_iter().next();
            // How large it is the cluster says.
            volume.flags.retain(|flag| !flag.starts_with("--size"));
            volume.flags.push(format!("--store={}", cluster.store()?));
            volume.cluster = Some(cluster);
        } else if let Some(store) = store {
            let space = volume.base.display().to_string().replace('/', "-");
            let own = format!("&namespace=test{space}");
            let own = if store.contains('?') { &own } else { "" };
            volume.flags.push(format!("--store={store}{own}"));
        }
        Ok(volume)
    }

    /// As [`Volume::new`], in whichever store `flags` name.
    pub fn with(base: &Path, flags: &[&str]) -> Result<Self> {
        let base = context(fs::canonicalize(base), || format!("no folder {}", base.display()))?;
        for folder in ["data", "mnt"] {
            let path = base.join(folder);
            context(fs::create_dir_all(&path), || format!("cannot make {}", path.display()))?;
        }
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Ok(Self { program: program()?, base, flags, child: None, cluster: None, space: None })
    }

    /// It runs in this network namespace from now on.
    #[must_use]
    pub fn inside(mut self, space: &str) -> Self {
        self.space = Some(space.to_owned());
        self
    }

    /// A mount of the same volume by another host, in `BASE/other`, where `OUTBOARD_HOSTS` asks for
    /// two of a shared volume that has a cluster of its own.
    pub fn other_host(&self) -> Result<Option<Volume>> {
        let Some(cluster) = self.cluster.as_ref().filter(|_| hosts() == Ok(2)) else {
            return Ok(None);
        };
        let base = self.base.join("other");
        context(fs::create_dir_all(&base), || format!("cannot make {}", base.display()))?;
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let mut other = Volume::with(&base, &flags)?;
        other.space = cluster.hosts()?.into_iter().nth(1);
        other.start()?;
        Ok(Some(other))
    }

    /// The mount point.
    pub fn mountpoint(&self) -> PathBuf {
        self.base.join("mnt")
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.base.join("data")
    }

    /// Runs the program with other arguments to its end.
    pub fn outboard(&self, args: &[&OsStr]) -> Result<Ended> {
        let mut command = Command::new(&self.program);
        command.args(args);
        run_limited(command, STATUS_LIMIT, &self.base.join("outboard.log"))
    }

    /// Where the DPU side listens.
    pub fn socket(&self) -> PathBuf {
        self.data().join("dpu.sock")
    }

    /// Has a command and all it starts use the volume through `liboutboard_preload.so`, which lies
    /// beside the program under test.
    pub fn preload(&self, command: &mut Command) -> Result<()> {
        let library = self.program.with_file_name("liboutboard_preload.so");
        if !library.is_file() {
            return Err(format!("no {}; build the package outboard-preload", library.display()));
        }
        command.env("LD_PRELOAD", library);
        command.env("OUTBOARD_PREFIX", self.mountpoint()).env("OUTBOARD_SOCKET", self.socket());
        Ok(())
    }

    /// The log of every `outboard run` so far.
    pub fn log(&self) -> PathBuf {
        self.base.join("run.log")
    }

    /// Starts `outboard run` and waits until the volume answers.
    pub fn start(&mut self) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(self.log());
        let log = context(log, || "cannot open the log".to_owned())?;
        let errors = context(log.try_clone(), || "cannot share the log".to_owned())?;
        let mut command = match &self.space {
            None => Command::new(&self.program),
            // `ip netns exec` would hide the mount, too.
            Some(space) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{space}")).arg(&self.program);
                command
            }
        };
        command.arg("run").arg("--data").arg(self.data()).args(&self.flags).arg(self.mountpoint());
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let child = context(command.spawn(), || format!("cannot start {command:?}"))?;
        self.child = Some(child);
        let mountpoint = self.mountpoint();
        // In this order: a mount that a killed process left does not answer, and once it is cleared
        // the directory below does until the new one is there.
        let ready = wait_until(START_LIMIT, || {
            !self.is_running() || (answers(&mountpoint) && is_mounted(&mountpoint))
        });
        if !self.is_running() {
            self.child = None;
            return Err(format!("`outboard run` ended at once:\n{}", self.log_tail()));
        }
        if ready {
            return Ok(());
        }
        Err(format!("not mounted within {} s:\n{}", START_LIMIT.as_secs(), self.log_tail()))
    }

    fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// A second mount of the running volume, in `BASE/twin`, with the same flags but for the cache.
    pub fn twin(&self, cache: &str) -> Result<Twin> {
        let mountpoint = self.base.join("twin");
        context(fs::create_dir_all(&mountpoint), || format!("no {}", mountpoint.display()))?;
        let log = OpenOptions::new().create(true).append(true).open(self.log());
        let log = context(log, || "cannot open the log".to_owned())?;
        let errors = context(log.try_clone(), || "cannot share the log".to_owned())?;
        let mut command = Command::new(&self.program);
        let caches = |flag: &&String| flag.starts_with("--cache") || *flag == "--shares";
        let flags = self.flags.iter().filter(|flag| !caches(flag));
        command.arg("mount").arg("--data").arg(self.data()).args(flags).arg(cache).arg(&mountpoint);
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let child = context(command.spawn(), || format!("cannot start {command:?}"))?;
        let mut twin = Twin { child, mountpoint };
        let is_over = |twin: &mut Twin| !matches!(twin.child.try_wait(), Ok(None));
        let ready = wait_until(START_LIMIT, || {
            is_over(&mut twin) || (answers(&twin.mountpoint) && is_mounted(&twin.mountpoint))
        });
        if ready && !is_over(&mut twin) {
            return Ok(twin);
        }
        Err(format!("`outboard mount` does not mount:\n{}", self.log_tail()))
    }

    /// Ends `outboard run` as Ctrl-C or a service manager does, and waits for a clean end.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else {
            return Err("not running".to_owned());
        };
        context(kill_process(Pid::from_child(&child), Signal::TERM), || "SIGTERM".to_owned())?;
        let status = wait_limited(&mut child, STOP_LIMIT)?;
        let Some(status) = status else {
            self.child = Some(child);
            return Err(format!("not ended {} s after SIGTERM", STOP_LIMIT.as_secs()));
        };
        if !status.success() {
            return Err(format!("`outboard run` ended with {status}:\n{}", self.log_tail()));
        }
        if is_mounted(&self.mountpoint()) {
            return Err("still mounted after a clean end".to_owned());
        }
        Ok(())
    }

    /// Waits for `outboard run` to end by itself, as after an unmount; its exit code.
    pub fn wait_end(&mut self) -> Result<Option<i32>> {
        let Some(mut child) = self.child.take() else {
            return Err("not running".to_owned());
        };
        match wait_limited(&mut child, STOP_LIMIT)? {
            Some(status) => Ok(status.code()),
            None => {
                self.child = Some(child);
                Err(format!("`outboard run` still runs after {} s", STOP_LIMIT.as_secs()))
            }
        }
    }

    /// The process of one side.
    pub fn pid(&self, side: Side) -> Result<Pid> {
        let status = self.status()?;
        let key = match side {
            Side::Host => "host",
            Side::Dpu => "dpu",
        };
        if side == Side::Host
            && let Some(child) = &self.child
        {
            return Ok(Pid::from_child(child));
        }
        let number = status[key]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        let pid = number.and_then(Pid::from_raw);
        pid.ok_or_else(|| format!("`outboard status --json` has no {key}.pid: {status}"))
    }

    /// What `outboard status --json` says.
    pub fn status(&self) -> Result<Value> {
        let mut command = Command::new(&self.program);
        command.arg("status").arg("--json").arg("--data").arg(self.data());
        let ended = run_limited(command, STATUS_LIMIT, &self.base.join("status.log"))?;
        if ended.code() != Some(0) {
            return Err(format!("`outboard status` failed: {}", ended.tail(5)));
        }
        // Log lines may stand before the document.
        let json = ended.output.find('{').map_or("", |at| &ended.output[at..]);
        context(serde_json::from_str(json), || "`outboard status --json`".to_owned())
    }

    /// kill -9 of the given sides, as nearly at once as can be.
    pub fn kill(&mut self, sides: &[Side]) -> Result<()> {
        let pids: Vec<Pid> = sides.iter().map(|side| self.pid(*side)).collect::<Result<_>>()?;
        for pid in &pids {
            context(kill_process(*pid, Signal::KILL), || format!("kill -9 {pid:?}"))?;
        }
        if sides.contains(&Side::Host)
            && let Some(mut child) = self.child.take()
        {
            wait_limited(&mut child, STOP_LIMIT)?;
        }
        Ok(())
    }

    /// kill -9 of the process that serves the mount beside `run`, of
    /// the DPU side, or of both. False if one of them is just being replaced.
    pub fn kill_below_run(&self, mount: bool, dpu: bool) -> bool {
        let mount = mount.then(|| self.server());
        let dpu = dpu.then(|| self.pid(Side::Dpu).ok());
        let pids = [mount, dpu].into_iter().flatten();
        let Some(pids) = pids.collect::<Option<Vec<Pid>>>() else { return false };
        // Every one of them, also if one has just ended.
        pids.iter().filter(|pid| kill_process(**pid, Signal::KILL).is_ok()).count() == pids.len()
    }

    /// The process that serves the mount beside `run`.
    fn server(&self) -> Option<Pid> {
        let data = self.data();
        let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| {
            entry.ok()?.file_name().to_str()?.parse::<i32>().ok().and_then(Pid::from_raw)
        });
        let mut found = processes.filter(|pid| {
            let line = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
            let line = fs::read(line).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0).map(OsStr::from_bytes).skip(1);
            words.next() == Some(OsStr::new("mounted"))
                && words.any(|word| word.as_bytes().ends_with(data.as_os_str().as_bytes()))
        });
        found.next()
    }

    /// Waits until the DPU side answers.
    pub fn wait_for_dpu(&self) -> Result<()> {
        let is_there = wait_until(START_LIMIT, || self.pid(Side::Dpu).is_ok());
        if is_there { Ok(()) } else { Err("the DPU side does not come back".to_owned()) }
    }

    /// kill -9 of the DPU side that `run` starts next, `soon` after it first answers.
    pub fn kill_next_dpu(&mut self, soon: Duration) -> Result<()> {
        let mut pid = Err(String::new());
        wait_until(START_LIMIT, || {
            pid = self.pid(Side::Dpu);
            pid.is_ok()
        });
        sleep(soon);
        let pid = context(pid, || "the DPU side does not come back".to_owned())?;
        context(kill_process(pid, Signal::KILL), || format!("kill -9 {pid:?}"))
    }

    /// `outboard fsck`: whole when the volume is stopped, metadata and space when it runs.
    pub fn check(&self) -> Result<()> {
        if let Some(cluster) = &self.cluster {
            return cluster.check();
        }
        let mut command = Command::new(&self.program);
        command.arg("fsck").arg("--data").arg(self.data());
        let ended = run_limited(command, CHECK_LIMIT, &self.base.join("fsck.log"))?;
        match ended.code() {
            Some(0) => Ok(()),
            Some(code) => Err(format!("fsck ended with {code}:\n{}", ended.tail(20))),
            None => Err(format!("fsck did not end:\n{}", ended.tail(20))),
        }
    }

    /// The last lines of the log.
    pub fn log_tail(&self) -> String {
        let text = fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Ends whatever is left, whatever state it is in.
    fn clear(&mut self) {
        // Each step may find nothing to do; what cannot be ended is named by the next start.
        let dpu = self.pid(Side::Dpu).ok();
        if let Some(mut child) = self.child.take() {
            _ = child.kill();
            _ = wait_limited(&mut child, STOP_LIMIT);
        }
        if let Some(pid) = dpu
            && test_kill_process(pid).is_ok()
        {
            _ = kill_process(pid, Signal::KILL);
        }
        if is_mounted(&self.mountpoint()) {
            let mut command = Command::new(&self.program);
            command.arg("umount").arg("--lazy").arg(self.mountpoint());
            _ = run_limited(command, STATUS_LIMIT, &self.base.join("umount.log"));
        }
        if is_mounted(&self.mountpoint()) {
            let mut command = Command::new("umount");
            command.arg("-l").arg(self.mountpoint());
            _ = run_limited(command, STATUS_LIMIT, &self.base.join("umount.log"));
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Whether the mount is served. Attributes may come from the kernel's cache after the death of who
/// served them; an open directory does not.
fn answers(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none_or(|entry| entry.is_ok()))
}

/// Whether something is mounted exactly there.
fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == path))
}
