//! A checker of acknowledged writes: a file at one host whose every answered write is known, read
//! back at this host and at another, whatever dies; and how long its writes take.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use outboard_base::Rng;

use crate::{Result, context};

/// Bytes of a record, and records of the file.
const LEN: usize = 8192;
const RECORDS: usize = 128;
/// Others have the processors in between.
const PAUSE: Duration = Duration::from_millis(5);

/// What who waits for a pulse may look at.
#[derive(Default)]
pub struct Beats {
    /// Writes that were answered.
    pub answered: AtomicU64,
    /// The longest that one took since this was set to 0, in microseconds.
    pub longest: AtomicU64,
}

/// A file of records, and all that was answered of it.
pub struct Pulse {
    known: Vec<u64>,
    /// A record that may be as it was, or as this write made it.
    open: Option<(usize, u64)>,
    write: u64,
    rng: Rng,
    beats: Arc<Beats>,
}

/// A record: its number and which write of it this is, all over.
fn record(number: usize, write: u64) -> Vec<u8> {
    let word = (write << 16) | number as u64;
    word.to_le_bytes().into_iter().cycle().take(LEN).collect()
}

impl Pulse {
    /// One of a file that is not there yet.
    #[must_use]
    pub fn new(seed: u64, beats: Arc<Beats>) -> Self {
        Self { known: vec![0; RECORDS], open: None, write: 0, rng: Rng::new(seed), beats }
    }

    /// Writes, and reads back some, until told to end. What was answered before is there.
    ///
    /// # Errors
    /// Something that was answered is not, or a call failed.
    pub fn run(&mut self, path: &Path, stop: &AtomicBool) -> Result<()> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true);
        let file = context(options.open(path), || format!("cannot open {}", path.display()))?;
        self.verify(path)?;
        while !stop.load(Ordering::Relaxed) {
            self.beat(&file)?;
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn beat(&mut self, file: &File) -> Result<()> {
        let number = usize::try_from(self.rng.below(RECORDS as u64)).unwrap_or(0);
        let write = self.write + 1;
        // Of one that was open before it is known by now which it is.
        (self.write, self.open) = (write, Some((number, write)));
        let begun = Instant::now();
        let wrote = file.write_all_at(&record(number, write), (number * LEN) as u64);
        context(wrote, || format!("write {write}, of record {number}"))?;
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.beats.longest.fetch_max(took, Ordering::Relaxed);
        if let Some(known) = self.known.get_mut(number) {
            *known = write;
        }
        self.open = None;
        self.beats.answered.fetch_add(1, Ordering::Relaxed);
        if write.is_multiple_of(64) {
            context(file.sync_data(), || format!("the sync after write {write}"))?;
        }
        if write.is_multiple_of(8) {
            let number = usize::try_from(self.rng.below(RECORDS as u64)).unwrap_or(0);
            self.look(file, number)?;
        }
        Ok(())
    }

    /// All that was answered is in the file, as it is seen here or at another host.
    ///
    /// # Errors
    /// Something else is, or it cannot be read.
    pub fn verify(&mut self, path: &Path) -> Result<()> {
        let file = context(File::open(path), || format!("cannot open {}", path.display()))?;
        (0..RECORDS).try_for_each(|number| self.look(&file, number))?;
        self.open = None;
        Ok(())
    }

    fn look(&mut self, file: &File, number: usize) -> Result<()> {
        let known = self.known.get(number).copied().unwrap_or(0);
        let open = self.open.filter(|(of, _)| *of == number).map(|(_, write)| write);
        if known == 0 && open.is_none() {
            return Ok(());
        }
        let mut found = vec![0; LEN];
        let read = file.read_at(&mut found, (number * LEN) as u64);
        let len = context(read, || format!("cannot read record {number}"))?;
        found.truncate(len);
        // What was never written may be behind the end.
        if found == record(number, known) || (known == 0 && found.iter().all(|byte| *byte == 0)) {
            return Ok(());
        }
        if let Some(write) = open.filter(|write| found == record(number, *write)) {
            if let Some(known) = self.known.get_mut(number) {
                *known = write;
            }
            return Ok(());
        }
        let word = found.first_chunk().map_or(0, |raw| u64::from_le_bytes(*raw));
        let torn = found != word.to_le_bytes().repeat(LEN / 8);
        Err(format!(
            "record {number} has {len} bytes of {word:#x} (torn: {torn}); write {known:#x} was \
             answered, {open:x?} begun"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oracle says no to a record that is old, torn or another's, yes to one that was begun.
    #[test]
    fn what_was_answered_is_missed() {
        let path = std::env::temp_dir().join(format!("outboard-pulse-{}", std::process::id()));
        let mut pulse = Pulse::new(1, Arc::default());
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        (0..400).for_each(|_| pulse.beat(&file).unwrap());
        pulse.verify(&path).unwrap();
        let number = pulse.known.iter().position(|write| *write > 0).unwrap();
        let (at, write) = ((number * LEN) as u64, pulse.known[number]);
        for wrong in [record(number, write - 1), record(number + 1, write), vec![0; LEN]] {
            file.write_all_at(&wrong, at).unwrap();
            assert!(pulse.verify(&path).is_err());
        }
        file.write_all_at(&record(number, write + 9)[..LEN / 2], at).unwrap();
        pulse.open = Some((number, write + 9));
        assert!(pulse.verify(&path).unwrap_err().contains("torn: true"));
        file.write_all_at(&record(number, write + 9), at).unwrap();
        pulse.verify(&path).unwrap();
        assert_eq!((pulse.known[number], pulse.open), (write + 9, None));
        std::fs::remove_file(path).unwrap();
    }
}
