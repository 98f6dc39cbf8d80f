//! The figures as a table and as a drawing.

use super::super::sample::Got;
use super::{Number, Report, Row, System, Workload};
use crate::plot::{Axis, Figure, Panel, Scale, Series};

impl Report {
    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{}\nlatency in us; CPU in cores (CPU seconds a second) by process; per core: \
             commands a CPU second of host and DPU side\n\n",
            self.note
        );
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            text,
            "{:<9} {:>5} {:>4} {:>4}  {:<9} {:>9} {:>8} {:>8} {:>7} {:>7} {:>7} {:>9}",
            "workload",
            "bytes",
            "conn",
            "pipe",
            "server",
            "per sec",
            "p50",
            "p99",
            "host",
            "DPU",
            "client",
            "per core"
        );
        for row in &self.rows {
            let got = &row.got;
            let _ = writeln!(
                text,
                "{:<9} {:>5} {:>4} {:>4}  {:<9} {:>9.0} {:>8.0} {:>8.0} {:>7.4} {:>7.3} {:>7.2} \
                 {:>9.0}",
                row.workload.name(),
                row.bytes,
                row.load.connections,
                row.load.pipeline,
                row.system.name(),
                got.per_second,
                got.p50_us,
                got.p99_us,
                got.host_cores(),
                got.dpu_cores(),
                got.client_cores(),
                got.per_core()
            );
        }
        text
    }

    /// What has to hold at any length and on any machine: the host sleeps while the DPU side
    /// answers.
    ///
    /// # Errors
    /// The point at which it did not, in words.
    pub fn check(&self) -> Result<(), String> {
        let cold = [Workload::ColdGet, Workload::GetPage];
        let offloaded = |row: &&Row| row.system == System::Offload && cold.contains(&row.workload);
        let awake = self.rows.iter().filter(offloaded).find(|row| row.got.awake() > 1.0);
        match awake {
            None => Ok(()),
            Some(row) => Err(format!(
                "the host used {:.4} CPU seconds while reads were offloaded ({} bytes, {:?})",
                row.got.host_cpu, row.bytes, row.load
            )),
        }
    }

    /// CPU of the host or latency by throughput, panels by workload and size.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut kinds: Vec<(Workload, usize)> = Vec::new();
        for row in &self.rows {
            let kind = (row.workload, row.bytes);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let cpu =
            |kind| self.panel(kind, "cores of the host", Scale::Linear, |got| got.host_cores());
        let latency = |kind| {
            let p50 = self.panel(kind, "p50, us", Scale::Log10, |got| got.p50_us);
            [p50, self.panel(kind, "p99, us", Scale::Log10, |got| got.p99_us)]
        };
        let panels = kinds.into_iter().flat_map(|kind| match self.number {
            Number::Figure14 | Number::Figure25 => vec![cpu(kind)],
            Number::Figure15 | Number::Figure26 => latency(kind).into(),
            Number::Figure24 => latency(kind).into_iter().chain([cpu(kind)]).collect(),
        });
        let what = if self.number == Number::Figure24 { "page" } else { "key-value" };
        let title = format!("the {what} server (after DDS, Figure {})", self.number.number());
        Figure { title, note: self.note.clone(), columns: 2, panels: panels.collect() }.svg()
    }

    fn panel(
        &self,
        (workload, bytes): (Workload, usize),
        label: &str,
        scale: Scale,
        of: fn(&Got) -> f64,
    ) -> Panel {
        let line = |system: System| {
            let rows = self
                .rows
                .iter()
                .filter(|row| (row.system, row.workload, row.bytes) == (system, workload, bytes));
            let mut points: Vec<_> = rows.map(|row| (row.got.per_second, of(&row.got))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name: system.name().to_owned(), points }
        };
        let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
        Panel {
            title: format!("{}, {bytes} bytes", workload.name()),
            x: axis("commands a second", Scale::Log10),
            y: axis(label, scale),
            series: System::ALL
                .map(line)
                .into_iter()
                .filter(|line| !line.points.is_empty())
                .collect(),
        }
    }
}
