//! `bench scale`: does a metadata operation cost the same in a directory of a million files?
//!
//! One directory is filled step by step; at each size the same operations are measured on names
//! spread over the whole directory: how long one takes, and how much CPU the whole machine spends
//! on it, whichever process that is in. Names that are looked up and listed are ones the kernel
//! does not hold: its dentries and inodes are dropped before, when that is allowed (root), so that
//! the volume answers. No name is looked up twice without that.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use crate::stats::Latencies;
use crate::verdict::Verdict;

/// Operations measured at each size, at least.
const SAMPLES: u64 = 4000;
/// Entries listed at each size, at least.
const LISTED: u64 = 20_000;

/// What is measured, in the order of the table.
const COLUMNS: [&str; 4] = ["create", "stat", "readdir entry", "unlink"];

/// What an operation cost, microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cost {
    /// How long one took: the median, or the mean where many are one call.
    pub time_us: f64,
    /// CPU that was not idle, of all processes and the kernel, for each.
    pub cpu_us: f64,
}

/// What operations cost in a directory of so many files.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Files in the directory.
    pub files: u64,
    /// Create and close.
    pub create: Cost,
    /// Stat of a name the kernel does not hold.
    pub stat: Cost,
    /// One entry of a listing the kernel does not hold.
    pub readdir: Cost,
    /// Unlink.
    pub unlink: Cost,
    /// Whether the kernel's caches could be dropped.
    pub cold: bool,
}

