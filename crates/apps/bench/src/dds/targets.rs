//! What the page server is asked to reach, held against what was measured: each target with the
//! ratio at every point, the worst of them, and whether it is met at all.

use serde::Serialize;

use super::director::{self, System as Through};
use super::ring::{self, System as Ring};
use super::sample::{Got, Load};
use super::servers::{self, System, Workload};
use super::table;
use crate::stats::median;

/// One target and how it stands.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The figure it was measured with.
    pub figure: u8,
    /// What is held against what.
    pub what: String,
    /// The bound.
    pub asked: f64,
    /// Whether the bound is from above.
    pub at_most: bool,
    /// What was measured, by point.
    pub points: Vec<(String, f64)>,
}

impl Verdict {
    fn at_most(figure: u8, what: &str, asked: f64, points: Vec<(String, f64)>) -> Verdict {
        Verdict { figure, what: what.to_owned(), asked, at_most: true, points }
    }

    fn at_least(figure: u8, what: &str, asked: f64, points: Vec<(String, f64)>) -> Verdict {
        Verdict { figure, what: what.to_owned(), asked, at_most: false, points }
    }

    fn holds(&self, value: f64) -> bool {
        if self.at_most { value <= self.asked } else { value >= self.asked }
    }

    /// Points at which it is met.
    #[must_use]
    pub fn met(&self) -> usize {
        self.points.iter().filter(|(_, value)| self.holds(*value)).count()
    }

    /// The point furthest from what is asked.
    #[must_use]
    pub fn worst(&self) -> Option<&(String, f64)> {
        let by_value = |a: &&(String, f64), b: &&(String, f64)| a.1.total_cmp(&b.1);
        let points = self.points.iter();
        if self.at_most { points.max_by(by_value) } else { points.min_by(by_value) }
    }

