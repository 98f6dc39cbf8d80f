//! Figure 22 of DDS: the cache table. One writer fills it to its stated number of items; then
//! threads look random keys up that are there, by themselves and beside a writer that goes on
//! changing items. The rival is the standard library's hash map behind a read-write lock, in turn
//! in the same rounds.

use std::collections::HashMap;
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_dds::table::{self, Item, Key, Reader, Writer};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::plot::{Axis, Figure, Panel, Scale, Series};
use crate::stats::median;
use crate::{machine, today};

/// How Figure 22 is measured.
#[derive(Clone, Debug)]
pub struct TableFigure {
    /// Length of each measurement of look-ups.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Numbers of threads that look up, ascending.
    pub readers: Vec<usize>,
    /// Without the largest table: for a look at everything.
    pub is_short: bool,
}

/// Most threads that look up.
pub const READERS_MAX: usize = 64;
/// Items of each table.
const ITEMS: [usize; 3] = [1 << 16, 1 << 20, 1 << 22];
/// Look-ups between two looks at the clock.
const CHUNK: usize = 256;

/// One of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// The cache table.
    Cuckoo,
    /// A hash map behind a lock.
    Locked,
}

impl System {
    const ALL: [System; 2] = [System::Cuckoo, System::Locked];

    fn name(self) -> &'static str {
        match self {
            System::Cuckoo => "cuckoo",
            System::Locked => "locked",
        }
    }
}

/// One table at one point: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which table.
    pub system: System,
    /// Items in it.
    pub items: usize,
    /// Threads that look up.
    pub readers: usize,
    /// Items stored a second of CPU time, by one thread, until it is full.
    pub inserts: f64,
    /// Look-ups a second, of all threads, nobody writing.
    pub lookups: f64,
    /// The same a second of CPU time: what a core does.
    pub lookups_per_core: f64,
    /// As `lookups`, beside a writer that never stops.
    pub lookups_beside: f64,
    /// Changes a second of that writer.
    pub changes: f64,
    /// Places in use when it is full, of all there are; 0 where that is not told.
    pub load: f64,
}

/// What a whole run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it was measured, where and when.
    pub note: String,
    /// The figures.
    pub rows: Vec<Row>,
}

