//! The metadata server of shared volumes: names and inodes (a [`Kvfs`]) behind calls, and who may
//! use which file's bytes at the storage nodes (NetDFS II.A, III.A; checklist rows N2 to N4).
//!
//! A client asks by [`Meta::call`]; what the server does unasked (events, recalls, keys, purges) is
//! work that its owner spawns. Nothing here owns a clock, a thread or a socket: others are reached
//! through [`Net`].
//!
//! # Invariants
//!
//! 1. Of a file there are readers or one writer among the clients whose leases are not over.
//! 2. Before the first grant to write is answered the file is marked, durably; the mark goes once
//!    all that was written was told, or its nodes were sealed and asked.
//! 3. A fence only goes up, over the life of the volume.
//! 4. Nothing is signed with a key that nodes within reach have not.
//! 5. A session is one client's at a time, in one life of its.
//! 6. Who has a lease is noted in the volume, durably, before.
//! 7. Nobody is answered once another server of the volume is known to have begun.
//!
//! Parts: `delegations`, `clients`, `keys`, `placement` (tables without I/O); `grants`, `lives`,
//! `users`, `files`, `bytes`, `nodes`, `power`, `housekeeping`, `check`; `maps`, `moving`,
//! `copies`, `heal`: which nodes there are, and how files come to lie on them. The pages are
//! `docs/internals/{meta,replication,healing}.md`.

#![forbid(unsafe_code)]

mod bytes;
mod check;
mod clients;
mod copies;
mod delegations;
mod files;
mod grants;
mod heal;
mod housekeeping;
mod keys;
mod lives;
mod maps;
mod moving;
mod newest;
mod nodes;
mod placement;
mod power;
mod stripes;
mod telling;
mod tending;
mod users;

use core::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use outboard_base::task::Work;
use outboard_base::task::{RangeLocks, WaitList};
use outboard_base::{Errno, Ino, Result, Time, Timestamp};
use outboard_dfs::Data;
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::Kvfs;
use outboard_medium::Medium;
use outboard_wire::shared::call::{Call, Reply};
use outboard_wire::shared::{Coordinate, Peer};

pub use maps::{Made, identity, made_with, nodes_in_use};
pub use newest::count_beyond_nodes;
pub use tending::Tending;

use bytes::Own;
use clients::Clients;
use delegations::Delegations;
use grants::NOBODY;
use housekeeping::Chores;
use keys::Keys;
use placement::Placement;
use power::Losses;
use users::Users;

/// How long after the last lease of the life before the server's grace period ends.
const GRACE: Duration = Duration::from_secs(2);
/// Inodes read at a time.
const PAGE: usize = 1024;

/// How a server works.
#[derive(Clone, Debug)]
pub struct MetaOptions {
    /// The cluster's secret key.
    pub cluster_key: [u8; 32],
    /// The volume's number, in capabilities.
    pub volume: u32,
    /// A number that no other life of the server has.
    pub life: u64,
    /// Which of the lives of what the volume is stored on: another number after each loss of power.
    pub boot: u64,
    /// How long a lease goes on from the sending of a renewal.
    pub lease: Duration,
    /// How long a key signs.
    pub key_life: Duration,
    /// How long a capability counts.
    pub capability: Duration,
    /// How long a node may be away before files with copies on it get others elsewhere; nothing:
    /// for as long as it likes.
    pub heal_after: Option<Duration>,
    /// Where the nodes are.
    pub nodes: Vec<Coordinate>,
    /// The nodes there were when the volume was made: its first map. It must never change.
    pub members: Vec<u16>,
}

impl Default for MetaOptions {
    fn default() -> MetaOptions {
        MetaOptions {
            cluster_key: [0; 32],
            volume: 0,
            life: 0,
            boot: 0,
            lease: Duration::from_secs(10),
            key_life: Duration::from_secs(3600),
            capability: Duration::from_secs(300),
            heal_after: None,
            nodes: Vec::new(),
            members: Vec::new(),
        }
    }
}

struct Inner<K, M, N> {
    kvfs: Arc<Kvfs<K, M>>,
    /// The server's own way to the nodes, and the network.
    data: Data<N>,
    options: MetaOptions,
    placement: Mutex<Arc<Placement>>,
    /// When nobody can have a lease of the life before this any more.
    former_leases_end: Time,
    clients: Mutex<Clients>,
    delegations: Mutex<Delegations>,
    keys: Mutex<Keys>,
    users: Mutex<Users>,
    chores: Mutex<Chores>,
    own: Mutex<Own>,
    losses: Mutex<Losses>,
    turns: RangeLocks,
    changes: RangeLocks,
    /// Of files with copies: one at a time has what their members hold decided for a writer.
    mends: RangeLocks,
    /// Of each session, each lane: one request at a time.
    lanes: RangeLocks,
    sessions_changed: WaitList,
    /// Notes of clients, each written by one at a time.
    notes: RangeLocks,
    lives_begun: WaitList,
}

