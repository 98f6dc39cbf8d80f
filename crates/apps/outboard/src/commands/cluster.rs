//! `outboard cluster`: a cluster on this machine, its parts as processes of their own; and the
//! commands of these processes.

mod key;
mod nodes;
mod up;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use outboard_wire::shared::call::{Call, Reply};
use rustix::process::Signal;
use serde_json::{Map, Value, json};

use crate::cluster::description::{Role, Trust};
use crate::cluster::membership::WAITS;
use crate::cluster::netns;
use crate::cluster::part::{self, PartOptions, Running, Stop};
use crate::cluster::process::{Cluster, signal, silent};
use crate::exit::{Code, Failure};
use crate::say::say;
use crate::watch::{Happened, Watch};
use crate::{log, program};

/// How long a check may take.
const CHECK_LIMIT: Duration = Duration::from_secs(3600);
/// How long `up` has to end all parts.
const DOWN_LIMIT: Duration = Duration::from_secs(150);
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// What is done with a cluster.
#[derive(Subcommand, Debug)]
pub(crate) enum What {
    /// Make a cluster in a directory if there is none, start it, and stay until Ctrl-C
    Up {
        /// The cluster's directory
        dir: PathBuf,
        #[command(flatten)]
        how: Wishes,
    },
    /// End the processes of a cluster in order
    Down {
        /// The cluster's directory
        dir: PathBuf,
    },
    /// How each part does
    Status {
        /// The cluster's directory
        dir: PathBuf,
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
    },
    /// kill -9 of a process; `up` starts it again
    Kill {
        /// The cluster's directory
        dir: PathBuf,
        /// Which: meta, node.1, ...
        role: String,
    },
    /// Start a process that does not run
    Start {
        /// The cluster's directory
        dir: PathBuf,
        /// Which: meta, node.1, ...
        role: String,
    },
    /// Cut the network cable of a part or host (needs `up --netns`)
    Cut {
        /// The cluster's directory
        dir: PathBuf,
        /// Which: meta, node.1, host.1, ...
        place: String,
        /// Only what goes between it and this one
        #[arg(long, value_name = "PLACE")]
        from: Option<String>,
    },
    /// Mend what `cut` has cut
    Heal {
        /// The cluster's directory
        dir: PathBuf,
        /// Which: meta, node.1, host.1, ...
        place: String,
        /// Only what goes between it and this one
        #[arg(long, value_name = "PLACE")]
        from: Option<String>,
    },
    /// More nodes, while the cluster is used: files are moved so that they have their share
    Add {
        /// The cluster's directory
        dir: PathBuf,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 1)]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=nodes::most()))]
        nodes: u16,
        #[command(flatten)]
        pace: nodes::Pace,
    },
    /// Move all files away from a node, while the cluster is used, then end it; one that is gone
    /// for good, too, whose files have copies
    Drain {
        /// The cluster's directory
        dir: PathBuf,
        /// Which: node.1, ...
        node: String,
        #[command(flatten)]
        pace: nodes::Pace,
    },
    /// Check names and inodes, and whether the nodes hold what they say, while it is used
    Check {
        /// The cluster's directory
        dir: PathBuf,
        /// Read all that the nodes hold, too
        #[arg(long)]
        contents: bool,
        /// Print the report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Keys with which clients mount the volume, and nothing more
    Key {
        #[command(subcommand)]
        what: key::What,
    },
}

/// How a cluster is made and started.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// Storage nodes of a new cluster [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: Option<u16>,
    /// Of a new one: all parts in one process
    #[arg(long, conflicts_with = "netns")]
    pub(crate) packed: bool,
    /// Of a new one: each part in a network namespace of its own, so that `cut` can cut it off
    #[arg(long)]
    pub(crate) netns: bool,
    /// Of a new one with --netns: so many namespaces for hosts, too
    #[arg(long, value_name = "N", requires = "netns")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=64))]
    pub(crate) hosts: Option<u16>,
    /// Of a new one: its port, at an address of the loopback for each part; 0: one that is free
    /// [default: 4791]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Of a new one: who keeps which parts there are: embedded, a process of its own;
    /// zookeeper://HOST:PORT,HOST:PORT/PATH, an ensemble; or none [default: embedded]
    #[arg(long, value_name = "WHICH")]
    pub(crate) coordinator: Option<String>,
    /// Of a new one: how files lie, as in strategy=single,width=4,strip=64K
    #[arg(long, value_name = "LAYOUT")]
    pub(crate) layout: Option<String>,
    /// Of a new one: bytes that each node takes, with K, M, G or T [default: what its disk has]
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<String>,
    /// Of a new one: seconds that a node may be away before files with copies on it get others
    /// elsewhere; 0: as many as it likes [default: 600]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) heal_after: Option<u64>,
    /// Of a new one: whom nodes trust [default: capability]
    #[arg(long, value_name = "TRUST")]
    pub(crate) trust: Option<Trust>,
    /// Of a new one: what keeps names and inodes, as --store of a volume: a pool, as in
    /// rados://POOL?conf=FILE, lets servers stand by [default: fjall]
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Option<String>,
    /// Of a new one: so many more metadata servers that stand by; takes --store rados://...
    #[arg(long, value_name = "N", requires = "store")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=7))]
    pub(crate) standby: Option<u16>,
    /// Write all packets down in this directory, a file for each part, for tshark
    #[arg(long, value_name = "DIR")]
    pub(crate) capture: Option<PathBuf>,
    /// Leave it running, and end
    #[arg(long)]
    pub(crate) detach: bool,
}

