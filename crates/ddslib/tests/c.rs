//! A C program, compiled against the header and linked with the library, on a server that runs
//! here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::Command;

use outboard_drivers::dds::server::{Server, ServerOptions};
use outboard_drivers::engine::Reserve;

/// Where cargo has put the library: beside this test.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn compile(into: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(compiler)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I"])
        .arg(here.join("include"))
        .arg(here.join("examples/pages.c"))
        .arg("-L")
        .arg(libraries())
        .args(["-loutboard_ddslib", "-o"])
        .arg(into)
        .status()
        .expect("a C compiler, which linking Rust programs needs as well");
    assert!(status.success());
}

fn run(program: &Path, socket: &Path) -> std::process::Output {
    Command::new(program)
        .arg(socket)
        .env("LD_LIBRARY_PATH", libraries())
        .output()
        .expect("the program starts")
}

#[test]
fn a_c_program_writes_and_reads_pages() {
    let dir = tempfile::tempdir().unwrap();
    let (program, socket) = (dir.path().join("pages"), dir.path().join("socket"));
    compile(&program);
    let output = run(&program, &socket);
    assert!(!output.status.success(), "nobody listens");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("dds_attach: "), "{said}");
    let reserve = Reserve { most: 1 << 20, one_in: 1000 };
    let options = ServerOptions::new(dir.path().join("volume"), socket.clone());
    let options = ServerOptions { capacity: 1 << 30, items: 1000, reserve, ..options };
    let server = Server::start(options).unwrap();
    // Twice: what the first leaves behind is nothing.
    for _ in 0..2 {
        let output = run(&program, &socket);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "pages: id 1, 1638400 bytes\n");
    }
    server.stop().unwrap();
}