/// A metadata server. A clone is the same server.
pub struct Meta<K, M, N>(Arc<Inner<K, M, N>>);

impl<K, M, N> Clone for Meta<K, M, N> {
    fn clone(&self) -> Self {
        Meta(Arc::clone(&self.0))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Serves a volume from now on.
    ///
    /// # Errors
    /// `EINVAL` if the options contradict each other; what the store says otherwise.
    pub async fn open(kvfs: Arc<Kvfs<K, M>>, net: N, options: MetaOptions) -> Result<Self> {
        let maps = maps::read_notes(&kvfs, &options.members).await?;
        let placement = Placement::new(&options.nodes, maps.all, maps.moved)?;
        kvfs.lies_on(placement.current().len(), placement.newest());
        for node in &options.nodes {
            let address = SocketAddrV4::new(Ipv4Addr::from(node.address), node.port);
            net.know(Peer::Node(node.node), address);
        }
        let opening = kvfs.opening();
        let now = net.now();
        let losses = power::look(&kvfs, options.boot, now).await?;
        let mut delegations = Delegations::new(opening);
        let mut after = Ino::ROOT;
        loop {
            let some = kvfs.writing(after, PAGE).await?;
            let Some(last) = some.last() else { break };
            after = *last;
            for ino in some {
                let writer = kvfs.spread(ino).await.ok().and_then(|spread| spread.writer);
                match writer.filter(|writer| *writer != NOBODY) {
                    Some(writer) => delegations.inherits(ino, writer),
                    None => delegations.must_resolve(ino),
                }
            }
        }
        let mut clients = Clients::new(options.lease);
        lives::read_notes(&kvfs, &mut clients).await?;
        // A new volume has had no life before.
        let former_leases_end = if opening > 1 { now.after(options.lease + GRACE) } else { now };
        let mut keys = Keys::new(options.cluster_key, options.key_life, options.capability);
        let users = users::read_notes(&kvfs, &mut keys).await?;
        let inner = Inner {
            kvfs,
            // What it mends is to reach members that do not reach each other.
            data: Data::without_streams(net),
            placement: Mutex::new(Arc::new(placement)),
            former_leases_end,
            clients: Mutex::new(clients),
            delegations: Mutex::new(delegations),
            keys: Mutex::new(keys),
            users: Mutex::new(users),
            chores: Mutex::new(Chores::new(maps.rate, maps.out)),
            own: Mutex::new(Own::default()),
            losses: Mutex::new(losses),
            turns: RangeLocks::default(),
            changes: RangeLocks::default(),
            mends: RangeLocks::default(),
            lanes: RangeLocks::default(),
            sessions_changed: WaitList::default(),
            notes: RangeLocks::default(),
            lives_begun: WaitList::default(),
            options,
        };
        Ok(Meta(Arc::new(inner)))
    }

    /// Answers a call. It may wait for other clients; many are answered side by side.
    pub async fn call(&self, from: Peer, call: Call, now: Time, wall: Timestamp) -> Reply {
        let answer = match (from, call) {
            (_, Call::Status) => Ok(Reply::Text(self.status())),
            (Peer::Client(client), _) if self.users().is_revoked(client) => Err(Errno::EACCES),
            (Peer::Client(client), call) if client != NOBODY => {
                self.answer(client, call, now, wall).await
            }
            _ => Err(Errno::EPERM),
        };
        if self.answers_nobody() {
            std::future::pending::<()>().await;
        }
        answer.unwrap_or_else(Reply::Failed)
    }

    /// The server ends in order: nobody is answered any more, and all that was is durable, so that
    /// no loss of power after it loses anything.
    ///
    /// # Errors
    /// What the volume's store says.
    pub async fn end(&self) -> Result<()> {
        self.chores().ends();
        power::end(self.volume(), self.options().boot).await
    }

    async fn answer(&self, client: u64, call: Call, now: Time, wall: Timestamp) -> Result<Reply> {
        match call {
            Call::Renew => return self.renew(client, now).await,
            Call::Check { contents } => return self.check(contents).await.map(Reply::Text),
            Call::Begin { nonce } => return self.begin(client, nonce, now).await,
            Call::AddKey { .. }
            | Call::ListKeys
            | Call::RevokeKey { .. }
            | Call::RotateKey
            | Call::Place { .. } => return self.manage(client, call).await,
            _ => {}
        }
        let who = self.clients().meet(client, now)?;
        match call {
            Call::File { asker, request, payload } => {
                self.file(who, &asker, &request, payload, wall).await
            }
            Call::HandedIn => {
                self.clients().handed_in(who);
                self.end_grace_in_time(now).await;
                Ok(Reply::Done)
            }
            Call::Detach { session } => self.detach(who, session),
            Call::Back { session } => self.back(who, session).await,
            Call::Delegate { ino, mode } => {
                let grant = self.delegate(who, ino, mode).await?;
                Ok(Reply::Grant(Box::new(grant)))
            }
            Call::Regrant { ino, fence, unreached } => {
                let grant = self.regrant(who, ino, fence, unreached).await?;
                Ok(Reply::Grant(Box::new(grant)))
            }
            Call::Wrote { asker, request, count, fence, told } => {
                let wrote = (fence, told, count);
                self.wrote(who, &asker, &request, wrote).await.map(|()| Reply::Done)
            }
            Call::Answered { asker, request } => {
                let count = self.answered(who, &asker, &request).await?;
                count.map(|count| Reply::Number(u64::from(count))).ok_or(Errno::ENOENT)
            }
            Call::Strip { asker, ino } => self.strip(who, &asker, ino, wall).await,
            Call::MayWrite { asker, ino } => self.may_write(who, &asker, ino).await,
            Call::Opened { session, ino, fh } => self.opened(who, session, ino, fh),
            Call::Layout { ino } => {
                let layout = self.volume().layout(ino).await?;
                layout.map(Reply::Layout).ok_or(Errno::EOPNOTSUPP)
            }
            Call::SetLayout { asker, ino, layout } => {
                self.set_layout(who, &asker, ino, layout).await
            }
            call => self.answer_holder(client, call).await,
        }
    }

    /// What who has a file says of it.
    async fn answer_holder(&self, client: u64, call: Call) -> Result<Reply> {
        match call {
            Call::Publish { ino, fence, told } => {
                self.publish(client, ino, fence, told).await.map(|()| Reply::Done)
            }
            Call::Tells { ino, fence, told } => {
                self.tells(client, ino, fence, told).await.map(|()| Reply::Done)
            }
            Call::Holed { ino, fence } => {
                self.holed(client, ino, fence).await.map(|()| Reply::Done)
            }
            Call::Undone { ino, fence } => {
                self.undone(client, ino, fence).await.map(|()| Reply::Done)
            }
            Call::Release { ino, fence, told, keep } => {
                self.release(client, ino, fence, told, keep).await.map(|()| Reply::Done)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    pub(crate) fn volume(&self) -> &Kvfs<K, M> {
        &self.0.kvfs
    }

    pub(crate) fn net(&self) -> &N {
        self.0.data.net()
    }

    pub(crate) fn data(&self) -> &Data<N> {
        &self.0.data
    }
}

impl<K, M, N> Meta<K, M, N> {
    pub(crate) fn options(&self) -> &MetaOptions {
        &self.0.options
    }

    pub(crate) fn placement(&self) -> Arc<Placement> {
        Arc::clone(&locked(&self.0.placement))
    }

    pub(crate) fn change_placement(
        &self,
        change: impl FnOnce(&Placement) -> Result<Placement>,
    ) -> Result<()> {
        let mut placement = locked(&self.0.placement);
        let changed = change(&placement)?;
        *placement = Arc::new(changed);
        Ok(())
    }

    /// The nodes on which files may lie.
    pub fn each_node(&self, mut see: impl FnMut(u16)) {
        self.placement().all().iter().for_each(|node| see(node.node));
    }

    /// Whether a node is at another address than it was thought to be.
    pub(crate) fn move_node(&self, node: u16, address: SocketAddrV4) -> bool {
        let mut placement = locked(&self.0.placement);
        let found = placement.found(node, address);
        let has_moved = found.is_some();
        if let Some(found) = found {
            *placement = Arc::new(found);
        }
        has_moved
    }

    pub(crate) fn users(&self) -> MutexGuard<'_, Users> {
        locked(&self.0.users)
    }

    pub(crate) fn former_leases_end(&self) -> Time {
        self.0.former_leases_end
    }

    pub(crate) fn clients(&self) -> MutexGuard<'_, Clients> {
        locked(&self.0.clients)
    }

    pub(crate) fn delegations(&self) -> MutexGuard<'_, Delegations> {
        locked(&self.0.delegations)
    }

    pub(crate) fn keys(&self) -> MutexGuard<'_, Keys> {
        locked(&self.0.keys)
    }

    pub(crate) fn chores(&self) -> MutexGuard<'_, Chores> {
        locked(&self.0.chores)
    }

    pub(crate) fn own(&self) -> MutexGuard<'_, Own> {
        locked(&self.0.own)
    }

    pub(crate) fn losses(&self) -> MutexGuard<'_, Losses> {
        locked(&self.0.losses)
    }

    pub(crate) fn turns(&self) -> &RangeLocks {
        &self.0.turns
    }

    pub(crate) fn changes(&self) -> &RangeLocks {
        &self.0.changes
    }

    pub(crate) fn mends(&self) -> &RangeLocks {
        &self.0.mends
    }

    pub(crate) fn lanes(&self) -> &RangeLocks {
        &self.0.lanes
    }

    pub(crate) fn sessions_changed(&self) -> &WaitList {
        &self.0.sessions_changed
    }

    pub(crate) fn notes(&self) -> &RangeLocks {
        &self.0.notes
    }

    pub(crate) fn lives_begun(&self) -> &WaitList {
        &self.0.lives_begun
    }
}
