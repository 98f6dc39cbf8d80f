//! A figure as a table and as SVG.

use super::plan::SMALL;
use super::{Figure, Report, Row};
use crate::plot::{self, Axis, Panel, Scale, Series};
use crate::verdict::{Points, Verdict};

impl Figure {
    fn title(self) -> &'static str {
        match self {
            Figure::Figure7 => "Direct 8 KiB reads and writes (after DPC, Figure 7)",
            Figure::Figure8 => "Buffered 8 KiB reads and writes, by cache (after DPC, Figure 8)",
            Figure::Table2 => "Sequential reads and writes of 1 MiB (after DPC, Table 2)",
        }
    }
}

/// What a panel shows of a row.
struct Shown {
    label: &'static str,
    scale: Scale,
    value: fn(&Row) -> f64,
}

const RATE: Shown =
    Shown { label: "operations a second", scale: Scale::Linear, value: |row| row.per_second };
const RATE_WIDE: Shown = Shown { scale: Scale::Log10, ..RATE };
const BANDWIDTH: Shown = Shown { label: "MB/s", scale: Scale::Linear, value: Row::megabytes };
const LATENCY: Shown =
    Shown { label: "mean latency, us", scale: Scale::Log10, value: |row| row.mean_us };
const HOST_CPU: Shown =
    Shown { label: "host CPU, us an operation", scale: Scale::Linear, value: |r| r.host_cpu_us };
const HOST_SHARE: Shown = Shown {
    label: "host CPU, % of all cores",
    scale: Scale::Linear,
    value: |row| row.host_share * 100.0,
};

impl Row {
    /// Megabytes (10^6 bytes) a second.
    #[must_use]
    pub fn megabytes(&self) -> f64 {
        self.per_second * self.size as f64 / 1e6
    }
}

fn size_name(size: usize) -> &'static str {
    if size == SMALL { "8 KiB" } else { "1 MiB" }
}

