//! Runs stages, two at once where neither measures.
//!
//! A stage begins when the one it needs has passed; one whose need failed is not run, and that is a
//! fault of the run. Stages that measure come last, each alone. Every other stage runs whatever
//! else failed. With several stages each writes to a file of its own, and the end of it is shown
//! when the stage ends; a single one writes to the terminal.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::executables;
use super::skips::SkipFile;
use super::{Action, Stage};
use crate::project::Project;

/// Stages under way at once: one that waits for a device or a peer leaves the cores to another.
const AT_ONCE: usize = 2;
/// Lines shown of a stage that passed, and of one that failed.
const SHOWN: usize = 40;
const SHOWN_FAILED: usize = 400;

/// Where a stage writes.
pub(super) struct Output {
    /// `None`: the terminal.
    file: Option<Mutex<File>>,
    path: PathBuf,
    skips: PathBuf,
}

impl Output {
    pub(super) fn terminal(skips: &Path) -> Output {
        Output { file: None, path: PathBuf::new(), skips: skips.to_path_buf() }
    }

    fn file(path: PathBuf, skips: &Path) -> io::Result<Output> {
        let file = Some(Mutex::new(File::create(&path)?));
        Ok(Output { file, path, skips: skips.to_path_buf() })
    }

    /// What every command of a stage finds in its environment.
    pub(super) fn env(&self) -> Vec<(&'static str, std::ffi::OsString)> {
        vec![
            ("OUTBOARD_SKIPS", self.skips.clone().into_os_string()),
            ("RUSTDOCFLAGS", "-Dwarnings".into()),
        ]
    }

    /// Writes whole lines; those of two threads do not mix.
    pub(super) fn write(&self, text: &str) {
        // A log that cannot be written must not end the tests; what failed is in the verdict.
        let _written = match &self.file {
            Some(file) => {
                file.lock().unwrap_or_else(PoisonError::into_inner).write_all(text.as_bytes())
            }
            None => io::stdout().write_all(text.as_bytes()),
        };
    }

    fn stdio(&self) -> io::Result<(Stdio, Stdio)> {
        let Some(file) = &self.file else { return Ok((Stdio::inherit(), Stdio::inherit())) };
        let file = file.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((file.try_clone()?.into(), file.try_clone()?.into()))
    }

    /// The last lines written.
    fn tail(&self, lines: usize) -> String {
        let bytes = std::fs::read(&self.path).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut last: VecDeque<&str> = VecDeque::new();
        for line in text.lines() {
            if last.len() == lines {
                last.pop_front();
            }
            last.push_back(line);
        }
        last.into_iter().fold(String::new(), |all, line| all + "    " + line + "\n")
    }
}

/// How one stage ended.
pub(super) struct Outcome {
    pub(super) name: &'static str,
    pub(super) verdict: Result<(), String>,
    pub(super) took: Duration,
}

/// Where a stage stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Waiting,
    Running,
    Passed,
    Failed,
}

