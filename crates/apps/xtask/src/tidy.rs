//! Style as a test: columns, leftovers, paths of one machine, links, and the list of decisions.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::Finding;
use crate::project::Project;

const COLUMNS_MAX: usize = 100;
/// Files longer than this are named in the report; they are a place to look, not a fault.
const LONG_FILE_LINES: usize = 800;
const DECISIONS: &str = "docs/decisions";
const DECISION_INDEX: &str = "docs/decisions/README.md";

/// Words that must not stand in a tracked file, and what to do instead. Each is put together from
/// two halves so that this table does not find itself.
const LEFTOVERS: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "do it, or open an issue and say in the text what is not there"),
    (concat!("FIX", "ME"), "mend it, or write the test that shows it and open an issue"),
    (concat!("XX", "X:"), "say what is odd and why it is right"),
    (concat!("/wo", "rk/"), "write a path relative to the project"),
    (concat!("/tmp/", "brief"), "write a path relative to the project"),
    (concat!("../", "shared"), "the project stands alone; cite the paper by name and section"),
];

pub(crate) fn check(project: &Project) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut long_files = Vec::new();
    for path in &project.files {
        let Some(text) = project.read(path) else { continue };
        check_text(path, &text, &mut findings);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") if text.lines().count() > LONG_FILE_LINES => {
                long_files.push(format!("{} {}", path.display(), text.lines().count()));
            }
            Some("md") => check_links(project, path, &text, &mut findings),
            _ => {}
        }
    }
    findings.extend(check_decisions(project));
    if !long_files.is_empty() {
        println!("files over {LONG_FILE_LINES} lines: {}", long_files.join(", "));
    }
    findings
}

fn check_text(path: &Path, text: &str, findings: &mut Vec<Finding>) {
    let code = matches!(
        path.extension().and_then(|extension| extension.to_str()),
        Some("rs" | "sh" | "c" | "h")
    );
    for (index, line) in text.lines().enumerate() {
        let mut add = |message: String| findings.push(Finding::new(path, index + 1, message));
        for (word, remedy) in LEFTOVERS.iter().filter(|(word, _)| line.contains(word)) {
            add(format!("`{word}` left in the text; {remedy}"));
        }
        let columns = line.chars().count();
        if code && columns > COLUMNS_MAX && !line.contains("https://") {
            add(format!("{columns} columns; break the line at {COLUMNS_MAX}"));
        }
        if code && line.ends_with([' ', '\t']) {
            add("blanks at the end of the line; delete them".to_owned());
        }
        if code && line.trim_start() == "#[ignore]" {
            add("a test ignored without a reason; write #[ignore = \"why\"]".to_owned());
        }
    }
    if code && !text.is_empty() && !text.ends_with('\n') {
        findings.push(Finding::new(path, 0, "no line end at the end of the file; add it"));
    }
}

/// Relative links of a page must lead to tracked files or folders.
fn check_links(project: &Project, path: &Path, text: &str, findings: &mut Vec<Finding>) {
    let folder = path.parent().unwrap_or(path);
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let file = normal(&folder.join(file));
            if !project.files.iter().any(|tracked| tracked.starts_with(&file)) {
                let message = format!("the link to `{target}` leads nowhere; mend or delete it");
                findings.push(Finding::new(path, index + 1, message));
            }
        }
    }
}

fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, part| {
        match part {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            part => normal.push(part),
        }
        normal
    })
}

fn check_decisions(project: &Project) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen: BTreeMap<&str, &Path> = BTreeMap::new();
    for (path, name) in decisions(project) {
        let number = name.split('-').next().unwrap_or_default();
        if number.len() != 4 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            findings.push(Finding::new(
                path,
                0,
                "name it NNNN-title.md, with the next free number",
            ));
        } else if let Some(other) = seen.insert(number, path) {
            let message = format!("has the number of {}; take the next free one", other.display());
            findings.push(Finding::new(path, 0, message));
        }
    }
    let index = project.read(Path::new(DECISION_INDEX)).unwrap_or_default();
    if index != decision_index(project) {
        let message = "does not list the decisions as they are; run `cargo x decisions`";
        findings.push(Finding::new(DECISION_INDEX, 0, message));
    }
    findings
}

fn decisions(project: &Project) -> impl Iterator<Item = (&Path, &str)> {
    let decision = |path: &Path| path.parent() == Some(Path::new(DECISIONS));
    project
        .files
        .iter()
        .map(PathBuf::as_path)
        .filter(move |path| decision(path) && *path != Path::new(DECISION_INDEX))
        .filter_map(|path| Some((path, path.file_name()?.to_str()?)))
}

fn decision_index(project: &Project) -> String {
    let mut index = String::from(
        "# Decisions\n\nOne page each: context, decision, consequences. A decision is changed by a \
         later one that says so.\nThis list is written by `cargo x decisions`.\n\n",
    );
    for (path, name) in decisions(project) {
        let text = project.read(path).unwrap_or_default();
        let heading = text.lines().next().unwrap_or_default().trim_start_matches('#').trim();
        let number = name.split('-').next().unwrap_or_default();
        let title = heading.strip_prefix(number).unwrap_or(heading);
        let title = title.trim_start_matches([':', '.', ' ', '-', '–', '—']);
        index.push_str(&format!("- [{number}]({name}) {title}\n"));
    }
    index
}

pub(crate) fn write_decision_index(project: &Project) -> Result<(), String> {
    fs::write(project.root.join(DECISION_INDEX), decision_index(project))
        .map_err(|error| format!("cannot write {DECISION_INDEX}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check_text(Path::new(path), text, &mut findings);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn leftovers_and_long_lines_are_found_with_a_remedy() {
        assert!(messages("a.rs", "fn f() {}\n").is_empty());
        assert!(messages("a.rs", &format!("// {}\n", LEFTOVERS[0].0))[0].contains("open an issue"));
        assert!(messages("a.rs", &format!("{}\n", "a".repeat(101)))[0].contains("break the line"));
        assert!(messages("a.md", &format!("{}\n", "a".repeat(101))).is_empty());
        assert!(messages("a.rs", "fn f() {} \n")[0].contains("blanks"));
        assert!(messages("a.rs", "fn f() {}")[0].contains("line end"));
        assert!(messages("a.rs", "#[ignore]\n")[0].contains("reason"));
    }

    #[test]
    fn paths_are_made_normal() {
        assert_eq!(normal(Path::new("docs/internals/../a.md")), Path::new("docs/a.md"));
        assert_eq!(normal(Path::new("./a.md")), Path::new("a.md"));
    }
}
