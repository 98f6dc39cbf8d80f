//! What a computer cannot run, told to `make test`; see `docs/TESTING.md`.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;

use crate::{Result, context};

/// Appends `name: reason` to the file named by `OUTBOARD_SKIPS`, if it is set.
pub fn note_skip(name: &str, reason: &str) -> Result<()> {
    let Some(path) = env::var_os("OUTBOARD_SKIPS") else { return Ok(()) };
    let file = OpenOptions::new().create(true).append(true).open(path);
    let mut file = context(file, || "cannot open OUTBOARD_SKIPS".to_owned())?;
    context(writeln!(file, "{name}: {reason}"), || "cannot write OUTBOARD_SKIPS".to_owned())
}
