//! The host side dies, or does nothing.

use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::time::Duration;

use outboard_attach::host::{Host, HostOptions};
use outboard_base::{Errno, Ino};
use outboard_dpc::host::LossPolicy;
use outboard_wire::file::{Reply, Request};

use crate::rig::{
    Completed, HOST, IDLES, Volume, ask, call, connect, create, exclusive, pattern, set_lock,
    wait_until, write,
};

/// Not a test by itself: a host that holds files and locks and works until it is killed.
#[test]
#[ignore = "the child of the test below"]
fn host_process() {
    let Some(dir) = std::env::var_os(HOST) else { return };
    let front = Arc::new(Completed::default());
    let options = HostOptions::new(PathBuf::from(dir).join("socket"));
    let host = Host::connect(options, front).unwrap();
    let mut port = host.session().calling_port(0).unwrap();
    let shared = create(&mut port, "shared", 0);
    let mut files = Vec::new();
    for number in 0..20 {
        let name = format!("left-{number}");
        files.push(create(&mut port, &name, 0));
        let unlink = Request::Unlink { parent: Ino::ROOT, name: name.as_bytes() };
        assert!(call(&mut port, &unlink, &[]).is_ok());
    }
    assert_eq!(call(&mut port, &exclusive(shared, 1, false), &[]), Ok(Reply::Empty));
    println!("ready");
    while std::env::var_os(IDLES).is_some() {
        std::thread::park();
    }
    let data = pattern(1, 300_000);
    loop {
        for file in &files {
            write(&mut port, *file, 0, &data);
        }
    }
}

/// Descriptors and mappings that a process has of its hosts. The engine's files come and go.
fn held_of_hosts(pid: u32) -> (usize, usize) {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = fds.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let fds = targets.filter(|target| !target.starts_with("/") || target.starts_with("/memfd:"));
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    (fds.count(), maps.lines().filter(|line| line.contains("outboard-")).count())
}

/// A host in a process of its own.
fn host_of(volume: &Volume) -> Process {
    let mut process = Process::new(std::env::current_exe().unwrap());
    process
        .args(["--ignored", "--exact", "hosts::host_process", "--nocapture"])
        .env(HOST, volume.path())
        .stdout(Stdio::piped());
    process
}

/// Starts it, and waits until it holds files and locks.
fn start_host(process: &mut Process) -> Child {
    use std::io::BufRead;
    let mut child = process.spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.by_ref().any(|line| line.unwrap().contains("ready")));
    child
}

/// kill -9 of a host, again and again: the DPU side lets go of its files, locks, descriptors and
/// mappings, and another host on the same DPU side goes on.
#[test]
fn hosts_die_and_leave_nothing_behind() {
    let volume = Volume::new();
    let (host, front) = connect(&volume, LossPolicy::Wait);
    let mut port = host.session().calling_port(0).unwrap();
    let mut asking = host.session().port(1).unwrap();
    let mut tag = 0;
    let shared = create(&mut port, "shared", 0);
    let baseline = held_of_hosts(volume.pid());
    for round in 0..8 {
        let mut child = start_host(&mut host_of(&volume));
        let mut ask_for_it = || {
            tag += 1;
            set_lock((&mut asking, &front), &exclusive(shared, 2, false), tag)
        };
        // It holds the lock; ours does not come through.
        assert_eq!(ask_for_it(), Err(Errno::EAGAIN));
        std::thread::sleep(Duration::from_millis(5 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("the lock is free", || ask_for_it() == Ok(Reply::Empty));
        let (ino, fh) = shared;
        assert_eq!(call(&mut port, &Request::Flush { ino, fh, owner: 2 }, &[]), Ok(Reply::Empty));
    }
    wait_until("descriptors and mappings are back", || held_of_hosts(volume.pid()) == baseline);
    wait_until("files without a name are gone", || {
        ask(&volume.socket(), r#"{"command":"check"}"#)["counts"]["orphans"] == 0
    });
    let status = volume.status();
    assert_eq!(status["attachments"].as_array().unwrap().len(), 1, "{status:#}");
    volume.assert_clean();
}

/// Nobody asks for anything: both sides sleep. Together they take below 0.1 % of a core. (Only the
/// DPU side was looked at, by ticks of 10 ms.)
#[test]
fn idle_sides_use_no_processor() {
    let volume = Volume::idle();
    let mut host = start_host(host_of(&volume).env(IDLES, "1"));
    // Nanoseconds on a processor, of all threads of both.
    let spent = || -> u64 {
        let threads = [volume.pid(), host.id()]
            .into_iter()
            .flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten());
        let of = |thread: std::fs::DirEntry| {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        };
        threads.filter_map(of).sum()
    };
    // Housekeeping of what was done ends first, and takes its time on a slow disk.
    wait_until("4 s with no more than 4 ms of a core", || {
        let before = spent();
        std::thread::sleep(Duration::from_secs(4));
        spent().saturating_sub(before) <= 4_000_000
    });
    let (other, _) = connect(&volume, LossPolicy::Wait);
    let mut port = other.session().calling_port(0).unwrap();
    assert_eq!(call(&mut port, &Request::Noop, &[]), Ok(Reply::Empty));
    host.kill().unwrap();
    host.wait().unwrap();
}
