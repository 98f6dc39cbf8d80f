//! A mount that outlives its process, started, killed and ended by tests.

#![allow(dead_code, reason = "no test uses all of it")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::skips;

const LIMIT: Duration = Duration::from_secs(60);

/// A mount of `outboard run`, told to end when dropped.
pub(crate) struct Running {
    pub(crate) run: Child,
    dir: Option<tempfile::TempDir>,
}

impl Running {
    /// `None` where it [`is_skipped`](Running::is_skipped).
    pub(crate) fn start(test: &str, flags: &[&str]) -> Option<Running> {
        if Running::is_skipped(test) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        Some(Running::on(dir, flags))
    }

    /// Where nothing can be mounted, or a kernel sends nothing again.
    pub(crate) fn is_skipped(test: &str) -> bool {
        let root = rustix::process::geteuid().is_root();
        let skipped = !root || File::open("/dev/fuse").is_err() || !resends();
        if skipped {
            skips::note_skip(test, "needs root, /dev/fuse and Linux 6.9");
        }
        skipped
    }

    /// A mount of the volume in `dir`, which is made if it is not there.
    pub(crate) fn on(dir: tempfile::TempDir, flags: &[&str]) -> Running {
        Running::of(Path::new(env!("CARGO_BIN_EXE_outboard")), dir, flags)
    }

    /// The same by a program of another path.
    pub(crate) fn of(program: &Path, dir: tempfile::TempDir, flags: &[&str]) -> Running {
        let mut run = Command::new(program)
            .args(["run", "--size=256M", "--memory=16M"])
            .args(flags)
            .arg(format!("--data={}", dir.path().join("data").display()))
            .arg(dir.path().join("mnt"))
            .stdout(Stdio::piped())
            .stderr(File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let running = Running { run, dir: Some(dir) };
        assert!(line.starts_with("mounted"), "{line}{}", running.log());
        running
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path().join("mnt").join(name)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    /// How many processes the mount has had.
    pub(crate) fn processes(&self) -> usize {
        self.log().matches("started the process of the mount").count()
    }

    /// The process whose second word is `role`, of this volume.
    pub(crate) fn pid(&self, role: &str) -> Option<i32> {
        let data = format!("--data={}", self.data().display());
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()).find(|pid| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = words.split(|byte| *byte == 0).skip(1);
            words.next() == Some(role.as_bytes()) && words.any(|word| word == data.as_bytes())
        })
    }

    /// False if there was none.
    pub(crate) fn signal(&self, role: &str, signal: Signal) -> bool {
        let Some(pid) = self.pid(role).and_then(Pid::from_raw) else { return false };
        kill_process(pid, signal).is_ok()
    }

    /// kill -9; false if there was none.
    pub(crate) fn kill(&self, role: &str) -> bool {
        self.signal(role, Signal::KILL)
    }

    /// The same; between two of them, the next.
    pub(crate) fn kill_one(&self, role: &str) {
        until(role, || self.kill(role).then_some(()));
    }

    /// Kills the mount's process, and waits for the next.
    pub(crate) fn replace(&self) {
        let before = until("a process", || self.pid("mounted"));
        kill_process(Pid::from_raw(before).unwrap(), Signal::KILL).unwrap();
        until("a successor", || self.pid("mounted").filter(|pid| *pid != before));
    }

    /// The directory of one whose `run` has ended.
    pub(crate) fn take(&mut self) -> tempfile::TempDir {
        self.dir.take().unwrap()
    }

    pub(crate) fn tell_to_end(&self) {
        let pid = Pid::from_raw(i32::try_from(self.run.id()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }

    /// Ends in order: nothing stays mounted, and the volume is whole. The directory it lies in.
    pub(crate) fn end(mut self) -> tempfile::TempDir {
        self.tell_to_end();
        let status = until("an end", || self.run.try_wait().unwrap());
        assert!(status.success(), "{status}: {}", self.log());
        let fsck = Command::new(env!("CARGO_BIN_EXE_outboard"))
            .args(["fsck", "--data"])
            .arg(self.data())
            .output()
            .unwrap();
        assert!(fsck.status.success(), "{}", String::from_utf8_lossy(&fsck.stdout));
        self.dir.take().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.dir.is_none() {
            return;
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let at = self.path().join("mnt");
        let _ = rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH);
        if let Ok(None) = self.run.try_wait() {
            let _ = self.run.kill();
            let _ = self.run.wait();
        }
        self.kill("mounted");
        self.kill("dpu");
    }
}

/// Linux 6.9 or later.
fn resends() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split('.').map(|word| word.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 9)
}

pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
