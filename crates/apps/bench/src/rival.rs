//! A rival that is a C program: compiled when it is asked for, one process for all of its
//! measurements, asleep between them. It is asked and answers in lines.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Compiles `source` in `dir`; `None` if headers or a compiler are not installed.
///
/// # Errors
/// The source cannot be written.
pub(crate) fn compile(
    dir: &Path,
    name: &str,
    source: &str,
    flags: &[String],
) -> io::Result<Option<PathBuf>> {
    let (file, program) = (dir.join(name).with_extension("c"), dir.join(name));
    std::fs::write(&file, source)?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O3", "-o"]).arg(&program).arg(&file).args(flags);
    let done = compiler.stderr(Stdio::null()).status();
    Ok(done.is_ok_and(|status| status.success()).then_some(program))
}

/// The process, and the pipes to it. It ends when they close.
pub(crate) struct Rival {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Rival {
    /// Starts the program.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn start(program: &Path) -> io::Result<Rival> {
        let mut child =
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        Ok(Rival { child, input, output: BufReader::new(output) })
    }

    /// What it answers.
    ///
    /// # Errors
    /// It has ended.
    pub(crate) fn ask(&mut self, words: &str) -> io::Result<String> {
        let input = self.input.as_mut().ok_or_else(|| io::Error::other("no input"))?;
        writeln!(input, "{words}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        drop(self.input.take());
        if let Err(error) = self.child.wait() {
            eprintln!("outboard: {error}");
        }
    }
}
