//! Parts of a cluster as processes of their own: started, found, ended.
//!
//! Whether one runs is asked of a file that it holds locked, with its number in it.

use std::fs::{DirBuilder, OpenOptions};
use std::net::SocketAddrV4;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use outboard_base::Errno;
use outboard_fabric::Asker;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};
use rustix::process::{Pid, Signal, kill_process};

use super::description::{Description, FILE, Role};
use super::netns;
use super::part::Running;
use crate::exit::{Code, Failure};
use crate::program;

/// How often it is looked whether a process has come or gone.
const LOOK: Duration = Duration::from_millis(20);
/// How long one is waited for that was killed.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long one is given that is to end in order.
const END_LIMIT: Duration = Duration::from_secs(70);
/// How long the parts of a cluster are waited for at its start.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long a server that runs may say nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a part is left alone that is at something.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a part has to say how it does.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// What a part is asked, which is at one of these places.
type Asked = (Peer, Vec<SocketAddrV4>, Call);

/// A cluster in a directory.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) dir: PathBuf,
    pub(crate) description: Description,
    /// Where packets are written down, of parts that are started from now on.
    pub(crate) capture: Option<PathBuf>,
}

impl Cluster {
    /// That of a directory.
    pub(crate) fn of(dir: &Path) -> Result<Cluster, Failure> {
        let description = Description::of_dir(dir)?;
        let dir = dir.canonicalize().map_err(|error| {
            Failure::new(Code::Data, format!("cannot use {}: {error}", dir.display()))
        })?;
        Ok(Cluster { dir, description, capture: None })
    }

    /// The process of a part, by the name a user gives it.
    pub(crate) fn role(&self, name: &str) -> Result<Role, Failure> {
        let all = self.description.processes();
        let found = all.iter().find(|role| role.to_string() == name);
        found.copied().ok_or_else(|| {
            let all: Vec<String> = all.iter().map(Role::to_string).collect();
            Failure::usage(format!("there is no process {name}; take one of {}", all.join(", ")))
        })
    }

    fn running(&self, role: Role) -> PathBuf {
        self.dir.join("run").join(format!("{role}.pid"))
    }

    /// The file that the process of `outboard cluster up` holds.
    pub(crate) fn keeper(&self) -> PathBuf {
        self.dir.join("run").join("up.pid")
    }

