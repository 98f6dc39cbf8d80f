//! `bench all`: every measurement, one after the other, and a page of it all.
//!
//! A figure that is carried into a page by hand is of an unknown program at an unknown hour. So one
//! command makes them all: the list below names each measurement with what a person would type, and
//! a run leaves in one directory
//!
//! ```text
//! NAME.txt         its table, as it was printed
//! figure-N.svg     what it draws
//! measured.json    of each: command, program and commit, machine, when, how long, how it ended
//! README.md        all of that as a page (`page`), made from the files above and nothing else
//! ```
//!
//! Always holds: what one measurement left is there before the next begins, so that a run that is
//! stopped keeps what is done; one that fails ends no other, and keeps neither table nor words of
//! an earlier success; one that was not asked for stays as it was.

mod page;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a measurement takes besides this program and the rivals that are installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// A pool of a Ceph cluster.
    Pool,
    /// Root, for network namespaces.
    Networks,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Measurement {
    /// In file names and on the page.
    pub name: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// What a person would type after `outboard bench`.
    arguments: &'static str,
    /// Added to have all points, and to have few.
    points: [&'static str; 2],
    /// Seconds of each point and interleaved rounds, where the command takes them.
    seconds: Option<f64>,
    rounds: Option<u32>,
    /// What it draws.
    pub pictures: &'static [&'static str],
    needs: Needs,
}

const PLAIN: Measurement = Measurement {
    name: "",
    title: "",
    arguments: "",
    points: ["", ""],
    seconds: Some(0.3),
    rounds: Some(3),
    pictures: &[],
    needs: Needs::Nothing,
};

/// A figure of DDS, whose command knows by itself what few points are.
const fn dds(
    name: &'static str,
    title: &'static str,
    arguments: &'static str,
    pictures: &'static [&'static str],
) -> Measurement {
    Measurement { name, title, arguments, points: ["", "--quick"], pictures, ..PLAIN }
}

