//! One worker: a director over the connections of a [`Port`], and the reads it begins.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outboard_dds::dpu::director::{
    Counts, Director, Flow, Flow5, FlowId, Signature, ToRead, Transport,
};
use outboard_dds::dpu::files::{self, FileService};
use outboard_dds::dpu::offload::engine::{Filled, Ticket};
use outboard_dds::dpu::offload::pool::Pool;
use outboard_dds::dpu::offload::{Application, Lookup, ReadOp};
use outboard_kv::medium::{Buf, Medium};
use outboard_link::pace::{self, Pace, Step};
use outboard_wire::dds::FileId;

use super::port::{Inbox, News, Port};
use super::sockets::{Address, ConnId, PIECES, Read, Wrote};
use crate::clock;
use crate::dds::plugin::{Asking, Plugin};
use crate::executor::{Executor, Started};
use crate::medium::Reactor;

/// The file service, as the offload engine asks it. Called on worker threads, whose own
/// [`Reactor`] moves what it waits for.
pub trait Files: Send + Sync + 'static {
    /// Reads `read` into `buffer`, widened to whole blocks as [`ToRead::window`] says.
    fn read(&self, read: ReadOp, buffer: Buf) -> impl Future<Output = Filled>;
}

impl<M: Medium> Files for FileService<M> {
    async fn read(&self, read: ReadOp, buffer: Buf) -> Filled {
        let ReadOp { file, offset, bytes } = read;
        let op = files::ReadOp { file: FileId(file), offset, bytes };
        let buffer = self.keep(buffer);
        let (range, buffer) = FileService::read(self, op, buffer).await;
        if let Err(error) = &range {
            tracing::debug!(%error, file, offset, "an offloaded read failed; the host answers");
        }
        Filled { buffer, bytes: range.ok() }
    }
}

/// How a worker is set up.
pub struct Setup<F> {
    /// What divides the messages.
    pub app: Arc<dyn Application>,
    /// The cache table.
    pub table: Arc<dyn Lookup>,
    /// Where reads go.
    pub files: Arc<F>,
    /// Which flows are divided; others are forwarded.
    pub signature: Option<Signature>,
    /// Where the host serves. A user-space stack asks the server that the client asked, instead.
    pub host: Address,
    /// Reads of one worker under way at most.
    pub contexts: usize,
    /// Bytes of buffers of one worker.
    pub pool: usize,
}

impl<F> Clone for Setup<F> {
    fn clone(&self) -> Self {
        Setup {
            app: Arc::clone(&self.app),
            table: Arc::clone(&self.table),
            files: Arc::clone(&self.files),
            signature: self.signature,
            host: self.host.clone(),
            contexts: self.contexts,
            pool: self.pool,
        }
    }
}

/// What workers did, for whoever asks.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests answered on the DPU side.
    pub offloaded: AtomicU64,
    /// Requests sent to the host.
    pub to_host: AtomicU64,
    /// Requests sent to the host for want of a context or a buffer.
    pub refused: AtomicU64,
    /// Requests begun here and then sent to the host.
    pub fell_back: AtomicU64,
    /// Connections there are.
    pub flows: AtomicU64,
}

type Reading = Pin<Box<dyn Future<Output = (Ticket, Filled)>>>;

/// The two legs of a flow.
struct Legs {
    flow: FlowId,
    client: ConnId,
    host: Option<ConnId>,
    client_told: bool,
    host_told: bool,
    queued: bool,
}

#[derive(Clone, Copy)]
enum Side {
    Client,
    Host,
}

/// Longest sleep: nothing waits for it, it only bounds what a lost wake-up could cost.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Bytes of one read from a socket.
const CHUNK: usize = 64 << 10;
/// A worker looks for the ends of reads as long as a quick device takes. A slower one is slept for.
const PACE: pace::Config = pace::Config {
    spin: Duration::from_micros(20),
    yield_after: Duration::from_micros(4),
    near: Duration::from_micros(40),
};

/// One thread's part of the director.
pub(super) struct Worker<F: Files, P: Port> {
    setup: Setup<F>,
    inbox: Arc<Inbox<P::Item>>,
    tally: Arc<Tally>,
    told: Counts,
    port: P,
    director: Director,
    /// Who divides the messages, if that is not the application here.
    plugin: Option<Asking>,
    executor: Executor<Reading>,
    reactor: Option<Reactor>,
    pace: Pace,
    /// By the number of the flow.
    legs: Vec<Option<Legs>>,
    /// Whose a connection is, by its number.
    owners: Vec<Option<(FlowId, Side)>>,
    /// Flows to look at.
    queue: VecDeque<FlowId>,
    chunk: Vec<u8>,
}

