//! Who asks, for what, when: what every operation gets.

use std::borrow::Cow;

use outboard_base::{Cred, Errno, Ino, Result, SessionId, Timestamp};
use outboard_wire::file::{Flags, Header, Op, Reply};

use crate::Caller;
use crate::layout::{Dates, ReplayRecord, key};

/// One request's surroundings.
pub(crate) struct Context<'a> {
    /// Which attachment: names handles, holds, locks and replay records.
    pub(crate) attachment: SessionId,
    /// The request's header. Its `cred` is the claim; [`Context::cred`] is what is believed.
    pub(crate) header: &'a Header,
    /// Which operation.
    pub(crate) op: Op,
    /// Whose permissions count.
    pub(crate) cred: Cow<'a, Cred>,
    /// The attachment may speak for others.
    pub(crate) trusted: bool,
    /// The user its process runs as.
    pub(crate) peer_uid: u32,
    /// The front-end has checked permissions, and may be believed.
    pub(crate) checked: bool,
    /// The front-end keeps the times of files.
    keeps_times: bool,
    /// The time of this request.
    pub(crate) now: Timestamp,
    /// What the name of a `Create` is to lead to, if that matters: an inode, or nothing.
    pub(crate) leads_to: Option<Option<Ino>>,
}

impl<'a> Context<'a> {
    /// Judges what the header claims: `EPERM` for speaking for somebody else without the right to,
    /// `EPROTO` for a sequence under another attachment's session.
    pub(crate) fn new(
        caller: &'a Caller,
        header: &'a Header,
        op: Op,
        now: Timestamp,
    ) -> Result<Context<'a>> {
        if header.sequence != 0 && header.session != caller.attachment {
            return Err(Errno::EPROTO);
        }
        Ok(Context {
            attachment: caller.attachment,
            header,
            op,
            cred: believed(caller, &header.cred)?,
            trusted: caller.trusted,
            peer_uid: caller.peer.uid,
            checked: caller.trusted && header.flags.has(Flags::CHECKED),
            keeps_times: caller.trusted && caller.keeps_times,
            now,
            leads_to: None,
        })
    }

    /// What a change of a file's data does to its times.
    pub(crate) fn dates(&self) -> Dates {
        if self.keeps_times { Dates::Stay } else { Dates::Now(self.now) }
    }

    /// The time of a change, of which `given` is what the front-end says.
    pub(crate) fn changed_at(&self, given: Option<Timestamp>) -> Timestamp {
        given.filter(|_| self.keeps_times).unwrap_or(self.now)
    }

    /// The pair that records `reply`, if this request has one.
    pub(crate) fn record(&self, reply: &Reply) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let Some(key) = self.replay_key() else { return Ok(None) };
        let sequence = self.header.sequence;
        let record = ReplayRecord { sequence, op: self.op, reply: reply.clone() };
        Ok(Some((key, record.encode()?)))
    }

    /// Where this request's replay record lies, if it has one.
    pub(crate) fn replay_key(&self) -> Option<Vec<u8>> {
        (self.header.sequence != 0).then(|| key::replay(self.attachment, self.header.lane))
    }
}

/// A peer that may not speak for others speaks for itself, in any group it is in.
fn believed<'a>(caller: &'a Caller, claim: &'a Cred) -> Result<Cow<'a, Cred>> {
    if caller.trusted {
        return Ok(Cow::Borrowed(claim));
    }
    let peer = &caller.peer;
    let groups_held = claim.groups.iter().all(|&group| peer.in_group(group));
    if claim.uid != peer.uid || !peer.in_group(claim.gid) || !groups_held {
        return Err(Errno::EPERM);
    }
    let mut groups = peer.groups.clone();
    groups.push(peer.gid);
    Ok(Cow::Owned(Cred { uid: peer.uid, gid: claim.gid, pid: claim.pid, groups }))
}
