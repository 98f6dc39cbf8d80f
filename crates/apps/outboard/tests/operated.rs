//! `outboard status` and `outboard fsck` of what `outboard serve` serves, and a device that grows,
//! as who runs a service would use them. They knew volumes alone: of a served directory `status`
//! said that no DPU side answers, and `fsck` that somebody else's files are in it.

#![expect(clippy::unwrap_used, reason = "a test")]

mod serving;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outboard_attach::host::Connect;
use outboard_client::Volume;
use serde_json::Value;

use serving::{Dpu, OUTBOARD, Serving, json, outboard, text};

/// A DPU side listens before its host does. Who came in between was closed without an answer: the
/// first client of whoever waits until a server's port is open.
#[test]
fn who_comes_while_a_server_starts_is_answered() {
    for (app, flags) in [("kv", &["--size=64M"][..]), ("kv", &["--plain"]), ("pages", &[])] {
        let dir = tempfile::tempdir().unwrap();
        let server = Serving::spawn(app, dir.path(), flags);
        let end = Instant::now() + Duration::from_secs(60);
        let mut first = loop {
            match TcpStream::connect(&server.at) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < end, "{app} {flags:?}: {error}"),
            }
        };
        if app == "kv" {
            first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            first.write_all(b"PING\r\n").unwrap();
            let mut answer = [0; 7];
            first.read_exact(&mut answer).unwrap();
            assert_eq!(text(&answer), "+PONG\r\n", "{flags:?}");
        } else {
            let mut pages = Command::new(OUTBOARD);
            let output = pages.args(["pages", "sync", "--connect", &server.at]).output().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
        server.stop();
    }
}

#[test]
fn a_server_says_what_it_does_and_is_checked_running_and_at_rest() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path();
    let server = Serving::start("kv", data, &["--size=256M", "--items=200"]);
    server.fill(2500);
    assert!(server.get(3).starts_with("$4000\r\nvvv"));
    // Nobody waits for the log to be written, and the table knows what was.
    let end = Instant::now() + Duration::from_secs(60);
    let all = loop {
        let all = json(&["status"], data);
        let of = |path: &str| all["dpu"].pointer(path).and_then(Value::as_u64).unwrap();
        let is_written = of("/table/refused") > 100 && of("/ledger/dma/ring_in/bytes") > 4 << 20;
        if is_written || Instant::now() >= end {
            break all;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
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
    let dpu = Dpu::start(&volume, &["--size=128M"]);
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
    dpu.stop();
}

/// A volume that was full stayed so until it was ended and started with another size.
#[test]
fn a_volume_grows_while_it_runs_and_before_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path();
    let dpu = Dpu::start(data, &["--size=128M"]);
    let volume = Volume::attach(|front| Connect::new(data.join("dpu.sock")).attach(front)).unwrap();
    let how = outboard_client::OpenOptions::new().read().write().create(0o644);
    let file = volume.open("big", how).unwrap();
    file.allocate(0, 0, 100 << 20).unwrap();
    assert!(file.allocate(0, 100 << 20, 100 << 20).is_err(), "it is full");
    let smaller = outboard(&["grow", "--size=127M"], data);
    assert!(text(&smaller.stderr).contains("does not become smaller"), "{}", text(&smaller.stderr));
    let grown = outboard(&["grow", "--size=512M"], data);
    assert!(grown.status.success(), "{}", text(&grown.stderr));
    assert!(text(&grown.stdout).contains("512 MiB, 128 MiB before"), "{}", text(&grown.stdout));
    file.allocate(0, 100 << 20, 100 << 20).unwrap();
    drop(file);
    volume.backend().detach(Duration::from_secs(5)).unwrap();
    dpu.stop();
    let smaller = outboard(&["grow", "--size=256M"], data);
    assert_eq!(smaller.status.code(), Some(2), "{}", text(&smaller.stderr));
    assert!(outboard(&["grow", "--size=1G"], data).status.success());
    let dpu = Dpu::start(data, &[]);
    let blocks = &json(&["status"], data)["dpu"]["volume"]["blocks"];
    let size = &json(&["status"], data)["dpu"]["volume"]["block_size"];
    assert!(blocks.as_u64().unwrap() * size.as_u64().unwrap() > 1000 << 20, "{blocks} {size}");
    dpu.stop();
    assert_eq!(json(&["fsck"], data)["clean"], true);
    let nothing = outboard(&["grow", "--size=1G"], &data.join("nothing"));
    assert_eq!(nothing.status.code(), Some(4), "{}", text(&nothing.stderr));
}
