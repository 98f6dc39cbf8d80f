//! `bench apps`: applications on a mounted volume, a plain directory and plain FUSE, without and
//! with the kernel's write-back, in turn.
//!
//! What a workload of `bench fs` is for calls, a load is here for an application: a program as
//! people run it, or the calls of one, from an empty directory until all it wrote is durable. That
//! is the same for everybody, since otherwise whoever promises least would win: the kernel writes
//! its pages to the file system, the file system makes what it was told durable, and the disk below
//! flushes, and the time of all three counts.
//!
//! Always holds: what a load needs is made before its time and CPU count, by a seed, and is the
//! same on every file system; an application that fails ends the run with what it said.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use rustix::fs::{Advice, fadvise, syncfs};

use super::subject::{Ask, Subject};
use super::{OURS, Report, Suite, Turns, chosen};
use crate::plot::{self, Axis, Panel, Scale, Series};
use crate::programs;
use crate::stats::Latencies;
use crate::workload::{Aligned, BLOCK, MEGABYTE, Outcome, Title, fresh, nanos, sqlite};

const WRITE_BACK: &str = "fuse-wb";
/// The volume with `--cache write-back`.
const COLLECTS: &str = "outboard-wb";
const BLOCKS: &[&str] = &["write-8k-t1", "write-8k-t8"];
const SUITE: Suite = Suite {
    name: "apps",
    ours: &[OURS, COLLECTS],
    rivals: &["plain", "fuse", WRITE_BACK],
    note: "each load until all it wrote is durable; of one piece of work, p50 and p99 are its mean",
    asked: &[
        ("8 KiB buffered writes", "plain", 0.4, BLOCKS),
        ("8 KiB buffered writes", WRITE_BACK, 1.0, BLOCKS),
        ("a large file and fsync", "plain", 0.5, &["large-file"]),
        ("LevelDB filled", "plain", 0.5, &["leveldb-fillseq", "leveldb-fillrandom"]),
        ("sqlite3 commits", "plain", 0.4, &["sqlite-wal", "sqlite-rollback"]),
        ("trees of files", WRITE_BACK, 1.0, &["tar-x", "cp-r", "grep-r", "git-clone"]),
    ],
};

/// How much an application is given to do.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Files of the source tree.
    pub files: u64,
    /// Size of a large file.
    pub mebibytes: u64,
    /// Records of a database that is filled.
    pub records: u64,
}

impl Size {
    /// What a measurement takes.
    pub const FULL: Size = Size { files: 4700, mebibytes: 256, records: 400_000 };
    /// A look at whether all works.
    pub const QUICK: Size = Size { files: 120, mebibytes: 4, records: 2000 };
}

/// How `bench apps` runs.
#[derive(Clone, Debug)]
pub struct AppsBench {
    /// Holds the data of all file systems.
    pub dir: PathBuf,
    /// Time of each measurement that has no end of its own.
    pub time: Duration,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Only loads whose name contains this.
    pub only: Option<String>,
    /// What they are given.
    pub size: Size,
    /// The program that is measured.
    pub program: PathBuf,
    /// Set from outside: the run ends, with an error of kind `Interrupted`.
    pub stop: Arc<AtomicBool>,
}

