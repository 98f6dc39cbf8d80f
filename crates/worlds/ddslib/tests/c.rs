//! A C program, compiled against the header and linked with the library, on a server that runs
//! here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::Command;

use outboard_os::room::Reserve;
use outboard_pageserver::server::{Server, ServerOptions};

/// Where cargo has put the library: beside this test.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn compile(source: &str, into: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(compiler)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I"])
        .arg(here.join("include"))
        .arg(here.join(source))
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

fn server(dir: &Path) -> Server {
    let reserve = Reserve { most: 1 << 20, one_in: 1000 };
    let options = ServerOptions::new(dir.join("volume"), dir.join("socket"));
    Server::start(ServerOptions { capacity: Some(1 << 30), items: 1000, reserve, ..options })
        .unwrap()
}

#[test]
fn a_c_program_writes_and_reads_pages() {
    let dir = tempfile::tempdir().unwrap();
    let (program, socket) = (dir.path().join("pages"), dir.path().join("socket"));
    compile("examples/pages.c", &program);
    let output = run(&program, &socket);
    assert!(!output.status.success(), "nobody listens");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("dds_attach: "), "{said}");
    let server = server(dir.path());
    // Twice: what the first leaves behind is nothing.
    for _ in 0..2 {
        let output = run(&program, &socket);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "pages: id 1, 1638400 bytes\n");
    }
    server.stop().unwrap();
}

/// Every call of the header, as it is meant and as it is not.
#[test]
fn every_call_answers_whatever_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("calls");
    compile("tests/calls.c", &program);
    let server = server(dir.path());
    let output = run(&program, &dir.path().join("socket"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 failures\n");
    server.stop().unwrap();
}

/// Somebody listens and says nothing.
#[test]
fn who_is_not_answered_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let (program, socket) = (dir.path().join("pages"), dir.path().join("socket"));
    compile("examples/pages.c", &program);
    let address = rustix::net::SocketAddrUnix::new(&socket).unwrap();
    let kind = rustix::net::SocketType::SEQPACKET;
    let silent = rustix::net::socket(rustix::net::AddressFamily::UNIX, kind, None).unwrap();
    rustix::net::bind(&silent, &address).unwrap();
    rustix::net::listen(&silent, 8).unwrap();
    let output = run(&program, &socket);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("timed out"), "{said}");
}

/// What the header declares is what the program of every call uses: one that is added is added
/// there, too.
#[test]
fn no_call_of_the_header_is_left_out() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(here.join(name)).unwrap();
    let (header, program) = (read("include/outboard_dds.h"), read("tests/calls.c"));
    let code = header.split("*/").map(|part| part.split("/*").next().unwrap()).collect::<String>();
    let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
    let calls = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name);
    let calls: Vec<&str> = calls.filter(|name| name.starts_with("dds_")).collect();
    assert!(calls.len() >= 21, "{calls:?}");
    for call in calls.iter().filter(|call| **call != "dds_each") {
        assert!(program.contains(&format!("{call}(")), "{call}");
    }
}
