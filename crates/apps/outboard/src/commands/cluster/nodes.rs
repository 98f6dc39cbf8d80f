//! `outboard cluster add` and `drain`: nodes come and go while the cluster is used.
//!
//! The description says which processes there are, the server on which nodes files lie. Who comes
//! is described and started before the server hears of it; who goes is ended, and described no
//! more, once the server says that no file lies there.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use outboard_wire::shared::Coordinate;
use outboard_wire::shared::call::{Call, Reply};
use rustix::process::Signal;
use serde_json::Value;

use super::{LOOK, up};
use crate::bar::Bar;
use crate::cluster::description::{Node, Role};
use crate::cluster::netns;
use crate::cluster::part::Running;
use crate::cluster::process::{Cluster, signal};
use crate::exit::{Code, Failure};
use crate::say::say;
use crate::settings::bytes;
use crate::watch::{Happened, Watch};

/// How long the server may look at files before it answers.
const PLACE_LIMIT: Duration = Duration::from_secs(300);
/// How long a node that is to go has to end, and one that comes to be there.
const NODE_LIMIT: Duration = Duration::from_secs(70);
/// How often it is asked how far it is.
const ASK: Duration = Duration::from_millis(500);
/// Most nodes that come at once.
const NODES: u16 = 16;

/// How files are moved.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Pace {
    /// Move so many bytes a second at most, with K, M or G [default: as many as can be]
    #[arg(long, value_name = "BYTES")]
    rate: Option<String>,
    /// Do not wait until files are moved; it goes on by itself
    #[arg(long)]
    detach: bool,
}

/// Most nodes that `add` takes, for its help.
pub(crate) const fn most() -> i64 {
    NODES as i64
}

impl Pace {
    fn rate(&self) -> Result<u64, Failure> {
        self.rate.as_deref().map_or(Ok(0), |text| bytes("rate", text))
    }
}

/// Nodes come.
pub(crate) fn add(dir: &Path, count: u16, pace: &Pace) -> Result<ExitCode, Failure> {
    let (mut cluster, rate) = (Cluster::of(dir)?, pace.rate()?);
    must_be_changeable(&cluster)?;
    let _alone = alone(&cluster)?;
    let before = cluster.description.clone();
    let last = before.nodes.iter().map(|node| node.number).max().unwrap_or(0);
    let new: Vec<Node> = (1..=count)
        .map(|step| up::node(&cluster.dir, &before, last.saturating_add(step)))
        .collect::<Result<_, Failure>>()?;
    cluster.description.nodes.extend(new.iter().cloned());
    describe(&mut cluster)?;
    let asked = start(&cluster, &new).map_err(Refusal::Sure).and_then(|()| {
        let is_new = |one: &Coordinate| new.iter().any(|node| node.number == one.node);
        let joins = cluster.description.coordinates().into_iter().filter(is_new).collect();
        place(&cluster, &Call::Place { joins, leaves: Vec::new(), rate })
    });
    let names: Vec<String> = new.iter().map(|node| Role::Node(node.number).to_string()).collect();
    let names = names.join(", ");
    match asked {
        Ok(()) => {}
        Err(Refusal::Sure(refused)) => {
            // As it was.
            cluster.description = before;
            describe(&mut cluster)?;
            new.iter().try_for_each(|node| end(&cluster, Role::Node(node.number)))?;
            return Err(refused);
        }
        Err(Refusal::Unsure(failure)) => {
            eprintln!(
                "outboard: nobody knows whether the server has taken {names}, which stay: once it \
                 answers, `outboard cluster drain {} NODE` takes them away again",
                cluster.dir.display()
            );
            return Err(failure);
        }
    }
    let goes_on = "it goes on by itself";
    if follow(&cluster, pace, (&format!("files to {names}"), goes_on))? {
        say!("{names} came; files are where they belong");
    }
    Ok(ExitCode::SUCCESS)
}

/// A node goes.
pub(crate) fn drain(dir: &Path, name: &str, pace: &Pace) -> Result<ExitCode, Failure> {
    let (mut cluster, rate) = (Cluster::of(dir)?, pace.rate()?);
    must_be_changeable(&cluster)?;
    let _alone = alone(&cluster)?;
    let number = name.strip_prefix("node.").unwrap_or(name).parse::<u16>();
    let number = number.map_err(|_| {
        Failure::usage(format!("{name:?} is no node: say it as in `drain DIR node.2`"))
    })?;
    let role = cluster.role(&Role::Node(number).to_string())?;
    let call = Call::Place { joins: Vec::new(), leaves: vec![number], rate };
    place(&cluster, &call)
        .map_err(|(Refusal::Sure(failure) | Refusal::Unsure(failure))| failure)?;
    let goes_on = "it goes on by itself; the same command again ends the node then";
    if !follow(&cluster, pace, (&format!("files from {role}"), goes_on))? {
        return Ok(ExitCode::SUCCESS);
    }
    let data = cluster.description.path(&cluster.description.node(Some(number))?.data);
    cluster.description.nodes.retain(|node| node.number != number);
    describe(&mut cluster)?;
    end(&cluster, role)?;
    say!("{role} has no files, and has ended; {} may go", data.display());
    Ok(ExitCode::SUCCESS)
}

