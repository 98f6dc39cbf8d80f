//! What the parts of a cluster do on their threads: a node, the metadata server, a client.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_base::Time;
use outboard_base::task::Spawn;
use outboard_dfs::Dfs;
use outboard_flow::{Conversations, Net};
use outboard_kv::Kv;
use outboard_kvfs::Kvfs;
use outboard_medium::Medium;
use outboard_meta::Meta;
use outboard_node::{Node, NodeTarget};
use outboard_os::clock;
use outboard_volume::Housekeeping;
use outboard_wire::shared::Peer;
use outboard_wire::shared::call::Call;

use crate::net::Asking;
use crate::runtime::{Replying, Role};

/// How often a part keeps house.
const EVERY: Duration = Duration::from_secs(1);
/// The pause between two steps while there is more to do: other work goes first.
const PAUSE: Duration = Duration::from_millis(5);

/// Something done now and then, one step at a time.
#[derive(Default)]
pub(crate) struct Now {
    next: Rc<Cell<Option<Time>>>,
    under_way: Rc<Cell<bool>>,
}

impl Now {
    /// The next step is `after` this, unless one is due before.
    pub(crate) fn begin(&self, now: Time, after: Duration) {
        if !self.under_way.get() && self.next.get().is_none() {
            self.next.set(Some(now.after(after)));
        }
    }

    /// The next step is now, unless one is under way.
    fn hurry(&self, now: Time) {
        if !self.under_way.get() {
            self.next.set(Some(now));
        }
    }

    /// Starts a step if it is due; how long it is to the next, it says itself. `None`: until
    /// something happens.
    pub(crate) fn step<F>(&self, now: Time, spawn: &dyn Spawn, step: impl FnOnce() -> F) -> bool
    where
        F: Future<Output = Option<Duration>> + 'static,
    {
        if self.under_way.get() || self.next.get().is_none_or(|next| now < next) {
            return false;
        }
        self.next.set(None);
        self.under_way.set(true);
        let (next, under_way, step) = (Rc::clone(&self.next), Rc::clone(&self.under_way), step());
        spawn.spawn(Box::pin(async move {
            let pause = step.await;
            next.set(pause.map(|pause| clock::now().after(pause)));
            under_way.set(false);
        }));
        true
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.next.get()
    }
}

/// A storage node.
pub struct NodeRole<M: Medium> {
    node: Node<M>,
    conversations: Conversations<NodeTarget<M>>,
    tidying: Now,
    scrubbing: Now,
}

impl<M: Medium> NodeRole<M> {
    /// Of `node`, whose target `conversations` have.
    #[must_use]
    pub fn new(node: Node<M>, conversations: Conversations<NodeTarget<M>>) -> NodeRole<M> {
        node.set_clock(Box::new(clock::now));
        let (tidying, scrubbing) = (Now::default(), Now::default());
        scrubbing.begin(clock::now(), EVERY);
        NodeRole { node, conversations, tidying, scrubbing }
    }

    /// Where another node is, to which this one passes writes on.
    pub fn know(&self, node: u16, address: SocketAddrV4) {
        self.node.know(node, address);
        self.conversations.know(Peer::Node(node), address);
    }
}

impl<M: Medium + 'static> Role for NodeRole<M> {
    /// The handlers' clock: a node that was idle must not take what ended meanwhile.
    fn wakes(&self, wall_ms: u64) {
        self.node.set_wall(wall_ms);
    }

    fn call(&self, from: Peer, call: Call) -> Replying {
        self.tidying.begin(clock::now(), EVERY);
        let node = self.node.clone();
        Box::pin(async move { node.call(from, call).await })
    }

    fn tend(&self, now: Time, spawn: &dyn Spawn) -> usize {
        let mut done = 0;
        if self.node.has_work() {
            self.tidying.begin(now, EVERY);
            self.scrubbing.begin(now, EVERY);
        }
        done += self.node.tend(&self.conversations, spawn);
        done += usize::from(self.tidying.step(now, spawn, || {
            let node = self.node.clone();
            async move {
                node.tidy(crate::wall_ms(clock::wall())).await;
                None
            }
        }));
        done += usize::from(self.scrubbing.step(now, spawn, || {
            let node = self.node.clone();
            // One that holds nothing waits for work.
            async move { node.scrub().await.then_some(EVERY) }
        }));
        done
    }

    fn deadline(&self) -> Option<Time> {
        let all = [self.tidying.deadline(), self.scrubbing.deadline()];
        all.into_iter().flatten().min()
    }
}

