//! What a part has captured, as Debian's packet analyser understands it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::{Result, context, note_skip};

/// What is looked at, in this order.
const FIELDS: [&str; 6] = [
    "_ws.malformed",
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.reth.dmalen",
    "infiniband.aeth.msn",
];
/// Opcodes that have an AETH.
const ANSWERS: [u64; 2] = [16, 17];
/// Those that begin a write.
const WRITES: [u64; 2] = [6, 10];
/// Numbers of packets go round.
const NUMBERS: u64 = 1 << 24;

/// Has tshark read a capture of a part at `port`: every datagram but the openings is a packet of a
/// reliable connection, none is malformed, and of each flow no number is missing.
///
/// # Errors
/// It is not so.
pub fn capture(file: &Path, port: u16) -> Result<()> {
    let mut command = Command::new("tshark");
    command.args(["-o", &format!("infiniband.rroce.port:{port}")]);
    // It guesses what a SEND carries: takes some for NFS over RDMA, or for Fibre Channel.
    command.args(["--disable-protocol", "rpcordma", "--disable-protocol", "fc"]);
    command.args(["-Y", "udp.payload[0:1] != 4f", "-r"]).arg(file);
    command.args(["-T", "fields", "-E", "separator=,", "-E", "occurrence=f"]);
    for field in FIELDS {
        command.args(["-e", field]);
    }
    let Ok(output) = command.output() else {
        return note_skip("shared-capture", "no tshark; `scripts/setup test` installs it");
    };
    if !output.status.success() {
        return Err(format!("tshark: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = context(String::from_utf8(output.stdout), || "tshark".to_owned())?;
    let (mut opcodes, mut flows) = (BTreeMap::new(), BTreeMap::<&str, BTreeSet<u64>>::new());
    for line in text.lines() {
        let columns: Vec<&str> = line.split(',').collect();
        let &[malformed, opcode, queue, psn, reth, aeth] = columns.as_slice() else {
            return Err(format!("tshark says {line:?}"));
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("no packet: {line:?}"));
        let (opcode, psn) = (number(opcode)?, number(psn)?);
        let is_right = malformed.is_empty()
            && reth.is_empty() != WRITES.contains(&opcode)
            && aeth.is_empty() != ANSWERS.contains(&opcode);
        if !is_right {
            return Err(format!("malformed: {line:?}"));
        }
        *opcodes.entry(opcode).or_insert(0) += 1;
        if !ANSWERS.contains(&opcode) {
            flows.entry(queue).or_default().insert(psn);
        }
    }
    if !WRITES.iter().any(|opcode| opcodes.contains_key(opcode)) {
        return Err("a capture without writes".to_owned());
    }
    for (queue, numbers) in &flows {
        // They follow each other, but for one place: where they end and begin, round the end.
        let next = |n: &&u64| !numbers.contains(&((**n + 1) % NUMBERS));
        if numbers.iter().filter(next).count() != 1 {
            return Err(format!("numbers of the flow to {queue} are missing"));
        }
    }
    let opcodes: Vec<String> = opcodes.iter().map(|(code, n)| format!("{n} of {code}")).collect();
    println!("  tshark: {} flows; packets by opcode: {}", flows.len(), opcodes.join(", "));
    Ok(())
}
