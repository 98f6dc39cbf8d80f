//! Locks that wait, and signals that end waits. Other processes are programs (`flock`, `python3`),
//! since a lock's owner is a process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Mount, each, eventually, note_skip, spawn, without_spawns};

/// A python program, started; it says "ready" first. `None` when there is no python.
fn python(script: &str) -> Option<Child> {
    let mut command = Command::new("python3");
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    spawn(&mut command).map_err(|error| note_skip("locks", &format!("no python3 ({error})"))).ok()
}

fn line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Takes a POSIX lock, waiting, and says how that ended.
fn locker(mount: &Mount) -> String {
    format!(
        "import fcntl, signal, sys\n\
         class Hit(Exception): pass\n\
         def hit(*_): raise Hit()\n\
         signal.signal(signal.SIGUSR1, hit)\n\
         f = open({:?}, 'r+')\n\
         try:\n    fcntl.lockf(f, fcntl.LOCK_EX)\n    print('locked', flush=True)\n\
         except Hit:\n    print('interrupted', flush=True)\n\
         sys.stdin.readline()\n",
        mount.dir.join("f")
    )
}

/// A worker that had read the RELEASE of a closed file could be overtaken by another that had read
/// a later SETLK, which was then refused for a holder that was gone: one `flock` in some hundreds,
/// on two cores.
///
/// And a process that another test started had, until it became its program, the closed file too.
#[test]
fn a_lock_is_free_as_soon_as_its_holder_has_closed() {
    each("lock_after_close", |mount| {
        let path = mount.dir.join("f");
        fs::write(&path, b"").unwrap();
        let mut held = File::open(&path).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        for round in 0..500 {
            let _alone = without_spawns();
            let next = File::open(&path).unwrap();
            drop(held);
            flock(&next, FlockOperation::NonBlockingLockExclusive)
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
            held = next;
        }
    });
}

#[test]
fn a_waiting_lock_is_granted_when_the_holder_goes() {
    each("lock_granted", |mount| {
        fs::write(mount.dir.join("f"), b"").unwrap();
        let Some(mut first) = python(&locker(mount)) else { return };
        assert_eq!(line(&mut first), "locked");
        let mut second = python(&locker(mount)).unwrap();
        eventually("the second waits", || mount.backend.waiting() == 1);
        first.kill().unwrap();
        first.wait().unwrap();
        assert_eq!(line(&mut second), "locked");
        second.kill().unwrap();
        second.wait().unwrap();
    });
}

#[test]
fn a_signal_ends_a_wait_for_a_lock_once() {
    each("lock_interrupted", |mount| {
        fs::write(mount.dir.join("f"), b"").unwrap();
        let Some(mut first) = python(&locker(mount)) else { return };
        assert_eq!(line(&mut first), "locked");
        for _ in 0..3 {
            let mut second = python(&locker(mount)).unwrap();
            eventually("the second waits", || mount.backend.waiting() == 1);
            kill_process(Pid::from_child(&second), Signal::USR1).unwrap();
            assert_eq!(line(&mut second), "interrupted");
            assert_eq!(mount.backend.waiting(), 0);
            second.kill().unwrap();
            second.wait().unwrap();
        }
        first.kill().unwrap();
        first.wait().unwrap();
    });
}

#[test]
fn a_killed_waiter_is_gone() {
    each("lock_killed", |mount| {
        fs::write(mount.dir.join("f"), b"").unwrap();
        let file = File::open(mount.dir.join("f")).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let again = File::open(mount.dir.join("f")).unwrap();
        let busy = flock(&again, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(busy, Err(rustix::io::Errno::WOULDBLOCK));
        let mut child = spawn(Command::new("flock").arg(mount.dir.join("f")).arg("true")).unwrap();
        eventually("it waits", || mount.backend.waiting() == 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(mount.backend.waiting(), 0);
        // Closing the holder's file drops the lock.
        drop(file);
        eventually("free", || flock(&again, FlockOperation::NonBlockingLockExclusive).is_ok());
    });
}

#[test]
fn only_a_fatal_signal_cuts_another_operation_short() {
    each("fatal_only", |mount| {
        let script = format!(
            "import os, signal\n\
             hits = []\n\
             signal.signal(signal.SIGUSR1, lambda *_: hits.append(1))\n\
             print('ready', flush=True)\n\
             try:\n    os.stat({:?})\n    print('ok', flush=True)\n\
             except OSError as e:\n    print(e.errno, flush=True)\n",
            mount.dir.join("absent-or-not")
        );
        // Lookups of a name never seen are answered; attributes of the root hang.
        fs::write(mount.dir.join("f"), b"").unwrap();
        let script = script.replace("absent-or-not", "f");
        let file = File::options().append(true).open(mount.dir.join("f")).unwrap();
        let stale = || std::io::Write::write_all(&mut &file, b"x").unwrap();
        stale();
        mount.backend.hold();
        let Some(mut child) = python(&script) else { return };
        assert_eq!(line(&mut child), "ready");
        eventually("it hangs", || mount.backend.hanging() == 1);
        kill_process(Pid::from_child(&child), Signal::USR1).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(mount.backend.hanging(), 1, "an ordinary signal does not end it");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(mount.backend.hanging(), 0, "a fatal one does");
        mount.backend.let_go();
        assert_eq!(file.metadata().unwrap().len(), 1);
    });
}

/// The bug: locks of open files stayed for ever. Their owner is the open file, and the kernel tells
/// of no close by that name: the FLUSH names the process.
#[test]
fn a_lock_of_an_open_file_goes_with_it() {
    each("ofd_lock", open_file_locks);
}

/// A second slot was asked for to drop such locks with, and where none came free within a second
/// they stayed for the life of the mount. The release's own slot is enough.
#[test]
fn a_lock_of_an_open_file_goes_with_it_when_slots_are_scarce() {
    each("ofd_lock_scarce", |mount| {
        mount.backend.be_scarce();
        open_file_locks(mount);
    });
}

fn open_file_locks(mount: &Mount) {
    fs::write(mount.dir.join("f"), b"").unwrap();
    let script = format!(
        "import fcntl, struct, time\n\
         lock = struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0)\n\
         first, second = open({0:?}, 'r+'), open({0:?}, 'r+')\n\
         fcntl.fcntl(first, 37, lock)\n\
         try:\n    fcntl.fcntl(second, 37, lock)\n    print('both', flush=True)\n\
         except BlockingIOError:\n    pass\n\
         first.close()\n\
         for i in range(10000):\n    try:\n        fcntl.fcntl(second, 37, lock)\n        \
         break\n    except BlockingIOError:\n        time.sleep(0.002)\n\
         else:\n    print('for ever', flush=True)\n\
         print('done', flush=True)",
        mount.dir.join("f")
    );
    let Some(mut child) = python(&script) else { return };
    assert_eq!(line(&mut child), "done");
    child.wait().unwrap();
}