    /// Makes the directory of those files.
    pub(crate) fn make_run(&self) -> Result<(), Failure> {
        let dir = self.dir.join("run");
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|error| {
            Failure::new(Code::Data, format!("cannot make {}: {error}", dir.display()))
        })
    }

    /// The process of a part, if one runs.
    pub(crate) fn pid(&self, role: Role) -> Option<u32> {
        Running::pid(&self.running(role))
    }

    /// Starts a part, in a process group of its own: Ctrl-C at the terminal reaches only who keeps
    /// the cluster, which ends all in their order.
    pub(crate) fn spawn(&self, role: Role) -> Result<Child, Failure> {
        let cannot = |what: &str, error: std::io::Error| {
            Failure::internal(format!("cannot start {role}: {what}: {error}"))
        };
        let mut program = program::this().map_err(|error| cannot("this program", error))?;
        if self.description.netns {
            program = netns::inside(&self.dir, role, &program);
        }
        let log = self.log(role);
        let mut options = OpenOptions::new();
        let out = options.create(true).append(true).mode(0o600).open(&log);
        let out = out.map_err(|error| cannot("its log", error))?;
        match role {
            Role::META => program.arg("meta"),
            Role::Meta(number) => program.args(["meta", "--number", &number.to_string()]),
            Role::Node(number) => program.args(["node", "--number", &number.to_string()]),
            Role::Packed => program.arg("packed"),
            Role::Coordinator => program.arg("coordinator"),
        };
        program.arg("--config").arg(self.dir.join(FILE));
        program.arg("--pid").arg(self.running(role));
        if let Some(dir) = &self.capture {
            program.arg("--capture").arg(dir);
        }
        program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(out).process_group(0);
        let child = program.spawn().map_err(|error| cannot("no process", error))?;
        tracing::info!(%role, pid = child.id(), log = %log.display(), "started");
        Ok(child)
    }

    /// The log of a part.
    pub(crate) fn log(&self, role: Role) -> PathBuf {
        self.dir.join(format!("{role}.log"))
    }

    /// What is in it.
    pub(crate) fn log_of(&self, role: Role) -> String {
        std::fs::read_to_string(self.log(role)).unwrap_or_default()
    }

    /// Why a part ended: its own last message, which names the remedy.
    pub(crate) fn last_words(&self, role: Role) -> String {
        let (log, text) = (self.log(role), self.log_of(role));
        let last = text.lines().rev().find_map(|line| line.strip_prefix("outboard: "));
        last.map_or_else(
            || format!("{role} ended at its start; see {}", log.display()),
            str::to_owned,
        )
    }

    /// kill -9; whether one ran. Back when it is gone, or another runs.
    pub(crate) fn kill(&self, role: Role) -> Result<bool, Failure> {
        let Some(pid) = self.pid(role) else { return Ok(false) };
        signal(pid, Signal::KILL)?;
        let end = Instant::now() + KILL_LIMIT;
        while self.pid(role) == Some(pid) {
            if Instant::now() > end {
                return Err(Failure::internal(format!("{role} (pid {pid}) does not end")));
            }
            std::thread::sleep(LOOK);
        }
        Ok(true)
    }

    /// Ends all parts in order: servers that stand by, lest they take over; the server, which still
    /// asks nodes, before them; and the coordinator, where they say that they leave, last.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        let all = self.description.processes();
        let mut ordered: [Vec<Role>; 4] = Default::default();
        let serving = self.serving();
        for role in all {
            let [standby, server, nodes, last] = &mut ordered;
            match role {
                Role::Meta(_) if serving.is_some_and(|serving| serving != role) => standby,
                Role::Meta(_) | Role::Packed => server,
                Role::Node(_) => nodes,
                Role::Coordinator => last,
            }
            .push(role);
        }
        for some in ordered {
            let told: Vec<(Role, u32)> =
                some.iter().filter_map(|role| Some((*role, self.pid(*role)?))).collect();
            for (_, pid) in &told {
                signal(*pid, Signal::TERM)?;
            }
            let end = Instant::now() + END_LIMIT;
            for (role, pid) in told {
                while self.pid(role) == Some(pid) {
                    if Instant::now() > end {
                        self.kill(role)?;
                        let message = format!("{role} (pid {pid}) did not end: it was killed");
                        return Err(Failure::internal(message));
                    }
                    std::thread::sleep(LOOK);
                }
            }
        }
        Ok(())
    }

    /// What each part says of itself; `None`: nothing. Of the servers one answers; of those whose
    /// processes run beside it is said that they stand by.
    pub(crate) fn ask(&self) -> Result<Vec<(Role, Option<String>)>, Failure> {
        let description = &self.description;
        let servers = description.servers();
        let roles: Vec<Role> =
            description.parts().into_iter().filter(|role| !servers.contains(role)).collect();
        let calls = roles
            .iter()
            .map(|role| Ok((role.peer(), vec![description.address(*role)?], Call::Status)));
        let server = (Role::META.peer(), description.server_places(), Call::Status);
        let calls: Result<Vec<Asked>, Failure> = calls.chain([Ok(server)]).collect();
        let replies = self.asker()?.ask(calls?, ANSWER_LIMIT).map_err(lost)?;
        let mut texts: Vec<Option<String>> = replies
            .into_iter()
            .map(|reply| match reply {
                Some(Reply::Text(text)) => Some(text),
                _ => None,
            })
            .collect();
        let served = texts.pop().flatten();
        let of_servers =
            servers.iter().map(|role| (*role, self.of_server(*role, served.as_deref())));
        Ok(roles.into_iter().zip(texts).chain(of_servers).collect())
    }

    /// What one of the servers says, where the one that serves says `served`.
    fn of_server(&self, role: Role, served: Option<&str>) -> Option<String> {
        let served = served?;
        let said: serde_json::Value = serde_json::from_str(served).unwrap_or_default();
        let is_it = |role: Role| said.get("role").is_some_and(|name| *name == *role.to_string());
        // A packed server has another role's name.
        if is_it(role) || !self.description.servers().into_iter().any(is_it) {
            return Some(served.to_owned());
        }
        let pid = self.pid(role)?;
        Some(format!("{{\"role\":\"{role}\",\"pid\":{pid},\"standby\":true}}"))
    }

    /// Asks the server something.
    pub(crate) fn ask_server(&self, call: Call, limit: Duration) -> Result<Reply, Failure> {
        self.try_server(call, limit)?.ok_or_else(|| self.no_server())
    }

    fn no_server(&self) -> Failure {
        silent(&self.description.servers(), &self.dir)
    }

    /// The same, again and again while its process is there: one that waits for a busy disk may say
    /// nothing for longer than a conversation is tried for.
    pub(crate) fn ask_busy_server(&self, call: &Call, limit: Duration) -> Result<Reply, Failure> {
        let begun = Instant::now();
        let end = begun + SILENCE;
        loop {
            match self.try_server(call.clone(), limit)? {
                // It is at what it was asked before, whose answer got lost.
                Some(Reply::Failed(Errno::EBUSY)) if begun.elapsed() < limit => {
                    thread::sleep(AGAIN);
                    continue;
                }
                Some(reply) => return Ok(reply),
                None => {}
            }
            if Instant::now() > end || !self.serves() {
                return Err(self.no_server());
            }
        }
    }

    /// Nothing: it did not answer.
    fn try_server(&self, call: Call, limit: Duration) -> Result<Option<Reply>, Failure> {
        let calls = vec![(Role::META.peer(), self.description.server_places(), call)];
        let mut replies = self.asker()?.ask(calls, limit).map_err(lost)?;
        Ok(replies.pop().flatten())
    }

    /// Whether the process that the server is in runs.
    fn serves(&self) -> bool {
        let servers = self.description.servers().into_iter();
        servers.chain([Role::Packed]).any(|role| self.pid(role).is_some())
    }

    /// The server that serves, where there are several and one does.
    fn serving(&self) -> Option<Role> {
        let servers = self.description.servers();
        if servers.len() < 2 {
            return None;
        }
        let said = self.try_server(Call::Status, ANSWER_LIMIT).ok().flatten()?;
        let Reply::Text(text) = said else { return None };
        let said: serde_json::Value = serde_json::from_str(&text).ok()?;
        let name = said.get("role")?.as_str()?;
        servers.into_iter().find(|role| role.to_string() == name)
    }

    fn asker(&self) -> Result<Asker, Failure> {
        let server = self.description.address(Role::META)?;
        Asker::new(&self.description.key()?, server, self.description.mtu()).map_err(lost)
    }

    /// Waits until all parts answer; `look` is asked meanwhile.
    pub(crate) fn wait(
        &self,
        mut look: impl FnMut() -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        let end = Instant::now() + START_LIMIT;
        loop {
            if !look()? {
                return Ok(false);
            }
            let all = self.ask()?;
            let missing: Vec<Role> =
                all.iter().filter(|(_, text)| text.is_none()).map(|(role, _)| *role).collect();
            if missing.is_empty() {
                return Ok(true);
            }
            if Instant::now() > end {
                return Err(silent(&missing, &self.dir));
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn lost(error: std::io::Error) -> Failure {
    Failure::internal(format!("cannot ask the cluster: {error}"))
}

/// These do not answer.
pub(crate) fn silent(roles: &[Role], dir: &Path) -> Failure {
    let roles: Vec<String> = roles.iter().map(Role::to_string).collect();
    let (roles, dir) = (roles.join(", "), dir.display());
    Failure::new(
        Code::NotRunning,
        format!(
            "no answer from {roles}: see the logs in {dir}; `outboard cluster up {dir}` starts it"
        ),
    )
}

/// Sends a signal; one that is gone needs none.
pub(crate) fn signal(pid: u32, signal: Signal) -> Result<(), Failure> {
    let Some(target) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
    match kill_process(target, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Failure::internal(format!("cannot end process {pid}: {error}"))),
    }
}

/// A command that is run for what it does.
pub(crate) fn done(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}", said.trim()))
}
