//! `outboard migrate`: copies a volume between stores.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use outboard_os::executor::block_on;
use outboard_os::medium::Reactor;

use crate::exit::{Code, Failure};
use crate::log;
use crate::migrate::{MigrateError, Phase, Progress, Side};
use crate::settings::Settings;
use crate::store::StoreName;
use crate::volume::{self, Purpose, RING_DEPTH};

/// Copies the volume of `from` to `to`, which may be the half of an earlier try.
pub(crate) fn migrate(
    from: PathBuf,
    to: PathBuf,
    store: Option<String>,
) -> Result<ExitCode, Failure> {
    let from = Settings { data: Some(from), ..Settings::default() };
    let to = Settings { data: Some(to), store, ..Settings::default() };
    log::start_quietly(&from)?;
    // Without one, media use threads.
    let _reactor = Reactor::install(RING_DEPTH).ok();
    let (source, ours) = volume::parts(&from, Purpose::Use)?;
    let (here, there) = (from.data(), to.data());
    let refused = |error: MigrateError| {
        let code = match error {
            MigrateError::Differs => Code::Damaged,
            MigrateError::Store(_) => Code::Failed,
            _ => Code::Data,
        };
        Failure::new(code, format!("{} to {}: {error}", here.display(), there.display()))
    };
    // Nothing is made for a copy of nothing.
    block_on(crate::migrate::look(&ours.kv)).map_err(refused)?;
    let (target, theirs) = volume::parts(&to, Purpose::Fill)?;
    if let Err(error) = block_on(crate::migrate::may_fill(&theirs.kv)) {
        // With no mark it is no copy of ours: a finished one has its own note.
        if error == MigrateError::Occupied {
            StoreName::give_up_copy(target.path())?;
        }
        return Err(refused(error));
    }
    keep_size(&source, &target)?;
    let start = Instant::now();
    let mut bar = Bar::new();
    let number = theirs.hold.volume();
    let ours = Side { kv: &ours.kv, medium: &ours.blocks };
    let theirs = Side { kv: &theirs.kv, medium: &theirs.blocks };
    let copied = block_on(crate::migrate::migrate(&ours, &theirs, |at| bar.show(at)));
    bar.end();
    let copied = copied.map_err(refused)?;
    let store = StoreName::of(target.path(), None)?;
    // Before it is a volume: one that nothing says the store of would be looked for elsewhere.
    store.remember(target.path(), number)?;
    block_on(crate::migrate::finish(theirs.kv)).map_err(refused)?;
    println!(
        "copied and compared: {} pairs, {} MiB of file data, {:.1} s",
        copied.pairs,
        copied.medium >> 20,
        start.elapsed().as_secs_f64()
    );
    println!("the copy is in {}; the original is as it was", target.path().display());
    Ok(ExitCode::SUCCESS)
}

/// A size that was given to the volume is the copy's, too.
fn keep_size(
    source: &outboard_os::directory::DataDirectory,
    target: &outboard_os::directory::DataDirectory,
) -> Result<(), Failure> {
    let (from, to) = (source.path().join("size"), target.path().join("size"));
    if !from.exists() || to.exists() {
        return Ok(());
    }
    std::fs::copy(&from, &to).map(drop).map_err(|error| {
        Failure::new(Code::Data, format!("cannot copy {}: {error}", from.display()))
    })
}

/// A line that is rewritten, where there is a terminal.
struct Bar {
    shown: Option<Instant>,
    terminal: bool,
}

/// Between two changes of the line.
const SHOW_EVERY: Duration = Duration::from_millis(100);
/// Columns of the bar.
const WIDTH: u64 = 30;

impl Bar {
    fn new() -> Bar {
        Bar { shown: None, terminal: std::io::stderr().is_terminal() }
    }

    fn show(&mut self, progress: Progress) {
        if !self.terminal || self.shown.is_some_and(|shown| shown.elapsed() < SHOW_EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        self.print(&line(progress));
    }

    fn end(&self) {
        if self.shown.is_some() {
            self.print("");
        }
    }

    fn print(&self, line: &str) {
        // A terminal that went away is told by SIGHUP.
        let mut out = std::io::stderr();
        let _ = out.write_all(format!("\r\x1b[K{line}").as_bytes()).and_then(|()| out.flush());
    }
}

fn line(Progress { phase, done, all }: Progress) -> String {
    let what = match phase {
        Phase::Pairs => "1/4 copying pairs",
        Phase::Medium => "2/4 copying file data",
        Phase::ComparePairs => "3/4 comparing pairs",
        Phase::CompareMedium => "4/4 comparing file data",
    };
    if all == 0 {
        return format!("{what:<24} {done}");
    }
    let columns = usize::try_from(done.saturating_mul(WIDTH) / all).unwrap_or(0);
    let (bar, percent) = ("#".repeat(columns), done.saturating_mul(100) / all);
    format!("{what:<24} [{bar:<30}] {percent:>3} %  {} of {} MiB", done >> 20, all >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_grows() {
        let at = |done| line(Progress { phase: Phase::Medium, done, all: 64 << 20 });
        assert!(at(0).contains(&format!("[{}]   0 %", " ".repeat(30))), "{}", at(0));
        assert!(at(32 << 20).contains(&format!("[{}{}]  50 %", "#".repeat(15), " ".repeat(15))));
        assert!(at(64 << 20).contains(&format!("[{}] 100 %", "#".repeat(30))));
        let pairs = Progress { phase: Phase::Pairs, done: 12, all: 0 };
        assert_eq!(line(pairs), "1/4 copying pairs        12");
    }
}
