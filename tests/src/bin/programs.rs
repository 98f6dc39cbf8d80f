//! Runs the real programs of `tests/programs` on a mounted volume, one after the other.
//!
//! For each: start the volume, run the program in an empty directory, check the running volume,
//! unmount, check the whole volume, mount again and compare what is there with what was left. With
//! `--dir` the same programs run in a plain directory instead, as the control.

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use outboard_tests::cut;
use outboard_tests::twins::Pair;
use outboard_tests::{Result, Volume, context, note_skip, run_limited, wait_until};

const USAGE: &str = "\
programs [--size=small|full] [--only=NAME]... [--dir=DIRECTORY | --preload]
         [--cache=MODE] [--client=WHO] [--kill=SECONDS] [--base=DIRECTORY] [--keep]

  --size   how much work each program does [default: small]
  --only   run just these
  --dir    run in this plain directory instead of a volume: the control
  --preload  with liboutboard_preload.so in every process: past the kernel
  --cache  the mount's cache: kernel, write-back, hybrid or none [default: the program's]
  --client  who is the client of a shared volume: dpu, host or standard [default: dpu]
  --kill   kill -9 of the mount's process, of the DPU side, of both, in turn, each after so many
           seconds; another takes over
  --base   where the volume's data and mount point go [default: a new folder in /tmp]
  --keep   leave data and logs there
";

/// What a volume holds when programs are small, and the disk's room is more: so the space it says
/// is free is its own, and does not change with what others put on the disk.
const SMALL: &str = "--size=4G";
/// How long another host may take names and attributes for what they were, and some.
const NAMES: Duration = Duration::from_secs(5);
/// Files that two hosts write in turn, after each program.
const ROUNDS: usize = 24;
/// Exit code by which a workload says that this computer cannot run it.
const SKIPPED: i32 = 77;

#[derive(Default)]
struct Options {
    size: String,
    only: Vec<String>,
    plain: Option<PathBuf>,
    preload: bool,
    cache: Option<String>,
    client: Option<String>,
    kill: Option<Duration>,
    base: Option<PathBuf>,
    keep: bool,
}

enum Verdict {
    Passed,
    Skipped(String),
    Failed(String),
}

fn main() -> ExitCode {
    let outcome = Options::parse(env::args().skip(1)).and_then(|options| run(&options));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("programs: {error}");
            ExitCode::from(2)
        }
    }
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { size: "small".into(), ..Self::default() };
        for arg in args {
            match arg.split_once('=') {
                Some(("--size", size @ ("small" | "full"))) => options.size = size.into(),
                Some(("--only", name)) => options.only.push(name.into()),
                Some(("--dir", path)) => options.plain = Some(path.into()),
                Some(("--cache", mode)) => options.cache = Some(mode.into()),
                Some(("--client", who)) => options.client = Some(who.into()),
                Some(("--kill", seconds)) => {
                    let pause =
                        seconds.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
                    let pause = pause.ok_or_else(|| format!("no number of seconds: `{arg}`"))?;
                    options.kill = Some(pause);
                }
                Some(("--base", path)) => options.base = Some(path.into()),
                None if arg == "--keep" => options.keep = true,
                None if arg == "--preload" => options.preload = true,
                _ => return Err(format!("unknown argument `{arg}`\n{USAGE}")),
            }
        }
        Ok(options)
    }
}

fn run(options: &Options) -> Result<bool> {
    let in_namespaces = env::var_os("OUTBOARD_CLUSTER").is_some_and(|kind| kind == "netns");
    if let Some(reason) = cut::missing().filter(|_| in_namespaces) {
        println!("skipped: {reason}");
        note_skip("shared-hosts", reason)?;
        return Ok(true);
    }
    let workloads = workloads(&options.only)?;
    let base = match &options.base {
        Some(base) => base.clone(),
        None => env::temp_dir().join(format!("outboard-programs-{}", std::process::id())),
    };
    context(fs::create_dir_all(&base), || format!("cannot make {}", base.display()))?;
    let (mut passed, mut skipped, mut failed) = (0, 0, 0);
    for workload in &workloads {
        let name = name_of(workload);
        let start = Instant::now();
        let verdict = match &options.plain {
            Some(plain) => in_plain_directory(workload, plain, &base, &options.size),
            None => on_volume(workload, &base, options),
        };
        let verdict = verdict.unwrap_or_else(Verdict::Failed);
        let seconds = start.elapsed().as_secs_f64();
        match verdict {
            Verdict::Passed => {
                println!("pass  {name:<14} {seconds:>6.1} s");
                passed += 1;
            }
            Verdict::Skipped(reason) => {
                println!("skip  {name:<14} {reason}");
                note_skip(&name, &reason)?;
                skipped += 1;
            }
            Verdict::Failed(reason) => {
                println!("FAIL  {name:<14} {seconds:>6.1} s  {reason}");
                failed += 1;
            }
        }
    }
    println!("{passed} passed, {skipped} skipped, {failed} failed");
    if options.keep || failed > 0 {
        println!("data and logs are in {}", base.display());
    } else {
        _ = fs::remove_dir_all(&base);
    }
    Ok(failed == 0)
}

