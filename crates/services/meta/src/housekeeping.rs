//! What the server does unasked: events to clients, keys to nodes, purges, the end of clients that
//! are gone, and of grace.

use core::net::SocketAddrV4;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use outboard_base::task::join_all;
use outboard_base::{Ino, SessionId, Time};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_medium::Medium;
use outboard_volume::VolumeEvent;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Event, Reply};

use crate::clients::Who;
use crate::moving::Moving;
use crate::nodes::QUICK;
use crate::{Meta, Work, power};

/// How often nodes are told the keys and asked for their space.
const KEYS_EVERY: Duration = Duration::from_secs(10);
/// How often nodes are asked for a sign of life, and copies that lack something are looked for.
const HEAL_EVERY: Duration = Duration::from_secs(3);
/// How long a node that did not answer is taken to be away.
const AWAY: Duration = Duration::from_secs(10);
/// How long it is remembered that a member of a file was not reached.
const UNREACHED: Duration = Duration::from_secs(60);
/// How long it is before it is tried again to take a node out that could not be.
const KEPT_IN: Duration = Duration::from_secs(600);
/// How long it is before a copy is filled again that could not be.
pub(crate) const LATER: Duration = Duration::from_secs(30);
/// How often objects to be purged and files to be resolved are looked for, and, while the
/// coordinator is away, another server.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Objects purged in one piece of work.
const PURGES: usize = 256;
/// How long a client is given for events.
const EVENTS: Duration = Duration::from_secs(5);

/// What is to be done beside answering.
#[derive(Debug)]
enum Chore {
    Deliver(Who),
    Keys,
    Purges,
    /// Whether another server has begun.
    Look,
    /// Of a client that is gone.
    Forget(u64),
    /// Whether nodes are there, and doubt what they have.
    Signs,
    /// Copies that lack something.
    Heal,
    /// Files that are to lie elsewhere.
    Move,
    Resolve,
    /// Files that the server has itself, and nobody asks it about.
    GiveBack(Vec<Ino>),
}

/// What is to be done, and when it was done last.
#[derive(Debug, Default)]
pub(crate) struct Chores {
    todo: VecDeque<Chore>,
    keys_at: Option<Time>,
    keys_run: bool,
    purges_at: Option<Time>,
    purges_run: bool,
    purges_pending: usize,
    resolve_at: Option<Time>,
    resolve_runs: bool,
    grace_is_over: bool,
    /// Nodes that the coordinator knows; none: it does not answer, or there is none.
    registered: Option<usize>,
    /// There is a coordinator, and it does not answer: another server may be there.
    unheard: bool,
    look_at: Option<Time>,
    look_runs: bool,
    heal_at: Option<Time>,
    heal_runs: bool,
    moving_at: Option<Time>,
    moving_runs: bool,
    moving: Moving,
    /// Nodes that did not answer, when last, and since when.
    away: BTreeMap<u16, (Time, Time)>,
    /// Nodes that were away for so long that files lie elsewhere.
    out: BTreeSet<u16>,
    /// Nodes that could not be taken out, and when that was tried.
    kept_in: BTreeMap<u16, Time>,
    /// Nodes that doubt what they have of copies, and in which boot.
    doubting: BTreeMap<u16, u64>,
    /// Nodes that found damage, and in which objects.
    damaged: BTreeMap<u16, Vec<u64>>,
    /// Files of which something was mended, or could not be, and until when they are let alone.
    mended: BTreeMap<Ino, Time>,
    /// Files of which a member was not reached, which, and when that was said.
    unreached: BTreeMap<Ino, (u16, Time)>,
    /// Nodes that are given units of files with parities, and which.
    joiners: BTreeMap<(Ino, u16), u8>,
    /// Files whose copies could not be filled, and until when that is not tried again.
    later: BTreeMap<Ino, Time>,
    signs_at: Option<Time>,
    signs_run: bool,
    /// Another server has begun.
    superseded: bool,
    /// This one ends.
    ended: bool,
    nodes_reached: usize,
    /// Nodes that know of no later opening of the volume.
    looked_at: BTreeSet<u16>,
    free: u64,
    capacity: u64,
}

