//! Two mounts of one volume, and what each must show of what was done on the other.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::wait_until;
use crate::{Result, Twin, context};

/// Threads that count, append and change at one moment, half on each mount.
const HANDS: usize = 4;
/// A record is this many times its own name: torn ones show.
const REPEATS: usize = 20;

/// The two mount points.
pub struct Pair {
    /// Where what is changed alone is changed.
    pub one: PathBuf,
    /// Where it is looked at.
    pub other: PathBuf,
}

impl Pair {
    /// Of one host: everything shows at once, and what one mount alone uses wakes nobody.
    pub fn all(&self, twin: &Twin, rounds: usize) -> Result<()> {
        self.alone(twin, rounds)?;
        self.names_and_attributes(rounds)?;
        self.bytes(rounds)?;
        self.counter(rounds)?;
        self.records(rounds)?;
        self.crossing(rounds)
    }

    /// Of two hosts: bytes show at once; names, modes and listings soon.
    pub fn of_two_hosts(&self, rounds: usize) -> Result<()> {
        self.names_soon(rounds.min(10))?;
        self.closed_and_synced(rounds)?;
        self.bytes(rounds)?;
        self.counter(rounds)?;
        self.records(rounds)?;
        self.crossing(rounds)
    }

    fn names_soon(&self, rounds: usize) -> Result<()> {
        let [here, there] = [&self.one, &self.other].map(|mount| mount.join("dir"));
        made(fs::create_dir(&here))?;
        made(fs::write(here.join("file"), b"x"))?;
        for round in 0..rounds {
            let (old, new) = (format!("n{round}"), format!("r{round}"));
            let mode = 0o600 | u32::try_from(round % 64).unwrap_or(0);
            made(fs::set_permissions(here.join("file"), fs::Permissions::from_mode(mode)))?;
            let has_mode = || {
                let found = fs::metadata(there.join("file"));
                found.is_ok_and(|found| found.mode() & 0o777 == mode)
            };
            soon(has_mode, || format!("another mode than {mode:o}"))?;
            made(fs::create_dir(here.join(&old)))?;
            soon(|| there.join(&old).is_dir(), || format!("no {old}, which was made"))?;
            made(fs::rename(here.join(&old), here.join(&new)))?;
            soon(|| !there.join(&old).exists(), || format!("{old}, which was renamed"))?;
            soon(|| listed(&there, &new).unwrap_or(false), || format!("a listing without {new}"))?;
            made(fs::remove_dir(there.join(&new)))?;
            soon(|| !here.join(&new).exists(), || format!("{new}, which was removed"))?;
        }
        Ok(())
    }

    /// What the other was never told of is not its business: its process sleeps on.
    fn alone(&self, twin: &Twin, rounds: usize) -> Result<()> {
        let dir = self.one.join("alone");
        made(fs::create_dir(&dir))?;
        let (old, new) = (dir.join("old"), dir.join("new"));
        let (start, before) = (Instant::now(), twin.wakeups()?);
        for round in 0..rounds {
            made(fs::write(&old, round.to_string()))?;
            made(fs::set_permissions(&old, fs::Permissions::from_mode(0o600)))?;
            made(
                OpenOptions::new()
                    .append(true)
                    .open(&old)
                    .and_then(|mut file| file.write_all(b"x")),
            )?;
            made(fs::rename(&old, &new))?;
            made(fs::metadata(&new))?;
            made(fs::remove_file(&new))?;
        }
        let woken = twin.wakeups()?.saturating_sub(before);
        // A mount that nobody uses wakes some times a second by itself.
        let by_itself = start.elapsed().as_secs() * 50 + 50;
        let changes = rounds as u64 * 6;
        shows(woken <= by_itself.min(changes / 2), || {
            format!("{woken} wake-ups for {changes} changes that were not its business")
        })
    }

