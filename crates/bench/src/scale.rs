//! `bench scale`: does a metadata operation cost the same in a directory of a million files?
//!
//! One directory is filled step by step; at each size the same operations are timed on names spread
//! over the whole directory. Names looked up are ones the kernel has not seen lately: each round
//! drops its dentry and inode caches when it may (root), so that the volume answers, not the
//! kernel.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use outboard_base::Rng;
use serde::Serialize;

use crate::stats::Latencies;

/// Operations timed at each size.
const SAMPLES: u64 = 4000;

/// Median microseconds an operation took in a directory of this many files.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Files in the directory.
    pub files: u64,
    /// Create and close.
    pub create_us: f64,
    /// Stat of a name the kernel does not hold.
    pub stat_us: f64,
    /// Unlink.
    pub unlink_us: f64,
    /// Whether the kernel's caches could be dropped before the stats.
    pub cold: bool,
}

fn path(dir: &Path, n: u64) -> PathBuf {
    // Multiplying by an odd number permutes: neighbours in time are not neighbours by name.
    dir.join(format!("f{:016x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

fn create(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path).map(drop)
}

fn timed(
    numbers: impl Iterator<Item = u64>,
    mut operation: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<f64> {
    let mut latencies = Latencies::default();
    for n in numbers {
        let start = Instant::now();
        operation(n)?;
        latencies.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one operation")]
    Ok(latencies.percentile(50) as f64 / 1e3)
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
        let create_us = timed(extra.clone(), |n| create(&path(dir, n)))?;
        let cold = fs::write("/proc/sys/vm/drop_caches", "2").is_ok();
        let mut rng = Rng::new(files);
        let stat_us = timed((0..SAMPLES).map(|_| rng.below(files)), |n| {
            fs::symlink_metadata(path(dir, n)).map(drop)
        })?;
        let unlink_us = timed(extra, |n| fs::remove_file(path(dir, n)))?;
        points.push(Point { files, create_us, stat_us, unlink_us, cold });
    }
    Ok(points)
}

/// The points as a table, with the last size's cost as a multiple of the first's.
#[must_use]
pub fn table(points: &[Point]) -> String {
    use std::fmt::Write;
    let mut text = format!(
        "measured: median microseconds\n\n{:>10} {:>10} {:>10} {:>10}  caches\n",
        "files", "create", "stat", "unlink"
    );
    for point in points {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:>10} {:>10.1} {:>10.1} {:>10.1}  {}",
            point.files,
            point.create_us,
            point.stat_us,
            point.unlink_us,
            if point.cold { "kernel's dropped" } else { "kernel's kept" }
        );
    }
    if let [first, .., last] = points {
        let _ = writeln!(
            text,
            "{:>10} {:>10.2} {:>10.2} {:>10.2}",
            "ratio",
            last.create_us / first.create_us,
            last.stat_us / first.stat_us,
            last.unlink_us / first.unlink_us
        );
    }
    text
}
