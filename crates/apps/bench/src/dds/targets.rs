//! What the page server is asked to reach, held against what was measured: each target with the
//! ratio at every point, the worst of them, and whether it is met at all.

use super::director::{self, System as Through};
use super::ring::{self, System as Ring};
use super::sample::{Got, Load};
use super::servers::{self, System, Workload};
use super::table;
use crate::verdict::Verdict;

fn under(load: Load) -> String {
    format!("{}x{}", load.connections, load.pipeline)
}

/// Of figures 14, 15, 24, 25 and 26.
#[must_use]
pub fn of_servers(report: &servers::Report) -> Vec<Verdict> {
    let figure = format!("figure {}", report.number.number());
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
        all.push(Verdict::at_least(&figure, &what("throughput"), 1.0, per_second));
        let p99 = pairs(|ours, plain| ours.p99_us / plain.p99_us);
        all.push(Verdict::at_most(&figure, &what("p99"), 1.0, p99));
        let cpu = pairs(|ours, plain| plain.per_core() / ours.per_core());
        all.push(Verdict::at_most(&figure, &what("CPU of both sides a command"), 1.0, cpu));
        let host = pairs(|ours, _| ours.awake());
        let what = format!("{name}, offload: CPU of the host over that of its timers");
        all.push(Verdict::at_most(&figure, &what, 1.0, host));
    }
    if report.rows.iter().any(|row| row.workload == Workload::HotGet) {
        for ours in [System::Plain, System::Library, System::Offload] {
            let per_core = |ours: &Got, rival: &Got| ours.per_core() / rival.per_core();
            let points = points(report, Workload::HotGet, ours, System::Redis, per_core);
            let what =
                format!("hot GET, {} over redis: commands a core of both sides", ours.name());
            all.push(Verdict::at_least(&figure, &what, 0.5, points));
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
    let under = if report.net { ", between devices" } else { "" };
    let figure = format!("figure {}{under}", report.number.number());
    let mut all = Vec::new();
    for (forwards, offloads, over) in [
        (Through::Forwarded, Through::Offloaded, ""),
        (Through::Stack, Through::StackOffloaded, " over the user-space stack"),
    ] {
        let forwarded = pairs(forwards, |ours, rival| ours.dpu_us() / rival.dpu_us());
        let offloaded = pairs(offloads, |ours, rival| ours.dpu_us() / rival.both_us());
        if !over.is_empty() && !report.net {
            break;
        }
        let what = format!("CPU of a message forwarded{over} over haproxy's");
        all.push(Verdict::at_most(&figure, &what, 1.2, forwarded));
        let what = format!("CPU of a message offloaded{over} over haproxy's and its backend's");
        all.push(Verdict::at_most(&figure, &what, 0.5, offloaded));
    }
    all
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
        all.push(Verdict::at_most("figure 17", &what, 1.0, points));
        let what = format!("the same over DPDK's ring of pointers, batch {batch}");
        all.push(Verdict::at_most("figure 17", &what, 1.0, cheapest(batch, Ring::is_dpdk)));
    }
    let farm = ours(false).filter_map(|ours| {
        let rival = rivals(ours).find(|row| row.system == Ring::Farm)?;
        Some((at(ours), ours.per_second / rival.per_second))
    });
    let what = "the progress ring over FaRM's, messages a second (simulated bus)";
    all.push(Verdict::at_least("figure 17", what, 10.0, farm.collect()));
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
            "figure 22",
            "cache table, millions of inserts a second",
            1.2,
            points(|r| r.inserts),
        ),
        Verdict::at_least(
            "figure 22",
            "cache table, millions of look-ups a second and core",
            2.0,
            points(|row| row.lookups_per_core),
        ),
    ]
}