    /// Each change on one mount, a look at the other before and after.
    fn names_and_attributes(&self, rounds: usize) -> Result<()> {
        let [here, there] = [&self.one, &self.other].map(|mount| mount.join("dir"));
        made(fs::create_dir(&here))?;
        made(fs::write(here.join("file"), b"x"))?;
        for round in 0..rounds {
            let (old, new) = (format!("n{round}"), format!("r{round}"));
            let mode = 0o600 | u32::try_from(round % 64).unwrap_or(0);
            made(fs::set_permissions(here.join("file"), fs::Permissions::from_mode(mode)))?;
            let found = made(fs::metadata(there.join("file")))?.mode() & 0o777;
            shows(found == mode, || format!("chmod {mode:o} of round {round} as {found:o}"))?;
            shows(!there.join(&old).exists(), || format!("{old} before it was made"))?;
            made(fs::create_dir(here.join(&old)))?;
            shows(there.join(&old).is_dir(), || format!("no {old}, which was made"))?;
            shows(listed(&there, &old)?, || format!("a listing without {old}"))?;
            made(fs::rename(here.join(&old), here.join(&new)))?;
            shows(!there.join(&old).exists(), || format!("{old}, which was renamed"))?;
            shows(there.join(&new).exists(), || format!("no {new}, which {old} became"))?;
            shows(listed(&there, &new)?, || format!("a listing without {new}"))?;
            made(fs::remove_dir(here.join(&new)))?;
            shows(!there.join(&new).exists(), || format!("{new}, which was removed"))?;
            made(fs::write(there.join("back"), b""))?;
            shows(here.join("back").exists(), || "no file that the other made".to_owned())?;
            made(fs::remove_file(here.join("back")))?;
            shows(!there.join("back").exists(), || "a file that was removed".to_owned())?;
        }
        Ok(())
    }

    /// What one wrote and closed, or synced and keeps open, the other reads as it opens the file,
    /// and sees what it takes; by turns.
    pub fn closed_and_synced(&self, rounds: usize) -> Result<()> {
        let name = "closed";
        made(fs::write(self.one.join(name), b"x"))?;
        soon(|| self.other.join(name).exists(), || format!("no {name}, which was made"))?;
        for round in 0..rounds {
            let by_turns = [(&self.one, &self.other), (&self.other, &self.one)];
            let (here, there) = by_turns[round % 2];
            let len = [100, 8192, 200_000][round % 3] + round;
            let written = vec![u8::try_from(round % 251).unwrap_or(0); len];
            let mut file = made(File::create(here.join(name)))?;
            made(file.write_all(&written))?;
            let keeps = (round / 2).is_multiple_of(2).then_some(file);
            if let Some(file) = &keeps {
                made(file.sync_all())?;
            }
            let reads = made(File::open(there.join(name)))?;
            let size = made(reads.metadata())?.len();
            let read = made(fs::read(there.join(name)))?;
            let how = if keeps.is_some() { "fsync" } else { "close" };
            shows(read == written && size == len as u64, || {
                format!("{size} bytes, of which {} were read, after {how}", read.len())
            })?;
            let takes = made(reads.metadata())?.blocks() * 512;
            shows(takes >= size, || format!("{size} bytes that take {takes}"))?;
        }
        Ok(())
    }

    /// Through a descriptor that was opened before.
    fn bytes(&self, rounds: usize) -> Result<()> {
        let (here, there) = (self.one.join("bytes"), self.other.join("bytes"));
        made(fs::write(&here, b"x"))?;
        let before = made(OpenOptions::new().read(true).write(true).open(&there))?;
        for round in 0..rounds {
            let written = vec![u8::try_from(round % 251).unwrap_or(0); 1000 + round];
            let file = made(OpenOptions::new().write(true).open(&here))?;
            made(file.write_all_at(&written, 0))?;
            let mut read = vec![0xFF; written.len()];
            made(before.read_exact_at(&mut read, 0))?;
            shows(read == written, || format!("other bytes than round {round} wrote"))?;
            made(file.set_len(50))?;
            let size = made(before.metadata())?.len();
            shows(size == 50, || format!("a size of {size} after truncation to 50"))?;
        }
        Ok(())
    }

    /// Does `work` on as many threads as there are hands, by turns on either mount.
    fn together(&self, work: impl Fn(&Path, usize) -> Result<()> + Sync) -> Result<()> {
        let work = &work;
        thread::scope(|scope| {
            let hands: Vec<_> = [&self.one, &self.other]
                .into_iter()
                .cycle()
                .take(HANDS)
                .enumerate()
                .map(|(hand, mount)| scope.spawn(move || work(mount, hand)))
                .collect();
            hands
                .into_iter()
                .try_for_each(|hand| hand.join().map_err(|_| "a thread panicked".to_owned())?)
        })
    }

