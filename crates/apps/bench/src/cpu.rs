//! Where the CPU time went: every process of a measurement, the kernel's threads, everybody else,
//! and what no part accounts for.
//!
//! Two accounts that the kernel keeps apart are held against each other:
//!
//! ```text
//! all cores' time    - idle - iowait - stolen, of /proc/stat                    = not idle
//! /proc/PID/stat     the named processes                 their finished threads, and the
//!                    + kernel threads                    children they waited for, included
//!                    + every other process
//! /proc/stat         + irq + softirq
//!                                                                               = explained
//! unexplained = not idle - explained
//! ```
//!
//! Idle time is what the kernel clocked; its count of user and system time is sampled at the tick,
//! which misses a tenth of work that comes in short bursts between two sleeps, and is not used. The
//! second account is what the scheduler summed up. Both are read in hundredths of a second: over a
//! short measurement they differ by a few of them either way, over a long one by little. A
//! process that ends stays counted, since whoever waits for it inherits its time. Lost is
//! one that nobody waits for (its parent ignores SIGCHLD): its time shows as unexplained. Without
//! `CONFIG_IRQ_TIME_ACCOUNTING` the time of an interrupt is also that of the task it hit, so that
//! it may be counted twice; it is shown apart. Time stolen by the hypervisor is neither idle nor
//! used, and is shown for itself.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;

/// CPU seconds of one measurement.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CpuSeconds {
    /// Of each named process, with its finished threads and the children it waited for.
    pub by_name: BTreeMap<String, f64>,
    /// Of kernel threads (workers, block I/O, journals).
    pub kernel_threads: f64,
    /// Of every process that is not named: who else was at work on this machine.
    pub other: f64,
    /// Of hard and soft interrupts, as the tick saw them.
    pub interrupts: f64,
    /// All that was not idle, stolen time left out.
    pub not_idle: f64,
    /// Not idle, and in none of the parts above; below zero when the parts count something twice.
    pub unexplained: f64,
    /// Taken by the hypervisor while something here wanted to run.
    pub stolen: f64,
}

impl CpuSeconds {
    /// Adds what another measurement used.
    pub fn add(&mut self, more: &CpuSeconds) {
        for (name, used) in &more.by_name {
            *self.by_name.entry(name.clone()).or_insert(0.0) += used;
        }
        self.kernel_threads += more.kernel_threads;
        self.other += more.other;
        self.interrupts += more.interrupts;
        self.not_idle += more.not_idle;
        self.unexplained += more.unexplained;
        self.stolen += more.stolen;
    }

    /// The part of all that was not idle which is unexplained, or counted twice: 0 to 1, and more
    /// if the parts make no sense.
    #[must_use]
    pub fn unexplained_share(&self) -> f64 {
        if self.not_idle > 0.0 { self.unexplained.abs() / self.not_idle } else { 0.0 }
    }
}

/// CPU counters at one moment, in seconds.
#[derive(Debug)]
pub struct CpuMoment {
    by_name: BTreeMap<String, f64>,
    kernel_threads: HashMap<u32, f64>,
    other: f64,
    machine: Machine,
}

impl CpuMoment {
    /// Reads the counters; `processes` are (name, pid), several pids may share a name.
    pub fn now(processes: &[(String, u32)]) -> io::Result<CpuMoment> {
        let mut by_name: BTreeMap<String, f64> =
            processes.iter().map(|(name, _)| (name.clone(), 0.0)).collect();
        let (mut kernel_threads, mut other) = (HashMap::new(), 0.0);
        for entry in fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // A process may end between the listing and the read.
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let Some(account) = Account::parse(&stat) else { continue };
            if account.is_kernel_thread {
                kernel_threads.insert(pid, account.seconds());
                continue;
            }
            let name = processes.iter().find(|(_, named)| *named == pid).map(|(name, _)| name);
            match name.and_then(|name| by_name.get_mut(name)) {
                Some(used) => *used += account.seconds(),
                None => other += account.seconds(),
            }
        }
        Ok(CpuMoment { by_name, kernel_threads, other, machine: Machine::now()? })
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
        // One by one: nobody inherits the time of a kernel thread that ends.
        let kernel_threads = self
            .kernel_threads
            .iter()
            .map(|(pid, used)| used - earlier.kernel_threads.get(pid).copied().unwrap_or(0.0))
            .filter(|used| *used > 0.0)
            .sum();
        let other = (self.other - earlier.other).max(0.0);
        let interrupts = self.machine.interrupts - earlier.machine.interrupts;
        let stolen = self.machine.stolen - earlier.machine.stolen;
        let whole = self.machine.at.duration_since(earlier.machine.at).as_secs_f64();
        let not_idle =
            whole * self.machine.cores - (self.machine.idle - earlier.machine.idle) - stolen;
        let named: f64 = by_name.values().sum();
        let unexplained = not_idle - named - kernel_threads - other - interrupts;
        CpuSeconds { by_name, kernel_threads, other, interrupts, not_idle, unexplained, stolen }
    }
}

