//! The edges of a volume: full, corrupted, misused, read-only, idle. Each case starts its own.

#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use outboard_tests::{Ended, Result, Side, Volume, context};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

struct Case {
    name: &'static str,
    proves: &'static str,
    run: fn(&Path) -> Result<()>,
}

const CASES: &[Case] = &[
    Case {
        name: "missing",
        proves: "a mount point that is missing is named, with code 3",
        run: missing_mountpoint,
    },
    Case {
        name: "busy",
        proves: "a mount point in use is refused with code 3, and its user is not disturbed",
        run: busy_mountpoint,
    },
    Case {
        name: "second",
        proves: "a second DPU side on one data directory is refused with code 4",
        run: second_writer,
    },
    Case {
        name: "dying",
        proves: "a DPU side that dies before it answers is not adopted: another is started",
        run: dying_dpu_side,
    },
    Case {
        name: "unknown-key",
        proves: "an unknown key of the configuration is named, with code 2",
        run: unknown_key,
    },
    Case {
        name: "sample",
        proves: "every key of etc/outboard.toml is known and takes the value shown",
        run: sample_configuration,
    },
    Case {
        name: "foreign",
        proves: "a data directory that holds something else is refused and left as it was",
        run: foreign_data,
    },
    Case {
        name: "stores",
        proves: "a volume in redb outlives kill -9, goes to fjall and back, and no other opens it",
        run: stores,
    },
    Case {
        name: "full",
        proves: "a full volume answers ENOSPC, can delete, and works again",
        run: full_volume,
    },
    Case {
        name: "corrupted",
        proves: "a flipped bit on disk gives EIO and a fault of the check, never other data",
        run: corrupted_block,
    },
    Case {
        name: "rotten",
        proves: "the same when both sides died after the sync and before the flip",
        run: corrupted_after_a_crash,
    },
    Case {
        name: "options",
        proves: "ro refuses writes, noexec refuses programs",
        run: mount_options,
    },
    Case {
        name: "umount",
        proves: "`outboard umount` ends `outboard run` cleanly",
        run: unmount_by_command,
    },
    Case {
        name: "idle",
        proves: "a mounted, unused volume takes under 0.1 % of a core on both sides",
        run: idle,
    },
];

fn main() -> ExitCode {
    let mut only = Vec::new();
    for arg in env::args().skip(1) {
        match arg.strip_prefix("--only=") {
            Some(name) if CASES.iter().any(|case| case.name == name) => only.push(name.to_owned()),
            _ => {
                eprintln!("edges [--only=NAME]...");
                CASES.iter().for_each(|case| eprintln!("  {:<12} {}", case.name, case.proves));
                return ExitCode::from(2);
            }
        }
    }
    let base = env::temp_dir().join(format!("outboard-edges-{}", std::process::id()));
    let mut failed = 0;
    for case in CASES.iter().filter(|case| only.is_empty() || only.iter().any(|n| n == case.name)) {
        let folder = base.join(case.name);
        let start = Instant::now();
        let outcome = context(fs::create_dir_all(&folder), || "cannot make a folder".to_owned())
            .and_then(|()| (case.run)(&folder));
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("pass  {:<12} {seconds:>6.1} s  {}", case.name, case.proves),
            Err(error) => {
                failed += 1;
                println!("FAIL  {:<12} {seconds:>6.1} s  {error}", case.name);
            }
        }
    }
    if failed > 0 {
        println!("{failed} failed; logs are in {}", base.display());
        return ExitCode::FAILURE;
    }
    _ = fs::remove_dir_all(&base);
    ExitCode::SUCCESS
}

/// The program must end with `code` and name each of `words`.
fn expect_refusal(ended: &Ended, code: i32, words: &[&str]) -> Result<()> {
    if ended.code() != Some(code) {
        return Err(format!("ended with {:?}, not {code}:\n{}", ended.status, ended.tail(5)));
    }
    match words.iter().find(|word| !ended.output.contains(**word)) {
        Some(word) => Err(format!("the message does not name `{word}`:\n{}", ended.tail(5))),
        None => Ok(()),
    }
}

