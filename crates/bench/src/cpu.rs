//! Where the CPU time went: every process of a measurement, the kernel's threads, and the rest.
//!
//! `/proc/stat` counts what was not idle on the whole machine; `/proc/PID/stat` counts user and
//! system time of each process, its finished threads included. What remains when the named
//! processes and the kernel threads are taken off is shown as `other`, so that nothing hides.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use serde::Serialize;

/// CPU seconds of one measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CpuSeconds {
    /// Of each named process.
    pub by_name: BTreeMap<String, f64>,
    /// Of kernel threads (workers, block I/O, journals).
    pub kernel_threads: f64,
    /// Everything else on the machine that was not idle.
    pub other: f64,
    /// All that was not idle; the sum of the fields above.
    pub not_idle: f64,
}

impl CpuSeconds {
    /// Adds what another measurement used.
    pub fn add(&mut self, more: &CpuSeconds) {
        for (name, used) in &more.by_name {
            *self.by_name.entry(name.clone()).or_insert(0.0) += used;
        }
        self.kernel_threads += more.kernel_threads;
        self.other += more.other;
        self.not_idle += more.not_idle;
    }
}

/// CPU counters at one moment.
#[derive(Debug)]
pub struct CpuMoment {
    by_name: BTreeMap<String, f64>,
    kernel_threads: f64,
    not_idle: f64,
}

/// Seconds one tick of `/proc` stands for.
fn tick() -> f64 {
    1.0 / rustix::param::clock_ticks_per_second() as f64
}

impl CpuMoment {
    /// Reads the counters; `processes` are (name, pid), several pids may share a name.
    pub fn now(processes: &[(String, u32)]) -> io::Result<CpuMoment> {
        let mut by_name = BTreeMap::new();
        for (name, pid) in processes {
            let used = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
            let used = used.as_deref().and_then(process_ticks).unwrap_or(0.0) * tick();
            *by_name.entry(name.clone()).or_insert(0.0) += used;
        }
        Ok(CpuMoment { by_name, kernel_threads: kernel_threads()? * tick(), not_idle: machine()? })
    }

    /// What was used between `earlier` and this moment.
    #[must_use]
    pub fn since(&self, earlier: &CpuMoment) -> CpuSeconds {
        let by_name: BTreeMap<String, f64> = self
            .by_name
            .iter()
            .map(|(name, used)| {
                let before = earlier.by_name.get(name).copied().unwrap_or(0.0);
                (name.clone(), (used - before).max(0.0))
            })
            .collect();
        let kernel_threads = (self.kernel_threads - earlier.kernel_threads).max(0.0);
        let not_idle = (self.not_idle - earlier.not_idle).max(0.0);
        let named: f64 = by_name.values().sum();
        CpuSeconds { by_name, kernel_threads, other: not_idle - named - kernel_threads, not_idle }
    }
}

/// User and system ticks of a `/proc/PID/stat` line. The command's name may hold spaces and
/// brackets, so fields are counted from the last closing one.
fn process_ticks(stat: &str) -> Option<f64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |i: usize| fields.get(i).and_then(|text| text.parse::<f64>().ok());
    Some(field(11)? + field(12)?)
}

/// Whether a `/proc/PID/stat` line is a kernel thread's (flag PF_KTHREAD).
fn is_kernel_thread(stat: &str) -> Option<bool> {
    let flags: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(6)?.parse().ok()?;
    Some(flags & 0x0020_0000 != 0)
}

fn kernel_threads() -> io::Result<f64> {
    let mut ticks = 0.0;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let is_pid = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        // A process may end between the listing and the read.
        let stat = is_pid
            .then(|| fs::read_to_string(format!("/proc/{}/stat", name.to_string_lossy())).ok())
            .flatten();
        if let Some(stat) = stat
            && is_kernel_thread(&stat) == Some(true)
        {
            ticks += process_ticks(&stat).unwrap_or(0.0);
        }
    }
    Ok(ticks)
}

/// Seconds the machine was not idle (user, nice, system, irq, softirq, steal excluded), all cores.
fn machine() -> io::Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|text| text.parse().ok())
        .collect();
    let field = |i: usize| fields.get(i).copied().unwrap_or(0.0);
    Ok((field(0) + field(1) + field(2) + field(5) + field(6)) * tick())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_is_charged_and_the_parts_add_up() {
        let me = vec![("me".to_owned(), std::process::id())];
        let before = CpuMoment::now(&me).unwrap();
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 300 {
            std::hint::black_box(0u64.wrapping_add(1));
        }
        let used = CpuMoment::now(&me).unwrap().since(&before);
        assert!(used.by_name["me"] > 0.05, "{used:?}");
        let sum: f64 = used.by_name.values().sum::<f64>() + used.kernel_threads + used.other;
        assert!((sum - used.not_idle).abs() < 1e-6);
    }

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 2129984 0 0 0 0 5 6 0 0 20 0 1 0 9 0 0";
        assert_eq!(process_ticks(stat), Some(11.0));
        assert_eq!(is_kernel_thread(stat), Some(true));
    }
}
