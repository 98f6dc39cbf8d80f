//! `outboard cluster` and shared volumes from the command line, without a mount: what is refused
//! and with what words; parts that are started, killed and ended.

#![expect(clippy::unwrap_used, reason = "a test")]

mod clustered;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clustered::{Cluster, done, outboard, refused};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Nobody waits longer, on a busy machine, too.
const PATIENCE: Duration = Duration::from_secs(60);

impl Cluster {
    fn status(&self) -> Value {
        serde_json::from_str(&done(&["cluster", "status", self.dir(), "--json"])).unwrap()
    }

    fn pid(&self, part: &str) -> u64 {
        self.status()["parts"][part]["pid"].as_u64().unwrap()
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn what_is_wrong_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let data = format!("--data={}", dir.path().join("data").display());
    let none = dir.path().join("none");
    let none = none.to_str().unwrap();
    for (arguments, code, says) in [
        (&["cluster", "status", none][..], 4, "outboard cluster up"),
        (&["cluster", "down", none], 4, "outboard cluster up"),
        (&["node"], 2, "--config FILE"),
        (&["meta"], 2, "etc/cluster.toml"),
        (&["--config", none, "meta"], 2, "cannot read"),
        (&["run", "here", none], 2, "names no shared volume"),
        (&["run", &data, "shared://host/", none], 2, "names no volume"),
        (&["run", &data, "shared://host/v", none], 2, "names no key"),
        (&["run", &data, "--store=fjall", "shared://host/v?key=k", none], 2, "beside --store"),
        (&["run", &data, "shared://host/v?key=k", "--cache=kernel", none], 2, "--cache hybrid"),
        (&["run", &data, "shared://host/v?key=k", "--cache=write-back", none], 2, "--cache none"),
        (&["run", &data, "shared://host/v?key=k", "--size=1G", none], 2, "as large as its nodes"),
        (&["run", &data, "--client=host", none], 2, "is for a shared volume"),
        (&["mount", &data, "--client=standard", none], 2, "is for a shared volume"),
        (
            &["run", &data, "shared://host/v?key=k", "--client=host", "--cache=hybrid", none],
            2,
            "--client dpu",
        ),
        (
            &[
                "run",
                &data,
                "shared://host/v?key=k",
                "--client=standard",
                "--on-mount-loss=restart",
                none,
            ],
            2,
            "--on-mount-loss end",
        ),
        (&["dpu", &data, "--store=shared://host/v?key=k", "--client=host"], 2, "mount's process"),
        (&["fsck", &data, "--store=shared://host/v?key=k"], 2, "outboard cluster"),
        (&["cluster", "up", none, "--layout=wide"], 2, "strip=64K"),
        (&["layout", dir.path().to_str().unwrap()], 2, "no shared volume"),
    ] {
        let (found, words) = refused(arguments);
        assert!(words.contains(says), "{arguments:?}: {words}");
        assert_eq!(found, code, "{arguments:?}: {words}");
    }
    assert!(!dir.path().join("data").exists(), "nothing was made");
}

/// A DPU side whose cluster is not there, or another, says so.
#[test]
fn a_cluster_that_does_not_answer_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    std::fs::write(&key, format!("cluster = 1\nkey = {}\n", "ab".repeat(32))).unwrap();
    let data = format!("--data={}", dir.path().join("data").display());
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = nobody.local_addr().unwrap();
    let store = format!("--store=shared://{at}/main?key={}", key.display());
    let (code, words) = refused(&["dpu", &data, &store]);
    assert!(words.contains("no metadata server answers") && code == 6, "{code}: {words}");
}

#[test]
fn a_cluster_is_started_killed_and_ended() {
    let cluster = Cluster::up(&["--nodes=2"]);
    let dir = cluster.0.path();
    assert_eq!((mode(&dir.join("key")), mode(&dir.join("node.1"))), (0o600, 0o700));
    let store = cluster.status()["store"].as_str().unwrap().to_owned();
    assert!(store.starts_with("shared://127.0.0.1:") && store.contains("/main?key=/"), "{store}");
    for part in ["meta", "node.1", "node.2", "coordinator"] {
        assert_eq!(cluster.status()["parts"][part]["role"], part);
    }
    assert!(done(&["cluster", "check", cluster.dir(), "--contents"]).contains("node_objects 0"));

    let before = cluster.pid("node.2");
    done(&["cluster", "kill", cluster.dir(), "node.2"]);
    let (code, words) = refused(&["cluster", "status", cluster.dir()]);
    assert!(code == 6 && words.contains("node.2") && !words.contains("node.1"), "{words}");
    done(&["cluster", "start", cluster.dir(), "node.2"]);
    assert_ne!(cluster.pid("node.2"), before);
    let life = cluster.status()["parts"]["meta"]["life"].clone();
    done(&["cluster", "kill", cluster.dir(), "meta"]);
    done(&["cluster", "start", cluster.dir(), "meta"]);
    assert_ne!(cluster.status()["parts"]["meta"]["life"], life);

    for (arguments, says) in [
        (&["cluster", "kill", cluster.dir(), "node.3"][..], "node.1, node.2, meta"),
        (&["cluster", "cut", cluster.dir(), "node.1"], "--netns"),
        (&["cluster", "up", cluster.dir(), "--nodes=3"], "--nodes"),
        (&["cluster", "up", cluster.dir(), "--packed"], "--packed"),
    ] {
        let (code, words) = refused(arguments);
        assert!(code == 2 && words.contains(says), "{arguments:?}: {words}");
    }
    done(&["cluster", "down", cluster.dir()]);
    let (code, _) = refused(&["cluster", "status", cluster.dir()]);
    assert_eq!(code, 6);
    let log = std::fs::read_to_string(dir.join("meta.log")).unwrap();
    assert!(log.contains("ended in order"), "{log}");
}

