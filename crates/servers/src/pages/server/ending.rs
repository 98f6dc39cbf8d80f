//! The end of a server that was told to stop: what is newer than the file is written, and flushed,
//! so that nobody has to send those log records again. It is a courtesy and has a limit; for who is
//! killed they are sent again.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{Event, PageServer, WRITES_MAX};
use crate::device::Device;

/// How long it may take.
const ENDING_MAX: Duration = Duration::from_secs(5);

impl<D: Device> PageServer<D> {
    /// Writes every changed page and flushes the file; says in the log how many are left.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        let is_late = || begun.elapsed() >= ENDING_MAX;
        let mut changed = self.changed();
        while !is_late() && !self.device.is_lost() {
            while self.writes < WRITES_MAX
                && let Some(page) = changed.pop()
            {
                self.write_back(page);
            }
            self.work()?;
            if self.writes == 0 && changed.is_empty() && !self.write_failed {
                // What changed while it was being written is written once more.
                changed = self.changed();
            }
            if self.writes == 0 && (changed.is_empty() || self.write_failed) {
                break;
            }
        }
        let left = self.changed().len();
        if left > 0 {
            tracing::warn!(pages = left, "not all pages are written: their records come again");
            return Ok(());
        }
        let device = Rc::clone(&self.device);
        self.writes += 1;
        self.begin.push(Box::pin(async move { Event::Flushed(device.flush().await) }));
        while self.writes > 0 && !is_late() && !self.device.is_lost() {
            self.work()?;
        }
        Ok(())
    }

    /// Pages newer than the file, the last of them first.
    fn changed(&self) -> Vec<u64> {
        let changed = self.frames.iter().filter(|(_, frame)| frame.changed);
        let mut changed: Vec<u64> = changed.map(|(page, _)| *page).collect();
        changed.sort_unstable_by(|a, b| b.cmp(a));
        changed
    }

    /// Begins what is to be begun, and sleeps until something has ended.
    fn work(&mut self) -> io::Result<()> {
        self.background();
        if self.writes > 0 && self.executor.running() > 0 {
            // Clients may say what they like: nobody listens any more.
            self.sleep(&mut Vec::new())?;
            self.stop.bell().drain()?;
        }
        self.background();
        Ok(())
    }
}
