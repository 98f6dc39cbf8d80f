//! Data directories that the release before wrote, stopped in order and killed: today's program
//! opens them, reads what was written, and finds nothing to complain of. `formats/README.md` says
//! what is in each, and how others are made.

#![expect(clippy::unwrap_used, reason = "a test")]

mod serving;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use outboard_attach::host::Connect;
use outboard_client::{OpenOptions, Volume};

use serving::{Dpu, OUTBOARD, Serving, json, text};

/// One of them, in a directory that goes with the test.
fn unpacked(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let archive =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/formats/{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("-C").arg(dir.path());
    assert!(tar.status().unwrap().success(), "{name}");
    dir
}

/// The bytes of a big file.
fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * i / 7 + i) % 251).unwrap()).collect()
}

/// Reads what is in every volume of the release before, and writes there.
fn read_volume(data: &Path, was_killed: bool) {
    let dpu = Dpu::start(data, &[]);
    let volume = Volume::attach(|front| Connect::new(data.join("dpu.sock")).attach(front)).unwrap();
    let read = |name: &str, len: usize| {
        let mut bytes = vec![0; len + 1];
        let read = volume.open(name, OpenOptions::new().read()).unwrap().read_at(&mut bytes, 0);
        bytes.truncate(read.unwrap());
        bytes
    };
    assert_eq!(text(&read("symlink", 99)), "written by the release before\n");
    assert!(read("big.bin", 300_000) == pattern(300_000), "the big file is another");
    assert_eq!(text(&read("dir/hard", 99)), "written by the release before\n");
    assert_eq!(text(&read("dir/sub/name40", 9)), "40\n");
    assert_eq!(text(&read("dir/moved", 9)), "8\n");
    assert!(volume.stat("dir/sub/name7").is_err());
    assert_eq!(volume.readlink("symlink").unwrap(), b"small.txt");
    assert_eq!(volume.stat("small.txt").unwrap().nlink, 2);
    let ino = volume.stat("small.txt").unwrap().ino;
    let value = volume.xattr(ino, b"user.who", 99).unwrap();
    assert!(format!("{value:?}").contains(&format!("{:?}", b"before")), "{value:?}");
    if was_killed {
        assert_eq!(text(&read("late.txt", 99)), "answered and not synced\n");
        assert!(read("late.bin", 100_000) == pattern(100_000), "what was answered is lost");
    }
    let new = volume.open("new", OpenOptions::new().read().write().create(0o644)).unwrap();
    assert_eq!(new.write_at(&pattern(20_000), 0).unwrap(), 20_000);
    new.sync(false).unwrap();
    drop(new);
    volume.backend().detach(Duration::from_secs(5)).unwrap();
    dpu.stop();
    assert_eq!(json(&["fsck"], data)["clean"], true);
}

#[test]
fn volumes_of_the_release_before_are_opened_and_used() {
    for (name, was_killed) in [("kv-stopped", false), ("kv-killed", true), ("redb-stopped", false)]
    {
        let dir = unpacked(name);
        read_volume(dir.path(), was_killed);
    }
}

/// 1,700 keys, of which 20 were deleted and 20 set anew; most lie in the file of the log.
#[test]
fn key_value_servers_of_the_release_before_are_served() {
    for (name, flags) in [
        ("served-kv-stopped", &[][..]),
        ("served-kv-killed", &[]),
        ("served-kv-plain", &["--plain"]),
    ] {
        let dir = unpacked(name);
        assert_eq!(json(&["fsck"], dir.path())["clean"], true, "{name}");
        let server = Serving::start("kv", dir.path(), flags);
        for key in (0..1700).step_by(if cfg!(debug_assertions) { 7 } else { 1 }) {
            let bulk = match key {
                100..120 => "$-1\r\n".to_owned(),
                200..220 => "$5\r\nnewer\r\n".to_owned(),
                _ => {
                    let value = format!("value {key} ").repeat(400);
                    format!("${}\r\n{value}\r\n", value.len())
                }
            };
            let name = format!("key:{key}");
            let get = format!("*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len());
            assert_eq!(text(&server.ask(get.as_bytes(), bulk.len())), bulk, "{name}");
        }
        server.fill(1500);
        server.stop();
        assert_eq!(json(&["fsck"], dir.path())["clean"], true, "{name}");
    }
}

/// Pages 0, 3 and 17 at LSN 3, synced. The next release places pages elsewhere.
#[test]
fn page_servers_of_the_release_before_are_served() {
    for name in ["served-pages-stopped", "served-pages-killed"] {
        let dir = unpacked(name);
        let report = json(&["fsck"], dir.path());
        assert_eq!((&report["clean"], &report["counts"]["pages"]), (&true.into(), &3.into()));
        let server = Serving::start("pages", dir.path(), &[]);
        let pages = |verb: &str, args: &[&str]| {
            let all = [&["pages", verb], args, &["--connect", &server.at]].concat();
            let output = Command::new(OUTBOARD).args(all).output().unwrap();
            assert!(output.status.success(), "{name}: {}", text(&output.stderr));
            text(&output.stdout)
        };
        for page in ["0", "3", "17"] {
            assert_eq!(pages("get", &[page, "--lsn", "3"]), format!("page {page} at 3"));
            pages("put", &[page, "--lsn", "4", "newer"]);
        }
        pages("put", &["5", "--lsn", "1", "a page more"]);
        pages("sync", &[]);
        server.stop();
        let report = json(&["fsck"], dir.path());
        assert_eq!((&report["clean"], &report["counts"]["pages"]), (&true.into(), &4.into()));
        let server = Serving::start("pages", dir.path(), &[]);
        let get = ["pages", "get", "17", "--lsn", "4", "--connect", &server.at];
        let output = Command::new(OUTBOARD).args(get).output().unwrap();
        assert!(text(&output.stdout).starts_with("newer"), "{}", text(&output.stderr));
    }
}
