//! The figure as a table and as SVG, and how it stands with what is asked.

use std::fmt::Write;

use super::{Report, Row};
use crate::plot::{self, Axis, Panel, Scale, Series};
use crate::verdict::{Points, Verdict};

/// What the paper's figure shows; a `seek` is there to tell what the way to the client takes.
const OPERATIONS: [&str; 5] = ["random read", "random write", "create", "stat", "unlink"];

impl Report {
    /// The figures as a table for people. `x host` is how many times the rate, and the host's CPU,
    /// of `host` at the same point a row's is, reached in the same way.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{}\nCPU in us an operation, writes until they are durable: load is the measuring \
             loop, with the kernel's part of FUSE;\nhost is mount or library, with the client \
             if it is there; DPU the DPU side; kern its threads, interrupts.\nA seek, behind the \
             end, is answered by the client itself: it is what FUSE and queue take\n\n\
             {:<13} {:>3}  {:<13} {:>10} {:>7} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} \
             {:>7}\n",
            self.note,
            "operation",
            "thr",
            "client",
            "per second",
            "x host",
            "mean us",
            "p99 us",
            "load",
            "host",
            "x host",
            "DPU",
            "server",
            "nodes",
            "kern"
        );
        for row in &self.rows {
            let ratio = |of: fn(&Row) -> f64| {
                let host = self.same(row, rival(row));
                host.map_or_else(|| "-".to_owned(), |host| format!("{:.2}", of(row) / of(host)))
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<13} {:>3}  {:<13} {:>10.0} {:>7} {:>9.1} {:>9.1} {:>7.1} {:>7.1} {:>7} \
                 {:>7.1} {:>7.1} {:>7.1} {:>7.1}",
                row.operation,
                row.threads,
                row.system,
                row.per_second,
                ratio(|row| row.per_second),
                row.mean_us,
                row.p99_us,
                row.load_cpu_us,
                row.host_cpu_us,
                ratio(|row| row.host_cpu_us),
                row.dpu_cpu_us,
                row.server_cpu_us,
                row.nodes_cpu_us,
                row.kernel_cpu_us
            );
        }
        text
    }

    /// The row of another client at the same point.
    fn same(&self, row: &Row, system: &str) -> Option<&Row> {
        let point = (row.operation, row.threads, system);
        self.rows.iter().find(|other| (other.operation, other.threads, other.system) == point)
    }

    /// How it stands with what is asked.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        let points = |system: &str| -> Points {
            let is_ours = |row: &&Row| row.system == system && OPERATIONS.contains(&row.operation);
            let pairs = self.rows.iter().filter(is_ours).filter_map(|row| {
                let host = self.same(row, rival(row))?;
                let at = format!("{}, {} threads", row.operation, row.threads);
                Some((at, row.host_cpu_us / host.host_cpu_us))
            });
            pairs.collect()
        };
        [("through the mount", "dpu"), ("past the kernel", "dpu library")]
            .map(|(how, system)| {
                let what = format!("host CPU of dpu over host's, {how}");
                Verdict::at_most("figure 9", &what, 0.3, points(system))
            })
            .into()
    }

    /// Rates and the host's CPU of each operation, by threads.
    #[must_use]
    pub fn svg(&self) -> String {
        let panels = OPERATIONS.iter().flat_map(|operation| {
            [
                self.panel(operation, "operations a second", |row| row.per_second),
                self.panel(operation, "host CPU, us an operation", |row| row.host_cpu_us),
            ]
        });
        let title = "Clients of a shared volume (after DPC, Figure 9)".to_owned();
        let (note, panels) = (self.note.clone(), panels.collect());
        plot::Figure { title, note, columns: 2, panels }.svg()
    }

    fn panel(&self, operation: &str, label: &str, value: fn(&Row) -> f64) -> Panel {
        let mut series: Vec<Series> = Vec::new();
        for row in self.rows.iter().filter(|row| row.operation == operation) {
            let point = (row.threads as f64, value(row));
            match series.iter_mut().find(|line| line.name == row.system) {
                Some(line) => line.points.push(point),
                None => series.push(Series { name: row.system.to_owned(), points: vec![point] }),
            }
        }
        let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
        Panel {
            title: operation.to_owned(),
            x: axis("threads", Scale::Log2),
            y: axis(label, Scale::Linear),
            series,
        }
    }
}

/// Whom a client is held against: `host`, reached in the same way.
fn rival(row: &Row) -> &'static str {
    if row.system.ends_with("library") { "host library" } else { "host" }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Job;
    use super::*;
    use crate::cpu::CpuSeconds;

    fn report() -> Report {
        let row = |operation, threads, system, host_cpu_us| Row {
            operation,
            threads,
            system,
            per_second: 1000.0,
            mean_us: 10.0,
            p99_us: 30.0,
            load_cpu_us: 1.0,
            host_cpu_us,
            dpu_cpu_us: 2.0,
            server_cpu_us: 3.0,
            nodes_cpu_us: 4.0,
            kernel_cpu_us: 0.5,
            operations: 100,
            cpu: CpuSeconds::default(),
        };
        let mut rows = Vec::new();
        for operation in Job::ALL.iter().flat_map(|job| job.operations()) {
            for threads in [1, 2] {
                rows.push(row(operation, threads, "host", 40.0));
                rows.push(row(operation, threads, "dpu", 10.0));
                rows.push(row(operation, threads, "host library", 20.0));
                rows.push(row(operation, threads, "dpu library", 8.0));
            }
        }
        Report { note: "measured".to_owned(), rows }
    }

    /// Each operation of the figure is measured, and a client is held against the one that is
    /// reached as it is.
    #[test]
    fn the_target_is_held_against_every_point() {
        let verdicts = report().verdicts();
        let found: Vec<(usize, usize)> =
            verdicts.iter().map(|verdict| (verdict.met(), verdict.points.len())).collect();
        assert_eq!(found, [(10, 10), (0, 10)]);
        let table = report().table();
        assert!(table.contains("   0.25 ") && table.contains("   0.40 "), "{table}");
    }

    #[test]
    fn the_picture_has_two_panels_an_operation_and_a_line_for_each_client() {
        let svg = report().svg();
        assert_eq!(svg.matches("<polyline").count(), OPERATIONS.len() * 2 * 4);
    }
}
