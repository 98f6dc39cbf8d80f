//! `outboard bench dds`: the page server's figures, one or all of them, and how its targets stand.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use outboard_bench::dds::{director, files, part, ring, servers, table, targets};
use serde::Serialize;

use super::{
    Failure, Scratch, ascending, failed, own_program, print, program, progress, time, write_svg,
};

/// What to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct DdsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// 14, 15: GETs of cold records and SETs, in every form of the key-value server, by load:
    /// CPU of the host, and latency; 17: rings of messages, by the number of producers; 18:
    /// file requests, with and without copies; 19: an echo through the traffic director, beside
    /// haproxy; 21: the director by its threads; 22: the cache table, by the number of threads
    /// that look up; 23: offloaded reads, with and without copies; 24: pages, in every form of
    /// the page server, by load; 25, 26: GETs after YCSB, hot and cold, beside redis-server and
    /// memcached: CPU of the host, and latency
    #[arg(long, value_name = "N", required_unless_present = "all",
        value_parser = ["14", "15", "17", "18", "19", "21", "22", "23", "24", "25", "26"])]
    figure: Option<String>,
    /// All figures, each at fewer points, and how every target stands
    #[arg(long, conflicts_with = "figure")]
    all: bool,
    /// Directory for the data of servers; without it one in the temporary directory
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Fail unless the host sleeps while reads are offloaded (14, 15, 24, 25, 26)
    #[arg(long)]
    check: bool,
    /// Seconds for each measurement [default: 0.3, with --all 0.1]
    #[arg(long)]
    seconds: Option<f64>,
    /// Interleaved rounds; medians are reported
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Numbers of threads (17, 22) [default: 1,2,4,8,16,32,64, with --all fewer]
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// Also write the figure to this file, as SVG; with --all each to `figure-N.svg` in this
    /// directory
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A process that is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct PartArgs {
    /// `host`, `director` or `reads`
    kind: String,
    /// Address and port, or path
    #[arg(long)]
    listen: String,
    /// Where the host's socket and the data lie
    #[arg(long)]
    dir: PathBuf,
    /// Threads of a director
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Bytes of the file
    #[arg(long, default_value_t = 0)]
    bytes: u64,
    /// Copy each read
    #[arg(long)]
    copies: bool,
}

const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The same, for a look at everything.
const THREADS_SHORT: [usize; 4] = [1, 4, 16, 64];
const READERS_SHORT: [usize; 2] = [1, 2];
/// In an order in which short ones come first.
const ALL: [&str; 9] = ["22", "17", "18", "19", "21", "23", "14", "24", "25"];

