//! The commands: what each is told, one function a case, and what they share.

pub(crate) mod all;
pub(crate) mod apps;
pub(crate) mod dds;
pub(crate) mod dfs;
pub(crate) mod erasure;
pub(crate) mod fs;
pub(crate) mod link;
pub(crate) mod netdfs;

use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use outboard_bench::verdict::{self, Verdict};
use outboard_bench::{passthrough, scale};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    /// Every measurement of a list, one after the other: tables, pictures and a page of it all
    All(all::AllArgs),
    /// Round trips through the link against bare shared memory and a bare futex; DMAs per operation
    Link(link::LinkArgs),
    /// File operations on a mounted volume, a plain directory and a plain FUSE passthrough, in turn
    Fs(fs::FsArgs),
    /// Applications on the same, and on plain FUSE with the kernel's write-back, until all they
    /// wrote is durable
    Apps(apps::AppsArgs),
    /// Sequential reads and writes of a volume in a Ceph pool against the pool's own `rados bench`
    Rados(fs::RadosArgs),
    /// The page server's parts and their rivals: figures of the DDS paper
    Dds(dds::DdsArgs),
    /// A process that `dds` measures
    #[command(hide = true)]
    DdsPart(dds::PartArgs),
    /// Clients of a shared volume, on the DPU side and in the mount's process: a figure of the DPC
    /// paper
    Dfs(dfs::DfsArgs),
    /// Shared volumes: requests to a node by who checks them, handlers, the whole way of a write
    Netdfs(netdfs::NetdfsArgs),
    /// A node that `netdfs` measures
    #[command(hide = true)]
    NetdfsNode(netdfs::NodeArgs),
    /// A volume that compresses against one that does not, by kind of data: space, bytes to the
    /// medium, rates, CPU of the DPU side
    Compress(fs::CompressArgs),
    /// The erasure code of shared volumes by tables, by shuffles and by ISA-L
    Erasure(erasure::ErasureArgs),
    /// Metadata operations in a directory that grows from a thousand to a million files
    Scale(ScaleArgs),
    /// The rival of `fs`: a plain FUSE passthrough of a directory, mounted until SIGTERM
    #[command(hide = true)]
    Passthrough(PassthroughArgs),
    /// The DPU side of `link --figure 6`; region and registers are its standard input and output
    #[command(hide = true)]
    NullDevice(link::DeviceArgs),
    /// The rivals' other process of `link`; the shared memory is its standard input
    #[command(hide = true)]
    PingPongPeer {
        /// `spin` or `futex`
        how: String,
    },
}

/// What to measure of directories.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScaleArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Numbers of files at which to measure, ascending
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 1_000_000])]
    files: Vec<u64>,
    /// A directory to fill, of the file system to measure [default: one in a volume that is
    /// mounted for it]
    dir: Option<PathBuf>,
}

/// A mount of the rival.
#[derive(Args, Clone, Debug)]
pub(crate) struct PassthroughArgs {
    /// Let the kernel collect what is written in its page cache
    #[arg(long)]
    write_back: bool,
    /// Shown at the mount point
    source: PathBuf,
    /// An existing directory
    mountpoint: PathBuf,
}

/// Why a benchmark stops: what happened and what to do about it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line asks for what there is not.
    Usage(String),
    /// Something failed at run time.
    Failed(String),
}

impl Failure {
    /// Prints the message; the exit code, which is the program's of the same case.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("outboard: {self}");
        ExitCode::from(match self {
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(message) | Failure::Failed(message) => f.write_str(message),
        }
    }
}

/// Runs one of the benchmarks, or a process of one.
pub(crate) fn run(what: Bench) -> Result<ExitCode, Failure> {
    match what {
        Bench::All(args) => all::bench(&args),
        Bench::Link(args) => link::bench(args),
        Bench::Fs(args) => fs::bench(args),
        Bench::Apps(args) => apps::bench(args),
        Bench::Rados(args) => fs::rados(&args),
        Bench::Dfs(args) => dfs::bench(&args),
        Bench::Compress(args) => fs::compress(&args),
        Bench::Dds(args) => dds::bench(&args),
        Bench::DdsPart(part) => dds::part(&part),
        Bench::Erasure(args) => erasure::bench(&args),
        Bench::Netdfs(args) => netdfs::bench(&args),
        Bench::NetdfsNode(args) => netdfs::node(args),
        Bench::Scale(args) => scale(&args),
        Bench::Passthrough(args) => serve_passthrough(&args),
        Bench::NullDevice(args) => link::device(&args),
        Bench::PingPongPeer { how } => {
            outboard_bench::link::peer(how == "futex").map_err(failed)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn scale(args: &ScaleArgs) -> Result<ExitCode, Failure> {
    let fill = |dir: &Path| scale::run(dir, &args.files, progress);
    let points = match &args.dir {
        Some(dir) => fill(dir),
        None => outboard_bench::fs::in_a_volume(&Scratch::new(None)?.0, &program()?, fill),
    };
    let points = points.map_err(failed)?;
    print(args.json, &points, || with_targets(scale::table(&points), &scale::verdicts(&points)))
}

/// A table, and below it how it stands with what is asked.
fn with_targets(table: String, verdicts: &[Verdict]) -> String {
    table + &verdict::lines(verdicts)
}

/// Mounts the rival and stays until told to end.
fn serve_passthrough(args: &PassthroughArgs) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let options =
        passthrough::Options { write_back: args.write_back, ..passthrough::Options::default() };
    let mounted = passthrough::mount(&args.source, &args.mountpoint, &options).map_err(failed)?;
    signals.forever().next();
    mounted.unmount().map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// This program.
fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))
}

/// The program that is measured.
fn program() -> Result<PathBuf, Failure> {
    outboard_bench::programs::outboard().map_err(|error| Failure::Failed(error.to_string()))
}

fn write_svg(file: Option<&Path>, svg: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(file, svg())
        .map_err(|error| Failure::Failed(format!("cannot write {}: {error}", file.display())))
}

fn ascending(mut threads: Vec<usize>, most: usize) -> Result<Vec<usize>, Failure> {
    threads.sort_unstable();
    threads.dedup();
    let fits = |threads: &usize| (1..=most).contains(threads);
    if threads.is_empty() || !threads.iter().all(fits) {
        return Err(Failure::Usage(format!("--threads takes numbers from 1 to {most}")));
    }
    Ok(threads)
}

fn failed(error: std::io::Error) -> Failure {
    Failure::Failed(format!("the benchmark stopped: {error}"))
}

fn time(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| Failure::Usage(format!("--seconds {seconds} is not a length of time")))
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
            .map_err(|error| Failure::Failed(format!("the report does not print: {error}")))?;
        println!("{text}");
    } else {
        print!("{}", table());
    }
    Ok(ExitCode::SUCCESS)
}

/// After a signal that is asked for by Ctrl-C.
const STOPPED: u8 = 130;

/// A directory of the benchmark's own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(within: Option<&Path>) -> Result<Scratch, Failure> {
        let within = within.map_or_else(std::env::temp_dir, Path::to_owned);
        let dir = within.join(format!("outboard-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir).map_err(|error| {
            Failure::Usage(format!("cannot use {} for the data: {error}", dir.display()))
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
