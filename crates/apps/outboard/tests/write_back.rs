//! `--cache write-back`, as programs see it: the kernel answers writes by itself, and what it has
//! answered outlives every process, shows the times and the space it should, and is told when it
//! cannot be written.

#![expect(clippy::unwrap_used, reason = "a test")]

mod running;
#[path = "../../../worlds/os/tests/skips/mod.rs"]
mod skips;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use outboard_attach::host::Connect;
use outboard_client::Volume;

use rustix::process::Signal;

use running::Running;

const WRITE_BACK: &[&str] = &["--cache=write-back"];

fn outboard(words: &[&str], data: &Path, place: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
    command.args(words).arg(format!("--data={}", data.display())).arg(place).output().unwrap()
}

/// Why a program past the kernel cannot attach.
fn attached(socket: &Path) -> String {
    let connect = Connect::new(socket);
    let volume = Volume::attach(|front| connect.attach(front));
    volume.err().map(|error| error.to_string()).unwrap_or_default()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sizes, modes, times of every file, by name; not access times, which reading moves.
fn listing(dir: &Path) -> BTreeMap<String, [i64; 6]> {
    let entry = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let found = entry.metadata().unwrap();
        let size = i64::try_from(found.size()).unwrap();
        let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
        let [a, b, c, d] = times;
        (entry.file_name().into_string().unwrap(), [size, found.mode().into(), a, b, c, d])
    };
    std::fs::read_dir(dir).unwrap().map(entry).collect()
}

/// The promise that kept the kernel from collecting writes: what was answered survives kill -9 of
/// the mount's process, of the DPU side, of both. Bytes that nobody synced, over and over.
#[test]
fn what_the_kernel_answered_outlives_every_process() {
    let Some(mount) = Running::start("what_the_kernel_answered", WRITE_BACK) else { return };
    let mut model = vec![0_u8; 4 << 20];
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(mount.at("file")).unwrap();
    let mut log = OpenOptions::new().append(true).create(true).open(mount.at("log")).unwrap();
    let mut lines = String::new();
    for round in 0_u64..12 {
        for n in 0..300 {
            let at = (round * 7919 + n * 104_729) % (model.len() as u64 - 5000);
            let byte = u8::try_from((round + n) % 255).unwrap() + 1;
            let len = 1 + usize::try_from(n * 37 % 5000).unwrap();
            file.write_all_at(&vec![byte; len], at).unwrap();
            let at = usize::try_from(at).unwrap();
            model[at..at + len].fill(byte);
            let line = format!("{round} {n}\n");
            log.write_all(line.as_bytes()).unwrap();
            lines.push_str(&line);
        }
        match round % 4 {
            0 | 1 => mount.replace(),
            2 => mount.kill_one("dpu"),
            _ => ["dpu", "mounted"].into_iter().for_each(|role| mount.kill_one(role)),
        }
    }
    drop((file, log));
    // What the kernel kept is gone with the mount: this is what the volume has.
    let again = Running::on(mount.end(), &[]);
    let mut found = std::fs::read(again.at("file")).unwrap();
    found.resize(model.len(), 0);
    assert!(found == model, "a byte that was answered is not there");
    assert_eq!(std::fs::read_to_string(again.at("log")).unwrap(), lines);
    drop(again.end());
}

/// Once it was told to end, `run` did not start a DPU side that died again: what was to be written
/// then waited for a minute, and was lost.
#[test]
fn a_dpu_side_that_dies_at_the_end_loses_nothing() {
    let Some(mount) = Running::start("a_dpu_side_that_dies_at_the_end", WRITE_BACK) else { return };
    std::fs::write(mount.at("file"), vec![5; 1 << 20]).unwrap();
    assert!(mount.signal("dpu", Signal::STOP));
    mount.tell_to_end();
    // Unmounting asks for durability, of a side that stands still.
    std::thread::sleep(Duration::from_millis(300));
    assert!(mount.signal("dpu", Signal::KILL));
    let again = Running::on(mount.end(), &[]);
    assert!(std::fs::read(again.at("file")).unwrap() == vec![5; 1 << 20]);
    drop(again.end());
}

