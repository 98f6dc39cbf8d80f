//! A node: the runtime with its policy, the store, and what the server asks of it.
//!
//! Whoever owns it gives [`NodeTarget`] to the conversations, and after each batch of packets calls
//! [`Node::tend`], which starts work and sends; calls go to [`Node::call`], the clock to
//! [`Node::set_wall`] (before each batch: capabilities end by it), idle time to [`Node::tidy`].

use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outboard_base::planted::{Fault, is_planted};
use outboard_base::task::{Work, join_all};
use outboard_base::{Errno, Time};
use outboard_flow::{Given, Part, Target};
use outboard_medium::Medium;
use outboard_wire::roce::Psn;
use outboard_wire::shared::call::{
    self, Acknowledged, CLAIMS_MAX, Call, OBJECTS_MAX, Object, Reply,
};
use outboard_wire::shared::{Peer, Reason, Rights};

use crate::heard::Heard;
use crate::nic::context::{Matching, Policy, Whose};
use crate::nic::table::DESCRIPTOR_LEN;
use crate::nic::{Limits, Nic, NotInstalled, STATE_BYTES};
use crate::policy::{Auth, Baseline, Doubt, HyperLoop, Rules, Settings, Steer, Threat};
use crate::relay::Relay;
use crate::serve::Serving;
use crate::term::{Refused, Terms, unwrap};
use crate::{Store, Version};

/// Numbers of streams, apart from those of packets, which have 24 bits.
const STREAMS: u32 = 1 << 30;
/// Bytes a second that are scrubbed where nobody says how many: a TiB in twelve days.
const SCRUB: u64 = 1 << 20;
/// What requests begin with.
const REQUEST: [u8; 2] = *b"OD";

/// How a node is.
#[derive(Clone, Copy, Debug)]
pub struct NodeOptions {
    /// Its number.
    pub node: u16,
    /// The epoch of its groups.
    pub epoch: u32,
    /// The volume it is of; `None`: any.
    pub volume: Option<u32>,
    /// Another number after each loss of power, and the same until then: what its media have not
    /// flushed in one boot may not be there in the next.
    pub boot: u64,
    /// Whom it trusts.
    pub threat: Threat,
    /// Processing units of the runtime. One runs inline; more are for models and tests.
    pub hpus: usize,
    /// Bytes of the request table.
    pub memory_bytes: usize,
    /// When requests are steered to the CPU side.
    pub steer: Steer,
    /// Bytes of requests and answers that may be under way, on each path.
    pub message_bytes: usize,
    /// Bytes of sums, in which handlers add up parities.
    pub sum_bytes: usize,
    /// Requests a peer may have under way.
    pub credit: u32,
    /// Bytes a second whose checksums are looked at though nobody reads them, at most.
    pub scrub: u64,
    /// Instead of the policy, for benchmarks.
    pub baseline: Option<Baseline>,
}

impl Default for NodeOptions {
    fn default() -> NodeOptions {
        NodeOptions {
            node: 0,
            epoch: 1,
            volume: None,
            boot: 0,
            threat: Threat::default(),
            hpus: 1,
            memory_bytes: 6 << 20,
            steer: Steer::default(),
            message_bytes: 64 << 20,
            sum_bytes: 16 << 20,
            credit: 64,
            scrub: SCRUB,
            baseline: None,
        }
    }
}

/// A node. Clones are the same one.
pub struct Node<M>(pub(crate) Arc<Inner<M>>);

pub(crate) struct Inner<M> {
    options: NodeOptions,
    store: Store<M>,
    /// Locked before the others.
    nic: Mutex<Nic>,
    heard: Mutex<Heard>,
    rules: Arc<Mutex<Rules>>,
    terms: Terms,
    pub(crate) relay: Relay,
}

impl<M> Clone for Node<M> {
    fn clone(&self) -> Self {
        Node(Arc::clone(&self.0))
    }
}