fn expect_errno<T>(outcome: std::io::Result<T>, expected: Errno, doing: &str) -> Result<()> {
    match outcome {
        Ok(_) => Err(format!("{doing} was allowed")),
        Err(error) if Errno::from_io_error(&error) == Some(expected) => Ok(()),
        Err(error) => Err(format!("{doing}: {error}, not {expected}")),
    }
}

fn run_args<'a>(data: &'a Path, mountpoint: &'a Path) -> [&'a OsStr; 4] {
    ["run".as_ref(), "--data".as_ref(), data.as_ref(), mountpoint.as_ref()]
}

fn missing_mountpoint(base: &Path) -> Result<()> {
    let volume = Volume::new(base, &[])?;
    let nowhere = base.join("nowhere");
    let ended = volume.outboard(&run_args(&volume.data(), &nowhere))?;
    expect_refusal(&ended, 3, &["nowhere", "mkdir"])?;
    File::create(&nowhere).map_err(|error| error.to_string())?;
    // What would have held the volume was made first, and stayed.
    let other = base.join("other");
    let ended = volume.outboard(&run_args(&other, &nowhere))?;
    expect_refusal(&ended, 3, &["nowhere", "directory"])?;
    let ended = volume.outboard(
        &[&run_args(&other, &volume.mountpoint())[..], &["--size=much".as_ref()]].concat(),
    )?;
    expect_refusal(&ended, 2, &["--size"])?;
    if other.exists() {
        return Err("a data directory was made for a volume that was refused".to_owned());
    }
    let ended = volume.outboard(&run_args(&volume.data(), &nowhere))?;
    expect_refusal(&ended, 3, &["nowhere", "directory"])
}

fn busy_mountpoint(base: &Path) -> Result<()> {
    let mut volume = Volume::new(base, &[])?;
    volume.start()?;
    let other = base.join("other");
    context(fs::create_dir_all(&other), || "cannot make a folder".to_owned())?;
    let ended = volume.outboard(&run_args(&other, &volume.mountpoint()))?;
    expect_refusal(&ended, 3, &["mnt"])?;
    let file = volume.mountpoint().join("still-here");
    context(fs::write(&file, "yes"), || "the first mount was disturbed".to_owned())?;
    volume.stop()
}

fn second_writer(base: &Path) -> Result<()> {
    let mut volume = Volume::new(base, &[])?;
    volume.start()?;
    let data = volume.data();
    let ended = volume.outboard(&["dpu".as_ref(), "--data".as_ref(), data.as_ref()])?;
    expect_refusal(&ended, 4, &["data"])?;
    let file = volume.mountpoint().join("still-here");
    context(fs::write(&file, "yes"), || "the first was disturbed".to_owned())?;
    volume.stop()?;
    volume.check()
}

/// One that got kill -9 still took connections for some milliseconds: `run` adopted it, found
/// nobody to attach to, and ended. Here it is held back, and killed once it was found.
fn dying_dpu_side(base: &Path) -> Result<()> {
    let mut volume = Volume::new(base, &[])?;
    volume.start()?;
    let file = volume.mountpoint().join("still-here");
    context(fs::write(&file, "yes"), || "cannot write".to_owned())?;
    let dpu = volume.pid(Side::Dpu)?;
    volume.kill(&[Side::Host])?;
    context(kill_process(dpu, Signal::STOP), || "cannot hold it back".to_owned())?;
    let killer = std::thread::spawn(move || {
        sleep(Duration::from_secs(1));
        kill_process(dpu, Signal::KILL)
    });
    volume.start()?;
    let killed = killer.join().map_err(|_| "the thread that kills panicked".to_owned())?;
    context(killed, || "cannot kill it".to_owned())?;
    let text = context(fs::read_to_string(&file), || "cannot read".to_owned())?;
    if text != "yes" {
        return Err(format!("the file holds {text:?}"));
    }
    volume.stop()?;
    volume.check()
}

