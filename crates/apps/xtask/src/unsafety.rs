//! Unsafe code has an address: it stands in the folders named in the ledger, each use beside a
//! `SAFETY` comment that names the fact relied upon; everything else forbids it.

use std::path::Path;

use crate::Finding;
use crate::project::{Package, Project};
use crate::source::{Source, words};

/// How far above its block a `SAFETY` comment may start.
const COMMENT_LINES_MAX: usize = 12;

pub(crate) fn check(project: &Project) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, source) in project.sources() {
        let allowed = project.unsafe_folders.iter().any(|folder| path.starts_with(folder));
        for offset in words(&source.code, "unsafe") {
            let line = source.line_of(offset);
            if !allowed {
                let message = "unsafe code outside the folders of the ledger; move it to \
                               `os/src/sys` or a `sys` folder of its crate, behind a safe function";
                findings.push(Finding::new(path, line, message));
            } else if needs_comment(&source, offset) && !has_comment(&source, line) {
                let message = "no `// SAFETY:` comment; say which fact makes this sound";
                findings.push(Finding::new(path, line, message));
            }
        }
    }
    let roots = project.packages.iter().flat_map(|package| check_roots(project, package));
    findings.extend(roots);
    findings
}

/// Blocks and impls state a fact here; an `unsafe fn` states its demands in its documentation,
/// which clippy checks.
fn needs_comment(source: &Source, offset: usize) -> bool {
    let rest = source.code[offset + "unsafe".len()..].trim_start();
    rest.starts_with('{') || rest.starts_with("impl")
}

fn has_comment(source: &Source, line: usize) -> bool {
    let first = line.saturating_sub(COMMENT_LINES_MAX);
    source.text.lines().take(line).skip(first).any(|text| text.contains("SAFETY:"))
}

/// A crate without a folder in the ledger forbids unsafe code in the root of every target.
fn check_roots(project: &Project, package: &Package) -> Vec<Finding> {
    let holds_unsafe =
        |path: &Path| project.unsafe_folders.iter().any(|folder| folder.starts_with(path));
    if holds_unsafe(&package.folder) {
        return Vec::new();
    }
    let forbids = |path: &Path| {
        project.read(path).is_none_or(|text| text.contains("#![forbid(unsafe_code)]"))
    };
    let roots = package.roots.iter().filter(|path| !forbids(path));
    roots
        .map(|path| Finding::new(path, 1, "write `#![forbid(unsafe_code)]` under the module docs"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_needs_its_comment_nearby() {
        let with =
            Source::new("// SAFETY: the index was checked above.\nunsafe { f() }".to_owned());
        let without = Source::new("fn g() {\n    unsafe { f() }\n}".to_owned());
        assert!(has_comment(&with, 2));
        assert!(!has_comment(&without, 2));
        assert!(needs_comment(&without, without.code.find("unsafe").unwrap()));
        let function = Source::new("unsafe fn f() {}".to_owned());
        assert!(!needs_comment(&function, 0));
    }
}
