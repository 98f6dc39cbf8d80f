//! Clusters whose coordinator is an ensemble of ZooKeeper, which `OUTBOARD_ZOOKEEPER` names as
//! `--coordinator` does, of `scripts/zookeeper` in the directory `OUTBOARD_ENSEMBLE`; without one
//! most of this is skipped. `scripts/test-zookeeper` runs it.

#![cfg(feature = "zookeeper")]
#![expect(clippy::unwrap_used, reason = "a test")]

mod clustered;

use std::path::Path;
use std::process::Command;

use clustered::{Cluster, done, outboard, refused};

/// The ensemble, and its directory.
fn ensemble() -> Option<(String, String)> {
    let of = |name| std::env::var(name).ok();
    let found = of("OUTBOARD_ZOOKEEPER").zip(of("OUTBOARD_ENSEMBLE"));
    if found.is_none() {
        eprintln!("skipped: OUTBOARD_ZOOKEEPER and OUTBOARD_ENSEMBLE name no ensemble");
    }
    found
}

fn flag(location: &str, path: &str) -> String {
    format!("--coordinator={location}/outboard-{}/{path}", std::process::id())
}

/// What `cluster up` of a new one says, which leaves nothing behind.
fn refuses(dir: &Path, flag: &str) -> (i32, String) {
    let dir = dir.join("refused");
    let at = dir.to_str().unwrap();
    let told = refused(&["cluster", "up", at, "--nodes=1", "--port=0", "--detach", flag]);
    assert!(!dir.exists(), "nothing is left behind: {}", told.1);
    told
}

/// A second cluster under the path of a first was made, started, and ended with what one of its
/// parts had said.
#[test]
fn each_cluster_has_a_path_of_its_own() {
    let Some((location, _)) = ensemble() else { return };
    let flag = flag(&location, "paths");
    let one = Cluster::up(&["--nodes=1", &flag]);
    let dir = tempfile::tempdir().unwrap();
    let (code, words) = refuses(dir.path(), &flag);
    assert!(code == 2 && words.contains("a path of its own"), "{code}: {words}");
    // The first comes again as if nothing had been.
    for _ in 0..2 {
        done(&["cluster", "down", one.dir()]);
        done(&["cluster", "up", one.dir(), "--detach"]);
        done(&["cluster", "check", one.dir()]);
    }
}

/// Parts waited for an ensemble that was away for two minutes, and the words did not name it.
#[test]
fn an_ensemble_that_is_away_is_said_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let away = "--coordinator=zookeeper://127.0.0.1:1,127.0.0.1:2/away";
    let (code, words) = refuses(dir.path(), away);
    assert!(code == 6 && words.contains("scripts/zookeeper status"), "{code}: {words}");
}

/// The same of a cluster that is there, and of one whose majority is lost while it is up: files go
/// on, parts cannot come.
#[test]
fn without_the_majority_files_go_on_and_parts_do_not_come() {
    let Some((location, dir)) = ensemble() else { return };
    let script = |verb: &str, which: &str| {
        let mut script = Command::new("../../../scripts/zookeeper");
        assert!(script.args([verb, &dir, which]).status().unwrap().success(), "{verb} {which}");
    };
    let one = Cluster::up(&["--nodes=1", &flag(&location, "majority")]);
    script("kill", "1");
    script("kill", "2");
    done(&["cluster", "check", one.dir(), "--contents"]);
    done(&["cluster", "kill", one.dir(), "node.1"]);
    done(&["cluster", "start", one.dir(), "node.1"]);
    done(&["cluster", "check", one.dir(), "--contents"]);
    let log = std::fs::read_to_string(one.0.path().join("meta.log")).unwrap();
    assert!(log.lines().count() < 50, "one line says that it is away:\n{log}");
    done(&["cluster", "down", one.dir()]);
    let (code, words) = refused(&["cluster", "up", one.dir(), "--detach"]);
    assert!(code == 6 && words.contains("scripts/zookeeper status"), "{code}: {words}");
    assert_eq!(outboard(&["cluster", "status", one.dir()]).status.code(), Some(6), "none runs");
    script("revive", "all");
    done(&["cluster", "up", one.dir(), "--detach"]);
    done(&["cluster", "check", one.dir(), "--contents"]);
}
