//! Replay: a request that may not be done twice is answered from its record (decision 0003).

use outboard_base::{Errno, Fh, Result};
use outboard_kv::{Kv, KvError};
use outboard_medium::Medium;
use outboard_wire::file::{Flags, Op, Reply, Request};

use crate::context::Context;
use crate::handles::Handle;
use crate::layout::ReplayRecord;
use crate::shares::Taker;
use crate::{Answer, Kvfs};

impl<K: Kv, M: Medium> Kvfs<K, M> {
    /// The recorded reply to this very request, if it is a replay and its effect is in the store.
    pub(crate) async fn recorded(&self, context: &Context<'_>) -> Result<Option<Reply>> {
        let Some(key) = context.replay_key().filter(|_| context.header.flags.has(Flags::REPLAY))
        else {
            return Ok(None);
        };
        let Some(value) = self.kv.get(&key).await.map_err(KvError::errno)? else {
            return Ok(None);
        };
        let record = ReplayRecord::decode(&value)?;
        if record.sequence != context.header.sequence {
            return Ok(None);
        }
        if record.op == context.op { Ok(Some(record.reply)) } else { Err(Errno::EPROTO) }
    }

    /// Answers from the record. Handles do not outlive an instance: what had opened, opens again.
    pub(crate) async fn answer_again(
        &self,
        context: &Context<'_>,
        request: &Request<'_>,
        reply: Reply,
    ) -> Result<Answer> {
        let attachment = context.attachment;
        let reopen = async |ino, flags| -> Result<Fh> {
            let handle = Handle { ino, flags, directory: false };
            let opening = self.handles.open(Taker::of(context), handle)?;
            let inode = self.inode(ino).await?;
            if !context.trusted {
                // The record says what was opened, but not how; and the request may say anything.
                self.may_reopen(context, &inode, flags).await?;
            }
            Ok(opening.keep())
        };
        Ok(match (reply, request) {
            (
                Reply::Created(attr, _),
                Request::Create { flags, .. } | Request::Tmpfile { flags, .. },
            ) => {
                let fh = reopen(attr.ino, *flags).await?;
                self.handles.add_interest(attachment, attr.ino);
                Reply::Created(attr, fh)
            }
            (Reply::Opened(_), &Request::Open { ino, .. }) if !self.may_name(context, ino) => {
                return Err(Errno::ESTALE);
            }
            (Reply::Opened(_), &Request::Open { ino, flags }) => {
                Reply::Opened(reopen(ino, flags).await?)
            }
            (Reply::Entry(attr), _) => {
                self.handles.add_interest(attachment, attr.ino);
                Reply::Entry(attr)
            }
            (reply @ Reply::Written(_), &Request::Write { ino, fh, flags, .. }) => {
                // What it had written may never have been synced. A handle that was being closed
                // meanwhile says nothing any more.
                match self.handles.get(attachment, fh, ino) {
                    Ok(handle) => self.sync_written(handle, flags).await?,
                    Err(_) => self.sync().await?,
                }
                reply
            }
            (reply, _) => {
                debug_assert!(!matches!(context.op, Op::Create | Op::Open | Op::Tmpfile));
                reply
            }
        }
        .into())
    }
}
