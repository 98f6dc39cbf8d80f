//! Clients: their leases, their sessions, and what they must hear of. A table without I/O.
//!
//! - *has a lease*: it renewed less than a term ago, by the server's clock, with a margin. Nothing
//!   is taken from it unasked;
//! - *late*: its lease is over. What it has may be lost to others; it hears of that before its next
//!   renewal is answered;
//! - *gone*: it is late for so long. Its sessions are detached, what it wrote is resolved;
//! - *expelled*: it did not give back what was recalled, or did not take its events. It is as if it
//!   were gone, once its lease is over.
//!
//! Who is gone or expelled is told another life of the server at its next renewal, and ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use outboard_base::{Errno, Ino, Result, SessionId, Time};
use outboard_wire::shared::call::Event;

/// Most clients.
const CLIENTS_MAX: usize = 4096;
/// Most sessions.
const SESSIONS_MAX: usize = 1 << 16;
/// Most events that wait for a client; one with more is expelled.
const EVENTS_MAX: usize = 1 << 17;
/// Most events of one call.
const EVENTS_AT_ONCE: usize = outboard_wire::shared::call::EVENTS_MAX;
/// Most lost files that a late client hears of one by one; one with more is expelled.
const LOST_MAX: usize = 4096;
/// Most numbers of clients that are gone and may still believe that they are not.
const GONE_MAX: usize = 1 << 16;
/// How long a client is late before it is gone.
const LINGER: Duration = Duration::from_secs(60);
/// By how much the server lets a lease go on longer than a client does: clocks differ in speed.
const MARGIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Client {
    until: Time,
    expelled: bool,
    lost: BTreeSet<Ino>,
    events: VecDeque<Event>,
    delivering: bool,
}

#[derive(Debug)]
struct Session {
    owner: u64,
    /// Clients that had it before; they do not get it back while its owner has a lease.
    former: BTreeSet<u64>,
    /// Requests under way.
    busy: usize,
}

/// What a renewal comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The lease goes on.
    Goes,
    /// It goes on once the client has heard that it lost these files.
    After(Vec<Ino>),
    /// The client must end.
    Ends,
}

/// Whether a request of a session is taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Yes; [`Clients::done`] must follow.
    Taken,
    /// Once what another client asked for this session has ended.
    Wait,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Clients {
    term: Duration,
    all: BTreeMap<u64, Client>,
    sessions: BTreeMap<SessionId, Session>,
    gone: BTreeSet<u64>,
    gone_order: VecDeque<u64>,
}

impl Clients {
    /// Nobody yet; leases last this long.
    pub(crate) fn new(term: Duration) -> Clients {
        Clients {
            term,
            all: BTreeMap::new(),
            sessions: BTreeMap::new(),
            gone: BTreeSet::new(),
            gone_order: VecDeque::new(),
        }
    }

    /// A client is there; it has no lease until it renews.
    ///
    /// # Errors
    /// `ESTALE` if it must end, `ENFILE` if there are too many.
    pub(crate) fn meet(&mut self, client: u64, now: Time) -> Result<()> {
        if self.gone.contains(&client) {
            return Err(Errno::ESTALE);
        }
        if let Some(known) = self.all.get(&client) {
            return if known.expelled { Err(Errno::ESTALE) } else { Ok(()) };
        }
        if self.all.len() >= CLIENTS_MAX {
            return Err(Errno::ENFILE);
        }
        let new = Client {
            until: now,
            expelled: false,
            lost: BTreeSet::new(),
            events: VecDeque::new(),
            delivering: false,
        };
        self.all.insert(client, new);
        Ok(())
    }

    /// A client asks for its lease to go on.
    pub(crate) fn renew(&mut self, client: u64, now: Time) -> Result<Renewed> {
        match self.meet(client, now) {
            Err(Errno::ESTALE) => return Ok(Renewed::Ends),
            met => met?,
        }
        let until = now.after(self.term + MARGIN);
        let Some(known) = self.all.get_mut(&client) else { return Ok(Renewed::Ends) };
        if !known.lost.is_empty() {
            return Ok(Renewed::After(known.lost.iter().copied().collect()));
        }
        known.until = known.until.max(until);
        Ok(Renewed::Goes)
    }

    /// A client has heard that it lost these files.
    pub(crate) fn heard(&mut self, client: u64, lost: &[Ino]) {
        if let Some(known) = self.all.get_mut(&client) {
            lost.iter().for_each(|ino| {
                known.lost.remove(ino);
            });
        }
    }

    /// Whether a client may use what it has.
    pub(crate) fn has_lease(&self, client: u64, now: Time) -> bool {
        self.all.get(&client).is_some_and(|known| known.until > now)
    }

    /// Whether a client has a lease that goes on.
    pub(crate) fn may_take(&self, client: u64, now: Time) -> bool {
        self.all.get(&client).is_some_and(|known| known.until > now && !known.expelled)
    }

    /// A late client lost a file; it must hear of that before it goes on.
    pub(crate) fn lost(&mut self, client: u64, ino: Ino) {
        if let Some(known) = self.all.get_mut(&client) {
            known.lost.insert(ino);
            known.expelled |= known.lost.len() > LOST_MAX;
        }
    }

