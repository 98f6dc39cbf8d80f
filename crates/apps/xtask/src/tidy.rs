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
const INDEX_OPENING: &str = "\
# Decisions

What still constrains and could have been otherwise, one page each: context, decision, what was
considered, consequences. Why a mechanism is as it is stands beside it, on the page of its part in
`docs/internals` (\"Why it is so\"). A decision is changed by rewriting its page; numbers are never
given out twice. This list is written by `cargo x decisions`.
";

/// A part of the house that has decisions: its folder, and how the list speaks of it.
struct Part {
    folder: &'static str,
    title: &'static str,
    /// The pages that describe the part, as links.
    pages: &'static str,
}

/// In the order of the list. A new part is a line here.
const PARTS: &[Part] = &[
    Part {
        folder: "house",
        title: "The house",
        pages: "The map: [ARCHITECTURE](../../ARCHITECTURE.md).",
    },
    Part {
        folder: "link",
        title: "The link and its rings",
        pages: "Pages: [link](../internals/link.md), [virtiofs](../internals/virtiofs.md), \
                [rings](../internals/rings.md).",
    },
    Part {
        folder: "store",
        title: "Stores: engines, file objects, pools",
        pages: "Pages: [kv](../internals/kv.md), [objects](../internals/objects.md), \
                [pool](../internals/pool.md), [rados](../internals/rados.md).",
    },
    Part {
        folder: "kvfs",
        title: "KVFS",
        pages: "Pages: [kvfs](../internals/kvfs.md), [its data](../internals/kvfs-data.md), \
                [locks](../internals/locks.md).",
    },
    Part {
        folder: "shared",
        title: "Shared volumes",
        pages: "Page: [shared](../internals/shared.md).",
    },
    Part {
        folder: "session",
        title: "Sessions and loss",
        pages: "Pages: [dpc](../internals/dpc.md), [loss](../internals/loss.md).",
    },
    Part {
        folder: "cache",
        title: "The hybrid cache",
        pages: "Page: [cache](../internals/cache.md).",
    },
    Part {
        folder: "fronts",
        title: "Fronts: the mount, programs past the kernel",
        pages: "Pages: [fuse](../internals/fuse.md), [preload](../internals/preload.md).",
    },
    Part {
        folder: "pageserver",
        title: "The page server",
        pages: "Pages: [files](../internals/files.md), [director](../internals/director.md), \
                [plug-ins](../internals/plugins.md), [servers](../internals/servers.md).",
    },
];

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
    for path in decisions(&project.files) {
        let Some((_, name)) = placed(path) else {
            let parts: Vec<_> = PARTS.iter().map(|part| part.folder).collect();
            let message = format!("lay it into the folder of its part: {}", parts.join(", "));
            findings.push(Finding::new(path, 0, message));
            continue;
        };
        let Some(number) = number(name) else {
            let message = "name it NNNN-title.md, with the next free number";
            findings.push(Finding::new(path, 0, message));
            continue;
        };
        if let Some(other) = seen.insert(number, path) {
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

/// Every page below the folder of decisions but the list itself.
fn decisions(files: &[PathBuf]) -> impl Iterator<Item = &Path> {
    let decision = |path: &&Path| path.starts_with(DECISIONS) && *path != Path::new(DECISION_INDEX);
    files.iter().map(PathBuf::as_path).filter(decision)
}

/// The part whose folder a page lies in, and the page's name there.
fn placed(path: &Path) -> Option<(&'static Part, &str)> {
    let folder = path.parent()?.strip_prefix(DECISIONS).ok()?.to_str()?;
    let part = PARTS.iter().find(|part| part.folder == folder)?;
    Some((part, path.file_name()?.to_str()?))
}

fn number(name: &str) -> Option<&str> {
    let number = name.split('-').next()?;
    let digits = number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit());
    digits.then_some(number)
}

fn decision_index(project: &Project) -> String {
    let pages: Vec<_> = decisions(&project.files)
        .map(|path| (path, project.read(path).unwrap_or_default()))
        .collect();
    index_of(&pages)
}

/// The list: a heading for each part in the order of `PARTS`, and its pages by number.
fn index_of(pages: &[(&Path, String)]) -> String {
    let mut index = String::from(INDEX_OPENING);
    for part in PARTS {
        let pages = pages.iter().filter_map(|(path, text)| {
            let (found, name) = placed(path)?;
            (found.folder == part.folder).then_some((name, text))
        });
        let pages: BTreeMap<&str, &String> = pages.collect();
        if pages.is_empty() {
            continue;
        }
        index.push_str(&format!("\n## {}\n\n{}\n\n", part.title, part.pages));
        for (name, text) in pages {
            let number = number(name).unwrap_or_default();
            let title = title(number, text);
            index.push_str(&format!("- [{number}]({}/{name}) {title}\n", part.folder));
        }
    }
    index
}

fn title<'a>(number: &str, text: &'a str) -> &'a str {
    let heading = text.lines().next().unwrap_or_default().trim_start_matches('#').trim();
    let title = heading.strip_prefix(number).unwrap_or(heading);
    title.trim_start_matches([':', '.', ' ', '-', '–', '—'])
}

pub(crate) fn write_decision_index(project: &Project) -> Result<(), String> {
    fs::write(project.root.join(DECISION_INDEX), decision_index(project))
        .map_err(|error| format!("cannot write {DECISION_INDEX}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
    fn decisions_are_listed_by_part_and_number() {
        let page = |text: &str| text.to_owned();
        let pages = [
            (Path::new("docs/decisions/store/0022-b.md"), page("# 0022: Second\n")),
            (Path::new("docs/decisions/store/0020-a.md"), page("# 0020. First\n")),
            (Path::new("docs/decisions/house/0001-c.md"), page("# 0001: Floors\n")),
        ];
        let index = index_of(&pages);
        let place = |line: &str| index.find(line).unwrap_or_else(|| panic!("{line} in {index}"));
        assert!(place("## The house\n") < place("- [0001](house/0001-c.md) Floors\n"));
        assert!(place("(house/0001-c.md)") < place("## Stores"));
        assert!(
            place("- [0020](store/0020-a.md) First\n") < place("- [0022](store/0022-b.md) Sec")
        );
        assert!(!index.contains("## KVFS"), "a part without decisions has no heading");
    }

    #[test]
    fn a_decision_lies_in_the_folder_of_a_part_under_a_number() {
        assert!(placed(Path::new("docs/decisions/kvfs/0030-a.md")).is_some());
        assert!(placed(Path::new("docs/decisions/0030-a.md")).is_none());
        assert!(placed(Path::new("docs/decisions/nowhere/0030-a.md")).is_none());
        assert_eq!(number("0030-a.md"), Some("0030"));
        assert_eq!(number("030-a.md"), None);
        assert_eq!(number("notes.md"), None);
    }

    #[test]
    fn every_part_has_a_folder_of_its_own() {
        let folders: BTreeSet<_> = PARTS.iter().map(|part| part.folder).collect();
        assert_eq!(folders.len(), PARTS.len());
    }

    #[test]
    fn paths_are_made_normal() {
        assert_eq!(normal(Path::new("docs/internals/../a.md")), Path::new("docs/a.md"));
        assert_eq!(normal(Path::new("./a.md")), Path::new("a.md"));
    }
}