fn unknown_key(base: &Path) -> Result<()> {
    let volume = Volume::new(base, &[])?;
    let file = volume.data().join("outboard.toml");
    context(fs::write(&file, "colour = \"red\"\n"), || "cannot write".to_owned())?;
    let ended = volume.outboard(&run_args(&volume.data(), &volume.mountpoint()))?;
    expect_refusal(&ended, 2, &["colour", "outboard.toml"])
}

fn sample_configuration(base: &Path) -> Result<()> {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/outboard.toml");
    let sample = context(fs::read_to_string(&sample), || "no sample".to_owned())?;
    let keys = sample.lines().filter_map(|line| line.strip_prefix('#'));
    // Prose has a blank behind the `#`; the place of the data is the case's own; no pool is there.
    let own = |line: &str| line.starts_with("data = ") || line.starts_with("store = ");
    let keys = keys.filter(|line| !line.starts_with(' ') && !own(line));
    let file = base.join("sample.toml");
    let text = keys.collect::<Vec<_>>().join("\n");
    context(fs::write(&file, text), || "cannot write".to_owned())?;
    let flag = format!("--config={}", file.display());
    let mut volume = Volume::new(base, &[&flag])?;
    volume.start()?;
    volume.stop()
}

fn foreign_data(base: &Path) -> Result<()> {
    let volume = Volume::new(base, &[])?;
    let file = volume.data().join("thesis.tex");
    context(fs::write(&file, "precious"), || "cannot write".to_owned())?;
    let ended = volume.outboard(&run_args(&volume.data(), &volume.mountpoint()))?;
    expect_refusal(&ended, 4, &["data"])?;
    let names = context(fs::read_dir(volume.data()), || "cannot list".to_owned())?.count();
    if names != 1 {
        return Err(format!("{names} names in the data directory, where there was 1"));
    }
    Ok(())
}

/// Writes files with their own names in them; each is durable when it is there.
fn fill(volume: &Volume, numbers: std::ops::Range<usize>) -> Result<()> {
    for number in numbers {
        let name = format!("file-{number}");
        let path = volume.mountpoint().join(&name);
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&path)?;
            file.write_all(name.repeat(1 + number * 100).as_bytes())?;
            file.sync_all()
        };
        context(write(), || format!("writing {name}"))?;
    }
    Ok(())
}

fn expect_filled(volume: &Volume, numbers: std::ops::Range<usize>) -> Result<()> {
    for number in numbers {
        let name = format!("file-{number}");
        let found = context(fs::read(volume.mountpoint().join(&name)), || name.clone())?;
        if found != name.repeat(1 + number * 100).as_bytes() {
            return Err(format!("{name} is not what was written: {} bytes", found.len()));
        }
    }
    Ok(())
}

