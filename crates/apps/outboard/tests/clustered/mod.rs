//! A cluster whose parts are processes, for tests of the command line.

use std::process::{Command, Output, Stdio};

/// The program, without what the environment may say to it.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
    command.args(arguments).stdin(Stdio::null()).env_remove("OUTBOARD_FAULTS");
    command
}

pub(crate) fn outboard(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Code and words of a command that is refused.
pub(crate) fn refused(arguments: &[&str]) -> (i32, String) {
    let output = outboard(arguments);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?}: {words}");
    (output.status.code().unwrap(), words)
}

pub(crate) fn done(arguments: &[&str]) -> String {
    let output = outboard(arguments);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {words}");
    String::from_utf8(output.stdout).unwrap()
}

/// A cluster that is ended when it is dropped.
pub(crate) struct Cluster(pub(crate) tempfile::TempDir);

impl Cluster {
    pub(crate) fn up(flags: &[&str]) -> Cluster {
        let cluster = Cluster(tempfile::tempdir().unwrap());
        let mut all = vec!["cluster", "up", cluster.dir(), "--port=0", "--detach"];
        all.extend(flags);
        done(&all);
        cluster
    }

    pub(crate) fn dir(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ended = outboard(&["cluster", "down", self.dir()]);
    }
}
