//! `gate`, `test` and `long`: tables of named stages.
//!
//! [`mod@table`] and [`mod@long`] hold them. Every stage runs even when another one failed, unless
//! it needs that one; the summary at the end names each, its verdict and its time. [`schedule`]
//! says what runs beside what, [`executables`] how the crates' tests are built once and run,
//! [`skips`] what a computer may leave out, [`record`] what the long command keeps of each piece it
//! has run, [`runner`] what a stage proves.

mod executables;
mod long;
mod record;
mod runner;
mod schedule;
mod skips;
mod table;

use std::time::Duration;

use crate::project::Project;
use executables::Which;
use long::{LONG, REPLACED};
use record::Record;
pub(crate) use runner::{Runner, runners};
use schedule::Output;
use skips::SkipFile;
use table::{GATE, TEST};

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

/// For the tests of one package.
const LIMIT: Duration = Duration::from_secs(40 * 60);

#[cfg(test)]
pub(crate) use runner::tests;

/// What a change must pass before it is committed.
pub(crate) fn gate(project: &Project) -> Result<bool, String> {
    schedule::run(project, GATE, &mut |_, _| ())
}

/// Everything CI runs.
pub(crate) fn test(project: &Project, args: &[String]) -> Result<bool, String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let stages = match args.as_slice() {
        [] => return schedule::run(project, TEST, &mut |_, _| ()),
        ["--from" | "--only", _] => chosen(TEST, &args)?,
        _ => {
            println!("cargo x test [--from STAGE | --only STAGE]\n");
            TEST.iter().for_each(|stage| println!("{:<16} {}", stage.name, stage.proves));
            return Ok(true);
        }
    };
    // Whoever runs a part has built what it needs.
    let stages: Vec<Stage> =
        stages.into_iter().map(|stage| Stage { needs: None, ..stage }).collect();
    schedule::run(project, &stages, &mut |_, _| ())
}

/// Everything CI runs, what can be longer at full size. What passed at this commit is not run
/// again; each piece is kept as it ends.
pub(crate) fn long(project: &Project, args: &[String]) -> Result<bool, String> {
    let short = TEST.iter().filter(|stage| !REPLACED.contains(&stage.name));
    let all: Vec<Stage> = short.chain(LONG).copied().collect();
    let mut record = Record::of(project)?;
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut stages = match args.as_slice() {
        [] => all.iter().filter(|stage| !record.has_passed(stage.name)).copied().collect(),
        ["--again"] => all.clone(),
        ["--from" | "--only", _] => chosen(&all, &args)?,
        ["--summary"] => {
            print!("{}", record.summary(&all));
            return Ok(true);
        }
        _ => {
            println!("cargo x long [--from STAGE | --only STAGE | --again | --summary]\n");
            all.iter().for_each(|stage| println!("{:<16} {}", stage.name, stage.proves));
            return Ok(true);
        }
    };
    // What is built may be of another commit by now.
    let build = all.iter().find(|stage| stage.name == "build");
    if let Some(build) = build.filter(|_| stages.iter().any(|stage| stage.needs.is_some()))
        && !stages.iter().any(|stage| stage.name == build.name)
    {
        stages.insert(0, *build);
    }
    let passed =
        schedule::run(project, &stages, &mut |outcome, skipped| record.add(outcome, skipped))?;
    print!("\n{}", record.summary(&all));
    Ok(passed)
}

/// The stage that is named, or those from it on.
fn chosen(stages: &[Stage], args: &[&str]) -> Result<Vec<Stage>, String> {
    let [which, name] = args else { return Err("name one stage".into()) };
    let at = stages.iter().position(|stage| stage.name == *name);
    let at = at.ok_or_else(|| format!("no stage `{name}`; `--help` lists them"))?;
    Ok(stages[at..].iter().take(if *which == "--only" { 1 } else { usize::MAX }).copied().collect())
}

/// Runs the tests of these packages as every stage builds them, one after the other's output.
pub(crate) fn tests(project: &Project, packages: &[String]) -> Result<bool, String> {
    if packages.is_empty() {
        return Err("name packages: `cargo x tests rados kv`".into());
    }
    if let Some(skips) = SkipFile::of_outer_run() {
        let output = Output::terminal(&skips.path);
        executables::run(project, Which::Of(packages), &[], LIMIT, &output)?;
        return Ok(true);
    }
    let skips = SkipFile::create(project)?;
    let output = Output::terminal(&skips.path);
    executables::run(project, Which::Of(packages), &[], LIMIT, &output)?;
    Ok(skips.judge(project))
}
