//! `docs/SPECIFICATION.md` lists what Outboard promises, a row each: id, promise, proof.
//!
//! A proof is a list of names in backticks: `crate::test_name` (a function of that crate) or a path
//! from the root (a program); or the word `pending` with what is missing. The check finds each one,
//! so that a promise cannot outlive its test.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Finding;
use crate::project::Project;
use crate::source::words;

const SPECIFICATION: &str = "docs/SPECIFICATION.md";

pub(crate) fn check(project: &Project) -> Vec<Finding> {
    let path = Path::new(SPECIFICATION);
    let Some(text) = project.read(path) else {
        return vec![Finding::new(path, 0, "missing; write the table of promises and proofs")];
    };
    let functions = functions(project);
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(proof) = proof_of(line) else { continue };
        if proof.starts_with("pending") && proof.len() > "pending: ".len() {
            continue;
        }
        let names: Vec<&str> = proof.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            let message = "no proof; name a test in backticks, or write `pending: what is missing`";
            findings.push(Finding::new(path, index + 1, message));
        }
        for name in names.iter().filter(|name| !exists(project, &functions, name)) {
            let message = format!(
                "there is no test `{name}`; write `crate::function`, or a path from the root"
            );
            findings.push(Finding::new(path, index + 1, message));
        }
    }
    findings
}

/// The last cell of a row whose first cell is an id such as `S3`.
fn proof_of(line: &str) -> Option<&str> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let id = row.split('|').next()?.trim();
    let letters = id.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_id = !letters.is_empty()
        && letters.len() < id.len()
        && letters.bytes().all(|byte| byte.is_ascii_uppercase());
    if is_id { row.rsplit('|').next().map(str::trim) } else { None }
}

/// The names of all functions of each crate, by its folder's name.
fn functions(project: &Project) -> BTreeMap<String, Vec<String>> {
    let mut functions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, source) in project.sources() {
        let Some(package) = project.package_of(path) else { continue };
        let names = words(&source.code, "fn").filter_map(|at| {
            let rest = source.code[at + 2..].trim_start();
            let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
            (len > 0).then(|| rest[..len].to_owned())
        });
        functions.entry(package.name.clone()).or_default().extend(names);
    }
    functions
}

fn exists(project: &Project, functions: &BTreeMap<String, Vec<String>>, name: &str) -> bool {
    match name.split_once("::") {
        Some((package, path)) => {
            let function = path.rsplit("::").next().unwrap_or(path);
            functions.get(package).is_some_and(|names| names.iter().any(|n| n == function))
        }
        None => project.files.iter().any(|file| file == Path::new(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_an_id_have_a_proof() {
        assert_eq!(proof_of("| S3 | a promise | `kv::test` |"), Some("`kv::test`"));
        assert_eq!(proof_of("| id | promise | proof |"), None);
        assert_eq!(proof_of("|-|-|-|"), None);
        assert_eq!(proof_of("text"), None);
    }
}
