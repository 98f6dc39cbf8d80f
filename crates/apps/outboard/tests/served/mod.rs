//! `outboard serve`, its DPU side and its clients as processes of a harness that kills them.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use rustix::process::{Pid, Signal, kill_process};

/// Set for the test program as a client: what it is to do, in words.
pub(crate) const AS_CLIENT: &str = "OUTBOARD_TEST_CLIENT";
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A number of the environment.
pub(crate) fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// A server: where it listens, what was answered there, which process its DPU side is.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) answered: Arc<AtomicU64>,
    dpu: Arc<AtomicI32>,
}

impl Served {
    /// One that will listen at a free port.
    pub(crate) fn new() -> Served {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Served { address, answered: Arc::default(), dpu: Arc::default() }
    }

    /// The host's process, which starts or adopts the DPU side.
    pub(crate) fn host(&self, app: &str, data: &Path, flags: &[&str]) -> Child {
        let mut child = Command::new(env!("CARGO_BIN_EXE_outboard"))
            .args(["serve", app, "--size=256M", "--log=info"])
            .args(flags)
            .arg(format!("--data={}", data.display()))
            .arg(format!("--listen={}", self.address))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let dpu = Arc::clone(&self.dpu);
        self.dpu.store(0, Ordering::SeqCst);
        // It says so again after each life of the DPU side.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let pid = line.split("DPU side ").nth(1).and_then(|rest| rest.split(')').next());
                dpu.store(pid.unwrap().parse().unwrap(), Ordering::SeqCst);
            }
        });
        child
    }

    /// This program once more, as a client: its one test, which finds these words in
    /// [`AS_CLIENT`].
    pub(crate) fn client(&self, test: &str, words: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(AS_CLIENT, format!("{} {words}", self.address))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Waits until so many more were answered.
    pub(crate) fn wait(&self, more: u64) {
        let (from, until) = (self.answered.load(Ordering::Relaxed), Instant::now() + LIMIT);
        while self.answered.load(Ordering::Relaxed) < from + more {
            assert!(Instant::now() < until, "nobody is served any more");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn kill_dpu(&self) {
        if let Some(pid) = Pid::from_raw(self.dpu.swap(0, Ordering::SeqCst)) {
            // It may just have ended by itself: then it has been killed before.
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
}

/// Whom to kill: each at least once, then whom the seed says.
pub(crate) fn victim(kill: u64, rng: &mut Rng) -> &'static str {
    let whom = if kill < 3 { kill } else { rng.below(3) };
    ["host", "DPU side", "client"][usize::try_from(whom).unwrap()]
}

/// How many requests the DPU side answered in its last life, which ended in order.
pub(crate) fn offloaded(data: &Path) -> u64 {
    let log = std::fs::read_to_string(data.join("dpu.log")).unwrap();
    let last = log.rsplit("offloaded: ").next().and_then(|rest| rest.split(',').next());
    last.unwrap().trim().parse().unwrap_or_else(|error| panic!("{error}: {log}"))
}
