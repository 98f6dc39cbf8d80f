//! Figure 6 of DPC: what each transport moves between host and DPU, by the number of threads.
//!
//! Every point is a host process with n threads, each with one operation on its way, and a device
//! process that moves the bytes. The systems take turns at every point of every round; medians over
//! the rounds are reported. The DMA engine runs free, or takes the time a named bus would.

use std::io;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use outboard_base::ledger::Ledger;
use outboard_link::Region;
use outboard_link::pace::{Config, Pace};
use outboard_link::queue::{nvmefs, virtiofs};
use outboard_link::registers::Registers;
use outboard_os::shm::Shared;
use serde::Serialize;

use super::channel::{Ask, Channel, Queue};
use super::device::{NamedPrice, Page, Shape, Spent, System, cpu_ns};
use crate::plot::{Axis, Figure, Panel, Scale, Series};
use crate::stats::{Latencies, median};
use crate::{machine, programs, today};

/// How Figure 6 is measured.
#[derive(Clone, Debug)]
pub struct Figure6 {
    /// Length of each measurement.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Numbers of threads, ascending.
    pub threads: Vec<usize>,
    /// What the bus charges.
    pub price: NamedPrice,
}

/// Most threads of a measurement.
pub const THREADS_MAX: usize = 256;
/// Sizes of the small operations.
const SMALL: [u32; 2] = [4096, 8192];
/// The large one, and its threads.
const LARGE: u32 = 1 << 20;
const LARGE_THREADS: usize = 16;

/// One transport at one point: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which transport and device.
    pub system: System,
    /// `read` or `write`.
    pub operation: &'static str,
    /// Bytes of each.
    pub size: u32,
    /// Threads of the host, each with one operation on its way.
    pub threads: usize,
    /// Operations a second.
    pub per_second: f64,
    /// Mean latency, microseconds.
    pub mean_us: f64,
    /// Median latency, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// CPU microseconds an operation, host side.
    pub host_cpu_us: f64,
    /// CPU microseconds an operation, DPU side.
    pub dpu_cpu_us: f64,
    /// DMAs an operation, counted.
    pub dmas: f64,
}

/// What a whole run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it was measured, where and when.
    pub note: String,
    /// What the bus charged.
    pub price: &'static str,
    /// The figures.
    pub rows: Vec<Row>,
}

/// One measurement of one point.
#[derive(Clone, Copy, Debug)]
struct Point {
    write: bool,
    size: u32,
    threads: usize,
}

/// What one round of one point gave.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    per_second: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    host_cpu_us: f64,
    dpu_cpu_us: f64,
    dmas: f64,
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A device of one shape, and the host's channels to it.
struct Rig {
    channels: Vec<Channel>,
    page: Page,
    _device: KilledOnDrop,
    _memory: Shared,
}

impl Rig {
    fn start(shape: &Shape) -> io::Result<Rig> {
        let memory = Shared::create("outboard-bench", shape.region_len()?)?;
        let pages = Shared::create("outboard-bench-registers", shape.pages_len())?;
        let number = |n: u64| n.to_string();
        let device = programs::own("null-device")?
            .arg(shape.system.name())
            .args([number(shape.queues.into()), number(shape.depth.into())])
            .args([number(shape.io.into()), number(shape.workers as u64)])
            .arg(shape.price.name)
            .stdin(Stdio::from(memory.fd().try_clone_to_owned()?))
            .stdout(Stdio::from(pages.fd().try_clone_to_owned()?))
            .spawn()?;
        let device = KilledOnDrop(device);
        let page = Page::new(Arc::clone(pages.region()), shape);
        // Its first answer says that the registers are there.
        page.ask()?;
        let channels = channels(shape, memory.region(), pages.region())?;
        Ok(Rig { channels, page, _device: device, _memory: memory })
    }

