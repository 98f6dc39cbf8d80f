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
//!
//! A client's number may be that of a client before it, which is over when this one *begins*: from
//! then on the number has another *life* here, with nothing but its sessions, and what was asked in
//! the life before is not done any more. A nonce tells a beginning from one that comes again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use outboard_base::planted::{Fault, is_planted};
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
/// Most beginnings of a client that are remembered.
const NONCES_MAX: usize = 8;
/// Most clients of the server's life before this that are waited for one by one.
const FORMER_MAX: usize = 1 << 16;
/// How long a client is late before it is gone.
const LINGER: Duration = Duration::from_secs(60);
/// By how much the server lets a lease go on longer than a client does: clocks differ in speed.
const MARGIN: Duration = Duration::from_secs(1);
/// For so many terms of a lease a client that begins again and again keeps files from others.
const OWED_MAX: u32 = 3;

/// A client, in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) client: u64,
    /// Counted here; no two have the same.
    pub(crate) life: u64,
}

impl Who {
    /// The server itself, for which there is no client.
    pub(crate) const NOBODY: Who = Who { client: u64::MAX, life: 0 };
}

#[derive(Debug)]
struct Client {
    life: u64,
    /// The volume has a note of it, and of how it began.
    noted: bool,
    /// When this life began, and the first one since its hosts handed in what they held.
    begun: Time,
    owes_since: Time,
    handed_in: bool,
    until: Time,
    expelled: bool,
    lost: BTreeSet<Ino>,
    events: VecDeque<Event>,
    delivering: bool,
}

impl Client {
    fn new(life: u64, now: Time) -> Client {
        Client {
            life,
            noted: false,
            begun: now,
            owes_since: now,
            handed_in: false,
            until: now,
            expelled: false,
            lost: BTreeSet::new(),
            events: VecDeque::new(),
            delivering: false,
        }
    }
}

#[derive(Debug)]
struct Session {
    owner: Who,
    /// It came to its owner, who has not said yet that it is back.
    moved: bool,
    /// Clients that had it before; they do not get it back while its owner has a lease.
    former: BTreeSet<u64>,
    /// Which taking over this is, of all sessions.
    turn: u64,
    /// Requests under way, of this turn.
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
    /// Yes, in this turn of the session; [`Clients::done`] must follow.
    Taken(u64),
    /// The same, and it is the first one of its client.
    Moved(u64),
    /// Once what another client asked for this session has ended.
    Wait,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Clients {
    term: Duration,
    all: BTreeMap<u64, Client>,
    sessions: BTreeMap<SessionId, Session>,
    /// Times that a session was taken over.
    turns: u64,
    gone: BTreeSet<u64>,
    gone_order: VecDeque<u64>,
    /// Lives so far.
    lives: u64,
    /// How clients that are known, gone, or of the server's life before this began last.
    nonces: BTreeMap<u64, VecDeque<u64>>,
    /// Clients of the server's life before this that have not begun in this one.
    former: BTreeSet<u64>,
    /// Of these, who have begun and not handed in yet what their hosts held.
    handing: BTreeSet<u64>,
}

impl Clients {
    /// Nobody yet; leases last this long.
    pub(crate) fn new(term: Duration) -> Clients {
        Clients {
            term,
            all: BTreeMap::new(),
            sessions: BTreeMap::new(),
            turns: 0,
            gone: BTreeSet::new(),
            gone_order: VecDeque::new(),
            lives: 0,
            nonces: BTreeMap::new(),
            former: BTreeSet::new(),
            handing: BTreeSet::new(),
        }
    }

    fn new_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// A client is there; it has no lease until it renews.
    ///
    /// # Errors
    /// `ESTALE` if it must end, `ENFILE` if there are too many.
    pub(crate) fn meet(&mut self, client: u64, now: Time) -> Result<Who> {
        if self.gone.contains(&client) {
            return Err(Errno::ESTALE);
        }
        if let Some(known) = self.all.get(&client) {
            let who = Who { client, life: known.life };
            return if known.expelled { Err(Errno::ESTALE) } else { Ok(who) };
        }
        if self.all.len() >= CLIENTS_MAX {
            return Err(Errno::ENFILE);
        }
        let life = self.new_life();
        self.all.insert(client, Client::new(life, now));
        Ok(Who { client, life })
    }

