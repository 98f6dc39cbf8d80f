//! A volume on a device that has become longer: more segments of the same length.
//!
//! Only the superblock says how many segments there are, so that growing is writing it anew: the
//! second copy first, flushed, then the first. Whoever opens takes the first that is whole: the old
//! number or the new one, and no file has one of the new segments before both copies say them. The
//! length of a segment stays, and with it the room for metadata: beyond what fits there for
//! certain, growing is refused.

use outboard_medium::{Buf, Medium};

use super::format::{BLOCK, HALVES_AT, Superblock};
use super::{FileService, OpenError, log};

/// Bytes of records that a segment may cost at worst, when each is a run of its own, and its share
/// of what a record has besides.
const SEGMENT_COST: u64 = 9;
/// Blocks of a half that are left to names and the log.
const SPARE: u64 = 16;

/// Most segments whose metadata fits segment 0 in any order they can have.
fn segments_max(segment: u64) -> u64 {
    let half = (segment / BLOCK as u64 - HALVES_AT) / 2;
    half.saturating_sub(SPARE) * BLOCK as u64 / SEGMENT_COST
}

impl<M: Medium> FileService<M> {
    /// Makes the volume on `medium` one for `capacity` bytes before it is opened. Its bytes before,
    /// and now.
    ///
    /// # Errors
    /// [`OpenError::Smaller`], [`OpenError::TooLarge`]: nothing was changed. Those of opening.
    pub async fn grow(medium: &M, capacity: u64) -> Result<(u64, u64), OpenError> {
        let old = log::superblock(medium).await?;
        let bytes = |segments: u32| u64::from(segments) * old.segment;
        let before = bytes(old.segments);
        let wanted = (capacity / old.segment).max(2);
        if wanted < u64::from(old.segments) {
            return Err(OpenError::Smaller { has: before });
        }
        let most = segments_max(old.segment).max(u64::from(old.segments));
        let segments = u32::try_from(wanted).ok().filter(|_| wanted <= most);
        let too_large = OpenError::TooLarge { most: most.saturating_mul(old.segment) };
        let segments = segments.ok_or(too_large)?;
        let new = Superblock { segments, ..old };
        // A copy that an earlier try left behind, or that is damaged, is mended with it.
        if log::superblocks(medium).await?.iter().any(|copy| *copy != Ok(new)) {
            for copy in (0..HALVES_AT).rev() {
                let mut block = Buf::zeroed(BLOCK);
                new.emit(&mut block);
                medium.write(copy * BLOCK as u64, block).await.0?;
                medium.flush().await?;
            }
        }
        Ok((before, bytes(segments)))
    }
}
