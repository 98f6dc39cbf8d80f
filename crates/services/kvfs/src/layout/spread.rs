//! The layout in an attribute pair: how the bytes of a spread file lie, or of files made in a
//! directory. Zero bytes where there is none.

use outboard_base::{Errno, Result};
use outboard_wire::shared::call::Layout;

/// Encoded length, bytes.
pub(super) const LEN: usize = 64;

/// The bytes.
pub(super) fn encode(layout: Option<&Layout>) -> [u8; LEN] {
    layout.map_or([0; LEN], Layout::encode)
}

/// The reverse; `EUCLEAN` for anything else.
pub(super) fn decode(bytes: &[u8; LEN]) -> Result<Option<Layout>> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    Layout::decode(bytes).map(Some).map_err(|_| Errno::EUCLEAN)
}
