//! The project as the checks see it: its crates, its floor ledger and its tracked files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::source::Source;

/// The folders of the floors below `crates`, lowest first.
pub(crate) const FLOORS: &[&str] =
    &["bytes", "mechanisms", "services", "systems", "worlds", "apps"];

/// The floor a crate's folder stands on: `crates/FLOOR/NAME`. What lies outside is an application.
pub(crate) fn floor_of(folder: &Path) -> Option<u32> {
    let mut parts = folder.iter().filter_map(|part| part.to_str());
    if parts.next()? != "crates" {
        return u32::try_from(FLOORS.len() - 1).ok();
    }
    let floor = parts.next()?;
    FLOORS.iter().position(|name| *name == floor).and_then(|floor| u32::try_from(floor).ok())
}

/// How a dependency is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EdgeKind {
    /// Used by the code itself or by its build script.
    Normal,
    /// Used by tests only.
    Dev,
}

/// One crate of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    /// Its folder's name, which is the package name without `outboard-`.
    pub(crate) name: String,
    /// Its folder, relative to the root.
    pub(crate) folder: PathBuf,
    /// Every dependency by package name.
    pub(crate) dependencies: Vec<(String, EdgeKind)>,
    /// The root files of its libraries and programs, relative to the root.
    pub(crate) roots: Vec<PathBuf>,
    /// What cargo builds of it.
    pub(crate) targets: Vec<Target>,
}

/// A library, a program or a test program.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// Its first file, relative to the root.
    pub(crate) root: PathBuf,
    /// Whether the tests in it are built and run.
    pub(crate) is_tested: bool,
}

/// The workspace, read once.
pub(crate) struct Project {
    pub(crate) root: PathBuf,
    /// Where cargo builds.
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
    /// The floor of each crate, by its folder.
    pub(crate) floors: BTreeMap<String, u32>,
    /// Edges the ledger allows inside one floor.
    pub(crate) edges: Vec<(String, String)>,
    /// Edges inside one floor that it allows to tests.
    pub(crate) test_edges: Vec<(String, String)>,
    /// Folders where unsafe code may stand, relative to the root.
    pub(crate) unsafe_folders: Vec<PathBuf>,
    /// Tracked files and files about to be, relative to the root, sorted.
    pub(crate) files: Vec<PathBuf>,
}

impl Project {
    pub(crate) fn load() -> Result<Self, String> {
        let metadata = cargo_metadata()?;
        let root = PathBuf::from(text(&metadata, "workspace_root")?);
        let target = PathBuf::from(text(&metadata, "target_directory")?);
        let ledger = &metadata["metadata"]["floors"];
        if !ledger.is_object() {
            return Err("Cargo.toml has no [workspace.metadata.floors]; write the ledger".into());
        }
        let edges = |list: &Value| -> Vec<(String, String)> {
            let edges = strings(list).filter_map(|edge| edge.split_once(" -> "));
            edges.map(|(from, to)| (from.to_owned(), to.to_owned())).collect()
        };
        let test_edges = edges(&ledger["test-edges"]);
        let edges = edges(&ledger["edges"]);
        let unsafe_folders = strings(&ledger["unsafe"]).map(PathBuf::from).collect();
        let packages: Vec<Package> = metadata["packages"]
            .as_array()
            .ok_or("cargo metadata lists no packages")?
            .iter()
            .map(|package| read_package(package, &root))
            .collect::<Result<_, _>>()?;
        let floors = packages
            .iter()
            .filter_map(|package| Some((package.name.clone(), floor_of(&package.folder)?)))
            .collect();
        let files = tracked_files(&root)?;
        Ok(Self { root, target, packages, floors, edges, test_edges, unsafe_folders, files })
    }

    /// A project without crates or files.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self {
            root: PathBuf::new(),
            target: PathBuf::new(),
            packages: Vec::new(),
            floors: BTreeMap::new(),
            edges: Vec::new(),
            test_edges: Vec::new(),
            unsafe_folders: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Every Rust file, lexed. Unreadable files are skipped: git may list one just deleted.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&Path, Source)> {
        self.files
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == "rs"))
            .filter_map(|path| Some((path.as_path(), Source::new(self.read(path)?))))
    }

    /// The text of a tracked file; `None` when it is gone or is not text.
    pub(crate) fn read(&self, path: &Path) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// The crate a file belongs to.
    pub(crate) fn package_of(&self, path: &Path) -> Option<&Package> {
        self.packages.iter().find(|package| path.starts_with(&package.folder))
    }
}

fn cargo_metadata() -> Result<Value, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version=1", "--no-deps"])
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

fn read_package(package: &Value, root: &Path) -> Result<Package, String> {
    let manifest = PathBuf::from(text(package, "manifest_path")?);
    let folder = manifest.parent().unwrap_or(root);
    let relative = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_path_buf();
    let dependencies = items(&package["dependencies"])
        .map(|dependency| {
            let kind = match dependency["kind"].as_str() {
                Some("dev") => EdgeKind::Dev,
                _ => EdgeKind::Normal,
            };
            Ok((text(dependency, "name")?.to_owned(), kind))
        })
        .collect::<Result<_, String>>()?;
    let roots = items(&package["targets"])
        .filter(|target| strings(&target["kind"]).any(|kind| ["lib", "bin"].contains(&kind)))
        .filter_map(|target| target["src_path"].as_str())
        .map(|path| relative(Path::new(path)))
        .collect();
    let targets = items(&package["targets"])
        .map(|target| {
            Ok(Target {
                name: text(target, "name")?.to_owned(),
                root: relative(Path::new(text(target, "src_path")?)),
                is_tested: target["test"] == true,
            })
        })
        .collect::<Result<_, String>>()?;
    let name = text(package, "name")?;
    Ok(Package {
        name: name.strip_prefix("outboard-").unwrap_or(name).to_owned(),
        folder: relative(folder),
        dependencies,
        roots,
        targets,
    })
}

fn tracked_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    let mut files: Vec<PathBuf> = names.split_terminator('\0').map(PathBuf::from).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    items(value).filter_map(Value::as_str)
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value[key].as_str().ok_or_else(|| format!("cargo metadata has no `{key}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_tells_the_floor() {
        assert_eq!(floor_of(Path::new("crates/bytes/wire")), Some(0));
        assert_eq!(floor_of(Path::new("crates/worlds/fuse")), Some(4));
        assert_eq!(floor_of(Path::new("tests")), Some(5));
        assert_eq!(floor_of(Path::new("crates/attic/wire")), None);
        assert_eq!(floor_of(Path::new("crates")), None);
    }
}
