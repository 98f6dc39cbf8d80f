//! `outboard serve pages` and `outboard pages`, as a person would try them.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use outboard_servers::pages::client::{Answer, Client};

const OUTBOARD: &str = env!("CARGO_BIN_EXE_outboard");

/// A server, told to stop when dropped.
struct Serving {
    child: Child,
    at: String,
}

impl Serving {
    fn start(data: &Path) -> Serving {
        Serving::start_as(data, &[])
    }

    fn start_as(data: &Path, flags: &[&str]) -> Serving {
        // Free a moment ago; `serve` says so if it no longer is.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        drop(listener);
        let mut child = Command::new(OUTBOARD)
            .args(["serve", "pages", "--listen", &at, "--data"])
            .arg(data)
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("serving pages at "), "{said}");
        Serving { child, at }
    }

    fn pages(&self, verb: &str, args: &[&str]) -> Output {
        let mut command = Command::new(OUTBOARD);
        command.args(["pages", verb, "--connect", &self.at]).args(args).output().unwrap()
    }

    fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn pages_are_put_and_got_and_outlive_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Serving::start(dir.path());
    let put = server.pages("put", &["5", "--lsn", "1", "hello"]);
    assert!(put.status.success(), "{}", text(&put.stderr));
    assert_eq!(text(&put.stdout), "page 5 is at LSN 1\n");
    let again = server.pages("put", &["5", "--lsn", "1", "other"]);
    assert!(text(&again.stdout).contains("already"), "{}", text(&again.stdout));
    let more = server.pages("put", &["5", "--lsn", "2", "--at", "5", " world"]);
    assert!(more.status.success());
    let synced = server.pages("sync", &[]);
    assert!(synced.status.success(), "{}", text(&synced.stderr));
    let newer = server.pages("get", &["5", "--lsn", "3"]);
    assert_eq!(newer.status.code(), Some(1));
    assert!(text(&newer.stderr).contains("is at LSN 2"), "{}", text(&newer.stderr));
    let beyond = server.pages("put", &["5", "--lsn", "3", "--at", "8167", "xx"]);
    assert!(text(&beyond.stderr).contains("8168 bytes"), "{}", text(&beyond.stderr));
    server.stop();
    let server = Serving::start(dir.path());
    for _ in 0..3 {
        let got = server.pages("get", &["5", "--lsn", "2"]);
        assert_eq!(text(&got.stdout), "hello world", "{}", text(&got.stderr));
    }
    server.stop();
}

/// One record for page 15500 filled a device of 256M; one for page 2000000000 was answered, and
/// from then on the sync of everybody failed, as that page could never be written.
#[test]
fn a_far_page_and_a_full_device_concern_who_asks() {
    for form in [&["--size=8M"][..], &["--size=8M", "--no-offload"], &["--plain"]] {
        let dir = tempfile::tempdir().unwrap();
        let server = Serving::start_as(dir.path(), form);
        for page in ["15500", "2000000000"] {
            let put = server.pages("put", &[page, "--lsn", "1", "far"]);
            assert!(put.status.success(), "{}", text(&put.stderr));
            assert!(server.pages("sync", &[]).status.success());
        }
        let mut client =
            Client::connect(server.at.parse().unwrap(), Duration::from_secs(60)).unwrap();
        if form != ["--plain"] {
            let refused = (0..10_000).find_map(|page| client.apply(page, 1, 0, b"near").err());
            let refused = refused.expect("8 MiB are not as many pages");
            assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull, "{refused}");
            let put = server.pages("put", &["99999", "--lsn", "1", "far"]);
            assert_eq!(put.status.code(), Some(1));
            assert!(text(&put.stderr).contains("no room for another page"), "{put:?}");
            // A segment of 1 MiB is metadata.
            assert!(matches!(client.get(400, 1).unwrap(), Answer::Page(1, _)));
        }
        assert_eq!(client.apply(15500, 2, 0, b"FAR").unwrap(), Answer::Done(2));
        client.sync().unwrap();
        assert!(server.pages("sync", &[]).status.success());
        server.stop();
        let server = Serving::start_as(dir.path(), form);
        let got = server.pages("get", &["15500", "--lsn", "2"]);
        assert_eq!(text(&got.stdout), "FAR", "{}", text(&got.stderr));
        server.stop();
    }
}

#[test]
fn nobody_there_is_said_with_a_remedy() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    drop(listener);
    let got = Command::new(OUTBOARD).args(["pages", "get", "1", "--connect", &at]).output();
    let said = text(&got.unwrap().stderr);
    assert!(said.contains("no page server answers") && said.contains("serve pages"), "{said}");
}
