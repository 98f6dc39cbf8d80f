//! A mount whose holder is killed, where a service manager keeps what it consists of: programs wait
//! for the next process of the service, and go on. The manager is played by the test, as
//! `sd_notify(3)` and `sd_listen_fds(3)` have it.

#![expect(clippy::unwrap_used, reason = "a test")]

#[allow(unused, reason = "shared with tests that use more of it")]
mod running;
#[path = "../../../worlds/os/tests/skips/mod.rs"]
mod skips;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::FdFlags;
use rustix::mount::UnmountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, Signal, kill_process};

use running::{Running, until};

/// What is stored lies above the numbers that a service finds it under.
const HIGH: i32 = 100;

/// A manager with one service.
struct Manager {
    dir: tempfile::TempDir,
    socket: UnixDatagram,
    stored: BTreeMap<String, OwnedFd>,
    /// How often the service said that it is there.
    ready: usize,
}

impl Manager {
    fn new() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Manager { dir, socket, stored: BTreeMap::new(), ready: 0 }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    /// Starts the service with what is stored: descriptors from 3 on.
    fn start(&self, flags: &str) -> Child {
        let names: Vec<&str> = self.stored.keys().map(String::as_str).collect();
        let mut script = String::from("exec");
        for (number, fd) in (3..).zip(self.stored.values()) {
            rustix::io::fcntl_setfd(fd, FdFlags::empty()).unwrap();
            script.push_str(&format!(" {number}<&{}", fd.as_raw_fd()));
        }
        // A service has nothing open but what it is given.
        for fd in self.stored.values() {
            script.push_str(&format!(" {}<&-", fd.as_raw_fd()));
        }
        let log = File::options().create(true).append(true).open(self.path().join("log")).unwrap();
        let program = env!("CARGO_BIN_EXE_outboard");
        Command::new("bash")
            .arg("-c")
            .arg(format!(
                "{script}; LISTEN_PID=$$ exec {program} run --size=256M --memory=16M {flags} \
                 --data=data mnt"
            ))
            .current_dir(self.path())
            .env("NOTIFY_SOCKET", self.path().join("notify"))
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Takes one message.
    fn hear(&mut self) {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(&self.socket, &mut into, &mut control, flags);
        assert!(got.is_ok(), "{got:?}: {}", self.log());
        let got = got.unwrap().bytes;
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let text = std::str::from_utf8(&bytes[..got]).unwrap();
        let says = |wanted: &str| text.lines().any(|line| line == wanted);
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).map(str::to_owned);
        if says("FDSTORE=1") {
            let high = rustix::io::fcntl_dupfd_cloexec(fd.unwrap(), HIGH).unwrap();
            // A real one would keep both, and hand both over.
            assert!(self.stored.insert(name.unwrap(), high).is_none(), "stored twice: {text}");
        } else if says("FDSTOREREMOVE=1") {
            self.stored.remove(&name.unwrap());
        } else {
            assert!(says("READY=1"), "{text}");
            self.ready += 1;
        }
    }

    fn until_ready(&mut self) {
        let before = self.ready;
        while self.ready == before {
            self.hear();
        }
    }

    /// kill -9 of the service; of all its processes, or of the first alone.
    fn kill(&self, run: &mut Child, all: bool) {
        run.kill().unwrap();
        run.wait().unwrap();
        if all {
            self.kill_others();
        }
    }

    fn kill_others(&self) {
        let data = format!("--data={}", self.path().join("data").display());
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if words.split(|byte| *byte == 0).any(|word| word == data.as_bytes()) {
                let _gone = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            }
        }
    }

    fn unmount_by_force(&self) -> rustix::io::Result<()> {
        rustix::mount::unmount(self.path().join("mnt"), UnmountFlags::FORCE)
    }

    /// The service ends in order; nothing is mounted, and nothing stored.
    fn end(&mut self, mut run: Child) {
        let pid = Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert!(run.wait().unwrap().success(), "{}", self.log());
        while !self.stored.is_empty() {
            self.hear();
        }
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        assert!(!mounts.contains(self.path().to_str().unwrap()), "{mounts}");
    }
}

/// A test that failed leaves nobody waiting for a mount that nobody serves.
impl Drop for Manager {
    fn drop(&mut self) {
        let _ended = self.unmount_by_force();
        let _gone = rustix::mount::unmount(self.path().join("mnt"), UnmountFlags::DETACH);
        self.kill_others();
    }
}

