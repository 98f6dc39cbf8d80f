//! The program's processes, as tests of it start and ask them.

#![allow(dead_code, reason = "no test uses all of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) const OUTBOARD: &str = env!("CARGO_BIN_EXE_outboard");

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn outboard(args: &[&str], data: &Path) -> Output {
    Command::new(OUTBOARD).args(args).arg("--data").arg(data).output().unwrap()
}

pub(crate) fn json(args: &[&str], data: &Path) -> Value {
    let output = outboard(&[args, &["--json"]].concat(), data);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A server, ended when dropped.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) at: String,
}

impl Serving {
    pub(crate) fn start(app: &str, data: &Path, flags: &[&str]) -> Serving {
        let mut server = Serving::spawn(app, data, flags);
        let mut said = String::new();
        BufReader::new(server.child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("serving "), "{said}");
        server
    }

    /// One that may not serve yet.
    pub(crate) fn spawn(app: &str, data: &Path, flags: &[&str]) -> Serving {
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let child = Command::new(OUTBOARD)
            .args(["serve", app, "--memory=4M", "--listen", &at])
            .args(flags)
            .arg("--data")
            .arg(data)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Serving { child, at }
    }

    /// Sends commands whose answers are so many bytes, and takes those.
    pub(crate) fn ask(&self, commands: &[u8], answers: usize) -> Vec<u8> {
        let mut stream = TcpStream::connect(&self.at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(commands).unwrap();
        let mut answer = vec![0; answers];
        stream.read_exact(&mut answer).unwrap();
        answer
    }

    /// Sets so many keys of 4000 bytes, which is more than memory keeps from 1100 on.
    pub(crate) fn fill(&self, keys: usize) {
        let value = "v".repeat(4000);
        for key in 0..keys {
            let set = format!("*3\r\n$3\r\nSET\r\n$6\r\n{key:06}\r\n$4000\r\n{value}\r\n");
            assert_eq!(text(&self.ask(set.as_bytes(), 5)), "+OK\r\n");
        }
    }

    pub(crate) fn get(&self, key: usize) -> String {
        let get = format!("*2\r\n$3\r\nGET\r\n$6\r\n{key:06}\r\n");
        text(&self.ask(get.as_bytes(), 4009))
    }

    pub(crate) fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Serving {
    /// Told to end, it ends its DPU side, too, which would outlive it if it were killed.
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let _told = Command::new("kill").arg(self.child.id().to_string()).status();
        let until = Instant::now() + Duration::from_secs(20);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A DPU side of a volume, ended when dropped.
pub(crate) struct Dpu(Child);

impl Dpu {
    pub(crate) fn start(data: &Path, flags: &[&str]) -> Dpu {
        let mut command = Command::new(OUTBOARD);
        command.arg("dpu").args(flags).arg("--data").arg(data).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while outboard(&["status"], data).status.code() != Some(0) {
            assert!(Instant::now() < until, "{}", text(&outboard(&["status"], data).stderr));
        }
        Dpu(child)
    }

    pub(crate) fn stop(mut self) {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Dpu {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}
