//! `bench compress`: a volume that compresses against one that does not, by kind of data.
//!
//! Two volumes stand side by side in one directory. Each round writes a file of each kind to each,
//! 1 MiB a call, past the kernel's cache, with fsync inside the time; reads it in sequence; reads
//! blocks of 8 KiB at random; and removes it. What it took comes from the DPU side's own counts.
//! Medians over the rounds are reported, and the CPU time of the DPU side, which is what pays.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use serde::Serialize;

use super::subject::{Ask, DPU, Subject, status};
use crate::cpu::CpuMoment;
use crate::stats::median;
use crate::workload::{Aligned, MEGABYTE, O_DIRECT};

/// Bytes of a random read.
const BLOCK: usize = 8192;
/// Random reads a round.
const READS: u32 = 2000;
/// Prose: pages of the project.
const PROSE: &[&str] = &[
    include_str!("../../../../../docs/FIGURES.md"),
    include_str!("../../../../../docs/SEMANTICS.md"),
    include_str!("../../../../../docs/TESTING.md"),
    include_str!("../../../../../docs/internals/cache.md"),
    include_str!("../../../../../docs/internals/objects.md"),
];
/// Source: some of its files.
const SOURCE: &[&str] = &[
    include_str!("../fs.rs"),
    include_str!("../scale.rs"),
    include_str!("../workload.rs"),
    include_str!("compress.rs"),
    include_str!("figure.rs"),
    include_str!("subject.rs"),
];
const METHODS: [&str; 2] = ["none", "lz4"];

/// How `bench compress` runs.
#[derive(Clone, Debug)]
pub struct CompressBench {
    /// Directory for the volumes; emptied afterwards.
    pub dir: PathBuf,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Size of each file, MiB.
    pub mebibytes: u64,
    /// The program, started anew for each volume; its bytes are one of the kinds.
    pub program: PathBuf,
}

/// What one method made of one kind of data.
#[derive(Clone, Debug, Serialize)]
pub struct CompressRow {
    /// `prose`, `source`, `records`, `program` or `noise`.
    pub data: &'static str,
    /// `none` or `lz4`.
    pub method: &'static str,
    /// Space on the medium, times the data's; counted.
    pub space: f64,
    /// Bytes to the medium, times the data's; counted.
    pub sent: f64,
    /// MiB a second written and synced.
    pub write: f64,
    /// CPU milliseconds of the DPU side a MiB of that.
    pub write_cpu_ms: f64,
    /// MiB a second read in sequence.
    pub read: f64,
    /// CPU milliseconds of the DPU side a MiB of that.
    pub read_cpu_ms: f64,
    /// Microseconds of a random read of 8 KiB, on average.
    pub random_us: f64,
}

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct CompressReport {
    /// Kind by kind, without compression first.
    pub rows: Vec<CompressRow>,
    /// Rounds whose medians were taken.
    pub rounds: u32,
    /// Size of each file, MiB.
    pub mebibytes: u64,
}

/// What the rounds of one method and kind gave.
#[derive(Default)]
struct Sum {
    plain: u64,
    taken: u64,
    sent: u64,
    write: Vec<f64>,
    read: Vec<f64>,
    random: Vec<f64>,
    write_cpu: f64,
    read_cpu: f64,
}

/// Time, and CPU seconds of the DPU side.
type Cost = (Duration, f64);

/// Runs everything; `progress` is told what is being measured.
///
/// # Errors
/// A mount failed, or a file on it.
pub fn run(bench: &CompressBench, mut progress: impl FnMut(&str)) -> io::Result<CompressReport> {
    let ask = Ask { dir: &bench.dir, program: &bench.program, flags: &[], apart: false };
    let volumes = [
        Subject::outboard(&ask, METHODS[0], &["--compress=none"])?,
        Subject::outboard(&ask, METHODS[1], &["--compress=lz4"])?,
    ];
    let kinds = kinds(&std::fs::read(&bench.program)?);
    let mut sums: BTreeMap<(usize, usize), Sum> = BTreeMap::new();
    for round in 0..bench.rounds {
        for (k, (kind, data)) in kinds.iter().enumerate() {
            for (v, volume) in volumes.iter().enumerate() {
                progress(&format!("{kind}, {}, round {round}", volume.name));
                bench.measure(volume, data, sums.entry((k, v)).or_default())?;
            }
        }
    }
    Ok(bench.report(&kinds.map(|(kind, _)| kind), &sums))
}

