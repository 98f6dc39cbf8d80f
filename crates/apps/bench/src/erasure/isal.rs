//! ISA-L in turn with ours: a small C program, compiled when it is asked for against Debian's
//! headers, is the process of all its measurements and sleeps between them.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{ErasureBench, per_second};

const SOURCE: &str = include_str!("isal.c");

/// The program, and the pipes to it. It ends when they close.
pub(super) struct IsaL {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Compiles it in `dir`; `None` if ISA-L's headers or a compiler are not installed.
fn compile(dir: &Path) -> io::Result<Option<PathBuf>> {
    let (source, program) = (dir.join("isal.c"), dir.join("isal"));
    std::fs::write(&source, SOURCE)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O3", "-o"]).arg(&program).arg(&source).arg("-lisal");
    let done = compiler.stderr(Stdio::null()).status();
    Ok(done.is_ok_and(|status| status.success()).then_some(program))
}

impl IsaL {
    /// Starts it; `None` if ISA-L is not installed.
    ///
    /// # Errors
    /// The program does not start.
    pub(super) fn start(dir: &Path) -> io::Result<Option<IsaL>> {
        let Some(program) = compile(dir)? else { return Ok(None) };
        let mut child =
            Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        Ok(Some(IsaL { child, input, output: BufReader::new(output) }))
    }

    /// One measurement.
    pub(super) fn rate(
        &mut self,
        verb: &str,
        (k, m): (usize, usize),
        bench: &ErasureBench,
    ) -> io::Result<f64> {
        let input = self.input.as_mut().ok_or_else(|| io::Error::other("no input"))?;
        writeln!(input, "{verb} {k} {m} {} {}", bench.length, bench.time.as_secs_f64())?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let read = line.trim().split_once(' ').and_then(|(rounds, nanos)| {
            Some(per_second((k, m), bench.length, rounds.parse().ok()?, nanos.parse().ok()?))
        });
        read.ok_or_else(|| io::Error::other(format!("ISA-L's program says: {line}")))
    }
}

impl Drop for IsaL {
    fn drop(&mut self) {
        drop(self.input.take());
        if let Err(error) = self.child.wait() {
            eprintln!("outboard: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
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
