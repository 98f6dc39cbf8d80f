//! `gate` and `test`: tables of named stages, run from cheap to expensive.
//!
//! Every stage runs even when an earlier one failed, unless nothing after it can be trusted; the
//! summary at the end names each stage, its verdict and its time. A check that a machine cannot run
//! appends a line `name: reason` to the file named by `OUTBOARD_SKIPS`. Skips are counted in the
//! summary; in CI a skip that `tests/allowed-skips.txt` does not list fails the run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::project::Project;

const ALLOWED_SKIPS: &str = "tests/allowed-skips.txt";

/// What a stage does.
enum Action {
    /// The house rules, in this process.
    Rules,
    /// A command, with the limit after which it is ended.
    Command(&'static [&'static str], Duration),
}

struct Stage {
    name: &'static str,
    proves: &'static str,
    action: Action,
    /// The later stages mean nothing when this one fails.
    needed: bool,
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

const FORMAT: Stage = Stage {
    name: "format",
    proves: "every file is formatted",
    action: Action::Command(&["cargo", "fmt", "--all", "--check"], minutes(2)),
    needed: false,
};
const RULES: Stage = Stage {
    name: "rules",
    proves: "floors, unsafe folders, purity, tidiness, specification",
    action: Action::Rules,
    needed: false,
};
const CLIPPY: Stage = Stage {
    name: "clippy",
    proves: "no warning of the compiler or of clippy",
    action: Action::Command(
        &["cargo", "clippy", "--workspace", "--all-targets", "--quiet", "--", "-Dwarnings"],
        minutes(15),
    ),
    needed: false,
};

const GATE: &[Stage] = &[FORMAT, RULES, CLIPPY];

const TEST: &[Stage] = &[
    FORMAT,
    RULES,
    CLIPPY,
    Stage {
        name: "tests",
        proves: "unit, property, model and conformance tests of every crate",
        action: Action::Command(
            &["cargo", "test", "--workspace", "--profile=test-fast", "--quiet", "--no-fail-fast"],
            minutes(35),
        ),
        needed: false,
    },
    Stage {
        name: "loom",
        proves: "no wake-up is lost in any interleaving of both ends of a queue",
        action: Action::Command(
            &[
                "env",
                "RUSTFLAGS=--cfg loom",
                "cargo",
                "test",
                "--profile=test-fast",
                "--quiet",
                "--target-dir",
                "target/loom",
                "--package=outboard-link",
                "--test=loom",
            ],
            minutes(10),
        ),
        needed: false,
    },
    Stage {
        name: "docs",
        proves: "the API documentation builds and its links resolve",
        action: Action::Command(
            &["cargo", "doc", "--workspace", "--no-deps", "--quiet", "--document-private-items"],
            minutes(10),
        ),
        needed: false,
    },
    Stage {
        name: "build",
        proves: "the program and the test programs build",
        action: Action::Command(
            &["cargo", "build", "--workspace", "--bins", "--lib", "--profile=test-fast", "--quiet"],
            minutes(15),
        ),
        needed: true,
    },
    Stage {
        name: "programs",
        proves: "real programs and public suites work on a mounted volume, fsck after each",
        action: Action::Command(&["target/test-fast/programs", "--size=small"], minutes(25)),
        needed: false,
    },
    Stage {
        name: "preload",
        proves: "unmodified programs work past the kernel, and losses of either side are survived",
        action: Action::Command(&["target/test-fast/preload"], minutes(10)),
        needed: false,
    },
    Stage {
        name: "preloaded",
        proves: "real programs work on a volume with liboutboard_preload.so in every process",
        action: Action::Command(
            &[
                "target/test-fast/programs",
                "--size=small",
                "--preload",
                "--only=append",
                "--only=attributes",
                "--only=coreutils",
                "--only=fio",
                "--only=leveldb",
                "--only=links",
                "--only=locks",
                "--only=python",
                "--only=rsync",
                "--only=sparse",
                "--only=sqlite",
                "--only=tar",
            ],
            minutes(25),
        ),
        needed: false,
    },
    Stage {
        name: "hybrid",
        proves: "real programs and the conformance suite work through the hybrid cache",
        action: Action::Command(
            &[
                "target/test-fast/programs",
                "--size=small",
                "--cache=hybrid",
                "--only=append",
                "--only=conformance",
                "--only=fio",
                "--only=fsx",
                "--only=python",
                "--only=sparse",
                "--only=sqlite",
            ],
            minutes(25),
        ),
        needed: false,
    },
    Stage {
        name: "uncached",
        proves: "the conformance suite passes on a mount that caches no data",
        action: Action::Command(
            &[
                "target/test-fast/programs",
                "--size=small",
                "--cache=none",
                "--only=conformance",
                "--only=sparse",
            ],
            minutes(10),
        ),
        needed: false,
    },
    Stage {
        name: "user",
        proves: "a plain user mounts through fusermount3 and works there",
        action: Action::Command(
            &[
                "scripts/as-user",
                "target/test-fast",
                "--only=git-clone",
                "--only=locks",
                "--only=sqlite",
                "--only=links",
                "--only=attributes",
                "--only=sparse",
            ],
            minutes(10),
        ),
        needed: false,
    },
    Stage {
        name: "edges",
        proves: "full, corrupted, misused, read-only and idle volumes",
        action: Action::Command(&["target/test-fast/edges"], minutes(10)),
        needed: false,
    },
    Stage {
        name: "kill",
        proves: "kill -9 of either side or both loses nothing answered and repeats nothing",
        action: Action::Command(&["target/test-fast/kill", "--rounds=10"], minutes(10)),
        needed: false,
    },
    Stage {
        name: "kill-redb",
        proves: "the same of a volume in the second engine",
        action: Action::Command(
            &["env", "OUTBOARD_STORE=redb", "target/test-fast/kill", "--rounds=4"],
            minutes(10),
        ),
        needed: false,
    },
    Stage {
        name: "coherence",
        proves: "processes killed at random, by every way to a volume, see one file",
        action: Action::Command(
            &["target/test-fast/coherence", "--rounds=8", "--flag=--replace=clock"],
            minutes(10),
        ),
        needed: false,
    },
    Stage {
        name: "rados",
        proves: "volumes in a pool of a Ceph cluster of our own, its daemons killed and paused",
        action: Action::Command(
            &[
                "scripts/test-rados",
                "target/test-fast",
                "test-fast",
                "--kills=2",
                "--programs=sqlite",
            ],
            minutes(45),
        ),
        needed: false,
    },
    Stage {
        name: "bench-link",
        proves: "the measurement of the link runs to its end",
        action: Action::Command(
            &["target/test-fast/outboard", "bench", "link", "--seconds=0.2", "--rounds=1"],
            minutes(3),
        ),
        needed: false,
    },
    Stage {
        name: "bench-figure-6",
        proves: "nvme-fs and virtio-fs are measured side by side, at the price of a bus",
        action: Action::Command(
            &[
                "target/test-fast/outboard",
                "bench",
                "link",
                "--figure=6",
                "--price=pcie3x16",
                "--threads=1,4",
                "--seconds=0.1",
                "--rounds=1",
            ],
            minutes(3),
        ),
        needed: false,
    },
    Stage {
        name: "bench-dds",
        proves: "the key-value server is measured in every form, its host asleep under cold reads",
        action: Action::Command(
            &[
                "target/test-fast/outboard",
                "bench",
                "dds",
                "--figure=14",
                "--seconds=0.05",
                "--rounds=1",
                "--check",
            ],
            minutes(3),
        ),
        needed: false,
    },
    Stage {
        name: "bench-fs",
        proves: "the file system is measured with every rival, and all CPU time is accounted for",
        action: Action::Command(
            &["target/test-fast/outboard", "bench", "fs", "--seconds=0.2", "--rounds=1", "--check"],
            minutes(5),
        ),
        needed: false,
    },
];

/// The stages that `long` runs at full size.
const LONG: &[Stage] = &[
    Stage {
        name: "tests",
        proves: "every crate's tests, with hundreds of seeds, kills and cuts of power",
        action: Action::Command(
            &[
                "env",
                "OUTBOARD_SEEDS=300",
                "OUTBOARD_KILLS=300",
                "MODEL_SEQUENCES=2000",
                "PROPTEST_CASES=5000",
                "cargo",
                "test",
                "--workspace",
                "--profile=test-fast",
                "--quiet",
                "--no-fail-fast",
            ],
            minutes(240),
        ),
        needed: false,
    },
    Stage {
        name: "loom",
        proves: "every interleaving of a queue's ends, of a cache's users and of a table's",
        action: Action::Command(
            &[
                "env",
                "RUSTFLAGS=--cfg loom",
                "cargo",
                "test",
                "--profile=test-fast",
                "--quiet",
                "--target-dir",
                "target/loom",
                "--package=outboard-link",
                "--package=outboard-cache",
                "--package=outboard-dds",
                "--test=loom",
            ],
            minutes(120),
        ),
        needed: false,
    },
    Stage {
        name: "deny",
        proves: "dependencies pass `cargo deny`, where that is installed",
        action: Action::Command(
            &[
                "sh",
                "-c",
                "if command -v cargo-deny >/dev/null; \
                 then cargo deny check licenses bans sources; \
                 else echo 'cargo-deny: not installed; licences are checked by cargo x' \
                 >>\"$OUTBOARD_SKIPS\"; fi",
            ],
            minutes(10),
        ),
        needed: false,
    },
    Stage {
        name: "programs",
        proves: "real programs and public suites at full size",
        action: Action::Command(&["target/test-fast/programs", "--size=full"], minutes(600)),
        needed: false,
    },
    Stage {
        name: "kill",
        proves: "two hundred kills",
        action: Action::Command(&["target/test-fast/kill", "--rounds=200"], minutes(240)),
        needed: false,
    },
    Stage {
        name: "kill-redb",
        proves: "forty of them on a volume in the second engine",
        action: Action::Command(
            &["env", "OUTBOARD_STORE=redb", "target/test-fast/kill", "--rounds=40"],
            minutes(60),
        ),
        needed: false,
    },
    Stage {
        name: "coherence",
        proves: "two hundred rounds of kills of sides and processes that share files",
        action: Action::Command(&["target/test-fast/coherence", "--rounds=200"], minutes(120)),
        needed: false,
    },
    Stage {
        name: "rados",
        proves: "the same in a pool: git, fio and sqlite3 on a mount, and more kills",
        action: Action::Command(
            &["scripts/test-rados", "target/test-fast", "test-fast", "--kills=40", "--suite=whole"],
            minutes(60),
        ),
        needed: false,
    },
    Stage {
        name: "ycsb",
        proves: "YCSB's client, unmodified, runs its workloads against the key-value server",
        action: Action::Command(
            &[
                "sh",
                "-c",
                "scripts/setup bench && scripts/ycsb target/test-fast/outboard 300000 300000",
            ],
            minutes(60),
        ),
        needed: false,
    },
];

/// What a change must pass before it is committed.
pub(crate) fn gate(project: &Project) -> Result<bool, String> {
    let stages: Vec<&Stage> = GATE.iter().collect();
    run(project, &stages)
}

/// Everything CI runs, with the long stages at full size.
pub(crate) fn long(project: &Project) -> Result<bool, String> {
    let long = |stage: &&Stage| LONG.iter().any(|long| long.name == stage.name);
    let short = TEST.iter().filter(|stage| !long(stage));
    let stages: Vec<&Stage> = short.chain(LONG).collect();
    run(project, &stages)
}

/// Everything CI runs.
pub(crate) fn test(project: &Project, args: &[String]) -> Result<bool, String> {
    let selected = |pick: &dyn Fn(usize) -> bool| -> Vec<&Stage> {
        TEST.iter().enumerate().filter(|(at, _)| pick(*at)).map(|(_, stage)| stage).collect()
    };
    let position = |name: &str| {
        let at = TEST.iter().position(|stage| stage.name == name);
        at.ok_or_else(|| format!("no stage `{name}`; `cargo x test --help` lists them"))
    };
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => run(project, &selected(&|_| true)),
        ["--from", name] => {
            let from = position(name)?;
            run(project, &selected(&|at| at >= from))
        }
        ["--only", name] => {
            let only = position(name)?;
            run(project, &selected(&|at| at == only))
        }
        _ => {
            println!("cargo x test [--from STAGE | --only STAGE]\n");
            for stage in TEST {
                println!("{:<10} {}", stage.name, stage.proves);
            }
            Ok(true)
        }
    }
}

