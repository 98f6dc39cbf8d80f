//! What a session remembers of a call until it is answered: enough to send it again.

use outboard_base::{Cred, Errno, Fh, Ino, Result, limits};
use outboard_link::queue::CommandId;
use outboard_wire::file::{Attr, Flags, Header, Lock, Op, Reply, Request, Statfs};

use super::Call;
use super::held::Handle;
use super::locking::{Locking, whole};
use super::ranges::Span;
use super::shared::Parked;

/// Bytes of a lock as a reply header.
const LOCK_LEN: u16 = 32;
const ATTR_LEN: u16 = 128;
const STATFS_LEN: u16 = 64;
const _: () = assert!(ATTR_LEN as usize == Attr::LEN && STATFS_LEN as usize == Statfs::LEN);

/// Where a call stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The slot is free, or in the front-end's hands.
    Idle,
    /// Another call changes bytes this one changes too; it goes when that one is answered.
    Held,
    /// Sent and unanswered, or to be sent when the DPU side is back.
    Pending,
    /// Answered, and the caller has not looked yet.
    Answered(Result<Reply>),
}

/// Who wants the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// [`super::Front::complete`], or the owner of the port if it comes while it spins.
    Front,
    /// A thread that waits in [`super::QueuePort::call`].
    Caller,
    /// The session itself: the end of the wait for a lock is being asked for.
    Cancel {
        /// The ticket of the wait.
        ticket: u64,
    },
    /// The session itself: the wait for a lock is ended, to be asked for anew.
    Renew {
        /// The ticket of the wait.
        ticket: u64,
    },
    /// The session itself: it hands back the locks of a file.
    Return {
        /// Which file's.
        ino: Ino,
        /// When they were to be handed back
        /// ([`super::lock_requests::LockRequests::is_of_this_life`]).
        life: u64,
    },
    /// Nobody: the session told the DPU side something.
    Nobody,
}

/// What an answer changes in what the session holds.
#[derive(Clone, Debug, Default)]
pub(super) enum Note {
    /// Nothing.
    #[default]
    None,
    /// A handle on this inode (`None`: the one in the reply).
    Open { ino: Option<Ino>, flags: u32, directory: bool },
    /// A lock, and who asked for it.
    Lock { ino: Ino, fh: Fh, lock: Lock, wait: bool, cred: Cred, checked: bool },
}

impl Note {
    fn of(call: &Call<'_>) -> Note {
        match *call.request {
            Request::Open { ino, flags } => Note::Open { ino: Some(ino), flags, directory: false },
            Request::Opendir { ino } => Note::Open { ino: Some(ino), flags: 0, directory: true },
            Request::Create { flags, .. } | Request::Tmpfile { flags, .. } => {
                Note::Open { ino: None, flags, directory: false }
            }
            Request::Setlk { ino, fh, lock, wait, .. } => {
                let (cred, checked) = (call.cred.clone(), call.checked);
                Note::Lock { ino, fh, lock: whole(lock), wait, cred, checked }
            }
            _ => Note::None,
        }
    }

    /// The handle a reply opened.
    pub(super) fn handle(&self, reply: &Reply) -> Option<(Fh, Handle)> {
        let &Note::Open { ino, flags, directory } = self else { return None };
        match (reply, ino) {
            (Reply::Opened(fh), Some(ino)) => Some((*fh, Handle { ino, flags, directory })),
            (Reply::Created(attr, fh), _) => {
                Some((*fh, Handle { ino: attr.ino, flags, directory }))
            }
            _ => None,
        }
    }
}

/// A call in its slot. One for each slot, reused, so that starting a call allocates nothing.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    /// Calls are numbered as they start: the order in which they are sent again.
    pub(super) order: u64,
    /// How often events had been lost when it was taken in.
    pub(super) overflows: u64,
    pub(super) tag: u64,
    pub(super) op: Op,
    /// The encoded request header: the DPU side cannot reach this copy.
    pub(super) header: Vec<u8>,
    pub(super) payload_len: u32,
    pub(super) read_len: u32,
    pub(super) span: Option<Span>,
    pub(super) note: Note,
    /// What it asks about locks.
    pub(super) locking: Option<Locking>,
    pub(super) reader: Reader,
    /// The command as it was last sent; an instance of the DPU side may have executed it.
    pub(super) sent: Option<CommandId>,
    /// It was sent to an earlier instance too.
    pub(super) replayed: bool,
    /// Its front-end gave it up.
    pub(super) aborted: bool,
}

