//! `outboard bench`: runs `outboard-bench`, which is a program of its own, so that this one links
//! no rival.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::exit::Failure;

/// The program, as it is looked for beside this one and then on the path.
const PROGRAM: &str = "outboard-bench";
/// The variable that tells it which program is to be measured.
const CALLER: &str = "OUTBOARD_PROGRAM";

/// Becomes `outboard-bench`: its output and its exit code are the command's.
pub(crate) fn bench(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::internal(format!("cannot find this program: {error}")))?;
    let program = find(&own, &std::env::var_os("PATH").unwrap_or_default());
    let program = program.ok_or_else(|| missing(&own))?;
    let error = Command::new(&program).args(arguments).env(CALLER, &own).exec();
    Err(Failure::internal(format!("cannot start {}: {error}", program.display())))
}

fn find(own: &Path, path: &OsString) -> Option<PathBuf> {
    let on_path = std::env::split_paths(path).map(|dir| dir.join(PROGRAM));
    std::iter::once(own.with_file_name(PROGRAM)).chain(on_path).find(|place| place.is_file())
}

fn missing(own: &Path) -> Failure {
    Failure::internal(format!(
        "{PROGRAM} is neither beside {} nor on the path: build it with `cargo build --release \
         --bin {PROGRAM}`",
        own.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measuring_program_is_the_one_beside_this_one_before_any_on_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let [beside, there] = ["beside", "there"].map(|name| dir.path().join(name));
        for dir in [&beside, &there] {
            std::fs::create_dir(dir).unwrap();
        }
        let (own, path) = (beside.join("outboard"), there.clone().into_os_string());
        assert_eq!(find(&own, &path), None);
        let message = missing(&own).to_string();
        assert!(message.contains("cargo build --release --bin outboard-bench"), "{message}");
        std::fs::write(there.join(PROGRAM), "").unwrap();
        assert_eq!(find(&own, &path), Some(there.join(PROGRAM)));
        std::fs::write(beside.join(PROGRAM), "").unwrap();
        assert_eq!(find(&own, &path), Some(beside.join(PROGRAM)));
    }
}
