//! A mount whose process is killed, as programs on it see that: they wait, and go on. What was
//! answered is there, once.

#![expect(clippy::unwrap_used, reason = "a test")]

mod running;
#[path = "../../../worlds/os/tests/skips/mod.rs"]
mod skips;

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use running::{Running, until};

/// Makes, renames, links and removes names: each succeeds where it must. One that was done twice
/// fails (`EEXIST`, `ENOENT`), one that was lost is missed by the next.
fn names(dir: &Path, enough: &AtomicBool) -> usize {
    std::fs::create_dir(dir).unwrap();
    let mut rounds = 0;
    while !enough.load(Ordering::Relaxed) {
        let [one, two, sub] = ["one", "two", "sub"].map(|name| dir.join(format!("{name}{rounds}")));
        let mut file = File::create_new(&one).unwrap();
        file.write_all(format!("{rounds}").as_bytes()).unwrap();
        std::fs::create_dir(&sub).unwrap();
        std::fs::rename(&one, &two).unwrap();
        std::fs::hard_link(&two, sub.join("link")).unwrap();
        std::fs::remove_file(&two).unwrap();
        assert_eq!(std::fs::read_to_string(sub.join("link")).unwrap(), format!("{rounds}"));
        std::fs::remove_file(sub.join("link")).unwrap();
        std::fs::remove_dir(&sub).unwrap();
        let left = std::fs::metadata(&one).unwrap_err().kind();
        assert_eq!(left, ErrorKind::NotFound);
        rounds += 1;
    }
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    rounds
}

/// Appends numbered records, some of them synced: each is there once, in order.
fn appends(path: &Path, enough: &AtomicBool) -> usize {
    let mut file = OpenOptions::new().create_new(true).append(true).open(path).unwrap();
    let mut records = 0u64;
    while !enough.load(Ordering::Relaxed) {
        file.write_all(&records.to_le_bytes()).unwrap();
        records += 1;
        if records.is_multiple_of(8) {
            file.sync_data().unwrap();
        }
    }
    let bytes = std::fs::read(path).unwrap();
    let read: Vec<u64> =
        bytes.chunks(8).map(|record| u64::from_le_bytes(record.try_into().unwrap())).collect();
    assert!(read.iter().copied().eq(0..records), "{} of {records} records", read.len());
    read.len()
}

/// Writes blocks in place and reads them back through the kernel's cache and past it.
fn blocks(path: &Path, enough: &AtomicBool) -> usize {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path).unwrap();
    let mut model = [0_u8; 64];
    let mut rounds = 0usize;
    while !enough.load(Ordering::Relaxed) {
        let at = rounds * 7 % model.len();
        let byte = u8::try_from(rounds % 251).unwrap();
        file.write_all_at(&[byte; 5000], at as u64 * 5000).unwrap();
        model[at] = byte;
        let look = rounds * 13 % model.len();
        let mut read = [0; 5000];
        let len = file.read_at(&mut read, look as u64 * 5000).unwrap();
        assert!(read[..len].iter().all(|byte| *byte == model[look]), "round {rounds}");
        rounds += 1;
    }
    let past = File::options().read(true).custom_flags(0x4000).open(path).unwrap();
    drop(past);
    let bytes = std::fs::read(path).unwrap();
    for (n, block) in bytes.chunks(5000).enumerate() {
        assert!(block.iter().all(|byte| *byte == model[n]), "block {n}");
    }
    rounds
}

/// Increments a counter under a lock of the open file, against others that do the same.
fn counts(path: &Path, enough: &AtomicBool) -> u64 {
    let mut options = OpenOptions::new();
    let mut own = 0;
    while !enough.load(Ordering::Relaxed) {
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).unwrap();
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        let count: u64 = text.parse().unwrap_or(0);
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(format!("{}", count + 1).as_bytes()).unwrap();
        own += 1;
    }
    own
}

/// They end, also if what runs beside them fails.
struct Enough<'a>(&'a AtomicBool);

