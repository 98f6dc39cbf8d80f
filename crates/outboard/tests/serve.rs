//! `outboard serve kv` as real processes, asked by the benchmark's client.

use std::time::Duration;

use outboard_bench::dds::servers::{self, Number, ServersFigure, System, Workload};

/// What the offload form is for: while the DPU side answers reads, the host does not run at all.
#[test]
fn the_host_sleeps_while_reads_are_offloaded() {
    let dir = std::env::temp_dir().join(format!("outboard-serve-{}", std::process::id()));
    let figure = ServersFigure {
        number: Number::Figure14,
        program: env!("CARGO_BIN_EXE_outboard").into(),
        dir: dir.clone(),
        time: Duration::from_millis(300),
        rounds: 1,
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
    // Not a tick, but for one that filled up by chance; and the DPU side did run.
    let ticks: f64 = cold(System::Offload).map(|row| row.cpu.by_name["host"]).sum();
    assert!(ticks <= 0.01, "{table}");
    assert!(cold(System::Offload).all(|row| row.commands > 0 && row.dpu_cpu > 0.001), "{table}");
    // The measure is one that can fail: the other forms show.
    for system in [System::Plain, System::Library] {
        assert!(cold(system).all(|row| row.host_cpu > 0.005), "{table}");
    }
    assert!(report.svg().contains("<polyline"));
}
