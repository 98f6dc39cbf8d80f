//! Figure 17 of DDS: messages a second through each ring, by the number of producers.
//!
//! Threads push messages of 8 bytes, by ones or by 32, as fast as they can; one thread consumes
//! them through the DMA port and does nothing else. Who finds the ring full lets others run and
//! tries again, by every ring alike. The systems take turns at every point of every round; medians
//! over the rounds are reported. The DMA engine runs free, or takes the time a named bus would:
//! those rates are simulated, and the consumer's CPU time then is the waiting of a polling core.
//! Where DPDK is installed, its ring takes part (`ring/dpdk.rs`).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use outboard_base::ledger::Ledger;
use outboard_link::Region;
use outboard_link::dma::{Counted, Delayed, Direct, Dma};
use outboard_link::ring::{
    Consume, Place, Produce, PushError, farm, lanes, lanes::Lanes, locked, progress,
};
use outboard_os::clock;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::link::device::NamedPrice;
use crate::machine;
use crate::plot::{Axis, Figure, Panel, Scale, Series};
use crate::stats::median;
use crate::today;

mod dpdk;

use dpdk::Dpdk;

/// How Figure 17 is measured.
#[derive(Clone, Debug)]
pub struct RingFigure {
    /// Length of each measurement.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Numbers of producers, ascending.
    pub producers: Vec<usize>,
    /// Where DPDK's rival is compiled.
    pub dir: PathBuf,
}

/// Most producers of a measurement: what every ring has room for.
pub const PRODUCERS_MAX: usize = 64;
/// Bytes of each ring; rings of one producer each share them.
const BYTES: u64 = 256 << 10;
/// Messages of a push.
pub(super) const BATCHES: [usize; 2] = [1, 32];
/// What the bus charges: nothing, and what a card would wait for.
const PRICES: [&str; 2] = ["none", "pcie3x16"];

/// One of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// The paper's.
    Progress,
    /// A lock around each push.
    Locked,
    /// A flag after each message.
    Farm,
    /// A ring for each producer.
    Lanes,
    /// DPDK's, as it is by default: a pointer a message, within one process, without a DMA port.
    Dpdk,
    /// The same in its mode "relaxed tail sync", for more threads than cores.
    DpdkRts,
    /// In its mode "head/tail sync".
    DpdkHts,
}

impl System {
    /// Those that are consumed through the DMA port.
    const OURS: [System; 4] = [System::Progress, System::Locked, System::Farm, System::Lanes];
    const DPDK: [System; 3] = [System::Dpdk, System::DpdkRts, System::DpdkHts];

    fn all() -> impl Iterator<Item = System> {
        System::OURS.into_iter().chain(System::DPDK)
    }

    /// Whether it is DPDK's, in one of its modes.
    #[must_use]
    pub fn is_dpdk(self) -> bool {
        System::DPDK.contains(&self)
    }

    /// DPDK's name of one of its modes.
    fn mode(self) -> Option<&'static str> {
        match self {
            System::Dpdk => Some("mp"),
            System::DpdkRts => Some("rts"),
            System::DpdkHts => Some("hts"),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            System::Progress => "progress",
            System::Locked => "locked",
            System::Farm => "farm",
            System::Lanes => "lanes",
            System::Dpdk => "dpdk",
            System::DpdkRts => "dpdk-rts",
            System::DpdkHts => "dpdk-hts",
        }
    }
}

/// One ring at one point: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which ring.
    pub system: System,
    /// What the bus charged; but for `none` the rates are simulated.
    pub price: &'static str,
    /// Threads that push.
    pub producers: usize,
    /// Messages of a push.
    pub batch: usize,
    /// Messages a second.
    pub per_second: f64,
    /// CPU nanoseconds a message, of all producers.
    pub host_ns: f64,
    /// CPU nanoseconds a message, of the consumer.
    pub dpu_ns: f64,
    /// Both.
    pub both_ns: f64,
    /// DMAs a message, counted.
    pub dmas: f64,
}

/// What a whole run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it was measured, where and when.
    pub note: String,
    /// The figures.
    pub rows: Vec<Row>,
}

/// One measurement of one point.
#[derive(Clone, Copy, Debug)]
struct Point {
    price: NamedPrice,
    producers: usize,
    batch: usize,
}

/// What one round of one point gave.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    per_second: f64,
    host_ns: f64,
    dpu_ns: f64,
    dmas: f64,
}

