//! `bench erasure`: what the erasure code costs, by tables, by each kind of shuffle the processor
//! has, and by ISA-L where Debian's `libisal-dev` is installed.
//!
//! One thread computes over units that stay in its cache, for a time of its own CPU. *Encode* is a
//! whole stripe at once; *parts* is what the data nodes of a stripe do, each packet times its
//! coefficients into fresh buffers. Rates are of data, without parity. All take turns.

mod isal;

use std::fmt::Write;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use outboard_codec::erasure::{Code, Field};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::stats::median;
use crate::verdict::Verdict;
use isal::IsaL;

/// The codes that are measured; the paper's are the first two.
const CODES: [(usize, usize); 4] = [(3, 2), (6, 3), (10, 4), (16, 4)];

/// What is measured of each.
const VERBS: [&str; 2] = ["encode", "parts"];

/// What to measure.
#[derive(Clone, Debug)]
pub struct ErasureBench {
    /// Of each measurement.
    pub time: Duration,
    /// Interleaved; medians are reported.
    pub rounds: u32,
    /// Bytes of a unit.
    pub length: usize,
    /// For the rival's program.
    pub dir: PathBuf,
}

/// One code, by everybody.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// As k+m.
    pub code: String,
    /// What was done.
    pub verb: &'static str,
    /// Millions of bytes of data in a second of CPU, of each system.
    pub rates: Vec<f64>,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Bytes of a unit.
    pub length: usize,
    /// Ours, the fastest last; then the rival, if it is here.
    pub systems: Vec<&'static str>,
    /// Whether it is.
    pub has_rival: bool,
    /// Rows.
    pub rows: Vec<Row>,
}

/// Measures.
///
/// # Errors
/// The rival's program fails, or there is no clock.
pub fn run(bench: &ErasureBench, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let mut rival = IsaL::start(&bench.dir)?;
    let mut systems: Vec<&str> = Field::here().map(Field::name).collect();
    systems.extend(rival.is_some().then_some("ISA-L"));
    let mut rows = Vec::new();
    for ((k, m), verb) in CODES.into_iter().flat_map(|code| VERBS.map(|verb| (code, verb))) {
        let mut samples = vec![Vec::new(); systems.len()];
        for round in 1..=bench.rounds {
            progress(&format!("{k}+{m} {verb}, round {round} of {}", bench.rounds));
            let mut rates = Vec::new();
            for field in Field::here() {
                rates.push(rate(field, verb, (k, m), bench)?);
            }
            if let Some(rival) = &mut rival {
                rates.push(rival.rate(verb, (k, m), bench)?);
            }
            samples.iter_mut().zip(rates).for_each(|(samples, rate)| samples.push(rate));
        }
        let rates = samples.iter().map(|samples| median(samples)).collect();
        rows.push(Row { code: format!("{k}+{m}"), verb, rates });
    }
    Ok(Report { length: bench.length, systems, has_rival: rival.is_some(), rows })
}

fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Millions of bytes of data in a second.
fn per_second((k, _): (usize, usize), length: usize, rounds: u64, nanos: f64) -> f64 {
    (k * length) as f64 * rounds as f64 / nanos * 1e3
}

/// Ours, on this thread.
fn rate(field: Field, verb: &str, (k, m): (usize, usize), bench: &ErasureBench) -> io::Result<f64> {
    let code = Code::new(field, k, m).map_err(io::Error::other)?;
    let units: Vec<Vec<u8>> = (1..=16).take(k).map(|byte| vec![byte; bench.length]).collect();
    let data: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
    let mut space = vec![vec![0; bench.length]; m];
    let mut parity: Vec<&mut [u8]> = space.iter_mut().map(Vec::as_mut_slice).collect();
    let (start, mut rounds) = (cpu(), 0);
    loop {
        for _ in 0..64 {
            if verb == "encode" {
                code.encode(&data, &mut parity).map_err(io::Error::other)?;
            } else {
                for (j, packet) in data.iter().enumerate() {
                    let coefficients = code.coefficients(j).map_err(io::Error::other)?;
                    let done = field.multiply(coefficients, packet, &mut parity);
                    done.map_err(io::Error::other)?;
                }
            }
            std::hint::black_box(&mut parity);
            rounds += 1;
        }
        let taken = cpu().saturating_sub(start);
        if taken >= bench.time {
            return Ok(per_second((k, m), bench.length, rounds, taken.as_secs_f64() * 1e9));
        }
    }
}

impl Report {
    /// As a table, for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "erasure code, MB/s of data in a second of CPU, units of {} bytes\n{:<8}{:<8}",
            self.length, "code", ""
        );
        let cells = |text: &mut String, cells: Vec<String>| {
            cells.iter().for_each(|cell| _ = write!(text, "{cell:>10}"));
            text.push('\n');
        };
        cells(&mut text, self.systems.iter().map(|name| (*name).to_owned()).collect());
        for row in &self.rows {
            _ = write!(text, "{:<8}{:<8}", row.code, row.verb);
            cells(&mut text, row.rates.iter().map(|rate| format!("{rate:.0}")).collect());
        }
        text
    }

    /// What is asked: nine tenths of ISA-L's rate, by the fastest way there is.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        let ratio = |row: &Row| {
            let [.., ours, rival] = *row.rates else { return None };
            self.has_rival.then(|| (row.code.clone(), ours / rival))
        };
        let of = |verb: &str| {
            let rows = self.rows.iter().filter(|row| row.verb == verb);
            let what = format!("{verb}, over ISA-L");
            Verdict::at_least("erasure", &what, 0.9, rows.filter_map(ratio).collect())
        };
        VERBS.map(of).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_measured_by_everybody() {
        let dir = tempfile::tempdir().unwrap();
        let time = Duration::from_millis(1);
        let bench = ErasureBench { time, rounds: 1, length: 256, dir: dir.path().to_owned() };
        let report = run(&bench, |_| {}).unwrap();
        assert_eq!(report.rows.len(), CODES.len() * VERBS.len());
        for row in &report.rows {
            assert_eq!(row.rates.len(), report.systems.len());
            assert!(row.rates.iter().all(|rate| *rate > 0.0), "{row:?}");
        }
        assert_eq!(report.table().lines().count(), 2 + report.rows.len());
        let points = if report.has_rival { CODES.len() } else { 0 };
        assert!(report.verdicts().iter().all(|verdict| verdict.points.len() == points));
    }
}
