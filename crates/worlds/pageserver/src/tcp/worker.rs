//! One worker: a director over the connections of a [`Port`]. Nothing here belongs to a thread:
//! that is its context's.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use outboard_base::Time;
use outboard_dds::dpu::director::{
    Counts, Director, Flow, Flow5, FlowId, Job, Signature, ToRead, Transport,
};
use outboard_dds::dpu::files::{self, FileService};
use outboard_dds::dpu::offload::engine::{Filled, Ticket};
use outboard_dds::dpu::offload::health::{Health, Lost};
use outboard_dds::dpu::offload::pool::Pool;
use outboard_dds::dpu::offload::{Application, Lookup, ReadOp};
use outboard_medium::{Buf, Medium};
use outboard_os::clock;
use outboard_wire::dds::FileId;
use serde_json::{Value, json};

use super::port::{Call as WakeupCord, Inbox, News, Port};
use super::sockets::{Address, ConnId, PIECES, Read, Wrote};
use crate::plugin::Asking;

/// The file service, as the offload engine asks it. Called on worker threads, whose own
/// [`outboard_os::medium::Reactor`] moves what it waits for.
pub trait Files: Send + Sync + 'static {
    /// Reads `read` into `buffer`, widened to whole blocks as [`ToRead::window`] says.
    /// `thread` is who calls, and may be lost.
    fn read(&self, thread: u32, read: ReadOp, buffer: Buf) -> impl Future<Output = Filled>;

    /// `thread` was lost: nothing may wait for the reads it began.
    fn forsake(&self, thread: u32);
}

impl<M: Medium> Files for FileService<M> {
    async fn read(&self, thread: u32, read: ReadOp, buffer: Buf) -> Filled {
        let ReadOp { file, offset, bytes } = read;
        let op = files::ReadOp { file: FileId(file), offset, bytes };
        let buffer = self.keep(buffer);
        let (range, buffer) = self.read_by(thread, op, buffer).await;
        if let Err(error) = &range {
            tracing::debug!(%error, file, offset, "an offloaded read failed; the host answers");
        }
        Filled { buffer, bytes: range.ok() }
    }

    fn forsake(&self, thread: u32) {
        FileService::forsake(self, thread);
    }
}

/// How a worker is set up.
pub struct Setup<F> {
    /// What divides the messages.
    pub app: Arc<dyn Application>,
    /// What is thought of it; the same for all who ask it.
    pub health: Arc<Health>,
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
    /// What clients may hold.
    pub limits: Limits,
}

/// What clients may hold of the DPU side, those of all workers together. Memory is divided among
/// workers, who share nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; one more is refused. Fewer if descriptors do not suffice.
    pub max_clients: usize,
    /// A client that gets nothing done for so long, and waits for no answer, is closed.
    pub idle_timeout: Option<Duration>,
    /// Bytes of requests and answers on their way, for all clients.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { max_clients: 10_000, idle_timeout: None, memory: 256 << 20 }
    }
}