impl Entry {
    pub(super) fn new() -> Entry {
        Entry {
            state: State::Idle,
            order: 0,
            overflows: 0,
            tag: 0,
            op: Op::Noop,
            header: Vec::new(),
            payload_len: 0,
            read_len: 0,
            span: None,
            note: Note::None,
            locking: None,
            reader: Reader::Front,
            sent: None,
            replayed: false,
            aborted: false,
        }
    }

    /// Takes a call in; the caller sets state, order and reader. `EINVAL` and `ENAMETOOLONG` for a
    /// request that cannot be encoded or lengths beyond the limits.
    pub(super) fn load(
        &mut self,
        call: &Call<'_>,
        header: &Header,
        span: Option<Span>,
    ) -> Result<()> {
        let read_len = read_len(call.request);
        if call.payload_len > limits::IO_MAX || read_len as usize > limits::IO_MAX {
            return Err(Errno::EINVAL);
        }
        self.header.resize(call.request.encoded_len(header), 0);
        call.request.encode(header, &mut self.header)?;
        self.op = call.request.op();
        self.payload_len = u32::try_from(call.payload_len).map_err(|_| Errno::EINVAL)?;
        self.read_len = read_len;
        self.span = span;
        self.note = Note::of(call);
        self.locking = Locking::of(call.request);
        self.sent = None;
        self.replayed = false;
        self.aborted = false;
        Ok(())
    }

    /// The wait this call asks for, if it asks for a lock, under the ticket it was told.
    pub(super) fn park(&mut self, ticket: u64) -> Option<Parked> {
        let tag = (self.reader == Reader::Front).then_some(self.tag);
        match std::mem::take(&mut self.note) {
            Note::Lock { ino, fh, lock, wait, cred, checked } => {
                Some(Parked { tag, ticket, ino, fh, lock, wait, cred, checked })
            }
            _ => None,
        }
    }

    /// Marks the request as one an earlier instance may have executed.
    pub(super) fn mark_replay(&mut self) -> Result<()> {
        self.change_flags(|flags| flags.with(Flags::REPLAY))?;
        self.replayed = true;
        Ok(())
    }

    /// The DPU side must not give the locks of the file away in answer.
    pub(super) fn not_delegable(&mut self) -> Result<()> {
        self.change_flags(|flags| flags.without(Flags::DELEGABLE))
    }

    fn change_flags(&mut self, change: impl FnOnce(Flags) -> Flags) -> Result<()> {
        let (mut header, request) = Request::decode(&self.header)?;
        header.flags = change(header.flags);
        let mut bytes = vec![0; request.encoded_len(&header)];
        request.encode(&header, &mut bytes)?;
        self.header = bytes;
        Ok(())
    }

    /// Room for a reply header, bytes.
    pub(super) fn reply_room(&self) -> u16 {
        match self.op {
            Op::Lookup
            | Op::Symlink
            | Op::Mknod
            | Op::Mkdir
            | Op::Link
            | Op::Getattr
            | Op::Setattr
            | Op::Create
            | Op::Tmpfile
            | Op::Rename => ATTR_LEN,
            Op::Unlink => 2 * ATTR_LEN,
            Op::Statfs => STATFS_LEN,
            Op::Getlk => LOCK_LEN,
            _ => 0,
        }
    }

    /// Whether an answer claims more than there was room or data for.
    pub(super) fn exceeds(&self, reply: &Reply) -> bool {
        match reply {
            Reply::Data(len) => *len > self.read_len,
            Reply::Written(len) => self.op == Op::Write && *len > self.payload_len,
            _ => false,
        }
    }
}

/// Most payload bytes the answer to a request can have.
fn read_len(request: &Request<'_>) -> u32 {
    const LINK_LEN: u32 = 4095;
    const _: () = assert!(LINK_LEN as usize == limits::SYMLINK_MAX);
    match *request {
        Request::Read { len, .. }
        | Request::Readdir { len, .. }
        | Request::Getxattr { len, .. }
        | Request::Listxattr { len, .. } => len,
        Request::Readlink { .. } => LINK_LEN,
        _ => 0,
    }
}