/// How a part is run.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct OfPart {
    /// Says who runs it, for `outboard cluster`
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) pid: Option<PathBuf>,
    /// Write its packets down in this directory, for tshark
    #[arg(long, value_name = "DIR")]
    pub(crate) capture: Option<PathBuf>,
    /// Longest time it polls before it sleeps, in microseconds [default: 50]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    pub(crate) spin: Option<u64>,
    /// What to log, as for other commands [default: info]
    #[arg(long, value_name = "FILTER", default_value = "info", hide_default_value = true)]
    pub(crate) log: String,
}

/// Runs a part in this process until it is told to end.
pub(crate) fn part(
    config: Option<&Path>,
    role: Option<Role>,
    command: &str,
    of: &OfPart,
) -> Result<ExitCode, Failure> {
    log::start_with(&of.log)?;
    program::is_behind_pages();
    let cluster = part::described(config, command)?;
    let role = match role {
        Some(role) => role,
        None => Role::Node(cluster.node(None)?.number),
    };
    let _running = of.pid.as_deref().map(Running::claim).transpose()?;
    let stop = Arc::new(Stop::default());
    stop.on_signal()?;
    let options = PartOptions { capture: of.capture.clone(), spin: of.spin };
    part::run(&cluster, role, &options, &stop)?;
    Ok(ExitCode::SUCCESS)
}

/// Does something with a cluster.
pub(crate) fn cluster(what: What) -> Result<ExitCode, Failure> {
    match what {
        What::Up { dir, how } => up::up(&dir, &how),
        What::Down { dir } => down(&Cluster::of(&dir)?),
        What::Status { dir, json } => status(&Cluster::of(&dir)?, json),
        What::Kill { dir, role } => kill(&Cluster::of(&dir)?, &role),
        What::Start { dir, role } => start(&Cluster::of(&dir)?, &role),
        What::Cut { dir, place, from } => {
            set_cable(&Cluster::of(&dir)?, &place, from.as_deref(), false)
        }
        What::Heal { dir, place, from } => {
            set_cable(&Cluster::of(&dir)?, &place, from.as_deref(), true)
        }
        What::Add { dir, nodes, pace } => nodes::add(&dir, nodes, &pace),
        What::Drain { dir, node, pace } => nodes::drain(&dir, &node, &pace),
        What::Check { dir, contents, json } => check(&Cluster::of(&dir)?, contents, json),
        What::Key { what } => key::key(what),
    }
}

fn down(cluster: &Cluster) -> Result<ExitCode, Failure> {
    if let Some(pid) = Running::pid(&cluster.keeper()) {
        signal(pid, Signal::TERM)?;
        let end = std::time::Instant::now() + DOWN_LIMIT;
        while Running::pid(&cluster.keeper()) == Some(pid) {
            if std::time::Instant::now() > end {
                let message = format!("`outboard cluster up` (pid {pid}) does not end");
                return Err(Failure::internal(message));
            }
            std::thread::sleep(LOOK);
        }
    }
    cluster.end()?;
    if cluster.description.netns {
        netns::remove(&cluster.dir, &cluster.description);
    }
    Ok(ExitCode::SUCCESS)
}

fn status(cluster: &Cluster, json: bool) -> Result<ExitCode, Failure> {
    let all = cluster.ask()?;
    let said = |text: &Option<String>| -> Value {
        text.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
    };
    let store = cluster.description.store()?;
    if json {
        let mut parts = Map::new();
        for (role, text) in &all {
            let mut said = said(text);
            if let Some(said) = said.as_object_mut() {
                let address = cluster.description.address(*role)?.to_string();
                said.insert("address".to_owned(), address.into());
            }
            parts.insert(role.to_string(), said);
        }
        let hosts = (1..=cluster.description.hosts).map(netns::Place::Host);
        let hosts: Vec<String> = hosts.map(|host| netns::space(&cluster.dir, host)).collect();
        say!("{:#}", json!({ "store": store, "parts": parts, "hosts": hosts }));
    } else {
        for (role, text) in &all {
            let (address, said) = (cluster.description.address(*role)?, said(text));
            match said.get("pid") {
                Some(pid) if said.get("standby").is_some() => {
                    say!("{role:8} {address}  pid {pid}  stands by");
                }
                Some(pid) => say!("{role:8} {address}  pid {pid}  {}", in_short(&said)),
                None => say!("{role:8} {address}  does not answer"),
            }
        }
        say!("mount with --store '{store}'");
    }
    let missing: Vec<Role> =
        all.iter().filter(|(_, text)| text.is_none()).map(|(role, _)| *role).collect();
    if missing.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(silent(&missing, &cluster.dir))
}

