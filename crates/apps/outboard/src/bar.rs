//! A line that is rewritten, where there is a terminal, for what takes long.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The line.
pub(crate) struct Bar {
    shown: Option<Instant>,
    terminal: bool,
}

/// Between two changes of the line.
const SHOW_EVERY: Duration = Duration::from_millis(100);
/// Columns of the bar.
const WIDTH: u64 = 30;

impl Bar {
    pub(crate) fn new() -> Bar {
        Bar { shown: None, terminal: std::io::stderr().is_terminal() }
    }

    /// Shows how far `what` is; bytes of all, or a count if nobody knows how many there are.
    pub(crate) fn show(&mut self, what: &str, done: u64, all: u64) {
        if !self.terminal || self.shown.is_some_and(|shown| shown.elapsed() < SHOW_EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        print(&line(what, done, all));
    }

    /// Takes the line away.
    pub(crate) fn end(&self) {
        if self.shown.is_some() {
            print("");
        }
    }
}

fn print(line: &str) {
    // A terminal that went away is told by SIGHUP.
    let mut out = std::io::stderr();
    let _ = out.write_all(format!("\r\x1b[K{line}").as_bytes()).and_then(|()| out.flush());
}

fn line(what: &str, done: u64, all: u64) -> String {
    if all == 0 {
        return format!("{what:<24} {done}");
    }
    let done = done.min(all);
    let columns = usize::try_from(done.saturating_mul(WIDTH) / all).unwrap_or(0);
    let (bar, percent) = ("#".repeat(columns), done.saturating_mul(100) / all);
    format!("{what:<24} [{bar:<30}] {percent:>3} %  {} of {} MiB", done >> 20, all >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_grows() {
        let at = |done| line("2/4 copying file data", done, 64 << 20);
        assert!(at(0).contains(&format!("[{}]   0 %", " ".repeat(30))), "{}", at(0));
        assert!(at(32 << 20).contains(&format!("[{}{}]  50 %", "#".repeat(15), " ".repeat(15))));
        assert!(at(64 << 20).contains(&format!("[{}] 100 %", "#".repeat(30))));
        assert_eq!(line("1/4 copying pairs", 12, 0), "1/4 copying pairs        12");
    }
}