/// A second write within a tick of the kernel's clock left the file with the volume's time, which
/// nobody had seen; and a file that was written showed no space taken.
#[test]
fn times_and_space_are_those_that_were_shown() {
    let Some(mount) = Running::start("times_and_space", WRITE_BACK) else { return };
    for n in 0..50 {
        let name = mount.at(&format!("f{}", n % 10));
        let mut file = OpenOptions::new().append(true).create(true).open(name).unwrap();
        file.write_all(&[b'x'; 9000]).unwrap();
        file.write_all(b"more").unwrap();
        if n % 3 == 0 {
            let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_millis(n * 1_234_567);
            file.set_modified(old).unwrap();
        }
    }
    std::fs::set_permissions(mount.at("f1"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    std::fs::hard_link(mount.at("f2"), mount.at("link")).unwrap();
    let shown = listing(&mount.at(""));
    let closed = std::fs::metadata(mount.at("f0")).unwrap();
    assert!(closed.blocks() * 512 >= closed.len(), "{} of {}", closed.blocks(), closed.len());
    let open = File::create_new(mount.at("synced")).unwrap();
    open.write_all_at(&[1; 100_000], 0).unwrap();
    open.sync_all().unwrap();
    assert!(open.metadata().unwrap().blocks() * 512 >= 100_000);
    std::fs::remove_file(mount.at("synced")).unwrap();
    drop(open);
    let again = Running::on(mount.end(), &[]);
    assert_eq!(listing(&again.at("")), shown);
    drop(again.end());
}

/// What does not fit is said when a file is synced or closed, not never; and then there is room
/// again.
#[test]
fn a_full_volume_is_told_of_and_usable_after() {
    let Some(mount) = Running::start("a_full_volume_is_told_of", WRITE_BACK) else { return };
    let file = File::create_new(mount.at("big")).unwrap();
    let piece = vec![7; 1 << 20];
    let refused = (0..300).find_map(|n| file.write_all_at(&piece, n << 20).err());
    let refused = refused.or_else(|| file.sync_all().err()).expect("300 MiB do not fit in 256");
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()), "{refused}");
    drop(file);
    std::fs::remove_file(mount.at("big")).unwrap();
    running::until("room", || {
        let file = File::create(mount.at("small")).unwrap();
        file.write_all_at(&piece, 0).and_then(|()| file.sync_all()).ok()
    });
    let again = Running::on(mount.end(), &[]);
    assert!(std::fs::read(again.at("small")).unwrap() == piece);
    drop(again.end());
}

/// A limit on memory that ends with it.
struct Limited(PathBuf);

impl Limited {
    /// `None` where there is no such limit to set (control groups, of either version).
    fn to(bytes: u64) -> Option<Limited> {
        let name = format!("outboard-{}", std::process::id());
        let one = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes");
        let two = ("/sys/fs/cgroup", "memory.max");
        [one, two].into_iter().find_map(|(root, limit)| {
            let limited = Limited(Path::new(root).join(&name));
            std::fs::create_dir(&limited.0).ok()?;
            // Rather than to memory, pages might go to where pages are swapped to.
            std::fs::write(limited.0.join(limit), bytes.to_string()).ok()?;
            Some(limited)
        })
    }

    /// A program that runs `program` within it.
    fn within(&self, dir: &Path, program: &str) -> PathBuf {
        let (script, join) = (dir.join("limited"), self.0.join("cgroup.procs"));
        let text = format!("#!/bin/sh\necho $$ > {} && exec {program} \"$@\"\n", join.display());
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o700)).unwrap();
        script
    }

    /// How often memory was wanted that was not there.
    fn refused(&self) -> u64 {
        let events = |name: &str| std::fs::read_to_string(self.0.join(name)).unwrap_or_default();
        let first: Option<u64> = events("memory.failcnt").trim().parse().ok();
        let max = |line: &str| line.strip_prefix("max ")?.trim().parse().ok();
        first.or_else(|| events("memory.events").lines().find_map(max)).unwrap()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let gone = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            std::fs::remove_dir(&self.0).is_ok()
        });
        assert!(gone || std::thread::panicking(), "{} is in use", self.0.display());
    }
}

/// Where memory is short who wants some waits until dirty pages are written; the processes behind
/// the mount are those that write them, and want memory for that, too.
#[test]
fn dirty_pages_are_written_where_memory_is_short() {
    let test = "dirty_pages_are_written_where_memory_is_short";
    if Running::is_skipped(test) {
        return;
    }
    let Some(limited) = Limited::to(160 << 20) else {
        return skips::note_skip(test, "needs control groups that limit memory");
    };
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("mnt")).unwrap();
    let program = limited.within(dir.path(), env!("CARGO_BIN_EXE_outboard"));
    let mount = Running::of(&program, dir, WRITE_BACK);
    let shell = limited.within(mount.path(), "sh");
    let script = "
        set -e
        for n in 1 2 3; do
            dd if=/dev/urandom of=one bs=64k count=1000 status=none
            cp one two && cat one >> two && sync two
            cmp -n 65536000 one two && cmp -i 0:65536000 one two
            rm one two
        done";
    let mut writer =
        Command::new(shell).args(["-c", script]).current_dir(mount.at("")).spawn().unwrap();
    let ended = running::until("what was written", || writer.try_wait().unwrap());
    assert!(ended.success(), "{}", mount.log());
    assert!(limited.refused() > 0, "memory was not short");
    assert_eq!(mount.processes(), 1, "{}", mount.log());
    drop(mount.end());
}