impl CompressBench {
    fn measure(&self, volume: &Subject, data: &[u8], sum: &mut Sum) -> io::Result<()> {
        let path = volume.dir.join("file");
        let before = self.counts(volume)?;
        let written = self.timed(volume, || self.write(&path, data))?;
        let after = self.counts(volume)?;
        for (all, at) in [&mut sum.plain, &mut sum.taken, &mut sum.sent].into_iter().zip(0..) {
            let count = |counts: &[u64; 3]| counts.get::<usize>(at).copied().unwrap_or(0);
            *all += count(&after).saturating_sub(count(&before));
        }
        let file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&path)?;
        let read = self.timed(volume, || self.read(&file, data))?;
        let random = self.timed(volume, || self.read_at_random(&file))?;
        drop(file);
        std::fs::remove_file(&path)?;
        let rate = |cost: &Cost| self.mebibytes as f64 / cost.0.as_secs_f64();
        sum.write.push(rate(&written));
        sum.read.push(rate(&read));
        sum.random.push(random.0.as_secs_f64() * 1e6 / f64::from(READS));
        sum.write_cpu += written.1;
        sum.read_cpu += read.1;
        Ok(())
    }

    /// What the DPU side counts: bytes of file, of the medium's space, to the medium.
    fn counts(&self, volume: &Subject) -> io::Result<[u64; 3]> {
        let data = volume.data.as_ref().ok_or_else(|| io::Error::other("no DPU side"))?;
        let status = status(&self.program, data)?;
        Ok(["written", "written_taken", "written_sent"].map(|key| {
            let count = status.pointer("/dpu/volume").and_then(|volume| volume.get(key));
            count.and_then(serde_json::Value::as_u64).unwrap_or(0)
        }))
    }

    fn timed(&self, volume: &Subject, act: impl FnOnce() -> io::Result<()>) -> io::Result<Cost> {
        let (start, before) = (Instant::now(), CpuMoment::now(&volume.processes)?);
        act()?;
        let took = start.elapsed();
        let cpu = CpuMoment::now(&volume.processes)?.since(&before);
        Ok((took, cpu.by_name.get(DPU).copied().unwrap_or(0.0)))
    }

    fn write(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).custom_flags(O_DIRECT).open(path)?;
        let mut buffer = Aligned::new(MEGABYTE, 1);
        for at in 0..self.mebibytes {
            buffer.slice().copy_from_slice(part(data, at));
            file.write_all_at(buffer.slice(), at * MEGABYTE as u64)?;
        }
        file.sync_all()
    }

    fn read(&self, file: &File, data: &[u8]) -> io::Result<()> {
        let mut buffer = Aligned::new(MEGABYTE, 1);
        for at in 0..self.mebibytes {
            file.read_exact_at(buffer.slice(), at * MEGABYTE as u64)?;
            if buffer.slice() != part(data, at) {
                return Err(io::Error::other("what was written is not what is read"));
            }
        }
        Ok(())
    }

    fn read_at_random(&self, file: &File) -> io::Result<()> {
        let (mut rng, mut buffer) = (Rng::new(7), Aligned::new(BLOCK, 1));
        let blocks = self.mebibytes * (MEGABYTE / BLOCK) as u64;
        for _ in 0..READS {
            file.read_exact_at(buffer.slice(), rng.below(blocks) * BLOCK as u64)?;
        }
        Ok(())
    }

    fn report(
        &self,
        kinds: &[&'static str],
        sums: &BTreeMap<(usize, usize), Sum>,
    ) -> CompressReport {
        let moved = (self.mebibytes * u64::from(self.rounds)).max(1) as f64;
        let row = |((k, v), sum): (&(usize, usize), &Sum)| {
            let of = |bytes: u64| bytes as f64 / sum.plain.max(1) as f64;
            Some(CompressRow {
                data: kinds.get(*k)?,
                method: METHODS.get(*v)?,
                space: of(sum.taken),
                sent: of(sum.sent),
                write: median(&sum.write),
                write_cpu_ms: sum.write_cpu * 1e3 / moved,
                read: median(&sum.read),
                read_cpu_ms: sum.read_cpu * 1e3 / moved,
                random_us: median(&sum.random),
            })
        };
        let rows = sums.iter().filter_map(row).collect();
        CompressReport { rows, rounds: self.rounds, mebibytes: self.mebibytes }
    }
}