    /// Drives a point for `time`, after a tenth of it to warm up.
    fn measure(&self, point: Point, time: Duration) -> io::Result<Sample> {
        let (counting, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let ask = Ask::new(point.write, point.size)?;
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for number in 0..point.threads {
                let channel = self.channels.get(number % self.channels.len().max(1));
                let channel = channel.ok_or_else(|| io::Error::other("no channel"))?;
                let drive = || drive(channel, &ask, &counting, &stop);
                threads.push(std::thread::Builder::new().spawn_scoped(scope, drive)?);
            }
            std::thread::sleep(time / 10);
            let before = self.moment();
            let start = Instant::now();
            counting.store(true, Relaxed);
            std::thread::sleep(time);
            let (elapsed, after) = (start.elapsed(), self.moment());
            stop.store(true, Relaxed);
            let mut all = Driven::default();
            for thread in threads {
                let driven = thread.join().map_err(|_| io::Error::other("a thread panicked"))??;
                all.latencies.merge(&driven.latencies);
                all.total_ns += driven.total_ns;
            }
            let ((host_before, before), (host_after, after)) = (before?, after?);
            let spent = after.since(&before);
            Ok(sample(&all, &spent, host_after - host_before, elapsed))
        })
    }

    /// CPU time of this process, and what the device has spent.
    fn moment(&self) -> io::Result<(u64, Spent)> {
        Ok((cpu_ns(), self.page.ask()?))
    }
}

/// The host's ends of every queue.
fn channels(shape: &Shape, memory: &Arc<Region>, pages: &Arc<Region>) -> io::Result<Vec<Channel>> {
    let layout = shape.layout()?;
    let registers = Registers::open(Arc::clone(pages), layout)
        .map_err(|_| io::Error::other("the device has other registers"))?;
    let (page, ledger) = (Page::new(Arc::clone(pages), shape), Arc::new(Ledger::new()));
    let channel = |queue: u16| -> io::Result<Channel> {
        let (region, ledger) = (Arc::clone(memory), Arc::clone(&ledger));
        let no_queue = |_| io::Error::other("the device has no such queue");
        let initiator = match shape.system {
            System::Nvmefs => Queue::Nvmefs(
                nvmefs::Initiator::new(region, &registers, queue, ledger).map_err(no_queue)?,
            ),
            System::Dpfs | System::Tuned => Queue::Virtiofs(
                virtiofs::Initiator::new(region, &registers, shape.rings()?, queue, ledger)
                    .map_err(no_queue)?,
            ),
        };
        let worker = shape.worker_of(queue.into());
        Ok(Channel::new(initiator, layout.slots(), page.clone(), worker, Arc::clone(pages)))
    };
    (0..shape.queues).map(channel).collect()
}

/// What one thread measured.
#[derive(Default)]
struct Driven {
    latencies: Latencies,
    total_ns: u64,
}

fn drive(
    channel: &Channel,
    ask: &Ask,
    counting: &AtomicBool,
    stop: &AtomicBool,
) -> io::Result<Driven> {
    let (mut driven, mut pace) = (Driven::default(), Pace::new(Config::default()));
    while !stop.load(Relaxed) {
        let counts = counting.load(Relaxed);
        let from = Instant::now();
        channel.round_trip(ask, &mut pace)?;
        if counts {
            let nanos = u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX);
            driven.latencies.push(nanos);
            driven.total_ns += nanos;
        }
    }
    Ok(driven)
}

/// Rates from what the device counted between the two moments, latencies from the threads.
fn sample(all: &Driven, spent: &Spent, host_cpu_ns: u64, elapsed: Duration) -> Sample {
    let commands = spent.commands.max(1) as f64;
    let us = |nanos: u64| nanos as f64 / 1e3;
    Sample {
        per_second: spent.commands as f64 / elapsed.as_secs_f64(),
        mean_us: us(all.total_ns) / all.latencies.count().max(1) as f64,
        p50_us: us(all.latencies.percentile(50)),
        p99_us: us(all.latencies.percentile(99)),
        host_cpu_us: us(host_cpu_ns) / commands,
        dpu_cpu_us: us(spent.cpu_ns) / commands,
        dmas: spent.dmas as f64 / commands,
    }
}

