//! A metadata server that stands by takes over under two hosts that make names and write, whatever
//! becomes of the one that serves (`docs/internals/standby.md`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use outboard_base::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::Cluster;
use crate::command::wait_until;
use crate::copies::{Away, Writer, holds};
use crate::{Result, context};

/// How long names and writes may take in a change of servers, on a machine that does other things.
const STALL: Duration = Duration::from_secs(60);

/// How long a name may take where one stands by: a pool's owner else counts as dead after 45 s.
const LONGEST: Duration = Duration::from_secs(20);

/// What becomes of the server that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is stopped, and goes on once the other serves.
    Stopped,
    /// It is told to end; it is started again at once, and may be the first to have the claim.
    Ended,
    /// It is stopped, and dead before it goes on.
    Silent,
    /// kill -9; started again likewise.
    Killed,
    /// Both.
    Both,
}

const ENDS: [End; 5] = [End::Stopped, End::Ended, End::Silent, End::Killed, End::Both];

/// Makes names one after the other, each by a file that is written and renamed.
struct Names {
    dir: PathBuf,
    thread: JoinHandle<Result<()>>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    /// The longest that one took since this was asked, microseconds.
    longest: Arc<AtomicU64>,
}

fn name(number: u64) -> String {
    format!("name-{number}")
}

impl Names {
    fn begin(dir: &Path) -> Result<Names> {
        context(fs::create_dir(dir), || format!("cannot make {}", dir.display()))?;
        let shared = <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let (stop, answered, longest) = shared.clone();
        let own = dir.to_owned();
        let work = move || {
            let (stop, answered, longest) = shared;
            while !stop.load(Ordering::Acquire) {
                let (number, begun) = (answered.load(Ordering::Relaxed), Instant::now());
                let (draft, whole) = (own.join("draft"), own.join(name(number)));
                let made = fs::write(&draft, name(number)).and_then(|()| fs::rename(&draft, whole));
                context(made, || format!("name {number}"))?;
                let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                longest.fetch_max(took, Ordering::Relaxed);
                answered.store(number + 1, Ordering::Release);
            }
            Ok(())
        };
        Ok(Names { dir: dir.to_owned(), thread: thread::spawn(work), stop, answered, longest })
    }

    fn goes_on(&self, what: End) -> Result<()> {
        let before = self.answered.load(Ordering::Acquire);
        let enough = || self.answered.load(Ordering::Acquire) > before + 5;
        match wait_until(STALL, || enough() || self.thread.is_finished()) && enough() {
            true => Ok(()),
            false => {
                Err(format!("no names are made within {STALL:?} while the server is {what:?}"))
            }
        }
    }

    /// Ends it; how many were answered. All of them are found by `other`, the same directory on
    /// another host.
    fn end(self, other: &Path) -> Result<u64> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().map_err(|_| "who makes names panicked".to_owned())??;
        let answered = self.answered.load(Ordering::Acquire);
        let dir = other.join(self.dir.file_name().unwrap_or_default());
        for number in 0..answered {
            let path = dir.join(name(number));
            let found = context(fs::read_to_string(&path), || format!("{}", path.display()))?;
            if found != name(number) {
                return Err(format!("{} holds {found:?}", path.display()));
            }
        }
        let listed = context(fs::read_dir(&dir), || format!("{}", dir.display()))?.count() as u64;
        match listed == answered {
            true => Ok(answered),
            false => Err(format!("{} has {listed} names of {answered}", dir.display())),
        }
    }
}

/// The server that serves, by what `status` says.
fn serving(cluster: &Cluster) -> Result<String> {
    let status = cluster.status()?;
    let of = |role: &&&str| status["parts"][**role]["part"].is_object();
    let found = ["meta", "meta.2"].iter().find(of).map(|role| (*role).to_owned());
    found.ok_or_else(|| format!("no server serves: {status}"))
}

fn signal(pid: u64, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("no process")?;
    context(kill_process(pid, signal), || format!("a signal to {pid:?}"))
}

