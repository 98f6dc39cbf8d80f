//! Who may be part of a cluster, and who may use it: the coordinator and its parts as processes,
//! and clients whose keys are given and revoked; without a mount.

#![expect(clippy::unwrap_used, reason = "a test")]

mod clustered;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use clustered::{Cluster, command, done, outboard, refused};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Nobody waits longer, on a busy machine, too.
const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Cluster {
    /// What the parts say that answer.
    fn parts(&self) -> Value {
        let output = outboard(&["cluster", "status", self.dir(), "--json"]);
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        all["parts"].clone()
    }

    fn registered(&self) -> Value {
        self.parts()["meta"]["part"]["registered"].clone()
    }

    /// The description with something else in it, in a file beside it.
    fn other(&self, name: &str, changes: &[(&str, &str)]) -> PathBuf {
        let text = std::fs::read_to_string(self.0.path().join("cluster.toml")).unwrap();
        let text = changes.iter().fold(text, |text, (from, to)| {
            assert!(text.contains(from), "{from} in {text}");
            text.replace(from, to)
        });
        let file = self.0.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    }
}

/// A part that a test started by hand.
struct Part(Child);

impl Part {
    fn start(config: &Path, role: &[&str]) -> Part {
        let mut all = vec!["--config", config.to_str().unwrap()];
        all.extend(role);
        Part(command(&all).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _buried = self.0.wait();
    }
}

/// Two servers on one volume: the second is told where the first is; once that one is dead, it is
/// told that its store is not the volume's. The first comes back as if nothing had been. The second
/// had opened its store, and made one, before it asked whether it may be there.
#[test]
fn a_volume_has_one_server_and_one_store() {
    let cluster = Cluster::up(&["--nodes=1"]);
    let server = "address = \"127.0.0.1:";
    let second = cluster.other(
        "second.toml",
        &[(server, "address = \"127.0.0.101:"), ("data = \"meta\"", "data = \"meta2\"")],
    );
    let second = second.to_str().unwrap();
    let (code, words) = refused(&["--config", second, "meta"]);
    assert!(words.contains("meta is at 127.0.0.1:") && code == 4, "{code}: {words}");
    assert_eq!(cluster.registered(), 1, "the first knows nothing of it");
    assert!(!cluster.0.path().join("meta2").exists(), "it has touched no store");
    done(&["cluster", "kill", cluster.dir(), "meta"]);
    let (code, words) = refused(&["--config", second, "meta"]);
    assert!(words.contains("kept in another store") && code == 4, "{code}: {words}");
    done(&["cluster", "start", cluster.dir(), "meta"]);
    until("the node is known to the server", || cluster.registered() == 1);
}

#[test]
fn a_node_of_another_cluster_is_refused_with_the_reason() {
    let cluster = Cluster::up(&["--nodes=1"]);
    let key = format!("cluster = 5\nkey = {}\n", "ab".repeat(32));
    std::fs::write(cluster.0.path().join("other-key"), key).unwrap();
    let other = cluster.other(
        "other.toml",
        &[
            ("key = \"key\"", "key = \"other-key\""),
            ("127.0.0.2:", "127.0.0.102:"),
            ("data = \"node.1\"", "data = \"other\""),
        ],
    );
    let (code, words) = refused(&["--config", other.to_str().unwrap(), "node", "--number=1"]);
    assert!(words.contains("node.1 is refused") && words.contains("another cluster's"), "{words}");
    assert_eq!(code, 2, "{words}");
    let twin = cluster.other(
        "twin.toml",
        &[("127.0.0.2:", "127.0.0.102:"), ("data = \"node.1\"", "data = \"twin\"")],
    );
    let (code, words) = refused(&["--config", twin.to_str().unwrap(), "node", "--number=1"]);
    assert!(words.contains("node.1 is at 127.0.0.2:") && code == 4, "{code}: {words}");
}

/// The coordinator dies: what is there answers, a node that starts serves, and once it is back all
/// are known as before. A server that starts meanwhile waits for it.
#[test]
fn a_dead_coordinator_stops_nothing_but_servers_that_start() {
    let cluster = Cluster::up(&["--nodes=2"]);
    until("both nodes are known", || cluster.registered() == 2);
    done(&["cluster", "kill", cluster.dir(), "coordinator"]);
    let (code, words) = refused(&["cluster", "status", cluster.dir()]);
    assert!(code == 6 && words.contains("coordinator") && !words.contains("node.1"), "{words}");
    until("the server says so", || cluster.registered().is_null());
    done(&["cluster", "check", cluster.dir()]);
    done(&["cluster", "kill", cluster.dir(), "node.1"]);
    done(&["cluster", "start", cluster.dir(), "node.1"]);
    done(&["cluster", "check", cluster.dir()]);

    done(&["cluster", "kill", cluster.dir(), "meta"]);
    let server = Part::start(&cluster.0.path().join("cluster.toml"), &["meta"]);
    std::thread::sleep(Duration::from_secs(2));
    assert!(cluster.parts()["meta"].is_null(), "it waits");
    done(&["cluster", "start", cluster.dir(), "coordinator"]);
    until("the server is there, and both nodes", || cluster.registered() == 2);
    drop(server);
}

/// A server that starts without its coordinator waited for two minutes, said so in its log only,
/// and not what to do; Ctrl-C of who had started it left it there.
#[test]
fn what_a_server_waits_for_is_said_and_it_can_be_ended() {
    let cluster = Cluster::up(&["--nodes=1"]);
    done(&["cluster", "kill", cluster.dir(), "coordinator"]);
    done(&["cluster", "kill", cluster.dir(), "meta"]);
    let begun = Instant::now();
    let mut start = command(&["cluster", "start", cluster.dir(), "meta"]);
    let mut start = start.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(start.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains("meta waits for the coordinator at"), "{line}");
    assert!(line.contains("cluster start") && line.contains(cluster.dir()), "{line}");
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    let told = Pid::from_child(&start);
    kill_process(told, Signal::INT).unwrap();
    assert_eq!(start.wait().unwrap().code(), Some(6));
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    let words: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(words.last().unwrap().contains("was told to end"), "{words:?}");
    let running = std::fs::File::open(cluster.0.path().join("run/meta.pid")).unwrap();
    running.try_lock_shared().unwrap();
}

/// A node that comes back at another address is found there, with what it holds.
#[test]
fn a_node_is_found_where_it_says_it_is() {
    let cluster = Cluster::up(&["--nodes=1"]);
    let moved = cluster.other("moved.toml", &[("127.0.0.2:", "127.0.0.103:")]);
    done(&["cluster", "kill", cluster.dir(), "node.1"]);
    let _node = Part::start(&moved, &["node", "--number=1"]);
    let log = cluster.0.path().join("meta.log");
    until("the server hears of it", || {
        std::fs::read_to_string(&log).unwrap().contains("a node is at another address")
    });
    until("the check reaches it", || {
        let output = outboard(&["cluster", "check", cluster.dir(), "--contents"]);
        String::from_utf8_lossy(&output.stdout).contains("nodes_away 0")
    });
}

#[test]
fn keys_are_given_listed_revoked_and_rotated() {
    let cluster = Cluster::up(&["--nodes=2"]);
    let add = |name: &str| done(&["cluster", "key", "add", cluster.dir(), name]).trim().to_owned();
    let file = add("host1");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let key = std::fs::read_to_string(&file).unwrap();
    assert_eq!(add("host1"), file, "the same name is the same client");
    add("host2");
    for (name, says) in [("a/b", "no name"), ("", "no name")] {
        let (code, words) = refused(&["cluster", "key", "add", cluster.dir(), name]);
        assert!(code == 2 && words.contains(says), "{words}");
    }
    let revoke = ["cluster", "key", "revoke", cluster.dir(), "host1"];
    assert!(done(&revoke).contains("all 2 nodes know"));
    let (code, words) = refused(&revoke);
    assert!(code == 2 && words.contains("cluster key list"), "{words}");
    let list = done(&["cluster", "key", "list", cluster.dir()]);
    let of = |name: &str| list.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(of("host1").contains("revoked") && of("host2").contains("counts"), "{list}");

    // Whoever has it is told so.
    let store = done(&["cluster", "status", cluster.dir(), "--json"]);
    let store: Value = serde_json::from_str(&store).unwrap();
    let store = store["store"].as_str().unwrap();
    let store = store.replace(&format!("{}/key", cluster.dir()), &file);
    let data = format!("--data={}", cluster.0.path().join("host").display());
    let (code, words) = refused(&["dpu", &data, &format!("--store={store}")]);
    assert!(code == 2 && words.contains("was revoked"), "{code}: {words}");

    let other = format!("--file={}", cluster.0.path().join("again.key").display());
    let again = done(&["cluster", "key", "add", cluster.dir(), "host1", &other]);
    assert_ne!(std::fs::read_to_string(again.trim()).unwrap(), key, "another key");
    assert!(done(&["cluster", "key", "rotate", cluster.dir()]).contains("all 2 nodes know"));
    let list: Value =
        serde_json::from_str(&done(&["cluster", "key", "list", cluster.dir(), "--json"])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 3);
}

#[test]
fn what_is_no_coordinator_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("c");
    let at = at.to_str().unwrap();
    for (wished, says) in
        [("etcd://a:1", "embedded, none or an ensemble"), ("zookeeper://a", "HOST:PORT")]
    {
        let wished = format!("--coordinator={wished}");
        let (code, words) = refused(&["cluster", "up", at, &wished]);
        assert!(code == 2 && words.contains(says), "{words}");
    }
    let (code, words) = refused(&["coordinator"]);
    assert!(code == 2 && words.contains("--config FILE"), "{words}");
    let cluster = Cluster::up(&["--nodes=1", "--coordinator=none"]);
    assert!(cluster.registered().is_null());
    assert!(cluster.parts()["coordinator"].is_null());
    let again = ["cluster", "up", cluster.dir(), "--coordinator=embedded"];
    let (code, words) = refused(&again);
    assert!(code == 2 && words.contains("--coordinator"), "{words}");
    let output = outboard(&["--config", &format!("{}/cluster.toml", cluster.dir()), "coordinator"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no [coordinator]"));
}
