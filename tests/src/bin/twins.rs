//! Two mounts of one volume on one DPU side are one file system, in each cache mode: what was
//! answered on one is what the other shows from then on (`docs/internals/coherence.md`). With
//! `write-back` the kernel collects writes for one of them, and the other keeps nothing.
//!
//! Attributes, names, names that do not exist, listings, sizes and bytes (also through a descriptor
//! opened before) after each single change; a counter that four threads raise by turns under a
//! lock, two on each mount; records that four append; and changes of both in one directory, and on
//! one page, at one moment, which must not wait for one another. What one mount alone uses wakes
//! nobody at the other.

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use outboard_tests::twins::Pair;
use outboard_tests::{Result, Volume, context};

const USAGE: &str = "\
twins [--cache=kernel|hybrid|none|write-back]... [--rounds=N] [--base=DIRECTORY]

  --cache   only these modes [default: each]
  --rounds  changes of each kind [default: 100]
  --base    where the volumes go [default: a new folder in /tmp]
";

fn main() -> ExitCode {
    match run(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("twins: {error}");
            // Not a return: nothing that hangs may keep this process.
            std::process::exit(1)
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let (mut modes, mut rounds) = (Vec::new(), 100);
    let mut base = env::temp_dir().join(format!("outboard-twins-{}", std::process::id()));
    for arg in args {
        let unknown = || format!("unknown argument `{arg}`\n{USAGE}");
        match arg.split_once('=').ok_or_else(unknown)? {
            ("--cache", mode) => modes.push(mode),
            ("--rounds", number) => rounds = number.parse().map_err(|_| unknown())?,
            ("--base", path) => base = PathBuf::from(path),
            _ => return Err(unknown()),
        }
    }
    if modes.is_empty() {
        modes = vec!["kernel", "hybrid", "none", "write-back"];
    }
    for mode in modes {
        let start = Instant::now();
        let place = base.join(mode);
        context(fs::create_dir_all(&place), || format!("cannot make {}", place.display()))?;
        let cache = format!("--cache={mode}");
        let (first, second) = match mode {
            "write-back" => (vec![cache.as_str(), "--shares"], "--cache=none"),
            _ => (vec![cache.as_str()], cache.as_str()),
        };
        let mut volume = Volume::new(&place, &first)?;
        volume.start()?;
        let twin = volume.twin(second)?;
        let pair = Pair { one: volume.mountpoint(), other: twin.mountpoint() };
        let shown = pair
            .all(&twin, rounds)
            .map_err(|error| format!("{mode}: {error}\n{}", volume.log_tail()));
        drop(twin);
        shown?;
        context(volume.check(), || format!("{mode}: fsck while running"))?;
        volume.stop()?;
        println!("{mode:<10}  {rounds} of each  {:>5.1} s", start.elapsed().as_secs_f64());
    }
    context(fs::remove_dir_all(&base), || format!("cannot remove {}", base.display()))
}
