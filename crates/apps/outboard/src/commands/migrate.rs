//! `outboard migrate`: copies a volume between stores.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use outboard_store::migrate::{Phase, Progress};

use crate::exit::Failure;
use crate::log;
use crate::settings::Settings;

/// Copies the volume of `from` to `to`, which may be the half of an earlier try.
pub(crate) fn migrate(
    from: PathBuf,
    to: PathBuf,
    store: Option<String>,
) -> Result<ExitCode, Failure> {
    let from = Settings { data: Some(from), ..Settings::default() };
    let to = Settings { data: Some(to), store, ..Settings::default() };
    log::start_quietly(&from)?;
    let (from, to) = (from.store_options()?, to.store_options()?);
    let start = Instant::now();
    let mut bar = Bar::new();
    let copied = outboard_store::migrate::migrate(&from, &to, |at| bar.show(at));
    bar.end();
    let copied = copied?;
    println!(
        "copied and compared: {} pairs, {} MiB of file data, {:.1} s",
        copied.pairs,
        copied.medium >> 20,
        start.elapsed().as_secs_f64()
    );
    println!("the copy is in {}; the original is as it was", to.data.display());
    Ok(ExitCode::SUCCESS)
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
