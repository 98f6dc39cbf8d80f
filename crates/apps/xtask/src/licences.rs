//! Licences of dependencies, from what cargo knows, against the list in `deny.toml`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Finding;
use crate::project::Project;

const LIST: &str = "deny.toml";

pub(crate) fn check(project: &Project) -> Vec<Finding> {
    let list = project.read(Path::new(LIST)).unwrap_or_default();
    let allowed = allowed(&list);
    if allowed.is_empty() {
        return vec![Finding::new(LIST, 0, "no `allow = [...]` under [licenses]; write the list")];
    }
    let packages = match packages(project) {
        Ok(packages) => packages,
        Err(error) => return vec![Finding::new("Cargo.lock", 0, error)],
    };
    packages
        .into_iter()
        .filter(|(_, licence)| !fits(licence, &allowed))
        .map(|(name, licence)| {
            let message = format!(
                "`{name}` is under `{licence}`, which {LIST} does not allow; take another crate, \
                 or add the licence with a decision that says why"
            );
            Finding::new("Cargo.lock", 0, message)
        })
        .collect()
}

/// Name and licence expression of every package of the build.
fn packages(project: &Project) -> Result<Vec<(String, String)>, String> {
    let output = Command::new("cargo")
        .current_dir(&project.root)
        .args(["metadata", "--format-version=1", "--locked"])
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let word = |package: &Value, key: &str| {
        package[key].as_str().unwrap_or("no licence expression").to_owned()
    };
    let packages = metadata["packages"].as_array().into_iter().flatten();
    Ok(packages.map(|package| (word(package, "name"), word(package, "license"))).collect())
}

/// The quoted names between `allow = [` and `]`.
fn allowed(text: &str) -> Vec<&str> {
    let list = text.split_once("allow = [").map_or("", |(_, rest)| rest);
    let list = list.split_once(']').map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).collect()
}

/// Whether an expression leaves a choice that is allowed: every part joined by AND must offer one.
fn fits(expression: &str, allowed: &[&str]) -> bool {
    expression.split(" AND ").all(|part| {
        let part = part.trim_matches(['(', ')', ' ']);
        part.split(" OR ").flat_map(|one| one.split('/')).any(|one| allowed.contains(&one.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_must_leave_an_allowed_choice() {
        let allowed = allowed("[licenses]\nallow = [\n    \"MIT\",\n    \"Unicode-3.0\",\n]\n");
        assert_eq!(allowed, ["MIT", "Unicode-3.0"]);
        assert!(fits("MIT OR LGPL-2.1-or-later", &allowed));
        assert!(fits("Apache-2.0/MIT", &allowed));
        assert!(fits("(MIT OR Apache-2.0) AND Unicode-3.0", &allowed));
        assert!(!fits("MIT AND GPL-3.0-only", &allowed));
        assert!(!fits("no licence expression", &allowed));
    }
}
