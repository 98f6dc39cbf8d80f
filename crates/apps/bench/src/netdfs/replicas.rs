//! Writes to `k` nodes, or stripes over `k + m`, by each of the
//! `protocols` (NetDFS V B and VI C).
//!
//! All nodes are processes of their own over loopback UDP, with stores in memory; protocols, sizes
//! and numbers of copies take turns. A write is over when all nodes have it. What a node does when
//! a successor has answered counts as its CPU side's. The chunk is the one of `CHUNKS` that served
//! best in a run before.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use outboard_base::Rng;
use outboard_fabric::{Key, client_id, random};
use outboard_flow::Net as _;
use outboard_wire::shared::call::{self, Call, Reply};
use outboard_wire::shared::{Coordinate, Peer, Role, Strategy};
use serde::Serialize;

use super::load::{DEPTH, End, KEY, REST, Running, difference};
use super::node::thread_cpu;
use super::protocols::{Asker, PROTOCOLS, Protocol, What};
use super::{NetdfsBench, Policy};
use crate::dds::process::Ran;
use crate::stats::{Latencies, median};
use crate::workload::{MEGABYTE, nanos};

/// Most copies of a write here.
const MOST: u16 = 8;
/// Most nodes of a stripe here.
const MOST_UNITS: u16 = 10;
/// Bytes of the chunks that are tried: less than the write, or all of it.
const CHUNKS: [usize; 3] = [16 << 10, 64 << 10, 256 << 10];

/// One protocol at one point: medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaRow {
    /// Copies, or data units of a stripe.
    pub k: u16,
    /// Parities.
    pub m: u16,
    /// Bytes of a write,
    pub bytes: usize,
    /// so many at once.
    pub depth: usize,
    /// Who spreads it.
    pub way: &'static str,
    /// In chunks of so many bytes.
    pub chunk: usize,
    /// Writes a second.
    pub per_second: f64,
    /// Latency that half of them stay below, microseconds.
    pub p50_us: f64,
    /// Latency that 99 of 100 stay below.
    pub p99_us: f64,
    /// CPU microseconds of a write: of all nodes' sockets, flows and handlers,
    pub nic_us: f64,
    /// of their CPU sides,
    pub cpu_us: f64,
    /// and of the client.
    pub client_us: f64,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Replicas {
    /// How it was measured, where and when.
    pub note: String,
    /// By copies, size and protocol.
    pub rows: Vec<ReplicaRow>,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Numbers of copies.
    pub copies: Vec<u16>,
    /// Numbers of data units and parities.
    pub stripes: Vec<(u16, u16)>,
    /// The ring's protocols, the tree's, or both; beside flat.
    pub strategy: Option<Strategy>,
}

impl Wanted {
    /// Whether a protocol is measured over copies, or over stripes.
    fn wants(&self, protocol: &Protocol, m: u16) -> bool {
        match protocol.strategy {
            Strategy::Parity => m > 0,
            Strategy::Single => m == 0,
            other => m == 0 && self.strategy.is_none_or(|wanted| wanted == other),
        }
    }

    /// All that is measured, in the order of the table.
    fn all(&self) -> Vec<What> {
        let copies = self.copies.iter().map(|k| (*k, 0));
        let widths = copies.chain(self.stripes.iter().copied());
        let of_width = |(k, m): (u16, u16)| {
            let all = PROTOCOLS.iter().filter(move |protocol| self.wants(protocol, m));
            all.map(move |protocol| What { protocol, k, m })
        };
        widths.flat_map(of_width).collect()
    }

    /// The nodes that the widest write needs.
    fn nodes(&self) -> io::Result<u16> {
        if self.copies.iter().any(|k| !(1..=MOST).contains(k)) {
            return Err(io::Error::other(format!("copies are 1 to {MOST}")));
        }
        let is_fit = |(k, m): &(u16, u16)| *k > 0 && (1..=4).contains(m) && k + m <= MOST_UNITS;
        if !self.stripes.iter().all(is_fit) {
            return Err(io::Error::other(format!(
                "a stripe has 1 to 4 parities, and {MOST_UNITS} units at most"
            )));
        }
        let stripes = self.stripes.iter().map(|(k, m)| k + m);
        Ok(self.copies.iter().copied().chain(stripes).max().unwrap_or(1))
    }
}