/// The metadata server.
pub struct ServerRole<K, M> {
    meta: Meta<K, M, Asking>,
    volume: Arc<Kvfs<K, M>>,
    check: Rc<dyn Fn()>,
    tidying: Now,
    conversations: Conversations,
    /// The lives of nodes that are known.
    nodes: RefCell<BTreeMap<u16, Option<u64>>>,
}

impl<K: Kv, M: Medium> ServerRole<K, M> {
    /// Of `meta`, which serves `volume`. `check` is asked before every reply, and ends the process
    /// if the volume may be another's.
    #[must_use]
    pub fn new(
        meta: Meta<K, M, Asking>,
        volume: Arc<Kvfs<K, M>>,
        check: Option<Box<dyn Fn()>>,
        conversations: Conversations,
    ) -> ServerRole<K, M> {
        let check: Rc<dyn Fn()> = check.map_or_else(|| Rc::new(|| ()) as _, Rc::from);
        let tidying = Now::default();
        tidying.begin(clock::now(), PAUSE);
        ServerRole { meta, volume, check, tidying, conversations, nodes: RefCell::default() }
    }

    /// Whether a node has begun another life since this was asked.
    fn has_come(&self) -> bool {
        let (mut known, mut has_come) = (self.nodes.borrow_mut(), false);
        self.meta.each_node(|node| {
            let life = self.conversations.life_of(Peer::Node(node));
            has_come |= known.insert(node, life) != Some(life);
        });
        has_come
    }
}

impl<K: Kv + 'static, M: Medium + 'static> Role for ServerRole<K, M> {
    fn call(&self, from: Peer, call: Call) -> Replying {
        let (meta, check) = (self.meta.clone(), Rc::clone(&self.check));
        Box::pin(async move {
            let reply = meta.call(from, call, clock::now(), clock::wall()).await;
            check();
            reply
        })
    }

    fn tend(&self, now: Time, spawn: &dyn Spawn) -> usize {
        // Before anything is sent, as before each reply.
        (self.check)();
        if self.has_come() {
            self.meta.node_came();
            self.tidying.hurry(now);
        }
        self.meta.events();
        let mut done = 0;
        done += usize::from(self.tidying.step(now, spawn, || {
            let meta = self.meta.clone();
            async move { Some(if meta.tidy(clock::now()).await { PAUSE } else { EVERY }) }
        }));
        for work in self.meta.take_work() {
            spawn.spawn(work);
            done += 1;
        }
        done
    }

    fn rest(&self, spawn: &dyn Spawn) -> bool {
        self.volume.idle();
        let is_due = self.volume.wants_checkpoint();
        if is_due {
            let volume = Arc::clone(&self.volume);
            spawn.spawn(Box::pin(async move {
                if let Err(errno) = volume.checkpoint().await {
                    tracing::error!(%errno, "cannot note down what is durable");
                }
            }));
        }
        is_due
    }

    fn deadline(&self) -> Option<Time> {
        self.tidying.deadline()
    }
}

/// A client: the DPU side of a host.
pub struct ClientRole<N> {
    dfs: Arc<Dfs<N>>,
    next_beat: Cell<Time>,
    /// The server has said something: there may be work.
    has_heard: Rc<Cell<bool>>,
}

impl<N: Net> ClientRole<N> {
    /// Of `dfs`.
    #[must_use]
    pub fn new(dfs: Arc<Dfs<N>>) -> ClientRole<N> {
        let next_beat = Cell::new(clock::now().after(EVERY));
        ClientRole { dfs, next_beat, has_heard: Rc::default() }
    }
}

