//! The tests of every crate, as cargo built them: run from here, several programs at once.
//!
//! `cargo test` runs one program after the other, and builds anew what another choice of packages
//! or features asks for. Here everything is built once, with one choice ([`build_command`]), and
//! what was built is run.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Output, PROFILE};
use crate::project::Project;

/// Programs whose tests measure CPU or short times, by package and target: nothing runs beside
/// them. Tests that allow for other load, by a limit far beyond what is promised, are not here.
const MEASURING: &[(&str, &str)] = &[
    // An idle side's CPU over seconds, to a tick.
    ("attach", "sides"),
    // CPU within tens of milliseconds: some of who is asked, none of who is not.
    ("bench", "director"),
    // A host's CPU while reads are offloaded, by command and in all.
    ("outboard", "serve"),
];
/// Programs whose tests need a cluster, which the stage `rados` starts.
const IN_A_CLUSTER: &[(&str, &str)] = &[("rados", "it")];
/// Programs that take longest, which begin first so that none is left over at the end.
const LONGEST: &[(&str, &str)] = &[];

/// Which programs.
#[derive(Clone, Copy)]
pub(super) enum Which<'a> {
    /// Those that measure nothing and need no cluster.
    Beside,
    /// Those that measure.
    Measuring,
    /// All of these packages, by name without `outboard-`.
    Of(&'a [String]),
    /// These, by package and target, and of each the tests whose names hold this text.
    Named(&'a [(&'a str, &'a str, &'a str)]),
}

impl Which<'_> {
    /// What the names of this target's tests must hold to be among them; `None`: it has none.
    pub(super) fn filter(&self, package: &str, target: &str) -> Option<&str> {
        let is_in = |list: &[(&str, &str)]| list.contains(&(package, target));
        let has_all = match self {
            Which::Beside => !is_in(MEASURING) && !is_in(IN_A_CLUSTER),
            Which::Measuring => is_in(MEASURING),
            Which::Of(packages) => packages.iter().any(|name| name == package),
            Which::Named(named) => {
                let found = named.iter().find(|(p, t, _)| (*p, *t) == (package, target));
                return found.map(|(_, _, filter)| *filter);
            }
        };
        has_all.then_some("")
    }
}

/// Everything that a feature switches on. It links librados.
pub(super) const FEATURES: &str =
    "--features=outboard-rados/librados,outboard-store/rados,outboard-outboard/rados";

/// [`FEATURES`], where the header of librados is there.
pub(super) fn features() -> &'static [&'static str] {
    if Path::new("/usr/include/rados/librados.h").exists() { &[FEATURES] } else { &[] }
}

/// What runs the model checks of these crates, built apart for their atomics are loom's.
pub(super) fn loom_command(packages: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "--test=loom"]).env("RUSTFLAGS", "--cfg loom");
    command.arg(format!("--profile={PROFILE}"));
    command.args(packages.iter().map(|package| format!("--package=outboard-{package}")));
    command
}

/// What builds everything that any stage runs.
pub(super) fn build_command() -> Command {
    let mut command = Command::new("cargo");
    command.args(["build", "--workspace", "--all-targets", "--quiet"]);
    command.arg(format!("--profile={PROFILE}")).args(features());
    command
}

struct Executable {
    package: String,
    target: String,
    path: PathBuf,
    /// The package's folder, where its tests run.
    folder: PathBuf,
}

impl Executable {
    fn is_in(&self, list: &[(&str, &str)]) -> bool {
        list.contains(&(self.package.as_str(), self.target.as_str()))
    }
}