/// An application, and what it is given.
struct Load {
    title: Title,
    /// A program that not every computer has.
    needs: Option<&'static str>,
    /// Makes what it works on.
    prepare: fn(&Place<'_>) -> io::Result<()>,
    /// Does its work: how many operations that were.
    run: fn(&Place<'_>) -> io::Result<u64>,
}

const fn load(
    name: &'static str,
    operation: &'static str,
    prepare: fn(&Place<'_>) -> io::Result<()>,
    run: fn(&Place<'_>) -> io::Result<u64>,
) -> Load {
    Load { title: Title { name, threads: 1, operation }, needs: None, prepare, run }
}

const fn needs(program: &'static str, load: Load) -> Load {
    Load { needs: Some(program), ..load }
}

/// All loads, in the order they run.
const LOADS: &[Load] = &[
    load("write-8k-t1", "8 KiB overwrite", blocks, overwrite),
    Load {
        title: Title { name: "write-8k-t8", threads: 8, operation: "8 KiB overwrite" },
        ..load("", "", blocks, overwrite)
    },
    load("large-file", "1 MiB of a new file, fsync at the end", nothing, large_file),
    load("tar-x", "a file unpacked by tar", archive, tar),
    load("cp-r", "a file copied by cp -r", unpacked, copy),
    load("grep-r", "a file searched by grep -r, none of its bytes in memory", forgotten, search),
    needs("git", load("git-clone", "a file of a git clone", repository, clone)),
    needs(
        DB_BENCH,
        load("leveldb-fillseq", "LevelDB put, in order", nothing, |p| fill(p, "fillseq")),
    ),
    needs(
        DB_BENCH,
        load("leveldb-fillrandom", "LevelDB put, at random", nothing, |p| fill(p, "fillrandom")),
    ),
    needs(
        "sqlite3",
        load("sqlite-wal", "sqlite3 insert and commit, WAL", nothing, |p| commits(p, "WAL")),
    ),
    needs(
        "sqlite3",
        load("sqlite-rollback", "sqlite3 insert and commit, rollback journal", nothing, |p| {
            commits(p, "DELETE")
        }),
    ),
];

const DB_BENCH: &str = "db_bench";
/// Made once for all file systems, beside them.
const INPUTS: &str = "inputs";
/// The source tree, and its copy on a file system.
const TREE: &str = "tree";
/// What is searched for, in one of [`RARE`] files.
const NEEDLE: &str = "found_what_was_lost";
const RARE: u64 = 47;

/// Runs everything; `progress` is told what is being measured.
///
/// # Errors
/// A mount or an application failed; or it was told to stop.
pub fn run(bench: &AppsBench, mut progress: impl FnMut(&str)) -> io::Result<Report> {
    let chosen = chosen(LOADS, |load| load.title.name, bench.only.as_deref())?;
    fs::create_dir_all(bench.dir.join(INPUTS))?;
    let ask = Ask { dir: &bench.dir, program: &bench.program, flags: &[], apart: false };
    let collects = Subject::outboard(&ask, COLLECTS, &["--cache=write-back"])?;
    let rival = Subject::fuse(&ask, WRITE_BACK, &["--write-back"])?;
    rival.collects_like(&collects)?;
    let subjects = vec![
        Subject::outboard(&ask, OURS, &[])?,
        collects,
        Subject::plain(&ask)?,
        Subject::fuse(&ask, "fuse", &[])?,
        rival,
    ];
    let turns = Turns { subjects, program: &bench.program, rounds: bench.rounds };
    let mut report = Report::new(&SUITE, Vec::new(), bench.rounds, bench.time);
    for load in chosen {
        if let Some(program) = load.needs.filter(|program| programs::find(program).is_none()) {
            let why = format!("there is no {program}; `scripts/setup bench` brings it");
            report.left_out.push((load.title.name.to_owned(), why));
            continue;
        }
        let prepare = |subject: &Subject| {
            Place::new(bench, load.title, subject).unless_stopped(|place| place.prepare(load))
        };
        let measure = |subject: &Subject| {
            Place::new(bench, load.title, subject).unless_stopped(|place| place.measure(load))
        };
        let rows = turns.take(load.title, &mut progress, prepare, |subject, _| measure(subject))?;
        report.rows.extend(rows);
    }
    drop(turns);
    Ok(report)
}

/// Where a load runs.
struct Place<'a> {
    bench: &'a AppsBench,
    title: Title,
    subject: &'a Subject,
    /// Empty at the start.
    dir: PathBuf,
}

impl<'a> Place<'a> {
    fn new(bench: &'a AppsBench, title: Title, subject: &'a Subject) -> Place<'a> {
        Place { bench, title, subject, dir: subject.dir.join(title.name) }
    }

    /// An application whose file system goes with a signal fails of that.
    fn unless_stopped<T>(&self, act: impl FnOnce(&Self) -> io::Result<T>) -> io::Result<T> {
        let is_stopped = || self.bench.stop.load(Ordering::Relaxed);
        let stopped = || io::Error::new(io::ErrorKind::Interrupted, "stopped");
        if is_stopped() {
            return Err(stopped());
        }
        act(self).map_err(|error| if is_stopped() { stopped() } else { error })
    }

    fn prepare(&self, load: &Load) -> io::Result<()> {
        (load.prepare)(self)?;
        fresh(&self.subject.dir, self.title.name)?;
        self.sync()
    }

    fn measure(&self, load: &Load) -> io::Result<Outcome> {
        let start = Instant::now();
        let operations = (load.run)(self)?;
        self.sync()?;
        let elapsed = start.elapsed();
        let mut latencies = Latencies::default();
        latencies.push(nanos(elapsed) / operations.max(1));
        Ok(Outcome { operations, elapsed, latencies })
    }

    /// Makes everything durable. The kernel passes no `syncfs` on through FUSE, so the volume is
    /// asked by an `fsync` of its root, which is for all before it; a passthrough hands that to one
    /// directory, so the disk below is asked last.
    fn sync(&self) -> io::Result<()> {
        let root = File::open(&self.subject.dir)?;
        syncfs(&root)?;
        root.sync_all()?;
        Ok(syncfs(File::open(&self.bench.dir)?)?)
    }

    fn input(&self, name: &str) -> PathBuf {
        self.bench.dir.join(INPUTS).join(name)
    }

    /// The file that is there and is overwritten.
    fn blocks(&self) -> PathBuf {
        self.subject.dir.join("blocks")
    }
}

/// Runs it: what it printed. One that fails is an error with all it said.
fn output(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output
        .map_err(|error| io::Error::new(error.kind(), format!("cannot start it: {error}")))?;
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    if output.status.success() {
        return Ok(said.into_owned());
    }
    Err(io::Error::other(format!("{command:?}: {}\n{said}{errors}", output.status)))
}

fn nothing(_: &Place<'_>) -> io::Result<()> {
    Ok(())
}

/// A file whose every block is there.
fn blocks(place: &Place<'_>) -> io::Result<()> {
    if place.blocks().exists() { Ok(()) } else { write_file(place, &place.blocks()) }
}

fn write_file(place: &Place<'_>, path: &Path) -> io::Result<()> {
    let file = File::create(path)?;
    let mut buffer = Aligned::new(MEGABYTE, 1);
    for at in 0..place.bench.size.mebibytes {
        file.write_all_at(buffer.slice(), at * MEGABYTE as u64)?;
    }
    file.sync_all()
}

/// Writes every block once, in no order.
fn overwrite(place: &Place<'_>) -> io::Result<u64> {
    let count = place.bench.size.mebibytes * (MEGABYTE / BLOCK) as u64;
    let (mut order, mut rng) = ((0..count).collect::<Vec<u64>>(), Rng::new(1));
    for n in (1..order.len()).rev() {
        let other = rng.below(n as u64 + 1);
        order.swap(n, usize::try_from(other).unwrap_or(n));
    }
    std::thread::scope(|scope| {
        let parts = order.chunks(order.len().div_ceil(place.title.threads).max(1));
        let write = |part: &[u64]| {
            let file = OpenOptions::new().write(true).open(place.blocks())?;
            let mut buffer = Aligned::new(BLOCK, 2);
            part.iter().try_for_each(|n| file.write_all_at(buffer.slice(), n * BLOCK as u64))
        };
        let workers: Vec<_> = parts.map(|part| scope.spawn(move || write(part))).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    })?;
    Ok(count)
}

fn large_file(place: &Place<'_>) -> io::Result<u64> {
    write_file(place, &place.dir.join("file"))?;
    Ok(place.bench.size.mebibytes)
}

/// The source tree beside the file systems, and its archive.
fn archive(place: &Place<'_>) -> io::Result<()> {
    let (tree, archive) = (place.input(TREE), place.input("tree.tar"));
    if !archive.exists() {
        make_tree(&tree, place.bench.size.files)?;
        output(Command::new("tar").arg("cf").arg(&archive).arg("-C").arg(&tree).arg("."))?;
    }
    Ok(())
}

/// So many files of text, small and large as those of a program are.
fn make_tree(root: &Path, files: u64) -> io::Result<()> {
    let mut rng = Rng::new(12);
    let words: Vec<String> = (0..500).map(|_| format!("w{:x}", rng.below(1 << 28))).collect();
    for n in 0..files {
        let dir = root.join(format!("part-{:02}/module-{:03}", n / 400, n / 20));
        fs::create_dir_all(&dir)?;
        let size = 512 << rng.below(7);
        let (size, mut text) = (size + rng.below(size), String::new());
        while (text.len() as u64) < size {
            let word = usize::try_from(rng.below(words.len() as u64)).unwrap_or(0);
            text += words.get(word).map_or("", String::as_str);
            text.push(if rng.chance(1, 9) { '\n' } else { ' ' });
        }
        if n % RARE == 0 {
            text += NEEDLE;
        }
        fs::write(dir.join(format!("file-{n:05}.txt")), text)?;
    }
    Ok(())
}

fn unpack(place: &Place<'_>, into: &Path) -> io::Result<()> {
    output(Command::new("tar").arg("xf").arg(place.input("tree.tar")).arg("-C").arg(into))?;
    let mut found = 0;
    each_file(into, &mut |_| {
        found += 1;
        Ok(())
    })?;
    if found == place.bench.size.files {
        Ok(())
    } else {
        Err(io::Error::other("files are missing"))
    }
}

fn tar(place: &Place<'_>) -> io::Result<u64> {
    output(Command::new("tar").arg("xf").arg(place.input("tree.tar")).arg("-C").arg(&place.dir))?;
    Ok(place.bench.size.files)
}

/// The tree, on the file system that is measured.
fn unpacked(place: &Place<'_>) -> io::Result<()> {
    archive(place)?;
    let tree = place.subject.dir.join(TREE);
    if !tree.exists() {
        unpack(place, &fresh(&place.subject.dir, TREE)?)?;
    }
    Ok(())
}

fn copy(place: &Place<'_>) -> io::Result<u64> {
    output(Command::new("cp").arg("-r").arg(place.subject.dir.join(TREE)).arg(&place.dir))?;
    Ok(place.bench.size.files)
}

/// The tree, of whose bytes the kernel holds none: of the mount, and of the directory behind it.
fn forgotten(place: &Place<'_>) -> io::Result<()> {
    unpacked(place)?;
    place.sync()?;
    for root in std::iter::once(&place.subject.dir).chain(&place.subject.behind) {
        each_file(&root.join(TREE), &mut |path| {
            Ok(fadvise(File::open(path)?, 0, None, Advice::DontNeed)?)
        })?;
    }
    Ok(())
}

fn each_file(dir: &Path, act: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            each_file(&entry.path(), act)
        } else {
            act(&entry.path())
        }?;
    }
    Ok(())
}

