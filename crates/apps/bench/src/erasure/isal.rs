//! ISA-L in turn with ours: a small C program, compiled when it is asked for against Debian's
//! headers, is the process of all its measurements and sleeps between them.

use std::io;
use std::path::{Path, PathBuf};

use super::{ErasureBench, per_second};
use crate::rival::{self, Rival};

const SOURCE: &str = include_str!("isal.c");

pub(super) struct IsaL(Rival);

/// Compiles it in `dir`; `None` if ISA-L's headers or a compiler are not installed.
fn compile(dir: &Path) -> io::Result<Option<PathBuf>> {
    rival::compile(dir, "isal", SOURCE, &["-lisal".to_owned()])
}

impl IsaL {
    /// Starts it; `None` if ISA-L is not installed.
    ///
    /// # Errors
    /// The program does not start.
    pub(super) fn start(dir: &Path) -> io::Result<Option<IsaL>> {
        let Some(program) = compile(dir)? else { return Ok(None) };
        Ok(Some(IsaL(Rival::start(&program)?)))
    }

    /// One measurement.
    pub(super) fn rate(
        &mut self,
        verb: &str,
        (k, m): (usize, usize),
        bench: &ErasureBench,
    ) -> io::Result<f64> {
        let seconds = bench.time.as_secs_f64();
        let line = self.0.ask(&format!("{verb} {k} {m} {} {seconds}", bench.length))?;
        let read = line.trim().split_once(' ').and_then(|(rounds, nanos)| {
            Some(per_second((k, m), bench.length, rounds.parse().ok()?, nanos.parse().ok()?))
        });
        read.ok_or_else(|| io::Error::other(format!("ISA-L's program says: {line}")))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The golden parities of `codec` are what the ISA-L that is installed computes.
    #[test]
    fn the_golden_parities_are_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let Some(program) = compile(dir.path()).unwrap() else {
            let header = Path::new("/usr/include/isa-l/erasure_code.h");
            assert!(!header.exists(), "headers are there, but nothing compiles");
            return;
        };
        let made = Command::new(program).arg("golden").output().unwrap();
        assert!(made.status.success());
        let golden = include_str!("../../../../bytes/codec/src/erasure/golden.txt");
        let kept = golden.lines().filter(|line| !line.starts_with('#'));
        assert!(kept.eq(String::from_utf8(made.stdout).unwrap().lines()));
    }
}
