//! `bench link`: a request through the link and back, against the least that could do the same.
//!
//! - *busy*: no-op requests back to back, both sides spinning; the rival is two processes passing a
//!   word back and forth in shared memory, which does nothing else.
//! - *asleep*: one no-op after a pause in which both sides fell asleep; the rival is a futex round
//!   trip between two sleeping processes, with the same pauses.
//! - *deep*: no-ops with many in flight at once; what batching gives. It has no rival.
//!
//! The DPU side is the program's own, in a process of its own, with its default settings.
//!
//! [`figure6`] measures nvme-fs against virtio-fs instead, with a [`device`] that only moves bytes.

mod channel;
pub mod device;
pub mod figure6;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use outboard_attach::link::{HostLink, HostMemory, control, wait};
use outboard_base::ledger::Ledger;
use outboard_base::{SessionId, limits};
use outboard_link::Region;
use outboard_link::pace::{Config, Pace};
use outboard_link::queue::nvmefs::Initiator;
use outboard_link::queue::{HostQueue, Span, Submission};
use outboard_os::clock;
use outboard_os::futex;
use outboard_os::shm::Shared;
use outboard_wire::file::{Header, Request};
use outboard_wire::nvmefs::{Dispatch, Status};
use serde::Serialize;

use crate::cpu::{CpuMoment, CpuSeconds};
use crate::programs;
use crate::stats::{Latencies, median};
use crate::verdict::Verdict;

/// How `bench link` runs.
#[derive(Clone, Debug)]
pub struct LinkBench {
    /// Length of each measurement.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
    /// The program, started as DPU side.
    pub program: PathBuf,
    /// Directory for the DPU side's volume.
    pub dir: PathBuf,
}

/// Medians of one measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub name: String,
    /// Round trips a second.
    pub per_second: f64,
    /// Median round trip, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// CPU microseconds a round trip, host side.
    pub host_cpu_us: f64,
    /// CPU microseconds a round trip, DPU side (or the rival's other process).
    pub dpu_cpu_us: f64,
    /// CPU seconds over all rounds.
    pub cpu: CpuSeconds,
}

/// What a whole run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The figures.
    pub rows: Vec<Row>,
    /// Median busy round trip over the bare ping-pong's.
    pub busy_ratio: f64,
    /// Median round trip of sleepers over the bare futex's.
    pub asleep_ratio: f64,
    /// Counted by the DPU side over the run: operations and bytes of DMA by kind.
    pub dpu_status: serde_json::Value,
    /// Processors of this machine.
    pub cores: usize,
}

/// Long enough for both sides to fall asleep, whatever their pace.
const PAUSE: Duration = Duration::from_millis(2);
/// In flight in the deep measurement.
const DEEP: usize = 16;
/// Where the words lie: a cache line each.
const TO_PEER: u64 = 0;
const FROM_PEER: u64 = 64;
const STOP: u32 = u32::MAX;

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A rival's other process, and the words shared with it.
struct Rival {
    shared: Shared,
    child: KilledOnDrop,
    sleeping: bool,
    count: u32,
}

impl Rival {
    fn start(sleeping: bool) -> io::Result<Rival> {
        let shared = Shared::create("outboard-bench", limits::PAGE as u64)?;
        let how = if sleeping { "futex" } else { "spin" };
        let child = programs::own("ping-pong-peer")?
            .arg(how)
            .stdin(Stdio::from(shared.fd().try_clone_to_owned()?))
            .spawn()?;
        Ok(Rival { shared, child: KilledOnDrop(child), sleeping, count: 0 })
    }

    fn round_trip(&mut self) -> io::Result<()> {
        self.count += 1;
        let region = self.shared.region();
        tell(region, TO_PEER, self.count, self.sleeping)?;
        hear(region, FROM_PEER, self.sleeping, |word| word == self.count).map(drop)
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        // A peer that does not hear this is killed.
        let _ = tell(self.shared.region(), TO_PEER, STOP, self.sleeping);
    }
}

fn tell(region: &Region, at: u64, word: u32, sleeping: bool) -> io::Result<()> {
    region.store_u32(at, word, Release).map_err(io::Error::other)?;
    if sleeping {
        futex::wake(region, at, 1)?;
    }
    Ok(())
}

