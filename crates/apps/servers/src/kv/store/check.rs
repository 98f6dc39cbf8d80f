//! The check of a store that nobody serves: its log and its journal, read as an opening reads them,
//! and every record of every page that counts. Nothing is written.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Instant;

use outboard_volume::Report;

use super::super::journal::{Journal, Kind, Met};
use super::super::lots::{Lots, count_of};
use super::open::{Said, Scan, find_pages, read_head};
use crate::device::Device;

/// Checks what lies in `dir` and, if there is one, in the file of the log.
///
/// # Errors
/// Something cannot be read. What is wrong is in the report.
pub async fn check<D: Device>(device: Option<&D>, dir: &Path) -> io::Result<Report> {
    let mut report = Report::default();
    let journaled = Journal::first_page(dir)?;
    let (mut puts, mut others) = (0, 0);
    Journal::replay(dir, |met| {
        match met {
            Met::Entry(Kind::Put, ..) => puts += 1,
            Met::Entry(..) => others += 1,
            Met::File(_) => {}
        }
        Ok(())
    })?;
    let (mut pages, mut records) = (0, 0);
    if let Some(device) = device {
        match check_log(device, dir, journaled, &mut report).await {
            Ok(counted) => (pages, records) = counted,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                report.find(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    report.counts = vec![
        ("journal_files", Journal::count(dir)? as u64),
        ("journal_values", puts),
        ("journal_deletions", others),
        ("pages", pages),
        ("records", records),
    ];
    Ok(report)
}

/// The pages that count, and their records.
async fn check_log<D: Device>(
    device: &D,
    dir: &Path,
    journaled: Option<u64>,
    report: &mut Report,
) -> io::Result<(u64, u64)> {
    let Some(head) = read_head(device, journaled.is_none()).await? else { return Ok((0, 0)) };
    let mut said = Said(Instant::now());
    let found = find_pages(device, &Lots::new(count_of(device.size()?)), &mut said).await?;
    if journaled.is_none() && !found.is_empty() {
        report.find(format!("{} holds no journal of the log", dir.display()));
    }
    let scan = Scan { device, found: &found, loaded: BTreeMap::new(), seed: 0 };
    let (mut pages, mut records) = (0, 0);
    for number in head.begin..journaled.unwrap_or(0).max(head.begin) {
        match scan.read(number).await {
            Ok(extract) => {
                pages += 1;
                records += extract.entries.len() as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                report.find(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok((pages, records))
}
