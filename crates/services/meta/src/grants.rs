//! Delegations given, taken back, and resolved: what the table of them says, carried out.
//!
//! Two locks of a file, both fair. Its *turn* is held by who wants something of it that others may
//! stand in the way of, for as long as that takes: first come, first served, and nothing new is
//! granted meanwhile. A *change* of what somebody has, with what goes into the volume with it, is
//! made under the other, which is short, and taken after the turn: so giving back never waits for
//! who recalls.

use std::pin::pin;
use std::time::Duration;

use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::{RangeGuard, join_all};
use outboard_base::{Errno, Ino, Result, SessionId, Timestamp};
use outboard_flow::Net;
use outboard_kv::Kv;
use outboard_kvfs::spread::{Record, Spread};
use outboard_medium::Medium;
use outboard_wire::shared::call::{Call, Grant, Mode, Reply, Told};
use outboard_wire::shared::{Capability, Coordinate, Coordinates, Peer, Rights, Strategy};

use crate::Meta;
use crate::clients::Who;
use crate::copies::{Filled, blocks_of};
use crate::delegations::{Held, InTheWay};
use crate::nodes::{PATIENCE, first_of};
use crate::stripes::{is_coded, is_size_known};

/// A number that no client has: all are others to it. The server's own.
pub(crate) const NOBODY: u64 = Who::NOBODY.client;
/// How often it is looked whether who was recalled still has a lease.
pub(crate) const LOOK: Duration = Duration::from_millis(250);
/// How long a client with a lease may take over a recall: what it has not written back by then is
/// lost with its lease.
const RECALL: Duration = Duration::from_secs(60);
/// How long it is tried to reach the nodes of a file that must be resolved.
const RESOLVE: Duration = Duration::from_secs(20);

impl<K: Kv, M: Medium, N: Net> Meta<K, M, N> {
    /// Gives a client a delegation; takes back what is in the way.
    pub(crate) async fn delegate(&self, who: Who, ino: Ino, mode: Mode) -> Result<Grant> {
        let client = who.client;
        self.needs_lease(who)?;
        if let Some(held) = self.has_already(ino, client, mode) {
            // It asks for a new capability, maybe because a node did not know the key of the old.
            return self.grant_again(client, ino, held).await;
        }
        self.volume().spread(ino).await?;
        loop {
            let _turn = self.turn(ino, client).await;
            if let Some(held) = self.has_already(ino, client, mode) {
                return self.grant_again(client, ino, held).await;
            }
            match self.grant_in_turn(who, ino, mode).await {
                Err(Errno::EAGAIN) if self.waits_for_heir(ino, client) => {}
                done => return done,
            }
        }
    }

    /// In a file's turn: to a client that has less.
    pub(crate) async fn grant_in_turn(&self, who: Who, ino: Ino, mode: Mode) -> Result<Grant> {
        if mode == Mode::Write {
            // Readers of the life before may still have leases.
            self.after_former_leases().await;
        }
        self.clear_the_way(ino, who.client, mode).await?;
        if mode == Mode::Write {
            match self.leave_out_away(ino).await {
                // Too few answer for that: who writes finds out, and has it decided.
                Err(Errno::EIO | Errno::EAGAIN) => {}
                left => left?,
            }
            self.make_durable(ino).await?;
        }
        self.needs_lease(who)?;
        let change = self.changes().exclusive(ino).await;
        if !self.delegations().in_the_way(ino, who.client, mode).is_empty() {
            return Err(Errno::EAGAIN);
        }
        if mode == Mode::Write && !is_planted(Fault::Mark) {
            self.volume().begin_writing(ino, who.client, who == Who::NOBODY).await?;
        }
        let spread = self.volume().spread(ino).await?;
        let held = match self.give(who, ino, mode) {
            Err(Errno::ESTALE) if mode == Mode::Write => {
                self.end_writing(ino).await?;
                return Err(Errno::ESTALE);
            }
            held => held?,
        };
        drop(change);
        self.grant_of(who.client, &spread, held).await
    }

