//! The servers of the director's figures as real processes, asked by the benchmark's client.

use std::time::Duration;

use outboard_bench::dds::director::{self, DirectorFigure};

/// Every server of figures 19, 21 and 23 answers every message with the right one, and who is not
/// asked does not run: a plain host has nothing before it, an offloaded echo nothing behind it.
#[test]
fn echoes_and_reads_come_back_through_every_director() {
    for name in ["19", "21", "23"] {
        let dir = tempfile::tempdir().unwrap();
        let figure = DirectorFigure {
            number: director::Number::from_name(name).unwrap(),
            program: env!("CARGO_BIN_EXE_outboard-bench").into(),
            dir: dir.path().to_owned(),
            time: Duration::from_millis(30),
            rounds: 1,
            is_short: true,
        };
        let report = director::run(&figure, |_| ()).unwrap();
        let table = report.table();
        assert!(report.rows.iter().all(|row| row.got.commands > 0), "{table}");
        for row in &report.rows {
            let sides = (row.got.host_cpu > 0.0, row.got.dpu_cpu > 0.0);
            let expected = match row.system {
                director::System::Plain => (true, false),
                director::System::Haproxy | director::System::Forwarded => (true, true),
                _ => (false, true),
            };
            assert_eq!(sides, expected, "{table}");
        }
        assert!(report.svg().contains("<polyline"), "{table}");
    }
}