/// A program with open files on the mount: a name that is gone, a lock, appended records. One line
/// of input is one round, which it repeats when it is done.
const PROGRAM: &str = r#"
exec 9<>nameless 8>>counted 7>locked
rm nameless
flock -n 7 || exit 1
while read round; do
    echo $round >&9 && echo $round >&8 && echo $round > round$round && cat round$round
done
cat /proc/$$/fd/9
"#;

/// kill -9 of `run` was the end of the mount: it holds the connection, and whoever else had it let
/// go of it then. With a manager that keeps it, open files, names that are gone, locks and what the
/// kernel had collected outlive every process of the service.
#[test]
fn a_mount_outlives_every_process_of_its_service() {
    for flags in ["", "--cache=write-back"] {
        if Running::is_skipped("a_mount_outlives_every_process_of_its_service") {
            return;
        }
        let mut manager = Manager::new();
        let mut run = manager.start(flags);
        manager.until_ready();
        assert_eq!(manager.stored.len(), 6, "terms, three pieces of memory, two queues");
        let mount = manager.path().join("mnt");
        // This process opens nothing there: each program it starts would close it first, and wait.
        let mut program = Command::new("bash")
            .args(["-c", PROGRAM])
            .current_dir(&mount)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = program.stdin.take().unwrap();
        let mut output = BufReader::new(program.stdout.take().unwrap());
        let mut expected = String::new();
        for round in 0..6 {
            writeln!(input, "{round}").unwrap();
            manager.kill(&mut run, round % 2 == 0);
            std::thread::sleep(Duration::from_millis(100));
            run = manager.start(flags);
            manager.until_ready();
            let mut said = String::new();
            output.read_line(&mut said).unwrap();
            assert_eq!(said, format!("{round}\n"), "{}", manager.log());
            expected.push_str(&said);
            let mut other = Command::new("flock");
            other.arg("-n").arg(mount.join("locked")).arg("true");
            assert!(!other.status().unwrap().success(), "the lock is held");
        }
        drop(input);
        let mut said = String::new();
        output.read_to_string(&mut said).unwrap();
        assert_eq!(said, expected, "of the file without a name");
        assert!(program.wait().unwrap().success());
        assert_eq!(std::fs::read_to_string(mount.join("counted")).unwrap(), expected);
        manager.end(run);
    }
}

/// Another volume, or other queues, under a kernel that knows the old one's inodes would be worse
/// than no mount.
#[test]
fn a_mount_of_other_settings_is_not_taken_over() {
    if Running::is_skipped("a_mount_of_other_settings_is_not_taken_over") {
        return;
    }
    let mut manager = Manager::new();
    let mut run = manager.start("");
    manager.until_ready();
    manager.kill(&mut run, false);
    let mut other = manager.start("--queues=4");
    assert_eq!(other.wait().unwrap().code(), Some(2), "{}", manager.log());
    let said = manager.log();
    assert!(said.contains("other settings; stop the service"), "{said}");
    // A part of it alone is no mount.
    let region = manager.stored.remove("outboard-region").unwrap();
    let mut other = manager.start("");
    assert_eq!(other.wait().unwrap().code(), Some(2));
    assert!(manager.log().contains("a part of it is missing"));
    manager.stored.insert("outboard-region".to_owned(), region);
    let run = manager.start("");
    manager.until_ready();
    manager.end(run);
}

/// A mount that was ended while nobody served it is made anew.
#[test]
fn a_mount_that_was_ended_meanwhile_is_made_anew() {
    if Running::is_skipped("a_mount_that_was_ended_meanwhile_is_made_anew") {
        return;
    }
    let mut manager = Manager::new();
    let mut run = manager.start("");
    manager.until_ready();
    manager.kill(&mut run, true);
    let at = manager.path().join("mnt");
    until("the end of the mount", || manager.unmount_by_force().ok());
    let run = manager.start("--queues=4");
    manager.until_ready();
    assert_eq!(manager.stored.len(), 8, "other settings, four queues");
    assert!(manager.log().contains("mounting anew"), "{}", manager.log());
    std::fs::write(at.join("file"), b"there").unwrap();
    manager.end(run);
}
