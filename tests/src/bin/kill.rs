//! kill -9 of the DPU side, of the host side, or of both, at random points of running workloads.
//!
//! Each round: workers run; a side dies; what was answered must be there, once, and the check of
//! the volume must be clean, running and stopped. A round that fails prints the seed that repeats
//! it. The journals of the workers stay outside the volume.

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_tests::crash::{Held, Mode, Worker};
use outboard_tests::{Result, Side, Volume, context};

const USAGE: &str = "\
kill [--rounds=N] [--seed=N] [--victim=dpu|host|both] [--workers=N] [--base=DIRECTORY]

  --rounds   kills [default: 10]
  --seed     repeats a run; round i of seed s is round 0 of seed s + i [default: from the clock]
  --victim   always this side [default: drawn]
  --workers  threads that work at once [default: 4]
  --base     where the volume and the journals go [default: a new folder in /tmp]
";

/// The longest a worker may take to stop: a lost DPU side is waited for that long, and more.
const STOP_LIMIT: Duration = Duration::from_secs(180);

struct Options {
    rounds: u64,
    seed: u64,
    victim: Option<&'static [Side]>,
    workers: u64,
    base: PathBuf,
}

const DPU: &[Side] = &[Side::Dpu];
const HOST: &[Side] = &[Side::Host];
const BOTH: &[Side] = &[Side::Host, Side::Dpu];

fn main() -> ExitCode {
    let options = match Options::parse(env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("kill: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => {
            _ = fs::remove_dir_all(&options.base);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("kill: {error}\njournals and logs are in {}", options.base.display());
            // Not a return: workers that hang in a system call must not keep this process.
            std::process::exit(1)
        }
    }
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Result<Self> {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut options = Self {
            rounds: 10,
            seed: clock.map_or(1, |now| now.as_secs()),
            victim: None,
            workers: 4,
            base: env::temp_dir().join(format!("outboard-kill-{}", std::process::id())),
        };
        for arg in args {
            let unknown = || format!("unknown argument `{arg}`\n{USAGE}");
            let (key, value) = arg.split_once('=').ok_or_else(unknown)?;
            let number = || value.parse::<u64>().map_err(|_| unknown());
            match (key, value) {
                ("--rounds", _) => options.rounds = number()?,
                ("--seed", _) => options.seed = number()?,
                ("--workers", _) => options.workers = number()?,
                ("--base", path) => options.base = PathBuf::from(path),
                ("--victim", "dpu") => options.victim = Some(DPU),
                ("--victim", "host") => options.victim = Some(HOST),
                ("--victim", "both") => options.victim = Some(BOTH),
                _ => return Err(unknown()),
            }
        }
        Ok(options)
    }
}

fn run(options: &Options) -> Result<()> {
    let base = &options.base;
    context(fs::create_dir_all(base), || format!("cannot make {}", base.display()))?;
    let mut volume = Volume::new(base, &[])?;
    volume.start()?;
    let mut workers = (0..options.workers)
        .map(|number| {
            let dir = volume.mountpoint().join(format!("worker-{number}"));
            let journal = base.join(format!("journal-{number}"));
            Worker::new(&dir, &journal, options.seed ^ (number << 32))
        })
        .collect::<Result<Vec<_>>>()?;
    for number in 0..options.rounds {
        let seed = options.seed.wrapping_add(number);
        let start = Instant::now();
        let plan = Plan::draw(&mut Rng::new(seed), options.victim);
        workers = round(&mut volume, workers, &plan).map_err(|error| {
            format!("round {number} ({plan:?}), seed {seed}: {error}\n{}", volume.log_tail())
        })?;
        let answered: u64 = workers.iter().map(|worker| worker.answered).sum();
        println!(
            "round {number:>3}  seed {seed}  {:<12} syncs {:<5}  {answered:>8} answered  {:>5.1} s",
            format!("{:?}", plan.victims),
            plan.syncs,
            start.elapsed().as_secs_f64()
        );
    }
    volume.stop()
}

/// One round, drawn by its seed.
#[derive(Debug)]
struct Plan {
    victims: &'static [Side],
    syncs: bool,
    before: Duration,
    /// The DPU side that comes back is killed again, so soon after: also its recovery may die.
    again: Option<Duration>,
    after: Duration,
}

impl Plan {
    fn draw(rng: &mut Rng, victim: Option<&'static [Side]>) -> Self {
        let drawn = [DPU, HOST, BOTH][usize::try_from(rng.below(3)).unwrap_or(0)];
        Self {
            victims: victim.unwrap_or(drawn),
            syncs: rng.chance(1, 2),
            before: Duration::from_millis(rng.below(1500)),
            again: rng.chance(1, 4).then(|| Duration::from_millis(rng.below(200))),
            after: Duration::from_millis(300 + rng.below(1000)),
        }
    }
}

fn round(volume: &mut Volume, workers: Vec<Worker>, plan: &Plan) -> Result<Vec<Worker>> {
    let host_dies = plan.victims.contains(&Side::Host);
    let mut held = if host_dies { None } else { Some(Held::take(&volume.mountpoint())?) };
    let mode = Mode { syncs: plan.syncs, mount_may_die: host_dies };
    let crew = Crew::start(workers, mode);
    thread::sleep(plan.before);
    volume.kill(plan.victims)?;
    if let (Some(soon), false) = (plan.again, host_dies) {
        volume.kill_next_dpu(soon)?;
    }
    thread::sleep(plan.after);
    let mut workers = crew.stop()?;
    if host_dies {
        context(volume.start(), || "starting after the kill".to_owned())?;
    }
    if let Some(held) = &mut held {
        held.verify()?;
    }
    drop(held);
    verify(&mut workers, "after the kill")?;
    context(volume.check(), || "fsck while running".to_owned())?;
    context(volume.stop(), || "stopping".to_owned())?;
    context(volume.check(), || "fsck while stopped".to_owned())?;
    context(volume.start(), || "starting again".to_owned())?;
    verify(&mut workers, "after a clean stop")?;
    Ok(workers)
}

fn verify(workers: &mut [Worker], when: &str) -> Result<()> {
    workers.iter_mut().try_for_each(|worker| context(worker.verify(), || when.to_owned()))
}

/// Workers at work, each in its thread.
struct Crew {
    stop: Arc<AtomicBool>,
    done: mpsc::Receiver<Result<Worker>>,
    count: usize,
}

impl Crew {
    fn start(workers: Vec<Worker>, mode: Mode) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, done) = mpsc::channel();
        let count = workers.len();
        for mut worker in workers {
            let (sender, stop) = (sender.clone(), Arc::clone(&stop));
            thread::spawn(move || {
                let outcome = worker.run(mode, &stop).map(|()| worker);
                // The receiver is gone only when the run has failed already.
                _ = sender.send(outcome);
            });
        }
        Self { stop, done, count }
    }

    /// Waits for every worker; one that hangs is an error, not a wait.
    fn stop(self) -> Result<Vec<Worker>> {
        self.stop.store(true, Ordering::Relaxed);
        let end = Instant::now() + STOP_LIMIT;
        let mut workers = Vec::new();
        for _ in 0..self.count {
            let left = end.saturating_duration_since(Instant::now());
            let outcome = self.done.recv_timeout(left);
            workers.push(context(outcome, || {
                format!("an operation is not answered after {} s", STOP_LIMIT.as_secs())
            })??);
        }
        Ok(workers)
    }
}