    /// In the table: to who has a lease, in that life of its.
    fn give(&self, who: Who, ino: Ino, mode: Mode) -> Result<Held> {
        let clients = self.clients();
        if who != Who::NOBODY && !clients.may_take(who, self.net().now()) {
            return Err(Errno::ESTALE);
        }
        self.delegations().grant(ino, who.client, mode)
    }

    pub(crate) fn has_already(&self, ino: Ino, client: u64, mode: Mode) -> Option<Held> {
        let table = self.delegations();
        table.held(ino, client).filter(|held| held.mode >= mode && !table.is_inherited(ino))
    }

    /// A file's turn. Whoever has it may stand in the way of a client that writes back what hosts
    /// had in its life before; so that is waited for first.
    pub(crate) async fn turn(&self, ino: Ino, client: u64) -> RangeGuard<'_> {
        loop {
            while self.waits_for_heir(ino, client) {
                self.net().sleep(LOOK).await;
            }
            let turn = self.turns().exclusive(ino).await;
            if !self.waits_for_heir(ino, client) {
                return turn;
            }
        }
    }

    /// Whether a file is kept for another client.
    pub(crate) fn waits_for_heir(&self, ino: Ino, client: u64) -> bool {
        let heir = self.delegations().heir(ino).filter(|heir| *heir != client);
        let (now, former) = (self.net().now(), self.former_leases_end());
        heir.is_some_and(|heir| self.clients().comes_back(heir, now, former))
    }

    pub(crate) fn needs_lease(&self, who: Who) -> Result<()> {
        let has_lease = who == Who::NOBODY || self.clients().may_take(who, self.net().now());
        if has_lease { Ok(()) } else { Err(Errno::ESTALE) }
    }

    /// A fresh capability for what a client has.
    pub(crate) async fn grant_again(&self, client: u64, ino: Ino, held: Held) -> Result<Grant> {
        let spread = self.volume().spread(ino).await?;
        self.tell_keys(&self.nodes_of(&spread)).await;
        self.grant_of(client, &spread, held).await
    }

    pub(crate) async fn grant_of(&self, client: u64, spread: &Spread, held: Held) -> Result<Grant> {
        self.grant_at(client, spread, held, self.nodes_of(spread)).await
    }

    /// The same for a file on these nodes.
    pub(crate) async fn grant_at(
        &self,
        client: u64,
        spread: &Spread,
        held: Held,
        nodes: Vec<Coordinate>,
    ) -> Result<Grant> {
        if self.keys().is_untold() {
            self.tell_all_keys().await;
        }
        let layout = spread.layout;
        let group = match layout.strategy {
            Strategy::Single => layout.group,
            _ => Coordinates::new(&nodes).map_err(|_| Errno::EIO)?.group(),
        };
        let k = match layout.strategy {
            Strategy::Single | Strategy::Parity => layout.k,
            Strategy::Ring | Strategy::BinaryTree => {
                u8::try_from(nodes.len()).map_err(|_| Errno::EIO)?
            }
        };
        let capability = Capability {
            key: 0,
            rights: match held.mode {
                Mode::Read => Rights::READ,
                Mode::Write => Rights::READ_WRITE,
            },
            volume: self.options().volume,
            object: spread.attr.ino.0,
            first: 0,
            end: u64::MAX,
            client,
            fence: held.fence,
            group,
            strategy: layout.strategy,
            k,
            m: layout.m,
            expires: 0,
            mac: [0; 16],
        };
        let capability = self.keys().sign(capability, self.net().wall_ms())?;
        let grant = Grant {
            mode: held.mode,
            attr: spread.attr.clone(),
            strips: spread.strips,
            kept: self.delegations().heir(spread.attr.ino) == Some(client),
            layout,
            capability,
            nodes,
        };
        if client == NOBODY {
            self.data().goes_on(&grant);
        }
        Ok(grant)
    }

    /// A writer says what it knows better; `ESTALE` if it is none under this fence.
    pub(crate) async fn publish(
        &self,
        client: u64,
        ino: Ino,
        fence: u64,
        told: Told,
    ) -> Result<()> {
        let _change = self.changes().exclusive(ino).await;
        if !self.delegations().writes(ino, client, fence) {
            return Err(Errno::ESTALE);
        }
        let session = self.clients().sessions_of(client).next();
        self.tell_volume(session, ino, told, None).await
    }

    /// Under the lock of changes. The writer's own host need not hear of it.
    pub(crate) async fn tell_volume(
        &self,
        session: Option<SessionId>,
        ino: Ino,
        told: Told,
        record: Option<Record>,
    ) -> Result<()> {
        match self.volume().publish(session, ino, told, record).await {
            // The file is gone, and nobody can see its size.
            Err(Errno::ESTALE) => Ok(()),
            done => done.map(|_| ()),
        }
    }

    /// A client gives back what it has under a fence, down to `keep`. Done again it changes
    /// nothing; `ESTALE` if it has something to say under a fence that was taken from it.
    pub(crate) async fn release(
        &self,
        client: u64,
        ino: Ino,
        fence: u64,
        told: Option<Told>,
        keep: Option<Mode>,
    ) -> Result<()> {
        let _change = self.changes().exclusive(ino).await;
        if let Some(told) = told {
            if self.delegations().writes(ino, client, fence) {
                let session = self.clients().sessions_of(client).next();
                self.tell_volume(session, ino, told, None).await?;
            } else if !self.delegations().was_given_back(ino, client, fence) {
                return Err(Errno::ESTALE);
            }
        }
        self.give_back(client, ino, fence, keep).await
    }

    /// Under the lock of changes: all that was written was told.
    pub(crate) async fn give_back(
        &self,
        client: u64,
        ino: Ino,
        fence: u64,
        keep: Option<Mode>,
    ) -> Result<()> {
        let wrote = self.delegations().writes(ino, client, fence);
        // What is to be decided is resolved before another gets the file: its mark stays.
        if wrote && keep != Some(Mode::Write) && !self.delegations().is_unresolved(ino) {
            self.end_writing(ino).await?;
        }
        self.delegations().give_back(ino, client, fence, keep);
        Ok(())
    }

    /// Nobody but `client` has more of a file than `mode` allows beside it, and its size is known.
    /// The server may have it all the same where only that is asked: it tells as it writes.
    pub(crate) async fn settle(&self, ino: Ino, client: u64, mode: Mode) -> Result<()> {
        if self.is_settled(ino, client, mode) {
            return Ok(());
        }
        self.cleared(ino, client, mode).await.map(drop)
    }

    fn is_settled(&self, ino: Ino, client: u64, mode: Mode) -> bool {
        let table = self.delegations();
        let others = table.in_the_way(ino, client, mode);
        let tells = |other: &InTheWay| mode == Mode::Read && other.client == NOBODY;
        !table.is_unresolved(ino) && others.iter().all(tells)
    }

    /// Nobody has anything of a file, the server neither.
    pub(crate) async fn free(&self, ino: Ino) -> Result<()> {
        let _turn = self.cleared(ino, NOBODY, Mode::Write).await?;
        self.give_up(ino, None).await
    }

    /// A file's turn, in which nobody is in the way.
    pub(crate) async fn cleared(
        &self,
        ino: Ino,
        client: u64,
        mode: Mode,
    ) -> Result<RangeGuard<'_>> {
        loop {
            let turn = self.turn(ino, client).await;
            match self.clear_the_way(ino, client, mode).await {
                Ok(()) => return Ok(turn),
                Err(Errno::EAGAIN) if self.waits_for_heir(ino, client) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// In a file's turn, alone. `EAGAIN` if it is kept for another by now, who needs the turn.
    pub(crate) async fn clear_the_way(&self, ino: Ino, client: u64, mode: Mode) -> Result<()> {
        let others = self.delegations().in_the_way(ino, client, mode);
        let recalls = others.into_iter().map(|other| self.recall(ino, other)).collect();
        join_all(recalls).await.into_iter().collect::<Result<()>>()?;
        if self.waits_for_heir(ino, client) {
            return Err(Errno::EAGAIN);
        }
        if self.delegations().is_unresolved(ino) {
            self.resolve(ino).await?;
        }
        Ok(())
    }

    /// Takes a delegation back: by asking, or, once the client's lease is over, without.
    async fn recall(&self, ino: Ino, other: InTheWay) -> Result<()> {
        let InTheWay { client, keep, held } = other;
        if client == NOBODY {
            return self.give_up(ino, keep).await;
        }
        let begun = self.net().now();
        let mut bytes = Vec::new();
        Call::Recall { ino, keep }.encode(&mut bytes);
        while let Some(held) = self.has_still(ino, client, held, keep) {
            let now = self.net().now();
            let is_inherited = self.delegations().is_inherited(ino);
            if is_inherited || !self.clients().has_lease(client, now) {
                self.take(ino, client, held).await;
                return Ok(());
            }
            if now.since(begun) > RECALL {
                self.clients().expel(client);
            }
            let asked = self.net().call(Peer::Client(client), bytes.clone());
            let answer = self.while_it_has_a_lease(client, asked).await;
            let answer = answer.and_then(std::result::Result::ok);
            if answer.is_some_and(|bytes| Reply::decode(&bytes) == Ok(Reply::Done)) {
                let _change = self.changes().exclusive(ino).await;
                self.give_back(client, ino, held.fence, keep).await?;
            } else {
                self.net().sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// What a client has instead of this, without a break, if that is more than it may keep.
    fn has_still(&self, ino: Ino, client: u64, held: Held, keep: Option<Mode>) -> Option<Held> {
        let now = self.delegations().named(ino, client, held.fence);
        now.filter(|now| Some(now.mode) > keep)
    }

    /// The outcome, if it comes while a client has a lease, and in the time that a recall may take.
    async fn while_it_has_a_lease<T>(
        &self,
        client: u64,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        let begun = self.net().now();
        loop {
            let mut look = pin!(self.net().sleep(LOOK));
            if let Some(out) = first_of(work.as_mut(), look.as_mut()).await {
                return Some(out);
            }
            let now = self.net().now();
            if !self.clients().has_lease(client, now) || now.since(begun) > RECALL {
                return None;
            }
        }
    }

    /// A late client loses a delegation. What it wrote is found by resolving.
    pub(crate) async fn take(&self, ino: Ino, client: u64, held: Held) {
        let _change = self.changes().exclusive(ino).await;
        let mut table = self.delegations();
        if table.held(ino, client).is_some_and(|now| now.fence == held.fence) {
            // What it inherited it has not heard of.
            let is_known = !table.is_inherited(ino);
            table.lose(ino, client);
            drop(table);
            if is_known {
                self.clients().lost(client, ino);
            }
        }
    }

    /// In a file's turn: seals it at its nodes, and finds out how long it is.
    async fn resolve(&self, ino: Ino) -> Result<()> {
        self.after_former_leases().await;
        let begun = self.net().now();
        loop {
            match self.try_to_resolve(ino).await {
                Err(Errno::EIO | Errno::EAGAIN) if self.net().now().since(begun) < RESOLVE => {
                    self.net().sleep(LOOK).await;
                }
                done => return done,
            }
        }
    }

    pub(crate) async fn try_to_resolve(&self, ino: Ino) -> Result<()> {
        let _change = match self.resolve_bytes(ino).await {
            // The file is gone: its objects are to be purged.
            Err(Errno::ESTALE) => {
                self.delegations().resolved(ino);
                return Ok(());
            }
            resolved => resolved?,
        };
        // What is inherited is marked until its heir has it, or nobody.
        if self.delegations().is_inherited(ino) || self.end_writing(ino).await? {
            self.delegations().resolved(ino);
        }
        Ok(())
    }

    /// Seals a file at its nodes, has what they hold decided, and tells the volume how long it is;
    /// nobody changes what it is to the volume until what is returned is dropped.
    async fn resolve_bytes(&self, ino: Ino) -> Result<RangeGuard<'_>> {
        let fence = self.delegations().raise(ino)?;
        let spread = self.volume().spread(ino).await?;
        let (mut found, spread) = match spread.layout.is_redundant() {
            true => self.make_equal(spread, fence, Filled::default()).await?,
            false => (self.seal_at(&self.nodes_of(&spread), ino.0, fence).await?, spread),
        };
        // Nobody wrote after a cut that was not carried out, so the size is the volume's. So it is
        // if who wrote told before it answered: what lies behind is a torn piece of what is asked
        // again, or of what failed. Who writes stripes tells always, and these end behind the file.
        let end = found.iter().map(|object| object.end).max().unwrap_or(0);
        let is_coded = is_coded(&spread.layout);
        let is_torn = match is_coded {
            true => is_size_known(&spread) && end > 0,
            false => spread.tells && end > spread.attr.size,
        };
        let torn = is_torn.then_some(spread.attr.size);
        let was_cut = self.finish_cut(&spread, spread.cut.or(torn), fence).await?;
        if was_cut {
            found = self.seal_at(&self.nodes_of(&spread), ino.0, fence).await?;
        }
        let end = found.iter().map(|object| object.end).max().unwrap_or(0);
        let end = match is_coded {
            true if is_size_known(&spread) || was_cut => 0,
            true => self.end_of_stripes(&spread, fence, end).await?,
            false => end,
        };
        let change = self.changes().exclusive(ino).await;
        let blocks = blocks_of(&spread.layout, &found);
        let now = self.volume().spread(ino).await;
        if now.as_ref().is_ok_and(|now| now.cut != spread.cut) {
            // It was cut meanwhile: what nodes hold is not how long it is.
            return Err(Errno::EAGAIN);
        }
        let known = now.map_or(spread.attr, |now| now.attr);
        if was_cut {
            self.volume().holed(ino).await?;
        }
        if end > known.size || blocks != known.blocks {
            let written = end > known.size;
            let mtime = written.then(|| timestamp(self.net().wall_ms()));
            let told = Told { size: end.max(known.size), mtime, blocks: Some(blocks) };
            match self.volume().publish(None, ino, told, None).await {
                Ok(_) | Err(Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(change)
    }

    /// Nobody writes to a file any more. False if its nodes may hold what a truncation took away:
    /// then it is unresolved.
    async fn end_writing(&self, ino: Ino) -> Result<bool> {
        let is_whole = match self.volume().end_writing(ino).await {
            Err(Errno::ESTALE) => true,
            ended => ended?,
        };
        if !is_whole {
            self.delegations().must_resolve(ino);
        }
        Ok(is_whole)
    }

    /// A truncation that nobody has carried out at the nodes, who have sealed the file under this
    /// fence: what lies behind goes. True if there was one.
    async fn finish_cut(&self, spread: &Spread, cut: Option<u64>, fence: u64) -> Result<bool> {
        let Some(cut) = cut else { return Ok(false) };
        let held = Held { mode: Mode::Write, fence };
        let grant = self.grant_of(NOBODY, spread, held).await?;
        let holed = self.within(PATIENCE, self.data().hole(&grant, cut..u64::MAX)).await;
        holed.ok_or(Errno::EIO)?.map_err(|_| Errno::EIO)?;
        Ok(true)
    }

    /// The writer has carried out a truncation; `ESTALE` if it is none under this fence.
    pub(crate) async fn holed(&self, client: u64, ino: Ino, fence: u64) -> Result<()> {
        let _change = self.changes().exclusive(ino).await;
        if !self.delegations().writes(ino, client, fence) {
            return Err(Errno::ESTALE);
        }
        match self.volume().holed(ino).await {
            Err(Errno::ESTALE) => Ok(()),
            done => done,
        }
    }

    /// Resolves what gone clients wrote, so that its size is right before somebody asks.
    pub(crate) async fn resolve_some(&self) {
        let some = self.delegations().unresolved();
        for ino in some {
            let _turn = self.turns().exclusive(ino).await;
            // Of what somebody still writes it is done when that ends.
            if self.delegations().is_left(ino) && self.try_to_resolve(ino).await.is_err() {
                // Its nodes cannot be reached; whoever wants it, or the next round, tries again.
                self.net().sleep(LOOK).await;
            }
        }
    }
}

/// A moment of Unix time.
pub(crate) fn timestamp(wall_ms: u64) -> Timestamp {
    let nsec = u32::try_from(wall_ms % 1000).unwrap_or(0).saturating_mul(1_000_000);
    Timestamp { sec: i64::try_from(wall_ms / 1000).unwrap_or(i64::MAX), nsec }
}