    /// A client's life begins, unless it has begun before: then nothing changes. What it had it has
    /// no more, but for its sessions; true if so, and the caller takes its delegations.
    ///
    /// # Errors
    /// `ENFILE` if there are too many clients.
    pub(crate) fn begin(&mut self, client: u64, nonce: u64, now: Time) -> Result<bool> {
        if self.nonces.get(&client).is_some_and(|known| known.contains(&nonce)) {
            return Ok(false);
        }
        if self.all.len() >= CLIENTS_MAX && !self.all.contains_key(&client) {
            return Err(Errno::ENFILE);
        }
        let nonces = self.nonces.entry(client).or_default();
        nonces.push_back(nonce);
        if nonces.len() > NONCES_MAX {
            nonces.pop_front();
        }
        if self.gone.remove(&client) {
            self.gone_order.retain(|gone| *gone != client);
        }
        if self.former.remove(&client) {
            self.handing.insert(client);
        }
        let life = self.new_life();
        let owes = self.all.get(&client).filter(|before| !before.handed_in);
        let owes_since = owes.map_or(now, |before| before.owes_since);
        self.all.insert(client, Client { owes_since, ..Client::new(life, now) });
        Ok(true)
    }

    /// A client may have had a lease in the server's life before this, and began like this.
    pub(crate) fn was_there(&mut self, client: u64, nonces: impl Iterator<Item = u64>) {
        if self.former.len() < FORMER_MAX {
            self.nonces.insert(client, nonces.take(NONCES_MAX).collect());
            self.former.insert(client);
        } else {
            // Nobody can begin under this number.
            self.former.insert(Who::NOBODY.client);
        }
    }

    /// Whether all clients of the server's life before this have begun in this one.
    pub(crate) fn all_have_begun(&self) -> bool {
        self.former.is_empty()
    }

    /// The hosts of a client have handed in what they held.
    pub(crate) fn handed_in(&mut self, who: Who) {
        if let Some(known) = self.of(who) {
            known.handed_in = true;
            self.handing.remove(&who.client);
        }
    }

    /// Whether a client's hosts may still have something to write back from a life before: it has
    /// the time of a lease to begin another one, in which they have as long to hand it in; all
    /// lives that end before they did, three times as long.
    pub(crate) fn comes_back(&self, client: u64, now: Time, former_leases_end: Time) -> bool {
        if self.former.contains(&client) {
            return now < former_leases_end;
        }
        let term = self.term + MARGIN;
        let comes = |known: &Client| {
            let end = known.begun.after(term).min(known.owes_since.after(term * OWED_MAX));
            !known.handed_in && !known.expelled && now < end
        };
        self.all.get(&client).is_some_and(comes)
    }

    /// Whether nobody is to come who held something in the server's life before this.
    pub(crate) fn all_have_handed_in(&self) -> bool {
        self.former.is_empty() && self.handing.is_empty()
    }

    /// Leases of the server's life before this are over: who had them and has not begun since.
    pub(crate) fn take_former(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.former).into_iter().collect()
    }

    /// What is to be noted of a client, if that is not the case: how it began.
    pub(crate) fn to_note(&self, client: u64) -> Option<(Who, Vec<u64>)> {
        let known = self.all.get(&client).filter(|known| !known.noted)?;
        let nonces = self.nonces.get(&client).map(|nonces| nonces.iter().copied().collect());
        Some((Who { client, life: known.life }, nonces.unwrap_or_default()))
    }

    /// That is noted.
    pub(crate) fn noted(&mut self, who: Who) {
        if let Some(known) = self.of(who) {
            known.noted = true;
        }
    }

