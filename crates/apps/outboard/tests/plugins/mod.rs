//! The plug-in of `ddslib`'s tests, and the messages of the server that it belongs to.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles it.
pub(crate) fn compile(dir: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let ddslib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../worlds/ddslib");
    let object = dir.join(name);
    let status = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()))
        .args(["-std=c11", "-shared", "-fPIC", "-D_GNU_SOURCE", "-I"])
        .arg(ddslib.join("include"))
        .args(flags)
        .arg(ddslib.join("tests/mischief.c"))
        .arg("-o")
        .arg(&object)
        .status()
        .expect("a C compiler, which linking Rust programs needs as well");
    assert!(status.success());
    object
}

#[allow(dead_code, reason = "not every test has clients")]
/// Sixteen bytes: what it is, and the number of a record.
pub(crate) fn message(what: u32, number: u64) -> Vec<u8> {
    [&16u32.to_le_bytes()[..], &what.to_le_bytes(), &number.to_le_bytes()].concat()
}
