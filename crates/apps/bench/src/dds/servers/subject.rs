//! The servers that are measured.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::super::process::{Process, Sides, free_address, is_installed, listens};
use super::super::requests::Op;

/// Memory of a server for what is updated in place.
pub(super) const MEMORY: u64 = 8 << 20;
/// Memory of a rival that keeps all of it, MiB.
const RIVAL_MEMORY: &str = "1024";

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum App {
    /// `outboard serve kv`, and its rivals.
    Kv,
    /// `outboard serve pages`.
    Pages,
}

/// A server, or a form of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Our server on sockets and a file of the host.
    Plain,
    /// With its files on the DPU side, but every request to the host.
    Library,
    /// With reads answered by the DPU side.
    Offload,
    /// Debian's redis-server.
    Redis,
    /// Debian's memcached, with one thread.
    Memcached,
}

impl System {
    pub(super) const ALL: [System; 5] =
        [System::Plain, System::Library, System::Offload, System::Redis, System::Memcached];

    /// In tables and legends.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            System::Plain => "plain",
            System::Library => "library",
            System::Offload => "offload",
            System::Redis => "redis",
            System::Memcached => "memcached",
        }
    }

    /// Whether it is somebody else's.
    pub(super) fn is_rival(self) -> bool {
        matches!(self, System::Redis | System::Memcached)
    }

    /// Whether it can be had here.
    pub(super) fn is_here(self) -> bool {
        match self {
            System::Redis => is_installed("redis-server", "--version"),
            System::Memcached => is_installed("memcached", "-V"),
            _ => true,
        }
    }

    /// How it is asked to do `op`.
    pub(super) fn says(self, op: Op) -> Op {
        match (self, op) {
            (System::Memcached, Op::Get) => Op::MemcachedGet,
            (System::Memcached, Op::Set) => Op::MemcachedSet,
            _ => op,
        }
    }

    /// How it is started.
    fn command(self, app: App, program: &Path, dir: &Path, port: u16) -> Command {
        let port = port.to_string();
        let flags: &[&str] = match self {
            System::Plain => &["--plain"],
            System::Library => &["--no-offload"],
            System::Offload => &[],
            System::Redis => {
                let mut command = Command::new("redis-server");
                command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
                command.args(["--port", &port]).arg("--dir").arg(dir);
                return command;
            }
            System::Memcached => {
                let mut command = Command::new("memcached");
                command.args(["-l", "127.0.0.1", "-U", "0", "-t", "1", "-m", RIVAL_MEMORY]);
                command.args(["-u", "root", "-p", &port]);
                return command;
            }
        };
        let mut command = Command::new(program);
        // As the rivals: nobody syncs. A host that did so each second would not sleep right after
        // its records were written.
        let app: &[&str] =
            if app == App::Kv { &["serve", "kv", "--fsync=no"] } else { &["serve", "pages"] };
        command.args(app).args(flags);
        command.arg("--data").arg(dir.join("data"));
        command.arg(format!("--listen=127.0.0.1:{port}")).arg(format!("--memory={MEMORY}"));
        command
    }
}

/// A server that runs, and is ended with this.
pub(super) struct Running {
    pub(super) system: System,
    pub(super) address: SocketAddr,
    pub(super) sides: Sides,
    _process: Process,
}

impl Running {
    /// Starts one in `dir` and waits until it serves.
    pub(super) fn start(
        system: System,
        app: App,
        program: &Path,
        dir: &Path,
    ) -> io::Result<Running> {
        std::fs::create_dir_all(dir)?;
        let (address, name) = (free_address()?, system.name());
        let command = system.command(app, program, dir, address.port());
        let mut process = Process::start(name, command, dir)?;
        let line = process.wait(!system.is_rival(), || listens(&address.to_string())).map_err(
            |error| {
                let last = process.last_words(dir);
                io::Error::other(format!("the {name} server does not start: {error} {last}"))
            },
        )?;
        process.second = dpu_of(&line);
        if process.second.is_some() != matches!(system, System::Library | System::Offload) {
            return Err(io::Error::other(format!("unexpected first line: {line}")));
        }
        let dpu = process.second.into_iter().collect();
        let sides = Sides { host: vec![process.pid()], dpu };
        Ok(Running { system, address, sides, _process: process })
    }
}

/// The process named in the line a server says when it is ready.
fn dpu_of(line: &str) -> Option<u32> {
    let rest = line.split_once("DPU side ")?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dpu_side_is_who_the_server_says() {
        let line = "serving kv at 127.0.0.1:1 from d (offload, DPU side 4711); redis-cli";
        assert_eq!(dpu_of(line), Some(4711));
        assert_eq!(dpu_of("serving kv at 127.0.0.1:1 from d (plain); redis-cli"), None);
    }
}
