//! `outboard bench all`: runs this program once for each measurement.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use outboard_bench::all::{self, Choice, End, Ran, Runner, Sitting, Summary};
use outboard_bench::cpu;
use outboard_bench::dds::net;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Failure, STOPPED, Scratch, failed, own_program, time};

/// What to measure, and where to.
#[derive(Args, Clone, Debug)]
pub(crate) struct AllArgs {
    /// Directory for tables, pictures and README.md, the page of it all; written after each
    /// measurement, so that Ctrl-C keeps what is done
    #[arg(long, value_name = "DIR", required_unless_present = "list")]
    out: Option<PathBuf>,
    /// Print the names of the measurements and their commands, and measure nothing
    #[arg(long)]
    list: bool,
    /// Only the measurement of this name, else those whose name contains it or whose command it is
    /// (several times: any of them); on the page all others stay as they are
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only what this very program has not measured there yet
    #[arg(long)]
    rest: bool,
    /// Few points, one round, short: a look at everything
    #[arg(long)]
    quick: bool,
    /// Seconds for each point, in place of each measurement's own
    #[arg(long)]
    seconds: Option<f64>,
    /// Interleaved rounds, in place of each measurement's own
    #[arg(long)]
    rounds: Option<u32>,
    /// A pool of a Ceph cluster, rados://POOL?conf=PATH: also measure volumes there, each in a new
    /// namespace
    #[arg(long, value_name = "URL")]
    rados: Option<String>,
    /// Directory for the data of all measurements [default: the temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// How long is looked, before each measurement, whether the machine is quiet.
const BEFORE: Duration = Duration::from_secs(1);
/// How long processes of a measurement that ended may take to end.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Measures what is asked for.
pub(crate) fn bench(args: &AllArgs) -> Result<ExitCode, Failure> {
    args.seconds.map(time).transpose()?;
    let choice = Choice {
        only: args.only.clone(),
        rest: args.rest,
        quick: args.quick,
        seconds: args.seconds,
        rounds: args.rounds,
        pool: args.rados.clone(),
        no_networks: net::is_possible().err().map(|error| error.to_string()),
    };
    let chosen = choice.list().map_err(Failure::Usage)?;
    let Some(out) = args.out.as_ref().filter(|_| !args.list) else {
        for one in chosen {
            let command = one.arguments(&choice).join(" ");
            println!("{:<14} {}\n{:<14} outboard bench {command}", one.name, one.title, "");
        }
        return Ok(ExitCode::SUCCESS);
    };
    let out = std::path::absolute(out).map_err(failed)?;
    let scratch = Scratch::new(args.dir.as_deref())?;
    let mut runner = Processes::new(own_program()?, &scratch.0).map_err(failed)?;
    let sitting = Sitting { out: &out, program: measured(), machine: outboard_bench::machine() };
    let said = |line: &str| eprintln!("outboard: {line}");
    let summary = all::run(&sitting, &choice, &mut runner, said).map_err(failed)?;
    Ok(report(&summary, &out))
}

/// Says how it went; the exit code.
fn report(summary: &Summary, out: &Path) -> ExitCode {
    let page = out.join("README.md");
    println!("{} measured, see {}", summary.measured, page.display());
    for (name, why) in &summary.left_out {
        println!("left out: {name}: {why}");
    }
    for (name, why) in &summary.failed {
        println!("FAILED: {name}: {why}");
    }
    if summary.stopped {
        println!("stopped before its end; `--rest` goes on from here");
        return ExitCode::from(STOPPED);
    }
    ExitCode::from(u8::from(!summary.failed.is_empty()))
}

/// Version and commit of the program that is measured, by its own word; of this one, too, if it is
/// another: rivals and the director's parts are in it.
fn measured() -> String {
    let own = format!("outboard {}", crate::version());
    let asked = outboard_bench::programs::outboard()
        .and_then(|program| Command::new(program).arg("--version").output());
    let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let build = if cfg!(debug_assertions) { ", a debug build" } else { "" };
    match said {
        Ok(said) if said == own => said + build,
        Ok(said) => format!("{said}, measured by {own}{build}"),
        Err(_) => format!("none, measured by {own}{build}"),
    }
}

/// The process group of the measurement under way, and whether all is to stop.
#[derive(Default)]
struct Now {
    group: Option<Pid>,
    stopped: bool,
}

/// Runs this program, each time in a process group and with a temporary directory of its own, so
/// that of a measurement that was stopped nothing is left.
struct Processes {
    program: PathBuf,
    scratch: PathBuf,
    now: Arc<Mutex<Now>>,
}

fn lock(now: &Mutex<Now>) -> MutexGuard<'_, Now> {
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Processes {
    fn new(program: PathBuf, scratch: &Path) -> io::Result<Processes> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let now = Arc::<Mutex<Now>>::default();
        let heard = Arc::clone(&now);
        std::thread::Builder::new().name("stop".into()).spawn(move || {
            for _ in signals.forever() {
                let mut now = lock(&heard);
                now.stopped = true;
                // One that has just ended is as good.
                let _ = now.group.map(|group| kill_process_group(group, Signal::TERM));
            }
        })?;
        Ok(Processes { program, scratch: scratch.to_owned(), now })
    }

