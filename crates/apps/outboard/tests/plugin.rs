//! `outboard serve plugin`: the whole of it, from the command line, with the example's plug-in.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod plugins;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use plugins::{compile, message};

fn serve(dir: &Path, plugin: &Path, host: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
    command.args(["serve", "plugin", "--size", "1G", "--items", "1000", "--listen", "127.0.0.1:0"]);
    command.arg("--plugin").arg(plugin).arg("--host").arg(host);
    command.arg("--data").arg(dir.join("data"));
    command
}

#[test]
fn a_server_of_the_users_own_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = compile(dir.path(), "offload.so", &[]);
    // A server that knows no record.
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = host.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = host.accept().unwrap();
        let mut request = [0; 16];
        let mut answered = 0;
        while stream.read_exact(&mut request).is_ok() {
            request[4..8].copy_from_slice(&1u32.to_le_bytes());
            stream.write_all(&request).unwrap();
            answered += 1;
        }
        answered
    });
    let mut served = serve(dir.path(), &plugin, &at.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(served.stdout.take().unwrap());
    let mut said = String::new();
    out.read_line(&mut said).unwrap();
    let listens = said.split_whitespace().nth(3).unwrap().trim_end_matches(';');
    assert!(said.starts_with("serving records at ") && said.contains("dpu.sock"), "{said}");
    let listens: SocketAddr = listens.parse().unwrap();
    let mut client = TcpStream::connect(listens).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let ask = |client: &mut TcpStream, number: u64| {
        client.write_all(&message(1, number)).unwrap();
        let mut answer = [0; 16];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *message(1, number), "no such record");
    };
    ask(&mut client, 7);
    // Writes where it may not: the server answers, and it is said once.
    ask(&mut client, 900_002);
    ask(&mut client, 7);
    let mut status = Command::new(env!("CARGO_BIN_EXE_outboard"));
    let status = status.args(["status", "--data"]).arg(dir.path().join("data")).output().unwrap();
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    // What it counts was told at its end alone.
    assert!(status.contains("plug-in      ") && status.contains(" 1 failed"), "{status}");
    assert!(status.contains("requests     3;"), "{status}");
    drop(client);
    let pid = rustix::process::Pid::from_child(&served);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let Output { status, stderr, .. } = served.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{log}");
    assert!(rest.starts_with("answered here 0, by the server 3; the plug-in failed 1"), "{rest}");
    assert_eq!(log.matches("the plug-in failed").count(), 1, "{log}");
    assert!(log.contains("Mend the plug-in"), "{log}");
    assert_eq!(answering.join().unwrap(), 3);
}

#[test]
fn what_cannot_be_served_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |plugin: &Path| {
        let output = serve(dir.path(), plugin, "127.0.0.1:1").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(!dir.path().join("data").exists(), "nothing was begun");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let why = refused(&compile(dir.path(), "abi.so", &["-DABI=2"]));
    assert!(why.contains("version 2 of outboard_offload.h"), "{why}");
    let why = refused(Path::new("none.so"));
    assert!(why.contains("none.so") && why.contains("No such file"), "{why}");
}
