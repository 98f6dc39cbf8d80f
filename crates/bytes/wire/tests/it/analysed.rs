//! Packets of shared volumes, as Debian's packet analyser understands them: a card would, too.

use std::path::Path;
use std::process::Command;

use outboard_wire::roce::{Extension, Opcode, PORT, Packet, Psn, Route};
use outboard_wire::shared::{ANSWER_LEN, Answer};

use crate::skips::note_skip;

const ROUTE: Route =
    Route { source: [10, 0, 0, 1], source_port: 49152, destination: [10, 0, 0, 2] };
/// What is looked at, in this order.
const FIELDS: [&str; 11] = [
    "infiniband.bth.opcode",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.reth.va",
    "infiniband.reth.dmalen",
    "infiniband.aeth.msn",
    "infiniband.invariant.crc",
];

/// The datagram within UDP and IPv4.
fn on_the_way(datagram: &[u8]) -> Vec<u8> {
    let udp = u16::try_from(8 + datagram.len()).unwrap();
    let mut out = vec![0x45, 0];
    out.extend((udp + 20).to_be_bytes());
    out.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    out.extend(ROUTE.source);
    out.extend(ROUTE.destination);
    out.extend(ROUTE.source_port.to_be_bytes());
    out.extend(PORT.to_be_bytes());
    out.extend(udp.to_be_bytes());
    out.extend([0, 0]);
    out.extend(datagram);
    out
}

/// A capture of raw IPv4, as libpcap writes them.
fn capture(path: &Path, packets: &[Vec<u8>]) {
    let mut out = Vec::new();
    let head = [0xA1B2_C3D4u32, 2 | 4 << 16, 0, 0, 65535, 101];
    head.iter().for_each(|word| out.extend(word.to_le_bytes()));
    for packet in packets {
        let len = u32::try_from(packet.len()).unwrap();
        [0, 0, len, len].iter().for_each(|word: &u32| out.extend(word.to_le_bytes()));
        out.extend(packet);
    }
    std::fs::write(path, out).unwrap();
}

/// A line for each packet, of [`FIELDS`].
fn analyse(path: &Path) -> Option<String> {
    let mut command = Command::new("tshark");
    // It guesses what a SEND carries, and takes an answer with a small number for NFS over RDMA.
    command.args(["--disable-protocol", "rpcordma"]);
    command.arg("-r").arg(path).args(["-T", "fields", "-E", "separator=/s", "-E", "occurrence=f"]);
    for field in FIELDS {
        command.args(["-e", field]);
    }
    let output = command.output().ok()?;
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// What stands in the columns of a packet that was written as `datagram`.
fn columns(packet: &Packet<'_>, datagram: &[u8]) -> String {
    let icrc = datagram.last_chunk().copied().map(u32::from_be_bytes).unwrap();
    let none = String::new;
    let (address, bytes, messages) = match packet.extension {
        Extension::None => (none(), none(), none()),
        Extension::Write { address, bytes, .. } => {
            (format!("0x{address:016x}"), bytes.to_string(), none())
        }
        Extension::Answer { messages, .. } => (none(), none(), messages.to_string()),
    };
    let columns = [
        (packet.opcode as u8).to_string(),
        "1".to_owned(),
        (packet.payload.len().wrapping_neg() % 4).to_string(),
        "65535".to_owned(),
        "0x000011".to_owned(),
        u8::from(packet.asks).to_string(),
        packet.psn.raw().to_string(),
        address,
        bytes,
        messages,
        format!("0x{icrc:08x}"),
    ];
    columns.join(" ") + "\n"
}

#[test]
fn a_packet_analyser_reads_what_was_written() {
    let (data, outcome, sequence) = (0, Ok(()), 2);
    let (epoch, credit, fence, held, boot) = (3, 4, 5, 0, 0);
    let answer =
        Answer { data, request: 1, rank: 0, outcome, sequence, epoch, credit, fence, held, boot };
    let answer: [u8; ANSWER_LEN] = answer.emit();
    let packet = |opcode, psn, extension, payload| Packet {
        opcode,
        solicited: false,
        asks: opcode == Opcode::WriteLast,
        queue: 0x11,
        psn: Psn::new(psn),
        extension,
        payload,
    };
    let whole = Extension::Write { address: 0x2000, key: 0, bytes: 2049 };
    let done = Extension::Answer { syndrome: 0x1F, messages: 7 };
    let packets = [
        packet(Opcode::WriteFirst, 0x00FF_FFFE, whole, &[1; 1024][..]),
        packet(Opcode::WriteMiddle, 0x00FF_FFFF, Extension::None, &[2; 1024]),
        packet(Opcode::WriteLast, 0, Extension::None, &[3]),
        packet(Opcode::Acknowledge, 0, done, &[]),
        packet(Opcode::ReadRequest, 1, whole, &[4; 144]),
        packet(Opcode::ReadOnly, 1, done, &[5; 8]),
        packet(Opcode::SendOnly, 2, Extension::None, &answer),
    ];
    let mut captured = Vec::new();
    let mut expected = String::new();
    for packet in &packets {
        let mut datagram = Vec::new();
        packet.emit(ROUTE, &mut datagram).unwrap();
        expected += &columns(packet, &datagram);
        captured.push(on_the_way(&datagram));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("packets.pcap");
    capture(&path, &captured);
    match analyse(&path) {
        Some(found) => assert_eq!(found, expected),
        None => note_skip("wire-analysed", "no tshark; `scripts/setup test` installs it"),
    }
}
