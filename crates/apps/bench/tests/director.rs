//! The servers of the director's figures as real processes, asked by the benchmark's client.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]

#[path = "../../../worlds/os/tests/skips/mod.rs"]
mod skips;

use std::time::Duration;

use outboard_bench::dds::director::{self, DirectorFigure, Report, System};
use outboard_bench::dds::net;

fn measure(name: &str, net: bool) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let figure = DirectorFigure {
        number: director::Number::from_name(name).unwrap(),
        net,
        program: env!("CARGO_BIN_EXE_outboard-bench").into(),
        dir: dir.path().to_owned(),
        time: Duration::from_millis(30),
        rounds: 1,
        is_short: true,
    };
    director::run(&figure, |_| ()).unwrap()
}

/// Every message was answered, and who is not asked does not run: a plain host has nothing before
/// it, an offloaded echo nothing behind it.
fn assert_answered(report: &Report) {
    let table = report.table();
    assert!(report.rows.iter().all(|row| row.got.commands > 0), "{table}");
    for row in &report.rows {
        let sides = (row.got.host_cpu > 0.0, row.got.dpu_cpu > 0.0);
        let expected = match row.system {
            System::Plain => (true, false),
            System::Haproxy | System::Forwarded | System::Stack => (true, true),
            _ => (false, true),
        };
        assert_eq!(sides, expected, "{table}");
    }
    assert!(report.svg().contains("<polyline"), "{table}");
}

#[test]
fn echoes_and_reads_come_back_through_every_director() {
    for name in ["19", "21", "23"] {
        assert_answered(&measure(name, false));
    }
}

/// The user-space stack had no figure: its rivals stand between the same two devices.
#[test]
fn echoes_come_back_between_two_devices_over_either_port() {
    if let Err(error) = net::is_possible() {
        return skips::note_skip("director-net", &error.to_string());
    }
    let report = measure("19", true);
    assert_answered(&report);
    for system in [System::Plain, System::Forwarded, System::Stack, System::StackOffloaded] {
        assert!(report.rows.iter().any(|row| row.system == system), "{}", report.table());
    }
}