/// Waits so long, and says what part of all cores' time was not idle meanwhile, 0 to 1.
///
/// # Errors
/// `/proc` cannot be read.
pub fn busy(time: Duration) -> io::Result<f64> {
    let before = CpuMoment::now(&[])?;
    std::thread::sleep(time);
    let now = CpuMoment::now(&[])?;
    let whole = now.machine.at.duration_since(before.machine.at).as_secs_f64() * now.machine.cores;
    Ok((now.since(&before).not_idle / whole).clamp(0.0, 1.0))
}

/// Seconds one tick of `/proc` stands for.
fn tick() -> f64 {
    1.0 / rustix::param::clock_ticks_per_second() as f64
}

/// What a `/proc/PID/stat` line says of CPU time.
#[derive(Debug, PartialEq)]
struct Account {
    /// User and system ticks, of the process and of children it waited for.
    ticks: f64,
    is_kernel_thread: bool,
}

impl Account {
    /// The command's name may hold spaces and brackets, so fields are counted from the last closing
    /// one: flags are the 7th behind it (PF_KTHREAD among them), utime, stime, cutime, cstime the
    /// 12th to 15th.
    fn parse(stat: &str) -> Option<Account> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let flags: u64 = fields.get(6)?.parse().ok()?;
        let mut ticks = 0.0;
        for field in fields.get(11..15)? {
            ticks += field.parse::<f64>().ok()?;
        }
        Some(Account { ticks, is_kernel_thread: flags & 0x0020_0000 != 0 })
    }

    fn seconds(&self) -> f64 {
        self.ticks * tick()
    }
}

/// The counters of all cores, seconds.
#[derive(Debug)]
struct Machine {
    at: Instant,
    cores: f64,
    idle: f64,
    interrupts: f64,
    stolen: f64,
}

impl Machine {
    fn now() -> io::Result<Machine> {
        let stat = fs::read_to_string("/proc/stat")?;
        Machine::parse(&stat).ok_or_else(|| io::Error::other("/proc/stat makes no sense"))
    }

    /// The fields of the line `cpu`: user, nice, system, idle, iowait, irq, softirq, steal; a line
    /// `cpuN` a core.
    fn parse(stat: &str) -> Option<Machine> {
        let at = Instant::now();
        let line = stat.lines().next()?;
        let cores = stat.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
        let fields: Vec<f64> =
            line.split_whitespace().skip(1).filter_map(|text| text.parse().ok()).collect();
        let [_user, _nice, _system, idle, iowait, irq, softirq, steal, ..] = fields[..] else {
            return None;
        };
        let interrupts = (irq + softirq) * tick();
        let idle = (idle + iowait) * tick();
        Some(Machine { at, cores: cores as f64, idle, interrupts, stolen: steal * tick() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(time: std::time::Duration) {
        let start = std::time::Instant::now();
        while start.elapsed() < time {
            std::hint::black_box(0u64.wrapping_add(1));
        }
    }

    /// The claim itself, on this machine as it is: whoever else works is a named part.
    #[test]
    fn the_parts_add_up_to_all_that_was_not_idle() {
        let me = vec![("me".to_owned(), std::process::id())];
        let before = CpuMoment::now(&me).unwrap();
        // A thread that ends, and a child that ends, are charged to this process.
        std::thread::scope(|scope| {
            scope.spawn(|| spin(std::time::Duration::from_secs(1)));
        });
        let child = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", child]).status().unwrap().success());
        spin(std::time::Duration::from_millis(500));
        let used = CpuMoment::now(&me).unwrap().since(&before);
        assert!(used.by_name["me"] > 0.2, "{used:?}");
        let sum: f64 = used.by_name.values().sum::<f64>()
            + used.kernel_threads
            + used.other
            + used.interrupts
            + used.unexplained;
        assert!((sum - used.not_idle).abs() < 1e-6);
        assert!(used.unexplained_share() < 0.25, "{used:?}");
    }

    #[test]
    fn time_of_children_and_ended_threads_is_the_process_s() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 2129984 0 0 0 0 5 6 3 1 20 0 1 0 9 0 0";
        assert_eq!(Account::parse(stat), Some(Account { ticks: 15.0, is_kernel_thread: true }));
        assert_eq!(Account::parse("7 (a) S 1 7"), None);
    }

    #[test]
    fn interrupts_are_not_idle_and_stolen_time_is_not_used() {
        let stat = "cpu  100 20 30 4000 500 6 7 80 9 9\ncpu0 1\ncpu1 1\nintr 1\n";
        let machine = Machine::parse(stat).unwrap();
        assert!((machine.idle - 4500.0 * tick()).abs() < 1e-9);
        assert!((machine.interrupts - 13.0 * tick()).abs() < 1e-9);
        assert!((machine.stolen - 80.0 * tick()).abs() < 1e-9);
        assert!((machine.cores - 2.0).abs() < 1e-9);
        assert!(Machine::parse("cpu 1 2").is_none());
    }
}