    /// One line: met, missed with the worst ratio, or not measured.
    #[must_use]
    pub fn line(&self) -> String {
        let bound = if self.at_most { "at most" } else { "at least" };
        let head = format!("figure {}: {}: asked {bound} {}", self.figure, self.what, self.asked);
        let Some((at, worst)) = self.worst() else {
            return format!("{head}; NOT MEASURED, the rival is not installed");
        };
        let middle = median(&self.points.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        let (met, all) = (self.met(), self.points.len());
        let verdict =
            if met == all { "MET".to_owned() } else { format!("MISSED ({met} of {all})") };
        format!("{head}; is {worst:.3} at worst ({at}), {middle:.3} in the middle: {verdict}")
    }
}

/// The lines of some verdicts, under a heading.
#[must_use]
pub fn lines(verdicts: &[Verdict]) -> String {
    let lines: String = verdicts.iter().map(|verdict| verdict.line() + "\n").collect();
    if lines.is_empty() { lines } else { format!("\ntargets\n{lines}") }
}

fn under(load: Load) -> String {
    format!("{}x{}", load.connections, load.pipeline)
}

/// Of figures 14, 15, 24, 25 and 26.
#[must_use]
pub fn of_servers(report: &servers::Report) -> Vec<Verdict> {
    let figure = report.number.number();
    let mut all = Vec::new();
    for workload in [Workload::ColdGet, Workload::GetPage] {
        let pairs = |of: fn(&Got, &Got) -> f64| {
            points(report, workload, System::Offload, System::Plain, of)
        };
        if pairs(|_, _| 0.0).is_empty() {
            continue;
        }
        let name = workload.name();
        let what = |what: &str| format!("{name}, offload over plain: {what}");
        let per_second = pairs(|ours, plain| ours.per_second / plain.per_second);
        all.push(Verdict::at_least(figure, &what("throughput"), 1.0, per_second));
        let p99 = pairs(|ours, plain| ours.p99_us / plain.p99_us);
        all.push(Verdict::at_most(figure, &what("p99"), 1.0, p99));
        let cpu = pairs(|ours, plain| plain.per_core() / ours.per_core());
        all.push(Verdict::at_most(figure, &what("CPU of both sides a command"), 1.0, cpu));
        let host = pairs(|ours, _| ours.awake());
        let what = format!("{name}, offload: CPU of the host over that of its timers");
        all.push(Verdict::at_most(figure, &what, 1.0, host));
    }
    if report.rows.iter().any(|row| row.workload == Workload::HotGet) {
        for ours in [System::Plain, System::Library, System::Offload] {
            let per_core = |ours: &Got, rival: &Got| ours.per_core() / rival.per_core();
            let points = points(report, Workload::HotGet, ours, System::Redis, per_core);
            let what =
                format!("hot GET, {} over redis: commands a core of both sides", ours.name());
            all.push(Verdict::at_least(figure, &what, 0.5, points));
        }
    }
    all
}

/// Two systems at every point that both have.
fn points(
    report: &servers::Report,
    workload: Workload,
    ours: System,
    rival: System,
    of: fn(&Got, &Got) -> f64,
) -> Vec<(String, f64)> {
    let rows = |system| {
        let rows = report.rows.iter();
        rows.filter(move |row| (row.system, row.workload) == (system, workload))
    };
    let pairs = rows(ours).filter_map(|ours| {
        let mut rivals = rows(rival);
        let rival = rivals.find(|row| (row.bytes, row.load) == (ours.bytes, ours.load))?;
        let at = format!("{} bytes, {}", ours.bytes, under(ours.load));
        Some((at, of(&ours.got, &rival.got)))
    });
    pairs.collect()
}

/// Of figures 19 and 21.
#[must_use]
pub fn of_director(report: &director::Report) -> Vec<Verdict> {
    let pairs = |ours: Through, of: fn(&Got, &Got) -> f64| {
        let rows = |system| report.rows.iter().filter(move |row| row.system == system);
        let pairs = rows(ours).filter_map(|ours| {
            let point = |row: &director::Row| (row.bytes, row.load, row.threads);
            let rival = rows(Through::Haproxy).find(|row| point(row) == point(ours))?;
            let at =
                format!("{} bytes, {}, {} threads", ours.bytes, under(ours.load), ours.threads);
            Some((at, of(&ours.got, &rival.got)))
        });
        pairs.collect::<Vec<_>>()
    };
    if report.number == director::Number::Figure23 {
        return Vec::new();
    }
    let figure = report.number.number();
    let forwarded = pairs(Through::Forwarded, |ours, rival| ours.dpu_us() / rival.dpu_us());
    let offloaded =
        pairs(Through::Offloaded, |ours, rival| ours.dpu_us() / (rival.dpu_us() + rival.host_us()));
    let what = "CPU of an offloaded message over haproxy's and its backend's";
    vec![
        Verdict::at_most(figure, "CPU of a forwarded message over haproxy's", 1.2, forwarded),
        Verdict::at_most(figure, what, 0.5, offloaded),
    ]
}

/// Of figure 17. DPDK's ring is held apart: it passes pointers within one process.
#[must_use]
pub fn of_rings(report: &ring::Report) -> Vec<Verdict> {
    let point = |row: &ring::Row| (row.price, row.batch, row.producers);
    let at = |row: &ring::Row| format!("batch {}, {} producers", row.batch, row.producers);
    let ours = |is_free: bool| {
        let rows = report.rows.iter().filter(|row| row.system == Ring::Progress);
        rows.filter(move |row| (row.price == "none") == is_free)
    };
    let rivals = |ours: &ring::Row| {
        let point_of_ours = point(ours);
        report.rows.iter().filter(move |row| point(row) == point_of_ours)
    };
    let cheapest = |batch: usize, is_rival: fn(Ring) -> bool| {
        let points = ours(true).filter(|row| row.batch == batch).filter_map(|ours| {
            let rivals = rivals(ours).filter(|row| is_rival(row.system));
            let rival = rivals.min_by(|a, b| a.both_ns.total_cmp(&b.both_ns))?;
            Some((format!("{}, {}", at(ours), rival.system.name()), ours.both_ns / rival.both_ns))
        });
        points.collect()
    };
    let mut all = Vec::new();
    for batch in ring::BATCHES {
        let what = format!("CPU of both sides a message over the best rival's, batch {batch}");
        let points = cheapest(batch, |system| system != Ring::Progress && !system.is_dpdk());
        all.push(Verdict::at_most(17, &what, 1.0, points));
        let what = format!("the same over DPDK's ring of pointers, batch {batch}");
        all.push(Verdict::at_most(17, &what, 1.0, cheapest(batch, Ring::is_dpdk)));
    }
    let farm = ours(false).filter_map(|ours| {
        let rival = rivals(ours).find(|row| row.system == Ring::Farm)?;
        Some((at(ours), ours.per_second / rival.per_second))
    });
    let what = "the progress ring over FaRM's, messages a second (simulated bus)";
    all.push(Verdict::at_least(17, what, 10.0, farm.collect()));
    all
}

/// Of figure 22.
#[must_use]
pub fn of_table(report: &table::Report) -> Vec<Verdict> {
    let points = |of: fn(&table::Row) -> f64| {
        let rows = report.rows.iter().filter(|row| row.system == table::System::Cuckoo);
        let at = |row: &table::Row| format!("{} items, {} threads", row.items, row.readers);
        rows.map(|row| (at(row), of(row) / 1e6)).collect()
    };
    vec![
        Verdict::at_least(
            22,
            "cache table, millions of inserts a second",
            1.2,
            points(|r| r.inserts),
        ),
        Verdict::at_least(
            22,
            "cache table, millions of look-ups a second and core",
            2.0,
            points(|row| row.lookups_per_core),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_point_decides() {
        let points = || vec![("a".to_owned(), 0.9), ("b".to_owned(), 1.3), ("c".to_owned(), 1.0)];
        let most = Verdict::at_most(19, "x", 1.2, points());
        assert_eq!(most.met(), 2);
        assert!(
            most.line().ends_with("is 1.300 at worst (b), 1.000 in the middle: MISSED (2 of 3)")
        );
        let least = Verdict::at_least(14, "x", 0.5, points());
        assert!(least.line().ends_with("is 0.900 at worst (a), 1.000 in the middle: MET"));
        assert!(Verdict::at_most(19, "x", 1.2, Vec::new()).line().contains("NOT MEASURED"));
        assert_eq!(lines(&[]), "");
    }
}