/// Both ends of a ring.
struct Rig {
    producers: Vec<Box<dyn Produce>>,
    consumer: Box<dyn Consume>,
    ledger: Arc<Ledger>,
}

fn broken<E>(_: E) -> io::Error {
    io::Error::other("the ring does not fit its region")
}

impl Rig {
    fn new(system: System, point: Point) -> io::Result<Rig> {
        let place = Place::new(4096, BYTES).ok_or_else(|| broken(()))?;
        let count = point.producers as u64;
        let each = (BYTES / count.next_power_of_two()).max(4096);
        let all = Lanes::new(4096, each, count).ok_or_else(|| broken(()))?;
        let region = Region::anonymous(place.end().max(all.end()));
        let ledger = Arc::new(Ledger::new());
        let counted = Counted::new(Direct::new(Arc::clone(&region)), Arc::clone(&ledger));
        let dma: Arc<dyn Dma> = match point.price.price {
            None => Arc::new(counted),
            Some(price) => Arc::new(Delayed::new(counted, price, Arc::new(clock::spin))),
        };
        let mut producers: Vec<Box<dyn Produce>> = Vec::new();
        let consumer: Box<dyn Consume> = match system {
            System::Progress => {
                let ring = progress::Ring::new(region, place, BYTES).map_err(broken)?;
                for who in 1..=count {
                    producers.push(Box::new(ring.producer(who).ok_or_else(|| broken(()))?));
                }
                Box::new(progress::Consumer::new(dma, place).map_err(broken)?)
            }
            System::Locked => {
                let producer = locked::Producer::new(region, place).map_err(broken)?;
                (0..count).for_each(|_| producers.push(Box::new(producer.clone())));
                Box::new(locked::Consumer::new(dma, place).map_err(broken)?)
            }
            System::Farm => {
                let producer = farm::Producer::new(region, place).map_err(broken)?;
                (0..count).for_each(|_| producers.push(Box::new(producer.clone())));
                Box::new(farm::Consumer::new(dma, place, 64).map_err(broken)?)
            }
            System::Lanes => {
                for lane in 0..count {
                    let region = Arc::clone(&region);
                    let producer = lanes::Producer::new(region, all, lane).map_err(broken)?;
                    producers.push(Box::new(producer));
                }
                Box::new(lanes::Consumer::new(dma, all).map_err(broken)?)
            }
            System::Dpdk | System::DpdkRts | System::DpdkHts => {
                return Err(io::Error::other("DPDK's ring is another process's"));
            }
        };
        Ok(Rig { producers, consumer, ledger })
    }
}

const WARM: u8 = 0;
const COUNT: u8 = 1;
/// The consumer has begun to count.
const COUNTING: u8 = 2;
/// It has counted something.
const COUNTED: u8 = 3;
const STOP: u8 = 4;
/// How long that may take: among many threads each waits for its turn.
const BEGIN_LIMIT: Duration = Duration::from_secs(10);

/// What the consumer sees of the clocks and of itself.
struct Moment {
    at: Instant,
    all_ns: u64,
    own_ns: u64,
    dmas: u64,
    taken: u64,
}

impl Moment {
    fn now(ledger: &Ledger, taken: u64) -> Moment {
        let cpu = |clock| {
            let time = clock_gettime(clock);
            let part = |part| u64::try_from(part).unwrap_or(0);
            part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
        };
        Moment {
            at: Instant::now(),
            all_ns: cpu(ClockId::ProcessCPUTime),
            own_ns: cpu(ClockId::ThreadCPUTime),
            dmas: ledger.snapshot().total().ops,
            taken,
        }
    }

    fn since(&self, earlier: &Moment) -> Sample {
        let messages = (self.taken - earlier.taken).max(1) as f64;
        let own = self.own_ns - earlier.own_ns;
        let others = (self.all_ns - earlier.all_ns).saturating_sub(own);
        Sample {
            per_second: (self.taken - earlier.taken) as f64 / (self.at - earlier.at).as_secs_f64(),
            host_ns: others as f64 / messages,
            dpu_ns: own as f64 / messages,
            dmas: (self.dmas - earlier.dmas) as f64 / messages,
        }
    }
}

