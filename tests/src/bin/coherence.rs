//! Processes at random, killed at random, on files they share: one file to everybody, always.
//!
//! Workers of four kinds (through a mount with a hybrid cache, through it with `O_DIRECT`,
//! preloaded with and without a cache) write and read the same blocks, each read judged when it is
//! made; see `outboard_tests::coherence`. Meanwhile workers, the DPU side, the host side or several
//! of them get kill -9. Then everything is read once more, through the mount and past the kernel,
//! and the check of the volume must be clean, running and, every few rounds, stopped.

#![forbid(unsafe_code)]

use std::env;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_tests::coherence::table::{Before, Fate};
use outboard_tests::coherence::worker::{End, read_up_to};
use outboard_tests::coherence::{BLOCK, BLOCKS, FILES, Kind, Table, Worker, name, owner, record};
use outboard_tests::{Result, Side, Volume, context};

const USAGE: &str = "\
coherence [--rounds=N] [--seed=N] [--workers=N] [--flag=FLAG]... [--base=DIRECTORY]

  --rounds   rounds of kills [default: 6]
  --seed     repeats a run's choices; round i of seed s is round 0 of seed s + i [default: clock]
  --workers  processes at work, of four kinds in turn [default: 8]
  --flag     a further flag of `outboard run`, such as --flag=--replace=lru
  --base     where the volume and the table go [default: a new folder in /tmp]
";

/// The longest a worker may take to end: a lost DPU side is waited for meanwhile.
const END_LIMIT: Duration = Duration::from_secs(180);
/// A clean stop, a whole check and a start every so many rounds.
const RESTART_EVERY: u64 = 4;

struct Options {
    rounds: u64,
    seed: u64,
    workers: u64,
    flags: Vec<String>,
    base: PathBuf,
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let outcome = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["work", number, workers, dir, table, seed] => work(number, workers, dir, table, seed),
        ["look", workers, dir, table] => look(workers, dir, table),
        _ => match Options::parse(&args) {
            Ok(options) => run(&options).inspect(|_| {
                _ = fs::remove_dir_all(&options.base);
            }),
            Err(error) => {
                eprintln!("coherence: {error}");
                return ExitCode::from(2);
            }
        },
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("coherence: {error}");
        // Not a return: nothing that hangs may keep this process.
        std::process::exit(1)
    })
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut options = Self {
            rounds: 6,
            seed: clock.map_or(1, |now| now.as_secs()),
            workers: 8,
            flags: Vec::new(),
            base: env::temp_dir().join(format!("outboard-coherence-{}", std::process::id())),
        };
        for arg in args {
            let unknown = || format!("unknown argument `{arg}`\n{USAGE}");
            let (key, value) = arg.split_once('=').ok_or_else(unknown)?;
            let number = || value.parse::<u64>().map_err(|_| unknown());
            match key {
                "--rounds" => options.rounds = number()?,
                "--seed" => options.seed = number()?,
                "--workers" => options.workers = number()?.clamp(1, 64),
                "--flag" => options.flags.push(value.to_owned()),
                "--base" => options.base = PathBuf::from(value),
                _ => return Err(unknown()),
            }
        }
        Ok(options)
    }
}