impl Drop for Enough<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs all of these until `kills` has returned; how much they did.
fn under_load(mount: &Running, kills: impl FnOnce()) -> usize {
    let enough = AtomicBool::new(false);
    let (counter, stop) = (mount.at("counter"), &enough);
    let (done, counted) = std::thread::scope(|scope| {
        let names = [0, 1].map(|n| {
            let dir = mount.at(&format!("names{n}"));
            scope.spawn(move || names(&dir, stop))
        });
        let append = mount.at("appended");
        let append = scope.spawn(move || appends(&append, stop));
        let block = mount.at("blocks");
        let block = scope.spawn(move || blocks(&block, stop));
        let counter = [(); 2].map(|()| {
            let path = counter.clone();
            scope.spawn(move || counts(&path, stop))
        });
        let fails = Enough(stop);
        kills();
        drop(fails);
        let did: usize = names.into_iter().map(|thread| thread.join().unwrap()).sum();
        let did = did + append.join().unwrap() + block.join().unwrap();
        (did, counter.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>())
    });
    assert_eq!(std::fs::read_to_string(counter).unwrap(), counted.to_string());
    done
}

fn kills() -> usize {
    let asked = std::env::var("OUTBOARD_KILLS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(12)
}

/// The mount died with its process: every program on it had `ENOTCONN` from then on.
#[test]
fn programs_do_not_notice_that_the_mount_s_process_is_killed() {
    let Some(mount) = Running::start("programs_do_not_notice", &[]) else { return };
    let done = under_load(&mount, || {
        for n in 0..kills() {
            std::thread::sleep(Duration::from_millis(150 + 37 * (n as u64 % 7)));
            match n % 4 {
                0 | 1 => mount.replace(),
                2 => mount.kill_one("dpu"),
                _ => ["dpu", "mounted"].into_iter().for_each(|role| mount.kill_one(role)),
            }
        }
        std::thread::sleep(Duration::from_millis(500));
    });
    assert!(done > 50, "{done} operations: {}", mount.log());
    drop(mount.end());
}

/// Each place where a request can be at the death of the process that has it, by name: read, and
/// nothing done; submitted; answered by the volume, and the kernel not told.
#[test]
fn a_request_is_answered_once_wherever_it_was() {
    for point in ["read:97", "submitted:83", "answered:71"] {
        let die = format!("--die-at={point}");
        let Some(mount) = Running::start("a_request_is_answered_once", &[&die]) else { return };
        let deaths = kills() / 2;
        let done = under_load(&mount, || {
            until(point, || (mount.processes() > deaths).then_some(()));
        });
        assert!(done > 10, "{point}: {done} operations: {}", mount.log());
        drop(mount.end());
    }
}

/// What is open stays so: files without a name, locks, working directories.
#[test]
fn what_was_open_stays_open() {
    let Some(mount) = Running::start("what_was_open_stays_open", &[]) else { return };
    let path = mount.at("file");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    let nameless = options.open(mount.at("nameless")).unwrap();
    nameless.write_all_at(b"nameless", 0).unwrap();
    std::fs::remove_file(mount.at("nameless")).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    std::fs::create_dir(mount.at("dir")).unwrap();
    let mut shell = Command::new("sh")
        .args(["-c", "read line; pwd -P; echo there > here; cat here"])
        .current_dir(mount.at("dir"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..5 {
        mount.replace();
        file.write_all_at(b"during", 100).unwrap();
        let other = File::open(&path).unwrap();
        let refused = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK), "the lock is held");
    }
    let mut read = [0; 8];
    nameless.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"nameless");
    assert_eq!(nameless.metadata().unwrap().len(), 8);
    writeln!(shell.stdin.take().unwrap()).unwrap();
    let said = shell.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.ends_with("mnt/dir\nthere\n"), "{said}");
    rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    drop(file);
    let other = File::open(&path).unwrap();
    rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
    drop((other, nameless));
    drop(mount.end());
}

/// Who waits for a lock waits on; who was killed meanwhile does not stay.
#[test]
fn waits_outlive_the_process_and_can_be_ended() {
    let Some(mount) = Running::start("waits_outlive_the_process", &[]) else { return };
    let path = mount.at("locked");
    let file = File::create_new(&path).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    let wait = |then: &str| {
        let script = format!("exec 9<'{}'; flock 9; {then}", path.display());
        Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap()
    };
    let (waits, mut dies) = (wait("echo mine"), wait("echo never"));
    std::thread::sleep(Duration::from_millis(300));
    mount.replace();
    std::thread::sleep(Duration::from_millis(100));
    let _shell = dies.kill();
    mount.replace();
    rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    drop(file);
    let said = waits.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "mine\n");
    dies.wait().unwrap();
    drop(mount.end());
}

