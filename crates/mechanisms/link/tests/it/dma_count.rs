//! C3, C4: what each kind of command costs in DMA, counted by the ledger of the DPU side. The table
//! is the one in `docs/internals/link.md`; `cargo test -p outboard-link dma_table -- --nocapture`
//! prints it.

use outboard_base::ledger::{Kind, Snapshot};
use outboard_link::queue::{DpuQueue, HostQueue, Span, Submission};
use outboard_wire::nvmefs::{Dispatch, Prp, Sqe, Status};

use crate::rig::{Rig, commands, completions, ring, submission};

const HEADER: [u8; 128] = [1; 128];
const KINDS: [Kind; 6] =
    [Kind::Sqe, Kind::Locate, Kind::DataIn, Kind::DataOut, Kind::ReplyHeader, Kind::Cqe];

struct Shape {
    name: &'static str,
    header_len: usize,
    write: Span,
    read: Span,
    reply: u16,
}

fn span(offset: u32, len: u32) -> Span {
    Span { offset, len }
}

/// Serves one command wholly: all data fetched, all room filled, the reply header written.
fn serve(rig: &mut Rig) {
    for command in commands(&mut rig.dpu) {
        let mut data = vec![0; command.write_len() as usize];
        command.read_data(0, &mut data).unwrap();
        let fill = vec![2; command.read_len() as usize];
        command.write_data(0, &fill).unwrap();
        let reply = vec![3; usize::from(command.reply_header_room())];
        rig.dpu.complete(command, Status::Ok, 0, &reply);
    }
}

fn cost(shape: &Shape) -> Snapshot {
    let mut rig = Rig::new(4);
    let before = rig.ledger.snapshot();
    let cid = rig.host.acquire().unwrap();
    let header = vec![1; shape.header_len];
    let sub = Submission {
        write: shape.write,
        read: shape.read,
        reply_header: shape.reply,
        ..submission(&header)
    };
    rig.host.submit(cid, &sub).unwrap();
    ring(&mut rig.host);
    serve(&mut rig);
    assert_eq!(completions(&mut rig.host).pop().unwrap().status, Status::Ok);
    rig.ledger.snapshot().since(&before)
}

fn row(name: &str, spent: &Snapshot) -> String {
    let ops = KINDS.map(|kind| spent.dma(kind).ops.to_string());
    let total = spent.total();
    format!("| {name} | {} | **{}** | {} |", ops.join(" | "), total.ops, total.bytes)
}

#[test]
fn c4_an_aligned_8_kib_write_costs_four_dmas() {
    let shape =
        Shape { name: "", header_len: 128, write: span(0, 8192), read: Span::NONE, reply: 0 };
    let spent = cost(&shape);
    assert_eq!(spent.total().ops, 4);
    assert_eq!(spent.dma(Kind::Sqe).bytes, 64);
    assert_eq!(spent.dma(Kind::Locate).bytes, 16 + 128, "the list and the header in one range");
    assert_eq!(spent.dma(Kind::DataIn).bytes, 8192);
    assert_eq!(spent.dma(Kind::Cqe).bytes, 16);
}

/// Hand-made lists over pages that do not lie side by side: one DMA for each contiguous range.
fn scattered(pages: &[u64], len: u32) -> Snapshot {
    let mut rig = Rig::new(4);
    let slot = rig.layout.slot(0, 0);
    let wh_at = slot.header + 4096 - 128;
    rig.region.write_from(wh_at, &HEADER).unwrap();
    let list_at = wh_at - 8 * pages.len() as u64;
    let list: Vec<u8> = pages.iter().flat_map(|p| (slot.buffer + p * 4096).to_le_bytes()).collect();
    rig.region.write_from(list_at, &list).unwrap();
    let sqe = Sqe {
        cid: 0,
        tag: 1,
        dispatch: Dispatch::Kv,
        write: Prp { first: wh_at, second: list_at },
        read: Prp::default(),
        write_len: 128 + len,
        read_len: 0,
        rh_len: 0,
        wh_len: 128,
    };
    rig.region.write_from(rig.layout.sqe_at(0, 0), &sqe.emit()).unwrap();
    rig.registers.queue(0).unwrap().set_tail(1);
    let before = rig.ledger.snapshot();
    serve(&mut rig);
    rig.ledger.snapshot().since(&before)
}

fn batch(count: u16) -> Snapshot {
    let mut rig = Rig::new(64);
    let before = rig.ledger.snapshot();
    for _ in 0..count {
        let cid = rig.host.acquire().unwrap();
        let sub = Submission { write: Span::first(8192), ..submission(&HEADER) };
        rig.host.submit(cid, &sub).unwrap();
    }
    ring(&mut rig.host);
    serve(&mut rig);
    rig.ledger.snapshot().since(&before)
}

fn table() -> String {
    let none = Span::NONE;
    let shapes: [(&'static str, usize, Span, Span, u16); 16] = [
        ("no-op, empty header", 0, none, none, 0),
        ("header only (fsync, unlink, open)", 128, none, none, 0),
        ("header with two names, 2560 bytes", 2560, none, none, 0),
        ("header and reply header (lookup, getattr, create)", 128, none, none, 128),
        ("write 4 KiB, aligned (PRP 2 is the page)", 128, span(0, 4096), none, 0),
        ("write 8 KiB, aligned (list of 2)", 128, span(0, 8192), none, 0),
        ("write 8 KiB, unaligned buffer (list of 2)", 128, span(512, 8192), none, 0),
        ("write 128 KiB, aligned (list of 32)", 128, span(0, 128 << 10), none, 0),
        ("write 1 MiB, aligned (list of 256)", 128, span(0, 1 << 20), none, 0),
        ("write 1 MiB, header 2112 (list on its own page)", 2112, span(0, 1 << 20), none, 0),
        ("setxattr, 100-byte value", 160, span(0, 100), none, 0),
        ("read 4 KiB, aligned", 128, none, span(0, 4096), 0),
        ("read 8 KiB, aligned (no list)", 128, none, span(0, 8192), 0),
        ("read 8 KiB, unaligned buffer (list of 2)", 128, none, span(512, 8192), 0),
        ("read 1 MiB, aligned (list of 255)", 128, none, span(0, 1 << 20), 0),
        ("read 8 KiB with reply header", 128, none, span(0, 8192), 128),
    ];
    let mut out = String::from(
        "| command | sqe | locate | data in | data out | reply header | cqe | DMAs | bytes |\n\
         |-|-|-|-|-|-|-|-|-|\n",
    );
    let mut push = |line: String| {
        out.push_str(&line);
        out.push('\n');
    };
    for (name, header_len, write, read, reply) in shapes {
        let shape = Shape { name, header_len, write, read, reply };
        push(row(shape.name, &cost(&shape)));
    }
    push(row("write 8 KiB, two pages apart", &scattered(&[0, 2], 8192)));
    push(row(
        "write 32 KiB, eight pages in three ranges",
        &scattered(&[0, 1, 2, 5, 6, 9, 10, 11], 32_768),
    ));
    push(row("16 writes of 8 KiB under one doorbell", &batch(16)));
    out
}

/// The table in the docs is the table that is true.
#[test]
fn dma_table_in_the_docs_is_true() {
    let table = table();
    println!("{table}");
    let docs = include_str!("../../../../../docs/internals/link.md");
    for line in table.lines() {
        assert!(docs.contains(line), "docs/internals/link.md lacks this row:\n{line}");
    }
}