fn search(place: &Place<'_>) -> io::Result<u64> {
    let tree = place.subject.dir.join(TREE);
    let found = output(Command::new("grep").args(["-rlF", NEEDLE]).arg(tree))?.lines().count();
    let files = place.bench.size.files;
    if found as u64 == files.div_ceil(RARE) {
        return Ok(files);
    }
    Err(io::Error::other(format!("grep found {found} files")))
}

/// As a user's git would do it who has set nothing.
fn git(args: &[&str], paths: &[&Path]) -> io::Result<()> {
    let mut command = Command::new("git");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "bench");
        command.env(format!("GIT_{who}_EMAIL"), "bench@localhost");
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    output(command.args(args).args(paths)).map(drop)
}

/// The tree as a repository, beside the file systems.
fn repository(place: &Place<'_>) -> io::Result<()> {
    archive(place)?;
    let (tree, made) = (place.input(TREE), place.input("committed"));
    if !made.exists() {
        let within = tree.display().to_string();
        git(&["init", "--quiet"], &[&tree])?;
        git(&["-C", &within, "add", "."], &[])?;
        git(&["-C", &within, "commit", "--quiet", "--message=all"], &[])?;
        File::create(made)?.write_all(b"")?;
    }
    Ok(())
}

/// As from another computer: nothing is linked, git sends and takes a pack.
fn clone(place: &Place<'_>) -> io::Result<u64> {
    git(&["clone", "--quiet", "--no-local"], &[&place.input(TREE), &place.dir.join("clone")])?;
    Ok(place.bench.size.files)
}

