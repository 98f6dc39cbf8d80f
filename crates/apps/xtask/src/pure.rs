//! Below floor 4 nothing owns a clock, a thread, a socket, a file or a process: time is an argument
//! and effects go out through ports, so that the simulated world can run the same code.

use std::path::{Path, PathBuf};

use crate::Finding;
use crate::project::Project;
use crate::source::words;

/// The first floor that may touch the world.
const WORLDS: u32 = 4;

/// What is banned, and what to write instead.
const BANS: &[(&[&str], &str)] = &[
    (&["time", "Instant"], "take `outboard_base::Time` as an argument"),
    (&["time", "SystemTime"], "take `outboard_base::Timestamp` as an argument"),
    (&["thread"], "return an effect or a future; a world owns the threads"),
    (&["net"], "define a port; a world owns the sockets"),
    (&["os", "unix", "net"], "define a port; a world owns the sockets"),
    (&["fs"], "define a port; a world owns the files"),
    (&["process"], "return an error; only the program starts or ends processes"),
    (&["env"], "take the setting as an argument"),
];

pub(crate) fn check(project: &Project) -> Vec<Finding> {
    let tests = TestFiles::find(project);
    let mut findings = Vec::new();
    for (path, source) in project.sources() {
        let floor = project.package_of(path).and_then(|package| project.floors.get(&package.name));
        if floor.is_none_or(|floor| *floor >= WORLDS) || tests.contains(path) {
            continue;
        }
        for (offset, used) in std_paths(&source.production) {
            let ban = BANS.iter().find(|(banned, _)| {
                used.len() >= banned.len() && used.iter().zip(*banned).all(|(a, b)| a == b)
            });
            if let Some((banned, remedy)) = ban {
                let message =
                    format!("`std::{}` below floor {WORLDS}; {remedy}", banned.join("::"));
                findings.push(Finding::new(path, source.line_of(offset), message));
            }
        }
    }
    findings
}

/// Files that hold tests only: `tests/` folders, and modules declared under `cfg(test)`.
pub(crate) struct TestFiles {
    modules: Vec<PathBuf>,
}

impl TestFiles {
    pub(crate) fn find(project: &Project) -> Self {
        let mut modules = Vec::new();
        for (path, source) in project.sources() {
            let folder = module_folder(path);
            modules.extend(source.test_modules.iter().map(|name| folder.join(name)));
        }
        Self { modules }
    }

    pub(crate) fn contains(&self, path: &Path) -> bool {
        let folders = ["tests", "benches", "examples", "fuzz"];
        path.components().any(|part| folders.iter().any(|name| part.as_os_str() == *name))
            || self.modules.iter().any(|module| path.with_extension("").starts_with(module))
    }
}

/// The folder in which a file's child modules live.
fn module_folder(path: &Path) -> PathBuf {
    match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main" | "mod") | None => path.parent().unwrap_or(path).to_path_buf(),
        Some(_) => path.with_extension(""),
    }
}

/// Every path that starts at `std`, each with its offset; use trees are unfolded.
fn std_paths(code: &str) -> Vec<(usize, Vec<String>)> {
    let mut paths = Vec::new();
    for at in words(code, "std") {
        if let Some(rest) = code[at + 3..].strip_prefix("::") {
            unfold(rest, &mut Vec::new(), &mut |path| paths.push((at, path.to_vec())));
        }
    }
    paths
}

/// Reads one use tree from the start of `rest`; returns how many bytes it took.
fn unfold(rest: &str, prefix: &mut Vec<String>, found: &mut impl FnMut(&[String])) -> usize {
    let blank = rest.len() - rest.trim_start().len();
    let tree = &rest[blank..];
    if let Some(group) = tree.strip_prefix('{') {
        let mut at = 0;
        loop {
            at += unfold(&group[at..], &mut prefix.clone(), found);
            // Skip to the next member: `as name` may stand between.
            let Some(stop) = group[at..].find([',', '}']) else { return rest.len() };
            let closed = group.as_bytes()[at + stop] == b'}';
            at += stop + 1;
            if closed || group[at..].trim_start().starts_with('}') {
                return blank + 1 + at;
            }
        }
    }
    let len = tree.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(tree.len());
    prefix.push(tree[..len].to_owned());
    match tree[len..].strip_prefix("::") {
        Some(more) => blank + len + 2 + unfold(more, prefix, found),
        None => {
            found(prefix);
            blank + len
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(code: &str) -> Vec<String> {
        std_paths(code).into_iter().map(|(_, path)| path.join("::")).collect()
    }

    #[test]
    fn use_trees_are_unfolded() {
        assert_eq!(paths("use std::fs;"), ["fs"]);
        assert_eq!(paths("let t = std::time::Instant::now();"), ["time::Instant::now"]);
        assert_eq!(
            paths("use std::{fmt as f, time::{Duration, Instant}, thread};"),
            ["fmt", "time::Duration", "time::Instant", "thread"]
        );
        assert_eq!(
            paths("use std::{\n    net::{\n        TcpStream,\n    },\n};"),
            ["net::TcpStream"]
        );
        assert_eq!(paths("use std::io::{self, Read};"), ["io::self", "io::Read"]);
    }

    #[test]
    fn other_crates_are_left_alone() {
        assert!(paths("use rustix::fs; use mystd::fs; use std_fs::x;").is_empty());
    }

    #[test]
    fn modules_of_tests_are_found_by_their_place() {
        assert_eq!(
            module_folder(Path::new("crates/mechanisms/kv/src/lib.rs")),
            Path::new("crates/mechanisms/kv/src")
        );
        assert_eq!(
            module_folder(Path::new("crates/mechanisms/kv/src/a.rs")),
            Path::new("crates/mechanisms/kv/src/a")
        );
        let files = TestFiles { modules: vec![PathBuf::from("crates/mechanisms/kv/src/a/tests")] };
        assert!(files.contains(Path::new("crates/mechanisms/kv/src/a/tests.rs")));
        assert!(files.contains(Path::new("crates/mechanisms/kv/tests/it/main.rs")));
        assert!(!files.contains(Path::new("crates/mechanisms/kv/src/a.rs")));
    }
}
