//! Nodes that come and go under writers, of files of one copy and of two: whatever is killed
//! meanwhile, all that was answered is there, where it belongs (`docs/internals/healing.md`).

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::command::wait_until;
use crate::copies::{Away, Writer, filled, holds, lay_out};
use crate::{Result, context};

/// How long a write may take while its file is moved, or parts are killed.
const STALL: Duration = Duration::from_secs(30);
/// How long it may take until all files are moved.
const MOVED: Duration = Duration::from_secs(120);
/// Seconds that a node of this cluster may be away.
pub const HEAL_AFTER: &str = "--heal-after=4";

/// What the server says of where files are to lie: the map, and whether they do.
fn placed(cluster: &Cluster) -> Result<(u64, bool)> {
    let status = cluster.status()?;
    let said = &status["parts"]["meta"]["part"];
    let found = said["map"].as_u64().zip(said["placed"]["moving"].as_bool());
    found.ok_or_else(|| format!("the server does not say where files are to lie: {status}"))
}

/// All files lie by this map, or one after it.
fn moved(cluster: &Cluster, map: u64, what: &str) -> Result<u64> {
    let mut last = Ok((0, true));
    let are_moved = wait_until(MOVED, || {
        last = placed(cluster);
        matches!(last, Ok((now, false)) if now >= map)
    });
    match (are_moved, last) {
        (true, Ok((map, _))) => Ok(map),
        (_, last) => Err(format!("files are not moved within {MOVED:?}, {what}: {last:?}")),
    }
}

/// Under a mount of a cluster of three nodes that was made with [`HEAL_AFTER`].
///
/// # Errors
/// Something that was answered is not there, or does not come to an end.
pub fn come_and_go(cluster: &Cluster, dir: &Path, seed: u64) -> Result<()> {
    let strategy = if seed.is_multiple_of(2) { "ring" } else { "tree" };
    let ways = [("one", "strategy=single,width=2"), ("two", &format!("strategy={strategy},k=2"))];
    let mut writers = Vec::new();
    for (at, (name, layout)) in (0_u64..).zip(ways) {
        let dir = dir.join(name);
        context(fs::create_dir(&dir), || format!("cannot make {}", dir.display()))?;
        lay_out(&dir, layout)?;
        let writer = Writer::begin(&dir.join("file"), seed + at)?;
        writer.goes_on(STALL, "all nodes are there")?;
        writers.push((name, dir.join("file"), writer));
    }
    let go_on = |writers: &[(&str, std::path::PathBuf, Writer)], what: &str| {
        let each = |(_, _, writer): &(&str, _, Writer)| writer.goes_on(STALL, what);
        writers.iter().try_for_each(each)
    };
    cluster.does("add", &[])?;
    go_on(&writers, "a node came")?;
    cluster.does("drain", &["node.2"])?;
    go_on(&writers, "a node went")?;
    for (name, _, writer) in &writers {
        println!(
            "  nodes came and went: the longest write of {name} took {:.1?}",
            writer.longest()
        );
    }
    for (call, victims) in
        [(["add", "--nodes=2"], ["meta", "node.1"]), (["drain", "node.4"], ["node.4", "meta"])]
    {
        let (map, [verb, which]) = (placed(cluster)?.0 + 1, call);
        cluster.does(verb, &[which, "--detach"])?;
        victims.iter().try_for_each(|victim| cluster.kill(victim))?;
        cluster.wait()?;
        moved(cluster, map, "parts were killed")?;
        go_on(&writers, "parts were killed")?;
    }
    cluster.does("drain", &["node.4"])?;
    for (name, path, writer) in writers {
        let (written, answered) = writer.end()?;
        holds(&path, &written).map_err(|error| format!("of {name}: {error}"))?;
        println!("  {answered} writes of {name} answered, and there");
    }
    filled(cluster)?;
    fs::remove_dir_all(dir.join("one")).map_err(|error| format!("cannot remove it: {error}"))?;
    heal_elsewhere(cluster, &dir.join("two/again"), seed)
}

/// A node is away for long: its copies are made elsewhere; it is back, and has its share again.
fn heal_elsewhere(cluster: &Cluster, path: &Path, seed: u64) -> Result<()> {
    let writer = Writer::begin(path, seed)?;
    writer.goes_on(STALL, "all nodes are there")?;
    let map = placed(cluster)?.0;
    for node in ["node.1", "node.3", "node.5", "node.6"] {
        let away = Away::stop(cluster, &[node])?;
        writer.goes_on(STALL, "a node is away")?;
        // A file has two copies, of which one is there: some nodes have none of it.
        let is_out = wait_until(
            Duration::from_secs(20),
            || matches!(cluster.part("meta"), Ok(said) if said["map"].as_u64() > Some(map)),
        );
        if is_out {
            let is_healed = wait_until(
                MOVED,
                || matches!(cluster.part("meta"), Ok(said) if said["placed"]["moving"] == false),
            );
            let clean = cluster.check();
            drop(away);
            if !is_healed {
                return Err(format!("copies of {node} are not made elsewhere"));
            }
            clean.map_err(|error| format!("while {node} is away: {error}"))?;
            moved(cluster, map + 2, "a node is back")?;
            println!(
                "  {node} was away: its copies were made elsewhere, and it has its share again"
            );
            let (written, _) = writer.end()?;
            holds(path, &written)?;
            return filled(cluster);
        }
    }
    Err("no node that was away had copies".to_owned())
}