/// How one stage ended.
struct Outcome {
    name: &'static str,
    verdict: Result<(), String>,
    took: Duration,
}

fn run(project: &Project, stages: &[&Stage]) -> Result<bool, String> {
    let skips = SkipFile::create(project)?;
    let mut outcomes = Vec::new();
    for stage in stages {
        println!("\n==> {}: {}", stage.name, stage.proves);
        let start = Instant::now();
        let verdict = run_stage(project, stage, &skips.path);
        let stop = verdict.is_err() && stage.needed;
        outcomes.push(Outcome { name: stage.name, verdict, took: start.elapsed() });
        if stop {
            println!("the stages after `{}` need it and were not run", stage.name);
            break;
        }
    }
    let ran_all = outcomes.len() == stages.len();
    Ok(summarize(&outcomes) & skips.judge(project) & ran_all)
}

fn run_stage(project: &Project, stage: &Stage, skips: &Path) -> Result<(), String> {
    match stage.action {
        Action::Rules => {
            if crate::run_checks(project) {
                Ok(())
            } else {
                Err("a house rule is broken".into())
            }
        }
        Action::Command(words, limit) => run_command(project, words, limit, skips),
    }
}

/// Runs a command under `timeout`, which ends its whole process group at the limit. Words that
/// start with `target/` lead to where cargo builds.
fn run_command(
    project: &Project,
    words: &[&str],
    limit: Duration,
    skips: &Path,
) -> Result<(), String> {
    let placed = words.iter().map(|word| match word.strip_prefix("target/") {
        Some(rest) => project.target.join(rest).into_os_string(),
        None => word.into(),
    });
    let status = Command::new("timeout")
        .arg("--kill-after=20")
        .arg(limit.as_secs().to_string())
        .args(placed)
        .current_dir(&project.root)
        .env("OUTBOARD_SKIPS", skips)
        .env("RUSTDOCFLAGS", "-Dwarnings")
        .status()
        .map_err(|error| format!("cannot run `timeout` (package coreutils): {error}"))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(124 | 137) => Err(format!("not done within {} minutes", limit.as_secs() / 60)),
        Some(code) => Err(format!("`{}` ended with {code}", words.join(" "))),
        None => Err(format!("`{}` was ended by a signal", words.join(" "))),
    }
}

