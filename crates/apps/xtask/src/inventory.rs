//! The tests of the project, as the compiler would find them, read from the sources.
//!
//! From the root of each test target the `mod` lines are followed, so a file that no module names
//! holds no tests. A test keeps what decides whether it runs: the `cfg`s around it, whether it is
//! ignored, and the target it is built into. Tests that a macro makes are counted where the macro
//! is invoked. Nothing is built; what rustc would say of a `cfg` is said by [`holds`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::project::{Project, Target};
use crate::source::{Source, matching_brace, words};

/// One function under `#[test]`, in one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Test {
    /// The crate, by its folder's name.
    pub(crate) package: String,
    pub(crate) target: String,
    pub(crate) path: PathBuf,
    /// The modules around it, outermost first.
    pub(crate) modules: Vec<String>,
    pub(crate) name: String,
    pub(crate) is_ignored: bool,
    /// The insides of every `cfg(..)` around it.
    pub(crate) conditions: Vec<String>,
}

/// Every test of every target that cargo tests.
pub(crate) fn find(project: &Project) -> Vec<Test> {
    let sources: BTreeMap<PathBuf, Source> =
        project.sources().map(|(path, source)| (path.to_path_buf(), source)).collect();
    let macros: Vec<Macro> =
        sources.iter().flat_map(|(path, source)| macros_of(path, source)).collect();
    let mut tests = Vec::new();
    for package in &project.packages {
        for target in package.targets.iter().filter(|target| target.is_tested) {
            tests.extend(tests_of(&package.name, target, &sources, &macros));
        }
    }
    tests
}

/// A `macro_rules!` that makes tests.
struct Macro {
    path: PathBuf,
    name: String,
    /// Tests whose names stand in it, and whether each is ignored.
    fixed: Vec<(String, bool)>,
    /// Whether it also makes a test of names it is given.
    takes_names: bool,
}

/// A file on the way from a target's root.
struct File {
    path: PathBuf,
    modules: Vec<String>,
    conditions: Vec<String>,
    /// Where the files of its modules lie.
    folder: PathBuf,
}

fn tests_of(
    package: &str,
    target: &Target,
    sources: &BTreeMap<PathBuf, Source>,
    macros: &[Macro],
) -> Vec<Test> {
    let root = File {
        path: target.root.clone(),
        modules: Vec::new(),
        conditions: Vec::new(),
        folder: target.root.parent().unwrap_or(&target.root).to_path_buf(),
    };
    let (mut waiting, mut seen, mut tests) = (vec![root], Vec::new(), Vec::new());
    while let Some(file) = waiting.pop() {
        let Some(source) = sources.get(&file.path) else { continue };
        if seen.contains(&file.path) {
            continue;
        }
        seen.push(file.path.clone());
        let scopes = Scopes::of(source, &file);
        waiting.extend(children(source, &file, &scopes, sources));
        let found = functions(source, &file.path, macros);
        tests.extend(found.into_iter().map(|(at, name, is_ignored)| Test {
            package: package.to_owned(),
            target: target.name.clone(),
            path: file.path.clone(),
            modules: scopes.modules(at),
            name,
            is_ignored,
            conditions: scopes.conditions(at),
        }));
    }
    tests
}

/// What holds at a place of a file: from the file, and from what stands around the place.
struct Scopes {
    modules: Vec<String>,
    conditions: Vec<String>,
    /// Inline modules and items under a `cfg`, from where to where.
    inline: Vec<(usize, usize, String)>,
    cfgs: Vec<(usize, usize, String)>,
}

impl Scopes {
    fn of(source: &Source, file: &File) -> Scopes {
        let code = &source.code;
        let mut conditions = file.conditions.clone();
        let mut cfgs = Vec::new();
        for (at, opening) in code.match_indices("cfg(") {
            // Literals are blank in `code`: what a feature is called is read from the text.
            let inside = |end: usize| source.text[at + opening.len()..end].to_owned();
            let Some(end) = closing(code, at + opening.len() - 1) else { continue };
            if code[..at].ends_with("#![") {
                conditions.push(inside(end));
            } else if code[..at].ends_with("#[") {
                cfgs.push((at, item_end(code, end + 2), inside(end)));
            }
        }
        let inline = words(code, "mod").filter_map(|at| {
            let (name, rest) = word_at(code, at + 3)?;
            let open = rest + code[rest..].len() - code[rest..].trim_start().len();
            code[open..].starts_with('{').then(|| (open, matching_brace(code, open), name))
        });
        Scopes { modules: file.modules.clone(), conditions, inline: inline.collect(), cfgs }
    }