impl Report {
    /// The figures as a table for people. `x plain` and `x fuse` are how many times the rate of
    /// that rival at the same point a row's is.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{}\nCPU in us an operation, until what was written is durable: host is application \
             and mount, kern its threads\nand interrupts; host % is of all cores; client is the \
             user-space path; DMAs are counted\n\n\
             {:<28} {:>5} {:>4}  {:<9} {:>10} {:>8} {:>7} {:>6} {:>9} {:>9} {:>9} {:>8} {:>8} \
             {:>8} {:>6} {:>6}\n",
            self.note,
            "operation",
            "size",
            "thr",
            "system",
            "per second",
            "MB/s",
            "x plain",
            "x fuse",
            "mean us",
            "p50 us",
            "p99 us",
            "host CPU",
            "DPU CPU",
            "kern CPU",
            "host %",
            "DMAs"
        );
        for row in &self.rows {
            let dmas = row.dmas.map_or_else(|| "-".to_owned(), |dmas| format!("{dmas:.2}"));
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<28} {:>5} {:>4}  {:<9} {:>10.0} {:>8.1} {:>7} {:>6} {:>9.1} {:>9.1} \
                 {:>9.1} {:>8.1} {:>8.1} {:>8.1} {:>6.1} {:>6}",
                row.operation,
                size_name(row.size),
                row.threads,
                row.system,
                row.per_second,
                row.megabytes(),
                self.ratio(row, "plain"),
                self.ratio(row, "fuse"),
                row.mean_us,
                row.p50_us,
                row.p99_us,
                row.host_cpu_us,
                row.dpu_cpu_us,
                row.kernel_cpu_us,
                row.host_share * 100.0,
                dmas
            );
        }
        text
    }

    /// How many times the rate of `system` at the same point this row's is.
    fn ratio(&self, row: &Row, system: &str) -> String {
        let same = |other: &&Row| {
            (other.operation, other.threads, other.system) == (row.operation, row.threads, system)
        };
        let rival = self.rows.iter().find(same);
        rival.map_or_else(|| "-".to_owned(), |o| format!("{:.2}", row.per_second / o.per_second))
    }

    /// How it stands with what is asked.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        const RANDOM: [&str; 2] = ["random read", "random write"];
        let cpu = |ours: &Row, rival: &Row| ours.host_cpu_us / rival.host_cpu_us;
        let time = |ours: &Row, rival: &Row| ours.mean_us / rival.mean_us;
        let rate = |ours: &Row, rival: &Row| ours.per_second / rival.per_second;
        match self.figure {
            Figure::Figure7 => {
                let cpu = |ours| self.pairs(&RANDOM, ours, |row| (row.operation, "fuse"), cpu);
                let what = |what: &str| format!("host CPU of {what} over plain FUSE's");
                vec![
                    Verdict::at_most("figure 7", &what("the mount"), 1.0, cpu("outboard")),
                    Verdict::at_most("figure 7", &what("the user-space path"), 0.5, cpu("client")),
                ]
            }
            Figure::Figure8 if self.read_delay_us == 0 => {
                let time = self.pairs(&RANDOM, "client", |row| (row.operation, "plain"), time);
                let rate = self.pairs(&RANDOM, "kernel", |row| (row.operation, "fuse"), rate);
                let path = "time of the user-space path over the page cache's";
                let mount = "rate of the mount over plain FUSE's, the kernel caching for both";
                vec![
                    Verdict::at_most("figure 8", path, 1.5, time),
                    Verdict::at_least("figure 8", mount, 1.0, rate),
                ]
            }
            Figure::Figure8 => {
                let bare = |row: &Row| ("sequential read, no prefetch", row.system);
                let systems = ["kernel", "hybrid", "client"];
                let all = systems.map(|ours| self.pairs(&["sequential read"], ours, bare, rate));
                let what = "sequential reads of a medium far away, with prefetch over without";
                vec![Verdict::at_least("figure 8", what, 10.0, all.concat())]
            }
            Figure::Table2 => Vec::new(),
        }
    }

    /// One system at each of its points in some operations, held against the operation and system
    /// that `rival` names, with as many threads.
    fn pairs<'a>(
        &'a self,
        operations: &[&str],
        ours: &str,
        rival: impl Fn(&'a Row) -> (&'static str, &'static str),
        of: impl Fn(&Row, &Row) -> f64,
    ) -> Points {
        let is_ours = |row: &&Row| row.system == ours && operations.contains(&row.operation);
        let pairs = self.rows.iter().filter(is_ours).filter_map(|row| {
            let (operation, system) = rival(row);
            let same = |other: &&Row| {
                (other.operation, other.system, other.threads) == (operation, system, row.threads)
            };
            let rival = self.rows.iter().find(same)?;
            let at = format!("{} of {}, {} threads", row.operation, row.system, row.threads);
            Some((at, of(row, rival)))
        });
        pairs.collect()
    }

    /// The figure by threads: a row of panels for each operation, and for Figure 8, which is about
    /// rates, one panel each.
    #[must_use]
    pub fn svg(&self) -> String {
        let (shown, columns): (&[Shown], usize) = match self.figure {
            Figure::Figure7 => (&[RATE, LATENCY, HOST_SHARE], 3),
            Figure::Figure8 => (&[RATE_WIDE], 2),
            Figure::Table2 => (&[BANDWIDTH, HOST_CPU], 2),
        };
        let mut operations: Vec<&str> = self.rows.iter().map(|row| row.operation).collect();
        operations.dedup();
        let panels = operations
            .iter()
            .flat_map(|operation| shown.iter().map(|shown| self.panel(operation, shown)))
            .collect();
        let (title, note) = (self.figure.title().to_owned(), self.note.clone());
        plot::Figure { title, note, columns, panels }.svg()
    }

    fn panel(&self, operation: &str, shown: &Shown) -> Panel {
        let mut series: Vec<Series> = Vec::new();
        for row in self.rows.iter().filter(|row| row.operation == operation) {
            let point = (row.threads as f64, (shown.value)(row));
            match series.iter_mut().find(|line| line.name == row.system) {
                Some(line) => line.points.push(point),
                None => series.push(Series { name: row.system.to_owned(), points: vec![point] }),
            }
        }
        let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
        Panel {
            title: operation.to_owned(),
            x: axis("threads", Scale::Log2),
            y: axis(shown.label, shown.scale),
            series,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuSeconds;

    fn report(figure: Figure) -> Report {
        let row = |operation, threads, system, per_second| Row {
            operation,
            size: SMALL,
            threads,
            system,
            per_second,
            mean_us: 10.0,
            p50_us: 9.0,
            p99_us: 30.0,
            host_cpu_us: 1.0,
            dpu_cpu_us: 2.0,
            kernel_cpu_us: 0.5,
            host_share: 0.25,
            dmas: (system == "outboard").then_some(4.0),
            operations: 100,
            cpu: CpuSeconds::default(),
        };
        let mut rows = Vec::new();
        for operation in ["random read", "random write"] {
            for threads in [1, 2] {
                rows.push(row(operation, threads, "outboard", 30_000.0));
                rows.push(row(operation, threads, "plain", 10_000.0 * threads as f64));
            }
        }
        Report { figure, note: "measured".to_owned(), read_delay_us: 0, rows }
    }

    #[test]
    fn each_row_is_held_against_its_rivals_at_the_same_point() {
        let table = report(Figure::Figure7).table();
        assert!(table.contains("   3.00 ") && table.contains("   1.50 "), "{table}");
        assert!(!table.contains("NaN"), "no plain FUSE was measured");
        assert!(table.contains("245.8") && table.contains("  25.0   4.00"), "{table}");
    }

    #[test]
    fn a_figure_has_its_panels_and_a_line_for_each_system() {
        for (figure, panels) in [(Figure::Figure7, 6), (Figure::Figure8, 2), (Figure::Table2, 4)] {
            let svg = report(figure).svg();
            assert_eq!(svg.matches("<polyline").count(), panels * 2);
            assert!(svg.contains("random write") && svg.contains("measured"));
        }
    }
}
