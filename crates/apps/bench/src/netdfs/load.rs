//! Who asks nodes: one thread with a number of requests under way, in a closed loop, over loopback
//! UDP; every policy's node is there during the whole run, and they take turns at each point.
//!
//! CPU time of a node is told apart as [`node`](super::node) says; who asks has this thread's.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_base::task::Spawn as _;
use outboard_codec::crc32c;
use outboard_fabric::port::{Port, PortOptions};
use outboard_fabric::runtime::{FabricRuntime, Identity};
use outboard_fabric::{Asking, Key, Part, client_id, random};
use outboard_flow::{Gone, Net, NoTarget};
use outboard_link::pace;
use outboard_os::runtime::Poller;
use outboard_os::wakeup::Wakeup;
use outboard_wire::shared::call::{self, Call, Reply};
use outboard_wire::shared::{
    Brings, Capability, Coordinates, Head, Heads, MAC_LEN, Peer, ReadHead, Reason, Rights, Role,
    Strategy, Target, WriteHead,
};
use serde::Serialize;
use serde_json::Value;

use super::node::thread_cpu;
use super::{NetdfsBench, Policy};
use crate::dds::process::{Process, Ran};
use crate::programs;
use crate::stats::{Latencies, median};
use crate::workload::{MEGABYTE, nanos};

/// The volume's number, in capabilities.
pub(super) const VOLUME: u32 = 1;
/// The key of capabilities, and its number.
pub(super) const KEY: (u8, [u8; 32]) = (1, [7; 32]);
/// Requests under way where goodput is measured.
pub(super) const DEPTH: usize = 8;
/// Objects there are, and bytes of each: the largest write.
pub(super) const STREAMS: usize = 32;
const REGION: u64 = 1 << 20;
/// How long an end has to fall asleep before its CPU time is read.
pub(super) const REST: Duration = Duration::from_millis(2);
/// How long who was refused as busy waits.
pub(super) const BUSY: Duration = Duration::from_micros(200);
/// How often something is asked that nobody answers: on a busy machine a process may stand still
/// for longer than a flow waits for it.
pub(super) const TRIES: u32 = 20;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// A write.
    Write,
    /// A read of what was written.
    Read,
}

/// One round of a policy at a point.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// Requests a second.
    pub per_second: f64,
    /// Latency that half of them stay below, microseconds.
    pub p50_us: f64,
}

/// One policy at one point: medians of the rounds, CPU of all of them.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub policy: Policy,
    /// What was asked,
    pub op: Op,
    /// of how many bytes,
    pub bytes: usize,
    /// so many times at once.
    pub depth: usize,
    /// Requests a second.
    pub per_second: f64,
    /// Latency that half of them stay below, microseconds.
    pub p50_us: f64,
    /// Latency that 99 of 100 stay below.
    pub p99_us: f64,
    /// CPU microseconds of a request: of the node's socket, flows and handlers,
    pub nic_us: f64,
    /// of its CPU side,
    pub cpu_us: f64,
    /// and of who asks.
    pub client_us: f64,
    /// Each round, beside those of the other policies: the machine's pace changes between them.
    pub rounds: Vec<Round>,
}

/// An end of conversations, driven by the thread that made it.
pub(super) struct End {
    part: Part<NoTarget>,
    runtime: Rc<FabricRuntime<NoTarget>>,
}

impl End {
    pub(super) fn new(me: Peer, key: Key, mtu: usize) -> io::Result<End> {
        let wakeup = Arc::new(Wakeup::new()?);
        let poller = Rc::new(Poller::new(Arc::clone(&wakeup), None));
        let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        let port = Port::open(at, "load", &PortOptions::default())?;
        let about = "\"role\":\"load\"".to_owned();
        let identity = Identity { me, life: random()? | 1, key, mtu, sealed: false, about };
        let runtime = FabricRuntime::new(poller, Arc::clone(&wakeup), port, identity, NoTarget)?;
        let runtime = Rc::new(runtime);
        Ok(End { part: Part::new(Rc::clone(&runtime), wakeup)?, runtime })
    }