    /// A client does not do what it must: its lease does not go on.
    pub(crate) fn expel(&mut self, client: u64) {
        if let Some(known) = self.all.get_mut(&client) {
            known.expelled = true;
        }
    }

    /// A client asks something for a session. It is whose spoke for it last.
    ///
    /// # Errors
    /// `ESTALE` if another client took it over, `EMFILE` if there are too many.
    pub(crate) fn admit(
        &mut self,
        client: u64,
        session: SessionId,
        now: Time,
    ) -> Result<Admission> {
        self.meet(client, now)?;
        let count = self.sessions.len();
        let owner = self.sessions.get(&session).map(|known| known.owner);
        let owner_lives = owner.is_some_and(|owner| self.has_lease(owner, now));
        let Some(known) = self.sessions.get_mut(&session) else {
            if count >= SESSIONS_MAX {
                return Err(Errno::EMFILE);
            }
            let new = Session { owner: client, former: BTreeSet::new(), busy: 1 };
            self.sessions.insert(session, new);
            return Ok(Admission::Taken);
        };
        if known.owner != client {
            if known.former.contains(&client) && owner_lives {
                return Err(Errno::ESTALE);
            }
            if known.busy > 0 {
                return Ok(Admission::Wait);
            }
            known.former.insert(known.owner);
            known.former.remove(&client);
            while known.former.len() > 16 {
                known.former.pop_first();
            }
            known.owner = client;
        }
        known.busy += 1;
        Ok(Admission::Taken)
    }

    /// What was asked for a session has ended.
    pub(crate) fn done(&mut self, session: SessionId) {
        if let Some(known) = self.sessions.get_mut(&session) {
            known.busy = known.busy.saturating_sub(1);
        }
    }

    /// Whether a session is this client's.
    pub(crate) fn owns(&self, client: u64, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|known| known.owner == client)
    }

    /// One of a client's sessions.
    pub(crate) fn a_session(&self, client: u64) -> Option<SessionId> {
        let mut own = self.sessions.iter().filter(|(_, known)| known.owner == client);
        own.next().map(|(session, _)| *session)
    }

    /// A session is no more.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Puts an event where it will be delivered from. One of a session that nobody has is dropped.
    pub(crate) fn push_event(&mut self, session: SessionId, event: Event) {
        let owner = self.sessions.get(&session).map(|known| known.owner);
        if let Some(client) = owner.and_then(|owner| self.all.get_mut(&owner)) {
            if client.events.len() < EVENTS_MAX {
                client.events.push_back(event);
            } else {
                client.expelled = true;
            }
        }
    }

    /// Clients that have events nobody delivers yet; each is this caller's to deliver.
    pub(crate) fn begin_deliveries(&mut self) -> Vec<u64> {
        let mut begun = Vec::new();
        for (client, known) in &mut self.all {
            if !known.delivering && !known.events.is_empty() && !known.expelled {
                known.delivering = true;
                begun.push(*client);
            }
        }
        begun
    }

    /// The first events for a client; none ends the delivery.
    pub(crate) fn next_events(&mut self, client: u64) -> Vec<Event> {
        let Some(known) = self.all.get_mut(&client) else { return Vec::new() };
        if known.expelled {
            known.events.clear();
        }
        let first: Vec<Event> = known.events.iter().take(EVENTS_AT_ONCE).cloned().collect();
        known.delivering = !first.is_empty();
        first
    }

    /// A client has acted upon its first events.
    pub(crate) fn delivered(&mut self, client: u64, count: usize) {
        if let Some(known) = self.all.get_mut(&client) {
            let count = count.min(known.events.len());
            known.events.drain(..count);
        }
    }

    /// Clients that are gone from now on, with the sessions they had.
    pub(crate) fn take_gone(&mut self, now: Time) -> Vec<(u64, Vec<SessionId>)> {
        let is_gone = |known: &Client| {
            known.until <= now && (known.expelled || known.until.after(LINGER) <= now)
        };
        let gone: Vec<u64> = self
            .all
            .iter()
            .filter(|(_, known)| is_gone(known))
            .map(|(client, _)| *client)
            .collect();
        gone.into_iter().map(|client| (client, self.bury(client))).collect()
    }

    fn bury(&mut self, client: u64) -> Vec<SessionId> {
        self.all.remove(&client);
        if self.gone.insert(client) {
            self.gone_order.push_back(client);
        }
        if self.gone_order.len() > GONE_MAX
            && let Some(oldest) = self.gone_order.pop_front()
        {
            self.gone.remove(&oldest);
        }
        let own = self.sessions.iter().filter(|(_, known)| known.owner == client);
        let own: Vec<SessionId> = own.map(|(session, _)| *session).collect();
        own.iter().for_each(|session| self.forget_session(*session));
        own
    }

    /// Clients, those of them with a lease, sessions, events that wait.
    pub(crate) fn counts(&self, now: Time) -> [usize; 4] {
        let leases = self.all.values().filter(|known| known.until > now).count();
        let events = self.all.values().map(|known| known.events.len()).sum();
        [self.all.len(), leases, self.sessions.len(), events]
    }
}

#[cfg(test)]
mod tests;
