//! Notes: pairs that whoever serves the volume keeps in it, beside the files. A note is there, with
//! the value it was given last, or not; files and requests know nothing of them.

use outboard_base::{Errno, Result};
use outboard_kv::{Kv, KvError};
use outboard_medium::Medium;

use crate::Kvfs;
use crate::layout::key;
use crate::txn::Tried;

/// Longest name, bytes.
const NAME_MAX: usize = 255;
/// Longest value, bytes.
const VALUE_MAX: usize = 4096;
/// Most notes in one answer.
const MOST: usize = 1024;

/// Whether a note may have this name and value.
pub(crate) fn is_fit(name: &[u8], value: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && value.len() <= VALUE_MAX
}

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Writes a note, durably, or takes it away, which a power loss may undo. `EINVAL` for a name
    /// of nothing or more than 255 bytes, or a value of more than 4096.
    pub async fn note(&self, name: &[u8], value: Option<&[u8]>) -> Result<()> {
        if !is_fit(name, value.unwrap_or_default()) {
            return Err(Errno::EINVAL);
        }
        self.transact(async |txn| -> Tried<()> {
            match value {
                Some(value) => txn.put(key::note(name), value),
                None => {
                    txn.essential();
                    txn.delete(key::note(name));
                }
            }
            Ok(())
        })
        .await?;
        if value.is_some() { self.sync().await } else { Ok(()) }
    }

    /// Notes whose names begin with `prefix` and are behind `after`, in order: some of them, with
    /// their whole names; none: there are no more.
    pub async fn notes(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let after = after.map(key::note);
        let found = self.kv.scan(&key::note(prefix), after.as_deref(), MOST).await;
        let found = found.map_err(KvError::errno)?;
        let note = |(key, value): (outboard_kv::Key, outboard_kv::Value)| {
            (key.get(1..).unwrap_or_default().to_vec(), value.to_vec())
        };
        Ok(found.into_iter().map(note).collect())
    }
}
