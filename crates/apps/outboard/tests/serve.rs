//! `outboard serve kv` as real processes, asked by the benchmark's client.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::process::Command;
use std::time::Duration;

use outboard_bench::dds::servers::{self, Number, ServersFigure, System, Workload};
use outboard_bench::dds::targets;

/// A directory that goes with its name.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("outboard-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// For how long, and the cores that a host which sleeps may use: its timers.
const MEASURED: Duration = Duration::from_secs(2);
const ASLEEP: f64 = 0.003;

/// What the offload form is for: while the DPU side answers reads, the host sleeps. It was measured
/// for 0.3 s, in which the allowance for a wake-up let 0.9 % of a core pass, and 4 % in the stage
/// that was named beside this test.
#[test]
fn the_host_sleeps_while_reads_are_offloaded() {
    let dir = std::env::temp_dir().join(format!("outboard-serve-{}", std::process::id()));
    let figure = ServersFigure {
        number: Number::Figure14,
        program: env!("CARGO_BIN_EXE_outboard").into(),
        dir: dir.clone(),
        time: MEASURED,
        rounds: 1,
        is_short: false,
    };
    let report = servers::run_small(&figure);
    std::fs::remove_dir_all(&dir).unwrap();
    let report = report.unwrap();
    let table = report.table();
    assert_eq!(report.check(), Ok(()), "{table}");
    let cold = |system| {
        let rows = report.rows.iter().filter(move |row| row.system == system);
        rows.filter(|row| row.workload == Workload::ColdGet)
    };
    assert_eq!(cold(System::Offload).count(), 2, "{table}");
    // Not a tick, but for one a row that filled up by chance: their sum was over a tick once, when
    // the clock said 0.001 cores. And the DPU side did run: by CPU a command, as a busy machine
    // gets few of them done.
    let ticks = |row: &servers::Row| row.got.cpu.by_name["host"];
    assert!(cold(System::Offload).all(|row| ticks(row) <= 0.01), "{table}");
    assert!(cold(System::Offload).all(|row| row.got.host_cores() < ASLEEP), "{table}");
    assert!(
        cold(System::Offload).all(|row| row.got.commands > 0 && row.got.dpu_us() > 0.5),
        "{table}"
    );
    // The measure is one that can fail: the other forms show.
    for system in [System::Plain, System::Library] {
        assert!(cold(system).all(|row| row.got.host_us() > 2.0), "{table}");
    }
    assert!(report.svg().contains("<polyline"));
}

/// The page server's forms, asked for pages that lie in the file: the same.
#[test]
fn the_host_sleeps_while_pages_are_offloaded() {
    let dir = Scratch::new("pages");
    let figure = ServersFigure {
        number: Number::Figure24,
        program: env!("CARGO_BIN_EXE_outboard").into(),
        dir: dir.0.clone(),
        time: MEASURED,
        rounds: 1,
        is_short: false,
    };
    let report = servers::run_small(&figure).unwrap();
    assert_eq!(report.check(), Ok(()), "{}", report.table());
    assert_eq!(report.rows.len(), 3 * 2, "{}", report.table());
    assert!(report.rows.iter().all(|row| row.got.commands > 0), "{}", report.table());
    let offloaded = report.rows.iter().filter(|row| row.system == System::Offload);
    assert!(offloaded.clone().count() > 0, "{}", report.table());
    assert!(offloaded.clone().all(|row| row.got.host_cores() < ASLEEP), "{}", report.table());
    assert_eq!(targets::of_servers(&report).len(), 4);
}

/// With `--items 0` the DPU side ended at its start, and was started again for five minutes; and a
/// page server took `--fsync`, which it has no use for.
#[test]
fn what_no_server_can_be_told_is_refused_at_once() {
    let dir = Scratch::new("serve-refused");
    let cases: [(&str, &[&str]); 4] = [
        ("kv", &["--items=0"]),
        ("kv", &["--workers=0"]),
        ("pages", &["--fsync=always"]),
        ("plugin", &["--plugin=x.so", "--host=127.0.0.1:1", "--items=0"]),
    ];
    for (what, flags) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outboard"));
        command.args(["serve", what]).args(flags).arg(format!("--data={}", dir.0.display()));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let flag = flags.last().unwrap().split('=').next().unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(flag), "{said}");
    }
}
