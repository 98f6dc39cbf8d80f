//! What handlers cost, beside the paper's Table I, and how much memory descriptors take: counted,
//! and as Little's law says. By a node of its own, beside whose thread another one looks.

use std::io;
use std::time::Duration;

use outboard_node::nic::table::DESCRIPTOR_LEN;
use serde::Serialize;

use super::load::{Bed, DEPTH, Op, Running, STREAMS, difference};
use super::{NetdfsBench, Policy};
use crate::workload::MEGABYTE;

/// A frame that carries 2 KiB, as in the paper's table: UDP and IPv4, the packet's own, payload.
const TABLE_MTU: usize = 28 + outboard_wire::roce::OVERHEAD + 2048;
/// Bytes of the writes whose handlers are counted.
const TABLE_BYTES: usize = 64 << 10;
/// So many writes at least: of one in 61 the times are taken.
const LEAST: u64 = 256;
/// Bytes of writes, where descriptors are counted.
const MEMORY_BYTES: [usize; 3] = [1 << 10, 64 << 10, MEGABYTE];

/// What one handler cost, a run.
#[derive(Clone, Debug, Serialize)]
pub struct HandlerRow {
    /// Which.
    pub handler: &'static str,
    /// Runs, and of these timed.
    pub runs: f64,
    /// Of these timed.
    pub timed: f64,
    /// Nanoseconds, measured.
    pub ns: f64,
    /// Instructions, estimated.
    pub instructions: f64,
    /// Bytes of payload looked at.
    pub bytes: f64,
    /// Messages sent.
    pub sends: f64,
    /// Bytes that were copied to the host's memory.
    pub dma_bytes: f64,
}

/// Descriptors in use under a load of one size.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryRow {
    /// Bytes of a write.
    pub bytes: usize,
    /// Writes a second.
    pub per_second: f64,
    /// How long a write has its descriptor, microseconds: of one in many.
    pub held_us: f64,
    /// Bytes of descriptors in use by Little's law: rate times time times 77.
    pub predicted: f64,
    /// The same as another thread saw it, the mean of its looks.
    pub counted: f64,
    /// Looks.
    pub looks: f64,
}

/// What handlers cost.
#[derive(Clone, Debug, Serialize)]
pub struct Handlers {
    /// Of each of them, writes of 64 KiB in packets of 2 KiB.
    pub rows: Vec<HandlerRow>,
    /// Memory of descriptors.
    pub memory: Vec<MemoryRow>,
}

/// What handlers cost, and how many descriptors are in use.
///
/// # Errors
/// A node that does not start, or answers wrongly.
pub fn run(bench: &NetdfsBench) -> io::Result<Handlers> {
    let dir = bench.dir.join("handlers");
    std::fs::create_dir_all(&dir)?;
    let bed = Bed::new(&dir, &[Policy::Capability], TABLE_MTU, true)?;
    let node = bed.nodes.first().ok_or_else(|| io::Error::other("there is no node"))?;
    let before = bed.status(node)?;
    bed.go(node, (Op::Write, TABLE_BYTES, DEPTH), (bench.time, LEAST))?;
    let after = bed.status(node)?;
    let rows = ["header", "payload", "completion"].map(|handler| {
        let of =
            |field| difference(&before, &after, &format!("/part/own/handlers/{handler}/{field}"));
        let (runs, timed) = (of("runs"), of("timed"));
        let each = |field| of(field) / runs.max(1.0);
        HandlerRow {
            handler,
            runs,
            timed,
            ns: of("ns") / timed.max(1.0),
            instructions: each("instructions"),
            bytes: each("bytes"),
            sends: each("sends"),
            dma_bytes: each("dma_bytes"),
        }
    });
    let memory = MEMORY_BYTES.map(|bytes| memory(&bed, node, bytes, bench.time));
    let memory = memory.into_iter().collect::<io::Result<_>>()?;
    Ok(Handlers { rows: rows.into(), memory })
}

fn memory(bed: &Bed, node: &Running, bytes: usize, time: Duration) -> io::Result<MemoryRow> {
    let before = bed.status(node)?;
    let (latencies, elapsed) = bed.go(node, (Op::Write, bytes, STREAMS), (time, LEAST))?;
    let after = bed.status(node)?;
    let of = |field: &str| difference(&before, &after, &format!("/part/{field}"));
    let descriptor = DESCRIPTOR_LEN as f64;
    let per_second = latencies.count() as f64 / elapsed.as_secs_f64();
    let timed = of("own/runtime/requests_timed").max(1.0);
    let held = of("own/runtime/requests_ns") / timed / 1e9;
    let looks = of("looks");
    Ok(MemoryRow {
        bytes,
        per_second,
        held_us: held * 1e6,
        predicted: per_second * held * descriptor,
        counted: of("descriptors_seen") / looks.max(1.0) * descriptor,
        looks,
    })
}
