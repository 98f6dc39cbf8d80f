//! The layout in an attribute pair: how the bytes of a spread file lie, or of files made in a
//! directory, and on which nodes those of a file that was moved. Zero bytes where there is none.
//!
//! ```text
//! 0 the layout, whose bytes 16.. are zero    30 how many nodes u8    31 0    32 node u16 ...
//! ```

use outboard_base::{Errno, Result};
use outboard_wire::shared::FAN_MAX;
use outboard_wire::shared::call::Layout;

/// Encoded length, bytes.
pub(super) const LEN: usize = 64;
const COUNT: usize = 30;
const NODES: usize = 32;

/// The bytes; `EIO` if there are too many nodes.
pub(super) fn encode(layout: Option<&Layout>, members: &[u16]) -> Result<[u8; LEN]> {
    let mut bytes = layout.map_or([0; LEN], Layout::encode);
    if members.is_empty() {
        return Ok(bytes);
    }
    let (head, nodes) = bytes.split_at_mut(NODES);
    let count = head.get_mut(COUNT).ok_or(Errno::EIO)?;
    *count = u8::try_from(members.len()).map_err(|_| Errno::EIO)?;
    let (places, _) = nodes.as_chunks_mut();
    if members.len() > places.len() || layout.is_none() {
        return Err(Errno::EIO);
    }
    for (place, member) in places.iter_mut().zip(members) {
        *place = member.to_le_bytes();
    }
    Ok(bytes)
}

/// The reverse; `EUCLEAN` for anything else.
pub(super) fn decode(bytes: &[u8; LEN]) -> Result<(Option<Layout>, Vec<u16>)> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok((None, Vec::new()));
    }
    let mut bare = *bytes;
    let (head, nodes) = bare.split_at_mut(NODES);
    let count = head.get_mut(COUNT).map(std::mem::take).ok_or(Errno::EUCLEAN)?;
    let (places, _) = nodes.as_chunks_mut();
    let count = usize::from(count);
    if count > FAN_MAX.min(places.len()) {
        return Err(Errno::EUCLEAN);
    }
    let members = places.iter_mut().take(count).map(std::mem::take);
    let members = members.map(u16::from_le_bytes).collect();
    let layout = Layout::decode(&bare).map_err(|_| Errno::EUCLEAN)?;
    Ok((Some(layout), members))
}