/// A worker's process. Exit code 3: what it stands on was killed.
fn work(number: &str, workers: &str, dir: &str, table: &str, seed: &str) -> Result<ExitCode> {
    let parse = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
    let (number, workers, seed) = (parse(number)?, parse(workers)?, parse(seed)?);
    let table = Table::open(Path::new(table), workers)?;
    let mut worker = Worker::new(number, workers, Path::new(dir), &table);
    let end = worker.run(seed)?;
    println!("{}", worker.done);
    Ok(if end == End::Over { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// Reads everything once, by whatever way this process has to the volume.
fn look(workers: &str, dir: &str, table: &str) -> Result<ExitCode> {
    let workers = workers.parse::<u64>().map_err(|error| error.to_string())?;
    let table = Table::open(Path::new(table), workers)?;
    survey(Path::new(dir), &table, |file, block, found, before| {
        table.judge(file, block, found, before)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads each block, and has `judge` see it.
fn survey(
    dir: &Path,
    table: &Table,
    mut judge: impl FnMut(u64, u64, record::Found, Before) -> Result<()>,
) -> Result<()> {
    let mut bytes = vec![0; BLOCK];
    for file in 0..FILES {
        let opened = context(File::open(dir.join(name(file))), || format!("opening file {file}"))?;
        for block in 0..BLOCKS {
            bytes.fill(0);
            let before = table.before(file, block)?;
            let read = read_up_to(&opened, &mut bytes, block * BLOCK as u64);
            context(read, || format!("reading block {block} of file {file}"))?;
            judge(file, block, record::read(file, block, &bytes), before)?;
        }
    }
    Ok(())
}

fn run(options: &Options) -> Result<ExitCode> {
    let base = &options.base;
    context(fs::create_dir_all(base), || format!("cannot make {}", base.display()))?;
    let mut flags = vec!["--cache=hybrid", "--cache-size=1M"];
    flags.extend(options.flags.iter().map(String::as_str));
    let mut volume = Volume::new(base, &flags)?;
    volume.start()?;
    let path = base.join("table");
    let table = Table::open(&path, options.workers)?;
    let mut rig = Rig { volume, table, path, workers: options.workers, done: 0 };
    for number in 0..options.rounds {
        let seed = options.seed.wrapping_add(number);
        let start = Instant::now();
        let plan = Plan::draw(&mut Rng::new(seed), options.workers);
        let last = (number + 1).is_multiple_of(RESTART_EVERY) || number + 1 == options.rounds;
        rig.round(&plan, seed, last).map_err(|error| {
            let tail = rig.volume.log_tail();
            format!("round {number} ({plan:?}), seed {seed}: {error}\n{tail}")
        })?;
        println!(
            "round {number:>3}  seed {seed}  {:<24}  {:>9} operations judged  {:>5.1} s",
            format!("{:?} {:?}", plan.sides, plan.workers),
            rig.done,
            start.elapsed().as_secs_f64()
        );
    }
    rig.volume.stop()?;
    Ok(ExitCode::SUCCESS)
}

/// One round, drawn by its seed.
#[derive(Debug)]
struct Plan {
    before: Duration,
    sides: Vec<Side>,
    /// The next DPU side is killed, too, so soon after it answers.
    again: Option<Duration>,
    /// Workers that are killed, after the sides.
    workers: Vec<u64>,
    after: Duration,
}

impl Plan {
    fn draw(rng: &mut Rng, workers: u64) -> Self {
        let mut sides = Vec::new();
        if rng.chance(1, 2) {
            sides.push(Side::Dpu);
        }
        if rng.chance(1, 3) {
            sides.insert(0, Side::Host);
        }
        let least = u64::from(sides.is_empty());
        let mut killed: Vec<u64> = (0..least + rng.below(3)).map(|_| rng.below(workers)).collect();
        killed.sort_unstable();
        killed.dedup();
        Self {
            before: Duration::from_millis(200 + rng.below(1200)),
            again: (sides == [Side::Dpu] && rng.chance(1, 3))
                .then(|| Duration::from_millis(rng.below(300))),
            sides,
            workers: killed,
            after: Duration::from_millis(200 + rng.below(1000)),
        }
    }
}

struct Rig {
    volume: Volume,
    table: Table,
    path: PathBuf,
    workers: u64,
    /// Operations of all workers that ended in order.
    done: u64,
}

impl Rig {
    fn round(&mut self, plan: &Plan, seed: u64, restart: bool) -> Result<()> {
        self.table.set_over(false)?;
        let mut crew = Vec::new();
        for number in 0..self.workers {
            crew.push(self.spawn(number, seed)?);
        }
        let outcome = self.kills(plan, seed, &mut crew);
        self.table.set_over(true)?;
        let ended = crew.into_iter().map(|worker| worker.end()).collect::<Vec<_>>();
        outcome?;
        for outcome in ended {
            self.done += outcome?;
        }
        self.settle()?;
        self.past_the_kernel()?;
        context(self.volume.check(), || "fsck while running".to_owned())?;
        if restart {
            context(self.volume.stop(), || "stopping".to_owned())?;
            context(self.volume.check(), || "fsck while stopped".to_owned())?;
            context(self.volume.start(), || "starting again".to_owned())?;
            context(self.settle(), || "after a clean stop".to_owned())?;
        }
        Ok(())
    }

    fn kills(&mut self, plan: &Plan, seed: u64, crew: &mut Vec<Hand>) -> Result<()> {
        thread::sleep(plan.before);
        still_there(crew)?;
        let dpu_dies = plan.sides.contains(&Side::Dpu);
        let host_dies = plan.sides.contains(&Side::Host);
        let mounted = |number: &u64| host_dies && Kind::of(*number).mounted();
        let doomed: Vec<u64> = (0..self.workers)
            .filter(|number| mounted(number) || plan.workers.contains(number))
            .collect();
        for number in &doomed {
            // The mount's cache dies with the mount, not with who writes through it.
            let loose = match Kind::of(*number) {
                Kind::Mount => host_dies,
                kind => kind.caches(),
            };
            let fate = if dpu_dies && loose { Fate::Loose } else { Fate::Doomed };
            self.table.set_fate(*number, fate)?;
        }
        if !plan.sides.is_empty() {
            self.volume.kill(&plan.sides)?;
        }
        for number in &plan.workers {
            if let Some(hand) = crew.iter_mut().find(|hand| hand.number == *number) {
                // It may have ended by itself, if the mount is gone.
                _ = hand.child.kill();
            }
        }
        if let Some(soon) = plan.again {
            self.volume.kill_next_dpu(soon)?;
        }
        for hand in crew.iter_mut().filter(|hand| doomed.contains(&hand.number)) {
            hand.gone()?;
        }
        crew.retain(|hand| !doomed.contains(&hand.number));
        if host_dies {
            context(self.volume.start(), || "starting after the kill".to_owned())?;
        }
        // A worker that was loose may find older blocks of its own: they are looked at first.
        if !doomed.is_empty() {
            self.settle_of(&doomed)?;
        }
        for number in doomed {
            crew.push(self.spawn(number, seed ^ 0x5EED)?);
        }
        thread::sleep(plan.after);
        still_there(crew)
    }

    fn spawn(&self, number: u64, seed: u64) -> Result<Hand> {
        let me = context(env::current_exe(), || "cannot find this program".to_owned())?;
        let mut command = Command::new(me);
        let dir = self.volume.mountpoint();
        command.arg("work").arg(number.to_string()).arg(self.workers.to_string());
        command.arg(dir).arg(&self.path).arg(seed.to_string());
        match Kind::of(number) {
            Kind::Mount | Kind::MountDirect => {}
            Kind::Queues => self.volume.preload(&mut command)?,
            Kind::Cached => {
                self.volume.preload(&mut command)?;
                command.env("OUTBOARD_CACHE", "1");
            }
        }
        let log = self.path.with_file_name(format!("worker-{number}.log"));
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = context(file, || format!("cannot open {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let child = context(command.spawn(), || format!("cannot start {command:?}"))?;
        Ok(Hand { number, child, log })
    }

    /// Everybody stands still: each block is judged, and what is found is what counts from now on.
    fn settle(&self) -> Result<()> {
        let all: Vec<u64> = (0..self.workers).collect();
        self.settle_of(&all)
    }

    /// The same of these workers' blocks, which nobody writes just now.
    fn settle_of(&self, workers: &[u64]) -> Result<()> {
        let dir = self.volume.mountpoint();
        survey(&dir, &self.table, |file, block, found, before| {
            if !workers.contains(&owner(file, block, self.workers)) {
                return Ok(());
            }
            self.table.judge(file, block, found, before)?;
            match found {
                // Its owner mends it when it is back.
                record::Found::Torn => Ok(()),
                record::Found::Nothing => self.table.answer(file, block, 0),
                record::Found::Whole(seq) => self.table.answer(file, block, seq),
            }
        })?;
        for number in workers {
            if self.table.fate(*number)? == Fate::Loose {
                self.table.set_fate(*number, Fate::Doomed)?;
            }
        }
        Ok(())
    }

    /// The same view by a preloaded process.
    fn past_the_kernel(&self) -> Result<()> {
        let me = context(env::current_exe(), || "cannot find this program".to_owned())?;
        let mut command = Command::new(me);
        command.arg("look").arg(self.workers.to_string());
        command.arg(self.volume.mountpoint()).arg(&self.path);
        self.volume.preload(&mut command)?;
        let log = self.path.with_file_name("look.log");
        let ended = outboard_tests::run_limited(command, END_LIMIT, &log)?;
        match ended.code() {
            Some(0) => Ok(()),
            _ => Err(format!("past the kernel: {}", ended.tail(5))),
        }
    }
}

/// A worker's process, from outside.
struct Hand {
    number: u64,
    child: Child,
    log: PathBuf,
}

impl Hand {
    fn wait(&mut self) -> Result<std::process::ExitStatus> {
        let end = Instant::now() + END_LIMIT;
        loop {
            let status = context(self.child.try_wait(), || "waiting for a worker".to_owned())?;
            if let Some(status) = status {
                return Ok(status);
            }
            if Instant::now() >= end {
                _ = self.child.kill();
                return Err(format!(
                    "worker {} ({:?}) has not ended after {} s",
                    self.number,
                    Kind::of(self.number),
                    END_LIMIT.as_secs()
                ));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// It was killed, or what it stands on was.
    fn gone(&mut self) -> Result<()> {
        let status = self.wait()?;
        match status.code() {
            None | Some(0 | 3) => Ok(()),
            Some(_) => Err(self.said(status)),
        }
    }

    /// It ends, told to; how much it did.
    fn end(mut self) -> Result<u64> {
        use std::io::Read;
        let status = self.wait()?;
        if !status.success() {
            return Err(self.said(status));
        }
        let mut text = String::new();
        if let Some(mut out) = self.child.stdout.take() {
            context(out.read_to_string(&mut text), || "a worker's count".to_owned())?;
        }
        context(text.trim().parse(), || format!("worker {} said {text:?}", self.number))
    }

    fn said(&self, status: std::process::ExitStatus) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let last = text.lines().rev().take(4).collect::<Vec<_>>().join("\n");
        let kind = Kind::of(self.number);
        format!("worker {} ({kind:?}) ended with {status}: {last}", self.number)
    }
}

/// Nobody ends by itself.
fn still_there(crew: &mut [Hand]) -> Result<()> {
    for hand in crew {
        let ended = context(hand.child.try_wait(), || "looking at a worker".to_owned())?;
        if let Some(status) = ended {
            return Err(hand.said(status));
        }
    }
    Ok(())
}
