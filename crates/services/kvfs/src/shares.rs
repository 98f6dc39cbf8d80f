//! Who may have how many handles: nobody takes them all.
//!
//! Root and the volume's owner may open what the volume can. A user has a share of that, and so has
//! an attachment that speaks for its own user alone; all users together leave a reserve, so that
//! who looks after the volume can always open something.

use std::collections::HashMap;

use outboard_base::{Errno, Result, SessionId};

use crate::Options;
use crate::context::Context;
use crate::handles::uncount;

/// Of all handles one in so many is kept for root and the volume's owner.
const RESERVE: usize = 8;

/// Who takes a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taker {
    pub(crate) attachment: SessionId,
    /// Whose share it is; root and the owner need none.
    user: Option<u32>,
    /// The attachment speaks for its user alone.
    alone: bool,
}

impl Taker {
    pub(crate) fn of(cx: &Context<'_>) -> Taker {
        let owns = cx.cred.is_root() || (cx.trusted && cx.cred.uid == cx.peer_uid);
        let user = (!owns).then_some(cx.cred.uid);
        Taker { attachment: cx.attachment, user, alone: !cx.trusted }
    }

    /// One that needs no share.
    #[cfg(test)]
    pub(crate) fn unbounded(attachment: SessionId) -> Taker {
        Taker { attachment, user: None, alone: false }
    }
}

/// What is taken of the volume's handles.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    user_most: usize,
    attachment_most: usize,
    taken: usize,
    /// Of users: all but root and the owner.
    others: usize,
    users: HashMap<u32, usize>,
    attachments: HashMap<SessionId, usize>,
    refused: u64,
}

impl Shares {
    pub(crate) fn new(options: &Options) -> Shares {
        Shares {
            most: options.handles_max,
            user_most: options.handles_user_max,
            attachment_most: options.handles_attachment_max,
            taken: 0,
            others: 0,
            users: HashMap::new(),
            attachments: HashMap::new(),
            refused: 0,
        }
    }

    /// Takes one. `EMFILE` beyond the attachment's share, `ENFILE` beyond its user's or the
    /// volume's.
    pub(crate) fn take(&mut self, taker: Taker) -> Result<()> {
        let judged = self.judge(taker);
        if judged.is_err() {
            self.refused += 1;
            return judged;
        }
        self.taken += 1;
        if let Some(user) = taker.user {
            self.others += 1;
            *self.users.entry(user).or_default() += 1;
        }
        if taker.alone {
            *self.attachments.entry(taker.attachment).or_default() += 1;
        }
        Ok(())
    }

    fn judge(&self, taker: Taker) -> Result<()> {
        let count = self.attachments.get(&taker.attachment).copied().unwrap_or(0);
        if taker.alone && count >= self.attachment_most {
            return Err(Errno::EMFILE);
        }
        let beyond = taker.user.is_some_and(|user| {
            let own = self.users.get(&user).copied().unwrap_or(0);
            own >= self.user_most || self.others >= self.most - self.most / RESERVE
        });
        if beyond || self.taken >= self.most { Err(Errno::ENFILE) } else { Ok(()) }
    }

    /// Gives one back.
    pub(crate) fn give_back(&mut self, taker: Taker) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(user) = taker.user {
            self.others = self.others.saturating_sub(1);
            uncount(&mut self.users, user);
        }
        if taker.alone {
            uncount(&mut self.attachments, taker.attachment);
        }
    }

    /// Handles that are open, the most of one user, and how often one was refused.
    pub(crate) fn figures(&self) -> (u64, u64, u64) {
        let most = self.users.values().copied().max().unwrap_or(0);
        (self.taken as u64, most as u64, self.refused)
    }
}
