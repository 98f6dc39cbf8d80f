//! The programs a benchmark starts: `outboard`, which is measured, and this one, whose hidden
//! commands are rivals and the far sides of links.

use std::io;
use std::path::PathBuf;
use std::process::Command;

/// The variable by which `outboard bench` says which program it is.
const CALLER: &str = "OUTBOARD_PROGRAM";
const MEASURED: &str = "outboard";

/// The program that is measured: the one that called, else the one beside this one, else the one on
/// the path.
pub fn outboard() -> io::Result<PathBuf> {
    let named = std::env::var_os(CALLER).map(PathBuf::from);
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(MEASURED));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|dir| dir.join(MEASURED));
    let mut places = named.into_iter().chain(beside).chain(on_path);
    places.find(|place| place.is_file()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "there is no `outboard` to measure, neither beside this program nor on the path: build \
             both with `cargo build --release --bin outboard --bin outboard-bench`",
        )
    })
}

/// Another program: where `scripts/setup` builds it beside this one, else on the path.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let built = own.ancestors().map(|dir| dir.join("tools/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = built.chain(std::env::split_paths(&path)).map(|dir| dir.join(name));
    places.find(|place| place.is_file())
}

/// One of this program's own commands, as a process to be started.
pub(crate) fn own(command: &str) -> io::Result<Command> {
    let mut own = Command::new(std::env::current_exe()?);
    own.arg(command);
    Ok(own)
}