fn is_due(last: Option<Time>, every: Duration, now: Time) -> bool {
    last.is_none_or(|last| now.since(last) >= every)
}

impl Chores {
    /// Of a life of the server; of files that are moved so many bytes a second, and nodes that the
    /// server has taken out.
    pub(crate) fn new(rate: u64, out: BTreeSet<u16>) -> Chores {
        Chores { moving: Moving::new(rate), out, ..Chores::default() }
    }

    /// How moving files goes on.
    pub(crate) fn moving(&mut self) -> &mut Moving {
        &mut self.moving
    }

    /// Bytes that nodes can take, and could if empty, as far as they said.
    pub(crate) fn space(&self) -> (u64, u64) {
        (self.free, self.capacity)
    }

    pub(crate) fn is_looked_at(&self, node: u16) -> bool {
        self.looked_at.contains(&node)
    }

    /// A node answered, or did not.
    pub(crate) fn answered(&mut self, node: u16, does: bool, now: Time) {
        if does {
            self.away.remove(&node);
        } else {
            self.away.entry(node).or_insert((now, now)).0 = now;
        }
    }

    /// A node doubts what it has of copies, in this boot, or does not.
    pub(crate) fn doubts(&mut self, node: u16, boot: Option<u64>) {
        match boot {
            Some(boot) => self.doubting.insert(node, boot),
            None => self.doubting.remove(&node),
        };
    }

    /// Whether a file of which something is damaged may be mended now.
    pub(crate) fn may_mend(&self, ino: Ino, now: Time) -> bool {
        self.mended.get(&ino).is_none_or(|until| *until <= now)
    }

    /// It is not before then.
    pub(crate) fn mend_later(&mut self, ino: Ino, until: Time) {
        self.mended.retain(|_, other| other.after(LATER) > until);
        self.mended.insert(ino, until);
    }

    /// Objects that a node says are damaged there.
    pub(crate) fn damaged_at(&mut self, node: u16, objects: Vec<u64>) {
        if objects.is_empty() {
            self.damaged.remove(&node);
        } else {
            self.damaged.insert(node, objects);
        }
    }

    /// The same of all nodes.
    pub(crate) fn damaged(&self) -> Vec<(u16, Ino)> {
        let of = |(node, objects): (&u16, &Vec<u64>)| {
            let node = *node;
            objects.iter().map(move |object| (node, Ino(*object))).collect::<Vec<_>>()
        };
        self.damaged.iter().flat_map(of).collect()
    }

    pub(crate) fn doubting(&self) -> Vec<(u16, u64)> {
        self.doubting.iter().map(|(node, boot)| (*node, *boot)).collect()
    }

    /// Which unit of a file a node was begun to be given in this life of the server, that joins it.
    pub(crate) fn unit_of_joiner(&self, ino: Ino, node: u16) -> Option<u8> {
        self.joiners.get(&(ino, node)).copied()
    }

    /// It is begun to be given that one.
    pub(crate) fn note_joiner(&mut self, ino: Ino, node: u16, unit: u8) {
        self.joiners.insert((ino, node), unit);
    }

    /// Nobody joins a file any more.
    pub(crate) fn forget_joiners(&mut self, ino: Ino) {
        self.joiners.retain(|(of, _), _| *of != ino);
    }

    /// Copies of a file cannot be filled now: it is not taken from everybody again at once.
    pub(crate) fn try_later(&mut self, ino: Ino, now: Time, later: Duration) {
        self.later.retain(|_, until| *until > now);
        self.later.insert(ino, now.after(later));
    }