fn stores(base: &Path) -> Result<()> {
    let mut volume = Volume::with(base, &["--store=redb"])?;
    volume.start()?;
    fill(&volume, 0..50)?;
    volume.kill(&[Side::Host, Side::Dpu])?;
    volume.start()?;
    expect_filled(&volume, 0..50)?;
    volume.kill(&[Side::Dpu])?;
    // Waits for the side that `run` starts anew.
    fill(&volume, 50..60)?;
    volume.check()?;
    let store = volume.status()?["dpu"]["store"].clone();
    let told = store["engine"] == "redb" && store["pairs"].as_u64().is_some_and(|n| n > 60);
    if !told {
        return Err(format!("status says of the store: {store}"));
    }
    volume.stop()?;
    volume.check()?;
    let mountpoint = volume.mountpoint();
    let words = run_args(&volume.data(), &mountpoint).map(OsStr::to_owned);
    let words: Vec<&OsStr> = words.iter().map(|word| &**word).collect();
    let ended = volume.outboard(&[&words[..], &["--store=fjall".as_ref()]].concat())?;
    expect_refusal(&ended, 4, &["belongs to the store redb, not fjall", "outboard migrate"])?;
    let ended = volume.outboard(&[&words[..], &["--store=rocks".as_ref()]].concat())?;
    expect_refusal(&ended, 2, &["no store rocks", "fjall, redb or rados://"])?;
    let mut from = volume.data();
    copies_of_nothing(&volume, base)?;
    for (name, store) in [("there", "fjall"), ("back", "redb")] {
        let to = context(fs::create_dir_all(base.join(name)), || name.to_owned())
            .map(|()| base.join(name).join("data"))?;
        let words = ["migrate".as_ref(), from.as_ref(), to.as_ref(), "--store".as_ref()];
        let ended = volume.outboard(&[&words[..], &[store.as_ref()]].concat())?;
        if ended.code() != Some(0) {
            return Err(format!("migrate to {store}: {}", ended.tail(5)));
        }
        from = to;
    }
    // Nobody says again which store it is.
    let mut back = Volume::with(&base.join("back"), &[])?;
    back.start()?;
    expect_filled(&back, 0..60)?;
    back.stop()?;
    back.check()
}

/// The directory of a copy that was refused belonged to its store from then on.
fn copies_of_nothing(volume: &Volume, base: &Path) -> Result<()> {
    let (nothing, to) = (base.join("nothing"), base.join("to"));
    context(fs::create_dir_all(&nothing), || "nothing".to_owned())?;
    let words = ["migrate".as_ref(), nothing.as_ref(), to.as_ref(), "--store=redb".as_ref()];
    expect_refusal(&volume.outboard(&words)?, 4, &["nothing", "no volume"])?;
    if to.exists() || context(fs::read_dir(&nothing), || "nothing".to_owned())?.count() > 0 {
        return Err("something was made for a copy of nothing".to_owned());
    }
    Ok(())
}

fn full_volume(base: &Path) -> Result<()> {
    let mut volume = Volume::new(base, &["--size=256M"])?;
    volume.start()?;
    let dir = volume.mountpoint();
    let piece = vec![0x5a; 1 << 20];
    let mut written = 0usize;
    // A gigabyte cannot fit; the bound keeps a volume that never fills from running for ever.
    let mut stopped = None;
    'files: for number in 0..64 {
        let path = dir.join(format!("file-{number}"));
        let mut file = match File::create(&path) {
            Ok(file) => file,
            Err(error) => {
                stopped = Some(error);
                break;
            }
        };
        for _ in 0..16 {
            if let Err(error) = file.write_all(&piece).and_then(|()| file.sync_data()) {
                stopped = Some(error);
                break 'files;
            }
            written += 1;
        }
    }
    let error = stopped.ok_or("a volume of 256 MiB took 1 GiB")?;
    expect_errno::<()>(Err(error), Errno::NOSPC, "filling")?;
    if written < 100 {
        return Err(format!("full after {written} MiB of 256"));
    }
    let small = fs::write(dir.join("small"), vec![1; 100_000]);
    expect_errno(small, Errno::NOSPC, "another file").or_else(|_| {
        // A little space may be left where a megabyte did not fit.
        context(fs::remove_file(dir.join("small")), || "cannot delete when full".to_owned())
    })?;
    context(volume.check(), || "full, while running".to_owned())?;
    volume.stop()?;
    context(volume.check(), || "full, while stopped".to_owned())?;
    context(volume.start(), || "a full volume does not start".to_owned())?;
    for number in 0..4 {
        let path = dir.join(format!("file-{number}"));
        context(fs::remove_file(path), || "cannot delete when full".to_owned())?;
    }
    // Space may come back a moment after the reply.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let again = fs::write(dir.join("again"), vec![2; 20 << 20])
            .and_then(|()| File::open(dir.join("again"))?.sync_all());
        match again {
            Ok(()) => break,
            Err(_) if Instant::now() < end => sleep(Duration::from_millis(200)),
            Err(error) => return Err(format!("64 MiB were freed, 20 do not fit: {error}")),
        }
    }
    let kept = context(fs::read(dir.join("file-5")), || "cannot read what was kept".to_owned())?;
    if kept.iter().any(|byte| *byte != 0x5a) {
        return Err("what was kept has changed".to_owned());
    }
    volume.stop()?;
    volume.check()
}