/// The scripts to run, by name: those of `OUTBOARD_PROGRAMS`, else those beside the sources.
fn workloads(only: &[String]) -> Result<Vec<PathBuf>> {
    let folder = env::var_os("OUTBOARD_PROGRAMS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("programs"), PathBuf::from);
    let entries = context(fs::read_dir(&folder), || format!("no {}", folder.display()))?;
    let mut scripts: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sh"))
        .filter(|path| only.is_empty() || only.contains(&name_of(path)))
        .collect();
    scripts.sort();
    match only.iter().find(|name| !scripts.iter().any(|script| name_of(script) == **name)) {
        Some(name) => Err(format!("no program `{name}` in {}", folder.display())),
        None => Ok(scripts),
    }
}

fn name_of(script: &Path) -> String {
    script.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn limit(size: &str) -> Duration {
    Duration::from_secs(if size == "full" { 7200 } else { 1200 })
}

/// Runs a script in `dir`. On a volume it is told how that is used.
fn run_script(
    script: &Path,
    dir: &Path,
    base: &Path,
    size: &str,
    on: Option<(&Volume, &Options)>,
) -> Result<Verdict> {
    let here = context(env::current_exe(), || "cannot find this program".to_owned())?;
    let mut command = Command::new(script);
    command.arg(dir).arg(size);
    let front = match on {
        None => "dir",
        Some((_, options)) => {
            let shared = env::var_os("OUTBOARD_STORE").is_some_and(|store| store == "shared");
            let mode = options.cache.as_deref();
            let mode = mode.filter(|mode| ["hybrid", "write-back"].contains(mode));
            mode.unwrap_or(if shared { "shared" } else { "mount" })
        }
    };
    command.env("OUTBOARD_FRONT", front);
    command.env("OUTBOARD_BIN", here.parent().unwrap_or(&here));
    if let Some((volume, _)) = on.filter(|(_, options)| options.preload) {
        volume.preload(&mut command)?;
    }
    let log = base.join(format!("{}.log", name_of(script)));
    let ended = run_limited(command, limit(size), &log)?;
    Ok(match ended.code() {
        Some(0) => Verdict::Passed,
        Some(SKIPPED) => Verdict::Skipped(ended.tail(1)),
        Some(code) => Verdict::Failed(format!("ended with {code}:\n{}", ended.tail(15))),
        None if ended.status.is_none() => {
            Verdict::Failed(format!("not done within its limit:\n{}", ended.tail(15)))
        }
        None => Verdict::Failed(format!("ended by a signal:\n{}", ended.tail(15))),
    })
}

fn in_plain_directory(script: &Path, plain: &Path, base: &Path, size: &str) -> Result<Verdict> {
    let dir = plain.join(name_of(script));
    context(fs::create_dir_all(&dir), || format!("cannot make {}", dir.display()))?;
    let verdict = run_script(script, &dir, base, size, None);
    context(fs::remove_dir_all(&dir), || format!("cannot remove {}", dir.display()))?;
    verdict
}

fn on_volume(script: &Path, base: &Path, options: &Options) -> Result<Verdict> {
    let mut flags: Vec<String> =
        options.cache.iter().map(|mode| format!("--cache={mode}")).collect();
    flags.extend(options.client.iter().map(|who| format!("--client={who}")));
    if options.size == "small" && env::var_os("OUTBOARD_STORE").is_none() {
        flags.push(SMALL.to_owned());
    }
    let mut volume = Volume::new(base, &flags.iter().map(String::as_str).collect::<Vec<_>>())?;
    volume.start()?;
    let other = volume.other_host()?;
    let dir = volume.mountpoint().join(name_of(script));
    context(fs::create_dir_all(&dir), || format!("cannot make {}", dir.display()))?;
    let verdict = under_kills(&volume, options.kill, || {
        run_script(script, &dir, base, &options.size, Some((&volume, options)))
    })?;
    if !matches!(verdict, Verdict::Passed) {
        return Ok(verdict);
    }
    if let Some(mut other) = other {
        let read = read_elsewhere(&dir, &other.mountpoint().join(name_of(script)));
        context(read, || format!("at another host\n{}", other.log_tail()))?;
        context(other.stop(), || "unmounting at another host".to_owned())?;
    }
    context(volume.check(), || "while mounted".to_owned())?;
    let left = listing(&dir)?;
    context(volume.stop(), || "unmounting".to_owned())?;
    context(volume.check(), || "after unmounting".to_owned())?;
    context(volume.start(), || "mounting again".to_owned())?;
    if listing(&dir)? != left {
        return Ok(Verdict::Failed("what is there differs after mounting again".to_owned()));
    }
    context(fs::remove_dir_all(&dir), || format!("cannot remove {}", dir.display()))?;
    context(volume.stop(), || "unmounting at the end".to_owned())?;
    context(volume.check(), || "after removing everything".to_owned())?;
    Ok(Verdict::Passed)
}

/// Another host finds, as soon as names may be old no more, all that a program left; and what
/// either host writes, the other, once it is closed or synced.
fn read_elsewhere(here: &Path, there: &Path) -> Result<()> {
    let left = listing(here)?;
    if !wait_until(NAMES, || listing(there).is_ok_and(|found| found == left)) {
        return Err("names and attributes differ from what the program left".to_owned());
    }
    let files = contents(here)?;
    if contents(there)? != files {
        return Err("files hold other bytes than the program wrote".to_owned());
    }
    Pair { one: here.to_owned(), other: there.to_owned() }.closed_and_synced(ROUNDS)?;
    let (names, files) = (left.split(|byte| *byte == b'\n').count(), files.lines().count());
    println!("      another host reads {names} names and {files} files, {ROUNDS} by turns");
    Ok(())
}

/// Does the work while what serves the volume is killed again and again.
fn under_kills(
    volume: &Volume,
    pause: Option<Duration>,
    work: impl FnOnce() -> Result<Verdict>,
) -> Result<Verdict> {
    let Some(pause) = pause else { return work() };
    let (done, is_done) = channel::<()>();
    let (verdict, kills) = thread::scope(|scope| {
        let killer = scope.spawn(move || {
            let mut kills = 0;
            while is_done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let (mount, dpu) = [(true, false), (false, true), (true, true)][kills % 3];
                kills += usize::from(volume.kill_below_run(mount, dpu));
            }
            kills
        });
        let verdict = work();
        drop(done);
        (verdict, killer.join())
    });
    let kills = kills.map_err(|_| "the killing thread panicked".to_owned())?;
    println!("      {kills} kills");
    volume.wait_for_dpu()?;
    match verdict? {
        Verdict::Passed if kills == 0 => {
            Ok(Verdict::Failed("it ended before anything was killed".to_owned()))
        }
        verdict => Ok(verdict),
    }
}

/// Names, kinds, sizes, modes, owners and times of everything under a directory.
fn listing(dir: &Path) -> Result<Vec<u8>> {
    let found = find(dir, &["-printf", "%P %y %s %m %U %G %n %T@ %l\\0"])?;
    let mut entries: Vec<&[u8]> = found.split(|byte| *byte == 0).collect();
    entries.sort();
    Ok(entries.join(&b'\n'))
}

/// A checksum of each file under a directory.
fn contents(dir: &Path) -> Result<String> {
    let found = find(dir, &["-type", "f", "-exec", "sha256sum", "{}", "+"])?;
    let text = String::from_utf8_lossy(&found);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    Ok(lines.join("\n"))
}

/// What `find` says in a directory.
fn find(dir: &Path, what: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new("find").arg(".").args(what).current_dir(dir).output();
    let output = context(output, || "cannot run find".to_owned())?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("find: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
