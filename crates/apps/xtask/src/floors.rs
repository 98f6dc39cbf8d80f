//! The floor ledger: a crate uses crates of lower floors, and inside a floor only the edges listed.
//!
//! A crate's folder tells its floor (`crates/FLOOR/NAME`) and its manifest what it uses; the edges
//! inside a floor stand in the root `Cargo.toml`. Dev-dependencies follow the same rule with one
//! freedom: tests of any floor may use the simulated world (`sim`) and the suites of floor 5, and
//! nothing else above. Below floor 5 no code but tests uses `sim`.

use crate::Finding;
use crate::project::{EdgeKind, FLOORS, Package, Project};

/// The lowest floor that may own what is slow to build or belongs to the world outside.
const WORLDS: u32 = 4;
/// The floor of programs and suites, which tests of any floor may use.
const APPS: u32 = 5;
/// The simulated world, which tests of any floor may use.
const SIM: &str = "sim";
/// Dependencies that bring a runtime, an engine or a user interface.
const HEAVY: &[&str] =
    &["tokio", "smol", "clap", "fuser", "fjall", "io-uring", "tracing-subscriber"];

pub(crate) fn check(project: &Project) -> Vec<Finding> {
    let edges = project.packages.iter().flat_map(|package| check_package(project, package));
    edges.chain(unused(project)).collect()
}

/// Edges of the ledger that no manifest has.
fn unused(project: &Project) -> Vec<Finding> {
    let has = |from: &str, to: &str, kind: Option<EdgeKind>| {
        let package = project.packages.iter().find(|package| package.name == from);
        package.is_some_and(|package| {
            package.dependencies.iter().any(|(name, found)| {
                name.strip_prefix("outboard-") == Some(to) && kind.is_none_or(|kind| kind == *found)
            })
        })
    };
    let product = project.edges.iter().map(|edge| (edge, Some(EdgeKind::Normal)));
    let tests = project.test_edges.iter().map(|edge| (edge, None));
    product
        .chain(tests)
        .filter(|((from, to), kind)| !has(from, to, *kind))
        .map(|((from, to), _)| {
            let message = format!("nothing uses the edge \"{from} -> {to}\" any more; delete it");
            Finding::new("Cargo.toml", 0, message)
        })
        .collect()
}

fn check_package(project: &Project, package: &Package) -> Vec<Finding> {
    let manifest = package.folder.join("Cargo.toml");
    let from = &package.name;
    let Some(&floor) = project.floors.get(from) else {
        let message = format!(
            "`{from}` stands on no floor; move it to crates/FLOOR/{from}, where FLOOR is one of {}",
            FLOORS.join(", ")
        );
        return vec![Finding::new(manifest, 0, message)];
    };
    let mut findings = Vec::new();
    for (dependency, kind) in &package.dependencies {
        if *kind == EdgeKind::Normal && floor < WORLDS && HEAVY.contains(&dependency.as_str()) {
            let message = format!(
                "`{from}` (floor {floor}) uses `{dependency}`, which belongs to floor {WORLDS} or \
                 above; define a port here and fill it in a world"
            );
            findings.push(Finding::new(&manifest, 0, message));
        }
        let Some(to) = dependency.strip_prefix("outboard-") else { continue };
        if let Some(message) = judge_edge(project, from, floor, to, *kind) {
            findings.push(Finding::new(&manifest, 0, message));
        }
    }
    findings
}