fn key(n: u64) -> Key {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn item(n: u64) -> Item {
    [n, n << 12, 4096, 1]
}

/// A table to fill and to look into.
trait Table: Sync {
    fn get(&self, key: Key) -> Option<Item>;
    /// Whether there was room.
    fn put(&self, key: Key, item: Item) -> bool;
    fn load(&self) -> f64;
}

/// The writer in a lock of its own that nobody else takes: it is one thread's.
struct Cuckoo(Reader, RwLock<Writer>);

impl Table for Cuckoo {
    fn get(&self, key: Key) -> Option<Item> {
        self.0.get(key)
    }

    fn put(&self, key: Key, item: Item) -> bool {
        self.1.write().unwrap_or_else(PoisonError::into_inner).insert(key, item).is_ok()
    }

    fn load(&self) -> f64 {
        self.0.load_factor()
    }
}

impl Table for RwLock<HashMap<Key, Item>> {
    fn get(&self, key: Key) -> Option<Item> {
        self.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    fn put(&self, key: Key, item: Item) -> bool {
        self.write().unwrap_or_else(PoisonError::into_inner).insert(key, item);
        true
    }

    fn load(&self) -> f64 {
        0.0
    }
}

fn make(system: System, items: usize) -> io::Result<Box<dyn Table>> {
    Ok(match system {
        System::Cuckoo => {
            let (writer, reader) = table::with_capacity(items, 1).map_err(io::Error::other)?;
            Box::new(Cuckoo(reader, RwLock::new(writer)))
        }
        System::Locked => Box::new(RwLock::new(HashMap::<Key, Item>::with_capacity(items))),
    })
}

/// CPU time of the calling thread.
fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Items stored a second of CPU time.
fn fill(table: &dyn Table, items: usize) -> io::Result<f64> {
    let from = cpu();
    for n in 0..items as u64 {
        if !table.put(key(n), item(n)) {
            return Err(io::Error::other("a table is full before its stated number of items"));
        }
    }
    Ok(items as f64 / (cpu() - from).as_secs_f64())
}

/// What threads did in a time.
#[derive(Clone, Copy, Default)]
struct Looked {
    per_second: f64,
    per_core: f64,
    /// Of the writer beside them, if there is one.
    changes: f64,
}

/// Looks random keys up until told to stop; how many, and how many were not found.
fn look_until(stop: &AtomicBool, table: &dyn Table, items: u64, seed: u64) -> (u64, u64) {
    let (mut rng, mut count, mut misses) = (Rng::new(seed), 0, 0);
    // At least once, however late the thread first runs.
    loop {
        for _ in 0..CHUNK {
            let found = table.get(key(rng.below(items)));
            misses += u64::from(black_box(found).is_none());
        }
        count += CHUNK as u64;
        if stop.load(Relaxed) {
            return (count, misses);
        }
    }
}

/// Lets so many threads look up, and one change items beside them if it is to.
fn look(
    table: &dyn Table,
    items: usize,
    readers: usize,
    time: Duration,
    writes: bool,
) -> io::Result<Looked> {
    let (stop, looked) = (AtomicBool::new(false), AtomicU64::new(0));
    let from = Instant::now();
    let (missed, used) = (AtomicU64::new(0), AtomicU64::new(0));
    let changed = std::thread::scope(|scope| {
        for seed in 0..readers as u64 {
            let (stop, looked, missed, used) = (&stop, &looked, &missed, &used);
            scope.spawn(move || {
                let from = cpu();
                let (count, misses) = look_until(stop, table, items as u64, seed);
                looked.fetch_add(count, Relaxed);
                missed.fetch_add(misses, Relaxed);
                let spent = u64::try_from((cpu() - from).as_nanos()).unwrap_or(u64::MAX);
                used.fetch_add(spent, Relaxed);
            });
        }
        let (mut rng, mut changed) = (Rng::new(u64::MAX), 0u64);
        while from.elapsed() < time {
            if writes {
                for _ in 0..CHUNK {
                    let n = rng.below(items as u64);
                    table.put(key(n), item(n));
                }
                changed += CHUNK as u64;
            } else {
                std::thread::sleep(time.saturating_sub(from.elapsed()));
            }
        }
        stop.store(true, Relaxed);
        changed
    });
    let seconds = from.elapsed().as_secs_f64();
    let (looked, missed) = (looked.into_inner(), missed.into_inner());
    // Items do not move when they are changed in place, so every key is found, but for a reader
    // that gave up on a bucket that was being written.
    if missed as f64 > 0.01 * looked as f64 {
        return Err(io::Error::other("keys that are stored were not found"));
    }
    Ok(Looked {
        per_second: looked as f64 / seconds,
        per_core: looked as f64 * 1e9 / used.into_inner().max(1) as f64,
        changes: changed as f64 / seconds,
    })
}

#[derive(Clone, Copy, Default)]
struct Sample {
    inserts: f64,
    alone: Looked,
    beside: Looked,
    load: f64,
}

/// Measures; `progress` is told what comes next.
///
/// # Errors
/// No memory, or a table that loses items.
pub fn run(figure: &TableFigure, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let items = if figure.is_short { &ITEMS[..2] } else { &ITEMS[..] };
    measure(figure, items, &mut progress)
}

fn measure(
    figure: &TableFigure,
    sizes: &[usize],
    progress: &mut dyn FnMut(&str),
) -> io::Result<Report> {
    let mut rows = Vec::new();
    for &items in sizes {
        let mut samples: Vec<(System, usize, Vec<Sample>)> = Vec::new();
        for &readers in &figure.readers {
            samples.extend(System::ALL.map(|system| (system, readers, Vec::new())));
        }
        for round in 1..=figure.rounds {
            for system in System::ALL {
                progress(&format!("round {round}: {items} items, {}", system.name()));
                let table = make(system, items)?;
                let inserts = fill(&*table, items)?;
                let mine = samples.iter_mut().filter(|(of, ..)| *of == system);
                for (_, readers, samples) in mine {
                    let alone = look(&*table, items, *readers, figure.time, false)?;
                    let beside = look(&*table, items, *readers, figure.time, true)?;
                    samples.push(Sample { inserts, alone, beside, load: table.load() });
                }
            }
        }
        rows.extend(
            samples.iter().map(|(system, readers, all)| row(*system, items, *readers, all)),
        );
    }
    let note = format!(
        "{}, {}; items of 4 words under keys of 8 bytes; look-ups of random keys that are there; \
         medians of {} rounds of {:?}",
        machine(),
        today(),
        figure.rounds,
        figure.time
    );
    Ok(Report { note, rows })
}

fn row(system: System, items: usize, readers: usize, samples: &[Sample]) -> Row {
    let middle = |of: fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
    Row {
        system,
        items,
        readers,
        inserts: middle(|s| s.inserts),
        lookups: middle(|s| s.alone.per_second),
        lookups_per_core: middle(|s| s.alone.per_core),
        lookups_beside: middle(|s| s.beside.per_second),
        changes: middle(|s| s.beside.changes),
        load: middle(|s| s.load),
    }
}

impl Report {
    /// The figures as a table for people, in millions a second.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{}\nmillions a second, inserts and per core: of CPU time; beside: while a writer \
             changes items without pause\n\n\
             {:<8} {:>9} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}\n",
            self.note,
            "table",
            "items",
            "thr",
            "inserts",
            "lookups",
            "per core",
            "beside",
            "changes",
            "load"
        );
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<8} {:>9} {:>5} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>6.3}",
                row.system.name(),
                row.items,
                row.readers,
                row.inserts / 1e6,
                row.lookups / 1e6,
                row.lookups_per_core / 1e6,
                row.lookups_beside / 1e6,
                row.changes / 1e6,
                row.load
            );
        }
        text
    }

    /// Look-ups a second by threads, a panel for each number of items.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut sizes: Vec<usize> = self.rows.iter().map(|row| row.items).collect();
        sizes.dedup();
        let panels = sizes.into_iter().map(|items| self.panel(items)).collect();
        let title = "the cache table (after DDS, Figure 22)".to_owned();
        Figure { title, note: self.note.clone(), columns: 3, panels }.svg()
    }

    fn panel(&self, items: usize) -> Panel {
        let line = |system: System, name: &str, of: fn(&Row) -> f64| {
            let rows = self.rows.iter().filter(|row| row.system == system && row.items == items);
            let points = rows.map(|row| (row.readers as f64, of(row))).collect();
            Series { name: format!("{} {name}", system.name()), points }
        };
        let lines = System::ALL.into_iter().flat_map(|system| {
            [
                line(system, "alone", |row| row.lookups),
                line(system, "beside a writer", |row| row.lookups_beside),
            ]
        });
        let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
        Panel {
            title: format!("{items} items"),
            x: axis("threads that look up", Scale::Log2),
            y: axis("look-ups a second", Scale::Log10),
            series: lines.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_are_filled_and_looked_into() {
        let time = Duration::from_millis(5);
        let figure = TableFigure { time, rounds: 1, readers: vec![1, 2], is_short: true };
        let report = measure(&figure, &[1000], &mut |_| ()).unwrap();
        assert_eq!(report.rows.len(), 4);
        assert!(report.rows.iter().all(|row| row.inserts > 0.0 && row.lookups > 0.0));
        assert!(report.rows.iter().any(|row| row.load > 0.8));
        assert!(report.table().contains("cuckoo"));
        assert_eq!(report.svg().matches("<polyline").count(), 4);
    }
}