    fn modules(&self, at: usize) -> Vec<String> {
        self.modules.iter().cloned().chain(around(&self.inline, at)).collect()
    }

    fn conditions(&self, at: usize) -> Vec<String> {
        self.conditions.iter().cloned().chain(around(&self.cfgs, at)).collect()
    }
}

fn around(ranges: &[(usize, usize, String)], at: usize) -> impl Iterator<Item = String> {
    ranges
        .iter()
        .filter(move |(from, to, _)| (*from..*to).contains(&at))
        .map(|(_, _, it)| it.clone())
}

/// The files of the modules that `file` declares.
fn children(
    source: &Source,
    file: &File,
    scopes: &Scopes,
    sources: &BTreeMap<PathBuf, Source>,
) -> Vec<File> {
    let code = &source.code;
    let declared = words(code, "mod").filter_map(|at| {
        let (name, rest) = word_at(code, at + 3)?;
        code[rest..].trim_start().starts_with(';').then_some((at, name))
    });
    let mut children = Vec::new();
    for (at, name) in declared {
        let inside =
            around(&scopes.inline, at).fold(file.folder.clone(), |dir, name| dir.join(name));
        let given = attributes(source, at).into_iter().find_map(|attribute| {
            attribute.strip_prefix("path")?.split('"').nth(1).map(str::to_owned)
        });
        let candidates = match given {
            Some(given) => vec![plain(&file.path.parent().unwrap_or(&file.path).join(given))],
            None => vec![inside.join(format!("{name}.rs")), inside.join(&name).join("mod.rs")],
        };
        let Some(path) = candidates.into_iter().find(|path| sources.contains_key(path)) else {
            continue;
        };
        let is_mod = path.file_name().is_some_and(|file| file == "mod.rs");
        let folder = if is_mod { path.parent() } else { None };
        children.push(File {
            folder: folder.map_or_else(|| path.with_extension(""), Path::to_path_buf),
            modules: scopes.modules(at).into_iter().chain([name]).collect(),
            conditions: scopes.conditions(at),
            path,
        });
    }
    children
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        if part.as_os_str() == ".." {
            plain.pop();
        } else {
            plain.push(part);
        }
        plain
    })
}

/// The tests that stand in a file or are made there by a macro: place, name, whether ignored.
fn functions(source: &Source, path: &Path, macros: &[Macro]) -> Vec<(usize, String, bool)> {
    let code = &source.code;
    let bodies = macro_bodies(source);
    let mut found: Vec<_> = test_functions(source)
        .into_iter()
        .filter(|(at, ..)| !bodies.iter().any(|(_, from, to)| (*from..*to).contains(at)))
        .filter_map(|(at, name, is_ignored)| Some((at, name?, is_ignored)))
        .collect();
    for invoked in macros {
        let own = |other: &Macro| other.name == invoked.name && other.path == path;
        if invoked.path != path && macros.iter().any(own) {
            continue;
        }
        for at in words(code, &invoked.name) {
            let rest = at + invoked.name.len();
            let Some(open) = code[rest..].find(['{', '(', ';']).map(|open| rest + open) else {
                continue;
            };
            if code[rest..open].trim() != "!" || code[open..].starts_with(';') {
                continue;
            }
            let fixed = invoked.fixed.iter().cloned();
            found.extend(fixed.map(|(name, is_ignored)| (at, name, is_ignored)));
            let close = closing(code, open).unwrap_or(code.len());
            if invoked.takes_names {
                let names = code[open..close].split(|c: char| !c.is_alphanumeric() && c != '_');
                let names = names.filter(|name| !name.is_empty());
                found.extend(names.map(|name| (at, name.to_owned(), false)));
            }
        }
    }
    found
}

/// Each `macro_rules!`: its name, from where to where.
fn macro_bodies(source: &Source) -> Vec<(String, usize, usize)> {
    let code = &source.code;
    let found = words(code, "macro_rules").filter_map(|at| {
        let (name, rest) = word_at(code, at + "macro_rules!".len())?;
        let open = rest + code[rest..].find(['{', '('])?;
        Some((name, open, closing(code, open)?))
    });
    found.collect()
}