impl<F> Clone for Setup<F> {
    fn clone(&self) -> Self {
        Setup {
            app: Arc::clone(&self.app),
            health: Arc::clone(&self.health),
            table: Arc::clone(&self.table),
            files: Arc::clone(&self.files),
            signature: self.signature,
            host: self.host.clone(),
            contexts: self.contexts,
            pool: self.pool,
            limits: self.limits,
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
    /// Flows forwarded from some message on, for which there was no memory.
    pub without_memory: AtomicU64,
    /// Connections there are.
    pub flows: AtomicU64,
    /// Clients that have a place, of those there may be.
    pub clients: AtomicU64,
    /// Clients that found none, and were refused.
    pub turned_away: AtomicU64,
    /// Clients closed because they were idle.
    pub idle: AtomicU64,
}

impl Tally {
    pub(super) fn json(&self) -> Value {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        json!({
            "flows": of(&self.flows),
            "offloaded": of(&self.offloaded),
            "to_host": of(&self.to_host),
            "refused": of(&self.refused),
            "fell_back": of(&self.fell_back),
            "without_memory": of(&self.without_memory),
            "turned_away": of(&self.turned_away),
            "idle": of(&self.idle),
        })
    }
}

/// The two legs of a flow.
struct Legs {
    flow: FlowId,
    client: ConnId,
    host: Option<ConnId>,
    client_told: bool,
    host_told: bool,
    /// To be read from.
    queued: bool,
    /// To be sent to.
    sends: bool,
}

#[derive(Clone, Copy)]
enum Side {
    Client,
    Host,
}

/// Bytes of one read from a socket.
const CHUNK: usize = 64 << 10;
/// Idle clients are looked for so often in the time they may be idle,
const SWEEPS: u32 = 8;
/// within these bounds.
const SWEEP_MIN: Duration = Duration::from_millis(10);
const SWEEP_MAX: Duration = Duration::from_secs(10);

/// Flows of clients, and the director that divides what they send.
pub(super) struct Worker<F: Files, P: Port> {
    setup: Setup<F>,
    inbox: Arc<Inbox<P::Item>>,
    tally: Arc<Tally>,
    told: Counts,
    port: P,
    director: Director,
    /// By the number of the flow.
    legs: Vec<Option<Legs>>,
    /// Whose a connection is, by its number.
    owners: Vec<Option<(FlowId, Side)>>,
    /// Flows to read from.
    queue: VecDeque<FlowId>,
    /// Flows to send to.
    sending: Vec<FlowId>,
    chunk: Vec<u8>,
    /// When to look for idle clients, if there are any clients and they may not be idle for ever.
    next_sweep: Option<Time>,
    /// Goes with it: who waits for that knows that nobody serves its flows any more.
    _lives: Sender<Infallible>,
}

impl<F: Files, P: Port> Worker<F, P> {
    /// A worker whose messages the application divides, or else a plug-in (`asking`).
    pub(super) fn new(
        setup: Setup<F>,
        mut port: P,
        inbox: Arc<Inbox<P::Item>>,
        tally: Arc<Tally>,
        asking: bool,
        lives: Sender<Infallible>,
    ) -> io::Result<Self> {
        port.watch_wakeup(&inbox.call.wakeup)?;
        let director = Director::new(
            Arc::clone(&setup.app),
            Arc::clone(&setup.table),
            setup.contexts,
            Pool::new(setup.pool),
            Arc::clone(&setup.health),
        )
        .within(setup.limits.max_clients, setup.limits.memory);
        Ok(Worker {
            setup,
            inbox,
            tally,
            told: Counts::default(),
            port,
            director: if asking { director.asking() } else { director },
            legs: Vec::new(),
            owners: Vec::new(),
            queue: VecDeque::new(),
            sending: Vec::new(),
            chunk: vec![0; CHUNK],
            next_sweep: None,
            _lives: lives,
        })
    }

    pub(super) fn setup(&self) -> &Setup<F> {
        &self.setup
    }

    pub(super) fn call(&self) -> &WakeupCord {
        &self.inbox.call
    }

    pub(super) fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// Whether there is nothing to do before the port finds something.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.director.has_jobs() && !self.director.has_news()
    }

    /// Sees to what the port found.
    pub(super) fn hear(&mut self, news: &mut Vec<News>) -> io::Result<()> {
        if news.contains(&News::Wakeup) {
            self.inbox.call.wakeup.drain()?;
            self.inbox.take().into_iter().for_each(|item| self.port.take(item, news));
        }
        for what in news.drain(..) {
            match what {
                News::Moved(conn) => self.enqueue_owner(conn),
                News::Came(conn) => self.welcome(conn),
                News::Wakeup => {}
            }
        }
        Ok(())
    }

    /// Asks the plug-in, and follows what it said.
    pub(super) fn divide(&mut self, plugin: &mut Asking) {
        plugin.pass(&mut self.director, &*self.setup.table);
    }

    /// Takes what there is to ask the application; whether there was any.
    pub(super) fn take_jobs(&mut self, jobs: &mut Vec<Job>) -> bool {
        if self.director.has_jobs() {
            self.director.take_jobs(jobs);
        }
        !jobs.is_empty()
    }

    /// Goes on with what the application said.
    pub(super) fn bring(&mut self, jobs: &mut Vec<Job>) {
        self.director.bring(jobs);
    }

    /// The thread before never came back from a call.
    pub(super) fn take_over(&mut self, lost: Lost) {
        self.setup.files.forsake(lost.thread);
        self.director.take_over(lost.call);
    }

    /// The application is asked again.
    pub(super) fn revive(&mut self) {
        let Setup { contexts, pool, .. } = self.setup;
        self.director.revive(contexts, Pool::new(pool));
    }

    pub(super) fn next_read(&mut self) -> Option<ToRead> {
        self.director.next_read()
    }

    pub(super) fn read_ended(&mut self, ticket: Ticket, filled: Filled) {
        self.director.read_ended(ticket, filled);
    }

    /// Reads once from each leg of the flows in which something moved.
    pub(super) fn receive_all(&mut self) {
        let queued = self.queue.len();
        for _ in 0..queued {
            let Some(id) = self.queue.pop_front() else { break };
            self.receive(id);
            self.queue_to_send(id);
        }
    }

    /// Sends what there is to send, on both legs of the flows in which something moved.
    pub(super) fn send_all(&mut self, news: &mut Vec<News>) {
        while let Some(id) = self.director.next_news() {
            self.queue_to_send(id);
        }
        // Whoever has an answer finds it counted.
        self.tell();
        let mut sending = std::mem::take(&mut self.sending);
        sending.drain(..).for_each(|id| self.send(id));
        self.sending = sending;
        self.port.flush(news);
        if self.director.is_short_of_memory() {
            self.director.share_memory(clock::coarse());
        }
    }

    fn queue_to_send(&mut self, id: FlowId) {
        if let Some(legs) = self.legs(id)
            && !std::mem::replace(&mut legs.sends, true)
        {
            self.sending.push(id);
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
        add(&self.tally.without_memory, now.crowded, self.told.crowded);
        self.told = now;
    }

    fn welcome(&mut self, client: ConnId) {
        let flow = self.director.open(self.is_ours(client));
        let legs = Legs {
            flow,
            client,
            host: None,
            client_told: false,
            host_told: false,
            queued: false,
            sends: false,
        };
        let at = flow.index();
        if self.legs.len() <= at {
            self.legs.resize_with(at + 1, || None);
        }
        if let Some(place) = self.legs.get_mut(at) {
            *place = Some(legs);
        }
        self.own(client, flow, Side::Client);
        if self.setup.limits.idle_timeout.is_some() {
            self.begin_to_wait(flow, clock::coarse());
        }
        self.tally.flows.fetch_add(1, Ordering::Relaxed);
        // It may have come with its first bytes.
        self.enqueue(flow);
    }

    fn begin_to_wait(&mut self, flow: FlowId, now: Time) {
        self.director.came(flow, now);
        self.next_sweep = self.next_sweep.or_else(|| self.sweep_after(now));
    }

    fn sweep_after(&self, now: Time) -> Option<Time> {
        let timeout = self.setup.limits.idle_timeout?;
        Some(now.after((timeout / SWEEPS).clamp(SWEEP_MIN, SWEEP_MAX)))
    }

    /// When to look for idle clients, or for those who wait for memory, whatever else happens.
    pub(super) fn next_sweep(&self) -> Option<Time> {
        self.next_sweep.into_iter().chain(self.director.patience_ends()).min()
    }

    /// Closes clients that got nothing done for too long, if it is time to look for them.
    pub(super) fn end_idle(&mut self) {
        let (Some(at), Some(timeout)) = (self.next_sweep, self.setup.limits.idle_timeout) else {
            return;
        };
        let now = clock::coarse();
        if now < at {
            return;
        }
        let idle = self.director.find_idle(now, timeout);
        self.tally.idle.fetch_add(idle.len() as u64, Ordering::Relaxed);
        idle.into_iter().for_each(|id| self.end(id, false));
        let is_empty = self.legs.iter().all(Option::is_none);
        self.next_sweep = if is_empty { None } else { self.sweep_after(now) };
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

    /// Reads from both legs of a flow, once from each.
    fn receive(&mut self, id: FlowId) {
        let Some(legs) = self.legs(id) else { return };
        legs.queued = false;
        let client = legs.client;
        let room = self.director.client_room(id).min(CHUNK);
        if room > 0 {
            let Some(chunk) = self.chunk.get_mut(..room) else { return };
            match self.port.read(client, chunk) {
                Read::Bytes(n) => {
                    self.director.client_bytes(id, self.chunk.get(..n).unwrap_or_default());
                }
                Read::Ended => self.director.client_ended(id),
                Read::Reset => return self.end(id, true),
                Read::Blocked => {}
            }
        }
        // A host that never took a byte cannot be reached, which is no reset of the client.
        self.send_host(id);
        let Some(host) = self.legs(id).and_then(|legs| legs.host) else { return };
        let room = self.director.host_room(id).min(CHUNK);
        let Some(chunk) = self.chunk.get_mut(..room).filter(|chunk| !chunk.is_empty()) else {
            return;
        };
        match self.port.read(host, chunk) {
            Read::Bytes(n) => {
                self.director.host_bytes(id, self.chunk.get(..n).unwrap_or_default());
            }
            Read::Ended => self.drop_host(id),
            // A host that resets is passed on as it is.
            Read::Reset => self.end(id, true),
            Read::Blocked => {}
        }
    }

    /// Sends on both legs of a flow, and ends what has ended.
    fn send(&mut self, id: FlowId) {
        let Some(legs) = self.legs(id) else { return };
        legs.sends = false;
        let client = legs.client;
        if self.flow(id).is_some_and(Flow::is_broken) {
            return self.end(id, true);
        }
        self.send_host(id);
        if !self.send_client(id, client) {
            return self.end(id, true);
        }
        let Some(flow) = self.flow(id) else { return };
        let (ends, client_ended) = (flow.ends_client(), flow.client_has_ended());
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
        let host = self.legs(id).and_then(|legs| legs.host);
        let more = (self.port.is_readable(client) && self.director.client_room(id) > 0)
            || host.is_some_and(|host| self.port.is_readable(host))
                && self.director.host_room(id) > 0;
        if more {
            self.enqueue(id);
        }
    }

    fn flow(&self, id: FlowId) -> Option<&Flow> {
        self.director.flow(id)
    }

    /// Sends what waits for the host, and that no more comes.
    fn send_host(&mut self, id: FlowId) {
        loop {
            let Some(flow) = self.director.flow(id) else { return };
            if flow.to_host().is_empty() {
                break;
            }
            let host = self.legs.get(id.index()).and_then(|legs| legs.as_ref()?.host);
            let Some(host) = host.or_else(|| self.connect(id)) else { return };
            let Some(flow) = self.director.flow(id) else { return };
            match self.port.write(host, &[IoSlice::new(flow.to_host())]) {
                Wrote::Bytes(n) => self.director.host_took(id, n),
                Wrote::Blocked => return,
                Wrote::Reset => return self.drop_host(id),
            }
        }
        if self.flow(id).is_some_and(Flow::ends_host)
            && let Some(legs) = self.legs(id)
            && let Some(host) = legs.host
            && !std::mem::replace(&mut legs.host_told, true)
        {
            self.port.shutdown(host);
        }
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
                Wrote::Bytes(n) => {
                    self.director.client_took(id, n);
                }
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