/// Nodes of one policy, and who asks them.
struct Bed {
    client: Rc<End>,
    nodes: Vec<Running>,
    asker: Rc<Asker>,
}

/// Addresses on the loopback that are free now, for nodes of these numbers.
fn places(numbers: std::ops::Range<u16>) -> io::Result<Vec<(u16, SocketAddrV4)>> {
    let bound = numbers.map(|number| Ok((number, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?)));
    // All are held until all are chosen, or one might come twice.
    let bound = bound.collect::<io::Result<Vec<_>>>()?;
    let place = |(number, socket): &(u16, UdpSocket)| {
        let port = socket.local_addr()?.port();
        Ok((*number, SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)))
    };
    bound.iter().map(place).collect()
}

struct Sample {
    latencies: Latencies,
    elapsed: Duration,
    client: Duration,
    nodes: Duration,
    cpu_ns: f64,
}

impl Bed {
    /// `count` nodes from number `from` on, which know each other.
    fn new(
        dir: &Path,
        policy: Policy,
        from: u16,
        count: u16,
        key: &Key,
        ends: &Ends,
    ) -> io::Result<Bed> {
        let places = places(from..from + count)?;
        let (mut nodes, mut all) = (Vec::new(), Vec::new());
        for (number, at) in &places {
            let mut more = vec!["--at".to_owned(), at.to_string()];
            for (other, at) in places.iter().filter(|(other, _)| other != number) {
                more.extend(["--peer".to_owned(), format!("{other}={at}")]);
            }
            let node = Running::start(dir, policy, *number, ends.frame, &more, Vec::new())?;
            ends.client.asking().know(node.peer(), *at);
            let keys = vec![call::Key { id: KEY.0, until: u64::MAX, key: KEY.1 }];
            match ends.server.call(&node, &Call::Keys { keys, revoked: Vec::new() })? {
                Reply::Done => nodes.push(node),
                reply => return Err(io::Error::other(format!("keys: {reply:?}"))),
            }
            let (address, port) = (at.ip().octets(), at.port());
            all.push(Coordinate { address, port, node: *number, unit: 0, role: Role::Data });
        }
        let mut data = vec![0; MEGABYTE + usize::from(MOST_UNITS)];
        Rng::new(key.cluster).fill(&mut data);
        let (net, client) = (ends.client.asking(), ends.id);
        let (fence, frame) = (Cell::new(0), ends.frame);
        let asker = Rc::new(Asker { net, client, all, fence, data, frame });
        Ok(Bed { client: Rc::clone(&ends.client), nodes, asker })
    }

    /// Writes for so long, `depth` at once.
    fn go(
        &self,
        what: What,
        (bytes, chunk, depth): (usize, usize, usize),
        time: Duration,
    ) -> io::Result<(Latencies, Duration)> {
        let latencies = Rc::new(RefCell::new(Latencies::default()));
        let from = Instant::now();
        let each = (1..).take(depth).map(|number| {
            let (asker, latencies) = (Rc::clone(&self.asker), Rc::clone(&latencies));
            async move {
                loop {
                    let begun = Instant::now();
                    asker.write(what, number, bytes, chunk).await?;
                    latencies.borrow_mut().push(nanos(begun.elapsed()));
                    if from.elapsed() >= time {
                        return Ok(());
                    }
                }
            }
        });
        self.client.run(each.collect())?;
        Ok((latencies.take(), from.elapsed()))
    }

    /// The chunk that serves best.
    fn best(
        &self,
        what: What,
        (bytes, depth): (usize, usize),
        time: Duration,
    ) -> io::Result<usize> {
        if !what.protocol.in_chunks {
            return Ok(bytes);
        }
        let mut best = (0.0, bytes);
        for chunk in CHUNKS.into_iter().filter(|chunk| *chunk < bytes).chain([bytes]) {
            let (latencies, elapsed) = self.go(what, (bytes, chunk, depth), time / 3)?;
            let rate = latencies.count() as f64 / elapsed.as_secs_f64();
            if rate > best.0 {
                best = (rate, chunk);
            }
        }
        Ok(best.1)
    }