/// All of them, in the order of the page.
pub const LIST: &[Measurement] = &[
    Measurement {
        name: "link",
        title: "Round trips through the link, and their floor",
        arguments: "link",
        seconds: Some(0.4),
        rounds: Some(5),
        ..PLAIN
    },
    Measurement {
        name: "figure-6",
        title: "nvme-fs against virtio-fs, by threads (DPC)",
        arguments: "link --figure 6 --price pcie3x16",
        points: ["", "--threads 1,8"],
        seconds: Some(0.2),
        pictures: &["figure-6.svg"],
        ..PLAIN
    },
    Measurement {
        name: "fs",
        title: "The mount against a plain directory and plain FUSE",
        arguments: "fs --check",
        seconds: Some(0.5),
        ..PLAIN
    },
    Measurement {
        name: "apps",
        title: "Applications on the mount, a plain directory and plain FUSE, until all is durable",
        arguments: "apps",
        points: ["", "--quick"],
        seconds: Some(1.0),
        pictures: &["apps.svg"],
        ..PLAIN
    },
    Measurement {
        name: "netdfs",
        title: "Shared volumes: requests to a node, handlers, the whole way of a write (NetDFS)",
        arguments: "netdfs",
        points: ["", "--quick"],
        pictures: &["netdfs.svg"],
        ..PLAIN
    },
    Measurement {
        name: "replicas",
        title: "Writes to several nodes, by who spreads them (NetDFS V)",
        arguments: "netdfs",
        points: ["--replicas 1,2,4,8", "--replicas 2 --quick"],
        ..PLAIN
    },
    Measurement {
        name: "stripes",
        title: "Stripes with parities, by who computes them (NetDFS VI)",
        arguments: "netdfs",
        points: ["--stripes 3+2,6+3", "--stripes 3+2 --quick"],
        ..PLAIN
    },
    Measurement {
        name: "scale",
        title: "Metadata in one directory, from a thousand to a million files",
        arguments: "scale",
        points: ["--files 1000,1000000", "--files 1000,10000"],
        seconds: None,
        rounds: None,
        ..PLAIN
    },
    Measurement {
        name: "figure-7",
        title: "Direct 8 KiB reads and writes, 1 to 256 threads (DPC)",
        arguments: "fs --figure 7",
        points: ["", "--threads 1,8"],
        seconds: Some(0.4),
        pictures: &["figure-7.svg"],
        ..PLAIN
    },
    Measurement {
        name: "figure-8",
        title: "Buffered 8 KiB reads and writes, by cache (DPC)",
        arguments: "fs --figure 8",
        points: ["--threads 1,8,32", "--threads 1,8"],
        pictures: &["figure-8.svg"],
        ..PLAIN
    },
    Measurement {
        name: "figure-8-far",
        title: "The same, the volumes' medium 200 us further away",
        arguments: "fs --figure 8 --threads 1 --read-delay 200",
        pictures: &["figure-8-far.svg"],
        ..PLAIN
    },
    Measurement {
        name: "table-2",
        title: "Sequential 1 MiB, direct (DPC)",
        arguments: "fs --figure table2",
        points: ["", "--threads 1"],
        seconds: Some(0.4),
        pictures: &["table-2.svg"],
        ..PLAIN
    },
    Measurement {
        name: "figure-9",
        title: "Clients of a shared volume: standard, host and dpu, by threads (DPC)",
        arguments: "dfs --figure 9",
        points: ["", "--threads 1,8"],
        pictures: &["figure-9.svg"],
        ..PLAIN
    },
    Measurement {
        name: "compress",
        title: "Compression, by kind of data",
        arguments: "compress",
        points: ["--size 64", "--size 8"],
        seconds: None,
        ..PLAIN
    },
    Measurement {
        name: "erasure",
        title: "The erasure code of shared volumes, by tables, by shuffles and by ISA-L",
        arguments: "erasure",
        seconds: Some(0.2),
        rounds: Some(5),
        ..PLAIN
    },
    Measurement {
        name: "stores",
        title: "Volumes by the store they lie in",
        arguments: "fs --store fjall --store redb",
        seconds: Some(0.5),
        ..PLAIN
    },
    Measurement {
        name: "rados",
        title: "A volume in a pool against the pool's own tool",
        arguments: "rados",
        points: ["", "--size 64"],
        seconds: None,
        rounds: Some(5),
        needs: Needs::Pool,
        ..PLAIN
    },
    dds(
        "figure-14",
        "Cold GETs and SETs by form of the key-value server (DDS; 15: latency)",
        "dds --figure 14",
        &["figure-14.svg", "figure-15.svg"],
    ),
    dds(
        "figure-17",
        "Rings of messages, by producers (DDS)",
        "dds --figure 17",
        &["figure-17.svg"],
    ),
    dds(
        "figure-18",
        "File requests with and without copies (DDS)",
        "dds --figure 18",
        &["figure-18.svg"],
    ),
    dds(
        "figure-19",
        "An echo through the traffic director (DDS)",
        "dds --figure 19",
        &["figure-19.svg"],
    ),
    Measurement {
        needs: Needs::Networks,
        ..dds(
            "figure-19-net",
            "The same between two network devices, with the user-space stack",
            "dds --figure 19 --net",
            &["figure-19-net.svg"],
        )
    },
    dds("figure-21", "The director by its threads (DDS)", "dds --figure 21", &["figure-21.svg"]),
    dds("figure-22", "The cache table (DDS)", "dds --figure 22", &["figure-22.svg"]),
    dds(
        "figure-23",
        "Offloaded reads with and without a copy (DDS)",
        "dds --figure 23",
        &["figure-23.svg"],
    ),
    dds(
        "figure-24",
        "Pages by form of the page server (DDS)",
        "dds --figure 24",
        &["figure-24.svg"],
    ),
    dds(
        "figure-25",
        "GETs after YCSB beside redis-server and memcached (DDS; 26: latency)",
        "dds --figure 25",
        &["figure-25.svg", "figure-26.svg"],
    ),
];

/// What a run is told.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Only measurements of these names, else whose name contains one of these or whose command is
    /// one; all if there is none.
    pub only: Vec<String>,
    /// Only what this program has not measured there yet in this way.
    pub rest: bool,
    /// Few points, one round, a third of the time: for a look at everything.
    pub quick: bool,
    /// In place of each measurement's own.
    pub seconds: Option<f64>,
    /// In place of each measurement's own.
    pub rounds: Option<u32>,
    /// A pool of a Ceph cluster, if there is one; without a namespace.
    pub pool: Option<String>,
    /// Why there are no network namespaces, if there are none.
    pub no_networks: Option<String>,
}