const MARK: &[u8; 32] = b"a mark that stands only on disk!";

fn corrupted_block(base: &Path) -> Result<()> {
    corrupt(base, Volume::stop)
}

/// Recovery may take back a block that never reached the disk. One that was synced did reach it:
/// what is wrong with it later is a fault, and must not be mistaken for a write that was lost.
fn corrupted_after_a_crash(base: &Path) -> Result<()> {
    corrupt(base, |volume| volume.kill(&[Side::Host, Side::Dpu]))
}

fn corrupt(base: &Path, end: impl FnOnce(&mut Volume) -> Result<()>) -> Result<()> {
    let mut volume = Volume::new(base, &[])?;
    volume.start()?;
    let path = volume.mountpoint().join("victim");
    let content = MARK.repeat(1 << 16);
    let written = fs::write(&path, &content).and_then(|()| File::open(&path)?.sync_all());
    context(written, || "cannot write".to_owned())?;
    end(&mut volume)?;
    let flipped = flip(&volume.data(), content.len() / 2)?;
    if flipped == 0 {
        return Err("the content is nowhere in the data directory; was it synced?".to_owned());
    }
    if volume.check().is_ok() {
        return Err("the check found nothing wrong with a flipped bit".to_owned());
    }
    volume.start()?;
    match fs::read(&path) {
        Ok(found) if found == content => Err("the flipped bit was not on the way".to_owned()),
        Ok(_) => Err("corrupted data was returned as right".to_owned()),
        Err(error) => expect_errno::<()>(Err(error), Errno::IO, "reading a corrupted block"),
    }?;
    expect_logged(&volume)?;
    // The rest of the file and of the volume still work.
    let file = context(File::open(&path), || "cannot open".to_owned())?;
    let mut first = [0; 32];
    context(file.read_exact_at(&mut first, 0), || "a whole block is refused".to_owned())?;
    drop(file);
    let other = fs::write(volume.mountpoint().join("other"), "works");
    context(other, || "the rest of the volume".to_owned())?;
    volume.stop()
}

/// An I/O error is told to whoever looks after the computer too. The kernel may ask for a bad block
/// several times; each answer is one line, and there is no flood.
fn expect_logged(volume: &Volume) -> Result<()> {
    let log = fs::read_to_string(volume.data().join("dpu.log"));
    let log = context(log, || "no log of the DPU side".to_owned())?;
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
    match lines.len() {
        1..=64 => Ok(()),
        0 => Err("EIO was answered, and the DPU side logged nothing".to_owned()),
        more => Err(format!("{more} lines logged for one corrupted block")),
    }
}

/// Flips one bit in the middle of a run of marks at least `length` bytes long, in whichever file of
/// a directory holds one; returns how many were flipped (0 or 1).
fn flip(folder: &Path, length: usize) -> Result<usize> {
    for path in files_under(folder)? {
        let mut bytes = Vec::new();
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let mut file = context(file, || format!("cannot open {}", path.display()))?;
        context(file.read_to_end(&mut bytes), || format!("cannot read {}", path.display()))?;
        let marks: Vec<usize> = bytes
            .chunks_exact(MARK.len())
            .enumerate()
            .filter(|(_, chunk)| chunk == MARK)
            .map(|(at, _)| at * MARK.len())
            .collect();
        if marks.len() * MARK.len() < length {
            continue;
        }
        let at = marks[marks.len() / 2];
        let written = file.write_at(&[MARK[0] ^ 1], at as u64).and_then(|_| file.sync_all());
        context(written, || format!("cannot write {}", path.display()))?;
        return Ok(1);
    }
    Ok(0)
}

