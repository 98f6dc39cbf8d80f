//! The clients of Redis, as Debian has them.

use std::process::Command;
use std::sync::atomic::Ordering;

use outboard_pageserver::tcp::sockets::Address;

use crate::rig::{Dpu, Host};

fn run(program: &str, port: u16, args: &str) -> String {
    let mut command = Command::new(program);
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]).args(args.split(' '));
    let output = command.output().unwrap_or_else(|error| {
        panic!("cannot start {program} ({error}); `scripts/setup test` installs it")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program} {args}: {text} {output:?}");
    text
}

#[test]
fn the_clients_of_redis_work_unmodified() {
    let dir = tempfile::tempdir().unwrap();
    let dpu = Dpu::start(dir.path());
    let host = Host::over_dpu(dir.path());
    let Address::Tcp(address) = dpu.front.address() else { panic!("a TCP address") };
    let cli = |args: &str| run("redis-cli", address.port(), args);
    assert_eq!(cli("set greeting hello"), "OK\n");
    assert_eq!(cli("get greeting"), "hello\n");
    assert_eq!(cli("--no-raw incr n"), "(integer) 1\n");
    assert_eq!(cli("--no-raw mget greeting none"), "1) \"hello\"\n2) (nil)\n");
    assert!(cli("info").contains("redis_version"));
    // Twice as much as memory holds, then read again: most of it lies in the file by now.
    let bench = |args: &str| run("redis-benchmark", address.port(), args);
    bench("-n 9000 -r 1000000 -d 1000 -c 8 -P 4 -t set --csv");
    for args in ["-n 3000 -r 1000000 -c 8 -t get --csv", "-n 3000 -c 4 -P 16 -t incr,mset --csv"] {
        let table = bench(args);
        assert!(table.lines().count() >= 2 && !table.contains("rror"), "{table}");
    }
    assert_eq!(cli("get greeting"), "hello\n");
    assert!(dpu.front.tally().offloaded.load(Ordering::Relaxed) > 0, "{:?}", dpu.front.tally());
    host.stop();
}