    /// Goes on until all of `works` have ended; what the first said that failed.
    pub(super) fn run(
        &self,
        works: Vec<impl Future<Output = io::Result<()>> + 'static>,
    ) -> io::Result<()> {
        let left = Rc::new(Cell::new(works.len()));
        let outcome = Rc::new(Cell::new(Ok(())));
        for work in works {
            let (outcome, left) = (Rc::clone(&outcome), Rc::clone(&left));
            self.runtime.spawn(Box::pin(async move {
                let ended = work.await;
                outcome.set(outcome.replace(Ok(())).and(ended));
                left.set(left.get() - 1);
            }));
        }
        self.part.serve(pace::Config::default(), &|| left.get() == 0)?;
        outcome.replace(Ok(()))
    }

    /// Asks others.
    pub(super) fn asking(&self) -> Asking {
        self.runtime.asking()
    }

    /// What a node says of itself.
    pub(super) fn status(&self, node: &Running) -> io::Result<Value> {
        match self.call(node, &Call::Status)? {
            Reply::Text(text) => Ok(serde_json::from_str(&text)?),
            reply => Err(wrong(node, &reply)),
        }
    }

    pub(super) fn call(&self, to: &Running, call: &Call) -> io::Result<Reply> {
        let (asking, peer, mut bytes) = (self.runtime.asking(), to.peer, Vec::new());
        asking.know(peer, to.address);
        call.encode(&mut bytes);
        let reply = Rc::new(Cell::new(Err(Gone::Ended)));
        let into = Rc::clone(&reply);
        let ask = async move {
            for _ in 0..TRIES {
                let replied = asking.call(peer, bytes.clone()).await;
                let is_over = replied.is_ok();
                into.set(replied);
                if is_over {
                    break;
                }
            }
            Ok(())
        };
        self.run(vec![ask])?;
        let reply = reply.replace(Err(Gone::Ended)).map_err(|gone| wrong(to, &gone))?;
        Reply::decode(&reply).map_err(|invalid| wrong(to, &invalid))
    }
}

fn wrong(node: &Running, why: &dyn std::fmt::Debug) -> io::Error {
    io::Error::other(format!("the node of policy {}: {why:?}", node.policy.name()))
}

/// An object that one request at a time is about.
pub(super) struct Stream {
    capability: Capability,
    sequence: Cell<u32>,
    at: Cell<u64>,
}

impl Stream {
    fn new(object: u64, client: u64) -> Stream {
        let capability = Capability {
            key: KEY.0,
            rights: Rights::READ_WRITE,
            volume: VOLUME,
            object,
            first: 0,
            end: REGION,
            client,
            fence: 1,
            group: 0,
            strategy: Strategy::Single,
            k: 1,
            m: 0,
            expires: u64::MAX,
            mac: [0; MAC_LEN],
        };
        let capability = capability.sign(&KEY.1);
        Stream { capability, sequence: Cell::new(0), at: Cell::new(0) }
    }

    fn heads(&self, op: Op, data: &[u8]) -> io::Result<Heads> {
        let bytes = u32::try_from(data.len()).map_err(io::Error::other)?;
        let offset = self.at.get() / u64::from(bytes) * u64::from(bytes) % REGION;
        self.at.set((offset + u64::from(bytes)) % REGION);
        let target = match op {
            Op::Read => Target::Read(ReadHead { offset, bytes, unit: 0, map: false }),
            Op::Write => {
                self.sequence.set(self.sequence.get() + 1);
                Target::Write(WriteHead {
                    strategy: Strategy::Single,
                    rank: 0,
                    k: 1,
                    unit: 0,
                    role: Role::Data,
                    brings: Brings::Bytes,
                    offset,
                    bytes,
                    sequence: self.sequence.get(),
                    previous: 0,
                    crc: crc32c(data),
                    session: 0,
                    number: 0,
                    lane: 0,
                    coordinates: Coordinates::new(&[]).map_err(io::Error::other)?,
                })
            }
        };
        let data = if op == Op::Write { bytes } else { 0 };
        let head = Head { request: 0, data, epoch: 1, settled: 0, hop: 0 };
        Ok(Heads { head, capability: self.capability, target })
    }

    /// Asks, until it is not refused as busy.
    async fn once(&self, net: &Asking, to: Peer, op: Op, data: &[u8]) -> io::Result<()> {
        let heads = self.heads(op, data)?;
        let sent = if op == Op::Write { data } else { &[] };
        let mut tries = 0;
        loop {
            let (answer, got) = match net.request(to, &heads, sent).await {
                Ok(answered) => answered,
                Err(gone) if tries == TRIES => return Err(io::Error::other(format!("{gone:?}"))),
                Err(_) => {
                    tries += 1;
                    continue;
                }
            };
            match answer.outcome {
                Ok(()) if op == Op::Write || got.len() == data.len() => return Ok(()),
                Ok(()) => return Err(io::Error::other("a read came back short")),
                Err(Reason::Busy) => net.sleep(BUSY).await,
                Err(reason) => return Err(io::Error::other(format!("refused: {reason:?}"))),
            }
        }
    }
}

