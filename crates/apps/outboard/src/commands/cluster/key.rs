//! `outboard cluster key`: who may mount the volume, by name.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use outboard_base::Errno;
use outboard_wire::shared::call::{Call, Reply};
use serde_json::Value;

use crate::cluster::description::read_key;
use crate::cluster::part::write_key;
use crate::cluster::process::Cluster;
use crate::exit::Failure;

/// How long the server may take: it tells all nodes.
const LIMIT: Duration = Duration::from_secs(30);

/// What is done with keys. All of it takes the cluster's own.
#[derive(Subcommand, Debug)]
pub(crate) enum What {
    /// Write a key for a client; the same name is the same client
    Add {
        /// The cluster's directory
        dir: PathBuf,
        /// The client's name
        name: String,
        /// The file to make [default: NAME.key in the cluster's directory]
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Who was given a key, and whose counts no more
    List {
        /// The cluster's directory
        dir: PathBuf,
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
    },
    /// A client's key counts no more: its mounts are refused at once, by the server and every node
    Revoke {
        /// The cluster's directory
        dir: PathBuf,
        /// The client's name
        name: String,
    },
    /// Sign with new keys what nodes let clients do; mounts go on, the keys before end in minutes
    Rotate {
        /// The cluster's directory
        dir: PathBuf,
    },
}

/// Does something with keys.
pub(crate) fn key(what: What) -> Result<ExitCode, Failure> {
    match what {
        What::Add { dir, name, file } => add(&Cluster::of(&dir)?, name, file),
        What::List { dir, json } => list(&Cluster::of(&dir)?, json),
        What::Revoke { dir, name } => revoke(&Cluster::of(&dir)?, name),
        What::Rotate { dir } => rotate(&Cluster::of(&dir)?),
    }
}

/// Who reads no output has what it did all the same.
fn say(what: std::fmt::Arguments<'_>) {
    let _unread = writeln!(std::io::stdout(), "{what}");
}

fn ask(cluster: &Cluster, call: Call, name: &str) -> Result<Reply, Failure> {
    let dir = cluster.dir.display();
    match cluster.ask_server(call, LIMIT)? {
        Reply::Failed(Errno::ENOENT) => Err(Failure::usage(format!(
            "no client {name} has a key that counts: `outboard cluster key list {dir}` shows them"
        ))),
        Reply::Failed(Errno::EINVAL) => Err(Failure::usage(format!(
            "{name:?} is no name of a client: 1 to 64 letters, digits, - _ . or @"
        ))),
        Reply::Failed(errno) => {
            Err(Failure::internal(format!("the server does not do it for {name}: {errno}")))
        }
        reply => Ok(reply),
    }
}

fn nonsense() -> Failure {
    Failure::internal("the server answers nonsense")
}

fn json(reply: Reply) -> Result<Value, Failure> {
    let Reply::Text(text) = reply else { return Err(nonsense()) };
    serde_json::from_str(&text).map_err(|_| nonsense())
}

fn add(cluster: &Cluster, name: String, file: Option<PathBuf>) -> Result<ExitCode, Failure> {
    let own = cluster.description.key()?;
    let Reply::Number(number) = ask(cluster, Call::AddKey { name: name.clone() }, &name)? else {
        return Err(nonsense());
    };
    let number = u32::try_from(number).map_err(|_| nonsense())?;
    let key = own.of_client(number);
    let key = key.ok_or_else(|| Failure::usage("the key is not the cluster's own"))?;
    let file = file.unwrap_or_else(|| cluster.dir.join(format!("{name}.key")));
    if !is_there(&file) || read_key(&file)? != key {
        write_key(&file, &key)?;
    }
    say(format_args!("{}", file.display()));
    Ok(ExitCode::SUCCESS)
}

fn is_there(file: &Path) -> bool {
    file.symlink_metadata().is_ok()
}

fn list(cluster: &Cluster, as_json: bool) -> Result<ExitCode, Failure> {
    let all = json(ask(cluster, Call::ListKeys, "")?)?;
    if as_json {
        say(format_args!("{all:#}"));
        return Ok(ExitCode::SUCCESS);
    }
    for one in all.as_array().into_iter().flatten() {
        let text = |key: &str| one.get(key).and_then(Value::as_str).unwrap_or("?");
        let is_revoked = one.get("revoked_ms").and_then(Value::as_u64) != Some(0);
        let state = if is_revoked { "revoked" } else { "counts" };
        say(format_args!("{:24} {}  {state}", text("name"), text("client")));
    }
    Ok(ExitCode::SUCCESS)
}

/// How many nodes know, and what of the others.
fn told(said: &Value) -> String {
    let number = |key: &str| said.get(key).and_then(Value::as_u64).unwrap_or(0);
    let (all, told) = (number("nodes"), number("nodes_told"));
    if told >= all {
        return format!("all {all} nodes know");
    }
    format!(
        "{told} of {all} nodes know; the others are told as soon as the server reaches them, and \
         until then may take what the client was granted before, for 5 minutes at most"
    )
}

fn revoke(cluster: &Cluster, name: String) -> Result<ExitCode, Failure> {
    let said = json(ask(cluster, Call::RevokeKey { name: name.clone() }, &name)?)?;
    say(format_args!("the key of {name} counts no more: {}", told(&said)));
    Ok(ExitCode::SUCCESS)
}

fn rotate(cluster: &Cluster) -> Result<ExitCode, Failure> {
    let said = json(ask(cluster, Call::RotateKey, "this cluster")?)?;
    say(format_args!("capabilities are signed with new keys: {}", told(&said)));
    Ok(ExitCode::SUCCESS)
}