impl Choice {
    /// Those that are asked for, in their order.
    ///
    /// # Errors
    /// A name that none has.
    pub fn list(&self) -> Result<Vec<&'static Measurement>, String> {
        let is_named = |measurement: &Measurement, name: &String| {
            let whole = LIST.iter().any(|other| other.name == name);
            let is_part = || {
                let command = measurement.arguments.split(' ').next();
                measurement.name.contains(name.as_str()) || command == Some(name)
            };
            if whole { measurement.name == name } else { is_part() }
        };
        for name in &self.only {
            if !LIST.iter().any(|measurement| is_named(measurement, name)) {
                let names: Vec<&str> = LIST.iter().map(|measurement| measurement.name).collect();
                return Err(format!("no measurement `{name}`; there are: {}", names.join(", ")));
            }
        }
        let wanted = |measurement: &&Measurement| {
            self.only.is_empty() || self.only.iter().any(|name| is_named(measurement, name))
        };
        Ok(LIST.iter().filter(wanted).collect())
    }
}

impl Measurement {
    /// What is typed after `outboard bench`; pictures and pool come beside it.
    #[must_use]
    pub fn arguments(&self, choice: &Choice) -> Vec<String> {
        let points = if choice.quick { self.points[1] } else { self.points[0] };
        let words = self.arguments.split_whitespace().chain(points.split_whitespace());
        let mut words: Vec<String> = words.map(str::to_owned).collect();
        if let Some(own) = self.seconds {
            let own = if choice.quick { own / 3.0 } else { own };
            let seconds = choice.seconds.unwrap_or_else(|| (own * 100.0).round() / 100.0);
            words.extend(["--seconds".to_owned(), seconds.to_string()]);
        }
        if let Some(own) = self.rounds {
            let rounds = choice.rounds.unwrap_or(if choice.quick { 1 } else { own });
            words.extend(["--rounds".to_owned(), rounds.to_string()]);
        }
        words
    }

    /// What it is started with besides: where to draw, and a namespace of the pool that is free.
    #[must_use]
    pub fn places(&self, choice: &Choice, out: &Path) -> Vec<String> {
        let mut words = Vec::new();
        let drawn = match self.pictures {
            [] => None,
            [one] => Some(out.join(one)),
            _ => Some(out.to_owned()),
        };
        if let Some(path) = drawn {
            words.extend(["--svg".to_owned(), path.display().to_string()]);
        }
        if let Some(pool) = choice.pool.as_ref().filter(|_| self.uses_pool()) {
            let joint = if pool.contains('?') { '&' } else { '?' };
            let when = outboard_os::clock::wall().sec;
            let space = format!("{pool}{joint}namespace=bench-{}-{when}", self.name);
            words.extend(["--store".to_owned(), space]);
        }
        words
    }

    fn uses_pool(&self) -> bool {
        self.needs == Needs::Pool || self.name == "stores"
    }

    /// Why it cannot be measured here, if it cannot.
    fn lacks(&self, choice: &Choice) -> Option<String> {
        match self.needs {
            Needs::Nothing => None,
            Needs::Networks => choice.no_networks.clone(),
            Needs::Pool if choice.pool.is_some() => None,
            Needs::Pool => Some("no pool was named by --rados".to_owned()),
        }
    }
}

/// How a measurement ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Its table is there.
    Done,
    /// Why.
    Failed(String),
    /// Why.
    LeftOut(String),
}

/// What is known of a measurement that was made, or was to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// As a person would type it.
    pub command: String,
    /// Version and commit of what was measured.
    pub program: String,
    /// Where.
    pub machine: String,
    /// Date and time, UTC.
    pub began: String,
    /// How long it took.
    pub seconds: f64,
    /// What part of the machine was at work right before, 0 to 1: others, if it is not quiet.
    pub busy: f64,
    /// How it ended.
    pub outcome: Outcome,
}

/// By the name of the measurement.
type Records = BTreeMap<String, Record>;

/// What one process did.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What it printed.
    pub table: String,
    /// How long it took.
    pub took: Duration,
    /// What part of the machine was at work right before, 0 to 1.
    pub busy: f64,
    /// How it ended.
    pub end: End,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It measured.
    Well,
    /// It says why it did not.
    Badly(String),
    /// Somebody told the whole run to stop.
    Stopped,
}

