//! Lives of clients: how one begins, its lease, and what the volume notes of it, so that the next
//! life of the server knows for whom to wait.
//!
//! ```text
//! note   "client" | number u64, big-endian     value: nonces u64, little-endian, 8 at most
//! ```
//!
//! A note is durable before its client has a lease, and goes when the client is gone.

use std::pin::pin;
use std::time::Duration;

use outboard_base::task::join_all;
use outboard_base::{Errno, Ino, Result, Time};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::Kvfs;
use outboard_medium::Medium;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::{Call, Reply};

use crate::Meta;
use crate::clients::{Clients, Renewed, Who};
use crate::nodes::first_of;

/// How the names of clients' notes begin.
const PREFIX: &[u8] = b"client";
/// How long a client is given to hear that it lost a file.
const HEAR: Duration = Duration::from_secs(5);

fn name_of(client: u64) -> Vec<u8> {
    [PREFIX, &client.to_be_bytes()].concat()
}

/// Reads who may have a lease of the server's life before this.
pub(crate) async fn read_notes<K: Kv, M: Medium>(
    kvfs: &Kvfs<K, M>,
    clients: &mut Clients,
) -> Result<()> {
    let mut after: Option<Vec<u8>> = None;
    loop {
        let some = kvfs.notes(PREFIX, after.as_deref()).await?;
        let Some((last, _)) = some.last() else { return Ok(()) };
        after = Some(last.clone());
        for (name, value) in &some {
            let number = name.get(PREFIX.len()..).and_then(|raw| raw.try_into().ok());
            // What nobody can begin as is waited for, too.
            let client = number.map_or(Who::NOBODY.client, u64::from_be_bytes);
            let (nonces, _) = value.as_chunks();
            clients.was_there(client, nonces.iter().copied().map(u64::from_le_bytes));
        }
    }
}

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// A client's life begins: whatever a client of this number had before is over. Files that it
    /// may have written are sealed at their nodes before anybody gets them, itself first: its hosts
    /// may have something to write back.
    pub(crate) async fn begin(&self, client: u64, nonce: u64, now: Time) -> Result<Reply> {
        {
            let mut clients = self.clients();
            if clients.begin(client, nonce, now)? {
                // Before anything is done of what the new life asks.
                self.delegations().inherit_all(client);
                for session in clients.sessions_of(client) {
                    self.volume().forget_waits(session);
                }
            }
        }
        self.lives_begun().notify();
        // What its requests held back is for its next life.
        self.sessions_changed().notify();
        self.note(client).await?;
        Ok(Reply::Done)
    }

    /// A client's lease goes on.
    pub(crate) async fn renew(&self, client: u64, now: Time) -> Result<Reply> {
        let life = self.options().life;
        let term_ms = u32::try_from(self.options().lease.as_millis()).unwrap_or(u32::MAX);
        let (free, capacity) = self.chores().space();
        // Another life, and no lease in it.
        let other = life.wrapping_add(1);
        let ends = Reply::Lease { life: other, term_ms: 0, free, capacity };
        let met = self.clients().meet(client, now);
        let who = match met {
            Err(Errno::ESTALE) => return Ok(ends),
            met => met?,
        };
        self.note(client).await?;
        match self.renew_in(who, now)? {
            Renewed::Goes => {}
            Renewed::Ends => return Ok(ends),
            Renewed::After(lost) => {
                let calls = lost.iter().map(|ino| Call::Recall { ino: *ino, keep: None });
                let calls: Vec<Call> = calls.collect();
                let asked = calls.iter().map(|call| self.ask(Peer::Client(client), call, HEAR));
                for answer in join_all(asked.collect()).await {
                    answer?;
                }
                self.clients().heard(who, &lost);
                if self.renew_in(who, now)? != Renewed::Goes {
                    return Err(Errno::EAGAIN);
                }
            }
        }
        Ok(Reply::Lease { life, term_ms, free, capacity })
    }

    /// `ESTALE` if the client has another life by now.
    fn renew_in(&self, who: Who, now: Time) -> Result<Renewed> {
        let mut clients = self.clients();
        if clients.lives(who) { clients.renew(who.client, now) } else { Err(Errno::ESTALE) }
    }

    /// The volume has a note of a client from now on.
    async fn note(&self, client: u64) -> Result<()> {
        if self.clients().to_note(client).is_none() {
            return Ok(());
        }
        let _one = self.notes().exclusive(Ino(client)).await;
        let to_note = self.clients().to_note(client);
        if let Some((who, nonces)) = to_note {
            let value: Vec<u8> = nonces.into_iter().flat_map(u64::to_le_bytes).collect();
            self.volume().note(&name_of(client), Some(&value)).await?;
            self.clients().noted(who);
        }
        Ok(())
    }

    /// A client is gone: the volume's note of it goes, unless it has begun anew.
    pub(crate) async fn forget(&self, client: u64) {
        let _one = self.notes().exclusive(Ino(client)).await;
        let forgets = self.clients().forgets(client);
        if forgets && let Err(errno) = self.volume().note(&name_of(client), None).await {
            tracing::warn!(client, %errno, "the note of a client that is gone stays");
        }
    }

    /// Waits until no client can have a lease of the server's life before this: all who may have
    /// one have begun anew, or its time is over.
    pub(crate) async fn after_former_leases(&self) {
        let over = || (!self.former_leases_go_on(self.net().now())).then_some(());
        while over().is_none() {
            let left = self.former_leases_end().since(self.net().now());
            let (mut all, mut end) =
                (pin!(self.lives_begun().until(over)), pin!(self.net().sleep(left)));
            first_of(all.as_mut(), end.as_mut()).await;
        }
    }

    /// Whether leases of the life before may go on.
    pub(crate) fn former_leases_go_on(&self, now: Time) -> bool {
        self.former_leases_end() > now && !self.clients().all_have_begun()
    }
}