impl<M: Medium> Node<M> {
    /// A node on a store. It takes no signed request until it was told keys.
    #[must_use]
    pub fn new(store: Store<M>, options: NodeOptions) -> Node<M> {
        let NodeOptions { node, epoch, threat, volume, credit, boot, .. } = options;
        let settings = Settings { node, epoch, threat, volume, credit, boot };
        let mut rules = Rules::new(settings);
        rules.doubt = (!store.is_trusted_in(boot)).then(Doubt::of_all);
        let rules = Arc::new(Mutex::new(rules));
        let mut nic = Nic::new(Limits {
            table_bytes: options.memory_bytes.max(DESCRIPTOR_LEN),
            landing_bytes: options.message_bytes,
            sum_bytes: options.sum_bytes,
            units: options.hpus,
            packets: 1 << 16,
        });
        let (steer, baseline) = (options.steer, options.baseline);
        let auth = Auth { rules: Arc::clone(&rules), steer, baseline, most: Rights::READ_WRITE };
        let matching = Matching { magic: REQUEST, from: Whose::All };
        // Nothing was installed before it, and it takes less than there is.
        const { assert!(Rules::MEMORY + (1 + (1 << 12)) * Auth::MEMORY <= STATE_BYTES) };
        const { assert!(Rules::MEMORY + HyperLoop::MEMORY <= STATE_BYTES) };
        let (memory, policy) = policy(auth);
        let _ = nic.install(matching, Rules::MEMORY + memory, policy);
        let (nic, heard) = (Mutex::new(nic), Mutex::default());
        let (terms, relay) = (Terms::of(&store), Relay::default());
        Node(Arc::new(Inner { options, store, nic, heard, rules, terms, relay }))
    }

    /// Handlers and requests are timed by this clock from now on, one in many.
    pub fn set_clock(&self, clock: impl Fn() -> Time + Send + Sync + 'static) {
        self.nic().set_clock(Box::new(clock));
    }

    /// What takes packets of requests.
    #[must_use]
    pub fn target(&self) -> NodeTarget<M> {
        NodeTarget { node: self.clone(), parts: BTreeMap::new() }
    }

    /// Installs another context: of messages that are no requests.
    ///
    /// # Errors
    /// [`NotInstalled`].
    pub fn install(
        &self,
        matching: Matching,
        memory: usize,
        policy: Box<dyn Policy>,
    ) -> Result<(), NotInstalled> {
        self.nic().install(matching, memory, policy)
    }

