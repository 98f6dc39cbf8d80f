//! More connections than a process may have descriptors, against real processes.

#![expect(clippy::unwrap_used, reason = "a test")]

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