impl<F: Files, P: Port> Worker<F, P> {
    /// For the thread it is called on.
    pub(super) fn new(
        setup: Setup<F>,
        mut port: P,
        inbox: Arc<Inbox<P::Item>>,
        tally: Arc<Tally>,
        plugin: Option<Plugin>,
    ) -> io::Result<Self> {
        port.watch_bell(&inbox.call.bell)?;
        let reactor = match Reactor::install_registering(256) {
            Ok(reactor) => Some(reactor),
            Err(error) => {
                tracing::warn!(%error, "no io_uring for offloaded reads; threads serve them");
                None
            }
        };
        let ringer = inbox.call.bell.ringer()?;
        // Read before and after each call of user code, of which a message takes three or more.
        let clock = || clock::coarse().0;
        let director = Director::new(
            Arc::clone(&setup.app),
            Arc::clone(&setup.table),
            setup.contexts,
            Pool::new(setup.pool),
            Box::new(clock),
        );
        let asks = |plugin| Asking::new(plugin, &inbox.call.bell);
        let plugin = plugin.map(asks).transpose()?;
        Ok(Worker {
            executor: Executor::new(setup.contexts, move || ringer.ring()),
            setup,
            inbox,
            tally,
            told: Counts::default(),
            port,
            director: if plugin.is_some() { director.asking() } else { director },
            plugin,
            reactor,
            pace: Pace::new(PACE),
            legs: Vec::new(),
            owners: Vec::new(),
            queue: VecDeque::new(),
            chunk: vec![0; CHUNK],
        })
    }

