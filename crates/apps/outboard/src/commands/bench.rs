//! `outboard bench`: runs the measurements of `outboard-bench` and prints them.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use outboard_bench::fs::figure::{Figure, FsFigure};
use outboard_bench::link::{device, figure6};
use outboard_bench::{fs, link, passthrough, scale};
use serde::Serialize;

use crate::cli::Bench;
use crate::exit::Failure;
use crate::watch::{Happened, Watch};

pub(crate) mod dds;

/// Runs one of the benchmarks.
pub(crate) fn bench(what: Bench) -> Result<ExitCode, Failure> {
    match what {
        Bench::Link { json, seconds, rounds, figure: Some(_), price, threads, svg } => {
            let figure = figure6::Figure6 {
                time: time(seconds)?,
                rounds,
                threads: ascending(threads, figure6::THREADS_MAX)?,
                price: price_of(&price)?,
                program: this_program()?,
            };
            let report = figure6::run(&figure, progress).map_err(failed)?;
            write_svg(svg.as_deref(), || report.svg())?;
            print(json, &report, || report.table())
        }
        Bench::Link { json, seconds, rounds, figure: None, .. } => {
            let dir = Scratch::new(None)?;
            let bench = link::LinkBench {
                time: time(seconds)?,
                rounds,
                program: this_program()?,
                dir: dir.0.clone(),
            };
            let report = link::run(&bench, progress).map_err(failed)?;
            print(json, &report, || report.table())
        }
        Bench::Fs {
            json,
            seconds,
            rounds,
            dir,
            figure: Some(name),
            read_delay,
            threads,
            file_size,
            svg,
            ..
        } => {
            let figure = Figure::from_name(&name)
                .ok_or_else(|| Failure::usage(format!("there is no figure {name}")))?;
            let threads = if threads.is_empty() { figure.threads().to_vec() } else { threads };
            let dir = Scratch::new(dir.as_deref())?;
            let figure = FsFigure {
                figure,
                dir: dir.0.clone(),
                time: time(seconds.unwrap_or(0.5))?,
                rounds,
                threads: ascending(threads, figure6::THREADS_MAX)?,
                file_len: file_size << 20,
                read_delay: Duration::from_micros(read_delay.into()),
                program: this_program()?,
            };
            let report = fs::figure::run(&figure, progress).map_err(failed)?;
            write_svg(svg.as_deref(), || report.svg())?;
            print(json, &report, || report.table())
        }
        Bench::Fs { json, seconds, rounds, dir, only, store, check, figure: None, .. } => {
            let dir = Scratch::new(dir.as_deref())?;
            let bench = fs::FsBench {
                dir: dir.0.clone(),
                time: time(seconds.unwrap_or(2.0))?,
                rounds,
                only,
                program: this_program()?,
                stores: store,
            };
            let report = fs::run(&bench, progress).map_err(failed)?;
            let code = print(json, &report, || report.table())?;
            if check {
                report.check().map_err(Failure::internal)?;
            }
            Ok(code)
        }
        Bench::Rados { json, rounds, mebibytes, dir, store } => {
            let dir = Scratch::new(dir.as_deref())?;
            let store = store.parse();
            let store = store.map_err(|error| Failure::usage(format!("--store {error}")))?;
            let program = this_program()?;
            let dir = dir.0.clone();
            let bench = fs::engine::EngineBench { dir, rounds, mebibytes, program, store };
            let report = fs::engine::run(&bench, progress).map_err(failed)?;
            print(json, &report, || report.table())
        }
        Bench::Compress { json, rounds, mebibytes, dir } => {
            let dir = Scratch::new(dir.as_deref())?;
            let (program, dir) = (this_program()?, dir.0.clone());
            let bench = fs::compress::CompressBench { dir, rounds, mebibytes, program };
            let report = fs::compress::run(&bench, progress).map_err(failed)?;
            print(json, &report, || report.table())
        }
        Bench::Dds(args) => dds::bench(&args),
        Bench::DdsPart(part) => dds::part(&part),
        Bench::Scale { json, files, dir } => {
            let points = scale::run(&dir, &files, progress).map_err(failed)?;
            print(json, &points, || scale::table(&points))
        }
        Bench::Passthrough { source, mountpoint } => passthrough(&source, &mountpoint),
        Bench::NullDevice { system, queues, depth, io, workers, price } => {
            let system = device::System::from_name(&system)
                .ok_or_else(|| Failure::usage(format!("there is no transport {system}")))?;
            let price = price_of(&price)?;
            let shape = device::Shape { system, queues, depth, io, workers, price };
            device::serve(&shape).map_err(failed)?;
            Ok(ExitCode::SUCCESS)
        }
        Bench::PingPongPeer { how } => {
            link::peer(how == "futex").map_err(failed)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn write_svg(file: Option<&Path>, svg: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(file, svg())
        .map_err(|error| Failure::internal(format!("cannot write {}: {error}", file.display())))
}

fn price_of(name: &str) -> Result<device::NamedPrice, Failure> {
    device::NamedPrice::from_name(name)
        .ok_or_else(|| Failure::usage(format!("there is no price {name}")))
}

fn ascending(mut threads: Vec<usize>, most: usize) -> Result<Vec<usize>, Failure> {
    threads.sort_unstable();
    threads.dedup();
    let fits = |threads: &usize| (1..=most).contains(threads);
    if threads.is_empty() || !threads.iter().all(fits) {
        return Err(Failure::usage(format!("--threads takes numbers from 1 to {most}")));
    }
    Ok(threads)
}

fn failed(error: std::io::Error) -> Failure {
    Failure::internal(format!("the benchmark stopped: {error}"))
}

fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::internal(format!("cannot find this program: {error}")))
}

fn time(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| Failure::usage(format!("--seconds {seconds} is not a length of time")))
}

/// One line that rewrites itself, for people only.
fn progress(what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{what}");
    }
}

fn print<T: Serialize>(
    json: bool,
    report: &T,
    table: impl FnOnce() -> String,
) -> Result<ExitCode, Failure> {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    if json {
        let text = serde_json::to_string_pretty(report)
            .map_err(|error| Failure::internal(format!("the report does not print: {error}")))?;
        println!("{text}");
    } else {
        print!("{}", table());
    }
    Ok(ExitCode::SUCCESS)
}

/// A directory of the benchmark's own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(within: Option<&Path>) -> Result<Scratch, Failure> {
        let within = within.map_or_else(std::env::temp_dir, Path::to_owned);
        let dir = within.join(format!("outboard-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|error| {
            Failure::usage(format!("cannot use {} for the data: {error}", dir.display()))
        })?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("outboard: {} is left behind: {error}", self.0.display());
        }
    }
}

/// Mounts the rival and stays until told to end.
fn passthrough(source: &Path, mountpoint: &Path) -> Result<ExitCode, Failure> {
    let mut watch = Watch::new()?;
    let options = passthrough::Options::default();
    let mounted = passthrough::mount(source, mountpoint, &options).map_err(failed)?;
    while watch.next(Duration::from_secs(3600))? != Happened::Told {}
    mounted.unmount().map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}