fn points(figure: &Figure6) -> Vec<Point> {
    let mut points = Vec::new();
    for size in SMALL {
        for write in [false, true] {
            for &threads in &figure.threads {
                points.push(Point { write, size, threads });
            }
        }
    }
    points.extend([false, true].map(|write| Point { write, size: LARGE, threads: LARGE_THREADS }));
    points
}

/// Measures; `progress` is told what is being measured.
pub fn run(figure: &Figure6, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let points = points(figure);
    let mut samples = vec![Vec::new(); points.len() * System::ALL.len()];
    for round in 1..=figure.rounds {
        let slots = samples.chunks_mut(System::ALL.len());
        for (point, slots) in points.iter().zip(slots) {
            let Point { write, size, threads } = *point;
            let what = if write { "write" } else { "read" };
            progress(&format!(
                "round {round} of {}: {what} {size} bytes, {threads} threads",
                figure.rounds
            ));
            for (system, slot) in System::ALL.into_iter().zip(slots) {
                let shape = Shape::of(system, threads, size, figure.price);
                let rig = Rig::start(&shape)?;
                slot.push(rig.measure(*point, figure.time)?);
            }
        }
    }
    let of_point = |point: &Point| System::ALL.map(|system| (*point, system));
    let rows = points.iter().flat_map(of_point).zip(&samples);
    let rows = rows.map(|((point, system), samples)| row(point, system, samples)).collect();
    let note = format!(
        "measured on {}, {}; DMA price {}; {} rounds of {:.2} s, in turn; medians",
        machine(),
        today(),
        figure.price.name,
        figure.rounds,
        figure.time.as_secs_f64()
    );
    Ok(Report { note, price: figure.price.name, rows })
}

fn row(point: Point, system: System, samples: &[Sample]) -> Row {
    let middle = |of: fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
    Row {
        system,
        operation: if point.write { "write" } else { "read" },
        size: point.size,
        threads: point.threads,
        per_second: middle(|s| s.per_second),
        mean_us: middle(|s| s.mean_us),
        p50_us: middle(|s| s.p50_us),
        p99_us: middle(|s| s.p99_us),
        host_cpu_us: middle(|s| s.host_cpu_us),
        dpu_cpu_us: middle(|s| s.dpu_cpu_us),
        dmas: middle(|s| s.dmas),
    }
}

fn size_name(size: u32) -> String {
    if size >= 1 << 20 { format!("{} MiB", size >> 20) } else { format!("{} KiB", size >> 10) }
}

