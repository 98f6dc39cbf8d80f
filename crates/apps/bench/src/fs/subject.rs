//! The file systems measured, and the processes that serve them: started here, stopped when
//! dropped.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cpu::{CpuMoment, CpuSeconds};
use crate::programs;
use crate::workload::Outcome;

/// What CPU time is told apart by, in reports.
pub(crate) const APPLICATION: &str = "application";
pub(crate) const HOST: &str = "host side";
pub(crate) const DPU: &str = "DPU side";
/// How long a host may take to attach.
const ATTACH_LIMIT: Duration = Duration::from_secs(10);

/// What one measurement gave, and took.
pub(crate) struct Run {
    pub(crate) outcome: Outcome,
    pub(crate) cpu: CpuSeconds,
    /// The time in which that CPU time was used.
    pub(crate) wall: Duration,
    /// DMAs by kind.
    pub(crate) dmas: BTreeMap<String, u64>,
}

/// What every subject is made from.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// Holds the data of all.
    pub(crate) dir: &'a Path,
    /// The program, started anew for each.
    pub(crate) program: &'a Path,
    /// What every volume is mounted with.
    pub(crate) flags: &'a [&'a str],
    /// Ctrl-C is not for the program: whoever asks ends it.
    pub(crate) apart: bool,
}

/// One file system under measurement, and the processes that serve it.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// Where it is reached.
    pub(crate) dir: PathBuf,
    /// Whose CPU time is told apart.
    pub(crate) processes: Vec<(String, u32)>,
    /// The plain directory behind it, for those who have one.
    pub(crate) behind: Option<PathBuf>,
    /// Where the DPU side is asked for its ledger.
    pub(crate) data: Option<PathBuf>,
    _serving: Option<Serving>,
}

impl Subject {
    /// A volume mounted with `flags`.
    pub(crate) fn outboard(
        ask: &Ask<'_>,
        name: &'static str,
        flags: &[&str],
    ) -> io::Result<Subject> {
        let data = ask.dir.join(format!("{name}-data"));
        let mut args = vec!["run", "--log=warn", "--data", text(&data)?];
        args.extend(ask.flags.iter().chain(flags));
        let dir = ask.dir.join(name);
        let mut command = Command::new(ask.program);
        command.args(args);
        if ask.apart {
            command.process_group(0);
        }
        let serving = Serving::start(command, &dir)?;
        let mut processes = sides_when_attached(ask.program, &data)?;
        for (whose, pid) in &mut processes {
            if whose == HOST {
                *pid = process_of_mount(*pid).unwrap_or(*pid);
            }
        }
        processes.push(me());
        let data = Some(data);
        Ok(Subject { name, dir, processes, behind: None, data, _serving: Some(serving) })
    }

    /// A plain FUSE passthrough mounted with `flags`.
    pub(crate) fn fuse(ask: &Ask<'_>, name: &'static str, flags: &[&str]) -> io::Result<Subject> {
        let source = ask.dir.join(format!("{name}-source"));
        std::fs::create_dir_all(&source)?;
        let dir = ask.dir.join(name);
        let mut command = programs::own("passthrough")?;
        command.args(flags).arg(&source);
        let serving = Serving::start(command, &dir)?;
        let processes = vec![(HOST.to_owned(), serving.child.id()), me()];
        let behind = Some(source);
        Ok(Subject { name, dir, processes, behind, data: None, _serving: Some(serving) })
    }

    /// Has the kernel collect as much of this mount's writes as of the other's, where it may be
    /// said (as root, from Linux 6.2).
    pub(crate) fn collects_like(&self, other: &Subject) -> io::Result<()> {
        let limit = |subject: &Subject| {
            let device = std::fs::metadata(&subject.dir)?.dev();
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            Ok::<_, io::Error>(format!("/sys/class/bdi/{major}:{minor}/max_bytes"))
        };
        let (theirs, ours) = (limit(other)?, limit(self)?);
        match std::fs::read(theirs).and_then(|bytes| std::fs::write(ours, bytes)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            outcome => outcome,
        }
    }

    /// A directory of the local file system.
    pub(crate) fn plain(ask: &Ask<'_>) -> io::Result<Subject> {
        let dir = ask.dir.join("plain");
        std::fs::create_dir_all(&dir)?;
        let (processes, name) = (vec![me()], "plain");
        Ok(Subject { name, dir, processes, behind: None, data: None, _serving: None })
    }

    /// The volume of `of`, reached from this process past the kernel.
    pub(crate) fn client(of: &Subject, name: &'static str) -> Subject {
        let mut processes = of.processes.clone();
        processes.retain(|(whose, _)| whose != HOST);
        let (dir, data) = (of.dir.clone(), of.data.clone());
        Subject { name, dir, processes, behind: None, data, _serving: None }
    }