/// A node's process.
pub(super) struct Running {
    policy: Policy,
    peer: Peer,
    address: SocketAddrV4,
    process: Process,
    streams: Rc<Vec<Stream>>,
}

impl Running {
    /// Starts one, with `more` arguments.
    pub(super) fn start(
        dir: &Path,
        policy: Policy,
        number: u16,
        mtu: usize,
        more: &[String],
        streams: Vec<Stream>,
    ) -> io::Result<Running> {
        let mut command = programs::own("netdfs-node")?;
        command.arg(policy.name()).args(["--number", &number.to_string()]);
        command.args(["--mtu", &mtu.to_string(), "--key"]).arg(dir.join("key"));
        command.args(more);
        let mut process = Process::start(&format!("node-{number}"), command, dir)?;
        let line = process.wait(true, || true)?;
        let address = match line.trim().parse() {
            Ok(SocketAddr::V4(address)) => address,
            _ => {
                let said = process.last_words(dir);
                return Err(io::Error::other(format!("a node did not start: {said}")));
            }
        };
        let peer = Peer::Node(number);
        Ok(Running { policy, peer, address, process, streams: Rc::new(streams) })
    }

    /// Who it is.
    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }
}

/// Nodes, and who asks them.
pub(super) struct Bed {
    client: End,
    pub(super) nodes: Vec<Running>,
    data: Rc<[u8]>,
}

impl Bed {
    pub(super) fn new(dir: &Path, policies: &[Policy], mtu: usize, looks: bool) -> io::Result<Bed> {
        let mut secret = [0; 32];
        Rng::new(random()?).fill(&mut secret);
        let key = Key { cluster: random()?, client: None, secret };
        std::fs::write(dir.join("key"), key.text())?;
        let id = client_id(1, 1);
        let own = key.of_client(1).ok_or_else(|| io::Error::other("no key for a client"))?;
        let client = End::new(Peer::Client(id), own, mtu)?;
        let server = End::new(Peer::Server(0), key, mtu)?;
        let mut nodes = Vec::new();
        for (policy, number) in policies.iter().zip(1..) {
            let streams = (1..).take(STREAMS).map(|object| Stream::new(object, id)).collect();
            let more: Vec<String> = looks.then(|| "--looks".to_owned()).into_iter().collect();
            let node = Running::start(dir, *policy, number, mtu, &more, streams)?;
            client.runtime.asking().know(node.peer, node.address);
            let keys = vec![call::Key { id: KEY.0, until: u64::MAX, key: KEY.1 }];
            match server.call(&node, &Call::Keys { keys, revoked: Vec::new() })? {
                Reply::Done => nodes.push(node),
                reply => return Err(wrong(&node, &reply)),
            }
        }
        let mut data = vec![0; MEGABYTE];
        Rng::new(1).fill(&mut data);
        let bed = Bed { client, nodes, data: data.into() };
        for node in &bed.nodes {
            bed.fill(node)?;
        }
        Ok(bed)
    }

    /// Writes all of each object that is read.
    fn fill(&self, node: &Running) -> io::Result<()> {
        let (net, peer) = (self.client.runtime.asking(), node.peer);
        let (streams, data) = (Rc::clone(&node.streams), Rc::clone(&self.data));
        let fill = async move {
            for stream in streams.iter().take(DEPTH) {
                stream.once(&net, peer, Op::Write, &data).await?;
            }
            Ok(())
        };
        self.client.run(vec![fill]).map_err(|error| wrong(node, &error))
    }

