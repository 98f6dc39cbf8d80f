//! One measurement of one server under one load, and the medians of several.

use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{Client, Done};
use super::process::{Sides, Used};
use super::requests::Batch;
use crate::cpu::{CpuMoment, CpuSeconds};
use crate::stats::median;

/// Connections of a client and commands under way on each: its load window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Connections.
    pub connections: usize,
    /// Commands sent at once on each.
    pub pipeline: usize,
}

/// So many connections, so many commands on each.
#[must_use]
pub const fn load(connections: usize, pipeline: usize) -> Load {
    Load { connections, pipeline }
}

/// The loads in words, as the notes of figures state them.
pub(super) fn window(loads: &[Load]) -> String {
    let each = loads.iter().map(|load| format!("{}x{}", load.connections, load.pipeline));
    each.collect::<Vec<_>>().join(", ")
}

/// One measurement.
pub(super) struct Sample {
    done: Done,
    used: Used,
    cpu: CpuSeconds,
}

/// One server at one point: medians of the rounds, CPU of all of them.
#[derive(Clone, Debug, Serialize)]
pub struct Got {
    /// Commands a second.
    pub per_second: f64,
    /// Latency that half of the commands stay below, microseconds.
    pub p50_us: f64,
    /// Latency that 99 of 100 stay below, microseconds.
    pub p99_us: f64,
    /// Commands answered, of all rounds.
    pub commands: u64,
    /// Length of all rounds, seconds.
    pub seconds: f64,
    /// CPU seconds of the host's processes in that time, to the nanosecond.
    pub host_cpu: f64,
    /// CPU seconds of the DPU side's, or of what stands in its place, likewise.
    pub dpu_cpu: f64,
    /// Where all CPU time went, in ticks.
    pub cpu: CpuSeconds,
}

impl Got {
    pub(super) fn of(samples: &[Sample]) -> Got {
        let middle = |of: fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
        let sum = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>();
        let mut cpu = CpuSeconds::default();
        samples.iter().for_each(|sample| cpu.add(&sample.cpu));
        Got {
            per_second: middle(|s| s.done.count as f64 / s.done.time.as_secs_f64()),
            p50_us: middle(|s| s.done.latencies.percentile(50) as f64 / 1e3),
            p99_us: middle(|s| s.done.latencies.percentile(99) as f64 / 1e3),
            commands: samples.iter().map(|sample| sample.done.count).sum(),
            seconds: sum(|s| s.done.time.as_secs_f64()),
            host_cpu: sum(|s| s.used.host.as_secs_f64()),
            dpu_cpu: sum(|s| s.used.dpu.as_secs_f64()),
            cpu,
        }
    }

    /// Cores that the host used.
    #[must_use]
    pub fn host_cores(&self) -> f64 {
        self.host_cpu / self.seconds
    }

    /// Cores that the DPU side used.
    #[must_use]
    pub fn dpu_cores(&self) -> f64 {
        self.dpu_cpu / self.seconds
    }

    /// Cores that the client used, in ticks.
    #[must_use]
    pub fn client_cores(&self) -> f64 {
        self.cpu.by_name.get(CLIENT).copied().unwrap_or(0.0) / self.seconds
    }

    /// CPU microseconds of the host a command.
    #[must_use]
    pub fn host_us(&self) -> f64 {
        self.host_cpu * 1e6 / self.commands.max(1) as f64
    }

    /// CPU microseconds of the DPU side a command.
    #[must_use]
    pub fn dpu_us(&self) -> f64 {
        self.dpu_cpu * 1e6 / self.commands.max(1) as f64
    }

    /// CPU microseconds of both sides a command.
    #[must_use]
    pub fn both_us(&self) -> f64 {
        self.host_us() + self.dpu_us()
    }

    /// CPU microseconds of the whole machine a command, client and kernel included, in ticks: what
    /// a packet costs whoever happened to run when it came is in it.
    #[must_use]
    pub fn machine_us(&self) -> f64 {
        self.cpu.not_idle * 1e6 / self.commands.max(1) as f64
    }

    /// CPU of the host over what one that sleeps may use for its timers: `ASLEEP` seconds at a
    /// time, and of each second. Above 1 it did not sleep.
    #[must_use]
    pub fn awake(&self) -> f64 {
        self.host_cpu / (ASLEEP * (1.0 + self.seconds))
    }

    /// Commands a second of CPU time of both sides.
    #[must_use]
    pub fn per_core(&self) -> f64 {
        self.commands as f64 / (self.host_cpu + self.dpu_cpu)
    }
}

/// Most CPU of a host that sleeps, seconds.
const ASLEEP: f64 = 0.002;
const CLIENT: &str = "client";

/// What a client asks of a server.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) batch: Batch,
    /// Whether the server is waited for until it rests before it is measured.
    pub(super) settles: bool,
}

/// Measures one server once, through a client of it.
pub(super) fn one(
    mut client: Client,
    sides: &Sides,
    asked: Asked,
    time: Duration,
    next: &mut dyn FnMut() -> u64,
) -> io::Result<Sample> {
    let mut run = |time: Duration| {
        let from = Instant::now();
        client.run(asked.batch, &mut || (from.elapsed() < time).then(&mut *next))
    };
    // What a first command brings about, and what was left to do from before, is not measured.
    run(time / 5)?;
    if asked.settles {
        sides.settle()?;
    }
    let mut processes = sides.named();
    processes.push((CLIENT.to_owned(), std::process::id()));
    let machine = CpuMoment::now(&processes)?;
    let before = sides.cpu()?;
    let done = run(time)?;
    let used = sides.cpu()?.since(&before);
    let cpu = CpuMoment::now(&processes)?.since(&machine);
    Ok(Sample { done, used, cpu })
}
