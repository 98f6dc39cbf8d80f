//! Figure 18 of DDS: file requests of a host through the rings, with and without copies on the DPU
//! side.
//!
//! One thread of the host keeps a number of reads or writes at random places of a file under way,
//! through the file library; a thread that is the DPU side serves them from a file on the disk. The
//! rival is the same thread made to copy each request out of its batch and each read into another
//! buffer. Both take turns at every point of every round.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outboard_base::ledger::{Count, Snapshot};
use outboard_base::{Errno, Rng};
use outboard_dds::dpu::pump;
use outboard_dds::groups::Shape;
use outboard_dds::host::{Completion, File};
use outboard_pageserver::host::Attachment;
use outboard_pageserver::library::{FileLibrary, file_library};
use outboard_pageserver::server::{Server, ServerOptions};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::machine;
use crate::plot::{Axis, Figure, Panel, Scale, Series};
use crate::stats::median;
use crate::today;

/// How Figure 18 is measured.
#[derive(Clone, Debug)]
pub struct FilesFigure {
    /// Where the volume lies.
    pub dir: PathBuf,
    /// Length of each measurement.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
}

/// Bytes of a request.
const SIZES: [usize; 4] = [1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Requests under way.
const DEPTH: usize = 32;
/// Bytes of the file.
const FILE: u64 = 256 << 20;
/// How long the server may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);
/// When a full ring is tried again. The DPU side gives its bytes back a little after it answered,
/// and tells nobody.
const SOON: Duration = Duration::from_micros(100);

/// One point: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Whether it writes; else it reads.
    pub writes: bool,
    /// Bytes of a request.
    pub bytes: usize,
    /// Whether the DPU side was made to copy.
    pub copies: bool,
    /// Requests a second.
    pub per_second: f64,
    /// CPU microseconds a request, of the host's thread.
    pub host_us: f64,
    /// CPU microseconds a request, of the DPU side's threads.
    pub dpu_us: f64,
    /// Bytes copied between buffers of the DPU side, a request.
    pub copied: f64,
    /// DMAs a request, counted.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    writes: bool,
    bytes: usize,
    copies: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    per_second: f64,
    host_us: f64,
    dpu_us: f64,
    copied: f64,
    dmas: f64,
}

/// A server and a host of it.
struct Rig {
    // Before the server: a host that is gone is let go of, not the other way round.
    library: FileLibrary,
    file: File,
    server: Server,
}

fn said(errno: Errno) -> io::Error {
    errno.into()
}

impl Rig {
    fn new(dir: &std::path::Path, copies: bool, file_len: u64) -> io::Result<Rig> {
        let name = if copies { "copies" } else { "zero" };
        let socket = dir.join(format!("{name}.socket"));
        let mut options = ServerOptions::new(dir.join(format!("{name}.volume")), socket.clone());
        options.capacity = Some(4 * file_len);
        options.pump = pump::Config { copies, ..pump::Config::default() };
        let server = Server::start(options)?;
        let shape = Shape::new(2, 4 << 20, 4 << 20, 4096)
            .ok_or_else(|| io::Error::other("rings of that shape cannot be"))?;
        let library = file_library(Attachment::attach(&socket, shape, PATIENCE)?)?;
        let directory = library.create_directory(b"bench").map_err(said)?;
        let file = library.create_file(directory, b"file").map_err(said)?;
        let rig = Rig { library, file, server };
        rig.fill(file_len)?;
        Ok(rig)
    }

    fn fill(&self, file_len: u64) -> io::Result<()> {
        let data = vec![0x5A; 1 << 20];
        for offset in (0..file_len).step_by(data.len()) {
            self.one(|user| {
                self.library.write_file(&self.file, offset, &data, user).map_err(|no| no.errno)
            })?;
        }
        self.one(|user| self.library.flush_file(&self.file, user).map_err(|no| no.errno))
    }

