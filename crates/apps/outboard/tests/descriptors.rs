//! More connections than a process may have descriptors, against real processes.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outboard_attach::link::{self, Peer};

const LIMIT: Duration = Duration::from_secs(60);

/// The program, under a limit of descriptors, in a directory that goes with it.
struct Limited {
    child: Child,
    dir: PathBuf,
}

impl Limited {
    fn start(name: &str, descriptors: u32, words: &[&str]) -> Limited {
        let dir = std::env::temp_dir().join(format!("outboard-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        if words.contains(&"--app=kv") {
            // What a host made before.
            std::fs::create_dir(dir.join("data")).unwrap();
            std::fs::write(dir.join("data/seed"), "7\n").unwrap();
        }
        // The hard limit, too: the program raises the soft one to it.
        let limit = format!("ulimit -n {descriptors}; exec \"$0\" \"$@\"");
        let child = Command::new("sh")
            .args(["-c", &limit, env!("CARGO_BIN_EXE_outboard")])
            .args(words)
            .arg(format!("--data={}", dir.join("data").display()))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        Limited { child, dir }
    }

    fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("stderr")).unwrap_or_default()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// As many connections to a DPU side's socket as it and the kernel take, `most` of them tried.
fn crowd(socket: &Path, most: usize) -> Vec<Peer> {
    let first = until("nobody listens", || link::connect(socket).ok());
    let others = (1..most).filter_map(|_| {
        // The kernel keeps 64 that nobody has accepted.
        std::thread::sleep(Duration::from_millis(1));
        link::connect(socket).ok()
    });
    std::iter::once(first).chain(others).collect()
}

/// Connections that anybody may make ended the DPU side of a volume, and that of a server: an
/// `accept` without a descriptor for what it accepts was an error of the loop, and mounts stood
/// still. Now others wait until there are descriptors again, and the log names the remedy once.
#[test]
fn connections_do_not_end_a_dpu_side() {
    let serve = ["serve", "dpu", "--app=kv", "--size=64M", "--items=1000", "--no-offload"];
    let cases: [(&str, u32, &[&str]); 2] =
        [("crowded-volume", 100, &["dpu"]), ("crowded-server", 56, &serve)];
    for (name, descriptors, words) in cases {
        let mut side = Limited::start(name, descriptors, words);
        let socket = side.dir.join("data/dpu.sock");
        let others = crowd(&socket, 200);
        assert!(others.len() > 60, "{} connections", others.len());
        std::thread::sleep(Duration::from_millis(300));
        assert!(side.is_alive(), "{name}: {}", side.log());
        drop(others);
        let status = || link::control(&socket, "{\"command\": \"status\"}", LIMIT).ok();
        let status = until("it does not answer", status);
        assert!(status.starts_with('{'), "{status}");
        let log = side.log();
        assert_eq!(log.matches("ulimit -n").count(), 1, "{name}: {log}");
    }
}

fn ask(stream: &mut TcpStream, request: &[u8]) -> Option<Vec<u8>> {
    let mut answer = vec![0; 64];
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(request).ok()?;
    let len = stream.read(&mut answer).ok().filter(|len| *len > 0)?;
    answer.truncate(len);
    Some(answer)
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// More idle clients than a server may have descriptors ended it: its journal could not be synced
/// for want of one, and the advice was to free space. Now there is a greatest number of clients
/// that leaves descriptors for files; those beyond it are told so, in all forms and by both
/// servers, and the others write and read on.
#[test]
fn more_clients_than_descriptors_do_not_end_a_server() {
    let record = |page: u64| {
        let mut bytes = [&25u32.to_le_bytes()[..], &[2, 0, 0, 0]].concat();
        bytes.extend([&page.to_le_bytes()[..], &1u64.to_le_bytes(), b"x"].concat());
        bytes
    };
    let kv = |n: u64| format!("SET key{n} value\r\n").into_bytes();
    let refused: [&[u8]; 2] = [b"-ERR max number of clients reached\r\n", &[24, 0, 0, 0, 6]];
    let (sized, fsync) = (["--size=64M", "--items=1000"], "--fsync=always");
    let forms: [(&str, &[&str], usize); 4] = [
        ("kv-plain", &["serve", "kv", fsync, "--plain"], 0),
        ("kv-library", &["serve", "kv", fsync, "--no-offload", sized[0], sized[1]], 0),
        ("kv-offload", &["serve", "kv", fsync, sized[0], sized[1]], 0),
        ("pages-plain", &["serve", "pages", "--plain"], 1),
    ];
    for (name, words, protocol) in forms {
        let at = free_port();
        let listen = format!("--listen={at}");
        let mut server = Limited::start(name, 128, &[words, &[listen.as_str()]].concat());
        let request = |n: u64| if protocol == 0 { kv(n) } else { record(n) };
        let mut first = until("nobody serves", || {
            let mut first = TcpStream::connect(at).ok()?;
            ask(&mut first, &request(0)).map(|_| first)
        });
        let mut idle: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(at).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(300));
        for n in 1..20 {
            let answer = ask(&mut first, &request(n));
            assert!(answer.is_some_and(|got| !refused[protocol].starts_with(&got)), "{name}");
        }
        let mut said = Vec::new();
        let last = idle.last_mut().unwrap();
        last.set_read_timeout(Some(LIMIT)).unwrap();
        last.read_to_end(&mut said).unwrap();
        assert!(said.starts_with(refused[protocol]), "{name}: {said:?}");
        assert!(server.is_alive(), "{name}: {}", server.log());
        drop(idle);
        let again = || {
            let mut other = TcpStream::connect(at).ok()?;
            ask(&mut other, &request(30)).filter(|got| !refused[protocol].starts_with(got))
        };
        until("there are places again", again);
        assert!(server.log().contains("ulimit -n"), "{name}: {}", server.log());
    }
}
