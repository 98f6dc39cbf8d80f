//! What a stage runs, read from the tables: `cargo x spec` asks it of every proof.
//!
//! A stage of tests runs what [`Which`](super::executables::Which) says. One that is a command runs
//! the programs, scripts and files its words name; of a script also what the script calls:
//! programs by `$binaries/NAME`, tests by `cargo x tests NAME..`.

use std::path::Path;

use super::executables::FEATURES;
use super::long::LONG;
use super::table::TEST;
use super::{Action, Stage};
use crate::inventory::{Test, holds};
use crate::project::Project;

/// Where programs are built, as stages name them.
const BUILT: &str = "target/test-fast/";

/// A stage, with what its command leads to.
pub(crate) struct Runner {
    stage: Stage,
    /// Whether only the long command has it.
    pub(crate) is_long: bool,
    /// The words of its command, each by itself.
    words: Vec<String>,
    /// The words of the scripts among them.
    scripts: Vec<String>,
}

/// Every stage there is.
pub(crate) fn runners(project: &Project) -> Vec<Runner> {
    let short = TEST.iter().map(|stage| Runner::new(project, stage, false));
    short.chain(LONG.iter().map(|stage| Runner::new(project, stage, true))).collect()
}

impl Runner {
    pub(super) fn new(project: &Project, stage: &Stage, is_long: bool) -> Runner {
        let words: Vec<String> = match stage.action {
            Action::Command(words) | Action::WithFeatures(words, _) => {
                words.iter().flat_map(|words| words.split_whitespace()).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        let scripts = words
            .iter()
            .filter(|word| word.starts_with("scripts/"))
            .filter_map(|word| project.read(Path::new(word)));
        let scripts = scripts.collect::<Vec<_>>().join("\n");
        let scripts = scripts.split_whitespace().map(|word| word.trim_matches('"').to_owned());
        Runner { stage: *stage, is_long, scripts: scripts.collect(), words }
    }

    /// As a reader is told it.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.stage.name, if self.is_long { " of the long command" } else { "" })
    }

    /// Whether it runs this test.
    pub(crate) fn runs(&self, test: &Test) -> bool {
        let (covers, loom) = match self.stage.action {
            Action::Tests(which, _) => {
                let full_name = [&test.modules[..], std::slice::from_ref(&test.name)].concat();
                let filter = which.filter(&test.package, &test.target);
                (filter.is_some_and(|filter| full_name.join("::").contains(filter)), false)
            }
            Action::Loom(packages) => {
                (packages.contains(&&*test.package) && test.target == "loom", true)
            }
            _ => (self.packages().any(|package| package == test.package), false),
        };
        covers && !test.is_ignored && test.conditions.iter().all(|cfg| is_built(test, cfg, loom))
    }

    /// The packages whose tests its scripts run.
    fn packages(&self) -> impl Iterator<Item = &str> {
        let calls = self
            .scripts
            .windows(3)
            .enumerate()
            .filter(|(_, words)| words.iter().map(String::as_str).eq(["cargo", "x", "tests"]));
        let is_name = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
        calls.flat_map(move |(at, _)| {
            self.scripts[at + 3..].iter().map(String::as_str).take_while(is_name)
        })
    }

    /// Whether it runs the program or script of this file.
    pub(crate) fn runs_program(&self, project: &Project, path: &Path) -> bool {
        if self.words.iter().any(|word| Path::new(word) == path) {
            return true;
        }
        if path.parent() == Some(Path::new("tests/programs")) {
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
            return self.calls("programs") && self.has_script(name);
        }
        let mut targets = project.packages.iter().flat_map(|package| &package.targets);
        targets.any(|target| target.root == path && self.calls(&target.name))
    }

    /// Whether it runs a program that is built.
    fn calls(&self, name: &str) -> bool {
        self.words.iter().any(|word| word.strip_prefix(BUILT) == Some(name))
            || self.scripts.iter().any(|word| {
                word.strip_prefix("$binaries/") == Some(name)
                    || word.split_once(BUILT).is_some_and(|(_, called)| called == name)
            })
    }

    /// Whether it has this one of the real programs: all but where some are named.
    fn has_script(&self, name: &str) -> bool {
        let named = self.words.iter().filter_map(|word| {
            word.strip_prefix("--only=").or_else(|| word.strip_prefix("--programs="))
        });
        let named: Vec<&str> = named.flat_map(|names| names.split(',')).collect();
        named.is_empty() || named.contains(&name)
    }
}

/// Whether what stands under `condition` is there, in a build of tests.
fn is_built(test: &Test, condition: &str, loom: bool) -> bool {
    holds(condition, &|name| match name.split_once('=') {
        None => match name {
            "loom" => loom,
            other => ["test", "unix", "debug_assertions"].contains(&other),
        },
        Some((key, value)) => {
            let value = value.trim_matches('"');
            match key {
                "feature" => {
                    let feature = format!("outboard-{}/{value}", test.package);
                    !loom && FEATURES.split(['=', ',']).any(|enabled| enabled == feature)
                }
                "target_os" => value == std::env::consts::OS,
                "target_arch" => value == std::env::consts::ARCH,
                _ => false,
            }
        }
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use super::super::executables::Which;
    use super::super::table::first;
    use super::*;

    /// The runner of a stage: `tests`, or `loom` of one crate.
    pub(crate) fn runner(name: &'static str) -> Runner {
        let action = match name {
            "tests" => Action::Tests(Which::Beside, &[]),
            _ => Action::Loom(&["link"]),
        };
        Runner::new(&Project::empty(), &first(name, "", 1, action), false)
    }

    fn test(package: &str, target: &str, conditions: &[&str]) -> Test {
        Test {
            package: package.into(),
            target: target.into(),
            path: PathBuf::new(),
            modules: Vec::new(),
            name: String::new(),
            is_ignored: false,
            conditions: conditions.iter().map(|&c| c.to_owned()).collect(),
        }
    }

    #[test]
    fn a_stage_runs_what_it_builds() {
        let (tests, loom) = (runner("tests"), runner("loom"));
        assert!(tests.runs(&test("kv", "it", &["all(test, not(loom))"])));
        assert!(!tests.runs(&test("link", "loom", &["loom"])));
        assert!(loom.runs(&test("link", "loom", &["loom"])));
        assert!(!loom.runs(&test("cache", "loom", &["loom"])), "it has another crate");
        assert!(!tests.runs(&test("attach", "sides", &[])), "that measures");
        assert!(!tests.runs(&test("kv", "it", &["feature = \"fuzz\""])));
        assert!(tests.runs(&test("store", "it", &["feature = \"rados\""])));
    }

    /// A test that is renamed would be missed only by the long command, hours into it.
    #[test]
    fn the_tests_that_stages_name_are_there() {
        let project = Project::load().unwrap();
        let tests = crate::inventory::find(&project);
        for stage in LONG {
            let Action::Tests(Which::Named(named), _) = stage.action else { continue };
            for (package, target, filter) in named {
                let is_it = |test: &&Test| {
                    (&*test.package, &*test.target) == (package, target)
                        && test.name.contains(filter)
                        && !test.is_ignored
                };
                assert!(tests.iter().find(is_it).is_some(), "{package} {target} {filter}");
            }
        }
    }

    #[test]
    fn a_command_runs_what_its_words_and_its_script_name() {
        let mut project = Project::empty();
        project.root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let of = |words| Runner::new(&project, &first("x", "", 1, Action::Command(words)), false);
        let has = |words, name: &str| {
            of(words).runs_program(&project, &Path::new("tests/programs").join(name))
        };
        assert!(has(&["target/test-fast/programs"], "tar.sh"));
        assert!(has(&["target/test-fast/programs", "--only=tar"], "tar.sh"));
        assert!(!has(&["target/test-fast/programs", "--only=tar"], "fio.sh"));
        assert!(!has(&["target/test-fast/kill"], "tar.sh"));
        assert!(has(&["scripts/test-rados", "--programs=fio,sqlite"], "sqlite.sh"));
        let in_a_pool = of(&["scripts/test-rados"]);
        assert!(in_a_pool.runs_program(&project, Path::new("scripts/test-rados")));
        assert!(in_a_pool.runs(&test("rados", "it", &["feature = \"librados\""])));
        assert!(!in_a_pool.runs(&test("kv", "it", &[])));
        assert!(in_a_pool.calls("kill") && in_a_pool.calls("rados") && !in_a_pool.calls("edges"));
    }
}
