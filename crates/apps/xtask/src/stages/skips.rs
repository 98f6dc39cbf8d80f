//! What a run could not check here.
//!
//! A check that a computer cannot run appends a line `name: reason` to the file named by
//! `OUTBOARD_SKIPS`. Skips are counted in the summary; in CI a skip that `tests/allowed-skips.txt`
//! does not list fails the run.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::project::Project;

const ALLOWED_SKIPS: &str = "tests/allowed-skips.txt";

/// The file to which the checks of this run append what they had to skip.
pub(super) struct SkipFile {
    pub(super) path: PathBuf,
}

impl SkipFile {
    /// The file of a run around this one, if there is one, which judges what stands in it.
    pub(super) fn of_outer_run() -> Option<Self> {
        std::env::var_os("OUTBOARD_SKIPS").map(|path| Self { path: path.into() })
    }

    pub(super) fn create(project: &Project) -> Result<Self, String> {
        let folder = &project.target;
        let path = folder.join("skips.txt");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, ""))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self { path })
    }

    /// What was skipped so far.
    pub(super) fn said(&self) -> io::Result<String> {
        fs::read_to_string(&self.path)
    }

    /// Prints the skips; false when CI skipped what it should run.
    pub(super) fn judge(&self, project: &Project) -> bool {
        let skipped = match self.said() {
            Ok(skipped) => skipped,
            Err(error) => {
                println!("  what was skipped is not known: {}: {error}", self.path.display());
                return false;
            }
        };
        let allowed = project.read(Path::new(ALLOWED_SKIPS)).unwrap_or_default();
        let in_ci = std::env::var_os("CI").is_some_and(|value| value != "false");
        let mut clean = true;
        for line in skipped.lines() {
            let faulty = in_ci && !is_allowed(line, &allowed);
            clean &= !faulty;
            println!(
                "  skipped    {line}{}",
                if faulty { "  (FAILED: CI must run it)" } else { "" }
            );
        }
        println!("  {} skipped", skipped.lines().count());
        clean
    }
}

/// Whether a skip `name: reason` is listed; the list holds `name: reason` lines and `#` comments.
fn is_allowed(skip: &str, allowed: &str) -> bool {
    let name = |line: &str| line.split(':').next().unwrap_or_default().trim().to_owned();
    let listed = allowed.lines().filter(|line| !line.starts_with('#') && line.contains(':'));
    listed.map(name).any(|listed| listed == name(skip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_allowed_by_name() {
        let allowed = "# comment\nhuge-pages: not every runner reserves them\n";
        assert!(is_allowed("huge-pages: none reserved", allowed));
        assert!(!is_allowed("mount: no /dev/fuse", allowed));
        assert!(!is_allowed("# comment: x", allowed));
    }
}