/// One of the servers serves, another one than this; which.
///
/// # Errors
/// None does, for long.
pub fn one_serves(cluster: &Cluster, but: Option<&str>) -> Result<String> {
    let mut last = Err("nobody looked".to_owned());
    let serves = wait_until(STALL, || {
        last = serving(cluster);
        matches!(&last, Ok(now) if Some(now.as_str()) != but)
    });
    match serves {
        true => last,
        false => Err(format!("within {STALL:?} no other server serves: {last:?}")),
    }
}

/// A server's process is another one.
fn has_ended(cluster: &Cluster, server: &str, pid: u64) -> Result<()> {
    let has_ended = || cluster.address(server).is_ok_and(|(now, _)| now != pid);
    match wait_until(STALL, has_ended) {
        true => Ok(()),
        false => Err(format!("{server} does not end within {STALL:?}")),
    }
}

/// The server that serves ends; how long until one serves.
fn ends(cluster: &Cluster, how: End) -> Result<Duration> {
    let server = one_serves(cluster, None)?;
    let (pid, _) = cluster.address(&server)?;
    let begun = Instant::now();
    match how {
        End::Stopped | End::Silent => {
            let stopped = Away::stop(cluster, &[&server])?;
            one_serves(cluster, Some(&server))?;
            let taken = begun.elapsed();
            if how == End::Silent {
                signal(pid, Signal::KILL)?;
            }
            drop(stopped);
            // One that goes on finds that it is the server no more.
            has_ended(cluster, &server, pid)?;
            one_serves(cluster, Some(&server))?;
            return Ok(taken);
        }
        End::Ended => {
            signal(pid, Signal::TERM)?;
            has_ended(cluster, &server, pid)?;
        }
        End::Killed => cluster.kill(&server)?,
        End::Both => ["meta", "meta.2"].iter().try_for_each(|role| cluster.kill(role))?,
    }
    one_serves(cluster, None)?;
    Ok(begun.elapsed())
}

/// Servers change under the mounts of two hosts, so often.
///
/// # Errors
/// Something that was answered is not there, or does not come to an end.
pub fn taken_over(cluster: &Cluster, hosts: [&Path; 2], rounds: u64, seed: u64) -> Result<()> {
    let mut writers = Vec::new();
    for (number, host) in (0_u64..).zip(hosts) {
        let names = Names::begin(&host.join(format!("names-{number}")))?;
        let path = host.join(format!("file-{number}"));
        writers.push((names, Writer::begin(&path, seed + number)?, path));
    }
    let mut rng = Rng::new(seed);
    for round in 0..rounds {
        let nth = usize::try_from(round).unwrap_or(0);
        let how = ENDS.get(nth % ENDS.len()).copied().unwrap_or(End::Killed);
        thread::sleep(Duration::from_millis(500 + rng.below(1500)));
        writers.iter().for_each(|(names, writer, _)| {
            names.longest.store(0, Ordering::Relaxed);
            _ = writer.longest();
        });
        let at = |error: String| format!("round {round}, the server {how:?}: {error}");
        let took = ends(cluster, how).map_err(at)?;
        for (names, writer, _) in &writers {
            names.goes_on(how).map_err(at)?;
            writer.goes_on(STALL, "servers change").map_err(at)?;
        }
        let names = writers.iter().map(|(names, ..)| names.longest.load(Ordering::Relaxed));
        let names = Duration::from_micros(names.max().unwrap_or(0));
        if matches!(how, End::Stopped | End::Silent) && names > LONGEST {
            return Err(at(format!("a name took {names:.1?}, as if nobody stood by")));
        }
        let writes = writers.iter().map(|(_, writer, _)| writer.longest()).max();
        println!(
            "  {:<8}  one serves after {took:.1?}; longest name {names:.1?}, write {:.1?}",
            format!("{how:?}"),
            writes.unwrap_or_default()
        );
    }
    let [one, other] = hosts;
    for ((names, writer, path), host) in writers.into_iter().zip([other, one]) {
        let made = names.end(host)?;
        let (written, answered) = writer.end()?;
        holds(&host.join(path.file_name().unwrap_or_default()), &written)?;
        println!("  {made} names, {answered} writes answered, and there for the other host");
    }
    Ok(())
}