    /// Starts it, unless all is to stop.
    fn start(&self, mut command: Command) -> io::Result<Option<Child>> {
        let mut now = lock(&self.now);
        if now.stopped {
            return Ok(None);
        }
        let child = command.process_group(0).spawn()?;
        now.group = Some(Pid::from_child(&child));
        Ok(Some(child))
    }
}

impl Runner for Processes {
    fn run(&mut self, arguments: &[String]) -> io::Result<Ran> {
        let [data, table, errors] = ["data", "table", "errors"].map(|n| self.scratch.join(n));
        std::fs::create_dir_all(&data)?;
        let mut command = Command::new(&self.program);
        command.args(arguments).env("TMPDIR", &data).stdin(Stdio::null());
        command.stdout(File::create(&table)?).stderr(File::create(&errors)?);
        let busy = cpu::busy(BEFORE)?;
        let from = Instant::now();
        let Some(mut child) = self.start(command)? else {
            return Ok(Ran { table: String::new(), took: from.elapsed(), busy, end: End::Stopped });
        };
        let status = child.wait()?;
        let took = from.elapsed();
        end_group(Pid::from_child(&child));
        lock(&self.now).group = None;
        remove(&data);
        let end = match () {
            () if status.success() => End::Well,
            () if lock(&self.now).stopped => End::Stopped,
            () => End::Badly(why(status, &std::fs::read_to_string(errors)?)),
        };
        Ok(Ran { table: std::fs::read_to_string(table)?, took, busy, end })
    }
}

/// What a process that failed said last.
fn why(status: ExitStatus, errors: &str) -> String {
    let last = errors.lines().rfind(|line| !line.trim().is_empty());
    last.map_or_else(|| status.to_string(), |line| line.trim_start_matches("outboard: ").to_owned())
}

/// Ends whoever is left of a measurement.
fn end_group(group: Pid) {
    let end = Instant::now() + END_LIMIT;
    while test_kill_process_group(group).is_ok() {
        let signal = if Instant::now() < end { Signal::TERM } else { Signal::KILL };
        if kill_process_group(group, signal).is_err() || signal == Signal::KILL {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Removes what a measurement left; a mount may be on its way out.
fn remove(data: &Path) {
    let end = Instant::now() + END_LIMIT;
    while let Err(error) = std::fs::remove_dir_all(data) {
        if Instant::now() > end {
            return eprintln!("outboard: {} is left behind: {error}", data.display());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use outboard_bench::all::LIST;

    use super::*;

    /// A name on the list that its own program does not understand would fail after an hour.
    #[test]
    fn every_measurement_is_a_command_of_this_program() {
        let pool = Some("rados://pool?conf=/c".to_owned());
        for quick in [false, true] {
            let choice = Choice { quick, pool: pool.clone(), ..Choice::default() };
            for one in LIST {
                let places = one.places(&choice, Path::new("/out"));
                assert_eq!(places.contains(&"--svg".to_owned()), !one.pictures.is_empty());
                let words = [vec!["bench".to_owned()], one.arguments(&choice), places].concat();
                let parsed = crate::Cli::try_parse_from(&words);
                assert!(parsed.is_ok(), "{}: {}", one.name, parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn a_failed_process_says_why_by_its_last_words() {
        use std::os::unix::process::ExitStatusExt;
        let status = ExitStatus::from_raw(1 << 8);
        assert_eq!(why(status, "warning\noutboard: there is no fuse\n\n"), "there is no fuse");
        assert_eq!(why(status, ""), "exit status: 1");
    }
}