fn fill(place: &Place<'_>, how: &str) -> io::Result<u64> {
    let program = programs::find(DB_BENCH).ok_or(io::ErrorKind::NotFound)?;
    let records = place.bench.size.records;
    let mut command = Command::new(program);
    command.arg(format!("--db={}", place.dir.join("db").display()));
    output(command.args([format!("--num={records}"), format!("--benchmarks={how}")]))?;
    Ok(records)
}

fn commits(place: &Place<'_>, journal: &str) -> io::Result<u64> {
    Ok(sqlite(&place.dir, journal, place.bench.time)?.operations)
}

impl Report {
    /// The rates of all systems, times plain's: a panel for each thing that is asked.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut panels: Vec<Panel> = Vec::new();
        for (what, _, _, loads) in self.suite.asked {
            if panels.iter().any(|panel| panel.title == *what) {
                continue;
            }
            let series = self.suite.ours.iter().chain(self.suite.rivals).copied();
            let series = series.map(|system| self.series(system, loads)).collect();
            let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
            panels.push(Panel {
                title: (*what).to_owned(),
                x: axis("", Scale::Names(loads)),
                y: axis("operations a second, times plain's", Scale::Linear),
                series,
            });
        }
        let note = format!(
            "measured {} on {}; medians of {} rounds, in turn, until all was durable",
            crate::today(),
            crate::machine(),
            self.rounds
        );
        let title = "Applications on file systems".to_owned();
        plot::Figure { title, note, columns: 2, panels }.svg()
    }

    fn series(&self, system: &str, loads: &[&str]) -> Series {
        let of = |load: &&str| {
            let is = |row: &&super::Row| row.workload == *load && row.system == system;
            self.rows.iter().find(is).map_or(f64::NAN, |row| self.ratio(row, "plain"))
        };
        let points = loads.iter().enumerate().map(|(n, load)| (n as f64, of(load))).collect();
        Series { name: system.to_owned(), points }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Rounds;

    fn bench(dir: &Path) -> AppsBench {
        fs::create_dir_all(dir.join(INPUTS)).unwrap();
        AppsBench {
            dir: dir.to_owned(),
            time: Duration::from_millis(20),
            rounds: 1,
            only: None,
            size: Size { files: 50, mebibytes: 2, records: 1000 },
            program: PathBuf::new(),
            stop: Arc::default(),
        }
    }

    #[test]
    fn every_load_runs_on_a_plain_directory_again_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let bench = bench(dir.path());
        let ask = Ask { dir: dir.path(), program: Path::new(""), flags: &[], apart: false };
        let plain = Subject::plain(&ask).unwrap();
        for load in LOADS {
            if load.needs.is_some_and(|program| programs::find(program).is_none()) {
                continue;
            }
            let place = Place::new(&bench, load.title, &plain);
            for _ in 0..2 {
                place.prepare(load).unwrap();
                let outcome = place.measure(load).unwrap();
                assert!(outcome.operations > 0 && outcome.latencies.count() == 1);
            }
        }
        for copy in ["tar-x", "cp-r", "git-clone"].map(|name| plain.dir.join(name)) {
            let mut text = 0;
            each_file(&copy, &mut |path| {
                text += u64::from(path.extension().is_some_and(|end| end == "txt"));
                Ok(())
            })
            .unwrap();
            assert!(text == 50 || !copy.exists(), "{}", copy.display());
        }
    }

    /// What an application says when it fails is all there is to go by.
    #[test]
    fn an_application_that_fails_is_an_error_with_its_words() {
        let error =
            output(Command::new("sh").args(["-c", "echo so far; echo no room >&2; exit 3"]));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("so far\nno room") && error.contains("exit status: 3"), "{error}");
        let missing = output(&mut Command::new("/nowhere")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn one_that_was_told_to_stop_begins_nothing_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let bench = bench(dir.path());
        let ask = Ask { dir: dir.path(), program: Path::new(""), flags: &[], apart: false };
        let plain = Subject::plain(&ask).unwrap();
        let place = Place::new(&bench, LOADS[0].title, &plain);
        let fails = |_: &Place<'_>| -> io::Result<()> {
            bench.stop.store(true, Ordering::Relaxed);
            Err(io::Error::other("the mount is gone"))
        };
        assert_eq!(place.unless_stopped(fails).unwrap_err().kind(), io::ErrorKind::Interrupted);
        let begun = place.unless_stopped(|_| -> io::Result<()> { panic!("begun") });
        assert_eq!(begun.unwrap_err().kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn every_target_is_held_against_loads_that_there_are_and_drawn() {
        let rows = |system: &'static str| {
            let rounds = Rounds { ops_per_second: vec![7.0], ..Rounds::default() };
            LOADS.iter().map(move |load| rounds.row(load.title, system))
        };
        let all =
            [OURS, COLLECTS, "plain", "fuse", WRITE_BACK].into_iter().flat_map(rows).collect();
        let mut report = Report::new(&SUITE, all, 1, Duration::from_secs(1));
        let points = |report: &Report| -> Vec<usize> {
            report.verdicts().iter().map(|verdict| verdict.points.len()).collect()
        };
        assert_eq!(points(&report), [2, 2, 1, 2, 2, 4].repeat(2));
        let svg = report.svg();
        assert_eq!(svg.matches("<circle").count(), 5 * (LOADS.len() + 1), "and the legend");
        assert!(LOADS.iter().all(|load| svg.contains(load.title.name)), "{svg}");
        // What could not be measured is not silently met.
        report.rows.retain(|row| !row.workload.starts_with("leveldb"));
        report.left_out.push(("leveldb-fillseq".to_owned(), "there is no db_bench".to_owned()));
        assert_eq!(points(&report), [2, 2, 1, 0, 2, 4].repeat(2));
        let table = report.table();
        assert!(table.contains("left out: there is no db_bench"), "{table}");
    }
}