impl<N: Net> Role for ClientRole<N> {
    fn call(&self, _: Peer, call: Call) -> Replying {
        let (dfs, has_heard) = (Arc::clone(&self.dfs), Rc::clone(&self.has_heard));
        Box::pin(async move {
            let reply = dfs.incoming(call).await;
            has_heard.set(true);
            reply
        })
    }

    fn tend(&self, now: Time, spawn: &dyn Spawn) -> usize {
        let beats = now >= self.next_beat.get();
        if beats {
            self.next_beat.set(now.after(EVERY));
            let dfs = Arc::clone(&self.dfs);
            spawn.spawn(Box::pin(async move { dfs.beat().await }));
        }
        if !self.has_heard.take() && !beats {
            return 0;
        }
        let works = self.dfs.take_work();
        let done = works.len() + usize::from(beats);
        works.into_iter().for_each(|work| spawn.spawn(work));
        done
    }

    fn deadline(&self) -> Option<Time> {
        Some(self.next_beat.get())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use outboard_base::task::Work;
    use outboard_flow::{Config, Settings};
    use outboard_medium::mem::MemMedium;
    use outboard_node::{NodeOptions, Store, StoreOptions, Version};
    use outboard_os::executor::block_on;

    use super::*;
    use crate::keys::Key;

    /// Everything is run to its end where it is begun.
    struct Here;

    impl Spawn for Here {
        fn spawn(&self, work: Work) {
            block_on(work);
        }
    }

    const STRIP: u32 = 64 << 10;

    fn role(strips: u64, scrub: u64) -> NodeRole<MemMedium> {
        let options = StoreOptions {
            node: 1,
            cluster: 5,
            capacity: 16 << 20,
            segment: 1 << 20,
            checkpoint_bytes: 1 << 20,
        };
        let media = [1, 2].map(MemMedium::new);
        let [log, data] = media;
        let store = block_on(Store::open(log, data, options)).unwrap();
        for strip in 0..strips {
            let (at, bytes) = (strip * u64::from(STRIP), vec![7; STRIP as usize]);
            let version = Version { fence: 1, sequence: 1 };
            block_on(store.write(9, STRIP, version, None, at, &bytes)).unwrap();
        }
        let node = Node::new(store, NodeOptions { node: 1, scrub, ..NodeOptions::default() });
        let me = Peer::Node(1);
        let config = Config {
            me,
            address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9),
            life: 3,
            cluster: 5,
            settings: Settings::of_mtu(1500),
            keys: Key { cluster: 5, client: None, secret: [1; 32] }.conversations_of(me),
            seed: 7,
            sealed: false,
            answer_within: Duration::from_millis(50),
        };
        let conversations = Conversations::new(config, node.target());
        NodeRole::new(node, conversations)
    }

    fn figure(role: &NodeRole<MemMedium>, name: &str) -> u64 {
        let status = role.node.status();
        let (_, behind) = status.split_once(&format!("\"{name}\":")).unwrap();
        behind.split([',', '}']).next().unwrap().parse().unwrap()
    }

    /// The rate was what calls and idle nodes made of it, six hundred times as much in one case as
    /// in the other, and could not be said.
    #[test]
    fn a_node_scrubs_at_the_rate_it_is_told_whether_or_not_it_is_asked_anything() {
        let rate = 2 * u64::from(STRIP);
        let (role, begun) = (role(32, rate), clock::now());
        loop {
            let now = clock::now();
            role.tend(now, &Here);
            let seconds = clock::now().since(begun).as_secs();
            let scrubbed = figure(&role, "scrubbed_bytes");
            assert!(scrubbed <= rate * seconds, "{scrubbed} in {seconds} s");
            if scrubbed == 2 * rate {
                break;
            }
            assert!(seconds < 60, "it does not scrub");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(role.deadline().is_some_and(|next| next > clock::now()), "it goes on by itself");
    }

    #[test]
    fn a_node_that_holds_nothing_or_is_to_scrub_nothing_sleeps() {
        for (strips, scrub) in [(0, 1 << 20), (4, 0)] {
            let role = role(strips, scrub);
            role.tend(clock::now().after(EVERY), &Here);
            assert_eq!((role.deadline(), figure(&role, "scrubbed_bytes")), (None, 0));
        }
    }
}