    fn counter(&self, rounds: usize) -> Result<()> {
        made(fs::write(self.one.join("counter"), format!("{:016}", 0)))?;
        self.together(|mount, _| {
            let path = mount.join("counter");
            let file = made(OpenOptions::new().read(true).write(true).open(path))?;
            for _ in 0..rounds {
                made(file.lock())?;
                let next = number_in(&file)? + 1;
                made(file.write_all_at(format!("{next:016}").as_bytes(), 0))?;
                made(file.unlock())?;
            }
            Ok(())
        })?;
        for mount in [&self.one, &self.other] {
            let counted = number_in(&made(File::open(mount.join("counter")))?)?;
            let all = (HANDS * rounds) as u64;
            shows(counted == all, || format!("{counted} of {all} increments"))?;
        }
        Ok(())
    }

    fn records(&self, rounds: usize) -> Result<()> {
        self.together(|mount, hand| {
            let open = OpenOptions::new().append(true).create(true).open(mount.join("records"));
            let mut file = made(open)?;
            (0..rounds).try_for_each(|number| made(file.write_all(record(hand, number).as_bytes())))
        })?;
        for mount in [&self.one, &self.other] {
            let bytes = made(fs::read(mount.join("records")))?;
            let len = record(0, 0).len();
            let mut found: Vec<&[u8]> = bytes.chunks(len).collect();
            found.sort_unstable();
            let mut all: Vec<String> = (0..HANDS)
                .flat_map(|hand| (0..rounds).map(move |number| record(hand, number)))
                .collect();
            all.sort_unstable();
            let whole = found.iter().copied().eq(all.iter().map(String::as_bytes));
            shows(whole, || format!("torn or lost records among {}", found.len()))?;
        }
        Ok(())
    }

    /// Each mount holds what the other's invalidation waits for: a directory, a page.
    fn crossing(&self, rounds: usize) -> Result<()> {
        made(fs::create_dir(self.one.join("crossing")))?;
        made(fs::write(self.one.join("page"), b""))?;
        self.together(|mount, hand| {
            for number in 0..rounds {
                let path = mount.join(format!("crossing/{hand}-{number}"));
                made(fs::create_dir(&path))?;
                made(fs::remove_dir(&path))?;
            }
            Ok(())
        })?;
        for mount in [&self.one, &self.other] {
            let left = made(fs::read_dir(mount.join("crossing")))?.count();
            shows(left == 0, || format!("{left} names where all were removed"))?;
        }
        self.together(|mount, hand| {
            let file = made(OpenOptions::new().write(true).open(mount.join("page")))?;
            let own = [u8::try_from(hand).unwrap_or(0) + b'a'; 100];
            (0..rounds).try_for_each(|_| made(file.write_all_at(&own, hand as u64 * 100)))
        })?;
        let all: Vec<u8> = (b'a'..).take(HANDS).flat_map(|byte| [byte; 100]).collect();
        for mount in [&self.one, &self.other] {
            let bytes = made(fs::read(mount.join("page")))?;
            shows(bytes == all, || "a page that lacks a write".to_owned())?;
        }
        Ok(())
    }
}

fn made<T>(outcome: std::io::Result<T>) -> Result<T> {
    context(outcome, || "a file operation".to_owned())
}

fn shows(right: bool, wrong: impl FnOnce() -> String) -> Result<()> {
    if right { Ok(()) } else { Err(format!("a mount shows {}", wrong())) }
}

/// Within the time that the kernel may keep a name of another host, and some.
fn soon(right: impl FnMut() -> bool, wrong: impl FnOnce() -> String) -> Result<()> {
    shows(wait_until(Duration::from_secs(5), right), wrong)
}

fn listed(dir: &Path, name: &str) -> Result<bool> {
    for entry in made(fs::read_dir(dir))? {
        if made(entry)?.file_name() == name {
            return Ok(true);
        }
    }
    Ok(false)
}

fn number_in(file: &File) -> Result<u64> {
    let mut bytes = [0; 16];
    made(file.read_exact_at(&mut bytes, 0))?;
    let text = context(std::str::from_utf8(&bytes), || "the counter".to_owned())?;
    context(text.parse(), || format!("the counter says {text:?}"))
}

fn record(hand: usize, number: usize) -> String {
    format!("{hand:03} {number:07}|").repeat(REPEATS)
}