fn produce(mut producer: Box<dyn Produce>, batch: usize, phase: &AtomicU8) -> io::Result<()> {
    let message = [7; 8];
    let messages = vec![&message[..]; batch];
    while phase.load(Relaxed) != STOP {
        match producer.push(&messages) {
            Ok(()) => {}
            Err(PushError::Retry) => std::thread::yield_now(),
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(())
}

fn consume(rig: &mut dyn Consume, ledger: &Ledger, phase: &AtomicU8) -> io::Result<Sample> {
    let (mut taken, mut sum, mut from) = (0u64, 0u64, None);
    loop {
        let mut each = |message: &[u8]| sum += u64::from(message.first().copied().unwrap_or(0));
        let now = rig.take(&mut each).map_err(io::Error::other)? as u64;
        taken += now;
        match (phase.load(Relaxed), &from) {
            (COUNT, None) => {
                phase.store(COUNTING, Relaxed);
                from = Some(Moment::now(ledger, taken));
            }
            (COUNTING, Some(_)) if now > 0 => {
                // Unless the end has come meanwhile.
                let _ = phase.compare_exchange(COUNTING, COUNTED, Relaxed, Relaxed);
            }
            (STOP, None) => return Err(io::Error::other("nothing was measured")),
            (STOP, Some(from)) => {
                let honest = sum == 7 * taken;
                let sample = Moment::now(ledger, taken).since(from);
                return if honest { Ok(sample) } else { Err(io::Error::other("wrong messages")) };
            }
            _ => {}
        }
        if now == 0 {
            std::thread::yield_now();
        }
    }
}

fn measure(system: System, point: Point, time: Duration) -> io::Result<Sample> {
    let Rig { producers, mut consumer, ledger } = Rig::new(system, point)?;
    let phase = AtomicU8::new(WARM);
    std::thread::scope(|scope| {
        let phase = &phase;
        let counting = std::thread::Builder::new()
            .spawn_scoped(scope, move || consume(&mut *consumer, &ledger, phase))?;
        let mut pushing = Vec::new();
        for producer in producers {
            let run = move || produce(producer, point.batch, phase);
            match std::thread::Builder::new().spawn_scoped(scope, run) {
                Ok(thread) => pushing.push(thread),
                Err(error) => {
                    phase.store(STOP, Relaxed);
                    return Err(error);
                }
            }
        }
        std::thread::sleep(time / 10);
        phase.store(COUNT, Relaxed);
        let begun = Instant::now();
        let wait_behind = |step| {
            while phase.load(Relaxed) == step && begun.elapsed() < BEGIN_LIMIT {
                std::thread::sleep(Duration::from_micros(100));
            }
        };
        wait_behind(COUNT);
        std::thread::sleep(time);
        wait_behind(COUNTING);
        phase.store(STOP, Relaxed);
        let panicked = |_| io::Error::other("a thread panicked");
        for thread in pushing {
            thread.join().map_err(panicked)??;
        }
        counting.join().map_err(panicked)?
    })
}

fn points(figure: &RingFigure) -> Vec<Point> {
    let mut points = Vec::new();
    for price in PRICES.iter().filter_map(|name| NamedPrice::from_name(name)) {
        for batch in BATCHES {
            points.extend(figure.producers.iter().map(|&producers| Point {
                price,
                producers,
                batch,
            }));
        }
    }
    points
}

/// Measures; `progress` is told what is being measured.
///
/// # Errors
/// A ring that loses or changes messages, or DPDK's process.
pub fn run(figure: &RingFigure, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let mut dpdk = Dpdk::start(&figure.dir)?;
    let mut samples: Vec<(Point, System, Vec<Sample>)> = Vec::new();
    for point in points(figure) {
        samples.extend(System::OURS.map(|system| (point, system, Vec::new())));
        if dpdk.is_some() && point.price.price.is_none() {
            samples.extend(System::DPDK.map(|system| (point, system, Vec::new())));
        }
    }
    for round in 1..=figure.rounds {
        for (point, system, all) in &mut samples {
            let (producers, batch) = (point.producers, point.batch);
            progress(&format!(
                "round {round} of {}: price {}, batch {batch}, {producers} producers, {}",
                figure.rounds,
                point.price.name,
                system.name()
            ));
            all.push(match (system.mode(), &mut dpdk) {
                (Some(mode), Some(dpdk)) => dpdk.measure(mode, producers, batch, figure.time)?,
                _ => measure(*system, *point, figure.time)?,
            });
        }
    }
    let rows = samples.iter().map(|(point, system, all)| row(*point, *system, all)).collect();
    let missing = if dpdk.is_some() { "" } else { "; DPDK's ring is not installed and left out" };
    let note = format!(
        "measured on {}, {}; messages of 8 bytes; {} rounds of {:.2} s, in turn; medians; with a \
         DMA price the rates are simulated{missing}",
        machine(),
        today(),
        figure.rounds,
        figure.time.as_secs_f64()
    );
    Ok(Report { note, rows })
}

fn row(point: Point, system: System, samples: &[Sample]) -> Row {
    let middle = |of: fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
    Row {
        system,
        price: point.price.name,
        producers: point.producers,
        batch: point.batch,
        per_second: middle(|s| s.per_second),
        host_ns: middle(|s| s.host_ns),
        dpu_ns: middle(|s| s.dpu_ns),
        both_ns: middle(|s| s.host_ns + s.dpu_ns),
        dmas: middle(|s| s.dmas),
    }
}

impl Report {
    /// The figures as a table for people. `x` is the progress ring over this row, in messages a
    /// second.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{}\nCPU in ns a message; x: messages of the progress ring over this row's\n\n\
             {:<9} {:>5} {:>4}  {:<9} {:>12} {:>8} {:>9} {:>9} {:>9} {:>8}\n",
            self.note,
            "price",
            "batch",
            "thr",
            "ring",
            "per second",
            "x",
            "host CPU",
            "DPU CPU",
            "both",
            "DMAs"
        );
        let mut first = 0.0;
        for row in &self.rows {
            if row.system == System::Progress {
                first = row.per_second;
            }
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<9} {:>5} {:>4}  {:<9} {:>12.0} {:>8.2} {:>9.1} {:>9.1} {:>9.1} {:>8.4}",
                row.price,
                row.batch,
                row.producers,
                row.system.name(),
                row.per_second,
                first / row.per_second.max(f64::MIN_POSITIVE),
                row.host_ns,
                row.dpu_ns,
                row.both_ns,
                row.dmas
            );
        }
        text
    }

    /// Messages a second by producers, as the paper's figure has them; a panel for each price and
    /// batch.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut panels = Vec::new();
        for price in PRICES {
            for batch in BATCHES {
                panels.push(self.panel(price, batch));
            }
        }
        let title = "rings of messages between host and DPU (after DDS, Figure 17)".to_owned();
        Figure { title, note: self.note.clone(), columns: 2, panels }.svg()
    }

    fn panel(&self, price: &str, batch: usize) -> Panel {
        let line = |system: System| {
            let rows = self
                .rows
                .iter()
                .filter(|row| row.system == system && row.price == price && row.batch == batch);
            let points = rows.map(|row| (row.producers as f64, row.per_second)).collect();
            Series { name: system.name().to_owned(), points }
        };
        let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
        let priced = if price == "none" { "DMA runs free" } else { "simulated bus" };
        Panel {
            title: format!("batch {batch}, {priced}"),
            x: axis("producers", Scale::Log2),
            y: axis("messages a second", Scale::Log10),
            series: System::all().map(line).filter(|line| !line.points.is_empty()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ring_moves_messages_at_every_price() {
        let dir = tempfile::tempdir().unwrap();
        let (time, producers) = (Duration::from_millis(20), vec![1, 3]);
        let figure = RingFigure { time, rounds: 1, producers, dir: dir.path().to_owned() };
        let report = run(&figure, |_| ()).unwrap();
        let is_ours = |row: &&Row| row.system.mode().is_none();
        assert_eq!(report.rows.iter().filter(is_ours).count(), 2 * 2 * 2 * 4);
        let rivals = report.rows.len() - 2 * 2 * 2 * 4;
        assert!([0, 2 * 2 * 3].contains(&rivals), "DPDK's in every mode, free, or not at all");
        assert!(report.rows.iter().all(|row| row.per_second > 0.0 && row.both_ns > 0.0));
        let farm = |row: &&Row| row.system == System::Farm;
        assert!(report.rows.iter().filter(farm).all(|row| row.dmas >= 1.9), "two a message");
        let (table, svg) = (report.table(), report.svg());
        assert!(table.contains("progress") && table.contains("pcie3x16"), "{table}");
        assert_eq!(svg.matches("<polyline").count(), 4 * 4 + rivals / 2);
    }
}