impl Report {
    /// The figures as a table for people. `x` is nvme-fs over this row, in operations a second.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{}\nCPU in us an operation; x: operations of nvme-fs over this row's\n\n\
             {:<13} {:>6} {:>4}  {:<13} {:>10} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}\n",
            self.note,
            "operation",
            "size",
            "thr",
            "system",
            "per second",
            "x",
            "mean us",
            "p50 us",
            "p99 us",
            "host CPU",
            "DPU CPU",
            "DMAs"
        );
        let mut best = 0.0;
        for row in &self.rows {
            if row.system == System::Nvmefs {
                best = row.per_second;
            }
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<13} {:>6} {:>4}  {:<13} {:>10.0} {:>6.2} {:>9.1} {:>9.1} {:>9.1} {:>9.2} \
                 {:>9.2} {:>6.2}",
                row.operation,
                size_name(row.size),
                row.threads,
                row.system,
                row.per_second,
                best / row.per_second.max(f64::MIN_POSITIVE),
                row.mean_us,
                row.p50_us,
                row.p99_us,
                row.host_cpu_us,
                row.dpu_cpu_us,
                row.dmas
            );
        }
        text
    }

    /// Operations a second and mean latency by threads, for reads and writes of 8 KiB, as the
    /// paper's figure has them.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut panels = Vec::new();
        for operation in ["read", "write"] {
            panels.push(self.panel(operation, "operations a second", |row| row.per_second));
            panels.push(self.panel(operation, "mean latency, us", |row| row.mean_us));
        }
        let title = "nvme-fs and virtio-fs between host and DPU (after DPC, Figure 6)".to_owned();
        Figure { title, note: self.note.clone(), columns: 2, panels }.svg()
    }

    fn panel(&self, operation: &str, label: &str, value: fn(&Row) -> f64) -> Panel {
        let size = SMALL.last().copied().unwrap_or_default();
        let line = |system: System| {
            let rows = self.rows.iter().filter(|row| {
                row.system == system && row.operation == operation && row.size == size
            });
            let points = rows.map(|row| (row.threads as f64, value(row))).collect();
            Series { name: system.name().to_owned(), points }
        };
        let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
        let latency = label.ends_with("us");
        Panel {
            title: format!("{operation}, {}", size_name(size)),
            x: axis("threads", Scale::Log2),
            y: axis(label, if latency { Scale::Log10 } else { Scale::Linear }),
            series: System::ALL.into_iter().map(line).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::Device;
    use super::*;

    /// Every system: a device and the host's threads in one process, two threads a queue, until
    /// every operation is answered; the device has counted each, and the DMAs its transport needs.
    #[test]
    fn threads_that_share_a_queue_each_get_their_own_answer() {
        const EACH: u64 = 400;
        for (system, write_dmas) in [(System::Nvmefs, 4), (System::Dpfs, 11), (System::Tuned, 7)] {
            let price = NamedPrice::from_name("none").unwrap();
            let queues = if system == System::Dpfs { 1 } else { 2 };
            let shape = Shape { system, queues, depth: 8, io: 8192, workers: 1, price };
            let memory = Region::anonymous(shape.region_len().unwrap());
            let pages = Region::anonymous(shape.pages_len());
            let device = Device::start(&shape, &memory, &pages).unwrap();
            let channels = channels(&shape, &memory, &pages).unwrap();
            let asks = [true, false].map(|write| Ask::new(write, 8192).unwrap());
            std::thread::scope(|scope| {
                for number in 0..4 {
                    let (channel, ask) = (&channels[number % channels.len()], &asks[number / 2]);
                    scope.spawn(move || {
                        let mut pace = Pace::new(Config::default());
                        for _ in 0..EACH {
                            channel.round_trip(ask, &mut pace).unwrap();
                        }
                    });
                }
            });
            let spent = device.spent();
            assert_eq!(spent.commands, 4 * EACH, "{system}");
            let most = spent.commands * write_dmas;
            if system == System::Dpfs {
                assert_eq!(spent.dmas, most, "each pays for itself");
            } else {
                assert!((3 * spent.commands..=most).contains(&spent.dmas), "{system}: {spent:?}");
            }
            assert!(spent.bytes >= spent.commands * 8192, "{system} moves the data");
        }
    }

    #[test]
    fn a_report_is_drawn_and_tabled() {
        let row = |system, threads, per_second| Row {
            system,
            operation: "write",
            size: 8192,
            threads,
            per_second,
            mean_us: 10.0,
            p50_us: 9.0,
            p99_us: 30.0,
            host_cpu_us: 1.0,
            dpu_cpu_us: 2.0,
            dmas: 4.0,
        };
        let rows = vec![row(System::Nvmefs, 1, 30_000.0), row(System::Dpfs, 1, 10_000.0)];
        let report = Report { note: "measured".to_owned(), price: "none", rows };
        let table = report.table();
        assert!(table.contains(" 3.00 ") && table.contains("virtio-fs"), "{table}");
        let svg = report.svg();
        assert_eq!(svg.matches("<polyline").count(), 4 * System::ALL.len());
        assert!(svg.contains("write, 8 KiB") && svg.contains("measured"));
    }
}
