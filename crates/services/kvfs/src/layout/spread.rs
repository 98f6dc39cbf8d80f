//! The layout in an attribute pair: how the bytes of a spread file lie, or of files made in a
//! directory. Zero bytes where there is none.

use outboard_base::{Errno, Result};
use outboard_wire::shared::Strategy;
use outboard_wire::shared::call::Layout;

use super::bytes::{array, put, u32_at};

/// Encoded length, bytes.
pub(super) const LEN: usize = 64;
const VERSION: u8 = 1;

/// The bytes, as `wire::shared::call` draws them.
pub(super) fn encode(layout: Option<&Layout>) -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    if let Some(layout) = layout {
        let head = [VERSION, layout.strategy as u8, layout.k, layout.m, layout.width];
        put(&mut bytes, 0, &head)?;
        put(&mut bytes, 8, &layout.strip.to_le_bytes())?;
        put(&mut bytes, 12, &layout.group.to_le_bytes())?;
    }
    Ok(bytes)
}

/// The reverse; `EUCLEAN` for anything else.
pub(super) fn decode(bytes: &[u8]) -> Result<Option<Layout>> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let [_, strategy, k, m, width] = array(bytes, 0)?;
    let strategy = Strategy::ALL.into_iter().find(|known| *known as u8 == strategy);
    let layout = Layout {
        strategy: strategy.ok_or(Errno::EUCLEAN)?,
        k,
        m,
        width,
        strip: u32_at(bytes, 8)?,
        group: u32_at(bytes, 12)?,
    };
    if encode(Some(&layout))? != bytes {
        return Err(Errno::EUCLEAN);
    }
    Ok(Some(layout))
}