/// The numbers a part says of itself.
fn in_short(said: &Value) -> String {
    let Some(own) = said.get("part").and_then(Value::as_object) else { return String::new() };
    let numbers = own.iter().filter(|(name, value)| value.is_u64() && *name != "life");
    let numbers: Vec<String> =
        numbers.take(8).map(|(name, value)| format!("{name} {value}")).collect();
    numbers.join("  ")
}

fn kill(cluster: &Cluster, role: &str) -> Result<ExitCode, Failure> {
    let role = cluster.role(role)?;
    if cluster.kill(role)? {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(Code::NotRunning, format!("{role} does not run")))
}

fn start(cluster: &Cluster, role: &str) -> Result<ExitCode, Failure> {
    let role = cluster.role(role)?;
    if let Some(pid) = cluster.pid(role) {
        say!("{role} runs already, as process {pid}");
        return Ok(ExitCode::SUCCESS);
    }
    log::start_with("warn")?;
    let (mut watch, mut said) = (Watch::new()?, cluster.log_of(role).len());
    let mut child = cluster.spawn(role)?;
    let up = cluster.wait(|| {
        if watch.next(Duration::ZERO)? == Happened::Told {
            signal(child.id(), Signal::TERM)?;
            let _ended = child.wait();
            let message = format!("{role} was told to end before it served");
            return Err(Failure::new(Code::NotRunning, message));
        }
        let log = cluster.log_of(role);
        if let Some(line) = log.get(said..).and_then(what_it_waits_for) {
            eprintln!("outboard: {line}");
            said = log.len();
        }
        let ended = child.try_wait().ok().flatten();
        // Others may be missing; they are not this command's business.
        match ended {
            Some(_) => Err(Failure::internal(cluster.last_words(role))),
            None => Ok(!cluster.ask()?.iter().any(|(one, text)| *one == role && text.is_some())),
        }
    });
    up.map(|_| ExitCode::SUCCESS)
}

/// What a part says in its log that it waits for.
fn what_it_waits_for(log: &str) -> Option<&str> {
    let line = log.lines().find(|line| line.contains(WAITS))?;
    let role = Role::META.to_string();
    line.find(&role).and_then(|at| line.get(at..))
}

fn set_cable(
    cluster: &Cluster,
    place: &str,
    from: Option<&str>,
    is_up: bool,
) -> Result<ExitCode, Failure> {
    if !cluster.description.netns {
        return Err(Failure::usage(format!(
            "{place} shares this machine's network, which is not cut: make a cluster with \
             `outboard cluster up DIR --netns`, or take `kill`"
        )));
    }
    let all = netns::places(&cluster.description);
    let find = |name: &str| {
        let found = all.iter().find(|place| place.to_string() == name);
        found.copied().ok_or_else(|| {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            Failure::usage(format!("there is no {name}; take one of {}", all.join(", ")))
        })
    };
    let done = match from {
        None => netns::set_cable(&cluster.dir, find(place)?, is_up),
        Some(from) => netns::set_between(&cluster.dir, [find(place)?, find(from)?], is_up),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn check(cluster: &Cluster, contents: bool, json: bool) -> Result<ExitCode, Failure> {
    let text = match cluster.ask_busy_server(&Call::Check { contents }, CHECK_LIMIT)? {
        Reply::Text(text) => text,
        Reply::Failed(errno) => {
            return Err(Failure::internal(format!("the server cannot check: {errno}")));
        }
        _ => return Err(Failure::internal("the server answers nonsense")),
    };
    let report: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::internal(format!("the server answers nonsense: {error}")))?;
    let total = report.get("total").and_then(Value::as_u64).unwrap_or(u64::MAX);
    if json {
        say!("{report:#}");
    } else {
        let findings = report.get("findings").and_then(Value::as_array);
        for finding in findings.into_iter().flatten().filter_map(Value::as_str) {
            say!("{finding}");
        }
        let counts = report.get("counts").and_then(Value::as_object);
        let counts: Vec<String> =
            counts.into_iter().flatten().map(|(name, value)| format!("{name} {value}")).collect();
        say!("{}", counts.join("  "));
    }
    if total == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(Code::Damaged, format!("{total} findings")))
}
