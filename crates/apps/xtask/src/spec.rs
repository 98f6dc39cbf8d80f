//! `docs/SPECIFICATION.md` lists what Outboard promises, a row each: id, promise, proof.
//!
//! A proof is a list of names in backticks: `crate::test_name` (with the module before the name
//! where a crate has several tests of that name) or a path from the root (a program); or the word
//! `pending:` with what is missing; or names and then that. A name counts only if a stage of
//! `cargo x test` or `cargo x long` runs what it names: a function that is no test, is ignored,
//! stands under a `cfg` that no stage builds or in a file that no module names proves nothing.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Finding;
use crate::inventory::{self, Test};
use crate::project::Project;
use crate::stages::{self, Runner};

const SPECIFICATION: &str = "docs/SPECIFICATION.md";

pub(crate) fn check(project: &Project) -> Vec<Finding> {
    let path = Path::new(SPECIFICATION);
    let Some(text) = project.read(path) else {
        return vec![Finding::new(path, 0, "missing; write the table of promises and proofs")];
    };
    let evidence = Evidence::of(project);
    let (mut findings, mut ids) = (Vec::new(), BTreeSet::new());
    for (index, row) in
        text.lines().enumerate().filter_map(|(index, line)| Some((index, Row::of(line)?)))
    {
        let mut add = |message: String| findings.push(Finding::new(path, index + 1, message));
        if !ids.insert(row.id) {
            add(format!("a second row `{}`; give it an id of its own", row.id));
        }
        if row.names.is_empty() && row.missing.is_none() {
            add("no proof; name a test in backticks, or write `pending: what is missing`".into());
        }
        row.names.iter().filter_map(|name| evidence.stages_of(name).err()).for_each(add);
    }
    findings
}

/// Prints each promise's proofs, and the stages that run them.
pub(crate) fn list(project: &Project) -> Result<bool, String> {
    let text = project.read(Path::new(SPECIFICATION)).ok_or("there is no specification")?;
    let evidence = Evidence::of(project);
    for row in text.lines().filter_map(Row::of) {
        for name in &row.names {
            let stages = evidence.stages_of(name).unwrap_or_else(|fault| vec![fault]);
            println!("{:<5} {name}  [{}]", row.id, stages.join(", "));
        }
        if let Some(missing) = row.missing {
            println!("{:<5} pending: {missing}", row.id);
        }
    }
    Ok(true)
}

/// A promise.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    id: &'a str,
    /// What is said to prove it.
    names: Vec<&'a str>,
    /// What no proof is of.
    missing: Option<&'a str>,
}

impl<'a> Row<'a> {
    /// The row of a table whose first cell is an id such as `S3` or `C12c`.
    fn of(line: &'a str) -> Option<Row<'a>> {
        let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        let id = row.split('|').next()?.trim();
        let letters = id.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let letters = letters.trim_end_matches(|c: char| c.is_ascii_digit());
        let is_id = !letters.is_empty()
            && letters.len() < id.len()
            && letters.bytes().all(|byte| byte.is_ascii_uppercase());
        if !is_id {
            return None;
        }
        let proof = row.rsplit('|').next()?.trim();
        let (named, missing) = match proof.split_once("pending: ") {
            Some((named, missing)) => (named, Some(missing)),
            None => (proof, None),
        };
        Some(Row { id, names: named.split('`').skip(1).step_by(2).collect(), missing })
    }
}

/// What there is to prove with.
struct Evidence<'a> {
    project: &'a Project,
    tests: Vec<Test>,
    runners: Vec<Runner>,
}

