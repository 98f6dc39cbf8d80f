//! A mount whose process is killed while the kernel holds one of its threads.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "../../../worlds/os/tests/skips/mod.rs"]
mod skips;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};

const TEST: &str = "a_mount_whose_process_cannot_end_is_cleared";
const LIMIT: Duration = Duration::from_secs(60);

/// Processes of one volume and their two mounts; all of them end with it.
struct Mounts {
    dir: tempfile::TempDir,
    processes: Vec<Child>,
}

impl Mounts {
    fn start(&mut self, at: &str, args: &[&str]) {
        std::fs::create_dir(self.dir.path().join(at)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_outboard"))
            .args(args)
            .arg(format!("--data={}", self.dir.path().join("data").display()))
            .arg(self.dir.path().join(at))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        self.processes.push(child);
        assert!(line.starts_with("mounted"), "{line}");
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for at in ["first", "second"] {
            let how = UnmountFlags::FORCE | UnmountFlags::DETACH;
            let _ = unmount(self.dir.path().join(at), how);
        }
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
        // Its DPU side ends when it is asked to.
        let data = self.dir.path().join("data");
        let _ = Command::new("pkill")
            .args(["-f", "--"])
            .arg(format!("dpu --data={}", data.display()))
            .status();
    }
}

/// Whether a thread of this name waits in the kernel, whatever signal comes.
fn is_held(pid: u32, name: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.map(|task| std::fs::read_to_string(task.path().join("stat"))).any(|stat| {
        let stat = stat.unwrap_or_default();
        stat.split_once(") ")
            .is_some_and(|(head, rest)| head.ends_with(name) && rest.starts_with('D'))
    })
}

fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        let found = look();
        if found.is_some() || begun.elapsed() > limit {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn says_connections(pid: u32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    let mut infos = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    infos.any(|info| info.contains("fuse_connection"))
}

/// Reads a page of the first mount while the second changes another part of the file, until the
/// first one's process tells the kernel of that and is held by the page; who reads it.
fn hold(first: &Path, second: &Path, pid: u32) -> Child {
    let change = File::options().write(true).open(second).unwrap();
    for round in 0..20u8 {
        // Not this process: what it starts would begin by closing the file, and hang for that.
        let mut reader = Command::new("head")
            .args(["-c", "4096"])
            .arg(first)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(150));
        change.write_all_at(&[round; 65536], 3 << 20).unwrap();
        if within(Duration::from_millis(400), || is_held(pid, "fuse-notify").then_some(()))
            .is_some()
        {
            return reader;
        }
        assert!(reader.wait().unwrap().success());
    }
    panic!("nobody was held")
}

/// The thread that tells the kernel of a change waits for a page that a program reads, and the
/// program for this process: kill -9 did not end it, the kernel kept the connection open, and
/// whoever asked the mount for something hung for ever; `umount` and the next `run`, too.
#[test]
fn a_mount_whose_process_cannot_end_is_cleared() {
    if !rustix::process::geteuid().is_root() || File::open("/dev/fuse").is_err() {
        return skips::note_skip(TEST, "needs root and /dev/fuse");
    }
    let mut mounts = Mounts { dir: tempfile::tempdir().unwrap(), processes: Vec::new() };
    let (first, second) = (mounts.dir.path().join("first"), mounts.dir.path().join("second"));
    // A read of the data file takes a second: long enough for a change to come.
    let slowly = ["--size=256M", "--memory=16M", "--read-delay=1000000"];
    mounts.start("first", &[&["run", "--on-mount-loss=end"][..], &slowly].concat());
    let pid = mounts.processes[0].id();
    if !says_connections(pid) {
        return skips::note_skip(TEST, "this kernel does not say who holds a connection");
    }
    mounts.start("second", &["mount"]);
    std::fs::write(second.join("file"), vec![7; 4 << 20]).unwrap();
    let mut reader = hold(&first.join("file"), &second.join("file"), pid);
    mounts.processes[0].kill().unwrap();

    let mut umount = Command::new(env!("CARGO_BIN_EXE_outboard"))
        .arg("umount")
        .arg(&first)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ended = within(LIMIT, || umount.try_wait().unwrap());
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    let said = umount.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&said.stdout).starts_with("cleared"), "{said:?}");
    let read = within(LIMIT, || reader.try_wait().unwrap());
    assert!(read.is_some_and(|status| !status.success()), "{read:?}");
    let ended = within(LIMIT, || mounts.processes[0].try_wait().unwrap());
    assert!(ended.is_some(), "its process has ended");
    assert_eq!(std::fs::read_dir(&first).unwrap().count(), 0, "nothing is mounted there");
    // Everybody else goes on.
    assert_eq!(std::fs::metadata(second.join("file")).unwrap().len(), 4 << 20);
}
