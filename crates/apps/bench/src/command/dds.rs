//! `outboard bench dds`: the page server's figures, and how its targets stand.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use outboard_bench::dds::{director, files, part, ring, servers, table, targets};
use outboard_bench::verdict::Verdict;
use outboard_pageserver::tcp::stack::network::Network;
use serde::Serialize;

use super::{
    Failure, Scratch, ascending, failed, own_program, print, program, progress, time, with_targets,
    write_svg,
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
    #[arg(long, value_name = "N",
        value_parser = ["14", "15", "17", "18", "19", "21", "22", "23", "24", "25", "26"])]
    figure: String,
    /// At fewer points, and shorter: for a look
    #[arg(long)]
    quick: bool,
    /// 19: between two network devices, as root: clients, the director and the host each in a
    /// network namespace of its own, and the director over the user-space stack besides
    #[arg(long)]
    net: bool,
    /// Directory for the data of servers; without it one in the temporary directory
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Fail unless the host sleeps while reads are offloaded (14, 15, 24, 25, 26)
    #[arg(long)]
    check: bool,
    /// Seconds for each measurement [default: 0.3, with --quick 0.1]
    #[arg(long)]
    seconds: Option<f64>,
    /// Interleaved rounds; medians are reported
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Numbers of threads (17, 22) [default: 1,2,4,8,16,32,64, with --quick fewer]
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// Also write the figure to this file, as SVG; to `figure-N.svg` in a directory, and so what
    /// the same measurement draws besides (14 and 15, 25 and 26)
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
    /// Where data lies
    #[arg(long)]
    dir: PathBuf,
    /// Where the host of a director listens
    #[arg(long, default_value = "")]
    host: String,
    /// Two network devices that a director stands between
    #[arg(long)]
    net: Option<Network>,
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
/// Runs one of the processes until it is ended.
pub(crate) fn part(args: &PartArgs) -> Result<ExitCode, Failure> {
    let kind = part::Kind::from_name(&args.kind)
        .ok_or_else(|| Failure::Usage(format!("there is no part {}", args.kind)))?;
    let part = part::Part {
        kind,
        listen: args.listen.clone(),
        dir: args.dir.clone(),
        host: args.host.clone(),
        net: args.net.clone(),
        workers: args.workers,
        bytes: args.bytes,
        copies: args.copies,
    };
    part::serve(&part).map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures a figure, and draws it: into a directory also what the same measurement draws besides.
pub(crate) fn bench(args: &DdsArgs) -> Result<ExitCode, Failure> {
    let name = args.figure.as_str();
    if args.net && name != "19" {
        return Err(Failure::Usage("--net is for --figure 19".to_owned()));
    }
    let report = measure(args, name)?;
    match &args.svg {
        Some(dir) if dir.is_dir() => {
            for name in Report::drawn_with(name) {
                let file =
                    dir.join(format!("figure-{name}{}.svg", if args.net { "-net" } else { "" }));
                write_svg(Some(&file), || report.svg(name))?;
            }
        }
        file => write_svg(file.as_deref(), || report.svg(name))?,
    }
    let text = || with_targets(report.table(), &report.verdicts());
    let code = print(args.json, &report, text)?;
    if args.check {
        report.check().map_err(Failure::Failed)?;
    }
    Ok(code)
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
    fn drawn_with(name: &str) -> Vec<&str> {
        match name {
            "14" | "15" => vec!["14", "15"],
            "25" | "26" => vec!["25", "26"],
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

    fn verdicts(&self) -> Vec<Verdict> {
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
    let (rounds, is_short) = (args.rounds, args.quick);
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
                let (program, net) = (own_program()?, args.net);
                let figure =
                    director::DirectorFigure { number, net, program, dir, time, rounds, is_short };
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