/// Builds what is not built, and runs the tests; every program, even after one failed.
pub(super) fn run(
    project: &Project,
    which: Which<'_>,
    env: &[(&str, &str)],
    limit: Duration,
    output: &Output,
) -> Result<(), String> {
    let mut programs = built(project)?;
    check_lists(&programs, which)?;
    programs.retain(|program| which.filter(&program.package, &program.target).is_some());
    if programs.is_empty() {
        return Err("there is no such test".into());
    }
    programs.sort_by_key(|program| !program.is_in(LONGEST));
    let at_once = match which {
        Which::Measuring => 1,
        _ => thread::available_parallelism().map_or(1, usize::from),
    };
    let queue = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(program) = next else { return };
                    if let Err(reason) = run_one(project, &program, which, env, limit, output) {
                        let name = format!("{} {}: {reason}", program.package, program.target);
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// Every name of the lists above, and every package that was asked for, has a program.
fn check_lists(programs: &[Executable], which: Which<'_>) -> Result<(), String> {
    for entry in [MEASURING, IN_A_CLUSTER, LONGEST].concat() {
        if !programs.iter().any(|program| program.is_in(&[entry])) {
            return Err(format!("no test program `{} {}`; mend the lists here", entry.0, entry.1));
        }
    }
    let has = |is: &dyn Fn(&Executable) -> bool| programs.iter().any(is);
    let missing = match which {
        Which::Of(packages) => {
            packages.iter().find(|name| !has(&|program| program.package == **name)).cloned()
        }
        Which::Named(named) => named
            .iter()
            .find(|(package, target, _)| !has(&|program| program.is_in(&[(package, target)])))
            .map(|(package, target, _)| format!("{package} {target}")),
        Which::Beside | Which::Measuring => None,
    };
    missing.map_or(Ok(()), |name| Err(format!("no tests are built of `{name}`")))
}

/// Its output goes to a file, not to a pipe: a process that a killed test leaves behind would hold
/// a pipe open for ever.
fn run_one(
    project: &Project,
    program: &Executable,
    which: Which<'_>,
    env: &[(&str, &str)],
    limit: Duration,
    output: &Output,
) -> Result<(), String> {
    let begun = Instant::now();
    let filter = which.filter(&program.package, &program.target).unwrap_or_default();
    let logs = project.target.join("stages");
    let path = logs.join(format!("tests-{}-{}.log", program.package, program.target));
    let cannot = |error: io::Error| format!("cannot write {}: {error}", path.display());
    fs::create_dir_all(&logs).map_err(cannot)?;
    let log = fs::File::create(&path).map_err(cannot)?;
    let status = Command::new("timeout")
        .arg("--kill-after=20")
        .arg(limit.as_secs().to_string())
        .arg(&program.path)
        .arg("--quiet")
        .args(Some(filter).filter(|filter| !filter.is_empty()))
        .current_dir(&program.folder)
        .envs(env.iter().copied())
        .envs(output.env())
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(cannot)?)
        .stderr(log)
        .status()
        .map_err(|error| format!("cannot run `timeout` (package coreutils): {error}"))?;
    let bytes = fs::read(&path).map_err(cannot)?;
    let said = String::from_utf8_lossy(&bytes);
    let seconds = begun.elapsed().as_secs_f64();
    let result = said.lines().rev().find(|line| line.starts_with("test result:"));
    let shown = if status.success() { result.unwrap_or("no test") } else { &*said };
    output.write(&format!("{} {} ({seconds:.1} s)\n{shown}\n", program.package, program.target));
    match status.code() {
        Some(0) if !filter.is_empty() && shown.contains(" 0 passed") => {
            Err(format!("no test is called `{filter}`"))
        }
        Some(0) => Ok(()),
        Some(124 | 137) => Err(format!("not done within {} minutes", limit.as_secs() / 60)),
        Some(code) => Err(format!("ended with {code}")),
        None => Err("was ended by a signal".into()),
    }
}

/// The test programs, from what cargo says it built.
fn built(project: &Project) -> Result<Vec<Executable>, String> {
    let output = build_command()
        .arg("--message-format=json")
        .current_dir(&project.root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err("the tests do not build".into());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let messages = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(messages.filter_map(|message| executable(&message)).collect())
}

fn executable(message: &Value) -> Option<Executable> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let target = message["target"]["name"].as_str()?.to_owned();
    let path = PathBuf::from(message["executable"].as_str()?);
    let package = folder.file_name()?.to_str()?.to_owned();
    Some(Executable { package, target, path, folder })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tests_are_told_from_what_else_is_built() {
        let message = |test: bool| {
            json!({
                "reason": "compiler-artifact",
                "manifest_path": "/p/crates/worlds/attach/Cargo.toml",
                "target": {"name": "sides"},
                "profile": {"test": test},
                "executable": "/p/target/sides-1",
            })
        };
        let program = executable(&message(true)).unwrap();
        assert_eq!((program.package.as_str(), program.target.as_str()), ("attach", "sides"));
        assert!(program.is_in(MEASURING));
        assert!(executable(&message(false)).is_none());
        assert!(executable(&json!({"reason": "build-finished"})).is_none());
    }
}
