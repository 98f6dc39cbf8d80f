//! Attacks on the processes of a cluster, over its network, in each model of trust: a table of what
//! was seen, any number of drawn ones, and what is no packet at all.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use std::{env, fs};

use outboard_fabric::Key;
use outboard_tests::attacks::{Siege, Trust, capture, noise, print};
use outboard_tests::cluster::Cluster;
use outboard_tests::{Result, context};

const USAGE: &str = "\
usage: attacks [--only=plain|capability|sealed ...] [--tries=N] [--seed=N] [--base=DIRECTORY]

  --only   just these models of trust [default: each]
  --tries  drawn attacks on each, beside the table [default: 2000]
  --seed   repeats those of a run [default: from the clock]
  --base   where clusters go [default: a new folder in /tmp]
";

struct Options {
    only: Vec<Trust>,
    tries: u64,
    seed: u64,
    base: PathBuf,
}

fn main() -> ExitCode {
    let done = Options::parse(env::args().skip(1)).and_then(|options| {
        let done = run(&options);
        match &done {
            Ok(()) => _ = fs::remove_dir_all(&options.base),
            Err(_) => eprintln!("seed {}, logs in {}", options.seed, options.base.display()),
        }
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attacks: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self> {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut options = Self {
            only: Vec::new(),
            tries: 2000,
            seed: clock.map_or(1, |now| now.as_secs()),
            base: env::temp_dir().join(format!("outboard-attacks-{}", std::process::id())),
        };
        for arg in args {
            let unknown = || format!("unknown argument `{arg}`\n{USAGE}");
            let (key, value) = arg.split_once('=').ok_or_else(unknown)?;
            let trust = || Trust::ALL.into_iter().find(|trust| trust.name() == value);
            match key {
                "--only" => options.only.push(trust().ok_or_else(unknown)?),
                "--tries" => options.tries = value.parse().map_err(|_| unknown())?,
                "--seed" => options.seed = value.parse().map_err(|_| unknown())?,
                "--base" => options.base = PathBuf::from(value),
                _ => return Err(unknown()),
            }
        }
        if options.only.is_empty() {
            options.only = Trust::ALL.to_vec();
        }
        Ok(options)
    }
}

fn run(options: &Options) -> Result<()> {
    let mut seen = Vec::new();
    for trust in &options.only {
        let start = Instant::now();
        let dir = options.base.join(trust.name());
        let flag = format!("--trust={}", trust.name());
        let seen_by = dir.with_extension("seen");
        let written = format!("--capture={}", seen_by.display());
        let cluster = Cluster::up_with(&dir, &["--nodes=1", "--port=0", &flag, &written])?;
        let own = context(fs::read_to_string(dir.join("key")), || "the key".to_owned())?;
        let own = Key::parse(&own)?;
        let mut siege = Siege::new(&cluster, &own, *trust, options.seed)?;
        seen.push((*trust, siege.all()?));
        capture(&seen_by.join("node.1.pcap"), cluster.address("node.1")?.1.port())?;
        let reasons = siege.storm(options.tries)?;
        let reasons: Vec<String> = reasons.iter().map(|(why, n)| format!("{why} {n}")).collect();
        println!("{}: {} drawn attacks, no byte written: {}", trust.name(), options.tries, {
            reasons.join(", ")
        });
        // Bytes that are no packet meet the same code in each model.
        if Some(trust) == options.only.last() {
            noise(&cluster, &mut siege, &own, options.seed)?;
        }
        siege.own_policy()?;
        siege.end()?;
        cluster.check()?;
        cluster.down()?;
        println!("{}: {:.1} s", trust.name(), start.elapsed().as_secs_f64());
    }
    print(&seen);
    Ok(())
}