    /// Whether [`Node::take_work`] has something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.nic().has_whole()
    }

    /// Work on a request that is whole: to be spawned. Its answer is there when it ends, or when
    /// that of its sum does.
    #[must_use]
    pub fn take_work(&self) -> Option<Work> {
        let whole = self.nic().take_whole()?;
        let node = self.clone();
        Some(Box::pin(async move {
            let inner = &*node.0;
            let (store, rules, nic) = (&inner.store, &*inner.rules, &inner.nic);
            let place = (whole.slot, whole.generation);
            let serving = Serving { store, rules, nic, place, baseline: inner.options.baseline };
            let answer = serving.serve(whole.peer, whole.is_sealed, whole.landing).await;
            if let Some(answer) = answer {
                let mut nic = node.nic();
                nic.release(whole.slot, whole.generation, answer);
                // Others of its sum, that are not whole, are cleaned up.
                nic.inline(&[]);
            }
        }))
    }

    /// Answers to send, and to whom. What handlers told the CPU side is heard then, too.
    #[must_use]
    pub fn take_answers(&self) -> Vec<(Peer, Vec<u8>)> {
        let mut nic = self.nic();
        self.hear(&mut nic);
        nic.take_answers()
    }

    /// Descriptors in use now.
    #[must_use]
    pub fn descriptors(&self) -> u32 {
        self.nic().table().used()
    }

    /// Where another node is. Nothing is forwarded to one that was not told here.
    pub fn know(&self, node: u16, address: SocketAddrV4) {
        self.rules().know(node, address);
    }

    /// What time it is, milliseconds of Unix time.
    pub fn set_wall(&self, wall_ms: u64) {
        self.rules().set_wall(wall_ms);
    }

    /// Replies to a call.
    pub async fn call(&self, from: Peer, call: Call) -> Reply {
        if let Call::Install { policy } = call {
            return self.install_for(from, policy);
        }
        if let Call::Settle { of } = call {
            let settled = self.settle(from, &of).await;
            return settled.map_or_else(|reason| Reply::Failed(errno(reason)), |()| Reply::Done);
        }
        if let Call::Flush { settles } = &call {
            // Of what it refuses it keeps longer what was replaced: nothing is lost.
            let _kept = join_all(settles.iter().map(|of| self.settle(from, of)).collect()).await;
        }
        let is_open = matches!(call, Call::Status | Call::Flush { .. } | Call::Space);
        let is_sealed = self.nic().is_sealed(from);
        if !is_open && !self.rules().is_server(from, is_sealed) {
            return Reply::Failed(Errno::EPERM);
        }
        let Some((term, call)) = unwrap(call) else { return Reply::Failed(Errno::EPROTO) };
        let answer = match self.0.terms.enter(&self.0.store, term, &call).await {
            Ok(_until_done) => self.answer(call).await,
            Err(Refused::Later(term)) => return Reply::Later { term },
            Err(Refused::Unnoted(reason)) => Err(reason),
        };
        answer.unwrap_or_else(|reason| Reply::Failed(errno(reason)))
    }

    /// A peer asks for a policy of its own: for its requests and nobody else's, so it needs no
    /// right. Whatever it is, it refuses what the node's own does.
    fn install_for(&self, from: Peer, asked: call::Policy) -> Reply {
        let inner = &*self.0;
        let common = (Rights::READ_WRITE, inner.options.steer);
        let (most, steer) = match asked {
            call::Policy::Common => common,
            call::Policy::ReadOnly => (Rights::READ, common.1),
            call::Policy::Steered => (common.0, Steer::Always),
            call::Policy::Unsteered => (common.0, Steer::Never),
        };
        let matching = Matching { magic: REQUEST, from: Whose::Only(from) };
        let mut nic = self.nic();
        // What is under way goes on under the new one.
        nic.uninstall(&matching);
        let (rules, baseline) = (Arc::clone(&inner.rules), inner.options.baseline);
        let (memory, policy) = policy(Auth { rules, steer, baseline, most });
        match nic.install(matching, memory, policy) {
            Ok(()) => Reply::Done,
            Err(NotInstalled::Memory | NotInstalled::Taken) => Reply::Failed(Errno::ENOSPC),
        }
    }

    /// A writer says what was acknowledged of an object that it may write to.
    async fn settle(&self, from: Peer, of: &Acknowledged) -> Result<(), Reason> {
        let Acknowledged { capability, sequence } = of;
        let is_sealed = self.nic().is_sealed(from);
        self.rules().check_writer(from, is_sealed, capability)?;
        let up_to = Version { fence: capability.fence, sequence: *sequence };
        let range = capability.first..capability.end;
        self.0.store.settle(capability.object, range, up_to).await
    }

    async fn answer(&self, call: Call) -> Result<Reply, Reason> {
        let store = &self.0.store;
        Ok(match call {
            Call::Seal { object, fence } => {
                let fence = if is_planted(Fault::Seal) { 0 } else { fence };
                // From now on nothing below it is accepted; what was before, the store refuses.
                self.rules().raise(object, fence);
                let sealed = store.seal(object, fence).await?;
                self.doubt(|doubt| doubt.seal(object, fence));
                Reply::Object(sealed)
            }
            Call::Purge { object, fence, until } => {
                // Delegations of it are over: what is late of them does not bring it back. One that
                // is granted later, should the number be used again, has a higher fence.
                self.rules().raise(object, fence);
                store.bury(object, fence, until).await?;
                Reply::Done
            }
            Call::Claims { object, epoch, from } => {
                self.is_of(epoch)?;
                Reply::Claims(store.claims(object, from, CLAIMS_MAX).await)
            }
            Call::Resolve { object, fence, epoch, decided } => {
                self.is_of(epoch)?;
                let lacking = store.resolve(object, fence, &decided).await?;
                self.rules().raise(object, fence);
                Reply::Claims(lacking)
            }
            Call::Doubts { object } => self.doubts(object),
            Call::Damaged { object, from } => {
                Reply::Claims(store.damaged_strips(object, from, CLAIMS_MAX))
            }
            Call::Trust { boot, .. } if boot != self.0.options.boot => {
                // Who says so found out before power was lost.
                Reply::Failed(Errno::ESTALE)
            }
            Call::Trust { object, .. } => {
                self.trust(object).await?;
                Reply::Done
            }
            Call::Objects { from } => Reply::Objects(store.objects(from, OBJECTS_MAX)),
            Call::Newest => {
                let (object, fence) = store.newest();
                Reply::Object(Object { object, end: 0, fence, bytes: 0 })
            }
            Call::Verify { object } => Reply::Number(self.verify(object).await?),
            Call::Keys { keys, revoked } => {
                let mut rules = self.rules();
                rules.set_revoked(&revoked);
                rules.set_keys(keys);
                Reply::Done
            }
            Call::Flush { .. } => {
                store.flush().await?;
                Reply::Number(self.0.options.boot)
            }
            Call::Space => Reply::Space { free: store.free(), capacity: store.capacity() },
            Call::Status => Reply::Text(self.status()),
            _ => Reply::Failed(Errno::ENOSYS),
        })
    }

    /// Whether it doubts an object, or, asked of all: those that are damaged, where it knows no
    /// more to doubt.
    fn doubts(&self, object: u64) -> Reply {
        let boot = Reply::Number(self.0.options.boot);
        let told = |doubt: &mut Doubt| match doubt.damaged() {
            Some(damaged) if object == Doubt::ALL => {
                let of = |object: &u64| Object { object: *object, end: 0, fence: 0, bytes: 0 };
                Reply::Objects(damaged.iter().take(OBJECTS_MAX).map(of).collect())
            }
            _ if doubt.trusts(object) => Reply::Done,
            _ => boot,
        };
        self.doubt(told).unwrap_or(Reply::Done)
    }

    /// Damaged grains of an object, which is doubted if it has any.
    async fn verify(&self, object: u64) -> Result<u64, Reason> {
        let damaged = self.0.store.verify(object).await?;
        self.doubt_damage();
        Ok(damaged)
    }

    fn doubt_damage(&self) {
        let damaged = self.0.store.damaged();
        self.rules().doubt_damage(&damaged);
    }

    /// What is here of an object, or of all, is what all who have copies have.
    async fn trust(&self, object: u64) -> Result<(), Reason> {
        if object == Doubt::ALL {
            self.0.store.trust(self.0.options.boot).await?;
            self.doubt(Doubt::trust_all);
        } else {
            self.0.store.forget_damage(object);
            self.doubt(|doubt| doubt.trust(object));
        }
        let mut rules = self.rules();
        rules.doubt = rules.doubt.take().filter(Doubt::is_any);
        Ok(())
    }

    /// Does something with its doubt, if it has any.
    fn doubt<R>(&self, f: impl FnOnce(&mut Doubt) -> R) -> Option<R> {
        self.rules().doubt.as_mut().map(f)
    }

    /// Whether this is the epoch of its groups (R3).
    fn is_of(&self, epoch: u32) -> Result<(), Reason> {
        if epoch == self.0.options.epoch { Ok(()) } else { Err(Reason::Epoch) }
    }

    /// Does what can wait. What fails is tried again by who writes next.
    pub async fn tidy(&self, wall_ms: u64) {
        self.set_wall(wall_ms);
        let _ = self.0.store.tidy().await;
        let _ = self.0.store.forget(wall_ms).await;
    }

    /// Looks at what nobody may have read for long: as much as [`NodeOptions::scrub`] says, for
    /// which the owner asks once a second. False if there is nothing to look at.
    pub async fn scrub(&self) -> bool {
        let found = self.0.store.scrub(self.0.options.scrub).await;
        if found.damaged > 0 {
            self.doubt_damage();
        }
        found.bytes > 0
    }

    /// Bytes of data the store can still take.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.0.store.free()
    }

    /// Objects from `from` on, in order.
    #[must_use]
    pub fn objects(&self, from: u64, most: usize) -> Vec<Object> {
        self.0.store.objects(from, most)
    }

    /// Figures as JSON.
    #[must_use]
    pub fn status(&self) -> String {
        let (keys, trusted) = {
            let rules = self.rules();
            (rules.keys(), rules.doubt.as_ref().map(Doubt::trusted))
        };
        let store = self.0.store.figures();
        let terms = self.0.terms.figures();
        let mut nic = self.nic();
        let heard = self.hear(&mut nic);
        crate::figures::json(&self.0.options, &nic, &heard, (keys, trusted), terms, &store)
    }

    /// Calls of a server that were refused, as a later one had been heard.
    #[must_use]
    pub fn late_calls(&self) -> u64 {
        self.0.terms.late()
    }

    fn hear(&self, nic: &mut Nic) -> Heard {
        let mut heard = self.0.heard.lock().unwrap_or_else(PoisonError::into_inner);
        nic.take_notices().iter().for_each(|notice| heard.hear(notice));
        *heard
    }

    pub(crate) fn nic(&self) -> MutexGuard<'_, Nic> {
        self.0.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.0.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives a node the packets of requests.
