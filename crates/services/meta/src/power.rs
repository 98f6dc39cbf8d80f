//! A loss of the server's power, which may take the last commits of its store: those that nobody
//! synced.
//!
//! ```text
//! note "boot"      value: the number of the boot, u64, little-endian
//! ```

use outboard_base::Result;
use outboard_kv::Kv;
use outboard_kvfs::Kvfs;
use outboard_medium::Medium;

const NOTE: &[u8] = b"boot";

/// Whether power may have been lost since the volume was served last.
pub(crate) async fn was_lost<K: Kv, M: Medium>(kvfs: &Kvfs<K, M>, boot: u64) -> Result<bool> {
    let known = kvfs.notes(NOTE, None).await?;
    let known = known.first().map(|(_, value)| value.as_slice());
    Ok(known != Some(boot.to_le_bytes().as_slice()))
}

/// What that has to lead to is done: the volume is served in this boot.
pub(crate) async fn note<K: Kv, M: Medium>(kvfs: &Kvfs<K, M>, boot: u64) -> Result<()> {
    kvfs.note(NOTE, Some(&boot.to_le_bytes())).await
}