    /// Asks for so long, and at least so often; what came of it.
    pub(super) fn go(
        &self,
        node: &Running,
        (op, bytes, depth): (Op, usize, usize),
        (time, least): (Duration, u64),
    ) -> io::Result<(Latencies, Duration)> {
        let latencies = Rc::new(RefCell::new(Latencies::default()));
        let from = Instant::now();
        let each = (0..depth).map(|number| {
            let (net, peer, data) =
                (self.client.runtime.asking(), node.peer, Rc::clone(&self.data));
            let (streams, latencies) = (Rc::clone(&node.streams), Rc::clone(&latencies));
            async move {
                let missing = || io::Error::other("there are fewer objects");
                let stream = streams.get(number).ok_or_else(missing)?;
                let data = data.get(..bytes).unwrap_or_default();
                loop {
                    let begun = Instant::now();
                    stream.once(&net, peer, op, data).await?;
                    let mut latencies = latencies.borrow_mut();
                    latencies.push(nanos(begun.elapsed()));
                    if from.elapsed() >= time && latencies.count() >= least {
                        return Ok(());
                    }
                }
            }
        });
        let ended = self.client.run(each.collect());
        let elapsed = from.elapsed();
        ended.map_err(|error| wrong(node, &error))?;
        Ok((latencies.take(), elapsed))
    }

    /// What a node says of itself.
    pub(super) fn status(&self, node: &Running) -> io::Result<Value> {
        self.client.status(node)
    }

    fn sample(
        &self,
        node: &Running,
        what: (Op, usize, usize),
        time: Duration,
    ) -> io::Result<Sample> {
        self.go(node, what, (time / 5, 0))?;
        let before = self.status(node)?;
        std::thread::sleep(REST);
        let (ran, own) = (Ran::now(node.process.pid())?, thread_cpu());
        let (latencies, elapsed) = self.go(node, what, (time, 0))?;
        let client = thread_cpu().saturating_sub(own);
        std::thread::sleep(REST);
        let node_cpu = Ran::now(node.process.pid())?.since(&ran);
        let cpu = difference(&before, &self.status(node)?, "/part/cpu_ns");
        Ok(Sample { latencies, elapsed, client, node: node_cpu, cpu_ns: cpu })
    }
}

/// By how much a number of a status has grown.
pub(super) fn difference(before: &Value, after: &Value, path: &str) -> f64 {
    let number = |status: &Value| status.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
    number(after) - number(before)
}

/// One measurement.
struct Sample {
    latencies: Latencies,
    elapsed: Duration,
    client: Duration,
    /// Of all threads of the node.
    node: Duration,
    /// Of its CPU side.
    cpu_ns: f64,
}

fn row(policy: Policy, (op, bytes, depth): (Op, usize, usize), samples: &[Sample]) -> Row {
    let middle = |of: &dyn Fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
    let count = |sample: &Sample| sample.latencies.count().max(1) as f64;
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let round = |one: &Sample| Round {
        per_second: count(one) / one.elapsed.as_secs_f64(),
        p50_us: one.latencies.percentile(50) as f64 / 1e3,
    };
    Row {
        policy,
        op,
        bytes,
        depth,
        per_second: middle(&|one| round(one).per_second),
        p50_us: middle(&|one| round(one).p50_us),
        p99_us: middle(&|one| one.latencies.percentile(99) as f64 / 1e3),
        nic_us: middle(&|one| (us(one.node) - one.cpu_ns / 1e3) / count(one)),
        cpu_us: middle(&|one| one.cpu_ns / 1e3 / count(one)),
        client_us: middle(&|one| us(one.client) / count(one)),
        rounds: samples.iter().map(round).collect(),
    }
}

/// Every policy at every size, in turn.
///
/// # Errors
/// A node that does not start, or answers wrongly.
pub fn points(bench: &NetdfsBench, progress: &mut dyn FnMut(&str)) -> io::Result<Vec<Row>> {
    progress("nodes start");
    let bed = Bed::new(&bench.dir, &Policy::ALL, bench.frame, false)?;
    let sizes: &[usize] =
        if bench.is_short { &[1, 8, 1024] } else { &[1, 4, 8, 16, 64, 256, 1024] };
    let mut points = Vec::new();
    for (op, depth) in [Op::Write, Op::Read].into_iter().flat_map(|op| [(op, 1), (op, DEPTH)]) {
        for kib in sizes {
            let what = (op, kib << 10, depth);
            points.extend(bed.nodes.iter().map(|node| (what, node, Vec::new())));
        }
    }
    for round in 1..=bench.rounds {
        for ((op, bytes, depth), node, samples) in &mut points {
            let (op, bytes, depth) = (*op, *bytes, *depth);
            let name = node.policy.name();
            progress(&format!("round {round}: {op:?}, {bytes} bytes, {depth} at once, {name}"));
            samples.push(bed.sample(node, (op, bytes, depth), bench.time)?);
        }
    }
    Ok(points.iter().map(|(what, node, samples)| row(node.policy, *what, samples)).collect())
}