/// Runs one of the processes until it is ended.
pub(crate) fn part(args: &PartArgs) -> Result<ExitCode, Failure> {
    let kind = part::Kind::from_name(&args.kind)
        .ok_or_else(|| Failure::Usage(format!("there is no part {}", args.kind)))?;
    let part = part::Part {
        kind,
        listen: args.listen.clone(),
        dir: args.dir.clone(),
        workers: args.workers,
        bytes: args.bytes,
        copies: args.copies,
    };
    part::serve(&part).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures a figure, or all of them.
pub(crate) fn bench(args: &DdsArgs) -> Result<ExitCode, Failure> {
    let Some(name) = &args.figure else { return all(args) };
    let report = measure(args, name)?;
    write_svg(args.svg.as_deref(), || report.svg(name))?;
    let text = || report.table() + &targets::lines(&report.verdicts());
    let code = print(args.json, &report, text)?;
    if args.check {
        report.check().map_err(Failure::Failed)?;
    }
    Ok(code)
}

/// What `--all --json` prints.
#[derive(Serialize)]
struct Everything {
    reports: Vec<Report>,
    verdicts: Vec<targets::Verdict>,
}

fn all(args: &DdsArgs) -> Result<ExitCode, Failure> {
    let (mut reports, mut verdicts) = (Vec::new(), Vec::new());
    for name in ALL {
        let report = measure(args, name)?;
        if let Some(dir) = &args.svg {
            for name in Report::drawn_with(name) {
                write_svg(Some(&dir.join(format!("figure-{name}.svg"))), || report.svg(name))?;
            }
        }
        // At once: who reads along need not wait for the rest.
        if !args.json {
            print(false, &report, || format!("figure {name}\n{}\n", report.table()))?;
        }
        if args.check {
            report.check().map_err(Failure::Failed)?;
        }
        verdicts.extend(report.verdicts());
        reports.push(report);
    }
    let everything = Everything { reports, verdicts };
    print(args.json, &everything, || targets::lines(&everything.verdicts))
}

/// A report of one of the figures.
#[derive(Serialize)]
#[serde(untagged)]
enum Report {
    Ring(ring::Report),
    Files(files::Report),
    Table(table::Report),
    Director(director::Report),
    Servers(servers::Report),
}

impl Report {
    /// The figures that one measurement draws.
    fn drawn_with(name: &'static str) -> Vec<&'static str> {
        match name {
            "14" => vec!["14", "15"],
            "25" => vec!["25", "26"],
            name => vec![name],
        }
    }

    fn table(&self) -> String {
        match self {
            Report::Ring(report) => report.table(),
            Report::Files(report) => report.table(),
            Report::Table(report) => report.table(),
            Report::Director(report) => report.table(),
            Report::Servers(report) => report.table(),
        }
    }

    fn svg(&self, name: &str) -> String {
        match self {
            Report::Ring(report) => report.svg(),
            Report::Files(report) => report.svg(),
            Report::Table(report) => report.svg(),
            Report::Director(report) => report.svg(),
            Report::Servers(report) => {
                let number = servers::Number::from_name(name).unwrap_or(report.number);
                servers::Report { number, ..report.clone() }.svg()
            }
        }
    }

    fn verdicts(&self) -> Vec<targets::Verdict> {
        match self {
            Report::Ring(report) => targets::of_rings(report),
            Report::Files(_) => Vec::new(),
            Report::Table(report) => targets::of_table(report),
            Report::Director(report) => targets::of_director(report),
            Report::Servers(report) => targets::of_servers(report),
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Report::Servers(report) => report.check(),
            _ => Ok(()),
        }
    }
}

fn measure(args: &DdsArgs, name: &str) -> Result<Report, Failure> {
    let (rounds, is_short) = (args.rounds, args.all);
    let time = time(args.seconds.unwrap_or(if is_short { 0.1 } else { 0.3 }))?;
    let threads = |short: &[usize], most: usize| {
        let own = || if is_short { short.to_vec() } else { THREADS.to_vec() };
        ascending(if args.threads.is_empty() { own() } else { args.threads.clone() }, most)
    };
    let within = |dir: Option<&Path>| Scratch::new(dir);
    Ok(match name {
        "17" => {
            let producers = threads(&THREADS_SHORT, ring::PRODUCERS_MAX)?;
            let scratch = within(args.dir.as_deref())?;
            let dir = scratch.0.clone();
            let figure = ring::RingFigure { time, rounds, producers, dir };
            Report::Ring(ring::run(&figure, progress).map_err(failed)?)
        }
        "18" => {
            let scratch = within(args.dir.as_deref())?;
            let figure = files::FilesFigure { dir: scratch.0.clone(), time, rounds };
            Report::Files(files::run(&figure, progress).map_err(failed)?)
        }
        "22" => {
            let readers = threads(&READERS_SHORT, table::READERS_MAX)?;
            let figure = table::TableFigure { time, rounds, readers, is_short };
            Report::Table(table::run(&figure, progress).map_err(failed)?)
        }
        name => {
            let scratch = within(args.dir.as_deref())?;
            let dir = scratch.0.clone();
            if let Some(number) = director::Number::from_name(name) {
                let program = own_program()?;
                let figure =
                    director::DirectorFigure { number, program, dir, time, rounds, is_short };
                Report::Director(director::run(&figure, progress).map_err(failed)?)
            } else {
                let number = servers::Number::from_name(name)
                    .ok_or_else(|| Failure::Usage(format!("there is no figure {name}")))?;
                let program = program()?;
                let figure =
                    servers::ServersFigure { number, program, dir, time, rounds, is_short };
                Report::Servers(servers::run(&figure, progress).map_err(failed)?)
            }
        }
    })
}
