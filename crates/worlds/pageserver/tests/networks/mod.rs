//! Three network namespaces in a row, as computers: clients, the DPU side between, the host.
//!
//! ```text
//! clients: c0 10.77.0.1, fd77::1 ── d0 :dpu: d1 ── h0 10.77.0.2, fd77::2 :host
//! ```
//!
//! Nothing of them has a name outside. They go with the process that made them, however it ends.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Address of the clients' computer, and of the host's.
pub(crate) const CLIENT: &str = "10.77.0.1";
pub(crate) const HOST: &str = "10.77.0.2";

/// One namespace, kept by a process that ends when this one does.
pub(crate) struct Namespace {
    keeper: Child,
}

impl Namespace {
    fn new() -> Option<Namespace> {
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo made; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`unshare` of util-linux");
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let namespace = Namespace { keeper };
        (line == "made\n").then_some(namespace)
    }

    /// A path by which others may enter it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.keeper.id())
    }

    /// Does something inside; sockets that it makes stay of this namespace.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let namespace = File::open(self.path()).unwrap();
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), network).unwrap();
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs a program inside, and gives what it said; it has to succeed.
    pub(crate) fn run(&self, program: &str, args: &str) -> String {
        let mut command = Command::new(program);
        command.args(args.split_whitespace());
        let output = self.within(|| command.output());
        let output = output.unwrap_or_else(|error| {
            panic!("cannot start {program} ({error}); `scripts/setup test` installs it")
        });
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{program} {args}: {text} {output:?}");
        text
    }

    fn ip(&self, args: &str) {
        self.run("ip", args);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ended = self.keeper.wait();
    }
}

/// The three of them.
pub(crate) struct Networks {
    pub(crate) clients: Namespace,
    pub(crate) dpu: Namespace,
    pub(crate) host: Namespace,
}

impl Networks {
    /// Connected as above; `None` where a process may not make namespaces.
    pub(crate) fn new() -> Option<Networks> {
        let [clients, dpu, host] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        let networks = Networks { clients, dpu, host };
        networks.connect_clients();
        networks.connect(&networks.host, ("h0", "d1"), HOST, 2);
        networks.host.ip("link set lo up");
        networks.clients.ip("link set lo up");
        Some(networks)
    }

    /// Makes the devices between clients and DPU side.
    pub(crate) fn connect_clients(&self) {
        self.connect(&self.clients, ("c0", "d0"), CLIENT, 1);
    }

    fn connect(&self, side: &Namespace, (own, other): (&str, &str), address: &str, n: u8) {
        let keeper = self.dpu.keeper.id();
        side.ip(&format!("link add {own} type veth peer name {other} netns {keeper}"));
        // Nothing of the DPU side's kernel shall speak up between the two.
        self.dpu.ip(&format!("link set {other} addrgenmode none"));
        self.dpu.ip(&format!("link set {other} up"));
        side.ip(&format!("address add {address}/24 dev {own}"));
        side.ip(&format!("address add fd77::{n}/64 dev {own} nodad"));
        side.ip(&format!("link set {own} up"));
        for (side, device) in [(side, own), (&self.dpu, other)] {
            // Before, the kernel throws away what is sent.
            let end = Instant::now() + Duration::from_secs(30);
            while !side.run("ip", &format!("link show dev {device}")).contains("state UP") {
                assert!(Instant::now() < end, "{device} does not come up");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// The devices of the DPU side, as `--net` takes them.
    pub(crate) fn veth(&self) -> String {
        format!("veth:d0,d1@{}", self.dpu.path())
    }
}
