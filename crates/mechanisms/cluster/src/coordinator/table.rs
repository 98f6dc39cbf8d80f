//! The state of a coordinator: what is kept, and whose sessions go on. A table without I/O; who
//! owns it makes it durable before it answers, and tells it the time.

use std::collections::BTreeMap;
use std::time::Duration;

use outboard_base::{Errno, Result, Time};

/// Most entries, and most sessions.
const MOST: usize = 1024;

/// What is kept under a name, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Changes with each change of the value.
    pub version: u64,
    /// It goes with a session.
    pub passes: bool,
}

/// What is kept under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its value.
    pub value: String,
    /// No other value of any entry has this version.
    pub version: u64,
    /// It goes with this session; 0: it stays.
    pub session: u64,
}

/// The table.
#[derive(Clone, Debug)]
pub struct Table {
    term: Duration,
    /// The last version or session that was given.
    last: u64,
    entries: BTreeMap<String, Kept>,
    /// Until when each goes on.
    sessions: BTreeMap<u64, Time>,
}

impl Table {
    /// An empty one, whose sessions go on for so long after a beat.
    #[must_use]
    pub fn new(term: Duration) -> Table {
        Table { term, last: 0, entries: BTreeMap::new(), sessions: BTreeMap::new() }
    }

    /// One that was kept: the last number given, and what was there. Sessions of its entries go on
    /// for a whole term: nobody could beat meanwhile.
    #[must_use]
    pub fn kept(term: Duration, last: u64, all: Vec<(String, Kept)>, now: Time) -> Table {
        let sessions = all.iter().map(|(_, kept)| kept.session).filter(|session| *session > 0);
        let sessions = sessions.map(|session| (session, now.after(term))).collect();
        let last = all.iter().map(|(_, kept)| kept.version.max(kept.session)).fold(last, u64::max);
        Table { term, last, entries: all.into_iter().collect(), sessions }
    }

    /// What is to be kept of it.
    pub fn to_keep(&self) -> (u64, impl Iterator<Item = (&String, &Kept)>) {
        (self.last, self.entries.iter())
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A session goes on; 0: one begins. Which it is.
    ///
    /// # Errors
    /// `ENOTCONN` if it is over, `ENOSPC` if there are too many.
    pub fn beat(&mut self, session: u64, now: Time) -> Result<u64> {
        self.expire(now);
        let until = now.after(self.term);
        if session == 0 {
            if self.sessions.len() >= MOST {
                return Err(Errno::ENOSPC);
            }
            let begun = self.next();
            self.sessions.insert(begun, until);
            return Ok(begun);
        }
        let known = self.sessions.get_mut(&session).ok_or(Errno::ENOTCONN)?;
        *known = until;
        Ok(session)
    }

    /// Entries whose names begin so.
    #[must_use]
    pub fn list(&self, prefix: &str) -> Vec<Entry> {
        let from = self.entries.range(prefix.to_owned()..);
        let all = from.take_while(|(name, _)| name.starts_with(prefix));
        let entry = |(name, kept): (&String, &Kept)| Entry {
            name: name.clone(),
            value: kept.value.clone(),
            version: kept.version,
            passes: kept.session > 0,
        };
        all.map(entry).collect()
    }

    /// Makes an entry where `version` is none, else puts it in the place of that of this version.
    /// It goes with this session; 0: it stays. Its version from now on.
    ///
    /// # Errors
    /// As [`Coordinator::put`](super::Coordinator::put).
    pub fn put(
        &mut self,
        name: &str,
        value: &str,
        version: Option<u64>,
        session: u64,
        now: Time,
    ) -> Result<u64> {
        self.expire(now);
        if session > 0 && !self.sessions.contains_key(&session) {
            return Err(Errno::ENOTCONN);
        }
        match (self.entries.get(name), version) {
            (Some(_), None) => return Err(Errno::EEXIST),
            (None, Some(_)) => return Err(Errno::ENOENT),
            (Some(kept), Some(version)) if kept.version != version => return Err(Errno::ESTALE),
            (None, None) if self.entries.len() >= MOST => return Err(Errno::ENOSPC),
            _ => {}
        }
        let version = self.next();
        self.entries.insert(name.to_owned(), Kept { value: value.to_owned(), version, session });
        Ok(version)
    }

    /// Takes an entry of this version away.
    ///
    /// # Errors
    /// As [`Coordinator::remove`](super::Coordinator::remove).
    pub fn remove(&mut self, name: &str, version: u64) -> Result<()> {
        let kept = self.entries.get(name).ok_or(Errno::ENOENT)?;
        if kept.version != version {
            return Err(Errno::ESTALE);
        }
        self.entries.remove(name);
        Ok(())
    }

    /// Sessions that nobody kept up are over, and what came with them goes; whether something went.
    pub fn expire(&mut self, now: Time) -> bool {
        self.sessions.retain(|_, until| now < *until);
        let before = self.entries.len();
        let sessions = &self.sessions;
        self.entries.retain(|_, kept| kept.session == 0 || sessions.contains_key(&kept.session));
        self.entries.len() < before
    }

    /// When the next session is over, if nobody keeps it up.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.sessions.values().min().copied()
    }

    /// Entries and sessions.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.entries.len(), self.sessions.len())
    }
}