pub struct NodeTarget<M> {
    node: Node<M>,
    /// Pieces that come in several packets: the number of their stream, and where they begin.
    parts: BTreeMap<(Peer, u32), (u32, u32)>,
}

impl<M: Medium> NodeTarget<M> {
    /// Notes down what a message is to a stream; whether there is more to do with its packets.
    fn part(&mut self, from: Peer, given: &Given<'_>, nic: &mut Nic) -> bool {
        let Some(header) = &given.header else { return true };
        let key = (from, given.message.raw());
        match Part::of(from, header) {
            Part::None => true,
            Part::First { stream, bytes } => {
                let message = STREAMS | stream;
                self.parts.insert(key, (message, 0));
                nic.begin_pieces(from, message, bytes, given.payload);
                false
            }
            Part::Further { stream, offset } => {
                self.parts.insert(key, (STREAMS | stream, offset));
                true
            }
            Part::Cut { stream } => {
                nic.cut(from, STREAMS | stream);
                false
            }
        }
    }
}

impl<M: Medium> Target for NodeTarget<M> {
    fn opened(&mut self, from: Peer, sealed: bool) {
        self.node.nic().opened(from, sealed);
    }

    fn has_room(&mut self, _from: Peer) -> bool {
        self.node.nic().has_room()
    }

