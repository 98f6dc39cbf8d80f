//! `bench all` as a process: what it leaves, how it ends, and what Ctrl-C leaves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process_group};

fn bench(out: &Path, data: &Path, arguments: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboard-bench"));
    command.args(["all", "--only=figure-22", "--rounds=1"]).args(arguments.split(' '));
    command.arg("--out").arg(out).arg("--dir").arg(data);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn a_run_leaves_table_picture_and_page_and_no_data() {
    let (out, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut child = bench(out.path(), data.path(), "--quick --seconds=0.01");
    assert!(child.wait().unwrap().success());
    let read = |name: &str| std::fs::read_to_string(out.path().join(name)).unwrap();
    assert!(read("figure-22.svg").contains("<polyline"));
    assert!(read("figure-22.txt").contains("cuckoo"));
    let page = read("README.md");
    let command = "`outboard bench dds --figure 22 --quick --seconds 0.01 --rounds 1`";
    assert!(page.contains(command) && page.contains("![figure-22.svg]"), "{page}");
    assert!(page.contains("- [figure-22](#figure-22): cache table, millions of inserts"), "{page}");
    assert!(page.contains("commit"), "{page}");
    assert!(is_empty(data.path()));
}

/// A process of a measurement that outlives the run would disturb whatever is measured next.
#[test]
fn a_run_that_is_told_to_stop_ends_what_it_started() {
    let (out, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut child = bench(out.path(), data.path(), "--seconds=600");
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let end = Instant::now() + Duration::from_secs(30);
    let measuring = loop {
        // Namespaces that are tried out come and go before.
        let of = std::fs::read_to_string(&children).unwrap();
        let pids = of.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        let named = |pid: &Pid| {
            let line = std::fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
            line.is_ok_and(|line| line.contains("--figure"))
        };
        if let Some(pid) = pids.into_iter().find(named) {
            break pid;
        }
        assert!(Instant::now() < end, "nothing is measured");
        std::thread::sleep(Duration::from_millis(5));
    };
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(test_kill_process_group(measuring).is_err());
    let page = std::fs::read_to_string(out.path().join("README.md")).unwrap();
    assert!(page.contains("Nothing was measured yet."), "{page}");
    assert!(is_empty(data.path()));
}
