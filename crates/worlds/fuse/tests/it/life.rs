//! How mounts begin and end, well or badly.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outboard_base::Ino;
use outboard_fuse::{MountError, MountOptions, clear_stale, unmount};
use outboard_wire::event::Event;
use outboard_wire::file::Op;

use crate::harness::{can_mount, each, eventually, spawn, toy_mount};

#[test]
fn unmounting_ends_the_workers_and_makes_the_volume_durable() {
    each("unmounting", |mount| {
        fs::write(mount.dir.join("f"), b"x").unwrap();
        let mounted = mount.mounted.as_ref().unwrap();
        assert!(mounted.is_served());
        mounted.unmount(false).unwrap();
        eventually("the workers ended", || !mounted.is_served());
        assert!(matches!(mounted.unmount(false), Err(MountError::NotMounted { .. })));
        assert!(!mount.dir.join("f").exists());
    });
    if can_mount("join") {
        let mut mount = toy_mount(MountOptions::default(), None);
        mount.mounted.as_ref().unwrap().unmount(false).unwrap();
        mount.mounted.take().unwrap().join().unwrap();
        assert_eq!(mount.backend.toy.asked(Op::Syncfs), 1);
    }
}

#[test]
fn a_mount_in_use_says_so_and_goes_lazily() {
    if !can_mount("a_mount_in_use_says_so_and_goes_lazily") {
        return;
    }
    let mut mount = toy_mount(MountOptions::default(), None);
    fs::write(mount.dir.join("f"), b"held").unwrap();
    let file = File::open(mount.dir.join("f")).unwrap();
    let mounted = mount.mounted.take().unwrap();
    let error = mounted.unmount(false).unwrap_err();
    assert!(matches!(error, MountError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("--lazy"));
    mounted.unmount(true).unwrap();
    assert!(!mount.dir.join("f").exists());
    assert_eq!(file.metadata().unwrap().len(), 4, "who has it open goes on");
    drop(file);
    mounted.join().unwrap();
}

#[test]
fn unmounting_under_load_hangs_nobody() {
    each("under_load", |mount| {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (dir, stop, done) = (mount.dir.clone(), stop.clone(), done.clone());
                std::thread::spawn(move || {
                    let dir = dir.join(format!("d{thread}"));
                    for i in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        // Fails once it is unmounted.
                        let _ = fs::create_dir(&dir);
                        let _ = fs::write(dir.join(format!("f{i}")), b"data");
                        let _ = fs::read_dir(&dir).map(Iterator::count);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        eventually("some work", || done.load(Ordering::Relaxed) > 50);
        let mounted = mount.mounted.as_ref().unwrap();
        mounted.unmount(true).unwrap();
        eventually("the workers ended", || !mounted.is_served());
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// A server that dies leaves "Transport endpoint is not connected". The connection is aborted here
/// as the kernel does when a server's last descriptor goes.
#[test]
fn a_stale_mount_point_is_cleared() {
    if !can_mount("a_stale_mount_point_is_cleared") {
        return;
    }
    let mut mount = toy_mount(MountOptions::default(), None);
    let connection = {
        use std::os::unix::fs::MetadataExt;
        rustix::fs::minor(fs::metadata(&mount.dir).unwrap().dev())
    };
    let abort = format!("/sys/fs/fuse/connections/{connection}/abort");
    if fs::metadata("/sys/fs/fuse/connections").is_ok_and(|_| !Path::new(&abort).exists()) {
        let args = ["-t", "fusectl", "none", "/sys/fs/fuse/connections"];
        let mut child = spawn(std::process::Command::new("mount").args(args)).unwrap();
        assert!(child.wait().unwrap().success());
    }
    fs::write(&abort, b"1").unwrap();
    let error = rustix::fs::statvfs(&mount.dir).err().unwrap();
    assert_eq!(error, rustix::io::Errno::NOTCONN);
    assert!(clear_stale(&mount.dir).unwrap());
    assert!(!clear_stale(&mount.dir).unwrap());
    fs::metadata(&mount.dir).unwrap();
    mount.mounted.take().unwrap().join().unwrap();
}

#[test]
fn bad_mount_points_are_told_apart() {
    if !can_mount("bad_mount_points_are_told_apart") {
        return;
    }
    let mount = toy_mount(MountOptions::default(), None);
    let attempt = |path: &Path| {
        use outboard_fuse::MountFront;
        let front = Arc::new(MountFront::new(MountOptions::default()));
        outboard_fuse::mount(path, front, Arc::clone(&mount.backend))
            .err()
            .map(|error| error.to_string())
    };
    let busy = attempt(&mount.dir).unwrap();
    assert!(busy.contains("is busy: outboard (fuse.outboard)"), "{busy}");
    let place = tempfile::tempdir().unwrap();
    let missing = attempt(&place.path().join("no")).unwrap();
    assert!(missing.contains("mkdir -p"), "{missing}");
    fs::write(place.path().join("file"), b"").unwrap();
    let file = attempt(&place.path().join("file")).unwrap();
    assert!(file.contains("not a directory"), "{file}");
    assert!(matches!(unmount(place.path(), false), Err(MountError::NotMounted { .. })));
}

/// Once the mount says that it has acted upon an event, nothing is answered from before:
/// attributes, names, names that do not exist, bytes.
#[test]
fn what_was_let_go_is_asked_for_at_once() {
    if !can_mount("what_was_let_go_is_asked_for_at_once") {
        return;
    }
    let mount = toy_mount(MountOptions::default(), None);
    fs::write(mount.dir.join("f"), b"one").unwrap();
    let toy = &mount.backend.toy;
    let asks = |op: Op, event: &Event, act: &dyn Fn()| {
        act();
        let known = toy.asked(op);
        act();
        assert_eq!(toy.asked(op), known, "{op:?} is answered by the kernel");
        mount.backend.tell_and_wait(event.clone());
        act();
        assert!(toy.asked(op) > known, "{op:?} is asked after {event:?}");
    };
    let stat = || _ = fs::metadata(mount.dir.join("f")).unwrap();
    let read = || assert_eq!(fs::read(mount.dir.join("f")).unwrap(), b"one");
    let missing = || _ = fs::metadata(mount.dir.join("g")).unwrap_err();
    let inode = Event::InvalidateInode { ino: Ino(2), offset: 0, len: u64::MAX };
    let name = |name: &[u8]| Event::InvalidateEntry { parent: Ino::ROOT, name: name.to_vec() };
    for _ in 0..20 {
        asks(Op::Getattr, &inode, &stat);
        asks(Op::Read, &inode, &read);
        asks(Op::Lookup, &name(b"f"), &stat);
        asks(Op::Lookup, &name(b"g"), &missing);
        asks(Op::Lookup, &name(b""), &stat);
        asks(Op::Lookup, &Event::Overflow, &missing);
    }
}

/// Two mounts that make changes in one directory hold each the lock that the other's notification
/// waits for. So acting does not wait for the end of a change of this mount: here the event comes
/// while one is under way that takes 300 ms.
#[test]
fn letting_go_does_not_wait_for_a_change_under_way() {
    if !can_mount("letting_go_does_not_wait_for_a_change_under_way") {
        return;
    }
    let mount = toy_mount(MountOptions::default(), Some(Duration::from_millis(300)));
    fs::write(mount.dir.join("f"), b"one").unwrap();
    let dir = mount.dir.join("d");
    let begun = mount.backend.toy.asked(Op::Mkdir);
    let change = std::thread::spawn(move || fs::create_dir(dir));
    eventually("the change is under way", || mount.backend.toy.asked(Op::Mkdir) > begun);
    mount.backend.tell_and_wait(Event::InvalidateEntry { parent: Ino::ROOT, name: b"f".to_vec() });
    assert!(!change.is_finished(), "the directory was locked meanwhile");
    change.join().unwrap().unwrap();
}

#[test]
fn events_make_the_kernel_ask_again() {
    if !can_mount("events_make_the_kernel_ask_again") {
        return;
    }
    let mount = toy_mount(MountOptions::default(), None);
    fs::write(mount.dir.join("f"), b"one").unwrap();
    fs::read(mount.dir.join("f")).unwrap();
    let toy = &mount.backend.toy;
    let cases: [(Event, Op); 4] = [
        (Event::InvalidateInode { ino: Ino(2), offset: 0, len: u64::MAX }, Op::Read),
        (Event::InvalidateEntry { parent: Ino::ROOT, name: b"f".to_vec() }, Op::Lookup),
        (Event::InvalidateEntry { parent: Ino::ROOT, name: Vec::new() }, Op::Lookup),
        (Event::Overflow, Op::Lookup),
    ];
    for (event, op) in cases {
        fs::read(mount.dir.join("f")).unwrap();
        let before = toy.asked(op);
        mount.backend.tell(event.clone());
        eventually(&format!("{event:?} leads to {op:?}"), || {
            assert_eq!(fs::read(mount.dir.join("f")).unwrap(), b"one");
            toy.asked(op) > before
        });
    }
}
