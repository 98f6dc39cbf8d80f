//! The check of a volume's metadata, at rest or beside work.
//!
//! What is on the medium is read as an opening would read it, and judged: both copies of the
//! superblock, what the checkpoint and the log behind it say, and that every segment a file has on
//! record lies on the medium. A volume that is served must say the same in memory as on the medium.
//! Nothing is written; changes of the metadata wait meanwhile, reads and writes of files do not.

use outboard_medium::Medium;
use outboard_volume::{Figures, Report};

use super::format::Record;
use super::log;
use super::state::State;
use super::{FileError, FileService, OpenError};

impl<M: Medium> FileService<M> {
    /// Opens a volume to look at it: nothing is written, not even the checkpoint of a new life.
    /// Nothing may be changed through what is returned.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open_to_read(medium: M) -> Result<FileService<M>, OpenError> {
        let (superblock, state, log) = log::recover(&medium).await?;
        Ok(FileService::over(medium, superblock, state, log))
    }

    /// Checks the metadata.
    ///
    /// # Errors
    /// The medium's. What is wrong is in the report.
    pub async fn check(&self) -> Result<Report, FileError> {
        let _guard = self.changing.lock().await;
        let mut report = Report::default();
        let copies = log::superblocks(&self.medium).await?;
        for (copy, found) in copies.iter().enumerate() {
            match found {
                Ok(found) if *found == self.superblock => {}
                Ok(_) => report.find(format!("copy {copy} of the superblock is another's")),
                Err(_) => report.find(format!("copy {copy} of the superblock is damaged")),
            }
        }
        match log::recover(&self.medium).await {
            Ok((_, there, _)) => self.judge(&there, &mut report),
            Err(OpenError::Io(errno)) => return Err(FileError::Io(errno)),
            Err(error) => report.find(error.to_string()),
        }
        report.counts = self.counts();
        Ok(report)
    }

    fn judge(&self, there: &State, report: &mut Report) {
        let here = self.state();
        if !here.is_sound() {
            report.find("a segment has two files, or one and is free".to_owned());
        }
        let same = |a: &State, b: &State| {
            let (a, b): (Vec<Record>, Vec<Record>) = (a.records().collect(), b.records().collect());
            a == b
        };
        if !same(there, &here) {
            report.find("the metadata in memory is not that on the device".to_owned());
        }
        let (segment, len) = (self.superblock.segment, self.medium.len());
        for (id, file) in &there.files {
            let recorded = file.segments.get(..file.recorded).unwrap_or_default();
            let beyond = |at: &&u32| (u64::from(**at) + 1).saturating_mul(segment) > len;
            if let Some(at) = recorded.iter().find(beyond) {
                let name = String::from_utf8_lossy(&file.name);
                let text = format!(
                    "file {id} ({name}): its segment {at} ends behind the device's {len} bytes"
                );
                report.find(text);
            }
        }
    }

    fn counts(&self) -> Figures {
        let state = self.state();
        let free = u64::from(state.bitmap.free());
        vec![
            ("directories", state.directories.len() as u64),
            ("files", state.files.len() as u64),
            ("segments", u64::from(self.superblock.segments)),
            ("segments_used", u64::from(self.superblock.segments) - free),
        ]
    }
}