fn judge_edge(
    project: &Project,
    from: &str,
    floor: u32,
    to: &str,
    kind: EdgeKind,
) -> Option<String> {
    let Some(&below) = project.floors.get(to) else {
        return Some(format!("`{from}` uses `{to}`, which stands on no floor"));
    };
    let is_in = |list: &[(String, String)]| list.iter().any(|(a, b)| a == from && b == to);
    let listed = is_in(&project.edges) || kind == EdgeKind::Dev && is_in(&project.test_edges);
    let of_tests = kind == EdgeKind::Dev && (below == APPS || to == SIM);
    if below < floor || (below == floor && listed) || of_tests {
        return None;
    }
    if kind == EdgeKind::Dev && below > floor {
        return Some(format!(
            "tests of `{from}` (floor {floor}) use `{to}` (floor {below}); of what lies above, \
             tests may use `{SIM}` and the suites of floor {APPS}: move the test up to a crate \
             that may use both"
        ));
    }
    Some(if below == floor {
        format!(
            "`{from}` uses `{to}` on the same floor {floor}; move what both need one floor \
             down, or list \"{from} -> {to}\" under `edges` (`test-edges` if only tests use it) \
             with a decision that says why"
        )
    } else {
        format!(
            "`{from}` (floor {floor}) uses `{to}` (floor {below}); turn the edge round: let \
             `{from}` define a port that `{to}` fills"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn project(edges: &[(&str, &str)], packages: Vec<Package>) -> Project {
        let floors =
            [("base", 0), ("wire", 0), ("kv", 1), ("os", 4), ("fuse", 4), ("sim", 4), ("suite", 5)];
        Project {
            packages,
            floors: floors.iter().map(|(name, floor)| ((*name).to_owned(), *floor)).collect(),
            edges: edges.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
            ..Project::empty()
        }
    }

    fn package(name: &str, dependency: &str, kind: EdgeKind) -> Package {
        Package {
            name: name.to_owned(),
            folder: PathBuf::from("crates").join(name),
            dependencies: vec![(dependency.to_owned(), kind)],
            roots: Vec::new(),
            targets: Vec::new(),
        }
    }

    fn messages(edges: &[(&str, &str)], name: &str, dependency: &str, kind: EdgeKind) -> String {
        let findings = check(&project(edges, vec![package(name, dependency, kind)]));
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn an_edge_goes_down_or_is_listed() {
        assert_eq!(messages(&[], "kv", "outboard-wire", EdgeKind::Normal), "");
        assert_eq!(messages(&[("wire", "base")], "wire", "outboard-base", EdgeKind::Normal), "");
        assert!(messages(&[], "wire", "outboard-base", EdgeKind::Normal).contains("`edges`"));
        assert!(messages(&[], "kv", "outboard-os", EdgeKind::Normal).contains("a port"));
    }

    #[test]
    fn tests_may_use_the_simulated_world_and_the_suites_and_nothing_else_above() {
        for from in ["base", "kv", "fuse"] {
            assert_eq!(messages(&[], from, "outboard-suite", EdgeKind::Dev), "");
            assert_eq!(messages(&[], from, "outboard-sim", EdgeKind::Dev), "");
        }
        let message = messages(&[], "kv", "outboard-os", EdgeKind::Dev);
        assert!(message.contains("tests of `kv` (floor 1) use `os` (floor 4)"), "{message}");
        assert!(messages(&[], "fuse", "outboard-os", EdgeKind::Dev).contains("same floor 4"));
    }

    #[test]
    fn no_product_crate_holds_the_simulated_world() {
        assert!(messages(&[], "kv", "outboard-sim", EdgeKind::Normal).contains("a port"));
        assert!(messages(&[], "fuse", "outboard-sim", EdgeKind::Normal).contains("`edges`"));
        assert_eq!(messages(&[], "suite", "outboard-sim", EdgeKind::Normal), "");
    }

    #[test]
    fn heavy_dependencies_and_unknown_crates_are_refused() {
        assert!(messages(&[], "kv", "fjall", EdgeKind::Normal).contains("fill it in a world"));
        assert_eq!(messages(&[], "os", "fjall", EdgeKind::Normal), "");
        assert!(messages(&[], "attic", "serde", EdgeKind::Normal).contains("stands on no floor"));
        assert!(messages(&[], "kv", "outboard-attic", EdgeKind::Normal).contains("no floor"));
    }
}