/// Who runs commands.
pub trait Runner {
    /// Runs `outboard bench` with these arguments to its end.
    ///
    /// # Errors
    /// It cannot be run at all; so no other can.
    fn run(&mut self, arguments: &[String]) -> io::Result<Ran>;
}

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many were measured.
    pub measured: usize,
    /// Names, and why.
    pub failed: Vec<(&'static str, String)>,
    /// Names, and why.
    pub left_out: Vec<(&'static str, String)>,
    /// Whether somebody stopped it.
    pub stopped: bool,
}

/// Where results go, and what is said of all.
#[derive(Clone, Debug)]
pub struct Sitting<'a> {
    /// The directory.
    pub out: &'a Path,
    /// Version and commit of what is measured.
    pub program: String,
    /// The machine.
    pub machine: String,
}

/// Measures what is chosen; `progress` is told a line before and after each.
///
/// # Errors
/// The directory cannot be read or written, or no process started.
pub fn run(
    sitting: &Sitting<'_>,
    choice: &Choice,
    runner: &mut dyn Runner,
    mut progress: impl FnMut(&str),
) -> io::Result<Summary> {
    fs::create_dir_all(sitting.out)?;
    let mut records = sitting.records()?;
    let (mut summary, mut spent) = (Summary::default(), Duration::ZERO);
    let chosen = choice.list().map_err(io::Error::other)?;
    for (n, measurement) in chosen.iter().enumerate() {
        let (name, command) = (measurement.name, command(measurement, choice));
        if choice.rest && sitting.is_done(records.get(name), &command) {
            continue;
        }
        let mut record = Record {
            command,
            program: sitting.program.clone(),
            machine: sitting.machine.clone(),
            began: crate::now(),
            seconds: 0.0,
            busy: 0.0,
            outcome: Outcome::Done,
        };
        if let Some(why) = measurement.lacks(choice) {
            progress(&format!("{name} is left out: {why}"));
            record.outcome = Outcome::LeftOut(why.clone());
            // What was measured before, where it could be, stays.
            records.entry(name.to_owned()).or_insert(record);
            summary.left_out.push((name, why));
            sitting.write(&records)?;
            continue;
        }
        let (of, so_far) = (chosen.len(), spent.as_secs());
        progress(&format!("[{} of {of}, {so_far} s so far] {name}: {}", n + 1, record.command));
        let mut arguments = measurement.arguments(choice);
        arguments.extend(measurement.places(choice, sitting.out));
        let ran = runner.run(&arguments)?;
        spent += ran.took;
        (record.seconds, record.busy) = (ran.took.as_secs_f64(), ran.busy);
        match ran.end {
            End::Stopped => {
                summary.stopped = true;
                break;
            }
            End::Well => summary.measured += 1,
            End::Badly(why) => {
                progress(&format!("{name} FAILED after {} s: {why}", ran.took.as_secs()));
                record.outcome = Outcome::Failed(why.clone());
                summary.failed.push((name, why));
            }
        }
        replace(&sitting.out.join(format!("{name}.txt")), &ran.table)?;
        records.insert(name.to_owned(), record);
        sitting.write(&records)?;
    }
    sitting.write(&records)?;
    Ok(summary)
}

fn command(measurement: &Measurement, choice: &Choice) -> String {
    format!("outboard bench {}", measurement.arguments(choice).join(" "))
}

/// A file is the old one or the new one, whole.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

impl Sitting<'_> {
    fn records(&self) -> io::Result<Records> {
        let path = self.out.join("measured.json");
        let wrong = |error| io::Error::other(format!("{} is not ours: {error}", path.display()));
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(wrong),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Records::new()),
            Err(error) => Err(error),
        }
    }

    fn is_done(&self, record: Option<&Record>, command: &str) -> bool {
        record.is_some_and(|record| {
            let own = (self.program.as_str(), self.machine.as_str(), command);
            record.outcome == Outcome::Done
                && (record.program.as_str(), record.machine.as_str(), record.command.as_str())
                    == own
        })
    }

    fn write(&self, records: &Records) -> io::Result<()> {
        let json = serde_json::to_string_pretty(records).map_err(io::Error::other)?;
        replace(&self.out.join("measured.json"), &(json + "\n"))?;
        let table = |name: &str| fs::read_to_string(self.out.join(format!("{name}.txt")));
        let is_drawn = |picture: &str| self.out.join(picture).is_file();
        let page = page::page(records, |name| table(name).unwrap_or_default(), is_drawn);
        replace(&self.out.join("README.md"), &page)
    }
}

#[cfg(test)]
mod tests;
