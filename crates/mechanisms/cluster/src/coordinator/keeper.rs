//! What a coordinator's process answers: calls of the cluster's parts, by a table whose changes are
//! durable before they are answered.
//!
//! There are few: parts that come and go. Beats change nothing that is kept; what is found at a
//! start has a whole term before it.

use std::cell::RefCell;
use std::time::Duration;

use outboard_base::{Errno, Result, Time};
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{self, Call, Reply};

use super::Table;

/// How long a session goes on after a beat.
pub const TERM: Duration = Duration::from_secs(6);

/// Where a table outlives the process that has it.
pub trait Shelf {
    /// Keeps a table in place of the one before, durably.
    ///
    /// # Errors
    /// It is not known whether it is kept. The shelf says why where that is noted.
    fn keep(&self, table: &Table) -> Result<()>;
}

/// A table on its shelf.
pub struct Keeper<S> {
    table: RefCell<Table>,
    shelf: S,
}

impl<S: Shelf> Keeper<S> {
    /// Of what a shelf has kept.
    pub fn new(table: Table, shelf: S) -> Keeper<S> {
        Keeper { table: RefCell::new(table), shelf }
    }

    /// Replies to a call of another part: those of the cluster are answered.
    pub fn call(&self, from: Peer, call: Call, now: Time) -> Reply {
        match (from, call) {
            (_, Call::Status) => Reply::Text(self.status()),
            (Peer::Server(_) | Peer::Node(_), call) => {
                self.answer(call, now).unwrap_or_else(Reply::Failed)
            }
            _ => Reply::Failed(Errno::EPERM),
        }
    }

    /// Sessions that nobody kept up are over; whether something went with them.
    pub fn tend(&self, now: Time) -> bool {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return false;
        }
        let went = self.table.borrow_mut().expire(now);
        if went {
            // What is found at the next start has a term before it: nothing is lost by what was
            // kept before.
            let _is_kept = self.shelf.keep(&self.table.borrow());
        }
        went
    }

    /// When the next session is over, if nobody keeps it up.
    pub fn deadline(&self) -> Option<Time> {
        self.table.borrow().deadline()
    }

    /// Makes a change durable, then does it.
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> Result<T>) -> Result<T> {
        let mut next = self.table.borrow().clone();
        let done = change(&mut next)?;
        self.shelf.keep(&next)?;
        *self.table.borrow_mut() = next;
        Ok(done)
    }

    fn answer(&self, call: Call, now: Time) -> Result<Reply> {
        Ok(match call {
            Call::Beat { session: 0 } => Reply::Number(self.change(|table| table.beat(0, now))?),
            Call::Beat { session } => Reply::Number(self.table.borrow_mut().beat(session, now)?),
            Call::List { prefix } => {
                // Nobody sees what an ended session had put there.
                self.table.borrow_mut().expire(now);
                let all = self.table.borrow().list(&prefix).into_iter();
                let entry = |one: super::Entry| call::Entry {
                    name: one.name,
                    value: one.value,
                    version: one.version,
                    session: u64::from(one.passes),
                };
                Reply::Entries(all.map(entry).collect())
            }
            Call::Put { name, value, version, session } => {
                let put = |table: &mut Table| table.put(&name, &value, version, session, now);
                Reply::Number(self.change(put)?)
            }
            Call::Remove { name, version } => {
                self.change(|table| table.remove(&name, version))?;
                Reply::Done
            }
            _ => return Err(Errno::ENOSYS),
        })
    }

    fn status(&self) -> String {
        let (entries, sessions) = self.table.borrow().counts();
        format!("{{\"entries\":{entries},\"sessions\":{sessions}}}")
    }
}
