//! C4: what virtio-fs costs in DMA, piece by piece, by the rule nvme-fs is counted by. The table is
//! the one in `docs/internals/virtiofs.md`; `cargo test -p outboard-link virtio_table --
//! --nocapture` prints it.

use std::sync::{Arc, Mutex};

use outboard_base::ledger::{Kind, Snapshot};
use outboard_link::Region;
use outboard_link::dma::{Direct, Dma, DmaError};
use outboard_link::queue::virtiofs::FuseCall;
use outboard_link::queue::{DpuQueue, HostQueue, Span};
use outboard_wire::fuse::{Call, Dialect, InHeader, Opcode};
use outboard_wire::nvmefs::Status;

use crate::rig::{DpfsRig, VirtioRig, commands, completions, ring};

const KINDS: [Kind; 6] =
    [Kind::Sqe, Kind::Locate, Kind::DataIn, Kind::DataOut, Kind::ReplyHeader, Kind::Cqe];

/// An engine that remembers what it was asked.
struct Traced {
    inner: Direct,
    log: Arc<Mutex<Vec<(Kind, u64, usize)>>>,
}

impl Traced {
    fn note(&self, kind: Kind, at: u64, len: usize) {
        self.log.lock().unwrap().push((kind, at, len));
    }
}

impl Dma for Traced {
    fn region_len(&self) -> u64 {
        self.inner.region_len()
    }

    fn read(&self, kind: Kind, at: u64, out: &mut [u8]) -> Result<(), DmaError> {
        self.note(kind, at, out.len());
        self.inner.read(kind, at, out)
    }

    fn write(&self, kind: Kind, at: u64, data: &[u8]) -> Result<(), DmaError> {
        self.note(kind, at, data.len());
        self.inner.write(kind, at, data)
    }

    fn compare_and_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64, DmaError> {
        self.inner.compare_and_swap(at, expected, new)
    }

    fn fetch_add(&self, at: u64, by: u64) -> Result<u64, DmaError> {
        self.inner.fetch_add(at, by)
    }
}

fn header(opcode: Opcode) -> InHeader {
    InHeader { opcode: opcode as u32, node: 7, ..InHeader::default() }
}

/// The body of READ and WRITE: file handle, offset, length, and what is zero here.
fn body(len: u32) -> [u8; 40] {
    let mut out = [0; 40];
    out[16..20].copy_from_slice(&len.to_le_bytes());
    out
}

fn submit<const TUNED: bool>(
    rig: &mut VirtioRig<TUNED>,
    opcode: Opcode,
    write: Span,
    read: Span,
    reply: u16,
) {
    let cid = rig.host.acquire().unwrap();
    let body = body(write.len.max(read.len));
    let call = FuseCall { header: header(opcode), body: &body, write, read, reply };
    rig.host.submit_call(cid, &call).unwrap();
}

/// Serves what was submitted wholly, as a volume would; how many commands that was.
fn serve<const TUNED: bool>(rig: &mut VirtioRig<TUNED>) -> usize {
    let work = commands(&mut rig.dpu);
    let count = work.len();
    for command in work {
        let mut data = vec![0; command.write_len() as usize];
        if !data.is_empty() {
            command.read_data(0, &mut data).unwrap();
        }
        let fill = vec![2; command.read_len() as usize];
        command.write_data(0, &fill).unwrap();
        let reply = vec![3; usize::from(command.reply_header_room())];
        let read = u64::from(command.read_len());
        rig.dpu.complete(command, Status::Ok, read, &reply);
    }
    let _interrupt = rig.dpu.flush();
    count
}

fn cost<const TUNED: bool>(count: u16, (opcode, write, read, reply): Shape) -> Snapshot {
    let mut rig = VirtioRig::<TUNED>::new(32);
    let before = rig.ledger.snapshot();
    for _ in 0..count {
        submit(&mut rig, opcode, write, read, reply);
    }
    ring(&mut rig.host);
    assert_eq!(serve(&mut rig), usize::from(count));
    let done = completions(&mut rig.host);
    assert_eq!(done.len(), usize::from(count));
    for completion in done {
        assert_eq!((completion.status, completion.result), (Status::Ok, u64::from(read.len)));
    }
    rig.ledger.snapshot().since(&before)
}

type Shape = (Opcode, Span, Span, u16);

fn write(len: u32) -> Shape {
    (Opcode::Write, Span::first(len), Span::NONE, 8)
}

fn read(len: u32) -> Shape {
    (Opcode::Read, Span::NONE, Span::first(len), 0)
}