    /// Does `act` and says what it took: CPU time around all of it, DMAs where there is a DPU side.
    pub(crate) fn watch(
        &self,
        program: &Path,
        act: impl FnOnce() -> io::Result<Outcome>,
    ) -> io::Result<Run> {
        let dmas_before = self.dmas(program)?;
        let (start, before) = (Instant::now(), CpuMoment::now(&self.processes)?);
        let outcome = act()?;
        let (wall, after) = (start.elapsed(), CpuMoment::now(&self.processes)?);
        let mut dmas = self.dmas(program)?;
        for (kind, count) in &mut dmas {
            *count = count.saturating_sub(dmas_before.get(kind).copied().unwrap_or(0));
        }
        Ok(Run { outcome, cpu: after.since(&before), wall, dmas })
    }

    /// DMAs so far, by kind; none where there is no DPU side.
    fn dmas(&self, program: &Path) -> io::Result<BTreeMap<String, u64>> {
        self.data.as_ref().map_or_else(|| Ok(BTreeMap::new()), |data| dmas(program, data))
    }
}

fn me() -> (String, u32) {
    (APPLICATION.to_owned(), std::process::id())
}

fn text(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::other("the path is not UTF-8"))
}

/// The process that serves a mount which outlives it: a child of the host.
fn process_of_mount(host: u32) -> Option<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{host}/task")).ok()?;
    let children = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|all| all.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect();
    children.into_iter().find(|pid| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(b"mounted")
    })
}

/// DMAs of a DPU side so far, by kind.
fn dmas(program: &Path, data: &Path) -> io::Result<BTreeMap<String, u64>> {
    let status = status(program, data)?;
    let kinds = status.pointer("/dpu/ledger/dma").and_then(serde_json::Value::as_object);
    let kinds = kinds.ok_or_else(|| io::Error::other("`status --json` has no DMA ledger"))?;
    let count = |figures: &serde_json::Value| {
        figures.get("operations").and_then(serde_json::Value::as_u64).unwrap_or(0)
    };
    Ok(kinds.iter().map(|(kind, figures)| (kind.clone(), count(figures))).collect())
}

/// What the program says of both sides.
pub(crate) fn status(program: &Path, data: &Path) -> io::Result<serde_json::Value> {
    let output = Command::new(program).args(["status", "--json", "--data"]).arg(data).output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The same, once the mount's process is attached: a mount that outlives it is there before.
fn sides_when_attached(program: &Path, data: &Path) -> io::Result<Vec<(String, u32)>> {
    let begun = Instant::now();
    loop {
        match sides(program, data) {
            Err(_) if begun.elapsed() < ATTACH_LIMIT => std::thread::sleep(ATTACH_LIMIT / 1000),
            found => return found,
        }
    }
}

/// Pids of the two sides.
fn sides(program: &Path, data: &Path) -> io::Result<Vec<(String, u32)>> {
    let status = status(program, data)?;
    let pid = |key: &str| {
        let pid = status.get(key).and_then(|side| side.get("pid"));
        pid.and_then(serde_json::Value::as_u64).and_then(|pid| u32::try_from(pid).ok())
    };
    let missing = || io::Error::other("`status --json` names no pid of a side");
    Ok(vec![
        (HOST.to_owned(), pid("host").ok_or_else(missing)?),
        (DPU.to_owned(), pid("dpu").ok_or_else(missing)?),
    ])
}

/// A child that mounts something until it is told to stop.
struct Serving {
    child: Child,
    mountpoint: PathBuf,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // A child that has already ended is what we want.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("bench: {} did not stop in 20 s; killing it", self.mountpoint.display());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn device(path: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map(|meta| meta.dev())
}

impl Serving {
    /// Starts `command mountpoint` and waits until something is mounted there.
    fn start(mut command: Command, mountpoint: &Path) -> io::Result<Serving> {
        std::fs::create_dir_all(mountpoint)?;
        let before = device(mountpoint)?;
        let child = command.arg(mountpoint).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut serving = Serving { child, mountpoint: mountpoint.to_owned() };
        let end = Instant::now() + Duration::from_secs(30);
        while Instant::now() < end {
            if device(mountpoint).is_ok_and(|now| now != before) {
                return Ok(serving);
            }
            if let Some(status) = serving.child.try_wait()? {
                return Err(io::Error::other(format!("{command:?} ended: {status}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(io::Error::other(format!("nothing was mounted at {} in 30 s", mountpoint.display())))
    }
}