fn macros_of(path: &Path, source: &Source) -> Vec<Macro> {
    let tests = test_functions(source);
    let made = macro_bodies(source).into_iter().map(|(name, from, to)| {
        let inside = tests.iter().filter(|(at, ..)| (from..to).contains(at));
        let fixed = inside.clone().filter_map(|(_, name, is)| Some((name.clone()?, *is)));
        let takes_names = inside.clone().any(|(_, name, _)| name.is_none());
        Macro { path: path.to_path_buf(), name, fixed: fixed.collect(), takes_names }
    });
    made.filter(|made| made.takes_names || !made.fixed.is_empty()).collect()
}

/// Each function under `#[test]`: its place, its name (none if a macro is given it), and whether it
/// is ignored.
fn test_functions(source: &Source) -> Vec<(usize, Option<String>, bool)> {
    let code = &source.code;
    let found = words(code, "fn").filter_map(|at| {
        let attributes = attributes(source, at);
        if !attributes.iter().any(|attribute| attribute == "test") {
            return None;
        }
        let is_ignored = attributes.iter().any(|attribute| {
            attribute.starts_with("ignore")
                || attribute.starts_with("cfg_attr") && words(attribute, "ignore").next().is_some()
        });
        Some((at, word_at(code, at + 2).map(|(name, _)| name), is_ignored))
    });
    found.collect()
}

/// The word that begins at the next place that is not blank, and where it ends.
fn word_at(code: &str, at: usize) -> Option<(String, usize)> {
    let rest = code.get(at..)?;
    let from = at + rest.len() - rest.trim_start().len();
    let len = code[from..].find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (len > 0).then(|| (code[from..from + len].to_owned(), from + len))
}

/// The insides of the attributes before the item whose keyword stands at `at`, as written.
fn attributes(source: &Source, mut at: usize) -> Vec<String> {
    let code = source.code.as_bytes();
    let mut found = Vec::new();
    loop {
        let head = source.code[..at].trim_end();
        if head.ends_with(']') {
            let Some(open) = opening(code, head.len() - 1) else { return found };
            if open == 0 || code[open - 1] != b'#' {
                return found;
            }
            found.push(source.text[open + 1..head.len() - 1].trim().to_owned());
            at = open - 1;
        } else if let Some(open) = head.ends_with(')').then(|| head.rfind("pub(")).flatten() {
            at = open;
        } else {
            let before = ["pub", "async", "unsafe", "const"];
            let Some(word) = before.iter().find(|word| head.ends_with(**word)) else {
                return found;
            };
            at = head.len() - word.len();
        }
    }
}