    /// Whether a note of a client is of no use.
    pub(crate) fn forgets(&mut self, client: u64) -> bool {
        let is_known = self.all.contains_key(&client);
        if !is_known && !self.gone.contains(&client) {
            self.nonces.remove(&client);
        }
        !is_known
    }

    fn of(&mut self, who: Who) -> Option<&mut Client> {
        self.all.get_mut(&who.client).filter(|known| known.life == who.life)
    }

    /// Whether this is the client's life.
    pub(crate) fn lives(&self, who: Who) -> bool {
        self.all.get(&who.client).is_some_and(|known| known.life == who.life)
    }

    /// A client asks for its lease to go on.
    pub(crate) fn renew(&mut self, client: u64, now: Time) -> Result<Renewed> {
        match self.meet(client, now) {
            Err(Errno::ESTALE) => return Ok(Renewed::Ends),
            met => met?,
        };
        let margin = if is_planted(Fault::Margin) { Duration::ZERO } else { MARGIN };
        let until = now.after(self.term + margin);
        let Some(known) = self.all.get_mut(&client) else { return Ok(Renewed::Ends) };
        if !known.lost.is_empty() {
            return Ok(Renewed::After(known.lost.iter().copied().collect()));
        }
        known.until = known.until.max(until);
        Ok(Renewed::Goes)
    }

    /// A client has heard that it lost these files.
    pub(crate) fn heard(&mut self, who: Who, lost: &[Ino]) {
        if let Some(known) = self.of(who) {
            lost.iter().for_each(|ino| {
                known.lost.remove(ino);
            });
        }
    }

    /// Whether a client may use what it has.
    pub(crate) fn has_lease(&self, client: u64, now: Time) -> bool {
        self.all.get(&client).is_some_and(|known| known.until > now)
    }

    /// Whether a client has a lease that goes on, in this life of its.
    pub(crate) fn may_take(&self, who: Who, now: Time) -> bool {
        let known = self.all.get(&who.client).filter(|known| known.life == who.life);
        known.is_some_and(|known| known.until > now && !known.expelled)
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
    /// `ESTALE` if another client took it over, or the client has another life, `EMFILE` if there
    /// are too many.
    pub(crate) fn admit(&mut self, who: Who, session: SessionId, now: Time) -> Result<Admission> {
        if self.meet(who.client, now)? != who {
            return Err(Errno::ESTALE);
        }
        let count = self.sessions.len();
        let owner = self.sessions.get(&session).map(|known| known.owner);
        let owner_lives =
            owner.is_some_and(|owner| self.lives(owner) && self.has_lease(owner.client, now));
        let turn = self.turns + 1;
        let Some(known) = self.sessions.get_mut(&session) else {
            if count >= SESSIONS_MAX {
                return Err(Errno::EMFILE);
            }
            let former = BTreeSet::new();
            let known = Session { owner: who, moved: true, former, turn, busy: 1 };
            self.sessions.insert(session, known);
            self.turns = turn;
            return Ok(Admission::Moved(turn));
        };
        if known.owner == who {
            known.busy += 1;
            return Ok(Admission::Taken(known.turn));
        }
        let is_another = known.owner.client != who.client;
        if is_another && known.former.contains(&who.client) && owner_lives {
            return Err(Errno::ESTALE);
        }
        if known.busy > 0 {
            return Ok(Admission::Wait);
        }
        if is_another {
            known.former.insert(known.owner.client);
            known.former.remove(&who.client);
            while known.former.len() > 16 {
                known.former.pop_first();
            }
        }
        (known.owner, known.moved) = (who, true);
        (known.turn, known.busy) = (turn, 1);
        self.turns = turn;
        Ok(Admission::Moved(turn))
    }

    /// A client says that a session is back; whether that is news to the volume, which hears of it
    /// once when the session comes to another client.
    pub(crate) fn is_back(&mut self, session: SessionId) -> bool {
        let known = self.sessions.get_mut(&session);
        known.is_some_and(|known| !std::mem::take(&mut known.moved))
    }

    /// What was asked for a session in this turn has ended, or waits for others.
    pub(crate) fn done(&mut self, session: SessionId, turn: u64) {
        if let Some(known) = self.in_turn(session, turn) {
            known.busy = known.busy.saturating_sub(1);
        }
    }

    /// What waited for others goes on; false if the session was taken over meanwhile, or is gone.
    pub(crate) fn goes_on(&mut self, session: SessionId, turn: u64) -> bool {
        let known = self.in_turn(session, turn);
        known.map(|known| known.busy += 1).is_some()
    }

    fn in_turn(&mut self, session: SessionId, turn: u64) -> Option<&mut Session> {
        self.sessions.get_mut(&session).filter(|known| known.turn == turn)
    }

    /// Whether a session is this client's.
    pub(crate) fn owns(&self, who: Who, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|known| known.owner == who)
    }

