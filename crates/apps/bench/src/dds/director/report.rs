//! The figures as a table and as drawings.

use super::super::sample::{Got, Load};
use super::{Number, Report, Row, System};
use crate::plot::{Axis, Figure, Panel, Scale, Series};

impl Report {
    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{}\nlatency in us; CPU in us a message; DPU: the director, or haproxy; all: of \
             the whole machine\n\n\
             {:>6} {:>4} {:>4} {:>4}  {:<9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} \
             {:>9}\n",
            self.note,
            "bytes",
            "conn",
            "pipe",
            "thr",
            "through",
            "per sec",
            "p50",
            "p99",
            "host CPU",
            "DPU CPU",
            "both",
            "all CPU",
            "Gbit/s",
            "a DPU core"
        );
        for row in &self.rows {
            let got = &row.got;
            // Nothing stands between a client and a plain host.
            let core = Some(row.gigabits() / got.dpu_cores()).filter(|core| core.is_finite());
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:>6} {:>4} {:>4} {:>4}  {:<9} {:>9.0} {:>8.0} {:>8.0} {:>8.2} {:>8.2} {:>8.2} \
                 {:>8.2} {:>7.2} {:>9}",
                row.bytes,
                row.load.connections,
                row.load.pipeline,
                row.threads,
                row.system.name(),
                got.per_second,
                got.p50_us,
                got.p99_us,
                got.host_us(),
                got.dpu_us(),
                got.both_us(),
                got.machine_us(),
                row.gigabits(),
                core.map_or_else(|| "-".to_owned(), |core| format!("{core:.2}"))
            );
        }
        text
    }

    /// As the paper draws them: latency by size (19), gigabits by threads (21), latency by
    /// throughput (23).
    #[must_use]
    pub fn svg(&self) -> String {
        let (what, panels) = match self.number {
            Number::Figure19 if self.net => ("an echo between two devices", self.by_size()),
            Number::Figure19 => ("an echo through the director", self.by_size()),
            Number::Figure21 => ("the director by its threads", self.by_threads()),
            Number::Figure23 => ("reads with and without a copy", self.by_throughput()),
        };
        let title = format!("{what} (after DDS, Figure {})", self.number.number());
        Figure { title, note: self.note.clone(), columns: 2, panels }.svg()
    }

    /// A line for each system, of the rows that `is_in` takes.
    fn lines(
        &self,
        is_in: impl Fn(&Row) -> bool,
        point: impl Fn(&Row) -> (f64, f64),
    ) -> Vec<Series> {
        let mut systems: Vec<System> = Vec::new();
        for row in &self.rows {
            if !systems.contains(&row.system) {
                systems.push(row.system);
            }
        }
        let line = |system: System| {
            let rows = self.rows.iter().filter(|row| row.system == system && is_in(row));
            let mut points: Vec<(f64, f64)> = rows.map(&point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name: system.name().to_owned(), points }
        };
        systems.into_iter().map(line).filter(|line| !line.points.is_empty()).collect()
    }

    fn by_size(&self) -> Vec<Panel> {
        let mut loads: Vec<Load> = Vec::new();
        for row in &self.rows {
            if !loads.contains(&row.load) {
                loads.push(row.load);
            }
        }
        let panels = loads.into_iter().flat_map(|load| {
            let under = format!("{} x {}", load.connections, load.pipeline);
            let of = |label: &str, of: fn(&Got) -> f64| Panel {
                title: format!("{label}, {under}"),
                x: axis("bytes of a message", Scale::Log2),
                y: axis(label, Scale::Log10),
                series: self.lines(|row| row.load == load, |row| (row.bytes as f64, of(&row.got))),
            };
            [
                of("p50, us", |got| got.p50_us),
                of("CPU us a message", if self.net { Got::machine_us } else { Got::both_us }),
            ]
        });
        panels.collect()
    }

    fn by_threads(&self) -> Vec<Panel> {
        let panel = |label: &str, of: fn(&Row) -> f64| Panel {
            title: label.to_owned(),
            x: axis("threads", Scale::Log2),
            y: axis(label, Scale::Linear),
            series: self.lines(|_| true, |row| (row.threads as f64, of(row))),
        };
        let a_core = panel("Gbit/s a core", |row| row.gigabits() / row.got.dpu_cores());
        vec![panel("Gbit/s", Row::gigabits), a_core]
    }

    fn by_throughput(&self) -> Vec<Panel> {
        let mut sizes: Vec<usize> = self.rows.iter().map(|row| row.bytes).collect();
        sizes.dedup();
        let panel = |bytes: usize, label: &str, of: fn(&Got) -> f64| Panel {
            title: format!("{bytes} bytes"),
            x: axis("reads a second", Scale::Log10),
            y: axis(label, Scale::Log10),
            series: self.lines(|row| row.bytes == bytes, |row| (row.got.per_second, of(&row.got))),
        };
        let both = |bytes| {
            let p99 = panel(bytes, "p99, us", |got| got.p99_us);
            [panel(bytes, "p50, us", |got| got.p50_us), p99]
        };
        sizes.into_iter().flat_map(both).collect()
    }
}

fn axis(label: &str, scale: Scale) -> Axis {
    Axis { label: label.to_owned(), scale }
}