impl Evidence<'_> {
    fn of(project: &Project) -> Evidence<'_> {
        Evidence { project, tests: inventory::find(project), runners: stages::runners(project) }
    }

    /// The stages that run what is named, or why none does.
    fn stages_of(&self, name: &str) -> Result<Vec<String>, String> {
        let (tests, runs): (Vec<&Test>, _) = match name.split_once("::") {
            Some((package, path)) => (self.called(name, package, path)?, None),
            None => (self.in_file(name)?, Some(Path::new(name))),
        };
        let by_test = |runner: &&Runner| {
            tests.iter().any(|test| runner.runs(test))
                || runs.is_some_and(|path| runner.runs_program(self.project, path))
        };
        let stages: Vec<&Runner> = self.runners.iter().filter(by_test).collect();
        if stages.is_empty() {
            return Err(match tests.first() {
                Some(test) if !test.conditions.is_empty() => format!(
                    "no stage builds `{name}`: it stands under `cfg({})`",
                    test.conditions.join(")`, `cfg(")
                ),
                _ => format!("no stage of `cargo x test` or `cargo x long` runs `{name}`"),
            });
        }
        // What every test run has needs no word of the long one.
        let is_daily = stages.iter().any(|stage| !stage.is_long);
        Ok(stages.into_iter().filter(|stage| stage.is_long != is_daily).map(Runner::name).collect())
    }

    /// The tests of this name, which are in one file.
    fn called(&self, name: &str, package: &str, path: &str) -> Result<Vec<&Test>, String> {
        let (modules, function) = path.rsplit_once("::").unwrap_or(("", path));
        let is_meant = |test: &&Test| {
            let mut of_test = test.modules.iter();
            test.package == package
                && test.name == function
                && modules.split("::").all(|m| m.is_empty() || of_test.any(|other| other == m))
        };
        let tests: Vec<&Test> = self.tests.iter().filter(is_meant).collect();
        if tests.is_empty() {
            return Err(format!(
                "there is no test `{name}`; write `crate::function` of a function under \
                 `#[test]`, or a path from the root"
            ));
        }
        let run: Vec<&Test> = tests.into_iter().filter(|test| !test.is_ignored).collect();
        let Some(first) = run.first() else {
            return Err(format!(
                "`{name}` is ignored, and no stage runs it; let the environment make it long"
            ));
        };
        match run.iter().find(|test| test.path != first.path) {
            Some(other) => Err(format!(
                "`{name}` is in {} and in {}; write a module before the function",
                first.path.display(),
                other.path.display()
            )),
            None => Ok(run),
        }
    }

    /// The tests in this file.
    fn in_file(&self, name: &str) -> Result<Vec<&Test>, String> {
        if !self.project.files.iter().any(|file| file == Path::new(name)) {
            return Err(format!("there is no file `{name}`; write a path from the root"));
        }
        let is_there = |test: &&Test| test.path == Path::new(name) && !test.is_ignored;
        Ok(self.tests.iter().filter(is_there).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::tests::runner;

    #[test]
    fn rows_with_an_id_have_a_proof() {
        let row = Row::of("| S3 | a promise | `kv::test`, `a/b.rs` |").unwrap();
        assert_eq!(
            (row.id, &row.names[..], row.missing),
            ("S3", &["kv::test", "a/b.rs"][..], None)
        );
        let row = Row::of("| C12c | a promise | `kv::test`; pending: `more` |").unwrap();
        assert_eq!(
            (row.id, &row.names[..], row.missing),
            ("C12c", &["kv::test"][..], Some("`more`"))
        );
        assert_eq!(Row::of("| C1 | a promise | pending |").unwrap().missing, None);
        assert_eq!(Row::of("| id | promise | proof |"), None);
        assert_eq!(Row::of("|-|-|-|"), None);
        assert_eq!(Row::of("text"), None);
    }

    fn test(name: &str, target: &str) -> Test {
        Test {
            package: "kv".into(),
            target: target.into(),
            path: format!("kv/{target}.rs").into(),
            modules: vec!["tests".into()],
            name: name.into(),
            is_ignored: false,
            conditions: Vec::new(),
        }
    }

    /// What passed for a proof: a function that is no test, an ignored one, one that only another
    /// `cfg` builds, and one that no stage runs.
    #[test]
    fn what_no_stage_runs_is_no_proof() {
        let project = Project::empty();
        let loom = Test { conditions: vec!["loom".into()], ..test("under_loom", "loom") };
        let featured = Test { conditions: vec!["feature = \"x\"".into()], ..test("far", "it") };
        let ignored = Test { is_ignored: true, ..test("ignored", "it") };
        let elsewhere = Test { package: "rados".into(), ..test("in_a_cluster", "it") };
        let evidence = |runners| Evidence {
            project: &project,
            tests: vec![
                test("good", "it"),
                test("twice", "it"),
                test("twice", "other"),
                loom.clone(),
                featured.clone(),
                ignored.clone(),
                elsewhere.clone(),
            ],
            runners,
        };
        let refused = |name: &str, word: &str| {
            let all = evidence(vec![runner("tests"), runner("loom")]);
            let fault = all.stages_of(name).unwrap_err();
            assert!(fault.contains(word), "{fault}");
        };
        let all = evidence(vec![runner("tests"), runner("loom")]);
        assert_eq!(all.stages_of("kv::good"), Ok(vec!["tests".to_owned()]));
        assert_eq!(all.stages_of("kv::tests::good"), Ok(vec!["tests".to_owned()]));
        refused("kv::helper", "no test `kv::helper`");
        refused("link::good", "no test `link::good`");
        refused("kv::elsewhere::good", "no test");
        refused("kv::ignored", "ignored");
        refused("kv::far", "no stage builds `kv::far`: it stands under `cfg(feature = \"x\")`");
        refused("kv::under_loom", "cfg(loom)");
        refused("kv::twice", "write a module");
        refused("rados::in_a_cluster", "no stage of");
        refused("kv/nowhere.rs", "no file");
        assert!(evidence(Vec::new()).stages_of("kv::good").is_err());
    }
}