    /// A client's sessions, from whatever life of its.
    pub(crate) fn sessions_of(&self, client: u64) -> impl Iterator<Item = SessionId> {
        let own = self.sessions.iter().filter(move |(_, known)| known.owner.client == client);
        own.map(|(session, _)| *session)
    }

    /// A session is no more.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Puts an event where it will be delivered from. One of a session that nobody has is dropped.
    pub(crate) fn push_event(&mut self, session: SessionId, event: Event) {
        let owner = self.sessions.get(&session).map(|known| known.owner.client);
        if let Some(client) = owner.and_then(|owner| self.all.get_mut(&owner)) {
            if client.events.len() < EVENTS_MAX {
                client.events.push_back(event);
            } else {
                client.expelled = true;
            }
        }
    }

    /// Clients that have events nobody delivers yet; each is this caller's to deliver.
    pub(crate) fn begin_deliveries(&mut self) -> Vec<Who> {
        let mut begun = Vec::new();
        for (client, known) in &mut self.all {
            if !known.delivering && !known.events.is_empty() && !known.expelled {
                known.delivering = true;
                begun.push(Who { client: *client, life: known.life });
            }
        }
        begun
    }

    /// The first events for a client; none ends the delivery.
    pub(crate) fn next_events(&mut self, who: Who) -> Vec<Event> {
        let Some(known) = self.of(who) else { return Vec::new() };
        if known.expelled {
            known.events.clear();
        }
        let first: Vec<Event> = known.events.iter().take(EVENTS_AT_ONCE).cloned().collect();
        known.delivering = !first.is_empty();
        first
    }

    /// A client has acted upon its first events.
    pub(crate) fn delivered(&mut self, who: Who, count: usize) {
        if let Some(known) = self.of(who) {
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

    /// Sessions that a client's former lives had and its hosts did not hand in again, though they
    /// have had the time to, and of which nothing is under way: they are no more.
    pub(crate) fn take_left_behind(&mut self) -> Vec<SessionId> {
        let all = &self.all;
        let is_left = |known: &Session| {
            let owner = all.get(&known.owner.client);
            let is_over =
                owner.is_some_and(|client| client.handed_in && client.life != known.owner.life);
            is_over && known.busy == 0
        };
        self.sessions
            .extract_if(.., |_, known| is_left(known))
            .map(|(session, _)| session)
            .collect()
    }

    /// All that are known.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.all.keys().copied()
    }

    /// A client is gone; the sessions it had.
    pub(crate) fn bury(&mut self, client: u64) -> Vec<SessionId> {
        self.all.remove(&client);
        if self.gone.insert(client) {
            self.gone_order.push_back(client);
        }
        if self.gone_order.len() > GONE_MAX
            && let Some(oldest) = self.gone_order.pop_front()
        {
            self.gone.remove(&oldest);
            self.nonces.remove(&oldest);
        }
        let own: Vec<SessionId> = self.sessions_of(client).collect();
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
