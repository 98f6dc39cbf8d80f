//! The figures as tables and as a drawing, and how the targets stand.

use std::fmt::Write;

use serde::Serialize;

use super::handlers::Handlers;
use super::load::{DEPTH, Op, Round, Row};
use super::volume::VolumeRow;
use super::{NetdfsBench, Policy};
use crate::plot::{Axis, Figure, Panel, Scale, Series};
use crate::stats::median;
use crate::verdict::Verdict;
use crate::{machine, today};

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it was measured, where and when.
    pub note: String,
    /// Policies by size.
    pub rows: Vec<Row>,
    /// What handlers cost.
    pub handlers: Handlers,
    /// Mounted volumes.
    pub volumes: Vec<VolumeRow>,
}

/// The paper's Table I for one copy: nanoseconds and instructions of header, payload and completion
/// handlers, on cores of 1 GHz.
const TABLE_I: [(&str, f64, f64); 3] =
    [("header", 211.0, 120.0), ("payload", 92.0, 55.0), ("completion", 107.0, 66.0)];
/// Packets that come to the server beside reads and writes, at most.
const BESIDE: f64 = 250.0;
/// CPU of an 8 KiB direct write, microseconds.
const WRITE_US: f64 = 150.0;

impl Report {
    pub(super) fn new(
        bench: &NetdfsBench,
        rows: Vec<Row>,
        handlers: Handlers,
        volumes: Vec<VolumeRow>,
    ) -> Report {
        let note = format!(
            "{}, {}; one client thread and one process a node over loopback UDP, frames of {} \
             bytes, stores in memory; volumes: three nodes on the disk, page cache of none; \
             medians of {} rounds of {:?}, in turn",
            machine(),
            today(),
            bench.frame,
            bench.rounds,
            bench.time,
        );
        Report { note, rows, handlers, volumes }
    }

    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{}\nlatency in us, CPU in us a request: NIC side (socket, flows, handlers) and CPU \
             side of the node, client; measured\n\n",
            self.note
        );
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            text,
            "{:<5} {:>7} {:>5}  {:<12} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8}",
            "",
            "bytes",
            "depth",
            "policy",
            "per sec",
            "MiB/s",
            "p50",
            "p99",
            "NIC",
            "CPU",
            "client"
        );
        for row in &self.rows {
            let op = if row.op == Op::Write { "write" } else { "read" };
            let _ = writeln!(
                text,
                "{op:<5} {:>7} {:>5}  {:<12} {:>9.0} {:>9.1} {:>9.1} {:>8.1} {:>8.2} {:>8.2} \
                 {:>8.2}",
                row.bytes,
                row.depth,
                row.policy.name(),
                row.per_second,
                row.mebibytes(),
                row.p50_us,
                row.p99_us,
                row.nic_us,
                row.cpu_us,
                row.client_us
            );
        }
        text + &self.handlers_table() + &self.volumes_table()
    }

    fn handlers_table(&self) -> String {
        let mut text = String::from(
            "\nhandlers, a run, beside Table I (k = 1): writes of 64 KiB in packets of 2 KiB; time \
             measured (one run in 61), instructions estimated, the rest counted\n\n",
        );
        let _ = writeln!(
            text,
            "{:<11} {:>8} {:>6} {:>8} {:>9} {:>7} {:>7} {:>10} {:>10} {:>10}",
            "handler",
            "runs",
            "timed",
            "ns",
            "instr",
            "bytes",
            "sends",
            "DMA bytes",
            "paper ns",
            "paper instr"
        );
        for row in &self.handlers.rows {
            let paper = TABLE_I.iter().find(|(name, _, _)| *name == row.handler);
            let (ns, instructions) = paper.map_or((0.0, 0.0), |(_, ns, instr)| (*ns, *instr));
            let _ = writeln!(
                text,
                "{:<11} {:>8.0} {:>6.0} {:>8.0} {:>9.0} {:>7.0} {:>7.2} {:>10.0} {ns:>10.0} \
                 {instructions:>10.0}",
                row.handler,
                row.runs,
                row.timed,
                row.ns,
                row.instructions,
                row.bytes,
                row.sends,
                row.dma_bytes
            );
        }
        text += "\nmemory of descriptors, 32 writes at once: rate x time x 77 bytes (Little), and \
                 as another thread saw it\n\n";
        let _ = writeln!(
            text,
            "{:>7} {:>9} {:>9} {:>10} {:>8} {:>7}",
            "bytes", "per sec", "held us", "predicted", "counted", "looks"
        );
        for row in &self.handlers.memory {
            let _ = writeln!(
                text,
                "{:>7} {:>9.0} {:>9.1} {:>10.0} {:>8.0} {:>7.0}",
                row.bytes, row.per_second, row.held_us, row.predicted, row.counted, row.looks
            );
        }
        text
    }

    fn volumes_table(&self) -> String {
        let mut text = String::from(
            "\nmounted volumes: 8 KiB O_DIRECT at random, 8 threads; CPU in us an operation, \
             measured; counts an operation\n\n",
        );
        for row in &self.volumes {
            let op = if row.op == Op::Write { "write" } else { "read" };
            let kind = if row.packed { "packed" } else { "apart" };
            let _ = writeln!(
                text,
                "{op:<5} {kind:<6} {:>8.0} per sec, p50 {:>7.1} us, CPU {:>6.1} us",
                row.per_second,
                row.p50_us,
                row.total_us()
            );
            let list = |figures: &std::collections::BTreeMap<String, f64>| {
                let all = figures.iter().map(|(name, value)| format!("{name} {value:.2}"));
                all.collect::<Vec<_>>().join(", ")
            };
            let _ = writeln!(text, "      CPU: {}", list(&row.cpu_us));
            let _ = writeln!(text, "      counted: {}", list(&row.counted));
        }
        text
    }

    /// How the targets stand.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        let written = self.volumes.iter().filter(|row| row.packed && row.op == Op::Write);
        let cpu = written.map(|row| ("packed".to_owned(), row.total_us())).collect();
        let what = "CPU of an 8 KiB direct write, all processes but the load's, us";
        let mut all = vec![Verdict::at_most("netdfs", what, WRITE_US, cpu)];
        for policy in [Policy::Ticket, Policy::Capability, Policy::EveryPacket] {
            let over =
                |op, depth, of: fn(&Round) -> f64| self.over(policy, Policy::Rpc, op, depth, of);
            for op in [Op::Write, Op::Read] {
                let goodput = over(op, DEPTH, |round| round.per_second);
                let what = format!("{} {op:?} goodput over rpc's", policy.name());
                all.push(Verdict::at_least("netdfs", &what, 1.0, goodput));
                let latency = over(op, 1, |round| round.p50_us);
                let what = format!("{} {op:?} latency over rpc's", policy.name());
                all.push(Verdict::at_most("netdfs", &what, 1.0, latency));
            }
        }
        all
    }

    /// One policy over another, by size: the median of what it was in each round.
    fn over(
        &self,
        one: Policy,
        other: Policy,
        op: Op,
        depth: usize,
        of: fn(&Round) -> f64,
    ) -> Vec<(String, f64)> {
        let rows = |policy| {
            let rows = self.rows.iter();
            rows.filter(move |row| (row.policy, row.op, row.depth) == (policy, op, depth))
        };
        let pairs = rows(one).filter_map(|row| {
            let rival = rows(other).find(|rival| rival.bytes == row.bytes)?;
            let rounds = row.rounds.iter().zip(&rival.rounds);
            let ratios: Vec<f64> = rounds.map(|(one, other)| of(one) / of(other)).collect();
            Some((format!("{} bytes", row.bytes), median(&ratios)))
        });
        pairs.collect()
    }

    /// What has to hold at any length and on any machine: a write is one request, and none is for
    /// the server.
    ///
    /// # Errors
    /// What does not, in words.
    pub fn check(&self) -> Result<(), String> {
        for row in &self.volumes {
            let of = |name| row.counted.get(name).copied().unwrap_or(f64::NAN);
            let (requests, packets) = (of("requests at nodes"), of("packets at the server"));
            // Threads open the file and close it, it is synced, the lease is renewed.
            let spared = BESIDE + row.operations / 20.0;
            let packets_all = packets * row.operations;
            if !(0.99..1.05).contains(&requests) || packets.is_nan() || packets_all > spared {
                return Err(format!(
                    "{:?} of 8 KiB: {requests:.3} requests at nodes and {packets:.3} packets at \
                     the server for each",
                    row.op
                ));
            }
        }
        let seen = self.handlers.memory.iter().all(|row| row.counted > 0.0 && row.predicted > 0.0);
        if seen { Ok(()) } else { Err("no descriptor was ever seen in use".to_owned()) }
    }

    /// Latency and goodput by size, as in the paper's Figure 6.
    #[must_use]
    pub fn svg(&self) -> String {
        let panel = |title: &str, op, depth, label: &str, of: fn(&Row) -> f64| {
            let line = |policy: Policy| {
                let rows = self.rows.iter();
                let rows =
                    rows.filter(|row| (row.policy, row.op, row.depth) == (policy, op, depth));
                let points = rows.map(|row| (row.bytes as f64 / 1024.0, of(row))).collect();
                Series { name: policy.name().to_owned(), points }
            };
            let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
            Panel {
                title: title.to_owned(),
                x: axis("KiB", Scale::Log2),
                y: axis(label, Scale::Log10),
                series: Policy::ALL.map(line).into(),
            }
        };
        let panels = vec![
            panel("write, one at a time", Op::Write, 1, "p50, us", |row| row.p50_us),
            panel("write, eight at once", Op::Write, DEPTH, "MiB/s", Row::mebibytes),
            panel("read, one at a time", Op::Read, 1, "p50, us", |row| row.p50_us),
            panel("read, eight at once", Op::Read, DEPTH, "MiB/s", Row::mebibytes),
        ];
        let title = "requests to a node by who checks them (after NetDFS, Figure 6)".to_owned();
        Figure { title, note: self.note.clone(), columns: 2, panels }.svg()
    }
}

impl Row {
    /// MiB a second.
    #[must_use]
    pub fn mebibytes(&self) -> f64 {
        self.per_second * self.bytes as f64 / (1 << 20) as f64
    }
}