    /// CPU time of the first `count` nodes: of all, and of their CPU sides.
    fn ran(&self, count: usize) -> io::Result<Vec<(Ran, serde_json::Value)>> {
        let nodes = self.nodes.iter().take(count);
        let status = nodes.clone().map(|node| self.client.status(node));
        let status: Vec<serde_json::Value> = status.collect::<io::Result<_>>()?;
        std::thread::sleep(REST);
        nodes.zip(status).map(|(node, status)| Ok((Ran::now(node.pid())?, status))).collect()
    }

    fn sample(&self, what: What, how: (usize, usize, usize), time: Duration) -> io::Result<Sample> {
        self.go(what, how, time / 5)?;
        let before = self.ran(what.nodes())?;
        let own = thread_cpu();
        let (latencies, elapsed) = self.go(what, how, time)?;
        let client = thread_cpu().saturating_sub(own);
        std::thread::sleep(REST);
        let (mut nodes, mut cpu_ns) = (Duration::ZERO, 0.0);
        for (node, (ran, _)) in self.nodes.iter().zip(&before) {
            nodes += Ran::now(node.pid())?.since(ran);
        }
        for (node, (_, status)) in self.nodes.iter().zip(&before) {
            cpu_ns += difference(status, &self.client.status(node)?, "/part/cpu_ns");
        }
        Ok(Sample { latencies, elapsed, client, nodes, cpu_ns })
    }
}

/// Who asks nodes, and who tells them keys.
struct Ends {
    client: Rc<End>,
    server: End,
    id: u64,
    /// Bytes of a frame.
    frame: usize,
}

impl Ends {
    fn new(key: &Key, frame: usize) -> io::Result<Ends> {
        let id = client_id(1, 1);
        let own = key.of_client(1).ok_or_else(|| io::Error::other("no key for a client"))?;
        let client = Rc::new(End::new(Peer::Client(id), own, frame)?);
        let server = End::new(Peer::Server(0), key.clone(), frame)?;
        Ok(Ends { client, server, id, frame })
    }
}

struct Point<'a> {
    bed: &'a Bed,
    what: What,
    bytes: usize,
    depth: usize,
    chunk: Option<usize>,
    samples: Vec<Sample>,
}

impl Point<'_> {
    fn measure(&mut self, time: Duration) -> io::Result<()> {
        let chunk = match self.chunk {
            Some(chunk) => chunk,
            None => self.bed.best(self.what, (self.bytes, self.depth), time)?,
        };
        self.chunk = Some(chunk);
        let sample = self.bed.sample(self.what, (self.bytes, chunk, self.depth), time)?;
        self.samples.push(sample);
        Ok(())
    }

    fn row(&self) -> ReplicaRow {
        let samples = &self.samples;
        let middle =
            |of: &dyn Fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
        let count = |sample: &Sample| sample.latencies.count().max(1) as f64;
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        ReplicaRow {
            k: self.what.k,
            m: self.what.m,
            bytes: self.bytes,
            depth: self.depth,
            way: self.what.protocol.name,
            chunk: self.chunk.unwrap_or(self.bytes),
            per_second: middle(&|one| count(one) / one.elapsed.as_secs_f64()),
            p50_us: middle(&|one| one.latencies.percentile(50) as f64 / 1e3),
            p99_us: middle(&|one| one.latencies.percentile(99) as f64 / 1e3),
            nic_us: middle(&|one| (us(one.nodes) - one.cpu_ns / 1e3) / count(one)),
            cpu_us: middle(&|one| one.cpu_ns / 1e3 / count(one)),
            client_us: middle(&|one| us(one.client) / count(one)),
        }
    }
}

