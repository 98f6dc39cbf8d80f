//! `gate`, `test` and `long`: tables of named stages.
//!
//! Every stage runs even when another one failed, unless it needs that one; the summary at the end
//! names each, its verdict and its time. [`schedule`] says what runs beside what, [`executables`]
//! how the crates' tests are built once and run, [`skips`] what a computer may leave out.

mod executables;
mod runner;
mod schedule;
mod skips;

use std::time::Duration;

use crate::project::Project;
use executables::Which;
pub(crate) use runner::{Runner, runners};
use schedule::Output;
use skips::SkipFile;

/// The profile in which everything that stages run is built.
const PROFILE: &str = "test-fast";

/// What a stage does.
#[derive(Clone, Copy)]
enum Action {
    /// The house rules, in this process.
    Rules,
    /// Builds every program and every test.
    Build,
    /// Runs the crates' tests, with this environment.
    Tests(Which<'static>, &'static [(&'static str, &'static str)]),
    /// Model checks of these crates, each in its test target `loom`.
    Loom(&'static [&'static str]),
    /// A command.
    Command(&'static [&'static str]),
    /// A command that takes cargo's features between these words.
    WithFeatures(&'static [&'static str], &'static [&'static str]),
}

#[derive(Clone, Copy)]
struct Stage {
    name: &'static str,
    proves: &'static str,
    action: Action,
    /// After this a command is ended, and has failed.
    limit: Duration,
    /// The stage that must have passed before.
    needs: Option<&'static str>,
    /// It measures: nothing runs beside it.
    alone: bool,
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// A stage that needs nothing.
const fn first(name: &'static str, proves: &'static str, limit: u64, action: Action) -> Stage {
    Stage { name, proves, action, limit: minutes(limit), needs: None, alone: false }
}

/// A stage that needs what is built.
const fn built(name: &'static str, proves: &'static str, limit: u64, action: Action) -> Stage {
    Stage { needs: Some("build"), ..first(name, proves, limit, action) }
}

/// The same, and it measures.
const fn measured(name: &'static str, proves: &'static str, limit: u64, action: Action) -> Stage {
    Stage { alone: true, ..built(name, proves, limit, action) }
}

const FORMAT: Stage = first(
    "format",
    "every file is formatted",
    2,
    Action::Command(&["cargo", "fmt", "--all", "--check"]),
);
const RULES: Stage =
    first("rules", "floors, unsafe folders, purity, tidiness, specification", 2, Action::Rules);
const CLIPPY: Stage = first(
    "clippy",
    "no warning of the compiler or of clippy",
    15,
    Action::WithFeatures(
        &["cargo", "clippy", "--workspace", "--all-targets", "--quiet"],
        &["--", "-Dwarnings"],
    ),
);

const GATE: &[Stage] = &[FORMAT, RULES, CLIPPY];

const TEST: &[Stage] = &[
    FORMAT,
    RULES,
    first("build", "every program and every test builds", 30, Action::Build),
    CLIPPY,
    first(
        "loom",
        "no wake-up is lost in any interleaving of both ends of a queue",
        10,
        Action::Loom(&["link"]),
    ),
    built(
        "tests",
        "unit, property, model and conformance tests of every crate",
        35,
        Action::Tests(Which::Beside, &[]),
    ),
    built(
        "programs",
        "real programs and public suites work on a mounted volume, fsck after each",
        25,
        Action::Command(&["target/test-fast/programs", "--size=small"]),
    ),
    built(
        "rados",
        "volumes in a pool of a Ceph cluster of our own, its daemons killed and paused",
        45,
        Action::Command(&[
            "scripts/test-rados",
            "target/test-fast",
            "--kills=2",
            "--programs=sqlite",
        ]),
    ),
    built(
        "preloaded",
        "real programs work on a volume with liboutboard_preload.so in every process",
        25,
        Action::Command(&[
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
        ]),
    ),
    built(
        "hybrid",
        "real programs and the conformance suite work through the hybrid cache",
        25,
        Action::Command(&[
            "target/test-fast/programs",
            "--size=small",
            "--cache=hybrid",
            "--only=append",
            "--only=conformance",
            "--only=fio",
            "--only=fsx",
            "--only=mapped",
            "--only=python",
            "--only=sparse",
            "--only=sqlite",
        ]),
    ),
    built(
        "uncached",
        "the conformance suite passes on a mount that caches no data",
        10,
        Action::Command(&[
            "target/test-fast/programs",
            "--size=small",
            "--cache=none",
            "--only=conformance",
            "--only=mapped",
            "--only=sparse",
        ]),
    ),
    built(
        "user",
        "a plain user mounts through fusermount3 and works there",
        10,
        Action::Command(&[
            "scripts/as-user",
            "target/test-fast",
            "--only=git-clone",
            "--only=locks",
            "--only=sqlite",
            "--only=links",
            "--only=attributes",
            "--only=sparse",
        ]),
    ),
    built(
        "edges",
        "full, corrupted, misused, read-only and idle volumes",
        10,
        Action::Command(&["target/test-fast/edges"]),
    ),
    built(
        "preload",
        "unmodified programs work past the kernel, and losses of either side are survived",
        10,
        Action::Command(&["target/test-fast/preload"]),
    ),
    built(
        "kill",
        "kill -9 of either side or both loses nothing answered and repeats nothing",
        10,
        Action::Command(&["target/test-fast/kill", "--rounds=10"]),
    ),
    built(
        "kill-redb",
        "the same of a volume in the second engine",
        10,
        Action::Command(&["env", "OUTBOARD_STORE=redb", "target/test-fast/kill", "--rounds=4"]),
    ),
    built(
        "coherence",
        "processes killed at random, by every way to a volume, see one file",
        10,
        Action::Command(&["target/test-fast/coherence", "--rounds=8", "--flag=--replace=clock"]),
    ),
    built(
        "doctests",
        "the examples in the API documentation build and run",
        10,
        Action::WithFeatures(
            &["cargo", "test", "--workspace", "--doc", "--profile=test-fast", "--quiet"],
            &[],
        ),
    ),
    first(
        "docs",
        "the API documentation builds and its links resolve",
        10,
        Action::Command(&[
            "cargo",
            "doc",
            "--workspace",
            "--no-deps",
            "--quiet",
            "--document-private-items",
        ]),
    ),
    measured(
        "tests-measured",
        "idle sides use no processor, and what else measures",
        10,
        Action::Tests(Which::Measuring, &[]),
    ),
    measured(
        "bench-link",
        "the measurement of the link runs to its end",
        3,
        Action::Command(&[
            "target/test-fast/outboard",
            "bench",
            "link",
            "--seconds=0.2",
            "--rounds=1",
        ]),
    ),
    measured(
        "bench-figure-6",
        "nvme-fs and virtio-fs are measured side by side, at the price of a bus",
        3,
        Action::Command(&[
            "target/test-fast/outboard",
            "bench",
            "link",
            "--figure=6",
            "--price=pcie3x16",
            "--threads=1,4",
            "--seconds=0.1",
            "--rounds=1",
        ]),
    ),
    measured(
        "bench-dds",
        "the key-value server is measured in every form, its host asleep under cold reads",
        3,
        Action::Command(&[
            "target/test-fast/outboard",
            "bench",
            "dds",
            "--figure=14",
            "--seconds=0.05",
            "--rounds=1",
            "--check",
        ]),
    ),
    measured(
        "bench-fs",
        "the file system is measured with every rival, and all CPU time is accounted for",
        5,
        Action::Command(&[
            "target/test-fast/outboard",
            "bench",
            "fs",
            "--seconds=0.2",
            "--rounds=1",
            "--check",
        ]),
    ),
];

/// The stages that `long` runs at full size.
const LONG: &[Stage] = &[
    built(
        "tests",
        "every crate's tests, with hundreds of seeds, kills and cuts of power",
        240,
        Action::Tests(
            Which::Beside,
            &[
                ("OUTBOARD_SEEDS", "300"),
                ("OUTBOARD_KILLS", "300"),
                ("MODEL_SEQUENCES", "2000"),
                ("PROPTEST_CASES", "5000"),
            ],
        ),
    ),
    first(
        "loom",
        "every interleaving of a queue's ends, of a cache's users and of a table's",
        120,
        Action::Loom(&["link", "cache", "dds"]),
    ),
    first(
        "deny",
        "dependencies pass `cargo deny`, where that is installed",
        10,
        Action::Command(&[
            "sh",
            "-c",
            "if command -v cargo-deny >/dev/null; \
                 then cargo deny check licenses bans sources; \
                 else echo 'cargo-deny: not installed; licences are checked by cargo x' \
                 >>\"$OUTBOARD_SKIPS\"; fi",
        ]),
    ),
    built(
        "programs",
        "real programs and public suites at full size",
        600,
        Action::Command(&["target/test-fast/programs", "--size=full"]),
    ),
    built(
        "kill",
        "two hundred kills",
        240,
        Action::Command(&["target/test-fast/kill", "--rounds=200"]),
    ),
    built(
        "kill-redb",
        "forty of them on a volume in the second engine",
        60,
        Action::Command(&["env", "OUTBOARD_STORE=redb", "target/test-fast/kill", "--rounds=40"]),
    ),
    built(
        "coherence",
        "two hundred rounds of kills of sides and processes that share files",
        120,
        Action::Command(&["target/test-fast/coherence", "--rounds=200"]),
    ),
    built(
        "rados",
        "the same in a pool: git, fio and sqlite3 on a mount, and more kills",
        60,
        Action::Command(&["scripts/test-rados", "target/test-fast", "--kills=40", "--suite=whole"]),
    ),
    built(
        "ycsb",
        "YCSB's client, unmodified, runs its workloads against the key-value server",
        60,
        Action::Command(&[
            "sh",
            "-c",
            "scripts/setup bench && scripts/ycsb target/test-fast/outboard 300000 300000",
        ]),
    ),
];

#[cfg(test)]
pub(crate) use runner::tests;

/// What a change must pass before it is committed.
pub(crate) fn gate(project: &Project) -> Result<bool, String> {
    let stages: Vec<&Stage> = GATE.iter().collect();
    schedule::run(project, &stages)
}

/// Everything CI runs, with the long stages at full size.
pub(crate) fn long(project: &Project) -> Result<bool, String> {
    let long = |stage: &&Stage| LONG.iter().any(|long| long.name == stage.name);
    let short = TEST.iter().filter(|stage| !long(stage));
    let stages: Vec<&Stage> = short.chain(LONG).collect();
    schedule::run(project, &stages)
}

/// Everything CI runs.
pub(crate) fn test(project: &Project, args: &[String]) -> Result<bool, String> {
    let position = |name: &str| {
        let at = TEST.iter().position(|stage| stage.name == name);
        at.ok_or_else(|| format!("no stage `{name}`; `cargo x test --help` lists them"))
    };
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => schedule::run(project, &TEST.iter().collect::<Vec<_>>()),
        ["--from", name] => {
            let from = position(name)?;
            let rest: Vec<Stage> =
                TEST[from..].iter().map(|stage| Stage { needs: None, ..*stage }).collect();
            schedule::run(project, &rest.iter().collect::<Vec<_>>())
        }
        ["--only", name] => {
            let only = position(name)?;
            let stage = Stage { needs: None, ..TEST[only] };
            schedule::run(project, &[&stage])
        }
        _ => {
            println!("cargo x test [--from STAGE | --only STAGE]\n");
            for stage in TEST {
                println!("{:<14} {}", stage.name, stage.proves);
            }
            Ok(true)
        }
    }
}

/// Runs the tests of these packages as every stage builds them, one after the other's output.
pub(crate) fn tests(project: &Project, packages: &[String]) -> Result<bool, String> {
    if packages.is_empty() {
        return Err("name packages: `cargo x tests rados kv`".into());
    }
    if let Some(skips) = SkipFile::of_outer_run() {
        let output = Output::terminal(&skips.path);
        executables::run(project, Which::Of(packages), &[], minutes(40), &output)?;
        return Ok(true);
    }
    let skips = SkipFile::create(project)?;
    let output = Output::terminal(&skips.path);
    executables::run(project, Which::Of(packages), &[], minutes(40), &output)?;
    Ok(skips.judge(project))
}
