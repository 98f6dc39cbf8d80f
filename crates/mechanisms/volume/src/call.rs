//! What callers hand in and get back.

use outboard_base::{Cred, Errno, Ino, SessionId};
use outboard_medium::Lent;
use outboard_wire::file::Reply;

/// Who is calling. The caller of [`crate::Volume::handle`] vouches for every field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Names the link. Handles, holds, locks and replay records belong to it; two links never
    /// share one.
    pub attachment: SessionId,
    /// Its socket peer is root or the volume's owner: it may speak for others and use
    /// [`outboard_wire::file::Flags::CHECKED`].
    pub trusted: bool,
    /// Who its socket peer is. The limit of what an attachment that is not trusted may claim.
    pub peer: Cred,
    /// It keeps mtime and ctime of regular files itself and sends them: what it changes moves
    /// neither, if it is trusted.
    pub keeps_times: bool,
}

impl Caller {
    /// A process of root's.
    #[must_use]
    pub fn root(attachment: SessionId) -> Caller {
        Caller { attachment, trusted: true, peer: Cred::root(), keeps_times: false }
    }
}

/// Bytes beside a request or a reply.
#[derive(Debug, Default)]
pub enum Payload {
    /// None.
    #[default]
    None,
    /// In the buffer that the medium filled, which goes back to its lender when the payload is
    /// dropped.
    Lent(Lent),
    /// In a vector.
    Bytes(Vec<u8>),
}

impl Payload {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::None => &[],
            Payload::Lent(lent) => lent,
            Payload::Bytes(bytes) => bytes,
        }
    }
}

/// What an operation answers.
#[derive(Debug)]
pub struct Answer {
    /// The reply.
    pub reply: Reply,
    /// The bytes of a [`Reply::Data`].
    pub payload: Payload,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Answer {
        Answer { reply, payload: Payload::None }
    }
}

impl VolumeEvent {
    /// Whether it says that what an attachment was told holds no more.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self, VolumeEvent::StaleInode { .. } | VolumeEvent::StaleEntry { .. })
    }
}

/// Something an attachment must hear of; see [`crate::Volume::take_events`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeEvent {
    /// The wait for a lock is over.
    LockSettled {
        /// Who waited.
        attachment: SessionId,
        /// For what.
        ticket: u64,
        /// The lock is held, or why it never will be.
        result: Result<(), Errno>,
    },
    /// The locks of a file, which this attachment decides, are asked back.
    RecallLocks {
        /// Who decides them.
        attachment: SessionId,
        /// Of which file.
        ino: Ino,
    },
    /// Another attachment changed an inode this one has cached.
    StaleInode {
        /// Who may have it cached.
        attachment: SessionId,
        /// The inode.
        ino: Ino,
    },
    /// Another attachment changed what a name leads to, in a directory this one has cached.
    StaleEntry {
        /// Who may have it cached.
        attachment: SessionId,
        /// The directory.
        parent: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// What hosts have cached of a file is asked back, of all attachments:
    /// [`crate::Volume::recalled`] says when it is done.
    RecallPages {
        /// Of which file.
        ino: Ino,
        /// They may go on reading what they have; what they wrote is written back.
        keep_read: bool,
    },
}