    /// A member of a file was not reached by who has it; the member, if that was said of it before,
    /// not long ago.
    pub(crate) fn is_unreached(&mut self, ino: Ino, member: Option<u16>, now: Time) -> Option<u16> {
        self.unreached.retain(|_, (_, at)| now.since(*at) < UNREACHED);
        // Who asks again need not say it again.
        let member = member?;
        let before = self.unreached.insert(ino, (member, now));
        before.is_some_and(|(before, _)| before == member).then_some(member)
    }

    pub(crate) fn is_due_again(&self, ino: Ino, now: Time) -> bool {
        self.later.get(&ino).is_none_or(|until| *until <= now)
    }

    /// Whether a node did not answer of late.
    pub(crate) fn is_away(&self, node: u16, now: Time) -> bool {
        self.away.get(&node).is_some_and(|(at, _)| now.since(*at) < AWAY)
    }

    /// Nodes that have not answered for so long.
    pub(crate) fn away_for(&self, time: Duration, now: Time) -> Vec<u16> {
        let is_long = |(_, (_, since)): &(&u16, &(Time, Time))| now.since(*since) >= time;
        self.away.iter().filter(is_long).map(|(node, _)| *node).collect()
    }

    /// Whether it is to be tried to take a node out, or in again.
    pub(crate) fn may_take_out(&mut self, node: u16, now: Time) -> bool {
        self.kept_in.retain(|_, at| now.since(*at) < KEPT_IN);
        !self.kept_in.contains_key(&node)
    }

    /// That cannot be done now: all files were looked at for it.
    pub(crate) fn cannot_take_out(&mut self, node: u16, now: Time) {
        self.kept_in.insert(node, now);
    }

    /// Nodes that the server has taken out.
    pub(crate) fn out(&mut self) -> &mut BTreeSet<u16> {
        &mut self.out
    }

    /// Whether hosts may still hand in what they held in the life before.
    pub(crate) fn is_grace(&self) -> bool {
        !self.grace_is_over
    }

    pub(crate) fn looked_at(&mut self, node: u16) {
        self.looked_at.insert(node);
    }

    /// The server ends.
    pub(crate) fn ends(&mut self) {
        self.ended = true;
    }

    /// Another server has begun; whether that is news.
    pub(crate) fn is_superseded(&mut self) -> bool {
        !std::mem::replace(&mut self.superseded, true)
    }

    fn begin_due(&mut self, now: Time) {
        let look_every = if self.unheard { LOOK_EVERY } else { KEYS_EVERY };
        if !self.look_runs && is_due(self.look_at, look_every, now) {
            (self.look_at, self.look_runs) = (Some(now), true);
            self.todo.push_back(Chore::Look);
        }
        if !self.keys_run && is_due(self.keys_at, KEYS_EVERY, now) {
            (self.keys_at, self.keys_run) = (Some(now), true);
            self.todo.push_back(Chore::Keys);
        }
        if !self.signs_run && is_due(self.signs_at, HEAL_EVERY, now) {
            (self.signs_at, self.signs_run) = (Some(now), true);
            self.todo.push_back(Chore::Signs);
        }
        if !self.heal_runs && is_due(self.heal_at, HEAL_EVERY, now) {
            (self.heal_at, self.heal_runs) = (Some(now), true);
            self.todo.push_back(Chore::Heal);
        }
        let every = HEAL_EVERY.max(self.moving.pause());
        if !self.moving_runs && is_due(self.moving_at, every, now) {
            (self.moving_at, self.moving_runs) = (Some(now), true);
            self.todo.push_back(Chore::Move);
        }
        if !self.purges_run && is_due(self.purges_at, LOOK_EVERY, now) {
            (self.purges_at, self.purges_run) = (Some(now), true);
            self.todo.push_back(Chore::Purges);
        }
    }
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Takes what the volume has to say to clients. To be called at each pass of the owner.
    pub fn events(&self) {
        let events = self.volume().take_events();
        if events.is_empty() {
            return;
        }
        let mut clients = self.clients();
        for event in events {
            if let Some((session, event)) = translate(event) {
                clients.push_event(session, event);
            }
        }
    }