/// Where the bracket closes that opens at `open`.
fn closing(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth <= 1 => return (depth == 1).then_some(at),
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Where the bracket opens that closes at `close`.
fn opening(code: &[u8], close: usize) -> Option<usize> {
    let mut depth = 0usize;
    for at in (0..=close).rev() {
        match code[at] {
            b']' => depth += 1,
            b'[' if depth == 1 => return Some(at),
            b'[' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Where the item ends that begins at `at`: behind its braces or its semicolon.
fn item_end(code: &str, mut at: usize) -> usize {
    while let Some(byte) = code.as_bytes().get(at) {
        match byte {
            b'{' => return matching_brace(code, at),
            b';' | b'}' => return at + 1,
            b'(' | b'[' => at = closing(code, at).unwrap_or(code.len()),
            _ => {}
        }
        at += 1;
    }
    code.len()
}

/// Whether a `cfg` holds, where `is` says what a single name or `key = "value"` is.
pub(crate) fn holds(condition: &str, is: &dyn Fn(&str) -> bool) -> bool {
    let condition = condition.trim();
    let inside = |name: &str| {
        condition.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')')
    };
    if let Some(inside) = inside("not") {
        !holds(inside, is)
    } else if let Some(inside) = inside("all") {
        members(inside).into_iter().all(|member| holds(member, is))
    } else if let Some(inside) = inside("any") {
        members(inside).into_iter().any(|member| holds(member, is))
    } else {
        is(&condition.replace(' ', ""))
    }
}

/// What stands between the commas that stand in no bracket.
fn members(list: &str) -> Vec<&str> {
    let (mut depth, mut from, mut members) = (0usize, 0, Vec::new());
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                members.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    members.push(&list[from..]);
    members.into_iter().filter(|member| !member.trim().is_empty()).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], root: &str) -> Vec<Test> {
        let sources: BTreeMap<PathBuf, Source> = files
            .iter()
            .map(|(path, text)| (PathBuf::from(path), Source::new((*text).to_owned())))
            .collect();
        let macros: Vec<Macro> =
            sources.iter().flat_map(|(path, source)| macros_of(path, source)).collect();
        let target = Target { name: "it".into(), root: root.into(), is_tested: true };
        tests_of("x", &target, &sources, &macros)
    }

    fn names(tests: &[Test]) -> Vec<String> {
        let mut names: Vec<String> = tests
            .iter()
            .map(|test| [&test.modules[..], std::slice::from_ref(&test.name)].concat().join("::"))
            .collect();
        names.sort();
        names
    }

    /// What is read here is what the compiler has built: of this program, asked for its tests.
    #[test]
    fn the_tests_of_this_program_are_found() {
        let list = ["--list", "--format=terse"];
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(list)
            .output()
            .unwrap();
        let listed = String::from_utf8(output.stdout).unwrap();
        let mut listed: Vec<&str> =
            listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
        listed.sort_unstable();
        let tests: Vec<Test> = find(&Project::load().unwrap())
            .into_iter()
            .filter(|test| test.package == "xtask")
            .collect();
        assert_eq!(names(&tests), listed);
    }

    #[test]
    fn tests_are_found_along_the_modules() {
        let files = [
            ("c/tests/it/main.rs", "mod a;\n#[path = \"../../../d/shared.rs\"]\nmod shared;\n"),
            ("c/tests/it/a.rs", "#[cfg(loom)]\nmod b;\n/// Story.\n#[test]\nfn one() {}\n"),
            ("c/tests/it/a/b.rs", "mod c { #[test] #[ignore = \"a\"] pub(super) fn two() {} }"),
            ("d/shared.rs", "#[test]\nfn three() {}\nfn helper() { /* #[test] fn four() {} */ }"),
            ("c/tests/it/forgotten.rs", "#[test]\nfn five() {}\n"),
        ];
        let tests = found(&files, "c/tests/it/main.rs");
        assert_eq!(names(&tests), ["a::b::c::two", "a::one", "shared::three"]);
        let two = tests.iter().find(|test| test.name == "two").unwrap();
        assert_eq!((two.is_ignored, &two.conditions[..]), (true, &["loom".to_owned()][..]));
    }

    #[test]
    fn macros_make_tests_where_they_are_invoked() {
        let files = [
            (
                "c/src/suite.rs",
                "macro_rules! every {\n\
                 ($($n:ident)*) => { $(mod $n { #[test] fn fixed() {} })* };\n}",
            ),
            (
                "c/tests/it.rs",
                "macro_rules! each {\n\
                 ($($t:ident)*) => { $(#[test] fn $t() { super::$t() })* }\n}\n\
                 fn given() {}\neach! { given }\nmod m { crate::every! { a } }\n",
            ),
            (
                "c/tests/other.rs",
                "proptest! {\n    #[test]\n    fn random(x in any::<u8>()) {}\n}\n",
            ),
        ];
        assert_eq!(names(&found(&files, "c/tests/it.rs")), ["given", "m::fixed"]);
        assert!(found(&files, "c/src/suite.rs").is_empty(), "a macro alone makes no test");
        assert_eq!(names(&found(&files, "c/tests/other.rs")), ["random"]);
    }

    #[test]
    fn conditions_reach_to_the_end_of_their_item() {
        let text = "#![cfg(feature = \"r\")]\n#[cfg(not(loom))]\nfn a() -> [u8; 3] { [0; 3] }\n\
                    #[test]\nfn b() {}\n#[cfg(any(test, x))] #[test] fn c() {}";
        let tests = found(&[("t.rs", text)], "t.rs");
        let of = |name: &str| {
            tests.iter().find(|test| test.name == name).map(|test| test.conditions.clone()).unwrap()
        };
        assert_eq!(of("b"), ["feature = \"r\""]);
        assert_eq!(of("c"), ["feature = \"r\"", "any(test, x)"]);
    }

    #[test]
    fn conditions_are_decided_as_the_compiler_does() {
        let is = |name: &str| ["test", "feature=\"r\""].contains(&name);
        assert!(holds("test", &is));
        assert!(holds("all(test, not(loom))", &is));
        assert!(holds("any(loom, feature = \"r\")", &is));
        assert!(!holds("all(test, any(loom, not(feature = \"r\")))", &is));
        assert!(!holds("any()", &is) && holds("all()", &is));
    }
}
