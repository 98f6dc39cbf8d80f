//! What all queues of a session share under one mutex: what its calls change, hold and wait for.

use std::collections::HashMap;

use outboard_base::{Cred, Errno, Fh, Ino, Result};
use outboard_wire::file::{Lock, LockKind, Reply};

use super::Lane;
use super::entry::Note;
use super::held::HeldState;
use super::lock_requests::LockRequests;
use super::ranges::Ranges;

/// Most decided waits whose `Waiting` was not read yet. Only a DPU side that makes tickets up gets
/// there.
const EARLY_MAX: usize = 4096;

/// A lock that is waited for. It holds no slot.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    /// The front-end's name for the call; `None` for a caller that was told the ticket.
    pub(super) tag: Option<u64>,
    /// The ticket it was last told; 0 for none.
    pub(super) ticket: u64,
    pub(super) ino: Ino,
    pub(super) fh: Fh,
    pub(super) lock: Lock,
    /// It waits for others' locks; if not, only for the end of a grace period.
    pub(super) wait: bool,
    pub(super) cred: Cred,
    pub(super) checked: bool,
}

#[derive(Debug, Default)]
pub(super) struct SharedState {
    pub(super) ranges: Ranges,
    pub(super) held: HeldState,
    pub(super) lock_requests: LockRequests,
    /// Waits, by ticket of the present instance of the DPU side.
    pub(super) parked: HashMap<u64, Parked>,
    /// Waits an earlier instance knew of, or that were ended for it: to be asked for again.
    pub(super) again: Vec<Parked>,
    /// Tickets of waits whose end may have been told in an event that was lost.
    pub(super) doubtful: Vec<u64>,
    /// Waits decided before their `Waiting` was read: the event overtook the completion.
    early: HashMap<u64, Option<Errno>>,
}

impl SharedState {
    /// What the answer to a lock request comes to; a lock that is granted is held from here on.
    pub(super) fn lock_answered(&mut self, note: &Note, outcome: Result<Reply>) -> Result<Reply> {
        let Note::Lock { ino, fh, lock, .. } = note else { return outcome };
        let outcome = match outcome {
            Ok(Reply::Waiting(ticket)) => match self.early.remove(&ticket) {
                Some(None) => Ok(Reply::Empty),
                Some(Some(errno)) => Err(errno),
                None => Ok(Reply::Waiting(ticket)),
            },
            Ok(Reply::Delegated) => {
                self.lock_requests.delegated(*ino);
                Ok(Reply::Empty)
            }
            outcome => outcome,
        };
        if outcome == Ok(Reply::Empty) && lock.kind != LockKind::Unlock {
            self.held.locked(*ino, *fh, *lock);
        }
        outcome
    }

    /// A wait was decided; who waited, if that is known yet.
    pub(super) fn decided(&mut self, ticket: u64, errno: Option<Errno>) -> Option<Parked> {
        let parked = self.parked.remove(&ticket);
        match &parked {
            Some(wait) if errno.is_none() => {
                self.held.locked(wait.ino, wait.fh, wait.lock);
            }
            Some(_) => {}
            None => {
                if self.early.len() >= EARLY_MAX {
                    self.early.clear();
                }
                self.early.insert(ticket, errno);
            }
        }
        parked
    }

    /// Events were lost. Waits whose caller was told the ticket are that caller's to ask for again.
    pub(super) fn events_lost(&mut self) {
        let mine = self.parked.iter().filter(|(_, parked)| parked.tag.is_some());
        self.doubtful = mine.map(|(&ticket, _)| ticket).collect();
        self.doubtful.sort_unstable();
    }

    /// The next wait in doubt that is still one, and who asked for it.
    pub(super) fn next_doubtful(&mut self) -> Option<(u64, Cred)> {
        while let Some(ticket) = self.doubtful.pop() {
            if let Some(parked) = self.parked.get(&ticket) {
                return Some((ticket, parked.cred.clone()));
            }
        }
        None
    }

    /// Whether a wait for a lock of `ino` has not ended yet, as far as is known here.
    pub(super) fn is_waited_for(&self, ino: Ino) -> bool {
        self.parked.values().chain(&self.again).any(|wait| wait.ino == ino)
    }

    /// The DPU side is lost: its tickets mean nothing any more. Calls that may go on, when it is
    /// back.
    pub(super) fn lost(&mut self) -> Vec<Lane> {
        self.early.clear();
        self.doubtful.clear();
        let mut parked: Vec<_> = self.parked.drain().collect();
        parked.sort_unstable_by_key(|(ticket, _)| *ticket);
        self.again.extend(parked.into_iter().map(|(_, parked)| parked));
        self.lock_requests.lost()
    }
}

#[cfg(test)]
mod tests {
    use outboard_wire::file::LockStyle;

    use super::super::entry::{Entry, Reader};
    use super::*;

    /// A caller that was told the ticket of its wait was told of the end of wait 0 after a loss,
    /// and waited for ever for its own.
    #[test]
    fn a_wait_is_known_by_its_ticket_after_a_loss() {
        let mut shared = SharedState::default();
        let style = LockStyle::Posix;
        let lock = Lock { owner: 1, start: 0, end: 9, kind: LockKind::Write, style, pid: 7 };
        let note = Note::Lock {
            ino: Ino(7),
            fh: Fh(1),
            lock,
            wait: true,
            cred: Cred::root(),
            checked: true,
        };
        let mut entry = Entry::new();
        (entry.reader, entry.note) = (Reader::Caller, note);
        shared.parked.insert(42, entry.park(42).unwrap());
        assert_eq!(shared.lost(), []);
        let again: Vec<_> = shared.again.iter().map(|wait| (wait.tag, wait.ticket)).collect();
        assert_eq!(again, [(None, 42)]);
    }
}
