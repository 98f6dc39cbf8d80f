//! Three network namespaces in a row, as computers, for what is measured between two devices.
//!
//! ```text
//! clients 10.77.0.1 ── c0 ═ d0 ── between ── d1 ═ h0 ── 10.77.0.2 host
//! ```
//!
//! In the one between either its kernel passes on what is not its own (a bridge of both devices,
//! with an address for whoever listens there), or the user-space stack does, on bare devices. Pairs
//! of devices, addresses and computers are the same for all that is measured, so that every frame
//! goes one way. Nothing has a name outside: it all goes with the process that made it.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where the host listens.
pub(super) const HOST: &str = "10.77.0.2:7000";
/// Where somebody between listens, on the kernel's TCP.
pub(super) const BETWEEN: &str = "10.77.0.3:7001";
/// The devices of the one between, as a director is told of them.
pub(super) const DEVICES: &str = "veth:d0,d1";

/// One namespace, kept by a process that ends with this one, however this one ends.
struct Namespace {
    keeper: Child,
}

impl Namespace {
    fn new() -> io::Result<Namespace> {
        let missing = |error| io::Error::other(format!("cannot start unshare: {error}"));
        let keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo made; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(missing)?;
        let mut namespace = Namespace { keeper };
        let (said, mut line) = (namespace.keeper.stdout.take(), String::new());
        said.map(|said| BufReader::new(said).read_line(&mut line)).transpose()?;
        let refused = || io::Error::other("network namespaces take root");
        if line == "made\n" { Ok(namespace) } else { Err(refused()) }
    }

    fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let inside = || {
            let namespace = File::open(format!("/proc/{}/ns/net", self.keeper.id()))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        };
        let panicked = |_| io::Error::other("a thread within a network namespace panicked");
        std::thread::scope(|scope| scope.spawn(inside).join().map_err(panicked)?)
    }

    /// Each of these, as `ip` takes it.
    fn ip(&self, commands: &[&str]) -> io::Result<()> {
        let run = |words: &str| Command::new("ip").args(words.split_whitespace()).output();
        for words in commands {
            let output = self.within(|| run(words))?;
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr);
                return Err(io::Error::other(format!("ip {words}: {}", why.trim())));
            }
        }
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ended = self.keeper.wait();
    }
}

/// One of the three.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Computer {
    Clients,
    Between,
    Host,
}

/// The three of them.
pub(super) struct Networks {
    clients: Namespace,
    between: Namespace,
    host: Namespace,
}

impl Networks {
    /// Connected as above; with a bridge between unless the devices stay bare.
    pub(super) fn new(bare: bool) -> io::Result<Networks> {
        let [clients, between, host] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        let middle = between.keeper.id();
        let pair = |end: &Namespace, own: &str, other: &str, address: &str| {
            end.ip(&[
                &format!("link add {own} type veth peer name {other} netns {middle}"),
                &format!("address add {address}/24 dev {own}"),
                &format!("link set {own} up"),
                "link set lo up",
            ])?;
            // Nothing of the kernel between shall speak up on a device.
            between.ip(&[
                &format!("link set {other} addrgenmode none"),
                &format!("link set {other} up"),
            ])
        };
        pair(&clients, "c0", "d0", "10.77.0.1")?;
        pair(&host, "h0", "d1", "10.77.0.2")?;
        if !bare {
            between.ip(&[
                "link add br0 type bridge",
                "link set d0 master br0",
                "link set d1 master br0",
                "address add 10.77.0.3/24 dev br0",
                "link set br0 up",
                "link set lo up",
            ])?;
        }
        Ok(Networks { clients, between, host })
    }

    /// Does something on one of them; sockets and processes that it makes stay there.
    pub(super) fn on<T: Send>(
        &self,
        computer: Computer,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let which = match computer {
            Computer::Clients => &self.clients,
            Computer::Between => &self.between,
            Computer::Host => &self.host,
        };
        which.within(work)
    }
}

/// Whether namespaces can be made and connected here.
///
/// # Errors
/// Why they cannot.
pub fn is_possible() -> io::Result<()> {
    Networks::new(false).map(drop)
}