/// Without the process that holds the mount it is gone, as one always was; nobody hangs.
#[test]
fn without_run_the_mount_is_gone_and_nobody_hangs() {
    let Some(mut mount) = Running::start("without_run_the_mount_is_gone", &[]) else { return };
    let mut file = File::create_new(mount.at("file")).unwrap();
    file.write_all(b"answered").unwrap();
    mount.run.kill().unwrap();
    mount.run.wait().unwrap();
    // Attributes may still be cached; the figures of a file system never are.
    until("the end of the mount", || {
        let lost = rustix::fs::statvfs(mount.at("")).err();
        (lost == Some(rustix::io::Errno::NOTCONN)).then_some(())
    });
    assert!(file.write_all(b"more").is_err());
    until("the end of its process", || mount.pid("mounted").is_none().then_some(()));
}

/// A file of its own with this program in it, in the place of the last.
fn put_program(dir: &Path) -> (PathBuf, u64) {
    let (at, next) = (dir.join("outboard"), dir.join("next"));
    std::fs::copy(env!("CARGO_BIN_EXE_outboard"), &next).unwrap();
    std::fs::rename(&next, &at).unwrap();
    let inode = std::fs::metadata(&at).unwrap().ino();
    (at, inode)
}

/// What a process runs.
fn runs(pid: i32) -> u64 {
    std::fs::metadata(format!("/proc/{pid}/exe")).map_or(0, |file| file.ino())
}

/// A new version came under a mounted volume only by unmounting it. Its file took the place of the
/// old one, and a side that died then was not started again: the old path named nothing.
#[test]
fn a_new_program_comes_under_a_mount_in_use() {
    if Running::is_skipped("a_new_program_comes_under_a_mount_in_use") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("mnt")).unwrap();
    std::fs::create_dir(dir.path().join("other")).unwrap();
    let (program, _) = put_program(dir.path());
    let mount = Running::of(&program, dir, &[]);
    let other = mount.path().join("other");
    let mut second = Command::new(&program)
        .arg("mount")
        .arg(format!("--data={}", mount.data().display()))
        .arg(&other)
        .stdout(Stdio::null())
        .stderr(File::create(mount.path().join("log2")).unwrap())
        .spawn()
        .unwrap();
    until("a second mount", || other.join("..").canonicalize().ok().filter(|_| is_mount(&other)));
    let run = i32::try_from(mount.run.id()).unwrap();
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true);
    let nameless = options.open(mount.at("nameless")).unwrap();
    nameless.write_all_at(b"nameless", 0).unwrap();
    rustix::fs::flock(&nameless, FlockOperation::LockExclusive).unwrap();
    let by_other = File::open(other.join("nameless")).unwrap();
    std::fs::remove_file(mount.at("nameless")).unwrap();
    let done = under_load(&mount, || {
        for _ in 0..kills().div_ceil(6) {
            std::thread::sleep(Duration::from_millis(300));
            let (program, inode) = put_program(mount.path());
            mount.replace();
            mount.kill_one("dpu");
            let upgraded = Command::new(&program)
                .arg("upgrade")
                .arg(format!("--data={}", mount.data().display()))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&upgraded.stderr).into_owned();
            assert!(upgraded.status.success(), "{said}{}", mount.log());
            let said = String::from_utf8_lossy(&upgraded.stdout).into_owned();
            assert_eq!(said.lines().count(), 2, "{said}");
            assert_eq!(runs(run), inode, "who holds the mount");
            for role in ["mounted", "dpu"] {
                let pid = until(role, || mount.pid(role));
                assert_eq!(runs(pid), inode, "{role}");
            }
        }
    });
    assert!(done > 10, "{done} operations: {}", mount.log());
    let refused = rustix::fs::flock(&by_other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::WOULDBLOCK), "the lock is held");
    let mut read = [0; 8];
    nameless.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"nameless");
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 5, "what was done in the first");
    drop((by_other, nameless));
    let unmounted = Command::new(&program).arg("umount").arg(&other).status().unwrap();
    assert!(unmounted.success());
    assert!(second.wait().unwrap().success());
    drop(mount.end());
}

fn is_mount(at: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|file| file.dev()).ok();
    at.parent().is_some_and(|parent| device(at).is_some() && device(at) != device(parent))
}