fn summarize(outcomes: &[Outcome]) -> bool {
    println!("\nsummary");
    for Outcome { name, verdict, took } in outcomes {
        let seconds = took.as_secs_f64();
        match verdict {
            Ok(()) => println!("  {name:<10} ok      {seconds:>7.1} s"),
            Err(reason) => println!("  {name:<10} FAILED  {seconds:>7.1} s  {reason}"),
        }
    }
    outcomes.iter().all(|outcome| outcome.verdict.is_ok())
}

/// The file to which the checks of this run append what they had to skip.
struct SkipFile {
    path: PathBuf,
}

impl SkipFile {
    fn create(project: &Project) -> Result<Self, String> {
        let folder = &project.target;
        let path = folder.join("skips.txt");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, ""))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self { path })
    }

    /// Prints the skips; false when CI skipped what it should run.
    fn judge(&self, project: &Project) -> bool {
        let skipped = fs::read_to_string(&self.path).unwrap_or_default();
        let allowed = project.read(Path::new(ALLOWED_SKIPS)).unwrap_or_default();
        let in_ci = std::env::var_os("CI").is_some_and(|value| value != "false");
        let mut clean = true;
        for line in skipped.lines() {
            let faulty = in_ci && !is_allowed(line, &allowed);
            clean &= !faulty;
            println!(
                "  skipped    {line}{}",
                if faulty { "  (FAILED: CI must run it)" } else { "" }
            );
        }
        println!("  {} skipped", skipped.lines().count());
        clean
    }
}

/// Whether a skip `name: reason` is listed; the list holds `name: reason` lines and `#` comments.
fn is_allowed(skip: &str, allowed: &str) -> bool {
    let name = |line: &str| line.split(':').next().unwrap_or_default().trim().to_owned();
    let listed = allowed.lines().filter(|line| !line.starts_with('#') && line.contains(':'));
    listed.map(name).any(|listed| listed == name(skip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_allowed_by_name() {
        let allowed = "# comment\nhuge-pages: not every runner reserves them\n";
        assert!(is_allowed("huge-pages: none reserved", allowed));
        assert!(!is_allowed("mount: no /dev/fuse", allowed));
        assert!(!is_allowed("# comment: x", allowed));
    }
}
