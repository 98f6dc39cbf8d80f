//! `outboard serve` as a user has it: two processes, killed and started again.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A server that says it is ready; told to end when dropped, its DPU side with it.
struct Serving(Child);

impl Serving {
    fn start(data: &Path, listen: SocketAddr, flags: &[&str]) -> Serving {
        let mut child = Command::new(env!("CARGO_BIN_EXE_outboard"))
            .args(["serve", "kv", "--data"])
            .arg(data)
            .args(["--size", "256M", "--items", "1000", "--listen", &listen.to_string()])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let serving = Serving(child);
        assert!(line.contains(&listen.to_string()), "it says {line:?}");
        serving
    }

    /// kill -9 of the host alone.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let (Ok(None), Ok(id)) = (self.0.try_wait(), i32::try_from(self.0.id())) {
            let _ = kill_process(Pid::from_raw(id).unwrap(), Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

fn ask(at: SocketAddr, words: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap_or_else(|error| panic!("{at}: {error}"));
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(format!("{words}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 64];
    let len = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn fresh_directory() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("outboard-adoption-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

/// A host that was killed left its DPU side, and the next one, asked to listen elsewhere, took that
/// over: it said that it served at an address at which nobody listened, and its clients were still
/// served at the old one.
#[test]
fn a_dpu_side_with_other_settings_is_not_adopted() {
    let (dir, first, second) = (fresh_directory(), free_port(), free_port());
    let serving = Serving::start(&dir, first, &[]);
    assert_eq!(ask(first, "SET greeting hello"), "+OK\r\n");
    serving.kill();

    let serving = Serving::start(&dir, second, &[]);
    assert_eq!(ask(second, "GET greeting"), "$5\r\nhello\r\n");
    assert!(TcpStream::connect(first).is_err(), "somebody still listens at {first}");
    serving.kill();

    let serving = Serving::start(&dir, second, &["--no-offload"]);
    assert_eq!(ask(second, "GET greeting"), "$5\r\nhello\r\n");
    drop(serving);
    assert!(TcpStream::connect(second).is_err(), "somebody still listens at {second}");
    std::fs::remove_dir_all(&dir).unwrap();
}
