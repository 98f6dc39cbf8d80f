//! `conformance`: runs the suite through a front and prints what failed.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use outboard_conformance::front::directory::DirectoryFront;
use outboard_conformance::front::in_process::InProcessFront;
use outboard_conformance::front::link::LinkFront;
use outboard_conformance::model::Effort;
use outboard_conformance::{Front, cases, runner};

const HELP: &str = "\
Runs the conformance suite.

Usage: conformance --front FRONT [--filter TEXT] [--verify-each]
       conformance --front FRONT --model [--sequences N] [--steps N] [--seed N]
       conformance --list [--filter TEXT]

--model tries random sequences of operations against a simple reference and shrinks what fails.

FRONT is one of
  inprocess   KVFS in this process, over engines in memory
  replay      the same, every change asked for twice: the second answer counts
  link        KVFS behind queue pairs in memory, both sides in one thread
  loss        the same, the DPU side dying and returning in the middle of calls
  cached      as link, with a small hybrid cache
  cached-loss as loss, with a small hybrid cache
  packed      as inprocess, blocks of file packed (`--compress lz4`)
  packed-loss as cached-loss, likewise
  dir:DIR     any directory (of ext4, say): system calls against a local file system
  mount:DIR   a directory on a mount of Outboard
  hybrid:DIR  the same, of a mount with `--cache hybrid`
  shared:DIR  the same, of a mount of a shared volume
  write-back:DIR  of one with `--cache write-back`
";

fn main() -> ExitCode {
    match try_main() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            eprintln!("conformance: {message}");
            ExitCode::from(2)
        }
    }
}

fn try_main() -> Result<bool, String> {
    let (mut effort, mut model) = (Effort::default(), false);
    let (mut front, mut filter, mut list, mut each) = (None, String::new(), false, false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value; see --help"));
        match arg.as_str() {
            "--front" => front = Some(value()?),
            "--filter" => filter = value()?,
            "--list" => list = true,
            "--verify-each" => each = true,
            "--model" => model = true,
            "--sequences" => effort.sequences = number(&value()?)?,
            "--steps" => effort.steps = number(&value()?)?,
            "--seed" => effort.seed = number(&value()?)?,
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(true);
            }
            other => return Err(format!("unknown argument {other}; see --help")),
        }
    }
    if list {
        for case in cases().iter().filter(|case| case.name.contains(&filter)) {
            println!("{}", case.name);
        }
        return Ok(true);
    }
    let name = front.ok_or("say which front: --front FRONT; see --help")?;
    let mut front = open(&name)?;
    if model {
        let name = &front.features().name;
        println!(
            "{name}: {} sequences of {} steps, seed {}",
            effort.sequences, effort.steps, effort.seed
        );
        return match outboard_conformance::model::run(front.as_mut(), effort) {
            Ok(()) => Ok(true),
            Err(why) => {
                println!("FAIL  {why}");
                Ok(false)
            }
        };
    }
    let report = runner::run(front.as_mut(), &filter, each, &mut std::io::stdout())
        .map_err(|error| format!("cannot write the report: {error}"))?;
    Ok(report.failed.is_empty())
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number that fits; see --help"))
}

fn open(name: &str) -> Result<Box<dyn Front>, String> {
    let directory = |path: &str, outboard| {
        let front = DirectoryFront::new(Path::new(path), outboard);
        front.map_err(|errno| format!("cannot open the directory {path}: {errno}"))
    };
    match name {
        "inprocess" | "replay" => return Ok(Box::new(InProcessFront::new(name == "replay")?)),
        "packed" => return Ok(Box::new(InProcessFront::packed()?)),
        "packed-loss" => return Ok(Box::new(LinkFront::packed()?)),
        "link" | "loss" => return Ok(Box::new(LinkFront::new(name == "loss")?)),
        "cached" | "cached-loss" => {
            return Ok(Box::new(LinkFront::cached(name == "cached-loss")?));
        }
        _ => {}
    }
    match name.split_once(':') {
        Some(("dir", path)) => Ok(Box::new(directory(path, false)?)),
        Some(("mount", path)) => Ok(Box::new(directory(path, true)?)),
        Some(("write-back", path)) => Ok(Box::new(directory(path, true)?.with_write_back())),
        Some(("hybrid" | "shared", path)) => {
            Ok(Box::new(directory(path, true)?.with_unseen_reads()))
        }
        _ => Err(format!("no front is called {name}; see --help")),
    }
}