/// Nodes of the policies that are used, so many of each.
fn beds(dir: &Path, frame: usize, count: u16, all: &[What]) -> io::Result<Vec<(Policy, Bed)>> {
    std::fs::create_dir_all(dir)?;
    let mut secret = [0; 32];
    Rng::new(random()?).fill(&mut secret);
    let key = Key { cluster: random()?, client: None, secret };
    std::fs::write(dir.join("key"), key.text())?;
    let ends = Ends::new(&key, frame)?;
    let mut beds = Vec::new();
    for policy in all.iter().map(|what| what.protocol.policy) {
        if beds.iter().all(|(other, _)| *other != policy) {
            let from = 1 + count * u16::try_from(beds.len()).map_err(io::Error::other)?;
            beds.push((policy, Bed::new(dir, policy, from, count, &key, &ends)?));
        }
    }
    Ok(beds)
}

/// Every protocol for every number of copies, or of units, and every size, in turn.
///
/// # Errors
/// A number of copies or units that there are no nodes for; a node that does not start, or answers
/// wrongly.
pub fn run(
    bench: &NetdfsBench,
    wanted: &Wanted,
    mut progress: impl FnMut(&str),
) -> io::Result<Replicas> {
    let (count, all) = (wanted.nodes()?, wanted.all());
    progress("nodes start");
    let beds = beds(&bench.dir.join("replicas"), bench.frame, count, &all)?;
    let sizes: &[usize] =
        if bench.is_short { &[1, 64, 1024] } else { &[1, 4, 8, 16, 64, 256, 1024] };
    let mut points = Vec::new();
    let of_width = all.chunk_by(|one, other| (one.k, one.m) == (other.k, other.m));
    for (depth, all) in
        [1, DEPTH].into_iter().flat_map(|depth| of_width.clone().map(move |all| (depth, all)))
    {
        for (kib, what) in sizes.iter().flat_map(|kib| all.iter().map(move |one| (*kib, *one))) {
            let bed = beds.iter().find(|(policy, _)| *policy == what.protocol.policy);
            let Some((_, bed)) = bed else { continue };
            let (bytes, samples) = (kib << 10, Vec::new());
            points.push(Point { bed, what, bytes, depth, chunk: None, samples });
        }
    }
    for round in 1..=bench.rounds {
        for point in &mut points {
            let (bytes, depth, What { protocol, k, m }) = (point.bytes, point.depth, point.what);
            let (name, width) = (protocol.name, width(k, m));
            progress(&format!("round {round}: {width}, {bytes} bytes, {depth} at once, {name}"));
            point.measure(bench.time)?;
        }
    }
    let note = format!(
        "{}, {}; one client thread and one process a node over loopback UDP, frames of {} \
         bytes, stores in memory; medians of {} rounds of {:?}, in turn",
        crate::machine(),
        crate::today(),
        bench.frame,
        bench.rounds,
        bench.time,
    );
    Ok(Replicas { note, rows: points.iter().map(Point::row).collect() })
}

/// How a table says over how many a write goes.
fn width(k: u16, m: u16) -> String {
    if m > 0 { format!("{k}+{m}") } else { k.to_string() }
}

impl Replicas {
    /// The figures as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        use std::fmt::Write;
        let mut text = format!(
            "{}\nwrites to k nodes, or as stripes to k+m, over when all have it; latency in us; \
             CPU in us a write of all nodes: NIC sides (socket, flows, handlers), CPU sides, and \
             of the client; flat, hyperloop and inec look at no rights; chunk: the best of those \
             tried\n\n",
            self.note
        );
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:>3} {:>8} {:>5}  {:<9} {:>8} {:>9} {:>8} {:>9} {:>9} {:>8} {:>8} {:>8}",
            "k",
            "bytes",
            "depth",
            "way",
            "chunk",
            "per sec",
            "MiB/s",
            "p50",
            "p99",
            "NIC",
            "CPU",
            "client"
        );
        for row in &self.rows {
            let mebibytes = row.per_second * row.bytes as f64 / (1 << 20) as f64;
            let _ = writeln!(
                text,
                "{:>3} {:>8} {:>5}  {:<9} {:>8} {:>9.0} {mebibytes:>8.1} {:>9.1} {:>9.1} {:>8.1} \
                 {:>8.1} {:>8.1}",
                width(row.k, row.m),
                row.bytes,
                row.depth,
                row.way,
                row.chunk,
                row.per_second,
                row.p50_us,
                row.p99_us,
                row.nic_us,
                row.cpu_us,
                row.client_us
            );
        }
        text
    }
}