    fn knows(&mut self, from: Peer, stream: u32) -> bool {
        self.node.nic().knows(from, STREAMS | stream)
    }

    fn given(&mut self, from: Peer, given: &Given<'_>, _now: Time) {
        let node = self.node.clone();
        let (mut nic, key) = (node.nic(), (from, given.message.raw()));
        if self.part(from, given, &mut nic) {
            match self.parts.get(&key) {
                Some((message, begins)) => {
                    let offset = begins.saturating_add(given.offset);
                    nic.piece(from, *message, offset, given.payload);
                }
                None => nic.arrive(from, given, 0),
            }
        }
        if given.completes {
            self.parts.remove(&key);
        }
        nic.inline(given.payload);
    }

    fn cleanup(&mut self, from: Peer, message: Psn) {
        let mut nic = self.node.nic();
        match self.parts.remove(&(from, message.raw())) {
            Some((message, _)) => nic.cut(from, message),
            None => nic.cleanup(from, message),
        }
        nic.inline(&[]);
    }

    fn ended(&mut self, from: Peer) {
        self.parts.retain(|(peer, _), _| *peer != from);
        let mut nic = self.node.nic();
        nic.ended(from);
        nic.inline(&[]);
        nic.uninstall(&Matching { magic: REQUEST, from: Whose::Only(from) });
    }
}

/// What enforces these rules, and the bytes it takes.
fn policy(auth: Auth) -> (usize, Box<dyn Policy>) {
    match auth.baseline {
        Some(Baseline::HyperLoop) => (HyperLoop::MEMORY, Box::new(HyperLoop::new(auth))),
        _ => (Auth::MEMORY, Box::new(auth)),
    }
}

/// The reason of a refused call as an error.
fn errno(reason: Reason) -> Errno {
    match reason {
        Reason::Busy | Reason::Filling | Reason::Unreached => Errno::EAGAIN,
        Reason::Full => Errno::ENOSPC,
        Reason::Fence | Reason::Epoch | Reason::Order => Errno::ESTALE,
        Reason::Invalid | Reason::Range => Errno::EINVAL,
        Reason::Medium => Errno::EIO,
        Reason::Forged | Reason::Expired | Reason::Rights | Reason::Other => Errno::EPERM,
        Reason::Revoked => Errno::EACCES,
    }
}
