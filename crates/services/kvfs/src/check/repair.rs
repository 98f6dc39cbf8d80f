//! Setting right what can be set right without losing anything.

use outboard_base::{Ino, Result};
use outboard_kv::object::{ObjectId, Progress};
use outboard_kv::{Kv, KvError};
use outboard_medium::Medium;

use super::{Report, Severity, What};
use crate::Kvfs;
use crate::txn::Tried;

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// Counts of blocks are counted anew; pairs and objects that belong to no inode go. Not if
    /// anything worse was found: what nobody owns may be all that is left of something.
    pub(super) async fn repair(&self, report: &mut Report) -> Result<()> {
        if report.findings.iter().any(|finding| finding.severity() != Severity::Untidy) {
            return Ok(());
        }
        for finding in &mut report.findings {
            match (finding.what, &finding.key) {
                (What::WrongBlockCount, _) => {
                    let _guard = self.range_locks.exclusive(finding.ino).await;
                    self.recount(&[ObjectId(finding.ino.0)]).await?;
                }
                (What::OwnerlessPair, Some(key)) => {
                    self.transact(async |txn| -> Tried<()> {
                        txn.essential();
                        txn.delete(key);
                        Ok(())
                    })
                    .await?;
                }
                (What::OwnerlessObject, _) => self.drop_object(finding.ino).await?,
                _ => continue,
            }
            finding.repaired = true;
        }
        self.objects.sync().await.map_err(KvError::errno)
    }

    async fn drop_object(&self, ino: Ino) -> Result<()> {
        let _guard = self.range_locks.exclusive(ino).await;
        loop {
            let progress = self
                .transact(async |txn| -> Tried<Progress> {
                    txn.essential();
                    let id = ObjectId(ino.0);
                    let (staged, progress) =
                        self.objects.punch(id, 0, u64::MAX, txn.batch()).await?;
                    txn.stage(staged);
                    Ok(progress)
                })
                .await?;
            if progress == Progress::Done {
                return Ok(());
            }
        }
    }
}