/// The kernel believes itself for sizes and times, so nobody else may change them: others are
/// refused in words, and so is who comes to a volume that others use.
#[test]
fn who_collects_writes_has_the_volume_for_itself() {
    let Some(mount) = Running::start("who_collects_writes", WRITE_BACK) else { return };
    let other = tempfile::tempdir().unwrap();
    let refused = outboard(&["mount"], &mount.data(), other.path());
    assert!(!refused.status.success());
    assert!(said(&refused).contains("has the volume for itself"), "{}", said(&refused));
    let socket = mount.data().join("dpu.sock");
    let refused = attached(&socket);
    assert!(refused.contains("has the volume for itself"), "{refused}");
    // Nor between two lives of either side.
    for role in ["dpu", "mounted"] {
        mount.kill_one(role);
        let refused = attached(&socket);
        assert!(refused.contains("has the volume for itself"), "after {role}: {refused}");
    }
    std::fs::write(mount.at("file"), "still served").unwrap();
    let shared = Running::on(mount.end(), &[]);
    let refused = outboard(&["run", "--cache=write-back"], &shared.data(), other.path());
    assert_eq!(refused.status.code(), Some(4), "{}", said(&refused));
    assert!(said(&refused).contains("for itself"), "{}", said(&refused));
    assert_eq!(std::fs::read_to_string(shared.at("file")).unwrap(), "still served");
    drop(shared.end());
}

/// Of two that come at once, each past the look whether anybody is there, one has the volume; the
/// other ends with the reason and its code, and leaves no mount. It was tried eight times, and the
/// code was that of a fault.
#[test]
fn of_two_that_collect_writes_at_once_one_is_refused() {
    if Running::is_skipped("of_two_that_collect_writes_at_once") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let start = |words: &[&str], log: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
        let log = File::create(dir.path().join(log)).unwrap();
        command.args(words).arg(format!("--data={}", data.display()));
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    };
    let log = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let mut dpu = start(&["dpu", "--size=256M", "--memory=16M"], "dpu");
    running::until("a DPU side", || data.join("dpu.sock").exists().then_some(()));
    for _ in 0..4 {
        let mut both = ["one", "two"].map(|name| {
            let place = dir.path().join(format!("at-{name}"));
            std::fs::create_dir_all(&place).unwrap();
            (name, start(&["mount", "--cache=write-back", place.to_str().unwrap()], name))
        });
        let (loser, ended) = running::until("a refusal", || {
            both.iter_mut().find_map(|(name, child)| Some((*name, child.try_wait().unwrap()?)))
        });
        assert_eq!(ended.code(), Some(4), "{}", log(loser));
        assert!(log(loser).contains("for itself"), "{}", log(loser));
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&format!("at-{loser}")), "{mounts}");
        let (winner, child) = both.iter_mut().find(|(name, _)| *name != loser).unwrap();
        let place = dir.path().join(format!("at-{winner}"));
        std::fs::write(place.join("file"), "served").unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(child), Signal::INT)
            .unwrap();
        let ended = running::until("an end", || child.try_wait().unwrap());
        assert!(ended.success(), "{}", log(winner));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&dpu), Signal::INT).unwrap();
    assert!(running::until("an end", || dpu.try_wait().unwrap()).success());
}

/// What would lose writes is refused before anything is made.
#[test]
fn what_would_lose_writes_is_refused() {
    let nowhere = Path::new("/nowhere");
    let end = outboard(&["run", "--cache=write-back", "--on-mount-loss=end"], nowhere, nowhere);
    assert_eq!(end.status.code(), Some(2), "{}", said(&end));
    assert!(said(&end).contains("would be lost"), "{}", said(&end));
}

/// Who mounts the volume of a DPU side that others started holds its mount, too.
#[test]
fn a_mount_without_run_collects_writes_and_outlives_its_process() {
    if Running::is_skipped("a_mount_without_run_collects_writes") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, place) = (dir.path().join("data"), dir.path().join("mnt"));
    std::fs::create_dir(&data).unwrap();
    std::fs::create_dir(&place).unwrap();
    let start = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
        let log = File::options().create(true).append(true).open(dir.path().join("log")).unwrap();
        command.args(words).arg(format!("--data={}", data.display()));
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    };
    let mut dpu = start(&["dpu", "--size=256M", "--memory=16M"]);
    running::until("a DPU side", || data.join("dpu.sock").exists().then_some(()));
    let mut mount = start(&["mount", "--cache=write-back", place.to_str().unwrap()]);
    let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
    running::until("a mount", || log().contains("started the process of the mount").then_some(()));
    let file = File::create_new(place.join("file")).unwrap();
    file.write_all_at(b"only the kernel has it", 0).unwrap();
    let line = log().lines().find(|line| line.contains("started the process")).unwrap().to_owned();
    let (_, pid) = line.rsplit_once("pid=").unwrap();
    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(std::fs::read(place.join("file")).unwrap(), b"only the kernel has it");
    for process in [&mut mount, &mut dpu] {
        let pid = rustix::process::Pid::from_child(process);
        rustix::process::kill_process(pid, Signal::INT).unwrap();
        let ended = running::until("an end", || process.try_wait().unwrap());
        assert!(ended.success(), "{}", log());
    }
}