fn path(dir: &Path, n: u64) -> PathBuf {
    // Multiplying by an odd number permutes: neighbours in time are not neighbours by name.
    dir.join(format!("f{:016x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

fn create(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path).map(drop)
}

/// CPU of the machine that was not idle since it started, microseconds.
fn busy() -> io::Result<f64> {
    const USER_NICE_SYSTEM: std::ops::Range<usize> = 0..3;
    const IRQ_SOFTIRQ: std::ops::Range<usize> = 5..7;
    let text = fs::read_to_string("/proc/stat")?;
    let ticks: Vec<f64> = text
        .lines()
        .next()
        .unwrap_or("")
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let part = |range| ticks.get(range).map(|part: &[f64]| part.iter().sum::<f64>());
    match (part(USER_NICE_SYSTEM), part(IRQ_SOFTIRQ)) {
        // In hundredths of a second, on every architecture.
        (Some(work), Some(interrupts)) => Ok((work + interrupts) * 1e4),
        _ => Err(io::Error::other("/proc/stat says nothing of the CPU")),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a measurement")]
fn each(total: f64, count: u64) -> f64 {
    total / count.max(1) as f64
}

fn measured(
    numbers: impl Iterator<Item = u64>,
    mut operation: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<Cost> {
    let (mut latencies, before) = (Latencies::default(), busy()?);
    for n in numbers {
        let start = Instant::now();
        operation(n)?;
        latencies.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    let cpu_us = each(busy()? - before, latencies.count());
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one operation")]
    let time_us = latencies.percentile(50) as f64 / 1e3;
    Ok(Cost { time_us, cpu_us })
}

/// Drops what the kernel holds of names and inodes; whether it may.
fn forget_all() -> bool {
    fs::write("/proc/sys/vm/drop_caches", "2").is_ok()
}

/// Runs `measure` so often that `wanted` things are measured, `at_once` a time, each time with
/// nothing held by the kernel. Only what `measure` itself reports is measured.
fn cold(
    wanted: u64,
    at_once: u64,
    mut measure: impl FnMut() -> io::Result<Cost>,
) -> io::Result<(Cost, bool)> {
    let rounds = wanted.div_ceil(at_once.max(1));
    let (mut sum, mut dropped) = (Cost::default(), true);
    for _ in 0..rounds {
        dropped &= forget_all();
        let cost = measure()?;
        sum.time_us += cost.time_us;
        sum.cpu_us += cost.cpu_us;
    }
    let cost = Cost { time_us: each(sum.time_us, rounds), cpu_us: each(sum.cpu_us, rounds) };
    Ok((cost, dropped))
}

/// Lists the directory once: the cost of an entry.
fn list(dir: &Path) -> io::Result<Cost> {
    let (start, before) = (Instant::now(), busy()?);
    let count = fs::read_dir(dir)?.try_fold(0, |n, entry| entry.map(|_| n + 1))?;
    let cpu_us = each(busy()? - before, count);
    Ok(Cost { time_us: each(start.elapsed().as_secs_f64() * 1e6, count), cpu_us })
}

/// Fills `dir` to each of `sizes` (ascending) and measures there; `progress` hears what it does.
pub fn run(dir: &Path, sizes: &[u64], mut progress: impl FnMut(&str)) -> io::Result<Vec<Point>> {
    fs::create_dir_all(dir)?;
    let (mut filled, mut points) = (0, Vec::new());
    for &files in sizes {
        progress(&format!("filling {} to {files} files", dir.display()));
        for n in filled..files {
            create(&path(dir, n))?;
        }
        filled = filled.max(files);
        progress(&format!("measuring with {files} files"));
        let extra = files..files + SAMPLES;
        let created = measured(extra.clone(), |n| create(&path(dir, n)))?;
        let at_once = SAMPLES.min(files);
        let step = (files / at_once.max(1)).max(1);
        let (stat, cold_names) = cold(SAMPLES, at_once, || {
            let spread = (0..at_once).map(|n| n * step);
            measured(spread, |n| fs::symlink_metadata(path(dir, n)).map(drop))
        })?;
        let (readdir, cold_entries) = cold(LISTED, files + SAMPLES, || list(dir))?;
        let unlink = measured(extra, |n| fs::remove_file(path(dir, n)))?;
        let cold = cold_names && cold_entries;
        points.push(Point { files, create: created, stat, readdir, unlink, cold });
    }
    Ok(points)
}

/// The points as a table, with the last size's cost as a multiple of the first's.
#[must_use]
pub fn table(points: &[Point]) -> String {
    use std::fmt::Write;
    let mut text = String::from(
        "measured: microseconds an operation, and of CPU that was not idle, whoever used it\n\n",
    );
    // Writing to a String cannot fail.
    let _ = write!(text, "{:>10}", "files");
    COLUMNS.iter().for_each(|name| _ = write!(text, " {name:>15}    cpu"));
    text.push('\n');
    let costs = |point: &Point| [point.create, point.stat, point.readdir, point.unlink];
    for point in points {
        let _ = write!(text, "{:>10}", point.files);
        for cost in costs(point) {
            let _ = write!(text, " {:>15.2} {:>6.2}", cost.time_us, cost.cpu_us);
        }
        text.push_str(if point.cold { "\n" } else { "  the kernel kept names\n" });
    }
    if let [first, .., last] = points {
        let _ = write!(text, "{:>10}", "ratio");
        for (first, last) in costs(first).into_iter().zip(costs(last)) {
            let (time, cpu) = (last.time_us / first.time_us, last.cpu_us / first.cpu_us);
            let _ = write!(text, " {time:>15.2} {cpu:>6.2}");
        }
        text.push('\n');
    }
    text
}

/// How it stands with what is asked: an operation costs the same whatever the number of files.
#[must_use]
pub fn verdicts(points: &[Point]) -> Vec<Verdict> {
    let [first, .., last] = points else { return Vec::new() };
    let costs = |point: &Point| [point.create, point.stat, point.readdir, point.unlink];
    let over = |what: &str, of: fn(Cost) -> f64| {
        let pairs = COLUMNS.into_iter().zip(costs(first).into_iter().zip(costs(last)));
        let ratios = pairs.map(|(name, (few, many))| (name.to_owned(), of(many) / of(few)));
        let what = format!("{what} with {} files over that with {}", last.files, first.files);
        Verdict::at_most("scale", &what, 2.0, ratios.collect())
    };
    vec![over("time", |cost| cost.time_us), over("CPU", |cost| cost.cpu_us)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_grows_is_measured_at_each_size() {
        let dir = std::env::temp_dir().join(format!("outboard-scale-{}", std::process::id()));
        let points = run(&dir, &[10, 100], |_| {}).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 100, "what was made in passing is gone");
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(points.iter().map(|point| point.files).collect::<Vec<_>>(), [10, 100]);
        for point in &points {
            for cost in [point.create, point.stat, point.readdir, point.unlink] {
                assert!(cost.time_us > 0.0 && cost.cpu_us >= 0.0, "{point:?}");
            }
        }
        assert_eq!(table(&points).lines().count(), 6);
        let verdicts = verdicts(&points);
        assert!(verdicts.iter().all(|verdict| verdict.points.len() == COLUMNS.len()));
    }
}
