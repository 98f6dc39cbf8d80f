//! `cargo x`: the developer commands. `gate` is what a change must pass before it is committed,
//! `test` is everything CI runs, and the rest are the single checks the two are made of.
//!
//! A check is a function from the [`project::Project`] to a list of [`Finding`]s. Each finding says
//! where, what is wrong, and what to write instead.

#![forbid(unsafe_code)]

mod floors;
mod inventory;
mod licences;
mod project;
mod pure;
mod source;
mod spec;
mod stages;
mod tidy;
mod unsafety;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use project::Project;

/// One broken rule: the place, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    path: PathBuf,
    /// Counted from 1; 0 when the finding is about the whole file.
    line: usize,
    message: String,
}

impl Finding {
    pub(crate) fn new(path: impl Into<PathBuf>, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

/// A house rule: its command, what it asks, and the function that checks it.
struct Check {
    name: &'static str,
    asks: &'static str,
    run: fn(&Project) -> Vec<Finding>,
}

const CHECKS: &[Check] = &[
    Check { name: "floors", asks: "crates use lower floors only", run: floors::check },
    Check {
        name: "unsafe",
        asks: "unsafe code stands in named folders only",
        run: unsafety::check,
    },
    Check {
        name: "pure",
        asks: "no clock, thread, socket or file under floor 4",
        run: pure::check,
    },
    Check {
        name: "tidy",
        asks: "columns, leftovers, links, the list of decisions",
        run: tidy::check,
    },
    Check { name: "spec", asks: "each promise names its test or says pending", run: spec::check },
    Check {
        name: "licences",
        asks: "dependencies are under the licences of deny.toml",
        run: licences::check,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo x: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[String]) -> Result<bool, String> {
    let Some(command) = args.first() else {
        print!("{}", usage());
        return Ok(true);
    };
    match command.as_str() {
        "gate" => stages::gate(&Project::load()?),
        "test" => stages::test(&Project::load()?, &args[1..]),
        "tests" => stages::tests(&Project::load()?, &args[1..]),
        "long" => stages::long(&Project::load()?, &args[1..]),
        "spec" if args[1..] == ["--list"] => spec::list(&Project::load()?),
        "decisions" => tidy::write_decision_index(&Project::load()?).map(|()| true),
        "help" | "--help" | "-h" => {
            print!("{}", usage());
            Ok(true)
        }
        name => match CHECKS.iter().find(|check| check.name == name) {
            Some(check) => Ok(report(check, &Project::load()?)),
            None => Err(format!("no command `{name}`; `cargo x` lists them")),
        },
    }
}

/// Runs every house rule; true when none is broken.
pub(crate) fn run_checks(project: &Project) -> bool {
    // Not `all`: the reader wants every finding, not those of the first broken rule.
    let broken = CHECKS.iter().filter(|check| !report(check, project)).count();
    broken == 0
}

fn report(check: &Check, project: &Project) -> bool {
    let findings = (check.run)(project);
    for Finding { path, line, message } in &findings {
        match line {
            0 => eprintln!("{}: {message}", path.display()),
            _ => eprintln!("{}:{line}: {message}", path.display()),
        }
    }
    let verdict = match findings.len() {
        0 => "ok".to_owned(),
        n => format!("{n} to mend"),
    };
    println!("{:<9} {verdict}", check.name);
    findings.is_empty()
}

fn usage() -> String {
    let mut text = String::from(
        "cargo x gate         what a change must pass: format, clippy and the rules below\n\
         cargo x test         everything CI runs, cheap to expensive (`cargo x test --help`)\n\
         cargo x tests NAME.. the tests of these crates, built as `cargo x test` builds them\n\
         cargo x long         the same at full size, piece by piece (`cargo x long --help`)\n\
         cargo x spec --list  each promise with its proofs and the stages that run them\n\
         cargo x decisions    rewrite the list in docs/decisions/README.md\n",
    );
    for check in CHECKS {
        text.push_str(&format!("cargo x {:<12} {}\n", check.name, check.asks));
    }
    text
}