    /// What is to be done now: the owner spawns it. To be called at each pass, after
    /// [`Meta::events`].
    pub fn take_work(&self) -> Vec<Work> {
        let deliveries = self.clients().begin_deliveries().into_iter().map(Chore::Deliver);
        let mut chores = self.chores();
        chores.todo.extend(deliveries);
        let todo = std::mem::take(&mut chores.todo);
        drop(chores);
        todo.into_iter().map(|chore| self.work(chore)).collect()
    }

    fn work(&self, chore: Chore) -> Work {
        let meta = self.clone();
        Box::pin(async move {
            match chore {
                Chore::Deliver(client) => meta.deliver(client).await,
                Chore::Keys => {
                    let _reached = meta.tell_all_keys().await;
                    meta.ask_for_space().await;
                    meta.chores().keys_run = false;
                }
                Chore::Look => {
                    meta.look_for_later().await;
                    meta.chores().look_runs = false;
                }
                Chore::Purges => {
                    meta.purge_some().await;
                    meta.chores().purges_run = false;
                }
                Chore::Signs => {
                    meta.look_for_signs().await;
                    meta.chores().signs_run = false;
                }
                Chore::Heal => {
                    meta.heal().await;
                    meta.chores().heal_runs = false;
                }
                Chore::Move => {
                    meta.heal_by_itself().await;
                    meta.move_files().await;
                    meta.chores().moving_runs = false;
                }
                Chore::Forget(client) => meta.forget(client).await,
                Chore::Resolve => {
                    meta.resolve_some().await;
                    meta.chores().resolve_runs = false;
                }
                Chore::GiveBack(idle) => meta.give_back_idle(idle).await,
            }
        })
    }

    /// Where nodes are, by the coordinator's word; nothing: it does not answer. A node that is at
    /// another address than before is found there from now on; one that the volume was not made
    /// with has no files.
    pub fn nodes_are(&self, known: Option<&[(u16, SocketAddrV4)]>) {
        let mut chores = self.chores();
        (chores.registered, chores.unheard) = (known.map(<[_]>::len), known.is_none());
        drop(chores);
        for (node, address) in known.unwrap_or_default() {
            if self.move_node(*node, *address) {
                tracing::info!(node, %address, "a node is at another address");
                self.net().know(Peer::Node(*node), *address);
            }
        }
    }