/// DPC 2.3 and Figure 2(b), step by step: what is moved, from where, and how much of it.
#[test]
fn c4_an_8_kib_write_costs_the_eleven_dmas_of_dpfs() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut rig = DpfsRig::with(32, |region: Arc<Region>, _| {
        Arc::new(Traced { inner: Direct::new(region), log: Arc::clone(&log) })
    });
    submit(&mut rig, Opcode::Write, Span::first(8192), Span::NONE, 8);
    ring(&mut rig.host);
    assert_eq!(serve(&mut rig), 1);
    let (queue, slot) = (rig.rings.virtqueue(0).unwrap(), rig.rings.layout().slot(0, 0));
    assert_eq!(
        *log.lock().unwrap(),
        [
            (Kind::Sqe, queue.avail_at(), 4),
            (Kind::Sqe, queue.avail_entry_at(0), 2),
            (Kind::Locate, queue.descriptor_at(0), 16),
            (Kind::Locate, queue.descriptor_at(1), 16),
            (Kind::Locate, queue.descriptor_at(2), 16),
            (Kind::Locate, queue.descriptor_at(3), 16),
            (Kind::Locate, slot.header, 80),
            (Kind::DataIn, slot.buffer, 8192),
            (Kind::ReplyHeader, slot.reply, 24),
            (Kind::Cqe, queue.used_entry_at(0), 8),
            (Kind::Cqe, queue.used_at(), 4),
        ]
    );
}

/// Under load, too: each request pays for itself, however many one doorbell shows.
#[test]
fn c4_dpfs_pays_eleven_for_each_and_the_tuned_device_less() {
    assert_eq!(cost::<false>(1, write(8192)).total().ops, 11);
    assert_eq!(cost::<false>(1, read(8192)).total().ops, 11);
    assert_eq!(cost::<false>(16, write(8192)).total().ops, 16 * 11);
    assert_eq!(cost::<true>(1, write(8192)).total().ops, 7);
    assert_eq!(cost::<true>(16, write(8192)).total().ops, 3 + 16 * 4);
}

/// What arrives is a FUSE request, readable as one.
#[test]
fn what_crosses_is_fuse() {
    let mut rig = DpfsRig::new(4);
    let cid = rig.host.acquire().unwrap();
    let body = body(8192);
    let header = InHeader { uid: 5, pid: 6, ..header(Opcode::Write) };
    let call =
        FuseCall { header, body: &body, write: Span::first(8192), read: Span::NONE, reply: 8 };
    rig.host.submit_call(cid, &call).unwrap();
    ring(&mut rig.host);
    let command = commands(&mut rig.dpu).pop().unwrap();
    let seen = InHeader::parse(command.header()).unwrap();
    assert_eq!((seen.len, seen.node, seen.uid, seen.pid), (80 + 8192, 7, 5, 6));
    let written = Call::parse(Opcode::Write, &command.header()[40..], Dialect::default());
    assert!(matches!(written, Ok(Call::Write { len: 8192, .. })), "{written:?}");
    rig.dpu.complete(command, Status::Ok, 0, &8192u64.to_le_bytes());
    assert_eq!(completions(&mut rig.host).pop().unwrap().status, Status::Ok);
    let mut size = [0; 8];
    assert_eq!(rig.host.reply_header(cid, &mut size), Ok(8));
    assert_eq!(u64::from_le_bytes(size), 8192);
}

fn row(name: &str, spent: &Snapshot) -> String {
    let ops = KINDS.map(|kind| spent.dma(kind).ops.to_string());
    let total = spent.total();
    format!("| {name} | {} | **{}** | {} |", ops.join(" | "), total.ops, total.bytes)
}

fn table() -> Vec<String> {
    let fsync = (Opcode::Fsync, Span::NONE, Span::NONE, 0);
    let shapes: [(&str, u16, Shape); 8] = [
        ("no data (fsync)", 1, fsync),
        ("write 4 KiB", 1, write(4096)),
        ("write 8 KiB", 1, write(8192)),
        ("write 1 MiB", 1, write(1 << 20)),
        ("read 4 KiB", 1, read(4096)),
        ("read 8 KiB", 1, read(8192)),
        ("read 1 MiB", 1, read(1 << 20)),
        ("16 writes of 8 KiB under one doorbell", 16, write(8192)),
    ];
    let mut lines = vec![
        "| command | avail | descriptors and command | data in | data out | response | used | DMAs \
         | bytes |"
            .to_owned(),
        "|-|-|-|-|-|-|-|-|-|".to_owned(),
    ];
    for (name, count, shape) in shapes {
        lines.push(row(&format!("DPFS: {name}"), &cost::<false>(count, shape)));
    }
    for (name, count, shape) in shapes {
        lines.push(row(&format!("tuned: {name}"), &cost::<true>(count, shape)));
    }
    lines
}

/// The table in the docs is the table that is true.
#[test]
fn virtio_table_in_the_docs_is_true() {
    let table = table();
    println!("{}", table.join("\n"));
    let docs = include_str!("../../../../../docs/internals/virtiofs.md");
    for line in table {
        assert!(docs.contains(&line), "docs/internals/virtiofs.md lacks this row:\n{line}");
    }
}