/// Runs all, and says how each ended; true when all passed and nothing was skipped that must not
/// be. `tell` is given each as it ends, with what has been skipped so far.
pub(super) fn run(
    project: &Project,
    stages: &[Stage],
    tell: &mut dyn FnMut(&Outcome, &str),
) -> Result<bool, String> {
    let begun = Instant::now();
    let skips = SkipFile::create(project)?;
    let logs = project.target.join("stages");
    std::fs::create_dir_all(&logs)
        .map_err(|error| format!("cannot make {}: {error}", logs.display()))?;
    let mut standing = vec![Standing::Waiting; stages.len()];
    let mut outcomes = Vec::new();
    let (ended, ends) = mpsc::channel();
    thread::scope(|scope| {
        loop {
            while let Some(at) = next(stages, &mut standing, &mut outcomes) {
                let stage = &stages[at];
                standing[at] = Standing::Running;
                println!("==> {}: {}", stage.name, stage.proves);
                let output = if stages.len() == 1 {
                    Ok(Output::terminal(&skips.path))
                } else {
                    Output::file(logs.join(format!("{}.log", stage.name)), &skips.path)
                };
                let ended = ended.clone();
                scope.spawn(move || {
                    let begun = Instant::now();
                    let verdict = output
                        .map_err(|error| format!("cannot write its log: {error}"))
                        .and_then(|output| {
                            // A stage that panics has failed; the run goes on.
                            let verdict = catch_unwind(AssertUnwindSafe(|| {
                                run_stage(project, stage, &output)
                            }))
                            .unwrap_or_else(|_| Err("panicked".into()));
                            show_end(stage, &verdict, &output);
                            verdict
                        });
                    let outcome = Outcome { name: stage.name, verdict, took: begun.elapsed() };
                    // The receiver lives as long as this scope.
                    let _received = ended.send((at, outcome));
                });
            }
            if !standing.contains(&Standing::Running) {
                return;
            }
            let Ok((at, outcome)) = ends.recv() else { return };
            standing[at] =
                if outcome.verdict.is_ok() { Standing::Passed } else { Standing::Failed };
            tell(&outcome, &skips.said().unwrap_or_default());
            outcomes.push(outcome);
        }
    });
    for (stage, _) in stages.iter().zip(&standing).filter(|(_, s)| **s == Standing::Waiting) {
        let verdict = Err("never run: what it needs waits for it".into());
        outcomes.push(Outcome { name: stage.name, verdict, took: Duration::ZERO });
    }
    let passed = summarize(&outcomes, begun.elapsed());
    Ok(passed & skips.judge(project))
}

/// The stage to begin now, if there is one; stages that never can begin are given up on the way.
fn next(stages: &[Stage], standing: &mut [Standing], outcomes: &mut Vec<Outcome>) -> Option<usize> {
    let of = |name: &str, standing: &[Standing]| {
        stages.iter().position(|stage| stage.name == name).map(|at| standing[at])
    };
    for (at, stage) in stages.iter().enumerate() {
        let needed = stage.needs.and_then(|name| of(name, standing));
        if standing[at] == Standing::Waiting && needed == Some(Standing::Failed) {
            standing[at] = Standing::Failed;
            let reason = format!("not run: it needs `{}`", stage.needs.unwrap_or_default());
            outcomes.push(Outcome { name: stage.name, verdict: Err(reason), took: Duration::ZERO });
        }
    }
    let waiting = |at: &usize| standing[*at] == Standing::Waiting;
    let running = standing.iter().filter(|&&s| s == Standing::Running).count();
    let ready = |at: &usize| {
        let needed = stages[*at].needs.and_then(|name| of(name, standing));
        needed.is_none_or(|needed| needed == Standing::Passed)
    };
    let mut beside = (0..stages.len()).filter(|at| waiting(at) && !stages[*at].alone).peekable();
    if beside.peek().is_some() {
        return if running < AT_ONCE { beside.find(ready) } else { None };
    }
    if running > 0 { None } else { (0..stages.len()).find(|at| waiting(at) && ready(at)) }
}

fn run_stage(project: &Project, stage: &Stage, output: &Output) -> Result<(), String> {
    match stage.action {
        Action::Rules if crate::run_checks(project) => Ok(()),
        Action::Rules => Err("a house rule is broken".into()),
        Action::Build => run_command(project, executables::build_command(), stage.limit, output),
        Action::Tests(which, env) => executables::run(project, which, env, stage.limit, output),
        Action::Loom(packages) => {
            let mut command = executables::loom_command(packages);
            command.arg("--target-dir").arg(project.target.join("loom"));
            run_command(project, command, stage.limit, output)
        }
        Action::Command(words) => run_words(project, words, stage.limit, output),
        Action::WithFeatures(words, end) => {
            let words = [words, executables::features(), end].concat();
            run_words(project, &words, stage.limit, output)
        }
    }
}

/// Words that start with `target/` lead to where cargo builds.
fn run_words(
    project: &Project,
    words: &[&str],
    limit: Duration,
    output: &Output,
) -> Result<(), String> {
    let mut placed = words.iter().map(|word| match word.strip_prefix("target/") {
        Some(rest) => project.target.join(rest).into_os_string(),
        None => word.into(),
    });
    let mut command = Command::new(placed.next().unwrap_or_default());
    command.args(placed);
    run_command(project, command, limit, output)
}