    /// Serves until told to stop.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let mut news = Vec::new();
        while !self.inbox.call.is_stopped() {
            if self.queue.is_empty() {
                self.sleep(&mut news)?;
            } else {
                self.port.look(Duration::ZERO, &mut news)?;
            }
            self.hear(&mut news)?;
            let turn = self.queue.len();
            for _ in 0..turn {
                let Some(id) = self.queue.pop_front() else { break };
                self.pump(id);
            }
            self.ask_plugin();
            self.begin_reads();
            self.reap();
            self.hear_news();
            self.tell();
            self.port.flush(&mut news);
            self.hear(&mut news)?;
        }
        Ok(())
    }

    /// Sees to what the port found.
    fn hear(&mut self, news: &mut Vec<News>) -> io::Result<()> {
        if news.contains(&News::Bell) {
            self.inbox.call.bell.drain()?;
            self.inbox.take().into_iter().for_each(|item| self.port.take(item, news));
        }
        for what in news.drain(..) {
            match what {
                News::Moved(conn) => self.enqueue_owner(conn),
                News::Came(conn) => self.welcome(conn),
                News::Bell => {}
            }
        }
        Ok(())
    }

    /// Asks the plug-in, if there is one, and follows what it said.
    fn ask_plugin(&mut self) {
        if let Some(plugin) = &mut self.plugin {
            plugin.turn(&mut self.director, &*self.setup.table);
        }
    }

    /// Waits for the port, the bell, the ends of reads, or the plug-in.
    fn sleep(&mut self, news: &mut Vec<News>) -> io::Result<()> {
        let Some(plugin) = &mut self.plugin else { return self.sleep_for(SLEEP_MAX, news) };
        if plugin.spin() {
            return self.port.look(Duration::ZERO, news);
        }
        let limit = plugin.begin_sleep().unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        let slept = self.sleep_for(limit, news);
        if let Some(plugin) = &mut self.plugin {
            plugin.end_sleep();
        }
        slept
    }

    fn sleep_for(&mut self, limit: Duration, news: &mut Vec<News>) -> io::Result<()> {
        if self.executor.running() == 0 {
            return self.port.look(limit, news);
        }
        if self.find_ended() {
            // The port is looked at when what was read has been sent.
            return Ok(());
        }
        if self.executor.begin_sleep() {
            let from = clock::now();
            let slept = match &self.reactor {
                Some(reactor) => reactor.sleep(self.port.fd(), limit.min(self.port.patience())),
                None => self.port.look(limit, news),
            };
            self.executor.end_sleep();
            slept?;
            // Who was woken by a socket does not know how long it would have slept.
            if self.reap() > 0 {
                self.pace.slept(from, clock::now());
            }
        }
        self.reap();
        self.port.look(Duration::ZERO, news)
    }

    /// Looks for a read that ends, while that pays; whether there was one.
    fn find_ended(&mut self) -> bool {
        loop {
            let now = clock::now();
            if self.reap() > 0 {
                self.pace.work(now);
                return true;
            }
            match self.pace.idle(now) {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => {
                    std::thread::yield_now();
                    self.pace.yielded(now, clock::now());
                }
                Step::Sleep => return false,
            }
        }
    }

    /// Takes ended reads to the director; how many.
    fn reap(&mut self) -> usize {
        if self.executor.running() == 0 {
            return 0;
        }
        if let Some(reactor) = &self.reactor {
            reactor.poll();
        }
        let director = &mut self.director;
        let mut ended = 0;
        self.executor.poll(|_, (ticket, filled)| {
            ended += 1;
            director.read_ended(ticket, filled);
        });
        if ended > 0 {
            self.hear_news();
        }
        ended
    }

    fn begin_reads(&mut self) {
        while let Some(ToRead { ticket, read, buffer }) = self.director.next_read() {
            let files = Arc::clone(&self.setup.files);
            let reading: Reading =
                Box::pin(async move { (ticket, files.read(read, buffer).await) });
            // The ring of contexts is as long as the executor: there is room.
            if let Ok(Started::Done((ticket, filled))) = self.executor.start(reading) {
                self.director.read_ended(ticket, filled);
            }
        }
    }

    fn hear_news(&mut self) {
        while let Some(id) = self.director.next_news() {
            self.enqueue(id);
        }
    }

    fn tell(&mut self) {
        let now = self.director.counts();
        if now == self.told {
            return;
        }
        let add = |to: &AtomicU64, now: u64, told: u64| {
            to.fetch_add(now - told, Ordering::Relaxed);
        };
        add(&self.tally.offloaded, now.offloaded, self.told.offloaded);
        add(&self.tally.to_host, now.to_host, self.told.to_host);
        add(&self.tally.refused, now.refused, self.told.refused);
        add(&self.tally.fell_back, now.fell_back, self.told.fell_back);
        self.told = now;
    }

    fn welcome(&mut self, client: ConnId) {
        let flow = self.director.open(self.is_ours(client));
        let legs =
            Legs { flow, client, host: None, client_told: false, host_told: false, queued: false };
        let at = flow.index();
        if self.legs.len() <= at {
            self.legs.resize_with(at + 1, || None);
        }
        if let Some(place) = self.legs.get_mut(at) {
            *place = Some(legs);
        }
        self.own(client, flow, Side::Client);
        self.tally.flows.fetch_add(1, Ordering::Relaxed);
        // It may have come with its first bytes.
        self.enqueue(flow);
    }

    fn is_ours(&self, client: ConnId) -> bool {
        match (&self.setup.signature, self.port.ends(client)) {
            (Some(signature), Some((client, server))) => {
                signature.matches(&Flow5 { client, server, transport: Transport::Tcp })
            }
            _ => true,
        }
    }

    fn own(&mut self, conn: ConnId, flow: FlowId, side: Side) {
        let at = conn.index();
        if self.owners.len() <= at {
            self.owners.resize_with(at + 1, || None);
        }
        if let Some(place) = self.owners.get_mut(at) {
            *place = Some((flow, side));
        }
    }

    fn enqueue_owner(&mut self, conn: ConnId) {
        if let Some(Some((flow, _))) = self.owners.get(conn.index()) {
            self.enqueue(*flow);
        }
    }

    fn legs(&mut self, id: FlowId) -> Option<&mut Legs> {
        self.legs.get_mut(id.index())?.as_mut().filter(|legs| legs.flow == id)
    }

    fn enqueue(&mut self, id: FlowId) {
        if let Some(legs) = self.legs(id)
            && !std::mem::replace(&mut legs.queued, true)
        {
            self.queue.push_back(id);
        }
    }

    /// Moves what can be moved on both legs of a flow, one read from each.
    fn pump(&mut self, id: FlowId) {
        let Some(legs) = self.legs(id) else { return };
        legs.queued = false;
        let client = legs.client;
        if self.flow(id).is_some_and(Flow::wants_client) {
            match self.port.read(client, &mut self.chunk) {
                Read::Bytes(n) => {
                    self.director.client_bytes(id, self.chunk.get(..n).unwrap_or_default());
                }
                Read::Ended => self.director.client_ended(id),
                Read::Reset => return self.end(id, true),
                Read::Blocked => {}
            }
        }
        if !self.pump_host(id) || !self.send_client(id, client) {
            return self.end(id, true);
        }
        let Some(flow) = self.flow(id) else { return };
        if flow.is_broken() {
            return self.end(id, true);
        }
        let (ends, client_ended) = (flow.ends_client(), flow.client_has_ended());
        let again = flow.wants_client();
        if ends {
            if client_ended {
                return self.end(id, false);
            }
            if let Some(legs) = self.legs(id)
                && !std::mem::replace(&mut legs.client_told, true)
            {
                self.port.shutdown(client);
            }
        }
        // It is looked at again at once only if there is more to read; else news or sockets wake.
        if again && self.port.is_readable(client) {
            self.enqueue(id);
        }
    }

    fn flow(&self, id: FlowId) -> Option<&Flow> {
        self.director.flow(id)
    }

    /// Both ways of the host's leg; false if the client has to be reset, too.
    fn pump_host(&mut self, id: FlowId) -> bool {
        let Some(flow) = self.director.flow(id) else { return true };
        let host = self.legs.get(id.index()).and_then(Option::as_ref).and_then(|legs| legs.host);
        let host = match host {
            Some(host) => host,
            None if flow.to_host().is_empty() => return true,
            None => match self.connect(id) {
                Some(host) => host,
                None => return true,
            },
        };
        let Some(flow) = self.director.flow(id) else { return true };
        let to_host = flow.to_host();
        if !to_host.is_empty() {
            match self.port.write(host, &[IoSlice::new(to_host)]) {
                Wrote::Bytes(n) => self.director.host_took(id, n),
                Wrote::Blocked => {}
                Wrote::Reset => self.drop_host(id),
            }
        }
        if self.flow(id).is_some_and(Flow::wants_host) {
            match self.port.read(host, &mut self.chunk) {
                Read::Bytes(n) => {
                    self.director.host_bytes(id, self.chunk.get(..n).unwrap_or_default());
                }
                Read::Blocked => {}
                Read::Ended => self.drop_host(id),
                // A host that resets is passed on as it is.
                Read::Reset => return false,
            }
        }
        if self.flow(id).is_some_and(Flow::ends_host)
            && let Some(legs) = self.legs(id)
            && !std::mem::replace(&mut legs.host_told, true)
        {
            self.port.shutdown(host);
        }
        if self.port.is_readable(host) && self.flow(id).is_some_and(Flow::wants_host) {
            self.enqueue(id);
        }
        true
    }

    /// Makes the host's leg. A host that cannot be reached has ended.
    fn connect(&mut self, id: FlowId) -> Option<ConnId> {
        let client = self.legs(id)?.client;
        match self.port.connect(client) {
            Ok(host) => {
                if let Some(legs) = self.legs(id) {
                    legs.host = Some(host);
                }
                self.own(host, id, Side::Host);
                Some(host)
            }
            Err(error) => {
                tracing::debug!(%error, "the host application does not answer");
                self.director.host_ended(id);
                None
            }
        }
    }

    fn drop_host(&mut self, id: FlowId) {
        self.director.host_ended(id);
        if let Some(host) = self.legs(id).and_then(|legs| legs.host.take()) {
            self.disown(host);
            self.port.close(host, false);
        }
        // No more comes: but nothing may be sent through it either.
        if let Some(legs) = self.legs(id) {
            legs.host_told = true;
        }
    }

    fn disown(&mut self, conn: ConnId) {
        if let Some(place) = self.owners.get_mut(conn.index()) {
            *place = None;
        }
    }

    /// Sends what waits for the client; false if it is gone.
    fn send_client(&mut self, id: FlowId, client: ConnId) -> bool {
        loop {
            let Some(flow) = self.director.flow(id) else { return true };
            if flow.to_client_len() == 0 {
                return true;
            }
            let pieces: Vec<IoSlice<'_>> =
                flow.to_client().take(PIECES).map(IoSlice::new).collect();
            match self.port.write(client, &pieces) {
                Wrote::Bytes(n) => self.director.client_took(id, n),
                Wrote::Blocked => return true,
                Wrote::Reset => return false,
            }
        }
    }

    /// Ends a flow and both its legs.
    fn end(&mut self, id: FlowId, reset: bool) {
        let Some(legs) = self.legs.get_mut(id.index()).and_then(Option::take) else { return };
        self.director.close(id);
        for conn in [Some(legs.client), legs.host].into_iter().flatten() {
            self.disown(conn);
            self.port.close(conn, reset);
        }
        self.tally.flows.fetch_sub(1, Ordering::Relaxed);
    }
}