/// What cannot take a mount over is refused before anything changes, and a program that is gone
/// when it is needed leaves the mount with whom it had.
#[test]
fn a_program_that_cannot_take_over_changes_nothing() {
    let Some(mount) = Running::start("a_program_that_cannot_take_over", &[]) else { return };
    let file = File::create_new(mount.at("file")).unwrap();
    file.write_all_at(b"answered", 0).unwrap();
    let rehearsal = Command::new(env!("CARGO_BIN_EXE_outboard"))
        .args(["run", "--take-over=rehearse", "/mnt"])
        .output()
        .unwrap();
    let right = String::from_utf8(rehearsal.stdout).unwrap();
    let right = right.trim();
    let held = mount.pid("mounted").unwrap();
    let door = mount.data().join(format!("mount-{}.sock", mount.run.id()));
    let ask = |script: &str| {
        let program = mount.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
        let question = format!(r#"{{"program": "{}"}}"#, program.display());
        outboard_attach::link::control(&door, &question, Duration::from_secs(60)).unwrap()
    };
    assert!(ask("exit 3").contains("cannot take over"));
    assert!(ask(r#"echo '{"form": "0.0"}'"#).contains("in the form 0.0"));
    assert_eq!(mount.pid("mounted"), Some(held), "nothing has changed");
    let gone = ask(&format!("echo '{right}'; rm \"$0\""));
    assert!(gone.contains("cannot become"), "{gone}");
    file.write_all_at(b"after", 8).unwrap();
    assert_eq!(std::fs::read(mount.at("file")).unwrap(), b"answeredafter");
    let nobody = Command::new(env!("CARGO_BIN_EXE_outboard"))
        .arg("upgrade")
        .arg(format!("--data={}", mount.path().display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert_eq!(nobody.status.code(), Some(6), "{said}");
    assert!(said.contains("nobody holds a mount"), "{said}");
    let stranger = Command::new(env!("CARGO_BIN_EXE_outboard"))
        .arg("upgrade")
        .arg(format!("--data={}", mount.data().display()))
        .uid(65534)
        .output();
    // The program itself may be out of their reach.
    assert!(stranger.map_or(true, |output| !output.status.success()));
    drop(file);
    drop(mount.end());
}

/// A signal that came while `run` became the new program ended it at once, and the mount with it,
/// or was lost. Now it waits for that program, which ends in order.
#[test]
fn a_signal_in_the_middle_of_an_upgrade_ends_the_mount_in_order() {
    let test = "a_signal_in_the_middle_of_an_upgrade";
    let Some(mut mount) = Running::start(test, &["--cache=write-back"]) else { return };
    std::fs::write(mount.at("file"), b"answered").unwrap();
    let program = mount.path().join("program");
    let real = env!("CARGO_BIN_EXE_outboard");
    let signals = r#"case "$*" in *=now*) kill -TERM $$ ;; esac"#;
    std::fs::write(&program, format!("#!/bin/sh\n{signals}\nexec {real} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
    let door = mount.data().join(format!("mount-{}.sock", mount.run.id()));
    let question = format!(r#"{{"program": "{}"}}"#, program.display());
    let said = outboard_attach::link::control(&door, &question, Duration::from_secs(60));
    assert!(said.as_ref().is_ok_and(|said| said.contains("ok")), "{said:?}: {}", mount.log());
    let status = until("the end", || mount.run.try_wait().unwrap());
    assert!(status.success(), "{status}: {}", mount.log());
    assert!(!is_mount(&mount.at("")), "{}", mount.log());
    let again = Running::on(mount.take(), &[]);
    assert_eq!(std::fs::read(again.at("file")).unwrap(), b"answered");
    drop(again.end());
}

/// A successor of another version, a process that nobody started: refused in words.
#[test]
fn who_may_not_take_over_is_refused() {
    let refused = Command::new(env!("CARGO_BIN_EXE_outboard"))
        .arg("mounted")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("`outboard run` starts this"), "{said}");
    let hybrid = Command::new(env!("CARGO_BIN_EXE_outboard"))
        .args(["run", "--on-mount-loss=restart", "--cache=hybrid", "--data=/nowhere", "/"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&hybrid.stderr).into_owned();
    assert_eq!(hybrid.status.code(), Some(2), "{said}");
    assert!(said.contains("--cache hybrid"), "{said}");
}

/// Ctrl-C before a mount is served ends it at once; nobody waits for a process that hangs.
#[test]
fn a_mount_that_is_not_served_yet_can_be_ended() {
    if Running::is_skipped("a_mount_that_is_not_served_yet") {
        return;
    }
    // The process may have served before it was stopped: then once more.
    let caught = (0..20).any(|_| {
        let dir = tempfile::tempdir().unwrap();
        let [mnt, log, said] = ["mnt", "log", "said"].map(|name| dir.path().join(name));
        std::fs::create_dir(&mnt).unwrap();
        let mut run = Command::new(env!("CARGO_BIN_EXE_outboard"))
            .args(["run", "--size=256M", "--memory=16M"])
            .arg(format!("--data={}", dir.path().join("data").display()))
            .arg(&mnt)
            .stdout(File::create(&said).unwrap())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let server = loop {
            let log = std::fs::read_to_string(&log).unwrap();
            let line = log.lines().find(|line| line.contains("process of the mount"));
            if let Some((_, pid)) = line.and_then(|line| line.rsplit_once("pid=")) {
                break Pid::from_raw(pid.parse().unwrap()).unwrap();
            }
        };
        kill_process(server, Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let unserved = std::fs::read(&said).unwrap().is_empty();
        if !unserved {
            kill_process(server, Signal::CONT).unwrap();
        }
        kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
        let ended = until("the end of `run`", || run.try_wait().unwrap());
        assert!(ended.success(), "{}", std::fs::read_to_string(&log).unwrap());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(mnt.to_str().unwrap()), "still mounted");
        unserved
    });
    assert!(caught, "every process served before it could be stopped");
}

/// A volume that did not answer kept `run` from its end for as long as it did not, whatever `run`
/// was told.
#[test]
fn told_again_it_ends_though_the_volume_does_not_answer() {
    for flags in [&[][..], &["--on-mount-loss=end"], &["--cache=hybrid"]] {
        let Some(mut mount) = Running::start("told_again_it_ends", flags) else { return };
        let mut file = File::create(mount.at("before")).unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_all().unwrap();
        let mut writer = Command::new("dd")
            .args(["if=/dev/zero", "bs=1M", "count=4096", "conv=fsync"])
            .arg(format!("of={}", mount.at("file").display()))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // One that came later would write below the mount, once that is gone, and succeed.
        let has_begun = || std::fs::metadata(mount.at("file")).is_ok_and(|file| file.len() > 0);
        until("the writer's first bytes", || has_begun().then_some(()));
        assert!(mount.signal("dpu", Signal::STOP));
        std::thread::sleep(Duration::from_millis(500));
        mount.tell_to_end();
        // Before this it is taken for the same word.
        std::thread::sleep(Duration::from_millis(2200));
        assert!(mount.run.try_wait().unwrap().is_none(), "{flags:?}: {}", mount.log());
        mount.tell_to_end();
        let ended = until("the end of `run`", || mount.run.try_wait().unwrap());
        assert_eq!(ended.code(), Some(1), "{flags:?}: {}", mount.log());
        let failed = until("the writer's end", || writer.try_wait().unwrap());
        assert!(!failed.success());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(mount.path().to_str().unwrap()), "{flags:?}: still mounted");
        until("the DPU side's end", || mount.pid("dpu").is_none().then_some(()));
        let again = Running::on(mount.take(), flags);
        assert_eq!(std::fs::read(again.at("before")).unwrap(), b"synced");
        drop(again.end());
    }
}

/// Who uses a mount as its first process comes is answered as ever after. That process told the
/// kernel that all it had was out of date, which made it drop the answer to its first question
/// about the root: a plain user found that directory closed (mode 0), and got `EACCES`.
#[test]
fn a_plain_user_may_be_the_first_on_a_mount() {
    if Running::is_skipped("a_plain_user_may_be_the_first") {
        return;
    }
    let mut dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(dir.path().join("mnt")).unwrap();
    for round in 0..8 {
        let file = dir.path().join("mnt/file");
        let script = "n=0; until said=$(LC_ALL=C stat -c %s \"$0\" 2>&1) || [ $n = 5000 ]; do
            case $said in *No\\ such*) n=$((n + 1));; *) echo \"$said\"; exit 1;; esac; done";
        let mut first = Command::new("sh");
        first.args(["-c", script]).arg(&file).uid(65534).gid(65534);
        let first = first.stdout(Stdio::piped()).spawn().unwrap();
        let mount = Running::on(dir, &[]);
        std::fs::write(mount.at("file"), "there").unwrap();
        let first = first.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&first.stdout);
        assert!(first.status.success(), "round {round}: {said}");
        dir = mount.end();
    }
}