fn files_under(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = context(fs::read_dir(&folder), || format!("no {}", folder.display()))?;
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    Ok(files)
}

fn mount_options(base: &Path) -> Result<()> {
    let mut volume = Volume::new(base, &[])?;
    volume.start()?;
    let script = volume.mountpoint().join("script");
    let made = fs::copy("/bin/true", &script);
    context(made, || "cannot copy a program".to_owned())?;
    let status = std::process::Command::new(&script).status();
    context(status, || "a program on the volume does not run".to_owned())?;
    volume.stop()?;

    let mut volume = Volume::new(base, &["-o", "ro,noexec,nosuid,nodev"])?;
    volume.start()?;
    let written = fs::write(volume.mountpoint().join("new"), "x");
    expect_errno(written, Errno::ROFS, "writing to a read-only mount")?;
    expect_errno(fs::remove_file(&script), Errno::ROFS, "deleting on a read-only mount")?;
    context(fs::read(&script), || "a read-only mount refuses reading".to_owned())?;
    let status = std::process::Command::new(&script).status();
    expect_errno(status, Errno::ACCESS, "a program on a noexec mount")?;
    volume.stop()?;
    volume.check()
}

fn unmount_by_command(base: &Path) -> Result<()> {
    let mut volume = Volume::new(base, &[])?;
    volume.start()?;
    let path = volume.mountpoint().join("file");
    context(fs::write(&path, "kept"), || "cannot write".to_owned())?;
    let mountpoint = volume.mountpoint();
    let ended = volume.outboard(&["umount".as_ref(), mountpoint.as_ref()])?;
    if ended.code() != Some(0) {
        return Err(format!("umount ended with {:?}: {}", ended.status, ended.tail(5)));
    }
    let code = volume.wait_end()?;
    if code != Some(0) {
        return Err(format!("`outboard run` ended with {code:?} after an unmount"));
    }
    volume.check()?;
    volume.start()?;
    match fs::read_to_string(&path) {
        Ok(text) if text == "kept" => volume.stop(),
        other => Err(format!("after mounting again: {other:?}")),
    }
}

/// Longest share of a core an idle volume may take, in millionths.
const IDLE_MILLIONTHS_MAX: u128 = 1000;

fn idle(base: &Path) -> Result<()> {
    let mut volume = Volume::new(base, &[])?;
    volume.start()?;
    // It has been used, and settles: caches, flushes and deferred work end.
    for number in 0..100 {
        let written = fs::write(volume.mountpoint().join(format!("file-{number}")), "x");
        context(written, || "cannot write".to_owned())?;
    }
    let pids = [volume.pid(Side::Host)?, volume.pid(Side::Dpu)?];
    let cpu = || pids.iter().map(|pid| cpu_ns(pid.as_raw_nonzero().get())).sum::<Result<u128>>();
    let mut found = Vec::new();
    // A slow disk takes longer to settle, and what a busy machine does to caches costs us CPU.
    for _ in 0..4 {
        sleep(Duration::from_secs(5));
        let (before, start) = (cpu()?, Instant::now());
        sleep(Duration::from_secs(20));
        let used = cpu()?.saturating_sub(before);
        found.push(used * 1_000_000 / start.elapsed().as_nanos().max(1));
        if found.iter().any(|millionths| *millionths <= IDLE_MILLIONTHS_MAX) {
            return volume.stop();
        }
    }
    Err(format!("{found:?} millionths of a core in 20 s each, over {IDLE_MILLIONTHS_MAX}"))
}

/// Nanoseconds of CPU all threads of a process have used.
fn cpu_ns(pid: i32) -> Result<u128> {
    let tasks = context(fs::read_dir(format!("/proc/{pid}/task")), || format!("no process {pid}"))?;
    let mut sum = 0;
    for task in tasks.flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(|ns| ns.parse::<u128>().ok()).unwrap_or(0);
    }
    Ok(sum)
}
