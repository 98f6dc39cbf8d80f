//! What a computer cannot run, told to `make test`; see docs/TESTING.md.

use std::fs::File;
use std::io::Write;

/// Says it, and appends `name: reason` to the file named by `OUTBOARD_SKIPS`, if it is set.
pub(crate) fn note_skip(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("OUTBOARD_SKIPS") {
        let mut skips = File::options().create(true).append(true).open(path).unwrap();
        writeln!(skips, "{name}: {reason}").unwrap();
    }
}