    /// Does one thing and waits for it.
    fn one(&self, ask: impl Fn(u64) -> Result<(), Errno>) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        while let Err(errno) = ask(0) {
            if errno != Errno::EAGAIN || Instant::now() > end {
                return Err(said(errno));
            }
            std::thread::sleep(SOON);
        }
        let mut done = Vec::new();
        while done.is_empty() {
            self.wait(&mut done, PATIENCE)?;
        }
        done.pop().map_or(Ok(()), |one| one.result.map(drop).map_err(said))
    }

    fn wait(&self, done: &mut Vec<Completion>, at_most: Duration) -> io::Result<()> {
        let poll = self.library.default_poll();
        self.library.poll_wait(poll, done, DEPTH, at_most).map(drop).map_err(said)
    }

    /// Begins a request with each of the buffers, as long as the ring takes them; how many.
    fn ask(
        &self,
        point: Point,
        place: &mut impl FnMut() -> u64,
        spare: &mut Vec<Vec<u8>>,
    ) -> io::Result<usize> {
        let mut begun = 0;
        while let Some(buffer) = spare.pop() {
            let refused = if point.writes {
                let asked = self.library.write_file(&self.file, place(), &buffer, 0);
                asked.err().map(|no| (no.errno, buffer))
            } else {
                let asked = self.library.read_file(&self.file, place(), buffer, 0);
                asked.err().map(|mut no| (no.errno, no.buffers.pop().unwrap_or_default()))
            };
            match refused {
                None => begun += 1,
                Some((Errno::EAGAIN, buffer)) => {
                    spare.push(buffer);
                    break;
                }
                Some((errno, _)) => return Err(said(errno)),
            }
        }
        Ok(begun)
    }

    fn measure(&self, point: Point, file_len: u64, time: Duration) -> io::Result<Sample> {
        let mut rng = Rng::new(point.bytes as u64);
        let places = file_len / point.bytes as u64;
        let mut place = move || rng.below(places) * point.bytes as u64;
        let mut spare = vec![vec![0x5A; point.bytes]; DEPTH];
        let mut under_way = self.ask(point, &mut place, &mut spare)?;
        let (mut done, mut count) = (Vec::with_capacity(DEPTH), 0u64);
        let before = Moment::now(&self.server);
        let from = Instant::now();
        // On a machine with much else to do little may have come back by then, and most of that was
        // begun before.
        let is_little = |count| count < 4 * DEPTH as u64 && from.elapsed() < PATIENCE;
        while from.elapsed() < time || is_little(count) {
            self.wait(&mut done, if spare.is_empty() { PATIENCE } else { SOON })?;
            count += done.len() as u64;
            under_way -= done.len();
            for mut one in done.drain(..) {
                one.result.map_err(said)?;
                let buffer = one.buffers.pop().filter(|buffer| buffer.len() == point.bytes);
                spare.push(buffer.unwrap_or_else(|| vec![0x5A; point.bytes]));
            }
            under_way += self.ask(point, &mut place, &mut spare)?;
        }
        let sample = Moment::now(&self.server).since(&before, count, from.elapsed());
        while under_way > 0 {
            self.wait(&mut done, PATIENCE)?;
            under_way -= done.len();
            done.clear();
        }
        Ok(sample)
    }
}

/// Clocks and counters at one time.
struct Moment {
    thread: Duration,
    process: Duration,
    counted: Snapshot,
}