/// Who stays with a cluster starts again what dies, and ends all with a signal.
#[test]
fn what_dies_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    let mut up = Command::new(env!("CARGO_BIN_EXE_outboard"))
        .args(["cluster", "up", at, "--nodes=1", "--port=0"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    let is_up = || outboard(&["cluster", "status", at]).status.success();
    let wait = || {
        while !is_up() {
            assert!(Instant::now() < end, "it is up");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait();
    done(&["cluster", "kill", at, "node.1"]);
    wait();
    done(&["cluster", "down", at]);
    assert!(up.wait().unwrap().success());
}

/// A server that waited for a busy disk said nothing for longer than a conversation is tried for,
/// and the check of a cluster, in the midst of its suites, that there was no server.
#[test]
fn a_server_that_says_nothing_for_a_while_is_waited_for() {
    let cluster = Cluster::up(&["--nodes=1"]);
    let pid = i32::try_from(cluster.pid("meta")).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::scope(|scope| {
        let check = scope.spawn(|| outboard(&["cluster", "check", cluster.dir()]));
        std::thread::sleep(Duration::from_secs(5));
        let waits = !check.is_finished();
        kill_process(pid, Signal::CONT).unwrap();
        assert!(check.join().unwrap().status.success() && waits);
    });
    done(&["cluster", "kill", cluster.dir(), "meta"]);
    let (code, words) = refused(&["cluster", "check", cluster.dir()]);
    assert!(code == 6 && words.contains("no answer from meta"), "{code}: {words}");
}

/// Parts that do not trust alike do not serve with each other, and a mount that was told of another
/// trust is refused: each says what to do.
#[test]
fn who_trusts_otherwise_is_refused() {
    let cluster = Cluster::up(&["--nodes=1", "--trust=sealed"]);
    let status = cluster.status();
    let store = status["store"].as_str().unwrap();
    assert!(store.ends_with("&trust=sealed"), "{store}");
    for part in ["meta", "node.1"] {
        assert_eq!(status["parts"][part]["trust"], "sealed");
    }
    let (code, words) = refused(&["cluster", "up", cluster.dir(), "--trust=plain"]);
    assert!(code == 2 && words.contains("--trust"), "{words}");
    let data = format!("--data={}", cluster.0.path().join("data").display());
    let other = store.replace("sealed", "capability");
    let (code, words) = refused(&["dpu", &data, &format!("--store={other}")]);
    assert!(code == 2 && words.contains("trust sealed") && words.contains("status"), "{words}");

    let file = cluster.0.path().join("cluster.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    for (part, other) in [("node.1", "meta"), ("meta", "node.1")] {
        done(&["cluster", "kill", cluster.dir(), part]);
        std::fs::write(&file, text.replace("sealed", "capability")).unwrap();
        let name = part.split('.').next().unwrap();
        let (code, words) = refused(&["--config", file.to_str().unwrap(), name]);
        assert!(code == 2 && words.contains("trust capability"), "{words}");
        assert!(words.contains(&format!("{other} at")), "{words}");
        std::fs::write(&file, &text).unwrap();
        done(&["cluster", "start", cluster.dir(), part]);
    }
}

/// All parts in one process answer as they do in three, with a capture of each.
#[test]
fn a_packed_cluster_is_one_process() {
    let captures = tempfile::tempdir().unwrap();
    let capture = format!("--capture={}", captures.path().display());
    let cluster = Cluster::up(&["--nodes=2", "--packed", &capture]);
    assert_eq!(cluster.pid("meta"), cluster.pid("node.2"));
    let (code, words) = refused(&["cluster", "kill", cluster.dir(), "node.1"]);
    assert!(code == 2 && words.contains("packed"), "{words}");
    done(&["cluster", "down", cluster.dir()]);
    for part in ["meta", "node.1", "node.2"] {
        let bytes = std::fs::read(captures.path().join(format!("{part}.pcap"))).unwrap();
        assert!(bytes.len() > 100 && bytes[..4] == [0x4D, 0x3C, 0xB2, 0xA1], "{part}");
    }
}