    /// Whether another server of this volume has begun: this one answers nobody any more, and is to
    /// end.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.chores().superseded
    }

    pub(crate) fn answers_nobody(&self) -> bool {
        let chores = self.chores();
        chores.superseded || chores.ended
    }

    /// A client's key is revoked: what it had is lost, at once.
    pub(crate) fn expel_all(&self, number: u32) {
        let mut clients = self.clients();
        let of_key = clients.numbers().filter(|client| client >> 32 == u64::from(number));
        for client in of_key.collect::<Vec<u64>>() {
            self.delegations().lose_all(client);
            for session in clients.bury(client) {
                self.volume().detach(session);
            }
            self.chores().todo.push_back(Chore::Forget(client));
        }
        drop(clients);
        self.sessions_changed().notify();
        self.lives_begun().notify();
    }

    /// A node has begun another life, and has no keys: they are told by the next [`Meta::tidy`].
    pub fn node_came(&self) {
        self.chores().keys_at = None;
    }

    /// The server gives these files back as soon as nobody uses them.
    pub(crate) fn give_back_later(&self, files: Vec<Ino>) {
        self.chores().todo.push_back(Chore::GiveBack(files));
    }

    /// Housekeeping, about once a second or when it said so; true if there is more to do at once.
    pub async fn tidy(&self, now: Time) -> bool {
        self.chores().begin_due(now);
        let gone = self.bury(now);
        let idle = self.own().take_idle(now);
        if !idle.is_empty() {
            self.give_back_later(idle);
        }
        let has_unresolved = !self.delegations().unresolved().is_empty();
        let former_leases = self.former_leases_go_on(now);
        {
            let mut chores = self.chores();
            chores.todo.extend(gone.into_iter().map(Chore::Forget));
            let due = is_due(chores.resolve_at, LOOK_EVERY, now) && !chores.resolve_runs;
            if has_unresolved && due && !former_leases {
                (chores.resolve_at, chores.resolve_runs) = (Some(now), true);
                chores.todo.push_back(Chore::Resolve);
            }
        }
        self.volume().expire_recalls();
        let is_old = self.losses().is_old(now);
        if is_old && let Err(errno) = power::forget(self.volume()).await {
            tracing::warn!(%errno, "the note of a loss of power stays");
        }
        self.end_grace_in_time(now).await;
        match self.volume().tidy().await {
            Ok(more) => more,
            Err(errno) => {
                tracing::warn!(%errno, "housekeeping of the volume failed; tried again");
                false
            }
        }
    }

    /// Clients that are gone lose what they had, at once: one may begin anew the next moment. So do
    /// sessions that a client's hosts had, and did not hand in again.
    fn bury(&self, now: Time) -> Vec<u64> {
        let mut clients = self.clients();
        let gone = clients.take_gone(now).into_iter().map(|(client, sessions)| {
            self.delegations().lose_all(client);
            sessions.into_iter().for_each(|session| self.volume().detach(session));
            client
        });
        let gone = gone.collect();
        let left_behind = clients.take_left_behind();
        drop(clients);
        for session in left_behind {
            tracing::info!(%session, "did not come back: its files and locks are released");
            self.volume().detach(session);
            self.losses().forget(session);
        }
        gone
    }

    /// Ends grace once all clients of the life before have begun and handed in what their hosts
    /// held, or their time is over.
    pub(crate) async fn end_grace_in_time(&self, now: Time) {
        let is_over = self.former_leases_end() <= now || self.clients().all_have_handed_in();
        if is_over && !self.chores().grace_is_over {
            self.end_grace().await;
        }
    }

    /// Hosts had the time to hand in what they held. So had clients of the server's life before.
    async fn end_grace(&self) {
        if let Err(errno) = self.volume().end_grace().await {
            tracing::warn!(%errno, "the grace period cannot be ended; tried again");
            return;
        }
        let former = self.clients().take_former();
        let mut chores = self.chores();
        chores.grace_is_over = true;
        chores.todo.extend(former.into_iter().map(Chore::Forget));
    }

    async fn deliver(&self, who: Who) {
        loop {
            let events = self.clients().next_events(who);
            if events.is_empty() {
                return;
            }
            let count = events.len();
            let call = Call::Events { events };
            let asked = self.ask(Peer::Client(who.client), &call, EVENTS);
            if asked.await == Ok(Reply::Done) {
                self.clients().delivered(who, count);
            } else {
                self.net().sleep(EVENTS / 20).await;
            }
        }
    }

    /// Tells all nodes the keys, and whose are revoked; how many of them know.
    pub(crate) async fn tell_all_keys(&self) -> usize {
        let placement = self.placement();
        let rotation = self.keys().rotation();
        let (reached, last) = self.tell_keys(placement.all()).await;
        self.keys().told(last, rotation);
        let all = placement.all().len();
        let mut chores = self.chores();
        chores.nodes_reached = reached;
        if reached < all {
            // A node without keys takes nothing: who has started anew is not to wait for them.
            chores.keys_at = None;
        }
        reached
    }

    /// Asks nodes for their space.
    pub(crate) async fn ask_for_space(&self) {
        let (mut free, mut capacity) = (0_u64, 0_u64);
        let placement = self.placement();
        let nodes = placement.all().iter();
        let asked = nodes.map(|node| self.ask(Peer::Node(node.node), &Call::Space, QUICK));
        for reply in join_all(asked.collect()).await {
            if let Ok(Reply::Space { free: its, capacity: of }) = reply {
                free = free.saturating_add(its);
                capacity = capacity.saturating_add(of);
            }
        }
        let mut chores = self.chores();
        (chores.free, chores.capacity) = (free, capacity);
    }

    /// Objects of files that are gone go at the nodes. Whoever may still write to one is asked to
    /// stop first, or it would come back.
    async fn purge_some(&self) {
        let objects = match self.volume().purges(0, PURGES).await {
            Ok(objects) => objects,
            Err(errno) => {
                tracing::warn!(%errno, "objects to be purged cannot be read; tried again");
                return;
            }
        };
        self.chores().purges_pending = objects.len();
        let mut purged = Vec::new();
        for object in objects {
            if self.purge(object).await.is_err() {
                // A node is away; another object may lie elsewhere, but is purged everywhere, too.
                break;
            }
            purged.push(object);
        }
        // They are not to come back by a loss of power once nobody here knows of them any more.
        if purged.is_empty() || self.flush_everywhere().await.is_err() {
            return;
        }
        for object in purged {
            if let Err(errno) = self.volume().purged(object).await {
                tracing::warn!(%errno, "an object that is purged cannot be forgotten; tried again");
                return;
            }
            let mut chores = self.chores();
            chores.purges_pending = chores.purges_pending.saturating_sub(1);
        }
    }

    async fn purge(&self, object: u64) -> outboard_base::Result<()> {
        let ino = Ino(object);
        self.free(ino).await?;
        let fence = self.delegations().raise(ino)?;
        self.delegations().resolved(ino);
        self.data().forget(object);
        self.purge_everywhere(object, fence).await
    }

    /// Figures, as JSON.
    pub fn status(&self) -> String {
        let now = self.net().now();
        let [clients, leases, sessions, events] = self.clients().counts(now);
        let (readers, writers) = self.delegations().counts();
        let unresolved = self.delegations().unresolved().len();
        let key = self.keys().signing().map_or_else(|| "null".to_owned(), |key| key.to_string());
        let placement = self.placement();
        let chores = self.chores();
        let registered = chores.registered.map_or_else(|| "null".to_owned(), |n| n.to_string());
        format!(
            "{{\"role\":\"meta\",\"life\":{},\"opening\":{},\"grace\":{},\"clients\":{clients},\
             \"leases\":{leases},\"sessions\":{sessions},\"events\":{events},\
             \"delegations\":{{\"read\":{readers},\"write\":{writers},\
             \"unresolved\":{unresolved}}},\
             \"key\":{key},\"registered\":{registered},\"nodes\":{},\"nodes_reached\":{},\
             \"purges\":{},\"free\":{},\"capacity\":{},\"map\":{},\"placed\":{{{}}}}}",
            self.options().life,
            self.volume().opening(),
            !chores.grace_is_over,
            placement.all().len(),
            chores.nodes_reached,
            chores.purges_pending,
            chores.free,
            chores.capacity,
            placement.newest(),
            chores.moving.text(placement.is_moving()),
        )
    }
}

fn translate(event: VolumeEvent) -> Option<(SessionId, Event)> {
    Some(match event {
        VolumeEvent::LockSettled { attachment: session, ticket, result } => {
            (session, Event::LockSettled { session, ticket, errno: result.err() })
        }
        VolumeEvent::RecallLocks { attachment: session, ino } => {
            (session, Event::RecallLocks { session, ino })
        }
        VolumeEvent::StaleInode { attachment: session, ino } => {
            (session, Event::StaleInode { session, ino })
        }
        VolumeEvent::StaleEntry { attachment: session, parent, name } => {
            (session, Event::StaleEntry { session, parent, name })
        }
        // A client's own: the volume behind a server has none.
        VolumeEvent::RecallPages { .. } => return None,
    })
}