/// Waits until the word at `at` pleases; the other side is given up after ten seconds.
fn hear(
    region: &Region,
    at: u64,
    sleeping: bool,
    pleases: impl Fn(u32) -> bool,
) -> io::Result<u32> {
    let mut looks = 0u64;
    let start = Instant::now();
    loop {
        let word = region.load_u32(at, Acquire).map_err(io::Error::other)?;
        if pleases(word) {
            return Ok(word);
        }
        if sleeping {
            futex::wait(region, at, word, Duration::from_secs(1))?;
        } else {
            std::hint::spin_loop();
        }
        looks += 1;
        if looks.is_multiple_of(1 << 20) && start.elapsed() > Duration::from_secs(10) {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
    }
}

/// The rivals' other process: answers every word with the same word until told to stop. The shared
/// memory is standard input.
pub fn peer(sleeping: bool) -> io::Result<()> {
    let memory: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let shared = Shared::open(memory, limits::PAGE as u64).map_err(io::Error::other)?;
    let mut last = 0;
    while last != STOP {
        last = hear(shared.region(), TO_PEER, sleeping, |word| word != last)?;
        tell(shared.region(), FROM_PEER, last, sleeping)?;
    }
    Ok(())
}

/// An attachment of its own, with one queue.
struct Guest {
    link: HostLink,
    initiator: Initiator,
    ledger: Arc<Ledger>,
    pace: Pace,
    header: Vec<u8>,
    done: Vec<outboard_link::queue::Completion>,
    _memory: HostMemory,
}

impl Guest {
    fn attach(socket: &Path) -> io::Result<Guest> {
        let session = SessionId(u64::from(std::process::id()) << 32 | 1);
        let memory = HostMemory::create(session, 1, 32)?;
        let link = HostLink::attach(socket, &memory, Duration::from_secs(10))
            .map_err(|failure| io::Error::other(format!("cannot attach: {failure:?}")))?;
        let ledger = Arc::new(Ledger::default());
        let mut initiators = link.initiators(&memory, &ledger).map_err(|_| io::ErrorKind::Other)?;
        let initiator = initiators.pop().ok_or(io::ErrorKind::Other)?;
        let mut header = vec![0; limits::REQUEST_HEADER_MAX];
        let words = Header { session, ..Header::default() };
        let len = Request::Noop.encode(&words, &mut header)?;
        header.truncate(len);
        let pace = Pace::new(Config::default());
        Ok(Guest { link, initiator, ledger, pace, header, done: Vec::new(), _memory: memory })
    }

    fn submit(&mut self) -> io::Result<()> {
        let cid = self.initiator.acquire().ok_or_else(|| io::Error::other("no slot is free"))?;
        let none = Span { offset: 0, len: 0 };
        let submission = Submission {
            dispatch: Dispatch::Kv,
            header: &self.header,
            write: none,
            read: none,
            reply_header: 0,
        };
        self.initiator
            .submit(cid, &submission)
            .map(drop)
            .map_err(|error| io::Error::other(format!("cannot submit: {error:?}")))
    }

    /// Shows what was submitted and waits for at least one answer; how many came.
    fn ring_and_wait(&mut self) -> io::Result<usize> {
        if self.initiator.ring() {
            self.link.notify();
        }
        let deadline = clock::now().after(Duration::from_secs(10));
        let Guest { link, initiator, ledger, pace, done, .. } = self;
        let found = wait(initiator, link, pace, ledger, deadline, done)?;
        if found == 0 {
            return Err(io::Error::other("the DPU side did not answer"));
        }
        for completion in done.drain(..) {
            if completion.status != Status::Ok {
                return Err(io::Error::other(format!("a no-op failed: {:?}", completion.status)));
            }
            initiator.release(completion.cid).map_err(|_| io::ErrorKind::Other)?;
        }
        Ok(found)
    }

    fn round_trip(&mut self) -> io::Result<()> {
        self.submit()?;
        self.ring_and_wait().map(drop)
    }
}

/// What the rounds of one measurement gave.
struct Series {
    name: &'static str,
    dpu_pid: u32,
    per_second: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    cpu: CpuSeconds,
    count: u64,
}

impl Series {
    fn new(name: &'static str, dpu_pid: u32) -> Series {
        let (per_second, p50_us, p99_us) = (Vec::new(), Vec::new(), Vec::new());
        Series { name, dpu_pid, per_second, p50_us, p99_us, cpu: CpuSeconds::default(), count: 0 }
    }

    /// Repeats `trip` for `time`, after `pause` each.
    fn round(
        &mut self,
        time: Duration,
        pause: Duration,
        mut trip: impl FnMut() -> io::Result<u64>,
    ) -> io::Result<()> {
        let processes =
            [("host side".to_owned(), std::process::id()), ("DPU side".to_owned(), self.dpu_pid)];
        let (mut latencies, mut count) = (Latencies::default(), 0);
        let before = CpuMoment::now(&processes)?;
        let start = Instant::now();
        while start.elapsed() < time {
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let from = Instant::now();
            count += trip()?;
            latencies.push(u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        self.per_second.push(count as f64 / start.elapsed().as_secs_f64());
        self.cpu.add(&CpuMoment::now(&processes)?.since(&before));
        self.p50_us.push(latencies.percentile(50) as f64 / 1e3);
        self.p99_us.push(latencies.percentile(99) as f64 / 1e3);
        self.count += count;
        Ok(())
    }

    fn row(&self) -> Row {
        let each = |name: &str| {
            self.cpu.by_name.get(name).copied().unwrap_or(0.0) * 1e6 / self.count.max(1) as f64
        };
        Row {
            name: self.name.to_owned(),
            per_second: median(&self.per_second),
            p50_us: median(&self.p50_us),
            p99_us: median(&self.p99_us),
            host_cpu_us: each("host side"),
            dpu_cpu_us: each("DPU side"),
            cpu: self.cpu.clone(),
        }
    }
}

fn start_dpu(bench: &LinkBench) -> io::Result<(KilledOnDrop, PathBuf)> {
    let data = bench.dir.join("data");
    std::fs::create_dir_all(&data)?;
    let child = Command::new(&bench.program)
        .arg("dpu")
        .arg("--data")
        .arg(&data)
        .args(["--size=1G", "--log=warn"])
        .stdin(Stdio::null())
        .spawn()?;
    let mut child = KilledOnDrop(child);
    let socket = data.join("dpu.sock");
    for _ in 0..1000 {
        if outboard_attach::link::connect(&socket).is_ok() {
            return Ok((child, socket));
        }
        if let Some(status) = child.0.try_wait()? {
            return Err(io::Error::other(format!("the DPU side ended: {status}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::other("the DPU side did not listen in 10 s"))
}

/// Runs everything; `progress` is told what is being measured.
pub fn run(bench: &LinkBench, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let (dpu, socket) = start_dpu(bench)?;
    let mut guest = Guest::attach(&socket)?;
    let mut futex = Rival::start(true)?;
    let dpu_pid = dpu.0.id();
    let mut busy = Series::new("no-op, busy", dpu_pid);
    let mut bare = Series::new("bare shared memory", 0);
    let mut asleep = Series::new("no-op, asleep", dpu_pid);
    let mut slept = Series::new("bare futex", futex.child.0.id());
    let mut deep = Series::new("no-op, 16 in flight", dpu_pid);
    for round in 1..=bench.rounds {
        progress(&format!("round {round} of {}", bench.rounds));
        busy.round(bench.time, Duration::ZERO, || guest.round_trip().map(|()| 1))?;
        // A spinning rival lives only while it is measured: it would take a core from the others.
        let mut spinning = Rival::start(false)?;
        bare.dpu_pid = spinning.child.0.id();
        spinning.round_trip()?;
        bare.round(bench.time, Duration::ZERO, || {
            (0..100).try_for_each(|_| spinning.round_trip()).map(|()| 100)
        })?;
        drop(spinning);
        asleep.round(bench.time, PAUSE, || guest.round_trip().map(|()| 1))?;
        slept.round(bench.time, PAUSE, || futex.round_trip().map(|()| 1))?;
        let mut in_flight = 0;
        deep.round(bench.time, Duration::ZERO, || {
            while in_flight < DEEP {
                guest.submit()?;
                in_flight += 1;
            }
            let found = guest.ring_and_wait()?;
            in_flight -= found;
            Ok(found as u64)
        })?;
        while in_flight > 0 {
            in_flight -= guest.ring_and_wait()?;
        }
    }
    let status = control(&socket, r#"{"command":"status"}"#, Duration::from_secs(5))?;
    // One sample of the bare rival stands for a hundred round trips.
    let mut bare = bare.row();
    (bare.p50_us, bare.p99_us) = (bare.p50_us / 100.0, bare.p99_us / 100.0);
    let (busy, asleep, slept) = (busy.row(), asleep.row(), slept.row());
    Ok(Report {
        busy_ratio: busy.p50_us / bare.p50_us,
        asleep_ratio: asleep.p50_us / slept.p50_us,
        rows: vec![busy, bare, asleep, slept, deep.row()],
        dpu_status: serde_json::from_str(&status)?,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
    })
}

impl Report {
    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "measured on {} cores: medians of interleaved rounds; CPU in us a round trip\n\n\
             {:<22} {:>12} {:>9} {:>9} {:>9} {:>9}\n",
            self.cores, "round trip", "per second", "p50 us", "p99 us", "host CPU", "DPU CPU"
        );
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<22} {:>12.0} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
                row.name, row.per_second, row.p50_us, row.p99_us, row.host_cpu_us, row.dpu_cpu_us
            );
        }
        text
    }

    /// How it stands with what is asked.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        let over = |rival: &str, asked, at: &str, ratio| {
            let what = format!("median round trip of a no-op over that of {rival}");
            Verdict::at_most("link", &what, asked, vec![(at.to_owned(), ratio)])
        };
        vec![
            over("a bare shared-memory ping-pong", 10.0, "busy", self.busy_ratio),
            over("a bare futex", 2.0, "both sides asleep", self.asleep_ratio),
        ]
    }
}