fn cpu(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

impl Moment {
    fn now(server: &Server) -> Moment {
        Moment {
            thread: cpu(ClockId::ThreadCPUTime),
            process: cpu(ClockId::ProcessCPUTime),
            counted: server.ledger().snapshot(),
        }
    }

    fn since(&self, earlier: &Moment, count: u64, time: Duration) -> Sample {
        let each = 1.0 / count.max(1) as f64;
        let host = self.thread.saturating_sub(earlier.thread);
        let all = self.process.saturating_sub(earlier.process);
        let counted = self.counted.since(&earlier.counted);
        Sample {
            per_second: count as f64 / time.as_secs_f64(),
            host_us: host.as_secs_f64() * 1e6 * each,
            dpu_us: all.saturating_sub(host).as_secs_f64() * 1e6 * each,
            copied: counted.count(Count::Copied) as f64 * each,
            dmas: counted.total().ops as f64 * each,
        }
    }
}

/// Measures; `progress` is told what comes next.
///
/// # Errors
/// The disk's, or the server's.
pub fn run(figure: &FilesFigure, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    measure(figure, FILE, &SIZES, &mut progress)
}

fn measure(
    figure: &FilesFigure,
    file_len: u64,
    sizes: &[usize],
    progress: &mut dyn FnMut(&str),
) -> io::Result<Report> {
    progress("filling two files");
    let rigs = [Rig::new(&figure.dir, false, file_len)?, Rig::new(&figure.dir, true, file_len)?];
    let mut samples: Vec<(Point, Vec<Sample>)> = Vec::new();
    for writes in [false, true] {
        for &bytes in sizes {
            let point = |copies| (Point { writes, bytes, copies }, Vec::new());
            samples.extend([false, true].map(point));
        }
    }
    for round in 1..=figure.rounds {
        for (point, all) in &mut samples {
            progress(&format!("round {round}: {point:?}"));
            let [zero, copying] = &rigs;
            let rig = if point.copies { copying } else { zero };
            all.push(rig.measure(*point, file_len, figure.time)?);
        }
    }
    let note = format!(
        "{}, {}; {DEPTH} requests of one thread under way, random places of {} MiB, O_DIRECT; \
         medians of {} rounds of {:?}",
        machine(),
        today(),
        file_len >> 20,
        figure.rounds,
        figure.time
    );
    let [zero, copying] = rigs;
    for rig in [zero, copying] {
        let Rig { library, file: _, server } = rig;
        drop(library);
        server.stop()?;
    }
    Ok(Report { note, rows: samples.iter().map(|(point, all)| row(*point, all)).collect() })
}

fn row(point: Point, samples: &[Sample]) -> Row {
    let middle = |of: fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
    Row {
        writes: point.writes,
        bytes: point.bytes,
        copies: point.copies,
        per_second: middle(|s| s.per_second),
        host_us: middle(|s| s.host_us),
        dpu_us: middle(|s| s.dpu_us),
        copied: middle(|s| s.copied),
        dmas: middle(|s| s.dmas),
    }
}

fn name(row: &Row) -> &'static str {
    if row.copies { "copies" } else { "zero-copy" }
}

impl Report {
    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{}\nCPU in us a request\n\n{:<6} {:>6}  {:<10} {:>10} {:>9} {:>9} {:>9} {:>7}\n",
            self.note,
            "",
            "bytes",
            "DPU side",
            "per second",
            "host CPU",
            "DPU CPU",
            "copied",
            "DMAs"
        );
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<6} {:>6}  {:<10} {:>10.0} {:>9.2} {:>9.2} {:>9.0} {:>7.2}",
                if row.writes { "write" } else { "read" },
                row.bytes,
                name(row),
                row.per_second,
                row.host_us,
                row.dpu_us,
                row.copied,
                row.dmas
            );
        }
        text
    }

    /// Requests a second by their size, reads and writes apart.
    #[must_use]
    pub fn svg(&self) -> String {
        let panels = [false, true].into_iter().map(|writes| self.panel(writes)).collect();
        let title = "file requests through the rings (after DDS, Figure 18)".to_owned();
        Figure { title, note: self.note.clone(), columns: 2, panels }.svg()
    }

    fn panel(&self, writes: bool) -> Panel {
        let line = |copies: bool| {
            let rows = self.rows.iter().filter(|row| (row.writes, row.copies) == (writes, copies));
            let points = rows.map(|row| (row.bytes as f64, row.per_second)).collect();
            Series { name: if copies { "copies" } else { "zero-copy" }.to_owned(), points }
        };
        let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
        Panel {
            title: if writes { "writes" } else { "reads" }.to_owned(),
            x: axis("bytes of a request", Scale::Log2),
            y: axis("requests a second", Scale::Log10),
            series: [false, true].map(line).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 writes of 64 KiB filled the ring now and then, and the measurement ended with EAGAIN;
    /// those of 256 KiB fill it always.
    #[test]
    fn requests_are_served_and_copies_counted() {
        let dir = std::env::temp_dir().join(format!("outboard-figure18-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let time = Duration::from_millis(20);
        let figure = FilesFigure { dir: dir.clone(), time, rounds: 1 };
        let report = measure(&figure, 4 << 20, &[4096, 256 << 10], &mut |_| ()).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(report.rows.len(), 8);
        assert!(report.rows.iter().all(|row| row.per_second > 0.0 && row.dmas > 0.0));
        // What is under way when the count begins and ends makes an average a little off.
        let copied = |row: &Row| row.copied > 2048.0;
        assert!(report.rows.iter().all(|row| copied(row) == row.copies), "{}", report.table());
        assert_eq!(report.svg().matches("<polyline").count(), 4);
    }
}