/// Runs a command under `timeout`, which ends its whole process group at the limit.
fn run_command(
    project: &Project,
    command: Command,
    limit: Duration,
    output: &Output,
) -> Result<(), String> {
    let (out, err) = output.stdio().map_err(|error| format!("cannot write its log: {error}"))?;
    let envs = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let status = Command::new("timeout")
        .arg("--kill-after=20")
        .arg(limit.as_secs().to_string())
        .arg(command.get_program())
        .args(command.get_args())
        .envs(envs)
        .envs(output.env())
        .current_dir(&project.root)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .status()
        .map_err(|error| format!("cannot run `timeout` (package coreutils): {error}"))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(124 | 137) => Err(format!("not done within {} minutes", limit.as_secs() / 60)),
        Some(code) => Err(format!("`{}` ended with {code}", command.get_program().display())),
        None => Err(format!("`{}` was ended by a signal", command.get_program().display())),
    }
}

fn show_end(stage: &Stage, verdict: &Result<(), String>, output: &Output) {
    if output.file.is_none() {
        return;
    }
    let (word, lines) = if verdict.is_ok() { ("ok", SHOWN) } else { ("FAILED", SHOWN_FAILED) };
    let end = format!("<== {}: {word}\n{}", stage.name, output.tail(lines));
    // One write, so that the ends of two stages do not mix.
    let _shown = io::stdout().write_all(end.as_bytes());
}

fn summarize(outcomes: &[Outcome], took: Duration) -> bool {
    println!("\nsummary");
    for Outcome { name, verdict, took } in outcomes {
        let seconds = took.as_secs_f64();
        match verdict {
            Ok(()) => println!("  {name:<14} ok      {seconds:>7.1} s"),
            Err(reason) => println!("  {name:<14} FAILED  {seconds:>7.1} s  {reason}"),
        }
    }
    let failed = outcomes.iter().filter(|outcome| outcome.verdict.is_err()).count();
    println!("  {:<14}         {:>7.1} s", "altogether", took.as_secs_f64());
    println!("{} passed, {failed} failed", outcomes.len() - failed);
    failed == 0
}

#[cfg(test)]
mod tests {
    use super::super::Stage;
    use super::*;

    fn stage(name: &'static str, needs: Option<&'static str>, alone: bool) -> Stage {
        Stage { name, proves: "", action: Action::Rules, limit: Duration::ZERO, needs, alone }
    }

    /// Plays a schedule in which each stage ends when nothing more can begin.
    fn play(stages: &[Stage], failing: &str) -> (Vec<Vec<&'static str>>, Vec<&'static str>) {
        let mut standing = vec![Standing::Waiting; stages.len()];
        let (mut given_up, mut waves) = (Vec::new(), Vec::new());
        loop {
            let mut wave = Vec::new();
            while let Some(at) = next(stages, &mut standing, &mut given_up) {
                standing[at] = Standing::Running;
                wave.push(at);
            }
            if wave.is_empty() {
                let given_up = given_up.iter().map(|outcome| outcome.name).collect();
                return (waves, given_up);
            }
            for &at in &wave {
                let failed = stages[at].name == failing;
                standing[at] = if failed { Standing::Failed } else { Standing::Passed };
            }
            waves.push(wave.iter().map(|&at| stages[at].name).collect());
        }
    }

    #[test]
    fn two_run_at_once_and_what_measures_runs_last_and_alone() {
        let stages = [
            stage("build", None, false),
            stage("bench", Some("build"), true),
            stage("tests", Some("build"), false),
            stage("clippy", None, false),
            stage("programs", Some("build"), false),
            stage("idle", None, true),
        ];
        let (waves, given_up) = play(&stages, "");
        assert_eq!(
            waves,
            [vec!["build", "clippy"], vec!["tests", "programs"], vec!["bench"], vec!["idle"]]
        );
        assert!(given_up.is_empty());
    }

    #[test]
    fn what_needs_a_failed_stage_is_a_fault_and_the_rest_runs() {
        let stages = [
            stage("build", None, false),
            stage("tests", Some("build"), false),
            stage("kill", Some("tests"), true),
            stage("docs", None, false),
        ];
        let (waves, given_up) = play(&stages, "build");
        assert_eq!(waves, [vec!["build", "docs"]]);
        assert_eq!(given_up, ["tests", "kill"]);
    }
}
