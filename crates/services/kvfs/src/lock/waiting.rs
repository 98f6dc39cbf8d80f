//! Waits, oldest first, and the search for circles among them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use outboard_base::{Ino, SessionId};
use outboard_wire::file::LockStyle;

use super::Owner;
use super::ranges::Held;

/// One wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) ino: Ino,
    pub(super) style: LockStyle,
    pub(super) wanted: Held,
    /// It waits for others' locks. If not, only to learn at the end of grace whether there are any.
    pub(super) patient: bool,
}

/// Every wait of the volume. Tickets grow, so their order is the order of arrival.
pub(super) struct Queue {
    waiters: BTreeMap<u64, Waiter>,
    by_inode: BTreeSet<(Ino, u64)>,
    by_owner: BTreeSet<(Owner, u64)>,
    next_ticket: u64,
}

impl Queue {
    pub(super) fn new(first_ticket: u64) -> Queue {
        Queue {
            waiters: BTreeMap::new(),
            by_inode: BTreeSet::new(),
            by_owner: BTreeSet::new(),
            next_ticket: first_ticket.max(1), // 0 is no ticket.
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn push(&mut self, ino: Ino, style: LockStyle, wanted: Held, patient: bool) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiters.insert(ticket, Waiter { ticket, ino, style, wanted, patient });
        self.by_inode.insert((ino, ticket));
        self.by_owner.insert((wanted.owner, ticket));
        ticket
    }

    fn get(&self, ticket: u64) -> Option<Waiter> {
        self.waiters.get(&ticket).copied()
    }

    /// Ends a wait, if it is one of this attachment's.
    pub(super) fn remove(&mut self, session: SessionId, ticket: u64) -> Option<Waiter> {
        let waiter = self.get(ticket).filter(|w| w.wanted.owner.session == session)?;
        self.waiters.remove(&ticket);
        self.by_inode.remove(&(waiter.ino, ticket));
        self.by_owner.remove(&(waiter.wanted.owner, ticket));
        Some(waiter)
    }

    /// Ends every wait of a session; how many.
    pub(super) fn remove_session(&mut self, session: SessionId) -> usize {
        let first = (Owner { session, owner: 0 }, 0);
        let last = (Owner { session, owner: u64::MAX }, u64::MAX);
        let tickets: Vec<u64> = self.by_owner.range(first..=last).map(|&(_, t)| t).collect();
        for ticket in &tickets {
            self.remove(session, *ticket);
        }
        tickets.len()
    }

    /// The waits on a file, oldest first.
    pub(super) fn of_inode(&self, ino: Ino) -> Vec<Waiter> {
        let tickets = self.by_inode.range((ino, 0)..=(ino, u64::MAX));
        tickets.filter_map(|&(_, ticket)| self.get(ticket)).collect()
    }

    /// Whether anybody waits on a file.
    pub(super) fn is_waited_for(&self, ino: Ino) -> bool {
        self.by_inode.range((ino, 0)..=(ino, u64::MAX)).next().is_some()
    }

    /// Files waited on.
    pub(super) fn inodes(&self) -> Vec<Ino> {
        let mut inodes: Vec<Ino> = self.by_inode.iter().map(|&(ino, _)| ino).collect();
        inodes.dedup();
        inodes
    }

    /// Whether one of `from`, by the POSIX locks it waits for, and so on, waits for `target`. Each
    /// owner is looked at once.
    pub(super) fn reaches(
        &self,
        from: Vec<Owner>,
        target: Owner,
        blockers: impl Fn(Ino, &Held) -> Vec<Owner>,
    ) -> bool {
        let mut seen: HashSet<Owner> = HashSet::new();
        let mut next = from;
        while let Some(owner) = next.pop() {
            if owner == target {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for (_, ticket) in self.by_owner.range((owner, 0)..=(owner, u64::MAX)) {
                if let Some(waiter) = self.waiters.get(ticket)
                    && waiter.style == LockStyle::Posix
                    && waiter.patient
                {
                    next.extend(blockers(waiter.ino, &waiter.wanted));
                }
            }
        }
        false
    }
}