/// The mebibyte of `data` that stands at mebibyte `at` of a file.
fn part(data: &[u8], at: u64) -> &[u8] {
    let parts = (data.len() / MEGABYTE).max(1) as u64;
    let at = usize::try_from(at % parts).unwrap_or(0) * MEGABYTE;
    data.get(at..at + MEGABYTE).unwrap_or_default()
}

/// The kinds of data, some mebibytes of each.
fn kinds(program: &[u8]) -> [(&'static str, Vec<u8>); 5] {
    let len = 16 * MEGABYTE;
    let mut noise = vec![0; len];
    Rng::new(1).fill(&mut noise);
    let again = |bytes: &[u8]| bytes.iter().copied().cycle().take(len).collect();
    [
        ("prose", again(PROSE.concat().as_bytes())),
        ("source", again(SOURCE.concat().as_bytes())),
        ("records", records(len)),
        ("program", again(program)),
        ("noise", noise),
    ]
}

/// Lines as a program logs them.
fn records(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(3);
    let mut lines = Vec::with_capacity(len + 256);
    for number in 0.. {
        let (user, took, key) = (rng.below(5000), rng.below(90_000), rng.next_u64());
        lines.extend_from_slice(
            format!(
                "{{\"number\":{number},\"level\":\"info\",\"user\":\"user-{user}\",\"took_us\":\
                 {took},\"key\":\"{key:016x}\",\"message\":\"the request was answered\"}}\n"
            )
            .as_bytes(),
        );
        if lines.len() >= len {
            break;
        }
    }
    lines.truncate(len);
    lines
}

impl CompressReport {
    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = format!(
            "space and bytes: counted; the rest measured: medians of {} interleaved rounds, {} MiB \
             a file, 1 MiB a call past the kernel's cache, fsync inside the time;\n\
             CPU of the DPU side in ms a MiB; random: reads of 8 KiB, us\n\n\
             {:<8} {:<6} {:>6} {:>6} {:>8} {:>6} {:>8} {:>6} {:>7}\n",
            self.rounds,
            self.mebibytes,
            "data",
            "",
            "space",
            "bytes",
            "write",
            "CPU",
            "read",
            "CPU",
            "random"
        );
        for row in &self.rows {
            table.push_str(&format!(
                "{:<8} {:<6} {:>6.2} {:>6.2} {:>8.0} {:>6.2} {:>8.0} {:>6.2} {:>7.0}\n",
                row.data,
                row.method,
                row.space,
                row.sent,
                row.write,
                row.write_cpu_ms,
                row.read,
                row.read_cpu_ms,
                row.random_us
            ));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_fills_mebibytes_and_only_noise_looks_like_noise() {
        for (kind, data) in kinds(b"some program") {
            assert_eq!(data.len(), 16 * MEGABYTE, "{kind}");
            assert_eq!(part(&data, 17), &data[MEGABYTE..2 * MEGABYTE], "{kind}");
            let mut seen = [false; 256];
            data.iter().for_each(|byte| seen[usize::from(*byte)] = true);
            assert_eq!(seen.iter().all(|seen| *seen), kind == "noise", "{kind}");
        }
    }

    #[test]
    fn ratios_are_of_what_was_counted() {
        let bench = CompressBench {
            dir: PathBuf::new(),
            rounds: 2,
            mebibytes: 100,
            program: PathBuf::new(),
        };
        let sum = Sum {
            plain: 1000,
            taken: 500,
            sent: 400,
            write: vec![100.0, 300.0],
            write_cpu: 0.4,
            ..Sum::default()
        };
        let report = bench.report(&["text"], &BTreeMap::from([((0, 1), sum)]));
        let [row] = &report.rows[..] else { panic!("{report:?}") };
        assert_eq!((row.data, row.method), ("text", "lz4"));
        assert!((row.space - 0.5).abs() < 1e-9 && (row.sent - 0.4).abs() < 1e-9);
        assert!((row.write_cpu_ms - 2.0).abs() < 1e-9, "{row:?}");
        assert!(report.table().contains("0.50   0.40"), "{}", report.table());
    }
}