/// Nodes of this cluster are processes of their own, and know each other by a coordinator.
fn must_be_changeable(cluster: &Cluster) -> Result<(), Failure> {
    if cluster.description.packed {
        return Err(Failure::usage(
            "all parts of this cluster are in one process, which has the nodes it began with: \
             nodes come and go in a cluster that was made without --packed",
        ));
    }
    if cluster.description.coordinator.is_none() {
        return Err(Failure::usage(
            "this cluster has no coordinator, which tells parts of each other: nodes come and go \
             in a cluster that was made without --coordinator none",
        ));
    }
    Ok(())
}

/// One of them at a time changes a cluster.
fn alone(cluster: &Cluster) -> Result<Running, Failure> {
    cluster.make_run()?;
    Running::claim(&cluster.dir.join("run").join("nodes.pid")).map_err(|_| {
        Failure::usage("another `outboard cluster add` or `drain` of this cluster is under way")
    })
}

/// Why nodes do not come or go.
enum Refusal {
    /// It was not done.
    Sure(Failure),
    /// Nobody knows.
    Unsure(Failure),
}

fn describe(cluster: &mut Cluster) -> Result<(), Failure> {
    let dir = cluster.dir.clone();
    cluster.description.write(&dir)
}

/// Nodes that were described are there: `up`, where it runs, starts them.
fn start(cluster: &Cluster, new: &[Node]) -> Result<(), Failure> {
    let is_kept = Running::pid(&cluster.keeper()).is_some();
    netns::make(&cluster.dir, &cluster.description)?.keep();
    let roles: Vec<Role> = new.iter().map(|node| Role::Node(node.number)).collect();
    if !is_kept {
        for role in &roles {
            // Whoever ends the cluster ends it.
            drop(cluster.spawn(*role)?);
        }
    }
    let (mut watch, begun) = (Watch::new()?, Instant::now());
    loop {
        let all = cluster.ask()?;
        let mut missing = all.iter().filter(|(role, text)| roles.contains(role) && text.is_none());
        let Some((role, _)) = missing.next() else { return Ok(()) };
        if begun.elapsed() > NODE_LIMIT {
            return Err(Failure::internal(cluster.last_words(*role)));
        }
        if watch.next(LOOK)? == Happened::Told {
            let message = "told to end before the new nodes were there: all is as before";
            return Err(Failure::new(Code::NotRunning, message));
        }
    }
}

/// A node that is described no more ends.
fn end(cluster: &Cluster, role: Role) -> Result<(), Failure> {
    let (begun, Some(pid)) = (Instant::now(), cluster.pid(role)) else { return Ok(()) };
    if Running::pid(&cluster.keeper()).is_none() {
        signal(pid, Signal::TERM)?;
    }
    while cluster.pid(role) == Some(pid) {
        if begun.elapsed() > NODE_LIMIT {
            return Err(Failure::internal(format!("{role} (pid {pid}) does not end")));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn place(cluster: &Cluster, call: &Call) -> Result<(), Refusal> {
    let answer = cluster.ask_busy_server(call, PLACE_LIMIT).map_err(Refusal::Unsure)?;
    let said = match answer {
        Reply::Text(text) => serde_json::from_str::<Value>(&text).unwrap_or_default(),
        Reply::Failed(errno) => {
            let message = format!("the server cannot do it: {errno}");
            return Err(Refusal::Unsure(Failure::internal(message)));
        }
        _ => Value::Null,
    };
    if let Some(why) = said.get("refused").and_then(Value::as_str) {
        return Err(Refusal::Sure(Failure::usage(format!("the server refuses: {why}"))));
    }
    match said.get("map") {
        Some(_) => Ok(()),
        None => Err(Refusal::Unsure(Failure::internal("the server answers nonsense"))),
    }
}

/// Waits until files are moved; false: nobody waits for it.
fn follow(cluster: &Cluster, pace: &Pace, (what, then): (&str, &str)) -> Result<bool, Failure> {
    let goes_on = format!(
        "{then}; `outboard cluster status {} --json` says how far it is",
        cluster.dir.display()
    );
    if pace.detach {
        say!("{goes_on}");
        return Ok(false);
    }
    let (mut watch, mut bar, mut said) = (Watch::new()?, Bar::new(), String::new());
    loop {
        let placed = placed(cluster)?;
        let number = |key: &str| placed.get(key).and_then(Value::as_u64).unwrap_or(0);
        if placed.get("moving").and_then(Value::as_bool) == Some(false) {
            bar.end();
            return Ok(true);
        }
        bar.show(what, number("files"), 0);
        let waits = placed.get("waits").and_then(Value::as_str).unwrap_or_default();
        if !waits.is_empty() && waits != said {
            bar.end();
            eprintln!("outboard: not moved yet, and tried again: {waits}");
            waits.clone_into(&mut said);
        }
        if watch.next(ASK)? == Happened::Told {
            bar.end();
            eprintln!("outboard: {goes_on}");
            return Ok(false);
        }
    }
}

fn placed(cluster: &Cluster) -> Result<Value, Failure> {
    let Reply::Text(text) = cluster.ask_busy_server(&Call::Status, ASK * 10)? else {
        return Err(Failure::internal("the server answers nonsense"));
    };
    let said: Value = serde_json::from_str(&text).unwrap_or_default();
    Ok(said.get("part").and_then(|part| part.get("placed")).cloned().unwrap_or_default())
}
