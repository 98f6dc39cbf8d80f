//! `outboard status` and `outboard fsck` of what `outboard serve` serves, and a device that grows,
//! as who runs a service would use them. They knew volumes alone: of a served directory `status`
//! said that no DPU side answers, and `fsck` that somebody else's files are in it.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const OUTBOARD: &str = env!("CARGO_BIN_EXE_outboard");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn outboard(args: &[&str], data: &Path) -> Output {
    Command::new(OUTBOARD).args(args).arg("--data").arg(data).output().unwrap()
}

fn json(args: &[&str], data: &Path) -> Value {
    let output = outboard(&[args, &["--json"]].concat(), data);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A server, ended when dropped.
struct Serving {
    child: Child,
    at: String,
}

impl Serving {
    fn start(app: &str, data: &Path, flags: &[&str]) -> Serving {
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut child = Command::new(OUTBOARD)
            .args(["serve", app, "--memory=4M", "--listen", &at])
            .args(flags)
            .arg("--data")
            .arg(data)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("serving "), "{said}");
        Serving { child, at }
    }

    /// Sends commands whose answers are so many bytes, and takes those.
    fn ask(&self, commands: &[u8], answers: usize) -> Vec<u8> {
        let mut stream = TcpStream::connect(&self.at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(commands).unwrap();
        let mut answer = vec![0; answers];
        stream.read_exact(&mut answer).unwrap();
        answer
    }

    /// Sets so many keys of 4000 bytes, which is more than memory keeps from 1100 on.
    fn fill(&self, keys: usize) {
        let value = "v".repeat(4000);
        for key in 0..keys {
            let set = format!("*3\r\n$3\r\nSET\r\n$6\r\n{key:06}\r\n$4000\r\n{value}\r\n");
            assert_eq!(text(&self.ask(set.as_bytes(), 5)), "+OK\r\n");
        }
    }

    fn get(&self, key: usize) -> String {
        let get = format!("*2\r\n$3\r\nGET\r\n$6\r\n{key:06}\r\n");
        text(&self.ask(get.as_bytes(), 4009))
    }

    fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn a_server_says_what_it_does_and_is_checked_running_and_at_rest() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path();
    let server = Serving::start("kv", data, &["--size=256M", "--items=200"]);
    server.fill(2500);
    assert!(server.get(3).starts_with("$4000\r\nvvv"));
    let all = json(&["status"], data);
    assert_eq!(all["served"]["application"], "kv");
    assert_eq!(all["host"]["pid"], server.child.id());
    let dpu = &all["dpu"];
    let of = |path: &str| dpu.pointer(path).and_then(Value::as_u64).unwrap();
    assert!(of("/director/offloaded") + of("/director/to_host") >= 2501, "{all:#}");
    assert_eq!(of("/table/items"), 200);
    assert!(of("/table/refused") > 100, "more lie in the file than the table was made for");
    assert!(of("/ledger/dma/ring_in/bytes") > 4 << 20, "{all:#}");
    assert_eq!(dpu["named_files"][0]["name"], "kv/log");
    assert_eq!(dpu["attachments"][0]["pid"], server.child.id());
    assert_eq!(of("/attachments/0/rings/0/request_bytes"), 4 << 20);
    let said = text(&outboard(&["status"], data).stdout);
    for part in ["served       kv (offload) at ", "WARNING      the table was full", "ring_in"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let running = json(&["fsck"], data);
    assert_eq!((&running["clean"], &running["counts"]["files"]), (&true.into(), &1.into()));
    server.stop();
    let ended = outboard(&["status"], data);
    assert_eq!(ended.status.code(), Some(6));
    assert!(text(&ended.stderr).contains("outboard serve"), "{}", text(&ended.stderr));
    let counts = &json(&["fsck"], data)["counts"];
    assert!(counts["pages"].as_u64().unwrap() > 3, "{counts}");
    assert!(counts["journal_values"].as_u64().unwrap() > 100, "{counts}");
    damage_a_record(data);
    let found = outboard(&["fsck"], data);
    let said = text(&found.stdout);
    assert_eq!(found.status.code(), Some(5), "{said}");
    assert!(said.contains("kv: the log is damaged at byte"), "{said}");
    assert!(said.contains("1 faults found; restore the data from a copy"), "{said}");
}

/// Changes a byte of a value that lies in the device.
fn damage_a_record(data: &Path) {
    let volume = File::options().read(true).write(true).open(data.join("volume")).unwrap();
    let mut page = vec![0; 1 << 20];
    for at in (1..).map(|at| at << 20) {
        volume.read_exact_at(&mut page, at).unwrap();
        if page.starts_with(b"PKvLog02") {
            volume.write_all_at(b"?", at + 3000).unwrap();
            return;
        }
    }
}

/// The host's death leaves a DPU side that says so, and an unclean end leaves nothing to complain
/// of.
#[test]
fn what_a_killed_host_leaves_is_seen_and_clean() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path();
    let server = Serving::start("pages", data, &["--size=64M"]);
    let put = ["pages", "put", "5", "--lsn", "1", "hello", "--connect", &server.at];
    assert!(Command::new(OUTBOARD).args(put).status().unwrap().success());
    let sync = ["pages", "sync", "--connect", &server.at];
    assert!(Command::new(OUTBOARD).args(sync).status().unwrap().success());
    server.kill();
    let all = json(&["status"], data);
    assert!(all["host"].is_null() && all["dpu"]["pid"].is_u64(), "{all:#}");
    assert!(text(&outboard(&["status"], data).stdout).contains("host side    none"));
    assert_eq!(json(&["fsck"], data)["clean"], true);
    let dpu = all["dpu"]["pid"].to_string();
    assert!(Command::new("kill").args(["-9", &dpu]).status().unwrap().success());
    let until = Instant::now() + Duration::from_secs(30);
    while outboard(&["status"], data).status.code() != Some(6) {
        assert!(Instant::now() < until, "the DPU side does not die");
    }
    let report = json(&["fsck"], data);
    assert_eq!((&report["clean"], &report["counts"]["pages"]), (&true.into(), &1.into()));
    OpenOptions::new().write(true).open(data.join("volume")).unwrap().write_all(&[1]).unwrap();
    let found = outboard(&["fsck"], data);
    assert_eq!(found.status.code(), Some(5));
    let said = text(&found.stdout);
    assert!(said.contains("copy 0 of the superblock is damaged"), "{said}");
}

/// A plain server has no DPU side to be asked; what it leaves is checked like the others'.
#[test]
fn a_plain_server_is_seen_and_checked_too() {
    let dir = tempfile::tempdir().unwrap();
    let server = Serving::start("kv", dir.path(), &["--plain"]);
    server.fill(3000);
    let said = text(&outboard(&["status"], dir.path()).stdout);
    assert!(said.contains("kv (plain)") && said.contains("nothing is offloaded"), "{said}");
    assert_eq!(outboard(&["fsck"], dir.path()).status.code(), Some(4));
    server.stop();
    assert!(json(&["fsck"], dir.path())["counts"]["pages"].as_u64().unwrap() > 0);
}

/// `--size` was for new devices alone, and one that was full stayed full.
#[test]
fn a_served_device_grows_and_does_not_become_smaller() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path();
    let server = Serving::start("kv", data, &["--size=8M"]);
    server.fill(1500);
    server.stop();
    let mut smaller = Command::new(OUTBOARD);
    smaller.args(["serve", "kv", "--size=4M", "--listen=127.0.0.1:0", "--data"]).arg(data);
    let refused = smaller.output().unwrap();
    let said = text(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("8388608 bytes and does not become smaller"), "{said}");
    let server = Serving::start("kv", data, &["--size=64M"]);
    assert_eq!(json(&["status"], data)["dpu"]["segments"], 64);
    server.fill(5000);
    server.stop();
    // As it is, if nothing is said.
    let server = Serving::start("kv", data, &[]);
    assert_eq!(json(&["status"], data)["dpu"]["segments"], 64);
    assert!((0..5000).step_by(99).all(|key| server.get(key).starts_with("$4000\r\nvvv")));
    server.stop();
    assert_eq!(json(&["fsck"], data)["clean"], true);
}

/// What is watched is a volume or a server; who ends the watching gets no error, and nobody there
/// ends no watching.
#[test]
fn watching_goes_on_until_it_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, served) = (dir.path().join("volume"), dir.path().join("served"));
    let mut dpu =
        Command::new(OUTBOARD).args(["dpu", "--size=128M", "--data"]).arg(&volume).spawn().unwrap();
    let server = Serving::start("kv", &served, &["--size=64M"]);
    for (data, words) in [(&volume, "DPU side"), (&served, "served       kv")] {
        let mut watching = Command::new(OUTBOARD)
            .args(["status", "--watch", "1", "--data"])
            .arg(data)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(watching.stdout.take().unwrap());
        let lines = out.lines().map(Result::unwrap).take(200);
        let twice = lines.filter(|line| line.starts_with(words)).take(2);
        assert_eq!(twice.count(), 2);
        let pid = watching.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        assert_eq!(watching.wait().unwrap().code(), Some(0));
    }
    server.stop();
    let pid = dpu.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    dpu.wait().unwrap();
}
