//! The check of a file of pages that nobody serves: what an opening finds, and whether each page
//! has a whole version. Nothing is written.

use std::collections::BTreeMap;
use std::io;

use outboard_base::Errno;
use outboard_volume::Report;

use super::super::places::{self, HEADS, Headed, Layout, Newest, PAIR, PAIR64};
use super::super::wire::PAGE;
use super::open::{find, read_apart};
use crate::device::Device;

/// Checks the file, if there is one.
///
/// # Errors
/// Something cannot be read. What is wrong is in the report.
pub async fn check<D: Device>(device: Option<&D>) -> io::Result<Report> {
    let failed = |errno: Errno| io::Error::other(format!("the file of pages: {errno}"));
    let mut report = Report::default();
    let (mut pages, mut torn) = (0, 0);
    let size = device.map_or(Ok(0), Device::size).map_err(failed)?;
    if let Some(device) = device.filter(|_| size > 0) {
        let blocks = read_apart(device, 0, HEADS, places::BLOCK).await.map_err(failed)?;
        let layout = match places::headed(&blocks) {
            Headed::Pages(layout) => layout,
            Headed::Dense => Layout::behind(size),
            Headed::Nothing => Layout::NEW,
            Headed::Foreign => {
                report.find("the file of pages has no head that this program knows".to_owned());
                return Ok(report);
            }
        };
        let (slots, _) = find(device, layout).await.map_err(failed)?;
        // Where each page lies; one that a slot has is not where it was before.
        let dense = (1..layout.base / PAIR64).map(|pair| (pair - 1, pair * PAIR64));
        let mut all: BTreeMap<u64, u64> = dense.collect();
        all.extend(slots.pairs());
        for (page, at) in all {
            let pair = read_apart(device, at, PAIR, PAGE).await.map_err(failed)?;
            let (newest, is_torn) = places::newest(&pair, page);
            pages += u64::from(matches!(newest, Newest::Whole(..)));
            torn += u64::from(is_torn);
            if newest == Newest::Damaged {
                report.find(format!("page {page}: neither version is whole"));
            }
        }
    }
    report.counts = vec![("pages", pages), ("torn_versions", torn)];
    Ok(report)
}
